"""Operations on streams: their messages, their readers, the offsets that they keep for named readers, and reading
without AMQP."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from brokerd.operations import OperationError, find_queue
from brokerd.operations.lists import Listing, Page, Paging, vhosts_to_list
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.jobs import Job
    from brokerd.queues.queue import Queue


class ReaderRow(TypedDict):
    """``reader``: its name; empty: the stream keeps no offset for it.  ``reads``: whether it has a consumer now, which
    ``tag``, ``connection``, ``user``, ``unacked`` and ``prefetch`` describe.  ``next_offset``: what it reads next.
    ``lowest_unacked``: what it would begin with again.  Both are 0 where a reader has not found its first place yet.
    ``lag``: messages of the stream from ``lowest_unacked`` on.  ``missed``: messages that retention removed before it
    came to them, also while it was away.  A named reader keeps this count; that of another one begins with its
    consumer."""

    reader: Name
    reads: bool
    tag: Name
    connection: int
    user: Name
    unacked: int
    prefetch: int
    next_offset: int
    lowest_unacked: int
    lag: int
    missed: int


class ReadersListed(TypedDict):
    """``first_offset``: of the first message that is kept; ``next_offset``: that the next message will have.
    ``removed``: messages that retention and purges removed since start; ``missed``: those of them that readers
    missed."""

    queue: Name
    vhost: Name
    first_offset: int
    next_offset: int
    messages: int
    segments: int
    removed: int
    missed: int
    items: list[ReaderRow]


class Kept(TypedDict):
    """``offset``: what is kept now; 0: nothing.  ``changed``: False if it stood so already."""

    queue: Name
    reader: Name
    offset: int
    changed: bool


def _stream(node: "Node", vhost: str, name: str) -> "Queue":
    """Raises OperationError (404, 409)."""
    queue = find_queue(node, vhost, name)
    if queue.stream is None:
        raise OperationError(f"{queue} is no stream: argument x-queue-type makes one", 409)
    queue.check_in_service()
    return queue


# --- stream readers


@request
class ReadersRequest:
    queue: Annotated[str, Field("The stream's name.", argument=True)]
    vhost: Annotated[str, Field("Vhost of the stream.")] = "/"


def _lag(queue: "Queue", offset: int) -> int:
    assert queue.stream is not None
    return max(queue.next_seq - max(offset, queue.stream.first_offset), 0) if offset else 0


def _readers(node: "Node", who: Who, request: ReadersRequest) -> ReadersListed:
    queue = _stream(node, request.vhost, request.queue)
    stream = queue.stream
    assert stream is not None
    return {
        "queue": request.queue, "vhost": request.vhost, "first_offset": stream.first_offset,
        "next_offset": queue.next_seq, "messages": queue.ready, "segments": len(queue.segments()),
        "removed": stream.removed, "missed": stream.missed, "items": rows_of_readers(queue),
    }  # fmt: skip


def rows_of_readers(queue: "Queue") -> list[ReaderRow]:
    """All readers of a stream: those that read now, and those for which only an offset is kept."""
    from brokerd.queues.stream import reader_name

    stream = queue.stream
    assert stream is not None
    rows: list[ReaderRow] = []
    for consumer, next_offset, lowest, missed in stream.readers():
        tag = consumer.tag.decode("utf-8", "surrogateescape")
        connection: Any = consumer.channel.connection
        rows.append({
            "reader": reader_name(queue, consumer.arguments or {}, tag) or "", "reads": True, "tag": tag,
            "connection": connection.number, "user": connection.user, "unacked": consumer.unacked,
            "prefetch": consumer.prefetch, "next_offset": next_offset, "lowest_unacked": lowest,
            "lag": _lag(queue, lowest), "missed": missed,
        })  # fmt: skip
    present = {row["reader"] for row in rows}
    kept = queue.tracked.readers() if queue.tracked is not None else []
    rows += [
        {
            "reader": reader.name, "reads": False, "tag": "", "connection": 0, "user": "", "unacked": 0, "prefetch": 0,
            "next_offset": reader.offset, "lowest_unacked": reader.offset, "lag": _lag(queue, reader.offset),
            "missed": reader.missed_by(stream.first_offset),
        }
        for reader in kept if reader.name not in present
    ]  # fmt: skip
    rows.sort(key=lambda row: (row["reader"], row["connection"], row["tag"]))
    return rows


# --- stream list


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""
    with_readers: Annotated[bool, Field("Also list the named readers of each, 100 at most.")] = False


class NamedReader(TypedDict):
    reader: Name
    reads: bool
    lag: int
    missed: int


class StreamRow(TypedDict):
    """``octets``: of the segment files.  ``oldest_age_ms``: of the first message that is kept; 0: the stream is empty.
    ``reads``: readers that read now; ``readers``: these, and named ones for which only an offset is kept.  ``lag``: the
    largest of all.  ``lag_unnamed``: the largest of readers without a name."""

    name: Name
    vhost: Name
    messages: int
    first_offset: int
    next_offset: int
    segments: int
    octets: int
    oldest_age_ms: int
    reads: int
    readers: int
    lag: int
    lag_unnamed: int
    removed: int
    missed: int
    named: list[NamedReader]  # with the greatest lags


class Streams(Page):
    items: list[StreamRow]


NAMED_MOST = 100


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    things = (
        (vhost, each) for vhost in vhosts_to_list(node, who, request.vhost)
        for each in list(vhost.queues.values()) if each.stream is not None
    )  # fmt: skip
    find = (((vhost.name, each.name), each.name, (vhost.name, each)) for vhost, each in things)
    now, named = node.clock.epoch_ns(), request.with_readers
    return Listing(find, lambda found: row_of(found[0], found[1], now, with_readers=named), request)


def row_of(vhost: str, queue: "Queue", now: int, *, with_readers: bool) -> StreamRow | None:
    """The row of one stream; None: it has been deleted meanwhile."""
    if queue.deleted or queue.lost or queue.stream is None:
        return None
    stream, segments, rows = queue.stream, queue.segments(), rows_of_readers(queue)
    first = queue.browse(1, 1)
    named = _by_name(rows) if with_readers else []
    return {
        "name": queue.name, "vhost": vhost, "messages": queue.ready, "first_offset": stream.first_offset,
        "next_offset": queue.next_seq, "segments": len(segments),
        "octets": sum([segment["end"] for segment in segments]),
        "oldest_age_ms": max(now - first[0][1], 0) // 1_000_000 if first else 0,
        "reads": sum([row["reads"] for row in rows]), "readers": len(rows),
        "lag": max([row["lag"] for row in rows], default=0),
        "lag_unnamed": max([row["lag"] for row in rows if not row["reader"]], default=0),
        "removed": stream.removed, "missed": stream.missed,
        "named": named[:NAMED_MOST],
    }  # fmt: skip


def _by_name(rows: list[ReaderRow]) -> list[NamedReader]:
    """One row for each name.  Several readers may share it, and then share what they missed; the greatest lag first."""
    found: dict[str, NamedReader] = {}
    for row in rows:
        name = row["reader"]
        if name in found:
            one = found[name]
            one["reads"] |= row["reads"]
            one["lag"], one["missed"] = max(one["lag"], row["lag"]), max(one["missed"], row["missed"])
        elif name:
            found[name] = {"reader": name, "reads": row["reads"], "lag": row["lag"], "missed": row["missed"]}
    return sorted(found.values(), key=lambda one: -one["lag"])


# --- stream read


@request
class ReadRequest:
    queue: Annotated[str, Field("The stream's name.", argument=True)]
    offset: Annotated[str, Field("Where to begin: first, last, next, a number, a negative one (so many before the "
                                 "end), a time ago such as 1h, or a time such as 2026-01-31T12:00:00Z.")] = "first"
    count: Annotated[int, Field("How many messages at most.", low=1, high=10_000)] = 100
    examine: Annotated[int, Field("How many messages it examines at most.", low=1, high=1_000_000)] = 100_000
    filter: Annotated[list[str], Field("Only messages with one of these values of x-stream-filter-value; as an "
                                             "option once for each value.", verbatim=True)] = ()  # type: ignore[assignment]
    match_unfiltered: Annotated[bool, Field("Also messages without such a value.")] = False
    filter_table: Annotated[dict[str, Any] | None, Field('Only messages with these headers, or at a place: '
                                                         '{"paid": true}, as a table of x-stream-filter.')] = None
    filter_match: Annotated[Literal["all", "any"], Field("Whether all of the values and the table's entries must "
                                                         "agree, or one.")] = "all"
    filter_sql: Annotated[str, Field("Only messages for which this expression is true, as x-stream-filter-sql.")] = ""
    routing_key: Annotated[str, Field("Only messages with this routing key.")] = ""
    exchange: Annotated[str, Field("Only messages that came by this exchange; amq.default is the default one.")] = ""
    properties: Annotated[dict[str, Any] | None, Field('Only messages with these: {"headers": {"k": 1}}.')] = None
    contains: Annotated[str, Field("Only messages with this text in their payload.")] = ""
    since: Annotated[int, Field("Only messages that came since then: ms since 1970.", low=0)] = 0
    until: Annotated[int, Field("Only messages that came before then: ms since 1970; 0: no limit.", low=0)] = 0
    encoding: Annotated[Literal["auto", "base64"], Field("auto: text where the payload is UTF-8.")] = "auto"
    truncate: Annotated[int, Field("Octets of a payload that are shown; 0: all.", low=0)] = 0
    vhost: Annotated[str, Field("Vhost of the stream.")] = "/"


class ReadRow(TypedDict):
    offset: int
    published_at: int  # ns since the epoch
    exchange: Name
    routing_key: Name
    properties: dict[str, Any]
    payload: str
    payload_encoding: str  # string or base64
    payload_bytes: int


class Read(TypedDict):
    """``next_offset``: where the next reading goes on; ``end_offset``: what the next message will have.  ``missed``:
    messages from the wanted offset on that are gone.  ``examined``: messages that were looked at."""

    queue: Name
    vhost: Name
    items: list[ReadRow]
    first_offset: int
    next_offset: int
    end_offset: int
    missed: int
    examined: int


def _read(node: "Node", who: Who, request: ReadRequest) -> "Job":
    from brokerd.operations.stream_reading import Reading

    return Reading(node, who, request)


# --- stream set_offset, reset, delete


@request
class SetOffsetRequest:
    queue: Annotated[str, Field("The stream's name.", argument=True)]
    reader: Annotated[str, Field("The reader's name.", argument=True)]
    offset: Annotated[int, Field("The offset that it reads next.", argument=True, low=1, high=(1 << 63) - 1)]
    create: Annotated[bool, Field("Also for a reader of which the stream keeps no offset yet.")] = False
    vhost: Annotated[str, Field("Vhost of the stream.")] = "/"


@request
class ReaderRequest:
    queue: Annotated[str, Field("The stream's name.", argument=True)]
    reader: Annotated[str, Field("The reader's name.", argument=True)]
    vhost: Annotated[str, Field("Vhost of the stream.")] = "/"


def _idle(node: "Node", request: SetOffsetRequest | ReaderRequest) -> "Queue":
    """The stream, while that reader does not read.  Raises OperationError (400, 404, 409)."""
    from brokerd.arguments import SHORT_STRING_OCTETS_MAX
    from brokerd.queues.stream import is_shared, reading

    queue = _stream(node, request.vhost, request.queue)
    octets = len(request.reader.encode("utf-8", "surrogateescape"))
    if not 1 <= octets <= SHORT_STRING_OCTETS_MAX:
        raise OperationError(f"reader: {octets} octets, but a name has 1 to {SHORT_STRING_OCTETS_MAX}", 400)
    if request.reader in reading(queue) or is_shared(queue, request.reader):
        raise OperationError(f"reader '{request.reader}' of {queue} reads now: cancel its consumer first", 409)
    return queue


def _unknown(queue: "Queue", reader: str) -> OperationError:
    return OperationError(f"no reader '{reader}' of {queue}: no offset is kept for it", 404)


def _keep(node: "Node", request: SetOffsetRequest | ReaderRequest, offset: int, *, create: bool = False) -> Kept:
    from brokerd.queues.stream import reading, tracked_of

    queue = _idle(node, request)
    if not create and (queue.tracked is None or queue.tracked.offset(request.reader) is None):
        raise _unknown(queue, request.reader)
    if offset > queue.next_seq:
        raise OperationError(f"offset: {offset} is beyond the next one of {queue}, {queue.next_seq}", 400)
    try:
        tracked = tracked_of(queue)
        changed = tracked.offset(request.reader) != offset
        tracked.set(request.reader, offset, reading(queue))
    except OSError as error:
        reason = f"the offset of reader '{request.reader}' of {queue} cannot be kept: {error}"
        raise OperationError(reason, 409) from error
    return {"queue": request.queue, "reader": request.reader, "offset": offset, "changed": changed}


def _set_offset(node: "Node", who: Who, request: SetOffsetRequest) -> Kept:
    return _keep(node, request, request.offset, create=request.create)


def _reset(node: "Node", who: Who, request: ReaderRequest) -> Kept:
    queue = _stream(node, request.vhost, request.queue)
    assert queue.stream is not None
    return _keep(node, request, queue.stream.first_offset)


def _delete(node: "Node", who: Who, request: ReaderRequest) -> Kept:
    queue = _idle(node, request)
    if queue.tracked is None or not queue.tracked.forget(request.reader):
        raise _unknown(queue, request.reader)
    return {"queue": request.queue, "reader": request.reader, "offset": 0, "changed": True}


OPERATIONS = (
    Operation(
        "stream", "list", "List streams: what they keep, and how far their readers are behind.",
        ListRequest, Streams, Right("management", "visit"), _list, job=True, aliases=("list_streams",),
    ),
    Operation(
        "stream", "read",
        "Show messages of a stream from an offset or a time on; the stream keeps no offset of this reader.",
        ReadRequest, Read, Right("management", "visit"), _read, job=True,
    ),
    Operation(
        "stream", "readers", "List the readers of a stream, and the offsets that it keeps for named readers.",
        ReadersRequest, ReadersListed, Right("management", "visit"), _readers, aliases=("list_stream_readers",),
    ),
    Operation(
        "stream", "set_offset", "Set the offset with which a named reader begins the next time.",
        SetOffsetRequest, Kept, Right("management", "read", on="queue"), _set_offset, changes=True,
    ),
    Operation(
        "stream", "reset", "Let a named reader begin with the first message that is kept the next time.",
        ReaderRequest, Kept, Right("management", "read", on="queue"), _reset, changes=True,
    ),
    Operation(
        "stream", "delete", "Forget the offset that is kept for a named reader.",
        ReaderRequest, Kept, Right("management", "read", on="queue"), _delete, changes=True,
    ),
)  # fmt: skip

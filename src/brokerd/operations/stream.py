"""Operations on streams: who reads, how far, and the offsets that are kept for named readers."""

from typing import TYPE_CHECKING, Annotated, Any

from brokerd.operations import OperationError, find_queue
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.queues.queue import Queue


class ReaderRow(TypedDict):
    """``reader``: its name; empty: the stream keeps no offset for it.  ``reads``: whether it has a consumer now, which
    ``tag``, ``connection``, ``user``, ``unacked`` and ``prefetch`` describe.  ``next_offset``: what it reads next.
    ``lowest_unacked``: what it would begin with again.  Both are 0 where a reader has not found its first place yet.
    ``lag``: messages of the stream from ``lowest_unacked`` on.  ``missed``: messages that retention removed before it
    came to them, since it began to read."""

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
    from brokerd.queues.stream import reader_name

    queue = _stream(node, request.vhost, request.queue)
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
            "missed": 0,
        }
        for reader in kept if reader.name not in present
    ]  # fmt: skip
    rows.sort(key=lambda row: (row["reader"], row["connection"], row["tag"]))
    return {
        "queue": request.queue, "vhost": request.vhost, "first_offset": stream.first_offset,
        "next_offset": queue.next_seq, "messages": queue.ready, "segments": len(queue.segments()),
        "removed": stream.removed, "missed": stream.missed, "items": rows,
    }  # fmt: skip


# --- stream set_offset, reset, delete


@request
class SetOffsetRequest:
    queue: Annotated[str, Field("The stream's name.", argument=True)]
    reader: Annotated[str, Field("The reader's name.", argument=True)]
    offset: Annotated[int, Field("The offset that it reads next.", argument=True, low=1, high=(1 << 63) - 1)]
    vhost: Annotated[str, Field("Vhost of the stream.")] = "/"


@request
class ReaderRequest:
    queue: Annotated[str, Field("The stream's name.", argument=True)]
    reader: Annotated[str, Field("The reader's name.", argument=True)]
    vhost: Annotated[str, Field("Vhost of the stream.")] = "/"


def _idle(node: "Node", request: SetOffsetRequest | ReaderRequest) -> "Queue":
    """The stream, while that reader does not read.  Raises OperationError (400, 404, 409)."""
    from brokerd.arguments import SHORT_STRING_OCTETS_MAX
    from brokerd.queues.stream import reading

    queue = _stream(node, request.vhost, request.queue)
    octets = len(request.reader.encode("utf-8", "surrogateescape"))
    if not 1 <= octets <= SHORT_STRING_OCTETS_MAX:
        raise OperationError(f"reader: {octets} octets, but a name has 1 to {SHORT_STRING_OCTETS_MAX}", 400)
    if request.reader in reading(queue):
        raise OperationError(f"reader '{request.reader}' of {queue} reads now: cancel its consumer first", 409)
    return queue


def _keep(node: "Node", request: SetOffsetRequest | ReaderRequest, offset: int) -> Kept:
    from brokerd.queues.stream import tracked_of

    queue = _idle(node, request)
    if offset > queue.next_seq:
        raise OperationError(f"offset: {offset} is beyond the next one of {queue}, {queue.next_seq}", 400)
    try:
        tracked = tracked_of(queue)
        changed = tracked.offset(request.reader) != offset
        tracked.set(request.reader, offset)
    except OSError as error:
        reason = f"the offset of reader '{request.reader}' of {queue} cannot be kept: {error}"
        raise OperationError(reason, 409) from error
    return {"queue": request.queue, "reader": request.reader, "offset": offset, "changed": changed}


def _set_offset(node: "Node", who: Who, request: SetOffsetRequest) -> Kept:
    return _keep(node, request, request.offset)


def _reset(node: "Node", who: Who, request: ReaderRequest) -> Kept:
    queue = _stream(node, request.vhost, request.queue)
    assert queue.stream is not None
    return _keep(node, request, queue.stream.first_offset)


def _delete(node: "Node", who: Who, request: ReaderRequest) -> Kept:
    queue = _idle(node, request)
    if queue.tracked is None or not queue.tracked.forget(request.reader):
        raise OperationError(f"no reader '{request.reader}' of {queue}: no offset is kept for it", 404)
    return {"queue": request.queue, "reader": request.reader, "offset": 0, "changed": True}


OPERATIONS = (
    Operation(
        "stream", "readers", "List who reads a stream, and the offsets that are kept for named readers.",
        ReadersRequest, ReadersListed, Right("management", "visit"), _readers, aliases=("list_stream_readers",),
    ),
    Operation(
        "stream", "set_offset", "Set the offset with which a named reader begins the next time.",
        SetOffsetRequest, Kept, Right("management", "read", on="queue"), _set_offset, changes=True,
    ),
    Operation(
        "stream", "reset", "Have a named reader begin with the first message that is kept the next time.",
        ReaderRequest, Kept, Right("management", "read", on="queue"), _reset, changes=True,
    ),
    Operation(
        "stream", "delete", "Forget the offset that is kept for a named reader.",
        ReaderRequest, Kept, Right("management", "read", on="queue"), _delete, changes=True,
    ),
)  # fmt: skip

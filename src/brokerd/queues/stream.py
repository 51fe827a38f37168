"""Streams: consumers read their messages and do not take them.  Sets a stream's retention, and where a reader begins.

    x-max-length, x-max-length-bytes, x-max-age,
    x-stream-max-segment-size-bytes             ── Retention ─> plane.Stream.set_limits
    x-stream-offset, x-stream-first-offset      ── start_of  ─> plane.Stream.begin
    x-stream-reader                             ── Tracked   ─> its slot, where the plane keeps its offset

The data plane serves the readers and removes segments.  Knows nothing of permissions, nor of who reads.
"""

from collections.abc import Iterator, Mapping
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.arguments import age_ms, short_string
from brokerd.clock import Clock
from brokerd.errors import AccessRefused, NotImplemented_, PreconditionFailed
from brokerd.queues.filters import Filter, FilterFault, compile_filter
from brokerd.store.format import SEGMENT_OCTETS_MAX
from brokerd.wire.values import Timestamp

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.queues.queue import Queue
    from brokerd.queues.tracked import Tracked

log = getLogger("brokerd")

SEGMENTS_AT_ONCE = 8  # that another retention removes at once: some 0.4 ms
ALL = Filter()
SEGMENT_OCTETS_MIN = 4096
INT64_MAX = (1 << 63) - 1
SECONDS_MAX = INT64_MAX // 1_000_000_000
OFFSET_RULE = (
    "must be 'first', 'last', 'next', a whole number, a timestamp, or a time ago with its unit (Y, M, D, h, m, s) "
    "such as '1h'"
)
# Arguments of basic.consume that ask for what streams do not have.
NOT_FOR_READERS = ("x-priority", "x-cancel-on-ha-failover")
FIRST_OFFSET = "x-stream-first-offset"  # counts only while no offset of the reader is kept
SHARERS_MAX = 256  # readers of one name: the plane's SHARE_READERS_MOST
SERVER_TAG = "amq.ctag-"  # what consumer tags begin with that the broker made


class Retention(NamedTuple):
    """The limits of a stream; None: no limit.  Only whole segments go, and the last one stays, so the limits are kept
    as closely as segments are small."""

    max_length: int | None = None
    max_octets: int | None = None  # of segment files
    max_age_ms: int | None = None
    segment_octets: int | None = None  # of a segment file; None: as all queues'


def retention_of(given: Mapping[str, Any]) -> Retention | None:
    """The retention that effective arguments ask for; None: all is kept."""
    retention = Retention(
        given.get("x-max-length"), given.get("x-max-length-bytes"), age_ms(given.get("x-max-age", "")),
        given.get("x-stream-max-segment-size-bytes"),
    )  # fmt: skip
    return None if retention == Retention() else retention


def put_in_force(stream: "plane.Stream", retention: Retention | None) -> bool:
    """Put another retention in force.  A bounded number of segments go at once.  Returns whether there may be more."""
    limits = retention or Retention()
    stream.set_limits(
        max_length=_number(limits.max_length), max_octets=_number(limits.max_octets),
        age_ns=-1 if limits.max_age_ms is None else min(limits.max_age_ms * 1_000_000, INT64_MAX),
        segment_octets=_segment_octets(limits.segment_octets),
    )  # fmt: skip
    return stream.retain(SEGMENTS_AT_ONCE) == SEGMENTS_AT_ONCE


def _number(value: int | None) -> int:
    return -1 if value is None else int(value)


def _segment_octets(value: int | None) -> int:
    return 0 if value is None else min(max(value, SEGMENT_OCTETS_MIN), SEGMENT_OCTETS_MAX)


def retain_in_pieces(queue: "Queue") -> Iterator[None]:
    """Remove what the stream need not keep, one segment after the other.  The log is told of what readers have missed
    since it was told last."""
    stream, removed = queue.stream, 0
    assert stream is not None
    while not queue.deleted and stream.retain(1):
        removed += 1
        yield
    if queue.deleted:
        return
    if removed:
        log.debug("%s: retention removed %d segments; the first offset is %d", queue, removed, stream.first_offset)
    if stream.missed > queue.missed_told:
        missed, queue.missed_told = stream.missed - queue.missed_told, stream.missed
        log.warning("%s: readers missed %d messages that had been removed", queue, missed)


def check_reader(
    queue: "Queue", arguments: Mapping[str, Any], *, no_ack: bool, prefetch: int, global_prefetch: int
) -> None:
    """Check that a consumer may read the stream.  Raises NotImplemented_ and PreconditionFailed, as RabbitMQ 4 words
    them, but for ``x-stream-offset``: it answers that with an Erlang term."""
    if global_prefetch:
        raise NotImplemented_(f"{queue} does not support global qos")
    if not prefetch:
        raise PreconditionFailed(f"consumer prefetch count is not set for stream {queue}")
    if no_ack:
        raise NotImplemented_(f"automatic acknowledgement not supported by stream {queue}")
    for name in NOT_FOR_READERS:
        if name in arguments:
            raise PreconditionFailed(f"invalid arg '{name}' for {queue} of queue type rabbit_stream_queue")
    for name in ("x-stream-offset", FIRST_OFFSET):
        reason = _start(arguments.get(name, "next"))
        if isinstance(reason, str):
            raise PreconditionFailed(f"invalid arg '{name}' for {queue}: {reason}")
    fault = _sharing_fault(arguments)
    if fault is not None:
        raise PreconditionFailed(f"invalid arg '{fault[0]}' for {queue}: {fault[1]}")
    try:
        filter_of(arguments)
    except FilterFault as wrong:
        raise PreconditionFailed(f"invalid arg '{wrong.argument}' for {queue}: {wrong.reason}") from None


# --- filters

FILTER_ARGUMENTS = ("x-stream-filter", "x-stream-match-unfiltered", "x-filter-match-type", "x-stream-filter-sql")


def filter_of(arguments: Mapping[str, Any]) -> Filter:
    """The filter that the arguments ask for.  Raises FilterFault."""
    for name in FILTER_ARGUMENTS:
        if name in arguments:
            return compile_filter(arguments)
    return ALL


# --- named readers


def reader_name(queue: "Queue", arguments: Mapping[str, Any], tag: str) -> str | None:
    """Under which name the stream keeps the reader's offset; None: it keeps none.  Raises PreconditionFailed."""
    name = arguments.get("x-stream-reader")
    if "x-stream-reader" in arguments:
        reason = short_string(name, arguments)
        if reason is None and not name:
            reason = '"empty"'
        if reason is not None:
            raise PreconditionFailed(f"invalid arg 'x-stream-reader' for {queue}: {reason}")
    tracking = arguments.get("x-stream-automatic-offset-tracking", name is not None)
    if tracking is False or tracking == "false":
        return None
    if tracking is not True and tracking != "true":
        raise PreconditionFailed(
            f"invalid arg 'x-stream-automatic-offset-tracking' for {queue}: it must be true or false"
        )
    if name is None and tag.startswith(SERVER_TAG):
        raise PreconditionFailed(
            f"invalid arg 'x-stream-automatic-offset-tracking' for {queue}: the reader has no name: give it a consumer "
            "tag, or x-stream-reader"
        )
    return tag if name is None else str(name)


def reading(queue: "Queue") -> frozenset[str]:
    """The names of readers that read now."""
    assert queue.stream is not None
    kept = queue.stream.kept_readers()  # Few of many readers may have a name.
    names = (reader_name(queue, consumer.arguments or {}, _text(consumer.tag)) for consumer in kept)
    return frozenset(name for name in names if name is not None)


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


def tracked_of(queue: "Queue") -> "Tracked":
    """The offsets that the stream keeps; the first call makes their file.  Raises OSError."""
    if queue.tracked is None:
        from brokerd.queues.tracked import Tracked

        queue.make_directory()
        queue.tracked = Tracked(queue.directory, str(queue))
    return queue.tracked


def recover_offsets(queue: "Queue") -> None:
    """After a start: no offset that is kept is beyond the stream, whose end a power cut may have taken."""
    from brokerd.queues.tracked import exists

    if exists(queue.directory):
        try:
            tracked_of(queue).lower(queue.next_seq)
        except OSError as error:
            log.warning("%s: offsets of its readers cannot be kept: %s", queue, error)


def begin_reading(queue: "Queue", arguments: Mapping[str, Any], tag: str) -> None:
    """Say where the consumer begins that joins next; its arguments were checked.  Raises AccessRefused for the name of
    a reader that reads now; PreconditionFailed where its offset cannot be kept, or readers of its name ask otherwise.
    """
    stream = queue.stream
    assert stream is not None
    start, value = start_of(arguments)
    asked = filter_of(arguments)
    wanted: dict[str, Any] = {"filter": asked.values, "unfiltered": asked.unfiltered, "program": asked.program}
    name = reader_name(queue, arguments, tag)
    single = is_single(queue, arguments)
    if single or "x-stream-partitions" in arguments:
        wanted |= _share(queue, _octets(name or ""), asked, single=single)
        if any(share[0] == wanted["share"] for share in stream.shares()):
            stream.begin(start, value, **wanted)  # The place of those that are there counts.
            return
    if name is None:
        stream.begin(start, value, **wanted)
        return
    names = reading(queue)
    if name in names:
        raise AccessRefused(f"reader '{name}' of {queue} in exclusive use")
    # Until the first ack it is kept from here on.  Where the place is not found yet, or is yet to come, that may be too
    # early, never too late.
    begins = {"next": queue.next_seq, "offset": max(value, 1), "back": max(queue.next_seq - value, 1)}
    first_kept = min(begins.get(start, stream.first_offset), queue.next_seq)
    try:
        slot = tracked_of(queue).claim(name, first_kept, Clock().epoch_ns(), names)
    except OSError as error:
        raise PreconditionFailed(f"the offset of reader '{name}' of {queue} cannot be kept: {error}") from error
    goes_on = "x-stream-offset" not in arguments and slot.offset is not None
    if slot.offset is None:
        kept = first_kept if begins.get(start, 0) <= first_kept else 0
    elif goes_on:
        start, value, kept = "offset", slot.offset, slot.offset
    else:  # Where it begins beyond what is kept, the messages between are not acknowledged.
        kept = slot.offset if start in begins and begins[start] <= slot.offset else 0
    stream.begin(start, value, tells=goes_on, slot=slot.octets, turn=slot.turn, kept=kept, **wanted)


# --- readers of one name


def is_single(queue: "Queue", arguments: Mapping[str, Any]) -> bool:
    """Whether a reader with these arguments takes turns with others of its name."""
    return (
        arguments.get("x-single-active-consumer", queue.arguments.get("x-single-active-consumer")) is True
        and "x-stream-partitions" not in arguments
    )


def _sharing_fault(arguments: Mapping[str, Any]) -> tuple[str, str] | None:
    """Which argument of a reader that shares is wrong, and why."""
    single = arguments.get("x-single-active-consumer", False)
    if not isinstance(single, bool):
        return "x-single-active-consumer", "it must be true or false"
    if "x-stream-partitions" in arguments:
        if arguments["x-stream-partitions"] != "hash":
            return "x-stream-partitions", "it must be 'hash'"
        if "x-stream-reader" not in arguments:
            return "x-stream-partitions", "the readers that share have no name: give them the same x-stream-reader"
        if single:
            return "x-stream-partitions", "a single active consumer shares with no other"
    return None


def _share(queue: "Queue", name: bytes, asked: Filter, *, single: bool) -> dict[str, Any]:
    """The share as plane.Stream.begin takes it.  Raises PreconditionFailed where readers of the name share otherwise,
    AccessRefused where one reads alone, or there are as many as there may be."""
    from brokerd.queues.groups import HEADERS, PROPERTIES

    assert queue.stream is not None
    who = f"readers '{_text(name)}' of {queue}" if name else f"readers without a name of {queue}"
    for other, other_single, readers, *_, has in queue.stream.shares():
        if other != name:
            continue
        if other_single != single:
            how = "take turns" if other_single else "share by key"
            raise PreconditionFailed(f"{who} {how}; one more must do the same")
        if has != asked:
            raise PreconditionFailed(f"{who} have another filter; one more must have the same")
        if len(readers) >= SHARERS_MAX:
            raise AccessRefused(f"there are {SHARERS_MAX} {who}, as many as there may be")
    header = queue.rules.partition_header
    by = header if header in PROPERTIES else "header"
    names = () if by != "header" else HEADERS if header is None else (header,)
    return {"share": name, "single": single, "by": by, "names": tuple([_octets(one) for one in names])}


def is_shared(queue: "Queue", name: str) -> bool:
    """Whether readers of that name share a place now, or deliveries of such readers are still out."""
    return queue.stream is not None and any(share[0] == _octets(name) for share in queue.stream.shares())


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def start_of(arguments: Mapping[str, Any]) -> tuple[str, int]:
    """Where a reader with these arguments begins, as plane.Stream.begin takes it.  They were checked."""
    start = _start(arguments.get("x-stream-offset", arguments.get(FIRST_OFFSET, "next")))
    assert not isinstance(start, str)
    return start


def _start(value: Any) -> tuple[str, int] | str:
    """Where a reader begins; a text: why it cannot begin there."""
    if isinstance(value, str):
        if value in ("last", "next"):
            return value, 0
        if value == "first":
            return "offset", 1
        ago = age_ms(value)
        return f"'{value}' {OFFSET_RULE}" if ago is None else ("ago", min(ago * 1_000_000, INT64_MAX))
    if isinstance(value, Timestamp):
        return "time", min(max(int(value), 0), SECONDS_MAX) * 1_000_000_000
    if isinstance(value, int) and not isinstance(value, bool):
        return ("offset", min(value, INT64_MAX)) if value >= 0 else ("back", min(-value, INT64_MAX))
    return f"it {OFFSET_RULE}"

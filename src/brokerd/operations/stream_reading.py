"""Reads a stream for operations: a few messages at a time from an offset on, and nothing is kept of who read them.

    "first" "last" "next" 5000 -20 1h 2026-01-31T12:00Z ─ find_offset ─> offset ─ Reading ─> messages that match

The plane filters, and skips by the indexes of segments, as for any reader.  The offset of a time is found by halving:
first among the segments, then within one.  A reading looks at a bounded number of messages and answers a bounded number
of octets; ``next_offset`` says where the next one goes on.  A client that reads slowly asks less often, and holds up
nothing.  Knows nothing of HTTP.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from brokerd import plane
from brokerd.arguments import age_ms
from brokerd.operations import OperationError
from brokerd.operations.jobs import ON_LOOP, Pace, Steps
from brokerd.operations.messages import matcher, next_look, queue_of, shown

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.rows import Who
    from brokerd.operations.stream import ReadRequest
    from brokerd.queues.filters import Filter
    from brokerd.queues.queue import Queue

LOOKS = 4096  # messages that one call of the plane looks at: a millisecond at most
LAST_OCTETS = 64 << 10  # as a consumer's x-stream-offset "last"
ANSWER_OCTETS_MAX = 4 << 20  # payloads and properties; the message that goes beyond it is the last one
OFFSET_RULE = (
    "offset must be first, last, next, a number, a time ago with its unit (Y, M, D, h, m, s) such as 1h, or a time "
    "such as 2026-01-31T12:00:00Z"
)
FILTER_FIELDS = {"x-stream-filter": "filter", "x-stream-filter-sql": "filter_sql"}  # by the consumer's argument

Row = tuple[Any, ...]


def stream_of(queue: "Queue") -> Any:
    """The queue's stream.  Raises OperationError (409)."""
    if queue.stream is None:
        raise OperationError(f"{queue} is no stream: argument x-queue-type makes one", 409)
    return queue.stream


# --- where reading begins


def read_offset(text: str, now_ns: int) -> tuple[str, int]:
    """The meaning of a text: ("offset", number), ("back", messages), ("time", ns), or a word and 0.
    Raises OperationError (400)."""
    if text in ("first", "last", "next"):
        return text, 0
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 18:
        if text[0] == "-":
            return "back", int(digits)
        return ("offset", int(digits)) if int(digits) else ("first", 0)
    ago = age_ms(text)
    if ago is not None:
        return "time", max(now_ns - ago * 1_000_000, 0)
    from brokerd.operations.replay import read_time

    if not digits.isdigit():
        try:
            return "time", read_time(text)
        except OperationError:
            pass
    raise OperationError(f"{OFFSET_RULE}, and not '{text:.80}'", 400)


def find_offset(queue: "Queue", start: tuple[str, int]) -> Generator[Any, None, int]:
    """The offset of the first message to read; where it is not there yet, the one that it will have."""
    stream, (kind, value) = stream_of(queue), start
    end: int = queue.next_seq
    if kind == "offset":
        return value
    if kind == "first":
        return int(stream.first_offset)
    if kind == "next":
        return end
    if kind == "back":
        return max(end - value, stream.first_offset)
    if kind == "last":
        return max(end - _in_last_octets(queue), stream.first_offset)
    return (yield from _at_time(queue, value))


def _in_last_octets(queue: "Queue") -> int:
    """How many messages the last 64 KiB have, if those of the last segment are of about the same size."""
    full = [segment for segment in queue.segments() if segment["records"]]
    return max(full[-1]["records"] * LAST_OCTETS // max(full[-1]["end"], 1), 1) if full else 0


def _at_time(queue: "Queue", when: int) -> Generator[Any, None, int]:
    """By halving: each step reads one message."""
    end = queue.next_seq
    firsts = [max(segment["base_seq"], 1) for segment in queue.segments()]
    low, high = 0, len(firsts)  # The message is not in a segment before `low`, and not behind the first of `high`.
    while high - low > 1:
        middle = (low + high) // 2
        if _stored_before(queue, firsts[middle], when):
            low = middle
        else:
            high = middle
        yield ON_LOOP
    lowest = firsts[low] if firsts else end
    highest = firsts[high] if high < len(firsts) else end
    while lowest < highest:
        at = (lowest + highest) // 2
        if _stored_before(queue, at, when):
            lowest = at + 1
        else:
            highest = at
        yield ON_LOOP
    return lowest


def _stored_before(queue: "Queue", offset: int, when: int) -> bool:
    rows = queue.browse(offset, 1)
    return bool(rows) and rows[0][1] < when


# --- which messages are read


def filter_of(request: "ReadRequest") -> "Filter":
    """The filter that the plane applies.  Raises OperationError (400)."""
    from brokerd.queues.filters import Filter, FilterFault, compile_filter

    arguments = filter_arguments(request)
    try:
        return compile_filter(arguments) if arguments else Filter()
    except FilterFault as fault:
        raise OperationError(f"{FILTER_FIELDS[fault.argument]}: {fault.reason}", 400) from None
    except ValueError as error:  # JSON has numbers and texts that AMQP has not.
        raise OperationError(f"filter_table: {error}", 400) from None


def filter_arguments(request: "ReadRequest") -> dict[str, Any]:
    """The filter as a consumer would ask for it; {}: none."""
    wanted: list[Any] = [*(request.filter or ())]
    if request.filter_table is not None:
        wanted.append(request.filter_table)
    arguments: dict[str, Any] = {"x-stream-filter-sql": request.filter_sql} if request.filter_sql else {}
    if wanted:
        arguments["x-stream-filter"] = wanted
    if arguments:
        arguments["x-filter-match-type"] = request.filter_match
        arguments["x-stream-match-unfiltered"] = request.match_unfiltered
    return arguments


class Reading:
    """The job that reads."""

    def __init__(self, node: "Node", who: "Who", request: "ReadRequest") -> None:
        self._request = request
        _, _, self._queue = queue_of(node, who, request)
        stream_of(self._queue)
        self._queue.check_in_service()
        self._start = read_offset(request.offset, node.clock.epoch_ns())
        self._filter = filter_of(request)
        self._matches = matcher(request)

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        queue, request = self._queue, self._request
        at = yield from find_offset(queue, self._start)
        pace, missed, examined, octets, look = Pace(), 0, 0, 0, 16
        items: list[dict[str, Any]] = []
        while len(items) < request.count and examined < request.examine and octets < ANSWER_OCTETS_MAX:
            if queue.deleted:
                raise OperationError(f"{queue} was deleted meanwhile", 404)
            first = stream_of(queue).first_offset
            missed += max(first - at, 0)
            at = max(first, at)
            rows, reached, looked = plane.look_through(
                queue, at, look, min(LOOKS, request.examine - examined), **self._filter._asdict()
            )
            examined += looked
            for row in rows:
                if not self._matches(row):
                    continue
                items.append(_row(queue, row, request))
                octets += len(row[5]) + min(len(row[6]), request.truncate or len(row[6]))
                if len(items) == request.count or octets >= ANSWER_OCTETS_MAX:
                    reached = row[0] + 1
                    break
            if reached == at:
                break
            at = reached
            if rows:
                look = next_look(rows)
            if pace.is_over():
                yield ON_LOOP
        return {
            "queue": request.queue, "vhost": request.vhost, "items": items,
            "first_offset": stream_of(queue).first_offset, "next_offset": at, "end_offset": queue.next_seq,
            "missed": missed, "examined": examined,
        }  # fmt: skip

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


def _row(queue: "Queue", row: Row, request: "ReadRequest") -> dict[str, Any]:
    table = shown(queue, row, request.encoding, request.truncate)
    names = ("published_at", "exchange", "routing_key", "properties", "payload", "payload_encoding", "payload_bytes")
    return {"offset": row[0], **{name: table[name] for name in names}}

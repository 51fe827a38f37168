"""The spans of messages: from the moment that a message came, its deliveries and its end.

    publish Q   an instant: the message is stored.  Its parent is the span that the header traceparent names
    deliver Q   it waited, until it went out.  Its parent is publish
    settle Q    it was with a consumer, until it came back or ended.  Its parent is deliver, or publish

A message that came back is delivered and settled again.  The identity of a span is a hash of what it is of, so that the
same span always has the same.  Knows nothing of files, nor of how spans travel.
"""

import re
from hashlib import blake2b
from typing import NamedTuple

from brokerd.store import format as layout

OPEN_MAX = 100_000  # messages whose end has not been seen; then the oldest is forgotten
OUTCOMES = {
    layout.ACKED: "acked", layout.REJECTED: "rejected", layout.RETURNED: "returned", layout.EXPIRED: "expired",
    layout.DEAD_LETTERED: "dead-lettered", layout.DROPPED: "dropped", layout.PURGED: "purged",
}  # fmt: skip
_RANDOM_BITS = 56  # of a trace's identity, the lowest: those that are random by W3C's Trace Context
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Parent(NamedTuple):
    """What a header ``traceparent`` says."""

    trace: int
    span: int
    sampled: bool


def read_traceparent(text: str) -> Parent | None:
    """None if it is none, by W3C's Trace Context."""
    found = _PARENT.fullmatch(text)
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    trace, span = int(found[2], 16), int(found[3], 16)
    return Parent(trace, span, bool(int(found[4], 16) & 1)) if trace and span else None


class Place(NamedTuple):
    """Whose messages these are."""

    vhost: str
    queue: str
    priority: int
    identity: bytes  # of this queue, apart from others of its name


class Span(NamedTuple):
    """One span; times are ns since the epoch."""

    name: str
    trace: int
    span: int
    parent: int
    parent_is_remote: bool
    start: int
    end: int
    attributes: dict[str, str | int | bool]


class _Open:
    """A message whose end has not been seen."""

    __slots__ = ("came", "last", "out", "parent", "publish")

    def __init__(self, parent: Parent, publish: int, came: int) -> None:
        self.parent, self.publish, self.came = parent, publish, came
        self.last = publish  # the span that comes before the next one
        self.out = 0  # since when it is with a consumer; 0: it waits


class Lives:
    """The messages that are followed, of all queues.  ``spans`` are those that were made and not taken yet."""

    def __init__(self, one_in: int) -> None:
        """Of ``one_in`` traces one is told, by its identity: of each message of a trace, or of none."""
        self._below = (1 << _RANDOM_BITS) // one_in
        self._open: dict[tuple[bytes, int, int], _Open] = {}
        self.spans: list[Span] = []
        self.forgotten = 0

    def is_wanted(self, parent: Parent) -> bool:
        """Whether the publisher and ``one_in`` want the spans of this trace."""
        return parent.sampled and parent.trace & (1 << _RANDOM_BITS) - 1 < self._below

    def came(self, place: Place, seq: int, ts: int, parent: Parent, exchange: str, key: str) -> None:
        """A message was stored."""
        publish = _identity(place, seq, "publish", ts)
        if len(self._open) >= OPEN_MAX:
            del self._open[next(iter(self._open))]
            self.forgotten += 1
        self._open[place.identity, place.priority, seq] = _Open(parent, publish, ts)
        self.spans.append(Span(f"publish {place.queue}", parent.trace, publish, parent.span, True, ts, ts, {
            **_attributes(place, seq, "publish"), "brokerd.exchange": exchange,
            "messaging.rabbitmq.destination.routing_key": key}))

    def happened(self, place: Place, seq: int, ts: int, type_: int, reason: int, consumer: int) -> None:
        """A message has this event in the journal.  Those that are not followed are skipped."""
        key = (place.identity, place.priority, seq)
        message = self._open.get(key)
        if message is None:
            return
        if type_ == layout.DELIVERED:
            self._tell(place, seq, message, "deliver", message.came, ts, {
                "brokerd.redelivered": bool(reason & layout.REDELIVERED), "brokerd.consumer": consumer})
            message.out = ts
            return
        outcome = OUTCOMES.get(type_)
        if outcome is None:
            return
        self._tell(place, seq, message, "settle", message.out or message.came, ts, {"brokerd.outcome": outcome})
        if type_ == layout.RETURNED:
            message.came, message.out, message.last = ts, 0, message.publish
        else:
            del self._open[key]

    def _tell(self, place: Place, seq: int, message: _Open, what: str, start: int, end: int,
              more: dict[str, str | int | bool]) -> None:
        span = _identity(place, seq, what, end)
        self.spans.append(Span(f"{what} {place.queue}", message.parent.trace, span, message.last, False, start, end,
                               _attributes(place, seq, what) | more))
        message.last = span


def _identity(place: Place, seq: int, what: str, ts: int) -> int:
    """Of a span: never 0."""
    octets = place.identity + f"{place.priority} {seq} {what} {ts}".encode()
    return int.from_bytes(blake2b(octets, digest_size=8).digest()) or 1


def _attributes(place: Place, seq: int, what: str) -> dict[str, str | int | bool]:
    return {
        "messaging.system": "brokerd", "messaging.operation.name": what, "messaging.destination.name": place.queue,
        "brokerd.vhost": place.vhost, "brokerd.seq": seq,
    }  # fmt: skip

"""The consistent hash exchange: messages of one key go to one destination, and weights share out the keys.

The binding key is the weight, a whole number from 1 on; a destination that is bound more than once has the sum of its
weights.  The exchange hashes the routing key, unless its arguments name another source:

    hash-header, x-hash-on   a header of the message
    hash-property            message_id, correlation_id or timestamp
    x-algorithm              ring (default) or jump

All messages without the header or property have the same key.

*ring*: each destination has points on a circle of 64-bit numbers, in proportion to its weight.  A key goes to the
destination of the next point.  The points follow from the destination's name alone, so the answer depends only on the
present bindings.  A restart changes nothing, and a destination that leaves moves its own keys and no others.

*jump*: the destinations, in the order of their bindings, form a row of buckets, one bucket for each unit of weight.
Lamping and Veach's jump hash picks a bucket.  The shares are exact, but a destination that leaves moves the keys of
those behind it.
"""

from array import array
from bisect import bisect_right
from collections.abc import Collection
from itertools import accumulate
from typing import Any, ClassVar

from brokerd.errors import PreconditionFailed
from brokerd.exchanges.arguments import JUMP
from brokerd.exchanges.exchange import Binding, Exchange, LazyProperties
from brokerd.exchanges.terms import format_amqp_term
from brokerd.wire.properties import Properties

# More points make the shares more even (512 points: within about 5 %), but a change of bindings then takes longer.
RING_POINTS_MAX = 1 << 14
POINTS_PER_UNIT_MAX = 512
_POINTS_PER_DIGEST = 8  # 64 octets


class ConsistentHashExchange(Exchange):
    """RabbitMQ's x-consistent-hash, which also takes LavinMQ's arguments."""

    __slots__ = ("_header", "_owners", "_points", "_property", "_weights", "key_decides")

    type: ClassVar[str] = "x-consistent-hash"

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._header: str | None = self.arguments.get("hash-header", self.arguments.get("x-hash-on"))
        self._property: str | None = self.arguments.get("hash-property")
        self.key_decides = self._header is None and self._property is None
        self._weights: dict[Any, int] = {}
        # ring: the points in order, and the destination of each.  jump: where the buckets of each destination end, and
        # the destinations.
        self._points: Any = None  # None: a change of bindings made them invalid
        self._owners: list[Any] = []

    def destinations(self, routing_key: str, properties: LazyProperties) -> Collection[Any]:
        if len(self._weights) < 2:
            return tuple(self._weights)
        if self._points is None:
            self._build()
        key = routing_key if self.key_decides else self._key_of(properties())
        number = int.from_bytes(_digest(key.encode("utf-8", "surrogateescape"), 8))
        if self.arguments.get("x-algorithm") == JUMP:
            return (self._owners[bisect_right(self._points, jump_hash(number, self._points[-1]))],)
        return (self._owners[bisect_right(self._points, number) % len(self._owners)],)

    def _key_of(self, properties: Properties) -> str:
        value: Any
        if self._header is not None:
            value = (properties.headers or {}).get(self._header)
        else:
            value = getattr(properties, self._property)  # type: ignore[arg-type]    # checked at declare
        if value is None:
            return ""
        return value if isinstance(value, str) else format_amqp_term(value)

    def check_binding(self, routing_key: str, arguments: dict) -> None:
        """Raise PreconditionFailed for a binding key that is not a weight (RabbitMQ's texts)."""
        weight_of(routing_key)

    def _added(self, binding: Binding) -> None:
        weight = weight_of(binding.routing_key)
        self._weights[binding.destination] = self._weights.get(binding.destination, 0) + weight
        self._points = None

    def _removed(self, binding: Binding) -> None:
        left = self._weights[binding.destination] - weight_of(binding.routing_key)
        if left:
            self._weights[binding.destination] = left
        else:
            del self._weights[binding.destination]
        self._points = None
        self._owners = []

    def _build(self) -> None:
        if self.arguments.get("x-algorithm") == JUMP:
            self._owners = list(self._weights)
            self._points = list(accumulate(self._weights.values()))
            return
        owners = list(self._weights)
        ring: list[tuple[int, int]] = []
        for index, count in enumerate(_point_counts(list(self._weights.values()))):
            ring += [(point, index) for point in _points_of(owners[index], count)]
        ring.sort()
        self._points = array("Q", [point for point, _ in ring])
        self._owners = [owners[index] for _, index in ring]


def weight_of(routing_key: str) -> int:
    """The weight that a binding key says.  Raises PreconditionFailed."""
    digits = routing_key[1:] if routing_key[:1] in ("+", "-") else routing_key
    if not (digits.isascii() and digits.isdigit()):
        raise PreconditionFailed(f"The binding key must be an integer: {format_amqp_term(routing_key)}")
    weight = int(routing_key)
    if weight <= 0:
        raise PreconditionFailed("The binding key must be greater than 0")
    return weight


def jump_hash(key: int, buckets: int) -> int:
    """The bucket of a 64-bit number, from 0 to ``buckets`` - 1 (Lamping and Veach, 2014)."""
    bucket, following = 0, 0
    while following < buckets:
        bucket = following
        key = (key * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        following = (bucket + 1) * (1 << 31) // ((key >> 33) + 1)
    return bucket


def _point_counts(weights: list[int]) -> list[int]:
    """How many points each destination gets: in proportion to its weight, and at least one.

    The lightest destination gets a power of two, the highest that keeps the sum within ``RING_POINTS_MAX``.
    """
    least, total = min(weights), sum(weights)
    per_least = POINTS_PER_UNIT_MAX
    while per_least > 1 and per_least * total > RING_POINTS_MAX * least:
        per_least //= 2
    # Very unequal weights would exceed the maximum even with one point for the lightest: one point is then more weight.
    unit = max(least, total // RING_POINTS_MAX)
    return [max(1, weight * per_least // unit) for weight in weights]


def _points_of(destination: Any, count: int) -> list[int]:
    """The first ``count`` points of a destination; they depend on its name and kind alone."""
    name = _identity(destination)
    octets = b"".join([_digest(b"%d\0%s" % (number, name), 64) for number in range(-(-count // _POINTS_PER_DIGEST))])
    return [int.from_bytes(octets[at : at + 8]) for at in range(0, 8 * count, 8)]


def _identity(destination: Any) -> bytes:
    kind = b"exchange:" if isinstance(destination, Exchange) else b"queue:"
    return kind + destination.name.encode("utf-8", "surrogateescape")


def _digest(octets: bytes, size: int) -> bytes:
    from hashlib import blake2b  # A start without a consistent hash exchange saves the time and memory of this import.

    return blake2b(octets, digest_size=size).digest()

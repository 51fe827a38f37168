"""The consistent hash exchange: messages of one key go to one destination, the keys shared out by weight.

The binding key is the weight, a whole number from 1 on; a destination bound more than once has
the sum.  What is hashed is the routing key, or what the exchange's arguments name:

    hash-header, x-hash-on   a header of the message
    hash-property            message_id, correlation_id or timestamp
    x-algorithm              ring (default) or jump

All messages without the header or property have one key.  *ring*: each destination
stands on a circle of 64-bit numbers as often as its weight says, and a key goes to the next point.
The points are made of the destination's name alone, so the answer depends on who is bound and on nothing that
was before: a restart changes nothing, a destination that leaves gives its own keys away and no others.
*jump*: the destinations in the order they were bound are a row of buckets, one for each unit of weight, and
Lamping and Veach's jump hash picks one: shares are exact, but one that leaves moves those behind it.
"""

from array import array
from bisect import bisect_right
from collections.abc import Collection
from itertools import accumulate
from typing import Any, ClassVar

from brokerd.errors import PreconditionFailed
from brokerd.exchanges.arguments import JUMP
from brokerd.exchanges.exchange import Binding, Exchange, Lazily
from brokerd.exchanges.terms import term
from brokerd.wire.properties import Properties

# The more points, the evener the shares (512: within some 5 %), and the longer a change of bindings takes.
RING_POINTS_MAX = 1 << 14
POINTS_PER_UNIT_MAX = 512
_POINTS_PER_DIGEST = 8  # 64 octets


class ConsistentHashExchange(Exchange):
    """RabbitMQ's x-consistent-hash, with LavinMQ's arguments besides."""

    __slots__ = ("_header", "_owners", "_points", "_property", "_weights", "key_decides")

    type: ClassVar[str] = "x-consistent-hash"

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._header: str | None = self.arguments.get("hash-header", self.arguments.get("x-hash-on"))
        self._property: str | None = self.arguments.get("hash-property")
        self.key_decides = self._header is None and self._property is None
        self._weights: dict[Any, int] = {}
        # ring: points in order, and whose each is.  jump: where each one's buckets end, and whose they are.
        self._points: Any = None  # None: to be made anew
        self._owners: list[Any] = []

    def destinations(self, routing_key: str, properties: Lazily) -> Collection[Any]:
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
        return value if isinstance(value, str) else term(value)

    def check_binding(self, routing_key: str, arguments: dict) -> None:
        """Raise PreconditionFailed for a key that is no weight (RabbitMQ's texts)."""
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
    """The weight a binding key stands for.  Raises PreconditionFailed."""
    digits = routing_key[1:] if routing_key[:1] in ("+", "-") else routing_key
    if not (digits.isascii() and digits.isdigit()):
        raise PreconditionFailed(f"The binding key must be an integer: {term(routing_key)}")
    weight = int(routing_key)
    if weight <= 0:
        raise PreconditionFailed("The binding key must be greater than 0")
    return weight


def jump_hash(key: int, buckets: int) -> int:
    """The bucket, below ``buckets``, of a 64-bit number (Lamping and Veach, 2014)."""
    bucket, following = 0, 0
    while following < buckets:
        bucket = following
        key = (key * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        following = (bucket + 1) * (1 << 31) // ((key >> 33) + 1)
    return bucket


def _point_counts(weights: list[int]) -> list[int]:
    """How many points each gets: as many a unit of weight as a power of two allows, and at least one."""
    least, total = min(weights), sum(weights)
    per_least = POINTS_PER_UNIT_MAX
    while per_least > 1 and per_least * total > RING_POINTS_MAX * least:
        per_least //= 2
    # However large the weights, there is an end to the points.
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
    from hashlib import blake2b  # Costs time and memory that a start without such an exchange need not spend.

    return blake2b(octets, digest_size=size).digest()

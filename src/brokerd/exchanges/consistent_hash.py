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

from bisect import bisect_right
from collections.abc import Collection
from itertools import accumulate
from typing import Any, ClassVar

from brokerd.errors import PreconditionFailed
from brokerd.exchanges.arguments import JUMP
from brokerd.exchanges.exchange import Binding, Exchange, LazyProperties
from brokerd.exchanges.ring import Ring, digest
from brokerd.exchanges.terms import format_amqp_term
from brokerd.wire.properties import Properties


class ConsistentHashExchange(Exchange):
    """RabbitMQ's x-consistent-hash, which also takes LavinMQ's arguments."""

    __slots__ = ("_header", "_property", "_ring", "key_decides")

    type: ClassVar[str] = "x-consistent-hash"

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._header: str | None = self.arguments.get("hash-header", self.arguments.get("x-hash-on"))
        self._property: str | None = self.arguments.get("hash-property")
        self.key_decides = self._header is None and self._property is None
        self._ring: Ring | Row = Row() if self.arguments.get("x-algorithm") == JUMP else Ring()

    def destinations(self, routing_key: str, properties: LazyProperties) -> Collection[Any]:
        weights = self._ring.weights
        if len(weights) < 2:
            return tuple(weights)
        key = routing_key if self.key_decides else self._key_of(properties())
        return (self._ring.owner(int.from_bytes(digest(key.encode("utf-8", "surrogateescape"), 8))),)

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
        weight = self._ring.weights.get(binding.destination, 0)
        self._ring.set_weight(binding.destination, weight + weight_of(binding.routing_key))

    def _removed(self, binding: Binding) -> None:
        weight = self._ring.weights[binding.destination]
        self._ring.set_weight(binding.destination, weight - weight_of(binding.routing_key))


class Row:
    """Destinations in a row of buckets, with what a Ring has."""

    __slots__ = ("_ends", "_owners", "weights")

    def __init__(self) -> None:
        self.weights: dict[Any, int] = {}
        self._ends: list[int] = []  # where the buckets of each destination end; []: a change made them invalid
        self._owners: list[Any] = []

    def set_weight(self, destination: Any, weight: int) -> None:
        """Give a destination this weight; with 0 it leaves."""
        if weight:
            self.weights[destination] = weight
        else:
            del self.weights[destination]
        self._ends, self._owners = [], []

    def owner(self, number: int) -> Any:
        """The destination of the bucket of a 64-bit number.  There must be one."""
        if not self._ends:
            self._ends, self._owners = list(accumulate(self.weights.values())), list(self.weights)
        return self._owners[bisect_right(self._ends, jump_hash(number, self._ends[-1]))]


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

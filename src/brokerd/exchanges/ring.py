"""A circle of 64-bit numbers on which weighted destinations have points: the destination of the next point gets a key.

Each destination has points in proportion to its weight.  The points follow from the destination's name and kind alone,
so the answer depends only on the present weights, and not on the order in which they came.

A new weight changes the circle in place: only points that come or go are hashed and moved.  This happens at the next
question, or when ``CHANGES_MAX`` destinations have changed, so that no bind and no publish has much to do at once.
The points of one that leaves are found by their owner, without hashing.
Knows nothing of bindings or messages.
"""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable
from functools import cache
from itertools import compress
from typing import Any, NamedTuple

from brokerd.exchanges.exchange import Exchange

# More points make the shares more even (512 points: within about 5 %), but a change of bindings then takes longer.
RING_POINTS_MAX = 1 << 14
POINTS_PER_UNIT_MAX = 512
CHANGES_MAX = 2048  # destinations: some 10 ms
_POINTS_PER_DIGEST = 8  # 64 octets


class Scale(NamedTuple):
    """How many points a weight gets: ``points`` for each ``unit`` of weight, and at least one."""

    points: int
    unit: int

    def count(self, weight: int) -> int:
        """The points of a destination; 0 for one without weight."""
        return max(1, weight * self.points // self.unit) if weight else 0

    @property
    def least_of_two(self) -> int:
        """The least weight that gets more than one point."""
        return -(-2 * self.unit // self.points)


class Ring:
    """Destinations on a circle.  ``weights`` has those that have a weight, the oldest first; its user must not change
    it."""

    __slots__ = ("_behind", "_changed", "_owners", "_points", "_scale", "weights")

    def __init__(self) -> None:
        self.weights: dict[Any, int] = {}
        self._points = array("Q")  # in order, each once
        self._owners: list[Any] = []  # the destination of each: the first by identity, where several have this point
        self._behind: dict[int, list[Any]] = {}  # the others of such a point, in the order of their identities
        self._scale = Scale(1, 1)  # of the points that are there
        self._changed: dict[Any, int] = {}  # destinations that the points do not follow yet: the weight that they had

    def __len__(self) -> int:
        """How many points there are."""
        self._renew()
        return len(self._points)

    def set_weight(self, destination: Any, weight: int) -> None:
        """Give a destination this weight; with 0 it leaves."""
        self._changed.setdefault(destination, self.weights.get(destination, 0))
        if weight:
            self.weights[destination] = weight
        else:
            del self.weights[destination]
        if len(self._changed) >= CHANGES_MAX:
            self._forget_gone()
        if len(self._changed) >= CHANGES_MAX:
            self._renew()

    def owner(self, number: int) -> Any:
        """The destination of the next point behind ``number``.  There must be one."""
        if self._changed:
            self._renew()
        return self._owners[bisect_right(self._points, number) % len(self._owners)]

    def _renew(self) -> None:
        """Let the points follow the weights."""
        self._forget_gone()
        changed, self._changed = self._changed, {}
        before, now = self._scale, _scale_of(self.weights.values())
        self._scale = now
        if before != now:
            # A lighter one had one point, and has one.
            least = min(before.least_of_two, now.least_of_two)
            for destination, weight in self.weights.items():
                if weight >= least:
                    changed.setdefault(destination, weight)
        if changed:
            self._follow(changed, before)

    def _forget_gone(self) -> None:
        """Take out all points of destinations that left.  Which these were need not be known, so nothing is hashed."""
        gone = {destination for destination in self._changed if destination not in self.weights}
        if not gone:
            return
        for destination in gone:
            del self._changed[destination]
        for point, behind in list(self._behind.items()):
            at = bisect_left(self._points, point)
            left = [each for each in (self._owners[at], *behind) if each not in gone]
            if len(left) > 1:
                self._behind[point] = left[1:]
            else:
                del self._behind[point]
            if left:
                self._owners[at] = left[0]
        stays = [owner not in gone for owner in self._owners]
        self._points = array("Q", compress(self._points, stays))
        self._owners = list(compress(self._owners, stays))

    def _follow(self, changed: dict[Any, int], before: Scale) -> None:
        """Let the points of destinations follow their weights: these had another weight, or points by another scale."""
        # A dict, as each point is looked at once, and sorting knows runs that are in order already.
        owner_of = dict(zip(self._points, self._owners, strict=True))
        for destination, weight in changed.items():
            had, has = before.count(weight), self._scale.count(self.weights[destination])
            if had > has:
                self._take_out(owner_of, _points_of(destination, has, had), destination)
            elif has > had:
                self._put_in(owner_of, _points_of(destination, had, has), destination)
        points = sorted(owner_of)
        self._points = array("Q", points)
        self._owners = [owner_of[point] for point in points]  # The very numbers, not those of the array: found at once.

    def _put_in(self, owner_of: dict[int, Any], points: Iterable[int], destination: Any) -> None:
        for point in points:
            if point not in owner_of:
                owner_of[point] = destination
                continue
            first, later = sorted((owner_of[point], destination), key=_identity)
            owner_of[point] = first
            insort(self._behind.setdefault(point, []), later, key=_identity)

    def _take_out(self, owner_of: dict[int, Any], points: Iterable[int], destination: Any) -> None:
        for point in points:
            behind = self._behind.get(point)
            if behind is None:
                del owner_of[point]
                continue
            if owner_of[point] is destination:
                owner_of[point] = behind.pop(0)
            else:
                behind.remove(destination)
            if not behind:
                del self._behind[point]


def _points_of(destination: Any, first: int, end: int) -> Iterable[int]:
    """Those of a destination, from its point ``first`` to before ``end``."""
    name = _identity(destination)
    digests = range(first // _POINTS_PER_DIGEST, -(-end // _POINTS_PER_DIGEST))
    points = array("Q", b"".join([digest(b"%d\0%s" % (each, name), 64) for each in digests]))
    if _LITTLE_ENDIAN:
        points.byteswap()
    skipped = digests.start * _POINTS_PER_DIGEST
    return points[first - skipped:end - skipped]


def digest(octets: bytes, size: int) -> bytes:
    """So many octets that stand for ``octets``, the same in every version."""
    return _hasher()(octets, digest_size=size).digest()


@cache
def _hasher() -> Any:
    """BLAKE2b.  A start without a consistent hash exchange saves the time and memory of this import, and thousands of
    digests save the time to ask whether it is imported."""
    from hashlib import blake2b

    return blake2b


def _scale_of(weights: Collection[int]) -> Scale:
    """The lightest destination gets a power of two, the highest that keeps the sum within ``RING_POINTS_MAX``."""
    if not weights:
        return Scale(1, 1)
    least, total = min(weights), sum(weights)
    per_least = POINTS_PER_UNIT_MAX
    while per_least > 1 and per_least * total > RING_POINTS_MAX * least:
        per_least //= 2
    # Very unequal weights would exceed the maximum even with one point for the lightest: one point is then more weight.
    return Scale(per_least, max(least, total // RING_POINTS_MAX))


_LITTLE_ENDIAN = array("H", b"\1\0")[0] == 1


def _identity(destination: Any) -> bytes:
    kind = b"exchange:" if isinstance(destination, Exchange) else b"queue:"
    return kind + destination.name.encode("utf-8", "surrogateescape")

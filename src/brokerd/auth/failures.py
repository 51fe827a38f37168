"""Failed logins: how many guesses of passwords an address may make.

Each pair of address and user has a bucket of BURST failures, which fills again by one a second; each address, over all
users, one ten times as large and quick.  A login with an empty bucket is refused without a check of its password: the
answer must not reveal a right guess.  Logins that succeed take nothing from the bucket, so clients with the right
password notice nothing, unless a program at their address fails all the time with the name of the same user.

Knows neither users nor passwords.  It remembers at most BUCKETS_MAX addresses and pairs, and forgets the one that has
not failed for the longest time.
"""

from collections import OrderedDict
from collections.abc import Callable

BURST = 10  # failures of one user from one address at once
PER_ADDRESS = 10  # times as many for all users together
BUCKETS_MAX = 20_000


class FailedLogins:
    """Logins that failed lately.  ``monotonic()``: seconds."""

    __slots__ = ("_buckets", "_monotonic")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # By address and user, None for all users: failures, when the last one was, whether it was told that there are
        # too many.
        self._buckets: OrderedDict[tuple[str, str | None], tuple[float, float, bool]] = OrderedDict()

    def are_too_many(self, address: str, user: str, per_second: float) -> bool:
        """Whether a login must be refused.  ``per_second``: by how many failures a second a bucket fills; 0: no
        limit."""
        if not per_second or (address, None) not in self._buckets:
            return False
        return (
            self._failures(address, user, per_second) > BURST - 1
            or self._failures(address, None, PER_ADDRESS * per_second) > PER_ADDRESS * BURST - 1
        )

    def note(self, address: str, user: str, per_second: float) -> list[str | None]:
        """A login has failed.  Returns for whom logins from this address are refused from now on, without a look:
        ``user``, or None for all users.  Each is returned once, until all its failures are forgotten."""
        locked: list[str | None] = []
        if not per_second:
            return locked
        rates: tuple[tuple[str | None, int], ...] = (user, 1), (None, PER_ADDRESS)
        for name, times in rates:
            before = self._failures(address, name, times * per_second)
            told = before > 0 and self._buckets[address, name][2]
            if not told and before + 1 > times * BURST - 1:
                locked.append(name)
                told = True
            self._buckets[address, name] = before + 1, self._monotonic(), told
            self._buckets.move_to_end((address, name))
        while len(self._buckets) > BUCKETS_MAX:
            self._buckets.popitem(last=False)
        return locked

    def _failures(self, address: str, user: str | None, per_second: float) -> float:
        failures, at, _ = self._buckets.get((address, user), (0.0, 0.0, False))
        return max(0.0, failures - (self._monotonic() - at) * per_second)

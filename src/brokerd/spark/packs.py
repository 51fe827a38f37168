"""Work shared out among tasks: neighbours together, each task some megabytes.  Knows nothing of what the work is."""

from collections.abc import Callable, Sequence
from typing import TypeVar

SPLIT_OCTETS = 64 << 20         # Some 40 ms a task costs before it reads anything.
TASKS_MAX = 10_000
T = TypeVar("T")


def packs(work: Sequence[T], size: Callable[[T], int], octets: int) -> list[list[T]]:
    """Share out ``work``, in order, in packs of about ``octets``, and no more than TASKS_MAX of them."""
    aim = max(octets, sum(map(size, work)) // TASKS_MAX)
    packed: list[list[T]] = []
    filled = aim
    for one in work:
        if filled >= aim:
            packed.append([])
            filled = 0
        packed[-1].append(one)
        filled += max(size(one), 1)
    return packed

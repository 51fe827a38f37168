"""Shares work out among tasks: neighbours together, some megabytes per task.  Knows nothing of the kind of work."""

from collections.abc import Callable, Sequence
from typing import TypeVar

SPLIT_OCTETS = 64 << 20         # A task costs about 40 ms before it reads anything.
TASKS_MAX = 10_000
T = TypeVar("T")


def make_packs(work: Sequence[T], size: Callable[[T], int], octets: int) -> list[list[T]]:
    """Cut ``work``, in order, into packs of about ``octets`` each, but at most TASKS_MAX packs."""
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

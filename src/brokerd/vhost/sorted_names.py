"""The names of a vhost's queues in order, kept from the first question on: pages of lists ask again and again.

Ten thousand names take 5 ms to be put in order.  So the order is kept, and a change is only noted, until the next
question.  Of a vhost whose queues come and go while nobody asks it is given up: the notes would grow without end.
"""

from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping
from heapq import merge
from typing import Any

CHANGES_MAX = 10_000
SORTED_AT_ONCE = 512  # some 0.2 ms


class SortedNames:
    """The names of ``things`` in order.  The code that adds or removes one calls ``changed``."""

    __slots__ = ("_changes", "_names", "_things")

    def __init__(self, things: Mapping[str, Any]) -> None:
        self._things = things
        self._names: list[str] | None = None  # in order, but for what changed since; None: not put in order yet
        self._changes: set[str] | None = None  # names that came or went since; None: nobody has asked

    def changed(self, name: str) -> None:
        """This one has come or gone."""
        if self._changes is not None:
            self._changes.add(name)
            if len(self._changes) > CHANGES_MAX:
                self._names = self._changes = None

    def in_order(self, is_over: Callable[[], bool]) -> Generator[None, None, list[str]]:
        """Yields whenever the piece of work ``is_over``, and returns the names."""
        names = self._names
        if names is None:
            if self._changes is None:
                self._changes = set()
            names = yield from _sorted(list(self._things), is_over)
            if self._names is not None:
                names = self._names  # Another question was quicker.
            elif self._changes is not None:
                self._names = names
        while self._changes:
            name = self._changes.pop()
            at = bisect_left(names, name)
            is_there = at < len(names) and names[at] == name
            if name in self._things and not is_there:
                names.insert(at, name)
            elif is_there and name not in self._things:
                del names[at]
            if is_over():
                yield
                if self._names is not names:
                    break
        return names.copy()


def _sorted(names: list[str], is_over: Callable[[], bool]) -> Generator[None, None, list[str]]:
    runs = []
    for begin in range(0, len(names), SORTED_AT_ONCE):
        runs.append(sorted(names[begin:begin + SORTED_AT_ONCE]))
        if is_over():
            yield
    found = list[str]()
    for name in merge(*runs):
        found.append(name)
        if is_over():
            yield
    return found

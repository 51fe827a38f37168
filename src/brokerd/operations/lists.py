"""Lists of many objects, in pieces of a millisecond: the matches are found, put in order, cut to a page, and encoded.

    find      (key, name, thing) of each thing that the user may see; the filter looks at the name
    describe  (thing) -> row, or None if the thing has gone meanwhile

The answer is ``{"items": [row, ...], "total_count": ..., "filtered_count": ..., "page": ..., "page_count": ...}``.
``total_count`` counts the things that the user may see, ``filtered_count`` the matches.  A list is not a snapshot of
one moment, but has no row twice.
"""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from brokerd.operations import OperationError, rights
from brokerd.operations.jobs import IN_THREAD, ON_LOOP, Encoded, Pace, Steps
from brokerd.operations.rows import Field, TypedDict, request
from brokerd.patterns import PatternError, compiled

if TYPE_CHECKING:
    from brokerd.auth.users import User
    from brokerd.exchanges import Exchange
    from brokerd.node import Node
    from brokerd.operations.rows import Who
    from brokerd.vhost.sorted_names import SortedNames
    from brokerd.vhost.vhost import VHost

SORTED_AT_ONCE = 512  # some 0.2 ms
MANY_ROWS = 1000  # of which a library makes JSON
PAGE_SIZE_MAX = 100_000
Found = Iterable[tuple[Any, str, Any]]


@request
class Paging:
    """The fields of every request for a list."""

    name: Annotated[str, Field("Only those with this text in their name.", high=4096)] = ""
    use_regex: Annotated[bool, Field("That text is a regular expression.")] = False
    page: Annotated[int, Field("Only this page, counted from 1; 0: all.", low=0)] = 0
    page_size: Annotated[int, Field("Rows of a page.", low=1, high=PAGE_SIZE_MAX)] = 100


class Page(TypedDict):
    """The fields of every list beside its ``items``."""

    total_count: int
    filtered_count: int
    page: int
    page_count: int


class InOrder(NamedTuple):
    """Things whose order is known, in parts, one behind the other: the names of each, and whose they are.

    ``describe`` gets (whose, name) of one.
    """

    parts: "list[tuple[SortedNames, Any]]"


class Listing:
    """The job that makes a list."""

    def __init__(self, find: "Found | InOrder", describe: Callable[[Any], Any], paging: Any) -> None:
        """``paging`` has the fields of ``Paging``.  Raises OperationError (400)."""
        self._find, self._describe = find, describe
        self._page, self._size, self._text = paging.page, paging.page_size, paging.name
        self._matches = _matcher(paging)

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        pace = Pace()
        find = self._find
        picked = self._pick(find, pace) if isinstance(find, InOrder) else self._sort(find, pace)
        total, filtered, chosen = yield from picked
        pages = -(-filtered // self._size) if self._page else 1
        encode = json_of
        if len(chosen) >= MANY_ROWS:
            yield IN_THREAD  # The first import takes 25 ms.
            from pydantic_core import to_json

            encode = partial(fast_json_of, to_json)
            yield ON_LOOP
        parts = [b'{"items": [']
        chosen.reverse()
        for thing in _given_up(chosen):
            row = self._describe(thing)
            if row is not None:
                parts += (encode(row), b", ")
            if pace.is_over():
                yield ON_LOOP
        if len(parts) > 1:
            parts.pop()
        counts = {"total_count": total, "filtered_count": filtered, "page": self._page or 1, "page_count": pages}
        parts.append(b"], " + json_of(counts)[1:])
        return Encoded(parts)

    def _sort(self, find: Found, pace: Pace) -> Steps:
        """How many things and matches there are, and those of the page, in order."""
        total, found = 0, list[tuple[Any, Any]]()
        for key, name, thing in find:
            total += 1
            if self._matches(name):
                found.append((key, thing))
            if pace.is_over():
                yield ON_LOOP
        filtered = len(found)
        runs = []
        while found:
            run = found[-SORTED_AT_ONCE:]
            del found[-SORTED_AT_ONCE:]
            run.reverse()  # What has the same key goes out in the order in which it was found.
            run.sort(key=itemgetter(0), reverse=True)
            runs.append(_given_up(run))
            del run
            if pace.is_over():
                yield ON_LOOP
        runs.reverse()
        begin, end = self._ends()
        chosen = list[Any]()
        for number, (_, thing) in enumerate(merge(*runs, key=itemgetter(0))):
            if number >= end:
                break
            if number >= begin:
                chosen.append(thing)
            if pace.is_over():
                yield ON_LOOP
        for run_left in runs:
            for _ in run_left:
                if pace.is_over():
                    yield ON_LOOP
        return total, filtered, chosen

    def _pick(self, find: "InOrder", pace: Pace) -> Steps:
        """The same of things whose order is known."""
        total = filtered = 0
        (begin, end), chosen = self._ends(), list[Any]()
        for names, whose in find.parts:
            found = yield from _on_loop(names.in_order(pace.is_over))
            total += len(found)
            if self._text:
                matches, found = found, []
                for name in matches:
                    if self._matches(name):
                        found.append(name)
                    if pace.is_over():
                        yield ON_LOOP
            for name in found[max(begin - filtered, 0):max(end - filtered, 0)]:
                chosen.append((whose, name))
                if pace.is_over():
                    yield ON_LOOP
            filtered += len(found)
        return total, filtered, chosen

    def _ends(self) -> tuple[int, int]:
        """The first match of the page, and the first behind it."""
        return ((self._page - 1) * self._size, self._page * self._size) if self._page else (0, sys.maxsize)

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


def _on_loop(work: Generator[None, None, list[str]]) -> Steps:
    """The steps of this work, and its answer."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value
        yield ON_LOOP


def json_of(value: Any) -> bytes:
    """JSON, with names that are not UTF-8 as surrogates."""
    import json  # brokerctl, which lists the rows, does without.

    return json.dumps(value).encode()


def fast_json_of(to_json: Callable[[Any], bytes], value: Any) -> bytes:
    """The same in a quarter of the time, by a library that takes 7 MiB and no surrogates."""
    try:
        return to_json(value)
    except (ValueError, TypeError):
        return json_of(value)


def _given_up(things: list[Any]) -> Iterator[Any]:
    """The things, from the last one on.  Each goes when it was read: to free a hundred thousand at once takes 50 ms."""
    while things:
        yield things.pop()


def _matcher(paging: Any) -> Callable[[str], bool]:
    text = paging.name
    if not text:
        return lambda name: True
    if not paging.use_regex:
        return lambda name: text in name
    try:
        return compiled(text)
    except PatternError as error:
        raise OperationError(f"name is no regular expression: {error}: {text!r:.80}", 400) from None


def vhosts_to_list(node: "Node", who: "Who", vhost: str) -> "list[VHost]":
    """The vhosts that a list is of: the named one, or for "" all that the user may see.  Raises OperationError (404).

    ``rights.check`` has asked whether the user may see the named one.
    """
    if vhost:
        return [find_vhost(node, vhost)]
    sees = rights.visible_vhosts(node, who)
    return [each for name, each in node.vhosts.items() if sees(name)]


def find_vhost(node: "Node", name: str) -> "VHost":
    """The vhost of that name.  Raises OperationError (404)."""
    vhost = node.vhosts.get(name)
    if vhost is None:
        raise OperationError(f"no vhost '{name}'", 404)
    return vhost


def find_exchange(vhost: "VHost", name: str) -> "Exchange":
    """The exchange of that name; amq.default is the default exchange.  Raises OperationError (404)."""
    exchange = vhost.exchanges.get("" if name == "amq.default" else name)
    if exchange is None:
        raise OperationError(f"no exchange '{name}' in vhost '{vhost.name}'", 404)
    return exchange


def find_user(node: "Node", name: str) -> "User":
    """The user of that name.  Raises OperationError (404)."""
    if name not in node.users:
        raise OperationError(f"no user '{name}'", 404)
    return node.users.get(name)

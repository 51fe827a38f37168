"""Finds the route of a path: a tree of path segments, made once.

A segment of a pattern is a word, or ``{name}`` for any text.  A path is split before it is decoded, so that %2F can
stand within a name, as in ``/api/queues/%2F/orders``.  A word wins over a name.
"""

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

Methods = dict[str, Any]


class _Place:
    __slots__ = ("any", "methods", "name", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Place] = {}
        self.any: _Place | None = None
        self.methods: Methods = {}  # what stands at this path, by method
        self.name: tuple[str, ...] = ()


class Routes:
    """All routes."""

    __slots__ = ("_top",)

    def __init__(self, rows: Iterable[tuple[str, str, Any]]) -> None:
        """Each row: method, pattern, answer."""
        self._top = _Place()
        for method, pattern, target in rows:
            place, names = self._top, []
            for word in pattern.strip("/").split("/"):
                if word.startswith("{"):
                    names.append(word[1:-1])
                    place.any = place.any or _Place()
                    place = place.any
                else:
                    place = place.words.setdefault(word, _Place())
            assert method not in place.methods, f"{method} {pattern} is there twice"
            place.methods[method] = (tuple(names), target)

    def find(self, raw_path: str) -> tuple[Methods, list[str]] | None:
        """The routes at that path, by method, and the texts for the names in it.  None: there is none."""
        words = [unquote(word, errors="surrogateescape") for word in raw_path.strip("/").split("/")]
        return _find(self._top, words, 0, [])


def _find(place: _Place, words: list[str], at: int, values: list[str]) -> tuple[Methods, list[str]] | None:
    if at == len(words):
        return (place.methods, values) if place.methods else None
    word = words[at]
    if word in place.words:
        found = _find(place.words[word], words, at + 1, values)
        if found is not None:
            return found
    if place.any is not None and word:
        return _find(place.any, words, at + 1, [*values, word])
    return None

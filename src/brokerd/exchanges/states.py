"""All patterns of a topic exchange in a few large numbers, for keys that reach very many places of its trie at once.

Each pattern has a row of bits, one for each of its words and one behind the last.  A bit that is set says: the words of
the key so far may be the words of the pattern up to here.  The rows stand side by side in one number:

    a.*.#   b.#     bits 0 1 2 3   4 5 6     bit 1 is set behind the key 'a', bits 2 and 3 behind 'a.x'; 3 is an end

A word of a key moves all bits at once, by some operations on the whole number, so that a key costs its words alone with
some hundred thousand places, too.  Several '#' in a row are one, so that one operation passes all '#' for no word.
The numbers do not change: a binding that comes or goes makes them anew.
"""

import re
from collections.abc import Collection, Iterable
from typing import Any

_DENSE = 64  # A word has a number of its own if one of so many bits is before it.  The places of others are in a list.
_NOT_ZERO = re.compile(rb"[^\0]", re.DOTALL)


class States:
    """What can be reached among patterns: pairs of their words, and of what is bound there."""

    __slots__ = ("_any", "_dense", "_ends", "_ends_bits", "_octets", "_one", "_sparse", "_start")

    def __init__(self, patterns: Iterable[tuple[Collection[str], Any]]) -> None:
        places: dict[str, list[int]] = {"*": [], "#": []}  # of each word: the bits before it
        starts: list[int] = []
        self._ends: dict[int, Any] = {}  # by the bit behind the last word
        at = 0
        for words, bound in patterns:
            starts.append(at)
            before = ""
            for word in words:
                if word != "#" or before != "#":
                    places.setdefault(word, []).append(at)
                    at += 1
                before = word
            self._ends[at] = bound
            at += 1
        self._octets = at // 8 + 1
        self._one, self._any = self._number(places.pop("*")), self._number(places.pop("#"))
        self._start, self._ends_bits = self._pass_any(self._number(starts)), self._number(self._ends)
        self._dense: dict[str, int] = {}
        self._sparse: dict[str, list[int]] = {}
        for word, bits in places.items():
            if len(bits) * _DENSE > at:
                self._dense[word] = self._number(bits)
            else:
                self._sparse[word] = bits

    def found(self, words: Iterable[str]) -> list[Any]:
        """What is bound where a key with these words leads."""
        state = self._start
        for word in words:
            state = self._pass_any((state & self._one | self._before(word, state)) << 1 | state & self._any)
        reached = (state & self._ends_bits).to_bytes(self._octets, "little")
        return [
            self._ends[at]
            for hit in _NOT_ZERO.finditer(reached)
            for at in range(8 * hit.start(), 8 * hit.start() + 8)
            if reached[hit.start()] >> at % 8 & 1
        ]

    def _before(self, word: str, state: int) -> int:
        """The bits of ``state`` that stand before this word."""
        if word in self._dense:
            return state & self._dense[word]
        bits = self._sparse.get(word)
        if bits is None:
            return 0
        octets = state.to_bytes(self._octets, "little")
        return self._number(at for at in bits if octets[at // 8] >> at % 8 & 1)

    def _pass_any(self, state: int) -> int:
        """``state``, and the bits behind each '#' that stands for no word."""
        return state | (state & self._any) << 1

    def _number(self, bits: Iterable[int]) -> int:
        """The number in which these bits are set."""
        octets = bytearray(self._octets)
        for at in bits:
            octets[at // 8] |= 1 << at % 8
        return int.from_bytes(octets, "little")

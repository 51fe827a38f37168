"""All patterns of a topic exchange in a few large numbers, for keys that reach very many places of its trie at once.

Each pattern has a row of bits, one for each of its words and one behind the last.  A bit that is set says: the words of
the key so far may be the words of the pattern up to here.  The rows stand side by side in one number:

    a.*.#   b.#     bits 0 1 2 3   4 5 6     bit 1 is set behind the key 'a', bits 2 and 3 behind 'a.x'; 3 is an end

A word of a key moves all bits at once, by some operations on the whole number, so that a key costs its words alone with
some hundred thousand places, too.  Several '#' in a row are one, so that one operation passes all '#' for no word.
A pattern that comes gets the next row.  One that goes keeps its row: the exchange makes all rows anew when many of them
are of no use.  Rows are kept as octets, of which numbers are made for the first key since a pattern came.
"""

import re
from collections.abc import Collection, Iterable
from typing import Any

_DENSE = 64  # A word has a number of its own if one of so many bits is before it.  The places of others are in a list.
_DENSE_FROM = 16  # ... and so many bits at least.
_NOT_ZERO = re.compile(rb"[^\0]", re.DOTALL)


class States:
    """The places that keys can reach among patterns: pairs of their words, and of the destinations bound there."""

    __slots__ = (
        "_any", "_any_bits", "_at", "_dense", "_dense_numbers", "_ends", "_ends_bits", "_ends_number", "_fresh", "_one",
        "_one_bits", "_sparse", "_start", "_start_bits",
    )  # fmt: skip

    def __init__(self, patterns: Iterable[tuple[Collection[str], Any]]) -> None:
        self._at = 0  # the first free bit
        self._ends: dict[int, Any] = {}  # by the bit behind the last word
        self._start_bits, self._ends_bits = bytearray(), bytearray()
        self._one_bits, self._any_bits = bytearray(), bytearray()  # before each '*'; before each '#'
        self._dense: dict[str, bytearray] = {}  # the bits before each word
        self._dense_numbers: dict[str, int] = {}  # of these, what numbers were made of since they changed
        self._sparse: dict[str, list[int]] = {}
        self._start = self._one = self._any = self._ends_number = 0
        self._fresh = True  # The numbers are of all patterns.
        for words, bound in patterns:
            self.add(words, bound)

    def add(self, words: Collection[str], bound: Any) -> None:
        """One more pattern."""
        at, before = self._at, ""
        _set(self._start_bits, at)
        for word in words:
            if word == "*":
                _set(self._one_bits, at)
            elif word != "#":
                self._add_word(word, at)
            elif before != "#":
                _set(self._any_bits, at)
            else:
                continue
            at += 1
            before = word
        _set(self._ends_bits, at)
        self._ends[at] = bound
        self._at = at + 1
        self._fresh = False

    def _add_word(self, word: str, at: int) -> None:
        dense = self._dense.get(word)
        if dense is not None:
            _set(dense, at)
            self._dense_numbers.pop(word, None)
            return
        bits = self._sparse.setdefault(word, [])
        bits.append(at)
        count = len(bits)
        if count >= _DENSE_FROM and count & count - 1 == 0 and count * _DENSE > at:
            dense = self._dense[word] = bytearray()
            for each in self._sparse.pop(word):
                _set(dense, each)

    def _make_numbers(self) -> None:
        self._one = int.from_bytes(self._one_bits, "little")
        self._any = int.from_bytes(self._any_bits, "little")
        self._start = self._pass_any(int.from_bytes(self._start_bits, "little"))
        self._ends_number = int.from_bytes(self._ends_bits, "little")
        self._fresh = True

    def found(self, words: Iterable[str]) -> list[Any]:
        """The destinations that a key with these words reaches."""
        if not self._fresh:
            self._make_numbers()
        state = self._start
        for word in words:
            state = self._pass_any((state & self._one | self._before(word, state)) << 1 | state & self._any)
        reached = (state & self._ends_number).to_bytes(len(self._ends_bits), "little")
        return [
            self._ends[at]
            for hit in _NOT_ZERO.finditer(reached)
            for at in range(8 * hit.start(), 8 * hit.start() + 8)
            if reached[hit.start()] >> at % 8 & 1
        ]

    def _before(self, word: str, state: int) -> int:
        """The bits of ``state`` that stand before this word."""
        dense = self._dense.get(word)
        if dense is not None:
            number = self._dense_numbers.get(word)
            if number is None:
                number = self._dense_numbers[word] = int.from_bytes(dense, "little")
            return state & number
        bits = self._sparse.get(word)
        if bits is None:
            return 0
        octets = state.to_bytes(self._at // 8 + 1, "little")
        before = bytearray(bits[-1] // 8 + 1)
        for at in bits:
            if octets[at // 8] >> at % 8 & 1:
                before[at // 8] |= 1 << at % 8
        return int.from_bytes(before, "little")

    def _pass_any(self, state: int) -> int:
        """``state``, and the bits behind each '#' that stands for no word."""
        return state | (state & self._any) << 1


def _set(bits: bytearray, at: int) -> None:
    """Set a bit."""
    octet = at >> 3
    if octet >= len(bits):
        bits.extend(bytes(octet + 1 - len(bits)))
    bits[octet] |= 1 << (at & 7)

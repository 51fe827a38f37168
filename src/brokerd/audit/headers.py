"""Checks the headers of a segment, its acks and its journal beyond their checksums: ``of_segment`` and so on.

The code that reads a file checks magic, number, version and CRC.  This module finds what may be wrong besides: values
that the contents contradict, words, and reserved octets, which no CRC covers.

The words of a file that a broker may be writing are not judged: a reader may come between two stores.
"""

from typing import Any, NamedTuple

import numpy as np

from brokerd.audit.files import Triple
from brokerd.store import format as layout
from brokerd.store.reading import Records

FLAGS = 0b11111                 # the bits of a record's flags that mean something
_EMPTY = bytes(8)               # what may stand in place of some words
_COUNTS = (("entries", 32), ("settled", 40))            # in the header of acks
_SEGMENT_WORDS = (("records", 48), ("sealed", 56))      # Segment looks at ``end``, which decides what can be read.


class Odd(NamedTuple):
    """A fault at an offset of a file, in words."""

    offset: int
    detail: str


def is_judged(triple: Triple) -> bool:
    """Whether no broker writes to these files now."""
    return triple.settled or triple.cut is None


def of_segment(triple: Triple, head: bytes, header: Any, records: Records) -> list[Odd]:
    """Faults of the header of a segment that has these sound records."""
    found, headers = [], records.headers
    if int(header["base_seq"]) == 0:
        found.append(Odd(16, "says that its records begin with number 0, which no message has"))
    created = int(header["created"])
    if headers.size and created > int(headers["ts"].min()):
        found.append(Odd(24, "says that it was made after its first record"))
    if is_judged(triple) and not triple.settled:        # Of settled ones ``words`` judges these.
        found += _broken_words(head, _SEGMENT_WORDS)
    return found


def of_compacted(header: Any, records: Records, acks_head: bytes, entries: np.ndarray) -> list[Odd]:
    """Signs that no compaction made this segment with a generation above 0 and whole acks.

    A broker compacts only a segment that is full and whose records the cursor has all passed.  In new acks, which a
    start makes for damaged ones, the word ``doubted`` is above 0.
    """
    generation = int(header["generation"])
    if not generation:
        return []
    if int(header["sealed"]) == layout.OPEN:
        return [Odd(32, f"is of generation {generation}, and open: no compaction leaves it so")]
    below = max(_word(acks_head, 24) or 0, _word(acks_head, 48) or 0)
    waiting = (records.positions >= below) & ~np.isin(records.positions, entries["position"])
    if waiting.any():
        return [Odd(32, f"is of generation {generation}, and the cursor has yet to reach "
                        f"{np.count_nonzero(waiting)} of its records: no compaction leaves it so")]
    return []


def of_records(records: Records, sound: np.ndarray) -> np.ndarray:
    """The indices of sound records with a kind or with flags that no broker writes."""
    headers = records.headers
    return np.flatnonzero(sound & ((headers["kind"] != 0) | (headers["flags"] & ~np.uint16(FLAGS) != 0)))


def of_acks(triple: Triple, head: bytes) -> list[Odd]:
    """Faults of the header of an acks file, apart from its cursors."""
    found = []
    if any(head[56:layout.HEADER_OCTETS]):
        found.append(Odd(56, "has octets that are not zero where its header has zeros"))
    if is_judged(triple):
        doubted = (("doubted", 48),) if head[48:56] != _EMPTY else ()
        found += _broken_words(head, (("delivered", 24), *(() if triple.settled else _COUNTS), *doubted))
    return found


def of_cursors(triple: Triple, head: bytes, positions: np.ndarray, end: int) -> list[Odd]:
    """Which of the two positions in the header of an acks file is none: both stand where a record begins or the last
    one ends.  Needs a segment without damage.

    A loss of power may take records that the cursor had passed; a start then says how far it is in doubt.
    """
    if not is_judged(triple):
        return []
    doubted, odd = _word(head, 48), []
    for name, at in (("delivered", 24), ("doubted", 48)):
        value = _word(head, at)
        if value is None or value in (0, layout.HEADER_OCTETS, end):
            continue
        if name == "delivered" and value > end and doubted:
            continue
        place = int(np.searchsorted(positions, value))
        if place == positions.size or int(positions[place]) != value:
            odd.append(Odd(at, f"says {value} in its word {name!r}, where no record begins or ends"))
    return odd


def of_journal(triple: Triple, head: bytes, header: Any, times: np.ndarray) -> list[Odd]:
    """Faults of the header of a journal; ``times``: those of its sound events, marks included."""
    found = []
    if any(head[28:32]):
        found.append(Odd(28, "has octets that are not zero where its header has zeros"))
    begun = int(header["begun"])
    if times.size and int(times.min()) <= begun:
        found.append(Odd(16, "says that it began after its first event"))
    if is_judged(triple):
        if head[40:48] != _EMPTY:       # Eight zeros: it is not known how many were lost, which is a gap and no damage.
            found += _broken_words(head, (("lost", 40),))
        synced, complement = int(header["synced"]), int(header["synced_complement"])
        if (synced or complement) and synced != ~complement:
            found.append(Odd(48, "has a damaged word 'synced'"))
        elif synced and synced < begun:
            found.append(Odd(48, "says that it was synced before it began"))
    return found


def _word(head: bytes, at: int) -> int | None:
    value, complement = (int.from_bytes(head[place:place + 4], "little") for place in (at, at + 4))
    return value if layout.word_ok(value, complement) else None


def _broken_words(head: bytes, words: tuple[tuple[str, int], ...]) -> list[Odd]:
    return [Odd(at, f"has a damaged word {name!r}") for name, at in words if _word(head, at) is None]

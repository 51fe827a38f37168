"""Finds the files of a queue, and the few facts about a file that its header or first record tells.

Layouts are ``store.format``'s.  Knows nothing of a queue except its folder.
"""

import os
from typing import NamedTuple

from brokerd.store import format as layout

_SEQ = slice(layout.HEADER_OCTETS + 16, layout.HEADER_OCTETS + 24)  # of the first record
_BASE_SEQ = slice(16, 24)


class Level(NamedTuple):
    """The folder of a priority level.  ``path`` is relative to the queue's folder; "": level 0, that folder itself."""

    number: int
    path: str


def levels(directory: str, max_priority: int) -> list[Level]:
    """The levels that have a folder, lowest first.  Raises OSError, but not where the queue has no folder yet."""
    found = [Level(0, "")]
    if max_priority:
        try:
            names = os.listdir(directory)
        except FileNotFoundError:
            return found
        numbers = [layout.priority_level(name) for name in names]
        found += [Level(n, layout.priority_folder(n)) for n in sorted(filter(None, numbers))]
    return found


def has_kept_folder(directory: str, max_priority: int) -> bool:
    """Whether there is a folder of settled segments.  Raises OSError."""
    found = levels(directory, max_priority)
    return any(os.path.exists(os.path.join(directory, level.path, layout.KEPT_FOLDER)) for level in found)


def kept_segments(folder: str) -> dict[int, set[str]]:
    """The settled segments in ``folder``, oldest first: number, and which files exist (of the kinds in ``NAMES``).

    Raises OSError, but not if the folder has no settled segments."""
    try:
        names = os.listdir(os.path.join(folder, layout.KEPT_FOLDER))
    except FileNotFoundError:
        return {}
    found: dict[int, set[str]] = {}
    for name in names:
        kind, _, digits = name.partition(".")
        if kind in NAMES and len(digits) >= 10 and digits.isascii() and digits.isdigit():
            found.setdefault(int(digits), set()).add(kind)
    return dict(sorted(found.items()))


NAMES = {"msgs": layout.segment_name, "acks": layout.acks_name, "journal": layout.journal_name,
         "chain": layout.chain_name}  # fmt: skip


def first_seq(path: str) -> int:
    """The sequence number of the first record of a segment; 0 if it has no record.  Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        octets = file.read(layout.HEADER_OCTETS * 2)
    if len(octets) < layout.HEADER_OCTETS * 2:
        return 0
    if octets[64:68] != layout.RECORD_MAGIC.to_bytes(4, "little"):
        return 0
    return int.from_bytes(octets[_SEQ], "little")


def first_kept_seq(directory: str, max_priority: int, live: dict[int, list[int]]) -> int:
    """The lowest sequence number with a record on disk; 0 if no record is.

    ``live`` are the numbers of the segments in use, by level.  Raises OSError.
    """
    lowest = 0
    for level in levels(directory, max_priority):
        folder = os.path.join(directory, level.path)
        kept = [os.path.join(folder, layout.KEPT_FOLDER, layout.segment_name(number))
                for number, there in kept_segments(folder).items() if "msgs" in there]  # fmt: skip
        used = [os.path.join(folder, layout.segment_name(number)) for number in live.get(level.number, ())]
        for path in [*kept, *used]:
            try:
                seq = first_seq(path)
            except FileNotFoundError:
                continue  # Another thread has just removed it.
            if seq:
                lowest = min(lowest or seq, seq)
                break
    return lowest

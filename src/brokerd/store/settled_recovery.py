"""Facts for a start about segments that are settled or gone: numbers not to be given again, journals to be removed.

A segment that is settled lies in the folder ``kept`` of a queue with an order journal, or was removed.  ``order.jsonl``
names it then.  Loss of power may also leave a journal or an acks file alone, without its segment.  A new segment with
the number of such a file would go on with that file, or take its place in ``kept``.  And a new message with the number
of a settled one would be taken for that one.  Writes nothing; ``recovery`` does.
"""

import mmap
import os
from collections.abc import Callable, Iterable
from typing import Any

from brokerd.store import format as layout
from brokerd.store import side_file
from brokerd.store.disk import Disk

Scan = Callable[["mmap.mmap", int, int], tuple[int, int, int, int, int, int]]  # see recovery.py
PREFIXES = ("journal", "chain", "msgs", "acks")
NUMBER_MOST = 1 << 62  # No broker gave a higher one: names and lines may have been edited.


def highest_number(names: Iterable[str]) -> int:
    """The highest number of a segment in the names of files of any kind; 0: no file has a number."""
    highest = 0
    for name in names:
        prefix, _, rest = name.partition(".")
        digits = rest.partition(".")[0]  # There may be .damaged behind them.
        if prefix in PREFIXES and len(digits) >= 10 and digits.isascii() and digits.isdigit():
            highest = _higher(highest, int(digits) if len(digits) <= 20 else None)
    return highest


def _higher(one: int, other: Any) -> int:
    """The higher of two numbers; ``one`` if the other is no number that a broker gave."""
    return other if isinstance(other, int) and one < other <= NUMBER_MOST else one


def highest_seq(directory: str, kept_names: Iterable[str], disk: Disk, scan: Scan) -> int:
    """The highest sequence number of a settled segment that was removed, or is in ``kept``; 0: no segment was settled.

    Loss of power may take the last segment's name, or all of its records, and leave settled ones with higher numbers
    than what is left.  Raises OSError.
    """
    highest = 0
    for line in side_file.read(f"{directory}/{layout.SIDE_FILE}", disk):
        if line.get("what") == "removed":
            highest = _higher(highest, line.get("last_seq"))
    number = highest_number(name for name in kept_names if layout.segment_number(name) and name.startswith("msgs."))
    if number:
        highest = _higher(highest, _last_seq(f"{directory}/{layout.KEPT_FOLDER}", number, disk, scan))
    return highest


def _last_seq(folder: str, number: int, disk: Disk, scan: Scan) -> int:
    """The sequence number of a segment's last record; 0: none can be read."""
    fd = disk.open(f"{folder}/{layout.segment_name(number)}")
    try:
        octets, size = disk.pread(fd, layout.HEADER_OCTETS, 0), disk.size(fd)
        if not layout.HEADER_OCTETS < size <= layout.SEGMENT_OCTETS_MAX:
            return 0
        header = layout.SEGMENT_HEADER.unpack(octets)
        crc = int.from_bytes(octets[layout.SEGMENT_CRC_END : layout.SEGMENT_CRC_END + 4], "little")
        base_seq, generation, records = header[3], header[5], header[9:11]
        if layout.crc32c(octets[: layout.SEGMENT_CRC_END]) == crc and layout.word_ok(*records) and not generation:
            return int(base_seq + records[0] - 1)
        with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as content:  # Compaction has taken records out of it.
            return scan(content, number, layout.HEADER_OCTETS)[3]
    finally:
        disk.close(fd)


def stale_journals(directory: str, names: set[str], disk: Disk) -> list[str]:
    """The names, in order, of journals and their chains that go because their segments are gone as they should be.

    Records go first.  So a crash in the midst of that leaves a journal alone, as does a power cut that brings its
    name back; order.jsonl names the segment then.  And settled segments of a queue whose journal was switched off go
    without a word.  All other journals without records stay: the records were lost.  Raises OSError.
    """
    there = [(name, number) for name in sorted(names)
             if (number := layout.keys_number(name, "journal") or layout.keys_number(name, "chain"))
             and not any(f"{layout.segment_name(number)}{more}" in names for more in ("", ".damaged"))]  # fmt: skip
    if not there:
        return []
    gone, is_on = _removed(directory, disk)
    return [name for name, number in there
            if number in gone or not is_on or (name.startswith("chain.") and layout.journal_name(number) not in names)]


def _removed(directory: str, disk: Disk) -> tuple[set[int], bool]:
    """The numbers of a level's removed segments, and whether the queue had an order journal at the end."""
    level = layout.priority_level(os.path.basename(directory)) or 0
    folder = os.path.dirname(directory) if level else directory
    gone: set[int] = set()
    is_on = True
    for line in side_file.read(f"{folder}/{layout.SIDE_FILE}", disk):
        segments: Any = line.get("segments")
        if line.get("what") == "removed" and line.get("level") == level and isinstance(segments, list):
            gone.update([each for each in segments if isinstance(each, int)])
        elif line.get("what") == "settings":
            is_on = line.get("journal") is not False
    return gone, is_on

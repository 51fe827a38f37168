"""The side file of a queue with an order journal: the queue's settings, its consumers, the segments that were removed.

File ``order.jsonl`` in the queue's folder, one JSON object a line, ``at`` in ns since the epoch::

    {"at": ns, "what": "settings", ...}  from queues/settings_line: at each start, and when they change
    {"at": ns, "what": "consumer", "number": n, "tag": ..., "connection": n, "channel": n, "peer": ..., "user": ...,
     "prefetch": n, "no_ack": bool, "priority": n}  the number is that of the journal's events
    {"at": ns, "what": "consumer_gone", "number": n}
    {"at": ns, "what": "removed", "level": L, "segments": [numbers], "first_seq": n, "last_seq": n, "messages": n,
     "octets": n, "why": "age" | "size" | "archived" | "space"}
    {"at": ns, "what": "lost"}  lines before this one could not be written: the disk was full

``write`` ends each line with its number in the file, from 1, and its checksum: ``..., "line": n, "crc": c}``.  The
checksum is the CRC-32 (zlib's) of the line's octets before ``,"crc":``.  Lines of older brokers have neither.

One thread appends lines.  A crash may tear the last one, which the next write cuts off.  At more than 1 MiB the file is
written anew (``condensed``).  Knows nothing of queues: lines in, lines out.
"""

import os
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

from brokerd.store import reading
from brokerd.store.disk import Disk

OCTETS_MAX = 1 << 20
# Of such lines, in a file written anew:
SETTINGS_OCTETS, DAMAGED_OCTETS, CONSUMERS_OCTETS = 64 << 10, 64 << 10, 256 << 10
CONSUMER_MARK, HEAD_OCTETS = b',"what":"consumer', 48  # in the first octets of a line of a consumer
SEGMENTS_MAX = 256  # numbers in one line "removed" that was made of several


def encode(line: dict[str, Any]) -> bytes:
    """One line.  AMQP's values that JSON has not are written as text."""
    from json import dumps  # Few queues have an order journal.

    return dumps(line, default=_text, separators=(",", ":")).encode() + b"\n"


def decode(octets: bytes) -> list[dict[str, Any]]:
    """All whole lines, in order, without their numbers and checksums.  Lines that are torn, damaged or no objects are
    left out."""
    return [each.line for each in reading.read_side_lines(octets) if each.line is not None]


def numbered(octets: bytes, first: int) -> bytes:
    """Lines of ``encode`` with the numbers from ``first`` on, each with its checksum."""
    from zlib import crc32

    lines = []
    for number, part in enumerate(octets.split(b"\n")[:-1], first):
        head = b"%b%b%d" % (part[:-1], reading.SIDE_NUMBER, number)
        lines.append(b"%b%b%d}\n" % (head, reading.SIDE_CRC, crc32(head)))
    return b"".join(lines)


def without(octets: bytes, drop: Callable[[dict[str, Any]], bool]) -> bytes:
    """The lines of a file without those that ``drop(line)`` names.  What is wrong with the others stays wrong."""
    lines, dropped = [], 0
    for each in reading.read_side_lines(octets):
        if each.line is not None and drop(each.line):
            dropped += each.number > 0
        elif dropped and each.number:
            lines.append(_renumbered(each.octets, each.number - dropped))
        else:
            lines.append(each.octets + b"\n")
    return b"".join(lines)


def _renumbered(line: bytes, number: int) -> bytes:
    return numbered(line[: line.rindex(reading.SIDE_NUMBER)] + b"}\n", number)


def read(path: str, disk: Disk) -> list[dict[str, Any]]:
    """The lines of a file; [] where the file is missing.  Raises OSError."""
    try:
        return decode(disk.read(path))
    except FileNotFoundError:
        return []


def append(path: str, lines: Iterable[dict[str, Any]], disk: Disk, *, sync: bool = False) -> None:
    """Add lines; with ``sync`` they are on disk when this returns.  Raises OSError."""
    octets = b"".join([encode(line) for line in lines])
    fd = disk.open(path, os.O_RDWR | os.O_CREAT)
    try:
        write(fd, path, octets, disk, sync=sync)
    finally:
        disk.close(fd)


class End(NamedTuple):
    """Where a file ends, and the number of its last line; 0: it has no line with a number."""

    octets: int
    number: int


def write(fd: int, path: str, octets: bytes, disk: Disk, end: End | None = None, *, sync: bool = False) -> End:
    """Add lines of ``encode`` to an open file; ``path`` is its name for errors, and for writing it anew.

    ``end`` is what the last write returned; None: not known.  Raises OSError."""
    size = disk.size(fd)
    if size > 16 * OCTETS_MAX:  # Only a file that is not ours can be so long.
        return _replace(path, disk.pread(fd, OCTETS_MAX, size - OCTETS_MAX) + b"\n" + numbered(octets, 1), disk)
    if end is None or end.octets != size:
        end = _find_end(fd, size, disk)
    lines = numbered(octets, end.number + 1)
    if end.octets + len(lines) > OCTETS_MAX:
        return _replace(path, disk.pread(fd, end.octets, 0) + lines, disk)
    disk.pwrite(fd, lines, end.octets)
    if sync:
        disk.fdatasync(fd, path)
    return End(end.octets + len(lines), end.number + octets.count(b"\n"))


def _replace(path: str, octets: bytes, disk: Disk) -> End:
    octets, number = condensed(octets)
    disk.replace(path, octets)
    return End(len(octets), number)


def _find_end(fd: int, size: int, disk: Disk) -> End:
    """The end of a file that another broker wrote, or a write that failed.  A torn last line is cut off: what a crash
    has left must not look like damage when more lines follow."""
    octets = disk.pread(fd, size, 0)
    torn = octets[octets.rfind(b"\n") + 1 :]
    if torn and not reading.read_side_line(torn)[2]:
        disk.pwrite(fd, b"\n", size)
        octets += b"\n"
    elif torn:
        octets = octets[: -len(torn)]
        disk.truncate(fd, len(octets))
    number, behind = 0, 0  # The last number, and how many damaged lines stand behind it.
    for part in reversed(octets.split(b"\n")):
        number = reading.read_side_line(part)[0] if part else 0
        if number:
            break
        behind += bool(part)
    return End(len(octets), number + behind if number else 0)


def encode_consumer(at: int, number: int, tag: str, connection: int, channel: int, peer: str, user: str, prefetch: int,
                    no_ack: bool, priority: int) -> bytes:  # fmt: skip
    """The line of a consumer, as ``encode`` would make it.  Clients may come and go by the thousand, and wait for this
    line: so only its texts need JSON's rules."""
    quoted = _quoter()
    return (
        f'{{"at":{at},"what":"consumer","number":{number},"tag":{quoted(tag)},"connection":{connection},'
        f'"channel":{channel},"peer":{quoted(peer)},"user":{quoted(user)},"prefetch":{prefetch},'
        f'"no_ack":{"true" if no_ack else "false"},"priority":{priority}}}\n'
    ).encode()


def encode_consumer_gone(at: int, number: int) -> bytes:
    """The line of a consumer that is gone, as ``encode`` would make it."""
    return b'{"at":%d,"what":"consumer_gone","number":%d}\n' % (at, number)


@cache
def _quoter() -> Callable[[str], str]:
    """A function that writes a text as JSON."""
    from json.encoder import encode_basestring_ascii  # Few queues have an order journal.

    return encode_basestring_ascii


def condensed(octets: bytes) -> tuple[bytes, int]:
    """Shorter content, and the number of its last line: the newest settings, joined lines of all that was removed, the
    last line of what was lost, the newest lines of consumers.

    Of equal settings in succession only the first line stays; the latest settings always stay.  Lines of what was
    removed are joined where they are of one level, one reason and without a gap between their sequence numbers; if that
    is not short enough, also over gaps.  Lines that are damaged stay as they are, so that an audit finds them.  Lines
    of consumers are not decoded: they may be many, and the loop needs Python's lock, which this thread has meanwhile.
    """
    parts = octets.split(b"\n")
    lines, damaged = [], []
    for part in parts:
        if part and CONSUMER_MARK not in part[:HEAD_OCTETS]:
            _, line, _ = reading.read_side_line(part)
            if line is None:
                damaged.append(part + b"\n")
            else:
                lines.append(line)
    settings = _changes([line for line in lines if line.get("what") == "settings"])
    removed = [line for line in lines if line.get("what") == "removed"]
    kept = _joined(removed, over_gaps=False)
    if sum([len(encode(line)) for line in kept]) > OCTETS_MAX // 2:
        kept = _joined(removed, over_gaps=True)
    lost = [line for line in lines if line.get("what") == "lost"]
    newest = [*_newest([encode(line) for line in settings[:-1]], SETTINGS_OCTETS), *map(encode, settings[-1:])]
    first = [*newest, *map(encode, kept), *map(encode, lost[-1:])]
    consumers, number = _newest_consumers(parts, len(first) + 1)
    return b"".join([numbered(b"".join(first), 1), *_newest(damaged, DAMAGED_OCTETS), *consumers]), number


def _newest_consumers(parts: list[bytes], following: int) -> tuple[list[bytes], int]:
    """The lines of consumers among the last ``parts``, numbered from ``following`` on, and the last number.  Where a
    number was left out or came twice, one is left out now."""
    from zlib import crc32

    room, start = CONSUMERS_OCTETS, len(parts)
    while start and room > 0:
        start -= 1
        room -= (len(parts[start]) + 1) if CONSUMER_MARK in parts[start][:HEAD_OCTETS] else 0
    lines, before = [], 0
    for part in parts[start:]:
        head, _, tail = part.rpartition(reading.SIDE_CRC)
        body, _, digits = head.rpartition(reading.SIDE_NUMBER)
        is_right = tail == b"%d}" % crc32(head) and digits.isdigit() and len(digits) <= reading.SIDE_DIGITS
        number = int(digits) if is_right else before + 1 if before and part else 0
        following += bool(before and number and number != before + 1)
        before = number or before
        if CONSUMER_MARK in part[:HEAD_OCTETS]:
            # A line of an older broker has no checksum, and stands before those that have one.
            if not is_right and (body or before or not part.endswith(b"}")):
                lines.append(part + b"\n")
            else:
                lines.append(numbered((body or part[:-1]) + b"}\n", following))
            following += 1
    return lines, following - 1


def _changes(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that differ from the one before."""
    said: dict[str, Any] = {}
    changes = []
    for line in settings:
        now = {key: value for key, value in line.items() if key != "at"}
        if now != said:
            changes.append(line)
            said = now
    return changes


def _newest(lines: list[bytes], room: int) -> list[bytes]:
    """As many of the last ``lines`` as there is room for, in octets."""
    start = len(lines)
    while start and (room := room - len(lines[start - 1])) >= 0:
        start -= 1
    return lines[start:]


def _joined(removed: list[dict[str, Any]], *, over_gaps: bool) -> list[dict[str, Any]]:
    """The lines "removed", those of one level and reason as one."""
    joined: list[dict[str, Any]] = []
    last: dict[tuple[Any, Any], dict[str, Any]] = {}
    for line in removed:
        try:
            before = last.get((line["level"], line["why"]))
            if before is None or not (over_gaps or line["first_seq"] == before["last_seq"] + 1):
                before = dict(line, segments=list(line["segments"]))
                joined.append(before)
                last[line["level"], line["why"]] = before
                continue
            before.update(
                at=line["at"],
                segments=[*before["segments"], *line["segments"]][-SEGMENTS_MAX:],
                first_seq=min(before["first_seq"], line["first_seq"]),
                last_seq=max(before["last_seq"], line["last_seq"]),
                messages=before["messages"] + line["messages"],
                octets=before["octets"] + line["octets"],
            )
        except (KeyError, TypeError):
            continue  # brokerd did not write this line.
    return joined


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)

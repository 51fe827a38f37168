"""The side file of a queue with an order journal: the queue's settings, its consumers, the segments that were removed.

File ``order.jsonl`` in the queue's folder, one JSON object a line, ``at`` in ns since the epoch::

    {"at": ns, "what": "settings", ...}  from queues/settings_line: at each start, and when they change
    {"at": ns, "what": "consumer", "number": n, "tag": ..., "connection": n, "channel": n, "peer": ..., "user": ...,
     "prefetch": n, "no_ack": bool, "priority": n}  the number is that of the journal's events
    {"at": ns, "what": "consumer_gone", "number": n}
    {"at": ns, "what": "removed", "level": L, "segments": [numbers], "first_seq": n, "last_seq": n, "messages": n,
     "octets": n, "why": "age" | "size" | "archived" | "space"}

One thread appends lines.  A crash may tear the last one, so readers ignore lines that are no JSON objects.  At more
than 1 MiB the file is written anew (``condensed``).  Knows nothing of queues: lines in, lines out.
"""

import os
from collections.abc import Iterable
from typing import Any

from brokerd.store.disk import Disk

OCTETS_MAX = 1 << 20
SETTINGS_OCTETS, CONSUMERS_OCTETS = 64 << 10, 256 << 10  # of such lines, in a file written anew
SEGMENTS_MAX = 256  # numbers in one line "removed" that was made of several


def encode(line: dict[str, Any]) -> bytes:
    """One line.  AMQP's values that JSON has not are written as text."""
    from json import dumps  # Few queues have an order journal.

    return dumps(line, default=_text, separators=(",", ":")).encode() + b"\n"


def decode(octets: bytes) -> list[dict[str, Any]]:
    """All whole lines, in order.  Lines that are torn, damaged or no objects are left out."""
    from json import loads

    lines = []
    for part in octets.split(b"\n"):
        if not part:
            continue
        try:
            line = loads(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines


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


def write(fd: int, path: str, octets: bytes, disk: Disk, *, sync: bool = False) -> None:
    """Add encoded lines to an open file; ``path`` is its name for errors, and for writing it anew."""
    size = disk.size(fd)
    if size + len(octets) > OCTETS_MAX:
        whole = disk.pread(fd, size, 0) + b"\n" + octets
        disk.replace(path, b"".join([encode(line) for line in condensed(decode(whole))]))
        return
    if size and disk.pread(fd, 1, size - 1) != b"\n":
        octets = b"\n" + octets  # The last line was torn: this one is to be whole.
    disk.pwrite(fd, octets, size)
    if sync:
        disk.fdatasync(fd, path)


def condensed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A shorter list: the newest settings, joined lines of all that was removed, and the newest lines of consumers.

    Of equal settings in succession only the first line stays; the latest settings always stay.  Lines of what was
    removed are joined where they are of one level, one reason and without a gap between their sequence numbers; if that
    is not short enough, also over gaps.
    """
    settings = _changes([line for line in lines if line.get("what") == "settings"])
    removed = [line for line in lines if line.get("what") == "removed"]
    kept = _joined(removed, over_gaps=False)
    if sum([len(encode(line)) for line in kept]) > OCTETS_MAX // 2:
        kept = _joined(removed, over_gaps=True)
    consumers = [line for line in lines if line.get("what") in ("consumer", "consumer_gone")]
    newest = [*_newest(settings[:-1], SETTINGS_OCTETS), *settings[-1:]]
    return [*newest, *kept, *_newest(consumers, CONSUMERS_OCTETS)]


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


def _newest(lines: list[dict[str, Any]], room: int) -> list[dict[str, Any]]:
    """As many of the last ``lines`` as there is room for, in octets."""
    start = len(lines)
    while start and (room := room - len(encode(lines[start - 1]))) >= 0:
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

"""One cut through the files of a queue that a broker may be writing to: ``find_queues`` gives it to all its triples.

An audit reads the levels and segments of a queue one after the other.  If a broker writes meanwhile, the files that are
read late have newer events than those that were read early.  So the audit judges the queue as it was at one instant,
the queue's *cut*: the latest time of any record or event that one sweep over the files finds before the reading begins.
Times rise strictly in a queue, over records and events together and in the order in which the broker writes them.  So
every record and event up to the cut was written before the reading began, and ``segment`` leaves out later ones.

Files that no broker writes to have no cut: the audit judges all of them.  The files of a broker that was killed have a
cut that leaves nothing out.
"""

import numpy as np

from brokerd.audit.fetch import other_place
from brokerd.audit.files import NAME_FILE, QueueFiles, Source, Triple
from brokerd.store import format as layout
from brokerd.store import reading

_EVENTS_AT = 32         # In a journal's header: the word that counts its events.
_END_AT = 40            # In a segment's header: the word that says where its records end.


def find_queues(source: Source, glob: str | None = None) -> list[QueueFiles]:
    """The queues to audit, as ``Source.queues`` finds them; with cuts where a broker may write.  Raises AuditError."""
    queues = source.queues(glob)
    if not is_open(source):
        return queues
    cuts = {queue.folder: last_time(source, queue) for queue in queues}
    # A segment that was made during the sweep may hold numbers from before the cut: so the names are read once more.
    return [queue._replace(triples=[triple._replace(cut=cuts.get(queue.folder, 0)) for triple in queue.triples])
            for queue in source.queues(glob)]


def is_open(source: Source) -> bool:
    """Whether a broker may be at work on these files, or was killed: a broker's marker lies there until it stops."""
    if source.is_s3:
        return False
    folder = source.root.rstrip("/") or "/"
    for _ in range(3):          # The root may be the folder of a vhost or of a queue.
        names = _names(folder)
        if layout.RUNNING_FILE in names:
            return True
        if NAME_FILE not in names and layout.QUEUE_NAME_FILE not in names:
            return False
        folder = folder.rpartition("/")[0] or "/"
    return False


def _names(folder: str) -> dict[str, int]:
    try:
        return Source(folder).names("")
    except OSError:
        return {}


def last_time(source: Source, queue: QueueFiles) -> int:
    """The latest time (ns) of a record or an event in the queue's files; 0: there is none.

    Reads the last event of each journal, and of each level the newest segment that has records.
    """
    latest, seen = 0, set[int]()
    for triple in reversed(queue.triples):              # By level, the newest segment first.
        latest = max(latest, _last_event(source, triple))
        if triple.priority not in seen:
            last = _last_record(source, triple)
            latest = max(latest, last)
            if last:
                seen.add(triple.priority)
    return latest


def _last_event(source: Source, triple: Triple) -> int:
    if triple.journal is None:
        return 0
    head = _octets(source, triple.journal, 0, layout.HEADER_OCTETS)
    count = int.from_bytes(head[_EVENTS_AT:_EVENTS_AT + 4], "little")
    if not count or not _word_ok(head, _EVENTS_AT):
        return 0
    at = layout.HEADER_OCTETS + (count - 1) * layout.EVENT_OCTETS
    event = _octets(source, triple.journal, at, layout.EVENT_OCTETS)
    return int.from_bytes(event[8:16], "little", signed=True) if len(event) == layout.EVENT_OCTETS else 0


def _last_record(source: Source, triple: Triple) -> int:
    head = _octets(source, triple.msgs, 0, layout.HEADER_OCTETS)
    if len(head) < layout.HEADER_OCTETS:
        return 0
    end = int.from_bytes(head[_END_AT:_END_AT + 4], "little") if _word_ok(head, _END_AT) else -1
    octets = _octets(source, triple.msgs, 0, end)
    times = reading.scan_records(octets, len(octets) & ~7).headers["ts"]
    return int(times.max()) if times.size else 0


def _word_ok(head: bytes, at: int) -> bool:
    value, complement = np.frombuffer(head.ljust(layout.HEADER_OCTETS, b"\0"), "<u4", 2, at).tolist()
    return layout.word_ok(value, complement)


def _octets(source: Source, path: str, start: int, length: int) -> bytes:
    """Octets of a file, which may have moved since its name was read; none if it cannot be read."""
    for place in (path, other_place(path)):
        try:
            return source.read(place, start, length)
        except (OSError, MemoryError, OverflowError):
            continue
    return b""

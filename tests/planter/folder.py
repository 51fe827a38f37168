"""Queues on disk, as objects: a data directory or a dump is read, changed, and written to another place.

    Tree            the folder; ``queues`` by name, ``manifest`` or None
    Queue           ``parts``, ``counters``, ``lines`` of order.jsonl, a stream's ``readers``, its entry in the manifest
    Part            one segment: level, live or kept, its three files, and a stream's index of it

``Tree.write(target)`` gives files that nobody has changed a second name, so a copy costs what was changed.  Knows the
layout of the folders, and nothing of what the files mean.  Files of other kinds are left out of the copy.
"""

import hashlib
import json
import os
import struct
import zlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path

from tests.planter.crc import crc32c
from tests.planter.files import AcksFile, JournalFile, MessageFile
from tests.planter.files_streams import IndexFile, ReadersFile

KINDS = (("msgs", MessageFile), ("acks", AcksFile), ("journal", JournalFile), ("index", IndexFile))
ORDER_HEAD = struct.Struct("<4sI")


@dataclass(eq=False)
class Part:
    """One segment with its acks and its journal; ``journal`` and ``index`` may be None, and a stream's ``acks``."""

    level: int
    kept: bool
    number: int
    folder: str                     # relative to the queue's, "" or "prio.002/kept"
    msgs: MessageFile | None = None
    acks: AcksFile | None = None
    journal: JournalFile | None = None
    index: IndexFile | None = None

    def records(self):
        return self.msgs.records if self.msgs is not None else []

    def events(self):
        return self.journal.events if self.journal is not None else []

    def entries(self):
        return self.acks.entries if self.acks is not None else []

    def count(self):
        """All words say what the files hold, and the cursors stand before the same records as they did."""
        cursors = {}
        if self.msgs is not None:
            before = [record.position for record in self.msgs.records]
            for name in ("delivered", "doubted"):
                value = getattr(self.acks, name, None)
                if value is not None:
                    cursors[name] = bisect_left(before, value) if value < self.msgs.end else None
            self.msgs.count()
            after = [record.position for record in self.msgs.records] + [self.msgs.end]
            for name, index in cursors.items():
                if getattr(self.acks, name) > 64:
                    setattr(self.acks, name, self.msgs.end if index is None else after[index])
        for file in (self.acks, self.journal):
            if file is not None:
                file.count()

    # --- changes

    def insert(self, event):
        """Put an event where its time says."""
        events = self.journal.events
        events.insert(bisect_right([each.ts for each in events], event.ts), event)
        return event

    def move(self, event, ts):
        """Give an event another time, and the place of that."""
        self.journal.events.remove(event)
        return self.insert(event.touch(ts=ts))


@dataclass(eq=False)
class Queue:
    name: str
    folder: str                     # relative to the tree
    parts: list[Part]
    order_head: bytes = b""
    counters: list[int] | None = None       # None: there is no such file
    lines: list[dict] | None = None         # None: there is no such file
    readers: ReadersFile | None = None      # of a stream
    entry: dict | None = None               # in the manifest
    files: dict = field(default_factory=dict)       # path relative to the tree -> octets as they were read
    removed: set = field(default_factory=set)       # paths of files that shall not be written

    @property
    def is_stream(self):
        return self.readers is not None or any(part.index is not None for part in self.parts)

    @property
    def journaled(self):
        return any(part.journal is not None for part in self.parts)

    def setting(self, name):
        """The value of a setting in the last line of settings."""
        lines = [line for line in self.lines or () if line["what"] == "settings"]
        return lines[-1].get(name) if lines else None

    def times(self):
        """All times of records and events, in order."""
        return sorted([record.ts for part in self.parts for record in part.records()]
                      + [event.ts for part in self.parts for event in part.events()])

    def free_time(self, after, before=1 << 62):
        """The first time behind ``after`` and before ``before`` that nothing has; None: there is none.

        Events of one moment follow each other by a nanosecond each, so the time may be behind some others.
        """
        times = self.times()
        for place in range(bisect_right(times, after), len(times)):
            if after + 1 < min(times[place], before):
                break
            after = times[place]
        else:
            return after + 1000 if after + 1000 < before else None
        following = min(times[place], before)
        return after + (following - after) // 2 if after + 1 < following else None

    def free_time_before(self, before, after=0):
        """The last time before ``before`` and behind ``after`` that nothing has; None: there is none."""
        times = self.times()
        for place in range(bisect_left(times, before) - 1, -1, -1):
            if max(times[place], after) + 1 < before:
                return before - max((before - max(times[place], after)) // 2, 1)
            before = times[place]
        return before - 1000 if after < before - 1000 else None

    def count(self):
        for part in self.parts:
            part.count()
        if any("line" in line for line in self.lines or ()):
            for number, line in enumerate(self.lines, 1):
                line["line"] = number

    def new_files(self):
        """path -> octets of the files as they are now, for those that this module knows."""
        found = {}
        for part in self.parts:
            for kind, _ in KINDS:
                file = getattr(part, kind)
                if file is not None:
                    found[os.path.join(self.folder, part.folder, f"{kind}.{part.number:010d}")] = file.octets()
        if self.counters is not None:
            found[f"{self.folder}/order"] = self.order_head + struct.pack(f"<{len(self.counters)}Q", *self.counters)
        if self.readers is not None:
            found[f"{self.folder}/readers"] = self.readers.octets()
        if self.lines is not None:
            found[f"{self.folder}/order.jsonl"] = b"".join(map(_line, self.lines))
        return found


def _line(line):
    """A line of order.jsonl.  Its member ``line`` is its number, which one of an older broker has not; ``crc`` is there
    if it shall be wrong; ``raw`` is there if something else shall stand in place of the line."""
    if "raw" in line:
        return line["raw"] + b"\n"
    wrong = line.get("crc")
    octets = json.dumps({name: value for name, value in line.items() if name not in ("line", "crc")},
                        separators=(",", ":")).encode()
    if "line" in line:
        octets = octets[:-1] + b',"line":%d' % line["line"]
        octets += b',"crc":%d}' % (zlib.crc32(octets) if wrong is None else wrong)
    return octets + b"\n"


class Tree:
    """A data directory, a dump or an archive."""

    def __init__(self, path, *, only=None):
        self.path = Path(path)
        self.root = {}              # other files of the root: name -> octets
        self.manifest = None
        self.repairs_digests = True     # of the manifest, when it is written
        self.queues = {}
        if (self.path / "manifest.json").exists():
            self.manifest = json.loads((self.path / "manifest.json").read_text())
        entries = {entry["folder"]: entry for entry in (self.manifest or {}).get("queues", ())}
        for vhost in sorted(each.parent for each in self.path.glob("*/.vhost")):
            for name_file in sorted(vhost.glob("*/.queue")):
                name = name_file.read_text()
                if only is None or name in only:
                    folder = f"{vhost.name}/{name_file.parent.name}"
                    self.queues[name] = read_queue(self.path, folder, name, entries.get(folder))
        for name in ("schema_version", "running", "vhosts.json"):
            if (self.path / name).is_file():
                self.root[name] = (self.path / name).read_bytes()

    def write(self, target):
        """Write the queues that were read to a folder that is not there yet."""
        target = Path(target)
        target.mkdir(parents=True)
        for name, octets in self.root.items():
            (target / name).write_bytes(octets)
        for queue in self.queues.values():
            self._write_queue(target, queue)
        if self.manifest is not None:
            entries = [queue.entry for queue in self.queues.values() if queue.entry is not None]
            (target / "manifest.json").write_text(json.dumps(self.manifest | {"queues": entries}))
            if self.repairs_digests:
                repair_digests(target)
        return target

    def link(self, target):
        """Give the files of the queues second names in a folder that is not there yet, whatever was changed since."""
        target = Path(target)
        paths = {f"{queue.folder.split('/')[0]}/.vhost" for queue in self.queues.values()}
        for queue in self.queues.values():
            paths |= {f"{queue.folder}/.queue", *queue.files}
        for path in paths:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            os.link(self.path / path, target / path)
        for name in self.root:
            os.link(self.path / name, target / name)
        if self.manifest is not None:
            entries = [queue.entry for queue in self.queues.values() if queue.entry is not None]
            (target / "manifest.json").write_text(json.dumps(self.manifest | {"queues": entries}))
        return target

    def _write_queue(self, target, queue):
        vhost = queue.folder.split("/")[0]
        (target / queue.folder).mkdir(parents=True)
        if not (target / vhost / ".vhost").exists():
            os.link(self.path / vhost / ".vhost", target / vhost / ".vhost")
        os.link(self.path / queue.folder / ".queue", target / queue.folder / ".queue")
        sizes = {}
        for path, octets in queue.new_files().items():
            if path in queue.removed:
                continue
            sizes[path] = len(octets)
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            if queue.files.get(path) == octets:
                os.link(self.path / path, target / path)
            else:
                (target / path).write_bytes(octets)
        if queue.entry is not None:
            for path in (f"{queue.folder}/.queue", f"{vhost}/.vhost"):
                sizes[path] = (target / path).stat().st_size
            queue.entry["files"] = [each | {"octets": sizes[each["path"]]}
                                    for each in queue.entry["files"] if each["path"] in sizes]


def repair_digests(target):
    """The manifest has the digests of the files as they are now, where it had digests."""
    path = target / "manifest.json"
    if not path.exists():
        return
    manifest = json.loads(path.read_text())
    for entry in manifest["queues"]:
        for each in entry["files"]:
            if "sha256" in each and (target / each["path"]).exists():
                each["sha256"] = hashlib.sha256((target / each["path"]).read_bytes()).hexdigest()
    path.write_text(json.dumps(manifest))


def read_queue(root, folder, name, entry):
    """All that docs/formats.md describes of a queue's folder."""
    queue = Queue(name, folder, [], entry=json.loads(json.dumps(entry)) if entry is not None else None)
    base = root / folder
    levels = {0: ""} | {int(each.name[5:]): each.name for each in base.glob("prio.[0-9][0-9][0-9]")}
    for level, place in sorted(levels.items()):
        for kept in (True, False):
            path = os.path.join(place, "kept") if kept else place
            for number in sorted({int(each.name.rpartition(".")[2]) for each in (base / path).glob("*.[0-9]*")
                                  if each.name.partition(".")[0] in ("msgs", "acks", "journal")
                                  and each.name.count(".") == 1}):
                queue.parts.append(_read_part(root, queue, Part(level, kept, number, path)))
    queue.parts.sort(key=lambda part: (part.level, part.number))
    if (base / "order").exists():
        octets = queue.files[f"{folder}/order"] = (base / "order").read_bytes()
        if octets[:4] != b"BORD" or octets[8:12] != struct.pack("<I", crc32c(octets[:8])):
            raise ValueError(f"{base}/order")
        queue.order_head = octets[:64]
        queue.counters = list(struct.unpack(f"<{(len(octets) - 64) // 8}Q", octets[64:]))
    if (base / "readers").exists():
        octets = queue.files[f"{folder}/readers"] = (base / "readers").read_bytes()
        queue.readers = ReadersFile.read(octets)
    if (base / "order.jsonl").exists():
        octets = queue.files[f"{folder}/order.jsonl"] = (base / "order.jsonl").read_bytes()
        queue.lines = [{name: value for name, value in json.loads(line).items() if name != "crc"}
                       for line in octets.decode().splitlines() if line]
    return queue


def _read_part(root, queue, part):
    for kind, reader in KINDS:
        path = os.path.join(queue.folder, part.folder, f"{kind}.{part.number:010d}")
        if (root / path).exists():
            octets = queue.files[path] = (root / path).read_bytes()
            more = (part.records(),) if kind == "acks" else ()
            setattr(part, kind, reader.read(octets, *more))
    return part

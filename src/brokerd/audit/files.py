"""The files to audit under a path: queues, their priority levels, their segments, and the files beside these.

A *triple* is a segment with its acks file and its order journal.  The broker moves a settled triple to ``kept/`` file
by file, so for an instant its files lie in two folders::

    ROOT/manifest.json            of a dump
    ROOT/<vhost>/.vhost           ROOT may also be the folder of one vhost, or of one queue
    ROOT/<vhost>/<queue>/.queue   order.jsonl, [prio.NNN/][kept/]{msgs,acks,journal}.N

Skips the folders of queues that do not survive a restart (``transient``).  This module looks at names and sizes of
segments; ``segment`` reads their contents.  Both call read() and never map a file, because a broker may shorten it at
any time.
"""

import fnmatch
import json
import os
from typing import Any, NamedTuple

from brokerd.audit import AuditError
from brokerd.store import format as layout

NAME_FILE = ".vhost"
MANIFEST = "manifest.json"
TRANSIENT_FOLDER = "transient"
FOREVER = (1 << 63) - 1         # ns
KINDS = ("msgs", "acks", "journal")


class Damage(NamedTuple):
    """A file that is not as a broker leaves it.

    ``file`` is relative to the source's root; ``offset`` -1 means the whole file.  ``matters`` says what cannot be
    judged because of the damage: any of "records", "events", "acks".
    """

    file: str
    offset: int
    seq: int
    ts: int
    detail: str
    matters: tuple[str, ...] = ()


class Rule(NamedTuple):
    """The settings that were in force from ``at`` (ns) on, by order.jsonl."""

    at: int
    journal: bool
    limit: int | None
    dead_letters: bool = False


class Triple(NamedTuple):
    """One segment with its acks and journal; paths are relative to ``root``.  Small and picklable."""

    root: str
    vhost: str
    queue: str
    priority: int
    number: int
    kept: bool
    msgs: str
    acks: str | None
    journal: str | None
    octets: int                         # the sizes of all three files together
    rules: tuple[Rule, ...] = ()
    levels: int = 1                     # how many levels the queue has on disk
    settled: bool = False               # the broker writes no more into it: it is in kept/, or part of a dump


class QueueFiles(NamedTuple):
    """All files of one queue."""

    vhost: str
    queue: str
    folder: str
    settings: dict[str, Any]            # the latest; {}: unknown
    removed: list[dict[str, Any]]       # segments that retention removed, as order.jsonl lists them
    consumers: dict[int, dict[str, Any]]
    manifest: dict[str, Any] | None     # what the manifest says of this queue
    triples: list[Triple]               # by level, then by number
    foreign: list[str]                  # files with names like those of the broker's files, which are not its own
    damage: list[Damage]                # missing, unreadable, half copied
    rules: tuple[Rule, ...] = ()


class Source:
    """A folder, here or in S3 (``s3://bucket/prefix``): names, sizes, octets.  Picklable.

    Methods raise the OSError of the file system.
    """

    def __init__(self, path: str) -> None:
        self.root = path
        self._s3: Any = None
        self._prefix = path if not path.startswith("s3://") else path[5:].rstrip("/")

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "_s3": None, "_prefix": self._prefix}

    @property
    def is_s3(self) -> bool:
        return self.root.startswith("s3://")

    def _filesystem(self) -> Any:
        if self._s3 is None:
            from pyarrow import fs  # Only reading from S3 needs it.

            self._s3 = fs.S3FileSystem(
                endpoint_override=os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))
        return self._s3

    def path(self, rel: str) -> str:
        """The whole path of a file of this source."""
        return f"{self._prefix}/{rel}" if rel else self._prefix

    def names(self, rel: str) -> dict[str, int]:
        """The files of a folder: name -> octets, -1 for folders."""
        if not self.is_s3:
            with os.scandir(self.path(rel) or "/") as entries:
                return {entry.name: _octets(entry) for entry in entries}
        from pyarrow import fs

        found = self._filesystem().get_file_info(fs.FileSelector(self.path(rel)))
        return {info.base_name: info.size if info.type == fs.FileType.File else -1 for info in found}

    def read(self, rel: str, start: int = 0, length: int = -1) -> bytes:
        """Octets of a file from ``start`` on, at most ``length`` of them; fewer at its end."""
        if self.is_s3:
            with self._filesystem().open_input_file(self.path(rel)) as file:
                size = file.size()
                count = size - start if length < 0 else min(length, size - start)
                return file.read_at(count, start) if count > 0 else b""
        fd = os.open(self.path(rel), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)    # A pipe must not stop us.
        try:
            if length < 0:
                length = max(os.fstat(fd).st_size - start, 0)
            octets = os.pread(fd, length, start)
            while 0 < len(octets) < length:
                more = os.pread(fd, length - len(octets), start + len(octets))
                if not more:
                    break
                octets += more
            return octets
        finally:
            os.close(fd)

    def queues(self, glob: str | None = None) -> list[QueueFiles]:
        """The queues in the folder, sorted by vhost and name; ``glob`` matches ``vhost/name`` or the name alone.

        Raises AuditError for a manifest that cannot be read.
        """
        manifest = _read_manifest(self)
        found = []
        for vhost, queue, folder in _queue_folders(self):
            if glob is None or fnmatch.fnmatchcase(queue, glob) or fnmatch.fnmatchcase(f"{vhost}/{queue}", glob):
                entry = manifest.get((vhost, queue)) if manifest is not None else None
                found.append(_read_queue(self, vhost, queue, folder, entry))
        seen = {(q.vhost, q.queue) for q in found}
        for (vhost, queue), entry in (manifest or {}).items():
            if (vhost, queue) not in seen and (
                    glob is None or fnmatch.fnmatchcase(queue, glob) or fnmatch.fnmatchcase(f"{vhost}/{queue}", glob)):
                found.append(_missing_queue(vhost, queue, entry))
        return sorted(found, key=lambda q: (q.vhost, q.queue))

    def manifest(self) -> dict[str, Any] | None:
        """The manifest of a dump; None: the folder is not a dump.  Raises AuditError."""
        return _manifest_document(self)


def open_source(path: str) -> Source:
    """The source at ``path``; reads only names.  Raises AuditError, one line that says what is wrong."""
    if not path.startswith("s3://"):
        path = os.path.abspath(path)
    source = Source(path)
    try:
        names = source.names("")
    except ImportError:
        raise AuditError(f"{path}: reading from S3 needs pyarrow") from None
    except FileNotFoundError:
        raise AuditError(f"{path}: no such folder") from None
    except NotADirectoryError:
        raise AuditError(f"{path}: is not a folder") from None
    except PermissionError:
        raise AuditError(f"{path}: no permission to read it") from None
    except OSError as error:
        raise AuditError(f"{path}: {' '.join(str(error).split())[:300]}") from None
    if MANIFEST in names or "schema_version" in names or any(True for _ in _queue_folders(source)):
        return source
    if any(size < 0 and _has(source, name, NAME_FILE) for name, size in names.items()) or NAME_FILE in names:
        return source
    raise AuditError(f"{path}: no data directory, dump or archive of brokerd, nor a vhost's or queue's folder in one")


# --- folders


def _octets(entry: "os.DirEntry[str]") -> int:
    try:
        return -1 if entry.is_dir() else entry.stat().st_size
    except OSError:
        return 0                # The file is gone, or a link to nothing: reading it will report that.


def _has(source: Source, folder: str, name: str) -> bool:
    try:
        return name in source.names(folder)
    except OSError:
        return False


def _text(source: Source, rel: str) -> str | None:
    try:
        return source.read(rel).decode("utf-8", "surrogateescape")
    except OSError:
        return None


def _queue_folders(source: Source) -> Any:
    """(vhost, queue, folder) of each folder of a queue."""
    yield from _folders_at(source, "", None, 0)


def _folders_at(source: Source, folder: str, vhost: str | None, depth: int) -> Any:
    try:
        names = source.names(folder)
    except OSError:
        if depth and vhost is not None:
            yield vhost, folder.rpartition("/")[2], folder
        return
    if layout.QUEUE_NAME_FILE in names:
        if vhost is None:
            vhost = _text_above(source)
        name = _text(source, _join(folder, layout.QUEUE_NAME_FILE))
        yield vhost or "?", name if name is not None else folder.rpartition("/")[2], folder
        return
    if NAME_FILE in names:
        vhost = _text(source, _join(folder, NAME_FILE))
        vhost = vhost if vhost is not None else "?"
    if depth >= 2:
        return
    for name in sorted(names):
        if names[name] < 0 and name != TRANSIENT_FOLDER and not name.startswith("."):
            yield from _folders_at(source, _join(folder, name), vhost, depth + 1)


def _text_above(source: Source) -> str | None:
    """The vhost of a source that is a queue's own folder."""
    above = Source(source.root.rstrip("/").rpartition("/")[0] or "/")
    return _text(above, NAME_FILE)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


# --- one queue


class _Found:
    """Files of one level, by kind and number: (path, octets, kept)."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, int], tuple[str, int, bool]] = {}


def _read_queue(source: Source, vhost: str, queue: str, folder: str, entry: dict[str, Any] | None) -> QueueFiles:
    damage: list[Damage] = []
    foreign: list[str] = []
    levels: dict[int, _Found] = {}
    names = _names(source, folder, damage)
    _look(source, folder, names, levels.setdefault(0, _Found()), damage, foreign)
    for name in sorted(names):
        level = layout.priority_level(name)
        if level is not None and names[name] < 0:
            path = _join(folder, name)
            _look(source, path, _names(source, path, damage), levels.setdefault(level, _Found()), damage, foreign)
    log = _read_side_file(source, folder, names, damage)
    settings = log.settings or (entry or {}).get("settings") or {}
    rules = tuple(log.rules)
    if not rules and settings:
        rules = (_rule(0, settings),)
    if entry is not None:
        _check_manifest(folder, entry, levels, damage)
    levels = {level: found for level, found in levels.items() if found.files or level == 0}
    triples: list[Triple] = []
    for level, found in sorted(levels.items()):
        triples += _triples(source, vhost, queue, level, found, rules, len(levels), entry is not None, damage)
    return QueueFiles(vhost, queue, folder, settings, log.removed, log.consumers, entry, triples, foreign, damage,
                      rules)


def _missing_queue(vhost: str, queue: str, entry: dict[str, Any]) -> QueueFiles:
    folder = str(entry.get("folder", ""))
    settings = entry.get("settings") or {}
    damage = []
    if entry.get("files"):
        damage.append(Damage(folder, -1, 0, 0, "the manifest names this queue, but its folder is not here",
                             ("records", "events", "acks")))
    return QueueFiles(vhost, queue, folder, settings, [], {}, entry, [], [], damage, ())


def _names(source: Source, folder: str, damage: list[Damage]) -> dict[str, int]:
    try:
        return source.names(folder)
    except OSError as error:
        damage.append(Damage(folder, -1, 0, 0, f"the folder cannot be read: {reason(error)}",
                             ("records", "events", "acks")))
        return {}


def reason(error: OSError) -> str:
    """An OSError in words, on one line, without the path."""
    return error.strerror or " ".join(str(error).split())[:200] or type(error).__name__


def file_number(name: str) -> tuple[str, int] | None:
    """("msgs" | "acks" | "journal", number) of a file of a triple; None for any other name."""
    kind, _, digits = name.partition(".")
    if kind in KINDS and len(digits) >= 10 and digits.isascii() and digits.isdigit() and len(digits) <= 20:
        return kind, int(digits)
    return None


def _look(source: Source, folder: str, names: dict[str, int], found: _Found, damage: list[Damage],
          foreign: list[str]) -> None:
    """Sort out the files of one level: its folder, then ``kept`` in it."""
    kept = _join(folder, layout.KEPT_FOLDER)
    inside = _names(source, kept, damage) if names.get(layout.KEPT_FOLDER) == -1 else {}
    for where, listed, is_kept in ((folder, names, False), (kept, inside, True)):
        for name, octets in sorted(listed.items()):
            path, known = _join(where, name), file_number(name)
            if known is None or octets < 0:
                _stranger(path, name, damage, foreign)
            elif known in found.files and found.files[known][0].rpartition("/")[0] != where:
                damage.append(Damage(path, -1, 0, 0, f"is here twice: {found.files[known][0]} is what is read"))
                foreign.append(path)
            else:
                found.files[known] = (path, octets, is_kept)


def _stranger(path: str, name: str, damage: list[Damage], foreign: list[str]) -> None:
    """Judge a file that belongs to no triple: it is damage only if its name looks like that of a segment's file."""
    kind, _, rest = name.partition(".")
    if kind not in KINDS or (rest.endswith(".new") and file_number(name[:-4]) is not None):
        return                  # Another kind of file, or that of an unfinished compaction: the old file counts.
    foreign.append(path)
    if rest.endswith(".damaged"):
        detail = "was put aside by recovery: its content is not audited"
        damage.append(Damage(path, -1, 0, 0, detail, ("records", "events", "acks")))
    else:
        damage.append(Damage(path, -1, 0, 0, "is named like a file of the broker, but is not one"))


def _triples(source: Source, vhost: str, queue: str, level: int, found: _Found, rules: tuple[Rule, ...], levels: int,
             dumped: bool, damage: list[Damage]) -> list[Triple]:
    triples = []
    for number in sorted({number for _, number in found.files}):
        msgs, acks, journal = (found.files.get((kind, number)) for kind in KINDS)
        if msgs is None:
            there = [f for f in (journal, acks) if f is not None]
            if journal is None and not there[0][2]:
                continue        # The broker removes acks after their segment; if it crashes in between, at its start.
            detail = f"{layout.segment_name(number)}, to which it belongs, is missing"
            damage.append(Damage(there[0][0], -1, 0, 0, detail, ("records", "events", "acks")))
            continue
        octets = sum(f[1] for f in (msgs, acks, journal) if f is not None)
        triples.append(Triple(
            source.root, vhost, queue, level, number, msgs[2], msgs[0], acks and acks[0], journal and journal[0],
            octets, rules, levels, msgs[2] or dumped))
    return triples


# --- what stands beside the segments


class _Log:
    """The content of order.jsonl."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.removed: list[dict[str, Any]] = []
        self.consumers: dict[int, dict[str, Any]] = {}
        self.rules: list[Rule] = []

    def take(self, line: dict[str, Any]) -> None:
        """Take one line in.  Raises KeyError, TypeError or ValueError for a line that is not the broker's."""
        what, at = line["what"], int(line["at"])
        if what == "settings":
            self.settings = line
            rule = _rule(at, line)
            if not self.rules or self.rules[-1][1:] != rule[1:]:
                self.rules.append(rule)
        elif what == "consumer":
            self.consumers[int(line["number"])] = line
        elif what == "consumer_gone":
            self.consumers.setdefault(int(line["number"]), {})["gone"] = at
        elif what == "removed":
            first, last, level = int(line["first_seq"]), int(line["last_seq"]), int(line["level"])
            self.removed.append(line | {"first_seq": first, "last_seq": last, "level": level})


def _rule(at: int, settings: dict[str, Any]) -> Rule:
    limit = settings.get("delivery_limit")
    return Rule(at, bool(settings.get("journal")), limit if isinstance(limit, int) and limit >= 0 else None,
                settings.get("dead_letter_exchange") is not None)


def _read_side_file(source: Source, folder: str, names: dict[str, int], damage: list[Damage]) -> _Log:
    log, path = _Log(), _join(folder, layout.SIDE_FILE)
    if layout.SIDE_FILE not in names:
        return log
    try:
        octets = source.read(path)
    except OSError as error:
        damage.append(Damage(path, -1, 0, 0, f"cannot be read: {reason(error)}"))
        return log
    at = 0
    lines = octets.split(b"\n")
    for number, line in enumerate(lines):
        if line:
            try:
                log.take(json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
                if number < len(lines) - 1:     # The broker may still be writing the last line.
                    damage.append(Damage(path, at, 0, 0, f"line {number + 1} cannot be understood"))
        at += len(line) + 1
    return log


def _manifest_document(source: Source) -> dict[str, Any] | None:
    try:
        document = json.loads(source.read(MANIFEST))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AuditError(f"{source.path(MANIFEST)}: {reason(error)}") from None
    except (ValueError, RecursionError):
        raise AuditError(f"{source.path(MANIFEST)}: is not a JSON document: an unfinished dump?") from None
    version = document.get("manifest") if isinstance(document, dict) else None
    if version != 1:
        raise AuditError(f"{source.path(MANIFEST)}: a manifest of version {version}; this one reads version 1")
    return document


def _read_manifest(source: Source) -> dict[tuple[str, str], dict[str, Any]] | None:
    document = _manifest_document(source)
    if document is None:
        return None
    try:
        return {(str(q["vhost"]), str(q["queue"])): q for q in document.get("queues", [])}
    except (TypeError, KeyError):
        raise AuditError(f"{source.path(MANIFEST)}: its list of queues cannot be understood") from None


def _check_manifest(folder: str, entry: dict[str, Any], levels: dict[int, _Found], damage: list[Damage]) -> None:
    """Add damage for each file that the manifest names and that is missing or shorter than it says."""
    there = {path: octets for found in levels.values() for path, octets, _ in found.files.values()}
    files = entry.get("files")
    for file in files if isinstance(files, list) else []:
        if not isinstance(file, dict):
            continue
        rel, octets = str(file.get("path")), file.get("octets")
        if file_number(rel.rpartition("/")[2]) is None:
            continue
        path = rel if rel in there else _join(folder, rel)
        if path not in there:
            damage.append(Damage(path, -1, 0, 0, "the manifest names it, but it is not here",
                                 ("records", "events", "acks")))
        elif isinstance(octets, int) and there[path] < octets:
            damage.append(Damage(path, there[path], 0, 0, f"half copied: {there[path]} of {octets} octets",
                                 ("records", "events", "acks")))

"""The files to audit under a path: queues, their priority levels, their segments, and the files beside these.

A *triple* is a segment with its acks file and its order journal.  The broker moves a settled triple to ``kept/`` file
by file, so for an instant its files lie in two folders::

    ROOT/manifest.json            of a dump
    ROOT/<vhost>/.vhost           ROOT may also be the folder of one vhost, or of one queue
    ROOT/<vhost>/<queue>/.queue   order.jsonl, [prio.NNN/][kept/]{msgs,acks,journal,chain}.N

Skips the folders of queues that do not survive a restart (``transient``).  This module looks at names and sizes of
segments; ``segment`` reads their contents.  Both call read() and never map a file, because a broker may shorten it at
any time.
"""

import errno
import fnmatch
import os
import stat
from functools import lru_cache
from typing import Any, NamedTuple

from brokerd.audit import AuditError, NoSuchQueueError, are_two_files
from brokerd.audit.directory import check_schema, stopped_vhosts, takes_in
from brokerd.audit.properties import Deduplicating, Grouping, deduplicating_of, grouping_of
from brokerd.store import format as layout
from brokerd.store import reading

NAME_FILE = ".vhost"
MANIFEST = "manifest.json"
TRANSIENT_FOLDER = "transient"
FOREVER = (1 << 63) - 1         # ns
CONSUMERS_OCTETS = 192 << 10    # of lines of consumers: of fewer, none was left out when order.jsonl was written anew
KINDS = ("msgs", "acks", "journal", "chain")


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
    """The settings that were in force from ``at`` (ns) on, by order.jsonl; None: none, or not said."""

    at: int
    journal: bool
    limit: int | None
    dead_letters: bool = False
    ttl_ms: int | None = None
    single_active: bool = False
    max_priority: int | None = None
    letters_to: str | None = None       # the queue to which dead letters go; None: it depends on more than the settings
    at_least_once: bool = False
    groups: bool = False                # message groups: order holds in each group, not in the queue
    retry: bool = False                 # returned messages wait: later ones overtake them
    stops: bool = False                 # a message at its limit stops the queue or its group, and lives on
    grouping: Grouping | None = None    # what ``groups`` go by; None: that is not known
    dedup: Deduplicating | None = None  # which messages are duplicates; None: that is not known, or none


class Noted(NamedTuple):
    """The lines of order.jsonl about consumers as a whole.  ``times`` (ns, rising): of its lines of settings and
    consumers, which one thread writes in their order.  ``whole``: no line of a consumer was left out or lost."""

    times: tuple[int, ...] = ()
    whole: bool = False


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
    cut: int | None = None              # ns: what is later is not judged; None: no broker writes (see ``cut``)
    chain: str | None = None            # the hash chain over journal and acks
    followed: bool = False              # its level has a later segment
    stopped: bool = False               # it is of a data directory in which a broker has stopped cleanly


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
    noted: Noted = Noted()


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
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            rest = max(found.st_size - start, 0)
            if length < 0:
                length = rest
            if length > layout.SEGMENT_OCTETS_MAX:
                raise OSError(errno.EFBIG, f"has {length} octets, more than any file that is read whole")
            length = min(length, rest)          # pread() takes as much memory as it is asked to read.
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
        found, stopped = [], stopped_vhosts(self)
        for vhost, queue, folder in _queue_folders(self):
            if glob is None or fnmatch.fnmatchcase(queue, glob) or fnmatch.fnmatchcase(f"{vhost}/{queue}", glob):
                entry = manifest.get((vhost, queue)) if manifest is not None else None
                found.append(_read_queue(self, vhost, queue, folder, entry, stopped=vhost in stopped))
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
    """The source at ``path``; reads only names.  Raises AuditError, one line with the reason."""
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
    check_schema(source, names)
    if MANIFEST in names or "schema_version" in names or any(True for _ in _queue_folders(source)):
        return source
    if any(size < 0 and _has(source, name, NAME_FILE) for name, size in names.items()) or NAME_FILE in names:
        return source
    raise AuditError(f"{path}: no data directory, dump or archive of brokerd, nor a vhost's or queue's folder in one")


def require_match(queues: list[QueueFiles], glob: str | None, source: Source) -> list[QueueFiles]:
    """The queues that were found for ``glob``.  Raises NoSuchQueueError if there is a glob and it matches none."""
    if glob is not None and not queues:
        raise NoSuchQueueError(f"{source.root}: no queue matches {glob!r}")
    return queues


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


def _read_queue(source: Source, vhost: str, queue: str, folder: str, entry: dict[str, Any] | None, *,
                stopped: bool = False) -> QueueFiles:
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
    if stopped and takes_in(source.path(folder), queue):
        triples = [triple._replace(stopped=True) for triple in triples]
    noted = Noted(tuple(sorted(log.times)), bool(log.rules) and not log.lost and log.octets < CONSUMERS_OCTETS)
    return QueueFiles(vhost, queue, folder, settings, log.removed, log.consumers, entry, triples, foreign, damage,
                      rules, noted)


def queue_named(source: Source, beside: QueueFiles, name: str) -> QueueFiles | None:
    """The files of the queue of that name, in the vhost of another one; None: it is not there."""
    folder = _join(beside.folder.rpartition("/")[0], layout.folder_name(name))
    if not beside.folder or _text(source, _join(folder, layout.QUEUE_NAME_FILE)) != name:
        return None
    entry = (_entries(source) or {}).get((beside.vhost, name)) if beside.manifest is not None else None
    return _read_queue(source, beside.vhost, name, folder, entry)


@lru_cache(maxsize=2)
def _entries(source: Source) -> dict[tuple[str, str], dict[str, Any]] | None:
    """The entries of queues in a dump's manifest: read once for all callers."""
    return _read_manifest(source)


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
    """("msgs" | "acks" | "journal" | "chain", number) of a file of a triple; None for any other name."""
    kind, _, digits = name.partition(".")
    if kind in KINDS and len(digits) >= 10 and digits.isascii() and digits.isdigit() and len(digits) <= 20:
        return kind, int(digits)
    return None


def _look(source: Source, folder: str, names: dict[str, int], found: _Found, damage: list[Damage],
          foreign: list[str]) -> None:
    """Sort out the files of one level: its folder, then ``kept`` in it.

    Records move into ``kept`` first.  Of two files of one name that one counts which stands beside its records, and of
    records those that have not moved.
    """
    kept = _join(folder, layout.KEPT_FOLDER)
    inside = _names(source, kept, damage) if names.get(layout.KEPT_FOLDER) == -1 else {}
    moved = {known[1] for known in map(file_number, inside.keys() - names.keys()) if known and known[0] == "msgs"}
    for where, listed, is_kept in ((folder, names, False), (kept, inside, True)):
        for name, octets in sorted(listed.items()):
            path, known = _join(where, name), file_number(name)
            if known is None or octets < 0:
                _stranger(path, name, damage, foreign)
            elif octets > layout.SEGMENT_OCTETS_MAX and known[0] in ("msgs", "acks"):
                foreign.append(path)    # A start puts it aside, too.
                damage.append(Damage(path, -1, 0, 0, f"has {octets} octets, more than such a file may have",
                                     ("records", "events", "acks")))
            elif name not in (inside if where == folder else names) or is_kept == (known[1] in moved):
                found.files[known] = (path, octets, is_kept)
            elif known[0] == "chain":
                foreign.append(path)    # Of two, one is from before a loss of power.
            else:               # Loss of power may bring the old name back.  Recovery leaves this one too.
                read = _join(folder if is_kept else kept, name)
                if source.is_s3 or are_two_files(source.path(path), source.path(read)):
                    damage.append(Damage(path, -1, 0, 0, f"is here twice: {read} is what is read"))
                foreign.append(path)


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
    newest = max((number for kind, number in found.files if kind == "msgs"), default=0)
    for number in sorted({number for _, number in found.files}):
        msgs, acks, journal, chain = (found.files.get((kind, number)) for kind in KINDS)
        if msgs is None:
            if journal is None and acks is None:
                continue        # A chain goes last, or at the next start.
            there = [f for f in (journal, acks) if f is not None]
            if journal is None and not there[0][2]:
                continue        # The broker removes acks after their segment; if it crashes in between, at its start.
            detail = f"{layout.segment_name(number)}, to which it belongs, is missing"
            damage.append(Damage(there[0][0], -1, 0, 0, detail, ("records", "events", "acks")))
            continue
        # A file with holes may say that it is larger than all that is in it.
        octets = sum(min(f[1], layout.SEGMENT_OCTETS_MAX) for f in (msgs, acks, journal) if f is not None)
        triples.append(Triple(
            source.root, vhost, queue, level, number, msgs[2], msgs[0], acks and acks[0], journal and journal[0],
            octets, rules, levels, msgs[2] or dumped, chain=chain and chain[0], followed=number < newest))
    return triples


# --- what stands beside the segments


class _Log:
    """The content of order.jsonl."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.removed: list[dict[str, Any]] = []
        self.consumers: dict[int, dict[str, Any]] = {}
        self.rules: list[Rule] = []
        self.times: list[int] = []      # of the lines of settings and consumers
        self.octets = 0                 # of the lines of consumers
        self.lost = False

    def take(self, line: dict[str, Any], octets: int) -> None:
        """Take one line of so many octets in.  Raises KeyError, TypeError or ValueError for a line that is not the
        broker's."""
        what, at = line["what"], int(line["at"])
        if what == "settings":
            self.settings = line
            rule = _rule(at, line)
            if not self.rules or self.rules[-1][1:] != rule[1:]:
                self.rules.append(rule)
        elif what == "consumer":
            # A consumer that is there when the journal is switched on again has another line.
            former = self.consumers.get(int(line["number"]), {}).get("at", at)
            self.consumers[int(line["number"])] = line | {"at": min(at, former)}
        elif what == "consumer_gone":
            self.consumers.setdefault(int(line["number"]), {})["gone"] = at
        elif what == "removed":
            first, last, level = int(line["first_seq"]), int(line["last_seq"]), int(line["level"])
            self.removed.append(line | {"first_seq": first, "last_seq": last, "level": level})
        elif what == "lost":
            self.lost = True
        if what in ("settings", "consumer", "consumer_gone"):
            self.times.append(at)
            self.octets += octets * (what != "settings")


def _rule(at: int, settings: dict[str, Any]) -> Rule:
    def number(name: str) -> int | None:
        value = settings.get(name)
        return value if isinstance(value, int) and value >= 0 else None

    return Rule(at, bool(settings.get("journal")), number("delivery_limit"),
                settings.get("dead_letter_exchange") is not None, number("message_ttl_ms"),
                bool(settings.get("single_active_consumer")), number("max_priority"), _letters_to(settings),
                bool(settings.get("dead_letter_at_least_once")), settings.get("groups") is not None,
                bool(settings.get("retry")), settings.get("delivery_limit_action") in ("block", "park-group"),
                grouping_of(settings.get("groups")), deduplicating_of(settings.get("deduplication")))


def _letters_to(settings: dict[str, Any]) -> str | None:
    key = settings.get("dead_letter_routing_key")
    return key if isinstance(key, str) and settings.get("dead_letter_exchange") == "" else None


def _read_side_file(source: Source, folder: str, names: dict[str, int], damage: list[Damage]) -> _Log:
    log, path = _Log(), _join(folder, layout.SIDE_FILE)
    if layout.SIDE_FILE not in names:
        return log
    try:
        octets = source.read(path)
    except OSError as error:
        damage.append(Damage(path, -1, 0, 0, f"cannot be read: {reason(error)}"))
        return log
    for each in reading.read_side_lines(octets):
        fault = each.fault
        if each.line is not None:
            try:
                log.take(each.line, len(each.octets))
            except (ValueError, KeyError, TypeError, AttributeError):
                fault = "line {} cannot be understood".format(octets.count(b"\n", 0, each.at) + 1)
        if fault:
            damage.append(Damage(path, each.at, 0, 0, fault))
    return log


def _manifest_document(source: Source) -> dict[str, Any] | None:
    try:
        document = reading.read_json(source.read(MANIFEST))
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
        known = file_number(rel.rpartition("/")[2])
        if known is None:
            continue
        path = rel if rel.startswith(f"{folder}/") else _join(folder, rel)
        if known[0] == "chain":
            continue            # Its own audit compares it with the head that the manifest names.
        if path not in there:
            damage.append(Damage(path, -1, 0, 0, "the manifest names it, but it is not here",
                                 ("records", "events", "acks")))
        elif isinstance(octets, int) and there[path] < octets:
            damage.append(Damage(path, there[path], 0, 0, f"half copied: {there[path]} of {octets} octets",
                                 ("records", "events", "acks")))

"""A backup of the whole data directory as it was at one instant, made while messages come and go.

    out/manifest.json       every file with its digest (SHA-256): written last, so only a whole backup has one
    out/...                 the files of the data directory, in their places: see store/format

The loop takes the cut of every durable queue (``copying``), reads the small files that are written over in place, and
gives all others a second name (a hard link) in ``<data_dir>/dumping``.  It does so in pieces, and once more for queues
that have changed since.  When few are left, it takes these in one turn: that is the instant, and every other queue is
still as its cut shows it.  So a transaction, or a change of messages that concerns several queues, is in the backup
whole or not at all: its commit log is in the same cut.  The thread copies everything then, queue by queue.

A backup is also a dump: the audit reads it.  What a restart does not bring back is not in it: queues that are not
durable, spare segments, garbage.  ``cli/ctl_restore`` makes a data directory of it, and checks every file.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from socket import gethostname
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd import __version__
from brokerd.operations import DUMPING_FOLDER, OperationError
from brokerd.operations.copying import CHUNK_OCTETS, Copier, Cut, copy_chunks, take_cut
from brokerd.operations.dump import MANIFEST, MANIFEST_VERSION, PARTIAL, checked_out, entry_of, room_in, sync_all
from brokerd.operations.jobs import IN_THREAD, ON_LOOP, Pace, Steps
from brokerd.store import format as layout
from brokerd.store.garbage import remove_tree
from brokerd.store.settled_segments import make_folders

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.queues.queue import Queue

ROUNDS_MOST = 5
AT_ONCE = 20  # queues whose cut is taken in one turn, unless more change all the time
STATE = ("level", "number", "generation", "end", "records", "settled", "entries", "events", "sealed", "capacity")
READ_MOST = 1 << 30  # of a file that is read at the cut
LEFT_OUT = frozenset({layout.LOCK_FILE, layout.RUNNING_FILE, layout.VHOST_DELETED_FILE})
OF_COPIER = frozenset({layout.QUEUE_NAME_FILE, layout.ORDER_FILE, layout.SIDE_FILE})  # in a queue's folder
IN_PLACE = frozenset({layout.DEFINITIONS_FILE, layout.READERS_FILE})  # written over, or at a place that zeros follow


class _Other(NamedTuple):
    """A file that no cut of a queue has: its octets, or another name of it."""

    path: str  # relative to the data directory
    octets: bytes | None
    link: str
    size: int


class _Taken(NamedTuple):
    """A queue as it was at one moment.  ``state`` tells whether it is so still."""

    cut: Cut
    links: str  # the folder of the second names
    others: list[_Other]
    state: list[tuple[int, ...]]


class Backup:
    """The job.  Its answer is ``operations.node.BackedUp``; its progress is that of a dump.

    Raises OperationError (400, 409); while it runs, OperationError (409, 500) and OSError.
    """

    def __init__(self, node: "Node", out: str) -> None:
        self._node = node
        self._out = checked_out(out, node.data.path)
        self._partial = self._out + PARTIAL
        self._links = os.path.join(node.data.path, DUMPING_FOLDER)
        self._copying: dict[Queue, None] = {}  # that write no file over, because it is not copied yet
        self._taken: dict[Queue, _Taken] = {}
        self._folders = self._linked = 0
        self._others: list[_Other] = []
        self._files: list[dict[str, Any]] = []  # of the manifest: those that belong to no queue's entry
        self._entries: list[str] = []
        self._cut_ns = self._segments = self._octets = 0

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        node = self._node
        yield IN_THREAD
        self._make(self._links, "another dump or backup is under way")
        try:
            make_folders(os.path.dirname(self._partial), node.disk)
            self._make(self._partial, f"{self._partial} is there, of a backup that did not end: remove it first")
            try:
                yield ON_LOOP
                error = yield from self._take()
                yield IN_THREAD
                if error is not None:
                    raise error
                for number, (queue, taken) in enumerate(self._taken.items(), 1):
                    yield from self._copy(taken, number)
                    yield ON_LOOP
                    queue.copying = False
                    del self._copying[queue]
                    yield IN_THREAD
                yield from self._copy_others()
                self._finish()
            except BaseException:
                remove_tree(self._partial)
                raise
        finally:
            remove_tree(self._links)
        return {"out": self._out, "queues": len(self._entries), "segments": self._segments, "octets": self._octets,
                "cut": self._cut_ns}  # fmt: skip

    def clean_up(self) -> None:
        """As ``jobs.Job``."""
        for queue in self._copying:
            queue.copying = False
        self._copying.clear()

    def _make(self, path: str, taken: str) -> None:
        try:
            self._node.disk.make_directory(path)
        except FileExistsError:
            raise OperationError(taken, 409) from None

    # --- on the loop

    def _take(self) -> Steps:
        """Take the cut.  An error is returned, and the thread raises it, because undoing takes time."""
        try:
            for _ in range(ROUNDS_MOST):
                changed = yield from self._changed()
                if len(changed) <= AT_ONCE:
                    break
                yield from self._take_in_pieces(changed)
            self._take_at_once()
        except Exception as error:
            return error
        return None

    def _durable(self) -> "Iterator[Queue]":
        for vhost in self._node.vhosts.values():
            yield from [queue for queue in vhost.queues.values() if queue.durable]

    def _changed(self) -> Steps:
        pace, changed = Pace(), []
        for queue in list(self._durable()):
            if not self._is_taken(queue):
                changed.append(queue)
            if pace.is_over():
                yield ON_LOOP
        return changed

    def _is_taken(self, queue: "Queue") -> bool:
        """Whether the cut that was taken of the queue shows it as it is now."""
        taken = self._taken.get(queue)
        if taken is None or queue.stream is not None:  # The file of a stream's readers changes without its segments.
            return False
        return taken.state == _state(queue)

    def _take_in_pieces(self, queues: "list[Queue]") -> Steps:
        pace = Pace()
        for queue in queues:
            if not queue.deleted:
                self._take_queue(queue)
            if pace.is_over():
                yield ON_LOOP

    def _take_at_once(self) -> None:
        """The instant: in one turn, all that has changed since it was taken."""
        node = self._node
        self._cut_ns = node.clock.epoch_ns()
        durable = list(self._durable())
        for queue in durable:
            if not self._is_taken(queue):
                self._take_queue(queue)
        self._taken = {queue: self._taken[queue] for queue in durable}
        for queue, taken in self._taken.items():
            taken.cut.facts["cut"] = max(self._cut_ns, queue.last_ts)
            self._others += taken.others
        for vhost in node.vhosts.values():
            self._others += self._take_files(os.path.basename(vhost.directory))
        self._others += self._take_files("")

    def _take_queue(self, queue: "Queue") -> None:
        queue.copying = True
        self._copying[queue] = None
        self._folders += 1
        links = os.path.join(self._links, str(self._folders))
        os.mkdir(links)
        cut = take_cut(queue, links, self._cut_ns)
        folder, others = os.path.relpath(queue.directory, self._node.data.path), list[_Other]()
        for path in ("", *(layout.priority_folder(level) for level in range(1, queue.max_priority + 1))):
            with suppress(FileNotFoundError):
                others += self._take_files(os.path.join(folder, path) if path else folder)
        self._taken[queue] = _Taken(cut, links, others, _state(queue))

    def _take_files(self, folder: str) -> list[_Other]:
        """The regular files of a folder that no cut has."""
        of_queue, taken = folder.count("/") > 0, list[_Other]()
        with os.scandir(os.path.join(self._node.data.path, folder)) as found:
            for each in found:
                if _belongs(each.name, of_queue=of_queue) and each.is_file(follow_symlinks=False):
                    taken += self._take_file(os.path.join(folder, each.name), each.path)
        return taken

    def _take_file(self, path: str, source: str) -> list[_Other]:
        name = os.path.basename(path)
        if name in IN_PLACE or name.startswith(layout.SHARED_COMMIT_PREFIX):
            octets = self._node.disk.read(source, READ_MOST)
            return [_Other(path, octets, "", len(octets))]
        self._linked += 1
        link = os.path.join(self._links, f"file.{self._linked}")
        try:
            os.link(source, link)
        except FileNotFoundError:  # The thread has just removed it.
            return []
        return [_Other(path, None, link, os.stat(link).st_size)]

    # --- in the thread

    def _copy(self, taken: _Taken, number: int) -> Iterator[dict[str, Any]]:
        node, cut, links = self._node, taken.cut, taken.links
        facts = cut.facts
        folder = os.path.join(self._partial, facts["folder"])
        make_folders(os.path.dirname(folder), node.disk)
        copier = Copier(cut, folder, links, node.disk, node.clock.monotonic)
        far = {"vhost": facts["vhost"], "queue": facts["queue"], "number": number, "queues": len(self._taken)}
        yield {**far, "octets": self._octets}
        for _ in copier.copy(lambda: room_in(node, self._partial)):
            yield {**far, "octets": self._octets + copier.octets}
        self._octets += copier.octets
        self._segments += copier.segments
        self._entries.append(entry_of(cut, copier))
        remove_tree(links)

    def _copy_others(self) -> Iterator[str]:
        for each in self._others:
            path = os.path.join(self._partial, each.path)
            os.makedirs(os.path.dirname(path), 0o750, exist_ok=True)
            digest, octets = self._write(path, each)
            self._files.append({"path": each.path, "octets": octets, "sha256": digest})
            self._octets += octets
            yield IN_THREAD

    def _write(self, path: str, each: _Other) -> tuple[str, int]:
        target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            if each.octets is not None:
                self._node.disk.pwrite(target, each.octets, 0)
            else:
                source = os.open(each.link, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    for _ in copy_chunks(source, target, each.size):
                        pass
                finally:
                    os.close(source)
            return digest_of(target)
        finally:
            os.close(target)

    def _finish(self) -> None:
        """Sync everything, write the manifest last, then rename the backup to the name that was asked for."""
        import json

        node, disk = self._node, self._node.disk
        sync_all(disk, self._partial)
        head = {
            "manifest": MANIFEST_VERSION, "brokerd": __version__, "backup": True, "cut": self._cut_ns,
            "finished": node.clock.epoch_ns(), "host": gethostname(), "data_dir": node.data.path,
            "files": self._files,
        }  # fmt: skip
        text = json.dumps(head)[:-1] + ', "queues": [\n' + ",\n".join(self._entries) + "\n]}\n"
        disk.replace(os.path.join(self._partial, MANIFEST), text.encode())
        disk.rename(self._partial, self._out)
        disk.sync_directory(os.path.dirname(self._out))


def _belongs(name: str, *, of_queue: bool) -> bool:
    """Whether a backup has a file of that name, beside what the cuts of queues have."""
    if name in LEFT_OUT or name.endswith((".tmp", ".new", ".damaged")):
        return False
    if not of_queue:
        return True
    return name not in OF_COPIER and name.partition(".")[0] not in ("msgs", "acks", "journal", "chain", "spare")


def _state(queue: "Queue") -> list[tuple[int, ...]]:
    """What is another value after each change of the queue's files: how much of each segment and of its acks and
    journal there is."""
    return [tuple([segment[name] for name in STATE]) for segment in queue.segments()]


def digest_of(fd: int) -> tuple[str, int]:
    """SHA-256 in hex, and the octets, of an open file from its begin on.  Raises OSError."""
    from hashlib import sha256  # A broker that makes no backup does without.

    hash_, done = sha256(), 0
    while octets := os.pread(fd, CHUNK_OCTETS, done):
        hash_.update(octets)
        done += len(octets)
    return hash_.hexdigest(), done

"""A consistent copy of queues' files, made while messages come and go.

    out/manifest.json                       the list of all files: written last, so only a whole copy has one
    out/<vhost>/.vhost
    out/<vhost>/<queue>/                    .queue, order, order.jsonl, [prio.NNN/][kept/]{msgs,acks,journal,chain}.N,
                                            of a stream readers and index.N

Each queue is copied as it was at one instant, its *cut*.  The loop takes down the lengths of all files, and gives each
file a second name (a hard link) in ``<data_dir>/dumping``, so that its octets stay when the first name goes.  Files
grow only at their end, and no file is written over until its queue is copied (``Queue.copying``).  The thread then
copies so many octets of each file, and writes the words of the headers as they were at the cut.  Settled segments in
``kept`` do not change, so the thread gives them their second names.  If retention removes one first, the copy lacks it,
and the copied order.jsonl says so.

Queues that are not durable have no files with names, and are left out.  Only one dump runs at a time, because the
folder ``dumping`` can be made only once; if a crash left it, the next start removes it (``server/control``).  The copy
is made as ``out.partial``, and renamed when all of it is on disk.
"""

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from socket import gethostname
from typing import TYPE_CHECKING, Any

from brokerd import __version__
from brokerd.operations import DUMPING_FOLDER, OperationError
from brokerd.operations.copying import Copier, Cut, take_cut
from brokerd.operations.files import first_kept_seq
from brokerd.operations.jobs import IN_THREAD, ON_LOOP, Steps
from brokerd.store import reading
from brokerd.store.garbage import remove_tree
from brokerd.store.settled_segments import make_folders

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.queues.queue import Queue

PARTIAL = ".partial"
MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
VHOST_FILE = ".vhost"


class Dump:
    """A job: copy the queues that ``glob`` names ("": all) to the folder ``out``.  The manifest names a digest of each
    file, unless ``digests`` is False.  ``is_own``: the broker itself has chosen the folder.

    Its answer is ``operations.queue.Dumped``.  Its progress is {"vhost", "queue", "number", "queues", "octets"} of the
    queue that it copies.  Raises OperationError (400, 404, 409); while it runs, OperationError (409, 500) and OSError.
    """

    __slots__ = ("_begun", "_copied", "_copying", "_digests", "_entries", "_links", "_node", "_out", "_partial",
                 "_queues", "_segments", "_skipped", "_vhosts")  # fmt: skip

    def __init__(self, node: "Node", glob: str, out: str, *, digests: bool = True, is_own: bool = False) -> None:
        self._node = node
        self._digests = digests
        self._out = out if is_own else checked_out(out, node.data.path)
        self._partial = self._out + PARTIAL
        self._links = os.path.join(node.data.path, DUMPING_FOLDER)
        self._begun = node.clock.epoch_ns()
        self._skipped: list[dict[str, str]] = []
        self._queues = self._chosen(glob)
        self._copying: Queue | None = None
        self._entries: list[str] = []  # of the manifest, one a queue, as JSON
        self._vhosts: set[str] = set()  # folders that are there
        self._segments = self._copied = 0

    def _chosen(self, glob: str) -> "list[Queue]":
        queues = []
        for vhost in self._node.vhosts.values():
            for queue in vhost.queues.values():
                if not matches(glob, vhost.name, queue.name):
                    continue
                if queue.durable:
                    queues.append(queue)
                else:
                    self._skip(queue, "it is not durable")
        if not queues:
            what = f"no queue is called like '{glob}'" if glob else "there is no queue"
            raise OperationError(f"{what}{', but for some that are not durable' if self._skipped else ''}", 404)
        return queues

    def _skip(self, queue: "Queue", why: str) -> None:
        self._skipped.append({"vhost": queue.vhost_name, "queue": queue.name, "why": why})

    # --- the job

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        yield IN_THREAD
        self._make(self._links, "another dump is under way")
        try:
            make_folders(os.path.dirname(self._partial), self._node.disk)
            self._make(self._partial, f"{self._partial} is there, of a dump that did not end: remove it first")
            try:
                for number, queue in enumerate(self._queues, 1):
                    yield ON_LOOP
                    cut = self._cut(queue)
                    yield IN_THREAD
                    yield from self._copy(cut, number)
                self._finish()
            except BaseException:
                remove_tree(self._partial)
                raise
        finally:
            remove_tree(self._links)
        return {"out": self._out, "queues": len(self._entries), "segments": self._segments, "octets": self._copied,
                "skipped": self._skipped}  # fmt: skip

    def clean_up(self) -> None:
        """As ``jobs.Job``."""
        if self._copying is not None:
            self._copying.copying = False
            self._copying = None

    def _make(self, path: str, taken: str) -> None:
        try:
            self._node.disk.make_directory(path)
        except FileExistsError:
            raise OperationError(taken, 409) from None

    # --- on the loop

    def _cut(self, queue: "Queue") -> Cut | Exception | None:
        """Take the cut of a queue.  An error is returned, and the thread raises it, because undoing takes time."""
        self.clean_up()
        vhost = self._node.vhosts.get(queue.vhost_name)
        if vhost is None or vhost.queues.get(queue.name) is not queue:
            self._skip(queue, "it was deleted meanwhile")
            return None
        self._copying = queue
        queue.copying = True
        try:
            return take_cut(queue, self._links, self._node.clock.epoch_ns())
        except Exception as error:
            return error

    # --- in the thread

    def _copy(self, cut: Cut | Exception | None, number: int) -> Iterator[dict[str, Any]]:
        if cut is None:
            return
        if isinstance(cut, Exception):
            raise cut
        vhost, name, folder = cut.facts["vhost"], cut.facts["queue"], cut.facts["folder"]
        self._vhost_folder(vhost, folder.partition("/")[0])
        node = self._node
        copier = Copier(cut, os.path.join(self._partial, folder), self._links, node.disk, node.clock.monotonic,
                        digests=self._digests)  # fmt: skip
        far = {"vhost": vhost, "queue": name, "number": number, "queues": len(self._queues)}
        yield {**far, "octets": self._copied}
        for _ in copier.copy(self._room):
            yield {**far, "octets": self._copied + copier.octets}
        self._copied += copier.octets
        self._segments += copier.segments
        self._entries.append(entry_of(cut, copier))
        for link in os.listdir(self._links):
            os.unlink(os.path.join(self._links, link))

    def _vhost_folder(self, vhost: str, folder: str) -> None:
        if folder not in self._vhosts:
            self._vhosts.add(folder)
            path = os.path.join(self._partial, folder)
            self._node.disk.make_directory(path)
            self._node.disk.replace(os.path.join(path, VHOST_FILE), vhost.encode("utf-8", "surrogateescape"))

    def _room(self) -> int:
        return room_in(self._node, self._partial)

    def _finish(self) -> None:
        """Sync everything, write the manifest last, then rename the copy to the name that was asked for."""
        import json

        node, disk = self._node, self._node.disk
        sync_all(disk, self._partial)
        head = {
            "manifest": MANIFEST_VERSION, "brokerd": __version__, "cut": self._begun,
            "finished": node.clock.epoch_ns(), "host": gethostname(), "data_dir": node.data.path,
        }  # fmt: skip
        text = json.dumps(head)[:-1] + ', "queues": [\n' + ",\n".join(self._entries) + "\n]}\n"
        disk.replace(os.path.join(self._partial, MANIFEST), text.encode())
        disk.rename(self._partial, self._out)
        disk.sync_directory(os.path.dirname(self._out))


def room_in(node: "Node", path: str) -> int:
    """Octets that a copy may write in ``path``.  On the broker's own filesystem this leaves enough free that no alarm
    blocks publishers."""
    free = node.disk.free_octets(path)
    if os.stat(path).st_dev == os.stat(node.data.path).st_dev:
        free -= node.settings.free_disk_min_octets
    return free


def matches(glob: str, vhost: str, name: str) -> bool:
    """Whether ``glob`` matches a queue's name, or its vhost/name; "" matches every queue."""
    return not glob or fnmatchcase(name, glob) or fnmatchcase(f"{vhost}/{name}", glob)


def is_name(path: str) -> bool:
    """Whether a file can have this name: JSON may bring half of a pair of surrogates."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def checked_out(out: str, data_dir: str) -> str:
    """``out`` as a normal path, if the dump can be made there.  Raises OperationError (400, 409)."""
    if not os.path.isabs(out) or "\0" in out or not is_name(out):
        raise OperationError(f"{out!r} is not an absolute path", 400)
    out = os.path.normpath(out)
    above = os.path.dirname(out)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise OperationError(f"{above} is no folder", 400)
    inside = os.path.join(os.path.realpath(data_dir), "")
    if os.path.join(os.path.realpath(out), "").startswith(inside):
        raise OperationError(f"{out} is in the data directory", 400)
    try:
        if os.listdir(out):
            raise OperationError(f"{out} is not empty", 409)
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        raise OperationError(f"{out} is there, and is no folder", 409) from None
    except OSError as error:
        raise OperationError(f"{out}: {error.strerror}", 400) from None
    return out


def entry_of(cut: Cut, copier: Copier) -> str:
    """A queue's entry in the manifest."""
    import json

    from brokerd.store import side_file

    facts = cut.facts
    settings = json.loads(side_file.encode(facts["settings"]))  # AMQP's values in JSON's
    entry = facts | {
        "settings": settings,
        "arguments": settings["arguments"],
        "policy": settings["policy"],
        "first_kept_seq": first_kept_seq(copier.folder, cut.max_priority, cut.live) or facts["next_seq"],
        "files": [file_entry(f"{facts['folder']}/{path}", octets, digest) for path, octets, digest in copier.files],
    }
    if copier.digests:
        # With the name of its vhost the entry covers all that is read of the queue.
        name = facts["vhost"].encode("utf-8", "surrogateescape")
        path = f"{facts['folder'].partition('/')[0]}/{VHOST_FILE}"
        entry["files"].append(file_entry(path, len(name), reading.sha256(name).hex()))
    if copier.chains:
        entry["chains"] = [{"path": f"{facts['folder']}/{path}", "blocks": blocks, "head": head}
                           for path, blocks, head in copier.chains]  # fmt: skip
    if cut.missing:
        entry["missing"] = cut.missing
    return json.dumps(entry)


def file_entry(path: str, octets: int, digest: str) -> dict[str, Any]:
    return {"path": path, "octets": octets} | ({"sha256": digest} if digest else {})


def sync_all(disk: Any, folder: str) -> None:
    """Sync everything in a folder by one sync of its filesystem."""
    fd = disk.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        disk.syncfs(fd, folder)
    except OSError as error:
        from errno import ENOSYS

        if error.errno != ENOSYS:
            raise
        os.sync()
    finally:
        disk.close(fd)

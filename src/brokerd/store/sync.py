"""Group commit: one sync serves all callers that wait.

    request / wait  →  begin (on the loop)  →  fdatasync (in a thread)  →  finish (on the loop)

There are two ways.  ``sync_files`` has threads of the data plane, which never need Python's lock: for a few files, and
for one filesystem that stands for many.  ``submit`` has a thread of Python, for all else.

A caller that comes while a sync is under way waits for the next one, which begins when the first ends.  A failed sync
is fatal: the kernel may have dropped the pages, so a second sync would report success although they are lost.  Knows
neither loop nor executor: it is given ``submit`` and ``soon``.

While the rounds of the loop are quick, a sync that is asked for begins one round later: the round reads what clients
have sent meanwhile, and the sync covers that too.  A publisher with a window of confirms then needs fewer syncs.  While
other clients' work makes the rounds long, the sync begins at once, and the disk works beside them.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from brokerd.store.disk import NO_DESCRIPTORS, SYNC_DESCRIPTORS, SYNCFS_FROM_FILES, Disk

Callback = Callable[[], object]
Done = Callable[[BaseException | None], object]
Files = list[tuple[int, str]]  # descriptor and path; -1: no descriptor was left for it
SYNC_FILES_MOST = 16  # of one call of sync_files
QUICK_NS = 250_000  # A round of the loop that takes less is quick.  One connection with much to do takes 1 ms of each.
SyncFiles = Callable[[Files, bool, Done], object]


class Commits(Protocol):
    """The part of plane.Core that this module uses."""

    @property
    def device(self) -> int: ...
    def begin_sync(self, descriptors: int) -> Files: ...
    def end_sync(self) -> None: ...
    def turn(self) -> None: ...


class Log(Protocol):
    """The part of a definitions log that this module uses."""

    path: str
    dirty: bool

    def fileno(self) -> int: ...


class Follower(Protocol):
    """A file that must be written after everything else is synced, because it says what the sync covered."""

    def begin_sync(self) -> Callback:
        """Called on the loop when a sync begins.  The thread calls the function that this returns as soon as everything
        else is on disk; that function raises OSError."""


class SyncThread:
    """One thread for work that must not hold up the loop.

    ``call_soon_threadsafe`` is the loop's.  This is quicker than an executor: no lock, no future, one wake-up in each
    direction (about 30 µs there and back).
    """

    __slots__ = ("_call_soon_threadsafe", "_thread", "_work")

    def __init__(self, call_soon_threadsafe: Callable[..., object], name: str = "sync") -> None:
        self._call_soon_threadsafe = call_soon_threadsafe
        self._work: SimpleQueue[tuple[Callback, Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callback, done: Done) -> None:
        """Run ``work()`` in the thread, in order of submission; then ``done(error or None)`` on the loop."""
        self._work.put((work, done))

    def stop(self) -> None:
        """Finish what was submitted, and end the thread."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            work, done = job
            error: BaseException | None = None
            try:
                work()
            except BaseException as caught:  # The loop must hear of every error.
                error = caught
            try:
                self._call_soon_threadsafe(done, error)
            except RuntimeError:
                return          # The loop is closed, so no caller waits any more.


class GroupCommit:
    """Syncs for confirms (``request``) and for definitions (``wait``).

    ``submit(work, done)`` runs work() in one thread and then done(error or None) on the loop.  ``sync_files(files,
    filesystem, done)`` syncs and closes up to SYNC_FILES_MOST files, each or by their filesystem, then calls done so;
    without it ``submit`` does all.
    ``soon(callback)`` runs a callback in the loop's next round, outside of the plane's turn; ``now()`` is a clock in ns
    that never goes back.  ``fatal(error)`` is called when a sync has failed; after that no caller gets an answer.
    ``everything()`` syncs the filesystem of the data directory, and needs no descriptor for it; the thread calls it if
    the process has none left.  ``sync=False`` (--no-sync): nothing is synced, and all callers are answered at once.
    """

    __slots__ = ("_core", "_directories", "_disk", "_failed", "_fatal", "_followers", "_logs", "_now", "_quick",
                 "_round_began", "_scheduled", "_soon", "_submit", "_sync", "_sync_everything", "_sync_files",
                 "_under_way", "_waiting", "_wanted", "sync_count")

    def __init__(self, core: Commits, disk: Disk, *, submit: Callable[[Callback, Done], object],
                 soon: Callable[[Callback], object], fatal: Callable[[BaseException], object],
                 sync_files: SyncFiles | None = None, everything: Callback | None = None,
                 sync: bool = True, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._core = core
        self._disk = disk
        self._submit = submit
        self._sync_files = sync_files
        self._soon = soon
        self._fatal = fatal
        self._sync_everything = everything
        self._sync = sync
        self._waiting: list[Callback] = []
        self._logs: set[Log] = set()
        self._followers: dict[Follower, None] = {}
        self._directories: set[str] = set()
        self._wanted = False        # A sync was requested since the last begin.
        self._scheduled = False     # _begin is on its way.
        self._under_way = False
        self._failed = False
        self._now = now
        self._round_began = 0       # ns; of the round that is measured
        self._quick = True          # The round measured last was.
        self.sync_count = 0         # Since start.

    def request(self) -> None:
        """Have a sync begin soon: a confirm waits (plane.Core's ``request_sync``).  Safe to call inside a turn."""
        self._wanted = True
        if not self._under_way and not self._scheduled:
            self._scheduled = True
            self._soon(self._begin_or_gather)

    def wait(self, callback: Callback, log: Log | None = None) -> None:
        """Call ``callback()`` when everything that was written before now is on disk, including ``log``.

        With --no-sync it is called before this returns.
        """
        if not self._sync:
            callback()
            return
        self._waiting.append(callback)
        if log is not None and log.dirty:
            self._logs.add(log)
        self.request()

    def follow(self, follower: Follower) -> None:
        """Sync ``follower`` at the end of the next sync.  This does not ask for a sync: another caller does."""
        if self._sync:
            self._followers[follower] = None

    def sync_directory(self, path: str) -> None:
        """Have the names in ``path`` synced before the next ``wait`` is answered."""
        self._directories.add(path)

    @property
    def idle(self) -> bool:
        """Whether no caller waits and no sync is under way."""
        return not (self._under_way or self._scheduled or self._wanted)

    def _begin_or_gather(self) -> None:
        self._round_began = self._now()
        if self._quick:
            self._soon(self._begin_gathered)
        else:
            self._begin()
            self._soon(self._measure_round)

    def _begin_gathered(self) -> None:
        self._measure_round()
        self._begin()

    def _measure_round(self) -> None:
        self._quick = self._now() - self._round_began < QUICK_NS

    def _begin(self) -> None:
        self._scheduled = False
        if self._failed:
            return
        self._wanted = False
        waiting, self._waiting = self._waiting, []
        files: Files = []
        messages = 0
        try:
            files += self._core.begin_sync(SYNC_DESCRIPTORS)
            messages = len(files)
            for path in self._directories:
                with contextlib.suppress(FileNotFoundError):  # Its vhost was deleted meanwhile.
                    files.append((self._disk.lend_directory(path), path + "/"))
            for log in self._logs:
                if log.dirty:
                    files.append((self._disk.lend(log.fileno()), log.path))
                    log.dirty = False
            last = [follower.begin_sync() for follower in self._followers]
        except OSError as error:
            self._close(files)
            self._fail(error)
            return
        self._logs.clear()
        self._followers.clear()
        self._directories.clear()
        if not self._sync:
            self._close(files)
            self._answer(waiting)
            return
        self._under_way = True

        done = partial(self._end, waiting)
        lent = [file for file in files if file[0] >= 0]
        if self._sync_files is None or last or not 0 < len(lent) <= SYNC_FILES_MOST:
            self._submit(partial(self._work, files, last), done)
        elif len(files) < SYNCFS_FROM_FILES and len(lent) == len(files):
            self._sync_files(files, False, done)
        elif self._are_on_one_filesystem(files, messages):
            self._sync_files(lent, True, done)
        else:
            self._submit(partial(self._work, files, last), done)

    def _are_on_one_filesystem(self, files: Files, messages: int) -> bool:
        """Whether one filesystem has them all.  The plane knows that of its own, the first so many ``messages``."""
        device = self._core.device
        return device != 0 and all(fd >= 0 and self._disk.device(fd) == device for fd, _ in files[messages:])

    def _work(self, files: Files, last: list[Callback]) -> None:
        """The work of the thread."""
        try:
            self._carry_out(lambda: self._disk.sync_all(files))
            for sync in last:
                self._carry_out(sync)
        finally:
            self._close(files)

    def _end(self, waiting: list[Callback], error: BaseException | None) -> None:
        self._under_way = False
        if error is not None:
            self._fail(error)
            return
        self._answer(waiting)
        if self._wanted and not self._scheduled:
            self._scheduled = True
            self._begin()

    def _carry_out(self, sync: Callback) -> None:
        try:
            sync()
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS or self._sync_everything is None:
                raise
            self._sync_everything()

    def _answer(self, waiting: list[Callback]) -> None:
        self.sync_count += 1
        self._core.end_sync()
        for callback in waiting:
            callback()
        self._core.turn()

    def _close(self, files: Files) -> None:
        for fd, _ in files:
            if fd >= 0:
                self._disk.close(fd)

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._waiting.clear()
        self._logs.clear()
        self._fatal(error)

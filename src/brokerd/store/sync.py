"""Group commit: one sync for all that waited, however many they are.

    request / wait  →  begin (on the loop)  →  fdatasync (in a thread)  →  finish (on the loop)

What comes while one sync is under way waits for the next, which begins when that one
ends.  A sync that fails is fatal: the kernel may have dropped the pages, so that a
second try would succeed and lie.  Knows neither loop nor executor: it is given
``submit`` and ``soon``.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from brokerd.store.disk import Disk

Callback = Callable[[], object]
Done = Callable[[BaseException | None], object]


class Commits(Protocol):
    """What of plane.Core is used here."""

    def begin_sync(self) -> list[tuple[int, str]]: ...
    def end_sync(self) -> None: ...
    def turn(self) -> None: ...


class Log(Protocol):
    """What of a definitions log is used here."""

    path: str
    dirty: bool

    def fileno(self) -> int: ...


class Follower(Protocol):
    """Something that may say only after a sync what the sync covers."""

    def begin_sync(self) -> Callback:
        """On the loop, when a sync begins; what it returns is called in the thread when all else is on disk, and
        raises OSError."""


class SyncThread:
    """One thread that does what must not hold up the loop.

    ``call_soon_threadsafe`` is the loop's.  Half the way of an executor's future: no
    lock, no future, one wake-up each way (about 30 µs there and back).
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
            except BaseException as caught:  # Whatever it is, the loop must hear of it.
                error = caught
            try:
                self._call_soon_threadsafe(done, error)
            except RuntimeError:
                return          # The loop is closed, so no caller waits any more.


class GroupCommit:
    """Syncs for confirms (``request``) and for definitions (``wait``).

    ``submit(work, done)`` runs work() in one thread and then done(error or None) on the
    loop; ``soon(callback)`` runs a callback later on the loop (not from inside the plane's
    turn); ``fatal(error)`` is told of a failed sync, after which nothing is answered any
    more.  ``sync=False`` (--no-sync): nothing is synced, and all is answered at once.
    """

    __slots__ = ("_core", "_directories", "_disk", "_failed", "_fatal", "_followers", "_logs", "_scheduled", "_soon",
                 "_submit", "_sync", "_under_way", "_waiting", "_wanted", "syncs")

    def __init__(self, core: Commits, disk: Disk, *, submit: Callable[[Callback, Done], object],
                 soon: Callable[[Callback], object], fatal: Callable[[BaseException], object],
                 sync: bool = True) -> None:
        self._core = core
        self._disk = disk
        self._submit = submit
        self._soon = soon
        self._fatal = fatal
        self._sync = sync
        self._waiting: list[Callback] = []
        self._logs: set[Log] = set()
        self._followers: dict[Follower, None] = {}
        self._directories: set[str] = set()
        self._wanted = False        # A sync was requested since the last begin.
        self._scheduled = False     # _begin is on its way.
        self._under_way = False
        self._failed = False
        self.syncs = 0              # Done since start.

    def request(self) -> None:
        """plane.Core's ``request_sync``: a confirm waits.  Safe to call from inside a turn."""
        self._wanted = True
        if not self._under_way and not self._scheduled:
            self._scheduled = True
            self._soon(self._begin)

    def wait(self, callback: Callback, log: Log | None = None) -> None:
        """Call ``callback()`` when all that was written before now is on disk, ``log`` included.

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
        """Have ``follower`` synced after all else with the next sync, which somebody else asks for."""
        if self._sync:
            self._followers[follower] = None

    def sync_directory(self, path: str) -> None:
        """The names in ``path`` are on disk before the next ``wait`` is answered."""
        self._directories.add(path)

    @property
    def idle(self) -> bool:
        """Whether no caller waits and no sync is under way."""
        return not (self._under_way or self._scheduled or self._wanted)

    def _begin(self) -> None:
        self._scheduled = False
        if self._failed:
            return
        self._wanted = False
        waiting, self._waiting = self._waiting, []
        files: list[tuple[int, str]] = []
        try:
            files += self._core.begin_sync()
            for path in self._directories:
                with contextlib.suppress(FileNotFoundError):  # Its vhost was deleted meanwhile.
                    files.append((self._disk.open(path, os.O_RDONLY | os.O_DIRECTORY), path + "/"))
            for log in self._logs:
                if log.dirty:
                    files.append((os.dup(log.fileno()), log.path))
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

        def work() -> None:
            try:
                self._disk.sync_all(files)
                for sync in last:
                    sync()
            finally:
                self._close(files)

        def done(error: BaseException | None) -> None:
            self._under_way = False
            if error is not None:
                self._fail(error)
                return
            self._answer(waiting)
            if self._wanted and not self._scheduled:
                self._scheduled = True
                self._begin()

        self._submit(work, done)

    def _answer(self, waiting: list[Callback]) -> None:
        self.syncs += 1
        self._core.end_sync()
        for callback in waiting:
            callback()
        self._core.turn()

    def _close(self, files: list[tuple[int, str]]) -> None:
        for fd, _ in files:
            self._disk.close(fd)

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._waiting.clear()
        self._logs.clear()
        self._fatal(error)

"""The threads beside the loop: one syncs files for confirms, one does slow work.

The callers bring the work.  No code here touches a queue or a connection.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from brokerd import plane
from brokerd.store.sync import Done, Files, SyncThread


class FileSyncs:
    """Syncs of a few files or of a filesystem, one after the other, in threads of the data plane.

    A thread of Python would wait for Python's lock when it begins and after each sync, and the loop would wait for the
    lock while the thread ends its work.
    """

    __slots__ = ("_done", "_loop", "_syncer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: Done | None = None
        self._syncer = plane.Syncer()
        loop.add_reader(self._syncer.fileno(), self._finish)

    def begin(self, files: Files, filesystem: bool, done: Done) -> None:
        """Sync and close 1 to 16 files, each or by the ``filesystem`` that has them all, then call
        ``done(error or None)`` on the loop.  One sync at a time."""
        self._done = done
        self._syncer.begin(files, filesystem)

    def _finish(self) -> None:
        error: OSError | None = None
        try:
            if not self._syncer.finish():
                return
        except OSError as failed:
            error = failed
        done, self._done = self._done, None
        assert done is not None
        done(error)

    def stop(self) -> None:
        """Finish the sync that is under way, and end the thread."""
        self._loop.remove_reader(self._syncer.fileno())
        self._syncer.stop()


class SlowThreads:
    """Up to ``most`` threads for work that waits for other machines; they start as they are needed."""

    __slots__ = ("_call", "_most", "_name", "_pool")

    def __init__(self, call_soon_threadsafe: Callable[..., object], name: str, most: int) -> None:
        self._call, self._name, self._most = call_soon_threadsafe, name, most
        self._pool: Any = None

    def submit(self, work: Callable[[], object], done: Callable[[Any], object]) -> None:
        """Run ``work()`` in a thread, then ``done(error or None)`` on the loop."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # A start saves this import.

            self._pool = ThreadPoolExecutor(self._most, self._name)

        def run() -> None:
            error: BaseException | None = None
            try:
                work()
            except BaseException as failed:  # The waiting code gets it.
                error = failed
            try:
                self._call(done, error)
            except RuntimeError:
                pass  # The loop has closed: the broker stops.

        self._pool.submit(run)

    def stop(self) -> None:
        """End the threads after the work that is under way, without what has not begun."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


class SlowThread:
    """A thread for slow work; the first work starts it."""

    __slots__ = ("_call", "_name", "_thread")

    def __init__(self, call_soon_threadsafe: Callable[..., object], name: str = "upkeep") -> None:
        self._call, self._name = call_soon_threadsafe, name
        self._thread: SyncThread | None = None

    def submit(self, work: Callable[[], object], done: Callable[[Any], object]) -> None:
        """Run ``work()`` in the thread, then ``done(error or None)`` on the loop."""
        if self._thread is None:
            self._thread = SyncThread(self._call, self._name)
        self._thread.submit(work, done)

    def stop(self) -> None:
        """Finish all submitted work, and end the thread."""
        if self._thread is not None:
            self._thread.stop()

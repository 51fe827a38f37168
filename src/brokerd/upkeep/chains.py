"""Adds links to the hash chains of order journals behind their syncs, and tells a file elsewhere of their heads.

    each second   the sync of journals: find_due() before it, add() behind it -> links for blocks that are on disk
    settled       a segment was cut to size: finish() makes its last links

All hashing is done in the slow thread, a few milliseconds at a time, without Python's lock (``store/chain``).  The file
that the option ``order_journal_chain_log`` names gets a line for each chain that has grown, one JSON object::

    {"at": ns, "vhost": ..., "queue": ..., "level": L, "segment": N, "begun": ns, "blocks": n, "head": hex}

``blocks`` links lead to the digest ``head``; ``begun`` is the journal's.  One who changes a journal later, and makes
its chain anew, has to change that file too, so it should be where the broker's files are not.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, NamedTuple

from brokerd.store import chain, side_file
from brokerd.store.format import KEPT_FOLDER, priority_level

if TYPE_CHECKING:
    from brokerd.queues.queue import Queue
    from brokerd.store.disk import Disk
    from brokerd.store.garbage import Submit

log = getLogger("brokerd")

STEP_OCTETS = 4 << 20  # hashed at a time, before other work of the thread has its turn: some 3 ms
COMPLAINTS_MOST = 1000  # of one kind or another, since the start
WAITING_MOST = 10_000  # lines that wait while the log's file cannot be written


class Due(NamedTuple):
    """A journal with so many full blocks on disk, and a chain with fewer links.  ``folder`` has both."""

    queue: "Queue"
    folder: str
    number: int
    blocks: int


class Chains:
    """The chains of all order journals.  ``submit(work, done)`` runs work() in the slow thread, in order."""

    __slots__ = ("_complained", "_disk", "_due", "_lines", "_now", "_submit", "_torn", "_working", "log_path")

    def __init__(self, disk: "Disk", submit: "Submit", now: Callable[[], int]) -> None:
        self._disk = disk
        self._submit = submit
        self._now = now  # ns since the epoch
        self.log_path = ""  # the file that is told of heads; "": none
        self._due: deque[Due] = deque()
        self._lines: deque[bytes] = deque(maxlen=WAITING_MOST)
        self._working = False
        self._torn = False  # the file ends in a part of a line
        self._complained: set[str] = set()

    # --- in the thread

    def find_due(self, files: "Iterable[tuple[int, str, Queue]]") -> list[Due]:
        """Which of these open journals (descriptor, path, queue) have blocks without links.  A sync of them follows."""
        found = []
        for fd, path, queue in files:
            blocks = chain.full_blocks(fd, self._disk)
            folder, name = os.path.split(path)
            number = int(name.rpartition(".")[2])
            if blocks and chain.is_shorter(folder, number, blocks, self._disk):
                found.append(Due(queue, folder, number, blocks))
        return found

    def add(self, due: list[Due]) -> None:
        """These journals are on disk now, up to the blocks that were found before."""
        self._due += due

    def finish(self, queue: "Queue", folder: str, number: int, *, begin: bool) -> None:
        """Make the last links of a settled segment in ``folder``, which is on disk.  ``begin`` False: only if it has a
        chain already."""
        work = partial(chain.finish, folder, number, self._disk, self._now, begin=begin)
        self._tell(queue, folder, self._attempt(f"{folder}/{number}", work))
        self._write_lines()

    def _work(self) -> None:
        done = 0
        while self._due and done < STEP_OCTETS:
            due = self._due[0]
            if due.queue.deleted:
                self._due.popleft()
                continue
            grown = self._attempt(f"{due.folder}/{due.number}", partial(
                chain.grow, due.folder, due.number, due.blocks, self._disk, self._now, STEP_OCTETS))  # fmt: skip
            if grown is None or not grown.more:
                self._due.popleft()
            done += grown.octets if grown is not None else 0
            self._tell(due.queue, due.folder, grown)
        self._write_lines()

    def _attempt(self, what: str, work: "Callable[[], chain.Grown | None]") -> "chain.Grown | None":
        """Do it; what cannot be done is told once."""
        try:
            return work()
        except chain.Foreign as error:
            text = str(error)
        except OSError as error:
            text = f"{error.filename or what}: {error.strerror}"
        if text not in self._complained and len(self._complained) < COMPLAINTS_MOST:
            self._complained.add(text)
            log.warning("hash chain of an order journal: %s", text)
        return None

    def _tell(self, queue: "Queue", folder: str, grown: "chain.Grown | None") -> None:
        if grown is None or not self.log_path:
            return
        above = os.path.dirname(folder) if os.path.basename(folder) == KEPT_FOLDER else folder
        self._lines.append(side_file.encode({
            "at": self._now(), "vhost": queue.vhost_name, "queue": queue.name,
            "level": priority_level(os.path.basename(above)) or 0, "segment": grown.number, "begun": grown.begun,
            "blocks": grown.blocks, "head": grown.head,
        }))  # fmt: skip

    def _write_lines(self) -> None:
        """Add the lines that wait to the log's file.  What it cannot take waits for the next time."""
        if not self._lines or not self.log_path:
            return
        octets = b"\n" * self._torn + b"".join(self._lines)
        try:
            fd = self._disk.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                self._torn = True
                self._disk.pwrite(fd, octets, self._disk.size(fd))
                self._disk.fdatasync(fd, self.log_path)
                self._torn = False
            finally:
                self._disk.close(fd)
        except OSError as error:
            if self.log_path not in self._complained:
                self._complained.add(self.log_path)
                log.error("%s: heads of hash chains are not written for now: %s", self.log_path, error.strerror)
            return
        self._complained.discard(self.log_path)
        self._lines.clear()

    # --- on the loop

    def go_on(self) -> None:
        """Have the thread work on what is due, a step at a time."""
        if not self._working and (self._due or self._lines):
            self._working = True
            self._submit(self._work, self._stepped)

    def _stepped(self, error: BaseException | None) -> None:
        self._working = False
        if error is not None:
            log.error("hash chains of order journals: %s", error)
            self._due.clear()
        elif self._due:
            self.go_on()

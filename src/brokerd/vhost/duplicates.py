"""Duplicates in one vhost: who knows a message's key, who is told of it when it is stored, and which keys are safe.

    publish  ->  the exchange it is published to knows the key: routed nowhere, counts as routed, confirmed
             ->  of the queues it goes to, those that know the key are left out; counts as routed, confirmed

A key is told to a queue when the message was stored there, never before: a publish that waits for room on the disk, a
queue that refuses and a broker that dies in between let the next one through.  It is told to an exchange when any queue
has it.  Messages that are held back count as published when they came, for their exchange; for the queues when they
are due.  Dead letters are neither looked at nor told: they came in once, and one that comes back to its queue (a retry)
would be taken for its own duplicate.  Publishes of a transaction are looked at when it is committed, and once more when
each is stored (``still_new``), since one may be the duplicate of another; a crash in between lets such a one through.

``settle`` is called once a second: keys become safe (queues/deduplication) when a sync of all their messages' segments
has ended.  Windows of exchanges are files ``dedup.<sha1 of the name>`` in the vhost's folder; those of exchanges that
are not durable are in memory only.  Knows nothing of users, channels or timers.
"""

import os
from collections.abc import Callable, Mapping
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd.exchanges.exchange import Handler, Lazily
from brokerd.queues.deduplication import FILE_NAME, Deduplication, rule_of
from brokerd.store.format import folder_name

if TYPE_CHECKING:
    from brokerd.exchanges import Exchange
    from brokerd.queues.queue import Queue
    from brokerd.store.disk import Disk
    from brokerd.store.garbage import Submit

log = getLogger("brokerd")

FILE_PREFIX = FILE_NAME + "."
_MS = 1_000_000  # ns


class Duplicates:
    """The keys that queues and exchanges of one vhost know."""

    __slots__ = ("_directory", "_epoch_ns", "_syncing", "_unsafe", "_untrusted", "exchanges")

    def __init__(self, directory: str, epoch_ns: Callable[[], int]) -> None:
        self._directory = directory
        self._epoch_ns = epoch_ns
        self._syncing = False
        self._untrusted = False  # a sync failed: no key of this run becomes safe any more
        # Windows with keys whose messages may not be on disk yet, and from which number on, in which queues.
        self._unsafe: dict[Deduplication, dict[Queue, int]] = {}
        self.exchanges: dict[str, Deduplication] = {}  # by name, those that have a rule

    # --- exchanges come and go

    def adopt(self, exchange: "Exchange", *, new: bool = False) -> None:
        """Note an exchange that was made, or read from disk; a ``new`` one knows no keys yet."""
        rule = rule_of(exchange.arguments)
        if rule is None:
            return
        path = f"{self._directory}/{FILE_PREFIX}{folder_name(exchange.name)}" if exchange.durable else None
        if new and path is not None:
            _unlink(path)  # Of one of that name that was deleted just before the broker died.
        self.exchanges[exchange.name] = Deduplication(rule, path, report=log.warning)

    def exchange_deleted(self, name: str) -> None:
        """Its keys go with it."""
        known = self.exchanges.pop(name, None)
        if known is not None:
            self._unsafe.pop(known, None)
            known.window.close()
            if known.window.path is not None:
                _unlink(known.window.path)

    def close(self) -> None:
        """The broker stops."""
        for known in self.exchanges.values():
            known.window.close()

    # --- messages

    @property
    def now_ms(self) -> int:
        """Since the epoch."""
        return self._epoch_ns() // _MS

    def known_to_exchange(self, exchange: "Exchange", properties: Lazily) -> Handler | None:
        """Who takes a message in place of all queues, being a duplicate for its exchange; None: it is none."""
        known = self.exchanges.get(exchange.name)
        if known is None or not known.is_duplicate(properties().headers, self.now_ms):
            return None
        return _Dropped((known,), None)

    def sift(
        self, exchange: "Exchange | None", queues: "tuple[Queue, ...]", properties: Lazily,
        further: Handler | None = None,
    ) -> "tuple[tuple[Queue, ...], Handler | None]":  # fmt: skip
        """The queues that do not know the key, and who is to be called when the message is stored.

        ``exchange``: whose key it is too, if it has a rule; ``further`` is called besides, and given back where
        nobody here asks for keys.
        """
        asking = None if exchange is None else self.exchanges.get(exchange.name)
        if asking is None and not any(queue.deduplication is not None for queue in queues):
            return queues, further
        headers, now_ms = properties().headers, self.now_ms
        dropped = [queue.deduplication for queue in queues
                   if queue.deduplication is not None and queue.deduplication.is_duplicate(headers, now_ms)]
        left = tuple([queue for queue in queues if queue.deduplication not in dropped]) if dropped else queues
        if dropped:
            further = _Dropped(tuple([each for each in dropped if each is not None]), further)
        if left or (asking is not None and further is not None):
            return left, _Passed(self, asking, left, headers, further)
        return left, further

    def passed(self, asking: Deduplication | None, headers: Mapping[str, Any] | None, stored: "list[Queue]") -> None:
        """A message with these headers is in these queues."""
        now_ms = self.now_ms
        if asking is not None:
            asking.accepted(headers, now_ms)
            self._note(asking, stored)
        for queue in stored:
            if queue.deduplication is not None:
                queue.deduplication.accepted(headers, now_ms)
                self._note(queue.deduplication, [queue])

    def _note(self, known: Deduplication, queues: "list[Queue]") -> None:
        if known.window.path is not None:
            unsafe = self._unsafe.setdefault(known, {})
            for queue in queues:
                if queue.durable:
                    unsafe.setdefault(queue, queue.next_seq - 1)

    # --- what a power cut may take

    def settle(self, submit: "Submit", disk: "Disk") -> None:
        """Sync the messages of all keys so far, in a thread; then these keys outlast a power cut."""
        if self._syncing or self._untrusted or not self._unsafe:
            return
        unsafe, self._unsafe = self._unsafe, {}
        marks = [(known, known.window.written) for known in unsafe]
        since: dict[Queue, int] = {}
        for queues in unsafe.values():
            for queue, seq in queues.items():
                since[queue] = min(seq, since.get(queue, seq))
        paths = [path for queue, seq in since.items() if not queue.deleted for path in _files_since(queue, seq)]
        self._syncing = True

        def done(error: BaseException | None) -> None:
            self._syncing = False
            if error is not None:
                self._untrusted = True
                log.error("deduplication: messages could not be synced: %s; a power cut may let duplicates pass", error)
                return
            for known, written in marks:
                known.window.mark_safe(written)

        submit(lambda: _sync(paths, disk), done)

    @property
    def unsafe(self) -> bool:
        """Whether there is anything for ``settle`` to do."""
        return bool(self._unsafe)


class _Dropped:
    """Takes a message that was left out: counts it."""

    __slots__ = ("_further", "_known")

    def __init__(self, known: tuple[Deduplication, ...], further: Handler | None) -> None:
        self._known = known
        self._further = further

    def __call__(self, *message: Any) -> None:
        for known in self._known:
            known.duplicates += 1
        if self._further is not None:
            self._further(*message)


class _Passed:
    """Takes a message that was stored: tells its key to whom it is new."""

    __slots__ = ("_asking", "_duplicates", "_further", "_headers", "_left_out", "_marks")

    def __init__(
        self, duplicates: Duplicates, asking: Deduplication | None, queues: "tuple[Queue, ...]",
        headers: Mapping[str, Any] | None, further: Handler | None,
    ) -> None:  # fmt: skip
        self._duplicates = duplicates
        self._asking = asking
        self._headers = headers
        self._further = further
        self._left_out = False
        self._marks = [(queue, queue.next_seq, queue.refused) for queue in queues
                       if asking is not None or queue.deduplication is not None]

    def still_new(self, queues: "tuple[Queue, ...]") -> "tuple[Queue, ...]":
        """The queues that do not know the key by now either: to be asked just before it is stored, if that is later."""
        now_ms = self._duplicates.now_ms
        if self._asking is not None and self._asking.is_duplicate(self._headers, now_ms):
            self._asking.duplicates += 1
            queues = ()
        left = []
        for queue in queues:
            if queue.deduplication is not None and queue.deduplication.is_duplicate(self._headers, now_ms):
                queue.deduplication.duplicates += 1
            else:
                left.append(queue)
        self._marks = [(queue, queue.next_seq, queue.refused) for queue in left]
        self._left_out = not left
        return tuple(left)

    def __call__(self, *message: Any) -> None:
        # A queue that is full has refused it; nobody has it where it was to be delivered at once, and was not.
        stored = [queue for queue, next_seq, refused in self._marks
                  if queue.next_seq > next_seq and queue.refused == refused]
        if stored or not (self._marks or self._left_out):
            self._duplicates.passed(self._asking, self._headers, stored)
        if self._further is not None:
            self._further(*message)


def _files_since(queue: "Queue", seq: int) -> list[str]:
    """The segments that may hold messages from that number on, and their folders."""
    from brokerd.store.format import priority_folder, segment_name

    last: dict[int, list[str]] = {}
    for segment in queue.segments():
        level = segment.get("level", 0)
        found = last.setdefault(level, [])
        if segment["base_seq"] <= seq:
            found.clear()
        folder = f"{queue.directory}/{priority_folder(level)}" if level else queue.directory
        found.append(f"{folder}/{segment_name(segment['number'])}")
    paths = [path for found in last.values() for path in found]
    folders = dict.fromkeys(os.path.dirname(path) + "/" for path in paths)
    return [*paths, *folders, queue.directory + "/", os.path.dirname(queue.directory) + "/"]


def _sync(paths: list[str], disk: "Disk") -> None:
    for path in dict.fromkeys(paths):
        try:
            if path.endswith("/"):
                disk.sync_directory(path[:-1])
                continue
            fd = disk.open(path)
        except FileNotFoundError:  # All of it was consumed meanwhile.
            continue
        try:
            disk.fdatasync(fd, path)
        finally:
            disk.close(fd)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass

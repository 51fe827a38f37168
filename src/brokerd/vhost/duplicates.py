"""Duplicates in one vhost: who knows a message's key, who is told of it when it is stored, and which keys are safe.

    publish  ->  the exchange it is published to knows the key: routed nowhere, counts as routed, confirmed
             ->  of the queues it goes to, those that know the key are left out; counts as routed, confirmed

A key is told to a queue when the message was stored there, never before: a publish that waits for room on the disk, a
queue that refuses and a broker that dies in between let the next one through.  It is told to an exchange when any queue
has it.  Messages that are held back count as published when they came, for their exchange; for the queues when they
are due.  Dead letters are neither looked at nor told: they came in once, and one that comes back to its queue (a retry)
would be taken for its own duplicate.  Keys are asked for just before a message is stored, so that of two in one
transaction the second is found to be a duplicate; a crash between its commit and its storing lets it through.

``settle`` is called once a second: keys become safe (queues/deduplication) when a sync of all their messages' segments
has ended.  Windows of exchanges are files ``dedup.<sha1 of the name>`` in the vhost's folder; those of exchanges that
are not durable are in memory only.  Knows nothing of users, channels or timers.
"""

import os
from collections.abc import Callable, Mapping
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd.exchanges.exchange import Lazily
from brokerd.queues.deduplication import FILE_NAME, Deduplication, rule_of
from brokerd.store.format import folder_name

if TYPE_CHECKING:
    from brokerd.exchanges import Exchange
    from brokerd.plane import Message
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

    def check(
        self, exchange: "Exchange | None", queues: "tuple[Queue, ...]", properties: Lazily, *, taken: bool = False
    ) -> "Check | None":
        """Who takes part in the publish of a message that goes to these queues; None: nobody here asks for keys.

        ``exchange``: where the message is published, if it is its key too.  ``taken``: somebody else takes the
        message, though no queue does.
        """
        name = "" if exchange is None or exchange.name not in self.exchanges else exchange.name
        if not name and not any(queue.deduplication is not None for queue in queues):
            return None
        return Check(self, name, properties().headers, taken)

    def passed(
        self, asking: Deduplication | None, headers: Mapping[str, Any] | None, stored: "tuple[Queue, ...]"
    ) -> None:
        """A message with these headers is in these queues."""
        now_ms = self.now_ms
        if asking is not None:
            asking.accepted(headers, now_ms)
            self._note(asking, stored)
        for queue in stored:
            if queue.deduplication is not None:
                queue.deduplication.accepted(headers, now_ms)
                self._note(queue.deduplication, (queue,))

    def _note(self, known: Deduplication, queues: "tuple[Queue, ...]") -> None:
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


class Check:
    """Takes part in one publish (plane.Participant): drops duplicates, tells new keys to those that ask for them."""

    __slots__ = ("_duplicates", "_exchange", "_headers", "_knew", "_left", "_taken")

    def __init__(
        self, duplicates: Duplicates, exchange: str, headers: Mapping[str, Any] | None, taken: bool
    ) -> None:
        self._duplicates = duplicates
        self._exchange = exchange  # that asks for the key; "": only queues do
        self._headers = headers
        self._taken = taken
        self._knew: list[Deduplication] = []  # who knew the key when it was asked for last
        self._left = False  # a queue was left then

    @property
    def counts_as_routed(self) -> bool:
        """A duplicate is not returned: it has been routed once."""
        return bool(self._knew)

    def before_storing(self, queues: "tuple[Queue, ...]") -> "tuple[Queue, ...] | None":
        """The queues that do not know the key; None: the exchange knows it."""
        now_ms = self._duplicates.now_ms
        self._knew = []
        self._left = False
        asking = self._asking
        if asking is not None and asking.is_duplicate(self._headers, now_ms):
            self._knew.append(asking)
            return None
        left = []
        for queue in queues:
            known = queue.deduplication
            if queue.deleted or known is None or not known.is_duplicate(self._headers, now_ms):
                left.append(queue)
            else:
                self._knew.append(known)
        self._left = bool(left)
        return tuple(left) if self._knew else queues

    def after_storing(self, message: "Message", channel: object, stored: "tuple[Queue, ...]") -> None:
        """Count who knew the key; tell it to those that did not, where the message has come to be anywhere."""
        for known in self._knew:
            known.duplicates += 1
        asking = self._asking
        if asking is not None and asking in self._knew:
            return
        if stored or (not self._left and (self._taken or self._knew)):
            self._duplicates.passed(asking, self._headers, stored)

    @property
    def _asking(self) -> Deduplication | None:
        """The exchange's window; None: it asks for no keys, or has been deleted since the message was routed."""
        return self._duplicates.exchanges.get(self._exchange)


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

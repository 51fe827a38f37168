"""Finds duplicates in one vhost: which queues and exchanges check a message's deduplication key, and which learn it.

    publish  ->  if its exchange knows the key: the message goes nowhere, counts as routed, and is confirmed
             ->  the queues that know the key are left out; the message counts as routed, and is confirmed

A queue learns a key in the same step that stores the message, never before.  So if a publish waits for room on the
disk, if a queue refuses the message, or if the broker dies in between, the next message with that key is let through.
An exchange learns the key when any queue has the message.

A delayed message counts for its exchange when it is published, and for the queues when it is due.  Dead letters are
not checked, and their keys are not learnt: a message that comes back to its queue (a retry) would be taken for its own
duplicate.  Keys are checked just before a message is stored, so that of two messages in one transaction the second is
found to be a duplicate.

A durable exchange has its keys in a log (store/key_log).  If a queue has no window of its own, its records carry the
hash of the exchange's key.  So a start finds the keys of messages that were stored just before the broker died.

Most publishes never come here: the data plane (plane/duplicates.pxi) finds plain keys itself, and leaves out duplicates
where no other feature takes part in the publish.  ``Check`` does the same for the others: keys that are neither text
nor whole numbers, transactions, messages whose time has come.  Knows nothing of users, channels or timers.
"""

import os
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TYPE_CHECKING

from brokerd import plane
from brokerd.errors import StoreError
from brokerd.exchanges.exchange import LazyProperties
from brokerd.queues.dead_letter import read_properties
from brokerd.queues.deduplication import (
    DEAD_LETTER,
    NACK,
    REPLACE,
    Deduplication,
    Rule,
    Seen,
    bounds_of,
    own_ttl_of,
    rule_of,
)
from brokerd.store.format import (
    FOR_EVER,
    HEADER_OCTETS,
    SEGMENT_FIXED,
    folder_name,
    priority_folder,
    segment_name,
)
from brokerd.store.key_files import FORMER_FILE, FORMER_NUMBER, KeyFiles, open_segment
from brokerd.store.key_log import KeyLog

if TYPE_CHECKING:
    from brokerd.exchanges import Exchange
    from brokerd.plane import Message
    from brokerd.queues.queue import Queue

_MS = 1_000_000  # ns
_SLACK_NS = 1_000_000_000  # A row is written later than its record, but not by more.
_CHUNK_NS = 100_000_000  # The time of a record is that of its chunk, which began at most so long before.
_PERSISTENT = 2

_Found = tuple[int, int, str, bytes | None]  # ns, hash, exchange, properties that set the key's time
Follow = Callable[[KeyLog], object]  # GroupCommit.follow


class ExchangeKeys(Deduplication):
    """The rule, the window and the log of one exchange."""

    __slots__ = ("_follow", "in_plane", "log")

    def __init__(self, rule: Rule, files: KeyFiles, prefix: str | None, follow: Follow, since_ns: int = 1) -> None:
        """``prefix``: of the log's files; None: in memory only.  ``since_ns``: as KeyLog takes it."""
        self.in_plane = _ExchangeWindow(*bounds_of(rule), has_log=prefix is not None)
        self.in_plane.learn = self.enter_rows
        self.in_plane.find_room = self.reserve
        super().__init__(rule, files, self.in_plane)
        self._follow = follow
        self.log = None if prefix is None else KeyLog(files, prefix, self.window, since_ns)

    def load_log(self, former: str, *, suspect: bool) -> None:
        """Read the log from disk; ``former`` is the file that an earlier release had in its place."""
        assert self.log is not None
        try:
            self._files.take_over(former, self.log.path(FORMER_NUMBER), suspect=suspect)
            self.log.read(suspect=suspect)
            self._former = self.log.former
        except (OSError, StoreError) as error:
            self.report_once(error)

    def expires_ms(self, came_ns: int, own_ttl_ms: int) -> int:
        """When a key expires that came at ``came_ns``; ``own_ttl_ms``: the time that its message sets, or -1."""
        ttl_ms = own_ttl_ms if own_ttl_ms >= 0 else self.rule.ttl_ms
        return FOR_EVER if ttl_ms is None else min(came_ns // _MS + ttl_ms, FOR_EVER)

    def reserve(self, rows: int = 1) -> None:
        """Have room in the log for so many keys, before their messages are stored.  Raises OSError."""
        if self.log is not None:
            try:
                self.log.reserve(rows)
            except StoreError as error:
                self.report_once(error)
                self.in_plane.room = rows  # Time does not help.
                return
            self.in_plane.room = self.log.room

    def enter_key(self, came_ns: int, hashed: int, own_ttl_ms: int, *, lasting: bool) -> None:
        """Enter the key of a message that was stored; ``own_ttl_ms``: the time that the message sets, or -1."""
        expires_ms = self.expires_ms(came_ns, own_ttl_ms)
        self.window.enter(hashed, expires_ms, came_ns // _MS)
        if self.log is not None:
            try:
                self.log.append(came_ns, hashed, expires_ms, lasting=lasting)
            except (OSError, StoreError) as error:
                self.report_once(error)
            self.in_plane.room = self.log.room
            if lasting:
                self._follow(self.log)

    def enter_rows(self, rows: bytes, lasting: int, until_ms: int) -> None:
        """Write the keys that the data plane has entered: see plane.ExchangeWindow."""
        assert self.log is not None
        try:
            self.log.append_rows(rows, lasting, until_ms)
        except (OSError, StoreError) as error:
            self.report_once(error)
        self.in_plane.room = self.log.room
        if lasting:
            self._follow(self.log)


class _ExchangeWindow(plane.ExchangeWindow):
    """Passes on what the data plane has learnt, and asks for."""

    __slots__ = ("find_room", "learn")

    learn: Callable[[bytes, int, int], None]
    find_room: Callable[[int], None]

    def on_learnt(self, rows: bytes, lasting: int, until_ms: int) -> None:
        self.learn(rows, lasting, until_ms)

    def on_full(self, rows: int) -> None:
        self.find_room(rows)


class Duplicates:
    """The keys that queues and exchanges of one vhost know."""

    __slots__ = ("_directory", "_epoch_ns", "_files", "_follow", "exchanges")

    def __init__(self, directory: str, files: KeyFiles, epoch_ns: Callable[[], int], follow: Follow) -> None:
        self._directory = directory
        self._files = files
        self._epoch_ns = epoch_ns
        self._follow = follow
        self.exchanges: dict[str, ExchangeKeys] = {}  # by name, those that have a rule

    # --- exchanges come and go

    def adopt(self, exchange: "Exchange", *, new: bool = False, suspect: bool = False) -> None:
        """Take in an exchange that was made (``new``: it knows no keys yet) or read from disk (``open`` follows).

        ``suspect``: power was lost since its keys were written.
        """
        rule = rule_of(exchange.arguments)
        if rule is None:
            return
        name = folder_name(exchange.name)
        prefix = f"{self._directory}/keys.{name}" if exchange.durable else None
        since_ns = self._epoch_ns() - _CHUNK_NS if new else 1
        known = ExchangeKeys(rule, self._files, prefix, self._follow, since_ns)
        if known.log is not None:
            if new:
                known.log.remove()  # An exchange of that name may have left it: deleted just before the broker died.
            else:
                known.load_log(f"{self._directory}/{FORMER_FILE}.{name}", suspect=suspect)
        self.exchanges[exchange.name] = known

    def forget_exchange(self, name: str) -> None:
        """Remove the keys of an exchange that was deleted."""
        known = self.exchanges.pop(name, None)
        if known is not None and known.log is not None:
            known.log.remove()

    def close(self) -> None:
        """Close the logs, because the broker stops."""
        for known in self.exchanges.values():
            if known.log is not None:
                known.log.close()

    def open(self, queues: "Iterable[Queue]", *, suspect: bool) -> None:
        """Enter the keys of all adopted exchanges: those in their logs, and those of records that the logs have missed.

        A log can have missed records only if the former broker died: those of its last chunk, which came after the last
        row.  After a power cut, which may have taken rows of the logs, all records are read.
        """
        since_ns = {name: max(known.log.since_ns, 0 if suspect else known.log.last_ns - _SLACK_NS)
                    for name, known in self.exchanges.items() if known.log is not None and known.log.cut_short}
        found: list[_Found] = []
        for queue in queues if since_ns else ():
            if queue.durable and queue.deduplication is None:
                found += _keys_of_exchanges(queue, self._files, min(since_ns.values()))
        for name, known in self.exchanges.items():
            if known.log is None:
                continue
            mine = [each for each in found if each[2] == name] if name in since_ns else []
            since = since_ns.get(name, 0)
            knows = known.log.knows() if mine else set()
            missed = {}
            for came_ns, hashed, _, properties in mine:  # Several queues may have one message.
                if came_ns >= since and hashed not in knows:
                    own = -1 if properties is None else own_ttl_of(read_properties(properties).headers)
                    missed[hashed] = came_ns, hashed, known.expires_ms(came_ns, own)
            try:
                known.log.enter(sorted(missed.values()))
            except (OSError, StoreError) as error:
                known.report_once(error)
            if missed:
                self._follow(known.log)

    def mark_all_synced(self) -> None:
        """Say in the logs that everything that was read is on disk.  Raises OSError."""
        for known in self.exchanges.values():
            if known.log is not None:
                known.log.mark_all_synced()

    # --- messages

    def check(
        self, exchange: "Exchange | None", queues: "tuple[Queue, ...]", properties: LazyProperties, *,
        routing_key: str = "", taken: bool = False,
    ) -> "Check | None":
        """The participant in the publish of a message to these queues; None: neither they nor the exchange have a rule.

        ``exchange``: the one that the message is published to; None: its rule does not apply.  ``taken``: another
        feature takes the message even if no queue does.  A body may be a key: give it to plane.Answer.take_body().
        """
        name = "" if exchange is None or exchange.name not in self.exchanges else exchange.name
        if not name and not any(queue.deduplication is not None for queue in queues):
            return None
        message = properties()
        return Check(self, name, queues, Seen(message, routing_key), taken)

    def is_for_plane(self, exchange: "Exchange", queues: "tuple[Queue, ...]", properties: bytes) -> bool:
        """Whether the data plane can look for duplicates itself: see Deduplication.is_for_plane."""
        known = self.exchanges.get(exchange.name)
        return (known is None or known.is_for_plane(properties)) and all(
            queue.deduplication is None or queue.deduplication.is_for_plane(properties) for queue in queues)

    def window_of(self, exchange: "Exchange") -> plane.ExchangeWindow | None:
        """The keys that the exchange knows; None: it has no rule."""
        known = self.exchanges.get(exchange.name)
        return None if known is None else known.in_plane

    def keep_hash_key(self) -> None:
        """Have on disk with what keys are hashed, before a message with a key is stored.  Raises OSError."""
        self._files.keep_hash_key()

    def note_stored_key(self, known: ExchangeKeys, hashed: int, own_ttl_ms: int, *, lasting: bool) -> None:
        """Let an exchange know the key of a message that a queue has stored; ``lasting``: the next sync covers it."""
        known.enter_key(self._epoch_ns(), hashed, own_ttl_ms, lasting=lasting)


class Check:
    """Takes part in one publish (plane.Participant): leaves out duplicates, lets the exchange know new keys.

    ``keys``: the keys that the message's records carry.
    """

    __slots__ = ("_dead", "_duplicates", "_exchange", "_has_keys_of_queues", "_hash", "_headers", "_knew", "_left",
                 "_own_ttl_ms", "_persistent", "_queues", "_replaced", "_seen", "_taken", "keys")

    def __init__(
        self, duplicates: Duplicates, exchange: str, queues: "tuple[Queue, ...]", seen: Seen, taken: bool
    ) -> None:
        assert seen.properties is not None
        self._duplicates = duplicates
        self._exchange = exchange  # the name of the one with a rule; "": only queues have rules
        self._queues = queues
        self._seen = seen
        self._headers = headers = seen.properties.headers
        self._taken = taken
        self._persistent = seen.properties.delivery_mode == _PERSISTENT
        self._knew: list[Deduplication] = []  # those that knew the key at the last check, and leave the message out
        self._dead: list[Queue] = []  # those of the queues that dead-letter the duplicate
        self._replaced: dict[Queue, int] = {}  # queues that store it, and the message that it replaces there
        self._left = False  # a queue was left after that check
        self._own_ttl_ms = own_ttl_of(headers)
        hashes = self._find_keys()
        asking = self._asking
        by_content = (asking is not None and asking.rule.content) or any(
            queue.deduplication is not None and queue.deduplication.rule.content for queue in queues)
        self.keys = plane.Keys(hashes, self._hash, self._own_ttl_ms, on_body=self._take_body if by_content else None)

    def _find_keys(self) -> dict[plane.Queue, int]:
        asking = self._asking
        self._hash = 0 if asking is None else asking.hash_of(self._headers, self._seen)
        hashes: dict[plane.Queue, int] = {queue: queue.deduplication.hash_of(self._headers, self._seen)
                                          for queue in self._queues if queue.deduplication is not None}  # fmt: skip
        self._has_keys_of_queues = any(hashes.values())
        return hashes

    def _take_body(self, body: bytes) -> None:
        """Before the message is stored: here is its body, which may be its key."""
        self._seen = self._seen._replace(body=body)
        hashes = self._find_keys()
        self.keys.change(hashes, self._hash, self._own_ttl_ms)

    @property
    def counts_as_routed(self) -> bool:
        """Whether this is a duplicate: it was routed once, so it is not returned to its publisher."""
        return bool(self._knew)

    @property
    def refuses(self) -> bool:
        """Whether the publisher is to be told that the message was refused."""
        return any(known.rule.action == NACK for known in self._knew)

    def before_storing(self, queues: "tuple[Queue, ...]") -> "tuple[Queue, ...] | None":
        """The queues that do not know the key; None: the exchange knows it.

        Raises OSError where the key cannot be kept: then the publish waits."""
        self._knew = []
        self._dead = []
        self._replaced = {}
        self._left = False
        asking = self._asking
        if asking is not None and self._hash:
            if asking.is_duplicate(self._headers, self._seen):
                self._knew.append(asking)
                return None
            asking.reserve()
        if self._hash or self._has_keys_of_queues:
            self._duplicates.keep_hash_key()
        left = []
        for queue in queues:
            known = queue.deduplication
            if queue.deleted or known is None or not known.is_duplicate(self._headers, self._seen):
                left.append(queue)
            elif known.rule.action == REPLACE:
                left.append(queue)
                self._replaced[queue] = known.window.seq_of(known.hash_of(self._headers, self._seen))
            else:
                self._knew.append(known)
                if known.rule.action == DEAD_LETTER:
                    self._dead.append(queue)
        self._left = bool(left)
        return tuple(left) if self._knew else queues

    def after_storing(self, message: "Message", channel: object, stored: "tuple[Queue, ...]") -> None:
        """Count a duplicate where the key was known; let the exchange know the key if the message is anywhere now."""
        for known in self._knew:
            known.window.duplicates += 1
        for queue, seq in self._replaced.items():
            if queue in stored and queue.deduplication is not None:
                queue.deduplication.window.duplicates += 1
                queue.on_replaced(seq)
        for queue in self._dead:
            queue.on_dead("duplicate", 0, message.exchange, message.routing_key, message.properties, message.body, 0)
        asking = self._asking
        if asking is None or asking in self._knew or not self._hash:
            return
        if stored or (not self._left and (self._taken or self._knew)):
            lasting = self._persistent and any(queue.durable for queue in stored)
            self._duplicates.note_stored_key(asking, self._hash, self._own_ttl_ms, lasting=lasting)

    @property
    def _asking(self) -> ExchangeKeys | None:
        """The exchange's rule and window; None: it has none, or was deleted since the message was routed."""
        return self._duplicates.exchanges.get(self._exchange)


def _keys_of_exchanges(queue: "Queue", files: KeyFiles, since_ns: int) -> list[_Found]:
    """The keys of exchanges in the queue's records, in all segments that can have records from that time on."""
    found: list[_Found] = []
    done: set[int] = set()  # levels whose older segments have only older records
    for segment in sorted(queue.segments(), key=itemgetter("number"), reverse=True):
        level, number = segment["level"], segment["number"]
        if level in done:
            continue
        folder = f"{queue.directory}/{priority_folder(level)}" if level else queue.directory
        with open_segment(os.path.join(folder, segment_name(number)), files.disk) as octets:
            keys = plane.keys_in_segment(octets, number)[2]
            if len(octets) < HEADER_OCTETS or SEGMENT_FIXED.unpack_from(octets)[4] < since_ns:
                done.add(level)
        found += [(came_ns, hashed, name.decode("utf-8", "surrogateescape"), properties)
                  for came_ns, hashed, name, properties in keys]
    return found

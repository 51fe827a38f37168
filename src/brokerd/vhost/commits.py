"""A start finishes the transactions that were decided when the broker died.

A decision is a commit log with its header (store/commit_log), or a whole entry of a shared one
(store/shared_commit_log).  Acks are carried out for messages that are there again.  Then the start stores the
messages that the queues lack, and rejected messages die:

    the queues are searched for the decisions' messages
      | power may have taken a message and left those behind it: these are taken out too, and stored again behind it
    a commit log of this start (``tx.again``) decides which messages are stored, in order, are taken out, and die
      | it is on disk
    the other commit logs are removed, and their removal is on disk
    these messages are taken out, and stored under the number of this start
      | the queues are on disk
    the commit log of this start is removed

So a start that is cut off anywhere leaves either the former commit logs or a whole ``tx.again``, which replaces all
others.  Records that are stored now carry the start's own connection number: within each connection the publishes
rise with the sequence, as the audit of the publish order wants.

Knows nothing of the files' layout.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from brokerd import plane
from brokerd.errors import StoreError
from brokerd.queues.dead_letter import read_properties
from brokerd.queues.deduplication import REPLACE, Seen
from brokerd.store import commit_log, shared_commit_log
from brokerd.store.commit_log import CommitLog, Message, Plan, encode_plan, published_in
from brokerd.store.format import AGAIN_COMMIT_PREFIX, COMMIT_ACKED, COMMIT_REJECTED, SHARED_COMMIT_PREFIX

if TYPE_CHECKING:
    from brokerd.queues.deduplication import Deduplication
    from brokerd.queues.queue import Queue
    from brokerd.store.commit_log import Decision
    from brokerd.store.disk import Disk
    from brokerd.vhost.vhost import VHost

_Published = tuple[int, int, int]  # connection, channel, publish number


class Start(NamedTuple):
    """The values that a start gives to ``finish_commits``.

    ``suspect``: power was lost.  ``report`` hears of each commit log in one line.  ``sync`` puts all that was written
    on disk.  ``next_number`` gives a connection number that was never used.  Both raise OSError.
    """

    disk: "Disk"
    suspect: bool
    report: Callable[[str], None]
    sync: Callable[[], None]
    next_number: Callable[[], int]


def finish_commits(vhost: "VHost", start: Start) -> None:
    """Finish what was decided, in a vhost after the recovery of its queues, and remove the commit logs.

    Raises StoreError, OSError.
    """
    paths = commit_log.find(vhost.directory, start.disk)
    if not paths:
        return
    # The former broker may have died before its sync.  What it wrote must not go any more once its logs are removed.
    start.sync()
    decided = [(path, decision if start.suspect else _without_stored(decision))
               for path, decision in _load(paths, start) if start.suspect or not decision.applied]
    again = _Finish(vhost, decided, start).run()
    start.sync()
    commit_log.discard(paths, start.disk)
    start.disk.sync_directory(vhost.directory)
    if again is not None:
        again.carry_out(vhost)
        start.sync()
        again.remove()
        start.disk.sync_directory(vhost.directory)


def _load(paths: list[str], start: Start) -> "list[tuple[str, Decision]]":
    """The decisions with their paths, each channel's in the order of its commits."""
    shared: list[tuple[str, shared_commit_log.Found]] = []
    single: list[tuple[str, Decision]] = []
    again: list[tuple[str, Decision]] = []
    for path in paths:
        if os.path.basename(path).startswith(SHARED_COMMIT_PREFIX):
            shared.append((path, shared_commit_log.load(path, start.disk)))
        elif (decision := commit_log.load(path, start.disk)) is not None:
            (again if _is_again(path) else single).append((path, decision))
        elif not _is_again(path):
            start.report(f"{path}: a transaction that was not committed: dropped")
    if again:
        decided = [max(again, key=lambda found: found[1].connection)]
    else:
        shared.sort(key=lambda found: found[1][:2])
        decided = [(path, decision) for path, found in shared for decision in found.decisions]
        for one in single:
            decided.insert(_place(one[1], [decision for _, decision in decided]), one)
    for path, decision in decided:
        _check_messages(path, decision)
    return decided


def _without_stored(decision: "Decision") -> "Decision":
    """A decision without the messages that the former broker has noted as stored: they may be gone since."""
    end = decision.first + decision.stored
    return decision._replace(messages=[one for one in decision.messages if one[0].publish_seq >= end])


def _check_messages(path: str, decision: "Decision") -> None:
    """A check value may be right over octets that no broker wrote.  Raises StoreError, before any file is changed."""
    for message, queues in decision.messages:
        try:
            plane.find_own_ttl(message.properties)
        except ValueError as error:
            raise StoreError(f"{path}: a commit log has a message for queue '{next(iter(queues), '')}' that no broker "
                             f"wrote: {error}") from None


def _is_again(path: str) -> bool:
    return os.path.basename(path).startswith(AGAIN_COMMIT_PREFIX)


def _place(single: "Decision", decided: "list[Decision]") -> int:
    """Where a large transaction belongs among the others: before the next one of its channel.

    At the end without one: then it was not answered, or it is on disk with all that was stored before it.
    """
    if single.messages:
        first = single.messages[0][0].publish_seq
        for place, other in enumerate(decided):
            if (other.connection, other.channel) == (single.connection, single.channel) and other.messages \
                    and other.messages[0][0].publish_seq > first:
                return place
    return len(decided)


class _Again:
    """The messages that this start stores, and takes out or lets die before."""

    def __init__(self, directory: str, start: Start) -> None:
        self._number = start.next_number()
        self._log = CommitLog(os.path.join(directory, f"{AGAIN_COMMIT_PREFIX}{self._number}"), start.disk)
        self._stores: list[tuple[Message, list[Queue]]] = []
        self._takes: list[tuple[Queue, int]] = []
        self._rejects: list[tuple[Queue, int]] = []

    def store(self, message: "Message", queues: "list[Queue]") -> None:
        """Store a message, behind those of earlier calls."""
        self._stores.append((message._replace(publish_seq=len(self._stores) + 1), queues))

    def take_out(self, queue: "Queue", seq: int) -> bool:
        """Take a message out of a queue.  False: it is not ready there."""
        if not queue.set_aside(seq):
            return False
        self._takes.append((queue, seq))
        return True

    def reject(self, queue: "Queue", seq: int) -> bool:
        """Let a message die as rejected.  False: it is not ready in the queue."""
        if not queue.set_aside(seq):
            return False
        self._rejects.append((queue, seq))
        return True

    @property
    def taken(self) -> int:
        """How many messages are taken out."""
        return len(self._takes)

    def decide(self) -> bool:
        """Write the commit log; False: there is nothing to do.  Raises OSError."""
        if not self._stores and not self._rejects:
            return False
        places = [(self._log.add(message).position, queues) for message, queues in self._stores]
        settlements = [(queue, seq, COMMIT_ACKED) for queue, seq in self._takes]
        settlements += [(queue, seq, COMMIT_REJECTED) for queue, seq in self._rejects]
        self._log.decide(self._number, 0, encode_plan(Plan(places, settlements)))
        return True

    def carry_out(self, vhost: "VHost") -> None:
        """Do what was decided.  Raises OSError."""
        for queue, seq in self._takes:
            queue.release(seq)
            queue.remove(seq)
        for queue, seq in self._rejects:  # A dead letter must be in a file before its message is settled.
            queue.on_dead("rejected", 0, *_aside(queue, seq)[3:], 0)
            queue.release(seq)
            queue.remove(seq)
        for message, queues in self._stores:
            for queue in queues:
                _store(vhost, queue, message, self._number)

    def remove(self) -> None:
        """Remove the commit log.  Never fails."""
        self._log.remove()


class _Finish:
    """Carries out decisions, in their order."""

    def __init__(self, vhost: "VHost", decided: "list[tuple[str, Decision]]", start: Start) -> None:
        self._vhost, self._decided, self._start = vhost, decided, start
        self._connections = {decision.connection for _, decision in decided}
        self._found: dict[str, dict[_Published, int]] = {}  # by queue: sequence numbers of what its segments hold
        self._broken: set[str] = set()  # names of queues that lack a message
        self._lost: dict[tuple[str, int, int], int] = {}  # by queue, connection, channel: its first lost publish
        self._keys = _NewKeys()
        # A start that was cut off has looked for duplicates already.
        self._is_again = any(_is_again(path) for path, _ in decided)

    def run(self) -> _Again | None:
        """Settle; then decide what is to be stored.  A message that is stored may get the sequence number of one that
        was lost, which a settlement names; so no settlement may see it."""
        if not self._decided:
            return None
        again = _Again(self._vhost.directory, self._start)
        settled = [self._settle(decision, again) for _, decision in self._decided]
        counts: dict[str, list[int]] = {}  # by path: transactions, messages stored, taken out, deliveries settled
        for (path, decision), settlements in zip(self._decided, settled, strict=True):
            taken = again.taken
            done = 1, self._store(decision, again), again.taken - taken, settlements
            counts[path] = [a + b for a, b in zip(counts.get(path, [0, 0, 0, 0]), done, strict=True)]
        self._store_behind(again)
        for path, (transactions, stores, taken, settlements) in counts.items():
            what = "a committed transaction was brought to its end" if transactions == 1 else \
                f"{transactions} committed transactions were brought to their end"
            order = f", {taken} of them to stand behind what was lost" if taken else ""
            self._start.report(f"{path}: {what}: {stores} stored{order}, {settlements} settled")
        return again if again.decide() else None

    def _settle(self, decision: "Decision", again: _Again) -> int:
        """How many deliveries are settled.

        Those that were rejected are settled later, with what is stored: a dead letter may get the number of a message
        that was lost, which another settlement names.
        """
        settled = 0
        for name, seq, outcome in decision.settlements:
            queue = self._vhost.queues.get(name)
            if queue is None:
                continue
            if outcome == COMMIT_REJECTED:
                settled += again.reject(queue, seq)
            else:
                settled += queue.remove(seq) is not None
        return settled

    def _store(self, decision: "Decision", again: _Again) -> int:
        """How many messages are to be stored, once a queue."""
        stored = 0
        for message, names in decision.messages:
            queues = [queue for name in names if (queue := self._vhost.queues.get(name)) is not None]
            published = decision.connection, decision.channel, message.publish_seq
            missing, taken = [], []
            for queue in queues:
                seq = self._found_in(queue).get(published)
                if seq is None:
                    missing.append(queue)
                elif queue.name in self._broken and again.take_out(queue, seq):
                    taken.append(queue)
            # An operator's change puts a message where it was told to, and looks for no duplicates.
            lacking = missing if decision.channel == 0 else \
                self._new_in(message, missing, first=len(missing) == len(queues))
            for queue in lacking:
                self._broken.add(queue.name)
                self._lost.setdefault((queue.name, *published[:2]), message.publish_seq)
            if lacking or taken:
                stores = [queue for queue in queues if queue in lacking or queue in taken]
                again.store(message, stores)
                stored += len(stores)
        return stored

    def _store_behind(self, again: _Again) -> None:
        """Store what a channel published behind a lost message, in a transaction that needed no commit log and was not
        answered."""
        decided = {(decision.connection, decision.channel, message.publish_seq)
                   for _, decision in self._decided for message, _ in decision.messages}
        for (name, *channel), lost in self._lost.items():
            queue = self._vhost.queues[name]
            behind = [published for published in self._found_in(queue) if list(published[:2]) == channel
                      and published[2] > lost and published not in decided]  # fmt: skip
            for published in sorted(behind):
                seq = self._found_in(queue)[published]
                if again.take_out(queue, seq):
                    again.store(Message(0, *_aside(queue, seq)[3:]), [queue])

    def _new_in(self, message: "Message", queues: "list[Queue]", *, first: bool) -> "list[Queue]":
        """Those of the queues that did not leave the message out because it was a duplicate.

        ``first``: no queue has the message.  Otherwise its exchange may have learnt the key from this very message, and
        is not asked.
        """
        known = self._vhost.duplicates.keys_of(message.exchange.decode("utf-8", "surrogateescape"))
        if self._is_again or (known is None and not any(queue.deduplication is not None for queue in queues)):
            return queues
        seen = Seen(read_properties(message.properties), message.routing_key.decode("utf-8", "surrogateescape"),
                    message.body)  # fmt: skip
        if first and known is not None and not self._keys.enter(known, seen):
            return []
        return [queue for queue in queues
                if queue.deduplication is None or queue.deduplication.rule.action == REPLACE
                or self._keys.enter(queue.deduplication, seen)]  # fmt: skip

    def _found_in(self, queue: "Queue") -> dict[_Published, int]:
        if queue.name not in self._found:
            self._found[queue.name] = published_in(queue.directory, self._start.disk, self._connections)
        return self._found[queue.name]


class _NewKeys:
    """Deduplication keys of messages that are stored later than they are looked at."""

    def __init__(self) -> None:
        self._entered: set[tuple[Deduplication, int]] = set()

    def enter(self, known: "Deduplication", seen: Seen) -> bool:
        """Whether the key is new, or there is no key; from now on it is not new."""
        assert seen.properties is not None
        headers = seen.properties.headers
        hashed = known.hash_of(headers, seen)
        if not hashed:
            return True
        if known.is_duplicate(headers, seen) or (known, hashed) in self._entered:
            return False
        self._entered.add((known, hashed))
        return True


def _aside(queue: "Queue", seq: int) -> "plane.Row":
    """A message that was set aside.  Raises StoreError where it cannot be read."""
    rows = queue.browse_aside(seq, 1)
    if not rows or rows[0][0] != seq:
        raise StoreError(f"{queue.directory}: message {seq} cannot be read")
    return rows[0]


def _store(vhost: "VHost", queue: "Queue", message: "Message", number: int) -> None:
    name = message.exchange.decode("utf-8", "surrogateescape")
    check = None
    if queue.deduplication is not None or vhost.duplicates.keys_of(name) is not None:
        check = vhost.duplicates.check(vhost.exchanges.get(name), (queue,),
                                       lambda: read_properties(message.properties),
                                       routing_key=message.routing_key.decode("utf-8", "surrogateescape"))  # fmt: skip
        if check is not None and check.keys.on_body is not None:
            check.keys.on_body(message.body)
    stored = vhost.core.put((queue,), *message[1:], connection=number, publish_seq=message.publish_seq, sync=True,
                            keys=None if check is None else check.keys)  # fmt: skip
    if check is not None:
        check.after_storing(plane.Message(*message[1:]), None, stored)

"""A start finishes the transactions that were decided when the broker died.

A decision is a commit log with its header (store/commit_log), or a whole entry of a shared one
(store/shared_commit_log).  Messages that are in none of a queue's segments are stored now; settlements are carried out
for messages that are there again.  Knows nothing of the file's layout.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from brokerd import plane
from brokerd.queues.dead_letter import read_properties
from brokerd.store import commit_log, shared_commit_log
from brokerd.store.commit_log import published_in
from brokerd.store.format import COMMIT_REJECTED, SHARED_COMMIT_PREFIX

if TYPE_CHECKING:
    from brokerd.queues.queue import Queue
    from brokerd.store.commit_log import Decision, Message
    from brokerd.store.disk import Disk
    from brokerd.vhost.vhost import VHost


def finish_commits(vhost: "VHost", disk: "Disk", *, suspect: bool, report: Callable[[str], None]) -> list[str]:
    """Finish what was decided, in a vhost after the recovery of its queues.  Returns the paths of the commit logs.

    The caller removes them (``commit_log.discard``) once all queues are synced.  ``suspect``: power was lost.
    ``report`` hears of each transaction in one line.  Raises StoreError, OSError.
    """
    paths = commit_log.find(vhost.directory, disk)
    shared: list[tuple[str, shared_commit_log.Found]] = []
    single: list[tuple[str, Decision]] = []
    for path in paths:
        if os.path.basename(path).startswith(SHARED_COMMIT_PREFIX):
            shared.append((path, shared_commit_log.load(path, disk)))
        elif (decision := commit_log.load(path, disk)) is not None:
            single.append((path, decision))
        else:
            report(f"{path}: a transaction that was not committed: dropped")
    shared.sort(key=lambda found: found[1][:2])
    decided = [(path, decision) for path, found in shared for decision in found.decisions] + single
    _Finish(vhost, disk, [one for one in decided if suspect or not one[1].applied], report).run()
    return paths


class _Finish:
    """Carries out decisions, in their order."""

    def __init__(self, vhost: "VHost", disk: "Disk", decided: "list[tuple[str, Decision]]",
                 report: Callable[[str], None]) -> None:
        self._vhost, self._disk, self._decided, self._report = vhost, disk, decided, report
        self._connections = {decision.connection for _, decision in decided}
        self._present: dict[str, set[tuple[int, int, int]]] = {}  # by queue: what its segments hold

    def run(self) -> None:
        """Settle, then store.  A message that is stored now may get the sequence number of one that was lost, which a
        settlement names; so no settlement may see it."""
        settled = [self._settle(decision) for _, decision in self._decided]
        stored = [self._store(decision) for _, decision in self._decided]
        counts: dict[str, list[int]] = {}  # by path: transactions, messages stored, deliveries settled
        for (path, _), *done in zip(self._decided, stored, settled, strict=True):
            counts[path] = [a + b for a, b in zip(counts.get(path, [0, 0, 0]), [1, *done], strict=True)]
        for path, (transactions, stores, settlements) in counts.items():
            what = "a committed transaction was brought to its end" if transactions == 1 else \
                f"{transactions} committed transactions were brought to their end"
            self._report(f"{path}: {what}: {stores} stored, {settlements} settled")

    def _settle(self, decision: "Decision") -> int:
        """How many deliveries were settled."""
        settled = 0
        for name, seq, outcome in decision.settlements:
            queue = self._vhost.queues.get(name)
            row = None if queue is None else queue.remove(seq)
            if queue is not None and row is not None:
                settled += 1
                if outcome == COMMIT_REJECTED:
                    _, _, _, exchange, routing_key, properties, body = row
                    queue.on_dead("rejected", 0, exchange, routing_key, properties, body, 0)
        return settled

    def _store(self, decision: "Decision") -> int:
        """How many messages were stored, once a queue."""
        stored = 0
        for message, names in decision.messages:
            queues = [queue for name in names if (queue := self._vhost.queues.get(name)) is not None]
            published = decision.connection, decision.channel, message.publish_seq
            missing = [queue for queue in queues if published not in self._published_in(queue)]
            if len(missing) < len(queues) or not _is_known_to_exchange(self._vhost, message):
                stored += sum(_store(self._vhost, queue, message, decision) for queue in missing)
        return stored

    def _published_in(self, queue: "Queue") -> set[tuple[int, int, int]]:
        if queue.name not in self._present:
            self._present[queue.name] = published_in(queue.directory, self._disk, self._connections)
        return self._present[queue.name]


def _is_known_to_exchange(vhost: "VHost", message: "Message") -> bool:
    """Whether the message's exchange knows its deduplication key.  Ask only for a message that no queue has: otherwise
    the exchange may have learnt the key from this very message."""
    exchange = vhost.exchanges.get(message.exchange.decode("utf-8", "surrogateescape"))
    if exchange is None or not vhost.duplicates.asks(exchange):
        return False
    return vhost.duplicates.is_duplicate(exchange, read_properties(message.properties).headers)


def _store(vhost: "VHost", queue: "Queue", message: "Message", decision: "Decision") -> bool:
    """Store the message in a queue; False: the queue knows its deduplication key from another message."""
    exchange = vhost.exchanges.get(message.exchange.decode("utf-8", "surrogateescape"))
    check = None
    if queue.deduplication is not None or (exchange is not None and vhost.duplicates.asks(exchange)):
        properties = read_properties(message.properties)
        if queue.deduplication is not None and queue.deduplication.is_duplicate(properties.headers):
            return False
        check = vhost.duplicates.check(exchange, (queue,), lambda: properties)
    stored = vhost.core.put((queue,), *message[1:], connection=decision.connection, channel=decision.channel,
                            publish_seq=message.publish_seq, sync=True,
                            keys=None if check is None else check.keys)  # fmt: skip
    if check is not None:
        check.after_storing(plane.Message(*message[1:]), None, stored)
    return True

"""A start finishes the transactions that were decided when the broker died.

A decision is a commit log with its header (store/commit_log).  Messages that are in none of a queue's segments
are stored now; settlements are carried out for messages that are there again.  Knows nothing of the file's layout.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from brokerd import plane
from brokerd.queues.dead_letter import read_properties
from brokerd.store import commit_log
from brokerd.store.commit_log import published_in
from brokerd.store.format import COMMIT_REJECTED

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
    for path in paths:
        decision = commit_log.load(path, disk)
        if decision is None:
            report(f"{path}: a transaction that was not committed: dropped")
        elif suspect or not decision.applied:
            stored, settled = _apply(vhost, disk, decision)
            report(f"{path}: a committed transaction was brought to its end: {stored} stored, {settled} settled")
    return paths


def _apply(vhost: "VHost", disk: "Disk", decision: "Decision") -> tuple[int, int]:
    """How many messages were stored (once a queue), and how many deliveries settled."""
    present: dict[str, set[int]] = {}
    stored = settled = 0
    for message, names in decision.messages:
        queues = [queue for name in names if (queue := vhost.queues.get(name)) is not None]
        for queue in queues:
            if queue.name not in present:
                present[queue.name] = published_in(queue.directory, disk, decision.connection, decision.channel)
        missing = [queue for queue in queues if message.publish_seq not in present[queue.name]]
        if len(missing) < len(queues) or not _is_known_to_exchange(vhost, message):
            stored += sum(_store(vhost, queue, message, decision) for queue in missing)
    for name, seq, outcome in decision.settlements:
        queue = vhost.queues.get(name)
        row = None if queue is None else queue.remove(seq)
        if queue is not None and row is not None:
            settled += 1
            if outcome == COMMIT_REJECTED:
                _, _, _, exchange, routing_key, properties, body = row
                queue.on_dead("rejected", 0, exchange, routing_key, properties, body, 0)
    return stored, settled


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

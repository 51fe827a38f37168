"""Describes how firmly a queue keeps its order now, why, and what has disturbed it: one table for people and programs.

The table's shape is ``operations.queue.Ordering``.
"""

from typing import TYPE_CHECKING, Any, cast

from brokerd import plane
from brokerd.operations import find_queue
from brokerd.operations.files import first_kept_seq, has_kept_folder
from brokerd.operations.group import totals
from brokerd.queues.guarantee import facts_of, find_guarantee
from brokerd.store.format import ORDER_COUNTERS

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.queue import Consumer, Counters, Journal, Ordering, Retention
    from brokerd.queues.queue import Queue

GROUPS = ("returned", "dead_lettered", "dropped")
DROPPED = frozenset({"rejected", "expired", "removed", "purged"})  # counters named by the cause alone


def ordering(node: "Node", vhost: str, name: str) -> "Ordering":
    """The table of one queue.  Raises OperationError (404); OSError."""
    queue = find_queue(node, vhost, name)
    guarantee = find_guarantee(facts_of(queue))
    since_declare, since_start = queue.order_counts()
    return {
        "vhost": vhost,
        "queue": name,
        "durable": queue.durable,
        "guarantee": guarantee.name,
        "reasons": guarantee.reasons,
        "notes": guarantee.notes,
        "messages": {"ready": queue.message_count, "unacked": queue.unacked, "next_seq": queue.next_seq},
        "counters": {"since_start": group_counters(since_start), "since_declare": group_counters(since_declare)},
        "journal": _journal(node, queue),
        "retention": _retention(queue),
        "groups": totals(queue, queue.groups) if queue.groups is not None else None,
        "consumers": [_consumer(queue, consumer) for consumer in queue.consumers or ()],
    }


def group_counters(counts: list[int]) -> "Counters":
    """The counters of ``plane.Queue.order_counts`` by name; those with a cause are grouped, by cause."""
    table: dict[str, Any] = {"returned": {}}
    for name, count in zip(ORDER_COUNTERS, counts, strict=True):
        group = "dropped" if name in DROPPED else next((each for each in GROUPS if name.startswith(f"{each}_")), None)
        if group is None:
            table[name] = count
        else:
            table.setdefault(group, {})[name.removeprefix(f"{group}_")] = count
    return cast("Counters", table)


def _retention(queue: "Queue") -> "Retention":
    segments, octets, first_seq, replayed = plane.describe_retention(queue)
    rules = queue.rules
    on = queue.durable and (rules.retain_ms is not None or rules.retain_octets is not None)
    return {"on": on, "segments": segments, "octets": octets, "first_seq": first_seq, "replayed": replayed}


def _journal(node: "Node", queue: "Queue") -> "Journal":
    # The first use of upkeep.journals creates it: a broker without journals does without.
    kept = queue.journaled or has_kept_folder(queue.directory, queue.max_priority)
    entry = node.upkeep.journals.entries.get(queue.directory) if kept else None
    live: dict[int, list[int]] = {}
    for segment in queue.segments() if queue.durable else ():
        live.setdefault(segment["level"], []).append(segment["number"])
    return {
        "on": queue.journaled,
        "why": _why(node, queue),
        "kept_octets": entry.octets if entry is not None else 0,
        "first_kept_seq": first_kept_seq(queue.directory, queue.max_priority, live) if queue.durable else 0,
    }


def _why(node: "Node", queue: "Queue") -> str:
    """Which argument or policy decides whether there is an order journal."""
    asked = queue.rules.journal
    if asked and not queue.durable:
        return "the queue is not durable"
    if queue.arguments.get("x-order-journal") is asked:
        return "argument x-order-journal"
    policies = node.vhosts[queue.vhost_name].policies
    if policies is not None:
        name, operators, _ = queue.effective
        for kind, policy in (("policy", policies.find(name)), ("operator policy", policies.operators.find(operators))):
            if policy is not None and policy.definition.get("order-journal") is asked:
                return f"{kind} '{policy.name}'"
    return "neither argument x-order-journal nor policy order-journal asks for it"


def _consumer(queue: "Queue", consumer: Any) -> "Consumer":
    channel = consumer.channel
    connection = channel.connection
    return {
        "number": consumer.number,
        "tag": consumer.tag.decode("utf-8", "surrogateescape"),
        "prefetch": consumer.prefetch,
        "global_prefetch": channel.global_prefetch,
        "unacked": consumer.unacked,
        "no_ack": consumer.no_ack,
        "priority": consumer.priority,
        "active": queue.active is None or queue.active is consumer,
        "connection": connection.number,
        "channel": channel.number,
        "peer": connection.peer,
        "user": connection.user,
    }

"""What a queue was told to do about the order of its messages: the line "settings" of ``order.jsonl``.

Readers of the files (audits, dumps) know a queue by this and nothing else.  Knows nothing of files or times.
"""

from typing import Any, Protocol

from brokerd.queues.rules import Rules


class Ordered(Protocol):
    """What of queues.Queue is asked."""

    name: str
    vhost_name: str
    arguments: dict[str, Any]
    policy: str | None
    rules: Rules
    max_priority: int
    journaled: bool


def describe_settings(queue: Ordered) -> dict[str, Any]:
    """The fields of a "settings" line but ``at`` and ``what``: arguments and policies as they are in force.

    All values can be written as JSON but those of ``arguments``, which are AMQP's (see ``side_file.encode``).
    """
    rules = queue.rules
    return {
        "vhost": queue.vhost_name,
        "queue": queue.name,
        "journal": queue.journaled,
        "max_priority": queue.max_priority,
        "delivery_limit": rules.delivery_limit,
        "delivery_limit_action": rules.delivery_limit_action,
        "dead_letter_exchange": rules.dead_letter.exchange if rules.dead_letter is not None else None,
        "overflow": rules.overflow,
        "message_ttl_ms": rules.message_ttl_ms,
        "single_active_consumer": rules.single_active,
        "arguments": dict(queue.arguments),
        "policy": queue.policy,
        "retention_octets": rules.retention_octets,
        "retention_ms": rules.retention_ms,
    }

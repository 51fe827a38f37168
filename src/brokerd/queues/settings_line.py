"""The line "settings" of ``order.jsonl``: the settings of a queue that matter for the order of its messages.

Readers of the files (audits, dumps) know no other settings of the queue.  Knows nothing of files or times.
"""

from typing import TYPE_CHECKING, Any, Protocol

from brokerd.queues.rules import Rules

if TYPE_CHECKING:
    from brokerd.queues.deduplication import Rule as DeduplicationRule
    from brokerd.queues.groups import GroupRule


class Ordered(Protocol):
    """The part of queues.Queue that this module uses."""

    name: str
    vhost_name: str
    arguments: dict[str, Any]
    rules: Rules
    max_priority: int
    journaled: bool

    @property
    def policy(self) -> str | None:
        """The name of the policy in force."""


def describe_settings(queue: Ordered) -> dict[str, Any]:
    """The fields of a "settings" line but ``at`` and ``what``: arguments and policies as they are in force.

    All values are JSON's, except those of ``arguments``, which are AMQP's (see ``side_file.encode``).
    """
    rules = queue.rules
    return {
        "vhost": queue.vhost_name,
        "queue": queue.name,
        "journal": queue.journaled,
        "max_priority": queue.max_priority,
        "delivery_limit": rules.delivery_limit,
        "delivery_limit_action": rules.delivery_limit_action,
        "retry": rules.retry is not None,
        "dead_letter_exchange": rules.dead_letter.exchange if rules.dead_letter is not None else None,
        "dead_letter_routing_key": rules.dead_letter.routing_key if rules.dead_letter is not None else None,
        "dead_letter_at_least_once": rules.dead_letter is not None and rules.dead_letter.at_least_once,
        "overflow": rules.overflow,
        "message_ttl_ms": rules.message_ttl_ms,
        "single_active_consumer": rules.single_active,
        "groups": describe_groups(rules.group) if rules.group is not None else None,
        "deduplication": describe_deduplication(rules.deduplication) if rules.deduplication is not None else None,
        "arguments": dict(queue.arguments),
        "policy": queue.policy,
        "retention_octets": rules.retention_octets,
        "retention_ms": rules.retention_ms,
    }


def describe_deduplication(rule: "DeduplicationRule") -> dict[str, Any]:
    """The rule of duplicates."""
    return {"size": rule.size, "ttl_ms": rule.ttl_ms, "scope": rule.scope, "action": rule.action,
            "content": rule.content}


def describe_groups(rule: "GroupRule") -> dict[str, Any]:
    """The rule of message groups."""
    return {"mode": "sticky" if rule.sticky else "exclusive", "by": rule.by, "headers": list(rule.headers),
            "keyless": rule.keyless, "most": rule.most}

"""Message groups: the rule of a queue from its arguments, and the gate of the data plane that keeps it.

    x-message-group          off; exclusive: one message of a group is out at a time; sticky: a group stays with a
                             consumer
    x-message-group-header   the header that says the group, or one of ``PROPERTIES``; else the first of ``HEADERS``
    qpid.group_header_key    the same header, and exclusive groups (Apache Qpid)

Groups and a single active consumer exclude each other: declare refuses both, and a policy for groups does nothing to
such a queue.  Knows nothing of which groups there are.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from brokerd import plane

HEADERS = ("JMSXGroupID", "x-message-group-id", "MessageGroupId", "group-id")
PROPERTIES = ("routing-key", "correlation-id", "type", "user-id", "app-id")
IDLE_MS = 60_000


class GroupRule(NamedTuple):
    """``by``: "header" or one of PROPERTIES.  ``keyless``: what becomes of a message without a key.  ``most``: messages
    of an exclusive group that may be out, all with one consumer."""

    sticky: bool = False
    by: str = "header"
    headers: tuple[str, ...] = HEADERS
    keyless: str = "free"
    most: int = 1
    idle_ms: int = IDLE_MS


def rule_of(given: Mapping[str, Any]) -> GroupRule | None:
    """The rule of effective arguments; None: no groups."""
    header = given.get("qpid.group_header_key", given.get("x-message-group-header"))
    mode = given.get("x-message-group", "exclusive" if "qpid.group_header_key" in given else "off")
    if mode == "off" or given.get("x-single-active-consumer") is True:
        return None
    by = "header"
    if header in PROPERTIES and "qpid.group_header_key" not in given:
        by = header
    return GroupRule(
        sticky=mode == "sticky",
        by=by,
        headers=() if by != "header" else HEADERS if header is None else (header,),
        keyless=given.get("x-group-default", "free"),
        most=given.get("x-group-max-inflight", 1),
        idle_ms=given.get("x-group-idle-timeout", IDLE_MS),
    )


def gate_of(rule: GroupRule, max_priority: int) -> plane.Groups:
    """The gate that keeps the rule in a queue with these priorities."""
    names = tuple([name.encode("utf-8", "surrogateescape") for name in rule.headers])
    return plane.Groups(sticky=rule.sticky, by=rule.by, names=names, keyless=rule.keyless, most=rule.most,
                        idle_ms=rule.idle_ms, max_priority=max_priority)

"""Checks whether a user may do an operation: compares the row's ``Right`` with the user's tags and permissions.

The check comes before any name is looked up, so that a refusal does not tell strangers which names exist.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from brokerd.errors import NotFound
from brokerd.operations import OperationError

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.rows import Operation, Right, Tag, Who

# The tags that include a tag, itself among them.  RabbitMQ's tags, and its order of them.
INCLUDED_IN: "dict[Tag, frozenset[str]]" = {
    "management": frozenset({"management", "policymaker", "monitoring", "administrator"}),
    "policymaker": frozenset({"policymaker", "administrator"}),
    "monitoring": frozenset({"monitoring", "administrator"}),
    "administrator": frozenset({"administrator"}),
}
SEES_ALL_VHOSTS = INCLUDED_IN["monitoring"]


def check(node: "Node", who: "Who", row: "Operation[Any, Any]", request: Any) -> None:
    """Return if ``who`` may do it.  Raises OperationError (403)."""
    if who.local:
        return
    right = row.right
    try:
        tags = who.granted.tags if who.granted is not None else node.users.get(who.user).tags
    except NotFound:
        raise OperationError(f"{row.name} refused: no user '{who.user}'", 403) from None
    if INCLUDED_IN[right.tag].isdisjoint(tags):
        raise OperationError(f"{row.name} refused: user '{who.user}' does not have the tag {right.tag}", 403)
    if not right.permission:
        return
    vhost = request.vhost
    if right.permission == "visit":
        if not vhost:
            return  # It asks for all that the user may see: see visible_vhosts().
        if SEES_ALL_VHOSTS.isdisjoint(tags) and not has_access(node, who, vhost):
            raise OperationError(f"{row.name} refused: user '{who.user}' has no permissions in vhost '{vhost}'", 403)
        return
    thing = asdict(request)[right.on]
    if not _is_allowed(node, who, vhost, right, thing):
        raise OperationError(
            f"{row.name} refused: user '{who.user}' may not {right.permission} '{thing}' in vhost '{vhost}'", 403
        )


def has_tag(node: "Node", who: "Who", tag: "Tag") -> bool:
    """Whether one of the user's tags is this one or includes it."""
    if who.local:
        return True
    if who.granted is not None:
        return not INCLUDED_IN[tag].isdisjoint(who.granted.tags)
    return who.user in node.users and not INCLUDED_IN[tag].isdisjoint(node.users.get(who.user).tags)


def has_access(node: "Node", who: "Who", vhost: str) -> bool:
    """Whether the user may enter the vhost.  Raises NotAnsweredYet."""
    return who.granted.has_access(vhost) if who.granted is not None else node.permissions.has_access(who.user, vhost)


def _is_allowed(node: "Node", who: "Who", vhost: str, right: "Right", name: str) -> bool:
    if who.granted is not None:
        return who.granted.check(vhost, right.permission, name, "exchange" if right.on == "exchange" else "queue")
    return node.permissions.check(who.user, vhost, right.permission, name)


def visible_vhosts(node: "Node", who: "Who") -> "Callable[[str], bool]":
    """The function that tells whether the user may see a vhost."""
    if has_tag(node, who, "monitoring"):
        return lambda vhost: True
    return lambda vhost: has_access(node, who, vhost)


def visible_clients(node: "Node", who: "Who") -> "Callable[[Any], bool]":
    """The function that tells whether the user may see a connection: only its own, unless it may see all (RabbitMQ)."""
    if has_tag(node, who, "monitoring"):
        return lambda connection: True
    return lambda connection: connection.user == who.user

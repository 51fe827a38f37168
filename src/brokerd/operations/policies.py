"""What operations on policies and on operator policies share."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from brokerd.operations.rows import Name, TypedDict

if TYPE_CHECKING:
    from brokerd.policies.policies import PolicyFile
    from brokerd.vhost.vhost import VHost

# "apply-to" is no name that a class can have.
PolicyRow = TypedDict("PolicyRow", {
    "vhost": Name, "name": Name, "pattern": str, "apply-to": str, "definition": dict[str, Any], "priority": float,
})  # fmt: skip


def file_of(vhost: "VHost", *, operator: bool) -> "PolicyFile":
    """The vhost's policies of that kind."""
    assert vhost.policies is not None
    return vhost.policies.operators if operator else vhost.policies


def find_policies(vhosts: "list[VHost]", *, operator: bool) -> Iterator[tuple[Any, str, Any]]:
    """The policies of vhosts, as ``lists.Listing`` finds them."""
    for vhost in vhosts:
        for policy in list(file_of(vhost, operator=operator)):
            yield (vhost.name, policy.name), policy.name, {"vhost": vhost.name, **policy.entry()}

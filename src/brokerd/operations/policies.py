"""Code that operations on policies and on operator policies share."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from brokerd.operations import OperationError
from brokerd.operations.changing import Lasting, change_files, file_changes, in_pieces
from brokerd.operations.jobs import IN_THREAD, ON_LOOP, Steps
from brokerd.operations.lists import find_vhost
from brokerd.operations.rows import DONE, Name, TypedDict

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.rows import Who
    from brokerd.policies.policies import Policy, PolicyFile
    from brokerd.store.json_file import Change
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


def made(entry: dict[str, Any], *, operator: bool) -> "Policy":
    """The policy of an entry of definitions.  Its pattern may take long to compile.  Raises OperationError (400), in
    words for people."""
    from brokerd.errors import PreconditionFailed
    from brokerd.policies.policies import APPLY_TO, Policy
    from brokerd.policies.words import explain

    try:
        return Policy.from_entry(entry, operator=operator)
    except PreconditionFailed as error:
        reason = explain(entry, APPLY_TO, operator=operator) or str(error)
        what = "operator policy" if operator else "policy"
        raise OperationError(f"{what} {entry.get('name')!r:.80}: {reason}", 400) from None


def set_policy(node: "Node", who: "Who", vhost_name: str, entry: dict[str, Any], *, operator: bool) -> Lasting:
    """The job that makes or replaces a policy.  Raises OperationError (404)."""
    vhost = find_vhost(node, vhost_name)

    def steps() -> Steps:
        yield IN_THREAD
        policy = made(entry, operator=operator)
        yield ON_LOOP

        def plan() -> Iterable["Change"]:
            return [file_of(find_vhost(node, vhost_name), operator=operator).changed([policy])]

        def then() -> Steps:
            yield from in_pieces(node.upkeep.put_policies_in_force(vhost))
            node.links.changed()
            node.tell("operator_policy.set" if operator else "policy.set", {"vhost": vhost_name, **policy.entry()},
                      who.user)  # fmt: skip
            return DONE

        return (yield from file_changes(node, plan, then))

    return Lasting(node, steps())


def delete_policy(node: "Node", who: "Who", vhost_name: str, name: str, *, operator: bool) -> Lasting:
    """The job that deletes a policy.  Raises OperationError (404)."""
    vhost = find_vhost(node, vhost_name)

    def plan() -> Iterable["Change"]:
        file = file_of(find_vhost(node, vhost_name), operator=operator)
        if not any(policy.name == name for policy in file):
            what = "operator policy" if operator else "policy"
            raise OperationError(f"no {what} '{name}' in vhost '{vhost_name}'", 404)
        return [file.changed(gone=[name])]

    def then() -> Steps:
        yield from in_pieces(node.upkeep.put_policies_in_force(vhost))
        node.links.changed()
        node.tell("operator_policy.cleared" if operator else "policy.cleared", {"vhost": vhost_name, "name": name},
                  who.user)  # fmt: skip
        return DONE

    return change_files(node, plan, then)

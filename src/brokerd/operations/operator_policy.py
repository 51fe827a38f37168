"""Operations on operator policies."""

from typing import TYPE_CHECKING, Annotated, Any

from brokerd.operations.changing import Lasting
from brokerd.operations.lists import Listing, Page, Paging, vhosts_to_list
from brokerd.operations.policies import PolicyRow, delete_policy, find_policies, set_policy
from brokerd.operations.rows import Done, Field, Operation, Right, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node


# --- operator_policy list


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""


class Policies(Page):
    items: list[PolicyRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    vhosts = vhosts_to_list(node, who, request.vhost)
    return Listing(find_policies(vhosts, operator=True), lambda row: row, request)


# --- operator_policy set


@request
class SetRequest:
    name: Annotated[str, Field("The policy's name.", argument=True)]
    pattern: Annotated[str, Field("A regular expression for names of queues and exchanges.", argument=True)]
    definition: Annotated[dict[str, Any], Field('Settings, as in {"max-length": 100}.', argument=True)]
    vhost: Annotated[str, Field("Vhost in which the policy holds.")] = "/"
    priority: Annotated[int, Field("Of the policies that match, the highest priority wins.")] = 0
    apply_to: Annotated[str, Field("all, queues, classic_queues, quorum_queues, streams or exchanges.")] = "all"


def _set(node: "Node", who: Who, request: SetRequest) -> Lasting:
    entry = {
        "name": request.name, "pattern": request.pattern, "definition": request.definition,
        "priority": request.priority, "apply-to": request.apply_to,
    }  # fmt: skip
    return set_policy(node, who, request.vhost, entry, operator=True)


# --- operator_policy delete


@request
class DeleteRequest:
    name: Annotated[str, Field("The policy's name.", argument=True)]
    vhost: Annotated[str, Field("Vhost in which the policy holds.")] = "/"


def _delete(node: "Node", who: Who, request: DeleteRequest) -> Lasting:
    return delete_policy(node, who, request.vhost, request.name, operator=True)


OPERATIONS = (
    Operation(
        "operator_policy", "set",
        "Make or replace an operator policy; it holds at once.",
        SetRequest, Done, Right("administrator", "visit"), _set, changes=True, job=True,
        aliases=("set_operator_policy",),
    ),
    Operation(
        "operator_policy", "delete",
        "Delete an operator policy.",
        DeleteRequest, Done, Right("administrator", "visit"), _delete, changes=True, job=True,
        aliases=("clear_operator_policy",),
    ),
    Operation(
        "operator_policy", "list",
        "List the operator policies.",
        ListRequest, Policies, Right("management", "visit"), _list, job=True, aliases=("list_operator_policies",),
    ),
)  # fmt: skip

"""Operations on operator policies."""

from typing import TYPE_CHECKING, Annotated

from brokerd.operations.lists import Listing, Page, Paging, vhosts_to_list
from brokerd.operations.policies import PolicyRow, find_policies
from brokerd.operations.rows import Field, Operation, Right, Who, request

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


OPERATIONS = (
    Operation(
        "operator_policy", "list",
        "List the operator policies.",
        ListRequest, Policies, Right("management", "visit"), _list, job=True, aliases=("list_operator_policies",),
    ),
)  # fmt: skip

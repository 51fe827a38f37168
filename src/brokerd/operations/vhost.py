"""Operations on vhosts."""

from typing import TYPE_CHECKING, Annotated

from brokerd.operations.lists import Listing, Page, Paging, find_vhost, vhosts_to_list
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.vhost.vhost import VHost


class VHostRow(TypedDict):
    name: Name
    tracing: bool  # the firehose is on
    limits: dict[str, int]
    queues: int
    exchanges: int
    dir: Name


def describe(node: "Node", vhost: "VHost") -> VHostRow:
    """One vhost."""
    row = node.listing.rows[vhost.name]
    return {
        "name": vhost.name, "tracing": row.tracing, "limits": row.limits, "queues": len(vhost.queues),
        "exchanges": len(vhost.exchanges), "dir": vhost.directory,
    }  # fmt: skip


# --- vhost list


@request
class ListRequest(Paging):
    pass


class VHosts(Page):
    items: list[VHostRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    vhosts = vhosts_to_list(node, who, "")
    return Listing(
        ((each.name, each.name, each) for each in vhosts),
        lambda vhost: describe(node, vhost) if vhost.name in node.listing.rows else None,
        request,
    )


# --- vhost show


@request
class ShowRequest:
    vhost: Annotated[str, Field("The vhost's name.", argument=True)]


def _show(node: "Node", who: Who, request: ShowRequest) -> VHostRow:
    return describe(node, find_vhost(node, request.vhost))


OPERATIONS = (
    Operation(
        "vhost", "list",
        "List the vhosts.",
        ListRequest, VHosts, Right("management"), _list, job=True, aliases=("list_vhosts",),
    ),
    Operation(
        "vhost", "show",
        "Show one vhost.",
        ShowRequest, VHostRow, Right("management", "visit"), _show,
    ),
)  # fmt: skip

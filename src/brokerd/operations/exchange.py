"""Operations on exchanges."""

from typing import TYPE_CHECKING, Annotated, Any

from brokerd.operations import describing
from brokerd.operations.lists import Listing, Page, Paging, find_exchange, find_vhost, vhosts_to_list
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node


class Exchange(TypedDict):
    name: Name
    vhost: Name
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: dict[str, Any]
    policy: Name | None
    operator_policy: Name | None
    effective_policy_definition: dict[str, Any]
    bindings: int  # that leave it
    message_stats: dict[str, int]  # publish_in, publish_out: since the start


# --- exchange list


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""


class Exchanges(Page):
    items: list[Exchange]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    vhosts = vhosts_to_list(node, who, request.vhost)
    things = ((vhost, each) for vhost in vhosts for each in list(vhost.exchanges.values()))
    find = (((vhost.name, each.name), each.name, (vhost, each)) for vhost, each in things)
    return Listing(find, lambda found: describing.exchange(*found), request)


# --- exchange show


@request
class ShowRequest:
    exchange: Annotated[str, Field("The exchange's name.", argument=True)]
    vhost: Annotated[str, Field("Vhost of the exchange.")] = "/"


def _show(node: "Node", who: Who, request: ShowRequest) -> Exchange:
    vhost = find_vhost(node, request.vhost)
    return describing.exchange(vhost, find_exchange(vhost, request.exchange))  # type: ignore[return-value]


OPERATIONS = (
    Operation(
        "exchange", "list",
        "List exchanges, with their policies and counters.",
        ListRequest, Exchanges, Right("management", "visit"), _list, job=True, aliases=("list_exchanges",),
    ),
    Operation(
        "exchange", "show",
        "Show one exchange.",
        ShowRequest, Exchange, Right("management", "visit"), _show,
    ),
)  # fmt: skip

"""Operations on bindings."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from brokerd.operations import describing
from brokerd.operations.lists import Listing, Page, Paging, vhosts_to_list
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.vhost.vhost import VHost


class BindingRow(TypedDict):
    source: Name
    vhost: Name
    destination: Name
    destination_type: str  # queue or exchange
    routing_key: Name
    arguments: dict[str, Any]
    properties_key: str  # names it among those with the same ends, as RabbitMQ's management API does


# --- binding list


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""
    source: Annotated[str, Field("Only those that leave this exchange; amq.default is the default exchange.")] = ""
    destination: Annotated[str, Field("Only those that lead to the queue or exchange of this name.")] = ""
    destination_type: Annotated[Literal["", "queue", "exchange"], Field("Only those that lead to this kind.")] = ""


class Bindings(Page):
    items: list[BindingRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    """What the list's ``name`` is compared with is the routing key."""
    return Listing(_find(vhosts_to_list(node, who, request.vhost), request), lambda make: make(), request)


def _find(vhosts: "list[VHost]", request: ListRequest) -> Iterator[tuple[Any, str, Any]]:
    kind, source = request.destination_type, request.source
    for vhost in vhosts:
        if source in ("", "amq.default") and kind != "exchange":
            for name in list(vhost.queues):
                if request.destination in ("", name):
                    yield (vhost.name, "", name, name), name, partial(describing.default_binding, vhost, name)
        for exchange in list(vhost.exchanges.values()):
            if source not in ("", exchange.name):
                continue
            for each in list(exchange.bindings()):
                to_exchange = hasattr(each.destination, "bindings_to")
                fits = not kind or (kind == "exchange") is to_exchange
                if fits and request.destination in ("", each.destination.name):
                    key = vhost.name, exchange.name, each.destination.name, each.routing_key
                    yield key, each.routing_key, partial(describing.binding, vhost, each)


OPERATIONS = (
    Operation(
        "binding", "list",
        "List bindings; a name that is asked for is compared with the routing key.",
        ListRequest, Bindings, Right("management", "visit"), _list, job=True, aliases=("list_bindings",),
    ),
)  # fmt: skip

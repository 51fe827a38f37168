"""Operations on bindings."""

from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from brokerd.operations import OperationError, describing
from brokerd.operations.changing import OPERATOR, Lasting, define, door
from brokerd.operations.lists import Listing, Page, Paging, find_vhost, vhosts_to_list
from brokerd.operations.rows import DONE, Done, Field, Name, Operation, Right, TypedDict, Who, request

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
    """The filter ``name`` looks at the routing key."""
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


# --- binding add, delete


@request
class AddRequest:
    source: Annotated[str, Field("The exchange that it leaves.", argument=True)]
    destination: Annotated[str, Field("The queue or exchange that it leads to.", argument=True)]
    routing_key: Annotated[str, Field("Its routing key.", high=255)] = ""
    destination_type: Annotated[Literal["queue", "exchange"], Field("The kind of that destination.")] = "queue"
    arguments: Annotated[dict[str, Any] | None, Field("Its arguments, as JSON.")] = None
    vhost: Annotated[str, Field("Vhost of both.")] = "/"


class Added(TypedDict):
    created: bool  # false: it was there
    properties_key: str


def _add(node: "Node", who: Who, request: AddRequest) -> Lasting:
    vhost = find_vhost(node, request.vhost)
    access = door(node, who, vhost)

    def work() -> Generator[None, None, Added]:
        from brokerd.exchanges import Binding

        before, arguments = _count(vhost, request.source), dict(request.arguments or {})
        if request.destination_type == "queue":
            yield from access.bind_queue_in_pieces(
                request.destination, request.source, request.routing_key, arguments, OPERATOR
            )
        else:
            yield from access.bind_exchange_in_pieces(
                request.destination, request.source, request.routing_key, arguments
            )
        binding = Binding(vhost.exchanges[request.source], None, request.routing_key, arguments)
        return {"created": _count(vhost, request.source) > before, "properties_key": binding.properties_key}

    return define(node, vhost, work)


@request
class DeleteRequest:
    source: Annotated[str, Field("The exchange that it leaves.", argument=True)]
    destination: Annotated[str, Field("The queue or exchange that it leads to.", argument=True)]
    routing_key: Annotated[str, Field("Its routing key.", high=255)] = ""
    destination_type: Annotated[Literal["queue", "exchange"], Field("The kind of that destination.")] = "queue"
    arguments: Annotated[dict[str, Any] | None, Field("Its arguments, as JSON.")] = None
    properties_key: Annotated[str, Field("Its name in lists, in place of routing key and arguments.")] = ""
    vhost: Annotated[str, Field("Vhost of both.")] = "/"


def _delete(node: "Node", who: Who, request: DeleteRequest) -> Lasting:
    vhost = find_vhost(node, request.vhost)
    access = door(node, who, vhost)

    def work() -> Generator[None, None, Done]:
        before = _count(vhost, request.source)
        key, arguments = request.routing_key, dict(request.arguments or {})
        if request.properties_key:
            key, arguments = _named(vhost, request)
        if request.destination_type == "queue":
            yield from access.unbind_queue_in_pieces(request.destination, request.source, key, arguments, OPERATOR)
        else:
            yield from access.unbind_exchange_in_pieces(request.destination, request.source, key, arguments)
        if _count(vhost, request.source) == before and request.source in vhost.exchanges:
            raise OperationError(
                f"no such binding from exchange '{request.source}' to {request.destination_type} "
                f"'{request.destination}' in vhost '{vhost.name}'", 404)  # fmt: skip
        return DONE

    return define(node, vhost, work)


def _named(vhost: "VHost", request: DeleteRequest) -> tuple[str, dict[str, Any]]:
    """Routing key and arguments of the binding with that properties key; without such a binding, keys that none has."""
    things: Any = vhost.queues if request.destination_type == "queue" else vhost.exchanges
    destination = things.get(request.destination)
    incoming = () if destination is None else getattr(destination, "bindings_to", None) or destination.bindings
    for each in incoming:
        if each.source.name == request.source and each.properties_key == request.properties_key:
            return each.routing_key, each.arguments
    return request.properties_key, {"": ""}


def _count(vhost: "VHost", source: str) -> int:
    exchange = vhost.exchanges.get(source)
    return 0 if exchange is None else exchange.binding_count


OPERATIONS = (
    Operation(
        "binding", "add",
        "Bind a queue or an exchange to an exchange.",
        AddRequest, Added, Right("management", "visit"), _add, changes=True, job=True, aliases=("add_binding",),
    ),
    Operation(
        "binding", "delete",
        "Delete a binding.",
        DeleteRequest, Done, Right("management", "visit"), _delete, changes=True, job=True,
        aliases=("delete_binding",),
    ),
    Operation(
        "binding", "list",
        "List bindings; --name looks for a text in the routing key.",
        ListRequest, Bindings, Right("management", "visit"), _list, job=True, aliases=("list_bindings",),
    ),
)  # fmt: skip

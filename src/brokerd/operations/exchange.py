"""Operations on exchanges."""

from typing import TYPE_CHECKING, Annotated, Any

from brokerd.operations import OperationError, describing
from brokerd.operations.changing import Lasting, define, door
from brokerd.operations.lists import Listing, Page, Paging, find_exchange, find_vhost, vhosts_to_list
from brokerd.operations.rows import DONE, Done, Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.jobs import Job


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


# --- exchange declare


@request
class DeclareRequest:
    exchange: Annotated[str, Field("The exchange's name.", argument=True, low=1, high=255)]
    type: Annotated[str, Field("Its type, such as direct, fanout, topic, headers.")] = "direct"
    durable: Annotated[bool, Field("It survives a restart.")] = True
    auto_delete: Annotated[bool, Field("It goes with its last binding.")] = False
    internal: Annotated[bool, Field("Clients cannot publish to it.")] = False
    arguments: Annotated[dict[str, Any] | None, Field("Further arguments, as JSON.")] = None
    vhost: Annotated[str, Field("Vhost of the exchange.")] = "/"


class Declared(TypedDict):
    created: bool  # false: it was there, and is equivalent


def _declare(node: "Node", who: Who, request: DeclareRequest) -> Lasting:
    vhost = find_vhost(node, request.vhost)
    access = door(node, who, vhost)

    def work() -> Declared:
        there = len(vhost.exchanges)
        access.declare_exchange(
            request.exchange, request.type, durable=request.durable, auto_delete=request.auto_delete,
            internal=request.internal, arguments=dict(request.arguments or {}),
        )  # fmt: skip
        return {"created": len(vhost.exchanges) > there}

    return define(node, vhost, work)


# --- exchange delete


@request
class DeleteRequest:
    exchange: Annotated[str, Field("The exchange's name.", argument=True)]
    if_unused: Annotated[bool, Field("Only if no binding leaves it.")] = False
    vhost: Annotated[str, Field("Vhost of the exchange.")] = "/"


def _delete(node: "Node", who: Who, request: DeleteRequest) -> Lasting:
    vhost = find_vhost(node, request.vhost)
    access = door(node, who, vhost)

    def work() -> Any:
        deletion = access.delete_exchange_in_pieces(request.exchange, if_unused=request.if_unused)
        if request.exchange not in vhost.exchanges:
            access.check_exchange("configure", request.exchange)
            raise OperationError(f"no exchange '{request.exchange}' in vhost '{vhost.name}'", 404)
        yield from deletion
        return DONE

    return define(node, vhost, work)


# --- exchange delayed, deliver_now, cancel_delayed


@request
class DelayedRequest:
    exchange: Annotated[str, Field("The delayed exchange.", argument=True)]
    count: Annotated[int, Field("How many messages at most.", low=1, high=1000)] = 100
    truncate: Annotated[int, Field("Octets of a payload that are shown; 0: all.", low=0)] = 1000
    vhost: Annotated[str, Field("Vhost of the exchange.")] = "/"


class DelayedRow(TypedDict):
    seq: int  # what deliver_now and cancel_delayed ask for
    due_at: int  # ms since the epoch
    routing_key: Name
    properties: dict[str, Any]
    payload: str
    payload_encoding: str  # string or base64
    payload_bytes: int


class DelayedMessages(TypedDict):
    exchange: Name
    waiting: int  # all that wait
    items: list[DelayedRow]  # by due time


@request
class DelayedMessageRequest:
    exchange: Annotated[str, Field("The delayed exchange.", argument=True)]
    seq: Annotated[int, Field("The message's number, as exchange delayed shows it.", argument=True, low=1)]
    vhost: Annotated[str, Field("Vhost of the exchange.")] = "/"


def _delayed(node: "Node", who: Who, request: DelayedRequest) -> "Job":
    from brokerd.operations.delayed import Listing as Waiting

    return Waiting(node, who, request)


def _deliver_now(node: "Node", who: Who, request: DelayedMessageRequest) -> Lasting:
    from brokerd.operations.delayed import deliver_now

    return deliver_now(node, who, request)


def _cancel_delayed(node: "Node", who: Who, request: DelayedMessageRequest) -> Lasting:
    from brokerd.operations.delayed import cancel

    return cancel(node, who, request)


OPERATIONS = (
    Operation(
        "exchange", "declare",
        "Make an exchange, or check that it is there with these properties.",
        DeclareRequest, Declared, Right("management", "visit"), _declare, changes=True, job=True,
        aliases=("declare_exchange", "create_exchange"),
    ),
    Operation(
        "exchange", "delete",
        "Delete an exchange with its bindings.",
        DeleteRequest, Done, Right("management", "visit"), _delete, changes=True, job=True,
        aliases=("delete_exchange",),
    ),
    Operation(
        "exchange", "list",
        "List exchanges, with their policies and counters.",
        ListRequest, Exchanges, Right("management", "visit"), _list, job=True, aliases=("list_exchanges",),
    ),
    Operation(
        "exchange", "delayed",
        "List the messages that a delayed exchange holds back, the next ones first.",
        DelayedRequest, DelayedMessages, Right("management", "visit"), _delayed, job=True,
    ),
    Operation(
        "exchange", "deliver_now",
        "Send a delayed message on before its time.",
        DelayedMessageRequest, Done, Right("management", "visit"), _deliver_now, changes=True, job=True,
    ),
    Operation(
        "exchange", "cancel_delayed",
        "Drop a delayed message before its time.",
        DelayedMessageRequest, Done, Right("management", "visit"), _cancel_delayed, changes=True, job=True,
    ),
    Operation(
        "exchange", "show",
        "Show one exchange.",
        ShowRequest, Exchange, Right("management", "visit"), _show,
    ),
)  # fmt: skip

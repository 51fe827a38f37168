"""Operations on consumers."""

from typing import TYPE_CHECKING, Annotated, Any

from brokerd.operations import OperationError, describing
from brokerd.operations.changing import Lasting, define
from brokerd.operations.connection import find_connection
from brokerd.operations.lists import Listing, Page, Paging, vhosts_to_list
from brokerd.operations.rows import DONE, Done, Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node


class ConsumerRow(TypedDict):
    number: int  # stands in order journals
    consumer_tag: Name
    queue: Name
    vhost: Name
    connection: int  # its number
    connection_name: str
    channel: int
    user: Name
    ack_required: bool
    exclusive: bool
    prefetch_count: int
    priority: int
    active: bool  # false while another one is the single active consumer
    activity_status: str
    arguments: dict[str, Any]
    messages_unacknowledged: int
    messages_delivered: int  # since it began to consume
    consumer_timeout: int  # ms; -1: none


# --- consumer list


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""
    queue: Annotated[str, Field("Only those of the queue of this name.")] = ""


class Consumers(Page):
    items: list[ConsumerRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    vhosts = vhosts_to_list(node, who, request.vhost)
    if request.queue:
        queues = (vhost.queues[request.queue] for vhost in vhosts if request.queue in vhost.queues)
    else:
        queues = (each for vhost in vhosts for each in list(vhost.queues.values()))
    return Listing(describing.consumers_of(queues), describing.consumer, request)


# --- consumer cancel


@request
class CancelRequest:
    connection: Annotated[str, Field("Name or number of its connection.", argument=True)]
    channel: Annotated[int, Field("Number of its channel.", argument=True, low=1, high=65535)]
    tag: Annotated[str, Field("Its tag.", argument=True)]


def _cancel(node: "Node", who: Who, request: CancelRequest) -> Lasting:
    connection = find_connection(node, who, request.connection)
    channel = (connection.channels or {}).get(request.channel)
    octets = request.tag.encode("utf-8", "surrogateescape")
    consumer = (channel.consumers or {}).get(octets) if channel is not None else None
    if channel is None or consumer is None:
        raise OperationError(
            f"no consumer '{request.tag}' on channel {request.channel} of connection '{request.connection}'", 404)

    def work() -> Any:
        yield from connection.access.cancel(channel, request.tag)
        connection.on_consumer_cancelled(consumer)
        return DONE

    return define(node, connection.access.vhost, work)


OPERATIONS = (
    Operation(
        "consumer", "cancel",
        "Cancel a client's consumer, and tell the client if it has asked for that.",
        CancelRequest, Done, Right("administrator"), _cancel, changes=True, job=True, aliases=("cancel_consumer",),
    ),
    Operation(
        "consumer", "list",
        "List the consumers of queues; --name looks for a text in the tag.",
        ListRequest, Consumers, Right("management", "visit"), _list, job=True, aliases=("list_consumers",),
    ),
)  # fmt: skip

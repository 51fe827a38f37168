"""Operations on channels."""

from typing import TYPE_CHECKING, Annotated, Any

from brokerd.operations import describing
from brokerd.operations.connection import find_clients
from brokerd.operations.lists import Listing, Page, Paging
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokerd.node import Node


class ChannelRow(TypedDict):
    name: str  # that of the connection, and the number in brackets
    number: int
    connection: int  # its number
    connection_name: str
    vhost: Name
    user: Name
    state: str
    consumer_count: int
    prefetch_count: int
    global_prefetch_count: int
    confirm: bool
    transactional: bool
    messages_unacknowledged: int
    messages_unconfirmed: int  # published in confirm mode, and not confirmed yet
    publishes: int  # since the channel number was first opened
    message_stats: dict[str, int]  # counters: publish, confirm, deliver, get, deliver_get, ack


# --- channel list


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""
    connection: Annotated[str, Field("Only those of the connection with this name or number.")] = ""


class Channels(Page):
    items: list[ChannelRow]


def _find(node: "Node", who: Who, request: ListRequest) -> "Iterator[tuple[Any, str, Any]]":
    for client in find_clients(node, who, request.vhost):
        if request.connection in ("", client.peer, str(client.number)):
            for number, channel in list((client.channels or {}).items()):
                name = f"{client.peer} ({number})"
                yield (client.peer, client.number, number), name, channel


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    return Listing(_find(node, who, request), describing.channel, request)


OPERATIONS = (
    Operation(
        "channel", "list",
        "List the open channels.",
        ListRequest, Channels, Right("management", "visit"), _list, job=True, aliases=("list_channels",),
    ),
)  # fmt: skip

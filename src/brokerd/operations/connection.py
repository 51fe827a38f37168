"""Operations on connections."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from brokerd.operations import OperationError, describing, rights
from brokerd.operations.changing import Lasting
from brokerd.operations.jobs import ON_LOOP, Pace, Steps
from brokerd.operations.lists import Listing, Page, Paging
from brokerd.operations.rows import DONE, Done, Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node


class ConnectionRow(TypedDict):
    number: int  # no other connection of this broker has or had it; 0: not in a vhost yet
    name: str  # the client's address and port
    user_provided_name: Name | None
    vhost: Name | None
    user: Name
    state: str
    channels: int
    channel_max: int
    frame_max: int
    timeout: int  # heartbeats, in seconds
    protocol: str
    type: str
    ssl: bool
    certificate_name: Name
    peer_host: str
    peer_port: int
    connected_at: int  # ms since the epoch
    client_properties: dict[str, Any]
    recv_oct: int
    send_oct: int
    send_pend: int  # octets that wait for the client


# --- connection list


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""
    user: Annotated[str, Field("Only those of this user.")] = ""


class Connections(Page):
    items: list[ConnectionRow]


def find_clients(node: "Node", who: Who, vhost: str, user: str = "") -> Iterator[Any]:
    """The connections in a vhost that ``who`` may see; vhost "": in all."""
    sees = rights.visible_clients(node, who)
    for each in list(node.connections):
        if each.access is not None and sees(each) and vhost in ("", each.access.vhost.name) and user in ("", each.user):
            yield each


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    clients = find_clients(node, who, request.vhost, request.user)
    return Listing((((each.peer, each.number), each.peer, each) for each in clients), describing.connection, request)


# --- connection show


@request
class ShowRequest:
    connection: Annotated[str, Field("Its name (address and port) or number.", argument=True)]


def find_connection(node: "Node", who: Who, name: str) -> Any:
    """The connection of that name or number that the user may see.  Raises OperationError (404)."""
    sees = rights.visible_clients(node, who)
    for each in node.connections:
        if name in (each.peer, str(each.number)) and each.number and sees(each):
            return each
    raise OperationError(f"no connection '{name}'", 404)


def _show(node: "Node", who: Who, request: ShowRequest) -> ConnectionRow:
    return describing.connection(find_connection(node, who, request.connection))  # type: ignore[return-value]


# --- connection close


@request
class CloseRequest:
    connection: Annotated[str, Field("Its name (address and port) or number.", argument=True)]
    reason: Annotated[str, Field("Reason for the client.", argument=True, high=200)] = "Closed via management plugin"


def _close(node: "Node", who: Who, request: CloseRequest) -> Done:
    from brokerd.errors import ConnectionForced

    connection = find_connection(node, who, request.connection)
    if not _may_close(node, who)(connection):
        raise OperationError(f"connection close refused: user '{who.user}' may close only its own connections", 403)
    connection.shut(ConnectionForced(request.reason))
    node.core.turn()
    return DONE


def _may_close(node: "Node", who: Who) -> Callable[[Any], bool]:
    """The function that tells whether the user may close a connection: its own, and an administrator each."""
    if rights.has_tag(node, who, "administrator"):
        return lambda connection: True
    return lambda connection: bool(connection.user == who.user)


# --- connection close_all


@request
class CloseAllRequest:
    user: Annotated[str, Field("Only those of this user; empty: of all.")] = ""
    vhost: Annotated[str, Field("Only those in this vhost; empty: in all.")] = ""
    reason: Annotated[str, Field("Reason for the clients.", high=200)] = "Closed via management plugin"


class Closed(TypedDict):
    connections: int


def _close_all(node: "Node", who: Who, request: CloseAllRequest) -> Lasting:
    from brokerd.errors import ConnectionForced

    def steps() -> Steps:
        pace, closed, may_close = Pace(), 0, _may_close(node, who)
        for connection in find_clients(node, who, request.vhost, request.user):
            is_open = connection in node.connections and str(connection.state) not in ("closing", "closed")
            if connection.number and is_open and may_close(connection):
                connection.shut(ConnectionForced(request.reason))
                closed += 1
            if pace.is_over():
                node.core.turn()
                yield ON_LOOP
        node.core.turn()
        return {"connections": closed}

    return Lasting(node, steps())


OPERATIONS = (
    Operation(
        "connection", "close",
        "Close a client's connection.",
        CloseRequest, Done, Right("management"), _close, changes=True, aliases=("close_connection",),
    ),
    Operation(
        "connection", "close_all",
        "Close the connections of clients: all, or those of a user, or in a vhost.",
        CloseAllRequest, Closed, Right("management", "visit"), _close_all, changes=True, job=True,
        aliases=("close_all_connections", "close_all_user_connections"),
    ),
    Operation(
        "connection", "list",
        "List the connections of clients.",
        ListRequest, Connections, Right("management", "visit"), _list, job=True, aliases=("list_connections",),
    ),
    Operation(
        "connection", "show",
        "Show one connection.",
        ShowRequest, ConnectionRow, Right("management"), _show,
    ),
)  # fmt: skip

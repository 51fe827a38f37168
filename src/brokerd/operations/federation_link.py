"""Operations on federation links: one for each federated queue or exchange and each of its upstreams.

Policies and upstreams make links; the process that runs them tells their states.
"""

from typing import TYPE_CHECKING, Annotated

from brokerd.links.state import EXCHANGE_LINK, QUEUE_LINK, LinkState
from brokerd.links.uris import without_credentials
from brokerd.operations import OperationError
from brokerd.operations.lists import Listing, Page, Paging, find_vhost, vhosts_to_list
from brokerd.operations.rows import DONE, Done, Field, Name, Operation, Right, TypedDict, Who, request
from brokerd.operations.shovel import as_ms

if TYPE_CHECKING:
    from brokerd.node import Node


class LinkRow(TypedDict):
    """Times are milliseconds since 1970, 0 if there is none."""

    id: str  # what federation_link show and restart ask for
    vhost: Name
    type: str  # queue or exchange
    name: Name  # of the queue or exchange here
    upstream: Name
    state: str  # starting, running, blocked, idle, terminated
    reason: str  # why it does not run, in words
    next_try: int
    since: int  # since when it has this state
    uri: str  # which it is connected to, or tried last, without user and password
    source: Name  # the queue or exchange at the upstream
    consumer_tag: str
    messages: int  # that have arrived since it began
    rate: float  # of those, a second
    unconfirmed: int  # taken here, and not yet confirmed
    retried: int
    rejected: int
    reconnects: int
    last_message: int
    lag: int  # messages that wait at the upstream, as last told


def _row(link: LinkState) -> LinkRow:
    return {
        "id": link_id(link), "vhost": link.vhost, "type": link.kind, "name": link.name, "upstream": link.upstream,
        "state": link.state, "reason": link.reason, "next_try": as_ms(link.next_try), "since": as_ms(link.since),
        "uri": without_credentials(link.source_uri),
        "source": link.source, "consumer_tag": link.consumer_tag, "messages": link.messages,
        "rate": link.rate, "unconfirmed": link.unconfirmed, "retried": link.retried, "rejected": link.rejected,
        "reconnects": link.reconnects, "last_message": as_ms(link.last_message), "lag": link.lag,
    }  # fmt: skip


def link_id(link: LinkState) -> str:
    """Eight digits that name a link, also after a restart."""
    from hashlib import blake2b

    words = "\0".join(link.key).encode("utf-8", "surrogateescape")
    return blake2b(words, digest_size=4).hexdigest()


# --- federation_link list, show


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""
    only_down: Annotated[bool, Field("Only those that do not run.")] = False


class Links(Page):
    items: list[LinkRow]


DOWN = ("starting", "blocked", "terminated")


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    vhosts = {vhost.name for vhost in vhosts_to_list(node, who, request.vhost)}
    found = (
        (link.key, link.name, link) for link in node.links.of_kind(QUEUE_LINK, EXCHANGE_LINK)
        if link.vhost in vhosts and (not request.only_down or link.state in DOWN)
    )  # fmt: skip
    return Listing(found, _row, request)


@request
class OneRequest:
    id: Annotated[str, Field("The link's id, as federation_link list shows it.", argument=True)]
    vhost: Annotated[str, Field("Its vhost.")] = "/"


def _show(node: "Node", who: Who, request: OneRequest) -> LinkRow:
    return _row(_find(node, request))


def _find(node: "Node", request: OneRequest) -> LinkState:
    """The link of that id.  Raises OperationError (404)."""
    find_vhost(node, request.vhost)
    for link in node.links.of_kind(QUEUE_LINK, EXCHANGE_LINK):
        if link.vhost == request.vhost and link_id(link) == request.id:
            return link
    raise OperationError(f"no federation link '{request.id}' in vhost '{request.vhost}'", 404)


# --- federation_link restart


def _restart(node: "Node", who: Who, request: OneRequest) -> Done:
    link = _find(node, request)
    if not node.links.restart(link.key):
        why = link.reason or "the process of links is starting"
        raise OperationError(f"federation link '{request.id}' does not run: {why}", 409)
    return DONE


OPERATIONS = (
    Operation(
        "federation_link", "list",
        "List federation links, with what each does now.",
        ListRequest, Links, Right("management", "visit"), _list, job=True, aliases=("federation_status",),
    ),
    Operation(
        "federation_link", "show",
        "Show one federation link.",
        OneRequest, LinkRow, Right("management", "visit"), _show,
    ),
    Operation(
        "federation_link", "restart",
        "End the connections of a federation link, and begin anew.",
        OneRequest, Done, Right("policymaker", "visit"), _restart, changes=True, aliases=("restart_federation_link",),
    ),
)  # fmt: skip

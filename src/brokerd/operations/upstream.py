"""Operations on upstreams: the brokers whose exchanges and queues are federated here.

An upstream is a parameter; policies say which exchanges and queues have it.
"""

from typing import TYPE_CHECKING, Annotated, Any

from brokerd.links.definition import UPSTREAM
from brokerd.links.state import RUNNING
from brokerd.operations.changing import Lasting
from brokerd.operations.lists import Listing, Page, Paging, vhosts_to_list
from brokerd.operations.parameters import clear_parameter, key_of, listed, set_shown, shown_definition
from brokerd.operations.rows import Done, Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.policies.parameters import Key


class UpstreamRow(TypedDict):
    vhost: Name
    name: Name
    links: int  # queues and exchanges that have it
    running: int  # of those
    definition: dict[str, Any]  # the parameter's value, without passwords


# --- upstream list


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""


class Upstreams(Page):
    items: list[UpstreamRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    vhosts = {vhost.name for vhost in vhosts_to_list(node, who, request.vhost)}
    links, running = dict[tuple[str, str], int](), dict[tuple[str, str], int]()
    for link in node.links.states.values():
        at = link.vhost, link.upstream
        links[at] = links.get(at, 0) + 1
        running[at] = running.get(at, 0) + (link.state == RUNNING)

    def describe(key: "Key") -> UpstreamRow | None:
        if key not in node.parameters:
            return None
        at = key.vhost, key.name
        return {"vhost": key.vhost, "name": key.name, "links": links.get(at, 0), "running": running.get(at, 0),
                "definition": shown_definition(node, key)}  # fmt: skip

    return Listing(listed(node, UPSTREAM, vhosts), describe, request)


# --- upstream set, delete


@request
class SetRequest:
    name: Annotated[str, Field("Its name.", argument=True, low=1, high=255)]
    definition: Annotated[Any, Field(
        'Where it is, as in {"uri": "amqp://user:password@host", "max-hops": 2}. '
        "A password shown as *** stays as it was.", argument=True,
    )]  # fmt: skip
    vhost: Annotated[str, Field("Its vhost.")] = "/"


def _set(node: "Node", who: Who, request: SetRequest) -> Lasting:
    return set_shown(node, who, key_of(UPSTREAM, request), request.definition)


@request
class DeleteRequest:
    name: Annotated[str, Field("The upstream's name.", argument=True)]
    vhost: Annotated[str, Field("Its vhost.")] = "/"


def _delete(node: "Node", who: Who, request: DeleteRequest) -> Lasting:
    return clear_parameter(node, who, key_of(UPSTREAM, request), f"upstream '{request.name}'")


OPERATIONS = (
    Operation(
        "upstream", "list",
        "List the upstreams of federation.",
        ListRequest, Upstreams, Right("management", "visit"), _list, job=True, aliases=("list_federations",),
    ),
    Operation(
        "upstream", "set",
        "Make or replace an upstream; policies say which queues and exchanges have it.",
        SetRequest, Done, Right("policymaker", "visit"), _set, changes=True, job=True, aliases=("add_federation",),
    ),
    Operation(
        "upstream", "delete",
        "Delete an upstream; its links end.",
        DeleteRequest, Done, Right("policymaker", "visit"), _delete, changes=True, job=True,
        aliases=("delete_federation",),
    ),
)  # fmt: skip

"""Operations on consumers."""

from typing import TYPE_CHECKING, Annotated, Any

from brokerd.operations import describing
from brokerd.operations.lists import Listing, Page, Paging, vhosts_to_list
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

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
    queues = (each for vhost in vhosts for each in list(vhost.queues.values()) if request.queue in ("", each.name))
    return Listing(describing.consumers_of(queues), describing.consumer, request)


OPERATIONS = (
    Operation(
        "consumer", "list",
        "List the consumers of queues; a name that is asked for is compared with the tag.",
        ListRequest, Consumers, Right("management", "visit"), _list, job=True, aliases=("list_consumers",),
    ),
)  # fmt: skip

"""Operations on topic permissions."""

from typing import TYPE_CHECKING, Annotated

from brokerd.operations.lists import Listing, Page, Paging
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node


class TopicPermissionRow(TypedDict):
    user: Name
    vhost: Name
    exchange: Name
    write: str
    read: str


# --- topic_permission list


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""
    user: Annotated[str, Field("Only those of this user.")] = ""


class TopicPermissions(Page):
    items: list[TopicPermissionRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    """What the list's ``name`` is compared with is the user's name."""
    topics, vhost, user = node.permissions.topics, request.vhost, request.user
    entries = [each for each in topics if vhost in ("", each.vhost) and user in ("", each.user)]
    return Listing(((each.key, each.user, each) for each in entries), lambda each: each.definition(), request)


OPERATIONS = (
    Operation(
        "topic_permission", "list",
        "List the topic permissions of users.",
        ListRequest, TopicPermissions, Right("administrator"), _list, job=True, aliases=("list_topic_permissions",),
    ),
)  # fmt: skip

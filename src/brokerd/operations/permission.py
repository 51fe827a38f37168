"""Operations on permissions."""

from typing import TYPE_CHECKING, Annotated

from brokerd.operations.lists import Listing, Page, Paging
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node


class PermissionRow(TypedDict):
    user: Name
    vhost: Name
    configure: str
    write: str
    read: str


# --- permission list


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""
    user: Annotated[str, Field("Only those of this user.")] = ""


class Permissions(Page):
    items: list[PermissionRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    """What the list's ``name`` is compared with is the user's name."""
    entries = [
        each for each in node.permissions if request.vhost in ("", each.vhost) and request.user in ("", each.user)
    ]
    return Listing(((each.key, each.user, each) for each in entries), lambda each: each.definition(), request)


OPERATIONS = (
    Operation(
        "permission", "list",
        "List the permissions of users.",
        ListRequest, Permissions, Right("administrator"), _list, job=True, aliases=("list_permissions",),
    ),
)  # fmt: skip

"""Operations on users."""

from typing import TYPE_CHECKING, Annotated

from brokerd.operations import OperationError
from brokerd.operations.lists import Listing, Page, Paging
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.auth.users import User
    from brokerd.node import Node


class UserRow(TypedDict):
    name: Name
    tags: list[str]
    password_hash: str  # "": no login by password
    hashing_algorithm: str
    limits: dict[str, int]


def describe(user: "User") -> UserRow:
    """One user."""
    return {"limits": {}, **user.definition()}  # type: ignore[typeddict-item]


def find_user(node: "Node", name: str) -> "User":
    """The user of that name.  Raises OperationError (404)."""
    if name not in node.users:
        raise OperationError(f"no user '{name}'", 404)
    return node.users.get(name)


# --- user list


@request
class ListRequest(Paging):
    without_permissions: Annotated[bool, Field("Only those who may enter no vhost.")] = False


class Users(Page):
    items: list[UserRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    users = list(node.users)
    if request.without_permissions:
        have = {entry.user for entry in node.permissions}
        users = [user for user in users if user.name not in have]
    return Listing(((user.name, user.name, user) for user in users), describe, request)


# --- user show


@request
class ShowRequest:
    user: Annotated[str, Field("The user's name.", argument=True)]


def _show(node: "Node", who: Who, request: ShowRequest) -> UserRow:
    return describe(find_user(node, request.user))


OPERATIONS = (
    Operation(
        "user", "list",
        "List the users, with tags, hashes and limits.",
        ListRequest, Users, Right("administrator"), _list, job=True, aliases=("list_users",),
    ),
    Operation(
        "user", "show",
        "Show one user.",
        ShowRequest, UserRow, Right("administrator"), _show,
    ),
)  # fmt: skip

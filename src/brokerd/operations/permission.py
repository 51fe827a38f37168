"""Operations on permissions."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from brokerd.operations import OperationError
from brokerd.operations.changing import Lasting, change_files
from brokerd.operations.lists import Listing, Page, Paging, find_user, find_vhost
from brokerd.operations.rows import DONE, Done, Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.store.json_file import Change


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
    """The filter ``name`` looks at the user's name."""
    entries = [
        each for each in node.permissions if request.vhost in ("", each.vhost) and request.user in ("", each.user)
    ]
    return Listing(((each.key, each.user, each) for each in entries), lambda each: each.definition(), request)


# --- permission set


@request
class SetRequest:
    user: Annotated[str, Field("The user's name.", argument=True)]
    configure: Annotated[str, Field("What it may declare and delete: a regular expression.", argument=True)]
    write: Annotated[str, Field("What it may publish to and bind: a regular expression.", argument=True)]
    read: Annotated[str, Field("What it may consume from, bind from and purge: a regular expression.", argument=True)]
    vhost: Annotated[str, Field("Where that holds.")] = "/"


def _set(node: "Node", who: Who, request: SetRequest) -> Lasting:
    from brokerd.auth.permissions import Permission

    permission = Permission(request.user, request.vhost, request.configure, request.write, request.read)

    def plan() -> Iterable["Change"]:
        find_user(node, request.user)
        find_vhost(node, request.vhost)
        return [node.permissions.changed([permission])]

    def then() -> Done:
        node.tell("permission.created", permission.definition(), who.user)
        return DONE

    return change_files(node, plan, then)


# --- permission clear


@request
class ClearRequest:
    user: Annotated[str, Field("The user's name.", argument=True)]
    vhost: Annotated[str, Field("The vhost in which the user loses its rights.")] = "/"


def _clear(node: "Node", who: Who, request: ClearRequest) -> Lasting:
    def plan() -> Iterable["Change"]:
        find_user(node, request.user)
        find_vhost(node, request.vhost)
        if node.permissions.find(request.user, request.vhost) is None:
            raise OperationError(f"user '{request.user}' has no permissions in vhost '{request.vhost}'", 404)
        return [node.permissions.changed(gone=[(request.user, request.vhost)])]

    def then() -> Done:
        node.tell("permission.deleted", {"user": request.user, "vhost": request.vhost}, who.user)
        return DONE

    return change_files(node, plan, then)


OPERATIONS = (
    Operation(
        "permission", "set",
        "Say what a user may do in a vhost; open connections follow at their next method.",
        SetRequest, Done, Right("administrator"), _set, changes=True, job=True, aliases=("set_permissions",),
    ),
    Operation(
        "permission", "clear",
        "Take a user's rights in a vhost away.",
        ClearRequest, Done, Right("administrator"), _clear, changes=True, job=True, aliases=("clear_permissions",),
    ),
    Operation(
        "permission", "list",
        "List the permissions of users.",
        ListRequest, Permissions, Right("administrator"), _list, job=True, aliases=("list_permissions",),
        presets={"list_user_permissions": {"user": None}},
    ),
)  # fmt: skip

"""Operations on users."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from brokerd.operations.changing import Lasting, change_files
from brokerd.operations.lists import Listing, Page, Paging, find_user
from brokerd.operations.rows import DONE, Done, Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.auth.users import User
    from brokerd.node import Node
    from brokerd.operations.jobs import Job
    from brokerd.store.json_file import Change


class UserRow(TypedDict):
    name: Name
    tags: list[str]
    password_hash: str  # "": no login by password
    hashing_algorithm: str
    limits: dict[str, int]


def describe(user: "User") -> UserRow:
    """One user."""
    return {"limits": {}, **user.definition()}  # type: ignore[typeddict-item]


# --- user list


@request
class ListRequest(Paging):
    without_permissions: Annotated[bool, Field("Only users who may enter no vhost.")] = False


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


# --- user add


@request
class AddRequest:
    user: Annotated[str, Field("The user's name.", argument=True)]
    password: Annotated[str, Field("The password; empty: no login by password.", argument=True, secret=True)] = ""
    tags: Annotated[list[str], Field("Tags, such as administrator, monitoring, policymaker, management.")] = ()  # type: ignore[assignment]
    password_hash: Annotated[str, Field("A hash in place of the password, as in definitions.")] = ""
    hashing_algorithm: Annotated[str, Field("The algorithm of the hash.")] = ""
    replace: Annotated[bool, Field("Replace the user that has the name already.")] = False


def _add(node: "Node", who: Who, request: AddRequest) -> "Job":
    from brokerd.operations.users import add

    return add(node, who, request)


# --- user delete


@request
class DeleteRequest:
    user: Annotated[str, Field("The user's name.", argument=True)]


def _delete(node: "Node", who: Who, request: DeleteRequest) -> "Job":
    from brokerd.operations.users import delete

    return delete(node, who, request.user)


# --- user set_password, clear_password


@request
class PasswordRequest:
    user: Annotated[str, Field("The user's name.", argument=True)]
    password: Annotated[str, Field("The new password.", argument=True, secret=True, low=1)]


def _set_password(node: "Node", who: Who, request: PasswordRequest) -> "Job":
    from brokerd.operations.users import set_password

    return set_password(node, who, request.user, request.password)


@request
class ClearPasswordRequest:
    user: Annotated[str, Field("The user's name.", argument=True)]


def _clear_password(node: "Node", who: Who, request: ClearPasswordRequest) -> Lasting:
    return _change(node, request.user, {"password_hash": ""}, who, "user.password.cleared", {"name": request.user})


# --- user set_tags


@request
class TagsRequest:
    user: Annotated[str, Field("The user's name.", argument=True)]
    tags: Annotated[list[str], Field("All tags from now on; none: the user has no tags.", argument=True)] = ()  # type: ignore[assignment]


def _set_tags(node: "Node", who: Who, request: TagsRequest) -> Lasting:
    from brokerd.auth.users import checked_tags

    tags = checked_tags(request.user, list(request.tags))
    return _change(node, request.user, {"tags": tags}, who, "user.tags.set", {"name": request.user, "tags": list(tags)})


# --- user set_limits


@request
class LimitsRequest:
    user: Annotated[str, Field("The user's name.", argument=True)]
    limits: Annotated[dict[str, int], Field("All limits from now on: max-connections, max-channels; {}: none.", argument=True)]  # noqa: E501


def _set_limits(node: "Node", who: Who, request: LimitsRequest) -> Lasting:
    from brokerd.auth.users import LIMITS, checked_limits

    limits = checked_limits(request.limits, LIMITS, f"user '{request.user}'")
    event = f"user.limits.{'set' if limits else 'cleared'}"
    return _change(node, request.user, {"limits": limits}, who, event, {"name": request.user, "limits": limits})


def _change(
    node: "Node", name: str, changes: dict[str, Any], who: Who, event: str, fields: dict[str, Any]
) -> Lasting:  # fmt: skip
    """The job that changes some of a user's attributes."""

    def plan() -> Iterable["Change"]:
        return [node.users.changed([find_user(node, name).with_changes(**changes)])]

    def then() -> Done:
        node.tell(event, fields, who.user)
        return DONE

    return change_files(node, plan, then)


# --- user authenticate


@request
class AuthenticateRequest:
    user: Annotated[str, Field("The user's name.", argument=True)]
    password: Annotated[str, Field("The password.", argument=True, secret=True)]
    address: Annotated[str, Field("The address that the user comes from; empty: this machine.")] = ""


class Authenticated(TypedDict):
    name: Name
    tags: list[str]
    grant: str  # on the control socket it stands for what the user may do; "": users.json says it
    expires: int | None  # seconds since the epoch: when a token ends


def _authenticate(node: "Node", who: Who, request: AuthenticateRequest) -> "Job":
    from brokerd.operations.users import Authenticating

    return Authenticating(node, request.user, request.password, request.address)


# --- user authenticate_token


@request
class TokenRequest:
    token: Annotated[str, Field("The token.", argument=True, secret=True)]
    address: Annotated[str, Field("The address that the user comes from; empty: this machine.")] = ""


def _authenticate_token(node: "Node", who: Who, request: TokenRequest) -> "Job":
    from brokerd.operations.users import CheckingToken

    return CheckingToken(node, request.token, request.address)


# --- user hash_password


@request
class HashRequest:
    password: Annotated[str, Field("The password.", argument=True, secret=True, low=1)]


class Hashed(TypedDict):
    password_hash: str
    hashing_algorithm: str


def _hash_password(node: "Node", who: Who, request: HashRequest) -> "Job":
    from brokerd.operations.users import Hashing

    return Hashing(request.password)


OPERATIONS = (
    Operation(
        "user", "add",
        "Make a user, or with --replace change one.",
        AddRequest, Done, Right("administrator"), _add, changes=True, job=True, aliases=("add_user",),
    ),
    Operation(
        "user", "delete",
        "Delete a user with its permissions, and close its connections.",
        DeleteRequest, Done, Right("administrator"), _delete, changes=True, job=True, aliases=("delete_user",),
    ),
    Operation(
        "user", "set_password",
        "Change a user's password.",
        PasswordRequest, Done, Right("administrator"), _set_password, changes=True, job=True,
        aliases=("change_password",),
    ),
    Operation(
        "user", "clear_password",
        "Let a user no longer log in by password.",
        ClearPasswordRequest, Done, Right("administrator"), _clear_password, changes=True, job=True,
        aliases=("clear_password",),
    ),
    Operation(
        "user", "set_tags",
        "Replace a user's tags.",
        TagsRequest, Done, Right("administrator"), _set_tags, changes=True, job=True, aliases=("set_user_tags",),
    ),
    Operation(
        "user", "set_limits",
        "Replace the limits of a user.",
        LimitsRequest, Done, Right("administrator"), _set_limits, changes=True, job=True,
        aliases=("set_user_limits",), presets={"clear_user_limits": {"limits": {}}},
    ),
    Operation(
        "user", "authenticate",
        "Check a user's password; failures count as those of AMQP logins.",
        AuthenticateRequest, Authenticated, Right("administrator"), _authenticate, job=True,
        aliases=("authenticate_user",),
    ),
    Operation(
        "user", "authenticate_token",
        "Check a user's token (OAuth 2); failures count as those of AMQP logins.",
        TokenRequest, Authenticated, Right("administrator"), _authenticate_token, job=True,
    ),
    Operation(
        "user", "hash_password",
        "Make the hash of a password, as definitions have it.",
        HashRequest, Hashed, Right("management"), _hash_password, job=True, aliases=("hash_password",),
    ),
    Operation(
        "user", "list",
        "List the users, with tags, hashes and limits.",
        ListRequest, Users, Right("administrator"), _list, job=True, aliases=("list_users", "list_user_limits"),
    ),
    Operation(
        "user", "show",
        "Show one user.",
        ShowRequest, UserRow, Right("administrator"), _show,
    ),
)  # fmt: skip

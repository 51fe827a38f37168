"""Operations on topic permissions."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from brokerd.operations import OperationError
from brokerd.operations.changing import Lasting, change_files
from brokerd.operations.lists import Listing, Page, Paging, find_user, find_vhost
from brokerd.operations.rows import DONE, Done, Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.store.json_file import Change


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
    """The filter ``name`` looks at the user's name."""
    topics, vhost, user = node.permissions.topics, request.vhost, request.user
    entries = [each for each in topics if vhost in ("", each.vhost) and user in ("", each.user)]
    return Listing(((each.key, each.user, each) for each in entries), lambda each: each.definition(), request)


# --- topic_permission set


@request
class SetRequest:
    user: Annotated[str, Field("The user's name.", argument=True)]
    exchange: Annotated[str, Field("The topic exchange.", argument=True)]
    write: Annotated[str, Field("Routing keys to publish with: a regular expression.", argument=True)]
    read: Annotated[str, Field("Routing keys to bind with: a regular expression.", argument=True)]
    vhost: Annotated[str, Field("Where that holds.")] = "/"


def _set(node: "Node", who: Who, request: SetRequest) -> Lasting:
    from brokerd.auth.permissions import TopicPermission

    permission = TopicPermission(request.user, request.vhost, request.exchange, request.write, request.read)

    def plan() -> Iterable["Change"]:
        find_user(node, request.user)
        find_vhost(node, request.vhost)
        return [node.permissions.topics.changed([permission])]

    def then() -> Done:
        node.tell("topic.permission.created", permission.definition(), who.user)
        return DONE

    return change_files(node, plan, then)


# --- topic_permission clear


@request
class ClearRequest:
    user: Annotated[str, Field("The user's name.", argument=True)]
    exchange: Annotated[str, Field("Only for this topic exchange; left out: for all.", argument=True)] = ""
    vhost: Annotated[str, Field("Vhost in which the user may use every key again.")] = "/"


def _clear(node: "Node", who: Who, request: ClearRequest) -> Lasting:
    gone: list[tuple[str, ...]] = []

    def plan() -> Iterable["Change"]:
        find_user(node, request.user)
        find_vhost(node, request.vhost)
        topics = node.permissions.topics
        gone.extend(
            key for key in topics.keys_of_user(request.user)
            if key[1] == request.vhost and request.exchange in ("", key[2])
        )  # fmt: skip
        if not gone:
            raise OperationError(f"user '{request.user}' has no such topic permissions in vhost '{request.vhost}'", 404)
        return [topics.changed(gone=gone)]

    def then() -> Done:
        for user, vhost, exchange in gone:
            node.tell("topic.permission.deleted", {"user": user, "vhost": vhost, "exchange": exchange}, who.user)
        return DONE

    return change_files(node, plan, then)


OPERATIONS = (
    Operation(
        "topic_permission", "set",
        "Say which routing keys a user may use with a topic exchange.",
        SetRequest, Done, Right("administrator"), _set, changes=True, job=True, aliases=("set_topic_permissions",),
    ),
    Operation(
        "topic_permission", "clear",
        "Let a user use every routing key again.",
        ClearRequest, Done, Right("administrator"), _clear, changes=True, job=True,
        aliases=("clear_topic_permissions",),
    ),
    Operation(
        "topic_permission", "list",
        "List the topic permissions of users.",
        ListRequest, TopicPermissions, Right("administrator"), _list, job=True,
        aliases=("list_topic_permissions",), presets={"list_user_topic_permissions": {"user": None}},
    ),
)  # fmt: skip

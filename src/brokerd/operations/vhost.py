"""Operations on vhosts."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from brokerd.arguments import QUEUE_TYPES
from brokerd.operations import OperationError
from brokerd.operations.changing import Lasting, change_files
from brokerd.operations.lists import Listing, Page, Paging, find_vhost, vhosts_to_list
from brokerd.operations.rows import DONE, Done, Field, Name, Operation, Right, TypedDict, Who, request
from brokerd.vhost.listing import NEW

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.store.json_file import Change
    from brokerd.vhost.vhost import VHost

KINDS = ", ".join(QUEUE_TYPES)


class VHostRow(TypedDict):
    name: Name
    tracing: bool  # the firehose is on
    limits: dict[str, int]
    description: str
    tags: list[str]
    default_queue_type: str  # of durable queues whose declarations name none; "": classic
    queues: int
    exchanges: int
    dir: Name


def describe(node: "Node", vhost: "VHost") -> VHostRow:
    """One vhost."""
    row = node.listing.rows[vhost.name]
    return {
        "name": vhost.name, "tracing": row.tracing, "limits": row.limits, "description": row.description,
        "tags": list(row.tags), "default_queue_type": row.default_queue_type, "queues": len(vhost.queues),
        "exchanges": len(vhost.exchanges), "dir": vhost.directory,
    }  # fmt: skip


# --- vhost list


@request
class ListRequest(Paging):
    pass


class VHosts(Page):
    items: list[VHostRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    vhosts = vhosts_to_list(node, who, "")
    return Listing(
        ((each.name, each.name, each) for each in vhosts),
        lambda vhost: describe(node, vhost) if vhost.name in node.listing.rows else None,
        request,
    )


# --- vhost show


@request
class ShowRequest:
    vhost: Annotated[str, Field("The vhost's name.", argument=True)]


def _show(node: "Node", who: Who, request: ShowRequest) -> VHostRow:
    return describe(node, find_vhost(node, request.vhost))


# --- vhost add


@request
class AddRequest:
    vhost: Annotated[str, Field("The vhost's name.", argument=True, low=1, high=255)]
    description: Annotated[str | None, Field("What it is for, in words for people.", high=1024)] = None
    tags: Annotated[list[str] | None, Field("Tags, for people to read.")] = None
    default_queue_type: Annotated[str | None, Field(
        f"Type of durable queues whose declarations name none: {KINDS}; '': classic.")] = None
    replace: Annotated[bool, Field("If it is there already, change what is given.")] = False


def _add(node: "Node", who: Who, request: AddRequest) -> Lasting:
    from brokerd.auth.permissions import Permission

    if request.default_queue_type not in (None, "", *QUEUE_TYPES):
        raise OperationError(f"default_queue_type is one of {KINDS}, not {request.default_queue_type!r:.80}", 400)

    def plan() -> "Iterable[Change]":
        row = node.listing.rows.get(request.vhost, NEW)
        if request.description is not None:
            row = row._replace(description=request.description)
        if request.tags is not None:
            row = row._replace(tags=tuple(request.tags))
        if request.default_queue_type is not None:
            row = row._replace(default_queue_type=request.default_queue_type)
        if request.vhost in node.vhosts:
            if not request.replace:
                raise OperationError(f"vhost '{request.vhost}' already exists", 409)
            return [node.listing.changed({request.vhost: row})]
        if not request.vhost.isprintable():
            raise OperationError(f"vhost name {request.vhost!r:.80} is not printable text", 400)
        node.listing.check_unedited()
        node.make_vhost(request.vhost)
        made.append(request.vhost)
        # As RabbitMQ's API has it: who makes a vhost goes on by declaring something in it.
        granted[:] = [Permission(who.user, request.vhost, ".*", ".*", ".*")] if who.user in node.users else []
        changes = [node.listing.changed({request.vhost: row})]
        return [*changes, node.permissions.changed(granted)] if granted else changes

    made: list[str] = []
    granted: list[Permission] = []

    def then() -> Done:
        find_vhost(node, request.vhost).take_settings(node.listing.rows[request.vhost])
        if made:
            node.tell("vhost.created", {"name": request.vhost}, who.user)
        for permission in granted:
            node.tell("permission.created", permission.definition(), who.user)
        return DONE

    return change_files(node, plan, then)


# --- vhost delete


@request
class DeleteRequest:
    vhost: Annotated[str, Field("The vhost's name.", argument=True)]


def _delete(node: "Node", who: Who, request: DeleteRequest) -> Lasting:
    from brokerd.operations.vhost_end import delete

    return delete(node, who, request.vhost)


# --- vhost set_limits


@request
class LimitsRequest:
    limits: Annotated[dict[str, int], Field("All limits from now on: max-connections, max-queues; {}: none.", argument=True)]  # noqa: E501
    vhost: Annotated[str, Field("The vhost's name.")] = "/"


def _set_limits(node: "Node", who: Who, request: LimitsRequest) -> Lasting:
    from brokerd.auth.users import checked_limits
    from brokerd.vhost.listing import VHOST_LIMITS

    limits = checked_limits(request.limits, VHOST_LIMITS, f"vhost '{request.vhost}'")

    def row() -> Any:
        return node.listing.rows[request.vhost]._replace(limits=limits)

    def then() -> Done:
        find_vhost(node, request.vhost).take_settings(row())
        event = f"vhost.limits.{'set' if limits else 'cleared'}"
        node.tell(event, {"name": request.vhost, "limits": limits}, who.user)
        return DONE

    return _change(node, request.vhost, row, then)


# --- vhost trace


@request
class TraceRequest:
    on: Annotated[bool, Field("Whether the firehose is on.", argument=True)]
    vhost: Annotated[str, Field("The vhost's name.")] = "/"


def _trace(node: "Node", who: Who, request: TraceRequest) -> Lasting:
    def then() -> Done:
        find_vhost(node, request.vhost).firehose.switch(request.on)
        return DONE

    return _change(node, request.vhost, lambda: node.listing.rows[request.vhost]._replace(tracing=request.on), then)


def _change(node: "Node", name: str, row: Any, then: Any) -> Lasting:
    def plan() -> "Iterable[Change]":
        find_vhost(node, name)
        return [node.listing.changed({name: row()})]

    return change_files(node, plan, then)


OPERATIONS = (
    Operation(
        "vhost", "add",
        "Make a vhost, which is empty; a user who asks for it may do everything there, no other user may enter it yet.",
        AddRequest, Done, Right("administrator"), _add, changes=True, job=True, aliases=("add_vhost",),
    ),
    Operation(
        "vhost", "delete",
        "Delete a vhost with its queues and messages, and close its connections.",
        DeleteRequest, Done, Right("administrator"), _delete, changes=True, job=True, aliases=("delete_vhost",),
    ),
    Operation(
        "vhost", "set_limits",
        "Replace the limits of a vhost.",
        LimitsRequest, Done, Right("administrator"), _set_limits, changes=True, job=True,
        aliases=("set_vhost_limits",), presets={"clear_vhost_limits": {"limits": {}}},
    ),
    Operation(
        "vhost", "trace",
        "Turn the firehose of a vhost on or off.",
        TraceRequest, Done, Right("administrator"), _trace, changes=True, job=True,
        presets={"trace_on": {"on": True}, "trace_off": {"on": False}},
    ),
    Operation(
        "vhost", "list",
        "List the vhosts.",
        ListRequest, VHosts, Right("management"), _list, job=True, aliases=("list_vhosts", "list_vhost_limits"),
    ),
    Operation(
        "vhost", "show",
        "Show one vhost.",
        ShowRequest, VHostRow, Right("management", "visit"), _show,
    ),
)  # fmt: skip

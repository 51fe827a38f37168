"""Operations on shovels.

A shovel is a parameter, and so is its pause.  Its state comes from the process that runs it, through the broker's book
of links.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from brokerd.links.definition import PAUSED, SHOVEL
from brokerd.links.state import PAUSED as IS_PAUSED
from brokerd.links.state import SHOVEL as KIND
from brokerd.links.state import STARTING, LinkKey, LinkState
from brokerd.links.uris import without_credentials
from brokerd.operations import OperationError
from brokerd.operations.changing import Lasting, change_files
from brokerd.operations.lists import Listing, Page, Paging, find_vhost, vhosts_to_list
from brokerd.operations.parameters import clear_parameter, key_of, listed, set_shown, shown_definition, until_ended
from brokerd.operations.rows import DONE, Done, Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.policies.parameters import Key
    from brokerd.store.json_file import Change


class ShovelRow(TypedDict):
    """Times are milliseconds since 1970, 0 if there is none."""

    vhost: Name
    name: Name
    state: str  # starting, running, blocked, paused, terminated
    reason: str  # why it does not run, in words
    next_try: int
    since: int  # since when it has this state
    source_uri: str  # which it is connected to, or tried last, without user and password
    dest_uri: str
    messages: int  # that have arrived since it began
    rate: float  # of those, a second
    unconfirmed: int  # sent, and not yet confirmed
    retried: int  # that the destination refused, and that were sent again
    rejected: int  # that were given up, and left to the source's dead-letter rules
    reconnects: int
    last_message: int
    lag: int  # messages that wait at the source, as last told
    definition: dict[str, Any]  # the parameter's value, without passwords


# --- shovel list, show


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""


class Shovels(Page):
    items: list[ShovelRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    vhosts = {vhost.name for vhost in vhosts_to_list(node, who, request.vhost)}
    return Listing(listed(node, SHOVEL, vhosts), lambda key: _row(node, key), request)


def _row(node: "Node", key: "Key") -> ShovelRow | None:
    if key not in node.parameters:
        return None
    link = node.links.states.get(LinkKey(KIND, key.vhost, key.name))
    is_paused = key._replace(component=PAUSED) in node.parameters
    if link is None or is_paused != (link.state == IS_PAUSED):  # The process has not told of it yet.
        link = LinkState(KIND, key.vhost, key.name, state=IS_PAUSED if is_paused else STARTING)
    return {
        "vhost": key.vhost, "name": key.name, "state": link.state, "reason": link.reason,
        "next_try": as_ms(link.next_try), "since": as_ms(link.since),
        "source_uri": without_credentials(link.source_uri), "dest_uri": without_credentials(link.dest_uri),
        "messages": link.messages, "rate": link.rate, "unconfirmed": link.unconfirmed,
        "retried": link.retried, "rejected": link.rejected, "reconnects": link.reconnects,
        "last_message": as_ms(link.last_message), "lag": link.lag,
        "definition": shown_definition(node, key),
    }  # fmt: skip


def as_ms(seconds: float) -> int:
    """A time of a state as an answer has it."""
    return int(seconds * 1000)


@request
class OneRequest:
    name: Annotated[str, Field("The shovel's name.", argument=True)]
    vhost: Annotated[str, Field("Its vhost.")] = "/"


def _show(node: "Node", who: Who, request: OneRequest) -> ShovelRow:
    row = _row(node, _key(node, request))
    assert row is not None
    return row


def _key(node: "Node", request: Any) -> "Key":
    """The key of the shovel.  Raises OperationError (404)."""
    find_vhost(node, request.vhost)
    key = key_of(SHOVEL, request)
    if key not in node.parameters:
        raise OperationError(f"no shovel '{request.name}' in vhost '{request.vhost}'", 404)
    return key


# --- shovel set, delete


@request
class SetRequest:
    name: Annotated[str, Field("Its name.", argument=True, low=1, high=255)]
    definition: Annotated[Any, Field(
        'What it does, as in {"src-uri": "amqp:///", "src-queue": "a", "dest-uri": "amqp://host", "dest-queue": "b"}. '
        "A password shown as *** stays as it was.", argument=True,
    )]  # fmt: skip
    vhost: Annotated[str, Field("Its vhost.")] = "/"


def _set(node: "Node", who: Who, request: SetRequest) -> Lasting:
    return set_shown(node, who, key_of(SHOVEL, request), request.definition)


def _delete(node: "Node", who: Who, request: OneRequest) -> Lasting:
    return clear_parameter(node, who, key_of(SHOVEL, request), f"shovel '{request.name}'")


# --- shovel pause, resume, restart


def _pause(node: "Node", who: Who, request: OneRequest) -> Lasting:
    return _change_pause(node, who, request, paused=True)


def _resume(node: "Node", who: Who, request: OneRequest) -> Lasting:
    return _change_pause(node, who, request, paused=False)


def _change_pause(node: "Node", who: Who, request: OneRequest, *, paused: bool) -> Lasting:
    def plan() -> "Iterable[Change]":
        pause = _key(node, request)._replace(component=PAUSED)
        if (pause in node.parameters) is paused:
            raise OperationError(f"shovel '{request.name}' is {'paused already' if paused else 'not paused'}", 409)
        return [node.parameters.changed({pause: True}) if paused else node.parameters.changed(gone=[pause])]

    def then() -> Done:
        event = "shovel.paused" if paused else "shovel.resumed"
        node.tell(event, {"vhost": request.vhost, "name": request.name}, who.user)
        return DONE

    change = change_files(node, plan, then)
    return until_ended(node, [LinkKey(KIND, request.vhost, request.name)], change) if paused else change


def _restart(node: "Node", who: Who, request: OneRequest) -> Done:
    key = _key(node, request)
    if key._replace(component=PAUSED) in node.parameters:
        raise OperationError(f"shovel '{request.name}' is paused: resume it", 409)
    if not node.links.restart(LinkKey(KIND, key.vhost, key.name)):
        raise OperationError(f"shovel '{request.name}' does not run yet: the process of links is starting", 409)
    return DONE


OPERATIONS = (
    Operation(
        "shovel", "list",
        "List shovels, with what each does now.",
        ListRequest, Shovels, Right("management", "visit"), _list, job=True,
        aliases=("list_shovels", "shovel_status"),
    ),
    Operation(
        "shovel", "show",
        "Show one shovel.",
        OneRequest, ShovelRow, Right("management", "visit"), _show,
    ),
    Operation(
        "shovel", "set",
        "Make or replace a shovel; it begins at once.",
        SetRequest, Done, Right("policymaker", "visit"), _set, changes=True, job=True, aliases=("add_shovel",),
    ),
    Operation(
        "shovel", "delete",
        "Delete a shovel; messages that it has not moved stay where they are.",
        OneRequest, Done, Right("policymaker", "visit"), _delete, changes=True, job=True,
        aliases=("delete_shovel",),
    ),
    Operation(
        "shovel", "pause",
        "Pause a shovel until it is resumed, also over restarts.",
        OneRequest, Done, Right("policymaker", "visit"), _pause, changes=True, job=True, aliases=("pause_shovel",),
    ),
    Operation(
        "shovel", "resume",
        "Let a paused shovel go on.",
        OneRequest, Done, Right("policymaker", "visit"), _resume, changes=True, job=True, aliases=("resume_shovel",),
    ),
    Operation(
        "shovel", "restart",
        "End the connections of a shovel, and begin anew.",
        OneRequest, Done, Right("policymaker", "visit"), _restart, changes=True, aliases=("restart_shovel",),
    ),
)  # fmt: skip

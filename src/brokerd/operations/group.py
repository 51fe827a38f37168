"""Operations on the message groups of a queue."""

from collections.abc import Generator
from heapq import heappop, heappush, heappushpop
from typing import TYPE_CHECKING, Annotated, Any, Literal

from brokerd.operations import OperationError, find_queue
from brokerd.operations.changing import sync_everything
from brokerd.operations.jobs import ON_LOOP, Pace, Steps, Wait, encoded
from brokerd.operations.lists import find_vhost
from brokerd.operations.message import MessageRow
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.node import Node
    from brokerd.queues.queue import Queue

BROWSED_AT_ONCE = 16  # messages that are copied between two looks at the time
SCAN_AT_ONCE = 200  # messages, or groups, between two looks at the time
SHOWN_SCAN_MOST = 200_000  # messages that are looked at so that groups are shown with what waits in them
ON_DISK = frozenset(("park", "release", "skip", "purge"))  # verbs that are answered when a sync has ended
STATES = ("", "parked", "paused", "retrying", "locked", "waiting", "idle")


class Owner(TypedDict):
    number: int
    tag: Name
    connection: int
    peer: str
    user: Name
    unacked: int
    prefetch: int


class GroupRow(TypedDict):
    """``state``: parked, paused, retrying, locked (a message is out, the next waits for it), waiting (for a consumer
    with credit), idle (nothing waits).  ``attempts``: failed deliveries of the first message that waits; its number is
    ``first_seq``, and its age ``oldest_age_ms``.  ``why``: why the group does not move."""

    group: Name
    state: str
    ready: int
    unacked: int
    owner: Owner | None
    token: int
    first_seq: int
    oldest_age_ms: int
    attempts: int
    next_retry_ms: int | None
    why: str


class GroupTotals(TypedDict):
    """``unscanned``: ready messages that were not looked at yet, so their groups are not counted with them.  ``waits``,
    ``waited_ms``: how many messages had to wait for their group since start, and how long, all together.  ``fenced``:
    settlements that were ignored, because the delivery had returned with its group."""

    groups: int
    waiting: int
    unscanned: int
    waits: int
    waited_ms: int
    fenced: int
    refused: int


# --- finding a group


def groups_of(node: "Node", vhost: str, name: str) -> "tuple[Queue, plane.Groups]":
    """The queue and its groups.  Raises OperationError (404, 409)."""
    queue = find_queue(node, vhost, name)
    if queue.groups is None:
        raise OperationError(f"{queue} has no message groups: argument x-message-group, or policy message-group, asks "
                             "for them", 409)
    return queue, queue.groups


def _key(group: str) -> bytes:
    return group.encode("utf-8", "surrogateescape")


def scanned(groups: "plane.Groups", most: int | None = None) -> Steps:
    """Look at the queue's ready messages, in pieces: at most so many."""
    pace = Pace()
    while not groups.scan(SCAN_AT_ONCE):
        if most is not None:
            most -= SCAN_AT_ONCE
            if most <= 0:
                return
        if pace.is_over():
            yield ON_LOOP


def parked(queue: "Queue") -> Steps:
    """After a start, find the groups that were parked before it, in pieces."""
    pace = Pace()
    for _ in queue.find_parked():
        if pace.is_over():
            yield ON_LOOP


# --- showing it


def state_of(found: dict[str, Any]) -> str:
    """One word for how a group stands."""
    for state in ("parked", "paused", "retrying"):
        if state in found["states"]:
            return state
    if found["turn"]:
        return "waiting"
    if found["unacked"]:
        return "locked"
    return "waiting" if found["waiting"] else "idle"


def explain(queue: "Queue", found: dict[str, Any], now_ns: int) -> str:
    """Why the group does not move, in one sentence."""
    state, owner, out = state_of(found), found["owner"], found["unacked"]
    messages = "1 message is" if out == 1 else f"{out} messages are"
    if state == "parked":
        return f"{_why_parked(found)}; 'group release' lets it go on."
    if state == "paused":
        return "An operator paused it; 'group resume' lets it go on."
    if state == "retrying":
        return (f"Its first message failed {found['failed']} times, and is retried in "
                f"{max(found['until'] - now_ns, 0) // 1_000_000} ms.")
    if state == "locked" and owner is not None:
        return f"{messages} out with consumer {_named(owner)}; the next goes out when that is settled."
    if state == "locked":
        return f"{messages} out by basic.get, with a consumer that has left, or about to be dead-lettered."
    if state == "idle":
        return "No message of it waits."
    if queue.paused:
        return "The queue is paused."
    if not queue.consumer_count:
        return "The queue has no consumer."
    if owner is not None:
        return f"Its consumer {_named(owner)} has no credit: {owner.unacked} of its deliveries are unsettled."
    return "No consumer has credit: each holds as many unsettled deliveries as its prefetch allows."


def _why_parked(found: dict[str, Any]) -> str:
    """What is certain: a group stays parked if the limit is raised, or the message that failed is skipped."""
    failed = f"failed {found['failed']} time{'s' * (found['failed'] != 1)}"
    if found["at_limit"]:
        return f"Its first message {failed}, more often than the delivery limit allows"
    if found["failed"]:
        return f"An operator parked it, or its first message, which {failed}, was beyond an earlier delivery limit"
    return "An operator parked it, or the message that was its first then had failed too often"


def _named(consumer: Any) -> str:
    tag = consumer.tag.decode("utf-8", "replace")
    return f"'{tag}' of connection {consumer.channel.connection.number}"


def _owner(consumer: Any) -> Owner | None:
    if consumer is None:
        return None
    connection = consumer.channel.connection
    return {
        "number": consumer.number, "tag": consumer.tag.decode("utf-8", "surrogateescape"),
        "connection": connection.number, "peer": connection.peer, "user": connection.user, "unacked": consumer.unacked,
        "prefetch": consumer.prefetch,
    }  # fmt: skip


def row(node: "Node", queue: "Queue", found: dict[str, Any]) -> GroupRow:
    """A group as the table shows it."""
    now = node.clock.epoch_ns()
    return {
        "group": found["key"].decode("utf-8", "surrogateescape"),
        "state": state_of(found),
        "ready": found["waiting"],
        "unacked": found["unacked"],
        "owner": _owner(found["owner"]),
        "token": found["token"],
        "first_seq": found["first_seq"],
        "oldest_age_ms": max(now - found["first_ts"], 0) // 1_000_000 if found["first_ts"] else 0,
        "attempts": found["failed"],
        "next_retry_ms": max(found["until"] - now, 0) // 1_000_000 if found["until"] else None,
        "why": explain(queue, found, now),
    }


def totals(queue: "Queue", groups: "plane.Groups") -> GroupTotals:
    """Counts of all groups of a queue."""
    return {
        "groups": len(groups), "waiting": groups.waiting, "unscanned": queue.ready, "waits": groups.waits,
        "waited_ms": groups.waited_ns // 1_000_000, "fenced": groups.fenced, "refused": groups.refused,
    }  # fmt: skip


# --- group list


@request
class ListRequest:
    queue: Annotated[str, Field("The queue's name.", argument=True)]
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"
    state: Annotated[
        Literal["", "parked", "paused", "retrying", "locked", "waiting", "idle"], Field("Only groups in this state.")
    ] = ""
    sort: Annotated[Literal["backlog", "age"], Field("Longest backlog first, or oldest message first.")] \
        = "backlog"
    limit: Annotated[int, Field("How many to list.", low=1, high=10_000)] = 100


class GroupsListed(TypedDict):
    queue: Name
    vhost: Name
    totals: GroupTotals
    items: list[GroupRow]


class Listing:
    """The job: looks at messages and groups in pieces.  Raises OperationError (404, 409)."""

    def __init__(self, node: "Node", request: ListRequest) -> None:
        self._node, self._request = node, request
        self._queue, self._groups = groups_of(node, request.vhost, request.queue)

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        yield from parked(self._queue)
        yield from scanned(self._groups, SHOWN_SCAN_MOST)
        best = yield from self._best()
        pace, items = Pace(), list[GroupRow]()
        for each in best:
            items.append(row(self._node, self._queue, each))
            if pace.is_over():
                yield ON_LOOP
        return (yield from encoded({
            "queue": self._request.queue, "vhost": self._request.vhost, "totals": totals(self._queue, self._groups),
            "items": items,
        }))  # fmt: skip

    def _best(self) -> Generator[Any, None, list[dict[str, Any]]]:
        """As many groups as were asked for, in order.  They are in a heap, the last in order on top, so that each group
        costs little however many are kept."""
        pace, start, kept = Pace(), 1, list[tuple[Any, dict[str, Any]]]()
        wanted, by_age, most = self._request.state, self._request.sort == "age", self._request.limit
        while start:
            some, start = self._groups.groups(start, SCAN_AT_ONCE)
            for each in some:
                if wanted not in ("", state_of(each)) or (by_age and not each["first_ts"]):
                    continue
                place = ((-each["first_ts"] if by_age else each["waiting"], each["unacked"], each["key"]), each)
                if len(kept) < most:
                    heappush(kept, place)
                else:
                    heappushpop(kept, place)
            if pace.is_over():
                yield ON_LOOP
        best = list[dict[str, Any]]()
        while kept:
            best.append(heappop(kept)[1])
            if pace.is_over():
                yield ON_LOOP
        best.reverse()
        return best

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    return Listing(node, request)


# --- operations on one group


@request
class GroupRequest:
    queue: Annotated[str, Field("The queue's name.", argument=True)]
    group: Annotated[str, Field("The group's key; a whole number by its digits.", argument=True)]
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"


class Changed(TypedDict):
    """``changed``: False if the group stood so already.  ``seq``: of the message that was dropped."""

    queue: Name
    group: Name
    changed: bool
    seq: int
    messages: int


class Acting:
    """The job: looks at all messages first, so that the group is known with all of its own, then acts.  What
    outlives a restart is on disk before it is answered.  Raises OperationError (404, 409)."""

    def __init__(self, node: "Node", verb: str, request: GroupRequest) -> None:
        self._node, self._verb, self._request = node, verb, request
        self._queue, self._groups = groups_of(node, request.vhost, request.queue)
        self._key = _key(request.group)

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        yield from parked(self._queue)
        yield from scanned(self._groups, SHOWN_SCAN_MOST if self._verb == "show" else None)
        if self._queue.groups is not self._groups:
            raise OperationError(f"{self._queue} was deleted, or has other rules for groups, meanwhile", 409)
        if self._verb == "show":
            return row(self._node, self._queue, self._find())
        if self._verb == "purge":
            dropped = yield from self._purge()
            answer = self._answer(dropped > 0, messages=dropped)
        else:
            answer = getattr(self, f"_{self._verb}")()
        if self._verb in ON_DISK and answer["changed"]:
            self._node.core.turn()
            log = find_vhost(self._node, self._request.vhost).log
            yield Wait(lambda go_on: self._node.commit.wait(go_on, log))
            yield from sync_everything(self._node)
        return answer

    def clean_up(self) -> None:
        """As ``jobs.Job``."""

    def _find(self) -> dict[str, Any]:
        found = self._groups.find(self._key)
        if found is None:
            raise OperationError(f"no group '{self._request.group}' in {self._queue}: no message of it waits or is out",
                                 404)
        return found

    def _answer(self, changed: bool, *, seq: int = 0, messages: int = 0) -> Changed:
        return {"queue": self._request.queue, "group": self._request.group, "changed": changed, "seq": seq,
                "messages": messages}

    def _pause(self) -> Changed:
        found = self._groups.find(self._key)
        if found is None and len(self._key) > 1024:
            raise OperationError("a group's key has at most 1024 octets", 400)
        self._groups.pause(self._key)
        return self._answer(found is None or "paused" not in found["states"])

    def _resume(self) -> Changed:
        self._find()
        return self._answer(self._groups.resume(self._key))

    def _park(self) -> Changed:
        found = self._find()
        if not self._groups.park(self._key):
            raise OperationError(f"no message of group '{self._request.group}' waits, so there is nothing to park; "
                                 "'group pause' keeps messages that come", 409)
        return self._answer("parked" not in found["states"], seq=found["first_seq"], messages=found["waiting"])

    def _release(self) -> Changed:
        found = self._find()
        return self._answer(self._groups.release(self._key), seq=found["first_seq"], messages=found["waiting"])

    def _skip(self) -> Changed:
        found = self._find()
        seq = self._groups.skip(self._key)
        if seq == 0:
            why = ("a message of it is out, and that is its first" if found["unacked"] else "no message of it waits")
            raise OperationError(f"nothing to skip in group '{self._request.group}': {why}", 409)
        return self._answer(True, seq=seq, messages=1)

    def _purge(self) -> Steps:
        self._find()
        dropped, pace = 0, Pace()
        while True:
            some = self._groups.purge(self._key, SCAN_AT_ONCE)
            dropped += some
            if some < SCAN_AT_ONCE:
                return dropped
            if pace.is_over():
                yield ON_LOOP


# --- group browse


@request
class GroupBrowseRequest(GroupRequest):
    count: Annotated[int, Field("How many messages at most.", low=1, high=1000)] = 100
    after: Annotated[int, Field("Only messages behind this place in the group.", low=0)] = 0
    encoding: Annotated[Literal["auto", "base64"], Field("auto: text where the payload is UTF-8.")] = "auto"
    truncate: Annotated[int, Field("Octets of a payload that are shown; 0: all.", low=0)] = 0


class GroupedRow(MessageRow):
    """``place``: the number by which it stands in its group, as its header x-group-seq.  ``failed``: its failed
    deliveries so far."""

    place: int
    failed: int


class GroupBrowsed(TypedDict):
    items: list[GroupedRow]


class Browsing:
    """The job that shows the messages that wait in a group, in order.  Raises OperationError (404, 409), AMQPError."""

    def __init__(self, node: "Node", who: Who, request: GroupBrowseRequest) -> None:
        from brokerd.operations.messages import queue_of

        self._request = request
        queue_of(node, who, request)  # It asks for the right to read.
        self._queue, self._groups = groups_of(node, request.vhost, request.queue)

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        from brokerd.operations.messages import shown

        request, pace, items = self._request, Pace(), list[dict[str, Any]]()
        yield from parked(self._queue)
        yield from scanned(self._groups, SHOWN_SCAN_MOST)
        at = request.after
        while len(items) < request.count and self._queue.groups is self._groups:
            some = self._groups.messages(_key(request.group), at, min(BROWSED_AT_ONCE, request.count - len(items)))
            if not some:
                break
            for at, failed, message in some:
                items.append({"place": at, "failed": failed}
                             | shown(self._queue, message, request.encoding, request.truncate))
            if pace.is_over():
                yield ON_LOOP
        return (yield from encoded({"items": items}))

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


def _browse(node: "Node", who: Who, request: GroupBrowseRequest) -> Browsing:
    return Browsing(node, who, request)


def _row(verb: str, text: str, answer: type, *, changes: bool = True) -> Operation[Any, Any]:
    right = Right("management", "read", on="queue") if changes else Right("management", "visit")
    return Operation(
        "group", verb, text, GroupRequest, answer, right, lambda node, who, request: Acting(node, verb, request),
        changes=changes, job=True,
    )  # fmt: skip


OPERATIONS = (
    Operation(
        "group", "list",
        "List the message groups of a queue: their messages, their consumers, and why they do not move.",
        ListRequest, GroupsListed, Right("management", "visit"), _list, job=True, aliases=("list_groups",),
    ),
    _row("show", "Show one message group, and why it does not move.", GroupRow, changes=False),
    Operation(
        "group", "browse", "Show the messages that wait in a group, in their order.",
        GroupBrowseRequest, GroupBrowsed, Right("management", "visit"), _browse, job=True,
    ),
    _row("pause", "Deliver no more of a group until it is resumed, or the broker starts again.", Changed),
    _row("resume", "Let a group go on that was paused.", Changed),
    _row("park", "Deliver no more of a group until it is released, also after a restart.", Changed),
    _row("release", "Let a group go on that was paused or parked, or waits for a retry.", Changed),
    _row("skip", "Drop the first message of a group, unless a message of the group is out.", Changed),
    _row("purge", "Drop the messages of a group that are not out.", Changed),
)  # fmt: skip

"""Puts dead letters back where they died: a job that runs to its end.

    browse ─> headers tell the queue ─> one Change (transfer): taken out here, put there without the history of deaths

A message that cannot go stays where it is, and the answer says why.
"""

from typing import TYPE_CHECKING, Any

from brokerd.operations import OperationError
from brokerd.operations.changing import OPERATOR, Lasting
from brokerd.operations.jobs import Steps
from brokerd.operations.messages import check_gives, chosen, look_for, queue_of
from brokerd.operations.transfer import Change, Content, Taken
from brokerd.queues.dead_letter import read_properties, write_properties

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.node import Node
    from brokerd.operations.rows import Who
    from brokerd.queues.queue import Queue
    from brokerd.vhost.access import Access
    from brokerd.vhost.vhost import VHost

FIRST_QUEUE, FIRST_EXCHANGE = "x-first-death-queue", "x-first-death-exchange"
HISTORY = (
    "x-death", "x-first-death-reason", FIRST_QUEUE, FIRST_EXCHANGE, "x-last-death-reason", "x-last-death-queue",
    "x-last-death-exchange",
)  # fmt: skip
REASONS_MOST = 100
_TEXT = ("utf-8", "surrogateescape")


class Stays(Exception):
    """The message cannot go; the text says why."""


def redrive(node: "Node", who: "Who", request: Any) -> Lasting:
    """The job.  Raises OperationError, AMQPError."""
    vhost, access, queue = queue_of(node, who, request)
    check_gives(queue)
    access.check_exchange("write", "")
    if request.to:
        _target(access, queue, request.to)
    return Lasting(node, _Redrive(node, vhost, access, queue, request).steps())


class _Redrive:
    def __init__(self, node: "Node", vhost: "VHost", access: "Access", queue: "Queue", request: Any) -> None:
        self._node, self._vhost, self._access, self._queue, self._request = node, vhost, access, queue, request
        self._matches = chosen(request)
        self._left = 0
        self._reasons: list[dict[str, Any]] = []
        self._seqs: list[int] = []

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        request = self._request
        if request.dry_run:
            yield from look_for(self._queue, request, lambda row: self._take(row, None))
            return self._answer(self._seqs, 0)
        change = Change(self._node, self._vhost)
        try:
            yield from look_for(self._queue, request, lambda row: self._take(row, change))
        except BaseException:
            change.abandon()
            raise
        outcome = yield from change.carry_out()
        for at in sorted(set(range(len(self._seqs))) - set(outcome.done)):
            self._stays(self._seqs[at], "its queue refuses it")
        return self._answer([self._seqs[at] for at in outcome.done], outcome.undo)

    def _answer(self, seqs: list[int], undo: int) -> dict[str, Any]:
        return {"messages": len(seqs), "seqs": seqs, "undo": undo, "left": self._left, "reasons": self._reasons}

    def _take(self, row: "plane.Row", change: Change | None) -> bool:
        """Whether the message is one of those that were asked for; it may stay for all that."""
        if not self._matches(row):
            return False
        try:
            target, content = _way(self._node, self._access, self._queue, row, self._request)
        except Stays as why:
            self._stays(row[0], str(why))
        else:
            if change is None or change.add(Taken(self._queue, row[0]), row[3:], target, content):
                self._seqs.append(row[0])
        return True

    def _stays(self, seq: int, why: str) -> None:
        self._left += 1
        if len(self._reasons) < REASONS_MOST:
            self._reasons.append({"seq": seq, "why": why})


def _target(access: "Access", queue: "Queue", name: str) -> "Queue":
    """The queue of that name.  Raises OperationError."""
    target = access.vhost.queues.get(name)
    if target is None:
        raise OperationError(f"no queue '{name}' in vhost '{access.vhost.name}'", 404)
    target.check_access(OPERATOR)
    target.check_in_service()
    if target is queue:
        raise OperationError(f"{queue}: its own messages cannot be put into it again", 400)
    return target


def _way(
    node: "Node", access: "Access", queue: "Queue", row: "plane.Row", request: Any
) -> "tuple[Queue, Content]":
    """Where the message died first, and what it was there.  Raises Stays."""
    from brokerd.errors import AMQPError

    properties = read_properties(row[5])
    headers = dict(properties.headers or {})
    name = request.to or headers.get(FIRST_QUEUE)
    if not isinstance(name, str):
        raise Stays(f"it has no header {FIRST_QUEUE}: it is no dead letter")
    if node.core.blocked:
        raise Stays(f"the broker takes no messages now: {node.alarm_reason}")
    try:
        target = _target(access, queue, name)
    except (OperationError, AMQPError) as error:
        raise Stays(str(error)) from None
    exchange, key = _first_way(headers, row)
    properties.headers = {header: value for header, value in headers.items() if header not in HISTORY} or None
    return target, (exchange, key, write_properties(properties), row[6])


def _first_way(headers: dict[str, Any], row: tuple[Any, ...]) -> tuple[bytes, bytes]:
    """The exchange and the routing key with which the message came into the queue where it died first; where its
    headers do not say, those that it has now."""
    exchange = headers.get(FIRST_EXCHANGE)
    deaths = headers.get("x-death")
    first = deaths[-1] if isinstance(deaths, list) and deaths else None
    keys = first.get("routing-keys") if isinstance(first, dict) else None
    key = keys[0] if isinstance(keys, list) and keys else None
    ways = []
    for value, now in ((exchange, row[3]), (key, row[4])):
        octets = value.encode(*_TEXT) if isinstance(value, str) else now
        ways.append(octets if len(octets) <= 255 else now)
    return ways[0], ways[1]

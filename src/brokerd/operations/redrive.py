"""Puts dead letters back where they died: a job that runs to its end.

    browse ─> headers tell the queue ─> core.put, without the history of deaths ─> sync ─> taken out here

A message leaves the queue only when it is on disk in the other one, so that a broker that dies in between has it twice,
and never not at all.  A message that cannot go stays where it is, and the answer says why.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.operations import OperationError
from brokerd.operations.changing import OPERATOR, Lasting
from brokerd.operations.jobs import ON_LOOP, Pace, Steps, Wait
from brokerd.operations.messages import check_gives, chosen, queue_of, search
from brokerd.queues.dead_letter import read_properties, write_properties

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.rows import Who
    from brokerd.queues.queue import Queue
    from brokerd.vhost.access import Access

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
    matches = chosen(request)

    def steps() -> Steps:
        found, _ = yield from search(queue, request, matches)
        gone, reasons, left, pace = list[int](), list[dict[str, Any]](), 0, Pace()
        for row in found:
            if queue.deleted:
                break
            try:
                _put(node, access, queue, row, request)
                gone.append(row[0])
            except Stays as why:
                left += 1
                if len(reasons) < REASONS_MOST:
                    reasons.append({"seq": row[0], "why": str(why)})
            if pace.is_over():
                node.core.turn()
                yield ON_LOOP
        if gone and not request.dry_run:
            node.core.turn()
            yield Wait(partial(_wait, node, vhost))
            for seq in gone:
                if not queue.deleted:
                    queue.remove(seq)
                if pace.is_over():
                    node.core.turn()
                    yield ON_LOOP
            node.core.turn()
            yield Wait(partial(_wait, node, vhost))
        return {"messages": len(gone), "seqs": gone, "left": left, "reasons": reasons}

    return Lasting(node, steps())


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


def _put(node: "Node", access: "Access", queue: "Queue", row: tuple[Any, ...], request: Any) -> None:
    """Put a message where it died first.  Raises Stays."""
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
    if request.dry_run:
        return
    exchange, key = _first_way(headers, row)
    properties.headers = {header: value for header, value in headers.items() if header not in HISTORY} or None
    if not node.core.put((target,), exchange, key, write_properties(properties), row[6], sync=True):
        raise Stays(f"{target} refuses it")


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


def _wait(node: "Node", vhost: Any, go_on: Any) -> None:
    node.commit.wait(go_on, vhost.log)

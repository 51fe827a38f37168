"""Receives messages for a limited time, and settles them by receipt: see ``pulls``, which holds them meanwhile."""

from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.operations import OperationError
from brokerd.operations.changing import Lasting
from brokerd.operations.jobs import Steps, Wait
from brokerd.operations.messages import check_gives, properties_of, queue_of
from brokerd.operations.pulls import Pulls, show

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.rows import Who

LOOK_EVERY_S = 0.1  # while a receiver waits for messages
RECEIPTS_MOST = 10


def pulls_of(node: "Node") -> Pulls:
    """The messages that receivers hold of this broker; the first use makes the object."""
    if node.pulls is None:
        node.pulls = Pulls(node.core, node.data.next_connection_number, node.clock.monotonic, partial(_later, node))
    return node.pulls


def receive(node: "Node", who: "Who", request: Any) -> Lasting:
    """The job that takes messages, or waits for some."""
    _, _, queue = queue_of(node, who, request)
    check_gives(queue)
    pulls = pulls_of(node)

    def steps() -> Steps:
        until = node.clock.monotonic() + request.wait
        while True:
            if queue.deleted:
                raise OperationError("the queue was deleted meanwhile", 404)
            rows = pulls.receive(queue, request.count, request.visibility, request.attempt)
            left = until - node.clock.monotonic()
            if rows or left <= 0 or node.stopping:
                return {"items": [show(row, properties_of) for row in rows]}
            yield Wait(partial(_later, node, min(LOOK_EVERY_S, left)))

    return Lasting(node, steps())


def _later(node: "Node", seconds: float, go_on: Any) -> None:
    node.call_at(node.clock.epoch_ns() + int(seconds * 1_000_000_000), go_on)


def settle(node: "Node", who: "Who", request: Any, verb: str) -> dict[str, Any]:
    """Acknowledge or return messages, or have them return later.  Raises OperationError: a receipt is not known."""
    _, _, queue = queue_of(node, who, request)
    names = [name.strip() for name in request.receipts.split(",")]
    if len(names) > RECEIPTS_MOST:
        raise OperationError(f"receipts must be at most {RECEIPTS_MOST}, and not {len(names)}", 400)
    pulls = pulls_of(node)
    receipts = pulls.find(queue, list(dict.fromkeys(names)))  # One that is named twice is one message.
    if verb == "ack":
        pulls.settle(receipts)
    elif verb == "extend":
        pulls.extend(receipts, request.visibility)
    elif request.delay:
        pulls.extend(receipts, request.delay, nack=True)
    else:
        pulls.settle(receipts, 1)
    return {"messages": len(receipts)}

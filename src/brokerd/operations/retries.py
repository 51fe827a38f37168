"""An operator's work on messages that failed too often: tries them again, or gives them up.

The rules are in ``queues.rules``; ``plane.Retry`` holds the messages.
"""

from typing import TYPE_CHECKING

from brokerd import plane
from brokerd.operations import OperationError, find_queue
from brokerd.operations.changing import Lasting, settle
from brokerd.operations.lists import find_vhost

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.queue import Released


def release(node: "Node", vhost: str, name: str, seq: int) -> Lasting:
    """The job that makes a message ready at its own place, and answers when that is on disk.  Raises OperationError
    (404, 409), also while it runs."""

    def work() -> "Released":
        gate, found = _held(node, vhost, name, seq)
        if not gate.release(found):
            raise OperationError(f"message {found} of queue '{name}' in vhost '{vhost}' neither stops the queue nor "
                                 "waits for its next try", 409)  # fmt: skip
        return {"vhost": vhost, "queue": name, "seq": found, "stopped": gate.stopped}

    return settle(node, find_vhost(node, vhost), work)


def skip(node: "Node", vhost: str, name: str, seq: int) -> Lasting:
    """The job that lets a message die of its delivery limit, and answers when that is on disk.  Raises OperationError
    (404, 409), also while it runs."""

    def work() -> "Released":
        gate, found = _held(node, vhost, name, seq)
        if not gate.skip(found):
            raise OperationError(f"queue '{name}' in vhost '{vhost}' has not stopped behind message {found}", 409)
        return {"vhost": vhost, "queue": name, "seq": found, "stopped": gate.stopped}

    return settle(node, find_vhost(node, vhost), work)


def _held(node: "Node", vhost: str, name: str, seq: int) -> tuple[plane.Retry, int]:
    """The gate that holds the message, and its number: 0 stands for the first message behind which the queue stops."""
    queue = find_queue(node, vhost, name)
    stops = queue.gate.stops(1) if isinstance(queue.gate, plane.Retry) else []
    if not isinstance(queue.gate, plane.Retry) or (seq == 0 and not stops):
        raise OperationError(f"queue '{name}' in vhost '{vhost}' has not stopped behind a message", 409)
    return queue.gate, seq or stops[0][0]

"""What can be asked of a running broker, whoever asks: functions of (node, what is asked) that return JSON-able tables.

Nothing here knows how a question came or how the answer goes back; nothing waits.  What takes
longer than a turn of the loop is a job: see ``operations/jobs.py``.
"""

from typing import TYPE_CHECKING

from brokerd.errors import BrokerError

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.queues.queue import Queue


DUMP_STAGE = "dumping"  # in the data directory, see operations/dump; where a crash leaves it the next start removes it


class OperationError(BrokerError):
    """A question that has no answer.  ``code`` is HTTP's: 404 there is no such thing, 400 the question is wrong,
    409 not now, 500 it failed."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def find_queue(node: "Node", vhost: str, name: str) -> "Queue":
    """Raises OperationError (404)."""
    there = node.vhosts.get(vhost)
    if there is None:
        raise OperationError(f"no vhost '{vhost}'", 404)
    queue = there.queues.get(name)
    if queue is None:
        raise OperationError(f"no queue '{name}' in vhost '{vhost}'", 404)
    return queue

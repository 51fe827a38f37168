"""What can be asked of a running broker, and what can be changed: one table of operations.

An operation is a noun, a verb, and one row in ``operations/<noun>.py`` (its shape: ``rows.Operation``).  ``table``
finds the rows, checks requests with pydantic, and calls the row's function with (node, who asks, request).  The
verbs of the control socket and the commands of brokerctl follow from the rows.

The functions do not know how a request came or how the answer goes back, and they never wait.  Work that takes
longer than a turn of the loop is a job: see ``jobs``.  The rows can be listed without pydantic, and a broker's start
imports none of them.
"""

from typing import TYPE_CHECKING

from brokerd.errors import BrokerError

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.queues.queue import Queue


DUMPING_FOLDER = "dumping"  # in the data directory, see operations/dump; the next start removes what a crash left there


class OperationError(BrokerError):
    """An operation that is refused or fails.  ``code`` is HTTP's: 400 the request is wrong, 403 the user may not,
    404 no such thing, 409 not now, 500 it failed."""

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

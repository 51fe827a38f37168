"""One table of operations: the questions that a running broker answers, and the changes that it makes on request.

An operation has a noun, a verb, and one row in ``operations/<noun>.py`` (its shape: ``rows.Operation``).  ``table``
finds the row, checks the request with pydantic, and calls the row's function with (node, who asks, request).  The verbs
of the control socket and the commands of brokerctl follow from the rows.

A row's function does not know how the request came or how the answer goes back, and it never waits.  Work that takes
longer than a turn of the loop is a job: see ``jobs``.  Listing the rows does not import pydantic, and a broker's start
imports no row.
"""

from typing import TYPE_CHECKING

from brokerd.errors import BrokerError

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.queues.queue import Queue


DUMPING_FOLDER = "dumping"  # in the data directory, see operations/dump; the next start removes what a crash left there


class OperationError(BrokerError):
    """An operation was refused, or failed.  ``code`` is HTTP's: 400 the request is wrong, 401 the password is,
    403 the user lacks a right, 404 the named thing does not exist, 409 not possible now, 500 it failed."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def find_queue(node: "Node", vhost: str, name: str) -> "Queue":
    """The queue of that name.  Raises OperationError (404)."""
    there = node.vhosts.get(vhost)
    if there is None:
        raise OperationError(f"no vhost '{vhost}'", 404)
    queue = there.queues.get(name)
    if queue is None:
        raise OperationError(f"no queue '{name}' in vhost '{vhost}'", 404)
    return queue

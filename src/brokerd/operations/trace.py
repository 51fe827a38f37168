"""The life of one message, read from the files of its queue while the broker goes on.

The work is ``brokerd.audit.trace``'s, in the slow thread: it reads, and touches no queue.
"""

import os
from typing import TYPE_CHECKING, Any

from brokerd.operations import OperationError, find_queue
from brokerd.operations.jobs import IN_THREAD, Steps

if TYPE_CHECKING:
    from brokerd.node import Node


class Trace:
    """A job: ``audit.trace.trace()`` of a message of a queue.  Raises OperationError (404, 409)."""

    def __init__(self, node: "Node", vhost: str, name: str, seq: int) -> None:
        queue = find_queue(node, vhost, name)
        self._directory = queue.directory
        self._seq = seq
        if not queue.durable:
            raise OperationError(f"{queue} is not durable: its messages leave no trace", 409)
        if not 0 < seq < queue.next_seq:
            raise OperationError(f"no message {seq} in {queue}: {_there(queue.next_seq)}", 404)

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        yield IN_THREAD
        return read(self._directory, self._seq)

    def ended(self) -> None:
        """As ``jobs.Job``."""


def read(directory: str, seq: int) -> dict[str, Any]:
    """The life of a message of the queue in that folder.  Raises OperationError (404), AuditError, OSError."""
    from brokerd.audit.files import open_source  # Whoever asks waits for numpy; the broker's start does not.
    from brokerd.audit.trace import trace

    if os.path.exists(directory):
        source = open_source(directory)
        for queue in source.queues():
            return trace(source, queue, seq)
    raise OperationError("the queue was deleted meanwhile", 404)


def _there(next_seq: int) -> str:
    if next_seq == 1:
        return "it has had none yet"
    return f"they are numbered 1 to {next_seq - 1} so far"

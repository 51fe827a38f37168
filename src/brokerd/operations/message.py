"""Operations on messages."""

import os
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from brokerd.operations import OperationError, find_queue
from brokerd.operations.jobs import IN_THREAD, Steps
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node


# --- message trace


@request
class TraceRequest:
    queue: Annotated[str, Field("Name of the message's queue.", argument=True)]
    seq: Annotated[int, Field("The message's number in its queue.", argument=True, low=1)]
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"


class Record(TypedDict):
    """A message as it was published."""

    ts: int  # ns since the epoch, as everywhere here
    connection: int  # 0: the broker put it there
    channel: int
    publish_seq: int
    exchange: str
    routing_key: str
    message_id: str | None
    body_octets: int
    persistent: bool


class Event(TypedDict):
    ts: int | None  # None: only the acks file has this event, and it has no times
    what: str  # see audit/trace: "enqueued", "delivered", "acked", …
    consumer: dict[str, Any] | None  # its number and its line of order.jsonl; of basic.get only the connection
    cause: NotRequired[str]
    count: NotRequired[int]  # failed deliveries so far
    offset: NotRequired[int]  # of the event in the order journal
    connection: NotRequired[int]  # the publisher's
    delivery_tag: NotRequired[int]
    redelivered: NotRequired[bool]
    by_get: NotRequired[bool]
    before_start: NotRequired[bool]
    no_ack: NotRequired[bool]


class Spoiled(TypedDict):
    """Something that is wrong with a file of the message's segment."""

    file: Name
    offset: int  # -1: the whole file
    detail: str
    missing: list[str]


class Trace(TypedDict):
    """The life of one message.  ``known`` says how much of it the files have: "all", "part", "acks only" or "nothing".
    ``why`` is there with "nothing", and says the likely reason.  ``spoiled``: what is damaged, so that the life may
    have been another one."""

    vhost: Name
    queue: Name
    seq: int
    priority: int | None
    segment: int | None
    position: int | None
    record: Record | None  # None: a compaction has removed it
    events: list[Event]
    known: str
    state: str
    spoiled: list[Spoiled]
    why: NotRequired[str]
    reason: NotRequired[str | None]
    kept: NotRequired[bool]
    file: NotRequired[Name]
    deliveries: NotRequired[int]
    returns: NotRequired[int]


class Tracing:
    """The job: runs ``audit.trace.trace()`` in the slow thread, which reads files and touches no queue.

    Raises OperationError (404, 409).
    """

    def __init__(self, node: "Node", vhost: str, name: str, seq: int) -> None:
        queue = find_queue(node, vhost, name)
        self._directory = queue.directory
        self._seq = seq
        if not queue.durable:
            raise OperationError(f"{queue} is not durable: its messages leave no trace", 409)
        if not 0 < seq < queue.next_seq:
            raise OperationError(f"no message {seq} in {queue}: {_numbers(queue.next_seq)}", 404)

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        yield IN_THREAD
        return trace_in(self._directory, self._seq)

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


def trace_in(directory: str, seq: int) -> dict[str, Any]:
    """The life of a message of the queue in that folder.  Raises OperationError (404), AuditError, OSError."""
    from brokerd.audit.files import open_source  # numpy: the broker's start does without it.
    from brokerd.audit.trace import trace

    if os.path.exists(directory):
        source = open_source(directory)
        for queue in source.queues():
            return trace(source, queue, seq)
    raise OperationError("the queue was deleted meanwhile", 404)


def _numbers(next_seq: int) -> str:
    if next_seq == 1:
        return "it has had none yet"
    return f"they are numbered 1 to {next_seq - 1} so far"


def _trace(node: "Node", who: Who, request: TraceRequest) -> Tracing:
    return Tracing(node, request.vhost, request.queue, request.seq)


OPERATIONS = (
    Operation(
        "message", "trace",
        "Show the life of one message: who published it, who got it, what became of it.",
        TraceRequest, Trace, Right("management", "read", on="queue"), _trace, job=True, aliases=("trace",),
    ),
)  # fmt: skip

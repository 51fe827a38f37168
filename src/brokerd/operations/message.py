"""Operations on messages."""

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from brokerd.operations import OperationError, find_queue
from brokerd.operations.jobs import IN_THREAD, Steps
from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.jobs import Job


# --- message unacked


@request
class UnackedRequest:
    queue: Annotated[str, Field("The queue's name.", argument=True)]
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"
    consumer: Annotated[str, Field("Only what the consumers with this tag hold.")] = ""
    connection: Annotated[str, Field("Only what the connection with this name or number holds.")] = ""
    count: Annotated[int, Field("How many messages at most.", low=1, high=10_000)] = 100


class UnackedRow(TypedDict):
    seq: int
    held_ms: int  # since the delivery
    since: int  # ms since the epoch
    by: Literal["consumer", "get", "receipt"]  # basic.get; a receipt of "message receive"
    consumer_tag: Name | None
    connection: int  # its number
    connection_name: str | None
    channel: int
    user: Name | None
    delivery_tag: int
    failed: int  # deliveries before this one that failed


class Unacked(TypedDict):
    """What clients hold, the oldest first.  ``unacked``: of the whole queue."""

    vhost: Name
    queue: Name
    unacked: int
    items: list[UnackedRow]


def _unacked(node: "Node", who: Who, request: UnackedRequest) -> "Job":
    from brokerd.operations.held import Held

    return Held(node, request)


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


# --- message publish


@request
class PublishRequest:
    exchange: Annotated[str, Field("The exchange; amq.default: the default one.", argument=True)]
    routing_key: Annotated[str, Field("The routing key.", argument=True, high=255)]
    payload: Annotated[str, Field("The body of the message.", argument=True)] = ""
    payload_encoding: Annotated[Literal["string", "base64"], Field("How the payload is written.")] = "string"
    properties: Annotated[dict[str, Any] | None, Field('Properties, as in {"delivery_mode": 2, "headers": {}}.')] = None
    vhost: Annotated[str, Field("Vhost of the exchange.")] = "/"


class Published(TypedDict):
    routed: bool  # false: it went nowhere
    queues: list[Name]  # that have it


def _publish(node: "Node", who: Who, request: PublishRequest) -> "Job":
    from brokerd.operations.messages import publish

    return publish(node, who, request)


# --- message get


@request
class GetRequest:
    queue: Annotated[str, Field("The queue's name.", argument=True)]
    count: Annotated[int, Field("How many messages at most.", low=1, high=10_000)] = 1
    ackmode: Annotated[
        Literal["ack_requeue_true", "reject_requeue_true", "ack_requeue_false", "reject_requeue_false"],
        Field("With ..._true they stay in the queue, with ..._false they are gone."),
    ] = "ack_requeue_true"
    encoding: Annotated[Literal["auto", "base64"], Field("auto: text where the payload is UTF-8.")] = "auto"
    truncate: Annotated[int, Field("Octets of a payload that are shown; 0: all.", low=0)] = 0
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"


class MessageRow(TypedDict):
    seq: int  # its number in the queue
    published_at: int  # ns since the epoch
    redelivered: bool
    exchange: Name
    routing_key: Name
    properties: dict[str, Any]
    group: Name | None  # its message group, where the queue has groups
    payload: str
    payload_encoding: str  # string or base64
    payload_bytes: int
    message_count: int  # ready in the queue now


class Got(TypedDict):
    items: list[MessageRow]


def _get(node: "Node", who: Who, request: GetRequest) -> "Job":
    from brokerd.operations.messages import get

    return get(node, who, request)


# --- message browse


@request
class Chosen:
    """Filters that choose messages of a queue; a message must meet all that are given."""

    queue: Annotated[str, Field("The queue's name.", argument=True)]
    from_seq: Annotated[int, Field("Only messages from this number on.", low=1)] = 1
    count: Annotated[int, Field("How many messages at most.", low=1, high=100_000)] = 100
    examine: Annotated[int, Field("How many messages it examines at most.", low=1, high=10_000_000)] = 100_000
    routing_key: Annotated[str, Field("Only messages with this routing key.")] = ""
    exchange: Annotated[str, Field("Only messages that came by this exchange; amq.default is the default one.")] = ""
    properties: Annotated[dict[str, Any] | None, Field('Only messages with these: {"headers": {"k": 1}}.')] = None
    contains: Annotated[str, Field("Only messages with this text in their payload.")] = ""
    since: Annotated[int, Field("Only messages that came since then: ms since 1970.", low=0)] = 0
    until: Annotated[int, Field("Only messages that came before then: ms since 1970; 0: no limit.", low=0)] = 0
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"


@request
class BrowseRequest(Chosen):
    encoding: Annotated[Literal["auto", "base64"], Field("auto: text where the payload is UTF-8.")] = "auto"
    truncate: Annotated[int, Field("Octets of a payload that are shown; 0: all.", low=0)] = 0


class Browsed(TypedDict):
    items: list[MessageRow]
    next_seq: int  # the next look begins there


def _browse(node: "Node", who: Who, request: BrowseRequest) -> "Job":
    from brokerd.operations.messages import Browsing

    return Browsing(node, who, request)


# --- message delete, copy, move


@request
class DeleteRequest(Chosen):
    seqs: Annotated[str, Field("Only these messages: numbers and ranges, such as 5,8,10-20.")] = ""
    dry_run: Annotated[bool, Field("Change nothing; say which messages are chosen.")] = False


class Affected(TypedDict):
    messages: int
    seqs: list[int]  # their numbers in the queue
    undo: int  # the number that undoes it; 0: it cannot be undone


def _delete(node: "Node", who: Who, request: DeleteRequest) -> "Job":
    from brokerd.operations.messages import delete

    return delete(node, who, request)


@request
class TransferRequest(DeleteRequest):
    to: Annotated[str, Field("The queue that gets them; it must be there.")] = ""


def _copy(node: "Node", who: Who, request: TransferRequest) -> "Job":
    from brokerd.operations.messages import transfer

    return transfer(node, who, request, move=False)


def _move(node: "Node", who: Who, request: TransferRequest) -> "Job":
    from brokerd.operations.messages import transfer

    return transfer(node, who, request, move=True)


@request
class RedriveRequest(DeleteRequest):
    to: Annotated[str, Field("The queue that gets them; empty: for each the one in which it died first.")] = ""
    group: Annotated[str, Field("Only letters of this message group, as their header x-group-id says.")] = ""


class NotRedriven(TypedDict):
    seq: int
    why: str


class Redriven(TypedDict):
    messages: int
    seqs: list[int]
    undo: int  # as of Affected
    left: int  # that stay where they are
    reasons: list[NotRedriven]  # of the first 100 of these


def _redrive(node: "Node", who: Who, request: RedriveRequest) -> "Job":
    from brokerd.operations.redrive import redrive

    return redrive(node, who, request)


# --- message undo


@request
class UndoRequest:
    number: Annotated[int, Field("The number in the answer to the change.", argument=True, low=1)]
    dry_run: Annotated[bool, Field("Change nothing; say how many messages it would be.")] = False
    vhost: Annotated[str, Field("Vhost of the change.")] = "/"


class Undone(TypedDict):
    messages: int
    left: int  # that were taken or removed since, or have no queue to return to


def _undo(node: "Node", who: Who, request: UndoRequest) -> "Job":
    from brokerd.operations.messages import undo

    return undo(node, who, request)


# --- message receive, ack, nack, extend


@request
class ReceiveRequest:
    queue: Annotated[str, Field("The queue's name.", argument=True)]
    count: Annotated[int, Field("How many messages at most.", low=1, high=10)] = 1
    visibility: Annotated[float, Field("Seconds after which an unsettled message returns.", low=0.01, high=43_200)] = 30
    wait: Annotated[int, Field("Seconds to wait for a message if no message is ready.", low=0, high=20)] = 0
    attempt: Annotated[str, Field("An id: for 5 minutes the same one gets the same messages again.")] = ""
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"


class ReceivedRow(TypedDict):
    receipt: str  # what ack, nack and extend ask for
    seq: int
    redelivered: bool
    exchange: Name
    routing_key: Name
    properties: dict[str, Any]
    payload: str
    payload_encoding: str  # string or base64
    payload_bytes: int


class Received(TypedDict):
    items: list[ReceivedRow]


@request
class AckRequest:
    queue: Annotated[str, Field("The queue's name.", argument=True)]
    receipts: Annotated[str, Field("Receipts of at most 10 messages, with commas between.", argument=True)]
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"


@request
class NackRequest(AckRequest):
    delay: Annotated[float, Field("Seconds after which the messages return.", low=0, high=43_200)] = 0


@request
class ExtendRequest(AckRequest):
    visibility: Annotated[float, Field("Seconds from now after which the messages return.", low=0.01, high=43_200)] = 30


class Settled(TypedDict):
    messages: int


def _receive(node: "Node", who: Who, request: ReceiveRequest) -> "Job":
    from brokerd.operations.receiving import receive

    return receive(node, who, request)


def _ack(node: "Node", who: Who, request: AckRequest) -> Settled:
    from brokerd.operations.receiving import settle

    return settle(node, who, request, "ack")  # type: ignore[return-value]


def _nack(node: "Node", who: Who, request: NackRequest) -> Settled:
    from brokerd.operations.receiving import settle

    return settle(node, who, request, "nack")  # type: ignore[return-value]


def _extend(node: "Node", who: Who, request: ExtendRequest) -> Settled:
    from brokerd.operations.receiving import settle

    return settle(node, who, request, "extend")  # type: ignore[return-value]


OPERATIONS = (
    Operation(
        "message", "receive",
        "Take messages for a limited time, with a receipt for each.",
        ReceiveRequest, Received, Right("management", "visit"), _receive, changes=True, traffic=True, job=True,
    ),
    Operation(
        "message", "ack",
        "Acknowledge received messages.",
        AckRequest, Settled, Right("management", "visit"), _ack, changes=True, traffic=True,
    ),
    Operation(
        "message", "nack",
        "Return received messages to their places, at once or after a delay.",
        NackRequest, Settled, Right("management", "visit"), _nack, changes=True, traffic=True,
    ),
    Operation(
        "message", "extend",
        "Let received messages return later.",
        ExtendRequest, Settled, Right("management", "visit"), _extend, changes=True, traffic=True,
    ),
    Operation(
        "message", "publish",
        "Publish a message; the answer comes when it is on the disk.",
        PublishRequest, Published, Right("management", "visit"), _publish, changes=True, traffic=True, job=True,
        aliases=("publish",),
    ),
    Operation(
        "message", "get",
        "Show the first messages of a queue; --ackmode says whether they stay.",
        GetRequest, Got, Right("management", "visit"), _get, changes=True, traffic=True, job=True, aliases=("get",),
    ),
    Operation(
        "message", "browse",
        "Look for messages in a queue, and leave them there.",
        BrowseRequest, Browsed, Right("management", "visit"), _browse, job=True, aliases=("browse",),
    ),
    Operation(
        "message", "delete",
        "Delete chosen messages, all at once.",
        DeleteRequest, Affected, Right("management", "visit"), _delete, changes=True, job=True,
    ),
    Operation(
        "message", "copy",
        "Put chosen messages into another queue as well, all at once and in their order.",
        TransferRequest, Affected, Right("management", "visit"), _copy, changes=True, job=True,
    ),
    Operation(
        "message", "move",
        """Put chosen messages into another queue, all at once and in their order.

        After a crash at any moment each of them is in one of the two queues, and all are in the same.
        """,
        TransferRequest, Affected, Right("management", "visit"), _move, changes=True, job=True,
    ),
    Operation(
        "message", "redrive",
        """Put dead letters back into the queue in which each died first, in their order.

        They lose the headers about their deaths, and get back the routing key and exchange that they had.
        In a queue with message groups each returns to its own place, before later ones of its group.
        """,
        RedriveRequest, Redriven, Right("management", "visit"), _redrive, changes=True, job=True,
    ),
    Operation(
        "message", "undo",
        """Undo a delete, copy, move or redrive of messages.

        Messages leave the queue into which the change put them, and return to the end of the queue that they had left.
        """,
        UndoRequest, Undone, Right("management", "visit"), _undo, changes=True, job=True,
    ),
    Operation(
        "message", "unacked",
        "List the messages that clients hold: which consumer has which, and since when, the oldest first.",
        UnackedRequest, Unacked, Right("management", "visit"), _unacked, job=True, aliases=("unacked",),
    ),
    Operation(
        "message", "trace",
        "Show the life of one message: who published it, who got it, and how it ended.",
        TraceRequest, Trace, Right("management", "read", on="queue"), _trace, job=True, aliases=("trace",),
    ),
)  # fmt: skip

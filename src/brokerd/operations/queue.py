"""Operations on queues."""

from typing import TYPE_CHECKING, Annotated

from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.jobs import Job


# --- queue ordering


@request
class OrderingRequest:
    queue: Annotated[str, Field("The queue's name.", argument=True)]
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"


class Messages(TypedDict):
    ready: int
    unacked: int
    next_seq: int  # the number that the next message will have


class Returned(TypedDict):
    nack: int
    reject: int
    recover: int
    channel_closed: int
    connection_closed: int
    consumer_timeout: int


class DeadLettered(TypedDict):
    rejected: int
    expired: int
    maxlen: int
    delivery_limit: int


class Dropped(TypedDict):
    rejected: int
    expired: int
    maxlen: int
    delivery_limit: int
    removed: int
    purged: int


class Counters(TypedDict):
    """``store.format.ORDER_COUNTERS``, in groups."""

    returned: Returned
    redelivered: int
    redelivered_after_restart: int
    out_of_sequence: int
    overtakings: int
    dead_lettered: DeadLettered
    dropped: Dropped


class CountersSince(TypedDict):
    since_start: Counters
    since_declare: Counters


class Journal(TypedDict):
    on: bool
    why: str
    kept_octets: int  # of settled segments, as of the last second
    first_kept_seq: int  # the first message that is on disk; 0 where no message is


class Consumer(TypedDict):
    number: int
    tag: Name
    prefetch: int
    global_prefetch: int
    unacked: int
    no_ack: bool
    priority: int
    active: bool  # false while another one is the single active consumer
    connection: int
    channel: int
    peer: str
    user: Name


class Ordering(TypedDict):
    vhost: Name
    queue: Name
    durable: bool
    guarantee: str  # see queues/guarantee: "strict-fifo", "best-effort", …
    reasons: list[str]
    notes: list[str]
    messages: Messages
    counters: CountersSince
    journal: Journal
    consumers: list[Consumer]


def _ordering(node: "Node", who: Who, request: OrderingRequest) -> Ordering:
    from brokerd.operations.ordering import ordering

    return ordering(node, request.vhost, request.queue)


# --- queue dump


@request
class DumpRequest:
    out: Annotated[str, Field("The folder to make.", argument=True, path=True)]
    queues: Annotated[str, Field("Only queues with a matching name, or vhost/name: a pattern with * and ?.")] = ""
    digests: Annotated[bool, Field("Name a digest (SHA-256) of each file in the manifest.")] = True


class Skipped(TypedDict):
    vhost: Name
    queue: Name
    why: str


class Dumped(TypedDict):
    out: Name
    queues: int
    segments: int
    octets: int
    skipped: list[Skipped]


def _dump(node: "Node", who: Who, request: DumpRequest) -> "Job":
    from brokerd.operations.dump import Dump

    return Dump(node, request.queues, request.out, digests=request.digests)


OPERATIONS = (
    Operation(
        "queue", "ordering",
        "Show how firmly a queue keeps its order now, why, and what has disturbed it.",
        OrderingRequest, Ordering, Right("management", "visit"), _ordering, aliases=("ordering",),
    ),
    Operation(
        "queue", "dump",
        """Copy the files of durable queues while the broker goes on.

        Each queue is copied as it is at one instant.  The broker writes the folder OUT, which must be new or empty.
        """,
        DumpRequest, Dumped, Right("administrator"), _dump, changes=True, job=True, aliases=("dump",),
    ),
)  # fmt: skip

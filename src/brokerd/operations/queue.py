"""Operations on queues."""

from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from brokerd.operations import OperationError, describing, find_queue
from brokerd.operations.changing import OPERATOR, Lasting, define, door
from brokerd.operations.counting import Histogram, times_of
from brokerd.operations.group import GroupTotals
from brokerd.operations.jobs import ON_LOOP, Pace, Steps, Wait
from brokerd.operations.lists import InOrder, Listing, Page, Paging, find_vhost, vhosts_to_list
from brokerd.operations.rows import Done, Field, Name, Operation, Right, TypedDict, Who, request

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.jobs import Job


class QueueRow(TypedDict):
    name: Name
    vhost: Name
    type: str
    durable: bool
    auto_delete: bool
    exclusive: bool
    arguments: dict[str, Any]
    state: str  # running, paused by an operator, or down: its files are lost
    policy: Name | None
    operator_policy: Name | None
    effective_policy_definition: dict[str, Any]
    effective_arguments: dict[str, Any]  # what arguments and policies say together
    messages: int
    messages_ready: int
    messages_unacknowledged: int
    messages_aside: int  # neither ready nor out, such as dead letters under way
    message_bytes_ready: int
    next_seq: int  # the number that the next message will have
    consumers: int
    bindings: int  # beside that of the default exchange
    exclusive_consumer_tag: Name | None
    single_active_consumer_tag: Name | None
    owner: str | None  # the connection that an exclusive queue belongs to
    last_used: int  # ms since the epoch: last message stored or delivered
    order_journal: bool
    message_stats: dict[str, int]  # counters since the start
    histograms: NotRequired[dict[str, Histogram]]  # waiting_seconds, working_seconds; only if asked for


# --- queue list


@request
class ListRequest(Paging):
    vhost: Annotated[str, Field("Only those of this vhost; empty: of all.")] = ""
    histograms: Annotated[bool, Field("Show how long messages waited, and how long consumers worked on them.")] = False


class Queues(Page):
    items: list[QueueRow]


def _list(node: "Node", who: Who, request: ListRequest) -> Listing:
    vhosts = vhosts_to_list(node, who, request.vhost)
    parts = [(vhost.queue_names, vhost) for vhost in sorted(vhosts, key=lambda vhost: vhost.name)]
    if request.histograms:
        node.core.count_figures = True

    def describe(found: Any) -> Any:
        vhost, name = found
        queue = vhost.queues.get(name)
        if queue is None or queue.deleted:
            return None
        row = describing.queue(vhost, queue)
        return row | {"histograms": times_of(queue)} if request.histograms else row

    return Listing(InOrder(parts), describe, request)


# --- queue show


@request
class ShowRequest:
    queue: Annotated[str, Field("The queue's name.", argument=True)]
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"


def _show(node: "Node", who: Who, request: ShowRequest) -> QueueRow:
    queue = find_queue(node, request.vhost, request.queue)
    return describing.queue(find_vhost(node, request.vhost), queue)  # type: ignore[return-value]


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


class Retention(TypedDict):
    on: bool
    segments: int  # settled ones that stay
    octets: int  # of those
    first_seq: int  # the first message in them; 0 where there are none
    replayed: int  # messages since start


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
    retention: Retention
    groups: GroupTotals | None  # None: the queue has no message groups
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


# --- queue replay


@request
class ReplayRequest:
    queue: Annotated[str, Field("The queue's name.", argument=True)]
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"
    from_seq: Annotated[int, Field("Only messages from this number on.", low=1)] = 1
    since: Annotated[str, Field("Only messages that came since then: a time such as 2026-01-31T12:00:00Z, or "
                                "milliseconds since 1970.")] = ""
    seqs: Annotated[str, Field("Only these messages: numbers and ranges, such as 5,8,10-20.")] = ""
    group: Annotated[str, Field("Only messages of this group.")] = ""
    limit: Annotated[int, Field("How many messages at most.", low=1, high=1_000_000)] = 100_000
    dry_run: Annotated[bool, Field("Replay nothing; say what would be replayed.")] = False


class Replayed(TypedDict):
    vhost: Name
    queue: Name
    replayed: int
    first_seq: int  # 0: none was replayed
    last_seq: int
    more: bool  # the limit left some out
    dry_run: bool


def _replay(node: "Node", who: Who, request: ReplayRequest) -> "Job":
    from brokerd.operations.replay import Replay

    return Replay(node, request)


# --- queue copy


@request
class CopyRequest:
    queue: Annotated[str, Field("The queue or stream with the messages to copy.", argument=True)]
    to: Annotated[str, Field("The queue or stream that gets them; it must be there.", argument=True)]
    from_seq: Annotated[int, Field("Only messages from this number on.", low=1)] = 1
    count: Annotated[int, Field("How many messages at most.", low=1, high=(1 << 62))] = 1 << 62
    dry_run: Annotated[bool, Field("Copy nothing; say what would be copied.")] = False
    vhost: Annotated[str, Field("Vhost of both.")] = "/"


class Copied(TypedDict):
    """``next_seq``: where a further copy goes on.  ``more``: the count left some out."""

    vhost: Name
    queue: Name
    to: Name
    copied: int
    first_seq: int  # 0: none was copied
    last_seq: int
    next_seq: int
    more: bool
    dry_run: bool


def _copy(node: "Node", who: Who, request: CopyRequest) -> "Job":
    from brokerd.operations.queue_copy import Copying

    return Copying(node, who, request)


# --- queue declare


@request
class DeclareRequest:
    queue: Annotated[str, Field("The queue's name.", argument=True, low=1, high=255)]
    durable: Annotated[bool, Field("It survives a restart.")] = True
    auto_delete: Annotated[bool, Field("It goes with its last consumer.")] = False
    arguments: Annotated[dict[str, Any] | None, Field('Further arguments, as in {"x-max-length": 100}.')] = None
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"


class Declared(TypedDict):
    created: bool  # false: it was there, and is equivalent


def _declare(node: "Node", who: Who, request: DeclareRequest) -> Lasting:
    vhost = find_vhost(node, request.vhost)
    access = door(node, who, vhost)

    def work() -> Declared:
        there = len(vhost.queues)
        access.declare_queue(
            request.queue, OPERATOR, durable=request.durable, auto_delete=request.auto_delete,
            arguments=dict(request.arguments or {}),
        )  # fmt: skip
        return {"created": len(vhost.queues) > there}

    return define(node, vhost, work)


# --- queue delete


@request
class DeleteRequest:
    queue: Annotated[str, Field("The queue's name.", argument=True)]
    if_unused: Annotated[bool, Field("Only if it has no consumers.")] = False
    if_empty: Annotated[bool, Field("Only if no message is ready.")] = False
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"


class Deleted(TypedDict):
    messages: int  # that were ready, and went with it


def _delete(node: "Node", who: Who, request: DeleteRequest) -> Lasting:
    vhost = find_vhost(node, request.vhost)
    access = door(node, who, vhost)

    def work() -> Any:
        deletion = access.delete_queue_in_pieces(
            request.queue, OPERATOR, if_unused=request.if_unused, if_empty=request.if_empty
        )
        there = request.queue in vhost.queues
        messages = yield from deletion  # Its checks come first.
        if not there:
            raise OperationError(f"no queue '{request.queue}' in vhost '{vhost.name}'", 404)
        return {"messages": messages}

    return define(node, vhost, work)


# --- queue purge


@request
class PurgeRequest:
    queue: Annotated[str, Field("The queue's name.", argument=True)]
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"


def _purge(node: "Node", who: Who, request: PurgeRequest) -> Lasting:
    vhost = find_vhost(node, request.vhost)
    access = door(node, who, vhost)
    work = access.purge_queue_in_pieces(request.queue, OPERATOR)

    def steps() -> Steps:
        pace = Pace()
        while True:
            try:
                next(work)
            except StopIteration as end:
                node.core.turn()
                yield Wait(lambda go_on: node.commit.wait(go_on, vhost.log))
                return {"messages": end.value}
            if pace.is_over():
                node.core.turn()
                yield ON_LOOP

    return Lasting(node, steps())


# --- queue pause, queue resume


@request
class PauseRequest:
    queue: Annotated[str, Field("The queue's name.", argument=True)]
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"


def _pause(node: "Node", who: Who, request: PauseRequest) -> Lasting:
    from brokerd.operations.pausing import pause

    return pause(node, who, request.vhost, request.queue)


def _resume(node: "Node", who: Who, request: PauseRequest) -> Lasting:
    from brokerd.operations.pausing import resume

    return resume(node, who, request.vhost, request.queue)


# --- queue release, queue skip


@request
class ReleaseRequest:
    queue: Annotated[str, Field("The queue's name.", argument=True)]
    seq: Annotated[int, Field("The message's number; 0: the first one behind which the queue has stopped.", low=0)] = 0
    vhost: Annotated[str, Field("Vhost of the queue.")] = "/"


class Released(TypedDict):
    vhost: Name
    queue: Name
    seq: int
    stopped: int  # messages behind which the queue stops even now


def _release(node: "Node", who: Who, request: ReleaseRequest) -> Lasting:
    from brokerd.operations.retries import release

    return release(node, request.vhost, request.queue, request.seq)


def _skip(node: "Node", who: Who, request: ReleaseRequest) -> Lasting:
    from brokerd.operations.retries import skip

    return skip(node, request.vhost, request.queue, request.seq)


OPERATIONS = (
    Operation(
        "queue", "declare",
        "Make a queue, or check that it is there with these properties.",
        DeclareRequest, Declared, Right("management", "visit"), _declare, changes=True, job=True,
        aliases=("declare_queue", "create_queue"),
    ),
    Operation(
        "queue", "delete",
        "Delete a queue with its messages and bindings.",
        DeleteRequest, Deleted, Right("management", "visit"), _delete, changes=True, job=True,
        aliases=("delete_queue",),
    ),
    Operation(
        "queue", "purge",
        "Drop the ready messages of a queue.",
        PurgeRequest, Deleted, Right("management", "visit"), _purge, changes=True, job=True, aliases=("purge_queue",),
    ),
    Operation(
        "queue", "list",
        "List queues, with their messages, consumers, policies and counters.",
        ListRequest, Queues, Right("management", "visit"), _list, job=True, aliases=("list_queues",),
    ),
    Operation(
        "queue", "show",
        "Show one queue.",
        ShowRequest, QueueRow, Right("management", "visit"), _show,
    ),
    Operation(
        "queue", "replay",
        """Make settled messages that are still on disk ready again, each at its own place.

        Consumers get them before newer ones, with the header x-replayed.  What was purged, or removed by an
        operator, is not replayed.
        """,
        ReplayRequest, Replayed, Right("management", "write", on="queue"), _replay, changes=True, job=True,
    ),
    Operation(
        "queue", "copy",
        """Copy the messages of a queue or a stream into another one, in their order.

        The messages that are ready now are copied, and stay where they are.  An interrupted copy goes on with
        --from-seq.
        """,
        CopyRequest, Copied, Right("management", "visit"), _copy, changes=True, job=True,
    ),
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
    Operation(
        "queue", "pause",
        """Hand out no message of a queue until it is resumed, also over restarts.

        It still takes messages.  What is out may be settled, and what comes back waits with the others.
        """,
        PauseRequest, Done, Right("management", "configure", on="queue"), _pause, changes=True, job=True,
        aliases=("pause_queue",),
    ),
    Operation(
        "queue", "resume",
        "Let a paused queue hand out messages again.",
        PauseRequest, Done, Right("management", "configure", on="queue"), _resume, changes=True, job=True,
        aliases=("resume_queue",),
    ),
    Operation(
        "queue", "release",
        """Try a message again at once.

        It is one behind which the queue has stopped (x-delivery-limit-action block), or one that waits for its next
        try.  It has as many tries as before.
        """,
        ReleaseRequest, Released, Right("policymaker", "write", "queue"), _release, changes=True, job=True,
    ),
    Operation(
        "queue", "skip",
        """Give up a message behind which the queue has stopped.

        It is dead-lettered with the reason delivery_limit, or dropped if the queue has no dead-letter exchange.
        """,
        ReleaseRequest, Released, Right("policymaker", "write", "queue"), _skip, changes=True, job=True,
    ),
)  # fmt: skip

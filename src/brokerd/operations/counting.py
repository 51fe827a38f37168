"""Counts connections, queues and messages of the whole broker, in pieces.  The shapes: ``operations.node``."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from brokerd.operations.jobs import ON_LOOP, Pace
from brokerd.operations.rows import TypedDict

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.node import Node
    from brokerd.queues.queue import Queue

# RabbitMQ's name of a counter, and the queue's.
QUEUE_COUNTERS = (
    ("publish", "published"), ("deliver", "delivered"), ("get", "got"), ("ack", "acked"), ("redeliver", "redelivered"),
    ("return_to_queue", "returned"), ("expire", "expired"), ("discard", "discarded"), ("dead_letter", "dead_lettered"),
    ("refuse", "refused"), ("limit", "limited"), ("time_out", "timed_out"), ("deliver_no_ack", "delivered_no_ack"),
    ("get_no_ack", "got_no_ack"),
)  # fmt: skip

class Histogram(TypedDict):
    """How many there were of at most each bound, the lowest first; the last number counts those above all bounds."""

    bounds: list[float]
    counts: list[int]
    sum: float


STREAM_FIGURES = ("count", "readers", "octets", "lag", "oldest_age_ms", "removed", "missed")


def stats_of(queue: "Queue") -> dict[str, int]:
    """The counters of one queue since the start."""
    return {name: getattr(queue, attribute) for name, attribute in QUEUE_COUNTERS}


def count(node: "Node") -> Generator[Any, None, tuple[dict[str, int], dict[str, int], dict[str, int]]]:
    """Totals, counters, and figures of the streams of the broker."""
    pace, streams = Pace(), dict.fromkeys(STREAM_FIGURES, 0)
    totals = dict.fromkeys(
        ("connections", "channels", "consumers", "exchanges", "queues", "queues_paused", "messages_ready",
         "messages_unacknowledged"), 0,
    )  # fmt: skip
    stats = dict.fromkeys([name for name, _ in QUEUE_COUNTERS], 0)
    stats |= {"publish_in": 0, "publish_out": 0} | node.core.figures()
    totals["publishers"] = stats.pop("publishers")
    totals["connections"] = len(node.connections)
    for connection in list(node.connections):
        totals["channels"] += len(connection.channels or ())
        if pace.is_over():
            yield ON_LOOP
    for vhost in list(node.vhosts.values()):
        totals["exchanges"] += len(vhost.exchanges)
        totals["queues"] += len(vhost.queues)
        for exchange in list(vhost.exchanges.values()):
            if exchange.tally is not None:
                stats["publish_in"] += exchange.tally.published
                stats["publish_out"] += exchange.tally.routed
            if pace.is_over():
                yield ON_LOOP
        for queue in list(vhost.queues.values()):
            totals["consumers"] += queue.consumer_count
            totals["queues_paused"] += queue.paused_at is not None
            totals["messages_ready"] += queue.ready
            totals["messages_unacknowledged"] += queue.unacked
            for name, attribute in QUEUE_COUNTERS:
                stats[name] += getattr(queue, attribute)
            if queue.stream is not None:
                _add_stream(streams, vhost.name, queue, node.clock.epoch_ns())
            if pace.is_over():
                yield ON_LOOP
    return totals, stats, streams


def _add_stream(streams: dict[str, int], vhost: str, queue: "Queue", now: int) -> None:
    from brokerd.operations.stream import row_of

    row: Any = row_of(vhost, queue, now, with_readers=False)
    if row is not None:
        streams["count"] += 1
        for name in ("readers", "octets", "removed", "missed"):
            streams[name] += row[name]
        for name in ("lag", "oldest_age_ms"):
            streams[name] = max(streams[name], row[name])


# --- histograms

SIZE_BOUNDS = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
TIME_BOUNDS = tuple((1 << (18 + 2 * place)) / 1e9 for place in range(14))  # as the plane has them, in seconds


def histograms_of(core: "plane.Core") -> dict[str, Histogram]:
    """Sizes of published messages, and times of all queues; they are counted from the first call on."""
    core.count_figures = True
    counts, octets = core.sizes
    return {
        "message_octets": {"bounds": list(SIZE_BOUNDS), "counts": list(counts), "sum": octets},
        **times_of(core),
    }


def times_of(thing: "plane.Core | plane.Queue") -> dict[str, Histogram]:
    """How long messages waited for a delivery, and how long consumers worked on them."""
    return {
        name: {"bounds": list(TIME_BOUNDS), "counts": list(counts), "sum": ns / 1e9}
        for name, (counts, ns) in zip(("waiting_seconds", "working_seconds"), thing.times or (), strict=False)
    }

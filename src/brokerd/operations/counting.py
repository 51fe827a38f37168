"""Counts connections, queues and messages of the whole broker, in pieces.  The shapes: ``operations.node``."""

from collections.abc import Callable, Generator
from functools import cache
from typing import TYPE_CHECKING, Any

from brokerd.operations.jobs import ON_LOOP, Pace
from brokerd.operations.rows import TypedDict

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.node import Node
    from brokerd.queues.queue import Queue

QUEUES_AT_ONCE = 500
# RabbitMQ's names of the counters of queues, in the plane's order.
QUEUE_COUNTERS = (
    "publish", "deliver", "get", "ack", "redeliver", "return_to_queue", "expire", "discard", "dead_letter", "refuse",
    "limit", "time_out", "deliver_no_ack", "get_no_ack",
)  # fmt: skip


class Histogram(TypedDict):
    """How many there were of at most each bound, the lowest first; the last number counts those above all bounds."""

    bounds: list[float]
    counts: list[int]
    sum: float


STREAM_FIGURES = ("count", "readers", "octets", "lag", "oldest_age_ms", "removed", "missed")


@cache
def _counters_of() -> "Callable[[Queue], tuple[int, ...]]":
    from brokerd.plane import counters_of  # brokerctl, which lists the rows, does without.

    return counters_of


def stats_of(queue: "Queue") -> dict[str, int]:
    """The counters of one queue since the start."""
    return dict(zip(QUEUE_COUNTERS, _counters_of()(queue), strict=True))


def count(node: "Node") -> Generator[Any, None, tuple[dict[str, int], dict[str, int], dict[str, int]]]:
    """Totals, counters, and figures of the streams of the broker."""
    pace, streams = Pace(), dict.fromkeys(STREAM_FIGURES, 0)
    totals = dict.fromkeys(
        ("connections", "channels", "consumers", "exchanges", "queues", "queues_paused", "messages_ready",
         "messages_unacknowledged"), 0,
    )  # fmt: skip
    stats = dict.fromkeys(QUEUE_COUNTERS, 0)
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
        queues = list(vhost.queues.values())
        for begin in range(0, len(queues), QUEUES_AT_ONCE):
            some = queues[begin:begin + QUEUES_AT_ONCE]
            _add_queues(totals, stats, some)
            for queue in some:
                if queue.stream is not None:
                    _add_stream(streams, vhost.name, queue, node.clock.epoch_ns())
                    if pace.is_over():
                        yield ON_LOOP
            if pace.is_over():
                yield ON_LOOP
    return totals, stats, streams


def _add_queues(totals: dict[str, int], stats: dict[str, int], queues: "list[Queue]") -> None:
    from brokerd.plane import sum_counters  # brokerctl, which lists the rows, does without.

    consumers, ready, unacked, counters = sum_counters(queues)
    totals["consumers"] += consumers
    totals["messages_ready"] += ready
    totals["messages_unacknowledged"] += unacked
    totals["queues_paused"] += sum([queue.paused_at is not None for queue in queues])
    for name, number in zip(QUEUE_COUNTERS, counters, strict=True):
        stats[name] += number


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

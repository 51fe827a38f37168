"""The job that lists what clients hold of a queue: which consumer has which message, and since when, the oldest first.

A channel's deliveries stand in the order in which they were made, so the oldest of a queue are among the first of each
channel: the job looks at no more of them than it may show.  It looks in pieces, and is no snapshot of one moment.
Knows nothing of rights.
"""

from collections.abc import Iterator
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

from brokerd.operations import find_queue
from brokerd.operations.jobs import ON_LOOP, Pace, Steps, encoded

if TYPE_CHECKING:
    from brokerd.node import Node

LOOKED_AT_ONCE = 512  # delivery tags, some 50 µs


class Held:
    """The job.  Raises OperationError (404)."""

    def __init__(self, node: "Node", request: Any) -> None:
        self._node, self._request = node, request
        self._queue = find_queue(node, request.vhost, request.queue)

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        queue, request, pace = self._queue, self._request, Pace()
        rows: list[tuple[int, int, dict[str, Any]]] = []
        for client, channel in self._channels():
            tag, end = channel.outstanding
            found = last = 0
            while tag <= end and found < request.count:
                tag, some = channel.held(queue, tag, LOOKED_AT_ONCE)
                for each in some:
                    row = self._row(client, channel, each)
                    if row is not None:
                        # Two clocks may differ by a millisecond from one piece to the next.
                        last = row["since"] = max(row["since"], last)
                        rows.append((row["since"], row["seq"], row))
                        found += 1
                if pace.is_over():
                    yield ON_LOOP
            if len(rows) > 2 * request.count + LOOKED_AT_ONCE:
                rows = nsmallest(request.count, rows, key=_place)
            if pace.is_over():
                yield ON_LOOP
        oldest = nsmallest(request.count, rows, key=_place)
        now = self._node.clock.epoch_ns() // 1_000_000
        return (yield from encoded({
            "vhost": queue.vhost_name, "queue": queue.name, "unacked": queue.unacked,
            "items": [row | {"held_ms": max(now - since, 0)} for since, _, row in oldest],
        }))  # fmt: skip

    def clean_up(self) -> None:
        """As ``jobs.Job``."""

    def _channels(self) -> Iterator[tuple[Any, Any]]:
        """The channels with unacked deliveries, each with its client; that of receivers over HTTP has none."""
        for client in list(self._node.connections):
            if self._request.connection in ("", client.peer, str(client.number)):
                for channel in list((client.channels or {}).values()):
                    if channel.unacked:
                        yield client, channel
        if self._node.pulls is not None and not self._request.connection:
            channel = self._node.pulls.channel_of(self._queue)
            if channel is not None:
                yield None, channel

    def _row(self, client: Any, channel: Any, held: Any) -> dict[str, Any] | None:
        tag, seq, consumer, since, failed = held
        name = consumer.tag.decode("utf-8", "surrogateescape") if consumer is not None else None
        if self._request.consumer not in ("", name):
            return None
        return {
            "seq": seq,
            "since": since,
            "by": "receipt" if client is None else ("consumer" if consumer is not None else "get"),
            "consumer_tag": name,
            "connection": channel.connection.number,
            "connection_name": client.peer if client is not None else None,
            "channel": channel.number,
            "user": client.user if client is not None else None,
            "delivery_tag": tag,
            "failed": failed,
        }


def _place(row: tuple[int, int, Any]) -> tuple[int, int]:
    """What is held longest stands first."""
    return row[:2]

"""What USR1 does: a summary of the broker's state goes to the log, for people whose broker does something strange.

    state: brokerd 0.1.0, process 4711, up 93784 s; the loop is late by 0 ms, at most by 12 ms since the last summary
    state: memory 81234567 octets of at most 5000000000; disk 12345678901 octets free; 812 of 9999 descriptors; no alarm
    state: 400 connections (3 wait for the end of an alarm), 812 channels
    state: 2 vhosts, 1200 queues: 51234 messages ready, 412 unacked, 0 aside; 790 consumers
    state: most messages: queue 'orders' in vhost '/': 50000 ready, 100 unacked; ...

Connections, queues and descriptors are counted in pieces of a millisecond, between which clients have their turn, so
the figures are not of one moment.  The lines do not grow with the broker.  No ``log_level`` keeps them back.
"""

import heapq
import logging
import os
from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING

from brokerd import __version__
from brokerd.pieces import add_work
from brokerd.server import memory

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.queues.queue import Queue
    from brokerd.server.launch import Server

log = logging.getLogger("brokerd")

LARGEST_SHOWN = 5
DESCRIPTORS = "/proc/self/fd"


def begin(server: "Server") -> None:
    """Count, and log the summary when that is done."""

    def done() -> None:
        server.summing_up = False

    server.summing_up = True
    add_work(server.node.core, _summary(server), done)


def _summary(server: "Server") -> Iterator[None]:
    node, late = server.node, server.lateness
    _say("brokerd %s, process %d, up %d s; the loop is late by %d ms, at most by %d ms since the last summary",
         __version__, os.getpid(), monotonic() - late.started, 1000 * late.latest, 1000 * late.most)
    late.forget()
    yield from _resources(node)
    yield from _connections(node)
    yield from _queues(node)


def _resources(node: "Node") -> Iterator[None]:
    limit = node.alarms.memory_limit(node.settings)
    try:
        used = f"{memory.used_octets()} octets"
        free = f"{node.disk.free_octets(node.data.path)} octets"
    except OSError:
        used = free = "?"
    descriptors = "all"  # Where none is left, they cannot be counted.
    try:
        count = os.stat(DESCRIPTORS).st_size  # Their count, from Linux 6.2 on; 0 before
        if not count:
            with os.scandir(DESCRIPTORS) as found:
                for _ in found:
                    count += 1
                    yield
        descriptors = str(count)
    except OSError:
        pass
    _say("memory %s%s; disk %s free; %s of %d descriptors; %s", used, f" of at most {limit}" if limit else "", free,
         descriptors, node.descriptors.limit, node.alarm_reason or "no alarm")


def _connections(node: "Node") -> Iterator[None]:
    channels = 0
    for connection in list(node.connections):
        channels += len(connection.channels or ())
        yield
    connections = len(node.connections)
    _say("%d connection%s (%d wait for the end of an alarm), %d channel%s", connections, _plural(connections),
         len(node.blocked), channels, _plural(channels))


def _queues(node: "Node") -> Iterator[None]:
    queues = ready = unacked = aside = consumers = 0
    largest: list[tuple[int, int, Queue]] = []  # a heap of messages, number of the queue, queue
    for vhost in list(node.vhosts.values()):
        for queue in list(vhost.queues.values()):
            queues += 1
            ready += queue.ready
            unacked += queue.unacked
            aside += queue.aside
            consumers += queue.consumer_count
            messages = queue.ready + queue.unacked
            if messages and (len(largest) < LARGEST_SHOWN or messages > largest[0][0]):
                heapq.heappush(largest, (messages, -queues, queue))
                if len(largest) > LARGEST_SHOWN:
                    heapq.heappop(largest)
            yield
    vhosts = len(node.vhosts)
    _say("%d vhost%s, %d queue%s: %d messages ready, %d unacked, %d aside; %d consumer%s", vhosts, _plural(vhosts),
         queues, _plural(queues), ready, unacked, aside, consumers, _plural(consumers))
    if largest:
        shown = [f"{queue}: {queue.ready} ready, {queue.unacked} unacked" for _, _, queue in sorted(largest)[::-1]]
        _say("most messages: %s", "; ".join(shown))


def _plural(count: int) -> str:
    return "" if count == 1 else "s"


def _say(text: str, *values: object) -> None:
    """Log a line that was asked for: no level keeps it back."""
    log.handle(log.makeRecord(log.name, logging.INFO, "", 0, f"state: {text}", values, None))

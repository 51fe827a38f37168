"""Replays settled messages of a queue: a job, so that clients have their turns between its pieces.

    queue replay  ─>  Replay  ─ a few thousand records at a time ─>  plane.replay

Knows nothing of retention: every message that is still in the queue's segments can be replayed.
"""

import os
from array import array
from bisect import bisect_left
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from brokerd import plane
from brokerd.operations import OperationError, find_queue
from brokerd.operations.jobs import Steps

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.queue import ReplayRequest

RECORDS_PER_PIECE = 2048
SEQ_MAX = (1 << 64) - 1
_MS = 1_000_000  # ns
_LATEST_MS = (1 << 63) // _MS - 1


class Replay:
    """The job.  Raises OperationError (400, 404, 409); while it runs, OperationError (409) and OSError."""

    __slots__ = ("_chosen", "_dry", "_from", "_groups", "_node", "_queue", "_request", "_since_ns", "_stop")

    def __init__(self, node: "Node", request: "ReplayRequest") -> None:
        self._node = node
        self._request = request
        self._queue = queue = find_queue(node, request.vhost, request.queue)
        if not queue.durable:
            raise OperationError(f"{queue} is not durable: nothing of it is retained", 409)
        self._since_ns = read_time(request.since) if request.since else 0
        self._chosen = read_numbers(request.seqs, request.limit) if request.seqs else None
        self._from, self._stop = request.from_seq, queue.next_seq - 1
        if self._chosen is not None:
            self._from, self._stop = max(self._from, self._chosen[0]), min(self._stop, self._chosen[-1])
        self._groups = _groups_of(queue.arguments) if request.group else None

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        request, queue = self._request, self._queue
        replayed, last, more = 0, 0, False
        firsts = []
        name = request.group.encode("utf-8", "surrogateescape")
        for level in range(queue.max_priority + 1):
            at = self._from
            while at and at <= self._stop:
                if queue.deleted:
                    raise OperationError("the queue was deleted meanwhile", 409)
                found, at, first, last_found = plane.replay(
                    queue, at, self._stop, level=level, since_ns=self._since_ns, chosen=self._chosen,
                    groups=self._groups, group=name, most=request.limit - replayed, looks=RECORDS_PER_PIECE,
                    dry=request.dry_run,
                )  # fmt: skip
                if found:
                    replayed += found
                    firsts.append(first)
                    last = max(last, last_found)
                if replayed == request.limit:
                    more, at = more or at != 0, 0
                if at and self._chosen is not None:
                    at = _next_of(self._chosen, at)
                yield {"replayed": replayed, "seq": at or last}
        return {"vhost": request.vhost, "queue": request.queue, "replayed": replayed,
                "first_seq": min(firsts, default=0), "last_seq": last, "more": more,
                "dry_run": request.dry_run}  # fmt: skip

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


def _next_of(chosen: "array[int]", seq: int) -> int:
    """The first of the chosen numbers from ``seq`` on; 0: there is none."""
    place = bisect_left(chosen, seq)
    return chosen[place] if place < len(chosen) else 0


def read_time(text: str) -> int:
    """Ns since the epoch of an ISO time, or of a number of milliseconds.  Raises OperationError (400)."""
    if text.isascii() and text.isdigit() and int(text) <= _LATEST_MS:
        return int(text) * _MS
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise OperationError(f"since must be a time such as 2026-01-31T12:00:00Z, or a number of milliseconds since "
                             f"1970, and not '{text}'", 400) from None  # fmt: skip
    return max(int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000) * _MS, 0)


def read_numbers(text: str, most: int) -> "array[int]":
    """The rising numbers that a text such as ``5,8,10-20`` lists, each once.  Raises OperationError (400)."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()
                and 0 < int(first) <= int(last) <= SEQ_MAX):  # fmt: skip
            raise OperationError(f"seqs must be numbers and ranges such as 5,8,10-20, and not '{text}'", 400)
        if int(last) - int(first) + len(found) >= most:
            raise OperationError(f"seqs must be at most {most} numbers, which is the limit", 400)
        found.update(range(int(first), int(last) + 1))
    return array("Q", sorted(found))


def _groups_of(arguments: "dict[str, object]") -> plane.Window:
    """Finds the groups of the queue's messages."""
    from brokerd.queues.deduplication import group_header, group_place

    window = plane.Window(1)
    window.hash_key = plane.HashKey(os.urandom(16))
    place, name, bit = group_place(group_header(arguments))
    window.set_rule(by_content=False, waiting=False, action=0, group_from=place, group=name, group_property=bit)
    return window

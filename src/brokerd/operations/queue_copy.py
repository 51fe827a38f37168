"""Copies the messages of a queue or a stream into another one, in their order: a job, so that clients have their turns.

    browse ─ a few at a time ─> core.put ─ every 8 MiB ─> sync ─> progress

The job copies the messages that were ready when it began.  It keeps no place of its own: who interrupts it goes on with
``from_seq``, which progress, the answer and each error name.  The target gives each message a new number and time, and
counts it as published; the source is left as it is.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.operations import OperationError
from brokerd.operations.changing import OPERATOR
from brokerd.operations.jobs import ON_LOOP, Pace, Steps, Wait
from brokerd.operations.messages import next_look, queue_of

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.queue import CopyRequest
    from brokerd.operations.rows import Who

SYNC_OCTETS = 8 << 20  # that are put before the disk is waited for
FIRST_LOOK = 16


class Copying:
    """The job.  Raises OperationError (400, 404, 409)."""

    def __init__(self, node: "Node", who: "Who", request: "CopyRequest") -> None:
        self._node, self._request = node, request
        self._vhost, access, self._queue = queue_of(node, who, request)
        access.check_exchange("write", "")
        self._target = access.vhost.queue(request.to)
        self._target.check_access(OPERATOR)
        if self._target is self._queue:
            raise OperationError(f"{self._queue}: its own messages cannot be put into it again", 400)
        if self._queue.max_priority:
            raise OperationError(f"{self._queue} has priorities, and no order by number: use message copy", 409)
        self._at, self._stop = request.from_seq, self._queue.next_seq
        self._copied = 0

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        request, queue, pace = self._request, self._queue, Pace()
        look, octets, first, last = FIRST_LOOK, 0, 0, 0
        while self._copied < request.count and self._at < self._stop:
            self._check()
            rows = [row for row in queue.browse(self._at, min(look, request.count - self._copied))
                    if row[0] < self._stop]  # fmt: skip
            if not rows:
                break
            look = next_look(rows)
            for row in rows:
                if not request.dry_run:
                    self._put(row)
                    octets += len(row[5]) + len(row[6])
                first, last, self._at = first or row[0], row[0], row[0] + 1
                self._copied += 1
            if octets >= SYNC_OCTETS:
                octets = 0
                yield from self._sync()
                yield {"copied": self._copied, "next_seq": self._at}
            elif pace.is_over():
                self._node.core.turn()
                yield ON_LOOP
        if self._copied and not request.dry_run:
            yield from self._sync()
        more = self._copied == request.count and self._at < self._stop
        return {
            "vhost": request.vhost, "queue": request.queue, "to": request.to, "copied": self._copied,
            "first_seq": first, "last_seq": last, "next_seq": self._at if more else self._stop, "more": more,
            "dry_run": request.dry_run,
        }  # fmt: skip

    def _check(self) -> None:
        """Raise OperationError (404, 409) where the copy cannot go on."""
        for queue in (self._queue, self._target):
            if queue.deleted:
                raise OperationError(f"{queue} was deleted meanwhile; {self._how_far()}", 404)
            queue.check_in_service()
        if self._node.core.blocked and not self._request.dry_run:
            reason = self._node.alarm_reason
            raise OperationError(f"the broker takes no messages now: {reason}; {self._how_far()}", 409)

    def _put(self, row: tuple[Any, ...]) -> None:
        if not self._node.core.put((self._target,), *row[3:], sync=True):
            raise OperationError(f"{self._target} refuses message {row[0]}; {self._how_far()}", 409)

    def _how_far(self) -> str:
        return f"{self._copied} messages were copied, and message {self._at} is the next"

    def _sync(self) -> Steps:
        self._node.core.turn()
        yield Wait(partial(_wait, self._node, self._vhost))

    def clean_up(self) -> None:
        """As ``jobs.Job``."""


def _wait(node: "Node", vhost: Any, go_on: Any) -> None:
    node.commit.wait(go_on, vhost.log)

"""Puts dead letters back where they died: a job that runs to its end.

    browse ─> headers tell the queue ─> one Change (transfer): taken out here, put there without the history of deaths
                                    ─> a queue with message groups: vhost.redrives, before later ones of the group

All of a queue's letters go, or none, also if the broker dies in between.  An undo leaves letters that went into a queue
with message groups.  A message that cannot go stays where it is, and the answer says why.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.operations import OperationError
from brokerd.operations.changing import OPERATOR, Lasting, sync_everything
from brokerd.operations.jobs import ON_LOOP, Pace, Steps, Wait, in_thread
from brokerd.operations.messages import check_gives, chosen, look_for, queue_of
from brokerd.operations.transfer import Change, Taken
from brokerd.queues.dead_letter import read_properties
from brokerd.vhost.redrives import FIRST_QUEUE, GROUP, Letter, Redrive, as_it_was

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.node import Node
    from brokerd.operations.rows import Who
    from brokerd.queues.queue import Queue
    from brokerd.vhost.access import Access
    from brokerd.vhost.vhost import VHost

REASONS_MOST = 100
UNLISTED_AT_ONCE = 500


class Stays(Exception):
    """The message cannot go; the text says why."""


def redrive(node: "Node", who: "Who", request: Any) -> Lasting:
    """The job.  Raises OperationError, AMQPError."""
    vhost, access, queue = queue_of(node, who, request)
    check_gives(queue)
    access.check_exchange("write", "")
    if request.to:
        _target(access, queue, request.to)
    return Lasting(node, _Redrive(node, vhost, access, queue, request).steps())


class _Redrive:
    def __init__(self, node: "Node", vhost: "VHost", access: "Access", queue: "Queue", request: Any) -> None:
        self._node, self._vhost, self._access, self._queue, self._request = node, vhost, access, queue, request
        self._matches = _of_group(chosen(request), request.group)
        self._grouped: dict[Queue, list[Letter]] = {}  # letters that go to queues with message groups
        self._left = 0
        self._reasons: list[dict[str, Any]] = []
        self._seqs: list[int] = []

    def steps(self) -> Steps:
        """As ``jobs.Job``."""
        if self._request.dry_run:
            yield from self._look(None)
            return self._answer([*self._seqs, *self._numbers()], 0)
        change = Change(self._node, self._vhost)
        try:
            yield from self._look(change)
        except BaseException:
            change.abandon()
            raise
        done, undo = list[int](), 0
        if self._seqs:
            outcome = yield from change.carry_out()
            done, undo = [self._seqs[at] for at in outcome.done], outcome.undo
            for at in sorted(set(range(len(self._seqs))) - set(outcome.done)):
                self._stays(self._seqs[at], "its queue refuses it")
        else:
            change.abandon()
        for target, letters in self._grouped.items():
            done += yield from self._put_back(target, letters)
        return self._answer(sorted(done), undo)

    def _numbers(self) -> list[int]:
        return [letter.seq for letters in self._grouped.values() for letter in letters]

    def _look(self, change: Change | None) -> Steps:
        """Look for the letters, also those that wait in message groups of their queue: these are ready again for it."""
        queue, groups = self._queue, self._queue.groups
        waits = groups is not None and groups.waiting > 0 and queue.rules.retry is None
        paused, queue.paused = queue.paused, waits or queue.paused
        try:
            pace = Pace()
            while waits and groups is not None and not groups.unlist(UNLISTED_AT_ONCE):
                if pace.is_over():
                    yield ON_LOOP
            yield from look_for(queue, self._request, lambda row: self._take(row, change))
        finally:
            queue.paused = paused

    def _answer(self, seqs: list[int], undo: int) -> dict[str, Any]:
        return {"messages": len(seqs), "seqs": seqs, "undo": undo, "left": self._left, "reasons": self._reasons}

    def _take(self, row: "plane.Row", change: Change | None) -> bool:
        """Whether the message was asked for; it may stay all the same."""
        if not self._matches(row):
            return False
        try:
            target, letter = _way(self._node, self._access, self._queue, row, self._request)
        except Stays as why:
            self._stays(row[0], str(why))
            return True
        if target.groups is not None:
            self._grouped.setdefault(target, []).append(letter)
        elif change is None or change.add(Taken(self._queue, row[0]), row[3:], target, letter[1:5]):
            self._seqs.append(row[0])
        return True

    def _put_back(self, target: "Queue", letters: list[Letter]) -> Steps:
        """Put back all letters that go into one queue with message groups.  Raises OSError: nothing has happened."""
        held, gone, pace = list[Letter](), list[int](), Pace()
        for _ in target.find_parked():
            if pace.is_over():
                yield ON_LOOP
        for letter in letters:
            if not self._queue.deleted and self._queue.set_aside(letter.seq):
                held.append(letter)
            else:
                self._stays(letter.seq, "it was taken meanwhile")
            if pace.is_over():
                yield ON_LOOP
        work = Redrive(self._vhost, self._queue, target, held, self._node.data.next_connection_number())
        try:
            if self._vhost.deleted:  # Its folder may be another vhost's by now.
                raise OperationError(f"vhost '{self._vhost.name}' was deleted meanwhile", 404)
            yield from in_thread(partial(work.decide, self._node.disk))
        except (OSError, OperationError):
            for letter in held:
                if not self._queue.deleted:
                    self._queue.release(letter.seq)
            raise
        for place, letter in enumerate(held):
            why = "" if target.deleted else _put(work, place, target)
            if why or target.deleted:
                self._stays(letter.seq, why or f"{target} was deleted meanwhile")
            if pace.is_over():
                self._node.core.turn()
                yield ON_LOOP
        self._node.core.turn()
        yield Wait(self._sync)
        for place, letter in enumerate(held):
            if work.take_out(place):
                gone.append(letter.seq)
            if pace.is_over():
                self._node.core.turn()
                yield ON_LOOP
        self._node.core.turn()
        yield Wait(self._sync)
        yield from sync_everything(self._node)
        yield from in_thread(partial(work.note_places, work.places(), self._node.disk))
        for place in range(len(held)):
            work.let_go(place)
            if pace.is_over():
                self._node.core.turn()
                yield ON_LOOP
        self._node.core.turn()
        yield Wait(self._sync)
        yield from in_thread(partial(work.end, self._node.disk))
        return gone

    def _sync(self, go_on: Callable[[], object]) -> None:
        self._node.commit.wait(go_on, self._vhost.log)

    def _stays(self, seq: int, why: str) -> None:
        self._left += 1
        if len(self._reasons) < REASONS_MOST:
            self._reasons.append({"seq": seq, "why": why})


def _target(access: "Access", queue: "Queue", name: str) -> "Queue":
    """The queue of that name.  Raises OperationError."""
    target = access.vhost.queues.get(name)
    if target is None:
        raise OperationError(f"no queue '{name}' in vhost '{access.vhost.name}'", 404)
    target.check_access(OPERATOR)
    target.check_in_service()
    if target is queue:
        raise OperationError(f"{queue}: its own messages cannot be put into it again", 400)
    return target


def _way(
    node: "Node", access: "Access", queue: "Queue", row: "plane.Row", request: Any
) -> "tuple[Queue, Letter]":
    """The queue in which the message died first, and the message as it was there.  Raises Stays."""
    from brokerd.errors import AMQPError

    name = request.to or (read_properties(row[5]).headers or {}).get(FIRST_QUEUE)
    if not isinstance(name, str):
        raise Stays(f"it has no header {FIRST_QUEUE}: it is no dead letter")
    if node.core.blocked:
        raise Stays(f"the broker takes no messages now: {node.alarm_reason}")
    try:
        target = _target(access, queue, name)
    except (OperationError, AMQPError) as error:
        raise Stays(str(error)) from None
    return target, as_it_was(row, target)


def _of_group(matches: Callable[[Any], bool], group: str) -> Callable[[Any], bool]:
    """Only letters of that message group; empty: all."""
    if not group:
        return matches
    return lambda row: matches(row) and (read_properties(row[5]).headers or {}).get(GROUP) == group


def _put(work: Redrive, place: int, target: "Queue") -> str:
    """Put a letter into the target; why that cannot be, or nothing."""
    try:
        return "" if work.put(place) else f"{target} refuses it"
    except OSError as error:
        return f"{target} cannot store it: {error}"

"""Chosen messages change their queue, all of them or none: a transaction of the operator's own.

    set aside in their queues, copied into a commit log      no client gets them meanwhile
      | the commit log says what goes where and what is removed: it is decided
    the log is on disk
      | the targets hand out nothing until all is done
    stored in the targets under a connection number of its own, and removed where they were
      | the queues, and with the whole filesystem what was removed, are on disk
    the log is removed

It is the commit log of a transaction (store/commit_log) on channel 0, which no client has, so a start finishes it as it
finishes those of clients (vhost/commits): kill -9 at any moment neither loses a message nor doubles one.

The way back is another commit log, ``undo.NUMBER``, which decides the contrary and which no start carries out.  An undo
is such a change too, which cannot be undone: it takes the messages that are still in their targets, and puts removed
messages back at the end of their queues.
"""

import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.operations import OperationError
from brokerd.operations.changing import sync_everything
from brokerd.operations.jobs import IN_THREAD, ON_LOOP, Pace, Steps, Wait
from brokerd.store import commit_log
from brokerd.store.commit_log import CommitLog, Message, Place, PlanEncoder
from brokerd.store.format import COMMIT_ACKED, COMMIT_PREFIX, UNDO_PREFIX

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.queues.queue import Queue
    from brokerd.vhost.vhost import VHost

UNDO_OCTETS_MAX = 16 << 20  # of messages: a larger change cannot be undone
UNDOS_MOST = 16  # in a vhost: the oldest goes first
RECORD_OCTETS = 80  # at most: what a message takes in a queue, beyond its octets in the commit log
QUEUE_OCTETS = 1 << 17  # by which a queue's files grow beyond its records, as a rule

Content = tuple[bytes, bytes, bytes, bytes]  # exchange, routing key, properties, body


class Taken(NamedTuple):
    """A message that leaves its queue."""

    queue: "Queue"
    seq: int


class _Step(NamedTuple):
    taken: Taken | None
    target: "Queue | None"
    place: Place | None  # of what is stored, in the commit log
    former: Place | None  # of what was there, in the log of the undo
    number: int


class Outcome(NamedTuple):
    """``done``: which of the ``add`` calls took effect, counted from 0.  ``undo``: what ``undo`` asks for; 0: it cannot
    be undone."""

    done: list[int]
    undo: int


class Change:
    """One change.  ``add`` what it consists of, then have ``carry_out`` done, or else ``abandon``."""

    def __init__(self, node: "Node", vhost: "VHost", *, can_be_undone: bool = True) -> None:
        """Raises OSError."""
        self._can_be_undone = can_be_undone
        self._node, self._vhost = node, vhost
        self._number = node.data.next_connection_number()
        self._log = CommitLog(os.path.join(vhost.directory, f"{COMMIT_PREFIX}{self._number}.0"), node.disk)
        self._undo = CommitLog(os.path.join(vhost.directory, f"{UNDO_PREFIX}{self._number}"), node.disk)
        self._steps: list[_Step] = []
        self._open = 0  # the first step that is not done
        self._octets = self._former_octets = 0
        self._done: list[int] = []
        self._back = PlanEncoder()

    def add(
        self, taken: Taken | None, former: Content | None, target: "Queue | None" = None,
        content: Content | None = None,
    ) -> bool:  # fmt: skip
        """Take a message out, put one with that content into ``target``, or both.  ``former``: what the undo puts back
        for ``taken``.  False: that message is not there any more.  Raises OSError, MemoryError."""
        number = len(self._steps) + 1
        place = kept = None
        if target is not None:
            assert content is not None
            place = self._log.add(Message(number, *content))
            self._octets += place.octets + RECORD_OCTETS
        if taken is not None:
            if not taken.queue.set_aside(taken.seq):
                return False
            if former is not None:
                self._former_octets += sum(map(len, former))
            if former is not None and self._can_be_undone and self._former_octets <= UNDO_OCTETS_MAX:
                kept = self._undo.add(Message(number, *former))
        self._steps.append(_Step(taken, target, place, kept, number))
        return True

    def carry_out(self) -> Steps:
        """The steps that do it and return an Outcome.  Raises OperationError (409): then nothing has happened, or what
        the text says."""
        try:
            yield from self._decide()
            yield from self._apply()
        except BaseException:
            self.abandon()
            raise
        yield from self._settle_down()
        yield IN_THREAD  # The undo of 50,000 messages is some MB to write, and the oldest undo as many to remove.
        undo = self._keep_undo()
        yield ON_LOOP
        return Outcome(self._done, undo)

    def abandon(self) -> None:
        """Return unfinished messages to their places, and forget the rest.  Never fails."""
        self._log.remove()
        self._undo.remove()
        for step in self._steps[self._open :]:
            if step.taken is not None and not step.taken.queue.deleted:
                step.taken.queue.release(step.taken.seq)
        self._open = len(self._steps)
        self._node.core.turn()

    # --- what is decided

    def _decide(self) -> Steps:
        """Have the decision on disk."""
        self._check_vhost()
        self._check_room()
        encoder, durable, pace = PlanEncoder(), False, Pace()
        for step in self._steps:
            if step.target is not None and step.target.durable and step.place is not None:
                encoder.add_message(step.place.position, [step.target])
                durable = True
            if pace.is_over():
                yield ON_LOOP
        for step in self._steps:
            if step.taken is not None and step.taken.queue.durable:
                encoder.add_settlement(step.taken.queue, step.taken.seq, COMMIT_ACKED)
                durable = True
            if pace.is_over():
                yield ON_LOOP
        if not durable:
            return
        self._check_vhost()
        try:
            self._log.decide(self._number, 0, encoder.octets())
        except OSError as error:
            raise OperationError(f"the change cannot be stored: {error.strerror}", 409) from error
        self._node.commit.sync_directory(self._vhost.directory)
        yield Wait(partial(_wait, self._node, self._log))

    def _check_vhost(self) -> None:
        """Raise OperationError (404) where the vhost was deleted meanwhile: its folder may be another vhost's by now,
        whose queues a start would change."""
        if self._vhost.deleted:
            raise OperationError(f"vhost '{self._vhost.name}' was deleted meanwhile", 404)

    def _check_room(self) -> None:
        targets = {step.target for step in self._steps if step.target is not None}
        octets = 2 * self._octets + len(targets) * QUEUE_OCTETS
        if targets and self._node.core.blocked:
            raise OperationError(f"the broker takes no messages now: {self._node.alarm_reason}", 409)
        if targets and not self._node.room.has(self._vhost.directory, octets):
            raise OperationError("the messages cannot be stored: No space left on device", 409)

    # --- what is done

    def _apply(self) -> Steps:
        """Carry out the decision.  No target delivers a message before the last is stored: a start that finds the
        decision relies on all of them being in their files, or never stored."""
        targets = {step.target for step in self._steps if step.target is not None}
        held = [target for target in targets if not target.paused]
        for target in held:
            target.paused = True
        pace = Pace()
        try:
            for at, step in enumerate(self._steps):
                self._do(at, step)
                self._open = at + 1
                if pace.is_over():
                    yield ON_LOOP
        except OSError as error:
            self._node.storage_failed(error.errno or 0)
            raise OperationError(
                f"the messages cannot be stored: {error.strerror}; {len(self._done)} were done before", 409
            ) from error
        finally:
            for target in held:
                if not target.lost:
                    target.paused = False
        self._log.mark_applied()
        self._node.core.turn()

    def _do(self, at: int, step: _Step) -> None:
        taken, target = step.taken, step.target
        if target is not None:
            if target.deleted or not self._store(step, target):
                if taken is not None and not taken.queue.deleted:
                    taken.queue.release(taken.seq)
                return
            self._back.add_settlement(target, target.next_seq - 1, COMMIT_ACKED)
        if taken is not None:
            if not taken.queue.deleted:
                taken.queue.settle_aside(taken.seq)
            if step.former is not None:
                self._back.add_message(step.former.position, [taken.queue])
        self._done.append(at)

    def _store(self, step: _Step, target: "Queue") -> bool:
        assert step.place is not None
        _, *content = self._log.read(step.place)
        return bool(self._node.core.put((target,), *content, connection=self._number, publish_seq=step.number,
                                        sync=True))  # fmt: skip

    # --- what comes behind

    def _settle_down(self) -> Steps:
        """Have everything on disk, and remove the log; otherwise a start would carry out its decision again."""
        node, vhost = self._node, self._vhost
        yield Wait(partial(_wait, node, vhost.log))
        if any(step.taken is not None for step in self._steps):
            yield from sync_everything(node)
        if self._log.remove():
            node.commit.sync_directory(vhost.directory)
            yield Wait(partial(_wait, node, vhost.log))

    def _keep_undo(self) -> int:
        """The number of the undo; 0: there is none.  Without one the change still stands."""
        if not self._done or not self._can_be_undone or self._former_octets > UNDO_OCTETS_MAX or self._vhost.deleted:
            self._undo.remove()
            return 0
        try:
            self._undo.decide(self._number, 0, self._back.octets())
        except OSError:
            self._undo.remove()
            return 0
        self._undo.close()
        for number in sorted(_undos(self._node, self._vhost))[:-UNDOS_MOST]:
            forget(self._node, self._vhost, number)
        return self._number


def _wait(node: "Node", log: Any, go_on: Any) -> None:
    node.commit.wait(go_on, log)


# --- undo


class Undo(NamedTuple):
    """The way back of a change: messages with their queues, and deliveries to be settled, as pairs."""

    vhost: "VHost"
    decision: commit_log.Decision

    @property
    def queues(self) -> set[str]:
        """The names of the queues that it changes."""
        names = {names[0] for _, names in self.decision.messages}
        return names | {name for name, _, _ in self.decision.settlements}

    def add_to(self, change: Change) -> Steps:
        """Add to ``change`` what is to be done.  The steps return of how many messages, and how many are not where the
        change had put them any more, or have no queue to return to."""
        messages, settlements, queues = self.decision.messages, self.decision.settlements, self.vhost.queues
        added, pace = 0, Pace()
        count = max(len(messages), len(settlements))
        for at in range(count):
            taken = target = content = None
            if settlements:
                name, seq, _ = settlements[at]
                taken = Taken(queues[name], seq) if name in queues else None
            if messages:
                message, names = messages[at]
                target, content = queues.get(names[0]), message[1:]
            if bool(settlements) == (taken is not None) and bool(messages) == (target is not None):
                added += change.add(taken, None, target, content)
            if pace.is_over():
                yield ON_LOOP
        return added, count - added


def read_undo(node: "Node", vhost: "VHost", number: int) -> Undo:
    """The way back of the change of that number.  Raises OperationError (404), StoreError, OSError."""
    decision = None
    with suppress(FileNotFoundError):
        decision = commit_log.load(_path(vhost, number), node.disk)
    if decision is None:
        raise OperationError(
            f"no change {number} to undo in vhost '{vhost.name}': a vhost keeps its last {UNDOS_MOST} changes of up to "
            f"{UNDO_OCTETS_MAX >> 20} MiB", 404,
        )  # fmt: skip
    return Undo(vhost, decision)


def _path(vhost: "VHost", number: int) -> str:
    return os.path.join(vhost.directory, f"{UNDO_PREFIX}{number}")


def _undos(node: "Node", vhost: "VHost") -> list[int]:
    names = [name[len(UNDO_PREFIX) :] for name in node.disk.names(vhost.directory) if name.startswith(UNDO_PREFIX)]
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def forget(node: "Node", vhost: "VHost", number: int) -> None:
    """Keep no undo of that change any more.  Never fails."""
    with suppress(OSError):
        node.disk.unlink(_path(vhost, number))

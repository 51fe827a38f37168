"""Delayed messages of one vhost: where they wait, and how they go on when they are due.

The messages that a delayed exchange holds back wait in a queue of its own, its waiting room ``amq.delayed.<exchange>``
(with the SHA-1 of the name where that is too long).  The waiting room is durable if the exchange is.  It is made when
first used, and deleted with the exchange.  It belongs to the broker: to each connection it is an exclusive queue of
another one.  A message lies there as it was published, except for its expiration: that counts from when the message
goes on, and is the header ``x-delayed-expiration`` until then.  The record's time and headers say when the message is
due (exchanges/delayed.due_of), so no other file is needed.  In memory there is a heap with one number for each message,
``due (ms) << 64 | sequence number``, which a start makes anew from the queue.

When a message is due, ``x-delay`` is negated as RabbitMQ's plugin does: the receiver sees that the message was delayed,
and no exchange delays it again.  The exchange's inner type routes the message, by its routing key, CC and BCC.
Messages with equal due times go in the order of publishing.  A message for which no queue is found is dropped.  If all
queues refuse it, or the disk has no room, it is tried again after ``RETRY_MS``, unless a queue has sent what it refused
to its dead-letter exchange.

The message is first stored in its queues.  When that is on disk, it leaves the waiting room.  A broker that dies in
between finds it there again, due, and delivers it a second time, so no message is lost.  (The messages of an exchange
that is not durable survive no restart, and do not wait for the disk.)

If the clock jumps, a due message goes at most ``LOOK_EVERY_MS`` later than the clock says.  Knows neither clock nor
loop: its builder hands in both.
"""

from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush, nsmallest
from typing import TYPE_CHECKING, NamedTuple

from brokerd import plane
from brokerd.errors import PreconditionFailed
from brokerd.exchanges.delayed import DELAY, DelayedExchange, delay_of, due_of
from brokerd.exchanges.exchange import Intercepted, LazyProperties
from brokerd.queues.dead_letter import is_key, keys_in, read_properties, write_properties
from brokerd.queues.queue import WAITING_ROOM_PREFIX
from brokerd.store.format import folder_name
from brokerd.vhost.dead_letters import CallAt, Timer
from brokerd.vhost.routing import find
from brokerd.wire.properties import Properties

if TYPE_CHECKING:
    from brokerd.queues.queue import Queue
    from brokerd.vhost.vhost import VHost

QUEUE_PREFIX = WAITING_ROOM_PREFIX
EXPIRATION = "x-delayed-expiration"
RELEASES_PER_TURN = 64
RETRY_MS = 5_000
LOOK_EVERY_MS = 10_000
READ_AT_ONCE = 500
_SEQ_BITS = 64
_SEQ_MASK = (1 << _SEQ_BITS) - 1
_MS = 1_000_000  # ns

Row = tuple[int, int, bool, bytes, bytes, bytes, bytes]  # of plane.Queue.browse


class Delayed(NamedTuple):
    """One message that waits, as ``upcoming`` shows it."""

    seq: int  # its name for cancel and deliver_now
    due_ms: int
    routing_key: bytes
    properties: bytes
    body: bytes


class _Waiting:
    """What one exchange holds back."""

    __slots__ = ("exchange", "heap", "leaving", "queue", "taken")

    def __init__(self, exchange: DelayedExchange, queue: "Queue") -> None:
        self.exchange = exchange
        self.queue = queue
        self.heap: list[int] = []
        self.taken: set[int] = set()  # still in the heap, but cancelled or delivered before their time
        self.leaving: set[int] = set()  # stored in their queues, but not yet known to be on disk there

    def take(self, seq: int) -> None:
        """Make the message's entry in the heap count no more."""
        self.taken.add(seq)
        if len(self.taken) > 64 + len(self.heap) // 2:
            self.heap = [entry for entry in self.heap if entry & _SEQ_MASK not in self.taken]
            heapify(self.heap)
            self.taken.clear()


class Delays:
    """The delayed messages of all exchanges of one vhost."""

    __slots__ = ("_call_at", "_epoch_ns", "_timer", "_timer_ms", "_vhost", "_wait", "_waiting")

    def __init__(
        self, vhost: "VHost", *, epoch_ns: Callable[[], int], wait: Callable[..., object], call_at: CallAt
    ) -> None:
        """``wait(callback, log=None)`` is GroupCommit.wait; ``epoch_ns`` is the clock of the data plane's records."""
        self._vhost = vhost
        self._epoch_ns = epoch_ns
        self._wait = wait
        self._call_at = call_at
        self._waiting: dict[str, _Waiting] = {}  # by exchange
        self._timer: Timer | None = None
        self._timer_ms = 0  # when it runs

    # --- exchanges come and go

    def open(self) -> None:
        """Take up what waits, once the vhost was read from disk; delete waiting rooms that have lost their exchange."""
        unknown = {name: queue for name, queue in self._vhost.queues.items() if name.startswith(QUEUE_PREFIX)}
        for exchange in self._vhost.exchanges.values():
            if isinstance(exchange, DelayedExchange):
                self.adopt(exchange)
                unknown.pop(queue_name(exchange.name), None)
        for queue in unknown.values():
            self._vhost.delete_queue(queue)

    def adopt(self, exchange: DelayedExchange) -> None:
        """Begin to delay the messages of an exchange that was just made, or read from disk."""
        exchange.holder = self
        queue = self._vhost.queues.get(queue_name(exchange.name))
        if queue is not None:
            self._take_up(exchange, queue)
            self._arm()

    def forget_exchange(self, exchange: DelayedExchange) -> None:
        """Delete the waiting room, and all messages in it."""
        exchange.holder = None
        waiting = self._waiting.pop(exchange.name, None)
        if waiting is not None and not waiting.queue.deleted:
            self._vhost.delete_queue(waiting.queue)

    def disown(self, queue: "Queue") -> None:
        """Do nothing about a deleted waiting room.  Each owner of a queue has this method."""

    def holds(self, queue: "Queue") -> bool:
        """Whether ``queue`` is a waiting room.  Only its exchange may put messages there."""
        return queue.owner is self

    def close(self) -> None:
        """The broker stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take_up(self, exchange: DelayedExchange, queue: "Queue") -> _Waiting:
        queue.owner = self
        waiting = self._waiting[exchange.name] = _Waiting(exchange, queue)
        start = 1
        while rows := queue.browse(start, READ_AT_ONCE):
            waiting.heap += [_due_of_row(row) << _SEQ_BITS | row[0] for row in rows]
            start = rows[-1][0] + 1
        heapify(waiting.heap)
        return waiting

    def _room(self, exchange: DelayedExchange) -> _Waiting:
        """The waiting room of ``exchange``, made at the first call.  Raises PreconditionFailed without disk space."""
        waiting = self._waiting.get(exchange.name)
        if waiting is None or waiting.queue.deleted:
            queue = self._vhost.add_queue(
                queue_name(exchange.name), durable=exchange.durable, auto_delete=False, arguments={}
            )
            waiting = self._take_up(exchange, queue)
            if exchange.durable:  # Its definition is on disk before any message in it is confirmed.
                self._wait(_nothing, self._vhost.log)
        return waiting

    # --- messages come

    def hold(self, exchange: DelayedExchange, routing_key: str, properties: LazyProperties) -> Intercepted | None:
        """Where a message waits, without its expiration until it goes on; None: it goes on at once."""
        message = properties()
        due = due_of(message.headers, self._epoch_ns() // _MS)
        if due is None:
            return None
        waiting = self._room(exchange)
        arrival = _Arrival(self, waiting, due)
        headers = message.headers or {}
        if message.expiration is None and EXPIRATION not in headers:
            return Intercepted((waiting.queue,), (arrival,))
        headers = {name: value for name, value in headers.items() if name != EXPIRATION}
        if message.expiration is not None:
            headers[EXPIRATION] = message.expiration
        return Intercepted((waiting.queue,), (arrival,), write_properties(
            Properties(**message.present() | {"headers": headers, "expiration": None})
        ))  # fmt: skip

    def note_arrival(self, waiting: _Waiting, due_ms: int) -> None:
        """Note when a message is due that was stored just now, as the last one in the waiting room."""
        heappush(waiting.heap, due_ms << _SEQ_BITS | waiting.queue.next_seq - 1)
        if not self._timer_ms or due_ms < self._timer_ms:
            self._arm()

    # --- messages go

    def run(self) -> None:
        """Deliver what is due, a turn's share; called by the timer, and harmless at any time."""
        self._timer, self._timer_ms = None, 0
        limit = self._epoch_ns() // _MS + 1 << _SEQ_BITS
        share = RELEASES_PER_TURN // len(self._waiting) + 1 if self._waiting else 0
        for waiting in list(self._waiting.values()):
            for _ in range(share):
                if not waiting.heap or waiting.heap[0] >= limit:
                    break
                seq = heappop(waiting.heap) & _SEQ_MASK
                if seq in waiting.taken:
                    waiting.taken.discard(seq)
                else:
                    self._release(waiting, seq)
        self._arm()
        self._vhost.core.turn()

    def _arm(self) -> None:
        """Set the timer for when the first message is due, or earlier, to look at the clock."""
        due = min((waiting.heap[0] >> _SEQ_BITS for waiting in self._waiting.values() if waiting.heap), default=-1)
        if due < 0:
            return
        now = self._epoch_ns() // _MS
        when = max(now, min(due, now + LOOK_EVERY_MS))
        if self._timer is not None:
            if self._timer_ms <= when:
                return
            self._timer.cancel()
        self._timer_ms = when
        self._timer = self._call_at(when * _MS, self.run)

    def _release(self, waiting: _Waiting, seq: int) -> bool:
        """Deliver one message; False: no message of that number waits any more, or it is on its way."""
        row = _find_row(waiting, seq)
        if row is None:
            return False
        _, _, _, exchange, routing_key, octets, body = row
        message = read_properties(octets)
        headers = message.headers or {}
        copies = (*keys_in(headers.get("CC")), *keys_in(headers.get("BCC")))
        if headers:
            headers.pop("BCC", None)
            expiration = headers.pop(EXPIRATION, None)
            if is_key(expiration):  # a short string, that is
                message.expiration = expiration
            delay = delay_of(headers) if DELAY in headers else None
            if delay is not None:
                headers[DELAY] = -delay
            message.headers = dict(sorted(headers.items()))
            octets = write_properties(message)
        answer = self._find_targets(waiting, (routing_key.decode("utf-8", "surrogateescape"), *copies), message)
        queues = answer.before_storing()
        stored: tuple[Queue, ...] = ()
        if queues:
            gone = False  # to a queue, or to the dead-letter exchange of one that refused it
            try:
                stored = self._vhost.core.put(queues, exchange, routing_key, octets, body, sync=waiting.queue.durable,
                                              keys=answer.keys)
                gone = bool(stored) or any(queue.rules.dead_letters_refused for queue in queues)
            except (OSError, ValueError):  # No disk space; larger than messages may be by now.
                pass
            if not gone:
                heappush(waiting.heap, self._epoch_ns() // _MS + RETRY_MS << _SEQ_BITS | seq)
                return True
        answer.after_storing(plane.Message(exchange, routing_key, octets, body), None, stored)
        if queues and waiting.queue.durable:
            waiting.leaving.add(seq)
            self._wait(partial(self._remove, waiting, seq))
        else:
            waiting.queue.remove(seq)
        return True

    def _find_targets(self, waiting: _Waiting, keys: tuple[str, ...], message: Properties) -> plane.Answer:
        """Where a message that is due goes.  A check leaves out queues that know its deduplication key."""
        answer = find(self._vhost, waiting.exchange, keys, lambda: message, intercept=False)
        if not any(queue.deduplication is not None for queue in answer.queues):
            return answer
        check = self._vhost.duplicates.check(None, answer.queues, lambda: message)
        if check is None:
            return answer
        return plane.Answer(answer.queues, participants=(check, *answer.participants), keys=check.keys)

    def _remove(self, waiting: _Waiting, seq: int) -> None:
        """Take a message out of its waiting room: it is on disk in its queues."""
        waiting.leaving.discard(seq)
        if not waiting.queue.deleted:
            waiting.queue.remove(seq)

    # --- by hand

    def count_waiting(self, exchange: str) -> int:
        """How many messages of the exchange wait for their time."""
        waiting = self._waiting.get(exchange)
        return 0 if waiting is None else waiting.queue.ready - len(waiting.leaving)

    def upcoming(self, exchange: str, count: int = 100) -> list[Delayed]:
        """The next messages of an exchange, by due time."""
        waiting = self._waiting.get(exchange)
        if waiting is None:
            return []
        found: list[Delayed] = []
        for entry in nsmallest(count + len(waiting.taken) + len(waiting.leaving), waiting.heap):
            row = _find_row(waiting, entry & _SEQ_MASK)
            if row is not None and len(found) < count:
                found.append(Delayed(row[0], entry >> _SEQ_BITS, row[4], row[5], row[6]))
        return found

    def cancel(self, exchange: str, seq: int) -> bool:
        """Drop one message; False: no such message waits."""
        waiting = self._waiting.get(exchange)
        if waiting is None or seq in waiting.leaving or waiting.queue.remove(seq) is None:
            return False
        waiting.take(seq)
        return True

    def deliver_now(self, exchange: str, seq: int) -> bool:
        """Deliver one message before its time; False: no such message waits.

        If no queue takes it now, it is tried again as if it were due.
        """
        waiting = self._waiting.get(exchange)
        if waiting is None or not self._release(waiting, seq):
            return False
        if seq in waiting.leaving or _find_row(waiting, seq) is None:
            waiting.take(seq)
        self._arm()
        self._vhost.core.turn()
        return True


class _Arrival:
    """Takes part in the publish of one message that is held back (plane.Participant)."""

    __slots__ = ("_delays", "_due_ms", "_waiting")

    counts_as_routed = False  # Its queue does.

    def __init__(self, delays: Delays, waiting: _Waiting, due_ms: int) -> None:
        self._delays = delays
        self._waiting = waiting
        self._due_ms = due_ms

    def before_storing(self, queues: "tuple[Queue, ...]") -> "tuple[Queue, ...]":
        """Change nothing: the message waits in any case."""
        return queues

    def after_storing(self, message: plane.Message, channel: object, stored: "tuple[Queue, ...]") -> None:
        """Note when the message is due, unless its waiting room refused it."""
        if self._waiting.queue in stored:
            self._delays.note_arrival(self._waiting, self._due_ms)


def queue_name(exchange: str) -> str:
    """The queue in which messages of ``exchange`` wait."""
    name = QUEUE_PREFIX + exchange
    return name if len(name.encode("utf-8", "surrogateescape")) <= 255 else QUEUE_PREFIX + folder_name(exchange)


def _find_row(waiting: _Waiting, seq: int) -> Row | None:
    """The message of that number, if it still waits."""
    if seq in waiting.leaving:
        return None
    rows = waiting.queue.browse(seq, 1)
    return rows[0] if rows and rows[0][0] == seq else None


def _due_of_row(row: Row) -> int:
    """When a message found on disk is due; 0, at once, if it says nothing of it."""
    try:
        return due_of(read_properties(row[5]).headers, row[1] // _MS) or 0
    except PreconditionFailed:
        return 0


def _nothing() -> None:
    """The callback of a sync without a consequence."""

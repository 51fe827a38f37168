"""Delayed messages of one vhost: where they wait, and how they go on when they are due.

Messages with a delay wait in a queue of their exchange, its waiting room ``amq.delayed.<exchange>``
(with the SHA-1 of a name that is too long).  The waiting room is durable if the exchange is.  It is made when
first used, and deleted with the exchange.  It belongs to the broker: to each connection it is an exclusive queue of
another one.  A message lies there as it was published, except for its expiration: that counts from when the message
goes on, and is the header ``x-delayed-expiration`` until then.  The record's time and headers say when the message is
due (exchanges/delayed.due_of), so no other file is needed.

The queue's gate (plane.Delay) keeps the order in which messages are due.  Most messages it sends on itself: those with
a plain delay, whose routing key alone decides where they go.  For each other message it calls ``_Gate.on_due``.

When a message is due, ``x-delay`` is negated as RabbitMQ's plugin does: the receiver sees that the message was delayed,
and no exchange delays it again.  The exchange's inner type routes the message, by its routing key, CC and BCC.
Messages with equal due times go in the order of publishing.  A message for which no queue is found is dropped.  If all
queues refuse it, or the disk has no room, it is tried again after ``RETRY_MS``, unless a queue has sent the refused
message to its dead-letter exchange.

The message is first stored in its queues.  When that is on disk, it leaves the waiting room.  A broker that dies in
between finds it there again, due, and delivers it a second time, so no message is lost.  (The messages of an exchange
that is not durable survive no restart, and do not wait for the disk.)

Knows neither clock nor loop: its builder hands in both.
"""

from collections.abc import Callable
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, NamedTuple

from brokerd import plane
from brokerd.errors import PreconditionFailed
from brokerd.exchanges.delayed import DELAY, DelayedExchange, delay_of, due_of
from brokerd.exchanges.exchange import Intercepted, LazyProperties
from brokerd.queues.dead_letter import is_key, keys_in, read_properties, write_properties
from brokerd.queues.queue import WAITING_ROOM_PREFIX
from brokerd.store.format import folder_name
from brokerd.vhost.routing import find, route
from brokerd.wire.properties import Properties

if TYPE_CHECKING:
    from brokerd.queues.queue import Queue
    from brokerd.vhost.vhost import VHost

log = getLogger("brokerd")

QUEUE_PREFIX = WAITING_ROOM_PREFIX
EXPIRATION = "x-delayed-expiration"
_TEXT = ("utf-8", "surrogateescape")
RETRY_MS = 5_000
_MS = 1_000_000  # ns
_SLACK_MS = 1000  # that a record's time may be ahead of the clock: it rises with each record

Row = tuple[int, int, bool, bytes, bytes, bytes, bytes]  # of plane.Queue.browse


class Delayed(NamedTuple):
    """One message that waits, as ``upcoming`` shows it."""

    seq: int  # its name for cancel and deliver_now
    due_ms: int
    routing_key: bytes
    properties: bytes
    body: bytes


class _Gate(plane.Delay):
    """Of one waiting room."""

    __slots__ = ("_delays", "waiting")

    def __init__(self, letters: plane.Letters, retry_ms: int, delays: "Delays", waiting: "_Waiting") -> None:
        self._delays = delays
        self.waiting = waiting

    def on_due(self, seq: int, known: bool) -> None:
        try:
            self._delays.handle_due(self.waiting, seq, known=known)
        except Exception:  # The message must not wait for the next start.
            log.critical("%s: a message that is due could not be sent on", self.waiting.queue, exc_info=True)
            self._delays.try_later(self.waiting, seq)

    def on_stored(self, upto: int) -> None:
        self._delays.settle_when_synced(self, upto)


class _Waiting:
    """The messages that wait in one exchange."""

    __slots__ = ("exchange", "gate", "queue")

    def __init__(self, exchange: DelayedExchange, queue: "Queue", delays: "Delays", routes: plane.Routes) -> None:
        self.exchange = exchange
        self.queue = queue
        letters = plane.Letters(routes, b"", exchange.name.encode(*_TEXT))
        self.gate = _Gate(letters, RETRY_MS, delays, self)


class Delays:
    """The delayed messages of all exchanges of one vhost."""

    __slots__ = ("_epoch_ns", "_routes", "_vhost", "_wait", "_waiting")

    def __init__(self, vhost: "VHost", *, epoch_ns: Callable[[], int], wait: Callable[..., object]) -> None:
        """``wait(callback, log=None)`` is GroupCommit.wait; ``epoch_ns`` is the clock of the data plane's records."""
        self._vhost = vhost
        self._epoch_ns = epoch_ns
        self._wait = wait
        self._waiting: dict[str, _Waiting] = {}  # by exchange
        self._routes = plane.Routes(vhost.core, self._resolve)

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

    def forget_routes(self) -> None:
        """Where messages go has changed."""
        self._routes.clear()

    def _take_up(self, exchange: DelayedExchange, queue: "Queue") -> _Waiting:
        queue.owner = self
        waiting = self._waiting[exchange.name] = _Waiting(exchange, queue, self, self._routes)
        queue.gate = waiting.gate
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
        if due_of(message.headers, self._epoch_ns() // _MS) is None:
            return None
        waiting = self._room(exchange)
        headers = message.headers or {}
        if message.expiration is None and EXPIRATION not in headers:
            return Intercepted((waiting.queue,))
        headers = {name: value for name, value in headers.items() if name != EXPIRATION}
        if message.expiration is not None:
            headers[EXPIRATION] = message.expiration
        return Intercepted((waiting.queue,), write_properties(
            Properties(**message.present() | {"headers": headers, "expiration": None})
        ))  # fmt: skip

    # --- messages go

    def _resolve(
        self, exchange: bytes, routing_key: bytes, header: bytes, channel: plane.Channel | None
    ) -> plane.Answer:
        """Where every message with this routing key goes that is due: plane.Routes asks for it.

        An answer that is not cacheable sends each message to ``handle_due``.
        """
        found = self._vhost.exchanges.get(exchange.decode(*_TEXT))
        if found is None:
            return plane.Answer(())
        walked = route(self._vhost, found, routing_key.decode(*_TEXT), Properties)
        cacheable = walked.cacheable and not walked.with_history
        if any(queue.deduplication is not None for queue in walked.queues):
            cacheable = False
        return plane.Answer(walked.queues, cacheable=cacheable)

    def handle_due(self, waiting: _Waiting, seq: int, *, known: bool) -> None:
        """Send on a message that the gate does not; or, if it is not ``known``, tell the gate when it is due."""
        row = _find_row(waiting, seq)
        if row is None:
            return
        if known:
            self._release(waiting, row)
        else:
            waiting.gate.note(seq, _due_of_row(row, self._epoch_ns() // _MS))

    def try_later(self, waiting: _Waiting, seq: int) -> None:
        """Have a message that could not be sent on tried again."""
        waiting.gate.note(seq, self._epoch_ns() // _MS + RETRY_MS)

    def settle_when_synced(self, gate: plane.Delay, upto: int) -> None:
        """Have messages leave their waiting room that the gate has sent on, once they are on disk in their queues."""
        self._wait(partial(gate.settle, upto))

    def _release(self, waiting: _Waiting, row: Row) -> None:
        """Deliver one message."""
        seq, _, _, exchange, routing_key, octets, body = row
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
        answer.take_body(body)
        try:
            queues = answer.before_storing()
        except OSError:  # No disk space for its deduplication key.
            self.try_later(waiting, seq)
            return
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
                self.try_later(waiting, seq)
                return
        answer.after_storing(plane.Message(exchange, routing_key, octets, body), None, stored)
        if queues and waiting.queue.durable:
            waiting.queue.set_aside(seq)
            self._wait(partial(_remove, waiting.queue, seq))
        else:
            waiting.queue.remove(seq)

    def _find_targets(self, waiting: _Waiting, keys: tuple[str, ...], message: Properties) -> plane.Answer:
        """Where a message that is due goes.  A check leaves out queues that know its deduplication key."""
        answer = find(self._vhost, waiting.exchange, keys, lambda: message, intercept=False)
        if not any(queue.deduplication is not None for queue in answer.queues):
            return answer
        check = self._vhost.duplicates.check(None, answer.queues, lambda: message, routing_key=keys[0])
        if check is None:
            return answer
        return plane.Answer(answer.queues, participants=(check, *answer.participants), keys=check.keys)

    # --- by hand

    def count_waiting(self, exchange: str) -> int:
        """How many messages of the exchange wait for their time."""
        waiting = self._waiting.get(exchange)
        return 0 if waiting is None else waiting.queue.ready

    def upcoming(self, exchange: str, count: int = 100) -> list[Delayed]:
        """The next messages of an exchange, by due time."""
        waiting = self._waiting.get(exchange)
        if waiting is None:
            return []
        found: list[Delayed] = []
        wanted = count
        while True:
            entries = waiting.gate.upcoming(wanted)
            found = [Delayed(seq, due_ms, row[4], row[5], row[6]) for due_ms, seq in entries
                     if (row := _find_row(waiting, seq)) is not None]
            if len(found) >= count or len(entries) < wanted:
                return found[:count]
            wanted *= 2  # Some entries are of messages that were taken out.

    def due_times(self, exchange: str, count: int) -> list[tuple[int, int]]:
        """When the next messages are due (ms since the epoch) and their numbers; some may have been taken out."""
        waiting = self._waiting.get(exchange)
        return [] if waiting is None else waiting.gate.upcoming(count)

    def row(self, exchange: str, seq: int) -> Row | None:
        """One message that waits."""
        waiting = self._waiting.get(exchange)
        return None if waiting is None else _find_row(waiting, seq)

    def cancel(self, exchange: str, seq: int) -> bool:
        """Drop one message; False: no such message waits."""
        waiting = self._waiting.get(exchange)
        if waiting is None or waiting.queue.remove(seq) is None:
            return False
        waiting.gate.tidy()
        return True

    def deliver_now(self, exchange: str, seq: int) -> bool:
        """Deliver one message before its time; False: no such message waits.

        If no queue takes it now, it is tried again as if it were due.
        """
        waiting = self._waiting.get(exchange)
        row = None if waiting is None else _find_row(waiting, seq)
        if waiting is None or row is None:
            return False
        self._release(waiting, row)
        self._vhost.core.turn()
        return True


def queue_name(exchange: str) -> str:
    """The queue in which messages of ``exchange`` wait."""
    name = QUEUE_PREFIX + exchange
    return name if len(name.encode("utf-8", "surrogateescape")) <= 255 else QUEUE_PREFIX + folder_name(exchange)


def _find_row(waiting: _Waiting, seq: int) -> Row | None:
    """The message of that number, if it still waits."""
    rows = waiting.queue.browse(seq, 1)
    return rows[0] if rows and rows[0][0] == seq else None


def _remove(queue: "Queue", seq: int) -> None:
    """Take a message out of its waiting room that was set aside there: it is on disk in its queues."""
    if not queue.deleted and queue.release(seq):
        queue.remove(seq)


def _due_of_row(row: Row, now_ms: int) -> int:
    """When a message in the waiting room is due; 1, before all others, if it says nothing of it.

    If the clock was set back since it came, its delay begins now, as in the data plane.
    """
    came_ms = row[1] // _MS
    try:
        due_ms = due_of(read_properties(row[5]).headers, came_ms if came_ms <= now_ms + _SLACK_MS else now_ms)
        return max(due_ms or 1, 1)
    except PreconditionFailed:
        return 1


def _nothing() -> None:
    """The callback of a sync without a consequence."""

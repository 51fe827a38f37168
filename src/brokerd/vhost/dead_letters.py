"""Sends the dead letters of one vhost on: from the queue in which they died, through its dead-letter exchange.

No permission is checked here: the declare of the queue checked it (RabbitMQ).  A message goes to the queues that the
exchange finds, by way of its alternates and of exchanges bound to it, but not back to a queue from which it came
without a client's reject (a cycle: queues/dead_letter).  A message that dies by itself again and again, each time into
several queues, goes no further when it has some ten thousand copies.  If the exchange is missing, the message is
dropped, and the log says so once for each queue.

There are two strategies.  *At most once*: the message is stored in the targets that take it, and settled in the source
at once.  A power cut may lose it; after kill -9 between the two steps it is there twice.  *At least once*: the message
stays set aside in the source until every target has stored it and it is on disk.  If no queue is found, or a target
refuses, it is tried again every ``retry_ms`` for the targets that do not have it yet; meanwhile later messages pass it.
A broker that dies in between finds the message ready in its source again, where it dies again.  A target may then get
it twice, with equal histories, and nothing else shows it (as in RabbitMQ).  If the disk is full, the first strategy
does the same as the second: the message stays in the source and is tried again.

The messages that are to be tried again are in memory, up to ``WAITING_OCTETS_MAX`` octets.  Those beyond that stay in
their source until the broker starts again.

Most dead letters never come here: the data plane makes and stores them itself, as ``letters_of`` tells it.  It leaves
letters to this module if it cannot handle their headers or targets (see plane.Letters).  At least once, it also leaves
letters for which no queue is found, or that a target may refuse.

Knows neither clock nor loop: its builder hands in both.
"""

from collections.abc import Callable
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any, Protocol

from brokerd import plane
from brokerd.queues.dead_letter import (
    NOTHING,
    REJECTED,
    DeadLetter,
    DeadLetterRule,
    is_cycle,
    make_dead_letter,
    read_headers,
    read_properties,
)
from brokerd.vhost.routing import find, route
from brokerd.wire.properties import Properties

if TYPE_CHECKING:
    from brokerd.queues.queue import Queue
    from brokerd.queues.rules import Rules
    from brokerd.vhost.vhost import VHost

log = getLogger("brokerd")

RETRY_MS = 180_000  # RabbitMQ's dead_letter_worker_publisher_confirm_timeout
RETRIES_PER_TURN = 256
WAITING_OCTETS_MAX = 64 << 20
COPIES_MAX = 10_000  # of one message that dies by itself again and again
LOGGED_MAX = 1000  # then what was logged once may be logged again
_TEXT = ("utf-8", "surrogateescape")


class Timer(Protocol):
    """The result of ``call_at``."""

    def cancel(self) -> object: ...


CallAt = Callable[[int, Callable[[], object]], Timer]  # ns since the epoch
Wait = Callable[[Callable[[], object]], object]  # call back when everything that is written now is on disk


class Source(Protocol):
    """The part of a queue that this module uses.  A policy may change ``rules`` at any time."""

    name: str
    deleted: bool
    rules: "Rules"

    def settle_aside(self, seq: int) -> None: ...
    def letter_headers(self, seq: int) -> bytes: ...
    def settle_letters(self, upto: int) -> None: ...


class _Dead:
    """A dead message that may stay in its source, and the targets that have it."""

    __slots__ = ("body", "exchange", "on_disk", "own", "properties", "queue", "reason", "retained", "routing_key",
                 "seq", "stored", "time_s")

    def __init__(
        self, queue: Source, reason: str, seq: int, message: tuple[bytes, bytes, bytes, bytes], time_s: int
    ) -> None:
        self.queue = queue
        self.reason = reason
        self.seq = seq
        self.exchange, self.routing_key, self.properties, self.body = message
        self.own = read_headers(queue.letter_headers(seq)) if seq else NOTHING  # where it stood
        self.time_s = time_s
        self.stored: set[Any] = set()
        self.retained = False  # the source was told to set it aside
        self.on_disk = False

    def synced(self) -> None:
        """Settle it in the source: all targets have it on disk."""
        self.on_disk = True
        if self.retained and not self.queue.deleted:
            self.queue.settle_aside(self.seq)

    @property
    def octets(self) -> int:
        return len(self.properties) + len(self.body)


class DeadLetters:
    """The dead letters of one vhost.  ``on_dead`` of its queues comes here."""

    __slots__ = (
        "_again", "_call_at", "_epoch_ns", "_logged", "_retries", "_routes", "_timer", "_vhost", "_wait", "_waiting",
        "_waiting_octets", "per_message", "retry_ms", "too_many",
    )  # fmt: skip

    def __init__(
        self,
        vhost: "VHost",
        *,
        epoch_ns: Callable[[], int],
        wait: Wait,
        call_at: CallAt,
        per_message: bool = False,
        retry_ms: int = RETRY_MS,
    ) -> None:
        """``wait`` is GroupCommit.wait; ``per_message``: headers x-dead-letter-exchange and -routing-key count."""
        self._vhost = vhost
        self._epoch_ns = epoch_ns
        self._wait = wait
        self._call_at = call_at
        self.per_message = per_message
        self.retry_ms = retry_ms
        self._waiting: dict[_Dead, None] = {}  # to be tried again
        self._waiting_octets = 0
        self._again = False  # retry() was called since the last round began
        self._retries: list[_Dead] = []  # of these: those that this round has not tried yet
        self._timer: Timer | None = None
        self._logged: set[tuple[str, ...]] = set()
        self.too_many = 0  # dead letters that went nowhere because they had multiplied too often
        self._routes: plane.Routes | None = None  # made for the first queue of which the data plane makes the letters

    # --- what the data plane does by itself

    def letters_of(self, name: str, rule: DeadLetterRule) -> plane.Letters | None:
        """How the data plane makes the dead letters of the queue of that name; None: ``handle_dead`` makes them all."""
        if self._routes is None:
            self._routes = plane.Routes(self._vhost.core, self._resolve)
        key = None if rule.routing_key is None else rule.routing_key.encode(*_TEXT)
        try:
            return plane.Letters(
                self._routes, name.encode(*_TEXT), rule.exchange.encode(*_TEXT), key, per_message=self.per_message,
                at_least_once=rule.at_least_once,
            )  # fmt: skip
        except ValueError:  # A name of more than 255 octets leads nowhere.
            return None

    def settle_when_synced(self, queue: Source, upto: int) -> None:
        """Have messages settled in their source whose letters the data plane has stored, once these are on disk."""
        self._wait(partial(queue.settle_letters, upto))

    def remove_when_synced(self, queue: "Queue", seq: int) -> None:
        """Remove a ready message from its queue when what was stored by now is on disk; until then it is aside."""
        if queue.set_aside(seq):
            self._wait(partial(_remove, queue, seq))

    def forget_routes(self) -> None:
        """Where messages go has changed."""
        if self._routes is not None:
            self._routes.clear()

    def _resolve(
        self, exchange: bytes, routing_key: bytes, header: bytes, channel: plane.Channel | None
    ) -> plane.Answer:
        """Where every dead letter with this exchange and routing key goes: plane.Routes asks for it.

        An answer that is not cacheable sends each letter to ``handle_dead``, which decides by the message.
        """
        found = self._vhost.exchanges.get(exchange.decode(*_TEXT))
        if found is None or found.intercepts:
            return plane.Answer(())
        walked = route(self._vhost, found, routing_key.decode(*_TEXT), Properties)
        return plane.Answer(walked.queues, cacheable=walked.cacheable and not walked.with_history)

    # --- the verb

    def handle_dead(
        self,
        queue: Source,
        reason: str,
        seq: int,
        exchange: bytes,
        routing_key: bytes,
        properties: bytes,
        body: bytes,
    ) -> bool:
        """Handle a message that died in ``queue``: the contract of plane.Queue.on_dead.

        True: the source settles it.  False: the source sets it aside until this module calls ``settle_aside(seq)``.
        ``seq`` 0: a refused publish, which the source does not have.  Raises nothing.
        """
        rule = queue.rules.dead_letter
        if rule is None:
            return True
        dead = _Dead(queue, reason, seq, (exchange, routing_key, properties, body), self._epoch_ns() // 1_000_000_000)
        if rule.at_least_once and seq:
            if self._forward(dead, rule):
                self._wait(dead.synced)
                dead.retained = not dead.on_disk  # With --no-sync it is called before wait() returns.
                return dead.on_disk
        elif self._forward_once(dead, rule):
            return True
        dead.retained = True
        self._retry_later(dead)
        return False

    def retry(self) -> None:
        """Soon try all waiting messages again.  Call this, as often as you like, when a target may have appeared."""
        if self._waiting and not self._again:
            self._again = True
            if not self._retries:
                self._arm(self._epoch_ns())

    @property
    def waiting(self) -> int:
        """The number of messages that wait in their sources to be tried again."""
        return len(self._waiting)

    def close(self) -> None:
        """Stop trying, because the broker stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self._retries.clear()

    # --- forwarding

    def _forward_once(self, dead: _Dead, rule: DeadLetterRule) -> bool:
        """Store in the targets as they are now.  False: the disk is full, and the source can set the message aside."""
        letter, answer = self._find_targets(dead, rule)
        if letter is None or not answer.queues:
            return True
        try:
            self._put(dead, letter, answer, sync=False)
        except (OSError, ValueError) as error:  # No disk space; or the message is impossible, and time does not help.
            self._log_once("no room", dead.queue, "a dead letter of queue '%s' cannot be stored: %s", str(error))
            return isinstance(error, ValueError) or not dead.seq
        return True

    def _forward(self, dead: _Dead, rule: DeadLetterRule) -> bool:
        """Store in each target that does not have it yet.  True: there are targets, and all of them have it now."""
        letter, answer = self._find_targets(dead, rule)
        if letter is None:
            return False
        if not answer.queues:
            if not dead.stored:
                self._log_once(
                    "no route", dead.queue, "no queue is found for dead letters of queue '%s' by exchange '%s'; they "
                    "stay where they are, and are tried again", letter.exchange)  # fmt: skip
            return bool(dead.stored)
        left = tuple([queue for queue in answer.queues if queue not in dead.stored])
        participants = () if dead.stored else answer.participants  # They take part once for each message.
        try:
            stored = self._put(dead, letter, plane.Answer(left, participants=participants), sync=True)
        except (OSError, ValueError) as error:
            self._log_once("no room", dead.queue, "a dead letter of queue '%s' cannot be stored: %s", str(error))
            return False
        dead.stored.update(stored)
        return len(stored) == len(left)

    def _put(self, dead: _Dead, letter: DeadLetter, answer: plane.Answer, *, sync: bool) -> tuple[Any, ...]:
        """Store the dead letter where ``answer`` and its participants say.  Returns the queues that took it."""
        exchange, key = letter.exchange.encode(*_TEXT), letter.routing_keys[0].encode(*_TEXT)
        queues = answer.before_storing()
        stored = self._vhost.core.put(queues, exchange, key, letter.properties, dead.body, sync=sync)
        if stored:
            answer.after_storing(plane.Message(exchange, key, letter.properties, dead.body), None, stored)
        return stored

    def _find_targets(self, dead: _Dead, rule: DeadLetterRule) -> tuple[DeadLetter | None, plane.Answer]:
        """The dead letter, and where it goes.  Where its exchange is missing: None, and an answer without queues."""
        letter = make_dead_letter(
            dead.properties,
            rule,
            queue=dead.queue.name,
            reason=dead.reason,
            exchange=dead.exchange.decode(*_TEXT),
            routing_key=dead.routing_key.decode(*_TEXT),
            time_s=dead.time_s,
            per_message=self.per_message,
            own=dead.own,
        )
        exchange = self._vhost.exchanges.get(letter.exchange)
        if exchange is None:
            self._log_once("no exchange", dead.queue, "queue '%s': its dead-letter exchange '%s' does not exist",
                           letter.exchange)
            return None, plane.Answer(())
        answer = find(self._vhost, exchange, letter.routing_keys, partial(read_properties, letter.properties))
        if dead.reason != REJECTED:
            queues = self._bounded(dead, letter, self._without_cycles(dead, letter, answer.queues))
            answer = plane.Answer(queues, participants=answer.participants)
        return letter, answer

    def _without_cycles(self, dead: _Dead, letter: DeadLetter, queues: "tuple[Queue, ...]") -> "tuple[Queue, ...]":
        cycling = [queue for queue in queues if is_cycle(letter.headers, queue.name)]
        if not cycling:
            return queues
        for queue in cycling:
            self._log_once("cycle", dead.queue, "dead letters of queue '%s' would come back to queue '%s' by "
                           "themselves: not sent there", queue.name)
        return tuple([queue for queue in queues if queue not in cycling])

    def _bounded(self, dead: _Dead, letter: DeadLetter, queues: "tuple[Queue, ...]") -> "tuple[Queue, ...]":
        """No queues, where a message that died by itself again and again has multiplied too often.

        How many copies there are by now is not known.  If each death had as many targets as this one, there would be
        targets ** deaths.
        """
        deaths = letter.headers.get("x-death", ())
        if len(queues) < 2 or len(queues) ** len(deaths) <= COPIES_MAX:
            return queues
        self.too_many += 1
        self._log_once("copies", dead.queue, "dead letters of queue '%s' multiply: by exchange '%s' each goes to "
                       "several queues, where it dies again; those that have died too often go no further",
                       letter.exchange)
        return ()

    # --- trying again

    def _retry_later(self, dead: _Dead) -> None:
        if self._waiting_octets + dead.octets > WAITING_OCTETS_MAX:
            self._log_once("too many", dead.queue, "too many dead letters wait; of queue '%s' some stay where they "
                           "are until the broker starts again, at least %s", str(dead.seq))
            return
        self._waiting[dead] = None
        self._waiting_octets += dead.octets
        if self._timer is None:
            self._arm(self._epoch_ns() + self.retry_ms * 1_000_000)

    def _arm(self, when_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._call_at(when_ns, self._retry_some)

    def _retry_some(self) -> None:
        """Try one turn's share of the waiting messages again."""
        self._timer = None
        if not self._retries:
            self._retries = list(self._waiting)
            self._again = False
        now = self._retries[:RETRIES_PER_TURN]
        del self._retries[:RETRIES_PER_TURN]
        for dead in now:
            if dead in self._waiting and self._try_again(dead):
                del self._waiting[dead]
                self._waiting_octets -= dead.octets
        if self._waiting:
            self._arm(self._epoch_ns() + (0 if self._retries or self._again else self.retry_ms * 1_000_000))
        self._vhost.core.turn()

    def _try_again(self, dead: _Dead) -> bool:
        """Try one message.  True: it need not be tried again."""
        if dead.queue.deleted:
            return True
        rule = dead.queue.rules.dead_letter
        if rule is None or not rule.at_least_once:
            done = rule is None or self._forward_once(dead, rule)
            if done:
                dead.queue.settle_aside(dead.seq)
            return done
        if not self._forward(dead, rule):
            return False
        self._wait(dead.synced)
        return True

    def _log_once(self, what: str, queue: Source, text: str, detail: str) -> None:
        key = (what, queue.name, detail)
        if key in self._logged:
            return
        if len(self._logged) >= LOGGED_MAX:
            self._logged.clear()
        self._logged.add(key)
        log.warning("vhost '%s': " + text, self._vhost.name, queue.name, detail)



def _remove(queue: "Queue", seq: int) -> None:
    """Remove a message that was set aside, because a newer one that is on disk replaces it."""
    if not queue.deleted and queue.release(seq):
        queue.remove(seq)

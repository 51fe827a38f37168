"""Pull: clients that do not speak AMQP take messages for a limited time, with a receipt for each.

    receive ─> out, under a receipt ─ ack ──────────────> settled
                                    ─ nack, or no word ─> ready again, at its own place

A message that is out was delivered as by basic.get: counts, journals and message groups see no difference, and if the
broker dies it is ready again.  A receipt counts until its time is over; then the message returns as one whose
consumer timed out.  The same attempt id gets the same messages again, as far as they are still out.

All receipts and attempts are in memory, and bounded.  Times are seconds of the monotonic clock.  A message returns when
its time is over, to the millisecond; each second's tick returns it too, if somebody has set the system's clock.  Knows
nothing of rights.
"""

import os
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from struct import unpack_from
from typing import TYPE_CHECKING, Any

from brokerd import plane
from brokerd.operations import OperationError
from brokerd.store.format import CAUSE_NACK, CAUSE_TIMEOUT
from brokerd.wire.frames import FRAME_BODY, FRAME_HEADER, FRAME_METHOD

if TYPE_CHECKING:
    from brokerd.queues.queue import Queue

RECEIPTS_MAX = 100_000
ATTEMPTS_MAX = 10_000
ATTEMPT_S = 300.0  # how long an attempt id gives the same messages
SHOWN_MAX = 40  # characters of a wrong receipt in its refusal
LOOKED_AT_ONCE = 200  # receipts whose time is over; others have their turn before the next
MOVED_AT_ONCE = 4  # entries of a heap that is made anew; each new entry moves so many
_TEXT = ("utf-8", "surrogateescape")


class _Output:
    """The transport of a connection without a socket: keeps the written octets."""

    def __init__(self) -> None:
        self.octets = b""

    def write(self, octets: bytes) -> None:
        self.octets += octets

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _Puller(plane.Connection):
    """Takes messages from one queue, as a client's channel would."""

    queue: "Queue"
    peer = user = ""  # A trace shows them, as it does of a message that an operator publishes.

    def __init__(self, core: plane.Core, number: int, queue: "Queue") -> None:
        super().__init__(core)
        self.number = number
        self.queue = queue
        self.out = _Output()
        self.attach(self.out, -1)
        self.channel = plane.Channel(self, 1)
        self.receipts: set[str] = set()
        self.is_gone = False

    def take(self) -> tuple[int, bool, bytes, bytes, bytes, bytes] | None:
        """Tag, redelivered, exchange, routing key, properties and body of the queue's next message; None: none can go
        out now."""
        if not self.channel.get(self.queue, False):
            return None
        self.flush()
        octets, self.out.octets = self.out.octets, b""
        return _parse(octets)

    def on_error(self, channel: int, error: Exception, class_id: int, method_id: int) -> None:
        raise error


def _parse(octets: bytes) -> tuple[int, bool, bytes, bytes, bytes, bytes]:
    """The parts of basic.get-ok and its content."""
    at, body = 0, []
    tag, redelivered, exchange, key, properties = 0, False, b"", b"", b""
    while at < len(octets):
        kind, _, size = unpack_from(">BHI", octets, at)
        payload = octets[at + 7 : at + 7 + size]
        at += size + 8
        if kind == FRAME_METHOD:
            tag, again = unpack_from(">QB", payload, 4)
            redelivered = again != 0
            behind = 14 + payload[13]
            exchange, key = payload[14:behind], payload[behind + 1 : behind + 1 + payload[behind]]
        elif kind == FRAME_HEADER:
            properties = payload[12:]
        elif kind == FRAME_BODY:
            body.append(payload)
    return tag, redelivered, exchange, key, properties, b"".join(body)


class Receipt:
    """One message that is out."""

    __slots__ = ("back", "cause", "looked_at", "name", "puller", "row", "seq", "tag")

    def __init__(self, puller: _Puller, tag: int, seq: int, back: float, row: dict[str, Any]) -> None:
        self.name = urlsafe_b64encode(os.urandom(18)).decode()
        self.puller = puller
        self.tag = tag
        self.seq = seq
        self.back = back  # when it returns
        self.looked_at = inf  # when that is looked at next: not after it
        self.cause = CAUSE_TIMEOUT
        self.row = row | {"receipt": self.name, "seq": seq}  # {}: nobody may ask for it again


class _Looks:
    """When to look at which receipt: a heap.

    Most entries are of messages that were settled in time.  When they are more than the others, the heap becomes the
    old one, and each new entry moves some that still count into a new heap.
    """

    __slots__ = ("_heap", "_old")

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._old: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._heap) + len(self._old)

    def put(self, receipt: Receipt, receipts: dict[str, Receipt]) -> None:
        """Look at the receipt at the time that it says.  ``receipts``: all that are out."""
        heappush(self._heap, (receipt.looked_at, receipt.name))
        for _ in range(min(MOVED_AT_ONCE, len(self._old))):
            when, name = self._old.pop()  # Without its last entry, a heap is one.
            other = receipts.get(name)
            if other is not None and other.looked_at == when:
                heappush(self._heap, (when, name))
        if not self._old and len(self._heap) > 2 * len(receipts) + 100:
            self._heap, self._old = [], self._heap

    def first(self) -> float:
        """When the next look is; inf: never."""
        return min(self._heap[0][0] if self._heap else inf, self._old[0][0] if self._old else inf)

    def take(self) -> tuple[float, str]:
        """Take the next entry off."""
        if not self._heap or (self._old and self._old[0] < self._heap[0]):
            return heappop(self._old)
        return heappop(self._heap)


class Pulls:
    """The messages that all queues of a broker have given out to receivers."""

    __slots__ = (
        "_attempts", "_call_in", "_core", "_forgotten", "_looks", "_make_number", "_monotonic", "_pullers", "_wakes",
        "receipts",
    )  # fmt: skip

    def __init__(
        self, core: plane.Core, make_number: Callable[[], int], monotonic: Callable[[], float],
        call_in: Callable[[float, Callable[[], object]], object],
    ) -> None:  # fmt: skip
        """``make_number`` gives numbers of connections, ``monotonic`` seconds; ``call_in`` calls back after so many."""
        self._core = core
        self._make_number = make_number
        self._monotonic = monotonic
        self._call_in = call_in
        self._looks = _Looks()
        self._forgotten: list[set[str]] = []  # receipts of deleted queues
        self._wakes = inf  # when this is called back next
        self._pullers: dict[Queue, _Puller] = {}
        self._attempts: dict[tuple[Queue, str], tuple[float, list[Receipt]]] = {}  # until when, and what it got
        self.receipts: dict[str, Receipt] = {}

    def receive(self, queue: "Queue", count: int, visible_s: float, attempt: str) -> list[dict[str, Any]]:
        """Take messages; those of the attempt before, if that has some that are out.  Raises OperationError (409)."""
        now = self._monotonic()
        if attempt:
            until, before = self._attempts.get((queue, attempt), (0.0, []))
            again = [receipt for receipt in before if receipt.name in self.receipts] if until > now else []
            if again:
                for receipt in again:
                    self._return_at(receipt, now + visible_s)
                return [receipt.row for receipt in again]
        found: list[Receipt] = []
        while len(found) < count:
            if len(self.receipts) >= RECEIPTS_MAX:
                if found:
                    break
                raise OperationError(f"{RECEIPTS_MAX} messages are out to receivers already", 409)
            taken = self._take(queue, now + visible_s)
            if taken is None:
                break
            self.receipts[taken.name] = taken
            taken.puller.receipts.add(taken.name)
            self._return_at(taken, taken.back)
            found.append(taken)
        if found and attempt:
            self._attempts.pop((queue, attempt), None)
            while len(self._attempts) >= ATTEMPTS_MAX:
                del self._attempts[next(iter(self._attempts))]
            self._attempts[queue, attempt] = (now + ATTEMPT_S, found)
        rows = [receipt.row for receipt in found]
        if not attempt:
            for receipt in found:
                receipt.row = {}
        return rows

    def _take(self, queue: "Queue", back: float) -> Receipt | None:
        puller = self._pullers.get(queue)
        if puller is None:
            puller = self._pullers[queue] = _Puller(self._core, self._make_number(), queue)
        got = puller.take()
        if got is None:
            return None
        tag, redelivered, exchange, key, properties, body = got
        ((_, _, seq),) = puller.channel.deliveries(tag, False)
        return Receipt(puller, tag, seq, back, {
            "redelivered": redelivered, "exchange": exchange.decode(*_TEXT), "routing_key": key.decode(*_TEXT),
            "properties": properties, "body": body,
        })  # fmt: skip

    def channel_of(self, queue: "Queue") -> plane.Channel | None:
        """The channel of the messages of a queue that are out; None: none is."""
        puller = self._pullers.get(queue)
        return puller.channel if puller is not None else None

    def find(self, queue: "Queue", names: list[str]) -> list[Receipt]:
        """The receipts of messages of the queue that are out.  Raises OperationError (404)."""
        found = []
        for name in names:
            receipt = self.receipts.get(name)
            if receipt is None or receipt.puller.queue is not queue:
                shown = name if len(name) <= SHOWN_MAX else name[:SHOWN_MAX] + "…"
                raise OperationError(f"no receipt '{shown}' in {queue}: it was settled, or its time is over", 404)
            found.append(receipt)
        return found

    def settle(self, receipts: list[Receipt], requeue: int = 0) -> None:
        """Acknowledge messages, or return them for this cause."""
        for receipt in receipts:
            self._settle(receipt, requeue)
        self._core.turn()

    def _settle(self, receipt: Receipt, requeue: int) -> None:
        if self.receipts.pop(receipt.name, None) is not None:
            receipt.puller.receipts.discard(receipt.name)
            receipt.row = {}  # Its attempt is remembered longer, but no body.
            receipt.puller.channel.settle(receipt.tag, False, requeue=requeue)

    def extend(self, receipts: list[Receipt], visible_s: float, *, nack: bool = False) -> None:
        """Have messages return only after so many seconds from now; ``nack``: because the receiver refused them."""
        back = self._monotonic() + visible_s
        for receipt in receipts:
            self._return_at(receipt, back)
            if nack:
                receipt.cause = CAUSE_NACK

    # --- time

    def _return_at(self, receipt: Receipt, back: float) -> None:
        """A later time than before costs nothing: when the earlier one has come, the receipt is looked at again."""
        receipt.back = back
        if back >= receipt.looked_at:
            return
        receipt.looked_at = back
        self._looks.put(receipt, self.receipts)
        self._wake_at(back)

    def _wake_at(self, when: float) -> None:
        if when < self._wakes:
            self._wakes = when
            self._call_in(max(when - self._monotonic(), 0.0), self._wake)

    def _wake(self) -> None:
        self._wakes = inf
        self._return_overdue()

    def _return_overdue(self) -> None:
        """Return messages when their time is over; if these are many, the rest in the next call."""
        now, some = self._monotonic(), False
        for _ in range(LOOKED_AT_ONCE):
            if self._looks.first() > now:
                break
            when, name = self._looks.take()
            receipt = self.receipts.get(name)
            if receipt is None or receipt.looked_at != when or receipt.puller.is_gone:
                continue
            receipt.looked_at = inf
            if receipt.back > now:
                self._return_at(receipt, receipt.back)
            else:
                self._settle(receipt, receipt.cause)
                some = True
        if some:
            self._core.turn()
        self._wake_at(self._looks.first())

    def tick(self) -> None:
        """Return messages when their time is over, and forget attempts and receipts that are not needed any more."""
        now = self._monotonic()
        self._return_overdue()
        for key in [key for key, (until, _) in self._attempts.items() if until <= now or key[0].deleted]:
            del self._attempts[key]
        for queue in [queue for queue, puller in self._pullers.items() if queue.deleted or not puller.channel.unacked]:
            puller = self._pullers.pop(queue)
            puller.is_gone = True
            if puller.receipts:
                self._forgotten.append(puller.receipts)
            puller.detach()
        self._forget_some()

    def _forget_some(self) -> None:
        """Forget receipts of deleted queues; if these are many, the rest in the next call."""
        for _ in range(LOOKED_AT_ONCE):
            if not self._forgotten:
                return
            self.receipts.pop(self._forgotten[-1].pop(), None)
            if not self._forgotten[-1]:
                self._forgotten.pop()
        if self._forgotten:
            self._call_in(0.0, self._forget_some)

    def close(self) -> None:
        """Return all messages, because the broker stops."""
        self.receipts.clear()
        self._looks = _Looks()
        self._forgotten.clear()
        self._attempts.clear()
        for puller in self._pullers.values():
            puller.detach()
        self._pullers.clear()


def show(row: dict[str, Any], read: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
    """A row for people and programs; ``read`` makes a table of properties."""
    body = row["body"]
    try:
        payload, encoding = body.decode(), "string"
    except UnicodeDecodeError:
        payload, encoding = b64encode(body).decode(), "base64"
    return {
        "receipt": row["receipt"], "seq": row["seq"], "redelivered": row["redelivered"], "exchange": row["exchange"],
        "routing_key": row["routing_key"], "properties": read(row["properties"]), "payload": payload,
        "payload_encoding": encoding, "payload_bytes": len(body),
    }  # fmt: skip

"""Class tx: a channel's publishes and settlements wait until commit; then all of them happen, or none.

    OPEN      the data plane keeps the publishes; settlements go into a list
      | tx.commit
    DECIDING  everything is routed, there is space on the disk, the commit log is written
      |
    DECIDED   waiting for the sync of the commit log
      |
    STORING   every publish goes into its queues, in order; basic.return for what goes nowhere
      |
    SETTLING  then the settlements
      |
    OPEN      tx.commit-ok; the queues are synced later (store/shared_commit_log)

The plane keeps publishes until one asks for more than to be stored, or makes the transaction large.  From this one on
publishes come up to the session, which takes over those that the plane has kept.  It puts all into a commit log in
memory.  At commit it copies the log's messages into the shared one, or, if they are many octets, into a file of their
own.  With that file there is one state more:

    STORED    waiting for the sync of the queues; then tx.commit-ok, and the file is removed

A large commit is decided, stored and settled in pieces, between which others have their turn; its client's next octets
rest until the last piece.  What is stored may be delivered, settled and gone before the rest is stored.  So the commit
log says how much is stored before a piece ends, and a start stores only the rest (store/commit_log).  The methods that
the client has sent behind the commit are worked in pieces, too.

A commit that touches at most one message in one durable queue is atomic by itself and needs no commit log.  It is
STORED until its queue is synced.  Methods that the client sends on the channel between commit and commit-ok wait here,
in order.  Exchange, permission and properties are checked at publish, as RabbitMQ does, and again at commit.
store/commit_log knows where the file is and how a start reads it.
"""

from collections import deque
from collections.abc import Generator, Iterator
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd import plane
from brokerd.errors import ChannelStateError, NotAnsweredYet, PreconditionFailed
from brokerd.pieces import Piece, add_work, do_first_piece, do_in_pieces, drop_in_pieces
from brokerd.session.transaction_parts import CAUSES, REJECT, Published, Settlement, Step
from brokerd.session.transaction_stores import Stores, resolve
from brokerd.store.commit_log import CommitLog, Message, Place, PlanEncoder, plan_octets
from brokerd.store.format import CAUSE_RECOVER, COMMIT_PREFIX, ENTRY_HEAD_OCTETS, HEADER_OCTETS
from brokerd.store.shared_commit_log import ENTRY_OCTETS_MAX, Entry, SharedCommitLog
from brokerd.wire import methods
from brokerd.wire.frames import method_frame

if TYPE_CHECKING:
    from brokerd.queues.queue import Queue
    from brokerd.session.channel import Channel
    from brokerd.session.connection import Connection

log = getLogger("brokerd.session")

OPEN, DECIDING, DECIDED, STORING, SETTLING, STORED = range(6)
RECORD_OCTETS = 80  # at most: what a message takes in a queue, beyond its octets in the commit log
QUEUE_OCTETS = 1 << 17  # by which a queue's files grow beyond its records, as a rule; if it is more, the commit waits
_PART_OCTETS = 1 << 18  # of messages that are written at a time, where they are many
SETTLED_AT_ONCE = 4096  # tags of deliveries: at most some 2 ms
ONE_PIECE_MOST = 100  # publishes and settlements that are one piece, however long they take
PUBLISH_OCTETS, KEPT_OCTETS, SETTLEMENT_OCTETS = 160, 40, 200  # of memory: of one publish, where the plane kept it, ...
DEFERRED_MOST = 256  # methods that wait for the answer of a commit, before the connection's octets do

_CLOSES = (methods.ChannelClose.INDEX, methods.ChannelCloseOk.INDEX)
_COMMIT = methods.TxCommit.INDEX
_COMMIT_OK_PAYLOAD = methods.TxCommitOk.INDEX.to_bytes(4)


class Transaction:
    """The transactions of one channel, one after the other, from tx.select on."""

    __slots__ = (
        "_channel", "_claimed", "_closes", "_commit_log", "_connection", "_deferred", "_entry", "_going_on",
        "_held", "_is_large", "_kept", "_left", "_published", "_rests", "_settlements", "_stage", "_stores",
        "_taken", "_taken_at", "_work", "_works",
    )  # fmt: skip

    def __init__(self, connection: "Connection", channel: "Channel") -> None:
        self._connection = connection
        self._channel = channel
        self._deferred: deque[tuple[bytes, ...]] = deque()  # method payloads, or a whole publish
        self._going_on = False
        self._closes = False  # connection.close came behind all that is deferred
        self._left = False
        self._works = False  # the work of a method that came behind the commit is under way
        self._rests = False  # the connection rests until the answer of the commit
        name = f"{COMMIT_PREFIX}{connection.number}.{channel.number}"
        self._commit_log = CommitLog(f"{connection.access.vhost.directory}/{name}", connection.node.disk)
        self._held = 0  # octets of memory: see TransactionMemory
        self._published: list[Published] = []
        self._stores: Stores | None = None
        self._begin()

    def _begin(self) -> None:
        self._hold(-self._held)
        drop_in_pieces(self._connection.node.core, self._published)
        if self._stores is not None:
            self._stores.drop()
        self._stage = OPEN
        self._taken: plane.Kept | None = None  # the first publishes, where the data plane had kept them
        self._taken_at = 0  # where they begin in the commit log
        self._published = []  # behind those
        self._settlements: list[Settlement] = []
        self._claimed = 0  # how many deliveries those settle
        self._work: Iterator[None] = iter(())  # carries a decision out
        self._kept: plane.Kept | None = None  # the publishes of a commit, where the data plane kept all of them
        self._stores = None  # what a commit that is decided stores
        self._entry: Entry | None = None  # of the shared commit log
        self._is_large = False  # the commit is done in pieces
        self._channel.keeps = True

    @property
    def under_way(self) -> bool:
        """A commit is not answered yet, or a method that came behind it, and the channel waits for that."""
        return (self._stage != OPEN and not self._left) or self._works

    @property
    def going_on(self) -> bool:
        """Methods that came behind a commit are being worked on now."""
        return self._going_on

    # --- while it is open

    def publish(self, method: bytes, header: bytes, body: bytes) -> None:
        """Take a publish (payloads as on the wire).  Raises what publishing raises; PreconditionFailed: no space."""
        if self.under_way:
            self._defer(method, header, body)
            return
        kept = self._channel.take_kept()
        if kept is not None:
            self._take_over(kept)
        self._channel.keeps = False
        methods.decode(method)  # SyntaxError_: it does not end where its fields do.
        exchange, key = method[7 : 7 + method[6]], method[8 + method[6] : -1]
        answer = self._connection.access.resolve(exchange, key, header, self._channel)
        properties = header[12:] if answer.properties is None else answer.properties
        # No other publish has this number: it identifies the record in a queue.
        message = Message(self._channel.count_publish(), exchange, key, properties, body)
        self._add(message, method[-1], None if answer.properties is None else header)

    def _hold(self, octets: int) -> None:
        """Take so much memory more.  Raises PreconditionFailed: the channel's end gives all of it back."""
        if not self._connection.node.transaction_memory.take(self._held, octets):
            raise PreconditionFailed("the transaction cannot be kept: open transactions have too much memory")
        self._held += octets

    def _add(self, message: Message, bits: int, header: bytes | None) -> None:
        before = self._commit_log.octets
        try:
            place = self._commit_log.add(message)
        except OSError as error:
            raise PreconditionFailed(f"the transaction cannot be kept: {error.strerror}") from error
        self._hold(PUBLISH_OCTETS + len(header or b"") + self._commit_log.octets - before)
        self._published.append(Published(place, bits, header))

    def _take_over(self, kept: plane.Kept) -> None:
        """Have here what the data plane has kept.  Raises PreconditionFailed: no space."""
        try:
            self._taken_at = self._commit_log.adopt(kept.log_messages())
        except OSError as error:
            raise PreconditionFailed(f"the transaction cannot be kept: {error.strerror}") from error
        self._hold(KEPT_OCTETS * kept.count + self._commit_log.octets)
        kept.drop_octets()
        self._taken = kept

    def _all_published(self) -> Iterator[Published]:
        taken = self._taken
        for first in range(0, 0 if taken is None else taken.count, ONE_PIECE_MOST):
            assert taken is not None
            for at, octets, bits in taken.places(first, ONE_PIECE_MOST):
                yield Published(Place(self._taken_at + at, octets), bits, None)
        yield from self._published

    def settle(self, tag: int, multiple: bool, outcome: int) -> None:
        """Take an acknowledgement.  Raises PreconditionFailed for a tag that is not outstanding, or taken already."""
        try:
            first, last, count = self._channel.claim(tag, multiple, outcome)
        except LookupError:
            raise PreconditionFailed(f"unknown delivery tag {tag}") from None
        if count:
            self._hold(SETTLEMENT_OCTETS * count)
            self._claimed += count
            self._settlements.append(Settlement(first, last, outcome))

    def recover(self) -> Iterator[None]:
        """Return the deliveries that this transaction has not settled, in pieces."""
        channel = self._channel
        first, last = channel.outstanding
        for begin in range(first, last + 1, SETTLED_AT_ONCE):
            if channel.left:
                return
            channel.return_unclaimed(begin, min(last, begin + SETTLED_AT_ONCE - 1), last, CAUSE_RECOVER)
            yield

    def rollback(self) -> None:
        """Forget the publishes.  Deliveries that were settled are outstanding again."""
        self._channel.take_kept()
        self._commit_log.remove()
        if self._claimed:
            self._channel.disclaim()
        self._begin()

    def defer(self, payload: bytes) -> None:
        """Queue a method that came before the commit was answered."""
        self._defer(payload)

    def defer_close(self) -> None:
        """Let the client's connection.close wait for all that its channel sent before."""
        self._closes = True

    def _defer(self, *payloads: bytes) -> None:
        self._deferred.append(payloads)
        if len(self._deferred) >= DEFERRED_MOST and not self._rests and not self._going_on:
            self._rests = True
            self._connection.rest()

    # --- commit

    def commit(self) -> Any:
        """tx.commit-ok where there is nothing to do; None where the answer comes later, or was written already.

        Raises what publishing raises; PreconditionFailed where there is no space.  Then nothing has happened.
        """
        kept = self._channel.take_kept()
        if kept is None and not self._published and not self._settlements:
            return methods.TxCommitOk()
        if kept is not None and not kept.route(self._channel):
            self._take_over(kept)
            kept = None
        self._kept = kept
        self._is_large = self._takes_long()
        if self._is_large:
            self._stage = DECIDING
            do_in_pieces(self._connection, self._decide_in_pieces())
            return None
        for _ in self._deciding():
            pass
        return None

    def _takes_long(self) -> bool:
        if self._kept is not None and self._kept.octets > _PART_OCTETS:
            return True
        if self._commit_log.octets > _PART_OCTETS or not self._commit_log.in_memory:
            return True
        taken = 0 if self._taken is None else self._taken.count
        return taken + len(self._published) + self._claimed > ONE_PIECE_MOST

    def _decide_in_pieces(self) -> Iterator[None]:
        """Decide, unless the channel goes before."""
        work = self._deciding()
        while not self._left:
            try:
                next(work)
            except StopIteration:
                return
            except Exception as error:  # The data plane does the same with an error of an upcall.
                self._connection.on_error(self._channel.number, error, _COMMIT >> 16, _COMMIT & 0xFFFF)
                return
            yield

    def _deciding(self) -> Iterator[None]:
        """Decide, and have the decision carried out when it is on disk.  Raises what commit() raises."""
        try:
            wrote = yield from self._decide() if self._kept is None else self._decide_kept(self._kept)
        except OSError as error:
            raise PreconditionFailed(f"the transaction cannot be stored: {error.strerror}") from error
        self._channel.keeps = False
        self._stage = DECIDED
        commit = self._connection.node.commit
        if self._entry is not None:
            commit.wait(self._carry_out, self._entry.file)
        elif wrote:
            commit.sync_directory(self._connection.access.vhost.directory)
            commit.wait(self._carry_out, self._commit_log)
        else:
            self._carry_out()

    def _decide_kept(self, kept: plane.Kept) -> Generator[None, None, bool]:
        """The same as _decide() for what the data plane has kept."""
        self._stores = Stores(self._connection, self._channel, self._commit_log, kept)
        self._check_space(kept.octets, len(kept.queues))
        while not kept.copy_large():
            yield
        settlements = yield from self._durable_settlements()
        queues = [queue for queue in kept.queues if queue.durable]
        if not settlements and (kept.stores < 2 or not queues):
            return False
        messages = kept.log_messages(0, ENTRY_OCTETS_MAX)
        encoder = PlanEncoder(queues=kept.queues)
        for settlement in settlements:
            encoder.add_settlement(*settlement)
            yield
        if len(messages) < ENTRY_OCTETS_MAX:
            plan = encoder.octets(kept.log_places(ENTRY_HEAD_OCTETS))
            if len(messages) + len(plan) <= ENTRY_OCTETS_MAX:
                self._append(messages, plan, queues)
                return True
        begin, written = self._commit_log.adopt(messages), len(messages)
        while part := kept.log_messages(written, _PART_OCTETS):
            yield
            self._commit_log.adopt(part)
            written += len(part)
        yield
        plan = encoder.octets(kept.log_places(begin))
        yield
        self._commit_log.decide(self._connection.number, self._channel.number, plan)
        return True

    def _decide(self) -> Generator[None, None, bool]:
        """Write what is here into a commit log, where one is needed: whether one is.  Raises OSError."""
        queues: set[Queue] = set()
        steps: list[Step] = []
        self._stores = Stores(self._connection, self._channel, self._commit_log, steps)
        octets = logged = stores = 0
        for published in self._all_published():
            step = resolve(self._connection, self._channel, self._commit_log, published)
            steps.append(step)
            queues.update(step.queues)
            octets += (step.place.octets + RECORD_OCTETS) * len(step.queues)
            durable = sum(queue.durable for queue in step.queues)
            logged += durable > 0
            stores += durable
            yield
        self._stores.queues = queues
        self._check_space(octets, len(queues))
        settlements = yield from self._durable_settlements()
        if stores + len(settlements) < 2:
            return False
        room = ENTRY_OCTETS_MAX - plan_octets(queues, logged, stores, len(settlements))
        shared = self._commit_log.in_memory and self._commit_log.octets <= room
        encoder = PlanEncoder(ENTRY_HEAD_OCTETS - HEADER_OCTETS if shared else 0)
        for step in steps:
            if any(queue.durable for queue in step.queues):
                encoder.add_message(step.place.position, [queue for queue in step.queues if queue.durable])
            yield
        for settlement in settlements:
            encoder.add_settlement(*settlement)
            yield
        if shared:
            self._append(self._commit_log.messages, encoder.octets(), [queue for queue in queues if queue.durable])
        else:
            self._commit_log.decide(self._connection.number, self._channel.number, encoder.octets())
        return True

    def _append(self, messages: bytes, plan: bytes, queues: "list[Queue]") -> None:
        connection, vhost = self._connection, self._connection.access.vhost
        shared = vhost.commit_log
        if shared is None:
            node = connection.node
            shared = SharedCommitLog(vhost.directory, connection.number, node.disk, node.commit, node.core)
            vhost.commit_log = shared
        self._entry = shared.append(connection.number, self._channel.number, messages, plan, queues)

    def _check_space(self, octets: int, queues: int) -> None:
        if not queues:
            return
        node = self._connection.node
        octets += queues * QUEUE_OCTETS
        if not node.room.has(self._connection.access.vhost.directory, octets):
            raise PreconditionFailed("the transaction cannot be stored: No space left on device")

    def _durable_settlements(self) -> "Generator[None, None, list[tuple[Queue, int, int]]]":
        """Queue, seq and outcome of what a start must settle again, piece by piece."""
        found: list[tuple[Queue, int, int]] = []
        for first, last, outcome in self._settlements:
            if outcome > REJECT:
                continue  # A start gives back all that was out.
            for begin in range(first, last + 1, ONE_PIECE_MOST):
                claimed = self._channel.claimed(begin, min(last, begin + ONE_PIECE_MOST - 1), outcome)
                found += [(queue, seq, outcome) for queue, seq in claimed if queue.durable]
                yield
        return found

    def _carry_out(self) -> None:
        """Carry out the decision, which is on disk."""
        if self._stage != DECIDED:
            return  # It was carried out when the channel went.
        self._stage = STORING
        self._work = self._store_and_settle()
        if not self._left and do_first_piece(self._work) is None:
            do_in_pieces(self._connection, self._work)

    def _store_and_settle(self) -> Iterator[None]:
        """Where the disk is full, go on when there is room again."""
        assert self._stores is not None
        node = self._connection.node
        work = self._stores.in_pieces(self._note_stored, sync=self._entry is None)
        try:
            if self._is_large:
                yield from work
            else:
                for _ in work:
                    pass  # Its messages stand side by side.
        except OSError as error:
            self._stage = DECIDED
            node.storage_failed(error.errno or 0)
            if self._left:
                self._leave_to_next_start(error)
            node.blocked.add(self)
            return
        self._stage = SETTLING
        yield from self._settle_in_pieces()

    def _note_stored(self, count: int) -> None:
        if self._entry is None:
            self._commit_log.mark_stored(count)
            return
        shared = self._connection.access.vhost.commit_log
        if shared is not None:
            shared.mark_stored(self._entry, count)

    def _settle_in_pieces(self) -> Iterator[None]:
        channel = self._channel
        for first, last, outcome in self._settlements:
            for begin in range(first, last + 1, SETTLED_AT_ONCE):
                end = min(last, begin + SETTLED_AT_ONCE - 1)
                channel.settle_claimed(begin, end, last, outcome, requeue=CAUSES.get(outcome, 0),
                                       reject=outcome == REJECT)  # fmt: skip
                yield
        self._settled()

    def _settled(self) -> None:
        """All is carried out: answer, once that is on disk."""
        node = self._connection.node
        self._stage = STORED
        if self._entry is not None:
            shared = self._connection.access.vhost.commit_log
            if shared is not None:
                shared.mark_applied(self._entry)
            self._done()
            return
        self._commit_log.mark_applied()
        assert self._stores is not None
        if any(queue.durable for queue in self._stores.queues):
            node.commit.wait(self._done)
        else:
            self._done()

    def unblock(self) -> None:
        """Go on: there is room again.  The alarms call this, as they do for a blocked connection."""
        self._connection.node.blocked.discard(self)
        self._carry_out()
        if self._left:
            add_work(self._connection.node.core, self._work, lambda: None)

    def _done(self) -> None:
        """Answer the commit, which is on disk, and go on with what came since."""
        connection, number = self._connection, self._channel.number
        refused = self._stores is not None and self._stores.refused
        if self._commit_log.remove():
            # The removal must reach the disk soon: a start would carry out a commit log that came back.
            connection.node.commit.sync_directory(connection.access.vhost.directory)
            connection.node.commit.wait(lambda: None)
        self._begin()
        self._end_rest()
        if self._left:
            if (connection.channels or {}).get(number) is self._channel:
                self._go_on()  # The client may have closed the channel, as the broker did.
            return
        if refused:
            connection.on_error(number, PreconditionFailed("partial tx completion"), _COMMIT >> 16, _COMMIT & 0xFFFF)
        else:
            connection.write(method_frame(number, _COMMIT_OK_PAYLOAD))
        self._go_on()

    def _end_rest(self) -> None:
        if self._rests:
            self._rests = False
            self._connection.go_on()

    def _go_on(self) -> None:
        """Handle what the client sent before the commit was answered, as if it came now."""
        if self._going_on:
            return  # One of these was a commit that was answered at once.
        self._going_on = True
        piece = Piece()
        connection, number = self._connection, self._channel.number
        while self._deferred and not self.under_way:
            payloads = self._deferred.popleft()
            index = int.from_bytes(payloads[0][:4])
            channel = connection.channels.get(number)
            if channel is self._channel and self._left and index not in _CLOSES:
                continue  # Behind the channel's end nothing counts.
            try:
                if len(payloads) == 1:
                    connection.on_method(number, payloads[0])
                else:
                    publish(connection, number, *payloads)
            except NotAnsweredYet as missing:
                self._deferred.appendleft(payloads)
                connection.await_permission(missing, self._go_on)
                break
            except Exception as error:  # The data plane does the same with an error of an upcall.
                connection.on_error(number, error, index >> 16, index & 0xFFFF)
            if self._deferred and not self.under_way and piece.is_over():
                do_in_pieces(connection, self.go_on_after(iter(())))
        self._going_on = False
        if self._closes and not self.under_way and not self._deferred:
            self._closes = False
            connection.close_by_client()

    def go_on_after(self, work: Iterator[None]) -> Iterator[None]:
        """Work of a method that came behind a commit: what came behind that method waits for it."""
        self._works = True
        return self._work_and_go_on(work)

    def _work_and_go_on(self, work: Iterator[None]) -> Iterator[None]:
        try:
            yield from work
        finally:
            self._works = False
        self._go_on()

    def leave(self, *, connection_closes: bool = False) -> Iterator[None]:
        """End with the channel: an open transaction is dropped, a decided one is carried out, in pieces.

        Nothing that the client sent behind its commit counts any more, but that it closed the channel too.
        """
        self._left = True
        if self._stores is not None:
            self._stores.channel_left = True
        if connection_closes:
            self._deferred.clear()
            self._closes = False
        self._connection.node.blocked.discard(self)
        self._end_rest()
        if self._stage == OPEN or self._stage == DECIDING:
            self.rollback()
        elif self._stage == DECIDED:
            try:
                if self._connection.node.settings.sync:
                    self._sync_decision()
            except OSError as error:
                self._leave_to_next_start(error)
                return
            self._carry_out()
        if self._stage in (STORING, SETTLING):  # Work that had begun goes on here: deliveries must not return before.
            yield from self._work

    def _sync_decision(self) -> None:
        """Have the decision on disk now.  A sync of it may be under way: that it has begun says nothing.

        One sync of the shared log covers all channels that go with their connection.  Raises OSError.
        """
        if self._entry is None:
            if not self._commit_log.in_memory:
                self._commit_log.sync()
        elif self._entry.at >= self._entry.file.synced:
            self._entry.file.sync()

    def _leave_to_next_start(self, error: OSError) -> None:
        self._hold(-self._held)
        shared = self._connection.access.vhost.commit_log
        if self._entry is not None and shared is not None:
            shared.leave(self._entry)
        log.error("%s: a transaction is committed, but stored only when there is room, or at the next start: %s",
                  self._connection, error)  # fmt: skip


def publish(connection: "Connection", number: int, method: bytes, header: bytes, body: bytes) -> None:
    """Handle a publish on channel ``number``, which was transactional when the publish came."""
    channel = (connection.channels or {}).get(number)
    if channel is None or channel.transaction is None:
        raise ChannelStateError("basic.publish behind the end of its transactional channel")
    channel.transaction.publish(method, header, body)


def publish_when_known(connection: "Connection", number: int, method: bytes, header: bytes, body: bytes) -> None:
    """The same, but where it must be asked whether the client may do it, the publish waits here for the answer."""
    try:
        publish(connection, number, method, header, body)
    except NotAnsweredYet as missing:
        connection.await_permission(missing, partial(_publish_again, connection, number, method, header, body))


def _publish_again(connection: "Connection", number: int, method: bytes, header: bytes, body: bytes) -> None:
    channel = (connection.channels or {}).get(number)
    if channel is None or channel.left:
        return  # It was closed meanwhile.
    try:
        publish_when_known(connection, number, method, header, body)
    except Exception as error:  # The data plane does the same with an error of an upcall.
        connection.on_error(number, error, *divmod(methods.BasicPublish.INDEX, 1 << 16))

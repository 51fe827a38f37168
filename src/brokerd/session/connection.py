"""A client's connection: it passes each method to its handler, and turns errors into close methods.

    octets -> plane.Connection -> on_method(channel, payload) -> handler -> reply
                               -> on_error(channel, error)    -> channel.close or connection.close

Only here does an error become a close method.  After the broker has sent connection.close, nothing but close and
close-ok counts.  ``tick`` ends what takes too long, and sends and expects heartbeats, so that no connection needs a
timer.  Knows a transport that can close and abort, but no socket.
"""

from collections.abc import Callable, Generator, Iterator
from functools import partial
from logging import DEBUG, INFO, getLogger
from typing import TYPE_CHECKING, Any, Protocol

from brokerd import plane
from brokerd.errors import (
    AMQPError,
    ChannelStateError,
    CommandInvalid,
    FrameError,
    InternalError,
    NotAllowed,
    NotAnsweredYet,
)
from brokerd.pieces import do_first_piece, do_from_now, do_in_pieces
from brokerd.session import basic, handshake, topology, transactions
from brokerd.session.channel import Channel
from brokerd.session.handshake import CLOSED, CLOSING, HANDSHAKE, REFUSED, RUNNING, WAITING
from brokerd.vhost.events import INTERNAL_USER
from brokerd.wire import methods
from brokerd.wire.frames import HEARTBEAT_FRAME, method_frame

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.queues.queue import Queue
    from brokerd.session.grants import Grant
    from brokerd.session.internal import Everything
    from brokerd.vhost.access import Access
    from brokerd.vhost.vhost import VHost

log = getLogger("brokerd.session")

CLOSE_SECONDS = 10  # how long a client may take to answer connection.close
LINGER_SECONDS = 1.0  # how long the broker still reads from a client after its last words

CONNECTION_CLOSE = methods.ConnectionClose.INDEX
CONNECTION_CLOSE_OK = methods.ConnectionCloseOk.INDEX
CHANNEL_OPEN = methods.ChannelOpen.INDEX
CHANNEL_CLOSE = methods.ChannelClose.INDEX
CHANNEL_CLOSE_OK = methods.ChannelCloseOk.INDEX
BASIC_GET = methods.BasicGet.INDEX
UPDATE_SECRET = methods.ConnectionUpdateSecret.INDEX
CONNECTION_CLOSE_OK_FRAME = method_frame(0, CONNECTION_CLOSE_OK.to_bytes(4))
CHANNEL_OPEN_OK = methods.ChannelOpenOk.INDEX.to_bytes(4) + bytes(4)  # an empty long string
CHANNEL_OPEN_PAYLOAD = CHANNEL_OPEN.to_bytes(4) + b"\0"  # as clients send it: an empty short string
CHANNEL_CLOSE_OK_PAYLOAD = CHANNEL_CLOSE_OK.to_bytes(4)

DEFINING = (40, 50)  # classes exchange and queue: their replies say that something is there
HANDLERS = {methods.BY_NAME[name].INDEX: handler for name, handler in {**topology.HANDLERS, **basic.HANDLERS}.items()}


class Transport(Protocol):
    """The transport of a connection, as far as the connection uses it."""

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def can_write_eof(self) -> bool: ...
    def write_eof(self) -> None: ...


class Connection(plane.Connection):
    """One client.  ``peer`` is its address for people to read; ``loopback`` whether it is on this machine."""

    __slots__ = (
        "access", "after_leaving", "awaited_syncs", "blocked", "capabilities", "certificate_name", "channel_max",
        "client_closes", "client_properties", "deadline", "grant", "heartbeat", "leaving", "left", "loopback", "node",
        "opened_ns", "own_queues", "peer", "refusal", "relies_on", "seen_received", "seen_sent", "silent_in",
        "silent_out", "state", "transport", "user",
    )  # fmt: skip

    on_local_socket = False  # whether the client came over a unix socket, and no proxy brought it
    access: "Access"  # None until connection.open
    channels: "dict[int, Channel]"  # type: ignore[assignment]  # None until the first; all made here
    transport: Transport  # None once the socket is gone

    def __init__(self, core: plane.Core, node: "Node") -> None:
        super().__init__(core)
        self.node = node
        self.state = WAITING
        self.deadline = node.clock.monotonic() + node.limits.handshake_timeout_seconds  # of the present state
        self.access = None  # type: ignore[assignment]
        self.transport = None  # type: ignore[assignment]
        self.peer = "?"
        self.loopback = False
        self.user = ""
        self.grant: Grant | Everything | None = None  # None: what the user may do is in permissions.json
        self.certificate_name = ""  # who a verified TLS certificate says it is
        self.client_properties = b""  # a field table, as it came
        self.capabilities = 0
        self.channel_max = 0
        self.heartbeat = 0  # seconds; 0: none
        self.opened_ns = 0
        self.own_queues: set[Queue] | None = None  # exclusive ones
        self.leaving: Iterator[None] | None = None  # the work of leave()
        self.left = False  # which is done
        self.after_leaving: Callable[[], None] | None = None
        self.refusal: AMQPError | None = None
        self.blocked = False
        self.client_closes = False  # and not the broker: it has its close-ok
        self.awaited_syncs = 0  # output waits for these
        self.relies_on = 0  # entries of the vhost's log that the reply under way says are there
        self.seen_received = self.seen_sent = 0
        self.silent_in = self.silent_out = 0  # ticks without octets

    # --- what the data plane asks

    def on_protocol_header(self, octets: bytes) -> None:
        """Handle the first eight octets, or a second header later on.  (The plane itself answers 501.)"""
        if self.state is WAITING:
            handshake.accept_header(self, octets)
        else:
            raise CommandInvalid("unexpected protocol header")

    def on_method(self, channel: int, payload: bytes) -> None:
        """Handle a method that the data plane does not handle itself."""
        index = int.from_bytes(payload[:4])
        if not channel or self.state is not RUNNING:
            self._connection_method(channel, index, payload)
            return
        opened = (self.channels or {}).get(channel)
        if opened is None:
            self._unopened_channel_method(channel, index, payload)
            return
        if opened.transaction is not None and opened.transaction.under_way:
            opened.transaction.defer(payload)
            return
        vhost = self.access.vhost
        appended = vhost.appended
        self.relies_on = appended if index >> 16 in DEFINING else 0
        if index == BASIC_GET:
            reply = basic.get(self, opened, payload)
        else:
            handler = HANDLERS.get(index)
            if handler is None:
                self._channel_method(opened, index, payload)
                return
            reply = handler(self, opened, methods.decode_bounded(payload))
        # The reply also waits for another client's definition: that of the same queue, declared just now.
        if vhost.appended != vhost.on_disk and (vhost.appended != appended or self.relies_on > vhost.on_disk):
            self._hold_until_on_disk()
        if reply is not None:
            self.write(reply.frame(channel))

    def on_publish(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        """A publish on a transactional channel, whole."""
        transactions.publish_when_known(self, channel, method, header, body)

    def on_error(self, channel: int, error: Exception, class_id: int, method_id: int) -> None:
        """Turn an error in the client's octets into a close method and a line in the log.

        NotAnsweredYet is not an error: the method that led to it comes again when the answer is there.
        """
        if isinstance(error, NotAnsweredYet):
            self.await_permission(error)
            return
        if not isinstance(error, AMQPError):
            log.error("%s: internal error in method %d.%d", self, class_id, method_id, exc_info=error)
            error = InternalError("")
        opened = None if error.hard or not self.channels else self.channels.get(channel)
        if opened is None:
            self.shut(error, class_id, method_id)
            return
        log.info("%s: channel %d closed: %s", self, channel, error.args[0])
        opened.closing = True
        self.write(_close(methods.ChannelClose, error, class_id, method_id).frame(channel))
        self._do(opened, self._end_channel(opened))

    def await_permission(self, missing: NotAnsweredYet, then: Callable[[], object] | None = None) -> None:
        """Have it found out what decides about a request, and rest meanwhile.  Then ``then()`` is called; None: the
        data plane comes again with the method or publish."""
        node = self.node

        def answered() -> None:
            if then is not None and not self.discard:
                then()
            self.answered()
            node.core.turn()

        self.await_answer(comes_again=then is None)
        missing.find_out(node, answered)

    def on_publisher_blocked(self) -> None:
        """Tell the client, once, that it is blocked.  The data plane reads no more from it."""
        if self.blocked or self.state is not RUNNING:
            return
        self.blocked = True
        if self.capabilities & handshake.NOTIFIES_BLOCKED:
            self.write(methods.ConnectionBlocked(reason=self.node.alarm_reason).frame(0))
        self.node.blocked.add(self)

    def unblock(self) -> None:
        """There is room again."""
        if not self.blocked:
            return
        self.blocked = False
        self.silent_in = 0
        self.node.blocked.discard(self)
        if self.state is RUNNING and self.capabilities & handshake.NOTIFIES_BLOCKED:
            self.write(methods.ConnectionUnblocked().frame(0))
        super().unblock()

    def on_consumer_cancelled(self, consumer: plane.Consumer) -> None:
        """Tell the client that a consumer's queue was deleted, if it asked to be told (RabbitMQ's extension)."""
        if self.state is RUNNING and self.capabilities & handshake.NOTIFIES_CANCEL:
            tag = consumer.tag.decode("utf-8", "surrogateescape")
            self.write(methods.BasicCancel(consumer_tag=tag, no_wait=True).frame(consumer.channel.number))

    # --- methods

    def _connection_method(self, channel: int, index: int, payload: bytes) -> None:
        """Handle channel 0, and everything before connection.open and after connection.close."""
        if index == CONNECTION_CLOSE:
            self.close_by_client()
        elif self.state is CLOSING or self.state is CLOSED or self.state is REFUSED:
            if index == CONNECTION_CLOSE_OK and self.state is CLOSING:
                self.disconnect()
        elif (self.state, index) in HANDSHAKE and not channel:
            HANDSHAKE[self.state, index](self, payload)
        elif self.state is RUNNING and index == UPDATE_SECRET and not channel:
            handshake.update_secret(self, methods.decode(payload))
        else:
            methods.decode_bounded(payload)
            raise ChannelStateError(f"unexpected method in connection state {self.state}")

    def _unopened_channel_method(self, number: int, index: int, payload: bytes) -> None:
        """Open a channel.  A close-ok may come late, after both sides have closed at the same time."""
        if index == CHANNEL_CLOSE_OK:
            return
        if index != CHANNEL_OPEN:
            methods.decode_bounded(payload)
            raise ChannelStateError("expected 'channel.open'")
        if payload != CHANNEL_OPEN_PAYLOAD:
            methods.decode(payload)
        count = len(self.channels or ())
        if count >= self.channel_max:  # The number may be higher (RabbitMQ): some clients number upwards for ever.
            raise NotAllowed(
                f"number of channels opened ({count}) has reached "
                f"the negotiated channel_max ({self.channel_max})"
            )
        self.node.check_channel_limit(self.user)
        channel = Channel(self, number)
        self.node.events.counts["channel_created"] += 1
        if self.node.events.wanted:
            self.node.events.channel_created(channel)
        self.write(method_frame(number, CHANNEL_OPEN_OK))

    def _channel_method(self, channel: Channel, index: int, payload: bytes) -> None:
        """Handle the methods that end or begin a channel, and refuse those that only a server sends."""
        if index == CHANNEL_CLOSE:
            self._do(channel, self._close_channel(channel))
        elif index == CHANNEL_CLOSE_OK:
            if channel.closing:
                channel.close()
        elif index == CHANNEL_OPEN:
            raise ChannelStateError("second 'channel.open' seen")
        else:
            methods.decode_bounded(payload)
            raise CommandInvalid("unimplemented method")

    def _end_channel(self, channel: Channel) -> Iterator[None]:
        queues = yield from channel.leave()
        yield from self.access.auto_delete_queues(queues)

    def _close_channel(self, channel: Channel) -> Iterator[None]:
        yield from self._end_channel(channel)
        if self.state is RUNNING:
            channel.close()
            self.write(method_frame(channel.number, CHANNEL_CLOSE_OK_PAYLOAD))

    @property
    def client_property_table(self) -> dict[str, Any]:
        """The client's properties, decoded."""
        from brokerd.wire.values import decode_table

        return decode_table(self.client_properties)[0] if self.client_properties else {}

    def close_by_client(self) -> None:
        """connection.close: it comes behind the commits that were sent before it, and what waits for their answers."""
        if self.state is RUNNING:
            for channel in (self.channels or {}).values():
                if channel.transaction is not None and channel.transaction.under_way:
                    self.discard = True  # Behind the close nothing counts.
                    channel.transaction.defer_close()
                    return
            self.leave(self._close_after_leaving)
        else:
            self._answer_close()

    def _close_after_leaving(self) -> None:
        if self.state is not CLOSED:  # cut off meanwhile
            self._answer_close()

    def _answer_close(self) -> None:
        self.write(CONNECTION_CLOSE_OK_FRAME)
        self.disconnect(client_closes=True)

    # --- work that may take long

    def answer_when_done(
        self, channel: Channel, method: Any, work: Generator[None, None, Any], answer: Callable[[Any], Any], *,
        no_wait: bool = False,
    ) -> Any:  # fmt: skip
        """Do the work of a method.  Returns ``answer(its result)``; None with ``no_wait``: the client wants no answer.

        Work that takes longer than one piece goes on in the next turns, while this client rests.  Then None is
        returned too, and the answer is written when it is done.  Raises what the work raises in its first piece.
        """
        end = do_first_piece(work)
        if end is not None:
            return None if no_wait else answer(end.value)
        self._do_rest(channel, self._finish_and_answer(channel, method, work, None if no_wait else answer))
        return None

    def _do(self, channel: Channel, work: Iterator[None]) -> None:
        """Do work of a channel that should raise nothing.  What takes longer than one piece goes on in the next turns,
        while this client rests."""
        if do_first_piece(work) is None:
            self._do_rest(channel, work)

    def _do_rest(self, channel: Channel, work: Iterator[None]) -> None:
        transaction = channel.transaction
        if transaction is not None and transaction.going_on:  # What waited for a commit waits for this work, too.
            work = transaction.go_on_after(work)
        do_in_pieces(self, work)

    def _finish_and_answer(
        self, channel: Channel, method: Any, work: Generator[None, None, Any], answer: Callable[[Any], Any] | None
    ) -> Iterator[None]:
        try:
            result = yield from work
        except Exception as error:  # The data plane does the same with an error of a handler.
            if not channel.left:
                self.on_error(channel.number, error, method.INDEX >> 16, method.INDEX & 0xFFFF)
            return
        if channel.left:  # with the connection
            return
        vhost = self.access.vhost
        if vhost.appended != vhost.on_disk:
            self._hold_until_on_disk()
        reply = None if answer is None else answer(result)
        if reply is not None:
            self.write(reply.frame(channel.number))

    # --- definitions and their sync

    def _hold_until_on_disk(self) -> None:
        """Hold the reply, and all output behind it, until the definitions written so far are on disk."""
        self.awaited_syncs += 1
        self.hold()
        vhost = self.access.vhost
        self.node.commit.wait(partial(self._on_disk, vhost, vhost.appended), vhost.log)

    def _on_disk(self, vhost: "VHost", appended: int) -> None:
        vhost.entries_on_disk(appended)
        self.awaited_syncs -= 1
        self.release()
        if not self.awaited_syncs and self.state is CLOSED:
            self.node.later(self._end)

    # --- the end

    def own(self, queue: "Queue") -> None:
        """Note an exclusive queue, which ends with this connection."""
        if self.own_queues is None:
            self.own_queues = set()
        self.own_queues.add(queue)

    def disown(self, queue: "Queue") -> None:
        """Forget an exclusive queue that is deleted."""
        if self.own_queues is not None:
            self.own_queues.discard(queue)

    def leave(self, then: Callable[[], None] | None = None) -> None:
        """Begin to return all messages to their places, and to delete exclusive queues, and auto-delete queues that
        lose their last consumer, in pieces.  Nothing more of what the client sends counts.

        ``then`` is called when that is done.  It takes the place of one that was given before.
        """
        self.after_leaving = then or self.after_leaving
        if self.leaving is not None:
            if self.left:
                self._on_left()
            return
        self.discard = True
        self.leaving = self._leave()
        do_from_now(self.node.core, self.leaving, self._on_left)  # The connection ends, even if that raises.

    def finish_leaving(self) -> None:
        """Do what is left of ``leave()`` in one go."""
        for _ in self.leaving or ():
            pass

    def _leave(self) -> Iterator[None]:
        queues: list[Queue] = []
        for channel in list(self.channels.values()) if self.channels else ():
            queues += yield from channel.leave(connection_closes=True)
            yield
        if self.own_queues:
            yield from self.access.delete_exclusive_queues(self.own_queues)
            self.own_queues = None
        if queues:
            yield from self.access.auto_delete_queues(queues)

    def _on_left(self) -> None:
        self.left = True
        then, self.after_leaving = self.after_leaving, None
        if then is not None:
            then()

    def opened(self) -> None:
        """Begin to work: the handshake is done."""
        self.state = RUNNING
        self.deadline = 0.0
        self.opened_ns = self.node.clock.epoch_ns()
        client = handshake.read_client(self.client_properties)
        log.log(self._log_level, "%s: opened%s", self, "" if client.name is None else f" ({client.name})")
        self.node.events.counts["connection_created"] += 1
        if self.node.events.wanted:
            self.node.events.connection_created(self)
        log.debug("%s: %s %s, %s", self, *client.program)

    def refuse(self, error: AMQPError) -> None:
        """Refuse the client at the next tick, which makes guessing slow."""
        self.discard = True
        self.refusal = error
        self.state = REFUSED

    def shut(self, error: AMQPError, class_id: int = 0, method_id: int = 0) -> None:
        """Close the connection with ``error``, once."""
        if self.state is CLOSING or self.state is CLOSED:
            return
        self.leave()
        log.warning("%s: closed: %s", self, error.reply_text)
        if self.blocked:
            self.unblock()
        self.write(_close(methods.ConnectionClose, error, class_id, method_id).frame(0))
        self.state = CLOSING
        # Behind octets that are no frame, the client's close-ok cannot be found.
        self.deadline = self.node.clock.monotonic() + (1 if isinstance(error, FrameError) else CLOSE_SECONDS)

    def disconnect(self, *, client_closes: bool = False) -> None:
        """Send what was written and nothing more, then read until the client ends, or for a second.

        A client may have sent more behind its close, such as acks from a buffer.  A socket closed at once would answer
        that with a reset, which Node's amqplib takes for a fault.  ``client_closes``: it closes its socket as soon as
        it has read the answer.  If the broker ended its own side first, Go's client would report that as a fault
        (RabbitMQ waits too).
        """
        self.client_closes = client_closes
        self.state = CLOSED
        self.discard = True
        waits = self.awaited_syncs or self.output_waits
        self.deadline = self.node.clock.monotonic() + (CLOSE_SECONDS if waits else LINGER_SECONDS)
        if not self.awaited_syncs:
            self.node.later(self._end)

    def _end(self) -> None:
        if self.transport is None or self.ended or self.output_waits:
            return  # resume_writing() comes back to the latter.
        self.deadline = self.node.clock.monotonic() + LINGER_SECONDS
        if self.client_closes and not self.node.stopping:
            self.deadline += CLOSE_SECONDS
        elif self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def resume_writing(self) -> None:
        """The transport has sent what it had.  A client that closes now gets the answer to that behind it."""
        ends = self.state is CLOSED and self.output_waits and not self.awaited_syncs
        super().resume_writing()
        if ends:
            self._end()

    def lost(self) -> None:
        """Clean up after a socket that is gone.  What came before that still counts.

        A commit that is not decided yet does not, nor does what its channel sent behind it.
        """
        if self.finish_octets():
            self.on_octets_finished()

    def on_octets_finished(self) -> None:
        """All octets that came before the socket was gone have been worked on."""
        closed_properly = self.state is not RUNNING
        self.state = CLOSED
        self.leave(partial(self.on_gone, closed_properly))

    def on_gone(self, closed_properly: bool) -> None:
        """The socket is gone, and what hung on the connection too."""
        self.blocked = False
        self.node.blocked.discard(self)
        self.detach()
        if self.grant is not None:
            self.grant.end()
        if not self.opened_ns:
            return
        self.node.events.counts["connection_closed"] += 1
        if self.node.events.wanted:
            self.node.events.connection_closed(self)
            self.node.core.turn()
        seconds = (self.node.clock.epoch_ns() - self.opened_ns) / 1e9
        if closed_properly or self.user == INTERNAL_USER:
            log.log(self._log_level, "%s: closed after %.1f s", self, seconds)
        else:
            log.warning("%s: lost after %.1f s: the client went without connection.close", self, seconds)

    @property
    def _log_level(self) -> int:
        return DEBUG if self.user == INTERNAL_USER else INFO  # Links tell what they do themselves.

    @property
    def address(self) -> str:
        """The client's address without the port."""
        return self.peer.rpartition(":")[0] or self.peer

    # --- memory that it holds

    def held_memory(self) -> int:
        """Octets of output that waits for the client, and of messages that it has begun."""
        return self.held_octets + self.transport.get_write_buffer_size()

    def moved_octets(self) -> int:
        """Octets that came from the client or went to it, ever."""
        return self.received_octets + self.sent_octets - self.transport.get_write_buffer_size()

    def cut_off(self) -> None:
        """End the connection at once."""
        self.leave()
        self.state = CLOSED
        self.transport.abort()

    # --- once a second

    def tick(self, now: float) -> None:
        """Send heartbeats and refusals, and cut off what takes too long; ``now`` is monotonic seconds."""
        if self.state is RUNNING:
            if self.heartbeat:
                self._beat()
        elif self.state is REFUSED:
            self._tell_refusal()
        elif now >= self.deadline and not self.yielded:
            if self.state is not CLOSED:
                log.warning("%s: no answer in connection state %s, cut off", self, self.state)
            self.transport.abort()

    def _beat(self) -> None:
        """Send a heartbeat after half an interval of silence; give up after two without octets (spec 4.2.7)."""
        received, sent = self.received_octets, self.sent_octets
        self.silent_in = 0 if received != self.seen_received or self.stopped else self.silent_in + 1
        self.silent_out = 0 if sent != self.seen_sent else self.silent_out + 1
        self.seen_received, self.seen_sent = received, sent
        if self.silent_in > 2 * self.heartbeat:
            log.warning("%s: missed heartbeats from client, timeout: %ds", self, self.heartbeat)
            self.leave()
            self.state = CLOSED
            self.transport.abort()
        elif 2 * self.silent_out >= self.heartbeat:
            self.write(HEARTBEAT_FRAME)

    def _tell_refusal(self) -> None:
        error, self.refusal = self.refusal, None
        assert error is not None
        if handshake.tells_refusal(self, error):
            self.shut(error, 10, 11)
        else:
            self.disconnect()

    def __str__(self) -> str:
        if self.access is None:
            return self.peer
        return f"{self.peer} {self.user} {self.access.vhost.name}"


def _close(cls: Any, error: AMQPError, class_id: int, method_id: int) -> Any:
    return cls(reply_code=error.reply_code, reply_text=error.reply_text, class_id=class_id, method_id=method_id)

"""A client that says any octets and sees any: a socket, frames, nothing that protects either side.

    peer = Peer(port).open()
    assert peer.ask(methods.QueueDeclare(queue="q")) == methods.QueueDeclareOk(queue="q")

Waits for what comes next, never for time to pass.
"""

import contextlib
import os
import socket
import time
from typing import Any, NamedTuple

import pytest
from tests.conversations.differences import DIFFERENCES

from brokerd.wire import methods
from brokerd.wire.frames import (
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    PROTOCOL_HEADER,
    Frame,
    FrameScanner,
    body_frames,
    header_frame,
    method_frame,
)
from brokerd.wire.properties import Properties, decode_header, encode_header

# Set, the same conversations are held with another broker: "rabbitmq" (Debian's, started for the purpose) or
# HOST:PORT of one that runs.
OTHER = os.environ.get("BROKERD_TEST_PEER", "")
HOST = OTHER.rpartition(":")[0] or "127.0.0.1"
SECONDS = 15 if OTHER else 120  # limit of every wait: none is reached while all is well
ALL = {"consumer_cancel_notify": True, "connection.blocked": True, "authentication_failure_close": True,
       "basic.nack": True, "publisher_confirms": True}


def differs(row, *, always=True):
    """RabbitMQ answers otherwise, and so it stands in docs/compatibility.md: ``row`` is a key of DIFFERENCES.

    ``always`` is false where only some of a test's parameters differ, or chance has a part.
    """
    return pytest.mark.xfail(bool(OTHER), reason=f"{row}: {DIFFERENCES[row]}", strict=always)


def rabbitmq(reason, *, always=False):
    """RabbitMQ 3.10 answers otherwise than later ones, or as chance has it: nothing that brokerd decided."""
    return pytest.mark.xfail(bool(OTHER), reason=reason, strict=always)


ATTEMPTS = 50           # of what a busy machine may spoil


class Message(NamedTuple):
    """What basic.deliver, basic.get-ok or basic.return brought."""

    method: Any
    properties: Properties
    body: bytes

    @property
    def headers(self):
        return self.properties.headers or {}


def eventually(ask, wanted=bool):
    """What ``ask`` answers once ``wanted`` holds of it: asked again and again."""
    end = time.monotonic() + SECONDS
    while not wanted(answer := ask()):
        assert time.monotonic() < end, answer
        time.sleep(0.005)   # Nothing tells; a broker that is asked without end has less time for what is waited for.
    return answer


class Stalled(Exception):
    """The test's own process did not act as often as it meant to: the broker may answer as to a client that rests."""


class Pace:
    """``step`` does what a client must do at least every ``seconds``, and raises Stalled if that took longer."""

    def __init__(self, seconds):
        self.seconds, self.last = seconds, time.monotonic()

    def step(self, act):
        """What ``act`` returns.  The broker saw it after the step before began, and before this one ended."""
        begin = time.monotonic()
        try:
            return act()
        finally:
            last, self.last = self.last, begin
            if time.monotonic() - last > self.seconds:
                raise Stalled


def unless_stalled(attempt):
    """Do ``attempt`` until it is not Stalled."""
    for _ in range(ATTEMPTS):
        with contextlib.suppress(Stalled):
            return attempt()
    raise AssertionError("this machine is too busy")


def octets_of(*what):
    """Methods, on channel 1 unless as (channel, method) pairs, and octets, as octets."""
    octets = b""
    for each in what:
        if isinstance(each, bytes):
            octets += each
        else:
            channel, method = each if isinstance(each, tuple) else (1, each)
            octets += method.frame(channel)
    return octets


class Peer:
    """One connection.  ``open`` does the handshake and opens channel 1."""

    def __init__(self, port=None, *, path=None):
        """A TCP port, or the path of a unix socket."""
        if path is None:
            self.socket = socket.create_connection((HOST, port), SECONDS)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(SECONDS)
            self.socket.connect(str(path))
        self.scanner = FrameScanner()
        self.frames = []

    # --- octets

    def raw(self, octets):
        """Send octets as they are; a broker that has hung up already does not matter."""
        try:
            self.socket.sendall(octets)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def receive(self, limit=65536):
        """Octets as they come; b"" at the end."""
        try:
            return self.socket.recv(limit)
        except ConnectionResetError:
            return b""

    def frame(self):
        """The next frame that is no heartbeat; None when the broker has hung up."""
        while True:
            while self.frames:
                frame = self.frames.pop(0)
                if frame.kind != FRAME_HEARTBEAT:
                    return frame
            octets = self.receive()
            if not octets:
                return None
            self.frames += self.scanner.feed(octets)

    # --- methods

    def send(self, *what):
        """Methods, on channel 1 unless as (channel, method) pairs, and octets, in one write."""
        self.raw(octets_of(*what))

    def read(self):
        """The next method; None when the broker has hung up.  Its channel is in ``channel``."""
        frame = self.frame()
        if frame is None:
            return None
        assert frame.kind == FRAME_METHOD, frame
        self.channel = frame.channel
        return methods.decode(frame.payload)

    def ask(self, method, channel=1):
        """The reply to one method."""
        self.send((channel, method))
        reply = self.read()
        assert reply is None or self.channel == channel or isinstance(reply, methods.ConnectionClose), reply
        return reply

    def message(self):
        """What comes after a deliver, get-ok or return: (properties, body)."""
        size, properties = decode_header(self.frame().payload)
        body = b""
        while len(body) < size:
            body += self.frame().payload
        return properties, body

    def delivery(self):
        """The next basic.deliver with its body: (deliver, body)."""
        deliver = self.read()
        assert isinstance(deliver, methods.BasicDeliver), deliver
        return deliver, self.message()[1]

    def get(self, queue, *, no_ack=True):
        """(redelivered, body) of a message, or None."""
        reply = self.ask(methods.BasicGet(queue=queue, no_ack=no_ack))
        if isinstance(reply, methods.BasicGetEmpty):
            return None
        assert isinstance(reply, methods.BasicGetOk), reply
        return reply.redelivered, self.message()[1]

    # --- verbs of everyday, for conversations about something else

    def declare(self, arguments=None, queue="", **fields):
        """A queue that ends with this connection: its name."""
        method = methods.QueueDeclare(**{"queue": queue, "exclusive": True, "arguments": arguments or {}} | fields)
        reply = self.ask(method)
        assert isinstance(reply, methods.QueueDeclareOk), reply
        return reply.queue

    def bind(self, queue, exchange, routing_key="", **arguments):
        """queue.bind, done."""
        method = methods.QueueBind(queue=queue, exchange=exchange, routing_key=routing_key, arguments=arguments)
        assert self.ask(method) == methods.QueueBindOk()

    def exchange(self, kind="direct", arguments=None, **fields):
        """An exchange that goes with its last binding: its name."""
        name = fields.pop("exchange", f"x.{kind}.{time.monotonic_ns()}")
        reply = self.ask(methods.ExchangeDeclare(
            **{"exchange": name, "type": kind, "auto_delete": True, "arguments": arguments or {}} | fields))
        assert reply == methods.ExchangeDeclareOk(), reply
        return name

    def consume(self, queue, tag="t", channel=1, no_ack=False, **fields):
        """basic.consume, done."""
        method = methods.BasicConsume(queue=queue, consumer_tag=tag, no_ack=no_ack, **fields)
        assert self.ask(method, channel) == methods.BasicConsumeOk(consumer_tag=tag)

    def prefetch(self, count, channel=1):
        """basic.qos, done."""
        assert self.ask(methods.BasicQos(prefetch_count=count), channel) == methods.BasicQosOk()

    def confirming(self):
        """confirm.select, done."""
        assert self.ask(methods.ConfirmSelect()) == methods.ConfirmSelectOk()
        self.settled = 0    # tags of publishes, up to which all are confirmed
        return self

    def put(self, routing_key, body=b"m", **fields):
        """Publish on channel 1, which confirms, and wait: whether it was acked.  What comes meanwhile waits too."""
        return self.put_all([publish(routing_key, body, **fields)]) == [True]

    def put_all(self, publishes):
        """Publish all in one write and wait for all confirms: whether each was acked."""
        self.send(*publishes)
        first = self.settled + 1
        last = self.settled + len(publishes)
        verdicts, held = {}, []
        while len(verdicts) < len(publishes):
            frame = self.frame()
            assert frame is not None
            method = methods.decode(frame.payload) if frame.kind == FRAME_METHOD and frame.channel == 1 else None
            assert not isinstance(method, methods.ChannelClose), method
            if isinstance(method, methods.BasicAck | methods.BasicNack):
                begin = first if method.multiple else method.delivery_tag
                for tag in range(begin, method.delivery_tag + 1):
                    verdicts.setdefault(tag, isinstance(method, methods.BasicAck))
            else:
                held.append(frame)
        self.frames[:0] = held
        self.settled = last
        return [verdicts[tag] for tag in range(first, last + 1)]

    def delivered(self):
        """The next basic.deliver, whole."""
        deliver = self.read()
        assert isinstance(deliver, methods.BasicDeliver), deliver
        return Message(deliver, *self.message())

    def got(self, queue, *, no_ack=True):
        """A message taken with basic.get, whole; None when there is none."""
        reply = self.ask(methods.BasicGet(queue=queue, no_ack=no_ack))
        if isinstance(reply, methods.BasicGetEmpty):
            return None
        assert isinstance(reply, methods.BasicGetOk), reply
        return Message(reply, *self.message())

    def arrived(self, queue, *, no_ack=True):
        """A message that is on its way to the queue, taken."""
        return eventually(lambda: self.got(queue, no_ack=no_ack), lambda message: message is not None)

    def bodies(self, queue):
        """The bodies of all that is ready, taken."""
        return [message.body for message in iter(lambda: self.got(queue), None)]

    def count(self, queue):
        """(ready messages, consumers)."""
        reply = self.ask(methods.QueueDeclare(queue=queue, passive=True))
        assert isinstance(reply, methods.QueueDeclareOk), reply
        return reply.message_count, reply.consumer_count

    # --- handshake

    def start(self, capabilities=ALL):
        """The protocol header; connection.start."""
        self.capabilities = capabilities
        self.raw(PROTOCOL_HEADER)
        return self.read()

    def start_ok(self, mechanism="PLAIN", response=b"\0guest\0guest", properties=None):
        """connection.start-ok; what answers it."""
        if properties is None:
            properties = {"capabilities": self.capabilities}
        return self.ask(methods.ConnectionStartOk(
            client_properties=properties, mechanism=mechanism, response=response, locale="en_US"), 0)

    def tune_ok(self, channel_max=2047, frame_max=131072, heartbeat=0):
        """connection.tune-ok, which has no answer."""
        self.send((0, methods.ConnectionTuneOk(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)))

    def open(self, vhost="/", capabilities=ALL, response=b"\0guest\0guest", **limits):
        """The whole handshake, and channel 1."""
        self.start(capabilities)
        assert isinstance(self.start_ok(response=response), methods.ConnectionTune)
        self.tune_ok(**limits)
        assert isinstance(self.ask(methods.ConnectionOpen(virtual_host=vhost), 0), methods.ConnectionOpenOk)
        return self.open_channel(1)

    def open_at_once(self, heartbeat):
        """The whole handshake in one write, so that the client may be slow: the silence that the broker measures
        begins with its last octet.  Up to connection.open-ok."""
        self.raw(PROTOCOL_HEADER)
        self.send((0, methods.ConnectionStartOk(mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US")),
                  (0, methods.ConnectionTuneOk(channel_max=2047, frame_max=131072, heartbeat=heartbeat)),
                  (0, methods.ConnectionOpen(virtual_host="/")))
        while not isinstance(reply := self.read(), methods.ConnectionOpenOk):
            assert isinstance(reply, methods.ConnectionStart | methods.ConnectionTune), reply
        return self

    def open_channel(self, number):
        """One more channel."""
        assert isinstance(self.ask(methods.ChannelOpen(), number), methods.ChannelOpenOk)
        return self

    # --- ends

    def channel_close(self, channel=1):
        """(code, text) of the channel.close that comes next; the channel is opened again."""
        close = self.read()
        assert isinstance(close, methods.ChannelClose), close
        assert self.channel == channel
        self.send((channel, methods.ChannelCloseOk()))
        self.open_channel(channel)
        return close.reply_code, close.reply_text

    def connection_close(self):
        """(code, text) of the connection.close that comes next; then the broker hangs up."""
        close = self.read()
        assert isinstance(close, methods.ConnectionClose), close
        assert self.channel == 0
        self.send((0, methods.ConnectionCloseOk()))
        self.end()
        return close.reply_code, close.reply_text

    def refusal(self, method, channel=1):
        """(code, text) of the channel.close that answers ``method``."""
        self.send((channel, method))
        return self.channel_close(channel)

    def close(self):
        """connection.close, answered."""
        assert isinstance(self.ask(methods.ConnectionClose(reply_code=200, reply_text="bye"), 0),
                          methods.ConnectionCloseOk)
        self.end_writing()  # The broker leaves it to the client to end the connection.
        self.end()

    def end_writing(self):
        """Nothing more comes from here; what the broker has to say can still be read."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def end(self):
        """The broker hangs up, and has nothing more to say."""
        if OTHER:  # RabbitMQ leaves it to the client at times.
            self.end_writing()
        assert self.read() is None
        self.hang_up()

    def hang_up(self):
        """Go without a word."""
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hang_up()


def content(body, channel=1, class_id=60, size=None, **properties):
    """Header and body frames of a message."""
    header = encode_header(len(body) if size is None else size, Properties(**properties))
    if class_id != 60:
        header = class_id.to_bytes(2) + header[2:]
    return header_frame(channel, header) + (body_frames(channel, body, 131072) if body else b"")


def publish(routing_key, body=b"m", exchange="", channel=1, mandatory=False, immediate=False, **properties):
    """basic.publish with its content."""
    method = methods.BasicPublish(exchange=exchange, routing_key=routing_key, mandatory=mandatory, immediate=immediate)
    return method.frame(channel) + content(body, channel, **properties)


def frame(kind, channel, payload, end=0xCE):
    """Any frame."""
    return bytes([kind]) + channel.to_bytes(2) + len(payload).to_bytes(4) + payload + bytes([end])


__all__ = [
    "Frame", "Message", "Pace", "Peer", "content", "differs", "eventually", "frame", "method_frame", "publish",
    "rabbitmq", "unless_stalled",
]

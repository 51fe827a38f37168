"""Clients for fault tests: one socket, one channel; by question and answer, or as actors driven by one selector.

An actor says what it wants (``wants_write``), is told what came (``on_method``, ``on_content``) and ends when its
socket does.  It knows the ledger it writes into, and nothing of when the broker dies.
"""

import selectors
import socket
from collections import deque

from tests.plane.harness import Deliver

from brokerd.wire import methods
from brokerd.wire.frames import PROTOCOL_HEADER
from brokerd.wire.properties import decode_header

SECONDS = 120           # limit of every wait: none is reached while all is well
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
CONTENT_METHODS = (b"\0\x3c\0\x32", b"\0\x3c\0\x3c", b"\0\x3c\0\x47")       # return, deliver, get-ok
CLOSE = methods.ConnectionClose.INDEX


class Gone(Exception):
    """The broker closed the channel or the connection; ``code`` is its reply code."""

    def __init__(self, close):
        super().__init__(f"{close.reply_code} {close.reply_text}")
        self.code = close.reply_code


class Content(Deliver):
    """A message that came; ``octets`` of its content header."""

    octets = b""

    def header(self, name):
        """One of its headers, text as str; None: it has none such."""
        value = (decode_header(self.octets)[1].headers or {}).get(name)
        return value.decode() if isinstance(value, bytes) else value


class Client:
    """A connection with channel 1 open.  ``contents`` are whole messages that came, in order."""

    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port), SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.octets = bytearray()
        self.frames = deque()       # (type, payload), not yet looked at
        self.contents = []
        self.open_content = None
        self.sock.sendall(PROTOCOL_HEADER)
        self.expect(methods.ConnectionStart)
        self.write(methods.ConnectionStartOk(client_properties={}, mechanism="PLAIN", locale="en_US",
                                             response="\0guest\0guest"), 0)
        tune = self.expect(methods.ConnectionTune)
        self.write(methods.ConnectionTuneOk(channel_max=tune.channel_max, frame_max=tune.frame_max, heartbeat=0), 0)
        self.write(methods.ConnectionOpen(virtual_host="/"), 0)
        self.expect(methods.ConnectionOpenOk)
        self.ask(methods.ChannelOpen(), methods.ChannelOpenOk)

    # --- question and answer

    def write(self, method, channel=1):
        self.sock.sendall(method.frame(channel))

    def ask(self, method, answer):
        """The answer to ``method``.  Raises Gone; the channel is open again then."""
        self.write(method)
        return self.expect(answer)

    def expect(self, answer):
        index = answer.INDEX.to_bytes(4)
        while True:
            while self.frames:
                kind, payload = self.frames.popleft()
                if kind == 1 and payload[:4] == index:
                    return methods.decode(payload)
                self.take(kind, payload)
            self.receive()

    def wait_for_contents(self, count):
        """The next ``count`` messages."""
        while len(self.contents) < count:
            while self.frames:
                self.take(*self.frames.popleft())
            if len(self.contents) < count:
                self.receive()
        contents, self.contents = self.contents[:count], self.contents[count:]
        return contents

    def take(self, kind, payload):
        """One frame that is no awaited answer."""
        if kind == 1 and payload[:4] in CONTENT_METHODS:
            self.open_content = Content(1, payload)
        elif kind == 2:
            self.open_content.size, self.open_content.octets = int.from_bytes(payload[4:12]), payload
        elif kind == 3:
            self.open_content.pieces.append(payload)
        elif kind == 1:
            self.on_method(payload)
        content = self.open_content
        if content is not None and content.size is not None and content.size == sum(map(len, content.pieces)):
            content.body = b"".join(content.pieces)
            self.open_content = None
            self.on_content(content)

    def on_method(self, payload):
        method = methods.decode(payload)
        if isinstance(method, methods.ChannelClose):
            self.write(methods.ChannelCloseOk())
            self.ask(methods.ChannelOpen(), methods.ChannelOpenOk)
            raise Gone(method)
        if isinstance(method, methods.ConnectionClose):
            raise Gone(method)

    def on_content(self, content):
        self.contents.append(content)

    def receive(self):
        """Read once, and cut what has come into ``frames``."""
        octets = self.sock.recv(1 << 18)
        if not octets:
            raise ConnectionResetError("closed by the broker")
        self.octets += octets
        at, octets = 0, self.octets
        while at + 7 <= len(octets):
            end = at + 8 + int.from_bytes(octets[at + 3:at + 7])
            if end > len(octets):
                break
            assert octets[end - 1] == 0xCE, bytes(octets[at:end])
            self.frames.append((octets[at], bytes(octets[at + 7:end - 1])))
            at = end
        del octets[:at]

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Actor(Client):
    """A client that is driven by ``drive``.  ``out`` is what the socket has not taken yet."""

    def __init__(self, port):
        super().__init__(port)
        self.out = bytearray()
        self.heard = 0                  # frames

    def wants_write(self):
        return bool(self.out)

    def fill(self):
        """Put more into ``out``: the socket would take it."""

    def say(self, method):
        self.out += method.frame(1)

    def on_method(self, payload):
        if int.from_bytes(payload[:4]) == CLOSE:
            self.out += methods.ConnectionCloseOk().frame(0)
        elif payload[:4] == methods.ChannelClose.INDEX.to_bytes(4):
            raise AssertionError(f"{type(self).__name__}: {methods.decode(payload)}")
        else:
            self.on_reply(payload)

    def on_reply(self, payload):
        """A method that is neither close."""

    def readable(self):
        self.receive()
        self.heard += len(self.frames)
        while self.frames:
            self.take(*self.frames.popleft())

    def writable(self):
        if len(self.out) < 1 << 16:
            self.fill()
        if self.out:
            sent = self.sock.send(self.out)
            del self.out[:sent]


def drive(actors, each_round=lambda: None):
    """Run all actors until the broker has closed all of their sockets.  ``each_round`` is called again and again."""
    with selectors.DefaultSelector() as selector:
        for actor in actors:
            actor.sock.setblocking(False)
            selector.register(actor.sock, READ | WRITE, actor)
        while selector.get_map():
            events = selector.select(SECONDS)
            assert events, "the broker neither answers nor ends"
            each_round()
            for key, mask in events:
                actor = key.data
                try:
                    if mask & READ:
                        actor.readable()
                    if mask & WRITE:
                        actor.writable()
                except BlockingIOError:
                    pass
                except ConnectionError:
                    selector.unregister(actor.sock)
                    actor.sock.close()
                    continue
                wanted = READ | WRITE if actor.wants_write() else READ
                if wanted != key.events:
                    selector.modify(actor.sock, wanted, actor)

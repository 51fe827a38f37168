"""A connection without a socket: octets in, methods out, over the real data plane."""

import logging

from brokerd import plane
from brokerd.config import Config
from brokerd.descriptors import NO_LIMIT, Budget
from brokerd.errors import LoginRefused, NotAllowed
from brokerd.hoarders import TransactionMemory
from brokerd.links.book import LinkBook
from brokerd.server.values import limits_of, settings_of
from brokerd.session.connection import Connection
from brokerd.vhost.access import Access
from brokerd.vhost.vhost import VHost
from brokerd.wire import methods
from brokerd.wire.frames import FRAME_METHOD, PROTOCOL_HEADER, FrameScanner

logging.getLogger("brokerd").setLevel(logging.CRITICAL)

CAPABLE = {"capabilities": {"consumer_cancel_notify": True, "connection.blocked": True,
                            "authentication_failure_close": True}}


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def monotonic_ns(self):
        return int(self.now * 1e9)

    def epoch_ns(self):
        return int(self.now * 1e9)


class Log:
    """A definitions log in memory; ``full`` refuses to grow."""

    def __init__(self):
        self.payloads = []
        self.full = False
        self.dirty = False

    def append(self, payload):
        if self.full:
            raise OSError(28, "No space left on device")
        self.payloads.append(payload)

    def compact(self, payloads):
        self.payloads = list(payloads)


class Commit:
    """Group commit by hand: ``end()`` is the end of the sync all wait for."""

    def __init__(self):
        self.waiting = []
        self.at_once = True

    def wait(self, callback, log=None):
        self.waiting.append(callback)
        if self.at_once:
            self.end()

    def end(self):
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


class Data:
    identity = "brokerd@here-0"

    def __init__(self):
        self.number = 0

    def next_connection_number(self):
        self.number += 1
        return self.number


class Node:
    """What a session asks of the node, with one vhost and users whose password is their name."""

    def __init__(self, directory, *, segment_octets=8 << 20, **config):
        self.core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=lambda number: None,
                               damaged=lambda *_: None, go_on=lambda: None, segment_octets=segment_octets)
        self.settings, self.limits = settings_of(Config(**config)), limits_of(Config(**config))
        self.clock = Clock()
        self.commit = Commit()
        self.data = Data()
        self.vhost = VHost("/", str(directory), self.core, Log())
        self.events = self.vhost.events
        self.refused = set()  # (operation, name)
        self.blocked = set()
        self.alarm_reason = "low on disk"
        self.start_frames, self.name, self.links = {}, "brokerd@here", LinkBook()
        self.stopping = False
        self.transaction_memory = TransactionMemory()
        self.descriptors = Budget(NO_LIMIT, self.clock.monotonic)

    def later(self, callback):
        callback()

    def check_channel_limit(self, user):
        pass

    @property
    def logins(self):
        return self

    def asks_others(self, mechanism):
        return False

    def token_in(self, mechanism, response):
        return None

    def slow_part(self, mechanism, response, address):
        return None

    def authenticate(self, mechanism, response, loopback, certificate_name="", address="", *, counts=True):
        if mechanism in ("EXTERNAL", "ANONYMOUS"):
            return certificate_name or self.settings.anonymous_login_user
        _, user, password = response.decode().split("\0")
        if user != password:
            raise LoginRefused("no")
        return user

    def enter(self, vhost, user, grant=None):
        assert grant is None
        if vhost != "/":
            raise NotAllowed(f"vhost {vhost} not found")
        access = Access(self.vhost, user, lambda operation, name, kind: (operation, name) not in self.refused)
        return self.vhost.accesses.setdefault(user, access)


class Transport:
    """Keeps what is written."""

    def __init__(self):
        self.octets = b""
        self.closed = self.aborted = False

    def write(self, octets):
        self.octets += bytes(octets)

    def can_write_eof(self):
        return False

    def close(self):
        self.closed = True

    def abort(self):
        self.aborted = True

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


class Client:
    """A peer: sends methods, reads what comes back as (channel, method)."""

    def __init__(self, node, properties=CAPABLE):
        self.node = node
        self.properties = properties
        self.transport = Transport()
        self.connection = Connection(node.core, node)
        self.connection.transport = self.transport
        self.connection.attach(self.transport, -1)
        self.scanner = FrameScanner()

    def send(self, *frames):
        """Methods on channel 0, or (channel, method) pairs, in one chunk."""
        octets = b""
        for frame in frames:
            channel, method = frame if isinstance(frame, tuple) else (0, frame)
            octets += method.frame(channel)
        self.feed(octets)
        return self.read()

    def feed(self, octets):
        """All octets are worked on, in however many turns; no loop is here to give the connection its next one."""
        self.connection.feed(octets)
        while self.connection.yielded:
            self.node.core.go_on()

    def raw(self, octets):
        self.feed(octets)
        return self.read()

    def read(self):
        """What has come since: methods, with their channel where it is not 0; other frames as they are."""
        self.node.core.turn()
        octets, self.transport.octets = self.transport.octets, b""
        out = []
        for frame in self.scanner.feed(octets):
            if frame.kind != FRAME_METHOD:
                out.append(frame)
                continue
            method = methods.decode(frame.payload)
            out.append((frame.channel, method) if frame.channel else method)
        return out

    def start(self, user="guest", password=None, vhost="/", heartbeat=0, frame_max=131072, channel_max=2047):
        self.raw(PROTOCOL_HEADER)
        out = self.send(methods.ConnectionStartOk(
            client_properties=self.properties, mechanism="PLAIN", locale="en_US",
            response=f"\0{user}\0{user if password is None else password}".encode()))
        if not out:
            return out
        out = self.send(
            methods.ConnectionTuneOk(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat),
            methods.ConnectionOpen(virtual_host=vhost))
        return out

    def open(self, **settings):
        """The handshake and channel 1."""
        assert self.start(**settings) == [methods.ConnectionOpenOk()]
        self.send((1, methods.ChannelOpen()))
        return self

    def ask(self, method, channel=1):
        """The reply to one method on a channel, without the channel's number; None where there is none."""
        out = self.send((channel, method))
        assert len(out) < 2, out
        if not out:
            return None
        return out[0][1] if isinstance(out[0], tuple) else out[0]

    def refusal(self, method, channel=1):
        """(code, text) of the close that answers ``method``; the channel is opened again."""
        close = self.ask(method, channel)
        if isinstance(close, methods.ChannelClose):
            self.send((channel, methods.ChannelCloseOk()), (channel, methods.ChannelOpen()))
        return close.reply_code, close.reply_text.partition(" - ")[2]

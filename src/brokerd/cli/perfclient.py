"""The load generator's slow half: a blocking AMQP client for handshakes and topology.

One `Client` is one socket with one channel; a request waits for its answer.  Once messages flow,
`hand_over` gives the socket to a compiled `Link`.  Knows nothing of runs and figures.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from brokerd.cli._perf import Control, Link

if TYPE_CHECKING:
    from brokerd.cli.perftls import Tls

METHOD, HEADER, BODY, FRAME_END = 1, 2, 3, b"\xce"
CONNECTION_CLOSE, CONNECTION_CLOSE_OK, CHANNEL_CLOSE = (10, 50), (10, 51), (20, 40)
PORT, TLS_PORT = 5672, 5671
PART_SECONDS = 5        # all connections of a run together wait this long for the broker's last answers
# A link looks this often, in microseconds, at whether the run is over.
RECEIVE_TIMEOUT_US = 20_000


class PerfError(Exception):
    """The run cannot go on; the text is one line for the person who started it."""


class Refused(PerfError):
    """The broker closed the channel or the connection; `code` is its reply code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"the broker answered {code} {text}")
        self.code = code


class Address(NamedTuple):
    """A broker's address, and the user and password for the login.

    host: a host, or the path of a unix socket, which begins with a slash.
    tls: None for AMQP without TLS.
    """

    host: str
    port: int
    user: str
    password: str
    vhost: str
    tls: "Tls | None" = None

    @classmethod
    def parse(cls, uri: str) -> Self:
        """Read amqp://user:pass@host:port/vhost, or amqps://; ValueError names what is wrong with it.

        A host that begins with %2F is the path of a unix socket: amqp://%2Frun%2Fbrokerd%2Famqp.sock/vhost.
        """
        parts = urlsplit(uri)
        if parts.scheme not in ("amqp", "amqps"):
            raise ValueError("the URI must begin with amqp:// or amqps://")
        if parts.query or parts.fragment:
            raise ValueError("the URI has more than user, password, host, port and vhost")
        vhost = unquote(parts.path[1:]) if len(parts.path) > 1 else "/"
        tls = None
        # urlsplit() writes host names in small letters; the letters of a path must stay.
        encoded = parts.netloc.rpartition("@")[2]
        host = unquote(encoded) if encoded[:3].upper() == "%2F" else parts.hostname or "127.0.0.1"
        if host.startswith("/") and parts.scheme == "amqps":
            raise ValueError("a unix socket has no TLS: the URI must begin with amqp://")
        if parts.scheme == "amqps":
            from brokerd.cli.perftls import Tls  # Python's TLS takes 15 ms to import.

            tls = Tls()
        return cls(host, 0 if host.startswith("/") else parts.port or (TLS_PORT if tls else PORT),
                   unquote(parts.username or "guest"), unquote(parts.password or "guest"), vhost, tls)


def shortstr(text: str) -> bytes:
    """A length octet and the text; ValueError over 255 octets."""
    octets = text.encode()
    if len(octets) > 255:
        raise ValueError(f"a name of {len(octets)} octets; 255 is the most")
    return bytes((len(octets),)) + octets


def longstr(octets: bytes) -> bytes:
    """A 32-bit length and the octets."""
    return struct.pack(">I", len(octets)) + octets


def field(value: object) -> bytes:
    """A table value with its type octet; ValueError for a value that has no AMQP type."""
    match value:
        case bool():
            return b"t" + bytes((value,))
        case int():
            return b"l" + struct.pack(">q", value)
        case float():
            return b"d" + struct.pack(">d", value)
        case str():
            return b"S" + longstr(value.encode())
        case None:
            return b"V"
        case dict():
            return b"F" + table(value)
        case list():
            return b"A" + longstr(b"".join(map(field, value)))
    raise ValueError(f"{value!r} has no AMQP type")


def table(values: Mapping[str, object]) -> bytes:
    """A field table."""
    return longstr(b"".join(shortstr(name) + field(value) for name, value in values.items()))


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def method(channel: int, index: tuple[int, int], arguments: bytes = b"") -> bytes:
    """A method frame; `index` is (class, method)."""
    return frame(METHOD, channel, struct.pack(">HH", *index) + arguments)


def publish_frames(exchange: str, key: str, size: int, persistent: bool, frame_max: int) -> tuple[bytes, int]:
    """A whole publish of `size` zero octets on channel 1, and the offset of its first body octet."""
    head = method(1, (60, 40), struct.pack(">H", 0) + shortstr(exchange) + shortstr(key) + b"\0")
    # delivery-mode, the only property
    head += frame(HEADER, 1, struct.pack(">HHQHB", 60, 0, size, 1 << 12, 2 if persistent else 1))
    most = frame_max - 8
    body = b"".join(frame(BODY, 1, bytes(min(most, size - at))) for at in range(0, size, most))
    return head + body, len(head) + 7


class Client:
    """A connection to a broker with channel 1 open.

    Every method raises PerfError if the broker cannot be reached, hangs up, or refuses.
    """

    __slots__ = ("_link", "_pending", "_socket", "frame_max")

    def __init__(self, address: Address, timeout: float = 60) -> None:
        self._pending = b""
        self._link: Link | None = None
        self.frame_max = 131072
        self._socket = connected(address, timeout)
        try:
            self._open(address)
        except BaseException:
            self._socket.close()
            raise

    def _open(self, address: Address) -> None:
        self._send(b"AMQP\0\0\x09\x01")
        self._answer((10, 10))
        response = b"\0" + address.user.encode() + b"\0" + address.password.encode()
        # Without this capability RabbitMQ hangs up on a wrong password instead of saying so.
        properties = {"product": "brokerperf", "capabilities": {"authentication_failure_close": True,
                      "basic.nack": True, "connection.blocked": True, "consumer_cancel_notify": True}}
        tune = self.request((10, 11), table(properties) + shortstr("PLAIN") + longstr(response) + shortstr("en_US"),
                            (10, 30), channel=0)
        channel_max, frame_max, _ = struct.unpack(">HIH", tune[:8])
        self.frame_max = min(frame_max or self.frame_max, self.frame_max)
        # No heartbeats, because a link sends nothing while it waits.
        self._send(method(0, (10, 31), struct.pack(">HIH", channel_max, self.frame_max, 0)))
        self.request((10, 40), shortstr(address.vhost) + b"\0\0", (10, 41), channel=0)
        self.request((20, 10), b"\0", (20, 11))

    def _send(self, octets: bytes) -> None:
        try:
            self._socket.sendall(octets)
        except OSError as error:
            raise PerfError(f"the broker hung up: {error.strerror or error}") from None

    def _answer(self, index: tuple[int, int]) -> bytes:
        """The arguments of the next method `index`; skips other methods, except those that close."""
        while True:
            kind, payload = self._frame()
            if kind != METHOD:
                continue
            found = struct.unpack(">HH", payload[:4])
            if found == index:
                return payload[4:]
            if found in (CONNECTION_CLOSE, CHANNEL_CLOSE):
                code, = struct.unpack(">H", payload[4:6])
                with contextlib.suppress(PerfError):
                    self._send(method(1, (20, 41)) if found == CHANNEL_CLOSE else method(0, CONNECTION_CLOSE_OK))
                raise Refused(code, payload[7:7 + payload[6]].decode("utf-8", "replace"))

    def _frame(self) -> tuple[int, bytes]:
        while True:
            if self._pending[:4] == b"AMQP":
                raise PerfError("the broker does not speak AMQP 0-9-1")
            if len(self._pending) >= 7:
                kind, _, size = struct.unpack(">BHI", self._pending[:7])
                if len(self._pending) >= size + 8:
                    payload, self._pending = self._pending[7:7 + size], self._pending[8 + size:]
                    return kind, payload
            try:
                octets = self._socket.recv(65536)
            except OSError as error:
                raise PerfError(f"no answer from the broker: {error.strerror or error}") from None
            if not octets:
                raise PerfError("the broker closed the socket")
            self._pending += octets

    def request(self, index: tuple[int, int], arguments: bytes, answer: tuple[int, int], channel: int = 1) -> bytes:
        """Send a method and return the arguments of its answer."""
        self._send(method(channel, index, arguments))
        return self._answer(answer)

    def declare_queue(self, name: str, durable: bool = False, arguments: dict[str, object] | None = None,
                      passive: bool = False) -> int:
        """Declare a queue, or look it up (`passive`); return how many messages are ready in it."""
        ok = self.request((50, 10), declare_arguments(name, durable, arguments, passive), (50, 11))
        return int(struct.unpack(">I", ok[1 + ok[0]:5 + ok[0]])[0])

    def declare_exchange(self, name: str, kind: str) -> None:
        """Declare a transient exchange."""
        self.request((40, 10), b"\0\0" + shortstr(name) + shortstr(kind) + b"\0" + table({}), (40, 11))

    def bind(self, queue: str, exchange: str, key: str) -> None:
        """Bind a queue to an exchange."""
        self.request((50, 20), bind_arguments(queue, exchange, key), (50, 21))

    def declare_queues(self, names: list[str], durable: bool, arguments: dict[str, object] | None, bind: bool) -> None:
        """Declare queues, and bind each to amq.direct by its name.  All methods are sent before an answer is read."""
        octets = []
        for name in names:
            octets.append(method(1, (50, 10), declare_arguments(name, durable, arguments, False)))
            if bind:
                octets.append(method(1, (50, 20), bind_arguments(name, "amq.direct", name)))
        self._send(b"".join(octets))
        for _ in names:
            self._answer((50, 11))
            if bind:
                self._answer((50, 21))

    def delete_queue(self, name: str) -> None:
        """Delete a queue; a queue that does not exist is no error."""
        self._delete((50, 40), shortstr(name), (50, 41))

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange; an exchange that does not exist is no error."""
        self._delete((40, 20), shortstr(name), (40, 21))

    def _delete(self, index: tuple[int, int], name: bytes, answer: tuple[int, int]) -> None:
        try:
            self.request(index, b"\0\0" + name + b"\0", answer)
        except Refused as refused:
            if refused.code != 404:
                raise
            self.request((20, 10), b"\0", (20, 11))

    def qos(self, prefetch: int) -> None:
        """Limit unacknowledged deliveries for each consumer that follows; 0 is no limit."""
        self.request((60, 10), qos_arguments(prefetch), (60, 11))

    def confirm_select(self) -> None:
        """Ask for publisher confirms."""
        self.request((85, 10), b"\0", (85, 11))

    def consume(self, queue: str, tag: str, no_ack: bool, no_wait: bool = False,
                consumer: Mapping[str, object] | None = None) -> None:
        """Start a consumer.  With `no_wait` the link that takes over reads the answer, or the refusal.

        consumer: the arguments of basic.consume."""
        arguments = (b"\0\0" + shortstr(queue) + shortstr(tag) + bytes((no_ack << 1 | no_wait << 3,))
                     + table(consumer or {}))
        if no_wait:
            self._send(method(1, (60, 20), arguments))
        else:
            self.request((60, 20), arguments, (60, 21))

    def cancel(self, tag: str) -> None:
        """End a consumer."""
        self.request((60, 30), shortstr(tag) + b"\0", (60, 31))

    def reopen_channel(self) -> None:
        """Close channel 1, and open it again."""
        self.request((20, 40), struct.pack(">H", 200) + shortstr("done") + bytes(4), (20, 41))
        self.request((20, 10), b"\0", (20, 11))

    def publish_confirmed(self, queue: str, size: int) -> None:
        """Publish a message to a queue, and wait for its confirm; `confirm_select` was called."""
        self._send(publish_frames("", queue, size, False, self.frame_max)[0])
        self._answer((60, 80))

    def get(self, queue: str) -> None:
        """Take a message with basic.get, without an ack; PerfError if the queue is empty."""
        self._send(method(1, (60, 70), b"\0\0" + shortstr(queue) + b"\1"))
        while True:
            kind, payload = self._frame()
            if kind == METHOD and payload[:4] == struct.pack(">HH", 60, 71):
                return      # `_answer` skips the content.
            if kind == METHOD and payload[:4] == struct.pack(">HH", 60, 72):
                raise PerfError(f"queue {queue!r} is empty, although its message was confirmed")

    def hand_over(self, control: Control) -> Link:
        """Give the socket, and the octets already read from it, to a compiled link.

        After this, the caller may only close the client.
        """
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, RECEIVE_TIMEOUT_US))
        self._link = Link(self._socket.fileno(), self._pending, control, self.frame_max)
        return self._link

    def drop(self) -> None:
        """Close the connection, and wait some seconds for the broker's answer."""
        part([self])

    def say_goodbye(self) -> None:
        """Send connection.close, unless a frame was begun that is not whole."""
        if self._link is None or not self._link.torn:
            with contextlib.suppress(OSError):
                self._socket.settimeout(PART_SECONDS)
                self._socket.sendall(method(0, CONNECTION_CLOSE, struct.pack(">H", 200) + shortstr("done") + bytes(4)))

    def leave(self, until: float) -> None:
        """Drop octets that still come before the answer to connection.close, and close the socket.

        A socket that is closed with octets unread takes from the broker what was sent last.
        """
        last, answer = b"", method(0, CONNECTION_CLOSE_OK)
        with contextlib.suppress(OSError):
            while not last.endswith(answer) and (left := until - time.monotonic()) > 0:
                self._socket.settimeout(left)
                octets = self._socket.recv(1 << 18)
                if not octets:
                    break
                last = (last + octets)[-len(answer):]
        self._socket.close()


def part(clients: Sequence[Client]) -> None:
    """Close connections politely: the broker hears a connection.close from each, and its answer is awaited."""
    for client in clients:
        client.say_goodbye()
    until = time.monotonic() + PART_SECONDS
    for client in clients:
        client.leave(until)


def connected(address: Address, timeout: float) -> socket.socket:
    """A socket to the broker, behind TLS if the address asks for it.  Raises PerfError."""
    if address.host.startswith("/"):
        return connected_here(address.host, timeout)
    where = f"{address.host}:{address.port}"
    try:
        made = socket.create_connection((address.host, address.port), timeout)
    except OSError as error:
        raise PerfError(f"{where}: {error.strerror or error}") from None
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if address.tls is None:
        return made
    from brokerd.cli import perftls

    try:
        return perftls.connect(made, address.host, address.tls)
    except OSError as error:
        made.close()
        raise PerfError(f"{where}: {perftls.reason(error, address.tls)}") from None


def connected_here(path: str, timeout: float) -> socket.socket:
    """A socket to the broker's unix socket at ``path``.  Raises PerfError."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(timeout)
    try:
        made.connect(path)
    except OSError as error:
        made.close()
        raise PerfError(f"{path}: {error.strerror or error}") from None
    return made


def declare_arguments(name: str, durable: bool, arguments: dict[str, object] | None, passive: bool) -> bytes:
    """The arguments of queue.declare."""
    return b"\0\0" + shortstr(name) + bytes((passive | durable << 1,)) + table(arguments or {})


def bind_arguments(queue: str, exchange: str, key: str) -> bytes:
    """The arguments of queue.bind."""
    return b"\0\0" + shortstr(queue) + shortstr(exchange) + shortstr(key) + b"\0" + table({})


def qos_arguments(prefetch: int) -> bytes:
    """The arguments of basic.qos: per consumer, any size."""
    return struct.pack(">IHB", 0, prefetch, 0)

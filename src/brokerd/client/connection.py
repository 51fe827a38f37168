"""One connection to a broker with channel 1 open: handshake, requests with their answers, heartbeats, the end.

    await Connection.open(address, ...)   ->  request(method) ... write(octets) ... close()

Octets of messages do not pass through here where a ``Relay`` has them.  Every failure ends the connection: then
``closed`` has the reason, in words that name no password.  Knows nothing of links.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EFBIG, EINVAL
from logging import getLogger
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from brokerd import __version__, local_socket
from brokerd.client._relay import Frames, Relay, StreamError
from brokerd.errors import AMQPError, BrokerError
from brokerd.wire import methods
from brokerd.wire.frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_MIN_SIZE,
    HEARTBEAT_FRAME,
    PROTOCOL_HEADER,
)

if TYPE_CHECKING:
    from ssl import SSLContext

    from brokerd.client.address import Address

log = getLogger("brokerd.links")

FILE_OCTETS_MAX = 1 << 20  # of a certificate or a key
FRAME_MAX = 131072
CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "per_consumer_qos": True,
}
WRITE_OCTETS_HIGH = 1 << 20  # that wait for the socket, before the source is no longer read
MISSED_HEARTBEATS = 2
ANSWER_SECONDS = 60.0  # within which a broker must answer what a link asks while it begins
MESSAGE_OCTETS_MAX = 512 << 20  # of a body that no relay takes
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
"""OpenSSL's reasons where what came is no TLS at all."""


class ClientError(BrokerError):
    """The connection cannot be made, or is at its end."""


class Refused(ClientError):
    """The broker closed the channel or the connection.  ``code`` is its reply code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"the broker answered {code} {text}")
        self.code = code


class Identity(NamedTuple):
    """How a process of the broker logs in there: its data directory, and what only the broker and it know."""

    directory: str
    mechanism: str
    secret: str


class Delivery(NamedTuple):
    """A message that no relay took."""

    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    header: bytes  # the payload of its content header
    body: bytes


class Connection(asyncio.BufferedProtocol):
    """One connection.  Callbacks, to be set: ``on_octets`` after all octets were worked on; ``on_writable(bool)``;
    ``on_delivery``; ``on_blocked(reason)``, "" when it is over."""

    def __init__(self, address: "Address") -> None:
        loop = asyncio.get_running_loop()
        self.address = address
        self.closed: asyncio.Future[ClientError] = loop.create_future()
        self.frame_max = FRAME_MAX
        self.server_properties: dict[str, Any] = {}
        self.on_octets: Callable[[], object] = _nothing
        self.on_writable: Callable[[bool], object] = _nothing
        self.on_delivery: Callable[[Delivery], object] = _nothing
        self.on_blocked: Callable[[str], object] = _nothing
        self.writable = True
        self._loop = loop
        self._frames = Frames(self._on_frame)
        self._awaited: deque[tuple[tuple[int, ...], asyncio.Future[Any]]] = deque()
        self._heartbeat = 0
        self._timer: asyncio.TimerHandle | None = None
        self._came = self._went = False  # octets, since the timer's last call
        self._silent = 0
        self._delivery: Any = None  # a basic.deliver whose content has not come, its header, and its body so far
        self._header = b""
        self._body = bytearray()
        self._left = 0
        self._has_begun = False  # the other side has spoken AMQP
        self.transport: Any = None

    @classmethod
    async def open(cls, address: "Address", name: str, identity: Identity | None = None) -> Self:
        """Connect and log in.  ``identity``: for an address that is the broker's own.  Raises ClientError."""
        made = cls(address)
        try:
            async with asyncio.timeout(address.timeout):
                await made._connect(identity)
                await made._log_in(name, identity if address.is_local else None)
        except TimeoutError:
            made.abort()
            raise ClientError(f"no answer in {address.timeout:g} s") from None
        except BaseException:
            made.abort()
            raise
        return made

    async def _connect(self, identity: Identity | None) -> None:
        address, loop = self.address, self._loop
        try:
            if not address.is_local:
                await loop.create_connection(lambda: self, address.host, address.port, ssl=_tls(address),
                                             server_hostname=(address.server_name or address.host) if address.tls
                                             else None)  # fmt: skip
                return
            if identity is None:
                raise ClientError("the URI names no host")
            with local_socket.address(identity.directory, local_socket.AMQP_NAME) as path:
                await loop.create_unix_connection(lambda: self, path)
        except OSError as error:
            raise ClientError(reason(error, "use amqp://, or its port for TLS")) from None
        except UnicodeError:
            raise ClientError("the URI's host is no name of a host") from None
        if address.is_local:
            # It is no proxy's client: PROXY protocol, version 2, command LOCAL.
            self.write(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0")

    async def _log_in(self, name: str, identity: Identity | None) -> None:
        address = self.address
        self.write(PROTOCOL_HEADER)
        start = await self._await(methods.ConnectionStart.INDEX)
        self._has_begun = True
        self.server_properties = start.server_properties
        if identity is not None:
            mechanism, response = identity.mechanism, identity.secret.encode()
        elif address.mechanism == "EXTERNAL":
            mechanism, response = "EXTERNAL", b""
        else:
            mechanism = "PLAIN"
            response = f"\0{address.user}\0{address.password}".encode("utf-8", "surrogateescape")
        properties = {"product": "brokerd", "version": __version__, "capabilities": CAPABILITIES,
                      "connection_name": name}  # fmt: skip
        ok = methods.ConnectionStartOk(client_properties=properties, mechanism=mechanism, response=response,
                                       locale="en_US")  # fmt: skip
        tune = await self._ask(ok, methods.ConnectionTune.INDEX, channel=0)
        self.frame_max = min(tune.frame_max or FRAME_MAX, FRAME_MAX)
        if self.frame_max < FRAME_MIN_SIZE:
            raise ClientError(f"the broker takes frames of {self.frame_max} octets; AMQP asks for {FRAME_MIN_SIZE}")
        self._frames.agree(self.frame_max)
        wanted = [each for each in (tune.heartbeat, address.heartbeat) if each]
        self._heartbeat = min(wanted) if len(wanted) == 2 else (address.heartbeat or tune.heartbeat)
        self.write(methods.ConnectionTuneOk(channel_max=tune.channel_max, frame_max=self.frame_max,
                                            heartbeat=self._heartbeat).frame(0))  # fmt: skip
        await self._ask(methods.ConnectionOpen(virtual_host=address.vhost), methods.ConnectionOpenOk.INDEX, channel=0)
        await self.open_channel()
        if self._heartbeat:
            self._timer = self._loop.call_later(self._heartbeat / 2, self._beat)

    async def open_channel(self) -> None:
        """Open channel 1, which the broker closes when it refuses something."""
        await self._ask(methods.ChannelOpen(), methods.ChannelOpenOk.INDEX, seconds=ANSWER_SECONDS)

    @property
    def is_brokerd(self) -> bool:
        """Whether the other side is a brokerd, as it says itself."""
        return str(self.server_properties.get("platform", "")).startswith("brokerd ")

    # --- requests

    async def request(self, method: Any, seconds: float | None = ANSWER_SECONDS) -> Any:
        """Send a method on channel 1, and return its answer.  Raises ClientError; Refused for channel.close, after
        which ``open_channel`` opens the channel again.  Without an answer in so many seconds the connection ends.
        None: while messages pass, an answer may wait behind them for long."""
        replies = tuple([methods.BY_NAME[name].INDEX for name in method.REPLIES])
        return await self._ask(method, *replies, seconds=seconds)

    async def _ask(self, method: Any, *replies: int, channel: int = 1, seconds: float | None = None) -> Any:
        self.write(method.frame(channel))
        try:
            async with asyncio.timeout(seconds):
                return await self._await(*replies)
        except TimeoutError:
            self.fail(ClientError(f"no answer to {method.NAME} in {seconds:g} s"))
            raise self.closed.result() from None

    async def _await(self, *replies: int) -> Any:
        if self.closed.done():
            raise self.closed.result()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._awaited.append((replies, future))
        return await future

    def give(self, relay: Relay, *, source: bool) -> None:
        """From now on a relay has the messages or the confirms of channel 1."""
        self._frames.give(relay, source)

    def write(self, octets: bytes) -> None:
        """Send octets; without effect on a connection that has ended."""
        if octets and self.transport is not None:
            self._went = True
            self.transport.write(octets)

    def pause(self, on: bool) -> None:
        """Read nothing more from the broker, or read again."""
        if self.transport is not None and not self.closed.done():
            if on:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    async def close(self) -> None:
        """Say goodbye, and wait a moment for the answer."""
        if self.closed.done():
            return
        try:
            self.pause(False)
            async with asyncio.timeout(1.0):
                await self._ask(methods.ConnectionClose(reply_code=200, reply_text="done"),
                                methods.ConnectionCloseOk.INDEX, channel=0)  # fmt: skip
        except (TimeoutError, ClientError):
            pass
        self.abort()

    def abort(self) -> None:
        """Close the socket."""
        self.fail(ClientError("the connection was closed here"))

    def fail(self, error: ClientError) -> None:
        """End the connection for this reason."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.closed.done():
            self.closed.set_result(error)
        while self._awaited:
            future = self._awaited.popleft()[1]
            if not future.done():
                future.set_exception(self.closed.result())
        if self.transport is not None:
            self.transport.abort()

    # --- what the loop calls

    def connection_made(self, transport: Any) -> None:
        """The socket is open."""
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_OCTETS_HIGH)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where octets go."""
        return self._frames.room()

    def buffer_updated(self, count: int) -> None:
        """So many octets have come."""
        self._came = True
        try:
            self._frames.fed(count)
        except StreamError as error:
            self.fail(ClientError(str(error) if self._has_begun else stranger(self._frames.rest(), str(error))))
            return
        except AMQPError as error:
            self.fail(ClientError(f"the broker sent what is not understood: {error}"))
            return
        except Exception as error:
            log.exception("a fault of brokerd")
            self.fail(ClientError(f"a fault of brokerd: {error!r}"))
            return
        self.on_octets()

    def eof_received(self) -> bool:
        """The broker has closed the socket."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is closed."""
        self.transport = None
        why = reason(error) if isinstance(error, OSError) else ""
        if not self._has_begun:
            why = stranger(self._frames.rest(), why)
        self.fail(ClientError(why or "the broker closed the socket"))

    def pause_writing(self) -> None:
        """Much waits for the socket."""
        self.writable = False
        self.on_writable(False)

    def resume_writing(self) -> None:
        """The socket takes more."""
        self.writable = True
        self.on_writable(True)

    def _beat(self) -> None:
        self._timer = self._loop.call_later(self._heartbeat / 2, self._beat)
        if not self._went:
            self.write(HEARTBEAT_FRAME)
        self._silent = 0 if self._came else self._silent + 1
        self._went = self._came = False
        if self._silent >= 2 * MISSED_HEARTBEATS and self.transport is not None and self.transport.is_reading():
            self.fail(ClientError(f"nothing came from the broker in {self._heartbeat * MISSED_HEARTBEATS} s"))

    # --- what the broker says

    def _on_frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == FRAME_METHOD:
            self._on_method(channel, methods.decode(payload))
        elif kind == FRAME_HEADER and self._delivery is not None:
            self._header, self._left = payload, int.from_bytes(payload[4:12])
            if self._left > MESSAGE_OCTETS_MAX:
                raise StreamError(f"a message of {self._left} octets; links carry {MESSAGE_OCTETS_MAX} at most")
            self._take_if_whole()
        elif kind == FRAME_BODY and self._delivery is not None:
            self._body += payload
            self._left -= len(payload)
            self._take_if_whole()

    def _take_if_whole(self) -> None:
        if self._left <= 0:
            method, body = self._delivery, bytes(self._body)
            self._delivery = None
            self._body.clear()
            self.on_delivery(Delivery(method.delivery_tag, method.redelivered, method.exchange, method.routing_key,
                                      self._header, body))  # fmt: skip

    def _on_method(self, channel: int, method: Any) -> None:
        match method:
            case methods.BasicDeliver():
                self._delivery = method
            case methods.ConnectionBlocked():
                self.on_blocked(method.reason or "without a reason")
            case methods.ConnectionUnblocked():
                self.on_blocked("")
            case methods.ConnectionClose():
                self.write(methods.ConnectionCloseOk().frame(0))
                self.fail(Refused(method.reply_code, method.reply_text))
            case methods.ChannelClose():
                self.write(methods.ChannelCloseOk().frame(channel))
                refused = Refused(method.reply_code, method.reply_text)
                if self._awaited:
                    future = self._awaited.popleft()[1]
                    if not future.done():
                        future.set_exception(refused)
                else:
                    self.fail(refused)
            case methods.BasicCancel():
                self.fail(ClientError("the broker cancelled the consumer: its queue was deleted, or is elsewhere"))
            case _:
                while self._awaited and self._awaited[0][1].done():
                    self._awaited.popleft()  # The question was given up.
                if self._awaited and method.INDEX in self._awaited[0][0]:
                    future = self._awaited.popleft()[1]
                    if not future.done():
                        future.set_result(method)


def _nothing(*_: Any) -> None:
    pass


def _tls(address: "Address") -> "SSLContext | None":
    if not address.tls:
        return None
    import ssl  # Python's TLS takes 15 ms to import.

    with _named("cacertfile", address.ca):
        _check_file(address.ca)
        context = ssl.create_default_context(cafile=address.ca or None)
    if not address.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if address.certificate:
        with _named("certfile", address.certificate):
            _check_file(address.certificate)
        if address.key:
            with _named("keyfile", address.key):
                _check_file(address.key)
        with _named("certfile or keyfile", address.key or address.certificate):
            # A key that is encrypted must not ask for its password at a terminal.
            context.load_cert_chain(address.certificate, address.key or None, lambda: address.key_password)
    return context


def _check_file(path: str) -> None:
    """Raise OSError if it cannot be read, or is no file of a reasonable size.  A device or a pipe would hold up all
    links for ever, or take what the broker says to their process."""
    if path:
        found = os.stat(path)
        if not S_ISREG(found.st_mode):
            raise OSError(EINVAL, "it is no regular file")
        if found.st_size > FILE_OCTETS_MAX:
            raise OSError(EFBIG, os.strerror(EFBIG))
        open(path, "rb").close()


@contextmanager
def _named(parameter: str, path: str) -> "Iterator[None]":
    """Say which file of the URI cannot be read, and why."""
    import ssl

    try:
        yield
    except ssl.SSLError as error:
        why = error.reason.replace("_", " ").lower() if error.reason else str(error)
        raise ClientError(f"{parameter} '{path}': {why}") from None
    except OSError as error:
        raise ClientError(f"{parameter} '{path}': {error.strerror or error}") from None


def stranger(octets: bytes, otherwise: str = "") -> str:
    """The protocol that seems to answer there, by its first octets, before any AMQP."""
    if octets[:2] == b"\x15\x03":
        return "the port speaks TLS: use amqps://"
    if octets[:5] == b"HTTP/":
        return "the port is that of a web server (HTTP), and not of an AMQP broker"
    return otherwise or "the other side closed the socket before it said anything: is it the port of an AMQP broker?"


def reason(error: OSError, without_tls: str = "") -> str:
    """Why the other side cannot be reached, in words.  ``without_tls``: what to do where a port speaks no TLS."""
    from ssl import SSLCertVerificationError, SSLError

    if isinstance(error, SSLCertVerificationError):
        return f"the certificate of the other side is not trusted: {error.verify_message.rstrip('.')}"
    if isinstance(error, SSLError):
        if error.reason in NO_TLS:
            return "the port does not speak TLS" + (f": {without_tls}" if without_tls else "")
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else (error.strerror or str(error))

"""TLS whose octets the kernel encrypts and decrypts (Linux's kTLS), so that the plane uses the socket as a plain one.

    socket -> Handshake, by OpenSSL on the socket itself -> SocketTransport -> TLSProtocol
                                  |
                        keys of a direction -> kernel

OpenSSL hands the keys of a direction to the kernel if both know the cipher; of TLS 1.3, OpenSSL before 3.2 hands over
only those for writing.  A direction whose keys stay with OpenSSL goes through it.  The kernel cannot change keys, so
a client that does (TLS 1.3's KeyUpdate) loses its connection.  This module knows no AMQP and no certificate.
"""

import socket
import ssl
from asyncio import AbstractEventLoop, BaseTransport, TimerHandle
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from errno import EIO, ENOTCONN
from logging import getLogger
from os import dup
from typing import Any, Protocol

log = getLogger("brokerd.tls")

# linux/tcp.h, linux/tls.h and linux/socket.h, of which Python has no names
TCP_ULP = 31
SOL_TLS = 282
TLS_TX, TLS_RX = 1, 2
SET_RECORD_TYPE = 1
CRYPTO_INFO_OCTETS = 4  # of struct tls_crypto_info: version, cipher

OP_ENABLE_KTLS = 1 << 3  # openssl/ssl.h, from 3.0 on; Python has a name for it from 3.12 on

ALERT, DATA = 21, 23  # types of records: RFC 8446, section 5.1
CLOSE_NOTIFY = b"\x01\x00"  # level warning
RECORD_TYPE_OCTETS = socket.CMSG_SPACE(1)

READS_A_TURN = 16  # of OpenSSL, which gives at most one record of 16 KiB at a time
WRITE_OCTETS = 262144  # that OpenSSL encrypts in one call
SCRAP_OCTETS = 65536


class Client(Protocol):
    """The protocol of a SocketTransport (asyncio's BufferedProtocol)."""

    def connection_made(self, transport: BaseTransport) -> None: ...
    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def eof_received(self) -> bool | None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, error: Exception | None) -> None: ...


def is_available() -> bool:
    """Whether kernel and OpenSSL can do it.  The kernel loads its module by itself only for root."""
    if ssl.OPENSSL_VERSION_INFO < (3,):
        return False
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
        except OSError as error:
            return error.errno == ENOTCONN  # It is there, but wants a connected socket.
    return True


def _has_key(sock: socket.socket, direction: int) -> bool:
    """Whether the kernel has the socket's key for TLS_TX or TLS_RX."""
    try:
        return bool(sock.getsockopt(SOL_TLS, direction, CRYPTO_INFO_OCTETS))
    except OSError:
        return False


def _is_departure(error: OSError) -> bool:
    """Whether the client went in the handshake, in the words of the kernel or of OpenSSL."""
    return (
        isinstance(error, (ConnectionError, ssl.SSLEOFError))
        or error.errno == ENOTCONN
        or (isinstance(error, ssl.SSLError) and error.reason == "UNEXPECTED_EOF_WHILE_READING")
    )


class Handshake:
    """Agrees on TLS with the client of an accepted socket, then calls ``done`` with the SSLSocket.

    Calls ``failed`` with an OSError instead if they do not agree within ``seconds``: a ConnectionResetError if the
    client went.  Both are called at most once.
    """

    __slots__ = ("_done", "_failed", "_loop", "_sock", "_timer")

    def __init__(self, loop: AbstractEventLoop, done: "Callable[[ssl.SSLSocket], None]",
                 failed: Callable[[OSError], None]) -> None:
        self._loop = loop
        self._done = done
        self._failed = failed
        self._sock: ssl.SSLSocket | None = None
        self._timer: TimerHandle | None = None

    def begin(self, transport: Any, context: ssl.SSLContext, seconds: float) -> None:
        """Take the socket from ``transport``, which ends, and begin."""
        transport.pause_reading()
        try:
            # The transport accepted the socket, and closes its own descriptor of it.
            sock = socket.socket(fileno=dup(transport.get_extra_info("socket").fileno()))
        except OSError as error:
            self._failed(error)
            return
        finally:
            transport.abort()
        sock.setblocking(False)
        try:
            sock.getpeername()  # wrap_socket() would raise too, and leave the socket open.
            self._sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError:
            sock.close()
            self._failed(ConnectionResetError())  # The socket is not connected any more.
            return
        self._timer = self._loop.call_later(seconds, self._too_late, seconds)
        self._step()

    def _step(self) -> None:
        sock = self._sock
        assert sock is not None
        self._loop.remove_reader(sock)
        self._loop.remove_writer(sock)
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.add_reader(sock, self._step)
        except ssl.SSLWantWriteError:
            self._loop.add_writer(sock, self._step)
        except OSError as error:
            self._end(ConnectionResetError() if _is_departure(error) else error)
        else:
            assert self._timer is not None
            self._timer.cancel()
            self._done(sock)

    def _too_late(self, seconds: float) -> None:
        sock = self._sock
        assert sock is not None
        self._loop.remove_reader(sock)
        self._loop.remove_writer(sock)
        self._end(TimeoutError(f"SSL handshake is taking longer than {seconds} seconds"))

    def _end(self, error: OSError) -> None:
        assert self._timer is not None
        assert self._sock is not None
        self._timer.cancel()
        self._sock.close()
        self._failed(error)


class SocketTransport(BaseTransport):
    """A transport over a socket on which TLS is agreed.

    ``kernel_reads`` and ``kernel_writes`` say whose the two directions are; where they are the kernel's, the socket's
    descriptor takes and gives plain octets.
    """

    __slots__ = (
        "_closing", "_ended", "_high", "_loop", "_lost", "_paused", "_protocol", "_scrap", "_sock", "_waiting",
        "_waiting_octets", "_writing_paused", "extra", "kernel_reads", "kernel_writes",
    )  # fmt: skip

    def __init__(self, loop: AbstractEventLoop, sock: ssl.SSLSocket, protocol: Client) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self.kernel_writes = _has_key(sock, TLS_TX)
        self.kernel_reads = self.kernel_writes and _has_key(sock, TLS_RX)
        self.extra: dict[str, Any] = {
            "peername": _peer(sock),
            "peercert": sock.getpeercert(),
            "ssl_object": sock,  # until begin() returns: its state takes tens of kilobytes
        }
        # With both keys in the kernel nothing is left to OpenSSL.
        self._sock: socket.socket = socket.socket(fileno=sock.detach()) if self.kernel_reads else sock
        self.extra["socket"] = self._sock
        self._waiting: deque[memoryview] = deque()  # octets that the socket did not take yet
        self._waiting_octets = 0
        self._high = 65536  # octets: with more of them waiting, the protocol pauses
        self._writing_paused = False
        self._paused = False
        self._closing = False  # Nothing more is read, and no more octets are taken.
        self._ended = False  # No more octets are taken; what is read is thrown away.
        self._lost = False  # The protocol knows, or will at the loop's next turn.
        self._scrap: bytearray | None = None

    def begin(self) -> None:
        """Give the protocol its connection, and read."""
        try:
            self._protocol.connection_made(self)
        except BaseException:  # The loop logs it.
            self.abort()
            raise
        del self.extra["ssl_object"]
        if not self._closing and not self._paused:
            self._loop.add_reader(self._sock, self._read)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    @property
    def directions(self) -> str:
        """The kernel's part, for the log."""
        if self.kernel_reads:
            return "encrypts and decrypts"
        return "encrypts" if self.kernel_writes else "does nothing"

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio: ``peername``, ``socket``, ``peercert``; and ``ssl_object`` while the protocol begins."""
        return self.extra.get(name, default)

    # --- reading

    def is_closing(self) -> bool:
        """Whether the transport closes or is closed."""
        return self._closing

    def pause_reading(self) -> None:
        """Read no more until resume_reading()."""
        if not self._paused and not self._closing:
            self._paused = True
            self._loop.remove_reader(self._sock)

    def resume_reading(self) -> None:
        """Read again."""
        if self._paused and not self._closing:
            self._paused = False
            self._loop.add_reader(self._sock, self._read)
            # OpenSSL may hold a record for which the socket will not become readable.
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        if self._closing or self._paused:
            return
        if self._ended:
            self._throw_away()
            return
        try:
            for _ in range(1 if self.kernel_reads else READS_A_TURN):
                n = self._receive(self._protocol.get_buffer(-1))
                if n == 0:
                    if not self._protocol.eof_received():
                        self.close()
                    return
                self._protocol.buffer_updated(n)
                if self._closing or self._paused or self._ended:
                    return
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError as error:
            self._lose(error)
            return
        except BaseException:  # The loop logs it.
            self._lose(None)
            raise
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            self._loop.call_soon(self._read)

    def _receive(self, room: memoryview) -> int:
        """Read octets into ``room``; 0: the client writes no more."""
        if not self.kernel_reads:
            return self._sock.recv_into(room)
        n, ancillary, _, _ = self._sock.recvmsg_into([room], RECORD_TYPE_OCTETS)
        if n == 0 or not ancillary or ancillary[0][2][0] == DATA:
            return n
        if ancillary[0][2][0] == ALERT:
            return 0
        log.warning("%s: the client changed its keys, which the kernel cannot follow: see tls_in_kernel", self._name())
        raise OSError(EIO, "change of keys")

    def _name(self) -> str:
        peer = self.extra["peername"]
        return f"{peer[0]}:{peer[1]}" if peer else "unknown address"

    def _throw_away(self) -> None:
        """Read on behind our end, so that octets that are under way do not meet a closed socket."""
        if self._scrap is None:
            self._scrap = bytearray(SCRAP_OCTETS)
        try:
            if socket.socket.recv_into(self._sock, self._scrap):  # Not decrypted, if that is left to OpenSSL.
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # From the kernel also for the record with which the client ends.
        self.close()

    # --- writing

    def set_write_buffer_limits(self, high: int) -> None:
        """The protocol pauses as long as more than ``high`` octets wait for the socket."""
        self._high = high

    def get_write_buffer_size(self) -> int:
        """How many octets wait for the socket."""
        return self._waiting_octets

    def write(self, octets: bytes | memoryview) -> None:
        """Send ``octets``, or keep them until the socket takes them."""
        if self._closing or self._ended:
            return
        rest = memoryview(octets)
        try:
            if not self._waiting:
                rest = rest[self._send(rest) :]
        except OSError as error:
            self._lose(error)
            return
        if not rest:
            return
        if not self._waiting:
            self._loop.add_writer(self._sock, self._write_waiting)
        self._waiting.append(rest)
        self._waiting_octets += len(rest)
        if self._waiting_octets > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def _send(self, octets: memoryview) -> int:
        """Send what the socket takes, and return how many octets."""
        try:
            # SSLSocket.send() would have OpenSSL write what the kernel encrypts.
            if self.kernel_writes:
                return socket.socket.send(self._sock, octets)
            # If the socket becomes full amid this, OpenSSL wants the same call again, and gets it.
            return self._sock.send(octets[:WRITE_OCTETS])
        except (BlockingIOError, ssl.SSLWantWriteError):
            return 0

    def _write_waiting(self) -> None:
        try:
            while self._waiting:
                octets = self._waiting[0]
                sent = self._send(octets)
                self._waiting_octets -= sent
                if sent < len(octets):
                    self._waiting[0] = octets[sent:]
                    break
                self._waiting.popleft()
        except OSError as error:
            self._lose(error)
            return
        if not self._waiting:
            self._loop.remove_writer(self._sock)
            if self._closing:
                self._close_socket(None)
                return
            if self._ended:
                self._shut_down()
                return
        if self._writing_paused and self._waiting_octets <= self._high:
            self._writing_paused = False
            self._protocol.resume_writing()

    # --- the end

    def can_write_eof(self) -> bool:
        """True."""
        return True

    def write_eof(self) -> None:
        """End TLS and the socket's output behind the octets that wait, and throw away what still comes."""
        if not self._closing and not self._ended:
            self._ended = True
            if not self._waiting:
                self._shut_down()

    def close(self) -> None:
        """Close behind the octets that wait."""
        if not self._closing:
            self._closing = True
            self._loop.remove_reader(self._sock)
            if not self._waiting:
                self._close_socket(None)

    def abort(self) -> None:
        """Close at once."""
        self._lose(None)

    def _shut_down(self) -> None:
        self._say_end()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def _say_end(self) -> None:
        """Send TLS's close_notify; a client that does not read does not get it."""
        with suppress(OSError):
            if self.kernel_writes:
                socket.socket.sendmsg(self._sock, [CLOSE_NOTIFY], [(SOL_TLS, SET_RECORD_TYPE, bytes([ALERT]))])
            elif isinstance(self._sock, ssl.SSLSocket):
                self._sock.unwrap()

    def _lose(self, error: Exception | None) -> None:
        """Close at once, without the octets that wait."""
        self._closing = True
        self._waiting.clear()
        self._close_socket(error)

    def _close_socket(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        if not self._ended and error is None:
            self._say_end()
        self._loop.call_soon(self._tell_loss, error)

    def _tell_loss(self, error: Exception | None) -> None:
        # The protocol writes to the descriptor until it hears that it must not.  If the socket were closed before, the
        # next client to be accepted might get its number, and with it the other's messages.
        try:
            self._protocol.connection_lost(error)
        finally:
            self._sock.close()


def _peer(sock: socket.socket) -> Any:
    try:
        return sock.getpeername()
    except OSError:
        return None  # It has reset the connection.

"""Listening sockets whose connections may begin with the header of a proxy: see ``proxy_header``.

    accept -> from a trusted address: read the header, no octet more -> protocol, which is told the client's address
           -> from another one: protocol; a header there is octets of a client, and no AMQP

A trusted proxy that sends no header, or none in time, loses its connection.  At most ``WAITING_MAX`` connections wait
for their header: a new one takes the place of the oldest.
"""

import asyncio
import socket
from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd.errors import ConfigError
from brokerd.server.proxy_header import Origin, ProxyHeaderError, read

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

log = getLogger("brokerd")

WAITING_MAX = 1000
ACCEPTS_A_TURN = 64
READ_OCTETS = 4096 + 16
FULL_SECONDS = 1.0  # how long no connection is accepted after the process had no descriptor left

Make = Callable[[Origin | None], Any]


def networks(text: str) -> "list[IPv4Network | IPv6Network]":
    """The networks that an option names, between commas or blanks.  Raises ConfigError."""
    from ipaddress import ip_network

    found = []
    for word in text.replace(",", " ").split():
        try:
            found.append(ip_network(word))
        except ValueError as error:
            raise ConfigError(f"proxy_protocol_from: {error}") from None
    return found


class Acceptor:
    """One listening socket, with ``sockets`` and ``close`` as a server of the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, make: Make,
        trusted: "list[IPv4Network | IPv6Network] | None", seconds: float,
    ) -> None:  # fmt: skip
        """``make(origin)`` makes a connection's protocol.  ``trusted``: None: everybody, as on a socket that
        only this process's user may open."""
        self.sockets = [sock]
        self._loop, self._sock, self._make, self._trusted, self._seconds = loop, sock, make, trusted, seconds
        self._waiting: dict[_Waiting, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("cannot accept a connection: %s", error.strerror)
                self._loop.remove_reader(self._sock.fileno())
                self._loop.call_later(FULL_SECONDS, self._listen)
                return
            sock.setblocking(False)
            if self._is_trusted(peer):
                self._wait(sock, peer)
            else:
                self.serve(sock, None)

    def _is_trusted(self, peer: Any) -> bool:
        if self._trusted is None:
            return True
        from ipaddress import IPv6Address, ip_address

        address = ip_address(peer[0].partition("%")[0])
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._trusted)

    def _wait(self, sock: socket.socket, peer: Any) -> None:
        if len(self._waiting) >= WAITING_MAX:
            next(iter(self._waiting)).end("a newer connection takes its place")
        name = f"{peer[0]}:{peer[1]}" if peer else "unix socket"
        self._waiting[_Waiting(self._loop, self, sock, name, self._seconds)] = None

    def leave(self, waiting: "_Waiting") -> None:
        """The connection waits no more."""
        self._waiting.pop(waiting, None)

    def serve(self, sock: socket.socket, origin: Origin | None) -> None:
        """Give the socket its protocol."""
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._connect(sock, origin))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, sock: socket.socket, origin: Origin | None) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._make(origin), sock)
        except OSError as error:
            log.info("a client closed its connection before it could be served: %s", error.strerror)
            sock.close()

    def close(self) -> None:
        """Listen no more."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
        for waiting in list(self._waiting):
            waiting.end("the broker stops")


class _Waiting:
    """A connection of a proxy, until its header is there."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, acceptor: Acceptor, sock: socket.socket, name: str, seconds: float
    ) -> None:  # fmt: skip
        self._loop, self._acceptor, self._sock, self._name = loop, acceptor, sock, name
        self._octets = b""
        self._timer = loop.call_later(seconds, self.end, "no PROXY header in time")
        loop.add_reader(sock.fileno(), self._read)

    def _read(self) -> None:
        """Take what belongs to the header: what is behind it is another's to read."""
        before = len(self._octets)
        try:
            seen = self._octets + self._sock.recv(READ_OCTETS - before, socket.MSG_PEEK)
            if len(seen) == before:
                self.end("it went before its PROXY header was there" if before else "")
                return
            found = read(seen)
            length = found[0] if found is not None else len(seen)
            self._sock.recv(length - before)
        except (BlockingIOError, InterruptedError):
            return
        except (ProxyHeaderError, OSError) as error:
            self.end(str(error))
            return
        self._octets = seen[:length]
        if found is not None:
            self._leave()
            self._acceptor.serve(self._sock, found[1])

    def _leave(self) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._acceptor.leave(self)

    def end(self, why: str) -> None:
        """Close the connection; "": it had said nothing, as a check of a load balancer says nothing."""
        if why:
            log.warning("%s: %s", self._name, why)
        self._leave()
        self._sock.close()

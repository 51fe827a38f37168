"""A client's socket: the connection of the session as the loop's protocol.

Reading is the data plane's: ``get_buffer`` and ``buffer_updated`` are its own
methods, called by the loop without a line of Python between.
"""

import socket
from asyncio import BufferedProtocol
from typing import TYPE_CHECKING, Any

from brokerd.session.connection import Connection

if TYPE_CHECKING:
    from brokerd.node import Node


class AMQPProtocol(Connection, BufferedProtocol):
    """One accepted socket."""

    __slots__ = ()

    def connection_made(self, transport: Any) -> None:
        """Take the socket; the first word is the client's."""
        self.take_transport(transport, transport.get_extra_info("socket").fileno())

    def take_transport(self, transport: Any, fd: int) -> None:
        """The same; the data plane sends to ``fd`` by itself, or with -1 through the transport alone."""
        self.transport = transport
        self.peer, self.loopback = address(transport)
        if self.node.limits.tcp_nodelay and not self.peer.startswith("unix"):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Output that the socket does not take stops us at once: see the plane.  TLS takes 0 for "always full".
        transport.set_write_buffer_limits(high=0 if fd >= 0 else 1)
        self.attach(transport, fd)
        self.node.connected(self)

    def eof_received(self) -> bool:
        """A client that stops writing is gone."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is closed, by whom and why ever."""
        if self.transport is None:
            return  # uvloop may tell twice when both sides close at once
        self.lost()
        self.node.disconnected(self)
        self.transport = None  # type: ignore[assignment]


def address(transport: Any) -> tuple[str, bool]:
    """Where a client is, for people to read, and whether that is this machine."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return "unix socket", True
    host, port = peer[:2]
    return (f"{host}:{port}" if ":" not in host else f"[{host}]:{port}"), is_loopback(host)


def is_loopback(host: str) -> bool:
    """127.0.0.0/8 and ::1, also written as IPv4-mapped IPv6."""
    return host.removeprefix("::ffff:").startswith("127.") or host == "::1"


def factory(node: "Node") -> Any:
    """What makes a protocol for each accepted socket."""
    core = node.core
    return lambda: AMQPProtocol(core, node)

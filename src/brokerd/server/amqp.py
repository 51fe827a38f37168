"""A client's socket: the session's connection as a protocol of the loop.

The plane reads.  The loop calls its methods ``get_buffer`` and ``buffer_updated`` directly, without any Python between.
"""

import socket
from asyncio import BufferedProtocol
from typing import TYPE_CHECKING, Any

from brokerd.session.connection import Connection

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.plane import Core
    from brokerd.server.proxy_header import Origin


UNIX_SOCKET = "unix socket"


class AMQPProtocol(Connection, BufferedProtocol):
    """One accepted socket."""

    __slots__ = ("_origin", "on_local_socket")

    def __init__(self, core: "Core", node: "Node", origin: "Origin | None" = None) -> None:
        """``origin``: where the client is, if a proxy has said so."""
        super().__init__(core, node)
        self._origin = origin

    def connection_made(self, transport: Any) -> None:
        """Take the socket, and wait for the client's protocol header."""
        descriptor = transport.get_extra_info("socket").fileno()
        if self.node.descriptors.admits(descriptor):
            self.take_transport(transport, descriptor)
        else:
            transport.abort()

    def take_transport(self, transport: Any, fd: int) -> None:
        """Take the socket behind ``transport``; the plane writes to ``fd`` itself, or with -1 to the transport."""
        self.transport = transport
        self.peer, self.loopback = address(transport)
        on_path = self.peer == UNIX_SOCKET
        self.on_local_socket = on_path and self._origin is None
        if self._origin is not None:
            host, port = self._origin
            self.peer, self.loopback = in_words(host, port), is_loopback(host)
        if not self.node.limits.tcp_nodelay and not on_path:  # The loop has set it.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        # With 0 the transport pauses the plane as soon as the socket does not take all output.  TLS would read 0 as
        # "always full".
        transport.set_write_buffer_limits(high=0 if fd >= 0 else 1)
        self.attach(transport, fd)
        self.node.connected(self)

    def eof_received(self) -> bool:
        """Close the connection: a client that stops writing is gone."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is closed, by the client or by the broker."""
        if self.transport is None or self.ended:
            return  # uvloop may call this twice if both sides close at once
        self.lost()

    def on_gone(self, closed_properly: bool) -> None:
        """The client has gone, all that it sent is worked on, and what hung on it is gone."""
        try:
            super().on_gone(closed_properly)
        finally:
            self.node.disconnected(self)
        self.transport = None  # type: ignore[assignment]


def address(transport: Any) -> tuple[str, bool]:
    """A client's address in a form for people, and whether it is on this machine.

    The system does not name a client that has reset its connection already: it may be anywhere.
    """
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        if transport.get_extra_info("socket").family == socket.AF_UNIX:
            return UNIX_SOCKET, True
        return "unknown address", False
    host, port = peer[:2]
    return in_words(host, port), is_loopback(host)


def in_words(host: str, port: int) -> str:
    """An address with its port, for people."""
    return f"{host}:{port}" if ":" not in host else f"[{host}]:{port}"


def is_loopback(host: str) -> bool:
    """Whether the address is in 127.0.0.0/8, also as IPv4-mapped IPv6, or is ::1."""
    return host.removeprefix("::ffff:").startswith("127.") or host == "::1"


def factory(node: "Node") -> Any:
    """The function that makes a protocol for each accepted socket."""
    core = node.core
    return lambda origin=None: AMQPProtocol(core, node, origin)

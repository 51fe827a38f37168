"""Where the management process listens: a port for HTTP, a port for HTTPS, the path of a unix socket.

    socket -> TLS of the loop (HTTPS) -> protocol.Connection

The gate holds the context for the next client; ``renew`` replaces it, and open connections keep theirs.  Of clients who
have not agreed on TLS yet there are at most ``HANDSHAKES_MAX``: a new one takes the place of the oldest.

Settings: bind, port and https_port (0: none), unix_path ("": none), tls (options by name).  Knows nothing of requests.
"""

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from brokerd.errors import ConfigError
from brokerd.server import listeners

if TYPE_CHECKING:
    from brokerd.management.protocol import Room
    from brokerd.server.tls_context import Gate

HANDSHAKES_MAX = 200
HANDSHAKE_SECONDS = 10.0
SHUTDOWN_SECONDS = 5.0


class Doors:
    """The listening sockets of one process."""

    __slots__ = ("_gate", "_loop", "_make", "_path", "_room", "_servers", "_settings")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, settings: dict[str, Any], room: "Room", make: Callable[[], Any]
    ) -> None:
        """``make()`` makes the protocol of one connection."""
        self._loop, self._settings, self._room, self._make = loop, settings, room, make
        self._gate: Gate | None = None
        self._servers: list[Any] = []
        self._path = ""

    async def open(self) -> list[tuple[str, str]]:
        """Listen; return each address, and its protocol.  Raises ListenError, ConfigError."""
        settings, found = self._settings, []
        if settings["port"]:
            plain = await listeners.listen(self._loop, self._make, settings["bind"], settings["port"])
            self._servers.append(plain)
            found += [(address, "HTTP") for address in listeners.addresses(plain)]
        if settings["https_port"]:
            from brokerd.server.tls_context import Gate

            config, context = _context(settings["tls"])
            self._gate = Gate(config, context)
            make = tls_factory(self._gate, self._room, self._make)
            secret = await listeners.listen(self._loop, make, settings["bind"], settings["https_port"])
            self._servers.append(secret)
            found += [(address, "HTTPS") for address in listeners.addresses(secret)]
        if settings["unix_path"]:
            self._path = settings["unix_path"]
            self._servers.append(await listeners.listen_on_path(self._loop, self._make, self._path))
            found.append((self._path, "HTTP on a unix socket"))
        return found

    def renew(self, tls: dict[str, str]) -> None:
        """Read the files of TLS again.  The broker has just found that they can be used; if they cannot be any more,
        the former ones stay."""
        if self._gate is None:
            return
        try:
            self._gate.config, self._gate.context = _context(tls)
        except (ConfigError, OSError) as error:
            self._room.complain("HTTPS: the former certificate stays: %s", error)

    def close(self) -> None:
        """Listen no more."""
        for server in self._servers:
            server.close()
        if self._path:
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass


def _context(tls: dict[str, str]) -> Any:
    """The options, and the context that they make.  Raises ConfigError, OSError."""
    from brokerd.config import Config
    from brokerd.server.tls_context import context

    options: dict[str, Any] = dict(tls)
    config = Config(**options, tls_in_kernel=False)
    made = context(config)
    made.set_alpn_protocols(["http/1.1"])
    return config, made


def tls_factory(gate: "Gate", room: "Room", make: Callable[[], Any]) -> Callable[[], Any]:
    """The function that makes a protocol for each accepted socket: TLS with what ``make`` makes behind it."""
    from asyncio import sslproto

    from uvloop import loop as compiled

    base: Any = getattr(compiled, "SSLProtocol", sslproto.SSLProtocol)  # uvloop's is the same, compiled.
    under_way: dict[Any, None] = {}  # clients who have not agreed on TLS yet, the oldest first

    class TLS(base):
        """Counts the handshakes that are under way."""

        transport: Any = None

        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            if len(under_way) >= HANDSHAKES_MAX:
                oldest = next(iter(under_way))
                del under_way[oldest]
                oldest.transport.abort()
                room.complain("HTTPS: %d clients have not agreed on TLS: cut the oldest off", HANDSHAKES_MAX)
            under_way[self] = None
            super().connection_made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            under_way.pop(self, None)
            super().connection_lost(exc)

    def accepted() -> Any:
        done = room.loop.create_future()
        tls = TLS(room.loop, make(), gate.context, done, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS,
                  ssl_shutdown_timeout=SHUTDOWN_SECONDS)  # fmt: skip

        def agreed_or_not(done: "asyncio.Future[None]") -> None:
            under_way.pop(tls, None)
            error = None if done.cancelled() else done.exception()
            if error is not None and not isinstance(error, ConnectionError):
                room.complain("HTTPS: a TLS handshake failed: %s", getattr(error, "reason", None) or error)

        done.add_done_callback(agreed_or_not)
        return tls

    return accepted

"""One HTTP connection: uvicorn's, with the limits that it lacks.

A head has at most ``HEAD_OCTETS_MAX`` octets and ``HEADERS_MAX`` lines, and ``HEAD_SECONDS`` to arrive.  A client that
does not read its answer for ``STALL_SECONDS`` is cut off.  Among ``Room.most`` connections a new one takes the place of
the one that is idle longest; if all are busy, the new one is refused.  Bad requests leave at most one line a second in
the log, and never a traceback.
"""

import asyncio
from logging import getLogger
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

log = getLogger("brokerd.management")

CLIENTS_MAX = 1000
WEBSOCKETS_MAX = 1000
HEAD_OCTETS_MAX = 64 << 10
HEADERS_MAX = 200
HEAD_SECONDS = 10.0
STALL_SECONDS = 30.0
PIPELINE_MAX = 32  # requests of one client that wait for the answer before theirs


class BadHead(Exception):
    """The head of a request is too large."""


class Room:
    """The connections that there are, those that are idle in the order in which they became so, and the log's quota."""

    __slots__ = ("_logged", "_silent", "idle", "loop", "most", "open", "websocket_class", "websockets")

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self.loop = loop
        self.most = most
        self.open: set[Connection] = set()
        self.idle: dict[Connection, None] = {}
        self.websockets: set[Any] = set()  # clients that speak AMQP: see websocket
        self.websocket_class: Any = None  # None: none has come yet
        self._logged = float("-inf")
        self._silent = 0

    def enter(self, connection: "Connection") -> bool:
        """Whether there is room for the connection, if need be in the place of an idle one."""
        if len(self.open) >= self.most:
            oldest = next(iter(self.idle), None)
            if oldest is None:
                return False
            self.leave(oldest)
            oldest.transport.abort()
        self.open.add(connection)
        self.idle[connection] = None
        return True

    def leave(self, connection: "Connection") -> None:
        """The connection has gone."""
        self.open.discard(connection)
        self.idle.pop(connection, None)

    def complain(self, text: str, *values: object) -> None:
        """Log that a client is at fault: at most once a second."""
        now = self.loop.time()
        if now - self._logged < 1.0:
            self._silent += 1
            return
        more = f" ({self._silent} such faults more since the last line)" if self._silent else ""
        self._logged, self._silent = now, 0
        log.warning(text + more, *values)


class Connection(HttpToolsProtocol):
    """One client."""

    def __init__(self, config: "Config", state: "ServerState", room: Room) -> None:
        super().__init__(config, state, {}, room.loop)
        self._room = room
        self._head_octets = 0
        self._in_head = True
        self._refusal = 400
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    # --- the loop's side

    def connection_made(self, transport: Any) -> None:
        """As the loop calls it."""
        super().connection_made(transport)
        if not self._room.enter(self):
            self._room.complain("HTTP: %d clients are connected, and all are busy: refused another", self._room.most)
            self._refuse(503, "too many clients")
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """As the loop calls it."""
        self._room.leave(self)
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        """As the loop calls it."""
        if self.parser is None or self.transport.is_closing():
            return
        if self._head_timer is None:
            self._await_head()
        super().data_received(data)
        if self._in_head:
            self._head_octets += len(data)
            if self._head_octets > HEAD_OCTETS_MAX and not self.transport.is_closing():
                self._refuse(431, "the head of the request is too large")
        elif self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def pause_writing(self) -> None:
        """As the loop calls it."""
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_SECONDS, self._stalled)

    def resume_writing(self) -> None:
        """As the loop calls it."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    # --- the parser's side

    def on_message_begin(self) -> None:
        """As the parser calls it."""
        self._in_head, self._head_octets = True, 0
        self._room.idle.pop(self, None)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """As the parser calls it."""
        super().on_url(url)
        if len(self.url) > HEAD_OCTETS_MAX:
            self._refusal = 414
            raise BadHead

    def on_header(self, name: bytes, value: bytes) -> None:
        """As the parser calls it."""
        self._head_octets += len(name) + len(value)
        if self._head_octets > HEAD_OCTETS_MAX or len(self.headers) >= HEADERS_MAX:
            self._refusal = 431
            raise BadHead
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """As the parser calls it."""
        self._in_head, self._head_octets = False, 0
        if len(self.pipeline) >= PIPELINE_MAX:
            raise BadHead
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """As an answer's end calls it."""
        super().on_response_complete()
        if self in self._room.open and (self.cycle is None or self.cycle.response_complete):
            self._room.idle[self] = None

    # --- refusals

    def send_400_response(self, msg: str) -> None:
        """As ``data_received`` calls it."""
        client = self.client[0] if self.client else "?"
        self._room.complain("HTTP: %s sent what is no request", client)
        self._refuse(self._refusal, msg)

    # --- AMQP over WebSocket

    def _should_upgrade_to_ws(self) -> bool:
        return True

    def handle_websocket_upgrade(self) -> None:
        """As ``data_received`` calls it: another protocol takes the socket over."""
        room = self._room
        if len(room.websockets) >= min(WEBSOCKETS_MAX, room.most):
            room.complain("HTTP: %d clients speak AMQP over WebSocket: refused another", len(room.websockets))
            self._refuse(503, "too many clients")
            return
        if room.websocket_class is None:
            from brokerd.management.websocket import protocol_class

            room.websocket_class = protocol_class(room)
        self.ws_protocol_class = room.websocket_class
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._stall_timer = None
        self._unset_keepalive_if_required()
        room.leave(self)
        super().handle_websocket_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        pass  # The request is answered as if it asked for no upgrade.

    def _refuse(self, status: int, text: str) -> None:
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()  # An answer is under way, and this one cannot stand within it.
            return
        if self.cycle is not None:
            self.cycle.disconnected = True  # Nothing may follow the refusal.
        content = b'{"error":"bad_request","reason":"%s"}' % text.encode("ascii", "replace")
        head = [STATUS_LINE[status], b"content-security-policy: default-src 'none'\r\n",
                b"content-type: application/json\r\nconnection: close\r\ncontent-length: ",
                str(len(content)).encode(), b"\r\n"]
        for name, value in self.server_state.default_headers:
            head += [name, b": ", value, b"\r\n"]
        self.transport.write(b"".join([*head, b"\r\n", content]))
        self.transport.close()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._in_head and not self.transport.is_closing():
            if self.parser is not None and self._head_octets:
                self._refuse(408, "the head of the request did not arrive in time")
            else:
                self.transport.close()

    def _stalled(self) -> None:
        self._stall_timer = None
        if not self.transport.is_closing():
            self._room.complain("HTTP: %s does not read its answer: cut off", self.client[0] if self.client else "?")
        self.transport.abort()

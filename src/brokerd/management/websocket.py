"""AMQP over WebSocket: ``/ws/amqp`` with the subprotocol ``amqp``, or with none.

    client -> uvicorn's WSProtocol (wsproto) -> socket amqp.sock of the broker, with a PROXY header in front -> client

AMQP is a stream of octets, so the bounds of WebSocket's messages have no meaning: the octets of a message go on before
its end is there, and a message may be of any size.  Neither side is read while the other does not take the octets: a
client that does not read costs as much memory as two sockets hold.  Login is AMQP's own.  Pages of other sites are
refused, unless ``websocket_origins`` names them: otherwise a page from anywhere could log in to a broker on the machine
of its reader.

Knows nothing of AMQP's frames.
"""

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto.events import BytesMessage

from brokerd import local_socket
from brokerd.server.proxy_header import Origin, make

if TYPE_CHECKING:
    from brokerd.management.protocol import Room

PATHS = ("/ws/amqp", "/ws")
SUBPROTOCOL = "amqp"
READ_OCTETS = 64 << 10
WRITE_OCTETS = 64 << 10  # that may wait for the broker before the client is read no more
NORMAL, GOING_AWAY, NO_TEXT = 1000, 1001, 1003


def protocol_class(room: "Room") -> type[WSProtocol]:
    """The class of a client's protocol, in that room."""

    class Client(WSProtocol):
        """One client after its upgrade."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            room.websockets.add(self)

        def connection_lost(self, exc: Exception | None) -> None:
            room.websockets.discard(self)
            super().connection_lost(exc)

        def handle_message(self, event: Any) -> None:
            """Pass on the part of a message that has come."""
            if isinstance(event, BytesMessage):
                self.queue.put_nowait({"type": "websocket.receive", "bytes": bytes(event.data)})
            else:
                self.queue.put_nowait({"type": "websocket.receive", "text": ""})
            if not self.read_paused:
                self.read_paused = True
                self.transport.pause_reading()

    return Client


async def serve(scope: Any, receive: Any, send: Any, settings: dict[str, Any]) -> None:
    """One WebSocket, as ASGI has it."""
    await receive()  # websocket.connect
    path = scope["raw_path"].decode("latin-1").rstrip("/")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    offered = scope["subprotocols"]
    if path not in PATHS:
        await _refuse(send, 404, "AMQP over WebSocket is at /ws/amqp")
    elif not is_welcome(headers, settings["websocket_origins"]):
        await _refuse(send, 403, "websocket_origins does not name the site of this page")
    elif offered and SUBPROTOCOL not in offered:
        await _refuse(send, 400, "the subprotocol is amqp")
    else:
        await _bridge(scope, receive, send, settings["data_dir"])


def is_welcome(headers: dict[str, str], named: str) -> bool:
    """Whether the page that asks is the broker's own, of a site that is named, or no page at all."""
    origin = headers.get("origin")
    sites = [each.rstrip("/").lower() for each in named.replace(",", " ").split()]
    if origin is None or "*" in sites or origin.lower() in sites:
        return True
    try:
        host = urlsplit(origin).netloc
    except ValueError:
        return False
    return bool(host) and host.lower() == headers.get("host", "").lower()


async def _refuse(send: Any, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": text.encode()})


async def _bridge(scope: Any, receive: Any, send: Any, data_dir: str) -> None:
    try:
        with local_socket.address(data_dir, local_socket.AMQP_NAME) as name:
            reader, writer = await asyncio.open_unix_connection(name, limit=READ_OCTETS)
    except OSError as error:
        await _refuse(send, 503, f"the broker cannot be reached: {error.strerror or error}")
        return
    try:
        writer.transport.set_write_buffer_limits(high=WRITE_OCTETS)
        client = scope["client"]  # None: on a unix socket
        writer.write(make(Origin(client[0].partition("%")[0], client[1]) if client else None))
        subprotocol = SUBPROTOCOL if scope["subprotocols"] else None
        await send({"type": "websocket.accept", "subprotocol": subprotocol})
        both = [asyncio.ensure_future(_to_broker(receive, send, writer)),
                asyncio.ensure_future(_to_client(reader, send))]  # fmt: skip
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
    except OSError:
        pass  # One of the two has gone.
    finally:
        writer.transport.abort()


async def _to_broker(receive: Any, send: Any, writer: asyncio.StreamWriter) -> None:
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        octets = message.get("bytes")
        if octets is None:
            await send({"type": "websocket.close", "code": NO_TEXT, "reason": "AMQP is binary"})
            return
        writer.write(octets)
        await writer.drain()


async def _to_client(reader: asyncio.StreamReader, send: Any) -> None:
    while octets := await reader.read(READ_OCTETS):
        await send({"type": "websocket.send", "bytes": octets})
    await send({"type": "websocket.close", "code": NORMAL})

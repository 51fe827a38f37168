"""The client of the broker's control socket: a few connections that many requests share.  Protocol: ``server/control``.

One connection answers one request at a time.  Requests beyond ``CONNECTIONS`` wait, at most ``WAITING_MAX`` of them.
Those that wait at the broker, as for a message, have ``PATIENT_CONNECTIONS`` of their own: no other request waits for
them.
Knows nothing of HTTP.
"""

import asyncio
import json
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from brokerd import json_text, local_socket
from brokerd.errors import BrokerError
from brokerd.server.control import REQUEST_OCTETS_MAX

RESERVED = ("verb", "as", "as_user", "by", "grant")  # fields of the protocol: no client of HTTP may set them
CONNECTIONS = 12
PATIENT_CONNECTIONS = 100
WAITING_MAX = 500
ANSWER_OCTETS_MAX = 256 << 20
IDLE_SECONDS = 30.0  # A connection is used no longer: the broker closes it after a minute of silence.
ANSWER_SECONDS = 60.0


class Refused(BrokerError):
    """The broker refused the request.  ``code`` is HTTP's: see ``operations.OperationError``."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Unavailable(BrokerError):
    """The broker cannot be asked now, or too many requests wait for it."""


class _Link:
    """One connection."""

    __slots__ = ("reader", "used", "writer")

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.used = 0.0  # when it was last used

    async def ask(self, request: bytes) -> Any:
        self.writer.write(request)
        await self.writer.drain()
        while True:
            line = await self.reader.readuntil(b"\n")
            answer = decode(line)
            if "progress" not in answer:
                return answer


class Control:
    """Asks the broker on ``directory``."""

    __slots__ = ("_directory", "_free", "_idle", "_patient", "_waiting")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._free = asyncio.Semaphore(CONNECTIONS)
        self._patient = asyncio.Semaphore(PATIENT_CONNECTIONS)
        self._idle: list[_Link] = []
        self._waiting = 0

    async def ask(
        self, verb: str, fields: dict[str, Any], user: str | None = None, address: str = "", *,
        seconds: float = ANSWER_SECONDS, grant: str = "", free: AbstractAsyncContextManager[object] | None = None,
    ) -> Any:  # fmt: skip
        """The answer to an operation.  ``user``: in whose name; None: in that of the broker itself.  ``address``: where
        that user is.  ``grant``: see Login.  ``free``: says when there is a connection.

        Raises Refused, Unavailable.  The broker cancels the operation if this call is cancelled.
        """
        request = _encode(verb, fields, user, address, grant)
        if len(request) > REQUEST_OCTETS_MAX:
            raise Refused(f"{verb}: the request has more than {REQUEST_OCTETS_MAX} octets", 413)
        if self._waiting >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX} requests wait for the broker already")
        self._waiting += 1
        try:
            async with asyncio.timeout(seconds), free or self._free:
                answer = await self._ask(request)
        except TimeoutError:
            raise Unavailable(f"{verb}: no answer from the broker in {seconds:g} s") from None
        finally:
            self._waiting -= 1
        if "result" in answer:
            return answer["result"]
        raise Refused(str(answer.get("error")), int(answer.get("code", 500)))

    async def ask_patiently(
        self, verb: str, fields: dict[str, Any], user: str, address: str, *, seconds: float, grant: str
    ) -> Any:
        """``ask`` for an operation that waits up to ``fields["wait"]`` seconds.  If all connections for that are in
        use so long, the broker is asked without a wait."""
        wait = fields.get("wait")
        if not isinstance(wait, int | float) or isinstance(wait, bool) or not 0 < wait <= seconds:
            # If it is wrong, the broker says so.
            return await self.ask(verb, fields, user, address, seconds=seconds, grant=grant)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        try:
            async with asyncio.timeout(wait):
                await self._patient.acquire()
        except TimeoutError:
            return await self.ask(verb, {**fields, "wait": 0}, user, address, seconds=seconds, grant=grant)
        try:
            left = min(max(until - loop.time() + 0.5, 0), wait)
            fields = {**fields, "wait": int(left) if isinstance(wait, int) else left}
            return await self.ask(verb, fields, user, address, seconds=seconds, grant=grant, free=nullcontext())
        finally:
            self._patient.release()

    async def _ask(self, request: bytes) -> Any:
        try:
            link = await self._link()
        except OSError as error:
            raise Unavailable(f"the broker cannot be reached: {error.strerror or error}") from None
        try:
            answer = await link.ask(request)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            link.writer.transport.abort()
            ended = isinstance(error, EOFError)
            text = "it closed the connection" if ended else getattr(error, "strerror", None) or error
            raise Unavailable(f"the broker went away: {text}") from None
        except BaseException:
            link.writer.transport.abort()  # Its answer would come to the next request.
            raise
        link.used = asyncio.get_running_loop().time()
        self._idle.append(link)
        return answer

    async def _link(self) -> _Link:
        """An idle connection, or a new one.  Raises OSError."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            link = self._idle.pop()
            if now - link.used < IDLE_SECONDS and not link.reader.at_eof() and not link.writer.is_closing():
                return link
            link.writer.transport.abort()
        with local_socket.address(self._directory) as name:
            reader, writer = await asyncio.open_unix_connection(name, limit=ANSWER_OCTETS_MAX)
        return _Link(reader, writer)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            link = self._idle.pop()  # Named, so that its writer is there until it is closed.
            link.writer.transport.abort()


def _encode(verb: str, fields: dict[str, Any], user: str | None, address: str, grant: str) -> bytes:
    """The request as a line.  Raises Refused for a field that would say who asks, or what for."""
    for name in RESERVED:
        if name in fields:
            raise Refused(f"{verb}: unknown field '{name}'", 400)
    request = {**fields, "verb": verb}
    if user is not None:
        request["as"] = user
        if grant:
            request["grant"] = grant
        request["by"] = {"face": "HTTP", "address": address}
    return json.dumps(request).encode() + b"\n"


def decode(octets: bytes) -> Any:
    """The value of JSON octets.  Names that are not UTF-8 have surrogates, which only the slower decoder takes.
    Raises ValueError."""
    try:
        return json_text.decode(octets)
    except RecursionError:
        raise ValueError("nested too deeply") from None

"""A shovel's way to a web server: one POST a message, in order, each answered before the next.

    2xx                                settled at the source
    408, 425, 429, 5xx, no answer      tried again after 1 s, 2 s, ... 60 s; nothing passes it meanwhile
    any other                          will never pass: left to the dead-letter rules of the source, and told in the log

The body is the message's.  Headers are those that LavinMQ sends, X-Shovel, X-Message-Id, Content-Type and X-NAME for
each header of the message, and one for each further property.  What HTTP cannot carry is left out.  The path is the
address's; a message's header ``uri_path`` replaces it.
"""

import asyncio
import http.client
import json
import os
import re
import socket
import ssl
from base64 import b64encode
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from errno import ECONNABORTED, ETIMEDOUT
from logging import getLogger
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from brokerd import __version__
from brokerd.client.connection import ClientError, Connection, Delivery, reason
from brokerd.errors import AMQPError
from brokerd.links import state as states
from brokerd.links.definition import NO_ACK, ON_CONFIRM
from brokerd.wire import methods
from brokerd.wire.properties import Properties, decode_header

if TYPE_CHECKING:
    from brokerd.carriers.shovel import Shovel

log = getLogger("brokerd.links")

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 60.0
ANSWER_SECONDS = 30.0  # that nothing comes, or the socket takes nothing
WHOLE_ANSWER_SECONDS = 90.0  # for a request and its answer
ANSWER_OCTETS_MAX = 1 << 16  # of a body, which is not read: with more of it the connection is closed
REASON_LETTERS_MAX = 200
END_SECONDS = 2.0  # that a link waits at its end for a request under way
LATER = frozenset((408, 425, 429))  # with these, and 5xx, the server may take the same message later
WAITING_MAX = 10_000  # messages, before the source waits; those of a shovel with acks are at most its prefetch count
WAITING_OCTETS_MAX = 16 << 20  # of their bodies


class Poster:
    """The messages of one shovel that wait for the web server."""

    def __init__(self, shovel: "Shovel", source: Connection, limit: int) -> None:
        self._shovel, self._source, self._limit = shovel, source, limit
        self._waiting: deque[Delivery] = deque()
        self._octets = 0  # of the bodies that wait
        # Of its own: web servers that are slow hold up no other shovel.
        self._thread = ThreadPoolExecutor(1, f"shovel {shovel.spec.key.name}")
        self._came = asyncio.Event()
        self._posting: asyncio.Future[tuple[int, str]] | None = None
        self._server = Server(shovel.definition.dest_uri[0])
        source.on_delivery = self._take
        source.closed.add_done_callback(lambda _: self._came.set())

    def _take(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        self._octets += len(delivery.body)
        if len(self._waiting) >= WAITING_MAX or self._octets > WAITING_OCTETS_MAX:
            self._source.pause(True)
        self._came.set()

    async def run(self) -> None:
        """Post until the limit is reached.  Raises ClientError when the source ends."""
        self._shovel.become(states.RUNNING)
        acks = self._shovel.definition.ack_mode
        try:
            while self._limit:
                if self._source.closed.done():
                    raise ClientError(f"source: {self._source.closed.result()}")
                if not self._waiting:
                    self._came.clear()
                    self._source.pause(False)
                    await self._came.wait()
                    continue
                delivery = self._waiting[0]
                if acks not in (ON_CONFIRM, NO_ACK):
                    self._source.write(methods.BasicAck(delivery_tag=delivery.tag).frame(1))
                passed = await self._post(delivery)
                self._waiting.popleft()
                self._octets -= len(delivery.body)
                self._limit -= self._limit > 0
                self._count(passed)
                if acks == ON_CONFIRM:
                    answer = methods.BasicAck if passed else methods.BasicReject
                    self._source.write(answer(delivery_tag=delivery.tag).frame(1))
        finally:
            self._server.close()
            self._thread.shutdown(wait=False)
            if self._posting is not None:  # The thread: what it has begun is over before the link is.
                await asyncio.wait([self._posting], timeout=END_SECONDS)

    def _count(self, passed: bool) -> None:
        import time

        state = self._shovel.state
        state.messages += 1
        state.rejected += not passed
        state.last_message = time.time()

    async def _post(self, delivery: Delivery) -> bool:
        """Whether the server took it; False: it never will."""
        try:
            _, properties = decode_header(delivery.header)
        except AMQPError as error:
            raise ClientError(f"source: the broker sent what is not understood: {error}") from None
        for change in self._shovel.id_changes():
            change(properties)
        tries = 0
        while True:
            try:
                code, text = await self._ask(*self._request(delivery, properties))
            except OSError as error:
                code, text = 0, reason(error, "use http://")
            except UnicodeError:
                code, text = 0, "the URI's host is no name of a host"
            except http.client.HTTPException as error:
                code, text = 0, f"it does not answer in HTTP: {type(error).__name__} {error}".rstrip()
            text = text[:REASON_LETTERS_MAX]
            if 200 <= code < 300:
                if tries:
                    self._shovel.become(states.RUNNING)
                return True
            told = f"the web server answered {code} {text}" if code else f"the web server cannot be reached: {text}"
            tries += 1
            retries = self._shovel.definition.dest_retries
            if (400 <= code < 500 and code not in LATER) or (retries >= 0 and tries > retries):
                log.warning("%s: %s: the message is left to the dead-letter rules of its source", self._shovel.title,
                            told)  # fmt: skip
                return False
            delay = min(FIRST_RETRY_SECONDS * 2 ** min(tries - 1, 16), LAST_RETRY_SECONDS)
            self._shovel.state.retried += 1
            self._shovel.become(states.BLOCKED, f"{told}: tried {tries} times, again in {delay:g} s")
            await asyncio.wait([self._source.closed], timeout=delay)
            if self._source.closed.done():
                raise ClientError(f"source: {self._source.closed.result()}")

    async def _ask(self, *request: Any) -> tuple[int, str]:
        """Status and reason of the answer to one request.  Raises OSError, HTTPException."""
        loop = asyncio.get_running_loop()
        self._posting = loop.run_in_executor(self._thread, self._server.post, *request)
        self._posting.add_done_callback(_take_note)  # The shovel may end before the answer comes.
        done, _ = await asyncio.wait([self._posting], timeout=WHOLE_ANSWER_SECONDS)
        if not done:
            self._server.interrupt()
            await asyncio.wait([self._posting])
            if self._posting.exception() is not None:
                raise TimeoutError(ETIMEDOUT, os.strerror(ETIMEDOUT))
        return self._posting.result()

    def _request(self, delivery: Delivery, properties: Properties) -> tuple[str, dict[str, str], bytes]:
        found = dict(properties.headers or {})
        path = found.pop("uri_path", "")
        headers = {f"X-{name}".lower(): (f"X-{name}", _as_text(value)) for name, value in found.items()}
        # A message's own headers come first: none of them can pass for a property.
        for name, value in properties.present().items():
            if name != "headers":
                title = "-".join(word.capitalize() for word in name.split("_"))
                title = title if title.startswith("Content-") else f"X-{title}"
                headers[title.lower()] = (title, _as_text(value))
        for title, text in (("User-Agent", f"brokerd {__version__}"), ("X-Shovel", self._shovel.spec.key.name)):
            headers[title.lower()] = (title, text)
        clean = {title: text for title, text in headers.values() if _TOKEN.fullmatch(title) and _is_plain(text)}
        return _path_of(path), clean, delivery.body


def _take_note(posting: "asyncio.Future[tuple[int, str]]") -> None:
    """Take the result, so that asyncio does not log an error that is known already."""
    if not posting.cancelled():
        posting.exception()


_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a header's name (RFC 9110)
_IN_PATHS = "/?&=%:@!$'()*+,;~"


def _path_of(value: Any) -> str:
    """The path that a message asks for; "": the address's."""
    if not isinstance(value, str) or not value:
        return ""
    return "/" + quote(value.lstrip("/"), safe=_IN_PATHS, errors="surrogateescape")


def _as_text(value: Any) -> str:
    """A value of AMQP as a header's text: numbers in digits, true and false, texts as they are, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _is_plain(text: str) -> bool:
    """Whether a header of HTTP can have it."""
    return text.isprintable() and text.isascii()


class Server:
    """The web server, over one connection that stays open.  Used in one thread at a time."""

    def __init__(self, uri: str) -> None:
        self._is_closed = self._is_interrupted = False
        parts = urlsplit(uri)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._path = quote(path, safe=_IN_PATHS, errors="surrogateescape")
        self._headers: dict[str, str] = {}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        self._link: Any = (
            http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS,
                                        context=ssl.create_default_context())
            if parts.scheme.lower() == "https"
            else http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS)
        )  # fmt: skip

    def post(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str]:
        """Status and reason of the answer.  Raises OSError, HTTPException."""
        fresh, self._is_interrupted = self._link.sock is None, False
        try:
            return self._post_once(path, headers, body)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            if fresh or self._is_interrupted:
                raise
            return self._post_once(path, headers, body)  # The server had closed a connection that was idle.

    def _post_once(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str]:
        if self._is_closed:
            raise ConnectionAbortedError(ECONNABORTED, "the link ends")
        try:
            self._link.request("POST", path or self._path, body, {**self._headers, **headers})
            answer = self._link.getresponse()
            answer.read(ANSWER_OCTETS_MAX)
            if not answer.isclosed():
                self._link.close()
            return answer.status, answer.reason
        except BaseException:
            self._link.close()
            raise

    def close(self) -> None:
        """Close the connection, also while a thread waits there for an answer: no further request goes out."""
        self._is_closed = True
        self.interrupt()
        self._link.close()

    def interrupt(self) -> None:
        """End the request under way."""
        self._is_interrupted = True
        sock = self._link.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

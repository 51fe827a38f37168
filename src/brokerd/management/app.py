"""One HTTP request: finds its route by the raw path, asks who it is, calls the route, and turns every fault into an
answer.

Below ``/api`` errors have RabbitMQ's shape, and a user who may not do something is told 401, as RabbitMQ tells; below
``/api/v2`` errors are problem+json, with 401 for who is not logged in and 403 for who may not.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from brokerd.management import answers
from brokerd.management.again import Again
from brokerd.management.answers import BadRequest, Denied, Fault, NotThere
from brokerd.management.control import Control, Refused, Unavailable, decode
from brokerd.management.logins import Login, Logins
from brokerd.operations.rights import INCLUDED_IN

if TYPE_CHECKING:
    from brokerd.management.routes import Routes
    from brokerd.management.samples import Samples

log = getLogger("brokerd.management")

BODY_OCTETS_MAX = 32 << 20
BODY_SECONDS = 30.0
QUERY_FIELDS_MAX = 100

# Texts of RabbitMQ for a user without the tag.
WITHOUT_TAG = {
    "management": "Not management user", "policymaker": "Not policy maker", "monitoring": "Not monitor user",
    "administrator": "Not administrator user",
}  # fmt: skip

# A page gets scripts and styles from this broker alone.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

GONE = "the handler is closed"  # uvloop's word for a client that has gone just now
Handler = Callable[["Call"], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """The answer at a path.  ``tag``: the user has it, or one that includes it; "": every user who has logged in;
    None: everybody.  ``again``: an answer that took long may be given again for some seconds.  ``changes``: what lists
    show is different afterwards; None: it is unless the method is GET or HEAD."""

    handler: Handler
    tag: str | None = "management"
    again: bool = False
    changes: bool | None = None


@dataclass(slots=True)
class Services:
    """The objects that all requests share."""

    control: Control
    logins: Logins
    samples: "Samples"
    settings: dict[str, Any]
    again: Again = field(default_factory=Again)


class Call:
    """One request, as its route sees it."""

    __slots__ = ("_request", "headers", "login", "method", "path", "query", "raw_query", "services", "values")

    def __init__(self, request: Request, services: Services, values: dict[str, str], path: str) -> None:
        self._request = request
        self.services = services
        self.values = values  # of the names in the route's pattern
        self.method: str = request.method
        self.headers: Headers = request.headers
        self.path = path
        self.raw_query: str = request.scope["query_string"].decode("latin-1")
        self.query = _query(self.raw_query)
        self.login = Login("", ())

    @property
    def address(self) -> str:
        """Where the client is."""
        client = self._request.client
        return client.host if client else ""

    @property
    def is_secret(self) -> bool:
        """Whether the request came over TLS."""
        return bool(self._request.scope["scheme"] == "https")

    def has_tag(self, tag: str) -> bool:
        """Whether the user has the tag, or one that includes it."""
        return not INCLUDED_IN[tag].isdisjoint(self.login.tags)  # type: ignore[index]

    async def ask(self, verb: str, seconds: float = 60.0, /, **fields: Any) -> Any:
        """Ask the broker in the user's name.  Raises Refused, Unavailable."""
        login = self.login
        return await self.services.control.ask(
            verb, fields, login.user, self.address, seconds=seconds, grant=login.grant
        )

    async def ask_patiently(self, verb: str, seconds: float, /, **fields: Any) -> Any:
        """``ask`` for an operation that waits for something: see ``Control.ask_patiently``."""
        login = self.login
        return await self.services.control.ask_patiently(
            verb, fields, login.user, self.address, seconds=seconds, grant=login.grant
        )

    async def ask_as_broker(self, verb: str, /, **fields: Any) -> Any:
        """Ask in the broker's own name, where the caller has checked the user's rights."""
        return await self.services.control.ask(verb, fields)

    async def octets(self) -> bytes:
        """The body.  Raises Fault (408, 413)."""
        length = self.headers.get("content-length", "0")
        if length.isdigit() and int(length) > BODY_OCTETS_MAX:
            raise Fault(413, f"the body has more than {BODY_OCTETS_MAX} octets")
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in self._request.stream():
                    body += chunk
                    if len(body) > BODY_OCTETS_MAX:
                        raise Fault(413, f"the body has more than {BODY_OCTETS_MAX} octets")
        except TimeoutError:
            raise Fault(408, f"the body did not arrive in {BODY_SECONDS:g} s") from None
        return bytes(body)

    async def table(self) -> dict[str, Any]:
        """The body as a JSON object; {} if there is none.  Raises Fault."""
        octets = await self.octets()
        if not octets.strip():
            return {}
        try:
            body = decode(octets)
        except ValueError as error:
            raise BadRequest(f"not JSON: {error}") from None
        if not isinstance(body, dict):
            raise BadRequest("the body is not a JSON object")
        return body


class App:
    """The ASGI application."""

    __slots__ = ("_routes", "_services")

    def __init__(self, services: Services, routes: "Routes") -> None:
        self._services = services
        self._routes = routes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI has it."""
        if scope["type"] == "websocket":
            from brokerd.management import websocket  # The first client imports wsproto.

            await websocket.serve(scope, receive, send, self._services.settings)
            return
        path = scope["raw_path"].decode("latin-1")
        try:
            response = await self._answer(Request(scope, receive), path)
        except ClientDisconnect:
            return
        except Fault as fault:
            response = _in_its_shape(path, fault)
        except Refused as error:
            response = _in_its_shape(path, _as_fault(path, error))
        except Unavailable as error:
            response = _in_its_shape(path, Fault(503, str(error), headers={"retry-after": "1"}))
        except Exception as error:  # A fault of ours must not end the connection, nor tell strangers about itself.
            log.error("HTTP: internal error at %s %s", scope["method"], path, exc_info=error)
            response = _in_its_shape(path, Fault(500, "internal error: see the broker's log"))
        response.headers.setdefault("cache-control", "no-cache")
        response.headers.setdefault("content-security-policy", POLICY)
        if response.status_code == 401 and _is_of_page(scope):
            del response.headers["www-authenticate"]  # Browsers would ask for a password over the page.
        try:
            await response(scope, receive, send)
        except (ClientDisconnect, OSError):
            pass  # The client has gone.
        except RuntimeError as error:
            if GONE not in str(error):
                raise

    async def _answer(self, request: Request, path: str) -> Response:
        found = self._routes.find(path)
        if found is None:
            raise NotThere
        methods, values = found
        row = methods.get("GET" if request.method == "HEAD" else request.method)
        if row is None:
            allowed = ", ".join(["OPTIONS", *methods])
            if request.method == "OPTIONS":
                return answers.nothing(200, {"allow": allowed})
            raise Fault(405, f"{request.method} is not possible here", headers={"allow": allowed})
        names, route = row
        call = Call(request, self._services, dict(zip(names, values, strict=True)), path)
        if route.tag is not None:
            call.login = await self._services.logins.who(request.method, request.headers, call.address)
            if route.tag and not call.has_tag(route.tag):
                status = 403 if _is_own_style(path) else 401
                raise Fault(status, WITHOUT_TAG[route.tag])
        return await _handled(call, route)


async def _handled(call: Call, route: Route) -> Response:
    again = call.services.again
    if route.again:
        login = call.login
        key = call.path, call.raw_query, login.user, login.tags, login.grant
        return await again.answer(key, partial(route.handler, call))
    try:
        return await route.handler(call)
    finally:
        if call.method not in ("GET", "HEAD") if route.changes is None else route.changes:
            again.end_all()


def _query(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape",
                          max_num_fields=QUERY_FIELDS_MAX)  # fmt: skip
    except ValueError:
        raise BadRequest(f"the query has more than {QUERY_FIELDS_MAX} fields") from None
    return dict(pairs)


def _is_of_page(scope: Any) -> bool:
    headers = Headers(scope=scope)
    return "x-requested-with" in headers or "text/event-stream" in headers.get("accept", "")


def _is_own_style(path: str) -> bool:
    return path.startswith("/api/v2/")


def _in_its_shape(path: str, fault: Fault) -> Response:
    if not _is_own_style(path):
        return answers.rabbit_fault(fault)
    if isinstance(fault, Denied) and "www-authenticate" in fault.headers:
        fault.headers["www-authenticate"] = 'Basic realm="brokerd"'
    return answers.problem(fault)


def _as_fault(path: str, error: Refused) -> Fault:
    """The broker's refusal.  Below /api RabbitMQ says 401 where a right is missing."""
    code = error.code if 400 <= error.code < 600 else 500
    if code == 403 and not _is_own_style(path):
        code = 401
    return Fault(code, str(error))

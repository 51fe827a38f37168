"""``/api/v2``: every operation of the table as ``POST /api/v2/NOUN/VERB``, the session of pages, live samples.

The body is the operation's request, a JSON object; the answer is its result.  The broker checks both the request and
the user's right, by the same row as for brokerctl.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from brokerd.management import logins
from brokerd.management.answers import BadRequest, Denied, Fault, as_json, encode, nothing
from brokerd.management.app import Call, Route
from brokerd.management.logins import COOKIE, SESSION_SECONDS, Login
from brokerd.operations import table
from brokerd.operations.rows import Operation

OPERATION_SECONDS = 3600.0  # a dump of a large broker takes its time
LIVE_MAX = 200  # pages that are told of samples at a time
_live = 0


def routes() -> list[tuple[str, str, Route]]:
    """The routes of this module."""
    own: list[tuple[str, str, Route]] = [
        ("POST", f"/api/v2/{row.noun}/{row.verb}", Route(_operation(row), "", changes=row.changes and not row.traffic))
        for row in table.by_name().values()
    ]
    return [
        *own,
        ("GET", "/api/v2/openapi.json", Route(_openapi, "")),
        ("GET", "/api/v2/session", Route(_session, "management")),
        ("POST", "/api/v2/session", Route(_log_in, None)),
        ("DELETE", "/api/v2/session", Route(_log_out, None)),
        ("GET", "/api/v2/live", Route(_live_samples, "monitoring")),
    ]


def _operation(row: Operation[Any, Any]) -> Any:
    async def handler(call: Call) -> Response:
        body = await call.table()
        ask = call.ask_patiently if body.get("wait") else call.ask
        answer = await ask(row.name, OPERATION_SECONDS if row.job else 60.0, **body)
        if row.changes and row.noun == "user":
            call.services.logins.forget()
        return as_json(answer)

    return handler


async def _openapi(call: Call) -> Response:
    from brokerd.management.openapi import document  # pydantic makes the schemas: only who asks needs it.

    octets = await asyncio.to_thread(document)
    return Response(octets, media_type="application/json")


# --- the session of pages


async def _log_in(call: Call) -> Response:
    logins.check_origin(call.headers)
    body = await call.table()
    name, password = body.get("user"), body.get("password")
    if not isinstance(name, str) or not isinstance(password, str) or body.keys() != {"user", "password"}:
        raise BadRequest("the body must be an object with the texts user and password")
    try:
        login, mark = await call.services.logins.log_in(name, password, call.address)
    except Denied as denied:
        raise Denied(denied.text, ask=False) from None  # A page has its own form.
    call.login = login
    if not call.has_tag("management"):
        raise Fault(403, "Not management user")
    cookie, session = call.services.logins.open(login, mark)
    return as_json(_session_table(login, session), 200, cookie_header(call, cookie, SESSION_SECONDS))


async def _session(call: Call) -> Response:
    return as_json(_session_table(call.login, call.login.session or {}))


async def _log_out(call: Call) -> Response:
    logins.check_origin(call.headers)
    return nothing(204, cookie_header(call, "", 0))


def cookie_header(call: Call, value: str, seconds: int) -> dict[str, str]:
    """The header that sets the cookie of a session."""
    secure = "; Secure" if call.is_secret else ""
    return {"set-cookie": f"{COOKIE}={value}; Max-Age={seconds}; Path=/; HttpOnly; SameSite=Strict{secure}"}


def _session_table(login: Login, session: dict[str, Any]) -> dict[str, Any]:
    return {"user": login.user, "tags": list(login.tags), "csrf_token": session.get("c"), "expires": session.get("e")}


# --- live samples


async def _live_samples(call: Call) -> Response:
    if _live >= LIVE_MAX:
        raise Fault(503, f"{LIVE_MAX} clients are told of samples already")
    return StreamingResponse(_events(call), media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _events(call: Call) -> AsyncIterator[bytes]:
    """Server-sent events: a sample of the overview each few seconds, the last one at once."""
    global _live
    _live += 1
    try:
        async for number, sample in call.services.samples.follow():
            yield b"id: %d\nevent: overview\ndata: %s\n\n" % (number, encode(sample))
    finally:
        _live -= 1

"""``/api/v2/log``: the broker's log as server-sent events.

Each line is an event ``line``, whose id is its number: a client that comes again with ``Last-Event-ID`` gets what it
has missed, and after a start of the broker, which counts anew, all since that start.  The query has the fields of the
operation "node log".  The broker is asked once a second, in the user's name, and only when the client has read what was
sent before; an event ``failed`` says why no more will come.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from brokerd.management.answers import BadRequest, Fault, encode
from brokerd.management.app import Call, Route
from brokerd.management.control import Refused, Unavailable

FOLLOWERS_MAX = 100  # clients that follow the log at a time
EVERY_SECONDS = 1.0
SILENCE_SECONDS = 15.0  # after which a comment tells the client that the connection is there
_followers = 0


def routes() -> list[tuple[str, str, Route]]:
    """The route of this module."""
    return [("GET", "/api/v2/log", Route(_log, "administrator"))]


async def _log(call: Call) -> Response:
    if _followers >= FOLLOWERS_MAX:
        raise Fault(503, f"{FOLLOWERS_MAX} clients follow the log already")
    fields: dict[str, Any] = dict(call.query)
    after = call.headers.get("last-event-id") or fields.pop("after", "0")
    if not (after.isascii() and after.isdigit() and len(after) <= 18):
        raise BadRequest(f"after must be the number of a line, and not '{after:.80}'")
    found = await call.ask("node log", **{**fields, "after": int(after)})  # A request that is wrong gets its status.
    if int(after) == found["last"]:  # Nothing is newer, or the broker was started again and counts anew.
        whole = await call.ask("node log", **{**fields, "after": 0})
        found = whole if whole["last"] < int(after) else found
    return StreamingResponse(_events(call, fields, found), media_type="text/event-stream",
                             headers={"cache-control": "no-store", "x-accel-buffering": "no"})  # fmt: skip


async def _events(call: Call, fields: dict[str, Any], found: dict[str, Any]) -> AsyncIterator[bytes]:
    global _followers
    _followers += 1
    loop = asyncio.get_running_loop()
    told = 0.0
    try:
        while True:
            octets = b"".join([b"id: %d\nevent: line\ndata: %s\n\n" % (row["number"], encode(row))
                               for row in found["items"]])  # fmt: skip
            if octets or loop.time() - told > SILENCE_SECONDS:
                told = loop.time()
                yield octets or b": nothing new\n\n"
            await asyncio.sleep(EVERY_SECONDS)
            found = await call.ask("node log", **{**fields, "after": found["last"]})
    except (Refused, Unavailable) as error:
        yield b"event: failed\ndata: %s\n\n" % encode({"detail": str(error)})
    finally:
        _followers -= 1

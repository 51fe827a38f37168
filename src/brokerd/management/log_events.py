"""The broker's log as server-sent events: ``/api/v2/log``, and ``/api/livelog`` as LavinMQ has it, with ``/api/logs``.

Each line is an event ``line``, whose id is its number: a client that comes again with ``Last-Event-ID`` gets what it
has missed, and after a start of the broker, which counts anew, all since that start.  The query has the fields of the
operation "node log".  The broker is asked once a second, in the user's name, and only when the client has read what was
sent before; an event ``failed`` says why no more will come.

An event of ``/api/livelog`` has no name; its data is a list of severity, source and text, and its id MS.NUMBER: the
line's time, which LavinMQ's clients read, and its number.  ``/api/logs`` is all that is kept, as text.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response, StreamingResponse

from brokerd.management.answers import BadRequest, Fault, encode
from brokerd.management.app import Call, Route
from brokerd.management.control import Refused, Unavailable

FOLLOWERS_MAX = 100  # clients that follow the log at a time
EVERY_SECONDS = 1.0
SILENCE_SECONDS = 15.0  # after which a comment tells the client that the connection is there
SOURCE = "brokerd"
SEVERITIES = {"warning": "warn", "critical": "fatal"}  # LavinMQ's words
_followers = 0


def routes() -> list[tuple[str, str, Route]]:
    """The routes of this module."""
    return [
        ("GET", "/api/v2/log", Route(_log, "administrator")),
        ("GET", "/api/livelog", Route(_live_log, "administrator")),
        ("GET", "/api/logs", Route(_logs, "administrator")),
    ]


async def _log(call: Call) -> Response:
    _check_room()
    fields: dict[str, Any] = dict(call.query)
    after = call.headers.get("last-event-id") or fields.pop("after", "0")
    if not (after.isascii() and after.isdigit() and len(after) <= 18):
        raise BadRequest(f"after must be the number of a line, and not '{after:.80}'")
    found = await call.ask("node log", **{**fields, "after": int(after)})  # A request that is wrong gets its status.
    if int(after) == found["last"]:  # Nothing is newer, or the broker was started again and counts anew.
        whole = await call.ask("node log", **{**fields, "after": 0})
        found = whole if whole["last"] < int(after) else found
    return _stream(_events(call, fields, found, _block))


async def _live_log(call: Call) -> Response:
    _check_room()
    last = call.headers.get("last-event-id", "0").split(".")
    if len(last) > 2 or not all(each.isascii() and each.isdigit() and len(each) <= 18 for each in last):
        raise BadRequest(f"Last-Event-ID must be that of an event, and not '{'.'.join(last):.80}'")
    known = [*map(int, last)]
    if len(known) == 1:  # LavinMQ's: a time alone.
        known.append(1 << 62)
    found = await call.ask("node log", level="debug")
    found["items"] = [row for row in found["items"] if [row["at"], row["number"]] > known]
    return _stream(_events(call, {"level": "debug"}, found, _live_block))


async def _logs(call: Call) -> Response:
    lines = (await call.ask("node log", level="debug"))["items"]
    text = "".join([f"{_moment(row['at'])} [{_severity(row).upper()}] {SOURCE} - {row['text']}\n" for row in lines])
    return Response(text.encode("utf-8", "replace"), media_type="text/plain",
                    headers={"content-disposition": "attachment; filename=logs.txt"})  # fmt: skip


def _check_room() -> None:
    if _followers >= FOLLOWERS_MAX:
        raise Fault(503, f"{FOLLOWERS_MAX} clients follow the log already")


def _stream(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream",
                             headers={"cache-control": "no-store", "x-accel-buffering": "no"})  # fmt: skip


def _block(row: dict[str, Any]) -> bytes:
    return b"id: %d\nevent: line\ndata: %s\n\n" % (row["number"], encode(row))


def _live_block(row: dict[str, Any]) -> bytes:
    return b"id: %d.%d\ndata: %s\n\n" % (row["at"], row["number"], encode([_severity(row), SOURCE, row["text"]]))


def _severity(row: dict[str, Any]) -> str:
    return SEVERITIES.get(row["level"], row["level"])


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", "milliseconds")


async def _events(
    call: Call, fields: dict[str, Any], found: dict[str, Any], block: Callable[[dict[str, Any]], bytes]
) -> AsyncIterator[bytes]:
    global _followers
    _followers += 1
    loop = asyncio.get_running_loop()
    told = 0.0
    try:
        while True:
            octets = b"".join([block(row) for row in found["items"]])
            if octets or loop.time() - told > SILENCE_SECONDS:
                told = loop.time()
                yield octets or b": nothing new\n\n"
            await asyncio.sleep(EVERY_SECONDS)
            found = await call.ask("node log", **{**fields, "after": found["last"]})
    except (Refused, Unavailable) as error:
        yield b"event: failed\ndata: %s\n\n" % encode({"detail": str(error)})
    finally:
        _followers -= 1

"""Reading a stream by GET: ``/api/v2/stream/read?queue=events&offset=1h``, as JSON or as live server-sent events.

``/api/queues/{vhost}/{queue}/stream`` is the same, with its two names in the path.
The fields of the query are those of the operation "stream read"; ``filter`` may be there several times.  ``wait`` is
the time in seconds to wait for a message if the stream has no more yet.

With ``Accept: text/event-stream`` each message is an event ``message``, whose id is its offset: a client that comes
again with ``Last-Event-ID`` goes on behind it.  A block without data only moves that id, past messages that a filter
left out.  ``missed`` says how many messages were removed before they were read, ``failed`` why no more will come.

This process asks the broker for the next messages when the client has read the former ones.  So a slow client holds up
only itself, and costs the memory of one answer.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl

from starlette.responses import Response, StreamingResponse

from brokerd.management.answers import BadRequest, Fault, as_json, encode
from brokerd.management.app import Call, Route
from brokerd.management.control import Refused, Unavailable, decode
from brokerd.operations import table
from brokerd.operations.rows import RequestField, request_fields

READ = "stream read"
FOLLOWERS_MAX = 100  # clients that follow streams at a time
LOOK_SECONDS = 0.25  # between two looks at the end of a stream, at first
LOOK_SECONDS_MAX = 1.0
SILENCE_SECONDS = 15.0  # after which a comment tells the client, and what stands between, that the connection is there
AT_ONCE = 200  # messages that the broker is asked for at a time
WAIT_SECONDS_MAX = 20
_followers = 0


def routes() -> list[tuple[str, str, Route]]:
    """The routes of this module."""
    return [
        ("GET", "/api/v2/stream/read", Route(_read, "")),
        ("GET", "/api/queues/{vhost}/{queue}/stream", Route(_read)),
    ]


async def _read(call: Call) -> Response:
    fields = fields_of_query(call.raw_query) | call.values
    wait = _wait_of(fields.pop("wait", "0"))
    if "text/event-stream" in call.headers.get("accept", ""):
        return await _follow(call, fields)
    until = asyncio.get_running_loop().time() + wait
    while True:
        answer = await call.ask(READ, **fields)
        if answer["items"] or answer["missed"] or asyncio.get_running_loop().time() >= until:
            return as_json(answer)
        fields["offset"] = str(answer["next_offset"])
        await asyncio.sleep(LOOK_SECONDS)


# --- the query


def fields_of_query(text: str) -> dict[str, Any]:
    """The operation's fields as its row has them.  Raises BadRequest."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape", max_num_fields=100)
    except ValueError:
        raise BadRequest("the query has more than 100 fields") from None
    known = {each.name: each for each in request_fields(table.find(READ).request)}
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name not in known:
            fields[name] = value  # The broker refuses it by name.
        elif name == "filter":
            fields.setdefault(name, []).append(value)
        else:
            fields[name] = _value(known[name], value)
    return fields


def _value(field: RequestField, text: str) -> Any:
    if field.type is int:
        digits = text.removeprefix("-")
        return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else text
    if field.type is bool:
        return {"true": True, "false": False}.get(text, text)
    if field.type is str or field.choices:
        return text
    try:
        return decode(text.encode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise BadRequest(f"{field.name} is not JSON: {error}") from None


def _wait_of(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) <= WAIT_SECONDS_MAX:
        return int(text)
    raise BadRequest(f"wait must be a whole number of seconds from 0 to {WAIT_SECONDS_MAX}, and not '{text:.80}'")


# --- live


async def _follow(call: Call, fields: dict[str, Any]) -> Response:
    if _followers >= FOLLOWERS_MAX:
        raise Fault(503, f"{FOLLOWERS_MAX} clients follow streams already")
    last = call.headers.get("last-event-id", "")
    if last:
        if not (last.isascii() and last.isdigit() and len(last) <= 18):
            raise BadRequest(f"Last-Event-ID must be an offset, and not '{last:.80}'")
        fields["offset"] = str(int(last) + 1)
    fields.setdefault("count", AT_ONCE)
    first = await call.ask(READ, **fields)  # A request that is wrong gets its status.
    return StreamingResponse(_events(call, fields, first), media_type="text/event-stream",
                             headers={"cache-control": "no-store", "x-accel-buffering": "no"})  # fmt: skip


async def _events(call: Call, fields: dict[str, Any], answer: dict[str, Any]) -> AsyncIterator[bytes]:
    global _followers
    _followers += 1
    loop = asyncio.get_running_loop()
    pause, told = LOOK_SECONDS, loop.time()
    at = 0  # the offset up to which the client knows; 0: not yet
    try:
        while True:
            octets = b"".join(_blocks(answer, at))
            at = answer["next_offset"]
            if octets or loop.time() - told > SILENCE_SECONDS:
                told = loop.time()
                yield octets or b": nothing new\n\n"
            if answer["examined"]:
                pause = LOOK_SECONDS
            if at >= answer["end_offset"]:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, LOOK_SECONDS_MAX)
            fields["offset"] = str(at)
            answer = await call.ask(READ, **fields)
    except (Refused, Unavailable) as error:
        yield b"event: failed\ndata: %s\n\n" % encode({"detail": str(error)})
    finally:
        _followers -= 1


def _blocks(answer: dict[str, Any], at: int) -> list[bytes]:
    """The blocks of an answer for a client that knows everything up to ``at``."""
    blocks = []
    if answer["missed"]:
        table = {"missed": answer["missed"], "first_offset": answer["first_offset"]}
        blocks.append(b"event: missed\ndata: %s\n\n" % encode(table))
    blocks += [b"id: %d\nevent: message\ndata: %s\n\n" % (item["offset"], encode(item)) for item in answer["items"]]
    reached = answer["next_offset"]
    last = answer["items"][-1]["offset"] if answer["items"] else at - 1
    if last != reached - 1:
        blocks.append(b"id: %d\n\n" % (reached - 1))
    return blocks

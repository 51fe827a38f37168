"""RabbitMQ's API of the plugin for tracing:

    /api/traces[/VHOST[/NAME]]      GET; PUT and DELETE of one
    /api/trace-files[/NAME]         GET; DELETE of one

The same stands below ``/api/traces/node/NODE`` and ``/api/trace-files/node/NODE``.  The broker decides who may see a
file; its octets are read from the data directory, which is on this machine and this user's.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from brokerd.management.answers import NotThere, as_json, nothing
from brokerd.management.app import Call, Route
from brokerd.management.lists import list_here, make_list, only_columns
from brokerd.management.rabbit_change import required
from brokerd.management.rabbit_read import shapes_of
from brokerd.operations.tracing import FOLDER

ADMIN = "administrator"
PART_OCTETS = 1 << 18


def routes() -> list[tuple[str, str, Route]]:
    """The routes of this module."""
    rows = []
    for node in ("", "/node/{node}"):
        traces, files = f"/api/traces{node}", f"/api/trace-files{node}"
        rows += [
            ("GET", traces, Route(_on_node(_traces), ADMIN)),
            ("GET", f"{traces}/{{vhost}}", Route(_on_node(_traces), ADMIN)),
            ("GET", f"{traces}/{{vhost}}/{{name}}", Route(_on_node(_trace), ADMIN)),
            ("PUT", f"{traces}/{{vhost}}/{{name}}", Route(_on_node(_start), ADMIN)),
            ("DELETE", f"{traces}/{{vhost}}/{{name}}", Route(_on_node(_stop), ADMIN)),
            ("GET", files, Route(_on_node(_files), ADMIN)),
            ("GET", f"{files}/{{name}}", Route(_on_node(_file), ADMIN)),
            ("DELETE", f"{files}/{{name}}", Route(_on_node(_delete), ADMIN)),
        ]
    return rows


def _on_node(handler: Any) -> Any:
    """The handler, for a path that may name the node."""

    async def checked(call: Call) -> Response:
        node = call.values.pop("node", None)
        if node is not None and node != (await shapes_of(call)).node:
            raise NotThere
        answer: Response = await handler(call)
        return answer

    return checked


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A trace in RabbitMQ's words, with brokerd's fields beside them."""
    return {**row, "tracer_connection_username": row["user"]}


async def _traces(call: Call) -> Response:
    if "vhost" in call.values:
        await call.ask("vhost show", vhost=call.values["vhost"])
    return as_json(await make_list(call, "tracer list", _shown, **call.values))


async def _trace(call: Call) -> Response:
    return as_json(only_columns(_shown(await call.ask("tracer show", **call.values)), call.query))


async def _start(call: Call) -> Response:
    body = await call.table()
    required(body, "format", "pattern")
    most = body.get("max_payload_bytes", 0)
    if isinstance(most, str) and most.isdecimal() and most.isascii() and len(most) < 12:
        most = int(most)
    answer = await call.ask("tracer start", **call.values, format=body["format"], pattern=body["pattern"],
                            max_payload_bytes=most)  # fmt: skip
    return nothing(201 if answer["created"] else 204)


async def _stop(call: Call) -> Response:
    await call.ask("tracer stop", **call.values)
    return nothing()


async def _files(call: Call) -> Response:
    return as_json(list_here(call, (await call.ask("trace_file list"))["items"]))


async def _file(call: Call) -> Response:
    name = call.values["name"]
    found = (await call.ask("trace_file list"))["items"]
    if not any(row["name"] == name for row in found):
        raise NotThere
    path = os.path.join(call.services.settings["data_dir"], FOLDER, name)
    try:
        file = await asyncio.to_thread(open, path, "rb")
    except OSError:
        raise NotThere from None
    octets = os.fstat(file.fileno()).st_size  # It may grow meanwhile.
    return StreamingResponse(_parts(file, octets), media_type="text/plain", headers={
        "content-length": str(octets), "x-content-type-options": "nosniff",
    })  # fmt: skip


async def _parts(file: Any, octets: int) -> AsyncIterator[bytes]:
    try:
        while octets > 0:
            part = await asyncio.to_thread(file.read, min(octets, PART_OCTETS))
            if not part:  # It was deleted, and its client sees that something is missing.
                return
            octets -= len(part)
            yield part
    finally:
        file.close()


async def _delete(call: Call) -> Response:
    await call.ask("trace_file delete", name=call.values["name"])
    return nothing()

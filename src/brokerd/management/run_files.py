"""The report of an audit: ``/api/v2/run/{id}/report/{name}``, such as ``report.html``.

The broker decides who may see a run.  The files are read from its data directory, which is on this machine and this
user's.  A report is a page for itself: it has its own style within it, and may do nothing else.
"""

import asyncio
import os
import re
from pathlib import Path

from starlette.responses import Response

from brokerd.management.answers import NotThere
from brokerd.management.app import Call, Route
from brokerd.operations.runs import FOLDER, REPORT

TYPES = {".html": "text/html; charset=utf-8", ".json": "application/json"}
NAME = re.compile(r"[a-z][a-z0-9-]{0,60}\.(?:html|json)")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; " \
         "frame-ancestors 'none'; sandbox allow-top-navigation-by-user-activation"  # fmt: skip


def routes() -> list[tuple[str, str, Route]]:
    """The route of this module."""
    return [("GET", "/api/v2/run/{id}/report/{name}", Route(_report, "administrator"))]


async def _report(call: Call) -> Response:
    number, name = call.values["id"], call.values["name"]
    if not (number.isascii() and number.isdigit() and len(number) < 10) or not NAME.fullmatch(name):
        raise NotThere("no such file of a report")
    await call.ask("run show", id=int(number))
    path = os.path.join(call.services.settings["data_dir"], FOLDER, str(int(number)), REPORT, name)
    try:
        octets = await asyncio.to_thread(Path(path).read_bytes)
    except OSError:
        raise NotThere(f"run {number} has no {name}") from None
    return Response(octets, headers={"content-type": TYPES[os.path.splitext(name)[1]],
                                     "content-security-policy": POLICY})  # fmt: skip

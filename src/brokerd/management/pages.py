"""The web pages, as files: ``brokerd/pages``, which ``make build`` makes of ``src/web``.

All are read at the start, and held in memory.  The names of scripts and styles hold a hash of their content, so that
browsers keep them for a year; the page that names them is asked for anew each time.  A broker that was built without
npm has no pages, and says so at ``/``.
"""

import gzip
import hashlib
import os
from typing import NamedTuple

from starlette.responses import Response

from brokerd.management.app import Call, Handler, Route

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "pages")
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}
FRONT = "index.html"
KEEP = "public, max-age=31536000, immutable"
NOT_BUILT = (
    "This broker was built without its web pages, which need npm: apt-get install npm, then make build.\n"
    "The HTTP API is below /api and /api/v2, metrics are at /metrics, and brokerctl does all that the pages do.\n"
)


class File(NamedTuple):
    """One file of the pages, as it is sent."""

    octets: bytes
    packed: bytes  # by gzip
    headers: dict[str, str]


def routes() -> list[tuple[str, str, Route]]:
    """A route for each file, or for the one page that says why there is none."""
    files = read_files(FOLDER)
    if FRONT not in files:
        return [("GET", "/", Route(_not_built, None))]
    rows = [("GET", f"/{name}", Route(_sender(file), None)) for name, file in files.items()]
    return [*rows, ("GET", "/", Route(_sender(files[FRONT]), None))]


def read_files(folder: str) -> dict[str, File]:
    """The files of the pages by name; none where they were not built."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return {}
    files = {}
    for name in names:
        kind = TYPES.get(os.path.splitext(name)[1])
        if kind is not None:
            with open(os.path.join(folder, name), "rb") as file:
                octets = file.read()
            files[name] = File(octets, gzip.compress(octets, 6, mtime=0), _headers(name, kind, octets))
    return files


def _headers(name: str, kind: str, octets: bytes) -> dict[str, str]:
    headers = {"content-type": f"{kind}; charset=utf-8", "etag": f'"{hashlib.sha256(octets).hexdigest()[:20]}"'}
    if "-" in name:  # app-HASH.js
        headers["cache-control"] = KEEP
    return headers


def _sender(file: File) -> Handler:
    async def handler(call: Call) -> Response:
        if file.headers["etag"] in call.headers.get("if-none-match", ""):
            return Response(b"", 304, {"etag": file.headers["etag"]})
        if "gzip" in call.headers.get("accept-encoding", ""):
            return Response(file.packed, 200, {**file.headers, "content-encoding": "gzip"})
        return Response(file.octets, 200, file.headers)

    return handler


async def _not_built(call: Call) -> Response:
    return Response(NOT_BUILT, 404, media_type="text/plain")

"""RabbitMQ's definitions: export and import of all, or of one vhost.

An import changes all or nothing; the broker sees to that.  With ``?dry_run=true`` it changes nothing and answers what
it would change.  A body may be JSON, or a form with a file, as RabbitMQ's own page sends it.
"""

import time
from email.parser import BytesParser
from email.policy import HTTP

from starlette.responses import Response

from brokerd.management.answers import BadRequest, as_json, nothing
from brokerd.management.app import Call, Route

IMPORT_SECONDS = 600.0


def routes() -> list[tuple[str, str, Route]]:
    """The routes of this module."""
    admin = "administrator"
    return [
        ("GET", "/api/definitions", Route(_export, admin)),
        ("GET", "/api/definitions/{vhost}", Route(_export, admin)),
        ("POST", "/api/definitions", Route(_import, admin)),
        ("POST", "/api/definitions/{vhost}", Route(_import, admin)),
        ("POST", "/api/definitions/upload", Route(_import, admin)),
        ("GET", "/api/all-configuration", Route(_export, admin)),  # what both were called before RabbitMQ 3
        ("POST", "/api/all-configuration", Route(_import, admin)),
        ("POST", "/api/definitions/{vhost}/upload", Route(_import, admin)),
    ]


async def _export(call: Call) -> Response:
    found = await call.ask("definitions export", IMPORT_SECONDS, **call.values)
    name = call.query.get("download", "")
    if not name:
        return as_json(found)
    safe = "".join(each for each in name if each.isascii() and (each.isalnum() or each in "._-"))
    return as_json(found, 200, {"content-disposition": f'attachment; filename="{safe or time.strftime("%Y%m%d")}"'})


async def _import(call: Call) -> Response:
    octets = await call.octets()
    kind = call.headers.get("content-type", "")
    if kind.startswith("multipart/form-data"):
        octets = _file_of_form(kind, octets)
    try:
        text = octets.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"not UTF-8 at octet {error.start}") from None
    dry = call.query.get("dry_run") == "true"
    answer = await call.ask("definitions import", IMPORT_SECONDS, text=text, dry_run=dry, **call.values)
    call.services.logins.forget()
    return as_json(answer) if dry else nothing()


def _file_of_form(kind: str, octets: bytes) -> bytes:
    """The file of a form.  Raises BadRequest."""
    form = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + kind.encode("latin-1") + b"\r\n\r\n" + octets)
    for part in form.iter_parts() if form.is_multipart() else ():
        if part.get_param("name", header="content-disposition") == "file":
            content = part.get_payload(decode=True)
            if isinstance(content, bytes):
                return content
    raise BadRequest("the form has no field file")

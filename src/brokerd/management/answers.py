"""Answers: JSON, and errors in two shapes: RabbitMQ's below ``/api``, problem+json (RFC 9457) below ``/api/v2``."""

import json
from http import HTTPStatus
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

REALM = "RabbitMQ Management"
# What RabbitMQ calls an error of this status.
RABBIT_ERRORS = {
    400: "bad_request", 401: "not_authorized", 403: "forbidden", 404: "Object Not Found", 405: "Method Not Allowed",
    408: "timeout", 409: "conflict", 412: "precondition_failed", 413: "payload_too_large",
    415: "unsupported_media_type", 500: "internal_error", 503: "service_unavailable",
}  # fmt: skip


class Fault(Exception):
    """A request fails with this status and text."""

    def __init__(self, status: int, text: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers or {}


class BadRequest(Fault):
    """The request is wrong."""

    def __init__(self, text: str) -> None:
        super().__init__(400, text)


class NotThere(Fault):
    """The thing does not exist, or may not be known to exist."""

    def __init__(self, text: str = "Not Found") -> None:
        super().__init__(404, text)


class Denied(Fault):
    """The client must log in, or may not do this: RabbitMQ says 401 to both."""

    def __init__(self, text: str = "Not_Authorized", *, ask: bool = True) -> None:
        super().__init__(401, text, headers={"www-authenticate": f'Basic realm="{REALM}"'} if ask else None)


def encode(value: Any) -> bytes:
    """JSON.  Names that are not UTF-8 have surrogates, which only the slower encoder takes."""
    try:
        return to_json(value)
    except (ValueError, TypeError):
        return json.dumps(value, separators=(",", ":")).encode()


def as_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer."""
    return Response(encode(value), status, headers, "application/json")


def nothing(status: int = 204, headers: dict[str, str] | None = None) -> Response:
    """An answer without content."""
    return Response(b"", status, headers)


def rabbit_fault(fault: Fault) -> Response:
    """An error in RabbitMQ's shape."""
    error = RABBIT_ERRORS.get(fault.status, "error")
    return as_json({"error": error, "reason": fault.text}, fault.status, fault.headers)


def problem(fault: Fault) -> Response:
    """An error as problem+json."""
    table = {"type": "about:blank", "title": HTTPStatus(fault.status).phrase, "status": fault.status,
             "detail": fault.text}  # fmt: skip
    return Response(encode(table), fault.status, fault.headers, "application/problem+json")

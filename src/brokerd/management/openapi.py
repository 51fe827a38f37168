"""The OpenAPI document of ``/api/v2``, made from the table of operations, so that it agrees with the broker."""

import json
from functools import cache
from typing import Any

from brokerd import __version__
from brokerd.operations import table
from brokerd.operations.rows import Operation

PROBLEM = {
    "type": "object",
    "properties": {
        "type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
    "required": ["title", "status", "detail"],
}  # fmt: skip
FAULTS = {
    "400": "The request is wrong.", "401": "Log in first.", "403": "The user lacks a right.",
    "404": "The named thing does not exist.", "405": "Another method.", "408": "The body did not arrive in time.",
    "409": "Not possible now.", "412": "Another state than the request says.", "413": "The body is too large.",
    "500": "It failed.", "503": "The broker does not answer now.",
}  # fmt: skip
SESSION = {
    "type": "object",
    "properties": {
        "user": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}},
        "csrf_token": {"type": ["string", "null"]}, "expires": {"type": ["integer", "null"]},
    },
}  # fmt: skip


@cache
def document() -> bytes:
    """The document, as JSON."""
    schemas: dict[str, Any] = {"Problem": PROBLEM, "Session": SESSION}
    paths = {f"/api/v2/{row.noun}/{row.verb}": {"post": _of_row(row, schemas)} for row in table.by_name().values()}
    paths.update(_further_paths())
    paths["/api/v2/stream/read"]["get"] = _by_query(table.find("stream read"), schemas)
    return json.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "brokerd", "version": __version__, "description": "Operations of a running broker."},
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {
                    "basic": {"type": "http", "scheme": "basic"},
                    "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                    "session": {"type": "apiKey", "in": "cookie", "name": "brokerd_session"},
                },
            },
            "security": [{"basic": []}, {"bearer": []}, {"session": []}],
        }
    ).encode()


def _of_row(row: Operation[Any, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    right = f"The user needs the tag {row.right.tag}"
    if row.right.permission:
        right += f", and the permission {row.right.permission} in the vhost"
    first, _, rest = row.help.partition("\n")
    return {
        "operationId": f"{row.noun}_{row.verb}".replace("-", "_"),
        "tags": [row.noun],
        "summary": first.strip(),
        "description": " ".join([*rest.split(), f"{right}."]),
        "requestBody": {"content": _content(_schema(row.noun, row.request, schemas)), "required": True},
        "responses": {
            "200": {"description": "Done.", "content": _content(_schema(row.noun, row.answer, schemas))}, **_faults(),
        },
    }  # fmt: skip


def _by_query(row: Operation[Any, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Reading a stream by GET: see ``stream_events``."""
    fields = _schema(row.noun, row.request, schemas)
    parameters = [
        {"name": name, "in": "query", "required": name in fields["required"], "schema": schema,
         "description": schema.get("description", "")}
        for name, schema in fields["properties"].items()
    ]  # fmt: skip
    wait = {"name": "wait", "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": 20},
            "description": "Seconds to wait for a message."}  # fmt: skip
    last = {"name": "Last-Event-ID", "in": "header", "schema": {"type": "integer"},
            "description": "Of events: go on behind that offset."}  # fmt: skip
    content = {**_content(_schema(row.noun, row.answer, schemas)), "text/event-stream": {}}
    return {
        "operationId": "stream_read_get", "tags": [row.noun], "parameters": [*parameters, wait, last],
        "summary": "Read a stream, or follow it by server-sent events.",
        "responses": {"200": {"description": "Messages.", "content": content}, **_faults()},
    }  # fmt: skip


def _schema(noun: str, model: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """The model's schema; those that it refers to are named by the noun too: a ChangeRow of two nouns is two things."""
    made = table.adapter(model).json_schema(ref_template=f"#/components/schemas/{noun}.{{model}}")
    for name, schema in made.pop("$defs", {}).items():
        assert schemas.setdefault(f"{noun}.{name}", schema) == schema, f"{noun}.{name} is two things"
    return made


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _faults() -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": text, "content": problem} for status, text in FAULTS.items()}


def _in_query(name: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema, "description": text}


def _further_paths() -> dict[str, Any]:
    session = {"200": {"description": "The session.", "content": _content({"$ref": "#/components/schemas/Session"})}}
    login = {"type": "object", "properties": {"user": {"type": "string"}, "password": {"type": "string"}},
             "required": ["user", "password"], "additionalProperties": False}  # fmt: skip
    return {
        "/api/v2/session": {
            "get": {"summary": "Who is logged in.", "responses": {**session, **_faults()}},
            "post": {"summary": "Log in a page: the answer sets a cookie.", "security": [],
                     "requestBody": {"content": _content(login), "required": True},
                     "responses": {**session, **_faults()}},
            "delete": {"summary": "Log out.", "security": [],
                       "responses": {"204": {"description": "Done."}, **_faults()}},
        },
        "/api/v2/log": {
            "get": {"summary": "The broker's log as server-sent events.",
                    "parameters": [
                        _in_query("after", {"type": "integer", "minimum": 0}, "Only lines with a higher number."),
                        _in_query("level", {"type": "string"}, "Only lines at least as grave."),
                        _in_query("contains", {"type": "string"}, "Only lines with this text."),
                    ],
                    "responses": {"200": {"description": "Events.", "content": {"text/event-stream": {}}},
                                  **_faults()}},
        },
        "/api/v2/run/{id}/report/{name}": {
            "get": {"summary": "A file of an audit's report.",
                    "parameters": [
                        {"name": "id", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 1}},
                        {"name": "name", "in": "path", "required": True, "schema": {"type": "string"},
                         "description": "Such as report.html; told.json is there always."},
                    ],
                    "responses": {"200": {"description": "The file.",
                                          "content": {"text/html": {}, "application/json": {}}}, **_faults()}},
        },
        "/api/v2/live": {
            "get": {"summary": "Samples of the overview as server-sent events.",
                    "responses": {"200": {"description": "Events.", "content": {"text/event-stream": {}}},
                                  **_faults()}},
        },
    }  # fmt: skip

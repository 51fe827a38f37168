"""RabbitMQ's API about shovels and federation links, with the fields of RabbitMQ and of LavinMQ.

    /api/shovels, /api/shovels/VHOST, /api/shovels/vhost/VHOST/NAME[/restart]       RabbitMQ
    /api/shovels/VHOST/NAME[/pause|resume]                                          LavinMQ
    /api/federation-links[/VHOST], .../state/down[/VHOST], .../vhost/VHOST/ID/NODE/restart

Both brokers make and delete a shovel or an upstream as a parameter (``rabbit_change``).  Addresses here have neither
user nor password.
"""

from time import localtime, strftime
from typing import Any

from starlette.responses import Response

from brokerd.links.uris import without_credentials
from brokerd.management.answers import Fault, as_json, nothing
from brokerd.management.app import Call, Route
from brokerd.management.control import Refused
from brokerd.management.lists import Shape, make_list, only_columns
from brokerd.management.rabbit_change import doer
from brokerd.management.rabbit_read import shapes_of

# What RabbitMQ calls a state.
SHOVEL_STATES = {"blocked": "running"}  # It tells of what blocks apart.
LINK_STATES = {"blocked": "running", "idle": "running", "terminated": "error"}
# Fields of a definition that a running shovel shows, where it has them.
SHOWN = ("src-queue", "src-exchange", "src-exchange-key", "dest-queue", "dest-exchange", "dest-exchange-key")
FIGURES = ("messages", "rate", "unconfirmed", "retried", "rejected", "reconnects", "last_message", "lag", "next_try",
           "since", "reason")  # fmt: skip


def routes() -> list[tuple[str, str, Route]]:
    """The routes of this module."""
    return [*_of_shovels(), *_of_federation()]


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    """brokerd's fields beside those of RabbitMQ and LavinMQ."""
    return {name: row[name] for name in FIGURES}


def _moment(ms: int) -> str:
    """A time as RabbitMQ writes it here."""
    return strftime("%Y-%m-%d %H:%M:%S", localtime(ms / 1000)) if ms else ""


# --- shovels


def _of_shovels() -> list[tuple[str, str, Route]]:
    rows: list[tuple[str, str, Route]] = [
        ("GET", "/api/shovels", Route(_shovels)),
        ("GET", "/api/shovels/{vhost}", Route(_shovels)),
    ]
    for one in ("/api/shovels/vhost/{vhost}/{name}", "/api/shovels/{vhost}/{name}"):
        rows += [
            ("GET", one, Route(_shovel)),
            ("DELETE", one, Route(doer("shovel delete"), "policymaker")),
            ("GET", f"{one}/restart", Route(_shovel)),
            ("DELETE", f"{one}/restart", Route(doer("shovel restart"), "policymaker")),
            ("PUT", f"{one}/restart", Route(doer("shovel restart"), "policymaker")),
            ("PUT", f"{one}/pause", Route(_turn("shovel pause"), "policymaker")),
            ("PUT", f"{one}/resume", Route(_turn("shovel resume"), "policymaker")),
        ]
    return rows


async def _shovels(call: Call) -> Response:
    return as_json(await make_list(call, "shovel list", await _shovel_shape(call), **call.values))


async def _shovel(call: Call) -> Response:
    shape = await _shovel_shape(call)
    return as_json(only_columns(shape(await call.ask("shovel show", **call.values)), call.query))


def _turn(verb: str) -> Any:
    """The handler that pauses or resumes: 422 where the shovel is in the wrong state (LavinMQ)."""
    handler = doer(verb)

    async def turn(call: Call) -> Response:
        try:
            await handler(call)
        except Refused as error:
            if error.code == 409:
                raise Fault(422, str(error)) from None
            raise
        return nothing()

    return turn


async def _shovel_shape(call: Call) -> Shape:
    node = (await shapes_of(call)).node

    def shape(row: dict[str, Any]) -> dict[str, Any]:
        state, given = row["state"], row["definition"] if isinstance(row["definition"], dict) else {}
        shown = {
            "node": node, "timestamp": _moment(row["since"]), "name": row["name"], "vhost": row["vhost"],
            "type": "dynamic", "state": SHOVEL_STATES.get(state, state),
            "blocked_status": "blocked" if state == "blocked" else "running",
            "error": row["reason"] or None, "message_count": row["messages"], "value": given, **_figures(row),
        }  # fmt: skip
        if state in ("running", "blocked"):
            shown |= {
                "src_uri": without_credentials(row["source_uri"]), "dest_uri": without_credentials(row["dest_uri"]),
                "src_protocol": given.get("src-protocol", "amqp091"),
                "dest_protocol": given.get("dest-protocol", "amqp091"),
                **{name.replace("-", "_"): given[name] for name in SHOWN if name in given},
            }  # fmt: skip
        return shown

    return shape


# --- federation


def _of_federation() -> list[tuple[str, str, Route]]:
    restart = Route(_restart_link, "policymaker")
    return [
        ("GET", "/api/federation-links", Route(_links(only_down=False))),
        ("GET", "/api/federation-links/{vhost}", Route(_links(only_down=False))),
        ("GET", "/api/federation-links/state/down", Route(_links(only_down=True))),
        ("GET", "/api/federation-links/state/down/{vhost}", Route(_links(only_down=True))),
        ("DELETE", "/api/federation-links/vhost/{vhost}/{id}/{node}/restart", restart),
        ("DELETE", "/api/federation-links/vhost/{vhost}/{id}/restart", restart),
    ]


def _links(*, only_down: bool) -> Any:
    async def handler(call: Call) -> Response:
        node = (await shapes_of(call)).node
        return as_json(await make_list(call, "federation_link list", lambda row: _link(node, row),
                                       only_down=only_down, **call.values))  # fmt: skip

    return handler


def _link(node: str, row: dict[str, Any]) -> dict[str, Any]:
    kind, state = row["type"], row["state"]
    status = "error" if state == "starting" and row["reason"] else LINK_STATES.get(state, state)
    shown = {
        "node": node, kind: row["name"], f"upstream_{kind}": row["source"], "type": kind, "vhost": row["vhost"],
        "upstream": row["upstream"], "id": row["id"], "status": status, "uri": without_credentials(row["uri"]),
        "timestamp": _moment(row["since"]), "name": row["upstream"], "resource": row["name"], "state": state,
        **_figures(row),
    }  # fmt: skip
    if kind == "queue":
        shown["consumer_tag"] = row["consumer_tag"]
    return {**shown, "error": row["reason"]} if status == "error" else shown


async def _restart_link(call: Call) -> Response:
    await call.ask("federation_link restart", vhost=call.values["vhost"], id=call.values["id"])
    return nothing()

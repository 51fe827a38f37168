"""RabbitMQ's API to list and show vhosts, users, exchanges, queues, bindings, connections, channels, consumers,
policies and limits.

The broker finds, filters and cuts pages, and leaves out rows that the user may not see.
"""

import re
from typing import Any
from urllib.parse import unquote

from starlette.responses import Response

from brokerd.management import rabbit_shapes as shapes
from brokerd.management.answers import NotThere, as_json
from brokerd.management.app import Call, Route
from brokerd.management.lists import answer_list, list_here, only_columns
from brokerd.management.rabbit_shapes import Shapes

DEFAULT_EXCHANGE = "amq.default"  # RabbitMQ's name for it in paths


async def shapes_of(call: Call) -> Shapes:
    """The functions that shape rows."""
    samples = call.services.samples
    return Shapes((samples.last or await samples.take())["name"], samples)


def routes() -> list[tuple[str, str, Route]]:
    """The routes of this module."""
    return [*_listed(), *_single(), *_of_parents(), *_of_operators()]


# --- lists

# noun of the operation: path, right.  Each is also there below its path by vhost.
LISTS = {
    "exchange": ("exchanges", "management"), "queue": ("queues", "management"), "binding": ("bindings", "management"),
    "connection": ("connections", "management"), "channel": ("channels", "management"),
    "consumer": ("consumers", "management"), "vhost": ("vhosts", "management"), "user": ("users", "administrator"),
    "permission": ("permissions", "administrator"), "topic_permission": ("topic-permissions", "administrator"),
    "policy": ("policies", "management"), "operator_policy": ("operator-policies", "management"),
}  # fmt: skip
BY_VHOST = ("exchange", "queue", "binding", "consumer", "policy", "operator_policy")
AGAIN = ("exchange", "queue", "binding", "connection", "channel", "consumer")  # of which there may be very many


def _listed() -> list[tuple[str, str, Route]]:
    rows: list[tuple[str, str, Route]] = []
    for noun, (path, tag) in LISTS.items():
        rows.append(("GET", f"/api/{path}", Route(lister(noun), tag, again=noun in AGAIN)))
        if noun in BY_VHOST:
            rows.append(("GET", f"/api/{path}/{{vhost}}", Route(lister(noun), tag, again=noun in AGAIN)))
    rows += [
        ("GET", "/api/queues/detailed", Route(lister("queue"), again=True)),
        ("GET", "/api/vhosts/{vhost}/connections", Route(lister("connection"), again=True)),
        ("GET", "/api/vhosts/{vhost}/channels", Route(lister("channel"), again=True)),
        ("GET", "/api/vhosts/{vhost}/permissions", Route(lister("permission"), "administrator")),
        ("GET", "/api/vhosts/{vhost}/topic-permissions", Route(lister("topic_permission"), "administrator")),
        ("GET", "/api/users/{user}/permissions", Route(lister("permission", user="user"), "administrator")),
        ("GET", "/api/users/{user}/topic-permissions", Route(lister("topic_permission", user="user"), "administrator")),
        ("GET", "/api/users/without-permissions", Route(_users_without_permissions, "administrator")),
        ("GET", "/api/connections/username/{user}", Route(lister("connection", user="user"))),
        ("GET", "/api/connections/{name}/channels", Route(_channels_of_connection)),
        ("GET", "/api/topic-permissions/{vhost}/{user}", Route(_topic_permissions, "administrator")),
    ]
    return rows


def lister(noun: str, **names: str) -> Any:
    """The handler of a list.  ``names``: a field of the operation, and the name in the path whose text it gets."""

    async def handler(call: Call) -> Response:
        fields = {field: call.values[name] for field, name in names.items()}
        if "vhost" in call.values:
            fields["vhost"] = call.values["vhost"]
            if noun in ("permission", "topic_permission"):  # The broker would list none for one that is not there.
                await call.ask("vhost show", vhost=fields["vhost"])
        if "user" in fields and noun != "connection":
            await call.ask("user show", user=fields["user"])
        return await answer_list(call, f"{noun} list", await shaper(call, noun), **fields)

    return handler


async def shaper(call: Call, noun: str) -> shapes.Shape:
    """The function that shapes the rows of a noun."""
    if noun == "user":
        return shapes.user
    found: shapes.Shape = getattr(await shapes_of(call), noun, shapes.as_it_is)
    return found


async def _users_without_permissions(call: Call) -> Response:
    return await answer_list(call, "user list", shapes.user, without_permissions=True)


async def _channels_of_connection(call: Call) -> Response:
    await call.ask("connection show", connection=call.values["name"])
    shape = await shaper(call, "channel")
    return await answer_list(call, "channel list", shape, connection=call.values["name"])


async def _topic_permissions(call: Call) -> Response:
    vhost, user = call.values["vhost"], call.values["user"]
    found = await call.ask("topic_permission list", vhost=vhost, user=user)
    if not found["items"]:
        raise NotThere
    return as_json(list_here(call, found["items"]))


# --- one thing


def _single() -> list[tuple[str, str, Route]]:
    return [
        ("GET", "/api/vhosts/{vhost}", Route(shower("vhost"))),
        ("GET", "/api/users/{user}", Route(shower("user"), "administrator")),
        ("GET", "/api/exchanges/{vhost}/{exchange}", Route(_exchange)),
        ("GET", "/api/queues/{vhost}/{queue}", Route(_queue)),
        ("GET", "/api/connections/{connection}", Route(shower("connection"))),
        ("GET", "/api/channels/{channel}", Route(_channel)),
        ("GET", "/api/permissions/{vhost}/{user}", Route(_permission, "administrator")),
        ("GET", "/api/policies/{vhost}/{name}", Route(_named("policy"))),
        ("GET", "/api/operator-policies/{vhost}/{name}", Route(_named("operator_policy"))),
    ]


def shower(noun: str) -> Any:
    """The handler that shows one thing by the operation ``noun show``."""

    async def handler(call: Call) -> Response:
        shape = await shaper(call, noun)
        return as_json(only_columns(shape(await call.ask(f"{noun} show", **call.values)), call.query))

    return handler


async def _exchange(call: Call) -> Response:
    name = "" if call.values["exchange"] == DEFAULT_EXCHANGE else call.values["exchange"]
    row = await call.ask("exchange show", vhost=call.values["vhost"], exchange=name)
    shown = (await shapes_of(call)).exchange(row)
    return as_json(only_columns({**shown, "incoming": [], "outgoing": []}, call.query))


async def _queue(call: Call) -> Response:
    vhost, queue = call.values["vhost"], call.values["queue"]
    row = await call.ask("queue show", vhost=vhost, queue=queue)
    consumers = await call.ask("consumer list", vhost=vhost, queue=queue) if row["consumers"] else {"items": []}
    shape = await shapes_of(call)
    shown = {
        **shape.queue(row),
        "consumer_details": [shape.consumer(each) for each in consumers["items"]],
        "incoming": [],
        "deliveries": shape.deliveries(consumers["items"], "channel_details"),
    }
    return as_json(only_columns(shown, call.query))


async def _channel(call: Call) -> Response:
    shape = (await shapes_of(call)).channel
    name = call.values["channel"]
    found = await call.ask("channel list", name=name)
    rows = [row for row in found["items"] if row["name"] == name]
    if not rows:
        raise NotThere
    consumers = await call.ask("consumer list", vhost=rows[0]["vhost"])
    shown, shapes_ = shape(rows[0]), await shapes_of(call)
    mine = [each for each in consumers["items"]
            if (each["connection"], each["channel"]) == (rows[0]["connection"], rows[0]["number"])]  # fmt: skip
    shown["consumer_details"] = [shapes_.consumer(each) for each in mine]
    shown["publishes"], shown["deliveries"] = [], shapes_.deliveries(mine, "queue")
    return as_json(only_columns(shown, call.query))


async def _permission(call: Call) -> Response:
    vhost, user = call.values["vhost"], call.values["user"]
    found = await call.ask("permission list", vhost=vhost, user=user)
    if not found["items"]:
        raise NotThere
    return as_json(only_columns(found["items"][0], call.query))


def _named(noun: str) -> Any:
    """The handler that finds one thing by its name in a list."""

    async def handler(call: Call) -> Response:
        vhost, name = call.values["vhost"], call.values["name"]
        found = await call.ask(f"{noun} list", vhost=vhost, name=f"^{re.escape(name)}$", use_regex=True)
        rows = [row for row in found["items"] if row["name"] == name]
        if not rows:
            raise NotThere
        return as_json(only_columns(rows[0], call.query))

    return handler


# --- bindings of a thing


def _of_parents() -> list[tuple[str, str, Route]]:
    return [
        ("GET", "/api/queues/{vhost}/{queue}/bindings", Route(_bindings_of_queue)),
        ("GET", "/api/exchanges/{vhost}/{exchange}/bindings/source", Route(_bindings_from)),
        ("GET", "/api/exchanges/{vhost}/{exchange}/bindings/destination", Route(_bindings_to)),
        ("GET", "/api/bindings/{vhost}/e/{source}/q/{destination}", Route(_bindings_between("queue"))),
        ("GET", "/api/bindings/{vhost}/e/{source}/e/{destination}", Route(_bindings_between("exchange"))),
        ("GET", "/api/bindings/{vhost}/e/{source}/q/{destination}/{props}", Route(_binding("queue"))),
        ("GET", "/api/bindings/{vhost}/e/{source}/e/{destination}/{props}", Route(_binding("exchange"))),
    ]


async def _bindings_of_queue(call: Call) -> Response:
    vhost, queue = call.values["vhost"], call.values["queue"]
    await call.ask("queue show", vhost=vhost, queue=queue)
    return await answer_list(call, "binding list", shapes.as_it_is, vhost=vhost, destination=queue,
                             destination_type="queue")  # fmt: skip


async def _bindings_from(call: Call) -> Response:
    vhost = await _known_exchange(call)
    return await answer_list(call, "binding list", shapes.as_it_is, vhost=vhost, source=call.values["exchange"])


async def _bindings_to(call: Call) -> Response:
    vhost = await _known_exchange(call)
    return await answer_list(call, "binding list", shapes.as_it_is, vhost=vhost, destination=call.values["exchange"],
                             destination_type="exchange")  # fmt: skip


async def _known_exchange(call: Call) -> str:
    vhost, name = call.values["vhost"], call.values["exchange"]
    await call.ask("exchange show", vhost=vhost, exchange="" if name == DEFAULT_EXCHANGE else name)
    return vhost


def _bindings_between(kind: str) -> Any:
    async def handler(call: Call) -> Response:
        return as_json(list_here(call, await bindings_between(call, kind)))

    return handler


def _binding(kind: str) -> Any:
    async def handler(call: Call) -> Response:
        for row in await bindings_between(call, kind):
            if is_named(row, call.values["props"]):
                return as_json(only_columns(row, call.query))
        raise NotThere

    return handler


def is_named(binding: dict[str, Any], props: str) -> bool:
    """Whether ``props`` of a path means the binding.  Its key is quoted as in a path; some clients quote it once more,
    and some do not (RabbitMQ takes both)."""
    return props in (binding["properties_key"], unquote(binding["properties_key"]))


async def bindings_between(call: Call, kind: str) -> list[dict[str, Any]]:
    """The bindings between the exchange and the thing that the path names.  Raises Refused (404) if one is missing."""
    vhost, source, destination = (call.values[name] for name in ("vhost", "source", "destination"))
    await call.ask("exchange show", vhost=vhost, exchange="" if source == DEFAULT_EXCHANGE else source)
    await call.ask(f"{kind} show", **{"vhost": vhost, kind: destination})
    found = await call.ask("binding list", vhost=vhost, source=source, destination=destination, destination_type=kind)
    rows: list[dict[str, Any]] = found["items"]
    return rows


# --- limits


def _of_operators() -> list[tuple[str, str, Route]]:
    return [
        ("GET", "/api/vhost-limits", Route(_limits("vhost"), "administrator")),
        ("GET", "/api/vhost-limits/{vhost}", Route(_limits_of("vhost"), "administrator")),
        ("GET", "/api/user-limits", Route(_limits("user"), "administrator")),
        ("GET", "/api/user-limits/{user}", Route(_limits_of("user"), "administrator")),
    ]


def _limits(noun: str) -> Any:
    async def handler(call: Call) -> Response:
        found = await call.ask(f"{noun} list")
        return as_json(list_here(call, [shapes.limits(row, noun) for row in found["items"] if row["limits"]]))

    return handler


def _limits_of(noun: str) -> Any:
    async def handler(call: Call) -> Response:
        row = await call.ask(f"{noun} show", **call.values)
        return as_json([shapes.limits(row, noun)] if row["limits"] else [])

    return handler

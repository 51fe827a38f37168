"""Changes by RabbitMQ's API: PUT, POST and DELETE below ``/api``.

Each request becomes one operation of the broker, in the user's name: the broker checks rights and values, and answers
after the change is on the disk.  201: something new is there; 204: it was there, or is gone.  As with RabbitMQ, fields
that a request does not need are ignored, and truth may be written as "true".
"""

from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from brokerd.management.answers import BadRequest, NotThere, as_json, nothing
from brokerd.management.app import Call, Route
from brokerd.management.control import Refused
from brokerd.management.rabbit_read import DEFAULT_EXCHANGE, bindings_between, is_named

TRUTH = {True: True, False: False, "true": True, "false": False}
BULK_MAX = 1000
PURGE_MAX = 100_000  # messages that one purge with a count takes


def routes() -> list[tuple[str, str, Route]]:
    """The routes of this module."""
    return [*_of_users(), *_of_rules(), *_of_topology(), *_of_clients()]


# --- requests


def required(body: dict[str, Any], *names: str) -> None:
    """Raise BadRequest if a field is missing."""
    for name in names:
        if name not in body:
            raise BadRequest(f"key_missing: {name}")


def truth(body: dict[str, Any], name: str, default: bool) -> bool:
    """A field that is true or false.  Raises BadRequest."""
    value = body.get(name, default)
    if not isinstance(value, bool | str) or value not in TRUTH:
        raise BadRequest(f"{name} is neither true nor false: {value!r:.80}")
    return TRUTH[value]


def table_of(body: dict[str, Any], name: str) -> dict[str, Any]:
    """A field that is an object; {} if it is missing or an empty list, which some clients send.  Raises BadRequest."""
    value = body.get(name) or {}
    if not isinstance(value, dict):
        raise BadRequest(f"{name} is not an object")
    return value


def _words(text: str) -> list[str]:
    """The tags of a text with commas."""
    return [tag.strip() for tag in text.split(",") if tag.strip()]


async def is_there(call: Call, verb: str, **fields: Any) -> bool:
    """Whether the broker shows the thing."""
    try:
        await call.ask(verb, **fields)
    except Refused as error:
        if error.code != 404:
            raise
        return False
    return True


def doer(verb: str, **names: str) -> Any:
    """The handler that does one operation with the texts of the path.  ``names``: the operation's field for a name of
    the path, where they differ."""

    async def handler(call: Call) -> Response:
        await call.ask(verb, **{names.get(name, name): value for name, value in call.values.items()})
        return nothing()

    return handler


# --- users, vhosts, permissions, limits


def _of_users() -> list[tuple[str, str, Route]]:
    admin = "administrator"
    return [
        ("PUT", "/api/users/{user}", Route(_put_user, admin)),
        ("DELETE", "/api/users/{user}", Route(_delete_user, admin)),
        ("POST", "/api/users/bulk-delete", Route(_delete_users, admin)),
        ("PUT", "/api/vhosts/{vhost}", Route(_put_vhost, admin)),
        ("DELETE", "/api/vhosts/{vhost}", Route(doer("vhost delete"), admin)),
        ("PUT", "/api/permissions/{vhost}/{user}", Route(_put_permission, admin)),
        ("DELETE", "/api/permissions/{vhost}/{user}", Route(doer("permission clear"), admin)),
        ("PUT", "/api/topic-permissions/{vhost}/{user}", Route(_put_topic_permission, admin)),
        ("DELETE", "/api/topic-permissions/{vhost}/{user}", Route(doer("topic_permission clear"), admin)),
        ("DELETE", "/api/topic-permissions/{vhost}/{user}/{exchange}", Route(doer("topic_permission clear"), admin)),
        ("PUT", "/api/vhost-limits/{vhost}/{limit}", Route(_put_limit("vhost"), admin)),
        ("DELETE", "/api/vhost-limits/{vhost}/{limit}", Route(_delete_limit("vhost"), admin)),
        ("PUT", "/api/user-limits/{user}/{limit}", Route(_put_limit("user"), admin)),
        ("DELETE", "/api/user-limits/{user}/{limit}", Route(_delete_limit("user"), admin)),
        ("GET", "/api/auth/hash_password/{password}", Route(_hash_password)),
        ("PUT", "/api/auth/hash_password", Route(_hash_password)),
    ]


async def _put_user(call: Call) -> Response:
    user, body = call.values["user"], await call.table()
    required(body, "tags")
    tags = body["tags"]
    if isinstance(tags, str):
        tags = _words(tags)
    there = await is_there(call, "user show", user=user)
    await call.ask("user add", user=user, tags=tags, replace=True,
                   **{name: body[name] for name in ("password", "password_hash", "hashing_algorithm")
                      if body.get(name) is not None})  # fmt: skip
    call.services.logins.forget()
    if isinstance(body.get("limits"), dict):
        await call.ask("user set_limits", user=user, limits=body["limits"])
    return nothing(204 if there else 201)


async def _delete_user(call: Call) -> Response:
    await call.ask("user delete", user=call.values["user"])
    call.services.logins.forget()
    return nothing()


async def _delete_users(call: Call) -> Response:
    users = (await call.table()).get("users")
    if not isinstance(users, list) or not all(isinstance(each, str) for each in users) or len(users) > BULK_MAX:
        raise BadRequest(f"users is not a list of at most {BULK_MAX} names")
    for user in users:
        if await is_there(call, "user show", user=user):
            await call.ask("user delete", user=user)
    call.services.logins.forget()
    return nothing()


async def _put_vhost(call: Call) -> Response:
    vhost, body = call.values["vhost"], await call.table()
    there = await is_there(call, "vhost show", vhost=vhost)
    described = {name: body[name] for name in ("description", "tags") if body.get(name) is not None}
    if isinstance(described.get("tags"), str):
        described["tags"] = _words(described["tags"])
    if body.get("default_queue_type") is not None:
        kind = body["default_queue_type"]
        described["default_queue_type"] = "" if kind == "undefined" else kind
    if described or not there:
        await call.ask("vhost add", vhost=vhost, replace=there, **described)
    if "tracing" in body:
        await call.ask("vhost trace", vhost=vhost, on=truth(body, "tracing", False))
    return nothing(204 if there else 201)


async def _put_permission(call: Call) -> Response:
    body = await call.table()
    required(body, "configure", "write", "read")
    there = (await call.ask("permission list", **call.values))["items"]
    await call.ask("permission set", **call.values, **{name: body[name] for name in ("configure", "write", "read")})
    return nothing(204 if there else 201)


async def _put_topic_permission(call: Call) -> Response:
    body = await call.table()
    required(body, "exchange", "write", "read")
    there = (await call.ask("topic_permission list", **call.values))["items"]
    await call.ask("topic_permission set", **call.values,
                   **{name: body[name] for name in ("exchange", "write", "read")})  # fmt: skip
    return nothing(204 if any(row["exchange"] == body["exchange"] for row in there) else 201)


def _put_limit(noun: str) -> Any:
    async def handler(call: Call) -> Response:
        body, name = await call.table(), call.values["limit"]
        required(body, "value")
        limits = (await call.ask(f"{noun} show", **{noun: call.values[noun]}))["limits"]
        await call.ask(f"{noun} set_limits", **{noun: call.values[noun]}, limits={**limits, name: body["value"]})
        return nothing(204 if name in limits else 201)

    return handler


def _delete_limit(noun: str) -> Any:
    async def handler(call: Call) -> Response:
        limits = (await call.ask(f"{noun} show", **{noun: call.values[noun]}))["limits"]
        limits.pop(call.values["limit"], None)
        await call.ask(f"{noun} set_limits", **{noun: call.values[noun]}, limits=limits)
        return nothing()

    return handler


async def _hash_password(call: Call) -> Response:
    password = call.values.get("password") or (await call.table()).get("password")
    found = await call.ask("user hash_password", password=password)
    return as_json({"ok": found["password_hash"], **found})


# --- policies and parameters


def _of_rules() -> list[tuple[str, str, Route]]:
    parameter = "/api/parameters/{component}/{vhost}/{name}"
    return [
        ("PUT", "/api/policies/{vhost}/{name}", Route(_put_policy("policy"), "policymaker")),
        ("DELETE", "/api/policies/{vhost}/{name}", Route(doer("policy delete"), "policymaker")),
        ("PUT", "/api/operator-policies/{vhost}/{name}", Route(_put_policy("operator_policy"), "administrator")),
        ("DELETE", "/api/operator-policies/{vhost}/{name}", Route(doer("operator_policy delete"), "administrator")),
        ("GET", "/api/parameters", Route(_parameters, "policymaker")),
        ("GET", "/api/parameters/{component}", Route(_parameters, "policymaker")),
        ("GET", "/api/parameters/{component}/{vhost}", Route(_parameters, "policymaker")),
        ("GET", parameter, Route(_parameter, "policymaker")),
        ("PUT", parameter, Route(_put_parameter, "policymaker")),
        ("DELETE", parameter, Route(doer("parameter clear"), "policymaker")),
        ("GET", "/api/global-parameters", Route(_global_parameters, "policymaker")),
        ("GET", "/api/global-parameters/{name}", Route(_global_parameter, "policymaker")),
        ("PUT", "/api/global-parameters/{name}", Route(_put_global_parameter, "administrator")),
        ("PUT", "/api/cluster-name", Route(_put_cluster_name, "administrator")),
        ("DELETE", "/api/global-parameters/{name}", Route(_delete_global_parameter, "administrator")),
    ]


def _put_policy(noun: str) -> Any:
    async def handler(call: Call) -> Response:
        body = await call.table()
        required(body, "pattern", "definition")
        there = (await call.ask(f"{noun} list", vhost=call.values["vhost"]))["items"]
        await call.ask(
            f"{noun} set", **call.values, pattern=body["pattern"], definition=body["definition"],
            priority=_number(body, "priority"), apply_to=body.get("apply-to", "all"),
        )  # fmt: skip
        return nothing(204 if any(row["name"] == call.values["name"] for row in there) else 201)

    return handler


def _number(body: dict[str, Any], name: str) -> Any:
    """A number; some clients write it as a text."""
    value = body.get(name, 0)
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and value.isascii() and len(value) < 12:
        return int(value)
    return value


async def _parameters(call: Call) -> Response:
    return as_json((await call.ask("parameter list", **call.values))["items"])


async def _parameter(call: Call) -> Response:
    return as_json(await _find_parameter(call))


async def _find_parameter(call: Call) -> dict[str, Any]:
    component, vhost, name = (call.values[each] for each in ("component", "vhost", "name"))
    found = await call.ask("parameter list", component=component, vhost=vhost)
    return _named(found["items"], name)


def _named(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for row in rows:
        if row["name"] == name:
            return row
    raise NotThere


async def _put_parameter(call: Call) -> Response:
    body = await call.table()
    required(body, "value")
    try:
        await _find_parameter(call)
        status = 204
    except NotThere:
        status = 201
    await call.ask("parameter set", **call.values, value=body["value"])
    return nothing(status)


async def _global_parameters(call: Call) -> Response:
    return as_json((await call.ask("global_parameter list"))["items"])


async def _global_parameter(call: Call) -> Response:
    return as_json(_named((await call.ask("global_parameter list"))["items"], call.values["name"]))


async def _put_global_parameter(call: Call) -> Response:
    body = await call.table()
    required(body, "value")
    there = (await call.ask("global_parameter list"))["items"]
    await call.ask("global_parameter set", name=call.values["name"], value=body["value"])
    call.services.samples.mark_outdated()
    return nothing(204 if any(row["name"] == call.values["name"] for row in there) else 201)


async def _delete_global_parameter(call: Call) -> Response:
    await call.ask("global_parameter clear", name=call.values["name"])
    call.services.samples.mark_outdated()
    return nothing()


async def _put_cluster_name(call: Call) -> Response:
    body = await call.table()
    required(body, "name")
    await call.ask("global_parameter set", name="cluster_name", value=body["name"])
    call.services.samples.mark_outdated()
    return nothing()


# --- exchanges, queues, bindings


def _of_topology() -> list[tuple[str, str, Route]]:
    return [
        ("PUT", "/api/exchanges/{vhost}/{exchange}", Route(_put_exchange)),
        ("DELETE", "/api/exchanges/{vhost}/{exchange}", Route(_delete_exchange)),
        ("PUT", "/api/queues/{vhost}/{queue}", Route(_put_queue)),
        ("DELETE", "/api/queues/{vhost}/{queue}", Route(_delete_queue)),
        ("DELETE", "/api/queues/{vhost}/{queue}/contents", Route(_purge)),
        ("PUT", "/api/queues/{vhost}/{queue}/pause", Route(doer("queue pause"))),
        ("PUT", "/api/queues/{vhost}/{queue}/resume", Route(doer("queue resume"))),
        ("PUT", "/api/queues/{vhost}/{queue}/restart", Route(_restart_queue)),
        ("POST", "/api/bindings/{vhost}/e/{source}/q/{destination}", Route(_bind("queue"))),
        ("POST", "/api/bindings/{vhost}/e/{source}/e/{destination}", Route(_bind("exchange"))),
        ("DELETE", "/api/bindings/{vhost}/e/{source}/q/{destination}/{props}", Route(_unbind("queue"))),
        ("DELETE", "/api/bindings/{vhost}/e/{source}/e/{destination}/{props}", Route(_unbind("exchange"))),
    ]


async def _put_exchange(call: Call) -> Response:
    body = await call.table()
    required(body, "type")
    answer = await call.ask(
        "exchange declare", **call.values, type=body["type"], durable=truth(body, "durable", True),
        auto_delete=truth(body, "auto_delete", False), internal=truth(body, "internal", False),
        arguments=table_of(body, "arguments"),
    )  # fmt: skip
    return nothing(201 if answer["created"] else 204)


async def _delete_exchange(call: Call) -> Response:
    await call.ask("exchange delete", **call.values, if_unused=call.query.get("if-unused") == "true")
    return nothing()


async def _put_queue(call: Call) -> Response:
    body = await call.table()
    answer = await call.ask(
        "queue declare", **call.values, durable=truth(body, "durable", True),
        auto_delete=truth(body, "auto_delete", False), arguments=table_of(body, "arguments"),
    )  # fmt: skip
    return nothing(201 if answer["created"] else 204)


async def _delete_queue(call: Call) -> Response:
    await call.ask("queue delete", **call.values, if_unused=call.query.get("if-unused") == "true",
                   if_empty=call.query.get("if-empty") == "true")  # fmt: skip
    return nothing()


async def _purge(call: Call) -> Response:
    """All messages that are ready; with ?count=N, as LavinMQ has it, the first N of them."""
    text = call.query.get("count")
    if text is None:
        await call.ask("queue purge", **call.values)
    elif not text.isdecimal() or not text.isascii() or len(text) > 9 or int(text) == 0:
        raise BadRequest("count is not a number from 1 to 999999999")
    else:
        await call.ask("message delete", **call.values, count=min(int(text), PURGE_MAX))
    return nothing()


def _bind(kind: str) -> Any:
    async def handler(call: Call) -> Response:
        body, destination = await call.table(), call.values["destination"]
        answer = await call.ask(
            "binding add", **call.values, destination_type=kind, routing_key=body.get("routing_key", ""),
            arguments=table_of(body, "arguments"),
        )  # fmt: skip
        place = f"{quote(destination, safe='', errors='surrogateescape')}/{quote(answer['properties_key'], safe='~')}"
        return nothing(201, {"location": place})

    return handler


def _unbind(kind: str) -> Any:
    async def handler(call: Call) -> Response:
        vhost, source, destination = (call.values[name] for name in ("vhost", "source", "destination"))
        for row in await bindings_between(call, kind):
            if is_named(row, call.values["props"]):
                await call.ask(
                    "binding delete", vhost=vhost, source="" if source == DEFAULT_EXCHANGE else source,
                    destination=destination, destination_type=kind, properties_key=row["properties_key"],
                )  # fmt: skip
                return nothing()
        raise NotThere

    return handler


async def _restart_queue(call: Call) -> Response:
    """LavinMQ's.  A queue that is in service need not start again; one that is not does so when the broker starts."""
    row = await call.ask("queue show", **call.values)
    if row["state"] == "down":
        raise BadRequest("the queue was not restarted: its files were lost, and the broker's next start recovers what "
                         "is left of them")
    raise BadRequest("the queue was not restarted: it is in service")


# --- clients


def _of_clients() -> list[tuple[str, str, Route]]:
    return [
        ("DELETE", "/api/connections/{connection}", Route(_close)),
        ("DELETE", "/api/connections/username/{user}", Route(_close_all)),
        ("DELETE", "/api/consumers/{vhost}/{connection}/{channel}/{tag}", Route(_cancel, "administrator")),
    ]


def _reason(call: Call) -> dict[str, str]:
    reason = call.headers.get("x-reason", "")
    return {"reason": reason[:200]} if reason else {}


async def _close(call: Call) -> Response:
    await call.ask("connection close", connection=call.values["connection"], **_reason(call))
    return nothing()


async def _close_all(call: Call) -> Response:
    for row in (await call.ask("connection list", user=call.values["user"]))["items"]:
        if await is_there(call, "connection show", connection=str(row["number"])):
            await call.ask("connection close", connection=str(row["number"]), **_reason(call))
    return nothing()


async def _cancel(call: Call) -> Response:
    channel = call.values["channel"]
    if not channel.isdecimal() or not channel.isascii() or len(channel) > 5:
        raise BadRequest("the channel is not a number")
    await call.ask("consumer cancel", connection=call.values["connection"], channel=int(channel),
                   tag=call.values["tag"])  # fmt: skip
    return nothing()

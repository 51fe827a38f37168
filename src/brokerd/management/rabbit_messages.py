"""RabbitMQ's API for messages: publish one, get some, and the test of a vhost, which does both.  LavinMQ's POST reads a
stream."""

from typing import Any

from starlette.responses import Response

from brokerd.management.answers import BadRequest, as_json
from brokerd.management.app import Call, Route
from brokerd.management.lists import list_here
from brokerd.management.rabbit_change import required, table_of

ACKMODES = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
ALIVENESS_QUEUE = "aliveness-test"
UNACKED_MAX = 10_000
SHOWN = ("payload_bytes", "redelivered", "exchange", "routing_key", "message_count", "properties", "payload",
         "payload_encoding")  # fmt: skip


def routes() -> list[tuple[str, str, Route]]:
    """The routes of this module."""
    return [
        ("POST", "/api/exchanges/{vhost}/{exchange}/publish", Route(_publish, changes=False)),
        ("POST", "/api/queues/{vhost}/{queue}/get", Route(_get, changes=False)),
        ("POST", "/api/queues/{vhost}/{queue}/stream", Route(_read, changes=False)),
        ("GET", "/api/queues/{vhost}/{queue}/unacked", Route(_unacked)),
        ("GET", "/api/aliveness-test/{vhost}", Route(_aliveness)),
    ]


async def _publish(call: Call) -> Response:
    body = await call.table()
    required(body, "routing_key", "properties", "payload", "payload_encoding")
    answer = await call.ask(
        "message publish", vhost=call.values["vhost"], exchange=call.values["exchange"],
        routing_key=body["routing_key"], payload=body["payload"], payload_encoding=body["payload_encoding"],
        properties=table_of(body, "properties"),
    )  # fmt: skip
    return as_json({"routed": answer["routed"]})


async def _get(call: Call) -> Response:
    body = await call.table()
    required(body, "count", "encoding")
    mode = body.get("ackmode") or body.get("ack_mode")
    if mode is None:  # As clients before RabbitMQ 3.7 ask.
        required(body, "requeue")
        mode = "ack_requeue_true" if body["requeue"] in (True, "true") else "ack_requeue_false"
    if mode not in ACKMODES:
        raise BadRequest(f"ackmode is not one of {', '.join(ACKMODES)}")
    found = await call.ask(
        "message get", vhost=call.values["vhost"], queue=call.values["queue"], count=_count(body, "count", 1),
        ackmode=mode, encoding=body["encoding"], truncate=_count(body, "truncate", 0),
    )  # fmt: skip
    return as_json([{name: row[name] for name in SHOWN} for row in found["items"]])


def _count(body: dict[str, Any], name: str, default: int) -> Any:
    """A number; rabbitmqadmin writes it as a text."""
    value = body.get(name, default)
    if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) < 12:
        return int(value)
    return value


async def _unacked(call: Call) -> Response:
    """As LavinMQ lists what clients hold, with the number of each message besides."""
    found = await call.ask("message unacked", **call.values, count=UNACKED_MAX)
    return as_json(list_here(call, [
        {
            "delivery_tag": row["delivery_tag"], "consumer_tag": row["consumer_tag"] or "",
            "unacked_for_seconds": row["held_ms"] / 1000, "seq": row["seq"],
            "channel_name": f"{row['connection_name']} ({row['channel']})" if row["connection_name"] else "",
        }
        for row in found["items"]
    ]))  # fmt: skip


async def _read(call: Call) -> Response:
    """Messages of a stream in the rows of a get: they are not taken, so none of them is redelivered."""
    body = await call.table()
    found = await call.ask(
        "stream read", vhost=call.values["vhost"], queue=call.values["queue"], count=_count(body, "count", 1),
        offset=_offset(body.get("offset", "first")), encoding=body.get("encoding", "auto"),
        truncate=_count(body, "truncate", 0),
    )  # fmt: skip
    count = found["end_offset"] - found["first_offset"]
    rows = [{"redelivered": False, "message_count": count} | row for row in found["items"]]
    return as_json([{name: row[name] for name in (*SHOWN, "offset")} for row in rows])


def _offset(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


async def _aliveness(call: Call) -> Response:
    vhost = call.values["vhost"]
    await call.ask("queue declare", vhost=vhost, queue=ALIVENESS_QUEUE, durable=False)
    await call.ask("message publish", vhost=vhost, exchange="amq.default", routing_key=ALIVENESS_QUEUE,
                   payload="test_message")  # fmt: skip
    found = await call.ask("message get", vhost=vhost, queue=ALIVENESS_QUEUE, ackmode="ack_requeue_false")
    return as_json({"status": "ok" if found["items"] else "failed"})

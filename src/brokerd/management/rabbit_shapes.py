"""Rows of the broker as RabbitMQ's API shows them: each function takes an operation's row, and returns RabbitMQ's.

The rows have RabbitMQ's words already where they mean the same.  Here come rates, RabbitMQ's second name for a thing,
and the fields that its clients ask for though a broker of one node has one answer.
"""

import time
from collections.abc import Callable
from typing import Any

from brokerd.management.samples import Samples

# RabbitMQ's counters of messages, and the words that the rows sum up to each.
QUEUE_STATS = {
    "publish": ("publish",), "deliver": ("deliver",), "get": ("get",), "ack": ("ack",), "redeliver": ("redeliver",),
    "deliver_get": ("deliver", "get"),
}  # fmt: skip
DELIVERY_STATS = ("deliver", "deliver_no_ack", "deliver_get")
Shape = Callable[[dict[str, Any]], dict[str, Any]]


def details(rate: float) -> dict[str, float]:
    """RabbitMQ's shape of a rate."""
    return {"rate": rate}


def time_text(ms: int) -> str:
    """As in ``idle_since``."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ms / 1000)) + f".{ms % 1000:03d}+00:00"


class Shapes:
    """The functions, with what all rows need: the node's name and the samples."""

    __slots__ = ("node", "samples")

    def __init__(self, node: str, samples: Samples) -> None:
        self.node = node
        self.samples = samples

    def queue(self, row: dict[str, Any]) -> dict[str, Any]:
        """A queue."""
        stats = row["message_stats"]
        get, deliver = stats["get"], stats["deliver"]
        counters = {
            "publish": stats["publish"], "deliver": deliver, "get": get, "ack": stats["ack"],
            "redeliver": stats["redeliver"], "deliver_get": deliver + get, "messages": row["messages"],
            "messages_ready": row["messages_ready"], "messages_unacknowledged": row["messages_unacknowledged"],
        }  # fmt: skip
        rates = self.samples.rates_of(("queue", row["vhost"], row["name"]), counters)
        busy = 1.0 if row["consumers"] else 0
        shown = row  # It is ours: a copy of each of 10,000 rows would take its time.
        shown |= {
            "node": self.node,
            "message_stats": with_rates({name: counters[name] for name in QUEUE_STATS}, rates),
            "messages_details": details(rates["messages"]),
            "messages_ready_details": details(rates["messages_ready"]),
            "messages_unacknowledged_details": details(rates["messages_unacknowledged"]),
            "messages_ram": row["messages"],
            "messages_persistent": row["messages"] if row["durable"] else 0,
            "message_bytes": row["message_bytes_ready"],
            "consumer_utilisation": busy,
            "consumer_capacity": busy,
            "memory": 0,
            "head_message_timestamp": None,
        }
        if row.get("owner"):
            shown["owner_pid_details"] = {"name": row["owner"]}
        if not row["messages"] and row.get("last_used"):
            shown["idle_since"] = time_text(row["last_used"])
        if row["type"] in ("quorum", "stream"):
            shown |= {"leader": self.node, "members": [self.node], "online": [self.node]}
        return shown

    def exchange(self, row: dict[str, Any]) -> dict[str, Any]:
        """An exchange."""
        stats = row.get("message_stats") or {}
        shown = {**row, "user_who_performed_action": "rmq-internal" if _is_predeclared(row["name"]) else ""}
        if stats:
            rates = self.samples.rates_of(("exchange", row["vhost"], row["name"]), stats)
            shown["message_stats"] = with_rates(stats, rates)
        return shown

    def connection(self, row: dict[str, Any]) -> dict[str, Any]:
        """A connection."""
        octets = {name: row[name] for name in ("recv_oct", "send_oct")}
        rates = self.samples.rates_of(("connection", row["number"]), octets)
        return {
            **row,
            "node": self.node,
            "protocol": row["protocol"],
            "auth_mechanism": row.get("auth_mechanism", "PLAIN"),
            "user_who_performed_action": row["user"],
            "recv_oct_details": details(rates["recv_oct"]),
            "send_oct_details": details(rates["send_oct"]),
        }

    def channel(self, row: dict[str, Any]) -> dict[str, Any]:
        """A channel."""
        counters = row["message_stats"]
        rates = self.samples.rates_of(("channel", row["connection"], row["number"]), counters)
        host, _, port = row["connection_name"].rpartition(":")
        return {
            **row,
            "node": self.node,
            "user_who_performed_action": row["user"],
            "acks_uncommitted": 0,
            "messages_uncommitted": 0,
            "message_stats": with_rates(counters, rates),
            "connection_details": {"name": row["connection_name"], "peer_host": host.strip("[]"),
                                   "peer_port": int(port) if port.isdecimal() else 0},
        }  # fmt: skip

    def vhost(self, row: dict[str, Any]) -> dict[str, Any]:
        """A vhost."""
        described = {"description": row.get("description", ""), "tags": row.get("tags", [])}
        kind = row.get("default_queue_type", "")
        metadata = {**described, **({"default_queue_type": kind} if kind else {})}
        return {**row, **described, "default_queue_type": kind or "undefined", "metadata": metadata,
                "cluster_state": {self.node: "running"}}  # fmt: skip

    def consumer(self, row: dict[str, Any]) -> dict[str, Any]:
        """A consumer."""
        host, _, port = row["connection_name"].rpartition(":")
        return {
            **row,
            "queue": {"name": row["queue"], "vhost": row["vhost"]},
            "channel_details": {
                "name": f"{row['connection_name']} ({row['channel']})", "number": row["channel"],
                "connection_name": row["connection_name"], "user": row["user"], "node": self.node,
                "peer_host": host.strip("[]"), "peer_port": int(port) if port.isdecimal() else 0,
            },
        }  # fmt: skip

    def deliveries(self, rows: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
        """What the consumers of a queue, or of a channel, got since each began: together for each channel
        (``channel_details``) or ``queue``."""
        found: dict[Any, tuple[Any, dict[str, float]]] = {}
        for row in rows:
            key = (row["vhost"], row["queue"], row["connection"], row["channel"])
            _, counters = found.setdefault(key, (self.consumer(row)[by], dict.fromkeys(DELIVERY_STATS, 0)))
            for name in ("deliver_get", "deliver" if row["ack_required"] else "deliver_no_ack"):
                counters[name] += row["messages_delivered"]
        return [
            {by: thing, "stats": with_rates(counters, self.samples.rates_of(("deliveries", key), counters))}
            for key, (thing, counters) in found.items()
        ]


def as_it_is(row: dict[str, Any]) -> dict[str, Any]:
    """A row that has RabbitMQ's shape already."""
    return row


def with_rates(counters: dict[str, Any], rates: dict[str, float]) -> dict[str, Any]:
    """Counters with their rates beside them, as in message_stats."""
    shown: dict[str, Any] = {}
    for name, count in counters.items():
        shown[name] = count
        shown[f"{name}_details"] = details(rates.get(name, 0.0))
    return shown


def user(row: dict[str, Any]) -> dict[str, Any]:
    """A user."""
    return {**row, "limits": row.get("limits", {})}


def limits(row: dict[str, Any], owner: str) -> dict[str, Any]:
    """The limits of a vhost or a user, as lists of limits show them.  ``owner``: the word for which."""
    return {owner: row["name"], "value": row["limits"]}


def _is_predeclared(name: str) -> bool:
    return not name or name.startswith("amq.")

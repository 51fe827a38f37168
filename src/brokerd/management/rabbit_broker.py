"""RabbitMQ's API about the whole broker: overview, nodes, health checks, the user who asks, and the names and flags
that its clients look for.
"""

import os
import time
from typing import Any

from starlette.responses import Response

from brokerd import __version__
from brokerd.management.answers import BadRequest, NotThere, as_json
from brokerd.management.app import Call, Route
from brokerd.management.lists import only_columns
from brokerd.management.rabbit_shapes import QUEUE_STATS, details, with_rates

RABBIT_VERSION = "3.13.7"  # whose API this is: clients choose by it what they may ask for
AGE_SECONDS_MAX = 3600
WITHOUT_LEADER = "quorum-queues-without-elected-leaders"
# As RabbitMQ counts them: months of 30 days, years of 365.
DAYS = {"day": 1, "days": 1, "week": 7, "weeks": 7, "month": 30, "months": 30, "year": 365, "years": 365}


def routes() -> list[tuple[str, str, Route]]:
    """The routes of this module."""
    checks = "/api/health/checks"
    return [
        ("GET", "/api/whoami", Route(_whoami)),
        ("GET", "/api/overview", Route(_overview)),
        ("GET", "/api/cluster-name", Route(_cluster_name)),
        ("GET", "/api/version", Route(_version)),
        ("GET", "/api/extensions", Route(_extensions)),
        ("GET", "/api/feature-flags", Route(_nothing, "administrator")),
        ("GET", "/api/deprecated-features", Route(_nothing, "administrator")),
        ("GET", "/api/deprecated-features/used", Route(_nothing, "administrator")),
        ("GET", "/api/nodes", Route(_nodes, "monitoring")),
        ("GET", "/api/nodes/{node}", Route(_node, "monitoring")),
        ("GET", "/api/nodes/{node}/memory", Route(_memory, "monitoring")),
        ("GET", f"{checks}/alarms", Route(_alarms)),
        ("GET", f"{checks}/local-alarms", Route(_alarms)),
        ("GET", f"{checks}/virtual-hosts", Route(_virtual_hosts)),
        ("GET", f"{checks}/port-listener/{{port}}", Route(_port_listener)),
        ("GET", f"{checks}/protocol-listener/{{protocol}}", Route(_protocol_listener)),
        ("GET", f"{checks}/certificate-expiration/{{within}}/{{unit}}", Route(_certificate_expiration)),
        ("GET", f"{checks}/node-is-mirror-sync-critical", Route(_ok)),
        ("GET", f"{checks}/node-is-quorum-critical", Route(_ok)),
        ("GET", f"{checks}/is-in-service", Route(_ok)),
        ("GET", f"{checks}/below-node-connection-limit", Route(_below_limit)),
        ("GET", f"{checks}/ready-to-serve-clients", Route(_ok)),
        ("GET", f"{checks}/metadata-store/initialized", Route(_ok)),
        ("GET", f"{checks}/metadata-store/initialized/with-data", Route(_ok)),
        ("GET", f"{checks}/{WITHOUT_LEADER}/vhost/{{vhost}}/pattern/{{pattern}}", Route(_quorum_queues)),
        ("GET", f"{checks}/{WITHOUT_LEADER}/all-vhosts/pattern/{{pattern}}", Route(_quorum_queues)),
        ("GET", "/api/healthchecks/node", Route(_ok)),
        ("GET", "/api/healthchecks/node/{node}", Route(_ok)),
    ]


# --- names


async def _whoami(call: Call) -> Response:
    return as_json({"name": call.login.user, "tags": list(call.login.tags)})


async def _cluster_name(call: Call) -> Response:
    return as_json({"name": (await call.services.samples.recent())["cluster_name"]})


async def _version(call: Call) -> Response:
    return as_json(RABBIT_VERSION)


async def _extensions(call: Call) -> Response:
    return as_json([])


async def _nothing(call: Call) -> Response:
    return as_json([])


# --- overview


async def _overview(call: Call) -> Response:
    node = await call.services.samples.recent()
    shown = {
        "management_version": RABBIT_VERSION,
        "rabbitmq_version": RABBIT_VERSION,
        "product_name": "brokerd",
        "product_version": __version__,
        "brokerd_version": __version__,
        "erlang_version": "",
        "erlang_full_version": "",
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [AGE_SECONDS_MAX], "basic": [], "detailed": []},
        "cluster_name": node["cluster_name"],
        "cluster_tags": [],
        "node": node["name"],
        "node_tags": [],
        "statistics_db_event_queue": 0,
        "is_op_policy_updating_enabled": True,
        "enable_queue_totals": False,
        "disable_stats": False,
        "exchange_types": [{"name": name, "description": "", "enabled": True} for name in node["exchange_types"]],
        **(await _totals(call, node)),
    }
    if call.has_tag("monitoring"):
        shown["listeners"] = _listeners(node, call)
        shown["contexts"] = [_context(call, node)]
    return as_json(only_columns(shown, call.query))


async def _totals(call: Call, node: dict[str, Any]) -> dict[str, Any]:
    """The totals of the objects that the user may see."""
    if not call.has_tag("monitoring"):
        return await _totals_of_user(call)
    totals = node["totals"]
    ready, unacked = totals["messages_ready"], totals["messages_unacknowledged"]
    depth = {"messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked}
    return {
        "queue_totals": {**depth, **_depth_details(call)},
        "object_totals": {name: totals[name] for name in
                          ("connections", "channels", "consumers", "exchanges", "queues")},
        "message_stats": _message_stats(call, node["message_stats"]),
        "churn_rates": _churn(call, node.get("churn", {})),
    }  # fmt: skip


async def _totals_of_user(call: Call) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for noun in ("connection", "channel", "consumer", "exchange"):
        found = await call.ask(f"{noun} list", page=1, page_size=1)
        counts[f"{noun}s"] = found["total_count"]
    queues = (await call.ask("queue list"))["items"]
    depth = {name: sum(row[name] for row in queues)
             for name in ("messages", "messages_ready", "messages_unacknowledged")}  # fmt: skip
    stats = {name: sum(row["message_stats"].get(word, 0) for row in queues for word in words)
             for name, words in QUEUE_STATS.items()}  # fmt: skip
    rates = call.services.samples.rates_of(("overview", call.login.user), stats)
    return {
        "queue_totals": depth,
        "object_totals": {**counts, "queues": len(queues)},
        "message_stats": with_rates(stats, rates),
        "churn_rates": {},
    }


def _message_stats(call: Call, stats: dict[str, int]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, words in QUEUE_STATS.items():
        words = ("publish_in",) if name == "publish" and "publish_in" in stats else words
        shown[name] = sum(stats.get(word, 0) for word in words)
        shown[f"{name}_details"] = _rate(call, [f"message_stats.{word}" for word in words], "msg_rates")
    return shown


def _churn(call: Call, churn: dict[str, int]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, count in churn.items():
        shown[name] = count
        shown[f"{name}_details"] = details(call.services.samples.rate(f"churn.{name}"))
    return shown


def _depth_details(call: Call) -> dict[str, Any]:
    ready, unacked = "totals.messages_ready", "totals.messages_unacknowledged"
    return {
        "messages_details": _rate(call, [ready, unacked], "lengths"),
        "messages_ready_details": _rate(call, [ready], "lengths"),
        "messages_unacknowledged_details": _rate(call, [unacked], "lengths"),
    }


def _rate(call: Call, names: list[str], kind: str) -> dict[str, Any]:
    """The rate of a sum of counters; with its samples, if the query asks for them (``lengths_age``, ``msg_rates_age``,
    and the steps ``…_incr``)."""
    samples = call.services.samples
    shown: dict[str, Any] = details(round(sum(map(samples.rate, names)), 3))
    age = _seconds(call, f"{kind}_age")
    if not age:
        return shown
    step = max(5, _seconds(call, f"{kind}_incr") or 5)
    series = [samples.series(name, age, step) for name in names]
    points = [(when, sum(each[at][1] for each in series)) for at, (when, _) in enumerate(series[0])]
    shown["samples"] = [{"sample": value, "timestamp": int(1000 * when)} for when, value in points]
    if len(points) > 1:
        (last, end), (first, begin) = points[0], points[-1]
        shown["avg_rate"] = round((end - begin) / (last - first), 3) if last > first else 0.0
        shown["avg"] = sum(value for _, value in points) / len(points)
    return shown


def _seconds(call: Call, name: str) -> int:
    text = call.query.get(name, "")
    if not text:
        return 0
    if not text.isdecimal() or not text.isascii() or len(text) > 9:
        raise BadRequest(f"{name} must be a number of seconds")
    return min(int(text), AGE_SECONDS_MAX)


def _listeners(node: dict[str, Any], call: Call) -> list[dict[str, Any]]:
    found = [{"node": node["name"], "protocol": each["protocol"], "ip_address": each["address"], "port": each["port"],
              "socket_opts": {}} for each in node["listeners"]]  # fmt: skip
    settings = call.services.settings
    for protocol, option in (("http", "port"), ("https", "https_port")):
        if settings[option]:
            found.append({"node": node["name"], "protocol": protocol, "ip_address": settings["bind"],
                          "port": settings[option], "socket_opts": {}})  # fmt: skip
    return found


def _context(call: Call, node: dict[str, Any]) -> dict[str, Any]:
    settings = call.services.settings
    return {"node": node["name"], "description": "RabbitMQ Management", "path": "/", "ip": settings["bind"],
            "port": str(settings["port"] or settings["https_port"]), "ssl_opts": []}  # fmt: skip


# --- nodes


async def _nodes(call: Call) -> Response:
    return as_json([only_columns(await _node_table(call), call.query)])


async def _node(call: Call) -> Response:
    table = await _node_table(call)
    if call.values["node"] != table["name"]:
        raise NotThere
    return as_json(only_columns(table, call.query))


async def _node_table(call: Call) -> dict[str, Any]:
    node = await call.services.samples.recent()
    totals = node["totals"]
    return {
        "name": node["name"],
        "type": "disc",
        "running": True,
        "being_drained": False,
        "partitions": [],
        "cluster_links": [],
        "os_pid": str(node["process"]),
        "uptime": int(1000 * node["uptime_seconds"]),
        "processors": os.cpu_count() or 1,
        "mem_used": node["mem_used"],
        "mem_limit": node["mem_limit"],
        "mem_alarm": "memory" in node["alarms"],
        "disk_free": node["disk_free"],
        "disk_free_limit": node["disk_free_limit"],
        "disk_free_alarm": "disk" in node["alarms"],
        "fd_used": node["fd_used"],
        "fd_total": node["fd_total"],
        "sockets_used": totals["connections"],
        "sockets_total": node["fd_total"],
        "proc_used": 1,
        "proc_total": 1,
        "run_queue": 0,
        "rates_mode": "basic",
        "net_ticktime": 60,
        "db_dir": node["data_dir"],
        "config_files": [],
        "log_files": [],
        "enabled_plugins": ["rabbitmq_management", "rabbitmq_prometheus"],
        "exchange_types": [{"name": name, "description": "", "enabled": True} for name in node["exchange_types"]],
        "auth_mechanisms": [{"name": "PLAIN", "description": "", "enabled": True}],
        "applications": [{"name": "rabbit", "description": "brokerd", "version": RABBIT_VERSION}],
        "contexts": [_context(call, node)],
        "mem_used_details": _rate(call, ["mem_used"], "node_stats"),
        "disk_free_details": _rate(call, ["disk_free"], "node_stats"),
        "fd_used_details": _rate(call, ["fd_used"], "node_stats"),
        "sockets_used_details": _rate(call, ["totals.connections"], "node_stats"),
        "metrics_gc_queue_length": {},
    }


async def _memory(call: Call) -> Response:
    node = await call.services.samples.recent()
    if call.values["node"] != node["name"]:
        raise NotThere
    return as_json({"memory": {"total": {"rss": node["mem_used"], "allocated": node["mem_used"]}, "strategy": "rss"}})


# --- health checks


async def _ok(call: Call) -> Response:
    await call.services.samples.take()  # It answers.
    return as_json({"status": "ok"})


def _failed(reason: str, **more: Any) -> Response:
    return as_json({"status": "failed", "reason": reason, **more}, 503)


async def _alarms(call: Call) -> Response:
    node = await call.services.samples.take()
    if not node["alarms"]:
        return as_json({"status": "ok"})
    alarms = [{"node": node["name"], "resource": each} for each in node["alarms"]]
    return _failed("There are alarms in effect in the cluster", alarms=alarms)


async def _below_limit(call: Call) -> Response:
    node = await call.services.samples.take()
    current, limit = node["totals"]["connections"], node["connection_max"]
    if limit and current >= limit:
        return _failed("node connection limit is reached", current=current, limit=limit)
    return as_json({"status": "ok", "current": current, "limit": limit or "infinity"})


async def _virtual_hosts(call: Call) -> Response:
    await call.ask("vhost list", page=1, page_size=1)  # A vhost that cannot be opened ends the start.
    return as_json({"status": "ok"})


async def _quorum_queues(call: Call) -> Response:
    """Whether quorum queues with such a name are out of service.  There is one node, so only lost files do that."""
    vhost, pattern = call.values.get("vhost", ""), call.values["pattern"]
    found = await call.ask("queue list", vhost=vhost, name=pattern, use_regex=True)
    down = [
        {"readable_name": f"queue '{row['name']}' in vhost '{row['vhost']}'", "name": row["name"],
         "virtual_host": row["vhost"], "type": "rabbit_quorum_queue"}
        for row in found["items"] if row["type"] == "quorum" and row["state"] == "down"
    ]  # fmt: skip
    if down:
        return _failed("There are quorum queues without elected leaders", queues=down)
    return as_json({"status": "ok"})


async def _port_listener(call: Call) -> Response:
    text = call.values["port"]
    if not text.isdecimal() or not text.isascii() or len(text) > 5:
        raise BadRequest("port is not a number")
    node = await call.services.samples.recent()
    ports = [each["port"] for each in _listeners(node, call)]
    if int(text) in ports:
        return as_json({"status": "ok", "port": int(text)})
    return _failed("No active listener", missing=int(text), ports=ports)


async def _protocol_listener(call: Call) -> Response:
    node = await call.services.samples.recent()
    known = [each["protocol"] for each in _listeners(node, call)]
    wanted = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqp0-9-1": "amqp", "amqps": "amqp/ssl"}.get(
        call.values["protocol"].lower(), call.values["protocol"].lower()
    )
    if wanted in known:
        return as_json({"status": "ok", "protocol": call.values["protocol"]})
    return _failed("No active listener", missing=call.values["protocol"], protocols=known)


async def _certificate_expiration(call: Call) -> Response:
    """Whether a certificate of a listener expires within so many days, weeks, months or years."""
    within, days = call.values["within"], DAYS.get(call.values["unit"])
    if not within.isdecimal() or not within.isascii() or len(within) > 5:
        raise BadRequest("within is not a whole number of 0 to 99999")
    if days is None:
        raise BadRequest("the unit is days, weeks, months or years")
    node = await call.services.samples.take()
    until = time.time() + int(within) * days * 86400
    expired = [
        {"name": each["file"], "node": node["name"], "cert_expires_on": when(each["expires_at"])}
        for each in node["certificates"]
        if each["expires_at"] <= until
    ]
    if expired:
        return _failed("Certificates expiring", expired=expired)
    return as_json({"status": "ok"})


def when(seconds: int) -> str:
    """A time as RabbitMQ writes it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))

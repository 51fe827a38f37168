"""``/metrics``, ``/metrics/per-object`` and ``/metrics/detailed`` for Prometheus, under RabbitMQ's names.

``/metrics`` has the sums of the whole broker, and costs the broker as much as one page.  ``/metrics/per-object`` adds
those of each queue, exchange, connection and channel.  ``/metrics/detailed?family=NAME&vhost=NAME`` has the families
that it names, both as often as wanted.

The text is written here: prometheus_client makes an object for each sample, which takes it seconds for 10,000 queues.
Tests read it with prometheus_client's parser.  A counter that is the sum of queues' counters does not fall when a queue
is deleted: see ``Carried``.
"""

import re
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from starlette.responses import Response

from brokerd import __version__
from brokerd.management.answers import BadRequest
from brokerd.management.app import Call, Route
from brokerd.management.rabbit_broker import RABBIT_VERSION

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
VHOSTS_MAX = 100
_NOT_UTF8 = re.compile(r"[\ud800-\udfff]")  # how a str holds such an octet
_LIKE_ESCAPE = re.compile(r"(\\+)(?=[\ud800-\udfff]|ud[89a-f][0-9a-f]{2})")
Labels = dict[str, str]
Written = str  # labels as they stand in braces, made once for a row that is in many families
# With what the sample's name has behind the family's
Sample = tuple[Labels | Written, float] | tuple[Labels | Written, float, str]


class Family(NamedTuple):
    """A metric: its samples have one name and different labels."""

    name: str
    kind: str  # gauge, counter or histogram
    help: str
    samples: Iterable[Sample]


class Carried:
    """Counters that may fall because a part of their sum has gone: the lost part is added again."""

    __slots__ = ("_last", "_lost")

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._lost: dict[str, float] = {}

    def total(self, name: str, value: float) -> float:
        """The counter, which never falls."""
        last = self._last.get(name, 0)
        if value < last:
            self._lost[name] = self._lost.get(name, 0) + last - value
        self._last[name] = value
        return value + self._lost.get(name, 0)


_carried = Carried()


def routes() -> list[tuple[str, str, Route]]:
    """The routes of this module."""
    return [
        ("GET", "/metrics", Route(_aggregated, "monitoring")),
        ("GET", "/metrics/per-object", Route(_per_object, "monitoring", again=True)),
        ("GET", "/metrics/detailed", Route(_detailed, "monitoring", again=True)),
    ]


class _Asked:
    """What the families of one page ask the broker: the same question once."""

    __slots__ = ("_answers", "_call", "services")

    def __init__(self, call: Call) -> None:
        self._call, self.services = call, call.services
        self._answers: dict[Any, Any] = {}

    async def ask(self, verb: str, /, **fields: Any) -> Any:
        """As Call.ask.  The answer belongs to all who ask."""
        key = verb, *sorted(fields.items())
        if key not in self._answers:
            self._answers[key] = await self._call.ask(verb, **fields)
        return self._answers[key]


async def _aggregated(call: Call) -> Response:
    node = await call.services.samples.with_histograms()
    return _answer([*_identity(node), *_whole(node)])


async def _per_object(call: Call) -> Response:
    node = await call.services.samples.with_histograms()
    families = [*_identity(node), *_whole(node, depth=False)]
    asked = _Asked(call)
    for name in PER_OBJECT:
        families += await DETAILED[name](asked, [""], "rabbitmq_")
    return _answer(families)


async def _detailed(call: Call) -> Response:
    fields = parse_qsl(call.raw_query, keep_blank_values=True)
    names = [value for name, value in fields if name == "family"]
    vhosts = [value for name, value in fields if name == "vhost"] or [""]
    unknown = [name for name in names if name not in DETAILED]
    if unknown:
        raise BadRequest(f"no family '{unknown[0]}': there are {', '.join(DETAILED)}")
    if len(vhosts) > VHOSTS_MAX:
        raise BadRequest(f"more than {VHOSTS_MAX} vhosts")
    families = _identity(await call.services.samples.recent())
    asked = _Asked(call)
    for name in dict.fromkeys(names):
        families += await DETAILED[name](asked, vhosts, "rabbitmq_detailed_")
    return _answer(families)


# --- the whole broker


def _identity(node: dict[str, Any]) -> list[Family]:
    return [
        Family("rabbitmq_identity_info", "gauge", "The broker's name.",
               [({"rabbitmq_node": node["name"], "rabbitmq_cluster": node["cluster_name"],
                  "rabbitmq_cluster_permanent_id": node["identity"]}, 1)]),
        Family("rabbitmq_build_info", "gauge", "Versions.",
               [({"rabbitmq_version": RABBIT_VERSION, "product_name": "brokerd", "product_version": __version__,
                  "erlang_version": "", "prometheus_plugin_version": __version__}, 1)]),
    ]  # fmt: skip


# name, where in "node show", help
GAUGES = (
    ("connections", "totals.connections", "Open connections."),
    ("channels", "totals.channels", "Open channels."),
    ("consumers", "totals.consumers", "Consumers."),
    ("queues", "totals.queues", "Queues."),
    ("exchanges", "totals.exchanges", "Exchanges."),
    ("global_consumers", "totals.consumers", "Consumers."),
    ("global_publishers", "totals.publishers", "Channels that have published."),
    ("process_resident_memory_bytes", "mem_used", "Memory that the broker uses."),
    ("resident_memory_limit_bytes", "mem_limit", "Above this publishers are blocked."),
    ("disk_space_available_bytes", "disk_free", "Free space on the disk."),
    ("disk_space_available_limit_bytes", "disk_free_limit", "Below this publishers are blocked."),
    ("process_open_fds", "fd_used", "Open descriptors."),
    ("process_max_fds", "fd_total", "Descriptors that the broker may have."),
    ("erlang_uptime_seconds", "uptime_seconds", "Time since the start."),
)
DEPTH = (
    ("queue_messages_ready", "totals.messages_ready", "Messages that wait for a consumer."),
    ("queue_messages_unacked", "totals.messages_unacknowledged", "Messages that are delivered and not acked."),
)
# name, the words of message_stats, further labels, help
COUNTERS: tuple[tuple[str, tuple[str, ...], bool, str], ...] = (
    ("messages_received_total", ("publish_in",), False, "Messages published."),
    ("messages_received_confirm_total", ("confirm_in",), False, "Messages published on channels with confirms."),
    ("messages_confirmed_total", ("confirm",), False, "Confirms sent."),
    ("messages_routed_total", ("publish_out",), False, "Messages put into queues."),
    ("messages_unroutable_dropped_total", ("drop_unroutable",), False, "Messages without a queue."),
    ("messages_unroutable_returned_total", ("return_unroutable",), False, "Mandatory messages without a queue."),
    ("messages_delivered_total", ("deliver", "get"), True, "Messages delivered."),
    ("messages_delivered_consume_manual_ack_total", ("deliver", "-deliver_no_ack"), True,
     "Delivered to consumers that ack."),
    ("messages_delivered_consume_auto_ack_total", ("deliver_no_ack",), True, "Delivered to consumers that do not ack."),
    ("messages_delivered_get_manual_ack_total", ("get", "-get_no_ack"), True, "Got, to be acked."),
    ("messages_delivered_get_auto_ack_total", ("get_no_ack",), True, "Got without acks."),
    ("messages_redelivered_total", ("redeliver",), True, "Messages delivered again."),
    ("messages_acknowledged_total", ("ack",), True, "Messages acked."),
    ("messages_get_empty_total", ("get_empty",), True, "basic.get of an empty queue."),
)
CHURN = (
    ("connections_opened_total", "connection_created"), ("connections_closed_total", "connection_closed"),
    ("channels_opened_total", "channel_created"), ("channels_closed_total", "channel_closed"),
    ("queues_declared_total", "queue_declared"), ("queues_created_total", "queue_created"),
    ("queues_deleted_total", "queue_deleted"),
)  # fmt: skip
# Counters that only brokerd has: where order was disturbed.
ORDER = (
    ("return_to_queue", "Deliveries given back."), ("expire", "Messages that expired."),
    ("discard", "Messages that died without a dead-letter exchange."), ("dead_letter", "Messages dead-lettered."),
    ("limit", "Messages that a queue's length limit removed."), ("time_out", "Deliveries that timed out."),
    ("refuse", "Messages that full queues refused."),
)  # fmt: skip


def _whole(node: dict[str, Any], *, depth: bool = True) -> Iterator[Family]:
    for name, place, text in (*GAUGES, *(DEPTH if depth else ())):
        value = _at(node, place)
        if value is not None:
            labels = {"protocol": "amqp091"} if name.startswith("global_") else {}
            yield Family(f"rabbitmq_{name}", "gauge", text, [(labels, value)])
    if depth:
        totals = node["totals"]
        every = totals["messages_ready"] + totals["messages_unacknowledged"]
        yield Family("rabbitmq_queue_messages", "gauge", "Messages.", [({}, every)])
    stats = node["message_stats"]
    for name, words, of_queues, text in COUNTERS:
        if all(word.lstrip("-") in stats for word in words):
            labels = {"protocol": "amqp091", **({"queue_type": "classic"} if of_queues else {})}
            value = sum(-_carried.total(word[1:], stats[word[1:]]) if word.startswith("-") else
                        _carried.total(word, stats[word]) for word in words)  # fmt: skip
            yield Family(f"rabbitmq_global_{name}", "counter", text, [(labels, value)])
    for name, word in CHURN:
        if word in node.get("churn", {}):
            yield Family(f"rabbitmq_{name}", "counter", name.replace("_", " "), [({}, node["churn"][word])])
    for word, text in ORDER:
        if word in stats:
            yield Family(f"brokerd_messages_{word}_total", "counter", text, [({}, _carried.total(word, stats[word]))])
    for name, figure, text in HISTOGRAMS:
        if figure in node.get("histograms", {}):
            yield _histogram(name, text, [({}, node["histograms"][figure])])
    if depth:  # Else each stream has its own.
        yield from _streams(node)
    yield Family("brokerd_links", "gauge", "Shovels and federation links, by what each does.",
                 [({"state": state}, number) for state, number in node.get("links", {}).items()])
    yield Family("brokerd_queues_paused", "gauge", "Queues that an operator has paused.",
                 [({}, node["totals"]["queues_paused"])])
    yield Family("brokerd_alarms", "gauge", "Alarms in force: publishers wait.", [({}, len(node["alarms"]))])
    yield Family("brokerd_blocked_connections", "gauge", "Connections that wait for the end of an alarm.",
                 [({}, node["blocked_connections"])])  # fmt: skip


HISTOGRAMS = (
    ("rabbitmq_message_size_bytes", "message_octets", "Sizes of published messages."),
    ("brokerd_message_waiting_seconds", "waiting_seconds", "From the publish of a message to each delivery."),
    ("brokerd_message_working_seconds", "working_seconds", "From the delivery of a message to its settlement."),
)


def _histogram(name: str, text: str, found: Iterable[tuple[Labels, dict[str, Any]]]) -> Family:
    samples: list[Sample] = []
    for labels, each in found:
        below = 0
        for bound, count in zip([*each["bounds"], "+Inf"], each["counts"], strict=True):
            below += count
            samples.append(({**labels, "le": str(bound)}, below, "_bucket"))
        samples += [(labels, each["sum"], "_sum"), (labels, below, "_count")]
    return Family(name, "histogram", text, samples)


STREAMS = (  # the figure of "node show", the metric, its kind, what one is worth, help
    ("count", "brokerd_streams", "gauge", 1, "Streams."),
    ("readers", "brokerd_stream_readers", "gauge", 1, "Readers of streams, and named ones that do not read now."),
    ("octets", "brokerd_stream_kept_bytes", "gauge", 1, "Octets of the segment files of streams."),
    ("lag", "brokerd_stream_lag_messages", "gauge", 1, "Messages that the reader furthest behind has not acked."),
    ("oldest_age_ms", "brokerd_stream_oldest_age_seconds", "gauge", 1000, "Age of the oldest message of a stream."),
    ("removed", "brokerd_stream_removed_messages_total", "counter", 1, "Messages that retention and purges removed."),
    ("missed", "brokerd_stream_missed_messages_total", "counter", 1, "Messages that were gone before readers came."),
)


def _streams(node: dict[str, Any]) -> Iterator[Family]:
    figures = node.get("streams", {})
    for figure, name, kind, worth, text in STREAMS:
        if figure in figures:
            value = figures[figure] if kind == "gauge" else _carried.total(name, figures[figure])
            yield Family(name, kind, text, [({}, value / worth if worth > 1 else value)])


def _at(table: Any, place: str) -> float | None:
    for word in place.split("."):
        table = table.get(word) if isinstance(table, dict) else None
    return table


# --- one sample for each thing


class _Column(NamedTuple):
    """A metric of each row of a list."""

    name: str
    kind: str
    field: str  # with dots, in the row
    help: str
    only: str = ""  # 1 for the rows in which the field has this text, and no sample for others

    def value(self, row: dict[str, Any]) -> float | None:
        """Of this row; None: it has none."""
        if self.only:
            return 1 if row[self.field] == self.only else None
        return _at(row, self.field)


QUEUE_COARSE = (
    _Column("queue_messages_ready", "gauge", "messages_ready", "Messages that wait for a consumer."),
    _Column("queue_messages_unacked", "gauge", "messages_unacknowledged", "Messages delivered and not acked."),
    _Column("queue_messages", "gauge", "messages", "Messages."),
)
QUEUE_STATS = (
    _Column("queue_messages_published_total", "counter", "message_stats.publish", "Messages put into the queue."),
    _Column("queue_messages_delivered_total", "counter", "message_stats.deliver", "Messages delivered."),
    _Column("queue_get_total", "counter", "message_stats.get", "Messages got by basic.get."),
    _Column("queue_messages_acked_total", "counter", "message_stats.ack", "Messages acked."),
    _Column("queue_messages_redelivered_total", "counter", "message_stats.redeliver", "Messages delivered again."),
    _Column("queue_message_bytes_ready", "gauge", "message_bytes_ready", "Octets of messages that are ready."),
)
QUEUE_ORDER = (
    _Column("queue_messages_returned_total", "counter", "message_stats.return_to_queue", "Deliveries given back."),
    _Column("queue_messages_expired_total", "counter", "message_stats.expire", "Messages that expired."),
    _Column("queue_messages_dead_lettered_total", "counter", "message_stats.dead_letter", "Messages dead-lettered."),
    _Column("queue_messages_discarded_total", "counter", "message_stats.discard", "Messages that died for good."),
    _Column("queue_paused", "gauge", "state", "1: an operator has paused the queue; others have none.", "paused"),
    _Column("queue_next_seq", "gauge", "next_seq", "The number that the next message will have."),
)
QUEUE_CONSUMERS = (_Column("queue_consumers", "gauge", "consumers", "Consumers."),)
EXCHANGES = (
    _Column("exchange_messages_published_in_total", "counter", "message_stats.publish_in", "Messages published."),
    _Column("exchange_messages_published_out_total", "counter", "message_stats.publish_out", "Messages routed."),
)
CONNECTIONS = (
    _Column("connection_incoming_bytes_total", "counter", "recv_oct", "Octets from the client."),
    _Column("connection_outgoing_bytes_total", "counter", "send_oct", "Octets to the client."),
    _Column("connection_pending_bytes", "gauge", "send_pend", "Octets that wait for the client."),
    _Column("connection_channels", "gauge", "channels", "Channels."),
)
CHANNELS = (
    _Column("channel_consumers", "gauge", "consumer_count", "Consumers."),
    _Column("channel_messages_unacked", "gauge", "messages_unacknowledged", "Messages delivered and not acked."),
    _Column("channel_messages_unconfirmed", "gauge", "messages_unconfirmed", "Messages published, not confirmed yet."),
    _Column("channel_prefetch", "gauge", "prefetch_count", "Prefetch of each consumer."),
    _Column("channel_messages_published_total", "counter", "publishes", "Messages published."),
    _Column("channel_messages_confirmed_total", "counter", "message_stats.confirm", "Publishes confirmed."),
    _Column("channel_messages_acked_total", "counter", "message_stats.ack", "Messages acked."),
)


def _of_rows(noun: str, labels: dict[str, str], columns: tuple[_Column, ...], prefix: str = "") -> Any:
    """The families of a noun's list.  ``labels``: label, and the field of the row that it shows."""

    async def make(call: _Asked, vhosts: list[str], start: str) -> list[Family]:
        rows: list[dict[str, Any]] = []
        for vhost in vhosts:
            rows += (await call.ask(f"{noun} list", vhost=vhost))["items"]
        start = prefix if prefix and start == "rabbitmq_" else start.replace("rabbitmq_", prefix or "rabbitmq_")
        named = [
            (_written({label: str(row.get(field) or "") for label, field in labels.items()}), row) for row in rows
        ]
        return [Family(f"{start}{each.name}", each.kind, each.help, _column(named, each)) for each in columns]

    return make


def _column(named: list[tuple[Written, dict[str, Any]]], column: _Column) -> Iterator[Sample]:
    """The samples of a metric of each row.  They are made when they are written: all at once would be many objects."""
    return ((labels, value) for labels, row in named if (value := column.value(row)) is not None)


OF_QUEUE = {"vhost": "vhost", "queue": "name"}
OF_CONNECTION = {"connection": "name", "vhost": "vhost", "user": "user"}
OF_CHANNEL = {"channel": "name", "connection": "connection_name", "vhost": "vhost"}
OF_EXCHANGE = {"vhost": "vhost", "exchange": "name"}


async def _churn(call: _Asked, vhosts: list[str], start: str) -> list[Family]:
    churn = (await call.services.samples.recent()).get("churn", {})
    return [Family(f"{start}{name}", "counter", name.replace("_", " "), [({}, churn[word])])
            for name, word in CHURN if word in churn]  # fmt: skip


async def _vhosts(call: _Asked, vhosts: list[str], start: str) -> list[Family]:
    rows = (await call.ask("vhost list"))["items"]
    named = [({"vhost": row["name"]}, row) for row in rows if vhosts == [""] or row["name"] in vhosts]
    return [
        Family("rabbitmq_cluster_vhost_status", "gauge", "The vhost is open.", [(labels, 1) for labels, _ in named]),
        Family("rabbitmq_cluster_vhost_queues", "gauge", "Queues.", [(labels, row["queues"]) for labels, row in named]),
    ]


STREAM_COLUMNS = (
    _Column("stream_readers", "gauge", "readers", "Readers, and named ones that do not read now."),
    _Column("stream_kept_messages", "gauge", "messages", "Messages that are kept."),
    _Column("stream_kept_bytes", "gauge", "octets", "Octets of the segment files."),
    _Column("stream_oldest_age_seconds", "gauge", "oldest_age", "Age of the first message that is kept."),
    _Column("stream_lag_messages", "gauge", "lag", "Messages that the reader furthest behind has not acked."),
    _Column("stream_next_offset", "gauge", "next_offset", "The offset that the next message will have."),
    _Column("stream_removed_messages_total", "counter", "removed", "Messages that retention and purges removed."),
    _Column("stream_missed_messages_total", "counter", "missed", "Messages that were gone before readers came."),
)
READERS_MAX = 2000  # samples of readers on one page


async def _of_streams(call: _Asked, vhosts: list[str], start: str) -> list[Family]:
    start = start.replace("rabbitmq_", "brokerd_")
    rows: list[dict[str, Any]] = []
    for vhost in vhosts:
        rows += (await call.ask("stream list", vhost=vhost, with_readers=True))["items"]
    for row in rows:
        row["oldest_age"] = row["oldest_age_ms"] / 1000
    of_streams = [({"vhost": row["vhost"], "queue": row["name"]}, row) for row in rows]
    families = [
        Family(f"{start}{each.name}", each.kind, each.help, [(labels, row[each.field]) for labels, row in of_streams])
        for each in STREAM_COLUMNS
    ]
    # Tags of readers without a name change with each connection: they have one sample together.
    readers = [(labels | {"reader": reader["reader"]}, reader) for labels, row in of_streams for reader in row["named"]]
    unnamed = [(labels | {"reader": ""}, row["lag_unnamed"]) for labels, row in of_streams]
    lags = [(labels, reader["lag"]) for labels, reader in readers[:READERS_MAX]]
    named = [(labels, int(reader["reads"])) for labels, reader in readers[:READERS_MAX]]
    return [
        *families,
        Family(f"{start}stream_reader_lag_messages", "gauge", "Messages that the reader has not acked.",
               [*lags, *unnamed]),
        Family(f"{start}stream_reader_reads", "gauge", "1: the named reader reads now.", named),
    ]  # fmt: skip


LINK_COLUMNS = (
    _Column("link_up", "gauge", "up", "1: the link runs, or waits for consumers."),
    _Column("link_messages_total", "counter", "messages", "Messages that have arrived."),
    _Column("link_messages_unconfirmed", "gauge", "unconfirmed", "Messages sent and not yet confirmed."),
    _Column("link_messages_retried_total", "counter", "retried", "Refused messages that were sent again."),
    _Column("link_messages_rejected_total", "counter", "rejected", "Messages left to the source's dead-letter rules."),
    _Column("link_lag_messages", "gauge", "lag", "Messages that wait at the source, as last told."),
    _Column("link_reconnects_total", "counter", "reconnects", "How often the link has connected again."),
    _Column("link_idle_seconds", "gauge", "idle_seconds", "Time since the last message; links without one have none."),
)


async def _of_links(call: _Asked, vhosts: list[str], start: str) -> list[Family]:
    start = start.replace("rabbitmq_", "brokerd_")
    found: list[tuple[Labels, dict[str, Any]]] = []
    for vhost in vhosts:
        shovels = (await call.ask("shovel list", vhost=vhost))["items"]
        links = (await call.ask("federation_link list", vhost=vhost))["items"]
        found += [
            ({"vhost": row["vhost"], "type": row.get("type", "shovel"), "link": row["name"],
              "upstream": row.get("upstream", "")}, row)
            for row in [*shovels, *links]
        ]  # fmt: skip
    for _, row in found:
        row["up"] = int(row["state"] in ("running", "idle"))
        if row["last_message"]:
            row["idle_seconds"] = max(0.0, time.time() - row["last_message"] / 1000)
    return [
        Family(f"{start}{each.name}", each.kind, each.help,
               [(labels, row[each.field]) for labels, row in found if each.field in row])
        for each in LINK_COLUMNS
    ]  # fmt: skip


async def _times(call: _Asked, vhosts: list[str], start: str) -> list[Family]:
    rows: list[dict[str, Any]] = []
    for vhost in vhosts:
        rows += (await call.ask("queue list", vhost=vhost, histograms=True))["items"]
    start = start.replace("rabbitmq_", "brokerd_")
    return [
        _histogram(f"{start}queue_{name.removeprefix('brokerd_')}", text,
                   [({"vhost": row["vhost"], "queue": row["name"]}, row["histograms"][figure]) for row in rows
                    if figure in row["histograms"]])
        for name, figure, text in HISTOGRAMS if figure != "message_octets"
    ]  # fmt: skip


DETAILED: dict[str, Any] = {
    "queue_coarse_metrics": _of_rows("queue", OF_QUEUE, QUEUE_COARSE),
    "queue_consumer_count": _of_rows("queue", OF_QUEUE, QUEUE_CONSUMERS),
    "queue_metrics": _of_rows("queue", OF_QUEUE, (*QUEUE_COARSE, *QUEUE_STATS, *QUEUE_CONSUMERS)),
    "queue_delivery_metrics": _of_rows("queue", OF_QUEUE, QUEUE_STATS),
    "queue_order_metrics": _of_rows("queue", OF_QUEUE, QUEUE_ORDER, "brokerd_"),
    "queue_time_metrics": _times,
    "stream_metrics": _of_streams,
    "link_metrics": _of_links,
    "exchange_metrics": _of_rows("exchange", OF_EXCHANGE, EXCHANGES),
    "connection_coarse_metrics": _of_rows("connection", OF_CONNECTION, CONNECTIONS),
    "connection_metrics": _of_rows("connection", OF_CONNECTION, CONNECTIONS),
    "channel_metrics": _of_rows("channel", OF_CHANNEL, CHANNELS),
    "connection_churn_metrics": _churn,
    "vhost_status": _vhosts,
}
PER_OBJECT = ("queue_metrics", "queue_order_metrics", "stream_metrics", "link_metrics", "exchange_metrics",
              "connection_metrics", "channel_metrics")  # fmt: skip


# --- the text


def _answer(families: Iterable[Family]) -> Response:
    return Response(expose(families), headers={"content-type": CONTENT_TYPE})


def expose(families: Iterable[Family]) -> bytes:
    """The families in Prometheus' text format.  A family of which there are several has one head."""
    by_name: dict[str, tuple[Family, list[Iterable[Sample]]]] = {}
    for family in families:
        by_name.setdefault(family.name, (family, []))[1].append(family.samples)
    return b"".join([_exposed(family, chain.from_iterable(samples)) for family, samples in by_name.values()])


def _exposed(family: Family, samples: Iterable[Sample]) -> bytes:
    name = family.name
    lines = [f"# HELP {name} {_escaped(family.help)}", f"# TYPE {name} {family.kind}"]
    for labels, value, *more in samples:
        each = f"{name}{more[0]}" if more else name
        inner = labels if isinstance(labels, str) else _written(labels)
        lines.append(f"{each}{{{inner}}} {value}" if inner else f"{each} {value}")
    lines.append("")
    return "\n".join(lines).encode("utf-8", "replace")


def _written(labels: Labels) -> Written:
    """Labels, as they stand in braces."""
    return ",".join([f'{label}="{_quoted(text)}"' for label, text in labels.items()])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _printable(text: str) -> str:
    """A name with escapes in place of octets that are not UTF-8.  Two names never become one: of two series with the
    same labels, Prometheus refuses the whole page."""
    text = _LIKE_ESCAPE.sub(r"\1\1", text)
    return _NOT_UTF8.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def _quoted(text: str) -> str:
    if not text.isascii() or "\\" in text:
        text = _printable(text)
    if '"' in text or "\\" in text or "\n" in text:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return text

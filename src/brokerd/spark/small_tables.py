"""Makes all views of a directory except ``violations``: of the source ``brokerd``'s tables, and of small tables.

The small tables need only the names and side files of queues: queues, settings, consumers, removals, damage.  ``views``
describes each one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from brokerd.audit import counts, digests
from brokerd.audit.files import FOREVER, QueueFiles, Rule, Source, open_source
from brokerd.spark.source import read
from brokerd.spark.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Views of the source, and the columns in ns that get a timestamp beside them.
TIMES: dict[str, dict[str, str]] = {
    "messages": {},
    "events": {},
    "lifecycle": {"published": "published_time", "first_delivered": "first_delivered_time",
                  "last_delivered": "last_delivered_time", "settled": "settled_time"},
    "segments": {"first_ts": "first_time", "last_ts": "last_time"},
    "acks": {},
}
QUEUES = ("vhost string, queue string, folder string, journaled boolean, max_priority int, delivery_limit int, "
          "dead_letter_exchange string, overflow string, message_ttl_ms long, single_active_consumer boolean, "
          "policy string, segments int, levels int, octets long, cut long, first_kept_seq long, next_seq long, "
          "counters map<string, long>, noted_since long")
SETTINGS = ("vhost string, queue string, since long, until long, journal boolean, delivery_limit long, "
            "dead_letters boolean, message_ttl_ms long, single_active boolean, max_priority int, "
            "groups boolean, retry boolean, stops boolean, known boolean")
CONSUMERS = ("vhost string, queue string, number long, at long, time timestamp, gone long, gone_time timestamp, "
             "tag string, connection long, channel int, peer string, user string, prefetch int, no_ack boolean, "
             "priority int")
REMOVALS = ("vhost string, queue string, priority int, at long, time timestamp, first_seq long, last_seq long, "
            "messages long, octets long, why string")
QUEUE_DAMAGE = "vhost string, queue string, what string, detail string"
TOLD = "vhost string, queue string, place string, name string, value long"
NOTED = "vhost string, queue string, at long, time timestamp"
NAMES = (*TIMES, "queues", "settings", "consumers", "removals", "queue_damage", "told", "noted")


def tables(spark: "SparkSession", path: str, compare: bool = False, /, **options: str) -> None:
    """Make all views but ``violations``.  ``compare``: read all files of a dump first, and compare them with the
    digests of its manifest.  Raises AuditError."""
    source = open_source(path)
    for name in TIMES:
        read_with_times(spark, path, name, **options).createOrReplaceTempView(name)
    queues = source.queues(options.get("queues"))
    if compare:
        queues = [queue._replace(damage=[*queue.damage, *digests.check(source, queue)]) for queue in queues]
    small_tables(spark, source, queues)


def read_with_times(spark: "SparkSession", path: str, name: str, *, columns: Sequence[str] | None = None,
                    **options: str) -> "DataFrame":
    """A table of the source, with timestamps beside its times in ns.  Only ``columns`` are read (None: all); the others
    are null."""
    table = read(spark, path, name, columns=columns, **options)
    if columns is not None:
        table = table.selectExpr(*(column if column in columns else f"CAST(NULL AS {kind}) AS {column}"
                                   for column, kind in TABLES[name].items()))
    return table.selectExpr("*", *(f"timestamp_micros({ns} div 1000) AS {time}" for ns, time in TIMES[name].items()))


def small_tables(spark: "SparkSession", source: Source, queues: Sequence[QueueFiles]) -> None:
    """Make the views that need only the names and side files of queues."""
    for name, schema, rows in (("queues", QUEUES, map(_queue, queues)), ("settings", SETTINGS, _settings(queues)),
                               ("consumers", CONSUMERS, _consumers(queues)), ("removals", REMOVALS, _removals(queues)),
                               ("queue_damage", QUEUE_DAMAGE, _damage(queues)),
                               ("told", TOLD, _told(source, queues)), ("noted", NOTED, _noted(queues))):
        _table(spark, schema, rows).createOrReplaceTempView(name)


def _table(spark: "SparkSession", schema: str, rows: Iterable[Mapping[str, Any]]) -> "DataFrame":
    """A small table; columns ``time`` and ``*_time`` are those of ``at`` and of the column they are named after."""
    columns = [column.split() for column in schema.replace("map<string, long>", "map<string,long>").split(", ")]
    plain = [(name, kind) for name, kind in columns if kind != "timestamp"]
    values = [tuple(row.get(name) for name, _ in plain) for row in rows]
    table = spark.createDataFrame(values, ", ".join(f"{name} {kind}" for name, kind in plain))
    return table.selectExpr(*(
        f"timestamp_micros({'at' if name == 'time' else name.removesuffix('_time')} div 1000) AS {name}"
        if kind == "timestamp" else name for name, kind in columns))


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _str(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _queue(queue: QueueFiles) -> dict[str, Any]:
    said, dump = queue.settings, queue.manifest or {}
    counters = dump.get("counters")
    return {
        "vhost": queue.vhost, "queue": queue.queue, "folder": queue.folder,
        "journaled": bool(said.get("journal", dump.get("journaled", False))),
        **{name: _int(said.get(name)) for name in ("max_priority", "delivery_limit", "message_ttl_ms")},
        **{name: _str(said.get(name)) for name in ("dead_letter_exchange", "overflow", "policy")},
        "single_active_consumer": bool(said.get("single_active_consumer")),
        "segments": len(queue.triples), "levels": len({triple.priority for triple in queue.triples}),
        "octets": sum(triple.octets for triple in queue.triples),
        **{name: _int(dump.get(name)) for name in ("cut", "first_kept_seq", "next_seq")},
        "counters": {str(name): value for name, value in counters.items() if _int(value) is not None}
        if isinstance(counters, dict) else None,
        "noted_since": queue.rules[0].at if queue.noted.whole else None,
    }


def _settings(queues: Iterable[QueueFiles]) -> Iterable[dict[str, Any]]:
    """Settings of each queue over time.  The first row begins at time 0, the last row never ends."""
    for queue in queues:
        rules = queue.rules or (Rule(0, False, None),)
        ends = [rule.at for rule in rules[1:]] + [FOREVER]
        for number, (rule, until) in enumerate(zip(rules, ends, strict=True)):
            yield {"vhost": queue.vhost, "queue": queue.queue, "since": rule.at if number else 0, "until": until,
                   "journal": rule.journal, "delivery_limit": rule.limit, "dead_letters": rule.dead_letters,
                   "message_ttl_ms": rule.ttl_ms, "single_active": rule.single_active,
                   "max_priority": rule.max_priority, "groups": rule.groups, "retry": rule.retry,
                   "stops": rule.stops, "known": bool(queue.rules)}


def _consumers(queues: Iterable[QueueFiles]) -> Iterable[dict[str, Any]]:
    for queue in queues:
        for number, said in queue.consumers.items():
            numbers = ("at", "gone", "connection", "channel", "prefetch", "priority")
            yield {"vhost": queue.vhost, "queue": queue.queue, "number": number,
                   **{name: _int(said.get(name)) for name in numbers},
                   **{name: _str(said.get(name)) for name in ("tag", "peer", "user")},
                   "no_ack": bool(said["no_ack"]) if "no_ack" in said else None}


def _removals(queues: Iterable[QueueFiles]) -> Iterable[dict[str, Any]]:
    for queue in queues:
        for said in queue.removed:
            yield {"vhost": queue.vhost, "queue": queue.queue, "priority": said["level"], "at": said["at"],
                   **{name: _int(said.get(name)) for name in ("first_seq", "last_seq", "messages", "octets")},
                   "why": _str(said.get("why"))}


def _noted(queues: Iterable[QueueFiles]) -> Iterable[dict[str, Any]]:
    """The times of the lines of order.jsonl that tell of settings and consumers."""
    for queue in queues:
        for at in queue.noted.times:
            yield {"vhost": queue.vhost, "queue": queue.queue, "at": at}


def _told(source: Source, queues: Iterable[QueueFiles]) -> Iterable[dict[str, Any]]:
    """The broker's counters of each queue of a dump, by where they stand: in its manifest, in the file ``order``."""
    for queue in queues:
        for place, counters in counts.told(source, queue).items():
            for name, value in counters.items():
                yield {"vhost": queue.vhost, "queue": queue.queue, "place": place, "name": name, "value": value}


def _damage(queues: Iterable[QueueFiles]) -> Iterable[dict[str, Any]]:
    """``what``: the kind of file that is missing, msgs if all kinds are; null if nothing is lost."""
    for queue in queues:
        for damage in queue.damage:
            what = "msgs" if "records" in damage.matters else "journal" if "events" in damage.matters else None
            yield {"vhost": queue.vhost, "queue": queue.queue, "what": what, "detail": f"{damage.file} {damage.detail}"}

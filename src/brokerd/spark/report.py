"""The audit's report as one HTML file that needs nothing from outside: no script, no font, no picture.

``write`` takes ``summary.json`` and the findings, and lays them out with ``report.html``: the verdict and its reason,
a table of queues and audits, and for each queue its findings, counts and measurements. A stranger may have chosen any
text that came from a broker (names of queues and exchanges, tags, details), so the template escapes all of it, and
invisible characters are written out.

Judges nothing and reads no segment. Needs jinja2, not Spark.
"""

import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from brokerd.audit import many
from brokerd.spark import charts

FINDINGS_EACH = 100         # shown of each audit in a queue
FINDINGS_IN_ALL = 2_000     # shown in the report: a browser can still show this many well
FEW_QUEUES = 4              # up to this many queues, audits are the rows of the table and queues its columns
OPEN_QUEUES = 6             # up to this many queues, all are shown unfolded

PROMISE, USE, PUBLISHERS = "promise", "use", "publishers"
ORIGINS = {
    PROMISE: "A promise of the broker. A violation is a fault: of the broker, or of the disk under it.",
    USE: "No promise of the broker, but a consequence of how the queue is consumed: prefetch, several consumers, "
         "consumers that fail.",
    PUBLISHERS: "No promise of the broker, but a consequence of what was published.",
}


class Rule(NamedTuple):
    """An audit for people: its rule, where a violation comes from, what it needs to decide."""

    title: str
    origin: str
    rule: str
    broken: str
    needs: str


JOURNAL = "the order journal of the queue over the whole life of its messages (queue argument x-order-journal)"
RECORDS = "the messages alone; a journal is not needed"
EITHER = "the messages and their acks; the order journal tells it exactly"

RULES = {
    "publish_order": Rule(
        "Publish order", PROMISE,
        "Messages published on one channel stand in the queue in the order in which they were published.",
        "A message stands behind one that its channel published later.", RECORDS),
    "fifo": Rule(
        "First in, first out", PROMISE,
        "Of the messages of one priority, each is delivered for the first time after every earlier one.",
        "A message was delivered for the first time before one that stood ahead of it.", JOURNAL),
    "returned_first": Rule(
        "Returned first", PROMISE,
        "A message that returns to the queue takes its own place again: until it is delivered once more, no later "
        "message is delivered.",
        "A later message was delivered while a returned one waited at its place.", JOURNAL),
    "overtaking": Rule(
        "Overtaking", USE,
        "No later message is handed out between a message's first delivery and its redelivery. With one consumer and "
        "a prefetch of 1 this holds. With a prefetch of N, up to N-1 later messages are out already when one returns; "
        "with several consumers, as many as they hold together.",
        "A returned message was delivered again after later ones had been handed out: work was done out of order. "
        "The message did return to its own place; those that overtook it had left before.", JOURNAL),
    "priority": Rule(
        "Priority", PROMISE,
        "No message is delivered while one of higher priority is ready.",
        "A message was delivered while one of higher priority waited.", JOURNAL),
    "delivery_limit": Rule(
        "Delivery limit", PROMISE,
        "With a delivery limit of N, a message is handed out at most N+1 times.",
        "A message was handed out more often than its limit allows.", JOURNAL),
    "limit_kept": Rule(
        "Limit kept", PROMISE,
        "A message that failed more often than the delivery limit is dead-lettered, or dropped where no dead letter "
        "exchange is named.",
        "A message over its limit ended in another way, or has not ended.", JOURNAL),
    "ack_without_delivery": Rule(
        "Ack without delivery", PROMISE,
        "Only a message that is out with a consumer is acked or rejected.",
        "A message was settled by a consumer that it had not been delivered to.", JOURNAL),
    "double_settle": Rule(
        "Settled once", PROMISE,
        "A message is settled once: acked, rejected, dead-lettered, expired, dropped or purged.",
        "A message was settled again.", EITHER),
    "delivery_after_settle": Rule(
        "Nothing after settlement", PROMISE,
        "A settled message is never delivered again.",
        "A message was delivered although it had been settled.", JOURNAL),
    "unacked": Rule(
        "Unacked too long", USE,
        "No message stays out with a consumer, neither settled nor returned, for longer than the time allowed.",
        "A consumer holds a message and says nothing: it is stuck, slow, or has a prefetch it cannot work off.",
        JOURNAL),
    "duplicates": Rule(
        "Duplicates", PUBLISHERS,
        "No two messages with the same message-id are published into a queue within the window of time.",
        "The same message-id came again: a publisher repeated itself, for instance after a connection was lost.",
        RECORDS),
    "holes": Rule(
        "No holes", PROMISE,
        "Every sequence number from the first message kept to the last is there, or was removed by a rule that is "
        "written down.",
        "Messages are missing without a reason.",
        "an order journal: without one, segments are removed once all in them is settled, and leave no trace"),
    "damage": Rule(
        "Damage", PROMISE,
        "Every file is whole: checksums of headers, messages and events are right, and none belongs to nothing.",
        "Octets on the disk are not what the broker wrote.", "the files alone"),
    "group_fifo": Rule(
        "First in, first out, per group", USE,
        "Within a group, a message is delivered only after all earlier ones of the group are settled.",
        "A message of a group was delivered while an earlier one was not settled. The broker promises this only where "
        "groups are exclusive; elsewhere it follows from prefetch and the number of consumers.", JOURNAL),
}


def rule_of(audit: str) -> Rule:
    """The rule of ``audit``; for an audit that this version does not know, a rule made from its name."""
    title = audit.replace("_", " ").capitalize()
    unknown = Rule(title, PROMISE, f"{title} (this report has no words for it).", "See the reason.", "")
    return RULES.get(audit, unknown)


SEVERITY = {"violated": 0, "undecidable": 1, "held": 2}
ORDER = {audit: place for place, audit in enumerate(RULES)}

RETURN_COUNTERS = ("returned_nack", "returned_reject", "returned_recover", "returned_channel_closed",
                   "returned_connection_closed", "returned_consumer_timeout")
DISTURBED_COUNTERS = ("redelivered", "redelivered_after_restart", "out_of_sequence", "overtakings")
COUNTER_GROUPS = (
    ("Returned to the queue, by cause", RETURN_COUNTERS),
    ("Delivered again", DISTURBED_COUNTERS),
    ("Dead-lettered, by reason", ("dead_lettered_rejected", "dead_lettered_expired", "dead_lettered_maxlen",
                                  "dead_lettered_delivery_limit")),
    ("Gone otherwise", ("rejected", "expired", "dropped_maxlen", "dropped_delivery_limit", "removed", "purged")),
)
COUNTER_WORDS = {
    "out_of_sequence": "out of sequence", "overtakings": "overtaken by",
    "redelivered_after_restart": "redelivered after a restart", "returned_consumer_timeout": "consumer timeout",
    "returned_channel_closed": "channel closed", "returned_connection_closed": "connection closed",
    "removed": "taken out by an operator",
}


# --- words for values

def shown(value: object) -> str:
    """``value`` as text without invisible characters: controls and marks of writing direction are written out."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or unicodedata.category(c) == "Zs" else f"\\u{ord(c):04x}" for c in text)


def queue_name(vhost: str, queue: str) -> str:
    """``queue``, with its vhost before it unless that is the default one."""
    return shown(queue if vhost == "/" else f"{vhost}/{queue}") or "(no name)"


def octets(number: int | None) -> str:
    """Octets in words: ``1.2 MB``; ``–`` for None."""
    if number is None:
        return "–"
    for size, unit in ((10 ** 12, "TB"), (10 ** 9, "GB"), (10 ** 6, "MB"), (10 ** 3, "kB")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} B"


def moment(ns: int | None) -> str:
    """A time in ns since the epoch as UTC, to the microsecond; ``–`` for none."""
    if not ns:
        return "–"
    try:
        return datetime.fromtimestamp(ns // 10 ** 9, UTC).strftime("%Y-%m-%d %H:%M:%S") + f".{ns % 10 ** 9 // 1000:06d}"
    except (ValueError, OverflowError, OSError):
        return f"{ns} ns"       # A damaged record may have any number.


def number(value: int | None) -> str:
    """A count with separators; ``–`` for None."""
    return "–" if value is None else f"{value:,}"


# --- what the page says

def headline(summary: Mapping[str, Any]) -> str:
    """One sentence that gives the reason of the verdict over all."""
    judged = [row for row in summary["audits"] if row["verdict"] in SEVERITY]
    if not judged:
        return "There was nothing to judge."
    violated = [row for row in judged if row["verdict"] == "violated"]
    undecided = [row for row in judged if row["verdict"] == "undecidable"]
    of_all = f"of {many(len(judged), 'judgement')} over {many(len(summary['queues']), 'queue')}"
    if not violated and not undecided:
        return f"All {many(len(judged), 'judgement')} over {many(len(summary['queues']), 'queue')} held."
    if not violated:
        return f"Nothing was violated, but {len(undecided):,} {of_all} cannot be decided: {_naming(undecided)}."
    broken = [row for row in violated if rule_of(row["audit"]).origin == PROMISE]
    if broken:
        more = len(violated) - len(broken)
        rest = f" {more:,} more found what follows from how queues are used." if more else ""
        return f"{len(broken):,} {of_all} found a promise of the broker broken: {_naming(broken)}.{rest}"
    return (f"The broker kept every promise that could be judged; what {len(violated):,} {of_all} found follows from "
            f"how queues are used: {_naming(violated)}.")


def _naming(rows: Sequence[Mapping[str, Any]]) -> str:
    """``fifo in orders (3 found), … and 2 more``."""
    said = []
    for row in rows[:3]:
        found = f" ({row['found']:,} found)" if row["found"] else ""
        said.append(f"{rule_of(row['audit']).title.lower()} in {queue_name(row['vhost'], row['queue'])}{found}")
    more = f" and {len(rows) - 3:,} more" if len(rows) > 3 else ""
    return ", ".join(said) + more


def _used(queue: Mapping[str, Any]) -> str:
    """How the queue was consumed, and the overtaking to expect from that."""
    consumers = queue["consumers"]
    prefetch = [int(consumer.get("prefetch") or 0) for consumer in consumers]
    if len(consumers) == 1 and prefetch[0] == 1:
        return "This queue had one consumer with a prefetch of 1: no overtaking is to be expected."
    most = "without a limit" if 0 in prefetch else f"of up to {max(prefetch):,}"
    return (f"This queue had {many(len(consumers), 'consumer')} with a prefetch {most}. To work strictly in order, "
            "let one consumer (x-single-active-consumer) work with a prefetch of 1.")


def _why(row: Mapping[str, Any], rule: Rule, queue: Mapping[str, Any]) -> list[str]:
    """Sentences that explain one verdict."""
    checked = f"{many(row.get('checked') or 0, 'case')} looked at."
    if row["verdict"] == "held":
        return [checked]
    if row["verdict"] == "undecidable":
        said = [f"Nothing was found; {checked}"]
        return said + ([f"To decide it needs {rule.needs}."] if rule.needs else [])
    more = f" with {many(row['overtakings'], 'overtaking')}" if row.get("overtakings") else ""
    said = [f"{row['found']:,} found{more}; {checked}", rule.broken, ORIGINS[rule.origin]]
    return said + ([_used(queue)] if row["audit"] == "overtaking" and queue.get("consumers") else [])


def _counters(counters: Mapping[str, int]) -> list[dict[str, Any]]:
    """Groups of counters that are not 0, each with its share of the largest in the group."""
    groups = []
    for title, names in COUNTER_GROUPS:
        there = [(name, int(counters[name])) for name in names if counters.get(name)]
        most = max((value for _, value in there), default=1)
        rows = [{"name": COUNTER_WORDS.get(name) or name.removeprefix("returned_").removeprefix("dead_lettered_")
                 .replace("_", " "), "value": value, "share": round(100 * value / most, 1)} for name, value in there]
        groups.append({"title": title, "rows": rows, "sum": sum(value for _, value in there)})
    return groups


LATENCIES = (("enqueue_to_delivery", "Waiting: from enqueued to first delivered"),
             ("delivery_to_settlement", "Working: from first delivered to settled"))
PERCENTILES = ("p50", "p90", "p99")


def _latencies(queue: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    drawn = []
    for key, title in LATENCIES:
        row = (queue.get("latency") or {}).get(key) or {}
        if not row.get("count"):
            continue
        label = f"{title}, {name}: " + ", ".join(f"{p} {charts.duration(row.get(p))}" for p in PERCENTILES)
        chart = charts.latency(row.get("histogram") or [], [(p, row.get(p)) for p in PERCENTILES], label)
        drawn.append({"title": title, "chart": chart, "numbers": row})
    return drawn


def _findings(findings: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str], list[Mapping[str, Any]]]:
    """The first findings of each audit in each queue, at most ``FINDINGS_IN_ALL`` together."""
    kept: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in findings:
        rows = kept.setdefault((row["vhost"], row["queue"], row["audit"]), [])
        if len(rows) < FINDINGS_EACH:
            rows.append(row)
    if sum(map(len, kept.values())) > FINDINGS_IN_ALL:
        each = max(FINDINGS_IN_ALL // len(kept), 3)
        kept = {key: rows[:each] for key, rows in kept.items()}
    return kept


def _rank(row: Mapping[str, Any]) -> tuple[int, int]:
    return SEVERITY.get(row["verdict"], 3), ORDER.get(row["audit"], len(ORDER))


def _queues(summary: Mapping[str, Any], findings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The page's data for each queue; queues with violations come first."""
    first = _findings(findings)
    audits: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in summary["audits"]:
        audits.setdefault((row["vhost"], row["queue"]), []).append(row)
    known = {(queue["vhost"], queue["queue"]): queue for queue in summary["queues"]}
    for key in audits:
        known.setdefault(key, {"vhost": key[0], "queue": key[1]})
    axis = charts.span_axis((queue.get("latency") or {}).get("enqueue_to_delivery") or {} for queue in known.values())
    pages = []
    for key, queue in known.items():
        rows = sorted(audits.get(key, ()), key=_rank)
        name, waiting = queue_name(*key), (queue.get("latency") or {}).get("enqueue_to_delivery") or {}
        hours = queue.get("throughput") or []
        page = {
            "name": name, "facts": queue, "verdict": rows[0]["verdict"] if rows else "none",
            "audits": [{"row": row, "rule": rule_of(row["audit"]), "why": _why(row, rule_of(row["audit"]), queue),
                        "findings": first.get((*key, row["audit"]), [])} for row in rows],
            "counters": _counters(queue.get("counters") or {}), "latencies": _latencies(queue, name),
            "throughput": charts.throughput(hours, f"Messages of {name} by hour"),
            "line": charts.spark(hours, f"Messages published to {name} by hour"), "waiting": waiting,
            "span": charts.span(axis, waiting, f"Waiting in {name}") if axis else "",
            "settled": sum(int(row.get("settled") or 0) for row in hours),
        }
        page["by_audit"] = {entry["row"]["audit"]: entry["row"] for entry in page["audits"]}
        page["tally"] = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in SEVERITY}
        pages.append(page)
    pages.sort(key=lambda page: (SEVERITY.get(page["verdict"], 3), -page["tally"]["violated"]))
    for index, page in enumerate(pages):
        page["id"] = f"q{index}"
    return pages


def _columns(pages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The audits of the table; those with findings come first."""
    audits: dict[str, int] = {}
    for page in pages:
        for name, row in page["by_audit"].items():
            audits[name] = min(audits.get(name, 3), SEVERITY.get(row["verdict"], 3))
    names = sorted(audits, key=lambda name: (audits[name], ORDER.get(name, 99), name))
    return [{"audit": name, "id": f"rule{index}", "rule": rule_of(name)} for index, name in enumerate(names)]


def render(summary: Mapping[str, Any], findings: Iterable[Mapping[str, Any]]) -> str:
    """The page as text; ``summary`` as in ``summary.json``, schema 1."""
    pages = _queues(summary, findings)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters.update(shown=shown, octets=octets, moment=moment, number=number, duration=charts.duration,
                               icon=charts.icon)
    environment.globals.update(many=many, origins=ORIGINS, few=FEW_QUEUES, open_queues=OPEN_QUEUES)
    template = environment.from_string(files("brokerd.spark").joinpath("report.html").read_text("utf-8"))
    columns = _columns(pages)
    tally = {verdict: sum(page["tally"][verdict] for page in pages) for verdict in SEVERITY}
    return template.render(summary=summary, inputs=summary.get("inputs") or {}, pages=pages, columns=columns,
                           rule_ids={column["audit"]: column["id"] for column in columns}, tally=tally,
                           headline=headline(summary), verdict=summary["verdict"])


def write(out_dir: str, summary: Mapping[str, Any], findings: Iterable[Mapping[str, Any]]) -> str:
    """Write ``report.html``, whole or not at all, into ``out_dir`` (made if missing), and return its path.

    ``findings`` are rows as in the findings' Parquet files, in the order of the page.  All are read; the first ones of
    each audit and queue are shown.
    """
    os.makedirs(out_dir, exist_ok=True)
    path = os.path.join(out_dir, "report.html")
    page = render(summary, findings)
    with open(path + ".new", "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(page)
    os.replace(path + ".new", path)
    return path

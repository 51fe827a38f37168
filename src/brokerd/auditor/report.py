"""The audit's report as one HTML file that needs nothing from outside: no script, no font, no picture.

``write`` takes ``summary.json`` and the findings, and lays them out with ``report.html``: the verdict and its reason,
a table of queues and audits, and for each queue its findings, counts and measurements. Of many queues it shows only the
worst, and links to tables of all (``overview``), which a browser loads when they are asked for. A stranger may have
chosen any text that came from a broker (names of queues and exchanges, tags, details), so the template escapes all of
it, and invisible characters are written out.

Judges nothing and reads no segment. Needs jinja2, not Spark.
"""

import os
import re
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined, Template

from brokerd.audit import many, moment, octets
from brokerd.audit.verdicts import EFFECTS, HELD, UNCOVERED, UNDECIDABLE, VIOLATED
from brokerd.audit.verdicts import SEVERITY as VERDICTS
from brokerd.auditor import charts

FINDINGS_EACH = 100         # shown of each audit in a queue
FINDINGS_IN_ALL = 2_000     # shown in the report: a browser can still show this many well
QUEUES_IN_FULL = 100        # the worst; the rest stands in the tables of ``overview``
QUEUES_A_TABLE = 1_000
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
GROUPS = "a queue with message groups, and its order journal"
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
        "No later message is delivered between a message's first delivery and its redelivery. With one consumer and "
        "a prefetch of 1 this holds. With a prefetch of N, up to N-1 later messages are out already when one returns; "
        "with several consumers, as many as they hold together.",
        "A returned message was delivered again after later ones had been delivered: work was done out of order. "
        "The message did return to its own place; those that overtook it had left before.", JOURNAL),
    "priority": Rule(
        "Priority", PROMISE,
        "No message is delivered while one of higher priority is ready.",
        "A message was delivered while one of higher priority waited.", JOURNAL),
    "delivery_limit": Rule(
        "Delivery limit", PROMISE,
        "With a delivery limit of N, a message is delivered at most N+1 times.",
        "A message was delivered more often than its limit allows.", JOURNAL),
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
    "agreement": Rule(
        "Acks and journal agree", PROMISE,
        "Each settlement and each return of a message stands in the acks and in the order journal, and both tell the "
        "same of it.",
        "The acks tell another end of a message than the journal, or one of the two does not know of it.", JOURNAL),
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
    "stream": Rule(
        "Streams", PROMISE,
        "A stream keeps every message from its first one to its last, retention takes whole segments, the oldest "
        "first, and the offset that is kept for a reader is whole and not beyond the end.",
        "A reader would miss messages, or begin where it should not.", "a stream with a named reader"),
    "group_order": Rule(
        "Order in groups", PROMISE,
        "A message of a group goes out after all earlier ones of the group are settled, or are out with the same "
        "consumer.",
        "A message went out while an earlier one of its group waited or was with another consumer.", GROUPS),
    "group_owner": Rule(
        "Owner of a group", PROMISE,
        "All messages of a group that are out at one time are with one consumer, and no more of them than allowed.",
        "Two consumers had messages of one group at once, or one had too many.", GROUPS),
    "retry_kept": Rule(
        "Delayed retry", PROMISE,
        "A message that returned goes out again only when its time has come, and until then nothing of its group does.",
        "A message, or a later one of its group, went out too early.", "a queue with a delayed retry"),
    "token_kept": Rule(
        "Fencing", PROMISE,
        "The fencing tokens of a group rise, and a former owner settles nothing after a newer one was told.",
        "A token did not rise, or a former owner's settlement counted.", "a queue with message groups"),
    "dedup_kept": Rule(
        "Deduplication", PROMISE,
        "No deduplication key is accepted twice within its window.",
        "A message was stored though another one had its key.", "a queue that drops duplicates"),
    "replay_exact": Rule(
        "Replays", PROMISE,
        "A replay makes ready exactly the messages that it says, and only settled ones.",
        "Another number of messages was replayed, or one that was not settled.", "a queue with replayed messages"),
    "stop_kept": Rule(
        "Stops", PROMISE,
        "Behind a message that stops its queue or its group, nothing goes out until an operator acts.",
        "A message went out though one before it had stopped its queue or group.",
        "a queue that stops at messages which have failed too often"),
    "chain": Rule(
        "Hash chain", PROMISE,
        "The events of order journals, and the acks of settled segments, are those that the broker wrote, as far as "
        "its hash chains cover them.",
        "Somebody or something changed what was written.", "an order journal with its hash chain"),
}


def rule_of(audit: str) -> Rule:
    """The rule of ``audit``; for an audit that this version does not know, a rule made from its name."""
    title = audit.replace("_", " ").capitalize()
    unknown = Rule(title, PROMISE, f"{title} (this report has no words for it).", "See the reason.", "")
    return RULES.get(audit, unknown)


SEVERITY = {verdict: rank for rank, verdict in enumerate(VERDICTS)}
TITLES = {EFFECTS: "kept, with effects of use"}             # of verdicts over all; the others are their own titles
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


def second(ns: int | None) -> str:
    """A time in ns since the epoch as UTC, to the second; ``–`` for none."""
    return moment(ns).partition(".")[0]


def short_path(path: str) -> str:
    """The path of a file within its queue's folder: without the folders of vhost and queue, whose names are sums."""
    return shown(re.sub(r"^(?:.*/)?[0-9a-f]{40}/", "", path))


def css(verdict: str) -> str:
    """The class of a verdict in the page's style."""
    return verdict.split(" ", maxsplit=1)[0]


def trace_line(source: str, finding: Mapping[str, Any]) -> str:
    """A command that shows the life of the message of ``finding``, to be pasted into a shell; empty if none can."""
    vhost, queue = finding["vhost"], finding["queue"]
    if finding["seq"] <= 0 or source.startswith("s3://") or not (source + vhost + queue).isprintable():
        return ""
    words = [brokerctl(), "-D", source, "message", "trace", *(("--vhost", vhost) if vhost != "/" else ())]
    return shlex.join([*words, *(("--",) if queue.startswith("-") else ()), queue, str(finding["seq"])])


def brokerctl() -> str:
    """The name of the program if a shell finds it, else its path beside the Python that runs this."""
    beside = os.path.join(os.path.dirname(sys.executable), "brokerctl")
    return "brokerctl" if shutil.which("brokerctl") or not os.path.exists(beside) else beside


def _span(seconds: float) -> str:
    return charts.duration(seconds * 10 ** 9)


# Options of the audit in words: the name, and what its value means.
OPTIONS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "queues": ("Queues", lambda value: f"those that match {value}" if value else "all"),
    "audits": ("Audits", lambda value: ", ".join(rule_of(name).title for name in value) if value else "all that apply"),
    "from_ns": ("Messages published since", lambda value: f"{second(value)} UTC" if value else "any time"),
    "to_ns": ("Messages published before", lambda value: f"{second(value)} UTC" if value else "any time"),
    "crc": ("Checksums", lambda value: "checked" if value else "not checked"),
    "unacked_after_s": ("A message may stay with a consumer for", _span),
    "duplicate_window_s": ("Equal message-ids are duplicates within", _span),
    "group_header": ("Groups by header", lambda value: value or "none"),
    "group_by": ("Groups by property", lambda value: value or "none"),
    "delivery_limit": ("Delivery limit", lambda value: "as in the queues' settings" if value is None else value),
    "findings_max": ("Findings written", lambda value: f"at most {value:,} of each audit of a queue"),
    "fail_on": ("Audits that decide the exit code", lambda value: {
        "any": "all; effects of use do not count", "none": "none"}.get(value) or value),
    "engine": ("Engine", lambda value: {
        "a": "a: one pass over arrays", "b": "b: SQL", "both": "both, compared"}.get(value, value)),
}


def options_in_words(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each option; an option that this version does not know is shown as it is."""
    known = [(name, say(options[key])) for key, (name, say) in OPTIONS.items() if key in options]
    return [(shown(name), shown(value))
            for name, value in [*known, *((key, value) for key, value in options.items() if key not in OPTIONS)]]


def period(summary: Mapping[str, Any]) -> str:
    """From the first to the last time that the files have."""
    first = min((queue["first_ts"] for queue in summary["queues"] if queue.get("first_ts")), default=0)
    last = max((queue.get("last_ts") or 0 for queue in summary["queues"]), default=0)
    return f"{second(first)} to {second(last)} UTC" if first and last else "no messages"


def number(value: int | None) -> str:
    """A count with separators; ``–`` for None."""
    return "–" if value is None else f"{value:,}"


# --- what the page says

def headline(summary: Mapping[str, Any]) -> str:
    """One sentence that gives the reason of the verdict over all."""
    judged = [row for row in summary["audits"] if row["verdict"] in SEVERITY]
    if not judged:
        return "There was nothing to judge."
    uncovered = sum(row["verdict"] == UNCOVERED for row in judged)
    if uncovered == len(judged):
        return f"No hash chain covers anything of {many(len(summary['queues']), 'queue')}."
    broken, effects, undecided = ([row for row in judged if row["verdict"] == verdict]
                                  for verdict in (VIOLATED, EFFECTS, UNDECIDABLE))
    of_all = f"of {many(len(judged), 'judgement')} over {many(len(summary['queues']), 'queue')}"
    if not broken and not effects and not undecided:
        but = f" No hash chain covers anything of {many(uncovered, 'queue')}." if uncovered else ""
        return (f"All {many(len(judged) - uncovered, 'judgement')} over {many(len(summary['queues']), 'queue')} held."
                f"{but}")
    rest = f" {len(effects):,} more found what follows from how queues are used." if effects else ""
    if broken:
        return f"{len(broken):,} {of_all} found a promise of the broker broken: {_naming(broken)}.{rest}"
    if undecided:
        return f"Nothing was violated, but {len(undecided):,} {of_all} cannot be decided: {_naming(undecided)}.{rest}"
    return (f"The broker kept every promise. What {len(effects):,} {of_all} found follows from how queues are used: "
            f"{_naming(effects)}.")


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
    if row["verdict"] == HELD:
        return [checked]
    if row["verdict"] == UNCOVERED:
        return ["There is no hash chain yet that could be followed. Its first link is made when a block of 2,048 "
                "events is full, or the segment is settled."]
    if row["verdict"] == UNDECIDABLE:
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
        chart = charts.latency(row.get("histogram") or [], [(p, row.get(p)) for p in PERCENTILES], label,
                               title.partition(": ")[2])
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
    return SEVERITY.get(row["verdict"], len(SEVERITY)), ORDER.get(row["audit"], len(ORDER))


class Ranked(NamedTuple):
    """A queue: its figures, its audits with the worst first, its verdict, and how many audits have each verdict."""

    facts: Mapping[str, Any]
    rows: list[Mapping[str, Any]]
    verdict: str
    tally: dict[str, int]


def ranked(summary: Mapping[str, Any]) -> list[Ranked]:
    """All queues, the worst first."""
    audits: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in summary["audits"]:
        audits.setdefault((row["vhost"], row["queue"]), []).append(row)
    known = {(queue["vhost"], queue["queue"]): queue for queue in summary["queues"]}
    for key in audits:
        known.setdefault(key, {"vhost": key[0], "queue": key[1]})
    queues = []
    for key, queue in known.items():
        rows = sorted(audits.get(key, ()), key=_rank)
        tally = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in SEVERITY}
        queues.append(Ranked(queue, rows, rows[0]["verdict"] if rows else "none", tally))
    return sorted(queues, key=lambda queue: (SEVERITY.get(queue.verdict, len(SEVERITY)), -queue.tally[VIOLATED]))


def _queues(queues: Sequence[Ranked], findings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The page's data for each queue."""
    names = {(queue.facts["vhost"], queue.facts["queue"]) for queue in queues}
    first = _findings(row for row in findings if (row["vhost"], row["queue"]) in names)
    axis = charts.span_axis((one.facts.get("latency") or {}).get("enqueue_to_delivery") or {} for one in queues)
    pages = []
    for index, (queue, rows, verdict, tally) in enumerate(queues):
        key = (queue["vhost"], queue["queue"])
        name, waiting = queue_name(*key), (queue.get("latency") or {}).get("enqueue_to_delivery") or {}
        hours = queue.get("throughput") or []
        page: dict[str, Any] = {
            "id": f"q{index}", "name": name, "facts": queue, "verdict": verdict, "tally": tally,
            "audits": [{"row": row, "rule": rule_of(row["audit"]), "why": _why(row, rule_of(row["audit"]), queue),
                        "findings": first.get((*key, row["audit"]), [])} for row in rows],
            "counters": _counters(queue.get("counters") or {}), "latencies": _latencies(queue, name),
            "throughput": charts.throughput(hours, f"Messages of {name} by hour"),
            "line": charts.spark(hours, f"Messages published to {name} by hour"), "waiting": waiting,
            "span": charts.span(axis, waiting, f"Waiting in {name}") if axis else "",
            "settled": sum(int(row.get("settled") or 0) for row in hours),
        }
        page["by_audit"] = {entry["row"]["audit"]: entry["row"] for entry in page["audits"]}
        pages.append(page)
    return pages


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The audits of the table; those with findings come first."""
    audits: dict[str, int] = {}
    for row in rows:
        rank = SEVERITY.get(row["verdict"], len(SEVERITY))
        audits[row["audit"]] = min(audits.get(row["audit"], rank), rank)
    names = sorted(audits, key=lambda name: (audits[name], ORDER.get(name, 99), name))
    return [{"audit": name, "id": f"rule{index}", "rule": rule_of(name)} for index, name in enumerate(names)]


def render(summary: Mapping[str, Any], findings: Iterable[Mapping[str, Any]]) -> str:
    """The page as text; ``summary`` as in ``summary.json``, schema 1."""
    queues = ranked(summary)
    pages = _queues(queues[:QUEUES_IN_FULL], findings)
    columns = _columns(summary["audits"])
    tally = {verdict: sum(queue.tally[verdict] for queue in queues) for verdict in SEVERITY}
    source = summary["source"]
    return template("report.html").render(
        known=len(queues), tables=tables(len(queues)),
        summary=summary, period=period(summary), options=options_in_words(summary.get("options") or {}),
        inputs=summary.get("inputs") or {}, pages=pages, columns=columns, tally=tally, headline=headline(summary),
        rule_ids={column["audit"]: column["id"] for column in columns}, verdict=summary["verdict"],
        trace_line=lambda found: trace_line(source, found))


def template(name: str) -> Template:
    """A template of this package, with the filters that write values as words."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters.update(shown=shown, octets=octets, moment=moment, number=number, duration=charts.duration,
                               icon=charts.icon, second=second, css=css, short_path=short_path)
    environment.globals.update(many=many, origins=ORIGINS, few=FEW_QUEUES, open_queues=OPEN_QUEUES,
                               titles=TITLES, verdicts=VERDICTS[::-1])
    return environment.from_string(files("brokerd.auditor").joinpath(name).read_text("utf-8"))


def tables(queues: int) -> list[tuple[str, int, int]]:
    """The files with tables of all queues, and the first and the last queue in each; none if the page shows all."""
    if queues <= QUEUES_IN_FULL:
        return []
    return [(f"queues-{first // QUEUES_A_TABLE + 1}.html", first + 1, min(first + QUEUES_A_TABLE, queues))
            for first in range(0, queues, QUEUES_A_TABLE)]


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

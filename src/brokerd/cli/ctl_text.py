"""Tables for people: what brokerctl prints unless it is asked for JSON.  Tables in, text out."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from brokerd.audit import many

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
COUNTERS = (  # group, name, text
    ("returned", "nack", "returned: nack"),
    ("returned", "reject", "returned: reject"),
    ("returned", "recover", "returned: recover"),
    ("returned", "channel_closed", "returned: channel closed"),
    ("returned", "connection_closed", "returned: connection closed"),
    ("returned", "consumer_timeout", "returned: consumer timeout"),
    ("", "redelivered", "redelivered"),
    ("", "redelivered_after_restart", "redelivered after a restart of the broker"),
    ("", "out_of_sequence", "delivered out of sequence"),
    ("", "overtakings", "messages that overtook a returned one"),
    ("dead_lettered", "rejected", "dead-lettered: rejected"),
    ("dead_lettered", "expired", "dead-lettered: expired"),
    ("dead_lettered", "maxlen", "dead-lettered: queue too long"),
    ("dead_lettered", "delivery_limit", "dead-lettered: delivery limit"),
    ("dropped", "rejected", "dropped: rejected"),
    ("dropped", "expired", "dropped: expired"),
    ("dropped", "maxlen", "dropped: queue too long"),
    ("dropped", "delivery_limit", "dropped: delivery limit"),
    ("dropped", "removed", "taken out by an operator"),
    ("dropped", "purged", "purged"),
)


def clean(text: object) -> str:
    """A name that is safe on a terminal: escapes stand for characters that are not printable."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), str(text))


def queue(table: dict[str, Any]) -> str:
    """``queue 'orders' in vhost '/'``."""
    return f"queue '{clean(table['queue'])}' in vhost '{clean(table['vhost'])}'"


def octets(count: int) -> str:
    """A size with two or three digits, as in ``1.5 MB``."""
    if count < 1000:
        return many(count, "octet")
    amount = float(count)
    for unit in ("kB", "MB", "GB", "TB"):
        amount /= 1000
        if amount < 999.5 or unit == "TB":
            break
    return f"{amount:.1f} {unit}" if amount < 99.5 else f"{amount:.0f} {unit}"


def log(answer: dict[str, Any]) -> str:
    """Lines of the log as the log has them."""
    lines = [(moment(1_000_000 * line["at"])[:-6], line["level"].upper(), line["text"]) for line in answer["items"]]
    return "\n".join([f"{when} {level:7} {clean(text)}" for when, level, text in lines])


def trace_file(answer: dict[str, Any]) -> str:
    """A part of a file of a trace, whose payloads may have anything in them."""
    return "\n".join(map(clean, answer["text"].split("\n")))


def moment(ns: int) -> str:
    """A time since the epoch as local time, with nanoseconds."""
    seconds, rest = divmod(ns, 1_000_000_000)
    try:
        return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S}.{rest:09d}"
    except (ValueError, OverflowError, OSError):
        return f"{ns} ns"


def span(ns: int) -> str:
    """A duration with its sign, as in ``+12.3 ms``."""
    sign, ns = "-" if ns < 0 else "+", abs(ns)
    if ns < 1000:
        return f"{sign}{ns} ns"
    for unit, most, one in (("µs", 999_950, 1e3), ("ms", 999_950_000, 1e6), ("s", 119_950_000_000, 1e9)):
        if ns < most:
            return f"{sign}{ns / one:.1f} {unit}"
    minutes, seconds = divmod(round(ns / 1e9), 60)
    if minutes < 120:
        return f"{sign}{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours} h {minutes} min" if hours < 48 else f"{sign}{hours // 24} d {hours % 24} h"


def columns(rows: Iterable[Sequence[object]], right: frozenset[int] | set[int] = frozenset()) -> list[str]:
    """The lines of a table; the columns in ``right`` are aligned right."""
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)] if cells else []
    lines = []
    for row in cells:
        parts = [cell.rjust(width) if index in right else cell.ljust(width)
                 for index, (cell, width) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
        lines.append("  ".join(parts).rstrip())
    return lines


# --- answers of operations without a view of their own


def plain(answer: object) -> str:
    """Names and values, one per line; a list of rows becomes a table."""
    return "\n".join(_plain(answer))


def plain_line(answer: dict[str, Any]) -> str:
    """Names and values in one line, for progress."""
    return ", ".join(f"{name} {_value(each)}" for name, each in answer.items())


def _plain(value: object) -> list[str]:
    if isinstance(value, dict):
        width = max((len(clean(name)) for name in value), default=0)
        lines = []
        for name, each in value.items():
            if isinstance(each, dict | list) and each:
                lines += [clean(name), *["  " + line for line in _plain(each)]]
            else:
                lines.append(f"{clean(name).ljust(width)}  {_value(each)}")
        return lines
    if isinstance(value, list):
        if not all(isinstance(each, dict) for each in value):
            return [_value(each) for each in value]
        head = list(dict.fromkeys(name for each in value for name in each))
        return columns([head, *[[_value(each.get(name)) for name in head] for each in value]])
    return [_value(value)]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None or value in ([], {}, "") else clean(value)


# --- queue dump


def dump(table: dict[str, Any]) -> str:
    """How much the dump copied."""
    return (f"{many(table['queues'], 'queue')}, {many(table['segments'], 'segment')}, "
            f"{octets(table['octets'])} copied to {clean(table['out'])}")  # fmt: skip


def dump_progress(table: dict[str, Any]) -> str:
    """How far the dump is."""
    return f"queue {table['number']} of {table['queues']}, {octets(table['octets'])}"


def dump_remarks(table: dict[str, Any]) -> list[str]:
    """The queues that the dump left out."""
    return [f"left out: {queue(each)}: {each['why']}" for each in table["skipped"]]


# --- stream read


def read_remarks(table: dict[str, Any]) -> list[str]:
    """What was removed before the reading came to it; and how far it looked, if it did not come to the end."""
    gone = [f"{table['missed']} messages from there on have been removed"] if table["missed"] else []
    if table["next_offset"] >= table["end_offset"]:
        return gone
    return [*gone, f"looked at {table['examined']} messages, and not yet at offsets {table['next_offset']} to "
            f"{table['end_offset'] - 1}: --offset {table['next_offset']} goes on there"]  # fmt: skip


# --- queue ordering


def ordering(table: dict[str, Any]) -> str:
    """The answer of ``operations.ordering``."""
    lines = [queue(table), ""]
    lines.append(f"  guarantee   {table['guarantee']}")
    lines += [f"              because: {clean(reason)}" for reason in table["reasons"]]
    lines += [f"              also: {clean(note)}" for note in table["notes"]]
    messages, journal = table["messages"], table["journal"]
    lines.append(
        f"  messages    {messages['ready']:,} ready, {messages['unacked']:,} unacked; "
        f"the next one is number {messages['next_seq']:,}"
    )
    lines.append(f"  journal     {_journal(journal)}")
    if journal["first_kept_seq"]:
        kept = f"; {octets(journal['kept_octets'])} of settled messages kept" if journal["kept_octets"] else ""
        lines.append(f"              on disk from number {journal['first_kept_seq']:,} on{kept}")
    return "\n".join([*lines, "", *_counters(table["counters"]), "", *_consumers(table["consumers"])])


def _journal(journal: dict[str, Any]) -> str:
    return f"{'on' if journal['on'] else 'off'}: {clean(journal['why'])}"


def _counters(counters: dict[str, Any]) -> list[str]:
    """The counters that are not 0."""
    rows: list[tuple[object, ...]] = []
    for group, name, text in COUNTERS:
        start, declare = (
            (counters[since][group] if group else counters[since])[name] for since in ("since_start", "since_declare")
        )
        if start or declare:
            rows.append((text, f"{start:,}", f"{declare:,}"))
    if not rows:
        return ["  Nothing has disturbed the order since the queue was declared."]
    head = ("what has disturbed the order", "since start", "since declare")
    return ["  " + line for line in columns([head, *rows], {1, 2})]


def _consumers(consumers: list[dict[str, Any]]) -> list[str]:
    if not consumers:
        return ["  no consumers"]
    head = ("consumer", "tag", "prefetch", "unacked", "channel", "peer", "user", "")
    rows = []
    for each in consumers:
        remarks = [text for text, so in (
            ("no ack", each["no_ack"]), ("waits its turn", not each["active"]),
            (f"priority {each['priority']}", each["priority"]),
            (f"{each['global_prefetch']} a channel", each["global_prefetch"]),
        ) if so]  # fmt: skip
        rows.append((
            each["number"] or "-", each["tag"], each["prefetch"] or "no limit", each["unacked"],
            f"{each['connection']}.{each['channel']}", each["peer"], each["user"], ", ".join(remarks),
        ))  # fmt: skip
    return ["  " + line for line in columns([head, *rows], {0, 2, 3})]

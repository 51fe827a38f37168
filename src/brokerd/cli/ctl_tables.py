"""Answers of operations as tables for people: a list as columns, one thing as names and values.

No value of Python is shown: ``yes`` and ``no``, and JSON for lists and tables.  Answers in, text out.
"""

import json
import shutil
from collections.abc import Sequence
from typing import Any

from brokerd.cli.ctl_text import clean, moment

# The columns of each list.  ``--json`` has all fields.
COLUMNS: dict[tuple[str, str], tuple[str, ...]] = {
    ("binding", "list"): ("vhost", "source", "destination", "destination_type", "routing_key", "arguments"),
    ("change", "list"): ("at", "user", "face", "address", "operation", "request", "text"),
    ("channel", "list"): ("name", "vhost", "user", "state", "consumer_count", "prefetch_count",
                          "messages_unacknowledged", "messages_unconfirmed", "confirm", "transactional"),
    ("connection", "list"): ("number", "name", "user_provided_name", "vhost", "user", "state", "channels", "ssl"),
    ("consumer", "list"): ("vhost", "queue", "consumer_tag", "connection_name", "channel", "ack_required",
                           "prefetch_count", "messages_unacknowledged", "activity_status"),
    ("definitions", "import"): ("action", "kind", "vhost", "name"),
    ("exchange", "delayed"): ("seq", "due_at", "routing_key", "properties", "payload_bytes", "payload"),
    ("exchange", "list"): ("vhost", "name", "type", "durable", "auto_delete", "internal", "policy", "arguments"),
    ("federation_link", "list"): ("id", "vhost", "type", "name", "upstream", "state", "messages", "rate", "lag",
                                  "reconnects", "reason"),
    ("global_parameter", "list"): ("name", "value"),
    ("group", "browse"): ("place", "seq", "failed", "redelivered", "routing_key", "properties", "payload_bytes",
                          "payload"),
    ("message", "browse"): ("seq", "exchange", "routing_key", "redelivered", "properties", "payload_bytes", "payload"),
    ("message", "get"): ("seq", "exchange", "routing_key", "redelivered", "properties", "payload_bytes", "payload"),
    ("message", "unacked"): ("seq", "held_ms", "since", "by", "consumer_tag", "connection_name", "channel", "user",
                             "failed"),
    ("operator_policy", "list"): ("vhost", "name", "pattern", "apply-to", "priority", "definition"),
    ("parameter", "list"): ("vhost", "component", "name", "value"),
    ("permission", "list"): ("vhost", "user", "configure", "write", "read"),
    ("policy", "list"): ("vhost", "name", "pattern", "apply-to", "priority", "definition"),
    ("queue", "list"): ("vhost", "name", "type", "durable", "messages_ready", "messages_unacknowledged", "consumers",
                        "policy", "state", "arguments"),
    ("run", "list"): ("id", "kind", "queues", "state", "verdict", "findings", "started_at", "ended_at", "user", "out",
                      "why"),
    ("shovel", "list"): ("vhost", "name", "state", "messages", "rate", "unconfirmed", "lag", "reconnects", "reason"),
    ("stream", "list"): ("vhost", "name", "messages", "first_offset", "next_offset", "octets", "oldest_age_ms", "reads",
                         "readers", "lag", "missed"),
    ("stream", "read"): ("offset", "exchange", "routing_key", "properties", "payload_bytes", "payload"),
    ("trace_file", "list"): ("name", "size"),
    ("tracer", "list"): ("vhost", "name", "pattern", "format", "state", "messages", "missed", "since", "user", "why"),
    ("topic_permission", "list"): ("vhost", "user", "exchange", "write", "read"),
    ("upstream", "list"): ("vhost", "name", "links", "running", "definition"),
    ("user", "list"): ("name", "tags", "hashing_algorithm", "limits"),
    ("vhost", "list"): ("name", "queues", "exchanges", "tracing", "limits"),
}  # fmt: skip
# ms from 1970 on
TIMES_MS = frozenset({"at", "started_at", "ended_at", "connected_at", "last_used", "since", "next_try", "last_message"})
NUMBERS = (int, float)
CELL_MAX = 60  # characters, where the table would be wider than the terminal


def as_json(answer: Any) -> str:
    """JSON that people can read."""
    return json.dumps(answer, indent=2)


def rows(answer: dict[str, Any], *, columns: Sequence[str]) -> str:
    """A list as a table, with what the page leaves out below it."""
    items = answer.get("items", answer.get("changes", []))
    lines = table(columns, [[_cell(name, item.get(name)) for name in columns] for item in items])
    total, shown = answer.get("filtered_count", answer.get("count", len(items))), len(items)
    if shown < total:
        lines.append(f"({shown} of {total})")
    if answer.get("dry_run"):
        lines.append("Nothing was changed: it was a dry run.")
    return "\n".join(lines)


def _cell(name: str, value: Any) -> Any:
    """A value of a list: a time as a time."""
    return _time(value) if name in TIMES_MS else value


def _time(ms: int) -> str:
    return moment(ms * 1_000_000)[:-6] if ms else ""


def table(heads: Sequence[str], values: Sequence[Sequence[Any]]) -> list[str]:
    """Lines of a table; numbers stand at the right, and the last column is as wide as it is."""
    if not values:
        return ["none"]
    cells = [[shown(value) for value in row] for row in values]
    heads = [head.replace("_", " ") for head in heads]
    widths = _widths(heads, cells)
    right = [all(isinstance(row[at], NUMBERS) and not isinstance(row[at], bool) for row in values)
             for at in range(len(heads))]  # fmt: skip
    return [_line(row, widths, right) for row in [heads, *cells]]


def _widths(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    widths = [max(len(row[at]) for row in [heads, *cells]) for at in range(len(heads))]
    if sum(widths) + 2 * len(widths) > shutil.get_terminal_size((120, 24)).columns:
        widths = [min(width, max(CELL_MAX, len(head))) for width, head in zip(widths, heads, strict=True)]
    return widths


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    cut = [text if len(text) <= width else text[: width - 3] + "..." for text, width in zip(row, widths, strict=True)]
    return "  ".join([
        text.rjust(width) if at_right else text.ljust(width)
        for text, width, at_right in zip(cut, widths, right, strict=True)
    ]).rstrip()  # fmt: skip


def things(answer: Any) -> str:
    """One thing as names and values; what answers nothing is done."""
    if answer == {"done": True}:
        return "done"
    if not isinstance(answer, dict):
        return shown(answer)
    lines: list[tuple[str, str]] = []
    for name, value in answer.items():
        if name in TIMES_MS:
            lines.append((name.replace("_", " "), _time(value)))
        elif isinstance(value, dict) and value and all(not isinstance(each, dict | list) for each in value.values()):
            lines.append((f"{name.replace('_', ' ')}:", ""))
            lines += [(f"  {inner.replace('_', ' ')}", shown(each)) for inner, each in value.items()]
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            heads = list(dict.fromkeys([head for each in value for head in each]))
            lines.append((f"{name.replace('_', ' ')}:", ""))
            cells = [[each.get(head) for head in heads] for each in value]
            lines += [(f"  {line}", "") for line in table(heads, cells)]
        else:
            lines.append((name.replace("_", " "), shown(value)))
    width = max((len(name) for name, text in lines if text), default=0)
    return "\n".join([f"{name.ljust(width)}  {text}".rstrip() for name, text in lines])


def run(answer: dict[str, Any]) -> str:
    """A dump or an audit, with what an audit has found beside the run's own fields."""
    told = answer.pop("told") or {}
    return things(answer | {name: value for name, value in told.items() if name not in ("verdict", "findings_total")})


def shown(value: Any) -> str:
    """A value in one line, for people."""
    if value is None or value in ({}, []):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return clean(", ".join(value))
    if isinstance(value, dict | list):
        return clean(json.dumps(value, ensure_ascii=False))
    return clean(value)

"""Tables of all queues for a report that cannot show them all: ``queues-1.html`` and on, a thousand queues in each.

A row says what did not hold, and why.  The order is that of the report: the worst queues come first.  Like the report,
the pages need nothing from outside, and escape all text that came from a broker.  Needs jinja2.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from brokerd.audit.verdicts import HELD
from brokerd.auditor import report

REASON_MAX = 300                # characters of a reason; summary.json has it whole


def render(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The name and the text of each page; none if the report shows all queues."""
    queues = report.ranked(summary)
    pages = report.tables(len(queues))
    if not pages:
        return
    template = report.template("queues.html")
    for index, (name, first, last) in enumerate(pages):
        yield name, template.render(
            rows=[_row(queue) for queue in queues[first - 1:last]], first=first, last=last, known=len(queues),
            verdict=summary["verdict"], made=summary["made"], source=summary["source"],
            before=pages[index - 1] if index else None, after=pages[index + 1] if index + 1 < len(pages) else None)


def _row(queue: report.Ranked) -> dict[str, Any]:
    waiting = (queue.facts.get("latency") or {}).get("enqueue_to_delivery") or {}
    told = [{"title": report.rule_of(row["audit"]).title, "verdict": row["verdict"], "reason": _reason(row)}
            for row in queue.rows if row["verdict"] != HELD]
    return {"name": report.queue_name(queue.facts["vhost"], queue.facts["queue"]), "verdict": queue.verdict,
            "held": queue.tally[HELD], "told": told, "messages": queue.facts.get("messages"),
            "redelivered": (queue.facts.get("counters") or {}).get("redelivered"),
            "p50": waiting.get("p50") if waiting.get("count") else None,
            "p99": waiting.get("p99") if waiting.get("count") else None}


def _reason(row: Mapping[str, Any]) -> str:
    text = str(row.get("reason") or "")
    return text if len(text) <= REASON_MAX else text[:REASON_MAX] + " …"


def write(out_dir: str, summary: Mapping[str, Any]) -> list[str]:
    """Write the pages, each whole or not at all, in place of those of an earlier report, and return their paths."""
    os.makedirs(out_dir, exist_ok=True)
    written = []
    for name, page in render(summary):
        written.append(os.path.join(out_dir, name))
        with open(written[-1] + ".new", "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(page)
        os.replace(written[-1] + ".new", written[-1])
    for name in os.listdir(out_dir):
        if re.fullmatch(r"queues-\d+\.html", name) and os.path.join(out_dir, name) not in written:
            os.remove(os.path.join(out_dir, name))
    return written

"""What an audit gives back: ``summary.json``, findings as Parquet, the report, and lines for the terminal."""

import json
import os
import re
from collections.abc import Sequence
from typing import Any

import click

from brokerd.audit import clean, many
from brokerd.audit.verdicts import EFFECTS, HELD, SEVERITY, UNCOVERED, UNDECIDABLE, VIOLATED

KEPT_WITH_EFFECTS = "kept, with effects of use"


def write_report(folder: str, document: dict[str, Any], findings: Sequence[dict[str, Any]]) -> str:
    """Write summary.json, findings/ and report.html, and return the report's path."""
    from brokerd.auditor import overview, report  # Only a report needs Jinja.

    write_findings(os.path.join(folder, "findings"), findings)
    path = os.path.join(folder, "summary.json")
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)
    overview.write(folder, document)
    return report.write(folder, document, findings)


def write_findings(folder: str, findings: Sequence[dict[str, Any]]) -> None:
    """Write all findings as one Parquet file, which replaces the one of an earlier run."""
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"audit": pa.string(), "vhost": pa.string(), "queue": pa.string(), "priority": pa.int32(),
             "seq": pa.int64(), "segment": pa.int64(), "file": pa.string(), "offset": pa.int64(), "ts": pa.int64(),
             "detail": pa.string()}
    columns = {}
    for name, kind in kinds.items():
        values = [finding[name] for finding in findings]
        columns[name] = pa.array([clean(v) for v in values] if kind == pa.string() else values, kind)
    os.makedirs(folder, exist_ok=True)
    for old in os.listdir(folder):
        if re.fullmatch(r"part-\d+\.parquet", old):
            os.remove(os.path.join(folder, old))
    parquet.write_table(pa.table(columns), os.path.join(folder, "part-00000.parquet"))


def disagreements(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> list[str]:
    """The differences between two lists of verdicts, one line each; audits that only one list has are left out."""
    by_name = {(row["vhost"], row["queue"], row["audit"]): row for row in theirs}
    lines = []
    for row in ours:
        other = by_name.get((row["vhost"], row["queue"], row["audit"]))
        if other is None:
            continue
        lines += [f"{row['audit']} of {row['queue']!r} in {row['vhost']!r}: {what} is {_comparable(row, what)} by a, "
                  f"{other[what]} by b" for what in ("verdict", "found", "overtakings")
                  if what in row and what in other and _comparable(row, what) != other[what]]
    return lines


def _comparable(row: dict[str, Any], what: str) -> Any:
    """Engine b finds everything that a rule finds, and engine a names the culprits among these."""
    return row.get("by_rule", row[what]) if what == "found" else row[what]


def show(document: dict[str, Any]) -> None:
    """Print the verdicts that are not held, and a line about all.  Its end says how many queues have no hash chain, as
    most have none at first: a line of its own looked like a fault."""
    counts = dict.fromkeys(SEVERITY, 0)
    for row in document["audits"]:
        counts[row["verdict"]] += 1
        if row["verdict"] not in (HELD, UNCOVERED):
            found = f" {row['found']} of {row['checked']}" if row["found"] else ""
            line = f"{row['verdict']:<14} {row['audit']:<21} {where(row)}{found}  {row.get('reason') or ''}"
            click.echo(line.rstrip())
    inputs = document["inputs"]
    verdict = KEPT_WITH_EFFECTS if document["verdict"] == EFFECTS else document["verdict"]
    effects = f", {counts[EFFECTS]} with effects of use" if counts[EFFECTS] else ""
    uncovered = f", {many(counts[UNCOVERED], 'queue')} without a hash chain" if counts[UNCOVERED] else ""
    read = ", ".join([many(inputs[f"{thing}s"], thing) for thing in ("queue", "segment", "message", "event")])
    click.echo(f"{verdict}: {counts[HELD]} held, {counts[VIOLATED]} violated, {counts[UNDECIDABLE]} undecidable"
               f"{effects}; {read}{uncovered}")


def where(row: dict[str, Any]) -> str:
    """The queue of a row of a table, in characters that any terminal has."""
    return ascii(f"{row['vhost']}: {row['queue']}")[1:-1]

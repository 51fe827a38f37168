"""The contents of a folder of the broker's files, as text for people.  ``brokerd.audit.inspect`` makes the tables."""

from collections.abc import Callable
from typing import Any

from brokerd.audit import many
from brokerd.cli.ctl_text import clean, columns, moment, octets

THINGS = ("queue", "segment", "message", "event")
DAMAGE_LINES = 20  # for each queue; the JSON has all


def read(directory: str, glob: str, progress: Callable[[str], object]) -> dict[str, Any]:
    """Read the whole folder; ``progress`` is called with how much has been read.  Raises AuditError."""
    from brokerd.audit.files import open_source  # imports numpy, which no other command needs
    from brokerd.audit.inspect import inspect

    done = [0]

    def report(count: int) -> None:
        done[0] += count
        progress(f"{octets(done[0])} read")

    return inspect(open_source(directory), glob or None, report)


def exit_status(table: dict[str, Any]) -> int:
    """The exit status of the audit ``damage`` of the same files: 1 if something is damaged, else 0."""
    return 1 if table["damage_total"] else 0


def text(table: dict[str, Any]) -> str:
    """The document as lines of text."""
    totals = table["totals"]
    lines = [
        f"{clean(table['path'])}: {', '.join([many(totals[f'{each}s'], each) for each in THINGS])}, "
        f"{octets(totals['octets'])}"
    ]
    if table["queues"]:
        head = ("vhost", "queue", "segments", "messages", "ready", "unacked", "settled", "first", "last", "events",
                "size", "newest")  # fmt: skip
        rows = [_row(each) for each in table["queues"]]
        lines += ["", *["  " + line for line in columns([head, *rows], {2, 3, 4, 5, 6, 7, 8, 9, 10})]]
    lines.append("")
    if not table["damage_total"]:
        return "\n".join([*lines, "  No damage."])
    lines.append(f"  damage: {table['damage_total']:,}")
    for each in table["queues"]:
        if each["damage"]:      # The folders have hashes in place of names.
            lines.append(f"    queue {clean(each['queue'])} of vhost {clean(each['vhost'])}:")
        for damage in each["damage"][:DAMAGE_LINES]:
            at = f" at {damage['offset']}" if damage["offset"] >= 0 else ""
            lines.append(f"    {clean(damage['file'])}{at}: {clean(damage['detail'])}")
        if len(each["damage"]) > DAMAGE_LINES:
            lines.append(f"    ... and {len(each['damage']) - DAMAGE_LINES} more in {clean(each['folder'])}")
    return "\n".join(lines)


def _row(queue: dict[str, Any]) -> tuple[object, ...]:
    first, last = (f"{queue[name]:,}" if queue[name] else "-" for name in ("first_seq", "last_seq"))
    events = f"{queue['events']:,}" if queue["journaled"] else "no journal"
    counts = [f"{queue[name]:,}" for name in ("segments", "messages", "ready", "unacked", "settled")]
    newest = moment(queue["last_ts"])[:19] if queue["last_ts"] else "-"
    return (queue["vhost"], queue["queue"], *counts, first, last, events, octets(queue["octets"]), newest)

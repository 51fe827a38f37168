"""``python -m brokerd.auditor.asked``: the process that judges a dump for a running broker, which has asked for it.

Its arguments: the folder of the dump, the folder for what it tells, the names of audits with commas ("": all).
Standard input stays open as long as the answer is wanted: at its end this process ends, with those that it has started.
Standard output has a JSON object a line, {"octets": read, "of": octets}.  What it has found stands in ``told.json``,
short enough to be shown; where Jinja and pyarrow are installed there is the whole report too, as
``brokerctl audit --report`` writes it.
"""

import json
import os
import signal
import sys
import threading
from collections import Counter
from typing import Any

from brokerd.audit import AuditError
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import HELD, SEVERITY, Judged, summary
from brokerd.auditor import here
from brokerd.auditor.request import REPORT, Request, find, is_installed
from brokerd.clock import Clock

NICE = 10  # Messages come first.
SHOWN_MAX = 500  # rows of told.json that did not hold, and as many findings
TOLD = "told.json"


def main(argv: list[str]) -> int:
    """Judge, and return the exit status: 0, or 1 where it could not be done; then standard error says why."""
    path, out, audits = argv
    threading.Thread(target=_end_with_input, daemon=True).start()
    os.nice(NICE)
    options = Options(audits=frozenset(audits.split(",")) if audits else None)
    try:
        judge(path, out, options)
    except (AuditError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


def judge(path: str, out: str, options: Options) -> dict[str, Any]:
    """Judge the queues of a dump, write the files, and return what ``told.json`` has.  Raises AuditError, OSError."""
    queues = find(Request(path, options))
    of = sum(triple.octets for queue in queues for triple in queue.triples)
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        done += more
        sys.stdout.write(json.dumps({"octets": done, "of": of}) + "\n")
        sys.stdout.flush()

    root = open_source(path).root
    judged = here.judge_all(root, queues, options, progress=tell)
    document = summary(root, judged, options=options, made=Clock().epoch_ns())
    os.makedirs(out, exist_ok=True)
    findings = [finding for one in judged for finding in one.findings]
    if is_installed(REPORT):
        from brokerd.auditor import output  # Only a report needs Jinja.

        output.write_report(out, document, findings)
    told = in_short(document, judged)
    with open(os.path.join(out, TOLD + ".new"), "w", encoding="utf-8") as file:
        json.dump(told, file)
    os.replace(file.name, os.path.join(out, TOLD))
    return told


def in_short(document: dict[str, Any], judged: list[Judged]) -> dict[str, Any]:
    """The verdicts, and the first of what did not hold."""
    rows = [row for row in document["audits"] if row["verdict"] != HELD]
    findings = [finding for one in judged for finding in one.findings][:SHOWN_MAX]
    return {
        "verdict": document["verdict"],
        "verdicts": dict(Counter(row["verdict"] for row in document["audits"])),
        "inputs": document["inputs"],
        "findings_total": document["findings_total"],
        "audits": [
            {"vhost": row["vhost"], "queue": row["queue"], "audit": row["audit"], "verdict": row["verdict"],
             "checked": row["checked"], "found": row["found"], "reason": row.get("reason") or ""}
            for row in sorted(rows, key=lambda row: SEVERITY.index(row["verdict"]))[:SHOWN_MAX]
        ],
        "findings": [
            {"vhost": each["vhost"], "queue": each["queue"], "audit": each["audit"], "seq": int(each["seq"] or 0),
             "ts": int(each["ts"] or 0), "detail": str(each["detail"] or "")}
            for each in findings
        ],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

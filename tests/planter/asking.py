"""What the audit says of a folder: the only module of the planter that calls it.

    ask(path) -> {(queue, audit): Said}      in this process
    ask_command(path, report) -> the same    by ``brokerctl audit``, and its exit status

    outcome(kind, before, after) -> Outcome  whether a planted fault was found
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.broker import ROOT, environment
from tests.planter.planting import BROKEN_PROMISES, EFFECTS_OF_USE

from brokerd.audit import AuditError
from brokerd.audit.files import open_source
from brokerd.audit.verdicts import audit


class Said(NamedTuple):
    verdict: str
    why: str
    found: int


class Refused(Exception):
    """The audit does not judge the folder, and says why."""


class Endless(Exception):
    """The audit has not ended after a time in which it ends a hundred times."""


def ask_within(path, seconds):
    """As ask(), in the main thread of a program.  Raises Endless."""
    def give_up(number, frame):
        raise Endless(f"it has not ended after {seconds} s")

    former = signal.signal(signal.SIGALRM, give_up)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return ask(path)
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)      # pytest's limit goes on.
        signal.signal(signal.SIGALRM, former)


def ask_all(path):
    """{(vhost, queue, audit): Said}.  Raises Refused."""
    said = {}
    try:
        for judged in audit(open_source(str(path))):
            place = judged.queue["vhost"], judged.queue["queue"]
            said |= {(*place, row["audit"]): Said(row["verdict"], row["reason"], row["found"] or 0)
                     for row in judged.audits}
    except AuditError as error:
        raise Refused(str(error)) from error
    return said


def ask(path):
    """The same of a folder of one vhost: {(queue, audit): Said}."""
    return {key[1:]: said for key, said in ask_all(path).items()}


def ask_command(path, report, *options):
    """(exit status, what was said)."""
    done = subprocess.run(
        [sys.executable, "-m", "brokerd.cli.brokerctl", "audit", str(path), "--report", str(report), *options],
        env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=600)
    summary = Path(report) / "summary.json"
    if not summary.exists():
        return done.returncode, done.stderr
    rows = json.loads(summary.read_text())
    return done.returncode, rows


class Outcome(NamedTuple):
    found: bool
    by: tuple[str, ...]             # audits that say violated, or rightly undecidable
    beside: tuple[str, ...]         # audits that say violated, of which the kind does not say that they may
    text: str


def outcome(kind, before, after):
    """Whether the audit found what was planted.  ``before``: what it said of the files without the fault."""
    by, beside, texts = [], [], []
    for key, said in sorted(after.items()):
        was = before.get(key)
        name = key[1]
        if name in EFFECTS_OF_USE or (was is not None and was.verdict == said.verdict):
            continue
        texts.append(f"{key[0]}: {name} {said.verdict}")
        mine = name in kind.right or name not in BROKEN_PROMISES
        if (said.verdict == "violated" and mine) or (said.verdict == "undecidable" and kind.undecidable):
            by.append(name)
        elif said.verdict == "violated":
            beside.append(name)
    return Outcome(bool(by) and (not kind.audit or kind.audit in by), tuple(by), tuple(beside), "; ".join(texts))

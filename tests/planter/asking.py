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
from brokerd.audit.cut import find_queues
from brokerd.audit.files import open_source
from brokerd.audit.scan import scan
from brokerd.audit.verdicts import audit, judge


class Said(NamedTuple):
    verdict: str
    why: str
    found: int


class Refused(Exception):
    """The audit does not judge the folder, and says why."""


class Endless(Exception):
    """The audit has not ended after a time in which it ends a hundred times."""


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


class Known:
    """What the segments of a folder come to, for questions about copies of it in which some files are others."""

    def __init__(self, path):
        self.summaries = {}
        source = open_source(str(path))
        for queue in find_queues(source, None):
            self.summaries |= {triple.msgs: scan(source, triple) for triple in queue.triples}

    def ask(self, path, changed):
        """As ask(), of a copy: only segments with a file in ``changed`` are read."""
        said = {}
        try:
            source = open_source(str(path))
            for queue in find_queues(source, None):
                summaries = [self._summary(source, triple, changed) for triple in queue.triples]
                judged = judge(source, queue, summaries)
                said |= {(queue.queue, row["audit"]): Said(row["verdict"], row["reason"], row["found"] or 0)
                         for row in judged.audits}
        except AuditError as error:
            raise Refused(str(error)) from error
        return said

    def _summary(self, source, triple, changed):
        known = self.summaries.get(triple.msgs)
        same = known is not None and known.triple._replace(root=triple.root) == triple
        if not same or not changed.isdisjoint((triple.msgs, triple.acks, triple.journal)):
            return scan(source, triple)
        return known._replace(triple=triple)


def ask_within(path, seconds, ask=ask):
    """As ask(), in the main thread of a program, within so many seconds of the processor.  Raises Endless."""
    def give_up(number, frame):
        raise Endless(f"it has not ended after {seconds} s")

    former = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return ask(path)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)


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

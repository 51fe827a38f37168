"""Violations across the edges of segments, from their summaries.

Reads a segment again only if the summaries cannot decide.  Each function takes the summaries of one priority level of a
queue, in order, and adds its findings to a ``Findings``.
"""

import numpy as np

from brokerd.audit.arrays import as_signed, group_max_before
from brokerd.audit.files import FOREVER, Source
from brokerd.audit.lifecycle import lives
from brokerd.audit.scan import (
    OVERTAKEN,
    PASSED,
    Options,
    Pass,
    Rows,
    Run,
    Summary,
    Table,
    clip,
    group_ends,
    group_keys,
    run_firsts,
    scan,
)
from brokerd.audit.segment import read_triple
from brokerd.audit.skipped import PASSED_OVER, never_delivered
from brokerd.store import format as layout


class Findings:
    """The findings across edges: their number for each audit, and the rows that describe them."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}
        self.rows: list[tuple[Summary, Rows]] = []
        self.overtakings = 0

    def add(self, summary: Summary, audit: str, kind: str, detail: str, *columns: np.ndarray) -> None:
        """Add findings; ``columns`` are seq, place, ts, a, b."""
        if columns[0].size:
            self.found[audit] = self.found.get(audit, 0) + columns[0].size
            self.rows.append((summary, Rows(audit, kind, detail, *columns)))


def read_again(source: Source, summary: Summary, options: Options) -> Pass:
    """Read the segment once more.  If the first reading checked all sums and found no damage, all in it is sound."""
    data = read_triple(source, summary.triple, crc=options.crc, trust=options.crc and not summary.damage)
    data = clip(data, options)
    return Pass(data, lives(data), options)


def publish_order(source: Source, level: list[Summary], options: Options, findings: Findings) -> None:
    """Find publishes of a channel that come behind later publishes in an earlier segment."""
    key, least, most = (np.concatenate([s.publishers[c] for s in level]) for c in ("key", "least", "most"))
    segment = np.repeat(np.arange(len(level)), [s.publishers.size for s in level])
    before = group_max_before(key, most)
    bad = np.flatnonzero(least <= before)
    for number in np.unique(segment[bad]).tolist():
        rows = bad[segment[bad] == number]
        p = read_again(source, level[number], options)
        index = np.flatnonzero(p.data.sound)
        headers = p.data.headers[index]
        keys = headers["connection"].astype(np.int64) << 16 | headers["channel"]
        value = as_signed(headers["publish_seq"])
        order = np.argsort(key[rows])
        place = np.minimum(np.searchsorted(key[rows][order], keys), rows.size - 1)
        top = np.where(key[rows][order][place] == keys, before[rows][order][place], -1)
        found = (value <= top) & (value > group_max_before(keys, value)) & (headers["connection"] > 0)
        findings.add(level[number], "publish_order", "msgs",
                      "publish {a} of connection {b} comes behind a later one of its channel",
                      headers["seq"][found].astype(np.int64), p.data.positions[index[found]], headers["ts"][found],
                      value[found], headers["connection"][found].astype(np.int64))


def fifo(source: Source, level: list[Summary], options: Options, findings: Findings) -> None:
    """Find messages that were first delivered before a message of an earlier segment, and those that were never
    delivered though a message of a later one was."""
    top = 0
    for summary in level:
        if summary.first_min < top:
            p = read_again(source, summary, options)
            sure = np.flatnonzero(p.life.first_sure)
            first = p.life.first[sure]
            inside = np.append(0, np.maximum.accumulate(first)[:-1])
            bad = (first < top) & (first > inside)      # The scan has found the others.
            findings.add(summary, "fifo", "msgs", "first delivered at {a:t}, before an earlier one, at {b:t}",
                          p.life.seq[sure[bad]], p.places(sure[bad]), first[bad], first[bad],
                          np.full(int(bad.sum()), top))
        top = max(top, summary.first_max)
    last = 0                    # The highest number that was delivered of all later segments.
    for summary in reversed(level):
        if summary.never_delivered < last:
            p = read_again(source, summary, options)
            never = never_delivered(p.data, p.life)
            never = never[(p.life.seq[never] > summary.last_delivered) & (p.life.seq[never] < last)]
            findings.add(summary, "fifo", "msgs", PASSED_OVER, p.life.seq[never], p.places(never),
                          p.life.published[never], np.full(never.size, last), np.full(never.size, last))
        last = max(last, summary.last_delivered)


def group_fifo(source: Source, level: list[Summary], options: Options, findings: Findings) -> None:
    """Find messages that were delivered before all messages of their group in earlier segments were settled."""
    hash_, first, settled = (np.concatenate([s.groups[c] for s in level]) for c in ("hash", "first", "settled"))
    segment = np.repeat(np.arange(len(level)), [s.groups.size for s in level])
    before = group_max_before(hash_, settled)
    bad = np.flatnonzero((first < before) & (first < FOREVER))
    for number in np.unique(segment[bad]).tolist():
        rows = bad[segment[bad] == number]
        rows = rows[np.argsort(hash_[rows])]
        p = read_again(source, level[number], options)
        which, key = group_keys(p)
        sure = p.life.covered[which]
        which, key = which[sure], key[sure]
        starts, ends = group_ends(p, which)
        place = np.minimum(np.searchsorted(hash_[rows], key), rows.size - 1)
        top = np.where(hash_[rows][place] == key, before[rows][place], 0)
        found = which[(starts < top) & (starts < FOREVER) & (starts >= group_max_before(key, ends))]
        findings.add(level[number], "group_fifo", "msgs",
                      "first delivered at {a:t}, before all earlier ones of its group were settled",
                      p.life.seq[found], p.places(found), p.life.first[found], p.life.first[found],
                      p.life.first[found])


# --- returned messages: overtaking, returned_first


def with_all_that_overlap(source: Source, level: list[Summary], options: Options) -> list[Summary]:
    """Scan again the segments that overlap in time with the deliveries of a later one, which breaks FIFO.

    All their returned messages are then compared with later segments.
    """
    starts = run_starts(level)
    least: dict[int, int] = {}
    scanned: list[Summary] = []
    for summary in reversed(level):
        runs = {int(np.searchsorted(starts, run.since)): run for run in summary.runs}
        if any(run.firsts and least.get(number, FOREVER) < run.first_max for number, run in runs.items()):
            summary = scan(source, summary.triple, options, everything=True)
        for number, run in runs.items():
            least[number] = min(least.get(number, FOREVER), run.least)
        scanned.append(summary)
    return scanned[::-1]


def run_starts(level: list[Summary]) -> np.ndarray:
    """When runs began, for all runs that any segment knows."""
    known = [s.starts for s in level]
    return np.unique(np.concatenate(known)) if known else np.zeros(0, np.int64)


class _Waiting:
    """Returned messages of earlier segments that later segments may overtake: columns, and the summary of each."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.columns = {name: np.zeros(0, np.int64) for name in (*names, "segment")}

    @property
    def size(self) -> int:
        return self.columns["segment"].size

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def add(self, table: Table, segment: int) -> None:
        for name in self.columns:
            more = np.full(table.size, segment) if name == "segment" else table[name]
            self.columns[name] = np.concatenate((self.columns[name], more))

    def take(self, which: np.ndarray) -> dict[str, np.ndarray]:
        """Remove those rows, and return them."""
        taken = {name: column[which] for name, column in self.columns.items()}
        self.columns = {name: column[~which] for name, column in self.columns.items()}
        return taken


class _Deliveries:
    """The deliveries of one segment, which the first use reads."""

    def __init__(self, source: Source, summary: Summary, options: Options) -> None:
        self._source, self._summary, self._options = source, summary, options
        self._pass: Pass | None = None

    def _read(self) -> Pass:
        if self._pass is None:
            self._pass = read_again(self._source, self._summary, self._options)
        return self._pass

    def all(self) -> np.ndarray:
        """Times of all deliveries, rising."""
        return self._read().deliveries_ts

    def firsts(self) -> np.ndarray:
        """Times of first deliveries of runs, rising."""
        life = self._read().life
        which, first = run_firsts(life)
        heads = which[first]
        why = life.why[heads]
        sure = life.covered[life.of[heads]] | (why & layout.REDELIVERED == 0) | (why & layout.BEFORE_START > 0)
        return np.sort(life.ts[heads[sure]])


def returned(source: Source, level: list[Summary], options: Options, findings: Findings) -> None:
    """Judge overtaking and returned_first across segments."""
    overtaken, passed = _Waiting(("seq", "start", "stop", "count", "place")), _Waiting(
        ("seq", "start", "stop", "place"))
    starts = run_starts(level)
    earliest = [FOREVER]                                # The earliest delivery of each segment and all later ones.
    for summary in reversed(level):
        earliest.append(min([earliest[-1], *(run.least for run in summary.runs)]))
    earliest.reverse()
    for number, summary in enumerate(level):
        _add_overtaken(level, findings, overtaken.take(overtaken["stop"] <= earliest[number]))
        passed.take(passed["stop"] <= earliest[number])
        deliveries = _Deliveries(source, summary, options)
        for run in summary.runs:
            if overtaken.size:
                _count_overtakings(overtaken, run, starts, deliveries)
            if passed.size:
                bad = _passed_by(passed, run, deliveries)
                if not any(rule.groups for rule in level[0].triple.rules):
                    _add_passed(level, findings, passed.take(bad))
        overtaken.add(summary.overtaken, number)
        passed.add(summary.returned, number)
    _add_overtaken(level, findings, overtaken.take(np.ones(overtaken.size, bool)))


def _count_overtakings(waiting: _Waiting, run: Run, starts: np.ndarray, deliveries: _Deliveries) -> None:
    start, stop = waiting["start"], waiting["stop"]
    same = np.searchsorted(starts, start, "right") == np.searchsorted(starts, run.since, "right")
    some = np.flatnonzero(same & (stop > run.first_min) & (start < run.first_max)) if run.firsts else np.zeros(0, int)
    if not some.size:
        return
    whole = (start[some] < run.first_min) & (stop[some] > run.first_max)
    count = np.full(some.size, run.firsts)
    if not whole.all():
        times = deliveries.firsts()
        part = some[~whole]
        count[~whole] = np.searchsorted(times, stop[part]) - np.searchsorted(times, start[part], "right")
    waiting["count"][some] += count


def _passed_by(waiting: _Waiting, run: Run, deliveries: _Deliveries) -> np.ndarray:
    start, stop = waiting["start"], waiting["stop"]
    bad = ((start < run.least) & (run.least < stop)) | ((start < run.most) & (run.most < stop))
    part = np.flatnonzero(~bad & (run.least <= start) & (stop <= run.most))
    if part.size:
        times = deliveries.all()
        bad[part] = np.searchsorted(times, stop[part]) > np.searchsorted(times, start[part], "right")
    return bad


def _add_overtaken(level: list[Summary], findings: Findings, rows: dict[str, np.ndarray]) -> None:
    found = rows["count"] > 0
    findings.overtakings += int(rows["count"].sum())
    for number in np.unique(rows["segment"][found]).tolist():
        own = found & (rows["segment"] == number)
        findings.add(level[number], "overtaking", "journal", OVERTAKEN, rows["seq"][own], rows["place"][own],
                      rows["stop"][own], rows["count"][own], rows["start"][own])


def _add_passed(level: list[Summary], findings: Findings, rows: dict[str, np.ndarray]) -> None:
    for number in np.unique(rows["segment"]).tolist():
        own = rows["segment"] == number
        findings.add(level[number], "returned_first", "journal",
                      PASSED.replace("{a} later ones were", "one of a later segment was"), rows["seq"][own],
                      rows["place"][own], rows["stop"][own], rows["stop"][own], rows["start"][own])


# --- the whole queue


def duplicates(summaries: list[Summary], options: Options, findings: Findings) -> None:
    """Find equal message ids in different segments, over all levels of a queue together."""
    hash_, ts, seq, known = (np.concatenate([s.ids[c] for s in summaries]) for c in ("hash", "ts", "seq", "known"))
    segment = np.repeat(np.arange(len(summaries)), [s.ids.size for s in summaries])
    order = np.lexsort((ts, hash_))
    near = (hash_[order][1:] == hash_[order][:-1]) & (
        ts[order][1:] - ts[order][:-1] <= int(options.duplicate_window_s * 1e9))
    this, that = order[1:][near], order[:-1][near]
    some = ~known[this]
    this, that = this[some], that[some]
    for number in np.unique(segment[this]).tolist():
        own = segment[this] == number
        rows, before = this[own], that[own]
        findings.add(summaries[number], "duplicates", "msgs", "its message-id was that of {a} before", seq[rows],
                      np.full(rows.size, -1), ts[rows], seq[before], seq[before])


"""Reads a segment with its acks and journal once: ``scan`` makes a small ``Summary`` for the audits.

The scan judges everything that one segment can show (``Result``, ``Rows``).  For violations across its edges, the
summary has extremes, and the few messages that a later segment may still overtake.  ``verdicts`` joins the summaries.

All times are ns.  A *run* is the life of a broker: messages that are out when it ends count as returned.
"""

from typing import NamedTuple

import numpy as np

from brokerd.audit import chain, deliveries, figures, replayed, settlements, words
from brokerd.audit._journal import Gap
from brokerd.audit.agreement import compare
from brokerd.audit.arrays import Numbers, as_signed, count_above, group_max_before, numbers
from brokerd.audit.files import FOREVER, Damage, Source, Triple
from brokerd.audit.levels import wrong_level
from brokerd.audit.lifecycle import Lives, lives, without_record
from brokerd.audit.limits import failures, limit_of_each
from brokerd.audit.properties import ROUTING_KEY, hashes, text, texts
from brokerd.audit.returns import waits
from brokerd.audit.segment import SegmentData, read_numbers, read_triple
from brokerd.audit.skipped import PASSED_OVER, last_delivered, never_delivered
from brokerd.audit.unsaid import Unsaid
from brokerd.store import format as layout
from brokerd.store import reading

AUDITS = (
    "publish_order", "fifo", "returned_first", "overtaking", "priority", "delivery_limit", "limit_kept",
    "ack_without_delivery", "double_settle", "delivery_after_settle", "agreement", "unacked", "duplicates", "holes",
    "damage", "group_fifo", *deliveries.AUDITS, "channel_order", "time_order", "wrong_level", "numbers", "after_cut",
    "single_active", "prefetch", "consumers", "counters", "words", "dead_letters", "chain", "stream",
    "group_order", "group_owner", "retry_kept", "stop_kept", "token_kept", "dedup_kept", "replay_exact",
)
IDS_SHOWN = 1000                # duplicates of a segment that are reported with their message-id


class Options(NamedTuple):
    """The options of an audit.  ``audits``: the names, None: all.  ``group_by``: a property's name, or routing-key.

    ``delivery_limit`` replaces the limit of the queue's settings.  ``from_ns``, ``to_ns``: only messages published in
    that time, 0: no bound.  ``findings_max``: how many findings of an audit of a queue get a row; all are counted.
    """

    crc: bool = True
    unacked_after_s: float = 1800
    duplicate_window_s: float = 300
    group_header: str | None = None
    group_by: str | None = None
    delivery_limit: int | None = None
    audits: frozenset[str] | None = None
    from_ns: int = 0
    to_ns: int = 0
    findings_max: int = 100_000
    chain_log: tuple[chain.Head, ...] = ()      # heads of hash chains that were written elsewhere

    def wants(self, audit: str) -> bool:
        """Whether the options ask for that audit."""
        return self.audits is None or audit in self.audits


DEFAULTS = Options()


class Result(NamedTuple):
    """The result of one audit within one segment.  ``uncovered``: how many messages it could not judge."""

    found: int = 0
    checked: int = 0
    uncovered: int = 0


class Rows(NamedTuple):
    """Findings of one kind, as columns; ``detail`` is a format of ``a`` and ``b``.

    ``place`` is an offset in the file that ``kind`` names, "msgs" or "journal".
    """

    audit: str
    kind: str
    detail: str
    seq: np.ndarray
    place: np.ndarray
    ts: np.ndarray
    a: np.ndarray
    b: np.ndarray


class Run(NamedTuple):
    """The deliveries of a segment in one broker's life.

    ``firsts`` counts the messages that were delivered in it for the first time in this life; ``first_min`` and
    ``first_max`` are the earliest and latest time of those deliveries.  ``least`` (also ``since``) and ``most`` are the
    earliest and latest time of all deliveries.
    """

    since: int
    firsts: int
    first_min: int
    first_max: int
    least: int
    most: int


class Table:
    """Rows that may matter to other segments: columns by name."""

    __slots__ = ("columns",)

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @property
    def size(self) -> int:
        return next(iter(self.columns.values())).size


class Summary(NamedTuple):
    """Everything that an audit needs of a segment; small and picklable."""

    triple: Triple
    generation: int
    base_seq: int
    created: int
    begun: int | None
    gone: bool
    damage: list[Damage]
    gaps: list[Gap]
    records: int
    events: int
    octets: int
    first_ts: int
    last_ts: int                        # the latest time of a record or event, marks included
    first_record_ts: int
    last_record_ts: int
    power_cut: int                      # the last start after a loss of power, by the journal; 0: none
    after_cut: int                      # the first sequence number since then; 0: none
    uncovered: int
    numbers: Numbers
    results: dict[str, Result]
    rows: list[Rows]
    publishers: Table                   # key, least, most
    first_min: int                      # the extremes of sure first deliveries; FOREVER, 0 without any
    first_max: int
    runs: list[Run]
    starts: np.ndarray                  # when runs began, by the journal
    overtaken: Table                    # redeliveries that messages of later segments may have overtaken
    returned: Table                     # returned messages that messages of later segments may have passed
    out: Table                          # seq, ts, place: delivered, neither settled nor returned
    pending: Table                      # beyond their limit, and neither dead nor delivered again
    ids: Table                          # hash, ts, seq, known: message ids at the edges of time
    groups: Table                       # hash, first, settled: extremes of each group
    waited: np.ndarray                  # histogram, enqueued to first delivery
    worked: np.ndarray                  # histogram, first delivery to settlement
    longest: tuple[int, int]
    hours: Table                        # hour, published, delivered, settled, octets
    counters: np.ndarray                # in the order of ORDER_COUNTERS
    standing: np.ndarray                # of its unsettled messages: in the order of figures.STANDING
    overtakings: int                    # within this segment
    last_delivered: int                 # the highest number that was delivered; 0: none
    never_delivered: int                # the lowest number above it that should be found delivered; FOREVER: none
    journal_is_whole: bool
    explained: Numbers                  # without a record, and settled by the journal: a compaction took them
    unexplained: Table                  # seq, ts of the last event: without a record, and not settled
    at_once: int = 0                    # events that have the time of a record of this segment
    rising: bool = True                 # the times of its records, with their numbers
    replayed: bool = False              # some of its messages were settled, and are ready again
    cut_off: tuple[Unsaid, ...] = ()    # replays of which kill -9 left only the entry
    chained: chain.Chained | None = None     # what its hash chain says; None: that was not asked for


class Pass:
    """The data that the steps of one scan share."""

    def __init__(self, data: SegmentData, life: Lives, options: Options) -> None:
        self.data, self.life, self.options = data, life, options
        self.results: dict[str, Result] = {}
        self.rows: list[Rows] = []
        self.never_delivered = FOREVER
        self.delivered = life.type == layout.DELIVERED
        events = np.concatenate((data.events, data.events_again)) if data.events_again.size else data.events
        order = np.flatnonzero(events["type"] == layout.DELIVERED)
        at, of = events["ts"][order], events["seq"][order].astype(np.int64)
        if at.size > 1 and not (at[1:] > at[:-1]).all():
            by_time = np.argsort(at, kind="stable")
            at, of = at[by_time], of[by_time]
        self.deliveries_ts, self.deliveries_seq = at, of

    def count(self, audit: str, found: int, checked: int, uncovered: int) -> None:
        """Add to the audit's result.  Where parts could not judge the same messages, the greater number counts."""
        part = self.results.get(audit, Result())
        self.results[audit] = Result(part.found + found, part.checked + checked, max(part.uncovered, uncovered))

    def add(self, audit: str, kind: str, detail: str, seq: np.ndarray, place: np.ndarray, ts: np.ndarray,
             a: np.ndarray | None = None, b: np.ndarray | None = None) -> None:
        """Add findings; ``a`` and ``b`` are for the format ``detail``."""
        if seq.size:
            a = np.zeros(seq.size, np.int64) if a is None else a
            b = np.zeros(seq.size, np.int64) if b is None else b
            cut = slice(self.options.findings_max)
            self.rows.append(Rows(audit, kind, detail, *(np.asarray(c)[cut] for c in (seq, place, ts, a, b))))

    def add_at_events(self, audit: str, detail: str, which: np.ndarray, a: np.ndarray | None = None,
                    b: np.ndarray | None = None) -> None:
        """Add findings at events; ``which`` are indices into the sorted events."""
        life = self.life
        self.add(audit, "journal", detail, life.seq[life.of[which]], self.data.event_places[life.event[which]],
                  life.ts[which], a, b)

    def add_at_messages(self, audit: str, detail: str, which: np.ndarray, ts: np.ndarray, a: np.ndarray | None = None,
                      b: np.ndarray | None = None) -> None:
        """Add findings at messages."""
        self.add(audit, "msgs", detail, self.life.seq[which], self.places(which), ts, a, b)

    def places(self, which: np.ndarray) -> np.ndarray:
        """The offsets of the messages' records; -1 for a record that a compaction removed."""
        record = self.life.record[which]
        if not self.data.positions.size:
            return np.full(record.size, -1, np.int64)
        return np.where(record >= 0, self.data.positions[record], -1)


def scan(source: Source, triple: Triple, options: Options = DEFAULTS, *, everything: bool = False) -> Summary:
    """Read and summarise one segment.  Damaged files raise nothing.

    ``everything``: keep every returned message, because a later segment may overtake any of them.
    """
    data = clip(read_triple(source, triple, crc=options.crc), options)
    s = Pass(data, life := lives(data), options)
    publishers = _publish_order(s)
    first_min, first_max = _fifo(s)
    runs, overtaken, overtakings = _overtaking(s, everything)
    returned = _returned_first(s, runs, everything)
    pending = _limits(s)
    _agreement(s)
    for one in (*deliveries.judge(data, life, options.delivery_limit), *settlements.judge(data, life)):
        s.count(one.audit, one.which.size, one.checked, one.uncovered)
        s.add_at_events(one.audit, one.detail, one.which, one.a, one.b)
    _settled_by_entries(s)
    _lives_again(s)
    early = deliveries.before_publish(data, life)
    s.count("before_publish", early.seq.size, early.checked, _unknown(life))
    s.add("before_publish", "journal", deliveries.EARLY, *early[:3], early.published)
    _levels(s)
    _words(s, source)
    at_once = _at_once(s)
    damage = data.damage + _orphans(data, life)
    out, published = np.flatnonzero(life.out & life.covered), data.headers["ts"][data.sound]
    power_cut = int(data.power_cuts[-1]) if data.power_cuts.size else 0
    since = data.headers["seq"][data.sound][published > power_cut] if power_cut else data.headers["seq"][:0]
    times = [t for t in (published, life.ts, data.marks, data.aside["ts"], data.events_again["ts"]) if t.size]
    waited, worked, longest = figures.latency(life)
    explained, unexplained = without_record(life)
    return Summary(
        triple=triple, generation=data.generation, base_seq=data.base_seq, created=data.created, begun=data.begun,
        gone=data.gone, damage=damage, gaps=data.gaps, records=int(np.count_nonzero(data.sound)),
        events=data.events.size, octets=triple.octets, replayed=data.events_again.size > 0, at_once=at_once,
        first_ts=int(min((t.min() for t in times), default=0)),
        last_ts=int(max((t.max() for t in times), default=0)),
        first_record_ts=int(published.min()) if published.size else 0,
        last_record_ts=int(published.max()) if published.size else 0,
        power_cut=power_cut, after_cut=int(since.min()) if since.size else 0,
        uncovered=int(np.count_nonzero(~life.covered)), numbers=numbers(read_numbers(data)),
        results=s.results, rows=s.rows,
        publishers=publishers, first_min=first_min, first_max=first_max, runs=runs, starts=data.runs,
        overtaken=overtaken, returned=returned,
        out=Table({"seq": life.seq[out], "ts": life.last_delivered[out], "place": s.places(out)}),
        pending=pending, ids=_ids(s), groups=_groups(s), waited=waited, worked=worked, longest=longest,
        hours=Table(figures.hours(data, life)), counters=figures.counters(life, data.events_again),
        standing=figures.standing(data, life),
        overtakings=overtakings, last_delivered=last_delivered(life), never_delivered=s.never_delivered,
        journal_is_whole=data.journal_is_whole, explained=explained, unexplained=Table(unexplained),
        rising=all((c[1:] > c[:-1]).all() for c in (published, data.headers["seq"][data.sound])),
        cut_off=data.cut_off, chained=chain.read(source, triple) if options.wants("chain") else None)


def clip(data: SegmentData, options: Options) -> SegmentData:
    """Keep only the messages published in the time that the options name, with their events."""
    if not options.from_ns and not options.to_ns:
        return data
    ts = data.headers["ts"]
    inside = data.sound & (ts >= options.from_ns) & (ts < (options.to_ns or FOREVER))
    seq = data.headers["seq"][inside]
    some, again = np.isin(data.events["seq"], seq), np.isin(data.events_again["seq"], seq)
    keep = inside | ~data.sound
    return data._replace(headers=data.headers[keep], positions=data.positions[keep], sound=data.sound[keep],
                         events=data.events[some], event_places=data.event_places[some],
                         events_again=data.events_again[again], again_places=data.again_places[again])


def _publish_order(s: Pass) -> Table:
    headers = s.data.headers[s.data.sound]
    key = headers["connection"].astype(np.int64) << 16 | headers["channel"]
    known = headers["connection"] > 0
    if not known.all():
        headers, key = headers[known], key[known]
    number = as_signed(headers["publish_seq"])
    s.results["publish_order"] = Result(0, number.size)
    if not number.size:
        return Table({"key": key, "least": key, "most": key})
    if (key == key[0]).all():
        starts, keys, least, most = np.array([0]), key[:1], number.min(keepdims=True), number.max(keepdims=True)
        sound = bool((number[1:] > number[:-1]).all())
    else:
        order = np.argsort(key, kind="stable")
        grouped, sorted_ = key[order], number[order]
        same = grouped[1:] == grouped[:-1]
        starts = np.flatnonzero(np.append(True, ~same))
        keys, least, most = grouped[starts], np.minimum.reduceat(sorted_, starts), np.maximum.reduceat(sorted_, starts)
        sound = bool((~same | (sorted_[1:] > sorted_[:-1])).all())
    if not sound:
        bad = np.flatnonzero(number <= group_max_before(key, number))
        s.results["publish_order"] = Result(bad.size, number.size)
        place = s.data.positions[s.data.sound][known][bad]
        s.add("publish_order", "msgs", "publish {a} of connection {b} comes behind a later one of its channel",
               headers["seq"][bad].astype(np.int64), place, headers["ts"][bad], number[bad],
               headers["connection"][bad].astype(np.int64))
    return Table({"key": keys, "least": least, "most": most})


def _fifo(s: Pass) -> tuple[int, int]:
    life = s.life
    sure = np.flatnonzero(life.first_sure)
    first = life.first[sure]
    unknown = int(np.count_nonzero(~life.covered & ~life.first_sure))
    never, last = never_delivered(s.data, life), last_delivered(life)
    if any(rule.groups for rule in s.data.triple.rules):
        return FOREVER, 0                   # Order holds in each group.
    s.never_delivered = int(life.seq[never[life.seq[never] > last]].min(initial=FOREVER))
    if not first.size:
        s.results["fifo"] = Result(0, 0, unknown)
        return FOREVER, 0
    top = np.maximum.accumulate(first)
    bad = np.flatnonzero(first[1:] < top[:-1]) + 1
    never = never[life.seq[never] < last]
    s.results["fifo"] = Result(bad.size + never.size, first.size, unknown)
    s.add_at_messages("fifo", PASSED_OVER, never, life.published[never], np.full(never.size, last))
    s.add_at_messages("fifo", "first delivered at {a:t}, before an earlier one, at {b:t}", sure[bad], first[bad],
                    first[bad], top[bad - 1])
    return int(first.min()), int(top[-1])


def run_firsts(life: Lives) -> tuple[np.ndarray, np.ndarray]:
    """The indices of deliveries (sorted by message, then time), and which of these are the first of their run."""
    which = np.flatnonzero(life.type == layout.DELIVERED)
    of, run = life.of[which], life.run[which]
    first = np.ones(which.size, bool)
    first[1:] = (of[1:] != of[:-1]) | (run[1:] != run[:-1])
    return which, first


def _runs(s: Pass, ts: np.ndarray, run: np.ndarray) -> list[Run]:
    """The extremes of each run, from the times and runs of first deliveries."""
    found = []
    bounds = np.searchsorted(s.deliveries_ts, s.data.runs, "right").tolist()
    for number, (low, high) in enumerate(zip([0, *bounds], [*bounds, s.deliveries_ts.size], strict=True)):
        if low < high:
            own = ts[run == number]
            first_min, first_max = (int(own.min()), int(own.max())) if own.size else (FOREVER, 0)
            least, most = int(s.deliveries_ts[low]), int(s.deliveries_ts[high - 1])
            found.append(Run(least, own.size, first_min, first_max, least, most))
    return found


def _overtaking(s: Pass, everything: bool) -> tuple[list[Run], Table, int]:
    life = s.life
    which, first = run_firsts(life)
    heads = which[first]
    why = life.why[heads]
    sure = life.covered[life.of[heads]] | (why & layout.REDELIVERED == 0) | (why & layout.BEFORE_START > 0)
    times, seqs, run = life.ts[heads][sure], life.seq[life.of[heads]][sure], life.run[heads][sure]
    by_time = np.argsort(times, kind="stable")
    times, seqs, run = times[by_time], seqs[by_time], run[by_time]
    runs = _runs(s, times, run)
    again = np.flatnonzero(~first)
    group = np.cumsum(first) - 1
    began = life.ts[heads]
    again = again[sure[group[again]] & (life.why[which[again]] & layout.BEFORE_START == 0)]
    events = which[again]
    start, stop, seq = began[group[again]], life.ts[events], life.seq[life.of[events]]
    low, high = np.searchsorted(times, start, "right"), np.searchsorted(times, stop)
    if ((seqs[1:] > seqs[:-1]) | (run[1:] != run[:-1])).all():
        count = high - low
    else:
        count = count_above(seqs, low, high, seq)
    top = np.zeros(s.data.runs.size + 1, np.int64)
    np.maximum.at(top, run, times)
    late = stop > top[life.run[events]] if not everything else np.ones(stop.size, bool)
    bad = ~late & (count > 0)
    s.results["overtaking"] = Result(int(np.count_nonzero(bad)), again.size, _unknown(life))
    s.add_at_events("overtaking", OVERTAKEN, events[bad], count[bad], start[bad])
    place = s.data.event_places[life.event[events[late]]]
    table = Table({"seq": seq[late], "start": start[late], "stop": stop[late], "count": count[late], "place": place})
    return runs, table, int(count[bad].sum())


OVERTAKEN = "delivered again, after {a} later ones that went out since its first delivery at {b:t}"


def _unknown(life: Lives) -> int:
    return int(np.count_nonzero(~life.covered))         # They may have been delivered.


def _returned_first(s: Pass, runs: list[Run], everything: bool) -> Table:
    w = waits(s.data, s.life)
    low, high = np.searchsorted(s.deliveries_ts, w.start, "right"), np.searchsorted(s.deliveries_ts, w.stop)
    between = np.flatnonzero(high > low)
    passed = np.zeros(w.seq.size, np.int64)
    if between.size:
        passed[between] = count_above(s.deliveries_seq, low[between], high[between], w.seq[between])
    if any(rule.groups for rule in s.data.triple.rules):
        passed[:] = 0                       # Messages of other groups go on.
    bad = passed > 0
    s.results["returned_first"] = Result(int(np.count_nonzero(bad)), w.seq.size, _unknown(s.life))
    s.add("returned_first", "journal", PASSED, w.seq[bad], w.place[bad], w.ts[bad], passed[bad], w.start[bad])
    starts = s.data.runs
    tops = np.zeros(starts.size + 1, np.int64)
    for run in runs:
        tops[np.searchsorted(starts, run.since)] = run.first_max
    late = ~bad & ((w.stop > tops[np.searchsorted(starts, w.start)]) | everything)
    return Table({"seq": w.seq[late], "start": w.start[late], "stop": w.stop[late], "place": w.place[late]})


PASSED = "{a} later ones were delivered before it was, though it had returned at {b:t}"


def _limits(s: Pass) -> Table:
    """Judge the delivery limits; return the messages beyond their limit that have not ended yet."""
    life, nothing = s.life, np.empty(0, np.int64)
    limit = limit_of_each(life, s.data.triple.rules, s.options.delivery_limit)
    if limit is None:
        return Table({"seq": nothing, "ts": nothing, "place": nothing, "waits": nothing.astype(bool)})
    told = failures(s.data, life)
    limited = limit < FOREVER
    most = np.minimum(limit, FOREVER - 2)
    checked = int(np.count_nonzero(limited & (life.record >= 0)))       # Others count where they break the rule.
    unknown = int(np.count_nonzero(~life.covered & limited))
    bad = np.flatnonzero(told.handed > most + 1 + told.doubtful)
    unsure = int(np.count_nonzero(told.handed > most + 1)) - bad.size
    s.results["delivery_limit"] = Result(bad.size, checked, unknown + unsure)
    s.add_at_messages("delivery_limit", "{a} deliveries, with a limit of {b}", bad, life.last_delivered[bad],
                      told.handed[bad], limit[bad])
    over = (told.failed > limit) & life.covered
    open_ = over & (life.settlements == 0) & ~life.out & (life.ended == 0)
    went_on = over & ~open_ & (life.ended != layout.DEAD_LETTERED) & (life.ended != layout.DROPPED)
    broken = np.flatnonzero(went_on & (told.failed - told.doubtful > limit))
    s.results["limit_kept"] = Result(broken.size, checked, unknown + int(np.count_nonzero(went_on)) - broken.size)
    s.add_at_messages("limit_kept", "failed {a} times, with a limit of {b}, and went on", broken,
                    life.last_delivered[broken], told.failed[broken], limit[broken])
    waiting = np.flatnonzero(open_)
    # What failed for the last time at a start dies when its turn comes.
    columns = {"seq": life.seq[waiting], "ts": life.last_delivered[waiting], "place": s.places(waiting),
               "waits": told.cut[waiting] > 0}
    if s.data.events_again.size:
        again = replayed.pending(s.data, s.options.delivery_limit)
        columns = {name: np.concatenate((column, again[name])) for name, column in columns.items()}
    return Table(columns)


def _settled_by_entries(s: Pass) -> None:
    for detail, which, a in settlements.by_entries(s.data, s.life):
        result = s.results["double_settle"]
        s.results["double_settle"] = result._replace(found=result.found + which.size)
        s.add_at_messages("double_settle", detail, which, s.life.settled[which], a)


def _agreement(s: Pass) -> None:
    told = compare(s.data, s.life)
    s.results["agreement"] = Result(sum(which.size for _, which, _, _ in told.found), told.checked,
                                    _unknown(s.life) + told.doubts)
    for detail, which, a, b in told.found:
        s.add_at_messages("agreement", detail, which, s.life.published[which], a, b)


def _lives_again(s: Pass) -> None:
    for one in replayed.judge(s.data, s.options.delivery_limit):
        s.count(one.audit, one.seq.size, one.checked, one.uncovered)
        s.add(one.audit, "journal", one.detail, one.seq, one.place, one.ts, one.a, one.b)


def _levels(s: Pass) -> None:
    sound = np.flatnonzero(s.data.sound)
    found = 0
    for bad, detail in wrong_level(s.data, sound):
        headers, found = s.data.headers[bad], found + bad.size
        s.add("wrong_level", "msgs", detail, headers["seq"].astype(np.int64), s.data.positions[bad], headers["ts"],
              headers["priority"].astype(np.int64), np.full(bad.size, s.data.triple.priority))
    s.results["wrong_level"] = Result(found, sound.size)


def _at_once(s: Pass) -> int:
    """Find events that have the time of a record: all times of a queue differ."""
    data, count = s.data, 0
    for events, places in ((data.events, data.event_places), (data.events_again, data.again_places),
                           (data.aside, data.aside_places)):
        which = np.flatnonzero(np.isin(events["ts"], data.headers["ts"][data.sound])
                               & (events["ts"] > data.power_cuts.max(initial=0)))
        s.add("time_order", "journal", AT_ONCE, events["seq"][which].astype(np.int64), places[which],
              events["ts"][which], events["ts"][which])
        count += which.size
    return count


AT_ONCE = "happened at {a:t}, when a message was stored"


def _words(s: Pass, source: Source) -> None:
    if s.options.from_ns or s.options.to_ns:
        return                  # Some of the records were left out.
    wrong, none = words.wrong(source, s.data), np.zeros(1, np.int64)
    s.results["words"] = Result(len(wrong), int(words.is_judged(s.data)))
    for one in wrong:
        s.add("words", one.kind, one.detail, none, np.array([one.place]), none)


def _orphans(data: SegmentData, life: Lives) -> list[Damage]:
    path = data.triple.journal or ""
    damage = [Damage(path, int(data.event_places[k]), int(data.events["seq"][k]) & FOREVER, int(data.events["ts"][k]),
                     "an event of a message that is not in the segment", ("events",)) for k in life.orphans[:256]]
    if life.orphans.size > 256:
        damage.append(damage[-1]._replace(detail=f"and {life.orphans.size - 256} more events of unknown messages"))
    return damage


def _ids(s: Pass) -> Table:
    """Add the duplicate message ids within the segment; return those ids that other segments may repeat."""
    nothing = np.empty(0, np.int64)
    if not s.options.wants("duplicates"):
        return Table({"hash": nothing.view(np.uint64), "ts": nothing, "seq": nothing, "known": nothing.astype(bool)})
    data = s.data
    rows = np.flatnonzero(data.sound)
    records = reading.Records(data.headers[rows], data.positions[rows], [])
    where = texts(data.octets, records, "message-id")
    where = where.chosen(np.flatnonzero(where.length > 0))
    hash_ = hashes(data.octets, where)
    ts, seq = records.headers["ts"][where.index], records.headers["seq"][where.index].astype(np.int64)
    order = np.argsort(hash_, kind="stable")
    same = hash_[order][1:] == hash_[order][:-1]
    window = int(s.options.duplicate_window_s * 1e9)
    near = same & (ts[order][1:] - ts[order][:-1] <= window)
    bad = np.sort(order[1:][near])
    s.results["duplicates"] = Result(bad.size, hash_.size)
    before = np.full(hash_.size, 0, np.int64)
    before[order[1:][near]] = seq[order[:-1][near]]
    for row in bad[:IDS_SHOWN]:
        one = np.array([row])
        s.add("duplicates", "msgs", f"message-id {text(data.octets, where, int(row))!r}".replace("{", "{{").replace(
            "}", "}}") + " was that of {a} before", seq[one], records.positions[where.index[one]], ts[one], before[one])
    s.add("duplicates", "msgs", "its message-id was that of {a} before", seq[rest := bad[IDS_SHOWN:]],
           records.positions[where.index[rest]], ts[rest], before[rest])
    known = np.zeros(hash_.size, bool)
    known[bad] = True
    edge = np.ones(hash_.size, bool)
    if data.triple.levels == 1 and ts.size:
        edge = (ts - ts[0] <= window) | (ts[-1] - ts <= window)
    return Table({"hash": hash_[edge], "ts": ts[edge], "seq": seq[edge], "known": known[edge]})


def group_keys(s: Pass) -> tuple[np.ndarray, np.ndarray]:
    """The indices (rising) of messages that are in a group, and the hash (i8) of the group of each."""
    data, options, life = s.data, s.options, s.life
    rows = np.flatnonzero(life.record >= 0)
    index = life.record[rows]
    records = reading.Records(data.headers[index], data.positions[index], [])
    header = options.group_header is not None
    where = texts(data.octets, records, options.group_header or options.group_by or ROUTING_KEY, header=header)
    return rows[where.index], hashes(data.octets, where).view(np.int64)


def group_ends(s: Pass, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first delivery and the settlement of messages; FOREVER if they have none."""
    life = s.life
    first = np.where(life.first_sure[which], life.first[which], FOREVER)
    return first, np.where(life.settled[which] > 0, life.settled[which], FOREVER)


def _groups(s: Pass) -> Table:
    nothing = np.empty(0, np.int64)
    none = Table({"hash": nothing, "first": nothing, "settled": nothing})
    if not s.options.wants("group_fifo") or not (s.options.group_header or s.options.group_by):
        return none
    which, key = group_keys(s)
    sure = s.life.covered[which]
    unknown = int(np.count_nonzero(~sure))
    which, key = which[sure], key[sure]
    first, settled = group_ends(s, which)
    bad = which[(first < group_max_before(key, settled)) & (first < FOREVER)]
    s.results["group_fifo"] = Result(bad.size, which.size, unknown)
    s.add_at_messages("group_fifo", "first delivered at {a:t}, before all earlier ones of its group were settled", bad,
                    s.life.first[bad], s.life.first[bad])
    order = np.argsort(key, kind="stable")
    if not key.size:
        return none
    starts = np.flatnonzero(np.append(True, key[order][1:] != key[order][:-1]))
    return Table({"hash": key[order][starts], "first": np.minimum.reduceat(first[order], starts),
                  "settled": np.maximum.reduceat(settled[order], starts)})

"""One triple (segment, acks, journal) read into numpy arrays, together with its damage: ``read_triple``.

The acks are read first, then the journal, and the segment last: even while a broker writes, the event of each entry and
the record of each event are there.  Records, entries and events later than the triple's cut are left out (see ``cut``).
Damaged files and files that cannot be read become ``Damage``; no function here raises an exception for them.  Damaged
records stay in ``records`` with ``sound`` False; damaged entries and events are left out.
"""

from typing import Any, NamedTuple

import numpy as np

from brokerd.audit import headers, metas, notes, unsaid
from brokerd.audit import layout as shapes
from brokerd.audit._journal import NO_PLACES, POWER_LOST_WORDS, Gap, Journal, read_journal, since_replay
from brokerd.audit.fetch import WINDOW, read, read_head, several
from brokerd.audit.files import FOREVER, Damage, Source, Triple
from brokerd.store import format as layout
from brokerd.store import reading

KNOWN_KINDS = np.zeros(256, bool)       # of entries: reason << 4 | type; older brokers wrote no reason
for _type in layout.SETTLING_TYPES | layout.STANDING_TYPES:
    _stop = {layout.RETURNED: layout.CAUSE_TIMEOUT, layout.DEAD_LETTERED: layout.REASON_REMOVED,
             layout.DROPPED: layout.REASON_REMOVED, layout.SET_ASIDE: layout.WAS_OUT,
             layout.PARKED: layout.WAS_OUT}.get(_type, 0)
    KNOWN_KINDS[_type:(_stop << 4 | _type) + 1:16] = True
for _part in range(layout.RETRY_PARTS):
    KNOWN_KINDS[_part << 4 | layout.RETRY_TIME] = True
_DOUBTED_AT = 48                # in the header of acks: octets that version 1 leaves zero
_SINCE_VERSION_2 = (layout.HANDED_OUT, layout.SET_ASIDE)    # types of entries
_SINCE_VERSION_3 = (layout.PARKED, layout.RETRY_TIME, layout.REPLAYED)


class SegmentData(NamedTuple):
    """The content of a triple.

    ``octets`` are the segment's, up to its end.  ``headers`` (dtype ``layout.RECORD``), ``positions`` and ``sound``
    have one row for each record.  ``events`` are the sound ones in the order of the file, without STARTED;
    ``event_places`` are their offsets.  ``runs``: the times at which a broker's life began, rising.  ``begun`` is None
    without a journal.
    ``gone``: the segment was removed before it could be read.  ``entries_written``: how many entries the acks hold,
    damaged ones included.  ``doubted_below``: below this position ``delivered_below`` may have been higher once.
    ``cursor``: where the file has it; ``delivered_below`` is where it stood at the cut.
    ``marks``: the times of all events STARTED.
    ``entries_again``, ``events_again``: of messages that were replayed, from there on; audits judge the first lives.
    ``aside``: the events that tell why a message waits, or waits no more (``layout.ASIDE_EVENTS``), in their order.
    """

    triple: Triple
    number: int
    generation: int
    base_seq: int
    created: int
    octets: bytes
    headers: np.ndarray
    positions: np.ndarray
    sound: np.ndarray
    entries: np.ndarray
    delivered_below: int
    events: np.ndarray
    event_places: np.ndarray
    begun: int | None
    runs: np.ndarray
    gaps: list[Gap]
    damage: list[Damage]
    gone: bool = False
    entries_written: int = 0
    doubted_below: int = 0
    cursor: int = 0
    marks: np.ndarray = np.empty(0, np.int64)
    entries_again: np.ndarray = np.empty(0, shapes.ENTRY)
    events_again: np.ndarray = np.empty(0, shapes.EVENT)
    again_places: np.ndarray = np.empty(0, np.int64)
    aside: np.ndarray = np.empty(0, shapes.EVENT)
    aside_places: np.ndarray = np.empty(0, np.int64)
    is_again: np.ndarray = np.empty(0, bool)    # of all entries in the order of the file: which are ``entries_again``
    cut_off: tuple[unsaid.Unsaid, ...] = ()     # replays of which kill -9 left only the entry
    late: bool = False              # something was left out, because it is later than the cut

    @property
    def power_cuts(self) -> np.ndarray:
        """The times of starts after a loss of power, rising."""
        return np.array([gap.stop for gap in self.gaps if gap.why == POWER_LOST_WORDS], np.int64)

    @property
    def records(self) -> reading.Records:
        """The records in the form of ``store.reading``."""
        return reading.Records(self.headers, self.positions, [])

    @property
    def journal_is_whole(self) -> bool:
        """Whether the journal has every event since the segment was made."""
        return self.begun is not None and self.begun <= self.created and not self.gaps

    def matters(self, what: str) -> bool:
        """Whether damage took some of ``what``: "records", "events" or "acks"."""
        return any(what in damage.matters for damage in self.damage)


class _Acks(NamedTuple):
    delivered: int                  # the cursor has passed all records below this position
    entries: np.ndarray
    generation: int | None = None
    written: int = 0                # entries, damaged ones included
    doubted: int = 0
    head: bytes = b""               # 64 octets, if there are so many
    again: np.ndarray = np.empty(0, shapes.ENTRY)
    is_again: np.ndarray = np.empty(0, bool)


class _Segment(NamedTuple):
    octets: bytes
    records: reading.Records
    sound: np.ndarray
    header: Any                     # dtype SEGMENT, or None
    gone: bool = False


NO_ENTRIES = np.empty(0, shapes.ENTRY)
NO_RECORDS = reading.Records(np.empty(0, shapes.RECORD), NO_PLACES, [])
READINGS_MAX = 3                # of a segment that a broker compacts while it is read


def read_triple(source: Source, triple: Triple, *, crc: bool = True, trust: bool = False) -> SegmentData:
    """Read all three files; ``crc`` False: do not check the sums of records and events.  Raises nothing.

    ``trust``: an earlier reading has checked all sums and found no damage.
    """
    for left in reversed(range(READINGS_MAX if triple.cut is not None else 1)):
        damage: list[Damage] = []
        acks = _read_acks(source, triple, damage)
        journal = read_journal(source, triple, damage, crc=crc and not trust)
        segment = _read_segment(source, triple, damage, crc and not trust, trust)
        header = segment.header
        generation = int(header["generation"]) if header is not None else 0
        if acks.generation is None or header is None or acks.generation == generation or not left:
            break                   # Else a compaction has put one file in place, and is about to put the other.
    whole = _with_new(source, triple, acks.generation, segment.header)
    if whole is not None:
        return read_triple(source, whole, crc=crc, trust=trust)
    acks = _of_this_generation(acks, triple, header, damage)
    base_seq, created = (int(header["base_seq"]), int(header["created"])) if header is not None else (0, 0)
    entries = acks.entries
    positions = segment.records.positions
    if triple.acks is None and journal.events.size:     # A hand-out moves the watermark in the acks, at least.
        path = f"{triple.msgs.rpartition('/')[0]}/{layout.acks_name(triple.number)}"
        damage.append(Damage(path, -1, 0, 0, "is missing: the journal has events that it should know of", ("acks",)))
    if entries.size and not damage:
        orphans = np.flatnonzero(record_at(positions, len(segment.octets), entries["position"]) < 0)
        several(damage, triple.acks or "", orphans, lambda k: Damage(
            triple.acks or "", -1, 0, 0, f"an entry of position {int(entries['position'][k])}, where no record is",
            ("acks",)))
    early, set_aside = acks, NO_PLACES
    if triple.cut is not None and journal.late.size:
        early, set_aside = _without_late_entries(acks, segment, journal)
    journal, cut_off = _with_replays(journal, early, segment)
    _tell_odd_headers(triple, segment, acks, damage)
    damage += notes.contradictions(triple, segment.records, journal, whole=not (
        generation or damage or segment.gone or header is None))
    data = SegmentData(triple, triple.number, generation, base_seq, created, segment.octets, segment.records.headers,
                       positions, segment.sound, early.entries, acks.delivered, journal.events, journal.places,
                       journal.begun, journal.runs, journal.gaps, damage, segment.gone, acks.written, acks.doubted,
                       acks.delivered, journal.marks["ts"], early.again, journal.again, journal.again_places,
                       journal.aside, journal.aside_places, early.is_again, cut_off)
    return data if triple.cut is None else _without_late(data, triple.cut, journal.late, set_aside)


def read_events(source: Source, triple: Triple, *, crc: bool = True) -> Journal:
    """The journal alone.  The other files are read only if the replay of a message seems to be missing."""
    journal = read_journal(source, triple, [], crc=crc)
    if not unsaid.may_miss(journal):
        return journal
    data = read_triple(source, triple, crc=crc)
    return journal._replace(events=data.events, places=data.event_places, again=data.events_again,
                            again_places=data.again_places)


def _with_new(source: Source, triple: Triple, acks: int | None, header: Any) -> Triple | None:
    """The triple of a compaction that kill -9 or a loss of power left with one of its two files in place, as the next
    start finds it: the other is still named ``.new``.  None: that is not so.  ``acks``: their generation."""
    if acks is None or header is None or acks == int(header["generation"]) or triple.acks is None:
        return None
    behind = "acks" if acks < int(header["generation"]) else "msgs"
    dtype, crc_end = {"acks": (shapes.ACKS, layout.ACKS_CRC_END),
                      "msgs": (shapes.SEGMENT, layout.SEGMENT_CRC_END)}[behind]
    path = f"{getattr(triple, behind)}.new"
    head = read_head(source, path)
    if len(head) < layout.HEADER_OCTETS or layout.crc32c(head[:crc_end]) != int(np.frombuffer(head, dtype)[0]["crc"]):
        return None
    same = int(np.frombuffer(head, dtype)[0]["generation"]) == max(acks, int(header["generation"]))
    if not same:
        return None
    return triple._replace(acks=path) if behind == "acks" else triple._replace(msgs=path)


def _with_replays(journal: Journal, acks: _Acks, segment: _Segment) -> tuple[Journal, tuple[unsaid.Unsaid, ...]]:
    if not acks.again.size:
        return journal, ()
    entries = _in_order(acks)
    record = record_at(segment.records.positions, len(segment.octets), entries["position"])
    numbers = segment.records.headers["seq"].astype(np.int64)
    return unsaid.with_replays(journal, entries, np.where(record >= 0, numbers[record], 0) if numbers.size else record)


def _of_this_generation(acks: _Acks, triple: Triple, header: Any, damage: list[Damage]) -> _Acks:
    """The acks, without entries if they are of another generation: their positions are those of other records."""
    if header is None or acks.generation is None or acks.generation == int(header["generation"]):
        return acks
    detail = f"is of generation {acks.generation}, and its segment of generation {int(header['generation'])}"
    damage.append(Damage(triple.acks or "", 16, 0, 0, detail, ("acks",)))
    return _Acks(0, NO_ENTRIES)


def _tell_odd_headers(triple: Triple, segment: _Segment, acks: _Acks, damage: list[Damage]) -> None:
    """What headers say and the records contradict, if these are all there."""
    if segment.header is None or any("records" in each.matters for each in damage):
        return
    odd = headers.of_segment(triple, segment.octets[:layout.HEADER_OCTETS], segment.header, segment.records)
    damage += [Damage(triple.msgs, each.offset, 0, 0, each.detail, ("records",)) for each in odd]
    records = segment.records
    several(damage, triple.msgs, notes.unplaced(segment.octets, records, segment.sound), lambda k: Damage(
        triple.msgs, int(records.positions[k]), int(records.headers["seq"][k]) & FOREVER,
        int(records.headers["ts"][k]), "was redriven, and does not say where it stood in its group", ("records",)))
    if not acks.head or any("acks" in each.matters for each in damage):
        return
    odd = headers.of_compacted(segment.header, segment.records, acks.head, acks.entries)
    damage += [Damage(triple.msgs, each.offset, 0, 0, each.detail, ("records",)) for each in odd]
    odd = headers.of_cursors(triple, acks.head, segment.records.positions, len(segment.octets))
    damage += [Damage(triple.acks or "", each.offset, 0, 0, each.detail, ("acks",)) for each in odd]


def _in_order(acks: _Acks) -> np.ndarray:
    """All entries in the order of the file."""
    if not acks.again.size:
        return acks.entries
    entries = np.empty(acks.is_again.size, shapes.ENTRY)
    entries[acks.is_again], entries[~acks.is_again] = acks.again, acks.entries
    return entries


def _without_late_entries(acks: _Acks, segment: _Segment, journal: Journal) -> tuple[_Acks, np.ndarray]:
    """The acks without the entries that are later than the cut; and the positions of what these set aside.

    Entries have no times, but stand in their order.  A message's returns, hand-outs, replays and settlements that the
    journal does not have by then are the first ones to leave out, and all entries behind them; so is what sets it aside
    in place of a return.  But the entry of an end that the journal has is earlier, and so are all before that: a kill
    may have left one of them without its event."""
    entries = _in_order(acks)
    positions, headers_ = segment.records.positions, segment.records.headers
    record = record_at(positions, len(segment.octets), entries["position"])
    seq = np.where(record >= 0, headers_["seq"][record] if headers_.size else 0, 0).astype(np.uint64)
    late, type_ = journal.late, np.where(record >= 0, entries["kind"] & 0x0F, 0)
    mine = np.isin(seq, np.unique(late["seq"]))
    mine &= ~np.isin(seq, _replayed_untold(seq[type_ == layout.REPLAYED], journal))
    is_again = acks.is_again if acks.again.size else np.zeros(entries.size, bool)
    own, with_count = seq << np.uint64(1) | is_again, _with_count(seq, is_again, entries["count"])
    events = np.concatenate((journal.events, journal.again))
    later = np.arange(events.size) >= journal.events.size
    told, told_count = events["seq"] << np.uint64(1) | later, _with_count(events["seq"], later, events["count"])
    known, unknown = -1, [np.array([entries.size])]
    for kind, event in ((layout.REPLAYED, layout.EVENT_REPLAYED), *((each, each) for each in layout.SETTLING_TYPES)):
        some = np.flatnonzero(type_ == kind)
        is_told = _is_told(own[some], told[events["type"] == event])
        known = max(known, int(some[is_told].max(initial=-1)))
        unknown.append(some[~is_told & mine[some]])
    back = events["type"] == layout.RETURNED
    some = np.flatnonzero(type_ == layout.RETURNED)
    unknown.append(some[~_is_told(own[some], told[back]) & mine[some]])
    out = (events["type"] == layout.DELIVERED) & (events["reason"] & layout.WITHOUT_ACK == 0)
    some = np.flatnonzero(type_ == layout.HANDED_OUT)           # The first hand-out has no entry.
    unknown.append(some[~_is_told(with_count[some], told_count[out]) & mine[some]])
    some = np.flatnonzero(np.isin(type_, layout.ASIDE_TYPES) & mine)
    returned = late[late["type"] == layout.RETURNED]
    some = some[np.isin(seq[some] << np.uint64(16) | entries["count"][some],
                        returned["seq"] << np.uint64(16) | returned["count"])]
    unknown.append(some[~_is_told(with_count[some], told_count[back])])
    every = np.concatenate(unknown)
    first = int(every[every > known].min())
    set_aside = entries["position"][first:][np.isin(entries["kind"][first:] & 0x0F, layout.ASIDE_TYPES)]
    entries, is_again = entries[:first], is_again[:first]
    return acks._replace(entries=entries[~is_again], again=entries[is_again], is_again=is_again), set_aside


def _replayed_untold(replayed: np.ndarray, journal: Journal) -> np.ndarray:
    """Of which messages the acks tell more replays than the journal: a kill came between.  It is not known which of
    their events belong to which entries."""
    both = np.concatenate((journal.again, journal.late))
    told = np.sort(both["seq"][both["type"] == layout.EVENT_REPLAYED])
    messages, counts = np.unique(replayed, return_counts=True)
    return messages[counts > np.searchsorted(told, messages, "right") - np.searchsorted(told, messages)]


def _with_count(seq: np.ndarray, later: np.ndarray, count: np.ndarray) -> np.ndarray:
    return (seq << np.uint64(1) | later) << np.uint64(16) | count


def _is_told(some: np.ndarray, told: np.ndarray) -> np.ndarray:
    """Which of these are, with all earlier ones like them, no more than those that are told."""
    told, order = np.sort(told), np.argsort(some, kind="stable")
    own = some[order]
    found = np.empty(own.size, bool)
    found[order] = np.arange(own.size) - np.searchsorted(own, own) < (
        np.searchsorted(told, own, "right") - np.searchsorted(told, own))
    return found


def _without_late(data: SegmentData, cut: int, late: np.ndarray, set_aside: np.ndarray) -> SegmentData:
    """Leave out the records that are later than ``cut``; ``late`` are the events that are.  Put the cursor back to
    where it stood then, or further.  ``set_aside``: the positions of what has been set aside since then."""
    below = min([data.delivered_below, *set_aside.tolist()])
    # What the cursor has passed since has its first event since then, or an entry that says that it was set aside.
    since = data.positions[np.isin(data.headers["seq"], np.setdiff1d(late["seq"], data.events["seq"]))]
    below = min([below, *since[:1].tolist()])
    # But it had passed what had gone out: a message may be set aside, or have its first event here, long after that.
    out = data.positions[np.isin(data.headers["seq"], data.events["seq"][data.events["type"] == layout.DELIVERED])]
    below = min(data.delivered_below, max([below, *(out[-1:] + 1).tolist()]))
    keep = data.headers["ts"] <= cut
    return data._replace(headers=data.headers[keep], positions=data.positions[keep], sound=data.sound[keep],
                         delivered_below=below, late=bool(late.size) or not keep.all())


def read_numbers(data: SegmentData) -> np.ndarray:
    """The sequence numbers of the records, rising; also of damaged records if their numbers are plausible."""
    seq = data.headers["seq"].astype(np.int64)
    if data.sound.all():
        return seq if seq.size < 2 or (seq[1:] > seq[:-1]).all() else np.unique(seq)
    good = seq[data.sound]
    if not good.size:
        return good
    place = np.searchsorted(np.flatnonzero(data.sound), np.arange(seq.size))
    before = np.where(place > 0, good[np.maximum(place - 1, 0)], data.base_seq - 1)
    after = np.where(place < good.size, good[np.minimum(place, good.size - 1)], good[-1] + 2)
    return np.unique(seq[data.sound | ((seq > before) & (seq < after))])


def record_at(positions: np.ndarray, octets: int, wanted: np.ndarray) -> np.ndarray:
    """The index of the record at each of the ``wanted`` positions; -1 if no record begins there."""
    index = np.full(octets // 8 + 1, -1, np.int32)
    index[positions >> 3] = np.arange(positions.size, dtype=np.int32)
    found = index[np.minimum(wanted >> 3, octets // 8)]
    return np.where(wanted & 7 == 0, found, -1)



# --- the segment


def _read_segment(source: Source, triple: Triple, damage: list[Damage], crc: bool, trust: bool) -> _Segment:
    matters = ("records",)
    nothing = _Segment(b"", NO_RECORDS, np.empty(0, bool), None)
    head = read(source, triple.msgs, damage, matters, 0, layout.HEADER_OCTETS)
    if head is None:
        if triple.settled and not any(d.file == triple.msgs for d in damage):
            damage.append(Damage(triple.msgs, -1, 0, 0, "is not there any more", matters))
        return nothing._replace(gone=not damage)
    if len(head) < layout.HEADER_OCTETS:
        damage.append(Damage(triple.msgs, len(head), 0, 0, f"has {len(head)} octets: not even a header", matters))
        return nothing
    header, end = _segment_header(head, triple, damage)
    octets = read(source, triple.msgs, damage, matters, 0, end if end is not None else -1)
    if octets is None:
        return nothing
    if end is not None and len(octets) < end:
        damage.append(Damage(triple.msgs, len(octets), 0, 0,
                             f"half copied: {len(octets)} of the {end} octets that its header promises", matters))
        octets = octets[:len(octets) & ~7]
    elif end is None:
        octets = octets[:len(octets) & ~7]
        if not any(octets[:4096]):
            damage[:] = [d for d in damage if d.file != triple.msgs]     # The broker has just made it: it is empty.
            return nothing
    if header is None:          # The sums need the segment's number, which the file's name tells too.
        octets = head[:8] + triple.number.to_bytes(8, "little") + octets[16:]
    records = reading.scan_records(octets, len(octets))
    if crc:
        sound = check_records(octets, records, triple.number)
    elif trust:
        sound = np.ones(records.positions.size, bool)
    else:                       # A record that no broker can have written is damaged, even without checking sums.
        least = int(header["base_seq"]) if header is not None else 1
        seq, ts = records.headers["seq"], records.headers["ts"]
        sound = (seq >= least) & (seq - np.uint64(least) < 1 << 32) & (ts > 0)
    if end is None:
        records, sound = _without_stale_end(records, sound, octets, crc, triple.number)
    _tell_records(triple, octets, records, sound, damage, crc=crc)
    return _Segment(octets, records, sound, header)


def _segment_header(head: bytes, triple: Triple, damage: list[Damage]) -> tuple[Any, int | None]:
    """The header, None if it is damaged; and the end of the records, None if it is not known."""
    header = np.frombuffer(head, shapes.SEGMENT)[0]
    wrong = None
    if int(header["magic"]) != layout.SEGMENT_MAGIC:
        wrong = "does not begin as a segment does"
    elif int(header["version"]) > layout.SEGMENT_VERSION:
        wrong = f"is of version {int(header['version'])}, of a later broker"
    elif layout.crc32c(head[:layout.SEGMENT_CRC_END]) != int(header["crc"]):
        wrong = "has a damaged header"
    elif int(header["version"]) == 0:
        wrong = "is of version 0, which no broker writes"
    elif int(header["number"]) != triple.number:
        wrong = f"says that it is number {int(header['number'])}"
    if wrong is not None:
        damage.append(Damage(triple.msgs, 0, 0, 0, wrong, ("records",)))
        return None, None
    end = int(header["end"])
    if not layout.word_ok(end, int(header["end_complement"])) or end < layout.HEADER_OCTETS or end % 8:
        damage.append(Damage(triple.msgs, 40, 0, 0, "does not say where its records end", ("records",)))
        return header, None
    return header, end


def check_records(octets: bytes, records: reading.Records, number: int) -> np.ndarray:
    """Which records are whole: their CRC is right, and so are the lengths inside.  The compiled plane looks, if it is
    installed."""
    try:
        from brokerd.plane import scan_segment  # A Spark worker may have only this package and numpy.
    except ImportError:
        return _check_without_plane(octets, records, number)
    positions, view = records.positions, memoryview(octets)
    sound = np.zeros(positions.size, bool)
    ends = (positions + records.headers["length"].astype(np.int64) + 7) & ~7
    last = np.flatnonzero(np.append(ends[:-1] != positions[1:], True)[:positions.size])     # of each run without a gap
    stops = ends[last[np.searchsorted(last, np.arange(positions.size))]]
    k = 0
    while k < positions.size:           # Once for each record that is not whole, and for each gap.
        # What stands in a gap is no record, and may have any length: its octets would be summed up each time.
        good = scan_segment(view[:int(stops[k])], number, int(positions[k]))[0]
        behind = int(np.searchsorted(positions, good))
        sound[k:behind] = True
        k = max(behind, k + 1)
    return sound


def _check_without_plane(octets: bytes, records: reading.Records, number: int) -> np.ndarray:
    sound = np.zeros(records.positions.size, bool)
    inside, some = _inside(octets, records, ~sound)
    sound[inside] = reading.record_checks(octets, some, number) & metas.are_whole(octets, some)
    return sound


def _inside(octets: bytes, records: reading.Records, which: np.ndarray) -> tuple[np.ndarray, reading.Records]:
    """The indices of those that lie inside ``octets`` as long as they say they are, and these records."""
    lengths = records.headers["length"].astype(np.int64)
    found = np.flatnonzero(which & (lengths >= layout.HEADER_OCTETS) & (records.positions + lengths <= len(octets)))
    return found, reading.Records(records.headers[found], records.positions[found], [])


def _without_stale_end(records: reading.Records, sound: np.ndarray, octets: bytes, crc: bool,
                       number: int) -> tuple[reading.Records, np.ndarray]:
    """Drop the records after the last sound one, because the header does not say where the records end: an earlier use
    of the file has left them."""
    if not crc:
        sound = check_records(octets, records, number)
    whole = np.flatnonzero(sound)
    count = int(whole[-1]) + 1 if whole.size else 0
    positions = records.positions[:count]
    stop = 0
    if count:
        stop = layout.round_up(int(positions[-1]) + int(records.headers["length"][count - 1]))
    gaps = [(a, min(b, stop)) for a, b in records.gaps if a < stop]
    return reading.Records(records.headers[:count], positions, gaps), sound[:count]


def _with_odd_lengths(octets: bytes, records: reading.Records, damaged: np.ndarray, number: int) -> np.ndarray:
    """Which of the damaged records have the right CRC."""
    odd = np.zeros(damaged.size, bool)
    if damaged.any():
        inside, some = _inside(octets, records, damaged)
        odd[inside] = reading.record_checks(octets, some, number)
    return odd


def _tell_records(triple: Triple, octets: bytes, records: reading.Records, sound: np.ndarray, damage: list[Damage], *,
                  crc: bool) -> None:
    for start, stop in records.gaps[:WINDOW]:
        damage.append(Damage(triple.msgs, start, 0, 0, f"{stop - start} octets that hold no record", ("records",)))
    if len(records.gaps) > WINDOW:
        damage.append(Damage(triple.msgs, records.gaps[WINDOW][0], 0, 0,
                             f"{len(records.gaps) - WINDOW} more places that hold no record", ("records",)))
    def tell(which: np.ndarray, words: str) -> None:
        several(damage, triple.msgs, np.flatnonzero(which), lambda k: Damage(
            triple.msgs, int(records.positions[k]), int(records.headers["seq"][k]) & FOREVER,
            int(records.headers["ts"][k]), words, ("records",)))

    odd = _with_odd_lengths(octets, records, ~sound, triple.number) if crc else np.zeros_like(sound)
    tell(~sound & ~odd, "a record with a wrong CRC")
    tell(odd, "a record with wrong lengths inside")
    strange = np.zeros_like(sound)
    strange[headers.of_records(records, sound)] = True
    tell(strange, "a record of a kind or with flags that no broker writes")
    for field in ("seq", "ts"):
        values = records.headers[field][sound]
        steps = np.flatnonzero(values[1:] <= values[:-1])
        if steps.size:
            where = np.flatnonzero(sound)[steps[0] + 1]
            place = int(records.positions[where])
            damage.append(Damage(triple.msgs, place, int(records.headers["seq"][where]) & FOREVER, 0,
                                 f"{steps.size} records with a {field} not above that of the one before",
                                 ("records",)))


# --- the acks


def _read_acks(source: Source, triple: Triple, damage: list[Damage]) -> _Acks:
    matters = ("acks",)
    if triple.acks is None:
        return _Acks(0, NO_ENTRIES)   # The file is not made yet.  If it is lost, read_triple() says so.
    octets = read(source, triple.acks, damage, matters)
    if octets is None or not any(octets[:4096]):
        return _Acks(0, NO_ENTRIES)
    if len(octets) < layout.HEADER_OCTETS:
        damage.append(Damage(triple.acks, len(octets), 0, 0, f"has {len(octets)} octets: not even a header", matters))
        return _Acks(0, NO_ENTRIES)
    header = np.frombuffer(octets, shapes.ACKS, 1)[0]
    if int(header["magic"]) == layout.ACKS_MAGIC and int(header["version"]) > layout.ACKS_VERSION:
        damage.append(Damage(triple.acks, 0, 0, 0, f"is of version {int(header['version'])}, of a later broker",
                             matters))
        return _Acks(0, NO_ENTRIES)
    if (int(header["magic"]) != layout.ACKS_MAGIC or int(header["number"]) != triple.number
            or layout.crc32c(octets[:layout.ACKS_CRC_END]) != int(header["crc"])):
        damage.append(Damage(triple.acks, 0, 0, 0, "has a damaged header", matters))
    found = reading.read_entries(octets[:len(octets) & ~7], triple.number)
    if _is_of_no_version(octets, int(header["version"]), found.entries["kind"] & 0x0F):
        damage.append(Damage(triple.acks, 4, 0, 0, f"says version {int(header['version'])}, and is not of that version",
                             matters))
    if found.damaged:
        damage.append(Damage(triple.acks, -1, 0, 0, f"{_entries(found.damaged)} with a wrong check", matters))
    unknown = int(np.count_nonzero(~KNOWN_KINDS[found.entries["kind"]]))
    if unknown:
        damage.append(Damage(triple.acks, -1, 0, 0, f"{_entries(unknown)} of a kind that no broker writes",
                             matters))
    said = int(header["entries"])
    if layout.word_ok(said, int(header["entries_complement"])) and said > found.written:
        damage.append(Damage(triple.acks, layout.HEADER_OCTETS + found.written * layout.ENTRY_OCTETS, 0, 0,
                             f"{said - found.written} of {said} entries are missing", matters))
    delivered = int(header["delivered"])
    known = layout.word_ok(delivered, int(header["delivered_complement"]))
    whole = layout.crc32c(octets[:layout.ACKS_CRC_END]) == int(header["crc"])
    doubted = int(header["doubted"])
    damage += [Damage(triple.acks, odd.offset, 0, 0, odd.detail, matters)
               for odd in headers.of_acks(triple, octets[:layout.HEADER_OCTETS])]
    again = since_replay(found.entries["position"], found.entries["kind"] & 0x0F == layout.REPLAYED)
    return _Acks(delivered if known else 0, found.entries[~again],
                 int(header["generation"]) if whole else None, found.written,
                 doubted if layout.word_ok(doubted, int(header["doubted_complement"])) else 0,
                 octets[:layout.HEADER_OCTETS], found.entries[again], again)


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


def _is_of_no_version(octets: bytes, version: int, types: np.ndarray) -> bool:
    """Whether acks say version 0, which no broker writes, or an earlier version and have what came with a later one."""
    if version == 1 and (any(octets[_DOUBTED_AT:_DOUBTED_AT + 8]) or bool(np.isin(types, _SINCE_VERSION_2).any())):
        return True
    return version == 0 or (version < layout.ACKS_VERSION and bool(np.isin(types, _SINCE_VERSION_3).any()))


def read_records(source: Source, triple: Triple, *, crc: bool = True,
                 trust: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The headers (dtype ``layout.RECORD``) and positions of the sound records alone.  Raises nothing.

    ``trust``: an earlier reading has checked all sums and found no damage.
    """
    segment = _read_segment(source, triple, [], crc and not trust, trust)
    keep = segment.sound
    if triple.cut is not None:
        keep = keep & (segment.records.headers["ts"] <= triple.cut)
    return segment.records.headers[keep], segment.records.positions[keep]

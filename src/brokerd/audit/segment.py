"""One triple (segment, acks, journal) read into numpy arrays, together with its damage: ``read_triple``.

The journal is read first and the segment last, so that the record of each event is there even while a broker writes.
Damaged files and files that cannot be read become ``Damage``; nothing here raises for them.  Damaged records stay in
``records`` with ``sound`` False; damaged entries and events are left out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from brokerd.audit import layout as shapes
from brokerd.audit.files import FOREVER, Damage, Source, Triple, reason
from brokerd.store import format as layout
from brokerd.store import reading

WINDOW = 256                    # findings of one kind and file that are reported one by one
POWER_LOST_WORDS = "power was lost"
RUNS = (layout.RESTARTED, layout.POWER_LOST, layout.SWITCHED_ON)    # STARTED events with which a new run begins
SWITCHED_OFF = 4                # a STARTED event with which a journal ends, until it is switched on again


class Gap(NamedTuple):
    """A stretch of time (ns, without its two ends) from which events may be missing."""

    start: int
    stop: int
    why: str


class SegmentData(NamedTuple):
    """The content of a triple.

    ``octets`` are the segment's, up to its end.  ``headers`` (dtype ``layout.RECORD``), ``positions`` and ``sound``
    have one row for each record.  ``events`` are the sound ones in the order of the file, without STARTED;
    ``event_places`` are their offsets.  ``runs``: the times at which a broker's life began, rising.  ``begun`` is None
    without a journal.
    ``gone``: the segment was removed before it could be read.
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

    @property
    def power_cuts(self) -> np.ndarray:
        """The times of starts after a loss of power, rising."""
        return np.array([gap.stop for gap in self.gaps if gap.why == POWER_LOST_WORDS], np.int64)

    @property
    def records(self) -> reading.Records:
        """The records in the form of ``store.reading``."""
        return reading.Records(self.headers, self.positions, [])

    def matters(self, what: str) -> bool:
        """Whether damage took some of ``what``: "records", "events" or "acks"."""
        return any(what in damage.matters for damage in self.damage)


class _Journal(NamedTuple):
    begun: int | None
    events: np.ndarray
    places: np.ndarray
    runs: np.ndarray
    gaps: list[Gap]


class _Segment(NamedTuple):
    octets: bytes
    records: reading.Records
    sound: np.ndarray
    header: Any                     # dtype SEGMENT, or None
    gone: bool = False


NO_EVENTS = np.empty(0, shapes.EVENT)
NO_ENTRIES = np.empty(0, shapes.ENTRY)
NO_PLACES = np.empty(0, np.int64)
NO_RECORDS = reading.Records(np.empty(0, shapes.RECORD), NO_PLACES, [])
NO_JOURNAL = _Journal(None, NO_EVENTS, NO_PLACES, NO_PLACES, [])


def read_triple(source: Source, triple: Triple, *, crc: bool = True) -> SegmentData:
    """Read all three files; ``crc`` False: do not check the sums of records and events.  Raises nothing."""
    damage: list[Damage] = []
    journal = read_journal(source, triple, damage, crc=crc)
    delivered, entries = _read_acks(source, triple, damage)
    segment = _read_segment(source, triple, damage, crc)
    header = segment.header
    generation = int(header["generation"]) if header is not None else 0
    base_seq, created = (int(header["base_seq"]), int(header["created"])) if header is not None else (0, 0)
    positions = segment.records.positions
    if triple.acks is None and (journal.events["type"] != layout.DELIVERED).any():
        path = f"{triple.msgs.rpartition('/')[0]}/{layout.acks_name(triple.number)}"
        damage.append(Damage(path, -1, 0, 0, "is missing: the journal has settlements that it should hold", ("acks",)))
    if entries.size and not damage:
        orphans = np.flatnonzero(record_at(positions, len(segment.octets), entries["position"]) < 0)
        _several(damage, triple.acks or "", orphans, lambda k: Damage(
            triple.acks or "", -1, 0, 0, f"an entry of position {int(entries['position'][k])}, where no record is",
            ("acks",)))
    return SegmentData(triple, triple.number, generation, base_seq, created, segment.octets, segment.records.headers,
                       positions, segment.sound, entries, delivered, journal.events, journal.places, journal.begun,
                       journal.runs, journal.gaps, damage, segment.gone)


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


def _several(damage: list[Damage], path: str, places: np.ndarray, one: Callable[[int], Damage]) -> None:
    """Add a finding for each of the first ``WINDOW`` places, and one finding for the rest."""
    damage += [one(int(place)) for place in places[:WINDOW]]
    if places.size > WINDOW:
        last = damage[-1]
        damage.append(last._replace(detail=f"and {places.size - WINDOW} more like the one before"))


def other_place(path: str) -> str:
    """The other place where a file may be, because the broker moves it to ``kept``: in that folder, or outside."""
    folder, _, name = path.rpartition("/")
    if folder == layout.KEPT_FOLDER or folder.endswith("/" + layout.KEPT_FOLDER):
        above = folder[:-len(layout.KEPT_FOLDER)].rstrip("/")
        return f"{above}/{name}" if above else name
    return f"{folder}/{layout.KEPT_FOLDER}/{name}" if folder else f"{layout.KEPT_FOLDER}/{name}"


def _read(source: Source, path: str, damage: list[Damage], matters: tuple[str, ...], start: int = 0,
          length: int = -1) -> bytes | None:
    """The octets of a file, which may just have moved; None: it cannot be read, and ``damage`` says so if it must."""
    for place in (path, other_place(path)):
        try:
            return source.read(place, start, length)
        except FileNotFoundError:
            continue
        except (OSError, MemoryError, OverflowError) as error:
            words = reason(error) if isinstance(error, OSError) else str(error)
            damage.append(Damage(path, -1, 0, 0, f"cannot be read: {words}", matters))
            return None
    return None


# --- the segment


def _read_segment(source: Source, triple: Triple, damage: list[Damage], crc: bool) -> _Segment:
    matters = ("records",)
    nothing = _Segment(b"", NO_RECORDS, np.empty(0, bool), None)
    head = _read(source, triple.msgs, damage, matters, 0, layout.HEADER_OCTETS)
    if head is None:
        if triple.settled and not any(d.file == triple.msgs for d in damage):
            damage.append(Damage(triple.msgs, -1, 0, 0, "is not there any more", matters))
        return nothing._replace(gone=not damage)
    if len(head) < layout.HEADER_OCTETS:
        damage.append(Damage(triple.msgs, len(head), 0, 0, f"has {len(head)} octets: not even a header", matters))
        return nothing
    header, end = _segment_header(head, triple, damage)
    octets = _read(source, triple.msgs, damage, matters, 0, end if end is not None else -1)
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
    else:                       # A record that no broker can have written is damaged, even without checking sums.
        least = int(header["base_seq"]) if header is not None else 1
        seq, ts = records.headers["seq"], records.headers["ts"]
        sound = (seq >= least) & (seq - np.uint64(least) < 1 << 32) & (ts > 0)
    if end is None:
        records, sound = _without_stale_end(records, sound, octets, crc, triple.number)
    _tell_records(triple, records, sound, damage)
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
    """Which records have the right CRC.  The compiled plane, if installed, checks up to the first damaged one."""
    good = layout.HEADER_OCTETS
    try:
        from brokerd.plane import scan_segment  # A Spark worker may have only this package and numpy.
    except ImportError:
        pass
    else:
        good = scan_segment(octets, number, layout.HEADER_OCTETS)[0]
    sound = records.positions < good
    rest = np.flatnonzero(~sound)
    if rest.size:
        some = reading.Records(records.headers[rest], records.positions[rest], [])
        whole = (some.headers["length"] >= layout.HEADER_OCTETS) & (
            some.positions + some.headers["length"].astype(np.int64) <= len(octets))
        sound[rest[whole]] = reading.record_checks(
            octets, reading.Records(some.headers[whole], some.positions[whole], []), number)
    return sound


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


def _tell_records(triple: Triple, records: reading.Records, sound: np.ndarray, damage: list[Damage]) -> None:
    for start, stop in records.gaps[:WINDOW]:
        damage.append(Damage(triple.msgs, start, 0, 0, f"{stop - start} octets that hold no record", ("records",)))
    if len(records.gaps) > WINDOW:
        damage.append(Damage(triple.msgs, records.gaps[WINDOW][0], 0, 0,
                             f"{len(records.gaps) - WINDOW} more places that hold no record", ("records",)))
    _several(damage, triple.msgs, np.flatnonzero(~sound), lambda k: Damage(
        triple.msgs, int(records.positions[k]), int(records.headers["seq"][k]) & FOREVER,
        int(records.headers["ts"][k]), "a record with a wrong CRC", ("records",)))
    headers = records.headers[sound]
    for field in ("seq", "ts"):
        steps = np.flatnonzero(headers[field][1:] <= headers[field][:-1])
        if steps.size:
            place = int(records.positions[sound][steps[0] + 1])
            damage.append(Damage(triple.msgs, place, int(headers["seq"][steps[0] + 1]) & FOREVER, 0,
                                 f"{steps.size} records with a {field} not above that of the one before",
                                 ("records",)))


# --- the acks


def _read_acks(source: Source, triple: Triple, damage: list[Damage]) -> tuple[int, np.ndarray]:
    """The position below which the cursor has passed all records, and the entries."""
    matters = ("acks",)
    if triple.acks is None:
        return 0, NO_ENTRIES    # The file is not made yet.  If it is lost, read_triple() says so.
    octets = _read(source, triple.acks, damage, matters)
    if octets is None or not any(octets[:4096]):
        return 0, NO_ENTRIES
    if len(octets) < layout.HEADER_OCTETS:
        damage.append(Damage(triple.acks, len(octets), 0, 0, f"has {len(octets)} octets: not even a header", matters))
        return 0, NO_ENTRIES
    header = np.frombuffer(octets, shapes.ACKS, 1)[0]
    if int(header["magic"]) == layout.ACKS_MAGIC and int(header["version"]) > layout.ACKS_VERSION:
        damage.append(Damage(triple.acks, 0, 0, 0, f"is of version {int(header['version'])}, of a later broker",
                             matters))
        return 0, NO_ENTRIES
    if (int(header["magic"]) != layout.ACKS_MAGIC or int(header["number"]) != triple.number
            or layout.crc32c(octets[:layout.ACKS_CRC_END]) != int(header["crc"])):
        damage.append(Damage(triple.acks, 0, 0, 0, "has a damaged header", matters))
    found = reading.read_entries(octets[:len(octets) & ~7], triple.number)
    if found.damaged:
        damage.append(Damage(triple.acks, -1, 0, 0, f"{found.damaged} entries with a wrong check", matters))
    said = int(header["entries"])
    if layout.word_ok(said, int(header["entries_complement"])) and said > found.written:
        damage.append(Damage(triple.acks, layout.HEADER_OCTETS + found.written * layout.ENTRY_OCTETS, 0, 0,
                             f"{said - found.written} of {said} entries are missing", matters))
    delivered = int(header["delivered"])
    return delivered if layout.word_ok(delivered, int(header["delivered_complement"])) else 0, found.entries


# --- the journal


def read_journal(source: Source, triple: Triple, damage: list[Damage], *, crc: bool = True) -> _Journal:
    """The events of a triple, and the gaps of time from which events may be missing."""
    matters = ("events",)
    if triple.journal is None:
        return NO_JOURNAL
    path = triple.journal
    head = _read(source, path, damage, matters, 0, layout.HEADER_OCTETS)
    if head is None:
        return NO_JOURNAL
    if len(head) < layout.HEADER_OCTETS:
        damage.append(Damage(path, len(head), 0, 0, f"has {len(head)} octets: not even a header", matters))
        return NO_JOURNAL
    if not any(head):
        return NO_JOURNAL       # The broker has just made it.
    header = np.frombuffer(head, shapes.JOURNAL)[0]
    if (int(header["magic"]) != layout.JOURNAL_MAGIC or int(header["number"]) != triple.number
            or int(header["version"]) > layout.JOURNAL_VERSION or layout.crc32c(head[:24]) != int(header["crc"])):
        damage.append(Damage(path, 0, 0, 0, "has a damaged header, or is of another segment or version", matters))
        return NO_JOURNAL
    said, known = int(header["events"]), layout.word_ok(int(header["events"]), int(header["events_complement"]))
    octets = _read(source, path, damage, matters, layout.HEADER_OCTETS, said * layout.EVENT_OCTETS if known else -1)
    events = np.frombuffer(octets or b"", shapes.EVENT, len(octets or b"") // layout.EVENT_OCTETS)
    gaps: list[Gap] = []
    begun = int(header["begun"])
    if known and events.size < said:
        damage.append(Damage(path, layout.HEADER_OCTETS + events.size * layout.EVENT_OCTETS, 0, 0,
                             f"half copied: {events.size} of {said} events", matters))
        gaps.append(Gap(int(events["ts"][-1]) if events.size else begun, FOREVER, "the journal is half copied"))
    elif not known:
        damage.append(Damage(path, 32, 0, 0, "does not say how many events it holds", matters))
    lost = int(header["lost"])
    if lost or not layout.word_ok(lost, int(header["lost_complement"])):
        gaps.append(Gap(begun, FOREVER, "a full disk would not take events"))
    return _sound_events(triple, events, begun, gaps, damage, crc or not known, known)


def _sound_events(triple: Triple, events: np.ndarray, begun: int, gaps: list[Gap], damage: list[Damage], crc: bool,
                  known: bool) -> _Journal:
    right = (events["type"] >= layout.ACKED) & (events["type"] <= layout.STARTED)
    if crc:
        right &= shapes.event_checks(events, triple.number)
    if not known:
        last = np.flatnonzero(right)
        events, right = events[:int(last[-1]) + 1 if last.size else 0], right[:int(last[-1]) + 1 if last.size else 0]
    places = layout.HEADER_OCTETS + layout.EVENT_OCTETS * np.arange(events.size, dtype=np.int64)
    sound, at = (events, places) if right.all() else (events[right], places[right])
    started = sound["type"] == layout.STARTED
    starts = sound[started]
    gaps += _gaps(starts)
    if not right.all():
        _tell_bad_events(triple, np.flatnonzero(~right), events, right, gaps, damage)
    if starts.size:
        sound, at = sound[~started], at[~started]
    back = np.flatnonzero(sound["ts"][1:] <= sound["ts"][:-1])
    if back.size:
        damage.append(Damage(triple.journal or "", int(at[back[0] + 1]), int(sound["seq"][back[0] + 1]) & FOREVER,
                             int(sound["ts"][back[0] + 1]),
                             f"{back.size} events that are not later than the one before", ("events",)))
    runs = np.unique(starts["ts"][np.isin(starts["reason"], RUNS)])
    return _Journal(begun, sound, at, runs, gaps)


def _gaps(starts: np.ndarray) -> list[Gap]:
    gaps = []
    whys = {layout.POWER_LOST: POWER_LOST_WORDS, layout.SWITCHED_ON: "the journal was switched off"}
    for start in starts:
        why = whys.get(int(start["reason"]))
        if why is not None:
            gaps.append(Gap(int(start["seq"]), int(start["ts"]), why))
    if starts.size and int(starts[-1]["reason"]) == SWITCHED_OFF:
        gaps.append(Gap(int(starts[-1]["ts"]), FOREVER, "the journal was switched off"))
    return gaps


def _tell_bad_events(triple: Triple, bad: np.ndarray, events: np.ndarray, right: np.ndarray, gaps: list[Gap],
                     damage: list[Damage]) -> None:
    """Events with a wrong CRC are damage, unless a loss of power explains them."""
    good = np.flatnonzero(right)
    after = np.searchsorted(good, bad)
    lost = np.flatnonzero(right & (events["type"] == layout.STARTED) & (events["reason"] == layout.POWER_LOST))
    unexplained = []
    for index, following in zip(bad.tolist(), after.tolist(), strict=True):
        later = int(events["ts"][good[following]]) if following < good.size else FOREVER
        starts = lost[lost > index]
        if starts.size and int(events["seq"][starts[0]]) < later:
            continue
        earlier = int(events["ts"][good[following - 1]]) if following else 0
        gap = Gap(earlier, later, "events are damaged")
        if not gaps or gaps[-1] != gap:
            gaps.append(gap)
        unexplained.append(index)
    _several(damage, triple.journal or "", np.array(unexplained, np.int64), lambda k: Damage(
        triple.journal or "", layout.HEADER_OCTETS + layout.EVENT_OCTETS * k, 0, 0, "an event with a wrong CRC",
        ("events",)))

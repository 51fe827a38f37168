"""Reads segments, acks files and journals with numpy, many records at a time.

``store.format`` says what the octets mean.  This module only finds them quickly in a file that was read or mapped
whole.  Importing this module does not import numpy: the functions that need numpy import it.  So a start that recovers
nothing does not pay 20 MB for it.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.store import checksums
from brokerd.store import format as layout

if TYPE_CHECKING:
    import numpy

SIDE_NUMBER, SIDE_CRC = b',"line":', b',"crc":'   # in a line of order.jsonl, the last two of its members
SIDE_DIGITS = 15
VAIN_TIMES = 16                 # so often a segment is summed up in vain, in search of its records


@cache
def _dtype(fields: tuple[tuple[str, str, int], ...], octets: int) -> "numpy.dtype":
    import numpy as np

    names, formats, offsets = zip(*fields, strict=True)
    return np.dtype({"names": list(names), "formats": list(formats), "offsets": list(offsets), "itemsize": octets})


def segment_dtype() -> "numpy.dtype":
    """The 64-octet header of a segment."""
    return _dtype(layout.SEGMENT_FIELDS, layout.HEADER_OCTETS)


def record_dtype() -> "numpy.dtype":
    """The 64-octet header of a record."""
    return _dtype(layout.RECORD_FIELDS, layout.HEADER_OCTETS)


def acks_dtype() -> "numpy.dtype":
    """The 64-octet header of an acks file."""
    return _dtype(layout.ACKS_FIELDS, layout.HEADER_OCTETS)


def entry_dtype() -> "numpy.dtype":
    """One acks entry."""
    return _dtype(layout.ENTRY_FIELDS, layout.ENTRY_OCTETS)


def journal_dtype() -> "numpy.dtype":
    """The 64-octet header of a journal."""
    return _dtype(layout.JOURNAL_FIELDS, layout.HEADER_OCTETS)


def event_dtype() -> "numpy.dtype":
    """One event of a journal."""
    return _dtype(layout.EVENT_FIELDS, layout.EVENT_OCTETS)


class Records(NamedTuple):
    """The result of ``scan_records``.

    ``headers``: a copy of the records' headers, with dtype ``record_dtype()``.  ``positions`` (int64): where each
    record begins.  ``gaps``: the (from, to) octets in which no record can be found.
    """

    headers: "numpy.ndarray"
    positions: "numpy.ndarray"
    gaps: list[tuple[int, int]]


class Entries(NamedTuple):
    """The result of ``read_entries``.

    ``entries``: the sound ones, in order, with dtype ``entry_dtype()``.  ``written``: the index behind the last entry
    that is not zero.  ``damaged``: how many were left out because their check was wrong.
    """

    entries: "numpy.ndarray"
    written: int
    damaged: int


def scan_records(octets: Any, end: int) -> Records:
    """Find the records of a segment (a map or bytes) below position ``end``, without a loop over records.

    Every aligned place with a record's magic is a candidate.  Normally each candidate leads to the next, and the last
    one to ``end``.  If not (damage, or a body that contains something like a record), the chain is followed step by
    step.  Behind a break it goes on at the next candidate with a right CRC and a higher sequence number.  No other CRC
    is checked here: see ``record_checks``.
    """
    import numpy as np

    words = np.frombuffer(octets, "<u4", end // 8 * 2)
    positions = np.flatnonzero(words[::2] == layout.RECORD_MAGIC) * 8
    positions = positions[(positions >= layout.HEADER_OCTETS) & (positions <= end - layout.HEADER_OCTETS)]
    lengths = words[positions // 4 + 1].astype(np.int64)
    following = positions + lengths + 7 & ~7
    whole = positions.size and positions[0] == layout.HEADER_OCTETS and following[-1] == end
    gaps: list[tuple[int, int]] = []
    if not (whole and np.array_equal(following[:-1], positions[1:])):
        chained, gaps = _follow_chain(octets, end, positions, lengths, following)
        positions = positions[chained]
    # As octets without fields: numpy would copy each field of each header by itself, which takes five times as long.
    places = np.ndarray((max(end // 8 - 7, 0),), f"V{layout.HEADER_OCTETS}", octets, 0, (8,))
    return Records(places[positions >> 3].view(record_dtype()), positions, gaps)


def _follow_chain(octets: Any, end: int, positions: "numpy.ndarray", lengths: "numpy.ndarray",
                  following: "numpy.ndarray") -> tuple["numpy.ndarray", list[tuple[int, int]]]:
    """Which candidates are records, and the gaps between them.  The loop turns once for each gap.

    Damaged lengths may lead over each other.  Once so many octets were summed up in vain, no candidate that leads over
    the next one is believed, unless a record leads to it."""
    import numpy as np

    view, count = memoryview(octets).cast("B"), positions.size
    number, patience = int.from_bytes(view[8:16], "little"), VAIN_TIMES * end

    def crc_is_right(index: int) -> bool:
        nonlocal patience
        position, length = int(positions[index]), int(lengths[index])
        if length < layout.HEADER_OCTETS or position + length > end:
            return False
        if patience < 0 and index + 1 < count and position + length > positions[index + 1]:
            return False
        stored = int.from_bytes(view[position + 8:position + 12], "little")
        right = layout.record_crc(view[position:position + length], number) == stored
        patience -= 0 if right else length
        return right

    def seq(index: int) -> int:
        return int.from_bytes(view[int(positions[index]) + 16:int(positions[index]) + 24], "little")

    successor = np.searchsorted(positions, following)
    successor[lengths < layout.HEADER_OCTETS] = count
    inside = np.flatnonzero(successor < count)
    successor[inside[positions[successor[inside]] != following[inside]]] = count
    successor = np.append(successor, count)     # The last place stands for "leads nowhere", and leads to itself.
    chained, gaps = np.zeros(count, bool), []
    at, index, last_seq = layout.HEADER_OCTETS, 0, 0
    while at < end:
        while index < count and not (int(positions[index]) == at and last_seq < seq(index)) and not (
                seq(index) > last_seq and crc_is_right(index)):
            index += 1
        if index == count:
            gaps.append((at, end))
            break
        if positions[index] > at:
            gaps.append((at, int(positions[index])))
        run = _reachable(successor, index)
        last = int(run[-1])
        if following[last] != end and not crc_is_right(last):
            run = run[:-1]                      # It led nowhere because it is itself the damaged one.
            at, index = int(positions[last]), last + 1
        else:
            at = int(following[last])
            index = int(np.searchsorted(positions, at))
        chained[run] = True
        last_seq = max(last_seq, seq(int(run[-1]))) if run.size else last_seq
    return chained, _joined(gaps)


def _reachable(successor: "numpy.ndarray", start: int) -> "numpy.ndarray":
    """The indices that can be reached from ``start``, rising; each leads to a higher one.

    Looks at windows of them, each wider than the one before, so that the work grows with what is reached.  Within one
    the stride doubles, so few steps are needed.
    """
    import numpy as np

    count, wide = successor.size - 1, 64
    parts = []
    while start < count:
        size = min(wide, count - start)
        jump = np.append(np.minimum(successor[start:start + size] - start, size), size)     # The last one: outside.
        run = np.zeros(1, np.int64)
        while True:
            ahead = jump[run]
            ahead = ahead[ahead < size]
            if not ahead.size:
                break
            run = np.concatenate((run, ahead))
            jump = jump[jump]
        parts.append(run + start)
        start = int(successor[parts[-1][-1]])
        wide *= 4
    return np.concatenate(parts)


def _joined(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, stop in gaps:
        if joined and joined[-1][1] >= start:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def record_checks(octets: Any, records: Records, number: int) -> "numpy.ndarray":
    """Which of ``records`` have the right CRC, as booleans.  All records are worked in step, four octets at a time.

    For readers without the compiled plane.  It checks some 100 MB/s if there are many records.
    """
    import numpy as np

    view, words = memoryview(octets).cast("B"), np.frombuffer(octets, "<u4", len(octets) // 4)
    low, high = _word_tables()
    order = np.argsort(-records.headers["length"].astype(np.int64), kind="stable")
    starts, lengths = records.positions[order] + 12, records.headers["length"][order].astype(np.int64) - 12
    seed = layout.crc32c(number.to_bytes(8, "little"))
    state = np.full(order.size, seed ^ 0xFFFFFFFF, np.uint32)
    few, done = 16, 0                           # Fewer lanes than this are quicker one by one.
    active = int(np.searchsorted(-lengths, -4, "right"))
    while active >= few:
        mixed = state[:active] ^ words[(starts[:active] + done) >> 2]
        state[:active] = low[mixed & 0xFFFF] ^ high[mixed >> 16]
        done += 4
        active = int(np.searchsorted(-lengths[:active], -(done + 4), "right"))
    finished = np.minimum(done, lengths & ~3)
    for lane in range(active):                  # The longest: what is left of them.
        rest = view[int(starts[lane] + finished[lane]):int(starts[lane] + lengths[lane])]
        state[lane] = layout.crc32c(rest, int(state[lane]) ^ 0xFFFFFFFF) ^ 0xFFFFFFFF
    first = np.array(checksums.crc_tables()[0], np.uint32)
    tails, octet = slice(active, None), np.frombuffer(octets, np.uint8)
    for step in range(3):                       # The others: their last one to three octets.
        lanes = np.flatnonzero(lengths[tails] - finished[tails] > step) + active
        index = (state[lanes] ^ octet[starts[lanes] + finished[lanes] + step]) & 0xFF
        state[lanes] = first[index] ^ state[lanes] >> 8
    right = np.empty(order.size, bool)
    right[order] = (state ^ np.uint32(0xFFFFFFFF)) == records.headers["crc"][order]
    return right


@cache
def _word_tables() -> tuple["numpy.ndarray", "numpy.ndarray"]:
    import numpy as np

    t = np.array(checksums.crc_tables(4), np.uint32)
    value = np.arange(1 << 16)
    return t[3][value & 0xFF] ^ t[2][value >> 8], t[1][value & 0xFF] ^ t[0][value >> 8]


def body_octets(octets: Any, records: Records) -> "numpy.ndarray":
    """Octets of the body of each of ``records`` (int64)."""
    import numpy as np

    words = np.frombuffer(octets, "<u4", len(octets) // 4)
    meta = records.headers["meta_len"].astype(np.int64)
    long = np.flatnonzero(meta == layout.LONG_META)
    places = np.minimum(records.positions[long] + layout.HEADER_OCTETS >> 2, words.size - 1)
    meta[long] = 4 + words[places].astype(np.int64)
    return np.maximum(records.headers["length"].astype(np.int64) - layout.HEADER_OCTETS - meta, 0)


def records_in(octets: bytes, end: int, runs: list[tuple[int, int]]) -> tuple["numpy.ndarray", "numpy.ndarray"]:
    """Positions and body octets of the records within ``runs``."""
    import numpy as np

    starts, ends = np.array([run[0] for run in runs] or [0]), np.array([run[1] for run in runs] or [0])
    records = scan_records(octets, end // 8 * 8)
    run = np.searchsorted(starts, records.positions, "right") - 1
    inside = (run >= 0) & (records.positions < ends[run])
    return records.positions[inside], body_octets(octets, records)[inside]


def next_record(content: Any, number: int, at: int, limit: int, last_seq: int) -> int:
    """The first whole record of this segment behind ``at``; -1: none below ``limit``."""
    magic = layout.RECORD_MAGIC.to_bytes(4, "little")
    position = at
    while 0 <= (position := content.find(magic, position + 1, limit)) <= limit - layout.HEADER_OCTETS:
        length = int.from_bytes(content[position + 4:position + 8], "little")
        if position & 7 or not layout.HEADER_OCTETS <= length <= limit - position:
            continue
        seq, crc = content[position + 16:position + 24], content[position + 8:position + 12]
        if int.from_bytes(seq, "little") > last_seq and int.from_bytes(crc, "little") == layout.record_crc(
                content[position:position + length], number):
            return position
    return -1


def entry_checks(entries: "numpy.ndarray", number: int) -> "numpy.ndarray":
    """The check each of ``entries`` should carry in segment ``number`` (u1)."""
    import numpy as np

    tables = np.frombuffer(b"".join(layout.check_tables()), np.uint8).reshape(8, 256)
    octets = np.ascontiguousarray(entries).view(np.uint8).reshape(-1, layout.ENTRY_OCTETS)
    seed = (number & 0xFFFFFFFF).to_bytes(4, "little") + bytes(4)
    check = np.zeros(len(octets), np.uint8)
    for k in (0, 1, 2, 3, 4, 6, 7):
        check ^= tables[k][octets[:, k] ^ seed[k]]
    return check


def read_entries(octets: Any, number: int) -> Entries:
    """The sound entries of an acks file (a map or bytes, header included)."""
    import numpy as np

    count = max(len(octets) - layout.HEADER_OCTETS, 0) // layout.ENTRY_OCTETS
    entries = np.frombuffer(octets, entry_dtype(), count, layout.HEADER_OCTETS) if count else np.empty(0, entry_dtype())
    words = entries.view("<u8")
    nonzero = np.flatnonzero(words)
    written = int(nonzero[-1]) + 1 if nonzero.size else 0
    entries = entries[nonzero]
    right = (entries["check"] == entry_checks(entries, number)) & (entries["position"] != 0)
    return Entries(entries[right], written, int(np.count_nonzero(~right)))


def settled_positions(entries: "numpy.ndarray") -> "numpy.ndarray":
    """Positions of the records that ``entries`` settle and do not replay afterwards, rising, without repetition."""
    import numpy as np

    kind = entries["kind"] & 0x0F
    settling = np.isin(kind, tuple(layout.SETTLING_TYPES))
    replayed = kind == layout.REPLAYED
    if not replayed.any():
        return np.unique(entries["position"][settling])
    those = entries[settling | replayed][::-1]
    last = those[np.unique(those["position"], return_index=True)[1]]
    return last["position"][last["kind"] & 0x0F != layout.REPLAYED]


def last_states(entries: "numpy.ndarray") -> "numpy.ndarray":
    """For each record the last of its ``entries`` that gives its state, by position: a start reads the state there."""
    import numpy as np

    those = entries[np.isin(entries["kind"] & 0x0F, tuple(layout.STANDING_TYPES))][::-1]
    return those[np.unique(those["position"], return_index=True)[1]]


def retry_times(entries: "numpy.ndarray") -> tuple["numpy.ndarray", "numpy.ndarray"]:
    """The records that lie returned until a retry time: their positions, rising, and the three entries of each that
    tell the time, one row a record."""
    import numpy as np

    kind, parts = entries["kind"], layout.RETRY_PARTS
    those = entries[np.isin(kind & 0x0F, (*layout.STANDING_TYPES, layout.RETRY_TIME))]
    those = those[np.argsort(those["position"], kind="stable")]
    kind, position = those["kind"], those["position"]
    standing = np.flatnonzero(kind & 0x0F != layout.RETRY_TIME)
    last = standing[np.append(position[standing][1:] != position[standing][:-1], True)] if standing.size else standing
    last = last[(kind[last] & 0x0F == layout.RETURNED) & (last >= parts)]
    before = last[:, None] + np.arange(-parts, 0)
    wanted = layout.RETRY_TIME | np.arange(parts) << 4
    told = ((position[before] == position[last][:, None]) & (kind[before] == wanted)).all(axis=1)
    return position[last[told]], those[before[told]]


class Link(NamedTuple):
    """A link of a hash chain, for one block of a file (``store.format``, CHAIN).  ``ts``: ns since the epoch."""

    of: int
    last: bool
    octets: int
    at: int
    ts: int
    digest: bytes

    @property
    def head(self) -> bytes:
        """The octets of the link that its digest covers."""
        return layout.LINK_HEAD.pack(self.of, self.last, 0, self.octets, self.at, self.ts)


class Chain(NamedTuple):
    """The result of ``read_chain``.

    ``begun``: the journal's (ns).  ``links``: the sound ones, up to the first that is not.  ``unsound``: whether there
    is something else than zeros behind them.
    """

    begun: int
    start: bytes
    links: list[Link]
    unsound: bool


def chain_start(number: int, begun: int) -> bytes:
    """The 64 octets at the head of a chain."""
    fixed = layout.CHAIN_FIXED.pack(layout.CHAIN_MAGIC, layout.CHAIN_VERSION, number, begun, layout.BLOCK_OCTETS)
    return (fixed + layout.crc32c(fixed).to_bytes(4, "little")).ljust(layout.HEADER_OCTETS, b"\0")


def sha256(*parts: Any) -> bytes:
    """The SHA-256 of these octets, one after the other."""
    from hashlib import sha256 as new  # A server without order journals starts without OpenSSL.

    hash_ = new()
    for part in parts:
        hash_.update(part)
    return hash_.digest()


def read_chain(octets: bytes, number: int) -> Chain | None:
    """The chain in ``octets``, a whole file; None: its header is not that of a chain of segment ``number``.

    Raises ValueError: it has a later version.
    """
    header = octets[:layout.HEADER_OCTETS]
    fixed = layout.CHAIN_FIXED.size
    if len(header) < layout.HEADER_OCTETS or layout.crc32c(header[:fixed]) != _u4(header, fixed):
        return None
    magic, version, its_number, begun, block = layout.CHAIN_FIXED.unpack_from(header)
    if magic != layout.CHAIN_MAGIC or its_number != number:
        return None
    if version > layout.CHAIN_VERSION or block != layout.BLOCK_OCTETS:
        raise ValueError(f"has version {version}: written by a later brokerd; this one knows up to "
                         f"{layout.CHAIN_VERSION}")
    links: list[Link] = []
    seed = layout.crc32c(number.to_bytes(8, "little"))
    at = layout.HEADER_OCTETS
    while len(octets) >= at + layout.LINK_OCTETS:
        link = octets[at:at + layout.LINK_OCTETS]
        if layout.crc32c(link[:60], seed) != _u4(link, 60):
            break
        of, last, _, count, place, ts = layout.LINK_HEAD.unpack_from(link)
        links.append(Link(of, last != 0, count, place, ts, link[24:56]))
        at += layout.LINK_OCTETS
    return Chain(begun, sha256(header[:32]), links, any(octets[at:]))


def encode_link(link: Link, number: int) -> bytes:
    """The 64 octets of a link in the chain of segment ``number``."""
    octets = link.head + link.digest + bytes(4)
    return octets + layout.crc32c(octets, layout.crc32c(number.to_bytes(8, "little"))).to_bytes(4, "little")


def _u4(octets: bytes, at: int) -> int:
    return int.from_bytes(octets[at:at + 4], "little")


class SideLine(NamedTuple):
    """A line of ``order.jsonl``, as ``read_side_lines`` found it.

    ``at``: where it begins.  ``number``: its number if its checksum is right, else 0.  ``line``: its object without
    number and checksum; None: it cannot be understood, or its checksum is wrong.  ``fault`` says what is wrong with it
    or with its place; "": nothing.
    """

    at: int
    octets: bytes
    number: int
    line: dict[str, Any] | None
    fault: str


def read_side_lines(octets: bytes) -> list[SideLine]:
    """The lines of ``order.jsonl``.  A torn last line is left out.

    Lines of older brokers have neither number nor checksum: they come before all others.  Each further line has the
    number that follows the one before.  A damaged line had a number too, which is not known.
    """
    found: list[SideLine] = []
    at, following, damaged, is_numbered = 0, 1, 0, False
    parts = octets.split(b"\n")
    for index, part in enumerate(parts):
        number, line, fault = read_side_line(part) if part else (0, None, "")
        if part and (index < len(parts) - 1 or not fault):
            if number:
                if number > following + damaged:
                    missing = number - following - damaged
                    fault = f"has the number {number}: {missing} before it {'is' if missing == 1 else 'are'} missing"
                elif number < following:
                    fault = f"has the number {number}, which stood before it: it is not in its place"
                following, damaged, is_numbered = number + 1, 0, True
            else:
                damaged += 1 if is_numbered or fault else 0
                if is_numbered and not fault:
                    fault = "has no checksum, though lines before it have"
            found.append(SideLine(at, part, number, line, f"line {index + 1} {fault}" if fault else ""))
        at += len(part) + 1
    return found


def read_side_line(octets: bytes) -> tuple[int, dict[str, Any] | None, str]:
    """Number, object and fault of one line of ``order.jsonl``, as in SideLine."""
    from zlib import crc32

    head, mark, tail = octets.rpartition(SIDE_CRC)
    number = 0
    if mark and tail.endswith(b"}") and tail[:-1].isdigit():
        digits = head.rpartition(SIDE_NUMBER)[2]
        if tail != b"%d}" % crc32(head) or not digits.isdigit() or len(digits) > SIDE_DIGITS:
            return 0, None, "is damaged: its checksum is wrong"
        number = int(digits)
    try:
        line = read_json(octets)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict):
        return 0, None, "cannot be understood"
    if number:
        del line["line"], line["crc"]
    elif "line" in line or "crc" in line:
        return 0, None, "is damaged: it has no whole checksum"
    return number, line, ""


def read_json(octets: bytes) -> Any:
    """A JSON document that a broker wrote.  Raises ValueError, also for a number that 64 bits cannot hold: no broker
    writes one, and readers reckon with 64 bits.  Raises RecursionError."""
    from json import loads

    return loads(octets, parse_int=_whole, parse_float=_real, parse_constant=_real)


def _whole(digits: str) -> int:
    value = int(digits)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{digits[:30]} has more than 64 bits")
    return value


def _real(digits: str) -> float:
    value = float(digits)
    if not abs(value) < 1 << 63:
        raise ValueError(f"{digits[:30]} is more than 64 bits hold")
    return value

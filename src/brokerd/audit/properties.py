"""Reads one property of many messages at once, from the octets of a segment: numpy walks all records in step.

    header (64) | [u4 length of a long meta] | exchange shortstr | routing key shortstr | flags u2 | properties | body

A ``Texts`` says where strings stand; ``hashes`` makes 64 bits of each.  A property that does not end within its record
counts as absent: a damaged record must not make us read octets of another one.
"""

from typing import Any, NamedTuple

import numpy as np

from brokerd.store import format as layout
from brokerd.store import reading

# The properties and their types, in the order of the flags, from bit 15 down.
PROPERTIES = (
    ("content-type", "s"), ("content-encoding", "s"), ("headers", "T"), ("delivery-mode", "o"), ("priority", "o"),
    ("correlation-id", "s"), ("reply-to", "s"), ("expiration", "s"), ("message-id", "s"), ("timestamp", "t"),
    ("type", "s"), ("user-id", "s"), ("app-id", "s"), ("cluster-id", "s"),
)
INDEX = {name: index for index, (name, _) in enumerate(PROPERTIES)}
ROUTING_KEY = "routing-key"
# The octets of a field value of each type; -1: a u4 with the length stands before it; -2: an unknown type.
VALUE_OCTETS = np.full(256, -2, np.int64)
for _types, _octets in (("tbB", 1), ("suU", 2), ("IifF", 4), ("lLdT", 8), ("D", 5), ("V", 0), ("SxA", -1)):
    for _type in _types:
        VALUE_OCTETS[ord(_type)] = _octets
VALUE_OCTETS[ord("F")] = -1
_HEADERS_MAX = 1000             # fields of a table that we read


class Grouping(NamedTuple):
    """Where the group of a message is: the first of these headers that it has, or without headers the property ``by``.
    ``most``: so many messages of a group that is not sticky may be out."""

    by: str
    headers: tuple[str, ...]
    sticky: bool
    most: int


class Deduplicating(NamedTuple):
    """The window of deduplication keys: so many, each for so long (None: without end); ``waits``: until its message is
    settled."""

    size: int
    ttl_ms: int | None
    waits: bool
    action: str


class Texts:
    """Strings in a segment: the ``index`` of the record of each, and its ``start`` and ``length`` in the octets."""

    __slots__ = ("index", "length", "start")

    def __init__(self, index: np.ndarray, start: np.ndarray, length: np.ndarray) -> None:
        self.index, self.start, self.length = index, start, length

    def chosen(self, rows: np.ndarray) -> "Texts":
        """The strings of these rows."""
        return Texts(self.index[rows], self.start[rows], self.length[rows])


class Octets:
    """The octets of a segment.  Any place can be read: the last octet stands for all behind it."""

    def __init__(self, octets: bytes) -> None:
        self.octet = np.frombuffer(octets, np.uint8)

    def u1(self, at: np.ndarray) -> np.ndarray:
        return self.octet.take(at, mode="clip").astype(np.int64)

    def u2(self, at: np.ndarray) -> np.ndarray:
        return self.u1(at) << 8 | self.u1(at + 1)

    def u4(self, at: np.ndarray) -> np.ndarray:
        return self.u2(at) << 16 | self.u2(at + 2)

    def u4_little(self, at: np.ndarray) -> np.ndarray:
        return self.u1(at) | self.u1(at + 1) << 8 | self.u1(at + 2) << 16 | self.u1(at + 3) << 24


def texts(octets: bytes, records: reading.Records, name: str, *, header: bool = False) -> Texts:
    """Where the property of that name stands in each record that has it.

    ``name`` may also be ``routing-key``, or with ``header`` the name of a header.  Only strings count; those of headers
    have the types S and x.
    """
    o = Octets(octets)
    if name == ROUTING_KEY and not header:
        at, stop = _keys(o, records)
        return _within(np.arange(at.size), at + 1, o.u1(at), stop)
    index, at, stop = _places(octets, records, "headers" if header else name)
    if header:
        return _in_tables(o, index, at, stop, name)
    return _within(index, at + 1, o.u1(at), stop)


def with_header(octets: bytes, records: reading.Records, name: str) -> np.ndarray:
    """The indices of the records that have the header of that name, with a value of any type."""
    return _in_tables(Octets(octets), *_places(octets, records, "headers"), name, any_type=True).index


def whole_numbers(octets: bytes, records: reading.Records, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The indices of the records that have a header of that name which is a number of 64 bits, and these numbers."""
    where = _in_tables(Octets(octets), *_places(octets, records, "headers"), name, any_type=True)
    octet = np.frombuffer(octets + bytes(9), np.uint8)
    right = octet[where.start] == ord("l")
    at = where.start[right]
    numbers = octet[at[:, None] + np.arange(1, 9)].copy().view(">i8").reshape(-1).astype(np.int64)
    return where.index[right], numbers


def _keys(o: Octets, records: reading.Records) -> tuple[np.ndarray, np.ndarray]:
    """Where the routing key of each record begins, and where the record ends."""
    at = records.positions + layout.HEADER_OCTETS
    at = at + np.where(records.headers["meta_len"] == layout.LONG_META, 4, 0)
    return at + 1 + o.u1(at), records.positions + records.headers["length"].astype(np.int64)


def _places(octets: bytes, records: reading.Records, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The records that have that property: their indices, where it begins, and where each of them ends."""
    if not records.positions.size:
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing
    o, wanted = Octets(octets), INDEX[name]
    at, stop = _keys(o, records)
    at = at + 1 + o.u1(at)
    flags = o.u2(at)
    has = np.flatnonzero((flags >> 15 - wanted & 1).astype(bool) & (at + 2 <= stop))
    at, stop, flags = at[has] + 2, stop[has], flags[has]
    for bit in range(wanted):
        there = (flags >> 15 - bit & 1).astype(bool)
        if there.any():
            kind = PROPERTIES[bit][1]
            step = 1 + o.u1(at) if kind == "s" else 4 + o.u4(at) if kind == "T" else 1 if kind == "o" else 8
            at = np.minimum(np.where(there, at + step, at), stop)
    return has, at, stop


def priorities(octets: bytes, records: reading.Records) -> np.ndarray:
    """The property ``priority`` of each record; 0 without one."""
    found = np.zeros(records.positions.size, np.int64)
    o, (index, at, stop) = Octets(octets), _places(octets, records, "priority")
    whole = at < stop
    found[index[whole]] = o.u1(at[whole])
    return found


def _within(index: np.ndarray, start: np.ndarray, length: np.ndarray, stop: np.ndarray) -> Texts:
    whole = start + length <= stop
    return Texts(index[whole], start[whole], length[whole])


def _in_tables(o: Octets, index: np.ndarray, at: np.ndarray, stop: np.ndarray, name: str, *,
               any_type: bool = False) -> Texts:
    """Walk the tables that begin at ``at``, one field of each per step, until ``name`` is found or the tables end.

    ``any_type``: values that are no strings count as well, as empty ones."""
    key = name.encode("utf-8", "surrogateescape")
    stop = np.minimum(at + 4 + o.u4(at), stop)
    at = at + 4
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    for _ in range(_HEADERS_MAX):
        going = at < stop
        index, at, stop = index[going], at[going], stop[going]
        if not at.size:
            break
        size = o.u1(at)
        type_at = at + 1 + size
        type_ = o.u1(type_at)
        same = size == len(key)
        for k, octet in enumerate(key):
            same &= o.u1(at + 1 + k) == octet
        string = same & ((type_ == ord("S")) | (type_ == ord("x")))
        if any_type:
            found.append((index[same], type_at[same], np.zeros(int(same.sum()), np.int64), stop[same]))
        elif string.any():
            found.append((index[string], type_at[string] + 5, o.u4(type_at[string] + 1), stop[string]))
        octets = VALUE_OCTETS[type_]
        following = type_at + 1 + np.where(octets == -1, 4 + o.u4(type_at + 1), octets)
        more = ~same & (octets != -2)
        index, at, stop = index[more], following[more], stop[more]
    if not found:
        return Texts(index[:0], at[:0], stop[:0])
    columns = [np.concatenate(column) for column in zip(*found, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return _within(*(column[order] for column in columns))


def hashes(octets: bytes, where: Texts) -> np.ndarray:
    """64 bits of each string (u8), from its length and all its octets; never 0."""
    words = np.ndarray((len(octets) + 1,), "<u8", octets + bytes(8), 0, (1,))
    mixed = where.length.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    lanes, done = np.arange(where.length.size), 0
    with np.errstate(over="ignore"):
        while lanes.size:
            lanes = lanes[where.length[lanes] > done]
            word = words[where.start[lanes] + done]
            spare = np.clip(8 - (where.length[lanes] - done), 0, 7).astype(np.uint64) * np.uint64(8)
            word = word << spare >> spare
            state = (mixed[lanes] ^ word) * np.uint64(0xFF51AFD7ED558CCD)
            state ^= state >> np.uint64(32)
            mixed[lanes] = state * np.uint64(0xC4CEB9FE1A85EC53) ^ state >> np.uint64(29)
            done += 8
    return mixed | np.uint64(1)


def text(octets: bytes, where: Texts, row: int) -> str:
    """One of the strings, as text."""
    start, length = int(where.start[row]), int(where.length[row])
    return octets[start:start + length].decode("utf-8", "replace")


def grouping_of(said: Any) -> Grouping | None:
    """From the line of settings; None: no groups, or it is not understood."""
    if not isinstance(said, dict):
        return None
    by, headers, most = said.get("by"), said.get("headers"), said.get("most")
    if not isinstance(by, str) or not isinstance(headers, list) or not isinstance(most, int):
        return None
    if not (headers or by == ROUTING_KEY or by in INDEX):
        return None
    return Grouping(by, tuple(map(str, headers)), said.get("mode") == "sticky", most)


def deduplicating_of(said: Any) -> Deduplicating | None:
    """From the line of settings; None: no rule, or it is not understood."""
    if not isinstance(said, dict) or not isinstance(said.get("size"), int):
        return None
    ttl = said.get("ttl_ms")
    return Deduplicating(said["size"], ttl if isinstance(ttl, int) else None, said.get("scope") == "waiting",
                         str(said.get("action")))

"""Whether the lengths inside a record's meta are right: those of exchange, routing key, properties and header table.

A record may have a right CRC and wrong lengths, if another program wrote it.  The broker looks at both when it reads a
record from the disk, and takes it for damaged if either is wrong; so does an audit.  This module is for readers without
the compiled plane, which has the same rules in ``hot.h``.  It knows no file, and nothing of what properties mean.
"""

import numpy as np

from brokerd.audit.properties import PROPERTIES, VALUE_OCTETS, Octets
from brokerd.store import format as layout
from brokerd.store import reading

_OCTETS_MIN = 4                # an empty exchange, an empty routing key, and two octets of flags
_DEPTH = 64                     # of tables and arrays in each other, as on the wire
_MORE_FLAGS = 3                 # The class basic has 14 properties: it has no second word of flags, and no 15th flag.
_NESTED = (ord("F"), ord("A"))


def are_whole(octets: bytes, records: reading.Records) -> np.ndarray:
    """Which of these records, which lie inside ``octets``, have right lengths, as booleans."""
    o = Octets(octets)
    end = records.positions + records.headers["length"].astype(np.int64)
    at = records.positions + layout.HEADER_OCTETS
    size = records.headers["meta_len"].astype(np.int64)
    long = size == layout.LONG_META
    size = np.where(long, o.u4_little(at), size)
    at = at + np.where(long, 4, 0)
    stop = at + size
    good = (size >= _OCTETS_MIN) & (stop <= end)
    for _ in range(2):                          # exchange, routing key
        at = np.where(good, at + 1 + o.u1(at), at)
        good &= at < stop
    good &= at + 2 <= stop
    flags = o.u2(at)
    good &= flags & _MORE_FLAGS == 0
    at = np.where(good, at + 2, at)
    tables = np.zeros((3, 0), np.int64)
    for bit, (name, kind) in enumerate(PROPERTIES):
        there = good & (flags >> 15 - bit & 1).astype(bool)
        if not there.any():
            continue
        step = 1 + o.u1(at) if kind == "s" else 4 + o.u4(at) if kind == "T" else 1 if kind == "o" else 8
        following = np.where(there, at + step, at)
        good &= following <= stop
        if name == "headers":
            mine = np.flatnonzero(there & good)
            tables = np.array((mine, at[mine] + 4, following[mine]))
        at = np.where(good, following, at)
    good &= at == stop
    good[_broken(o, *tables)] = False
    return good


def _broken(o: Octets, index: np.ndarray, at: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Which of these tables hold a field that does not end within its table.  A step looks at one field of each."""
    broken = []
    while at.size:
        going = at < stop
        index, at, stop = index[going], at[going], stop[going]
        type_at = at + 1 + o.u1(at)
        kind = o.u1(type_at)
        octets = VALUE_OCTETS[kind]
        following = type_at + 1 + np.where(octets == -1, 4 + o.u4(type_at + 1), octets)
        right = (type_at < stop) & (octets != -2) & (following <= stop)
        for k in np.flatnonzero(right & np.isin(kind, _NESTED)).tolist():
            begin, end = int(type_at[k]) + 5, int(following[k])
            right[k] = _is_whole(o.octet[begin:end].tobytes(), table=kind[k] == _NESTED[0], depth=_DEPTH - 1)
        broken.append(index[~right])
        index, at, stop = index[right], following[right], stop[right]
    return np.concatenate(broken) if broken else index


def _is_whole(octets: bytes, *, table: bool, depth: int) -> bool:
    """Whether the values of a table or an array end with it."""
    at, stop = 0, len(octets)
    while at < stop:
        at += 1 + octets[at] if table else 0
        if at >= stop:
            return False
        kind = octets[at]
        size, at = int(VALUE_OCTETS[kind]), at + 1
        if size == -1:
            if at + 4 > stop:
                return False
            size, at = int.from_bytes(octets[at:at + 4]), at + 4
        if size == -2 or at + size > stop:
            return False
        if kind in _NESTED and (depth == 0 or not _is_whole(octets[at:at + size], table=kind == _NESTED[0],
                                                           depth=depth - 1)):
            return False
        at += size
    return True

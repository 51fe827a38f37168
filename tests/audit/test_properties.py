"""Properties out of octets as they are on the wire, held against the codec that wrote them."""

import struct

import numpy as np
import writer
from hypothesis import given
from hypothesis import strategies as st

from brokerd.audit import properties
from brokerd.store import reading

TEXT = st.text(max_size=20)


def shortstr(text):
    octets = text.encode()
    return bytes((len(octets),)) + octets


def field(name, value):
    if isinstance(value, str):
        return shortstr(name) + b"S" + struct.pack(">I", len(value.encode())) + value.encode()
    if isinstance(value, bool):
        return shortstr(name) + b"t" + bytes((value,))
    if isinstance(value, int):
        return shortstr(name) + b"l" + struct.pack(">q", value)
    inner = b"".join(field(k, v) for k, v in value.items())
    return shortstr(name) + b"F" + struct.pack(">I", len(inner)) + inner


def meta(key, given_, headers=None):
    flags, out = 0, b""
    for bit, (name, kind) in enumerate(properties.PROPERTIES):
        value = headers if name == "headers" else given_.get(name)
        if value is None:
            continue
        flags |= 1 << 15 - bit
        if kind == "s":
            out += shortstr(value)
        elif kind == "T":
            table = b"".join(field(k, v) for k, v in value.items())
            out += struct.pack(">I", len(table)) + table
        else:
            out += bytes(1 if kind == "o" else 8)
    return shortstr("x") + shortstr(key) + struct.pack(">H", flags) + out


def segment(metas):
    made = writer.messages(range(1, len(metas) + 1), range(1, len(metas) + 1))
    octets, positions = writer.pack_records(made, 1, 9, metas)
    octets = bytes(64) + octets
    return octets, reading.scan_records(octets, len(octets)), positions


STRINGS = [name for name, kind in properties.PROPERTIES if kind == "s"]
MESSAGES = st.lists(st.tuples(TEXT, st.dictionaries(st.sampled_from([n for n, _ in properties.PROPERTIES]), TEXT),
                              st.none() | st.dictionaries(st.text(max_size=5), TEXT | st.integers(0, 9) | st.booleans()
                                                          | st.dictionaries(st.text(max_size=3), TEXT), max_size=4)),
                    min_size=1, max_size=8)


@given(MESSAGES, st.sampled_from(STRINGS))
def test_every_string_is_where_the_wire_has_it(messages, name):
    octets, records, _ = segment([meta(*message) for message in messages])
    where = properties.texts(octets, records, name)
    wanted = {k: m[1][name] for k, m in enumerate(messages) if m[1].get(name) is not None}
    assert {int(i): properties.text(octets, where, k) for k, i in enumerate(where.index)} == wanted
    keys = properties.texts(octets, records, properties.ROUTING_KEY)
    assert [properties.text(octets, keys, k) for k in range(len(messages))] == [m[0] for m in messages]
    hashes = properties.hashes(octets, where)
    for k, i in enumerate(where.index):
        assert (hashes == hashes[k]).tolist() == [wanted[int(i)] == wanted[int(j)] for j in where.index]


@given(MESSAGES)
def test_a_header_is_found_among_others(messages):
    name = next((key for m in messages for key in m[2] or {}), "g")
    octets, records, _ = segment([meta(*message) for message in messages])
    where = properties.texts(octets, records, name, header=True)
    wanted = {k: m[2][name] for k, m in enumerate(messages) if isinstance((m[2] or {}).get(name), str)}
    assert {int(i): properties.text(octets, where, k) for k, i in enumerate(where.index)} == wanted


@given(st.binary(max_size=60))
def test_octets_that_mean_nothing_are_read_within_their_record(octets):
    data, records, _ = segment([octets, octets])
    for name, header in (("message-id", False), ("g", True), (properties.ROUTING_KEY, False)):
        where = properties.texts(data, records, name, header=header)
        stop = records.positions[where.index] + records.headers["length"][where.index].astype(np.int64)
        assert (where.start + where.length <= stop).all()
        properties.hashes(data, where)

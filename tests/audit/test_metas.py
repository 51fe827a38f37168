"""Lengths inside a record, looked at with numpy alone: as the compiled plane looks at them."""

import sys

import pytest
import writer
from hypothesis import example, given
from hypothesis import strategies as st
from test_properties import MESSAGES, meta, segment

from brokerd.audit import metas
from brokerd.audit.files import open_source
from brokerd.audit.segment import check_records, read_triple
from brokerd.plane import scan_segment


def plain(headers):
    return bytes((0, 0)) + meta("", {}, headers)[3:]


def by_the_plane(octets, records):
    """Of each record by itself."""
    return [scan_segment(octets, 1, int(position))[1] > 0 for position in records.positions]


@st.composite
def changed(draw):
    """Metas, of which some octets are others."""
    made = []
    for key, properties, headers in draw(MESSAGES):
        octets = bytearray(meta(key, properties, headers))
        for place in draw(st.lists(st.integers(0, len(octets) - 1), max_size=2)):
            octets[place] = draw(st.sampled_from([0, 1, 3, 4, 64, 255, *b"SFAltVxZ"]) | st.integers(0, 255))
        made.append(bytes(octets[:len(octets) - draw(st.sampled_from([0, 0, 0, 1, 5]))]) or b"\0")
    return made


@given(changed())
@example([plain({"a": {"b": {"c": 1}}})])
@example([plain({"a": {"b": "c"}})[:-1]])
@example([b"\0\0\0\3", b"\0\0\0", b"\0\0\x80\0", b"\0\0\x20\0\0\0\0\1", b"\0\0\x20\0\0\0\0\3\0AV"])
def test_a_record_is_whole_with_numpy_alone_if_and_only_if_it_is_for_the_plane(made):
    octets, records, _ = segment(made)
    assert metas.are_whole(octets, records).tolist() == by_the_plane(octets, records)


@pytest.mark.parametrize("depth", [63, 64, 65, 66])
@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_tables_and_arrays_may_be_in_each_other_as_deep_as_for_the_plane(kind, depth):
    inner = b""
    for _ in range(depth):
        inner = (b"\1a" if kind == b"F" else b"") + kind + len(inner).to_bytes(4) + inner
    octets, records, _ = segment([b"\0\0\x20\0" + (len(inner) + 2 * (kind == b"A")).to_bytes(4)
                                  + b"\1a" * (kind == b"A") + inner])
    assert metas.are_whole(octets, records).tolist() == by_the_plane(octets, records) == [depth <= 64]


@pytest.mark.parametrize("compiled", [True, False])
def test_records_with_a_right_crc_and_wild_lengths_are_damage_and_those_between_them_are_not(
        tmp_path, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setitem(sys.modules, "brokerd.plane", None)
    good = plain({"a": "b"})
    wild = good[:4] + b"\x58" + good[5:]
    root = writer.write_queue(tmp_path / "data", writer.simple_level(9), writer.Options(segment_messages=9))
    octets, records, _ = segment([good, wild, wild, good, wild])
    assert check_records(octets, records, 1).tolist() == [True, False, False, True, False]
    path = f"{root}/vhost/queue/msgs.0000000001"
    with open(path, "r+b") as file:
        file.seek(64)
        file.write(octets[64:])
        file.truncate()
    writer.put_word(path, 40, len(octets))
    writer.put_word(path, 48, 5)
    source = open_source(root)
    (queue,) = source.queues()
    damage = read_triple(source, queue.triples[0]).damage
    said = [(each.seq, each.detail) for each in damage if "lengths" in each.detail]
    assert said == [(number, "a record with wrong lengths inside") for number in (2, 3, 5)]

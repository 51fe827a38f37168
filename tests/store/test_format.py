import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.segments import record

from brokerd import plane
from brokerd.store import format as layout

np = pytest.importorskip("numpy")


def segment(bodies, number=5, base_seq=1):
    return layout.segment_header(number, base_seq=base_seq, created=1) + b"".join(
        record(number, seq, body) for seq, body in enumerate(bodies, base_seq))


def test_importing_the_format_does_not_import_numpy():
    code = "import sys, brokerd.store.format; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("fields", "packer"), [
    (layout.SEGMENT_FIELDS, layout.SEGMENT_HEADER), (layout.ACKS_FIELDS, layout.ACKS_HEADER),
    (layout.ENTRY_FIELDS, layout.ENTRY)])
def test_structs_and_dtypes_say_the_same(fields, packer):
    values = list(range(1, len(fields) + 1))
    dtype = layout._dtype(fields, packer.size)
    row = np.frombuffer(packer.pack(*values), dtype)[0]
    assert [int(row[name]) for name, _, _ in fields] == values


def test_the_compiled_plane_has_the_same_offsets():
    ours = {"segment": layout.segment_dtype(), "record": layout.record_dtype(), "acks": layout.acks_dtype(),
            "entry": layout.entry_dtype(), "journal": layout.journal_dtype(), "event": layout.event_dtype()}
    compiled = plane.layout()
    assert compiled.keys() == ours.keys()
    for struct_name, fields in compiled.items():
        for field, place in fields.items():
            kind, offset = ours[struct_name].fields[field][:2]
            assert (struct_name, field, (offset, kind.itemsize)) == (struct_name, field, tuple(place))


@given(st.binary(max_size=300), st.binary(max_size=20))
def test_the_table_crc_is_the_compiled_one(data, more):
    assert layout.crc32c_table(data) == plane.crc32c(data)
    assert layout.crc32c_table(more, layout.crc32c_table(data)) == plane.crc32c(data + more)


def test_the_crc_is_castagnolis():
    assert layout.crc32c_table(b"123456789") == 0xE3069283


@given(st.integers(0, 2**40), st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 65535))
def test_the_entry_check_is_the_compiled_one_and_the_vectorised_one(number, position, kind, count):
    octets = layout.entry(number, position, kind, count)
    bare = int.from_bytes(octets[:5] + b"\0" + octets[6:], "little")
    assert octets[5] == plane.check_of_entry(number & 0xFFFFFFFF, bare)
    assert octets[5] == layout.entry_checks(np.frombuffer(octets, layout.entry_dtype()), number)[0]


@given(st.integers(0, 2**32 - 1), st.integers(64, 2**32 - 1), st.integers(1, 255), st.integers(0, 65535))
def test_every_single_flipped_bit_of_an_entry_is_seen(number, position, kind, count):
    good = int.from_bytes(layout.entry(number, position, kind, count), "little")
    for bit in range(64):
        flipped = (good ^ 1 << bit).to_bytes(8, "little")
        position_, kind_, check, count_ = layout.ENTRY.unpack(flipped)
        assert check != layout.entry_check(number, position_, kind_, count_)


def test_the_entry_check_is_linear_and_no_bit_folds_to_nothing():
    # With linearity (exclusive or of table rows) this proves the test above for all entries and numbers.
    tables = layout._folded_tables()
    for k in (0, 1, 2, 3, 4, 6, 7):
        assert all(tables[k][1 << bit] for bit in range(8))
        assert all(tables[k][a ^ b] == tables[k][a] ^ tables[k][b] for a in range(0, 256, 7) for b in range(256))


def test_names_lead_back_to_numbers():
    assert layout.segment_name(42) == "msgs.0000000042"
    assert layout.segment_number("acks.0000000042") == 42
    assert layout.segment_number(layout.segment_name(10**11)) == 10**11
    for other in ("msgs.42", "msgs.0000000042.new", "spare.0000000001", "msgs.00000000x2", ".queue"):
        assert layout.segment_number(other) is None


def test_headers_carry_their_crc_and_whole_words():
    header = layout.segment_header(3, base_seq=9, created=-5, generation=2, end=640, records=4, sealed=1)
    row = np.frombuffer(header, layout.segment_dtype())[0]
    assert header[:4] == b"BSEG"
    assert int(row["crc"]) == layout.crc32c(header[:36])
    assert layout.word_ok(int(row["end"]), int(row["end_complement"]))
    acks = layout.acks_header(3, entries=7)
    assert acks[:4] == b"BACK"
    assert struct.unpack_from("<I", acks, 20)[0] == layout.crc32c(acks[:20])


@given(st.lists(st.binary(max_size=200), max_size=40))
def test_scanning_finds_every_record(bodies):
    octets = segment(bodies)
    found = layout.scan_records(octets, len(octets))
    assert found.headers["seq"].tolist() == list(range(1, len(bodies) + 1))
    assert found.gaps == []
    assert layout.body_octets(octets, found).tolist() == [len(body) for body in bodies]
    assert layout.record_checks(octets, found, 5).all()
    end, records, *_ = plane.scan_segment(octets, 5, 64)
    assert (end, records) == (len(octets), len(bodies))


def test_scanning_is_not_deceived_by_bodies_that_hold_records():
    fake = record(5, 3, b"fake")
    bodies = [b"a", b"\0" + fake + fake, b"b" * 7, fake * 3, b"c"]
    octets = segment(bodies)
    found = layout.scan_records(octets, len(octets))
    assert found.headers["seq"].tolist() == [1, 2, 3, 4, 5]
    assert found.gaps == []


@given(st.data())
def test_a_damaged_header_costs_its_own_record_only(data):
    bodies = data.draw(st.lists(st.binary(max_size=60), min_size=3, max_size=20))
    octets = bytearray(segment(bodies))
    whole = layout.scan_records(bytes(octets), len(octets))
    victim = data.draw(st.integers(0, len(bodies) - 1))
    position = int(whole.positions[victim])
    octets[position:position + 8] = data.draw(st.binary(min_size=8, max_size=8).filter(
        lambda o: o[:4] != layout.RECORD_MAGIC.to_bytes(4, "little")))
    found = layout.scan_records(bytes(octets), len(octets))
    expected = [seq for seq in range(1, len(bodies) + 1) if seq != victim + 1]
    assert found.headers["seq"].tolist() == expected
    until = int(whole.positions[victim + 1]) if victim + 1 < len(bodies) else len(octets)
    assert found.gaps == [(position, until)]


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=60), st.data())
def test_a_flipped_bit_fails_the_check_of_its_record_alone(bodies, data):
    octets = bytearray(segment(bodies))
    found = layout.scan_records(bytes(octets), len(octets))
    victim = data.draw(st.integers(0, len(bodies) - 1))
    length = int(found.headers["length"][victim])
    octets[int(found.positions[victim]) + data.draw(st.integers(12, length - 1))] ^= 1 << data.draw(st.integers(0, 7))
    right = layout.record_checks(bytes(octets), found, 5)
    assert np.flatnonzero(~right).tolist() == [victim]


def test_records_of_a_segment_used_before_fail():
    octets = segment([b"a"] * 20, number=4)
    found = layout.scan_records(octets, len(octets))
    assert not layout.record_checks(octets, found, 5).any()


def test_meta_of_more_than_a_u2_is_kept():
    meta = b"\0\0" + b"\x20\x00" + b"h" * 70_000
    octets = layout.segment_header(5, base_seq=1, created=1) + record(5, 1, b"body", meta) + record(5, 2, b"next")
    found = layout.scan_records(octets, len(octets))
    assert layout.body_octets(octets, found).tolist() == [4, 4]
    assert layout.record_checks(octets, found, 5).all()
    assert plane.scan_segment(octets, 5, 64)[5] == 8


def test_unwritten_and_damaged_entries_are_left_out():
    entries = [layout.entry(9, 64, layout.ACKED), bytes(8), layout.entry(9, 128, layout.RETURNED, 2),
               layout.entry(9, 192, layout.PURGED), layout.entry(9, 64, layout.ACKED)]
    entries[3] = entries[3][:4] + bytes((entries[3][4] ^ 1,)) + entries[3][5:]
    found = layout.read_entries(layout.acks_header(9) + b"".join(entries) + bytes(80), 9)
    assert found.entries["position"].tolist() == [64, 128, 64]
    assert (found.written, found.damaged) == (5, 1)
    assert layout.settled_positions(found.entries).tolist() == [64]


def test_the_audit_shares_the_dtypes():
    from brokerd.audit import layout as audit

    assert layout.record_dtype() == audit.RECORD
    assert audit.RECORD.itemsize == audit.SEGMENT.itemsize == audit.ACKS.itemsize == 64
    assert audit.ENTRY.itemsize == 8

import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd import plane
from brokerd.store import format as layout
from brokerd.store import reading

np = pytest.importorskip("numpy")


def test_importing_the_format_does_not_import_numpy():
    code = "import sys, brokerd.store.format; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("fields", "packer"), [
    (layout.SEGMENT_FIELDS, layout.SEGMENT_HEADER), (layout.ACKS_FIELDS, layout.ACKS_HEADER),
    (layout.ENTRY_FIELDS, layout.ENTRY)])
def test_structs_and_dtypes_say_the_same(fields, packer):
    values = list(range(1, len(fields) + 1))
    dtype = reading._dtype(fields, packer.size)
    row = np.frombuffer(packer.pack(*values), dtype)[0]
    assert [int(row[name]) for name, _, _ in fields] == values


def test_the_compiled_plane_has_the_same_offsets():
    ours = {"segment": reading.segment_dtype(), "record": reading.record_dtype(), "acks": reading.acks_dtype(),
            "entry": reading.entry_dtype(), "journal": reading.journal_dtype(), "event": reading.event_dtype()}
    compiled = plane.layout()
    assert compiled.keys() == ours.keys()
    for struct_name, fields in compiled.items():
        for field, place in fields.items():
            kind, offset = ours[struct_name].fields[field][:2]
            assert (struct_name, field, (offset, kind.itemsize)) == (struct_name, field, tuple(place))


def test_the_layout_of_a_commit_log_is_the_one_written_down():
    assert layout.COMMIT_HEADER.size + 4 == layout.COMMIT_APPLIED_AT
    octets = layout.COMMIT_HEADER.pack(layout.COMMIT_MAGIC, 1, 2, 3, 0, 4, 5, 6)
    assert octets[:8] == b"BTXJ\1\0\0\0"
    assert [octets[at] for at in (8, 12, 16, 24, 32)] == [2, 3, 4, 5, 6]
    assert layout.COMMIT_SETTLEMENT.pack(1, 2, layout.COMMIT_REJECTED) == b"\1\0\0\0\2\0\0\0\0\0\0\0\1"


def test_the_layout_of_a_definitions_log_is_the_one_written_down():
    assert layout.DEFINITIONS_HEADER.pack(layout.DEFINITIONS_MAGIC, 1, 2, 3) == b"BDEF\1\0\0\0\2\0\0\0\3\0\0\0"
    assert layout.FRAME_HEAD.pack(1, 0, 258) == b"\1\0\0\0\0\1\2"
    assert layout.FRAME_HEAD.size + len(bytes([layout.FRAME_END])) + 4 == layout.FRAME_OVERHEAD


def test_a_folder_is_named_by_the_sha1_of_the_name_in_hex():
    assert layout.folder_name("/") == "42099b4af021e53fd8fd4e056c2568d7c2e3ffa8"


@given(st.integers(0, 2**40), st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 65535))
def test_the_entry_check_is_the_compiled_one_and_the_vectorised_one(number, position, kind, count):
    octets = layout.entry(number, position, kind, count)
    bare = int.from_bytes(octets[:5] + b"\0" + octets[6:], "little")
    assert octets[5] == plane.check_of_entry(number & 0xFFFFFFFF, bare)
    assert octets[5] == reading.entry_checks(np.frombuffer(octets, reading.entry_dtype()), number)[0]


@given(st.integers(0, 2**32 - 1), st.integers(64, 2**32 - 1), st.integers(1, 255), st.integers(0, 65535))
def test_every_single_flipped_bit_of_an_entry_is_seen(number, position, kind, count):
    good = int.from_bytes(layout.entry(number, position, kind, count), "little")
    for bit in range(64):
        flipped = (good ^ 1 << bit).to_bytes(8, "little")
        position_, kind_, check, count_ = layout.ENTRY.unpack(flipped)
        assert check != layout.entry_check(number, position_, kind_, count_)


def test_the_entry_check_is_linear_and_no_bit_folds_to_nothing():
    # With linearity (exclusive or of table rows) this proves the test above for all entries and numbers.
    tables = layout.check_tables()
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
    row = np.frombuffer(header, reading.segment_dtype())[0]
    assert header[:4] == b"BSEG"
    assert int(row["crc"]) == layout.crc32c(header[:36])
    assert layout.word_ok(int(row["end"]), int(row["end_complement"]))
    acks = layout.acks_header(3, entries=7)
    assert acks[:4] == b"BACK"
    assert struct.unpack_from("<I", acks, 20)[0] == layout.crc32c(acks[:20])


def test_a_journal_says_until_when_it_is_on_disk_or_nothing():
    assert layout.journal_header(7, begun=1)[48:64] == bytes(16)
    assert layout.journal_header(7, begun=1, synced=5)[48:64] == struct.pack("<qq", 5, ~5)

"""Headers that say something wrong, with right checksums: each octet of a header is looked at."""

import struct

import pytest
import writer

from brokerd.audit.files import open_source
from brokerd.audit.segment import read_triple
from brokerd.store import format as layout

T = 1_700_000_000_000_000_000
CRC_AT = {"msgs": 36, "acks": 20, "journal": 24}


@pytest.fixture
def root(tmp_path):
    level = writer.simple_level(20)
    return writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=20, synced=T))


def path_of(root, kind):
    return f"{root}/vhost/queue/{kind}.0000000001"


def put(root, kind, at, octets):
    """Write octets into a header, and make its CRC right."""
    with open(path_of(root, kind), "r+b") as file:
        head = bytearray(file.read(64))
        head[at:at + len(octets)] = octets
        end = CRC_AT[kind]
        head[end:end + 4] = layout.crc32c(bytes(head[:end])).to_bytes(4, "little")
        file.seek(0)
        file.write(head)


def damage_of(root, **more):
    triple = open_source(root).queues()[0].triples[0]._replace(**more)
    return [(damage.file.rpartition("/")[2].partition(".")[0], damage.offset, damage.detail)
            for damage in read_triple(open_source(root), triple).damage]


def word(value):
    return struct.pack("<II", value, ~value & 0xFFFFFFFF)


def test_the_headers_of_a_writer_are_right(root):
    assert damage_of(root) == []


@pytest.mark.parametrize(("kind", "at"), [("acks", 56), ("acks", 63), ("journal", 28), ("journal", 31)])
def test_an_octet_that_is_reserved_is_zero(root, kind, at):
    put(root, kind, at, b"\1")
    assert damage_of(root) == [(kind, at & ~7 if kind == "acks" else 28,
                                "has octets that are not zero where its header has zeros")]


@pytest.mark.parametrize(("kind", "at", "octets", "detail"), [
    ("msgs", 16, struct.pack("<Q", 0), "says that its records begin with number 0, which no message has"),
    ("msgs", 24, struct.pack("<q", T + 1), "says that it was made after its first record"),
    ("journal", 16, struct.pack("<q", T + 1000), "says that it began after its first event"),
    ("journal", 48, struct.pack("<qq", T, T), "has a damaged word 'synced'"),
    ("journal", 48, struct.pack("<qq", 0, 1), "has a damaged word 'synced'")])
def test_a_value_that_the_contents_contradict_is_damage(root, kind, at, octets, detail):
    put(root, kind, at, octets)
    if (kind, at) == ("journal", 16):
        put(root, kind, 48, struct.pack("<qq", T + 2000, ~(T + 2000)))
    assert damage_of(root) == [(kind, at, detail)]


@pytest.mark.parametrize(("kind", "at", "octets"), [
    ("msgs", 24, struct.pack("<q", T)), ("journal", 16, struct.pack("<q", T)),
    ("journal", 48, bytes(16)), ("journal", 48, struct.pack("<qq", layout.FOR_EVER, ~layout.FOR_EVER)),
    ("journal", 40, bytes(8)), ("acks", 48, bytes(8)), ("acks", 48, word(64)), ("acks", 24, word(0))])
def test_values_at_their_bounds_are_right(root, kind, at, octets):
    put(root, kind, at, octets)
    assert damage_of(root) == []


def test_a_journal_that_was_synced_before_it_began_is_damage(root):
    put(root, "journal", 16, struct.pack("<q", T + 1))
    assert damage_of(root) == [("journal", 48, "says that it was synced before it began")]


@pytest.mark.parametrize(("kind", "at", "name"), [
    ("msgs", 48, "records"), ("msgs", 56, "sealed"), ("acks", 24, "delivered"), ("acks", 32, "entries"),
    ("acks", 40, "settled"), ("acks", 48, "doubted"), ("journal", 40, "lost")])
def test_a_word_that_is_not_whole_is_damage_unless_a_broker_may_be_writing_it(root, kind, at, name):
    put(root, kind, at, b"\7" * 8)
    assert (kind, at, f"has a damaged word {name!r}") in damage_of(root)
    assert damage_of(root, cut=layout.FOR_EVER) == []


@pytest.mark.parametrize(("name", "at"), [("delivered", 24), ("doubted", 48)])
def test_a_cursor_stands_where_a_record_begins(root, name, at):
    put(root, "acks", at, word(72))
    assert damage_of(root) == [("acks", at, f"says 72 in its word {name!r}, where no record begins or ends")]


def test_a_cursor_behind_the_last_record_is_damage_unless_power_was_lost(root):
    put(root, "acks", 24, word(1 << 20))
    assert [damage[:2] for damage in damage_of(root)] == [("acks", 24)]
    put(root, "acks", 48, word(64))
    assert damage_of(root) == []


def test_a_doubt_that_reaches_behind_the_last_record_is_damage(root):
    put(root, "acks", 48, word(1 << 20))
    assert [damage[:2] for damage in damage_of(root)] == [("acks", 48)]


def compacted(root, *, sealed, delivered):
    put(root, "msgs", 32, struct.pack("<I", 1))
    put(root, "msgs", 56, word(sealed))
    put(root, "acks", 16, struct.pack("<I", 1))
    put(root, "acks", 24, word(delivered))


def test_a_segment_that_no_compaction_made_is_none_of_a_later_generation(tmp_path):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(20, settle=False),
                              writer.Options(segment_messages=20, journal=False))
    compacted(root, sealed=0, delivered=0)
    assert damage_of(root) == [("msgs", 32, "is of generation 1, and open: no compaction leaves it so")]
    compacted(root, sealed=2, delivered=64)
    assert damage_of(root) == [("msgs", 32, "is of generation 1, and the cursor has yet to reach 20 of its records: no "
                                            "compaction leaves it so")]
    put(root, "acks", 48, word(64 + 20 * 176))      # A start has made these acks: nobody knows how far it was.
    assert damage_of(root) == []


@pytest.mark.parametrize(("at", "octet"), [(15, 1), (38, 32), (39, 1)])
def test_a_record_of_a_kind_or_with_flags_that_there_are_not_is_damage(root, at, octet):
    with open(path_of(root, "msgs"), "r+b") as file:
        octets = bytearray(file.read())
        octets[64 + at] |= octet
        record = bytes(octets[64:64 + int.from_bytes(octets[68:72], "little")])
        octets[72:76] = layout.record_crc(record, 1).to_bytes(4, "little")
        file.seek(0)
        file.write(octets)
    assert damage_of(root) == [("msgs", 64, "a record of a kind or with flags that no broker writes")]

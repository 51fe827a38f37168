"""The audit ``stream``: what brokers leave behind is held, and each planted fault is found."""

import pytest

from brokerd.audit.files import open_source
from brokerd.audit.scan import Options, scan
from brokerd.audit.streams import kept
from brokerd.audit.verdicts import judge
from brokerd.spark import by_arrays
from brokerd.store import format as layout

ALONE = Options(audits=frozenset({"stream"}))


def audited(folder):
    """The row of the stream, and its findings."""
    source = open_source(str(folder))
    judged = [judge(source, queue, [scan(source, triple, ALONE) for triple in queue.triples], ALONE)
              for queue in source.queues()]
    (row,) = [row for one in judged for row in one.audits]  # A queue that is no stream has none.
    return row, [finding["detail"] for one in judged for finding in one.findings]


def readers_of(folder):
    (path,) = folder.rglob(layout.READERS_FILE)
    return path


def segments(folder):
    return sorted(readers_of(folder).parent.glob("msgs.*"))


def test_what_a_broker_leaves_behind_is_held(stream_files):
    row, findings = audited(stream_files)
    assert (row["queue"], row["verdict"], findings) == ("log", "held", [])
    assert 40 < row["checked"] < 90
    assert [(slot.name, slot.offset) for slot in kept(readers_of(stream_files).read_bytes())[0]] == [
        ("billing", 70), ("search", 70)]


def test_both_engines_give_the_same_row(stream_files):
    row, _ = audited(stream_files)
    assert by_arrays.rows(str(stream_files), ALONE, None) == [row]


def test_a_segment_in_the_midst_that_is_gone_is_found(stream_copy):
    path = segments(stream_copy)[1]
    path.unlink()
    row, findings = audited(stream_copy)
    assert (row["verdict"], row["found"]) == ("violated", 1), row
    assert "are gone, and older ones not" in findings[0]


def test_a_segment_that_says_that_it_was_compacted_is_found(stream_copy):
    path = segments(stream_copy)[1]
    octets = bytearray(path.read_bytes())
    octets[32] = 1
    octets[36:40] = layout.crc32c(octets[:36]).to_bytes(4, "little")
    path.write_bytes(octets)
    row, findings = audited(stream_copy)
    assert (row["verdict"], row["found"]) == ("violated", 1), row
    assert "was compacted, which no stream is" in findings[0]


def change(stream_copy, at, octets):
    path = readers_of(stream_copy)
    whole = bytearray(path.read_bytes())
    whole[at:at + len(octets)] = octets
    path.write_bytes(whole)


def test_an_offset_beyond_the_end_is_found(stream_copy):
    slot = readers_of(stream_copy).read_bytes()[layout.READERS_SLOT:2 * layout.READERS_SLOT]
    turn = max(int.from_bytes(slot[at + 8:at + 12], "little") for at in (320, 336))
    cell = (102).to_bytes(8, "little") + (turn + 1).to_bytes(4, "little")
    cell += layout.crc32c(slot[:4] + cell).to_bytes(4, "little")
    change(stream_copy, layout.READERS_SLOT + 320 + 16 * (turn + 1 & 1), cell)
    row, findings = audited(stream_copy)
    assert row["verdict"] == "violated"
    assert findings == ["reader 'billing' goes on with 102, beyond the last message, 100"]


@pytest.mark.parametrize(("at", "octets", "text"), [
    (512 + 320, bytes([255]) * 32, "reader 'billing': neither of its offsets is whole"),
    (512 + 6, b"X", "slot 1 of readers: its name is damaged"),
    (0, b"BAAD", "readers has another format"),
    (512 + 368, bytes([255]) * 48, "reader 'billing': neither of its counts of missed messages is whole"),
])
def test_damage_of_the_file_is_found(stream_copy, at, octets, text):
    change(stream_copy, at, octets)
    row, findings = audited(stream_copy)
    assert (row["verdict"], findings) == ("violated", [text])


def test_one_damaged_cell_leaves_the_other(stream_copy):
    change(stream_copy, 512 + 320, bytes([255]) * 16)
    row, _ = audited(stream_copy)
    assert row["verdict"] == "held"


@pytest.mark.parametrize(("missed", "counted", "text"), [
    (9, 10, None),
    (10, 10, "reader 'billing' missed 10 messages before offset 10"),
    (9, 102, "reader 'billing' missed messages up to 102, beyond the last one, 100"),
])
def test_a_count_of_missed_messages_that_cannot_be_is_found(stream_copy, missed, counted, text):
    slot = readers_of(stream_copy).read_bytes()[layout.READERS_SLOT:2 * layout.READERS_SLOT]
    cell = layout.READERS_MISSED_CELL.pack(missed, counted, 0, 0)[:20]
    cell += layout.crc32c(slot[:4] + cell).to_bytes(4, "little")
    change(stream_copy, layout.READERS_SLOT + layout.READERS_MISSED, cell)
    row, findings = audited(stream_copy)
    assert (row["verdict"], findings) == ("violated" if text else "held", [text] if text else [])
    (slot, _), _ = kept(readers_of(stream_copy).read_bytes())
    assert (slot.missed, slot.counted) == (missed, counted)


def test_a_file_of_zeros_is_one_that_was_lost_before_it_was_synced():
    assert kept(bytes(512 * 512)) == ([], [])
    assert kept(b"") == ([], [])

"""One triple read: what is in it, and what is wrong with it, whatever was done to its files."""

import os
import random
import shutil

import numpy as np
import pytest
import writer

from brokerd import plane
from brokerd.audit import segment
from brokerd.audit.fetch import other_place
from brokerd.audit.files import FOREVER, Source, open_source
from brokerd.audit.inspect import inspect
from brokerd.audit.segment import read_triple
from brokerd.audit.verdicts import audit
from brokerd.store import format as layout
from brokerd.store import reading

START = 1_700_000_000_000_000_000


@pytest.fixture
def root(tmp_path):
    return writer.write_queue(tmp_path / "data", writer.simple_level(100), writer.Options(segment_messages=100))


def read(root, **more):
    source = open_source(root)
    (queue,) = source.queues()
    return read_triple(source, queue.triples[0], **more)


def change(root, name, place, octets):
    with open(f"{root}/vhost/queue/{name}.0000000001", "r+b") as file:
        file.seek(place)
        file.write(octets)


def test_all_that_was_written_is_read(root):
    data = read(root)
    assert (data.headers.size, data.events.size, data.entries.size) == (100, 200, 100)
    assert data.sound.all()
    assert data.damage == data.gaps == []
    assert (data.begun, data.generation, data.base_seq, data.gone) == (1, 0, 1, False)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_record_with_a_flipped_bit_is_told_with_its_place(root, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setitem(__import__("sys").modules, "brokerd.plane", None)
    data = read(root)
    place = int(data.positions[40])
    change(root, "msgs", place + 80, b"\xff")
    data = read(root)
    assert np.flatnonzero(~data.sound).tolist() == [40]
    assert [(d.offset, d.seq, d.detail) for d in data.damage] == [(place, 41, "a record with a wrong CRC")]
    assert read(root, crc=False).sound.all()


def test_a_record_whose_header_is_gone_leaves_a_gap(root):
    place = int(read(root).positions[40])
    change(root, "msgs", place, bytes(16))
    data = read(root)
    assert data.headers.size == 99
    assert [d.offset for d in data.damage if d.file.endswith("msgs.0000000001")] == [place]
    assert data.matters("records")


@pytest.mark.parametrize("keep", [0, 10, 64, 70, 4000])
def test_a_file_half_copied_is_told(root, keep):
    os.truncate(f"{root}/vhost/queue/msgs.0000000001", keep)
    data = read(root)
    assert data.matters("records")
    assert data.headers.size < 100
    assert data.sound.all()


def test_a_journal_half_copied_leaves_the_rest_unknown(root):
    os.truncate(f"{root}/vhost/queue/journal.0000000001", 64 + 32 * 50 + 5)
    data = read(root)
    assert data.events.size == 50
    assert data.gaps[0].stop == FOREVER
    assert data.matters("events")


def test_an_end_that_is_not_told_is_found(root):
    change(root, "msgs", 40, b"\0\0\0\0")
    data = read(root)
    assert data.headers.size == 100
    assert [d.detail for d in data.damage] == ["does not say where its records end"]


def test_a_damaged_header_does_not_hide_the_records(root):
    change(root, "msgs", 8, b"\x09")
    data = read(root)
    assert data.headers.size == 100
    assert data.sound.all()
    assert [d.detail for d in data.damage] == ["has a damaged header"]


def test_an_event_with_a_flipped_bit_is_told_and_leaves_a_gap(root):
    change(root, "journal", 64 + 32 * 10 + 3, b"\x55")
    data = read(root)
    assert data.events.size == 199
    assert [d.offset for d in data.damage] == [64 + 320]
    assert (data.gaps[0].start, data.gaps[0].stop) == (data.events["ts"][9], data.events["ts"][10])


@pytest.mark.parametrize(("type_", "reason", "known"), [
    (layout.DELIVERED, 0, True), (layout.DELIVERED, 15, True), (layout.DELIVERED, 16, False),
    (layout.RETURNED, 0, False), (layout.RETURNED, 1, True), (layout.RETURNED, 6, True), (layout.RETURNED, 7, False),
    (layout.DEAD_LETTERED, 0, False), (layout.DEAD_LETTERED, 5, True), (layout.DROPPED, 6, False),
    (layout.DROPPED, 3, True), (layout.ACKED, 0, True), (layout.ACKED, 1, False), (layout.EXPIRED, 2, False),
    (layout.STARTED, 4, True), (layout.STARTED, 5, False)])
def test_an_event_with_a_reason_that_its_type_does_not_have_is_damage(tmp_path, type_, reason, known):
    level = writer.simple_level(5, start=START)
    level.events = np.append(level.events, writer.events([(START + 10 ** 9, START, type_, reason)]
                                                         if type_ == layout.STARTED else
                                                         [(START + 10 ** 9, 5, type_, reason)]))
    damage = [d for d in read(writer.write_queue(tmp_path / "data", level)).damage if d.matters == ("events",)]
    detail = f"an event of type {type_} with reason {reason}, which that type does not have"
    assert [(d.offset, d.matters, d.detail) for d in damage] == ([] if known else [(64 + 10 * 32, ("events",), detail)])


@pytest.mark.parametrize("back", [0, 1])
def test_a_mark_of_a_start_stands_in_the_order_of_times_like_any_event(tmp_path, back):
    level = writer.simple_level(5, start=START)
    level.events = np.append(level.events, writer.events([(START + 10 ** 9, START, layout.STARTED, layout.RESTARTED)]))
    root = writer.write_queue(tmp_path / "data", level)
    ts = int(level.events["ts"][9]) + 1 - back
    mark = writer.events([(ts, START, layout.STARTED, layout.RESTARTED)])
    change(root, "journal", 64 + 10 * 32, writer.pack_events(mark, 1))
    assert [d.detail for d in read(root).damage] == ["1 events that are not later than the one before"] * back


def test_events_that_a_loss_of_power_took_are_no_damage(tmp_path):
    level = writer.simple_level(10)
    level.events = np.concatenate((level.events, writer.events([(START + 10 ** 6, START, layout.STARTED, 2)])))
    root = writer.write_queue(tmp_path / "data", level, writer.Options())
    change(root, "journal", 64 + 32 * 15, bytes(32))
    data = read(root)
    assert data.damage == []
    assert [(g.start, g.stop, g.why) for g in data.gaps] == [(START, START + 10 ** 6, "power was lost")]


def test_a_journal_that_was_switched_off_says_nothing_after(tmp_path):
    level = writer.simple_level(10)
    level.events = np.concatenate((level.events, writer.events([(START + 10 ** 6, START, layout.STARTED, 4)])))
    data = read(writer.write_queue(tmp_path / "data", level, writer.Options()))
    assert [(g.start, g.stop) for g in data.gaps] == [(START + 10 ** 6, FOREVER)]
    assert data.runs.size == 0


def test_an_entry_where_no_record_is_is_an_orphan(root):
    change(root, "acks", 64, layout.entry(1, 72, layout.ACKED))
    assert [d.detail for d in read(root).damage] == ["an entry of position 72, where no record is"]


def test_missing_and_damaged_acks_are_told(root):
    change(root, "acks", 64 + 8 * 5 + 1, b"\x77")
    assert "1 entry with a wrong check" in [d.detail for d in read(root).damage]
    os.unlink(f"{root}/vhost/queue/acks.0000000001")
    assert read(root).damage[0].detail.startswith("is missing")


@pytest.mark.parametrize("settle", [True, False])
def test_acks_are_missing_where_the_journal_has_any_event(tmp_path, settle):
    """A hand-out alone moves the watermark in the acks."""
    root = writer.write_queue(tmp_path / "data", writer.simple_level(9, settle=settle), writer.Options(acks=False))
    (damage,) = read(root).damage
    assert (damage.matters, damage.detail.startswith("is missing")) == (("acks",), True)
    level = writer.simple_level(9)
    unused = writer.Level(level.messages, level.events[:0])
    root = writer.write_queue(tmp_path / "unused", unused, writer.Options(acks=False))
    assert read(root).damage == []


REASONS_OF_ENTRIES = {
    layout.ACKED: 1, layout.REJECTED: 1, layout.EXPIRED: 1, layout.PURGED: 1, layout.HANDED_OUT: 1, layout.SET_ASIDE: 2,
    layout.PARKED: 2, layout.RETRY_TIME: 3, layout.REPLAYED: 1,
    layout.RETURNED: 7, layout.DEAD_LETTERED: 6, layout.DROPPED: 6}


@pytest.mark.parametrize("kind", range(256))
def test_an_entry_of_a_type_or_with_a_reason_that_the_layout_does_not_have_is_damage(root, kind):
    position = int(read(root).positions[0])
    change(root, "acks", 64, layout.entry(1, position, kind))
    damage = read(root).damage
    if kind >> 4 < REASONS_OF_ENTRIES.get(kind & 15, 0):
        assert damage == []
    else:
        assert [(d.matters, d.detail) for d in damage] == [(("acks",), "1 entry of a kind that no broker writes")]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize(("name", "matters"), [("msgs", "records"), ("acks", "acks"), ("journal", "events")])
def test_what_is_no_regular_file_is_damage(root, name, matters, kind):
    (queue,) = open_source(root).queues()
    path = f"{root}/vhost/queue/{name}.0000000001"
    os.unlink(path)
    {"pipe": os.mkfifo, "device": lambda path: os.symlink("/dev/zero", path), "folder": os.mkdir}[kind](path)
    data = read_triple(open_source(root), queue.triples[0])
    assert data.matters(matters)
    assert [each.detail for each in data.damage if each.file.endswith(f"{name}.0000000001")] == [
        "cannot be read: not a regular file"]


@pytest.mark.parametrize("name", ["msgs", "acks", "journal"])
def test_a_file_with_a_hole_of_terabytes_is_damage_or_counts_as_what_can_be_in_it(root, name):
    os.truncate(f"{root}/vhost/queue/{name}.0000000001", 4 << 40)
    (queue,) = open_source(root).queues()
    assert sum(triple.octets for triple in queue.triples) < 2 * layout.SEGMENT_OCTETS_MAX
    said = [each.detail for each in queue.damage]
    assert (f"has {4 << 40} octets, more than such a file may have" in said) == (name != "journal")
    (judged,) = audit(open_source(root))
    assert [row["verdict"] for row in judged.audits if row["audit"] == "damage"] == [
        "held" if name == "journal" else "violated"]


def test_a_segment_that_has_just_been_moved_or_removed_is_not_damage(root):
    source = open_source(root)
    (queue,) = source.queues()
    os.mkdir(f"{root}/vhost/queue/kept")
    os.rename(f"{root}/vhost/queue/msgs.0000000001", f"{root}/vhost/queue/kept/msgs.0000000001")
    assert read_triple(source, queue.triples[0]).headers.size == 100
    os.unlink(f"{root}/vhost/queue/kept/msgs.0000000001")
    os.unlink(f"{root}/vhost/queue/journal.0000000001")
    os.unlink(f"{root}/vhost/queue/acks.0000000001")
    data = read_triple(source, queue.triples[0])
    assert data.gone
    assert data.damage == []
    assert other_place("a/kept/msgs.1") == "a/msgs.1"
    assert other_place("a/msgs.1") == "a/kept/msgs.1"


def test_files_that_may_not_be_read_are_damage(root, monkeypatch):
    def refuse(self, rel, start=0, length=-1):
        raise PermissionError(13, "Permission denied")

    source = open_source(root)
    (queue,) = source.queues()
    monkeypatch.setattr(Source, "read", refuse)
    data = read_triple(source, queue.triples[0])
    assert {d.detail for d in data.damage} == {"cannot be read: Permission denied"}
    assert len(data.damage) == 3


def spoil(rnd, path):
    with open(path, "rb") as file:
        octets = bytearray(file.read())
    at = rnd.randrange(len(octets)) if octets else 0
    what = rnd.randrange(6)
    if what == 0 and octets:
        octets[at] ^= 1 << rnd.randrange(8)
    elif what == 1:
        octets = octets[:at]
    elif what == 2:
        octets[at:at + 300] = bytes(len(octets[at:at + 300]))
    elif what == 3:
        octets[at:at + 300] = rnd.randbytes(len(octets[at:at + 300]))
    elif what == 4:
        octets += rnd.randbytes(500)
    with open(path, "wb") as file:
        file.write(octets)
    if what == 5:
        os.unlink(path)


def test_damage_of_any_kind_is_never_a_fault_of_the_queue_nor_of_ours(tmp_path):
    rnd = random.Random(5)
    clean = writer.write_queue(tmp_path / "clean", writer.simple_level(150), writer.Options(
        segment_messages=50, kept=True))
    root = tmp_path / "data"
    for _ in range(30):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(clean, root)
        files = sorted(p for p in root.rglob("*.00*") if p.is_file())
        for path in rnd.sample(files, rnd.choice((1, 1, 3))):
            spoil(rnd, path)
        source = open_source(str(root))
        (judged,) = audit(source)
        inspect(source)
        wrong = {row["audit"] for row in judged.audits if row["verdict"] == "violated"}
        assert wrong <= {"damage", "holes"}


def verdicts_of(root):
    (judged,) = audit(open_source(root))
    return {row["audit"]: row["verdict"] for row in judged.audits}


@pytest.mark.parametrize(("name", "end", "what", "detail"), [
    ("msgs", 36, "records", "is of version 0, which no broker writes"),
    ("journal", 24, "events", "has a damaged header, or is of another segment")])
def test_a_file_of_version_0_is_told(root, name, end, what, detail):
    with open(f"{root}/vhost/queue/{name}.0000000001", "rb") as file:
        head = bytearray(file.read(64))
    head[4:8] = bytes(4)
    head[end:end + 4] = layout.crc32c(bytes(head[:end])).to_bytes(4, "little")
    change(root, name, 0, bytes(head))
    assert (detail, (what,)) in [(d.detail, d.matters) for d in read(root).damage]


@pytest.mark.parametrize(("name", "what", "unknown"), [
    ("acks", "acks", ["double_settle"]), ("journal", "events", ["fifo", "double_settle", "unacked"])])
def test_a_file_of_a_later_version_is_told_and_what_it_would_say_is_not_known(root, name, what, unknown):
    with open(f"{root}/vhost/queue/{name}.0000000001", "rb") as file:
        head = bytearray(file.read(64))
    head[4:8] = (9).to_bytes(4, "little")
    end = 20 if name == "acks" else 24
    head[end:end + 4] = layout.crc32c(bytes(head[:end])).to_bytes(4, "little")
    change(root, name, 0, bytes(head))
    (damage,) = read(root).damage
    assert (damage.detail, damage.matters) == ("is of version 9, of a later broker", (what,))
    said = verdicts_of(root)
    assert {said[audit] for audit in unknown} == {"undecidable"}


def with_acks_head(root, version, doubted=b""):
    head = bytearray(layout.acks_fixed(1, 0)[:24])
    head[4:8] = version.to_bytes(4, "little")
    head[20:24] = layout.crc32c(bytes(head[:20])).to_bytes(4, "little")
    change(root, "acks", 0, bytes(head))
    change(root, "acks", 48, doubted)


@pytest.mark.parametrize(("version", "doubted", "type_", "sound"), [
    (2, b"", layout.HANDED_OUT, True), (1, b"", layout.ACKED, True), (1, b"", layout.RETURNED, True),
    (0, b"", layout.ACKED, False), (1, b"", layout.HANDED_OUT, False), (1, b"", layout.SET_ASIDE, False),
    (1, bytes([64, 0, 0, 0, 191, 255, 255, 255]), layout.ACKED, False)])
def test_acks_that_are_not_of_the_version_that_they_say_are_told(root, version, doubted, type_, sound):
    """Version 1 has neither hand-outs nor messages set aside, nor the word ``doubted``."""
    kind = type_ | (1 << 4 if type_ == layout.RETURNED else 0)
    change(root, "acks", 64, layout.ENTRY.pack(64, kind, layout.entry_check(1, 64, kind, 0), 0))
    with_acks_head(root, version, doubted)
    damage = read(root).damage
    assert [(d.offset, d.detail, d.matters) for d in damage] == ([] if sound else [
        (4, f"says version {version}, and is not of that version", ("acks",))])


def test_acks_of_another_generation_than_their_segment_are_told_and_not_believed(root):
    change(root, "acks", 8, layout.acks_fixed(1, 3)[8:24])
    data = read(root)
    (damage,) = data.damage
    assert (damage.detail, damage.matters) == ("is of generation 3, and its segment of generation 0", ("acks",))
    assert data.entries.size == 0
    said = verdicts_of(root)
    assert (said["damage"], said["double_settle"], said["fifo"]) == ("violated", "undecidable", "held")


def test_a_compaction_between_the_two_renames_is_waited_for_where_a_broker_writes(root, monkeypatch):
    change(root, "acks", 8, layout.acks_fixed(1, 1)[8:24])
    source = open_source(root)
    triple = source.queues()[0].triples[0]._replace(cut=FOREVER)
    read_file, times = Source.read, []

    def late(self, rel, start=0, length=-1):
        if "acks" in rel:
            times.append(rel)
            if len(times) == 2:
                change(root, "acks", 8, layout.acks_fixed(1, 0)[8:24])
        return read_file(self, rel, start, length)

    monkeypatch.setattr(Source, "read", late)
    data = read_triple(source, triple)
    assert (data.damage, data.entries.size, len(times)) == ([], 100, 2)


@pytest.mark.parametrize("behind", ["acks", "msgs"])
def test_a_compaction_that_a_crash_left_with_one_file_in_place_is_read_as_the_next_start_finds_it(tmp_path, behind):
    level = writer.simple_level(20)
    for name, generation in (("before", 0), ("after", 1)):
        writer.write_queue(tmp_path / name, level, writer.Options(generation=generation))
    path = f"vhost/queue/{behind}.0000000001"
    whole = [(row["audit"], row["verdict"]) for row in audit(open_source(str(tmp_path / "after")))[0].audits]
    os.rename(tmp_path / "after" / path, tmp_path / "after" / f"{path}.new")
    shutil.copy(tmp_path / "before" / path, tmp_path / "after" / path)
    (one,) = audit(open_source(str(tmp_path / "after")))
    assert [(row["audit"], row["verdict"]) for row in one.audits] == whole
    assert ("damage", "held") in whole
    octets = (tmp_path / "after" / f"{path}.new").read_bytes()
    (tmp_path / "after" / f"{path}.new").write_bytes(octets[:8] + b"\7" + octets[9:])
    (one,) = audit(open_source(str(tmp_path / "after")))
    assert ("damage", "violated") in [(row["audit"], row["verdict"]) for row in one.audits]


def test_lengths_that_lead_over_each_other_do_not_have_the_rest_of_the_segment_summed_up_each_time(
        tmp_path, monkeypatch):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(400), writer.Options(segment_messages=400))
    path = f"{root}/vhost/queue/msgs.0000000001"
    with open(path, "rb") as file:
        octets = bytearray(file.read())
    end = int.from_bytes(octets[40:44], "little")
    positions = reading.scan_records(bytes(octets), end).positions
    for position in positions[1::2].tolist():
        octets[position + 4:position + 8] = ((end - position) // 16 * 8 + 8).to_bytes(4, "little")
    summed, real = [], plane.scan_segment
    monkeypatch.setattr(plane, "scan_segment", lambda some, number, start: (
        summed.append(len(some) - start), real(some, number, start))[1])
    sound = segment.check_records(bytes(octets), reading.scan_records(bytes(octets), end), 1)
    assert sound.all()
    assert sound.size == 200
    assert sum(summed) <= end

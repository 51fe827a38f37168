"""One triple read: what is in it, and what is wrong with it, whatever was done to its files."""

import os
import random
import shutil

import numpy as np
import pytest
import writer

from brokerd.audit.files import FOREVER, Source, open_source
from brokerd.audit.inspect import inspect
from brokerd.audit.segment import other_place, read_triple
from brokerd.audit.verdicts import audit
from brokerd.store import format as layout

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
    assert "1 entries with a wrong check" in [d.detail for d in read(root).damage]
    os.unlink(f"{root}/vhost/queue/acks.0000000001")
    assert read(root).damage[0].detail.startswith("is missing")


def test_a_file_that_is_none_is_damage(root):
    path = f"{root}/vhost/queue/journal.0000000001"
    os.unlink(path)
    os.mkfifo(path)
    data = read(root)
    assert data.matters("events")


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

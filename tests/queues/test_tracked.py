"""The offsets that a stream keeps for named readers: never ahead of an ack, whatever stops the broker, and bounded."""

import logging
import random
import shutil

import pytest
from tests.plane.harness import Bench, ack, nack
from tests.plane.test_stream import FIRST, Stream, offset_of

from brokerd import plane
from brokerd.queues import tracked
from brokerd.queues.tracked import CELL, Tracked, TrackedReader
from brokerd.store.format import READERS_CELLS, READERS_MISSED, READERS_SLOT, READERS_SLOTS


@pytest.fixture
def kept(tmp_path):
    return Tracked(str(tmp_path))


def test_a_reader_goes_on_where_it_was(tmp_path, kept):
    assert (kept.offset("a"), tracked.exists(str(tmp_path))) == (None, True)
    slot = kept.claim("a", 7, 5)
    assert (slot.offset, kept.offset("a")) == (None, 7)
    kept.set("b", 9)
    assert Tracked(str(tmp_path)).readers() == [TrackedReader("a", 7, 5), TrackedReader("b", 9, 0)]
    assert Tracked(str(tmp_path)).claim("a", 1, 6).offset == 7
    assert kept.forget("a")
    assert not kept.forget("a")
    assert [reader.name for reader in Tracked(str(tmp_path)).readers()] == ["b"]


def test_a_name_may_be_any_short_string(tmp_path, kept):
    names = ["a" * 255, "ü", "\udcff", "with space", "\0"]
    for i, name in enumerate(names):
        kept.set(name, i + 1)
    again = Tracked(str(tmp_path))
    assert [again.offset(name) for name in names] == [1, 2, 3, 4, 5]


def test_without_room_the_reader_that_began_longest_ago_and_never_acknowledged_is_forgotten(kept, caplog):
    caplog.set_level(logging.WARNING, "brokerd")
    for i in range(1, READERS_SLOTS):
        kept.claim(f"r{i}", i, 1000 + i)
    kept.set("r3", 7)
    kept.claim("one more", 5, 9999, frozenset(("r1", "r2")))
    assert (kept.offset("r1"), kept.offset("r3"), kept.offset("r4"), kept.offset("r5")) == (1, 7, None, 5)
    assert "a stream: there is no room for one more reader; reader 'r4' is forgotten" in caplog.text
    with pytest.raises(OSError, match="all 511 places"):
        kept.claim("another", 5, 9999, frozenset(reader.name for reader in kept.readers()))
    assert len(kept.readers()) == READERS_SLOTS - 1


PIKA = "ctag1." + "0123456789abcdef" * 2


@pytest.mark.parametrize("name", [PIKA, "bunny-1764227101000-482910274611"])
def test_names_that_clients_made_up_are_forgotten_before_a_service(stream, tmp_path, monkeypatch, name):
    monkeypatch.setattr(tracked, "READERS_SLOTS", 4)
    kept = Tracked(str(tmp_path))
    stream.publish(*[b"m"] * 10)
    for number, reader in enumerate(("billing", name, "shipping"), start=2):
        slot = kept.claim(reader, 1, number)
        stream.gate.begin(*FIRST, slot=slot.octets, turn=slot.turn)
        channel = plane.Channel(stream.connection, number)
        channel.prefetch = 10
        channel.consume(stream.queue, b"r", no_ack=False, arguments={})
        stream.bench.turns()
        stream.connection.feed(ack(number, 3, multiple=True))
    kept.claim("one more", 5, 9)
    assert [reader.name for reader in kept.readers()] == ["billing", "one more", "shipping"]
    kept.set("one more", 6)
    with pytest.raises(OSError, match="'brokerctl stream delete' makes room"):
        kept.claim("too many", 5, 10)
    assert [kept.offset(reader) for reader in ("billing", "one more", "shipping")] == [4, 6, 4]


def test_acks_of_a_reader_that_was_forgotten_move_no_offset_of_the_next_in_its_slot(stream, kept):
    stream.publish(*[b"m"] * 10)
    consumer = read(stream, kept)
    assert stream.offsets() == list(range(1, 11))
    stream.connection.channels[2].cancel(consumer)
    kept.forget("a")
    kept.claim("b", 1, 5)
    stream.connection.feed(ack(2, 4, multiple=True))
    assert kept.readers() == [TrackedReader("b", 1, 5)]


def test_a_torn_cell_is_not_believed_and_the_other_is(tmp_path, kept):
    kept.set("a", 5)
    kept.set("a", 6)
    path = kept.path
    for cell, offset in ((0, 5), (1, 6)):       # The second turn is even.
        shutil.copy(path, f"{path}.whole")
        with open(path, "r+b") as file:
            file.seek(READERS_SLOT + READERS_CELLS + CELL * cell)
            file.write(b"\x63")
        assert Tracked(str(tmp_path)).offset("a") == offset
        shutil.copy(f"{path}.whole", path)


def test_any_damage_gives_an_offset_that_was_there_or_none(tmp_path, kept):
    for offset in (5, 6):
        kept.set("a", offset)
    with open(kept.path, "rb") as file:
        whole = file.read()
    chance = random.Random(5)
    for _ in range(200):
        octets = bytearray(whole)
        octets[READERS_SLOT + chance.randrange(READERS_SLOT)] ^= 1 << chance.randrange(8)
        with open(kept.path, "r+b") as file:
            file.write(octets)
        assert Tracked(str(tmp_path)).offset("a") in (5, 6, None)


def test_a_file_of_a_later_version_is_left_alone(tmp_path, kept):
    with open(kept.path, "r+b") as file:
        file.seek(4)
        file.write(b"\x02")
    with pytest.raises(OSError, match="another format"):
        Tracked(str(tmp_path))


def test_a_start_lowers_what_is_beyond_the_stream(kept):
    kept.set("a", 5)
    kept.set("b", 9)
    kept.lower(7)
    assert (kept.offset("a"), kept.offset("b")) == (5, 7)


def test_the_newer_cell_is_known_when_its_turn_begins_anew(tmp_path, kept):
    kept.set("a", 5)
    number = kept._slots["a"]
    kept._write(number, 0xFFFFFFFE, 6)
    kept._write(number, 0xFFFFFFFF, 7)
    assert kept.offset("a") == 7
    kept.set("a", 8)
    assert Tracked(str(tmp_path)).offset("a") == 8


# --- the plane writes them

@pytest.fixture
def stream(tmp_path):
    bench = Bench(tmp_path)
    yield Stream(bench)
    bench.close()


def read(stream, kept, number=2, start=FIRST, prefetch=100):
    slot = kept.claim("a", 1, 0)
    stream.gate.begin(*start, slot=slot.octets, turn=slot.turn)
    if number not in stream.connection.channels:
        plane.Channel(stream.connection, number)
    channel = stream.connection.channels[number]
    channel.prefetch = prefetch
    return channel.consume(stream.queue, b"r", no_ack=False, arguments={})


def test_the_lowest_offset_that_is_not_acknowledged_is_kept(stream, kept):
    stream.publish(*[b"m"] * 10)
    read(stream, kept)
    assert stream.offsets() == list(range(1, 11))
    for octets, offset in (
        (ack(2, 3), 1), (ack(2, 1), 2), (ack(2, 2), 4), (nack(2, 4), 4), (ack(2, 7, multiple=True), 4),
        (nack(2, 8, requeue=False), 4),
    ):
        stream.connection.feed(octets)
        assert kept.offset("a") == offset
    assert stream.got() == [(4, b"m", True)]
    stream.connection.feed(ack(2, 11))
    assert kept.offset("a") == 9
    stream.connection.feed(ack(2, 0, multiple=True))
    assert kept.offset("a") == 11


def test_what_a_reader_held_when_it_left_is_not_acknowledged(stream, kept):
    stream.publish(*[b"m"] * 5)
    consumer = read(stream, kept)
    assert stream.offsets() == [1, 2, 3, 4, 5]
    stream.connection.feed(ack(2, 2, multiple=True) + nack(2, 3))
    stream.connection.channels[2].cancel(consumer)
    stream.connection.feed(ack(2, 4))
    assert kept.offset("a") == 3
    stream.connection.channels[2].close()
    assert kept.offset("a") == 3


def test_acks_of_a_former_reader_of_the_name_move_nothing(stream, kept):
    stream.publish(*[b"m"] * 5)
    consumer = read(stream, kept)
    assert stream.offsets() == [1, 2, 3, 4, 5]
    stream.connection.channels[2].cancel(consumer)
    read(stream, kept, 3)
    assert stream.offsets(3) == [1, 2, 3, 4, 5]
    stream.connection.feed(ack(3, 3, multiple=True) + ack(2, 1))
    assert kept.offset("a") == 4
    stream.connection.feed(ack(2, 0, multiple=True) + ack(3, 4))
    assert kept.offset("a") == 5


def test_by_chance_it_is_the_lowest_always(stream, kept):
    chance = random.Random(7)
    stream.publish(*[b"m"] * 400)
    read(stream, kept, prefetch=20)
    out, settled = {}, set()
    for _ in range(600):
        stream.bench.turns()
        for one in stream.connection.delivered():
            out[one.tag] = offset_of(one)
        if not out:
            break
        tag = chance.choice(sorted(out))
        if chance.random() < 0.2:
            stream.connection.feed(nack(2, tag))
        else:
            stream.connection.feed(ack(2, tag))
            settled.add(out[tag])
        del out[tag]
        lowest = next(offset for offset in range(1, 402) if offset not in settled)
        assert kept.offset("a") == lowest
    assert len(settled) > 300


# --- what readers missed

def missed_of(tmp_path):
    (reader,) = Tracked(str(tmp_path)).readers()
    return reader.missed, reader.counted


def test_what_a_reader_missed_is_kept_and_a_new_start_counts_nothing_twice(stream, tmp_path):
    kept = Tracked(str(tmp_path))
    stream.publish(*[b"m" * 2000] * 100)
    consumer = read(stream, kept, prefetch=2)
    assert stream.offsets() == [1, 2]
    stream.purge()
    stream.connection.feed(nack(2, 1))          # 1 was to come again; 3 to 100 never came.
    stream.publish(b"new")
    assert stream.offsets() == [101]
    assert missed_of(tmp_path) == (99, 101)
    stream.connection.channels[2].cancel(consumer)
    assert kept.offset("a") == 1                # As after kill -9: nothing is acknowledged.
    (away,) = kept.readers()
    assert (away.missed_by(101), away.missed_by(131)) == (99, 129)
    slot = kept.claim("a", 1, 0)
    stream.gate.begin("offset", slot.offset, tells=True, slot=slot.octets, turn=slot.turn, kept=slot.offset)
    channel = plane.Channel(stream.connection, 3)
    channel.prefetch = 1
    channel.consume(stream.queue, b"r", no_ack=False, arguments={})
    assert stream.offsets(3) == [101]
    ((_, _, _, missed),) = stream.gate.readers()
    assert (missed, missed_of(tmp_path), stream.gate.missed) == (99, (99, 101), 99)
    stream.purge()
    stream.connection.feed(ack(3, 1))
    stream.publish(b"newest")
    assert stream.offsets(3) == [102]
    assert missed_of(tmp_path) == (99, 101)     # All after 101 came.


def test_a_torn_count_is_not_believed_and_the_other_is(stream, tmp_path):
    kept = Tracked(str(tmp_path))
    stream.publish(*[b"m"] * 20)
    read(stream, kept, prefetch=1)
    assert stream.offsets() == [1]
    counts = [(0, 0)]
    for tag in (1, 2, 3):
        stream.publish(b"m", b"m")
        stream.purge()
        stream.publish(b"m")
        stream.connection.feed(ack(2, tag))
        stream.offsets()
        counts.append(missed_of(tmp_path))
    assert counts == [(0, 0), (21, 23), (23, 26), (25, 29)]
    with open(kept.path, "rb") as file:
        whole = file.read()
    for at, expected in ((READERS_MISSED, counts[3]), (READERS_MISSED + 24, counts[2])):
        with open(kept.path, "r+b") as file:
            file.seek(READERS_SLOT + at + 3)
            file.write(b"\x63")
        assert missed_of(tmp_path) == expected
        with open(kept.path, "r+b") as file:
            file.write(whole)


def test_a_reader_that_was_forgotten_leaves_no_count_to_the_next_in_its_slot(stream, tmp_path):
    kept = Tracked(str(tmp_path))
    stream.publish(*[b"m"] * 20)
    consumer = read(stream, kept, prefetch=1)
    assert stream.offsets() == [1]
    stream.purge()
    stream.publish(b"m")
    stream.connection.feed(ack(2, 1))
    assert stream.offsets() == [21]
    assert missed_of(tmp_path) == (19, 21)
    stream.connection.channels[2].cancel(consumer)
    kept.forget("a")
    kept.claim("b", 1, 0)
    assert missed_of(tmp_path) == (0, 0)

"""Replays where something is in their way: damage, files that are gone, limits; and what they tell and ask for."""

import os
from pathlib import Path

import pytest
from tests.plane.harness import ack, consume, nack
from tests.plane.test_retention import ALL, SEGMENT, fill, numbered, numbers, with_groups
from tests.plane.test_retry import ALL as ALL_CAUSES
from tests.plane.test_retry import START

from brokerd import plane
from brokerd.store import format as layout

RETAINED = {"retain_octets": 1 << 20}


@pytest.fixture
def bench(make_bench):
    return make_bench(segment_octets=SEGMENT)


def start(make_bench, **more):
    """The next start, as after kill -9: its bench and the queue."""
    bench = make_bench(segment_octets=SEGMENT)
    return bench, bench.recovered(**RETAINED, **more)


def file_of(queue, number=1, kind="acks"):
    return Path(f"{queue.directory}/{kind}.{number:010d}")


def get_all(bench, queue):
    """The numbers of what goes out; all is settled."""
    client, found = bench.connection(1), []
    while client.channels[1].get(queue, True):
        bench.turns()
        found += numbers(client.delivered())
    return found


def events(queue, segment):
    """(type, seq, aux, time in ms) of the events that tell of replays."""
    octets = file_of(queue, segment, "journal").read_bytes()
    rows = [octets[at:at + 32] for at in range(64, len(octets) - 31, 32)]
    return [(row[26], *(int.from_bytes(row[first:last], "little") for first, last in ((0, 8), (20, 24))),
             int.from_bytes(row[8:16], "little") // 1_000_000)
            for row in rows if row[26] in (layout.EVENT_REPLAYED, layout.REPLAY_EVENT)]


# --- what is replayed


def test_what_was_dropped_because_the_queue_was_too_long_is_replayed(bench):
    queue = bench.queue(max_length=5, **RETAINED)
    bench.connection(1).feed(numbered(1, 9))
    bench.turns()
    assert (queue.ready, queue.discarded) == (5, 4)
    queue.set_rules(max_length=60, **RETAINED)
    assert plane.replay(queue, 1, ALL)[:2] == (4, 0)
    assert get_all(bench, queue) == [*range(1, 10)]
    queue.check()


def test_an_entry_that_is_damaged_has_settled_nothing_that_could_be_replayed(bench, make_bench):
    queue = bench.queue(**RETAINED)
    bench.connection(1).feed(numbered(1, 5))
    client = bench.connection(1)
    assert client.channels[1].get(queue, True)
    octets = bytearray(file_of(queue).read_bytes())
    octets[64 + 5] ^= 1                     # The check octet of the first entry.
    file_of(queue).write_bytes(octets)
    again, found = start(make_bench)
    assert plane.replay(found, 1, ALL) == (0, 0, 0, 0)
    assert get_all(again, found) == [*range(1, 6)]


def test_nothing_is_replayed_of_a_queue_that_has_lost_a_file(make_bench):
    bench = make_bench(segment_octets=SEGMENT, lost=lambda queue: None)
    queue = fill(bench, **RETAINED)
    client = bench.connection(1)
    client.feed(numbered(46, 1))
    os.truncate(file_of(queue, queue.segments()[-1]["number"], "msgs"), 0)
    client.channels[1].get(queue, True)
    bench.turns()
    assert queue.lost
    assert plane.replay(queue, 1, ALL) == (0, 0, 0, 0)
    assert queue.ready <= 1


@pytest.mark.parametrize("more", [0, 8])
@pytest.mark.parametrize(("where", "life"), [
    ("magic", "same"), ("magic", "next"), ("magic", "suspect"), ("body", "next"), ("body", "suspect"),
])
def test_a_settled_record_that_is_damaged_stays_away_and_all_others_are_replayed(bench, make_bench, where, life, more):
    """Records begin at each octet that 8 divides, so that after a damaged one the next may be at any of these."""
    queue = bench.queue(**RETAINED)
    bench.connection(1).feed(b"".join(numbered(n, 1, app_id="x" * more) for n in range(1, 31)))
    assert get_all(bench, queue) == [*range(1, 31)]
    if life != "same":
        bench, queue = start(make_bench, suspect=life == "suspect")
    octets = bytearray(file_of(queue, kind="msgs").read_bytes())
    at = octets.index(b"000003")
    if where == "magic":
        at = octets.rindex(layout.RECORD_MAGIC.to_bytes(4, "little"), 0, at)
    with open(file_of(queue, kind="msgs"), "r+b") as file:
        file.seek(at)
        file.write(bytes([octets[at] ^ 0xFF]))
    assert plane.replay(queue, 1, ALL)[0] == 29
    assert get_all(bench, queue) == [1, 2, *range(4, 31)]


def test_nothing_is_replayed_of_a_segment_in_which_damage_has_cost_a_message(bench, make_bench):
    """What it counts is not certain any more."""
    bench.queue(**RETAINED)
    bench.connection(1).feed(numbered(1, 5))
    again, found = start(make_bench)
    with open(file_of(found, kind="msgs"), "r+b") as file:
        at = file.read().index(b"000003")
        file.seek(at)
        file.write(b"x")
    client = again.connection(1)
    for _ in range(3):
        assert client.channels[1].get(found, True)
    again.turns()
    assert numbers(client.delivered()) == [1, 2, 4]
    assert plane.replay(found, 1, ALL) == (0, 0, 0, 0)
    assert get_all(again, found) == [5]


# --- errors


def test_a_segment_whose_file_is_gone_is_told_and_none_behind_it_is_replayed(bench, make_bench):
    fill(bench, **RETAINED)
    _, found = start(make_bench)
    first, second = [segment["base_seq"] for segment in found.segments()][:2]
    file_of(found, 2, "msgs").unlink()
    with pytest.raises(OSError, match="Input/output error"):
        plane.replay(found, 1, ALL)
    assert found.ready == second - first
    assert plane.describe_retention(found)[3] == second - first


# --- what it tells, and asks for


def test_a_replay_is_told_in_each_segment_with_how_many_messages_it_made_ready_there(bench):
    bench.at(START)
    queue = bench.queue(**RETAINED)
    queue.set_journal(True)
    bench.connection(1).feed(numbered(1, 45))
    assert get_all(bench, queue) == [*range(1, 46)]
    second, third = [segment["base_seq"] for segment in queue.segments()][1:3]
    bench.core.clock = lambda: (START + 5000) * 1_000_000
    assert plane.replay(queue, second - 2, third + 1, dry=True)[0] == third - second + 4
    assert [events(queue, number) for number in (1, 2, 3)] == [[], [], []]
    assert plane.replay(queue, second - 2, third + 1)[0] == third - second + 4
    for number, seqs in ((1, range(second - 2, second)), (2, range(second, third)), (3, range(third, third + 2))):
        assert events(queue, number) == [
            *[(layout.EVENT_REPLAYED, seq, 0, START + 5000) for seq in seqs],
            (layout.REPLAY_EVENT, seqs[-1], len(seqs), START + 5000)]
    assert plane.replay(queue, second - 1, second)[0] == 0      # They are ready.
    assert [len(events(queue, number)) for number in (1, 2)] == [3, third - second + 1]


def test_a_consumer_that_waits_gets_what_is_replayed_though_nothing_else_happens(bench):
    queue = fill(bench, **RETAINED)
    client = bench.connection(1)
    consume(client.channels[1], queue)
    bench.turns()
    before = bench.scheduled
    assert plane.replay(queue, 3, 4, dry=True)[0] == 2
    assert bench.scheduled == before
    assert plane.replay(queue, 3, 4)[0] == 2
    assert bench.scheduled == before + 1
    bench.turns()
    assert numbers(client.delivered()) == [3, 4]


def test_a_retry_time_from_before_the_start_does_not_count_for_what_is_replayed(bench, make_bench):
    def rule(queue):
        queue.gate.set_rule(causes=ALL_CAUSES, min_ms=100_000, max_ms=100_000)

    bench.at(START)
    queue = with_groups(bench)
    rule(queue)
    client = bench.connection(1)
    client.feed(numbered(1, 1, headers={"group-id": "a"}))
    consume(client.channels[1], queue)
    bench.turns()
    client.feed(nack(1, 1))
    again = make_bench(segment_octets=SEGMENT)
    again.at(START + 10)
    found = again.recovered(**RETAINED)
    found.gate = plane.Groups(sticky=False, by="header", names=(b"group-id",))
    rule(found)
    assert found.gate.scan(10)
    assert found.gate.find(b"a")["states"] == ["retrying"]
    assert found.gate.release(b"a")
    client = again.connection(1)
    consume(client.channels[1], found)
    again.turns()
    assert numbers(client.delivered()) == [1]
    client.feed(ack(1, 1))
    assert plane.replay(found, 1, 1)[0] == 1
    assert found.gate.scan(10)
    assert found.gate.find(b"a")["states"] == []
    again.turns()
    assert numbers(client.delivered()) == [1]
    found.check()

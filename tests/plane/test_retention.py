"""Settled messages that stay, and come again: against a model, over kill -9, and by their entries and events."""

import shutil
import tempfile
import time
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plane.harness import Bench, consume, publish, read

from brokerd import plane
from brokerd.store import format as layout
from brokerd.store import reading
from brokerd.wire.properties import Properties, encode_header

BODY = b"b" * 300
SEGMENT = 4096
ALL = (1 << 64) - 1


def numbered(first, count, **properties):
    """Publishes with bodies that say their number."""
    octets = encode_header(0, Properties(delivery_mode=2, **properties))[12:]
    return b"".join(publish(1, b"%06d" % n + BODY, properties=octets) for n in range(first, first + count))


def numbers(messages):
    return [int(message.body[:6]) for message in messages]


@pytest.fixture
def bench(make_bench):
    return make_bench(segment_octets=SEGMENT)


def fill(bench, count=45, **rules):
    """A queue through which so many messages went; all are settled."""
    queue = bench.queue(**rules)
    bench.connection(1).feed(numbered(1, count))
    assert len(read(bench, queue)) == count
    return queue


def segment_files(queue):
    return sorted(path.name for path in Path(queue.directory).iterdir() if path.name.startswith("msgs."))


def test_settled_segments_stay_while_a_queue_retains_them(bench):
    plain, queue = fill(bench), None
    assert len(segment_files(plain)) == 1
    queue = bench.queue(b"r", retain_octets=1 << 20)
    bench.connection(1).feed(numbered(1, 45).replace(b"\1q", b"\1r"))
    assert len(read(bench, queue)) == 45
    assert len(segment_files(queue)) == 5
    segments, octets, first, replayed = plane.describe_retention(queue)
    assert (segments, first, replayed) == (4, 1, 0)
    assert octets > 3.5 * SEGMENT
    queue.check()


def test_segments_beyond_the_octets_go_the_oldest_first(bench):
    queue = fill(bench, retain_octets=2 * SEGMENT)
    assert bench.core.enforce_retention(1) == 1
    assert bench.core.enforce_retention(9) == 1
    assert bench.core.enforce_retention(9) == 0
    assert plane.describe_retention(queue)[:3:2] == (2, 21)
    queue.check()
    queue.set_rules(retain_octets=0)
    assert bench.core.enforce_retention(9) == 2
    assert plane.describe_retention(queue)[0] == 0


def test_segments_beyond_the_age_go_and_a_queue_that_is_copied_keeps_its_own(bench):
    bench.at(1_000_000)
    queue = fill(bench, retain_ms=1000)
    assert bench.core.enforce_retention(9) == 0
    bench.at(1_001_000)
    assert bench.core.enforce_retention(9) == 0
    bench.at(1_001_001)
    queue.copying = True
    assert bench.core.enforce_retention(9) == 0
    queue.copying = False
    assert bench.core.enforce_retention(9) == 4
    assert len(segment_files(queue)) == 1


def test_a_queue_without_the_rule_any_more_gives_all_up(bench):
    queue = fill(bench, retain_ms=1 << 40)
    queue.set_rules()
    assert bench.core.enforce_retention(99) == 4
    assert bench.core.enforce_retention(99) == 0
    assert plane.replay(queue, 1, ALL)[0] == 5      # of the segment that is still appended to
    queue.check()


def test_a_queue_without_the_rule_gives_all_up_though_it_is_in_pieces(bench):
    queue = fill(bench, retain_octets=1 << 20)
    queue.set_rules()
    assert [bench.core.enforce_retention(1) for _ in range(5)] == [1, 1, 1, 1, 0]
    assert plane.describe_retention(queue)[0] == 0


def test_retention_retires_so_many_segments_of_all_queues_together(bench):
    fill(bench, retain_octets=0)
    bench.queue(b"r", retain_octets=0)
    bench.connection(1).feed(numbered(1, 45).replace(b"\1q", b"\1r"))
    assert len(read(bench, bench.queues[b"r"])) == 45
    assert [bench.core.enforce_retention(3) for _ in range(4)] == [3, 3, 2, 0]


def test_as_many_octets_as_may_stay_do_and_the_time_is_read_when_they_are_counted(bench):
    queue = fill(bench, retain_octets=1 << 20)
    octets = plane.describe_retention(queue)[1]
    queue.set_rules(retain_octets=octets)
    assert bench.core.enforce_retention(9) == 0
    queue.set_rules(retain_octets=octets - 1)
    assert bench.core.enforce_retention(9) == 1
    queue.set_rules(retain_ms=3600 * 1000)
    bench.core.clock = lambda: time.time_ns() + 3601 * 10**9
    assert bench.core.enforce_retention(9) == 3


@pytest.mark.parametrize("levels", [(0, 1), (1, 0)])
def test_of_all_levels_the_oldest_segments_go_first(bench, levels):
    queue = bench.queue(max_priority=1, retain_octets=1 << 20)
    for at, level in enumerate(levels):
        bench.at(1000 * (at + 1))
        bench.connection(1).feed(numbered(45 * at + 1, 45, priority=level))
        assert len(read(bench, queue)) == 45
    segments, octets, first, _ = plane.describe_retention(queue)
    assert (segments, first) == (8, 1)
    queue.set_rules(retain_octets=octets // 2)
    assert bench.core.enforce_retention(9) == 4
    assert plane.describe_retention(queue)[2] == 46


def test_replayed_messages_come_in_order_before_newer_ones_and_say_so(bench):
    queue = fill(bench, retain_octets=1 << 20)
    publisher = bench.connection(1)
    publisher.feed(numbered(46, 3, headers={"a": 1}))
    assert plane.replay(queue, 5, 20) == (16, 0, 5, 20)
    assert (queue.ready, plane.describe_retention(queue)[3]) == (19, 16)
    queue.check()
    got = read(bench, queue)
    assert numbers(got) == [*range(5, 21), 46, 47, 48]
    assert [message.redelivered for message in got] == [True] * 16 + [False] * 3
    assert all(b"\x0ax-replayedt\x01" in message.properties for message in got[:16])
    assert not any(b"x-replayed" in message.properties for message in got[16:])
    assert plane.describe_retention(queue)[0] == 4      # Settled again, they stay again.
    queue.check()


def test_octets_of_what_is_replayed_are_ready(bench):
    queue = fill(bench, retain_octets=1 << 20)
    assert plane.replay(queue, 1, 5)[0] == 5
    assert (queue.ready, queue.ready_octets) == (5, 5 * (6 + len(BODY)))


def test_what_is_chosen_is_replayed_in_pieces(bench):
    queue = fill(bench, retain_octets=1 << 20)
    chosen = array("Q", [2, 3, 17, 39, 90])
    assert plane.replay(queue, 1, ALL, chosen=chosen, dry=True) == (4, 0, 2, 39)
    assert queue.ready == 0
    at, found = 1, []
    while at:
        _, at, first, last = plane.replay(queue, at, ALL, chosen=chosen, looks=5)
        found += [first, last]
    assert sorted(set(found)) == [0, 2, 3, 17, 39]
    assert plane.replay(queue, 1, ALL, chosen=chosen) == (0, 0, 0, 0)      # They are ready.
    assert numbers(read(bench, queue)) == [2, 3, 17, 39]
    assert plane.replay(queue, 1, ALL, most=3)[:2] == (3, 4)


def test_only_messages_since_a_time_are_replayed(bench):
    bench.at(1000)
    queue = bench.queue(retain_octets=1 << 20)
    publisher = bench.connection(1)
    publisher.feed(numbered(1, 20))
    bench.at(2000)
    publisher.feed(numbered(21, 20))
    assert len(read(bench, queue)) == 40
    assert plane.replay(queue, 1, ALL, since_ns=2000 * 1_000_000, dry=True) == (20, 0, 21, 40)
    assert plane.replay(queue, 1, ALL, since_ns=1500 * 1_000_000) == (20, 0, 21, 40)


def test_one_group_is_replayed(bench):
    queue = bench.queue(retain_octets=1 << 20)
    publisher = bench.connection(1)
    for number in range(1, 31):
        group = ["a", "b", 7][number % 3]
        publisher.feed(numbered(number, 1, headers={"group-id": group}))
    read(bench, queue)
    groups = plane.Window(1)
    groups.hash_key = plane.HashKey(b"k" * 16)
    groups.set_rule(by_content=False, waiting=False, action=0, group_from=1)
    assert plane.replay(queue, 1, ALL, groups=groups, group=b"b")[0] == 10
    assert plane.replay(queue, 1, ALL, groups=groups, group=b"7")[0] == 10
    assert plane.replay(queue, 1, ALL, groups=groups, group=b"c")[0] == 0
    assert numbers(read(bench, queue)) == [n for n in range(1, 31) if n % 3]


def test_what_was_purged_or_removed_stays_away(bench):
    queue = bench.queue(retain_octets=1 << 20)
    bench.connection(1).feed(numbered(1, 30))
    assert queue.remove(3)
    reader = bench.connection(1)
    assert reader.channels[1].get(queue, True)
    assert queue.purge() == 28
    assert plane.replay(queue, 1, ALL) == (1, 0, 1, 1)
    queue.check()


def test_a_replayed_message_does_not_expire_again(bench):
    bench.at(1000)
    queue = bench.queue(retain_octets=1 << 20, ttl_ms=100)
    bench.connection(1).feed(numbered(1, 20))
    bench.at(2000)
    assert (queue.ready, queue.expired) == (0, 20)
    assert plane.replay(queue, 1, 5)[0] == 5
    bench.at(3000)
    assert queue.ready == 5
    again = Bench(bench.directory, segment_octets=SEGMENT)
    again.at(4000)
    found = again.recovered(retain_octets=1 << 20, ttl_ms=100)
    again.at(5000)
    assert [b"x-replayed" in message.properties for message in read(again, found)] == [True] * 5
    again.close()


def test_a_replayed_message_is_marked_over_kill_9_also_when_it_was_out_again(bench):
    queue = fill(bench, retain_octets=1 << 20, delivery_counts=True)
    plane.replay(queue, 7, 9)
    reader = bench.connection(1)
    consume(reader.channels[1], queue)
    bench.turns()
    for _ in range(2):
        again = Bench(bench.directory, segment_octets=SEGMENT)
        found = again.recovered(retain_octets=1 << 20, delivery_counts=True)
        assert plane.describe_retention(found)[0] == 3
        found.check()
        assert [row[0] for row in found.browse(0, 99)] == [7, 8, 9]
    got = read(again, found)
    assert numbers(got) == [7, 8, 9]
    assert all(b"x-replayed" in message.properties and b"x-delivery-count" in message.properties for message in got)
    again.close()


def test_the_cursor_of_a_start_leaves_retained_segments_out(bench):
    queue = fill(bench, retain_octets=1 << 20)
    bench.connection(1).feed(numbered(46, 1))
    again = Bench(bench.directory, segment_octets=SEGMENT)
    found = again.recovered(retain_octets=1 << 20)
    assert numbers(read(again, found)) == [46]
    assert [segment["mapped"] for segment in found.segments()] == [False] * 4 + [True]
    assert plane.replay(found, 1, 3)[0] == 3
    assert numbers(read(again, found)) == [1, 2, 3]
    found.check()
    del queue
    again.close()


def test_a_journal_and_the_acks_tell_of_a_replay(bench):
    queue = bench.queue(retain_octets=1 << 20)
    queue.set_journal(True)
    bench.connection(1).feed(numbered(1, 20))
    read(bench, queue)
    plane.replay(queue, 2, 3)
    octets = Path(f"{queue.directory}/acks.0000000001").read_bytes()
    entries = reading.read_entries(octets, 1).entries
    assert [entry["kind"] & 15 for entry in entries[-2:]] == [layout.REPLAYED] * 2
    assert layout.ACKS_HEADER.unpack(octets[:64])[1] == 3
    settled = reading.settled_positions(entries)
    assert len(settled) == len(np_unique(entries)) - 2
    journal = Path(f"{queue.directory}/journal.0000000001").read_bytes()
    events = [journal[64 + 32 * n:96 + 32 * n] for n in range((len(journal) - 64) // 32)]
    replayed = [int.from_bytes(event[:8], "little") for event in events if event[26] == layout.EVENT_REPLAYED]
    assert replayed == [2, 3]


def np_unique(entries):
    import numpy as np

    return np.unique(entries["position"])


def test_what_cannot_be_is_not_replayed(bench, make_bench):
    transient = bench.queue(b"t", durable=False)
    assert plane.replay(transient, 1, ALL) == (0, 0, 0, 0)
    queue = fill(bench, retain_octets=1 << 20)
    assert plane.replay(queue, 100, ALL) == (0, 0, 0, 0)
    assert plane.replay(queue, 1, ALL, level=3) == (0, 0, 0, 0)
    queue.drop()
    assert plane.replay(queue, 1, ALL) == (0, 0, 0, 0)


def test_replay_in_a_queue_with_groups_keeps_each_groups_order(make_bench):
    bench = make_bench(segment_octets=SEGMENT)
    queue = bench.queue(retain_octets=1 << 20)
    queue.gate = plane.Groups(sticky=False, by="header", names=(b"group-id",), keyless="free", most=1, idle_ms=60_000,
                              max_priority=0)
    publisher = bench.connection(1)
    for number in range(1, 31):
        publisher.feed(numbered(number, 1, headers={"group-id": "ab"[number % 2]}))

    def drain():
        found = []
        reader = bench.connection(1)
        while reader.channels[1].get(queue, False):
            bench.turns()
            (got,) = reader.delivered()
            found.append(int(got.body[:6]))
            reader.channels[1].settle(got.tag, False)
            queue.check()
        return found

    assert drain() == list(range(1, 31))
    publisher.feed(numbered(31, 1, headers={"group-id": "a"}))
    assert plane.replay(queue, 5, 12)[0] == 8
    queue.check()
    assert drain() == [*range(5, 13), 31]
    # A group that is held: its replayed messages wait.
    publisher.feed(numbered(32, 1, headers={"group-id": "a"}))
    reader = bench.connection(1)
    assert reader.channels[1].get(queue, False)
    plane.replay(queue, 2, 3)
    queue.check()
    bench.turns()
    (held,) = reader.delivered()
    assert drain() == [3]
    reader.channels[1].settle(held.tag, False)
    assert drain() == [2]


class Model:
    """What a queue holds: by number, "ready", "settled" or "gone"."""

    def __init__(self):
        self.states = {}
        self.replayed = set()

    def of(self, state):
        return sorted(number for number, other in self.states.items() if other == state)


STEPS = st.lists(st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 30)),
    st.tuples(st.just("ack"), st.integers(1, 30)),
    st.tuples(st.just("ack"), st.integers(1, 30)),
    st.tuples(st.just("requeue"), st.integers(1, 8)),
    st.tuples(st.just("reject"), st.integers(1, 8)),
    st.tuples(st.just("remove"), st.integers(1, 60)),
    st.tuples(st.just("purge"), st.just(0)),
    st.tuples(st.just("replay"), st.tuples(st.integers(1, 60), st.integers(0, 40), st.integers(1, 30))),
    st.tuples(st.just("retain"), st.sampled_from([0, 1, 2, 100])),
    st.tuples(st.just("kill"), st.booleans()),
), min_size=1, max_size=30)


@settings(max_examples=60)
@given(STEPS, st.booleans())
def test_replays_are_those_of_the_model_over_kill_9(steps, journal):
    directory = tempfile.mkdtemp()
    try:
        follow(directory, steps, journal)
    finally:
        shutil.rmtree(directory)


def follow(directory, steps, journal):
    benches, model, rules = [], Model(), {"retain_octets": 1 << 20}

    def start(suspect=False):
        bench = Bench(directory, segment_octets=SEGMENT)
        benches.append(bench)
        bench.core.clock = lambda: len(model.states) + 1
        queue = bench.queue(**rules)
        if journal:
            queue.set_journal(True)
        from brokerd.store.disk import Disk
        from brokerd.store.recovery import recover

        recover(queue, Disk(), suspect, lambda finding: None)
        return bench, queue, bench.connection(1)

    bench, queue, client = start()
    for verb, value in steps:
        channel = client.channels[1]
        if verb == "publish":
            client.feed(numbered(len(model.states) + 1, value))
            model.states.update(dict.fromkeys(range(len(model.states) + 1, len(model.states) + 1 + value), "ready"))
        elif verb in ("ack", "requeue", "reject"):
            for number in model.of("ready")[:value]:
                assert channel.get(queue, False)
                bench.turns()
                (got,) = client.delivered()
                assert int(got.body[:6]) == number
                assert (b"x-replayed" in got.properties) == (number in model.replayed)
                assert got.redelivered or number not in model.replayed
                channel.settle(got.tag, False, requeue=verb == "requeue", reject=verb == "reject")
                if verb == "requeue":
                    break
                model.states[number] = "settled"
        elif verb == "remove":
            if (queue.remove(value) is not None) == (model.states.get(value) == "ready") and \
                    model.states.get(value) == "ready":
                model.states[value] = "gone"
        elif verb == "purge":
            queue.purge()
            model.states.update(dict.fromkeys(model.of("ready"), "gone"))
        elif verb == "replay":
            first, more, looks = value
            there = {number for segment in queue.segments()
                     for number in range(segment["base_seq"], segment["base_seq"] + segment["records"])}
            at = first
            while at and at <= first + more:
                _, at, _, _ = plane.replay(queue, at, first + more, looks=looks)
            for number in model.of("settled"):
                if number in there and first <= number <= first + more:
                    model.states[number] = "ready"
                    model.replayed.add(number)
        elif verb == "retain":
            rules["retain_octets"] = value * SEGMENT
            queue.set_rules(**rules)
            bench.core.enforce_retention(99)
        else:
            bench, queue, client = start()
        queue.check()
        assert [row[0] for row in queue.browse(0, 1 << 20)] == model.of("ready")
    for each in benches:
        each.close()


def test_a_replayed_message_holds_its_waiting_key_again(bench):
    queue = bench.queue(retain_octets=1 << 20)
    queue.window = plane.Window(100)
    queue.window.set_rule(by_content=False, waiting=True, action=0, group_from=0)
    bench.core.put((queue,), b"x", b"q", b"\x10\x00\x02", BODY, keys=plane.Keys({queue: 7}))
    assert queue.window.seq_of(7) == 1
    read(bench, queue)
    assert queue.window.seq_of(7) == 0
    assert plane.replay(queue, 1, 1)[0] == 1
    assert queue.window.seq_of(7) == 1


def test_a_start_finds_no_damage_where_messages_were_replayed(bench):
    queue = fill(bench, retain_octets=1 << 20)
    plane.replay(queue, 38, 43)
    again = Bench(bench.directory, segment_octets=SEGMENT)
    found = again.recovered(retain_octets=1 << 20)
    assert numbers(read(again, found)) == [38, 39, 40, 41, 42, 43]
    assert again.damages == []
    again.close()


def with_groups(bench, *, sticky=False, max_priority=0, **rules):
    queue = bench.queue(retain_octets=1 << 20, max_priority=max_priority, **rules)
    queue.gate = plane.Groups(sticky=sticky, by="header", names=(b"group-id",), keyless="free", most=1, idle_ms=60_000,
                              max_priority=max_priority)
    return queue


def get(bench, client, queue):
    """(number, tag) of what goes out next."""
    assert client.channels[1].get(queue, False)
    bench.turns()
    (got,) = client.delivered()
    queue.check()
    return int(got.body[:6]), got.tag


def test_a_replayed_message_goes_before_a_later_one_of_its_group_that_waits(bench):
    queue = with_groups(bench)
    client = bench.connection(1)
    client.feed(numbered(1, 2, headers={"group-id": "a"}))
    client.channels[1].settle(get(bench, client, queue)[1], False)
    number, tag = get(bench, client, queue)
    assert number == 2
    assert plane.replay(queue, 1, 1)[0] == 1
    client.channels[1].settle(tag, False, requeue=True)     # It waits in its group, and the group's turn comes.
    assert get(bench, client, queue)[0] == 1


def test_of_two_replays_the_one_with_the_lower_numbers_does_not_hide_the_other(bench):
    queue = with_groups(bench)
    client = bench.connection(1)
    client.feed(numbered(1, 2, headers={"group-id": "b"}) + numbered(3, 2, headers={"group-id": "a"}))
    for _ in range(3):                  # 1 and 2 of b, and 3 of a.
        client.channels[1].settle(get(bench, client, queue)[1], False)
    number, tag = get(bench, client, queue)
    assert number == 4
    assert plane.replay(queue, 3, 3)[0] == 1
    assert plane.replay(queue, 1, 1)[0] == 1
    client.channels[1].settle(tag, False, requeue=True)     # 4 waits in its group, and the group's turn comes.
    got = [get(bench, client, queue)[0] for _ in range(2)]
    assert sorted(got) == [1, 3]


@pytest.mark.parametrize("max_priority", [0, 2])
def test_a_replayed_message_that_waits_in_its_group_does_not_expire_again(make_bench, max_priority):
    bench = make_bench(segment_octets=SEGMENT)
    bench.at(1000)
    queue = with_groups(bench, max_priority=max_priority, ttl_ms=100)
    client = bench.connection(1)
    client.feed(numbered(1, 2, headers={"group-id": "a"}))
    for _ in range(2):
        client.channels[1].settle(get(bench, client, queue)[1], False)
    bench.at(2000)
    assert plane.replay(queue, 1, 2)[0] == 2
    number, tag = get(bench, client, queue)
    bench.at(3000)
    assert not client.channels[1].get(queue, False)         # The other one waits in the group.
    client.channels[1].settle(tag, False)
    assert (number, get(bench, client, queue)[0]) == (1, 2)


@pytest.mark.parametrize("rule_changes", [False, True])
def test_a_replayed_message_that_returns_takes_back_a_later_one_that_went_out_before_it(bench, rule_changes):
    queue = with_groups(bench, sticky=True)
    client = bench.connection(1, 2)
    client.feed(numbered(1, 2, headers={"group-id": "a"}))
    consume(client.channels[2], queue)
    bench.turns()
    assert numbers(client.delivered()) == [1, 2]
    client.channels[2].settle(1, False)
    assert plane.replay(queue, 1, 1)[0] == 1
    bench.turns()
    assert numbers(client.delivered()) == [1]
    if rule_changes:
        gate, queue.gate = queue.gate, None
        queue.gate = gate
    client.channels[2].settle(3, False, requeue=True)
    bench.turns()
    assert [(message.redelivered, number) for message, number in
            [(each, int(each.body[:6])) for each in client.delivered()]] == [(True, 1), (True, 2)]
    client.channels[2].settle(2, False)                     # Too late.
    assert queue.gate.fenced == 1
    queue.check()


def test_a_message_that_was_replayed_and_purged_was_not_out_again(bench):
    queue = with_groups(bench)
    client = bench.connection(1)
    client.feed(numbered(1, 1, headers={"group-id": "a"}))
    client.channels[1].settle(get(bench, client, queue)[1], False)
    assert plane.replay(queue, 1, 1)[0] == 1
    assert queue.purge() == 1
    queue.check()
    client.feed(numbered(2, 1, headers={"group-id": "a"}))
    assert get(bench, client, queue)[0] == 2


def test_what_is_replayed_into_a_full_queue_makes_it_no_longer_than_its_limit(bench):
    queue = fill(bench, retain_octets=1 << 20, max_length=60)
    queue.set_rules(retain_octets=1 << 20, max_length=10)
    assert plane.replay(queue, 1, ALL)[0] == 45
    bench.turns()
    assert queue.ready == 10
    queue.check()


def test_what_is_replayed_into_a_full_queue_that_refuses_publishes_stays(bench):
    queue = fill(bench, retain_octets=1 << 20, max_length=60)
    queue.set_rules(retain_octets=1 << 20, max_length=10, overflow=1)
    assert plane.replay(queue, 1, ALL)[0] == 45
    bench.turns()
    assert (queue.ready, queue.discarded) == (45, 0)

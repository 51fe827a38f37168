"""What an operator does to a group: pause, resume, park, release, skip, purge; and what a restart remembers of it."""

from pathlib import Path

import pytest
from tests.plane.harness import Bench, ack, consume, nack
from tests.plane.test_groups import NAMES, grouped, properties, received, send, words
from tests.plane.test_retry import ALL, START

from brokerd import plane
from brokerd.store import format as layout


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2, 3)


@pytest.fixture
def queue(bench):
    return grouped(bench)


def test_a_paused_group_waits_until_it_is_resumed(bench, connection, queue):
    consume(connection.channels[2], queue)
    queue.gate.pause(b"r")
    send(connection, "r1 r2 g1")
    assert words(received(bench, connection)) == "g1"
    assert queue.gate.find(b"r")["states"] == ["paused"]
    assert queue.gate.resume(b"r")
    assert not queue.gate.resume(b"r")
    assert words(received(bench, connection)) == "r1"


def test_a_group_that_is_paused_while_its_first_is_out_waits_after_that(bench, connection, queue):
    consume(connection.channels[2], queue)
    send(connection, "r1 r2")
    assert words(received(bench, connection)) == "r1"
    queue.gate.pause(b"r")
    connection.feed(ack(2, 1))
    assert received(bench, connection) == []
    assert queue.gate.release(b"r")
    assert words(received(bench, connection)) == "r2"


@pytest.mark.parametrize("out", ["settled", "returned", "unsettled"])
def test_a_parked_group_stays_parked_after_a_crash_until_it_is_released(tmp_path, out):
    bench = Bench(tmp_path)
    connection, queue = bench.connection(1, 2), grouped(bench)
    consume(connection.channels[2], queue)
    send(connection, "r1 r2 g1 r3")
    assert words(received(bench, connection)) == "r1 g1"
    assert queue.gate.park(b"r")
    assert not queue.gate.park(b"nobody")
    if out != "unsettled":
        connection.feed(ack(2, 1) if out == "settled" else nack(2, 1))
    connection.feed(ack(2, 2))
    assert received(bench, connection) == []
    queue.check()

    again = Bench(tmp_path)
    other = again.connection(1, 2)
    recovered = grouped(again, recovered=True)
    consume(other.channels[2], recovered)
    send(other, "r4 g2")
    first = [(1, "r1")] if out == "unsettled" else []       # It was out: its group is parked behind it.
    deliveries = received(again, other)
    assert deliveries == [*first, (len(first) + 1, "g2")]
    other.feed(ack(2, 0, multiple=True))
    assert received(again, other) == []
    assert recovered.gate.find(b"r")["states"] == ["parked"]
    assert recovered.gate.release(b"r")
    tag, got = deliveries[-1][0], []
    for _ in range(4 if out == "returned" else 3):
        got += received(again, other)
        tag += 1
        other.feed(ack(2, tag))
    assert words(got) == ("r1 " if out == "returned" else "") + "r2 r3 r4"
    recovered.check()
    again.close()

    third = Bench(tmp_path)
    assert grouped(third, recovered=True).ready == 0
    third.close()


def test_a_released_group_is_not_parked_after_a_crash(tmp_path):
    bench = Bench(tmp_path)
    connection, queue = bench.connection(1, 2), grouped(bench)
    send(connection, "r1 r2")
    queue.gate.scan(100)
    assert queue.gate.park(b"r")
    assert queue.gate.release(b"r")
    again = Bench(tmp_path)
    other = again.connection(1, 2)
    recovered = grouped(again, recovered=True)
    consume(other.channels[2], recovered)
    assert words(received(again, other)) == "r1"
    again.close()


def test_skip_drops_the_first_message_of_a_group_of_which_none_is_out(bench, connection, queue):
    send(connection, "r1 r2 r3")
    queue.gate.scan(100)
    assert queue.gate.park(b"r")
    assert queue.gate.skip(b"r") == 1
    consume(connection.channels[2], queue)
    assert received(bench, connection) == []
    assert queue.gate.release(b"r")
    assert words(received(bench, connection)) == "r2"
    assert queue.gate.skip(b"r") == 0


def test_purge_of_a_group_drops_what_waits_in_it_and_nothing_else(bench, connection, queue):
    send(connection, "r1 g1 r2 g2 r3")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 g1"
    assert queue.gate.purge(b"r", 1) == 1
    assert queue.gate.purge(b"r", 100) == 1
    queue.check()
    connection.feed(ack(2, 1) + ack(2, 2))
    assert words(received(bench, connection)) == "g2"


def test_a_group_shows_its_first_message_owner_and_turn(bench, connection, queue):
    send(connection, "r1 r2 g1")
    owner = consume(connection.channels[2], queue)
    connection.channels[2].prefetch = 1
    assert words(received(bench, connection)) == "r1 g1"
    connection.feed(nack(2, 2))
    assert words(received(bench, connection)) == "g1"
    found = queue.gate.find(b"r")
    assert (found["owner"], found["unacked"], found["waiting"], found["first_seq"]) == (owner, 1, 1, 2)
    assert not found["turn"]
    assert found["states"] == []
    assert found["failed"] == 0
    assert queue.gate.waits == 1


def test_the_messages_that_wait_in_a_group_are_shown_in_pieces_with_their_failures(bench, connection, queue):
    send(connection, "r1 g1 r2 r3 r4")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 g1"
    connection.channels[2].close()
    shown = queue.gate.messages(b"r", 0, 2)
    assert [(place, failed, row[0], row[2], row[6]) for place, failed, row in shown] == [
        (1, 1, 1, True, b"r1"), (3, 0, 3, False, b"r2")]
    assert [row[6] for _, _, row in queue.gate.messages(b"r", 3, 10)] == [b"r3", b"r4"]
    assert queue.gate.messages(b"r", 5, 10) == queue.gate.messages(b"nobody", 0, 10) == []
    queue.check()


def test_no_group_has_the_key_of_the_messages_without_one(bench, connection):
    queue = grouped(bench, max_priority=1)
    send(connection, "_1 r1")
    queue.gate.scan(10)
    assert [one["key"] for one in queue.gate.groups(0, 10)[0]] == [b"r"]
    keys = [bytes(1025 + level) for level in range(2)]
    assert [queue.gate.find(key) for key in keys] == [None, None]
    assert not any(verb(key) for key in keys for verb in (queue.gate.resume, queue.gate.release, queue.gate.skip))


def test_groups_are_shown_in_pieces_to_the_last_one(bench, connection, queue):
    send(connection, "a1 b1 c1")
    queue.gate.scan(10)
    found, at = [], 1
    while at:
        some, at = queue.gate.groups(at, 1)
        found += [one["key"] for one in some]
    assert found == [b"a", b"b", b"c"]


def test_a_group_whose_time_is_over_has_none(bench, connection, queue):
    bench.at(1_000_000)
    queue.gate.set_rule(causes=1 << 1, min_ms=100, max_ms=100)
    send(connection, "r1 r2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    connection.feed(nack(2, 1))
    assert queue.gate.find(b"r")["until"]
    bench.at(1_000_100)
    assert queue.gate.find(b"r")["until"] == 0


def test_what_a_group_has_no_message_for_is_not_in_turn(bench, connection):
    queue = grouped(bench, sticky=True)
    consume(connection.channels[2], queue)
    send(connection, "r1")
    assert words(received(bench, connection)) == "r1"
    connection.feed(ack(2, 1))
    assert not queue.gate.find(b"r")["turn"]


def test_a_message_that_the_queue_keeps_aside_for_its_letter_is_not_put_back(bench, connection):
    queue = grouped(bench, dead_letters=True)
    queue.keeps = True
    send(connection, "r1 r2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    connection.feed(nack(2, 1, requeue=False))
    bench.turns()
    assert not queue.gate.put_back(1)
    queue.check()
    assert received(bench, connection) == []


@pytest.mark.parametrize("verb", ["release", "resume"])
def test_a_group_that_goes_on_asks_for_a_turn(bench, connection, queue, verb):
    consume(connection.channels[2], queue)
    queue.gate.pause(b"r")
    send(connection, "r1")
    assert received(bench, connection) == []
    before = bench.scheduled
    assert getattr(queue.gate, verb)(b"r")
    assert bench.scheduled == before + 1


def test_octets_of_what_is_put_into_its_group_are_counted_once(bench, connection, queue):
    send(connection, "r1 r2", size=1000)
    assert queue.gate.put_back(1)
    assert queue.ready_octets == 1002
    queue.check()


def test_how_long_messages_wait_counts_up_to_now(bench):
    bench.at(1000)
    queue = grouped(bench)
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    send(connection, "r1 r2")
    assert words(received(bench, connection)) == "r1"
    before = queue.gate.waited_ns
    bench.at(1500)
    send(connection, "g1")              # It need not wait.
    assert queue.gate.waited_ns == before + 500_000_000
    assert queue.gate.waited_ns == before + 500_000_000     # No time counts twice.
    send(connection, "r3")
    assert received(bench, connection) == [(2, "g1")]
    bench.at(1600)
    assert queue.gate.waited_ns == before + 700_000_000     # Two wait.
    assert queue.gate.waits == 2


def test_the_group_of_messages_without_a_key_has_an_empty_name(bench):
    properties = b"\0\0"
    assert grouped(bench, keyless="single").gate.key_of(b"", properties) == b""
    assert grouped(bench, name=b"free").gate.key_of(b"", properties) is None


def test_no_group_has_a_key_that_is_too_long(bench, connection, queue):
    with pytest.raises(ValueError, match="so long a key"):
        queue.gate.pause(b"r" * 1025)
    assert len(queue.gate) == 0


def test_a_message_that_was_put_back_goes_out_though_nothing_else_happens_to_its_group(bench, connection, queue):
    send(connection, "r1")
    assert queue.set_aside(1)
    assert queue.gate.put_back(1)
    queue.check()
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"


@pytest.mark.parametrize("stop", ["pause", "park"])
def test_a_group_whose_turn_it_was_does_not_go_out_once_it_is_stopped(bench, connection, queue, stop):
    send(connection, "r1")
    assert queue.gate.scan(10)
    assert queue.gate.find(b"r")["turn"]
    getattr(queue.gate, stop)(b"r")
    queue.check()
    consume(connection.channels[2], queue)
    assert received(bench, connection) == []
    assert queue.gate.resume(b"r") is (stop == "pause")     # What is parked, resume does not release.
    assert words(received(bench, connection)) == ("r1" if stop == "pause" else "")


def test_a_group_of_which_nothing_waits_is_not_parked(bench, connection, queue):
    consume(connection.channels[2], queue)
    send(connection, "r1")
    assert words(received(bench, connection)) == "r1"
    assert not queue.gate.park(b"r")
    send(connection, "r2")
    connection.feed(ack(2, 1))
    assert words(received(bench, connection)) == "r2"


def test_how_long_messages_waited_is_right_though_nobody_asks_between_their_changes(bench):
    bench.at(1000)
    queue = grouped(bench)
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    send(connection, "r1 r2")           # One waits,
    bench.at(1500)
    send(connection, "r3")              # two,
    bench.at(1700)
    connection.feed(ack(2, 1))          # one,
    bench.at(2000)
    connection.feed(ack(2, 2))          # none.
    bench.at(3000)
    assert queue.gate.waited_ns == (500 + 2 * 200 + 300) * 1_000_000


# --- put_back()


def put(bench, queue, body, *, redriven, group=True, place=1, aside=False):
    """A message of the group r, or of none, that stood there; its number now."""
    table = {b"x-group-seq": place} | ({b"group-id": b"r"} if group else {})
    bench.core.put((queue,), b"", b"q", properties(table), body, redriven=redriven)
    seq = queue.next_seq - 1
    assert not aside or queue.set_aside(seq)
    return seq


def told_of(queue):
    """(seq, type) of the events in the queue's journal that tell of groups."""
    octets = (Path(queue.directory) / layout.journal_name(1)).read_bytes()
    events = [octets[at:at + 32] for at in range(64, len(octets) - 31, 32)]
    return [(int.from_bytes(event[:8], "little"), event[26]) for event in events
            if event[26] in (layout.REDRIVEN_EVENT, layout.GROUP_PARKED_EVENT)]


@pytest.mark.parametrize(("redriven", "aside", "group", "max_priority"), [
    (True, True, True, 0), (True, False, True, 0), (False, True, True, 0), (True, True, False, 0),
    (True, True, False, 1), (False, False, True, 1),
])
def test_only_a_redriven_message_that_was_aside_is_told_to_be_in_its_group_again(bench, redriven, aside, group,
                                                                                 max_priority):
    queue = grouped(bench, max_priority=max_priority)
    queue.set_journal(True)
    seq = put(bench, queue, b"x", redriven=redriven, aside=aside, group=group)
    assert queue.gate.put_back(seq)
    queue.check()
    bench.turns()
    expected = [(seq, layout.REDRIVEN_EVENT)] if redriven and aside and group else []
    assert told_of(queue) == expected


def test_a_ready_message_without_a_group_that_is_put_back_is_ready(bench, connection):
    queue = grouped(bench)
    seq = put(bench, queue, b"x", redriven=True, group=False)
    assert queue.gate.put_back(seq)
    queue.check()
    assert (queue.ready, queue.aside) == (1, 0)
    consume(connection.channels[2], queue)
    assert received(bench, connection) == [(1, "x")]


def test_a_message_that_failed_since_the_start_does_not_die_of_a_limit_that_was_lowered_when_it_is_put_back(bench):
    connection, queue = bench.connection(1, 2), bench.queue(delivery_limit=5, dead_letters=True)
    send(connection, "r1")
    for tag in (1, 2):
        assert connection.channels[1].get(queue, False)
        bench.turns()
        connection.feed(nack(1, tag))
    queue.set_rules(delivery_limit=2, dead_letters=True)
    queue.gate = plane.Groups(sticky=False, by="header", names=NAMES)
    assert queue.gate.put_back(1)
    queue.check()
    assert (queue.died, queue.gate.find(b"r")["waiting"], queue.gate.find(b"r")["failed"]) == ([], 1, 2)


def test_a_message_that_is_put_back_after_a_start_waits_for_its_retry_over_further_starts(make_bench):
    bench = make_bench()
    bench.at(START)
    connection, queue = bench.connection(1, 2), grouped(bench)
    queue.gate.set_rule(causes=ALL, min_ms=100, max_ms=1000)
    send(connection, "r1")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    connection.feed(nack(2, 1))
    for _ in range(3):
        bench = make_bench()
        bench.at(START + 10)
        queue = grouped(bench, recovered=True)
        queue.gate.set_rule(causes=ALL, min_ms=100, max_ms=1000)
        assert queue.gate.put_back(1)
        queue.check()
        found = queue.gate.find(b"r")
        assert (found["states"], found["until"]) == (["retrying"], (START + 100) * 1_000_000)
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    assert received(bench, connection) == []
    bench.at(START + 100)
    assert words(received(bench, connection)) == "r1"


@pytest.mark.parametrize("another", [False, True])
def test_all_earlier_messages_of_its_group_go_before_what_is_put_back_however_many_others_are_before_them(
        make_bench, another):
    bench = make_bench()
    connection, queue = bench.connection(1, 2), grouped(bench)
    send(connection, "g " * 200 + "r1 r2")
    queue.remove(202)
    again = [put(bench, queue, b"r2-again", redriven=True, place=202)]
    if another:
        bench.core.put((queue,), b"", b"q", properties({b"group-id": b"b", b"x-group-seq": 1}), b"b1", redriven=True)
        again.append(queue.next_seq - 1)
    bench = make_bench()
    connection, queue = bench.connection(1, 2), grouped(bench, recovered=True)
    queue.gate.pause(b"g")
    for seq in again:
        assert queue.gate.put_back(seq)
    consume(connection.channels[2], queue)
    got = received(bench, connection)
    assert [word for _, word in got if word.startswith("r")] == ["r1"]
    connection.feed(ack(2, next(tag for tag, word in got if word == "r1")))
    assert words(received(bench, connection)) == "r2-again"
    queue.check()


def test_a_redriven_message_that_returns_takes_back_a_later_one_that_went_out_before_it(bench, connection):
    queue = grouped(bench, sticky=True)
    send(connection, "r1 r2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 r2"
    connection.feed(ack(2, 1))
    assert queue.gate.put_back(put(bench, queue, b"r1-again", redriven=True, aside=True))
    assert received(bench, connection) == [(3, "r1-again")]
    connection.feed(nack(2, 3))
    assert words(received(bench, connection)) == "r1-again r2"
    connection.feed(ack(2, 2))
    assert queue.gate.fenced == 1
    queue.check()

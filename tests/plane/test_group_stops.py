"""Groups that wait for a retry, or are parked because a message has failed too often."""

import pytest
from tests.plane.harness import ack, consume, nack, reject
from tests.plane.test_groups import grouped, send, words
from tests.plane.test_retry import ALL, FAILED, START

from brokerd.store import compaction
from brokerd.store import format as layout
from brokerd.store.disk import Disk

FIXED = 2


def retrying(bench, *, recovered=False, rule=None, **more):
    queue = grouped(bench, recovered=recovered, **more)
    queue.gate.set_rule(**({"causes": ALL, "min_ms": 100, "max_ms": 1000} if rule is None else rule))
    return queue


def received(bench, connection):
    bench.turns()
    return [(one.tag, one.body.decode()) for one in connection.delivered()]


def state(queue, key):
    found = queue.gate.find(key)
    return found and (found["states"], found["until"] // 1_000_000, found["waiting"], found["unacked"])


@pytest.fixture
def connection(bench):
    bench.at(START)
    return bench.connection(1, 2, 3)


# --- retries


def test_a_group_waits_for_its_message_and_others_go_on(bench, connection):
    queue = retrying(bench)
    send(connection, "r1 r2 g1 g2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 g1"
    connection.feed(nack(2, 1) + ack(2, 2))
    assert words(received(bench, connection)) == "g2"
    assert state(queue, b"r") == (["retrying"], START + 100, 2, 0)
    bench.at(START + 99)
    assert received(bench, connection) == []
    bench.at(START + 100)
    assert received(bench, connection) == [(4, "r1")]
    connection.feed(nack(2, 4))
    assert state(queue, b"r") == (["retrying"], START + 300, 2, 0)      # Linear: twice as long.
    send(connection, "r3")
    bench.at(START + 299)
    assert received(bench, connection) == []
    bench.at(START + 300)
    assert received(bench, connection) == [(5, "r1")]
    connection.feed(ack(2, 5))
    assert received(bench, connection) == [(6, "r2")]
    queue.check()


def test_a_group_waits_until_the_latest_time_of_its_messages(bench, connection):
    queue = retrying(bench, sticky=True, rule={"causes": ALL, "min_ms": 100, "max_ms": 1000, "backoff": FIXED})
    send(connection, "r1 r2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 r2"
    connection.feed(nack(2, 2))
    bench.at(START + 60)
    connection.feed(nack(2, 1))
    bench.at(START + 100)
    assert received(bench, connection) == []
    bench.at(START + 160)
    assert words(received(bench, connection)) == "r1 r2"


def test_a_message_with_a_shorter_delay_does_not_shorten_its_groups_wait(bench, connection):
    queue = retrying(bench, sticky=True)
    consume(connection.channels[2], queue)
    send(connection, "r1")
    assert words(received(bench, connection)) == "r1"
    connection.feed(nack(2, 1))
    bench.at(START + 100)
    send(connection, "r2")
    assert words(received(bench, connection)) == "r1 r2"
    connection.feed(nack(2, 3, multiple=True))      # For the second time, and for the first.
    bench.at(START + 200)
    assert received(bench, connection) == []
    bench.at(START + 300)
    assert words(received(bench, connection)) == "r1 r2"


def test_later_messages_that_return_with_an_earlier_one_add_no_delay(bench, connection):
    queue = retrying(bench, sticky=True)
    send(connection, "r1 r2 r3")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 r2 r3"
    connection.feed(nack(2, 1))
    assert state(queue, b"r") == (["retrying"], START + 100, 3, 0)
    connection.feed(ack(2, 2) + ack(2, 3))
    assert queue.gate.fenced == 2
    bench.at(START + 100)
    assert words(received(bench, connection)) == "r1 r2 r3"


def test_a_later_message_that_has_failed_before_adds_no_delay_of_its_own(bench, connection):
    queue = retrying(bench, sticky=True)
    send(connection, "r1 r2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 r2"
    connection.feed(nack(2, 2))
    bench.at(START + 100)
    assert words(received(bench, connection)) == "r2"
    connection.feed(nack(2, 1))         # It takes r2 back, for which it is the second time.
    assert state(queue, b"r") == (["retrying"], START + 200, 2, 0)
    bench.at(START + 200)
    assert words(received(bench, connection)) == "r1 r2"


def test_only_the_returns_wait_that_the_rule_names(bench, connection):
    queue = retrying(bench, rule={"causes": FAILED, "min_ms": 100, "max_ms": 100})
    send(connection, "r1")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    assert words(received(bench, connection)) == "r1 r1"
    connection.feed(reject(2, 2))
    assert received(bench, connection) == []
    assert state(queue, b"r") == (["retrying"], START + 100, 1, 0)


@pytest.mark.parametrize("again", [1, 2])
def test_a_start_knows_until_when_a_group_waits(make_bench, again):
    bench = make_bench()
    bench.at(START)
    queue = retrying(bench)
    connection = bench.connection(1, 2)
    send(connection, "r1 r2 g1 g2")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1) + ack(2, 2))
    bench.turns()
    for round_ in range(again):             # Not closed: as after kill -9.
        bench = make_bench()
        bench.at(START + 50)
        queue = retrying(bench, recovered=True)
        connection = bench.connection(1, 2)
        consume(connection.channels[2], queue)
        assert words(received(bench, connection)) == "g2"
        assert state(queue, b"r") == (["retrying"], START + 100, 2, 0), round_
    queue.check()
    bench.at(START + 100)
    assert words(received(bench, connection)) == "r1"
    connection.feed(ack(2, 2))
    assert words(received(bench, connection)) == "r2"


def test_a_release_after_a_start_holds_over_the_next_one(make_bench):
    bench = make_bench()
    bench.at(START)
    queue = retrying(bench)
    connection = bench.connection(1, 2)
    send(connection, "r1 r2")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    bench.turns()
    bench = make_bench()                # As after kill -9.
    bench.at(START + 50)
    queue = retrying(bench, recovered=True)
    queue.gate.scan(10)
    assert state(queue, b"r") == (["retrying"], START + 100, 2, 0)
    assert queue.gate.release(b"r")
    bench = make_bench()
    bench.at(START + 60)
    queue = retrying(bench, recovered=True)
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    queue.check()


def test_a_sticky_group_that_falls_idle_puts_off_no_retry(bench, connection):
    queue = retrying(bench, sticky=True)
    consume(connection.channels[2], queue)
    send(connection, "r1 g1")
    assert words(received(bench, connection)) == "r1 g1"
    connection.feed(nack(2, 1))
    connection.feed(ack(2, 2))          # g is idle, and has its owner for a minute.
    bench.at(START + 100)
    assert words(received(bench, connection)) == "r1"


def test_after_one_retry_the_next_one_comes_in_its_time_though_another_group_is_idle(bench, connection):
    queue = retrying(bench, sticky=True)
    consume(connection.channels[2], queue)
    send(connection, "g1 r1 s1")
    assert words(received(bench, connection)) == "g1 r1 s1"
    connection.feed(ack(2, 1) + nack(2, 2))
    bench.at(START + 50)
    connection.feed(nack(2, 3))
    bench.at(START + 100)
    assert words(received(bench, connection)) == "r1"
    bench.at(START + 150)
    assert words(received(bench, connection)) == "s1"


def test_when_no_group_waits_any_more_no_time_is_asked_for(bench, connection):
    queue = retrying(bench)
    consume(connection.channels[2], queue)
    send(connection, "r1")
    assert received(bench, connection) == [(1, "r1")]
    connection.feed(nack(2, 1))
    bench.at(START + 100)
    assert received(bench, connection) == [(2, "r1")]
    told = len(bench.deadlines)
    bench.at(START + 5000)
    connection.feed(ack(2, 2))
    bench.turns()
    assert bench.deadlines[told:] == []


def test_a_group_that_a_start_finds_parked_at_its_second_message_is_parked_at_the_next_start_too(make_bench):
    bench = make_bench()
    bench.at(START)
    queue = grouped(bench)
    connection = bench.connection(1, 2)
    send(connection, "r1 r2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    assert queue.gate.park(b"r")        # At r2: r1 is out.
    for _ in range(2):
        bench = make_bench()
        bench.at(START)
        queue = grouped(bench, recovered=True)
        queue.gate.scan(10)
        assert queue.gate.find(b"r")["states"] == ["parked"]
    bench = make_bench()
    bench.at(START)
    queue = grouped(bench, recovered=True)
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    assert received(bench, connection) == []
    queue.check()


def test_with_priorities_a_start_knows_it_too(make_bench):
    bench = make_bench()
    bench.at(START)
    queue = retrying(bench, max_priority=3)
    connection = bench.connection(1, 2)
    send(connection, "r1:1 r2:3 g1:2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "g1 r1"
    connection.feed(nack(2, 2))
    bench = make_bench()
    bench.at(START + 50)
    queue = retrying(bench, max_priority=3, recovered=True)
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "g1"
    bench.at(START + 100)
    assert words(received(bench, connection)) == "r1"
    queue.check()


def test_without_the_rule_all_that_waits_goes_on(bench, connection):
    queue = retrying(bench)
    send(connection, "r1 g1")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1) + nack(2, 2))
    queue.gate.set_rule()
    bench.at(START + 1)
    assert words(received(bench, connection)) == "r1 g1 r1 g1"


def test_if_the_clock_is_set_back_a_group_waits_no_longer_than_the_longest_delay(bench, connection):
    queue = retrying(bench)
    send(connection, "r1 g1")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    bench.at(START - 500_000)
    connection.feed(nack(2, 2))
    assert state(queue, b"r") == (["retrying"], START - 500_000 + 1000, 1, 0)
    queue.check()


def test_a_time_that_is_soon_stays_so_when_the_clock_is_set_back(bench, connection):
    queue = retrying(bench, rule={"causes": ALL, "min_ms": 100, "max_ms": 10_000})
    send(connection, "r1 g1")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    bench.at(START - 5000)
    connection.feed(nack(2, 2))
    assert state(queue, b"r") == (["retrying"], START + 100, 1, 0)
    assert state(queue, b"g") == (["retrying"], START - 4900, 1, 0)


def test_a_clock_that_was_set_back_is_noticed_though_no_message_returns(bench, connection):
    queue = retrying(bench)
    send(connection, "r1")
    consume(connection.channels[2], queue)
    bench.at(START + 100_000)
    bench.turns()
    connection.delivered()
    connection.feed(nack(2, 1))
    back = START + 50_000               # Before the latest time that the gate has seen, and after the first.
    bench.at(back)
    send(connection, "g1")
    assert words(received(bench, connection)) == "g1"
    assert state(queue, b"r") == (["retrying"], back + 1000, 1, 0)
    bench.at(back + 1000)
    assert words(received(bench, connection)) == "r1"


def test_a_released_group_does_not_wait_and_a_start_does_not_let_it_wait_again(make_bench):
    bench = make_bench()
    bench.at(START)
    queue = retrying(bench)
    connection = bench.connection(1, 2)
    send(connection, "r1 r2")
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    bench.turns()
    queue.paused = True
    assert queue.gate.release(b"r")
    queue.check()
    bench = make_bench()
    bench.at(START + 1)
    queue = retrying(bench, recovered=True)
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"


def test_a_group_whose_waiting_message_is_skipped_goes_on(bench, connection):
    queue = retrying(bench)
    send(connection, "r1 r2")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    assert queue.gate.skip(b"r") == 1
    assert words(received(bench, connection)) == "r1 r2"


def test_purge_takes_what_waits_for_a_retry(bench, connection):
    queue = retrying(bench)
    send(connection, "r1 r2")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    assert queue.purge() == 2
    assert queue.gate.find(b"r") is None
    send(connection, "r3")
    assert words(received(bench, connection)) == "r1 r3"


# --- parks


def test_a_group_whose_message_reached_the_limit_is_parked_and_others_go_on(bench, connection):
    queue = grouped(bench, delivery_limit=2, limit_stops=True)
    send(connection, "r1 r2 g1 g2")
    consume(connection.channels[2], queue)
    assert received(bench, connection) == [(1, "r1"), (2, "g1")]
    connection.feed(nack(2, 1) + ack(2, 2))
    assert received(bench, connection) == [(3, "r1"), (4, "g2")]
    connection.feed(nack(2, 3))
    assert received(bench, connection) == []
    assert state(queue, b"r")[0] == ["parked"]
    send(connection, "r3")
    assert received(bench, connection) == []
    queue.check()
    assert queue.gate.release(b"r")
    assert received(bench, connection) == [(5, "r1")]
    connection.feed(nack(2, 5))                 # It has as many tries as before.
    assert received(bench, connection) == [(6, "r1")]
    connection.feed(nack(2, 6))
    assert received(bench, connection) == []
    assert state(queue, b"r")[0] == ["parked"]


def test_a_skipped_message_of_a_parked_group_is_dead_lettered_and_the_group_stays_parked(bench, connection):
    queue = grouped(bench, delivery_limit=1, limit_stops=True, dead_letters=True)
    send(connection, "r1 r2")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    assert queue.gate.skip(b"r") == 1
    assert words(received(bench, connection)) == "r1"
    assert queue.died == [("delivery_limit", b"r1")]
    assert state(queue, b"r")[0] == ["parked"]
    assert queue.gate.release(b"r")
    assert words(received(bench, connection)) == "r2"


@pytest.mark.parametrize("waits", ["before the skip", "after the skip"])
def test_a_parked_group_stays_so_over_a_crash_with_the_message_behind_the_one_that_was_skipped(make_bench, waits):
    rules = {"delivery_limit": 2, "limit_stops": True}
    bench = make_bench()
    queue = grouped(bench, **rules)
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    send(connection, "r1 r2" if waits == "before the skip" else "r1")
    for tag in (1, 2):
        assert received(bench, connection) == [(tag, "r1")]
        connection.feed(nack(2, tag))
    assert queue.gate.skip(b"r") == 1
    if waits == "after the skip":
        send(connection, "r2")
    assert received(bench, connection) == []
    bench = make_bench()
    queue = grouped(bench, recovered=True, **rules)
    assert queue.gate.scan(100)
    assert state(queue, b"r") == (["parked"], 0, 1, 0)
    assert queue.gate.release(b"r")
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r2"


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("again", [1, 2])
def test_a_start_knows_that_a_group_is_parked_unless_it_was_released(make_bench, released, again):
    rules = {"delivery_limit": 1, "limit_stops": True}
    bench = make_bench()
    queue = grouped(bench, **rules)
    connection = bench.connection(1, 2)
    send(connection, "r1 r2 g1")
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    assert words(received(bench, connection)) == "r1 g1"
    if released:
        assert queue.gate.release(b"r")
    for _ in range(again):              # Not closed: as after kill -9.
        bench = make_bench()
        queue = grouped(bench, recovered=True, **rules)
        connection = bench.connection(1, 2)
        if not released:
            assert queue.gate.scan(100)
            assert state(queue, b"r")[0] == ["parked"]
            queue.check()
    consume(connection.channels[2], queue)
    # g1 was out twice, and is at its limit as well.
    assert words(received(bench, connection)) == ("r1" if released else "")
    assert queue.gate.release(b"r") is not released


def test_a_message_whose_last_try_a_crash_ended_parks_its_group(make_bench):
    rules = {"delivery_limit": 1, "limit_stops": True}
    bench = make_bench()
    queue = grouped(bench, **rules)
    connection = bench.connection(1, 2)
    send(connection, "r1 r2 g1")
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    bench = make_bench()
    queue = grouped(bench, recovered=True, **rules)
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "g1"
    assert state(queue, b"r")[0] == ["parked"]
    queue.check()


@pytest.mark.parametrize("max_priority", [0, 1])
def test_without_the_action_a_message_whose_last_try_a_crash_ended_dies_and_its_group_goes_on(make_bench, max_priority):
    rules = {"delivery_limit": 1, "dead_letters": True, "max_priority": max_priority}
    bench = make_bench()
    queue = grouped(bench, **rules)
    connection = bench.connection(1, 2)
    send(connection, "r1 r2 g1")
    connection.channels[2].prefetch = 1
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1"
    bench = make_bench()
    queue = grouped(bench, recovered=True, **rules)
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    assert sorted(words(received(bench, connection)).split()) == ["g1", "r2"]
    assert queue.died == [("delivery_limit", b"r1")]
    queue.check()


def test_parks_and_retry_times_outlast_compaction(make_bench, monkeypatch):
    monkeypatch.setattr(compaction, "LIVE_PERCENT_MAX", 100)
    rule = {"causes": ALL, "min_ms": 70_000, "max_ms": 10_000_000}
    bench = make_bench()
    bench.at(START)
    queue = retrying(bench, rule=rule, delivery_limit=2, limit_stops=True)
    connection = bench.connection(1, 2)
    send(connection, "r1 r2 g1 g2 " + "_ " * 400, size=500)
    consume(connection.channels[2], queue)
    tags = {word.rstrip("\0"): tag for tag, word in received(bench, connection)}
    for tag in range(1, 403):
        if tag != tags["r1"] and tag != tags["g1"]:
            connection.feed(ack(2, tag))
    connection.feed(nack(2, tags["r1"]))
    bench.at(START + 70_000)
    (tag, _), = received(bench, connection)
    connection.feed(nack(2, tag) + nack(2, tags["g1"]))
    assert state(queue, b"r")[0] == ["parked"]
    assert compaction.compact(queue, Disk())
    queue.check()
    bench = make_bench()
    bench.at(START + 70_001)
    queue = retrying(bench, rule=rule, recovered=True, delivery_limit=2, limit_stops=True)
    assert queue.gate.scan(100)
    assert state(queue, b"r") == (["parked"], 0, 2, 0)
    assert state(queue, b"g") == (["retrying"], START + 140_000, 2, 0)
    queue.check()


# --- the journal


def test_the_journal_tells_of_parks_releases_and_retries(bench, connection, tmp_path):
    queue = retrying(bench, delivery_limit=2, limit_stops=True)
    queue.set_journal(True)
    send(connection, "r1")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    bench.at(START + 100)
    connection.feed(nack(2, 2))
    queue.gate.release(b"r")
    bench.turns()
    connection.feed(ack(2, 3))
    send(connection, "g1 g2")
    bench.turns()
    assert queue.gate.park(b"g")
    octets = (tmp_path / "q" / layout.journal_name(1)).read_bytes()
    events = [layout.EVENT.unpack_from(octets, at) for at in range(64, 64 + 32 * 20, 32)]
    told = [(event[0], event[5], event[6], event[3]) for event in events if event[5] > layout.STARTED]
    assert told == [(1, layout.RETRY_SCHEDULED, 0, 100), (1, layout.GROUP_PARKED_EVENT, layout.REASON_LIMIT, 0),
                    (1, layout.GROUP_RELEASED_EVENT, 0, 0), (3, layout.GROUP_PARKED_EVENT, layout.REASON_REMOVED, 0)]


def test_a_group_that_was_parked_at_a_later_message_is_parked_with_its_first_one_after_a_crash(make_bench):
    bench = make_bench()
    connection, queue = bench.connection(1, 2), grouped(bench, most=2, delivery_limit=3, limit_stops=True)
    consume(connection.channels[2], queue)
    send(connection, "r1 r2 r3")
    assert words(received(bench, connection)) == "r1 r2"
    for tag in (2, 3):                                      # r2 fails twice, and r1 not at all.
        connection.feed(nack(2, tag))
        assert words(received(bench, connection)) == "r2"
    connection.feed(nack(2, 4, multiple=True))              # r1 returns first, then r2 for the third time.
    assert received(bench, connection) == []
    assert state(queue, b"r")[0] == ["parked"]
    again = make_bench()
    connection, queue = again.connection(1, 2), grouped(
        again, recovered=True, most=2, delivery_limit=3, limit_stops=True)
    consume(connection.channels[2], queue)
    assert received(again, connection) == []
    assert state(queue, b"r")[0] == ["parked"]
    assert queue.gate.release(b"r")
    assert words(received(again, connection)) == "r1 r2"
    queue.check()


def test_a_message_that_parks_its_group_by_a_crash_parks_the_earlier_ones_for_the_next_crash_too(make_bench):
    bench = make_bench()
    connection, queue = bench.connection(1, 2), grouped(bench, most=2, delivery_limit=2, limit_stops=True)
    consume(connection.channels[2], queue)
    send(connection, "r1 r2")
    assert words(received(bench, connection)) == "r1 r2"
    connection.feed(nack(2, 2))
    assert words(received(bench, connection)) == "r2"       # Its last try.
    for _ in range(2):
        bench = make_bench()
        connection, queue = bench.connection(1, 2), grouped(
            bench, recovered=True, most=2, delivery_limit=2, limit_stops=True)
        queue.gate.scan(10)
        consume(connection.channels[2], queue)
        assert received(bench, connection) == []
        assert state(queue, b"r")[0] == ["parked"]
    queue.check()


def test_the_journal_tells_once_of_a_group_that_two_of_its_messages_park(bench, connection, tmp_path):
    queue = retrying(bench, sticky=True, delivery_limit=1, limit_stops=True)
    queue.set_journal(True)
    send(connection, "r1 r2")
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "r1 r2"
    connection.feed(nack(2, 2))
    connection.feed(nack(2, 1))
    bench.turns()
    assert state(queue, b"r") == (["parked"], 0, 2, 0)
    octets = (tmp_path / "q" / layout.journal_name(1)).read_bytes()
    events = [layout.EVENT.unpack_from(octets, at) for at in range(64, 64 + 32 * 20, 32)]
    assert [event[0] for event in events if event[5] == layout.GROUP_PARKED_EVENT] == [2]

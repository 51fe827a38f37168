"""Returned messages wait before they are tried again, and a queue stops at a message that has failed too often."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plane.harness import Bench, ack, consume, nack, publish, reject

from brokerd import plane
from brokerd.store import compaction
from brokerd.store import format as layout
from brokerd.store.disk import Disk

ALL = 0b1111110
FAILED = 1 << layout.CAUSE_REJECT | 1 << layout.CAUSE_CHANNEL | 1 << layout.CAUSE_CONNECTION
START = 1_000_000


def retrying(bench, name=b"q", *, rule=None, **rules):
    queue = bench.queue(name, **rules)
    queue.gate = plane.Retry()
    queue.gate.set_rule(**({"causes": ALL, "min_ms": 100, "max_ms": 1000} if rule is None else rule))
    return queue


def send(connection, *bodies, **more):
    connection.feed(b"".join(publish(1, body, **more) for body in bodies))


def consume_few(connection, queue, prefetch):
    connection.channels[2].prefetch = prefetch
    consume(connection.channels[2], queue)


def got(bench, connection):
    bench.turns()
    return [(one.tag, one.body, one.redelivered) for one in connection.delivered()]


def bodies(bench, connection):
    return [body for _, body, _ in got(bench, connection)]


@pytest.fixture
def connection(bench):
    bench.at(START)
    return bench.connection(1, 2, 3)


@pytest.fixture
def queue(bench, connection):
    return retrying(bench)


def test_a_returned_message_waits_for_its_time_and_others_overtake_it(bench, connection, queue):
    send(connection, b"a", b"b", b"c")
    consume_few(connection, queue, 1)
    assert got(bench, connection) == [(1, b"a", False)]
    connection.feed(nack(2, 1))
    assert got(bench, connection) == [(2, b"b", False)]
    assert (queue.ready, queue.unacked, queue.aside, queue.gate.waiting) == (1, 1, 1, 1)
    assert queue.gate.upcoming(10) == [(START + 100, 1, 1)]
    connection.feed(ack(2, 2))
    assert got(bench, connection) == [(3, b"c", False)]
    bench.at(START + 99)
    connection.feed(ack(2, 3))
    assert got(bench, connection) == []
    bench.at(START + 100)
    assert got(bench, connection) == [(4, b"a", True)]
    queue.check()


def test_a_message_whose_time_has_come_goes_before_all_newer_ones(bench, connection, queue):
    send(connection, b"a", b"b", b"c")
    assert connection.channels[2].get(queue, False)
    connection.feed(nack(2, 1))
    bench.at(START + 100)
    consume(connection.channels[3], queue)
    connection.delivered()
    bench.turns()
    assert queue.unacked == 3
    connection.feed(ack(3, 1))


@pytest.mark.parametrize(("rule", "delays"), [
    ({"backoff": 0, "min_ms": 100, "max_ms": 350}, [100, 200, 300, 350, 350]),
    ({"backoff": 1, "min_ms": 100, "max_ms": 1000}, [100, 200, 400, 800, 1000]),
    ({"backoff": 2, "min_ms": 100, "max_ms": 1000}, [100, 100, 100, 100, 100]),
])
def test_the_delay_grows_as_the_rule_says_up_to_its_bound(bench, connection, rule, delays):
    queue = retrying(bench, rule={"causes": ALL, **rule})
    send(connection, b"a")
    consume(connection.channels[2], queue)
    now = START
    for tag, delay in enumerate(delays, 1):
        assert bodies(bench, connection) == [b"a"]
        connection.feed(nack(2, tag))
        assert queue.gate.upcoming(1) == [(now + delay, 1, tag)]
        now += delay
        bench.at(now - 1)
        assert bodies(bench, connection) == []
        bench.at(now)


def test_jitter_makes_delays_shorter_by_at_most_its_percentage(bench, connection):
    queue = retrying(bench, rule={"causes": ALL, "min_ms": 1000, "max_ms": 1000, "jitter": 30, "backoff": 2})
    send(connection, *[b"%d" % n for n in range(200)])
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 0, multiple=True))
    delays = [when - START for when, _, _ in queue.gate.upcoming(1000)]
    assert len(delays) == 200
    assert 700 <= min(delays) < 750
    assert 950 < max(delays) <= 1000


def test_only_the_returns_wait_that_the_rule_names(bench, connection):
    queue = retrying(bench, rule={"causes": FAILED, "min_ms": 100, "max_ms": 100})
    send(connection, b"a")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    assert [body for _, body, _ in got(bench, connection)] == [b"a", b"a"]
    connection.feed(reject(2, 2))
    assert bodies(bench, connection) == []
    assert queue.gate.waiting == 1


@pytest.mark.parametrize("again", [1, 3])
def test_a_start_knows_the_time_until_which_a_message_waits(make_bench, again):
    bench = make_bench()
    bench.at(START)
    queue = retrying(bench)
    connection = bench.connection(1, 2)
    send(connection, b"a", b"b", b"c")
    consume_few(connection, queue, 2)
    bench.turns()
    connection.feed(nack(2, 1) + nack(2, 2))
    bench.turns()
    connection.feed(nack(2, 3))        # Their delays are those of one failure each.
    assert queue.gate.waiting == 3
    for _ in range(again):             # Not closed: as after kill -9.
        bench = make_bench()
        bench.at(START + 50)
        queue = bench.recovered()
        assert (queue.ready, queue.aside) == (3, 0)
        queue.gate = plane.Retry()
        queue.gate.set_rule(causes=ALL, min_ms=100, max_ms=1000)
        bench.at(START + 51)
        queue.check()
        assert (queue.ready, queue.aside) == (0, 3)
        assert queue.gate.upcoming(9) == [(START + 100, seq, 1) for seq in (1, 2, 3)]
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    send(connection, b"d")
    assert bodies(bench, connection) == [b"d"]
    bench.at(START + 100)
    assert got(bench, connection) == [(2, b"a", True), (3, b"b", True), (4, b"c", True)]


def test_without_the_rule_a_start_makes_ready_at_once_what_waited(make_bench):
    bench = make_bench()
    bench.at(START)
    queue = retrying(bench)
    connection = bench.connection(1, 2)
    send(connection, b"a")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    bench = make_bench()
    bench.at(START + 1)
    queue = bench.recovered()
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    assert got(bench, connection) == [(1, b"a", True)]


def test_entries_of_a_retry_time_that_a_crash_cut_short_make_the_message_ready_at_once(make_bench, tmp_path):
    bench = make_bench()
    bench.at(START)
    queue = retrying(bench)
    connection = bench.connection(1, 2)
    send(connection, b"a")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    path = tmp_path / "q" / layout.acks_name(1)
    octets = bytearray(path.read_bytes())
    octets[64 + 8:64 + 16] = bytes(8)
    path.write_bytes(octets)
    bench = make_bench()
    bench.at(START + 1)
    queue = bench.recovered(suspect=True)
    queue.gate = plane.Retry()
    queue.gate.set_rule(causes=ALL, min_ms=100, max_ms=1000)
    bench.at(START + 2)
    assert (queue.ready, queue.aside) == (1, 0)


def test_a_start_gives_no_message_the_retry_time_of_another(make_bench):
    """The message before it waits; or its times were written, and the entry that makes them count was not."""
    for cut_short in (False, True):
        bench = make_bench()
        bench.at(START)
        name = b"cut" if cut_short else b"whole"
        queue = retrying(bench, name, rule={"causes": FAILED, "min_ms": 100, "max_ms": 1000})
        connection = bench.connection(1, 2)
        send(connection, b"a", b"b", key=name)
        consume(connection.channels[2], queue)
        bench.turns()
        connection.feed(reject(2, 1))
        queue.paused = True
        connection.feed(nack(2, 2))
        if cut_short:
            path = f"{queue.directory}/{layout.acks_name(1)}"
            with open(path, "r+b") as file:
                file.seek(64 + 8 * layout.RETRY_PARTS)
                assert file.read(8)[4] & 15 == layout.RETURNED
                file.seek(64 + 8 * layout.RETRY_PARTS)
                file.write(bytes(8))
        bench = make_bench()
        bench.at(START + 1)
        queue = bench.recovered(name)
        queue.gate = plane.Retry()
        queue.gate.set_rule(causes=FAILED, min_ms=100, max_ms=1000)
        bench.at(START + 2)
        reader = bench.connection(1)
        while reader.channels[1].get(queue, True):
            bench.turns()
        assert reader.bodies() == ([b"a", b"b"] if cut_short else [b"b"])


def test_compaction_keeps_retry_times(make_bench):
    bench = make_bench()
    bench.at(START)
    queue = retrying(bench, rule={"causes": ALL, "min_ms": 70_000, "max_ms": 10_000_000})
    connection = bench.connection(1, 2)
    send(connection, *[b"%04d" % n + bytes(500) for n in range(400)])
    consume(connection.channels[2], queue)
    bench.turns()
    connection.delivered()
    for tag in range(1, 401):
        connection.feed(nack(2, tag) if tag in (3, 50) else ack(2, tag) if tag != 60 else b"")
    assert compaction.compact(queue, Disk())
    queue.check()
    bench = make_bench()
    bench.at(START + 1)
    queue = bench.recovered()
    queue.gate = plane.Retry()
    queue.gate.set_rule(causes=ALL, min_ms=70_000, max_ms=10_000_000)
    bench.at(START + 2)
    assert [(when, seq) for when, seq, _ in queue.gate.upcoming(9)] == [(START + 70_000, 3), (START + 70_000, 50)]


def test_what_waits_is_no_dead_letter_and_stays(bench, connection, queue):
    send(connection, b"a")
    consume_few(connection, queue, 1)
    bench.turns()
    connection.feed(nack(2, 1))
    queue.settle_aside(1)
    assert (queue.aside, queue.gate.waiting, queue.dead_lettered) == (1, 1, 0)
    queue.check()


def test_a_purge_takes_what_waits(bench, connection, queue):
    send(connection, b"a", b"b")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.delivered()
    connection.feed(nack(2, 1))
    assert queue.purge() == 1
    assert (queue.ready, queue.unacked, queue.aside) == (0, 1, 0)
    queue.check()
    bench.at(START + 1000)
    assert bodies(bench, connection) == []


def test_without_the_gate_what_waits_is_ready(bench, connection, queue):
    send(connection, b"a")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.delivered()
    connection.feed(nack(2, 1))
    queue.gate = None
    assert got(bench, connection) == [(2, b"a", True)]


def test_what_waits_counts_for_the_length_and_dies_of_nothing(bench, connection):
    queue = retrying(bench, max_length=2, ttl_ms=50)
    send(connection, b"a", b"b")
    consume_few(connection, queue, 2)
    bench.turns()
    connection.delivered()
    connection.feed(nack(2, 1) + nack(2, 2))
    connection.channels[2].flow = False
    send(connection, b"c")
    bench.turns()
    assert (queue.ready, queue.discarded, queue.aside) == (0, 1, 2)
    bench.at(START + 99)
    assert (queue.expired, queue.aside) == (0, 2)
    bench.at(START + 100)
    assert (queue.expired, queue.aside) == (2, 0)


def test_a_deleted_queue_forgets_what_waits(bench, connection, queue):
    send(connection, b"a")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.delivered()
    connection.feed(nack(2, 1))
    queue.drop()
    bench.at(START + 1000)
    assert bodies(bench, connection) == []


def test_priorities_hold_for_messages_whose_time_has_come(bench, connection):
    queue = retrying(bench, max_priority=3)
    low, high = b"\x08\x00\x01", b"\x08\x00\x03"
    send(connection, b"low", properties=low)
    send(connection, b"high", properties=high)
    consume_few(connection, queue, 2)
    assert bodies(bench, connection) == [b"high", b"low"]
    connection.feed(nack(2, 0, multiple=True))
    bench.at(START + 100)
    assert bodies(bench, connection) == [b"high", b"low"]


def test_if_the_clock_is_set_back_a_message_waits_no_longer_than_the_longest_delay(bench, connection, queue):
    send(connection, b"a", b"b")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.delivered()
    connection.feed(nack(2, 1))
    back = START - 500_000
    bench.at(back)
    connection.feed(nack(2, 2))
    assert [when for when, _, _ in queue.gate.upcoming(2)] == [back + 100, back + 1000]
    queue.check()
    bench.at(back + 1000)
    assert queue.gate.waiting == 0


def test_a_time_that_is_soon_stays_so_when_the_clock_is_set_back(bench, connection):
    queue = retrying(bench, rule={"causes": ALL, "min_ms": 100, "max_ms": 10_000})
    send(connection, b"a", b"b")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.delivered()
    connection.feed(nack(2, 1))
    bench.at(START - 5000)
    connection.feed(nack(2, 2))
    assert [when for when, _, _ in queue.gate.upcoming(2)] == [START - 4900, START + 100]


def test_a_clock_that_was_set_back_is_noticed_when_a_message_is_asked_for(bench, connection):
    queue = retrying(bench)
    send(connection, b"a")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.delivered()
    connection.feed(nack(2, 1))
    bench.at(START - 500_000)
    send(connection, b"b")
    assert bodies(bench, connection) == [b"b"]
    assert [when for when, _, _ in queue.gate.upcoming(2)] == [START - 499_000]


def test_a_start_finds_a_message_that_waits_behind_one_that_does_not(make_bench):
    bench = make_bench()
    bench.at(START)
    queue = retrying(bench)
    connection = bench.connection(1, 2)
    send(connection, b"a", b"b")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 2))
    bench = make_bench()
    bench.at(START + 10)
    queue = bench.recovered()
    queue.gate = plane.Retry()
    queue.gate.set_rule(causes=ALL, min_ms=100, max_ms=1000)
    bench.at(START + 10)
    connection = bench.connection(1, 2)
    consume(connection.channels[2], queue)
    assert bodies(bench, connection) == [b"a"]
    bench.at(START + 100)
    assert bodies(bench, connection) == [b"b"]


def test_a_start_under_a_clock_that_was_set_back_waits_no_longer_either(make_bench):
    bench = make_bench()
    bench.at(START)
    queue = retrying(bench)
    connection = bench.connection(1, 2)
    send(connection, b"a")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    bench = make_bench()
    bench.at(START // 2)
    queue = bench.recovered()
    queue.gate = plane.Retry()
    queue.gate.set_rule(causes=ALL, min_ms=100, max_ms=1000)
    bench.at(START // 2)
    assert queue.gate.upcoming(1) == [(START // 2 + 1000, 1, 1)]
    bench.at(START // 2 + 1000)
    assert (queue.ready, queue.aside) == (1, 0)


def test_a_single_active_consumer_gets_what_waited_again(bench, connection):
    queue = retrying(bench, single_active=True)
    consume(connection.channels[2], queue)
    consume(connection.channels[3], queue)
    send(connection, b"a")
    bench.turns()
    connection.delivered()
    connection.feed(nack(2, 1))
    bench.at(START + 100)
    assert [one.channel for one in connection.delivered()] == [2]


def test_the_journal_tells_how_long_a_returned_message_waits(bench, connection, queue, tmp_path):
    queue.set_journal(True)
    send(connection, b"a")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    octets = (tmp_path / "q" / layout.journal_name(1)).read_bytes()
    events = [layout.EVENT.unpack_from(octets, 64 + 32 * n) for n in range(4)]
    assert [(event[5], event[3], event[4]) for event in events[:3]] == [
        (layout.DELIVERED, 1, 0), (layout.RETURNED, 0, 1), (layout.RETRY_SCHEDULED, 100, 1)]


# --- a queue that stops


def stopping(bench, **rules):
    return retrying(bench, rule={}, delivery_limit=2, limit_stops=True, **rules)


def fail(bench, connection, tag):
    connection.feed(nack(2, tag))
    return bodies(bench, connection)


def test_a_queue_stops_behind_a_message_that_has_reached_its_limit(bench, connection):
    queue = stopping(bench)
    send(connection, b"a", b"b", b"c")
    consume_few(connection, queue, 1)
    assert bodies(bench, connection) == [b"a"]
    assert fail(bench, connection, 1) == [b"a"]
    assert fail(bench, connection, 2) == []
    assert queue.gate.stops(9) == [(1, 2)]
    assert not connection.channels[3].get(queue, False)
    assert (queue.ready, queue.aside) == (2, 1)
    queue.check()
    assert queue.gate.release(1)
    assert got(bench, connection) == [(3, b"a", True)]
    assert fail(bench, connection, 3) == [b"a"]         # As many tries as before.
    assert fail(bench, connection, 4) == []
    assert queue.gate.stops(9) == [(1, 4)]
    queue.check()
    assert queue.gate.skip(1)
    assert bodies(bench, connection) == [b"b"]
    assert (queue.limited, queue.gate.stopped) == (1, 0)
    assert not queue.gate.skip(1)
    assert not queue.gate.release(1)


def test_a_stop_holds_back_lower_levels_and_not_higher_ones(bench, connection):
    queue = stopping(bench, max_priority=3)
    send(connection, b"a", properties=b"\x08\x00\x02")
    consume_few(connection, queue, 1)
    assert bodies(bench, connection) == [b"a"]
    assert fail(bench, connection, 1) == [b"a"]
    assert fail(bench, connection, 2) == []
    send(connection, b"low", properties=b"\x08\x00\x01")
    assert bodies(bench, connection) == []
    send(connection, b"high", properties=b"\x08\x00\x03")
    assert bodies(bench, connection) == [b"high"]
    connection.feed(ack(2, 3))
    assert queue.gate.release(1)
    assert bodies(bench, connection) == [b"a"]


def test_a_delay_that_doubles_stays_at_its_bound_however_often_the_message_fails(bench, connection):
    queue = retrying(bench, rule={"causes": ALL, "backoff": 1, "min_ms": 1, "max_ms": 5})
    send(connection, b"a")
    consume_few(connection, queue, 1)
    for tag in range(1, 70):            # A shift by 64 is a shift by 0.
        assert bodies(bench, connection) == [b"a"]
        connection.feed(nack(2, tag))
        now = START + 5 * tag
        assert queue.gate.upcoming(1)[0][0] - (now - 5) == min(1 << min(tag - 1, 10), 5)
        bench.at(now)


def test_what_lies_before_the_message_goes_out(bench, connection):
    queue = stopping(bench)
    send(connection, b"a", b"b", b"c")
    for _ in range(2):
        connection.channels[2].get(queue, False)        # a, b
    connection.feed(nack(2, 2))
    connection.channels[2].get(queue, False)
    connection.feed(nack(2, 3))
    assert queue.gate.stops(9) == [(2, 2)]
    connection.feed(nack(2, 1))
    assert connection.channels[2].get(queue, False)
    assert not connection.channels[2].get(queue, False)
    assert bodies(bench, connection) == [b"a", b"b", b"b", b"a"]


def test_a_skipped_message_is_dead_lettered(bench, connection):
    queue = stopping(bench, dead_letters=True)
    send(connection, b"a", b"b")
    consume_few(connection, queue, 1)
    bench.turns()
    fail(bench, connection, 1)
    fail(bench, connection, 2)
    assert queue.died == []
    assert queue.gate.skip(1)
    bench.turns()
    assert queue.died == [("delivery_limit", b"a")]
    queue.check()


@pytest.mark.parametrize("released", [False, True])
def test_a_start_stops_at_the_same_message_unless_it_was_released(make_bench, released):
    bench = make_bench()
    bench.at(START)
    queue = stopping(bench)
    connection = bench.connection(1, 2)
    send(connection, b"a", b"b")
    consume_few(connection, queue, 1)
    bench.turns()
    fail(bench, connection, 1)
    fail(bench, connection, 2)
    if released:
        connection.channels[2].flow = False
        assert queue.gate.release(1)
    for _ in range(2):
        bench = make_bench()
        bench.at(START)
        queue = bench.recovered(delivery_limit=2, limit_stops=True)
        queue.gate = plane.Retry()
        bench.at(START)
        queue.check()
        assert queue.gate.stops(9) == ([] if released else [(1, 2)])
    connection = bench.connection(1, 2)
    consume_few(connection, queue, 1)
    assert bodies(bench, connection) == ([b"a"] if released else [])


def test_a_message_whose_last_try_a_crash_ended_stops_the_queue(make_bench):
    bench = make_bench()
    bench.at(START)
    queue = stopping(bench)
    connection = bench.connection(1, 2)
    send(connection, b"a", b"b")
    consume_few(connection, queue, 1)
    bench.turns()
    fail(bench, connection, 1)
    bench = make_bench()
    bench.at(START)
    queue = bench.recovered(delivery_limit=2, limit_stops=True)
    queue.gate = plane.Retry()
    bench.at(START)
    assert queue.gate.stops(9) == [(1, 2)]
    assert queue.ready == 1


# --- against a model


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("pggnnrawksx"), st.integers(0, 9)), max_size=60), st.booleans())
def test_it_does_what_the_model_does(tmp_path_factory, steps, stops):
    Course(tmp_path_factory.mktemp("course"), stops).run(steps)


class Course:
    """Publishes, gets, returns, acks, time, kills, releases and skips, with what should be where afterwards.

    ``state``: for each message "ready", "out", a time in ms, or "stop"; and its failures."""

    DELAY, LIMIT = 100, 3

    def __init__(self, directory, stops):
        self.directory, self.stops, self.now = directory, stops, START
        self.state, self.failures, self.tags, self.benches, self.next = {}, {}, [], [], 1
        self.begin()

    def begin(self):
        self.bench = Bench(self.directory)
        self.benches.append(self.bench)
        self.bench.at(self.now)
        rules = {"delivery_limit": self.LIMIT, "limit_stops": True} if self.stops else {}
        self.queue = self.bench.recovered(**rules)
        self.queue.gate = plane.Retry()
        self.queue.gate.set_rule(causes=ALL, min_ms=self.DELAY, max_ms=self.DELAY * 4)
        self.connection = self.bench.connection(1, 2)
        self.bench.at(self.now)

    def run(self, steps):
        try:
            for step, n in steps:
                getattr(self, step)(n)
                self.compare()
        finally:
            for bench in self.benches:
                bench.close()

    def compare(self):
        self.queue.check()
        states = list(self.state.values())
        assert self.queue.unacked == states.count("out")
        assert self.queue.gate.stopped + 0 <= states.count("stop")
        assert self.queue.ready + self.queue.aside == len(states) - states.count("out")

    def p(self, n):
        send(self.connection, b"%d" % self.next)
        self.state[self.next], self.failures[self.next] = "ready", 0
        self.next += 1

    def expected(self):
        for seq in sorted(self.state):
            if self.state[seq] == "stop":
                return None
            if self.state[seq] == "ready" or (isinstance(self.state[seq], int) and self.state[seq] <= self.now):
                return seq
        return None

    def g(self, n):
        want = self.expected()
        found = self.connection.channels[2].get(self.queue, False)
        self.bench.turns()
        said = self.connection.delivered()
        assert [int(one.body) for one in said] == ([] if want is None else [want]), (self.state, self.now)
        assert found == (want is not None)
        if want is not None:
            assert said[0].redelivered == (self.failures[want] > 0)
            self.state[want] = "out"
            self.tags.append((said[0].tag, want))

    def settle(self, n):
        return self.tags.pop(n % len(self.tags)) if self.tags else None

    def fail(self, seq):
        self.failures[seq] += 1
        self.state[seq] = ("stop" if self.stops and self.failures[seq] % self.LIMIT == 0
                           else self.now + self.DELAY * min(self.failures[seq], 4))

    def n(self, n):
        one = self.settle(n)
        if one is not None:
            self.connection.feed(nack(2, one[0]))
            self.fail(one[1])

    def r(self, n):
        one = self.settle(n)
        if one is not None:
            self.connection.feed(reject(2, one[0]))
            self.fail(one[1])

    def a(self, n):
        one = self.settle(n)
        if one is not None:
            self.connection.feed(ack(2, one[0]))
            del self.state[one[1]]

    def w(self, n):
        self.now += 30 * n
        self.bench.at(self.now)

    def k(self, n):
        """A kill; what was out has failed once more, and does not wait."""
        for _, seq in self.tags:
            self.failures[seq] += 1
            self.state[seq] = "stop" if self.stops and self.failures[seq] % self.LIMIT == 0 else "ready"
        self.tags = []
        self.begin()

    def s(self, n):
        stopped = [seq for seq in sorted(self.state) if self.state[seq] == "stop"]
        seen = [seq for seq, _ in self.queue.gate.stops(99)]
        if stopped and stopped[0] in seen:
            assert self.queue.gate.release(stopped[0])
            self.state[stopped[0]] = "ready"

    def x(self, n):
        stopped = [seq for seq in sorted(self.state) if self.state[seq] == "stop"]
        seen = [seq for seq, _ in self.queue.gate.stops(99)]
        if stopped and stopped[0] in seen:
            assert self.queue.gate.skip(stopped[0])
            del self.state[stopped[0]]


def test_an_entry_of_a_retry_time_is_as_the_format_says(bench, connection, queue, tmp_path):
    bench.at(0x0123_4567_89AB)
    send(connection, b"a")
    consume(connection.channels[2], queue)
    bench.turns()
    connection.feed(nack(2, 1))
    when = 0x0123_4567_89AB + 100
    octets = (tmp_path / "q" / layout.acks_name(1)).read_bytes()
    entries = [struct.unpack_from("<IBBH", octets, 64 + 8 * n) for n in range(4)]
    assert [(kind & 15, kind >> 4, count) for _, kind, _, count in entries] == [
        (layout.RETRY_TIME, 0, when & 0xFFFF), (layout.RETRY_TIME, 1, when >> 16 & 0xFFFF),
        (layout.RETRY_TIME, 2, when >> 32), (layout.RETURNED, layout.CAUSE_NACK, 1)]


# --- what waits is taken elsewhere


def test_the_former_time_of_a_message_that_was_set_aside_does_not_count_any_more(bench, connection):
    queue = retrying(bench, rule={"causes": ALL, "min_ms": 1000, "max_ms": 9000, "backoff": 0})
    send(connection, b"a")
    consume_few(connection, queue, 1)
    assert bodies(bench, connection) == [b"a"]
    assert fail(bench, connection, 1) == []                 # Until START + 1000.
    assert queue.set_aside(1)
    queue.check()
    assert (queue.gate.waiting, queue.gate.upcoming(9)) == (0, [])
    assert not queue.gate.release(1)                        # It is not the gate's.
    assert queue.release(1)
    assert bodies(bench, connection) == [b"a"]
    assert fail(bench, connection, 2) == []                 # Until START + 2000.
    bench.at(START + 1500)
    assert bodies(bench, connection) == []
    bench.at(START + 2000)
    assert bodies(bench, connection) == [b"a"]


def test_what_waits_for_its_retry_cannot_be_skipped_and_what_stops_the_queue_does_not_wait(bench, connection):
    queue = retrying(bench, delivery_limit=2, limit_stops=True)
    send(connection, b"a")
    consume_few(connection, queue, 1)
    assert bodies(bench, connection) == [b"a"]
    assert fail(bench, connection, 1) == []
    assert not queue.gate.skip(1)
    assert queue.gate.waiting == 1
    bench.at(START + 200)
    assert bodies(bench, connection) == [b"a"]
    assert fail(bench, connection, 2) == []
    assert (queue.gate.waiting, queue.gate.stopped) == (0, 1)
    assert not queue.set_aside(1)
    queue.check()


def test_a_gate_that_comes_again_knows_of_no_stop_that_went_with_it(bench, connection):
    queue = stopping(bench)
    send(connection, b"a", b"b")
    consume_few(connection, queue, 1)
    assert bodies(bench, connection) == [b"a"]
    assert fail(bench, connection, 1) == [b"a"]
    assert fail(bench, connection, 2) == []
    gate, queue.gate = queue.gate, None
    assert bodies(bench, connection) == [b"a"]
    queue.gate = gate
    assert gate.stopped == 0
    connection.feed(ack(2, 3))
    assert bodies(bench, connection) == [b"b"]
    queue.check()


def test_however_much_jitter_a_returned_message_does_not_come_again_at_once(bench, connection):
    queue = retrying(bench, rule={"causes": ALL, "min_ms": 1, "max_ms": 1, "jitter": 100})
    send(connection, *[b"m"] * 50)
    consume_few(connection, queue, 50)
    assert len(got(bench, connection)) == 50
    connection.feed(nack(2, 50, multiple=True))
    assert (queue.gate.waiting, bodies(bench, connection)) == (50, [])


def test_a_clock_set_back_by_less_than_a_second_shortens_no_delay_and_one_set_back_by_more_does(bench, connection):
    queue = retrying(bench, rule={"causes": ALL, "min_ms": 1000, "max_ms": 1000, "backoff": 2})
    send(connection, b"a", b"b")
    consume_few(connection, queue, 1)
    assert bodies(bench, connection) == [b"a"]
    connection.feed(nack(2, 1))
    assert bodies(bench, connection) == [b"b"]
    bench.at(START - 500)
    send(connection, b"c")
    assert connection.channels[3].get(queue, True)          # The gate looks at the clock.
    assert bodies(bench, connection) == [b"c"]
    assert queue.gate.upcoming(9) == [(START + 1000, 1, 1)]
    bench.at(START + 10_000)                                # a is ready; b is still out.
    connection.feed(nack(2, 2))
    bench.at(START + 10_000)
    assert [row[0] for row in queue.gate.upcoming(9)] == [START + 11_000]
    bench.at(START + 5000)
    connection.feed(nack(2, 3))                             # a returns: the gate looks at the clock.
    assert [row[0] for row in queue.gate.upcoming(9)] == [START + 6000] * 2


def test_a_delay_is_not_shorter_by_a_part_of_a_millisecond(bench, connection, queue):
    send(connection, b"a")
    consume_few(connection, queue, 1)
    assert bodies(bench, connection) == [b"a"]
    bench.core.clock = lambda: START * 1_000_000 + 999_999
    connection.feed(nack(2, 1))
    assert queue.gate.upcoming(9) == [(START + 101, 1, 1)]

"""Streams in the plane: each reader sees each kept message once, in order, from its own place on.

The model is a stream in plain Python: how many messages there were, what retention took, and readers with what they
hold.  hypothesis drives both.
"""

import itertools
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plane.harness import Bench, ack, consume, nack, publish, reject

from brokerd import plane

FIRST, NEXT = ("offset", 1), ("next", 0)
TABLE = b"\x0fx-stream-offsetl"


def offset_of(delivery):
    """What the header x-stream-offset of a delivery says; its properties are flags, and the table of headers."""
    properties = delivery.properties
    assert properties.count(TABLE) == 1
    at = properties.index(TABLE) + len(TABLE)
    return int.from_bytes(properties[at:at + 8])


class Stream:
    """A stream and one connection; channel 1 publishes, each reader has a channel of its own."""

    def __init__(self, bench, queue=None):
        self.bench = bench
        self.queue = queue or bench.queue()
        if queue is None:
            self.queue.gate = plane.Stream()
        self.gate = self.queue.gate
        self.connection = bench.connection(1)

    def publish(self, *bodies):
        self.connection.feed(b"".join(publish(1, body, persistent=True) for body in bodies))
        self.bench.turns()

    def read(self, number, start=FIRST, *, prefetch=1000, tells=False):
        if number not in self.connection.channels:
            plane.Channel(self.connection, number)
        channel = self.connection.channels[number]
        channel.prefetch = prefetch
        self.gate.begin(*start, tells=tells)
        return consume(channel, self.queue, b"r%d" % number)

    def got(self, number=2):
        """(offset, body, redelivered) of what came for that channel; nothing came for others."""
        self.bench.turns()
        came = self.connection.delivered()
        self.queue.check()
        assert {one.channel for one in came} <= {number}
        return [(offset_of(one), one.body, one.redelivered) for one in came]

    def purge(self):
        removed, whole = self.gate.purge(self.queue.next_seq, 1 << 31)
        assert whole
        return removed

    def offsets(self, number=2):
        return [offset for offset, _, _ in self.got(number)]


@pytest.fixture
def stream(make_bench):
    return Stream(make_bench())


def recovered(make_bench, suspect=False):
    bench = make_bench()
    queue = bench.queue()
    queue.gate = plane.Stream()
    from brokerd.store.disk import Disk
    from brokerd.store.recovery import recover

    recover(queue, Disk(), suspect, lambda _: None, stream=True)
    return Stream(bench, queue)


def kinds_of_files(stream):
    return {name.partition(".")[0] for name in os.listdir(stream.queue.directory)}


def test_a_stream_has_no_acks_files(make_bench):
    stream = Stream(make_bench(segment_octets=4096))
    stream.publish(*[b"m" * 500] * 40)
    stream.read(2)
    assert stream.offsets() == [*range(1, 41)]
    stream.connection.feed(nack(2, 3) + ack(2, 0, multiple=True))
    stream.gate.set_limits(max_length=10)
    assert stream.gate.retain(99)
    stream.publish(*[b"m" * 500] * 9)
    assert "acks" not in kinds_of_files(stream)
    stream = recovered(make_bench, suspect=True)
    stream.publish(b"n")
    stream.read(2)
    assert stream.offsets()[-1] == 50
    assert "acks" not in kinds_of_files(stream)


def test_a_segment_that_a_stream_gave_up_gets_its_acks_in_another_queue(make_bench):
    bench = make_bench(segment_octets=4096)
    stream = Stream(bench)
    stream.publish(*[b"m" * 500] * 40)
    stream.gate.set_limits(max_length=10)
    assert stream.gate.retain(99)
    plain = bench.queue(b"plain")
    stream.connection.feed(publish(1, b"p" * 500, b"plain", persistent=True))
    bench.turns()
    assert "acks.0" in " ".join(os.listdir(plain.directory))
    plain.check()


def test_each_reader_gets_all_messages_with_their_offsets_and_they_stay(stream):
    stream.publish(b"a", b"b", b"c")
    for number in (2, 3):
        stream.read(number)
        assert stream.got(number) == [(1, b"a", False), (2, b"b", False), (3, b"c", False)]
    stream.connection.feed(ack(2, 0, multiple=True) + ack(3, 2))
    assert (stream.queue.ready, stream.queue.unacked) == (3, 2)
    stream.publish(b"d")
    came = stream.connection.delivered()
    assert sorted((one.channel, offset_of(one), one.body) for one in came) == [(2, 4, b"d"), (3, 4, b"d")]
    assert stream.queue.ready == 4


@pytest.mark.parametrize(("start", "expected"), [
    (FIRST, range(1, 11)), (("offset", 0), range(1, 11)), (("offset", 7), range(7, 11)), (("offset", 12), (12,)),
    (NEXT, ()), (("back", 3), range(8, 11)), (("back", 10), range(1, 11)), (("back", 99), range(1, 11)),
    (("back", 0), ()), (("last", 0), range(1, 11)),
])
def test_where_a_reader_begins(stream, start, expected):
    stream.publish(*[b"m"] * 10)
    stream.read(2, start)
    already = [offset for offset in expected if offset <= 10]
    assert stream.offsets() == already
    stream.publish(b"n", b"n", b"n")
    assert stream.offsets() == list(range(12 if 12 in expected else 11, 14))


def test_a_reader_begins_at_a_time(make_bench):
    bench = make_bench()
    stream = Stream(bench)
    for ms in range(1000, 1100):
        bench.core.clock = lambda ms=ms: ms * 1_000_000
        stream.publish(b"m" * 3000)
    assert len(stream.queue.segments()) > 4
    for ms in (0, 1000, 1001, 1050, 1051, 1098, 1099):
        stream.read(2, ("time", ms * 1_000_000))
        assert stream.offsets() == list(range(max(ms - 999, 1), 101))
        stream.connection.channels[2].cancel(stream.connection.channels[2].consumers[b"r2"])
        stream.connection.feed(ack(2, 0, multiple=True))
    stream.read(2, ("time", 2_000_000_000))
    assert stream.offsets() == []
    bench.core.clock = lambda: 1_999_000_000
    stream.publish(b"early")
    bench.core.clock = lambda: 2_000_000_000
    stream.publish(b"late")
    assert stream.offsets() == [102]


def test_last_is_the_end_of_the_last_segment_with_records(make_bench):
    stream = Stream(make_bench(segment_octets=1 << 20))
    stream.publish(*[b"m" * 1000] * 200)
    stream.read(2, ("last", 0))
    first, *_, last = stream.offsets()
    assert last == 200
    assert 130 < first < 145


def test_what_is_given_back_comes_again_before_anything_newer_to_the_same_reader_alone(stream):
    stream.publish(*[b"%d" % i for i in range(1, 7)])
    stream.read(2, prefetch=4)
    stream.read(3, NEXT)
    assert stream.offsets(2) == [1, 2, 3, 4]
    stream.connection.feed(nack(2, 3) + nack(2, 1) + ack(2, 2))
    assert stream.got(2) == [(1, b"1", True), (3, b"3", True), (5, b"5", False)]
    stream.connection.feed(reject(2, 4, requeue=False))     # It is skipped.
    assert stream.got(2) == [(6, b"6", False)]
    assert stream.gate.readers()[1][1:] == (7, 1, 0)
    stream.connection.feed(ack(2, 0, multiple=True))
    assert stream.gate.readers()[1][1:] == (7, 7, 0)
    assert (stream.queue.returned, stream.queue.redelivered, stream.queue.unacked) == (2, 2, 0)


def test_a_channel_that_recovers_gets_all_that_it_holds_again(stream):
    stream.publish(b"a", b"b", b"c")
    stream.read(2, prefetch=2)
    assert stream.offsets() == [1, 2]
    stream.connection.channels[2].recover()
    assert stream.got() == [(1, b"a", True), (2, b"b", True)]


@pytest.mark.parametrize(("octets", "row"), [(16, 104), (936, 10), (9000, 2)])
def test_readers_take_turns_after_8_kib_each(stream, octets, row):
    stream.publish(*[b"m" * octets] * 4 * row)
    for number in (2, 3):
        stream.read(number)
    stream.bench.turns()
    came = [one.channel for one in stream.connection.delivered()]
    rows = [len(list(those)) for _, those in itertools.groupby(came)]
    assert sum(rows) == 8 * row
    assert rows[1:-1] == [row] * (len(rows) - 2)        # A row counts from its second message on.


def test_a_reader_without_credit_gets_nothing_until_it_acknowledges(stream):
    stream.read(2, prefetch=2)
    stream.publish(*[b"m"] * 5)
    assert stream.offsets() == [1, 2]
    stream.publish(b"m")
    assert stream.offsets() == []
    stream.connection.feed(ack(2, 1))
    assert stream.offsets() == [3]


def test_deliveries_of_a_reader_that_left_may_still_be_settled(stream):
    stream.publish(b"a", b"b", b"c")
    consumer = stream.read(2)
    assert stream.offsets() == [1, 2, 3]
    stream.connection.channels[2].cancel(consumer)
    stream.connection.feed(ack(2, 1) + nack(2, 2))
    assert stream.queue.unacked == 1
    stream.connection.channels[2].close()
    assert (stream.queue.unacked, stream.queue.ready, stream.gate.readers()) == (0, 3, [])
    stream.queue.check()


def test_a_purge_takes_all_that_is_there_and_offsets_go_on(make_bench):
    stream = Stream(make_bench())
    stream.publish(*[b"m" * 2000] * 100)
    stream.read(2, prefetch=2)
    assert stream.offsets() == [1, 2]
    assert stream.purge() == 100
    assert (stream.queue.ready, stream.queue.ready_octets, stream.gate.first_offset) == (0, 0, 101)
    assert stream.purge() == 0
    stream.connection.feed(nack(2, 1) + ack(2, 2))
    stream.publish(b"new", b"newer")
    assert stream.got() == [(101, b"new", False), (102, b"newer", False)]
    assert stream.gate.missed == 99         # 1, which was given back, and 3 to 100.
    stream.read(3)
    assert stream.offsets(3) == [101, 102]
    stream = recovered(make_bench)
    stream.read(2)
    assert stream.offsets() == [101, 102]
    assert stream.queue.next_seq == 103


def test_an_empty_stream_goes_on_with_its_offsets_after_a_restart(make_bench):
    stream = Stream(make_bench())
    stream.publish(b"a", b"b")
    stream.purge()
    stream = recovered(make_bench)
    stream.publish(b"c")
    stream.read(2)
    assert stream.got() == [(3, b"c", False)]


@pytest.mark.parametrize("suspect", [False, True])
def test_a_restart_keeps_all_messages(make_bench, suspect):
    stream = Stream(make_bench())
    stream.publish(*[b"%d" % i * 500 for i in range(1, 300)])
    stream.read(2)
    assert stream.offsets() == list(range(1, 300))
    stream.connection.feed(ack(2, 0, multiple=True))
    stream = recovered(make_bench, suspect)
    assert (stream.queue.ready, stream.queue.next_seq, stream.gate.first_offset) == (299, 300, 1)
    stream.read(2)
    stream.publish(b"new")
    assert stream.offsets() == list(range(1, 301))


def test_a_damaged_record_is_skipped_counted_and_reported_once(make_bench):
    stream = Stream(make_bench())
    stream.publish(*[b"body%d" % i for i in range(1, 6)])
    path = f"{stream.queue.directory}/msgs.{stream.queue.segments()[0]['number']:010d}"
    with open(path, "r+b") as file:
        octets = file.read()
        file.seek(octets.index(b"body3"))
        file.write(b"BODY")
    bench = make_bench()
    queue = bench.queue()
    queue.gate = plane.Stream()
    from brokerd.store.disk import Disk
    from brokerd.store.recovery import recover

    recover(queue, Disk(), False, lambda _: None)
    stream = Stream(bench, queue)
    for number in (2, 3):
        stream.read(number)
        assert stream.offsets(number) == [1, 2, 4, 5]
    assert len(bench.damages) == 1
    assert {row[3] for row in stream.gate.readers()} == {1}


def spoil(stream, body):
    path = f"{stream.queue.directory}/msgs.{stream.queue.segments()[0]['number']:010d}"
    with open(path, "r+b") as file:
        at = file.read().index(body)
        file.seek(at)
        file.write(bytes(len(body)))


def test_a_start_forgets_which_records_readers_have_checked(make_bench):
    stream = Stream(make_bench())
    stream.publish(*[b"body%d" % i for i in range(1, 6)])
    stream = recovered(make_bench)
    stream.read(2)
    assert stream.offsets(2) == [1, 2, 3, 4, 5]
    spoil(stream, b"body2")
    stream = recovered(make_bench)
    stream.read(2)
    assert stream.offsets(2) == [1, 3, 4, 5]
    assert len(stream.bench.damages) == 1


def test_a_record_that_a_reader_has_passed_from_the_first_one_on_is_not_checked_again(make_bench):
    stream = Stream(make_bench())
    stream.publish(*[b"body%d" % i for i in range(1, 4)])
    stream = recovered(make_bench)
    stream.read(2)
    assert stream.offsets(2) == [1, 2, 3]
    spoil(stream, b"body2")
    stream.read(3)
    assert [body for _, body, _ in stream.got(3)] == [b"body1", bytes(5), b"body3"]
    assert stream.bench.damages == []


def test_a_message_with_a_time_to_live_stays(make_bench):
    bench = make_bench()
    stream = Stream(bench)
    stream.connection.feed(publish(1, b"m", properties=b"\x11\x00\x02\x011"))       # delivery mode 2, expiration 1
    bench.at(1_000_000_000)
    assert stream.queue.ready == 1


def test_a_stream_that_is_deleted_lets_its_readers_settle_what_they_hold(stream):
    stream.publish(b"a", b"b", b"c")
    stream.read(2)
    stream.read(3, NEXT)
    assert stream.offsets() == [1, 2, 3]
    stream.queue.drop()
    assert stream.queue.consumers == {}
    stream.connection.feed(ack(2, 1) + nack(2, 2) + reject(2, 3, requeue=False))
    assert stream.connection.errors == []


def test_a_stream_out_of_service_lets_its_readers_settle_what_they_hold(stream):
    stream.publish(b"a", b"b", b"c")
    stream.read(2)
    assert stream.offsets() == [1, 2, 3]
    stream.queue.gate = plane.ClosedGate()
    stream.connection.feed(ack(2, 1) + nack(2, 2) + reject(2, 3, requeue=False))
    assert (stream.connection.errors, stream.queue.unacked) == ([], 0)


def test_many_readers_at_many_places_keep_few_segments_mapped(make_bench):
    stream = Stream(make_bench())
    stream.publish(*[b"m" * 5000] * 200)
    for number in range(2, 12):
        stream.read(number, ("offset", 1 + 17 * (number - 2)), prefetch=1)
    stream.bench.turns()
    assert sorted(offset_of(one) for one in stream.connection.delivered()) == [1 + 17 * i for i in range(10)]
    before = sum(row["mapped"] for row in stream.queue.segments())
    for number in range(2, 12):
        stream.connection.channels[number].close()
    assert before <= 12
    assert sum(row["mapped"] for row in stream.queue.segments()) <= 2


def test_what_readers_have_mapped_is_unmapped_in_pieces_and_they_read_on(make_bench):
    stream = Stream(make_bench())
    stream.publish(*[b"m" * 5000] * 200)
    for number in range(2, 12):
        stream.read(number, ("offset", 1 + 17 * (number - 2)), prefetch=1)
    stream.bench.turns()
    stream.connection.frames()

    def mapped():
        return sum(row["mapped"] for row in stream.queue.segments())

    before, offset = mapped(), 1
    while offset:
        offset, was = stream.gate.unmap(offset, 3), mapped()
        assert before - 3 <= was <= before
        before = was
    assert before == 1                      # the last one
    stream.connection.feed(ack(5, 1) + nack(6, 1))
    stream.bench.turns()
    assert sorted(offset_of(one) for one in stream.connection.delivered()) == [53, 69]


# --- a model

class Reader:
    def __init__(self, offset, prefetch):
        self.next, self.prefetch = offset, prefetch
        self.out, self.again = [], []       # (tag, offset); offsets
        self.tag = 0


ACTIONS = st.lists(st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 40)),
    st.tuples(st.just("join"), st.integers(2, 4), st.integers(-60, 60), st.integers(1, 20)),
    st.tuples(st.just("leave"), st.integers(2, 4)),
    st.tuples(st.sampled_from(["ack", "nack", "reject"]), st.integers(2, 4), st.integers(0, 19), st.booleans()),
    st.tuples(st.just("retain"), st.integers(0, 120)),
    st.tuples(st.just("purge")),
), max_size=40)


@given(actions=ACTIONS)
@settings(deadline=None, max_examples=150)
def test_readers_see_what_a_model_sees(tmp_path_factory, actions):
    bench = Bench(tmp_path_factory.mktemp("stream"))
    stream = Stream(bench)
    published, first, readers = 0, 1, {}
    for action, *values in actions:
        if action == "publish":
            stream.publish(*[b"%d" % (published + i) + b"." * 2000 for i in range(1, values[0] + 1)])
            published += values[0]
        elif action == "join" and values[0] not in readers:
            number, start, prefetch = values
            stream.read(number, ("offset", start) if start >= 0 else ("back", -start), prefetch=prefetch)
            readers[number] = Reader(max(start, 1) if start >= 0 else max(published + 1 + start, 1), prefetch)
        elif action == "leave" and values[0] in readers:
            stream.connection.channels[values[0]].close()
            del readers[values[0]]
        elif action == "retain":
            stream.gate.set_limits(max_length=values[0])
            stream.gate.retain(1000)
            stream.gate.set_limits()
            first = stream.gate.first_offset
            assert first <= published + 1
        elif action == "purge":
            assert stream.purge() == published + 1 - first
            first = published + 1
        elif action in ("ack", "nack", "reject") and values[0] in readers and readers[values[0]].out:
            settle(stream, readers[values[0]], action, *values)
        bench.turns()
        stream.queue.check()
        compare(stream, readers, first, published)
    assert stream.queue.ready == published + 1 - first
    assert stream.connection.errors == []
    bench.close()


def settle(stream, reader, action, number, which, multiple):
    tag = reader.out[which % len(reader.out)][0]
    chosen = [one for one in reader.out if one[0] == tag or (multiple and one[0] < tag)]
    reader.out = [one for one in reader.out if one not in chosen]
    if action == "ack":
        stream.connection.feed(ack(number, tag, multiple))
    elif action == "nack":
        stream.connection.feed(nack(number, tag, multiple))
        reader.again += [offset for _, offset in chosen]
    else:
        stream.connection.feed(nack(number, tag, multiple, requeue=False))


def compare(stream, readers, first, published):
    came = {number: [] for number in readers}
    for one in stream.connection.delivered():
        came[one.channel].append((one.tag, offset_of(one), one.redelivered))
        assert one.body.split(b".")[0] == b"%d" % offset_of(one)
    for number, reader in readers.items():
        expected = []
        while len(reader.out) < reader.prefetch:
            reader.again = sorted(offset for offset in reader.again if offset >= first)
            if reader.again:
                offset, again = reader.again.pop(0), True
            elif max(reader.next, first) <= published:
                offset, again = max(reader.next, first), False
                reader.next = offset + 1
            else:
                break
            reader.tag += 1
            reader.out.append((reader.tag, offset))
            expected.append((reader.tag, offset, again))
        assert came[number] == expected

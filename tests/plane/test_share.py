"""Readers of one name share a stream: order within each key, over readers that come, leave and give back.

The model knows each message's key, who holds it, and whether it is settled.  hypothesis drives both.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plane.harness import ack, consume, nack, publish
from tests.plane.test_filter import valued
from tests.plane.test_stream import FIRST, NEXT, offset_of

from brokerd import plane

TWO = 4096  # octets of a segment in which some messages have room


def keyed(key):
    """The properties of a message with that key; None: without one."""
    item = b"" if key is None else b"\x08group-idS" + len(key).to_bytes(4) + key.encode()
    return b"\x30\x00" + len(item).to_bytes(4) + item + b"\x02"


class Shared:
    """A stream, readers of one name each on a channel of its own, and what a model knows of the messages."""

    def __init__(self, bench, *, single=False, filter=None):  # noqa: A002
        self.bench, self.single, self.filter = bench, single, filter
        self.queue = bench.queue()
        self.queue.gate = self.gate = plane.Stream()
        self.connection = bench.connection(1)
        self.slot = bytearray(512)
        self.keys = []          # of each message
        self.settled = set()
        self.holder = {}        # offset -> channel
        self.tags = {}          # of each message that is out
        self.next_channel = 2

    def turns_until(self, is_so):
        """Turns until `is_so` of the share: how much each sends depends on the machine's speed.  False: it never is."""
        for _ in range(2000):
            self.bench.turns()
            list(self.connection.frames())
            if is_so(self.gate.shares()[0]):
                return True
        return False

    def publish(self, *keys):
        self.keys += keys
        for key in keys:
            self.connection.feed(publish(1, b"m" * 40, properties=keyed(key)))
        self.turn()

    def join(self, prefetch=3, start=FIRST):
        number = self.next_channel
        self.next_channel += 1
        channel = plane.Channel(self.connection, number)
        channel.prefetch = prefetch
        slot = {} if self.gate.shares() else {"slot": memoryview(self.slot), "turn": 0}
        self.gate.begin(*start, share=b"billing", single=self.single, names=(b"group-id",), filter=self.filter, **slot)
        consume(channel, self.queue, b"r")
        self.turn()
        return number

    def channels(self):
        return [number for number in self.connection.channels if number > 1]

    def leave(self, number):
        channel = self.connection.channels[number]
        if channel.consumers:
            channel.cancel(channel.consumers[b"r"])
        self.turn()

    def close(self, number):
        self.connection.channels[number].close()
        self.holder = {offset: holder for offset, holder in self.holder.items() if holder != number}
        self.turn()

    def settle(self, number, offset, requeue=None):
        tag = self.tags[offset]
        if requeue is None:
            self.settled.add(offset)
        del self.holder[offset]
        self.connection.feed(ack(number, tag) if requeue is None else nack(number, tag))
        self.turn()

    def turn(self):
        self.bench.turns()
        self.queue.check()
        for one in self.connection.delivered():
            offset = offset_of(one)
            assert offset not in self.settled, "a message that was settled comes again"
            assert offset not in self.holder, "a message that is out comes again"
            key = self.key(offset)
            for other in range(1, offset):
                if self.key(other) == key and other not in self.settled:
                    assert self.holder.get(other) == one.channel, f"{offset} overtook {other}, or is out elsewhere"
            for other, holder in self.holder.items():
                assert self.key(other) != key or holder == one.channel, "a key is out to two readers"
            self.holder[offset] = one.channel
            self.tags[offset] = one.tag

    def key(self, offset):
        key = self.keys[offset - 1]
        return 0 if self.single else ("alone", offset) if key is None else key

    def lowest(self):
        rows = self.gate.readers()
        return rows[0][2] if rows else None

    def drain(self):
        """All readers settle what they have, until nothing comes."""
        while self.holder:
            for offset, number in sorted(self.holder.items()):
                self.settle(number, offset)


@pytest.fixture
def shared(make_bench):
    return Shared(make_bench())


def test_each_message_goes_to_one_reader_and_each_key_to_the_same(shared):
    for _ in range(3):
        shared.join(prefetch=1000)
    shared.publish(*[f"k{i % 20}" for i in range(200)])
    assert set(shared.holder) == set(range(1, 201))
    by_key = {}
    for offset, number in shared.holder.items():
        by_key.setdefault(shared.key(offset), set()).add(number)
    assert all(len(numbers) == 1 for numbers in by_key.values())
    assert len({min(numbers) for numbers in by_key.values()}) == 3


def test_messages_without_a_key_are_spread(shared):
    for _ in range(2):
        shared.join(prefetch=1000)
    shared.publish(*[None] * 200)
    counts = [list(shared.holder.values()).count(number) for number in (2, 3)]
    assert sum(counts) == 200
    assert min(counts) > 50


def test_a_reader_without_credit_holds_up_its_own_keys_alone(shared):
    slow, quick = shared.join(prefetch=1), shared.join(prefetch=1000)
    shared.publish(*[f"k{i % 20}" for i in range(200)])
    assert list(shared.holder.values()).count(slow) == 1
    share = shared.gate.shares()[0]
    assert share[3:5] == (len(shared.holder), 200 - len(shared.holder))
    assert list(shared.holder.values()).count(quick) >= 10      # One key at least is its own.


def test_a_key_moves_when_nothing_of_it_is_out(shared):
    first = shared.join(prefetch=5)
    shared.publish(*["k"] * 10)
    second = shared.join(prefetch=5)
    shared.leave(first)
    assert set(shared.holder.values()) == {first}
    for offset in (2, 1, 4, 3):
        shared.settle(first, offset)
        assert set(shared.holder.values()) <= {first}
    shared.settle(first, 5)
    assert shared.holder == dict.fromkeys(range(6, 11), second)


def test_what_a_reader_held_that_went_comes_first_to_the_next(shared):
    first, second = shared.join(prefetch=4), shared.join(prefetch=100)
    shared.publish(*["a", "b", "c", "d"] * 10)
    held = [offset for offset, number in shared.holder.items() if number == first]
    shared.close(first)
    assert set(held) <= set(shared.holder)
    assert shared.holder == dict.fromkeys(range(1, 41), second)


def test_a_single_active_reader_gets_all_and_the_next_waits_for_what_the_former_holds(make_bench):
    shared = Shared(make_bench(), single=True)
    first, second = shared.join(prefetch=3), shared.join(prefetch=3)
    shared.publish(*"abcdef")
    assert shared.holder == dict.fromkeys((1, 2, 3), first)
    shared.leave(first)
    shared.settle(first, 1)
    shared.settle(first, 3)
    assert shared.holder == {2: first}
    shared.settle(first, 2, requeue=True)
    assert shared.holder == dict.fromkeys((2, 4, 5), second)
    assert shared.gate.shares()[0][1:4:2] == (True, 3)


@pytest.mark.parametrize("more", [True, False])
def test_the_next_single_active_reader_goes_on_when_the_former_settles_all_that_it_held(make_bench, more):
    shared = Shared(make_bench(), single=True)
    first, second = shared.join(prefetch=3), shared.join(prefetch=3)
    shared.publish(*"abcdef"[: 6 if more else 3])
    shared.leave(first)
    for offset in (1, 2, 3):
        shared.settle(first, offset)
    shared.publish(*"gh")
    assert shared.holder == dict.fromkeys((4, 5, 6)[: 3 if more else 2], second)


def test_the_kept_offset_is_the_lowest_that_no_reader_has_acknowledged(shared):
    shared.join(prefetch=100)
    shared.join(prefetch=100)
    shared.publish(*[f"k{i % 7}" for i in range(30)])
    order = sorted(shared.holder, key=lambda offset: offset * 7919 % 31)
    for offset in order:
        shared.settle(shared.holder[offset], offset)
        assert shared.lowest() == min(shared.holder, default=31)
        assert max(cells(shared.slot))[1] in (0, min(shared.holder, default=31))
    assert max(cells(shared.slot))[1] == 31


def cells(slot):
    """(turn, offset) of both cells of a slot."""
    return [(int.from_bytes(slot[at + 8:at + 12], "little"), int.from_bytes(slot[at:at + 8], "little"))
            for at in (320, 336)]


def test_a_share_ends_with_the_last_that_is_out_and_the_next_reader_begins_anew(shared):
    only = shared.join()
    shared.publish("a", "b")
    shared.leave(only)
    assert len(shared.gate.shares()) == 1
    shared.settle(only, 1)
    shared.settle(only, 2, requeue=True)
    assert shared.gate.shares() == []
    shared.settled.add(2)
    shared.join(start=NEXT)
    shared.publish("c")
    assert set(shared.holder) == {3}


def test_what_waits_is_bounded_and_all_goes_on_when_it_is_taken(shared):
    slow = shared.join(prefetch=1)
    shared.publish(*(f"k{i}" for i in range(48)))
    quick = shared.join(prefetch=0xFFFF)
    # Of so many keys each reader has about a half, whatever their hashes.
    shared.keys = [f"k{i % 1024}" for i in range(40_000)]
    for at in range(0, 40_000, 2000):
        shared.connection.feed(b"".join(
            publish(1, b"m", properties=keyed(key))
            for key in shared.keys[at:at + 2000]))
        shared.bench.turns()
        list(shared.connection.frames())
    assert shared.turns_until(lambda share: share[4] == 16384)
    shared.connection.channels[slow].close()
    assert shared.turns_until(lambda share: share[3:5] == (40_048, 0))
    assert len(shared.connection.channels[quick].consumers) == 1


def test_a_filter_of_a_share_holds_for_all_its_readers(make_bench):
    shared = Shared(make_bench(), filter=b"\0\2eu")
    shared.join(prefetch=100)
    shared.join(prefetch=100)
    values = [b"eu", b"us", None, b"eu"]
    shared.connection.feed(b"".join(publish(1, b"m", properties=valued(value)) for value in values))
    shared.keys += ["a"] * 4
    shared.bench.turns()
    assert sorted(offset_of(one) for one in shared.connection.delivered()) == [1, 4]
    assert shared.gate.shares()[0][-1] == (b"\0\2eu", False, None)


def test_retention_takes_what_waits_and_order_goes_on(make_bench):
    shared = Shared(make_bench(segment_octets=TWO))
    shared.join(prefetch=1)
    shared.publish(*[f"k{i % 3}" for i in range(100)])
    shared.gate.set_limits(max_length=20)
    shared.gate.retain(1000)
    gone = shared.gate.first_offset - 1
    assert gone > 50
    shared.settled |= set(range(2, gone + 1))
    shared.drain()
    assert shared.settled == set(range(1, 101))
    assert shared.gate.shares()[0][3:6] == (0, 0, 0)


ACTIONS = st.lists(st.tuples(st.sampled_from(
    ("publish", "publish", "join", "leave", "close", "ack", "ack", "ack", "nack")), st.integers(0, 99)), max_size=40)


@settings(max_examples=150, deadline=None)
@given(actions=ACTIONS, single=st.booleans())
def test_order_per_key_holds_over_readers_that_come_and_go(tmp_path_factory, actions, single):
    from tests.plane.harness import Bench

    bench = Bench(tmp_path_factory.mktemp("share"), segment_octets=TWO)
    shared = Shared(bench, single=single)
    keeper = shared.join(prefetch=2)     # so that the share stays
    for action, number in actions:
        readers = [channel for channel in shared.channels() if channel != keeper]
        held = sorted(shared.holder)
        if action == "publish":
            shared.publish(*[None if i % 5 == 4 else f"k{(number + i * i) % 4}" for i in range(number % 7)])
        elif action == "join" and len(readers) < 6:
            shared.join(prefetch=1 + number % 4)
        elif action == "leave" and readers:
            shared.leave(readers[number % len(readers)])
        elif action == "close" and readers:
            shared.close(readers[number % len(readers)])
        elif action in ("ack", "nack") and held:
            offset = held[number % len(held)]
            shared.settle(shared.holder[offset], offset, requeue=True if action == "nack" else None)
        lowest = min((offset for offset in range(1, len(shared.keys) + 1) if offset not in shared.settled),
                     default=len(shared.keys) + 1)
        assert shared.lowest() <= lowest
        assert shared.lowest() == lowest or lowest not in shared.holder
    shared.join(prefetch=2)
    shared.leave(keeper)                 # What it holds is settled below, and the others go on.
    shared.drain()
    assert shared.settled == set(range(1, len(shared.keys) + 1))

"""Keys of readers that share: more of them than the table had buckets, and owners for what a reader that left held.

Each turn has the plane compare its counts.
"""

import pytest
from tests.plane.harness import consume, publish
from tests.plane.test_share import Shared
from tests.plane.test_stream import offset_of


@pytest.fixture
def shared(make_bench):
    return Shared(make_bench())


def test_what_waits_while_no_reader_is_there_goes_to_the_first_that_comes(shared):
    only = shared.join(prefetch=400)
    shared.publish(*[f"k{i % 150}" for i in range(450)])
    shared.leave(only)
    for offset in sorted(shared.holder)[1::2]:
        shared.settle(only, offset, requeue=True)
    assert shared.gate.shares()[0][2:6] == ([], 200, 200, 150)
    first, second = shared.join(prefetch=1000), shared.join(prefetch=1000)
    assert set(shared.holder.values()) == {only, first}     # A second one owns no key that the first one has.
    shared.close(only)
    assert sorted(shared.holder) == list(range(1, 451))
    assert set(shared.holder.values()) == {first, second}
    shared.drain()
    assert shared.gate.shares()[0][3:6] == (0, 0, 0)


def test_a_key_that_comes_again_is_found_however_many_keys_came_since(shared):
    readers = [shared.join(prefetch=2000) for _ in range(3)]
    for keys in (range(40), range(20, 200), range(0, 200, 7), range(250)):
        shared.publish(*[f"k{i}" for i in keys])    # Which asserts one holder of each key, and its order.
    for number in readers[:2]:
        shared.close(number)
    assert len(shared.holder) == len(shared.keys)
    shared.drain()
    assert shared.gate.shares()[0][3:6] == (0, 0, 0)
    shared.publish(*[f"k{i}" for i in range(250)])
    assert len(shared.holder) == 250


@pytest.mark.parametrize("kept", [0, 3000, 5000])
def test_very_many_messages_of_one_key_go_to_its_next_reader_in_pieces_and_in_order(make_bench, kept):
    """Where retention has taken what the former reader held, it is missed in pieces too."""
    shared = Shared(make_bench(segment_octets=1 << 16, deliver_octets_per_turn=1 << 16), single=True)
    shared.keys = [None] * 5000
    former, following = [shared.join(prefetch=5000) for _ in range(2)]
    for _ in range(5):
        shared.connection.feed(publish(1, b"m" * 40) * 1000)
        assert shared.turns_until(lambda share: True)
    assert shared.turns_until(lambda share: share[3] == 5000)
    shared.gate.set_limits(max_length=kept)
    assert (shared.gate.retain(1000) > 0) == (kept < 5000)
    first = shared.gate.first_offset
    shared.connection.channels[former].close()
    came = []
    shared.bench.core.turn()
    assert shared.gate.missed < 4096
    for _ in range(100):
        shared.bench.turns()
        came += [(one.channel, offset_of(one)) for one in shared.connection.delivered()]
        shared.queue.check()
    assert came == [(following, offset) for offset in range(first, 5001)]
    assert (shared.gate.missed, shared.gate.shares()[0][3]) == (first - 1, 5001 - first)


def test_keys_that_lost_their_owner_wait_for_one_until_fewer_messages_wait_in_heaps(shared):
    first = shared.join(prefetch=40_000)
    shared.bench.core.clock = lambda: 1_000_000_000
    shared.keys = [None] * 40_000
    octets = publish(1, b"m")
    for _ in range(20):
        shared.connection.feed(octets * 2000)
        shared.bench.turns()
        list(shared.connection.frames())
    assert shared.turns_until(lambda share: share[3] == 40_000)
    slow, quick = shared.join(prefetch=1), shared.join(prefetch=0xFFFF)
    shared.connection.channels[first].close()
    # About half of what is given an owner is the slow one's, and stays in its heap.
    assert shared.turns_until(lambda share: share[3] > 12_000)
    for _ in range(50):
        shared.bench.turns()
        list(shared.connection.frames())
    out, waiting = shared.gate.shares()[0][3:5]
    assert out < 25_000
    assert out + waiting == 40_000
    shared.connection.channels[slow].close()
    assert shared.turns_until(lambda share: share[3:5] == (40_000, 0))
    assert len(shared.connection.channels[quick].consumers) == 1
    shared.queue.check()


def test_a_turn_hands_out_fewer_messages_of_a_share_than_of_a_queue(make_bench):
    """Each of them costs as much as some in a queue: a turn of a mebibyte took some 6 ms."""
    octets = publish(1, b"m" * 16) * 5000
    bench = make_bench()
    plain = bench.connection(1)
    consume(plain.channels[1], bench.queue(), no_ack=True)
    plain.feed(octets)
    assert len(plain.bodies()) == 5000
    shared = Shared(make_bench())
    shared.keys = [None] * 5000
    shared.join(prefetch=5000)
    shared.connection.feed(octets)
    assert 0 < len(shared.connection.bodies()) < 4000

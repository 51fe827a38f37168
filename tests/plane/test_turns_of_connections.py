"""Connections take turns: the octets of one are worked on for a while, then others have theirs."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plane.harness import Bench, consume, frame, publish
from tests.plane.test_connection import BODIES, CONVERSATION, stored
from tests.plane.test_store import no_larger_than

from brokerd import plane

METHOD = frame(1, 1, struct.pack(">HH", 20, 20) + b"\1")
HOUR_NS = 3600 * 10 ** 9


class Shared(Bench):
    """Each method is more than a connection may do at a time; ``asked``: how often the plane wanted to go on."""

    def __init__(self, directory, work_ns=1, **options):
        self.asked = 0
        super().__init__(directory, work_ns=work_ns, go_on=self._go_on, **options)
        self.order = []

    def _go_on(self):
        self.asked += 1

    def connection(self, *channels, **how):
        connection = super().connection(*channels, **how)
        on_method = connection.on_method

        def on_method_in_order(channel, payload):
            self.order.append(connection.number)
            on_method(channel, payload)

        connection.on_method = on_method_in_order
        self.finish()
        return connection

    def finish(self):
        """All turns that the plane asks for, one at a time."""
        while self.asked:
            self.asked -= 1
            self.core.go_on()


def leave(connection):
    """What a server does when the socket is gone; ``detached`` counts how often the plane has asked for the end."""
    connection.detached = 0

    def detach():
        connection.detached += 1
        connection.detach()

    connection.on_octets_finished = detach
    if connection.finish_octets():
        detach()


@pytest.fixture
def shared(tmp_path):
    return Shared(tmp_path)


def test_one_method_of_each_connection_is_worked_on_in_turns(shared):
    one, two, three = (shared.connection(1) for _ in range(3))
    one.feed(METHOD * 4)
    two.feed(METHOD * 2)
    three.feed(METHOD * 3)
    assert shared.order == [1, 2, 3]
    shared.finish()
    assert shared.order == [1, 2, 3, 1, 2, 3, 1, 3, 1]


def test_a_message_that_needs_more_room_in_a_file_counts_as_a_method_does(shared):
    """Here a turn lasts one nanosecond.  The first message of a priority needs a file, which takes longer."""
    queue = shared.queue(max_priority=3)
    one, two = shared.connection(1), shared.connection(1)
    # The content header's flags: a priority.
    octets = [publish(1, b"%d" % n, properties=b"\x08\0" + bytes([n])) for n in (1, 2, 3)]
    shared.asked = 0
    one.feed(publish(1, b"route") + METHOD)     # The route is remembered.
    shared.finish()
    shared.order.clear()
    one.feed(octets[0] + octets[1] + octets[0] + octets[2])
    assert (queue.ready, one.yielded) == (2, True)
    two.feed(METHOD)
    assert shared.order == [two.number]
    shared.asked -= 1
    shared.core.go_on()
    assert (queue.ready, one.yielded) == (3, True)
    shared.finish()
    assert (queue.ready, one.yielded) == (5, False)
    one.feed(octets[0] + octets[2])             # There is room for these.
    assert (queue.ready, one.yielded) == (7, False)


def test_messages_that_need_no_room_are_no_longer_than_a_turn_either(shared):
    """Each may go to another queue: 10,000 messages to as many pages that no one had used lately took 60 ms."""
    one, two = shared.connection(1), shared.connection(1)
    octets = publish(1, b"x" * 100, key=b"nowhere")
    one.feed(octets + METHOD)       # The route is remembered.
    shared.finish()
    shared.order.clear()
    one.feed(octets * ((1 << 15) // len(octets) - 2) + METHOD)
    assert shared.order == [one.number]
    shared.finish()
    shared.order.clear()
    one.feed(octets * ((1 << 15) // len(octets) + 2) + METHOD)
    two.feed(METHOD)
    assert (shared.order, one.yielded) == ([two.number], True)
    shared.finish()
    assert shared.order == [two.number, one.number]


def test_a_calm_connection_has_every_second_turn(tmp_path):
    shared = Shared(tmp_path, calm_ns=HOUR_NS)
    one, two, three, four = (shared.connection(1) for _ in range(4))
    one.feed(METHOD * 4)
    two.feed(METHOD * 4)
    shared.core.calm_ns = 1         # Now every connection has used little for the time.
    three.feed(METHOD * 2)
    four.feed(METHOD * 2)
    shared.core.calm_ns = HOUR_NS
    shared.finish()
    assert shared.order == [1, 2, 3, 4] + [3, 1, 4, 2] + [1, 2] * 2


@pytest.mark.parametrize(("calm_ns", "waits"), [(1, False), (HOUR_NS, True), (0, True)])
def test_a_calm_connection_that_has_nothing_more_to_do_does_not_wait(tmp_path, calm_ns, waits):
    shared = Shared(tmp_path, calm_ns=calm_ns)
    one = shared.connection(1)
    one.feed(METHOD)
    assert (one.yielded, one.out.reading) == (waits, not waits)
    one.feed(METHOD * 2)
    assert one.yielded
    shared.finish()
    assert shared.order == [1] * 3


def test_a_calm_connection_has_one_further_turn_at_once_however_long_its_looks_for_routes_take(tmp_path):
    """Else a piece of work that takes longer than calm_ns would make its client calm for ever."""
    shared = Shared(tmp_path, calm_ns=1)
    queue, one = shared.queue(), shared.connection(1)
    keys = [b"key%d" % number for number in range(20)]
    for key in keys:
        shared.bound[b"ex", key] = (b"q",)
    shared.asked = 0
    one.feed(b"".join(publish(1, b"m", key, exchange=b"ex") for key in keys))
    assert queue.ready <= 3
    assert one.yielded
    shared.finish()
    assert (queue.ready, one.yielded) == (20, False)


def test_a_calm_connection_that_goes_has_its_turn_among_the_others(tmp_path):
    shared = Shared(tmp_path, calm_ns=HOUR_NS)
    one, two = shared.connection(1), shared.connection(1)
    one.feed(METHOD * 3)
    shared.core.calm_ns = 1
    two.rest()
    two.feed(METHOD * 2)
    leave(two)
    shared.core.calm_ns = HOUR_NS
    shared.finish()
    assert shared.order == [1, 1, 2, 1, 2]


def test_methods_wait_when_all_together_keep_the_control_plane_busy_and_messages_do_not(tmp_path):
    shared = Shared(tmp_path, HOUR_NS, crowd_ns=1)
    queue = shared.queue()
    one, two, three = (shared.connection(1) for _ in range(3))
    shared.core.go_on()                         # It counts from here.
    one.feed(METHOD * 2)
    for other in (two, three):
        other.feed(publish(1, b"x") + METHOD + publish(1, b"y"))
    assert (shared.order, queue.ready, two.yielded, three.yielded) == ([1, 1], 2, True, True)
    shared.finish()
    assert (shared.order, queue.ready) == ([1, 1, 2, 3], 4)
    assert not two.yielded


def test_the_plane_goes_on_with_each_connection_once_where_there_is_time(tmp_path):
    shared = Shared(tmp_path, crowd_ns=HOUR_NS)
    one, two = shared.connection(1), shared.connection(1)
    one.feed(METHOD * 3)
    two.feed(METHOD * 3)
    shared.core.go_on()
    assert shared.order == [1, 2, 1, 2]
    shared.core.go_on()
    assert shared.order == [1, 2, 1, 2, 1, 2]


def test_the_plane_asks_once_for_each_time_that_it_goes_on(shared):
    one, two = shared.connection(1), shared.connection(1)
    one.feed(METHOD * 3)
    two.feed(METHOD * 3)
    shared.core.turn()
    shared.core.turn()
    assert shared.asked == 1
    for left in (1, 1, 1):
        shared.asked -= 1
        shared.core.go_on()
        assert shared.asked == left


def test_a_connection_within_its_time_does_not_wait(tmp_path):
    shared = Shared(tmp_path, HOUR_NS)
    one = shared.connection(1)
    one.feed(METHOD * 100)
    assert (len(shared.order), shared.asked, one.stopped) == (100, 0, False)


def test_without_a_limit_octets_are_worked_on_until_they_are_used_up(tmp_path):
    shared = Shared(tmp_path, 0)
    shared.connection(1).feed(METHOD * 100)
    assert (len(shared.order), shared.asked) == (100, 0)


class Transport:
    """Notes whether the plane reads."""

    def __init__(self):
        self.reads = True

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True


def test_the_plane_reads_no_more_of_a_connection_that_waits_for_its_turn(shared):
    one = shared.connection(1)
    one.transport = Transport()
    one.attach(one.transport, -1)
    one.feed(METHOD * 2)
    assert (one.transport.reads, one.stopped) == (False, True)
    shared.finish()
    assert (one.transport.reads, one.stopped) == (True, False)


@settings(max_examples=50)
@given(cuts=st.lists(st.integers(0, len(CONVERSATION)), max_size=12), finished=st.sets(st.integers(0, 12)),
       times=st.sampled_from(((1, 0, 0), (1, 1, 1), (1, 1, HOUR_NS), (HOUR_NS, 0, 1), (HOUR_NS, HOUR_NS, 1))))
def test_wherever_octets_are_cut_and_whenever_the_turn_comes_the_conversation_is_the_same(
        tmp_path_factory, cuts, finished, times):  # fmt: skip
    work_ns, calm_ns, crowd_ns = times
    shared = Shared(tmp_path_factory.mktemp("shared"), work_ns, calm_ns=calm_ns, crowd_ns=crowd_ns)
    queue = shared.queue()
    connection, other = shared.connection(1), shared.connection(1)
    connection.bench_core = shared.core
    at = 0
    for number, cut in enumerate([*sorted(cuts), len(CONVERSATION)]):
        connection.feed(CONVERSATION[at:cut])
        other.feed(METHOD)
        at = cut
        if number in finished:
            shared.finish()
    shared.finish()
    assert stored(queue, connection) == BODIES
    assert connection.methods == [(1, struct.pack(">HH", 20, 20) + b"\1")]
    assert len(other.methods) == len(cuts) + 1
    assert not connection.errors


def test_of_publishes_that_are_asked_for_each_connection_has_one_in_its_turn(shared):
    shared.cacheable = False
    shared.queue()
    one, two = shared.connection(1), shared.connection(1)
    one.feed(b"".join(publish(1, b"%d" % n) for n in range(4)))
    two.feed(b"".join(publish(1, b"%d" % n) for n in range(10, 13)))
    shared.finish()
    assert [row[6] for row in shared.queues[b"q"].browse(0, 9)] == [b"0", b"10", b"1", b"11", b"2", b"12", b"3"]
    assert len(shared.resolved) == 7


def test_a_publish_in_parts_that_waits_for_its_turn_is_asked_for_once(shared):
    shared.cacheable = False
    shared.queue()
    one = shared.connection(1)
    octets = b"".join(publish(1, b"x" * 300, piece=100) for _ in range(3))
    for at in range(0, len(octets), 50):
        one.feed(octets[at:at + 50])
    shared.finish()
    assert (shared.queues[b"q"].ready, len(shared.resolved)) == (3, 3)


def test_publishes_that_wait_come_behind_those_before_them_and_routes_of_others_do_not_mix(shared):
    shared.cacheable = False
    for name in (b"a", b"b"):
        shared.queue(name)
    one, two = shared.connection(1), shared.connection(1)
    one.feed(b"".join(publish(1, b"a%d" % n, b"a") for n in range(5)))
    two.feed(b"".join(publish(1, b"b%d" % n, b"b") for n in range(5)))
    shared.finish()
    for name in (b"a", b"b"):
        rows = shared.queues[name].browse(0, 9)
        assert [row[6] for row in rows] == [b"%s%d" % (name, n) for n in range(5)]


def test_a_connection_that_ends_while_it_waits_takes_its_octets_along(shared):
    one, two = shared.connection(1), shared.connection(1)
    one.feed(METHOD * 3)
    two.feed(METHOD * 3)
    one.detach()
    shared.finish()
    assert shared.order == [1, 2, 2, 2]


def test_octets_that_wait_count_before_a_connection_ends(shared):
    queue = shared.queue()
    one, two = shared.connection(1), shared.connection(1)
    one.feed(METHOD * 3 + publish(1, b"last") + publish(1, b"cut off")[:-1])
    two.feed(METHOD * 3)
    assert one.yielded
    leave(one)
    assert shared.order == [1, 2]
    shared.finish()
    assert shared.order == [1, 2, 1, 2, 1, 2]     # Who goes holds up nobody.
    assert [row[6] for row in queue.browse(0, 9)] == [b"last"]
    assert one.detached == 1


def test_a_connection_that_ends_gets_nothing_more_while_its_octets_wait(shared):
    queue = shared.queue()
    one, two = shared.connection(1), shared.connection(1)
    consume(one.channels[1], queue)
    one.feed(METHOD * 5)
    leave(one)
    two.feed(publish(1, b"x"))
    shared.core.turn()
    assert (queue.ready, queue.unacked) == (1, 0)
    shared.finish()
    assert one.detached == 1
    assert [row[2] for row in queue.browse(0, 9)] == [False]    # It was not handed out.


def test_a_connection_without_room_for_its_message_ends_at_once(shared):
    """Its client has gone: nobody would hear of the confirm."""
    queue, one = shared.queue(), shared.connection(1)
    one.feed(publish(1, b"first"))
    shared.finish()
    with no_larger_than(4096):
        one.feed(publish(1, bytes(100_000)))
        assert one.stopped
        leave(one)
        shared.finish()
    assert (one.detached, queue.ready) == (1, 1)


def test_octets_of_a_connection_that_does_not_wait_are_not_finished_twice(shared):
    queue = shared.queue()
    one = shared.connection(1)
    one.feed(publish(1, b"one"))
    shared.finish()
    assert one.finish_octets() is True
    assert (queue.ready, one.yielded) == (1, False)


def test_a_method_that_awaits_an_answer_comes_again_also_when_its_client_has_gone(shared):
    one, seen = shared.connection(1), []

    def on_method(_channel, payload):
        seen.append(payload)
        if len(seen) == 1:
            raise LookupError("not known yet")

    one.on_method = on_method
    one.on_error = lambda *_: one.await_answer(comes_again=True)
    one.feed(METHOD * 3)
    leave(one)
    shared.finish()
    assert (len(seen), one.detached) == (1, 0)
    one.answered()
    shared.finish()
    assert (len(seen), one.detached) == (4, 1)


class Slow:
    """Takes part in each publish, and takes its time."""

    counts_as_routed = False
    refuses = False

    def before_storing(self, queues):
        return queues

    def after_storing(self, message, channel, stored):
        pass


def test_publishes_in_which_features_take_part_wait_for_their_turns_too(shared):
    queue = shared.queue()
    shared.participants = (Slow(),)
    one, two = shared.connection(1), shared.connection(1)
    one.feed(b"".join(publish(1, b"%d" % n) for n in range(4)))
    two.feed(b"".join(publish(1, b"%d" % n) for n in range(10, 13)))
    shared.finish()
    assert [row[6] for row in queue.browse(0, 9)] == [b"0", b"10", b"1", b"11", b"2", b"12", b"3"]
    assert len(shared.resolved) == 1        # The route is remembered.


def test_after_the_end_no_connection_has_a_turn(shared):
    one = shared.connection(1)
    one.feed(METHOD * 3)
    shared.core.end()
    shared.finish()
    assert shared.order == [1]


def test_consumers_get_their_messages_while_another_connection_waits(shared):
    queue = shared.queue()
    one, two, consumer = shared.connection(1), shared.connection(1), shared.connection(1)
    consume(consumer.channels[1], queue)
    one.feed(METHOD * 1000)
    two.feed(publish(1, b"quick"))
    shared.core.go_on()
    assert consumer.bodies() == [b"quick"]
    assert len(one.methods) <= 3


def test_a_connection_that_sends_more_than_consumers_get_in_a_turn_waits_for_its_next_one(tmp_path):
    """The loop would read up to 2 MiB of it first, and have a turn for consumers after each read."""
    shared = Shared(tmp_path, work_ns=4_000_000)
    shared.queue()
    one, two, consumer = (shared.connection(1) for _ in range(3))
    for _ in range(20):
        one.feed(publish(1, b"m") * 5000)
        shared.finish()
    for each in (one, two):
        each.transport = Transport()
        each.attach(each.transport, -1)
    heartbeat = frame(8, 0, b"")
    consume(consumer.channels[1], shared.queues[b"q"], no_ack=True)
    two.feed(heartbeat)
    one.feed(heartbeat * (len(one.get_buffer(0)) // len(heartbeat)))
    assert (one.yielded, one.transport.reads, two.yielded) == (True, False, False)
    shared.finish()
    assert (one.yielded, one.transport.reads) == (False, True)


def test_what_goes_wrong_with_one_connection_ends_it_and_not_the_turns_of_others(shared):
    one, two = shared.connection(1), shared.connection(1)
    one.transport = Transport()
    one.transport.aborted = []
    one.transport.abort = lambda: one.transport.aborted.append(True)
    one.attach(one.transport, -1)
    one.feed(METHOD * 2)
    two.feed(METHOD * 3)

    def fail(channel, payload):
        raise SystemExit

    one.on_method = fail
    shared.asked -= 1
    with pytest.raises(SystemExit):
        shared.core.go_on()
    assert one.transport.aborted == [True]
    shared.finish()
    assert shared.order == [1, 2, 2, 2]


def with_key(number):
    """Properties with one header, id."""
    table = b"\x02idl" + number.to_bytes(8)
    return b"\x20\0" + len(table).to_bytes(4) + table


def test_publishes_whose_keys_are_written_one_by_one_wait_for_their_turns_too(shared):
    window = plane.ExchangeWindow(10, -1, b"id", has_log=True)
    window.hash_key = plane.HashKey(bytes(16))
    queues = shared.queue(b"a"), shared.queue(b"b")
    shared.resolve = lambda *_: plane.Answer(queues, cacheable=True, checks_keys=True, window=window)
    shared.routes = plane.Routes(shared.core, shared.resolve)
    one, two = shared.connection(1), shared.connection(1)
    for connection, numbers in ((one, range(4)), (two, range(10, 13))):
        connection.feed(b"".join(publish(1, b"%d" % n, properties=with_key(n)) for n in numbers))
    shared.finish()
    assert [row[6] for row in queues[1].browse(0, 9)] == [b"0", b"10", b"1", b"11", b"2", b"12", b"3"]
    assert len(window) == 7


def test_errands_take_turns_with_each_other_and_with_connections(shared):
    one = shared.connection(1)
    left = {"a": 3, "b": 1}

    def errand(name):
        def step():
            shared.order.append(name)
            left[name] -= 1
            return not left[name]
        return step

    one.feed(METHOD * 4)
    shared.core.add_errand(errand("a"))
    shared.core.add_errand(errand("b"))
    assert shared.core.has_errands
    shared.finish()
    assert shared.order == [1, 1, "a", 1, "b", 1, "a", "a"]
    assert not shared.core.has_errands


def test_an_errand_that_raises_is_over_and_stops_nobody(shared):
    def broken():
        raise RuntimeError("of the errand")

    done = []
    shared.core.add_errand(broken)
    shared.core.add_errand(lambda: not done.append(1))
    shared.asked -= 1
    with pytest.raises(RuntimeError, match="of the errand"):
        shared.core.go_on()
    shared.finish()
    assert (done, shared.core.has_errands) == ([1], False)


def test_a_connection_that_rests_goes_on_where_it_was_after_the_last_go_on(tmp_path):
    shared = Shared(tmp_path, HOUR_NS)
    one = shared.connection(1)
    transport = Transport()
    one.attach(transport, -1)
    on_method = one.on_method

    def rest(channel, payload):
        on_method(channel, payload)
        if len(shared.order) == 2:
            one.rest()
            one.rest()

    one.on_method = rest
    one.feed(METHOD * 4)
    one.feed(METHOD)        # The loop had read it already.
    assert (len(shared.order), one.stopped, shared.asked) == (2, True, 0)
    assert transport.reads is False
    one.go_on()
    shared.finish()
    assert (len(shared.order), one.stopped) == (2, True)
    one.go_on()
    shared.finish()
    assert (len(shared.order), one.stopped) == (5, False)
    assert transport.reads is True


def test_a_connection_that_rests_and_goes_on_in_one_method_works_on(shared):
    one = shared.connection(1)
    on_method = one.on_method

    def rest(channel, payload):
        on_method(channel, payload)
        one.rest()
        one.go_on()

    one.on_method = rest
    one.feed(METHOD * 3)
    shared.finish()
    assert (len(shared.order), one.stopped) == (3, False)


def test_octets_of_a_connection_that_rests_count_when_its_client_goes(shared):
    one = shared.connection(1)
    one.rest()
    one.feed(METHOD * 3)
    assert (shared.order, one.yielded) == ([], True)
    leave(one)
    shared.finish()
    assert (shared.order, one.detached) == ([one.number] * 3, 1)
    one.go_on()
    shared.finish()
    assert (shared.order, one.detached) == ([one.number] * 3, 1)



def test_a_client_that_sends_much_lets_others_have_their_turn(tmp_path):
    shared = Shared(tmp_path, HOUR_NS)
    shared.queue()
    one = shared.connection(1)
    transport = Transport()
    one.attach(transport, -1)
    octets = publish(1, bytes(1000))
    count = (2 << 20) // len(octets)
    one.feed(octets * count)
    assert (one.stopped, shared.asked) == (False, 0)
    one.feed(octets)
    assert (one.stopped, shared.asked, transport.reads) == (True, 1, False)
    one.feed(octets)
    shared.finish()
    assert (one.stopped, transport.reads) == (False, True)
    assert shared.queues[b"q"].ready == count + 2


def test_octets_that_wait_may_be_none(shared):
    one = shared.connection(1)
    one.feed(METHOD * 2)
    one.feed(b"")
    one.feed(b"")
    shared.finish()
    assert len(shared.order) == 2


MANY = [b"many%d" % n for n in range(100)]


@pytest.fixture
def wide(tmp_path):
    """A bench whose key b"many" leads to 100 queues.  In a turn there is time to find room in one of them."""
    bench = Shared(tmp_path)
    for name in MANY:
        bench.queue(name)
    bench.bound = {(b"", b"many"): tuple(MANY)}
    return bench


def turns(bench):
    """How many turns there are until nothing waits for one."""
    count = 0
    while bench.asked:
        bench.asked -= 1
        bench.core.go_on()
        count += 1
    return count


@pytest.mark.parametrize("piece", [None, 11])
def test_a_publish_to_many_queues_has_room_found_for_it_in_turns_and_is_stored_at_once(wide, piece):
    one, two = wide.connection(1), wide.connection(1)
    two.bench_core = wide.core
    wide.queue()
    one.feed(publish(1, b"wide", b"many", piece=piece) + METHOD)
    for _ in range(50):
        wide.asked -= 1
        wide.core.go_on()
        two.feed(publish(1, b"other"))
    wide.finish()
    assert wide.order == [one.number]
    assert all(wide.queues[name].ready == 1 for name in MANY)
    assert wide.queues[b"q"].ready == 50
    assert stored(wide.queues[MANY[99]], two) == [b"wide"]


def test_until_there_is_room_in_all_queues_a_message_is_in_none(wide):
    one = wide.connection(1)
    one.feed(publish(1, b"wide", b"many"))
    seen = set()
    while wide.asked:
        seen.add(sum(wide.queues[name].ready for name in MANY))
        wide.asked -= 1
        wide.core.go_on()
    assert seen == {0}
    assert sum(wide.queues[name].ready for name in MANY) == 100
    one.feed(publish(1, b"again", b"many"))
    assert turns(wide) <= 1     # There is room.


def test_a_queue_bound_while_room_is_found_gets_the_message_too(wide):
    one = wide.connection(1)
    one.feed(publish(1, b"wide", b"many"))
    wide.asked -= 1
    wide.core.go_on()
    wide.queue(b"late")
    wide.bound[b"", b"many"] = (*MANY[50:], b"late")
    wide.routes.clear()
    wide.finish()
    assert [wide.queues[name].ready for name in (MANY[0], MANY[50], b"late")] == [0, 1, 1]


def test_a_client_that_goes_while_room_is_found_has_published_to_all_or_none(wide):
    one = wide.connection(1)
    one.feed(publish(1, b"wide", b"many"))
    leave(one)
    wide.finish()
    assert {wide.queues[name].ready for name in MANY} == {1}


def test_a_publish_to_few_queues_waits_for_no_turn(tmp_path):
    bench = Shared(tmp_path)
    few = [b"few%d" % n for n in range(8)]
    for name in few:
        bench.queue(name)
    bench.bound = {(b"", b"few"): tuple(few)}
    bench.connection(1).feed(publish(1, b"x", b"few"))
    assert {bench.queues[name].ready for name in few} == {1}


def test_a_publish_to_many_queues_without_room_is_told_and_waits(wide):
    one = wide.connection(1)
    with no_larger_than(1000):
        one.feed(publish(1, b"wide", b"many"))
        wide.finish()
        assert (len(wide.storage_errors), one.stopped) == (1, True)
    one.unblock()
    wide.finish()
    assert {wide.queues[name].ready for name in MANY} == {1}


def test_what_stalled_waits_for_go_on_as_well_if_the_connection_rests_when_there_is_room_again(shared):
    queue = shared.queue()
    one = shared.connection(1)
    with no_larger_than(1000):
        one.feed(publish(1, b"x") + METHOD)
        shared.finish()
    one.rest()
    one.unblock()
    shared.finish()
    assert (queue.ready, shared.order, one.stopped) == (0, [], True)
    one.go_on()
    shared.finish()
    assert (queue.ready, shared.order, one.stopped) == (1, [one.number], False)

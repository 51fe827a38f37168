"""Who gets the next message: credit of a channel as a whole, and cancels among many."""

import random

import pytest
from tests.plane.harness import ack, consume, nack, publish, reject

from brokerd import plane

SEEDS = 80


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2)


def filled(bench, connection, name, number):
    queue = bench.queue(name)
    connection.feed(b"".join(publish(2, b"%s %d" % (name, index), key=name) for index in range(number)))
    return queue


def take_all(connection, rounds):
    """Ack each delivery of channel 1 in a chunk of its own, so often: the bodies in the order in which they came."""
    came = []
    for _ in range(rounds):
        delivered = connection.delivered()
        came += [one.body for one in delivered]
        for one in delivered:
            connection.feed(ack(1, one.tag))
    return came


def test_queues_that_share_a_channels_credit_take_turns(bench, connection):
    big, small = filled(bench, connection, b"big", 20), filled(bench, connection, b"small", 3)
    connection.channels[1].global_prefetch = 1
    consume(connection.channels[1], big, b"t1")
    consume(connection.channels[1], small, b"t2")
    bench.turns()
    came = take_all(connection, 8)
    assert came == [b"big 0", b"small 0", b"big 1", b"small 1", b"big 2", b"small 2", b"big 3", b"big 4"]


def test_credit_for_several_is_shared_too(bench, connection):
    queues = [filled(bench, connection, name, 10) for name in (b"a", b"b", b"c")]
    for number, queue in enumerate(queues):
        consume(connection.channels[1], queue, b"t%d" % number)
    connection.channels[1].return_unacked()
    connection.said()
    connection.channels[1].global_prefetch = 6
    bench.turns()
    assert sorted(connection.bodies()) == [b"a 0", b"a 1", b"b 0", b"b 1", b"c 0", b"c 1"]
    last = connection.channels[1]
    connection.feed(ack(1, 0, multiple=True))
    assert sorted(connection.bodies()) == [b"a 2", b"a 3", b"b 2", b"b 3", b"c 2", b"c 3"]
    assert last.unacked == 6


def test_a_queue_that_fills_late_gets_its_turn(bench, connection):
    big, small = filled(bench, connection, b"big", 20), bench.queue(b"small")
    connection.channels[1].global_prefetch = 2
    consume(connection.channels[1], big, b"t1")
    consume(connection.channels[1], small, b"t2")
    bench.turns()
    assert take_all(connection, 1) == [b"big 0", b"big 1"]
    connection.feed(publish(2, b"late", key=b"small"))
    assert b"late" in take_all(connection, 2)


def test_credit_that_one_cannot_use_goes_to_the_next(bench, connection):
    """The message of the consumer whose turn it is goes to another consumer, of higher priority."""
    first, second = filled(bench, connection, b"first", 1), filled(bench, connection, b"second", 1)
    rival = bench.connection(1)
    connection.channels[1].global_prefetch = 1
    held = filled(bench, connection, b"held", 1)
    consume(connection.channels[1], held, b"t0")
    bench.turns()
    assert connection.bodies() == [b"held 0"]
    consume(connection.channels[1], first, b"t1")
    consume(connection.channels[1], second, b"t2")
    bench.turns()
    assert connection.bodies() == []
    consume(rival.channels[1], first, b"r", priority=10)
    connection.feed(ack(1, 1))
    bench.turns()
    assert rival.bodies() == [b"first 0"]
    assert connection.bodies() == [b"second 0"]


def test_unacked_messages_of_basic_get_take_no_credit(bench, connection):
    queue = filled(bench, connection, b"q", 5)
    channel = connection.channels[1]
    channel.global_prefetch = 2
    for _ in range(3):
        assert channel.get(queue, False)
    bench.core.turn()
    assert len(connection.said()) == 3
    consume(channel, queue, b"t")
    bench.turns()
    assert connection.bodies() == [b"q 3", b"q 4"]


def test_a_consumer_without_acks_waits_while_the_channel_has_no_credit(bench, connection):
    queue, other = filled(bench, connection, b"q", 3), filled(bench, connection, b"other", 1)
    channel = connection.channels[1]
    channel.global_prefetch = 1
    consume(channel, other, b"t1")
    bench.turns()
    assert connection.bodies() == [b"other 0"]
    consume(channel, queue, b"t2", no_ack=True)
    bench.turns()
    assert connection.bodies() == []
    connection.feed(ack(1, 1))
    bench.turns()
    assert connection.bodies() == [b"q 0", b"q 1", b"q 2"]


def test_a_limit_that_is_lifted_lets_all_go_on(bench, connection):
    queues = [filled(bench, connection, name, 2) for name in (b"a", b"b")]
    channel = connection.channels[1]
    channel.global_prefetch = 1
    for number, queue in enumerate(queues):
        consume(channel, queue, b"t%d" % number)
    bench.turns()
    assert len(connection.bodies()) == 1
    channel.global_prefetch = 0
    bench.turns()
    assert len(connection.bodies()) == 3


@pytest.mark.parametrize("how", ["cancel", "close", "pause"])
def test_who_waits_for_credit_may_leave(bench, connection, how):
    queues = [filled(bench, connection, name, 2) for name in (b"a", b"b")]
    channel = connection.channels[1]
    channel.global_prefetch = 1
    consumers = [consume(channel, queue, b"t%d" % number) for number, queue in enumerate(queues)]
    bench.turns()
    assert connection.bodies() == [b"a 0"]
    if how == "cancel":
        channel.cancel(consumers[1])
        channel.cancel(consumers[0])
        connection.feed(ack(1, 1))
        assert connection.bodies() == []
    elif how == "close":
        channel.close()
        assert queues[0].ready == 2
    else:
        connection.pause_writing()
        connection.feed(ack(1, 1))
        connection.resume_writing()
        assert len(connection.bodies()) == 1
    for queue in queues:
        queue.check()


def test_a_cancelled_consumer_with_unacked_deliveries_may_settle_them(bench, connection):
    queue = filled(bench, connection, b"q", 100)
    channel = connection.channels[1]
    channel.prefetch = 1
    for number in range(100):
        consume(channel, queue, b"t%d" % number)
    bench.turns()
    assert len(connection.bodies()) == 100
    for number in range(100):
        channel.cancel(channel.consumers[b"t%d" % number])
    connection.feed(ack(1, 50, multiple=True))
    connection.feed(b"".join(ack(1, tag) for tag in range(51, 101)))
    assert (queue.ready, queue.unacked, channel.unacked) == (0, 0, 0)


def test_the_oldest_of_the_highest_priority_is_active_when_the_active_one_leaves(bench, connection):
    queue = bench.queue(b"q", single_active=True)
    channel = connection.channels[1]
    made = {name: consume(channel, queue, name, priority=priority)
            for name, priority in ((b"a", 1), (b"b", 5), (b"c", 5), (b"d", 3))}
    for name, following in ((b"b", b"c"), (b"c", b"d"), (b"d", b"a")):
        assert queue.active is made[name]
        channel.cancel(made[name])
        assert queue.active is made[following]


def test_of_one_channels_consumers_of_a_queue_the_one_of_higher_priority_is_served_first(bench, connection):
    queue, other = filled(bench, connection, b"q", 4), filled(bench, connection, b"other", 1)
    channel = connection.channels[1]
    channel.global_prefetch = 1
    consume(channel, other, b"t0")
    bench.turns()
    assert connection.bodies() == [b"other 0"]
    consume(channel, queue, b"low", priority=0)
    consume(channel, queue, b"high", priority=1)
    for tag in (1, 2, 3):
        connection.feed(ack(1, tag))
        assert [one.consumer for one in connection.delivered()] == [b"high"]


@pytest.mark.skipif(not hasattr(plane, "TrialGate"), reason="the gate is in the build with assertions")
@pytest.mark.parametrize("cancel", [False, True])
def test_who_was_sent_away_while_the_channel_had_no_credit_is_asked_again(bench, connection, cancel):
    """A gate sends the consumer away.  When it has something for it, another has the channel's credit for a while."""
    gated, other = bench.queue(b"gated"), bench.queue(b"other")
    gated.gate = plane.TrialGate(owned=True)
    for group in (b"red", b"blue", b"green"):
        bench.bound[b"", group] = (b"gated",)
    channel, owner = connection.channels[1], bench.connection(1)
    owner.channels[1].prefetch = 1
    consume(owner.channels[1], gated, b"owner")
    connection.feed(publish(2, b"red 1", key=b"red"))
    owner.feed(ack(1, owner.delivered()[0].tag))
    connection.feed(publish(2, b"blue 1", key=b"blue"))
    assert owner.bodies() == [b"blue 1"]                        # It owns both groups, and has no credit.
    channel.global_prefetch = 1
    consume(channel, gated, b"a")
    elsewhere = consume(channel, other, b"b")
    connection.feed(publish(2, b"red 2", key=b"red"))           # For the owner: `a` is sent away.
    connection.feed(publish(2, b"x", key=b"other"))
    taken = connection.delivered()
    connection.feed(publish(2, b"green 1", key=b"green"))
    assert [one.consumer for one in taken] == [b"b"]
    assert connection.delivered() == []
    if cancel:
        channel.cancel(elsewhere)
    connection.feed(ack(1, taken[0].tag))
    bench.turns()
    assert connection.bodies() == [b"green 1"]


def test_a_channel_that_could_not_be_made_leaves_the_others_in_their_list(bench, connection):
    queue = bench.queue()
    with pytest.raises(ValueError, match="1"):
        plane.Channel(connection, 1)
    connection.feed(publish(1, b"x"))
    consume(connection.channels[2], queue, b"t")
    bench.turns()
    assert connection.bodies() == [b"x"]
    queue.check()


class Course:
    """Some queues, consumers and credits, changed at random; whoever could have a message gets it in the end."""

    def __init__(self, bench, chance):
        self.bench, self.chance = bench, chance
        self.names = [b"q%d" % number for number in range(chance.randint(1, 4))]
        self.queues = {name: bench.queue(name, single_active=chance.random() < 0.2) for name in self.names}
        self.publisher = bench.connection(1)
        self.connections = [bench.connection(1, 2) for _ in range(chance.randint(1, 3))]
        self.held = dict.fromkeys(self.connections, 0)
        self.paused = dict.fromkeys(self.connections, False)
        self.consumers = {}     # by tag: (consumer, its channel)
        self.without_acks = set()
        self.unacked = {}       # tags of deliveries by (connection, channel's number)
        self.made = 0

    def collect(self):
        for connection in self.connections:
            for one in connection.delivered():
                if one.consumer not in self.without_acks:
                    self.unacked.setdefault((connection, one.channel), []).append(one.tag)

    def feed(self, connection, octets):
        plane.Connection.feed(connection, octets)  # The turn comes when the course takes it.

    def publish(self, connection, channel, name):
        size = self.chance.choice((1, 1, 50_000, 100_000))
        self.feed(self.publisher, publish(1, bytes(size), key=name) * self.chance.randint(1, 5))

    def consume(self, connection, channel, name):
        self.made += 1
        tag = b"t%d" % self.made
        channel.prefetch = self.chance.choice((0, 0, 1, 2))
        no_ack = self.chance.random() < 0.2
        if no_ack:
            self.without_acks.add(tag)
        self.consumers[tag] = consume(channel, self.queues[name], tag, no_ack=no_ack,
                                      priority=self.chance.choice((0, 0, 1, 2))), channel

    def cancel(self, connection, channel, name):
        if self.consumers:
            consumer, its_channel = self.consumers.pop(self.chance.choice(list(self.consumers)))
            its_channel.cancel(consumer)

    def settle(self, connection, channel, name):
        self.collect()
        number = next(number for number, one in connection.channels.items() if one is channel)
        tags = self.unacked.get((connection, number))
        if tags:
            tag = tags.pop(self.chance.randrange(len(tags)))
            self.feed(connection, self.chance.choice((ack, ack, nack, reject))(number, tag))

    def limit(self, connection, channel, name):
        channel.global_prefetch = self.chance.choice((0, 1, 1, 2, 3))

    def pause(self, connection, channel, name):
        self.paused[connection] = not self.paused[connection]
        (connection.pause_writing if self.paused[connection] else connection.resume_writing)()

    def hold(self, connection, channel, name):
        if self.held[connection]:
            self.held[connection] -= 1
            connection.release()
        else:
            self.held[connection] += 1
            connection.hold()

    def flow(self, connection, channel, name):
        channel.flow = not channel.flow

    def step(self):
        act = self.chance.choice((self.publish, self.publish, self.consume, self.cancel, self.settle, self.settle,
                                  self.limit, self.pause, self.hold, self.flow))
        connection = self.chance.choice(self.connections)
        act(connection, connection.channels[self.chance.choice((1, 2))], self.chance.choice(self.names))
        if self.chance.random() < 0.6:
            self.bench.core.turn()
        for queue in self.queues.values():
            queue.check()

    def let_all_go(self):
        for connection in self.connections:
            while self.held[connection]:
                self.hold(connection, None, None)
            if self.paused[connection]:
                self.pause(connection, None, None)
            for channel in connection.channels.values():
                channel.flow = True

    def work_off(self):
        """Ack all that comes until nothing comes."""
        self.bench.turns()
        self.collect()
        while any(self.unacked.values()):
            for (connection, number), tags in self.unacked.items():
                self.feed(connection, b"".join(ack(number, tag) for tag in tags))
                tags.clear()
            self.bench.turns()
            self.collect()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_consumer_with_credit_is_forgotten(make_bench, seed):
    course = Course(make_bench(), random.Random(seed))
    for _ in range(course.chance.randint(20, 150)):
        course.step()
    course.let_all_go()
    course.work_off()
    for queue in course.queues.values():
        assert queue.unacked == 0
        assert not (queue.ready and queue.consumers)


def test_a_consumer_counts_what_it_got_again_and_again(bench, connection):
    queue = filled(bench, connection, b"q", 3)
    channel = connection.channels[1]
    consume(channel, queue, b"acks")
    bench.turns()
    connection.feed(nack(1, 3, multiple=True, requeue=True))
    bench.turns()
    assert channel.consumers[b"acks"].delivered == 6
    other = filled(bench, connection, b"other", 4)
    channel.consume(other, b"none", no_ack=True, exclusive=False, priority=0, arguments={})
    bench.turns()
    assert (channel.consumers[b"none"].delivered, channel.consumers[b"acks"].delivered) == (4, 6)

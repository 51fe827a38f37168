"""Queues that go when nobody has used them: when exactly, what counts as use, and what it costs others."""

import random

import pytest

from brokerd.queues.expires import DELETED_PER_RUN, Expires
from brokerd.queues.rules import Rules

MS = 1_000_000


class Queue:
    """What is asked of a queue, by hand."""

    def __init__(self, world, expires_ms):
        self.world = world
        self.rules = Rules(expires_ms=expires_ms)
        self.deleted = False
        self.unused_since = 0
        self.consumer_count = 0
        self.touches = 0

    def touch(self):
        self.touches += 1
        self.unused_since = self.world.now


class Timer:
    def __init__(self, timers, when, callback):
        self.timers, self.when, self.callback = timers, when, callback
        timers.append(self)

    def run(self):
        self.timers.remove(self)
        self.callback()

    def cancel(self):
        self.timers.remove(self)


class World:
    """A clock and its timers, both by hand."""

    def __init__(self):
        self.now = 1_700_000_000_000 * MS
        self.start = self.now
        self.timers = []
        self.gone = []          # (queue, ms since start)
        self.refuses = False
        self.expires = Expires(lambda: self.now, self.delete, self.call_at)

    @property
    def ms(self):
        return (self.now - self.start) // MS

    def call_at(self, when, callback):
        assert not self.timers
        return Timer(self.timers, when, callback)

    def delete(self, queue):
        if not self.refuses:
            queue.deleted = True
            self.gone.append((queue, self.ms))

    def queue(self, expires_ms):
        queue = Queue(self, expires_ms)
        self.expires.watch(queue)
        return queue

    def until(self, ms):
        """Let time pass; each timer runs when it is due."""
        end = self.start + ms * MS
        while self.timers and self.timers[0].when <= end:
            self.now = max(self.now, self.timers[0].when)
            self.timers[0].run()
        self.now = end


@pytest.fixture
def world():
    return World()


def test_a_queue_goes_when_its_time_is_over_and_not_before(world):
    queue = world.queue(500)
    world.until(499)
    assert world.gone == []
    world.until(1000)
    assert world.gone == [(queue, 500)]
    assert len(world.expires) == 0


def test_each_goes_in_its_own_time(world):
    late, early = world.queue(900), world.queue(100)
    world.until(50)
    between = world.queue(300)
    world.until(2000)
    assert world.gone == [(early, 100), (between, 350), (late, 900)]


def test_a_queue_goes_in_the_same_run_as_one_whose_time_was_changed_before_it(world):
    first, second = world.queue(100), world.queue(200)
    first.rules = Rules(expires_ms=5000)
    world.expires.watch(first)
    world.now += 300 * MS
    world.expires.run()
    assert world.gone == [(second, 300)]


def test_use_begins_the_time_again(world):
    queue = world.queue(500)
    world.until(400)
    queue.touch()
    world.until(700)
    queue.touch()
    world.until(5000)
    assert world.gone == [(queue, 1200)]


def test_a_queue_with_a_consumer_stays_and_its_time_begins_when_it_leaves(world):
    queue = world.queue(500)
    queue.consumer_count = 1
    world.until(10_120)
    assert world.gone == []
    queue.consumer_count = 0
    queue.touch()
    world.until(20_000)
    assert world.gone == [(queue, 10_620)]


def test_a_queue_deleted_otherwise_is_forgotten(world):
    queue = world.queue(500)
    queue.deleted = True
    world.until(1000)
    assert (world.gone, len(world.expires)) == ([], 0)


@pytest.mark.parametrize(("changed", "goes"), [(100, 400), (900, 1200), (None, None)])
def test_another_rule_holds_from_then_on(world, changed, goes):
    queue = world.queue(500)
    world.until(300)
    queue.rules = Rules(expires_ms=changed)
    world.expires.watch(queue)
    world.until(5000)
    assert world.gone == ([(queue, goes)] if goes else [])


def test_a_queue_that_cannot_be_deleted_is_tried_again(world):
    world.refuses = True
    queue = world.queue(500)
    world.until(600)
    world.refuses = False
    world.until(2000)
    assert world.gone == [(queue, 1000)]


def test_without_a_timer_it_goes_when_others_look(world):
    world.expires._call_at = None
    queue = world.queue(500)
    world.until(499)
    world.expires.run()
    assert world.gone == []
    world.until(900)
    assert world.gone == []
    world.expires.run()
    assert world.gone == [(queue, 900)]


def test_a_clock_that_is_set_back_makes_them_stay_longer_and_no_worse(world):
    queue = world.queue(500)
    world.now -= 1000 * MS
    world.timers[0].run()
    assert world.gone == []
    world.until(2000)
    assert [gone for gone, _ in world.gone] == [queue]


def test_queues_in_use_set_one_timer_at_a_time(world):
    for _ in range(1000):
        world.queue(500).consumer_count = 1
    assert len(world.timers) == 1
    world.until(100_000)
    assert len(world.timers) == 1


def test_many_that_are_due_together_go_in_turns(world):
    queues = [world.queue(500) for _ in range(3 * DELETED_PER_RUN + 1)]
    world.now += 500 * MS
    world.timers[0].run()
    assert len(world.gone) == DELETED_PER_RUN
    world.until(501)
    assert [queue for queue, _ in world.gone] == queues


def test_queues_that_come_and_go_otherwise_do_not_pile_up(world):
    for _ in range(10_000):
        world.queue(3_600_000).deleted = True
    assert len(world.expires) < 200
    assert len(world.expires._heap) < 200
    kept = [world.queue(1000) for _ in range(300)]
    world.until(1000)
    assert [queue for queue, _ in world.gone] == kept


def test_rules_that_change_often_do_not_pile_up(world):
    queue = world.queue(1000)
    for _ in range(10_000):
        world.expires.watch(queue)
    assert len(world.expires._heap) < 200


@pytest.mark.parametrize("seed", range(20))
def test_over_any_course_a_queue_goes_exactly_when_it_was_unused_for_its_time(seed):
    rng, world = random.Random(seed), World()
    queues = [world.queue(rng.randrange(1, 400)) for _ in range(12)]
    for step in range(1, 200):
        world.until(step * 10)
        for queue in queues:
            if queue.deleted:
                continue
            assert queue.consumer_count or world.now < queue.unused_since + queue.rules.expires_ms * MS
            match rng.randrange(12):
                case 0:
                    queue.consumer_count = 1
                case 1 if queue.consumer_count:
                    queue.consumer_count = 0
                    queue.touch()
                case 2:
                    queue.touch()
    for queue, ms in world.gone:
        assert world.start + ms * MS == queue.unused_since + queue.rules.expires_ms * MS


# --- a real queue

def test_a_real_queue_in_use_stays_and_goes_when_it_was_unused_for_its_time(tmp_path):
    from tests.session.harness import Client, Node

    from brokerd.wire import methods

    world, node = World(), Node(tmp_path)
    node.core.clock = lambda: world.now
    client = Client(node).open()
    client.ask(methods.QueueDeclare(queue="q"))
    queue = node.vhost.queues["q"]
    queue.rules = Rules(expires_ms=500)
    world.expires._delete = lambda queue: (world.gone.append(world.ms), node.vhost.delete_queue(queue))
    world.expires.watch(queue)
    world.until(300)
    assert isinstance(client.ask(methods.BasicGet(queue="q")), methods.BasicGetEmpty)
    world.until(700)
    client.ask(methods.BasicConsume(queue="q", consumer_tag="t"))
    world.until(5000)
    client.ask(methods.BasicCancel(consumer_tag="t"))
    world.until(5400)
    assert world.gone == []
    world.until(9000)
    assert world.gone == [5500]
    assert (node.vhost.queues, len(world.expires)) == ({}, 0)


def test_a_machine_whose_clock_is_set_deletes_no_queue(tmp_path):
    from tests.session.harness import Client, Node

    from brokerd.wire import methods

    world, node = World(), Node(tmp_path)
    ahead = 0
    node.core.monotonic = lambda: world.now
    node.core.clock = lambda: world.now + ahead
    client = Client(node).open()
    client.ask(methods.QueueDeclare(queue="q"))
    queue = node.vhost.queues["q"]
    queue.rules = Rules(expires_ms=60_000)
    world.expires.watch(queue)
    for ahead in (0, 86_400_000 * MS, -86_400_000 * MS):  # noqa: B007 - the node's clock reads it
        world.until(world.ms + 1000)
        assert isinstance(client.ask(methods.BasicGet(queue="q")), methods.BasicGetEmpty)
        world.until(world.ms + 58_000)
        assert world.gone == []
    world.until(world.ms + 2000)
    assert len(world.gone) == 1

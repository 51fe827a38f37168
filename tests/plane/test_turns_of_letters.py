"""Dead letters that go to many queues: a turn does a bounded share of them, and none is lost or out of order."""

import pytest
from tests.plane.harness import publish
from tests.plane.test_letters import Dying

from brokerd import plane


def die_of(dying, cause, count):
    """So many messages die in one piece; a share of them is dealt with."""
    for number in range(count):
        dying.connection.feed(publish(1, b"%d" % number))
    if cause == "rejected":
        dying.reject()
    elif cause == "expired":
        dying.bench.core.clock = lambda: 1011 * 1_000_000
        dying.queue.set_rules(dead_letters=True, ttl_ms=10)
        dying.bench.core.expire()
    else:
        dying.queue.set_rules(dead_letters=True, max_length=0)
        dying.bench.core.turn()


@pytest.mark.parametrize("at_least_once", [False, True])
@pytest.mark.parametrize("cause", ["rejected", "expired", "maxlen"])
@pytest.mark.parametrize("targets", [1, 2, 60, 600])
def test_a_letter_counts_for_each_target_so_that_others_have_their_turn(make_bench, targets, cause, at_least_once):
    bench = make_bench(segment_octets=1 << 20)
    bench.at(1000)
    dying = Dying(bench)
    if at_least_once:
        dying.queue.letters = plane.Letters(dying.routes, b"q", b"dlx", at_least_once=True)
    more = [bench.queue(b"%d" % number) for number in range(1, targets)]
    dying.answer = plane.Answer((dying.target, *more), cacheable=True)
    die_of(dying, cause, 600)
    at_once = -(-512 // targets)
    done = dying.target.ready
    assert max(1, at_once - 8) <= done <= at_once       # The look for the route counts for 8.
    for _ in range(3):
        before = dying.target.ready
        bench.core.turn()
        assert dying.target.ready == min(600, before + at_once)
    bench.turns()
    assert [queue.ready for queue in (dying.target, *more)] == [600] * targets
    assert [int(row[6]) for row in dying.target.browse(1, 600)] == list(range(600))
    assert (dying.queue.died, dying.queue.aside) == ([], 0)


@pytest.mark.parametrize("at_least_once", [False, True])
def test_room_for_a_letter_in_many_queues_is_found_in_several_turns(make_bench, at_least_once):
    """Each of them may need another page, or a file."""
    bench = make_bench(work_ns=1, go_on=lambda: None)
    bench.at(1000)
    dying = Dying(bench)
    dying.queue.letters = plane.Letters(dying.routes, b"q", b"dlx", at_least_once=at_least_once)
    targets = [bench.queue(b"%d" % number) for number in range(100)]
    dying.answer = plane.Answer(tuple(targets), cacheable=True)
    for body in (b"one", b"two"):
        bench.core.put((dying.queue,), b"", b"q", b"\0\0", body)
    dying.queue.set_rules(dead_letters=True, ttl_ms=10)
    bench.core.clock = lambda: 1011 * 1_000_000
    bench.core.expire()
    turns = 0
    while not targets[0].ready:
        assert not any(queue.ready for queue in targets)    # It is stored in all of them at once.
        assert dying.queue.aside == 2
        bench.core.turn()
        turns += 1
    assert turns >= 98
    bench.turns()
    assert [[row[6] for row in queue.browse(1, 9)] for queue in targets] == [[b"one", b"two"]] * 100
    assert (dying.queue.died, dying.queue.aside, dying.queue.dead_lettered) == ([], 0, 2)


def test_a_queue_finishes_its_deaths_also_where_room_is_found_little_by_little(make_bench):
    bench = make_bench(work_ns=1, go_on=lambda: None)
    bench.at(1000)
    dying = Dying(bench)
    targets = [bench.queue(b"%d" % number) for number in range(100)]
    dying.answer = plane.Answer(tuple(targets), cacheable=True)
    bench.core.put((dying.queue,), b"", b"q", b"\0\0", b"one")
    dying.queue.set_rules(dead_letters=True, ttl_ms=10)
    bench.core.clock = lambda: 1011 * 1_000_000
    pieces = 1
    while not dying.queue.finish_deaths(1 << 20):
        pieces += 1
    assert 90 < pieces <= 101
    assert [queue.ready for queue in targets] == [1] * 100


@pytest.fixture
def large(make_bench):
    """Two messages of 512 KiB die in one queue; their letters go to 12 others."""
    bench = make_bench(work_ns=1, go_on=lambda: None, segment_octets=1 << 20)
    bench.at(1000)
    dying = Dying(bench)
    dying.more = [bench.queue(b"%d" % number) for number in range(12)]
    dying.answer = plane.Answer(tuple(dying.more), cacheable=True)
    dying.bodies = [bytes([n]) * (1 << 19) for n in (1, 2)]
    return dying


def die(large, *, at_least_once):
    large.queue.letters = plane.Letters(large.routes, b"q", b"dlx", at_least_once=at_least_once)
    for body in large.bodies:
        large.bench.core.put((large.queue,), b"", b"q", b"\0\0", body)
    large.queue.set_rules(dead_letters=True, max_length=0)
    large.bench.core.turn()


def ready_of(large):
    return [queue.ready for queue in large.more]


@pytest.mark.parametrize("at_least_once", [False, True])
def test_a_letter_of_many_octets_goes_to_many_queues_in_parts(large, at_least_once):
    die(large, at_least_once=at_least_once)
    seen = {sum(ready_of(large))}
    while sum(ready_of(large)) < 24:
        large.bench.core.turn()
        seen.add(sum(ready_of(large)))
    assert len(seen) > 10
    large.bench.turns()
    assert ready_of(large) == [2] * 12
    assert all([row[6] for row in queue.browse(0, 9)] == large.bodies for queue in large.more)
    assert (large.queue.died, large.queue.aside) == ([], 0)


def test_a_letter_goes_on_to_the_queues_with_which_it_began(large):
    die(large, at_least_once=False)
    while not sum(ready_of(large)):
        large.bench.core.turn()
    large.answer = plane.Answer((large.more[0],), cacheable=True)
    large.routes.clear()
    large.bench.turns()
    assert ready_of(large) == [2] + [1] * 11


def test_a_letter_whose_queue_gets_other_rules_between_two_parts_is_not_lost(large):
    die(large, at_least_once=False)
    while not sum(ready_of(large)):
        large.bench.core.turn()
    large.queue.letters = plane.Letters(large.routes, b"q", b"dlx")
    large.bench.turns()
    assert min(ready_of(large)) == 2
    assert sum(ready_of(large)) <= 2 * 12 + 2

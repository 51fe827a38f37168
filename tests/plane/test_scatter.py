"""A message of which all copies together are many octets goes into its queues in parts."""

import os
from pathlib import Path

import pytest
from tests.plane.harness import publish
from tests.plane.test_turns_of_connections import METHOD, Shared, leave

from brokerd import plane
from brokerd.store.reading import scan_records

QUEUES = [b"q%d" % n for n in range(12)]
BODY = bytes(range(256)) * 2048     # 512 KiB


@pytest.fixture
def shared(tmp_path):
    shared = Shared(tmp_path, segment_octets=1 << 20)
    for name in QUEUES:
        shared.queue(name)
    shared.bound = {(b"", b"all"): tuple(QUEUES)}
    yield shared
    shared.close()


def ready(shared):
    return [shared.queues[name].ready for name in QUEUES]


def some(shared, connection, body=BODY, **how):
    """A message is in some of the queues and not in others, when others have their turn."""
    connection.feed(publish(1, body, b"all", **how))
    while not any(ready(shared)):
        shared.core.go_on()
    assert 0 < sum(ready(shared)) < len(QUEUES)
    assert connection.yielded


def bodies(shared, name):
    return [row[6] for row in shared.queues[name].browse(0, 100)]


def publish_numbers(shared, name):
    """The publish_seq of each record of a queue with one segment."""
    directory = shared.queues[name].directory
    (file,) = [file for file in os.listdir(directory) if file.startswith("msgs.")]
    octets = (Path(directory) / file).read_bytes()
    return scan_records(octets, len(octets)).headers["publish_seq"].tolist()


def test_others_have_their_turn_between_two_parts(shared):
    one, two = shared.connection(1), shared.connection(1)
    some(shared, one)
    two.feed(METHOD)
    assert shared.order == [two.number]
    two.feed(publish(1, b"between", QUEUES[-1]))
    shared.finish()
    assert ready(shared) == [1] * 11 + [2]
    assert bodies(shared, QUEUES[-1]) == [b"between", BODY]
    assert all(bodies(shared, name) == [BODY] for name in QUEUES[:-1])


def test_the_next_publish_of_the_connection_comes_behind_in_every_queue(shared):
    one = shared.connection(1)
    some(shared, one)
    one.feed(publish(1, b"next", b"all") + METHOD)
    shared.finish()
    assert all(bodies(shared, name) == [BODY, b"next"] for name in QUEUES)
    assert shared.order == [one.number]


def test_it_counts_once_and_is_confirmed_once_behind_the_last_part(shared):
    tally = shared.tallies[b""] = plane.Tally()
    one = shared.connection(1)
    one.channels[1].select_confirm()
    some(shared, one)
    assert one.said() == []
    shared.finish()
    assert one.said() == [("ack", 1, 1, False)]
    assert (tally.published, tally.routed) == (1, len(QUEUES))
    one.feed(publish(1, b"next", QUEUES[0]))
    assert one.said() == [("ack", 1, 2, False)]


def test_a_persistent_message_is_confirmed_when_all_its_queues_are_synced(shared):
    one = shared.connection(1)
    one.channels[1].select_confirm()
    some(shared, one, persistent=True)
    shared.sync()
    assert one.said() == []
    shared.finish()
    assert one.said() == []
    assert len(shared.sync()) > 0
    assert one.said() == [("ack", 1, 1, False)]


def test_bindings_that_change_between_two_parts_change_nothing(shared):
    one = shared.connection(1)
    some(shared, one)
    shared.bound = {(b"", b"all"): (QUEUES[0],)}
    shared.routes.clear()
    shared.finish()
    assert ready(shared) == [1] * len(QUEUES)
    one.feed(publish(1, b"next", b"all"))
    shared.finish()
    assert ready(shared) == [2] + [1] * 11


def test_a_queue_that_is_deleted_between_two_parts_is_passed_over(shared):
    one = shared.connection(1)
    some(shared, one)
    gone = shared.queues.pop(QUEUES[-1])
    gone.close()
    del gone
    shared.routes.clear()
    shared.finish()
    assert [queue.ready for queue in shared.queues.values()] == [1] * 11
    assert one.errors == []


def test_a_queue_that_refuses_it_makes_its_confirm_a_nack_behind_the_last_part(shared):
    shared.queues[QUEUES[1]].set_rules(max_length=0, overflow=1)
    one = shared.connection(1)
    one.channels[1].select_confirm()
    some(shared, one)
    shared.finish()
    assert one.said() == [("nack", 1, 1, 0)]
    assert ready(shared) == [1, 0] + [1] * 10


def test_a_queue_without_room_holds_up_the_rest_and_no_queue_gets_it_twice(shared):
    one, other = shared.connection(1), shared.connection(1)
    some(shared, one)
    lacking = shared.queues[QUEUES[-1]]
    lacking.make_directory = shared.queues[QUEUES[0]].make_directory    # There is no folder: its file finds no place.
    shared.finish()
    assert (one.told_blocked, ready(shared)[-1]) == (1, 0)
    other.feed(METHOD)
    assert shared.order == [other.number]
    del lacking.make_directory
    one.unblock()
    shared.finish()
    assert ready(shared) == [1] * len(QUEUES)


def test_its_channel_may_go_between_two_parts_and_its_number_is_used_up(shared):
    one = shared.connection(1)
    some(shared, one)
    had = ready(shared)
    one.channels[1].close()
    plane.Channel(one, 1)
    shared.finish()
    assert ready(shared) == had
    one.feed(publish(1, b"next", QUEUES[0]))
    shared.finish()
    assert bodies(shared, QUEUES[0]) == [BODY, b"next"]
    assert publish_numbers(shared, QUEUES[0]) == [1, 2]


def test_a_connection_that_is_gone_has_its_message_stored_everywhere(shared):
    one = shared.connection(1)
    some(shared, one)
    leave(one)
    shared.finish()
    assert ready(shared) == [1] * len(QUEUES)
    assert one.detached == 1


def test_its_properties_may_be_others_than_it_came_with(shared):
    one = shared.connection(1)
    changed = b"\x10\0\x02"
    shared.resolve = None
    answers = []

    def resolve(exchange, key, header, channel):
        answers.append(key)
        return plane.Answer(tuple(shared.queues[name] for name in QUEUES), properties=changed)

    routes = plane.Routes(shared.core, resolve)
    one.routes = routes
    some(shared, one)
    two = shared.connection(1)
    two.routes = routes
    two.feed(publish(1, b"another", b"all"))    # Its route takes the place of the former one.
    shared.finish()
    assert len(answers) == 2
    for name in QUEUES:
        found = {(row[5], row[6]) for row in shared.queues[name].browse(0, 9)}
        assert found == {(changed, BODY), (changed, b"another")}


@pytest.mark.parametrize("sync", [False, True])
def test_a_transaction_stores_it_in_parts_too(shared, sync):
    one = shared.connection(1)
    channel = one.channels[1]
    one.feed(publish(1, b"route", b"all"))
    shared.finish()
    channel.tx = channel.keeps = True
    one.feed(publish(1, b"first", b"all") + publish(1, BODY, b"all") + publish(1, b"last", b"all"))
    shared.finish()
    kept = channel.take_kept()
    assert kept.route(channel)
    parts = 0
    while not kept.put(shared.core, one.number, 1, sync=sync):
        parts += 1
        if 0 < kept.stored < 3:
            assert kept.stored == 1
    assert parts > 3
    assert kept.stored == 3
    assert all(bodies(shared, name) == [b"route", b"first", BODY, b"last"] for name in QUEUES)


def test_limits_of_many_queues_are_kept_in_several_turns(shared):
    """What a queue drops may be the last message of a segment, which goes with it."""
    for name in QUEUES:
        shared.queues[name].set_rules(max_length=1)
    one, two = shared.connection(1), shared.connection(1)
    one.feed(publish(1, b"first", b"all"))
    shared.finish()
    shared.core.turn()
    seen = set()
    one.feed(publish(1, b"second", b"all"))
    while max(ready(shared)) > 1 or min(ready(shared)) < 1 or bodies(shared, QUEUES[-1]) != [b"second"]:
        seen.add(sum(ready(shared)))
        shared.core.go_on()
        shared.core.turn()
    assert len(seen) > 4
    two.feed(METHOD)
    shared.finish()
    assert shared.order == [two.number]
    assert all(bodies(shared, name) == [b"second"] for name in QUEUES)

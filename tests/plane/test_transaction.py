"""What a transactional channel has published is stored in one pass."""

import struct

import pytest
from tests.plane.harness import PERSISTENT, frame, publish, publish_method, read


def commit(bench, committer, *, sync=False):
    kept = committer.channels[1].take_kept()
    assert kept.route(committer.channels[1])
    kept.put(bench.core, committer.number, 1, sync=sync)
    return kept


@pytest.mark.parametrize("piece", [None, 7, 1])
@pytest.mark.parametrize("size", [0, 1, 10, 5000])
def test_messages_are_kept_and_stored_at_commit_in_their_order(bench, committer, piece, size):
    bodies = [bytes([n]) * size for n in range(20)]
    for body in bodies:
        committer.feed(publish(1, body, persistent=True, piece=piece))
    assert bench.queues[b"q"].ready == 0
    commit(bench, committer)
    assert [(one.key, one.properties, one.body) for one in read(bench, bench.queues[b"q"])] == [
        (b"q", PERSISTENT, body) for body in bodies]
    assert (committer.went_up, committer.channels[1].take_kept()) == ([], None)


@pytest.mark.parametrize("change", ["forgotten", "immediate", "mandatory"])
def test_what_cannot_be_stored_as_it_is_is_told_at_commit(bench, committer, change):
    key = b"nowhere" if change == "mandatory" else b"q"
    bits = {"mandatory": 1, "immediate": 2}.get(change, 0)
    content = publish(1, b"x")[len(frame(1, 1, publish_method(b"q"))):]
    committer.feed(frame(1, 1, publish_method(key, bits=bits)) + content)
    if change == "forgotten":
        bench.routes.clear()
    assert not committer.channels[1].take_kept().route(committer.channels[1])


def test_what_commit_logs_says_where_each_message_goes(bench, committer):
    bench.queue(b"r")
    bench.queue(b"t", durable=False)
    bench.bound = {(b"", b"q"): (b"q", b"t"), (b"", b"r"): (b"r", b"q"), (b"", b"t"): (b"t",)}
    committer.feed(publish(1, b"1") + publish(1, b"2", b"t") + publish(1, b"3", b"r") + publish(1, b"4", b"r"))
    kept = committer.channels[1].take_kept()
    assert kept.route(committer.channels[1])
    assert kept.queues == [bench.queues[name] for name in (b"q", b"t", b"r")]
    assert kept.stores == 7
    one = 8 + 1 + 2 + 4 + 2 + 8 + 1     # octets of a message
    assert len(kept.log_messages()) == 4 * one
    assert kept.log_places(100) == struct.pack("<I QII QIII QIII", 3, 100, 1, 0, 100 + 2 * one, 2, 2, 0,
                                               100 + 3 * one, 2, 2, 0)


@pytest.mark.parametrize("keys", [2, 16, 40])
def test_messages_with_other_keys_in_turns_go_where_each_belongs(bench, committer, keys):
    names = [b"turn%d" % n for n in range(keys)]
    for name in names:
        bench.queue(name)
    committer.feed(b"".join(publish(1, b"%d" % n, names[n % keys]) for n in range(5 * keys)))
    kept = commit(bench, committer)
    assert (kept.stores, len(kept.queues)) == (5 * keys, keys)
    for n, name in enumerate(names):
        assert [one.body for one in read(bench, bench.queues[name])] == [b"%d" % (n + at * keys) for at in range(5)]


def test_what_is_committed_waits_for_the_sync_of_its_queue_only_when_that_is_asked_for(bench, committer):
    committer.feed(publish(1, b"x", persistent=True))
    commit(bench, committer)
    assert bench.sync() == []
    bench.core.sync_next([bench.queues[b"q"]])
    assert [path for path in bench.sync() if "msgs." in path]
    bench.core.sync_next([bench.queues[b"q"]])
    assert bench.sync() == []
    committer.feed(publish(1, b"x", persistent=True))
    commit(bench, committer, sync=True)
    assert [path for path in bench.sync() if "msgs." in path]


def test_a_transaction_to_many_queues_is_the_sessions(bench, committer):
    names = [b"wide%d" % n for n in range(257)]
    for name in names:
        bench.queue(name)
    bench.bound = {(b"", b"256"): tuple(names[:256]), (b"", b"257"): tuple(names)}
    committer.feed(publish(1, b"x", b"256") * 3)
    assert commit(bench, committer).stores == 3 * 256
    committer.feed(publish(1, b"x", b"257"))
    assert not committer.channels[1].take_kept().route(committer.channels[1])


def test_a_transaction_with_more_than_two_million_copies_is_the_sessions(bench, committer):
    names = [b"wide%d" % n for n in range(250)]
    for name in names:
        bench.queue(name)
    bench.bound = {(b"", b"wide"): tuple(names)}
    for count, simple in ((8000, True), (8001, False)):
        committer.feed(publish(1, b"", b"wide") * count)
        assert committer.channels[1].take_kept().route(committer.channels[1]) == simple


def test_a_queue_that_refuses_is_told(bench, committer):
    bench.queue(b"r", max_length=1, overflow=1)
    committer.feed(publish(1, b"1", b"r") + publish(1, b"2", b"r"))
    assert commit(bench, committer).refused


def test_a_queue_that_was_deleted_gets_nothing(bench, committer):
    committer.feed(publish(1, b"x"))
    kept = committer.channels[1].take_kept()
    assert kept.route(committer.channels[1])
    bench.queues.pop(b"q").drop()
    kept.put(bench.core, 1, 1, sync=True)
    assert not kept.refused


def test_messages_of_several_levels_and_segments_are_all_stored(bench, committer):
    bench.queue(b"p", max_priority=3)
    for n in range(300):
        committer.feed(publish(1, b"%d" % n + bytes(500), b"p", properties=b"\x18\0\2" + bytes([n % 4])))
    kept = commit(bench, committer)
    assert kept.stores == 300
    bodies = [int(one.body[:-500]) for one in read(bench, bench.queues[b"p"])]
    assert bodies == sorted(range(300), key=lambda n: (-(n % 4), n))


def test_a_message_that_must_be_returned_does_not_go_the_way_of_one_that_need_not(bench, committer):
    committer.feed(publish(1, b"x", b"nowhere"))
    committer.feed(publish(1, b"x", b"nowhere", mandatory=True))
    assert not committer.channels[1].take_kept().route(committer.channels[1])

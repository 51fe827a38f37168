"""The deletion of queues and exchanges in pieces: what others see between two pieces, and what a refusal leaves."""

from collections import Counter
from types import SimpleNamespace

import pytest
from tests.plane.test_retire import descriptors_below
from tests.vhost.test_vhost import described, durable_part, make_exchange, make_queue, publish

from brokerd.errors import PreconditionFailed
from brokerd.vhost import definitions, deletions
from brokerd.vhost.vhost import VHost
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame

MANY = deletions.BINDINGS_AT_ONCE + 20


@pytest.fixture
def queue(vhost):
    """A queue with bindings of the keys 0, 1, ... to the exchange x."""
    queue, x = make_queue(vhost, "q"), make_exchange(vhost, "x", "direct")
    for number in range(MANY):
        vhost.bind(x, queue, str(number), {})
    return queue


def do(work, steps):
    """So many steps of a deletion that is not done by then."""
    for _ in range(steps):
        next(work)
    return work


def after_restart(vhost, tmp_path):
    """What a broker finds that starts now."""
    found = VHost("/", str(tmp_path / "other"), vhost.core, vhost.log)
    assert definitions.replay(found, vhost.log.payloads).failed == []
    return durable_part(found)


# --- queues

def test_a_queue_is_in_service_until_its_bindings_are_gone(vhost, queue, client):
    work = do(deletions.delete_queue(vhost, queue), 10)
    assert not publish(client, "0", "x")
    assert publish(client, str(MANY - 1), "x")          # That binding was the first to go.
    assert (vhost.queue("q"), queue.ready) == (queue, 1)
    assert not publish(client, "q")
    assert deletions.finish(work) == 2
    assert "q" not in vhost.queues
    assert vhost.exchange("x").binding_count == 0
    assert publish(client, "0", "x")
    assert publish(client, "q")


def test_a_crash_between_two_pieces_brings_all_of_the_queue_back(vhost, queue, tmp_path):
    before = durable_part(vhost)
    work = do(deletions.delete_queue(vhost, queue), 15)
    vhost.deletes = definitions.COMPACT_DELETES_MIN * 10
    assert not definitions.is_worth_rewriting(vhost)
    assert after_restart(vhost, tmp_path) == before
    deletions.finish(work)
    assert definitions.is_worth_rewriting(vhost)
    definitions.compact(vhost)
    assert after_restart(vhost, tmp_path) == durable_part(vhost)


def test_a_deletion_that_nobody_finishes_keeps_no_log_from_being_compacted(vhost, queue):
    do(deletions.delete_queue(vhost, queue), 5).close()
    assert vhost.deletions_under_way == 0


def test_a_queue_whose_deletion_the_log_refuses_has_its_bindings_again(vhost, queue, client):
    before = described(vhost)
    work = do(deletions.delete_queue(vhost, queue), 19)
    assert publish(client, str(MANY - 1), "x")
    vhost.log.full = True
    with pytest.raises(PreconditionFailed):
        deletions.finish(work)
    assert described(vhost) == before
    assert not publish(client, str(MANY - 1), "x")      # The route to nowhere is forgotten.
    vhost.log.full = False
    deletions.finish(deletions.delete_queue(vhost, queue))


@pytest.mark.parametrize("condition", ["if_empty", "if_unused"])
def test_a_condition_that_no_longer_holds_in_the_end_keeps_the_queue_as_it_was(vhost, queue, client, condition):
    before = described(vhost)
    work = do(deletions.delete_queue(vhost, queue, **{condition: True}), 10)
    if condition == "if_empty":
        publish(client, "q")
    else:
        client.ask(methods.BasicConsume(queue="q", consumer_tag="t"))
    with pytest.raises(PreconditionFailed):
        deletions.finish(work)
    assert described(vhost) == before


def test_a_condition_that_does_not_hold_at_first_costs_no_binding(vhost, queue, client):
    publish(client, "q")
    with pytest.raises(PreconditionFailed):
        next(deletions.delete_queue(vhost, queue, if_empty=True))
    assert len(queue.bindings) == MANY


def test_a_binding_made_meanwhile_goes_with_the_queue(vhost, queue, tmp_path):
    work = do(deletions.delete_queue(vhost, queue), 10)
    vhost.bind(vhost.exchange("x"), queue, "new", {})
    deletions.finish(work)
    assert vhost.exchange("x").binding_count == 0
    assert after_restart(vhost, tmp_path) == durable_part(vhost)


def test_an_exchange_that_is_deleted_meanwhile_takes_its_bindings_and_a_refusal_does_not_bring_them_back(vhost, queue):
    work = do(deletions.delete_queue(vhost, queue), 10)
    vhost.delete_exchange(vhost.exchange("x"))
    vhost.log.full = True
    with pytest.raises(PreconditionFailed):
        deletions.finish(work)
    assert (len(queue.bindings), "x" in vhost.exchanges) == (0, False)


def test_who_deletes_a_queue_that_somebody_else_has_deleted_meanwhile_removes_nothing(vhost, queue, client):
    first, second = (do(deletions.delete_queue(vhost, queue), 5) for _ in range(2))
    publish(client, "q")
    assert deletions.finish(first) == 1
    another = make_queue(vhost, "q")
    publish(client, "q")
    assert deletions.finish(second) == 0
    assert (vhost.queue("q"), another.ready, vhost.deletions_under_way) == (another, 1, 0)


def test_a_queue_that_two_delete_at_the_same_time_is_told_of_once(vhost, queue, monkeypatch):
    told = []
    monkeypatch.setattr(vhost, "events", SimpleNamespace(
        wanted=True, counts=Counter(), binding_deleted=lambda *_: None,
        queue_deleted=lambda queue, user: told.append(user)))
    one, other = (do(deletions.delete_queue(vhost, queue, user=user), 10) for user in ("one", "other"))
    deletions.finish(other)
    deletions.finish(one)
    deletions.finish(deletions.delete_queue(vhost, queue, user="late"))
    assert told == ["other"]


def test_an_auto_delete_exchange_goes_with_its_last_binding_of_many(vhost):
    queue, x = make_queue(vhost, "q"), make_exchange(vhost, "x", "direct", auto_delete=True)
    for number in range(MANY):
        vhost.bind(x, queue, str(number), {})
    vhost.delete_queue(queue)
    assert "x" not in vhost.exchanges


def test_consumers_are_told_of_their_queues_end_one_by_one_and_the_queue_is_gone_by_then(vhost, node, client):
    queue = make_queue(vhost, "q")
    client.send(*((1, methods.BasicConsume(queue="q", consumer_tag=tag)) for tag in "abc"))
    work = deletions.delete_queue(vhost, queue)
    for tag in "abc":
        next(work)
        assert client.read() == [(1, methods.BasicCancel(consumer_tag=tag, no_wait=True))]
        assert ("q" in vhost.queues, queue.consumer_count) == (False, 0)
    assert deletions.finish(work) == 0


def test_a_consumer_whose_channel_closes_or_whose_tag_is_used_again_meanwhile_is_not_told(vhost, client):
    queue = make_queue(vhost, "q")
    make_queue(vhost, "other")
    client.send((2, methods.ChannelOpen()), *((1, methods.BasicConsume(queue="q", consumer_tag=tag)) for tag in "ab"),
                (2, methods.BasicConsume(queue="q", consumer_tag="c")))
    work = do(deletions.delete_queue(vhost, queue), 1)
    client.send((2, methods.ChannelClose()), (1, methods.BasicConsume(queue="other", consumer_tag="b")))
    deletions.finish(work)
    assert client.read() == []
    assert publish(client, "other") is False
    assert vhost.queue("other").consumer_count == 1


def test_a_deleted_queue_gives_all_its_files_up_however_many_they_are(vhost, client):
    queue = make_queue(vhost, "q", arguments={"x-max-priority": 100})
    for priority in range(101):
        client.raw(methods.BasicPublish(routing_key="q").frame(1)
                   + header_frame(1, b"\0\x3c\0\0" + (1).to_bytes(8) + b"\x08\0" + bytes([priority]))
                   + body_frames(1, b"m", 4096))
    assert queue.ready == 101
    directory = queue.directory
    assert descriptors_below(directory) > 100
    steps = sum(1 for _ in deletions.delete_queue(vhost, queue))
    assert descriptors_below(directory) == 0
    assert steps >= 5       # In pieces: others have their turns between them.


# --- exchanges

def test_an_exchange_has_lost_its_name_before_its_bindings_go(vhost, queue, client, tmp_path):
    old = vhost.exchange("x")
    work = do(deletions.delete_exchange(vhost, old), 5)
    assert "x" not in vhost.exchanges
    assert after_restart(vhost, tmp_path) == durable_part(vhost)
    new = make_exchange(vhost, "x", "direct")
    vhost.bind(new, queue, "0", {})
    assert publish(client, "1", "x")
    assert not publish(client, "0", "x")
    deletions.finish(work)
    assert (old.binding_count, list(queue.bindings)) == (0, list(new.bindings()))


def test_messages_come_through_an_exchange_that_is_deleted_by_the_bindings_to_it_that_are_left(vhost, queue, client):
    middle, source = vhost.exchange("x"), make_exchange(vhost, "source", "direct")
    for key in ("0", "1"):
        vhost.bind(source, middle, key, {})
    work = do(deletions.delete_exchange(vhost, middle), 1)
    assert publish(client, "1", "source")
    assert not publish(client, "0", "source")
    do(work, 1)
    deletions.finish(work)
    assert publish(client, "0", "source")
    assert (source.binding_count, len(queue.bindings), queue.ready) == (0, 0, 1)


def test_a_queue_that_goes_while_its_exchange_is_deleted_goes_whole(vhost, queue):
    other = make_queue(vhost, "other")
    vhost.bind(vhost.exchange("x"), other, "", {})
    x = vhost.exchange("x")
    work = do(deletions.delete_exchange(vhost, x), 1)
    vhost.delete_queue(other)
    vhost.delete_queue(queue)
    deletions.finish(work)
    assert (x.binding_count, len(queue.bindings), len(other.bindings)) == (0, 0, 0)


@pytest.mark.parametrize("type_", ["direct", "topic", "headers", "fanout", "x-consistent-hash", "x-modulus-hash",
                                   "x-random"])
def test_an_exchange_of_any_type_is_empty_in_the_end(vhost, type_):
    x, queue = make_exchange(vhost, "x", type_), make_queue(vhost, "q")
    for number in range(1, 30):
        vhost.bind(x, queue, str(number), {"h": number})
        vhost.bind(x, make_queue(vhost, f"q{number}"), str(number), {})
    deletions.finish(deletions.delete_exchange(vhost, x))
    assert list(x.destinations("1", lambda: pytest.fail("read"))) == [] if type_ != "headers" else True
    assert x.binding_count == 0
    assert not any(each.bindings for each in vhost.queues.values())

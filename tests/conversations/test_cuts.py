"""The same octets get the same answer, however the network cuts them."""

import random

import pytest
from tests.conversations.peer import OTHER, octets_of, publish

from brokerd.wire import methods


def pieces(octets, how):
    """The octets whole, one by one, or cut at random."""
    if how == "whole":
        return [octets]
    if how == "one by one":
        return [octets[at:at + 1] for at in range(len(octets))]
    cuts = sorted(random.Random(how).sample(range(1, len(octets)), 5))
    return [octets[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(octets)], strict=True)]


@pytest.fixture(params=["whole", "one by one", 1, 2, 3])
def say(request, peer):
    """Send methods cut in one of these ways."""
    def say(*items):
        for piece in pieces(octets_of(*items), request.param):
            peer.raw(piece)

    return say


def delivery_and_answer(peer):
    """The body that consumer t gets, and the answer to the method behind the publish.  RabbitMQ may answer first."""
    body, answer = None, None
    while body is None or answer is None:
        method = peer.read()
        if isinstance(method, methods.BasicDeliver):
            assert method.consumer_tag == "t"
            body = peer.message()[1]
            assert answer is None or OTHER
        else:
            answer = method
    return body, answer


def test_basic_get_does_not_pass_by_a_consumer_that_waits(peer, queue, say):
    peer.ask(methods.BasicConsume(queue=queue, consumer_tag="t", no_ack=True))
    say(publish(queue, b"x"), methods.BasicGet(queue=queue, no_ack=True))
    assert delivery_and_answer(peer) == (b"x", methods.BasicGetEmpty())


def test_a_consumer_gets_what_was_published_before_its_cancel(peer, queue, say):
    peer.ask(methods.BasicConsume(queue=queue, consumer_tag="t", no_ack=True))
    say(publish(queue, b"x"), methods.BasicCancel(consumer_tag="t"))
    assert peer.delivery()[1] == b"x"
    assert isinstance(peer.read(), methods.BasicCancelOk)
    assert peer.get(queue) is None


def test_a_purge_finds_nothing_that_a_consumer_waited_for(peer, queue, say):
    peer.ask(methods.BasicConsume(queue=queue, consumer_tag="t", no_ack=True))
    say(publish(queue, b"x"), methods.QueuePurge(queue=queue))
    assert delivery_and_answer(peer) == (b"x", methods.QueuePurgeOk(message_count=0))


def test_a_consumer_waits_before_a_later_one(peer, queue, say):
    peer.ask(methods.BasicConsume(queue=queue, consumer_tag="first", no_ack=True))
    second = methods.BasicConsume(queue=queue, consumer_tag="second", no_ack=True)
    say(publish(queue, b"x"), second, publish(queue, b"y"))
    got = []
    while len(got) < 2:
        method = peer.read()
        if isinstance(method, methods.BasicDeliver):
            got.append((method.consumer_tag, peer.message()[1]))
        else:
            assert method == methods.BasicConsumeOk(consumer_tag="second")
    assert got[0] == ("first", b"x")

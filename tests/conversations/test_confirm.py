"""Class confirm: publisher confirms."""

from tests.conversations.peer import publish

from brokerd.wire import methods


def confirmed(peer, last):
    """Acks of the server until ``last`` is confirmed: the tags, in order."""
    tags = []
    while not tags or tags[-1] < last:
        ack = peer.read()
        assert isinstance(ack, methods.BasicAck), ack
        begin = tags[-1] + 1 if ack.multiple and tags else 1 if ack.multiple else ack.delivery_tag
        tags += range(begin, ack.delivery_tag + 1)
    return tags


def test_publishes_are_numbered_from_select_on(peer, queue):
    peer.send(publish(queue))
    assert peer.ask(methods.ConfirmSelect()) == methods.ConfirmSelectOk()
    peer.send(*[publish(queue) for _ in range(100)])
    assert sorted(confirmed(peer, 100)) == list(range(1, 101))


def test_select_again_is_no_fault_and_does_not_begin_anew(peer, queue):
    peer.ask(methods.ConfirmSelect())
    peer.send(publish(queue))
    confirmed(peer, 1)
    assert peer.ask(methods.ConfirmSelect()) == methods.ConfirmSelectOk()
    peer.send(publish(queue))
    assert peer.read().delivery_tag == 2


def test_select_without_waiting_has_no_reply(peer, queue):
    peer.send(methods.ConfirmSelect(no_wait=True), publish(queue))
    assert peer.read().delivery_tag == 1


def test_persistent_messages_on_durable_queues_are_confirmed_in_order(peer):
    peer.ask(methods.QueueDeclare(queue="confirmed", durable=True))
    peer.ask(methods.ConfirmSelect())
    peer.send(*[publish("confirmed", delivery_mode=2) for _ in range(500)])
    tags = confirmed(peer, 500)
    assert sorted(tags) == list(range(1, 501))
    peer.ask(methods.QueueDelete(queue="confirmed"))


def test_a_message_that_goes_nowhere_is_confirmed(peer):
    peer.ask(methods.ConfirmSelect())
    peer.send(publish("nowhere"))
    assert peer.read() == methods.BasicAck(delivery_tag=1)


def test_what_is_returned_is_confirmed_after_its_return(peer):
    peer.ask(methods.ConfirmSelect())
    peer.send(publish("nowhere", mandatory=True))
    assert isinstance(peer.read(), methods.BasicReturn)
    peer.message()
    assert peer.read() == methods.BasicAck(delivery_tag=1)


def test_confirms_of_channels_do_not_mix(peer, queue):
    peer.open_channel(2)
    peer.ask(methods.ConfirmSelect())
    peer.ask(methods.ConfirmSelect(), 2)
    peer.send(publish(queue), publish(queue, channel=2))
    seen = set()
    for _ in range(2):
        ack = peer.read()
        seen.add((peer.channel, ack.delivery_tag))
    assert seen == {(1, 1), (2, 1)}


def test_a_channel_that_did_not_ask_gets_no_confirms(peer, queue):
    peer.send(publish(queue))
    assert peer.ask(methods.BasicQos()) == methods.BasicQosOk()

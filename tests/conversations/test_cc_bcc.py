"""The headers CC and BCC: more routing keys for one message."""

import pytest
from tests.conversations.peer import content, publish, rabbitmq

from brokerd.wire import methods


@pytest.fixture
def sure(peer):
    """The peer, its channel 1 confirming."""
    return peer.confirming()


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_a_copy_goes_by_every_key(sure, header):
    queues = [sure.declare() for _ in range(3)]
    sure.put(queues[0], b"m", headers={header: queues[1:]})
    assert [sure.arrived(queue).body for queue in queues] == [b"m"] * 3


def test_both_may_be_given(sure):
    queues = [sure.declare() for _ in range(3)]
    sure.put(queues[0], b"m", headers={"CC": [queues[1]], "BCC": [queues[2]]})
    assert [sure.arrived(queue).body for queue in queues] == [b"m"] * 3


def test_cc_is_seen_and_bcc_is_not(sure, queue):
    sure.put(queue, b"m", headers={"CC": ["a"], "BCC": ["b"], "mine": 1})
    assert sure.arrived(queue).headers == {"CC": ["a"], "mine": 1}


def test_a_message_comes_once_to_a_queue_however_many_keys_lead_there(sure, queue):
    sure.put(queue, b"m", headers={"CC": [queue, queue], "BCC": [queue]})
    assert sure.bodies(queue) == [b"m"]


def test_the_key_of_a_copy_is_the_messages_own(sure, queue):
    sure.put("nowhere", b"m", headers={"CC": [queue]})
    assert sure.arrived(queue).method.routing_key == "nowhere"


def test_a_copy_that_arrives_is_an_arrival(sure, queue):
    sure.send(publish("nowhere", b"m", mandatory=True, headers={"CC": [queue]}))
    assert sure.read() == methods.BasicAck(delivery_tag=1)


def test_a_message_none_of_whose_keys_lead_anywhere_comes_back_whole(sure):
    sure.send(publish("nowhere", b"m", mandatory=True, headers={"CC": ["neither"], "BCC": ["nor"]}))
    back = sure.read()
    assert (back.reply_code, back.routing_key) == (312, "nowhere")
    assert sure.message()[0].headers["CC"] == ["neither"]
    assert sure.read() == methods.BasicAck(delivery_tag=1)


@pytest.mark.parametrize(("kind", "binding"), [("direct", "copy.1"), ("topic", "copy.*")])
def test_copies_go_by_the_bindings_of_the_exchange(sure, queue, kind, binding):
    exchange = sure.exchange(kind)
    sure.bind(queue, exchange, binding)
    sure.put("nowhere", b"m", exchange=exchange, headers={"CC": ["copy.1"]})
    assert sure.arrived(queue).body == b"m"


def test_copies_go_from_exchange_to_exchange(sure, queue):
    first, second = sure.exchange("direct"), sure.exchange("topic")
    sure.ask(methods.ExchangeBind(destination=second, source=first, routing_key="copy"))
    sure.bind(queue, second, "copy")
    sure.put("other", b"m", exchange=first, headers={"BCC": ["copy"]})
    assert sure.arrived(queue).body == b"m"


def test_no_keys_are_no_fault(sure, queue):
    sure.put(queue, b"m", headers={"CC": [], "BCC": []})
    assert sure.arrived(queue).body == b"m"


@pytest.mark.parametrize("header", ["CC", "BCC"])
@pytest.mark.parametrize(("value", "kind"), [("one", "longstr"), (5, "signedint"), ({"a": 1}, "table")])
def test_keys_are_a_list(peer, queue, header, value, kind):
    peer.send(publish(queue, headers={header: value}))
    assert peer.channel_close() == (
        406, f'PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,"{header}",{kind}}}')


def test_keys_that_are_no_words_lead_nowhere(sure, queue):
    sure.put("nowhere", b"m", headers={"CC": [5, queue]})
    assert sure.arrived(queue).body == b"m"


def test_cc_of_another_case_is_a_header_like_any(sure, queue):
    other = sure.declare()
    sure.put(queue, b"m", headers={"cc": [other]})
    assert sure.arrived(queue).headers == {"cc": [other]}
    assert sure.got(other) is None


def test_the_body_of_a_copied_message_is_whole(sure):
    queues = [sure.declare() for _ in range(4)]
    body = bytes(range(256)) * 1000
    sure.send(methods.BasicPublish(routing_key=queues[0]), content(body, headers={"BCC": queues[1:], "n": 1}))
    assert isinstance(sure.read(), methods.BasicAck)
    for queue in queues:
        message = sure.arrived(queue)
        assert message.body == body
        assert message.headers == {"n": 1}


@rabbitmq("its dead letters go by the keys of BCC, too", always=True)
def test_a_dead_letter_goes_by_the_keys_of_cc_and_not_by_those_of_bcc(sure):
    seen, hidden = (sure.declare() for _ in range(2))
    source = sure.declare({"x-dead-letter-exchange": ""})
    sure.put(source, b"m", headers={"CC": [seen], "BCC": [hidden]})
    message = sure.arrived(source, no_ack=False)
    sure.send(methods.BasicReject(delivery_tag=message.method.delivery_tag, requeue=False))
    assert [sure.arrived(seen).body for _ in range(2)] == [b"m"] * 2
    assert sure.bodies(hidden) == [b"m"]

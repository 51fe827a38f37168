import re

import pytest

from brokerd.wire import methods

LOCKED = ("cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally declared on "
          "another connection or the exclusive property value does not match that of the original declaration.")


def test_a_server_named_queue_has_22_characters_of_its_own(client):
    assert re.fullmatch(r"amq\.gen-[\w-]{22}", client.ask(methods.QueueDeclare()).queue)


def test_the_empty_name_is_the_queue_declared_last_on_this_channel(client):
    client.ask(methods.QueueDeclare(queue="q"))
    assert client.ask(methods.QueueDeclare(passive=True)).queue == "q"
    assert client.ask(methods.QueueBind(exchange="amq.direct")) == methods.QueueBindOk()
    (binding,) = client.connection.access.vhost.queue("q").bindings
    assert binding.routing_key == "q"
    client.send((2, methods.ChannelOpen()))
    assert client.refusal(methods.QueuePurge(), 2) == (404, "no previously declared queue")


def test_cr_and_lf_are_stripped_from_names(client):
    assert client.ask(methods.QueueDeclare(queue="a\r\nb")).queue == "ab"


@pytest.mark.parametrize("method", [
    methods.QueueDeclare(queue="q", no_wait=True), methods.QueueBind(queue="q", exchange="amq.fanout", no_wait=True),
    methods.QueuePurge(queue="q", no_wait=True), methods.QueueDelete(queue="q", no_wait=True),
    methods.ExchangeDeclare(exchange="x", type="fanout", no_wait=True),
    methods.ExchangeBind(destination="amq.topic", source="amq.fanout", no_wait=True),
    methods.ExchangeUnbind(destination="amq.topic", source="amq.fanout", no_wait=True),
    methods.ExchangeDelete(exchange="x", no_wait=True),
], ids=lambda method: method.NAME)
def test_no_wait_means_no_reply(client, method):
    client.ask(methods.QueueDeclare(queue="q"))
    assert client.ask(method) is None


@pytest.mark.parametrize(("second", "code", "text"), [
    ({"durable": True}, 406, "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is "
                             "'false'"),
    ({"auto_delete": True}, 406, "inequivalent arg 'auto_delete' for queue 'q' in vhost '/': received 'true' but "
                                 "current is 'false'"),
    ({"arguments": {"x-expires": 6}}, 406, "inequivalent arg 'x-expires' for queue 'q' in vhost '/': received '6' but "
                                           "current is '5'"),
    ({"arguments": {}}, 406, "inequivalent arg 'x-expires' for queue 'q' in vhost '/': received none but current is "
                             "the value '5' of type 'signedint'"),
    ({"arguments": {"x-expires": 5, "x-max-length": 1}}, 406, "inequivalent arg 'x-max-length' for queue 'q' in vhost "
     "'/': received the value '1' of type 'signedint' but current is none"),
    ({"exclusive": True}, 405, LOCKED),
])
def test_a_redeclare_that_differs_names_what_differs(client, second, code, text):
    client.ask(methods.QueueDeclare(queue="q", arguments={"x-expires": 5}))
    second = {"arguments": {"x-expires": 5}} | second
    assert client.refusal(methods.QueueDeclare(queue="q", **second)) == (code, text[:240])


@pytest.mark.parametrize("arguments", [
    {"x-expires": 5, "x-queue-type": "classic"}, {"x-expires": 5, "x-unknown": 1},
])
def test_arguments_that_make_no_difference_are_not_compared(client, arguments):
    client.ask(methods.QueueDeclare(queue="q", arguments={"x-expires": 5}))
    assert client.ask(methods.QueueDeclare(queue="q", arguments=arguments)).queue == "q"


@pytest.mark.parametrize("cls", [
    methods.QueueDeclare, methods.QueueBind, methods.ExchangeDeclare, methods.BasicConsume,
], ids=lambda cls: cls.NAME)
def test_arguments_that_are_too_many_close_the_channel(client, cls):
    fields = {"queue": "q"} if cls is not methods.ExchangeDeclare else {"exchange": "x", "type": "headers"}
    if cls is methods.QueueBind:
        fields["exchange"] = "amq.headers"
    client.ask(methods.QueueDeclare(queue="q"))
    code, text = client.refusal(cls(**fields, arguments={f"k{number}": None for number in range(1025)}))
    assert (code, text) == (406, f"arguments of {cls.NAME} have 1025 values, at most 1024 are possible")


@pytest.mark.parametrize(("arguments", "reason"), [
    ({"x-expires": 0}, "'x-expires' for queue 'q' in vhost '/': {value_zero,0}"),
    ({"x-message-ttl": -1}, "'x-message-ttl' for queue 'q' in vhost '/': {value_negative,-1}"),
    ({"x-message-ttl": "5"}, "'x-message-ttl' for queue 'q' in vhost '/': \"expected integer, got longstr\""),
    ({"x-max-priority": 300}, "'x-max-priority' for queue 'q' in vhost '/': {max_value_exceeded,300}"),
    ({"x-overflow": "x"}, "'x-overflow' for queue 'q' in vhost '/': invalid_overflow"),
    ({"x-dead-letter-routing-key": "k"},
     "'x-dead-letter-routing-key' for queue 'q' in vhost '/': routing_key_but_no_dlx_defined"),
    ({"x-single-active-consumer": 1}, "'x-single-active-consumer' for queue 'q' in vhost '/': "
                                      "{unacceptable_type,signedint}"),
])
def test_an_argument_that_cannot_be_is_406(client, arguments, reason):
    assert client.refusal(methods.QueueDeclare(queue="q", arguments=arguments)) == (406, f"invalid arg {reason}")
    assert client.refusal(methods.QueueDeclare(queue="q", passive=True))[0] == 404


@pytest.mark.parametrize(("method", "code", "text"), [
    (methods.QueueDeclare(queue="amq.q"), 403, "queue name 'amq.q' contains reserved prefix 'amq.*'"),
    (methods.ExchangeDeclare(exchange="amq.x"), 406, "unknown exchange type ''"),
    (methods.ExchangeDeclare(exchange="amq.x", type="topic"), 403,
     "exchange name 'amq.x' contains reserved prefix 'amq.*'"),
    (methods.ExchangeDeclare(exchange="", type="topic"), 403, "operation not permitted on the default exchange"),
    (methods.ExchangeDeclare(exchange="amq.topic", type="fanout"), 406,
     "inequivalent arg 'type' for exchange 'amq.topic' in vhost '/': received 'fanout' but current is 'topic'"),
    (methods.ExchangeDeclare(exchange="amq.topic", type="topic"), 406,
     "inequivalent arg 'durable' for exchange 'amq.topic' in vhost '/': received 'false' but current is 'true'"),
    (methods.ExchangeDeclare(exchange="x", passive=True), 404, "no exchange 'x' in vhost '/'"),
    (methods.ExchangeDelete(exchange="amq.topic"), 403,
     "deletion of system exchange 'amq.topic' in vhost '/' not allowed"),
    (methods.QueueBind(queue="q", exchange="x"), 404, "no exchange 'x' in vhost '/'"),
    (methods.QueueBind(queue="p", exchange="amq.topic"), 404, "no queue 'p' in vhost '/'"),
    (methods.QueueBind(queue="q"), 403, "operation not permitted on the default exchange"),
    (methods.QueuePurge(queue="p"), 404, "no queue 'p' in vhost '/'"),
    (methods.ExchangeBind(destination="x", source="amq.topic"), 404, "no exchange 'x' in vhost '/'"),
])
def test_refusals_have_rabbitmqs_codes_and_texts(client, method, code, text):
    client.ask(methods.QueueDeclare(queue="q"))
    assert client.refusal(method) == (code, text)


@pytest.mark.parametrize("method", [
    methods.QueueDelete(queue="p"), methods.ExchangeDelete(exchange="x"),
    methods.QueueUnbind(queue="p", exchange="amq.topic"), methods.QueueUnbind(queue="q", exchange="x"),
    methods.ExchangeUnbind(destination="x", source="amq.topic"),
], ids=repr)
def test_undoing_what_is_not_there_is_no_fault(client, method):
    client.ask(methods.QueueDeclare(queue="q"))
    assert client.ask(method).NAME.endswith("-ok")


def test_if_unused_and_if_empty_are_obeyed(client):
    client.ask(methods.QueueDeclare(queue="q"))
    client.ask(methods.BasicConsume(queue="q", consumer_tag="t"))
    assert client.refusal(methods.QueueDelete(queue="q", if_unused=True)) == (406, "queue 'q' in vhost '/' in use")
    client.ask(methods.ExchangeDeclare(exchange="x", type="fanout"))
    client.ask(methods.QueueBind(queue="q", exchange="x"))
    assert client.refusal(methods.ExchangeDelete(exchange="x", if_unused=True)) == (
        406, "exchange 'x' in vhost '/' in use")
    client.ask(methods.QueueDelete(queue="q", if_unused=True))
    assert client.ask(methods.ExchangeDelete(exchange="x", if_unused=True)) == methods.ExchangeDeleteOk()


@pytest.mark.parametrize(("denied", "method", "text"), [
    (("configure", "q"), methods.QueueDeclare(queue="q"), "configure access to queue 'q'"),
    (("configure", "q"), methods.QueueDelete(queue="q"), "configure access to queue 'q'"),
    (("read", "q"), methods.BasicConsume(queue="q"), "read access to queue 'q'"),
    (("read", "q"), methods.BasicGet(queue="q"), "read access to queue 'q'"),
    (("read", "q"), methods.QueuePurge(queue="q"), "read access to queue 'q'"),
    (("write", "q"), methods.QueueBind(queue="q", exchange="amq.topic"), "write access to queue 'q'"),
    (("read", "amq.topic"), methods.QueueBind(queue="q", exchange="amq.topic"), "read access to exchange 'amq.topic'"),
    (("configure", "x"), methods.ExchangeDeclare(exchange="x", type="topic"), "configure access to exchange 'x'"),
    (("write", "d"), methods.QueueDeclare(queue="n", arguments={"x-dead-letter-exchange": "d"}),
     "write access to exchange 'd'"),
])
def test_what_is_not_permitted_is_403(client, node, denied, method, text):
    client.ask(methods.QueueDeclare(queue="q"))
    node.refused.add(denied)
    assert client.refusal(method) == (403, f"{text} in vhost '/' refused for user 'guest'")


def test_an_exclusive_queue_is_locked_to_others(client, node):
    from tests.session.harness import Client

    client.ask(methods.QueueDeclare(queue="q", exclusive=True))
    assert client.ask(methods.QueueDeclare(queue="q", exclusive=True)).queue == "q"
    assert client.refusal(methods.QueueDeclare(queue="q")) == (405, LOCKED[:238])
    other = Client(node).open()
    for method in (methods.QueueDeclare(queue="q", passive=True), methods.BasicConsume(queue="q"),
                   methods.QueueDelete(queue="q"), methods.BasicGet(queue="q")):
        assert other.refusal(method)[0] == 405


def test_a_full_disk_refuses_a_definition_and_nothing_is_made(client, node):
    node.vhost.log.full = True
    assert client.refusal(methods.QueueDeclare(queue="q", durable=True)) == (
        406, "the definition cannot be stored: No space left on device")
    assert "q" not in node.vhost.queues
    assert client.ask(methods.QueueDeclare(queue="q")).queue == "q"


# --- names of direct reply-to

REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.mark.parametrize("passive", [True, False])
@pytest.mark.parametrize("name", [REPLY_TO, "amq.direct.reply-to"])
def test_the_name_of_direct_reply_to_may_be_declared(client, name, passive):
    assert client.ask(methods.QueueDeclare(queue=name, passive=passive)) == methods.QueueDeclareOk(
        queue=name, message_count=0, consumer_count=1)
    assert client.ask(methods.QueueDeclare(queue=name, passive=passive, no_wait=True)) is None


@pytest.mark.parametrize("passive", [True, False])
def test_a_requesters_name_is_there_while_it_waits(client, node, passive):
    declare = methods.QueueDeclare(queue=REPLY_TO + ".abc", passive=passive)
    assert client.refusal(declare) == (404, f"no queue '{REPLY_TO}.abc' in vhost '/'")
    client.ask(methods.BasicConsume(queue=REPLY_TO, no_ack=True))
    (requester,) = node.vhost.replies._by_name
    declare.queue = requester
    assert client.ask(declare) == methods.QueueDeclareOk(queue=requester, message_count=0, consumer_count=1)
    client.ask(methods.ChannelClose())
    client.send((1, methods.ChannelOpen()))
    assert client.refusal(declare)[0] == 404


@pytest.mark.parametrize("cls", [methods.QueueBind, methods.QueueUnbind])
@pytest.mark.parametrize("name", [REPLY_TO, REPLY_TO + ".abc", "amq.direct.reply-to"])
def test_names_of_direct_reply_to_are_bound_to_nothing(client, cls, name):
    assert client.refusal(cls(queue=name, exchange="amq.direct", routing_key="k")) == (
        403, "cannot bind or unbind to a volatile (direct reply-to) queue")

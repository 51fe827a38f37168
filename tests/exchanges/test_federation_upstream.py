"""The exchange that a broker downstream declares: a fanout that lets no message go too far, or back."""

import pytest
from tests.exchanges.destinations import queues

from brokerd.errors import PreconditionFailed
from brokerd.exchanges import exchange_type
from brokerd.exchanges.arguments import check_arguments
from brokerd.wire.properties import Properties

TYPE = "x-federation-upstream"


def hop(name, vhost="/"):
    return {"uri": "amqp://h", "exchange": "x", "cluster-name": name, "vhost": vhost}


@pytest.mark.parametrize(("hops", "passes"), [
    (None, True), ([], True), ("text", True), ([hop("a")], True), ([hop("a"), hop("b")], False),
    ([hop("down")], False), ([hop("down", "other")], True), ([5], True),
])
def test_a_message_goes_on_until_it_has_its_hops_or_was_there(hops, passes):
    arguments = {"x-max-hops": 2, "x-downstream-name": "down", "x-downstream-vhost": "/"}
    exchange, (queue,) = exchange_type(TYPE)("x", arguments=arguments), queues(1)
    exchange.bind(queue, "")
    headers = None if hops is None else {"x-received-from": hops}
    assert list(exchange.destinations("any", lambda: Properties(headers=headers))) == ([queue] if passes else [])
    assert not exchange.key_decides


def test_a_downstream_without_a_name_stops_no_message():
    exchange, (queue,) = exchange_type(TYPE)("x", arguments={"x-max-hops": 2}), queues(1)
    exchange.bind(queue, "")
    headers = {"x-received-from": [{"uri": "amqp://h"}]}
    assert list(exchange.destinations("", lambda: Properties(headers=headers))) == [queue]


@pytest.mark.parametrize(("arguments", "fault"), [
    ({}, "Argument x-max-hops missing"), ({"x-max-hops": "2"}, "Argument x-max-hops must be of type long"),
    ({"x-max-hops": True}, "Argument x-max-hops must be of type long"),
])
def test_the_number_of_hops_must_be_given_in_rabbitmqs_words(arguments, fault):
    with pytest.raises(PreconditionFailed, match=fault):
        check_arguments(TYPE, arguments, "exchange 'x' in vhost '/'")
    check_arguments(TYPE, {"x-max-hops": 1}, "exchange 'x' in vhost '/'")
    check_arguments("fanout", arguments, "exchange 'x' in vhost '/'")

"""Who may consume from a queue, and what the arguments ask.  Texts are tried through a session: session/test_basic."""

import pytest
from tests.session.harness import Node

from brokerd.errors import AccessRefused, PreconditionFailed, ResourceLocked
from brokerd.vhost.consuming import NO_WISHES, PRIORITY_MAX, PRIORITY_MIN, Wishes, check_consume, check_get


@pytest.fixture
def make(tmp_path):
    vhost = Node(tmp_path).vhost
    return lambda **arguments: vhost.add_queue("q", durable=False, auto_delete=False, arguments={
        name.replace("_", "-"): value for name, value in arguments.items()})


@pytest.mark.parametrize(("arguments", "wishes"), [
    ({}, NO_WISHES), ({"unknown": 5}, Wishes()), ({"x-priority": 7}, Wishes(priority=7)),
    ({"x-priority": 1 << 40}, Wishes(priority=PRIORITY_MAX)),
    ({"x-priority": -(1 << 40)}, Wishes(priority=PRIORITY_MIN)),
    ({"x-consumer-timeout": 0}, Wishes(0, 0, timeout_closes=True)),
    ({"x-consumer-timeout": 60000, "x-priority": -1}, Wishes(-1, 60000, timeout_closes=True)),
    ({"x-message-seq": True}, Wishes(numbers=True)),
    ({"x-message-seq": True, "x-consumer-timeout": 0}, Wishes(0, 0, timeout_closes=True, numbers=True)),
])
def test_arguments_ask_for_priority_timeout_and_numbers(make, arguments, wishes):
    assert check_consume(make(), arguments, exclusive=False, no_ack=False, channel=None) == wishes


@pytest.mark.parametrize("arguments", [
    {"x-priority": "7"}, {"x-consumer-timeout": -1}, {"x-cancel-on-ha-failover": 1}, {"x-message-seq": 1},
])
def test_an_argument_of_the_wrong_kind_is_told_by_its_name(make, arguments):
    with pytest.raises(PreconditionFailed, match=f"^invalid arg '{next(iter(arguments))}' for queue 'q' in vhost '/'"):
        check_consume(make(), arguments, exclusive=False, no_ack=False, channel=None)


def test_a_queue_with_one_active_consumer_is_nobodys_alone(make):
    queue = make(x_single_active_consumer=True)
    assert check_consume(queue, {}, exclusive=False, no_ack=False, channel=None) == NO_WISHES
    with pytest.raises(AccessRefused, match="in exclusive use"):
        check_consume(queue, {}, exclusive=True, no_ack=False, channel=None)


@pytest.mark.parametrize(("arguments", "refused"), [
    ({}, False), ({"x_single_active_consumer": True}, False),
    ({"x_queue_type": "quorum", "x_single_active_consumer": True}, True),
])
def test_single_messages_may_be_taken_but_of_a_quorum_queue_with_one_active_consumer(tmp_path, arguments, refused):
    vhost = Node(tmp_path).vhost
    queue = vhost.add_queue("q", durable=True, auto_delete=False, arguments={
        name.replace("_", "-"): value for name, value in arguments.items()})
    if refused:
        with pytest.raises(ResourceLocked):
            check_get(queue)
    else:
        check_get(queue)

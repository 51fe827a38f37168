"""What an operator does about messages that failed too often."""

import pytest
from tests.operations.stand_in import Place, work

from brokerd.operations import OperationError, table
from brokerd.operations.ordering import ordering
from brokerd.operations.queue import Released
from brokerd.operations.rows import LOCAL
from brokerd.policies import Policy


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "data")


def stopped(place, **more):
    queue = place.queue(delivery_limit=1, delivery_limit_action="block", **more)
    place.publish(3)
    place.consume(prefetch=1)
    place.settle(1, requeue=True)
    place.settle(2, requeue=True)
    assert (queue.ready, queue.unacked, queue.aside) == (2, 0, 1)
    return queue


def perform(place, verb, **request):
    place.node.submit_slow = place.thread.submit
    row, job = table.perform(place.node, LOCAL, f"queue {verb}", {"queue": "q", **request})
    assert row.job
    return work(job, between=lambda _: place.thread.run())


def test_a_stopped_queue_says_behind_which_message_and_what_to_do(place):
    stopped(place)
    assert ordering(place.node, "/", "q")["notes"][0] == (
        "the queue has stopped behind message 1, which has failed 2 times: `queue release` tries it again, "
        "`queue skip` gives it up")


def test_a_released_message_is_tried_again_as_often_as_before(place):
    queue = stopped(place)
    answer = perform(place, "release")
    assert answer == {"vhost": "/", "queue": "q", "seq": 1, "stopped": 0}
    assert table.adapter(Released).validate_python(answer, strict=True) == answer
    place.node.core.turn()
    assert (queue.ready, queue.unacked, queue.aside) == (2, 1, 0)
    place.settle(3, requeue=True)
    place.settle(4, requeue=True)
    assert queue.gate.stops(9) == [(1, 4)]


def test_a_skipped_message_is_dead_of_its_limit_and_the_next_goes_out(place):
    queue = stopped(place, dead_letter_exchange="", dead_letter_routing_key="dead")
    assert perform(place, "skip", seq=1)["stopped"] == 0
    place.node.core.turn()
    place.node.core.turn()
    assert (queue.limited, queue.unacked, queue.aside) == (1, 1, 0)
    assert ordering(place.node, "/", "q")["counters"]["since_start"]["dead_lettered"]["delivery_limit"] == 1


def test_a_message_that_waits_can_be_tried_at_once(place):
    queue = place.queue(delayed_retry_type="all", delayed_retry_min=100_000)
    place.publish(1)
    place.consume()
    place.settle(1, requeue=True)
    assert ordering(place.node, "/", "q")["notes"] == ["1 returned message waits for the next try"]
    assert ordering(place.node, "/", "q")["reasons"][-1].startswith("delayed retry: later messages overtake")
    assert perform(place, "release", seq=1)["seq"] == 1
    place.node.core.turn()
    assert queue.unacked == 1


@pytest.mark.parametrize(("verb", "request_", "text"), [
    ("release", {}, "queue 'q' in vhost '/' has not stopped behind a message"),
    ("skip", {}, "queue 'q' in vhost '/' has not stopped behind a message"),
    ("release", {"seq": 2}, "message 2 of queue 'q' in vhost '/' neither stops the queue nor waits for its next try"),
    ("skip", {"seq": 2}, "queue 'q' in vhost '/' has not stopped behind message 2"),
])
def test_there_must_be_such_a_message(place, verb, request_, text):
    place.queue(delivery_limit=1, delivery_limit_action="block")
    with pytest.raises(OperationError) as caught:
        perform(place, verb, **request_)
    assert (caught.value.code, str(caught.value)) == (409, text)


def test_a_queue_without_such_a_rule_has_nothing_to_release(place):
    place.queue()
    with pytest.raises(OperationError) as caught:
        perform(place, "release", seq=1)
    assert caught.value.code == 409


def test_a_policy_may_come_and_go_while_messages_wait(place):
    queue = place.queue()
    place.vhost.policies.put(Policy("retry", "^q$", {"delayed-retry-type": "all", "delayed-retry-min": 100_000}))
    queue.apply_rules(place.vhost.policies)
    place.publish(2)
    place.consume()
    place.settle(1, 2, requeue=True)
    assert queue.gate.waiting == 2
    place.vhost.policies.put(Policy("retry", "^q$", {"delayed-retry-type": "failed", "delayed-retry-min": 100_000}))
    queue.apply_rules(place.vhost.policies)
    assert queue.gate.waiting == 2
    place.settle(3, 2)
    place.vhost.policies.put(Policy("retry", "^q$", {"max-length": 5}))
    queue.apply_rules(place.vhost.policies)
    place.node.core.turn()
    assert (queue.gate, queue.unacked) == (None, 2)

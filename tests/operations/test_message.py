"""The life of a message of a running broker: what is there to be asked for; the reading is brokerd.audit's."""

import pytest
from tests.operations.stand_in import Place, work

from brokerd.operations import OperationError, table
from brokerd.operations.jobs import IN_THREAD
from brokerd.operations.message import Trace, Tracing, trace_in
from brokerd.operations.rows import LOCAL


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "data")


def test_a_message_is_followed_while_its_queue_goes_on(place):
    place.queue(order_journal=True)
    place.publish(3)
    place.consume()
    place.settle(2)
    places = []
    trace = work(Tracing(place.node, "/", "q", 2), lambda where: (places.append(where), place.publish(5)))
    assert places == [IN_THREAD]
    assert (trace["vhost"], trace["queue"], trace["seq"], trace["known"]) == ("/", "q", 2, "all")
    assert [event["what"] for event in trace["events"]] == ["enqueued", "delivered", "acked"]


@pytest.mark.parametrize("arguments", [{"order_journal": True}, {}])
def test_the_answer_is_as_its_model_says(place, arguments):
    place.queue(**arguments)
    place.publish(3)
    place.consume()
    place.settle(1, requeue=True)
    place.settle(2)
    for seq in (1, 2, 3):
        _, job = table.perform(place.node, LOCAL, "message trace", {"queue": "q", "seq": seq})
        answer = work(job)
        assert table.adapter(Trace).validate_python(answer, strict=True) == answer


def test_the_answer_of_which_nothing_is_known_is_as_its_model_says(place):
    place.queue()
    place.publish(200)
    place.consume()
    place.settle(1, 200)
    answer = work(Tracing(place.node, "/", "q", 1))
    assert table.adapter(Trace).validate_python(answer, strict=True) == answer


def test_of_a_settled_message_that_was_not_kept_it_is_said_why_nothing_is_known(place):
    place.queue()
    place.publish(200)
    place.consume()
    place.settle(1, 200)
    trace = work(Tracing(place.node, "/", "q", 1))
    assert (trace["known"], trace["state"]) == ("nothing", "unknown")
    assert trace["why"]


@pytest.mark.parametrize(("name", "seq", "told", "code"), [
    ("none", 1, "no queue 'none' in vhost '/'", 404),
    ("new", 1, "no message 1 in queue 'new' in vhost '/': it has had none yet", 404),
    ("q", 4, "no message 4 in queue 'q' in vhost '/': they are numbered 1 to 3 so far", 404),
    ("q", 0, "no message 0 in queue 'q' in vhost '/': they are numbered 1 to 3 so far", 404),
    ("lost", 1, "queue 'lost' in vhost '/' is not durable: its messages leave no trace", 409),
])
def test_what_cannot_be_there_is_refused_at_once(place, name, seq, told, code):
    place.queue("new")
    place.queue("lost", durable=False)
    place.queue()
    place.publish(3)
    with pytest.raises(OperationError) as no:
        Tracing(place.node, "/", name, seq)
    assert (str(no.value), no.value.code) == (told, code)


def test_a_queue_that_is_deleted_meanwhile_is_told(place):
    queue = place.queue()
    place.publish()
    steps = Tracing(place.node, "/", "q", 1).steps()
    next(steps)
    directory = queue.directory
    place.vhost.delete_queue(queue)
    with pytest.raises(OperationError, match="^the queue was deleted meanwhile$") as no:
        next(steps)
    assert no.value.code == 404
    with pytest.raises(OperationError):
        trace_in(directory, 1)

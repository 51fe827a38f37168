"""Messages of a queue are copied in their order; what stops a copy says where the next one goes on."""

import pytest
from tests.operations.stand_in import Place

from brokerd.errors import AMQPError
from brokerd.operations import OperationError, queue_copy, table
from brokerd.operations.jobs import Wait
from brokerd.operations.queue import Copied
from brokerd.operations.rows import LOCAL


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "data")
    place.queue("q")
    place.publish(100)
    place.queue("log", queue_type="stream")
    return place


def copy(place, between=None, to="log", **fields):
    """The answer, and what the job said on its way."""
    _, job = table.perform(place.node, LOCAL, "queue copy", {"queue": "q", "to": to, **fields})
    said, steps = [], job.steps()
    try:
        while True:
            step = next(steps)
            if isinstance(step, Wait):
                place.node.core.turn()
            elif isinstance(step, dict):
                said.append(step)
            if between is not None:
                between()
    except StopIteration as end:
        answer = end.value
    assert table.adapter(Copied).validate_python(answer, strict=True) == answer
    return answer, said


def numbers(place, name="log"):
    """The bodies are alike, so messages are told apart by their keys."""
    return [row[4].decode() for row in place.vhost.queues[name].browse(1, 1000)]


def test_all_that_is_ready_is_copied_in_its_order_and_stays(place):
    queue = place.vhost.queues["q"]
    queue.purge()
    for number in range(50):
        place.node.core.put((queue,), b"", b"key-%d" % number, b"\0\0", b"body")
    answer, _ = copy(place)
    assert answer == {"vhost": "/", "queue": "q", "to": "log", "copied": 50, "first_seq": 101, "last_seq": 150,
                      "next_seq": 151, "more": False, "dry_run": False}
    assert numbers(place) == [f"key-{number}" for number in range(50)] == numbers(place, "q")


def test_a_stream_is_copied_into_a_queue(place):
    copy(place)
    _, job = table.perform(place.node, LOCAL, "queue copy", {"queue": "log", "to": "q", "from_seq": 91})
    for _ in job.steps():
        place.node.core.turn()
    assert place.vhost.queues["q"].ready == 110


def test_a_copy_yields_and_tells_how_far_it_is(place, monkeypatch):
    monkeypatch.setattr(queue_copy, "SYNC_OCTETS", 10_000)
    steps = []
    answer, said = copy(place, lambda: steps.append(1))
    assert answer["copied"] == 100
    assert [each["copied"] for each in said] == sorted(each["copied"] for each in said)
    assert len(said) >= 2
    assert all(each["next_seq"] == each["copied"] + 1 for each in said)


def test_messages_that_come_while_it_runs_are_left_to_the_next_copy(place, monkeypatch):
    monkeypatch.setattr(queue_copy, "SYNC_OCTETS", 10_000)
    answer, _ = copy(place, lambda: place.publish(1))
    assert (answer["copied"], answer["next_seq"]) == (100, 101)
    answer, _ = copy(place, from_seq=answer["next_seq"])
    assert answer["copied"] > 0
    assert place.vhost.queues["log"].ready == place.vhost.queues["q"].ready


def test_a_count_and_a_dry_run_bound_what_is_done(place):
    answer, _ = copy(place, count=30, from_seq=11, dry_run=True)
    assert (answer["copied"], answer["first_seq"], answer["next_seq"], answer["more"]) == (30, 11, 41, True)
    assert place.vhost.queues["log"].ready == 0
    assert copy(place, count=100)[0]["more"] is False


def test_a_target_that_is_deleted_or_full_stops_the_copy_with_the_next_number(place, monkeypatch):
    place.queue("small", max_length=7, overflow="reject-publish")
    with pytest.raises(OperationError, match="refuses message 8; 7 messages were copied, and message 8 is the next"):
        copy(place, to="small")
    monkeypatch.setattr(queue_copy, "SYNC_OCTETS", 10_000)
    with pytest.raises(OperationError, match="'log' in vhost '/' was deleted meanwhile; .* messages were copied"):
        copy(place, lambda: place.vhost.queues.get("log") and place.vhost.delete_queue(place.vhost.queues["log"]))


@pytest.mark.parametrize(("fields", "text"), [
    ({"to": "q"}, "its own messages cannot be put into it again"), ({"to": "none"}, "no queue 'none' in vhost '/'"),
    ({"queue": "none"}, "no queue 'none' in vhost '/'"), ({"queue": "urgent"}, "has priorities"),
])
def test_what_cannot_be_copied_is_refused(place, fields, text):
    place.queue("urgent", max_priority=5)
    with pytest.raises((OperationError, AMQPError), match=text):
        copy(place, **fields)

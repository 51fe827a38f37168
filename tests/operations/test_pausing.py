"""Pause and resume of a queue."""

import os

import pytest
from tests.operations.stand_in import Place, work

from brokerd.operations import OperationError, table
from brokerd.operations.ordering import ordering
from brokerd.operations.rows import DONE, LOCAL
from brokerd.pieces import Turns


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "data")
    node, place.told = place.node, []
    node.submit_slow, node.changing = place.thread.submit, Turns()
    node.tell = lambda name, fields, user="": place.told.append((name, fields["name"]))
    return place


def job_of(place, verb, queue="q"):
    row, job = table.perform(place.node, LOCAL, f"queue {verb}", {"queue": queue})
    assert row.job
    assert row.changes
    return job


def perform(place, verb, queue="q"):
    return work(job_of(place, verb, queue), between=lambda _: place.thread.run())


def state(place, queue="q"):
    return table.perform(place.node, LOCAL, "queue show", {"queue": queue})[1]["state"]


def test_a_paused_queue_hands_out_nothing_and_takes_messages_until_it_is_resumed(place):
    queue = place.queue()
    place.publish(2)
    place.consume(prefetch=1)
    assert (queue.ready, queue.unacked, state(place)) == (1, 1, "running")
    assert perform(place, "pause") == DONE
    assert state(place) == "paused"
    place.publish(3)
    place.settle(1)
    assert (queue.ready, queue.unacked) == (4, 0)
    assert perform(place, "pause") == DONE
    assert perform(place, "resume") == DONE
    assert (queue.ready, queue.unacked, state(place)) == (3, 1, "running")
    assert perform(place, "resume") == DONE
    assert place.told == [("queue.paused", "q"), ("queue.resumed", "q")]


def test_what_comes_back_while_a_queue_is_paused_keeps_its_place(place):
    queue = place.queue()
    place.publish(2)
    place.consume(prefetch=1)
    perform(place, "pause")
    place.settle(1, requeue=True)
    assert (queue.ready, queue.unacked) == (2, 0)
    perform(place, "resume")
    assert place.client.connection.channels[1].unacked == 1
    assert ordering(place.node, "/", "q")["counters"]["since_start"]["overtakings"] == 0


def test_get_finds_nothing_in_a_paused_queue(place):
    queue = place.queue()
    place.publish(1)
    perform(place, "pause")
    assert not place.client.connection.channels[1].get(queue, True)
    perform(place, "resume")
    assert place.client.connection.channels[1].get(queue, True)


def test_the_order_of_a_paused_queue_says_why_nothing_goes_out(place):
    place.queue()
    perform(place, "pause")
    assert ordering(place.node, "/", "q")["notes"] == [
        "an operator has paused the queue: no message goes out until `queue resume`"]
    perform(place, "resume")
    assert ordering(place.node, "/", "q")["notes"] == []


def test_a_queue_that_does_not_survive_a_restart_is_paused_without_a_file(place):
    queue = place.queue(durable=False)
    perform(place, "pause")
    assert not os.path.exists(queue.directory)
    assert state(place) == "paused"
    perform(place, "resume")
    assert state(place) == "running"


def test_a_folder_that_only_a_pause_has_made_goes_with_its_queue(place):
    queue = place.queue()
    perform(place, "pause")
    assert os.path.exists(f"{queue.directory}/paused")
    perform(place, "resume")
    assert not os.path.exists(f"{queue.directory}/paused")
    place.vhost.delete_queue(queue)
    assert not os.path.exists(queue.directory)


def test_a_pause_that_cannot_be_written_is_refused_and_messages_go_out(place):
    queue = place.queue()
    queue.make_directory()
    os.mkdir(f"{queue.directory}/paused.tmp")
    with pytest.raises(OSError, match="paused"):
        perform(place, "pause")
    assert state(place) == "running"
    place.publish(1)
    place.consume()
    assert queue.unacked == 1


def test_a_queue_that_is_deleted_while_it_is_paused_leaves_no_file(place):
    queue = place.queue()
    job = job_of(place, "pause")

    def delete(_):
        if not queue.deleted and place.thread.jobs:
            place.vhost.delete_queue(queue)
            place.queue()
            place.publish(1)
        place.thread.run()

    with pytest.raises(OperationError, match="no queue 'q'"):
        work(job, between=delete)
    assert queue.deleted
    assert not os.path.exists(f"{queue.directory}/paused")
    assert state(place) == "running"


def test_a_queue_that_is_not_there_is_not_paused(place):
    with pytest.raises(OperationError, match="no queue 'x' in vhost '/'"):
        perform(place, "pause", "x")


def test_a_pause_and_its_end_leave_alone_what_another_rule_of_groups_holds(place):
    queue = place.queue(message_group="exclusive", message_group_header="key")
    queue.regrouping = queue.paused = True
    perform(place, "pause")
    perform(place, "resume")
    assert queue.paused
    perform(place, "pause")
    assert list(queue._regroup(queue.gate)) == []
    assert (queue.regrouping, queue.paused) == (False, True)
    perform(place, "resume")
    assert not queue.paused

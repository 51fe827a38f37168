"""Operations on queues: what they answer is as their models say; the work itself is tested beside its modules."""

import pytest
from tests.operations.stand_in import Place, work

from brokerd.operations import table
from brokerd.operations.queue import Dumped, Ordering
from brokerd.operations.rows import LOCAL


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "data")


def test_the_order_of_a_queue_is_told_as_its_model_says(place):
    place.queue(order_journal=True)
    place.publish(5)
    place.consume(prefetch=3)
    place.settle(1, requeue=True)
    row, answer = table.perform(place.node, LOCAL, "queue ordering", {"queue": "q"})
    assert (row.job, row.changes) == (False, False)
    assert (answer["queue"], len(answer["consumers"]), answer["counters"]["since_start"]["returned"]["nack"]) == (
        "q", 1, 1)
    assert table.adapter(Ordering).validate_python(answer, strict=True) == answer


def test_a_dump_is_a_job_and_answers_as_its_model_says(place, tmp_path):
    place.queue()
    place.queue("lost", durable=False)
    place.publish(5)
    row, job = table.perform(place.node, LOCAL, "queue dump", {"out": str(tmp_path / "out")})
    assert (row.job, row.changes) == (True, True)
    answer = work(job)
    assert (answer["queues"], answer["skipped"]) == (1, [{"vhost": "/", "queue": "lost", "why": "it is not durable"}])
    assert table.adapter(Dumped).validate_python(answer, strict=True) == answer
    assert (tmp_path / "out" / "manifest.json").exists()

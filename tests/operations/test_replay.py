"""The job that replays settled messages."""

import pytest
from tests.operations.stand_in import Place

from brokerd.operations import OperationError
from brokerd.operations.queue import ReplayRequest
from brokerd.operations.replay import Replay, read_numbers, read_time


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "data")


def run(place, **request):
    """The answer, and how often others had their turn."""
    steps, turns = Replay(place.node, ReplayRequest(queue="q", **request)).steps(), 0
    while True:
        try:
            next(steps)
            turns += 1
        except StopIteration as end:
            return end.value, turns


@pytest.fixture
def settled(place):
    """A queue of two levels with 1,000 settled messages."""
    queue = place.queue(retention_bytes=1 << 30, max_priority=1)
    for priority in (0, 1, 0, 1):
        place.publish(250, priority=priority)
    while queue.ready:
        queue.core.turn()
        place.consume()
        place.settle(1, 1000)
    return queue


def test_all_that_is_on_disk_is_replayed_in_pieces(place, settled, monkeypatch):
    monkeypatch.setattr("brokerd.operations.replay.RECORDS_PER_PIECE", 100)
    answer, turns = run(place, dry_run=True)
    assert (answer["replayed"], settled.ready) == (1000, 0)
    assert turns >= 10
    answer, _ = run(place)
    assert answer == {"vhost": "/", "queue": "q", "replayed": 1000, "first_seq": 1, "last_seq": 1000, "more": False,
                      "dry_run": False}
    assert run(place)[0]["replayed"] == 0


def test_a_limit_leaves_some_out(place, settled):
    answer, _ = run(place, limit=300)
    assert (answer["replayed"], answer["more"]) == (300, True)
    assert run(place, seqs="5,8,10-12", from_seq=8)[0]["replayed"] == 0     # They are ready.
    assert run(place, seqs="600-603,999,5000")[0]["last_seq"] == 999


def test_numbers_and_times_are_read():
    assert list(read_numbers("5, 8,10-12,11", 100)) == [5, 8, 10, 11, 12]
    assert read_time("1500") == 1_500_000_000
    assert read_time("1970-01-01T00:00:02Z") == read_time("1970-01-01T01:00:02+01:00") == 2_000_000_000
    assert read_time("1970-01-01T00:00:02") == 2_000_000_000


@pytest.mark.parametrize(("fields", "text"), [
    ({"seqs": "5,x"}, "seqs must be numbers and ranges such as 5,8,10-20, and not '5,x'"),
    ({"seqs": "9-5"}, "seqs must be numbers and ranges such as 5,8,10-20, and not '9-5'"),
    ({"seqs": "1-100", "limit": 99}, "seqs must be at most 99 numbers, which is the limit"),
    ({"since": "soon"}, "since must be a time such as 2026-01-31T12:00:00Z, or a number of milliseconds since 1970, "
                        "and not 'soon'"),
])
def test_what_cannot_be_read_is_refused(place, fields, text):
    place.queue()
    with pytest.raises(OperationError) as refusal:
        run(place, **fields)
    assert (str(refusal.value), refusal.value.code) == (text, 400)


def test_a_queue_that_is_not_durable_or_not_there_is_refused(place):
    place.queue(durable=False)
    with pytest.raises(OperationError, match="is not durable: nothing of it is retained"):
        run(place)
    with pytest.raises(OperationError, match="no queue 'x'"):
        Replay(place.node, ReplayRequest(queue="x"))

"""A stream is read from an offset or a time on, in bounded pieces, and what is gone is told."""

import pytest
from tests.operations.stand_in import Place, work

from brokerd.operations import OperationError, stream_reading, table
from brokerd.operations.rows import LOCAL
from brokerd.operations.stream import Read
from brokerd.operations.stream_reading import find_offset, read_offset


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "data")
    place.queue(queue_type="stream")
    place.publish(10)
    return place


def read_answer(place, **fields):
    _, job = table.perform(place.node, LOCAL, "stream read", {"queue": "q", **fields})
    answer = work(job)
    assert table.adapter(Read).validate_python(answer, strict=True) == answer
    return [item["offset"] for item in answer["items"]], answer


def test_the_offset_of_a_time_is_the_first_message_stored_then_or_later(place):
    for _ in range(20):
        place.publish(10)
        place.node.core.turn()
    queue = place.vhost.queues["q"]
    rows = queue.browse(1, 1000)
    assert len(queue.segments()) > 2
    for when in {rows[0][1] - 1, rows[0][1], rows[57][1], rows[100][1] + 1, rows[-1][1], rows[-1][1] + 1}:
        steps, found = find_offset(queue, ("time", when)), None
        while found is None:
            try:
                next(steps)
            except StopIteration as end:
                found = end.value
        assert found == next((row[0] for row in rows if row[1] >= when), 211)


@pytest.mark.parametrize(("text", "start"), [
    ("first", ("first", 0)), ("last", ("last", 0)), ("next", ("next", 0)), ("0", ("first", 0)), ("7", ("offset", 7)),
    ("-7", ("back", 7)), ("2s", ("time", 8_000_000_000)), ("1h", ("time", 0)),
    ("1970-01-01T00:00:01Z", ("time", 1_000_000_000)),
])
def test_an_offset_has_many_forms(text, start):
    assert read_offset(text, 10_000_000_000) == start


@pytest.mark.parametrize("text", ["", "-", "soon", "1 h", "1w", "9" * 19, "٣", "--1"])
def test_another_text_is_no_offset(text):
    with pytest.raises(OperationError, match="offset must be first, last, next, a number"):
        read_offset(text, 0)


def test_a_reading_is_bounded_in_messages_looks_and_octets(place, monkeypatch):
    assert read_answer(place, count=3)[0] == [1, 2, 3]
    found, answer = read_answer(place, examine=4, contains="none")
    assert (found, answer["examined"], answer["next_offset"]) == ([], 4, 5)
    monkeypatch.setattr(stream_reading, "ANSWER_OCTETS_MAX", 2500)
    assert read_answer(place)[0] == [1, 2, 3]
    assert read_answer(place, truncate=1)[0] == list(range(1, 11))


def test_messages_that_were_removed_are_missed_by_who_asks_for_them_only(place):
    place.vhost.queues["q"].stream.purge()
    assert read_answer(place, offset="4")[1]["missed"] == 7
    for offset in ("first", "next", "-5", "last", "1h", "11", "12"):
        found, answer = read_answer(place, offset=offset)
        assert (found, answer["missed"], answer["next_offset"]) == ([], 0, 12 if offset == "12" else 11)
    place.publish(1)
    found, answer = read_answer(place, offset="4")
    assert (found, answer["missed"], answer["first_offset"]) == ([11], 7, 11)

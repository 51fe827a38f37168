"""A stream is read from an offset or a time on, in bounded pieces, and what is gone is told."""

import pytest
from tests.operations.stand_in import Place, work

from brokerd.operations import OperationError, stream_reading, table
from brokerd.operations.rows import LOCAL
from brokerd.operations.stream import Read
from brokerd.operations.stream_reading import find_offset, read_offset
from brokerd.vhost.deletions import finish
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame
from brokerd.wire.properties import Properties, encode_header


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
    finish(place.vhost.queues["q"].purge_in_pieces())
    assert read_answer(place, offset="4")[1]["missed"] == 7
    for offset in ("first", "next", "-5", "last", "1h", "11", "12"):
        found, answer = read_answer(place, offset=offset)
        assert (found, answer["missed"], answer["next_offset"]) == ([], 0, 12 if offset == "12" else 11)
    place.publish(1)
    found, answer = read_answer(place, offset="4")
    assert (found, answer["missed"], answer["first_offset"]) == ([11], 7, 11)


def publish(place, headers, body=b"m", key="q"):
    header = encode_header(len(body), Properties(headers=headers, delivery_mode=2))
    octets = methods.BasicPublish(routing_key=key).frame(1) + header_frame(1, header)
    place.client.raw(octets + body_frames(1, body, 4096))


@pytest.fixture
def valued(place):
    """Messages 11 to 16 with headers, behind 10 without."""
    for headers in ({"x-stream-filter-value": "eu", "n": 1}, {"x-stream-filter-value": "us", "n": 2},
                    {"n": 3, "paid": True}, {"x-geo-lat": 48.0, "x-geo-lon": 11.5},
                    {"x-stream-filter-value": "eu", "paid": True}, {"n": 2**40}):
        publish(place, headers)
    return place


@pytest.mark.parametrize(("fields", "offsets"), [
    ({"filter": ["eu"]}, [11, 15]), ({"filter": ["eu", "us"]}, [11, 12, 15]),
    ({"filter": ["eu"], "match_unfiltered": True, "since": 1}, [*range(1, 12), 13, 14, 15, 16]),
    ({"filter_table": {"paid": True}}, [13, 15]), ({"filter_table": {"n": None}}, [11, 12, 13, 16]),
    ({"filter": ["eu"], "filter_table": {"paid": True}}, [15]),
    ({"filter": ["us"], "filter_table": {"paid": True}, "filter_match": "any"}, [12, 13, 15]),
    ({"filter_table": {"geo-within-radius": {"lat": 48.1, "lon": 11.6, "radius_km": 50}}}, [14]),
    ({"filter_sql": "n >= 2"}, [12, 13, 16]), ({"filter_sql": "n >= 2", "filter": ["us"]}, [12]),
    ({"filter_sql": "offset IN (3, 12) AND size > 0 AND routing_key = 'q' AND exchange = '' AND stored > 0"}, [3, 12]),
    ({"filter_sql": "delivery_mode = 2 AND n > 3", "contains": "m"}, [16]),
])
def test_the_filters_of_readers_hold_for_who_reads_without_amqp(valued, fields, offsets):
    assert read_answer(valued, **fields)[0] == offsets


@pytest.mark.parametrize(("fields", "text"), [
    ({"filter_sql": "n >"}, "filter_sql: "), ({"filter": ["v" * 256]}, "filter: a value of 256 octets"),
    ({"filter_table": {}}, "filter: a table without a condition"),
    ({"filter_table": {"a": [1]}}, "filter: 'a': a table or"), ({"filter_table": {"a": 2**70}}, "filter_table"),
    ({"filter_table": {"geo-bbox": {"min_lat": 1}}}, "'geo-bbox': max_lat must be"),
    ({"filter_table": {"a" * 300: 1}}, "a header's name of 300 octets"),
    ({"filter_table": {"a": "v" * 400}}, "'a': a value of"),
    ({"filter": [str(n) for n in range(65)]}, "65 values"),
])
def test_a_filter_that_is_none_is_refused_in_words(place, fields, text):
    with pytest.raises(OperationError) as refused:
        read_answer(place, **fields)
    assert refused.value.code == 400
    assert text in str(refused.value)

"""What a stream keeps, and where its readers begin, from arguments and policies."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import PreconditionFailed
from brokerd.queues import stream
from brokerd.queues.rules import PLAIN, plane_rules, rules_of
from brokerd.queues.stream import (
    INT64_MAX,
    Retention,
    check_reader,
    reader_name,
    retain_in_pieces,
    retention_of,
    start_of,
)
from brokerd.wire.values import Timestamp

STREAM = {"x-queue-type": "stream"}
HOUR = 60 * 60 * 1000


@pytest.mark.parametrize(("arguments", "definition", "retention"), [
    ({}, {}, None), ({"x-max-length": 5}, {}, Retention(5)), ({"x-max-length-bytes": 5}, {}, Retention(None, 5)),
    ({"x-max-age": "2h"}, {}, Retention(None, None, 2 * HOUR)),
    ({"x-max-age": "2h", "x-max-length": 7}, {"max-age": "1h", "max-length": 9}, Retention(7, None, HOUR)),
    ({"x-max-age": "90m"}, {"max-age": "2h"}, Retention(None, None, HOUR * 3 // 2)),
    ({}, {"max-age": "1D", "max-length-bytes": 3}, Retention(None, 3, 24 * HOUR)),
    ({"x-stream-max-segment-size-bytes": 9}, {}, Retention(segment_octets=9)),
    ({"x-stream-max-segment-size-bytes": 9}, {"stream-max-segment-size-bytes": 7}, Retention(segment_octets=7)),
    ({}, {"message-ttl": 5, "expires": 5, "order-journal": True}, None),
])
def test_arguments_and_policies_make_the_retention(arguments, definition, retention):
    rules = rules_of(STREAM | arguments, definition)
    assert rules.stream == retention
    assert plane_rules(rules) == plane_rules(PLAIN)     # No rule of a queue takes messages out of it.


def test_no_limit_is_no_retention():
    assert retention_of({"x-queue-type": "stream"}) is None


@pytest.mark.parametrize(("offset", "start"), [
    ("first", ("offset", 1)), ("next", ("next", 0)), ("last", ("last", 0)), (0, ("offset", 0)), (7, ("offset", 7)),
    (-7, ("back", 7)), (Timestamp(3), ("time", 3_000_000_000)), ("2h", ("ago", 2 * HOUR * 1_000_000)),
    ((1 << 64) - 1, ("offset", INT64_MAX)), (-(1 << 63), ("back", INT64_MAX)),
    (Timestamp((1 << 64) - 1), ("time", INT64_MAX // 10**9 * 10**9)), ("99999999999Y", ("ago", INT64_MAX)),
])
def test_where_a_reader_begins(offset, start):
    assert start_of({"x-stream-offset": offset}) == start
    check_reader("queue 'q'", {"x-stream-offset": offset}, no_ack=False, prefetch=1, global_prefetch=0)


def test_a_first_offset_counts_where_no_other_is_given_and_is_checked_as_that_one_is():
    assert start_of({"x-stream-first-offset": "first"}) == ("offset", 1)
    assert start_of({"x-stream-first-offset": "first", "x-stream-offset": 7}) == ("offset", 7)
    with pytest.raises(PreconditionFailed, match="invalid arg 'x-stream-first-offset' for queue 'q': "):
        check_reader("queue 'q'", {"x-stream-first-offset": "x"}, no_ack=False, prefetch=1, global_prefetch=0)


def test_without_an_offset_a_reader_begins_with_what_comes():
    assert start_of({}) == ("next", 0)


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.binary(), st.lists(st.integers())))
def test_any_offset_is_taken_or_refused_in_words(value):
    arguments = {"x-stream-offset": value}
    refused = None
    try:
        check_reader("queue 'q'", arguments, no_ack=False, prefetch=1, global_prefetch=0)
    except PreconditionFailed as error:
        refused = error.reply_text
    if refused is None:
        assert start_of(arguments)[0] in ("offset", "next", "last", "back", "time", "ago")
    else:
        assert refused.startswith("PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 'q': ")


def test_the_log_is_told_once_of_what_readers_missed(monkeypatch):
    told = []
    log = SimpleNamespace(**dict.fromkeys(("info", "warning"), lambda text, *values: told.append(text % values)))
    monkeypatch.setattr(stream, "log", log)
    queue = SimpleNamespace(missed_told=0, deleted=False, stream=SimpleNamespace(missed=0, retain=lambda most: 0))
    for missed in (0, 5, 5, 7):
        queue.stream.missed = missed
        assert not list(retain_in_pieces(queue))
    assert [line.partition(": ")[2] for line in told] == [
        "readers missed 5 messages that had been removed", "readers missed 2 messages that had been removed"]


def test_one_segment_goes_after_the_other_until_the_stream_is_deleted():
    asked = []
    queue = SimpleNamespace(missed_told=0, deleted=False, stream=SimpleNamespace(
        missed=0, first_offset=1, retain=lambda most: asked.append(most) or most))
    for _ in retain_in_pieces(queue):
        queue.deleted = len(asked) == 5
    assert asked == [1] * 5


def test_a_reader_has_no_priority():
    with pytest.raises(PreconditionFailed, match="invalid arg 'x-priority' for queue 'q' of queue type"):
        check_reader("queue 'q'", {"x-priority": 1}, no_ack=False, prefetch=1, global_prefetch=0)


@pytest.mark.parametrize(("arguments", "tag", "name"), [
    ({}, "mine", None), ({"x-stream-reader": "billing"}, "amq.ctag-x", "billing"),
    ({"x-stream-automatic-offset-tracking": True}, "mine", "mine"),
    ({"x-stream-automatic-offset-tracking": "true"}, "mine", "mine"),
    ({"x-stream-automatic-offset-tracking": True, "x-stream-reader": "billing"}, "mine", "billing"),
    ({"x-stream-automatic-offset-tracking": False, "x-stream-reader": "billing"}, "mine", None),
])
def test_a_reader_has_the_name_that_it_gives_itself(arguments, tag, name):
    assert reader_name("queue 'q'", arguments, tag) == name


@pytest.mark.parametrize(("arguments", "text"), [
    ({"x-stream-reader": ""}, "invalid arg 'x-stream-reader' for queue 'q': \"empty\""),
    ({"x-stream-reader": 5}, "invalid arg 'x-stream-reader' for queue 'q': {unacceptable_type,"),
    ({"x-stream-reader": "a" * 256}, "invalid arg 'x-stream-reader' for queue 'q': \"256 octets, at most 255\""),
    ({"x-stream-automatic-offset-tracking": "yes"}, "it must be true or false"),
    ({"x-stream-automatic-offset-tracking": True}, "the reader has no name"),
])
def test_a_name_that_is_none_is_refused(arguments, text):
    with pytest.raises(PreconditionFailed) as refused:
        reader_name("queue 'q'", arguments, "amq.ctag-x")
    assert text in refused.value.reply_text


@pytest.mark.parametrize(("arguments", "text"), [
    ({"x-stream-filter": 5}, "'x-stream-filter' for queue 'q': it must be a text, a table, or a list of these"),
    ({"x-stream-filter": {}}, "'x-stream-filter' for queue 'q': a table without a condition"),
    ({"x-filter-match-type": "some"}, "'x-filter-match-type' for queue 'q': it must be 'all' or 'any'"),
    ({"x-stream-filter-sql": "a ="}, "'x-stream-filter-sql' for queue 'q': line 1, column 4: a value is wanted"),
    ({"x-stream-filter": ["a", 5]}, "it must be a text, a table, or a list of these"),
    ({"x-stream-filter": []}, "0 values, but a filter has 1 to 64"),
    ({"x-stream-filter": ["a"] * 65}, "65 values, but a filter has 1 to 64"),
    ({"x-stream-filter": "a" * 256}, "a value of 256 octets, at most 255"),
    ({"x-stream-filter": "a", "x-stream-match-unfiltered": 1}, "'x-stream-match-unfiltered' for queue 'q': it must be"),
])
def test_a_filter_that_is_none_is_refused(arguments, text):
    with pytest.raises(PreconditionFailed) as refused:
        check_reader("queue 'q'", arguments, no_ack=False, prefetch=1, global_prefetch=0)
    assert text in refused.value.reply_text


@pytest.mark.parametrize(("arguments", "text"), [
    ({"x-single-active-consumer": 1}, "'x-single-active-consumer' for queue 'q': it must be true or false"),
    ({"x-stream-partitions": "range"}, "'x-stream-partitions' for queue 'q': it must be 'hash'"),
    ({"x-stream-partitions": "hash"}, "the readers that share have no name"),
    ({"x-stream-partitions": "hash", "x-stream-reader": "r", "x-single-active-consumer": True}, "shares with no other"),
])
def test_a_share_that_is_none_is_refused(arguments, text):
    with pytest.raises(PreconditionFailed) as refused:
        check_reader("queue 'q'", arguments, no_ack=False, prefetch=1, global_prefetch=0)
    assert text in refused.value.reply_text

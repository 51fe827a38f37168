"""Tables for people."""

import os
import time

import pytest

from brokerd.audit import many
from brokerd.cli import ctl_text
from brokerd.operations.ordering import group_counters
from brokerd.store.format import ORDER_COUNTERS


@pytest.mark.parametrize(("count", "text"), [
    (0, "0 octets"), (1, "1 octet"), (999, "999 octets"), (1000, "1.0 kB"), (99_400, "99.4 kB"), (99_500, "100 kB"),
    (999_400, "999 kB"), (999_500, "1.0 MB"), (1_500_000_000, "1.5 GB"), (12_345_678_901_234_567, "12346 TB"),
])
def test_octets_are_shown_with_three_digits_or_so(count, text):
    assert ctl_text.octets(count) == text


@pytest.mark.parametrize(("ns", "text"), [
    (0, "+0 ns"), (999, "+999 ns"), (1000, "+1.0 µs"), (-1500, "-1.5 µs"), (999_949, "+999.9 µs"),
    (999_950, "+1.0 ms"), (2_500_000, "+2.5 ms"), (999_950_000, "+1.0 s"), (119_900_000_000, "+119.9 s"),
    (119_960_000_000, "+2 min 0 s"), (7_199_400_000_000, "+119 min 59 s"), (7_199_500_000_000, "+2 h 0 min"),
    (47 * 3600 * 10**9, "+47 h 0 min"), (49 * 3600 * 10**9, "+2 d 1 h"),
])
def test_spans_are_shown_in_the_unit_that_fits(ns, text):
    assert ctl_text.span(ns) == text


def test_moments_are_local_times_to_the_nanosecond(monkeypatch):
    monkeypatch.setitem(os.environ, "TZ", "UTC-3")
    time.tzset()
    try:
        assert ctl_text.moment(1_700_000_000_000_000_001) == "2023-11-15 01:13:20.000000001"
        assert ctl_text.moment(1 << 70) == f"{1 << 70} ns"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("text", "shown"), [
    ("plain", "plain"), ("grün", "grün"), ("a\nb", r"a\nb"), ("\x1b[31m", r"\x1b[31m"), ("\udcff", r"\udcff"),
    ("\x9b", r"\x9b"),
])
def test_names_cannot_move_the_cursor(text, shown):
    assert ctl_text.clean(text) == shown


def test_columns_are_as_wide_as_their_widest_cell():
    assert ctl_text.columns([("a", 1, ""), ("bbb", 100, "x")], {1}) == ["a      1", "bbb  100  x"]
    assert ctl_text.columns([]) == []


@pytest.mark.parametrize(("count", "text"), [(0, "0 queues"), (1, "1 queue"), (1234, "1,234 queues")])
def test_one_of_a_thing_is_no_plural(count, text):
    assert many(count, "queue") == text


def test_every_counter_has_words():
    table = group_counters(list(range(1, 1 + len(ORDER_COUNTERS))))
    shown = {(table[group] if group else table)[name] for group, name, _ in ctl_text.COUNTERS}
    assert shown == set(range(1, 1 + len(ORDER_COUNTERS)))


def ordering(**more):
    nothing = group_counters([0] * len(ORDER_COUNTERS))
    return {
        "vhost": "/", "queue": "q", "durable": True, "guarantee": "strict-fifo", "reasons": ["no consumer"],
        "notes": [],
        "messages": {"ready": 1234, "unacked": 0, "next_seq": 1235},
        "counters": {"since_start": nothing, "since_declare": nothing},
        "journal": {"on": False, "why": "nobody asks", "kept_octets": 0, "first_kept_seq": 0}, "consumers": [],
    } | more


def test_a_quiet_queue_is_told_in_a_few_lines():
    assert ctl_text.ordering(ordering()) == """\
queue 'q' in vhost '/'

  guarantee   strict-fifo
              because: no consumer
  messages    1,234 ready, 0 unacked; the next one is number 1,235
  journal     off: nobody asks

  Nothing has disturbed the order since the queue was declared.

  no consumers"""


def test_what_has_happened_and_who_reads_stand_in_columns():
    counts = [0] * len(ORDER_COUNTERS)
    counts[ORDER_COUNTERS.index("returned_nack")] = 1234
    declare = counts.copy()
    declare[ORDER_COUNTERS.index("purged")] = 5
    consumer = {"number": 7, "tag": "t", "prefetch": 0, "global_prefetch": 0, "unacked": 3, "no_ack": False,
                "priority": 0, "active": True, "connection": 2, "channel": 1, "peer": "127.0.0.1:1", "user": "guest"}
    other = consumer | {"number": 0, "tag": "other", "prefetch": 10, "active": False, "priority": 5, "no_ack": True,
                        "global_prefetch": 4}
    text = ctl_text.ordering(ordering(
        counters={"since_start": group_counters(counts), "since_declare": group_counters(declare)},
        consumers=[consumer, other], notes=["a note"],
        journal={"on": True, "why": "policy 'p'", "kept_octets": 5000, "first_kept_seq": 9}))
    assert text.partition("\n\n")[2] == """\
  guarantee   strict-fifo
              because: no consumer
              also: a note
  messages    1,234 ready, 0 unacked; the next one is number 1,235
  journal     on: policy 'p'
              on disk from number 9 on; 5.0 kB of settled messages kept

  what has disturbed the order  since start  since declare
  returned: nack                      1,234          1,234
  purged                                  0              5

  consumer  tag    prefetch  unacked  channel  peer         user
         7  t      no limit        3  2.1      127.0.0.1:1  guest
         -  other        10        3  2.1      127.0.0.1:1  guest  no ack, waits its turn, priority 5, 4 a channel"""


def test_a_reading_that_did_not_come_to_the_end_says_how_far_it_looked_and_how_to_go_on():
    assert ctl_text.read_remarks({"next_offset": 100_001, "end_offset": 200_001, "examined": 100_000, "missed": 0}) == [
        "looked at 100000 messages, and not yet at offsets 100001 to 200000: --offset 100001 goes on there"]
    assert ctl_text.read_remarks({"next_offset": 7, "end_offset": 7, "examined": 6, "missed": 0}) == []


def test_a_reading_says_how_many_messages_were_removed_before_it_came():
    assert ctl_text.read_remarks({"next_offset": 7, "end_offset": 7, "examined": 2, "missed": 4}) == [
        "4 messages from there on have been removed"]
    gone, _ = ctl_text.read_remarks({"next_offset": 7, "end_offset": 8, "examined": 2, "missed": 4})
    assert gone == "4 messages from there on have been removed"


def test_a_line_of_the_log_is_as_in_the_log_and_cannot_move_the_cursor(monkeypatch):
    monkeypatch.setitem(os.environ, "TZ", "UTC")
    time.tzset()
    answer = {"items": [{"number": 1, "at": 1700000000062, "level": "info", "text": "a\x1b[2Jb"}], "last": 1}
    try:
        assert ctl_text.log(answer) == "2023-11-14 22:13:20.062 INFO    a\\x1b[2Jb"
    finally:
        monkeypatch.undo()
        time.tzset()

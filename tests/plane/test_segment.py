"""One segment and its acks file: what a start makes of a record by the last that its acks file says."""

from pathlib import Path

import pytest
from tests.plane.harness import nack, publish

from brokerd.store import format as layout
from brokerd.store import reading

RECORD = layout.round_up(64 + 3 + 2 + 1)        # of a message of one octet
BELOW, DOUBTED, ABOVE = (64 + RECORD * n for n in range(3))
NEVER_OUT, WAS_OUT = layout.SET_ASIDE, layout.SET_ASIDE | layout.WAS_OUT << 4


@pytest.fixture
def start(bench, make_bench):
    """Three messages, and an acks file with these entries: the bench and the queue of the next start.

    The first record lies below ``delivered``, the second below ``doubted`` alone, and the third above both."""
    def start(*entries, doubted=ABOVE):
        queue = bench.queue()
        bench.connection(1).feed(publish(1, b"1") + publish(1, b"2") + publish(1, b"3"))
        queue.close()
        bench.queues = {}
        octets = layout.acks_header(1, delivered=DOUBTED, entries=len(entries), doubted=doubted)
        for position, kind, count in entries:
            octets += layout.ENTRY.pack(position, kind, layout.entry_check(1, position, kind, count), count)
        Path(f"{queue.directory}/acks.0000000001").write_bytes(octets.ljust(4096, b"\0"))
        after = make_bench()
        findings = []
        found = after.recovered(findings=findings)
        assert findings == []
        return after, found

    return start


def told(after, found):
    """(redelivered, failed deliveries) of each message: as browsing, the hand-out, and its return say."""
    browsed = [row[2] for row in found.browse(1, 10)]
    connection = after.connection(1)
    for _ in range(3):
        assert connection.channels[1].get(found, False)
    found.paused = True
    connection.feed(nack(1, 3, multiple=True))
    redelivered = [one.redelivered for one in connection.delivered()]
    assert redelivered == browsed
    said = reading.read_entries(Path(f"{found.directory}/acks.0000000001").read_bytes(), 1).entries[-3:]
    counts = {int(entry["position"]): int(entry["count"]) - 1 for entry in said}
    return list(zip(redelivered, [counts[at] for at in (BELOW, DOUBTED, ABOVE)], strict=True))


def test_without_entries_the_watermark_says_what_was_out_and_doubt_what_may_have_been(start):
    assert told(*start()) == [(True, 1), (True, 0), (False, 0)]


@pytest.mark.parametrize(("entries", "expected"), [
    ([(layout.RETURNED, 2)], (True, 2)),
    ([(layout.HANDED_OUT, 2)], (True, 3)),
    ([(layout.HANDED_OUT, 7), (NEVER_OUT, 1), (layout.RETURNED, 2)], (True, 2)),
    ([(layout.RETURNED, 1), (NEVER_OUT, 2), (layout.HANDED_OUT, 2)], (True, 3)),
    ([(WAS_OUT, 4)], (True, 4)),
])
def test_the_last_entry_of_a_record_says_how_it_stood_wherever_it_is(start, entries, expected):
    whole = [(at, *entry) for entry in entries for at in (ABOVE, BELOW, DOUBTED)]
    assert told(*start(*whole)) == [expected] * 3


def test_what_was_aside_and_never_out_is_redelivered_only_where_that_is_in_doubt(start):
    entries = [(at, NEVER_OUT, 0) for at in (BELOW, DOUBTED, ABOVE)]
    assert told(*start(*entries)) == [(True, 0), (True, 0), (False, 0)]


def test_what_was_aside_and_never_out_is_not_redelivered_though_the_watermark_passed_it(start):
    assert told(*start((BELOW, NEVER_OUT, 0), doubted=0)) == [(False, 0), (False, 0), (False, 0)]


def test_a_record_between_two_that_the_acks_file_tells_of_is_not_told_of(start):
    entries = [(at, layout.RETURNED, 5) for at in (BELOW, ABOVE)]
    assert told(*start(*entries, doubted=0)) == [(True, 5), (False, 0), (True, 5)]

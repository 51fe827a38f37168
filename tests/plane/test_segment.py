"""One segment and its acks file: what a start makes of a record by the last that its acks file says."""

from pathlib import Path

import pytest
from tests.plane.harness import consume, nack, publish
from tests.store.segments import record

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
        settled = sum(kind in layout.SETTLING_TYPES for _, kind, _ in entries)
        octets = layout.acks_header(1, delivered=DOUBTED, entries=len(entries), settled=settled, doubted=doubted)
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


def delivered(after, found):
    connection = after.connection(1)
    consume(connection.channels[1], found, b"t", no_ack=True)
    after.turns()
    found.check()
    assert found.ready == 0
    return connection.bodies()


@pytest.mark.parametrize(("entries", "expected", "beside"), [
    ([BELOW, DOUBTED + 8], [b"2", b"3"], 1),
    ([BELOW + 8, DOUBTED], [b"1", b"3"], 1),
    ([BELOW + 16, BELOW + 24], [b"1", b"2", b"3"], 2),
    ([BELOW, BELOW + 8], [b"2", b"3"], 1),
    ([BELOW, ABOVE], [b"2"], 0),
])
def test_an_entry_at_a_position_where_no_record_begins_settles_none_and_is_damage(start, entries, expected, beside):
    """Its check is one octet: of 256 that are damaged, one passes it."""
    after, found = start(*((position, layout.ACKED, 0) for position in entries))
    assert delivered(after, found) == expected
    assert after.damages == [(f"{found.directory}/acks.0000000001", 64, 8 * beside)] * bool(beside)


@pytest.mark.parametrize("length", [0, 63, 64, RECORD + 8, 1 << 20, 0xFFFFFFF9, 0xFFFFFFFF])
def test_a_damaged_length_before_a_settled_record_neither_hangs_a_start_nor_unsettles_it(bench, make_bench, length):
    queue = bench.queue()
    bench.connection(1).feed(b"".join(publish(1, b"%d" % n) for n in range(5)))
    queue.close()
    bench.queues = {}
    path = Path(f"{queue.directory}/msgs.0000000001")
    octets = bytearray(path.read_bytes())
    octets[DOUBTED + 4:DOUBTED + 8] = length.to_bytes(4, "little")
    path.write_bytes(octets)
    entries = [layout.entry(1, position, layout.ACKED, 0) for position in (BELOW, ABOVE)]
    path.with_name("acks.0000000001").write_bytes(
        (layout.acks_header(1, delivered=ABOVE + RECORD, entries=2, settled=2) + b"".join(entries)).ljust(4096, b"\0"))
    after = make_bench()
    found = after.recovered()
    assert delivered(after, found) == [b"3", b"4"]
    assert after.damages == [(str(path), DOUBTED, RECORD)]


def test_an_entry_beside_records_is_found_out_behind_damage_too_and_counts_stay_right(bench, make_bench):
    """The damaged record hides where the others begin, until the cursor comes there."""
    queue = bench.queue()
    connection = bench.connection(1)
    connection.feed(b"".join(publish(1, b"%d" % n) for n in range(5)))
    queue.close()
    bench.queues = {}
    path = Path(f"{queue.directory}/msgs.0000000001")
    octets = bytearray(path.read_bytes())
    octets[DOUBTED:DOUBTED + 4] = b"gone"
    path.write_bytes(octets)
    beside = ABOVE + RECORD + 8
    entries = [layout.entry(1, position, layout.ACKED, 0) for position in (BELOW, beside)]
    path.with_name("acks.0000000001").write_bytes(
        (layout.acks_header(1, delivered=beside, entries=2, settled=2) + b"".join(entries)).ljust(4096, b"\0"))
    after = make_bench()
    found = after.recovered()
    assert delivered(after, found) == [b"2", b"3", b"4"]
    assert after.damages == [(str(path), DOUBTED, RECORD)]


def test_a_message_that_was_out_by_the_watermark_alone_has_an_entry_once_it_is_aside(start):
    """While its dead letter is under way, later messages may go out before it: the watermark no longer tells."""
    after, found = start()
    found.set_rules(max_length=2, dead_letters=True)
    after.connection(1).feed(publish(1, b"4"))
    after.turns()
    said = reading.read_entries(Path(f"{found.directory}/acks.0000000001").read_bytes(), 1).entries
    first = said[said["position"] == BELOW][0]
    assert (int(first["kind"]), int(first["count"])) == (WAS_OUT, 1)


@pytest.mark.parametrize("suspect", [False, True])
@pytest.mark.parametrize("table", [
    b"\x01hS\xff\xff\xff\xff",      # a long string that ends behind the table
    b"\xffh12345",                  # a name that does
    b"\x01hF\x7f\xff\xff\xff",      # a table in the table
    b"\x01hA\x00\x00\x00\xff",
    b"\x01h?1234",                  # no such type
])
def test_a_record_with_a_right_check_and_wrong_lengths_inside_is_damaged(bench, make_bench, table, suspect):
    """As in a data directory that somebody made: what reads headers later trusts their lengths."""
    queue = bench.queue()
    right = b"\x20\x00" + (7).to_bytes(4) + b"\x01hI1234"
    bench.connection(1).feed(publish(1, b"1", properties=right) + publish(1, b"2"))
    queue.close()
    bench.queues = {}
    path = Path(f"{queue.directory}/msgs.0000000001")
    octets = path.read_bytes()
    wrong = record(1, 1, b"1", b"\0\1q" + b"\x20\x00" + len(table).to_bytes(4) + table)
    path.write_bytes(octets[:64] + wrong + octets[64 + len(wrong):])
    after = make_bench()
    found = after.recovered(suspect=suspect)
    connection = after.connection(1)
    consume(connection.channels[1], found, b"t", no_ack=True)
    after.turns()
    assert connection.bodies() == [b"2"]
    assert len(after.damages) == 1 or suspect

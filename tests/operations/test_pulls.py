"""Messages that receivers hold by receipt."""

import pytest
from tests.plane.harness import Bench, publish

from brokerd.operations import OperationError, pulls
from brokerd.operations.pulls import Pulls, show


class Place:
    """A queue, and what is given out of it; ``now`` is in seconds."""

    def __init__(self, bench, **rules):
        self.bench, self.now = bench, 100.0
        self.queue = bench.queue(**rules)
        self.queue.deleted = False
        self.wakes = []                 # what is to be called back, and when
        self.pulls = Pulls(bench.core, iter(range(900, 999)).__next__, lambda: self.now,
                           lambda seconds, callback: self.wakes.append((self.now + seconds, callback)))
        self.client = bench.connection(1)

    def publish(self, *bodies):
        self.client.feed(b"".join(publish(1, body) for body in bodies))

    def receive(self, count=1, visible_s=30, attempt=""):
        return self.pulls.receive(self.queue, count, visible_s, attempt)

    def find(self, *rows):
        return self.pulls.find(self.queue, [row["receipt"] for row in rows])

    def wake(self):
        """Let the time go on until this is called back; how many seconds that took."""
        before, (self.now, callback) = self.now, min(self.wakes, key=lambda one: one[0])
        self.wakes.remove((self.now, callback))
        callback()
        self.queue.check()
        return round(self.now - before, 6)

    def later(self, seconds):
        self.now += seconds
        self.pulls.tick()
        self.queue.check()


@pytest.fixture
def place(bench):
    place = Place(bench)
    yield place
    place.pulls.close()


def bodies(rows):
    return [row["body"] for row in rows]


def test_messages_are_out_until_they_are_acknowledged(place):
    place.publish(b"1", b"2", b"3")
    rows = place.receive(2)
    assert (bodies(rows), [row["seq"] for row in rows]) == ([b"1", b"2"], [1, 2])
    assert (place.queue.ready, place.queue.unacked) == (1, 2)
    place.pulls.settle(place.find(*rows))
    assert (place.queue.ready, place.queue.unacked, place.queue.acked) == (1, 0, 2)
    with pytest.raises(OperationError, match="it was settled, or its time is over"):
        place.find(rows[0])
    assert bodies(place.receive(10)) == [b"3"]
    assert place.receive(10) == []


def test_what_is_not_settled_in_time_returns_to_its_place_as_a_failed_delivery(place):
    place.publish(b"1", b"2")
    (row,) = place.receive(visible_s=30)
    place.later(29)
    assert place.queue.ready == 1
    place.pulls.extend(place.find(row), 30)
    place.later(29)
    assert place.queue.ready == 1
    place.later(1)
    assert (place.queue.ready, place.queue.unacked) == (2, 0)
    again = place.receive(2)
    assert [(each["body"], each["redelivered"]) for each in again] == [(b"1", True), (b"2", False)]
    with pytest.raises(OperationError):
        place.find(row)


def test_a_time_below_a_second_is_kept_without_a_tick(place):
    place.publish(b"1", b"2")
    place.receive(visible_s=0.25)
    (row,) = place.receive(visible_s=0.5)
    assert (place.wake(), place.queue.ready) == (0.25, 1)
    place.pulls.extend(place.find(row), 0.35)           # It was to return after 0.25 more.
    assert (place.wake(), place.queue.ready) == (0.25, 1)
    assert (place.wake(), place.queue.ready) == (0.1, 2)
    assert place.wakes == []


def test_a_shorter_time_than_before_is_kept_too(place):
    place.publish(b"1")
    place.pulls.extend(place.find(*place.receive(visible_s=3000)), 0.02)
    assert (place.wake(), place.queue.ready) == (0.02, 1)


def test_many_messages_return_in_pieces(place, monkeypatch):
    monkeypatch.setattr(pulls, "LOOKED_AT_ONCE", 2)
    place.publish(*[b"m"] * 5)
    place.receive(5, visible_s=1)
    seen = []
    while place.wakes:
        place.wake()
        seen.append(place.queue.ready)
    assert seen == [2, 4, 5]


def test_what_is_settled_in_time_leaves_no_trace(place):
    for number in range(300):
        place.publish(b"%d" % number)
        place.pulls.settle(place.find(*place.receive(visible_s=40_000)))
    assert len(place.pulls._looks) <= 101
    place.later(0)
    assert place.pulls._pullers == {}


def test_looks_at_what_was_settled_in_time_are_in_pieces(place, monkeypatch):
    place.publish(*[b"m"] * 7)
    rows = place.receive(6, visible_s=1) + place.receive(1, visible_s=1.5)
    place.pulls.settle(place.find(*rows[:6]))
    monkeypatch.setattr(pulls, "LOOKED_AT_ONCE", 2)
    seen = []
    while place.wakes:
        place.wake()
        seen.append((len(place.pulls._looks), place.queue.ready))
    assert seen == [(5, 0), (3, 0), (1, 0), (0, 1)]


def test_each_message_returns_in_its_time_while_the_looks_at_others_are_thrown_away(place, monkeypatch):
    place.publish(*[b"%d" % number for number in range(400)])
    rows = place.receive(400, visible_s=30_000)
    kept = rows[::40]
    for at, row in enumerate(kept):         # The times fall: each needs a look of its own.
        place.pulls.extend(place.find(row), 1000 - at)
    place.pulls.settle(place.find(*[row for row in rows if row not in kept]))
    lengths = [len(place.pulls._looks)]
    while lengths[-1] > 120:
        place.publish(b"more")
        place.pulls.settle(place.find(*place.receive(visible_s=40_000)))
        lengths.append(len(place.pulls._looks))
        assert lengths[-2] - lengths[-1] <= pulls.MOVED_AT_ONCE
    assert len(lengths) > 70                # Else all was thrown away at once.
    due = [990 + number for number in range(1, 11)]
    seen = []
    while len(seen) < 10:
        ready = place.queue.ready
        place.wake()
        seen += [place.now - 100] * (place.queue.ready - ready)
    assert seen == due
    assert bodies(place.receive(20)) == [row["body"] for row in kept]


def test_a_refused_message_returns_at_once_or_after_its_delay(place):
    place.publish(b"1", b"2")
    one, two = place.receive(2)
    place.pulls.settle(place.find(one), 1)
    assert place.queue.ready == 1
    place.pulls.extend(place.find(two), 5, nack=True)
    place.later(4)
    assert place.queue.ready == 1
    place.later(1)
    assert place.queue.ready == 2
    assert place.queue.order_counts()[0][0] == 2        # both by nack


def test_the_same_attempt_gets_the_same_messages_while_they_are_out(place):
    place.publish(b"1", b"2", b"3", b"4")
    first = place.receive(2, attempt="a")
    assert place.receive(2, attempt="a") == first
    assert bodies(place.receive(1, attempt="b")) == [b"3"]
    place.pulls.settle(place.find(first[0]))
    assert place.receive(2, attempt="a") == first[1:]
    place.pulls.settle(place.find(first[1]))
    assert bodies(place.receive(2, attempt="a")) == [b"4"]


def test_an_attempt_is_forgotten_after_its_time(place):
    place.publish(b"1", b"2")
    place.receive(1, visible_s=10_000, attempt="a")
    place.later(pulls.ATTEMPT_S)
    assert bodies(place.receive(1, attempt="a")) == [b"2"]


def test_the_tables_have_bounds(place, monkeypatch):
    monkeypatch.setattr(pulls, "RECEIPTS_MAX", 3)
    monkeypatch.setattr(pulls, "ATTEMPTS_MAX", 2)
    place.publish(*[b"m"] * 5)
    for attempt in "abc":
        assert len(place.receive(1, attempt=attempt)) == 1
    assert len(place.pulls._attempts) == 2
    with pytest.raises(OperationError, match="3 messages are out to receivers already"):
        place.receive()


def test_messages_of_a_stopped_broker_are_ready_again(place):
    place.publish(b"1")
    place.receive()
    place.pulls.close()
    assert (place.queue.ready, place.queue.unacked) == (1, 0)


def test_receipts_of_a_deleted_queue_go(place):
    place.publish(b"1")
    (row,) = place.receive()
    place.queue.deleted = True
    place.queue.drop()
    place.later(1)
    assert place.pulls.receipts == {}
    assert row["receipt"]


def test_many_receipts_of_a_deleted_queue_go_in_pieces_and_none_of_them_is_settled(place, monkeypatch):
    monkeypatch.setattr(pulls, "LOOKED_AT_ONCE", 2)
    place.publish(*[b"m"] * 7)
    place.receive(7, visible_s=1)
    place.queue.deleted = True
    place.queue.drop()
    place.pulls.tick()
    seen = [len(place.pulls.receipts)]
    place.now += 1
    for _ in range(3):
        place.pulls._return_overdue()       # The time of all is over: nothing returns any more.
    while place.pulls.receipts:
        place.pulls._forget_some()
        seen.append(len(place.pulls.receipts))
    assert seen == [5, 3, 1, 0]


def test_a_payload_is_text_or_base64(place):
    place.publish(b"text", b"\xff")
    shown = [show(row, lambda octets: {}) for row in place.receive(2)]
    assert [(row["payload"], row["payload_encoding"], row["payload_bytes"]) for row in shown] == [
        ("text", "string", 4), ("/w==", "base64", 1)]


def test_a_large_body_is_whole(place):
    place.publish(b"x" * 500_000)
    assert place.receive()[0]["body"] == b"x" * 500_000


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path, segment_octets=1 << 20)
    yield bench
    bench.close()


def test_no_body_is_kept_that_nobody_can_ask_for_again(place):
    place.publish(b"1", b"2", b"3")
    first, second = place.receive(), place.receive(attempt="a")
    assert [len(receipt.row.get("body", b"")) for receipt in place.find(*first, *second)] == [0, 1]
    (held,) = place.find(*second)
    place.pulls.settle([held])
    assert held.row == {}
    assert bodies(place.receive(attempt="a")) == [b"3"]


def test_a_long_text_that_is_no_receipt_is_not_told_in_full(place):
    with pytest.raises(OperationError) as refused:
        place.pulls.find(place.queue, ["x" * 100_000])
    assert str(refused.value).startswith("no receipt '" + "x" * 40 + "…' in ")

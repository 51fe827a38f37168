"""What became of messages since they were replayed: files as a broker leaves them, and with one fact out of place."""

import pytest
import writer
from test_waits import ONE, OTHER, STEP, T, acked, back, meta, out

from brokerd.audit import holders, replayed
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.spark import by_arrays
from brokerd.store.format import (
    BEFORE_START,
    DELIVERED,
    EVENT_REPLAYED,
    EXPIRED,
    REDELIVERED,
    RESTARTED,
    STARTED,
)

JUDGED = (set(replayed.AUDITS) | {"returned_first"}) - {"agreement"}       # The writer's acks know no replays.
DONE = [out(1), acked(1), out(2), acked(2), (1, EVENT_REPLAYED, 0), (2, EVENT_REPLAYED, 0)]


def again(seq, consumer=ONE, reason=REDELIVERED):
    return seq, DELIVERED, consumer, reason


def wrong(root, steps, counts=None, **settings):
    """{audit: numbers} of what is wrong; ``counts``: {step: failed deliveries}."""
    rows = [(T + STEP * k, seq or T + STEP * k, type_, *(more[:1] or (0,)), consumer)
            for k, (seq, type_, consumer, *more) in enumerate(steps, 1)]
    happened = writer.events(rows)
    for step, count in (counts or {}).items():
        happened["count"][step] = count
    messages = writer.messages(range(1, 5), range(T - 100, T - 96))
    level = writer.Level(messages, happened, metas=[meta("a")] * 4)
    path = str(writer.write_queue(root, level, writer.Options(segment_messages=2, settings=settings)))
    options = Options(audits=frozenset(JUDGED))
    (one,) = audit(open_source(path), options)
    apart = by_arrays.apart(path, None, {(one.queue["vhost"], one.queue["queue"])})
    assert by_arrays.of_queues(path, options, None, apart) == one.audits
    assert by_arrays.of_queues(path, options, None, {}) == []
    return {row["audit"]: sorted(f["seq"] for f in one.findings if f["audit"] == row["audit"])
            for row in one.audits if row["verdict"] == "violated"}


@pytest.mark.parametrize(("steps", "counts", "found"), [
    ([again(1), acked(1), again(2), acked(2)], {}, {}),
    ([again(1), back(1), again(1), acked(1), again(2), acked(2)], {7: 1, 8: 1, 9: 0}, {"failure_counts": [1]}),
    ([again(1, reason=0), acked(1)], {}, {"redelivered": [1]}),
    ([again(1, reason=REDELIVERED | BEFORE_START)], {}, {"redelivered": [1]}),
    ([again(1), again(1)], {}, {"out_twice": [1]}),
    ([again(1), acked(1, OTHER)], {}, {"wrong_consumer": [1]}),
    ([acked(1)], {}, {"ack_without_delivery": [1]}),
    ([again(1), acked(1), acked(1)], {}, {"double_settle": [1]}),
    ([again(1), acked(1), again(1)], {}, {"delivery_after_settle": [1]}),
    ([again(1), (1, EXPIRED, 0)], {}, {"early_death": [1], "ended_while_out": [1]}),
    ([again(1)], {6: 3}, {"failure_counts": [1]}),
    ([(0, STARTED, 0, RESTARTED), again(1, reason=REDELIVERED | BEFORE_START), acked(1)], {}, {}),
    ([(0, STARTED, 0, RESTARTED), again(1), acked(1)], {}, {"redelivered": [1]}),
    ([again(1), acked(1), (1, EVENT_REPLAYED, 0), again(1), acked(1)], {}, {}),
], ids=["right", "count", "no mark", "from before a start", "twice", "another consumer", "no delivery", "two acks",
        "after its ack", "expired", "a count from before", "after a start", "a start unsaid",
        "two replays"])
def test_later_lives_are_judged_by_the_same_rules(tmp_path, steps, counts, found):
    said = wrong(tmp_path, DONE + steps, counts)
    assert {audit: seqs for audit, seqs in said.items() if audit != "returned_first"} == found


@pytest.mark.parametrize(("steps", "passed"), [
    ([again(1), again(2)], []), ([again(2), again(1)], [1]), ([again(1), acked(1), again(2)], []),
    ([out(3), again(1), again(2)], [1, 2]), ([again(2)], [1]),
], ids=["in order", "the later one first", "one by one", "a new one first", "one never"])
def test_a_replayed_message_goes_out_before_later_ones(tmp_path, steps, passed):
    assert wrong(tmp_path, DONE + steps).get("returned_first", []) == passed


def test_a_limit_counts_from_the_replay_on(tmp_path):
    steps = [*DONE, again(1), back(1), again(1), back(1), again(1)]
    assert "delivery_limit" not in wrong(tmp_path / "a", steps, {7: 1, 8: 1, 9: 2, 10: 2}, delivery_limit=2)
    assert wrong(tmp_path / "b", steps, {7: 1, 8: 1, 9: 2, 10: 2}, delivery_limit=1)["delivery_limit"] == [1]


@pytest.mark.parametrize(("said", "told", "goes_on", "answer"), [
    ([1, 2], [1, 2], False, 0), ([1], [1, 2], False, 2), ([1, 2, 3], [1, 2], False, 2), ([1, 2, 3], [1, 2], True, 0),
    ([1], [1, 2], True, 2), ([1, 1 << 24], [1], False, 3), ([2, 1], [1, 2], False, 2),
], ids=["alike", "one lost", "one too many", "written since", "lost at work", "an end too many", "order"])
def test_entries_are_compared_in_their_order(said, told, goes_on, answer):
    assert replayed._compare(told, said, frozenset(), frozenset(), goes_on=goes_on) == answer
    assert replayed._compare([5], [], frozenset(), frozenset({5}), goes_on=False) == 1      # A kill may have cut it.


def test_what_was_replayed_counts_for_prefetch_and_consumers():
    assert set(holders.AUDITS) | {"returned_first"} <= by_arrays.LIVES

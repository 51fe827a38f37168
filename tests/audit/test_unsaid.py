"""kill -9 between the entry of a replay and its event: nobody is accused, and the audit says that it cannot know."""

import pytest
import writer
from test_waits import ONE, START, STEP, T, acked, meta, out

from brokerd.audit import unsaid
from brokerd.audit.files import open_source
from brokerd.audit.scan import DEFAULTS
from brokerd.audit.segment import read_events
from brokerd.audit.verdicts import audit
from brokerd.spark import by_arrays
from brokerd.store.format import BEFORE_START, DELIVERED, EVENT_REPLAYED, REDELIVERED, REPLAYED

DONE = [out(1), acked(1), out(2), acked(2)]


def noted(seq):
    """The entry alone."""
    return seq, REPLAYED, 0


def replayed(seq):
    return [noted(seq), (seq, EVENT_REPLAYED, 0)]


def again(seq):
    return seq, DELIVERED, ONE, REDELIVERED | BEFORE_START


def written(root, steps, segment=4):
    rows = [(T + STEP * k, seq or T + STEP * k, type_, *(more[:1] or (0,)), consumer)
            for k, (seq, type_, consumer, *more) in enumerate(steps, 1)]
    level = writer.Level(writer.messages(range(1, 5), range(T - 100, T - 96)), writer.events(rows),
                         metas=[meta("a")] * 4)
    return str(writer.write_queue(root, level, writer.Options(segment_messages=segment)))


def said(path):
    (one,) = audit(open_source(path))
    return {row["audit"]: row["verdict"] for row in one.audits if row["verdict"] in ("violated", "undecidable")}


UNSURE = {"agreement": "undecidable"}


@pytest.mark.parametrize(("steps", "verdicts"), [
    ([*replayed(1), START, again(1), acked(1)], {}),
    ([noted(1), START, again(1), acked(1)], UNSURE),
    ([noted(1), START, again(1)], UNSURE),
    ([noted(1), START], UNSURE),
    ([*replayed(1), noted(2), START, again(1), again(2), acked(1), acked(2)], UNSURE),
    ([*replayed(2), noted(1), START, again(1), acked(1), noted(1), START, again(1), again(2)], UNSURE),
    ([START, noted(1), START, again(1), acked(1), *replayed(1), START, again(1)], UNSURE),
], ids=["no kill", "settled again", "out again", "still ready", "the last one of two", "at two kills", "at the first"])
def test_a_replay_of_which_a_kill_left_the_entry_alone_is_a_doubt_and_no_fault(tmp_path, steps, verdicts):
    assert said(written(tmp_path, [*DONE, *steps])) == verdicts


@pytest.mark.parametrize("steps", [
    [noted(1), out(1, ONE, REDELIVERED), acked(1)],
    [noted(1), noted(2), START, again(1), again(2)],
    [noted(1), *replayed(2), START, again(1), again(2)],
    [START, again(1), acked(1)],
], ids=["no start", "two at one kill", "a later one has its event", "no entry"])
def test_a_delivery_behind_a_settlement_that_no_kill_explains_is_a_fault(tmp_path, steps):
    assert said(written(tmp_path, [*DONE, *steps]))["delivery_after_settle"] == "violated"


@pytest.mark.parametrize(("steps", "missing"), [
    ([noted(1), START, again(1)], True), ([*replayed(1), START, again(1)], False), ([noted(1), START], False)])
def test_the_journal_alone_shows_when_the_acks_must_be_asked(tmp_path, steps, missing):
    source = open_source(written(tmp_path, [*DONE, *steps]))
    (triple,) = source.queues()[0].triples
    journal = read_events(source, triple)
    assert unsaid.may_miss(journal) is False            # It has the event now, if one was missing.
    assert (journal.again["type"] == EVENT_REPLAYED).any() == (missing or steps[1][1] == EVENT_REPLAYED)


AFTER = [again(1), acked(1), again(3), acked(3)]


@pytest.mark.parametrize(("steps", "verdict"), [
    ([noted(1), START, again(1), acked(1)], "undecidable"),
    ([noted(1), noted(3), START, *AFTER], "violated"),
    ([noted(1), START, noted(3), START, *AFTER], "undecidable"),
    ([noted(1), noted(3), START, START, *AFTER], "undecidable"),        # Entries have no times.
    ([START, noted(1), noted(3), START, *AFTER], "violated"),
], ids=["one", "two", "each at its own", "at which of two starts is not known", "two, behind another start"])
def test_a_kill_cuts_off_one_replay_of_all_segments(tmp_path, steps, verdict):
    done = [*DONE, out(3), acked(3), out(4), acked(4)]
    if steps[0] == START:
        done = [step for step in (START, *done) if step != START] + [START]
        steps = [step for seq in (2, 4) for step in (
            *replayed(seq), out(seq, ONE, REDELIVERED), acked(seq))] + steps[1:]
    path = written(tmp_path, [*done, *steps], segment=2)
    assert said(path) == {"agreement": verdict}
    (one,) = audit(open_source(path))
    apart = by_arrays.apart(path, None, {("/", "q")})
    rows = by_arrays.of_queues(path, DEFAULTS, None, apart)
    assert [row for row in one.audits if row["audit"] == "agreement"] == [
        row for row in rows if row["audit"] == "agreement"] != []


def test_as_many_replays_as_can_get_a_start_of_their_own():
    def left(*starts):
        return unsaid.too_many([unsaid.Unsaid(seq, some) for seq, some in enumerate(starts)])

    assert left() == left((1,)) == left((1,), (2,)) == left((1, 2), (1,)) == left((1, 2), (1, 3), (1,)) == []
    assert left((1,), (1,)) == [1]
    assert left((1, 2), (1, 2), (1,)) == [2]

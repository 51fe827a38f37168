"""The spells of messages that were replayed, and what must wait for them: files as a broker leaves them, and with one
event out of place."""

import numpy as np
import pytest
import writer
from test_kept import judged as judged_kept
from test_kept import token
from test_waits import GROUPS, HELD, IDLE, ONE, OTHER, START, STEP, T, acked, back, judged, meta, out

from brokerd.audit.files import FOREVER, open_source
from brokerd.audit.lifecycle import lives
from brokerd.audit.segment import read_triple
from brokerd.audit.spells import at, of_entries, spells
from brokerd.store.format import (
    ACKED,
    BEFORE_START,
    EVENT_REPLAYED,
    EXPIRED,
    GROUP_PARKED_EVENT,
    GROUP_RELEASED_EVENT,
    HANDED_OUT,
    PARKED,
    PARKED_EVENT,
    REASON_LIMIT,
    REDELIVERED,
    REDRIVEN_EVENT,
    RELEASED_EVENT,
    REPLAYED,
    RETRY_SCHEDULED,
    WAS_OUT,
)


def replayed(seq):
    """The entry, which the writer makes of an event that it leaves out, and the event."""
    return [(seq, REPLAYED, 0), (seq, EVENT_REPLAYED, 0)]


def again(seq, consumer=ONE, reason=REDELIVERED):
    return out(seq, consumer, reason)


def done(*seqs):
    return [step for seq in seqs for step in (out(seq), acked(seq))]


def read(root, steps, keys="aaaa"):
    rows = [(T + STEP * k, seq or T + STEP * k, type_, *(more[:1] or (0,)), consumer)
            for k, (seq, type_, consumer, *more) in enumerate(steps, 1)]
    level = writer.Level(writer.messages(range(1, len(keys) + 1), range(T - 100, T - 100 + len(keys))),
                         writer.events(rows), metas=[meta(key) for key in keys])
    source = open_source(str(writer.write_queue(root, level, writer.Options())))
    (triple,) = source.queues()[0].triples
    return read_triple(source, triple)


def test_a_message_has_a_spell_for_its_publish_and_one_for_each_replay(tmp_path):
    data = read(tmp_path, [*done(1, 2), *replayed(1), again(1), acked(1), *replayed(1), again(1)])
    life = lives(data)
    known = spells(data, life, 0)
    assert known.seq.tolist() == [1, 1, 1, 2, 3, 4]
    assert known.later.tolist() == [False, True, True, False, False, False]
    at_step = [T + STEP * k for k in range(20)]
    assert known.since[:3].tolist() == [T - 100, at_step[6], at_step[10]]
    assert known.settled.tolist() == [at_step[2], at_step[8], FOREVER, at_step[4], FOREVER, FOREVER]
    assert known.sure.all()
    assert not known.by_acks.any()
    moments = [(1, at_step[5]), (1, at_step[7]), (1, at_step[11]), (2, at_step[11]), (9, 0)]
    assert at(known, *(np.array(column) for column in zip(*moments, strict=True))).tolist() == [0, 1, 2, 3, -1]
    entries, row = of_entries(data, life, known)
    assert list(zip((entries["kind"] & 15).tolist(), row.tolist(), strict=True)) == [
        (ACKED, 0), (REPLAYED, 1), (HANDED_OUT, 1), (ACKED, 1), (REPLAYED, 2), (HANDED_OUT, 2), (ACKED, 3)]


def test_an_end_that_only_the_acks_know_of_is_an_end_at_an_unknown_time(tmp_path):
    data = read(tmp_path, [*done(1, 2), *replayed(1), again(1), acked(1)])
    data = data._replace(events_again=data.events_again[:-1], again_places=data.again_places[:-1])
    known = spells(data, lives(data), 0)
    assert (known.settled[1], known.by_acks.tolist()) == (0, [False, True, False, False, False])


@pytest.mark.parametrize(("steps", "order", "owner"), [
    ([*replayed(1), again(1), acked(1), out(4)], [], []),
    ([*replayed(1), out(4), acked(4), again(1)], [4], []),
    ([*replayed(1), *replayed(2), again(2), acked(2), again(1)], [2], []),
    ([*replayed(1), again(1), out(4, OTHER), acked(1)], [4], [4]),
    ([*replayed(1), again(1), out(4), acked(1)], [], [4]),
    ([out(4), *replayed(1), acked(4), again(1)], [], []),
    ([*replayed(1), again(1), START, out(4)], [4], []),
    ([*replayed(1), again(1), START, again(1, OTHER, REDELIVERED | BEFORE_START), acked(1, OTHER), out(4)], [], []),
    ([*replayed(1), out(5), acked(5), again(1)], [], []),
    ([*replayed(1), (1, EXPIRED, 0), out(4)], [], []),
    ([*replayed(2), again(2), back(2), out(4)], [4], []),
    ([*replayed(1), again(1), acked(1), *replayed(1), out(4), again(1)], [4], [1]),
], ids=["in order", "passed", "by another one", "two owners", "two at once", "replayed while one is out",
        "passed at a restart", "restart", "another group", "ended", "returned and passed", "at its second replay"])
def test_a_group_waits_for_its_replayed_messages(tmp_path, steps, order, owner):
    said = judged(tmp_path, [*done(1, 2, 3), *steps], keys="aaaabb")
    assert said == {"stop_kept": HELD, "group_order": ("violated" if order else "held", order),
                    "group_owner": ("violated" if owner else "held", owner)}


def test_a_replayed_message_waits_for_earlier_ones_of_its_group(tmp_path):
    steps = [out(1), (2, EXPIRED, 0), *replayed(2), again(2)]
    assert judged(tmp_path / "other", [*steps[:-1], again(2, OTHER)])["group_order"] == ("violated", [2])
    assert judged(tmp_path / "own", steps)["group_order"] == HELD
    assert judged(tmp_path / "settled", [*steps[:-1], acked(1), again(2, OTHER)])["group_order"] == HELD


@pytest.mark.parametrize(("steps", "wrong"), [
    ([again(4), acked(4), out(5)], []),
    ([out(5), acked(5), again(4)], [5]),
    ([*replayed(3), again(4), acked(4), again(3)], []),         # Its own number is behind 3, the other before.
    ([*replayed(3), again(3), acked(3), again(4)], []),
    ([*replayed(1), again(4), acked(4), again(1)], [4]),
], ids=["in place", "passed", "before one between", "behind one between", "before an earlier one"])
def test_a_redriven_message_that_is_replayed_stands_at_one_of_its_numbers(tmp_path, steps, wrong):
    put_back = [*done(1, 2, 3), (4, REDRIVEN_EVENT, 0), out(4), acked(4), *replayed(4)]
    said = judged(tmp_path, [*put_back, *steps], keys="aaaaaa", again={4: 2})
    assert said["group_order"] == ("violated" if wrong else "held", wrong)


RETRIED = [*done(1, 2), *replayed(1), again(1), back(1), (1, RETRY_SCHEDULED, ONE)]


@pytest.mark.parametrize(("behind", "groups", "wrong"), [
    ([*IDLE, again(1)], None, [1]),
    ([*IDLE, again(1)], GROUPS, [1]),
    ([*IDLE, out(3)], GROUPS, [3]),
    ([*IDLE, (8, EXPIRED, 0), out(5), acked(5), out(6), again(1)], None, []),
    ([*IDLE, (1, RELEASED_EVENT, 0), again(1)], None, []),
    ([*IDLE, (1, EXPIRED, 0), *replayed(1), again(1)], None, []),
    ([START, again(1, ONE, REDELIVERED | BEFORE_START)], None, []),
], ids=["early", "early in a group", "another of its group", "in time", "released", "replayed again", "kill between"])
def test_a_next_try_is_kept_since_a_replay(tmp_path, behind, groups, wrong):
    said = judged(tmp_path, [*RETRIED, *behind], groups=groups, retry=True)
    assert said["retry_kept"] == ("violated" if wrong else "held", wrong)


STOPPED = [*done(1, 2), *replayed(1), again(1), back(1), (1, PARKED_EVENT, ONE, REASON_LIMIT),
           (1, PARKED, 0, WAS_OUT)]
STOPPED_GROUP = [*done(1, 2), *replayed(1), again(1), back(1), (1, GROUP_PARKED_EVENT, ONE, REASON_LIMIT)]


@pytest.mark.parametrize(("steps", "groups", "wrong"), [
    ([*STOPPED, *IDLE, out(3)], None, [3]),
    ([*STOPPED, *IDLE, (1, RELEASED_EVENT, 0), out(3)], None, []),
    ([*STOPPED, *IDLE, (1, EXPIRED, 0), *replayed(1), out(3)], None, []),
    ([step for step in STOPPED if step[1] != PARKED_EVENT], None, [1]),
    ([*STOPPED, *IDLE, (1, EXPIRED, 0), *replayed(1), again(1), (1, PARKED, 0, WAS_OUT)], None, [1]),
    ([*STOPPED_GROUP, *IDLE, again(1, OTHER)], GROUPS, [1]),
    ([*STOPPED_GROUP, *IDLE, (1, GROUP_RELEASED_EVENT, 0), again(1, OTHER)], GROUPS, []),
], ids=["passed", "released", "skipped", "only the acks", "only the acks, since another replay", "parked and out",
        "group released"])
def test_a_stop_is_kept_since_a_replay(tmp_path, steps, groups, wrong):
    said = judged(tmp_path, steps, groups=groups, delivery_limit_action="park-group" if groups else "block")
    assert said["stop_kept"] == ("violated" if wrong else "held", wrong)


@pytest.mark.parametrize(("steps", "wrong"), [
    ([token(1, ONE, 5), again(1), acked(1), token(2, OTHER, 6), out(2, OTHER)], []),
    ([token(1, ONE, 5), again(1), token(2, OTHER, 6), out(2, OTHER), acked(1)], [1]),
    ([token(1, ONE, 5), again(1), back(1), token(1, OTHER, 6), again(1, OTHER), acked(1, ONE)], [1]),
], ids=["rising", "a former owner", "its former owner"])
def test_tokens_fence_since_a_replay(tmp_path, steps, wrong):
    before = [token(1, ONE, 4), out(1), acked(1), (1, EVENT_REPLAYED, 0)]
    assert judged_kept(tmp_path, [*before, *steps], groups=GROUPS)["token_kept"] == (
        "violated" if wrong else "held", wrong)

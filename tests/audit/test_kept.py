"""Tokens, deduplication keys and replays: files as a broker leaves them, and with one fact out of place."""

import numpy as np
import plant
import pytest
import writer
from test_waits import GROUPS, ONE, OTHER, STEP, T, acked, back, meta, out

from brokerd.audit import kept
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.spark import by_arrays
from brokerd.store.format import (
    ACKED,
    DELIVERED,
    DROPPED,
    EVENT_REPLAYED,
    PURGED,
    REASON_REMOVED,
    REPLAY_EVENT,
    REPLAYED,
    RESTARTED,
    STARTED,
    TOKEN_EVENT,
)

KEYS = {"size": 100, "ttl_ms": 1000, "scope": "", "action": "ack", "content": False}
HELD = ("held", [])


def judged(root, steps=(), *, keys="aaaa", hashes=None, flags=None, times=None, segment=2, gone=None,
           **settings):
    """``steps``: (seq, type, consumer[, reason[, aux]]), ten ms apart; what is said: {audit: (verdict, messages)}"""
    rows = [(T + STEP * k, seq or T, type_, *(more[:1] or (0,)), consumer)
            for k, (seq, type_, consumer, *more) in enumerate(steps, 1)]
    happened = writer.events(rows)
    for k, (_, _, _, *more) in enumerate(steps):
        happened["aux"][k] = more[1] if len(more) > 1 else 0
    messages = writer.messages(range(1, len(keys) + 1), times or range(T - 100, T - 100 + len(keys)))
    if hashes:
        messages["dedup_hash"] = hashes
        messages["flags"] |= np.array(flags or 0, np.uint16)
    level = writer.Level(messages, happened, metas=[meta(key) for key in keys])
    path = str(writer.write_queue(root, level, writer.Options(segment_messages=segment, settings=settings)))
    if gone is not None:
        story = plant.Story(f"{path}/vhost/queue")
        story.parts[0].cut(gone - 1)
        story.save()
    options = Options(audits=frozenset(kept.AUDITS))
    (one,) = audit(open_source(path), options)
    assert by_arrays.rows(path, options, None) == one.audits
    return {row["audit"]: (row["verdict"], sorted({f["seq"] for f in one.findings if f["audit"] == row["audit"]}))
            for row in one.audits}


def token(seq, consumer, number):
    return seq, TOKEN_EVENT, consumer, number >> 48, number & 0xFFFFFFFF


@pytest.mark.parametrize(("steps", "wrong"), [
    ([token(1, ONE, 5), out(1), acked(1), token(2, OTHER, 6), out(2, OTHER), acked(2, OTHER)], []),
    ([token(1, ONE, 5), out(1), acked(1), token(2, OTHER, 5), out(2, OTHER)], [2]),
    ([token(1, ONE, 5), out(1), token(2, OTHER, 6), out(2, OTHER), acked(1)], [1]),
    ([token(1, ONE, 5), out(1), back(1), token(1, OTHER, 6), out(1, OTHER), acked(1, OTHER)], []),
    ([token(1, ONE, 5), out(1), back(1), token(1, OTHER, 6), out(1, OTHER), acked(1, ONE)], [1]),
    ([token(1, ONE, 5), out(1), acked(1), out(2, 13), acked(2, 13)], []),          # Another consumer was told none.
    ([token(1, ONE, 7), out(1), token(4, OTHER, 3), out(4, OTHER), acked(4, OTHER), acked(1)], []),
], ids=["rising", "not rising", "an old owner", "a new owner", "late", "not told", "another group"])
def test_tokens_rise_and_fence(tmp_path, steps, wrong):
    assert judged(tmp_path, steps, keys="aaab", groups=GROUPS)["token_kept"] == (
        "violated" if wrong else "held", wrong)


SECOND = 1_000_000_000


@pytest.mark.parametrize(("hashes", "times", "keys", "wrong"), [
    ([1, 2, 3, 4], [0, 1, 2, 3], {}, []),
    ([7, 2, 7, 4], [0, 100, 200, 300], {}, [3]),
    ([7, 2, 7, 4], [0, 100, 1000, 1100], {}, []),
    ([7, 2, 7, 4], [0, 100, 2000, 2100], {"ttl_ms": None}, [3]),
    ([7, 2, 7, 4], [0, 100, 200, 300], {"size": 2}, []),
    ([7, 7, 3, 7], [0, 100, 200, 300], {}, [2, 4]),
    ([7, 0, 0, 7], [0, 100, 200, 300], {}, [4]),
], ids=["all new", "twice", "time is over", "for ever", "too many between", "three times", "far apart"])
def test_no_key_is_accepted_twice_within_its_window(tmp_path, hashes, times, keys, wrong):
    said = judged(tmp_path, hashes=hashes, times=[T + 1_000_000 * ms for ms in times], deduplication=KEYS | keys)
    assert said["dedup_kept"] == ("violated" if wrong else "held", wrong)


@pytest.mark.parametrize("acked_first", [False, True])
def test_while_a_message_waits_its_key_counts(tmp_path, acked_first):
    steps = [out(1), acked(1)] if acked_first else []
    times = [T, T + 1, T + STEP * 5, T + STEP * 6]
    said = judged(tmp_path, steps, hashes=[7, 2, 7, 4], times=times, deduplication=KEYS | {"scope": "waiting"})
    assert said["dedup_kept"] == (HELD if acked_first else ("violated", [3]))


def test_keys_of_exchanges_and_with_a_time_of_their_own_accuse_nobody(tmp_path):
    assert judged(tmp_path / "a", hashes=[7, 7, 7, 7], flags=4, deduplication=KEYS)["dedup_kept"] == HELD
    assert judged(tmp_path / "b", hashes=[7, 7, 7, 7], flags=8, deduplication=KEYS)["dedup_kept"][0] == "undecidable"
    replaces = judged(tmp_path / "c", hashes=[7, 7, 7, 7], deduplication=KEYS | {"action": "replace"})
    assert "dedup_kept" not in replaces


def again(seq):
    return seq, EVENT_REPLAYED, 0


def replays(*seqs):
    """The entry and the event of each."""
    return [step for seq in seqs for step in ((seq, REPLAYED, 0), again(seq))]


def at_step(step):
    """Just before the event of that step."""
    return T + STEP * step - 1


FIRST = [out(1), acked(1), out(2), acked(2)]        # steps 1 to 4
WAITS = KEYS | {"scope": "waiting", "ttl_ms": None}


@pytest.mark.parametrize(("steps", "hashes", "third", "keys", "wrong"), [
    ([*FIRST, *replays(1)], [7, 2, 7, 4], 8, {}, [3]),
    ([*FIRST, *replays(1)], [7, 2, 7, 4], 4, {}, []),
    ([*FIRST, *replays(1), out(1), acked(1)], [7, 2, 7, 4], 10, {}, []),
    ([*FIRST, *replays(1), out(1), acked(1)], [7, 2, 7, 4], 7, {}, [3]),
    ([*FIRST, *replays(1), out(1), acked(1), *replays(1)], [7, 2, 7, 4], 12, {}, [3]),
    ([*FIRST, *replays(1), out(1), acked(1), *replays(1)], [7, 2, 7, 4], 8, {}, []),
    ([*FIRST, *replays(1)], [7, 2, 3, 4], 8, {}, []),
    ([*FIRST, *replays(1)], [7, 2, 7, 4], 8, {"scope": "queue", "size": 2}, []),
    ([*FIRST, *replays(1)], [7, 2, 7, 4], 8, {"size": 5}, []),
    ([*FIRST, *replays(1)], [7, 2, 7, 4], 8, {"ttl_ms": 93}, [3]),
    ([*FIRST, *replays(1)], [7, 2, 7, 4], 8, {"ttl_ms": 91}, []),
    ([*FIRST, *replays(1, 2), out(2), acked(2)], [7, 7, 7, 4], 11, {}, []),
    ([*FIRST, *replays(1, 2)], [7, 7, 7, 4], 11, {}, [3]),
    ([*FIRST, *replays(2), out(2), acked(2), *replays(1)], [7, 7, 7, 4], 11, {}, [3]),
    ([out(1), acked(1), out(2), *replays(1), acked(2)], [7, 7, 7, 4], 11, {}, []),
], ids=["again", "before it", "ended again", "before it ended", "a second time", "between two lives", "another key",
        "by number", "too many", "within its time", "its time is over", "a newer one had the key",
        "the newer one waits", "a newer one had it before", "a newer one was out at the replay"])
def test_the_key_of_a_replayed_message_counts_while_it_waits(tmp_path, steps, hashes, third, keys, wrong):
    """The third message comes behind a step, the second one behind the first one's first end."""
    times = [T, at_step(2) + 2, at_step(third + 1), at_step(third + 1) + 1]
    said = judged(tmp_path, steps, hashes=hashes, times=times, deduplication=WAITS | keys)
    assert said["dedup_kept"] == ("violated" if wrong else "held", wrong)


def test_where_a_record_is_gone_that_may_have_had_the_key_a_replayed_message_accuses_nobody(tmp_path):
    times = [T, at_step(2) + 2, at_step(9), at_step(9) + 1]
    for name, gone in (("there", False), ("gone", True)):
        said = judged(tmp_path / name, [*FIRST, *replays(1)], hashes=[7, 2, 7, 4], times=times, segment=4,
                      deduplication=WAITS, gone=2 if gone else None)
        assert said["dedup_kept"] == (HELD if gone else ("violated", [3]))


def test_beside_keys_with_a_time_of_their_own_replayed_ones_accuse_nobody(tmp_path):
    times = [T, at_step(2) + 2, at_step(9), at_step(9) + 1]
    said = judged(tmp_path, [*FIRST, *replays(1)], hashes=[7, 2, 7, 4], flags=[0, 8, 0, 0], times=times,
                  deduplication=WAITS)
    assert said["dedup_kept"] == ("undecidable", [])


def said(seq, count):
    return seq, REPLAY_EVENT, 0, 0, count


DONE = [out(1), acked(1), out(2), acked(2)]


@pytest.mark.parametrize(("steps", "wrong"), [
    ([*DONE, again(1), again(2), said(2, 2), out(1), acked(1)], []),
    ([*DONE, again(1), said(2, 2)], [2]),
    ([*DONE, again(1), again(2), said(2, 1)], [2]),
    ([*DONE, again(1), said(1, 1), again(2), said(2, 1)], []),
    ([out(1), acked(1), again(1), again(2), out(2), said(2, 2)], []),               # 2 has no event before.
    ([out(1), acked(1), out(2), again(1), again(2), said(2, 2)], [2]),
    ([out(1), acked(1), (2, PURGED, 0), again(1), again(2), said(2, 2)], [2]),
    ([out(1), acked(1), (2, DROPPED, 0, REASON_REMOVED), again(1), again(2), said(2, 2)], [2]),
    ([*DONE, again(1), (0, STARTED, 0, RESTARTED), again(2), said(2, 1)], []),      # kill -9 came between.
    ([*DONE, again(1), said(1, 1), again(1), said(1, 1)], [1]),
], ids=["exact", "one too few", "one too many", "two replays", "not known", "not settled", "purged", "removed",
        "killed", "twice"])
def test_a_replay_is_exact(tmp_path, steps, wrong):
    assert judged(tmp_path, steps)["replay_exact"] == ("violated" if wrong else "held", wrong)


def test_without_replays_there_is_no_such_verdict(tmp_path):
    assert "replay_exact" not in judged(tmp_path, [(1, DELIVERED, ONE), (1, ACKED, ONE)])

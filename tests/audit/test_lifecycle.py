"""One row for each message: what became of it."""

import numpy as np
import pytest
import writer

from brokerd.audit.files import open_source
from brokerd.audit.lifecycle import lifecycle, lives
from brokerd.audit.segment import read_triple
from brokerd.store import format as layout

T = 1_700_000_000_000_000_000
D, R, A = layout.DELIVERED, layout.RETURNED, layout.ACKED


def read(tmp_path, rows, count=3, seqs=None, **options):
    level = writer.Level(writer.messages(seqs or range(1, count + 1), [T + k for k in range(count)]),
                         writer.events([(T + 100 + at, *rest) for at, *rest in rows]))
    source = open_source(writer.write_queue(tmp_path / "data", level, writer.Options(**options)))
    (queue,) = source.queues()
    return read_triple(source, queue.triples[0])


def test_a_life_with_all_that_can_happen(tmp_path):
    happened = [(1, 1, D), (2, 1, R, 1), (3, 1, D, 1), (4, 1, layout.DEAD_LETTERED, 4), (5, 2, D)]
    rows = lifecycle(read(tmp_path, happened))
    assert rows["ended"].tolist() == ["dead-lettered", "unacked", "ready"]
    assert rows["reason"].tolist() == ["delivery_limit", "", ""]
    assert rows["first_delivered"].tolist() == [T + 101, T + 105, 0]
    assert rows["last_delivered"].tolist() == [T + 103, T + 105, 0]
    assert rows["settled"].tolist() == [T + 104, 0, 0]
    assert (rows["deliveries"].tolist(), rows["returns"].tolist()) == ([2, 1, 0], [1, 0, 0])
    assert rows["covered"].all()
    assert rows["body_octets"].tolist() == [100] * 3


def test_without_a_journal_the_acks_tell_the_end_and_no_times(tmp_path):
    rows = lifecycle(read(tmp_path, [(1, 1, R, 1), (4, 1, layout.DEAD_LETTERED, 4), (5, 2, A)], journal=False))
    assert rows["ended"].tolist() == ["dead-lettered", "acked", "ready"]
    assert rows["reason"].tolist() == ["delivery_limit", "", ""]
    assert rows["returns"].tolist() == [1, 0, 0]
    assert not rows["settled"].any()
    assert not rows["covered"].any()


def test_without_a_journal_the_last_entry_tells_who_is_out(tmp_path):
    aside = layout.SET_ASIDE
    rows = [(1, 1, D), (2, 1, R, 1), (3, 1, D, 1, 1, 1),        # out again
            (4, 2, D), (5, 2, R, 1, 1, 1),                      # back, and ready
            (6, 3, aside), (7, 4, aside), (8, 4, D, 1),         # never out; out after it was aside
            (9, 5, D), (10, 5, R, 1, 1, 1), (11, 5, aside, 1, 1, 1),
            (12, 6, D), (13, 7, D), (14, 7, D, 1), (15, 7, A)]  # out, and told by the cursor alone; acked
    told = lifecycle(read(tmp_path, rows, count=8, journal=False))
    assert told["ended"].tolist() == ["unacked", "ready", "ready", "unacked", "ready", "unacked", "acked", "ready"]
    assert told["returns"].tolist() == [1, 1, 0, 0, 1, 0, 0, 0]


def test_hand_outs_and_what_is_set_aside_are_no_settlements(tmp_path):
    rows = [(1, 1, layout.SET_ASIDE), (2, 1, D, 1), (3, 1, R, 1), (4, 1, D, 1), (5, 1, A), (6, 2, D), (7, 2, D, 1)]
    for journal in (True, False):
        data = read(tmp_path / str(journal), rows, journal=journal)
        assert lives(data).settlements.tolist() == [1, 0, 0]
        assert data.damage == []


def test_messages_from_before_the_journal_are_not_covered(tmp_path):
    assert lives(read(tmp_path, [(1, 1, A)], begun=T + 1)).covered.tolist() == [False, False, True]


@pytest.mark.parametrize(("reason", "covered"), [(1, [True] * 3), (2, [True, False, False]), (3, [True, False, False])])
def test_a_gap_spoils_only_the_lives_that_it_touches(tmp_path, reason, covered):
    data = read(tmp_path, [(1, 1, D), (2, 1, A), (3, 2, D), (9, T + 105, layout.STARTED, reason), (10, 2, A)])
    assert lives(data).covered.tolist() == covered


def test_a_message_that_came_again_after_a_power_cut_took_its_ack_is_not_covered(tmp_path):
    cut = (9, T + 105, layout.STARTED, layout.POWER_LOST)
    data = read(tmp_path, [(1, 1, D), (2, 1, A), (3, 2, D), (4, 2, A), cut, (10, 1, D, 5), (11, 1, R, 1), (12, 1, D, 1),
                           (13, 1, A)])
    assert lives(data).covered.tolist() == [False, True, False]


def test_what_was_out_at_a_start_is_out_no_more(tmp_path):
    data = read(tmp_path, [(1, 1, D), (2, 2, D), (5, T, layout.STARTED, 1), (6, 2, D, 5)])
    assert lives(data).out.tolist() == [False, True, False]
    assert lives(data).run.tolist() == [0, 0, 1]


def test_what_compaction_took_is_known_by_its_events(tmp_path):
    data = read(tmp_path, [(1, 1, D), (2, 1, A), (3, 2, D), (4, 2, A), (5, 3, D)], generation=1)
    keep = np.array([False, False, True])
    data = data._replace(headers=data.headers[keep], positions=data.positions[keep], sound=data.sound[keep])
    life = lives(data)
    assert life.seq.tolist() == [1, 2, 3]
    assert life.covered.all()
    assert not life.orphans.size
    assert lifecycle(data)["seq"].tolist() == [3]


def test_events_of_messages_that_are_not_there_are_orphans(tmp_path):
    data = read(tmp_path, [(1, 1, D), (2, 9, D)], seqs=(1, 3, 5))
    life = lives(data)
    assert data.events["seq"][life.orphans].tolist() == [9]

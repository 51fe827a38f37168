"""How often a message may be handed out: each return is a failure, and so is each start that finds it out."""

import pytest
import writer

from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.store import format as layout

T = 1_700_000_000_000_000_000
D, R, A, S = layout.DELIVERED, layout.RETURNED, layout.ACKED, layout.STARTED


def judged(tmp_path, *kinds, limit=2, reason=layout.RESTARTED, **options):
    """The audits of a queue with one message, with these events a second apart: D, R, A, S or (type, reason)."""
    rows = []
    for k, kind in enumerate(kinds):
        kind, why = kind if isinstance(kind, tuple) else (kind, layout.CAUSE_NACK if kind == R else 0)
        ts = T + 10 ** 9 * (k + 1)
        if kind == D:
            why = layout.REDELIVERED if D in [row[2] for row in rows] else 0
        rows.append((ts, ts - 1, S, reason, 0, 0) if kind == S else (ts, 1, kind, why, 1, 0))
    level = writer.Level(writer.messages([1], [T]), writer.events(rows))
    root = writer.write_queue(tmp_path / "data", level, writer.Options(
        settings={"delivery_limit": limit, "dead_letter_exchange": "dead"}))
    (one,) = audit(open_source(root), Options(**options))
    return {row["audit"]: (row["verdict"], row["found"]) for row in one.audits}


def test_a_start_is_a_failure_of_the_delivery_that_it_found_out(tmp_path):
    # Two kills and a return: three failures, with a limit of two.
    said = judged(tmp_path, D, S, D, S, D, R, D, S, D, A)
    assert (said["delivery_limit"], said["limit_kept"]) == (("violated", 1), ("violated", 1))


def test_a_message_that_dies_of_its_failures_is_right(tmp_path):
    said = judged(tmp_path, D, S, D, S, D, R, (layout.DEAD_LETTERED, layout.REASON_LIMIT))
    assert (said["delivery_limit"], said["limit_kept"]) == (("held", 0), ("held", 0))


def test_one_failure_that_a_kill_kept_from_being_counted_is_a_doubt(tmp_path):
    said = judged(tmp_path, D, R, D, S, D, R, D, A)
    assert (said["delivery_limit"], said["limit_kept"]) == (("undecidable", 0), ("undecidable", 0))


def test_returns_alone_are_never_in_doubt(tmp_path):
    said = judged(tmp_path, D, R, D, R, D, R, D, A)
    assert (said["delivery_limit"], said["limit_kept"]) == (("violated", 1), ("violated", 1))


def test_a_loss_of_power_may_take_the_count(tmp_path):
    said = judged(tmp_path, D, R, D, R, D, S, D, R, D, A, reason=layout.POWER_LOST)
    assert said["delivery_limit"] == ("undecidable", 0)


@pytest.mark.parametrize(("kinds", "found"), [((D, R, D, R, D, R), 1), ((D, R, D, R, D, S), 0)])
def test_what_failed_at_a_start_dies_when_its_turn_comes_and_not_before(tmp_path, kinds, found):
    rows = judged(tmp_path, *kinds, unacked_after_s=-1)     # So its last delivery is long ago.
    assert rows["limit_kept"][1] == found

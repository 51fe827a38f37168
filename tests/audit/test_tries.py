"""The times of next tries, by the journal and by the acks."""

import numpy as np
import plant
import pytest
import writer

from brokerd.audit import tries
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.store import format as layout
from brokerd.store.format import (
    ACKED,
    BEFORE_START,
    DELIVERED,
    PARKED_EVENT,
    REDELIVERED,
    RESTARTED,
    RETRY_SCHEDULED,
    RETURNED,
    STARTED,
)

T = 1_780_000_000_000_000_000
MS = 1_000_000
DELAY = 50


def judged(tmp_path, rows, told, delays, **files):
    """``rows``: (ms, seq, type[, reason]) of a queue with one segment of three messages.  ``told``: of each entry of a
    return, in their order, the ms at which the acks have the next try; None: not at all.  ``delays``: of each event.
    The verdict and the number of findings of retry_kept."""
    happened = writer.events([(T + round(at * MS), seq or T + round(at * MS), type_, *(more or (0,)),
                               11 if seq else 0) for at, seq, type_, *more in rows])
    happened["aux"][happened["type"] == RETRY_SCHEDULED] = delays
    level = writer.Level(writer.messages([1, 2, 3], [T - 3, T - 2, T - 1]), happened)
    root = writer.write_queue(tmp_path / "data", level, writer.Options(settings={"retry": True}, **files))
    story = plant.Story(f"{root}/vhost/queue")
    (part,), left, made = story.parts, list(told), []
    for entry in part.entries:
        at = left.pop(0) if int(entry["kind"]) & 15 == RETURNED else None
        for k in range(layout.RETRY_PARTS if at is not None else 0):
            made.append(entry.copy())
            made[-1]["kind"], made[-1]["count"] = layout.RETRY_TIME | k << 4, T // MS + at >> 16 * k & 0xFFFF
        made.append(entry)
    part.entries = np.array(made, part.entries.dtype)
    part.changed.add("acks")
    story.save()
    return said(root)


def said(root):
    (one,) = audit(open_source(str(root)), Options(audits=frozenset({"retry_kept"})))
    (row,) = one.audits
    return row["verdict"], row["found"]


BACK = [(10, 1, DELIVERED), (20, 1, RETURNED, 1), (20.5, 1, RETRY_SCHEDULED)]
AGAIN = [(90, 1, DELIVERED, REDELIVERED), (91, 1, ACKED)]
RESTART = [(60, 0, STARTED, RESTARTED), (90, 1, DELIVERED, REDELIVERED | BEFORE_START), (91, 1, ACKED)]


@pytest.mark.parametrize("again", [AGAIN, RESTART], ids=["one life", "last before a start"])
@pytest.mark.parametrize(("told", "delay", "found"), [
    (70, DELAY, 0), (72, DELAY, 0), (73, DELAY, 1), (68, DELAY, 1), (70, DELAY - 5, 1), (70, 0, 1),
    (None, DELAY, 0), (70, tries.DELAY_MOST, 0)])
def test_a_next_try_at_another_time_by_the_acks_is_found(tmp_path, again, told, delay, found):
    if delay == tries.DELAY_MOST:               # So long or longer: nothing went out meanwhile.
        again = again[:-2]
    assert judged(tmp_path, BACK + again, [told], [delay]) == ("violated" if found else "held", found)


def test_a_try_that_the_acks_knew_before_a_kill_was_kept_by_the_next_life(tmp_path):
    early = [(30, 0, STARTED, RESTARTED), (40, 1, DELIVERED, REDELIVERED | BEFORE_START)]
    assert judged(tmp_path / "known", BACK + early, [70], [DELAY]) == ("violated", 1)
    assert judged(tmp_path / "not known", BACK + early, [None], [DELAY]) == ("held", 0)


def test_a_later_time_by_the_journal_may_be_a_clock_that_was_put_back(tmp_path):
    """Then each event is one ns later than the one before; the return comes first."""
    ns = 1 / MS
    back = [(10, 1, DELIVERED), (20, 1, RETURNED, 1), (20 + ns, 1, RETRY_SCHEDULED)]
    chained = [(10, 1, DELIVERED), (10 + ns, 1, RETURNED, 1), (10 + 2 * ns, 1, RETRY_SCHEDULED)]
    assert judged(tmp_path / "alone", back + AGAIN, [60], [DELAY]) == ("violated", 1)
    assert judged(tmp_path / "chained", chained + AGAIN, [50], [DELAY]) == ("undecidable", 0)
    assert judged(tmp_path / "later", chained + AGAIN, [70], [DELAY]) == ("violated", 1)


TWICE = [*BACK, (80, 1, DELIVERED, REDELIVERED), (81, 1, RETURNED, 1), (81.1, 1, RETRY_SCHEDULED),
         (150, 1, DELIVERED, REDELIVERED), (151, 1, ACKED)]


@pytest.mark.parametrize(("told", "delays", "found"), [
    ([70, 131], [50, 50], 0), ([70, 131], [50, 40], 1), ([70, 131], [40, 40], 2), ([None, 131], [50, 50], 0),
    ([None, 131], [50, 60], 0)])
def test_the_times_of_several_tries_are_compared_in_their_order_where_the_acks_have_all(tmp_path, told, delays, found):
    """They may lack some, on a full disk or behind a compaction; then only equal ones are known to belong together."""
    assert judged(tmp_path, TWICE, told, delays) == ("violated" if found else "held", found)


def test_while_a_broker_may_be_at_work_a_time_that_a_kill_had_cut_off_is_not_compared_with_a_later_one(tmp_path):
    """The first try lacks its entries.  The entries of the second one are there, its event is later than the cut."""
    rows = [*BACK, (60, 0, STARTED, RESTARTED), (90, 1, DELIVERED, REDELIVERED | BEFORE_START),
            (91, 1, RETURNED, 1)]
    assert judged(tmp_path, rows, [None, 150], [DELAY]) == ("violated", 1)      # Stopped: its event is missing.
    (tmp_path / "data" / layout.RUNNING_FILE).write_text("boot whole\n")
    assert said(tmp_path / "data") == ("held", 0)


def test_three_parts_tell_a_time_and_two_do_not():
    dtype = np.dtype([("position", "<u4"), ("kind", "u1"), ("check", "u1"), ("count", "<u2")])
    kinds = [layout.RETRY_TIME | k << 4 for k in range(3)]
    entries = np.array([(64, kind, 0, count) for kind, count in zip(
        [*kinds, RETURNED, *kinds[1:], RETURNED, *kinds, PARKED_EVENT % 16, RETURNED], [3, 2, 1, 0, *[9] * 8],
        strict=True)], dtype)
    told = tries.told_by_acks(entries, np.zeros(entries.size, np.int64))
    assert (told.row.tolist(), told.due.tolist()) == ([0], [(3 + (2 << 16) + (1 << 32)) * MS])
    apart = np.array([0, 0, 0, 1, *[1] * 8])
    assert tries.told_by_acks(entries, apart).row.size == 0

"""Each promise about the deliveries of a message: a broken one is found, where it is and nowhere else."""

import faulty
import numpy as np
import pytest
import writer

from brokerd.audit import deliveries
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.store import format as layout

STORIES = faulty.stories()
HELD = ("held", "covers nothing")     # the latter only of the audit chain


def judged(root, **options):
    (one,) = audit(open_source(str(root)), Options(**options))
    # Their dead letters go to an exchange of which the files know nothing.
    return one, {row["audit"]: row for row in one.audits if row["audit"] != "dead_letters"}


@pytest.mark.parametrize("segment", [4, 1000])
def test_of_sound_lives_every_audit_holds(tmp_path, segment):
    one, rows = judged(faulty.Story("", [*faulty.SOUND] * 3, []).write(tmp_path / "data", segment=segment))
    assert {name: row["verdict"] for name, row in rows.items() if row["verdict"] not in HELD} == {}
    assert one.findings == []
    assert [name for name in deliveries.AUDITS if not rows[name]["checked"]] == []


@pytest.mark.parametrize("segment", [4, 1000])
@pytest.mark.parametrize("name", STORIES)
def test_a_broken_promise_is_found_by_its_audit_and_by_no_other(tmp_path, name, segment):
    story = STORIES[name]
    one, rows = judged(story.write(tmp_path / "data", segment=segment))
    row = rows[story.audit]
    assert (row["verdict"], row["found"]) == ("violated", len(story.seqs)), row
    assert sorted({row["seq"] for row in one.findings if row["audit"] == story.audit}) == story.seqs
    others = {key: (row["verdict"], row["found"]) for key, row in rows.items()
              if key != story.audit and row["verdict"] not in HELD}
    assert others == {}


def test_what_a_broker_leaves_that_is_killed_in_a_hand_out_is_no_fault(tmp_path):
    story = faulty.Story("", [*faulty.SOUND, *faulty.KILLED, *faulty.SOUND], [])
    _, rows = judged(story.write(tmp_path / "data"))
    assert {rows[name]["verdict"] for name in deliveries.AUDITS} == {"held"}


@pytest.mark.parametrize(("before", "found"), [
    ([], 0), ([(layout.SET_ASIDE, 0, 0)], 1), ([(layout.SET_ASIDE, layout.WAS_OUT, 1)], 0)],
    ids=["by the cursor", "after it was set aside", "after it was out"])
@pytest.mark.parametrize("end", [[(layout.DROPPED, 5, 1, 0)], [(layout.DELIVERED, faulty.AFTER_START, 1),
                                                               (layout.ACKED, 0, 1)]], ids=["removed", "delivered"])
def test_a_hand_out_without_an_event_is_believed_of_the_cursor_alone(tmp_path, before, found, end):
    """kill -9 may come between the move of the cursor and the event; all other hand-outs have their event first."""
    passed = [(layout.DELIVERED, 0, 0), (layout.ACKED, 0, 0)]
    story = faulty.Story("", [[*before, faulty.CUT, *end], passed], [])
    _, rows = judged(story.write(tmp_path / "data"))
    assert rows["failure_counts"]["found"] == found
    delivered = end[0][0] == layout.DELIVERED
    assert rows["redelivered"]["found"] == (found if delivered else 0)


def test_what_the_cursor_has_not_passed_was_never_out(tmp_path):
    story = faulty.Story("", [*faulty.SOUND, [faulty.CUT, (layout.DROPPED, 5, 1, 0)]], [])
    _, rows = judged(story.write(tmp_path / "data"))
    assert (rows["failure_counts"]["verdict"], rows["failure_counts"]["found"]) == ("violated", 1)


def test_of_several_that_wait_at_a_start_the_first_alone_may_have_been_out(tmp_path):
    """All were published before a start and dropped behind it, then a later one goes out.  Each counts a failure."""
    start, ms = faulty.START, faulty.MS
    rows = [(start + 10 * ms, 1, layout.DELIVERED, 0, 7, 0), (start + 11 * ms, 1, layout.ACKED, 0, 7, 0),
            (start + 20 * ms, 0, layout.STARTED, layout.RESTARTED),
            *((start + (30 + seq) * ms, seq, layout.DROPPED, 3, 0, 1) for seq in (2, 3, 4)),
            (start + 40 * ms, 5, layout.DELIVERED, 0, 7, 0)]
    level = writer.Level(writer.messages(range(1, 6), [start + k for k in range(5)]), writer.events(rows))
    one, found = judged(writer.write_queue(tmp_path / "data", level))
    assert found["failure_counts"]["found"] == 2
    assert [row["seq"] for row in one.findings if row["audit"] == "failure_counts"] == [3, 4]


def test_without_the_whole_journal_nothing_is_held_and_an_unmarked_redelivery_is_found_still(tmp_path):
    level = writer.simple_level(40)
    late = writer.Options(begun=int(level.messages["ts"][20]))
    _, rows = judged(writer.write_queue(tmp_path / "late", level, late))
    assert {rows[name]["verdict"] for name in deliveries.AUDITS} == {"undecidable"}
    at, seq = int(level.events["ts"][-1]), 3
    level.events = np.concatenate((level.events[:-2], writer.events([(at, seq, layout.DELIVERED)])))
    _, rows = judged(writer.write_queue(tmp_path / "again", level, late))
    assert (rows["redelivered"]["verdict"], rows["redelivered"]["found"]) == ("violated", 1)


@pytest.mark.parametrize(("lines", "found"), [
    ([], 3), ([(1, 9)], 0), ([(9, 1)], 3), ([(1, 1), (9, 9)], 0), ([(1, 3), (3, 3), (9, 4)], 3)])
def test_the_times_to_live_that_count_are_those_in_force_and_the_next(tmp_path, lines, found):
    """Three messages go out 5 s after their publish; a line (second, time to live in seconds) is a change of policy."""
    second = 10 ** 9
    rows = [(faulty.START + 5 * second + k, k + 1, layout.DELIVERED) for k in range(3)]
    level = writer.Level(writer.messages((1, 2, 3), [faulty.START + k for k in range(3)]), writer.events(rows))
    log = [{"at": faulty.START + at * second, "what": "settings", "journal": True, "message_ttl_ms": ttl * 1000}
           for at, ttl in lines]
    options = writer.Options(settings={"message_ttl_ms": 2000}, log=log)
    _, made = judged(writer.write_queue(tmp_path / "data", level, options))
    assert made["late_delivery"]["found"] == found


def test_a_message_has_its_own_time_to_live(tmp_path):
    own = [None, b"20", b"2000", b"no number", b"1" * 30]
    metas = [b"\x00\x01q\x00\x00" if ms is None else b"\x00\x01q\x01\x00" + bytes([len(ms)]) + ms for ms in own]
    made = writer.messages(range(1, 6), [faulty.START + k for k in range(5)])
    made["flags"] |= np.array([0 if ms is None else deliveries.EXPIRES for ms in own], np.uint16)
    rows = [(faulty.START + 10 ** 9 + k, k + 1, layout.DELIVERED) for k in range(5)]
    one, found = judged(writer.write_queue(tmp_path / "data", writer.Level(made, writer.events(rows), metas=metas)))
    assert (found["late_delivery"]["found"], found["late_delivery"]["checked"]) == (1, 2)
    (told,) = (row for row in one.findings if row["audit"] == "late_delivery")
    assert (told["seq"], told["detail"]) == (2, "handed out 1000 ms after its publish, with a time to live of 20 ms")

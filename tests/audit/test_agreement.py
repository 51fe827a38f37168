"""Acks and journal are held against each other; what a kill or a loss of power leaves is a doubt."""

import numpy as np
import pytest
import writer
from tests.audit import plant

from brokerd.audit.agreement import HAND_OUTS, NUMBER, ORDER, RETOLD, compare
from brokerd.audit.files import open_source
from brokerd.audit.lifecycle import lives
from brokerd.audit.segment import read_triple
from brokerd.audit.verdicts import audit
from brokerd.store import format as layout

T = 1_700_000_000_000_000_000
STEP = 4000     # ns from one message to the next


def story_of(tmp_path, *, starts=(), more=(), count=60, **options):
    """Messages that were delivered and acked in turn, in one segment, with starts of the broker ``(ts, reason)``."""
    level = writer.simple_level(count, start=T)
    rows = [(int(e["ts"]), int(e["seq"]), int(e["type"]), int(e["reason"]), 1, 0) for e in level.events]
    rows += [(ts, ts - 1, layout.STARTED, reason, 0, 0) for ts, reason in starts]
    level = writer.Level(level.messages, writer.events([*rows, *more]))
    root = writer.write_queue(tmp_path / "data", level, writer.Options(**options))
    return plant.Story(f"{root}/vhost/queue")


def told(story, **replace):
    story.save()
    source = open_source(story.folder.rpartition("/vhost")[0])
    ((triple,),) = [queue.triples for queue in source.queues()]
    data = read_triple(source, triple._replace(**replace))
    life = lives(data)
    found = compare(data, life)
    return sorted((int(life.seq[k]), detail.format(a=x, b=y)) for detail, which, a, b in found.found
                  for k, x, y in zip(which, a, b, strict=True)), found.doubts, found.checked


def forget_event(story, seq, kind=layout.ACKED):
    which = (story.events["seq"] == seq) & (story.events["type"] == kind)
    story.remove(np.flatnonzero(which).tolist())


def forget_entry(story, seq):
    part, index = story.record(story.row(seq))
    part.forget(index)


def after(seq):
    """Between the last event of this message and the first thing of the next one."""
    return T + seq * STEP - 1000


def test_all_is_compared_and_nothing_differs(tmp_path):
    assert told(story_of(tmp_path)) == ([], 0, 60)


def test_a_settlement_of_which_one_file_does_not_know_is_found(tmp_path):
    story = story_of(tmp_path)
    forget_event(story, 20)
    forget_entry(story, 30)
    story.tell(story.row(40), layout.PURGED)
    number = "the acks settle it {} times, the journal {} times".format
    assert told(story)[0] == [(20, number(1, 0)), (30, number(0, 1)), (40, number(2, 1))]


@pytest.mark.parametrize("kind", [layout.REJECTED, layout.DROPPED | layout.REASON_LENGTH << 4])
def test_an_end_that_is_told_otherwise_is_found(tmp_path, kind):
    story = story_of(tmp_path)
    part, index = story.record(story.row(20))
    part.entries["kind"][part.entries["position"] == part.positions[index]] = kind
    part.changed.add("acks")
    assert told(story) == ([(20, "the acks say that it ended otherwise than the journal says")], 0, 60)


def test_returns_of_which_one_file_does_not_know_are_found(tmp_path):
    back = [(after(20) - 1500 + k, 20, kind, why) for k, (kind, why) in enumerate((
        (layout.RETURNED, layout.CAUSE_NACK), (layout.DELIVERED, layout.REDELIVERED)))]
    story = story_of(tmp_path, more=back)
    assert told(story)[0] == []
    story.tell(story.row(30), layout.RETURNED)
    part, index = story.record(story.row(20))
    own = (part.entries["position"] == part.positions[index]) & (part.entries["kind"] & 15 == layout.RETURNED)
    part.entries = part.entries[~own]
    returns = "the acks have {} returns of it, the journal {}".format
    assert told(story)[0] == [(20, returns(0, 1)), (30, returns(1, 0))]


def test_a_return_of_which_the_message_died_has_no_entry(tmp_path):
    rows = [(after(20) - 500, 20, layout.RETURNED, layout.CAUSE_NACK)]
    story = story_of(tmp_path, more=rows)
    place = int(np.flatnonzero((story.events["seq"] == 20) & (story.events["type"] == layout.ACKED))[0])
    story.events["type"][place], story.events["reason"][place] = layout.DROPPED, layout.REASON_LIMIT
    story.move(place, after(20) - 400)
    part, index = story.record(story.row(20))
    part.forget(index)
    story.tell(story.row(20), layout.DROPPED | layout.REASON_LIMIT << 4)
    assert told(story)[0] == []


def test_the_entry_that_a_kill_left_without_its_event_is_a_doubt_and_another_is_not(tmp_path):
    story = story_of(tmp_path, starts=[(after(20), layout.RESTARTED)])
    forget_event(story, 20)
    assert told(story) == ([], 1, 60)
    forget_event(story, 30)
    assert [seq for seq, _ in told(story)[0]] == [30]
    forget_event(story, 19)         # One kill cuts one message in two, and not both.
    found, doubts, _ = told(story)
    assert ([seq for seq, _ in found], doubts) == ([19, 20, 30], 0)


def test_a_return_that_a_kill_left_without_its_entry_is_a_doubt(tmp_path):
    story = story_of(tmp_path, starts=[(after(20) + 100, layout.RESTARTED)], more=[
        (after(20) + 200, 20, layout.DELIVERED, layout.REDELIVERED), (after(20) + 300, 20, layout.ACKED)])
    place = int(np.flatnonzero((story.events["seq"] == 20) & (story.events["type"] == layout.ACKED))[0])
    story.events["type"][place] = layout.RETURNED
    story.touch([place])
    part, index = story.record(story.row(20))
    part.forget(index)
    story.tell(story.row(20), layout.ACKED)
    story.tell(story.row(20), layout.HANDED_OUT)
    assert told(story) == ([], 1, 60)


def returned(tmp_path, seq=20, *, starts=(), then=layout.REDELIVERED):
    """A message came back once, and went out again."""
    back = [(after(seq) - 1500 + k, seq, kind, why, 1, 1) for k, (kind, why) in enumerate((
        (layout.RETURNED, layout.CAUSE_NACK), (layout.DELIVERED, then)))]
    return story_of(tmp_path, starts=starts, more=back)


def entries_of(story, seq, kind):
    """(part, the indices of entries of that type of a message)."""
    part, index = story.record(story.row(seq))
    part.changed.add("acks")
    return part, np.flatnonzero((part.entries["position"] == part.positions[index])
                                & (part.entries["kind"] & 15 == kind))


@pytest.mark.parametrize(("field", "value"), [("kind", layout.RETURNED | 6 << 4), ("count", 4)])
def test_a_return_that_is_told_with_another_cause_or_count_is_found(tmp_path, field, value):
    story = returned(tmp_path)
    part, which = entries_of(story, 20, layout.RETURNED)
    part.entries[field][which] = value
    assert told(story) == ([(20, RETOLD)], 0, 60)


def test_a_hand_out_without_its_entry_is_found_unless_it_was_without_acks(tmp_path):
    story = returned(tmp_path / "a")
    part, which = entries_of(story, 20, layout.HANDED_OUT)
    part.entries = np.delete(part.entries, which)
    assert told(story) == ([(20, HAND_OUTS.format(a=0, b=1))], 0, 60)
    story = returned(tmp_path / "b", then=layout.REDELIVERED | layout.WITHOUT_ACK)
    part, which = entries_of(story, 20, layout.HANDED_OUT)
    part.entries = np.delete(part.entries, which)
    assert told(story) == ([], 0, 60)


def test_an_entry_of_a_hand_out_that_the_journal_does_not_have_is_found(tmp_path):
    story = returned(tmp_path)
    part, which = entries_of(story, 20, layout.HANDED_OUT)
    part.entries = np.insert(part.entries, which[0], part.entries[which[0]])
    assert told(story) == ([(20, HAND_OUTS.format(a=2, b=1))], 0, 60)


def test_a_hand_out_that_a_kill_left_without_its_entry_is_a_doubt_and_an_earlier_one_is_not(tmp_path):
    rows = [(after(20) + 200, 20, layout.DELIVERED, layout.REDELIVERED | layout.BEFORE_START, 1, 1),
            (after(20) + 300, 20, layout.ACKED, 0, 1, 1)]
    for seq, is_last in ((20, True), (19, False)):
        start = [(after(20) + 100, layout.RESTARTED)]
        story = story_of(tmp_path / str(seq), starts=start, more=[
            (after(seq) - 1500, seq, layout.RETURNED, layout.CAUSE_NACK, 1, 1), *(rows if is_last else [])])
        place = int(np.flatnonzero((story.events["seq"] == seq) & (story.events["type"] == layout.ACKED))[0])
        story.events["type"][place], story.events["reason"][place] = layout.DELIVERED, layout.REDELIVERED
        story.events["count"][place] = 1
        story.touch([place])
        part, index = story.record(story.row(seq))
        part.forget(index)
        if is_last:
            story.tell(story.row(seq), layout.ACKED)
        returned_entry(story, seq)
        if is_last:
            later = returned_entry(story, seq)
            part.entries["kind"][later], part.entries["count"][later] = layout.HANDED_OUT, 1
        found, doubts, _ = told(story)
        assert ([each for each, _ in found], doubts) == (([], 1) if is_last else ([19], 0))


def put(story, seq, *places):
    """Put the entries of a message that stand at these places, of its own ones, in this order."""
    part, index = story.record(story.row(seq))
    own = np.flatnonzero(part.entries["position"] == part.positions[index])
    part.entries[own] = part.entries[own[list(places)]]
    part.changed.add("acks")


@pytest.mark.parametrize("places", [(1, 0, 2), (0, 2, 1), (2, 0, 1)])
def test_entries_of_a_message_in_another_order_than_its_events_are_found(tmp_path, places):
    """It came back, went out again, and was acked."""
    story = returned(tmp_path)
    assert told(story) == ([], 0, 60)
    put(story, 20, *places)
    assert told(story) == ([(20, ORDER)], 0, 60)


def test_a_loss_of_power_leaves_a_doubt_about_the_order_of_entries(tmp_path):
    story = returned(tmp_path, starts=[(after(30), layout.POWER_LOST)])
    put(story, 20, 1, 0, 2)
    assert told(story) == ([], 1, 60)


def test_entries_of_equal_counts_are_alike(tmp_path):
    """Failed deliveries are counted up to 65,535: then a return and the hand-out before it have one count."""
    most = 0xFFFF
    more = [(after(20) - 1500 + k, 20, kind, why, 1, most) for k, (kind, why) in enumerate((
        (layout.RETURNED, layout.CAUSE_NACK), (layout.DELIVERED, layout.REDELIVERED)) * 2)]
    story = story_of(tmp_path, more=more)
    assert told(story) == ([], 0, 60)
    put(story, 20, 0, 2, 1, 3, 4)
    assert told(story) == ([], 0, 60)


def is_out(tmp_path, aside, *, dead_letters=True, count=1, **options):
    """The last message came back and is out again; ``aside``: its last entry says that it was set aside, and failed
    ``count`` times."""
    settings = {"dead_letter_exchange": "dlx" if dead_letters else None}
    back = [(after(60) - 1500 + k, 60, kind, why, 1, 1) for k, (kind, why) in enumerate((
        (layout.RETURNED, layout.CAUSE_NACK), (layout.DELIVERED, layout.REDELIVERED)))]
    story = story_of(tmp_path, more=back, settings=settings, **options)
    forget_event(story, 60)
    part, which = entries_of(story, 60, layout.ACKED)
    part.entries["kind"][which], part.entries["count"][which] = layout.SET_ASIDE | layout.WAS_OUT << 4, count
    if not aside:
        part.entries = np.delete(part.entries, which)
    return story


def test_of_a_message_that_is_out_the_last_entry_is_a_hand_out(tmp_path):
    assert told(is_out(tmp_path / "a", False)) == ([], 0, 60)
    assert told(is_out(tmp_path / "b", True)) == ([(60, ORDER)], 0, 60)


def test_a_rejected_message_of_which_the_dead_letter_is_not_stored_yet_is_set_aside(tmp_path):
    """The journal says that it is out, until the letter is stored."""
    assert told(is_out(tmp_path / "a", True, count=2)) == ([], 0, 60)
    assert told(is_out(tmp_path / "b", True, count=2, dead_letters=False)) == ([(60, ORDER)], 0, 60)


def test_the_entry_of_the_last_hand_out_of_all_may_follow_while_a_broker_is_at_work(tmp_path):
    story = is_out(tmp_path, True)
    part, which = entries_of(story, 60, layout.HANDED_OUT)
    part.entries = np.delete(part.entries, which)
    assert told(story, cut=1 << 62) == ([], 1, 60)


def returned_entry(story, seq):
    """Add an entry of a return with the count one.  Its index."""
    story.tell(story.row(seq), layout.RETURNED | layout.CAUSE_NACK << 4)
    part, which = entries_of(story, seq, layout.RETURNED)
    which = which[part.entries["count"][which] == 0]
    part.entries["count"][which] = 1
    return which


def test_a_return_that_is_lost_is_not_excused_by_a_message_that_was_set_aside_and_died_of_its_limit(tmp_path):
    """The last return has an entry of type 10 in place of its own, and only that one."""
    rows = [(after(20) - 1500 + k, 20, kind, why, 1, count) for k, (kind, why, count) in enumerate((
        (layout.RETURNED, layout.CAUSE_NACK, 1), (layout.DELIVERED, layout.REDELIVERED, 1),
        (layout.RETURNED, layout.CAUSE_NACK, 2)))]
    for lost in (False, True):
        story = story_of(tmp_path / str(lost), more=rows)
        place = int(np.flatnonzero((story.events["seq"] == 20) & (story.events["type"] == layout.ACKED))[0])
        story.events["type"][place], story.events["reason"][place] = layout.DEAD_LETTERED, layout.REASON_LIMIT
        story.move(place, after(20) - 400)
        part, index = story.record(story.row(20))
        part.forget(index)
        for kind, count in ((layout.RETURNED | layout.CAUSE_NACK << 4, 1), (layout.HANDED_OUT, 1),
                            (layout.SET_ASIDE | layout.WAS_OUT << 4, 2),
                            (layout.DEAD_LETTERED | layout.REASON_LIMIT << 4, 2)):
            if not lost or kind & 15 != layout.RETURNED:
                entry = np.zeros(1, part.entries.dtype)
                entry["position"], entry["kind"], entry["count"] = part.positions[index], kind, count
                part.entries = np.append(part.entries, entry)
        assert [seq for seq, _ in told(story)[0]] == ([20] if lost else [])


def waits_at_its_limit(tmp_path, **options):
    """60 came back, and has only the entry of type 10 that is written in place of the one of its return."""
    story = story_of(tmp_path, more=[(after(60) - 1500, 60, layout.RETURNED, layout.CAUSE_NACK, 1, 1)], **options)
    forget_event(story, 60)
    forget_entry(story, 60)
    return story


def test_without_a_limit_no_entry_that_sets_aside_stands_for_a_return(tmp_path):
    story = waits_at_its_limit(tmp_path)
    story.tell(story.row(60), layout.SET_ASIDE | layout.WAS_OUT << 4)
    part, which = entries_of(story, 60, layout.SET_ASIDE)
    part.entries["count"][which] = 1
    assert [seq for seq, _ in told(story)[0]] == [60]


def test_a_first_hand_out_has_an_entry_only_behind_one_that_set_the_message_aside(tmp_path):
    for aside, found in ((False, [60]), (True, [])):
        story = story_of(tmp_path / str(aside))
        forget_event(story, 60)
        forget_entry(story, 60)
        story.tell(story.row(60), layout.HANDED_OUT)
        if aside:                           # It is written before the other one.
            story.tell(story.row(60), layout.SET_ASIDE)
        assert [seq for seq, _ in told(story)[0]] == found


def test_a_return_with_which_a_message_was_set_aside_needs_no_other_entry(tmp_path):
    story = waits_at_its_limit(tmp_path, settings={"delivery_limit": 1})
    assert [seq for seq, _ in told(story)[0]] == [60]
    story.tell(story.row(60), layout.SET_ASIDE | layout.WAS_OUT << 4)
    assert [seq for seq, _ in told(story)[0]] == [60]   # It has another count.
    part, which = entries_of(story, 60, layout.SET_ASIDE)
    part.entries["count"][which] = 1
    assert told(story) == ([], 0, 60)


def test_a_compaction_leaves_no_entry_of_an_earlier_return(tmp_path):
    assert told(waits_at_its_limit(tmp_path, generation=1)) == ([], 0, 60)


def test_the_last_event_of_all_is_a_doubt_while_a_broker_may_be_at_work(tmp_path):
    story = waits_at_its_limit(tmp_path)
    assert told(story, cut=1 << 62) == ([], 1, 60)
    assert [seq for seq, _ in told(story)[0]] == [60]


def test_a_kill_does_not_excuse_the_ack_of_a_message_that_no_client_had(tmp_path):
    """A purge takes what lies ready, and may well have been cut in two."""
    for kind in (layout.ACKED, layout.PURGED):
        story = story_of(tmp_path / str(kind), starts=[(after(60), layout.RESTARTED)])
        for event in (layout.DELIVERED, layout.ACKED):
            forget_event(story, 60, event)
        part, which = entries_of(story, 60, layout.ACKED)
        part.entries["kind"][which] = kind
        assert told(story) == (([(60, NUMBER.format(a=1, b=0))], 0, 60) if kind == layout.ACKED else ([], 1, 60))


def test_a_kill_does_not_excuse_the_ack_of_a_message_that_was_out_in_a_former_life(tmp_path):
    """The first start gave it back; so nobody could ack it before the second one."""
    story = story_of(tmp_path, starts=[(after(20), layout.RESTARTED), (after(30), layout.RESTARTED)])
    forget_event(story, 20)
    part, index = story.record(story.row(20))
    own = np.flatnonzero(part.entries["position"] == part.positions[index])
    behind = int(np.flatnonzero(part.entries["position"] == part.positions[story.record(story.row(30))[1]])[-1])
    entry = part.entries[own].copy()
    part.entries = np.insert(np.delete(part.entries, own), behind, entry)
    part.changed.add("acks")
    assert told(story) == ([(20, NUMBER.format(a=1, b=0))], 0, 60)


def test_the_last_entry_is_a_doubt_while_a_broker_may_be_at_work(tmp_path):
    story = story_of(tmp_path)
    forget_event(story, 60)
    assert told(story, cut=1 << 62) == ([], 1, 60)
    assert [seq for seq, _ in told(story)[0]] == [60]


def test_what_a_loss_of_power_took_of_one_file_is_a_doubt(tmp_path):
    story = story_of(tmp_path, starts=[(after(20), layout.POWER_LOST)])
    forget_event(story, 30)
    found, doubts, checked = told(story)
    assert (found, doubts) == ([], 1)
    assert checked > 30


def test_messages_of_which_there_are_neither_acks_nor_events_are_doubts(tmp_path):
    """A broker that is killed as it makes a segment may leave it without acks."""
    story = story_of(tmp_path, acks=False)
    story.remove(range(story.events.size))
    assert told(story) == ([], 60, 60)


def test_nothing_is_compared_without_a_journal_or_with_damaged_acks(tmp_path):
    assert told(story_of(tmp_path / "a", journal=False)) == ([], 0, 0)
    story = story_of(tmp_path / "b")
    plant.flip(f"{story.folder}/{layout.acks_name(1)}", 64)
    assert told(story) == ([], 0, 0)
    (judged,) = audit(open_source(story.folder.rpartition("/vhost")[0]))
    row = next(row for row in judged.audits if row["audit"] == "agreement")
    assert (row["verdict"], row["reason"]) == ("undecidable", "acks are missing or damaged")


BEHIND = "the journal has 1 deliveries of it, and the cursor of the acks stands before it"
AHEAD = "the cursor of the acks has passed it, and nothing else says that it went out"


def put_cursor(story, message):
    """The cursor has passed the messages up to this one."""
    part, index = story.record(story.row(message))
    writer.put_word(part.path("acks"), 24, layout.round_up(part.span(index)[1]))


def waiting(tmp_path, first, **options):
    """A queue in which nothing has happened to the messages from ``first`` on."""
    story = story_of(tmp_path, **options)
    for seq in range(first, 61):
        forget_entry(story, seq)
    story.remove(np.flatnonzero((story.events["seq"] >= first) & (story.events["type"] != layout.STARTED)).tolist())
    story.save()
    return story


def test_a_cursor_that_stands_before_what_was_delivered_is_found(tmp_path):
    story = story_of(tmp_path)
    put_cursor(story, 57)
    assert told(story) == ([(seq, BEHIND) for seq in (58, 59, 60)], 0, 60)


def test_a_cursor_that_has_passed_what_nobody_got_is_found(tmp_path):
    story = waiting(tmp_path, 31)
    put_cursor(story, 30)
    assert told(story) == ([], 0, 60)
    put_cursor(story, 33)
    assert told(story) == ([(seq, AHEAD) for seq in (31, 32, 33)], 0, 60)


def test_a_message_that_the_cursor_passed_has_gone_out_or_has_an_entry(tmp_path):
    story = waiting(tmp_path, 31)
    for seq in (31, 32):
        story.tell(story.row(seq), layout.SET_ASIDE)
    story.save()
    put_cursor(story, 32)
    assert told(story) == ([], 0, 60)


def test_the_last_message_that_the_cursor_passed_before_a_kill_is_a_doubt(tmp_path):
    story = waiting(tmp_path, 31, starts=[(after(60), layout.RESTARTED)])
    put_cursor(story, 31)
    assert told(story) == ([], 1, 60)
    put_cursor(story, 32)           # The cursor went on, and the first of the two has not gone out.
    assert told(story) == ([(31, AHEAD)], 1, 60)


def test_the_last_message_that_the_cursor_passed_is_a_doubt_while_a_broker_may_be_at_work(tmp_path):
    story = waiting(tmp_path, 31)
    put_cursor(story, 31)
    assert told(story, cut=1 << 62) == ([], 1, 60)
    assert told(story)[0] == [(31, AHEAD)]


def test_a_start_before_the_publish_explains_no_cursor(tmp_path):
    story = waiting(tmp_path, 31, starts=[(after(10), layout.RESTARTED)])
    put_cursor(story, 31)
    assert told(story)[0] == [(31, AHEAD)]


def test_a_loss_of_power_may_put_the_cursor_back(tmp_path):
    story = story_of(tmp_path, starts=[(after(20), layout.POWER_LOST)])
    put_cursor(story, 50)
    assert told(story)[:2] == ([], 10)

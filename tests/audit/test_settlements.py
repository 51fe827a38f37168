"""Each message is settled once, by a client that has it; without a journal the acks alone tell it."""

import pytest
import writer
from tests.audit import plant

from brokerd.audit.files import open_source
from brokerd.audit.verdicts import audit
from brokerd.store import format as layout

T = 1_780_000_000_000_000_000
CAME_BACK = [(T + 10, 1, layout.DELIVERED), (T + 20, 1, layout.RETURNED, layout.CAUSE_NACK, 1, 1),
             (T + 30, 1, layout.DELIVERED, layout.REDELIVERED, 1, 1), (T + 40, 1, layout.ACKED, 0, 1, 1)]


def story_of(tmp_path, rows=CAME_BACK, **options):
    level = writer.Level(writer.messages(range(1, 6), [T - 5 + k for k in range(5)]), writer.events(rows))
    root = writer.write_queue(tmp_path / "data", level, writer.Options(**options))
    return plant.Story(f"{root}/vhost/queue")


def reorder(story, *places):
    part = story.parts[0]
    part.entries = part.entries[list(places)]
    part.changed.add("acks")


def judged(story):
    """{audit: (verdict, found)}, and what double_settle finds: (seq, detail)."""
    story.save()
    (one,) = audit(open_source(story.folder.rpartition("/vhost")[0]))
    told = [(row["seq"], row["detail"]) for row in one.findings if row["audit"] == "double_settle"]
    return {row["audit"]: (row["verdict"], row["found"]) for row in one.audits}, told


def doubted_below(story, position):
    story.save()
    writer.put_word(story.parts[0].path("acks"), 48, position)


@pytest.mark.parametrize("places", [(2, 0, 1), (0, 2, 1)])
def test_without_a_journal_an_entry_behind_a_settlement_is_found(tmp_path, places):
    story = story_of(tmp_path, journal=False)
    assert judged(story)[0]["double_settle"] == ("held", 0)
    reorder(story, *places)
    rows, told = judged(story)
    assert rows["double_settle"] == ("violated", 1)
    assert told == [(1, "the acks have an entry of it behind the one that settles it")]


def test_without_a_journal_a_second_settlement_is_found_and_no_entry_behind_it_besides(tmp_path):
    story = story_of(tmp_path, journal=False)
    reorder(story, 0, 1, 2, 2)
    assert judged(story)[1] == [(1, "settled 2 times")]


def test_entries_of_records_that_a_loss_of_power_took_do_not_count(tmp_path):
    """``doubted`` is where the segment ended then: another record stands at the position of one that was lost."""
    story = story_of(tmp_path, journal=False)
    reorder(story, 2, 0, 1)
    part = story.parts[0]
    doubted_below(story, int(part.positions[0]))
    assert judged(story)[0]["double_settle"] == ("held", 0)
    doubted_below(story, int(part.positions[1]))
    assert judged(story)[0]["double_settle"] == ("violated", 1)


def test_with_a_journal_the_order_of_entries_is_for_agreement_to_judge(tmp_path):
    story = story_of(tmp_path)
    reorder(story, 2, 0, 1)
    rows, told = judged(story)
    assert (rows["agreement"], rows["double_settle"], told) == (("violated", 1), ("held", 0), [])


def test_a_message_is_found_once_of_which_the_journal_shows_more(tmp_path):
    """The journal began late; it has a delivery after the settlement, and the acks have that, too."""
    rows = [*CAME_BACK, (T + 50, 1, layout.DELIVERED, layout.REDELIVERED, 1, 1)]
    story = story_of(tmp_path, rows, begun=T + 5)
    rows, told = judged(story)
    assert (rows["delivery_after_settle"], rows["double_settle"][1], told) == (("violated", 1), 0, [])


def test_a_settlement_by_nobody_who_had_it_and_a_delivery_after_one_are_found(tmp_path):
    rows = [*CAME_BACK, (T + 50, 1, layout.DELIVERED, layout.REDELIVERED, 1, 1), (T + 60, 4, layout.ACKED)]
    rows, _ = judged(story_of(tmp_path, rows))
    assert (rows["delivery_after_settle"], rows["ack_without_delivery"]) == (("violated", 1), ("violated", 1))


def test_a_loss_of_power_explains_a_second_settlement(tmp_path):
    again = [(T + 60, 1, layout.DELIVERED, layout.REDELIVERED | layout.BEFORE_START, 1, 1), (T + 70, 1, layout.ACKED)]
    lost = (T + 50, T + 45, layout.STARTED, layout.POWER_LOST, 0, 0)
    rows, _ = judged(story_of(tmp_path, [*CAME_BACK, lost, *again]))
    assert rows["double_settle"] == ("undecidable", 0)
    rows, _ = judged(story_of(tmp_path / "b", [*CAME_BACK, *again]))
    assert rows["double_settle"] == ("violated", 1)
    assert rows["delivery_after_settle"] == ("violated", 1)

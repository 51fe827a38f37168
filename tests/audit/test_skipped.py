"""A message that was passed over is found, within its segment and by what later ones did."""

import numpy as np
import pytest
import writer
from tests.audit import plant

from brokerd.audit.files import open_source
from brokerd.audit.verdicts import audit
from brokerd.store import format as layout

T = 1_700_000_000_000_000_000


def judged(story):
    story.save()
    (one,) = audit(open_source(story.folder.rpartition("/vhost")[0]))
    row = next(row for row in one.audits if row["audit"] == "fifo")
    return row, [(f["seq"], f["segment"], f["detail"]) for f in one.findings if f["audit"] == "fifo"]


def story_of(tmp_path, segment=20, **options):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(60, start=T), writer.Options(
        segment_messages=segment, **options))
    return plant.Story(f"{root}/vhost/queue")


def silence(story, *seqs):
    """Nothing ever happened to these messages."""
    for seq in seqs:
        part, index = story.record(story.row(seq))
        part.forget(index)
    story.remove(np.flatnonzero(np.isin(story.events["seq"], seqs)).tolist())


@pytest.mark.parametrize("segment", [20, 60])
def test_a_message_that_was_passed_over_is_found_once(tmp_path, segment):
    story = story_of(tmp_path, segment)
    silence(story, 7, 20, 39, 40, 59)
    row, found = judged(story)
    assert (row["verdict"], row["found"], [seq for seq, _, _ in found]) == ("violated", 5, [7, 20, 39, 40, 59])
    top = 19 if segment == 20 else 60
    assert found[0][2] == f"never delivered, though {top}, a later one of its level, was"


def test_messages_behind_the_last_delivery_wait_for_their_turn(tmp_path):
    story = story_of(tmp_path)
    silence(story, *range(39, 61))
    assert judged(story)[0]["verdict"] == "held"


DEAD_LETTERS = {"dead_letter_exchange": "dlx"}


@pytest.mark.parametrize(("settings", "found"), [(DEAD_LETTERS, []), ({}, [7])])
def test_only_a_queue_with_dead_letters_sets_a_message_aside_and_leaves_it_there(tmp_path, settings, found):
    story = story_of(tmp_path, settings=settings)
    silence(story, 7, 8)
    story.tell(story.row(7), layout.SET_ASIDE)
    story.tell(story.row(8), layout.EXPIRED)
    assert [seq for seq, _, _ in judged(story)[1]] == found


def test_a_message_that_was_set_aside_when_there_were_dead_letters_was_not_passed_over(tmp_path):
    without = {"at": T + 5, "what": "settings", "journal": True}
    story = story_of(tmp_path, settings=DEAD_LETTERS, log=[without])
    silence(story, 7)
    story.tell(story.row(7), layout.SET_ASIDE)
    assert judged(story)[0]["found"] == 0


def test_without_settings_nobody_knows_why_a_message_was_set_aside(tmp_path):
    story = story_of(tmp_path)
    silence(story, 7)
    story.tell(story.row(7), layout.SET_ASIDE)
    (tmp_path / "data/vhost/queue/order.jsonl").unlink()
    assert judged(story)[0]["found"] == 0


def test_where_the_journal_began_later_nobody_knows(tmp_path):
    story = story_of(tmp_path, begun=T + 4000 * 30)
    silence(story, 7)
    row, _ = judged(story)
    assert (row["verdict"], row["found"]) == ("undecidable", 0)

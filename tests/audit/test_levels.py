"""A record stands in the folder of its priority, as far as the queue's highest level is known."""

import json

import plant
import pytest
import writer

from brokerd.audit.files import open_source
from brokerd.audit.verdicts import audit

T = 1_780_000_000_000_000_000


def found_of(root):
    (one,) = audit(open_source(str(root)))
    (row,) = (row for row in one.audits if row["audit"] == "wrong_level")
    return row["verdict"], sorted(row["seq"] for row in one.findings if row["audit"] == "wrong_level")


def set_priority(folder, seq, priority, *, said=None):
    """``said``: the priority in its properties as well, which have one."""
    story = plant.Story(folder)
    part, index = story.record(story.row(seq))
    part.octets[part.span(index)[0] + 14] = priority
    if said is not None:
        part.octets[part.span(index)[0] + 64 + 6] = said
    part.sign(index)
    story.save()


def with_levels(root):
    """Messages 1, 3 ... have priority 0, and 2, 4 ... priority 2, the highest; their properties say so."""
    made = {}
    for level, first in ((0, 1), (2, 2)):
        seqs = range(first, 21, 2)
        metas = b"\x00\x01q\x18\x00\x02" + bytes([level])
        made[level] = writer.Level(writer.messages(seqs, [T + 1000 * n for n in seqs]), writer.events([]), metas=metas)
    return writer.write_queue(root, made)


@pytest.mark.parametrize(("seq", "priority", "found"), [
    (2, 2, False), (2, 9, False), (2, 1, True), (2, 0, True), (1, 0, False), (1, 1, True), (1, 9, True)])
@pytest.mark.parametrize("told", [True, False])
def test_a_priority_above_the_highest_level_is_that_of_the_highest(tmp_path, seq, priority, found, told):
    root = with_levels(tmp_path / "data")
    if not told:
        (tmp_path / "data/vhost/queue/order.jsonl").write_text("")
    set_priority(f"{root}/vhost/queue", seq, priority, said=priority)
    assert found_of(root) == (("violated", [seq]) if found else ("held", []))


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(("seq", "priority", "said"), [(2, 9, 2), (2, 2, 1), (1, 0, 2)])
def test_a_priority_that_is_not_that_of_the_properties_is_found(tmp_path, seq, priority, said, told):
    root = with_levels(tmp_path / "data")
    if not told:
        (tmp_path / "data/vhost/queue/order.jsonl").write_text("")
    assert found_of(root) == ("held", [])
    set_priority(f"{root}/vhost/queue", seq, priority, said=said)
    assert found_of(root) == ("violated", [seq])


@pytest.mark.parametrize("highest", [0, None])
@pytest.mark.parametrize(("said", "priority", "found"), [
    (None, 0, False), (7, 7, False), (7, 6, True), (7, 0, True), (0, 0, False), (0, 1, True), (None, 1, True)])
def test_a_queue_without_priorities_takes_all_that_have_the_priority_of_their_properties(
        tmp_path, highest, said, priority, found):
    level = writer.simple_level(20)
    level.metas = b"\x00\x01q\x10\x00\x02" if said is None else b"\x00\x01q\x18\x00\x02" + bytes([said])
    root = writer.write_queue(tmp_path / "data", level)
    side = tmp_path / "data/vhost/queue/order.jsonl"
    side.write_text(json.dumps({"at": 1, "what": "settings", "journal": True, "max_priority": highest}) + "\n")
    for seq in range(1, 21):
        set_priority(f"{root}/vhost/queue", seq, said or 0)
    set_priority(f"{root}/vhost/queue", 5, priority)
    assert found_of(root) == (("violated", [5]) if found else ("held", []))

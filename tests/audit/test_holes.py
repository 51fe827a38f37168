"""Which absent numbers are holes, which are legal, and which nobody can tell."""

import os

import pytest
import writer

from brokerd.audit.files import open_source
from brokerd.audit.holes import holes
from brokerd.audit.scan import scan

T = 1_700_000_000_000_000_000


def look(tmp_path, levels, remove=(), slice_size=1 << 23, manifest=None, **options):
    made = {}
    for priority, seqs in levels.items():
        events = writer.events([(T + 10 * s + 1, s, kind) for s in seqs for kind in (8,)])
        made[priority] = writer.Level(writer.messages(seqs, [T + 10 * s for s in seqs]), events)
    root = writer.write_queue(tmp_path / "data", made, writer.Options(segment_messages=10, **options))
    for number in remove:
        for kind in ("msgs", "acks", "journal"):
            if os.path.exists(f"{root}/vhost/queue/{kind}.{number:010d}"):
                os.unlink(f"{root}/vhost/queue/{kind}.{number:010d}")
    source = open_source(root)
    (queue,) = source.queues()
    queue = queue._replace(manifest=manifest)
    found = {}
    for triple in queue.triples:
        found.setdefault(triple.priority, []).append(scan(source, triple))
    return holes(queue, found, slice_size=slice_size)


def without(stop, *missing):
    return [n for n in range(1, stop) if n not in missing]


@pytest.mark.parametrize("slice_size", [3, 7, 1 << 23])
def test_numbers_that_no_level_has_are_holes(tmp_path, slice_size):
    found = look(tmp_path, {0: [n for n in without(101, 5, 6, 50) if n % 3], 2: [n for n in without(101, 5, 6, 50)
                                                                               if n % 3 == 0]}, slice_size=slice_size)
    assert (found.found, found.checked, found.missing, found.doubts) == (3, 100, [(5, 6), (50, 50)], [])


def test_a_lost_segment_is_a_hole_in_a_journaled_queue_and_a_doubt_in_another(tmp_path):
    assert look(tmp_path / "a", {0: without(51)}, remove=(3,)).missing == [(21, 30)]
    found = look(tmp_path / "b", {0: without(51)}, remove=(3,), journal=False)
    assert found.found == 0
    assert found.doubts[0].startswith("10 numbers are absent")


def test_within_a_segment_a_hole_is_a_hole_without_a_journal_too(tmp_path):
    assert look(tmp_path, {0: without(30, 15)}, journal=False).missing == [(15, 15)]


def test_what_retention_removed_is_no_hole(tmp_path):
    line = {"at": T, "what": "removed", "level": 0, "first_seq": 21, "last_seq": 30, "why": "age"}
    found = look(tmp_path, {0: without(51)}, remove=(3,), log=[line])
    assert (found.found, found.doubts) == (0, [])


def test_what_compaction_took_is_no_hole(tmp_path):
    assert look(tmp_path, {0: without(31, 3, 4, 20)}, generation=2).found == 0


def test_a_manifest_promises_both_ends(tmp_path):
    found = look(tmp_path, {0: range(11, 31)}, manifest={"first_kept_seq": 9, "next_seq": 33})
    assert found.missing == [(9, 10), (31, 32)]


def test_a_journal_that_was_off_meanwhile_leaves_a_doubt(tmp_path):
    log = [{"at": T + 205, "what": "settings", "journal": False}, {"at": T + 290, "what": "settings", "journal": True}]
    found = look(tmp_path, {0: without(51)}, remove=(3,), log=log)
    assert found.found == 0
    assert found.doubts

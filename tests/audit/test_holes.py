"""Which absent numbers are holes, which are legal, and which nobody can tell."""

import os
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import writer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.audit import plant

from brokerd.audit.arrays import numbers
from brokerd.audit.files import open_source
from brokerd.audit.holes import holes
from brokerd.audit.scan import scan
from brokerd.audit.verdicts import audit
from brokerd.store import format as layout

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


def compacted(tmp_path, settled=(), *, begun=1, more=(), missing=(3, 4, 20)):
    """Thirty messages in three compacted segments, three of them gone; ``settled``: those that the journal saw end."""
    seqs = list(range(1, 31))
    rows = [(T + 10 * s + 1, s, layout.DELIVERED) for s in seqs]
    rows += [(T + 10 * s + 2, s, layout.ACKED) for s in settled]
    whole = writer.Level(writer.messages(seqs, [T + 10 * s for s in seqs]), writer.events([*rows, *more]))
    root = writer.write_queue(tmp_path / "data", whole, writer.Options(segment_messages=10, generation=2, begun=begun))
    story = plant.Story(f"{root}/vhost/queue")
    for seq in sorted(missing, reverse=True):
        part, index = story.record(story.row(seq))
        part.cut(index)
    for part in story.parts:
        part.save(part.events)
    return root


def holes_of(root, **options):
    source = open_source(str(root))
    (queue,) = source.queues()
    found = {}
    for triple in queue.triples:
        found.setdefault(triple.priority, []).append(scan(source, triple))
    return holes(queue, found, **options)


@pytest.mark.parametrize("slice_size", [4, 1 << 23])
def test_compaction_explains_only_numbers_that_the_journal_saw_settled(tmp_path, slice_size):
    assert holes_of(compacted(tmp_path / "a", (3, 4, 20)), slice_size=slice_size)[:4] == (0, 27, [], [])
    found = holes_of(compacted(tmp_path / "b", (3, 20)), slice_size=slice_size)
    assert (found.found, found.missing, found.doubts) == (1, [(4, 4)], [])


def test_without_a_journal_compaction_explains_what_is_missing(tmp_path):
    assert look(tmp_path, {0: without(31, 3, 4, 20)}, generation=2, journal=False).found == 0


def test_a_journal_that_began_later_leaves_what_compaction_took_in_doubt(tmp_path):
    found = holes_of(compacted(tmp_path, (20,), begun=T + 105))
    assert (found.found, found.doubts) == (0, ["2 numbers are absent from compacted segments whose journals have gaps"])


def test_a_message_that_was_out_when_a_broker_was_killed_may_have_been_settled_then(tmp_path):
    started = (T + 95, 0, layout.STARTED, layout.RESTARTED)
    found = holes_of(compacted(tmp_path, (3,), more=[started]))
    assert found.missing == [(20, 20)]
    assert found.doubts == ["1 numbers are absent of messages that were not settled when a broker was killed"]


def test_the_first_record_of_a_segment_is_missed_also_where_nothing_stands_before_it(tmp_path):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(20), writer.Options(segment_messages=10))
    story = plant.Story(f"{root}/vhost/queue")
    plant_gone(story, 1)
    assert holes_of(root).missing == [(1, 1)]


def plant_gone(story, seq):
    part, index = story.record(story.row(seq))
    story.remove(np.flatnonzero(story.events["seq"] == seq).tolist())
    part.cut(index)
    story.save()


@pytest.mark.parametrize("slice_size", [4, 1 << 23])
def test_a_number_that_stands_in_two_segments_is_found(tmp_path, slice_size):
    level = writer.simple_level(30)
    level.messages["seq"][10:] = range(9, 29)
    level.events["seq"][20:] = [seq for seq in range(9, 29) for _ in (0, 1)]
    root = tmp_path / "data"
    os.makedirs(root / "vhost" / "queue")
    for number in (1, 2, 3):
        own = slice(10 * number - 10, 10 * number)
        writer.write_triple(str(root / "vhost" / "queue"), number, level.messages[own],
                            level.events[20 * number - 20:20 * number], level, writer.Options())
    (root / "vhost" / ".vhost").write_text("/")
    (root / "vhost" / "queue" / ".queue").write_text("q")
    found = holes_of(root, slice_size=slice_size)
    assert (found.found, found.missing, found.twice) == (2, [], [9, 10])
    (judged,) = audit(open_source(str(root)))
    told = [(row["seq"], row["segment"], row["detail"]) for row in judged.findings if row["audit"] == "holes"]
    assert told == [(seq, 2, "stands in vhost/queue/msgs.0000000001 as well") for seq in (9, 10)]


def test_a_manifest_promises_both_ends(tmp_path):
    found = look(tmp_path, {0: range(11, 31)}, manifest={"first_kept_seq": 9, "next_seq": 33})
    assert found.missing == [(9, 10), (31, 32)]


def test_a_journal_that_was_off_meanwhile_leaves_a_doubt(tmp_path):
    log = [{"at": T + 205, "what": "settings", "journal": False}, {"at": T + 290, "what": "settings", "journal": True}]
    found = look(tmp_path, {0: without(51)}, remove=(3,), log=log)
    assert found.found == 0
    assert found.doubts


@pytest.mark.parametrize("journal", [True, False])
def test_numbers_far_apart_are_judged_without_a_look_at_each_number_between(tmp_path, journal):
    """As after damage: a record may have any number."""
    far = 1 << 55
    found = look(tmp_path, {0: [*range(1, 31), *range(far, far + 10)]}, journal=journal)
    absent = far - 31
    assert found.found == (absent if journal else 0)
    assert found.checked == far + 9
    assert found.missing == ([(31, far - 1)] if journal else [])
    assert bool(found.doubts) != journal


def test_numbers_far_apart_in_one_segment_are_judged_in_the_same_way(tmp_path):
    far = 1 << 55
    line = {"at": T, "what": "removed", "level": 0, "first_seq": 100, "last_seq": far - 100, "why": "age"}
    found = look(tmp_path, {0: [1, 2, far, far + 1]}, log=[line], slice_size=1000)
    assert found.missing == [(3, 99), (far - 99, far - 1)]
    assert found.found == 97 + 99


def summaries_of(tmp_path, sets):
    """A queue with a journal, and a summary for each of these sets of numbers, as one segment of a level each."""
    root = writer.write_queue(tmp_path / "data", writer.simple_level(3), writer.Options())
    source = open_source(root)
    (queue,) = source.queues()
    made = scan(source, queue.triples[0])
    return queue, {0: [made._replace(numbers=numbers(np.array(sorted(some), np.int64)), base_seq=min(some))
                       for some in sets]}


FAR = st.integers(1, 60) | st.integers(0, 5).map(lambda n: 2000 + n * 700)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sets(FAR, min_size=1), min_size=1, max_size=4), st.lists(st.tuples(FAR, FAR), max_size=4),
       st.integers(2, 9))
def test_what_is_missing_is_what_no_segment_and_no_line_of_retention_has(tmp_path_factory, sets, removed, slice_size):
    queue, levels = summaries_of(tmp_path_factory.mktemp("queue"), sets)
    queue = queue._replace(removed=[{"first_seq": a, "last_seq": b} for a, b in removed])
    found = holes(queue, levels, slice_size=slice_size)
    there = [n for some in sets for n in some]
    wanted = set(range(min(there), max(there) + 1)) - set(there)
    wanted -= {n for a, b in removed for n in range(a, b + 1)}
    assert [n for a, b in found.missing for n in range(a, b + 1)] == sorted(wanted)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(found.missing))
    assert found.twice == sorted(n for n in set(there) if there.count(n) > 1)
    assert (found.found, found.checked) == (len(wanted) + len(found.twice), len(wanted | set(there)))


@pytest.mark.parametrize("apart", [1 << 22, 1 << 55])
def test_numbers_that_lie_far_apart_take_no_more_memory_than_others(tmp_path, apart):
    """A damaged record may have any number."""
    queue, levels = summaries_of(tmp_path, [{k, k + 2, k + apart, k + 2 * apart} for k in range(1, 900, 3)])
    tracemalloc.start()
    found = holes(queue, levels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.checked == 2 * apart + 898
    assert peak < 1 << 20

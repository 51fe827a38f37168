"""The times that the marks of starts keep, held against their neighbours."""

import pytest
import writer

from brokerd.audit.files import open_source
from brokerd.audit.segment import read_triple
from brokerd.store import format as layout

T = 1_700_000_000_000_000_000
NEIGHBOURS = [(T + 10, 1, layout.DELIVERED), (T + 20, 1, layout.ACKED)]


def damage_of(tmp_path, kept, ts, why, begun=T):
    """What is said of a mark behind two events, which keeps this time."""
    rows = writer.events([*NEIGHBOURS, (T + 40, 2, layout.DELIVERED)])
    mark = writer.events([(ts, kept, layout.STARTED, why)])
    mark["seq"] = kept
    both = writer.np.sort(writer.np.concatenate((rows, mark)), order="ts")
    level = writer.Level(writer.messages([1, 2], [T + 1, T + 2]), both)
    root = writer.write_queue(tmp_path / "data", level, writer.Options(begun=begun))
    source = open_source(root)
    return [(damage.offset, damage.detail, damage.matters)
            for damage in read_triple(source, source.queues()[0].triples[0]).damage]


@pytest.mark.parametrize("why", [layout.RESTARTED, layout.SWITCHED_OFF])
@pytest.mark.parametrize("by", [-1, 1, 5])
def test_a_start_keeps_its_own_time(tmp_path, why, by):
    assert damage_of(tmp_path / "right", T + 30, T + 30, why) == []
    assert damage_of(tmp_path, T + 30 + by, T + 30, why) == [
        (128, f"keeps the time {T + 30 + by}, and not its own, up to which all events are there", ("events",))]


@pytest.mark.parametrize("by", [-1, 1, 10])
def test_switched_on_again_it_keeps_the_time_of_the_last_event(tmp_path, by):
    assert damage_of(tmp_path / "right", T + 20, T + 30, layout.SWITCHED_ON) == []
    assert damage_of(tmp_path, T + 20 + by, T + 30, layout.SWITCHED_ON) == [
        (128, f"keeps the time {T + 20 + by}, and not that of the event before it, up to which all events are there",
         ("events",))]


def test_switched_on_without_an_event_it_keeps_the_begin_of_the_journal(tmp_path):
    assert damage_of(tmp_path / "right", T, T + 5, layout.SWITCHED_ON) == []
    assert [one[0] for one in damage_of(tmp_path, T + 1, T + 5, layout.SWITCHED_ON)] == [64]


@pytest.mark.parametrize(("kept", "right"), [(T - 1, False), (T, True), (T + 15, True), (T + 30, True),
                                             (T + 31, False), (layout.FOR_EVER, True), (layout.FOR_EVER - 1, False)])
def test_after_a_loss_of_power_the_time_lies_between_the_begin_and_the_mark(tmp_path, kept, right):
    assert damage_of(tmp_path, kept, T + 30, layout.POWER_LOST) == ([] if right else [
        (128, f"keeps the time {kept}, which does not lie between the journal's begin and its own", ("events",))])

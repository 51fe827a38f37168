"""Where messages stand: order between levels and over boundaries, numbers, and the cut of a dump."""

import json
from itertools import pairwise

import numpy as np
import plant
import pytest
import writer

from brokerd.audit import places, whole
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options, scan
from brokerd.audit.stitch import Findings
from brokerd.audit.verdicts import audit

ACKED, DELIVERED = writer.layout.ACKED, writer.layout.DELIVERED
T = 1_780_000_000_000_000_000
COUNT = 120


def levels(count=COUNT, highest=2):
    """Messages of one channel, by turns in each level; nothing is delivered."""
    made = {}
    for level in range(highest + 1):
        seqs = np.arange(1 + level, count + 1, highest + 1)
        made[level] = writer.Level(writer.messages(seqs, T + 1000 * seqs), writer.events([]))
    return made


def judged(root, **options):
    (one,) = audit(open_source(str(root)), Options(**options))
    return one, {row["audit"]: row for row in one.audits}


def told(one, name):
    return [(row["seq"], row["detail"].startswith("a consequence")) for row in one.findings if row["audit"] == name]


def as_dump(root, cut, **entry):
    """Make the folder a dump."""
    said = plant.manifest(str(root), {("/", "vhost/queue"): {"journal": True, "max_priority": 0}}, cut)
    said["queues"][0] |= entry
    (root / "manifest.json").write_text(json.dumps(said))


@pytest.mark.parametrize("segment", [7, 1000])
def test_of_messages_in_their_places_all_audits_hold(tmp_path, segment):
    root = tmp_path / "data"
    _, rows = judged(writer.write_queue(root, levels(), writer.Options(segment_messages=segment)))
    assert {rows[name]["verdict"] for name in (*places.AUDITS[:3], "wrong_level")} == {"held"}
    assert {rows[name]["checked"] for name in (*places.AUDITS[:3], "wrong_level")} == {COUNT}
    assert "after_cut" not in rows
    _, rows = judged(writer.write_queue(tmp_path / "one", writer.simple_level(9)))
    assert "channel_order" not in rows


@pytest.mark.parametrize("segment", [7, 1000])
def test_a_publish_out_of_order_between_levels_is_found(tmp_path, segment):
    made = levels()
    made[1].messages["publish_seq"][20] = made[2].messages["publish_seq"][20] + 10_000       # Number 62.
    one, rows = judged(writer.write_queue(tmp_path / "data", made, writer.Options(segment_messages=segment)))
    row = rows["channel_order"]
    assert (row["verdict"], row["found"], row["by_rule"], row["consequences"]) == ("violated", 1, 58, 58)
    assert sorted(told(one, "channel_order")) == [(62, False), *((seq, True) for seq in range(63, COUNT + 1))]
    assert rows["time_order"]["verdict"] == "held"


@pytest.mark.parametrize("segment", [7, 1000])
@pytest.mark.parametrize("highest", [0, 2])
def test_time_that_goes_back_is_found_over_boundaries_and_levels(tmp_path, segment, highest):
    made = levels(highest=highest)
    made[0].messages["ts"][7] += 10 ** 9            # The last of a segment of seven is number 6.
    one, rows = judged(writer.write_queue(tmp_path / "data", made, writer.Options(segment_messages=segment)))
    wrong = int(made[0].messages["seq"][7])
    row = rows["time_order"]
    assert (row["verdict"], row["found"], row["consequences"]) == ("violated", 1, COUNT - wrong)
    assert told(one, "time_order")[0] == (wrong, False)


def test_slices_of_a_queue_are_judged_as_the_whole(tmp_path):
    made = levels(600)
    for level, place in ((1, 40), (0, 100), (2, 199)):
        made[level].messages["publish_seq"][place] -= 5
        made[level].messages["ts"][place] -= 5000
    source = open_source(writer.write_queue(tmp_path / "data", made, writer.Options(segment_messages=30)))
    (queue,) = source.queues()
    options = Options()
    summaries = [scan(source, triple) for triple in queue.triples]
    split = {level: [s for s in summaries if s.triple.priority == level] for level in range(3)}
    found = [places.orders(source, split, options, whole.Findings(), several=True, slice_size=size)
             for size in (8_000_000, 70, 11)]
    assert found[0] == found[1] == found[2]
    assert {name: one.found for name, one in found[0].items()} == {"channel_order": 3, "time_order": 3}


def test_numbers_that_are_not_the_segments_or_the_queues_are_found(tmp_path):
    root = tmp_path / "data"
    writer.write_queue(root, writer.simple_level(60), writer.Options(segment_messages=20))
    as_dump(root, T, next_seq=58, first_kept_seq=1)
    one, rows = judged(root)
    assert (rows["numbers"]["verdict"], rows["numbers"]["found"]) == ("violated", 3)
    assert [seq for seq, _ in told(one, "numbers")] == [58, 59, 60]
    as_dump(root, T, next_seq=61, first_kept_seq=1)
    assert judged(root)[1]["numbers"]["verdict"] == "held"
    story = plant.Story(str(root / "vhost/queue"))
    part = story.parts[0]
    start = part.span(19)[0]
    part.octets[start + 16:start + 24] = (25).to_bytes(8, "little")         # The number of one of the next segment.
    part.sign(19)
    story.save()
    one, rows = judged(root)
    assert (rows["numbers"]["verdict"], [seq for seq, _ in told(one, "numbers")]) == ("violated", [25])


@pytest.mark.parametrize("segment", [7, 10, 1000])
def test_of_events_with_one_time_all_but_the_first_are_found(tmp_path, segment):
    """Acks of messages 10, 20 and 21 have the time of the delivery of the one behind, and one ack more that of 21."""
    level = writer.simple_level(40, start=T)
    ts, seq, type_ = (level.events[name] for name in ("ts", "seq", "type"))
    for one in (10, 20, 21):
        ts[(seq == one) & (type_ == ACKED)] = ts[(seq == one + 1) & (type_ == DELIVERED)]
    ts[(seq == 30) & (type_ == ACKED)] = ts[(seq == 22) & (type_ == DELIVERED)]
    level.events = level.events[np.argsort(ts, kind="stable")]
    one, rows = judged(writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=segment)))
    assert (rows["time_order"]["verdict"], rows["time_order"]["found"]) == ("violated", 4)
    found = [(row["detail"], row["file"].split("/")[-1][:7]) for row in one.findings if row["audit"] == "time_order"]
    assert {file for _, file in found} == {"journal"}
    assert all(" UTC, as another event did" in detail for detail, _ in found)


BESIDE = [(writer.layout.GROUP_PARKED_EVENT, writer.layout.REASON_REMOVED), (writer.layout.EVENT_REPLAYED, 0)]


@pytest.mark.parametrize(("kind", "reason"), BESIDE)
@pytest.mark.parametrize("segment", [7, 10, 1000])
def test_events_beside_a_messages_life_have_times_of_their_own_too(tmp_path, segment, kind, reason):
    """A group was parked at message 12, or 12 was replayed, when 22 was delivered; and 31 when 31 was stored."""
    level = writer.simple_level(40, start=T)
    delivered = level.events["ts"][(level.events["seq"] == 22) & (level.events["type"] == DELIVERED)]
    stored = level.messages["ts"][level.messages["seq"] == 31]
    parked = writer.events([(int(ts[0]), seq, kind, reason) for ts, seq in ((delivered, 12), (stored, 31))])
    level.events = np.concatenate((level.events, parked))
    level.events = level.events[np.argsort(level.events["ts"], kind="stable")]
    _, rows = judged(writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=segment)))
    assert (rows["time_order"]["verdict"], rows["time_order"]["found"]) == ("violated", 2)


def test_times_from_before_a_loss_of_power_are_not_compared(tmp_path):
    level = writer.simple_level(20, start=T)
    ts = level.events["ts"]
    ts[19] = ts[20]
    lost = (int(ts[30]) + 1, int(ts[30]), writer.layout.STARTED, writer.layout.POWER_LOST)
    level.events = np.concatenate((level.events[:31], writer.events([lost]), level.events[31:]))
    root = writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=10))
    assert judged(root)[1]["time_order"]["found"] == 0


def test_what_is_later_than_the_cut_of_a_dump_is_found(tmp_path):
    root = tmp_path / "data"
    level = writer.simple_level(50, start=T)
    writer.write_queue(root, level, writer.Options(segment_messages=20))
    as_dump(root, int(level.events["ts"][-1]), next_seq=51)
    assert judged(root)[1]["after_cut"]["verdict"] == "held"
    as_dump(root, int(level.messages["ts"][-2]), next_seq=51)
    one, rows = judged(root)
    assert (rows["after_cut"]["verdict"], rows["after_cut"]["found"]) == ("violated", 5)
    assert sorted(told(one, "after_cut")) == [(49, False)] * 2 + [(50, False)] * 3


@pytest.mark.parametrize(("kind", "reason"), BESIDE)
def test_an_event_beside_a_messages_life_that_is_later_than_the_cut_is_found(tmp_path, kind, reason):
    root = tmp_path / "data"
    level = writer.simple_level(50, start=T)
    at = int(level.events["ts"][-1]) + 1000
    level.events = np.concatenate((level.events, writer.events([(at, 12, kind, reason)])))
    writer.write_queue(root, level, writer.Options(segment_messages=50))
    as_dump(root, at, next_seq=51)
    assert judged(root)[1]["after_cut"]["verdict"] == "held"
    as_dump(root, at - 1, next_seq=51)
    one, rows = judged(root)
    assert (rows["after_cut"]["verdict"], told(one, "after_cut")) == ("violated", [(12, False)])


@pytest.mark.parametrize("reason", [writer.layout.RESTARTED, writer.layout.SWITCHED_OFF])
def test_a_mark_that_is_later_than_the_cut_of_a_dump_is_found(tmp_path, reason):
    root = tmp_path / "data"
    level = writer.simple_level(50, start=T)
    at = int(level.events["ts"][-1]) + 1000
    level.events = np.concatenate((level.events, writer.events([(at, at - 1, writer.layout.STARTED, reason, 0, 0)])))
    writer.write_queue(root, level, writer.Options(segment_messages=50))
    as_dump(root, at, next_seq=51)
    assert judged(root)[1]["after_cut"]["verdict"] == "held"
    as_dump(root, at - 1, next_seq=51)
    one, rows = judged(root)
    assert (rows["after_cut"]["verdict"], told(one, "after_cut")) == ("violated", [(0, False)])


@pytest.mark.parametrize("segment", [7, 1000])
def test_a_number_of_a_publish_that_no_broker_reaches_is_the_culprit(tmp_path, segment):
    """It is not read as a number below all others."""
    level = writer.simple_level(40, start=T)
    level.messages["publish_seq"][0] |= np.uint64(1 << 63)
    one, rows = judged(writer.write_queue(tmp_path / "one", level, writer.Options(segment_messages=segment)))
    assert (rows["publish_order"]["verdict"], rows["publish_order"]["found"]) == ("violated", 1)
    assert told(one, "publish_order")[0] == (1, False)
    made = levels()
    made[0].messages["publish_seq"][0] |= np.uint64(1 << 63)
    one, rows = judged(writer.write_queue(tmp_path / "levels", made, writer.Options(segment_messages=segment)))
    assert (rows["channel_order"]["verdict"], rows["channel_order"]["found"]) == ("violated", 1)
    assert told(one, "channel_order")[0] == (1, False)


def test_a_segment_that_a_loss_of_power_brought_back_is_neither_held_nor_violated(tmp_path):
    """Numbers 9 to 16 were lost with the power, and given again after it; then their old segment was there again."""
    root, second = tmp_path / "data", 10 ** 9
    cut = (T + second, T, writer.layout.STARTED, writer.layout.POWER_LOST)
    rows = [(T + 1000 * n + 1, n, writer.layout.DELIVERED) for n in range(1, 17)]
    before = writer.Level(writer.messages(range(1, 17), T + 1000 * np.arange(1, 17)), writer.events([*rows, cut]))
    writer.write_queue(root, before, writer.Options(segment_messages=8))
    since = writer.messages(range(9, 27), T + 2 * second + 1000 * np.arange(9, 27), connection=2)
    writer.write_queue(root, writer.Level(since, writer.events([])),
                       writer.Options(segment_messages=9, first_number=10, begun=cut[0]))
    _, rows = judged(root)
    assert {name: (rows[name]["verdict"], rows[name]["found"]) for name in ("time_order", "numbers")} == {
        "time_order": ("undecidable", 0), "numbers": ("undecidable", 0)}
    assert "8 records from before a loss of power have numbers that were given again" in rows["numbers"]["reason"]


def test_messages_without_a_connection_have_no_channel_that_could_be_out_of_order(tmp_path):
    made = levels(30)
    for level in made.values():
        level.messages["connection"] = 0
        level.messages["publish_seq"] = level.messages["publish_seq"][::-1].copy()
    _, rows = judged(writer.write_queue(tmp_path / "data", made))
    assert (rows["channel_order"]["verdict"], rows["channel_order"]["found"]) == ("held", 0)


def test_a_damaged_number_does_not_make_slices_longer(tmp_path):
    root = writer.write_queue(tmp_path / "data", levels(), writer.Options(segment_messages=4))
    source = open_source(str(root))
    summaries = [scan(source, triple) for queue in source.queues() for triple in queue.triples]
    far = summaries[3]._replace(numbers=summaries[3].numbers._replace(last=1 << 62))
    for some in (summaries, [*summaries[:3], far, *summaries[4:]]):
        cuts = places._slices(some, 20)
        assert [sum(low <= s.numbers.last < high for s in some) for low, high in pairwise(cuts)] == 6 * [5] + [0]


def test_segments_with_odd_numbers_do_not_each_read_the_whole_queue(tmp_path, monkeypatch):
    made = levels(highest=0)
    made[0].messages["seq"][3::4] += 1000           # The last one of each segment.
    root = writer.write_queue(tmp_path / "data", made, writer.Options(segment_messages=4))
    source = open_source(str(root))
    (queue,) = source.queues()
    summaries = [scan(source, triple) for triple in queue.triples]
    read = []
    monkeypatch.setattr(places, "read_records", lambda *given, real=places.read_records, **how: (
        read.append(given), real(*given, **how))[1])
    found = Findings()
    assert places.numbers(source, queue, {0: summaries}, Options(), found) == (29, 0)
    assert len(read) <= 2 * len(summaries)

"""One message far out of place is one finding, and what it makes of the others is its consequence."""

import pytest
import writer

from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit

COUNT = 13_132


def judged(root, **options):
    (one,) = audit(open_source(str(root)), Options(**options))
    return one, {row["audit"]: row for row in one.audits}


def told(one, name):
    return [(row["seq"], row["detail"].startswith("a consequence")) for row in one.findings if row["audit"] == name]


@pytest.mark.parametrize("segment", [1000, 100_000])
def test_one_publish_with_a_number_far_too_high_is_one_finding(tmp_path, segment):
    level = writer.simple_level(COUNT)
    level.messages["publish_seq"][99] = 10 ** 9
    one, rows = judged(writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=segment)))
    row = rows["publish_order"]
    assert (row["verdict"], row["found"], row["consequences"], row["by_rule"]) == (
        "violated", 1, COUNT - 100, COUNT - 100)
    assert told(one, "publish_order")[0] == (100, False)
    assert told(one, "publish_order")[1:] == [(seq, True) for seq in range(101, COUNT + 1)]
    assert {name for name, row in rows.items() if row["verdict"] not in ("held", "covers nothing")} == {
        "publish_order"}


@pytest.mark.parametrize("segment", [1000, 100_000])
def test_one_message_that_went_out_after_all_others_is_one_finding(tmp_path, segment):
    level = writer.simple_level(COUNT)
    last = int(level.events["ts"][-1])
    level.events["ts"][200], level.events["ts"][201] = last + 10, last + 20         # Of number 101.
    one, rows = judged(writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=segment)))
    assert (rows["fifo"]["found"], rows["fifo"]["consequences"]) == (1, COUNT - 101)
    assert told(one, "fifo")[0] == (101, False)


def test_several_culprits_in_several_segments_are_all_told_before_any_consequence(tmp_path):
    level = writer.simple_level(3000)
    wrong = [100, 101, 999, 1500, 2800]
    for place in wrong:
        level.messages["publish_seq"][place - 1] += 10_000
    one, rows = judged(writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=500)))
    assert rows["publish_order"]["found"] == len(wrong)
    assert told(one, "publish_order")[:len(wrong)] == [(seq, False) for seq in wrong]
    assert all(is_consequence for _, is_consequence in told(one, "publish_order")[len(wrong):])


def test_the_culprits_are_told_even_where_few_findings_get_a_row(tmp_path):
    level = writer.simple_level(3000)
    level.messages["publish_seq"][99] = 10 ** 9
    one, rows = judged(writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=500)),
                       findings_max=10)
    assert (rows["publish_order"]["found"], rows["publish_order"]["consequences"]) == (1, 2900)
    assert told(one, "publish_order")[0] == (100, False)
    assert len(told(one, "publish_order")) == 10

"""Stops of which only the acks tell: a broker without message groups writes none; with them a kill may leave one."""

import pytest
from test_waits import GROUPS, IDLE, ONE, PARKED, START, STOPPED, acked, back, judged, out

from brokerd.store import format as layout

NOTED = (1, layout.PARKED, 0, layout.WAS_OUT)
UNSURE = ("undecidable", [])


@pytest.mark.parametrize(("steps", "said"), [
    ([*STOPPED, NOTED], ("held", [])),
    (STOPPED, ("held", [])),
    ([out(1), back(1), NOTED], ("violated", [1])),
    ([*STOPPED, NOTED, NOTED], ("violated", [1])),
    ([out(1), back(1), START, NOTED], ("violated", [1])),
], ids=["both tell", "killed before the entry", "only the acks", "twice in the acks", "only the acks, over a start"])
def test_a_queue_that_stops_by_its_acks_stops_by_its_journal(tmp_path, steps, said):
    assert judged(tmp_path, steps, groups=None, delivery_limit_action="block")["stop_kept"] == said


@pytest.mark.parametrize(("steps", "said"), [
    ([*PARKED, NOTED], ("held", [])),
    ([*PARKED, NOTED, acked(1), (2, layout.PARKED, 0, 0)], ("held", [])),
    ([out(1), back(1), NOTED], ("violated", [1])),
    ([out(1), back(1), NOTED, START], UNSURE),
    ([out(1), back(1), NOTED, (5, layout.PARKED, 0, 0), START], ("violated", [1, 5])),
    ([(5, layout.GROUP_PARKED_EVENT, ONE, layout.REASON_REMOVED), out(1), back(1), NOTED], ("violated", [1])),
], ids=["both tell", "of the group's next one too", "only the acks", "killed between", "two groups and one kill",
        "another group"])
def test_a_group_that_stops_by_its_acks_stops_by_its_journal_unless_a_kill_came_between(tmp_path, steps, said):
    assert judged(tmp_path, [*IDLE, *steps], groups=GROUPS)["stop_kept"] == said


def test_a_queue_that_only_tries_again_stops_at_nothing(tmp_path):
    said = judged(tmp_path, [out(1), back(1), NOTED], groups=None, retry=True)
    assert said["stop_kept"] == ("violated", [1])

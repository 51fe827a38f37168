"""Every kind of fault in what became of messages since they were replayed is found by its audit."""

import pytest
from tests.planter import kinds_replays
from tests.planter.judging import cases, misses


@pytest.mark.parametrize(("kind", "name"), cases(kinds_replays))
def test_a_planted_fault_is_found(kind, name, sample, clean, tmp_path):
    planted, missed = misses(kind, name, sample.dump, clean, tmp_path)
    assert planted
    assert not missed

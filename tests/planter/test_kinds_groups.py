"""Every kind of fault in groups, retries, parks, tokens, redrives, keys and replays is found by its audit."""

import pytest
from tests.planter import kinds_groups
from tests.planter.judging import cases, misses


@pytest.mark.parametrize(("kind", "name"), cases(kinds_groups))
def test_a_planted_fault_is_found(kind, name, sample, clean, tmp_path):
    planted, missed = misses(kind, name, sample.dump, clean, tmp_path)
    assert planted
    assert not missed

"""Every kind of fault of the lines of order.jsonl is found, at some of its places."""

import pytest
from tests.planter import kinds_lines
from tests.planter.judging import cases, misses


@pytest.mark.parametrize(("kind", "name"), cases(kinds_lines))
def test_a_planted_fault_is_found(kind, name, sample, clean, tmp_path):
    planted, missed = misses(kind, name, sample.dump, clean, tmp_path)
    assert planted
    assert not missed

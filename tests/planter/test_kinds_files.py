"""Every kind of fault of records, segments, words and of what stands beside them is found, at some of its places.

``python -m tests.planter.survey`` plants at all of them.
"""

import pytest
from tests.planter import kinds_files
from tests.planter.judging import cases, misses


@pytest.mark.parametrize(("kind", "name"), cases(kinds_files))
def test_a_planted_fault_is_found(kind, name, sample, clean, tmp_path):
    planted, missed = misses(kind, name, sample.dump, clean, tmp_path)
    assert planted
    assert not missed

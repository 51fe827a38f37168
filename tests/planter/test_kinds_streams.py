"""Every kind of fault of a stream's indexes and readers is found, and what a crash may leave there is no fault."""

import pytest
from tests.planter import kinds_streams
from tests.planter.asking import ask
from tests.planter.folder import Tree
from tests.planter.judging import cases, misses
from tests.planter.planting import View


@pytest.mark.parametrize(("kind", "name"), cases(kinds_streams))
def test_a_planted_fault_is_found(kind, name, sample, clean, tmp_path):
    planted, missed = misses(kind, name, sample.dump, clean, tmp_path)
    assert planted
    assert not missed


@pytest.mark.parametrize("change", kinds_streams.HARMLESS, ids=lambda change: change.__name__)
def test_what_a_crash_may_leave_is_no_fault(change, sample, clean, tmp_path):
    tree = Tree(sample.dump, only={"events"})
    view = View(tree.queues["events"], tree)
    change(view)
    view.queue.count()
    said = ask(tree.write(tmp_path / "changed"))
    assert {key: row.verdict for key, row in said.items()} == {
        key: row.verdict for key, row in clean.items() if key in said}

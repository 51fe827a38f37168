"""Every kind of fault in what became of messages since they were replayed is found by its audit."""

import pytest
from tests.planter import kinds_replays
from tests.planter.asking import ask
from tests.planter.folder import Tree
from tests.planter.judging import cases, misses
from tests.planter.kinds import KINDS, plants_of


@pytest.mark.parametrize(("kind", "name"), cases(kinds_replays))
def test_a_planted_fault_is_found(kind, name, sample, clean, tmp_path):
    planted, missed = misses(kind, name, sample.dump, clean, tmp_path)
    assert planted
    assert not missed


@pytest.mark.parametrize("name", ["replayed", "again"])
def test_a_kill_within_a_replay_is_a_doubt_and_accuses_nobody(name, sample, clean, tmp_path):
    kind = KINDS["replay_cut_off_before_its_event"]
    for tree, planted in plants_of(kind, name, lambda: Tree(sample.dump, only={name})):
        said = ask(tree.write(tmp_path / str(planted.seq)))
        other = {audit: row.verdict for (_, audit), row in said.items() if row.verdict != clean[name, audit].verdict}
        assert other == {"agreement": "undecidable"}

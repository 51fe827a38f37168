"""The model of the promises: clean files contradict nothing, and each kind of fault contradicts something."""

import pytest
from tests.planter import model
from tests.planter.folder import Tree
from tests.planter.kinds import KINDS, plants_of
from tests.planter.samples import QUEUES, with_others
from tests.planter.survey import seen_by_model


@pytest.mark.parametrize("which", ["dump", "stopped"])
def test_what_a_broker_wrote_contradicts_nothing(sample, which):
    broken = model.judge_tree(Tree(getattr(sample, which)))
    assert broken == {name: [] for name in QUEUES}


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.sees], ids=lambda kind: kind.name)
def test_every_kind_of_fault_contradicts_a_promise(kind, sample, tmp_path):
    name = kind.queues[0]
    only = set(QUEUES) if kind.together else with_others(name)
    tree, planted = next(plants_of(kind, name, lambda: Tree(sample.dump, only=only)))
    assert seen_by_model(tree.write(tmp_path / "planted")), planted

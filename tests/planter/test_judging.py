"""A question about a changed copy that reads what was changed alone has the answer of one that reads everything."""

import pytest
from tests.planter.asking import Refused, ask
from tests.planter.folder import Tree
from tests.planter.judging import ask_quickly
from tests.planter.kinds import KINDS, plants_of
from tests.planter.samples import with_others


def answer(question, *given):
    try:
        return question(*given)
    except Refused as error:
        return str(error)


@pytest.mark.parametrize("name", sorted(KINDS)[::7])
def test_a_quick_question_has_the_answer_of_a_whole_one(sample, tmp_path, name):
    kind = KINDS[name]
    queue = kind.queues[0]
    for tree, _ in plants_of(kind, queue, lambda: Tree(sample.dump, only=with_others(queue)), 1):
        target = tree.write(tmp_path / "planted")
        assert answer(ask_quickly, sample.dump, target) == answer(ask, target)
        break

"""The cases of the tests: each kind in each of its queues, and which of its plants the audit misses."""

import shutil

import pytest
from tests.planter.asking import Refused, ask, outcome
from tests.planter.folder import Tree
from tests.planter.kinds import KINDS, plants_of
from tests.planter.missed import MISSED_TODAY
from tests.planter.samples import QUEUES, with_others

PLACES = 3      # of a kind in a queue; ``python -m tests.planter.survey`` plants at all of them


def cases(module):
    """Parameters (kind, queue) of the kinds of a module; what is missed today is expected to be missed."""
    found = []
    for kind in KINDS.values():
        if kind.plant.__module__ != module.__name__:
            continue
        for name in kind.queues:
            missed = name in MISSED_TODAY.get(kind.name, "").split()
            marks = [pytest.mark.xfail(reason="missed today", raises=AssertionError)] if missed else []
            found.append(pytest.param(kind, name, marks=marks, id=f"{kind.name}-{name}"))
    return found


def misses(kind, name, dump, clean, room):
    """Plant a kind at some of its places in a queue.  Returns what was planted, and what was missed of it."""
    only = set(QUEUES) if kind.together else with_others(name)
    everything, missed = [], []
    for tree, planted in plants_of(kind, name, lambda: Tree(dump, only=only), PLACES):
        everything.append(planted)
        target = tree.write(room / "planted")
        try:
            said = outcome(kind, clean, ask(target))
            if not said.found:
                missed.append((planted.place, planted.seq, said.text or "nothing is said"))
        except Refused as error:
            if not kind.undecidable:
                missed.append((planted.place, planted.seq, f"refused: {error}"))
        shutil.rmtree(target)
    return everything, missed

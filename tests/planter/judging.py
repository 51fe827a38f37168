"""The cases of the tests: each kind in each of its queues, and which of its plants the audit misses."""

import os
import shutil
from functools import cache
from pathlib import Path

import pytest
from tests.planter.asking import Known, Refused, ask, outcome
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
            said = outcome(kind, clean, ask_quickly(dump, target))
            if not said.found:
                missed.append((planted.place, planted.seq, said.text or "nothing is said"))
        except Refused as error:
            if not kind.undecidable:
                missed.append((planted.place, planted.seq, f"refused: {error}"))
        shutil.rmtree(target)
    return everything, missed


known = cache(Known)
SCANNED = ("msgs.", "acks.", "journal.")


def ask_quickly(dump, target):
    """As ask(): segments of ``target`` whose files are those of the dump are read once for all questions."""
    changed = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()
               and not is_same(path, Path(dump, path.relative_to(target)))} - {"manifest.json"}
    if all(os.path.basename(path).startswith(SCANNED) for path in changed):
        return known(dump).ask(target, changed)
    return ask(target)


def is_same(path, other):
    """Whether it is a second name of the other file, which Tree.write() gives to what nobody has changed."""
    return other.exists() and path.samefile(other)

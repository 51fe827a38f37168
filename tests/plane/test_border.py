"""The pages of the border (``plane/*.pyi``) name what the compiled plane has, and nothing else."""

import ast
from pathlib import Path

import pytest

from brokerd import plane

PAGES = sorted(Path(plane.__file__).parent.glob("*.pyi"))
PROTOCOLS = {"Participant"}     # that the plane calls, and does not make


def on_the_pages(kind):
    """The definitions of that kind, by name."""
    return {node.name: node for page in PAGES for node in ast.parse(page.read_text()).body if isinstance(node, kind)}


def members(node):
    """The verbs and attributes that a page gives a class."""
    found = set()
    for each in node.body:
        if isinstance(each, ast.FunctionDef):
            found.add(each.name)
        elif isinstance(each, ast.AnnAssign):
            found.add(each.target.id)
    return {name for name in found if not name.startswith("_")}


CLASSES = on_the_pages(ast.ClassDef)


def test_the_pages_name_each_class_and_function_of_the_plane():
    compiled = {name for name, value in vars(plane).items()
                if getattr(value, "__module__", None) == plane._compiled.__name__}
    of_tests = {"TrialGate", "TrialLog"}        # gates.pxi: only in the build for tests
    assert compiled - of_tests == set(CLASSES) - PROTOCOLS | set(on_the_pages(ast.FunctionDef))


@pytest.mark.parametrize("name", sorted(set(CLASSES) - PROTOCOLS))
def test_the_pages_give_a_class_the_verbs_that_it_has(name):
    compiled = {verb for verb in vars(getattr(plane, name)) if not verb.startswith("_")}
    assert compiled == members(CLASSES[name])

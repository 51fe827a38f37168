"""Names in order: whatever comes and goes, also while they are put in order."""

from random import Random

import pytest

from brokerd.vhost import sorted_names as module
from brokerd.vhost.sorted_names import SortedNames


def asked(names, is_over=lambda: False, between=lambda: None):
    """The answer, and how many pieces it took."""
    steps, pieces = names.in_order(is_over), 1
    try:
        while True:
            next(steps)
            pieces += 1
            between()
    except StopIteration as end:
        return end.value, pieces


@pytest.mark.parametrize("changes_max", [5, 10_000])
def test_names_are_in_order_whatever_comes_and_goes_between_questions(monkeypatch, changes_max):
    monkeypatch.setattr(module, "CHANGES_MAX", changes_max)
    random, things = Random(7), dict.fromkeys(f"{number * 7919 % 3001:04}" for number in range(3001))
    names = SortedNames(things)
    for _ in range(50):
        for name in (f"{random.randrange(6000):04}" for _ in range(random.randrange(20))):
            if things.pop(name, names) is names:
                things[name] = None
            names.changed(name)
        assert asked(names)[0] == sorted(things)


def test_changes_while_the_names_are_put_in_order_are_in_the_next_answer():
    things = dict.fromkeys(f"{number:04}" for number in range(1000))
    names, count = SortedNames(things), 0

    def change():
        nonlocal count
        count += 1
        for name in (f"{count:04}", f"new{count:04}"):
            if things.pop(name, names) is names:
                things[name] = None
            names.changed(name)

    first, pieces = asked(names, lambda: True, change)
    assert pieces > 1000
    assert first == sorted(set(first))
    assert asked(names)[0] == sorted(things)


def test_two_questions_at_once_agree():
    things = dict.fromkeys(map(str, range(2000)))
    names = SortedNames(things)
    inner = []
    outer, _ = asked(names, lambda: True, lambda: inner or inner.append(asked(names)[0]))
    assert outer == inner[0] == sorted(things)


def test_a_second_question_takes_one_piece_and_changes_its_answer_do_not_reach_the_first():
    things = dict.fromkeys(map(str, range(2000)))
    names = SortedNames(things)
    calls = []
    first, _ = asked(names)
    kept = first.copy()
    things["new"] = None
    names.changed("new")
    second, _ = asked(names, lambda: calls.append(1))
    assert len(calls) == 1  # for the one change
    assert (first, second) == (kept, sorted(things))


def test_changes_that_nobody_asks_about_take_no_memory_without_end():
    names = SortedNames({})
    for number in range(100_000):
        names.changed(str(number))
    assert names._changes is None
    asked(names)
    for number in range(100_000):
        names.changed(str(number))
    assert names._changes is None
    assert names._names is None

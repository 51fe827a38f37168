"""Lists: filters, order, pages; and that a long one is made in pieces."""

import json
from types import SimpleNamespace

import pytest

from brokerd.operations import OperationError, jobs
from brokerd.operations.jobs import IN_THREAD, ON_LOOP, Encoded
from brokerd.operations.lists import MANY_ROWS, SORTED_AT_ONCE, InOrder, Listing
from brokerd.vhost.sorted_names import SortedNames


def paging(**fields):
    return SimpleNamespace(**({"name": "", "use_regex": False, "page": 0, "page_size": 100} | fields))


def made(names, describe=lambda name: {"name": name}, **fields):
    """The answer of a list of things that are their names, and how many pieces it took.  It looks at things on the loop
    alone."""
    place, pieces = ON_LOOP, 1

    def on_the_loop(name):
        assert place is ON_LOOP
        return describe(name)

    steps = Listing(((name, name, name) for name in names), on_the_loop, paging(**fields)).steps()
    try:
        while True:
            place = next(steps)
            assert place in (ON_LOOP, IN_THREAD)
            pieces += 1
    except StopIteration as end:
        answer = end.value
    assert isinstance(answer, Encoded)
    return json.loads(b"".join(answer.parts)), pieces


def names_of(answer):
    return [row["name"] for row in answer["items"]]


def test_a_list_is_in_order_of_the_keys_whatever_their_number():
    names = [f"{number * 7919 % 5003:05}" for number in range(5003)]
    assert len(names) > 3 * SORTED_AT_ONCE
    answer, _ = made(names)
    assert names_of(answer) == sorted(names)
    assert (answer["total_count"], answer["filtered_count"], answer["page_count"]) == (5003, 5003, 1)


@pytest.mark.parametrize(("fields", "found"), [
    ({"name": "b"}, ["ab", "b.c"]), ({"name": "^b", "use_regex": True}, ["b.c"]), ({"name": "^b"}, []),
    ({"name": "."}, ["b.c"]), ({"name": ".", "use_regex": True}, ["a", "ab", "b.c"]),
])
def test_a_name_is_looked_for_as_text_or_as_a_regular_expression(fields, found):
    answer, _ = made(["b.c", "a", "ab"], **fields)
    assert (names_of(answer), answer["total_count"], answer["filtered_count"]) == (found, 3, len(found))


def test_a_page_has_its_rows_and_no_other_is_described():
    described = []
    answer, _ = made([f"{n:03}" for n in range(205)], lambda name: described.append(name) or {"name": name},
                     page=3, page_size=100)
    assert names_of(answer) == described == [f"{n:03}" for n in range(200, 205)]
    assert (answer["page"], answer["page_count"], answer["filtered_count"]) == (3, 3, 205)
    assert made(["a"], page=2)[0]["items"] == []


def test_what_has_gone_meanwhile_is_left_out():
    assert names_of(made(["a", "b", "c"], lambda name: None if name == "b" else {"name": name})[0]) == ["a", "c"]
    assert made(["a"], lambda name: None)[0]["items"] == []


@pytest.mark.parametrize("count", [MANY_ROWS - 1, MANY_ROWS])
def test_names_come_as_they_are_also_those_that_are_not_utf_8(count):
    names = ["a é", "b \udcff", *(f"c{number:04}" for number in range(count - 2))]
    assert names_of(made(names)[0]) == names


def test_a_long_list_lets_others_have_their_turn(monkeypatch):
    now = iter(range(0, 1 << 40, 100_000))  # Each look at the clock costs 0.1 ms.
    monkeypatch.setattr(jobs, "monotonic_ns", lambda: next(now))
    monkeypatch.setattr(jobs, "PIECE_NS", 1_000_000)
    assert made([str(n) for n in range(1000)])[1] > 250


def test_an_expression_that_is_none_is_refused_by_name():
    with pytest.raises(OperationError, match="name is no regular expression") as no:
        made([], name="(", use_regex=True)
    assert no.value.code == 400


def test_what_is_kept_in_order_has_the_same_pages_as_what_is_sorted():
    parts = [(SortedNames(dict.fromkeys(f"{number * 7919 % 503:03}" for number in range(count))), whose)
             for count, whose in ((503, "a"), (0, "b"), (250, "c"))]

    def listed(find, **fields):
        steps = Listing(find, lambda found: None if found[1] == "007" else {"of": found[0], "name": found[1]},
                        paging(**fields)).steps()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return json.loads(b"".join(end.value.parts))

    for fields in ({}, {"page": 1}, {"page": 3, "page_size": 200}, {"page": 9}, {"name": "1"},
                   {"name": "^.0", "use_regex": True, "page": 2, "page_size": 60}):
        things = [(each, each[1], each) for names, whose in parts for each in ((whose, name) for name in names._things)]
        assert listed(InOrder(parts), **fields) == listed(things, **fields)

"""Tables for people: columns, names and values, and no value of Python."""

import re

import pytest

from brokerd.cli import ctl_tables
from brokerd.operations import table
from brokerd.operations.lists import Page


def test_a_list_is_a_table_whose_numbers_stand_at_the_right():
    answer = {"items": [{"name": "a", "n": 5, "on": True}, {"name": "longer", "n": 1000, "on": False}]}
    assert ctl_tables.rows(answer, columns=("name", "n", "on")) == (
        "name       n  on\na          5  yes\nlonger  1000  no")


def test_an_empty_list_says_so_and_a_page_says_what_it_leaves_out():
    assert ctl_tables.rows({"items": []}, columns=("name",)) == "none"
    answer = {"items": [{"name": "a"}], "filtered_count": 7}
    assert ctl_tables.rows(answer, columns=("name",)).endswith("\n(1 of 7)")
    assert "dry run" in ctl_tables.rows({"changes": [{"name": "a"}], "count": 1, "dry_run": True}, columns=("name",))


@pytest.mark.parametrize(("value", "text"), [
    (None, ""), (True, "yes"), (False, "no"), ({}, ""), ([], ""), (["a", "b"], "a, b"), ({"a": None}, '{"a": null}'),
    ([1, True], "[1, true]"), ("a\x1b[1m", "a\\x1b[1m"), (1.5, "1.5"),
])
def test_no_value_of_python_is_shown(value, text):
    assert ctl_tables.shown(value) == text


def test_one_thing_is_names_and_values_and_done_is_done():
    assert ctl_tables.things({"done": True}) == "done"
    assert ctl_tables.things({"name": "q", "messages_ready": 3, "stats": {"ack": 1}, "last_used": 0}) == (
        "name            q\nmessages ready  3\nstats:\n  ack           1\nlast used")


def test_a_wide_table_cuts_its_cells(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = ctl_tables.rows({"items": [{"a": "x" * 100, "b": 1}]}, columns=("a", "b"))
    assert text.splitlines()[1] == "x" * 57 + "...  1"


@pytest.mark.parametrize("key", ctl_tables.COLUMNS, ids=" ".join)
def test_every_column_is_a_field_of_the_rows(key):
    row = table.by_name()[" ".join(key)]
    schema = table.adapter(row.answer).json_schema()
    listed = schema["properties"].get("items") or schema["properties"]["changes"]
    fields = schema["$defs"][listed["items"]["$ref"].rpartition("/")[2]]["properties"]
    assert set(ctl_tables.COLUMNS[key]) <= set(fields)


def test_a_list_of_nothing_but_rows_is_a_table():
    pages = set(table.adapter(Page).json_schema()["properties"])
    for name, row in table.by_name().items():
        noun, verb = name.split()
        fields = set(table.adapter(row.answer).json_schema().get("properties", ()))
        if verb == "list" and fields - pages == {"items"}:
            assert (noun, verb) in ctl_tables.COLUMNS, name


def test_times_of_a_list_are_shown_as_times():
    shown = ctl_tables.rows({"items": [{"at": 1_700_000_000_062, "user": "ann"}, {"at": 0, "user": "bob"}]},
                            columns=("at", "user")).splitlines()
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.062  ann", shown[1])
    assert shown[2].split() == ["bob"]

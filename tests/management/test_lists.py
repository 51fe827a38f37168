"""Order, pages and columns of lists."""

import asyncio
import json

import pytest

from brokerd.management.answers import BadRequest
from brokerd.management.lists import answer_list, in_order, list_here, make_list, only_columns


class Call:
    """A request, and what the broker answers to it."""

    def __init__(self, query, rows=()):
        self.query, self.rows, self.asked = query, list(rows), []

    async def ask(self, verb, **fields):
        self.asked.append((verb, fields))
        rows = [row for row in self.rows if fields.get("name", "") in row["name"]]
        counts = {"total_count": len(self.rows), "filtered_count": len(rows)}
        if "page" in fields:
            begin = (fields["page"] - 1) * fields["page_size"]
            rows = rows[begin:begin + fields["page_size"]]
        return {"items": [dict(row) for row in rows], **counts}


def answer(query, rows):
    call = Call(query, rows)
    return asyncio.run(make_list(call, "queue list", lambda row: row)), call.asked


ROWS = [{"name": name, "stats": {"n": number}} for number, name in enumerate("cab")]


def test_without_parameters_the_list_is_plain():
    assert answer({}, ROWS) == (ROWS, [("queue list", {})])


def test_a_page_is_cut_by_the_broker():
    found, asked = answer({"page": "2", "page_size": "2", "name": "", "pagination": "false"}, ROWS)
    assert asked == [("queue list", {"page": 2, "page_size": 2})]
    assert found == {"items": ROWS[2:], "item_count": 1, "filtered_count": 3, "total_count": 3, "page": 2,
                     "page_size": 2, "page_count": 2}


def test_a_filter_needs_a_page_as_with_rabbitmq():
    found, asked = answer({"name": "a"}, ROWS)
    assert (len(found), asked) == (3, [("queue list", {})])
    found, asked = answer({"name": "a", "page": "1", "use_regex": "true"}, ROWS)
    assert asked == [("queue list", {"name": "a", "use_regex": True, "page": 1, "page_size": 100})]
    assert (found["filtered_count"], found["total_count"]) == (1, 3)


def test_order_comes_before_pages():
    found, _ = answer({"sort": "stats.n", "sort_reverse": "true", "page": "1", "page_size": "2"}, ROWS)
    assert [row["name"] for row in found["items"]] == ["b", "a"]


@pytest.mark.parametrize("query", [
    {}, {"columns": "name,stats.n"}, {"sort": "name"}, {"page": "1", "page_size": "2"}, {"name": "a"},
])
@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], []])
def test_an_answer_made_row_by_row_is_the_list(query, rows):
    response = asyncio.run(answer_list(Call(query, rows), "queue list", lambda row: {**row, "more": 1}))
    found = asyncio.run(make_list(Call(query, rows), "queue list", lambda row: {**row, "more": 1}))
    assert json.loads(response.body) == found
    assert response.headers["content-type"] == "application/json"


def test_rows_of_a_whole_list_are_given_up_one_by_one():
    call = Call({}, ROWS)
    given = {"items": [dict(row) for row in ROWS]}
    left = []

    async def ask(verb):
        return given

    def shape(row):
        left.append(len(given["items"]))
        return row

    call.ask = ask
    assert json.loads(asyncio.run(answer_list(call, "queue list", shape)).body) == ROWS
    assert left == [2, 1, 0]


def test_columns_may_lie_in_tables():
    assert only_columns({"a": 1, "b": {"c": 2, "d": 3}}, {"columns": "b.c,x"}) == {"b": {"c": 2}}
    assert only_columns({"a": 1, "b": {"c": 2}}, {"columns": "a,a.b"}) == {"a": 1}


def test_values_of_several_types_have_an_order():
    rows = [{"v": value} for value in ("x", None, 2, True, {"a": 1}, 1.5)]
    assert [row["v"] for row in in_order(rows, "v", reverse=False)][:3] == [True, 1.5, 2]


@pytest.mark.parametrize("query", [
    {"page": "0"}, {"page": "-1"}, {"page": "x"}, {"page": "٣"}, {"page": "1", "page_size": "501"},
    {"page": "1", "page_size": "0"}, {"page": "9" * 400}, {"page": "3", "page_size": "2"},
])
def test_a_page_that_is_none_is_refused(query):
    with pytest.raises(BadRequest, match="page"):
        answer(query, ROWS)


def test_rows_that_are_here_already_are_listed_the_same_way():
    assert list_here(Call({"sort": "name", "columns": "name"}), ROWS) == [{"name": name} for name in "abc"]
    found = list_here(Call({"page": "1", "name": "b"}), ROWS)
    assert (found["filtered_count"], found["total_count"], found["items"]) == (1, 3, [ROWS[2]])

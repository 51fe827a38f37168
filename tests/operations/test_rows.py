"""Rows: what their requests accept, refuse and say."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import TypeAdapter, ValidationError
from tests.test_config import imported_by

from brokerd.operations.rows import Field, Name, Operation, Right, TypedDict, request, request_fields


@request
class Everything:
    name: Annotated[str, Field("Its name.", argument=True, low=1, high=5)]
    count: Annotated[int, Field("How many.", argument=True, low=0, high=9)]
    note: Annotated[str, Field("A note.")] = "none"
    least: Annotated[int, Field("At least.", low=1)] = 1
    most: Annotated[int, Field("At most.", high=7)] = 7
    any_number: Annotated[int, Field("Any number.")] = 0
    long: Annotated[str, Field("Not empty.", low=1)] = "x"
    seconds: Annotated[float, Field("How long.", low=0.5, high=9)] = 1
    on: Annotated[bool, Field("Whether.")] = False
    colour: Annotated[Literal["red", "green"], Field("Which.")] = "red"
    names: Annotated[list[str] | None, Field("Several.")] = None


ADAPTER = TypeAdapter(Everything)


def test_a_request_has_its_defaults_and_does_not_change():
    asked = ADAPTER.validate_python({"name": "a", "count": 2})
    assert (asked.name, asked.count, asked.note, asked.on, asked.names) == ("a", 2, "none", False, None)
    with pytest.raises(AttributeError):
        asked.name = "b"


@pytest.mark.parametrize("fields", [
    {"name": "a"}, {"name": "a", "count": "1"}, {"name": "a", "count": True}, {"name": "a", "count": 10},
    {"name": "a", "count": -1}, {"name": "", "count": 1}, {"name": "abcdef", "count": 1}, {"name": 1, "count": 1},
    {"name": "a", "count": 1, "on": 1}, {"name": "a", "count": 1, "colour": "blue"}, {"name": "a", "count": 1, "x": 1},
    {"name": "a", "count": 1, "names": "a"}, {"name": "a", "count": 1.5}, {"name": None, "count": 1},
    {"name": "a", "count": 1, "least": 0}, {"name": "a", "count": 1, "most": 8},
    {"name": "a", "count": 1, "seconds": 0.4}, {"name": "a", "count": 1, "seconds": True},
    {"name": "a", "count": 1, "seconds": "1"}, {"name": "a", "count": 1, "seconds": float("nan")},
    {"name": "a", "count": 1, "least": 1 << 63},
])
def test_what_is_not_of_the_type_or_out_of_bounds_is_refused(fields):
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(fields)


def test_names_that_are_not_utf_8_are_accepted_in_requests_and_answers():
    assert ADAPTER.validate_python({"name": "q\udcff", "count": 1}).name == "q\udcff"
    assert TypeAdapter(Name).validate_python("q\udcff") == "q\udcff"


def test_every_field_says_what_it_must_be():
    assert {each.name: each.rule for each in request_fields(Everything)} == {
        "name": "a text of 1 to 5 characters", "count": "a whole number from 0 to 9", "note": "a text",
        "least": "a whole number, 1 or more (of 63 bits at most)", "most": "a whole number up to 7",
        "any_number": "a whole number (of 63 bits at most)",
        "long": "a text that is not empty", "seconds": "a number from 0.5 to 9", "on": "true or false",
        "colour": "one of red, green", "names": "",
    }
    assert [each.name for each in request_fields(Everything) if each.required] == ["name", "count"]
    assert request_fields(Everything)[2].default == "none"


def test_the_schema_has_bounds_defaults_and_help():
    schema = ADAPTER.json_schema()
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["name", "count"]
    properties = schema["properties"]
    assert properties["name"] == {
        "title": "Name", "type": "string", "description": "Its name.", "minLength": 1, "maxLength": 5}
    assert (properties["count"]["minimum"], properties["count"]["maximum"]) == (0, 9)
    assert properties["count"]["description"] == "How many."
    assert TypeAdapter(Name).json_schema() == {"type": "string"}


def test_usage_is_the_name_and_the_arguments():
    class Answer(TypedDict):
        done: bool

    row = Operation("thing", "do", "Do it.", Everything, Answer, Right("management"), lambda node, who, asked: {})
    assert (row.name, row.usage) == ("thing do", "thing do NAME COUNT")


def test_rows_are_listed_without_pydantic():
    program = "from brokerd.operations import table; assert len(table.by_name()) > 2"
    modules: Any = imported_by(program)
    assert not modules & {"pydantic", "pydantic_core", "numpy", "json", "asyncio", "brokerd.plane"}

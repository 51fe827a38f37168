"""Commands made from rows: a row added to the table is a command, with its arguments, options and help."""

import json
import re
import threading
from typing import Annotated, Literal

import pytest
from tests.broker import SECONDS

from brokerd import local_socket
from brokerd.cli import brokerctl
from brokerd.operations import table
from brokerd.operations.rows import Field, Operation, Right, TypedDict, request


@request
class Asked:
    name: Annotated[str, Field("Its name.", argument=True)]
    out: Annotated[str, Field("A folder.", path=True)] = "."
    most_octets: Annotated[int, Field("Size.", low=1, high=9)] = 5
    colour: Annotated[Literal["red", "green"], Field("Colour.")] = "red"
    fast: Annotated[bool, Field("Whether it is fast.")] = True
    slow: Annotated[bool, Field("Whether it is slow.")] = False
    arguments: Annotated[dict[str, int] | None, Field("Arguments.")] = None
    note: Annotated[str, Field("A note.")] = ""
    names: Annotated[list[str], Field("Names.", verbatim=True)] = ()
    rank: Annotated[int, Field("Rank.")] = 0
    comment: Annotated[str | None, Field("A comment.")] = None
    tags: Annotated[list[str] | None, Field("Tags.")] = None


class Answer(TypedDict):
    name: str


ROW = Operation("thing", "make_one", """Make a thing.

    It takes a while.
    """, Asked, Answer, Right("administrator"), lambda node, who, request: {"name": ""}, changes=True,
    aliases=("make_thing",), presets={"make_fast": {"fast": True, "colour": "red", "note": None}})
DEFAULTS = {"most_octets": 5, "colour": "red", "fast": True, "slow": False, "note": "", "rank": 0}


@pytest.fixture(autouse=True)
def row(monkeypatch):
    monkeypatch.setitem(table.by_name(), ROW.name, ROW)
    return ROW


@pytest.fixture
def ctl(tmp_path, capsys, monkeypatch):
    """Run a command line on a broker that answers once with ``answer``: status, output, error, what it was asked."""
    def run(*arguments, answer=None):
        asked = []
        server = local_socket.bind(str(tmp_path))
        server.settimeout(SECONDS)
        server.listen()

        def serve():
            with server.accept()[0] as client:
                asked.append(json.loads(client.makefile("rb").readline()))
                client.sendall(json.dumps(answer or {"result": {"name": "x"}}).encode() + b"\n")

        thread = threading.Thread(target=serve)
        if answer is not None:
            thread.start()
        with server:
            status = brokerctl.run(["-D", str(tmp_path), *arguments])
            if answer is not None:
                thread.join(SECONDS)
        return status, *capsys.readouterr(), asked

    monkeypatch.chdir(tmp_path)
    return run


def test_it_is_listed_with_its_help(ctl):
    out = ctl("--help")[1]
    assert re.search(r"\n  thing  +Operations: make_one.\n", out)
    assert re.search(r"\n  make_thing  +brokerctl thing make_one\n", out)
    out = ctl("thing", "make_one", "--help")[1]
    assert out.startswith("Usage: brokerctl thing make_one [OPTIONS] NAME\n\n  Make a thing.\n\n  It takes a while.\n\n"
                          "  NAME  Its name.\n")
    for line in ("--most-octets INTEGER RANGE", "Size.  [default: 5]", "--colour [red|green]", "--fast / --no-fast",
                 "--slow / --no-slow", "--arguments JSON", "--names TEXT", "Names.\n", "--rank INTEGER", "Rank.\n",
                 "--comment TEXT", "--tags WORDS", "--json"):
        assert line in out, line
    assert "--watch" not in out, "what changes something is not repeated"


def test_its_request_has_what_was_given_and_the_defaults(ctl, tmp_path):
    status, out, err, asked = ctl("thing", "make_one", "x", answer={"result": {"name": "x", "octets": 5}})
    assert (status, out, err) == (0, "name    x\noctets  5\n", "")
    assert asked == [{"verb": "thing make_one", "name": "x", "out": str(tmp_path), **DEFAULTS}]
    _, _, _, asked = ctl("make_thing", "y", "--out", "there", "--most-octets", "9", "--colour", "green", "--no-fast",
                         "--slow", "--arguments", '{"a": 1}', "--note", "q\udcff", answer={"result": {}})
    assert asked == [{"verb": "thing make_one", "name": "y", "out": f"{tmp_path}/there", "most_octets": 9,
                      "colour": "green", "fast": False, "slow": True, "arguments": {"a": 1}, "note": "q\udcff",
                      "rank": 0}]


def test_a_preset_gives_some_fields_and_makes_an_argument_of_another(ctl):
    _, _, err, asked = ctl("make_fast", "y", "a note", answer={"result": {}})
    assert err == ""
    wanted = {"verb": "thing make_one", "name": "y", "fast": True, "colour": "red", "note": "a note"}
    assert asked[0] | wanted == asked[0]
    assert "--fast" not in ctl("make_fast", "--help")[1]
    assert ctl("make_fast", "y")[0] == 2  # The note is missing.
    assert re.search(r"\n  make_fast  +brokerctl thing make_one\n", ctl("--help")[1])


def test_what_may_be_left_out_is_given_as_what_it_is(ctl):
    _, _, err, asked = ctl("thing", "make_one", "x", "--comment", "for orders", "--tags", "a, b", "--rank", "-3",
                           answer={"result": {}})
    assert err == ""
    assert {name: asked[0][name] for name in ("comment", "tags", "rank")} == {
        "comment": "for orders", "tags": ["a", "b"], "rank": -3}


def test_json_is_what_was_answered(ctl):
    assert ctl("thing", "make_one", "x", "--json", answer={"result": {"name": "z"}})[1] == '{"name": "z"}\n'


def test_a_refusal_is_one_line(ctl):
    assert ctl("thing", "make_one", "x", answer={"error": "no such thing", "code": 404})[:3] == (
        1, "", "brokerctl: no such thing\n")


@pytest.mark.parametrize(("arguments", "told"), [
    (["x", "--most-octets", "10"], "10 is not in the range"), (["x", "--colour", "blue"], "'blue' is not one of"),
    (["x", "--arguments", "{"], "not JSON: "), ([], "Missing argument 'NAME'"), (["x", "--watch"], "No such option"),
])
def test_what_the_request_would_refuse_is_refused_before_it_is_asked(ctl, arguments, told):
    status, out, err, _ = ctl("thing", "make_one", *arguments)
    assert (status, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1
    assert "(see brokerctl thing make_one --help)" in err


def test_an_option_whose_texts_may_have_commas_stands_once_for_each_of_them(ctl):
    status, _, err, asked = ctl("thing", "make_one", "x", "--names", "a, b", "--names", "c", answer={"result": {}})
    assert (status, err) == (0, "")
    assert asked[0]["names"] == ["a, b", "c"]

"""Every operation with strange values in every field: no answer is a 500, each is one that the document names, and the
broker lives on.
"""

import json

import pytest
from tests.broker import Broker
from tests.management.http import Http, reserve_http

from brokerd.operations import table
from brokerd.operations.rows import request_fields

STRANGE = (None, True, -1, 0, 2**70, 1.5, "", "none", "(", "a\0b", "\ud800", "x" * 70_000, [], ["\n"], {}, {"": {}},
           "*", "9" * 30, "../../x")


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    port = reserve_http()
    with Broker(tmp_path_factory.mktemp("walked") / "data", "--http-port", port) as broker:
        broker.wait_for_log(r"\(HTTP\)")
        broker.http = Http(port)
        broker.documented = broker.http.get("/api/v2/openapi.json")["paths"]
        yield broker
        assert broker.http.get("/api/whoami")["name"] == "guest"
    broker.check_log()


def plain(field):
    """A value of the right kind that means nothing that is there."""
    if field.choices:
        return field.choices[0]
    return {bool: False, int: max(1, field.field.low or 1), str: "none"}.get(field.type, {})


@pytest.mark.parametrize("row", table.by_name().values(), ids=lambda row: row.name)
def test_no_value_of_a_field_is_too_strange(walked, row):
    fields = request_fields(row.request)
    path = f"/api/v2/{row.noun}/{row.verb}"
    known = {int(status) for status in walked.documented[path]["post"]["responses"]}
    whole = {each.name: plain(each) for each in fields if each.required}
    for each in fields:
        for value in STRANGE:
            body = json.dumps({**whole, each.name: value}).encode()
            answer = walked.http.ask("POST", path, body)
            assert answer.status in known - {500, 503}, (each.name, str(value)[:80], answer)
    for body in (b"", b"null", b"1", b'""', b"{}", b'{"x": 1e999}', b"[{}]"):
        assert walked.http.ask("POST", path, body).status in known - {500, 503}, body

"""The OpenAPI document: whole, and true of what the broker answers."""

import json

from brokerd.management import openapi
from brokerd.operations import table


def test_every_operation_is_described(http):
    found = http.get("/api/v2/openapi.json")
    assert found["openapi"] == "3.1.0"
    for row in table.by_name().values():
        described = found["paths"][f"/api/v2/{row.noun}/{row.verb}"]["post"]
        assert described["summary"].endswith(".")
        assert described["requestBody"]["content"]["application/json"]["schema"]
        assert {"200", "400", "401", "403", "404"} <= described["responses"].keys()
    posts = [each.get("post", {}) for each in found["paths"].values()]
    names = [each["operationId"] for each in posts if "operationId" in each]
    assert len(names) == len(set(names))


def test_every_reference_leads_somewhere():
    found = json.loads(openapi.document())

    def walk(node):
        if isinstance(node, dict):
            if "$ref" in node:
                place = found
                for word in node["$ref"].removeprefix("#/").split("/"):
                    place = place[word]
            for each in node.values():
                walk(each)
        elif isinstance(node, list):
            for each in node:
                walk(each)

    walk(found)


def test_answers_have_the_shape_that_is_described(http):
    from pydantic import TypeAdapter

    for noun in ("queue", "exchange", "binding", "connection", "channel", "consumer", "vhost", "user", "permission",
                 "policy"):
        TypeAdapter(table.find(f"{noun} list").answer).validate_python(http.do(noun, "list"))
    TypeAdapter(table.find("node show").answer).validate_python(http.do("node", "show"))

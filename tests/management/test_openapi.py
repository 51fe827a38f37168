"""The OpenAPI document: whole, and true of what the broker answers."""

import http.client
import json
import random
import re

import pytest
from pydantic import TypeAdapter, ValidationError
from tests.broker import SECONDS, Broker
from tests.management.http import Http, basic, reserve_http

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


def test_a_name_of_two_nouns_is_two_schemas():
    found = json.loads(openapi.document())
    schemas = found["components"]["schemas"]
    for noun, field in (("change", "operation"), ("definitions", "action")):
        (verb,) = [each for each in ("list", "import") if f"/api/v2/{noun}/{each}" in found["paths"]]
        answer = found["paths"][f"/api/v2/{noun}/{verb}"]["post"]["responses"]["200"]["content"]["application/json"]
        refs = re.findall(r"#/components/schemas/([\w.]+)", json.dumps(answer))
        assert any(field in schemas[ref]["properties"] for ref in refs), (noun, refs)


def test_answers_have_the_shape_that_is_described(http):
    for noun in ("queue", "exchange", "binding", "connection", "channel", "consumer", "vhost", "user", "permission",
                 "policy"):
        TypeAdapter(table.find(f"{noun} list").answer).validate_python(http.do(noun, "list"))
    TypeAdapter(table.find("node show").answer).validate_python(http.do("node", "show"))


# --- requests made at random from the document, right ones and wrong ones

SEED = 1
REQUESTS = 8  # of each operation
WORDS = ("q", "lazy", "stream", "e", "news", "/", "side", "none", "nobody", "bob", "a.b", "", "*", "[", "^(a+)+$", "é",
         "x" * 300, "0", "shovel", "name\nwith a line")
ODD = (None, True, -1, 1.5, 1 << 70, "", "x" * 70_000, [], {}, [[[]]], {"a": {"b": 1}}, "\0", [None], {"": None})
SIDE = "side"  # Where something may go for good; guest and the vhost / are needed to ask.


class Asker:
    """Makes requests of one schema."""

    def __init__(self, seed, document, folder):
        self.rng = random.Random(seed)
        self.document = document
        self.folder = folder

    def value(self, schema, name="", depth=0):
        """Something that the schema describes, as far as it says."""
        rng = self.rng
        if "$ref" in schema:
            node = self.document
            for word in schema["$ref"].removeprefix("#/").split("/"):
                node = node[word]
            return self.value(node, name, depth)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self.value(rng.choice(schema[key]), name, depth)
        if "enum" in schema or "const" in schema:
            return rng.choice(schema.get("enum", [schema.get("const")]))
        if name in ("file", "out"):
            return f"{self.folder}/{rng.randrange(10**6)}"
        if name == "vhost":
            return SIDE
        if name == "wait":
            return 0
        kind = schema.get("type", rng.choice(("string", "integer", "object", "boolean")))
        kind = rng.choice(kind) if isinstance(kind, list) else kind
        if kind == "integer":
            low, high = schema.get("minimum", -5), schema.get("maximum", 1 << 40)
            return rng.choice((low, high, min(high, max(low, 1)), rng.randint(low, high)))
        if kind == "array":
            return [self.value(schema.get("items", {}), depth=depth + 1) for _ in range(rng.randrange(3))]
        if kind == "object":
            properties = schema.get("properties", {})
            required = schema.get("required", ())
            found = {key: self.value(each, key, depth + 1) for key, each in properties.items()
                     if key in required or rng.random() < 0.4}
            if not properties and depth < 3:
                found = {rng.choice(WORDS): self.value({}, depth=depth + 1) for _ in range(rng.randrange(3))}
            return found
        return {"boolean": rng.random() < 0.5, "number": 1.5, "null": None}.get(kind, rng.choice(WORDS))

    def spoiled(self, fields):
        """The same with one fault, or none that counts."""
        rng = self.rng
        fields = dict(fields)
        names = list(fields)
        if names and rng.random() < 0.3:
            del fields[rng.choice(names)]
        elif names and rng.random() < 0.8:
            fields[rng.choice(names)] = rng.choice(ODD)
        else:
            fields["no_such_field"] = rng.choice(ODD)
        return fields


@pytest.fixture(scope="module")
def wild(tmp_path_factory):
    """A broker with a little of everything, for requests that nobody would send."""
    folder, port = tmp_path_factory.mktemp("wild"), reserve_http()
    with Broker(folder / "data", "--http-port", port, "--failed-logins-per-second", 0) as broker:
        broker.wait_for_log(r"\(HTTP\)")
        asker = Http(port)
        for noun, verb, fields in (
            ("vhost", "add", {"vhost": SIDE}),
            ("permission", "set", {"user": "guest", "vhost": SIDE, "configure": ".*", "write": ".*", "read": ".*"}),
            ("user", "add", {"user": "bob", "password": "secret"}),
            ("queue", "declare", {"queue": "q", "vhost": SIDE, "durable": True}),
            ("queue", "declare", {"queue": "stream", "vhost": SIDE, "durable": True,
                                  "arguments": {"x-queue-type": "stream"}}),
            ("exchange", "declare", {"exchange": "news", "vhost": SIDE, "type": "topic", "durable": True}),
            ("message", "publish", {"exchange": "", "routing_key": "q", "payload": "x", "vhost": SIDE}),
            ("message", "publish", {"exchange": "", "routing_key": "stream", "payload": "x", "vhost": SIDE}),
        ):
            asker.do(noun, verb, **fields)
        broker.http, broker.folder = asker, folder
        yield broker
        assert asker.get("/api/whoami")["name"] == "guest"
        assert "internal error" not in broker.log_text()


def wanted(name, fields):
    """Whether a request leaves what the others need."""
    if fields.get("user") == "guest":
        return False
    return name not in ("vhost delete",) or fields.get("vhost") not in ("/", SIDE)


@pytest.mark.parametrize("noun", table.NOUNS)
def test_no_request_has_an_answer_that_is_not_described(wild, noun):
    document = json.loads(openapi.document())
    connection = http.client.HTTPConnection("127.0.0.1", wild.http.port, timeout=SECONDS)
    headers = {"authorization": basic("guest", "guest"), "content-type": "application/json"}
    seen = set()
    for name, row in table.by_name().items():
        if row.noun != noun:
            continue
        path = f"/api/v2/{row.noun}/{row.verb}"
        described = document["paths"][path]["post"]
        schema = described["requestBody"]["content"]["application/json"]["schema"]
        asker = Asker(f"{SEED} {name}", document, wild.folder)
        for number in range(REQUESTS):
            fields = asker.value(schema)
            if number % 2:
                fields = asker.spoiled(fields)
            if not wanted(name, fields):
                continue
            connection.request("POST", path, json.dumps(fields), headers)
            answer = connection.getresponse()
            octets = answer.read()
            told = f"{name} {json.dumps(fields)[:500]} -> {answer.status} {octets[:300]!r}"
            seen.add(answer.status)
            assert str(answer.status) in described["responses"], told
            assert answer.status < 500, told
            body = json.loads(octets)
            if answer.status == 200:
                try:
                    TypeAdapter(row.answer).validate_python(body)
                except ValidationError as error:
                    pytest.fail(f"{told}: {error}")
            else:
                assert answer.headers["content-type"] == "application/problem+json", told
                assert set(openapi.PROBLEM["required"]) <= body.keys(), told
                assert body["status"] == answer.status
                assert body["detail"], told
    connection.close()
    assert 400 in seen

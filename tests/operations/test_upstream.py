"""Upstreams: how many links each has, and no password."""

from tests.operations.linked import Linked

from brokerd.operations.upstream import OPERATIONS

ROWS = {row.verb: row for row in OPERATIONS}


def test_an_upstream_counts_its_links_and_those_that_run(tmp_path):
    linked = Linked(tmp_path)
    linked.put("federation-upstream", "u", {"uri": ["amqp://a:b@h", "amqp://g"], "max-hops": 2})
    linked.put("federation-upstream", "u", {"uri": "amqp://g"}, vhost="v")
    linked.put("federation-upstream-set", "set", [{"upstream": "u"}])
    linked.state("queue", "q", upstream="u", state="running")
    linked.state("exchange", "x", upstream="u", state="starting")
    linked.state("exchange", "x", upstream="other", state="running")
    linked.state("shovel", "u", state="running")
    assert linked.list(ROWS["list"]) == [
        {"vhost": "/", "name": "u", "links": 2, "running": 1,
         "definition": {"uri": ["amqp://a:***@h", "amqp://g"], "max-hops": 2}},
        {"vhost": "v", "name": "u", "links": 0, "running": 0, "definition": {"uri": "amqp://g"}},
    ]  # fmt: skip
    assert len(linked.list(ROWS["list"], vhost="v")) == 1

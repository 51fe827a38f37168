"""Rows of federated queues and exchanges, by themselves.  Real brokers: carriers/test_federation."""

from types import SimpleNamespace

import pytest
from tests.session.harness import Node

from brokerd.links.definition import UPSTREAM, UPSTREAM_SET
from brokerd.policies import Policies
from brokerd.policies.parameters import Key
from brokerd.policies.policies import Policy
from brokerd.server import federated
from brokerd.store.disk import Disk


@pytest.fixture
def vhost(tmp_path):
    vhost = Node(tmp_path).vhost
    vhost.policies = Policies(str(tmp_path), Disk())
    vhost.policies.put(Policy("fed", "^(f|amq.topic)", {"federation-upstream": "up"}))
    vhost.apply_rules()
    return vhost


def walk(vhost):
    parameters = [(Key(UPSTREAM, "/", "up"), {"uri": "amqp://there"})]
    return federated.rows(SimpleNamespace(vhosts={"/": vhost}, parameters=parameters))


def add(vhost, name):
    return vhost.add_queue(name, durable=False, auto_delete=False, arguments={})


def names(rows):
    return [row["key"][2] for row in rows if row is not None]


@pytest.mark.parametrize(("definition", "parameters", "found"), [
    ({"federation-upstream": "nix"}, {}, {"nix": "there is no upstream 'nix'"}),
    ({"federation-upstream": "up"}, {(UPSTREAM, "up"): {"uri": "amqp://a"}}, {"up": {"uri": "amqp://a"}}),
    ({"federation-upstream-set": "s"}, {(UPSTREAM, "s"): {"uri": "amqp://a"}}, {"s": "there is no upstream set 's'"}),
    ({"federation-upstream-set": "s"},
     {(UPSTREAM, "up"): {"uri": "amqp://a", "queue": "q"},
      (UPSTREAM_SET, "s"): [{"upstream": "up", "queue": "other"}, {"upstream": "nix"}]},
     {"up": {"uri": "amqp://a", "queue": "other"}, "nix": "there is no upstream 'nix', which upstream set 's' names"}),
    ({"federation-upstream-set": "all"}, {}, {}),
    ({"federation-upstream-pattern": "^u"}, {(UPSTREAM, "v"): {"uri": "amqp://a"}}, {}),
    ({"max-length": 5}, {}, {}),
])
def test_a_policy_means_its_upstreams_and_what_is_missing_is_told(definition, parameters, found):
    node = SimpleNamespace(parameters=[(Key(component, "/", name), value)
                                       for (component, name), value in parameters.items()])
    assert federated.Upstreams(node, "/").named_by(definition) == found


def test_a_walk_may_rest_after_each_queue_and_exchange_also_after_those_without_a_link(vhost):
    for number in range(50):
        add(vhost, f"x{number}")
    found = list(walk(vhost))
    assert names(found) == ["amq.topic"]
    assert found.count(None) >= len(vhost.queues) + len(vhost.exchanges)


def test_a_walk_rests_within_many_bindings(vhost):
    queue = add(vhost, "q")
    exchange = vhost.exchanges["amq.topic"]
    for number in range(10 * federated.BINDINGS_AT_ONCE):
        vhost.bind(exchange, queue, f"k{number}", {})
    found = list(walk(vhost))
    row, = (row for row in found if row is not None)
    assert len(row["bindings"]) == 10 * federated.BINDINGS_AT_ONCE
    assert found.count(None) >= len(vhost.queues) + len(vhost.exchanges) + 10


def test_what_comes_and_goes_while_a_walk_rests_disturbs_nothing(vhost):
    first, second = add(vhost, "f1"), add(vhost, "f2")
    rows = walk(vhost)
    assert next(rows) is None
    second.deleted = True
    del vhost.queues["f2"]
    add(vhost, "f3")
    vhost.policies.delete("fed")
    vhost.apply_rules()
    assert names(rows) == []
    vhost.policies.put(Policy("fed", "^f", {"federation-upstream": "up"}))
    vhost.apply_rules()
    assert names(walk(vhost)) == [first.name, "f3"]

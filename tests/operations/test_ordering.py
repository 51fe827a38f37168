"""What is told of a queue's order."""

import json

import pytest
from tests.operations.stand_in import Place

from brokerd.operations import OperationError
from brokerd.operations.ordering import group_counters, ordering
from brokerd.policies import Policy
from brokerd.store.format import ORDER_COUNTERS


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "data")


def test_a_queue_nobody_uses_is_strict_and_undisturbed(place):
    place.queue()
    table = ordering(place.node, "/", "q")
    assert (table["guarantee"], table["consumers"]) == ("strict-fifo", [])
    assert table["messages"] == {"ready": 0, "unacked": 0, "next_seq": 1}
    nothing = group_counters([0] * len(ORDER_COUNTERS))
    assert table["counters"] == {"since_start": nothing, "since_declare": nothing}


def test_every_counter_has_its_place():
    table = group_counters(list(range(len(ORDER_COUNTERS))))
    flat = {}
    for name, value in table.items():
        flat |= {f"{name}.{cause}": count for cause, count in value.items()} if isinstance(value, dict) else {
            name: value}
    assert sorted(flat.values()) == list(range(len(ORDER_COUNTERS)))
    expected = {
        "returned_nack": "returned.nack", "returned_connection_closed": "returned.connection_closed",
        "redelivered": "redelivered", "overtakings": "overtakings",
        "dead_lettered_delivery_limit": "dead_lettered.delivery_limit", "rejected": "dropped.rejected",
        "expired": "dropped.expired", "dropped_maxlen": "dropped.maxlen", "purged": "dropped.purged",
    }
    for name, key in expected.items():
        assert flat[key] == ORDER_COUNTERS.index(name)


def test_what_has_happened_is_counted(place):
    place.queue()
    place.publish(5)
    place.consume()
    place.settle(2, requeue=True)
    place.settle(1, requeue=True)
    counters = ordering(place.node, "/", "q")["counters"]
    assert counters["since_start"] == counters["since_declare"]
    assert (counters["since_start"]["returned"]["nack"], counters["since_start"]["redelivered"]) == (2, 2)
    assert (counters["since_start"]["out_of_sequence"], counters["since_start"]["overtakings"]) == (2, 3 + 4)


def test_consumers_are_told_with_who_they_are(place):
    place.queue()
    place.publish(5)
    place.consume(prefetch=3)
    consumer, = ordering(place.node, "/", "q")["consumers"]
    assert (consumer["prefetch"], consumer["unacked"], consumer["channel"]) == (3, 3, 1)
    assert (consumer["peer"], consumer["user"], consumer["active"]) == ("?", "guest", True)
    assert consumer["connection"] == place.client.connection.number
    assert ordering(place.node, "/", "q")["guarantee"] == "best-effort"


def test_of_a_single_active_consumer_the_others_wait_their_turn(place):
    place.queue(single_active_consumer=True)
    place.consume()
    place.consume()
    assert [each["active"] for each in ordering(place.node, "/", "q")["consumers"]] == [True, False]


def test_who_asks_for_the_journal_is_said(place):
    place.queue("no")
    place.queue("argument", order_journal=True)
    place.queue("not", order_journal=False)
    place.vhost.policies.put(Policy("audit", "^policy$", {"order-journal": True}))
    place.queue("policy")
    place.queue("lost", durable=False)
    place.vhost.policies.put(Policy("more", "^lost$", {"order-journal": True}))
    place.vhost.policies.put(Policy("some", "^operator$", {"max-length": 9}))
    place.vhost.policies.operators.put(Policy("all", "^operator$", {"order-journal": True}, operator=True))
    place.queue("operator")
    place.node.upkeep.apply_policies(place.vhost)
    journals = {name: ordering(place.node, "/", name)["journal"] for name in place.vhost.queues}
    assert {name: (each["on"], each["why"]) for name, each in journals.items()} == {
        "no": (False, "neither argument x-order-journal nor policy order-journal asks for it"),
        "argument": (True, "argument x-order-journal"), "not": (False, "argument x-order-journal"),
        "policy": (True, "policy 'audit'"), "operator": (True, "operator policy 'all'"),
        "lost": (False, "the queue is not durable"),
    }


def test_what_is_kept_is_told_with_its_first_message(place):
    place.queue(order_journal=True)
    assert ordering(place.node, "/", "q")["journal"]["first_kept_seq"] == 0
    place.publish(200)
    place.consume()
    place.settle(1, 150)
    place.tick()
    journal = ordering(place.node, "/", "q")["journal"]
    assert journal["first_kept_seq"] == 1
    assert 100_000 < journal["kept_octets"] < 200_000


def test_the_first_message_moves_with_what_is_settled(place):
    place.queue()
    place.publish(200)
    place.consume()
    place.settle(1, 150)
    assert 1 < ordering(place.node, "/", "q")["journal"]["first_kept_seq"] <= 151


@pytest.mark.parametrize(("vhost", "name", "told"), [
    ("/", "none", "no queue 'none' in vhost '/'"), ("other", "q", "no vhost 'other'"),
])
def test_what_is_not_there_is_named(place, vhost, name, told):
    place.queue()
    with pytest.raises(OperationError) as no:
        ordering(place.node, vhost, name)
    assert (str(no.value), no.value.code) == (told, 404)


def test_the_table_can_be_written_as_json(place):
    place.queue("q\udcff", max_priority=3)
    assert json.loads(json.dumps(ordering(place.node, "/", "q\udcff")))["queue"] == "q\udcff"


def test_groups_are_counted(place):
    place.queue("q")
    assert ordering(place.node, "/", "q")["groups"] is None
    place.queue("g", message_group="exclusive", message_group_header="routing-key")
    place.publish(3, key="g")
    place.consume(prefetch=5, queue="g")
    groups = ordering(place.node, "/", "g")["groups"]
    assert (groups["groups"], groups["waiting"], groups["waits"], groups["fenced"]) == (1, 2, 2, 0)

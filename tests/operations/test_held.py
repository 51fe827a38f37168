"""Which client holds which message of a queue, and since when."""

import pytest
from tests.operations.stand_in import Place, work

from brokerd.operations import OperationError, table
from brokerd.operations.receiving import pulls_of
from brokerd.operations.rows import LOCAL


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "data")
    place.node.connections = [place.client.connection]
    place.node.pulls = None
    place.node.stopping = False
    place.node.call_at = lambda when, go_on: None
    yield place
    if place.node.pulls is not None:
        place.node.pulls.close()


def held(place, **fields):
    _, job = table.perform(place.node, LOCAL, "message unacked", {"queue": "q", **fields})
    return work(job)


def test_of_each_message_that_is_out_it_is_said_who_has_it(place):
    place.queue()
    place.queue("other")
    place.publish(5)
    place.publish(3, "other")
    place.consume(prefetch=3)
    place.consume(queue="other")
    place.node.core.turn()
    channel = place.client.connection.channels[1]
    channel.get(place.vhost.queues["q"], False)
    (receipt,) = pulls_of(place.node).receive(place.vhost.queues["q"], 1, 30, "")
    found = held(place)
    assert (found["queue"], found["vhost"], found["unacked"]) == ("q", "/", 5)
    rows = sorted(found["items"], key=lambda row: row["seq"])
    assert [(row["seq"], row["by"]) for row in rows] == [
        (1, "consumer"), (2, "consumer"), (3, "consumer"), (4, "get"), (5, "receipt")]
    (tag,) = [tag for tag, each in channel.consumers.items() if each.queue.name == "q"]
    assert {row["consumer_tag"] for row in rows} == {tag.decode(), None}
    assert rows[0]["user"] == "guest"
    assert rows[0]["channel"] == 1
    assert rows[0]["held_ms"] >= 0
    assert rows[4]["connection_name"] is None
    assert receipt["seq"] == 5
    place.settle(rows[0]["delivery_tag"])
    place.settle(rows[1]["delivery_tag"], requeue=True)
    found = {row["seq"]: row for row in held(place)["items"]}
    assert set(found) == {2, 3, 4, 5}
    assert found[2]["failed"] == 1


def test_only_the_oldest_are_listed_and_those_of_one_consumer(place):
    place.queue()
    place.publish(1200)
    place.consume()
    place.node.core.turn()
    found = held(place, count=2)
    assert ([row["seq"] for row in found["items"]], found["unacked"]) == ([1, 2], 1200)
    assert [row["seq"] for row in held(place, count=2000)["items"]] == list(range(1, 1201))
    assert held(place, consumer="another")["items"] == []
    assert held(place, connection="1.2.3.4:5")["items"] == []
    with pytest.raises(OperationError, match="no queue 'none'"):
        held(place, queue="none")

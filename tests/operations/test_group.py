"""Operations on message groups: what they answer is as their models say, and does what it says."""

import pytest
from tests.operations.stand_in import Place, work

from brokerd.operations import OperationError, table
from brokerd.operations.group import Changed, GroupBrowsed, GroupRow, GroupsListed, explain
from brokerd.operations.rows import LOCAL


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "data")
    place.queue(message_group="exclusive", message_group_header="routing-key")
    for exchange_key in ("red", "green"):
        place.vhost.bind(place.vhost.exchanges["amq.direct"], place.vhost.queues["q"], exchange_key, {})
    return place


def send(place, *keys):
    for key in keys:
        place.publish(key=key, exchange="amq.direct")


def ask(place, name, **fields):
    row, job = table.perform(place.node, LOCAL, name, {"queue": "q", **fields})
    assert row.job
    answer = work(job)
    model = {"group list": GroupsListed, "group show": GroupRow, "group browse": GroupBrowsed}.get(name, Changed)
    assert table.adapter(model).validate_python(answer, strict=True) == answer
    return answer


def test_groups_are_listed_by_backlog_with_why_they_do_not_move(place):
    send(place, "red", "green", "red", "red")
    place.consume(prefetch=1)
    answer = ask(place, "group list")
    assert [(one["group"], one["state"], one["ready"], one["unacked"]) for one in answer["items"]] == [
        ("red", "locked", 2, 1), ("green", "waiting", 1, 0)]
    red, green = answer["items"]
    assert red["why"].startswith("1 message is out with consumer '")
    assert green["why"] == "No consumer has credit: each holds as many unsettled deliveries as its prefetch allows."
    assert (red["owner"]["unacked"], red["first_seq"], green["owner"]) == (1, 3, None)
    assert answer["totals"]["waiting"] == 3
    assert [one["group"] for one in ask(place, "group list", sort="age")["items"]] == ["green", "red"]
    assert [one["group"] for one in ask(place, "group list", state="locked")["items"]] == ["red"]
    assert len(ask(place, "group list", limit=1)["items"]) == 1


@pytest.mark.parametrize("limit", [1, 7, 500, 700, 1000])
@pytest.mark.parametrize("sort", ["backlog", "age"])
def test_of_many_groups_the_first_ones_are_listed_in_order(tmp_path, sort, limit):
    place = Place(tmp_path / "data")
    place.queue(message_group="exclusive", message_group_header="routing-key")
    backlogs, keys = {}, [f"g{number}" for number in range(700)]
    for key in keys:
        place.vhost.bind(place.vhost.exchanges["amq.direct"], place.vhost.queues["q"], key, {})
        backlogs[key] = int(key[1:]) * 7919 % 5 + 1
    send(place, *keys)                      # the oldest message of each is as old as its number says
    send(place, *(key for key in keys for _ in range(backlogs[key] - 1)))
    wanted = keys if sort == "age" else sorted(keys, key=lambda key: (backlogs[key], key), reverse=True)
    listed = ask(place, "group list", sort=sort, limit=limit)["items"]
    assert [one["group"] for one in listed] == wanted[:limit]


def test_a_group_without_consumers_says_so(place):
    send(place, "red")
    assert ask(place, "group show", group="red")["why"] == "The queue has no consumer."


def test_a_group_is_paused_resumed_parked_released_skipped_and_purged(place):
    send(place, "red", "red", "red", "green")
    assert ask(place, "group pause", group="red")["changed"]
    assert not ask(place, "group pause", group="red")["changed"]
    assert ask(place, "group show", group="red")["state"] == "paused"
    assert ask(place, "group resume", group="red")["changed"]
    parked = ask(place, "group park", group="red")
    assert (parked["seq"], parked["messages"]) == (1, 3)
    assert ask(place, "group show", group="red")["why"] == (
        "An operator parked it, or the message that was its first then had failed too often; 'group release' lets it "
        "go on.")
    assert ask(place, "group skip", group="red")["seq"] == 1
    assert ask(place, "group release", group="red")["changed"]
    assert ask(place, "group purge", group="red")["messages"] == 2
    with pytest.raises(OperationError, match="no group 'red' in queue 'q'") as caught:
        ask(place, "group show", group="red")
    assert caught.value.code == 404
    assert ask(place, "group show", group="green")["ready"] == 1


def test_a_group_that_its_delivery_limit_has_parked_says_so_until_that_message_is_skipped(tmp_path):
    place = Place(tmp_path / "data")
    place.queue(message_group="exclusive", message_group_header="routing-key", delivery_limit=1,
                delivery_limit_action="park-group")
    place.vhost.bind(place.vhost.exchanges["amq.direct"], place.vhost.queues["q"], "red", {})
    send(place, "red", "red")
    place.consume()
    place.settle(1, requeue=True)
    place.settle(2, requeue=True)
    assert ask(place, "group show", group="red")["why"] == (
        "Its first message failed 2 times, more often than the delivery limit allows; 'group release' lets it go on.")
    assert ask(place, "group skip", group="red")["seq"] == 1
    assert ask(place, "group show", group="red")["why"].startswith("An operator parked it, or the message that was")


@pytest.mark.parametrize(("failed", "why"), [
    (1, "its first message, which failed 1 time, was beyond an earlier delivery limit"),
    (3, "its first message, which failed 3 times, was beyond an earlier delivery limit"),
])
def test_a_parked_group_whose_first_message_has_failed_within_the_limit_does_not_say_who_parked_it(failed, why):
    found = {"states": ["parked"], "owner": None, "unacked": 0, "failed": failed, "at_limit": False}
    assert explain(None, found, 0) == f"An operator parked it, or {why}; 'group release' lets it go on."


def test_what_cannot_be_done_says_why(place):
    send(place, "red", "red")
    place.consume(prefetch=5)
    with pytest.raises(OperationError, match="a message of it is out, and that is its first") as caught:
        ask(place, "group skip", group="red")
    assert caught.value.code == 409
    place.queue("plain")
    with pytest.raises(OperationError, match="queue 'plain' in vhost '/' has no message groups") as caught:
        ask(place, "group list", queue="plain")
    assert caught.value.code == 409


def test_after_a_start_parked_groups_are_shown_before_their_messages_are_looked_at(place, monkeypatch):
    monkeypatch.setattr("brokerd.operations.group.SHOWN_SCAN_MOST", 0)
    send(place, *["green"] * 300, "red", "red")
    place.vhost.queues["q"].groups.scan(1000)
    assert place.vhost.queues["q"].groups.park(b"red")
    again = Place(place.path)
    assert [one["group"] for one in ask(again, "group list", state="parked")["items"]] == ["red"]


def test_what_is_put_back_after_a_start_waits_with_the_group_that_was_parked_before(place):
    send(place, *["green"] * 300, "red", "red")
    queue = place.vhost.queues["q"]
    queue.groups.scan(1000)
    assert queue.groups.park(b"red")
    queue.core.put((queue,), b"amq.direct", b"red", b"\x30\0" + b"\0\0\0\x15\x0bx-group-seql" + bytes(7) + b"\1\2", b"",
                   redriven=True)
    again = Place(place.path).vhost.queues["q"]
    again.put_redriven_back([303])
    assert again.groups.find(b"red")["states"] == ["parked"]
    assert again.groups.find(b"red")["first_seq"] == 303


def test_what_waits_in_a_group_is_shown_in_its_order_with_its_failures(place):
    send(place, "red", "green", "red", "red")
    place.consume()
    place.settle(1, requeue=True)
    for count in (1, 100):
        items = ask(place, "group browse", group="red", count=count, truncate=3)["items"]
        assert [(one["seq"], one["place"], one["group"], one["payload_bytes"]) for one in items] == [
            (seq, seq, "red", 1000) for seq in (3, 4)[:count]]
    assert [one["seq"] for one in ask(place, "group browse", group="red", after=3)["items"]] == [4]
    assert ask(place, "group browse", group="blue")["items"] == []
    place.client.connection.channels[1].close()
    (first, *_) = ask(place, "group browse", group="red")["items"]
    assert (first["seq"], first["failed"], first["redelivered"]) == (1, 2, True)

"""Where the key of a message's group is, and what counts as one."""

import pytest
from tests.plane.harness import consume, publish
from tests.plane.test_groups import grouped, properties, received, send, words

from brokerd import plane


@pytest.fixture
def connection(bench):
    return bench.connection(1, 2, 3)


@pytest.mark.parametrize(("by", "key"), [("header", b"x"), ("routing-key", b"x")])
def test_the_key_is_where_the_rule_says(bench, connection, by, key):
    queue = grouped(bench, by=by, names=(b"customer",) if by == "header" else ())
    bench.bound[b"", b"x"] = bench.bound[b"", b"y"] = (b"q",)
    for routing_key, customer in ((b"x", b"x"), (b"y", b"x"), (b"x", b"y")):
        connection.feed(publish(1, routing_key + customer, routing_key, properties=properties({b"customer": customer})))
    consume(connection.channels[2], queue)
    expected = "xx xy" if by == "header" else "xx yx"
    assert words(received(bench, connection)) == expected
    assert queue.gate.find(key)["waiting"] == 1


def test_of_several_headers_the_first_in_the_list_counts(bench, connection):
    queue = grouped(bench)
    connection.feed(publish(1, b"1", properties=properties({b"group-id": b"a", b"JMSXGroupID": b"b"})))
    connection.feed(publish(1, b"2", properties=properties({b"group-id": b"a"})))
    connection.feed(publish(1, b"3", properties=properties({b"JMSXGroupID": 7})))
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "1 2 3"
    assert [queue.gate.find(key)["unacked"] for key in (b"a", b"b", b"7")] == [1, 1, 1]


@pytest.mark.parametrize(("keyless", "expected"), [("free", "_1 _2 r1"), ("single", "_1 r1"), ("reject", "r1")])
def test_a_message_without_a_key_is_free_or_in_one_group_or_refused(bench, connection, keyless, expected):
    queue = grouped(bench, keyless=keyless)
    connection.channels[1].select_confirm()
    send(connection, "_1 _2 r1 r2")
    bench.turns()
    refused = [one[2] for one in connection.said() if one[0] == "nack"]
    assert refused == ([1, 2] if keyless == "reject" else [])
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == expected
    assert queue.gate.refused == (2 if keyless == "reject" else 0)


@pytest.mark.parametrize(("by", "flag"), [("correlation-id", 10), ("type", 5), ("user-id", 4), ("app-id", 3)])
def test_a_property_may_be_the_key(bench, connection, by, flag):
    queue = grouped(bench, by=by, names=())
    for body in (b"1", b"2"):
        connection.feed(publish(1, body, properties=(1 << flag).to_bytes(2, "big") + b"\x01k"))
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "1"
    assert queue.gate.find(b"k")["waiting"] == 1


def test_a_value_that_is_neither_text_nor_a_whole_number_is_no_key(bench, connection):
    queue = grouped(bench)
    for value in (b"t\x01", b"d" + bytes(8), b"V", b"S\0\0\0\0"):
        item = b"\x08group-id" + value
        connection.feed(publish(1, b"m", properties=b"\x20\0" + len(item).to_bytes(4, "big") + item))
    consume(connection.channels[2], queue)
    assert words(received(bench, connection)) == "m m m m"
    assert len(queue.gate) == 0


def test_bad_rules_are_refused():
    with pytest.raises(ValueError):
        plane.Groups(sticky=False, by="header", names=(b"",))
    with pytest.raises(ValueError):
        plane.Groups(sticky=False, by="header", names=(b"x",) * 5)
    with pytest.raises(ValueError):
        plane.Groups(sticky=False, by="header", names=(b"x",), most=0)


@pytest.mark.parametrize(("by", "keyless", "table", "expected"), [
    ("header", "free", {b"customer": b"x"}, b"x"), ("header", "free", {b"customer": 7}, b"7"),
    ("header", "free", {b"other": b"x"}, None), ("header", "single", {b"other": b"x"}, b""),
    ("routing-key", "free", {b"customer": b"x"}, b"key")])
def test_the_group_of_a_message_that_is_in_no_queue_is_told(bench, by, keyless, table, expected):
    gate = grouped(bench, by=by, names=(b"customer",) if by == "header" else (), keyless=keyless).gate
    assert gate.key_of(b"key", properties(table)) == expected
    with pytest.raises(ValueError, match="malformed"):
        gate.key_of(b"key", b"\x20\0\0\0")

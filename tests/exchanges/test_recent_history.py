"""The recent history exchange: which messages it keeps.  Who gets them: tests/vhost/test_routing.py."""

import pytest
from tests.exchanges.destinations import queues

from brokerd.exchanges import RecentHistoryExchange, recent_history
from brokerd.plane import Message
from brokerd.wire.properties import Properties, encode_header


def octets(**properties):
    return encode_header(0, Properties(**properties))[12:]


def kept(exchange, messages):
    for body in messages:
        exchange.remember(Message(b"x", b"k", octets(), body))
    return [message.body for message in exchange.follow()]


@pytest.mark.parametrize(("arguments", "expected"), [({}, 20), ({"x-recent-history-length": 3}, 3)])
def test_the_last_messages_are_kept_oldest_first(arguments, expected):
    exchange = RecentHistoryExchange("x", arguments=arguments)
    bodies = [b"%d" % number for number in range(50)]
    assert kept(exchange, bodies) == bodies[-expected:]


def test_what_is_kept_is_the_message_as_it_was_published():
    exchange = RecentHistoryExchange("x")
    message = Message(b"outer", b"k\xff", octets(message_id="m"), b"body")
    exchange.remember(message)
    assert list(exchange.follow()) == [message]


@pytest.mark.parametrize(("headers", "stored"), [
    ({"x-recent-history-no-store": True}, False), ({"x-recent-history-no-store": False}, True),
    ({"x-recent-history-no-store": 1}, True), ({"other": True}, True), (None, True),
    ({"a": "x-recent-history-no-store"}, True),
])
def test_a_header_that_is_true_keeps_a_message_out(headers, stored):
    exchange = RecentHistoryExchange("x")
    exchange.remember(Message(b"x", b"k", octets(headers=headers), b""))
    assert bool(exchange.follow()) is stored


def test_headers_that_cannot_be_decoded_are_kept():
    exchange = RecentHistoryExchange("x")
    exchange.remember(Message(b"x", b"k", b"\x20\x00\x00\x00\x00\x1c\x19x-recent-history-no-storeQ", b""))
    assert len(exchange.follow()) == 1


def test_there_is_an_end_to_the_octets_kept(monkeypatch):
    monkeypatch.setattr(recent_history, "HISTORY_OCTETS_MAX", 100)
    monkeypatch.setattr(recent_history, "MESSAGE_OCTETS", 0)
    exchange = RecentHistoryExchange("x")
    assert kept(exchange, [b"a" * 40, b"b" * 40, b"c" * 40]) == [b"b" * 40, b"c" * 40]
    assert kept(exchange, [b"d" * 200]) == []
    assert kept(exchange, [b"e"]) == [b"e"]


def test_messages_without_a_body_are_not_kept_without_end(monkeypatch):
    monkeypatch.setattr(recent_history, "HISTORY_OCTETS_MAX", 100_000)
    exchange = RecentHistoryExchange("x", arguments={"x-recent-history-length": 1 << 40})
    assert 100 < len(kept(exchange, [b""] * 10_000)) < 1000


def test_all_exchanges_together_keep_so_many_octets_and_one_that_is_gone_keeps_none(monkeypatch):
    before = RecentHistoryExchange.octets_in_all
    monkeypatch.setattr(recent_history, "HISTORIES_OCTETS_MAX", before + 100_000)
    first, second = RecentHistoryExchange("first"), RecentHistoryExchange("second")
    assert len(kept(first, [bytes(30_000)] * 3)) == 3
    assert kept(second, [bytes(30_000)]) == []
    assert kept(second, [b"short"]) == [b"short"]
    assert len(first.follow()) == 3
    del first
    assert len(kept(second, [bytes(30_000)] * 3)) == 4
    del second
    assert RecentHistoryExchange.octets_in_all == before


def test_it_routes_as_a_fanout_does():
    exchange, ends = RecentHistoryExchange("x"), queues(2)
    for queue in ends:
        exchange.bind(queue, "k")
    assert list(exchange.destinations("other", Properties)) == ends
    assert exchange.key_decides is True

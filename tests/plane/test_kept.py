"""What the data plane keeps of a transaction, and what goes up to the session."""

import struct

from tests.plane.harness import publish

CC = b"\x20\0" + struct.pack(">I", 13) + b"\2CCA\0\0\0\5S\0\0\0\0"


def test_messages_that_arrive_octet_by_octet_are_kept(bench, committer):
    for octet in publish(1, b"one") + publish(1, b"two"):
        committer.feed(bytes([octet]))
    assert [message.body for _, _, message in committer.channels[1].take_kept().publishes()] == [b"one", b"two"]


def test_publishes_have_numbers_of_their_own(bench, committer):
    committer.feed(publish(1, b"1") + publish(1, b"2", mandatory=True))
    committer.channels[1].take_kept()
    committer.feed(publish(1, b"3"))
    publishes = committer.channels[1].take_kept().publishes()
    assert [(seq, bits, message.routing_key) for seq, bits, message in publishes] == [(3, 0, b"q")]
    assert committer.channels[1].publishes == 3


def test_a_message_that_asks_for_more_than_to_be_stored_goes_up(bench, committer):
    committer.feed(publish(1, b"kept") + publish(1, b"up", properties=CC))
    assert [up[3] for up in committer.went_up] == [b"up"]
    committer.channels[1].keeps = False
    committer.feed(publish(1, b"also"))
    assert [up[3] for up in committer.went_up] == [b"up", b"also"]
    assert [message.body for _, _, message in committer.channels[1].take_kept().publishes()] == [b"kept"]


def test_a_message_whose_route_is_asked_for_each_time_goes_up(bench, committer):
    bench.cacheable = False
    committer.feed(publish(1, b"1") + publish(1, b"2", piece=1))
    assert [up[3] for up in committer.went_up] == [b"1", b"2"]


def test_a_large_transaction_goes_up(bench, committer):
    for _ in range(4):
        committer.feed(publish(1, bytes(60_000)))
    assert committer.went_up == []
    committer.feed(publish(1, bytes(60_000)) + publish(1, bytes(600_000)))
    assert [len(up[3]) for up in committer.went_up] == [60_000, 600_000]
    assert len(committer.channels[1].take_kept().publishes()) == 4


def test_a_publish_with_malformed_properties_is_a_fault(bench, committer):
    committer.feed(publish(1, b"x", properties=b"\x20\0\0\0\0\1\2"))
    assert committer.fault[1] == 502

"""What the data plane keeps of a transaction, and what goes up to the session."""

import struct

import pytest
from tests.plane.harness import publish

KEPT_MOST = 8 << 20
IN_ALL_MOST = 64 << 20


def bodies(channel):
    """Those of the publishes that are kept: a record ends with its body's size and the body."""
    kept = channel.take_kept()
    octets = kept.log_messages()
    found = []
    for at, size, _ in kept.places(0, kept.count):
        record = octets[at:at + size]
        names = 8 + 1 + record[8] + 1 + record[9 + record[8]]
        properties = names + 4 + int.from_bytes(record[names:names + 4], "little")
        assert int.from_bytes(record[properties:properties + 8], "little") == len(record) - properties - 8
        found.append(record[properties + 8:])
    return found


CC = b"\x20\0" + struct.pack(">I", 13) + b"\2CCA\0\0\0\5S\0\0\0\0"


def test_messages_that_arrive_octet_by_octet_are_kept(bench, committer):
    for octet in publish(1, b"one") + publish(1, b"two"):
        committer.feed(bytes([octet]))
    assert bodies(committer.channels[1]) == [b"one", b"two"]


def test_publishes_have_numbers_of_their_own(bench, committer):
    committer.feed(publish(1, b"1") + publish(1, b"2", mandatory=True))
    committer.channels[1].take_kept()
    committer.feed(publish(1, b"3") + publish(1, b"4", mandatory=True))
    kept = committer.channels[1].take_kept()
    octets = kept.log_messages()
    assert [(octets[at], bits) for at, _, bits in kept.places(0, 9)] == [(3, 0), (4, 1)]
    assert kept.places(1, 1) == kept.places(0, 2)[1:]
    assert kept.places(2, 1) == []
    assert committer.channels[1].publishes == 4


def test_a_message_that_asks_for_more_than_to_be_stored_goes_up(bench, committer):
    committer.feed(publish(1, b"kept") + publish(1, b"up", properties=CC))
    assert [up[3] for up in committer.went_up] == [b"up"]
    committer.channels[1].keeps = False
    committer.feed(publish(1, b"also"))
    assert [up[3] for up in committer.went_up] == [b"up", b"also"]
    assert bodies(committer.channels[1]) == [b"kept"]


def test_a_message_whose_route_is_asked_for_each_time_goes_up(bench, committer):
    bench.cacheable = False
    committer.feed(publish(1, b"1") + publish(1, b"2", piece=1))
    assert [up[3] for up in committer.went_up] == [b"1", b"2"]


def test_a_large_transaction_goes_up(bench, committer):
    size = KEPT_MOST // 8 - 25      # with the rest of its record, exactly an eighth
    for _ in range(8):
        committer.feed(publish(1, bytes(size)))
    assert committer.went_up == []
    committer.feed(publish(1, b"") + publish(1, bytes(KEPT_MOST)))
    assert [len(up[3]) for up in committer.went_up] == [0, KEPT_MOST]
    assert committer.channels[1].take_kept().count == 8


@pytest.mark.parametrize("end", ["taken", "dropped", "channel closed"])
def test_transactions_of_all_channels_have_a_bound_in_common(bench, committer, end):
    size = KEPT_MOST - 25
    others = [bench.connection(1) for _ in range(IN_ALL_MOST // KEPT_MOST)]
    for other in others:
        other.channels[1].tx = other.channels[1].keeps = True
        other.feed(publish(1, bytes(size)))
    committer.feed(publish(1, b"up"))
    assert [up[3] for up in committer.went_up] == [b"up"]
    assert committer.channels[1].take_kept().count == 0
    if end == "taken":
        assert others[0].channels[1].take_kept().count == 1
    elif end == "dropped":
        kept = others[0].channels[1].take_kept()
        kept.drop_octets()
        assert kept.places(0, 1) == [(0, KEPT_MOST, 0)]
    else:
        others[0].channels[1].close()
        others.pop(0)
    committer.feed(publish(1, b"kept"))
    assert len(committer.went_up) == 1
    assert bodies(committer.channels[1]) == [b"kept"]


def test_a_publish_with_malformed_properties_is_a_fault(bench, committer):
    committer.feed(publish(1, b"x", properties=b"\x20\0\0\0\0\1\2"))
    assert committer.fault[1] == 502

"""Frames: types, ends, sizes, channels; every octet of them wrong once."""

import pytest
from tests.conversations.peer import Peer, content, differs, frame, publish, rabbitmq

from brokerd.wire import methods

FRAME_MAX = 131072
QOS = methods.BasicQos().encode()


def last_words(peer):
    """(code, text) of the connection.close that comes; the broker need not wait for close-ok after it."""
    close = peer.read()
    assert isinstance(close, methods.ConnectionClose), close
    return close.reply_code, close.reply_text


@pytest.mark.parametrize("end", [0, 0xCD, 0xCF, 0xFF])
def test_a_frame_ends_in_ce(peer, end):
    peer.raw(frame(1, 1, QOS, end))
    code, text = last_words(peer)
    assert (code, text[:14]) == (501, "FRAME_ERROR - ")


@pytest.mark.parametrize("kind", [0, 4, 5, 7, 9, 128, 255])
def test_there_are_four_types_of_frames(peer, kind):
    peer.raw(frame(kind, 1, b"payload"))
    code, _ = last_words(peer)
    assert code in (501, 503)


@pytest.mark.parametrize("size", [FRAME_MAX + 1, 1 << 20, (1 << 31) - 1, (1 << 32) - 1])
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_a_frame_over_the_agreed_size_is_refused_by_its_head_alone(peer, kind, size):
    peer.raw(bytes([kind]) + b"\x00\x01" + size.to_bytes(4) + b"\x00")
    code, text = last_words(peer)
    assert (code, text[:14]) == (501, "FRAME_ERROR - ")


@pytest.mark.parametrize("over", [0, 1, 8])
def test_a_frame_of_the_agreed_size_is_taken_and_one_of_eight_octets_more(peer, queue, over):
    body = b"x" * (FRAME_MAX - 8 + over)
    peer.send(methods.BasicPublish(routing_key=queue), content(b"", size=len(body)), frame(3, 1, body))
    assert peer.get(queue) == (False, body)


def test_a_smaller_agreement_holds_both_ways(stranger):
    stranger.open(frame_max=4096)
    name = stranger.ask(methods.QueueDeclare(exclusive=True)).queue
    stranger.send(methods.BasicPublish(routing_key=name), content(b"", size=10000),
                  *(frame(3, 1, b"y" * size) for size in (4088, 4088, 1824)))
    assert isinstance(stranger.ask(methods.BasicGet(queue=name)), methods.BasicGetOk)
    sizes = [len(stranger.frame().payload) for _ in range(4)]
    assert max(sizes[1:]) <= 4088
    assert sum(sizes[1:]) == 10000
    stranger.raw(frame(3, 1, b"z" * 4097))
    assert last_words(stranger)[0] == 501


def test_before_tune_frames_are_small(stranger):
    stranger.start()
    stranger.raw(b"\x01\x00\x00" + (FRAME_MAX + 1).to_bytes(4) + b"x" * 100)
    close = stranger.read()
    assert close is None or close.reply_code == 501


@pytest.mark.parametrize("octets", [
    pytest.param(b"\x08\x00\x01\x00\x00\x00\x00\xce", marks=differs("a heartbeat on a channel")),
    b"\x08\x00\x00\x00\x00\x00\x01x\xce",
], ids=["on a channel", "with a payload"])
def test_a_heartbeat_is_empty_and_on_channel_0(peer, octets):
    peer.raw(octets)
    assert last_words(peer)[0] in (501, 503)


@pytest.mark.parametrize("kind", [2, 3])
def test_channel_0_carries_no_content(peer, kind):
    peer.raw(frame(kind, 0, b"x" * 14))
    assert last_words(peer)[0] in (501, 503, 504, 505)


@pytest.mark.parametrize("kind", [2, 3])
def test_content_on_a_channel_that_is_not_open_is_refused(peer, kind):
    peer.raw(frame(kind, 9, b"x" * 14))
    assert last_words(peer)[0] in (504, 505)


@differs("several channels of one connection", always=False)
def test_after_a_framing_error_nothing_is_done(port, peer):
    peer.raw(frame(1, 1, QOS, 0) + methods.QueueDeclare(queue="too late").frame(1) * 3)
    assert last_words(peer)[0] == 501
    with Peer(port).open() as other:
        assert other.refusal(methods.QueueDeclare(queue="too late", passive=True))[0] == 404


@rabbitmq("waits for what is missing more often")
def test_each_octet_of_a_frame_may_be_wrong(port):
    good = methods.QueueDeclare(queue="q", passive=True).frame(1)
    for at in range(len(good)):
        with Peer(port).open() as peer:
            bad = bytearray(good)
            bad[at] ^= 0x55
            peer.send(bytes(bad), (0, methods.ConnectionClose(reply_code=200)))
            if at not in range(3, 7):  # A size that is greater, within the limit, waits for what is missing.
                ends = methods.ConnectionClose, methods.ConnectionCloseOk
                assert any(isinstance(reply, ends) for reply in iter(peer.read, None))


def test_half_a_frame_and_the_end_cost_nothing(port):
    octets = publish("nowhere", b"body")
    for at in range(0, len(octets), 3):
        with Peer(port).open() as peer:
            peer.raw(octets[:at])

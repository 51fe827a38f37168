import pytest

from brokerd.session.transaction_parts import return_frames
from brokerd.wire import methods
from brokerd.wire.frames import FrameScanner


class Peer:
    frame_max = 4096


@pytest.mark.parametrize(("code", "text"), [(312, "NO_ROUTE"), (313, "NO_CONSUMERS")])
def test_a_returned_message_has_its_reason_its_properties_and_its_body_in_frames_of_the_clients_size(code, text):
    body = bytes(range(256)) * 40
    octets = return_frames(Peer(), 7, code, b"x", b"k\xff", b"\x10\0\2", body)
    frames = FrameScanner().feed(octets)
    assert {frame.channel for frame in frames} == {7}
    method = methods.decode(frames[0].payload)
    assert (method.reply_code, method.reply_text, method.exchange) == (code, text, "x")
    assert method.routing_key.encode("utf-8", "surrogateescape") == b"k\xff"
    assert frames[1].payload == b"\0\x3c\0\0" + len(body).to_bytes(8) + b"\x10\0\2"
    assert len(frames) == 2 + 3
    assert b"".join(frame.payload for frame in frames[2:]) == body

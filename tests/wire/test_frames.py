"""Frames out of a stream and into one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import FrameError
from brokerd.wire.frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    HEARTBEAT_FRAME,
    Frame,
    FrameScanner,
    body_frames,
    header_frame,
    method_frame,
)


@pytest.mark.parametrize("chunk", [1, 2, 7, 8, 4096])
def test_frames_do_not_depend_on_how_the_stream_was_cut(chunk):
    stream = method_frame(1, b"declare") + header_frame(65535, b"h") + body_frames(1, b"x" * 300, 0) + HEARTBEAT_FRAME
    scanner, frames = FrameScanner(4096), []
    for start in range(0, len(stream), chunk):
        frames += scanner.feed(stream[start : start + chunk])
    assert frames == [
        Frame(FRAME_METHOD, 1, b"declare"),
        Frame(FRAME_HEADER, 65535, b"h"),
        Frame(FRAME_BODY, 1, b"x" * 300),
        Frame(FRAME_HEARTBEAT, 0, b""),
    ]
    assert scanner.pending_octets == 0
    assert b"".join(frame.encode() for frame in frames) == stream


def test_a_frame_is_not_given_out_before_its_last_octet():
    whole = method_frame(1, b"declare")
    for end in range(len(whole)):
        scanner = FrameScanner()
        assert scanner.feed(whole[:end]) == []
        assert scanner.pending_octets == end
        assert scanner.feed(whole[end:] + b"\x08") == [Frame(FRAME_METHOD, 1, b"declare")]
        assert scanner.pending_octets == 1


def test_a_frame_may_be_as_large_as_agreed_but_no_larger():
    assert len(FrameScanner(4096).feed(method_frame(1, b"x" * 4088))) == 1
    with pytest.raises(FrameError, match="frame of 4097 octets, but at most 4096"):
        FrameScanner(4096).feed(method_frame(1, b"x" * 4089))


def test_a_frame_too_large_is_refused_by_its_head_alone():
    with pytest.raises(FrameError, match="at most 4096"):
        FrameScanner(4096).feed(method_frame(1, b"x" * 5000)[:7])


def test_a_wrong_last_octet_is_a_frame_error():
    with pytest.raises(FrameError, match="frame ends in 0xcd, not 0xce"):
        FrameScanner().feed(method_frame(1, b"x")[:-1] + b"\xcd")


@pytest.mark.parametrize("kind", [0, 4, 7, 9, 65, 255])
def test_an_unknown_frame_type_is_a_frame_error(kind):
    with pytest.raises(FrameError, match=f"unknown frame type {kind}"):
        FrameScanner().feed(bytes((kind,)) + b"\0\0\0\0\0\0")


@given(st.binary(max_size=2000), st.integers(9, 600))
def test_body_frames_hold_the_body_and_obey_frame_max(body, frame_max):
    frames = FrameScanner(frame_max).feed(body_frames(7, body, frame_max))
    assert b"".join(frame.payload for frame in frames) == body
    assert all(frame.payload and frame.kind == FRAME_BODY and frame.channel == 7 for frame in frames)


def test_a_frame_max_without_room_is_a_value_error():
    with pytest.raises(ValueError, match="leaves no room"):
        body_frames(1, b"x", 8)

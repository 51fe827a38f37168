"""PROXY headers: read whole, octet by octet, with octets behind them, and broken in every place."""

import pytest

from brokerd.server.proxy_header import SIGNATURE, Origin, ProxyHeaderError, make, read

LINES = [
    (b"PROXY TCP4 192.0.2.7 203.0.113.1 4711 5672\r\n", Origin("192.0.2.7", 4711)),
    (b"PROXY TCP6 2001:DB8::1 ::1 65535 0\r\n", Origin("2001:db8::1", 65535)),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
]
BINARY = [
    (make(Origin("192.0.2.7", 4711)), Origin("192.0.2.7", 4711)),
    (make(Origin("2001:db8::1", 1)), Origin("2001:db8::1", 1)),
    (make(None), None),
    (SIGNATURE + b"\x21\x31\x00\xd8" + bytes(216), None),  # unix sockets
    (SIGNATURE + b"\x21\x00\x00\x00", None),
    (SIGNATURE + b"\x21\x11\x00\x0f" + bytes((10, 0, 0, 1)) + bytes(4) + b"\x00\x07\x00\x08" + b"\x04\x00\x00",
     Origin("10.0.0.1", 7)),  # with an extension
]


@pytest.mark.parametrize(("octets", "origin"), LINES + BINARY)
def test_a_header_ends_where_it_ends(octets, origin):
    for end in range(len(octets)):
        assert read(octets[:end]) is None
    assert read(octets) == (len(octets), origin)
    assert read(octets + b"AMQP\0\0\x09\x01") == (len(octets), origin)


@pytest.mark.parametrize("octets", [
    b"AMQP\0\0\x09\x01", b"proxy ", b"PROXY_", b"PROXY \r\n", b"PROXY TCP4\r\n", b"PROXY TCP5 1.1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 ::1 ::1 1 1\r\n", b"PROXY TCP6 1.1.1.1 1.1.1.1 1 1\r\n", b"PROXY TCP4 1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 65536 1\r\n", b"PROXY TCP4 1.1.1.1 1.1.1.1 -1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 +1 1\r\n", b"PROXY TCP4 1.1.1.1 x 1 1\r\n", b"PROXY TCP4  1.1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 \xff 1.1.1.1 1 1\r\n", b"PROXY TCP4 1.1.1.1\0 1.1.1.1 1 1\r\n", b"PROXY " + b"x" * 200,
    SIGNATURE + b"\x11\x11\x00\x0c" + bytes(12), SIGNATURE + b"\x22\x11\x00\x0c" + bytes(12),
    SIGNATURE + b"\x21\x11\x00\x0b" + bytes(11), SIGNATURE + b"\x21\x21\x00\x0c" + bytes(12),
    SIGNATURE + b"\x21\x11\xff\xff", SIGNATURE[:-1] + b"X" + bytes(10),
])  # fmt: skip
def test_what_is_no_header_is_refused(octets):
    with pytest.raises(ProxyHeaderError):
        read(octets)

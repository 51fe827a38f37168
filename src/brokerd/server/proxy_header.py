"""The header that a proxy writes before a client's octets: PROXY protocol, versions 1 and 2 (HAProxy's specification).

    1   "PROXY TCP4 192.0.2.7 203.0.113.1 4711 5672" CR LF       at most 107 octets; TCP6, UNKNOWN
    2   signature, 12 octets | version and command | family | length, u16 | addresses | extensions

Only connections from ``proxy_protocol_from`` have it, and the management process's over the broker's own socket.  Knows
no sockets: octets in, the client's address out.
"""

import socket
from typing import NamedTuple

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
LINE_OCTETS_MAX = 107
HEAD_OCTETS = 16  # of version 2, before the addresses
BODY_OCTETS_MAX = 4096
TCP4, TCP6 = 0x11, 0x21
LOCAL, PROXY = 0x20, 0x21  # version 2, with its commands
FAMILIES = {b"TCP4": socket.AF_INET, b"TCP6": socket.AF_INET6}


class Origin(NamedTuple):
    """Where a client is, as its proxy says."""

    host: str
    port: int


class ProxyHeaderError(ValueError):
    """The octets are no header."""


def read(octets: bytes) -> tuple[int, Origin | None] | None:
    """How long the header is, and the client's address; None for the latter: it is the proxy's own connection, or of a
    kind that has no address.  None: more octets are needed.  Raises ProxyHeaderError."""
    if octets[:12] == SIGNATURE[: len(octets)]:
        return _read_binary(octets)
    if octets[:6] == b"PROXY "[: len(octets)]:
        return _read_line(octets)
    raise ProxyHeaderError("no PROXY header")


def _read_line(octets: bytes) -> tuple[int, Origin | None] | None:
    end = octets.find(b"\r\n", 0, LINE_OCTETS_MAX)
    if end < 0:
        if len(octets) >= LINE_OCTETS_MAX:
            raise ProxyHeaderError(f"a PROXY line has at most {LINE_OCTETS_MAX} octets")
        return None
    words = octets[:end].split(b" ")
    if words[1] == b"UNKNOWN":
        return end + 2, None
    if len(words) != 6 or words[1] not in FAMILIES:
        raise ProxyHeaderError("a PROXY line names a family, two addresses and two ports")
    _, family, source, target, source_port, _ = words
    _address(FAMILIES[family], target)
    return end + 2, Origin(_address(FAMILIES[family], source), _port(source_port))


def _address(family: int, text: bytes) -> str:
    try:
        return socket.inet_ntop(family, socket.inet_pton(family, text.decode("ascii")))
    except (OSError, ValueError):
        raise ProxyHeaderError("no address in a PROXY line") from None


def _port(text: bytes) -> int:
    if not text.isdigit() or len(text) > 5 or int(text) > 65535:
        raise ProxyHeaderError("no port in a PROXY line")
    return int(text)


def _read_binary(octets: bytes) -> tuple[int, Origin | None] | None:
    if len(octets) < HEAD_OCTETS:
        return None
    command, family, length = octets[12], octets[13], int.from_bytes(octets[14:16])
    if command not in (LOCAL, PROXY):
        raise ProxyHeaderError(f"unknown version or command {command:#04x} of a PROXY header")
    if length > BODY_OCTETS_MAX:
        raise ProxyHeaderError(f"a PROXY header of {length} octets")
    end = HEAD_OCTETS + length
    if len(octets) < end:
        return None
    if command == LOCAL or family not in (TCP4, TCP6):
        return end, None
    kind, size = (socket.AF_INET, 4) if family == TCP4 else (socket.AF_INET6, 16)
    if length < 2 * size + 4:
        raise ProxyHeaderError("a PROXY header without its addresses")
    body = octets[HEAD_OCTETS:end]
    return end, Origin(socket.inet_ntop(kind, body[:size]), int.from_bytes(body[2 * size : 2 * size + 2]))


def make(origin: Origin | None) -> bytes:
    """The header of version 2 for a client at that address; None: the connection is the proxy's own."""
    if origin is None:
        return SIGNATURE + bytes((LOCAL, 0, 0, 0))
    family, kind = (TCP6, socket.AF_INET6) if ":" in origin.host else (TCP4, socket.AF_INET)
    source = socket.inet_pton(kind, origin.host)
    body = source + bytes(len(source)) + origin.port.to_bytes(2) + bytes(2)
    return SIGNATURE + bytes((PROXY, family)) + len(body).to_bytes(2) + body

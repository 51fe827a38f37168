"""What a client says of itself in start-ok, by SASL mechanism: user name and password.

    PLAIN      authorization-id NUL user NUL password       (RFC 4616; the first part empty)
    AMQPLAIN   a field table without its length: LOGIN, PASSWORD     (AMQP 0-9)
    EXTERNAL   nothing that counts: the user is named by the TLS certificate    (RFC 4422; RabbitMQ)
    ANONYMOUS  nothing that counts: the user is named by the configuration      (RFC 4505; RabbitMQ)

Knows nothing of whether they are right.
"""

from collections.abc import Callable
from typing import Any

from brokerd.errors import AMQPError, LoginRefused
from brokerd.wire.values import decode_table

EXTERNAL, ANONYMOUS = "EXTERNAL", "ANONYMOUS"


def offered(*, certificate: bool, anonymous: bool) -> str:
    """The mechanisms as connection.start lists them; ``certificate``: a verified one names the client."""
    names = list(MECHANISMS)
    if certificate:
        names.append(EXTERNAL)
    if anonymous:
        names.append(ANONYMOUS)
    return " ".join(names)


def credentials(mechanism: str, response: bytes) -> tuple[str, bytes]:
    """User name and password of a start-ok.  Raises LoginRefused, its text meant for the log."""
    reader = MECHANISMS.get(mechanism)
    if reader is None:
        raise LoginRefused(f"unknown authentication mechanism {mechanism!r:.80}")
    return reader(response)


def plain(response: bytes) -> tuple[str, bytes]:
    """Of a PLAIN response; to act for somebody else is refused."""
    parts = bytes(response).split(b"\0")
    if len(parts) != 3:
        raise LoginRefused("PLAIN response is not NUL, user, NUL, password")
    authorization, name, password = parts
    if authorization not in (b"", name):
        raise LoginRefused("PLAIN response asks to act for another user")
    return _name(name, "PLAIN"), password


def amqplain(response: bytes) -> tuple[str, bytes]:
    """Of an AMQPLAIN response."""
    octets = bytes(response)
    try:
        table, end = decode_table(len(octets).to_bytes(4, "big") + octets, 0)
    except (AMQPError, ValueError) as error:
        raise LoginRefused(f"AMQPLAIN response is no field table: {error}") from None
    name, password = _octets(table.get("LOGIN")), _octets(table.get("PASSWORD"))
    if name is None or password is None or end != len(octets) + 4:
        raise LoginRefused("AMQPLAIN response is missing LOGIN or PASSWORD")
    return _name(name, "AMQPLAIN"), password


MECHANISMS: dict[str, Callable[[bytes], tuple[str, bytes]]] = {"PLAIN": plain, "AMQPLAIN": amqplain}


def _octets(value: Any) -> bytes | None:
    """A string of the table, as the octets it was sent as."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return bytes(value) if isinstance(value, (bytes, bytearray)) else None


def _name(octets: bytes, mechanism: str) -> str:
    """A name that can be a user's, and that may stand in a line of the log."""
    try:
        name = octets.decode()
    except UnicodeDecodeError:
        raise LoginRefused(f"{mechanism} response has a user name that is not UTF-8") from None
    if not name or not name.isprintable():
        raise LoginRefused(f"{mechanism} response has a user name that is empty or not printable")
    return name

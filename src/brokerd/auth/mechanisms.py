"""The user name and password in a client's start-ok, for each SASL mechanism.

    PLAIN      authorization-id NUL user NUL password                      (RFC 4616; the first part is empty)
    AMQPLAIN   a field table without its length: LOGIN, PASSWORD           (AMQP 0-9)
    EXTERNAL   ignored: the TLS certificate names the user                 (RFC 4422; RabbitMQ)
    ANONYMOUS  ignored: the configuration names the user                   (RFC 4505; RabbitMQ)

Knows nothing of whether name and password are right.
"""

from collections.abc import Callable
from typing import Any

from brokerd.errors import AMQPError, LoginRefused
from brokerd.wire.values import decode_table

EXTERNAL, ANONYMOUS = "EXTERNAL", "ANONYMOUS"


def list_mechanisms(*, certificate: bool, anonymous: bool) -> str:
    """The mechanisms as connection.start lists them; ``certificate``: a verified certificate names the client."""
    names = list(MECHANISMS)
    if certificate:
        names.append(EXTERNAL)
    if anonymous:
        names.append(ANONYMOUS)
    return " ".join(names)


def credentials(mechanism: str, response: bytes) -> tuple[str, bytes]:
    """User name and password of a start-ok.  Raises LoginRefused with a text for the log."""
    reader = MECHANISMS.get(mechanism)
    if reader is None:
        raise LoginRefused(f"unknown authentication mechanism {mechanism!r:.80}")
    return reader(response)


def read_plain(response: bytes) -> tuple[str, bytes]:
    """User name and password of a PLAIN response, which must not ask to act for another user."""
    parts = bytes(response).split(b"\0")
    if len(parts) != 3:
        raise LoginRefused("PLAIN response is not NUL, user, NUL, password")
    authorization, name, password = parts
    if authorization not in (b"", name):
        raise LoginRefused("PLAIN response asks to act for another user")
    return _name(name, "PLAIN"), password


def read_amqplain(response: bytes) -> tuple[str, bytes]:
    """User name and password of an AMQPLAIN response."""
    octets = bytes(response)
    try:
        table, end = decode_table(len(octets).to_bytes(4, "big") + octets, 0)
    except (AMQPError, ValueError) as error:
        raise LoginRefused(f"AMQPLAIN response is no field table: {error}") from None
    name, password = _octets(table.get("LOGIN")), _octets(table.get("PASSWORD"))
    if name is None or password is None or end != len(octets) + 4:
        raise LoginRefused("AMQPLAIN response is missing LOGIN or PASSWORD")
    return _name(name, "AMQPLAIN"), password


MECHANISMS: dict[str, Callable[[bytes], tuple[str, bytes]]] = {"PLAIN": read_plain, "AMQPLAIN": read_amqplain}


def _octets(value: Any) -> bytes | None:
    """The octets of a string in the table, as the client sent them; None for other values."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return bytes(value) if isinstance(value, (bytes, bytearray)) else None


def _name(octets: bytes, mechanism: str) -> str:
    """The user name as text.  Raises LoginRefused for names that would break a line of the log."""
    try:
        name = octets.decode()
    except UnicodeDecodeError:
        raise LoginRefused(f"{mechanism} response has a user name that is not UTF-8") from None
    if not name or not name.isprintable():
        raise LoginRefused(f"{mechanism} response has a user name that is empty or not printable")
    return name

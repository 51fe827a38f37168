"""The content header of class basic: body size and the fourteen properties of a message.

    0           2            4              12                14
    +-----------+------------+--------------+-----------------+----------------------------+
    | class 60  | weight 0   | body size u64| property flags  | properties present, in order
    +-----------+------------+--------------+-----------------+----------------------------+

Flags run from the highest bit down; the two lowest are ignored, as in RabbitMQ.  An absent property is None.  Knows
nothing of what a property means: callers judge a priority of 200 or a strange expiration.  The plane passes headers on
as octets, so only code that must look into a header comes here.
"""

from struct import Struct
from struct import error as struct_error
from typing import Any

from brokerd.errors import SyntaxError_, UnexpectedFrame
from brokerd.wire.values import Timestamp, decode_table, encode_shortstr, encode_table, read_shortstr

CLASS_BASIC = 60
TRANSIENT = 1
PERSISTENT = 2  # delivery_mode

_HEAD = Struct(">HHQH")
_U64 = Struct(">Q")

# Property and domain, from flag bit 15 down.
FIELDS = (
    ("content-type", "shortstr"),
    ("content-encoding", "shortstr"),
    ("headers", "table"),
    ("delivery-mode", "octet"),
    ("priority", "octet"),
    ("correlation-id", "shortstr"),
    ("reply-to", "shortstr"),
    ("expiration", "shortstr"),
    ("message-id", "shortstr"),
    ("timestamp", "timestamp"),
    ("type", "shortstr"),
    ("user-id", "shortstr"),
    ("app-id", "shortstr"),
    ("cluster-id", "shortstr"),  # "reserved" in 0-9-1; RabbitMQ keeps the older name
)
_ROWS = tuple([(1 << 15 - n, name.replace("-", "_"), domain) for n, (name, domain) in enumerate(FIELDS)])


class Properties:
    """The properties of a message; an absent one is None."""

    __slots__ = (
        "app_id", "cluster_id", "content_encoding", "content_type", "correlation_id", "delivery_mode", "expiration",
        "headers", "message_id", "priority", "reply_to", "timestamp", "type", "user_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        delivery_mode: int | None = None,
        priority: int | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        expiration: str | None = None,
        message_id: str | None = None,
        timestamp: int | None = None,
        type: str | None = None,  # noqa: A002 (the property's name)
        user_id: str | None = None,
        app_id: str | None = None,
        cluster_id: str | None = None,
    ) -> None:
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.headers = headers
        self.delivery_mode = delivery_mode
        self.priority = priority
        self.correlation_id = correlation_id
        self.reply_to = reply_to
        self.expiration = expiration
        self.message_id = message_id
        self.timestamp = timestamp
        self.type = type
        self.user_id = user_id
        self.app_id = app_id
        self.cluster_id = cluster_id

    def present(self) -> dict[str, Any]:
        """The properties that are not None, by name, in their order on the wire."""
        return {name: value for _, name, _ in _ROWS if (value := getattr(self, name)) is not None}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Properties):
            return NotImplemented
        return self.present() == other.present()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Properties({', '.join(f'{name}={value!r}' for name, value in self.present().items())})"


def decode_header(payload: bytes) -> tuple[int, Properties]:
    """Body size in octets and the properties, from the payload of a content header frame.

    SyntaxError_ (502): octets are missing, left over, or not a valid property; the text says which.
    UnexpectedFrame (505): the header of another class, or a weight other than 0, as in RabbitMQ.
    """
    if len(payload) < _HEAD.size:
        raise SyntaxError_(f"content header cut off after {len(payload)} octets")
    class_id, weight, body_size, flags = _HEAD.unpack_from(payload)
    if class_id != CLASS_BASIC:
        raise UnexpectedFrame(f"expected content header for class {CLASS_BASIC}, got one for class {class_id} instead")
    if weight:
        raise UnexpectedFrame(f"expected content header of weight 0, got {weight}")
    properties = Properties()
    at = _HEAD.size
    for flag, name, domain in _ROWS:
        if flags & flag:
            try:
                value, at = _read(payload, at, domain)
            except SyntaxError_ as error:
                raise SyntaxError_(f"property {name}: {error.args[0]}") from None
            setattr(properties, name, value)
    if at != len(payload):
        raise SyntaxError_(f"content header has {len(payload) - at} octets too many, from octet {at} on")
    return body_size, properties


def encode_header(body_size: int, properties: Properties | None = None) -> bytes:
    """The payload of a content header frame.  ValueError: a property cannot hold its value."""
    flags = 0
    pieces = [b""]
    for flag, name, domain in _ROWS if properties is not None else ():
        value = getattr(properties, name)
        if value is not None:
            flags |= flag
            try:
                pieces.append(_write(value, domain))
            except (struct_error, ValueError) as error:
                raise ValueError(f"property {name}: {error}") from None
    pieces[0] = _HEAD.pack(CLASS_BASIC, 0, body_size, flags)
    return b"".join(pieces)


def _read(payload: bytes, at: int, domain: str) -> tuple[Any, int]:
    if domain == "shortstr":
        return read_shortstr(payload, at)
    if domain == "table":
        return decode_table(payload, at)
    stop = at + (1 if domain == "octet" else 8)
    if stop > len(payload):
        raise SyntaxError_(f"cut off at octet {at}")
    return (payload[at] if domain == "octet" else Timestamp(_U64.unpack_from(payload, at)[0])), stop


def _write(value: Any, domain: str) -> bytes:
    if domain == "shortstr":
        return encode_shortstr(value)
    if domain == "table":
        return encode_table(value)
    return bytes((value,)) if domain == "octet" else _U64.pack(value)

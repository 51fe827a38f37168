"""The methods of AMQP 0-9-1 with RabbitMQ's extensions: one table, and the classes that follow from its rows.

    method payload   | class id u16 | method id u16 | fields in order |

A row gives name, class id, method id, fields as name:domain, the possible replies, and whether content follows.  Each
row becomes a class: ``queue.declare`` is ``QueueDeclare`` with slots ``reserved_1, queue, passive, ...``.  Two
attributes differ from their field's name: ``global`` is ``global_``, because Python reserves the word, and
confirm.select's ``nowait`` is ``no_wait`` as in all other methods.

The first use of a class compiles its constructor, encoder and decoder from the row, because most processes use a third
of the classes.  ``methods.pyi`` tells type checkers what follows from the table.  One test compares the two; another
compares the table with the published XML.

Knows only octets and fields, and nothing of what a method means or when it may be sent.
"""

from struct import Struct
from struct import error as struct_error
from typing import Any

from brokerd.errors import NotAllowed, NotImplemented_, PreconditionFailed, SyntaxError_
from brokerd.wire.frames import method_frame
from brokerd.wire.values import decode_table, encode_longstr, encode_shortstr, encode_table, read_longstr

# The struct code of each domain with a fixed size, and the default of the other domains.
_FIXED = {"octet": "B", "short": "H", "long": "I", "longlong": "Q", "timestamp": "Q"}
_DEFAULTS = {"bit": "False", "shortstr": "''", "longstr": "b''", "table": "None"}
_ATTRIBUTES = {"global": "global_", "nowait": "no_wait"}

METHOD_OCTETS_MAX = 16_384  # of a method from a client: to decode a table takes up to 0.35 us an octet
VALUES_MAX = 1024  # in a table of a method, with those in inner tables and arrays; one has at least one octet

BY_INDEX: "dict[int, type[Method]]" = {}
BY_NAME: "dict[str, type[Method]]" = {}


class Method:
    """One method with its fields.  The constructor takes keywords; a field that is not given is zero, empty or False.

    ``NAME`` is queue.declare, ``INDEX`` is class id << 16 | method id, ``FIELDS`` are (name, domain) in order,
    ``REPLIES`` are the names of the methods that may answer it, and ``CONTENT`` says whether content follows.
    """

    __slots__: tuple[str, ...] = ()
    NAME = ""
    INDEX = 0
    FIELDS: tuple[tuple[str, str], ...] = ()
    REPLIES: tuple[str, ...] = ()
    CONTENT = False

    def __init__(self, **fields: Any) -> None:
        _compile(type(self))
        self.__init__(**fields)  # type: ignore[misc]

    def encode(self) -> bytes:
        """The payload of its method frame.  ValueError: a short string over 255 octets, a number out of range."""
        _compile(type(self))
        return self.encode()

    @classmethod
    def decode_fields(cls, payload: bytes) -> "Method":
        """Decode a payload that the caller knows to be this method's; texts of errors do not name the method."""
        _compile(cls)
        return cls.decode_fields(payload)

    def frame(self, channel: int) -> bytes:
        """The whole method frame."""
        return method_frame(channel, self.encode())

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


def decode(payload: bytes) -> Method:
    """The method in the payload of a method frame.

    NotImplemented_ (540): the class or method is unknown.  RabbitMQ closes the socket without an answer; the
    specification (1.5) has this code for it.  SyntaxError_ (502): octets are missing, left over, or not a valid field;
    the text names the method and the octet, counted from the payload's start.
    """
    index = int.from_bytes(payload[:4])
    method = BY_INDEX.get(index)
    if method is None or len(payload) < 4:
        if len(payload) < 4:
            raise SyntaxError_(f"method cut off after {len(payload)} octets")
        raise NotImplemented_(f"unknown method {index >> 16}.{index & 0xFFFF}")
    try:
        return method.decode_fields(payload)
    except SyntaxError_ as error:
        raise SyntaxError_(f"{method.NAME}: {error.args[0]}") from None


def decode_bounded(payload: bytes) -> Method:
    """The method in the payload, if a broker may keep its arguments.

    Raises as ``decode`` does; PreconditionFailed (406): the arguments are too many, or have too many octets.
    """
    if len(payload) <= VALUES_MAX:
        return decode(payload)
    name = _name(payload)
    if len(payload) > METHOD_OCTETS_MAX:
        raise PreconditionFailed(f"{name} of {len(payload)} octets is larger than max size {METHOD_OCTETS_MAX}")
    method = decode(payload)
    values = _count(getattr(method, "arguments", None))
    if values > VALUES_MAX:
        raise PreconditionFailed(f"arguments of {name} have {values} values, at most {VALUES_MAX} are possible")
    return method


def check_octets(payload: bytes) -> None:
    """Raise NotAllowed (530) if a method of the handshake is too large to be worth decoding."""
    if len(payload) > METHOD_OCTETS_MAX:
        raise NotAllowed(f"{_name(payload)} of {len(payload)} octets is larger than max size {METHOD_OCTETS_MAX}")


def _name(payload: bytes) -> str:
    method = BY_INDEX.get(int.from_bytes(payload[:4]))
    return "method" if method is None else method.NAME


def _count(value: Any) -> int:
    """How many values a table or array has, with those in inner ones; 0 for other values."""
    if not isinstance(value, dict | list):
        return 0
    return len(value) + sum([_count(item) for item in (value.values() if isinstance(value, dict) else value)])


def _method(
    name: str, class_id: int, method_id: int, fields: str = "", *, replies: str = "", content: bool = False
) -> None:
    """Make the class of one row of the table."""
    pairs = tuple([tuple(field.split(":")) for field in fields.split()])
    prefix = name.partition(".")[0]
    namespace = {
        "__slots__": tuple([_attribute(field) for field, _ in pairs]),
        "__module__": __name__,
        "NAME": name,
        "INDEX": class_id << 16 | method_id,
        "FIELDS": pairs,
        "REPLIES": tuple([f"{prefix}.{reply}" for reply in replies.split()]),
        "CONTENT": content,
    }
    class_name = name.replace(".", "-").title().replace("-", "")
    method: type[Method] = type(class_name, (Method,), namespace)
    BY_INDEX[method.INDEX] = BY_NAME[name] = globals()[class_name] = method


def _attribute(field: str) -> str:
    return _ATTRIBUTES.get(field) or field.replace("-", "_")


# Fields as name:domain, in their order on the wire.
# fmt: off
_method(
    "connection.start", 10, 10,
    "version-major:octet version-minor:octet server-properties:table mechanisms:longstr locales:longstr",
    replies="start-ok",
)
_method("connection.start-ok", 10, 11, "client-properties:table mechanism:shortstr response:longstr locale:shortstr")
_method("connection.secure", 10, 20, "challenge:longstr", replies="secure-ok")
_method("connection.secure-ok", 10, 21, "response:longstr")
_method("connection.tune", 10, 30, "channel-max:short frame-max:long heartbeat:short", replies="tune-ok")
_method("connection.tune-ok", 10, 31, "channel-max:short frame-max:long heartbeat:short")
_method("connection.open", 10, 40, "virtual-host:shortstr reserved-1:shortstr reserved-2:bit", replies="open-ok")
_method("connection.open-ok", 10, 41, "reserved-1:shortstr")
_method(
    "connection.close", 10, 50,
    "reply-code:short reply-text:shortstr class-id:short method-id:short",
    replies="close-ok",
)
_method("connection.close-ok", 10, 51)
_method("connection.blocked", 10, 60, "reason:shortstr")
_method("connection.unblocked", 10, 61)
_method("connection.update-secret", 10, 70, "new-secret:longstr reason:shortstr", replies="update-secret-ok")
_method("connection.update-secret-ok", 10, 71)
_method("channel.open", 20, 10, "reserved-1:shortstr", replies="open-ok")
_method("channel.open-ok", 20, 11, "reserved-1:longstr")
_method("channel.flow", 20, 20, "active:bit", replies="flow-ok")
_method("channel.flow-ok", 20, 21, "active:bit")
_method(
    "channel.close", 20, 40,
    "reply-code:short reply-text:shortstr class-id:short method-id:short",
    replies="close-ok",
)
_method("channel.close-ok", 20, 41)
_method(
    "access.request", 30, 10,
    "realm:shortstr exclusive:bit passive:bit active:bit write:bit read:bit",
    replies="request-ok",
)
_method("access.request-ok", 30, 11, "reserved-1:short")
_method(
    "exchange.declare", 40, 10,
    "reserved-1:short exchange:shortstr type:shortstr passive:bit durable:bit auto-delete:bit internal:bit "
    "no-wait:bit arguments:table",
    replies="declare-ok",
)
_method("exchange.declare-ok", 40, 11)
_method("exchange.delete", 40, 20, "reserved-1:short exchange:shortstr if-unused:bit no-wait:bit", replies="delete-ok")
_method("exchange.delete-ok", 40, 21)
_method(
    "exchange.bind", 40, 30,
    "reserved-1:short destination:shortstr source:shortstr routing-key:shortstr no-wait:bit arguments:table",
    replies="bind-ok",
)
_method("exchange.bind-ok", 40, 31)
_method(
    "exchange.unbind", 40, 40,
    "reserved-1:short destination:shortstr source:shortstr routing-key:shortstr no-wait:bit arguments:table",
    replies="unbind-ok",
)
_method("exchange.unbind-ok", 40, 51)
_method(
    "queue.declare", 50, 10,
    "reserved-1:short queue:shortstr passive:bit durable:bit exclusive:bit auto-delete:bit no-wait:bit "
    "arguments:table",
    replies="declare-ok",
)
_method("queue.declare-ok", 50, 11, "queue:shortstr message-count:long consumer-count:long")
_method(
    "queue.bind", 50, 20,
    "reserved-1:short queue:shortstr exchange:shortstr routing-key:shortstr no-wait:bit arguments:table",
    replies="bind-ok",
)
_method("queue.bind-ok", 50, 21)
_method("queue.purge", 50, 30, "reserved-1:short queue:shortstr no-wait:bit", replies="purge-ok")
_method("queue.purge-ok", 50, 31, "message-count:long")
_method(
    "queue.delete", 50, 40,
    "reserved-1:short queue:shortstr if-unused:bit if-empty:bit no-wait:bit",
    replies="delete-ok",
)
_method("queue.delete-ok", 50, 41, "message-count:long")
_method(
    "queue.unbind", 50, 50,
    "reserved-1:short queue:shortstr exchange:shortstr routing-key:shortstr arguments:table",
    replies="unbind-ok",
)
_method("queue.unbind-ok", 50, 51)
_method("basic.qos", 60, 10, "prefetch-size:long prefetch-count:short global:bit", replies="qos-ok")
_method("basic.qos-ok", 60, 11)
_method(
    "basic.consume", 60, 20,
    "reserved-1:short queue:shortstr consumer-tag:shortstr no-local:bit no-ack:bit exclusive:bit no-wait:bit "
    "arguments:table",
    replies="consume-ok",
)
_method("basic.consume-ok", 60, 21, "consumer-tag:shortstr")
_method("basic.cancel", 60, 30, "consumer-tag:shortstr no-wait:bit", replies="cancel-ok")
_method("basic.cancel-ok", 60, 31, "consumer-tag:shortstr")
_method(
    "basic.publish", 60, 40,
    "reserved-1:short exchange:shortstr routing-key:shortstr mandatory:bit immediate:bit",
    content=True,
)
_method(
    "basic.return", 60, 50,
    "reply-code:short reply-text:shortstr exchange:shortstr routing-key:shortstr",
    content=True,
)
_method(
    "basic.deliver", 60, 60,
    "consumer-tag:shortstr delivery-tag:longlong redelivered:bit exchange:shortstr routing-key:shortstr",
    content=True,
)
_method("basic.get", 60, 70, "reserved-1:short queue:shortstr no-ack:bit", replies="get-ok get-empty")
_method(
    "basic.get-ok", 60, 71,
    "delivery-tag:longlong redelivered:bit exchange:shortstr routing-key:shortstr message-count:long",
    content=True,
)
_method("basic.get-empty", 60, 72, "reserved-1:shortstr")
_method("basic.ack", 60, 80, "delivery-tag:longlong multiple:bit")
_method("basic.reject", 60, 90, "delivery-tag:longlong requeue:bit")
_method("basic.recover-async", 60, 100, "requeue:bit")
_method("basic.recover", 60, 110, "requeue:bit", replies="recover-ok")
_method("basic.recover-ok", 60, 111)
_method("basic.nack", 60, 120, "delivery-tag:longlong multiple:bit requeue:bit")
_method("confirm.select", 85, 10, "nowait:bit", replies="select-ok")
_method("confirm.select-ok", 85, 11)
_method("tx.select", 90, 10, replies="select-ok")
_method("tx.select-ok", 90, 11)
_method("tx.commit", 90, 20, replies="commit-ok")
_method("tx.commit-ok", 90, 21)
_method("tx.rollback", 90, 30, replies="rollback-ok")
_method("tx.rollback-ok", 90, 31)
# fmt: on


# --- from a row to code


def _compile(method: type[Method]) -> None:
    """Give ``method`` its constructor, encoder and decoder."""
    steps = _steps(method.FIELDS)
    names: dict[str, Any] = {
        "cls": method, "new": method.__new__, "cut_off": _cut_off, "left_over": _left_over, "pack_error": _pack_error,
        "struct_error": struct_error, "decode_table": decode_table, "read_longstr": read_longstr,
        "encode_shortstr": encode_shortstr, "encode_longstr": encode_longstr, "encode_table": encode_table,
    }  # fmt: skip
    source = "\n".join([*_init_source(method), *_encode_source(method, steps, names), *_decode_source(steps, names)])
    exec(compile(source, f"<{method.NAME}>", "exec"), names)
    method.__init__ = names["__init__"]  # type: ignore[method-assign]
    method.encode = names["encode"]  # type: ignore[method-assign]
    method.decode_fields = staticmethod(names["decode_fields"])  # type: ignore[method-assign]


def _steps(fields: tuple[tuple[str, str], ...]) -> list[tuple[str, list[list[str]]]]:
    """The fields in groups; one step reads or writes each group.

    ("fixed", [[code, attribute, ...], ...]): one struct.  The code "bits" is one octet with a bit for each attribute,
    the lowest bit first.  ("shortstr" | "longstr" | "table", [[attribute]]): one value.
    """
    steps: list[tuple[str, list[list[str]]]] = []
    last = ""
    for field, domain in fields:
        attribute = _attribute(field)
        code = "bits" if domain == "bit" else _FIXED.get(domain)
        if code is None:
            steps.append((domain, [[attribute]]))
        elif code == "bits" and last == "bit" and len(steps[-1][1][-1]) < 9:
            steps[-1][1][-1].append(attribute)
        elif steps and steps[-1][0] == "fixed":
            steps[-1][1].append([code, attribute])
        else:
            steps.append(("fixed", [[code, attribute]]))
        last = domain
    return steps


def _layout(parts: list[list[str]]) -> str:
    return "".join("B" if part[0] == "bits" else part[0] for part in parts)


def _init_source(method: type[Method]) -> list[str]:
    if not method.FIELDS:
        return ["def __init__(self): pass"]
    parameters, lines = [], []
    for field, domain in method.FIELDS:
        attribute = _attribute(field)
        parameters.append(f"{attribute}={_DEFAULTS.get(domain, '0')}")
        value = f"{{}} if {attribute} is None else {attribute}" if domain == "table" else attribute
        lines.append(f" self.{attribute} = {value}")
    return [f"def __init__(self, *, {', '.join(parameters)}):", *lines]


def _encode_source(method: type[Method], steps: list[Any], names: dict[str, Any]) -> list[str]:
    lines = ["def encode(self):"]
    layout, values = "I", [str(method.INDEX)]
    pieces: list[str] = []

    def flush() -> None:
        if values:
            pack = f"pack_{len(pieces)}"
            names[pack] = Struct(">" + layout).pack
            pieces.append(f"{pack}({', '.join(values)})")

    for kind, parts in steps:
        if kind != "fixed":
            flush()
            layout, values = "", []
            pieces.append(f"encode_{kind}(self.{parts[0][0]})")
            continue
        layout += _layout(parts)
        for code, *attributes in parts:
            if code == "bits":
                values.append(" | ".join(f"({1 << n} if self.{name} else 0)" for n, name in enumerate(attributes)))
            else:
                values.append(f"self.{attributes[0]}")
    flush()
    lines.append(f" try: return {' + '.join(pieces)}")
    lines.append(" except struct_error as error: raise pack_error(self, error) from None")
    return lines


def _decode_source(steps: list[Any], names: dict[str, Any]) -> list[str]:
    """Each step checks that the position stays within the payload before it reads on."""
    lines = ["def decode_fields(payload):", " self = new(cls); at = 4; end = len(payload)"]
    for number, (kind, parts) in enumerate(steps):
        first = parts[0][-1] if kind != "fixed" else parts[0][1]
        if kind == "fixed":
            layout = Struct(">" + _layout(parts))
            names[f"unpack_{number}"] = layout.unpack_from
            targets = ["bits" if part[0] == "bits" else f"self.{part[1]}" for part in parts]
            lines.append(f" if at + {layout.size} > end: raise cut_off({first!r}, at)")
            lines.append(f" {', '.join(targets)}, = unpack_{number}(payload, at); at += {layout.size}")
            for part in parts:
                if part[0] == "bits":
                    lines += [f" self.{name} = bits & {1 << n} != 0" for n, name in enumerate(part[1:])]
        elif kind == "shortstr":
            lines.append(f" if at >= end: raise cut_off({first!r}, at)")
            lines.append(" start = at + 1; after = start + payload[at]")
            lines.append(f" if after > end: raise cut_off({first!r}, at)")
            lines.append(f" self.{first} = payload[start:after].decode('utf-8', 'surrogateescape'); at = after")
        else:
            read = "decode_table" if kind == "table" else "read_longstr"
            lines.append(f" self.{first}, at = {read}(payload, at)")
    return [*lines, " if at != end: raise left_over(at, end)", " return self"]


def _cut_off(attribute: str, at: int) -> SyntaxError_:
    return SyntaxError_(f"{attribute} cut off at octet {at}")


def _left_over(at: int, end: int) -> SyntaxError_:
    return SyntaxError_(f"{end - at} octets too many, from octet {at} on")


def _pack_error(method: Method, error: Exception) -> ValueError:
    return ValueError(f"{method!r} has a number out of range: {error}")

"""The method table, and what follows from it."""

import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.stub_of_methods import stub

from brokerd.errors import NotAllowed, NotImplemented_, PreconditionFailed, SyntaxError_
from brokerd.wire import methods
from brokerd.wire.frames import FRAME_METHOD, Frame, FrameScanner

EACH = pytest.mark.parametrize("method", methods.BY_INDEX.values(), ids=lambda method: method.NAME)
SPEC = "/usr/share/amqp/specs/0-9-1-rabbit/amqp0-9-1.stripped.extended.xml"

# What RabbitMQ speaks and the XML of Debian's package does not have: name, class id, method id, fields, replies.
EXTENSIONS = {
    "connection.blocked": (10, 60, [("reason", "shortstr")], []),
    "connection.unblocked": (10, 61, [], []),
    "connection.update-secret": (
        10, 70, [("new-secret", "longstr"), ("reason", "shortstr")], ["connection.update-secret-ok"],
    ),
    "connection.update-secret-ok": (10, 71, [], []),
    "access.request": (
        30, 10,
        [("realm", "shortstr"), *((name, "bit") for name in ("exclusive", "passive", "active", "write", "read"))],
        ["access.request-ok"],
    ),
    "access.request-ok": (30, 11, [("reserved-1", "short")], []),
}  # fmt: skip
# The XML says in words only that recover is answered.
REPLIES_IN_WORDS = {"basic.recover": ["basic.recover-ok"]}

SOME = {"bit": True, "octet": 9, "short": 65535, "long": 1 << 31, "longlong": 1 << 63, "shortstr": "té\udcff",
        "longstr": b"\0user\0\xff", "table": {"k": 1, "n": {"deep": [None, "s"]}}}  # fmt: skip


def filled(method: type) -> methods.Method:
    values = zip(method.__slots__, (SOME[domain] for _, domain in method.FIELDS), strict=True)
    return method(**dict(values))


def facts(method: type[methods.Method]) -> tuple:
    return method.INDEX >> 16, method.INDEX & 0xFFFF, list(method.FIELDS), list(method.REPLIES), method.CONTENT


def test_the_table_is_the_published_specification_and_rabbitmqs_extensions():
    path = Path(os.environ.get("AMQP_SPEC_XML", SPEC))
    if not path.exists():
        pytest.skip(f"no {path}: install Debian's package amqp-specs or set AMQP_SPEC_XML")
    root = ElementTree.parse(path).getroot()
    domains = {domain.get("name"): domain.get("type") for domain in root.iter("domain")}
    published = {}
    for cls in root.iter("class"):
        for method in cls.iter("method"):
            name = f"{cls.get('name')}.{method.get('name')}"
            fields = [
                (field.get("name"), domains.get(field.get("domain")) or field.get("type"))
                for field in method.iter("field")
            ]
            replies = [f"{cls.get('name')}.{reply.get('name')}" for reply in method.iter("response")]
            content = method.get("content") == "1"
            replies = replies or REPLIES_IN_WORDS.get(name, [])
            published[name] = (int(cls.get("index")), int(method.get("index")), fields, replies, content)
    for name, (class_id, method_id, fields, replies) in EXTENSIONS.items():
        assert name not in published
        published[name] = (class_id, method_id, fields, replies, False)
    assert {name: facts(method) for name, method in methods.BY_NAME.items()} == published


@EACH
def test_every_reply_is_a_method_of_the_table(method):
    assert all(reply in methods.BY_NAME for reply in method.REPLIES)


def test_each_method_has_one_index_and_one_name():
    assert len(methods.BY_INDEX) == len(methods.BY_NAME) == 66
    assert all(
        methods.BY_NAME[method.NAME] is method is methods.BY_INDEX[index] for index, method in methods.BY_INDEX.items()
    )


def test_the_stub_is_what_the_table_says():
    assert Path(methods.__file__).with_suffix(".pyi").read_text() == stub()


@EACH
def test_a_method_without_arguments_is_zero_empty_and_false(method):
    empty = method()
    assert all(not getattr(empty, name) for name in method.__slots__)
    assert methods.decode(empty.encode()) == empty


@EACH
def test_a_method_comes_back_as_it_was_written(method):
    sent = filled(method)
    got = methods.decode(sent.encode())
    assert got == sent
    assert type(got) is method
    assert got.encode() == sent.encode()
    assert FrameScanner().feed(sent.frame(258)) == [Frame(FRAME_METHOD, 258, sent.encode())]


@EACH
def test_a_method_cut_off_anywhere_is_refused_by_name(method):
    payload = filled(method).encode()
    for end in range(4, len(payload)):
        with pytest.raises(SyntaxError_, match=rf"^{re.escape(method.NAME)}: .* at octet \d+"):
            methods.decode(payload[:end])


@EACH
def test_octets_behind_the_last_field_are_refused_by_name(method):
    payload = filled(method).encode()
    with pytest.raises(
        SyntaxError_, match=f"^{re.escape(method.NAME)}: 2 octets too many, from octet {len(payload)} on"
    ):
        methods.decode(payload + b"\0\0")


@pytest.mark.parametrize("size", range(4))
def test_a_payload_without_a_method_id_is_refused(size):
    with pytest.raises(SyntaxError_, match=f"method cut off after {size} octets"):
        methods.decode(b"\x00\x32\x00\x0a"[:size])


@pytest.mark.parametrize(("class_id", "method_id"), [(50, 99), (77, 10), (0, 0), (65535, 65535), (60, 200)])
def test_an_unknown_method_is_not_implemented(class_id, method_id):
    with pytest.raises(NotImplemented_, match=f"unknown method {class_id}.{method_id}"):
        methods.decode(class_id.to_bytes(2) + method_id.to_bytes(2) + b"rest")


def test_a_malformed_table_is_told_with_method_and_octet():
    payload = methods.QueueDeclare(queue="q", arguments={"k": True}).encode().replace(b"t\x01", b"Z\x01")
    with pytest.raises(SyntaxError_, match=r"^queue\.declare: unknown field value type 0x5a at octet 15"):
        methods.decode(payload)


def test_a_method_has_a_bound_of_octets():
    most = methods.METHOD_OCTETS_MAX
    rest = len(methods.QueueBind(queue="q", arguments={"a": ""}).encode())
    payload = methods.QueueBind(queue="q", arguments={"a": "x" * (most - rest)}).encode()
    assert methods.decode_bounded(payload).queue == "q"
    methods.check_octets(payload)
    larger = methods.QueueBind(queue="q", arguments={"a": "x" * (most - rest + 1)}).encode()
    text = f"queue.bind of {most + 1} octets is larger than max size {most}"
    with pytest.raises(PreconditionFailed, match=text):
        methods.decode_bounded(larger)
    with pytest.raises(NotAllowed, match=text):
        methods.check_octets(larger)


@pytest.mark.parametrize(("more", "values"), [
    (lambda n: {str(k): None for k in range(n)}, 0), (lambda n: {"a": [None] * n}, 1),
    (lambda n: {"a": [[None] * (n - 2), {"b": None}]}, 2),
])
def test_the_values_in_a_methods_arguments_have_a_bound(more, values):
    most = methods.VALUES_MAX
    arguments = more(most - values)
    assert methods.decode_bounded(methods.BasicConsume(arguments=arguments).encode()).arguments == arguments
    octets = methods.BasicConsume(arguments=more(most - values + 1)).encode()
    text = f"arguments of basic.consume have {most + 1} values, at most {most} are possible"
    with pytest.raises(PreconditionFailed, match=text):
        methods.decode_bounded(octets)


@pytest.mark.parametrize("index", [b"\0\xff\0\xff", b"\0\x5a\0\x0a"], ids=["unknown", "no arguments"])
def test_a_large_method_of_another_kind_is_refused_as_a_small_one_is(index):
    payload = index + bytes(2000)
    with pytest.raises((NotImplemented_, SyntaxError_)):
        methods.decode_bounded(payload)


def test_queue_declare_stands_on_the_wire_as_the_specification_has_it():
    declare = methods.QueueDeclare(queue="orders", durable=True, auto_delete=True, no_wait=True)
    assert declare.encode() == b"\x00\x32\x00\x0a" + b"\x00\x00" + b"\x06orders" + b"\x1a" + b"\x00\x00\x00\x00"


@pytest.mark.parametrize("bits", range(32))
def test_unknown_bits_are_ignored_and_known_ones_kept_apart(bits):
    payload = bytearray(methods.QueueDeclare().encode())
    payload[7] = bits | 0xE0
    got = methods.decode(bytes(payload))
    assert [got.passive, got.durable, got.exclusive, got.auto_delete, got.no_wait] == [
        bool(bits >> n & 1) for n in range(5)
    ]


def test_tables_of_two_methods_are_not_one():
    first, second = methods.QueueDeclare(), methods.QueueDeclare()
    first.arguments["k"] = 1
    assert second.arguments == {}


def test_a_misspelt_field_is_a_type_error_and_no_attribute():
    with pytest.raises(TypeError, match="durible"):
        methods.QueueDeclare(durible=True)
    with pytest.raises(AttributeError):
        methods.QueueDeclare().durible = True


@pytest.mark.parametrize("bad", [methods.ConnectionClose(reply_code=65536), methods.QueueDeclare(queue="q" * 256)])
def test_a_value_its_field_cannot_hold_is_a_value_error(bad):
    with pytest.raises(ValueError):
        bad.encode()


@given(st.sampled_from(sorted(methods.BY_INDEX)), st.binary(max_size=80))
def test_any_octets_are_a_method_or_a_syntax_error(index, octets):
    try:
        got = methods.decode(index.to_bytes(4) + octets)
    except SyntaxError_:
        return
    assert repr(methods.decode(got.encode())) == repr(got)  # Not ==: a table may hold a NaN.


def test_importing_the_table_compiles_no_method():
    import subprocess
    import sys

    script = (
        "import brokerd.wire.methods as m;"
        "print(sum('encode' in vars(c) for c in m.BY_INDEX.values()));"
        "m.QueueDeclare();"
        "print(sum('encode' in vars(c) for c in m.BY_INDEX.values()))"
    )
    source = str(Path(methods.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": source}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]

"""Start-ok responses: PLAIN and AMQPLAIN, right and wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.auth.mechanisms import credentials, list_mechanisms
from brokerd.errors import LoginRefused


def field(name: bytes, kind: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + kind + len(value).to_bytes(4, "big") + value


@pytest.mark.parametrize(("has", "names"), [
    ({}, "PLAIN AMQPLAIN"), ({"certificate"}, "PLAIN AMQPLAIN EXTERNAL"), ({"anonymous"}, "PLAIN AMQPLAIN ANONYMOUS"),
    ({"certificate", "anonymous"}, "PLAIN AMQPLAIN EXTERNAL ANONYMOUS"),
])
def test_mechanisms_are_offered_to_whom_they_can_help(has, names):
    assert list_mechanisms(certificate="certificate" in has, anonymous="anonymous" in has) == names


@pytest.mark.parametrize("response", [b"\0anna\0secret", b"anna\0anna\0secret", memoryview(b"\0anna\0secret")])
def test_plain_is_user_and_password(response):
    assert credentials("PLAIN", response) == ("anna", b"secret")


def test_a_password_need_not_be_text():
    assert credentials("PLAIN", b"\0anna\0\xff\xfe") == ("anna", b"\xff\xfe")
    assert credentials("AMQPLAIN", field(b"LOGIN", b"S", b"a") + field(b"PASSWORD", b"S", b"\xff")) == ("a", b"\xff")


@pytest.mark.parametrize("response", [
    b"", b"anna", b"\0anna", b"anna\0secret", b"\0anna\0sec\0ret", b"bert\0anna\0secret", b"\0\0secret",
    b"\0\xff\0secret", b"\0an\nna\0secret",
])
def test_a_plain_response_of_another_form_is_refused(response):
    with pytest.raises(LoginRefused, match="^PLAIN response"):
        credentials("PLAIN", response)


@pytest.mark.parametrize("kind", [b"S", b"x"])
def test_amqplain_is_a_table_of_login_and_password(kind):
    response = field(b"PASSWORD", kind, b"secret") + field(b"LOGIN", kind, b"gr\xc3\xbcn") + field(b"more", b"S", b"")
    assert credentials("AMQPLAIN", response) == ("grün", b"secret")


@pytest.mark.parametrize("response", [
    b"",
    field(b"LOGIN", b"S", b"anna"),
    field(b"PASSWORD", b"S", b"secret"),
    field(b"LOGIN", b"S", b"anna") + b"\x08PASSWORDt\x01",
    field(b"LOGIN", b"S", b"anna") + field(b"PASSWORD", b"S", b"secret")[:-1],
    field(b"LOGIN", b"S", b"anna") + field(b"PASSWORD", b"S", b"secret") + b"\x05",
    field(b"LOGIN", b"S", b"an\nna") + field(b"PASSWORD", b"S", b"secret"),
    b"\0anna\0secret",
])
def test_an_amqplain_response_of_another_form_is_refused(response):
    with pytest.raises(LoginRefused, match="^AMQPLAIN response"):
        credentials("AMQPLAIN", response)


@given(mechanism=st.sampled_from(["PLAIN", "AMQPLAIN"]), response=st.binary(max_size=60))
def test_no_response_does_worse_than_being_refused(mechanism, response):
    try:
        name, password = credentials(mechanism, response)
    except LoginRefused:
        return
    assert name.isprintable()
    assert isinstance(password, bytes)


def test_an_unknown_mechanism_is_refused():
    with pytest.raises(LoginRefused, match="unknown authentication mechanism 'EXTERNAL'"):
        credentials("EXTERNAL", b"")

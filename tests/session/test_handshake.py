import pytest
from tests.session.harness import Client, Node

from brokerd.errors import SyntaxError_
from brokerd.session.handshake import (
    CAPABILITIES,
    CLIENT_OCTETS_REMEMBERED,
    HANDSHAKE,
    OPENING,
    STARTING,
    TUNING,
    read_client,
)
from brokerd.wire import methods
from brokerd.wire.frames import PROTOCOL_HEADER, method_frame
from brokerd.wire.values import encode_table


def closes_with(out):
    (close,) = out
    assert isinstance(close, methods.ConnectionClose)
    return close.reply_code, close.reply_text


def test_a_client_that_does_all_right_is_in(node):
    assert Client(node).start() == [methods.ConnectionOpenOk()]


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_handshake_does_not_depend_on_how_the_stream_was_cut(node, size):
    client = Client(node)
    stream = PROTOCOL_HEADER + b"".join(method.frame(0) for method in (
        methods.ConnectionStartOk(mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US"),
        methods.ConnectionTuneOk(channel_max=10, frame_max=4096, heartbeat=5),
        methods.ConnectionOpen(virtual_host="/"),
    ))
    names = []
    for at in range(0, len(stream), size):
        names += [method.NAME for method in client.raw(stream[at:at + size])]
    assert names == ["connection.start", "connection.tune", "connection.open-ok"]


@pytest.mark.parametrize("header", [b"GET / HT", b"AMQP\x00\x01\x00\x00", b"\x16\x03\x01\x02\x00\x01\x00\x01"])
def test_another_protocol_is_answered_with_ours_and_closed(node, header):
    client = Client(node)
    client.connection.feed(header)
    assert client.transport.octets == PROTOCOL_HEADER
    assert client.transport.closed


def test_a_wrong_password_is_told_at_the_next_tick_to_a_client_that_asked_for_it(node):
    client = Client(node)
    assert client.start(password="wrong") == []
    client.connection.tick(node.clock.now)
    assert closes_with(client.read()) == (
        403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
             "For details see the broker logfile.")


def test_a_wrong_password_is_not_told_to_others(node):
    client = Client(node, properties={})
    client.start(password="wrong")
    client.connection.tick(node.clock.now)
    assert client.read() == []
    assert client.transport.closed


def test_an_unknown_mechanism_is_503(node):
    client = Client(node)
    client.raw(PROTOCOL_HEADER)
    out = client.send(methods.ConnectionStartOk(mechanism="X", locale="en_US"))
    assert closes_with(out) == (503, "COMMAND_INVALID - unknown authentication mechanism 'X'")


def offer(client):
    return client.raw(PROTOCOL_HEADER)[0].mechanisms.decode().split()


def log_in(client, mechanism, response=b""):
    return client.send(methods.ConnectionStartOk(mechanism=mechanism, response=response, locale="en_US"))


def test_external_is_for_whom_a_certificate_names_and_needs_no_response(node):
    client, other = Client(node), Client(node)
    client.connection.certificate_name = "CN=ann"
    assert offer(client) == ["PLAIN", "AMQPLAIN", "EXTERNAL"]
    assert offer(other) == ["PLAIN", "AMQPLAIN"]
    assert isinstance(log_in(client, "EXTERNAL")[0], methods.ConnectionTune)
    assert client.connection.user == "CN=ann"
    assert closes_with(log_in(other, "EXTERNAL")) == (
        503, "COMMAND_INVALID - unknown authentication mechanism 'EXTERNAL'")


def test_anonymous_is_for_all_when_a_user_is_configured_and_else_for_nobody(tmp_path):
    client = Client(Node(tmp_path, anonymous_login_user="nobody"))
    assert offer(client) == ["PLAIN", "AMQPLAIN", "ANONYMOUS"]
    assert isinstance(log_in(client, "ANONYMOUS", b"trace")[0], methods.ConnectionTune)
    assert client.connection.user == "nobody"
    other = Client(Node(tmp_path))
    offer(other)
    assert closes_with(log_in(other, "ANONYMOUS"))[0] == 503


def test_a_mechanism_is_named_in_capitals(node):
    client = Client(node)
    offer(client)
    assert closes_with(log_in(client, "plain", b"\0guest\0guest"))[0] == 503


def test_a_client_that_asks_for_no_heartbeats_gets_none_and_need_not_send_any(node):
    client = Client(node).open(heartbeat=0)
    for _ in range(1000):
        client.connection.tick(node.clock.now)
    assert client.read() == []
    assert not client.transport.aborted


@pytest.mark.parametrize(("capabilities", "told"), [
    ({"connection.blocked": True}, True), ({"connection.blocked": False}, False), ({}, False), (None, False),
    ({"connection.blocked": 1}, False), ("connection.blocked", False),
])
def test_only_clients_that_announce_it_are_told_of_alarms(node, capabilities, told):
    properties = {} if capabilities is None else {"capabilities": capabilities}
    client = Client(node, properties=properties).open()
    client.connection.on_publisher_blocked()
    client.connection.unblock()
    assert [method.NAME for method in client.read()] == told * ["connection.blocked", "connection.unblocked"]


@pytest.mark.parametrize(("settings", "text"), [
    ({"frame_max": 4095}, "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)"),
    ({"frame_max": 131073}, "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"),
    ({"frame_max": 0}, "negotiated frame_max = 0 is higher than the maximum allowed value (131072)"),
    ({"channel_max": 2048}, "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)"),
    ({"channel_max": 0}, "negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"),
    ({"vhost": "nope"}, "vhost nope not found"),
])
def test_limits_and_vhosts_that_cannot_be_are_530(node, settings, text):
    assert closes_with(Client(node).start(**settings)) == (530, f"NOT_ALLOWED - {text}")


@pytest.mark.parametrize("state", [STARTING, TUNING, OPENING])
@pytest.mark.parametrize("method", [
    methods.ConnectionStartOk(mechanism="PLAIN", response=b"\0a\0a"), methods.ConnectionTuneOk(),
    methods.ConnectionOpen(), methods.ConnectionUnblocked(), methods.ChannelOpen(),
], ids=lambda method: method.NAME)
def test_a_method_that_the_table_does_not_have_is_504(node, state, method):
    if (state, method.INDEX) in HANDSHAKE:
        return
    client = Client(node)
    client.raw(PROTOCOL_HEADER)
    client.connection.state = state
    assert closes_with(client.send(method)) == (504, f"CHANNEL_ERROR - unexpected method in connection state {state}")


def test_a_handshake_that_takes_too_long_is_cut_off(node):
    client = Client(node)
    client.raw(PROTOCOL_HEADER)
    client.connection.tick(node.clock.now + 9)
    assert not client.transport.aborted
    client.connection.tick(node.clock.now + 11)
    assert client.transport.aborted


def test_a_start_ok_that_is_too_large_is_530(node):
    start_ok = methods.ConnectionStartOk(client_properties={"a": [None] * 20_000}, mechanism="PLAIN").encode()
    client = Client(node)
    client.raw(PROTOCOL_HEADER)
    text = f"NOT_ALLOWED - connection.start-ok of {len(start_ok)} octets is larger than max size 16384"
    assert closes_with(client.raw(method_frame(0, start_ok))) == (530, text)


def test_client_properties_are_kept_as_octets_and_read_on_demand(node):
    client = Client(node, properties={"connection_name": "me", "n": 5}).open()
    assert client.connection.client_property_table == {"connection_name": "me", "n": 5}


START_OK = methods.ConnectionStartOk(client_properties={"product": "x", "n": 5, "capabilities": {"a": True}},
                                     mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US").encode()


@pytest.mark.parametrize("payload", [
    *[START_OK[:end] for end in range(4, len(START_OK))],
    START_OK + b"\0",
    START_OK[:4] + b"\0\0\0\x03\x01a?" + START_OK[-10:],       # a value of an unknown type
    START_OK[:4] + b"\xff\xff\xff\xff" + START_OK[8:],
], ids=lambda payload: str(len(payload)))
def test_the_fault_of_a_malformed_start_ok_is_that_of_the_method_read_whole(node, payload):
    with pytest.raises(SyntaxError_) as fault:
        methods.decode(payload)
    for _ in range(2):      # Nothing of it is remembered.
        client = Client(node)
        client.raw(PROTOCOL_HEADER)
        assert closes_with(client.raw(method_frame(0, payload))) == (502, fault.value.reply_text)


def test_clients_that_say_the_same_have_the_same_capabilities_and_others_their_own(node):
    for properties, capabilities in (
        ({}, 0), ({"capabilities": dict.fromkeys(CAPABILITIES, True)}, 7), ({"capabilities": 5}, 0),
        ({"capabilities": {**dict.fromkeys(CAPABILITIES, True), "connection.blocked": 1}}, 5),
        ({"capabilities": {"consumer_cancel_notify": True}, "long": "x" * CLIENT_OCTETS_REMEMBERED}, 1),
    ) * 2:
        assert Client(node, properties=properties).open().connection.capabilities == capabilities


@pytest.mark.parametrize("octets", [10, CLIENT_OCTETS_REMEMBERED])
def test_a_client_says_its_name_and_program(octets):
    said = read_client(encode_table({"connection_name": "me", "product": "p" * 90, "version": 5, "x": "x" * octets}))
    assert said == (0, "me", ("p" * 80, "5", "?"))
    assert read_client(encode_table({"connection_name": 5, "x": "x" * octets})).name is None


def test_a_client_after_a_reload_is_offered_the_new_limits(node):
    for seconds in (60, 7, 60):
        node.limits = node.limits._replace(heartbeat_seconds=seconds)
        client = Client(node)
        client.raw(PROTOCOL_HEADER)
        assert client.raw(method_frame(0, START_OK)) == [
            methods.ConnectionTune(channel_max=2047, frame_max=131072, heartbeat=seconds)]

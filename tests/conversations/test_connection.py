"""Class connection: the handshake with every refusal, the limits, heartbeats and ends."""

import socket
import time

import pytest
from tests.conversations.peer import Pace, Peer, differs, publish, rabbitmq, unless_stalled

from brokerd.wire import methods
from brokerd.wire.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER, method_frame
from brokerd.wire.values import decode_table, encode_table


def everything(peer):
    octets = b""
    while chunk := peer.receive():
        octets += chunk
    return octets


# --- the protocol header


@pytest.mark.parametrize("octets", [
    b"AMQP\x00\x00\x08\x00", pytest.param(b"AMQP\x01\x01\x08\x00", marks=differs("AMQP 0-8")),
    b"AMQP\x00\x00\x0a\x00", b"AMQP\x00\x01\x00\x00",
    b"AMQP\x03\x01\x00\x00", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\x00" * 8,
    b"amqp\x00\x00\x09\x01",
])
def test_a_header_of_another_protocol_is_answered_with_ours_and_the_end(stranger, octets):
    stranger.raw(octets)
    assert everything(stranger) == PROTOCOL_HEADER


def test_a_header_may_come_octet_by_octet(stranger):
    for octet in PROTOCOL_HEADER:
        stranger.raw(bytes([octet]))
    assert isinstance(stranger.read(), methods.ConnectionStart)


def test_a_client_that_goes_without_a_header_is_no_event(stranger):
    stranger.raw(PROTOCOL_HEADER[:5])
    stranger.hang_up()


# --- start


def test_start_offers_mechanisms_a_locale_and_the_capabilities(stranger):
    start = stranger.start()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert {"PLAIN", "AMQPLAIN"} <= set(start.mechanisms.decode().split())
    assert start.locales == b"en_US"
    assert {"publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
            "connection.blocked", "consumer_priorities", "authentication_failure_close",
            "per_consumer_qos"} <= set(start.server_properties["capabilities"])
    assert {"product", "version", "platform", "cluster_name"} <= set(start.server_properties)


def amqplain(user, password):
    return encode_table({"LOGIN": user, "PASSWORD": password})[4:]


@pytest.mark.parametrize(("mechanism", "response"), [
    ("PLAIN", b"\0guest\0guest"), ("AMQPLAIN", amqplain("guest", "guest")),
    pytest.param("PLAIN", b"guest\0guest\0guest", marks=differs("authorization identity in PLAIN")),
])
def test_both_mechanisms_let_a_user_in(stranger, mechanism, response):
    stranger.start()
    tune = stranger.start_ok(mechanism, response)
    assert tune == methods.ConnectionTune(channel_max=2047, frame_max=131072, heartbeat=60)


LOGIN_REFUSED = ("ACCESS_REFUSED - Login was refused using authentication mechanism {}. "
                 "For details see the broker logfile.")


@pytest.mark.parametrize(("mechanism", "response"), [
    ("PLAIN", b"\0guest\0wrong"), ("PLAIN", b"\0nobody\0guest"), ("PLAIN", b"\0guest\0"),
    ("AMQPLAIN", amqplain("guest", "wrong")),
])
def test_a_wrong_login_is_told_to_clients_that_ask_to_be_told(stranger, mechanism, response):
    stranger.start()
    close = stranger.start_ok(mechanism, response)
    assert (close.reply_code, close.reply_text) == (403, LOGIN_REFUSED.format(mechanism))


@pytest.mark.parametrize(("mechanism", "response"), [
    ("PLAIN", b""), ("PLAIN", b"guest"), ("PLAIN", b"\0guest"), ("AMQPLAIN", b"\x05LOG"),
])
@differs("a login response that cannot be read", always=False)
def test_a_response_that_is_none_is_a_refused_login(stranger, mechanism, response):
    stranger.start()
    close = stranger.start_ok(mechanism, response)
    assert (close.reply_code, close.reply_text) == (403, LOGIN_REFUSED.format(mechanism))


def test_a_wrong_login_without_the_capability_is_the_end_without_a_word(stranger):
    stranger.start(capabilities={})
    assert stranger.start_ok(response=b"\0guest\0wrong") is None


@rabbitmq("hangs up without a word")
def test_an_unknown_mechanism_is_refused_by_name(stranger):
    stranger.start()
    close = stranger.start_ok("CRAM-MD5", b"x")
    assert (close.reply_code, close.reply_text) == (
        503, "COMMAND_INVALID - unknown authentication mechanism 'CRAM-MD5'")


# --- tune and open


def opening(stranger, **limits):
    stranger.start()
    stranger.start_ok()
    stranger.tune_ok(**limits)


@pytest.mark.parametrize(("limits", "text"), [
    ({"frame_max": 4095}, "frame_max = 4095 is lower than the minimum allowed value (4096)"),
    ({"frame_max": 1}, "frame_max = 1 is lower than the minimum allowed value (4096)"),
    ({"frame_max": 131073}, "frame_max = 131073 is higher than the maximum allowed value (131072)"),
    ({"frame_max": 0}, "frame_max = 0 is higher than the maximum allowed value (131072)"),
    ({"channel_max": 2048}, "channel_max = 2048 is higher than the maximum allowed value (2047)"),
    ({"channel_max": 0}, "channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"),
])
@rabbitmq("hangs up without a word")
def test_limits_outside_of_the_offer_are_refused(stranger, limits, text):
    opening(stranger, **limits)
    assert stranger.connection_close() == (530, f"NOT_ALLOWED - negotiated {text}")


@pytest.mark.parametrize("limits", [{"frame_max": 4096}, {"frame_max": 131072}, {"channel_max": 1}])
def test_limits_at_the_ends_of_the_offer_are_taken(stranger, limits):
    opening(stranger, **limits)
    assert isinstance(stranger.ask(methods.ConnectionOpen(virtual_host="/"), 0), methods.ConnectionOpenOk)
    stranger.close()


def test_an_unknown_vhost_is_named_in_the_refusal(stranger):
    opening(stranger)
    stranger.send((0, methods.ConnectionOpen(virtual_host="nowhere")))
    assert stranger.connection_close() == (530, "NOT_ALLOWED - vhost nowhere not found")


# --- methods that come when they may not


@pytest.mark.parametrize("method", [
    methods.ConnectionTuneOk(), methods.ConnectionOpen(virtual_host="/"), methods.ConnectionSecureOk(),
])
@rabbitmq("hangs up without words, or with other ones")
def test_a_method_out_of_order_in_the_handshake_is_refused(stranger, method):
    stranger.start()
    stranger.send((0, method))
    code, text = stranger.connection_close()
    assert code == 504
    assert text.startswith("CHANNEL_ERROR - ")


@rabbitmq("hangs up without words")
def test_a_channel_cannot_be_opened_before_the_connection(stranger):
    stranger.start()
    stranger.send(methods.ChannelOpen())
    assert stranger.connection_close()[0] == 504


@pytest.mark.parametrize("method", [methods.ConnectionStartOk(), methods.ConnectionTuneOk(), methods.ConnectionOpen()])
def test_the_handshake_is_not_held_twice(peer, method):
    peer.send((0, method))
    code, text = peer.connection_close()
    assert (code, text[:16]) == (504, "CHANNEL_ERROR - ")


def test_methods_of_channels_are_refused_on_channel_0(peer):
    peer.send((0, methods.QueueDeclare(queue="q")))
    code, text = peer.connection_close()
    assert code in (503, 504)
    assert text


def test_a_second_protocol_header_is_a_framing_error(peer):
    peer.raw(PROTOCOL_HEADER)
    assert peer.read().reply_code == 501


def test_a_new_secret_is_taken(peer):
    assert peer.ask(methods.ConnectionUpdateSecret(new_secret=b"x", reason="expired"), 0) \
        == methods.ConnectionUpdateSecretOk()


# --- malformed methods


@pytest.mark.parametrize("payload", [
    b"", b"\x00", b"\x00\x0a\x00", b"\x00\x32\x00\x0a", b"\x00\x32\x00\x0a\x00\x00\xff",
    b"\x00\x32\x00\x0a\x00\x00\x01q\x00\xff\xff\xff\xff",
    pytest.param(b"\x00\x32\x00\x0a\x00\x00\x01q\x00\x00\x00\x00\x05\x01aX12",
                 marks=differs("a method that cannot be read")),
    methods.QueueDeclare(queue="q").encode() + b"\x00",
])
def test_a_method_that_cannot_be_read_is_a_syntax_error(peer, payload):
    peer.raw(method_frame(1, payload))
    code, text = peer.connection_close()
    assert code in (501, 502), text


@pytest.mark.parametrize(("class_id", "method_id"), [(50, 99), (99, 1), (0, 0), (60, 65535), (65535, 65535)])
@differs("unknown method", always=False)
def test_an_unknown_method_is_not_implemented(peer, class_id, method_id):
    peer.raw(method_frame(1, class_id.to_bytes(2) + method_id.to_bytes(2)))
    code, text = peer.connection_close()
    assert code in (503, 540), text


# --- heartbeats


def test_silence_is_filled_with_heartbeats_until_a_client_that_falls_silent_is_cut_off(stranger):
    begin = time.monotonic()
    stranger.open_at_once(heartbeat=2)
    received = everything(stranger)
    assert received == HEARTBEAT_FRAME * (len(received) // 8)
    assert len(received) >= 16
    assert time.monotonic() - begin > 3.5


def test_heartbeats_of_a_client_are_welcome_at_any_time(peer):
    peer.raw(HEARTBEAT_FRAME * 100)
    assert isinstance(peer.ask(methods.ChannelOpen(), 2), methods.ChannelOpenOk)


def test_octets_of_any_kind_count_as_a_heartbeat(port):
    def attempt():
        pace = Pace(3)      # After more than 4 s the client is cut off.
        with Peer(port) as client:
            pace.step(lambda: client.open(heartbeat=2).confirming())
            end = time.monotonic() + 6.5
            while time.monotonic() < end:
                assert pace.step(lambda: client.put("nowhere"))
            client.close()

    unless_stalled(attempt)


# --- the end


def test_close_is_answered_and_the_socket_closed(peer):
    peer.close()


@differs("several channels of one connection", always=False)
def test_after_close_nothing_else_is_done(port, peer):
    peer.send((0, methods.ConnectionClose(reply_code=200)), methods.QueueDeclare(queue="too late"))
    assert isinstance(peer.read(), methods.ConnectionCloseOk)
    peer.end()
    with Peer(port).open() as other:
        assert other.refusal(methods.QueueDeclare(queue="too late", passive=True))[0] == 404


@differs("several channels of one connection", always=False)
def test_after_a_refusal_only_close_ok_is_waited_for(port, peer):
    peer.send((9, methods.BasicQos()), methods.QueueDeclare(queue="too late"), publish("nowhere"))
    assert isinstance(peer.read(), methods.ConnectionClose)
    peer.send(methods.QueueDeclare(queue="too late"), HEARTBEAT_FRAME, (0, methods.ConnectionCloseOk()))
    peer.end()
    with Peer(port).open() as other:
        assert other.refusal(methods.QueueDeclare(queue="too late", passive=True))[0] == 404


@rabbitmq("reads on for some milliseconds, then resets")
def test_what_a_client_still_sends_behind_its_close_is_taken(peer, queue):
    """Clients with buffers of their own do so (Node's amqplib), and take a broken pipe for a fault."""
    assert isinstance(peer.ask(methods.ConnectionClose(reply_code=200), 0), methods.ConnectionCloseOk)
    for _ in range(10):
        peer.socket.sendall(publish(queue))
    peer.socket.shutdown(socket.SHUT_WR)
    assert peer.socket.recv(1) == b""


@rabbitmq("waits for close-ok alone")
def test_both_sides_may_close_at_once(peer):
    peer.send((9, methods.BasicQos()), (0, methods.ConnectionClose(reply_code=200)))
    assert isinstance(peer.read(), methods.ConnectionClose)
    last = peer.read()
    assert last is None or isinstance(last, methods.ConnectionCloseOk)


def test_a_close_may_name_what_failed(peer):
    peer.send((0, methods.ConnectionClose(reply_code=541, reply_text="x" * 255, class_id=60, method_id=40)))
    assert isinstance(peer.read(), methods.ConnectionCloseOk)


def test_client_properties_may_hold_every_kind_of_value(stranger):
    table = bytes.fromhex(
        "0161 74 01" "0162 62 ff" "0163 42 ff" "0164 73 ffff" "0165 75 ffff" "0166 49 ffffffff" "0167 69 ffffffff"
        "0168 6c ffffffffffffffff" "0169 66 3f800000" "016a 64 3ff0000000000000" "016b 44 02 0000007b"
        "016c 53 00000001 78" "016d 41 00000002 7401" "016e 54 0000000000000001" "016f 46 00000000" "0170 56"
        "0171 78 00000001 00")
    stranger.start()
    payload = b"\x00\x0a\x00\x0b" + len(table).to_bytes(4) + table
    payload += b"\x05PLAIN" + (12).to_bytes(4) + b"\0guest\0guest" + b"\x05en_US"
    assert decode_table(payload, 4)
    stranger.raw(method_frame(0, payload))
    assert isinstance(stranger.read(), methods.ConnectionTune)


def test_a_heartbeat_before_the_handshake_is_done_does_no_harm(stranger):
    stranger.start()
    stranger.raw(HEARTBEAT_FRAME)
    assert isinstance(stranger.start_ok(), methods.ConnectionTune)

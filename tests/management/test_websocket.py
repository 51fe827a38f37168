"""AMQP over WebSocket: a client behind real sockets, that speaks WebSocket by wsproto and AMQP by brokerd's codecs."""

import random
import socket

import pytest
from tests.broker import SECONDS
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, RejectConnection, Request, TextMessage

from brokerd.management.websocket import is_welcome
from brokerd.wire import methods
from brokerd.wire.frames import FRAME_BODY, FRAME_METHOD, PROTOCOL_HEADER, FrameScanner, body_frames, header_frame
from brokerd.wire.properties import encode_header

FRAME_MAX = 131072


class Client:
    """A WebSocket, and behind its handshake an AMQP connection with channel 1."""

    def __init__(self, port, path="/ws/amqp", *, subprotocols=("amqp",), origin=None):
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self.socket.settimeout(SECONDS)
        self._ws = WSConnection(ConnectionType.CLIENT)
        self._scanner = FrameScanner()
        self._frames = []
        self._events = []
        headers = [(b"origin", origin.encode())] if origin else []
        request = Request(host=f"127.0.0.1:{port}", target=path, subprotocols=list(subprotocols), extra_headers=headers)
        self.socket.sendall(self._ws.send(request))
        self.answer = self.event()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def event(self):
        while not self._events:
            octets = self.socket.recv(1 << 16)
            assert octets, "the server hung up"
            self._ws.receive_data(octets)
            self._events += self._ws.events()
        return self._events.pop(0)

    def send(self, octets, cut=None):
        """``cut``: the octets of AMQP are cut there into messages of WebSocket."""
        at = 0
        for stop in [*(cut or ()), len(octets)]:
            self.socket.sendall(self._ws.send(BytesMessage(octets[at:stop])))
            at = stop

    def send_text(self, text):
        self.socket.sendall(self._ws.send(TextMessage(text)))

    def frame(self):
        while not self._frames:
            event = self.event()
            assert isinstance(event, BytesMessage), event
            self._frames += self._scanner.feed(bytes(event.data))
        return self._frames.pop(0)

    def expect(self, kind):
        frame = self.frame()
        assert frame.kind == FRAME_METHOD
        method = methods.decode(frame.payload)
        assert isinstance(method, kind), method
        return method

    def call(self, method, answer, channel=1):
        self.send(method.frame(channel))
        return self.expect(answer)

    def log_in(self, password="guest"):
        self.send(PROTOCOL_HEADER)
        self.expect(methods.ConnectionStart)
        response = b"\0guest\0" + password.encode()
        self.call(methods.ConnectionStartOk(mechanism="PLAIN", response=response), methods.ConnectionTune, 0)
        self.send(methods.ConnectionTuneOk(channel_max=10, frame_max=FRAME_MAX, heartbeat=0).frame(0))
        self.call(methods.ConnectionOpen(virtual_host="/"), methods.ConnectionOpenOk, 0)
        self.call(methods.ChannelOpen(), methods.ChannelOpenOk)
        return self


def publish(queue, body):
    return (methods.BasicPublish(routing_key=queue).frame(1) + header_frame(1, encode_header(len(body)))
            + body_frames(1, body, FRAME_MAX))  # fmt: skip


def test_a_mebioctet_comes_back_whole_however_messages_of_websocket_cut_its_octets(http):
    body, chance = random.Random(7).randbytes(1 << 20), random.Random(8)
    with Client(http.port) as client:
        assert isinstance(client.answer, AcceptConnection)
        assert client.answer.subprotocol == "amqp"
        client.log_in().call(methods.QueueDeclare(queue="ws.large", exclusive=True), methods.QueueDeclareOk)
        octets = publish("ws.large", body)
        client.send(octets, sorted(chance.sample(range(1, len(octets)), 40)))
        client.call(methods.BasicConsume(queue="ws.large", no_ack=True), methods.BasicConsumeOk)
        client.expect(methods.BasicDeliver)
        client.frame()
        got = b""
        while len(got) < len(body):
            frame = client.frame()
            assert frame.kind == FRAME_BODY
            got += frame.payload
        assert got == body


def test_the_broker_sees_where_the_client_of_the_websocket_is(http):
    with Client(http.port) as client:
        client.log_in()
        port = client.socket.getsockname()[1]
        names = [each["name"] for each in http.get("/api/connections")]
        assert f"127.0.0.1:{port}" in [name.partition(" ")[0] for name in names], names


def test_a_wrong_password_is_refused_as_on_a_port_of_amqp(http, shared):
    begin = len(shared.lines)
    with Client(http.port) as client, pytest.raises(AssertionError):
        client.log_in("wrong")
    shared.wait_for_log(r"login refused: user 'guest' - invalid credentials", begin)


def test_pages_of_other_sites_are_refused_and_the_brokers_own_are_not(http):
    with Client(http.port, origin="http://elsewhere.example") as client:
        assert isinstance(client.answer, RejectConnection)
        assert client.answer.status_code == 403
    with Client(http.port, origin=f"http://127.0.0.1:{http.port}") as client:
        assert isinstance(client.answer, AcceptConnection)


@pytest.mark.parametrize(("named", "origin", "welcome"), [
    ("", "http://a.example", False),
    ("http://a.example", "http://a.example", True),
    ("http://a.example/", "HTTP://A.example", True),
    ("http://a.example", "https://a.example", False),
    ("*", "http://b.example", True),
    ("", "http://broker:15672", True),
    ("", "null", False),
    ("", "http://[", False),
])  # fmt: skip
def test_a_site_is_welcome_if_it_is_named_or_the_brokers_own(named, origin, welcome):
    assert is_welcome({"origin": origin, "host": "broker:15672"}, named) is welcome


def test_another_path_or_subprotocol_is_refused(http):
    with Client(http.port, "/ws/other") as client:
        assert client.answer.status_code == 404
    with Client(http.port, subprotocols=["mqtt"]) as client:
        assert client.answer.status_code == 400
    with Client(http.port, subprotocols=[]) as client:
        assert isinstance(client.answer, AcceptConnection)


def test_text_is_no_amqp(http):
    with Client(http.port) as client:
        client.send_text("hello")
        event = client.event()
        while isinstance(event, BytesMessage):
            event = client.event()
        assert isinstance(event, CloseConnection)
        assert event.code == 1003


def test_a_client_that_does_not_read_holds_up_no_other(http):
    with Client(http.port) as silent, Client(http.port) as other:
        silent.log_in().call(methods.QueueDeclare(queue="ws.silent", auto_delete=True), methods.QueueDeclareOk)
        for _ in range(24):
            silent.send(publish("ws.silent", bytes(1 << 20)))
        silent.send(methods.BasicConsume(queue="ws.silent", no_ack=True).frame(1))  # and is not read from now on
        other.log_in().call(methods.QueueDeclare(queue="ws.other", exclusive=True), methods.QueueDeclareOk)
        other.send(publish("ws.other", b"hello"))
        other.call(methods.BasicConsume(queue="ws.other", no_ack=True), methods.BasicConsumeOk)
        other.expect(methods.BasicDeliver)
        assert other.frame() is not None
        assert other.frame().payload == b"hello"

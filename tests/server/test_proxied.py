"""Connections through proxies: whose headers count, what the broker makes of them, and proxies that send none."""

import json
import socket
import ssl
import subprocess
import sys

import pytest
from tests.broker import ROOT, SECONDS, environment, run
from tests.conversations.peer import Peer
from tests.server.certificates import Authority

from brokerd.server.proxy_header import Origin, make
from brokerd.wire import methods
from brokerd.wire.frames import PROTOCOL_HEADER

TRUSTED = ("--proxy-protocol-from", "10.0.0.1, 127.0.0.0/8")
CLIENT = make(Origin("192.0.2.7", 4711))


def peer_behind(port, header, context=None):
    peer = Peer(port)
    peer.raw(header)
    if context is not None:
        peer.socket = context.wrap_socket(peer.socket, server_hostname="localhost")
    return peer


def clients(broker):
    done = subprocess.run([sys.executable, "-m", "brokerd.cli.brokerctl", "-D", str(broker.directory), "connection",
                           "list", "--json"], env=environment(), cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def broker(make_broker):
    made = make_broker(*TRUSTED, "--no-default-user-only-loopback").start()
    yield made
    made.stop()


@pytest.mark.parametrize("header", [CLIENT, b"PROXY TCP4 192.0.2.7 1.1.1.1 4711 5672\r\n"])
def test_the_broker_sees_the_client_behind_the_proxy(broker, header):
    peer = peer_behind(broker.port, header).open()
    peer.declare()
    broker.wait_for_log(r"192\.0\.2\.7:4711")
    assert "192.0.2.7" in json.dumps(clients(broker))
    peer.socket.close()


def test_header_and_first_octets_may_come_in_any_pieces(broker):
    peer = Peer(broker.port)
    for octet in CLIENT + PROTOCOL_HEADER:
        peer.raw(bytes([octet]))
    assert isinstance(peer.read(), methods.ConnectionStart)
    peer.socket.close()
    peer = peer_behind(broker.port, CLIENT + PROTOCOL_HEADER)
    assert isinstance(peer.read(), methods.ConnectionStart)
    peer.socket.close()


def test_a_client_behind_a_proxy_is_not_on_this_machine(make_broker):
    """guest may come from this machine alone, and a header must not make it so, nor the proxy's own place."""
    broker = make_broker(*TRUSTED).start()
    refused = peer_behind(broker.port, CLIENT)
    refused.start()
    assert refused.start_ok().reply_code == 403
    refused.socket.close()
    peer_behind(broker.port, make(Origin("127.0.0.1", 1))).open().socket.close()
    peer_behind(broker.port, make(None)).open().socket.close()  # the proxy itself
    broker.stop()


def test_a_header_from_an_untrusted_source_is_no_amqp(make_broker):
    broker = make_broker("--proxy-protocol-from", "10.0.0.1").start()
    for header in (CLIENT, b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n"):
        peer = peer_behind(broker.port, header + PROTOCOL_HEADER)
        assert peer.receive() == PROTOCOL_HEADER
        peer.socket.close()
    assert "192.0.2.7" not in broker.log_text()
    Peer(broker.port).open().socket.close()
    broker.stop()


@pytest.mark.parametrize(
    "octets", [PROTOCOL_HEADER, b"PROXY TCP4 x\r\n", b"PROXY " + b"x" * 300, CLIENT[:13] + b"\xff" * 9]
)
def test_a_proxy_without_a_right_header_loses_its_connection(broker, octets):
    begin = len(broker.lines)
    peer = peer_behind(broker.port, octets)
    assert peer.receive() == b""
    broker.wait_for_log("PROXY", begin)
    peer.socket.close()
    peer_behind(broker.port, CLIENT).open().socket.close()


def test_a_header_that_does_not_end_is_not_waited_for_for_ever(make_broker):
    broker = make_broker(*TRUSTED, "--handshake-timeout-seconds", 1).start()
    slow, silent = peer_behind(broker.port, CLIENT[:20]), Peer(broker.port)
    assert slow.receive() == b""
    assert silent.receive() == b""
    broker.wait_for_log("no PROXY header in time")
    slow.socket.close()
    silent.socket.close()
    broker.stop()


def test_a_health_check_that_says_nothing_leaves_no_line(broker):
    begin = len(broker.lines)
    socket.create_connection(("127.0.0.1", broker.port), SECONDS).close()
    peer_behind(broker.port, CLIENT).open().socket.close()
    assert "127.0.0.1" not in "\n".join(broker.lines[begin:])


@pytest.mark.parametrize("kernel", [(), ("--no-tls-in-kernel",)])
def test_the_header_comes_before_tls(make_broker, tmp_path, kernel):
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.sign("server", "/CN=localhost")
    broker = make_broker(*TRUSTED, *kernel, "--cert", certificate, "--key", key, "--amqps-port", 0,
                         "--no-default-user-only-loopback").start()
    port = int(broker.wait_for_log(r"AMQP over TLS").partition("127.0.0.1:")[2].split()[0])
    peer = peer_behind(port, CLIENT, authority.context()).open()
    peer.declare()
    broker.wait_for_log(r"192\.0\.2\.7:4711")
    peer.socket.close()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        authority.context().wrap_socket(socket.create_connection(("127.0.0.1", port), SECONDS),
                                        server_hostname="localhost")
    broker.stop()


def test_a_network_that_is_none_ends_the_start(tmp_path):
    status, _, told = run("-D", tmp_path / "data", "-p", 0, "--proxy-protocol-from", "10.0.0.300")
    assert status == 2
    assert "proxy_protocol_from: '10.0.0.300'" in told

"""AMQP over TLS: who is let in, as whom, and what a reload changes; with pika and with bare sockets."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
from pathlib import Path

import aio_pika
import pika
import pytest
from tests.broker import SECONDS, run
from tests.conversations.peer import Peer, eventually, publish
from tests.server.certificates import Authority
from tests.server.clients import drain, made, permission, publish_confirmed, user_entry, write_json

from brokerd.config import Config
from brokerd.server.tls import login_name
from brokerd.wire import methods

SUBJECT = "/C=SE/O=Some Org, Inc/OU=a/OU=b/CN=ann"
NAMES = "DNS:ann.example,DNS:ann.two,IP:10.0.0.1,email:ann@example.org,URI:urn:x:ann"
LISTENING = r"listening on .*:(\d+) \(AMQP over TLS\)"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def server_certificate(authority):
    return authority.sign("server", "/CN=localhost")


@pytest.fixture(scope="module")
def ann(authority):
    return authority.sign("ann", SUBJECT, NAMES)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A certificate of somebody else's CA."""
    return Authority(tmp_path_factory.mktemp("tls") / "theirs").sign("ann", SUBJECT, NAMES)


# As where the kernel can encrypt, though this machine's may not.  Where it cannot, OpenSSL keeps the keys.
SOCKET_TLS = """
from brokerd.server import kernel_tls

kernel_tls.is_available = lambda: True
"""


@pytest.fixture(params=["the loop's TLS", "TLS on the socket"])
def make_tls_broker(make_broker, authority, server_certificate, request):
    """Brokers that speak TLS, with these more flags; started.  ``tls_port`` is where."""

    def make(*flags, users=()):
        cert, key = server_certificate
        broker = make_broker("--amqps-port", 0, "--cert", cert, "--key", key, *flags)
        if request.param == "TLS on the socket":
            broker.first = SOCKET_TLS
        else:
            broker.flags += ["--no-tls-in-kernel"]
        if users:
            broker.directory.mkdir()
            broker.start()
            broker.stop()
            write_json(broker.directory / "users.json", [user_entry("guest"), *users])
            write_json(broker.directory / "permissions.json",
                       [permission("guest"), *(permission(user["name"]) for user in users)])
        broker.start()
        broker.tls_port = int(re.findall(LISTENING, broker.log_text())[-1])
        return broker

    return make


def listening(broker):
    """The addresses (IPv4) at which this broker's process listens."""
    sockets = set()
    for entry in os.scandir(f"/proc/{broker.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):    # The broker may close a file meanwhile.
            sockets.add(os.readlink(entry.path))
    addresses = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == "0A" and f"socket:[{inode}]" in sockets:
            host, port = local.split(":")
            addresses.add((socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)))
    return addresses


def verifying(authority):
    return "--tls-verify-peer", "--tls-ca-cert", authority.file


def connect(broker, context, credentials=None, **more):
    parameters = pika.ConnectionParameters(
        "127.0.0.1", broker.tls_port, ssl_options=pika.SSLOptions(context, "localhost"),
        credentials=credentials or pika.PlainCredentials("guest", "guest"), **more)
    made.append(pika.BlockingConnection(parameters))
    return made[-1]


EXTERNAL = pika.credentials.ExternalCredentials


class TLSPeer(Peer):
    """A Peer behind TLS."""

    def __init__(self, broker, context):
        super().__init__(broker.tls_port)
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")

    def end_writing(self):
        with contextlib.suppress(OSError):
            self.socket = self.socket.unwrap()


# --- messages


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_messages_of_any_size_come_through_whole_and_in_order(make_tls_broker, authority, version):
    broker = make_tls_broker()
    connection = connect(broker, authority.context(version=version))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    bodies = [bytes([n]) * size for n, size in enumerate((0, 1, 16384, 131072, 3 << 20))]
    publish_confirmed(channel, "q", bodies)
    assert drain(channel, "q") == bodies
    connection.close()


def test_a_slow_reader_gets_everything_in_order(make_tls_broker, authority):
    broker = make_tls_broker()
    bodies = [b"%06d" % n + b"x" * 10000 for n in range(2000)]  # More than all buffers on the way hold.
    with TLSPeer(broker, authority.context()).open() as peer:
        name = peer.ask(methods.QueueDeclare(queue="q")).queue
        for body in bodies:
            peer.raw(publish(name, body))
        assert peer.ask(methods.QueueDeclare(queue="q", passive=True)).message_count == len(bodies)
        peer.ask(methods.BasicConsume(queue=name, consumer_tag="t", no_ack=True))
        with Peer(broker.port).open() as other:  # Who does not read stops nobody else.
            other.close()
        assert [peer.delivery()[1] for _ in bodies] == bodies
        peer.close()


def test_the_answer_to_a_close_comes_behind_all_that_waits_for_a_slow_reader(make_tls_broker, authority):
    broker = make_tls_broker()
    bodies = [b"%06d" % n + b"x" * 400_000 for n in range(20)]
    with TLSPeer(broker, authority.context()).open() as peer, Peer(broker.port).open() as other:
        peer.ask(methods.QueueDeclare(queue="q"))
        for body in bodies:
            peer.raw(publish("q", body))
        look = methods.QueueDeclare(queue="q", passive=True)
        assert peer.ask(look).message_count == len(bodies)
        peer.ask(methods.BasicConsume(queue="q", consumer_tag="t"))
        eventually(lambda: other.ask(look).message_count < len(bodies))
        peer.send((0, methods.ConnectionClose(reply_code=200, reply_text="", class_id=0, method_id=0)))
        eventually(lambda: other.ask(look).message_count == len(bodies))  # All are back: the close was heard.
        octets = b""
        while not octets.endswith(methods.ConnectionCloseOk().frame(0)):
            more = peer.socket.recv(65536)
            assert more
            octets = octets[-32:] + more
        other.close()


def test_what_came_before_a_client_ended_counts_though_it_waits_for_its_turn(make_tls_broker, authority):
    broker = make_tls_broker()
    with TLSPeer(broker, authority.context()).open() as peer, Peer(broker.port).open() as other:
        look = methods.QueueDeclare(queue="q", passive=True)
        peer.ask(methods.QueueDeclare(queue="q"))
        peer.raw(look.frame(1) * 2000 + publish("q") * 500)
        with contextlib.suppress(OSError):      # The answers come behind the end of TLS.
            peer.socket.unwrap()
        with socket.socket(fileno=os.dup(peer.socket.fileno())) as below:
            # A socket closed with octets to be read is reset, and the broker then could not read the rest.
            below.settimeout(SECONDS)
            while below.recv(1 << 16):
                pass
        peer.socket.close()
        eventually(lambda: other.ask(look).message_count == 500)


def test_aio_pika_speaks_with_the_broker_over_tls(make_tls_broker, authority):
    broker = make_tls_broker()

    async def conversation():
        connection = await aio_pika.connect(
            host="localhost", port=broker.tls_port, ssl=True, ssl_context=authority.context())
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("q", durable=True)
            await channel.default_exchange.publish(aio_pika.Message(b"m"), "q")
            message = await queue.get()
            await message.ack()
            return message.body

    assert asyncio.run(conversation()) == b"m"


def test_octets_may_come_one_by_one_through_tls(make_tls_broker, authority):
    broker = make_tls_broker()
    with TLSPeer(broker, authority.context()) as peer:
        whole, peer.raw = peer.raw, lambda octets: [whole(bytes([octet])) for octet in octets]
        peer.open().close()


def test_a_silent_client_behind_tls_is_cut_off(make_tls_broker, authority):
    broker = make_tls_broker()
    with TLSPeer(broker, authority.context()).open_at_once(heartbeat=1) as peer:
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
            while peer.receive():
                pass
            raise EOFError
        broker.wait_for_log("missed heartbeats from client")


def test_a_broker_stops_with_clients_behind_tls(make_tls_broker, authority):
    broker = make_tls_broker()
    with TLSPeer(broker, authority.context()).open() as peer:
        os.kill(broker.pid, signal.SIGTERM)
        close = peer.read()
        assert (close.reply_code, close.reply_text) == (
            320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'")
        peer.send((0, methods.ConnectionCloseOk()))
        assert broker.wait() == 0


def test_a_blocked_publisher_behind_tls_goes_on_with_all_that_waited(make_tls_broker, authority, tmp_path):
    file = tmp_path / "brokerd.toml"
    file.write_text("memory_high_watermark_octets = 1\n")
    broker = make_tls_broker("-c", file)
    broker.wait_for_log("low on memory")
    bodies = [b"%04d" % n + b"x" * 1000 for n in range(200)]
    with TLSPeer(broker, authority.context()).open() as peer:
        name = peer.ask(methods.QueueDeclare(queue="q")).queue
        for body in bodies:
            peer.raw(publish(name, body))
        assert peer.read() == methods.ConnectionBlocked(reason="low on memory")
        file.write_text("")
        os.kill(broker.pid, signal.SIGHUP)
        assert peer.read() == methods.ConnectionUnblocked()
        assert [peer.get(name)[1] for _ in bodies] == bodies
        peer.close()


def test_a_broker_stops_while_tls_is_not_agreed_on_yet(make_tls_broker):
    broker = make_tls_broker()
    with socket.create_connection(("127.0.0.1", broker.tls_port), SECONDS) as client:
        client.sendall(b"\x16\x03\x01")
        broker.stop()


def test_who_agrees_on_tls_while_the_broker_stops_is_cut_off(make_tls_broker, authority):
    broker = make_tls_broker()

    def sockets():
        return sum(name.startswith("socket:") for name in broker.open_files())

    with Peer(broker.port).open() as open_:
        before = sockets()
        late = socket.create_connection(("127.0.0.1", broker.tls_port), SECONDS)
        while sockets() == before:
            os.sched_yield()
        os.kill(broker.pid, signal.SIGTERM)
        assert open_.read().reply_code == 320
        try:
            with authority.context().wrap_socket(late, server_hostname="localhost") as client:
                client.sendall(b"AMQP\x00\x00\x09\x01")
                assert client.recv(1) == b""
        except OSError:
            pass
        open_.send((0, methods.ConnectionCloseOk()))
        assert broker.wait() == 0


# --- who is no client


def test_what_is_no_tls_is_told_in_the_log_and_harms_nobody(make_tls_broker, authority):
    broker = make_tls_broker()
    with Peer(broker.tls_port) as peer:
        peer.raw(b"AMQP\x00\x00\x09\x01")
        try:
            while peer.receive():
                pass
        except ConnectionError:
            pass
    broker.wait_for_log(r"WARNING 127\.0\.0\.1:\d+: TLS handshake failed: \w+")
    connect(broker, authority.context()).close()


def test_a_client_that_goes_before_tls_is_agreed_on_is_no_warning(make_tls_broker):
    broker = make_tls_broker()
    begin = len(broker.lines)   # The certificate, which has two days left, is worth a warning before.
    for first in (b"", b"\x16\x03\x01"):
        lines = len(broker.lines)
        with socket.create_connection(("127.0.0.1", broker.tls_port), SECONDS) as client:
            client.sendall(first)
        broker.wait_for_log(r"INFO +127\.0\.0\.1:\d+: the client closed the connection during the TLS handshake", lines)
    assert not [line for line in broker.lines[begin:] if "WARNING" in line]


def test_a_client_that_never_begins_tls_is_cut_off(make_tls_broker):
    broker = make_tls_broker("--handshake-timeout-seconds", 1)
    with socket.create_connection(("127.0.0.1", broker.tls_port), SECONDS) as client:
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            pass
    broker.wait_for_log("TLS handshake failed: SSL handshake is taking longer than 1")


def test_a_tls_client_at_the_plain_port_is_told_in_the_log(make_tls_broker, authority):
    broker = make_tls_broker()
    broker.tls_port = broker.port
    with pytest.raises(ssl.SSLError):
        TLSPeer(broker, authority.context())
    broker.wait_for_log("a TLS handshake came to the plain AMQP port")


def test_an_old_version_of_tls_is_refused(make_tls_broker, authority):
    broker = make_tls_broker("--tls-min-version", "1.3")
    with pytest.raises(ssl.SSLError):
        TLSPeer(broker, authority.context(version=ssl.TLSVersion.TLSv1_2)).open()
    broker.wait_for_log("TLS handshake failed: unsupported protocol")
    TLSPeer(broker, authority.context()).open().close()


def test_ciphers_are_those_of_the_option(make_tls_broker, authority):
    broker = make_tls_broker("--tls-ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256")
    with TLSPeer(broker, authority.context(version=ssl.TLSVersion.TLSv1_2)).open() as peer:
        assert peer.socket.cipher()[0] == "ECDHE-ECDSA-AES128-GCM-SHA256"
        peer.close()


# --- certificates of clients


def refused_by_tls(broker, context):
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):  # In TLS 1.3 it shows at the first read.
        with TLSPeer(broker, context) as peer:
            peer.open()


def test_a_certificate_of_another_authority_is_refused(make_tls_broker, authority, stranger):
    broker = make_tls_broker(*verifying(authority))
    refused_by_tls(broker, authority.context(stranger))
    broker.wait_for_log(r"TLS handshake failed: (unable to get local issuer certificate|certificate verify failed)")
    connect(broker, authority.context()).close()  # Without one a password is enough.


def test_a_client_without_a_certificate_is_refused_where_one_is_demanded(make_tls_broker, authority, ann):
    broker = make_tls_broker("--tls-fail-if-no-peer-cert", "--tls-ca-cert", authority.file)
    refused_by_tls(broker, authority.context())
    broker.wait_for_log("TLS handshake failed: peer did not return a certificate")
    connect(broker, authority.context(ann)).close()


def offered(broker, context):
    with TLSPeer(broker, context) as peer:
        return peer.start().mechanisms.decode().split()


def test_external_is_offered_to_whom_a_certificate_names_alone(make_tls_broker, authority, ann):
    broker = make_tls_broker(*verifying(authority))
    assert offered(broker, authority.context(ann)) == ["PLAIN", "AMQPLAIN", "EXTERNAL"]
    assert offered(broker, authority.context()) == ["PLAIN", "AMQPLAIN"]
    with Peer(broker.port) as peer:
        assert peer.start().mechanisms == b"PLAIN AMQPLAIN"


def test_external_without_a_certificate_is_refused_as_not_offered(make_tls_broker, authority):
    broker = make_tls_broker(*verifying(authority))
    with TLSPeer(broker, authority.context()) as peer:
        peer.start()
        close = peer.start_ok("EXTERNAL", b"")
        assert (close.reply_code, close.reply_text) == (
            503, "COMMAND_INVALID - unknown authentication mechanism 'EXTERNAL'")


DISTINGUISHED = "CN=ann,OU=b,OU=a,O=Some Org\\, Inc,C=SE"


@pytest.mark.parametrize(("flags", "name"), [
    ((), DISTINGUISHED),
    (("--tls-cert-login-from", "common_name"), "ann"),
    (("--tls-cert-login-from", "subject_alternative_name"), "ann.example"),
    (("--tls-cert-login-from", "subject_alternative_name", "--tls-cert-login-san-index", 1), "ann.two"),
    (("--tls-cert-login-from", "subject_alternative_name", "--tls-cert-login-san-type", "email"), "ann@example.org"),
    (("--tls-cert-login-from", "subject_alternative_name", "--tls-cert-login-san-type", "uri"), "urn:x:ann"),
    (("--tls-cert-login-from", "subject_alternative_name", "--tls-cert-login-san-type", "ip"), "10.0.0.1"),
])
def test_external_logs_in_the_user_whom_the_certificate_names(make_tls_broker, authority, ann, flags, name):
    passwordless = {**user_entry(name), "password_hash": ""}
    broker = make_tls_broker(*verifying(authority), *flags, users=[passwordless])
    connection = connect(broker, authority.context(ann), EXTERNAL())
    channel = connection.channel()
    channel.queue_declare("q")
    properties = pika.BasicProperties(user_id=name)
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"mine", properties)
    connection.close()
    broker.wait_for_log(re.escape(name) + " /: opened")


def test_a_certificate_that_names_no_user_does_not_log_in(make_tls_broker, authority, ann):
    broker = make_tls_broker(*verifying(authority))
    with TLSPeer(broker, authority.context(ann)) as peer:
        peer.start()
        close = peer.start_ok("EXTERNAL", b"guest")
        assert (close.reply_code, close.reply_text) == (
            403, "ACCESS_REFUSED - Login was refused using authentication mechanism EXTERNAL. "
                 "For details see the broker logfile.")
    broker.wait_for_log(f"login refused: user '{re.escape(DISTINGUISHED)}' of mechanism EXTERNAL - invalid credentials")


def test_a_certificate_without_the_wanted_name_is_not_offered_external(make_tls_broker, authority, ann):
    broker = make_tls_broker(*verifying(authority), "--tls-cert-login-from", "subject_alternative_name",
                             "--tls-cert-login-san-index", 2)
    assert "EXTERNAL" not in offered(broker, authority.context(ann))


@pytest.mark.parametrize(("subject", "name"), [
    ((), ""),
    (((("commonName", "a"),), (("commonName", "b"),)), "a,b"),
])
def test_common_names_are_joined(subject, name):
    assert login_name({"subject": subject}, Config(tls_cert_login_from="common_name")) == name


@pytest.mark.parametrize(("subject", "name"), [
    (((("commonName", "x"), ("userId", "u")),), "CN=x+UID=u"),
    (((("commonName", "#x"),),), "CN=\\#x"),
    (((("commonName", " x "),),), "CN=\\ x\\ "),
    (((("commonName", 'a+b"c\\d<e>f;g'),),), 'CN=a\\+b\\"c\\\\d\\<e\\>f\\;g'),
    (((("1.2.3", "x"),),), "1.2.3=x"),
    (((("commonName", "two\nlines"),),), ""),
    (((("commonName", ""),),), "CN="),
])
def test_a_distinguished_name_is_written_as_rfc_4514_has_it(subject, name):
    assert login_name({"subject": subject}, Config()) == name


# --- reload


def serial_number(broker, authority):
    with TLSPeer(broker, authority.context()) as peer:
        return peer.socket.getpeercert()["serialNumber"]


def test_a_reload_takes_new_certificates_for_clients_to_come_alone(make_broker, authority, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(name):
        for source, target in zip(authority.sign(name, "/CN=localhost"), (cert, key), strict=True):
            shutil.copy(source, target)

    put("old")
    broker = make_broker("--amqps-port", 0, "--cert", cert, "--key", key).start()
    broker.tls_port = int(re.search(LISTENING, broker.log_text()).group(1))
    before = serial_number(broker, authority)
    with TLSPeer(broker, authority.context()).open() as early:
        put("new")
        assert serial_number(broker, authority) == before
        os.kill(broker.pid, signal.SIGHUP)
        broker.wait_for_log("reloaded")
        assert serial_number(broker, authority) != before
        assert early.ask(methods.QueueDeclare(exclusive=True)).message_count == 0
        early.close()
    cert.write_text("nothing")
    lines = len(broker.lines)
    os.kill(broker.pid, signal.SIGHUP)
    assert broker.wait_for_log("ERROR .*not reloaded, nothing changed: .*cert.pem and .*key.pem: ", lines)
    serial_number(broker, authority)


def server_names(broker, authority, name):
    """The names in the certificate that a client is shown who asks for this name."""
    context = authority.context()
    context.check_hostname = False
    with socket.create_connection(("127.0.0.1", broker.tls_port), SECONDS) as sock:
        with context.wrap_socket(sock, server_hostname=name) as secured:
            return [value for _, value in secured.getpeercert()["subjectAltName"]]


def test_a_client_is_shown_the_certificate_of_the_name_that_it_asks_for(make_tls_broker, authority, tmp_path):
    def bundle(file, *names):
        parts = authority.sign(file, f"/CN={file}", ",".join(f"DNS:{name}" for name in names))
        (tmp_path / f"{file}.pem").write_text("".join(part.read_text() for part in parts))
        return str(tmp_path / f"{file}.pem")

    first, wild = bundle("first", "one.example", "two.example"), bundle("wild", "*.three.example")
    broker = make_tls_broker("--tls-sni-certs", f"{first}, {wild}")
    assert server_names(broker, authority, "two.example") == ["one.example", "two.example"]
    assert server_names(broker, authority, "a.three.example") == ["*.three.example"]
    assert "localhost" in server_names(broker, authority, "four.example")
    assert "localhost" in server_names(broker, authority, None)
    context = authority.context()
    parameters = pika.ConnectionParameters(
        "127.0.0.1", broker.tls_port, ssl_options=pika.SSLOptions(context, "one.example"))
    made.append(pika.BlockingConnection(parameters))
    assert made[-1].channel().queue_declare("", exclusive=True).method.message_count == 0
    bundle("first", "four.example")
    begin = len(broker.lines)
    os.kill(broker.pid, signal.SIGHUP)
    broker.wait_for_log("reloaded", begin)
    assert server_names(broker, authority, "four.example") == ["four.example"]
    assert "localhost" in server_names(broker, authority, "one.example")
    assert any("the certificate of" in line and "expires: " in line for line in broker.lines[begin:])


def test_a_reload_changes_the_options_of_tls_but_does_not_switch_it_on(make_broker, authority, server_certificate,
                                                                         ann, tmp_path):
    file = tmp_path / "brokerd.toml"
    file.write_text(f"[tls]\ntls_cert = '{server_certificate[0]}'\ntls_key = '{server_certificate[1]}'\n")
    broker = make_broker("--amqps-port", 0, "-c", file).start()
    broker.tls_port = int(re.search(LISTENING, broker.log_text()).group(1))
    assert "EXTERNAL" not in offered(broker, authority.context(ann))
    with file.open("a") as text:
        text.write(f"tls_verify_peer = true\ntls_ca_cert = '{authority.file}'\n")
    os.kill(broker.pid, signal.SIGHUP)
    broker.wait_for_log("reloaded")
    assert "EXTERNAL" in offered(broker, authority.context(ann))
    file.write_text("")
    os.kill(broker.pid, signal.SIGHUP)
    broker.wait_for_log("tls_cert takes effect at the next start: TLS is not switched on or off before")
    assert "EXTERNAL" in offered(broker, authority.context(ann))


# --- what cannot be used


def test_what_cannot_be_used_stops_the_start_with_one_line(tmp_path, authority, server_certificate, ann):
    cert, key = server_certificate
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    for flags, told in (
        (("--cert", tmp_path / "none.pem"), f"tls_cert {tmp_path}/none.pem: No such file or directory"),
        (("--cert", nothing), "nothing.pem: "),
        (("--cert", cert), "server.pem: "),  # No key in it.
        (("--cert", cert, "--key", ann[1]), "key values mismatch"),
        (("--cert", cert, "--key", key, "--tls-verify-peer"), "tls_verify_peer needs tls_ca_cert"),
        (("--cert", cert, "--key", key, "--tls-ca-cert", nothing), "nothing.pem: "),
        (("--cert", cert, "--key", key, "--tls-ciphers", "NONE"), "tls_ciphers: No cipher"),
    ):
        status, _, text = run("-D", tmp_path / "data", "-p", 0, "--amqps-port", 0, *flags)
        assert status == 2
        (line,) = text.splitlines()
        assert line.startswith("brokerd: ")
        assert told in line
        assert not (tmp_path / "data").exists()


def test_a_taken_port_for_tls_stops_the_start(make_tls_broker, server_certificate, tmp_path):
    broker = make_tls_broker()
    cert, key = server_certificate
    status, _, text = run("-D", tmp_path / "other", "-p", 0, "--cert", cert, "--key", key,
                          "--amqps-port", broker.tls_port)
    assert status == 1
    assert f"cannot listen on 127.0.0.1:{broker.tls_port}: the port is in use by another process" in text


def test_tls_may_listen_on_another_address_than_plain(make_tls_broker, authority):
    broker = make_tls_broker("--amqps-bind", "127.0.0.2")
    # Another process may have this port at 127.0.0.1: so the broker's own sockets are looked at.
    assert ("127.0.0.2", broker.tls_port) in listening(broker)
    assert ("127.0.0.1", broker.tls_port) not in listening(broker)
    socket.create_connection(("127.0.0.2", broker.tls_port)).close()

"""The transport over a socket with TLS: on socket pairs, and, where this machine's kernel has kTLS, in a broker."""

import asyncio
import contextlib
import fcntl
import os
import re
import socket
import ssl
import subprocess
import sys
import termios
import threading

import pytest
from tests.broker import SECONDS
from tests.server.certificates import Authority
from tests.server.test_tls import LISTENING, TLSPeer, connect

from brokerd.server import kernel_tls
from brokerd.wire import methods

HAS_KERNEL = kernel_tls.is_available()
needs_kernel = pytest.mark.skipif(not HAS_KERNEL, reason="this kernel has no TLS (modprobe tls)")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def server_context(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("server", "/CN=localhost"))
    context.options |= kernel_tls.OP_ENABLE_KTLS
    return context


class Recorder:
    """A protocol that writes down what its transport tells it."""

    def __init__(self, loop):
        self.loop = loop
        self.transport = None
        self.buffer = bytearray(1000)
        self.received = bytearray()
        self.pauses = []
        self.lost = loop.create_future()
        self.changed = asyncio.Event()
        self.fault = None

    def connection_made(self, transport):
        self.transport = transport
        self.version = transport.get_extra_info("ssl_object").version()

    def get_buffer(self, _):
        return memoryview(self.buffer)

    def buffer_updated(self, n):
        if self.fault is not None:
            raise self.fault
        self.received += self.buffer[:n]
        self.changed.set()

    def eof_received(self):
        return False

    def pause_writing(self):
        self.pauses.append("pause")

    def resume_writing(self):
        self.pauses.append("resume")
        self.changed.set()

    def connection_lost(self, error):
        self.descriptor_at_end = self.transport.fileno()
        self.lost.set_result(error)

    async def until(self, condition):
        while not condition():
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), SECONDS)


class Pair:
    """A SocketTransport with a Recorder, and a blocking SSLSocket of a client, over TCP."""

    def __init__(self, loop, authority, server_context, version):
        self.loop = loop
        self.recorder = Recorder(loop)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname(), SECONDS)
            accepted, _ = listener.accept()
        agreed = []
        thread = threading.Thread(target=lambda: agreed.append(
            authority.context(version=version).wrap_socket(client, server_hostname="localhost")))
        thread.start()
        sock = server_context.wrap_socket(accepted, server_side=True)
        thread.join()
        sock.setblocking(False)
        self.client = agreed[0]
        self.transport = kernel_tls.SocketTransport(loop, sock, self.recorder)
        self.transport.begin()

    async def read(self, n):
        """Read n octets at the client."""
        return await asyncio.wait_for(self.loop.run_in_executor(None, self._read, n), SECONDS)

    def _read(self, n):
        octets = bytearray()
        while len(octets) < n:
            part = self.client.recv(n - len(octets))
            if not part:
                break
            octets += part
        return bytes(octets)


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(params=VERSIONS, ids=["1.2", "1.3"])
def run_pair(authority, server_context, request):
    """Run an async function with a Pair."""

    def run(body):
        async def with_pair():
            pair = Pair(asyncio.get_running_loop(), authority, server_context, request.param)
            try:
                await body(pair)
            finally:
                pair.transport.abort()
                pair.client.close()
                await asyncio.sleep(0)

        asyncio.run(with_pair())

    return run


def test_octets_come_through_in_both_directions(run_pair):
    async def body(pair):
        sent = os.urandom(300_000)  # more than the socket takes at once, and than one record holds
        sender = pair.loop.run_in_executor(None, pair.client.sendall, sent)
        await pair.recorder.until(lambda: len(pair.recorder.received) == len(sent))
        await sender
        assert bytes(pair.recorder.received) == sent
        pair.transport.write(sent[:10])
        pair.transport.write(memoryview(sent)[10:])
        assert await pair.read(len(sent)) == sent

    run_pair(body)


def test_a_client_that_does_not_read_pauses_the_protocol_until_it_reads(run_pair):
    async def body(pair):
        pair.transport.set_write_buffer_limits(high=1)
        sent = 0
        while not pair.recorder.pauses:
            pair.transport.write(b"x" * 100_000)
            sent += 100_000
        pair.transport.write(b"y" * 100_000)
        assert pair.recorder.pauses == ["pause"]
        assert await pair.read(sent + 100_000) == b"x" * sent + b"y" * 100_000
        await pair.recorder.until(lambda: pair.recorder.pauses == ["pause", "resume"])

    run_pair(body)


def test_a_paused_transport_reads_nothing_until_it_is_resumed(run_pair):
    async def body(pair):
        pair.transport.pause_reading()
        await pair.loop.run_in_executor(None, pair.client.sendall, b"x" * 40_000)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not pair.recorder.received
        pair.transport.resume_reading()
        await pair.recorder.until(lambda: len(pair.recorder.received) == 40_000)

    run_pair(body)


def test_a_transport_that_is_paused_amid_a_record_reads_the_rest_when_it_is_resumed(run_pair):
    async def body(pair):
        taken = pair.recorder.buffer_updated

        def pause(n):
            taken(n)
            pair.transport.pause_reading()

        pair.recorder.buffer_updated = pause
        await pair.loop.run_in_executor(None, pair.client.sendall, b"x" * 3500)
        for n in (1000, 2000, 3000, 3500):
            await pair.recorder.until(lambda n=n: len(pair.recorder.received) == n)
            pair.transport.resume_reading()

    run_pair(body)


def test_a_client_that_ends_tls_ends_the_transport(run_pair):
    async def body(pair):
        with contextlib.suppress(OSError):
            await pair.loop.run_in_executor(None, pair.client.unwrap)
        assert await asyncio.wait_for(pair.recorder.lost, SECONDS) is None
        assert pair.transport.is_closing()

    run_pair(body)


def test_a_client_that_vanishes_ends_the_transport(run_pair):
    async def body(pair):
        pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        pair.client.close()
        assert isinstance(await asyncio.wait_for(pair.recorder.lost, SECONDS), (ConnectionResetError, type(None)))

    run_pair(body)


def test_octets_that_are_no_tls_end_the_transport(run_pair):
    async def body(pair):
        socket.socket.send(pair.client, b"AMQP\0\0\x09\x01" * 10)
        assert isinstance(await asyncio.wait_for(pair.recorder.lost, SECONDS), OSError)

    run_pair(body)


@pytest.mark.parametrize("end", ["close", "write_eof"])
def test_what_was_written_comes_before_the_end_and_the_client_sees_that_it_is_the_end(run_pair, end):
    async def body(pair):
        sent = b"x" * 5_000_000
        pair.client.suppress_ragged_eofs = False  # An end without TLS's own would raise SSLEOFError.
        pair.transport.write(sent)
        getattr(pair.transport, end)()
        pair.transport.write(b"too late")
        assert await pair.read(len(sent) + 1) == sent
        if end == "close":
            assert await asyncio.wait_for(pair.recorder.lost, SECONDS) is None

    run_pair(body)


def test_what_comes_behind_our_end_is_thrown_away_until_the_client_ends(run_pair):
    async def body(pair):
        pair.transport.write_eof()
        await pair.loop.run_in_executor(None, pair.client.sendall, b"x" * 1_000_000)
        assert not pair.recorder.lost.done()
        pair.client.close()
        await asyncio.wait_for(pair.recorder.lost, SECONDS)
        assert not pair.recorder.received

    run_pair(body)


def test_a_protocol_that_raises_loses_its_transport_and_the_loop_hears_of_it(run_pair):
    async def body(pair):
        heard = []
        pair.loop.set_exception_handler(lambda _, context: heard.append(context["exception"]))
        pair.recorder.fault = ZeroDivisionError()
        await pair.loop.run_in_executor(None, pair.client.sendall, b"x")
        await asyncio.wait_for(pair.recorder.lost, SECONDS)
        assert heard == [pair.recorder.fault]

    run_pair(body)


@pytest.mark.parametrize("end", ["close", "abort", "client"])
def test_the_descriptor_is_not_given_back_before_the_protocol_knows_of_the_end(run_pair, end):
    # The plane writes to the descriptor until it knows.  Else the next client might get its number, and the messages.
    async def body(pair):
        descriptor = pair.transport.fileno()
        if end == "client":
            pair.client.close()
        else:
            getattr(pair.transport, end)()
            assert pair.transport.fileno() == descriptor
        await asyncio.wait_for(pair.recorder.lost, SECONDS)
        assert pair.recorder.descriptor_at_end == descriptor
        await asyncio.sleep(0)
        assert pair.transport.fileno() == -1

    run_pair(body)


def test_a_client_that_went_before_its_handshake_began_is_a_departure(server_context):
    async def body():
        loop = asyncio.get_running_loop()
        failed = loop.create_future()

        class Door(asyncio.Protocol):
            def connection_made(self, transport):
                kernel_tls.Handshake(loop, None, failed.set_result).begin(transport, server_context, SECONDS)

        server = await loop.create_server(Door, "127.0.0.1", 0)
        async with server:
            with socket.create_connection(server.sockets[0].getsockname(), SECONDS) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            assert isinstance(await asyncio.wait_for(failed, SECONDS), ConnectionResetError)

    asyncio.run(body())


def test_an_aborted_transport_is_lost_once(run_pair):
    async def body(pair):
        pair.transport.abort()
        pair.transport.abort()
        pair.transport.close()
        pair.transport.write(b"x")
        pair.transport.resume_reading()
        await asyncio.wait_for(pair.recorder.lost, SECONDS)  # A second call would raise InvalidStateError.
        await asyncio.sleep(0)

    run_pair(body)


# --- by the kernel


def does(broker):
    return re.findall(r"DEBUG .*: the kernel (.*)", broker.log_text())


@pytest.fixture
def make_tls_broker(make_broker, authority):
    def make(*flags):
        cert, key = authority.sign("server", "/CN=localhost")
        broker = make_broker("--amqps-port", 0, "--cert", cert, "--key", key, "--log-level", "debug", *flags)
        broker.start()
        broker.tls_port = int(re.findall(LISTENING, broker.log_text())[-1])
        return broker

    return make


@needs_kernel
@pytest.mark.parametrize("version", VERSIONS, ids=["1.2", "1.3"])
@pytest.mark.parametrize("cipher", ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"])
def test_the_kernel_encrypts_and_the_client_notices_nothing(make_tls_broker, authority, version, cipher):
    broker = make_tls_broker("--tls-ciphers", cipher)
    connection = connect(broker, authority.context(version=version))
    channel = connection.channel()
    channel.queue_declare("q")
    for size in (0, 1, 16384, 131072, 3 << 20):
        channel.basic_publish("", "q", b"b" * size)
        assert channel.basic_get("q", auto_ack=True)[2] == b"b" * size
    connection.close()
    reads = version == ssl.TLSVersion.TLSv1_2 or ssl.OPENSSL_VERSION_INFO >= (3, 2)
    assert does(broker) == ["encrypts and decrypts" if reads else "encrypts"]


@needs_kernel
def test_a_cipher_that_the_kernel_does_not_know_stays_with_openssl(make_tls_broker, authority):
    broker = make_tls_broker("--tls-ciphers", "ECDHE-ECDSA-AES128-SHA256")
    connect(broker, authority.context(version=ssl.TLSVersion.TLSv1_2)).close()
    assert does(broker) == ["does nothing"]


@needs_kernel
def test_the_operator_may_keep_the_kernel_out(make_tls_broker, authority):
    broker = make_tls_broker("--no-tls-in-kernel")
    connect(broker, authority.context()).close()
    assert does(broker) == []


def unread(pipe):
    """How many octets of the pipe its reader has not taken yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@needs_kernel
def test_a_client_that_changes_its_keys_loses_its_connection_with_a_line_in_the_log(make_tls_broker, authority):
    broker = make_tls_broker()
    with subprocess.Popen(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{broker.tls_port}", "-tls1_3"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
    ) as client:
        # KeyUpdate, and one of ours is wanted.  It is a command only if it is all that openssl reads at once, and the
        # update goes with the next octets.
        for octets in (b"K\n", b"AMQP\n"):
            client.stdin.write(octets)
            client.stdin.flush()
            while unread(client.stdin):
                os.sched_yield()
        broker.wait_for_log("the client changed its keys")
        client.stdin.close()
    with TLSPeer(broker, authority.context()).open() as peer:
        assert peer.ask(methods.QueueDeclare(queue="q")).queue == "q"
        peer.close()


def test_a_kernel_without_tls_is_seen(monkeypatch):
    class Refuses(socket.socket):
        def setsockopt(self, *_):
            raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(kernel_tls.socket, "socket", Refuses)
    assert not kernel_tls.is_available()

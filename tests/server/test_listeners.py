"""Where the broker listens: the unix socket for AMQP; and who a client is that has no address."""

import os
import re
import signal
import socket
import stat
import struct
import tempfile
from pathlib import Path

import pytest
from tests.broker import run
from tests.conversations.peer import Peer, publish

from brokerd.wire import methods
from brokerd.wire.frames import PROTOCOL_HEADER


@pytest.fixture
def path():
    """Short enough for a socket's address, which a test's own directory may not be."""
    with tempfile.TemporaryDirectory(prefix="brokerd") as directory:
        yield Path(directory) / "amqp.sock"


@pytest.fixture
def broker(make_broker, path):
    return make_broker("--unix-path", path).start()


def test_clients_of_the_unix_socket_and_of_the_port_share_queues(broker, path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    assert re.search(rf"listening on {re.escape(str(path))} \(AMQP on a unix socket\)", broker.log_text())
    body = bytes(300_000)
    with Peer(path=path).open() as local, Peer(broker.port).open() as remote:   # guest: from this machine only
        local.declare(queue="q", exclusive=False)
        local.confirming()
        assert local.put("q", body)
        assert remote.get("q") == (False, body)


def test_the_socket_is_gone_after_a_stop_and_replaced_after_a_kill(broker, path):
    broker.restart(kill=True)
    Peer(path=path).open().close()
    broker.stop()
    assert not path.exists()


def test_a_path_that_cannot_be_had_stops_the_start_with_one_line(broker, path, tmp_path):
    (tmp_path / "file").write_text("mine")
    (path.parent / "file").symlink_to(tmp_path / "file")
    for taken, reason in ((path, "another process listens there"),
                          (path.parent / "file", "a file that is no socket is there"),
                          (path.parent / ("x" * 120), "a unix socket's path has at most 107 octets"),
                          (path.parent / "none" / "amqp.sock", "No such file or directory")):
        status, out, told = run("-D", tmp_path / "other", "-p", 0, "--unix-path", taken)
        assert (status, out, told) == (1, "", f"brokerd: cannot listen on {taken}: {reason}\n")
    assert (tmp_path / "file").read_text() == "mine"
    Peer(path=path).open().close()


def test_a_client_that_has_gone_before_it_was_accepted_is_not_taken_for_one_of_this_machine(broker):
    queue = Peer(broker.port).open()
    queue.declare(queue="q", exclusive=False)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        for _ in range(20):
            gone = Peer(broker.port)
            gone.send(
                PROTOCOL_HEADER,
                (0, methods.ConnectionStartOk(mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US")),
                (0, methods.ConnectionTuneOk(channel_max=2047, frame_max=131072, heartbeat=0)),
                (0, methods.ConnectionOpen(virtual_host="/")), methods.ChannelOpen(), publish("q"))
            gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.socket.close()                 # A reset: the system has forgotten its address.
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert queue.ask(methods.QueueDeclare(queue="q", passive=True)).message_count == 0
    queue.close()

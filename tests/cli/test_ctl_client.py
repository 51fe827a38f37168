"""The client of the control socket, on a broker that says what it is told to."""

import json
import os
import threading

import pytest
from tests.broker import SECONDS

from brokerd import local_socket
from brokerd.cli import ctl_client
from brokerd.cli.ctl_client import Client, NotRunning, Refused
from brokerd.errors import BrokerError


@pytest.fixture
def answer(tmp_path):
    """Make a broker that answers the next connection with ``octets`` and closes it; what it was asked, in a list."""
    asked, threads = [], []

    def make(octets, *, wait=None):
        server = local_socket.bind(str(tmp_path))
        server.listen()

        def serve():
            with server, server.accept()[0] as client:
                asked.append(json.loads(client.makefile("rb").readline()))
                client.sendall(octets)
                if wait is not None:
                    wait.wait(SECONDS)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return asked

    yield make
    for thread in threads:
        thread.join(SECONDS)


def ask(tmp_path, verb="ordering", progress=None, seconds=SECONDS, **fields):
    with Client(str(tmp_path)) as client:
        return client.ask(verb, fields, progress, seconds=seconds)


def test_a_result_is_returned_and_progress_is_heard(answer, tmp_path):
    asked = answer(b'{"progress": {"at": 1}}\n{"progress": {"at": 2}}\n{"result": {"done": true}}\n')
    heard = []
    assert ask(tmp_path, "dump", progress=heard.append, out="/out") == {"done": True}
    assert (heard, asked) == ([{"at": 1}, {"at": 2}], [{"verb": "dump", "out": "/out"}])


def test_a_refusal_keeps_its_text_and_code(answer, tmp_path):
    answer(b'{"error": "no queue", "code": 404}\n')
    with pytest.raises(Refused, match="^no queue$") as no:
        ask(tmp_path)
    assert no.value.code == 404


@pytest.mark.parametrize("octets", [b"", b'{"progress": {}}\n', b'{"result": {', b"[]\n", b"\xff\n", b"hello\n"])
def test_a_broker_that_goes_away_or_speaks_nonsense_is_told_in_a_line(answer, tmp_path, octets):
    answer(octets)
    with pytest.raises(BrokerError, match="control.sock: the broker went away") as no:
        ask(tmp_path)
    assert "\n" not in str(no.value)


def test_a_broker_that_says_nothing_is_not_waited_for(answer, tmp_path):
    over = threading.Event()
    answer(b"", wait=over)
    with pytest.raises(BrokerError, match=r"control.sock: no answer in 0.05 s$"):
        ask(tmp_path, seconds=0.05)
    over.set()


def test_no_broker_is_told_apart_from_one_that_cannot_be_reached(tmp_path, monkeypatch):
    with pytest.raises(NotRunning, match="control.sock: No such file or directory$"):
        Client(str(tmp_path))
    local_socket.bind(str(tmp_path)).close()
    with pytest.raises(NotRunning, match="control.sock: Connection refused$"):
        Client(str(tmp_path))
    with pytest.raises(NotRunning):
        Client(os.path.join(tmp_path, "control.sock"))

    def forbidden(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ctl_client.local_socket, "connect", forbidden)
    with pytest.raises(BrokerError, match="Permission denied; brokerctl must run as the broker's user$") as no:
        Client(str(tmp_path))
    assert not isinstance(no.value, NotRunning)

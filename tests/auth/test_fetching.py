"""One request over HTTP."""

import contextlib
import socket
import threading

import pytest
from tests.auth.web_server import WebServer

from brokerd.auth.fetching import fetch


@pytest.fixture
def server():
    made = WebServer(lambda name, fields: fields.get("say", name))
    yield made
    made.close()


def ask(address, **more):
    return fetch(address, **{"seconds": 30, "octets_most": 100, **more})


def test_a_form_is_posted_and_without_one_the_address_is_got(server):
    assert ask(server.address + "/a/there") == (200, b"there")
    assert ask(server.address + "/a/there", form=b"say=yes+%2F") == (200, b"yes /")
    assert server.methods == {"GET", "POST"}


def test_a_long_answer_is_refused_and_no_more_of_it_read(server):
    assert ask(server.address, form=b"say=" + b"x" * 100) == (200, b"x" * 100)
    with pytest.raises(ValueError, match="more than 100 octets"):
        ask(server.address, form=b"say=" + b"x" * 101)


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_status_that_is_no_success_is_an_error(server, status):
    server.decide = lambda name, fields: (status, "allow")
    with pytest.raises(OSError):
        ask(server.address)


@pytest.mark.parametrize("address", ["", "file:///etc/passwd", "ftp://127.0.0.1/x", "127.0.0.1:80/x"])
def test_only_http_is_spoken(address):
    with pytest.raises(ValueError, match="no URL of http"):
        ask(address)


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"])
def test_an_answer_that_comes_an_octet_at_a_time_is_not_waited_for_beyond_its_time(begin):
    gone, octets = threading.Event(), []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        def talk():
            with listening.accept()[0] as client, contextlib.suppress(OSError):
                client.recv(65536)
                client.sendall(begin)
                while not gone.wait(0.05) and len(octets) < 2000:    # Each one comes well within the time of all.
                    client.sendall(b"a")
                    octets.append(b"a")

        thread = threading.Thread(target=talk)
        thread.start()
        with pytest.raises(TimeoutError):
            ask(f"http://127.0.0.1:{listening.getsockname()[1]}/", seconds=1, octets_most=9999)
        gone.set()
        thread.join()
    assert len(octets) < 2000


@pytest.mark.parametrize("said", [b"", b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\n"])
def test_what_is_no_answer_is_an_error(said):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        def talk():
            with listening.accept()[0] as client:
                client.recv(65536)
                client.sendall(said)

        thread = threading.Thread(target=talk)
        thread.start()
        try:
            if said.startswith(b"HTTP"):
                assert ask(f"http://127.0.0.1:{listening.getsockname()[1]}/")[1] == b""
            else:
                with pytest.raises((OSError, ValueError)):
                    ask(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        finally:
            thread.join()

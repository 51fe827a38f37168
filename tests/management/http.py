"""A client of the HTTP API for tests."""

import http.client
import json
import socket
from base64 import b64encode
from typing import Any, NamedTuple

from tests.broker import SECONDS

_held: list[socket.socket] = []


def reserve_http():
    """A free port that no other process gets while the tests run."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    return held.getsockname()[1]


class Answer(NamedTuple):
    """An answer."""

    status: int
    body: Any  # what its JSON says; octets where it is no JSON
    headers: dict[str, str]


class Http:
    """Asks one broker in the name of a user, one connection for each request."""

    def __init__(self, port, user="guest", password="guest"):
        self.port = port
        self.user, self.password = user, password

    def as_user(self, user, password):
        """The same broker, asked by another user."""
        return Http(self.port, user, password)

    def ask(self, method, path, body=None, **headers):
        """Send a request.  ``body``: octets, or something for JSON.  In names of headers _ stands for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.user is not None and "authorization" not in sent and "cookie" not in sent:
            sent["authorization"] = basic(self.user, self.password)
        octets = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, octets, sent)
            got = connection.getresponse()
            content = got.read()
        finally:
            connection.close()
        found = {}
        for name, value in got.getheaders():  # Several of one name are one, as RFC 9110 has it.
            found[name.lower()] = f"{found[name.lower()]}, {value}" if name.lower() in found else value
        is_json = "json" in found.get("content-type", "")
        return Answer(got.status, json.loads(content) if is_json and content else content, found)

    def get(self, path, **headers):
        """The body of an answer that must be 200."""
        answer = self.ask("GET", path, **headers)
        assert answer.status == 200, answer
        return answer.body

    def do(self, noun, verb, **fields):
        """The result of an operation of /api/v2, which must succeed."""
        answer = self.ask("POST", f"/api/v2/{noun}/{verb}", fields)
        assert answer.status == 200, answer
        return answer.body


def basic(user, password):
    """The header for Basic."""
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def raw(port, octets, *, shut=False):
    """All that the process answers to these octets until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as sock:
        sock.settimeout(SECONDS)
        sock.sendall(octets)
        if shut:
            sock.shutdown(socket.SHUT_WR)
        found = b""
        while True:
            try:
                more = sock.recv(65536)
            except ConnectionResetError:
                return found
            if not more:
                return found
            found += more

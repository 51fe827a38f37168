"""Clients that do not speak HTTP, or do not let go: each gets a 4xx or loses its connection."""

import json
import re
import socket
import threading

import pytest
from tests.broker import SECONDS
from tests.management.http import raw

from brokerd.management import protocol


def status_of(octets):
    found = re.match(rb"HTTP/1\.1 (\d+) ", octets)
    return int(found.group(1)) if found else None


@pytest.mark.parametrize(("octets", "status"), [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    (b"AMQP\x00\x00\x09\x01", 400),
    (b"GET\r\n\r\n", 400),
    (b"GET / HTTP/9.9\r\n\r\n", 400),
    (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400),
    (b"POST /api/v2/queue/list HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", 400),
    (b"CONNECT example.org:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 300 + b"\r\n", 431),
    (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
])
def test_what_is_no_request_is_answered_by_a_4xx(shared, octets, status):
    answer = raw(shared.http.port, octets, shut=True)
    assert status_of(answer) == status, answer[:200]
    head, _, body = answer.partition(b"\r\n\r\n")
    assert json.loads(body)["error"] == "bad_request"
    assert b"content-security-policy" in head


def test_bad_requests_leave_at_most_a_line_a_second(shared):
    begin = len(shared.lines)
    for _ in range(50):
        raw(shared.http.port, b"\x00\r\n\r\n")
    shared.http.ask("GET", "/")
    assert len([line for line in shared.lines[begin:] if "is no request" in line]) < 25
    assert not [line for line in shared.lines[begin:] if "Traceback" in line]


def test_pipelined_requests_are_answered_in_order(shared):
    octets = b"GET /api/a HTTP/1.1\r\nHost: x\r\n\r\n" * 20 + b"GET /api/a HTTP/1.1\r\nConnection: close\r\n\r\n"
    assert raw(shared.http.port, octets).count(b"HTTP/1.1 404") == 21


def test_rubbish_behind_a_request_does_not_stand_within_its_answer(shared):
    answer = raw(shared.http.port, b"GET /api/a HTTP/1.1\r\nHost: x\r\n\r\n\x00\x01\x02\r\n\r\n")
    assert status_of(answer) in (400, 404)
    shared.http.ask("GET", "/")


def test_clients_that_close_while_answers_are_under_way_leave_no_trace(shared):
    begin = len(shared.lines)
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", shared.http.port), SECONDS) as sock:
            sock.sendall(b"GET /api/v2/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 10)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    assert shared.http.ask("GET", "/api/none").status == 404
    assert not [line for line in shared.lines[begin:] if "ERROR" in line or "Traceback" in line]


def test_idle_clients_make_room_for_new_ones(shared):
    idle = []
    try:
        idle += [socket.create_connection(("127.0.0.1", shared.http.port), SECONDS)
                 for _ in range(protocol.CLIENTS_MAX + 20)]
        assert shared.http.ask("GET", "/api/none").status == 404
    finally:
        for sock in idle:
            sock.close()


class Transport:
    """What a connection writes, and whether it has closed."""

    def __init__(self):
        self.octets, self.closed = b"", False

    def get_extra_info(self, name):
        return None

    def write(self, octets):
        self.octets += octets

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    abort = close


class Loop:
    """Timers that fire when they are told to."""

    def __init__(self):
        self.timers, self.now = [], 0.0

    def time(self):
        return self.now

    def call_later(self, seconds, callback, *args):
        timer = threading.Timer(seconds, callback, args)
        self.timers.append((seconds, callback))
        return timer


def connected(most=10):
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    async def app(scope, receive, send):
        raise AssertionError("no request is whole")

    loop = Loop()
    config = Config(app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    room = protocol.Room(loop, most)
    connection = protocol.Connection(config, ServerState(), room)
    transport = Transport()
    connection.connection_made(transport)
    return connection, transport, loop


def test_a_head_that_does_not_arrive_in_time_is_refused():
    connection, transport, loop = connected()
    connection.data_received(b"GET / HTTP/1.1\r\nHost: ")
    seconds, late = loop.timers[0]
    assert seconds == protocol.HEAD_SECONDS
    late()
    assert status_of(transport.octets) == 408
    assert transport.closed


def test_a_client_that_says_nothing_is_closed_without_a_word():
    _, transport, loop = connected()
    loop.timers[0][1]()
    assert (transport.octets, transport.closed) == (b"", True)


def test_a_client_that_does_not_read_is_cut_off():
    connection, transport, loop = connected()
    connection.pause_writing()
    seconds, stalled = loop.timers[-1]
    assert seconds == protocol.STALL_SECONDS
    stalled()
    assert transport.closed


def test_where_no_client_is_idle_a_new_one_is_refused():
    connection, _, _ = connected(most=1)
    room = connection._room
    room.idle.clear()
    late = protocol.Connection(connection.config, connection.server_state, room)
    transport = Transport()
    late.connection_made(transport)
    assert status_of(transport.octets) == 503


def test_faults_of_clients_are_logged_once_a_second(caplog):
    caplog.set_level("WARNING", "brokerd.management")
    loop = Loop()
    room = protocol.Room(loop, 1)
    for _ in range(5):
        room.complain("bad")
    loop.now = 1.5
    room.complain("bad")
    assert [each.getMessage() for each in caplog.records] == ["bad", "bad (4 such faults more since the last line)"]

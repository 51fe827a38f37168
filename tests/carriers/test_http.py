"""Shovels to a web server."""

import contextlib
import http.client
import http.server
import socket
import threading

import pika
import pytest
from tests.broker import reserved_port
from tests.carriers.ends import ask, await_true, bodies, fill, numbered, shovel, take
from tests.server import clients

from brokerd.carriers import http as shovel_http


class Web:
    """A web server that answers with the codes of ``answers``, then with 204; knows what was posted."""

    def __init__(self):
        self.answers, self.posted = [], []
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                code = web.answers.pop(0) if web.answers else 204
                web.posted.append((code, self.path, dict(self.headers), body))
                self.send_response(code)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.uri = f"http://me:secret@127.0.0.1:{self.server.server_port}/take?all=1"


@pytest.fixture
def web():
    made = Web()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def here(broker):
    yield broker
    clients.close_all()


def test_each_message_is_a_post_with_its_properties(here, web):
    fill(here, "from", numbered(3), properties=pika.BasicProperties(
        delivery_mode=2, message_id="id", content_type="a/b", correlation_id="c", priority=3, timestamp=5, app_id="app",
        content_encoding="gzip", expiration="60000", type="t", headers={
            "x": 1, "yes": True, "table": {"a": [1, None]}, "Message-Id": "false", "bad": "a\r\nb", "é": "1",
            "of many words": "1", "a:b": "1", "text": "é", "uri_path": "a/b c?d=\r\n"}))
    shovel(here, src_queue="from", dest_uri=web.uri)
    await_true(lambda: ask(here, "queue show", queue="from")["messages"] == 0)
    assert [body for *_, body in web.posted] == numbered(3)
    _, path, found, _ = web.posted[0]
    assert path == "/a/b%20c?d=%0D%0A"
    assert found.pop("Authorization").startswith("Basic ")
    assert found.pop("User-Agent").startswith("brokerd ")
    of_http = ("Host", "Accept-Encoding", "Content-Length")
    assert {name: value for name, value in found.items() if name not in of_http} == {
        "X-Shovel": "s", "X-Message-Id": "id", "Content-Type": "a/b", "Content-Encoding": "gzip",
        "X-Correlation-Id": "c", "X-Priority": "3", "X-Timestamp": "5", "X-App-Id": "app", "X-Expiration": "60000",
        "X-Type": "t", "X-Delivery-Mode": "2", "X-x": "1", "X-yes": "true", "X-table": '{"a": [1, null]}'}


def test_a_message_without_a_path_of_its_own_goes_to_that_of_the_address(here, web):
    fill(here, "from", [b"a"])
    shovel(here, src_queue="from", dest_uri=web.uri)
    await_true(lambda: web.posted)
    assert web.posted[0][1] == "/take?all=1"


def test_why_a_web_server_takes_nothing_is_told_in_words(here):
    port, _held = reserved_port()
    cases = {f"http://127.0.0.1:{port}/": "Connection refused: tried ",
             f"http://127.0.0.1:{here.port}/": "it does not answer in HTTP: BadStatusLine AMQP",
             f"https://127.0.0.1:{here.port}/": "the port does not speak TLS: use http://: tried "}
    for number, uri in enumerate(cases):
        fill(here, f"from{number}", [b"a"])
        shovel(here, f"s{number}", src_queue=f"from{number}", dest_uri=uri)
    for number, text in enumerate(cases.values()):
        await_true(lambda number=number, text=text: ask(here, "shovel show", name=f"s{number}")["reason"].startswith(
            f"the web server cannot be reached: {text}"))


def test_a_server_that_is_busy_gets_the_same_message_again_and_none_passes_it(here, web):
    web.answers += [503, 429]
    fill(here, "from", numbered(2))
    shovel(here, src_queue="from", dest_uri=web.uri)
    await_true(lambda: ask(here, "queue show", queue="from")["messages"] == 0)
    assert [(code, body) for code, _, _, body in web.posted] == [(503, b"0"), (429, b"0"), (204, b"0"), (204, b"1")]


def test_what_the_server_will_never_take_goes_where_dead_letters_go(here, web):
    web.answers += [400]
    fill(here, "dead", [])
    fill(here, "from", numbered(2), {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    shovel(here, src_queue="from", dest_uri=web.uri)
    assert bodies(take(here, "dead", 1)) == [b"0"]
    await_true(lambda: len(web.posted) == 2)
    assert "secret" not in here.wait_for_log("the web server answered 400 Bad Request: the message is left to")


class Strange:
    """A server that answers each connection with octets, some of them again and again until the other side has had
    enough.  ``pause``: between these; None: for ever."""

    def __init__(self, answer, again=b"", pause=0.0):
        self.answer, self.again, self.pause = answer, again, pause
        self.server = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self.server.getsockname()[1]}/"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.speak, args=(self.server.accept()[0],), daemon=True).start()

    def speak(self, sock):
        with sock, contextlib.suppress(OSError):
            sock.recv(1 << 16)
            sock.sendall(self.answer)
            while self.again or self.pause is None:
                sock.sendall(self.again)
                threading.Event().wait(self.pause)


def test_a_web_server_that_answers_without_end_is_cut_off_and_the_message_counts_as_taken(here):
    strange = Strange(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n", b"x" * 65536)
    fill(here, "from", numbered(3))
    shovel(here, src_queue="from", dest_uri=strange.uri)
    await_true(lambda: ask(here, "queue show", queue="from")["messages"] == 0)
    strange.server.close()


def test_a_long_word_of_a_web_server_is_shortened_and_its_control_characters_do_no_harm(here):
    strange = Strange(b"\x1b[31mred\x07 " + b"y" * 60_000 + b"\r\n")
    fill(here, "from", [b"a"])
    shovel(here, src_queue="from", dest_uri=strange.uri)
    await_true(lambda: "it does not answer in HTTP" in ask(here, "shovel show", name="s")["reason"])
    assert len(ask(here, "shovel show", name="s")["reason"]) < 1000
    assert "\x1b" not in here.wait_for_log("it does not answer in HTTP")
    strange.server.close()


def test_a_web_server_that_never_ends_its_answer_is_left_in_time_and_the_message_tried_again():
    strange = Strange(b"HTTP/1.1 2", b"0", pause=0.02)
    server = shovel_http.Server(strange.uri)
    timer = threading.Timer(0.2, server.interrupt)  # as the link does after WHOLE_ANSWER_SECONDS
    timer.start()
    with pytest.raises((OSError, http.client.HTTPException)):
        server.post("", {}, b"")
    timer.join()
    strange.server.close()


def test_slow_web_servers_hold_up_no_other_shovel(here, web):
    silent = Strange(b"", pause=None)
    for number in range(12):  # more than Python's own pool of threads has here
        fill(here, f"from{number}", [b"a"])
        shovel(here, f"s{number}", src_queue=f"from{number}", dest_uri=silent.uri)
    await_true(lambda: {row["state"] for row in ask(here, "shovel list")["items"]} == {"running"})
    fill(here, "from", [b"quick"])
    shovel(here, src_queue="from", dest_uri=web.uri)
    await_true(lambda: [body for *_, body in web.posted] == [b"quick"])
    silent.server.close()


def test_an_address_with_letters_beyond_ascii_is_asked_for(here, web):
    fill(here, "from", [b"a"])
    shovel(here, src_queue="from", dest_uri=web.uri.replace("/take", "/nähe"))
    await_true(lambda: [path for _, path, *_ in web.posted] == ["/n%C3%A4he?all=1"])


@pytest.mark.parametrize("code", [408, 425, 429])
def test_codes_that_may_pass_later_are_no_refusals(code):
    assert code in shovel_http.LATER

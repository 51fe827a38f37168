"""Shovels to a web server."""

import http.server
import threading

import pika
import pytest
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
        delivery_mode=2, message_id="id", content_type="a/b", headers={"x": 1, "bad": "a\r\nb"}))
    shovel(here, src_queue="from", dest_uri=web.uri)
    await_true(lambda: ask(here, "queue show", queue="from")["messages"] == 0)
    assert [body for *_, body in web.posted] == numbered(3)
    _, path, found, _ = web.posted[0]
    assert path == "/take?all=1"
    assert (found["X-Shovel"], found["X-Message-Id"], found["Content-Type"], found["X-x"]) == ("s", "id", "a/b", "1")
    assert found["Authorization"].startswith("Basic ")
    assert "X-bad" not in found


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


@pytest.mark.parametrize("code", [408, 425, 429])
def test_codes_that_may_pass_later_are_no_refusals(code):
    assert code in shovel_http.LATER

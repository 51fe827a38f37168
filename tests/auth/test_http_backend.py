"""Logins and permissions that a web server decides: questions, answers, and how long these count."""

import pytest
from tests.auth.web_server import WebServer

from brokerd.auth import http_backend
from brokerd.auth.http_backend import FAILED_SECONDS, HTTPBackend, HTTPGranted, NotAsked, Question
from brokerd.errors import LoginRefused
from brokerd.settings import HTTPAuth


class World:
    """A back-end whose clock the test moves."""

    def __init__(self, method):
        self.said = {"user": "allow", "vhost": "allow", "resource": "allow", "topic": "allow"}
        self.server = WebServer(lambda name, fields: self.said[name])
        self.settings = HTTPAuth(method, self.server.paths(), 30, 15, 1000, "")
        self.now = 1000.0
        self.backend = HTTPBackend(lambda: self.settings, lambda: self.now)
        self.granted = HTTPGranted(self.backend, "ann", ("monitoring", "own"), "10.0.0.7")

    def ask(self, call):
        """What ``call()`` says once all its questions are answered."""
        for _ in range(10):
            try:
                return call()
            except NotAsked as missing:
                self.settle(missing.question)
        raise AssertionError("asked again and again")

    def settle(self, question):
        try:
            allowed, error = self.backend.fetch(question), None
        except (OSError, ValueError) as failed:
            allowed, error = None, failed
        self.backend.note(question, allowed, error)


@pytest.fixture(params=["get", "post"])
def world(request):
    made = World(request.param)
    yield made
    made.server.close()


def test_the_fields_are_those_of_rabbitmq(world):
    granted = world.granted
    assert world.backend.fetch_login("ann", "pä&=".encode()) == ()
    assert world.ask(lambda: granted.has_access("/"))
    assert world.ask(lambda: granted.check("/", "configure", "a b", "queue"))
    assert world.ask(lambda: granted.check_topic("/", "write", "news", "eu.#"))
    assert world.server.asked == [
        ("user", {"username": "ann", "password": "pä&="}),
        ("vhost", {"username": "ann", "vhost": "/", "ip": "10.0.0.7", "tags": "monitoring own"}),
        ("resource", {"username": "ann", "vhost": "/", "resource": "queue", "name": "a b", "permission": "configure",
                      "tags": "monitoring own"}),
        ("topic", {"username": "ann", "vhost": "/", "resource": "topic", "name": "news", "permission": "write",
                   "routing_key": "eu.#", "tags": "monitoring own"}),
    ]
    assert world.server.methods == {world.settings.method.upper()}


@pytest.mark.parametrize(("said", "tags"), [
    ("allow", ()), ("ALLOW", ()), (" allow\n", ()), ("allow administrator", ("administrator",)),
    ("Allow  a b  a", ("a", "b")), ((201, "allow x"), ("x",)),
])
def test_the_tags_follow_the_word(world, said, tags):
    world.said["user"] = said
    assert world.backend.fetch_login("ann", b"x") == tags


@pytest.mark.parametrize("said", ["deny", "DENY", "deny because of you"])
def test_a_denied_login_is_refused(world, said):
    world.said["user"] = said
    with pytest.raises(LoginRefused, match="denied by the HTTP back-end"):
        world.backend.fetch_login("ann", b"x")


@pytest.mark.parametrize("said", ["", "yes", "allowed", (404, "allow"), (500, "allow"), (302, "allow"), (202, "allow"),
                                  "allow " + "x" * 20000])
def test_what_is_no_answer_lets_nobody_in(world, said, monkeypatch):
    lines = []
    monkeypatch.setattr(http_backend.log, "warning", lambda text, *values: lines.append(text % values))
    world.said = dict.fromkeys(world.said, said)
    with pytest.raises((OSError, ValueError)) as failed:
        world.backend.fetch_login("ann", b"secret")
    assert "no answer" in str(world.backend.refusal("ann", failed.value))
    assert not world.ask(lambda: world.granted.check("/", "read", "q", "queue"))
    (line,) = lines
    assert "gives no answer" in line
    assert "secret" not in line


def test_a_tag_behind_a_permission_is_no_answer(world):
    world.said["resource"] = "allow administrator"
    assert not world.ask(lambda: world.granted.check("/", "read", "q", "queue"))


def test_a_name_that_could_forge_a_line_of_the_log_is_not_asked_about(world):
    with pytest.raises(LoginRefused):
        world.backend.fetch_login("ann\nroot", b"x")
    assert not world.server.asked


def test_an_answer_counts_for_its_time_and_no_longer(world):
    def may():
        return world.granted.check("/", "read", "q", "queue")

    assert world.ask(may)
    world.said["resource"] = "deny"
    world.now += 14.9
    assert may()
    world.now += 0.1
    with pytest.raises(NotAsked):
        may()
    assert not world.ask(may)
    world.said["resource"] = "allow"
    world.now += 14.9
    assert not may()


def test_a_server_that_failed_is_asked_again_soon(world):
    world.said["vhost"] = (500, "")
    assert not world.ask(lambda: world.granted.has_access("/"))
    world.said["vhost"] = "allow"
    assert not world.granted.has_access("/")
    world.now += FAILED_SECONDS
    assert world.ask(lambda: world.granted.has_access("/"))


def test_a_commit_takes_answers_whose_time_is_over_but_not_missing_ones(world):
    assert world.ask(lambda: world.granted.check("/", "write", "e", "exchange"))
    world.now += 100
    world.granted.also_old = lambda: True
    assert world.granted.check("/", "write", "e", "exchange")
    with pytest.raises(NotAsked):
        world.granted.check("/", "write", "e", "queue")


def test_who_relies_on_an_answer_is_told_its_end(world):
    ends = []
    world.granted.on_use = ends.append
    assert world.ask(lambda: world.granted.has_access("/"))
    world.now += 5
    assert world.granted.has_access("/")
    assert ends == [1015.0, 1015.0]


def test_a_right_password_is_remembered_and_another_one_is_not(world):
    assert world.backend.known_login("ann", b"right") is None
    world.backend.note_login("ann", b"right", ("a",))
    assert world.backend.known_login("ann", b"right") == ("a",)
    assert world.backend.known_login("ann", b"wrong") is None
    assert world.backend.known_login("annr", b"ight") is None
    world.now += 15
    assert world.backend.known_login("ann", b"right") is None


def test_the_oldest_answers_are_forgotten_above_the_bound(world):
    questions = [Question("vhost", (("username", "ann"), ("vhost", str(number)))) for number in range(1001)]
    for question in questions:
        world.backend.note(question, True)
    assert world.backend.answer(questions[0], also_old=True) is None
    assert world.backend.answer(questions[1]).allowed
    assert world.backend.answer(questions[1000]).allowed

"""The control socket of a real broker: its protocol, its limits, and that no client of it can hold the broker up."""

import json
import stat
from types import SimpleNamespace
from typing import Annotated

import pytest
from tests.broker import SECONDS, Broker
from tests.server.clients import PERSISTENT, close_all, connect, publish_confirmed
from tests.test_config import imported_by

from brokerd import local_socket
from brokerd.operations import table
from brokerd.operations.rows import Field, Operation, Right, TypedDict, request
from brokerd.server import control


@pytest.fixture
def broker(broker):
    """Need not wait for its clients to close."""
    yield broker
    close_all()


class Peer:
    """A client of the control socket."""

    def __init__(self, broker):
        self.socket = local_socket.connect(str(broker.directory), SECONDS)
        self.lines = self.socket.makefile("rb")

    def send(self, octets):
        self.socket.sendall(octets)

    def read(self):
        """The next line, or None at the end."""
        line = self.lines.readline()
        return json.loads(line) if line else None

    def ask(self, **request):
        self.send(json.dumps(request).encode() + b"\n")
        while True:
            answer = self.read()
            if answer is None or "progress" not in answer:
                return answer

    def close(self):
        self.lines.close()
        self.socket.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A broker for all tests that leave nothing behind; it has the queue "there"."""
    with Broker(tmp_path_factory.mktemp("shared") / "data") as broker:
        declare(broker, "there")
        close_all()
        yield broker


@pytest.fixture
def peer(shared):
    peer = Peer(shared)
    yield peer
    peer.close()


def declare(broker, queue="q", messages=0, **arguments):
    channel = connect(broker).channel()
    channel.queue_declare(queue, durable=True, arguments=arguments)
    if messages:
        publish_confirmed(channel, queue, [b"x" * 1000] * messages, PERSISTENT)
    return channel


# --- where it is

def test_it_is_there_while_the_broker_runs_for_its_user_alone(broker):
    path = broker.directory / "control.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_ISSOCK(path.stat().st_mode)
    broker.stop()
    assert not path.exists()


def test_one_that_a_killed_broker_left_is_replaced(broker):
    broker.kill()
    assert (broker.directory / "control.sock").exists()
    broker.start()
    declare(broker)
    peer = Peer(broker)
    assert "result" in peer.ask(verb="ordering", queue="q")
    peer.close()


def test_it_is_reached_under_a_path_that_is_longer_than_an_address(make_broker, tmp_path):
    deep = tmp_path / ("d" * 150) / "data"
    deep.parent.mkdir()
    broker = make_broker(directory=deep).start()
    peer = Peer(broker)
    assert peer.ask(verb="ordering", queue="q")["code"] == 404
    peer.close()


def test_a_broker_without_one_runs_and_says_so(make_broker):
    broker = make_broker()
    (broker.directory / "control.sock" / "mine").mkdir(parents=True)
    (broker.directory / "schema_version").write_text("1\n")
    broker.start()
    assert f"{broker.directory}/control.sock: Is a directory: brokerctl cannot reach this broker" in broker.log_text()
    declare(broker)
    close_all()


def test_second_names_that_a_crash_left_go_at_the_next_start(broker):
    broker.stop()
    stage = broker.directory / "dumping"
    stage.mkdir()
    (stage / "0-msgs.0000000001").touch()
    broker.restart()
    broker.stop()
    assert not stage.exists()


# --- what is asked

def test_requests_of_one_connection_are_answered_in_their_order(broker, tmp_path):
    declare(broker, messages=10)
    peer = Peer(broker)
    requests = [{"verb": "ordering", "queue": "none"}, {"verb": "dump", "out": str(tmp_path / "out")},
                {"verb": "ordering", "queue": "q"}]
    peer.send(b"\n \n" + b"\n".join(json.dumps(each).encode() for each in requests) + b"\n")
    answers = []
    while len(answers) < 3:
        answer = peer.read()
        if "progress" not in answer:
            answers.append(answer)
    assert answers[0] == {"error": "no queue 'none' in vhost '/'", "code": 404}
    assert answers[1]["result"]["queues"] == 1
    assert answers[2]["result"]["messages"]["ready"] == 10
    peer.close()


def test_a_request_may_come_octet_by_octet(peer):
    for octet in json.dumps({"verb": "ordering", "queue": "q"}).encode() + b"\n":
        peer.send(bytes([octet]))
    assert peer.read()["code"] == 404


def test_who_writes_no_more_is_answered_and_then_let_go(peer, tmp_path):
    peer.send(json.dumps({"verb": "dump", "out": str(tmp_path / "out")}).encode() + b"\n")
    peer.socket.shutdown(1)
    answers = []
    while (answer := peer.read()) is not None:
        answers.append(answer)
    assert answers[-1]["result"]["queues"] == 1


@pytest.mark.parametrize(("line", "told"), [
    (b"hello", "not JSON: "), (b"\xff\xfe", "not JSON: "), (b"[" * 50000, "not JSON: "), (b"[]", "not a JSON object"),
    (b"1", "not a JSON object"), (b"{}", "verb is missing: it must be a noun and a verb, as in 'queue ordering'"),
    (b'{"verb": 1}', "verb is missing"), (b'{"verb": "stop"}', "no operation 'stop'"),
    (b'{"verb": "queue trace"}', "no operation 'queue trace'; did you mean "),
    (b'{"verb": "ordering"}', "ordering: queue is missing: it must be a text"),
    (b'{"verb": "queue ordering", "queue": null}', "queue ordering: queue must be a text"),
    (b'{"verb": "queue ordering", "queue": "q", "as": 1}', "as must be the name of a user"),
    (b'{"verb": "ordering", "queue": 1}', "ordering: queue must be a text"),
    (b'{"verb": "ordering", "queue": "q", "vhots": "/"}', "ordering: unknown field 'vhots'"),
    (b'{"verb": "trace", "queue": "q", "seq": "1"}', "trace: seq must be a whole number"),
    (b'{"verb": "trace", "queue": "q", "seq": true}',
     "trace: seq must be a whole number, 1 or more (of 63 bits at most)"),
    (b'{"verb": "trace", "queue": "q", "seq": 0}', "trace: seq must be a whole number, 1 or more (of 63 bits at most)"),
    (b'{"verb": "message browse", "queue": "q", "from_seq": 18446744073709551616}',
     "message browse: from_seq must be a whole number, 1 or more (of 63 bits at most)"),
    (b'{"verb": "dump", "out": "here"}', "'here' is not an absolute path"),
    (b'{"verb": "ordering", "queue": "q", "vhost": "\\udc00"}', "not JSON: half of a surrogate pair"),
])
def test_a_request_that_is_wrong_is_told_so_and_the_next_one_is_heard(peer, line, told):
    peer.send(line + b"\n")
    answer = peer.read()
    assert answer["code"] == 400
    assert answer["error"].startswith(told)
    assert peer.ask(verb="ordering", queue="q")["code"] == 404


@pytest.mark.parametrize("request_", [
    {"verb": "trace", "queue": "none", "seq": 1}, {"verb": "trace", "queue": "there", "seq": 1},
    {"verb": "trace", "queue": "there", "seq": (1 << 63) - 1}, {"verb": "dump", "queues": "none", "out": "/out"},
    {"verb": "ordering", "queue": "\udcff"},
    {"verb": "queue ordering", "queue": "none", "as": "guest"},
])
def test_what_is_not_there_is_404(peer, request_):
    assert peer.ask(**request_)["code"] == 404


def test_short_names_are_those_of_the_same_operation(peer):
    assert peer.ask(verb="ordering", queue="there") == peer.ask(verb="queue ordering", queue="there")


def test_what_is_asked_for_a_user_needs_that_users_rights(peer):
    assert peer.ask(verb="queue ordering", queue="there", **{"as": "guest"})["result"]["queue"] == "there"
    assert peer.ask(verb="queue ordering", queue="there", **{"as": "stranger"}) == {
        "error": "queue ordering refused: no user 'stranger'", "code": 403}


# --- an operation more

@request
class Greet:
    name: Annotated[str, Field("Its name.", argument=True)]


class Greeting(TypedDict):
    text: str


class Wire:
    """A transport that keeps what is written."""

    def __init__(self):
        self.written = b""

    def is_closing(self):
        return False

    def abort(self):
        pytest.fail("nothing is to end this connection")

    def write(self, octets):
        self.written += octets

    def answers(self):
        return [json.loads(line) for line in self.written.splitlines()]


class Timer:
    def cancel(self):
        pass


def peer_of(submit):
    """A connection, without a loop."""
    loop = SimpleNamespace(call_later=lambda *_: Timer(), call_soon=lambda callback: callback())
    made = control.Control(SimpleNamespace(data=SimpleNamespace(path="")), loop, submit)
    peer, wire = control.Peer(made), Wire()
    peer.connection_made(wire)
    return peer, wire


def test_a_row_added_to_the_table_is_a_verb_of_the_socket(monkeypatch):
    row = Operation("node", "greet", "Greet.", Greet, Greeting, Right("management"),
                    lambda node, who, request: {"text": f"hello {request.name}"})
    monkeypatch.setitem(table.by_name(), row.name, row)
    peer, wire = peer_of(lambda work, done: (work(), done(None)))
    peer.data_received(b'{"verb": "node greet", "name": "x"}\n{"verb": "node greet"}\n')
    assert wire.answers() == [{"result": {"text": "hello x"}},
                              {"error": "node greet: name is missing: it must be a text", "code": 400}]


def test_requests_wait_until_what_they_need_is_imported():
    waiting = []
    peer, wire = peer_of(lambda work, done: waiting.append((work, done)))
    peer.data_received(b'{"verb": "node')
    assert not waiting, "a whole request is what needs it"
    peer.data_received(b' stop"}\n{"verb": 1}\n')
    peer.data_received(b'[]\n')
    assert (len(waiting), wire.written) == (1, b"")
    work, done = waiting.pop()
    work()
    done(None)
    assert [answer["code"] for answer in wire.answers()] == [400, 400, 400]
    peer.data_received(b'[]\n')
    assert not waiting
    assert len(wire.answers()) == 4


def test_a_start_imports_nothing_for_requests():
    assert not {name for name in imported_by("import brokerd.server.launch") if name.startswith((
        "pydantic", "brokerd.operations.", "json"))}


# --- limits

@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_request_that_is_too_long_ends_its_connection(shared, peer, end):
    peer.send(b" " * (control.REQUEST_OCTETS_MAX + 1) + end)
    assert peer.read() == {"error": "a request has at most 16777216 octets", "code": 400}
    assert peer.read() is None
    other = Peer(shared)
    assert other.ask(verb="ordering", queue="q")["code"] == 404
    other.close()


def test_so_many_connections_and_no_more(shared):
    peers = [Peer(shared) for _ in range(control.CONNECTIONS_MAX)]
    for peer in peers:
        assert peer.ask(verb="ordering", queue="q")["code"] == 404
    one_more = Peer(shared)
    assert one_more.read() == {"error": f"{control.CONNECTIONS_MAX} connections are open already", "code": 503}
    assert one_more.read() is None
    peers.pop().close()
    while (answer := (retry := Peer(shared)).ask(verb="ordering", queue="q")) is None or answer["code"] == 503:
        retry.close()
    assert answer["code"] == 404
    for peer in [*peers, one_more, retry]:
        peer.close()


def test_a_client_that_does_not_read_holds_up_nobody(broker):
    channel = declare(broker)
    deaf = Peer(broker)
    deaf.socket.settimeout(0.5)
    request = json.dumps({"verb": "ordering", "queue": "q"}).encode() + b"\n"
    other = Peer(broker)
    assert "result" in other.ask(verb="ordering", queue="q")    # What requests need is imported now.
    before = broker.anonymous_octets()
    with pytest.raises(TimeoutError):  # The broker does not read from it either.
        for _ in range(1000):
            deaf.socket.sendall(request * 1000)
    assert broker.anonymous_octets() - before < 4 << 20
    assert "result" in other.ask(verb="ordering", queue="q")
    channel.basic_publish("", "q", b"goes on")
    assert channel.basic_get("q", auto_ack=True)[2] == b"goes on"
    for peer in (deaf, other):
        peer.close()


def test_who_goes_away_ends_the_dump_that_was_asked_for(broker, tmp_path):
    declare(broker, messages=1)
    out = tmp_path / "out"
    peer = Peer(broker)
    peer.send(json.dumps({"verb": "dump", "out": str(out)}).encode() + b"\n")
    peer.close()
    other = Peer(broker)
    answer = other.ask(verb="dump", out=str(tmp_path / "other"))
    while answer.get("code") == 409:
        answer = other.ask(verb="dump", out=str(tmp_path / "other"))
    assert answer["result"]["queues"] == 1
    assert not (tmp_path / "out.partial").exists()
    assert not (broker.directory / "dumping").exists()
    other.close()


def test_a_broker_that_stops_says_so_to_who_waits(broker, tmp_path):
    """A dump of many queues is under way; nothing of it is left, and the stop is a clean one."""
    channel = connect(broker).channel()
    for number in range(300):
        channel.queue_declare(f"q{number}", durable=True)
    peer = Peer(broker)
    peer.send(json.dumps({"verb": "dump", "out": str(tmp_path / "out")}).encode() + b"\n")
    assert "progress" in peer.read()
    close_all()
    broker.stop()
    answers = []
    while (answer := peer.read()) is not None:
        answers.append(answer)
    assert answers[-1] == {"error": "the broker is stopping", "code": 409} or "result" in answers[-1]
    if "error" in answers[-1]:
        assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()
    assert not (broker.directory / "dumping").exists()
    peer.close()


def test_the_end_of_a_job_whose_client_has_just_gone_is_no_fault():
    """The loop closes a socket that cannot be written to, and tells of it a turn later."""
    class Gone:
        def is_closing(self):
            return True

        def write(self, octets):
            raise RuntimeError("the handler is closed")

    peer = control.Peer(SimpleNamespace(peers=set(), loop=SimpleNamespace(call_later=lambda *_: None)))
    peer._transport = Gone()
    peer._write({"result": {}})
    peer._fault(ValueError("too late"), b"{}")


def test_a_long_answer_is_sent_in_pieces_as_the_client_takes_them():
    parts = [bytes([letter]) * 100_000 for letter in b"abcdefgh"]
    line = b'{"result": ' + b"".join(parts) + b"}\n"
    sent, later, takes = [], [], True

    def send(octets):
        sent.append(octets)
        return takes and octets is not None

    sending = control.Sending(parts, send, later.append)
    sending.go_on()
    later.pop()()
    takes = False
    later.pop()()
    assert (later, max(map(len, sent)) < 400_000) == ([], True)
    takes = True
    sending.go_on()
    while later:
        later.pop()()
    assert (sent.pop(), b"".join(sent), parts) == (None, line, [])

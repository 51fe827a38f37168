"""Logins that a web server decides: a real broker, a real client and a small server, as people write one."""

import shutil
import socket

import pika
import pytest
from tests.auth.web_server import WebServer
from tests.broker import run
from tests.conversations.peer import Peer, publish
from tests.management.http import Http, reserve_http
from tests.server.certificates import Authority
from tests.server.clients import parameters

from brokerd.wire import methods

PASSWORDS = {"ann": "secret", "chief": "boss"}


class Rules:
    """What the server answers: everything to ann, but not what stands in ``refused``."""

    def __init__(self):
        self.refused = set()

    def __call__(self, name, fields):
        if name == "user":
            if PASSWORDS.get(fields["username"]) != fields["password"]:
                return "deny unknown"
            return "allow administrator" if fields["username"] == "chief" else "allow management"
        wanted = (name, fields.get("permission", fields["vhost"]), fields.get("routing_key", fields.get("name", "")))
        return "deny" if wanted in self.refused else "allow"


@pytest.fixture
def rules():
    return Rules()


@pytest.fixture
def server(rules):
    made = WebServer(rules)
    yield made
    made.close()


@pytest.fixture
def start(make_broker, server):
    """Starts a broker with these back-ends."""

    def start_(backends="internal,http", *flags):
        return make_broker("--auth-backends", backends, "--auth-http-method", "post", "--failed-logins-per-second", 0,
                           *server.flags(), *flags).start()

    return start_


@pytest.fixture
def connect():
    made = []

    def connect_(broker, user="ann", password=None, **more):
        made.append(pika.BlockingConnection(parameters(broker, user=user, password=password or PASSWORDS.get(user),
                                                       **more)))
        return made[-1]

    yield connect_
    for each in made:
        if each.is_open:
            each.close()


def refused_login(broker, user, password):
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(parameters(broker, user=user, password=password))


def test_a_user_of_the_web_server_works_as_any_other(start, server, connect):
    channel = connect(start()).channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.exchange_declare("news", "topic")
    channel.queue_bind(queue, "news", "eu.*")
    for number in range(20):
        channel.basic_publish("news", "eu.one", b"%d" % number, pika.BasicProperties(user_id="ann"))
    got = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(20)]
    assert got == [b"%d" % number for number in range(20)]
    assert server.count("user") == 1
    assert server.count("vhost", vhost="/", ip="127.0.0.1", tags="management") == 1
    assert server.count("resource", resource="queue", name=queue, permission="configure") == 1
    assert server.count("resource", resource="exchange", name="news", permission="write") == 1
    assert server.count("topic", name="news", permission="write", routing_key="eu.one") == 1
    assert server.count("topic", name="news", permission="read", routing_key="eu.*") == 1


def test_a_server_named_queue_with_a_dead_letter_exchange_is_asked_about_under_one_name(start, server, connect):
    channel = connect(start()).channel()
    queue = channel.queue_declare("", arguments={"x-dead-letter-exchange": "dead"}).method.queue
    asked = [(fields["permission"], fields["name"]) for name, fields in server.asked if name == "resource"]
    assert asked == [("configure", queue), ("read", queue), ("write", "dead")]
    assert channel.queue_declare("").method.queue != queue


def test_the_default_exchange_is_asked_about_by_rabbitmqs_name(start, server, connect):
    channel = connect(start()).channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"x")
    assert server.count("resource", resource="exchange", name="amq.default", permission="write") == 1


def test_a_web_server_behind_tls_is_asked_if_its_certificate_is_trusted_and_new_cas_count_at_once(
        rules, make_broker, connect, tmp_path):
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    shutil.copy(theirs.file, tmp_path / "ca.pem")
    server = WebServer(rules, ours.sign("login", "/CN=login"))
    try:
        broker = make_broker("--auth-backends", "http", "--auth-http-method", "post", "--failed-logins-per-second", 0,
                             *server.flags(), "--auth-http-ca-cert", tmp_path / "ca.pem").start()
        refused_login(broker, "ann", "secret")
        broker.wait_for_log("auth_http_user_path gives no answer .*(?i:certificate)")
        assert server.asked == []
        shutil.copy(ours.file, tmp_path / "ca.pem")
        assert connect(broker).channel().queue_declare("", exclusive=True).method.message_count == 0
        assert server.count("user") == 1
        (tmp_path / "ca.pem").unlink()
        refused_login(broker, "ann", "other")
    finally:
        server.close()


HOOK = """
import threading

ANN = {"secret": ["management", "app-/"], "other": []}


class Directory:
    def __init__(self, text):
        self.refused = text

    def log_in(self, user, password):
        if user == "broken":
            raise RuntimeError("the directory\\nis away")
        if user == "typed":
            return "management"
        return ANN.get(password) if user == "ann" else None

    def allows(self, wish):
        assert threading.current_thread() is not threading.main_thread()
        if wish.name == "typed":
            return "yes"
        return "app-" + wish.vhost in wish.tags and wish.name != self.refused and wish.routing_key != "eu.secret"
"""


@pytest.fixture
def hooked(make_broker, tmp_path):
    """Starts a broker in whose Python the package acme is installed; it refuses what is named ``forbidden``."""
    site = tmp_path / "site"
    (site / "acme-1.dist-info").mkdir(parents=True)
    (site / "acme-1.dist-info" / "entry_points.txt").write_text("[brokerd.auth]\nacme = acme_directory:Directory\n")
    (site / "acme-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (site / "acme_directory.py").write_text(HOOK)

    def make(*flags):
        return make_broker("--failed-logins-per-second", 0, "--auth-hook", "acme", "--auth-hook-config", "forbidden",
                           *flags, first=f"import sys; sys.path.insert(0, {str(site)!r})")

    return make


def test_a_package_decides_about_its_users_and_their_rights(hooked, connect):
    broker = hooked("--auth-backends", "internal,hook").start()
    channel = connect(broker).channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.exchange_declare("news", "topic")
    channel.queue_bind(queue, "news", "eu.*")
    channel.basic_publish("news", "eu.one", b"one")
    assert channel.basic_get(queue, auto_ack=True)[2] == b"one"
    for user, password in (("ann", "wrong"), ("ann", ""), ("other", "secret"), ("broken", "x"), ("typed", "x")):
        refused_login(broker, user, password)
    broker.wait_for_log("WARNING auth hook gives no answer .RuntimeError: the directory is away.: denied")
    for name in ("forbidden", "typed"):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
            connect(broker).channel().queue_declare(name)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
        channel.basic_publish("news", "eu.secret", b"two")
    begin = len(broker.lines)
    # What pika makes of it depends on whether it has read the close when the socket ends.
    with pytest.raises((pika.exceptions.ConnectionClosedByBroker, pika.exceptions.ProbableAccessDeniedError)):
        connect(broker, password="other")
    broker.wait_for_log("access to vhost '/' refused for user 'ann'", begin)
    connect(broker, user="guest", password="guest")


@pytest.mark.parametrize(("flags", "text"), [
    (("--auth-hook", "ldap"), "auth_hook ldap: no installed package has it (brokerd.auth has: none)"),
    (("--auth-backends", "hook"), "auth_backends has hook, but auth_hook names none"),
])
def test_a_hook_that_is_not_there_ends_the_start_with_one_line(tmp_path, flags, text):
    status, _, said = run("-D", tmp_path / "data", "--amqp-port", 0, *flags)
    assert (status, said.count("\n"), text in said) == (2, 1, True), said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("backends", ["internal,http", "http,internal"])
def test_each_backend_lets_its_own_users_in_and_no_other(start, server, connect, backends):
    broker = start(backends)
    connect(broker, "guest", "guest").channel().queue_declare("a")
    assert server.count("resource") == 0
    connect(broker, "ann").channel().queue_declare("b")
    assert server.count("resource") == 1
    refused_login(broker, "ann", "wrong")
    refused_login(broker, "guest", "wrong")
    refused_login(broker, "nobody", "x")


def test_with_http_alone_users_json_does_not_count(start, connect):
    broker = start("http")
    refused_login(broker, "guest", "guest")
    connect(broker, "ann")


def test_what_the_web_server_denies_is_refused_in_the_usual_words(start, rules, connect):
    rules.refused |= {("resource", "configure", "q"), ("resource", "write", "amq.fanout"),
                      ("topic", "write", "secret"), ("vhost", "/", "")}
    broker = start()
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        connect(broker)
    broker.wait_for_log("access to vhost '/' refused for user 'ann'")
    rules.refused.discard(("vhost", "/", ""))
    peer = connect(start())
    refused = (
        (lambda channel: channel.queue_declare("q"), "configure access to queue 'q' in vhost '/' refused"),
        (lambda channel: channel.basic_publish("amq.fanout", "", b"x"), "write access to exchange 'amq.fanout'"),
        (lambda channel: channel.basic_publish("amq.topic", "secret", b"x"), "write access to topic 'secret'"),
    )
    for act, text in refused:
        channel = peer.channel()
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=text) as closed:
            act(channel)
        assert closed.value.reply_code == 403


def test_methods_behind_one_that_waits_keep_their_order_and_other_clients_do_not_wait(start, server, connect):
    broker = start()
    other = connect(broker, "guest", "guest").channel()
    with Peer(broker.port).open(response=b"\0ann\0secret") as peer:
        peer.confirming()
        server.gate.clear()
        messages = [publish("q", b"%d" % number) for number in range(50)]
        peer.send(methods.QueueDeclare(queue="q", no_wait=True), *messages,
                  methods.QueueDeclare(queue="q", passive=True))
        server.wait_for("resource", permission="configure", name="q")
        other.queue_declare("other")
        assert server.count("resource", permission="write") == 0
        server.gate.set()
        while not isinstance(peer.read(), methods.QueueDeclareOk):
            pass
        got = [other.basic_get("q", auto_ack=True)[2] for _ in range(50)]
    assert got == [b"%d" % number for number in range(50)]


def test_what_a_client_has_sent_before_it_was_gone_counts_as_without_questions(start, server, connect):
    broker = start()
    other = connect(broker, "guest", "guest").channel()
    other.queue_declare("q")
    peer = Peer(broker.port).open(response=b"\0ann\0secret")
    server.gate.clear()
    peer.send(*(publish("q", b"%d" % number) for number in range(9)))
    server.wait_for("resource", permission="write")
    peer.socket.shutdown(socket.SHUT_RDWR)
    peer.socket.close()
    server.gate.set()
    broker.wait_for_log("lost after")
    assert [other.basic_get("q", auto_ack=True)[2] for _ in range(9)] == [b"%d" % number for number in range(9)]


def test_a_message_in_several_frames_waits_whole(start, server, connect):
    broker = start()
    channel = connect(broker).channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    body = bytes(range(256)) * 2000
    channel.basic_publish("", "q", body)
    assert channel.basic_get("q", auto_ack=True)[2] == body


def test_a_right_that_was_withdrawn_is_lost_when_the_answer_is_old(start, server, rules, connect):
    channel = connect(start("http", "--auth-http-cache-seconds", 1)).channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"x")
    rules.refused.add(("resource", "write", "amq.default"))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="write access to exchange 'amq.default'"):
        while True:
            channel.basic_publish("", "q", b"x")


def test_a_transaction_asks_at_its_publishes_and_commits_what_was_allowed_there(start, server, rules, connect):
    connection = connect(start("http", "--auth-http-cache-seconds", 1))
    channel = connection.channel()
    channel.queue_declare("q")
    channel.exchange_declare("news", "topic")
    channel.queue_bind("q", "news", "#")
    channel.tx_select()
    for key in ("a", "b", "c"):
        channel.basic_publish("news", key, key.encode(), mandatory=True)
        channel.basic_publish("", "q", key.encode(), mandatory=True)
    server.wait_for("topic", permission="write", routing_key="c")
    connection.process_data_events(time_limit=1.5)
    asked = server.count("topic", permission="write")
    channel.tx_commit()
    assert server.count("topic", permission="write") == asked == 3
    assert [channel.basic_get("q", auto_ack=True)[2] for _ in range(6)] == [b"a", b"a", b"b", b"b", b"c", b"c"]


def test_what_comes_behind_a_commit_that_is_not_answered_yet_may_ask_too(start, server):
    with Peer(start().port).open(response=b"\0ann\0secret") as peer:
        peer.ask(methods.QueueDeclare(queue="q", durable=True))
        peer.ask(methods.TxSelect())
        peer.send(*(publish("q", b"x") for _ in range(3)), publish("q", b"x"), methods.TxCommit(),
                  *(methods.QueueDeclare(queue=f"q{number}") for number in range(3)), methods.TxCommit())
        answers = [peer.read() for _ in range(5)]
    assert [type(each) for each in answers] == [
        methods.TxCommitOk, *[methods.QueueDeclareOk] * 3, methods.TxCommitOk]


@pytest.mark.parametrize("said", [(500, "oops"), "perhaps"])
def test_a_server_that_fails_lets_nobody_in_and_the_log_says_so_without_the_password(start, server, said):
    broker = start()
    server.decide = lambda name, fields: said
    refused_login(broker, "ann", "secret")
    broker.wait_for_log("auth_http_user_path gives no answer")
    assert "secret" not in broker.log_text()


def test_many_clients_that_ask_the_same_are_one_question(start, server):
    broker = start()
    peers = [Peer(broker.port).open(response=b"\0ann\0secret") for _ in range(10)]
    server.gate.clear()
    for peer in peers:
        peer.send(methods.QueueDeclare(queue="q"))
    server.wait_for("resource")
    server.gate.set()
    for peer in peers:
        assert isinstance(peer.read(), methods.QueueDeclareOk)
        peer.socket.close()
    assert server.count("resource") == 1


def test_a_stop_does_not_wait_for_a_server_that_gives_no_answer_for_longer_than_its_time(start, server):
    broker = start("http", "--auth-http-timeout-seconds", 1)
    peer = Peer(broker.port).open(response=b"\0ann\0secret")
    server.gate.clear()
    peer.send(methods.QueueDeclare(queue="q"))
    server.wait_for("resource")
    broker.stop()
    peer.socket.close()


# --- over HTTP


def test_the_http_api_takes_users_of_the_web_server_with_their_tags_and_rights(start, server, rules):
    port = reserve_http()
    broker = start("internal,http", "--http-port", port)
    broker.wait_for_log("HTTP")
    ann, chief = Http(port, "ann", "secret"), Http(port, "chief", "boss")
    assert ann.get("/api/whoami") == {"name": "ann", "tags": ["management"]}
    assert Http(port, "ann", "wrong").ask("GET", "/api/whoami").status == 401
    assert ann.ask("PUT", "/api/queues/%2F/mine", {}).status == 201
    rules.refused.add(("resource", "configure", "other"))
    assert ann.ask("PUT", "/api/queues/%2F/other", {}).status == 401
    assert [each["name"] for each in ann.get("/api/queues/%2F")] == ["mine"]
    assert ann.ask("GET", "/api/users").status == 401
    assert [each["name"] for each in chief.get("/api/users")] == ["guest"]
    page = Http(port, None)
    opened = page.ask("POST", "/api/v2/session", {"user": "ann", "password": "secret"})
    cookie = opened.headers["set-cookie"].partition(";")[0]
    assert page.get("/api/whoami", cookie=cookie)["name"] == "ann"
    assert [each["name"] for each in page.get("/api/queues", cookie=cookie)] == ["mine"]

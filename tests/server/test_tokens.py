"""Clients that log in by token: what they may do, renewal by update-secret, and the token's end."""

import socket

import pika
import pytest
from tests.auth.tokens import Issuer
from tests.broker import SECONDS
from tests.conversations.peer import Peer, publish

from brokerd.wire import methods

ALL = ("configure:%2F/*", "write:%2F/*", "read:%2F/*")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("tokens"))


@pytest.fixture
def broker(make_broker, issuer):
    made = make_broker("--oauth2-jwks", issuer.file, "--failed-logins-per-second", 0).start()
    yield made
    made.stop()


def connect(broker, token, user="", **more):
    return pika.BlockingConnection(pika.ConnectionParameters(
        "127.0.0.1", broker.port, credentials=pika.PlainCredentials(user, token), socket_timeout=SECONDS,
        stack_timeout=SECONDS, blocked_connection_timeout=SECONDS, **more))


def test_a_token_is_a_login_and_its_scopes_are_the_permissions(broker, issuer):
    token = issuer.token("configure:%2F/mine*", "write:%2F/mine*", "read:%2F/mine*", "write:%2F/amq.default",
                         filler="x" * 8000)
    with connect(broker, token) as connection:
        channel = connection.channel()
        channel.queue_declare("mine")
        channel.confirm_delivery()
        channel.basic_publish("", "mine", b"1", pika.BasicProperties(user_id="ann"))
        assert channel.basic_get("mine", auto_ack=True)[2] == b"1"
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="access to queue 'other'"):
            channel.queue_declare("other")


def test_passwords_are_passwords_still(broker, issuer):
    with connect(broker, "guest", "guest") as connection:
        connection.channel().queue_declare("a")
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connect(broker, "wrong", "guest")


@pytest.mark.parametrize("spoil", ["expired", "audience", "unsigned", "changed"])
def test_a_token_that_does_not_count_lets_nobody_in_also_under_a_known_name(broker, issuer, spoil):
    token = {
        "expired": lambda: issuer.token(*ALL, seconds=-5),
        "audience": lambda: issuer.token(*ALL, aud="other"),
        "unsigned": lambda: issuer.token(*ALL).rpartition(".")[0] + ".",
        "changed": lambda: issuer.token(*ALL, sub="guest")[:-8] + "AAAAAAAA",
    }[spoil]()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connect(broker, token, "guest")
    broker.wait_for_log("login refused: ")
    assert token not in broker.log_text()


def test_a_vhost_without_a_scope_is_closed(broker, issuer):
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connect(broker, issuer.token("read:other/*"))
    broker.wait_for_log("access to vhost '/' refused for user 'ann'")


def test_the_default_user_by_token_stays_on_this_machine_too(broker, issuer):
    with connect(broker, issuer.token(*ALL, sub="guest")) as connection:
        assert connection.is_open


def test_the_connection_ends_with_its_token(broker, issuer):
    connection = connect(broker, issuer.token(*ALL, seconds=3))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as ended:
        while True:
            connection.process_data_events(time_limit=SECONDS)
    assert (ended.value.reply_code, ended.value.reply_text) == (320, "CONNECTION_FORCED - token expired")


def secret(token):
    return methods.ConnectionUpdateSecret(new_secret=token, reason="renewed")


@pytest.fixture
def open_peer(broker):
    """Opens a connection with a token."""
    made = []

    def open_(token):
        made.append(Peer(broker.port))
        return made[-1].open(response=b"\0\0" + token.encode())

    yield open_
    for peer in made:
        peer.socket.close()


def test_another_token_counts_from_then_on_for_both_what_is_allowed_and_until_when(broker, issuer, open_peer):
    peer = open_peer(issuer.token(*ALL, seconds=4)).confirming()
    queue = peer.declare()
    assert peer.put(queue)
    assert peer.ask(secret(issuer.token("read:%2F/*")), 0) == methods.ConnectionUpdateSecretOk()
    peer.send(publish(queue, b"m"))
    closed = peer.read()
    assert isinstance(closed, methods.ChannelClose)
    assert closed.reply_code == 403
    peer.send(methods.ChannelCloseOk())
    # The former token's end passes without an end of the connection: a heartbeat would come, but none was agreed on.
    begin = len(broker.lines)
    with connect(broker, issuer.token(*ALL, seconds=5)) as other, pytest.raises(pika.exceptions.AMQPConnectionError):
        while True:
            other.process_data_events(time_limit=SECONDS)
    broker.wait_for_log("token expired", begin)
    peer.open_channel(2)


@pytest.mark.parametrize("spoil", ["another user", "expired", "no token"])
def test_a_secret_that_does_not_count_closes_the_connection(issuer, open_peer, spoil):
    peer = open_peer(issuer.token(*ALL))
    token = {"another user": issuer.token(*ALL, sub="bob"), "expired": issuer.token(*ALL, seconds=-5),
             "no token": "guest"}[spoil]  # fmt: skip
    closed = peer.ask(secret(token), 0)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (530, 10, 70)
    assert closed.reply_text == "NOT_ALLOWED - New secret was refused by one of the backends"


def test_a_user_with_a_password_may_send_a_secret_as_before(broker):
    peer = Peer(broker.port).open()
    assert peer.ask(secret("anything"), 0) == methods.ConnectionUpdateSecretOk()
    peer.socket.close()


def test_two_connections_of_one_user_have_each_the_rights_of_its_own_token(issuer, open_peer):
    may, may_not = open_peer(issuer.token(*ALL)), open_peer(issuer.token("read:%2F/*"))
    assert may_not.ask(methods.QueueDeclare(queue="new")).reply_code == 403
    assert isinstance(may.ask(methods.QueueDeclare(queue="new", auto_delete=True)), methods.QueueDeclareOk)


def test_a_server_of_keys_that_says_nothing_holds_up_those_alone_who_come_with_tokens(make_broker, issuer):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        broker = make_broker("--oauth2-jwks", f"http://127.0.0.1:{silent.getsockname()[1]}/keys").start()
        waits = Peer(broker.port)
        waits.start()
        waits.send((0, methods.ConnectionStartOk(mechanism="PLAIN", response=b"\0\0" + issuer.token(*ALL).encode(),
                                                 locale="en_US")))  # fmt: skip
        accepted, _ = silent.accept()  # It asks for keys now.
        with connect(broker, "guest", "guest") as connection:
            connection.channel().queue_declare("a")
        begin = len(broker.lines)
        accepted.close()
        broker.wait_for_log("oauth2_jwks", begin)
        waits.socket.close()
        broker.stop()

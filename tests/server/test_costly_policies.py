"""Thousands of policies whose patterns take long to search: what is declared among them waits, and nobody else does."""

import json
import os
import signal
import socket

import pytest
from tests.broker import Broker
from tests.conversations.peer import Peer, eventually, publish
from tests.server.clients import write_json
from tests.server.test_turns import ATTEMPTS, ROUNDS, Other, rounds_beside

from brokerd.store.format import folder_name
from brokerd.wire import methods

COSTLY = 150            # policies; a search of the longest name in one takes milliseconds
LONG = "".join("abcxyz"[number * number % 7 % 6] for number in range(250))
PATTERN = "(.{250}a|.{249}b|.{248}c)"


def policies_of(number, definition):
    """So many that match nothing, and behind them one for all."""
    return [*({"name": f"{each}", "pattern": f"{PATTERN}{each}", "definition": {"max-length": 9}, "priority": 1}
              for each in range(number)),
            {"name": "all", "pattern": "", "definition": definition, "priority": 0}]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Broker(tmp_path_factory.mktemp("costly") / "data", "--no-sync") as broker:
        write_json(broker.directory / folder_name("/") / "policies.json",
                   policies_of(COSTLY, {"max-length": 1, "alternate-exchange": "others"}))
        at = len(broker.lines)
        os.kill(broker.pid, signal.SIGHUP)
        broker.wait_for_log("reloaded", at)
        yield broker
        broker.stop()


def test_messages_of_others_go_in_and_out_beside_a_declare(broker):
    counts = []
    while len(counts) < ATTEMPTS and max(counts, default=0) < ROUNDS:
        with Peer(broker.port).open() as peer, Peer(broker.port).open() as well_behaved:
            other = Other(well_behaved)
            name = f"{len(counts)}{LONG}"
            counts.append(rounds_beside(lambda peer=peer, name=name: peer.ask(methods.QueueDeclare(queue=name)), other))
            peer.close()
            well_behaved.close()
    assert max(counts) >= ROUNDS, counts


def test_what_was_declared_among_costly_policies_has_its_policy(broker):
    with Peer(broker.port).open() as peer:
        name = "q" + LONG
        peer.ask(methods.QueueDeclare(queue=name))
        peer.raw(publish(name, b"1") + publish(name, b"2"))
        assert peer.ask(methods.QueueDeclare(queue=name, passive=True)).message_count == 1
        peer.ask(methods.ExchangeDeclare(exchange="others", type="fanout"))
        peer.ask(methods.ExchangeDeclare(exchange="x" + LONG, type="direct"))
        peer.ask(methods.QueueDeclare(queue="unroutable", exclusive=True))
        peer.ask(methods.QueueBind(queue="unroutable", exchange="others"))
        peer.raw(publish("nowhere", b"1", "x" + LONG))
        assert peer.ask(methods.QueueDeclare(queue="unroutable", passive=True)).message_count == 1
        peer.close()


def test_two_clients_that_declare_the_same_name_share_the_queue(broker):
    name = "same" + LONG
    with Peer(broker.port).open() as first, Peer(broker.port).open() as second:
        for peer in (first, second):
            peer.send(methods.QueueDeclare(queue=name, exclusive=False))
        assert [peer.read() for peer in (first, second)] == [methods.QueueDeclareOk(queue=name)] * 2
        for peer in (first, second):
            peer.close()


def test_server_named_queues_of_one_user_have_names_of_their_own(broker):
    with Peer(broker.port).open() as first, Peer(broker.port).open() as second:
        for peer in (first, second):
            peer.send(*[methods.QueueDeclare(exclusive=True)] * 3)
        names = {peer.read().queue for peer in (first, second) for _ in range(3)}
        assert len(names) == 6
        for peer in (first, second):
            peer.close()


def test_an_exclusive_queue_of_a_client_that_goes_meanwhile_is_gone(broker):
    name = "mine" + LONG
    with Peer(broker.port).open() as peer:
        peer.send(methods.QueueDeclare(queue=name, exclusive=True))
    with Peer(broker.port).open() as peer:
        # The name is free, or its owner still there for a moment.
        eventually(lambda: isinstance(again(peer, name), methods.QueueDeclareOk))
        peer.close()


def again(peer, name):
    reply = peer.ask(methods.QueueDeclare(queue=name, exclusive=True))
    if isinstance(reply, methods.ChannelClose):
        peer.send(methods.ChannelCloseOk())
        peer.open_channel(1)
    return reply


def test_an_operator_declares_among_costly_policies_too(broker):
    name = "operators" + LONG[:240]
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(120)
        sock.connect(str(broker.directory / "control.sock"))
        answers = sock.makefile()
        for created in (True, False):
            sock.sendall(json.dumps({"verb": "queue declare", "queue": name}).encode() + b"\n")
            assert json.loads(answers.readline()) == {"result": {"created": created}}
        sock.sendall(json.dumps({"verb": "queue show", "queue": name}).encode() + b"\n")
        shown = json.loads(answers.readline())["result"]
    assert (shown["policy"], shown["effective_policy_definition"]["max-length"]) == ("all", 1)

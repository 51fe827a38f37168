"""The one door to a vhost: what it refuses for now, and what it says of arguments that do nothing.

Permissions and equivalence are told through a session: tests/session/test_topology.py.
"""

import logging
import re
from pathlib import Path

import pytest
from tests.session.harness import Client, Node

from brokerd.arguments import BY_NAME
from brokerd.errors import AMQPError, NotImplemented_
from brokerd.vhost.access import WITHOUT_EFFECT
from brokerd.wire import methods

COMPATIBILITY = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
SINGLE = {"x-single-active-consumer": True}


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.fixture
def access(node):
    return node.enter("/", "guest")


@pytest.fixture
def said(caplog):
    """What is logged at info."""
    caplog.set_level(logging.INFO, logger="brokerd")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_queue_that_should_serve_one_consumer_at_a_time_is_refused_and_not_made(access):
    for name in ("q", ""):
        with pytest.raises(NotImplemented_, match=r"^x-single-active-consumer is not supported yet$"):
            access.declare_queue(name, object(), durable=True, arguments=dict(SINGLE))
    assert (access.vhost.queues, access.vhost.log.payloads) == ({}, [])


def test_the_client_is_told_540_and_its_connection_ends(node):
    client = Client(node).open()
    assert client.refusal(methods.QueueDeclare(queue="q", arguments=dict(SINGLE))) == (
        540, "x-single-active-consumer is not supported yet")
    assert client.connection.discard


def test_nor_is_such_a_queue_of_an_older_log_given_out_as_if_it_did(access):
    access.vhost.add_queue("q", durable=True, auto_delete=False, arguments=dict(SINGLE))
    with pytest.raises(NotImplemented_):
        access.declare_queue("q", object(), durable=True, arguments=dict(SINGLE))


def test_a_queue_that_says_it_serves_all_is_made(access, said):
    access.declare_queue("q", object(), arguments={"x-single-active-consumer": False})
    assert said() == []


def test_arguments_without_effect_are_named_once_when_the_queue_is_made(access, said):
    arguments = {"x-max-length": 5, "x-other": 1, "x-message-ttl": 10, "x-queue-type": "classic"}
    for _ in range(2):
        access.declare_queue("q", object(), arguments=arguments)
    assert said() == [
        ("INFO", "queue 'q' in vhost '/': kept but without effect so far: x-message-ttl, x-max-length")]


def test_a_quorum_queue_is_named_for_its_type(access, said):
    access.declare_queue("q", object(), durable=True, arguments={"x-queue-type": "quorum"})
    assert said() == [("INFO", "queue 'q' in vhost '/': kept but without effect so far: x-queue-type")]


def test_values_of_arguments_do_not_reach_the_log(access, said):
    access.declare_queue("q", object(), arguments={"x-dead-letter-exchange": "two\nlines"})
    assert "lines" not in said()[0][1]


@pytest.mark.parametrize("arguments", [None, {}, {"x-other": 1}, {"x-queue-type": "classic"}])
def test_nothing_is_said_of_other_queues(access, said, arguments):
    access.declare_queue("q", object(), arguments=arguments)
    assert said() == []


def test_the_manual_lists_the_same_arguments_and_no_argument_is_in_both_lists_or_none():
    table = COMPATIBILITY.read_text().partition("## Accepted without effect")[2].partition("\n## ")[0]
    cells = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(x-[\w-]+)", cells)) == set(WITHOUT_EFFECT)
    assert set(WITHOUT_EFFECT) == set(BY_NAME) - {"x-single-active-consumer"}


# --- exchanges

def refusal(access, name, type_="direct", **more):
    with pytest.raises(AMQPError) as refused:
        access.declare_exchange(name, type_, **more)
    return refused.value.reply_text


@pytest.mark.parametrize(("type_", "first", "second", "text"), [
    ("x-consistent-hash", {"hash-header": "a"}, {"hash-header": "b"},
     "'hash-header' for exchange 'x' in vhost '/': received 'b' but current is 'a'"),
    ("x-consistent-hash", {}, {"x-algorithm": "jump"},
     "'x-algorithm' for exchange 'x' in vhost '/': received the value 'jump' of type 'longstr' but current is none"),
    ("x-recent-history", {"x-recent-history-length": 5}, {},
     "'x-recent-history-length' for exchange 'x' in vhost '/': received none but current is the value '5' of type "
     "'signedint'"),
    ("direct", {"x-alternate-exchange": "a"}, {"x-alternate-exchange": "b"},
     "'x-alternate-exchange' for exchange 'x' in vhost '/': received 'b' but current is 'a'"),
])
def test_an_exchange_is_not_declared_again_with_other_arguments_that_count(access, type_, first, second, text):
    made = access.declare_exchange("x", type_, arguments=first)
    assert access.declare_exchange("x", type_, arguments=first | {"unknown": 1}) is made
    assert refusal(access, "x", type_, arguments=second) == f"PRECONDITION_FAILED - inequivalent arg {text}"


def test_a_type_with_hyphens_is_shown_in_quotes_of_its_own(access):
    access.declare_exchange("x", "x-random")
    assert refusal(access, "x", "direct") == (
        "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost '/': received 'direct' but current "
        "is ''x-random''")


@pytest.mark.parametrize("argument", ["alternate-exchange", "x-alternate-exchange"])
@pytest.mark.parametrize(("operation", "name"), [("read", "x"), ("write", "y")])
def test_an_alternate_exchange_asks_for_two_permissions_more(access, node, argument, operation, name):
    node.refused.add((operation, name))
    assert refusal(access, "x", arguments={argument: "y"}) == (
        f"ACCESS_REFUSED - {operation} access to exchange '{name}' in vhost '/' refused for user 'guest'")
    assert "x" not in access.vhost.exchanges


def test_the_alternate_exchanges_type_is_looked_at_before_permissions_and_the_rest_after(access, node):
    node.refused.add(("write", "y"))
    assert "invalid type 'signedint'" in refusal(access, "x", arguments={"alternate-exchange": 5})
    arguments = {"alternate-exchange": "y", "hash-property": "foo"}
    assert refusal(access, "x", "x-consistent-hash", arguments=arguments).startswith("ACCESS_REFUSED")
    node.refused.clear()
    assert refusal(access, "x", "x-consistent-hash", arguments=arguments) == (
        "PRECONDITION_FAILED - Unsupported property: foo")

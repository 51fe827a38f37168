import itertools
import os

import pytest
from tests.broker import Broker
from tests.conversations.not_yet import NOT_YET
from tests.conversations.peer import OTHER, Peer, publish
from tests.rabbitmq import RabbitMQ, installed
from tests.server.clients import permission, user_entry, write_json

from brokerd.wire import methods

numbers = itertools.count(1)
# May configure what begins with c, write what begins with w, read what begins with r.
LIMITED = ("limited", "^c", "^w", "^r")


def pytest_collection_modifyitems(items):
    """What brokerd does not do yet is expected to fail, and fails when it does not."""
    if OTHER:
        return
    for item in items:
        feature = NOT_YET.get(f"{item.path.name}::{item.name}")
        if feature:
            item.add_marker(pytest.mark.xfail(reason=f"not yet: {feature}", strict=True))


@pytest.fixture(autouse=True)
def patience(request, monkeypatch):
    """Nobody waits long for what is expected not to come."""
    if f"{request.path.name}::{request.node.name}" in NOT_YET:
        monkeypatch.setattr("tests.conversations.peer.SECONDS", 1)


@pytest.fixture(scope="session")
def other(tmp_path_factory):
    """RabbitMQ, started for the purpose; None when BROKERD_TEST_PEER names one that runs."""
    if OTHER != "rabbitmq":
        yield None
        return
    if not installed():
        pytest.exit("make test-peer: Debian's package rabbitmq-server is not installed (or set PEER=HOST:PORT)", 2)
    with RabbitMQ(tmp_path_factory.mktemp("rabbitmq")) as other:
        user, *rights = LIMITED
        other.control("add_user", user, user)
        other.control("set_permissions", user, *rights)
        yield other


@pytest.fixture(scope="module")
def port(request, tmp_path_factory):
    """The port of a broker that all conversations of a file share, or of the other broker."""
    if OTHER:
        other = request.getfixturevalue("other")
        yield other.port if other else int(OTHER.rpartition(":")[2])
        return
    directory = tmp_path_factory.mktemp("broker") / "data"
    with Broker(directory) as broker:
        yield broker.port
    broker.check_log()


@pytest.fixture(scope="module")
def limited_port(request, tmp_path_factory):
    """The port of a broker that knows the user ``limited``."""
    if OTHER:
        port = request.getfixturevalue("port")
        with Peer(port) as stranger:
            stranger.start()
            if not isinstance(stranger.start_ok(response=b"\0limited\0limited"), methods.ConnectionTune):
                pytest.skip("the other broker does not know the user 'limited'")
        yield port
        return
    directory = tmp_path_factory.mktemp("broker") / "data"
    with Broker(directory):
        pass
    user, configure, write, read = LIMITED
    write_json(directory / "users.json", [user_entry("guest", tags=["administrator"]), user_entry(user)])
    write_json(directory / "permissions.json", [permission("guest"), permission(user, "/", configure, write, read)])
    with Broker(directory) as broker:
        yield broker.port
    broker.check_log()


@pytest.fixture(autouse=True)
def witness(port):
    """Another connection, which notices nothing of what a conversation does to its own."""
    with Peer(port).open() as witness:
        queue = witness.ask(methods.QueueDeclare(exclusive=True)).queue
        consume = witness.ask(methods.BasicConsume(queue=queue, no_ack=True))
        witness.send(publish(queue, b"before"))
        assert witness.delivery()[1] == b"before"
        yield witness
        witness.send(publish(queue, b"after"))
        deliver, body = witness.delivery()
        assert (deliver.consumer_tag, deliver.delivery_tag, body) == (consume.consumer_tag, 2, b"after")
        witness.close()


@pytest.fixture
def peer(port):
    """A connection with channel 1 open."""
    with Peer(port).open() as peer:
        yield peer


@pytest.fixture
def stranger(port):
    """A socket on which nothing was said yet."""
    with Peer(port) as peer:
        yield peer


@pytest.fixture
def queue(peer):
    """A queue that ends with the peer's connection."""
    return peer.ask(methods.QueueDeclare(exclusive=True)).queue


@pytest.fixture
def name(port):
    """A name nobody has; the queue that gets it is deleted after the test."""
    name = f"conversation.{os.getpid()}.{next(numbers)}"
    yield name
    with Peer(port).open() as cleaner:
        cleaner.ask(methods.QueueDelete(queue=name))

import pytest
from tests.broker import Broker
from tests.conversations.peer import OTHER_PORT, Peer, publish

from brokerd.wire import methods


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """The port of a broker that all conversations of a file share, or of the other broker."""
    if OTHER_PORT:
        yield OTHER_PORT
        return
    with Broker(tmp_path_factory.mktemp("broker") / "data") as broker:
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

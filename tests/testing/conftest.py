import contextlib

import pika
import pytest

from brokerd.testing import Broker


@pytest.fixture(scope="module")
def shared():
    """A broker for all tests of a file; each takes a vhost."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def vhost(shared):
    name = shared.make_vhost()
    yield name
    shared.delete_vhost(name)


@pytest.fixture
def channel(shared, vhost):
    """A channel of pika in a vhost of this test."""
    connection = connect(shared)
    yield connection.channel()
    with contextlib.suppress(pika.exceptions.AMQPConnectionError):  # Some tests end it.
        connection.close()


def connect(broker, vhost=None):
    return pika.BlockingConnection(pika.URLParameters(broker.url(vhost)))

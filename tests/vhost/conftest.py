import pytest
from tests.in_memory import in_memory  # noqa: F401 - its folders
from tests.session.harness import Client, Node


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.fixture
def vhost(node):
    return node.vhost


@pytest.fixture
def client(node):
    client = Client(node).open()
    node.vhost.accesses["guest"] = client.connection.access      # as the node does
    return client

import pytest
from tests.session.harness import Client, Node


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.fixture
def client(node):
    return Client(node).open()

import pytest
from tests.in_memory import in_memory  # noqa: F401 - its folders
from tests.session.harness import Client, Node


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.fixture
def client(node):
    return Client(node).open()

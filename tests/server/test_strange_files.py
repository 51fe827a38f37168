"""A data directory that somebody has prepared: a start neither hangs nor writes where a link leads."""

import os
import shutil
from pathlib import Path

import pytest
from tests.broker import Broker, run
from tests.conversations.peer import Peer
from tests.server.clients import PERSISTENT, close_all, connect

NAMES = ["users.json", "vhosts.json", "permissions.json", "running", "connection_numbers", "identity",
         "schema_version", ".lock", "VHOST/definitions.amqp", "VHOST/policies.json"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A data directory."""
    directory = tmp_path_factory.mktemp("made") / "data"
    with Broker(directory):
        pass
    return directory


@pytest.fixture
def data(made, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "data"))


def path_of(data, name):
    vhost = next(path.parent for path in data.glob("*/.vhost"))
    return data / name.replace("VHOST", vhost.name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_start_ends_with_one_line_that_names_what_is_no_regular_file(data, tmp_path, name, kind):
    path, elsewhere = path_of(data, name), tmp_path / "elsewhere"
    content = path.read_bytes() if path.exists() else b"[]"
    path.unlink(missing_ok=True)
    if kind == "link":
        elsewhere.write_bytes(content)
        path.symlink_to(elsewhere)
    else:
        os.mkfifo(path)
    status, _, text = run("-D", data, "-p", 0)
    assert (status, text) == (1, f"brokerd: {path}: not a regular file (links, pipes and devices are refused)\n")
    assert kind == "pipe" or elsewhere.read_bytes() == content


@pytest.mark.parametrize("kind", ["msgs", "acks", "journal"])
def test_a_start_ends_with_one_line_that_names_a_link_in_the_folder_of_a_queue(tmp_path, kind):
    with Broker(tmp_path / "data") as broker:
        channel = connect(broker).channel()
        channel.queue_declare("q", durable=True, arguments={"x-order-journal": True})
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"x", PERSISTENT)
        close_all()
    (path,) = (tmp_path / "data").glob(f"*/*/{kind}.*")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    status, _, text = run("-D", tmp_path / "data", "-p", 0)
    assert (status, text) == (1, f"brokerd: {path}: not a regular file (links, pipes and devices are refused)\n")


@pytest.mark.parametrize("name", [name for name in NAMES if name != ".lock"])
def test_a_start_ends_with_one_line_that_names_a_file_of_terabytes(data, name):
    path = path_of(data, name)
    with open(path, "ab") as file:
        file.truncate(4 << 40)
    status, _, text = run("-D", data, "-p", 0)
    assert status == 1
    assert text.startswith(f"brokerd: {path}: has 4398046511104 octets, more than the ")
    assert text.count("\n") == 1


@pytest.mark.parametrize("name", ["running", "connection_numbers", "users.json", "permissions.json",
                                  "VHOST/definitions.amqp", "VHOST/policies.json", "VHOST/keys.secret"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_start_ends_with_one_line_that_names_what_is_no_temporary_file(data, tmp_path, name, kind):
    path = path_of(data, name + ".tmp")
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    why = "a folder is where a temporary file has to be: move it away" if kind == "folder" else \
        "not a regular file (links, pipes and devices are refused)"
    status, _, text = run("-D", data, "-p", 0)
    assert (status, text) == (1, f"brokerd: {path}: {why}\n")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["running", "connection_numbers", "users.json", "VHOST/policies.json"])
def test_a_temporary_file_that_a_broker_left_is_no_obstacle(data, name):
    path_of(data, name + ".tmp").write_bytes(b"half of a " * 1000)
    with Broker(data) as broker:
        with Peer(broker.port).open() as peer:
            peer.close()
        broker.stop()


@pytest.mark.parametrize("name", ["users.json", "vhosts.json", "permissions.json", "topic_permissions.json",
                                  "VHOST/policies.json", "VHOST/operator-policies.json"])
def test_null_is_no_list_of_nothing(data, name):
    path = path_of(data, name)
    path.write_text("null\n")
    status, _, text = run("-D", data, "-p", 0)
    assert (status, text) == (1, f"brokerd: {path}: not a list of objects\n")

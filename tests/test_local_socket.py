"""The control socket's place: reached however long the path is, and nobody else's."""

import os
import stat

import pytest

from brokerd import local_socket


@pytest.fixture(params=[1, 60, 200])
def directory(tmp_path, request):
    path = tmp_path / ("d" * request.param)
    path.mkdir()
    return str(path)


def test_a_socket_is_found_under_paths_of_any_length(directory):
    fds = set(os.listdir("/proc/self/fd"))
    with local_socket.bind(directory) as server:
        server.listen()
        with local_socket.connect(directory, 5) as client, server.accept()[0] as accepted:
            client.sendall(b"heard")
            assert accepted.recv(10) == b"heard"
            assert client.gettimeout() == 5
    assert set(os.listdir("/proc/self/fd")) == fds


def test_only_its_owner_may_connect_whatever_the_umask_is(directory):
    before = os.umask(0)
    try:
        local_socket.bind(directory).close()
    finally:
        os.umask(before)
    status = os.stat(os.path.join(directory, "control.sock"))
    assert (stat.S_ISSOCK(status.st_mode), stat.S_IMODE(status.st_mode)) == (True, 0o600)


@pytest.mark.parametrize("left", ["socket", "file"])
def test_what_a_killed_broker_left_is_replaced(directory, left):
    if left == "socket":
        local_socket.bind(directory).close()
    else:
        with open(os.path.join(directory, "control.sock"), "w"):
            pass
    with local_socket.bind(directory) as server:
        server.listen()
        local_socket.connect(directory, 5).close()


def test_nobody_listening_is_told_apart_from_no_socket(directory):
    with pytest.raises(FileNotFoundError):
        local_socket.connect(directory, 5)
    local_socket.bind(directory).close()
    with pytest.raises(ConnectionRefusedError):
        local_socket.connect(directory, 5)


def test_nothing_stays_open_where_it_cannot_be_made(directory):
    fds = set(os.listdir("/proc/self/fd"))
    os.mkdir(os.path.join(directory, "control.sock"))
    with pytest.raises(OSError):
        local_socket.bind(directory)
    with pytest.raises(OSError):
        local_socket.connect(os.path.join(directory, "none"), 5)
    assert set(os.listdir("/proc/self/fd")) == fds

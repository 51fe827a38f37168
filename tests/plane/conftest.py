import socket

import pytest
from tests.in_memory import in_memory  # noqa: F401 - its folders
from tests.plane.harness import Bench


@pytest.fixture
def bench(tmp_path):
    """A Core with segments of 64 KiB."""
    bench = Bench(tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def make_bench(tmp_path):
    """Benches with options, all on one directory."""
    made = []

    def make(**options):
        made.append(Bench(tmp_path, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def sockets():
    """A connected pair, neither of which blocks."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def committer(bench):
    """A transactional connection on channel 1, and a queue; ``went_up``: what it did not keep."""
    bench.queue()
    connection = bench.connection(1)
    connection.went_up = []
    connection.on_publish = lambda *publish: connection.went_up.append(publish)
    connection.channels[1].tx = connection.channels[1].keeps = True
    return connection

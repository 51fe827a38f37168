import os
import signal
import subprocess
import sys

import pytest
from tests.broker import SECONDS, environment, readable

from brokerd.testing import Broker, keeper_process, prepare


@pytest.fixture(autouse=True)
def nothing_prepared():
    yield
    keeper_process.discard()


def test_the_next_broker_has_the_keeper_that_was_prepared():
    prepare()
    (keeper,) = keeper_process._prepared
    with Broker() as first, Broker() as second:
        assert first._keeper is keeper
        assert second._keeper is not keeper
        assert first.port != second.port


def test_a_second_prepare_begins_no_second_keeper():
    prepare()
    prepare()
    assert len(keeper_process._prepared) == 1


def test_a_prepared_keeper_takes_the_options_of_the_broker_that_it_gets():
    prepare()
    with Broker(sync=True, heartbeat_seconds=9) as broker:
        broker.power_cut()
        assert broker.pid


def test_a_prepared_keeper_that_was_killed_meanwhile_is_replaced():
    prepare()
    (keeper,) = keeper_process._prepared
    os.kill(keeper.pid, signal.SIGKILL)
    keeper.process.wait()
    with Broker() as broker:
        assert broker.make_vhost()


def test_a_keeper_that_nobody_took_ends_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    prepare()
    (keeper,) = keeper_process._prepared
    assert keeper_process.discard()
    assert keeper.process.returncode == 0
    assert not keeper_process.discard()
    assert not list(tmp_path.iterdir())


def test_a_fork_does_not_take_what_its_parent_prepared():
    script = """
import os
from brokerd.testing import Broker, keeper_process, prepare

prepare()
(keeper,) = keeper_process._prepared
if not (child := os.fork()):
    with Broker() as broker:
        os._exit(broker._keeper.pid == keeper.pid)
assert os.waitpid(child, 0)[1] == 0
with Broker() as broker:
    assert broker._keeper.pid == keeper.pid and broker.make_vhost()
"""
    subprocess.run([sys.executable, "-c", script], env=environment(), timeout=SECONDS, check=True)


@pytest.mark.parametrize("then", ["", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_program_that_prepares_and_asks_for_no_broker_leaves_no_process(then):
    script = f"""
import os
from brokerd.testing import keeper_process, prepare

prepare()
print(keeper_process._prepared[0].pid, flush=True)
{then}
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment(), timeout=SECONDS, stdout=subprocess.PIPE)
    try:
        fd = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return
    try:
        assert readable(fd)
    finally:
        os.close(fd)

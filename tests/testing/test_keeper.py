"""Whoever is killed: no process and no folder is left."""

import json
import os
import signal
import subprocess
import sys
from tempfile import TemporaryFile
from types import SimpleNamespace

import pytest
from tests.broker import SECONDS, environment, readable

from brokerd.testing import Broker, BrokerFailed

PROGRAM = """
import json, os, sys, time
from brokerd.testing import Broker

broker = Broker(sync={sync}).start()
broker.make_vhost()
keeper = broker._keeper.pid
print(json.dumps([broker.pid, keeper, str(broker.data_dir.parent)]), flush=True)
{then}
"""


def program(then, sync=False):
    """A program with a broker: (its process, the broker's pid, the keeper's pid, the folder)."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM.format(then=then, sync=sync)], env=environment(),
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return process, *json.loads(process.stdout.readline())


def wait_for_end(*pids):
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert readable(fd), f"process {pid} is still there"
        finally:
            os.close(fd)


@pytest.mark.parametrize("sync", [False, True])
def test_a_parent_that_is_killed_leaves_no_process_and_no_folder(sync):
    process, broker, keeper, folder = program("sys.stdin.read()", sync)
    with process:
        assert os.path.isdir(folder)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for_end(broker, keeper)
    assert not os.path.exists(folder)


def test_a_parent_that_is_killed_leaves_nothing_though_a_child_of_it_lives():
    """The child has the parent's sockets, so only the end of the parent itself can tell."""
    process, broker, keeper, folder = program("child = os.fork()\nif child: print(child, flush=True)\nsys.stdin.read()")
    child = int(process.stdout.readline())
    with process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for_end(broker, keeper)
        assert not os.path.exists(folder)
        os.kill(child, 0)
    wait_for_end(child)


def test_a_parent_that_is_killed_during_the_start_leaves_nothing(tmp_path):
    script = """
import os
from brokerd.testing import Broker

def killed(broker, keeper):
    print(broker._keeper.pid, flush=True)
    os.kill(os.getpid(), 9)

Broker._hear = killed
Broker().start()
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment({"TMPDIR": str(tmp_path)}), timeout=SECONDS,
                          stdout=subprocess.PIPE)
    assert done.returncode == -signal.SIGKILL
    wait_for_end(int(done.stdout))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("then", ["", "sys.exit(3)", "1 / 0", "os._exit(1)", "broker.stop()", "del broker"])
def test_a_program_that_ends_without_a_stop_leaves_nothing(then):
    process, broker, keeper, folder = program(then)
    with process:
        process.wait(SECONDS)
        wait_for_end(broker, keeper)
    assert not os.path.exists(folder)


def test_the_death_of_the_keeper_takes_the_broker_and_the_folder_along():
    with Broker() as broker:
        pid, folder = broker.pid, broker.data_dir.parent
        os.kill(broker._keeper.pid, signal.SIGKILL)
        wait_for_end(pid)
        assert not folder.exists()
        with pytest.raises(BrokerFailed, match="keeper"):
            broker.drop_connections()


def age(folder):
    os.utime(folder, (1, 1))


def test_what_a_killed_keeper_and_a_killed_broker_left_goes_with_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Broker() as killed:
        folder = killed.data_dir.parent
        os.kill(killed._keeper.pid, signal.SIGSTOP)     # Neither must see the end of the other.
        os.kill(killed.pid, signal.SIGSTOP)
        os.kill(killed.pid, signal.SIGKILL)
        os.kill(killed._keeper.pid, signal.SIGKILL)
        wait_for_end(killed._keeper.pid)
    assert folder.exists()
    with Broker() as young:
        young.make_vhost()      # It answers after it has looked.
        assert folder.exists()
    age(folder)
    with Broker() as old:
        old.make_vhost()
        assert not folder.exists()


def test_folders_of_living_brokers_and_of_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "brokerd-testing-file").write_text("")
    (tmp_path / "target").mkdir()
    (tmp_path / "brokerd-testing-link").symlink_to(tmp_path / "target")
    (tmp_path / "somebody else's").mkdir()
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1), follow_symlinks=False)
    with Broker() as one:
        with one.outage():      # Nobody has the lock of its data now.
            age(one.data_dir.parent)
            with Broker() as other:
                other.make_vhost()
        one.make_vhost()
    assert len(list(tmp_path.iterdir())) == 4


def test_a_parent_that_is_killed_while_the_broker_is_down_leaves_no_folder():
    then = "down = broker.outage(); down.__enter__(); print(flush=True)\nsys.stdin.read()"
    process, broker, keeper, folder = program(then)
    with process:
        process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for_end(broker, keeper)
    assert not os.path.exists(folder)


def test_ctrl_c_does_not_reach_the_broker():
    """Tests that end by Ctrl-C still have their broker while they clean up."""
    with Broker() as broker:
        assert os.getsid(broker.pid) == os.getsid(broker._keeper.pid) != os.getsid(0)


def test_a_folder_that_is_not_there_is_told(tmp_path, monkeypatch):
    tempfile = SimpleNamespace(gettempdir=lambda: str(tmp_path / "none"), TemporaryFile=TemporaryFile)
    monkeypatch.setattr("brokerd.testing.broker.tempfile", tempfile)
    with pytest.raises(BrokerFailed, match="No such file or directory.*none"):
        Broker().start()


def test_a_broker_that_cannot_start_is_told_with_its_log_and_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("brokerd.testing.broker.tempfile.gettempdir", lambda: str(tmp_path))
    with pytest.raises(BrokerFailed, match=r"(?s)the broker has ended.*cannot listen on"):
        Broker(unix_path=str(tmp_path / "no" / "such" / "socket")).start()
    assert not list(tmp_path.iterdir())

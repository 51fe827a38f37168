"""Brokers that the nursery forks, beside those that a new Python runs: the kernel sees no difference between them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import nursery
from tests.broker import Broker, run
from tests.carriers.ends import ask, await_true
from tests.carriers.rounds import process_of_links
from tests.management.http import reserve_http
from tests.server.test_management import children

INSTEAD = """
from brokerd.server import launch

def serve(*arguments, **more):
    raise SystemExit("instead of the broker")

launch.serve = serve
"""


OF_THE_C_LIBRARY = 3 << 31  # the signals 32 and 33
OF_A_SHELL = 1 << signal.SIGQUIT - 1  # which a shell ignores for a job behind it; a nursery listens to it again


def seen_by_the_kernel(broker, pid=None):
    """What a broker, or a process beside it, has from the one that started it."""
    pid = pid or broker.pid
    proc = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
    stat = (proc / "stat").read_text().rpartition(") ")[2].split()
    kinds = sorted(name.partition(":")[0] if ":[" in name
                   else name.replace(str(broker.directory), "").replace(str(broker.pid), "PID")
                   for name in open_files(pid))
    return {
        **{name: status[name] for name in ("PPid", "Umask", "SigBlk", "SigIgn", "SigCgt", "Cpus_allowed", "Threads")},
        "group": stat[2], "session": stat[3], "nice": stat[16], "cwd": os.readlink(proc / "cwd"),
        "program": os.readlink(proc / "exe"), "limits": (proc / "limits").read_text(), "files": kinds,
    }


def open_files(pid):
    for fd in sorted(map(int, os.listdir(f"/proc/{pid}/fd"))):
        yield os.readlink(f"/proc/{pid}/fd/{fd}")


@pytest.fixture(autouse=True)
def no_nursery():
    """None is there yet: an earlier test's may be of an environment that rules out a fork for these tests."""
    while nursery._nurseries:
        nursery._nurseries.pop().end()


def test_a_forked_broker_has_the_descriptors_signals_and_limits_of_one_that_python_starts(make_broker):
    forked, started = make_broker(), make_broker()
    started.may_fork = False
    forked.start()
    started.start()
    assert isinstance(forked.process, nursery.Forked)
    assert not isinstance(started.process, nursery.Forked)
    assert seen_by_the_kernel(forked) == seen_by_the_kernel(started)


def test_the_processes_beside_a_forked_broker_have_the_descriptors_signals_and_limits_of_new_ones(make_broker):
    forked, started = (make_broker("--http-port", reserve_http()) for _ in range(2))
    started.may_fork = False
    seen = []
    for broker in (forked, started):
        broker.start()
        broker.wait_for_log(r"\(HTTP\)")
        (management,) = children(broker.pid)
        ask(broker, "parameter set", component="shovel", name="s", value={
            "src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"})
        await_true(lambda broker=broker: ask(broker, "shovel list")["items"][0]["state"] == "running")
        pids = management, process_of_links(broker)
        seen.append([seen_by_the_kernel(broker, pid) for pid in pids])
        assert [line["PPid"] for line in seen[-1]] == [str(broker.pid)] * 2
        # A fork has no interpreter's line of its own.
        assert [b"-m\0brokerd" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids] == [broker is started] * 2
    for fork, new in zip(*seen, strict=True):
        for each in fork, new:
            del each["PPid"]
            for name in ("SigIgn", "SigCgt"):
                each[name] = int(each[name], 16) & ~(OF_THE_C_LIBRARY | OF_A_SHELL)
        assert {name: (value, new[name]) for name, value in fork.items() if value != new[name]} == {}


@pytest.mark.parametrize("may_fork", [True, False])
def test_a_broker_that_cannot_start_ends_with_its_status_and_its_reason(make_broker, tmp_path, may_fork):
    (tmp_path / "file").write_text("")
    broker = make_broker(directory=tmp_path / "file")
    broker.may_fork = may_fork
    with pytest.raises(AssertionError, match="brokerd: .*file"):
        broker.start()


@pytest.mark.parametrize("flags", [["--version"], ["--heartbeat", "soon"], ["-D", "/proc/none"]])
def test_a_broker_that_ends_by_itself_says_the_same_whether_it_is_forked_or_started(monkeypatch, flags):
    forked = run(*flags)
    assert nursery._nurseries
    monkeypatch.setattr(Broker, "may_fork", False)
    assert forked == run(*flags)
    assert forked[1] or forked[2]


def test_a_run_that_does_not_end_in_time_is_killed(make_broker, tmp_path):
    with pytest.raises(subprocess.TimeoutExpired):
        run("-D", tmp_path / "data", "-p", 0, timeout=0.1)
    make_broker(directory=tmp_path / "data").start()  # The directory is in use by no other.


@pytest.mark.parametrize("may_fork", [True, False])
def test_what_a_test_names_first_runs_before_the_program(make_broker, may_fork):
    broker = make_broker(first=INSTEAD)
    broker.may_fork = may_fork
    with pytest.raises(AssertionError, match="instead of the broker"):
        broker.start()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_status_of_a_forked_broker_is_its_own(make_broker, number):
    broker = make_broker().start()
    process = broker.process
    os.kill(broker.pid, number)
    assert broker.wait() == (-9 if number == signal.SIGKILL else 0)
    assert process.poll() == process.returncode == process.wait()


def test_a_forked_broker_reads_its_own_environment(make_broker):
    make_broker().start()
    broker = make_broker(env={"BROKERD_HEARTBEAT_SECONDS": "soon"})
    with pytest.raises(AssertionError, match="environment: BROKERD_HEARTBEAT_SECONDS"):
        broker.start()


def test_a_limit_that_the_tests_have_changed_is_the_next_broker_s(make_broker):
    before = os.umask(0o077)
    try:
        changed = make_broker().start()
        assert seen_by_the_kernel(changed)["Umask"] == "0077"
    finally:
        os.umask(before)
    assert seen_by_the_kernel(make_broker().start())["Umask"] == f"{before:04o}"


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "LD_PRELOAD", "TZ"])
def test_what_python_reads_when_it_begins_needs_a_start(make_broker, name):
    make_broker().start()
    broker = make_broker(env={name: "0" if name == "PYTHONHASHSEED" else ""}).start()
    assert not isinstance(broker.process, nursery.Forked)


def test_the_nursery_ends_with_the_tests(tmp_path):
    script = (f"import tests.broker as b; broker = b.Broker({str(tmp_path)!r}).start(); broker.stop();"
              "print(b.nursery._nurseries[0]._process.pid)")
    done = subprocess.run([sys.executable, "-c", script], cwd=nursery.ROOT, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stderr
    assert not Path(f"/proc/{done.stdout.strip()}").exists()

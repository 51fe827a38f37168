"""What a service manager hears, by the real protocol: a unix datagram socket that the test listens on."""

import os
import signal
import socket
import time

import pytest
from tests.broker import SECONDS, run

from brokerd.server.notify import Notifier


class Manager:
    """A socket that brokers send to, and the variables that name it."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(name)
        self.socket.settimeout(SECONDS)
        self.env = {"NOTIFY_SOCKET": name.replace("\0", "@")}

    def read(self):
        """The next message, as a dictionary."""
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))

    def read_until(self, name):
        """All messages up to the first with this variable."""
        found = [self.read()]
        while name not in found[-1]:
            found.append(self.read())
        return found


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    abstract = f"\0brokerd-test-{os.getpid()}-{time.time_ns()}"
    made = Manager(str(tmp_path / "notify") if request.param == "path" else abstract)
    yield made
    made.socket.close()


def test_start_reload_and_stop_are_told(make_broker, manager):
    broker = make_broker(env=manager.env).start()
    assert manager.read_until("READY") == [
        {"STATUS": "reading the data directory"},
        {"READY": "1", "STATUS": f"listening on 127.0.0.1:{broker.port} (AMQP)"}]
    before = time.monotonic_ns() // 1000
    os.kill(broker.pid, signal.SIGHUP)
    told, = manager.read_until("RELOADING")
    assert before <= int(told["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    assert manager.read() == {"READY": "1", "STATUS": f"listening on 127.0.0.1:{broker.port} (AMQP)"}
    broker.stop()
    assert manager.read() == {"STOPPING": "1", "STATUS": "stopping"}
    manager.socket.setblocking(False)
    with pytest.raises(BlockingIOError):  # A watchdog that nobody asked for is not fed.
        manager.read()


def test_the_watchdog_is_fed_while_the_loop_goes_round(make_broker, manager):
    broker = make_broker(env=manager.env | {"WATCHDOG_USEC": "5000000"}).start()
    manager.read_until("READY")
    assert [manager.read(), manager.read()] == [{"WATCHDOG": "1"}] * 2
    os.kill(broker.pid, signal.SIGSTOP)
    manager.socket.setblocking(False)
    try:
        while True:
            manager.socket.recv(4096)
    except BlockingIOError:
        os.kill(broker.pid, signal.SIGCONT)
    manager.socket.settimeout(SECONDS)
    assert manager.read() == {"WATCHDOG": "1"}


def test_an_alarm_is_the_status_until_it_is_over(make_broker, manager, tmp_path):
    config = tmp_path / "brokerd.toml"
    config.write_text(f"free_disk_min_octets = {1 << 50}")
    broker = make_broker("-c", config, env=manager.env).start()
    assert manager.read_until("READY")
    assert manager.read() == {"STATUS": "low on disk: publishers are blocked"}
    config.write_text("free_disk_min_octets = 1")
    os.kill(broker.pid, signal.SIGHUP)
    manager.read_until("READY")
    assert manager.read() == {"STATUS": f"listening on 127.0.0.1:{broker.port} (AMQP)"}


def test_a_start_that_fails_is_told_with_its_reason(manager, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "strange").write_text("")
    status, _, text = run("-D", tmp_path / "data", "-p", 0, env=manager.env)
    assert status == 1
    assert manager.read() == {"STATUS": "reading the data directory"}
    assert manager.read() == {"STATUS": f"start failed: {text.strip().removeprefix('brokerd: ')}"}


@pytest.mark.parametrize("name", ["", "/proc/none/notify", "@nobody listens here", "vsock:2:1234", "relative"])
def test_a_broker_runs_without_a_manager_that_listens(make_broker, name):
    broker = make_broker(env={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000000"}).start()
    warned = [line for line in broker.lines if " WARNING " in line]
    assert bool(warned) is (name in ("vsock:2:1234", "relative"))
    os.kill(broker.pid, signal.SIGHUP)
    broker.wait_for_log("reloaded$")


def test_a_manager_that_does_not_read_does_not_hold_the_broker_up(tmp_path):
    full = Manager(str(tmp_path / "notify"))
    notifier = Notifier(full.env)
    for number in range(5000):
        notifier.status(f"change {number}")
    assert full.read() == {"STATUS": "change 0"}
    notifier.close()
    notifier.status("after the end")
    full.socket.close()


@pytest.mark.parametrize(("variables", "fed"), [
    ({}, False), ({"WATCHDOG_USEC": "0"}, False), ({"WATCHDOG_USEC": "1"}, True),
    ({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "ours"}, True),
    ({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}, False),
])
def test_only_the_watchdog_of_this_process_is_fed(tmp_path, variables, fed):
    manager = Manager(str(tmp_path / "notify"))
    if variables.get("WATCHDOG_PID") == "ours":
        variables = variables | {"WATCHDOG_PID": str(os.getpid())}
    notifier = Notifier(manager.env | variables)
    notifier.alive()
    notifier.status("the end")
    assert ("WATCHDOG" in manager.read()) is fed
    notifier.close()
    manager.socket.close()


def test_a_reload_that_ends_before_the_start_or_behind_the_stop_says_nothing_of_ready(tmp_path):
    manager = Manager(str(tmp_path / "notify"))
    notifier = Notifier(manager.env)
    notifier.reloading()
    notifier.reloaded()
    notifier.ready("one\ntwo")
    notifier.stopping()
    notifier.reloading()
    notifier.reloaded()
    notifier.status("the end")
    assert manager.read() == {"READY": "1", "STATUS": "one two"}
    assert manager.read() == {"STOPPING": "1", "STATUS": "stopping"}
    assert manager.read() == {"STATUS": "the end"}
    notifier.close()
    manager.socket.close()

"""Debian's RabbitMQ as a process of its own beside any other: its name, ports and directories are this test's alone.

    with RabbitMQ(directory) as peer:
        pika.BlockingConnection(pika.ConnectionParameters(port=peer.port))

Waits for what it says on its standard output, never for time to pass.  Stopped by its process group; the
port mapper it started is its own too, and ends with it.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.broker import Broker

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
PLUGINS = ("rabbitmq_consistent_hash_exchange", "rabbitmq_event_exchange", "rabbitmq_random_exchange",
           "rabbitmq_recent_history_exchange", "rabbitmq_sharding")
READY = re.compile(r"completed with \d+ plugins")
SECONDS = 90    # a start takes about ten on a busy machine

# Nothing here changes an answer.
CONFIG = """\
loopback_users.guest = true
listeners.tcp.default = {port}
log.console = true
log.console.level = warning
log.file = false
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 10MB
"""


def installed():
    """Whether Debian's package is there."""
    return SERVER.exists()


def free_ports(count):
    """Ports of the loopback that nobody has right now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class RabbitMQ:
    """One RabbitMQ on one directory, from ``start`` to ``stop``."""

    def __init__(self, directory, port=0, plugins=PLUGINS):
        self.directory = Path(directory)
        self.port = port
        self.plugins = plugins
        self.http_port = 0  # of its management plugin, if that is among the plugins
        self.process = None
        self.lines = []
        self._ready = threading.Event()

    def start(self):
        """Start, and return when it serves.  Raises AssertionError with what it said when it does not."""
        wanted, attempts = (self.port, self.http_port), 3
        while True:
            try:
                return self._start()
            except AssertionError as error:     # Another process may have got a port that was free.
                attempts -= 1
                if not attempts or "eaddrinuse" not in str(error):
                    raise
            self.port, self.http_port = wanted
            self.lines.clear()
            self._ready.clear()

    def _start(self):
        port, dist, epmd = free_ports(3)
        self.port = self.port or port
        self._mapper = epmd
        self.directory.mkdir(parents=True, exist_ok=True)
        config = CONFIG.format(port=self.port)
        if "rabbitmq_management" in self.plugins:
            self.http_port = self.http_port or free_ports(1)[0]
            config += f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self.http_port}\n"
        (self.directory / "rabbitmq.conf").write_text(config)
        (self.directory / "enabled_plugins").write_text(f"[{','.join(self.plugins)}].\n")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")} | {
            "HOME": str(self.directory),
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "peer@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(dist),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(self.directory / "pid"),
        }
        self.process = subprocess.Popen(
            [SERVER], env=self.environment, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not (self._ready.wait(SECONDS) and self.process.poll() is None):
            self.stop()
            raise AssertionError("RabbitMQ did not start\n" + "\n".join(self.lines))
        return self

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip())
            if READY.search(self.lines[-1]):
                self._ready.set()
        self._ready.set()

    def control(self, *arguments):
        """rabbitmqctl: what it says."""
        done = subprocess.run(
            [SERVER.with_name("rabbitmqctl"), "-n", "peer@localhost", *arguments], env=self.environment,
            capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stop(self):
        """End it, with all that it started."""
        if self.process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(30)
                break
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self._reader.join(5)
        self.process.stdout.close()
        self.process = None
        if shutil.which("epmd"):
            subprocess.run(["epmd", "-port", str(self._mapper), "-kill"], env=self.environment, capture_output=True)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()


# Set, tests are held against another broker: "rabbitmq" (Debian's, started for the purpose) or HOST:PORT of one
# that runs and lets guest in.
OTHER = os.environ.get("BROKERD_TEST_PEER", "")


@contextlib.contextmanager
def either(directory):
    """A brokerd of one's own on ``directory``, or the other broker: something with a ``port``."""
    if OTHER == "rabbitmq":
        if not installed():
            pytest.exit("Debian's package rabbitmq-server is not installed (or set BROKERD_TEST_PEER=HOST:PORT)", 2)
        with RabbitMQ(directory) as other:
            yield other
    elif OTHER:
        yield SimpleNamespace(port=int(OTHER.rpartition(":")[2]))
    else:
        with Broker(directory) as broker:
            yield broker
        broker.check_log()


__all__ = ["OTHER", "RabbitMQ", "either", "installed"]

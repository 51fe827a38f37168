"""The brokers to measure, and brokerperf, which measures them.

A `Broker` is started here, in a data directory of its own; a `Target` is any broker that is up.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from brokerd import local_socket
from brokerd.cli import ctl_client
from brokerd.cli.perfclient import Address, Client, PerfError

SOURCES = Path(__file__).resolve().parent.parent / "src"
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{SOURCES}:{os.environ.get('PYTHONPATH', '')}"}
BROKERD = f"{shlex.quote(sys.executable)} -m brokerd -D {{dir}} -p {{port}}"
POLL_SECONDS = 0.001


@contextlib.contextmanager
def processors_awake() -> Iterator[None]:
    """Keep all processors busy with processes that give way to every other process at once (SCHED_IDLE)."""
    spin = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


class Target(NamedTuple):
    """A broker on this host; `scale` multiplies message counts: below 1 for a slower broker."""

    name: str
    port: int
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "Target":
        """NAME=PORT or NAME=PORT:SCALE."""
        name, _, rest = text.partition("=")
        port, _, scale = rest.partition(":")
        if not name or not port.isdecimal():
            raise ValueError(f"{text!r} is not NAME=PORT or NAME=PORT:SCALE")
        return cls(name, int(port), float(scale or 1))

    def address(self) -> Address:
        """The URI of the broker, with the user guest."""
        return Address("127.0.0.1", self.port, "guest", "guest", "/")

    def perf(self, arguments: str, uri: str = "") -> dict[str, Any]:
        """Run a brokerperf command; its figures, or {"error": why not}.

        uri: where, with further options; the plain port if empty.
        """
        command = [sys.executable, "-m", "brokerd.cli.brokerperf", *shlex.split(arguments), "--json", "-q",
                   "--uri", *shlex.split(uri or f"amqp://127.0.0.1:{self.port}/")]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
        try:
            figures: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            figures = {}
        if done.returncode:
            figures["error"] = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        return figures

    def queue_length(self, queue: str) -> int | None:
        """Messages ready in a durable queue; None while the broker does not answer or does not know it."""
        try:
            client = Client(self.address())
        except PerfError:
            return None
        try:
            return client.declare_queue(queue, passive=True)
        except PerfError:
            return None
        finally:
            client.drop()


class Wire(Client):
    """A client that sends octets as they are."""

    __slots__ = ()

    def send(self, octets: bytes) -> None:
        """Send the octets, and wait for nothing."""
        self._send(octets)

    def ask(self, index: tuple[int, int], arguments: bytes = b"") -> None:
        """Send a method, and wait for its answer."""
        self.request(index, arguments, (index[0], index[1] + 1))

    def wait_for(self, index: tuple[int, int]) -> bytes:
        """Read frames up to the method; its arguments."""
        return self._answer(index)

    def count(self, what: bytes, times: int) -> None:
        """Read until the octets ``what`` came so many times.  After this the client may only be dropped."""
        rest = b""
        while times > 0:
            came = self._socket.recv(1 << 20)
            if not came:
                raise PerfError("the connection is gone")
            octets = rest + came
            times -= octets.count(what)
            rest = octets[-len(what) + 1:]

    def discard(self) -> None:
        """Read what is there, and forget it.  After this the client may only be dropped."""
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(1 << 20):
                pass
        self._socket.setblocking(True)


class Broker:
    """A broker process with a data directory that lives as long as this object does.

    command: a shell-like line; {dir} and {port} stand for the directory and the port.
    """

    def __init__(self, command: str = BROKERD, name: str = "brokerd", port: int = 0,
                 data_root: str = "/var/tmp") -> None:
        self._command = command
        self.directory = Path(tempfile.mkdtemp(prefix="bench-", dir=data_root))
        self.target = Target(name, port or free_port())
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Broker":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process started."""
        assert self._process is not None
        return self._process.pid

    def _let_prepare(self) -> None:
        """Wait until the broker has imported what requests of operators need: a quarter of a second of CPU time, in a
        thread of its own, which would stand in the figures of what comes first."""
        data = self.directory / "data"
        if (data / local_socket.NAME).exists():
            with ctl_client.Client(str(data)) as control:
                control.ask("status", {})

    def start(self, patience: float = 120) -> float:
        """Start it; return the seconds from exec to the first client's login.  RuntimeError if it does not start."""
        line = self._command.format(dir=self.directory / "data", port=self.target.port)
        log = self.directory / "log"
        began = time.monotonic()
        with log.open("ab") as output:
            self._process = subprocess.Popen(shlex.split(line), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                             env=ENVIRONMENT)
        while time.monotonic() - began < patience and self._process.poll() is None:
            try:
                Client(self.target.address()).drop()
                took = time.monotonic() - began
                self._let_prepare()
                return took
            except PerfError:
                time.sleep(POLL_SECONDS)
        raise RuntimeError(f"{line} did not come up: {log.read_text(errors='replace')[-600:]}")

    def stop(self, number: int = signal.SIGTERM, patience: float = 60) -> float:
        """Send it a signal, wait for its end, and return the seconds.  Kills a broker that does not end."""
        began = time.monotonic()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        return time.monotonic() - began

    def close(self) -> None:
        """Stop it and delete its data."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def tls_options(folder: Path) -> str:
    """The options of a broker with TLS, with a certificate made in the folder; "" where there is no openssl command."""
    if shutil.which("openssl") is None:
        return ""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", "/CN=benchmark", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    return f"--cert {certificate} --key {key}"


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])

"""Starts the keeper's process, and holds what leads to it: the socket and the file of its log.

A keeper imports all that a broker needs before it is told which broker to keep.  These imports take most of a start.
``prepare`` begins one before anybody asks for a broker, so that they go on beside other work, such as pytest's
collection of the tests.  Knows nothing of what is said to a keeper.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

STARTER = "import sys, json; given = json.loads(sys.argv[1]); sys.path[:] = given['path']; " \
    "from brokerd.testing.keeper import main; main(given)"  # fmt: skip
END_SECONDS = 120.0  # for one to end by itself


class KeeperProcess:
    """A keeper that waits for its first line.  It ends when ``socket`` is shut down or this process ends."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - it has no name, and lives as long as the keeper
        self.socket, theirs = socket.socketpair()
        self.owner = os.getpid()  # Its forks do not end the keeper.
        given = {"path": _import_path(), "parent": self.owner, "socket": theirs.fileno()}
        flags = ["-ISP", *(["-B"] if sys.dont_write_bytecode else [])]
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, *flags, "-c", STARTER, json.dumps(given)], pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True,
                )  # fmt: skip
        except BaseException:
            self.socket.close()
            self.log.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def is_ready(self) -> bool:
        """Whether this process started it, and it has not ended."""
        return self.owner == os.getpid() and self.process.poll() is None

    def log_text(self) -> str:
        """The whole log of it and its brokers."""
        fd = self.log.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")

    def end(self) -> None:
        """Have it end, and wait for that.  In a fork of the process that started it: only close what leads to it."""
        if self.owner == os.getpid():
            try:
                self.socket.shutdown(socket.SHUT_WR)  # The keeper sees it, removes everything, and ends.
                while self.socket.recv(1 << 16):
                    pass
            except OSError:
                pass
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.socket.close()


_prepared: list[KeeperProcess] = []  # one at most


def prepare() -> None:
    """Begin to make a keeper, so that the next ``Broker.start()`` of this process waits for less.  Raises OSError."""
    if not _prepared:
        _prepared.append(KeeperProcess())


def take() -> KeeperProcess:
    """The keeper that ``prepare`` began; or a new one.  Raises OSError."""
    while _prepared:
        keeper = _prepared.pop()
        if keeper.is_ready:
            return keeper
        keeper.end()
        keeper.log.close()
    return KeeperProcess()


def discard() -> bool:
    """End the keeper that ``prepare`` began, if no test took it.  Returns whether there was one."""
    if not _prepared:
        return False
    keeper = _prepared.pop()
    keeper.end()
    keeper.log.close()
    return True


def _import_path() -> list[str]:
    """Where the child finds what this process finds: the folder of this brokerd, and that of everything else."""
    own = str(Path(__file__).resolve().parent.parent.parent)
    path = [os.path.abspath(each) for each in sys.path]
    return path if own in path else [own, *path]

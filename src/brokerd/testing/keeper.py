"""The process between your test and its broker: it holds the port and the data, and starts the broker by a fork.

    your process  ⇄  keeper  ⇄  broker              two sockets, one JSON object a line each way

A fork of a process that has imported everything already starts in some milliseconds, so a crash costs a test next to
nothing.  Each process sees the end of the one before it, also after kill -9: the keeper then kills the broker and
removes the data.  If the keeper is killed, the broker removes the data; if both are killed at once, the next keeper
does, which finds the folder and no lock on it.  The keeper is in a session of its own, so
that Ctrl-C does not reach it before the tests have ended.

``python -m`` cannot start this module: ``keeper_process.py`` says how it does.
"""

import contextlib
import fcntl
import gc
import os
import select
import signal
import socket
import sys
import time
from json import dumps, loads
from typing import Any

PREFIX = "brokerd-testing-"  # of folders
ORPHAN_SECONDS = 60.0  # A younger folder may be one whose keeper is about to lock it.
KEPT = ("crash", "kill", "start", "power_cut", "stop")


class ParentIsGone(BaseException):
    """The process that this one would serve is gone."""


class BrokerIsGone(Exception):
    """The broker has ended without being asked to."""


class Keeper:
    """One broker after the other, on one port and one folder."""

    def __init__(self, parent: socket.socket, parent_fd: int, given: dict[str, Any]) -> None:
        """``given``: ``temporary`` (a folder), ``order_journal`` and ``options`` (of brokerd)."""
        self.parent, self.parent_fd = parent, parent_fd
        self.given = given
        self.ahead_ns = 0
        self.power_cuts = 0
        self.pid = 0  # of the broker; 0: no broker runs
        self.broker: socket.socket | None = None
        options = given["options"]
        self.held = socket.socket(socket.AF_INET6 if ":" in options["bind"] else socket.AF_INET)
        self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.held.bind((options["bind"], options["amqp_port"]))
        # As long as this socket is open, no other process gets the port, also not between a crash and the next start.
        self.port: int = self.held.getsockname()[1]
        self.folder = os.path.join(given["temporary"], f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}")
        self.data = os.path.join(self.folder, "data")
        os.mkdir(self.folder, 0o700)
        self.lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        _is_locked_now(self.lock)
        os.mkdir(self.data, 0o700)

    # --- the broker

    def start(self) -> None:
        """Start the broker, and return when it listens.  Raises BrokerIsGone, ParentIsGone."""
        ours, theirs = socket.socketpair()
        given = {
            "folder": self.folder, "ahead_ns": self.ahead_ns, "boot": f"testing-{self.power_cuts}",
            "order_journal": self.given["order_journal"],
            "options": self.given["options"] | {"data_dir": self.data, "amqp_port": self.port},
        }  # fmt: skip
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            self.parent.close()
            self.held.close()
            if self.parent_fd >= 0:
                os.close(self.parent_fd)
            _be_the_broker(given, theirs)
        theirs.close()
        self.broker = ours
        self._hear()

    def kill(self) -> None:
        """kill -9, if a broker is there."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._bury()

    def _bury(self) -> None:
        if self.pid:
            os.waitpid(self.pid, 0)
            self.pid = 0
        if self.broker is not None:
            self.broker.close()
            self.broker = None

    def _hear(self) -> dict[str, Any]:
        """The broker's next line.  Raises BrokerIsGone, ParentIsGone."""
        line = b""
        assert self.broker is not None
        while not line.endswith(b"\n"):
            self._wait(self.broker.fileno())
            try:
                octets = self.broker.recv(1 << 16)
            except ConnectionResetError:
                octets = b""
            if not octets:
                self._bury()
                raise BrokerIsGone
            line += octets
        answer: dict[str, Any] = loads(line)
        return answer

    def _wait(self, fd: int) -> None:
        """Return when ``fd`` can be read.  Raises ParentIsGone."""
        poll = select.poll()
        parent = self.parent.fileno()
        for each in {fd, parent, self.parent_fd} - {-1}:
            poll.register(each, select.POLLIN)
        while True:
            ready = {each for each, _ in poll.poll()}
            if self.parent_fd in ready or (parent in ready and fd != parent and not self._is_parent_there()):
                raise ParentIsGone
            if fd in ready:
                return

    def _is_parent_there(self) -> bool:
        try:
            return self.parent.recv(1, socket.MSG_PEEK) != b""
        except ConnectionResetError:
            return False

    # --- the verbs

    def serve(self) -> None:
        """Do what the parent asks for until it is gone."""
        try:
            self._answer(self._perform({"verb": "start"}))
            _remove_orphans(self.given["temporary"])
            buffer = b""
            while True:
                self._wait(self.parent.fileno())
                octets = self.parent.recv(1 << 16)
                if not octets:
                    return
                buffer += octets
                while b"\n" in buffer:
                    line, _, buffer = buffer.partition(b"\n")
                    self._answer(self._perform(loads(line)))
        except (ParentIsGone, ConnectionError):
            pass
        finally:
            self._leave_no_trace()

    def _answer(self, answer: dict[str, Any]) -> None:
        self.parent.sendall(dumps(answer).encode() + b"\n")

    def _perform(self, command: dict[str, Any]) -> dict[str, Any]:
        verb, number = command["verb"], command.pop("id", 0)
        try:
            if verb in KEPT:
                answer = getattr(self, f"_{verb}")(**{name: value for name, value in command.items() if name != "verb"})
            else:
                answer = self._ask(command)
        except BrokerIsGone:
            answer = {"error": "the broker has ended", "log": True}
        except OSError as error:
            answer = {"error": str(error), "log": True}
        self.ahead_ns = answer.get("ahead_ns", self.ahead_ns)
        return answer | {"id": number, "port": self.port, "pid": self.pid, "folder": self.folder}

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        if self.broker is None:
            return {"error": "the broker is down"}
        try:
            self.broker.sendall(dumps(command).encode() + b"\n")
        except ConnectionError:
            self._bury()
            raise BrokerIsGone from None
        return self._hear()

    def _start(self) -> dict[str, Any]:
        if not self.pid:
            self.start()
        return {}

    def _kill(self) -> dict[str, Any]:
        self.kill()
        return {}

    def _crash(self) -> dict[str, Any]:
        self.kill()
        return self._start()

    def _power_cut(self, seed: int | None) -> dict[str, Any]:
        target = os.path.join(self.folder, "found")
        try:
            answer = self._ask({"verb": "lose_power", "target": target, "seed": seed})
        except BrokerIsGone:
            if not os.path.isdir(target):
                raise
        else:  # It refused, or could not write what it found.
            _remove(target)
            return answer
        _remove(self.data)
        os.rename(target, self.data)
        self.power_cuts += 1
        return self._start()

    def _stop(self) -> dict[str, Any]:
        self._leave_no_trace()
        return {}

    def _leave_no_trace(self) -> None:
        self.kill()
        _remove(self.folder)


def _be_the_broker(given: dict[str, Any], commands: socket.socket) -> None:
    """In the child of the fork.  Does not return."""
    status = 1
    try:
        from brokerd.testing import server

        status = server.run(given, commands)
    except Exception as error:
        sys.stderr.write(f"brokerd: {error}\n")
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] != "brokerd":
            import traceback

            traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _remove(folder: str) -> None:
    from shutil import rmtree  # Not before the end: the start does without it.

    rmtree(folder, ignore_errors=True)


def _is_locked_now(fd: int) -> bool:
    """Lock a folder until all of its descriptors like this one are closed; False: it is locked, or cannot be."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_orphans(temporary: str) -> None:
    """Remove the folders of this user's keepers that were killed together with their brokers."""
    with os.scandir(temporary) as entries:
        found = [entry for entry in entries if entry.name.startswith(PREFIX)]
    for entry in found:
        try:
            figures = entry.stat(follow_symlinks=False)
            if figures.st_uid != os.getuid() or time.time() - figures.st_mtime < ORPHAN_SECONDS:
                continue
            fd = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        if _is_locked_now(fd):
            _remove(entry.path)
        os.close(fd)


def _open_process(pid: int) -> int:
    """A descriptor that can be read when the process has ended; -1: the kernel has none, or it has ended already."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def main(given: dict[str, Any]) -> None:
    """Keep a broker until the parent ends.  ``given``: ``parent`` (pid) and ``socket`` (descriptor)."""
    gc.disable()  # As in ``brokerd``: what a start makes stays.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    import brokerd.testing.server  # noqa: F401 - here, so that each fork has it, and before anybody waits for a broker

    parent, parent_fd = socket.socket(fileno=given["socket"]), _open_process(given["parent"])
    if (asked := _hear_of_broker(parent, parent_fd)) is None:
        return
    try:
        keeper = Keeper(parent, parent_fd, asked)
    except OSError as error:
        parent.sendall(dumps({"error": str(error)}).encode() + b"\n")
        return
    gc.freeze()
    keeper.serve()
    os._exit(0)  # There is nothing left that Python should take apart.


def _hear_of_broker(parent: socket.socket, parent_fd: int) -> dict[str, Any] | None:
    """The parent's first line, which says what broker it wants; None: the parent has ended, or wants none after all."""
    poll = select.poll()
    for each in {parent.fileno(), parent_fd} - {-1}:
        poll.register(each, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        if parent_fd in {each for each, _ in poll.poll()}:
            return None
        octets = parent.recv(1 << 16)
        if not octets:
            return None
        line += octets
    asked: dict[str, Any] = loads(line)
    return asked

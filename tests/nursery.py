"""Broker processes that begin as a fork of one which has imported everything: most of a start's time is imports.

    the tests' process ─┬─ the nursery      imports what a start imports, and forks when it is asked to
                        └─ brokers          its forks, but children of the tests' process, as if that had started them

A fork is told its arguments and its environment, has standard error (and output) from the one who asked and nothing
else open, and runs ``main()`` of ``brokerd.__main__`` to its end; a test may name statements to run before that.  What
the tests' process changes about itself, and children inherit (limits, umask, nice), needs a new nursery.  What Python
or the C library read when they begin needs a real start: ``can_fork`` says so.
"""

import atexit
import ctypes
import gc
import json
import os
import platform
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OCTETS_MAX = 1 << 17  # of one request
READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "ASAN_", "UBSAN_", "LC_", "LANG", "TZ", "BROKERD_ASSERTS")
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine(), 0)  # the number of the system call
CLONE_PARENT = 0x8000
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class Forked:
    """A broker of the nursery: the part of subprocess.Popen that tests use.  ``stderr`` may be None."""

    def __init__(self, pid, stderr=None):
        self.pid, self.stderr = pid, stderr
        self.returncode = None
        self._lock = threading.Lock()

    def poll(self):
        """Its exit status; None: it runs."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout=None):
        """Its exit status, once it has ended."""
        if self.poll() is None:
            fd = os.pidfd_open(self.pid)
            try:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                if not poll.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired("brokerd", timeout)
            finally:
                os.close(fd)
        return self.poll()

    def send_signal(self, number):
        """Without effect on one that has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        """Send TERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self):
        """Send KILL."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks, as the tests' process sees it."""

    def __init__(self, env):
        self.env, self.owner, self.inherited = env, os.getpid(), _inherited()
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.nursery", str(theirs.fileno())], env=env, cwd=ROOT,
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )

    def suits(self):
        """Whether its forks inherit what children of this process would."""
        return self.owner == os.getpid() and self.inherited == _inherited()

    def fork(self, arguments, env, first, stderr, stdout=None):
        """The process number of a broker with these descriptors; without ``stdout`` it has no output."""
        files = [stderr] if stdout is None else [stderr, stdout]
        with self._lock:
            socket.send_fds(self._socket, [json.dumps([arguments, env, first]).encode()], files)
            answer = self._socket.recv(64)
        assert answer, f"the nursery has ended with status {self._process.wait()}"
        return int(answer)

    def end(self):
        """End the process; its brokers stay."""
        self._socket.close()
        if self.owner == os.getpid():
            self._process.wait()


_nurseries = []  # one at most


def can_fork(env):
    """Whether a fork would be the same as a start with this environment."""
    return bool(CLONE) and (not _nurseries or _read_at_start(env) == _read_at_start(_nurseries[0].env))


def fork(arguments, env, first=""):
    """A broker with these arguments, as ``subprocess.Popen`` would start it.  ``first``: statements it runs before."""
    ours, theirs = os.pipe()
    try:
        return Forked(_nursery(env).fork(arguments, env, first, theirs), os.fdopen(ours, "rb"))
    finally:
        os.close(theirs)


def run(arguments, env, timeout):
    """A broker with these arguments to its end, as ``subprocess.run``: (status, standard output, standard error)."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = Forked(_nursery(env).fork(arguments, env, "", stderr.fileno(), stdout.fileno()))
        try:
            status = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        stdout.seek(0)
        stderr.seek(0)
        return status, stdout.read().decode(), stderr.read().decode()


def _nursery(env):
    if _nurseries and not _nurseries[0].suits():
        _nurseries.pop().end()
    if not _nurseries:
        _nurseries.append(Nursery(env))
    return _nurseries[0]


@atexit.register
def _end():
    while _nurseries:
        _nurseries.pop().end()


def _read_at_start(env):
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START)}


def _inherited():
    status = Path("/proc/self/status").read_text().splitlines()
    return ([line for line in status if line.startswith(("Umask", "SigBlk", "SigIgn", "Cpus_allowed:"))],
            os.nice(0), os.getpgrp(), [resource.getrlimit(limit) for limit in LIMITS])


# --- the nursery's process


def _main(fd):
    """Fork for as long as the socket is open.  A fork leaves by SystemExit, as every program does."""
    import brokerd.__main__
    import brokerd.cli.brokerd
    import brokerd.server.launch
    from brokerd.config import load
    from brokerd.operations.table import prepare

    load(None, {"BROKERD_HTTP_PORT": "0"}, {})
    prepare()
    asked = socket.socket(fileno=fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the tests.
    gc.disable()
    while True:
        octets, fds, _, _ = socket.recv_fds(asked, OCTETS_MAX, 2)
        if not octets:
            return
        pid = _fork_for_parent()
        if pid == 0:
            asked.close()
            _begin(*json.loads(octets), fds)
            brokerd.__main__.main()
            return
        for fd in fds:
            os.close(fd)
        asked.send(str(pid).encode())


def _fork_for_parent():
    """As os.fork(), but the new process is a child of this one's parent, which waits for it."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = python.syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    assert pid >= 0
    return pid


def _begin(arguments, env, first, fds):
    for fd, number in zip(fds, (2, 1), strict=False):
        os.dup2(fd, number)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:] = [str(ROOT / "src" / "brokerd" / "__main__.py"), *arguments]
    exec(first, {"__name__": "first"})


if __name__ == "__main__":
    _main(int(sys.argv[1]))

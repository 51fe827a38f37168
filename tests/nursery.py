"""Broker processes that begin as a fork of one which has imported everything: most of a start's time is imports.

    the tests' process ─┬─ the nursery      imports what a start imports, and forks when it is asked to
                        └─ brokers          its forks, but children of the tests' process, as if that had started them

A fork is told its arguments and its environment, has standard error (and output) from the one who asked and nothing
else open, and runs ``main()`` of ``brokerd.__main__`` to its end; a test may name statements to run before that.  The
processes that such a broker starts beside itself, of management and of links, are forks of the broker, for the same
reason.  What the tests' process changes about itself, and children inherit (limits, umask, nice), needs a new nursery.
What Python or the C library read when they begin needs a real start: ``can_fork`` says so.
"""

import atexit
import contextlib
import ctypes
import gc
import json
import logging
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
_posix_spawn, _SOURCE_OF_LOGGING = os.posix_spawn, logging._srcfile
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
    gc.freeze()  # Else each process beside a broker would look through all of this once, which takes 50 ms.
    asked = socket.socket(fileno=fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the tests.
    gc.disable()
    while True:
        octets, fds, _, _ = socket.recv_fds(asked, OCTETS_MAX, 2)
        if not octets:
            return
        arguments, env, first = json.loads(octets)
        _import_management(arguments, env)
        pid = _fork_for_parent()
        if pid == 0:
            asked.close()
            _begin(arguments, env, first, fds)
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
    os.posix_spawn = _spawn
    exec(first, {"__name__": "first"})


# --- the processes beside a broker


def _import_management(arguments, env):
    """Import what the process of management does, once a broker asks for that process."""
    asked = "--http-port" in arguments or env["BROKERD_HTTP_PORT"] != "0"
    if asked and "brokerd.management.table" not in sys.modules:
        import uvicorn.config
        import uvicorn.server  # noqa: F401
        import uvloop  # noqa: F401

        import brokerd.management.main
        import brokerd.management.table  # noqa: F401

        gc.freeze()


def _spawn(program, command, env, *, file_actions, **more):
    """``os.posix_spawn`` in a broker: the processes beside it are forks of it, all others begin as they do."""
    if command[1:4] != ["-P", "-m", "brokerd"] or _read_at_start(env) != _read_at_start(os.environ):
        return _posix_spawn(program, command, env, file_actions=file_actions, **more)
    files_of_broker = set(_open_files().values())
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _begin_beside(command, file_actions, files_of_broker)
        sys.modules["brokerd.__main__"].main()
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)  # What the broker has to do at its end is none of this process's business.


def _open_files():
    """What each descriptor is."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(FileNotFoundError):  # that of the folder itself
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def _begin_beside(command, file_actions, files_of_broker):
    """Have what a new Python has: no signal handler, none of the broker's files, nothing in the log's place.

    What libuv has opened since the fork stays: it does so once in a process."""
    signal.set_wakeup_fd(-1)
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python begins
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for action, fd, number in file_actions:
        assert action == os.POSIX_SPAWN_DUP2
        os.dup2(fd, number)
    for fd, file in _open_files().items():
        if fd > 2 and file in files_of_broker:
            os.close(fd)
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    logging.setLogRecordFactory(logging.LogRecord)
    logging._srcfile = _SOURCE_OF_LOGGING
    sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
    gc.callbacks.clear()
    gc.disable()
    gc.freeze()
    sys.argv[1:] = command[4:]
    Path("/proc/self/comm").write_text(command[-1])  # Tests find it by this.


if __name__ == "__main__":
    _main(int(sys.argv[1]))

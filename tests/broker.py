"""A real broker process for tests: started on a free loopback port, stopped by its pid, its log collected.

    with Broker(tmp_path) as broker:
        pika.BlockingConnection(pika.ConnectionParameters(port=broker.port))

Waits for events (a line in the log, the end of the process), never for time to pass.  A traceback in
the log, a crash or a stop with another status than 0 fails the test that owns the broker.
"""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path

from tests import nursery

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 120  # limit of every wait: none is reached while all is well
# Runs a test's statements in a broker's process before the program begins.
AFTER = "\nimport sys\nfrom brokerd.__main__ import main\nsys.argv[0] = 'brokerd'\nmain()\n"
LISTENING = re.compile(r"listening on .*:(\d+) \(AMQP\)")
FAULTS = ("Traceback (most recent call last)", "internal error", "Fatal Python error", "Assertion", "AddressSanitizer")


def environment(extra=None):
    """The environment of a broker: this one without its BROKERD_ variables, and with the sources in the path.

    Those of make are left out too: a make under a make tells of the folders that it enters.
    A broker may write its bytecode: else each of the thousand that the tests start would compile all its sources.
    """
    env = {name: value for name, value in os.environ.items()
           if name == "BROKERD_ASSERTS" or not name.startswith(("BROKERD_", "MAKE", "MFLAGS"))}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env["BROKERD_HTTP_PORT"] = "0"  # Many brokers run at a time, and few tests want the process beside them.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), env.get("PYTHONPATH")]))
    return env | (extra or {})


def run(*flags, env=None, timeout=SECONDS):
    """A brokerd that is expected to end by itself: (status, standard output, standard error)."""
    arguments, env = list(map(str, flags)), environment(env)
    if Broker.may_fork and nursery.can_fork(env):
        return nursery.run(arguments, env, timeout)
    done = subprocess.run([sys.executable, "-m", "brokerd", *arguments], env=env, cwd=ROOT, capture_output=True,
                          text=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr


def reserved_port():
    """A free port of 127.0.0.1, and the descriptor of a socket that is bound to it without listening.

    As long as that is open the kernel gives the port to no other process that asks for any, also not between a kill
    and the next start; a broker that names the port gets it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held.getsockname()[1], held.detach()


def readable(file, seconds=SECONDS):
    """Whether there is something to read, from now to so many seconds on.  select() takes no descriptor above 1,023."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


class Broker:
    """One broker on one data directory, from ``start`` to ``stop`` or ``kill``, as often as wanted.

    ``port`` is kept over all starts.  ``lines`` are the log of all starts.  ``env`` and ``flags`` may be changed
    between starts.  ``before``: a command that starts the broker.  ``first``: Python statements that its process runs
    before the program: they may replace what the broker would call.
    """

    may_fork = True  # from the nursery; False: each start is one of a new Python

    def __init__(self, directory, *flags, env=None, before=(), first=""):
        self.directory = Path(directory)
        self.before, self.first = list(before), first
        self.flags = list(flags)
        self.env = dict(env or {})
        self.port, held = reserved_port()
        weakref.finalize(self, os.close, held)
        self.process = None
        self.lines = []
        self._changed = threading.Condition()
        self._reader = None

    # --- life

    def start(self):
        """Start, and return when it listens.  Raises AssertionError with the log when it does not."""
        assert self.process is None, "is running already"
        begin = len(self.lines)
        arguments = ["-D", str(self.directory), "-p", str(self.port), *map(str, self.flags)]
        env = environment(self.env)
        if not self.before and self.may_fork and nursery.can_fork(env):
            self.process = nursery.fork(arguments, env, self.first)
        else:
            program = ["-c", self.first + AFTER] if self.first else ["-m", "brokerd"]
            self.process = subprocess.Popen(
                [*self.before, sys.executable, *program, *arguments], env=env, cwd=ROOT,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()
        try:
            self.port = int(LISTENING.search(self.wait_for_log(LISTENING.pattern, begin)).group(1))
        except BaseException:
            self._end(signal.SIGKILL)
            raise
        return self

    @property
    def pid(self):
        return self.process.pid

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    def stop(self, number=signal.SIGTERM):
        """Stop gracefully; fails when that is not what happened."""
        if self.process is None:
            return
        status = self._end(number)
        assert status == 0, f"exit status {status}\n{self.log_text()}"
        self.check_log()

    def kill(self):
        """kill -9."""
        if self.process is not None:
            self._end(signal.SIGKILL)

    def restart(self, *, kill=False):
        """Stop (or kill -9) and start again on the same port and directory."""
        if kill:
            self.kill()
        else:
            self.stop()
        return self.start()

    def wait(self):
        """The exit status of a broker that ends by itself."""
        return self._end(None)

    def _end(self, number):
        process = self.process
        if number is not None and process.poll() is None:
            os.kill(process.pid, number)
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(f"brokerd did not end\n{self.log_text()}") from None
        finally:
            self._reader.join()
            process.stderr.close()
            self.process = None
        return status

    # --- log

    def _read(self, process):
        for line in process.stderr:
            with self._changed:
                self.lines.append(line.decode(errors="replace").rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def log_text(self):
        """All that the broker has logged so far, over all its starts."""
        with self._changed:
            return "\n".join(self.lines)

    def wait_for_log(self, pattern, begin=0, timeout=SECONDS):
        """The first line from number ``begin`` on in which ``pattern`` is found, once it is there."""
        wanted = re.compile(pattern)
        seen = begin

        def found():
            nonlocal seen
            for line in self.lines[seen:]:
                if wanted.search(line):
                    return line
            seen = len(self.lines)
            return not self._reader.is_alive() or None

        with self._changed:
            line = self._changed.wait_for(found, timeout)
        if line is True:  # It has ended; the line may have been its last.
            line = next(filter(wanted.search, self.lines[begin:]), None)
        assert line, f"no {pattern!r} in the log:\n{self.log_text()}"
        return line

    def check_log(self):
        """Fail if the broker met a fault of its own."""
        text = self.log_text()
        for fault in FAULTS:
            assert fault not in text, text

    # --- the process as the kernel sees it

    def anonymous_octets(self):
        """RssAnon of the broker."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", status).group(1)) * 1024

    def open_files(self):
        """What each open descriptor is, as far as it can still be seen."""
        names = []
        for entry in os.scandir(f"/proc/{self.pid}/fd"):
            try:
                names.append(os.readlink(entry.path))
            except FileNotFoundError:
                pass
        return names

    def mapped_files(self):
        """Names of all files that are mapped."""
        maps = Path(f"/proc/{self.pid}/maps").read_text()
        return [line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6]

    def __enter__(self):
        return self.start() if self.process is None else self

    def __exit__(self, kind, error, trace):
        if self.process is None:
            if kind is None:
                self.check_log()
            return
        if kind is None:
            ended = self.process.poll()
            if ended is not None:
                self.kill()  # Its pipe is closed here, not in some later test.
                raise AssertionError(f"brokerd ended with status {ended}\n{self.log_text()}")
            self.stop()
        else:
            self.kill()

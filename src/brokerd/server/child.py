"""A process that the broker starts beside itself, keeps alive, and ends: the management process, the links' process.

The process gets its settings as a line of JSON on its standard input, which stays open: when the broker ends, however
it ends, the process reads the end of it and ends too.  Later lines tell it what has changed.  On its standard output it
writes a JSON object a line: {"log": [level, text]} goes to the broker's log, {"failed": text} says why it ends, and the
owner of the process reads all other lines.

A process that ends is started again, after a second at first, and after at most a minute if that happens again and
again.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

log = logging.getLogger("brokerd")

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 1.0, 60.0
STEADY_SECONDS = 30.0  # a process that lived so long starts with the first pause again
END_SECONDS = 3.0
LINE_OCTETS_MAX = 64 << 10
INPUT_OCTETS_MAX = 64 << 20  # that the process has not read: it hangs
RESET_SIGNALS = (signal.SIGUSR2, signal.SIGPIPE)  # the broker, or Python, ignores them


class Child:
    """The process, from ``start`` to ``stop``.

    ``name`` is the word behind ``brokerd``, and stands before its lines in the log.  ``settings()``: its first line.
    ``on_said(object)`` gets what it says.  ``without``: what is missing while it has failed, for the log.
    """

    __slots__ = ("_buffer", "_ended", "_input", "_loop", "_on_said", "_output", "_pause", "_said", "_settings",
                 "_started", "_stopping", "_timer", "_unwritten", "_without", "name", "pid")  # fmt: skip

    def __init__(
        self, name: str, loop: asyncio.AbstractEventLoop, settings: Callable[[], dict[str, Any]],
        on_said: Callable[[dict[str, Any]], object], without: str,
    ) -> None:  # fmt: skip
        self.name = name
        self._loop = loop
        self._settings, self._on_said, self._without = settings, on_said, without
        self._buffer, self._unwritten = b"", bytearray()
        self._pause = FIRST_PAUSE_SECONDS
        self._said = ""  # the last failure that went to the log
        self._started = 0.0
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Event | None = None  # None: it does not run
        self._input = self._output = -1
        self.pid = 0

    def start(self) -> None:
        """Start the process.  A failure goes to the log, and is tried again later."""
        self._timer = None
        self._stopping = False
        try:
            self._spawn()
        except OSError as error:
            self._fail(f"{self.name}: cannot start the process: {error.strerror or error}")
            self._start_later()
            return
        self._started = self._loop.time()
        self._buffer = b""
        self._ended = asyncio.Event()
        self._loop.add_reader(self._output, self._on_output)
        self.tell(self._settings())

    def _spawn(self) -> None:
        theirs_in, self._input = os.pipe()
        self._output, theirs_out = os.pipe()
        try:
            os.set_blocking(self._output, False)
            os.set_blocking(self._input, False)  # A process that hangs must not hold up the broker.
            # -P: a module that lies in the folder where the broker was started is not the broker's.
            command = [sys.executable, "-P", "-m", "brokerd", self.name]
            self.pid = os.posix_spawn(
                sys.executable, command, os.environ, setsigdef=RESET_SIGNALS, setsigmask=(),
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs_in, 0), (os.POSIX_SPAWN_DUP2, theirs_out, 1)],
            )  # fmt: skip
        except BaseException:
            os.close(self._input)
            os.close(self._output)
            self._input = self._output = -1
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    # --- what the process is told

    def tell(self, table: dict[str, Any]) -> None:
        """Send a line; without effect while the process does not run."""
        if self._input < 0:
            return
        import json  # A broker without such a process does without it.

        waits = bool(self._unwritten)
        self._unwritten += json.dumps(table).encode() + b"\n"
        if len(self._unwritten) > INPUT_OCTETS_MAX:
            log.warning("%s: the process has stopped reading; the broker ends it", self.name)
            os.kill(self.pid, signal.SIGKILL)
        elif not waits:
            self._write()
            if self._unwritten:
                self._loop.add_writer(self._input, self._write)

    def _write(self) -> None:
        try:
            del self._unwritten[:os.write(self._input, self._unwritten[:LINE_OCTETS_MAX])]
        except BlockingIOError:
            return
        except OSError:
            self._unwritten.clear()  # It has gone: the end of its output tells that, too.
        if not self._unwritten:
            self._loop.remove_writer(self._input)

    # --- what the process says

    def _on_output(self) -> None:
        try:
            octets = os.read(self._output, LINE_OCTETS_MAX)
        except BlockingIOError:
            return
        if not octets:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._close_input()
            self._await_end()
            return
        *lines, self._buffer = (self._buffer + octets).split(b"\n")
        if len(self._buffer) > LINE_OCTETS_MAX:
            self._buffer = b""
        for line in lines:
            self._on_line(line)

    def _on_line(self, line: bytes) -> None:
        import json  # as in tell

        try:
            said: dict[str, Any] = json.loads(line)
            if "failed" in said:
                self._fail(f"{self.name}: {said['failed']}: {self._without} until that changes")
            elif "log" in said:
                level, text = said["log"]
                log.log(logging.getLevelNamesMapping()[level.upper()], "%s", text)
            else:
                self._said = ""
                self._on_said(said)
        except (ValueError, TypeError, KeyError):
            log.warning("%s: the process sent a line that the broker does not understand: %.200r", self.name, line)

    def _fail(self, text: str) -> None:
        if text != self._said:
            log.error("%s", text)
            self._said = text

    # --- its end

    def _close_input(self) -> None:
        """Tell the process that it is no longer wanted."""
        if self._input >= 0:
            self._loop.remove_writer(self._input)
            os.close(self._input)
            self._input = -1
        self._unwritten.clear()

    def _await_end(self) -> None:
        """It has closed its output: its end is a moment away."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = self.pid, 0
        if not pid:
            self._timer = self._loop.call_later(0.02, self._await_end)
            return
        assert self._ended is not None
        self._ended.set()
        self._ended = None
        self.pid = 0
        if self._stopping:
            return
        if self._loop.time() - self._started >= STEADY_SECONDS:
            self._pause = FIRST_PAUSE_SECONDS
        code = os.waitstatus_to_exitcode(status)
        if not (code == 1 and self._said):  # It has said why.
            how = f"by signal {-code}" if code < 0 else f"with status {code}"
            log.warning("%s: the process ended %s: it starts again in %g s", self.name, how, self._pause)
        self._start_later()

    def _start_later(self) -> None:
        self._timer = self._loop.call_later(self._pause, self.start)
        self._pause = min(2 * self._pause, LAST_PAUSE_SECONDS)

    async def stop(self) -> None:
        """End the process and wait for its end; one that does not end by itself is killed."""
        self._stopping = True
        if self._ended is None:
            if self._timer is not None:
                self._timer.cancel()
            return
        ended = self._ended
        self._close_input()
        try:
            await asyncio.wait_for(ended.wait(), END_SECONDS)
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            await ended.wait()

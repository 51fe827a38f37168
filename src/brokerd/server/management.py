"""The broker's side of the management process: starts it, keeps it alive, ends it.

The process gets its settings as a line on its standard input, which stays open: when the broker ends, however it ends,
the process reads the end of it and ends too.  On its standard output it says, a JSON object a line, that it listens,
that it cannot, or what is to be logged: see ``management/main``.

A process that ends is started again, after a second at first, and after at most a minute if that happens again and
again.  Nothing of HTTP is imported here, and the process is started after the broker listens for AMQP.
"""

import asyncio
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brokerd.config import Config

log = logging.getLogger("brokerd")

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 1.0, 60.0
STEADY_SECONDS = 30.0  # a process that lived so long starts with the first pause again
END_SECONDS = 3.0
LINE_OCTETS_MAX = 64 << 10
KEY_OCTETS = 32
RESET_SIGNALS = (signal.SIGUSR2, signal.SIGPIPE)  # the broker, or Python, ignores them


class Management:
    """The process, from ``start`` to ``stop``."""

    __slots__ = ("_buffer", "_config", "_ended", "_input", "_key", "_loop", "_output", "_pause", "_said", "_started",
                 "_stopping", "_timer", "data_dir", "pid")  # fmt: skip

    def __init__(self, config: "Config", loop: asyncio.AbstractEventLoop) -> None:
        self.data_dir = os.path.abspath(config.data_dir)
        self._config = config
        self._loop = loop
        self._key = os.urandom(KEY_OCTETS).hex()  # The same over all its starts: sessions outlive the process.
        self._buffer = b""
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
        try:
            self._spawn()
        except OSError as error:
            self._fail(f"management: cannot start the process: {error.strerror or error}")
            self._start_later()
            return
        self._started = self._loop.time()
        self._buffer = b""
        self._ended = asyncio.Event()
        self._loop.add_reader(self._output, self._on_output)

    def _spawn(self) -> None:
        import json  # A broker without HTTP does without it.

        settings = {"data_dir": self.data_dir, "key": self._key, **settings_of(self._config)}
        theirs_in, self._input = os.pipe()
        self._output, theirs_out = os.pipe()
        try:
            os.set_blocking(self._output, False)
            os.set_blocking(self._input, False)  # A process that hangs must not hold up the broker.
            os.write(self._input, json.dumps(settings).encode() + b"\n")
            # -P: a module that lies in the folder where the broker was started is not the broker's.
            command = [sys.executable, "-P", "-m", "brokerd", "management"]
            self.pid = os.posix_spawn(
                sys.executable, command, os.environ, setsigdef=RESET_SIGNALS, setsigmask=(),
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs_in, 0), (os.POSIX_SPAWN_DUP2, theirs_out, 1)],
            )  # fmt: skip
        except BaseException:
            os.close(self._input)
            os.close(self._output)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    def renew(self, config: "Config") -> None:
        """The files of TLS may have changed: the next connections have what they hold now."""
        self._config = config
        if self._input < 0:
            return
        import json  # as in _spawn

        try:
            os.write(self._input, json.dumps({"tls": tls_of(config)}).encode() + b"\n")
        except OSError as error:
            log.warning("management: cannot tell the process of new certificates: %s", error.strerror or error)

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
        import json  # as in _spawn

        try:
            said: dict[str, Any] = json.loads(line)
            if "listening" in said:
                self._said = ""
                for address, kind in said["listening"]:
                    log.info("listening on %s (%s)", address, kind)
            elif "failed" in said:
                self._fail(f"management: {said['failed']}: no HTTP until that changes")
            else:
                level, text = said["log"]
                log.log(logging.getLevelNamesMapping()[level.upper()], "%s", text)
        except (ValueError, TypeError, KeyError):
            log.warning("management: says what is not understood: %.200r", line)

    def _fail(self, text: str) -> None:
        if text != self._said:
            log.error("%s", text)
            self._said = text

    # --- its end

    def _close_input(self) -> None:
        """Tell the process that it is no longer wanted."""
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

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
            log.warning("management: the process ended %s: it starts again in %g s", how, self._pause)
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


def settings_of(config: "Config") -> dict[str, Any]:
    """Where the process listens, and what its TLS has."""
    return {
        "bind": config.http_bind or config.bind,
        "port": config.http_port,
        "https_port": config.https_port if config.tls_cert else 0,
        "unix_path": config.http_unix_path,
        "websocket_origins": config.websocket_origins,
        "tls": tls_of(config),
    }


def tls_of(config: "Config") -> dict[str, str]:
    """The options of TLS that browsers meet.  None of them asks for a client's certificate."""
    names = ("tls_cert", "tls_key", "tls_min_version", "tls_ciphers")
    return {name: getattr(config, name) for name in names}

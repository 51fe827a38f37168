"""Tells a service manager about the broker: systemd's protocol sd_notify(3), datagrams of lines NAME=value.

    READY=1         it listens; the start is over
    RELOADING=1     a reload begins; READY=1 ends it
    STOPPING=1      it stops
    WATCHDOG=1      the event loop is alive; each second if the manager asks for it (WATCHDOG_USEC)
    STATUS=...      one line for people

``NOTIFY_SOCKET`` names the manager's unix socket: a path, or @ and an abstract name.  Without it nothing is sent.  A
manager that does not listen, or is slow, neither stops the broker nor holds it up.
"""

import os
import socket
from collections.abc import Mapping
from logging import getLogger
from time import monotonic_ns

log = getLogger("brokerd")


class Notifier:
    """The way to the manager that the environment names."""

    __slots__ = ("_address", "_serves", "_socket", "_status", "_watched")

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._socket: socket.socket | None = None
        self._status = ""
        self._serves = False  # between READY and STOPPING
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        # A watchdog of another process, whose environment this one has, does not wait for this one.
        watched_pid = environ.get("WATCHDOG_PID") or str(os.getpid())
        self._watched = environ.get("WATCHDOG_USEC", "0") not in ("", "0") and watched_pid == str(os.getpid())
        if self._address.startswith(("/", "\0")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        elif path:
            log.warning("NOTIFY_SOCKET %s is neither a path nor an abstract name: no service manager is told", path)

    def ready(self, status: str) -> None:
        """The broker serves."""
        self._status = status
        self._serves = True
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """A reload begins.  The manager hears of it only between the end of the start and the begin of the stop."""
        if self._serves:
            self._send("RELOADING=1", f"MONOTONIC_USEC={monotonic_ns() // 1000}", "STATUS=reloading")

    def reloaded(self) -> None:
        """The reload is over, and may have failed."""
        if self._serves:
            self.ready(self._status)

    def stopping(self) -> None:
        """The broker stops."""
        self._serves = False
        self._send("STOPPING=1", "STATUS=stopping")

    def status(self, text: str) -> None:
        """The broker's state in one line; the manager is told of changes."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def alive(self) -> None:
        """The loop goes round."""
        if self._watched:
            self._send("WATCHDOG=1")

    def close(self) -> None:
        """Nothing more is sent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is None:
            return
        text = "\n".join(line.replace("\n", " ") for line in lines)
        try:
            self._socket.sendto(text.encode("utf-8", "backslashreplace"), self._address)
        except OSError as error:  # The manager does not listen, or is busy: it hears the next line.
            log.debug("the service manager was not told %s: %s", lines[0], error)

"""AMQP over TLS for the load generator: ``connect`` gives a plain socket whose octets go to the broker by TLS.

A thread for each connection moves the octets between that socket and the broker's.  So clients and compiled links need
not know of TLS.  The thread costs CPU and some microseconds of latency, which the figures of a run include.
"""

import select
import socket
import ssl
import threading
import time
from typing import NamedTuple

CHUNK = 128 << 10       # octets moved at a time, at most
LEAVE_SECONDS = 5       # what the closed plain socket left to send is given up after this long


class Tls(NamedTuple):
    """How to know the broker.

    ``ca``: a file of CAs (PEM), empty for the system's.  ``verify``: check the broker's certificate.
    """

    ca: str = ""
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """The settings for Python's TLS.  Raises OSError, also for a file that holds no certificate."""
        context = ssl.create_default_context(cafile=self.ca or None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def connect(broker: socket.socket, host: str, tls: Tls) -> socket.socket:
    """The plain end of a TLS connection over ``broker``, which this takes over.

    Raises OSError, also ssl.SSLError, if the handshake fails.
    """
    secret = tls.context().wrap_socket(broker, server_hostname=host)
    ours, inner = socket.socketpair()
    ours.settimeout(broker.gettimeout())
    threading.Thread(target=_move, args=(secret, inner), daemon=True).start()
    return ours


def reason(error: OSError, tls: Tls) -> str:
    """Why ``connect`` failed, in one line for the person who started the program."""
    if isinstance(error, ssl.SSLCertVerificationError):
        told = (error.verify_message or "it cannot be checked").rstrip(".")
        return f"the broker's certificate is not trusted: {told} (--ca names a file with its CA)"
    if isinstance(error, ssl.SSLError) and tls.ca and error.reason in (None, "NO_CERTIFICATE_OR_CRL_FOUND"):
        return f"{tls.ca} holds no certificate"
    if isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError):
        return f"{tls.ca}: {error.strerror}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return error.strerror or str(error)


def _move(secret: ssl.SSLSocket, inner: socket.socket) -> None:
    """Move octets both ways until either side is at its end, then close both."""
    with secret, inner:
        secret.setblocking(False)
        inner.setblocking(False)
        try:
            _Mover(secret, inner).run()
        except OSError:
            pass        # The link sees the end of its socket, and says that the broker closed it.


class _Mover:
    """The octets that were read from one side and not yet written to the other."""

    def __init__(self, secret: ssl.SSLSocket, inner: socket.socket) -> None:
        self.secret, self.inner = secret, inner
        self.out = self.back = memoryview(b"")
        self.leave_by = 0.0     # not 0: the inner side is closed, and what it left is given up then

    def run(self) -> None:
        """Move until the end.  Raises OSError."""
        while True:
            if not self.leave_by and not self.out and not self._read_inner():
                self.leave_by = time.monotonic() + LEAVE_SECONDS
            if self.leave_by and (not self.out or time.monotonic() > self.leave_by):
                return
            moved = bool(self.out) and self._write_secret()
            if not self.back:
                ended, read = self._read_secret()
                if ended:
                    return
                moved |= read
            moved |= bool(self.back) and self._write_inner()
            if not moved:
                self._wait()

    def _read_inner(self) -> bool:
        """False at its end."""
        try:
            octets = self.inner.recv(CHUNK)
        except BlockingIOError:
            return True
        self.out = memoryview(octets)
        return bool(octets)

    def _write_secret(self) -> bool:
        try:
            self.out = self.out[self.secret.send(self.out):]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        return True

    def _read_secret(self) -> tuple[bool, bool]:
        """(whether it is at its end, whether something came)."""
        try:
            octets = self.secret.recv(CHUNK)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False, False
        self.back = memoryview(octets)
        return not octets, True

    def _write_inner(self) -> bool:
        if self.leave_by:
            self.back = memoryview(b"")     # It is not read any more.
            return True
        try:
            self.back = self.back[self.inner.send(self.back):]
        except BlockingIOError:
            return False
        return True

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self.secret, (0 if self.back else select.POLLIN) | (select.POLLOUT if self.out else 0))
        inner = (0 if self.out else select.POLLIN) | (select.POLLOUT if self.back else 0)
        if inner and not self.leave_by:     # Otherwise a hang-up of that side would wake this again and again.
            poller.register(self.inner, inner)
        poller.poll(100 if self.leave_by else None)

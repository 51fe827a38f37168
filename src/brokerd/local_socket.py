"""The control socket's place in a data directory, and its address if the path is long.

A socket's address holds 107 octets of path.  A longer path goes through /proc: ``/proc/self/fd/N/control.sock``, where
N is a descriptor of the open directory.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

NAME = "control.sock"
AMQP_NAME = "amqp.sock"  # for the management process, which brings the octets of WebSockets there
ADDRESS_OCTETS_MAX = 107
MODE = 0o600  # the broker's user, and root


@contextmanager
def address(directory: str, socket_name: str = NAME) -> Iterator[str]:
    """The address for bind() or connect(), valid inside the ``with`` block.  Raises OSError."""
    path = os.path.join(directory, socket_name)
    if len(os.fsencode(path)) <= ADDRESS_OCTETS_MAX:
        yield path
        return
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{socket_name}"
    finally:
        os.close(fd)


def bind(directory: str, socket_name: str = NAME) -> socket.socket:
    """Make the socket in that directory; it replaces one that a killed broker left there.  Raises OSError."""
    try:
        os.unlink(os.path.join(directory, socket_name))
    except FileNotFoundError:
        pass
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(made.fileno(), MODE)  # Before the socket has a name, so that other users can never connect.
        with address(directory, socket_name) as name:
            made.bind(name)
    except BaseException:
        made.close()
        raise
    return made


def connect(directory: str, timeout_seconds: float) -> socket.socket:
    """Connect to the broker on that directory.

    Raises OSError; it is FileNotFoundError or ConnectionRefusedError if no broker runs there.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout_seconds)
        with address(directory) as name:
            made.connect(name)
    except BaseException:
        made.close()
        raise
    return made

"""The control socket's place in a data directory, and how to name it where the path is long.

A socket's address holds 107 octets of path.  A longer one is reached through /proc:
``/proc/self/fd/N/control.sock``, where N is the directory, open.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

NAME = "control.sock"
ADDRESS_OCTETS_MAX = 107
MODE = 0o600  # the broker's user, and root


@contextmanager
def address(directory: str) -> Iterator[str]:
    """What to give to bind() or connect(), while inside.  Raises OSError."""
    path = os.path.join(directory, NAME)
    if len(os.fsencode(path)) <= ADDRESS_OCTETS_MAX:
        yield path
        return
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{NAME}"
    finally:
        os.close(fd)


def bound(directory: str) -> socket.socket:
    """A socket in that directory, in place of one that a killed broker left there.  Raises OSError."""
    try:
        os.unlink(os.path.join(directory, NAME))
    except FileNotFoundError:
        pass
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(made.fileno(), MODE)  # Before it has a name, so that others cannot connect at any moment.
        with address(directory) as name:
            made.bind(name)
    except BaseException:
        made.close()
        raise
    return made


def connected(directory: str, timeout_seconds: float) -> socket.socket:
    """A connection to the broker on that directory.  Raises OSError: FileNotFoundError and ConnectionRefusedError
    when none runs."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout_seconds)
        with address(directory) as name:
            made.connect(name)
    except BaseException:
        made.close()
        raise
    return made

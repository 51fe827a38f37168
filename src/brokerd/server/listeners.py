"""Sockets that listen for AMQP: on TCP ports, and on a path."""

import errno
import os
import socket
import stat
from collections.abc import Callable
from typing import Any

from brokerd.errors import BrokerError

BACKLOG = 1024
PATH_OCTETS_MAX = 107  # of a unix socket's address
PATH_MODE = 0o666  # as on a TCP port of this machine, every local user may connect, and has to log in


class ListenError(BrokerError):
    """The broker cannot listen on an address; the text says which and why."""


async def listen(
    loop: Any, factory: Any, address: str, port: int, serve: Callable[[socket.socket], Any] | None = None
) -> Any:  # fmt: skip
    """Accept connections on ``address``:``port``, and return the server.  Raises ListenError.

    ``serve``: what takes the listening socket, in place of the loop with ``factory``, and returns the server.
    """
    try:
        # The loop's own getaddrinfo would start its pool of threads, even for a numeric address.
        host = address.encode() if address.isascii() else address  # Of a text it would import the codec of IDNA.
        info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sock = socket.socket(info[0][0], socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(info[0][4])
            if serve is not None:
                sock.listen(BACKLOG)
                return serve(sock)
            return await loop.create_server(factory, sock=sock, backlog=BACKLOG)
        except BaseException:
            sock.close()
            raise
    except socket.gaierror as error:
        raise ListenError(f"cannot listen on {address}:{port}: {error.strerror}") from error
    except UnicodeError as error:
        raise ListenError(f"cannot listen on {address}:{port}: not a name of a host") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ListenError(f"cannot listen on {address}:{port}: the port is in use by another process") from error
        reason = error.strerror or str(error)
        raise ListenError(f"cannot listen on {address}:{port}: {reason}") from error


async def listen_on_path(loop: Any, factory: Any, path: str) -> Any:
    """Accept connections on a unix socket, and return the server.

    A socket that a killed broker left at that path is replaced.  Raises ListenError.
    """
    if len(os.fsencode(path)) > PATH_OCTETS_MAX:
        raise ListenError(f"cannot listen on {path}: a unix socket's path has at most {PATH_OCTETS_MAX} octets")
    try:
        _remove_deserted(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(path)
            os.chmod(path, PATH_MODE)
            return await loop.create_unix_server(factory, sock=sock, backlog=BACKLOG)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise ListenError(f"cannot listen on {path}: {error.strerror or error}") from error


def _remove_deserted(path: str) -> None:
    """Remove a unix socket on which no process listens.  Raises ListenError if something else is there, and OSError."""
    try:
        if not stat.S_ISSOCK(os.stat(path, follow_symlinks=False).st_mode):
            raise ListenError(f"cannot listen on {path}: a file that is no socket is there")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(path)
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        os.unlink(path)
        return
    except BlockingIOError:
        pass  # It has a backlog, and that is full.
    raise ListenError(f"cannot listen on {path}: another process listens there")


def addresses(server: Any) -> list[str]:
    """The addresses that the server listens on, as in ``127.0.0.1:5672``."""
    names = []
    for sock in server.sockets:
        host, port = sock.getsockname()[:2]
        names.append(f"{host}:{port}" if ":" not in host else f"[{host}]:{port}")
    return names


def described(protocol: str, server: Any) -> list[tuple[str, str, int]]:
    """The protocol, address and port of each socket that the server listens on."""
    return [(protocol, *sock.getsockname()[:2]) for sock in server.sockets]

"""Sockets that listen on TCP ports."""

import errno
import socket
from typing import Any

from brokerd.errors import BrokerError

BACKLOG = 1024


class ListenError(BrokerError):
    """The broker cannot listen on an address; the text says which and why."""


async def listen(loop: Any, factory: Any, address: str, port: int) -> Any:
    """Accept connections on ``address``:``port``, and return the server.  Raises ListenError."""
    try:
        # The loop's own getaddrinfo would start its pool of threads, even for a numeric address.
        info = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sock = socket.socket(info[0][0], socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(info[0][4])
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


def addresses(server: Any) -> list[str]:
    """The addresses that the server listens on, as in ``127.0.0.1:5672``."""
    names = []
    for sock in server.sockets:
        host, port = sock.getsockname()[:2]
        names.append(f"{host}:{port}" if ":" not in host else f"[{host}]:{port}")
    return names

"""Brokers on other machines: brokerctl asks them over HTTP (``/api/v2``), with a user's name and password.

Which one: ``--url``, or ``--broker`` and a name in the file of brokers, ``~/.config/brokerd/brokers.toml``:

    [shop]
    url = "https://mq.example:15671"
    user = "ann"
    ca_cert = "/etc/ssl/our-ca.pem"         # if the system does not know the CA
    password_file = "/run/secrets/ann"      # if there is no terminal to ask at

The password is asked for, or comes from BROKERCTL_PASSWORD or that file: never from the command line, which others see.
"""

import json
import os
import sys
from base64 import b64encode
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import click

from brokerd.cli.ctl_client import ANSWER_SECONDS, Refused
from brokerd.errors import BrokerError
from brokerd.named_file import read_regular

FILE = os.path.join("~", ".config", "brokerd", "brokers.toml")
KEYS = ("url", "user", "ca_cert", "password_file")
FILE_OCTETS_MAX = 1 << 20
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Remote(NamedTuple):
    """A broker's HTTP API, and who asks it."""

    url: str
    user: str
    ca_cert: str = ""
    password_file: str = ""


def find(url: str | None, broker: str | None, user: str | None) -> Remote | None:
    """The broker that options or the environment name; None: the one on this machine.  Raises BrokerError."""
    if url and broker:
        raise BrokerError("either --url or --broker can be given, not both")
    if broker:
        found = named(broker)
    elif url:
        found = Remote(url, "guest")
    else:
        return None
    found = found._replace(user=user or found.user)
    try:
        parts = urlsplit(found.url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BrokerError(f"{found.url}: {error}") from None
    if parts.scheme not in ("http", "https") or not host or parts.username is not None:
        raise BrokerError(f"{found.url!r:.200} is no address such as https://mq.example:15671 (names no user: --user)")
    if parts.scheme == "http" and host not in LOOPBACK:
        raise BrokerError(f"{found.url}: others could read the password on the way: use https, or a tunnel")
    return found


def named(name: str) -> Remote:
    """The entry of that name in the file of brokers.  Raises BrokerError."""
    import tomllib

    path = os.path.expanduser(FILE)
    try:
        table = tomllib.loads(read_regular(path, FILE_OCTETS_MAX).decode())
    except OSError as error:
        raise BrokerError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise BrokerError(f"{path}: {error}") from None
    entry = table.get(name)
    if not isinstance(entry, dict):
        raise BrokerError(f"{path} names no broker '{name}': it names {', '.join(table) or 'none'}")
    for key, value in entry.items():
        if key not in KEYS or not isinstance(value, str):
            raise BrokerError(f"{path}: [{name}]: {key}: there are {', '.join(KEYS)}, each a text")
    if "url" not in entry:
        raise BrokerError(f"{path}: [{name}]: url is missing")
    return Remote(entry["url"], entry.get("user", "guest"), entry.get("ca_cert", ""), entry.get("password_file", ""))


class RemoteClient:
    """A connection.  The same verbs as ``ctl_client.Client``.  Raises BrokerError."""

    def __init__(self, remote: Remote) -> None:
        from http.client import HTTPConnection, HTTPSConnection

        self._remote = remote
        parts = urlsplit(remote.url)
        self._path = parts.path.rstrip("/")
        host = parts.hostname or ""
        if parts.scheme == "https":
            import ssl

            try:
                context = ssl.create_default_context(cafile=remote.ca_cert or None)
            except OSError as error:
                raise BrokerError(f"{remote.ca_cert}: {error.strerror or error}") from None
            self._connection: HTTPConnection = HTTPSConnection(host, parts.port or 15671, context=context)
        else:
            self._connection = HTTPConnection(host, parts.port or 15672)
        self._authorization = "Basic " + b64encode(f"{remote.user}:{password_of(remote)}".encode()).decode()

    def __enter__(self) -> "RemoteClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(
        self, verb: str, fields: dict[str, Any], progress: Callable[[dict[str, Any]], object] | None = None, *,
        seconds: float | None = ANSWER_SECONDS,
    ) -> Any:  # fmt: skip
        """Ask for an operation, and return its result.  HTTP reports no progress.  Raises Refused, BrokerError."""
        from http.client import HTTPException

        self._connection.timeout = seconds
        headers = {"authorization": self._authorization, "content-type": "application/json"}
        path = f"{self._path}/api/v2/{'/'.join(quote(word, safe='') for word in verb.split())}"
        try:
            self._connection.request("POST", path, json.dumps(fields).encode(), headers)
            answer = self._connection.getresponse()
            octets = answer.read()
        except (OSError, HTTPException) as error:
            self._connection.close()
            raise BrokerError(f"{self._remote.url}: {getattr(error, 'strerror', None) or error}") from None
        if answer.status == 200:
            return self._decoded(octets)
        if answer.status == 401:
            raise Refused(f"{self._remote.url}: the password of user '{self._remote.user}' is wrong, or the user may "
                          "not log in from here", 401)  # fmt: skip
        raise Refused(self._reason(octets, answer.status), answer.status)

    def _decoded(self, octets: bytes) -> Any:
        try:
            return json.loads(octets)
        except ValueError:
            raise BrokerError(f"{self._remote.url}: the answer is no JSON: is a brokerd there?") from None

    def _reason(self, octets: bytes, status: int) -> str:
        try:
            return str(json.loads(octets)["detail"])
        except (ValueError, KeyError, TypeError):
            return f"{self._remote.url}: status {status}: is a brokerd there?"


def password_of(remote: Remote) -> str:
    """The password: from the environment, the file, the terminal, or the first line of standard input."""
    given = os.environ.get("BROKERCTL_PASSWORD")
    if given is not None:
        return given
    if remote.password_file:
        path = os.path.expanduser(remote.password_file)
        try:
            return read_regular(path, FILE_OCTETS_MAX).decode().rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise BrokerError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if sys.stdin.isatty():
        return str(click.prompt(f"Password of {remote.user} at {remote.url}", hide_input=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")

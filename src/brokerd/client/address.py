"""AMQP addresses: amqp://user:password@host:port/vhost?heartbeat=30, as RabbitMQ's URI specification has them.

An address without a host is the broker's own.  ``shown`` is an address as people may see it: it never has a password.
"""

from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

from brokerd.errors import BrokerError

PORT, TLS_PORT = 5672, 5671
HEARTBEAT_SECONDS = 10
HEARTBEAT_MAX = 65535  # seconds: AMQP has two octets for it
TIMEOUT_SECONDS = 15.0
QUERY = ("heartbeat", "connection_timeout", "channel_max", "auth_mechanism", "cacertfile", "certfile", "keyfile",
         "verify", "fail_if_no_peer_cert", "server_name_indication", "password", "depth")  # fmt: skip


class AddressError(BrokerError):
    """The text is no address.  The error's text does not hold the password."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker is and how to log in.  ``host``: "" is the broker that this process belongs to."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    vhost: str
    tls: bool = False
    heartbeat: int = HEARTBEAT_SECONDS  # 0: none
    timeout: float = TIMEOUT_SECONDS  # of the whole handshake
    mechanism: str = "PLAIN"  # or EXTERNAL
    ca: str = ""
    certificate: str = ""
    key: str = ""
    verify: bool = True
    server_name: str = ""
    key_password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, uri: str, vhost: str = "/") -> Self:
        """Read an address; ``vhost`` is the one meant if it names none.  Raises AddressError."""
        try:
            parts = urlsplit(uri)
            port = parts.port
        except ValueError:
            raise AddressError("the URI's host or port cannot be read") from None
        if parts.scheme not in ("amqp", "amqps"):
            raise AddressError("the URI must begin with amqp:// or amqps://")
        query = dict(parse_qsl(parts.query))
        tls = parts.scheme == "amqps"
        try:
            heartbeat = min(int(query.get("heartbeat", HEARTBEAT_SECONDS)), HEARTBEAT_MAX)
            timeout = int(query["connection_timeout"]) / 1000 if "connection_timeout" in query else TIMEOUT_SECONDS
        except ValueError:
            raise AddressError("heartbeat and connection_timeout of the URI must be whole numbers") from None
        mechanism = query.get("auth_mechanism", "plain").upper()
        if mechanism not in ("PLAIN", "EXTERNAL"):
            raise AddressError("auth_mechanism of the URI must be plain or external")
        return cls(
            parts.hostname or "", port or (TLS_PORT if tls else PORT), _octets_of(parts.username or "guest"),
            _octets_of(parts.password or "guest"), _octets_of(parts.path[1:]) if len(parts.path) > 1 else vhost, tls,
            heartbeat, timeout, mechanism, query.get("cacertfile", ""), query.get("certfile", ""),
            query.get("keyfile", ""), query.get("verify", "verify_peer") != "verify_none",
            query.get("server_name_indication", ""), query.get("password", ""),
        )  # fmt: skip

    @property
    def is_local(self) -> bool:
        """Whether it is the broker's own."""
        return not self.host


def _octets_of(escaped: str) -> str:
    """The text; octets that are no UTF-8 are kept."""
    return unquote(escaped, errors="surrogateescape")


def shown(uri: str) -> str:
    """The URI without its password and its query, which may hold another one."""
    head, mark, rest = uri.partition("://")
    if not mark:
        return uri.partition("?")[0].rpartition("@")[2]
    place = rest.partition("?")[0]
    authority, slash, path = place.partition("/")
    login, at, host = authority.rpartition("@")
    return f"{head}://{login.partition(':')[0] + '@' if at else ''}{host}{slash}{path}"

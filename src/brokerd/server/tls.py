"""TLS in front of a client's connection: the handshake, the name in a client's certificate.

    socket -> TLS of the loop, or of the kernel -> AMQPProtocol, which sees plain octets

A reload makes a new context for new connections; open connections keep theirs.  The broker imports OpenSSL's module
only if TLS is switched on.
"""

import ssl
from asyncio import Protocol
from collections.abc import Callable
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd.server import kernel_tls
from brokerd.server.amqp import AMQPProtocol, address
from brokerd.server.tls_context import Gate, reason

if TYPE_CHECKING:
    from asyncio import Future

    from brokerd.config import Config
    from brokerd.node import Node
    from brokerd.plane import Core
    from brokerd.server.proxy_header import Origin

log = getLogger("brokerd.tls")

SHUTDOWN_SECONDS = 5  # how long a client may take to answer the end of TLS

# Python's names for the parts of a distinguished name -> RFC 4514's names, as RabbitMQ prints them.
ATTRIBUTES = {
    "surname": "SN",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "title": "TITLE",
    "countryName": "C",
    "serialNumber": "SERIALNUMBER",
    "pseudonym": "PSEUDONYM",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "streetAddress": "STREET",
    "userId": "UID",
}
SAN_TYPES = {"dns": "DNS", "ip": "IP Address", "email": "email", "uri": "URI"}


class TLSProtocol(AMQPProtocol):
    """One client behind TLS.

    ``plain_fd`` is the socket's descriptor if the kernel encrypts what is written to it.  It is -1 if OpenSSL does:
    then the plane must not write by itself.
    """

    __slots__ = ("gate", "plain_fd")

    encrypted = True  # as lists of connections say

    def __init__(self, core: "Core", node: "Node", gate: Gate, origin: "Origin | None" = None) -> None:
        super().__init__(core, node, origin)
        self.gate = gate
        self.plain_fd = -1

    def connection_made(self, transport: Any) -> None:
        """The TLS handshake is done: wait for the client's protocol header."""
        session = transport.get_extra_info("ssl_object")
        certificate = transport.get_extra_info("peercert")  # {}: not verified; None: the client showed none
        if certificate:
            self.certificate_name = login_name(certificate, self.gate.config)
        log.debug("%s: %s, %s", address(transport)[0], session.version(), session.cipher()[0])
        self.take_transport(transport, self.plain_fd)


def login_name(certificate: dict[str, Any], config: "Config") -> str:
    """The user name in a verified certificate (as Python decodes one); "" if the certificate has no such name.

    RabbitMQ's rules: the subject as RFC 4514 writes it, its common names joined by commas, or one of the
    subject alternative names.
    """
    if config.tls_cert_login_from == "subject_alternative_name":
        kind = SAN_TYPES[config.tls_cert_login_san_type]
        names = [value for type_, value in certificate.get("subjectAltName", ()) if type_ == kind]
        index = config.tls_cert_login_san_index
        return _printable(names[index]) if index < len(names) else ""
    subject = certificate.get("subject", ())
    if config.tls_cert_login_from == "common_name":
        return _printable(",".join(value for part in subject for name, value in part if name == "commonName"))
    parts = ["+".join(f"{ATTRIBUTES.get(name, name)}={_escaped(value)}" for name, value in part) for part in subject]
    return _printable(",".join(reversed(parts)))


def _escaped(value: str) -> str:
    """Escape a value by RFC 4514, section 2.4."""
    out = "".join("\\" + char if char in ',+"\\<>;' else char for char in value)
    if out[:1] in ("#", " "):
        out = "\\" + out
    return out[:-1] + "\\ " if len(value) > 1 and out.endswith(" ") else out


def _printable(name: str) -> str:
    """The name if it is printable, else ""; other names could forge a line of the log."""
    return name if isinstance(name, str) and name.isprintable() else ""


def factory(node: "Node", gate: Gate, loop: Any) -> Callable[..., Any]:
    """The function that makes a protocol for each accepted socket, with TLS in front of a connection."""
    of_loop = _loop_factory(node, gate, loop)
    available = kernel_tls.is_available()

    def accepted(origin: "Origin | None" = None) -> Any:
        in_kernel = available and gate.config.tls_in_kernel
        return KernelDoor(node, gate, loop, origin) if in_kernel else of_loop(origin)

    return accepted


class KernelDoor(Protocol):
    """Has TLS agreed on with an accepted socket, for the kernel to carry it on, and puts a connection behind it."""

    def __init__(self, node: "Node", gate: Gate, loop: Any, origin: "Origin | None" = None) -> None:
        self.node = node
        self.origin = origin
        self.gate = gate
        self.loop = loop
        self.peer = "?"

    def connection_made(self, transport: Any) -> None:
        """The socket is accepted."""
        self.peer = address(transport)[0]
        if not self.node.descriptors.admits(transport.get_extra_info("socket").fileno()):
            transport.abort()
            return
        handshake = kernel_tls.Handshake(self.loop, self._agreed, self._failed)
        handshake.begin(transport, self.gate.context, self.node.limits.handshake_timeout_seconds)

    def _agreed(self, sock: ssl.SSLSocket) -> None:
        protocol = TLSProtocol(self.node.core, self.node, self.gate, self.origin)
        transport = kernel_tls.SocketTransport(self.loop, sock, protocol)
        if transport.kernel_writes:
            protocol.plain_fd = transport.fileno()
        log.debug("%s: the kernel %s", self.peer, transport.directions)
        transport.begin()

    def _failed(self, error: OSError) -> None:
        _log_failed_handshake(self.peer, error)


def _loop_factory(node: "Node", gate: Gate, loop: Any) -> Callable[["Origin | None"], Any]:
    from asyncio import sslproto

    from uvloop import loop as compiled

    base: Any = getattr(compiled, "SSLProtocol", sslproto.SSLProtocol)  # uvloop's is the same, compiled.

    class TLS(base):
        """Remembers the client's address, for the log line of a failed handshake."""

        peer = "?"

        def connection_made(self, transport: Any) -> None:
            self.peer = address(transport)[0]
            super().connection_made(transport)
            if not node.descriptors.admits(transport.get_extra_info("socket").fileno()):
                transport.abort()

    def accepted(origin: "Origin | None") -> Any:
        done = loop.create_future()
        tls = TLS(
            loop,
            TLSProtocol(node.core, node, gate, origin),
            gate.context,
            done,
            server_side=True,
            ssl_handshake_timeout=node.limits.handshake_timeout_seconds,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )
        done.add_done_callback(partial(_agreed_or_not, tls))
        return tls

    return accepted


def _agreed_or_not(tls: Any, done: "Future[None]") -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        _log_failed_handshake(tls.peer, error)


def _log_failed_handshake(peer: str, error: BaseException) -> None:
    """Log why a client's TLS handshake failed; the client has no AMQP connection that could tell it."""
    if isinstance(error, ConnectionResetError):
        log.info("%s: the client closed the connection during the TLS handshake", peer)
    else:
        log.warning("%s: TLS handshake failed: %s", peer, reason(error))

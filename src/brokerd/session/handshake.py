"""From the protocol header to connection.open-ok: a table of states and methods.

    waiting --header--> starting --start-ok--> tuning --tune-ok--> opening --open--> running

Methods that are not in the table are refused with 504.  In the state ``refused`` the client is told at the next tick of
the server's timer, which makes guessing passwords slow.  In ``closing`` the broker waits for close-ok.  Knows nothing
of sockets.
"""

from functools import cache, lru_cache
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.auth.mechanisms import credentials, list_mechanisms
from brokerd.errors import AMQPError, CommandInvalid, LoginRefused, NotAllowed, SyntaxError_
from brokerd.wire import methods
from brokerd.wire.frames import FRAME_MIN_SIZE, PROTOCOL_HEADER
from brokerd.wire.values import decode_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokerd.session.connection import Connection

log = getLogger("brokerd.session")

WAITING, STARTING, TUNING, OPENING, RUNNING = "waiting", "starting", "tuning", "opening", "running"
REFUSED, CLOSING, CLOSED = "refused", "closing", "closed"

PROTOCOL_HEADERS = (PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09")  # 0-9-1; 0-9 has the same methods
LOCALES = b"en_US"
LINK_MECHANISM = "BROKERD-LINK"  # see session/internal; it is not offered to clients

# Clients of one program say the same of themselves, so what was read of the last ones is remembered.
CLIENTS_REMEMBERED, CLIENT_OCTETS_REMEMBERED = 256, 2048

NOTIFIES_CANCEL = 1  # capabilities of a client that change what it is sent
NOTIFIES_BLOCKED = 2
TELLS_LOGIN_REFUSED = 4
CAPABILITIES = {
    "consumer_cancel_notify": NOTIFIES_CANCEL,
    "connection.blocked": NOTIFIES_BLOCKED,
    "authentication_failure_close": TELLS_LOGIN_REFUSED,
}
SERVER_CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


def offered_mechanisms(connection: "Connection") -> str:
    """The mechanisms that this client may log in with."""
    return list_mechanisms(certificate=bool(connection.certificate_name), anonymous=connection.node.limits.anonymous)


def make_start_frame(mechanisms: str, identity: str) -> bytes:
    """connection.start.  It is made once for all clients that are offered the same mechanisms.  Its cluster's name is
    the data directory's identity: a link of RabbitMQ, too, ends its loops by what it reads there."""
    from sys import version_info

    from brokerd import __version__

    return methods.ConnectionStart(
        version_major=0,
        version_minor=9,
        server_properties={
            "capabilities": SERVER_CAPABILITIES,
            "cluster_name": identity,
            "copyright": "Copyright (c) the authors of brokerd",
            "information": "Licensed under the Apache License 2.0",
            "platform": f"brokerd {__version__}, Python " + ".".join(map(str, version_info[:3])),
            # Clients (kombu, for basic.qos) read here which rules hold where the specification and RabbitMQ differ.
            # RabbitMQ's rules hold, of this version or later.
            "product": "RabbitMQ",
            "version": "3.13.0",
        },
        mechanisms=mechanisms.encode(),
        locales=LOCALES,
    ).frame(0)


def accept_header(connection: "Connection", octets: bytes) -> None:
    """Answer the protocol header with start, or with the broker's own header and the end of the connection (spec
    4.2.2)."""
    if octets not in PROTOCOL_HEADERS:
        log.warning("%s: %s", connection.peer, _describe_stranger(octets))
        connection.write(PROTOCOL_HEADER)
        connection.state = CLOSED
        connection.disconnect()
        return
    node = connection.node
    names = offered_mechanisms(connection)
    frame = node.start_frames.get(names)
    if frame is None:
        frame = node.start_frames[names] = make_start_frame(names, node.data.identity)
    connection.write(frame)
    connection.state = STARTING


def _describe_stranger(octets: bytes) -> str:
    """For the log: which protocol these octets belong to."""
    if octets[:4] in (b"GET ", b"POST", b"PUT ", b"HEAD"):
        return "a HTTP request came to the AMQP port"
    if octets[:2] == b"\x16\x03":
        return "a TLS handshake came to the plain AMQP port"
    if octets[:4] == b"AMQP":
        return f"protocol version {'-'.join(map(str, octets[4:]))} is not supported"
    return f"bad protocol header {octets!r}"


class ClientSays(NamedTuple):
    """The properties of a client that the broker uses."""

    capabilities: int
    name: str | None  # connection_name
    program: tuple[str, str, str]  # product, version, platform: for the log


def read_client(properties: bytes) -> ClientSays:
    """Read a field table.  Raises SyntaxError_."""
    if len(properties) > CLIENT_OCTETS_REMEMBERED:
        return _read_client(properties)
    return _read_client_once(properties)


def _read_client(properties: bytes) -> ClientSays:
    table, _ = decode_table(properties)
    found, capabilities = 0, table.get("capabilities")
    if isinstance(capabilities, dict):
        for name, bit in CAPABILITIES.items():
            if capabilities.get(name) is True:
                found |= bit
    connection_name = table.get("connection_name")
    if not isinstance(connection_name, str):
        connection_name = None
    product, version, platform = [f"{table.get(key, '?')!s:.80}" for key in ("product", "version", "platform")]
    return ClientSays(found, connection_name, (product, version, platform))


_read_client_once = lru_cache(CLIENTS_REMEMBERED)(_read_client)


def _decode_start_ok(payload: bytes) -> tuple[bytes, int, Any]:
    """The client's properties as they came, its capabilities, and the rest of start-ok.  Raises SyntaxError_."""
    methods.check_octets(payload)
    end = 8 + int.from_bytes(payload[4:8])
    properties = payload[4:end]
    try:
        return properties, read_client(properties).capabilities, methods.decode(payload[:4] + bytes(4) + payload[end:])
    except SyntaxError_:
        methods.decode(payload)  # The text of its fault counts the octets of the whole payload.
        raise


def start_ok(connection: "Connection", payload: bytes) -> None:
    """Log the client in.  On success tune follows; a refused client is told at the next tick."""
    connection.client_properties, connection.capabilities, method = _decode_start_ok(payload)
    mechanism = method.mechanism
    if mechanism == LINK_MECHANISM and connection.node.links.secret:
        _log_in_link(connection, method)
        return
    if mechanism not in offered_mechanisms(connection).split():
        raise CommandInvalid(f"unknown authentication mechanism '{mechanism}'")
    node = connection.node
    try:
        shown = node.logins.token_in(mechanism, method.response)
    except (LoginRefused, SyntaxError_):
        shown = None  # authenticate() tells of it.
    if shown is not None:
        _log_in_by_token(connection, method, *shown)
        return
    if node.logins.asks_others(mechanism):
        from brokerd.session import backends  # Most brokers ask no other back-end.

        backends.log_in(connection, method, backends.Steps(_is_waiting, check_password, welcome, refuse))
    else:
        check_password(connection, method, refuse)


def check_password(
    connection: "Connection", method: Any, refused: "Callable[[Connection, Any, Exception], object]", *,
    counts: bool = True,
) -> None:  # fmt: skip
    """Look into ``users.json``, and go on with tune, or call ``refused``.  ``counts``: see Logins.authenticate."""
    node = connection.node
    try:
        slow = node.logins.slow_part(method.mechanism, method.response, connection.address)
    except (LoginRefused, SyntaxError_):
        slow = None  # authenticate() tells of it.
    if slow is None:
        _log_in(connection, method, refused, counts)
        return

    def checked(_error: object) -> None:
        if _is_waiting(connection):
            _log_in(connection, method, refused, counts)
        connection.go_on()
        node.core.turn()

    connection.rest()
    node.submit_logins(slow, checked)


def _log_in_link(connection: "Connection", method: Any) -> None:
    """Log the process of links in, or refuse who is not it."""
    from brokerd.session import internal  # A broker without links saves this import.

    if connection.on_local_socket and internal.is_right(connection.node, method.response):
        connection.user, connection.grant = internal.INTERNAL_USER, internal.Everything()
        welcome(connection, method.mechanism)
    else:
        refuse(connection, method, LoginRefused("not the broker's process of links"))


def _log_in_by_token(connection: "Connection", method: Any, name: str, text: bytes) -> None:
    """Check the token in a thread, and go on with tune, or refuse the client."""
    from brokerd.session import grants  # A broker without tokens saves this import.

    logins = connection.node.logins
    address = connection.address

    def checked(token: Any, why: LoginRefused | None) -> None:
        if connection.state is not STARTING:
            return
        if why is None:
            try:
                logins.check_place(token.user, loopback=connection.loopback)
            except LoginRefused as error:
                why = error
        else:
            logins.note_failure(name, address)
        if why is not None:
            refuse(connection, method, why)
            return
        connection.user = token.user
        connection.grant = grants.TokenGrant(connection, token)
        welcome(connection, method.mechanism)

    if logins.are_too_many(name, address):
        refuse(connection, method, LoginRefused(f"user '{name}' - too many failed logins from {address}"))
    else:
        grants.check(connection, text, checked)


def update_secret(connection: "Connection", method: Any) -> None:
    """connection.update-secret.  Passwords of users do not expire: to a client that has logged in by one, a new secret
    changes nothing (RabbitMQ)."""
    if connection.grant is None:
        connection.write(methods.ConnectionUpdateSecretOk().frame(0))
        return
    from brokerd.session import grants

    if isinstance(connection.grant, grants.TokenGrant):
        grants.update_secret(connection, connection.grant, bytes(method.new_secret))
    else:
        connection.write(methods.ConnectionUpdateSecretOk().frame(0))


def _is_waiting(connection: "Connection") -> bool:
    return connection.state is STARTING and connection.transport is not None


def _log_in(
    connection: "Connection", method: Any, refused: "Callable[[Connection, Any, Exception], object]", counts: bool
) -> None:
    """Find out who it is, and go on with tune, or call ``refused``."""
    try:
        connection.user = connection.node.logins.authenticate(
            method.mechanism, method.response, connection.loopback, connection.certificate_name, connection.address,
            counts=counts,
        )  # fmt: skip
    except (LoginRefused, SyntaxError_) as error:
        refused(connection, method, error)
    else:
        welcome(connection, method.mechanism)


def refuse(connection: "Connection", method: Any, error: Exception) -> None:
    """Say in the log why, and tell the client at the next tick."""
    mechanism = method.mechanism
    log.warning("%s: login refused: %s", connection.peer, error)
    if connection.node.events.wanted:
        connection.node.events.publish_login(connection, _claimed_user(method), mechanism, str(error))
    connection.refuse(
        LoginRefused(
            f"Login was refused using authentication mechanism {mechanism}. "
            "For details see the broker logfile."
        )
    )


def welcome(connection: "Connection", mechanism: str) -> None:
    """The client is who it says: go on with tune."""
    if connection.node.events.wanted:
        connection.node.events.publish_login(connection, connection.user, mechanism)
    limits = connection.node.limits
    connection.write(make_tune_frame(limits.channel_max, limits.frame_max_octets, limits.heartbeat_seconds))
    connection.state = TUNING


@lru_cache(1)
def make_tune_frame(channel_max: int, frame_max: int, heartbeat: int) -> bytes:
    """connection.tune.  It is made again where a reload has changed a limit."""
    return methods.ConnectionTune(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat).frame(0)


@cache
def make_open_ok_frame() -> bytes:
    """connection.open-ok.  The first client's is made, so that the start needs none."""
    return methods.ConnectionOpenOk().frame(0)


def _claimed_user(method: Any) -> str:
    """The user that a refused client says it is; "" where that cannot be read."""
    try:
        return credentials(method.mechanism, method.response)[0]
    except (AMQPError, LoginRefused):
        return ""


def tune_ok(connection: "Connection", payload: bytes) -> None:
    """Take the client's limits, which may be lower than the broker's but not higher (0: no limit)."""
    method: Any = methods.decode(payload)
    limits = connection.node.limits
    _check_limit("frame_max", method.frame_max, FRAME_MIN_SIZE, limits.frame_max_octets)
    _check_limit("channel_max", method.channel_max, 1, limits.channel_max)
    connection.frame_max = method.frame_max or limits.frame_max_octets
    connection.channel_max = method.channel_max or 65535
    connection.heartbeat = method.heartbeat
    connection.state = OPENING


def _check_limit(name: str, value: int, least: int, most: int) -> None:
    shown = f"{value} (no limit)" if name == "channel_max" and not value else value
    if value and value < least:
        raise NotAllowed(f"negotiated {name} = {shown} is lower than the minimum allowed value ({least})")
    if most and (not value or value > most):
        raise NotAllowed(f"negotiated {name} = {shown} is higher than the maximum allowed value ({most})")


def open_(connection: "Connection", payload: bytes) -> None:
    """Enter the vhost, if it exists and the user may."""
    method: Any = methods.decode(payload)
    node = connection.node
    connection.access = node.enter(method.virtual_host or "/", connection.user, connection.grant)
    connection.number = node.data.next_connection_number()
    connection.routes = connection.access.routes
    connection.write(make_open_ok_frame())
    connection.opened()


HANDSHAKE = {
    (STARTING, methods.ConnectionStartOk.INDEX): start_ok,
    (TUNING, methods.ConnectionTuneOk.INDEX): tune_ok,
    (OPENING, methods.ConnectionOpen.INDEX): open_,
}  # Anything else in any of these states: CHANNEL_ERROR, 504.


def tells_refusal(connection: "Connection", error: AMQPError) -> bool:
    """Whether the client is told why it is refused.  A refused login is told only to a client that asked for it."""
    return not isinstance(error, LoginRefused) or bool(connection.capabilities & TELLS_LOGIN_REFUSED)

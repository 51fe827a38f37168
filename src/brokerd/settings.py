"""The settings of a broker, as values: the server hands them down, and replaces them whole on a reload.

Nothing below the server reads the configuration.  Options that no module below the server asks for are not here.
Knows neither where a value comes from nor whether a reload may change it.
"""

from typing import NamedTuple


class Limits(NamedTuple):
    """The limits that sessions offer to clients and enforce.  0 is no limit."""

    handshake_timeout_seconds: int
    heartbeat_seconds: int
    frame_max_octets: int
    channel_max: int
    consumers_per_channel_max: int
    anonymous: bool  # clients may log in without a name
    tcp_nodelay: bool


class OAuth2(NamedTuple):
    """Tokens in place of passwords."""

    jwks: str  # the key set: a URL or a file; "": no tokens
    resource_server_id: str  # this broker's name in aud
    issuer: str  # "": any
    preferred_username_claims: tuple[str, ...]
    scope_prefix: str
    additional_scopes_keys: tuple[str, ...]
    verify_aud: bool
    ca_cert: str  # of the key set's server; "": those of the system


class HTTPAuth(NamedTuple):
    """The back-end that asks a web server."""

    method: str  # get or post
    paths: dict[str, str]  # the URLs for user, vhost, resource, topic
    timeout_seconds: int  # of one question
    cache_seconds: int
    cache_entries: int
    ca_cert: str  # of an https server; "": those of the system


class Settings(NamedTuple):
    """The settings of the node."""

    sync: bool
    segment_octets: int
    message_octets_max: int
    deliver_octets_per_turn: int
    free_disk_min_octets: int
    memory_high_watermark_octets: int  # 0: the percentage counts
    memory_high_watermark_percent: int
    connection_max: int
    idle_queue_seconds: int
    order_journal_chain_log: str  # a file that is told of the heads of hash chains; "": none
    order_journal_archive: str  # a directory; "": settled segments are removed when their time is over
    log_exchange: bool
    default_user: str
    default_user_only_loopback: bool
    failed_logins_per_second: int  # of one user from one address; 0: no limit
    oauth2: OAuth2
    auth_backends: tuple[str, ...]  # internal, http: who is asked about a password, in this order
    http_auth: HTTPAuth
    anonymous_login_user: str  # the user that ANONYMOUS logins become; "" turns ANONYMOUS off

"""Every option of the broker: one field with default, unit, bounds and help.

A value comes from the default, the file (TOML), the environment (``BROKERD_`` and
the option's name in capitals) or a command-line flag; the later one wins.  One field
makes an option: ``OPTIONS`` lists the rows from which file, environment, flags,
``--help`` and the test of ``config/brokerd.toml`` follow.

Knows nothing of what an option does: ``server/launch.py`` hands values down.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from brokerd.errors import ConfigError, did_you_mean
from brokerd.named_file import read_regular

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FILE_OCTETS_MAX = 1 << 20  # of a file with options, and of one with certificates

ENVIRONMENT_PREFIX = "BROKERD_"
# Variables that begin like an option's but are not options: the path of the file, switches of the build, and the
# variables that Kubernetes puts into every pod's environment if a service is called brokerd.
NOT_OPTIONS = frozenset({"BROKERD_CONFIG", "BROKERD_ASSERTS", "BROKERD_SANITIZE", "BROKERD_COVERAGE", "BROKERD_WERROR"})
KUBERNETES_PREFIXES = ("BROKERD_SERVICE_", "BROKERD_PORT_")
KUBERNETES_NAMES = frozenset({"BROKERD_PORT"})

# The words for yes and no in an environment variable.
TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
MIB = 1 << 20
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
Backends = Literal[
    "internal", "http", "internal,http", "http,internal", "hook", "internal,hook", "hook,internal"
]  # fmt: skip
TLSVersion = Literal["1.2", "1.3"]
LoginFrom = Literal["distinguished_name", "common_name", "subject_alternative_name"]
SANType = Literal["dns", "ip", "email", "uri"]


class Option:
    """An option's section, help and bounds: the metadata in the type of its field.

    ``low`` and ``high`` bound a number, both ends included, or the count of characters of a text.
    ``short`` is another spelling of its flag, mostly one letter.  ``reloadable`` options take effect on
    SIGHUP, others at the next start.  No output shows the value of a ``secret`` option.  ``path``: "file" or
    "folder" if it names one, so that shells can complete it.
    """

    __slots__ = ("help", "high", "low", "path", "reloadable", "secret", "section", "short")

    def __init__(
        self, section: str, help: str, *, low: int | None = None, high: int | None = None,  # noqa: A002
        short: str = "", reloadable: bool = False, secret: bool = False, path: str = "",
    ) -> None:
        self.section, self.help, self.short = section, help, short
        self.low, self.high = low, high
        self.reloadable, self.secret, self.path = reloadable, secret, path

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Tell pydantic the bounds in its own words, without importing it here."""
        schema = handler(source)
        if schema["type"] in ("int", "bool"):
            schema["strict"] = True     # Else amqp_port = true would be port 1.
        lowest, highest = ("ge", "le") if schema["type"] == "int" else ("min_length", "max_length")
        if self.low is not None:
            schema[lowest] = self.low
        if self.high is not None:
            schema[highest] = self.high
        return schema


@dataclass(frozen=True, slots=True)
class Config:
    """The broker's options, checked.  They never change: a reload makes a new Config."""

    __pydantic_config__ = {"extra": "forbid"}

    data_dir: Annotated[str, Option(
        "main", "Directory in which the broker keeps all its data.", low=1, short="-D", path="folder",
    )] = "/var/lib/brokerd"
    log_level: Annotated[LogLevel, Option(
        "main", "The broker logs events of this severity and above.", short="-l", reloadable=True,
    )] = "info"
    log_file: Annotated[str, Option(
        "main", "File to log to; empty means standard error.", path="file",
    )] = ""
    log_format: Annotated[LogFormat, Option(
        "main", "How lines of the log are written: for people, or each as a JSON object.",
    )] = "text"
    log_exchange: Annotated[bool, Option(
        "main", "Publish each log line also to the exchange amq.rabbitmq.log in the vhost /.",
    )] = False
    pid_file: Annotated[str, Option(
        "main", "File that holds the process id while the broker runs; empty means no file.", path="file",
    )] = ""
    stop_timeout_seconds: Annotated[int, Option(
        "main", "A stopping broker waits this long for its clients to close, then it cuts them off.", low=0, high=3600,
    )] = 15
    memory_high_watermark_percent: Annotated[int, Option(
        "main", "Publishers are blocked while the broker uses more of the machine's (or cgroup's) memory; 0: never.",
        low=0, high=100, reloadable=True,
    )] = 60
    memory_high_watermark_octets: Annotated[int, Option(
        "main", "The same limit in octets, in place of the percentage; 0 means that the percentage holds.",
        low=0, high=1 << 50, reloadable=True,
    )] = 0

    bind: Annotated[str, Option(
        "amqp", "Address to listen on; 0.0.0.0 or :: means all.", low=1, short="-b",
    )] = "127.0.0.1"
    amqp_port: Annotated[int, Option(
        "amqp", "TCP port for AMQP; 0 means any free port.", low=0, high=65535, short="-p",
    )] = 5672
    amqps_bind: Annotated[str, Option(
        "amqp", "Address to listen on for AMQP over TLS; empty means the address of bind.",
    )] = ""
    amqps_port: Annotated[int, Option(
        "amqp", "TCP port for AMQP over TLS, used if tls_cert is set; 0 means any free port.", low=0, high=65535,
    )] = 5671
    unix_path: Annotated[str, Option(
        "amqp", "Path of a unix socket to listen on for AMQP as well; empty means none.", path="file",
    )] = ""
    proxy_protocol_from: Annotated[str, Option(
        "amqp",
        "Addresses and networks, between commas, of trusted proxies; these begin each connection with a PROXY header.",
    )] = ""
    tcp_nodelay: Annotated[bool, Option(
        "amqp", "Send small segments at once (TCP_NODELAY).",
    )] = True
    handshake_timeout_seconds: Annotated[int, Option(
        "amqp", "A client has this long from connecting to connection.open.", low=1, high=3600,
    )] = 10
    heartbeat_seconds: Annotated[int, Option(
        "amqp", "Heartbeat interval offered to clients; 0 offers no heartbeat.", low=0, high=65535,
    )] = 60
    frame_max_octets: Annotated[int, Option(
        "amqp", "Largest frame size offered to clients, including the eight octets around the payload.",
        low=8192, high=16 * MIB,
    )] = 131072
    channel_max: Annotated[int, Option(
        "amqp", "Most channels per connection offered to clients.", low=1, high=65535,
    )] = 2047
    connection_max: Annotated[int, Option(
        "amqp", "The broker accepts at most this many connections at a time; 0 means no limit.",
        low=0, high=10_000_000, reloadable=True,
    )] = 0
    consumers_per_channel_max: Annotated[int, Option(
        "amqp", "A channel may have at most this many consumers; 0 means no limit.",
        low=0, high=1_000_000, reloadable=True,
    )] = 0
    message_octets_max: Annotated[int, Option(
        "amqp", "Largest message body; publishing a larger one closes the channel.", low=1, high=512 * MIB,
    )] = 128 * MIB
    deliver_octets_per_turn: Annotated[int, Option(
        "amqp", "The broker delivers at most this much before it reads from connections again.",
        low=4096, high=1024 * MIB,
    )] = MIB

    tls_cert: Annotated[str, Option(
        "tls", "File with the broker's certificate and the chain up to its CA (PEM); empty turns TLS off.",
        short="--cert", reloadable=True, path="file",
    )] = ""
    tls_key: Annotated[str, Option(
        "tls", "File with the certificate's private key (PEM); empty means that tls_cert holds it.",
        short="--key", reloadable=True, path="file",
    )] = ""
    tls_sni_certs: Annotated[str, Option(
        "tls", "Files, between commas: each holds a certificate for other names (SNI), its chain and its key (PEM).",
        reloadable=True,
    )] = ""
    tls_ca_cert: Annotated[str, Option(
        "tls", "File with the CAs that client certificates must be signed by (PEM).", reloadable=True, path="file",
    )] = ""
    tls_verify_peer: Annotated[bool, Option(
        "tls", "Ask clients for a certificate, and refuse one that tls_ca_cert does not cover.", reloadable=True,
    )] = False
    tls_fail_if_no_peer_cert: Annotated[bool, Option(
        "tls", "Ask clients for a certificate, and refuse clients that show none.", reloadable=True,
    )] = False
    tls_min_version: Annotated[TLSVersion, Option(
        "tls", "Oldest TLS version that clients may use.", reloadable=True,
    )] = "1.2"
    tls_ciphers: Annotated[str, Option(
        "tls", "Ciphers for TLS 1.2, as an OpenSSL cipher list; empty means Python's default.",
        short="--ciphers", reloadable=True,
    )] = ""
    tls_in_kernel: Annotated[bool, Option(
        "tls", "Let the kernel encrypt and decrypt where it can.", reloadable=True,
    )] = True
    tls_cert_login_from: Annotated[LoginFrom, Option(
        "tls", "Part of a client's certificate that EXTERNAL logins take as user name.", reloadable=True,
    )] = "distinguished_name"
    tls_cert_login_san_type: Annotated[SANType, Option(
        "tls", "Kind of subject alternative name that becomes the user name.", reloadable=True,
    )] = "dns"
    tls_cert_login_san_index: Annotated[int, Option(
        "tls", "Which of the certificate's names of that kind becomes the user name, counted from 0.",
        low=0, high=100, reloadable=True,
    )] = 0

    http_port: Annotated[int, Option(
        "mgmt", "TCP port for the HTTP API and metrics; 0 means no HTTP.", low=0, high=65535,
    )] = 15672
    http_bind: Annotated[str, Option(
        "mgmt", "Address to listen on for HTTP; empty means the address of bind.",
    )] = ""
    https_port: Annotated[int, Option(
        "mgmt", "TCP port for the same over TLS (15671 is usual), with tls_cert; 0 means none.", low=0, high=65535,
    )] = 0
    websocket_origins: Annotated[str, Option(
        "mgmt", "Sites, between commas: their pages may speak AMQP over WebSocket, as the broker's own may; *: all.",
    )] = ""
    http_unix_path: Annotated[str, Option(
        "mgmt", "Path of a unix socket to listen on for HTTP as well; empty means none.", path="file",
    )] = ""
    otlp_endpoint: Annotated[str, Option(
        "mgmt",
        "URL of a collector (OTLP over HTTP) that gets spans of messages in queues with an order journal; empty: none.",
    )] = ""
    otlp_one_in: Annotated[int, Option(
        "mgmt", "Of so many traces one has spans, if its publisher wants it.", low=1, high=1_000_000,
    )] = 1
    otlp_messages_per_second: Annotated[int, Option(
        "mgmt", "So many messages a second have spans at most.", low=1, high=100_000,
    )] = 1000

    sync: Annotated[bool, Option(
        "store", "Confirm a persistent message when it is on the disk (fdatasync); false: as soon as it is written.",
    )] = True
    segment_octets: Annotated[int, Option(
        "store", "Size of one file of messages.", low=MIB, high=1024 * MIB,
    )] = 8 * MIB
    free_disk_min_octets: Annotated[int, Option(
        "store", "The broker blocks publishers while the disk has less free space than this; 0 means never.",
        low=0, high=1 << 50, reloadable=True,
    )] = 50_000_000
    idle_queue_seconds: Annotated[int, Option(
        "store", "A queue that is idle for this long closes its files and maps.", low=1, high=86400,
        reloadable=True,
    )] = 30

    order_journal_archive: Annotated[str, Option(
        "store", "Folder for settled segments of order journals after their retention; empty removes them.",
        reloadable=True, path="folder",
    )] = ""

    order_journal_chain_log: Annotated[str, Option(
        "store", "File, best on another machine's disk, for the heads of order journals' hash chains; empty: none.",
        reloadable=True, path="file",
    )] = ""

    default_user: Annotated[str, Option(
        "auth", "User that the first start creates, with all permissions on the vhost /.", low=1, high=255,
    )] = "guest"
    default_password: Annotated[str, Option(
        "auth", "The first password of default_user.", low=1, high=255, secret=True,
    )] = field(default="guest", repr=False)
    load_definitions: Annotated[str, Option(
        "auth", "File of definitions (of brokerd, RabbitMQ or LavinMQ) that each start imports; empty: none.",
        path="file",
    )] = ""
    default_user_only_loopback: Annotated[bool, Option(
        "auth", "default_user may connect only from this machine.",
    )] = True
    failed_logins_per_second: Annotated[int, Option(
        "auth",
        "Failed logins a second that one address may have for one user, after ten at once; further ones are refused; "
        "0: no limit.",
        low=0, high=1_000_000, reloadable=True,
    )] = 1
    oauth2_jwks: Annotated[str, Option(
        "auth", "URL (https), or file, of the keys that sign tokens (JSON Web Key Set); empty: no tokens.",
        reloadable=True,
    )] = ""
    oauth2_resource_server_id: Annotated[str, Option(
        "auth", "This broker's name in tokens: their aud must have it, and their scopes begin with it and a dot.",
        reloadable=True,
    )] = "rabbitmq"
    oauth2_verify_aud: Annotated[bool, Option(
        "auth", "Refuse tokens if their aud does not name this broker.", reloadable=True,
    )] = True
    oauth2_issuer: Annotated[str, Option(
        "auth", "The iss that tokens must have; empty: any.", reloadable=True,
    )] = ""
    oauth2_preferred_username_claims: Annotated[str, Option(
        "auth", "Claims of a token, between commas, that are the user's name, before sub and client_id.",
        reloadable=True,
    )] = ""
    oauth2_scope_prefix: Annotated[str, Option(
        "auth", "The scopes for this broker begin with this text; empty: oauth2_resource_server_id and a dot.",
        reloadable=True,
    )] = ""
    oauth2_additional_scopes_keys: Annotated[str, Option(
        "auth", "Claims of a token, between commas, that hold scopes beside scope.", reloadable=True,
    )] = ""
    oauth2_ca_cert: Annotated[str, Option(
        "auth", "File with the CAs (PEM) of the server that has the keys; empty: the system's.", reloadable=True,
        path="file",
    )] = ""
    oauth2_client_id: Annotated[str, Option(
        "auth",
        "The pages' id at the OpenID provider oauth2_issuer, where users log in for the pages; empty: no such logins.",
        reloadable=True,
    )] = ""
    oauth2_login_scopes: Annotated[str, Option(
        "auth", "The scopes that pages ask the OpenID provider for, with blanks between them.", reloadable=True,
    )] = "openid"
    oauth2_pages_url: Annotated[str, Option(
        "auth", "Where browsers see the pages, such as https://mq.example; empty: as the request says.",
        reloadable=True,
    )] = ""
    auth_backends: Annotated[Backends, Option(
        "auth", "Back-ends that know users, in order: users.json (internal), a web server (http), a package (hook).",
        reloadable=True,
    )] = "internal"
    auth_hook: Annotated[str, Option(
        "auth", "Entry point of the group brokerd.auth that is the back-end hook; empty means none.",
    )] = ""
    auth_hook_config: Annotated[str, Option(
        "auth", "Text for the hook's package at the start, such as the path of its own configuration.",
    )] = ""
    auth_http_method: Annotated[Literal["get", "post"], Option(
        "auth", "HTTP method for the web server; post keeps passwords out of its access log.", reloadable=True,
    )] = "get"
    auth_http_user_path: Annotated[str, Option(
        "auth", "URL that decides who may log in: username, password; it answers allow and tags, or deny.",
        reloadable=True,
    )] = "http://localhost:8000/auth/user"
    auth_http_vhost_path: Annotated[str, Option(
        "auth", "URL that decides who may enter a vhost: username, vhost, ip, tags.",
        reloadable=True,
    )] = "http://localhost:8000/auth/vhost"
    auth_http_resource_path: Annotated[str, Option(
        "auth", "URL that decides about permissions: username, vhost, resource, name, permission, tags.",
        reloadable=True,
    )] = "http://localhost:8000/auth/resource"
    auth_http_topic_path: Annotated[str, Option(
        "auth", "URL that decides about routing keys of topic exchanges: the same, and routing_key.",
        reloadable=True,
    )] = "http://localhost:8000/auth/topic"
    auth_http_timeout_seconds: Annotated[int, Option(
        "auth",
        "The web server must answer within this many seconds; else the broker denies.",
        low=1, high=300, reloadable=True,
    )] = 5
    auth_http_cache_seconds: Annotated[int, Option(
        "auth",
        "The broker uses an answer of the web server for this many seconds.", low=1, high=86400, reloadable=True,
    )] = 15
    auth_http_cache_entries: Annotated[int, Option(
        "auth",
        "The broker remembers at most this many answers of the web server.", low=1000, high=10_000_000, reloadable=True,
    )] = 20_000
    auth_http_ca_cert: Annotated[str, Option(
        "auth", "File with the CAs (PEM) of the web server; empty: the system's.", reloadable=True, path="file",
    )] = ""
    anonymous_login_user: Annotated[str, Option(
        "auth", "User that ANONYMOUS logins become; empty turns ANONYMOUS off.",
        reloadable=True,
    )] = ""


class Row:
    """One option in the form that file, environment, flags and help need."""

    __slots__ = ("choices", "default", "name", "option", "type")

    def __init__(self, name: str, annotation: Any, default: Any) -> None:
        self.name = name
        self.type, self.option = get_args(annotation)
        self.default = default
        self.choices: tuple[str, ...] = get_args(self.type)

    @property
    def flag(self) -> str:
        """``--amqp-port`` of ``amqp_port``."""
        return "--" + self.name.replace("_", "-")

    @property
    def environment(self) -> str:
        """``BROKERD_AMQP_PORT`` of ``amqp_port``."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def rule(self) -> str:
        """The rule for a value, in words that follow "must be"."""
        low, high = self.option.low, self.option.high
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.type is bool:
            return "true or false"
        if self.type is int:
            return f"a whole number from {low} to {high}"
        if low and high:
            return f"a text of {low} to {high} characters"
        return "a text that is not empty" if low else "a text"


OPTIONS: dict[str, Row] = {each.name: Row(each.name, each.type, each.default) for each in fields(Config)}


def load(path: str | os.PathLike[str] | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> Config:
    """The configuration from the file at ``path`` (None: no file), ``environ`` and ``flags``.

    ``flags`` are values by option name.  The caller has checked their types and bounds by
    ``OPTIONS``; None stands for a flag not given.  Raises ConfigError, one line,
    for a file that cannot be read, an unknown option or section, and a value out of bounds.
    """
    values: dict[str, Any] = {}
    if path is not None:
        values.update(_checked(_from_file(path), str(path)))
    values.update(_checked(_from_environment(environ), "environment"))
    values.update((name, value) for name, value in flags.items() if value is not None)
    return Config(**values)


def changed_options(old: Config, new: Config) -> list[Row]:
    """The options in which two configurations differ.

    A reload applies the reloadable ones, and warns that the others need a restart.
    """
    return [row for row in OPTIONS.values() if getattr(old, row.name) != getattr(new, row.name)]


def _from_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The options of a TOML file, each at top level or in its own section."""
    import tomllib  # A start without a file saves this import.

    try:
        content = tomllib.loads(read_regular(path, FILE_OCTETS_MAX).decode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at octet {error.start}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    sections = {row.option.section for row in OPTIONS.values()}
    values: dict[str, Any] = {}
    for name, value in content.items():
        if not isinstance(value, dict):
            _add(values, name, value, path)
        elif name in sections:
            for inner, inner_value in value.items():
                if inner in OPTIONS and OPTIONS[inner].option.section != name:
                    raise ConfigError(f"{path}: {inner} belongs in [{OPTIONS[inner].option.section}], not in [{name}]")
                _add(values, inner, inner_value, path)
        elif name in OPTIONS:
            _add(values, name, value, path)
        else:
            raise ConfigError(f"{path}: unknown section [{name}]{_guess(name, sections)}")
    return values


def _add(values: dict[str, Any], name: str, value: Any, path: str | os.PathLike[str]) -> None:
    """Add one option of a file to ``values``; raises ConfigError if it is unknown or given twice."""
    if name not in OPTIONS:
        raise ConfigError(f"{path}: unknown option {name}{_guess(name, OPTIONS)}")
    if name in values:
        raise ConfigError(f"{path}: {name} is given twice, at top level and in [{OPTIONS[name].option.section}]")
    values[name] = value


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The options among the environment's variables."""
    values: dict[str, Any] = {}
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NOT_OPTIONS:
            continue
        if variable.startswith(KUBERNETES_PREFIXES) or variable in KUBERNETES_NAMES:
            continue
        name = variable[len(ENVIRONMENT_PREFIX):].lower()
        if name not in OPTIONS or variable != OPTIONS[name].environment:
            known = [row.environment for row in OPTIONS.values()]
            raise ConfigError(f"environment: unknown option {variable}{_guess(variable, known)}")
        values[name] = _from_text(OPTIONS[name], value)
    return values


def _from_text(row: Row, text: str) -> Any:
    """The value that ``text`` means; a text that means no value stays a text, and the check of types refuses it."""
    if row.type is bool:
        return TRUTH.get(text.lower(), text)
    if row.type is int and text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    return text


def _checked(values: dict[str, Any], source: str) -> dict[str, Any]:
    """``values`` with the types of their options and within their bounds; raises ConfigError."""
    if not values:
        return values
    from pydantic import ValidationError  # Takes tens of milliseconds, so only if a value needs a check.

    try:
        config = _adapter().validate_python(values)
    except ValidationError as error:
        row = OPTIONS[str(error.errors(include_url=False)[0]["loc"][0])]
        name = row.environment if source == "environment" else row.name
        raise ConfigError(f"{source}: {name} = {_shown(row, values[row.name])}: must be {row.rule}") from None
    return {name: getattr(config, name) for name in values}


@cache
def _adapter() -> "TypeAdapter[Config]":
    from pydantic import TypeAdapter

    return TypeAdapter(Config)


def _shown(row: Row, value: Any) -> str:
    """A value for an error message: one line, not long, and never a secret."""
    if row.option.secret:
        return "(hidden)"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _guess(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that ``name`` is closest to, if any is close."""
    return did_you_mean(name, known).replace("'", "")

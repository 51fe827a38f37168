"""Addresses of brokers in parameters: finds their faults, and hides their passwords from people.

    amqp://user:password@host:port/vhost?heartbeat=5        without a host: this broker, as amqp:///vhost

``fault`` words refusals as RabbitMQ does, in terms of Erlang.  ``masked`` hides passwords: three asterisks stand for
each.  Knows nothing of connections.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from brokerd.links.definition import SHOVEL, UPSTREAM

MASK = "***"
PORT_MAX = 65535
AMQP_SCHEMES = ("amqp", "amqps")
URI_KEYS = {SHOVEL: ("src-uri", "dest-uri"), UPSTREAM: ("uri",)}  # the keys of a component that hold addresses
# Parameters behind the question mark (RabbitMQ).  Others are left out.
_NUMBERS = ("channel_max", "connection_timeout", "depth", "frame_max", "heartbeat")
_WORDS = {
    "auth_mechanism": ("plain", "amqplain", "external"),
    "fail_if_no_peer_cert": ("true", "false"),
    "verify": ("verify_none", "verify_peer"),
}
_AUTHORITY = re.compile(r"^([^:/?#]+://)([^/?#]*)@(.*)$", re.DOTALL)
# A password with a raw slash, no scheme, or several addresses in one text: all before the last @ may be part of one.
_LOOSE = re.compile(r"^([^:/?#]+://|)(.*)@(.*)$", re.DOTALL)
_SECRET_PARAMETER = re.compile(r"([?&]password=)[^&#]*")
_SECRET_NAME = re.compile("pass|secret|pwd", re.IGNORECASE)
_PORT = re.compile(r"^[^/?#]*//[^/?#]*:([0-9]{1,20})(?:[/?#]|$)")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def masked(uri: str) -> str:
    """The address with asterisks for its passwords."""
    found = _with_login(uri)
    if found is not None:
        scheme, user, rest = found.groups()
        name, colon, _ = user.partition(":")
        uri = f"{scheme}{name}{f':{MASK}' if colon else ''}@{rest}"
    return _without_query_password(uri)


def without_credentials(uri: str) -> str:
    """The address without user and password, as RabbitMQ shows it in states."""
    found = _with_login(uri)
    return _without_query_password(uri if found is None else found[1] + found[3])


def _without_query_password(uri: str) -> str:
    return _SECRET_PARAMETER.sub(rf"\g<1>{MASK}", uri)


def _with_login(uri: str) -> re.Match[str] | None:
    """Scheme, user with password, and the rest, if there is a user."""
    found = _AUTHORITY.match(uri)
    return _LOOSE.match(uri) if found is None or "://" in found[3].partition("?")[0] else found


def masked_term(value: Any, name: str = "", depth: int = 0) -> Any:
    """A value that is refused, with asterisks for all that may be a password: it may be an address at a wrong place.
    ``name``: its key.  What lies below the eighth level is left out, as refusals do not show it."""
    if isinstance(value, str):
        return MASK if _SECRET_NAME.search(name) else masked(value)
    if isinstance(value, list | dict) and depth == 8:
        return []
    if isinstance(value, list):
        return [masked_term(each, name, depth + 1) for each in value]
    if isinstance(value, dict):
        return {masked(key): masked_term(each, key, depth + 1) for key, each in value.items()}
    return value


def masked_value(component: str, value: Any) -> Any:
    """A parameter's value with asterisks for the passwords in its addresses."""
    return _with_uris(component, value, lambda key, number, uri: masked(uri))


def is_masked(uri: str) -> bool:
    """Whether asterisks stand for a password of the address."""
    return f":{MASK}@" in uri or f"password={MASK}" in uri


def with_kept_passwords(component: str, value: Any, before: Any) -> Any:
    """The value, where an address that is masked as one in ``before`` is gets the latter's password.

    So a form may show a parameter without its passwords, and send it back.
    """
    if not isinstance(before, Mapping):
        return value

    def kept(key: str, number: int, uri: str) -> str:
        if not is_masked(uri):
            return uri
        olds = before.get(key)
        olds = [olds] if isinstance(olds, str) else olds if isinstance(olds, list) else []
        same = [old for old in olds if isinstance(old, str) and masked(old) == uri]
        return same[0] if same else uri

    return _with_uris(component, value, kept)


def _with_uris(component: str, value: Any, change: Callable[[str, int, str], str]) -> Any:
    if component not in URI_KEYS or not isinstance(value, Mapping):
        return value
    changed = dict(value)
    for key in URI_KEYS[component]:
        there = changed.get(key)
        if isinstance(there, str):
            changed[key] = change(key, 0, there)
        elif isinstance(there, list):
            changed[key] = [change(key, number, each) if isinstance(each, str) else each
                            for number, each in enumerate(there)]  # fmt: skip
    return changed


def fault(uri: str, schemes: tuple[str, ...] = AMQP_SCHEMES) -> str | None:
    """The fault of the address, as RabbitMQ words it, or None.  The text has no password."""
    reason = _reason(uri, schemes)
    if reason is None:
        return None
    term = f'"{masked(uri)}"' if uri else "[]"  # Erlang has no empty text.
    return f'"{masked(uri)}" not a valid URI: {{{reason},{term}}}'


def _reason(uri: str, schemes: tuple[str, ...]) -> str | None:
    if "://" not in uri:
        return "{unable_to_parse_uri,no_scheme}"
    if not uri.isprintable() or " " in uri or _BAD_ESCAPE.search(uri):
        return "{unable_to_parse_uri,invalid_character}"
    from urllib.parse import urlsplit  # Few starts have links.

    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        found = _PORT.search(uri)
        if found is not None and int(found[1]) > PORT_MAX:
            return f"{{port_out_of_range,{int(found[1])}}}"
        return "{unable_to_parse_uri,invalid_host_or_port}"
    if parts.scheme not in schemes:
        return f'{{unexpected_uri_scheme,"{parts.scheme}"}}'
    if port == 0:
        return "{port_out_of_range,0}"
    if not parts.hostname and (parts.scheme != "amqp" or parts.netloc):
        return "{unable_to_parse_uri,no_host}"
    if parts.scheme not in AMQP_SCHEMES:
        return None
    if "/" in parts.path[1:]:
        if "@" in parts.path and "@" not in parts.netloc:  # A part of a password, perhaps.
            return "{unable_to_parse_uri,invalid_host_or_port}"
        return f'{{invalid_vhost,"{parts.path[1:]}"}}'
    return _parameter_fault(parts.query)


def _parameter_fault(query: str) -> str | None:
    from urllib.parse import parse_qsl

    for name, value in parse_qsl(query, keep_blank_values=True):
        wrong = ""
        if name in _NUMBERS and not (value.isdecimal() and value.isascii() and len(value) <= 9):
            wrong = f'{{not_an_integer,"{value}"}}'
        elif name in _WORDS and value not in _WORDS[name]:
            wrong = f'{{not_one_of,[{",".join(_WORDS[name])}]}}'
        if wrong:
            return f'{{invalid_amqp_params_parameter,{name},"{value}",{wrong}}}'
    return None


def local_vhost(uri: str, own: str) -> str | None:
    """The vhost of this broker that an address without a host means; None: it has a host.  ``own`` is the parameter's
    vhost, which an address without a path means."""
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(uri)
    if parts.netloc:
        return None
    return unquote(parts.path[1:], errors="surrogateescape") if len(parts.path) > 1 else own

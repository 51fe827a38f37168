"""Checks the values of parameters that make links: shovel, federation-upstream and federation-upstream-set.

``faults`` names everything that is wrong with a value, each fault as RabbitMQ words it.  Values of other components may
be anything.  Knows the keys of each component and what each may be; what they do is told by ``links.definition``.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from brokerd.links.definition import ACK_MODES, HTTP_SCHEMES, NEVER, QUEUE_LENGTH, SHOVEL, UPSTREAM, UPSTREAM_SET
from brokerd.links.uris import AMQP_SCHEMES, MASK, fault, is_masked, local_vhost
from brokerd.policies.keys import shown

Check = Callable[[str, Any], "str | None"]  # (key, value) -> what is wrong
MayEnter = Callable[[str], bool]  # whether who sets the parameter may use that vhost

NAME_OCTETS_MAX = 255
WHOLE_NUMBERS = range(-(1 << 63), 1 << 63)  # that a table of AMQP can have
DEPTH_MAX = 16  # of tables in tables
NUMBER_MAX = 1 << 32


def faults(component: str, name: str, value: Any, *, vhost: str, user: str, may_enter: MayEnter) -> list[str]:
    """The faults of the value of a parameter of that vhost, which ``user`` sets; [] if there are none."""
    check = _COMPONENTS.get(component)
    return [] if check is None else list(check(_Setter(vhost, user, may_enter), name, value))


class _Setter:
    """Who sets a parameter, and in which vhost."""

    def __init__(self, vhost: str, user: str, may_enter: MayEnter) -> None:
        self._vhost, self._user, self._may_enter = vhost, user, may_enter

    def uris(self, *schemes: str) -> Check:
        """The check of an address, or of a list of addresses."""

        def check(key: str, value: Any) -> str | None:
            if isinstance(value, str):
                return self._uri(value, schemes)
            if not isinstance(value, list):
                return f"{key} should be list, actually was {shown(value)}"
            if not value:
                return f"{key} should be a list of at least one URI, actually was []"
            for each in value:
                if not isinstance(each, str):
                    return f"{key} should be list, actually was {shown(each)}"
                wrong = self._uri(each, schemes)
                if wrong is not None:
                    return wrong
            return None

        return check

    def _uri(self, uri: str, schemes: tuple[str, ...]) -> str | None:
        wrong = fault(uri, schemes)
        if wrong is not None:
            return wrong
        if is_masked(uri):  # Nothing that is stored has the same address: there is no password to keep.
            return (f'"{uri}" has {MASK} in place of its password, and is not an address that was there before: '
                    "give the password")  # fmt: skip
        vhost = local_vhost(uri, self._vhost)
        if vhost is not None and not self._may_enter(vhost):
            return f'user "{self._user}" may not connect to vhost "{vhost}"'
        return None


# --- what a value may be


def _text(key: str, value: Any) -> str | None:
    return None if isinstance(value, str) else f"{key} should be binary, actually was {shown(value)}"


def _name(key: str, value: Any) -> str | None:
    if isinstance(value, str):
        octets = len(value.encode("utf-8", "surrogateescape"))
        return None if octets <= NAME_OCTETS_MAX else f"{key} should be less than 255 bytes, actually was {octets}"
    return _text(key, value)


def _queue(key: str, value: Any) -> str | None:
    if value == "":  # A broker would make up a name for it.
        return f"{key} should be the name of a queue, actually was {shown(value)}"
    return _name(key, value)


def _truth(key: str, value: Any) -> str | None:
    return None if isinstance(value, bool) else f"{key} should be boolean, actually was {shown(value)}"


def _is_number(value: Any, kind: Any = int) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _number(low: int, high: int = NUMBER_MAX, kind: Any = int) -> Check:
    """A whole number, or one of another kind; ends included."""

    def check(key: str, value: Any) -> str | None:
        if not _is_number(value, kind) or value != value:
            return f"{key} should be a number, actually was {shown(value)}"
        if value < low:
            return f"{key} should be a number greater than or equal to {low}, actually was {value}"
        return None if value <= high else f"{key} should be a number less than or equal to {high}, actually was {value}"

    return check


_seconds = _number(0, kind=int | float)


def _one_of(*words: str) -> Check:
    def check(key: str, value: Any) -> str | None:
        if not isinstance(value, str):
            return _text(key, value)
        choice = shown(list(words))
        return None if value in words else f"{key} should be one of {choice}, actually was {shown(value)}"

    return check


def _delete_after(key: str, value: Any) -> str | None:
    if value in (NEVER, QUEUE_LENGTH) or (_is_number(value) and 0 <= value <= NUMBER_MAX):
        return None
    if _is_number(value) and value > NUMBER_MAX:
        return _number(0)(key, value)
    return (f'{key} should be a number greater than or equal to 0, "never" or "queue-length", actually was '
            f"{shown(value)}")  # fmt: skip


def _table(key: str, value: Any) -> str | None:
    """A table of AMQP, such as arguments."""
    if value == []:  # As PHP writes an empty table (RabbitMQ).
        return None
    if not isinstance(value, dict):
        return f"{key} not a list {shown(value)}"
    for name, each in value.items():
        if len(name.encode("utf-8", "surrogateescape")) > NAME_OCTETS_MAX:
            return f"{key} has a name of more than 255 bytes"
        if not _fits_a_table(each, DEPTH_MAX):
            return f"{key} has a value that AMQP cannot carry: {shown(name)}"
    return None


def _fits_a_table(value: Any, depth: int) -> bool:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_fits_a_table(each, depth - 1) for each in inner)
    return not _is_number(value) or value in WHOLE_NUMBERS


def _properties(key: str, value: Any) -> str | None:
    if value == []:
        return None
    if not isinstance(value, dict):
        return f"{key} not a list {shown(value)}"
    return next(_keys(key, value, _PROPERTIES), None)


_PROPERTIES: dict[str, Check] = {
    **dict.fromkeys(("content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id",
                     "type", "user_id", "app_id", "cluster_id"), _name),
    "delivery_mode": _number(1, 2), "priority": _number(0, 255), "timestamp": _number(0, (1 << 63) - 1),
}  # fmt: skip


def _keys(name: str, value: Mapping[str, Any] | list[Any], checks: Mapping[str, Check], *needed: str) -> Iterator[str]:
    """The faults of a table whose keys are those of ``checks``; ``needed``: those that must be there.  A list is a
    table without keys, of which nothing is recognised (RabbitMQ)."""
    if isinstance(value, list):
        unknown, value = [shown(each) for each in value], {}
    else:
        unknown = [f"{{{shown(key)},{shown(value[key], key)}}}" for key in sorted(value) if key not in checks]
    if unknown:
        yield f"Unrecognised terms [{','.join(unknown)}] in {name}"
    for key in needed:
        if key not in value:
            yield f'Key "{key}" not found in {name}'
    for key, check in checks.items():
        if key in value:
            wrong = check(key, value[key])
            if wrong is not None:
                yield wrong


# --- components


def _shovel(setter: _Setter, name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict | list):
        yield f"{name} not a list {shown(value)}"
        return
    given = value if isinstance(value, dict) else {}
    if "src-exchange" not in given and "src-queue" not in given:
        yield "Must specify 'src-exchange' or 'src-queue'"
    elif "src-exchange" in given and "src-queue" in given:
        yield "Cannot specify 'src-exchange' and 'src-queue'"
    after = given.get("src-delete-after", given.get("delete-after"))
    if _is_number(after) and given.get("ack-mode") == "no-ack":
        yield "Cannot specify 'no-ack' and numerical 'delete-after'"
    if "dest-exchange" in given and "dest-queue" in given:
        yield "Cannot specify 'dest-exchange' and 'dest-queue'"
    to = given.get("dest-uri")
    to = to if isinstance(to, list) else []
    web = [each.lower().startswith(HTTP_SCHEMES) for each in to if isinstance(each, str)]
    if any(web) and not all(web):
        yield "Cannot specify URIs of brokers and of web servers in one 'dest-uri'"
    checks = {
        **_SHOVEL_KEYS, "src-uri": setter.uris(*AMQP_SCHEMES), "dest-uri": setter.uris(*AMQP_SCHEMES, "http", "https"),
    }  # fmt: skip
    yield from _keys(name, value, checks, "dest-uri", "src-uri")


_PROTOCOLS = _one_of("amqp091", "local")
_SHOVEL_KEYS: dict[str, Check] = {
    "reconnect-delay": _seconds,
    "ack-mode": _one_of(*reversed(ACK_MODES)),
    "src-protocol": _PROTOCOLS,
    "dest-protocol": _PROTOCOLS,
    "src-queue": _queue,
    "src-queue-args": _table,
    "src-exchange": _name,
    "src-exchange-key": _name,
    "src-consumer-args": _table,
    "src-predeclared": _truth,
    "src-prefetch-count": _number(0, 65535),
    "prefetch-count": _number(0, 65535),
    "src-delete-after": _delete_after,
    "delete-after": _delete_after,
    "dest-queue": _queue,
    "dest-queue-args": _table,
    "dest-exchange": _name,
    "dest-exchange-key": _name,
    "dest-predeclared": _truth,
    "dest-add-forward-headers": _truth,
    "add-forward-headers": _truth,
    "dest-add-timestamp-header": _truth,
    "add-timestamp-header": _truth,
    "dest-publish-properties": _properties,
    "publish-properties": _properties,
    # brokerd's own
    "dest-retries": _number(-1),
    "dedup": _truth,
}


def _upstream(setter: _Setter, name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict | list):
        yield f"{name} not a list {shown(value)}"
        return
    yield from _keys(name, value, {**_UPSTREAM_KEYS, "uri": setter.uris(*AMQP_SCHEMES)}, "uri")


def _upstream_set(setter: _Setter, name: str, value: Any) -> Iterator[str]:
    if value == {}:
        return
    if not isinstance(value, list):
        yield f"{name} not a list {shown(value)}"
        return
    for each in value:
        if isinstance(each, dict | list):
            yield from _keys(name, each, {"upstream": _text, **_UPSTREAM_KEYS}, "upstream")
        else:
            yield f"{name} not a list {shown(each)}"


_UPSTREAM_KEYS: dict[str, Check] = {
    "exchange": _name,
    "queue": _name,
    "consumer-tag": _name,
    "prefetch-count": _number(0, 65535),
    "reconnect-delay": _seconds,
    "max-hops": _number(1),
    "expires": _number(1),
    "message-ttl": _number(0),
    "trust-user-id": _truth,
    "ack-mode": _one_of(*reversed(ACK_MODES)),
    "resource-cleanup-mode": _one_of("default", "never"),
    "queue-type": _one_of("classic", "quorum"),
    "bind-nowait": _truth,
    "channel-use-mode": _one_of("multiple", "single"),
    "ha-policy": _text,
}

_COMPONENTS: dict[str, Callable[[_Setter, str, Any], Iterator[str]]] = {
    SHOVEL: _shovel, UPSTREAM: _upstream, UPSTREAM_SET: _upstream_set,
}  # fmt: skip

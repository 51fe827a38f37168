"""The keys of a policy's definition: the values of each, the kinds of things it is not for, and how two values join.

Most keys are queue arguments without their ``x-`` and come from the rows in ``brokerd.arguments``; the others stand
here.  brokerd accepts RabbitMQ's keys that have no effect here, so that it can use RabbitMQ's definitions unchanged.
Refusals are worded as RabbitMQ words them; ``words`` has others for files.  Knows nothing of what a key does.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from brokerd.arguments import BY_POLICY_KEY, RULES, Check, Merge, boolean, integer, one_of, short_string, string
from brokerd.patterns import PatternError, compiled

Valid = Callable[[Any], bool]
_BESIDE_AN_EXCHANGE = {"x-dead-letter-exchange": ""}  # a policy's dead-letter routing key may stand alone (RabbitMQ)


class PolicyKey(NamedTuple):
    """One key.  ``rule``: what a value must be, in words that follow "must be".  ``merge`` joins the values of a policy
    and an operator policy; None: the operator's value wins."""

    valid: Valid
    called: str = ""
    operator: bool = False
    merge: Merge | None = None
    rule: str = "anything"


def _key(check: Check, called: str, *, operator: bool = False, merge: Merge | None = None) -> PolicyKey:
    return PolicyKey(lambda value: check(value, _BESIDE_AN_EXCHANGE) is None, called, operator, merge, RULES[check])


def _any(_: Any) -> bool:
    return True


KEYS: dict[str, PolicyKey] = {
    **{key: _key(row.check, row.called, operator=row.operator, merge=row.merge) for key, row in BY_POLICY_KEY.items()},
    "alternate-exchange": _key(short_string, "alternate exchange name"),
    "delayed-message": _key(boolean, "delayed-message value"),
    "federation-upstream": _key(string, "federation upstream name"),
    "federation-upstream-pattern": _key(string, "federation upstream pattern name"),
    "federation-upstream-set": _key(string, "federation upstream set name"),
    # RabbitMQ's, without effect here.
    "consumer-disconnected-timeout": _key(integer(0), "consumer disconnected timeout"),
    "ha-mode": _key(one_of(("all", "exactly", "nodes"), ""), "ha-mode value"),
    "ha-params": PolicyKey(_any),
    "ha-promote-on-failure": _key(string, "ha-promote-on-failure value"),
    "ha-promote-on-shutdown": _key(string, "ha-promote-on-shutdown value"),
    "ha-sync-batch-size": _key(integer(1), "ha-sync-batch-size value"),
    "ha-sync-mode": _key(string, "ha-sync-mode value"),
    "initial-cluster-size": _key(integer(0), "cluster size"),
    "shards-per-node": _key(integer(0), "shards-per-node value"),
    "stream-filter-size-bytes": _key(integer(16), "filter size"),
    "target-group-size": _key(integer(0), "target group size"),
}

UPSTREAM_PATTERN = "federation-upstream-pattern"
ONE_OF_UPSTREAMS = ("federation-upstream", "federation-upstream-set", UPSTREAM_PATTERN)

# A policy with one of these keys does not apply to things of that kind, not even its other keys: the next policy that
# matches applies (RabbitMQ 3.10).  RabbitMQ also lists delivery-limit for classic queues and max-length for streams,
# which have it in brokerd.
NOT_FOR: dict[str, frozenset[str]] = {
    "classic_queues": frozenset({
        "dead-letter-strategy", "initial-cluster-size", "max-age", "stream-max-segment-size-bytes",
    }),
    "quorum_queues": frozenset({
        "ha-mode", "ha-params", "ha-promote-on-failure", "ha-promote-on-shutdown", "ha-sync-mode",
        "initial-cluster-size", "max-age", "queue-master-locator", "queue-mode", "stream-max-segment-size-bytes",
    }),
    "streams": frozenset({
        "dead-letter-exchange", "dead-letter-routing-key", "delivery-limit", "expires", "ha-mode", "message-ttl",
        "overflow", "queue-mode",
    }),
    "exchanges": frozenset(),
}  # fmt: skip


def fault(definition: Mapping[str, Any], *, operator: bool) -> str | None:
    """Why these settings cannot be a policy's (or an operator policy's), as RabbitMQ words it, or None."""
    unknown = [key for key in definition if key not in KEYS or (operator and not KEYS[key].operator)]
    if unknown:
        settings = ",".join([f"{{{shown(key)},{shown(definition[key], key)}}}" for key in unknown])
        return f"[{settings}] are not recognised policy settings"
    for key in sorted(definition):
        if not KEYS[key].valid(definition[key]):
            return f"{shown(definition[key])} is not a valid {KEYS[key].called}"
    if len(definition.keys() & ONE_OF_UPSTREAMS) > 1:
        return "cannot specify federation-upstream, federation-upstream-set or federation-upstream-pattern together"
    if UPSTREAM_PATTERN in definition:
        return _pattern_fault(definition[UPSTREAM_PATTERN])
    return None


def _pattern_fault(pattern: str) -> str | None:
    try:
        compiled(pattern)
    except PatternError as error:
        return f"could not compile pattern {pattern} to a regular expression. Error: {error}"
    return None


def merged(definition: Mapping[str, Any], operators: Mapping[str, Any]) -> dict[str, Any]:
    """The definition of a policy and an operator policy together.

    For a key in both, its row says how the values join, which for limits is the lower one; else the operator's wins.
    """
    both = {**definition, **operators}
    for key in definition.keys() & operators.keys():
        merge = KEYS[key].merge
        if merge is not None:
            both[key] = merge(definition[key], operators[key])
    return both


def shown(value: Any, name: str = "") -> str:
    """A value that is refused, as RabbitMQ's texts show it, and without what may be a password.  ``name``: its key."""
    from brokerd.links.uris import masked_term  # Only refusals need it.

    return format_json_term(masked_term(value, name))


def format_json_term(value: Any, depth: int = 0) -> str:
    """A JSON value as RabbitMQ's texts show it: an Erlang term.  ``...`` stands for levels below the eighth."""
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
        case str():
            return f'<<"{value}">>'
        case list() | dict() if depth == 8:
            return "..."
        case list():
            return f"[{','.join([format_json_term(item, depth + 1) for item in value])}]"
        case dict():
            items = [f"{format_json_term(key)} => {format_json_term(item, depth + 1)}" for key, item in value.items()]
            return f"#{{{','.join(items)}}}"
    return str(value)

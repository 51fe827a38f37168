"""Queue arguments: one row each, which declare, definitions and policies read.

A row says which values an argument may have, which types of queue may have it, under which key a policy may give it,
and how the values of both join.  Refusals are worded as RabbitMQ 3.10 words them.  The broker stores and shows an
argument without a row; it neither checks nor compares it (RabbitMQ).  Knows nothing of queues; what a value does is
said in ``queues/rules``.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from brokerd.wire.values import Timestamp, type_name

Arguments = Mapping[str, Any]
Check = Callable[[Any, Arguments], "str | None"]  # None: the value is valid; else the reason why it is not
Merge = Callable[[Any, Any], Any]

CLASSIC, QUORUM, STREAM = ("classic",), ("quorum",), ("stream",)
EITHER = ("classic", "quorum")
ANY = ("classic", "quorum", "stream")
QUEUE_TYPES = ("classic", "quorum", "stream")
RULES: dict[Check, str] = {}  # what a value must be, in words that follow "must be"
EXPIRY_MS_MAX = 10 * 365 * 24 * 60 * 60 * 1000
INT64_MAX = (1 << 63) - 1
SHORT_STRING_OCTETS_MAX = 255
OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
DEDUPLICATION_SCOPES = ("queue", "group", "waiting")
DEDUPLICATION_ACTIONS = ("ack", "nack", "dead-letter", "replace")
LIMIT_ACTIONS = ("dead-letter", "drop", "block", "park-group")
RETRY_TYPES = ("disabled", "all", "failed", "returned")  # RabbitMQ 4.3
RETRY_BACKOFFS = ("linear", "exponential", "fixed")
RETRY_SCOPES = ("message", "group")
STRATEGIES = ("at-most-once", "at-least-once")
GROUP_MODES = ("off", "exclusive", "sticky")
GROUP_DEFAULTS = ("free", "single", "reject")
GROUP_INFLIGHT_MAX = (1 << 31) - 1
LEADER_LOCATORS = ("client-local", "balanced", "random", "least-leaders")
MASTER_LOCATORS = ("client-local", "min-masters", "random")
_DAY_MS = 24 * 60 * 60 * 1000
AGE_UNITS_MS = {  # as RabbitMQ reads x-max-age: a year has 365 days, a month 30
    "Y": 365 * _DAY_MS, "M": 30 * _DAY_MS, "D": _DAY_MS, "h": 60 * 60 * 1000, "m": 60 * 1000, "s": 1000,
}


# --- checks


def _unacceptable(value: Any) -> str:
    return f"{{unacceptable_type,{type_name(value)}}}"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def integer(least: int = 0, most: int = INT64_MAX, *, too_big: str = "max_value_exceeded") -> Check:
    """A whole number from ``least`` to ``most``."""

    def check(value: Any, _: Arguments) -> str | None:
        if not _is_integer(value):
            return f'"expected integer, got {type_name(value)}"'
        if value < least:
            return f"{{value_{'negative' if value < 0 else 'zero'},{value}}}"
        if value > most:
            return f"{{{too_big},{value}}}"
        return None

    RULES[check] = f"a whole number from {least}" + (f" to {most}" if most < INT64_MAX else "")
    return check


def boolean(value: Any, _: Arguments) -> str | None:
    """True or false."""
    return None if isinstance(value, bool) else _unacceptable(value)


def string(value: Any, _: Arguments) -> str | None:
    """Any text."""
    return None if isinstance(value, str) else _unacceptable(value)


def one_of(choices: tuple[str, ...], refusal: str) -> Check:
    """One of ``choices``; ``refusal`` is RabbitMQ's text for any other value, with {} where the value goes."""

    def check(value: Any, _: Arguments) -> str | None:
        if not isinstance(value, str):
            return _unacceptable(value)
        return None if value in choices else refusal.replace("{}", value)

    RULES[check] = f"one of {', '.join(choices)}"
    return check


def listed(choices: tuple[str, ...]) -> Check:
    """One of ``choices``; the refusal lists them."""
    *most, last = choices
    return one_of(choices, f"\"'{{}}' is not {', '.join(most)} or {last}\"")


def short_string(value: Any, _: Arguments) -> str | None:
    """A text that is a short string of AMQP (4.2.5.3), as names and routing keys are: a message with a longer one can
    be neither stored nor delivered."""
    if not isinstance(value, str):
        return _unacceptable(value)
    try:
        octets = len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:  # JSON can have half of a character.
        return '"no UTF-8"'
    return None if octets <= SHORT_STRING_OCTETS_MAX else f'"{octets} octets, at most {SHORT_STRING_OCTETS_MAX}"'


def dead_letter_routing_key(value: Any, arguments: Arguments) -> str | None:
    """A short string, if the queue also has a dead-letter exchange."""
    refusal = short_string(value, arguments)
    if refusal is not None:
        return refusal
    return None if "x-dead-letter-exchange" in arguments else "routing_key_but_no_dlx_defined"


def header_name(value: Any, arguments: Arguments) -> str | None:
    """A short string that is not empty."""
    return short_string(value, arguments) or (None if value else '"an empty name"')


def without_single_active(check: Check) -> Check:
    """``check``, for what excludes a single active consumer; the value "off" does not."""

    def both(value: Any, arguments: Arguments) -> str | None:
        refusal = check(value, arguments)
        if refusal is None and value != "off" and arguments.get("x-single-active-consumer") is True:
            return '"message groups and x-single-active-consumer exclude each other"'
        return refusal

    RULES[both] = RULES[check]
    return both


def has_groups(arguments: Arguments) -> bool:
    """Whether the arguments ask for message groups."""
    return arguments.get("x-message-group", "off") != "off" or "qpid.group_header_key" in arguments


def _scope(value: Any, arguments: Arguments) -> str | None:
    """Messages that wait with a returned one; ``message`` would break the order of its group."""
    refusal = _any_scope(value, arguments)
    if refusal is None and value == "message" and has_groups(arguments):
        return "\"message groups exclude 'message'\""
    return refusal


def _jitter(value: Any, arguments: Arguments) -> str | None:
    """0 to 100; with message groups 0, because a whole group waits."""
    refusal = _percent(value, arguments)
    if refusal is None and value and has_groups(arguments):
        return '"in a message group there is no jitter"'
    return refusal


_any_integer = integer()
_percent = integer(0, 100)
_any_scope = listed(RETRY_SCOPES)
RULES[_scope] = RULES[_any_scope]
RULES[_jitter] = f"{RULES[_percent]}, and with message groups 0"


def queue_version(value: Any, arguments: Arguments) -> str | None:
    """1 or 2."""
    return _any_integer(value, arguments) or (None if value in (1, 2) else f"\"unsupported queue version '{value}'\"")


def age_ms(text: str) -> int | None:
    """The milliseconds that a text such as ``7D`` or ``12h`` means: a number from 1 and one of ``AGE_UNITS_MS``.

    None for other texts.
    """
    digits, unit = text[:-1], text[-1:]
    if unit not in AGE_UNITS_MS or not digits.isascii() or not digits.isdigit() or len(digits) > 15:
        return None
    return int(digits) * AGE_UNITS_MS[unit] or None


def age(value: Any, _: Arguments) -> str | None:
    """A time with its unit, as ``age_ms`` reads it; the refusal is RabbitMQ's for ``x-max-age``."""
    if not isinstance(value, str):
        return _unacceptable(value)
    return "invalid_max_age" if age_ms(value) is None else None


def age_or_ms(value: Any, arguments: Arguments) -> str | None:
    """A time with its unit, or a whole number of milliseconds."""
    if _is_integer(value):
        return _retention_ms(value, arguments)
    if isinstance(value, str) and age_ms(value) is None:
        return f"\"'{value}' is not a number and one of {', '.join(AGE_UNITS_MS)}\""
    return None if isinstance(value, str) else _unacceptable(value)


_retention_ms = integer(0, EXPIRY_MS_MAX, too_big="value_too_large")
RULES |= {
    age_or_ms: f"a number of milliseconds, or a text of a number and its unit ({', '.join(AGE_UNITS_MS)}), such as 7D",
    header_name: f"a text of 1 to {SHORT_STRING_OCTETS_MAX} octets",
    boolean: "true or false",
    string: "a text",
    short_string: f"a text of at most {SHORT_STRING_OCTETS_MAX} octets",
    dead_letter_routing_key: f"a text of at most {SHORT_STRING_OCTETS_MAX} octets",
    queue_version: "1 or 2",
    age: f"a text of a number and its unit ({', '.join(AGE_UNITS_MS)}), such as 7D",
}


def retry_max(value: Any, arguments: Arguments) -> str | None:
    """A time in ms, not below ``x-delayed-retry-min``."""
    refusal = _retry_ms(value, arguments)
    least = arguments.get("x-delayed-retry-min")
    if refusal is None and _is_integer(least) and value < least:
        return f'"{value} is below x-delayed-retry-min, {least}"'
    return refusal


_retry_ms = integer(1, EXPIRY_MS_MAX, too_big="value_too_large")
RULES[retry_max] = f"{RULES[_retry_ms]}, and not below x-delayed-retry-min"

# --- merge rules: how the value of an argument joins a policy's, and a policy's joins an operator policy's


def lesser_limit(none: int) -> Merge:
    """The rule that takes the lesser of two limits, where the value ``none`` means no limit."""

    def merge(one: int, other: int) -> int:
        return other if one == none else one if other == none else min(one, other)

    return merge


def lesser_age(one: Any, other: Any) -> Any:
    """The shorter of two times with their units."""
    return min(one, other, key=lambda text: age_ms(text) or 0)


# --- the rows


class QueueArgument(NamedTuple):
    """One row: the argument's name and check, the types of queue that may have it, and how a policy's value joins."""

    name: str
    check: Check
    types: tuple[str, ...] = EITHER
    policy_key: str | None = None
    called: str = ""  # its name in the refusal of a policy: ``5 is not a valid ...``
    merge: Merge | None = None  # None: the argument wins over a policy, an operator policy over a user's policy
    operator: bool = False  # an operator policy may set it


def _number(name: str, check: Check, called: str, **more: Any) -> QueueArgument:
    """A limit that policies and operators may lower."""
    settings: dict[str, Any] = {"merge": min, "operator": True} | more
    return QueueArgument(name, check, policy_key=name[2:], called=called, **settings)


def _word(name: str, check: Check, called: str, **more: Any) -> QueueArgument:
    """A choice that a policy may make for queues without the argument."""
    return QueueArgument(name, check, policy_key=name[2:], called=called, **more)


_QPID_KEY = without_single_active(header_name)

# In the order in which RabbitMQ checks them, so that both report the same of several faults.
QUEUE_ARGUMENTS = (
    QueueArgument("x-queue-type", one_of(QUEUE_TYPES, "\"unsupported queue type '{}'\""), types=QUEUE_TYPES),
    _number("x-expires", integer(1, EXPIRY_MS_MAX, too_big="value_too_large"), "queue expiry"),
    _number("x-message-ttl", integer(0, EXPIRY_MS_MAX, too_big="value_too_large"), "message TTL"),
    _word("x-dead-letter-exchange", short_string, "dead letter exchange name"),
    _word("x-dead-letter-routing-key", dead_letter_routing_key, "dead letter routing key"),
    _word("x-dead-letter-strategy", one_of(STRATEGIES, "invalid_dlx_strategy"), "dead letter strategy", types=QUORUM),
    _number("x-max-length", integer(), "maximum length", types=ANY),
    _number("x-max-length-bytes", integer(), "maximum length in bytes", types=ANY),
    _number("x-max-in-memory-length", integer(), "maximum memory in bytes", types=QUORUM),
    _number("x-max-in-memory-bytes", integer(), "maximum memory in bytes", types=QUORUM),
    QueueArgument("x-max-priority", integer(0, 255), types=CLASSIC),
    _word("x-overflow", one_of(OVERFLOWS, "invalid_overflow"), "overflow value", operator=True),
    _word("x-queue-mode", one_of(("default", "lazy"), "\"unsupported queue mode '{}'\""), "queue-mode value",
          types=CLASSIC),
    _word("x-queue-version", queue_version, "queue-version value", types=CLASSIC, operator=True),
    QueueArgument("x-single-active-consumer", boolean, types=ANY),
    QueueArgument("x-quorum-initial-group-size", integer(1), types=QUORUM),
    _word("x-max-age", age, "max age", types=STREAM, merge=lesser_age),
    _number("x-stream-max-segment-size-bytes", integer(), "segment size", types=STREAM, operator=False),
    QueueArgument("x-stream-filter-size-bytes", integer(16, 255), types=STREAM),
    QueueArgument("x-initial-cluster-size", integer(1), types=STREAM),
    _word("x-queue-leader-locator", one_of(LEADER_LOCATORS, "invalid_queue_locator_arg"), "queue leader locator value",
          types=ANY),
    _word("x-queue-master-locator", one_of(MASTER_LOCATORS, "invalid_queue_locator_arg"), "master locator",
          types=CLASSIC),
    _number("x-delivery-limit", integer(-1), "delivery limit", merge=lesser_limit(-1)),
    _word("x-delivery-limit-action", one_of(LIMIT_ACTIONS, "invalid_delivery_limit_action"), "delivery limit action"),
    _word("x-delayed-retry-type", listed(RETRY_TYPES), "delayed retry type", operator=True),
    _number("x-delayed-retry-min", _retry_ms, "delayed retry minimum"),
    _number("x-delayed-retry-max", retry_max, "delayed retry maximum"),
    _word("x-delayed-retry-backoff", listed(RETRY_BACKOFFS), "delayed retry backoff"),
    _word("x-delayed-retry-jitter", _jitter, "delayed retry jitter"),
    _word("x-delayed-retry-scope", _scope, "delayed retry scope"),
    _number("x-consumer-timeout", integer(0, EXPIRY_MS_MAX, too_big="value_too_large"), "consumer timeout",
            merge=lesser_limit(0), operator=False),
    _word("x-consumer-timeout-action", one_of(("return", "close"), "invalid_consumer_timeout_action"),
          "consumer timeout action"),
    _word("x-message-deduplication", boolean, "message deduplication value", types=ANY),
    _word("x-deduplication-header", string, "deduplication header", types=ANY),
    _word("x-deduplication-scope", listed(DEDUPLICATION_SCOPES), "deduplication scope"),
    _word("x-deduplication-content", boolean, "deduplication content value", types=ANY),
    _word("x-deduplication-action", listed(DEDUPLICATION_ACTIONS), "deduplication action"),
    _word("x-cache-size", integer(), "cache size", types=ANY),
    _word("x-cache-ttl", integer(0, EXPIRY_MS_MAX, too_big="value_too_large"), "cache TTL", types=ANY),
    _word("x-retention-age", age_or_ms, "retention age", operator=True),
    _word("x-retention-bytes", integer(), "retention in bytes", operator=True),
    _word("x-message-group", without_single_active(listed(GROUP_MODES)), "message group value"),
    _word("x-message-group-header", header_name, "message group header", types=ANY),
    QueueArgument("qpid.group_header_key", _QPID_KEY),
    _word("x-group-default", listed(GROUP_DEFAULTS), "group default value"),
    _word("x-group-max-inflight", integer(1, GROUP_INFLIGHT_MAX), "group max inflight"),
    _word("x-group-idle-timeout", integer(0, EXPIRY_MS_MAX, too_big="value_too_large"), "group idle timeout"),
    _word("x-order-journal", boolean, "order journal value", operator=True),
    _word("x-order-journal-retention-bytes", integer(), "order journal retention in bytes", operator=True),
    _word("x-order-journal-retention-age", age, "order journal retention age", operator=True),
)  # fmt: skip
BY_NAME = {row.name: row for row in QUEUE_ARGUMENTS}
BY_POLICY_KEY = {row.policy_key: row for row in QUEUE_ARGUMENTS if row.policy_key is not None}


# --- reading them


def queue_type(arguments: Arguments) -> str:
    """``classic`` unless the arguments say otherwise."""
    return arguments.get("x-queue-type", "classic")


def fault(arguments: Arguments, thing: str) -> str | None:
    """Why a queue cannot have these arguments, as RabbitMQ words it; None: it can.

    ``thing`` is "queue 'q' in vhost '/'".
    """
    kind, by_name = queue_type(arguments), BY_NAME
    for name, value in arguments.items():
        row = by_name.get(name)
        if row is not None and (kind not in row.types or row.check(value, arguments) is not None):
            return _first_fault(arguments, kind, thing)
    return None


def _first_fault(arguments: Arguments, kind: Any, thing: str) -> str | None:
    """The one of several faults that RabbitMQ reports.

    Invalid values come first, in the order of the rows; then arguments that are not for this type of queue, in the
    order of the arguments.
    """
    exchange = arguments.get("x-dead-letter-exchange", "")
    if not isinstance(exchange, str):
        return f"invalid type '{type_name(exchange)}' for arg 'x-dead-letter-exchange' in {thing}"
    for row in QUEUE_ARGUMENTS:
        if row.name in arguments and (kind in row.types or row.name == "x-queue-type"):
            reason = row.check(arguments[row.name], arguments)
            if reason is not None:
                return f"invalid arg '{row.name}' for {thing}: {reason}"
    for name in arguments:
        if name in BY_NAME and kind not in BY_NAME[name].types:
            return f"invalid arg '{name}' for {thing} of queue type rabbit_{kind}_queue"
    return None


def first_difference(current: Arguments, received: Arguments, compared: tuple[str, ...]) -> str | None:
    """How ``received`` differs from ``current``, for the first name in ``compared`` that differs; as RabbitMQ words it.

    The text follows ``inequivalent arg ``: ``'x-expires' for {}: received '5' but current is '6'``.  The caller puts
    the thing's name in by ``format``.  Values of two types differ, but all whole numbers have one type.
    """
    for name in compared:
        default = _DEFAULTS.get(name, _ABSENT)
        old, new = current.get(name, default), received.get(name, default)
        if old is new or _same(old, new):
            continue
        if old is _ABSENT or new is _ABSENT:
            return f"'{name}' for {{}}: received {_described(new)} but current is {_described(old)}"
        return f"'{name}' for {{}}: received '{_shown(new)}' but current is '{_shown(old)}'"
    return None


COMPARED_QUEUE_ARGUMENTS = tuple(BY_NAME)
_ABSENT = object()
_DEFAULTS = {"x-queue-type": "classic"}  # a text shows it as if the client had given it (RabbitMQ 4; 3.10 says none)


def _same(one: Any, other: Any) -> bool:
    if one is _ABSENT or other is _ABSENT or one != other:
        return False
    return type_name(one) == type_name(other) or (_is_integer(one) and _is_integer(other))


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("{", "{{").replace("}", "}}")


def _described(value: Any) -> str:
    return "none" if value is _ABSENT else f"the value '{_shown(value)}' of type '{type_name(value)}'"

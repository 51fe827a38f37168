"""Queue arguments: one row each, read by declare, policies and whoever shows them.

A row is (name, check, policy key, merge).  ``check(value, arguments)`` returns
None or the reason as RabbitMQ words it, for the 406 reply ``invalid arg 'x' for
queue 'q' in vhost '/': reason``.  Names without a row are kept, shown, and
neither checked nor compared (RabbitMQ).  Knows nothing of queues.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from brokerd.wire.values import Timestamp, type_name

Arguments = Mapping[str, Any]
Check = Callable[[Any, Arguments], "str | None"]

QUEUE_TYPES = ("classic", "quorum")
EXPIRY_MS_MAX = 10 * 365 * 24 * 60 * 60 * 1000
OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")


def _unacceptable(value: Any) -> str:
    return f"{{unacceptable_type,{type_name(value)}}}"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def integer(least: int = 0, most: int | None = None, *, too_big: str = "max_value_exceeded") -> Check:
    """A whole number from ``least`` (0 or 1) to ``most``."""

    def check(value: Any, _: Arguments) -> str | None:
        if not _is_integer(value):
            return _unacceptable(value)
        if value < 0:
            return f"{{value_negative,{value}}}"
        if value < least:
            return f"{{value_zero,{value}}}"
        if most is not None and value > most:
            return f"{{{too_big},{value}}}"
        return None

    return check


def boolean(value: Any, _: Arguments) -> str | None:
    """True or false."""
    return None if isinstance(value, bool) else _unacceptable(value)


def string(value: Any, _: Arguments) -> str | None:
    """Any text."""
    return None if isinstance(value, str) else _unacceptable(value)


def one_of(choices: tuple[str, ...], refusal: str) -> Check:
    """One of ``choices``; ``refusal`` is RabbitMQ's word for anything else, with {} for the value."""

    def check(value: Any, _: Arguments) -> str | None:
        if not isinstance(value, str):
            return _unacceptable(value)
        return None if value in choices else refusal.format(value)

    return check


def dead_letter_routing_key(value: Any, arguments: Arguments) -> str | None:
    """Text, and only beside a dead-letter exchange."""
    if not isinstance(value, str):
        return _unacceptable(value)
    return None if "x-dead-letter-exchange" in arguments else "routing_key_but_no_dlx_defined"


class QueueArgument(NamedTuple):
    """One row: what the argument is called, may be, and how a policy's value joins it."""

    name: str
    check: Check
    policy_key: str | None = None
    merge: Callable[[Any, Any], Any] | None = None  # of argument and policy; None: the argument wins


QUEUE_ARGUMENTS = (
    QueueArgument("x-queue-type", one_of(QUEUE_TYPES, "\"unsupported queue type '{}'\"")),
    QueueArgument("x-expires", integer(1, EXPIRY_MS_MAX, too_big="value_too_large"), "expires", min),
    QueueArgument("x-message-ttl", integer(0, EXPIRY_MS_MAX, too_big="value_too_large"), "message-ttl", min),
    QueueArgument("x-max-length", integer(), "max-length", min),
    QueueArgument("x-max-length-bytes", integer(), "max-length-bytes", min),
    QueueArgument("x-overflow", one_of(OVERFLOWS, "invalid_overflow"), "overflow"),
    QueueArgument("x-dead-letter-exchange", string, "dead-letter-exchange"),
    QueueArgument("x-dead-letter-routing-key", dead_letter_routing_key, "dead-letter-routing-key"),
    QueueArgument("x-max-priority", integer(0, 255)),
    QueueArgument("x-single-active-consumer", boolean),
    QueueArgument("x-delivery-limit", integer(), "delivery-limit", min),
    QueueArgument("x-consumer-timeout", integer(), "consumer-timeout", min),
)
BY_NAME = {argument.name: argument for argument in QUEUE_ARGUMENTS}


def first_fault(arguments: Arguments) -> tuple[str, str] | None:
    """(name, reason) of the first row that refuses its value, or None when all is well."""
    for name, check, _, _ in QUEUE_ARGUMENTS:
        if name in arguments:
            reason = check(arguments[name], arguments)
            if reason is not None:
                return name, reason
    return None


def queue_type(arguments: Arguments) -> str:
    """``classic`` unless the arguments say otherwise."""
    return arguments.get("x-queue-type", "classic")


def first_difference(current: Arguments, received: Arguments, compared: tuple[str, ...]) -> str | None:
    """How ``received`` differs from ``current`` in the first of ``compared`` that does, as RabbitMQ words it.

    The text continues ``inequivalent arg ``: ``'x-expires' for {}: received '5' but current is '6'``, with {} for
    the thing's name.  All whole numbers are one type, all else must be of equal type.
    """
    for name in compared:
        default = _DEFAULTS.get(name, _ABSENT)
        old, new = current.get(name, default), received.get(name, default)
        if old is _ABSENT and new is _ABSENT:
            continue
        if old is not _ABSENT and new is not _ABSENT:
            if old == new and isinstance(old, bool) == isinstance(new, bool):
                continue
            return f"'{name}' for {{}}: received '{_shown(new)}' but current is '{_shown(old)}'"
        return f"'{name}' for {{}}: received {_described(new)} but current is {_described(old)}"
    return None


COMPARED_QUEUE_ARGUMENTS = tuple(BY_NAME)
_ABSENT = object()
_DEFAULTS = {"x-queue-type": "classic"}


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _described(value: Any) -> str:
    return "none" if value is _ABSENT else f"the value '{_shown(value)}' of type '{type_name(value)}'"

"""Exchange arguments: one row each, which declare and redeclare read.

A row is (name, check, types, required).  ``check(value, arguments, thing)`` returns None or the text of the 406 reply,
in RabbitMQ's words where RabbitMQ checks the argument too; ``thing`` is ``exchange 'x' in vhost '/'``.  A row without
types is for exchanges of all types; an exchange that delays has the rows of its inner type too.  The broker stores and
shows an argument without a row; it neither checks nor compares it.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.arguments import BY_NAME, listed
from brokerd.errors import PreconditionFailed
from brokerd.exchanges.terms import format_amqp_term
from brokerd.wire.values import Timestamp, type_name

if TYPE_CHECKING:
    from brokerd.exchanges.exchange import Exchange

Arguments = Mapping[str, Any]
Check = Callable[[Any, Arguments, str], "str | None"]

ALTERNATE_EXCHANGE = ("alternate-exchange", "x-alternate-exchange")  # RabbitMQ's name, LavinMQ's
DEDUPLICATION = ("x-message-deduplication", "x-deduplication-header", "x-deduplication-content", "x-cache-size",
                 "x-cache-ttl")
SCOPE, ACTION = "x-deduplication-scope", "x-deduplication-action"
EXCHANGE_SCOPES = ("exchange", "group")  # No message waits in an exchange, so no message is there to be replaced.
EXCHANGE_ACTIONS = ("ack", "nack")
DELAYED_TYPE, DELAYED_EXCHANGE = "x-delayed-type", "x-delayed-exchange"
HASH_PROPERTIES = ("correlation_id", "message_id", "timestamp")
RING, JUMP = "ring", "jump"
# These are names and not classes, so that this module need not import the types.
_CONSISTENT_HASH = ("x-consistent-hash",)
_DELAYED = ("x-delayed-message", "x-delayed-exchange")
_RECENT_HISTORY = ("x-recent-history",)
_FEDERATION_UPSTREAM = ("x-federation-upstream",)
MAX_HOPS = "x-max-hops"


class ExchangeArgument(NamedTuple):
    """One row."""

    name: str
    check: Check
    types: tuple[str, ...] = ()
    required: bool = False


def string(name: str) -> Check:
    """Any text."""

    def check(value: Any, _: Arguments, thing: str) -> str | None:
        return None if isinstance(value, str) else f"invalid type '{type_name(value)}' for arg '{name}' in {thing}"

    return check


def _boolean(name: str) -> Check:
    def check(value: Any, _: Arguments, thing: str) -> str | None:
        return None if isinstance(value, bool) else f"invalid type '{type_name(value)}' for arg '{name}' in {thing}"

    return check


def _as_for_queues(name: str) -> Check:
    """The check of the queue argument of the same name."""
    row = BY_NAME[name]

    def check(value: Any, arguments: Arguments, thing: str) -> str | None:
        reason = row.check(value, arguments)
        return None if reason is None else f"invalid arg '{name}' for {thing}: {reason}"

    return check


def _listed(name: str, choices: tuple[str, ...]) -> Check:
    check_choice = listed(choices)

    def check(value: Any, arguments: Arguments, thing: str) -> str | None:
        reason = check_choice(value, arguments)
        return None if reason is None else f"invalid arg '{name}' for {thing}: {reason}"

    return check


def _delayed_type(value: Any, arguments: Arguments, thing: str) -> str | None:
    try:
        inner_type(arguments)
    except PreconditionFailed as error:
        return str(error)
    return None


def inner_type(arguments: Arguments) -> "type[Exchange]":
    """The class that ``x-delayed-type`` names; it does not delay itself.  Raises PreconditionFailed (plugin's text)."""
    from brokerd.exchanges import exchange_type  # Few exchanges delay.

    name = arguments.get(DELAYED_TYPE)
    if isinstance(name, str):
        cls = exchange_type(name)
        if not cls.intercepts:
            return cls
    raise PreconditionFailed("Invalid argument, 'x-delayed-type' must be an existing exchange type")


def _hash_header(name: str) -> Check:
    text = string(name)

    def check(value: Any, arguments: Arguments, thing: str) -> str | None:
        if "hash-property" in arguments:
            return f"{name} and hash-property are mutually exclusive"
        return text(value, arguments, thing)

    return check


def _hash_property(value: Any, arguments: Arguments, thing: str) -> str | None:
    fault = string("hash-property")(value, arguments, thing)
    return fault or (None if value in HASH_PROPERTIES else f"Unsupported property: {value}")


def _algorithm(value: Any, arguments: Arguments, thing: str) -> str | None:
    fault = string("x-algorithm")(value, arguments, thing)
    return fault or (None if value in (RING, JUMP) else f"Unsupported algorithm: {value}")


def _history_length(value: Any, _: Arguments, __: str) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool | Timestamp) and value > 0:
        return None
    return f"Invalid argument {format_amqp_term(value)}, 'x-recent-history-length' must be a positive integer"


def _max_hops(value: Any, arguments: Arguments, _: str) -> str | None:
    if MAX_HOPS not in arguments:
        return f"Argument {MAX_HOPS} missing"
    is_number = isinstance(value, int) and not isinstance(value, bool | Timestamp)
    return None if is_number else f"Argument {MAX_HOPS} must be of type long"


EXCHANGE_ARGUMENTS = (
    *(ExchangeArgument(name, string(name)) for name in ALTERNATE_EXCHANGE),
    ExchangeArgument(DELAYED_TYPE, _delayed_type, _DELAYED, required=True),
    ExchangeArgument(DELAYED_EXCHANGE, _boolean(DELAYED_EXCHANGE)),
    *(ExchangeArgument(name, _as_for_queues(name)) for name in DEDUPLICATION),
    ExchangeArgument(SCOPE, _listed(SCOPE, EXCHANGE_SCOPES)),
    ExchangeArgument(ACTION, _listed(ACTION, EXCHANGE_ACTIONS)),
    ExchangeArgument("hash-header", _hash_header("hash-header"), _CONSISTENT_HASH),
    ExchangeArgument("x-hash-on", _hash_header("x-hash-on"), _CONSISTENT_HASH),
    ExchangeArgument("hash-property", _hash_property, _CONSISTENT_HASH),
    ExchangeArgument("x-algorithm", _algorithm, _CONSISTENT_HASH),
    ExchangeArgument("x-recent-history-length", _history_length, _RECENT_HISTORY),
    ExchangeArgument(MAX_HOPS, _max_hops, _FEDERATION_UPSTREAM, required=True),
)


def rows_of(type_: str, arguments: Arguments) -> list[ExchangeArgument]:
    """The rows for arguments that an exchange of this type acts on."""
    inner = arguments.get(DELAYED_TYPE) if type_ in _DELAYED else None
    return [row for row in EXCHANGE_ARGUMENTS if not row.types or type_ in row.types or inner in row.types]


def check_arguments(type_: str, arguments: Arguments, thing: str) -> None:
    """Raise PreconditionFailed for arguments that no exchange of this type can have."""
    if not arguments and type_ not in (*_DELAYED, *_FEDERATION_UPSTREAM):
        return
    for row in rows_of(type_, arguments):
        if row.required or row.name in arguments:
            fault = row.check(arguments.get(row.name), arguments, thing)
            if fault is not None:
                raise PreconditionFailed(fault)


def check_alternate_exchange(arguments: Arguments, thing: str) -> None:
    """Check the alternate exchange alone: access checks the permissions for it before it looks at the rest."""
    for name in ALTERNATE_EXCHANGE:
        if name in arguments:
            fault = string(name)(arguments[name], arguments, thing)
            if fault is not None:
                raise PreconditionFailed(fault)


def compared_arguments(type_: str, arguments: Arguments) -> tuple[str, ...]:
    """The names of the arguments in which a redeclare may not differ from an exchange that has ``arguments``.

    RabbitMQ compares ``alternate-exchange`` alone.  But if an exchange hashed something else than its second
    declarer thinks, the mistake would stay unseen.
    """
    return tuple([row.name for row in rows_of(type_, arguments)])


def alternate_exchange(arguments: Arguments) -> str | None:
    """The name of the alternate exchange in these arguments; it gets the messages that would go nowhere."""
    for name in ALTERNATE_EXCHANGE:
        if name in arguments:
            return arguments[name]
    return None

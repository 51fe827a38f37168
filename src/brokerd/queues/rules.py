"""The rules in force for a queue: its arguments, its policy and its operator policy, as one value.

    arguments  ┐
    policy     ├─ effective_arguments ─ Rules ─ plane_rules ─> plane.Queue.set_rules
    operators  ┘  (one x-… mapping)

Where argument and policy differ, the lesser of two numbers holds; of anything else the argument holds.  Knows nothing
of queues, nor of where policies come from.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.arguments import BY_NAME, BY_POLICY_KEY, EXPIRY_MS_MAX, RETRY_BACKOFFS, age_ms, queue_type

if TYPE_CHECKING:
    from brokerd.queues import deduplication
    from brokerd.queues.dead_letter import DeadLetterRule
    from brokerd.queues.groups import GroupRule
    from brokerd.queues.stream import Retention

INT32_MAX = (1 << 31) - 1  # the highest count of failed deliveries
RETENTION_OCTETS, RETENTION_MS = 1 << 30, 7 * 24 * 60 * 60 * 1000  # of an order journal, unless told otherwise
RETRY_CAUSES = {"all": range(1, 7), "failed": (2, 4, 5), "returned": (1, 3, 6)}  # causes of returns: see store/format
RETRY_FIELDS = (
    ("type", "type"), ("min_ms", "min"), ("max_ms", "max"), ("backoff", "backoff"), ("jitter", "jitter"),
)  # fmt: skip
OVERFLOW_NUMBERS = {"drop-head": 0, "reject-publish": 1, "reject-publish-dlx": 2}  # the data plane's


class RetryRule(NamedTuple):
    """Which returned messages wait before they are tried again, and how long."""

    type: str  # "all"; "failed": rejected, or lost with their channel or connection; "returned": all others
    min_ms: int = 1000
    max_ms: int = EXPIRY_MS_MAX
    backoff: str = "linear"  # min_ms for each failure; "exponential": twice as long each time; "fixed": min_ms
    jitter: int = 0  # percent that a delay may be shorter

    def of_gate(self) -> dict[str, int]:
        """The keyword arguments of ``plane.Retry.set_rule``."""
        return {
            "causes": sum([1 << cause for cause in RETRY_CAUSES[self.type]]), "min_ms": self.min_ms,
            "max_ms": self.max_ms, "backoff": RETRY_BACKOFFS.index(self.backoff), "jitter": self.jitter,
        }  # fmt: skip


class Rules(NamedTuple):
    """The rules of one queue.  None means no limit, or no such rule."""

    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_octets: int | None = None
    overflow: str = "drop-head"
    dead_letter: "DeadLetterRule | None" = None
    delivery_limit: int | None = None
    delivery_limit_action: str = "dead-letter"
    limit_stops: bool = False  # the queue, or the message's group, stops behind one that has reached its delivery limit
    retry: RetryRule | None = None
    delivery_counts: bool = False  # redeliveries carry x-delivery-count
    single_active: bool = False
    consumer_timeout_ms: int | None = None
    consumer_timeout_action: str = "return"
    deduplication: "deduplication.Rule | None" = None
    retain_ms: int | None = None  # how long settled messages stay
    retain_octets: int | None = None  # ... and how many octets of their segments
    group: "GroupRule | None" = None
    journal: bool = False  # the rules ask for an order journal; only a durable queue gets one
    retention_octets: int = RETENTION_OCTETS  # of the order journal; ``retention_ms`` is its time
    retention_ms: int = RETENTION_MS
    stream: "Retention | None" = None  # what a stream keeps; None: all, or no stream
    partition_header: str | None = None  # of a stream: by which its readers share it; None: the usual ones

    @property
    def dead_letters_refused(self) -> bool:
        """Whether a message that the queue refuses goes to its dead-letter exchange."""
        return self.dead_letter is not None and self.overflow == "reject-publish-dlx"


PLAIN = Rules()


def _number(value: int | None) -> int:
    return -1 if value is None else int(value)


def _failures(limit: int | None) -> int:
    """A limit of N lets a message come back N times (RabbitMQ, LavinMQ).  The data plane counts the fatal failure."""
    return -1 if limit is None else min(limit + 1, INT32_MAX)


class Row(NamedTuple):
    """One rule on its way: from a queue argument to a field of Rules to the data plane."""

    field: str  # of Rules
    argument: str = ""  # what it follows from; "": from several, see rules_of
    plane: str = ""  # its name in plane.RULES; "": the data plane does not know it
    to_plane: Callable[[Any], int] = _number  # what the data plane is told of the field
    read: Callable[[Any], Any] = lambda value: value  # the field of the argument


ROWS = (
    Row("message_ttl_ms", "x-message-ttl", "ttl_ms"),
    Row("expires_ms", "x-expires"),
    Row("max_length", "x-max-length", "max_length"),
    Row("max_octets", "x-max-length-bytes", "max_octets"),
    Row("overflow", "x-overflow", "overflow", OVERFLOW_NUMBERS.__getitem__),
    Row("dead_letter", "", "dead_letters", lambda rule: rule is not None),
    Row("delivery_limit", "x-delivery-limit", "delivery_limit", _failures, lambda limit: limit if limit >= 0 else None),
    Row("delivery_limit_action", "x-delivery-limit-action", "limit_drops", "drop".__eq__),
    Row("limit_stops", "", "limit_stops", bool),
    Row("retry"),
    Row("delivery_counts", "", "delivery_counts", bool),
    Row("single_active", "x-single-active-consumer", "single_active", bool),
    Row("consumer_timeout_ms", "x-consumer-timeout", "consumer_timeout_ms", read=lambda ms: ms or None),
    Row("consumer_timeout_action", "x-consumer-timeout-action", "timeout_closes", "close".__eq__),
    Row("deduplication"),
    Row("retain_ms", "x-retention-age", "retain_ms", read=lambda age: age_ms(age) if isinstance(age, str) else age),
    Row("retain_octets", "x-retention-bytes", "retain_octets"),
    Row("group"),
    Row("journal", "x-order-journal"),
    Row("retention_octets", "x-order-journal-retention-bytes"),
    Row("retention_ms", "x-order-journal-retention-age", read=lambda age: age_ms(age) or RETENTION_MS),
    Row("stream"),
    Row("partition_header"),
)


def effective_arguments(arguments: Mapping[str, Any], definition: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments after policies are applied; ``definition`` is what Policies.effective says of the queue.

    A value of an older release that could not be declared any more is left out.
    """
    kind = queue_type(arguments)
    merged: dict[str, Any] = {}
    for name, value in arguments.items():
        row = BY_NAME.get(name)
        if row is not None and kind in row.types and row.check(value, arguments) is None:
            merged[name] = value
    for key, value in definition.items():
        row = BY_POLICY_KEY.get(key)
        if row is None or kind not in row.types:
            continue
        if row.name not in merged:
            merged[row.name] = value
        elif row.merge is not None:
            merged[row.name] = row.merge(merged[row.name], value)
    return merged


def rules_of(arguments: Mapping[str, Any], definition: Mapping[str, Any]) -> Rules:
    """The rules of a queue with these arguments under this definition of policies."""
    given = effective_arguments(arguments, definition)
    quorum = queue_type(arguments) == "quorum"
    if not given or (len(given) == 1 and "x-queue-type" in given and not quorum):
        return PLAIN
    if queue_type(arguments) == "stream":
        from brokerd.queues.stream import retention_of  # Most brokers' starts need none of these modules.

        fields: dict[str, Any] = {
            "stream": retention_of(given), "partition_header": given.get("x-message-group-header"),
        }  # fmt: skip
    else:
        fields = {row.field: row.read(given[row.argument]) for row in ROWS if row.argument in given}
    limited = fields.get("delivery_limit") is not None
    fields["limit_stops"] = limited and fields.get("delivery_limit_action") in ("block", "park-group")
    if given.get("x-delayed-retry-type", "disabled") != "disabled":
        fields["retry"] = retry_of(given)
    fields["delivery_counts"] = quorum or limited or "retry" in fields
    if "x-dead-letter-exchange" in given:
        from brokerd.queues import dead_letter as letters

        fields["dead_letter"] = letters.rule_of(given)
    if "x-message-deduplication" in given:
        from brokerd.queues import deduplication

        fields["deduplication"] = deduplication.rule_of(given)
    if "x-message-group" in given or "qpid.group_header_key" in given:
        from brokerd.queues import groups

        fields["group"] = groups.rule_of(given)
    if fields.get("group") is not None and fields.get("retry") is not None:
        fields["retry"] = fields["retry"]._replace(jitter=0)  # Declare refuses it; a policy's has no effect.
    return Rules(**fields)


def retry_of(given: Mapping[str, Any]) -> RetryRule:
    """The retry rule of these arguments, one of which is its type.  A maximum below the minimum holds for both: a
    policy may lower it."""
    names = {f"x-delayed-retry-{argument}": field for field, argument in RETRY_FIELDS}
    rule = RetryRule(**{field: given[name] for name, field in names.items() if name in given})
    return rule._replace(min_ms=min(rule.min_ms, rule.max_ms))


def asks_for_journal(arguments: Mapping[str, Any], definition: Mapping[str, Any]) -> bool:
    """Whether an order journal is asked for: ``rules_of(...).journal``, known before all other rules."""
    asked = arguments.get("x-order-journal", definition.get("order-journal", False)) is True
    return asked and queue_type(arguments) in BY_NAME["x-order-journal"].types


def max_priority_of(arguments: Mapping[str, Any]) -> int:
    """The highest priority level; 0: no priorities.  Only an argument sets it, and it never changes."""
    value = arguments.get("x-max-priority", 0)
    if queue_type(arguments) != "classic" or BY_NAME["x-max-priority"].check(value, arguments) is not None:
        return 0
    return int(value)


def plane_rules(rules: Rules) -> dict[str, int]:
    """The keyword arguments of the data plane's ``set_rules``."""
    fields = rules._asdict()
    return {row.plane: row.to_plane(fields[row.field]) for row in ROWS if row.plane}

"""Checks of basic.consume and basic.get: their arguments, other consumers, the type of the queue.

Errors have RabbitMQ's words, which the client gets.  Knows nothing of permissions, nor of who asks.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.arguments import EXPIRY_MS_MAX, Check, boolean, integer
from brokerd.errors import AccessRefused, NotImplemented_, PreconditionFailed, ResourceLocked

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.queues.queue import Queue

PRIORITY_MIN, PRIORITY_MAX = -(1 << 31), (1 << 31) - 1
# The arguments of basic.consume that are checked.  Others are ignored; those of streams: queues/stream.
CONSUMER_ARGUMENTS: tuple[tuple[str, Check], ...] = (
    ("x-priority", integer(-(1 << 63))),
    ("x-cancel-on-ha-failover", boolean),
    ("x-consumer-timeout", integer(0, EXPIRY_MS_MAX, too_big="value_too_large")),
    ("x-message-seq", boolean),
)


class Wishes(NamedTuple):
    """The parts of basic.consume's arguments that concern the data plane."""

    priority: int = 0
    timeout_ms: int = -1  # of a delivery; -1: the queue's own
    timeout_closes: bool | None = None  # whether a timeout closes the channel; None: as the queue says
    numbers: bool = False  # deliveries have the headers x-message-seq and x-message-ns


NO_WISHES = Wishes()


def check_consume(
    queue: "Queue", arguments: dict[str, Any], *, exclusive: bool, no_ack: bool, channel: "plane.Channel"
) -> Wishes:
    """Check that one more consumer may join ``queue``.  Raises PreconditionFailed, then AccessRefused; for a stream
    also NotImplemented_."""
    if queue.stream is not None:
        from brokerd.queues.stream import check_reader  # Most brokers have none.

        check_reader(queue, arguments, no_ack=no_ack, prefetch=channel.prefetch,
                     global_prefetch=channel.global_prefetch)  # fmt: skip
    wishes = _wishes(queue, arguments) if arguments else NO_WISHES
    if queue.exclusively_consumed or (exclusive and (queue.consumer_count or _single_active(queue))):
        raise AccessRefused(f"{queue} in exclusive use")
    return wishes


def check_get(queue: "Queue") -> None:
    """Check that basic.get may take messages from ``queue``.  Raises NotImplemented_, ResourceLocked."""
    if queue.stream is not None:
        raise NotImplemented_(f"basic.get not supported by stream queues {queue}")
    if queue.arguments.get("x-queue-type") == "quorum" and _single_active(queue):
        raise ResourceLocked(
            f"cannot obtain access to locked {queue}. "
            "basic.get operations are not supported by quorum queues with single active consumer"
        )


def _wishes(queue: "Queue", arguments: dict[str, Any]) -> Wishes:
    for name, check in CONSUMER_ARGUMENTS:
        if name in arguments:
            reason = check(arguments[name], arguments)
            if reason is not None:
                raise PreconditionFailed(f"invalid arg '{name}' for {queue}: {reason}")
    priority = min(max(arguments.get("x-priority", 0), PRIORITY_MIN), PRIORITY_MAX)
    timeout = arguments.get("x-consumer-timeout")
    numbers = arguments.get("x-message-seq", False)
    if timeout is None:
        return Wishes(priority, numbers=numbers)
    return Wishes(priority, int(timeout), timeout_closes=True, numbers=numbers)


def _single_active(queue: "Queue") -> bool:
    return queue.arguments.get("x-single-active-consumer") is True

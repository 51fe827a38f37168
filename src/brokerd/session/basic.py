"""basic.* but publish and the settlements (those are the data plane's, or on a transactional channel
session/transactions'), confirm.select, channel.flow, access.request.

One function each, from method to reply, or None where the client wants none.
Knows nothing of frames; messages themselves never pass here.
"""

from typing import TYPE_CHECKING, Any

from brokerd.arguments import EXPIRY_MS_MAX, Check, boolean, integer
from brokerd.errors import AccessRefused, NotAllowed, NotImplemented_, PreconditionFailed, ResourceLocked
from brokerd.session import transactions
from brokerd.vhost import names
from brokerd.vhost.direct_reply import PSEUDO_QUEUES, Replies
from brokerd.wire import methods

if TYPE_CHECKING:
    from brokerd.queues.queue import Queue
    from brokerd.session.channel import Channel
    from brokerd.session.connection import Connection

PRIORITY_MIN, PRIORITY_MAX = -(1 << 31), (1 << 31) - 1
# What is checked of basic.consume's arguments; others (of streams, of older versions) are kept and mean nothing.
CONSUMER_ARGUMENTS: tuple[tuple[str, Check], ...] = (
    ("x-priority", integer(-(1 << 63))),
    ("x-cancel-on-ha-failover", boolean),
    ("x-consumer-timeout", integer(0, EXPIRY_MS_MAX, too_big="value_too_large")),
)


def qos(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.qos: a limit for consumers to come, or (global) for the whole channel, as RabbitMQ reads it."""
    if method.prefetch_size:
        raise NotImplemented_(f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        channel.global_prefetch = method.prefetch_count
    else:
        channel.prefetch = method.prefetch_count
    return methods.BasicQosOk()


def consume(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.consume.  Deliveries start after the reply, in the next turn."""
    name = names.strip_cr_lf(channel.queue_name(method.queue))
    tag = method.consumer_tag or names.random_name(names.CONSUMER_TAG_PREFIX)
    octets = tag.encode("utf-8", "surrogateescape")
    replies = connection.access.vhost.replies
    consumers = channel.consumers
    if (consumers and octets in consumers) or (replies is not None and replies.tag(channel) == tag):
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
    if consumers:
        limit = connection.node.limits.consumers_per_channel_max
        if limit and len(consumers) >= limit:
            raise NotAllowed(f"reached maximum ({limit}) of consumers per channel")
    if name in PSEUDO_QUEUES:
        return _consume_replies(connection, channel, tag, method)
    queue = connection.access.queue_to_use(name, "read", connection)
    arguments = method.arguments
    more = _checked(queue, arguments) if arguments else {}
    if queue.exclusively_consumed or (method.exclusive and (queue.consumer_count or _single_active(queue))):
        raise AccessRefused(f"{queue} in exclusive use")
    if not method.no_wait:
        connection.write(methods.BasicConsumeOk(consumer_tag=tag).frame(channel.number))
    consumer = channel.consume(
        queue,
        octets,
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        priority=min(max(arguments.get("x-priority", 0), PRIORITY_MIN), PRIORITY_MAX) if arguments else 0,
        arguments=arguments,
        consumer_number=_consumer_number(connection),
        **more,
    )
    if queue.order_log is not None:
        queue.order_log.consumer(consumer)
    if connection.node.events.wanted:
        connection.node.events.consumer_created(consumer)
    return None


def _consumer_number(connection: "Connection") -> int:
    """By which journals name the consumer, never given twice; 0 where the disk has no room to remember that."""
    try:
        return connection.node.data.next_connection_number()
    except OSError:
        return 0


def _checked(queue: "Queue", arguments: dict[str, Any]) -> dict[str, Any]:
    """What the consumer's arguments ask of the data plane, priority apart.  Raises PreconditionFailed."""
    for name, check in CONSUMER_ARGUMENTS:
        if name in arguments:
            reason = check(arguments[name], arguments)
            if reason is not None:
                raise PreconditionFailed(f"invalid arg '{name}' for {queue}: {reason}")
    timeout = arguments.get("x-consumer-timeout")
    return {} if timeout is None else {"timeout_ms": int(timeout), "timeout_closes": True}


def _single_active(queue: "Queue") -> bool:
    return queue.arguments.get("x-single-active-consumer") is True


def _consume_replies(connection: "Connection", channel: "Channel", tag: str, method: Any) -> Any:
    """basic.consume from the pseudo-queue of direct reply-to: no queue, and no other argument matters (RabbitMQ)."""
    vhost = connection.access.vhost
    if vhost.replies is None:
        vhost.replies = Replies()
    vhost.replies.add(channel, tag, no_ack=method.no_ack)
    return None if method.no_wait else methods.BasicConsumeOk(consumer_tag=tag)


def cancel(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.cancel; no fault when there is no such consumer (RabbitMQ)."""
    replies = connection.access.vhost.replies
    if replies is not None and replies.remove(channel, method.consumer_tag):
        return None if method.no_wait else methods.BasicCancelOk(consumer_tag=method.consumer_tag)
    consumers = channel.consumers or {}
    consumer = consumers.get(method.consumer_tag.encode("utf-8", "surrogateescape"))
    if consumer is not None:
        channel.cancel(consumer)
        if connection.node.events.wanted:
            connection.node.events.consumer_deleted(consumer)
        connection.access.vhost.consumers_left(consumer.queue, connection.user)  # type: ignore[arg-type]
    return None if method.no_wait else methods.BasicCancelOk(consumer_tag=method.consumer_tag)


def get(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.get: the data plane writes get-ok and the message, or there is none."""
    name = names.strip_cr_lf(channel.queue_name(method.queue))
    queue = connection.access.queue_to_use(name, "read", connection)
    if queue.arguments.get("x-queue-type") == "quorum" and _single_active(queue):
        raise ResourceLocked(
            f"cannot obtain access to locked {queue}. "
            "basic.get operations are not supported by quorum queues with single active consumer"
        )
    return None if channel.get(queue, method.no_ack) else methods.BasicGetEmpty()


def recover(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.recover: everything unacked returns to its place."""
    recover_async(connection, channel, method)
    return methods.BasicRecoverOk()


def recover_async(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.recover-async: the same without a reply."""
    if not method.requeue:
        raise NotImplemented_("requeue=false")
    if channel.transaction is not None:
        channel.transaction.recover()
    else:
        channel.recover()


def confirm_select(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """confirm.select; again is no fault."""
    if channel.transaction is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode")
    channel.select_confirm()
    return None if method.no_wait else methods.ConfirmSelectOk()


def flow(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """channel.flow: the client wants no deliveries for a while, or wants them again (LavinMQ; RabbitMQ refuses)."""
    channel.flow = method.active
    return methods.ChannelFlowOk(active=method.active)


def access_request(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """access.request, of an older AMQP: every ticket is number 1 (RabbitMQ)."""
    return methods.AccessRequestOk(reserved_1=1)


HANDLERS = {
    "basic.qos": qos,
    "basic.consume": consume,
    "basic.cancel": cancel,
    "basic.get": get,
    "basic.recover": recover,
    "basic.recover-async": recover_async,
    "confirm.select": confirm_select,
    "channel.flow": flow,
    "access.request": access_request,
    **transactions.HANDLERS,
}

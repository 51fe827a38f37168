"""basic.* but publish and the settlements (those are the data plane's), confirm.select, channel.flow, access.request.

One function each, from method to reply, or None where the client wants none.
Knows nothing of frames; messages themselves never pass here.
"""

from typing import TYPE_CHECKING, Any

from brokerd.errors import AccessRefused, NotAllowed, NotImplemented_, PreconditionFailed
from brokerd.vhost import names
from brokerd.wire import methods

if TYPE_CHECKING:
    from brokerd.session.channel import Channel
    from brokerd.session.connection import Connection

PRIORITY_MIN, PRIORITY_MAX = -(1 << 31), (1 << 31) - 1


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
    consumers = channel.consumers
    if consumers:
        if octets in consumers:
            raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
        limit = connection.node.config.consumers_per_channel_max
        if limit and len(consumers) >= limit:
            raise NotAllowed(f"reached maximum ({limit}) of consumers per channel")
    queue = connection.access.queue_to_use(name, "read", connection)
    if queue.exclusively_consumed or (method.exclusive and queue.consumer_count):
        raise AccessRefused(f"{queue} in exclusive use")
    priority = _priority(method.arguments)
    if not method.no_wait:
        connection.write(methods.BasicConsumeOk(consumer_tag=tag).frame(channel.number))
    channel.consume(
        queue,
        octets,
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        priority=priority,
        arguments=method.arguments,
    )
    return None


def _priority(arguments: dict[str, Any]) -> int:
    """The consumer's ``x-priority``; 0 where it has none."""
    if not arguments or "x-priority" not in arguments:
        return 0
    value = arguments["x-priority"]
    if not isinstance(value, int) or isinstance(value, bool):
        from brokerd.wire.values import type_name

        raise PreconditionFailed(f"invalid arg 'x-priority': {{unacceptable_type,{type_name(value)}}}")
    return min(max(value, PRIORITY_MIN), PRIORITY_MAX)


def cancel(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.cancel; no fault when there is no such consumer (RabbitMQ)."""
    consumers = channel.consumers or {}
    consumer = consumers.get(method.consumer_tag.encode("utf-8", "surrogateescape"))
    if consumer is not None:
        channel.cancel(consumer)
        connection.access.vhost.consumers_left(consumer.queue)  # type: ignore[arg-type]
    return None if method.no_wait else methods.BasicCancelOk(consumer_tag=method.consumer_tag)


def get(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.get: the data plane writes get-ok and the message, or there is none."""
    name = names.strip_cr_lf(channel.queue_name(method.queue))
    queue = connection.access.queue_to_use(name, "read", connection)
    return None if channel.get(queue, method.no_ack) else methods.BasicGetEmpty()


def recover(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.recover: everything unacked returns to its place."""
    recover_async(connection, channel, method)
    return methods.BasicRecoverOk()


def recover_async(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.recover-async: the same without a reply."""
    if not method.requeue:
        raise NotImplemented_("requeue=false")
    channel.recover()


def confirm_select(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """confirm.select; again is no fault."""
    channel.select_confirm()
    return None if method.no_wait else methods.ConfirmSelectOk()


def flow(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """channel.flow: the client wants no deliveries for a while, or wants them again (LavinMQ; RabbitMQ refuses)."""
    channel.flow = method.active
    return methods.ChannelFlowOk(active=method.active)


def access_request(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """access.request, of an older AMQP: every ticket is number 1 (RabbitMQ)."""
    return methods.AccessRequestOk(reserved_1=1)


def no_transactions(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """tx.*: not offered."""
    raise NotImplemented_(f"{method.NAME} is not supported")


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
    "tx.select": no_transactions,
    "tx.commit": no_transactions,
    "tx.rollback": no_transactions,
}

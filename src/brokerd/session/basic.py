"""Handlers of confirm.select, channel.flow, access.request, and of basic.* except publish and the settlements.

The data plane handles publishes and settlements; on a transactional channel session/tx does.  Each handler
is one function from a method (basic.get: from its payload) to its reply, or to None where the client wants no reply.
Knows nothing of frames, and sees no message.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.errors import NotAllowed, NotImplemented_, PreconditionFailed
from brokerd.session import tx
from brokerd.vhost import names
from brokerd.vhost.direct_reply import PSEUDO_QUEUES
from brokerd.wire import methods

if TYPE_CHECKING:
    from collections.abc import Generator

    from brokerd.session.channel import Channel
    from brokerd.session.connection import Connection


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
    access = connection.access
    if access.has_consumer(channel, tag):
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
    if channel.consumers:
        limit = connection.node.limits.consumers_per_channel_max
        if limit and len(channel.consumers) >= limit:
            raise NotAllowed(f"reached maximum ({limit}) of consumers per channel")
    if name in PSEUDO_QUEUES:  # RabbitMQ ignores all other arguments there.
        access.consume_replies(channel, tag, no_ack=method.no_ack)
    else:
        access.consume(
            channel, name, tag, no_ack=method.no_ack, exclusive=method.exclusive, arguments=method.arguments,
            next_number=partial(_consumer_number, connection),
        )  # fmt: skip
    return None if method.no_wait else methods.BasicConsumeOk(consumer_tag=tag)


def _consumer_number(connection: "Connection") -> int:
    """The number by which order journals name the consumer.  No number is given twice; it is 0 where the disk has no
    room to reserve numbers."""
    try:
        return connection.node.data.next_connection_number()
    except OSError:
        return 0


def cancel(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.cancel.  An unknown tag is no fault (RabbitMQ)."""
    return connection.answer_when_done(
        channel, method, connection.access.cancel(channel, method.consumer_tag),
        lambda _: methods.BasicCancelOk(consumer_tag=method.consumer_tag), no_wait=method.no_wait,
    )  # fmt: skip


def get(connection: "Connection", channel: "Channel", payload: bytes) -> Any:
    """basic.get: the data plane writes get-ok and the message; the reply here is get-empty.

    A client that polls sends the same octets again and again, so these are compared before they are decoded.
    """
    pull = channel.last_pull
    if pull is None or payload != channel.last_get or not pull.is_allowed():
        method: Any = methods.decode(payload)
        name = names.strip_cr_lf(channel.queue_name(method.queue))
        pull = connection.access.pull(name, connection, no_ack=method.no_ack)
        if method.queue:  # Without a name it is the queue declared last, which may be another one the next time.
            channel.last_get, channel.last_pull = payload, pull
    return None if pull.get(channel) else methods.BasicGetEmpty()


def recover(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.recover: everything unacked returns to its place."""
    return connection.answer_when_done(channel, method, _recover(channel, method), lambda _: methods.BasicRecoverOk())


def recover_async(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """basic.recover-async: the same without a reply."""
    return connection.answer_when_done(channel, method, _recover(channel, method), lambda _: None)


def _recover(channel: "Channel", method: Any) -> "Generator[None, None, None]":
    if not method.requeue:
        raise NotImplemented_("requeue=false")
    if channel.transaction is not None:
        yield from channel.transaction.recover()
        return
    while not channel.left and not channel.recover():
        yield


def confirm_select(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """confirm.select.  A second one is no fault."""
    if channel.transaction is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode")
    channel.select_confirm()
    return None if method.no_wait else methods.ConfirmSelectOk()


def flow(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """channel.flow: the client wants no deliveries for a while, or wants them again (LavinMQ; RabbitMQ refuses)."""
    channel.flow = method.active
    return methods.ChannelFlowOk(active=method.active)


def access_request(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """access.request, of an older AMQP.  Every ticket has the number 1 (RabbitMQ)."""
    return methods.AccessRequestOk(reserved_1=1)


HANDLERS = {
    "basic.qos": qos,
    "basic.consume": consume,
    "basic.cancel": cancel,
    "basic.recover": recover,
    "basic.recover-async": recover_async,
    "confirm.select": confirm_select,
    "channel.flow": flow,
    "access.request": access_request,
    **tx.HANDLERS,
}

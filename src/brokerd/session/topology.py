"""Handlers of exchange.* and queue.*: one function for each, from the method to its reply.

A handler does its work through the connection's access and returns the reply, or None where the client wants no reply.
The connection itself waits until a definition is on disk.  Knows nothing of permissions or of frames.
"""

from typing import TYPE_CHECKING, Any

from brokerd.errors import AccessRefused
from brokerd.vhost import direct_reply
from brokerd.wire import methods

if TYPE_CHECKING:
    from brokerd.session.channel import Channel
    from brokerd.session.connection import Connection


def exchange_declare(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """exchange.declare, also passive."""
    exchange = connection.access.declare_exchange(
        method.exchange,
        method.type,
        passive=method.passive,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        arguments=method.arguments,
    )
    connection.relies_on = connection.access.entry_of(exchange)
    return None if method.no_wait else methods.ExchangeDeclareOk()


def exchange_delete(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """exchange.delete."""
    work = connection.access.delete_exchange_in_pieces(method.exchange, if_unused=method.if_unused)
    return connection.answer_when_done(channel, method, work, lambda _: methods.ExchangeDeleteOk(),
                                       no_wait=method.no_wait)  # fmt: skip


def exchange_bind(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """exchange.bind (RabbitMQ's extension)."""
    work = connection.access.bind_exchange_in_pieces(
        method.destination, method.source, method.routing_key, method.arguments
    )
    return connection.answer_when_done(channel, method, work, lambda _: methods.ExchangeBindOk(),
                                       no_wait=method.no_wait)  # fmt: skip


def exchange_unbind(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """exchange.unbind (RabbitMQ's extension)."""
    work = connection.access.unbind_exchange_in_pieces(
        method.destination, method.source, method.routing_key, method.arguments
    )
    return connection.answer_when_done(channel, method, work, lambda _: methods.ExchangeUnbindOk(),
                                       no_wait=method.no_wait)  # fmt: skip


def queue_declare(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """queue.declare, also passive.  The channel remembers the queue as the one declared last."""
    name = channel.queue_name(method.queue) if method.passive else method.queue
    if name.startswith("amq.") and direct_reply.is_volatile(name):
        return _declare_volatile(connection, channel, name, no_wait=method.no_wait)
    queue = connection.access.declare_queue(
        name,
        connection,
        passive=method.passive,
        durable=method.durable,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        arguments=method.arguments,
    )
    if queue.owner is connection:
        connection.own(queue)
    channel.last_queue = queue.name
    connection.relies_on = connection.access.entry_of(queue)
    if method.no_wait:
        return None
    return methods.QueueDeclareOk(
        queue=queue.name, message_count=queue.message_count, consumer_count=queue.consumer_count
    )


def _declare_volatile(connection: "Connection", channel: "Channel", name: str, *, no_wait: bool) -> Any:
    """Declare a name of direct reply-to, passive or not: this checks that a client waits there (RabbitMQ)."""
    connection.access.declare_replies(name)
    channel.last_queue = name
    return None if no_wait else methods.QueueDeclareOk(queue=name, message_count=0, consumer_count=1)


def _check_not_volatile(queue: str) -> None:
    if queue.startswith("amq.") and direct_reply.is_volatile(queue):
        raise AccessRefused("cannot bind or unbind to a volatile (direct reply-to) queue")


def queue_bind(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """queue.bind.  With neither queue nor key, both are the name of the queue declared last."""
    queue = channel.queue_name(method.queue)
    _check_not_volatile(queue)
    key = method.routing_key if method.queue or method.routing_key else queue
    work = connection.access.bind_queue_in_pieces(queue, method.exchange, key, method.arguments, connection)
    return connection.answer_when_done(channel, method, work, lambda _: methods.QueueBindOk(),
                                       no_wait=method.no_wait)  # fmt: skip


def queue_unbind(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """queue.unbind, which always has a reply."""
    queue = channel.queue_name(method.queue)
    _check_not_volatile(queue)
    key = method.routing_key if method.queue or method.routing_key else queue
    work = connection.access.unbind_queue_in_pieces(queue, method.exchange, key, method.arguments, connection)
    return connection.answer_when_done(channel, method, work, lambda _: methods.QueueUnbindOk())


def queue_purge(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """queue.purge: ready messages only."""
    work = connection.access.purge_queue_in_pieces(channel.queue_name(method.queue), connection)
    return connection.answer_when_done(channel, method, work, lambda count: methods.QueuePurgeOk(message_count=count),
                                       no_wait=method.no_wait)  # fmt: skip


def queue_delete(connection: "Connection", channel: "Channel", method: Any) -> Any:
    """queue.delete."""
    work = connection.access.delete_queue_in_pieces(
        channel.queue_name(method.queue), connection, if_unused=method.if_unused, if_empty=method.if_empty
    )
    return connection.answer_when_done(channel, method, work, lambda count: methods.QueueDeleteOk(message_count=count),
                                       no_wait=method.no_wait)  # fmt: skip


HANDLERS = {
    "exchange.declare": exchange_declare,
    "exchange.delete": exchange_delete,
    "exchange.bind": exchange_bind,
    "exchange.unbind": exchange_unbind,
    "queue.declare": queue_declare,
    "queue.bind": queue_bind,
    "queue.unbind": queue_unbind,
    "queue.purge": queue_purge,
    "queue.delete": queue_delete,
}

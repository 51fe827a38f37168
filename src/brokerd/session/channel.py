"""A channel as the session sees it: the parts that the data plane need not know.

The data plane has the consumers, unacked deliveries and prefetch.  This module has the name of the queue declared last,
the transaction of a transactional channel, and the channel's end.  Knows nothing of methods.
"""

from typing import TYPE_CHECKING

from brokerd import plane
from brokerd.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Generator

    from brokerd.queues.queue import Queue
    from brokerd.session.connection import Connection
    from brokerd.session.transactions import Transaction
    from brokerd.vhost.access import Pull


class Channel(plane.Channel):
    """One open channel of a client."""

    __slots__ = ("__weakref__", "last_get", "last_pull", "last_queue", "left", "transaction")

    def __init__(self, connection: "Connection", number: int) -> None:
        super().__init__(connection, number)
        self.last_get = b""  # the payload of the basic.get that ``last_pull`` is for
        self.last_pull: Pull | None = None
        self.last_queue = ""
        self.left = False
        self.transaction: Transaction | None = None  # from tx.select on

    def close(self) -> None:
        """Free the channel's number."""
        super().close()
        self.transaction = None  # It names the channel too: neither would go without the collector of cycles.

    def queue_name(self, name: str) -> str:
        """``name``, or for "" the name of the queue declared last on this channel.  Raises NotFound without one."""
        if name:
            return name
        if not self.last_queue:
            raise NotFound("no previously declared queue")
        return self.last_queue

    def cancel(self, consumer: plane.Consumer) -> None:
        """Cancel as the data plane does, and note it in the side file of a queue with an order journal."""
        side_file = consumer.queue.side_file  # type: ignore[attr-defined]
        super().cancel(consumer)
        if side_file is not None:
            side_file.note_consumer_gone(consumer)

    def leave(self, *, connection_closes: bool = False) -> "Generator[None, None, list[Queue]]":
        """Cancel all consumers, and return all unacked messages to their places, in pieces: the channel closes, or its
        connection.

        Returns the queues that lost a consumer.  The channel's number stays taken until ``close``.
        """
        is_first, self.left = not self.left, True
        self.flow = False  # Consumers that wait for their turn to go get nothing more.
        events = self.connection.node.events  # type: ignore[attr-defined]
        queues: list[Queue] = []
        consumers = list(self.consumers.values())[::-1] if self.consumers else []
        while consumers:  # Each object goes in its turn: all at the end would take long.
            consumer = consumers.pop()
            if self.consumers.get(consumer.tag) is consumer:  # and has not gone with its queue or the connection
                queues.append(consumer.queue)  # type: ignore[arg-type]
                self.cancel(consumer)
                if events.wanted:
                    events.consumer_deleted(consumer)
            yield
        if self.transaction is not None:
            yield from self.transaction.leave(connection_closes=connection_closes)
        self.connection.access.cancel_replies(self)  # type: ignore[attr-defined]
        while not self.return_unacked(connection_closes=connection_closes):
            yield
        events.counts["channel_closed"] += is_first
        if events.wanted and is_first:
            events.channel_closed(self)
        return queues

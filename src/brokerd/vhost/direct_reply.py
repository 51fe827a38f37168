"""Direct reply-to: answers that reach their requester without a queue.

    requester   basic.consume "amq.rabbitmq.reply-to" (no-ack)     its channel gets a name that cannot be guessed
                basic.publish with reply-to "amq.rabbitmq.reply-to"   -> rewritten to that name
    answerer    basic.publish to the default exchange, routing key = the name   -> basic.deliver to the requester

A channel has at most one such consumer.  Nothing is stored: when the requester has gone, the answer is unroutable.
``amq.direct.reply-to`` (LavinMQ) means the same.  Knows nothing of queues, of permissions, or of which messages to look
at.
"""

from typing import TYPE_CHECKING

from brokerd.errors import PreconditionFailed
from brokerd.vhost.names import random_name
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame

if TYPE_CHECKING:
    from typing import Any

    from brokerd import plane
    from brokerd.wire.properties import Properties

REPLY_TO = "amq.rabbitmq.reply-to"
PSEUDO_QUEUES = frozenset((REPLY_TO, "amq.direct.reply-to"))
PREFIX = REPLY_TO + "."


def is_volatile(queue: str) -> bool:
    """Whether ``queue`` is a name of direct reply-to and not of a queue."""
    return queue in PSEUDO_QUEUES or queue.startswith(PREFIX)


class Requester:
    """One channel that consumes answers under one name; takes part in the publish of each (plane.Participant)."""

    __slots__ = ("channel", "counts_as_routed", "name", "tag")

    def __init__(self, channel: "plane.Channel", tag: str) -> None:
        self.channel = channel
        self.tag = tag
        self.name = random_name(PREFIX)
        self.counts_as_routed = True  # while it consumes

    def before_storing(self, queues: "tuple[Any, ...]") -> "tuple[Any, ...]":
        """Change nothing: where CC names queues, the answer goes to them as well."""
        return queues

    def after_storing(self, message: "plane.Message", channel: object, stored: "tuple[Any, ...]") -> None:
        """Write the answer to the requester, unless it has gone since the answer was routed."""
        if self.counts_as_routed:
            self._deliver(message)

    def _deliver(self, message: "plane.Message") -> None:
        channel = self.channel
        connection = channel.connection
        number = channel.number
        deliver = methods.BasicDeliver(
            consumer_tag=self.tag,
            delivery_tag=channel.take_tag(),
            exchange=message.exchange.decode("utf-8", "surrogateescape"),
            routing_key=message.routing_key.decode("utf-8", "surrogateescape"),
        )
        header = b"\0\x3c\0\0" + len(message.body).to_bytes(8) + message.properties
        body = body_frames(number, message.body, connection.frame_max)
        connection.write(deliver.frame(number) + header_frame(number, header) + body)


class Replies:
    """The requesters of one vhost."""

    __slots__ = ("_by_channel", "_by_name")

    def __init__(self) -> None:
        self._by_name: dict[str, Requester] = {}
        self._by_channel: dict[plane.Channel, Requester] = {}

    def add(self, channel: "plane.Channel", tag: str, *, no_ack: bool) -> None:
        """Add a consumer of answers on ``channel``.  Raises PreconditionFailed (RabbitMQ's words and order)."""
        if channel in self._by_channel:
            raise PreconditionFailed("reply consumer already set")
        if not no_ack:
            raise PreconditionFailed("reply consumer cannot acknowledge")
        requester = Requester(channel, tag)
        self._by_channel[channel] = self._by_name[requester.name] = requester

    def remove(self, channel: "plane.Channel", tag: str | None = None) -> bool:
        """Remove the channel's consumer of answers (with ``tag``: only if that is its tag).  Returns whether it had
        one."""
        requester = self._by_channel.get(channel)
        if requester is None or tag not in (None, requester.tag):
            return False
        del self._by_channel[channel], self._by_name[requester.name]
        requester.counts_as_routed = False
        return True

    def tag(self, channel: "plane.Channel") -> str | None:
        """The tag of the channel's consumer of answers."""
        requester = self._by_channel.get(channel)
        return None if requester is None else requester.tag

    def exists(self, queue: str) -> bool:
        """Whether queue.declare finds ``queue``: the general name always, a requester's while it consumes."""
        return queue in PSEUDO_QUEUES or queue in self._by_name

    def rewrite(self, channel: "plane.Channel", properties: "Properties") -> "Properties":
        """The properties of a request with the requester's own name as reply-to, where they say the general one.

        ``properties`` are changed in place.  Raises PreconditionFailed where the channel consumes no answers.
        """
        if properties.reply_to in PSEUDO_QUEUES:
            requester = self._by_channel.get(channel)
            if requester is None:
                raise PreconditionFailed("fast reply consumer does not exist")
            properties.reply_to = requester.name
        return properties

    def requester(self, routing_key: str) -> Requester | None:
        """The client that takes a message published to the default exchange with this routing key; None: no client
        (any more)."""
        return self._by_name.get(routing_key)

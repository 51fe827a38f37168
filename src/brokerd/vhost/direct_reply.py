"""Direct reply-to: answers that reach their requester without a queue.

    requester   basic.consume "amq.rabbitmq.reply-to" (no-ack)     its channel gets a name that cannot be guessed
                basic.publish with reply-to "amq.rabbitmq.reply-to"   -> rewritten to that name
    answerer    basic.publish to the default exchange, routing key = the name   -> basic.deliver to the requester

A channel has at most one such consumer.  Nothing is stored: when the requester has gone, the answer is unroutable.
When much waits for a requester that does not read, further answers to it are dropped: a slow requester must neither
hold up the answerer nor fill the broker's memory.
``amq.direct.reply-to`` (LavinMQ) means the same.  Knows nothing of queues, of permissions, or of which messages to look
at.
"""

from logging import getLogger
from typing import TYPE_CHECKING

from brokerd.errors import PreconditionFailed
from brokerd.vhost.names import random_name
from brokerd.wire import methods
from brokerd.wire.frames import FRAME_OVERHEAD, body_frames, header_frame
from brokerd.wire.values import encode_shortstr

if TYPE_CHECKING:
    from typing import Any

    from brokerd import plane
    from brokerd.wire.properties import Properties

log = getLogger("brokerd")

WAITING_OCTETS_MAX = 16 << 20  # of output, for a requester that does not read
REPLY_TO = "amq.rabbitmq.reply-to"
PSEUDO_QUEUES = frozenset((REPLY_TO, "amq.direct.reply-to"))
PREFIX = REPLY_TO + "."
_PSEUDO_OCTETS = frozenset(map(encode_shortstr, PSEUDO_QUEUES))
_TEXT = ("utf-8", "surrogateescape")


def is_volatile(queue: str) -> bool:
    """Whether ``queue`` is a name of direct reply-to and not of a queue."""
    return queue in PSEUDO_QUEUES or queue.startswith(PREFIX)


class Requester:
    """One channel that consumes answers under one name; takes part in the publish of each (plane.Participant).

    Routes may remember it for as long as they like: when it has ceased to consume, it takes no answer.
    """

    __slots__ = (
        "_after_tag", "_channel", "_routing_key", "_to_tag", "counts_as_routed", "dropped", "name", "reply_to", "tag",
    )  # fmt: skip
    refuses = False

    def __init__(self, channel: "plane.Channel", tag: str) -> None:
        self._channel: plane.Channel | None = channel
        self.tag = tag
        self.name = random_name(PREFIX)
        self.reply_to = encode_shortstr(self.name)  # as it stands in properties
        self.dropped = 0  # answers
        self.counts_as_routed = True  # while it consumes
        self._routing_key = self.name.encode()
        self._to_tag = self._after_tag = b""  # basic.deliver's frame around its delivery tag, from the first answer on

    def end(self) -> None:
        """Take no more answers."""
        self.counts_as_routed = False
        self._channel = None

    def before_storing(self, queues: "tuple[Any, ...]") -> "tuple[Any, ...]":
        """Change nothing: where CC names queues, the answer goes to them as well."""
        return queues

    def after_storing(self, message: "plane.Message", channel: object, stored: "tuple[Any, ...]") -> None:
        """Write the answer to the requester, unless it has gone since the answer was routed."""
        if self._channel is not None:
            if self._channel.connection.waiting_octets < WAITING_OCTETS_MAX:
                self._deliver(self._channel, message)
            else:
                self._drop(self._channel)

    def _drop(self, channel: "plane.Channel") -> None:
        if not self.dropped:
            log.warning("%s: direct replies to it are dropped: %d octets wait, and it does not read",
                        channel.connection, WAITING_OCTETS_MAX)
        self.dropped += 1

    def _deliver(self, channel: "plane.Channel", message: "plane.Message") -> None:
        connection = channel.connection
        number = channel.number
        if message.routing_key == self._routing_key and not message.exchange:
            if not self._to_tag:
                frame = self._deliver_frame(channel, 0, "", self.name)
                tag_at = FRAME_OVERHEAD - 1 + 4 + len(encode_shortstr(self.tag))
                self._to_tag, self._after_tag = frame[:tag_at], frame[tag_at + 8 :]
            deliver = self._to_tag + channel.take_tag().to_bytes(8) + self._after_tag
        else:  # The answer names the requester in its CC or BCC.
            exchange, routing_key = message.exchange.decode(*_TEXT), message.routing_key.decode(*_TEXT)
            deliver = self._deliver_frame(channel, channel.take_tag(), exchange, routing_key)
        header = b"\0\x3c\0\0" + len(message.body).to_bytes(8) + message.properties
        body = body_frames(number, message.body, connection.frame_max)
        connection.write(deliver + header_frame(number, header) + body)

    def _deliver_frame(self, channel: "plane.Channel", tag: int, exchange: str, routing_key: str) -> bytes:
        return methods.BasicDeliver(
            consumer_tag=self.tag, delivery_tag=tag, exchange=exchange, routing_key=routing_key
        ).frame(channel.number)


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
        requester.end()
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

    def rewrite_octets(self, channel: "plane.Channel | None", header: bytes) -> bytes | None:
        """The result of ``rewrite`` for the properties in the payload of a content header, as octets.

        None where ``rewrite`` must be asked: no channel, no consumer of answers, or another reply-to.  ``header`` is
        well formed, and has a reply-to but no headers.
        """
        requester = self._by_channel.get(channel) if channel is not None else None
        if requester is None:
            return None
        flags, at = header[12], 14
        if flags & 0x80:  # content-type
            at += 1 + header[at]
        if flags & 0x40:  # content-encoding
            at += 1 + header[at]
        if flags & 0x10:  # delivery-mode
            at += 1
        if flags & 0x08:  # priority
            at += 1
        if flags & 0x04:  # correlation-id
            at += 1 + header[at]
        end = at + 1 + header[at]
        if header[at:end] not in _PSEUDO_OCTETS:
            return None
        return header[12:at] + requester.reply_to + header[end:]

    def requester(self, routing_key: str) -> Requester | None:
        """The client that takes a message published to the default exchange with this routing key; None: no client
        (any more)."""
        return self._by_name.get(routing_key)

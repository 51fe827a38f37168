"""The firehose: while it is on, every message that comes into or goes out of a vhost is also published to
``amq.rabbitmq.trace``, as RabbitMQ does.

    publish.<exchange>    body as published; headers exchange_name, routing_keys, properties, node, vhost, connection,
                          channel, user, routed_queues
    deliver.<queue>       the same with redelivered (0 or 1) in place of routed_queues

Observers see the same, bound queues or not; while there is one, the firehose is on (operations/tracing).

While it is off, it costs one test of an attribute for each route and each queue.  While it is on, no route is
remembered.  The firehose does not show its own messages.  Knows nothing of who switches it, nor of how messages travel.
"""

from logging import getLogger
from typing import TYPE_CHECKING, Any, Protocol

from brokerd.errors import AMQPError
from brokerd.vhost.routing import route
from brokerd.wire.properties import Properties, decode_header, encode_header

if TYPE_CHECKING:
    from brokerd import plane
    from brokerd.queues.queue import Queue
    from brokerd.vhost.vhost import VHost

log = getLogger("brokerd")

EXCHANGE = "amq.rabbitmq.trace"
_EXCHANGE_OCTETS = EXCHANGE.encode()


class Observer(Protocol):
    """Sees what the firehose shows."""

    def shown(self, routing_key: str, headers: dict[str, Any], body: bytes) -> None:
        """A message came in or went out."""


class Firehose:
    """The firehose of one vhost."""

    __slots__ = ("_core", "_is_asked_for", "_node_name", "_observers", "_vhost", "on")

    def __init__(self, vhost: "VHost", node_name: str) -> None:
        self._vhost = vhost
        self._core = vhost.core
        self._node_name = node_name
        self.on = self._is_asked_for = False
        self._observers: tuple[Observer, ...] = ()

    def switch(self, on: bool) -> None:
        """Turn it on or off, for messages from now on.  With an observer it stays on."""
        self._is_asked_for = on
        self._review()

    def observe(self, observer: Observer) -> None:
        """Show the observer what comes and goes from now on."""
        self._observers += (observer,)
        self._review()

    def ignore(self, observer: Observer) -> None:
        """Show the observer nothing more."""
        self._observers = tuple([each for each in self._observers if each is not observer])
        self._review()

    def _review(self) -> None:
        on = self._is_asked_for or bool(self._observers)
        if on is self.on:
            return
        self.on = on
        for queue in self._vhost.queues.values():
            self.watch(queue)
        self._vhost.forget_routes()

    def watch(self, queue: "Queue") -> None:
        """See the deliveries of ``queue`` while the firehose is on.  Call this for each new queue, too."""
        queue.firehose = self if self.on else None
        queue.reports_deliveries = self.on

    def participant(self) -> "ShownPublish":
        """The participant in each publish while the firehose is on."""
        return ShownPublish(self)

    def published(self, message: "plane.Message", channel: "plane.Channel", queues: "tuple[Queue, ...]") -> None:
        """Show a message that was published on ``channel`` and routed to these queues."""
        headers = self._headers(channel, message.exchange, message.routing_key, message.properties)
        headers["routed_queues"] = [queue.name for queue in queues]
        self._publish(f"publish.{headers['exchange_name']}", headers, message.body)

    def delivered(
        self,
        channel: "plane.Channel",
        queue: "Queue",
        exchange: bytes,
        routing_key: bytes,
        properties: bytes,
        body: bytes,
        redelivered: bool,
    ) -> None:
        """Show a message of ``queue`` that goes to a client by basic.deliver or basic.get-ok."""
        if self.on and exchange != _EXCHANGE_OCTETS:
            headers = self._headers(channel, exchange, routing_key, properties)
            headers["redelivered"] = int(redelivered)
            self._publish(f"deliver.{queue.name}", headers, body)

    def _headers(
        self, channel: "plane.Channel | None", exchange: bytes, routing_key: bytes, octets: bytes
    ) -> dict[str, Any]:
        try:
            _, properties = decode_header(b"\0\x3c\0\0" + bytes(8) + octets)
        except AMQPError:  # No one has decoded this table before.  The properties are shown as empty.
            properties = Properties()
        connection: Any = None if channel is None else channel.connection  # None: an operator publishes
        return {
            "exchange_name": exchange.decode("utf-8", "surrogateescape"),
            "routing_keys": [routing_key.decode("utf-8", "surrogateescape"), *_carbon_copies(properties.headers)],
            "properties": properties.present(),
            "node": self._node_name,
            "vhost": self._vhost.name,
            "connection": "" if connection is None else connection.peer,
            "channel": 0 if channel is None else channel.number,
            "user": "" if connection is None else connection.user,
        }

    def _publish(self, routing_key: str, headers: dict[str, Any], body: bytes) -> None:
        for observer in self._observers:
            observer.shown(routing_key, headers, body)
        exchange = self._vhost.exchanges[EXCHANGE]
        if not exchange.binding_count:
            return
        properties = Properties(headers=headers)
        queues = route(self._vhost, exchange, routing_key, lambda: properties).queues
        if not queues:
            return
        key = routing_key.encode("utf-8", "surrogateescape")[:255]
        try:
            octets = encode_header(0, properties)[12:]
        except ValueError:  # The message's headers are nested as deep as any may be, and lie deeper here.
            headers["properties"] = {}
            octets = encode_header(0, properties)[12:]
        try:
            self._core.put(queues, _EXCHANGE_OCTETS, key, octets, body)
        except OSError as error:  # The message itself is stored.  Only its copy is lost.
            log.warning("firehose: the copy of a message could not be stored: %s", error.strerror)


class ShownPublish:
    """Takes part in a publish (plane.Participant) as the last one, and shows it with the queues that remain.

    Serves one message: while the firehose is on, no answer is cached.
    """

    __slots__ = ("_firehose", "_queues")

    counts_as_routed = False
    refuses = False

    def __init__(self, firehose: Firehose) -> None:
        self._firehose = firehose
        self._queues: tuple[Queue, ...] = ()

    def before_storing(self, queues: "tuple[Queue, ...]") -> "tuple[Queue, ...]":
        """Note where the message goes.  This includes full queues that will refuse it (RabbitMQ)."""
        self._queues = queues
        return queues

    def after_storing(self, message: "plane.Message", channel: "plane.Channel", stored: "tuple[Queue, ...]") -> None:
        """Show the message."""
        self._firehose.published(message, channel, self._queues)


def _carbon_copies(headers: dict[str, Any] | None) -> list[str]:
    """The further routing keys in a message's CC header."""
    copies = headers.get("CC") if headers else None
    return [key for key in copies if isinstance(key, str)] if isinstance(copies, list) else []

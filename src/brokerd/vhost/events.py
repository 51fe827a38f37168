"""Publishes events and log lines of the broker as messages: RabbitMQ's event exchange and log exchange.

    amq.rabbitmq.event   topic, internal, in "/"; routing key queue.created, user.deleted, ...; no body, the fields are
                         headers, with timestamp_in_ms; properties delivery_mode 2 and timestamp
    amq.rabbitmq.log     topic, internal, in "/"; routing key = level; body the line, header node

Fields that are an Erlang term in RabbitMQ have its form here: arguments are an array of
``{<<"x-max-length">>,signedint,5}``.  No event is built unless something is bound, so callers ask ``events.wanted``
first.  Names every event and its fields; knows nothing of when events happen.
"""

import logging
from typing import TYPE_CHECKING, Any

from brokerd.exchanges import TopicExchange
from brokerd.plane import Tally
from brokerd.vhost.routing import route
from brokerd.wire.properties import PERSISTENT, Properties, encode_header
from brokerd.wire.values import Int64, Timestamp, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokerd.clock import Clock
    from brokerd.exchanges import Binding, Exchange
    from brokerd.queues.queue import Queue
    from brokerd.vhost.vhost import VHost

EVENT_EXCHANGE = "amq.rabbitmq.event"
LOG_EXCHANGE = "amq.rabbitmq.log"
INTERNAL_USER = "rmq-internal"  # the user in events that no user caused (RabbitMQ)
LINES_WAITING_MAX = 1000  # of the log, between two turns of the loop; further lines are lost


class WatchedExchange(TopicExchange):
    """A topic exchange with an attribute that says whether anything is bound to it."""

    __slots__ = ("wanted",)

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self.wanted = False

    def _added(self, binding: "Binding") -> None:
        super()._added(binding)
        self.wanted = True

    def _removed(self, binding: "Binding") -> None:
        super()._removed(binding)
        self.wanted = bool(self.binding_count)


def install(vhost: "VHost", name: str) -> WatchedExchange:
    """Make the exchange ``name`` in ``vhost`` as a system exchange: durable, internal, in no definitions log.

    To be called before the vhost's log is replayed, or its bindings find no exchange.
    """
    exchange = vhost.exchanges[name] = WatchedExchange(name, durable=True, internal=True, tally=Tally())
    return exchange

COUNTED = (
    "connection_created", "connection_closed", "channel_created", "channel_closed", "queue_declared", "queue_created",
    "queue_deleted",
)  # fmt: skip


class Events:
    """Publishes events to ``amq.rabbitmq.event``.  Each event has a method, which is called only where ``wanted``.

    ``user`` is the user who asked for it; "" is the broker itself.  An event that cannot be stored is lost.  Callers
    are within a turn, or call ``core.turn()`` afterwards.  One object serves all vhosts of a broker.  Before ``begin``
    and after ``end``, while the vhost of the exchange is not there, no event is wanted.
    """

    __slots__ = ("_clock", "_exchange", "_node_name", "_vhost", "counts")

    def __init__(self, clock: "Clock", node_name: str) -> None:
        self.counts = dict.fromkeys(COUNTED, 0)  # of all vhosts since the start, whether or not the event is wanted
        self._clock = clock
        self._node_name = node_name
        self._vhost: VHost | None = None
        self._exchange: WatchedExchange | None = None

    def begin(self, vhost: "VHost", exchange: WatchedExchange) -> None:
        """From now on events are published to ``exchange`` of ``vhost``."""
        self._vhost, self._exchange = vhost, exchange

    def end(self) -> None:
        """The vhost is deleted."""
        self._vhost = self._exchange = None

    @property
    def wanted(self) -> bool:
        """Whether anything is bound.  Callers ask this before they put the fields of an event together."""
        return self._exchange is not None and self._exchange.wanted

    def publish(self, name: str, fields: dict[str, Any], user: str | None = None) -> None:
        """Publish the event ``name``; ``user`` None: the event names no user."""
        if self._vhost is None or self._exchange is None:
            return
        now = self._clock.epoch_ns()
        if user is not None:
            fields["user_who_performed_action"] = user or INTERNAL_USER
        fields["timestamp_in_ms"] = Int64(now // 1_000_000)
        properties = Properties(headers=fields, delivery_mode=PERSISTENT, timestamp=now // 1_000_000_000)
        publish(self._vhost, self._exchange, name, properties, b"")

    # --- what is declared

    def queue_created(self, queue: "Queue", user: str) -> None:
        """A queue was declared."""
        self.publish("queue.created", {
            "vhost": queue.vhost_name, "name": queue.name, "durable": queue.durable, "auto_delete": queue.auto_delete,
            "exclusive": queue.exclusive, "type": f"rabbit_{queue.arguments.get('x-queue-type', 'classic')}_queue",
            "arguments": format_table(queue.arguments),
        }, user)  # fmt: skip

    def queue_deleted(self, queue: "Queue", user: str) -> None:
        """A queue is gone, by a client's wish or by its own rules (user "")."""
        self.publish("queue.deleted", {"vhost": queue.vhost_name, "name": queue.name}, user)

    def exchange_created(self, vhost: str, exchange: "Exchange", user: str) -> None:
        """An exchange was declared."""
        self.publish("exchange.created", {
            "vhost": vhost, "name": exchange.name, "type": exchange.type, "durable": exchange.durable,
            "auto_delete": exchange.auto_delete, "internal": exchange.internal,
            "arguments": format_table(exchange.arguments), "policy": "",
        }, user)  # fmt: skip

    def exchange_deleted(self, vhost: str, name: str, user: str) -> None:
        """An exchange is gone."""
        self.publish("exchange.deleted", {"vhost": vhost, "name": name}, user)

    def binding_created(self, vhost: str, binding: "Binding", user: str) -> None:
        """A queue or exchange was bound."""
        self._publish_binding("binding.created", vhost, binding, user)

    def binding_deleted(self, vhost: str, binding: "Binding", user: str) -> None:
        """A binding is gone, by itself or with one of its ends."""
        self._publish_binding("binding.deleted", vhost, binding, user)

    def _publish_binding(self, name: str, vhost: str, binding: "Binding", user: str) -> None:
        destination = binding.destination
        self.publish(name, {
            "source_name": binding.source.name, "source_kind": "exchange", "destination_name": destination.name,
            "destination_kind": "exchange" if hasattr(destination, "bindings_to") else "queue",
            "routing_key": binding.routing_key, "arguments": format_table(binding.arguments), "vhost": vhost,
        }, user)  # fmt: skip

    # --- clients

    def connection_created(self, connection: Any) -> None:
        """A client is in its vhost."""
        self.publish("connection.created", {
            "type": "network", "pid": format_pid(connection), "name": connection.peer,
            "vhost": connection.access.vhost.name, "user": connection.user, "protocol": "{0,9,1}",
            "channel_max": connection.channel_max, "frame_max": connection.frame_max, "timeout": connection.heartbeat,
            "client_properties": format_table(connection.client_property_table), "node": self._node_name,
            "connected_at": Int64(connection.opened_ns // 1_000_000),
        }, connection.user)  # fmt: skip

    def connection_closed(self, connection: Any) -> None:
        """A client that was in its vhost is gone."""
        self.publish("connection.closed", {
            "name": connection.peer, "pid": format_pid(connection), "node": self._node_name,
            "client_properties": format_table(connection.client_property_table),
        })  # fmt: skip

    def channel_created(self, channel: Any) -> None:
        """channel.open."""
        connection = channel.connection
        self.publish("channel.created", {
            "pid": format_pid(connection, channel.number), "name": f"{connection.peer} ({channel.number})",
            "connection": format_pid(connection), "number": channel.number, "user": connection.user,
            "vhost": connection.access.vhost.name,
        }, connection.user)  # fmt: skip

    def channel_closed(self, channel: Any) -> None:
        """A channel ended, however it did."""
        connection = channel.connection
        self.publish("channel.closed", {"pid": format_pid(connection, channel.number)}, connection.user)

    def consumer_created(self, consumer: Any) -> None:
        """basic.consume."""
        fields = self._describe_consumer(consumer)
        fields["ack_required"] = not consumer.no_ack
        fields["exclusive"] = consumer.exclusive
        fields["prefetch_count"] = consumer.prefetch
        fields["arguments"] = format_table(consumer.arguments)
        self.publish("consumer.created", fields, consumer.channel.connection.user)

    def consumer_deleted(self, consumer: Any) -> None:
        """A consumer is gone: cancelled by its client, or with channel, connection or queue."""
        self.publish("consumer.deleted", self._describe_consumer(consumer), consumer.channel.connection.user)

    def _describe_consumer(self, consumer: Any) -> dict[str, Any]:
        channel, queue = consumer.channel, consumer.queue
        return {
            "consumer_tag": consumer.tag.decode("utf-8", "surrogateescape"), "queue": queue.name,
            "vhost": queue.vhost_name, "channel": format_pid(channel.connection, channel.number),
        }  # fmt: skip

    def publish_login(self, connection: Any, user: str, mechanism: str, error: str = "") -> None:
        """A login was accepted, or refused with ``error`` as the log has it."""
        fields = {
            "name": user, "connection_name": connection.peer, "connection_type": "network", "protocol": "{0,9,1}",
            "auth_mechanism": mechanism,
        }  # fmt: skip
        if error:
            fields["error"] = error
        self.publish(f"user.authentication.{'failure' if error else 'success'}", fields)

    # --- the broker

    def publish_named(self, name: str, fields: "Mapping[str, Any]", user: str = "") -> None:
        """Publish an event with these fields as they are: tables and lists stay tables and lists.

        vhost.created/deleted {name}; vhost.limits.set/cleared {name, limits}; user.created/deleted {name};
        user.password.changed/cleared {name}; user.tags.set {name, tags}; permission.created/deleted {user, vhost,
        configure, write, read}; topic.permission.* {user, vhost, exchange, write, read}; policy.set/cleared {vhost,
        name, pattern, definition, priority, apply-to}; parameter.set/cleared {vhost, component, name, value};
        queue.policy.updated/cleared {vhost, name, policy}.
        """
        self.publish(name, dict(fields), user)

    def publish_alarm(self, source: str, *, raised: bool) -> None:
        """``source`` (memory, disk, file descriptors) runs short, or there is enough of it again."""
        self.publish("alarm.set" if raised else "alarm.cleared", {"source": source, "node": self._node_name})


def publish_policy_changes(
    events: Events, vhost: str, before: "list[dict[str, Any]]", after: "list[dict[str, Any]]"
) -> None:
    """Publish the difference between two lists of policies: policy.set for each new or changed one, policy.cleared
    for each that is gone."""
    old = {entry["name"]: entry for entry in before}
    for entry in after:
        if old.pop(entry["name"], None) != entry:
            events.publish_named("policy.set", {"vhost": vhost, **entry})
    for name in old:
        events.publish_named("policy.cleared", {"vhost": vhost, "name": name})


class LogExchange(logging.Handler):
    """Publishes what is logged, at the loop's next turn.  Any thread may log.

    ``soon`` runs a callback later on the loop (call_soon_threadsafe).
    """

    def __init__(
        self, vhost: "VHost", exchange: WatchedExchange, node_name: str, soon: "Callable[[Callable[[], None]], object]"
    ) -> None:
        super().__init__()
        self._vhost = vhost
        self._exchange = exchange
        self._node_name = node_name
        self._soon = soon
        self._waiting: list[tuple[str, str, int]] = []  # level, line, seconds

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line for the loop's next turn.  logging calls this with the handler locked."""
        if not self._exchange.wanted or len(self._waiting) >= LINES_WAITING_MAX:
            return
        try:
            self._waiting.append((record.levelname.lower(), self.format(record), int(record.created)))
            if len(self._waiting) == 1:
                self._soon(self.publish)
        except Exception:  # A line that cannot be logged must not stop its caller.
            self.handleError(record)

    def publish(self) -> None:
        """Publish the lines that wait."""
        self.acquire()
        lines, self._waiting = self._waiting, []
        self.release()
        for level, line, seconds in lines:
            properties = Properties(
                content_type="text/plain", headers={"node": self._node_name}, timestamp=seconds
            )
            publish(self._vhost, self._exchange, level, properties, line.encode("utf-8", "backslashreplace"))
        self._vhost.core.turn()


def publish(vhost: "VHost", exchange: "Exchange", routing_key: str, properties: Properties, body: bytes) -> None:
    """Store a message of the broker itself where ``exchange`` leads to.  Neither a missing queue nor a full disk is a
    fault."""
    queues = route(vhost, exchange, routing_key, lambda: properties).queues
    if queues:
        octets = encode_header(0, properties)[12:]
        try:
            vhost.core.put(queues, exchange.name.encode(), routing_key.encode("utf-8", "surrogateescape"), octets, body)
        except OSError:  # The disk is full.  Publishers are blocked and the log says so; a further line would not help.
            return


def format_pid(connection: Any, channel: int = 0) -> str:
    """The text in place of an Erlang process id: the connection's number, and the channel's."""
    return f"<{connection.number}.{channel}>" if channel else f"<{connection.number}>"


def format_table(table: "Mapping[str, Any]") -> list[str]:
    """A table as RabbitMQ's event exchange shows it: an array with one printed Erlang term a field."""
    return [f'{{{_quote(name)},{_name_type(value)},{_format_term(value)}}}' for name, value in table.items()]


def _name_type(value: Any) -> str:
    return type_name(value)


def _quote(text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'<<"{quoted}">>'


def _format_term(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "undefined"
    if isinstance(value, Timestamp | int | float):
        return str(value)
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, bytes):
        return _quote(value.decode("latin-1"))
    if isinstance(value, dict):
        return f"[{','.join(format_table(value))}]"
    if isinstance(value, list):
        return f"[{','.join(f'{{{_name_type(each)},{_format_term(each)}}}' for each in value)}]"
    return str(value)

"""One row of each kind of thing, in RabbitMQ's words.  The shapes stand in the modules of the nouns.

Each function takes a thing, and returns its row.  Octets that are not UTF-8 are surrogates.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from brokerd.operations.counting import stats_of
from brokerd.operations.plain import plain
from brokerd.queues.rules import effective_arguments

if TYPE_CHECKING:
    from brokerd.exchanges import Binding, Exchange
    from brokerd.vhost.vhost import VHost


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


# --- what is declared


def exchange(vhost: "VHost", thing: "Exchange") -> dict[str, Any]:
    """An exchange; ``exchange.Exchange`` is its shape."""
    tally = thing.tally
    return {
        "name": thing.name,
        "vhost": vhost.name,
        "type": thing.type,
        "durable": thing.durable,
        "auto_delete": thing.auto_delete,
        "internal": thing.internal,
        "arguments": plain(thing.arguments),
        "policy": thing.effective.policy,
        "operator_policy": thing.effective.operator_policy,
        "effective_policy_definition": plain(thing.effective.definition),
        "bindings": thing.binding_count,
        "message_stats": {"publish_in": tally.published, "publish_out": tally.routed} if tally is not None else {},
    }


def queue(vhost: "VHost", thing: Any) -> dict[str, Any]:
    """A queue; ``queue.QueueRow`` is its shape."""
    definition = thing.effective.definition
    owner = thing.owner
    return {
        "name": thing.name,
        "vhost": vhost.name,
        "type": thing.arguments.get("x-queue-type", "classic"),
        "durable": thing.durable,
        "auto_delete": thing.auto_delete,
        "exclusive": thing.exclusive,
        "arguments": plain(thing.arguments),
        "state": _queue_state(thing),
        "policy": thing.effective.policy,
        "operator_policy": thing.effective.operator_policy,
        "effective_policy_definition": plain(definition),
        "effective_arguments": plain(effective_arguments(thing.arguments, definition))
        if thing.arguments or definition else {},
        "messages": thing.ready + thing.unacked + thing.aside,
        "messages_ready": thing.ready,
        "messages_unacknowledged": thing.unacked,
        "messages_aside": thing.aside,
        "message_bytes_ready": thing.ready_octets,
        "next_seq": thing.next_seq,
        "consumers": thing.consumer_count,
        "bindings": len(thing.bindings),
        "exclusive_consumer_tag": _exclusive_tag(thing),
        "single_active_consumer_tag": _text(thing.active.tag) if thing.active is not None else None,
        "owner": getattr(owner, "peer", None),  # A waiting room for delayed messages belongs to the broker.
        "last_used": thing.touched // 1_000_000,
        "order_journal": thing.journaled,
        "message_stats": stats_of(thing),
    }  # fmt: skip


def _queue_state(thing: Any) -> str:
    if thing.lost:
        return "down"
    return "running" if thing.paused_at is None else "paused"


def _exclusive_tag(thing: Any) -> str | None:
    return _text(next(iter(thing.consumers)).tag) if thing.exclusively_consumed else None


def binding(vhost: "VHost", thing: "Binding") -> dict[str, Any]:
    """A binding; ``binding.BindingRow`` is its shape."""
    return {
        "source": thing.source.name,
        "vhost": vhost.name,
        "destination": thing.destination.name,
        "destination_type": "exchange" if hasattr(thing.destination, "bindings_to") else "queue",
        "routing_key": thing.routing_key,
        "arguments": plain(thing.arguments),
        "properties_key": thing.properties_key,
    }


def default_binding(vhost: "VHost", name: str) -> dict[str, Any]:
    """The binding of the default exchange that every queue has."""
    return {
        "source": "", "vhost": vhost.name, "destination": name, "destination_type": "queue", "routing_key": name,
        "arguments": {}, "properties_key": name,
    }  # fmt: skip


# --- clients


def connection(thing: Any) -> dict[str, Any]:
    """A connection; ``connection.ConnectionRow`` is its shape."""
    host, _, port = thing.peer.rpartition(":")
    properties = thing.client_property_table
    name = properties.get("connection_name")
    return {
        "number": thing.number,
        "name": thing.peer,
        "user_provided_name": name if isinstance(name, str) else None,
        "vhost": thing.access.vhost.name if thing.access is not None else None,
        "user": thing.user,
        "state": _state(thing),
        "channels": len(thing.channels or ()),
        "channel_max": thing.channel_max,
        "frame_max": thing.frame_max,
        "timeout": thing.heartbeat,
        "protocol": "AMQP 0-9-1",
        "type": "network",
        "ssl": bool(getattr(thing, "encrypted", False)),
        "certificate_name": thing.certificate_name,
        "peer_host": host.strip("[]") or thing.peer,
        "peer_port": int(port) if port.isdecimal() else 0,
        "connected_at": thing.opened_ns // 1_000_000,
        "client_properties": plain(properties),
        "recv_oct": thing.received_octets,
        "send_oct": thing.sent_octets,
        "send_pend": thing.waiting_octets,
    }


def _state(thing: Any) -> str:
    if thing.blocked:
        return "blocked"
    return str(thing.state)


def channel(thing: Any) -> dict[str, Any]:
    """A channel; ``channel.ChannelRow`` is its shape."""
    client = thing.connection
    return {
        "name": f"{client.peer} ({thing.number})",
        "number": thing.number,
        "connection": client.number,
        "connection_name": client.peer,
        "vhost": client.access.vhost.name,
        "user": client.user,
        "state": "closing" if thing.closing else ("running" if thing.flow else "flow"),
        "consumer_count": len(thing.consumers or ()),
        "prefetch_count": thing.prefetch,
        "global_prefetch_count": thing.global_prefetch,
        "confirm": thing.confirm,
        "transactional": thing.tx,
        "messages_unacknowledged": thing.unacked,
        "messages_unconfirmed": thing.unconfirmed,
        "publishes": thing.publishes,
        "message_stats": thing.figures,
    }


def consumer(thing: Any) -> dict[str, Any]:
    """A consumer; ``consumer.ConsumerRow`` is its shape."""
    channel_, queue_ = thing.channel, thing.queue
    client = channel_.connection
    active = queue_.active is None or queue_.active is thing
    return {
        "number": thing.number,
        "consumer_tag": _text(thing.tag),
        "queue": queue_.name,
        "vhost": queue_.vhost_name,
        "connection": client.number,
        "connection_name": client.peer,
        "channel": channel_.number,
        "user": client.user,
        "ack_required": not thing.no_ack,
        "exclusive": thing.exclusive,
        "prefetch_count": thing.prefetch,
        "priority": thing.priority,
        "active": active,
        "activity_status": "up" if queue_.active is None else ("single_active" if active else "waiting"),
        "arguments": plain(thing.arguments),
        "messages_unacknowledged": thing.unacked,
        "messages_delivered": thing.delivered,
        "consumer_timeout": thing.timeout_ms,
    }


def consumers_of(things: Any) -> Iterator[tuple[Any, str, Any]]:
    """The consumers of queues, as ``lists.Listing`` finds them."""
    for each in things:
        for consumer_ in list(each.consumers or ()):
            tag = _text(consumer_.tag)
            yield (each.vhost_name, each.name, consumer_.channel.connection.number, tag), tag, consumer_

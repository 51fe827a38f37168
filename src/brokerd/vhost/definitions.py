"""Replays the definitions log into exchanges, queues and bindings, and makes a long log short again.

An entry is the payload of the AMQP method that made or removed something.  The log is replayed before any client comes.
No permission is checked.  An entry that cannot be replayed any more is reported and is not fatal.  Knows nothing of how
the log lies on disk: that is store/definitions.
"""

from collections.abc import Callable, Iterable
from struct import pack
from typing import TYPE_CHECKING, Any

from brokerd.errors import AMQPError
from brokerd.exchanges import Exchange
from brokerd.wire import methods

if TYPE_CHECKING:
    from brokerd.vhost.vhost import VHost

COMPACT_DELETES_MIN = 1024  # shorter logs are not worth rewriting while running

# Nearly all entries of a long log are queues and bindings without arguments.  A start with 100,000 queues is a fifth
# quicker if it reads these without a method object.
#
#     queue.declare | class, method, reserved | name | 2: durable | no arguments u32 0 |
#     queue.bind    | class, method, reserved | queue | exchange | routing key | 0 | no arguments u32 0 |
_DECLARE_HEAD = pack(">IH", methods.BY_NAME["queue.declare"].INDEX, 0)
_DECLARE_TAIL = b"\x02" + bytes(4)
_BIND_HEAD = pack(">IH", methods.BY_NAME["queue.bind"].INDEX, 0)
_BIND_TAIL = bytes(5)


class Replay:
    """The results of replaying one log."""

    __slots__ = ("deleted_queues", "entries", "failed", "undone")

    def __init__(self) -> None:
        self.entries = 0
        self.undone = 0  # entries that only undo an earlier one
        self.failed: list[str] = []  # entries that could not be replayed, in words
        self.deleted_queues: set[str] = set()  # files of these may still be there


def replay(vhost: "VHost", payloads: Iterable[bytes]) -> Replay:
    """Rebuild ``vhost``, which is empty, from its log."""
    result = Replay()
    by_index = methods.BY_INDEX
    for payload in payloads:
        result.entries += 1
        try:
            if payload.endswith(_DECLARE_TAIL) and _replay_plain_queue(vhost, payload, result):
                continue
            if payload.endswith(_BIND_TAIL) and _replay_plain_binding(vhost, payload):
                continue
            index = int.from_bytes(payload[:4])
            _FOLLOW[index](vhost, by_index[index].decode_fields(payload), result)
        except (AMQPError, KeyError) as error:
            result.failed.append(f"entry {result.entries}: {error}")
    vhost.forget_routes()
    return result


def _replay_plain_queue(vhost: "VHost", payload: bytes, result: Replay) -> bool:
    """Make the queue of an entry that is a queue.declare without arguments.  False: it is another entry."""
    if not payload.startswith(_DECLARE_HEAD) or payload[6] != len(payload) - 12:
        return False
    name = payload[7:-5].decode("utf-8", "surrogateescape")
    if name in vhost.queues:
        return False
    vhost._make_queue(name, durable=True, auto_delete=False, arguments={})
    result.deleted_queues.discard(name)
    return True


def _replay_plain_binding(vhost: "VHost", payload: bytes) -> bool:
    """Make the binding of an entry that is a queue.bind without arguments.  False: it is another entry, or one end is
    missing."""
    if not payload.startswith(_BIND_HEAD):
        return False
    end = len(payload) - 5
    queue_end = 7 + payload[6]
    if queue_end >= end:
        return False
    exchange_end = queue_end + 1 + payload[queue_end]
    if exchange_end >= end or exchange_end + 1 + payload[exchange_end] != end:
        return False
    queue = vhost.queues.get(payload[7:queue_end].decode("utf-8", "surrogateescape"))
    exchange = vhost.exchanges.get(payload[queue_end + 1:exchange_end].decode("utf-8", "surrogateescape"))
    if queue is None or exchange is None:
        return False
    exchange.bind(queue, payload[exchange_end + 1:end].decode("utf-8", "surrogateescape"))
    return True


def is_worth_rewriting(vhost: "VHost") -> bool:
    """Whether at least half of the log is about things that are gone."""
    if vhost.deletes < COMPACT_DELETES_MIN or vhost.deletions_under_way:
        return False
    return 2 * vhost.deletes >= _count_things(vhost)


def compact(vhost: "VHost") -> None:
    """Rewrite the log in one go.  Raises OSError."""
    vhost.log.compact(vhost.definitions())
    vhost.deletes = 0


def _count_things(vhost: "VHost") -> int:
    """How many entries its log needs at most, in time that grows with the exchanges alone."""
    exchanges = vhost.exchanges.values()
    return len(exchanges) + len(vhost.queues) + sum(exchange.binding_count for exchange in exchanges)


def _queue_declare(vhost: "VHost", method: Any, result: Replay) -> None:
    if method.queue not in vhost.queues:
        vhost._make_queue(method.queue, durable=True, auto_delete=method.auto_delete, arguments=method.arguments)
        result.deleted_queues.discard(method.queue)


def _queue_delete(vhost: "VHost", method: Any, result: Replay) -> None:
    result.undone += 1
    result.deleted_queues.add(method.queue)
    queue = vhost.queues.pop(method.queue, None)
    if queue is not None:
        vhost.queue_names.changed(method.queue)
        for source in {binding.source for binding in queue.bindings}:
            source.unbind_all(queue)


def _queue_bind(vhost: "VHost", method: Any, _: Replay) -> None:
    vhost.exchange(method.exchange).bind(vhost.queue(method.queue), method.routing_key, method.arguments)


def _queue_unbind(vhost: "VHost", method: Any, result: Replay) -> None:
    result.undone += 1
    vhost.exchange(method.exchange).unbind(vhost.queue(method.queue), method.routing_key, method.arguments)


def _exchange_declare(vhost: "VHost", method: Any, _: Replay) -> None:
    if method.exchange not in vhost.exchanges:
        vhost._make_exchange(
            method.exchange,
            method.type,
            durable=True,
            auto_delete=method.auto_delete,
            internal=method.internal,
            arguments=method.arguments,
        )


def _exchange_delete(vhost: "VHost", method: Any, result: Replay) -> None:
    result.undone += 1
    exchange = vhost.exchanges.pop(method.exchange, None)
    if exchange is not None:
        exchange.unbind_everything()
        for source in {binding.source for binding in exchange.bindings_to}:
            source.unbind_all(exchange)


def _exchange_bind(vhost: "VHost", method: Any, _: Replay) -> None:
    _apply_to_ends(vhost, method, Exchange.bind)


def _exchange_unbind(vhost: "VHost", method: Any, result: Replay) -> None:
    result.undone += 1
    _apply_to_ends(vhost, method, Exchange.unbind)


def _apply_to_ends(vhost: "VHost", method: Any, verb: Callable[..., object]) -> None:
    verb(vhost.exchange(method.source), vhost.exchange(method.destination), method.routing_key, method.arguments)


_FOLLOW: dict[int, Callable[["VHost", Any, Replay], None]] = {
    methods.BY_NAME[name].INDEX: follow
    for name, follow in {
        "queue.declare": _queue_declare,
        "queue.delete": _queue_delete,
        "queue.bind": _queue_bind,
        "queue.unbind": _queue_unbind,
        "exchange.declare": _exchange_declare,
        "exchange.delete": _exchange_delete,
        "exchange.bind": _exchange_bind,
        "exchange.unbind": _exchange_unbind,
    }.items()
}

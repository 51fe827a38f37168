"""The deletion of queues and exchanges with their bindings and consumers, in pieces: at each yield others may have a
turn.

A queue stays as it is, and in service, while its bindings go one by one: the remaining bindings route a message that
comes meanwhile.  Then the queue itself goes at once, with its last bindings, its consumers and its files.  Only
then the owners of its consumers are told.  If the log refuses the deletion after all, the bindings come back.

An exchange is in the log as deleted, and has lost its name, before its bindings go: first those that lead to it, then
those that lead from it, which nothing reaches any more.

While the deletion of a queue is under way (``vhost.deletions_under_way``), the definitions log must not be made anew
from memory: the queue may come back with its bindings.  Knows nothing of permissions, nor who waits for the deletion.
"""

from collections.abc import Generator, Iterable, Iterator
from logging import getLogger
from typing import TYPE_CHECKING, TypeVar

from brokerd import plane
from brokerd.errors import PreconditionFailed
from brokerd.exchanges import Binding, Exchange, unbind_newest
from brokerd.wire import methods

if TYPE_CHECKING:
    from brokerd.queues.queue import Queue
    from brokerd.vhost.vhost import VHost

log = getLogger("brokerd")

Result = TypeVar("Result")

BINDINGS_AT_ONCE = 64  # of a queue: some 0.3 ms
# What the deletion of a queue may do for its dead messages between two yields, in copies of letters: some 1 ms, or
# 10 where Python makes the letters.  And how often.
DEATHS_AT_ONCE = 1024
DEATH_PIECES_MAX = 4096
# ... and for those that have died since, when the queue goes.
DEATHS_AT_DELETE_MAX = 16_384


def finish(work: Generator[None, None, Result]) -> Result:
    """Do the work in one go.  Raises what it raises."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result


# --- queues


def delete_queue(
    vhost: "VHost", queue: "Queue", *, if_unused: bool = False, if_empty: bool = False, user: str = ""
) -> Generator[None, None, int]:
    """Delete a queue and its bindings.  Returns how many ready messages went with it; 0 where somebody else deleted it
    meanwhile.

    Raises PreconditionFailed when ``if_unused`` or ``if_empty`` forbids it, or the log refuses it: then the queue has
    all that it had.  The queue's consumers are cancelled.  ``on_consumer_cancelled`` tells their connections, because
    the session is a floor above this one.
    """
    yield from _finish_deaths_in_pieces(queue)
    yield from queue.unmap_in_pieces()
    if len(queue.bindings) > BINDINGS_AT_ONCE and not queue.deleted:
        _check_queue(queue, if_unused, if_empty)
    unbound: list[Binding] = []
    count, consumers, removed = 0, list[plane.Consumer](), False
    takes_pieces = len(queue.bindings) > BINDINGS_AT_ONCE
    vhost.deletions_begun += takes_pieces
    vhost.deletions_under_way += takes_pieces
    try:
        while len(queue.bindings) > BINDINGS_AT_ONCE and not queue.deleted:
            unbound.append(unbind_newest(queue))
            yield
        if not queue.deleted:
            try:
                count, consumers = _remove_queue(vhost, queue, unbound, if_unused, if_empty)
                removed = True
            except PreconditionFailed:
                yield from _bind_again(vhost, queue, unbound)
                raise
    finally:
        vhost.deletions_under_way -= takes_pieces
    for source in dict.fromkeys([binding.source for binding in unbound]):
        yield from delete_if_unbound(vhost, source, user)
    for consumer in consumers:
        if not consumer.channel.left and consumer.tag not in consumer.channel.consumers:  # type: ignore[attr-defined]
            consumer.channel.connection.on_consumer_cancelled(consumer)  # type: ignore[attr-defined]
        if vhost.events.wanted:
            vhost.events.consumer_deleted(consumer)
        yield
    while removed and not queue.free_some():
        yield
    yield from _tell_unbound(vhost, unbound, user)
    vhost.events.counts["queue_deleted"] += bool(removed)
    if removed and vhost.events.wanted:
        vhost.events.queue_deleted(queue, user)
    return count


def auto_delete_queue(vhost: "VHost", queue: "Queue", user: str = "") -> Generator[None, None, None]:
    """Delete an auto-delete queue that has lost its last consumer.  Call this after each consumer that goes."""
    if queue.auto_delete and not queue.consumer_count and vhost.queues.get(queue.name) is queue:
        try:
            yield from delete_queue(vhost, queue, user=user)
        except PreconditionFailed as error:  # No client asked for the deletion, so the log is told instead.
            log.warning("%s stays, though its last consumer is gone: %s", queue, error)


def _finish_deaths(queue: "Queue", most: int) -> bool:
    """Dead-letter messages that have died by now, so that they do not go with the queue.  False: there are more."""
    return queue.rules.dead_letter is None or queue.finish_deaths(most)


def _finish_deaths_in_pieces(queue: "Queue") -> Iterator[None]:
    """The same in pieces: their letters may go to many queues each."""
    for _ in range(DEATH_PIECES_MAX):
        if queue.deleted or _finish_deaths(queue, DEATHS_AT_ONCE):
            return
        yield


def _check_queue(queue: "Queue", if_unused: bool, if_empty: bool) -> None:
    if if_unused and queue.consumer_count:
        raise PreconditionFailed(f"{queue} in use")
    if if_empty and queue.message_count:
        raise PreconditionFailed(f"{queue} not empty")


def _remove_queue(
    vhost: "VHost", queue: "Queue", unbound: list[Binding], if_unused: bool, if_empty: bool
) -> tuple[int, list[plane.Consumer]]:
    """Remove a queue at once, with the bindings that are left, which come to ``unbound``.

    Returns how many messages were ready, and its consumers, which are cancelled.  Raises PreconditionFailed, and has
    done nothing.
    """
    if not _finish_deaths(queue, DEATHS_AT_DELETE_MAX):
        log.warning("%s is deleted before all its dead messages were dead-lettered: the rest is lost", queue)
    _check_queue(queue, if_unused, if_empty)
    if queue.durable:
        vhost.write(methods.QueueDelete(queue=queue.name).encode())
        vhost.deletes += 1
    del vhost.queues[queue.name]
    vhost.queue_names.changed(queue.name)
    if queue.owner is not None:
        queue.owner.disown(queue)
    vhost.forget_routes()
    unbound += queue.bindings
    for source in dict.fromkeys([binding.source for binding in queue.bindings]):
        source.unbind_all(queue)
    count = queue.message_count
    consumers = list(queue.consumers or ())
    for consumer in consumers:
        # As the data plane does it: what the session's channel would note in the order journal goes with the queue.
        plane.Channel.cancel(consumer.channel, consumer)
    queue.deleted = True
    queue.drop()
    if vhost.remove_files is not None:
        vhost.remove_files(queue)
    return count, consumers


def _bind_again(vhost: "VHost", queue: "Queue", unbound: list[Binding]) -> Iterator[None]:
    """The queue stays: give back the bindings that it has lost, unless their exchange is gone."""
    for binding in reversed(unbound):
        if vhost.exchanges.get(binding.source.name) is binding.source and not queue.deleted:
            binding.source.bind(queue, binding.routing_key, binding.arguments)
        yield
    vhost.forget_routes()


def _tell_unbound(vhost: "VHost", unbound: Iterable[Binding], user: str) -> Iterator[None]:
    for binding in unbound:
        if not vhost.events.wanted:
            return
        vhost.events.binding_deleted(vhost.name, binding, user)
        yield


# --- exchanges


def delete_exchange(
    vhost: "VHost", exchange: Exchange, *, if_unused: bool = False, user: str = ""
) -> Generator[None, None, None]:
    """Delete an exchange and its bindings.  Raises PreconditionFailed where ``if_unused`` is given and bindings lead
    from the exchange, or where the log refuses it."""
    if if_unused and exchange.binding_count:
        raise PreconditionFailed(f"{vhost.describe(exchange)} in use")
    for source in (yield from _remove_exchange(vhost, exchange, user)):
        yield from delete_if_unbound(vhost, source, user)


def delete_if_unbound(vhost: "VHost", exchange: Exchange, user: str) -> Generator[None, None, None]:
    """Delete the exchange if it is auto-delete and has no binding left, then each exchange that this leaves without
    bindings, and so on.  Call this after each binding that goes."""
    waiting = [exchange]
    while waiting:  # A chain of exchanges may be longer than the stack.
        exchange = waiting.pop()
        if exchange.auto_delete and not exchange.binding_count and vhost.exchanges.get(exchange.name) is exchange:
            try:
                waiting += yield from _remove_exchange(vhost, exchange, user)
            except PreconditionFailed as error:
                log.warning("%s stays, though its last binding is gone: %s", vhost.describe(exchange), error)
        yield


def _remove_exchange(vhost: "VHost", exchange: Exchange, user: str) -> Generator[None, None, list[Exchange]]:
    """Remove an exchange.  Returns the exchanges that lost a binding to it."""
    if exchange.durable:
        vhost.write(methods.ExchangeDelete(exchange=exchange.name).encode())
        vhost.deletes += 1
    del vhost.exchanges[exchange.name]
    vhost.forget_routes()
    if exchange.intercepts:
        vhost.delays.forget_exchange(exchange)
    if vhost.duplicates.asks(exchange):
        vhost.duplicates.forget_exchange(exchange.name)
    incoming = []
    while exchange.bindings_to:
        incoming.append(unbind_newest(exchange))
        yield
    vhost.forget_routes()  # Those found meanwhile may lead through the exchange.
    outgoing = list(exchange.bindings()) if vhost.events.wanted else []
    yield from exchange.unbind_everything_in_pieces()
    yield from _tell_unbound(vhost, [*outgoing, *reversed(incoming)], user)
    if vhost.events.wanted:
        vhost.events.exchange_deleted(vhost.name, exchange.name, user)
    return list(dict.fromkeys([binding.source for binding in reversed(incoming)]))

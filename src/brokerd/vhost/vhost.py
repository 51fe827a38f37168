"""One namespace: its exchanges, queues and bindings, and the effects of a deletion on the others.

    exchanges   {name: Exchange}     the default one is ""; amq.* are there from the start
    queues      {name: Queue}
    accesses    {user: Access}       one door for each user; every change clears the routes that it remembers

The definitions log gets each durable thing as the AMQP method that made it.  ``appended`` counts the entries, so that
a caller can wait until the entry it caused is on disk.  Knows nothing of users' permissions, of clients or of the wire.
"""

from collections.abc import Callable, Generator, Iterator
from itertools import takewhile
from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd import plane
from brokerd.errors import NotFound, PreconditionFailed
from brokerd.exchanges import (
    DefaultExchange,
    DirectExchange,
    Exchange,
    FanoutExchange,
    HeadersExchange,
    TopicExchange,
    exchange_type,
)
from brokerd.exchanges.arguments import check_arguments as check_exchange_arguments
from brokerd.policies import NONE_APPLY
from brokerd.queues.queue import WAITING_ROOM_PREFIX, Owner, Queue, check_arguments
from brokerd.store.format import TRANSIENT_FOLDER, folder_name
from brokerd.vhost import deletions
from brokerd.vhost.features import make_null
from brokerd.vhost.listing import MAX_QUEUES
from brokerd.vhost.names import RESERVED_PREFIX
from brokerd.vhost.routing import give_history
from brokerd.vhost.sorted_names import SortedNames
from brokerd.wire import methods

if TYPE_CHECKING:
    from brokerd.policies import Policies
    from brokerd.store.definitions import DefinitionsLog
    from brokerd.store.shared_commit_log import SharedCommitLog
    from brokerd.vhost.access import Access
    from brokerd.vhost.features import Features
    from brokerd.vhost.listing import Row

log = getLogger("brokerd")

SYSTEM_EXCHANGES: tuple[tuple[str, type[Exchange], bool], ...] = (  # name, type, internal (RabbitMQ)
    ("amq.direct", DirectExchange, False),
    ("amq.fanout", FanoutExchange, False),
    ("amq.headers", HeadersExchange, False),
    ("amq.match", HeadersExchange, False),
    ("amq.rabbitmq.trace", TopicExchange, True),
    ("amq.topic", TopicExchange, False),
)


class VHost:
    """A virtual host.  All verbs take effect at once.  Only the file calls of a deletion can block.

    ``user`` of a verb is the user who asks for it; events name this user.  "" means that the broker itself asks.

    ``give_features(self)`` makes the vhost's features, such as dead letters and delays (see features).
    """

    __slots__ = (
        "accesses", "appended", "commit_log", "core", "dead_letters", "default_queue_type", "delays", "deleted",
        "deletes", "deletions_begun", "deletions_under_way", "directory", "duplicates", "events", "exchanges",
        "firehose", "log", "max_queues", "name", "on_disk", "policies", "queue_names", "queues", "remove_files",
        "replies", "revision", "unsynced",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        directory: str,
        core: plane.Core,
        log: "DefinitionsLog",
        *,
        give_features: "Callable[[VHost], Features]" = make_null,
        policies: "Policies | None" = None,
        remove_files: "Callable[[Queue], object] | None" = None,
    ) -> None:
        """``remove_files(queue)`` is called for each queue that was deleted; None: there are no files."""
        self.name = name
        self.directory = directory
        self.deleted = False  # No client finds it any more, and nothing may be written into its folder.
        self.max_queues = -1  # -1: no limit
        self.default_queue_type = ""  # "": a declaration that names none means classic
        self.core = core
        self.commit_log: SharedCommitLog | None = None  # made by the first small transaction
        self.log = log
        self.appended = 0  # entries written to the definitions log since start
        self.on_disk = 0  # of these, known to be synced
        self.revision = 0  # grows with each change of where messages go, and of what is there
        self.unsynced: dict[Queue | Exchange, int] = {}  # made by entries up to this one, which is not on disk
        self.deletes = 0  # entries in the log that only undo earlier ones
        self.deletions_under_way = self.deletions_begun = 0  # of queues, that take pieces
        self.queues: dict[str, Queue] = {}
        self.queue_names = SortedNames(self.queues)
        self.exchanges: dict[str, Exchange] = {"": DefaultExchange(self._addressed, tally=plane.Tally())}
        self.accesses: dict[str, Access] = {}
        self.policies = policies
        self.remove_files = remove_files
        for exchange, cls, internal in SYSTEM_EXCHANGES:
            self.exchanges[exchange] = cls(exchange, durable=True, internal=internal, tally=plane.Tally())
        given = give_features(self)
        self.dead_letters = given.dead_letters
        self.delays = given.delays
        self.duplicates = given.duplicates
        self.replies = given.replies
        self.firehose = given.firehose
        self.events = given.events

    # --- finding

    def queue(self, name: str) -> Queue:
        """The queue of that name.  Raises NotFound (404)."""
        try:
            return self.queues[name]
        except KeyError:
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'") from None

    def exchange(self, name: str) -> Exchange:
        """The exchange of that name.  Raises NotFound (404)."""
        try:
            return self.exchanges[name]
        except KeyError:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'") from None

    def _addressed(self, name: str) -> Queue | None:
        """The queue that the default exchange finds by this routing key.  It is never a waiting room: clients cannot
        publish to those."""
        return None if name.startswith(WAITING_ROOM_PREFIX) else self.queues.get(name)

    def describe(self, thing: Queue | Exchange) -> str:
        """``queue 'q' in vhost '/'``, as messages name things."""
        kind = "exchange" if isinstance(thing, Exchange) else "queue"
        return f"{kind} '{thing.name}' in vhost '{self.name}'"

    def forget_routes(self) -> None:
        """Clear all remembered routes, because where messages go has changed."""
        self.revision += 1
        for access in self.accesses.values():
            access.forget_routes()
        self.dead_letters.forget_routes()
        self.delays.forget_routes()

    # --- queues

    def take_settings(self, row: "Row") -> None:
        """Let what vhosts.json says hold for the queues that are declared from now on."""
        self.max_queues = row.limit(MAX_QUEUES)
        self.default_queue_type = row.default_queue_type

    def with_queue_type(
        self, name: str, arguments: dict[str, Any], *, durable: bool, exclusive: bool, auto_delete: bool
    ) -> dict[str, Any]:
        """The arguments with the type that a declaration means which names none, where this vhost has a default.

        A queue that is there keeps its type.  A queue that cannot be of the default type is classic.
        """
        there = self.queues.get(name)
        kind = self.default_queue_type if there is None else there.arguments.get("x-queue-type", "")
        if not kind or (there is None and kind != "classic" and (exclusive or auto_delete or not durable)):
            return arguments
        return {**arguments, "x-queue-type": kind}

    def check_queue_limit(self, name: str) -> None:
        """Check that one more queue, ``name``, is allowed.  Raises PreconditionFailed (RabbitMQ's text)."""
        if 0 <= self.max_queues <= len(self.queues):
            raise PreconditionFailed(
                f"cannot declare queue '{name}': queue limit in vhost '{self.name}' ({self.max_queues}) is reached"
            )

    def check_policies_known(self, name: str, kind: str) -> None:
        """Check that ``add_queue`` and ``add_exchange`` need not search long for the policies of a thing of this name
        and kind.  Raises NotAnsweredYet."""
        if self.policies is not None:
            self.policies.check_known(name, kind)

    def add_queue(
        self, name: str, *, durable: bool, auto_delete: bool, arguments: dict[str, Any], owner: Owner | None = None,
        user: str = "",
    ) -> Queue:  # fmt: skip
        """Make a new queue.  Raises PreconditionFailed for arguments that no queue can have.

        An exclusive queue (one with an owner) ends with its connection and is never durable (RabbitMQ).
        """
        if arguments:
            check_arguments(
                name, self.name, arguments, durable=durable, exclusive=owner is not None, auto_delete=auto_delete
            )
        durable = durable and owner is None
        if durable:
            self.write(queue_declare(name, auto_delete, arguments))
        queue = self._make_queue(name, durable=durable, auto_delete=auto_delete, arguments=arguments, owner=owner)
        if durable:
            self.unsynced[queue] = self.appended
        queue.apply_rules(self.policies)
        self._there_is_more()
        self.events.counts["queue_created"] += 1
        if self.events.wanted:
            self.events.queue_created(queue, user)
        return queue

    def _make_queue(
        self, name: str, *, durable: bool, auto_delete: bool, arguments: dict[str, Any], owner: Owner | None = None
    ) -> Queue:
        folder = self.directory if durable else f"{self.directory}/{TRANSIENT_FOLDER}"
        queue = self.queues[name] = Queue(
            self.core,
            f"{folder}/{folder_name(name)}",
            name=name,
            vhost_name=self.name,
            durable=durable,
            auto_delete=auto_delete,
            arguments=arguments,
            owner=owner,
        )
        self.queue_names.changed(name)
        queue.dead_letters = self.dead_letters
        queue.key_files = self.duplicates.key_files
        if self.firehose.on:
            self.firehose.watch(queue)
        return queue

    def end_service(self, queue: Queue) -> None:
        """Keep the queue, and let nothing in or out: pages of its files are lost (plane.Core's ``lost``).

        Publishes are refused, consumers are cancelled; all who ask for it learn why.  The next start recovers what is
        left.
        """
        queue.gate = plane.ClosedGate()
        consumers = list(queue.consumers or ())
        for consumer in consumers:
            consumer.channel.cancel(consumer)
        for consumer in consumers:
            consumer.channel.connection.on_consumer_cancelled(consumer)  # type: ignore[attr-defined]
            if self.events.wanted:
                self.events.consumer_deleted(consumer)

    def delete_queue(
        self, queue: Queue, *, if_unused: bool = False, if_empty: bool = False, user: str = ""
    ) -> int:
        """Delete a queue and its bindings.  Returns how many ready messages went with it.

        Raises PreconditionFailed when ``if_unused`` or ``if_empty`` forbids it.  See deletions.
        """
        return deletions.finish(
            deletions.delete_queue(self, queue, if_unused=if_unused, if_empty=if_empty, user=user)
        )

    def delete_unused_queue(self, queue: Queue) -> Generator[None, None, None]:
        """Delete a queue whose ``x-expires`` is over, in pieces."""
        try:
            yield from deletions.delete_queue(self, queue)
        except PreconditionFailed as error:  # No client asked for the deletion, so the log is told instead.
            log.warning("%s stays, though it is unused: %s", queue, error)
            return
        log.debug("%s: deleted, unused for %d ms", queue, queue.rules.expires_ms)

    # --- exchanges

    def add_exchange(
        self, name: str, type_: str, *, durable: bool, auto_delete: bool, internal: bool, arguments: dict[str, Any],
        user: str = "",
    ) -> Exchange:  # fmt: skip
        """Make a new exchange.  Raises PreconditionFailed for an unknown type, and for arguments that no exchange of
        this type can have."""
        exchange_type(type_)
        check_exchange_arguments(type_, arguments, f"exchange '{name}' in vhost '{self.name}'")
        if durable:
            self.write(exchange_declare(name, type_, auto_delete, internal, arguments))
        exchange = self._make_exchange(
            name, type_, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
        )
        if durable:
            self.unsynced[exchange] = self.appended
        if self.policies:
            exchange.effective = self.policies.effective(name, "exchanges")
        if exchange.intercepts:
            self.delays.adopt(exchange)
        if _deduplicates(exchange):
            self.duplicates.adopt(exchange, new=True)
        self._there_is_more()
        if self.events.wanted:
            self.events.exchange_created(self.name, exchange, user)
        return exchange

    def _make_exchange(self, name: str, type_: str, *, arguments: dict[str, Any], **properties: Any) -> Exchange:
        cls = exchange_type(type_)
        if arguments.get("x-delayed-exchange") is True:
            from brokerd.exchanges.delayed import delayed_class  # Few exchanges ask for it.

            cls = delayed_class(cls)  # type: ignore[arg-type]  # A class is hashable, even if its instances are not.
        exchange = self.exchanges[name] = cls(name, tally=plane.Tally(), arguments=arguments, **properties)
        return exchange

    # --- opened and closed

    def apply_rules(self) -> None:
        """Put arguments and policies in force.  Call this after all queues have been read from disk."""
        for _ in self.put_rules_in_force():
            pass

    def put_rules_in_force(self) -> Iterator[None]:
        """Do what ``apply_rules`` does, an exchange or a queue at a time."""
        policies = self.policies
        for exchange in list(self.exchanges.values()):
            exchange.effective = (yield from policies.search(exchange.name, "exchanges")) if policies else NONE_APPLY
            yield
        self.forget_routes()  # Alternate exchanges may have changed.
        for queue in list(self.queues.values()):
            if policies:
                yield from policies.search(queue.name, queue.kind)  # The queue then finds it known.
            if not queue.deleted and (policies or queue.has_own_rules):
                queue.apply_rules(policies)
            yield
        self.revision += 1  # Which queues are federated may have changed.

    def take_up_features(self, *, suspect: bool = False) -> None:
        """Start features that read files, after the rules are in force: delayed messages wait again for their time, and
        exchanges know their deduplication keys again.

        ``suspect``: power was lost.
        """
        if any(exchange.intercepts for exchange in self.exchanges.values()) or any(
            name.startswith(WAITING_ROOM_PREFIX) for name in self.queues
        ):
            self.delays.open()
        for exchange in self.exchanges.values():
            if _deduplicates(exchange):
                self.duplicates.adopt(exchange, suspect=suspect)
        self.duplicates.open(self.queues.values(), suspect=suspect)

    def _there_is_more(self) -> None:
        """Something that messages may go to has come to be."""
        self.forget_routes()
        self.dead_letters.retry()

    def close(self) -> None:
        """Stop all timers, because the broker stops or the vhost is deleted."""
        self.dead_letters.close()
        self.duplicates.close()

    # --- the end of exchanges

    def delete_exchange(self, exchange: Exchange, *, if_unused: bool = False, user: str = "") -> None:
        """Delete an exchange and its bindings.  Raises PreconditionFailed where ``if_unused`` is given and bindings
        lead from the exchange."""
        deletions.finish(deletions.delete_exchange(self, exchange, if_unused=if_unused, user=user))

    # --- bindings

    def bind(
        self, source: Exchange, destination: Queue | Exchange, routing_key: str, arguments: dict[str, Any],
        user: str = "",
    ) -> None:  # fmt: skip
        """Do what ``bind_in_pieces`` does, in one go."""
        deletions.finish(self.bind_in_pieces(source, destination, routing_key, arguments, user))

    def bind_in_pieces(
        self, source: Exchange, destination: Queue | Exchange, routing_key: str, arguments: dict[str, Any],
        user: str = "",
    ) -> Generator[None, None, None]:  # fmt: skip
        """Bind.  A binding that exists already is no fault.  The binding is durable when both ends are.

        The destination first gets the history of the source, if the source has one, in pieces.  One end that is deleted
        meanwhile takes the binding with it.
        """
        if source.has_history and not source.has_binding(destination, routing_key, arguments):
            try:
                yield from give_history(self, source, destination)
            except OSError as error:  # It is bound all the same.  The data plane has already reported the full disk.
                log.warning("%s: its history was not delivered to a new binding: %s",
                            self.describe(source), error.strerror)  # fmt: skip
            if not self._has(source) or not self._has(destination):
                return
        binding = source.bind(destination, routing_key, arguments)
        if binding is None:
            return
        if source.durable and destination.durable:
            try:
                self.write(_binding(source, destination, routing_key, arguments))
            except PreconditionFailed:
                source.unbind(destination, routing_key, arguments)
                raise
        self._there_is_more()
        if self.events.wanted:
            self.events.binding_created(self.name, binding, user)

    def _has(self, thing: Queue | Exchange) -> bool:
        things: dict[str, Any] = self.exchanges if isinstance(thing, Exchange) else self.queues
        return things.get(thing.name) is thing

    def unbind(
        self, source: Exchange, destination: Queue | Exchange, routing_key: str, arguments: dict[str, Any],
        user: str = "",
    ) -> None:  # fmt: skip
        """Do what ``unbind_in_pieces`` does, in one go."""
        deletions.finish(self.unbind_in_pieces(source, destination, routing_key, arguments, user))

    def unbind_in_pieces(
        self, source: Exchange, destination: Queue | Exchange, routing_key: str, arguments: dict[str, Any],
        user: str = "",
    ) -> Generator[None, None, None]:  # fmt: skip
        """Unbind.  A binding that does not exist is no fault.  An auto-delete exchange goes with its last binding, in
        pieces."""
        binding = source.unbind(destination, routing_key, arguments)
        if binding is None:
            return
        if source.durable and destination.durable:
            try:
                self.write(_unbinding(source, destination, routing_key, arguments))
            except PreconditionFailed:
                source.bind(destination, routing_key, arguments)
                raise
            self.deletes += 1
        self.forget_routes()
        if self.events.wanted:
            self.events.binding_deleted(self.name, binding, user)
        yield from deletions.delete_if_unbound(self, source, user)

    # --- the definitions log

    def write(self, payload: bytes) -> None:
        """Append one entry to the definitions log.  Raises PreconditionFailed (406) where the disk refuses it, or the
        vhost is deleted."""
        if self.deleted:
            raise PreconditionFailed(f"vhost '{self.name}' is deleted")
        try:
            self.log.append(payload)
        except OSError as error:
            raise PreconditionFailed(f"the definition cannot be stored: {error.strerror}") from error
        self.appended += 1

    def entries_on_disk(self, appended: int) -> None:
        """So many entries are synced."""
        self.on_disk = max(self.on_disk, appended)
        synced = list(takewhile(lambda made: self.unsynced[made] <= self.on_disk, self.unsynced))
        if len(synced) == len(self.unsynced):
            self.unsynced.clear()
            return
        for made in synced:  # No search for the first one after each: it would step over all that are deleted.
            del self.unsynced[made]

    def definitions(self) -> Iterator[bytes]:
        """The shortest log that makes everything that is durable in this vhost now.

        The caller may take it in pieces, and go on with all that the log has got since the first one: what was made
        since is not here, and what was deleted since may be.
        """
        exchanges = [exchange for exchange in self.exchanges.values() if exchange.durable]
        queues, known = list(self.queues.values()), set[Queue | Exchange]()
        for exchange in exchanges:
            known.add(exchange)
            name = exchange.name
            if name and not name.startswith(RESERVED_PREFIX):  # Those are there by themselves.
                yield exchange_declare(name, exchange.type, exchange.auto_delete, exchange.internal,
                                       exchange.arguments)  # fmt: skip
        for queue in queues:
            if queue.durable:
                known.add(queue)
                yield queue_declare(queue.name, queue.auto_delete, queue.arguments)
        for exchange in exchanges:
            for binding in list(exchange.bindings()):
                if binding.destination in known:
                    yield _binding(exchange, binding.destination, binding.routing_key, binding.arguments)


def _deduplicates(exchange: Exchange) -> bool:
    return exchange.arguments.get("x-message-deduplication") is True


def queue_declare(name: str, auto_delete: bool, arguments: dict[str, Any]) -> bytes:
    """The method that makes a durable queue."""
    return methods.QueueDeclare(queue=name, durable=True, auto_delete=auto_delete, arguments=arguments).encode()


def exchange_declare(name: str, type_: str, auto_delete: bool, internal: bool, arguments: dict[str, Any]) -> bytes:
    """The method that makes a durable exchange."""
    return methods.ExchangeDeclare(
        exchange=name, type=type_, durable=True, auto_delete=auto_delete, internal=internal, arguments=arguments
    ).encode()


def _binding(source: Exchange, destination: Queue | Exchange, routing_key: str, arguments: dict[str, Any]) -> bytes:
    if isinstance(destination, Exchange):
        return methods.ExchangeBind(
            destination=destination.name, source=source.name, routing_key=routing_key, arguments=arguments
        ).encode()
    return methods.QueueBind(
        queue=destination.name, exchange=source.name, routing_key=routing_key, arguments=arguments
    ).encode()


def _unbinding(source: Exchange, destination: Queue | Exchange, routing_key: str, arguments: dict[str, Any]) -> bytes:
    if isinstance(destination, Exchange):
        return methods.ExchangeUnbind(
            destination=destination.name, source=source.name, routing_key=routing_key, arguments=arguments
        ).encode()
    return methods.QueueUnbind(
        queue=destination.name, exchange=source.name, routing_key=routing_key, arguments=arguments
    ).encode()

"""A vhost as one user may use it: the one door, with every permission check.

Each verb checks what RabbitMQ checks, in RabbitMQ's order: name, permission, existence, exclusive owner, equivalence.
An Access owns the routes that the data plane remembers for the user's connections; clearing them puts a revoked
permission into effect.  Knows nothing of frames: names in, queues and exchanges out.
"""

from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any, Protocol

from brokerd import plane
from brokerd.arguments import first_difference
from brokerd.errors import AccessRefused, NotFound, PreconditionFailed
from brokerd.exchanges import Exchange, exchange_type
from brokerd.exchanges.arguments import alternate_exchange, check_alternate_exchange, compared_arguments
from brokerd.queues.queue import Owner, Queue, kind_of
from brokerd.vhost import names
from brokerd.vhost.consuming import check_consume, check_get
from brokerd.vhost.deletions import auto_delete_queue, delete_exchange, delete_queue, finish
from brokerd.vhost.direct_reply import PSEUDO_QUEUES
from brokerd.vhost.routing import resolve, resolve_again
from brokerd.vhost.vhost import VHost

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from brokerd.auth.granted import Granted

log = getLogger("brokerd")


class GetsMessages(Protocol):
    """The session's channel, as basic.get needs it."""

    left: bool  # whether it has closed

    def get(self, queue: plane.Queue, no_ack: bool, /) -> bool:
        """Do the same as plane.Channel.get."""


class Pull:
    """basic.get from one queue, which a user was allowed on one connection.  While ``is_allowed`` it may be repeated
    there without another check."""

    __slots__ = ("_access", "_no_ack", "_noted", "_queue", "_revision")

    def __init__(self, access: "Access", queue: Queue, *, no_ack: bool) -> None:
        self._access = access
        self._revision = access.revision
        self._queue = queue
        self._no_ack = no_ack
        self._noted = False

    def is_allowed(self) -> bool:
        """Whether the checks of ``Access.pull`` would find the same: name, owner and arguments of a queue do not
        change."""
        return self._revision == self._access.revision and not self._queue.deleted

    def get(self, channel: "GetsMessages") -> bool:
        """Write basic.get-ok with the next message; False: the queue is empty.  ``channel`` is always the same one."""
        if not channel.get(self._queue, self._no_ack):
            self._queue.check_in_service()
            return False
        if not self._noted:
            self._queue.note_getter(channel)
            self._noted = True
        return True


class Access:
    """One user in one vhost.  All connections of that user there share it."""

    __slots__ = (
        "has_tag", "is_at_commit", "known", "may", "may_use_key", "promised", "revision", "routes", "user", "vhost",
    )  # fmt: skip

    def __init__(
        self,
        vhost: VHost,
        user: str,
        may: "Callable[[str, str, str], bool]",
        has_tag: "Callable[[str], bool] | None" = None,
        may_use_key: "Callable[[str, str, str], bool] | None" = None,
    ) -> None:
        """``may(operation, name, kind)``: the user's permission here; operation is configure, write or read, and kind
        queue or exchange.
        ``has_tag(tag)``: whether the user has that tag now; without this function the user has no tags.
        ``may_use_key(operation, exchange, routing_key)``: whether the user may write or read with this key of a topic
        exchange; without this function with any."""
        self.vhost = vhost
        self.user = user
        self.may = may
        self.has_tag = has_tag or _no_tag
        self.may_use_key = may_use_key or _any_key
        self.revision = 0  # of the user's permissions
        self.is_at_commit = False  # What was allowed at its publish is, however long ago that was.
        self.promised = ""  # a name that a queue would have had, which has not been made yet
        self.known: dict[tuple[bytes, bytes], plane.Answer | None] = {}  # see routing.resolve_again
        self.routes = plane.Routes(vhost.core, partial(resolve_again, self))

    def open(self, key: str) -> None:
        """Be one of the vhost's doors, by this key: what changes in the vhost is told to it."""
        self.vhost.accesses[key] = self

    def shut(self, key: str) -> None:
        """Be none of them any more."""
        self.vhost.accesses.pop(key, None)

    # --- permissions

    def permission_changed(self) -> None:
        """Forget what the user was allowed: the next publish and basic.get are checked again."""
        self.revision += 1
        self.forget_routes()

    def _check(self, operation: str, kind: str, name: str) -> None:
        if not self.may(operation, name, kind):
            raise AccessRefused(
                f"{operation} access to {kind} '{name}' in vhost '{self.vhost.name}' refused for user '{self.user}'"
            )

    def check_exchange(self, operation: str, name: str) -> None:
        """Raise AccessRefused; the default exchange goes by the name amq.default in permissions (RabbitMQ)."""
        self._check(operation, "exchange", name or "amq.default")

    def check_topic(self, operation: str, exchange: Exchange, routing_key: str) -> None:
        """Raise AccessRefused if the exchange is a topic exchange and the user may not use this routing key there."""
        if exchange.type == "topic" and not self.may_use_key(operation, exchange.name, routing_key):
            raise AccessRefused(
                f"{operation} access to topic '{routing_key}' in exchange '{exchange.name}' in vhost "
                f"'{self.vhost.name}' refused for user '{self.user}'"
            )

    def entry_of(self, made: Queue | Exchange) -> int:
        """The entry of the definitions log that made this, while it is not on disk; 0: nothing has to wait for it."""
        return self.vhost.unsynced.get(made, 0)

    # --- messages

    def resolve(
        self, exchange: bytes, routing_key: bytes, header: bytes, channel: plane.Channel | None = None
    ) -> plane.Answer:
        """Where a message goes.  See routing.resolve."""
        return resolve(self, exchange, routing_key, header, channel)

    def forget_routes(self) -> None:
        """Forget where messages go: a permission, an exchange, a queue or a binding has changed."""
        self.routes.clear()
        self.known.clear()

    # --- queues

    def queue_to_use(self, name: str, operation: str, connection: object) -> Queue:
        """The queue, for one of configure, write, read.  Raises AccessRefused, NotFound, ResourceLocked."""
        self._check(operation, "queue", name)
        queue = self.vhost.queue(name)
        queue.check_access(connection)
        queue.check_in_service()
        return queue

    def declare_queue(
        self,
        name: str,
        connection: Owner,
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> Queue:
        """Make the queue, or check that it exists and is equivalent.  ``connection`` owns an exclusive queue."""
        name = names.strip_cr_lf(name)
        if passive:
            queue = self.vhost.queue(name)
            if not any(self.may(operation, name, "queue") for operation in ("configure", "write", "read")):
                self._check("configure", "queue", name)
            queue.check_access(connection)
            queue.check_in_service()
            queue.touch()
            return queue
        arguments = arguments or {}
        if self.vhost.default_queue_type and "x-queue-type" not in arguments:
            arguments = self.vhost.with_queue_type(
                name, arguments, durable=durable, exclusive=exclusive, auto_delete=auto_delete
            )
        if not name:
            if arguments.get("x-queue-type") in ("quorum", "stream"):
                kind = arguments["x-queue-type"]
                raise PreconditionFailed(f'Cannot declare a server-named queue for type <<"{kind}">>')
            # The same name again, if a permission for it had to be asked for.
            name = self.promised = self.promised or names.random_name(names.SERVER_NAMED_PREFIX)
        else:
            names.check_not_reserved("queue", name)
        self._check("configure", "queue", name)
        owner = connection if exclusive else None
        queue_ = self.vhost.queues.get(name)
        if queue_ is not None:
            self.vhost.events.counts["queue_declared"] += 1
            queue_.check_equivalent(
                durable=durable and not exclusive, auto_delete=auto_delete, arguments=arguments, owner=owner
            )
            queue_.check_in_service()
            queue_.touch()
            return queue_
        self.vhost.check_queue_limit(name)
        if arguments:
            self._check_new_queue(name, arguments)
        self.vhost.check_policies_known(name, kind_of(arguments))
        self.vhost.events.counts["queue_declared"] += 1
        self.promised = ""
        return self.vhost.add_queue(
            name, durable=durable, auto_delete=auto_delete, arguments=arguments, owner=owner, user=self.user
        )

    def _check_new_queue(self, name: str, arguments: dict[str, Any]) -> None:
        """Check the further permissions that a dead-letter exchange needs."""
        target = arguments.get("x-dead-letter-exchange")
        if isinstance(target, str):
            self._check("read", "queue", name)
            self.check_exchange("write", target)

    def delete_queue(self, name: str, connection: object, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Do what ``delete_queue_in_pieces`` does, in one go."""
        return finish(self.delete_queue_in_pieces(name, connection, if_unused=if_unused, if_empty=if_empty))

    def delete_queue_in_pieces(
        self, name: str, connection: object, *, if_unused: bool = False, if_empty: bool = False
    ) -> "Generator[None, None, int]":
        """Delete a queue.  Returns how many ready messages went with it; 0 where no queue has that name (RabbitMQ)."""
        name = names.strip_cr_lf(name)
        self._check("configure", "queue", name)
        queue = self.vhost.queues.get(name)
        if queue is None:
            return 0
        queue.check_access(connection)
        return (yield from delete_queue(self.vhost, queue, if_unused=if_unused, if_empty=if_empty, user=self.user))

    def purge_queue(self, name: str, connection: object) -> int:
        """Do what ``purge_queue_in_pieces`` does, in one go."""
        return finish(self.purge_queue_in_pieces(name, connection))

    def purge_queue_in_pieces(self, name: str, connection: object) -> "Generator[None, None, int]":
        """Drop the messages that are ready, or wait in their groups, by now.  Returns how many."""
        return (yield from self.queue_to_use(names.strip_cr_lf(name), "read", connection).purge_in_pieces())

    # --- consumers

    def has_consumer(self, channel: plane.Channel, tag: str) -> bool:
        """Whether a consumer of ``channel`` has that tag.  A consumer of direct replies counts too."""
        replies = self.vhost.replies
        return _octets(tag) in (channel.consumers or ()) or replies.tag(channel) == tag

    def consume(
        self, channel: plane.Channel, name: str, tag: str, *, no_ack: bool, exclusive: bool,
        arguments: dict[str, Any], next_number: "Callable[[], int]",
    ) -> None:  # fmt: skip
        """Let ``channel`` consume from a queue; deliveries start in the next turn.  ``next_number`` returns the number
        by which order journals name the consumer.  Raises AccessRefused, NotFound, ResourceLocked; PreconditionFailed
        for its arguments; NotImplemented_ for what a stream does not have.
        """
        queue = self.queue_to_use(name, "read", channel.connection)
        wishes = check_consume(queue, arguments, exclusive=exclusive, no_ack=no_ack, channel=channel)
        if queue.stream is not None:
            from brokerd.queues.stream import begin_reading  # Most brokers have none.

            begin_reading(queue, arguments, tag)
        consumer = channel.consume(
            queue, _octets(tag), no_ack=no_ack, exclusive=exclusive, priority=wishes.priority, arguments=arguments,
            timeout_ms=wishes.timeout_ms, timeout_closes=wishes.timeout_closes, consumer_number=next_number(),
            numbers=wishes.numbers,
        )  # fmt: skip
        if queue.side_file is not None:
            queue.side_file.note_consumer(consumer)
        if self.vhost.events.wanted:
            self.vhost.events.consumer_created(consumer)

    def cancel(self, channel: plane.Channel, tag: str) -> "Generator[None, None, None]":
        """Cancel a consumer of ``channel``, of a queue or of direct replies.  An unknown tag is no fault (RabbitMQ).

        An auto-delete queue that this was the last consumer of is deleted, in pieces.
        """
        vhost = self.vhost
        if vhost.replies.remove(channel, tag):
            return
        consumer = (channel.consumers or {}).get(_octets(tag))
        if consumer is not None:
            channel.cancel(consumer)
            if vhost.events.wanted:
                vhost.events.consumer_deleted(consumer)
            yield from auto_delete_queue(vhost, consumer.queue, self.user)  # type: ignore[arg-type]

    def pull(self, name: str, connection: object, *, no_ack: bool) -> Pull:
        """Check that basic.get may take messages from a queue; the result takes them.  Raises AccessRefused, NotFound,
        ResourceLocked, NotImplemented_."""
        queue = self.queue_to_use(name, "read", connection)
        check_get(queue)
        return Pull(self, queue, no_ack=no_ack)

    # --- direct reply-to

    def consume_replies(self, channel: plane.Channel, tag: str, *, no_ack: bool) -> None:
        """Let ``channel`` consume direct replies.  This needs no permission (RabbitMQ).  Raises PreconditionFailed."""
        self.vhost.replies.add(channel, tag, no_ack=no_ack)

    def declare_replies(self, name: str) -> None:
        """Check that a client waits for answers under that name.  Raises NotFound."""
        if name not in PSEUDO_QUEUES and not self.vhost.replies.exists(name):
            raise NotFound(f"no queue '{name}' in vhost '{self.vhost.name}'")

    # --- what ends with its client, without a request

    def cancel_replies(self, channel: plane.Channel) -> None:
        """End the direct replies of a channel that goes."""
        self.vhost.replies.remove(channel)

    def auto_delete_queues(self, queues: "list[Queue]") -> "Generator[None, None, None]":
        """Delete the auto-delete queues among these that have lost their last consumer with a channel, in pieces.

        Takes all out of the list.
        """
        queues.reverse()
        while queues:
            queue = queues.pop()
            if queue.auto_delete:
                yield from auto_delete_queue(self.vhost, queue)
                yield

    def delete_exclusive_queues(self, queues: "set[Queue]") -> "Generator[None, None, None]":
        """Delete the exclusive queues of a connection that goes, in pieces.  Takes all out of the set."""
        while queues:
            queue = queues.pop()
            try:
                yield from delete_queue(self.vhost, queue)
            except (OSError, PreconditionFailed) as error:  # One that cannot go must not keep the others.
                log.error("%s of a connection that has gone cannot be deleted: %s", queue, error)
            yield

    # --- exchanges

    def declare_exchange(
        self,
        name: str,
        type_: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> Exchange:
        """Make the exchange, or check that it exists and is equivalent."""
        name = names.strip_cr_lf(name)
        if passive:
            _check_not_default(name)
            return self.vhost.exchange(name)
        arguments = arguments or {}
        exchange_type(type_)
        _check_not_default(name)
        self.check_exchange("configure", name)
        exchange = self.vhost.exchanges.get(name)
        if exchange is not None:
            self._check_equivalent(exchange, type_, durable, auto_delete, internal, arguments)
            return exchange
        names.check_not_reserved("exchange", name)
        check_alternate_exchange(arguments, f"exchange '{name}' in vhost '{self.vhost.name}'")
        alternate = alternate_exchange(arguments)
        if alternate is not None:
            self.check_exchange("read", name)
            self.check_exchange("write", alternate)
        self.vhost.check_policies_known(name, "exchanges")
        return self.vhost.add_exchange(
            name, type_, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments,
            user=self.user,
        )  # fmt: skip

    def _check_equivalent(
        self,
        exchange: Exchange,
        type_: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, Any],
    ) -> None:
        thing = self.vhost.describe(exchange)
        for field, received, current in (
            ("type", type_, exchange.type),
            ("durable", durable, exchange.durable),
            ("auto_delete", auto_delete, exchange.auto_delete),
            ("internal", internal, exchange.internal),
        ):
            if received != current:
                shown = _atom if field == "type" else str.lower
                was, wanted = shown(str(current)), shown(str(received))
                raise PreconditionFailed(
                    f"inequivalent arg '{field}' for {thing}: received '{wanted}' but current is '{was}'"
                )
        names = compared_arguments(exchange.type, exchange.arguments)
        difference = first_difference(exchange.arguments, arguments, names)
        if difference is not None:
            raise PreconditionFailed(f"inequivalent arg {difference.format(thing)}")

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Do what ``delete_exchange_in_pieces`` does, in one go."""
        finish(self.delete_exchange_in_pieces(name, if_unused=if_unused))

    def delete_exchange_in_pieces(self, name: str, *, if_unused: bool = False) -> "Generator[None, None, None]":
        """Delete an exchange.  An unknown name is no fault (RabbitMQ)."""
        name = names.strip_cr_lf(name)
        _check_not_default(name)
        if name.startswith(names.RESERVED_PREFIX):
            raise AccessRefused(f"deletion of system exchange '{name}' in vhost '{self.vhost.name}' not allowed")
        self.check_exchange("configure", name)
        exchange = self.vhost.exchanges.get(name)
        if exchange is not None:
            yield from delete_exchange(self.vhost, exchange, if_unused=if_unused, user=self.user)

    # --- bindings

    def bind_queue_in_pieces(
        self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any], connection: object
    ) -> "Generator[None, None, None]":
        """Bind a queue to an exchange: write on the queue, read on the exchange."""
        queue, exchange = names.strip_cr_lf(queue), names.strip_cr_lf(exchange)
        self._check_binding("queue", queue, exchange)
        source = self.vhost.exchange(exchange)
        self.check_topic("read", source, routing_key)
        destination = self.vhost.queue(queue)
        destination.check_access(connection)
        yield from self.vhost.bind_in_pieces(source, destination, routing_key, arguments, self.user)

    def unbind_queue_in_pieces(
        self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any], connection: object
    ) -> "Generator[None, None, None]":
        """Unbind; no fault when any of it is missing (RabbitMQ)."""
        queue, exchange = names.strip_cr_lf(queue), names.strip_cr_lf(exchange)
        self._check_binding("queue", queue, exchange)
        destination = self.vhost.queues.get(queue)
        source = self.vhost.exchanges.get(exchange)
        if source is not None:
            self.check_topic("read", source, routing_key)
        if destination is not None and source is not None:
            destination.check_access(connection)
            yield from self.vhost.unbind_in_pieces(source, destination, routing_key, arguments, self.user)

    def bind_exchange_in_pieces(
        self, destination: str, source: str, routing_key: str, arguments: dict[str, Any]
    ) -> "Generator[None, None, None]":
        """Bind one exchange to another: write on the destination, read on the source."""
        destination, source = names.strip_cr_lf(destination), names.strip_cr_lf(source)
        _check_not_default(destination)
        self._check_binding("exchange", destination, source)
        from_ = self.vhost.exchange(source)
        self.check_topic("read", from_, routing_key)
        to = self.vhost.exchange(destination)
        yield from self.vhost.bind_in_pieces(from_, to, routing_key, arguments, self.user)

    def unbind_exchange_in_pieces(
        self, destination: str, source: str, routing_key: str, arguments: dict[str, Any]
    ) -> "Generator[None, None, None]":
        """Unbind; no fault when any of it is missing (RabbitMQ)."""
        destination, source = names.strip_cr_lf(destination), names.strip_cr_lf(source)
        _check_not_default(destination)
        self._check_binding("exchange", destination, source)
        from_, to = self.vhost.exchanges.get(source), self.vhost.exchanges.get(destination)
        if from_ is not None:
            self.check_topic("read", from_, routing_key)
            if to is not None:
                yield from self.vhost.unbind_in_pieces(from_, to, routing_key, arguments, self.user)

    def _check_binding(self, kind: str, destination: str, source: str) -> None:
        _check_not_default(source)
        self._check("write", kind, destination)
        self.check_exchange("read", source)


def access_by(vhost: VHost, user: str, granted: "Granted") -> Access:
    """The vhost as a user may use it to whom this was granted."""
    name = vhost.name

    def may(operation: str, thing: str, kind: str) -> bool:
        return granted.check(name, operation, thing, kind)

    def may_use_key(operation: str, exchange: str, routing_key: str) -> bool:
        return granted.check_topic(name, operation, exchange, routing_key)

    return Access(vhost, user, may, lambda tag: tag in granted.tags, may_use_key)


def _octets(tag: str) -> bytes:
    return tag.encode("utf-8", "surrogateescape")


def _no_tag(tag: str) -> bool:
    return False


def _any_key(operation: str, exchange: str, routing_key: str) -> bool:
    return True


def _atom(name: str) -> str:
    """The name as Erlang prints an atom: in quotes unless it is letters and digits only."""
    return name if name.isalnum() else f"'{name}'"


def _check_not_default(exchange: str) -> None:
    if not exchange:
        raise AccessRefused("operation not permitted on the default exchange")

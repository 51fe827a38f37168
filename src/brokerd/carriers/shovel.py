"""A shovel: messages of a queue or an exchange of one broker go to another broker, or to a web server.

    source: queue, or exchange + key (by a queue of the shovel's own) -> relay -> destination: queue, exchange, HTTP

Its order is the source queue's: one consumer, one channel, publishes as deliveries came.  After a reconnect the source
delivers again the messages that were not acknowledged; the destination may get these twice, and their header says so.
With ``dedup`` the destination drops the second one: each message has an id, and the shovel declares the destination's
queue with deduplication by this id.
"""

from hashlib import blake2b
from logging import getLogger
from typing import Any
from uuid import uuid4

from brokerd.carriers import rewriting
from brokerd.carriers.carriage import Carriage
from brokerd.carriers.link import Finished, Link, Spec, Surroundings, ensure_queue, telling
from brokerd.client._relay import Relay
from brokerd.client.connection import Connection
from brokerd.links import state as states
from brokerd.links.definition import NEVER, NO_ACK, ON_CONFIRM, QUEUE_LENGTH, ShovelDefinition
from brokerd.wire import methods

log = getLogger("brokerd.links")

READER, OFFSET, FIRST_OFFSET = "x-stream-reader", "x-stream-offset", "x-stream-first-offset"
READER_OCTETS_MAX = 255
IDS = 262_144  # that a destination's queue remembers: 4 times what src-prefetch-count may have out


class Shovel(Link):
    """One shovel."""

    def __init__(self, spec: Spec, around: Surroundings) -> None:
        super().__init__(spec, around)
        self.definition = ShovelDefinition.from_value(spec.value)
        self.reconnect_delay = self.definition.reconnect_delay
        self._left = -1  # messages until it has done its work; -1: it has no end
        self._counted_left = False
        self._told_of_numbers = self._told_of_length = False
        self._reader = reader_name(spec.key.name, spec.key.vhost, around.broker)
        if self.definition.src_delete_after != NEVER:
            self._reader = f"shovel.{uuid4().hex}"  # A stream may forget it: it has done its work when it ends.
        self.state.source = self.definition.src_queue or self.definition.src_exchange or ""
        self.state.dest = self.definition.dest_queue or self.definition.dest_exchange or ""

    async def carry(self) -> None:
        """See ``Link``."""
        self.become(states.STARTING, self.state.reason)
        vhost = self.spec.key.vhost
        source, self.state.source_uri = await self.open_any(self.definition.src_uri, vhost)
        try:
            if self.definition.is_http:
                from brokerd.carriers.http import Poster  # Few shovels end at a web server.

                self.state.dest_uri = rewriting.shown(self.definition.dest_uri[0])
                with telling("source"):
                    queue = await self._prepare_source(source)
                    poster = Poster(self, source, self._left)
                    await self._consume(source, queue)
                await poster.run()
                raise Finished("it has carried all that it was to carry")
            destination, self.state.dest_uri = await self.open_any(self.definition.dest_uri, vhost)
            try:
                await self._carry_to(source, destination)
            finally:
                await destination.close()
        finally:
            await source.close()

    async def _carry_to(self, source: Connection, destination: Connection) -> None:
        definition = self.definition
        with telling("destination"):
            await self._prepare_destination(destination)
        with telling("source"):
            queue = await self._prepare_source(source)
        exchange, key = self._where()
        self.relay = relay = Relay(
            definition.ack_mode, exchange, key, mandatory=definition.ack_mode == ON_CONFIRM,
            rewrite=self._rewrite(), marks=True, ids=self._ids if definition.dedup else None, limit=self._left,
            frame_max=destination.frame_max,
        )  # fmt: skip
        carriage = Carriage(relay, source, destination, blocked=self._on_blocked, retries=definition.dest_retries,
                            on_returned=lambda: self._declare_again(destination), title=self.title)  # fmt: skip
        if self._left == 0:
            raise Finished("there was nothing to carry")
        with telling("source"):
            await self._consume(source, queue)
        self.become(states.RUNNING)
        before = self._left
        try:
            await carriage.run()
        finally:
            if before > 0:
                self._left = before - (relay.received - relay.unsettled)
        raise Finished("it has carried all that it was to carry")

    def _on_blocked(self, reason: str) -> None:
        self.become(states.BLOCKED if reason else states.RUNNING, reason)

    # --- topology

    async def _prepare_source(self, source: Connection) -> str:
        """The name of the queue to consume from."""
        definition = self.definition
        if definition.src_queue is None:
            made = await source.request(methods.QueueDeclare(queue="", exclusive=True, arguments={}))
            await source.request(methods.QueueBind(queue=made.queue, exchange=definition.src_exchange or "",
                                                   routing_key=definition.src_exchange_key, arguments={}))  # fmt: skip
            queue, waiting = made.queue, 0
        else:
            made = await ensure_queue(source, definition.src_queue, definition.src_queue_args,
                                      predeclared=definition.src_predeclared)  # fmt: skip
            queue, waiting = definition.src_queue, made.message_count
        self.state.lag = waiting
        if not self._counted_left and definition.src_delete_after != NEVER:
            self._left = waiting if definition.src_delete_after == QUEUE_LENGTH else int(definition.src_delete_after)
            self._counted_left = True
        prefetch = definition.src_prefetch_count
        if self._left >= 0:
            prefetch = min(prefetch or self._left, self._left)
        if definition.ack_mode != NO_ACK:
            await source.request(methods.BasicQos(prefetch_count=min(prefetch, 65535)))
        return queue

    async def _consume(self, source: Connection, queue: str) -> None:
        definition = self.definition
        arguments = dict(definition.src_consumer_args)
        if source.is_brokerd:
            # If it is a stream, it keeps the shovel's place: a queue of another kind does not look at these.
            arguments.setdefault(READER, self._reader)
            if OFFSET in arguments:  # It counts for the first time: else all would come again after a failure.
                arguments.setdefault(FIRST_OFFSET, arguments.pop(OFFSET))
        if definition.dedup:
            arguments[rewriting.NUMBERS] = True
        await source.request(methods.BasicConsume(
            queue=queue, no_ack=definition.ack_mode == NO_ACK, arguments=arguments,
        ))  # fmt: skip
        self.carries_from(source, queue)

    async def _prepare_destination(self, destination: Connection) -> None:
        definition = self.definition
        if definition.dedup and definition.dest_queue is not None and not definition.dest_predeclared:
            # Not only looked for: a queue that would not drop what comes twice is refused, and the state says so.
            await destination.request(methods.QueueDeclare(queue=definition.dest_queue, durable=True,
                                                           arguments=self._dest_queue_args()))  # fmt: skip
        elif definition.dest_queue is not None:
            await ensure_queue(destination, definition.dest_queue, definition.dest_queue_args,
                               predeclared=definition.dest_predeclared)  # fmt: skip
        elif definition.dest_exchange:  # Else the first message would tell that it is missing.
            await destination.request(methods.ExchangeDeclare(exchange=definition.dest_exchange, passive=True,
                                                              arguments={}))  # fmt: skip
        if definition.ack_mode == ON_CONFIRM:
            await destination.request(methods.ConfirmSelect())

    def _dest_queue_args(self) -> dict[str, Any]:
        definition = self.definition
        arguments = dict(definition.dest_queue_args)
        if definition.dedup:
            for name, value in (("x-message-deduplication", True), ("x-deduplication-header", rewriting.ID),
                                ("x-cache-size", IDS)):  # fmt: skip
                arguments.setdefault(name, value)
        return arguments

    def _declare_again(self, destination: Connection) -> None:
        """The destination's queue may have been deleted since: that is why it returned a message."""
        definition = self.definition
        if definition.dest_queue is not None and not definition.dest_predeclared:
            declare = methods.QueueDeclare(queue=definition.dest_queue, durable=True, no_wait=True,
                                           arguments=self._dest_queue_args())  # fmt: skip
            destination.write(declare.frame(1))

    def _where(self) -> tuple[bytes | None, bytes | None]:
        """Exchange and routing key of publishes; None: the message's own."""
        definition = self.definition
        if definition.dest_queue is not None:
            return b"", definition.dest_queue.encode("utf-8", "surrogateescape")
        exchange, key = [None if each is None else each.encode("utf-8", "surrogateescape")
                         for each in (definition.dest_exchange, definition.dest_exchange_key)]  # fmt: skip
        return exchange, key

    def id_changes(self) -> list[rewriting.Change]:
        """Changes that give each message its id, for messages that no relay carries; none without ``dedup``."""
        if not self.definition.dedup:
            return []
        return [rewriting.add_id(self._ids.decode("utf-8", "surrogateescape"), self._on_no_number)]

    @property
    def _ids(self) -> bytes:
        """The beginning of the ids of this shovel's messages; no other shovel with this destination has the same."""
        definition, key = self.definition, self.spec.key
        source = definition.src_queue or f"{definition.src_exchange} {definition.src_exchange_key}"
        return f"{self.around.broker} {key.vhost} {key.name} {source}".encode("utf-8", "surrogateescape")

    def look(self) -> bool:
        """See ``Link``."""
        relay = self.relay
        if relay is not None and relay.unnumbered:
            self._on_no_number()
        if relay is not None and relay.overlong and not self._told_of_length:
            self._told_of_length = True
            log.warning("%s: a message has no id, because its headers would be longer than a frame: dedup has no "
                        "effect on such messages", self.title)  # fmt: skip
        return super().look()

    def _on_no_number(self) -> None:
        if not self._told_of_numbers:
            self._told_of_numbers = True
            log.warning("%s: the source does not number its messages: dedup has no effect", self.title)

    def _rewrite(self) -> Any:
        definition, key = self.definition, self.spec.key
        changes = []
        if definition.dest_publish_properties:
            changes.append(rewriting.override(definition.dest_publish_properties))
        if definition.dest_add_forward_headers:
            uris = (self.state.source_uri, self.state.dest_uri)
            changes.append(rewriting.add_forward_headers(definition, key.name, key.vhost, self.around.cluster, uris))
        if definition.dest_add_timestamp_header:
            changes.append(rewriting.add_timestamp_header)
        return rewriting.changing(*changes) if changes else None


def reader_name(name: str, vhost: str, broker: str) -> str:
    """The name under which a stream keeps the shovel's place."""
    text = f"shovel {name} in {vhost} of {broker}"
    octets = text.encode("utf-8", "surrogateescape")
    if len(octets) > READER_OCTETS_MAX:
        return f"shovel {blake2b(octets, digest_size=16).hexdigest()} of {broker}"
    return text

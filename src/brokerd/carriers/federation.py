"""Federation: messages that are published to an exchange of an upstream come to the exchange here.  Messages that wait
in a queue there come to the queue here while it has consumers.

    upstream: exchange --the bindings of here--> "federation: X -> here A" --> queue "federation: X -> here" --> link
    here:     link --> exchange, with the routing key of there

Names, arguments and headers are RabbitMQ's.  The exchange in between is made anew at each start, A or B by turns, so
that its bindings are those of now; the queue stays.  Each hop adds a table to ``x-received-from``, so that loops end.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from brokerd.carriers.carriage import Carriage
from brokerd.carriers.link import Link, Spec, Surroundings, ensure_queue, telling
from brokerd.client._relay import Relay
from brokerd.client.address import AddressError
from brokerd.client.connection import ClientError, Connection, Refused
from brokerd.links import state as states
from brokerd.links.definition import NO_ACK, ON_CONFIRM, UpstreamDefinition
from brokerd.wire import methods
from brokerd.wire.properties import decode_header, encode_header
from brokerd.wire.values import Int16, Int64

if TYPE_CHECKING:
    from brokerd.client._relay import Rewrite

LOOK_SECONDS = 0.5  # between looks at a federated queue's consumers and messages
CLEAN_UP_SECONDS = 2.0  # less than the broker gives its processes to end
RECEIVED_FROM, BOUND_FROM = "x-received-from", "x-bound-from"
HOPS_MAX = 32767  # RabbitMQ writes the hops of a binding as a short.
UPSTREAM_TYPE = "x-federation-upstream"
LOW_PRIORITY = {"x-priority": -1}  # Consumers at the upstream come first (RabbitMQ).

Bindings = dict[tuple[str, str], dict[str, Any]]  # (routing key, arguments in words) -> arguments as made upstream


class FederationLink(Link):
    """The base of both kinds: an upstream, and a relay from a queue there to this broker."""

    def __init__(self, spec: Spec, around: Surroundings) -> None:
        super().__init__(spec, around)
        self.definition = UpstreamDefinition.from_value(spec.value)
        self.reconnect_delay = self.definition.reconnect_delay
        self.state.consumer_tag = self.definition.consumer_tag or f"federation-link-{spec.key.upstream}"

    @property
    def _name(self) -> str:
        return self.spec.key.name

    def _on_blocked(self, reason: str) -> None:
        self.become(states.BLOCKED if reason else states.RUNNING, reason)

    def _rewrite(self, cluster: str, kind: str, name: str, max_hops: int | None) -> "Rewrite":
        """Put a table in front of x-received-from; drop a message that has passed too many brokers, or this one."""
        vhost, broker = self.spec.key.vhost, self.around.broker
        trusts = self.definition.trust_user_id
        entry = {"uri": self.state.source_uri, kind: name, "cluster-name": cluster, "vhost": self._upstream_vhost}

        def rewrite(exchange: bytes, key: bytes, header: bytes, redelivered: bool) -> tuple[bytes, bytes, bytes] | None:
            size, properties = decode_header(header)
            headers = properties.headers or {}
            before = headers.get(RECEIVED_FROM)
            passed = before if isinstance(before, list) else []
            if max_hops is not None and (len(passed) >= max_hops or any(
                isinstance(each, dict) and each.get("cluster-name") == broker and each.get("vhost") == vhost
                for each in passed
            )):
                return None
            properties.headers = {**headers, RECEIVED_FROM: [{**entry, "redelivered": redelivered}, *passed]}
            if not trusts:
                properties.user_id = None
            return exchange, key, encode_header(size, properties)

        return rewrite

    _upstream_vhost = "/"

    async def _open_both(self) -> tuple[Connection, Connection]:
        source, self.state.source_uri = await self.open_any(self.definition.uri, self.spec.key.vhost)
        self._upstream_vhost = source.address.vhost
        try:
            here, self.state.dest_uri = await self.open_any(("amqp://",), self.spec.key.vhost)
        except BaseException:
            await source.close()
            raise
        return source, here

    def _cluster(self, source: Connection) -> str:
        """The upstream's name, as it says itself."""
        return str(source.server_properties.get("cluster_name") or self.state.source_uri)

    def _carriage(self, source: Connection, here: Connection, exchange: bytes, key: bytes | None,
                  rewrite: "Rewrite") -> Carriage:  # fmt: skip
        self.relay = Relay(self.definition.ack_mode, exchange, key, rewrite=rewrite, frame_max=here.frame_max,
                           mandatory=key is not None and self.definition.ack_mode == ON_CONFIRM)  # fmt: skip
        return Carriage(self.relay, source, here, blocked=self._on_blocked, title=self.title)

    async def _begin(self, source: Connection, here: Connection) -> None:
        if self.definition.ack_mode != NO_ACK:
            await source.request(methods.BasicQos(prefetch_count=min(self.definition.prefetch_count, 65535)))
        if self.definition.ack_mode == ON_CONFIRM:
            await here.request(methods.ConfirmSelect())

    async def _consume(self, source: Connection, queue: str, arguments: dict[str, Any]) -> None:
        await source.request(methods.BasicConsume(
            queue=queue, consumer_tag=self.state.consumer_tag, no_ack=self.definition.ack_mode == NO_ACK,
            arguments=arguments,
        ))  # fmt: skip


class QueueLink(FederationLink):
    """A federated queue: it gets messages of its upstream while it has consumers and no message."""

    async def carry(self) -> None:
        """See ``Link``."""
        self.become(states.STARTING, self.state.reason)
        source, here = await self._open_both()
        try:
            name = self.definition.queue or self._name
            self.state.source = name
            with telling("upstream"):
                arguments = (self.spec.place or {}).get("arguments", {})
                made = await ensure_queue(source, name, arguments, predeclared=False)
                self.state.lag = made.message_count
                await self._begin(source, here)
            self.carries_from(source, name)
            rewrite = self._rewrite(self._cluster(source), "queue", name, None)
            carriage = self._carriage(source, here, b"", self._name.encode("utf-8", "surrogateescape"), rewrite)
            watch = asyncio.get_running_loop().create_task(self._watch(source, here, name))
            try:
                await carriage.run()
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
        finally:
            await source.close()
            await here.close()

    async def _watch(self, source: Connection, here: Connection, upstream: str) -> None:
        """Consume at the upstream while it is wanted here, as long as both connections live."""
        consumes = False
        try:
            while True:
                local = await here.request(methods.QueueDeclare(queue=self._name, passive=True, arguments={}), None)
                wanted = local.consumer_count > 0 and local.message_count == 0
                if wanted and not consumes:
                    await self._consume(source, upstream, dict(LOW_PRIORITY))
                elif consumes and not wanted:
                    await source.request(methods.BasicCancel(consumer_tag=self.state.consumer_tag), None)
                consumes = wanted
                if self.state.state != states.BLOCKED:
                    why = "messages wait here" if local.message_count else "the queue has no consumers here"
                    self.become(states.RUNNING if wanted else states.IDLE, "" if wanted else why)
                await asyncio.sleep(LOOK_SECONDS)
        except ClientError as error:
            here.fail(error)


class ExchangeLink(FederationLink):
    """A federated exchange: it gets messages of its upstream that match the bindings here."""

    def __init__(self, spec: Spec, around: Surroundings) -> None:
        super().__init__(spec, around)
        self._changed = asyncio.Event()
        self._suffix = "A"

    def take(self, spec: Spec) -> bool:
        """See ``Link``.  New bindings are taken while messages flow."""
        if spec._replace(bindings=()) != self.spec._replace(bindings=()):
            return False
        self.spec = spec
        self._changed.set()
        return True

    @property
    def _upstream_exchange(self) -> str:
        return self.definition.exchange or self._name

    @property
    def _queue(self) -> str:
        """The queue's name at the upstream."""
        key, upstream = self.spec.key, self._upstream_exchange
        more = f":{key.vhost}:{key.name}" if key.vhost != "/" else f":{key.name}" if key.name != upstream else ""
        return f"federation: {upstream} -> {self.around.broker}{more}"

    async def carry(self) -> None:
        """See ``Link``."""
        self.become(states.STARTING, self.state.reason)
        source, here = await self._open_both()
        try:
            self.state.source = self._upstream_exchange
            with telling("upstream"):
                await self._prepare(source)
                await self._begin(source, here)
            rewrite = self._rewrite(self._cluster(source), "exchange", self._upstream_exchange,
                                    self.definition.max_hops)  # fmt: skip
            carriage = self._carriage(source, here, self._name.encode("utf-8", "surrogateescape"), None, rewrite)
            self._changed.clear()
            there = self._wanted()
            await self._bind(source, there.items())
            await self._drop_other(source)
            await self._consume(source, self._queue, {})
            self.carries_from(source, self._queue)
            self.become(states.RUNNING)
            following = asyncio.get_running_loop().create_task(self._follow(source, there))
            try:
                await carriage.run()
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        finally:
            await source.close()
            await here.close()

    async def _prepare(self, source: Connection) -> None:
        """The upstream's exchange, the queue, and a new exchange between them."""
        definition, place = self.definition, self.spec.place or {}
        try:
            await source.request(methods.ExchangeDeclare(exchange=self._upstream_exchange, passive=True, arguments={}))
        except Refused as refused:
            if refused.code != 404:
                raise
            await source.open_channel()
            await source.request(methods.ExchangeDeclare(
                exchange=self._upstream_exchange, type=place.get("type", "topic"), durable=place.get("durable", True),
                auto_delete=place.get("auto_delete", False), internal=place.get("internal", False),
                arguments=place.get("arguments", {}),
            ))  # fmt: skip
        limits: dict[str, Any] = {"x-internal-purpose": "federation"}
        if definition.expires is not None:
            limits["x-expires"] = definition.expires
        if definition.message_ttl is not None:
            limits["x-message-ttl"] = definition.message_ttl
        if definition.queue_type != "classic":
            limits["x-queue-type"] = definition.queue_type
        made = await source.request(methods.QueueDeclare(queue=self._queue, durable=True, arguments=limits))
        self.state.lag = made.message_count
        self._suffix = "B" if await self._is_there(source, "A") else "A"
        await source.request(methods.ExchangeDeclare(
            exchange=f"{self._queue} {self._suffix}", type=UPSTREAM_TYPE, durable=True, internal=True, auto_delete=True,
            # RabbitMQ takes a long and nothing else.
            arguments={"x-internal-purpose": "federation", "x-max-hops": Int64(definition.max_hops),
                       "x-downstream-name": self.around.broker, "x-downstream-vhost": self.spec.key.vhost},
        ))  # fmt: skip
        await source.request(methods.QueueBind(queue=self._queue, exchange=f"{self._queue} {self._suffix}",
                                               routing_key="", arguments={}))  # fmt: skip

    async def _is_there(self, source: Connection, suffix: str) -> bool:
        try:
            name = f"{self._queue} {suffix}"
            await source.request(methods.ExchangeDeclare(exchange=name, passive=True, arguments={}))
        except Refused:
            await source.open_channel()
            return False
        return True

    async def _drop_other(self, source: Connection) -> None:
        """The exchange of the former start goes, once the new one has its bindings: no message falls between."""
        other = "A" if self._suffix == "B" else "B"
        await source.request(methods.ExchangeDelete(exchange=f"{self._queue} {other}"))

    def _wanted(self) -> Bindings:
        """The bindings of now, as they are made upstream.  One that came from another broker goes on a hop less."""
        key, most = self.spec.key, self.definition.max_hops
        mine = {"cluster-name": self.around.broker, "vhost": key.vhost, "exchange": key.name}
        found: Bindings = {}
        for routing_key, given in self.spec.bindings:
            before = given.get(BOUND_FROM)
            passed = [each for each in before if isinstance(each, dict)] if isinstance(before, list) else []
            hops = most
            if passed:
                hops = min(most, int(passed[0].get("hops", 1)) - 1)
                if hops <= 0 or any(each.get("cluster-name") == mine["cluster-name"] for each in passed[1:]):
                    continue
            plain = {name: value for name, value in given.items() if name != BOUND_FROM}
            place = (routing_key, repr(sorted(plain.items())))
            if place not in found or found[place][BOUND_FROM][0]["hops"] < hops:
                found[place] = {**plain, BOUND_FROM: [{**mine, "hops": Int16(min(hops, HOPS_MAX))}, *passed]}
        return found

    async def _bind(self, source: Connection, bindings: Iterable[tuple[tuple[str, str], dict[str, Any]]]) -> None:
        for (routing_key, _), arguments in bindings:
            await source.request(methods.ExchangeBind(
                destination=f"{self._queue} {self._suffix}", source=self._upstream_exchange, routing_key=routing_key,
                arguments=arguments,
            ))  # fmt: skip

    async def _unbind(self, source: Connection, bindings: Iterable[tuple[tuple[str, str], dict[str, Any]]]) -> None:
        for (routing_key, _), arguments in bindings:
            await source.request(methods.ExchangeUnbind(
                destination=f"{self._queue} {self._suffix}", source=self._upstream_exchange, routing_key=routing_key,
                arguments=arguments,
            ))  # fmt: skip

    async def _follow(self, source: Connection, there: Bindings) -> None:
        """Take each change of the bindings to the upstream, the new ones first, so that no message is missed."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                wanted = self._wanted()
                await self._bind(source, [each for each in wanted.items() if there.get(each[0]) != each[1]])
                await self._unbind(source, [each for each in there.items() if wanted.get(each[0]) != each[1]])
                there = wanted
        except ClientError as error:
            source.fail(error)  # The exchange has gone, or may not be bound: the channel is closed.

    async def clean_up(self) -> None:
        """The link ends for good: remove its queue and exchange at the upstream."""
        await self.stop()
        if self.definition.resource_cleanup_mode == "never":
            return
        with suppress(ClientError, AddressError, TimeoutError):
            async with asyncio.timeout(CLEAN_UP_SECONDS):
                source, _ = await self.open_any(self.definition.uri, self.spec.key.vhost)
                for suffix in ("A", "B"):
                    await source.request(methods.ExchangeDelete(exchange=f"{self._queue} {suffix}"))
                await source.request(methods.QueueDelete(queue=self._queue))
                await source.close()

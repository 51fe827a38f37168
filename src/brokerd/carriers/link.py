"""A link that runs: it connects, carries until something fails, and tries again later.

    run()     starting -> carry() -> running -> ... failure -> starting, next try in 5 s ... 300 s -> ...
                                                 Finished    -> terminated

A subclass has ``carry``.  The first tries come after the link's own delay; after ten that failed in a row the delay
doubles, up to 300 s.  A random part keeps links apart that failed together.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import getLogger
from typing import Any, NamedTuple

from brokerd.client._relay import Relay
from brokerd.client.address import Address, AddressError, shown
from brokerd.client.connection import ClientError, Connection, Identity, Refused
from brokerd.links import state as states
from brokerd.links.state import LinkKey, LinkState
from brokerd.wire import methods

log = getLogger("brokerd.links")

STEADY_TRIES = 10  # that failed in a row, before the delay grows
LONGEST_DELAY_SECONDS = 300.0
JITTER = 0.2
NOT_FOUND = 404
URIS_TOLD = 5  # of those that cannot be reached
REASON_LETTERS_MAX = 2000


class Spec(NamedTuple):
    """A link as the broker defines it.  ``value``: of its parameter; ``bindings``: (routing key, arguments) of a
    federated exchange; ``place``: the exchange's type and settings."""

    key: LinkKey
    value: dict[str, Any]
    paused: bool = False
    bindings: tuple[Any, ...] = ()
    place: dict[str, Any] | None = None


class Surroundings(NamedTuple):
    """The values that all links of the process share.  ``broker``: the identity of the broker's data directory;
    ``cluster``: the name that people gave the broker.  ``changed(link)``: its state is to be told now."""

    identity: Identity
    broker: str
    cluster: str
    changed: Callable[["Link"], object]
    finished: Callable[["Link"], object]


class Finished(Exception):
    """The link has done all its work."""


class Link:
    """One link.  ``state`` is current, except the relay's counters: see ``look``."""

    reconnect_delay = 5.0

    def __init__(self, spec: Spec, around: Surroundings) -> None:
        self.spec = spec
        self.around = around
        self.state = LinkState(*spec.key, since=time.time())
        self.relay: Relay | None = None
        self.task: asyncio.Task[None] | None = None
        self._counted = 0  # of the relay's messages, in the state already
        self._failures = 0
        self._waits_at: tuple[Connection, str] | None = None  # where the queue is from which it carries
        self._asking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        if self.spec.paused:
            self.become(states.PAUSED)
        else:
            self.task = asyncio.get_running_loop().create_task(self._run(), name=str(self.spec.key))

    async def stop(self) -> None:
        """End, with a goodbye to both brokers."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None

    async def clean_up(self) -> None:
        """End for good: nothing that the link has made elsewhere stays."""
        await self.stop()

    def take(self, spec: Spec) -> bool:
        """Whether the link goes on with this changed definition, which it takes then."""
        return False

    async def carry(self) -> None:
        """Connect, and carry messages until something fails.  Raises ClientError, AddressError; Finished."""
        raise NotImplementedError

    def become(self, state: str, reason: str = "", next_try: float = 0.0) -> None:
        """The link has another state."""
        mine = self.state
        if (mine.state, mine.reason) != (state, reason) or next_try:
            if mine.state != state:
                mine.since = time.time()
            mine.state, mine.reason, mine.next_try = state, reason, next_try
            self.around.changed(self)

    def look(self) -> bool:
        """Take the relay's counters into the state; whether messages have come."""
        relay, mine = self.relay, self.state
        if relay is None:
            mine.unconfirmed = 0
            return False
        came = relay.received - self._counted
        self._counted = relay.received
        if came:
            mine.messages += came
            mine.last_message = time.time()
        mine.unconfirmed = relay.in_flight
        mine.retried, mine.rejected = relay.retried, relay.rejected
        return bool(came)

    def carries_from(self, source: Connection, queue: str) -> None:
        """It carries from this queue.  Nothing is asked of the source after this that may be refused, and answered with
        the end of the channel: another question would never be answered."""
        self._waits_at = source, queue

    def ask_lag(self) -> None:
        """Ask how many messages wait at the source, if it is connected; the state has the answer later."""
        if self._waits_at is not None and self._asking is None and not self._waits_at[0].closed.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask_lag(*self._waits_at))

    async def _ask_lag(self, source: Connection, queue: str) -> None:
        try:
            told = await source.request(methods.QueueDeclare(queue=queue, passive=True, arguments={}), None)
            if self.state.lag != told.message_count:
                self.state.lag = told.message_count
                self.around.changed(self)
        except ClientError as error:
            source.fail(error)  # The channel is closed.
        finally:
            self._asking = None

    async def _run(self) -> None:
        while True:
            self._counted = 0
            began = time.monotonic()
            try:
                await self.carry()
                reason = "it ended"
            except Finished as end:
                self.look()
                self.become(states.TERMINATED, str(end))
                self.around.finished(self)
                return
            except (ClientError, AddressError) as error:
                reason = str(error)[:REASON_LETTERS_MAX]
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.exception("%s: a fault of brokerd", self.title)
                reason = f"a fault of brokerd: {error!r}"
            self.look()
            self.relay = self._waits_at = None
            if self.state.state in (states.RUNNING, states.BLOCKED, states.IDLE):
                self._failures = 0
                self.state.reconnects += 1
            await self._wait(reason, time.monotonic() - began)

    async def _wait(self, reason: str, lasted: float) -> None:
        if self.reconnect_delay <= 0:
            self.become(states.TERMINATED, reason)
            await asyncio.Future()
        delay = delay_after(self._failures, self.reconnect_delay)
        if self.state.reason != reason:
            log.warning("%s: %s: next try in %.1f s", self.title, reason, delay)
        self._failures += 1
        self.become(states.STARTING, reason, time.time() + delay)
        await asyncio.sleep(delay)

    @property
    def title(self) -> str:
        """The link for the log."""
        key = self.spec.key
        what = f"shovel '{key.name}'" if key.kind == states.SHOVEL else f"federation of {key.kind} '{key.name}'"
        return f"{what} in vhost '{key.vhost}'" + (f" from '{key.upstream}'" if key.upstream else "")

    # --- what links do alike

    async def open_any(self, uris: tuple[str, ...], vhost: str) -> tuple[Connection, str]:
        """A connection to the first of these that can be reached, tried in an order of chance, and its URI.  Raises
        ClientError that tells why of each, in their own order: so the same failures have the same text."""
        why = dict.fromkeys(uris, "")
        for uri in random.sample(uris, len(uris)):
            try:
                address = Address.parse(uri, vhost)
                name = f"{self.title} of {self.around.cluster}"
                return await Connection.open(address, name, self.around.identity), shown(uri)
            except (ClientError, AddressError) as failed:
                why[uri] = f"{shown(uri)}: {failed}"
        told = list(why.values())
        more = f"; and {len(told) - URIS_TOLD} more" if len(told) > URIS_TOLD else ""
        raise ClientError("; ".join(told[:URIS_TOLD]) + more)


@contextmanager
def telling(side: str) -> Iterator[None]:
    """Say on which side the broker refuses something."""
    try:
        yield
    except ClientError as error:
        raise ClientError(f"{side}: {error}") from None


async def ensure_queue(connection: Connection, name: str, arguments: Any, *, predeclared: bool) -> Any:
    """See that a queue is there; declare it, durable, if it is not and may be.  The declare-ok.  Raises ClientError."""
    try:
        return await connection.request(methods.QueueDeclare(queue=name, passive=True, arguments={}))
    except Refused as refused:
        if refused.code != NOT_FOUND or predeclared:
            raise
    await connection.open_channel()
    return await connection.request(methods.QueueDeclare(queue=name, durable=True, arguments=dict(arguments)))


def delay_after(failures: int, delay: float) -> float:
    """How long to wait after so many failures in a row."""
    grown = delay * 2.0 ** min(max(0, failures - STEADY_TRIES + 1), 64)
    return min(grown, max(delay, LONGEST_DELAY_SECONDS)) * (1 + JITTER * random.random())

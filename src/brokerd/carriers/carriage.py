"""A relay between two connections: octets, confirms, pauses, and refused messages.

Each side calls ``pump`` after it has read octets.  The source is not read while the destination's socket is full, or
too much is unconfirmed.  A destination that refuses messages is given time: 1 s, 2 s, ... 60 s.  Then they are sent
again.  Knows nothing of topology.
"""

import asyncio
from collections.abc import Callable
from logging import getLogger

from brokerd.client._relay import Relay
from brokerd.client.connection import ClientError, Connection

log = getLogger("brokerd.links")

KEPT_OCTETS_MAX = 16 << 20
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 60.0


class Carriage:
    """One relay at work, until ``run`` ends.

    ``blocked(reason)``: the destination takes nothing, for this reason; "": it does again.  ``retries``: how often a
    refused message is tried again before its source's dead-letter rules have it; -1: always.  ``on_returned()``: what
    to do at the destination before a message is tried again that no queue there took.
    """

    def __init__(
        self, relay: Relay, source: Connection, destination: Connection, *, blocked: Callable[[str], object],
        retries: int = -1, on_returned: Callable[[], object] | None = None, title: str = "",
    ) -> None:  # fmt: skip
        self.relay, self.source, self.destination = relay, source, destination
        self._blocked, self._retries, self._on_returned, self._title = blocked, retries, on_returned, title
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[ClientError | None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._reason = ""  # why the destination is blocked, as it says
        self._refused = False  # and told so
        source.give(relay, source=True)
        destination.give(relay, source=False)
        source.on_octets = destination.on_octets = self.pump
        destination.on_writable = lambda writable: self.pump()
        destination.on_blocked = self._on_blocked

    async def run(self) -> None:
        """Carry until the relay has carried everything.  Raises ClientError when a connection ends."""
        ends = (self.source, self.destination)
        for end in ends:
            end.closed.add_done_callback(self._on_closed)
        try:
            self.pump()
            error = await self._ended
            if error is not None:
                raise error
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for end in ends:
                end.closed.remove_done_callback(self._on_closed)
                end.on_octets = _nothing

    def _on_closed(self, closed: "asyncio.Future[ClientError]") -> None:
        if not self._ended.done():
            side = "source" if closed is self.source.closed else "destination"
            self._ended.set_result(ClientError(f"{side}: {closed.result()}"))

    def pump(self) -> None:
        """Move what can be moved."""
        relay, destination = self.relay, self.destination
        if destination.writable:
            octets = relay.take()
            if octets:
                destination.write(octets)
        acks = relay.acks()
        if acks:
            self.source.write(acks)
        full = not destination.writable or relay.kept_octets > KEPT_OCTETS_MAX
        if full != self._paused:
            self._paused = full
            self.source.pause(full)
        if relay.halted:
            if not relay.in_flight and self._timer is None:
                self._wait()
        elif self._refused and not relay.careful:
            self._refused = False
            self._blocked(self._reason)
        if relay.limit == 0 and relay.finished and not self._ended.done():
            self._ended.set_result(None)

    def _on_blocked(self, reason: str) -> None:
        self._reason = f"the destination blocks its publishers: {reason}" if reason else ""
        self._blocked(self._reason)

    def _wait(self) -> None:
        relay = self.relay
        reason = relay.reason
        while self._retries >= 0 and relay.tries > self._retries:
            relay.give_up()
            log.warning("%s: %s: %s", self._title, reason, "left to the dead-letter rules of its source")
        if not relay.refused:
            relay.retry()
            self._loop.call_soon(self.pump)
            return
        tries = relay.tries  # of the message that waits: the next one begins anew
        delay = min(FIRST_RETRY_SECONDS * 2 ** min(tries - 1, 16), LAST_RETRY_SECONDS)
        self._refused = True
        self._blocked(f"{reason}: tried {tries} times, again in {delay:g} s")
        self._timer = self._loop.call_later(delay, self._retry)

    def _retry(self) -> None:
        self._timer = None
        if self._on_returned is not None and self.relay.came_back:
            self._on_returned()
        self.relay.retry()
        self.pump()


def _nothing() -> None:
    pass

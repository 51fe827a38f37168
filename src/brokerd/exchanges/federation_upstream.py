"""The exchange type ``x-federation-upstream``: a fanout through which a broker downstream gets the messages of another
exchange, as RabbitMQ and LavinMQ declare it at their upstreams.

A message that came over other links has the header ``x-received-from``, a list with a table for each hop.  It goes no
further if it has ``x-max-hops`` of them, or if one of them is the broker downstream (``x-downstream-name``,
``x-downstream-vhost``): it would come back to where it was.
"""

from collections.abc import Collection
from typing import Any, ClassVar

from brokerd.exchanges.arguments import MAX_HOPS
from brokerd.exchanges.exchange import LazyProperties
from brokerd.exchanges.fanout import FanoutExchange

RECEIVED_FROM = "x-received-from"
DOWNSTREAM_NAME, DOWNSTREAM_VHOST = "x-downstream-name", "x-downstream-vhost"


class FederationUpstreamExchange(FanoutExchange):
    """The routing key is not read."""

    __slots__ = ()

    type: ClassVar[str] = "x-federation-upstream"
    key_decides: bool = False

    def destinations(self, routing_key: str, properties: LazyProperties) -> Collection[Any]:
        hops = (properties().headers or {}).get(RECEIVED_FROM)
        if isinstance(hops, list) and not self._passes(hops):
            return ()
        return super().destinations(routing_key, properties)

    def _passes(self, hops: list[Any]) -> bool:
        """Whether a message that has come over these goes on."""
        name, vhost = self.arguments.get(DOWNSTREAM_NAME), self.arguments.get(DOWNSTREAM_VHOST)
        if len(hops) >= self.arguments[MAX_HOPS]:
            return False
        return not any(
            isinstance(hop, dict) and name is not None and hop.get("cluster-name") == name and hop.get("vhost") == vhost
            for hop in hops
        )

"""Where a message goes: exchanges, their bindings, and the walk over them.

A new type needs one file, and its name in ``EXCHANGE_TYPES``.
"""

from collections.abc import Mapping
from importlib import import_module

from brokerd.errors import PreconditionFailed
from brokerd.exchanges.default import DefaultExchange
from brokerd.exchanges.direct import DirectExchange
from brokerd.exchanges.exchange import Binding, Exchange, Intercepted, Intercepting, LazyProperties, unbind_newest
from brokerd.exchanges.fanout import FanoutExchange
from brokerd.exchanges.headers import HeadersExchange
from brokerd.exchanges.random import LocalRandomExchange, RandomExchange
from brokerd.exchanges.recent_history import RecentHistoryExchange
from brokerd.exchanges.router import Route, route
from brokerd.exchanges.topic import TopicExchange

# A type's name and its class.  Few brokers use the types that stand here as text, "module.class": the broker imports
# such a class when somebody first declares an exchange of the type.
EXCHANGE_TYPES: Mapping[str, type[Exchange] | str] = {
    cls.type: cls
    for cls in (
        DirectExchange,
        FanoutExchange,
        HeadersExchange,
        TopicExchange,
        RandomExchange,
        LocalRandomExchange,
        RecentHistoryExchange,
    )
} | {
    "x-consistent-hash": "consistent_hash.ConsistentHashExchange",
    "x-modulus-hash": "modulus_hash.ModulusHashExchange",
    "x-federation-upstream": "federation_upstream.FederationUpstreamExchange",
    "x-delayed-message": "delayed.DelayedExchange",
    "x-delayed-exchange": "delayed.DelayedExchangeByItsOtherName",
}


def exchange_type(name: str) -> type[Exchange]:
    """The class of the exchange type ``name``.  Raises PreconditionFailed for an unknown name (RabbitMQ 4)."""
    found = EXCHANGE_TYPES.get(name)
    if found is None:
        raise PreconditionFailed(f"unknown exchange type '{name}'")
    if isinstance(found, str):
        module, _, cls = found.partition(".")
        found = getattr(import_module(f"brokerd.exchanges.{module}"), cls)
    return found


__all__ = [
    "EXCHANGE_TYPES",
    "Binding",
    "DefaultExchange",
    "DirectExchange",
    "Exchange",
    "FanoutExchange",
    "HeadersExchange",
    "Intercepted",
    "Intercepting",
    "LazyProperties",
    "LocalRandomExchange",
    "RandomExchange",
    "RecentHistoryExchange",
    "Route",
    "TopicExchange",
    "exchange_type",
    "route",
    "unbind_newest",
]

"""Where a message goes: exchanges, their bindings, and the walk over them.

A new type is one file and its class in ``EXCHANGE_TYPES``.
"""

from brokerd.errors import PreconditionFailed
from brokerd.exchanges.consistent_hash import ConsistentHashExchange
from brokerd.exchanges.default import DefaultExchange
from brokerd.exchanges.delayed import DelayedExchange, DelayedExchangeByItsOtherName
from brokerd.exchanges.direct import DirectExchange
from brokerd.exchanges.exchange import Binding, Exchange, Handler, Lazily, Message
from brokerd.exchanges.fanout import FanoutExchange
from brokerd.exchanges.headers import HeadersExchange
from brokerd.exchanges.modulus_hash import ModulusHashExchange
from brokerd.exchanges.random import LocalRandomExchange, RandomExchange
from brokerd.exchanges.recent_history import RecentHistoryExchange
from brokerd.exchanges.router import Route, route
from brokerd.exchanges.topic import TopicExchange

EXCHANGE_TYPES: dict[str, type[Exchange]] = {
    cls.type: cls
    for cls in (
        DirectExchange,
        FanoutExchange,
        HeadersExchange,
        TopicExchange,
        ConsistentHashExchange,
        ModulusHashExchange,
        RandomExchange,
        LocalRandomExchange,
        RecentHistoryExchange,
        DelayedExchange,
        DelayedExchangeByItsOtherName,
    )
}


def exchange_type(name: str) -> type[Exchange]:
    """The class of the exchange type ``name``.  Raises PreconditionFailed if there is none (RabbitMQ 4)."""
    try:
        return EXCHANGE_TYPES[name]
    except KeyError:
        raise PreconditionFailed(f"unknown exchange type '{name}'") from None


__all__ = [
    "EXCHANGE_TYPES",
    "Binding",
    "ConsistentHashExchange",
    "DefaultExchange",
    "DelayedExchange",
    "DirectExchange",
    "Exchange",
    "FanoutExchange",
    "Handler",
    "HeadersExchange",
    "Lazily",
    "LocalRandomExchange",
    "Message",
    "ModulusHashExchange",
    "RandomExchange",
    "RecentHistoryExchange",
    "Route",
    "TopicExchange",
    "exchange_type",
    "route",
]

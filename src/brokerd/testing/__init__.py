"""A real broker for the tests of your own programs: ``Broker``, and fixtures for pytest in ``plugin``.

    with brokerd.testing.Broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url()))

    your process    broker.py            asks the keeper for each verb
                    keeper_process.py    starts the keeper
    the keeper      keeper.py            holds the port and the data; forks the broker, kills it, forks it again
    the broker      server.py            the server of ``brokerd``, with a clock and a disk that can be replaced

The broker never imports this package.  The import of this file costs nothing: pytest does it in every run.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brokerd.testing.broker import Broker, BrokerFailed
    from brokerd.testing.keeper_process import prepare

__all__ = ["Broker", "BrokerFailed", "prepare"]


def __getattr__(name: str) -> Any:
    if name == "prepare":
        from brokerd.testing import keeper_process

        return keeper_process.prepare
    if name in __all__:
        from brokerd.testing import broker

        return getattr(broker, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")

"""The pytest plugin: fixtures with a broker and its URL.  pytest finds it by itself where brokerd is installed.

    amqp_broker_options     session     the arguments of Broker; a conftest.py may have its own
    amqp_broker             session     the Broker; with pytest-xdist each worker has its own
    amqp_vhost              test        a new vhost, which is deleted afterwards
    amqp_url                test        its URL

Every run of pytest imports this file, so it imports nothing else: the first test that asks for a broker does.  Where
the run before had such a test, pytest's cache says so, and the imports of a broker begin beside the collection of the
tests; so the first test does not wait for them.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from brokerd.testing.broker import Broker


NEEDED = "brokerd/amqp_broker_needed"  # in pytest's cache
BROKER = pytest.StashKey["Broker"]()  # while the session has one


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begin to make a broker ready, if the run before needed one."""
    config = session.config
    if not _only_distributes(config) and not config.option.collectonly and _is_remembered(config):
        from brokerd.testing import keeper_process

        with contextlib.suppress(OSError):  # The test that asks for a broker will tell.
            keeper_process.prepare()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the broker that was made ready, if no test asked for one."""
    keeper_process = sys.modules.get("brokerd.testing.keeper_process")
    if keeper_process is not None and keeper_process.discard() and not hasattr(session.config, "workerinput"):
        _remember(session.config, False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End the full disk or the outage that the test before has left behind, before the fixtures of this one."""
    broker = item.config.stash.get(BROKER, None)
    if broker is not None and "amqp_broker" in getattr(item, "fixturenames", ()):
        broker.heal()


def _only_distributes(config: pytest.Config) -> bool:
    """Whether this process runs no tests, because pytest-xdist's workers do."""
    return not hasattr(config, "workerinput") and config.getoption("dist", "no") != "no"


def _is_remembered(config: pytest.Config) -> bool:
    cache = getattr(config, "cache", None)  # None: -p no:cacheprovider
    return cache is not None and bool(cache.get(NEEDED, False))


def _remember(config: pytest.Config, needed: bool) -> None:
    if getattr(config, "cache", None) is not None and _is_remembered(config) != needed:
        config.cache.set(NEEDED, needed)


@pytest.fixture(scope="session")
def amqp_broker_options() -> dict[str, Any]:
    """The arguments of ``brokerd.testing.Broker`` for ``amqp_broker``: none."""
    return {}


@pytest.fixture(scope="session")
def amqp_broker(amqp_broker_options: dict[str, Any], pytestconfig: pytest.Config) -> "Iterator[Broker]":
    """A real AMQP broker for all tests of this session."""
    from brokerd.testing.broker import Broker

    _remember(pytestconfig, True)
    with Broker(**amqp_broker_options) as broker:
        pytestconfig.stash[BROKER] = broker
        try:
            yield broker
        finally:
            del pytestconfig.stash[BROKER]


@pytest.fixture
def amqp_vhost(amqp_broker: "Broker") -> Iterator[str]:
    """The name of a vhost for this test alone.  It ends with the test, and so do the connections to it."""
    name = amqp_broker.make_vhost()
    try:
        yield name
    finally:
        amqp_broker.heal()
        amqp_broker.delete_vhost(name)


@pytest.fixture
def amqp_url(amqp_broker: "Broker", amqp_vhost: str) -> str:
    """``amqp://guest:guest@127.0.0.1:PORT/VHOST`` with a vhost for this test alone."""
    return amqp_broker.url(amqp_vhost)

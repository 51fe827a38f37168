"""One broker with its management process for the tests of a module that leave nothing behind."""

import pytest
from tests.broker import Broker
from tests.management.http import Http, reserve_http


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A running broker with HTTP; ``http`` asks it as guest."""
    port = reserve_http()
    with Broker(tmp_path_factory.mktemp("shared") / "data", "--http-port", port) as broker:
        broker.wait_for_log(rf"listening on 127\.0\.0\.1:{port} \(HTTP\)")
        broker.http = Http(port)
        yield broker
    broker.check_log()


@pytest.fixture
def http(shared):
    """Asks the shared broker as guest."""
    return shared.http

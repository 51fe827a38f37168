import gc
import os
import signal

import hypothesis
import pytest
from tests.broker import Broker

from brokerd import pieces

# A busy machine makes every example slow: that says nothing of what is tested.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[
    hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large])
# CI judges each change by the same examples; every other run looks for new ones.
hypothesis.settings.register_profile("ci", hypothesis.settings.get_profile("busy"), derandomize=True)
hypothesis.settings.load_profile(os.environ.get("BROKERD_TEST_PROFILE", "busy"))

# Work within the tests' own process is done in one piece however late the clock is, unless a test asks for pieces.
pieces.PIECE_NS = 3_600_000_000_000

# A shell that starts the tests in the background has these ignored, and all that they start would inherit that.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


def pytest_collection_finish(session):
    """The collector passes over what was imported and collected: looking through it takes a quarter of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def broker(tmp_path):
    """A running broker of this test alone."""
    with Broker(tmp_path / "data") as broker:
        yield broker
    broker.check_log()


@pytest.fixture
def make_broker(tmp_path):
    """Brokers with flags and environment, each with its own directory unless one is named; not started yet."""
    made = []

    def make(*flags, env=None, directory=None, first=""):
        made.append(Broker(directory or tmp_path / f"data{len(made)}", *flags, env=env, first=first))
        return made[-1]

    yield make
    try:
        for broker in made:
            if broker.process is not None:
                assert broker.running, broker.log_text()
                broker.stop()
            broker.check_log()
    finally:
        for broker in made:
            broker.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """The log of a failed test's brokers stands in its report."""
    report = yield
    if report.failed and report.when == "call":
        for value in item.funcargs.values():
            if isinstance(value, Broker):
                report.sections.append(("log of the broker", value.log_text()))
    return report

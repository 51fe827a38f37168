import hypothesis
import pytest
from tests.broker import Broker

# A busy machine makes every example slow: that says nothing of what is tested.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[
    hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large])
hypothesis.settings.load_profile("busy")


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

    def make(*flags, env=None, directory=None):
        made.append(Broker(directory or tmp_path / f"data{len(made)}", *flags, env=env))
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

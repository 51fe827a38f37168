import gc
import os
import signal

import hypothesis
import pytest
from tests.broker import Broker

from brokerd import pieces

SPARK = "tests/spark/"
SPARK_QUERIES = tuple(f"{SPARK}test_{name}.py" for name in ("cluster", "follow", "source", "stream", "views"))
LONG = (SPARK, "tests/faults/", "tests/planter/", "tests/web/", "tests/server/", "tests/model/", "tests/test_docs.py")

# A busy machine makes every example slow: that says nothing of what is tested.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[
    hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large])
# CI judges each change by the same examples; every other run looks for new ones.
hypothesis.settings.register_profile("ci", hypothesis.settings.get_profile("busy"), derandomize=True)
hypothesis.settings.load_profile(os.environ.get("BROKERD_TEST_PROFILE", "busy"))

# Work within the tests' own process is done in one piece however late the clock is, unless a test asks for pieces.
pieces.PIECE_NS = 3_600_000_000_000

# A shell that starts the tests in the background has SIGINT ignored, and all that they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Files as a whole go to a worker, and those that use Spark to two workers.

    A JVM is slow at first, so there should be few; but one alone has work when all other workers have ended.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            if nodeid.startswith(SPARK):
                return "Spark, queries" if nodeid.startswith(SPARK_QUERIES) else "Spark, audits"
            return super()._split_scope(nodeid)

    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False      # Else the files of most tests would go first.
    return Scheduling(config, log)


def pytest_collection_modifyitems(config, items):
    """Workers begin with the files that take longest, so that none is left with one of them at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: next(
            (place for place, folder in enumerate(LONG) if item.nodeid.startswith(folder)), len(LONG)))


def pytest_collection_finish(session):
    """The collector passes over what was imported and collected: looking through it takes a quarter of a second."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    """There are more workers than cores, because brokers and clients wait for each other.

    The workers that use Spark take longest of all, so the others let them go first; what they start inherits that.
    """
    if hasattr(item.config, "workerinput") and not item.nodeid.startswith(SPARK) and os.nice(0) == 0:
        os.nice(5)


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

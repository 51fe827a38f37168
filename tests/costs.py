"""Which test files take most processor time, in workers or without them:  make test TESTS="-p tests.costs tests/server"

A file has the time of its tests' process and of the processes that were waited for meanwhile, such as brokers and what
those started.
"""

import os
import resource
from collections import Counter

import pytest

SHOWN = 40
NAME = "processor seconds"
_files = Counter()
_before = 0.0


def _seconds():
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def pytest_collection_finish():
    global _before
    _before = _seconds()


os.register_at_fork(after_in_child=pytest_collection_finish)    # tests.workers


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    """The last report of a test takes its time to where the reports of all workers arrive."""
    global _before
    report = yield
    if call.when == "teardown":
        now = _seconds()
        report.user_properties.append((NAME, now - _before))
        _before = now
    return report


def pytest_runtest_logreport(report):
    if report.when == "teardown":
        _files[report.nodeid.partition("::")[0]] += dict(report.user_properties)[NAME]


def pytest_terminal_summary(terminalreporter):
    terminalreporter.section(f"processor seconds: {sum(_files.values()):.0f}")
    for name, seconds in _files.most_common(SHOWN):
        terminalreporter.line(f"{seconds:9.2f}  {name}")

"""Runs the tests in several processes, which are forks of the one that has collected them.

    python -m pytest -p tests.workers --workers 8

Collecting takes longer than most folders of tests, so it is done once; pytest-xdist would do it in every worker.

    the process that collected  ─┬─ worker     runs files, one after the other, and sends what each test came to
      gives out files, reports   └─ worker     ...

There are more workers than cores, because brokers and clients wait for each other.  A file is run by one worker as a
whole.  So is the folder ``ONE_JVM``.  ``FIRST`` names what takes long: workers begin with it, so that no worker is
left with it at the end.  If a worker ends while it runs a test, that test has failed; a new worker runs the rest.
"""

import atexit
import fcntl
import os
import select
import shutil
import sys
from multiprocessing.connection import Pipe

import pytest
from _pytest.runner import runtestprotocol

ONE_JVM = "tests/spark/"
FIRST = (ONE_JVM, "tests/faults/", "tests/planter/", "tests/web/", "tests/server/", "tests/model/",
         "tests/test_docs.py")
SHARED = pytest.StashKey()      # the folder of temporary folders of all workers
NICE = 5    # of workers that use no JVM: the one that does would be the last to end


def pytest_addoption(parser):
    parser.addoption("--workers", type=int, default=0, metavar="N", help="run tests in N processes; 0: in this one")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    options = session.config.option
    if not options.workers or options.collectonly or not session.items or (
            session.testsfailed and not options.continue_on_collection_errors):
        return None
    if options.usepdb:
        raise pytest.UsageError("a debugger needs --workers 0")
    Crew(session).run()
    return True


def make_once(config, name, make):
    """``make(folder)`` is run by the first worker that asks for ``name``.  The others wait, and have the folder too."""
    base = config.stash.get(SHARED, None) or config._tmp_path_factory.getbasetemp()
    folder = base / name
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = base / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


def parts_of(nodeids):
    """Lists of numbers of tests: each list is for one worker, and those that take long come first."""
    parts = {}
    for number, nodeid in enumerate(nodeids):
        parts.setdefault(ONE_JVM if nodeid.startswith(ONE_JVM) else nodeid.partition("::")[0], []).append(number)
    return [parts[name] for name in sorted(parts, key=lambda name: next(
        (place for place, first in enumerate(FIRST) if name.startswith(first)), len(FIRST)))]


# --- the process that collected


class Crew:
    """All workers, and the parts that none of them has yet."""

    def __init__(self, session):
        self.session, self.hook, self.config = session, session.config.hook, session.config
        self.parts = parts_of([item.nodeid for item in session.items])
        self.workers = {}   # by the descriptor that tells of what they send, and by the one that tells of their end
        self.started = 0
        self.poll = select.poll()
        self.reporter = self.config.pluginmanager.getplugin("terminalreporter")
        self.config._tmp_path_factory.getbasetemp()

    def run(self):
        """Until all tests are run, or one fails and pytest is to stop then."""
        if self.reporter is not None and self.config.option.verbose <= 0:
            self.reporter.showfspath = False    # The files come mixed.
        try:
            for _ in range(min(self.config.option.workers, len(self.parts))):
                self.start()
            while self.workers:
                for fd, _ in self.poll.poll():
                    if fd in self.workers:
                        self.hear(self.workers[fd], fd)
                    if self.session.shouldfail:
                        raise self.session.Failed(self.session.shouldfail)
                    if self.session.shouldstop:
                        raise self.session.Interrupted(self.session.shouldstop)
        finally:
            for worker in set(self.workers.values()):
                self.end(worker)

    def start(self):
        """Fork."""
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = Pipe()
        self.started += 1
        pid = os.fork()
        if pid == 0:
            ours.close()
            for worker in set(self.workers.values()):
                worker.connection.close()
                os.close(worker.pidfd)
            work(self.session, theirs, self.started)
        theirs.close()
        worker = Worker(pid, ours)
        for fd in (ours.fileno(), worker.pidfd):
            self.workers[fd] = worker
            self.poll.register(fd, select.POLLIN)

    def hear(self, worker, fd):
        """Take what a worker has sent.  It may end meanwhile."""
        has_ended = fd == worker.pidfd
        try:
            while worker.connection.poll():
                self.handle(worker, *worker.connection.recv())
                if not has_ended:
                    return
        except (EOFError, ConnectionError):
            if not has_ended:       # Its end is told next.
                self.poll.unregister(fd)
        if has_ended:
            self.bury(worker)

    def handle(self, worker, kind, *content):
        if kind == "more":
            part = self.parts.pop(0) if self.parts else []
            worker.numbers += part
            worker.connection.send(part)
        elif kind == "warning":
            self.hook.pytest_warning_recorded.call_historic(kwargs=content[0])
        else:
            assert worker.numbers.pop(0) == content[0]
            for report in content[1]:
                if isinstance(report, dict):
                    report = self.hook.pytest_report_from_serializable(config=self.config, data=report)
                self.hook.pytest_runtest_logreport(report=report)
            self.finish(self.session.items[content[0]])

    def finish(self, item):
        self.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def bury(self, worker):
        """A worker has ended: as it should, or in the midst of a test."""
        status = self.end(worker)
        if not worker.numbers:
            return
        item = self.session.items[worker.numbers.pop(0)]
        how = f"signal {-status}" if status < 0 else f"status {status}"
        self.hook.pytest_runtest_logreport(report=pytest.TestReport(
            item.nodeid, item.location, {}, "failed", f"the worker ended with {how} while it ran this test", "call"))
        self.finish(item)
        if worker.numbers:
            self.parts.insert(0, worker.numbers)
        if self.parts:
            self.start()

    def end(self, worker):
        """Its exit status.  It sees that nobody listens, if it still runs."""
        for fd in (worker.connection.fileno(), worker.pidfd):
            del self.workers[fd]
            try:
                self.poll.unregister(fd)
            except KeyError:
                pass
        worker.connection.close()
        _, status = os.waitpid(worker.pid, 0)
        os.close(worker.pidfd)
        return os.waitstatus_to_exitcode(status)


class Worker:
    """One worker.  ``numbers``: of the tests that it was given and has not run."""

    def __init__(self, pid, connection):
        self.pid, self.connection, self.pidfd = pid, connection, os.pidfd_open(pid)
        self.numbers = []


# --- a worker


def work(session, connection, number):
    """Run what the other process gives, and end this one."""
    status = 1
    try:
        prepare(session.config, connection, number)
        run(session, connection)
        status = 0
    except (EOFError, BrokenPipeError, ConnectionError, KeyboardInterrupt):
        session._setupstate.teardown_exact(None)    # The other process has ended, or hears no more.
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
    finally:
        try:
            atexit._run_exitfuncs()
        finally:
            os._exit(status)


def prepare(config, connection, number):
    """What a worker must not share with others: the files that catch output, and the folder of temporary folders."""
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    factory = config._tmp_path_factory
    config.stash[SHARED] = factory.getbasetemp()
    factory._basetemp = factory.getbasetemp() / f"worker{number}"
    factory._basetemp.mkdir(mode=0o700)
    config.pluginmanager.register(Sender(config, connection), Sender.__name__)


def run(session, connection):
    """The next part is asked for before the last test of this one: what only that test needs is torn down behind it."""
    numbers = ask(connection)
    while numbers:
        number = numbers.pop(0)
        item = session.items[number]
        if not item.nodeid.startswith(ONE_JVM) and os.nice(0) < NICE:
            os.nice(NICE)       # Inherited by what it starts.
        if not numbers:
            numbers = ask(connection)
        following = session.items[numbers[0]] if numbers else None
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        connection.send(("reports", number, session.config.pluginmanager.getplugin(Sender.__name__).reports))


def ask(connection):
    connection.send(("more",))
    return connection.recv()


class Sender:
    """A plugin of workers: reports and warnings go to the process that collected, and to no plugin here."""

    def __init__(self, config, connection):
        self.config, self.connection = config, connection
        self.reports = []       # of the last test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        self.reports = [
            report if report.longrepr is None
            else self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
            for report in runtestprotocol(item, log=False, nextitem=nextitem)]
        return True

    def pytest_warning_recorded(self, warning_message, when, nodeid, location):
        warning_message.source = None
        self.connection.send(("warning", {
            "warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}))

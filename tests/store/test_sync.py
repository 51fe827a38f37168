import asyncio
import contextlib
import errno
import os

import pytest

from brokerd.store.definitions import DefinitionsLog
from brokerd.store.disk import SYNCFS_FROM_FILES, Disk
from brokerd.store.sync import QUICK_NS, GroupCommit, SyncThread
from brokerd.testing.disk import ForgetfulDisk


class Core:
    """Stands for plane.Core: says in ``told`` what was asked of it."""

    device = 0

    def __init__(self, directory):
        self.directory = directory
        self.told = []
        self.fds = []

    def begin_sync(self, descriptors):
        self.told.append("begin")
        fd = os.open(f"{self.directory}/msgs", os.O_RDWR | os.O_CREAT)
        self.fds.append(fd)
        return [(fd, "msgs")]

    def end_sync(self):
        self.told.append("end")

    def turn(self):
        self.told.append("turn")


class Steps:
    """Loop and thread, worked by hand."""

    def __init__(self):
        self.soon = []
        self.jobs = []

    def submit(self, work, done):
        self.jobs.append((work, done))

    def loop(self):
        while self.soon:
            self.soon.pop(0)()

    def thread(self):
        work, done = self.jobs.pop(0)
        error = None
        try:
            work()
        except OSError as caught:
            error = caught
        done(error)


@pytest.fixture
def parts(tmp_path):
    disk, steps, core, failures = ForgetfulDisk(str(tmp_path)), Steps(), Core(tmp_path), []
    commit = GroupCommit(core, disk, submit=steps.submit, soon=steps.soon.append, fatal=failures.append)
    yield disk, steps, core, failures, commit
    disk.release()


def test_nothing_begins_inside_the_request(parts):
    _, steps, core, _, commit = parts
    commit.request()
    assert (core.told, len(steps.soon)) == ([], 1)


class Rounds(Steps):
    """A loop whose rounds take a time each."""

    def __init__(self):
        super().__init__()
        self.ns = 0

    def round(self, takes_ns):
        due, self.soon[:] = self.soon[:], []
        for callback in due:
            callback()
        self.ns += takes_ns


@pytest.fixture
def rounds(tmp_path):
    disk, steps, core = ForgetfulDisk(str(tmp_path)), Rounds(), Core(tmp_path)
    commit = GroupCommit(core, disk, submit=steps.submit, soon=steps.soon.append, fatal=print, now=lambda: steps.ns)
    yield steps, core, commit
    disk.release()


def test_a_sync_covers_what_one_quick_round_of_the_loop_reads(rounds):
    steps, core, commit = rounds
    answered = []
    for _ in range(3):
        commit.wait(lambda: answered.append("asked"))
        steps.round(QUICK_NS - 1)
        assert (core.told, commit.idle) == ([], False)
        commit.wait(lambda: answered.append("read in that round"))
        steps.round(QUICK_NS * 9)       # Only the round before is measured.
        assert core.told == ["begin"]
        steps.thread()
        assert (answered, core.told, commit.idle) == (["asked", "read in that round"], ["begin", "end", "turn"], True)
        answered.clear()
        core.told.clear()


def test_beside_long_rounds_a_sync_begins_at_once_until_a_round_is_quick_again(rounds):
    steps, core, commit = rounds

    def sync(*takes_ns):
        commit.request()
        begun = []
        for ns in takes_ns:
            steps.round(ns)
            begun.append(len(steps.jobs))
        steps.thread()
        return begun

    assert sync(QUICK_NS, 0) == [0, 1]      # It was not known before.
    assert sync(QUICK_NS, 0) == [1, 1]
    assert sync(QUICK_NS - 1, 0) == [1, 1]
    assert sync(0, 0) == [0, 1]
    assert core.told == ["begin", "end", "turn"] * 4
    assert (commit.idle, steps.soon) == (True, [])


def test_many_who_wait_share_one_sync_and_are_answered_in_order(parts):
    disk, steps, core, _, commit = parts
    answered = []
    commit.request()
    for i in range(5):
        commit.wait(lambda i=i: answered.append(i))
    steps.loop()
    assert (answered, core.told, disk.syncs) == ([], ["begin"], [])
    steps.thread()
    assert (answered, core.told, disk.syncs) == ([0, 1, 2, 3, 4], ["begin", "end", "turn"], ["msgs"])
    assert commit.idle
    assert commit.sync_count == 1


def test_who_comes_during_a_sync_waits_for_the_next(parts):
    _, steps, core, _, commit = parts
    answered = []
    commit.wait(lambda: answered.append("first"))
    steps.loop()
    commit.wait(lambda: answered.append("second"))
    commit.request()
    assert steps.soon == []
    steps.thread()
    assert (answered, core.told) == (["first"], ["begin", "end", "turn", "begin"])
    steps.thread()
    assert answered == ["first", "second"]
    assert commit.idle


def test_the_descriptors_are_closed(parts):
    _, steps, core, _, commit = parts
    commit.request()
    steps.loop()
    steps.thread()
    with pytest.raises(OSError):
        os.fstat(core.fds[0])


def test_a_dirty_log_is_synced_with_the_rest_even_when_it_was_replaced_meanwhile(parts, tmp_path):
    disk, steps, _, _, commit = parts
    log = DefinitionsLog(str(tmp_path / "definitions.amqp"), disk)
    log.load()
    log.append(b"one")
    commit.wait(lambda: None, log)
    steps.loop()
    assert not log.dirty
    log.compact([b"one"])
    disk.syncs.clear()
    steps.thread()
    assert disk.syncs == ["msgs", log.path]
    commit.wait(lambda: None, log)
    steps.loop()
    disk.syncs.clear()
    steps.thread()
    assert disk.syncs == ["msgs"]


class Follower:
    """Notes when it is asked, and what was synced by then."""

    def __init__(self, disk, fault=None):
        self.disk, self.fault, self.told = disk, fault, []

    def begin_sync(self):
        self.told.append("begin")

        def sync():
            self.told.append(list(self.disk.syncs))
            if self.fault is not None:
                raise self.fault

        return sync


def test_who_follows_is_synced_last_with_the_sync_that_others_ask_for_and_before_they_are_answered(parts):
    disk, steps, core, _, commit = parts
    follower, answered = Follower(disk), []
    commit.follow(follower)
    commit.follow(follower)
    steps.loop()
    assert (follower.told, core.told) == ([], [])       # it asks for none itself
    commit.wait(lambda: answered.append(list(follower.told)))
    steps.loop()
    steps.thread()
    assert answered == [["begin", ["msgs"]]]
    commit.request()
    steps.loop()
    steps.thread()
    assert len(follower.told) == 2


def test_a_follower_that_fails_is_fatal(parts):
    disk, steps, core, failures, commit = parts
    fault = OSError(5, "Input/output error")
    commit.follow(Follower(disk, fault))
    commit.request()
    steps.loop()
    steps.thread()
    assert (failures, core.told) == ([fault], ["begin"])


def test_a_failed_sync_is_fatal_and_nobody_is_answered_any_more(parts):
    disk, steps, core, failures, commit = parts
    answered = []
    disk.fail_syncs = OSError(5, "Input/output error")
    commit.wait(lambda: answered.append(1))
    steps.loop()
    commit.wait(lambda: answered.append(2))
    steps.thread()
    disk.fail_syncs = None
    commit.wait(lambda: answered.append(3))
    steps.loop()
    assert (answered, core.told, steps.jobs) == ([], ["begin"], [])
    assert [error.errno for error in failures] == [5]
    with pytest.raises(OSError):
        os.fstat(core.fds[0])


def test_a_file_that_cannot_be_opened_for_the_sync_is_fatal(parts):
    _, steps, core, failures, commit = parts
    core.directory = "/nowhere"
    commit.request()
    steps.loop()
    assert [type(error) for error in failures] == [FileNotFoundError]


class Poor(Disk):
    """Its process has no descriptor left."""

    def sync_all(self, files):
        raise OSError(errno.EMFILE, "Too many open files", "msgs")


def test_where_no_descriptor_is_left_everything_is_synced_at_once(parts):
    _, steps, core, failures, _ = parts
    synced, answered = [], []
    commit = GroupCommit(core, Poor(), submit=steps.submit, soon=steps.soon.append, fatal=failures.append,
                         everything=lambda: synced.append(True))
    commit.wait(lambda: answered.append(list(synced)))
    steps.loop()
    assert synced == []     # It blocks, so the thread does it.
    steps.thread()
    assert (answered, failures) == ([[True]], [])


def test_a_follower_for_which_no_descriptor_is_left_has_everything_synced(parts):
    disk, steps, core, failures, _ = parts
    synced, answered = [], []
    commit = GroupCommit(core, disk, submit=steps.submit, soon=steps.soon.append, fatal=failures.append,
                         everything=lambda: synced.append(True))
    commit.follow(Follower(disk, OSError(errno.ENFILE, "Too many open files in system")))
    commit.wait(lambda: answered.append(list(synced)))
    steps.loop()
    steps.thread()
    assert (answered, failures) == ([[True]], [])


@pytest.fixture
def quick(tmp_path):
    """A commit with a thread for a few files; ``begun``: what that thread was given."""
    steps, core, begun, failures = Steps(), Core(tmp_path), [], []
    commit = GroupCommit(core, Disk(), submit=steps.submit, soon=steps.soon.append, fatal=failures.append,
                         sync_files=lambda *asked: begun.append(asked))
    yield steps, core, begun, failures, commit
    for fd in core.fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def test_a_few_files_are_synced_by_the_thread_for_them(quick):
    steps, core, begun, failures, commit = quick
    answered = []
    commit.wait(lambda: answered.append(1))
    steps.loop()
    [(files, filesystem, done)] = begun
    assert not filesystem
    assert (files, steps.jobs, answered, commit.idle) == ([(core.fds[0], "msgs")], [], [], False)
    commit.request()
    done(None)
    assert (answered, core.told, failures) == ([1], ["begin", "end", "turn", "begin"], [])
    begun[1][2](OSError(errno.EIO, "Input/output error", "msgs"))
    assert [error.filename for error in failures] == ["msgs"]
    assert core.told == ["begin", "end", "turn", "begin"]


def test_a_directory_is_synced_by_that_thread_too(quick, tmp_path):
    steps, _, begun, _, commit = quick
    commit.sync_directory(str(tmp_path))
    commit.request()
    steps.loop()
    [(files, filesystem, _)] = begun
    assert ([path for _, path in files], filesystem, steps.jobs) == (["msgs", f"{tmp_path}/"], False, [])
    os.close(files[1][0])


def files_of(tmp_path, what):
    """What the plane names in a sync."""
    fd = os.open(tmp_path / "msgs", os.O_RDWR | os.O_CREAT)
    lent = 2 if "no descriptor" in what else SYNCFS_FROM_FILES
    return [(fd, "msgs"), *((os.dup(fd), "msgs") for _ in range(lent - 1)),
            *((-1, f"{tmp_path}/{n}") for n in range(3 if "paths" in what or "no descriptor" in what else 0))]


@pytest.mark.parametrize("what", ["many", "many, and paths", "no descriptor", "many, and a directory"])
def test_the_sync_of_one_filesystem_stands_for_many_files_on_it(quick, tmp_path, what):
    steps, core, begun, _, commit = quick
    files = files_of(tmp_path, what)
    core.begin_sync = lambda descriptors: files
    core.device = os.stat(tmp_path).st_dev
    if "directory" in what:
        commit.sync_directory(str(tmp_path))
    commit.request()
    steps.loop()
    [(synced, filesystem, _)] = begun
    lent = [file for file in files if file[0] >= 0]
    assert (synced[:len(lent)], filesystem, steps.jobs) == (lent, True, [])
    assert [path for _, path in synced[len(lent):]] == ([f"{tmp_path}/"] if "directory" in what else [])
    for fd, _ in synced:
        os.close(fd)


@pytest.mark.parametrize("what", ["nothing", "a follower", "many that lie elsewhere", "many, and a directory elsewhere",
                                  "many, and a directory without a descriptor", "more directories than it takes"])
def test_all_other_syncs_are_the_thread_of_python_s(quick, tmp_path, what):
    steps, core, begun, _, commit = quick
    files = [] if what == "nothing" else files_of(tmp_path, what)
    core.begin_sync = lambda descriptors: files
    core.device = 0 if "that lie elsewhere" in what else os.stat(tmp_path).st_dev
    if what == "a follower":
        commit.follow(Follower(ForgetfulDisk(str(tmp_path))))
    if what.endswith("a directory elsewhere"):
        commit.sync_directory("/proc/self")
    if "without a descriptor" in what:
        commit.sync_directory(str(tmp_path))
        commit._disk = Lending(-1)
    for n in range(9 if "more directories" in what else 0):
        commit.sync_directory(str(tmp_path / f"{n}"))
        (tmp_path / f"{n}").mkdir()
    commit.request()
    steps.loop()
    assert (len(steps.jobs), begun) == (1, [])
    steps.jobs.pop()[1](None)
    assert commit.idle
    for fd, _ in files:
        os.close(fd)


class Lending(Disk):
    """A disk without descriptors for directories."""

    def __init__(self, fd):
        self.fd = fd

    def lend_directory(self, path):
        return self.fd


def test_without_sync_nothing_is_followed(parts):
    disk, steps, core, _, _ = parts
    commit = GroupCommit(core, disk, submit=steps.submit, soon=steps.soon.append, fatal=print, sync=False)
    follower = Follower(disk)
    commit.follow(follower)
    commit.request()
    steps.loop()
    assert (follower.told, steps.jobs) == ([], [])


def test_without_sync_all_is_answered_at_once_and_no_thread_is_asked(parts):
    disk, steps, core, failures, _ = parts
    answered = []
    commit = GroupCommit(core, disk, submit=steps.submit, soon=steps.soon.append, fatal=failures.append, sync=False)
    commit.wait(lambda: answered.append(1))
    assert answered == [1]
    commit.request()
    steps.loop()
    assert (core.told, steps.jobs, disk.syncs) == (["begin", "end", "turn"], [], [])
    with pytest.raises(OSError):
        os.fstat(core.fds[0])


def test_the_thread_does_work_in_order_and_hands_back_errors():
    async def run():
        loop = asyncio.get_running_loop()
        thread, told, end = SyncThread(loop.call_soon_threadsafe), [], loop.create_future()
        thread.submit(lambda: told.append("work"), lambda error: told.append(error))
        thread.submit(lambda: 1 // 0, lambda error: (told.append(type(error)), end.set_result(None)))
        await end
        thread.stop()
        assert told == ["work", None, ZeroDivisionError]

    asyncio.run(run())


def test_confirms_over_the_real_disk_and_thread(tmp_path):
    async def run():
        loop = asyncio.get_running_loop()
        thread, core, answered = SyncThread(loop.call_soon_threadsafe), Core(tmp_path), []
        commit = GroupCommit(core, Disk(), submit=thread.submit, soon=loop.call_soon, fatal=answered.append)
        for i in range(3):
            end = loop.create_future()
            commit.wait(lambda i=i, end=end: (answered.append(i), end.set_result(None)))
            await end
        thread.stop()
        assert answered == [0, 1, 2]

    asyncio.run(run())

import errno
import os
import select
import subprocess
import sys
import tempfile

import pytest
from tests.broker import ROOT

from brokerd.plane import Syncer


@pytest.fixture
def syncer():
    made = Syncer()
    yield made
    made.stop()


def opened(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"octets")
    return fd, str(path)


def wait_for(syncer):
    poll = select.poll()                # select() takes no descriptor above 1,023.
    poll.register(syncer, select.POLLIN)
    assert poll.poll(30_000)
    return syncer.finish()


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_files_are_synced_and_closed_one_sync_after_the_other(syncer, tmp_path):
    for count in (1, 3, 16):
        files = [opened(tmp_path / f"{count}.{n}") for n in range(count)]
        syncer.begin(files)
        assert wait_for(syncer) is True
        assert not any(is_open(fd) for fd, _ in files)


@pytest.mark.parametrize("asked", ["files", "files and a directory", "filesystem"])
def test_a_directory_has_its_own_sync_and_a_filesystem_stands_for_its_files(tmp_path, asked):
    """Here each call of the kernel says what it was."""
    source, calls = str(tmp_path / "calls.c"), str(tmp_path / "calls.so")
    (tmp_path / "calls.c").write_text("".join(f"""
#include <stdio.h>
int {name}(int fd) {{ FILE *f = fopen("{tmp_path}/calls", "a"); fprintf(f, "{name} %d\\n", fd); fclose(f); return 0; }}
""" for name in ("fdatasync", "fsync", "syncfs")))
    subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-o", calls, source], check=True)
    preloaded = [path for path in os.environ.get("LD_PRELOAD", "").split(":") if path]
    alone(f"""
import os, select
syncer = Syncer()
files = [(os.open({str(tmp_path)!r} + "/%d" % n, os.O_RDWR | os.O_CREAT), str(n)) for n in range(3)]
if {asked!r} != "files":
    files.append((os.open({str(tmp_path)!r}, os.O_RDONLY), {str(tmp_path)!r} + "/"))
syncer.begin(files, {asked == "filesystem"})
assert select.select([syncer.fileno()], [], [], 30)[0]
assert syncer.finish() is True
named = dict((int(line.split()[1]), line.split()[0]) for line in open({str(tmp_path / "calls")!r}))
fds = [fd for fd, _ in files]
if {asked!r} == "filesystem":
    assert named == {{fds[0]: "syncfs"}}, named
else:
    assert named == {{fd: "fsync" if n == 3 else "fdatasync" for n, fd in enumerate(fds)}}, named
for fd in fds:
    try:
        os.fstat(fd)
    except OSError:
        continue
    raise AssertionError("open")
""", LD_PRELOAD=":".join([*preloaded, calls]))


def test_a_sync_that_is_not_over_is_not_finished(syncer, tmp_path):
    assert syncer.finish() is False
    syncer.begin([opened(tmp_path / "a")])
    assert wait_for(syncer) is True
    assert syncer.finish() is False


@pytest.mark.parametrize("name", ["the pipe", "a pipe for a directory/"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_file_that_fails_is_named_and_all_are_closed(syncer, tmp_path, place, name):
    files = [opened(tmp_path / str(n)) for n in range(3)]
    ours, theirs = os.pipe()
    os.close(files[place][0])
    files[place] = (ours, name)
    syncer.begin(files)
    with pytest.raises(OSError, match=name) as failed:
        wait_for(syncer)
    assert (failed.value.errno, failed.value.filename) == (errno.EINVAL, name)
    assert not any(is_open(fd) for fd, _ in files)
    os.close(theirs)
    syncer.begin([opened(tmp_path / "later")])
    assert wait_for(syncer) is True


def test_the_file_is_on_disk_when_the_sync_is_over(syncer):
    """The kernel says so: no page of the file is dirty."""
    with tempfile.NamedTemporaryFile(dir=ROOT) as file:     # Temporary folders may be in memory.
        for _ in range(ATTEMPTS):
            os.pwrite(file.fileno(), bytes(1 << 20), 0)
            before = dirty_pages(file.fileno())
            if before is None:
                pytest.skip("this kernel has no cachestat")
            if before:
                break   # Where memory is short, the kernel may write the pages at once.
        assert before
        syncer.begin([(os.dup(file.fileno()), file.name)])
        assert wait_for(syncer) is True
        assert dirty_pages(file.fileno()) == 0


ATTEMPTS = 1000


def dirty_pages(fd):
    """By cachestat(2); None: the kernel has none."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    of_all = (ctypes.c_uint64 * 2)(0, 0)
    figures = (ctypes.c_uint64 * 5)()
    if libc.syscall(451, fd, of_all, figures, 0) != 0:
        return None
    return figures[1] + figures[2]


def test_stop_finishes_the_sync_that_is_under_way(tmp_path):
    syncer = Syncer()
    fd, path = opened(tmp_path / "a")
    syncer.begin([(fd, path)])
    syncer.stop()
    assert not is_open(fd)
    assert syncer.finish() is True
    syncer.stop()


def alone(code, **more):
    """Run this in a process without other threads."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | more
    code = "from brokerd.plane import Syncer\n" + code
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=True)


def test_a_syncer_that_is_forgotten_ends_its_thread():
    alone("""
import os
syncer = Syncer()
assert len(os.listdir("/proc/self/task")) == 2
del syncer
assert len(os.listdir("/proc/self/task")) == 1
""")


def test_the_thread_takes_no_signals():
    alone("""
import os, signal
syncer = Syncer()
[task] = set(os.listdir("/proc/self/task")) - {str(os.getpid())}
with open(f"/proc/self/task/{task}/status") as status:
    blocked = next(line for line in status if line.startswith("SigBlk"))
assert int(blocked.split()[1], 16) >> (signal.SIGTERM - 1) & 1
""")


def test_the_thread_does_not_wait_for_the_lock_of_python(tmp_path):
    """The main thread keeps the lock until the thread's answer is there."""
    alone(f"""
import ctypes, os
syncer = Syncer()
fd = os.open({str(tmp_path / "a")!r}, os.O_RDWR | os.O_CREAT)
poll = ctypes.PyDLL(None).poll              # PyDLL keeps the lock.
waiting = (ctypes.c_int * 2)(syncer.fileno(), 1)
syncer.begin([(fd, "a")])
assert poll(waiting, 1, 30000) == 1
assert syncer.finish() is True
""")


def test_several_files_are_synced_at_once(tmp_path):
    """Here a sync of a file is over when another has begun."""
    source, pairs = str(tmp_path / "pairs.c"), str(tmp_path / "pairs.so")
    (tmp_path / "pairs.c").write_text("""
#include <pthread.h>
static pthread_barrier_t barrier;
__attribute__((constructor)) static void begin(void) { pthread_barrier_init(&barrier, NULL, 2); }
int fdatasync(int fd) { (void)fd; pthread_barrier_wait(&barrier); return 0; }
""")
    subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-pthread", "-o", pairs, source], check=True)
    preloaded = [path for path in os.environ.get("LD_PRELOAD", "").split(":") if path]
    alone(f"""
import os, select
syncer = Syncer()
for count in (2, 4, 8, 16, 2):
    files = [(os.open({str(tmp_path)!r} + "/%d" % n, os.O_RDWR | os.O_CREAT), str(n)) for n in range(count)]
    syncer.begin(files)
    assert select.select([syncer.fileno()], [], [], 30)[0]
    assert syncer.finish() is True
""", LD_PRELOAD=":".join([*preloaded, pairs]))

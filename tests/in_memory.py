"""Folders of tests in memory, where making, syncing and removing files costs a third of what it does on a disk.

    from tests.in_memory import in_memory  # noqa: F401    in a conftest.py or a test file: tmp_path is in memory

For tests whose broker is in their own process and whose disk is ``store.disk`` or a model of one: the kernel's own file
system is not what they are about.  Tests with a real broker stay on the disk, where a kill meets a sync that takes
time.  A folder goes with its test, or with the run if its test fails.  Where memory is short, they are on the disk too.
"""

import copy
import os
import shutil
import tempfile
from pathlib import Path

import pytest

PLACE, NAME = Path("/dev/shm"), "brokerd-tests-"
OCTETS_MIN = 4 << 30  # free, for all workers together; they use some 200 MB


@pytest.fixture(scope="session", name="tmp_path_factory")
def in_memory(tmp_path_factory):
    """As pytest's, of folders in memory."""
    _remove_left_over()
    if not _has_room():
        yield tmp_path_factory
        return
    factory = copy.copy(tmp_path_factory)
    factory._basetemp = Path(tempfile.mkdtemp(prefix=f"{NAME}{os.getpid()}-", dir=PLACE))
    factory._retention_policy = "failed"
    yield factory
    shutil.rmtree(factory._basetemp, ignore_errors=True)


def _has_room():
    try:
        there = os.statvfs(PLACE)
        available = next(int(line.split()[1]) << 10 for line in Path("/proc/meminfo").read_text().splitlines()
                         if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return False
    return os.access(PLACE, os.W_OK) and min(there.f_bavail * there.f_frsize, available) >= OCTETS_MIN


def _remove_left_over():
    """Remove what a run that was killed has left."""
    for folder in PLACE.glob(f"{NAME}*"):
        if not os.path.exists(f"/proc/{folder.name.removeprefix(NAME).partition('-')[0]}"):
            shutil.rmtree(folder, ignore_errors=True)

"""How much memory the broker uses, and how much it may use, by the kernel's figures.

Only anonymous memory (heap and stacks) counts.  Mapped files of messages do not count, because the kernel takes their
pages back whenever it needs room.
"""

import os
from functools import cache

PAGE_OCTETS = os.sysconf("SC_PAGE_SIZE")
STATM = "/proc/self/statm"  # pages: size, resident, shared (files and shared memory), ...
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # version 2, version 1


def used_octets() -> int:
    """Anonymous memory of this process.  Raises OSError."""
    _, resident, shared = os.pread(_statm(), 256, 0).split(None, 3)[:3]
    return (int(resident) - int(shared)) * PAGE_OCTETS


def available_octets() -> int:
    """The memory of the machine, or the limit of our cgroup if that is less."""
    most = os.sysconf("SC_PHYS_PAGES") * PAGE_OCTETS
    for path in CGROUP_LIMITS:
        try:
            with open(path, "rb") as file:
                limit = file.read(64).strip()
        except OSError:
            continue
        if limit.isdigit():  # "max": no limit
            most = min(most, int(limit))
    return most


def trim() -> None:
    """Give the pages of the heap that hold nothing back to the kernel, wherever they lie.

    By itself the C library gives back only those at the heap's end.  Does nothing where that library is not glibc."""
    from ctypes import CDLL  # Few brokers ever need it.

    malloc_trim = getattr(CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


@cache
def _statm() -> int:
    """Opened once: it is read each second, also while the process has no descriptor left."""
    return os.open(STATM, os.O_RDONLY | os.O_CLOEXEC)

"""The CPU seconds and memory of a process, and the processes that listen on a port or a unix socket.  Linux only."""

import os
import socket
import struct
import time
from pathlib import Path
from typing import NamedTuple

LISTEN = "0A"


class Usage(NamedTuple):
    """CPU seconds (user and system, of all threads including ended ones) and KiB of memory."""

    cpu_s: float
    rss_kb: int
    rss_anon_kb: int
    rss_peak_kb: int


def usage(pids: list[int]) -> Usage:
    """The sum over these processes; a process that has ended counts as 0."""
    cpu, memory = 0.0, [0, 0, 0]
    for pid in pids:
        try:
            spent = time.clock_gettime(cpu_clock(pid))
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        cpu += spent
        found = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        for place, name in enumerate(("VmRSS", "RssAnon", "VmHWM")):
            memory[place] += int(found.get(name, "0").split()[0])
    return Usage(cpu, *memory)


def cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time.

    This is clock_getcpuclockid(3), which Python offers only for the own process: the pid inverted, then CPUCLOCK_SCHED.
    It counts nanoseconds; /proc/PID/stat counts ticks, which are too coarse for a run of a tenth of a second.
    """
    return (~pid << 3) | 2


def listeners(port: int) -> list[int]:
    """The processes of this host that listen on the TCP port and that we have permission to see, oldest first."""
    sockets = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{fields[9]}]")
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if any(os.readlink(f"/proc/{pid}/fd/{fd}") in sockets for fd in os.listdir(f"/proc/{pid}/fd")):
                found.append(int(pid))
        except OSError:
            continue
    return sorted(found)


def unix_listeners(path: str) -> list[int]:
    """The process that listens on the unix socket (SO_PEERCRED, unix(7)); none while nothing answers there."""
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(path)
        except OSError:
            return []
        credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return [struct.unpack("3i", credentials)[0]]

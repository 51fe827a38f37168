"""What a process costs, read from /proc: CPU seconds and memory, and who listens on a port."""

import os
from pathlib import Path
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
LISTEN = "0A"


class Usage(NamedTuple):
    """CPU seconds (user and system, all threads, finished children too) and KiB of memory."""

    cpu_s: float
    rss_kb: int
    rss_anon_kb: int
    rss_peak_kb: int


def usage(pids: list[int]) -> Usage:
    """The sum over these processes; those that are gone count nothing."""
    cpu, memory = 0.0, [0, 0, 0]
    for pid in pids:
        try:
            # The name in brackets may hold anything; 14 and 15 count from 1 at the pid, 3 is right after it.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        cpu += (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
        found = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        for place, name in enumerate(("VmRSS", "RssAnon", "VmHWM")):
            memory[place] += int(found.get(name, "0").split()[0])
    return Usage(cpu, *memory)


def listeners(port: int) -> list[int]:
    """The processes of this host that listen on the TCP port and that we may look into, eldest first."""
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

"""The measure of memory against what the kernel tells elsewhere."""

import re
from pathlib import Path

from brokerd.server import memory


def anonymous_octets():
    return int(re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1)) * 1024


def test_used_is_the_anonymous_memory_of_the_process():
    held = bytearray(64 << 20)
    held[::4096] = b"x" * len(held[::4096])
    assert abs(memory.used_octets() - anonymous_octets()) < 8 << 20


def test_memory_that_is_taken_is_seen():
    memory.trim()       # Else it may come from what earlier tests have freed, which the process still has.
    before = memory.used_octets()
    held = bytearray(64 << 20)
    held[::4096] = b"x" * len(held[::4096])
    assert 60 << 20 < memory.used_octets() - before < 80 << 20


def test_mapped_files_do_not_count(tmp_path):
    import mmap

    path = tmp_path / "file"
    path.write_bytes(bytes(64 << 20))
    before = memory.used_octets()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        assert sum(mapped[::4096]) == 0
        assert memory.used_octets() - before < 16 << 20


def test_there_is_what_the_machine_has_or_the_cgroup_allows(monkeypatch, tmp_path):
    total = int(re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text()).group(1)) * 1024
    monkeypatch.setattr(memory, "CGROUP_LIMITS", ())
    assert abs(memory.available_octets() - total) < total / 100
    for text, there in (("max\n", memory.available_octets()), ("1048576\n", 1 << 20), (f"{1 << 62}\n", total)):
        (tmp_path / "limit").write_text(text)
        monkeypatch.setattr(memory, "CGROUP_LIMITS", (tmp_path / "none", tmp_path / "limit"))
        assert abs(memory.available_octets() - there) <= total / 100


def test_what_is_free_between_what_is_used_goes_back_to_the_kernel():
    # Objects of 64 KiB are malloc's; every second one stays, so nothing is free at the heap's end.
    held = [bytes([1]) * 65_000 for _ in range(2000)]
    before = memory.used_octets()
    del held[1::2]
    memory.trim()
    assert memory.used_octets() < before - (40 << 20)

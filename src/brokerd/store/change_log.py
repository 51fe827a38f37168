"""The change log: one line of JSON for each change that a user made or tried, oldest first.

    changes.jsonl  changes.1.jsonl  changes.2.jsonl ...      the newest file, and the ones before it

A file that is full gets the next name, and the oldest goes.  A line is on disk when ``append`` returns.  Knows nothing
of what a line says.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brokerd.store.disk import Disk

NAME = "changes{}.jsonl"
FILE_OCTETS = 4 << 20  # from here on a file gets no more lines
FILES = 5  # so many are kept
LINE_OCTETS_MAX = 64 << 10
READ_OCTETS = 64 << 10


class ChangeLog:
    """The files of one data directory.  Only one thread may append."""

    def __init__(self, directory: str, disk: "Disk") -> None:
        self._directory, self._disk = directory, disk

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, NAME.format(f".{number}" if number else ""))

    def append(self, line: dict[str, Any]) -> None:
        """Write a line, and sync it.  Raises OSError."""
        import json  # A start does without.

        octets = json.dumps(line).encode() + b"\n"
        assert len(octets) <= LINE_OCTETS_MAX
        disk = self._disk
        fd = disk.open(self._path(0), os.O_RDWR | os.O_CREAT)
        try:
            end = os.fstat(fd).st_size
            if end >= FILE_OCTETS:
                disk.close(fd)
                fd = -1
                self._rotate()
                fd, end = disk.open(self._path(0), os.O_RDWR | os.O_CREAT), 0
            if end and disk.pread(fd, 1, end - 1) != b"\n":  # A crash has left a part of a line.
                octets = b"\n" + octets
            disk.pwrite(fd, octets, end)
            disk.fdatasync(fd, self._path(0))
            if not end:
                disk.sync_directory(self._directory)
        finally:
            if fd >= 0:
                disk.close(fd)

    def _rotate(self) -> None:
        with suppress(FileNotFoundError):
            self._disk.unlink(self._path(FILES - 1))
        for number in range(FILES - 2, -1, -1):
            with suppress(FileNotFoundError):
                self._disk.rename(self._path(number), self._path(number + 1))

    def newest_first(self) -> Iterator[dict[str, Any]]:
        """The lines, the last one first.  What is no whole line is left out.  Raises OSError."""
        import json  # As above.

        for number in range(FILES):
            try:
                octets = self._disk.read(self._path(number), 2 * FILE_OCTETS)
            except FileNotFoundError:
                continue
            for text in reversed(octets.split(b"\n")):
                line = None
                with suppress(ValueError):
                    line = json.loads(text)
                if isinstance(line, dict):
                    yield line

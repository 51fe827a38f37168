"""Files and folders that are not needed any more: moved out of the way at once, removed by a thread.

A moved file has a name of its own in ``<data_dir>/garbage``, so that its old name is free at once, and no late removal
can hit the wrong file.  A folder is moved whole: after a crash it is there or not, never in part.  The next start
removes files that a crash left.  The folder ``garbage`` stays: on a disk without a free inode no other could be made,
and no queue deleted.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

from brokerd.store.format import GARBAGE_FOLDER

Submit = Callable[[Callable[[], object], Callable[[Any], object]], object]


class Garbage:
    """The way out of the data directory.  ``submit(work, done)`` runs work() in a thread."""

    __slots__ = ("_count", "_directory", "_made", "_paths", "_submit")

    def __init__(self, data_dir: str, submit: Submit) -> None:
        self._directory = os.path.join(data_dir, GARBAGE_FOLDER)
        self._submit = submit
        self._count = 0
        self._paths: list[str] = []
        self._made = False
        if os.path.lexists(f"{self._directory}.old"):  # of an earlier release
            self._paths.append(f"{self._directory}.old")
        try:
            left = os.listdir(self._directory)
        except FileNotFoundError:
            return
        self._made = True
        self._paths += [f"{self._directory}/{name}" for name in left]
        self._count = max((int(name) for name in left if name.isdecimal()), default=0)

    def prepare(self) -> None:
        """Make the folder while there is room for it.  Without it, things are discarded as long as one can be made."""
        with contextlib.suppress(OSError):
            self._make()

    def discard(self, path: str) -> None:
        """Move ``path`` away, to be removed after the next ``flush``; no fault if it is not there.  Raises OSError."""
        if not self._made:
            if not os.path.lexists(path):
                return
            self._make()
        self._count += 1
        target = f"{self._directory}/{self._count}"
        try:
            os.rename(path, target)
        except FileNotFoundError:
            if not os.path.lexists(path):
                return
            self._made = False  # Somebody has removed the folder.
            self._make()
            os.rename(path, target)
        self._paths.append(target)

    def _make(self) -> None:
        if not self._made:
            os.mkdir(self._directory)
            self._made = True

    def flush(self) -> None:
        """Let the thread remove what was moved away."""
        if self._paths:
            paths, self._paths = self._paths, []
            self._submit(lambda: remove_all(paths), _heard)


def remove_all(paths: list[str]) -> None:
    """Remove files, and folders with all in them."""
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError:
            remove_tree(path)


def remove_tree(path: str) -> None:
    """Remove a folder and all in it; what is gone already is no fault."""
    from shutil import rmtree  # Few starts remove anything.

    rmtree(path, ignore_errors=True)


def _heard(error: BaseException | None) -> None:
    """The next start tries again to remove files that could not be removed."""

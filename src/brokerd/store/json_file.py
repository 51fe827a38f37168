"""Small JSON files that operators read and edit: users, permissions, vhosts, policies.

A file is replaced whole: a reader finds the old or the new content, also after a power cut.  Both the broker and an
operator may change a file while the broker runs; ``JSONFile`` lets neither undo what the other wrote.  Knows nothing of
what is in a file: callers check the values.
"""

import errno
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.errors import StoreError, did_you_mean
from brokerd.store.disk import Disk

if TYPE_CHECKING:
    from brokerd.store.disk import Stamp

OCTETS_MAX = 1 << 26  # of one file
_NO_LIST = "not a list of objects"


class JSONFile:
    """One file that the broker keeps, and that an operator may edit meanwhile.

    ``read()`` shows what is there; with ``take_over()`` the broker's state is what it read last.  ``replace()`` writes
    only if the file has not changed since: what an operator wrote stays until the broker has taken it over.
    """

    __slots__ = ("_disk", "_known", "_seen", "path")

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._known: Stamp | None = None  # of the file as it was when its content was the broker's state
        self._seen: Stamp | None = None  # ... at the last read

    def read(self) -> Any:
        """The value in the file; None if the file is missing.  Raises as ``read`` does."""
        self._seen = self._disk.stamp(self.path)  # First: a later change must not pass for one that was read.
        return read(self.path, self._disk)

    def read_again(self) -> Any:
        """The value in a file that was there before.  Raises as ``read`` does; StoreError if the file is gone, because
        an editor may be about to write it anew."""
        value = self.read()
        if value is None and self._known is not None:
            raise StoreError(f"{self.path}: is missing; an empty list, [], would be none of them")
        return value

    def take_over(self) -> None:
        """Note that the broker's state is what the last read showed."""
        self._known = self._seen

    def check_unedited(self) -> None:
        """Raise OSError (EBUSY) if somebody else has changed the file since the broker took it over.  Work that cannot
        be undone asks before it begins."""
        if self._disk.stamp(self.path) != self._known:
            raise OSError(errno.EBUSY, "was edited and not read since: send HUP to the broker first", self.path)

    def replace(self, value: Any) -> None:
        """Replace the content; it is on disk when this returns.  Raises OSError, as ``check_unedited`` does or because
        it cannot be written."""
        self.check_unedited()
        replace(self.path, value, self._disk)
        self._known = self._seen = self._disk.stamp(self.path)


class Change(NamedTuple):
    """A change of one file: ``write`` in any thread, then ``apply`` where the broker's state is."""

    file: JSONFile
    content: Callable[[], Any]
    apply: Callable[[], object]

    def write(self) -> None:
        """Write the file.  Raises OSError, as ``JSONFile.replace`` does: nothing has changed."""
        self.file.replace(self.content())

    def do(self) -> None:
        """Do both.  Raises OSError: nothing has changed."""
        self.write()
        self.apply()


class Changes(NamedTuple):
    """How the entries of a file differ from those before, by their names for people."""

    added: list[str]
    removed: list[str]
    changed: list[str]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        """Such as ``1 added ('ann'), 2 removed ('bob', 'eve')``."""
        said = [f"{len(names)} {verb} ({named(names)})" for verb, names in self._asdict().items() if names]
        return ", ".join(said) or "nothing changed"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    """How ``after`` differs from ``before``, both by name."""
    return Changes(
        [name for name in after if name not in before],
        [name for name in before if name not in after],
        [name for name, value in after.items() if name in before and before[name] != value],
    )


NAMES_SHOWN = 5


def named(names: list[str]) -> str:
    """Names for a line of the log, which must not become long."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def read(path: str, disk: Disk) -> Any:
    """The value in the file; None if the file is missing.

    Raises StoreError, which names line and column, if the file is not JSON, or if it is ``null``; OSError.
    """
    try:
        octets = disk.read(path, OCTETS_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _named(error, path) from error
    from json import JSONDecodeError, loads  # Here, because a first start finds no file.

    try:
        value = loads(octets.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        line = octets.count(b"\n", 0, error.start) + 1
        column = error.start - octets.rfind(b"\n", 0, error.start)
        raise StoreError(f"{path}: line {line}, column {column}: not UTF-8") from error
    except JSONDecodeError as error:
        raise StoreError(f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:       # Nested too deeply; a number of too many digits, or none.
        raise StoreError(f"{path}: line 1, column 1: not usable JSON: {error}") from error
    if value is None:  # None would say that the file is missing.
        raise StoreError(f"{path}: {_NO_LIST}")
    return value


def replace(path: str, value: Any, disk: Disk) -> None:
    """Replace the content of the file; it is on disk when this returns.  After an OSError the old content stays."""
    from json import dumps

    try:
        octets = dumps(value, indent=2, ensure_ascii=False).encode()
    except UnicodeEncodeError:      # A name from the wire may not be UTF-8: JSON's escapes can write it.
        octets = dumps(value, indent=2).encode()
    try:
        disk.replace(path, octets + b"\n")
    except OSError as error:
        raise _named(error, path) from error


def rows(path: str, content: Any, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """``content`` as a list of objects.  Each has all ``required`` keys; its other keys are all ``optional`` ones.

    Raises StoreError, which names the entry, counted from 1.
    """
    if not isinstance(content, list):
        raise StoreError(f"{path}: {_NO_LIST}")
    for number, entry in enumerate(content, 1):
        if not isinstance(entry, dict):
            raise StoreError(f"{path}: entry {number} is not an object")
        for key in required:
            if key not in entry:
                raise StoreError(f"{path}: entry {number} has no {key}")
        for key in entry:
            if key not in required and key not in optional:
                hint = did_you_mean(key, (*required, *optional))
                raise StoreError(f"{path}: entry {number} has an unknown key {key!r}{hint}")
    return content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _named(error: OSError, path: str) -> OSError:
    """The same error with the file's name: an error from write or fsync may lack it."""
    return OSError(error.errno, error.strerror or os.strerror(error.errno or 0), error.filename or path)

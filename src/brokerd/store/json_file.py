"""Small JSON files that operators read and edit while the broker is stopped: users, permissions, vhosts, policies.

A file is replaced whole: each reader, also after a power cut, finds the old or the
new content.  Knows nothing of what is in them: callers check the values.
"""

import os
from typing import Any

from brokerd.errors import StoreError
from brokerd.store.disk import Disk


def read(path: str, disk: Disk) -> Any:
    """What the file holds; None when it is missing.

    Raises StoreError, naming line and column, when it is not JSON, and OSError.
    """
    try:
        octets = disk.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _named(error, path) from error
    from json import JSONDecodeError, loads  # A first start finds no file.

    try:
        return loads(octets.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        line = octets.count(b"\n", 0, error.start) + 1
        column = error.start - octets.rfind(b"\n", 0, error.start)
        raise StoreError(f"{path}: line {line}, column {column}: not UTF-8") from error
    except JSONDecodeError as error:
        raise StoreError(f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:       # Nested too deeply; a number of too many digits, or none.
        raise StoreError(f"{path}: line 1, column 1: not usable JSON: {error}") from error


def replace(path: str, value: Any, disk: Disk) -> None:
    """Give the file a new content, on the disk when this returns.  Raises OSError, and then the old one holds."""
    from json import dumps

    try:
        octets = dumps(value, indent=2, ensure_ascii=False).encode()
    except UnicodeEncodeError:      # A name from the wire need not be UTF-8; escapes can say it.
        octets = dumps(value, indent=2).encode()
    try:
        disk.replace(path, octets + b"\n")
    except OSError as error:
        raise _named(error, path) from error


def rows(path: str, content: Any, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """``content`` as a list of objects that have all ``required`` keys and no others but ``optional``.

    Raises StoreError naming the entry, counted from 1.
    """
    if not isinstance(content, list):
        raise StoreError(f"{path}: not a list of objects")
    for number, entry in enumerate(content, 1):
        if not isinstance(entry, dict):
            raise StoreError(f"{path}: entry {number} is not an object")
        for key in required:
            if key not in entry:
                raise StoreError(f"{path}: entry {number} has no {key}")
        for key in entry:
            if key not in required and key not in optional:
                raise StoreError(f"{path}: entry {number} has an unknown key {key!r}")
    return content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _named(error: OSError, path: str) -> OSError:
    """The same error with the file's name in it, which one from write or fsync may lack."""
    return OSError(error.errno, error.strerror or os.strerror(error.errno or 0), error.filename or path)

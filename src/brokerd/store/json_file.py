"""Small JSON files that operators read and edit while the broker is stopped: users, permissions, vhosts, policies.

A file is replaced whole: a reader finds the old or the new content, also after a power cut.  Knows nothing of what is
in a file: callers check the values.
"""

import os
from typing import Any

from brokerd.errors import StoreError
from brokerd.store.disk import Disk


def read(path: str, disk: Disk) -> Any:
    """The value in the file; None if the file is missing.

    Raises StoreError, which names line and column, if the file is not JSON; OSError.
    """
    try:
        octets = disk.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _named(error, path) from error
    from json import JSONDecodeError, loads  # Here, because a first start finds no file.

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
    """The same error with the file's name: an error from write or fsync may lack it."""
    return OSError(error.errno, error.strerror or os.strerror(error.errno or 0), error.filename or path)

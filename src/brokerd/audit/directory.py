"""The data directory that a source is, or in which it lies: its version, and whether its broker has stopped cleanly.

A start corrects the words of the headers of all queues that it takes in; a clean stop then puts them on disk, and takes
the marker ``running`` away.  So in a directory without the marker these words are right, whatever had happened before.
A start does not take in a folder that no definition explains, nor a vhost that the directory does not list.
"""

import json
from typing import TYPE_CHECKING

from brokerd.audit import AuditError
from brokerd.store import format as layout

if TYPE_CHECKING:
    from brokerd.audit.files import Source

VHOST_NAME_FILE = ".vhost"
VHOSTS_FILE = "vhosts.json"


def _directory_of(source: "Source", names: dict[str, int] | None = None) -> "tuple[Source, dict[str, int]] | None":
    """The data directory, and the names in it: the source, or what is above the folder of a vhost or a queue."""
    above, names = source, names if names is not None else source.names("")
    for _ in range(2):
        if (VHOST_NAME_FILE not in names and layout.QUEUE_NAME_FILE not in names) or source.is_s3:
            break
        above = type(source)(above.root.rstrip("/").rpartition("/")[0] or "/")
        try:
            names = above.names("")
        except OSError:
            return None
    return (above, names) if layout.SCHEMA_FILE in names else None


def check_schema(source: "Source", names: dict[str, int]) -> None:
    """Refuse a data directory of another version, also where only the folder of a vhost or a queue of it is named."""
    found = _directory_of(source, names)
    if found is None:
        return
    above, _ = found
    path = above.path(layout.SCHEMA_FILE)
    try:
        said = above.read(layout.SCHEMA_FILE, 0, 64).decode("ascii", "replace").strip()
    except OSError as error:
        raise AuditError(f"{path}: {error.strerror or error}") from None
    if not said.isdigit() or int(said) != layout.SCHEMA_VERSION:
        raise AuditError(f"{path}: a data directory of version {said[:20]!r}; this one reads version "
                         f"{layout.SCHEMA_VERSION}")


def stopped_vhosts(source: "Source") -> frozenset[str]:
    """The vhosts that a clean stop has left; none: a broker is at work or was killed, or this is no data directory."""
    try:
        found = _directory_of(source)
        if found is None or layout.RUNNING_FILE in found[1]:
            return frozenset()
        return frozenset(row["name"] for row in json.loads(found[0].read(VHOSTS_FILE)))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return frozenset()


def takes_in(folder: str, queue: str) -> bool:
    """Whether a start takes in the queue of this name from this folder: that of an unknown one has another name."""
    return folder.rpartition("/")[2] == layout.folder_name(queue)

"""The file ``paused`` in a queue's folder: an operator has paused the queue, also over restarts.

    {"version": 1, "since": 1769860800000}    since when, in ms since 1970

It goes with the queue's folder.  A file that cannot be read means a pause too, since somebody made it.
"""

import os
from logging import getLogger

from brokerd.errors import StoreError
from brokerd.store.disk import Disk
from brokerd.store.format import PAUSED_FILE

log = getLogger("brokerd")

VERSION = 1


def read_pause(directory: str) -> int:
    """Since when the queue is paused, in ms since 1970; 0 if the file does not say so.  The log names such a file."""
    from brokerd.store import json_file

    path = os.path.join(directory, PAUSED_FILE)
    try:
        said = json_file.read(path, Disk())
    except (StoreError, OSError) as error:
        log.warning("%s: the queue stays paused", error)
        return 0
    since = said.get("since") if isinstance(said, dict) and said.get("version") == VERSION else None
    if isinstance(since, int) and since >= 0:
        return since
    log.warning("%s: unknown version or content: the queue stays paused", path)
    return 0


def write_pause(directory: str, since: int, disk: Disk) -> None:
    """Make the file, in a folder that is there; it is on disk when this returns.  Raises OSError."""
    from brokerd.store import json_file

    json_file.replace(os.path.join(directory, PAUSED_FILE), {"version": VERSION, "since": since}, disk)
    disk.sync_directory(os.path.dirname(directory))


def remove_pause(directory: str, disk: Disk) -> None:
    """Remove the file; that is on disk when this returns.  Raises OSError."""
    disk.unlink(os.path.join(directory, PAUSED_FILE))
    disk.sync_directory(directory)

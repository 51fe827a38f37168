"""The file ``redriven`` in a queue's folder: messages that stand in their group where they stood before they died.

    {"version": 1, "seqs": [17, 18]}    their sequence numbers; some may be settled by now

A start puts these back before it looks at any other message, because they stand behind those that they go before.
Without the file they are the last of their groups.
"""

import os
from logging import getLogger

from brokerd.errors import StoreError
from brokerd.store.disk import Disk
from brokerd.store.format import REDRIVEN_FILE

log = getLogger("brokerd")

VERSION = 1


def read_redriven(directory: str) -> list[int]:
    """The contents of the file; nothing if there is none.  The log names a file that cannot be used."""
    path = os.path.join(directory, REDRIVEN_FILE)
    if not os.path.exists(path):
        return []
    from brokerd.store import json_file  # Few queues have it.

    try:
        said = json_file.read(path, Disk())
    except (StoreError, OSError) as error:
        log.warning("%s: redriven messages now come last in their groups", error)
        return []
    seqs = said.get("seqs") if isinstance(said, dict) and said.get("version") == VERSION else None
    if not isinstance(seqs, list) or not all(isinstance(seq, int) and seq > 0 for seq in seqs):
        log.warning("%s: unknown version or content: redriven messages now come last in their groups", path)
        return []
    return seqs


def write_redriven(directory: str, seqs: list[int], disk: Disk) -> None:
    """Replace the file; it is on disk when this returns.  Raises OSError."""
    from brokerd.store import json_file

    json_file.replace(os.path.join(directory, REDRIVEN_FILE), {"version": VERSION, "seqs": seqs}, disk)

"""Describes damage in the files that tell of one message: ``spoiled``.

A trace shows what the files say.  A damaged file may lack events, or have wrong ones: then the trace names the file,
the place, and the facts that cannot be known.
"""

from collections.abc import Iterable
from typing import Any

from brokerd.audit.files import Damage

# What damage may have taken, by its ``matters``.
TAKEN = {"records": "messages", "events": "events", "acks": "what became of messages"}


def spoiled(damage: Iterable[Damage]) -> list[dict[str, Any]]:
    """A row for each damage: its file, its offset (-1: the whole file), what is wrong, and what may be missing."""
    return [{"file": one.file, "offset": one.offset, "detail": one.detail,
             "missing": [TAKEN[what] for what in one.matters if what in TAKEN]} for one in damage]


def concerns(one: Damage, folder: str) -> bool:
    """Whether damage of this folder took something, as that of a segment that is gone: it may have held any message."""
    return bool(one.matters) and (not folder or one.file == folder or one.file.startswith(f"{folder}/"))

"""Reads files that the broker may just be moving to ``kept/``, and describes damage at many places of one file.

A file that cannot be read becomes ``Damage``; no function here raises an exception for it.
"""

from collections.abc import Callable

import numpy as np

from brokerd.audit.files import Damage, Source, reason
from brokerd.store import format as layout

WINDOW = 256                    # findings of one kind and file that are reported one by one


def other_place(path: str) -> str:
    """The other place where a file may be, because the broker moves it to ``kept``: in that folder, or outside."""
    folder, _, name = path.rpartition("/")
    if folder == layout.KEPT_FOLDER or folder.endswith("/" + layout.KEPT_FOLDER):
        above = folder[:-len(layout.KEPT_FOLDER)].rstrip("/")
        return f"{above}/{name}" if above else name
    return f"{folder}/{layout.KEPT_FOLDER}/{name}" if folder else f"{layout.KEPT_FOLDER}/{name}"


def read(source: Source, path: str, damage: list[Damage], matters: tuple[str, ...], start: int = 0,
         length: int = -1) -> bytes | None:
    """The octets of a file, which may just have moved; None: it cannot be read, and ``damage`` says so if it must."""
    for place in (path, other_place(path)):
        try:
            return source.read(place, start, length)
        except FileNotFoundError:
            continue
        except (OSError, MemoryError, OverflowError) as error:
            words = reason(error) if isinstance(error, OSError) else str(error)
            damage.append(Damage(path, -1, 0, 0, f"cannot be read: {words}", matters))
            return None
    return None


def read_octets(source: Source, path: str, start: int, length: int) -> bytes:
    """Octets of a file, which may just have moved; fewer if it ends, or cannot be read."""
    return read(source, path, [], (), start, length) or b""


def read_head(source: Source, path: str) -> bytes:
    """The header of a file, which may just have moved; fewer octets if it cannot be read."""
    return read_octets(source, path, 0, layout.HEADER_OCTETS)


def several(damage: list[Damage], path: str, places: np.ndarray, one: Callable[[int], Damage]) -> None:
    """Add a finding for each of the first ``WINDOW`` places, and one finding for the rest."""
    damage += [one(int(place)) for place in places[:WINDOW]]
    if places.size > WINDOW:
        last = damage[-1]
        damage.append(last._replace(detail=f"and {places.size - WINDOW} more like the one before"))

"""Compares the files of a dump with the digests in its manifest: is each octet the one that the broker copied?

    {"path": "<vhost>/<queue>/msgs.0000000001", "octets": 4096, "sha256": "..."}    in ``files`` of a queue's entry

``check`` names each file that differs, that is missing or that the manifest does not name.  With a signed manifest this
covers every octet of the dump.  A manifest without digests has nothing to compare, which is not a fault.  Knows
nothing of what the files mean.  ``files`` already reports some files that are missing or too short.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from brokerd.audit.files import NAME_FILE, Damage, QueueFiles, Source, file_number, reason
from brokerd.store import format as layout

CHUNK_OCTETS = 4 << 20
DIGEST = "sha256"
BESIDE = (layout.QUEUE_NAME_FILE, layout.ORDER_FILE, layout.SIDE_FILE)


def check(source: Source, queue: QueueFiles) -> list[Damage]:
    """Contradictions to the digests of one queue's files; [] if the manifest has no digests, or is missing.

    Reads every file of the queue.  Raises AuditError for a manifest that cannot be read."""
    if queue.manifest is None:
        manifest = source.manifest()
        named = (manifest or {}).get("queues")
        if not isinstance(named, list) or not any(isinstance(entry, dict) and _files(entry) for entry in named):
            return []
        return [Damage(queue.folder, -1, 0, 0, "the manifest does not name this queue")]
    files = _files(queue.manifest)
    if not files:
        return []
    found: list[Damage] = []
    said: set[str] = set()
    for path, octets, digest in files:
        said.add(path)
        if not _is_own(queue.folder, path):
            found.append(Damage("manifest.json", -1, 0, 0, f"names {path[:200]!r} as a file of {queue.folder}"))
            continue
        fault = _fault(source, path, octets, digest)
        if fault:
            found.append(Damage(path, -1, 0, 0, fault))
    found += [Damage(path, -1, 0, 0, "the manifest does not name it") for path in _there(source, queue.folder)
              if path not in said]
    return found


def _files(entry: dict[str, Any]) -> list[tuple[str, int, str]]:
    """(path, octets, digest in hex) of each file that an entry names; [] if it has no digests at all."""
    files = entry.get("files")
    rows = [file for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    if not any(DIGEST in file for file in rows):
        return []
    return [(str(file.get("path")), file["octets"] if isinstance(file.get("octets"), int) else 0,
             str(file.get(DIGEST, ""))) for file in rows]


def _is_own(folder: str, path: str) -> bool:
    """Whether a path is that of a file in the queue's folder, or of the name of its vhost."""
    above = folder.rpartition("/")[0]
    return ".." not in path.split("/") and (path.startswith(f"{folder}/") or path == f"{above}/{NAME_FILE}")


def _fault(source: Source, path: str, octets: int, digest: str) -> str:
    """The fault of one file; "": none, or ``files`` reports it."""
    if not digest:
        return "the manifest has no digest of it, though it has those of others"
    known = file_number(path.rpartition("/")[2])
    hash_, done = sha256(), 0
    try:
        while chunk := source.read(path, done, CHUNK_OCTETS):
            hash_.update(chunk)
            done += len(chunk)
    except FileNotFoundError:
        told = known is not None and known[0] != "chain"
        return "" if told else "the manifest names it, but it is not here"
    except OSError as error:
        return f"cannot be read: {reason(error)}"
    if hash_.hexdigest() == digest:
        return ""
    if done < octets and known is not None and known[0] != "chain":
        return ""               # Half copied: told as that.
    return "is not as it was when the dump was made: the manifest has another digest of it"


def _there(source: Source, folder: str) -> Iterator[str]:
    """The files of a queue's folder that an audit reads."""
    levels = [""]
    try:
        names = source.names(folder)
    except OSError:
        return                  # Its files are missing, one by one.
    levels += [f"{name}/" for name in sorted(names) if layout.priority_level(name) is not None and names[name] < 0]
    for level in levels:
        for place in (level, f"{level}{layout.KEPT_FOLDER}/"):
            try:
                there = source.names(f"{folder}/{place}".rstrip("/"))
            except OSError:
                continue
            for name, octets in sorted(there.items()):
                if octets >= 0 and (file_number(name) is not None or (not place and name in BESIDE)):
                    yield f"{folder}/{place}{name}"

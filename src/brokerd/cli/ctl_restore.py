"""``brokerctl restore``: a data directory from a backup, whole or not at all.

    BACKUP ─ each file is copied, and its digest compared with the manifest's ─> DIR.partial ─ synced, renamed ─> DIR

A broker that starts on it recovers as after kill -9 at the instant of the backup.  Knows nothing of the files'
contents.
"""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from brokerd.cli.ctl_text import many, octets
from brokerd.errors import BrokerError
from brokerd.operations.backup import digest_of
from brokerd.operations.copying import copy_chunks
from brokerd.operations.dump import MANIFEST, MANIFEST_VERSION, PARTIAL, sync_all
from brokerd.store.data_dir import boot_id
from brokerd.store.disk import Disk
from brokerd.store.format import RUNNING_FILE
from brokerd.store.garbage import remove_tree


def restore(backup: str, directory: str, at: Callable[[str], object], *, dry: bool = False) -> str:
    """Restore, and return a line for people.  ``at`` hears how far it is.  Raises BrokerError, OSError."""
    manifest = _manifest(backup)
    files = list(_files(manifest, backup))
    total = sum(size for _, size, _ in files)
    what = f"{many(len(files), 'file')}, {octets(total)}"
    if dry:
        for number, each in enumerate(files, 1):
            at(f"file {number} of {len(files)}")
            _check(os.path.join(backup, each[0]), *each[1:])
        return f"{what} are as the manifest of {backup} says"
    _check_target(directory)
    partial = directory + PARTIAL
    try:
        os.mkdir(partial, 0o750)
    except FileExistsError:
        raise BrokerError(f"{partial} is there, of a restore that did not end: remove it first") from None
    try:
        for number, each in enumerate(files, 1):
            at(f"file {number} of {len(files)}")
            _copy(backup, partial, *each)
        disk = Disk()
        disk.replace(os.path.join(partial, RUNNING_FILE), f"{boot_id() or 'unknown'} whole\n".encode())
        sync_all(disk, partial)
        if os.path.isdir(directory):
            os.rmdir(directory)
        os.rename(partial, directory)
        disk.sync_directory(os.path.dirname(directory))
    except BaseException:
        remove_tree(partial)
        raise
    return f"{what} restored to {directory}"


def _manifest(backup: str) -> dict[str, Any]:
    path = os.path.join(backup, MANIFEST)
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
    except FileNotFoundError:
        raise BrokerError(f"{path} is missing: {backup} is no backup, or one that did not end") from None
    except ValueError as error:
        raise BrokerError(f"{path} is damaged: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("backup") is not True:
        raise BrokerError(f"{backup} is a dump of queues: only what `brokerctl backup` has made can be restored")
    version = manifest.get("manifest")
    if version != MANIFEST_VERSION:
        raise BrokerError(f"{path} has version {version}: this brokerd knows {MANIFEST_VERSION} alone")
    return manifest


def _files(manifest: dict[str, Any], backup: str) -> Iterator[tuple[str, int, str]]:
    """Path, octets and digest of each file, each once."""
    path = os.path.join(backup, MANIFEST)
    seen: set[str] = set()
    try:
        for each in [*manifest["files"], *(file for queue in manifest["queues"] for file in queue["files"])]:
            name, size, digest = str(each["path"]), int(each["octets"]), str(each["sha256"])
            if os.path.isabs(name) or ".." in name.split("/"):
                raise BrokerError(f"{path} is damaged: it names a file outside of the backup, {name!r}")
            if name not in seen:
                seen.add(name)
                yield name, size, digest
    except (KeyError, TypeError, ValueError) as error:
        raise BrokerError(f"{path} is damaged: {error!r}") from None


def _check_target(directory: str) -> None:
    try:
        if os.listdir(directory):
            raise BrokerError(f"{directory} is not empty: a backup is restored to a new folder")
    except FileNotFoundError:
        above = os.path.dirname(directory)
        if not os.path.isdir(above):
            raise BrokerError(f"{above} is no folder") from None
    except NotADirectoryError:
        raise BrokerError(f"{directory} is there, and is no folder") from None


def _check(path: str, size: int, digest: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise BrokerError(f"{path} is missing from the backup") from None
    try:
        _compare(path, digest_of(fd), size, digest)
    finally:
        os.close(fd)


def _copy(backup: str, partial: str, name: str, size: int, digest: str) -> None:
    """Copy a file, and check the copy."""
    path, target_path = os.path.join(backup, name), os.path.join(partial, name)
    os.makedirs(os.path.dirname(target_path), 0o750, exist_ok=True)
    try:
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise BrokerError(f"{path} is missing from the backup") from None
    try:
        target = os.open(target_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            for _ in copy_chunks(source, target, os.fstat(source).st_size):
                pass
            _compare(path, digest_of(target), size, digest)
        finally:
            os.close(target)
    finally:
        os.close(source)


def _compare(path: str, found: tuple[str, int], size: int, digest: str) -> None:
    if found[1] != size:
        raise BrokerError(f"{path} has {found[1]} octets, and the manifest says {size}")
    if found[0] != digest:
        raise BrokerError(f"{path} is damaged: its digest is not that of the manifest")

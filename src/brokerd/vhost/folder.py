"""A vhost on disk: a start loads it from its folder, and removes what a former broker left over.

    <sha1 of name>/            .vhost (its name), definitions.amqp, policies.json; .deleted while it is being deleted
        <sha1 of queue>/       one per durable queue that has held a message, or has an order journal
        transient/             queues that do not survive a restart: emptied at start
        <...>.orphan/          a queue's folder that no definition explains: it stays, and is reported

Knows nothing of the contents of a queue's folder, which store/recovery reads.
"""

import os
from collections.abc import Callable, Container
from typing import TYPE_CHECKING

from brokerd import plane
from brokerd.policies import Policies
from brokerd.store.definitions import DefinitionsLog
from brokerd.store.format import (
    DEFINITIONS_FILE,
    ORPHAN,
    TRANSIENT_FOLDER,
    VHOST_DELETED_FILE,
    VHOST_NAME_FILE,
    folder_name,
)
from brokerd.store.garbage import Garbage
from brokerd.vhost.definitions import Replay, compact, replay
from brokerd.vhost.features import Features, make_null
from brokerd.vhost.vhost import VHost

if TYPE_CHECKING:
    from brokerd.queues.queue import Queue
    from brokerd.store.disk import Disk

_HEX_DIGITS = 40
NAME_OCTETS_MAX = 4096  # of the file with a vhost's name


def load_vhost(
    name: str,
    data_dir: str,
    core: plane.Core,
    disk: "Disk",
    garbage: Garbage,
    *,
    suspect: bool,
    report: Callable[[str], None],
    recover: "Callable[[Queue], None]",
    give_features: Callable[[VHost], Features] = make_null,
    remove_files: "Callable[[Queue], object] | None" = None,
    listen: Callable[[Policies], None] | None = None,
    prepare: Callable[[VHost], None] | None = None,
) -> VHost:
    """Load the vhost with all that its folder holds.  A missing folder is made.

    ``report`` hears, in one line each, of all that was not as it should be; ``recover`` is called for each queue
    that has a folder; ``listen`` is told of the policies before any rule is in force, ``prepare`` of the vhost before
    its definitions are read.  Raises StoreError, OSError.
    """
    directory = os.path.join(data_dir, folder_name(name))
    _make_folder(name, directory, disk)
    _unmark(directory)
    disk.check_temporaries(directory)
    log = DefinitionsLog(os.path.join(directory, DEFINITIONS_FILE), disk)
    policies = Policies(directory, disk)
    if listen is not None:
        listen(policies)
    vhost = VHost(
        name, directory, core, log, give_features=give_features, policies=policies, remove_files=remove_files
    )
    if prepare is not None:
        prepare(vhost)
    replayed = _replay_log(vhost, suspect=suspect, report=report)
    folders = _sweep(directory, disk, garbage)
    _settle_folders(vhost, folders, replayed, garbage, report, recover)
    vhost.apply_rules()
    vhost.take_up_features(suspect=suspect)
    if replayed.undone and 2 * replayed.undone >= len(vhost.queues) + len(vhost.exchanges):
        compact(vhost)
    return vhost


def forgotten_folders(data_dir: str, known: Container[str], disk: "Disk") -> list[tuple[str, str]]:
    """Path and name of each vhost that has a folder, but is not ``known``.  Raises OSError."""
    found = []
    for folder in sorted(disk.names(data_dir)):
        if len(folder) == _HEX_DIGITS:
            path = os.path.join(data_dir, folder)
            try:
                octets = disk.read(os.path.join(path, VHOST_NAME_FILE), NAME_OCTETS_MAX)
            except OSError:  # It is no vhost's folder, or its name cannot be read.
                continue
            if (name := octets.decode("utf-8", "surrogateescape")) not in known:
                found.append((path, name))
    return found


def _make_folder(name: str, directory: str, disk: "Disk") -> None:
    """Make the vhost's folder, with its name in it, if it is missing."""
    path = os.path.join(directory, VHOST_NAME_FILE)
    if not disk.exists(path):
        if not disk.exists(directory):
            disk.make_directory(directory)
        disk.replace(path, name.encode("utf-8", "surrogateescape"))
        disk.sync_directory(os.path.dirname(directory))


def _replay_log(vhost: VHost, *, suspect: bool, report: Callable[[str], None]) -> Replay:
    """Queues, exchanges and bindings as the definitions log has them."""
    replayed = replay(vhost, vhost.log.load(suspect=suspect, report=report))
    vhost.deletes = replayed.undone
    for failure in replayed.failed:
        report(f"{vhost.log.path}: {failure}")
    return replayed


def _sweep(directory: str, disk: "Disk", garbage: Garbage) -> list[str]:
    """Remove what does not outlast a broker.  Returns the names of all that was in the folder."""
    names = disk.names(directory)
    if TRANSIENT_FOLDER in names:
        garbage.discard(os.path.join(directory, TRANSIENT_FOLDER))
    return names


def _settle_folders(
    vhost: VHost,
    folders: list[str],
    replayed: Replay,
    garbage: Garbage,
    report: Callable[[str], None],
    recover: "Callable[[Queue], None]",
) -> None:
    """Recover the queue of each folder; remove the folders of deleted queues, set aside those of unknown ones."""
    present = {name for name in folders if len(name) == _HEX_DIGITS}
    if not present:
        return
    for queue in vhost.queues.values():
        folder = queue.directory.rpartition("/")[2]
        if folder in present:
            present.discard(folder)
            queue.begin_recovery(vhost.policies)
            recover(queue)
    deleted = {folder_name(name) for name in replayed.deleted_queues}
    for folder in present:
        path = os.path.join(vhost.directory, folder)
        if folder in deleted:
            garbage.discard(path)
        else:
            aside = _free_name(path + ORPHAN)
            os.rename(path, aside)
            name = os.path.basename(aside)
            report(f"{path}: no queue of vhost '{vhost.name}' has its messages here; kept as {name}")


def _free_name(path: str) -> str:
    """The path, with a number behind it if something is there: loss of power may have brought a name back."""
    free, more = path, 1
    while os.path.lexists(free):
        more += 1
        free = f"{path}.{more}"
    return free


def mark_deleted(directory: str, disk: "Disk") -> None:
    """Say that all in a vhost's folder is deleted; it is on disk when this returns.  Raises OSError."""
    disk.replace(os.path.join(directory, VHOST_DELETED_FILE), b"")


def remove_deleted(name: str, data_dir: str, garbage: Garbage) -> None:
    """Remove the folder of a vhost whose deletion has begun.  Any other folder stays.  Raises OSError."""
    directory = os.path.join(data_dir, folder_name(name))
    if os.path.exists(os.path.join(directory, VHOST_DELETED_FILE)):
        garbage.discard(directory)


def _unmark(directory: str) -> None:
    """The vhost is listed, so its deletion has not happened."""
    try:
        os.unlink(os.path.join(directory, VHOST_DELETED_FILE))
    except FileNotFoundError:
        pass

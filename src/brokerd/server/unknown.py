"""Warns, at starts and reloads, of names in the data directory that are misspelt or left over, and of files that were
missing.

Knows nothing of what a permission allows, or of the contents of a vhost's folder.
"""

from logging import getLogger
from typing import TYPE_CHECKING

from brokerd.store.data_dir import NEW
from brokerd.store.json_file import named
from brokerd.vhost.folder import forgotten_folders

if TYPE_CHECKING:
    from brokerd.node import Node

log = getLogger("brokerd")


def warn_of_permissions(node: "Node") -> None:
    """Warn of permissions for users and vhosts that are not there: mostly their names are misspelt."""
    for entries in (node.permissions, node.permissions.topics):
        users = dict.fromkeys(f"'{entry.user}'" for entry in entries if entry.user not in node.users)
        vhosts = dict.fromkeys(f"'{entry.vhost}'" for entry in entries if entry.vhost not in node.vhosts)
        for what, names in (("users", users), ("vhosts", vhosts)):
            if names:
                log.warning("%s: entries without effect, because there are no such %s: %s", entries.path, what,
                            named(list(names)))


def warn_of_missing(node: "Node") -> None:
    """Warn of files that were missing from a data directory in use: limits and rights that stood in them are gone."""
    if node.data.left == NEW:
        return
    for file, default in (
        (node.permissions, "the default user may do everything in vhost '/', and no other user has any rights"),
        (node.listing, "the only vhost is '/', without limits"),
    ):
        if file.is_new:
            log.warning("%s: was missing, and is made anew: %s", file.path, default)


def warn_of_folders(node: "Node") -> None:
    """Warn of the folders of vhosts that vhosts.json does not have any more: their messages are there, but unseen."""
    for path, name in forgotten_folders(node.data.path, node.vhosts, node.disk):
        log.warning("%s: the folder of vhost '%s', which is not in vhosts.json: its queues and messages stay there, "
                    "and no client can reach them", path, name)

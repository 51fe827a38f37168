"""The deletion of a vhost, in pieces: no other client waits for it.

Its permissions go first, because a later vhost of that name must not inherit them.  Then the vhost leaves the
list, and no client finds it any more; after that its connections and queues go one by one, and its folder at last.  A
mark in the folder says that its contents are deleted: if the broker dies in between, a later vhost of that name begins
with an empty folder.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from brokerd.errors import ConnectionForced
from brokerd.operations.changing import Lasting, change_files, in_pieces
from brokerd.operations.jobs import Steps
from brokerd.operations.lists import find_vhost
from brokerd.operations.rows import DONE

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.rows import Who
    from brokerd.store.json_file import Change
    from brokerd.vhost.vhost import VHost


def delete(node: "Node", who: "Who", name: str) -> Lasting:
    """The job.  Raises OperationError (404)."""
    find_vhost(node, name)
    found: list[VHost] = []

    def plan() -> "Iterable[Change]":
        found.append(find_vhost(node, name))
        for file in (node.permissions, node.permissions.topics, node.parameters, node.listing):
            file.check_unedited()  # Else the vhost would stay, without what is struck out first.
        for entries in (node.permissions, node.permissions.topics):
            keys = entries.keys_of_vhost(name)
            if keys:
                yield entries.changed(gone=keys)
        parameters = [key for key, _ in node.parameters if key.vhost == name]
        if parameters:
            yield node.parameters.changed(gone=parameters)
        node.mark_deleted(found[0])
        yield node.listing.changed({}, [name])

    def then() -> Steps:
        vhost = found[0]
        node.begin_vhost_end(vhost)
        try:
            yield from in_pieces(empty(node, vhost))
        finally:
            node.end_vhost(vhost)
        node.tell("vhost.deleted", {"name": name}, who.user)
        return DONE

    return change_files(node, plan, then)


def empty(node: "Node", vhost: "VHost") -> Iterator[None]:
    """Close the connections, then drop the queues."""
    clients = [each for each in node.connections if each.access is not None and each.access.vhost is vhost]
    for connection in clients:
        connection.shut(ConnectionForced(f"vhost '{vhost.name}' is down"))
        yield
    for connection in clients:
        for _ in connection.leaving or ():
            yield
    vhost.close()
    for queue in list(vhost.queues.values()):
        queue.deleted = True
        queue.drop()
        yield

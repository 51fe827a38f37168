"""An operator's pause of a queue: it hands out nothing until it is resumed.

    pause    hold ──> the file ``paused`` in its folder (thread) ──> answered
    resume   the file is removed (thread) ──> go on ──> answered

The folder of a queue that does not survive a restart has no such file.  One pause or resume is under way at a time.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from brokerd.operations import OperationError, find_queue
from brokerd.operations.changing import Lasting
from brokerd.operations.jobs import Steps, Wait, in_thread
from brokerd.operations.rows import DONE
from brokerd.queues.pause import remove_pause, write_pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokerd.node import Node
    from brokerd.operations.rows import Who
    from brokerd.queues.queue import Queue


def pause(node: "Node", who: "Who", vhost: str, name: str) -> Lasting:
    """The job that pauses a queue; a paused one stays so.  Raises OperationError (404), also while it runs."""
    find_queue(node, vhost, name)
    return Lasting(node, _in_turn(node, lambda: _pause(node, who, find_queue(node, vhost, name))))


def resume(node: "Node", who: "Who", vhost: str, name: str) -> Lasting:
    """The job that ends the pause of a queue, if there is one.  Raises OperationError (404), also while it runs."""
    find_queue(node, vhost, name)
    return Lasting(node, _in_turn(node, lambda: _resume(node, who, find_queue(node, vhost, name))))


def _in_turn(node: "Node", work: "Callable[[], Steps]") -> Steps:
    yield Wait(node.changing.take)
    try:
        yield from work()
    finally:
        node.changing.give()
    return DONE


def _pause(node: "Node", who: "Who", queue: "Queue") -> Steps:
    if queue.paused_at is not None:
        return
    since = node.clock.epoch_ns() // 1_000_000
    if queue.durable:
        queue.make_directory()
    queue.hold(since)
    if queue.durable:
        error = None
        try:
            yield from in_thread(lambda: write_pause(queue.directory, since, node.disk))
        except OSError as caught:
            error = caught
        if queue.deleted:
            with suppress(OSError):  # Its folder is gone, or is that of a later queue of its name.
                remove_pause(queue.directory, node.disk)
            raise OperationError(f"no queue '{queue.name}' in vhost '{queue.vhost_name}'", 404)
        if error is not None:
            queue.hold(None)
            node.core.turn()
            raise error
    node.tell("queue.paused", {"vhost": queue.vhost_name, "name": queue.name}, who.user)


def _resume(node: "Node", who: "Who", queue: "Queue") -> Steps:
    if queue.paused_at is None:
        return
    if queue.durable:
        error = None
        try:
            yield from in_thread(lambda: remove_pause(queue.directory, node.disk))
        except FileNotFoundError:
            pass
        except OSError as caught:
            error = caught
        if queue.deleted:
            raise OperationError(f"no queue '{queue.name}' in vhost '{queue.vhost_name}'", 404)
        if error is not None:
            raise error
    queue.hold(None)
    node.core.turn()
    node.tell("queue.resumed", {"vhost": queue.vhost_name, "name": queue.name}, who.user)

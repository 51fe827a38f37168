"""A queue: where messages wait.  The data plane keeps and hands out the messages; here are the rules around them.

Name, properties and arguments do not change after declare.  ``bindings`` is kept
current by the exchanges.  ``owner`` is the connection that an exclusive queue
belongs to.  Knows nothing of permissions, channels, or of other queues.
"""

import os
from typing import TYPE_CHECKING, Any, Protocol

from brokerd import plane
from brokerd.arguments import COMPARED_QUEUE_ARGUMENTS, first_difference, first_fault
from brokerd.errors import PreconditionFailed, ResourceLocked

if TYPE_CHECKING:
    from brokerd.exchanges import Binding

NAME_FILE = ".queue"
NO_ARGUMENTS: dict[str, Any] = {}


class Owner(Protocol):
    """The connection an exclusive queue belongs to."""

    def disown(self, queue: "Queue") -> None:
        """The queue is deleted."""


class Queue(plane.Queue):
    """One queue, whole: there is no second object behind it."""

    __slots__ = ("arguments", "auto_delete", "bindings", "deleted", "name", "owner", "vhost_name")

    def __init__(
        self,
        core: plane.Core,
        directory: str,
        *,
        name: str,
        vhost_name: str,
        durable: bool,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        owner: Owner | None = None,
    ) -> None:
        super().__init__(core, directory, durable=durable)
        self.name = name
        self.vhost_name = vhost_name
        self.auto_delete = auto_delete
        self.arguments = arguments or NO_ARGUMENTS
        self.owner = owner
        self.bindings: list[Binding] = []
        self.deleted = False

    def __str__(self) -> str:
        return f"queue '{self.name}' in vhost '{self.vhost_name}'"

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"

    @property
    def exclusive(self) -> bool:
        """Belongs to one connection and ends with it."""
        return self.owner is not None

    def make_directory(self) -> None:
        """Make the queue's folder, with its name in it.  Raises OSError."""
        try:
            os.mkdir(self.directory)
        except FileNotFoundError:  # the folder of all transient queues of the vhost
            os.makedirs(self.directory)
        except FileExistsError:
            pass
        with open(os.path.join(self.directory, NAME_FILE), "wb") as file:
            file.write(self.name.encode("utf-8", "surrogateescape"))

    # --- rules

    def check_access(self, connection: object) -> None:
        """Refuse an exclusive queue to all connections but its owner (405)."""
        if self.owner is not None and self.owner is not connection:
            raise self.locked()

    def locked(self) -> ResourceLocked:
        """The refusal of a queue that belongs to another connection, or did not belong to this one before."""
        return ResourceLocked(
            f"cannot obtain exclusive access to locked {self}. It could be originally declared on another "
            "connection or the exclusive property value does not match that of the original declaration."
        )

    def check_equivalent(
        self, *, durable: bool, auto_delete: bool, arguments: dict[str, Any], owner: object | None
    ) -> None:
        """Refuse a declare that would have made another queue (405 or 406, naming the first difference)."""
        if self.owner is not owner:
            raise self.locked()
        if durable is not self.durable:
            raise _differs("durable", self, durable, self.durable)
        if auto_delete is not self.auto_delete:
            raise _differs("auto_delete", self, auto_delete, self.auto_delete)
        if arguments or self.arguments:
            difference = first_difference(self.arguments, arguments, COMPARED_QUEUE_ARGUMENTS)
            if difference is not None:
                raise PreconditionFailed(f"inequivalent arg {difference.format(self)}")

    @property
    def exclusively_consumed(self) -> bool:
        """One consumer has asked to be the only one."""
        consumers = self.consumers or ()
        return len(consumers) == 1 and consumers[0].exclusive


def _differs(field: str, queue: Queue, received: bool, current: bool) -> PreconditionFailed:
    shown = ("false", "true")
    return PreconditionFailed(
        f"inequivalent arg '{field}' for {queue}: received '{shown[received]}' but current is '{shown[current]}'"
    )


def check_arguments(name: str, vhost_name: str, arguments: dict[str, Any]) -> None:
    """Refuse arguments that no queue can have (406, as RabbitMQ words it)."""
    fault = first_fault(arguments)
    if fault is not None:
        argument, reason = fault
        raise PreconditionFailed(f"invalid arg '{argument}' for queue '{name}' in vhost '{vhost_name}': {reason}")

"""What a vhost is given besides queues and exchanges: dead letters, delays, duplicates, replies, firehose, events.

All of it is there from the start, so that no other module asks whether it is.  Dead letters, delays and duplicates are
small doors here; what stands behind one is imported and made at its first use, since most vhosts never need it.

    on_demand(doors, ...)    the features of a vhost in a broker
    alone(vhost)             those of one that stands alone: nothing dead-lettered, delayed or known as a duplicate

Decides nothing: a door passes on what it is asked.
"""

from collections.abc import Callable, Iterable, Mapping
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from brokerd.clock import Clock
from brokerd.vhost.direct_reply import Replies
from brokerd.vhost.events import Events
from brokerd.vhost.firehose import Firehose

if TYPE_CHECKING:
    from brokerd.exchanges import Exchange, LazyProperties
    from brokerd.queues.queue import Queue
    from brokerd.store.disk import Disk
    from brokerd.store.key_files import KeyFiles
    from brokerd.store.key_log import KeyLog
    from brokerd.vhost.dead_letters import DeadLetters
    from brokerd.vhost.delays import Delays
    from brokerd.vhost.duplicates import Check, Duplicates
    from brokerd.vhost.vhost import VHost


log = getLogger("brokerd")


class Timer(Protocol):
    """What ``Doors.call_at`` returns."""

    def cancel(self) -> object: ...


CallAt = Callable[[int, Callable[[], object]], Timer]  # ns since the epoch


class Doors(NamedTuple):
    """What features may ask of the broker around their vhost."""

    epoch_ns: Callable[[], int]
    wait: Callable[..., object]  # GroupCommit.wait(callback, log=None)
    call_at: CallAt


class NoDeadLetters:
    """Dead messages are dropped."""

    __slots__ = ()

    def handle_dead(
        self, queue: Any, reason: str, seq: int, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes
    ) -> bool:
        """What queues ask of ``on_dead``: see dead_letters."""
        return True

    def retry(self) -> None:
        """Something that messages may go to has come to be."""

    def close(self) -> None:
        """No timer runs any more."""


class DeadLettersOnDemand(NoDeadLetters):
    """The door to dead_letters."""

    __slots__ = ("_doors", "_made", "_vhost")

    def __init__(self, vhost: "VHost", doors: Doors) -> None:
        self._vhost = vhost
        self._doors = doors
        self._made: DeadLetters | None = None

    def handle_dead(
        self, queue: Any, reason: str, seq: int, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes
    ) -> bool:
        if self._made is None:
            from brokerd.vhost.dead_letters import DeadLetters

            self._made = DeadLetters(self._vhost, **self._doors._asdict())
        return self._made.handle_dead(queue, reason, seq, exchange, routing_key, properties, body)

    def retry(self) -> None:
        if self._made is not None:
            self._made.retry()

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


class NoDelays:
    """Nothing is delayed: what a delayed exchange should hold back goes on at once."""

    __slots__ = ()

    def adopt(self, exchange: "Exchange") -> None:
        """An exchange that delays was made."""

    def open(self) -> None:
        """The vhost was read from disk."""

    def forget_exchange(self, exchange: "Exchange") -> None:
        """What the exchange holds back goes with it."""

    def close(self) -> None:
        """No timer runs any more."""


class DelaysOnDemand(NoDelays):
    """The door to delays."""

    __slots__ = ("_doors", "_made", "_vhost")

    def __init__(self, vhost: "VHost", doors: Doors) -> None:
        self._vhost = vhost
        self._doors = doors
        self._made: Delays | None = None

    def get(self) -> "Delays":
        """What stands behind the door."""
        if self._made is None:
            from brokerd.vhost.delays import Delays

            self._made = Delays(self._vhost, **self._doors._asdict())
        return self._made

    def adopt(self, exchange: "Exchange") -> None:
        self.get().adopt(exchange)  # type: ignore[arg-type]  # One that intercepts is a delayed one.

    def open(self) -> None:
        self.get().open()

    def forget_exchange(self, exchange: "Exchange") -> None:
        self.get().forget_exchange(exchange)  # type: ignore[arg-type]

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


class NoDuplicates:
    """No message is known to be a duplicate."""

    __slots__ = ("_directory", "_disk", "_epoch_ns", "_files")

    def __init__(self, directory: str, epoch_ns: Callable[[], int], disk: "Disk | None" = None) -> None:
        self._directory = directory
        self._epoch_ns = epoch_ns
        self._disk = disk
        self._files: KeyFiles | None = None

    def key_files(self) -> "KeyFiles":
        """Where keys of messages are, if their records may be gone."""
        if self._files is None:
            from brokerd.store.disk import Disk
            from brokerd.store.key_files import KeyFiles

            self._files = KeyFiles(self._directory, self._disk or Disk(), log.warning, self._epoch_ns)
        return self._files

    @property
    def asked(self) -> bool:
        """A queue or an exchange asks for keys, or has."""
        return self._files is not None

    def sweep(self) -> None:
        """Remove files of keys that are over: to be called now and then."""
        if self._files is not None:
            self._files.sweep()

    def adopt(self, exchange: "Exchange", *, new: bool = False, suspect: bool = False) -> None:
        """An exchange that asks for keys was made (``new``) or read from disk."""

    def open(self, queues: "Iterable[Queue]", *, suspect: bool) -> None:
        """All exchanges were read from disk: see Duplicates.open."""

    def mark_all_synced(self) -> None:
        """Everything that was read at start, or written before ``close``, is on disk by now.  Raises OSError."""

    def forget_exchange(self, name: str) -> None:
        """Its keys go with it."""

    def asks(self, exchange: "Exchange") -> bool:
        """Whether ``exchange`` asks for the keys of messages."""
        return False

    def is_duplicate(self, exchange: "Exchange", headers: Mapping[str, Any] | None) -> bool:
        """Whether ``exchange``, which asks for keys, knows that of a message with these headers."""
        return False

    def check(
        self, exchange: "Exchange | None", queues: "tuple[Queue, ...]", properties: "LazyProperties", *,
        taken: bool = False,
    ) -> "Check | None":
        """What takes part in a publish that a queue or ``exchange`` asks a key of: see Duplicates.check."""
        return None

    def close(self) -> None:
        """The broker stops."""


class DuplicatesOnDemand(NoDuplicates):
    """The door to duplicates."""

    __slots__ = ("_follow", "_made")

    def __init__(
        self, directory: str, epoch_ns: Callable[[], int], disk: "Disk | None" = None,
        follow: "Callable[[KeyLog], object] | None" = None,
    ) -> None:  # fmt: skip
        """``follow`` is GroupCommit.follow; None: nothing is synced."""
        super().__init__(directory, epoch_ns, disk)
        self._follow = follow or _follow_nothing
        self._made: Duplicates | None = None

    def get(self) -> "Duplicates":
        """What stands behind the door."""
        if self._made is None:
            from brokerd.vhost.duplicates import Duplicates

            self._made = Duplicates(self._directory, self.key_files(), self._epoch_ns, self._follow)
        return self._made

    def adopt(self, exchange: "Exchange", *, new: bool = False, suspect: bool = False) -> None:
        self.get().adopt(exchange, new=new, suspect=suspect)

    def open(self, queues: "Iterable[Queue]", *, suspect: bool) -> None:
        if self._made is not None:
            self._made.open(queues, suspect=suspect)

    def mark_all_synced(self) -> None:
        if self._made is not None:
            self._made.mark_all_synced()

    def forget_exchange(self, name: str) -> None:
        if self._made is not None:
            self._made.forget_exchange(name)

    def asks(self, exchange: "Exchange") -> bool:
        return self._made is not None and exchange.name in self._made.exchanges

    def is_duplicate(self, exchange: "Exchange", headers: Mapping[str, Any] | None) -> bool:
        return self.get().exchanges[exchange.name].is_duplicate(headers)

    def check(
        self, exchange: "Exchange | None", queues: "tuple[Queue, ...]", properties: "LazyProperties", *,
        taken: bool = False,
    ) -> "Check | None":
        return self.get().check(exchange, queues, properties, taken=taken)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


def _follow_nothing(log: object) -> None:
    """Nothing is synced."""


class Features(NamedTuple):
    """What one vhost is given."""

    dead_letters: NoDeadLetters
    delays: NoDelays
    duplicates: NoDuplicates
    replies: Replies
    firehose: Firehose
    events: Events


def alone(vhost: "VHost") -> Features:
    """For a vhost without a broker around it."""
    clock = Clock()
    duplicates = NoDuplicates(vhost.directory, clock.epoch_ns)
    return Features(NoDeadLetters(), NoDelays(), duplicates, Replies(), Firehose(vhost, ""), Events(clock, ""))


def on_demand(
    doors: Doors, events: Events, node_name: str, disk: "Disk | None" = None,
    follow: "Callable[[KeyLog], object] | None" = None,
) -> "Callable[[VHost], Features]":  # fmt: skip
    """For the vhosts of a broker; ``follow`` is GroupCommit.follow."""

    def give(vhost: "VHost") -> Features:
        return Features(
            DeadLettersOnDemand(vhost, doors),
            DelaysOnDemand(vhost, doors),
            DuplicatesOnDemand(vhost.directory, doors.epoch_ns, disk, follow),
            Replies(),
            Firehose(vhost, node_name),
            events,
        )

    return give

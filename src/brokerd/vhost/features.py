"""The features of a vhost besides queues and exchanges: dead letters, delays, duplicates, replies, firehose, events.

A vhost has all of them from the start, so that no other module asks whether one exists.  Dead letters, delays and
duplicates are stand-ins here: each imports and makes the real feature at its first use, since most vhosts never need
it.

    make_on_demand(...)    the features of a vhost in a broker
    make_null(vhost)       those of a vhost that stands alone: it dead-letters, delays and deduplicates nothing

Decides nothing: a stand-in passes on each call.
"""

from collections.abc import Callable, Iterable
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from brokerd import plane
from brokerd.clock import Clock
from brokerd.vhost.direct_reply import Replies
from brokerd.vhost.events import Events
from brokerd.vhost.firehose import Firehose

if TYPE_CHECKING:
    from brokerd.exchanges import Exchange, LazyProperties
    from brokerd.queues.dead_letter import DeadLetterRule
    from brokerd.queues.deduplication import Deduplication
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
    """The result of ``Services.call_at``."""

    def cancel(self) -> object: ...


CallAt = Callable[[int, Callable[[], object]], Timer]  # ns since the epoch


class Services(NamedTuple):
    """The functions of the broker that features use."""

    epoch_ns: Callable[[], int]
    wait: Callable[..., object]  # GroupCommit.wait(callback, log=None)
    call_at: CallAt


class NoDeadLetters:
    """Dead messages are dropped."""

    __slots__ = ()

    def handle_dead(
        self, queue: Any, reason: str, seq: int, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes
    ) -> bool:
        """Called by queues for each dead message: see dead_letters.  True: the queue settles the message."""
        return True

    def letters_of(self, name: str, rule: "DeadLetterRule | None") -> plane.Letters | None:
        """How the data plane makes the dead letters of the queue of that name; None: it asks for each."""
        return None

    def settle_when_synced(self, queue: Any, upto: int) -> None:
        """Called by queues for dead letters that the data plane has stored at least once: see dead_letters."""
        queue.settle_letters(upto)

    def remove_when_synced(self, queue: Any, seq: int) -> None:
        """Have a message removed that a newer one replaces, as soon as that one is on disk: see dead_letters."""
        if queue.set_aside(seq) and queue.release(seq):
            queue.remove(seq)

    def forget_routes(self) -> None:
        """Where messages go has changed."""

    def retry(self) -> None:
        """Try waiting dead letters again: a new queue, exchange or binding may take them."""

    def close(self) -> None:
        """Stop all timers."""


class DeadLettersOnDemand(NoDeadLetters):
    """Makes dead_letters when the first message dies."""

    __slots__ = ("_made", "_services", "_vhost")

    def __init__(self, vhost: "VHost", services: Services) -> None:
        self._vhost = vhost
        self._services = services
        self._made: DeadLetters | None = None

    def handle_dead(
        self, queue: Any, reason: str, seq: int, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes
    ) -> bool:
        return self._dead_letters().handle_dead(queue, reason, seq, exchange, routing_key, properties, body)

    def _dead_letters(self) -> "DeadLetters":
        if self._made is None:
            from brokerd.vhost.dead_letters import DeadLetters

            self._made = DeadLetters(self._vhost, **self._services._asdict())
        return self._made

    def letters_of(self, name: str, rule: "DeadLetterRule | None") -> plane.Letters | None:
        return None if rule is None else self._dead_letters().letters_of(name, rule)

    def settle_when_synced(self, queue: Any, upto: int) -> None:
        self._dead_letters().settle_when_synced(queue, upto)

    def remove_when_synced(self, queue: Any, seq: int) -> None:
        self._dead_letters().remove_when_synced(queue, seq)

    def forget_routes(self) -> None:
        if self._made is not None:
            self._made.forget_routes()

    def retry(self) -> None:
        if self._made is not None:
            self._made.retry()

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


class NoDelays:
    """Nothing is delayed: an exchange routes each message at once."""

    __slots__ = ()

    def adopt(self, exchange: "Exchange") -> None:
        """Take in an exchange that delays."""

    def open(self) -> None:
        """Find the messages that wait, after the vhost was read from disk."""

    def forget_exchange(self, exchange: "Exchange") -> None:
        """Drop the messages that a deleted exchange holds back."""

    def forget_routes(self) -> None:
        """Where messages go has changed."""


class DelaysOnDemand(NoDelays):
    """Makes delays when the first exchange needs them."""

    __slots__ = ("_made", "_services", "_vhost")

    def __init__(self, vhost: "VHost", services: Services) -> None:
        self._vhost = vhost
        self._services = services
        self._made: Delays | None = None

    def get(self) -> "Delays":
        """The real feature, made by the first call."""
        if self._made is None:
            from brokerd.vhost.delays import Delays

            self._made = Delays(self._vhost, epoch_ns=self._services.epoch_ns, wait=self._services.wait)
        return self._made

    def adopt(self, exchange: "Exchange") -> None:
        self.get().adopt(exchange)  # type: ignore[arg-type]  # One that intercepts is a delayed one.

    def open(self) -> None:
        self.get().open()

    def forget_exchange(self, exchange: "Exchange") -> None:
        self.get().forget_exchange(exchange)  # type: ignore[arg-type]

    def forget_routes(self) -> None:
        if self._made is not None:
            self._made.forget_routes()


class NoDuplicates:
    """No message is known to be a duplicate."""

    __slots__ = ("_directory", "_disk", "_epoch_ns", "_files")

    def __init__(self, directory: str, epoch_ns: Callable[[], int], disk: "Disk | None" = None) -> None:
        self._directory = directory
        self._epoch_ns = epoch_ns
        self._disk = disk
        self._files: KeyFiles | None = None

    def key_files(self) -> "KeyFiles":
        """The key files of the vhost, for keys of messages without a record."""
        if self._files is None:
            from brokerd.store.disk import Disk
            from brokerd.store.key_files import KeyFiles

            self._files = KeyFiles(self._directory, self._disk or Disk(), log.warning, self._epoch_ns)
        return self._files

    @property
    def asked(self) -> bool:
        """Whether a queue or an exchange has, or had, a deduplication rule."""
        return self._files is not None

    def sweep(self) -> None:
        """Remove the files of keys that have expired.  Called now and then."""
        if self._files is not None:
            self._files.sweep()

    def adopt(self, exchange: "Exchange", *, new: bool = False, suspect: bool = False) -> None:
        """Take in an exchange with a rule that was made (``new``) or read from disk."""

    def open(self, queues: "Iterable[Queue]", *, suspect: bool) -> None:
        """Enter the keys of all exchanges that were read from disk: see Duplicates.open."""

    def mark_all_synced(self) -> None:
        """Note that all keys that were read at start, or written before ``close``, are on disk.  Raises OSError."""

    def forget_exchange(self, name: str) -> None:
        """Remove the keys of a deleted exchange."""

    def asks(self, exchange: "Exchange") -> bool:
        """Whether ``exchange`` has a deduplication rule."""
        return False

    def keys_of(self, exchange: str) -> "Deduplication | None":
        """The rule and the window of an exchange; None: it has no rule."""
        return None

    def is_for_plane(self, exchange: "Exchange", queues: "tuple[Queue, ...]", properties: bytes) -> bool:
        """Whether the data plane can look for duplicates of this publish: see Duplicates.is_for_plane."""
        return False

    def window_of(self, exchange: "Exchange") -> plane.ExchangeWindow | None:
        """The keys that an exchange knows; None: it has no rule."""
        return None

    def check(
        self, exchange: "Exchange | None", queues: "tuple[Queue, ...]", properties: "LazyProperties", *,
        routing_key: str = "", taken: bool = False,
    ) -> "Check | None":
        """The participant that looks for duplicates in a publish, or None: see Duplicates.check."""
        return None

    def close(self) -> None:
        """Close all files, because the broker stops."""


class DuplicatesOnDemand(NoDuplicates):
    """Makes duplicates when the first queue or exchange needs them."""

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
        """The real feature, made by the first call."""
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

    def keys_of(self, exchange: str) -> "Deduplication | None":
        return None if self._made is None else self._made.exchanges.get(exchange)

    def is_for_plane(self, exchange: "Exchange", queues: "tuple[Queue, ...]", properties: bytes) -> bool:
        return self.get().is_for_plane(exchange, queues, properties)

    def window_of(self, exchange: "Exchange") -> plane.ExchangeWindow | None:
        return None if self._made is None else self._made.window_of(exchange)

    def check(
        self, exchange: "Exchange | None", queues: "tuple[Queue, ...]", properties: "LazyProperties", *,
        routing_key: str = "", taken: bool = False,
    ) -> "Check | None":
        return self.get().check(exchange, queues, properties, routing_key=routing_key, taken=taken)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


def _follow_nothing(log: object) -> None:
    """Follow no log: this vhost does not sync."""


class Features(NamedTuple):
    """All features of one vhost."""

    dead_letters: NoDeadLetters
    delays: NoDelays
    duplicates: NoDuplicates
    replies: Replies
    firehose: Firehose
    events: Events


def make_null(vhost: "VHost") -> Features:
    """For a vhost without a broker around it."""
    clock = Clock()
    duplicates = NoDuplicates(vhost.directory, clock.epoch_ns)
    return Features(NoDeadLetters(), NoDelays(), duplicates, Replies(), Firehose(vhost, ""), Events(clock, ""))


def make_on_demand(
    services: Services, events: Events, node_name: str, disk: "Disk | None" = None,
    follow: "Callable[[KeyLog], object] | None" = None,
) -> "Callable[[VHost], Features]":  # fmt: skip
    """For the vhosts of a broker; ``follow`` is GroupCommit.follow."""

    def give(vhost: "VHost") -> Features:
        return Features(
            DeadLettersOnDemand(vhost, services),
            DelaysOnDemand(vhost, services),
            DuplicatesOnDemand(vhost.directory, services.epoch_ns, disk, follow),
            Replies(),
            Firehose(vhost, node_name),
            events,
        )

    return give

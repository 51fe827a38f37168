"""A queue: where messages wait.  The data plane stores and delivers the messages; here are the rules around them.

Name, properties and arguments do not change after declare.  Arguments and policies together make ``rules``; the data
plane is told when they change.  The exchanges keep ``bindings`` up to date.  ``owner`` is the connection that an
exclusive queue belongs to.  Knows nothing of permissions, channels, or of other queues.
"""

import os
from collections.abc import Callable, Generator, Iterator
from logging import getLogger
from typing import TYPE_CHECKING, Any, Protocol, Self
from weakref import WeakSet

from brokerd import plane
from brokerd.arguments import COMPARED_QUEUE_ARGUMENTS, fault, first_difference, queue_type
from brokerd.errors import NotFound, PreconditionFailed, ResourceLocked
from brokerd.pieces import add_work, do_first_piece
from brokerd.policies import NONE_APPLY, Effective
from brokerd.queues.redriven import read_redriven
from brokerd.queues.rules import PLAIN, Rules, asks_for_journal, max_priority_of, plane_rules, rules_of

if TYPE_CHECKING:
    from brokerd.exchanges.exchange import Incoming
    from brokerd.policies import Policies
    from brokerd.queues.dead_letter import DeadLetterRule
    from brokerd.queues.deduplication import Deduplication
    from brokerd.queues.deduplication import Rule as DeduplicationRule
    from brokerd.queues.tracked import Tracked
    from brokerd.store.key_files import KeyFiles

log = getLogger("brokerd")

NAME_FILE = ".queue"
STREAM_SEGMENT_OCTETS_MAX = 3_000_000_000  # RabbitMQ's limit of the argument
WAITING_ROOM_PREFIX = "amq.delayed."  # of queues in which delayed messages wait: see vhost/delays
NO_ARGUMENTS: dict[str, Any] = {}
PURGED_AT_ONCE = 1000  # messages, in one piece
UNMAPPED_AT_ONCE = 8  # segments, in one piece: some 0.3 ms
UNLISTED_AT_ONCE = 1000  # messages that wait by a former rule of groups, in one piece


class Owner(Protocol):
    """The connection an exclusive queue belongs to."""

    def disown(self, queue: "Queue") -> None:
        """Forget a queue that is deleted."""


class DeadLetters(Protocol):
    """Where dead messages go."""

    def handle_dead(
        self, queue: Any, reason: str, seq: int, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes
    ) -> bool:
        """The contract of plane.Queue.on_dead."""

    def letters_of(self, name: str, rule: "DeadLetterRule | None") -> plane.Letters | None:
        """How the data plane makes the dead letters of the queue of that name; None: it asks for each."""

    def settle_when_synced(self, queue: Any, upto: int) -> None:
        """The contract of plane.Queue.on_letters_stored."""

    def remove_when_synced(self, queue: Any, seq: int) -> None:
        """The contract of plane.Queue.on_replaced."""


class Getter(Protocol):
    """A channel that took messages by basic.get."""

    left: bool  # whether it has closed


class Firehose(Protocol):
    """An observer of the deliveries of a queue: see vhost/firehose."""

    def delivered(
        self, channel: Any, queue: Any, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes,
        redelivered: bool,
    ) -> None: ...  # fmt: skip


class SideFile(Protocol):
    """Notes the consumers of a queue with an order journal: see upkeep/retention."""

    def note_consumer(self, consumer: Any) -> None:
        """Note a new consumer."""

    def note_consumer_gone(self, consumer: Any) -> None: ...


class Queue(plane.Queue):
    """One queue, whole: there is no second object behind it."""

    __slots__ = (
        "arguments",
        "auto_delete",
        "bindings",
        "dead_letters",
        "deduplication",
        "deleted",
        "effective",
        "firehose",
        "getters",
        "has_folder",
        "key_files",
        "missed_told",
        "name",
        "owner",
        "parks_of",
        "paused_at",
        "redriven",
        "regrouping",
        "rules",
        "side_file",
        "stream",
        "tracked",
        "vhost_name",
    )  # fmt: skip

    def __new__(
        cls, core: plane.Core, directory: str, *, durable: bool, arguments: dict[str, Any] | None = None, **_: Any
    ) -> Self:
        """The data plane makes its priority levels before ``__init__``."""
        levels = max_priority_of(arguments) if arguments and "x-max-priority" in arguments else 0
        make: Callable[..., Self] = plane.Queue.__new__
        return make(cls, core, directory, durable=durable, max_priority=levels)

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
        self.bindings: Incoming = []
        self.deleted = self.has_folder = False
        self.rules: Rules = PLAIN  # one object for all queues without rules: they cost nothing
        self.dead_letters: DeadLetters | None = None
        self.firehose: Firehose | None = None  # sees deliveries while ``reports_deliveries``
        self.getters: WeakSet[Getter] | None = None  # channels that took messages by basic.get, while they exist
        self.deduplication: Deduplication | None = None  # has the rule that is in ``rules``
        self.key_files: Callable[[], KeyFiles] | None = None  # the vhost's: asked when a rule is put in force
        self.effective: Effective = NONE_APPLY  # the policies in force
        self.redriven: list[int] | None = None  # messages that stand before later ones of their groups; None: not read
        self.parks_of: plane.Groups | None = None  # the rule under which parked groups were looked for
        self.regrouping = False  # another rule of groups is being put in force
        self.paused_at: int | None = None  # ms since 1970: an operator has paused it; None: it is not
        self.side_file: SideFile | None = None  # notes consumers while there is an order journal
        self.stream: plane.Stream | None = None  # what serves the readers of a stream; None: the queue is no stream
        if queue_type(self.arguments) == "stream":
            self.gate = self.stream = plane.Stream()
        self.missed_told = 0  # messages that readers of a stream missed, as far as the log was told
        self.tracked: Tracked | None = None  # offsets that a stream keeps; None: not asked for since start

    def __str__(self) -> str:
        return f"queue '{self.name}' in vhost '{self.vhost_name}'"

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"

    @property
    def exclusive(self) -> bool:
        """Belongs to one connection and ends with it."""
        return self.owner is not None

    @property
    def kind(self) -> str:
        """The queue's type, as policies name it."""
        return kind_of(self.arguments)

    def note_getter(self, channel: Getter) -> None:
        """Note that ``channel`` has taken a message by basic.get."""
        if self.getters is None:
            self.getters = WeakSet()
        self.getters.add(channel)

    @property
    def getter_count(self) -> int:
        """How many open channels have taken messages by basic.get."""
        return sum([not channel.left for channel in self.getters or ()])

    def make_directory(self) -> None:
        """Make the queue's folder, with its name in it.  Raises OSError."""
        self.has_folder = True
        try:
            os.mkdir(self.directory)
        except FileNotFoundError:  # the folder of all transient queues of the vhost
            os.makedirs(self.directory)
        except FileExistsError:
            pass
        with open(os.path.join(self.directory, NAME_FILE), "wb") as file:
            file.write(self.name.encode("utf-8", "surrogateescape"))

    def renew_name(self) -> None:
        """Write the name into an existing folder, if a power cut took the name.  Raises OSError."""
        try:
            with open(os.path.join(self.directory, NAME_FILE), "rb") as file:
                found = file.read()
        except FileNotFoundError:
            if not os.path.isdir(self.directory):
                return
            found = b""
        if found != self.name.encode("utf-8", "surrogateescape"):
            self.make_directory()

    # --- rules

    @property
    def policy(self) -> str | None:
        """The name of the policy in force."""
        return self.effective.policy

    @property
    def has_own_rules(self) -> bool:
        """Whether ``apply_rules`` has something to do even where there are no policies."""
        return bool(self.arguments) or self.rules is not PLAIN or self.effective is not NONE_APPLY

    def apply_rules(self, policies: "Policies | None") -> None:
        """Put arguments and policies in force: after the queue is made or recovered, and when policies change."""
        self.effective = self._effective(policies) if policies else NONE_APPLY
        definition = self.effective.definition
        if not self.arguments and not definition and self.rules is PLAIN:
            return
        rules, before = rules_of(self.arguments, definition), self.rules
        if rules == before:
            return
        self.rules = rules
        if rules.deduplication != before.deduplication:
            self._deduplicate(rules.deduplication)
        arguments = plane_rules(rules)
        if arguments != plane_rules(before):
            self.set_rules(**arguments)
        if self.stream is not None and rules.stream != before.stream:
            from brokerd.queues.stream import put_in_force, retain_in_pieces

            if put_in_force(self.stream, rules.stream):
                add_work(self.core, retain_in_pieces(self), _nothing)
        if rules.dead_letter != before.dead_letter and self.dead_letters is not None:
            self.letters = self.dead_letters.letters_of(self.name, rules.dead_letter)
        if rules.group != before.group:
            self._group(rules)
        if (rules.retry, rules.limit_stops, rules.group) != (before.retry, before.limit_stops, before.group):
            self._set_retry(rules)
        if rules.journal or before.journal:
            self._switch_journal(rules, policies)
        if rules.expires_ms != before.expires_ms and policies is not None and policies.on_expires is not None:
            policies.on_expires(self)

    def _set_retry(self, rules: Rules) -> None:
        """Let returned messages wait as the rules say, and the queue stop at one that has failed too often.  Without
        such a rule all that waits is ready again; only groups that are parked stay so until they are released."""
        if isinstance(self.gate, plane.Groups):
            rule = rules.retry.of_gate() if rules.retry is not None else {}
            self.gate.set_rule(**{name: value for name, value in rule.items() if name != "jitter"})
            return
        if self.gate is not None and not isinstance(self.gate, plane.Retry):
            return  # It is out of service, or another feature decides what goes out.
        if rules.retry is None and not rules.limit_stops:
            self.gate = None
            return
        gate = self.gate or plane.Retry()
        gate.set_rule(**(rules.retry.of_gate() if rules.retry is not None else {}))
        self.gate = gate

    def _effective(self, policies: "Policies") -> Effective:
        """The policies that apply; to waiting rooms none does."""
        return NONE_APPLY if self.name.startswith(WAITING_ROOM_PREFIX) else policies.effective(self.name, self.kind)

    def hold(self, paused_at: int | None) -> None:
        """Hand out nothing from now on, because an operator has paused the queue; None: go on, if nothing else holds
        it."""
        self.paused_at = paused_at
        self.paused = paused_at is not None or self.lost or self.regrouping

    # --- message groups

    def _group(self, rules: Rules) -> None:
        """Put another rule of groups in force.  A queue that is out of service keeps its gate."""
        gate = self.gate
        if gate is not None and not isinstance(gate, plane.Groups | plane.Retry):
            return
        if isinstance(gate, plane.Groups) and gate.waiting > UNLISTED_AT_ONCE:
            if not self.regrouping:
                self.regrouping = True
                add_work(self.core, self._regroup(gate), _nothing)
            return
        if rules.group is None:
            self.gate = None
            return
        from brokerd.queues.groups import gate_of  # Few queues ask for it.

        self.gate = gate_of(rules.group, self.max_priority)
        self._put_redriven_back()

    def _regroup(self, gate: plane.Groups) -> Iterator[None]:
        """Put another rule of groups in force where many messages wait by the former.  Nothing goes out meanwhile."""
        self.paused = True
        while not self.deleted and self.gate is gate and not gate.unlist(UNLISTED_AT_ONCE):
            yield
        self.regrouping = False
        self.hold(self.paused_at)
        if not self.deleted:
            self._group(self.rules)
            self._set_retry(self.rules)

    def _put_redriven_back(self) -> None:
        """Messages that were redriven stand in their groups before any other is looked at."""
        if self.redriven is None:
            self.redriven = read_redriven(self.directory)
        self.put_redriven_back(self.redriven)

    def put_redriven_back(self, seqs: list[int]) -> None:
        """Those at which groups are parked go before: what was redriven waits with its group."""
        groups = self.groups
        if groups is None or not seqs:
            return
        for _ in self.find_parked():
            pass
        for seq in seqs:
            groups.put_back(seq)

    def find_parked(self) -> Iterator[None]:
        """After a start, find the groups that were parked before it, however far behind their messages are."""
        groups = self.groups
        if groups is None or self.parks_of is groups:
            return
        for segment in self.segments():
            for seq in plane.parked_in_segment(self, segment["number"], segment["level"]):
                groups.put_back(seq)
            yield
        self.parks_of = groups

    def add_redriven(self, seqs: list[int]) -> list[int]:
        """These messages stand before later ones of their groups, too; all that do, for ``write_redriven``."""
        lowest = min([segment["base_seq"] for segment in self.segments()], default=0)
        self.redriven = [seq for seq in [*(self.redriven or ()), *seqs] if seq >= lowest]
        return self.redriven

    @property
    def groups(self) -> plane.Groups | None:
        """The queue's message groups; None: it has none."""
        gate = self.gate
        return gate if isinstance(gate, plane.Groups) else None

    @property
    def message_count(self) -> int:
        """Messages that are ready, and those that wait in their groups."""
        gate = self.gate
        return self.ready + (gate.waiting if isinstance(gate, plane.Groups) else 0)

    def purge_in_pieces(self) -> Generator[None, None, int]:
        """Drop the messages that are ready, or wait in their groups, by now.  Returns how many."""
        below, dropped, whole = self.next_seq, 0, False
        while not whole and not self.deleted:
            if self.stream is not None:
                some, whole = self.stream.purge(below, 1)
            else:
                some, whole = plane.purge_some(self, below, PURGED_AT_ONCE)
            dropped += some
            if not whole:
                yield
        return dropped

    def unmap_in_pieces(self) -> Iterator[None]:
        """Let the files go that a stream's readers have mapped, which takes long, before the queue goes at once."""
        offset = 1
        while offset and self.stream is not None and not self.deleted:
            offset = self.stream.unmap(offset, UNMAPPED_AT_ONCE)
            if offset:
                yield

    def found_pause(self) -> None:
        """Its folder says that it was paused."""
        from brokerd.queues.pause import read_pause  # Few queues are.

        self.hold(read_pause(self.directory))

    # --- the order journal

    def _switch_journal(self, rules: Rules, policies: "Policies | None") -> None:
        if not self.durable:
            return  # Only declare refuses this combination; a policy may match any queue.
        if self.journaled is not rules.journal:
            self.set_journal(rules.journal)
        if policies is not None and policies.on_journal is not None:
            policies.on_journal(self)

    # --- duplicates

    def begin_recovery(self, policies: "Policies | None") -> None:
        """Before its segments are recovered: what they are kept for is known."""
        self.has_folder = True
        if not self.arguments and not policies:
            return
        definition = self._effective(policies).definition if policies else NO_ARGUMENTS
        if asks_for_journal(self.arguments, definition):
            self.set_journal(True)
        rules = rules_of(self.arguments, definition)
        if rules.deduplication is not None:
            self._deduplicate(rules.deduplication)
        if rules.retain_ms is not None or rules.retain_octets is not None:
            self.set_rules(**{name: value for name, value in plane_rules(rules).items() if name.startswith("retain_")})

    def _deduplicate(self, rule: "DeduplicationRule | None") -> None:
        """Put another rule in force; without one the queue forgets its keys."""
        known = self.deduplication
        if rule is None:
            if known is not None:
                known.forget(self.directory)
            self.deduplication = self.window = None
            return
        if known is not None and known.rule.waits == rule.waits:
            known.change(rule)
            return
        if known is not None:
            known.forget(self.directory)  # Another scope knows other keys.
        from brokerd.queues.deduplication import Deduplication  # Few queues ask for it.

        assert self.key_files is not None
        self.deduplication = Deduplication(rule, self.key_files())
        self.window = self.deduplication.window
        if self.next_seq > 1:  # Its messages may have deduplication keys from an earlier rule.
            work = self._load_keys(self.deduplication, suspect=False)
            if do_first_piece(work) is None:
                add_work(self.core, work, _nothing)

    def _load_keys(self, known: "Deduplication", *, suspect: bool) -> Iterator[None]:
        """Enter the keys that are on disk, a segment at a time."""
        if known.rule.waits:
            plane.enter_keys_that_wait(self)
            for segment in self.segments():
                if self.deduplication is not known:
                    return
                plane.enter_keys_that_wait(self, segment["number"], segment["level"])
                yield
            plane.enter_keys_that_wait(self)  # Those that were delivered meanwhile.
            return
        kept: list[tuple[int, int]] = []
        for found in known.load(self.directory, range(self.max_priority + 1), suspect=suspect):
            if self.deleted or self.deduplication is not known:
                return
            kept += found
            yield
        for level, number in kept:
            self.mark_keys_written(number, level)

    @property
    def duplicates(self) -> int:
        """Messages that were not stored because their deduplication key was known, since start."""
        return 0 if self.deduplication is None else self.deduplication.duplicates

    def finish_recovery(self, next_seq: int, *, suspect: bool, last_ts: int = 0, last_number: int = 0) -> None:
        """End the recovery, as in the data plane.  The keys come first, because settled segments stay while their keys
        are needed."""
        known = self.deduplication
        if known is not None and not known.rule.waits:
            for _ in self._load_keys(known, suspect=suspect):
                pass
        super().finish_recovery(next_seq, suspect=suspect, last_ts=last_ts, last_number=last_number)
        if self.stream is not None:
            from brokerd.queues.stream import recover_offsets

            recover_offsets(self)
        if known is not None and known.rule.waits:
            for _ in self._load_keys(known, suspect=suspect):
                pass

    def check_access(self, connection: object) -> None:
        """Refuse an exclusive queue to all connections but its owner (405)."""
        if self.owner is not None and self.owner is not connection:
            raise self.locked()

    def check_in_service(self) -> None:
        """Refuse a queue with lost pages in its files (404, as RabbitMQ refuses a queue whose node is down)."""
        if self.lost:
            raise NotFound(f"{self} is out of service: its files were cut off, or cannot be read or written. The "
                           "broker's next start recovers what is left")

    def locked(self) -> ResourceLocked:
        """The error for a queue that belongs to another connection, or did not belong to this one before."""
        return ResourceLocked(
            f"cannot obtain exclusive access to locked {self}. It could be originally declared on another "
            "connection or the exclusive property value does not match that of the original declaration."
        )

    def check_equivalent(
        self, *, durable: bool, auto_delete: bool, arguments: dict[str, Any], owner: object | None
    ) -> None:
        """Refuse a declare that is not equivalent (405 or 406, naming the first difference)."""
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

    def on_dead(
        self, reason: str, seq: int, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes, count: int
    ) -> bool:
        """The data plane calls this for a dead message.  Returns whether the message is settled."""
        if self.dead_letters is None:
            return True
        return self.dead_letters.handle_dead(self, reason, seq, exchange, routing_key, properties, body)

    def letter_headers(self, seq: int) -> bytes:
        """Where a dead message, which is aside, stood in its message group: headers of its dead letter."""
        return plane.letter_headers(self, seq)

    def on_letters_stored(self, upto: int) -> None:
        """The data plane calls this for dead letters that must be on disk before their messages are settled."""
        assert self.dead_letters is not None
        self.dead_letters.settle_when_synced(self, upto)

    def on_replaced(self, seq: int) -> None:
        """A message was stored that replaces an older one of its deduplication key, if that one is still ready."""
        if self.dead_letters is not None:
            self.dead_letters.remove_when_synced(self, seq)

    def on_delivered(
        self, channel: plane.Channel, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes,
        redelivered: bool,
    ) -> None:  # fmt: skip
        """The data plane calls this for each delivery while ``reports_deliveries``."""
        if self.firehose is not None:
            self.firehose.delivered(channel, self, exchange, routing_key, properties, body, redelivered)

    @property
    def exclusively_consumed(self) -> bool:
        """Whether an exclusive consumer consumes from the queue."""
        consumers = self.consumers or {}
        return len(consumers) == 1 and next(iter(consumers)).exclusive


def _nothing() -> None:
    """The sync has no callback to call."""


def _differs(field: str, queue: Queue, received: bool, current: bool) -> PreconditionFailed:
    shown = ("false", "true")
    return PreconditionFailed(
        f"inequivalent arg '{field}' for {queue}: received '{shown[received]}' but current is '{shown[current]}'"
    )


def kind_of(arguments: dict[str, Any]) -> str:
    """The type of a queue with these arguments, as policies name it."""
    type_ = queue_type(arguments)
    return "streams" if type_ == "stream" else f"{type_}_queues"


def check_arguments(
    name: str,
    vhost_name: str,
    arguments: dict[str, Any],
    *,
    durable: bool = True,
    exclusive: bool = False,
    auto_delete: bool = False,
) -> None:
    """Refuse arguments that no queue can have, and properties that a quorum queue or a stream cannot (406, as RabbitMQ
    words it)."""
    thing = f"queue '{name}' in vhost '{vhost_name}'"
    kind = queue_type(arguments)
    reason = fault(arguments, thing)
    if reason is not None:
        raise PreconditionFailed(reason)
    if arguments.get("x-order-journal") is True and (exclusive or not durable):
        reason = "only a durable queue can have an order journal"
        raise PreconditionFailed(f"invalid arg 'x-order-journal' for {thing}: {reason}")
    for name_ in ("x-retention-age", "x-retention-bytes"):
        if name_ in arguments and (exclusive or not durable):
            raise PreconditionFailed(f"invalid arg '{name_}' for {thing}: only a durable queue retains messages")
    if kind in ("quorum", "stream"):
        faults = {"auto-delete": auto_delete, "exclusive-owner": exclusive, "non-durable": not durable}
        for property_, present in faults.items():
            if present:
                raise PreconditionFailed(f"invalid property '{property_}' for {thing}")
    if arguments.get("x-stream-max-segment-size-bytes", 0) > STREAM_SEGMENT_OCTETS_MAX:
        raise PreconditionFailed("Exceeded max value for x-stream-max-segment-size-bytes")

"""The border of the data plane, for features that decide which message goes out.  ``__init__.pyi`` is the first page."""

from typing import Any

from brokerd.plane import Consumer, Queue, Row
from brokerd.plane._answers import Letters

class Gate:
    """Decides which message of a queue goes out, to which consumer and when.  A queue without a gate goes by sequence order.

    Each such feature is a subclass in a file of its own; gate.pxi says what it may do.  A message that a gate lets wait is
    aside, and is ready again after a restart.  A gate serves one queue at a time."""

class ClosedGate(Gate):
    """The gate of a queue that is out of service: no message comes in, and none goes out."""
    def __init__(self) -> None: ...

class Stream(Gate):
    """The gate of a stream: each consumer reads all messages from its own place on, and they stay until retention removes them.

    A place is an offset, which is a message's sequence number.  Deliveries carry it in the header x-stream-offset."""
    def __init__(self) -> None: ...
    def begin(self, start: str, value: int, *, tells: bool = False, slot: memoryview | None = None, turn: int = 0, kept: int = 0,
              filter: bytes | None = None, unfiltered: bool = False, share: bytes | None = None,  # noqa: A002
              single: bool = False, by: str = "header", names: tuple[bytes, ...] = (), program: bytes | None = None) -> None:
        """Say how the next consumer that joins reads.  Raises ValueError for another start, or for a wrong program.

        start and value: "offset" (from the first record that has this offset or a higher one), "next", "back" (`value` messages
        before the end), "last" (in the last 64 KiB), "time" (ns since the epoch), "ago" (ns before now).
        tells: removed messages from that place on count as missed.
        slot, turn: each ack that moves the lowest unacknowledged offset writes it into this memory, until another reader
        claims the slot by raising its turn number.  All slots are of one memory.
        kept: the offset that stands in the slot.  If the reader begins there or before, messages that the filter skips raise
        it without an ack.  0: the first ack writes the slot.
        filter: values of the header x-stream-filter-value, each behind 2 octets with its length.  The consumer gets only
        messages with one of these values and, with `unfiltered`, those without a value.
        share: a name.  Consumers with the same name have one place and one slot, those of the first.  single: one of them
        gets all messages; else each has keys of its own, which `by` and `names` find (see Groups).
        program: a condition that messages must meet (filter.pxi).  It checks the filter's values itself."""
    def set_limits(self, *, max_length: int = -1, max_octets: int = -1, age_ns: int = -1, segment_octets: int = 0) -> None:
        """Set the limits of retention; -1: no limit.  They are applied when a segment is full, and by retain().  segment_octets:
        the size of segments that begin from now on, rounded up to 4,096; 0: as the Core's."""
    def retain(self, most: int) -> int:
        """Remove at most so many whole segments that are over a limit, never the last one.  Returns how many.  May read a file."""
    def purge(self, below: int, most: int) -> tuple[int, bool]:
        """Remove messages with offsets below that one, which is the queue's next_seq, or was it when the purge began: at most so many
        whole segments.  Returns how many messages, and whether none is left.  Raises OSError: no room on the disk for a new segment."""
    def unmap(self, offset: int, most: int) -> int:
        """Unmap segments that readers have read, from that offset on, at most so many.  Returns the offset to go on with; 0: none is
        left.  A reader maps again what it needs."""
    def readers(self) -> list[tuple[Consumer, int, int, int]]:
        """For each reader: the next offset that it reads, the lowest that it has not acknowledged (0: its first place is not found
        yet), and how many messages were removed before it came to them, including those that are missing at its place now."""
    def kept_readers(self) -> list[Consumer]:
        """The consumers with a slot; one of each share."""
    def shares(self) -> list[tuple[bytes, bool, list[Consumer], int, int, int, tuple[bytes | None, bool, bytes | None]]]:
        """For each share: its name, whether it has a single active reader, its readers, the oldest first, the messages that are
        out, those that wait for their readers, the keys of these messages, and its filter, as begin() got it."""
    first_offset: int       # of the first message; the queue's next_seq if the stream is empty
    removed: int            # messages that retention and purges removed, since start
    removed_segments: int
    missed: int             # messages that were removed before readers came to them

def check_filter(program: bytes) -> None:
    """Raise ValueError, with the reason, unless these octets are a program of a stream's filter (filter.pxi)."""

def look_through(queue: Queue, offset: int, count: int, looks: int, *, values: bytes | None = None, unfiltered: bool = False,
                 program: bytes | None = None) -> tuple[list[Row], int, int]:
    """At most `count` messages of a stream from that offset on that pass a filter (see Stream.begin()), as Queue.browse() shows
    them, the offset to go on with, and how many messages were looked at.  It ends when it has looked at `looks` messages; a costly
    filter and a look into an index count for more.  Reads files.  Raises ValueError: the queue is not a stream, or the program is
    wrong."""

class Delay(Gate):
    """The gate of a delayed exchange's waiting room.  A message that is due goes where the exchange sends its routing key,
    and is settled here.  No consumer gets a message.

    The plane sends a message on itself if its time is plain (plain_due()), its headers are as letters take them (see
    Letters), and the route may be remembered; it calls on_due() for each other message."""
    def __init__(self, letters: Letters, retry_ms: int, *of_subclass: Any) -> None:
        """letters: the exchange, no key, and the Routes that say where a routing key leads to.  retry_ms: after this time a message
        is tried again that its queues refuse, or that cannot be stored or read now."""
    # --- upcalls, to be overridden
    def on_due(self, seq: int, known: bool) -> None:
        """A message is due that the caller must send on: put() it where it goes, then remove() it.  Not known: the plane cannot
        read when it is due, and the caller must note() that, a time above 0.  The messages that are due later wait until
        this returns.  Must not raise."""
    def on_stored(self, upto: int) -> None:
        """All messages up to this number were sent on.  Call settle() as soon as the next sync is over.  Must not raise."""
    # --- verbs
    def settle(self, upto: int) -> None:
        """Settle what was sent on, up to the number that on_stored() gave: it is on disk."""
    def note(self, seq: int, due_ms: int) -> None:
        """Have on_due() called for a message at that time, in ms since the epoch."""
    def tidy(self) -> None:
        """Drop the due times of messages that were taken out, if there are many.  Some notes go with them, and on_due() is
        called for their messages at once."""
    def upcoming(self, count: int) -> list[tuple[int, int]]:
        """When the next messages are due, with their sequence numbers.  Some may have been taken out; a time of 0 stands for
        one that on_due() is still to give its time."""

def plain_due(properties: bytes, came_ms: int) -> int:
    """When a message is due that has these properties (as on the wire) and came at that time.  Both times are ms since the epoch.
    0: the plane cannot read the time, or no property has it.  Raises ValueError: malformed."""

class Groups(Gate):
    """The gate of a queue with message groups: order within each group holds while many consumers work.

    A group has a key, the octets of a text; a whole number counts as its digits.  The gate remembers a group while messages
    of it are out or waiting, while it is paused or parked, and, if groups are sticky, while it has an owner."""
    def __init__(self, *, sticky: bool, by: str, names: tuple[bytes, ...] = (), keyless: str = "free", most: int = 1,
                 idle_ms: int = 60000, max_priority: int = 0, waiting_most: int = 4 << 20) -> None:
        """by: "header" (the first of names that a message has), "routing-key", "correlation-id", "type", "user-id" or
        "app-id".  keyless: what happens to messages without a key: "free" (they belong to no group), "single" (all are one
        group with the key b"") or "reject".  most: how many messages of a group may be out, unless it is sticky.  idle_ms: how
        long a sticky group without messages keeps its owner.  max_priority: the queue's.  waiting_most: if so many messages
        wait in groups, the gate looks at no further message until some have gone out."""
    def set_rule(self, *, causes: int = 0, min_ms: int = 1, max_ms: int = 1, backoff: int = 0) -> None:
        """Say after which returns a group waits before its message is tried again, and how long: as Retry.set_rule().
        Without causes, all groups that wait go on.  With the queue's rule limit_stops, a message that reaches its delivery
        limit parks its group."""
    def __len__(self) -> int:
        """Groups that are remembered."""
    @property
    def waiting(self) -> int:
        """Messages that wait in their groups."""
    @property
    def waits(self) -> int:
        """Messages that had to wait in their groups, since start."""
    @property
    def waited_ns(self) -> int:
        """How long these waited, all together, since start."""
    @property
    def fenced(self) -> int:
        """Settlements that were ignored, because the delivery had returned with its group, since start."""
    @property
    def refused(self) -> int:
        """Messages without a key that were refused, since start."""
    @property
    def octets(self) -> int:
        """Memory of groups and of messages that wait, without long keys."""
    def scan(self, most: int) -> bool:
        """Look at up to `most` messages that the gate has not looked at, and let them wait in their groups.  True: it has looked
        at all."""
    def groups(self, start: int, count: int) -> tuple[list[dict[str, Any]], int]:
        """The groups with the next `count` numbers, from `start` on, and the number to go on with, or 0.

        key: bytes; waiting, unacked: messages; token: of its owner; states: of "paused", "parked", "retrying"; owner: the
        Consumer, or None; first_seq, first_ts, failed: number, time (ns) and failed deliveries of the first message that
        waits; at_limit: it has failed so often that the queue's delivery limit stops the group; until: ns, of a group that is retrying;
        turn: whether a consumer with credit would get a message."""
    def find(self, key: bytes) -> dict[str, Any] | None:
        """One group, as groups() shows it."""
    def pause(self, key: bytes) -> None:
        """Hand out no more of the group until resume() or release(), or a restart."""
    def resume(self, key: bytes) -> bool:
        """End a pause.  False: the group was not paused."""
    def park(self, key: bytes) -> bool:
        """Hand out no more of the group until release(), also after a restart.  False: no message of it waits."""
    def release(self, key: bytes) -> bool:
        """End a pause, a park or a retry, so that the group goes on at once.  False: the group had none of these.  Raises
        MemoryError, also if a file cannot be read."""
    def skip(self, key: bytes) -> int:
        """Take out the first message of the group, and return its number; 0: none waits, or one is out.  A message that has
        failed too often dies of its delivery limit, any other is dropped.  This ends a retry, but not a park."""
    def purge(self, key: bytes, most: int) -> int:
        """Drop up to so many messages that wait in the group.  Returns how many."""
    def messages(self, key: bytes, after: int, count: int) -> list[tuple[int, int, Row]]:
        """The messages that wait in a group, in their order, at most so many: the number by which each stands there, which is
        above `after`, its failed deliveries, and its row as Queue.browse() shows it.  Reads files."""
    def key_of(self, routing_key: bytes, properties: bytes) -> bytes | None:
        """The key of the group of a message with these, whole as on the wire; None: it has none.  Raises ValueError."""
    def unlist(self, most: int) -> bool:
        """Make up to `most` messages that wait ready again, at their own places; groups are no longer parked, nor wait for a
        retry.  True: no message waits any more.  Until then the queue must be paused."""
    def put_back(self, seq: int) -> bool:
        """Let a message that is ready, or that set_aside() has set aside, wait in its group now.  A message that was redriven
        goes before later ones of its group.  False: it is neither.  Raises MemoryError, also if a file cannot be read."""

class Retry(Gate):
    """The gate of a queue in which returned messages wait before they are tried again, or which stops at a message that has
    reached its delivery limit (the rule limit_stops).

    A message that waits is aside, and others overtake it.  The queue hands out nothing behind a message at which it stops."""
    def __init__(self) -> None: ...
    def set_rule(self, *, causes: int = 0, min_ms: int = 1, max_ms: int = 1, backoff: int = 0, jitter: int = 0) -> None:
        """Say which returned messages wait, and how long.  causes: a bit 1 << cause for each cause (store/format.py) after
        which they wait.  The time is min_ms times the failed deliveries (backoff 0), twice as long each time (1), or min_ms
        (2); at most max_ms; and up to `jitter` percent shorter.  A message that waits already keeps its time."""
    def release(self, seq: int) -> bool:
        """Make a message ready that waits, or at which the queue stops.  False: neither is so.  Raises MemoryError."""
    def skip(self, seq: int) -> bool:
        """Let a message at which the queue stops die of its delivery limit.  False: the queue does not stop at it."""
    stopped: int                 # messages at which the queue stops
    waiting: int                 # messages that wait for their time
    def stops(self, count: int) -> list[tuple[int, int]]:
        """The first messages at which the queue stops: their sequence numbers and failed deliveries."""
    def upcoming(self, count: int) -> list[tuple[int, int, int]]:
        """The next messages to be tried again: when (ms since the epoch), sequence number, failed deliveries."""

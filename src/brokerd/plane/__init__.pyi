"""The border of the data plane: every verb that crosses it, one section for each object.

    Core         one event loop: the turn, what waits for the disk, files to be given up
    Window       keys of messages lately stored, and Keys, those of one message
    Asked        what bindings ask of headers; HeaderBindings, where they lead
    Answer       where a publish goes, as routing says it: Tally, Message, Participant
    Routes       answers remembered
    Letters      how the dead letters of one queue are made, and where they go
    Gate         a feature that decides which message of a queue goes out, to whom and when
    Queue        messages in segments, rules, consumers
    Consumer     one basic.consume
    Channel      delivery tags, prefetch, confirms, transactions
    Connection   a client's octets, in and out
    Syncer       threads that sync files
    functions    checksums and layouts, for recovery, tests and tools

A Python object here owns its C struct: the struct lives as long as the object does.  The plane never awaits, never logs,
never reads configuration, and does not know what a name means.

A verb takes constant time and raises nothing, unless its text says otherwise.  It changes what is ready, written or
confirmed; a *turn* then delivers messages, sends confirms and writes to sockets.  These verbs run a turn themselves:
Core.turn, go_on and expire, Connection.buffer_updated, feed, resume_writing, unblock and detach.  After every other verb that
changes something the caller calls Core.turn(), or the verb has asked for one (schedule).
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

Row = tuple[int, int, bool, bytes, bytes, bytes, bytes]
"""A stored message: sequence number, ns since the epoch, redelivered, exchange, routing key, properties, body."""

class Core:
    """The data plane of one event loop: the read buffer that connections share, and lists of queues and connections
    that have work to do."""

    def __init__(
        self,
        *,
        schedule: Callable[[], None],      # work is left over: call turn() soon (loop.call_soon)
        request_sync: Callable[[], None],  # a confirm waits: call begin_sync() when the last sync has ended
        storage_failed: Callable[[int], None],  # errno: no room for a message; its publisher waits, and nothing is lost
        damaged: Callable[[str, int, int], None],  # path, position, octets: they cannot be read and were skipped
        lost: Callable[[Any], None] | None = None,  # from within a turn: pages of its files are lost, and it is paused
        segment_octets: int = 8 << 20,
        deliver_octets_per_turn: int = 1 << 20,
        message_octets_max: int = 128 << 20,
        frame_octets_max: int = 131072,  # the most that any connection's frame_max may be
        deadline: Callable[[int], None] | None = None,  # ns since the epoch: call expire() then, and at no earlier time
        descriptors_most: int = 0x7FFFFFFF,  # a segment whose descriptor is this or a higher number has another one closed
        spare_directory: str | None = None,  # settled segments wait here for other queues; None: each queue has its own
        sync: bool = True,               # False: confirms do not wait for the disk (--no-sync)
        work_ns: int = 0,                # when a connection's octets have kept the control plane busy for so long, or are more than
                                         # 2 MiB, others have their turn; 0: when they are used up
        calm_ns: int = 0,                # a connection that used no more than that in so long has its turn before those that
                                         # used more, and every second one; 0: none has
        crowd_ns: int = 0,               # when all connections together have kept the control plane busy for so long since go_on(),
                                         # further ones wait for their turn; 0: none does
        go_on: Callable[[], None] | None = None,    # octets or errands wait for their turn: call go_on() soon; None: work_ns
                                         # is 0, and there are no errands
    ) -> None: ...
    blocked: bool                      # an alarm is in force: connections that publish get on_publisher_blocked()
    clock: Callable[[], int] | None    # ns since the epoch; None: CLOCK_REALTIME (tests travel in time)
    monotonic: Callable[[], int] | None    # ns since some moment; None: CLOCK_MONOTONIC, or `clock` where that is set
    # --- the turn
    def turn(self) -> None:
        """Deliver what is ready, send the confirms that may go, write to sockets.  Each chunk of octets ends with one."""
    def go_on(self) -> None:
        """Work on the octets of the connection that waits longest for its turn, and on the errand that does.  Runs a turn.
        Calm connections and others alternate."""
    calm_ns: int    # may be changed
    has_errands: bool
    def add_errand(self, step: Callable[[], bool]) -> None:
        """Call step() in each go_on(), in turns with other errands, until it answers True.  It takes some 1 ms at a time."""
    def expire(self) -> None:
        """Let expired messages at the heads of queues die.  Runs a turn."""
    def end(self) -> None:
        """Have turn() and expire() do nothing from now on: the broker has stopped, and its queues are about to close."""
    timeouts: int        # consumers that have a timeout: call return_overdue() once a second while there are any
    def return_overdue(self) -> list[Consumer]:
        """Return each delivery that was unacked for longer than its consumer's timeout to its place.  The answer names the
        consumers that ask for their channel to be closed instead."""
    def put(self, queues: tuple[Queue, ...], exchange: bytes, routing_key: bytes, properties: bytes, body: bytes, *,
            connection: int = 0, channel: int = 0, publish_seq: int = 0, sync: bool = False,
            keys: Keys | None = None) -> tuple[Any, ...]:
        """Store a message of the broker's own in each queue, by its rules.  The answer names the queues that have it now:
        the others refused it, or are deleted.  properties: flags and list as on the wire.  sync: the next begin_sync()
        covers it.  It may be larger than what clients may publish now.  Raises OSError: no space, then it is stored nowhere;
        ValueError."""
    def sync_next(self, queues: Iterable[Queue]) -> None:
        """Have the next sync cover all that was put into these queues."""
    def begin_sync(self, descriptors: int) -> list[tuple[int, str]]:
        """Everything that waiting confirms depend on, as (descriptor, path).  The caller syncs and closes each in its thread
        (fdatasync; fsync where the path ends in '/', a directory), then calls end_sync() on the loop.
        descriptors: how many files get one.  For all others, and where the process has none left, -1 stands for it.  Such a
        file may have another name when it is synced; if its directory is gone, it has nothing to sync.  Raises OSError."""
    def end_sync(self) -> None:
        """Say that all files that the last begin_sync() named are on disk.  The next turn sends the confirms that waited."""
    # --- files to be given up
    unfinished: int; unfinished_most: int    # octets of messages that arrived in part; where all connections together have more,
                                             # a connection with more than its share gets a fault (506)
    def close_files(self, most: int) -> int:
        """Close descriptors of segments that were not used lately, at most so many.  How many were closed."""
    def enforce_retention(self, most: int) -> int:
        """Give up settled segments beyond the retention of their queues, at most so many.  How many were."""
    spares: int          # settled segments that wait for a queue that needs one, at most 64, and 8 without a name
    spares_used: int     # ... and how many of those with a name queues have taken since start
    def release_spares(self) -> None:
        """Give up the settled segments that wait for other queues, but of those without a name only one: that may take a
        millisecond or two.  Setting `blocked` gives up all."""
    def take_settled_segments(self) -> list[tuple[str, int]]:
        """The segments of journaled queues that were settled since the last call, as (folder, number).  Their files are in
        the folder ``kept`` of that folder by now."""
    def take_unwritten_keys(self) -> list[tuple[Queue, int, int]]:
        """Segments since the last call that wait for a file of their keys, as (queue, level, number).  The caller writes what
        key_rows() gives, syncs it, and calls mark_keys_written()."""
    def take_garbage(self) -> list[str]:
        """Files that are not needed any more.  The caller unlinks them in this order, in a thread."""

class Syncer:
    """Threads that sync a few files at a time, without Python's lock."""
    def __init__(self) -> None:
        """Raises OSError: no thread, or no descriptor, is left."""
    def fileno(self) -> int:
        """A descriptor that is readable when a sync is over: then call finish()."""
    def begin(self, files: list[tuple[int, str]]) -> None:
        """fdatasync and close 1 to 16 (descriptor, path), up to 8 of them at once.  begin() comes again only after finish()."""
    def finish(self) -> bool:
        """Whether the sync is over.  Raises OSError, which names the path, if a file could not be synced."""
    def stop(self) -> None:
        """Finish the sync that is under way, and end the threads."""

def plain_delay(properties: bytes) -> int:
    """The delay, in ms, that the plane reads in these properties (as on the wire); 0: none.  Raises ValueError: malformed."""

class Window:
    """The last keys that were entered.  A key is a hash, never 0, and counts until its time is over.  Times are ms since
    the epoch."""
    def __init__(self, size: int, ttl_ms: int = -1, header: bytes = b"") -> None:
        """size: how many keys it holds at most; its memory follows the keys that are there.  ttl_ms: of a key that brings no
        time of its own; -1: none.  header: the name of the header with a message's key.  Raises ValueError: size 0."""
    size: int; ttl_ms: int
    hash_key: HashKey | None     # None: no message with a key is for the plane
    duplicates: int      # messages that were not stored because their key was known
    entered: int         # keys, since it was made
    octets: int          # of memory
    def __len__(self) -> int: ...
    def knows(self, hash_: int, now_ms: int) -> bool:
        """Whether the key is there and its time is not over."""
    def enter(self, hash_: int, expires_ms: int, now_ms: int, seq: int = 0) -> None:
        """Make the key the newest one; if there are too many, the oldest goes.  seq: of its message.  Raises ValueError for
        0."""
    def forget(self, hash_: int, seq: int) -> None:
        """Forget the key, if it is that of message `seq`."""
    def seq_of(self, hash_: int) -> int:
        """The message that has the key; 0: it is not known, or there is no such key."""
    def set_rule(self, *, by_content: bool, waiting: bool, action: int, group_from: int, group: bytes = b"",
                 group_property: int = 0) -> None:
        """by_content: the body is the key of a message whose headers have none.  waiting: set before the first key; a key
        is forgotten when its message is settled, and `size` counts keys alone.  action: what becomes of a duplicate (0 it is
        left out; 1 and its publisher told that it is refused; 2 and given to on_dead(); 3 it is stored, and on_replaced()
        called).  group_from, group, group_property: see queues/deduplication.GROUP_PLACES; 0: a key counts in all groups."""
    def load(self, rows: bytes, now_ms: int, *, unless_newer: bool = False) -> None:
        """Enter the rows of key files (store/format.py), in any order, each once.  Takes time in proportion to the rows.
        unless_newer: leave out rows of a key that a newer message has."""
    def change(self, size: int, ttl_ms: int, header: bytes) -> None:
        """Change the size, which leaves as many of the newest keys as fit, the time of later keys, and where they are."""

class ExchangeWindow(Window):
    """The keys that one exchange knows."""
    def __init__(self, size: int, ttl_ms: int, header: bytes, *, has_log: bool) -> None: ...
    def on_learnt(self, rows: bytes, lasting: int, until_ms: int) -> None:
        """The exchange has learnt these keys, and the records of their messages are in files.  Called if it `has_log`.
        rows: as store/format.py has them.  lasting: the next sync covers no message behind this row, counted from 1; 0: it
        covers none of the rows' messages.  until_ms: when the last key expires.  Must not raise."""
    def on_full(self, rows: int) -> None:
        """Set `room` to so many rows or more, before the message of the last of them is stored.  Called if it `has_log`.
        Raises OSError: then the publish waits, as for room for its message."""
    room: int                    # of rows that on_learnt() has not yet told, and of later ones, the log has room for so many

class HashKey:
    """With what deduplication keys are hashed."""
    def __init__(self, octets: bytes, *, is_blake2b: bool = False) -> None:
        """is_blake2b: of a vhost whose secret is of version 1.  Raises ValueError: not 16 octets."""
    def hash(self, octets: bytes) -> int:
        """The hash of a key, never 0.  Raises ValueError: no octet."""

def find_key_hash(window: Window, properties: bytes, routing_key: bytes = b"", body: bytes = b"") -> int | None:
    """The hash of the deduplication key of a message with these properties (flags and list as on the wire); 0: it has none.
    None: the key is not plain, or the window has no hash key yet: such a message is not for the plane.  Raises ValueError
    for malformed properties."""
def enter_keys_that_wait(queue: Queue, number: int = 0, level: int = 0) -> None:
    """Enter the keys of messages that are not settled into the queue's window of waiting keys: of those in the segment that
    the cursor has not passed; number 0: of all that it has passed.  Takes time in proportion to the messages."""
def describe_retention(queue: Queue) -> tuple[int, int, int, int]:
    """Segments that are retained, their octets, the first message in the oldest of them (0: none), and how many messages were
    replayed since start."""
def replay(queue: Queue, start_seq: int, stop_seq: int, *, level: int = 0, since_ns: int = 0, chosen: Any = None,
           groups: Window | None = None, group: bytes = b"", most: int = 0xFFFFFFFF, looks: int = 4096,
           dry: bool = False) -> tuple[int, int, int, int]:
    """Make settled messages of a level ready again, each at its own place: those from start_seq to stop_seq that came since
    then, and are `chosen` (u8 numbers, rising; None: all) and of the group of that name as `groups` finds it.  What was purged
    or removed by an operator stays so.  It looks at so many records and replays at most so many.  Returns how many it
    replayed, the number to go on from (0: that was all), and the first and the last of them.  dry: nothing is replayed.
    Raises OSError: no room for the entries; those before are replayed."""
def find_own_ttl(properties: bytes) -> int:
    """How long a message with these properties says that its key counts, in ms; -1: it does not say.  Raises ValueError for
    malformed properties."""

class Keys:
    """The deduplication keys of one message."""
    def __init__(self, of_queues: dict[Queue, int], of_exchange: int = 0, ttl_ms: int = -1, *,
                 on_body: Callable[[bytes], object] | None = None) -> None:
        """of_queues: hashes in the queues that have a window, which the records there carry.  of_exchange: the hash that
        records in other queues carry; 0: none.  ttl_ms: how long the keys count if the message says so; else -1.  on_body():
        called with the message's body before each before_storing(); it may call change()."""
    on_body: Callable[[bytes], object] | None
    def change(self, of_queues: dict[Queue, int], of_exchange: int, ttl_ms: int) -> None:
        """The message has these keys instead."""

class Tally:
    """Counters of one exchange."""
    published: int; routed: int

class Message:
    """What a message is made of, as stored: properties are flags and list as on the wire."""
    def __init__(self, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes) -> None: ...
    exchange: bytes; routing_key: bytes; properties: bytes; body: bytes

class Participant(Protocol):
    """A feature that takes part in a publish.  It is asked for its queues just before the message is stored, and told
    just after.  No other message comes between the two calls; a message that waits for room is asked for again."""
    @property
    def counts_as_routed(self) -> bool:
        """Whether this takes the message, so that it is not returned though no queue is left.  Asked after
        before_storing()."""
    def before_storing(self, queues: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The queues that the message still goes to: these, or fewer.  None: it goes nowhere at all, and the participants
        behind this one are neither asked nor told.  Raises OSError where what the feature must keep has no room on the disk:
        then the publish waits, and all are asked again.  Must not raise anything else."""
    def after_storing(self, message: Message, channel: Any, stored: tuple[Any, ...]) -> None:
        """The message has been stored in the queues `stored`: a queue may have refused it, and an immediate message may
        be nowhere.  channel: where it was published; None: the broker itself sent it.  Must not raise."""

class Asked:
    """What the bindings of one headers exchange ask of a message's headers: names, and values under them.  It may be that
    more is asked than it has been told of; what it was told of is always there."""
    def __len__(self) -> int:
        """How many names and values are asked for.  Takes time in proportion to their number."""
    def add(self, table: bytes) -> None:
        """One binding more asks for these: a field table, its length first; a void value asks for the name alone.  Raises
        ValueError: no field table."""
    def remove(self, table: bytes) -> None:
        """One binding less asks for these, which were added.  Raises ValueError: no field table."""

class HeaderBindings(Asked):
    """The bindings of one headers exchange, as tables that the plane reads and exchanges/headers.py keeps.  Their keys are
    octets: names as short strings, and *plain values*, of which two are the same octets where bindings take them as equal.
    Their values are destinations in one of the forms of exchanges/destinations_of_key.py.  A change shows in the next
    answers; routes that are remembered need Routes.clear()."""
    always: Any                              # the destinations of bindings that every message agrees with
    by_condition: dict[bytes, Any]           # of bindings that one agreement is enough for: name, or name and value
    shapes_of: dict[bytes, list[Shape]]      # by anchor
    def __init__(self, compound: Callable[[bytes], bytes]) -> None:
        """compound(octets): octets for a table, array or decimal (kind and value), the same for all that are equal; they begin
        with the kind."""
    def values(self, table: bytes) -> dict[bytes, bytes]:
        """Plain values by name, in the table's order.  Raises ValueError: no field table."""
    def find(self, table: bytes) -> list[Any]:
        """The destinations of a message with this header table; one may stand there more than once.  Raises ValueError: no
        field table."""

class Shape:
    """Bindings of one headers exchange that ask for values of the same headers, and for the presence of the same others."""
    def __init__(self, valued: tuple[bytes, ...], there: tuple[bytes, ...], anchor: bytes) -> None: ...
    valued: tuple[bytes, ...]; there: tuple[bytes, ...]     # names
    anchor: bytes                            # one of these names: shapes are looked up by it
    by_values: dict[bytes, Any]              # destinations by the plain values of `valued`, one behind the other

class Answer:
    """The answer of routing to one publish.  The plane reads it in C, and calls its participants if it has some."""
    def __init__(self, queues: tuple[Any, ...], *, tally: Tally | None = None, cacheable: bool = False,
                 properties: bytes | None = None, participants: tuple[Participant, ...] = (),
                 keys: Keys | None = None, by_headers: tuple[Asked, ...] = (), delays: bool = False,
                 checks_keys: bool = False, window: ExchangeWindow | None = None,
                 decided_by: HeaderBindings | None = None) -> None: ...
    queues: tuple[Any, ...]      # each once, where the message is to be stored, unless a participant says otherwise
    tally: Tally | None          # where the publish is counted
    cacheable: bool              # the next message of that exchange and key goes there too
    properties: bytes | None     # stored in place of the message's own; such an answer is never cached
    participants: tuple[Participant, ...]   # asked and told in this order
    by_headers: tuple[Asked, ...]    # the next message of that exchange and key goes there too if it has the same of what
                                 # these ask for; (): not so.  An answer that is cacheable holds for all headers
    delays: bool                 # remembered by headers, it holds for messages with a plain delay only
    checks_keys: bool            # the plane looks for duplicates: in the windows of the queues, and in this one.  It holds for
    window: ExchangeWindow | None    # messages with a plain key, or none, and has no participants
    decided_by: HeaderBindings | None    # the next message of that exchange and key goes where these say.  The plane still
                                 # asks if they have no queue for it, or an exchange, or a queue that looks for duplicates, or
                                 # if what they ask of its headers is too long to be remembered
    keys: Keys | None            # that the message's records carry; only with a participant that looks for duplicates
    def take_body(self, body: bytes) -> None:
        """The message's body, which may be its deduplication key.  Code that calls before_storing() calls this first."""
    def before_storing(self) -> tuple[Any, ...]:
        """Ask the participants; returns the queues that they leave.  Code that stores a message with Core.put() calls this
        first."""
    def after_storing(self, message: Message, channel: Any, stored: tuple[Any, ...]) -> None:
        """Tell those participants that the last before_storing() has asked."""
    @property
    def counts_as_routed(self) -> bool:
        """Whether one of these takes the message, so that it is not returned though no queue is left."""
    @property
    def refuses(self) -> bool:
        """Whether one of these, which may have a property of this name, has the publisher told that it is refused."""

class Routes:
    """Remembers where messages go, for each (exchange, routing key) that one user of one vhost publishes to; where headers
    decide, for each (exchange, routing key, headers that bindings ask for)."""
    def __init__(self, core: Core, resolve: Callable[[bytes, bytes, bytes, Channel], Answer]) -> None:
        """resolve(exchange, routing_key, header_payload, channel) -> Answer; raises AMQPError.  It is asked again for the
        next message where the answer is neither cacheable nor by headers; and, whatever the answer says, for messages with a user-id, a CC
        or BCC header, a reply-to that begins amq.rabbitmq.reply-to or amq.direct.reply-to, or an expiration that is not
        a plain number of at most ten years."""
    def clear(self) -> None:
        """Forget all answers, because a binding, exchange, queue or permission has changed."""

class Letters:
    """How the plane itself makes and stores the dead letters of one queue, instead of asking on_dead()."""
    def __init__(self, routes: Routes, queue: bytes, exchange: bytes, routing_key: bytes | None = None, *,
                 per_message: bool = False, at_least_once: bool = False) -> None:
        """queue: its name.  exchange, routing_key: where its dead letters go; None: by the key that each has.

        routes is asked once for each exchange and key, with an empty header and without a channel.  A letter goes up to
        on_dead() where the answer is not cacheable or has participants, where a target is the queue itself or has
        reject-publish-dlx, where its headers hold more than the plane reads, and, with per_message, where they hold an
        x-dead-letter-exchange or -routing-key; with at_least_once, also where there is no target or one may refuse.  Raises ValueError for a name of more than 255 octets."""
    def make(self, reason: str, exchange: bytes, routing_key: bytes, properties: bytes, time_s: int) -> bytes | None:
        """The properties of the dead letter of a message with these; None: it goes up.  For tests."""

class Gate:
    """Decides which message goes out of one queue, to whom and when, where sequence order alone does not say so.

    Each such feature is a subclass in a file of its own; gate.pxi says what it may do.  A message that it lets wait is
    aside, and ready again after a restart.  A gate serves one queue at a time."""

class ClosedGate(Gate):
    """The gate of a queue that is out of service: no message comes in, and none goes out."""
    def __init__(self) -> None: ...

def check_filter(program: bytes) -> None:
    """Raise ValueError, with the reason, for what is no program of a stream's filter (filter.pxi)."""

class Stream(Gate):
    """The gate of a stream: each consumer reads all messages from its own place on, and they stay until retention takes them.

    A place is an offset, which is a message's sequence number.  Deliveries carry it in the header x-stream-offset."""
    def __init__(self) -> None: ...
    def begin(self, start: str, value: int, *, tells: bool = False, slot: memoryview | None = None, turn: int = 0,
              filter: bytes | None = None, unfiltered: bool = False, share: bytes | None = None,  # noqa: A002
              single: bool = False, by: str = "header", names: tuple[bytes, ...] = (), program: bytes | None = None) -> None:
        """Where the next consumer that joins begins: "offset" (the first record from there on), "next", "back" (so many before
        the end), "last" (in the last 64 KiB), "time" (ns since the epoch), "ago" (ns before now).  tells: messages that are gone there count as
        missed.  slot: where its lowest unacknowledged offset is written with each ack that moves it, as long as nobody else
        has written there since `turn`.  All slots are of one memory.
        filter: the values of the header x-stream-filter-value that it wants, each behind 2 octets with its length; it gets no
        other message, but with `unfiltered` those without a value.
        share: a name; consumers that give the same one have one place and one slot, those that the first has given.  single: the
        first of them gets all messages; else each has keys of its own, which by and names find (see Groups).
        program: a condition that messages must meet (filter.pxi); it asks for the filter's values itself.
        Raises ValueError for another start, and for what is no program."""
    def set_limits(self, *, max_length: int = -1, max_octets: int = -1, age_ns: int = -1) -> None:
        """What retention keeps; -1: no limit.  It is applied when a segment is full, and by retain()."""
    def retain(self, most: int) -> int:
        """Remove at most so many whole segments that are over a limit, never the last one; how many.  May read a file."""
    def purge(self) -> int:
        """Remove all messages that are there; how many.  Raises OSError where the disk has no room for a new segment."""
    def readers(self) -> list[tuple[Consumer, int, int, int]]:
        """Of each reader: the next offset that it reads, the lowest that it has not acknowledged (0: its first place is not found
        yet), and how many messages were gone before it came to them."""
    def shares(self) -> list[tuple[bytes, bool, list[Consumer], int, int, int, tuple[bytes | None, bool, bytes | None]]]:
        """Of each share: its name, whether it has a single active reader, its readers, the oldest first, the messages that are
        out, those that wait for their readers, the keys of these messages, and its filter, as begin() got it."""
    first_offset: int       # of the first message that is there; next_seq: there is none
    removed: int            # messages that retention and purges removed, since start
    removed_segments: int
    missed: int             # messages that were gone before readers came to them

class Delay(Gate):
    """The gate of a delayed exchange's waiting room.  A message that is due goes where the exchange sends its routing key,
    and is settled here.  No consumer gets a message.

    The plane sends a message on itself if its delay is plain (plain_delay()), its headers are as letters take them (see
    Letters), and the route may be remembered; it calls on_due() for each other message."""
    def __init__(self, letters: Letters, retry_ms: int, *of_subclass: Any) -> None:
        """letters: the exchange, no key, and the Routes that say where a routing key leads to.  retry_ms: when a message is
        tried again that its queues refuse, or that cannot be stored or read now."""
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
        """Forget when messages were due that were taken out, if these are many.  Then some notes are lost, and on_due() is
        called for their messages at once."""
    def upcoming(self, count: int) -> list[tuple[int, int]]:
        """When the next messages are due, with their sequence numbers.  Some may have been taken out; a time of 0 stands for
        one that on_due() is still to give its time."""

class Groups(Gate):
    """The gate of a queue with message groups: order within each group holds while many consumers work.

    A group has a key, the octets of a text; a whole number counts as its digits.  Groups are remembered that have messages
    out or waiting, that an operator paused or parked, or, sticky ones, that have an owner."""
    def __init__(self, *, sticky: bool, by: str, names: tuple[bytes, ...] = (), keyless: str = "free", most: int = 1,
                 idle_ms: int = 60000, max_priority: int = 0, waiting_most: int = 4 << 20) -> None:
        """by: "header" (the first of names that a message has), "routing-key", "correlation-id", "type", "user-id" or
        "app-id".  keyless: what becomes of a message without a key, "free", "single" (all are one group with the key b"") or
        "reject".  most: messages of a group that may be out, of a group that is not sticky.  idle_ms: how long a sticky group
        without messages keeps its owner.  max_priority: the queue's.  waiting_most: with so many messages waiting in groups,
        those behind are not looked at until some have gone out."""
    def set_rule(self, *, causes: int = 0, min_ms: int = 1, max_ms: int = 1, backoff: int = 0) -> None:
        """After which returns a group waits before its message is tried again, and how long: as Retry.set_rule().  Without
        causes all that waits so goes on.  With the queue's rule limit_stops a group is parked when a message of it reaches
        its delivery limit."""
    def __len__(self) -> int:
        """Groups that are remembered."""
    @property
    def waiting(self) -> int:
        """Messages that wait in their groups."""
    @property
    def waits(self) -> int:
        """Messages that had to wait so, since start."""
    @property
    def waited_ns(self) -> int:
        """How long they waited, all together, since start."""
    @property
    def fenced(self) -> int:
        """Settlements that were ignored, because the delivery had returned with its group, since start."""
    @property
    def refused(self) -> int:
        """Messages without a key that were refused, since start."""
    @property
    def octets(self) -> int:
        """Memory of groups and messages that wait, but for long keys."""
    def scan(self, most: int) -> bool:
        """Look at up to so many messages that were not looked at yet: they wait in their groups.  True: no other is left."""
    def groups(self, start: int, count: int) -> tuple[list[dict[str, Any]], int]:
        """Groups at up to `count` numbers from `start` on, and the number to go on with, or 0.

        key: bytes; waiting, unacked: messages; token: of its owner; states: of "paused", "parked", "retrying"; owner: the
        Consumer, or None; first_seq, first_ts, failed: number, time (ns) and failed deliveries of the first message that
        waits; until: ns, of a group that is retrying; turn: whether a consumer with credit would get a message."""
    def find(self, key: bytes) -> dict[str, Any] | None:
        """One group, as groups() shows it."""
    def pause(self, key: bytes) -> None:
        """Hand out no more of the group until resume() or release(), or a restart."""
    def resume(self, key: bytes) -> bool:
        """False: the group was not paused."""
    def park(self, key: bytes) -> bool:
        """Hand out no more of the group until release(), also after a restart.  False: no message of it waits."""
    def release(self, key: bytes) -> bool:
        """Let the group go on at once.  False: nothing kept it.  Raises MemoryError, also if its file cannot be read."""
    def skip(self, key: bytes) -> int:
        """Take out the group's first message: one that has failed too often dies of its delivery limit, any other is dropped.
        A retry that the group waits for ends; a park does not.  Returns its number, or 0: none waits, or one is out."""
    def purge(self, key: bytes, most: int) -> int:
        """Drop up to so many messages that wait in the group.  Returns how many."""

class Retry(Gate):
    """The gate of a queue in which returned messages wait before they are tried again, or which stops at a message that has
    reached its delivery limit (the rule limit_stops).

    A message that waits is aside, and others overtake it.  The queue hands out nothing behind a message at which it stops."""
    def __init__(self) -> None: ...
    def set_rule(self, *, causes: int = 0, min_ms: int = 1, max_ms: int = 1, backoff: int = 0, jitter: int = 0) -> None:
        """Which returns wait (a bit 1 << cause, of the causes of acks entries), and how long: min_ms times the failed deliveries
        (backoff 0), twice as long each time (1), or min_ms (2), at most max_ms, and up to `jitter` percent less.  What
        waits already keeps its time."""
    def release(self, seq: int) -> bool:
        """Make a message ready that waits, or at which the queue stops.  False: it is neither.  Raises MemoryError."""
    def skip(self, seq: int) -> bool:
        """Let a message at which the queue stops die of its delivery limit.  False: the queue does not stop at it."""
    stopped: int                 # messages at which the queue stops
    waiting: int                 # messages that wait for their time
    def stops(self, count: int) -> list[tuple[int, int]]:
        """The first messages at which the queue stops: their sequence numbers and failed deliveries."""
    def upcoming(self, count: int) -> list[tuple[int, int, int]]:
        """The next messages to be tried again: when (ms since the epoch), sequence number, failed deliveries."""

class Queue:
    """Messages in segments, by priority level; the rules of the queue; its consumers.  queues.Queue is the subclass.

    A message is ready, unacked or aside, until it is settled."""
    def __init__(self, core: Core, directory: str, *, durable: bool, max_priority: int = 0) -> None:
        """The first message makes the files, and make_directory() the directory before them."""
    # --- upcalls, to be overridden
    def make_directory(self) -> None:
        """Make the directory, with the queue's name in it.  Raises OSError."""
    def on_dead(self, reason: str, seq: int, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes,
                count: int) -> bool:
        """A message died: reason is "rejected", "expired", "maxlen" or "delivery_limit", count its failed deliveries; or it is a
        "duplicate" that came to a queue which dead-letters those.  The
        plane calls this in the order of deaths, and never while another call but finish_deaths() is under way.  seq 0: the
        queue refused the message, which is not stored.  True: the message is settled.  False: it stays aside until
        settle_dead(seq).  Dead letters that the plane makes itself, as `letters` says, do not come here."""
    def on_letters_stored(self, upto: int) -> None:
        """The plane has stored dead letters at least once, so many since the start, in the files of their targets.  Their
        messages stay aside until settle_letters(upto), which may be called when the next sync has ended.  Must not raise."""
    def on_replaced(self, seq: int) -> None:
        """A message was stored, and is in its file, that takes the place of an older one of its deduplication key, which may
        be ready.  Must not raise."""
    def on_delivered(self, channel: Channel, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes,
                     redelivered: bool) -> None:
        """basic.deliver or basic.get-ok was written to a client.  Called while `reports_deliveries`.  Must not raise."""
    # --- rules
    def set_rules(self, **rules: int) -> None:
        """Set all rules of the queue besides its order; a rule that is not given is off.  RULES has the names, and the values
        that mean no limit.  The rules hold from the next turn.  Raises TypeError for an unknown name.

        ttl_ms, max_length (messages), max_octets (of bodies), overflow (0 drop-head, 1 reject-publish, 2
        reject-publish-dlx), dead_letters (on_dead() is called), delivery_limit (the failed delivery that a message dies of),
        limit_drops (it is dropped then), limit_stops (the gate
        decides about it: see Retry), delivery_counts (redeliveries carry x-delivery-count and x-acquired-count),
        single_active, consumer_timeout_ms and timeout_closes (of consumers to come)."""
    letters: Letters | None      # None: on_dead() is called for each
    gate: Gate | None            # None: sequence order alone.  Setting it makes ready what the former gate let wait, and
                                 # raises ValueError for the gate of another queue
    reports_deliveries: bool         # on_delivered() is called
    max_priority: int
    active: Consumer | None      # the single active consumer
    consumers: dict[Consumer, None] | None
    paused: bool         # no message is delivered
    lost: bool           # pages of its files could not be read or written, and zeros stand there now
    # --- messages
    def browse(self, start_seq: int, count: int) -> list[Row]:
        """Ready messages from that sequence number on, in the order in which they would be handed out.  Reads files."""
    def remove(self, seq: int) -> Row | None:
        """Take a ready message out, wherever it stands, and settle it.  None: no such message is ready.  Reads files."""
    def purge(self) -> int:
        """Settle every ready message, and those that the queue's gate lets wait; how many."""
    def finish_deaths(self, most: int) -> bool:
        """Let the expired messages at the heads die, and deal with dead messages in the order of their deaths, until they
        count for `most` (some 1 µs each; one that goes to on_dead() counts for more).  False: some of this queue are left."""
    # --- messages set aside: neither ready nor out
    aside: int           # how many: dead letters under way, those of set_aside(), and those that the gate lets wait
    def set_aside(self, seq: int) -> bool:
        """Take a ready message out of the order, wherever it stands, until release().  It is not handed out, does not
        expire, and counts for no limit.  After a restart it is ready at its place.  False: no such message is ready."""
    def release(self, seq: int) -> bool:
        """Give a message of set_aside() back to its place.  False: set_aside() does not hold it."""
    def browse_aside(self, start_seq: int, count: int) -> list[Row]:
        """As browse(), of the messages that are aside."""
    def settle_dead(self, seq: int) -> None:
        """Settle a message that on_dead() left aside: its dead letter has arrived.  An unknown number changes nothing."""
    def settle_letters(self, upto: int) -> None:
        """Settle messages whose letters on_letters_stored() told of: these are on disk."""
    # --- figures
    core: Core
    directory: str; durable: bool
    ready: int
    ready_octets: int    # of their bodies; after a restart partly an estimate
    unacked: int         # handed out, not settled
    consumer_count: int
    next_seq: int        # sequence number the next message gets; from 1
    last_ts: int         # ns: time of the last record or event; ahead of a clock that was put back
    published: int; delivered: int; got: int; acked: int; redelivered: int; returned: int   # counters since start
    expired: int; discarded: int; dead_lettered: int; refused: int; limited: int; timed_out: int
    unrecorded: int      # settlements that a full disk would not take: these messages come again after a restart
    touched: int         # ns: last message stored or delivered
    unused_since: int    # ns of Core.monotonic: last consumer, get or touch(); now, while there are consumers
    def touch(self) -> None:
        """The queue is in use: `unused_since` is now."""
    def order_counts(self) -> tuple[list[int], list[int]]:
        """What disturbed the order, named by store.format.ORDER_COUNTERS: since the queue was declared (kill -9 loses none,
        a power cut may), and since this broker started."""
    def check(self) -> None:
        """Compare every count with what it counts: for tests, all of the queue is walked.  Raises AssertionError."""
    # --- recovery and compaction
    def attach_segment(self, number: int, *, end: int, records: int, settled: int, base_seq: int, delivered: int,
                       acks: int, capacity: int, ready_octets: int, synced: bool, generation: int = 0,
                       level: int = 0, doubted: int = 0, created: int = 0) -> None:
        """One segment found on disk, in rising order of number.  acks: sound entries in its acks file; delivered, doubted,
        created: the words of that name.  The plane checks each record (bounds, CRC) when it reads it.  See store/recovery.py."""
    def finish_recovery(self, next_seq: int, *, suspect: bool, last_ts: int = 0, last_number: int = 0) -> None:
        """End the recovery: all segments are attached, and the last one is appended to again.  suspect: power was lost.
        New segments have numbers above last_number, of which files are left."""
    def segments(self) -> list[dict]:
        """For inspection and compaction, level 0 first, oldest first: level, number, end, records, settled, unacked,
        returned, aside, waiting, base_seq, generation, entries, capacity, retained, mapped, sealed, damaged, events (of
        the journal; -1: none).  The files hold at least so much of each.  Walks all segments."""
    def can_compact(self, number: int, level: int = 0) -> bool:
        """Whether replace_segment() may be called: the segment is full, and the cursor has passed all of it."""
    def replace_segment(self, number: int, old: Any, new: Any, end: int, capacity: int, generation: int,
                        entries: int, level: int = 0) -> None:
        """Compaction has replaced the file of a segment by one with only its live records.  old and new: u4 arrays, both
        rising, of where each record was and is.  Every position in memory follows.  Raises ValueError, and changes nothing,
        if a record that is in use is not among them.  Walks all unacked deliveries."""
    copying: bool        # its files are being copied: settled segments are not written over
    # --- deduplication keys
    window: Window | None    # keys of stored messages are entered here; set it before finish_recovery(), with the keys that
                             # were on disk in it
    def can_drop_records(self, number: int, level: int = 0) -> bool:
        """Whether a segment's records can go without loss of a key.  False: if the segment is full, the next
        Core.take_unwritten_keys() names it."""
    def key_rows(self, number: int, level: int = 0) -> bytes:
        """Rows of a key file (store/format.py) for all keys of a segment that the window knows.  Walks the segment's records.
        Raises OSError."""
    def mark_keys_written(self, number: int, level: int = 0) -> None:
        """Say that the keys of a segment are on disk in a file of their own, so that its records may go."""
    # --- the order journal
    journaled: bool      # an order journal is written
    def set_journal(self, on: bool) -> None:
        """Write every event of a message's life from now on into files beside the segments, or stop.  Settled segments of
        a journaled queue move into the folder ``kept``.  Of a queue that is recovered: call it before attach_segment().
        Raises ValueError: the queue is not durable."""
    def begin_journal_sync(self) -> list[str]:
        """Paths of journals written to since the last call.  The caller syncs them in a thread, then calls
        end_journal_sync()."""
    def end_journal_sync(self) -> None:
        """Say that all files that the last begin_journal_sync() named are on disk."""
    # --- the end
    def drop(self) -> None:
        """The queue is deleted: its consumers leave, and settling its unacked deliveries has no effect.  The caller removes
        the directory."""
    def close(self) -> None:
        """Give up maps and descriptors, because the broker stops.  The caller has synced; no other verb may follow."""
    def rest(self) -> bool:
        """Give up maps and descriptors of an idle queue until they are needed again.  True if it had any."""

class Consumer:
    """One basic.consume.  Channel.consume() makes it."""
    tag: bytes; queue: Queue; channel: Channel; arguments: dict
    no_ack: bool; exclusive: bool; priority: int; prefetch: int
    unacked: int
    timeout_ms: int        # how long a delivery may be unacked; -1: for ever
    number: int            # stands in journals; 0: none was given

class Channel:
    """One AMQP channel: publish numbers, unacked deliveries, confirm mode.  session.channel.Channel is the subclass."""
    def __init__(self, connection: Connection, number: int) -> None: ...
    connection: Connection
    number: int
    confirm: bool          # read only; see select_confirm
    prefetch: int          # per consumer, for consumers to come; 0 = no limit
    global_prefetch: int   # for the whole channel; 0 = no limit
    flow: bool             # False: no deliveries (channel.flow from the client)
    unacked: int
    consumers: dict[bytes, Consumer]
    publishes: int         # messages published on this channel number since the connection began
    closing: bool          # we sent channel.close: all but channel.close and close-ok is dropped
    tx: bool               # publishes go up (on_publish), and so do ack, nack and reject (on_method)
    keeps: bool            # of tx: publishes are kept, except those that ask for more than to be stored; these go up
    def take_kept(self) -> Kept | None:
        """What has been kept since the last call; None: nothing."""
    late: int              # settlements that came after their delivery had timed out
    def select_confirm(self) -> None:
        """Confirm every publish from now on; once is enough."""
    def consume(self, queue: Queue, tag: bytes, *, no_ack: bool, exclusive: bool, priority: int, arguments: dict,
                timeout_ms: int = -1, timeout_closes: bool | None = None, consumer_number: int = 0) -> Consumer:
        """Deliveries start in the next turn; the caller writes consume-ok first.  timeout: the queue's own, unless given.
        consumer_number: never used twice, from the same numbers as connections."""
    def settle(self, tag: int, multiple: bool, *, requeue: int = 0, reject: bool = False) -> bool:
        """What basic.ack, nack and reject do.  requeue: the message comes back, for this cause (store/format.CAUSE_NACK and
        so on); 0: it does not.  False: unknown delivery tag, nothing done."""
    def knows(self, tag: int, multiple: bool) -> bool:
        """Whether settle() would find it."""
    def deliveries(self, tag: int, multiple: bool) -> list[tuple[int, Any, int]]:
        """What settle() would settle: (delivery tag, queue, seq), oldest first; no queue where it has timed out."""
    def claim(self, tag: int, multiple: bool) -> None:
        """These deliveries do not time out: a transaction is to settle them."""
    def disclaim(self) -> None:
        """All deliveries may time out."""
    def take_tag(self) -> int:
        """A delivery tag for a message that the session itself delivers, without acks.  Raises MemoryError."""
    def count_publish(self) -> int:
        """Count a publish that on_publish() was given; its number."""
    def cancel(self, consumer: Consumer) -> None:
        """Stop delivering to a consumer; its unacked deliveries stay unacked."""
    def get(self, queue: Queue, no_ack: bool) -> bool:
        """Write basic.get-ok with the next message, or return False when none is ready."""
    def return_unacked(self, *, connection_closes: bool = False) -> None:
        """Return all unacked messages to their places now, because the channel closes, or its connection with it."""
    def recover(self) -> None:
        """Return all unacked deliveries of the channel to their places."""
    def close(self) -> None:
        """Consumers leave, unacked deliveries return to their places; the number may be opened again."""

class Kept:
    """Publishes of one transaction, which the plane kept."""
    queues: list[Any]      # Queues to which they go, since route(); their numbers are their places here
    stores: int            # messages to be stored, once for each queue
    octets: int            # that they take in queues, at most
    refused: bool          # a queue has refused one of them
    count: int             # of the publishes
    def places(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """Of these publishes: where each begins in log_messages(), its octets there, its bits (mandatory, immediate)."""
    def drop_octets(self) -> None:
        """The caller has log_messages() elsewhere: only count and places() hold from now on."""
    def route(self, channel: Channel) -> bool:
        """Find where all of them go now.  False: a route is not remembered, or asks for more than to store them."""
    def log_messages(self, begin: int = 0, most: int = -1) -> bytes:
        """The messages, as they stand in a commit log, from this octet on; most: how many octets, -1 for all."""
    def log_places(self, begin: int) -> bytes:
        """The part of a commit log's plan that says in which durable queues each is; ``begin``: where messages begin."""
    def put(self, core: Core, connection: int, channel: int, *, sync: bool) -> None:
        """Store all that are not stored yet, in their order.  ``sync``: the next sync covers them, else the one after
        Core.sync_next().  Raises OSError where there is no room; the next call goes on."""

class Connection:
    """One client's octets: frames are cut, what must wait is stashed, output is written.  session.connection.Connection is
    the subclass, and the loop's BufferedProtocol.  The plane gives what an upcall (on_*) raises to on_error()."""
    def __init__(self, core: Core) -> None: ...
    number: int            # never reused, also over restarts; written into each record it publishes
    routes: Routes | None  # set when the vhost is opened
    frame_max: int         # octets of a whole frame; checked on input, obeyed on output
    channels: dict[int, Channel]
    received_octets: int; sent_octets: int      # counters
    discard: bool          # we sent connection.close: all but connection.close and close-ok is dropped
    publishes: bool        # has published since the last alarm began
    output_waits: bool     # a full transport keeps output waiting
    waiting_octets: int    # ... and how many
    held_octets: int       # of output, of unfinished messages, and of what came and waits for its turn
    # --- the loop's side (asyncio.BufferedProtocol)
    def attach(self, transport: object, fd: int) -> None:
        """fd: for direct sends; -1: output goes by transport.write alone (TLS)."""
    def get_buffer(self, sizehint: int) -> memoryview:
        """The core's read buffer."""
    def buffer_updated(self, nbytes: int) -> None:
        """Work the chunk to its end.  Runs a turn."""
    def feed(self, octets: bytes) -> None:
        """The same for octets that did not come by the read buffer (tests).  Runs a turn."""
    yielded: bool          # octets wait for their turn, or for go_on(), and nothing more is read until then
    ended: bool            # finish_octets() was called
    def finish_octets(self) -> bool:
        """No more octets will come, and nobody reads.  True: none wait.  False: those that wait for their turn, or for go_on(),
        have their turns, and then comes on_octets_finished()."""
    def on_octets_finished(self) -> None:
        """An upcall: call detach() now."""
    def rest(self) -> None:
        """Leave the client's next octets alone until go_on().  Each rest() needs its go_on()."""
    def go_on(self) -> None:
        """Take one rest() back; after the last one the octets that wait have their turn."""
    def pause_writing(self) -> None:
        """The transport still has octets to send: deliver no more messages to the connection's consumers."""
    def resume_writing(self) -> None:
        """The transport has sent them: deliver again.  Runs a turn."""
    def detach(self) -> None:
        """The socket is gone: close every channel, and write no more octets.  Runs a turn."""
    # --- the session's side
    def write(self, octets: bytes) -> None:
        """Append whole frames to the output; the turn's end sends them.  Raises MemoryError."""
    def hold(self) -> None:
        """Send no output until release(), because a definition waits for its sync.  Each hold() needs its release()."""
    def release(self) -> None:
        """Take one hold() back; the last one lets the next turn send."""
    def flush(self) -> None:
        """Send what is written now, for a transport that is closed outside of a turn."""
    def unblock(self) -> None:
        """The alarm is over: parse the octets that waited, then read again.  Runs a turn."""
    stopped: bool          # not read from because of an alarm or a full disk: its heartbeats do not count as missed
    # --- upcalls
    def on_protocol_header(self, octets: bytes) -> None:
        """The first eight octets of the connection."""
    def on_method(self, channel: int, payload: bytes) -> None:
        """A method; payload from class-id on.  The plane itself does publish, ack, nack and reject on an open channel."""
    def on_publish(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        """A publish on a channel with tx set; payloads as on the wire, whole."""
    def on_error(self, channel: int, error: Exception, class_id: int, method_id: int) -> None:
        """An AMQPError of the plane or of resolve(), or what an upcall raised.  Closes the channel or the connection."""
    def on_publisher_blocked(self) -> None:
        """Core.blocked is set, or the disk is full, and this connection publishes: tell the client.  The plane does not
        read from it until unblock()."""

RULES: dict[str, tuple[int, int, int, int]]
"""The rules that Queue.set_rules() takes, by name; the last field of a row is the value that means no limit."""
asserted: bool
"""This build checks its own assertions: the one that tests run."""
def sync_filesystem(fd: int) -> None:
    """syncfs(2), which Python's os module lacks: put all that was written to the filesystem of fd on disk.  Gives up the
    interpreter's lock meanwhile.  Raises OSError."""
def crc32c(data: bytes | memoryview, value: int = 0) -> int:
    """CRC32C (Castagnoli) of data, continuing from the value of what came before it."""
def crc32c_by_table(data: bytes | memoryview, value: int = 0) -> int:
    """crc32c() on a processor without the instruction."""
def check_of_entry(segment: int, entry: int) -> int:
    """The check octet of an acks entry that is given with check zero."""
def layout() -> dict[str, dict[str, tuple[int, int]]]:
    """Where the plane reads and writes the fields of its files: name to (offset, octets)."""
def keys_in_segment(
    octets: bytes | memoryview, number: int, ttl_ms: int = -1
) -> tuple[bytes, list[tuple[int, int, bytes]], list[tuple[int, int, bytes, bytes | None]]]:
    """The keys in the whole records of a segment's octets: (rows, own, of_exchanges).  rows: of the queue's keys, as
    store/format.py has them, each with the time that ttl_ms gives it.  own: (index of the row, ms when the message came,
    its properties) of those whose message sets the time.  of_exchanges: (ns when the message came, hash, exchange,
    properties or None)."""
def scan_segment(octets: bytes | memoryview, number: int, start: int) -> tuple[int, int, int, int, int, int]:
    """Follow whole records (bounds, magic, CRC) from position start: (end, records, first_seq, last_seq, last_ts,
    body_octets); end is the first octet that belongs to no whole record."""

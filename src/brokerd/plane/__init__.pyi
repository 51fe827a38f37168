"""The border of the data plane: every verb that crosses it, one section for each object.  Its pages:

    this page       Core         one event loop: the turn, syncs, files to be closed or removed
                    Queue        messages in segments, rules, consumers
                    Consumer     one basic.consume
                    Channel      delivery tags, prefetch, confirms
                    Kept         the publishes of one transaction
                    Connection   a client's octets, in and out
                    Syncer       threads that sync files
                    functions    retention; checksums and layouts, for recovery, tests and tools
    _answers.pyi    Answer       where a publish goes, as routing says it, with Tally, Message and Participant
                    Routes       remembers answers
                    HeaderBindings, Asked, Shape     the bindings of headers exchanges
                    Letters      how the dead letters of one queue are made, and where they go
    _gates.pyi      Gate         a feature that decides which message of a queue goes out, to which consumer and when:
                                 Stream, Delay, Groups, Retry, ClosedGate
    _keys.pyi       Window       keys of messages that were stored lately; Keys, those of one message

The pages stand beside this one only for the reader: all names belong to ``brokerd.plane``.

*Ownership.*  A Python object here owns its C struct, which lives as long as the object does.  The plane never awaits, never
logs, never reads configuration, and does not know what a name means.

*Verbs.*  A verb takes constant time and raises no exception, unless its text says otherwise.  A verb that gives back, settles or
ends many deliveries takes time in proportion to them.

*Turns.*  Most verbs only change what is ready, written or confirmed.  A *turn* then delivers messages, sends confirms and
writes to sockets.  These verbs run a turn themselves: turn, go_on and expire of Core; buffer_updated, feed, resume_writing,
unblock and detach of Connection.  After any other verb that changes something the caller calls Core.turn(), unless the verb
has called ``schedule``, as rare verbs do.

*Upcalls.*  A method that begins with ``on_`` is called by the plane, and overridden by a subclass.
"""

from collections.abc import Callable, Iterable
from typing import Any

from brokerd.plane._answers import Answer as Answer
from brokerd.plane._answers import Asked as Asked
from brokerd.plane._answers import HeaderBindings as HeaderBindings
from brokerd.plane._answers import Letters as Letters
from brokerd.plane._answers import Message as Message
from brokerd.plane._answers import Participant as Participant
from brokerd.plane._answers import Routes as Routes
from brokerd.plane._answers import Shape as Shape
from brokerd.plane._answers import Tally as Tally
from brokerd.plane._gates import ClosedGate as ClosedGate
from brokerd.plane._gates import Delay as Delay
from brokerd.plane._gates import Gate as Gate
from brokerd.plane._gates import Groups as Groups
from brokerd.plane._gates import Retry as Retry
from brokerd.plane._gates import Stream as Stream
from brokerd.plane._gates import check_filter as check_filter
from brokerd.plane._gates import look_through as look_through
from brokerd.plane._gates import plain_due as plain_due
from brokerd.plane._keys import ExchangeWindow as ExchangeWindow
from brokerd.plane._keys import HashKey as HashKey
from brokerd.plane._keys import Keys as Keys
from brokerd.plane._keys import Window as Window
from brokerd.plane._keys import enter_keys_that_wait as enter_keys_that_wait
from brokerd.plane._keys import find_key_hash as find_key_hash
from brokerd.plane._keys import find_own_ttl as find_own_ttl

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
        lost: Callable[[Any], None] | None = None,  # from within a turn: pages of this queue's files are lost, and it is paused
        segment_octets: int = 8 << 20,
        deliver_octets_per_turn: int = 1 << 20,
        message_octets_max: int = 128 << 20,
        frame_octets_max: int = 131072,  # the most that any connection's frame_max may be
        deadline: Callable[[int], None] | None = None,  # ns since the epoch: call expire() then, not before
        descriptors_most: int = 0x7FFFFFFF,  # where a segment gets this descriptor or a higher one, another segment's is closed
        spare_directory: str | None = None,  # settled segments wait here for other queues; None: each queue has its own
        sync: bool = True,               # False: confirms do not wait for the disk (--no-sync)
        work_ns: int = 0,                # the turn of one connection ends after so long, or after 2 MiB of its octets; 0: after
                                         # 2 MiB alone
        calm_ns: int = 0,                # a connection that used at most work_ns in the last calm_ns is calm: calm connections
                                         # and others alternate, and a calm one begins; 0: no connection is calm
        crowd_ns: int = 0,               # after so long of turns, connections that still have octets wait for go_on(); 0: no
                                         # limit
        go_on: Callable[[], None] | None = None,    # octets or errands wait for their turn: call Core.go_on() soon; may be
                                         # None if work_ns is 0 and no errand is added
        device: int = 0,                 # st_dev of the data directory; 0: not known
    ) -> None: ...
    device: int                        # the same, while each segment that was mapped lies there; else 0
    blocked: bool                      # an alarm is in force: connections that publish get on_publisher_blocked()
    clock: Callable[[], int] | None    # ns since the epoch; None: CLOCK_REALTIME (tests travel in time)
    monotonic: Callable[[], int] | None    # ns since some moment; None: CLOCK_MONOTONIC, or `clock` where that is set
    # --- the turn
    def turn(self) -> None:
        """Deliver what is ready, send the confirms that may go, write to sockets.  Each chunk of octets ends with a turn."""
    def go_on(self) -> None:
        """Work on the octets of the connection that has waited longest, and on the errand that has waited longest.  Calm
        connections and others alternate.  Runs a turn."""
    calm_ns: int    # may be changed
    has_errands: bool
    is_crowded: bool    # work for clients took crowd_ns or more since go_on()
    def count_work(self, ns: int) -> None:
        """Say that work for a client took so long, which the plane itself did not see."""
    def add_errand(self, step: Callable[[], bool]) -> None:
        """Call step() in each go_on(), in turns with other errands, until it answers True.  It takes some 1 ms at a time."""
    def expire(self) -> None:
        """Let the expired messages at the heads of queues die.  Runs a turn."""
    def end(self) -> None:
        """Have turn() and expire() do nothing from now on: the broker has stopped, and its queues are about to close."""
    timeouts: int        # consumers that have a timeout: unless this is 0, call return_overdue() once a second
    def return_overdue(self) -> list[Consumer]:
        """Return each delivery that was unacked for longer than its consumer's timeout to its place.  The answer names the
        consumers that ask for their channel to be closed instead."""
    def put(self, queues: tuple[Queue, ...], exchange: bytes, routing_key: bytes, properties: bytes, body: bytes, *,
            connection: int = 0, channel: int = 0, publish_seq: int = 0, sync: bool = False,
            keys: Keys | None = None, redriven: bool = False, returns: Channel | None = None,
            staged: bool = False) -> tuple[Any, ...]:
        """Store a message of the broker's own in each queue, by its rules.  The answer names the queues that have it now:
        the others refused it, or are deleted.  properties: flags and list as on the wire.  The message may be larger than
        clients may publish now.  sync: the next begin_sync() covers it.  redriven: its header x-group-seq is its number in its
        message group, after Groups.put_back().  returns: the channel that published it as mandatory; basic.return is written there
        if a queue refuses the message because it has no group, and no queue takes it.  staged: the record may stay in memory until
        write_stages(), which the caller calls before the loop goes on.  Raises OSError: no space, and no queue has stored it;
        ValueError."""
    def write_stages(self) -> None:
        """Write the records that are still in memory into their files."""
    def sync_next(self, queues: Iterable[Queue]) -> None:
        """Have the next sync cover all messages that were put into these queues."""
    def begin_sync(self, descriptors: int) -> list[tuple[int, str]]:
        """Everything that waiting confirms depend on, as (descriptor, path).  The caller syncs and closes each in its thread
        (fdatasync; fsync where the path ends in '/', a directory), then calls end_sync() on the loop.
        descriptors: how many files get one.  All others have -1 in its place, and so has each file for which the process has
        no descriptor left.  A file with -1 may have been renamed when it is synced; if its directory is gone, there is
        nothing to sync.  Raises OSError."""
    def end_sync(self) -> None:
        """Say that all files that the last begin_sync() named are on disk.  The next turn sends the confirms that waited."""
    # --- figures for operators
    count_figures: bool  # count sizes and times from now on
    def figures(self) -> dict[str, int]:
        """Counters since the start, over all channels: messages published for a confirm (confirm_in), confirmed (confirm), without a
        queue (drop_unroutable, return_unroutable), basic.get of an empty queue (get_empty); and channels that have published."""
    sizes: tuple[tuple[int, ...], int]   # publishes of at most 100, 1,000, … octets, and of more; the sum of their octets
    times: tuple[tuple[tuple[int, ...], int], tuple[tuple[int, ...], int]]  # how long messages waited for a delivery, and
                                     # consumers worked on them: counts of at most 2**18 ns, 4 times that, …; sum in ns
    # --- memory and files to be given up
    unfinished: int          # octets of messages that arrived in part, of all connections together
    unfinished_most: int     # if `unfinished` is more than this, a connection with more than its share gets a fault (506)
    def close_files(self, most: int) -> int:
        """Close at most so many descriptors of segments that were not used lately.  Returns how many."""
    def enforce_retention(self, most: int) -> int:
        """Remove at most so many settled segments that their queues need not retain any more.  Returns how many."""
    spares: int          # settled segments that wait for a queue that needs one: at most 64 with a name, and 8 without
    spares_used: int     # settled segments with a name that queues have taken since start
    def release_spares(self) -> None:
        """Remove the settled segments that wait for other queues.  Of those without a name one call removes only one,
        because that may take a millisecond or two.  Setting `blocked` removes all."""
    def take_settled_segments(self) -> list[tuple[str, int]]:
        """The segments of journaled queues that were settled since the last call, as (folder, number).  Their files are in
        the folder ``kept`` of that folder by now."""
    def take_unwritten_keys(self) -> list[tuple[Queue, int, int]]:
        """Segments since the last call that wait for a file of their keys, as (queue, level, number).  The caller writes what
        key_rows() gives, syncs it, and calls mark_keys_written()."""
    def take_unindexed(self) -> list[tuple[Queue, int]]:
        """Full segments of streams, by their numbers, that want an index (index_segment()).  Call mark_indexed() for each."""
    def mark_indexed(self, queue: Queue, number: int, there: bool) -> bool:
        """Say whether the index of a segment is in its file (there), or cannot be made.  False: the segment is gone, and needs none."""
    def take_garbage(self) -> list[str]:
        """Files that are not needed any more.  The caller unlinks them in this order, in a thread."""

class Queue:
    """Messages in segments, by priority level; the rules of the queue; its consumers.  queues.Queue is the subclass.

    A message is ready, unacked or aside, until it is settled."""
    def __init__(self, core: Core, directory: str, *, durable: bool, max_priority: int = 0) -> None:
        """Makes no file: the first message does, after it has called make_directory()."""
    # --- upcalls, to be overridden
    def make_directory(self) -> None:
        """Make the directory, with the queue's name in it.  Raises OSError."""
    def on_dead(self, reason: str, seq: int, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes,
                count: int) -> bool:
        """A message died.  True: it is settled now.  False: it stays aside until settle_aside(seq).

        reason: "rejected", "expired", "maxlen", "delivery_limit", or "duplicate" in a queue that dead-letters duplicates.
        count: failed deliveries.
        seq: 0 if the queue refused the message, and has not stored it.
        The plane calls this in the order of deaths, and never while another call but finish_deaths() is under way.  It does
        not call it for dead letters that it makes itself, as `letters` says."""
    def on_letters_stored(self, upto: int) -> None:
        """The first `upto` of the at-least-once letters made since the start are in the files of their targets.  Their
        messages stay aside until settle_letters(upto), which may be called when the next sync has ended.  Must not raise."""
    def on_replaced(self, seq: int) -> None:
        """A newer message with the same deduplication key as message `seq` is in its file, and replaces it.  `seq` may be ready.
        Must not raise."""
    def on_delivered(self, channel: Channel, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes,
                     redelivered: bool) -> None:
        """basic.deliver or basic.get-ok was written to a client.  Called while `reports_deliveries`.  Must not raise."""
    # --- rules
    def set_rules(self, **rules: int) -> None:
        """Set all rules of the queue besides its order.  A rule that is not given is off.  RULES has the names, and the values
        that mean no limit.  The rules hold from the next turn.  Raises TypeError for an unknown name.

        ttl_ms              the longest time that a message may be ready
        max_length          messages
        max_octets          octets of bodies
        overflow            0 drop-head, 1 reject-publish, 2 reject-publish-dlx
        dead_letters        on_dead() is called
        delivery_limit      a message dies at this failed delivery
        limit_drops         a message at its delivery limit is dropped
        limit_stops         the gate decides about a message at its delivery limit: see Retry
        delivery_counts     redeliveries carry x-delivery-count and x-acquired-count
        single_active       one consumer gets all messages
        consumer_timeout_ms, timeout_closes     of consumers to come: see Channel.consume()"""
    letters: Letters | None      # None: on_dead() is called for each
    gate: Gate | None            # None: sequence order alone.  Setting it makes ready what the former gate let wait, and
                                 # raises ValueError for the gate of another queue
    reports_deliveries: bool         # while this is set, on_delivered() is called
    max_priority: int
    active: Consumer | None      # the single active consumer
    consumers: dict[Consumer, None] | None
    paused: bool         # no message is delivered
    lost: bool           # pages of its files could not be read or written, and have zeros now
    # --- messages
    def browse(self, start_seq: int, count: int) -> list[Row]:
        """Ready messages from that sequence number on, in the order in which they would be handed out.  Reads files."""
    def remove(self, seq: int) -> Row | None:
        """Take a ready message out, wherever it stands, and settle it.  None: no such message is ready.  Reads files."""
    def purge(self) -> int:
        """Settle every ready message, and those that the queue's gate lets wait.  Returns how many.  ValueError: the queue is a
        stream, whose messages go by Stream.purge()."""
    def finish_deaths(self, most: int) -> bool:
        """Let the expired messages at the heads die, and deal with dead messages in the order of their deaths, until they
        count for `most`.  A message counts 1 for each queue that its dead letter goes to, which is about 1 µs; one for
        on_dead() counts more.  False: some are left."""
    # --- messages set aside: neither ready nor out
    aside: int           # how many: dead letters under way, those of set_aside(), and those that the gate lets wait
    def set_aside(self, seq: int) -> bool:
        """Take a message that is ready, or waits because the gate says so, out of the order, wherever it stands, until
        release().  It is not handed out, does not expire, and counts for no limit.  After a restart it is at its place as
        before.  False: there is no such message; or it waits so far behind in its group that it was not looked for."""
    def release(self, seq: int) -> bool:
        """Give a message of set_aside() back to its place.  False: set_aside() does not hold it."""
    def browse_aside(self, start_seq: int, count: int) -> list[Row]:
        """The messages that are aside, as browse() shows those that are ready."""
    def settle_aside(self, seq: int) -> None:
        """Settle a message that is aside: on_dead() left it there, and its dead letter has arrived; or set_aside() put it there,
        and it is removed.  An unknown number has no effect."""
    def settle_letters(self, upto: int) -> None:
        """Settle the messages of the first `upto` letters that on_letters_stored() named: these letters are on disk."""
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
    delivered_no_ack: int; got_no_ack: int      # those of `delivered` and `got` that need no ack
    times: tuple[tuple[tuple[int, ...], int], tuple[tuple[int, ...], int]] | None  # as Core.times; None: not counted
    expired: int; discarded: int; dead_lettered: int; refused: int; limited: int; timed_out: int
    unrecorded: int      # settlements that a full disk would not take: these messages come again after a restart
    touched: int         # ns: last message stored or delivered
    unused_since: int    # ns of Core.monotonic: last consumer, get or touch(); now, while there are consumers
    def touch(self) -> None:
        """The queue is in use: `unused_since` is now."""
    def order_counts(self) -> tuple[list[int], list[int]]:
        """How often each of store.format.ORDER_COUNTERS disturbed the order: since the queue was declared, and since this broker
        started.  kill -9 loses none of the first, a power cut may."""
    def check(self) -> None:
        """Walk the whole queue, and compare each count with the messages, except the ready octets, which are an estimate.  For
        tests.  Raises AssertionError."""
    # --- recovery and compaction
    def attach_segment(self, number: int, *, end: int, records: int, settled: int, base_seq: int, delivered: int,
                       acks: int, capacity: int, ready_octets: int, synced: bool, generation: int = 0,
                       level: int = 0, doubted: int = 0, created: int = 0) -> None:
        """Add one segment found on disk.  Segments come in rising order of number.  acks: sound entries in its acks file;
        delivered, doubted, created: the words of that name.  The plane checks each record (bounds, CRC) when it reads it.  See
        store/recovery.py."""
    def finish_recovery(self, next_seq: int, *, suspect: bool, last_ts: int = 0, last_number: int = 0) -> None:
        """End the recovery: all segments are attached, and the last one is appended to again.  suspect: power was lost.
        last_number: the highest number that files of segments have; new segments get higher ones."""
    def segments(self) -> list[dict]:
        """For inspection and compaction, level 0 first, oldest first: level, number, end, records, settled, unacked,
        returned, aside, waiting, base_seq, generation, entries, capacity, retained, mapped, sealed, damaged, events (of
        the journal; -1: none).  The files hold at least so much of each.  Walks all segments."""
    def can_compact(self, number: int, level: int = 0) -> bool:
        """Whether replace_segment() may be called: the segment is full, and the cursor has passed all of it."""
    def replace_segment(self, number: int, old: Any, new: Any, end: int, capacity: int, generation: int,
                        entries: int, level: int = 0) -> None:
        """Follow a compaction, which has replaced the file of a segment by one with only its live records.  old and new: u4
        arrays, both rising, of where each record was and is.  Every position in memory changes with them.  Raises ValueError,
        and changes nothing, if a record that is in use is not among them.  Walks all unacked deliveries."""
    copying: bool        # its files are being copied: settled segments are not written over
    # --- deduplication keys
    window: Window | None    # the plane enters the keys of stored messages here.  Set it before finish_recovery(), with the
                             # keys of the key files in it
    def can_drop_records(self, number: int, level: int = 0) -> bool:
        """Whether a segment's records can be removed without loss of a key.  False: if the segment is full, the next
        Core.take_unwritten_keys() names it."""
    def key_rows(self, number: int, level: int = 0) -> bytes:
        """Rows of a key file (store/format.py) for all keys of a segment that the window knows.  Walks the segment's records.
        Raises OSError."""
    def mark_keys_written(self, number: int, level: int = 0) -> None:
        """Say that the keys of a segment are on disk in a file of their own, so that its records may go."""
    # --- the order journal
    journaled: bool      # an order journal is written
    def set_journal(self, on: bool) -> None:
        """From now on write every event of a message's life into files beside the segments, or stop.  Settled segments of a
        journaled queue move into the folder ``kept``.  At recovery this comes before attach_segment().  Raises ValueError:
        the queue is not durable."""
    def begin_journal_sync(self) -> list[str]:
        """Paths of journals written to since the last call.  The caller syncs them in a thread, then calls
        end_journal_sync()."""
    def end_journal_sync(self) -> None:
        """Say that all files that the last begin_journal_sync() named are on disk."""
    # --- the end
    def drop(self) -> None:
        """End the queue, because it is deleted: its consumers leave, and settling its unacked deliveries has no effect.  The
        caller removes the directory.  Then it calls free_some() until that is True."""
    def free_some(self) -> bool:
        """Give up some maps and descriptors of a dropped queue: each may take long, where the disk is busy.  False: there are more."""
    def close(self) -> None:
        """Close maps and descriptors, because the broker stops.  The caller has synced; no other verb may follow."""
    def rest(self) -> bool:
        """Close maps and descriptors of an idle queue until they are needed again.  True if it had any."""

class Consumer:
    """One basic.consume.  Channel.consume() makes it."""
    tag: bytes; queue: Queue; channel: Channel; arguments: dict
    no_ack: bool; exclusive: bool; priority: int; prefetch: int
    unacked: int
    delivered: int         # messages that it got, since it is there
    timeout_ms: int        # how long a delivery may be unacked; -1: for ever
    number: int            # identifies it in journals; 0: it has none

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
    keeps: bool            # with tx: the plane keeps publishes until commit; a publish that needs more than storing goes up
    late: int              # settlements that came after their delivery had timed out
    def take_kept(self) -> Kept | None:
        """The publishes that the plane has kept since the last call; None: it has kept none."""
    def select_confirm(self) -> None:
        """Confirm every publish from now on; once is enough."""
    def consume(self, queue: Queue, tag: bytes, *, no_ack: bool, exclusive: bool, priority: int, arguments: dict,
                timeout_ms: int = -1, timeout_closes: bool | None = None, consumer_number: int = 0,
                numbers: bool = False) -> Consumer:
        """Add a consumer.  Deliveries start in the next turn, so the caller writes consume-ok first.

        timeout_ms: how long a delivery may be unacked; -1: as long as the queue's rule says.  timeout_closes: whether the
        channel is closed then, see Core.return_overdue(); None: as the queue's rule says.  consumer_number: never used
        twice, from the same numbers as connections.  numbers: its deliveries have the headers x-message-seq, the message's
        number in its queue, and x-message-ns, its time in nanoseconds since 1970."""
    def settle(self, tag: int, multiple: bool, *, requeue: int = 0, reject: bool = False) -> bool:
        """Do what basic.ack, nack and reject do.  requeue: give the message back, for this cause (store/format.CAUSE_NACK
        and so on); 0: settle it.  False: the delivery tag is unknown, and nothing is done."""
    def knows(self, tag: int, multiple: bool) -> bool:
        """Whether settle() would find the delivery tag."""
    def deliveries(self, tag: int, multiple: bool) -> list[tuple[int, Any, int]]:
        """The deliveries that settle() would settle: (delivery tag, queue, seq), the oldest first.  The queue is None if the
        delivery has timed out."""
    def held(self, queue: Queue, first: int, most: int) -> tuple[int, list[tuple[int, int, Consumer | None, int, int]]]:
        """What the client holds of a queue, among `most` delivery tags from `first` on: (delivery tag, seq, consumer or None
        for basic.get, hand-out in ms since the epoch, failed deliveries before), the oldest first.  Before them the tag to go
        on with; channel.outstanding says the last one."""
    @property
    def figures(self) -> dict[str, int]:
        """Counters since the channel was opened: publish (since the number was first opened), confirm, deliver, get,
        deliver_get, ack.  As in those of queues, a delivery that needs no ack counts as acked, and so does a rejected one."""
    @property
    def unconfirmed(self) -> int:
        """Publishes in confirm mode that are not confirmed yet."""
    def claim(self, tag: int, multiple: bool, outcome: int) -> tuple[int, int, int]:
        """Claim these deliveries for a transaction that is to settle them, except those that it claimed before: until then they do
        not time out.
        outcome: the session's number for the way in which they will be settled, up to 254.  Returns the first and the last tag,
        and how many were claimed now.  Raises LookupError: the delivery tag is unknown, or claimed already."""
    def claimed(self, first: int, last: int, outcome: int) -> list[tuple[Any, int]]:
        """The deliveries of these tags that were claimed for this outcome and did not time out before: (queue, seq)."""
    def settle_claimed(self, first: int, last: int, upto: int, outcome: int, *, requeue: int = 0, reject: bool = False) -> None:
        """Do what settle() does with the deliveries of these tags that were claimed for this outcome.  Further calls follow,
        for the tags up to `upto`.  Raises ValueError: no delivery has had the last tag."""
    @property
    def outstanding(self) -> tuple[int, int]:
        """The first and the last tag of unacked deliveries."""
    def return_unclaimed(self, first: int, last: int, upto: int, cause: int) -> None:
        """Give back, for this cause, the deliveries of these tags that were not claimed.  The rest is as in settle_claimed()."""
    def disclaim(self) -> None:
        """All deliveries may time out."""
    def take_tag(self) -> int:
        """A delivery tag for a message that the session itself delivers, without acks.  Raises MemoryError."""
    def count_publish(self) -> int:
        """Count a publish that on_publish() was given, and return its number."""
    def cancel(self, consumer: Consumer) -> None:
        """Stop delivering to a consumer; its unacked deliveries stay unacked."""
    def get(self, queue: Queue, no_ack: bool) -> bool:
        """Write basic.get-ok with the next message, or return False when none is ready."""
    def return_unacked(self, *, connection_closes: bool = False) -> bool:
        """Return the first unacked messages, at most some thousand, to their places, because the channel closes, or its
        connection with it.  False: there are more."""
    def recover(self) -> bool:
        """Return the first of the unacked deliveries, at most some thousand, to their places.  False: there are more of those
        that were unacked at the first call, and the next call goes on with them."""
    def close(self) -> None:
        """End all consumers, and return unacked deliveries to their places.  The channel's number may be opened again."""

class Kept:
    """The publishes of one transaction, which the plane has kept until commit."""
    queues: list[Any]      # after route(): the Queues to which they go; log_places() names a queue by its place in this list
    stores: int            # after route(): messages to be stored, counted once for each queue
    octets: int            # after route(): the octets that they take in queues, at most
    refused: bool          # a queue has refused one of them
    count: int             # of the publishes
    def places(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """Where each of these publishes begins in log_messages(), its octets there, and its bits (mandatory, immediate)."""
    def drop_octets(self) -> None:
        """Free the messages, because the caller has a copy of log_messages().  From now on only `count` and places() hold."""
    def route(self, channel: Channel) -> bool:
        """Find the queues of all publishes.  False: a route is not remembered, or asks for more than to store the message."""
    def copy_large(self) -> bool:
        """After route(): have a file for each further queue of a large message, so that put() copies nothing.  False: the time of a
        turn is over, and there is more to do."""
    def log_messages(self, begin: int = 0, most: int = -1) -> bytes:
        """The messages, as they stand in a commit log, from this octet on; most: how many octets, -1 for all."""
    def log_places(self, begin: int) -> bytes:
        """The part of a commit log's plan that says in which durable queues each message is.  begin: where messages begin."""
    stored: int            # how many of the publishes put() has stored
    def put(self, core: Core, connection: int, channel: int, *, sync: bool, returns: Channel | None = None) -> bool:
        """Store messages that are not stored yet, in their order.  False: the time of a turn is over, and there are more.
        sync: True: the next sync covers them; False: the first one after Core.sync_next().  returns: the channel that gets
        basic.return as in Core.put(), if it is there still.  Raises OSError if there is no room; the next call goes on."""

class Connection:
    """One client's octets: the plane cuts frames, stashes octets that must wait, and writes output.  The subclass is
    session.connection.Connection, which is also the loop's BufferedProtocol.  An error that an upcall (on_*) raises goes to
    on_error()."""
    def __init__(self, core: Core) -> None: ...
    number: int            # never reused, also over restarts; written into each record it publishes
    routes: Routes | None  # set when the vhost is opened
    frame_max: int         # octets of a whole frame; checked on input, obeyed on output
    channels: dict[int, Channel]
    received_octets: int; sent_octets: int      # counters
    discard: bool          # we sent connection.close: all but connection.close and close-ok is dropped
    publishes: bool        # the client has published since the last alarm began
    output_waits: bool     # a full transport keeps output waiting
    waiting_octets: int    # octets of output that wait so
    held_octets: int       # octets of output, of unfinished messages, and of input that waits for its turn
    # --- the loop's side (asyncio.BufferedProtocol)
    def attach(self, transport: object, fd: int) -> None:
        """fd: for direct sends; -1: output goes by transport.write alone (TLS)."""
    def get_buffer(self, sizehint: int) -> memoryview:
        """The core's read buffer."""
    def buffer_updated(self, nbytes: int) -> None:
        """Work the chunk to its end.  Runs a turn."""
    def feed(self, octets: bytes) -> None:
        """Work octets that did not come by the read buffer.  Runs a turn."""
    yielded: bool          # octets wait for their turn, or for go_on(), and nothing more is read until then
    ended: bool            # finish_octets() was called
    def finish_octets(self) -> bool:
        """The client sends no more octets and reads none.  True: no octets wait.  False: some wait for their turn or for go_on();
        when they are worked, on_octets_finished() is called."""
    def on_octets_finished(self) -> None:
        """An upcall: the octets that waited are worked.  Call detach() now."""
    def rest(self) -> None:
        """Leave the client's next octets alone until go_on().  Each rest() needs its go_on()."""
    def go_on(self) -> None:
        """Take one rest() back; after the last one the octets that wait have their turn."""
    def await_answer(self, comes_again: bool) -> None:
        """Rest until answered(), even if the client has gone meanwhile.  ``comes_again``: called from within on_error();
        after answered() the method or publish that failed is worked on again."""
    def answered(self) -> None:
        """The answer is there."""
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
        """Send the output that is written now, for a transport that is closed outside of a turn."""
    def unblock(self) -> None:
        """The alarm is over: parse the octets that waited, then read again.  Runs a turn."""
    stopped: bool          # the plane does not read because of an alarm or a full disk: heartbeats do not count as missed
    # --- upcalls
    def on_protocol_header(self, octets: bytes) -> None:
        """The first eight octets of the connection came."""
    def on_method(self, channel: int, payload: bytes) -> None:
        """A method came; payload: from class-id on.  The plane itself does publish, ack, nack and reject on an open channel."""
    def on_publish(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        """A publish came on a channel with tx set; payloads: as on the wire, whole."""
    def on_error(self, channel: int, error: Exception, class_id: int, method_id: int) -> None:
        """The plane, resolve() or an upcall raised this error: close the channel or the connection."""
    def on_publisher_blocked(self) -> None:
        """Core.blocked is set, or the disk is full, and this connection publishes: tell the client.  The plane does not
        read from it until unblock()."""

class Syncer:
    """Threads that sync a few files at a time, without Python's lock."""
    def __init__(self) -> None:
        """Raises OSError: no thread, or no descriptor, is left."""
    def fileno(self) -> int:
        """A descriptor that is readable when a sync is over: then call finish()."""
    def begin(self, files: list[tuple[int, str]], filesystem: bool = False) -> None:
        """Sync and close 1 to 16 (descriptor, path), up to 8 of them at once: fdatasync, but fsync where the path ends in '/'.
        filesystem: one syncfs of the first file's filesystem stands for all.  begin() comes again only after finish()."""
    def finish(self) -> bool:
        """Whether the sync is over.  Raises OSError, which names the path, if a file could not be synced."""
    def stop(self) -> None:
        """Finish the sync that is under way, and end the threads."""

def describe_retention(queue: Queue) -> tuple[int, int, int, int]:
    """Segments that are retained, their octets, the first message in the oldest of them (0: none), and how many messages were
    replayed since start."""
def counters_of(queue: Queue) -> tuple[int, ...]:
    """published, delivered, got, acked, redelivered, returned, expired, discarded, dead_lettered, refused, limited, timed_out,
    delivered_no_ack and got_no_ack of the queue."""
def sum_counters(queues: list[Any]) -> tuple[int, int, int, tuple[int, ...]]:
    """Consumers, ready messages, those that are out, and the counters of counters_of(), summed over these queues."""
def letter_headers(queue: Queue, seq: int) -> bytes:
    """The headers that the queue's gate adds to the dead letter of a message that is aside: items of a table."""
def purge_some(queue: Queue, below: int, most: int) -> tuple[int, bool]:
    """Drop up to `most` messages: those that wait in the queue's gate, then ready ones with numbers below `below`; a whole file
    counts as one.  Returns how many were dropped, and whether all such messages are gone."""
def parked_in_segment(queue: Queue, number: int, level: int = 0) -> list[int]:
    """The messages of a segment, settled ones left out, whose last entry says that they are parked."""
def replay(queue: Queue, start_seq: int, stop_seq: int, *, level: int = 0, since_ns: int = 0, chosen: Any = None,
           groups: Window | None = None, group: bytes = b"", most: int = 0xFFFFFFFF, looks: int = 4096,
           dry: bool = False) -> tuple[int, int, int, int]:
    """Make settled messages of a level ready again, each at its own place: those from start_seq to stop_seq that came at
    since_ns or later, are `chosen` (u8 numbers, rising; None: all), and are in the group `group` as `groups` finds it.  Messages
    that were purged, or removed by an operator, stay settled.  It looks at `looks` records, and replays at most `most` messages.
    Returns how many it replayed, the number to go on from (0: it has looked at all), and the first and the last of them.  dry:
    count only.  Raises OSError: no room for the entries; the messages before are replayed."""
RULES: dict[str, tuple[int, int, int, int]]
"""The rules that Queue.set_rules() takes, by name; the last field of a row is the value that means no limit."""
asserted: bool
"""Whether this is the build for tests, which checks its own assertions."""
def sync_filesystem(fd: int) -> None:
    """Put all data that was written to the filesystem of fd on disk: syncfs(2), which Python's os module lacks.  Releases the
    interpreter's lock meanwhile.  Raises OSError."""
def crc32c(data: bytes | memoryview, value: int = 0) -> int:
    """CRC32C (Castagnoli) of data.  value: the CRC32C of the data before it."""
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
def index_segment(fd: int, number: int) -> bytes | None:
    """The octets of a full segment's index (index.pxi), made of its open file without Python's lock.  None: the segment is not
    full, or not whole."""
def scan_segment(octets: bytes | memoryview, number: int, start: int) -> tuple[int, int, int, int, int, int]:
    """Follow whole records (bounds, magic, CRC) from position start: (end, records, first_seq, last_seq, last_ts,
    body_octets); end is the first octet that belongs to no whole record."""

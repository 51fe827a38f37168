"""The border of the data plane: every verb that crosses it, and no other.

Objects here own C structs; whoever holds the object keeps the struct alive.
Nothing below this line awaits, logs, reads config or knows what a name means.
Unless a verb says otherwise it is O(1) and raises nothing.
"""

from collections.abc import Callable
from typing import Any, Protocol

class Core:
    """The data plane of one event loop: read buffer, dirty lists, the turn."""

    def __init__(
        self,
        *,
        schedule: Callable[[], None],      # work is left over: call turn() soon (loop.call_soon)
        request_sync: Callable[[], None],  # a confirm waits: begin_sync() when the last one ended
        storage_failed: Callable[[int], None],  # errno: nothing was lost, the publishers stand still
        damaged: Callable[[str, int, int], None],  # path, position, octets skipped: not readable any more
        segment_octets: int = 8 << 20,
        deliver_octets_per_turn: int = 1 << 20,
        message_octets_max: int = 128 << 20,
        frame_octets_max: int = 131072,  # the most that any connection's frame_max may be
        deadline: Callable[[int], None] | None = None,  # ns since the epoch: call expire() then; replaces the last one
        spare_directory: str | None = None,  # settled segments are kept here for other queues; None: they are not
        sync: bool = True,               # False: confirms do not wait for the disk (--no-sync)
    ) -> None: ...
    blocked: bool                      # alarm in force: publishing connections get on_publisher_blocked
    clock: Callable[[], int] | None    # ns since the epoch; None: CLOCK_REALTIME (tests travel in time)
    def turn(self) -> None:
        """Deliver what is ready, confirm what may be, send what is written; called after each chunk by itself,
        and to be called by whoever changed something from outside (a timer, an end of sync)."""
    def expire(self) -> None:
        """What is over at the heads of queues dies; then a turn."""
    timeouts: int        # consumers whose deliveries may time out: call overdue() while there are any
    def overdue(self) -> list[Consumer]:
        """Deliveries unacked for longer than their consumer's timeout return to their places, alone; call turn() after.
        Consumers of which the channel is to be closed instead."""
    def put(self, queues: tuple[Queue, ...], exchange: bytes, routing_key: bytes, properties: bytes, body: bytes, *,
            connection: int = 0, channel: int = 0, publish_seq: int = 0, sync: bool = False,
            keys: Keys | None = None) -> tuple[Any, ...]:
        """Store a message that no client is publishing just now, in each queue by its rules; the queues that have it now:
        the others refused it, or are deleted.  properties: flags and list as on the wire.  sync: the next begin_sync()
        covers it.  Raises OSError: no space, then it is stored nowhere; ValueError."""
    def begin_sync(self) -> list[tuple[int, str]]:
        """Duplicated fds of all that waiting confirms stand on; (fd, path). The caller fdatasyncs and closes them
        in its thread (a path ending in '/' is a directory: fsync), then calls end_sync() on the loop."""
    def end_sync(self) -> None:
        """All of the last begin_sync() is on disk: the confirms that waited for it go out (call turn() after)."""
    spares: int          # segments kept for whichever queue needs one next, at most 64
    spares_used: int     # of these, taken by a queue since start
    def release_spares(self) -> None:
        """Put the segments that are kept for queues to come on the garbage; also done while `blocked`."""
    def take_kept(self) -> list[tuple[str, int]]:
        """Settled segments of journaled queues since the last call: (folder, number); their files are now in the folder
        ``kept`` of that folder."""
    def take_keyed(self) -> list[tuple[Queue, int, int]]:
        """Segments whose keys are to be written into a file since the last call: (queue, level, number).  Write what
        key_rows() gives, sync it, and call keys_kept()."""
    def take_garbage(self) -> list[str]:
        """Files that nobody needs any more, to be unlinked, in this order, off the loop."""

class Window:
    """The keys entered last, as hashes (never 0), each until its time is over.  Times are ms since the epoch."""
    def __init__(self, size: int, ttl_ms: int = -1) -> None:
        """size: keys in it at most; memory follows those that are.  ttl_ms: of a key that brings no time of its own; -1: none.
        Raises ValueError: size 0."""
    size: int
    ttl_ms: int
    entered: int         # since it was made
    octets: int          # of memory
    def __len__(self) -> int: ...
    def knows(self, hash_: int, now_ms: int) -> bool: ...
    def enter(self, hash_: int, expires_ms: int, now_ms: int) -> None:
        """The newest from now on; the oldest goes where there are too many.  Raises ValueError: 0."""
    def load(self, rows: bytes, now_ms: int) -> None:
        """Enter rows of key files (store/format.py), in any order; each once.  O(rows)."""
    def set_bounds(self, size: int, ttl_ms: int = -1) -> None:
        """Another size, with as many of the newest keys as there is room for; another time, for keys to come."""

class Keys:
    """The keys of one message."""
    def __init__(self, of_queues: dict[Queue, int], of_exchange: int = 0, ttl_ms: int = -1) -> None:
        """of_queues: hashes in the queues that have a window; its record in these carries that.  of_exchange: what its
        records in other queues carry.  0: none.  ttl_ms: how long its keys count, where the message says so; else -1."""

class Tally:
    """Counters of one exchange."""
    published: int
    routed: int

class Message:
    """What a message is made of, as stored: properties are flags and list as on the wire."""
    def __init__(self, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes) -> None: ...
    exchange: bytes
    routing_key: bytes
    properties: bytes
    body: bytes

class Participant(Protocol):
    """A feature that takes part in a publish.  It is asked for its queues just before the message is stored, and told
    just after.  No other message comes between the two calls; a message that waits for room is asked for again."""
    @property
    def counts_as_routed(self) -> bool:
        """Whether this takes the message, so that it is not returned though no queue is left.  Asked after
        before_storing()."""
    def before_storing(self, queues: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The queues that the message still goes to: these, or fewer.  None: it goes nowhere at all, and the participants
        behind this one are neither asked nor told.  Must not raise."""
    def after_storing(self, message: Message, channel: Any, stored: tuple[Any, ...]) -> None:
        """The message has been stored in the queues `stored`: a queue may have refused it, and an immediate message may
        be nowhere.  channel: where it was published; None: the broker itself sent it.  Must not raise."""

class Answer:
    """What routing says of one publish.  The plane reads it in C; where participants are there, it calls them."""
    def __init__(self, queues: tuple[Any, ...], *, tally: Tally | None = None, cacheable: bool = False,
                 properties: bytes | None = None, participants: tuple[Participant, ...] = (),
                 keys: Keys | None = None) -> None: ...
    queues: tuple[Any, ...]      # each once, where the message is to be stored, unless a participant says otherwise
    tally: Tally | None          # where the publish is counted
    cacheable: bool              # the next message of that exchange and key goes there too
    properties: bytes | None     # stored in place of the message's own; such an answer is never cached
    participants: tuple[Participant, ...]   # asked and told in this order
    keys: Keys | None            # that the message's records carry; only with a participant that looks for duplicates
    def before_storing(self) -> tuple[Any, ...]:
        """Ask the participants: the queues that they leave.  Who stores the message without the plane calls this first."""
    def after_storing(self, message: Message, channel: Any, stored: tuple[Any, ...]) -> None:
        """Tell the participants that the last before_storing() has asked."""
    @property
    def counts_as_routed(self) -> bool:
        """Whether one of these takes the message, so that it is not returned though no queue is left."""

class Routes:
    """Where messages go, remembered per (exchange, routing key), for one user of one vhost."""
    def __init__(self, core: Core, resolve: Callable[[bytes, bytes, bytes, Channel], Answer]) -> None:
        """resolve(exchange, routing_key, header_payload, channel) -> Answer; raises AMQPError.  It is asked again for the
        next message where the answer is not cacheable; and, whatever the answer says, for messages with a user-id, a CC
        or BCC header, a reply-to that begins amq.rabbitmq.reply-to or amq.direct.reply-to, or an expiration that is not
        a plain number of at most ten years."""
    def clear(self) -> None:
        """Forget all: a binding, exchange, queue or permission changed."""

class Queue:
    """Messages waiting: segments on disk, what is ready, who consumes.  Subclassed by queues.Queue."""
    def __init__(self, core: Core, directory: str, *, durable: bool, max_priority: int = 0) -> None:
        """No file is made before the first message. The directory is made (with its parents' last part) on demand,
        by the make_directory() method of the subclass."""
    def on_dead(self, reason: str, seq: int, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes,
                count: int) -> bool:
        """Overridden: a message died ("rejected", "expired", "maxlen", "delivery_limit") after `count` failed deliveries.
        Called in the order in which they died, never from inside itself.  seq 0: it was refused, and is not stored.
        True: done with, it is settled.  False: kept, in no count, until dead_done(seq); ready again after a crash."""
    def set_rules(self, *, ttl_ms: int = -1, max_length: int = -1, max_octets: int = -1, overflow: int = 0,
                  dead_letters: bool = False, delivery_limit: int = -1, limit_drops: bool = False,
                  delivery_counts: bool = False, single_active: bool = False, consumer_timeout_ms: int = -1,
                  timeout_closes: bool = False) -> None:
        """What is asked beside order, all of it; -1: none.  Holds from the next turn.  A queue that was never asked costs
        nothing.  overflow: 0 drop-head, 1 reject-publish, 2 reject-publish-dlx.  dead_letters: on_dead() is called.
        delivery_limit: failed deliveries after which a message dies (dropped with limit_drops).  delivery_counts:
        redeliveries carry x-delivery-count and x-acquired-count.  consumer_timeout_ms: of consumers to come."""
    traced: bool         # on_delivered() is told of each delivery
    def on_delivered(self, channel: Channel, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes,
                     redelivered: bool) -> None:
        """Overridden: a message was written to a client, by basic.deliver or basic.get-ok.  Must not raise."""
    def dead_done(self, seq: int) -> None:
        """A message that on_dead() kept is dead-lettered by now: it is settled.  Unknown numbers do no harm."""
    aside: int           # messages set aside: dead letters under way or kept, and those of set_aside()
    def set_aside(self, seq: int) -> bool:
        """Take a ready message out of the order, wherever it stands, and keep it: it is not handed out, does not expire and
        counts for no limit, until release(); ready again after a restart.  False: no such message is ready."""
    def release(self, seq: int) -> bool:
        """Give a message of set_aside() back to its place.  False: it is not aside."""
    def browse_aside(self, start_seq: int, count: int) -> list[tuple[int, int, bool, bytes, bytes, bytes, bytes]]:
        """As browse(), of the messages that are aside."""
    def check(self) -> None:
        """Compare every count with what it counts: for tests.  Raises AssertionError."""
    def browse(self, start_seq: int, count: int) -> list[tuple[int, int, bool, bytes, bytes, bytes, bytes]]:
        """Ready messages from that sequence number on, as they would be handed out: (seq, ns, redelivered, exchange,
        routing key, properties, body).  Reads from disk."""
    def remove(self, seq: int) -> tuple[int, int, bool, bytes, bytes, bytes, bytes] | None:
        """Take a ready message out, wherever it stands, and settle it; its row, or None."""
    max_priority: int
    active: Consumer | None      # the single active consumer
    unused_since: int            # ns: last consumer, get or touch(); now while there are consumers
    def touch(self) -> None: ...
    expired: int; discarded: int; dead_lettered: int; refused: int; limited: int; timed_out: int  # counters since start
    def make_directory(self) -> None:
        """Overridden: make the directory with the queue's name in it.  Raises OSError."""
    directory: str
    durable: bool
    ready: int           # messages that wait
    unacked: int         # handed out, not settled
    consumer_count: int
    ready_octets: int
    next_seq: int        # sequence number the next message gets; from 1
    published: int; delivered: int; got: int; acked: int; redelivered: int; returned: int   # counters since start
    paused: bool         # no delivery while set
    def attach_segment(self, number: int, *, end: int, records: int, settled: int, base_seq: int, delivered: int,
                       acks: int, capacity: int, ready_octets: int, synced: bool, generation: int = 0,
                       level: int = 0, doubted: int = 0) -> None:
        """Recovery: one segment found on disk, in rising order of number; acks: sound entries in its acks file;
        delivered and doubted: the words of that name in it.
        Each of its records is checked (bounds, CRC) when it is read.  See store/recovery.py."""
    def finish_recovery(self, next_seq: int, *, suspect: bool, last_ts: int = 0) -> None:
        """The last attached segment is appended to again.  suspect (power cut): every message counts as delivered
        before, since the marks that would tell may be lost."""
    journaled: bool      # an order journal is written
    def set_journal(self, on: bool) -> None:
        """Write every event of a message's life from now on into files beside the segments, or stop.  Settled segments are
        moved into a folder ``kept`` instead of being used again.  Of a queue that is recovered: before attach_segment().
        Raises ValueError: the queue is not durable."""
    def unsynced_journals(self) -> list[str]:
        """Paths of journals written to since the last call; fdatasync them in a thread, then call journals_synced()."""
    def journals_synced(self) -> None:
        """All that the last unsynced_journals() named is on disk."""
    window: Window | None    # keys of stored messages are entered; settled segments stay until keys_kept().  Set it before
                             # finish_recovery(), with what was on disk in it
    def keep_keys(self, number: int, level: int = 0) -> bool:
        """Whether the records of a segment may go as far as their keys are concerned; False: Core.take_keyed() names it."""
    def key_rows(self, number: int, level: int = 0) -> bytes:
        """Rows of a key file (store/format.py) of all keys in a segment that the window knows.  O(records).  Raises OSError."""
    def keys_kept(self, number: int, level: int = 0) -> None:
        """The keys of a segment are on disk in a file of their own: its records are not needed for them."""
    copying: bool        # set while somebody copies the files: settled segments are not written over
    def order_counts(self) -> tuple[list[int], list[int]]:
        """What disturbed the order, in the order of store.format.ORDER_COUNTERS: since the queue was declared (kill -9 loses
        none; a power cut may), and since this broker started."""
    def purge(self) -> int:
        """Settle every ready message; how many."""
    def drop(self) -> None:
        """The queue is deleted: consumers leave, unacked deliveries become nobody's and settling them is harmless.
        The directory is the caller's to remove."""
    def close(self) -> None:
        """The broker stops: maps and descriptors closed.  Syncing is the caller's; no other verb may follow."""
    def rest(self) -> bool:
        """Idle: give maps and descriptors back, to be taken again when needed.  True if any were held."""
    touched: int         # ns: last delivery
    unrecorded: int      # settlements that a full disk would not take: redelivered after a restart
    consumers: list[Consumer] | None
    def segments(self) -> list[dict]:
        """For inspection and compaction, oldest first: number, end, records, settled, unacked, returned, waiting,
        base_seq, generation, entries, capacity, mapped, sealed, damaged, events (of the journal, -1: none); level 0 first,
        and level.  The files hold at least so much of each."""
    def can_compact(self, number: int, level: int = 0) -> bool: ...
    def replace_segment(self, number: int, old: Any, new: Any, end: int, capacity: int, generation: int,
                        entries: int, level: int = 0) -> None:
        """Compaction moved the live records of a segment (u4 arrays of positions old -> new, both rising) into a file of the
        same name; unacked deliveries follow.  Raises ValueError."""

class Consumer:
    """One basic.consume.  Made by Channel.consume."""
    tag: bytes
    queue: Queue
    channel: Channel
    no_ack: bool
    exclusive: bool
    priority: int
    prefetch: int
    unacked: int
    timeout_ms: int        # that a delivery may be unacked; -1: for ever
    number: int            # written into journals; 0: none was given
    arguments: dict

class Channel:
    """One AMQP channel: publish numbers, unacked deliveries, confirm mode.  Subclassed by session.channel.Channel."""
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
    late: int              # settlements that came after their delivery had timed out
    def select_confirm(self) -> None: ...
    def consume(self, queue: Queue, tag: bytes, *, no_ack: bool, exclusive: bool, priority: int, arguments: dict,
                timeout_ms: int = -1, timeout_closes: bool | None = None, consumer_number: int = 0) -> Consumer:
        """Deliveries start in the next turn; write consume-ok first.  timeout: the queue's own, unless given.
        consumer_number: from where connections have theirs, never used twice."""
    def settle(self, tag: int, multiple: bool, *, requeue: bool = False, reject: bool = False) -> bool:
        """What basic.ack, nack and reject do.  False: unknown delivery tag, nothing done."""
    def knows(self, tag: int, multiple: bool) -> bool:
        """Whether settle() would find it."""
    def deliveries(self, tag: int, multiple: bool) -> list[tuple[int, Any, int]]:
        """What settle() would settle: (delivery tag, queue, seq), oldest first; no queue where it has timed out."""
    def take_tag(self) -> int:
        """The delivery tag of something that the session itself delivers, without acks."""
    def publishes_one(self) -> int:
        """Count a publish that on_publish() was given; its number."""
    def cancel(self, consumer: Consumer) -> None:
        """No more deliveries to it; what is unacked stays so."""
    def get(self, queue: Queue, no_ack: bool) -> bool:
        """Write basic.get-ok with the next message, or return False when none is ready."""
    def recover(self) -> None:
        """Return all unacked deliveries of the channel to their places."""
    def close(self) -> None:
        """Consumers leave, unacked deliveries return to their places; the number may be opened again."""

class Connection:
    """One client's octets: cut frames, keep what must wait, write.  Subclassed by session.connection.Connection,
    which is the loop's BufferedProtocol.  Upcalls, to be overridden: on_*; they must not raise but plane.Connection
    catches what they do raise and gives it to on_error."""
    def __init__(self, core: Core) -> None: ...
    number: int            # never reused, also over restarts; written into each record it publishes
    routes: Routes | None  # set when the vhost is opened
    frame_max: int         # octets of a whole frame; checked on input, obeyed on output
    channels: dict[int, Channel]
    received_octets: int; sent_octets: int      # counters
    discard: bool          # we sent connection.close: all but connection.close and close-ok is dropped
    publishes: bool        # has published at least once
    # --- the loop's side (asyncio.BufferedProtocol)
    def attach(self, transport: object, fd: int) -> None:
        """fd -1: no direct send (TLS): transport.write only."""
    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None:
        """Work the chunk to its end, then a turn."""
    def feed(self, octets: bytes) -> None:
        """The same for octets that did not come by the shared buffer (tests)."""
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def detach(self) -> None:
        """The socket is gone: every channel closes, nothing is written any more."""
    # --- the session's side
    def write(self, octets: bytes) -> None:
        """Whole frames, behind all that was written before; sent at the turn's end."""
    def hold(self) -> None:
        """Keep all output from now on back until release() (a definition waits for its sync).  Counts."""
    def release(self) -> None: ...
    def flush(self) -> None:
        """Send now what is written: before the transport is closed outside of a turn."""
    def unblock(self) -> None:
        """The alarm is over: read again; what waited is worked first."""
    stopped: bool          # not read from because of an alarm or a full disk (its heartbeats are not missed)
    # --- upcalls
    def on_protocol_header(self, octets: bytes) -> None: ...
    def on_method(self, channel: int, payload: bytes) -> None:
        """Any method but publish, ack, nack, reject on an open channel; payload from class-id on.
        Also those four on channels that are not open (to be answered with 504)."""
    def on_publish(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        """A publish on a channel with tx set; payloads as on the wire, whole."""
    def on_error(self, channel: int, error: Exception, class_id: int, method_id: int) -> None:
        """An AMQPError of the plane's own or from resolve; or what an upcall raised."""
    def on_publisher_blocked(self) -> None:
        """Core.blocked is set, or the disk is full, and this connection published: it is to be told.  The plane has
        stopped reading from it, until unblock()."""

RULES: dict[str, tuple[int, int, int, int]]     # what Queue.set_rules() may be told, by name
asserted: bool           # this build checks its own assertions (tests)
def crc32c(data: bytes | memoryview, value: int = 0) -> int: ...
def crc32c_by_table(data: bytes | memoryview, value: int = 0) -> int: ...
def check_of_entry(segment: int, entry: int) -> int: ...
def layout() -> dict[str, dict[str, tuple[int, int]]]: ...
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

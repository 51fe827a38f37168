"""What is on disk, written down once: file names, magic numbers, versions, byte layouts.

A queue's directory holds, for each segment N (ten digits, rising in a queue, with gaps; no number is given
twice while a broker runs, so that records left in a file written over belong to no segment there is)::

    .queue              the queue's real name
    msgs.0000000001     the segment: records, appended, never changed after
    acks.0000000001     how they ended, or came back
    journal.0000000001  what happened to them, event by event, where the queue has an order journal
    chain.0000000001    a hash chain over that journal and, once the segment is settled, over its acks
    keys.0000000001     keys from records that are gone, if the queue drops duplicates
    kept/               settled segments of such a queue, with their acks and journals
    order               counters of what disturbed the order of messages; made with the first such event
    order.jsonl         the settings and consumers of a queue with an order journal
    spare.*             a segment to be used again; nothing in it counts
    msgs.N.new acks.N.new     a compaction under way
    *.damaged           put aside by recovery, never deleted by the broker
    prio.001/           messages of priority 1, and so on to prio.255: segments, acks, journals and kept/ as here

All numbers are little endian.  A *word* is a u4 followed by its complement, so that
a torn or flipped one is seen (``word_ok``).

SEGMENT HEADER, 64 octets::

     0 magic "BSEG"   4 version u4    8 number u8      16 base_seq u8
    24 created i8 ns                 32 generation u4  36 crc u4 (CRC32C of octets 0..36)
    40 end      word  committed octets with this header: first free position
    48 records  word  records appended
    56 sealed   word  0 open; 1 full, no more appends; 2 full, and known to be synced

RECORD, at multiples of 8, padded with zeros to one::

     0 magic "BSGM"   4 length u4     8 crc u4         12 meta_len u2
    14 priority u1   15 kind u1      16 seq u8         24 ts i8 ns, rising strictly per queue
    32 connection u4 36 channel u2   38 flags u2       40 publish_seq u8
    48 group_hash u8 56 dedup_hash u8
    64 meta: exchange shortstr, routing key shortstr, content property flags and list
             as on the wire; then the body

``length`` is that of header, meta and body WITHOUT the padding; the next record is
at position + length rounded up to 8.  ``crc`` is the CRC32C of the segment's number
(u8) and then of octets 12..length: a stale record in a recycled file fails.  Meta of
65,535 octets or more: ``meta_len`` is 0xFFFF, a u4 with the true length L stands at
64, the meta at 68, the body at 68 + L.  Flags: bit 0 persistent (delivery_mode 2), bit
1: it has an expiration that counts, bit 2: dedup_hash is that of the exchange's key, not the queue's, bit 3: its header
x-cache-ttl counts, bit 4: it was redriven, and its header x-group-seq is its number in its group.  ``dedup_hash``: the
key that duplicates are known by, 0: none; see KEY FILE.
``kind`` is 0.  ``connection``, ``channel`` and ``publish_seq`` name the publish.

ACKS FILE, 64-octet header::

     0 magic "BACK"   4 version u4    8 number u8      16 generation u4
    20 crc u4 (CRC32C of octets 0..20)
    24 delivered word  the cursor has passed all records below this position
    32 entries   word  entries written
    40 settled   word  records settled
    48 doubted   word  below this position the word ``delivered`` may have been higher once; 8 zeros: 0
    56 zero

then ENTRIES of 8 octets, in order of time::

     0 position u4 of the record, 0 = unwritten    4 kind u1: low nibble type, high nibble reason
     5 check u1                                    6 count u2, failed deliveries so far

Types 1 acked, 2 rejected, 4 dead-lettered, 5 expired, 6 dropped and 7 purged settle the record (SETTLING_TYPES).
Type 13 replayed takes that back: the record is ready again, and another entry may settle it again.  Types 3 returned,
8 handed out, 10 set aside, 11 parked and 13 replayed say how an unsettled record stands (STANDING_TYPES); the last
of them counts.  Reasons of 4 and 6: 1 rejected, 2 expired, 3 length, 4 delivery limit, 5 taken out by an operator.
Reasons of 3: 1 nack, 2 reject, 3 recover, 4 channel closed, 5 connection closed, 6 consumer timeout.  Reasons of 10
and 11: 0 the record was never handed out, 1 it was.  Three entries of type 12 before one of type 3, with none of the
same record between, say when the returned record is tried again: reasons 0, 1 and 2 in this order, and in ``count`` the
bits 0..15, 16..31 and 32..47 of the time in ms since the epoch.  Fewer than three say nothing.

The cursor goes through the records once, and hands each out or sets it aside.  The first hand-out, by the cursor, has
no entry: the word ``delivered`` tells it.  Each later hand-out has an entry of type 8.  A record that the cursor passes
without handing it out has an entry of type 10, which is written before ``delivered`` passes the record.  One of type 11
says besides that the record's group, or the queue behind it, waits until an operator acts; one of type 10 ends that.
So a start knows of each unsettled record how it stood when the broker ended, if redelivered is true, and its failures::

    last entry          where                 how it stood           redelivered     failed deliveries
    3 returned                                lay ready              yes             as the entry says
    8 handed out                              was out                yes             one more than the entry says
    10 set aside                              was aside, is ready    if reason is 1  as the entry says
    11 parked                                 the same, and its group    as 10       as the entry says
    13 replayed                               lay ready              yes             as the entry says
    none                below ``delivered``   was out                yes             1
    none                below ``doubted``     not known              yes             0
    none                above both            lay ready              no              0

A start writes no entries: until a record is handed out again the same entries give the same answer, however often the
broker ends.  After a loss of power, and where the acks of a segment cannot be read, ``doubted`` is the end of the
segment, and redelivered is true for each of its records.

``check``: let *raw(state, octets)* be the bare reflected CRC32C update (polynomial
0x82F63B78: what the crc32 instruction does, no inversion before or after).  r =
raw(number mod 2**32, the 8 octets with check = 0);
check = (r ^ r >> 8 ^ r >> 16 ^ r >> 24) & 0xFF.  Each single flipped bit changes it.

JOURNAL, beside the segment whose number it has, 64-octet header::

     0 magic "BJRN"   4 version u4    8 number u8      16 begun i8 ns
    24 crc u4 (CRC32C of octets 0..24)                 28 zero u4
    32 events word   events written
    40 lost   word   events that a full disk would not take
    48 synced i8 ns  all events up to then were on disk    56 its complement, 0 and 0: never said

then EVENTS of 32 octets, in order of ts, which rises strictly in a queue over records and events::

     0 seq u8         8 ts i8 ns     16 consumer u4   20 aux u4   24 count u2  26 type u1  27 reason u1
    28 crc u4 (CRC32C of the segment's number as u8, then octets 0..28)

Types 1 to 7 are those of acks entries, with the same reasons.  8 delivered, each time: reason is a sum of
1 redelivered, 2 by basic.get, 4 handed out before the broker's last start and not settled since, 8 without ack;
``aux`` is the delivery tag modulo 2**32.  ``consumer`` is the number of the consumer, or with
basic.get that of the connection; 0: no client caused the event.  ``count`` is failed deliveries so far.
9 started: seq is a time in ns up to which the events before it are all there; reason 1 the
broker started again, what was out counts as returned; 2 it did after a loss of power; 3 the
journal was switched on again; 4 it was switched off, and nothing is there up to the next
event of type 9, if there is one.  16 parked: the queue stops behind the message, reason 4.  17 released: an operator
made it ready.  19 retry scheduled, after 3: ``aux`` is the delay in ms, at most 2**32-1.  20 replayed: the message was
settled, and is ready again; 0 failed deliveries count.  18 token, 21 replay, 22 duplicate, 25 redriven: see
docs/formats.md.  23 group parked: the message and all later ones of its message group wait; reason 4 it has failed
too often, 5 by an operator.  24 group released: an operator lets the group go on of which it is the first that
waits, parked or before its retry.  Version 1 has none of types 16 and above, version 2 none of 18, 21, 22 and 25.
``begun``: every event of this segment's records from then on is in the file, as far as lost, synced and events of
type 9 do not say otherwise.  A record that was appended after it has its whole life there.

CHAIN, beside the journal whose number it has: 64-octet header::

     0 magic "BCHN"   4 version u4    8 number u8      16 begun i8 ns, the journal's
    24 block u4, 65536                28 crc u4 (CRC32C of octets 0..28)         32 zeros

then LINKS of 64 octets, each for one block of the events, then of the entries::

     0 of u1: 1 events, 2 entries     1 last u1: 1, nothing of that kind follows; else 0     2 zero u2
     4 octets u4      8 at u8, where the block begins in its file     16 ts i8 ns, when the link was made
    24 digest, 32 octets             56 zero u4       60 crc u4 (CRC32C of the number as u8, then octets 0..60)

``digest`` is the SHA-256 of the digest of the link before, octets 0..24 of this link, and the block; before the first
link stands the SHA-256 of octets 0..32 of the header.  Blocks follow one another without gaps, from octet 64 of the
journal on, then from octet 64 of the acks file on; each has 65,536 octets, and the last of a kind what is left, perhaps
none.  A link is made when its block is full and known to be on disk, and the last ones when the segment is settled: a
chain may end before its journal does, and never after it.  Behind the links there may be zeros.

KEY FILE, keys of messages whose records may be gone (deduplication): ``keys.N`` beside segment N, or, an exchange's,
``keys.<SHA-1 of its name>.N`` in the vhost's folder.  64-octet header::

     0 magic "BKEY"   4 version u4    8 number u8, N   16 hash key, 16 octets
    32 crc u4 (CRC32C of octets 0..32)                 36 rows_crc u4 (CRC32C of all rows; of a queue's only)
    40 synced u8     an exchange's: lasting rows below it are believed after a power cut
    48 whole u8      and all rows below this           56 open u8: 0, or while a broker writes to it: ns since the
                                                          epoch, no older record has a key of this exchange; 1: unknown

then ROWS of 24 octets::

     0 order u8       the message's seq; an exchange's: ns when it came, and bit 63 if no sync covers it
     8 hash u8        of the key, never 0               16 expires i8, ms since the epoch; 2**63-1: never

The hash of a key is SipHash-2-4 with the hash key, or 1 in place of 0, over the key's octets (queues/deduplication),
the same in records.  The hash key of a vhost is in its file ``keys.secret``: magic "BSEC", version u4, 16 octets, crc
u4 (CRC32C of all before).  Where that has version 1, the hash is the first 8 octets, as u8, of BLAKE2b(digest_size=8,
key=hash key); such a vhost keeps its secret.  A queue's ``keys.N`` is written when the records of segment N are about
to go (settled, or compacted) and never changed; where N's records are there as well, both say the same.
Files number 0 hold what a broker before version 1 of this format knew, under a hash key of their own.

FORMER KEYS, files ``dedup`` and ``dedup.SHA1`` of brokers before key files, read once and removed: magic "BDUP",
version u4, capacity u8, hash key of 16 octets, crc u4 (CRC32C of these), zero u4; written u8, safe u8, busy u8; then a
ring of ``capacity`` entries, key number n in entry n mod capacity: hash u8, lap u2 (n div capacity mod 65,535, plus 1;
0: empty), expires u6 (2**48-1: never); then an index.  Keys below ``safe`` outlast a power cut.

COUNTERS ``order``: 64-octet header (magic "BORD", version u4, crc u4 of octets 0..8, zeros),
then u8 each, in the order of ORDER_COUNTERS, since the queue was declared.

Rules of order, on which recovery stands: record before ``end``, ``end`` before
``records``; entry before ``entries``.  A segment is removed msgs first, acks after.
The highest-numbered segment of a queue is neither removed nor compacted: its last
record tells the next sequence number.  An acks file is zeros behind its entries (never
recycled unwiped): the check of one octet does not tell old entries from new ones.

COMMIT LOG ``tx.CONNECTION.CHANNEL`` in the vhost's folder (decimal numbers): what one
transaction publishes.  Its header, 64 octets, makes it a decision::

     0 magic "BTXJ"   4 version u4     8 connection u4  12 channel u2   14 zero u2
    16 plan_at u8    24 end u8        32 check u4 (CRC32C of octets 64..end)
    36 crc u4 (CRC32C of octets 0..36)
    40 applied u4: 1, the whole transaction was done      48 zeros up to 64
    44 stored u4: so many of the messages, from the first one on, are in their queues

MESSAGES from 64 on, back to back, as they were published::

    publish_seq u8 | exchange: length u1, octets | routing key: length u1, octets
    | property flags and list: length u4, octets | body: length u8, octets

PLAN at ``plan_at``, up to ``end``: what commit resolved, durable queues only::

    queues u4, each: name length u1, octets
    messages u4, each: position u8 in this file, queues u4, each: number u4 of the queue above
    settlements u4, each: number u4 of the queue, seq u8, outcome u1 (0 acked, 1 rejected)

A file without a whole header (zeros, until commit) is no decision: its transaction never happened.
``tx.again.CONNECTION`` is the same for what a start stores of transactions that it finishes (vhost/commits).
Channel 0 is an operator's: ``undo.CONNECTION`` decides the contrary of such a change (operations/transfer), and no
start carries it out.  Its first settlement belongs to its first message, and so on, unless it has none of one kind.

DEFINITIONS LOG ``definitions.amqp`` in the vhost's folder: a header of 16 octets ::

    0 magic "BDEF"   4 version u4   8 salt u4   12 zlib.crc32 of octets 0..12, u4

then AMQP frames as on the wire, each followed by its check ::

    type 1 | channel 0 u2 | size u4 (big endian) | payload | 0xCE | u4: zlib.crc32(frame, salt), little endian

then zeros.  The salt is random, lest a payload that holds a whole frame be taken for one.  A
frame type of 0 is the end.

DATA DIRECTORY::

    .lock               held (flock) while a broker runs; pid and host of the holder
    schema_version      "1": which arrangement of files this is
    running             there while a broker runs: the kernel's boot id, then "whole" or "suspect"
    connection_numbers  first number not yet reserved, and its zlib.crc32 in hex
    identity            a name that no other directory has, and its zlib.crc32 in hex
    running.tmp  connection_numbers.tmp     room on the disk for the next version of each; their content says nothing
    garbage/            files about to be removed
    spare/              segments to be used again; large.*: bodies that come in (plane/large.pxi)
    archiving/          deleted queues on their way into an archive
    <sha1 of vhost>/    .vhost (its name), definitions.amqp, tx.*
        <sha1 of queue>/        a durable queue that has held a message, or has an order journal
        <sha1 of queue>.orphan/ a queue's folder that no definition explains
        transient/              queues that do not survive a restart

UPGRADE RULE: a version is raised when an older broker would misread the file.  A
broker reads its own version and all before, writes its own, and refuses later ones
with a StoreError that names the file.  Segments are never rewritten for an upgrade:
old ones are read as they are until they are settled.

Acks files of version 1 have neither entries of types 8 and 10 nor the word ``doubted``, and are read by the rules
above: a message that had returned and was out again has the count of its last entry.  Those of version 2 have no
entries of types 11 to 13.  A start gives each of them that belongs to a segment in use the header of version 3,
octets 0..24 in one write, because entries of these types will follow, and an older broker would misread them.  Files in
``kept/`` stay as they are.

Journals of version 1 have no events of types 16 and above; a broker that opens one gives it the header of version 3.
Readers of many records at once, with numpy, are in ``store.reading``.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from brokerd.store.checksums import crc32c as crc32c
from brokerd.store.checksums import crc_tables

SEGMENT_VERSION = 1
ACKS_VERSION = 3
JOURNAL_VERSION = 3
ORDER_VERSION = 1
KEYS_VERSION = 1
CHAIN_VERSION = 1
SEGMENT_OCTETS_MAX = 1 << 30    # of a segment, and of an acks file: the option segment_octets goes up to this
HEADER_OCTETS = 64          # of a segment, an acks file and a record alike
ENTRY_OCTETS = 8
EVENT_OCTETS = 32
LINK_OCTETS = 64
BLOCK_OCTETS = 1 << 16      # of events or entries, for one link of a chain
KEY_ROW_OCTETS = 24
SEGMENT_MAGIC = 0x47455342  # "BSEG"
RECORD_MAGIC = 0x4D475342   # "BSGM"
ACKS_MAGIC = 0x4B434142     # "BACK"
JOURNAL_MAGIC = 0x4E524A42  # "BJRN"
ORDER_MAGIC = 0x44524F42    # "BORD"
KEYS_MAGIC = 0x59454B42     # "BKEY"
CHAIN_MAGIC = 0x4E484342    # "BCHN"
SECRET_MAGIC = 0x43455342   # "BSEC"
SECRET_VERSION = 2
SECRET_BLAKE2B = 1          # The version with which keys are hashed by BLAKE2b.
FORMER_KEYS_MAGIC = 0x50554442  # "BDUP"
READERS_MAGIC = 0x44455242  # "BRED"
OPEN, FULL, SYNCED = 0, 1, 2    # Values of ``sealed``.
PERSISTENT, REDRIVEN = 1, 16     # Bits 0 and 4 of a record's flags.
LONG_META = 0xFFFF
ACKED, REJECTED, RETURNED, DEAD_LETTERED, EXPIRED, DROPPED, PURGED, DELIVERED, STARTED, SET_ASIDE = range(1, 11)
PARKED, RETRY_TIME = 11, 12  # In acks.  14 and 15 are free.
PARKED_EVENT, RELEASED_EVENT, TOKEN_EVENT, RETRY_SCHEDULED = 16, 17, 18, 19     # In journals, as those that follow.
REPLAY_EVENT, DUPLICATE_EVENT, GROUP_PARKED_EVENT, GROUP_RELEASED_EVENT, REDRIVEN_EVENT = 21, 22, 23, 24, 25
ASIDE_EVENTS = (PARKED_EVENT, RELEASED_EVENT, TOKEN_EVENT, RETRY_SCHEDULED, REPLAY_EVENT, DUPLICATE_EVENT,
                GROUP_PARKED_EVENT, GROUP_RELEASED_EVENT, REDRIVEN_EVENT)
HANDED_OUT = DELIVERED      # In acks: of each hand-out but the first.
SETTLING_TYPES = frozenset((ACKED, REJECTED, DEAD_LETTERED, EXPIRED, DROPPED, PURGED))
REPLAYED = 13               # Of entries: the record was settled before, and is ready again.
EVENT_REPLAYED = 20         # The same, of events.
STANDING_TYPES = frozenset((RETURNED, HANDED_OUT, SET_ASIDE, PARKED, REPLAYED))     # Of a record's the last counts.
ASIDE_TYPES = (SET_ASIDE, PARKED)
NEVER_OUT, WAS_OUT = 0, 1   # reasons of SET_ASIDE and PARKED
RETRY_PARTS = 3             # entries RETRY_TIME that tell one time
REASON_REJECTED, REASON_EXPIRED, REASON_LENGTH, REASON_LIMIT, REASON_REMOVED = range(1, 6)
CAUSE_NACK, CAUSE_REJECT, CAUSE_RECOVER, CAUSE_CHANNEL, CAUSE_CONNECTION, CAUSE_TIMEOUT = range(1, 7)
REDELIVERED, BY_GET, BEFORE_START, WITHOUT_ACK = 1, 2, 4, 8     # bits of a delivery's reason
RESTARTED, POWER_LOST, SWITCHED_ON, SWITCHED_OFF = 1, 2, 3, 4   # reasons of STARTED
QUEUE_NAME_FILE = ".queue"
ORDER_FILE = "order"
SIDE_FILE = "order.jsonl"
KEPT_FOLDER = "kept"
INDEX_MAGIC, INDEX_VERSION = 0x58444942, 1    # "BIDX"
INDEX_HEADER = struct.Struct("<IIQQqIIIIII")    # magic, version, number, base_seq, created, end, records, rows, block,
INDEX_ROW = struct.Struct("<QqII8x32s")         # flags, crc; a row: seq, ts, position, flags, bits of values
READERS_FILE = "readers"    # of a stream: slots of 512 octets, the first one the header, each other a named reader's
READERS_VERSION = 1
READERS_SLOT, READERS_SLOTS = 512, 512
READERS_NAME, READERS_CELLS, READERS_SINCE, READERS_BEGAN, READERS_MISSED = 4, 320, 352, 360, 368
READERS_MISSED_CELL = struct.Struct("<QQII")    # in a slot, two: missed, counted, zero, crc
READERS_HEADER = struct.Struct("<II")   # magic, version

# What disturbs the order in which messages are worked on.  An out-of-sequence delivery is that of a returned message
# when a later one of its level was handed out between its first delivery (since the broker's start) and this one;
# overtakings sum up how many were.
ORDER_COUNTERS = (
    "returned_nack", "returned_reject", "returned_recover", "returned_channel_closed", "returned_connection_closed",
    "returned_consumer_timeout", "redelivered", "redelivered_after_restart", "out_of_sequence", "overtakings",
    "dead_lettered_rejected", "dead_lettered_expired", "dead_lettered_maxlen", "dead_lettered_delivery_limit",
    "rejected", "expired", "dropped_maxlen", "dropped_delivery_limit", "removed", "purged",
)

# name, format, offset: the dtypes below and the plane's structs are held against these.
SEGMENT_FIELDS = (
    ("magic", "<u4", 0), ("version", "<u4", 4), ("number", "<u8", 8), ("base_seq", "<u8", 16),
    ("created", "<i8", 24), ("generation", "<u4", 32), ("crc", "<u4", 36), ("end", "<u4", 40),
    ("end_complement", "<u4", 44), ("records", "<u4", 48), ("records_complement", "<u4", 52),
    ("sealed", "<u4", 56), ("sealed_complement", "<u4", 60),
)
RECORD_FIELDS = (
    ("magic", "<u4", 0), ("length", "<u4", 4), ("crc", "<u4", 8), ("meta_len", "<u2", 12),
    ("priority", "u1", 14), ("kind", "u1", 15), ("seq", "<u8", 16), ("ts", "<i8", 24),
    ("connection", "<u4", 32), ("channel", "<u2", 36), ("flags", "<u2", 38), ("publish_seq", "<u8", 40),
    ("group_hash", "<u8", 48), ("dedup_hash", "<u8", 56),
)
ACKS_FIELDS = (
    ("magic", "<u4", 0), ("version", "<u4", 4), ("number", "<u8", 8), ("generation", "<u4", 16),
    ("crc", "<u4", 20), ("delivered", "<u4", 24), ("delivered_complement", "<u4", 28), ("entries", "<u4", 32),
    ("entries_complement", "<u4", 36), ("settled", "<u4", 40), ("settled_complement", "<u4", 44),
    ("doubted", "<u4", 48), ("doubted_complement", "<u4", 52),
)
JOURNAL_FIELDS = (
    ("magic", "<u4", 0), ("version", "<u4", 4), ("number", "<u8", 8), ("begun", "<i8", 16), ("crc", "<u4", 24),
    ("events", "<u4", 32), ("events_complement", "<u4", 36), ("lost", "<u4", 40), ("lost_complement", "<u4", 44),
    ("synced", "<i8", 48), ("synced_complement", "<i8", 56),
)
EVENT_FIELDS = (
    ("seq", "<u8", 0), ("ts", "<i8", 8), ("consumer", "<u4", 16), ("aux", "<u4", 20), ("count", "<u2", 24),
    ("type", "u1", 26), ("reason", "u1", 27), ("crc", "<u4", 28),
)
ENTRY_FIELDS = (("position", "<u4", 0), ("kind", "u1", 4), ("check", "u1", 5), ("count", "<u2", 6))

SEGMENT_HEADER = struct.Struct("<IIQQqII6I")    # In the order of SEGMENT_FIELDS.
ACKS_HEADER = struct.Struct("<IIQII8I8x")
SEGMENT_FIXED = struct.Struct("<IIQQqI")        # What the crc of a segment's header covers.
ACKS_FIXED = struct.Struct("<IIQI")
WORDS = struct.Struct("<6I")                    # Three words: at 40 of a segment, at 24 of an acks file.
ACKS_WORDS = struct.Struct("<8I")               # With ``doubted``.
SEGMENT_WORDS_AT, ACKS_WORDS_AT = 40, 24
SEGMENT_CRC_END, ACKS_CRC_END = 36, 20
ENTRY = struct.Struct("<IBBH")
JOURNAL_FIXED = struct.Struct("<IIQq")          # What the crc of a journal's header covers.
EVENT = struct.Struct("<QqIIHBB")               # Without its crc.
ORDER_FIXED = struct.Struct("<II")
CHAIN_FIXED = struct.Struct("<IIQqI")           # What the crc of a chain's header covers.
LINK_HEAD = struct.Struct("<BBHIQq")
OF_EVENTS, OF_ENTRIES = 1, 2                    # What a link is of.
KEYS_FIXED = struct.Struct("<IIQ16s")
KEYS_MARKS = struct.Struct("<QQQ")              # At 40: synced, whole, open.
KEYS_MARKS_AT = 40
KEY_ROW = struct.Struct("<QQq")
NOT_LASTING = 1 << 63                           # Bit of a row's order.
FOR_EVER = (1 << 63) - 1                        # ``expires`` of a key without a time.
SECRET = struct.Struct("<II16sI")
FORMER_KEYS = struct.Struct("<IIQ16sI4xQQQ")
FORMER_KEYS_NEVER = (1 << 48) - 1

REDRIVE_PREFIX = "redrive."   # of files in a vhost's folder: dead letters on their way back (vhost/redrives)
REDRIVEN_FILE, PAUSED_FILE = "redriven", "paused"   # In a queue's folder: see queues/redriven and queues/pause.
COMMIT_PREFIX = "tx."
SHARED_COMMIT_PREFIX = "tx.shared."
AGAIN_COMMIT_PREFIX = "tx.again."
UNDO_PREFIX = "undo."
COMMIT_MAGIC = 0x4A585442   # "BTXJ"
COMMIT_VERSION, SHARED_COMMIT_VERSION = 2, 3    # The same header; a shared one is a file with many transactions.
COMMIT_ACKED, COMMIT_REJECTED = 0, 1            # How a delivery was settled in the transaction.
COMMIT_HEADER = struct.Struct("<IIIHHQQI")      # Without its crc.
COMMIT_APPLIED_AT, COMMIT_STORED_AT = 40, 44
COMMIT_SETTLEMENT = struct.Struct("<IQB")
ENTRY_HEAD = struct.Struct("<IIIIHHQ")          # length, crc, marks, connection, channel, 0, plan_at
ENTRY_WORDS, ENTRY_MARKS = struct.Struct("<II"), struct.Struct("<I")  # Marks: applied u1, stored u3
ENTRY_HEAD_OCTETS, ENTRY_APPLIED_AT, ENTRY_CRC_FROM = 28, 8, 12

DEFINITIONS_FILE = "definitions.amqp"
DEFINITIONS_MAGIC = 0x46454442  # "BDEF"
DEFINITIONS_VERSION = 1
DEFINITIONS_HEADER = struct.Struct("<IIII")
DEFINITIONS_CRC_END = 12
FRAME_HEAD = struct.Struct(">BHI")
FRAME_OVERHEAD = 7 + 1 + 4      # head, 0xCE, check
FRAME_END = 0xCE
FRAME_CHECK = struct.Struct("<I")  # CRC-32 of the frame, begun with the salt

SCHEMA_VERSION = 1
LOCK_FILE, SCHEMA_FILE, RUNNING_FILE = ".lock", "schema_version", "running"
CONNECTION_NUMBERS_FILE, IDENTITY_FILE = "connection_numbers", "identity"
GARBAGE_FOLDER, SPARE_FOLDER, ARCHIVING_FOLDER = "garbage", "spare", "archiving"
IMPORT_FILE = "import.json"  # definitions of an import that has begun: a start finishes it
VHOST_DELETED_FILE = ".deleted"  # in a vhost's folder: all in it is deleted
VHOST_NAME_FILE, TRANSIENT_FOLDER = ".vhost", "transient"
ORPHAN = ".orphan"


def folder_name(name: str) -> str:
    """The folder of the vhost or queue called ``name``: 40 hex digits for any name."""
    return _sha1()(name.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()


@cache
def _sha1() -> Callable[..., Any]:
    from hashlib import sha1  # A server that holds nothing yet starts without OpenSSL.

    return sha1


def segment_name(number: int) -> str:
    """File name of segment ``number``."""
    return f"msgs.{number:010d}"


def acks_name(number: int) -> str:
    """File name of the acks beside segment ``number``."""
    return f"acks.{number:010d}"


def journal_name(number: int) -> str:
    """File name of the order journal beside segment ``number``."""
    return f"journal.{number:010d}"


def chain_name(number: int) -> str:
    """File name of the hash chain beside the journal of segment ``number``."""
    return f"chain.{number:010d}"


def keys_name(number: int) -> str:
    """File name of the keys beside segment ``number``."""
    return f"keys.{number:010d}"


def keys_number(name: str, prefix: str = "keys") -> int | None:
    """The number in ``<prefix>.N``; None for any other name."""
    digits = name[len(prefix) + 1 :]
    if name.startswith(prefix + ".") and len(digits) >= 10 and digits.isascii() and digits.isdigit():
        return int(digits)
    return None


def index_name(number: int) -> str:
    """The index of a stream's full segment, beside it."""
    return f"index.{number:010d}"


def priority_folder(level: int) -> str:
    """The folder, in a queue's, of the messages of a priority level above 0."""
    return f"prio.{level:03d}"


def priority_level(name: str) -> int | None:
    """The level of a folder of that name, ``prio.001`` to ``prio.255``; None: it is not one of a level."""
    digits = name[5:]
    if not name.startswith("prio.") or len(digits) != 3 or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits) or None


def segment_number(name: str) -> int | None:
    """The number in ``msgs.N`` or ``acks.N``; None for any other name."""
    digits = name[5:]
    if name[:5] in ("msgs.", "acks.") and len(digits) >= 10 and digits.isascii() and digits.isdigit():
        return int(digits)
    return None


def word(value: int) -> tuple[int, int]:
    """A value and its complement."""
    return value, value ^ 0xFFFFFFFF


def word_or_zeros(value: int) -> tuple[int, int]:
    """A word that was not always there: zeros stand for 0."""
    return word(value) if value else (0, 0)


def word_ok(value: int, complement: int) -> bool:
    """Whether a word is whole."""
    return value ^ complement == 0xFFFFFFFF


def round_up(octets: int) -> int:
    """Up to the next multiple of a record's alignment."""
    return octets + 7 & ~7


def segment_header(number: int, *, base_seq: int, created: int, generation: int = 0, end: int = HEADER_OCTETS,
                   records: int = 0, sealed: int = OPEN) -> bytes:
    """The 64 octets at the head of a segment; ``created`` in ns since the epoch."""
    fixed = SEGMENT_FIXED.pack(SEGMENT_MAGIC, SEGMENT_VERSION, number, base_seq, created, generation)
    return fixed + crc32c(fixed).to_bytes(4, "little") + WORDS.pack(*word(end), *word(records), *word(sealed))


def acks_fixed(number: int, generation: int = 0) -> bytes:
    """The first 24 octets of an acks file: what no word changes."""
    fixed = ACKS_FIXED.pack(ACKS_MAGIC, ACKS_VERSION, number, generation)
    return fixed + crc32c(fixed).to_bytes(4, "little")


def acks_header(number: int, *, generation: int = 0, delivered: int = 0, entries: int = 0, settled: int = 0,
                doubted: int = 0) -> bytes:
    """The 64 octets at the head of an acks file."""
    words = ACKS_WORDS.pack(*word(delivered), *word(entries), *word(settled), *word_or_zeros(doubted))
    return acks_fixed(number, generation) + words + bytes(8)


def journal_header(number: int, *, begun: int, events: int = 0, lost: int = 0, synced: int = 0) -> bytes:
    """The 64 octets at the head of a journal; times in ns since the epoch."""
    fixed = JOURNAL_FIXED.pack(JOURNAL_MAGIC, JOURNAL_VERSION, number, begun)
    said = struct.pack("<qq", synced, ~synced) if synced else bytes(16)
    return fixed + struct.pack("<II", crc32c(fixed), 0) + struct.pack("<4I", *word(events), *word(lost)) + said


def event(number: int, seq: int, ts: int, type_: int, reason: int = 0, *, consumer: int = 0, aux: int = 0,
          count: int = 0) -> bytes:
    """The 32 octets of one event in the journal of segment ``number``."""
    octets = EVENT.pack(seq, ts, consumer, aux, count, type_, reason)
    return octets + crc32c(octets, crc32c(number.to_bytes(8, "little"))).to_bytes(4, "little")


def order_header() -> bytes:
    """The 64 octets at the head of a queue's counters."""
    fixed = ORDER_FIXED.pack(ORDER_MAGIC, ORDER_VERSION)
    return (fixed + crc32c(fixed).to_bytes(4, "little")).ljust(HEADER_OCTETS, b"\0")


def shared_commit_header(number: int, generation: int) -> bytes:
    """The 64 octets at the head of a shared commit log.  ``plan_at`` has its generation."""
    head = COMMIT_HEADER.pack(COMMIT_MAGIC, SHARED_COMMIT_VERSION, number, 0, 0, generation, 0, 0)
    return (head + crc32c(head).to_bytes(4, "little")).ljust(HEADER_OCTETS, b"\0")


def shared_commit_entry(generation: int, connection: int, channel: int, messages: bytes, plan: bytes) -> bytes:
    """One transaction in a shared commit log, zero-padded to a multiple of 8."""
    plan_at = ENTRY_HEAD_OCTETS + len(messages)
    octets = b"".join((ENTRY_HEAD.pack(0, 0, 0, connection, channel, 0, plan_at), messages, plan))
    crc = shared_commit_crc(octets, generation)
    return (ENTRY_WORDS.pack(len(octets), crc) + octets[8:]).ljust(round_up(len(octets)), b"\0")


def shared_commit_crc(octets: bytes | memoryview, generation: int) -> int:
    """The crc of a whole entry without its padding."""
    seed = crc32c(generation.to_bytes(8, "little") + len(octets).to_bytes(4, "little"))
    return crc32c(memoryview(octets)[ENTRY_CRC_FROM:], seed)


def keys_header(number: int, hash_key: bytes, rows: bytes = b"", *, open_: int = 0) -> bytes:
    """The 64 octets at the head of a key file; ``open_`` as in its field."""
    fixed = KEYS_FIXED.pack(KEYS_MAGIC, KEYS_VERSION, number, hash_key)
    checks = struct.pack("<II", crc32c(fixed), crc32c(rows))
    count = len(rows) // KEY_ROW_OCTETS
    return fixed + checks + KEYS_MARKS.pack(count, count, open_)


# --- checks


def record_crc(octets: bytes | memoryview, number: int) -> int:
    """The crc that the record ``octets`` (header to body's end) must carry in segment ``number``."""
    return crc32c(memoryview(octets)[12:], crc32c(number.to_bytes(8, "little")))


@cache
def check_tables() -> list[bytes]:
    """Folded[k][octet]: what octet k of an entry adds (by exclusive or) to its check."""
    return [bytes((s ^ s >> 8 ^ s >> 16 ^ s >> 24) & 0xFF for s in table) for table in reversed(crc_tables())]


def entry_check(number: int, position: int, kind: int, count: int) -> int:
    """The check octet of one entry, from 0 to 255."""
    octets = (position ^ number & 0xFFFFFFFF).to_bytes(4, "little") + bytes((kind, 0, count & 0xFF, count >> 8))
    check = 0
    for table, octet in zip(check_tables(), octets, strict=True):
        check ^= table[octet]
    return check


def entry(number: int, position: int, kind: int, count: int = 0) -> bytes:
    """The 8 octets of one acks entry."""
    return ENTRY.pack(position, kind, entry_check(number, position, kind, count), count)

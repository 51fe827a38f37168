# The data plane's structs, and for each its owner, which frees it.
#
#   core_t      in Core                 one per event loop; lists below hang from it, it owns none of them
#   queue_t     in Queue                lives as long as the Queue object (an unacked delivery of a deleted
#                                       queue holds a reference to the object: queue_t.ghost)
#   store_t     in queue_t, or malloc   one priority level's messages; levels above 0 are made when first used and
#               by queue_t              freed with the queue
#   rules_t     malloc, by queue_t      rules of the queue besides its order; made with the first rule, freed with the object
#   place_t     by value                where one record is.  HELD in four kinds of containers, and in no other:
#                                       store_t.returned, rules_t.dying, queue_t.aside, channel_t.ring (entry_t); and
#                                       in a gate, which shows them.  Code that moves records calls places.pxi, which
#                                       walks all
#   places_t    in rules_t              an array of places, freed with it
#   asides_t    malloc, by queue_t      records set aside; made with the first one, freed with the object
#   journal_t   malloc, by queue_t      what the order journal needs; freed when it is switched off, or with the object
#   order_t     malloc, by queue_t      counters; made with the first disturbance of the order, freed with the object
#   seg_t       malloc, by store_t      freed by seg_free() alone: retired, dropped, or the Queue object goes;
#                                       owned by core_t while it is in core_t.spares (files for any queue)
#   level_t     malloc, by queue_t      consumers of one priority; freed when its last consumer leaves
#   consumer_t  in Consumer             an unacked delivery holds a reference to the object (counted in .unacked)
#   channel_t   in Channel              freed with the object; Channel.close() empties it
#   reader_t    malloc, by Stream       what a stream's reader is at; freed with its Consumer
#   gate_t      in Gate                 which message goes out; queue_t.rules.gate is that of an object that the Queue holds
#   window_t    in Window               keys seen lately; queue_t.window is that of an object that the Queue holds
#   learner_t   in ExchangeWindow       keys that an exchange has learnt since the chunk began; core_t.learnt holds a reference
#   seqs_t      in rules_t              an array of sequence numbers, freed with it
#   keys_t      in Keys                 the keys of one message; valid while the object is held
#   entry_t     in channel_t.ring       ring of unacked deliveries, by delivery tag
#   content_t   malloc, by channel_t    a message that arrived in part; freed when it is whole or the channel closes
#   large_t     malloc, by content_t    a body in a file; its kept_t's, once a transaction has kept the message
#   kept_t      malloc, by channel_t    publishes of a transaction that is open; its object Kept's from commit on
#   conn_t      in Connection
#   route_t     malloc, by Routes       valid while it was found under the present Routes generation; so is by_headers_t
#   tally_t     in Tally
#
# Lists through a struct (dirty_next and the like) hold no reference: an object that goes takes itself out of them.
# A struct that one file alone looks into stands in that file.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef struct tally_t
cdef struct seg_t
cdef struct store_t
cdef struct rules_t
cdef struct journal_t
cdef struct order_t
cdef struct place_t
cdef struct asides_t
cdef struct last_entry_t
cdef struct anchor_t
cdef struct queue_key_t
cdef struct gate_t
cdef struct level_t
cdef struct queue_t
cdef struct consumer_t
cdef struct channel_t
cdef struct entry_t
cdef struct content_t
cdef struct large_t
cdef struct kept_t
cdef struct scatter_t
cdef struct route_t
cdef struct by_headers_t
cdef struct extracts_t
cdef struct conn_t
cdef struct learner_t
cdef extern from "key_hash.h" nogil:
    ctypedef struct hash_key_t:
        pass

cdef extern from "pthread.h" nogil:
    ctypedef unsigned long pthread_t

cdef struct kind_of_times_t:
    uint64_t[15] buckets        # TIMES
    uint64_t ns                 # the sum

cdef struct times_t:
    kind_of_times_t[2] kinds    # OF_WAITING, OF_WORKING

cdef struct core_t:
    int64_t now                 # ns since the epoch, read once a chunk
    uint32_t ms                 # the same in milliseconds, modulo 2**32
    uint32_t actor              # number of the consumer (or connection, for basic.get) that settles now; 0: the broker
    uint32_t segment_octets
    uint64_t message_octets_max
    uint64_t turn_octets, put_cost      # put_cost: of the copies that Core.put() has stored since the start (letters.pxi)
    uint64_t affairs            # messages dropped and letters made since the start, as finish_chunk() counts them
    int64_t looks_left          # that the filters of all readers have in this turn (filter.pxi)
    consumer_t *put_off         # consumers whose gate looks on in a later turn: a list, the oldest first
    consumer_t *put_off_last
    int64_t work_ns, calm_ns, crowd_ns      # see plane/__init__.pyi; no work_ns or crowd_ns: NEVER
    int64_t spent, busy         # of the connection in parse(), its room on disk counted; of all, since go_on()
    uint32_t frame_octets_max
    queue_t *dirty              # queues that may be able to deliver
    queue_t *dirty_tail
    conn_t *out_dirty           # connections with octets to send
    channel_t *confirm_dirty    # confirm channels that published since the last turn
    channel_t *channels         # all that are open
    channel_t *crediting        # those with consumers that wait, and credit for some of them
    uint64_t next_number        # of a segment: unique in this process, so that stale records fail their CRC
    char *spare_directory       # NULL: settled segments do not wait for other queues
    seg_t *spares               # unmapped, linked by next; their files are spare_directory/<number>
    uint32_t spares_n
    seg_t *nameless             # spares for queues that are not durable: files without a name, open and mapped
    uint32_t nameless_n
    uint64_t spares_used        # of those with a name, taken by a queue, since start
    int descriptors_most        # if a segment gets this descriptor or a higher one, another segment closes its own
    seg_t *open_first           # segments with a name and a descriptor, the last used first
    seg_t *open_last
    bint no_spares              # the disk is full: settled segments are removed, and none is kept as a spare
    seg_t *staged               # segments with records not yet in their files: none outside of a chunk's work
    uint32_t staged_n           # at most STAGES_MOST
    queue_t *dying              # queues with dead messages, for which on_dead() is still to be called
    queue_t *dying_tail
    queue_t *over               # queues that may be over a length limit
    learner_t *learnt           # exchanges whose on_learnt() is still to be called
    queue_t *retaining          # queues that retain settled segments, or still have some
    queue_t **deadlines         # heap of queues by the time when their head expires, the earliest on top
    uint32_t deadlines_n, deadlines_capacity
    queue_t *sync_dirty         # queues that hold records a confirm waits for
    bint sync                   # False: --no-sync
    uint64_t device             # st_dev of the data directory; 0: not known, or a segment that was mapped lies elsewhere
    uint64_t kept_octets        # of all kept_t
    uint32_t alarms             # 1 more than have begun since start, so that 0 is never
    uint64_t unfinished         # octets of the buffers of all content_t, and of their files
    int large_fd                # of the file that was written last (large.pxi); -1: it is not open
    uint64_t large_number
    uint64_t unfinished_most    # beyond that no connection has more than its share
    uint32_t unfinished_n       # connections that have much of it
    uint8_t *pool[16]           # output buffers that are free, OUT_ROOM octets each
    uint32_t pool_n
    uint8_t *letter             # room in which dead letters are made; NULL: none yet
    size_t letter_room
    core_t *next                # of those in this process
    pthread_t thread            # that works with it
    queue_t *queues             # all
    queue_t *fenced             # of these, the one of the last settlement that was fenced
    bint lost                   # of some queue with queue_t.lost the control plane has yet to hear
    bint count_figures          # sizes and times are counted (figures.pxi)
    uint64_t[9] sizes           # SIZES: publishes by their octets
    uint64_t sizes_sum
    times_t times_of_gone       # of queues that have gone
    uint64_t n_unroutable_dropped, n_unroutable_returned, n_get_empty
    uint64_t n_confirm_in, n_confirmed      # of channels that have closed

cdef struct tally_t:
    uint64_t published
    uint64_t routed

include "_keys.pxd"

cdef struct seg_t:
    seg_t *next
    seg_t *prev
    store_t *store              # NULL: one of core_t.spares or core_t.nameless
    queue_t *queue              # the store's
    uint64_t number
    uint64_t base_seq
    int64_t created             # ns
    int64_t newest              # ns, of a retained one: none of its messages is newer
    bint retained               # all in it is settled, and it stays
    uint32_t generation
    uint8_t *map                # NULL: not mapped
    uint8_t *base               # the next record goes to base + end: in the map, or in the stage
    uint8_t *words              # where its end and count stand: in the map, or in the stage
    uint8_t *stage              # NULL: none; a buffer of the core's pool
    seg_t *stage_next
    uint32_t stage_from         # position in the file of the first octet in the stage
    uint8_t stage_words[16]
    uint8_t *acks               # NULL: not mapped
    uint8_t *settled_bits       # a bit per 8 octets of segment: settled before this broker started; NULL: none
    last_entry_t *last_entries  # sorted by position; of records from before this broker started
    uint32_t last_entries_n
    anchor_t *anchors           # every 32nd record up to `anchored`; NULL: nothing was taken out of the middle yet
    uint32_t anchors_n, anchors_capacity
    uint32_t anchored           # the position behind the records that `anchors` covers
    int fd                      # -1: not open
    seg_t *open_next            # used less lately
    seg_t *open_prev
    core_t *opened_in           # the core that lists it among its open segments; NULL: it is not listed
    int64_t opened              # ns: when it was put at the head of that list
    uint32_t crc_seed           # state of the CRC after the segment's number
    uint32_t end                # first free octet
    uint32_t capacity
    uint32_t allocated          # blocks are on disk up to here
    uint64_t lies               # large_t.number of the body that lies here, of a message that is not stored yet; 0: none
    uint32_t zeroed             # zeros stand up to here, for append; at most `allocated`
    uint32_t asked_for          # deliver() has asked the kernel to have the file in memory up to here
    uint32_t records
    uint32_t settled
    uint32_t unacked            # records handed out now
    uint32_t waiting            # records the cursor has not passed yet
    uint32_t returned           # records in the store's heap of returned ones
    uint32_t aside              # records that are dying or set aside
    uint32_t readers            # of a stream: how many have their place here
    uint8_t *index              # NULL: not read (index.pxi); only where readers are here
    uint8_t indexed             # INDEX_*: whether there is a file to read
    uint32_t passed_below       # the cursor of a broker before this one had passed these positions
    uint32_t doubted_below      # ... or may have, before power was lost
    uint32_t whole_below        # readers of a stream have checked these positions, from the first record on
    uint32_t entries            # in the acks file
    uint32_t acks_zeroed
    uint32_t acks_capacity      # octets mapped
    uint8_t sealed              # as in the file: 0, 1 full, 2 full and known synced
    bint loaded                 # the acks of a recovered segment were read
    bint verify                 # came from disk: check each record's CRC when it is read
    bint unsynced               # holds what a confirm waits for
    bint damaged                # the file is renamed to *.damaged instead of unlinked
    bint unlinked               # of a queue that is not durable: a file without a name, and no acks; fd stays open
    uint8_t *journal            # NULL: not mapped
    uint32_t journal_room       # octets of its file, all of them with blocks
    uint32_t events             # in it
    uint32_t events_lost        # that the disk had no room for
    bint journal_known          # its header was read, or written
    bint keys_written              # its keys are in a file of their own
    uint64_t keys_last          # window_t.entered with the last key in it
    int64_t keys_until          # ms: none of its keys counts after that
    bint journal_dirty          # written since the last begin_journal_sync()
    bint journal_syncing

cdef enum:                      # bits of place_t.flags
    PLACE_WAS_OUT = 1           # handed out before: redelivered, if it goes out again
    PLACE_OUT_SINCE_START = 2   # ... since this broker started
    PLACE_REPLAYED = 16         # settled once, and ready again because an operator said so
    PLACE_PASSED = 4            # the acks file's watermark is past it: a hand-out needs an entry there
    PLACE_PARKED = 8            # an operator parked it: its last entry says so

cdef struct place_t:            # one record: where it is, and how often it was handed out
    seg_t *seg
    uint64_t seq
    uint32_t position
    uint32_t ordinal            # its number among the first hand-outs of its level since the start, modulo 2**32
    uint32_t actor              # of a message that died: the consumer that killed it, as in core_t.actor; of one that is out:
                                # what the queue's gate noted there when it took it; else meaningless
    uint16_t count              # failed deliveries
    uint8_t flags               # PLACE_*
    uint8_t reason              # why it died, or is aside

# Called for each place that a container holds; holder: HOLDER_* of places.pxi
ctypedef void (*visit_t)(place_t *place, uint8_t holder, void *context) noexcept nogil

cdef struct level_t:
    level_t *next               # lower priority
    level_t *prev
    int32_t priority
    uint32_t consumers          # in all, with or without credit
    consumer_t *head            # those with credit: next to be served first
    consumer_t *tail
    consumer_t *oldest          # all of them, in the order in which they came
    consumer_t *newest

cdef struct store_t:            # the messages of one priority level, in a directory
    queue_t *queue
    char *directory
    seg_t *first
    seg_t *last                 # the one appended to
    uint32_t segments_n         # of the list that begins with `first`
    uint64_t full_octets        # of the files of all these segments but the last one, as far as they have records
    seg_t *cursor               # next record to hand out is here (or later)
    uint32_t position
    uint32_t returned_n
    uint32_t returned_capacity
    uint32_t unsynced_n         # segments that hold what a confirm waits for
    place_t *returned           # heap, lowest sequence number on top
    uint64_t ready
    uint32_t handed             # messages handed out for the first time since the start, modulo 2**32
    seg_t *spare
    seg_t *leaving              # settled; their files stay until their keys are on disk elsewhere.  Linked by next
    uint64_t next_number
    uint8_t level
    bint directory_unsynced
    bint parent_unsynced

cdef struct message_t:          # a message on its way in, or read from its record: pieces that lie somewhere
    const uint8_t *names        # exchange and routing key, as short strings
    uint32_t names_n
    const uint8_t *properties   # flags and list
    uint32_t properties_n
    const uint8_t *body
    uint64_t body_n
    uint32_t length             # of the record, header and all
    uint32_t connection
    uint16_t channel
    uint16_t flags
    uint8_t priority
    uint64_t publish_seq
    large_t *large              # NULL: its body is in no file
    const keys_t *keys          # NULL: none
    uint32_t keys_at            # where in them the last one was found
    uint64_t dedup_hash         # of these, what the record carries; 0: nothing
    bint key_is_new             # ... and the queue's window does not have it

cdef struct places_t:
    place_t *at
    uint32_t first              # of those not yet dealt with
    uint32_t n                  # one behind the last
    uint32_t capacity

cdef struct seqs_t:             # sequence numbers, first in first out
    uint64_t *at
    uint32_t first, n, capacity # n: one behind the last

cdef enum:                      # what take() answers
    TAKE_NOTHING = 0            # no message can go out now
    TAKE_DONE = 1
    TAKE_OTHERS = 2             # none for this consumer.  It is asked again at the queue's next turn
    TAKE_LATER = 3              # the gate has looked at enough messages for one call
    TAKE_END = 4                # none for this consumer, until the gate puts it into its ring again
    TAKE_AFTER = 5              # the gate has looked enough for this consumer, and put it at the end of its ring

cdef struct gate_t:             # see gate.pxi, where each verb is explained
    queue_t *queue              # NULL: of no queue now
    bint reads                  # messages stay: one may be out to several consumers at once
    bint lets_go                # ... and places of unacked messages point to rules_t.stand_in, to no segment
    bint drops                  # a length limit drops messages that wait
    bint tells                  # headers() may add some to the message that take() took last
    bint sent_away              # a consumer left its ring because of TAKE_OTHERS
    uint32_t looked             # messages that take() looked at without handing them out; deliver() reads and clears it
    uint64_t open               # messages that wait and could go out now
    uint64_t waiting            # messages that wait: limits of length count them
    uint64_t waiting_octets     # ... and the octets of their bodies
    uint64_t held               # places in containers of its own, which visit() walks
    uint64_t fenced             # settlements of deliveries that it had taken back: ignored
    int64_t deadline            # ns: when due() is wanted; NEVER: not at all
    channel_t *channel          # of the delivery for which settle() or give_back() is called; NULL: of none
    entry_t *delivery           # ... and its place there; only as long as there is a channel
    consumer_t *consumer        # of that delivery; NULL: basic.get
    void (*attach)(gate_t *gate) noexcept nogil
    void (*detach)(gate_t *gate) noexcept nogil
    int (*take)(gate_t *gate, consumer_t *c, place_t *t) noexcept nogil
    void (*dying)(gate_t *gate, place_t *t) noexcept nogil
    bint (*settle)(gate_t *gate, place_t *t, uint8_t kind) noexcept nogil
    bint (*give_back)(gate_t *gate, place_t *t, uint8_t cause) noexcept nogil
    bint (*admits)(gate_t *gate, message_t *m) noexcept nogil
    uint32_t (*headers)(gate_t *gate, place_t *t, uint8_t *room) noexcept nogil
    uint32_t (*letter)(gate_t *gate, place_t *t, uint8_t *room) noexcept nogil
    bint (*part_with)(gate_t *gate, uint64_t seq, place_t *t) noexcept nogil
    void (*replayed)(gate_t *gate, place_t *t) noexcept nogil
    bint (*drop)(gate_t *gate) noexcept nogil
    uint32_t (*purge)(gate_t *gate, uint32_t most) noexcept nogil
    void (*stored)(gate_t *gate, store_t *st, message_t *m) noexcept nogil
    void (*due)(gate_t *gate) noexcept nogil
    void (*join)(gate_t *gate, consumer_t *c) noexcept nogil
    void (*leave)(gate_t *gate, consumer_t *c) noexcept nogil
    void (*visit)(gate_t *gate, visit_t visit, void *context) noexcept nogil
    void (*retiring)(gate_t *gate, seg_t *s) noexcept nogil
    void (*empty)(gate_t *gate) noexcept nogil
    bint (*is_sound)(gate_t *gate) noexcept nogil

cdef struct letters_t:          # how a queue's dead letters are made; owned by a Letters
    const uint8_t *queue        # its name
    uint32_t queue_n
    const uint8_t *names        # the dead-letter exchange, and the routing key where one is set, as short strings
    uint32_t names_n
    bint has_key
    bint per_message            # headers x-dead-letter-* of a message count
    bint at_least_once          # a message stays aside until its letter is on disk
    void *routes                # borrowed: the Routes that are asked
    const uint64_t *generations # theirs
    route_t *route              # of the last letter, as long as `generation` is theirs
    uint64_t generation, scattered  # scattered: seq of the message whose letter `scatter` has
    scatter_t *scatter          # NULL: no letter is in some of its queues alone

cdef struct rules_t:
    int64_t ttl                 # ns; -1: none
    int64_t max_length          # messages ready; -1: none
    int64_t max_octets          # of their bodies; -1: none
    int32_t delivery_limit      # failed deliveries; -1: none
    uint8_t overflow            # OVERFLOW_*
    bint expires                # a ttl is set, or a message with an expiration came
    bint dead_letters, limit_drops, delivery_counts, single_active
    bint limit_stops            # the gate decides what becomes of a message at its delivery limit
    bint reports_deliveries     # on_delivered() is called for each delivery
    bint draining               # the active consumer gets no more: another takes over
    bint refuses, unadmitted    # it refuses the publish under way; ... because its gate does not admit it
    bint is_over, is_dying
    queue_t *over_next
    queue_t *dying_next
    consumer_t *active
    int64_t timeout             # ns; -1: none
    bint timeout_closes
    places_t dying              # to be dead-lettered
    seqs_t stored               # aside: their letters are stored at least once, and not known to be on disk
    uint64_t letters_told       # of those stored since the start, as on_letters_stored() was told
    uint64_t letters_settled    # ... and settled
    letters_t *letters          # NULL: on_dead() makes all dead letters
    gate_t *gate                # NULL: sequence order alone
    int64_t retain_ns           # how long settled messages stay; -1: it does not matter
    int64_t retain_octets       # of settled segments that stay; -1: it does not matter.  Both -1: none stay
    uint32_t retained           # segments
    uint64_t retained_octets, n_replayed
    queue_t *retaining_next
    bint is_retaining           # is in core_t.retaining
    seg_t *stand_in             # for the segment in places of unacked deliveries, where the gate lets_go
    int64_t deadline            # ns: no message expires before
    uint32_t deadline_at        # place in core_t.deadlines plus 1; 0: none
    uint64_t n_expired, n_dropped, n_dead_lettered, n_refused, n_limited, n_timed_out

cdef struct queue_t:
    core_t *core
    void *owner                 # the Queue object, borrowed
    store_t store               # level 0; the only one of a queue without priorities
    store_t **levels_above      # NULL: no priorities; else [level - 1], NULL until used
    uint8_t max_priority
    uint8_t top                 # no level above it is ready
    seg_t *staged               # the segment, of any level, that has a stage; NULL: none
    bint mixed                  # publishes of one chunk went to several levels: its records are not gathered
    uint64_t next_seq
    int64_t last_ts
    rules_t *rules              # NULL: the plain path
    journal_t *journal          # NULL: none
    order_t *order              # NULL: nothing counted since the start
    window_t *window            # NULL: duplicates are not looked for
    asides_t *aside             # NULL: no record was ever set aside
    int64_t used                # ns: last consumer, get or declare
    uint64_t ready
    uint64_t ready_octets
    uint64_t unacked
    level_t *levels             # of consumers, highest priority first
    uint32_t levels_n, consumers
    uint32_t segment_octets     # of its next segments; 0: as core_t says
    bint confirms_have_waited   # confirms have waited for it
    queue_t *dirty_next
    queue_t *sync_next
    queue_t *core_next          # of all queues of the core
    queue_t *core_prev
    bint lost                   # a page of its files could not be read or written: zeros stand there now
    bint lost_told
    int64_t touched             # ns: last append or delivery
    bint is_dirty
    bint is_sync_dirty
    bint durable, paused
    bint copying                # a dump copies the files: settled segments are not written over
    bint dropped
    bint ghost_was              # the directory may be gone when the store is freed
    bint ghost                  # dropped with unacked deliveries: the object holds a reference to itself
    uint64_t n_published, n_delivered, n_got, n_acked, n_redelivered, n_returned
    uint64_t n_delivered_no_ack, n_got_no_ack
    uint64_t n_unrecorded       # settlements that a full disk would not take
    times_t *times              # NULL: they are not counted

cdef struct consumer_t:
    consumer_t *next            # ring of its level
    consumer_t *prev
    consumer_t *newer           # of its level
    consumer_t *older
    void *reader                # what the queue's gate knows of it, freed by free_reader(); NULL: nothing
    void (*free_reader)(void *reader) noexcept nogil
    consumer_t *waits_next      # of its channel's that wait for credit
    consumer_t *waits_prev
    consumer_t *put_off_next    # of core_t.put_off
    consumer_t *put_off_prev
    level_t *level
    queue_t *queue
    channel_t *channel
    void *owner
    uint8_t *prefix             # basic.deliver up to the delivery tag, size still zero
    uint16_t prefix_n
    uint32_t number             # in journals
    uint32_t at_gate            # what the queue's gate noted here; 0: nothing
    uint32_t prefetch, unacked  # prefetch 0: no limit
    uint64_t delivered          # messages that it got, since it is there
    int64_t timeout             # ns that a delivery may be unacked; -1: for ever
    bint timeout_closes, no_ack
    bint numbers                # its deliveries have the headers x-message-seq and x-message-ns
    bint in_ring, is_put_off, closed, waits     # waits: is in channel_t.waiting

cdef struct entry_t:
    place_t at                  # seg NULL: settled
    consumer_t *consumer        # NULL: basic.get
    uint32_t when               # core_t.ms when it was handed out
    uint8_t late                # timed out: a settlement that comes now has no effect
    uint8_t claimed             # its settlement waits for tx.commit: it does not time out.  See Channel.claim(); 0: it does not wait

cdef struct channel_t:
    conn_t *conn
    void *owner
    content_t *content
    kept_t *kept                # NULL: nothing is kept
    scatter_t *scatter          # NULL: no message is in some of its queues alone
    entry_t *ring
    uint32_t ring_capacity      # a power of two, or 0
    uint32_t unacked
    uint64_t base_tag           # oldest tag that may be outstanding
    uint64_t next_tag
    uint64_t publishes
    uint64_t confirm_from       # publishes when confirm.select came
    uint64_t confirmed          # highest confirmed tag
    uint64_t *nacks             # refused publishes, rising; their basic.nack is not written yet
    uint32_t nacks_n, nacks_capacity
    uint32_t late               # entries that timed out
    uint64_t n_late             # settlements that came late
    uint64_t returning_upto, settling_upto  # deliveries up to this tag are returned now; are settled in pieces.  0: none
    uint64_t sync_tag           # highest tag that waits for a sync
    uint64_t sync_snapshot      # publishes when the sync under way began
    route_t *route
    uint64_t route_generation
    channel_t *confirm_next
    channel_t *core_next
    channel_t *core_prev
    uint32_t global_prefetch, prefetch
    uint32_t consumed           # unacked deliveries of its consumers: those that global_prefetch bounds
    uint32_t consumers_n
    consumer_t *waiting         # consumers that wait until global_prefetch lets them have a message, first come first served
    consumer_t *waiting_last
    channel_t *crediting_next
    bint is_crediting
    uint16_t number
    uint8_t state               # 0 method, 1 content header, 2 content body expected
    bint confirm
    bint is_confirm_dirty
    bint waits_for_sync         # is in Core.waiting or Core.syncing
    bint closing
    bint closed
    bint flow
    bint tx, is_rare            # publishes wait for commit, and settlements go up; tx, or there is a scatter
    bint keeps                  # of tx: the plane keeps the publishes that it can, until one must go up
    uint64_t n_got, n_returned  # deliveries by basic.get; deliveries that were given back

cdef struct route_t:
    uint8_t *method             # payload of basic.publish, or extract of headers (headers.pxi): one memcmp decides
    uint32_t method_n, hash, targets_n
    bint mandatory, immediate
    by_headers_t *by_headers    # headers decide which route it is, and this one has no targets; NULL: they do not
    void *answer                # borrowed: an Answer with participants; NULL: none take part
    const uint8_t *properties   # in place of the message's own; NULL: its own
    uint32_t properties_n
    bint once                   # holds for one message only: it depends on the message's headers
    bint delays                 # holds for messages with a plain delay only (headers.pxi)
    bint up                     # of dead letters: the control plane decides for each
    bint checks_keys            # the exchange, or a queue, has a window (duplicates.pxi)
    bint is_common              # its publishes are stored in its one queue, and ask for no more
    learner_t *learner          # the exchange's; NULL: it has none
    tally_t *tally
    queue_t **targets

cdef struct conn_t:
    core_t *core
    void *owner
    channel_t **channels        # by number
    uint32_t channels_n
    uint32_t frame_max
    uint32_t number
    int fd                      # -1: no direct send
    uint8_t *out
    size_t out_n
    size_t out_capacity
    uint8_t *stash              # an incomplete frame, or what waits while stalled
    size_t stash_n
    conn_t *out_next
    channel_t *pending          # its content is whole, but waits for a route or for disk space
    uint32_t body_left          # that a body frame under way still lacks, with its end mark; 0: no frame is under way
    uint32_t body_frame_n       # octets of that frame's payload
    uint16_t body_channel
    uint64_t received
    uint64_t sent
    uint64_t *routes_generation # of the Routes in use; NULL before connection.open
    uint64_t unfinished         # octets of the buffers of its content_t, and of their files
    uint64_t in_files           # of these, those in files
    uint32_t held
    bint is_out_dirty
    bint paused                 # the transport holds octets of ours
    bint discard
    uint32_t publishes          # core_t.alarms when it last published; 0: it never has
    bint gone
    bint deaf                   # octets came that are no frame: all that follows is dropped
    bint greeted                # the protocol header came
    bint stalled                # stopped before a publish that found no disk space
    bint yielded                # in Core.yielded: its octets wait until others had their turn
    uint32_t rests              # calls of rest() without go_on(): its octets wait for something of its own
    uint32_t awaits             # those of them by await_answer(): its octets wait also where the client has gone
    bint comes_again            # the method or publish under way is parsed again after answered()
    bint stuffed                # its output is full: its octets wait until the client has read some of it
    bint ended                  # no more octets will come; rest() holds up nothing any more
    int64_t spent, counted_from # ns with the control plane, and for room on the disk, since it yielded last, and when that was
    size_t taken_in             # octets since it yielded last
    uint32_t affairs_left       # for which its next method still waits; 0: it does not wait
    bint blocked
    bint reading_paused

cdef struct event_t:            # why the parser stopped; lives on the stack of Connection.work()
    uint16_t channel
    const uint8_t *payload
    uint32_t payload_n
    const uint8_t *header       # ROUTE: the content header's payload
    uint32_t header_n
    bint ask                    # ROUTE: the answer is for this message alone
    const uint8_t *body         # CONTENT
    uint64_t body_n
    uint16_t code               # FAULT
    bint hard
    uint32_t method
    uint64_t number
    uint64_t limit
    const char *text
    int error                   # STALL: errno

# Of each class here, what C reads.
include "_classes.pxd"

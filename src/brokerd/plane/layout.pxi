# Numbers by their names: byte layouts of the files, kinds and reasons, AMQP's methods and property flags.  The files are
# described in store/format.py; a test holds these numbers against it (layout() in inspect.pxi lists them).

cdef enum:
    HEADER = 64                     # octets of a file's header
    RECORD = 64                     # of a record's
    ENTRY = 8                       # of an entry in an acks file
    EVENT = 32                      # of an event in an order journal
    SEGMENT_MAGIC = 0x47455342      # "BSEG"
    RECORD_MAGIC = 0x4D475342       # "BSGM"
    ACKS_MAGIC = 0x4B434142         # "BACK"
    JOURNAL_MAGIC = 0x4E524A42      # "BJRN"
    ORDER_MAGIC = 0x44524F42        # "BORD"
    SEGMENT_VERSION = 1
    ACKS_VERSION = 3
    JOURNAL_VERSION = 3
    ORDER_VERSION = 1

cdef enum:                          # a file's header: magic and version are at one place in all of them
    F_MAGIC = 0
    F_VERSION = 4
    F_NUMBER = 8

    S_BASE_SEQ = 16                 # segment
    S_CREATED = 24
    S_GENERATION = 32
    S_CRC = 36
    S_END = 40                      # word; so are the next two
    S_RECORDS = 48
    S_SEALED = 56

    A_GENERATION = 16               # acks
    A_CRC = 20
    A_DELIVERED = 24                # word; so are the next two
    A_ENTRIES = 32
    A_SETTLED = 40
    A_DOUBTED = 48                  # word, or zeros; the control plane alone writes it

    J_BEGUN = 16                    # journal
    J_CRC = 24
    J_EVENTS = 32                   # word; so is the next one
    J_LOST = 40
    J_SYNCED = 48
    J_SYNCED_NOT = 56

    O_CRC = 8                       # counters

cdef enum:                          # record
    R_MAGIC = 0
    R_LENGTH = 4
    R_CRC = 8
    R_META = 12
    R_PRIORITY = 14
    R_KIND = 15
    R_SEQ = 16
    R_TS = 24
    R_CONNECTION = 32
    R_CHANNEL = 36
    R_FLAGS = 38
    R_PUBLISH_SEQ = 40
    R_GROUP_HASH = 48
    R_DEDUP_HASH = 56
    R_CRC_FROM = 12                 # the first octet that the CRC covers
    LONG_META = 0xFFFF              # meta_len of a meta whose length stands in 4 octets before it

    PERSISTENT = 1                  # flags of a record
    EXPIRES = 2                     # it has an expiration of its own
    KEY_OF_EXCHANGE = 4             # its deduplication key belongs to the exchange in its meta, not to the queue
    KEY_TTL = 8                     # its header x-cache-ttl says how long its key counts
    REDRIVEN = 16                   # its header x-group-seq says where it stands in its message group

cdef enum:                          # event of a journal
    E_SEQ = 0
    E_TS = 8
    E_CONSUMER = 16
    E_AUX = 20
    E_COUNT = 24
    E_TYPE = 26
    E_REASON = 27
    E_CRC = 28

cdef enum:                          # types of acks entries and journal events: the low nibble of an entry's kind
    ACKED = 1
    REJECTED = 2
    RETURNED = 3
    DEAD_LETTERED = 4
    EXPIRED = 5
    DROPPED = 6
    PURGED = 7
    HANDED_OUT = 8                  # entries: again; events: each time
    STARTED = 9                     # events only
    SET_ASIDE = 10                  # entries only
    PARKED = 11                     # entries only: aside until an operator acts
    RETRY_TIME = 12                 # entries only
    REPLAYED = 13                   # entries only: settled before, and ready again
    PARKED_EVENT = 16               # events only, as those that follow
    RELEASED_EVENT = 17
    TOKEN_EVENT = 18
    RETRY_SCHEDULED = 19
    EVENT_REPLAYED = 20
    REPLAY_EVENT = 21
    DUPLICATE_EVENT = 22
    GROUP_PARKED_EVENT = 23
    GROUP_RELEASED_EVENT = 24
    REDRIVEN_EVENT = 25

    REASON_REJECTED = 1             # why a message died; the high nibble of DEAD_LETTERED and DROPPED
    REASON_EXPIRED = 2
    REASON_LENGTH = 3
    REASON_LIMIT = 4
    REASON_REMOVED = 5

    CAUSE_NACK = 1                  # why a message returned; the high nibble of RETURNED
    CAUSE_REJECT = 2
    CAUSE_RECOVER = 3
    CAUSE_CHANNEL = 4
    CAUSE_CONNECTION = 5
    CAUSE_TIMEOUT = 6

    ASIDE_WAS_OUT = 1               # the high nibble of SET_ASIDE and PARKED: it had been handed out
    RETRY_PARTS = 3                 # entries that tell a retry time, of 16 bits each

    BY_GET = 2                      # bits of the reason of an event HANDED_OUT; 1: redelivered
    BEFORE_START = 4
    WITHOUT_ACK = 8

    RESTARTED = 1                   # reasons of STARTED
    POWER_LOST = 2
    SWITCHED_ON = 3
    SWITCHED_OFF = 4

cdef enum:                          # AMQP 0-9-1: class and method ids as they stand in a payload
    CLASS_BASIC = 60
    CONNECTION_CLOSE = 10 << 16 | 50
    CONNECTION_CLOSE_OK = 10 << 16 | 51
    CHANNEL_CLOSE = 20 << 16 | 40
    CHANNEL_CLOSE_OK = 20 << 16 | 41
    BASIC_PUBLISH = 60 << 16 | 40
    BASIC_RETURN = 60 << 16 | 50
    BASIC_DELIVER = 60 << 16 | 60
    BASIC_GET_OK = 60 << 16 | 71
    BASIC_ACK = 60 << 16 | 80
    BASIC_REJECT = 60 << 16 | 90
    BASIC_NACK = 60 << 16 | 120

    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 0xCE

    PROPERTY_CONTENT_TYPE = 15      # bits of the property flags
    PROPERTY_CONTENT_ENCODING = 14
    PROPERTY_HEADERS = 13
    PROPERTY_EXPIRATION = 8

cdef enum:                          # sizes and bounds
    FIRST_ZEROS = 16384             # blocks allocated ahead: doubled at each step, up to ...
    MOST_ZEROS = 1048576
    BODY_MOST = 536870912           # octets of a message's body, even if the option allows more: positions are a u4
    ACKS_ZEROS = 65536
    ASK_OCTETS = 1048576            # what the kernel is asked to read ahead of a queue's cursor
    OUT_ROOM = 262144 + 32768       # octets of a pooled buffer
    STAGE_ROOM = OUT_ROOM           # a stage is one of them
    STAGES_MOST = 64                # at a time: each has a buffer, and needs its descriptor
    POOL_MOST = 16                  # pooled buffers
    SPARES_MOST = 64                # segments kept for any queue that needs one
    NAMELESS_MOST = 8               # ... for any queue that is not durable: each has a descriptor and a map
    PATH_ROOM = 4096
    SHORTSTR_ROOM = 256             # a short string, its length and all
    EXPIRATION_MS_MOST = 315360000000   # ten years

cdef extern from *:
    """
    #define NEVER INT64_MAX
    """
    int64_t NEVER


cdef inline bint word_is_whole(const uint8_t *p) noexcept nogil:
    """A counter and its complement, as put_word() writes them."""
    return le32(p) ^ le32(p + 4) == <uint32_t>0xFFFFFFFF


cdef inline uint32_t align8(uint32_t n) noexcept nogil:
    return (n + 7) & ~<uint32_t>7


cdef inline uint32_t length_of(const uint8_t *record) noexcept nogil:
    """Octets of header, meta and body.  Where the magic stands, the length does: both are in one word of 8 octets, and so
    in one page."""
    return le32(record + R_LENGTH)


cdef inline uint32_t room_of(const uint8_t *record) noexcept nogil:
    """Octets from this record to the next one.  Where zeros stand, because its page was lost, those of a header: who walks
    over records must come on."""
    return align8(max(length_of(record), <uint32_t>RECORD))


cdef inline uint64_t seq_of(const uint8_t *record) noexcept nogil:
    return le64(record + R_SEQ)


cdef extern from *:
    """
    static const char *const REASON_NAMES[] = {"", "rejected", "expired", "maxlen", "delivery_limit"};
    """
    const char **REASON_NAMES   # why a message died, by REASON_*, as x-death says it

REASONS = tuple([REASON_NAMES[i].decode() for i in range(REASON_LIMIT + 1)])

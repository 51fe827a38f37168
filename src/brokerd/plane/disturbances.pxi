# Counts what disturbed the order of messages: always, with or without a journal.
#
#    <queue's directory>/order     counters since the queue was declared, mapped: kill -9 loses none
#
# The first disturbance makes it: a queue in which nothing ever returns has no file and no memory for it.  The names of
# the counters stand in store/format.py, ORDER_COUNTERS, in this order.

cdef enum:
    ORDER_OCTETS = 4096
    RETURNED_BY = 0                 # and five more, by cause
    REDELIVERED_N = 6
    REDELIVERED_AFTER_RESTART = 7
    OUT_OF_SEQUENCE = 8
    OVERTAKINGS = 9
    DEAD_LETTERED_N = 10            # and three more, by reason
    REJECTED_N = 14
    EXPIRED_N = 15
    DROPPED_MAXLEN = 16
    DROPPED_LIMIT = 17
    REMOVED_N = 18
    PURGED_N = 19
    ORDER_N = 20                    # how many there are

cdef struct order_t:
    uint8_t *map                # NULL: not mapped
    uint64_t *counts            # in the map, or own; NULL: in a file that is not mapped, if there is one
    uint64_t before[ORDER_N]    # when this broker started
    uint64_t own[ORDER_N]       # of a queue that has no file for them
    bint failed


cdef bint order_map(queue_t *q, bint make) noexcept nogil:
    """Map the counters of a durable queue.  False: it has no file, or the disk is full."""
    cdef order_t *o = q.order
    cdef char path[PATH_ROOM]
    cdef stat_t st
    cdef void *m = MAP_FAILED
    cdef uint8_t *p
    cdef int fd
    snprintf(path, PATH_ROOM, b"%s/order", q.store.directory)
    fd = open_file(q.core, path, O_RDWR | (O_CREAT if make else 0))
    if fd < 0:
        return False
    if fstat(fd, &st) == 0 and (st.st_size >= ORDER_OCTETS or write_zeros(fd, st.st_size, ORDER_OCTETS) == 0):
        m = mmap(NULL, ORDER_OCTETS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
    close(fd)
    if m == MAP_FAILED:
        return False
    p = <uint8_t *>m
    if le32(p) != ORDER_MAGIC or le32(p + O_CRC) != <uint32_t>~crc_update(0xFFFFFFFF, p, O_CRC):
        memset(p, 0, ORDER_OCTETS)
        put_le32(p + F_MAGIC, ORDER_MAGIC)
        put_le32(p + F_VERSION, ORDER_VERSION)
        put_le32(p + O_CRC, ~crc_update(0xFFFFFFFF, p, O_CRC))
    o.map = p
    o.counts = <uint64_t *>(p + HEADER)
    return True


cdef order_t *order_of(queue_t *q, bint make) noexcept nogil:
    """The queue's counters; NULL: nothing has been counted (or, to make them, no memory)."""
    cdef order_t *o = q.order
    if o != NULL and o.counts != NULL:
        return o
    if o == NULL:
        o = q.order = <order_t *>calloc(1, sizeof(order_t))
        if o == NULL:
            return NULL
        if q.durable and order_map(q, make):
            memcpy(o.before, o.counts, ORDER_N * sizeof(uint64_t))
    elif o.map == NULL and q.durable and not o.failed:
        order_map(q, make)              # rest() had unmapped it.
    if o.counts == NULL and make:
        o.failed = True                 # They are in memory only: the disk is full, or the queue is not durable.
        o.counts = o.own
    return o if o.counts != NULL else NULL


cdef void count_disturbance(queue_t *q, uint8_t what, uint64_t n) noexcept nogil:
    cdef order_t *o = order_of(q, True)
    if o != NULL:
        o.counts[what] += n


cdef void order_unmap(queue_t *q) noexcept nogil:
    if q.order != NULL and q.order.map != NULL:
        munmap(q.order.map, ORDER_OCTETS)
        q.order.map = NULL
        q.order.counts = NULL


cdef void order_free(queue_t *q) noexcept nogil:
    order_unmap(q)
    free(q.order)
    q.order = NULL


cdef void count_redelivery(place_t *t) noexcept nogil:
    """A message is handed out again.  If it returned since the start, every first hand-out of its level after its own has
    overtaken it."""
    cdef queue_t *q = t.seg.queue
    cdef uint32_t overtaken
    count_disturbance(q, REDELIVERED_N, 1)
    if not t.flags & PLACE_OUT_SINCE_START:
        count_disturbance(q, REDELIVERED_AFTER_RESTART, 1)
        return
    if t.flags & PLACE_REPLAYED:
        return                  # An operator wanted it here.
    overtaken = t.seg.store.handed - t.ordinal
    if overtaken:
        count_disturbance(q, OUT_OF_SEQUENCE, 1)
        count_disturbance(q, OVERTAKINGS, overtaken)


cdef void count_settled_without_ack(queue_t *q, uint8_t kind) noexcept nogil:
    """Count a message that was settled in another way than by an ack."""
    cdef uint8_t reason = kind >> 4
    kind &= 15
    if kind == REJECTED:
        count_disturbance(q, REJECTED_N, 1)
    elif kind == DEAD_LETTERED:
        count_disturbance(q, DEAD_LETTERED_N + reason - REASON_REJECTED, 1)
    elif kind == EXPIRED:
        count_disturbance(q, EXPIRED_N, 1)
    elif kind == PURGED:
        count_disturbance(q, PURGED_N, 1)
    elif kind == DROPPED:
        count_disturbance(q, DROPPED_MAXLEN + reason - REASON_LENGTH, 1)

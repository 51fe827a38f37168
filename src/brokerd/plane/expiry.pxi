# Messages whose time is over: at the head of a queue or level, when it is taken and when nobody takes it.
#
#    core_t.deadlines    heap of queues by the time before which nothing at their head expires
#
# A message is expired from the instant its time is over, but what is handed out in the very turn in which it came is
# not: a message with a time of 0 reaches a consumer that waits (RabbitMQ).  Only heads are looked at (RabbitMQ).

cdef enum:
    EXPIRATION_BIT = 8          # of the property flags
    EXPIRES = 2                 # of a record's flags: it has an expiration of its own
    EXPIRE_MOST = 1024          # messages of one queue at a time

cdef extern from *:
    """
    #define NEVER INT64_MAX
    """
    int64_t NEVER


cdef int64_t expires_at(queue_t *q, const uint8_t *record) noexcept nogil:
    """ns since the epoch, or NEVER."""
    cdef int64_t ttl = q.rules.ttl
    cdef int64_t own
    cdef const uint8_t *meta
    cdef const uint8_t *p
    if le16(record + 38) & EXPIRES:
        meta_of(record, &meta)
        meta += 1 + meta[0]
        meta += 1 + meta[0]
        p = property_at(meta, EXPIRATION_BIT)
        own = number_of(p, 315360000000) if p != NULL else -1
        if own >= 0 and (ttl < 0 or own * 1000000 < ttl):
            ttl = own * 1000000
    if ttl < 0:
        return NEVER
    return <int64_t>le64(record + 24) + ttl


cdef int64_t head_expires_at(queue_t *q) noexcept nogil:
    """The earliest of all levels' heads."""
    cdef store_t *st = NULL
    cdef taken_t t
    cdef int64_t when = NEVER
    while True:
        st = next_store(q, st)
        if st == NULL:
            return when
        if st.ready and next_of(st, &t):
            when = min(when, expires_at(q, t.seg.map + t.position))


cdef bint expire(queue_t *q) noexcept nogil:
    """Kill what is over at the heads; False: there may be more."""
    cdef store_t *st = NULL
    cdef taken_t t
    cdef uint32_t n = 0
    while True:
        st = next_store(q, st)
        if st == NULL:
            break
        while st.ready and next_of(st, &t) and expires_at(q, t.seg.map + t.position) <= q.core.now:
            if n == EXPIRE_MOST:
                return False
            n += 1
            take_next(st, &t)
            octets_gone(q, t.seg.map + t.position)
            kill(&t, EXPIRED_REASON)
    deadline_set(q, head_expires_at(q))
    return True


# ---- the heap

cdef inline bint earlier(queue_t *a, queue_t *b) noexcept nogil:
    return a.rules.deadline < b.rules.deadline


cdef inline void heap_put(core_t *core, queue_t *q, uint32_t i) noexcept nogil:
    core.deadlines[i] = q
    q.rules.deadline_at = i + 1


cdef void deadline_sift(core_t *core, queue_t *q) noexcept nogil:
    """q is in the heap, its deadline has changed."""
    cdef uint32_t i = q.rules.deadline_at - 1
    cdef uint32_t child
    while i and earlier(q, core.deadlines[(i - 1) >> 1]):
        heap_put(core, core.deadlines[(i - 1) >> 1], i)
        i = (i - 1) >> 1
    while True:
        child = 2 * i + 1
        if child >= core.deadlines_n:
            break
        if child + 1 < core.deadlines_n and earlier(core.deadlines[child + 1], core.deadlines[child]):
            child += 1
        if not earlier(core.deadlines[child], q):
            break
        heap_put(core, core.deadlines[child], i)
        i = child
    heap_put(core, q, i)


cdef void deadline_set(queue_t *q, int64_t when) noexcept nogil:
    cdef core_t *core = q.core
    cdef queue_t **heap
    cdef uint32_t n
    if when == NEVER or q.dropped:
        deadline_clear(q)
        return
    q.rules.deadline = when
    if q.rules.deadline_at == 0:
        if core.deadlines_n == core.deadlines_capacity:
            n = core.deadlines_capacity * 2 if core.deadlines_capacity else 16
            heap = <queue_t **>realloc(core.deadlines, n * sizeof(queue_t *))
            if heap == NULL:
                return          # Its messages expire when they are asked for.
            core.deadlines = heap
            core.deadlines_capacity = n
        heap_put(core, q, core.deadlines_n)
        core.deadlines_n += 1
    deadline_sift(core, q)


cdef void expires_by(queue_t *q, int64_t when) noexcept nogil:
    """A head that expires then has come to be."""
    if when != NEVER and (q.rules.deadline_at == 0 or when < q.rules.deadline):
        deadline_set(q, when)


cdef void deadline_clear(queue_t *q) noexcept nogil:
    cdef core_t *core = q.core
    cdef queue_t *last
    cdef uint32_t i
    if q.rules == NULL or q.rules.deadline_at == 0:
        return
    i = q.rules.deadline_at - 1
    q.rules.deadline_at = 0
    core.deadlines_n -= 1
    if i < core.deadlines_n:
        last = core.deadlines[core.deadlines_n]
        heap_put(core, last, i)
        deadline_sift(core, last)


cdef bint expire_due(core_t *core, uint32_t most) noexcept nogil:
    """Expire what is due in at most so many queues; False: there may be more."""
    cdef queue_t *q
    while core.deadlines_n and core.deadlines[0].rules.deadline <= core.now:
        if most == 0:
            return False
        most -= 1
        q = core.deadlines[0]
        if not expire(q):
            return False
    return True

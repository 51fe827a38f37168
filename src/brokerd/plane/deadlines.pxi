# When messages expire, and in which order the queues must be looked at.
#
#    core_t.deadlines    heap of queues by the time before which no message at their head expires
#
# Only heads are looked at (RabbitMQ).


cdef int64_t expires_at(queue_t *q, const uint8_t *record) noexcept nogil:
    """When the record expires, in ns since the epoch; NEVER: it does not."""
    cdef int64_t ttl = q.rules.ttl
    cdef int64_t own
    cdef const uint8_t *meta
    cdef const uint8_t *p
    if le16(record + R_FLAGS) & EXPIRES:
        meta_of(record, &meta)
        meta += 1 + meta[0]
        meta += 1 + meta[0]
        p = property_at(meta, PROPERTY_EXPIRATION)
        own = number_of(p, EXPIRATION_MS_MOST) if p != NULL else -1
        if own >= 0 and (ttl < 0 or own * 1000000 < ttl):
            ttl = own * 1000000
    if ttl < 0:
        return NEVER
    return <int64_t>le64(record + R_TS) + ttl


cdef inline int64_t place_expires_at(const place_t *t) noexcept nogil:
    """expires_at() of a message that is mapped.  One that was replayed does not expire: its time was over once."""
    return NEVER if t.flags & PLACE_REPLAYED else expires_at(t.seg.queue, t.seg.map + t.position)


cdef int64_t head_expires_at(queue_t *q) noexcept nogil:
    """When the queue must be looked at: the first of all levels' heads expires, or its gate asks for due()."""
    cdef store_t *st = NULL
    cdef place_t t
    cdef int64_t when = NEVER
    if q.rules.gate != NULL:
        when = q.rules.gate.deadline
    while True:
        st = next_store(q, st)
        if st == NULL:
            return when
        if st.ready and find_head(st, &t):
            when = min(when, place_expires_at(&t))


# ---- the heap


cdef inline bint is_due_before(queue_t *a, queue_t *b) noexcept nogil:
    return a.rules.deadline < b.rules.deadline


cdef inline void deadline_put(core_t *core, queue_t *q, uint32_t i) noexcept nogil:
    core.deadlines[i] = q
    q.rules.deadline_at = i + 1


cdef void deadline_sift(core_t *core, queue_t *q) noexcept nogil:
    """Move q to its place in the heap after its deadline has changed."""
    cdef uint32_t i = q.rules.deadline_at - 1
    cdef uint32_t child
    while i and is_due_before(q, core.deadlines[(i - 1) >> 1]):
        deadline_put(core, core.deadlines[(i - 1) >> 1], i)
        i = (i - 1) >> 1
    while True:
        child = 2 * i + 1
        if child >= core.deadlines_n:
            break
        if child + 1 < core.deadlines_n and is_due_before(core.deadlines[child + 1], core.deadlines[child]):
            child += 1
        if not is_due_before(core.deadlines[child], q):
            break
        deadline_put(core, core.deadlines[child], i)
        i = child
    deadline_put(core, q, i)


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
        deadline_put(core, last, i)
        deadline_sift(core, last)


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
                return          # No memory: its messages expire only when they would be handed out.
            core.deadlines = heap
            core.deadlines_capacity = n
        deadline_put(core, q, core.deadlines_n)
        core.deadlines_n += 1
    deadline_sift(core, q)


cdef void deadline_bring_forward(queue_t *q, int64_t when) noexcept nogil:
    """A message may be a head now that expires at `when`: the queue must be looked at by then."""
    if when != NEVER and (q.rules.deadline_at == 0 or when < q.rules.deadline):
        deadline_set(q, when)

# A queue's priority levels: a store each, made when a message of that priority comes first.
#
#    level 0            <queue's directory>               in queue_t: all there is without x-max-priority
#    level 1 .. max     <queue's directory>/prio.NNN      in queue_t.levels_above
#
# The highest level that is ready goes first; within a level the order is that of sequence numbers, which are the
# queue's.  A message above the highest level is of the highest (RabbitMQ); without priority it is of level 0.


cdef inline store_t *store_at(queue_t *q, uint8_t level) noexcept nogil:
    """NULL: no message of this level came yet."""
    if level == 0:
        return &q.store
    if q.levels_above == NULL or level > q.max_priority:
        return NULL
    return q.levels_above[level - 1]


cdef int store_make(queue_t *q, uint8_t level) noexcept nogil:
    """A store for a level without one; 0 or ENOMEM."""
    cdef store_t *st = <store_t *>calloc(1, sizeof(store_t))
    cdef char path[PATH_ROOM]
    if st == NULL:
        return ENOMEM
    snprintf(path, PATH_ROOM, b"%s/prio.%03u", q.store.directory, <unsigned>level)
    st.directory = strdup(path)
    if st.directory == NULL:
        free(st)
        return ENOMEM
    st.queue = q
    st.level = level
    st.next_number = 1
    q.levels_above[level - 1] = st
    return 0


cdef store_t *store_above(queue_t *q, uint8_t priority) noexcept nogil:
    """Where a message of this priority, not 0, belongs in a queue with levels; NULL: no memory."""
    cdef uint8_t level = min(priority, q.max_priority)
    if q.levels_above[level - 1] == NULL and store_make(q, level) != 0:
        return NULL
    return q.levels_above[level - 1]


cdef inline store_t *store_for(queue_t *q, uint8_t priority) noexcept nogil:
    if LIKELY(q.levels_above == NULL) or priority == 0:
        return &q.store
    return store_above(q, priority)


cdef store_t *next_store(queue_t *q, store_t *st) noexcept nogil:
    """The stores there are, level 0 first: NULL begins, NULL ends."""
    cdef uint32_t level
    if st == NULL:
        return &q.store
    if q.levels_above != NULL:
        for level in range(st.level, q.max_priority):
            if q.levels_above[level] != NULL:
                return q.levels_above[level]
    return NULL


cdef void store_empty(store_t *st) noexcept nogil:
    """Segments freed, their files left where they are, or kept as spares if the queue was deleted just now."""
    cdef seg_t *s = st.first
    cdef seg_t *next
    cdef queue_t *q = st.queue
    while s != NULL:
        next = s.next
        # Only of a queue deleted just now: its folder is still where it was.
        if not (q.dropped and not q.ghost_was and q.journal == NULL and spare_for_all(s)):
            seg_free(s)
        s = next
    st.first = st.last = st.cursor = NULL
    if st.spare != NULL:
        seg_free(st.spare)
        st.spare = NULL
    free(st.returned)
    st.returned = NULL
    st.returned_n = st.returned_capacity = 0


cdef bint store_unmap(store_t *st) noexcept nogil:
    """True: something was held."""
    cdef seg_t *s = st.first
    cdef bint held = False
    while s != NULL:
        held = held or s.map != NULL or s.fd >= 0 or s.acks != NULL
        seg_unmap(s)
        acks_unmap(s)
        journal_unmap(s)
        s = s.next
    return held


cdef int describe_store(store_t *st, list out) except -1:
    cdef seg_t *s = st.first
    while s != NULL:
        out.append({"level": st.level, "number": s.number, "end": s.end, "records": s.records, "settled": s.settled,
                    "unacked": s.unacked, "returned": s.returned, "waiting": s.waiting, "base_seq": s.base_seq,
                    "generation": s.generation, "entries": s.entries, "capacity": s.capacity,
                    "mapped": s.map != NULL, "sealed": s.sealed, "damaged": s.damaged != 0,
                    "events": s.events if s.journal_known else -1})
        s = s.next
    return 0


cdef seg_t *segment_at(queue_t *q, uint8_t level, uint64_t number) noexcept nogil:
    cdef store_t *st = store_at(q, level)
    cdef seg_t *s = st.first if st != NULL else NULL
    while s != NULL and s.number != number:
        s = s.next
    return s

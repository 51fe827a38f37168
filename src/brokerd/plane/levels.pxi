# A queue's stores, one for each priority level in use, and the list of segments of each store.
#
#    level 0            <queue's directory>               in queue_t: the only one without x-max-priority
#    level 1 .. max     <queue's directory>/prio.NNN      in queue_t.levels_above
#
# The queue hands out messages of the highest level first, and those of a level by sequence number.  All levels share the
# queue's sequence numbers.  A priority above the highest level means the highest level (RabbitMQ), no priority level 0.


cdef inline store_t *store_at(queue_t *q, uint8_t level) noexcept nogil:
    """The store of a level; NULL: no message of this level has come yet."""
    if level == 0:
        return &q.store
    if q.levels_above == NULL or level > q.max_priority:
        return NULL
    return q.levels_above[level - 1]


cdef int store_make(queue_t *q, uint8_t level) noexcept nogil:
    """Make the store of a level that has none; 0 or ENOMEM."""
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
    """The store for a message of this priority, not 0, in a queue with levels.  NULL: no memory."""
    cdef uint8_t level = min(priority, q.max_priority)
    if q.levels_above[level - 1] == NULL and store_make(q, level) != 0:
        return NULL
    return q.levels_above[level - 1]


cdef inline store_t *store_for(queue_t *q, uint8_t priority) noexcept nogil:
    if LIKELY(q.levels_above == NULL) or priority == 0:
        return &q.store
    return store_above(q, priority)


cdef store_t *next_store(queue_t *q, store_t *st) noexcept nogil:
    """The next store after st, by rising level.  st NULL: level 0, the first.  Returns NULL after the last."""
    cdef uint32_t level
    if st == NULL:
        return &q.store
    if q.levels_above != NULL:
        for level in range(st.level, q.max_priority):
            if q.levels_above[level] != NULL:
                return q.levels_above[level]
    return NULL


cdef store_t *top_level(queue_t *q) noexcept nogil:
    """The store of the highest level that has ready messages; level 0 if there are none."""
    cdef store_t *st
    while q.top:
        st = q.levels_above[q.top - 1]
        if st != NULL and st.ready:
            return st
        q.top -= 1
    return &q.store


# ---- the list of segments


cdef inline void uncount_ready(store_t *st, uint64_t n) noexcept nogil:
    """Take n records off the counts of ready messages."""
    st.ready -= min(n, st.ready)
    st.queue.ready -= min(n, st.queue.ready)


cdef inline void count_ready(store_t *st) noexcept nogil:
    """One more message of st is ready."""
    st.ready += 1
    st.queue.ready += 1
    if UNLIKELY(st.level > st.queue.top):
        st.queue.top = st.level


cdef void seg_unlink_from_list(seg_t *s) noexcept nogil:
    cdef store_t *st = s.store
    if s != st.last:
        st.full_octets -= s.end
    elif s.prev != NULL:
        st.full_octets -= s.prev.end
    if s.prev != NULL:
        s.prev.next = s.next
    else:
        st.first = s.next
    if s.next != NULL:
        s.next.prev = s.prev
    else:
        st.last = s.prev
    s.next = s.prev = NULL
    st.segments_n -= 1


cdef void seg_append_to_list(seg_t *s) noexcept nogil:
    cdef store_t *st = s.store
    s.prev = st.last
    s.next = NULL
    if st.last != NULL:
        st.full_octets += st.last.end
        st.last.next = s
    else:
        st.first = s
    st.last = s
    st.segments_n += 1


cdef void cursor_enter(store_t *st, seg_t *s) noexcept nogil:
    """The cursor enters s, or the next one that is not retained."""
    while s != NULL and UNLIKELY(s.retained):
        s = s.next
    st.cursor = s
    st.position = HEADER


cdef int make_directory_of(store_t *st) noexcept:
    cdef queue_t *q = st.queue
    try:
        (<Queue>q.owner).make_directory()
        if st != &q.store:
            os_makedirs((<bytes>st.directory).decode(), exist_ok=True)
    except OSError as error:
        return error.errno or EIO
    except Exception:
        return EIO
    q.store.directory_unsynced = q.store.parent_unsynced = st.directory_unsynced = True
    return 0


cdef seg_t *segment_at(queue_t *q, uint8_t level, uint64_t number) noexcept nogil:
    cdef store_t *st = store_at(q, level)
    cdef seg_t *s = st.first if st != NULL else NULL
    while s != NULL and s.number != number:
        s = s.next
    return s

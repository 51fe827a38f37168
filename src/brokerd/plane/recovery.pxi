# Takes in the segments that recovery found at start, and the file that compaction wrote in place of a segment.

cdef int attach(queue_t *q, uint8_t level, const seg_t *found) noexcept nogil:
    """Add a segment to a level.  Segments come in rising order of number; `found` says what recovery knows of this one.
    0 or ENOMEM."""
    cdef store_t *st = store_for(q, level)
    cdef seg_t *s = <seg_t *>malloc(sizeof(seg_t))
    if s == NULL or st == NULL:
        free(s)
        return ENOMEM
    s[0] = found[0]
    s.store = st
    s.queue = q
    s.fd = -1
    s.crc_seed = seed_of(s.number)
    s.capacity = max(s.capacity, s.end)
    s.zeroed = s.allocated = s.end
    s.settled = min(s.settled, s.records)
    s.waiting = s.records - s.settled
    s.verify = True
    seg_append_to_list(s)
    st.ready += s.waiting
    q.ready += s.waiting
    st.next_number = s.number + 1
    q.core.next_number = max(q.core.next_number, s.number + 1)
    return 0


cdef void skip_numbers(queue_t *q, uint64_t last) noexcept nogil:
    """Give no segment a number up to `last`: files of such segments are still there."""
    q.store.next_number = max(q.store.next_number, last + 1)
    q.core.next_number = max(q.core.next_number, last + 1)


cdef void recover_store(store_t *st) noexcept:
    """All segments of a store are attached: retire the settled ones, and open the last one to append() if it has room."""
    cdef seg_t *s = st.first
    cdef seg_t *next
    # A former broker may have crashed before it synced the names in these directories.
    st.directory_unsynced = st.parent_unsynced = True
    if st.last.end < st.last.capacity:
        st.last.sealed = 0
    while s != NULL:
        next = s.next
        if s.sealed and s.settled >= s.records and s != st.last:
            if st.queue.rules != NULL and retains(st.queue):
                retain(s, st.queue.core.now)
            else:
                retire(s)
        s = next
    cursor_enter(st, st.first)
    if st.ready and st.level > st.queue.top:
        st.queue.top = st.level


cdef int finish_recovery(queue_t *q, uint64_t next_seq, bint suspect, int64_t last_ts) noexcept:
    """End the recovery of a queue: all its segments are attached.  0 or ENOMEM."""
    cdef store_t *st = NULL
    q.next_seq = next_seq
    q.last_ts = last_ts
    apply_window(q)
    if q.journal != NULL:
        q.journal.suspect = suspect
        journals_start(q, POWER_LOST if suspect else RESTARTED)
    while True:
        st = next_store(q, st)
        if st == NULL:
            break
        if st.last != NULL:
            recover_store(st)
    if q.ready and not is_read(q):
        # Only reading the head tells whether it expires.  The next turn reads it.
        if rules_of(q) == NULL:
            return ENOMEM
        q.rules.expires = True
        deadline_set(q, 0)
    return 0


cdef void replace_file(seg_t *s, uint32_t records, uint32_t end, uint32_t capacity, uint32_t generation,
                       uint32_t entries) noexcept nogil:
    """Compaction wrote a file of the same name with only the live records.  All places have their new positions already."""
    seg_unmap(s)
    acks_unmap(s)
    s.records = records
    s.settled = 0
    if s != s.store.last:
        s.store.full_octets += end
        s.store.full_octets -= s.end
    s.end = end
    s.capacity = s.allocated = s.zeroed = capacity
    s.passed_below = end
    s.doubted_below = 0
    s.generation = generation
    s.entries = entries
    s.acks_zeroed = s.acks_capacity = 0
    s.verify = True
    s.loaded = False
    anchors_free(s)

# Keeps a stream within its limits, and purges it: it removes whole segments, the oldest first and never the last one.
#
# Knows no readers: stream.pxi tells those that a removed segment hits.


cdef enum:
    RETAIN_AT_ONCE = 16         # segments that a publish removes


cdef void remove_first(stream_t *stream) noexcept nogil:
    """Remove the first segment, which is not the last one."""
    cdef queue_t *q = stream.gate.queue
    cdef seg_t *s = q.store.first
    cdef uint64_t n = s.waiting
    q.ready_octets -= <uint64_t>(<double>q.ready_octets * n / q.ready) if q.ready > n else q.ready_octets
    uncount_ready(&q.store, n)
    s.settled = s.records
    s.waiting = 0
    stream.n_removed += n
    stream.n_removed_segments += 1
    retire_if_settled(s)


cdef inline uint64_t octets_of_files(store_t *st) noexcept nogil:
    return st.full_octets + st.last.end if st.last != NULL else 0


cdef bint is_over_retention(stream_t *stream) noexcept nogil:
    cdef queue_t *q = stream.gate.queue
    cdef int64_t begun
    if stream.max_length >= 0 and q.ready > <uint64_t>stream.max_length:
        return True
    if stream.max_octets >= 0 and octets_of_files(&q.store) > <uint64_t>stream.max_octets:
        return True
    if stream.age < 0:
        return False
    begun = created_of(q.store.first.next)
    return begun != 0 and begun <= q.core.now - stream.age      # All records before that are older.


cdef uint32_t stream_retain(stream_t *stream, uint32_t most) noexcept nogil:
    """Remove at most so many segments that the limits ask for.  Returns how many."""
    cdef store_t *st = &stream.gate.queue.store
    cdef uint32_t n = 0
    if stream.max_length < 0 and stream.max_octets < 0 and stream.age < 0:
        return 0
    while n < most and st.first != st.last and is_over_retention(stream):
        remove_first(stream)
        n += 1
    return n


cdef inline bint is_first_below(store_t *st, uint64_t below) noexcept nogil:
    return st.first != st.last and st.first.base_seq < below


cdef int stream_purge(stream_t *stream, uint64_t below, uint32_t most) noexcept:
    """Remove at most so many segments with offsets below that one.  If the last one has such offsets, another one begins, so that
    messages which come later stay.  0 or the errno: there is no other segment."""
    cdef store_t *st = &stream.gate.queue.store
    cdef seg_t *last = st.last
    cdef int err
    if stream.gate.queue.ready == 0:
        return 0
    if last.records and last.base_seq < below:
        err = seg_new(st, 0, NULL)
        if err:
            return err
        if not last.sealed:
            seg_seal(last)
    while most and is_first_below(st, below):
        remove_first(stream)
        most -= 1
    return 0

# The segments of a stream, found by halving: by their number, by an offset, by a time.
#
#    segments_t      rows for the segments of the store's list, in its order.  A lookup brings them up to date first: segments come
#                    at the end and go at the front, so that costs little for each.  Where any other one has gone, all rows are
#                    made anew
#
# A row names its segment by number too, and no number is used twice: a row of a segment that has gone is never followed.
#
# Knows no readers.


cdef struct segment_row_t:
    uint64_t number
    uint64_t base_seq
    seg_t *seg

cdef struct segments_t:
    segment_row_t *rows
    uint32_t first              # before it: rows of segments that have gone
    uint32_t n
    uint32_t capacity


cdef void segments_free(segments_t *all) noexcept nogil:
    free(all.rows)
    memset(all, 0, sizeof(segments_t))


cdef bint segments_make_room(segments_t *all, uint32_t more) noexcept nogil:
    """Room for more rows at the end.  False: no memory."""
    cdef uint32_t wanted = all.n + more
    cdef segment_row_t *rows
    if all.first + wanted <= all.capacity:
        return True
    if all.n:
        memmove(all.rows, all.rows + all.first, all.n * sizeof(segment_row_t))
    all.first = 0
    if wanted <= all.capacity // 2:     # Else there is too little room to move rows seldom.
        return True
    rows = <segment_row_t *>realloc(all.rows, 2 * wanted * sizeof(segment_row_t))
    if rows == NULL:
        return False
    all.rows = rows
    all.capacity = 2 * wanted
    return True


cdef bint segments_add(segments_t *all, store_t *st) noexcept nogil:
    """Add rows for the segments behind the last row.  False: no memory."""
    cdef seg_t *s = st.last
    cdef uint32_t more = 0, at
    cdef uint64_t last = all.rows[all.first + all.n - 1].number if all.n else 0
    while s != NULL and (all.n == 0 or s.number > last):
        more += 1
        s = s.prev
    if more and not segments_make_room(all, more):
        return False
    s = st.last
    at = all.first + all.n + more
    all.n += more
    while more:
        at -= 1
        more -= 1
        all.rows[at].number = s.number
        all.rows[at].base_seq = s.base_seq
        all.rows[at].seg = s
        s = s.prev
    return True


cdef bint segments_learn(segments_t *all, store_t *st) noexcept nogil:
    """Bring the rows up to date with the store.  False: no memory, or the store has no segment."""
    if st.first == NULL:
        return False
    while all.n and all.rows[all.first].number < st.first.number:
        all.first += 1
        all.n -= 1
    while all.n and all.rows[all.first + all.n - 1].number > st.last.number:
        all.n -= 1
    if not segments_add(all, st):
        return False
    if UNLIKELY(all.n != st.segments_n):
        all.first = all.n = 0
        return segments_add(all, st)
    return True


cdef seg_t *segment_numbered(segments_t *all, store_t *st, uint64_t number) noexcept nogil:
    """The segment with that number; NULL: it has gone."""
    cdef uint32_t low, high, middle
    cdef seg_t *s = st.last
    if UNLIKELY(not segments_learn(all, st)):
        while s != NULL and s.number != number:
            s = s.prev
        return s
    low = all.first
    high = low + all.n
    while high - low > 1:
        middle = (low + high) >> 1
        if all.rows[middle].number <= number:
            low = middle
        else:
            high = middle
    return all.rows[low].seg if all.rows[low].number == number else NULL


cdef seg_t *segment_with(segments_t *all, store_t *st, uint64_t offset) noexcept nogil:
    """The last segment that does not begin behind the offset; else the first one."""
    cdef uint32_t low, high, middle
    cdef seg_t *s = st.last
    if UNLIKELY(not segments_learn(all, st)):
        while s.prev != NULL and s.base_seq > offset:
            s = s.prev
        return s
    low = all.first
    high = low + all.n
    while high - low > 1:
        middle = (low + high) >> 1
        if all.rows[middle].base_seq <= offset:
            low = middle
        else:
            high = middle
    return all.rows[low].seg


cdef int64_t created_of(seg_t *s) noexcept nogil:
    """ns since the epoch: when the segment was begun.  All its records are as young, or younger.  0: it cannot be read."""
    cdef uint8_t octets[8]
    cdef ssize_t n
    cdef bint was_open = s.fd >= 0
    if s.map != NULL:
        return <int64_t>le64(s.map + S_CREATED)
    if seg_open(s) != 0:
        return 0
    n = pread(s.fd, octets, 8, S_CREATED)
    if not was_open and not s.unlinked:
        seg_close(s)
    return <int64_t>le64(octets) if n == 8 else 0


cdef seg_t *segment_before_time(segments_t *all, store_t *st, int64_t when) noexcept nogil:
    """The last segment that was begun before `when`, or the first one; few files are read."""
    cdef uint32_t low, high, middle
    if UNLIKELY(not segments_learn(all, st)):
        return st.first
    low = all.first
    high = low + all.n
    while high - low > 1:
        middle = (low + high) >> 1
        if created_of(all.rows[middle].seg) < when:
            low = middle
        else:
            high = middle
    return all.rows[low].seg

# Ready messages looked at where they stand, and taken out of the middle: for those above, never on a message's way.

cdef bint standing(store_t *st, seg_t *s, uint32_t *position) noexcept nogil:
    """From *position on, the next record of s that is ready to be read and not settled; False: none is left in s."""
    cdef uint32_t p = position[0]
    if seg_map(s) != 0:
        return False
    if s.verify and not s.loaded:
        if seg_load_acks(s) != 0:
            return False
        s.loaded = True
    while p < s.end:
        if s.verify and not record_is_whole(s, p):
            p += 8
            continue
        if was_settled(s, p):
            p += align8(le32(s.map + p + 4))
            continue
        position[0] = p
        return True
    return False


cdef tuple row(seg_t *s, uint32_t position, bint redelivered):
    cdef message_t m
    cdef const uint8_t *r = s.map + position
    message_of(r, &m)
    return (le64(r + 16), <int64_t>le64(r + 24), redelivered, (<const char *>m.names)[1:1 + m.names[0]], key_of(&m),
            (<const char *>m.properties)[:m.properties_n], (<const char *>m.body)[:m.body_n])


cdef int browse_store(store_t *st, uint64_t start, Py_ssize_t count, list out) except -1:
    cdef seg_t *s = st.cursor
    cdef uint32_t position = st.position
    cdef uint32_t i
    cdef bint was_mapped
    for _, i in sorted([(st.returned[i].seq, i) for i in range(st.returned_n) if st.returned[i].seq >= start]):
        if len(out) < count and seg_map(st.returned[i].seg) == 0:
            out.append(row(st.returned[i].seg, st.returned[i].position, True))
    while s != NULL and len(out) < count:
        if s.next == NULL or s.next.base_seq > start:
            was_mapped = s.map != NULL
            while len(out) < count and standing(st, s, &position):
                if le64(s.map + position + 16) >= start:
                    out.append(row(s, position, position < s.redeliver_below))
                position += align8(le32(s.map + position + 4))
            if not was_mapped and s != st.last:
                seg_unmap(s)
        s = s.next
        position = HEADER
    return 0


cdef uint32_t near(seg_t *s, uint64_t seq) noexcept nogil:
    """Where to begin looking for record `seq` of a mapped segment: at most 32 records before it, as a rule."""
    cdef uint32_t position = s.marked if s.marked else HEADER
    cdef uint32_t low = 0, high, middle
    cdef mark_t *marks
    while position < s.end and le32(s.map + position) == RECORD_MAGIC and le32(s.map + position + 4) >= RECORD:
        if s.marks_n == s.marks_capacity:
            high = s.marks_capacity * 2 if s.marks_capacity else 64
            marks = <mark_t *>realloc(s.marks, high * sizeof(mark_t))
            if marks == NULL:
                break
            s.marks = marks
            s.marks_capacity = high
        s.marks[s.marks_n].seq = le64(s.map + position + 16)
        s.marks[s.marks_n].position = position
        s.marks_n += 1
        low = 0
        while low < 32 and position < s.end and le32(s.map + position) == RECORD_MAGIC \
                and le32(s.map + position + 4) >= RECORD:
            position += align8(le32(s.map + position + 4))
            low += 1
        if low < 32:
            s.marks_n -= 1          # Not whole: to be marked when more has come.
            break
        s.marked = position
    low = 0
    high = s.marks_n
    while low < high:
        middle = (low + high) >> 1
        if s.marks[middle].seq <= seq:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return HEADER
    # Behind the last mark the next 32 follow, or what is not marked yet.
    return s.marks[low - 1].position


cdef bint pluck(store_t *st, uint64_t seq, taken_t *t) except -1:
    """Take the ready message `seq` out of the store, wherever it stands.  False: there is none."""
    cdef seg_t *s = st.cursor
    cdef uint32_t position = st.position
    cdef uint32_t i
    cdef ret_t *heap
    for i in range(st.returned_n):
        if st.returned[i].seq == seq:
            return pluck_returned(st, i, t)
    while s != NULL and s.next != NULL and s.next.base_seq <= seq:
        s = s.next
        position = HEADER
    if s != NULL and seg_map(s) == 0:
        if s.verify and not s.loaded and seg_load_acks(s) == 0:
            s.loaded = True
        position = max(position, near(s, seq))
    while s != NULL and standing(st, s, &position) and le64(s.map + position + 16) < seq:
        position += align8(le32(s.map + position + 4))
    if s == NULL or s.map == NULL or position >= s.end or le64(s.map + position + 16) != seq or was_settled(s, position):
        return False
    if s.settled_bits == NULL:
        s.settled_bits = <uint8_t *>calloc((s.capacity >> 6) + 1, 1)
        if s.settled_bits == NULL:
            raise MemoryError
    t.seg = s
    t.seq = seq
    t.position = position
    t.redelivered = position < s.redeliver_below
    t.count = count_of(s, position) + 1 if t.redelivered else 0
    t.returned = False
    s.settled_bits[position >> 6] |= 1 << (position >> 3 & 7)
    s.verify = s.loaded = True          # Whoever reads on looks at the bits from now on.
    s.waiting -= 1
    not_there(st, 1)
    return True


cdef bint pluck_returned(store_t *st, uint32_t i, taken_t *t) except -1:
    cdef ret_t found = st.returned[i]
    cdef ret_t *rest
    cdef uint32_t n = 0, k
    cdef taken_t one
    if seg_map(found.seg) != 0:
        return False
    rest = <ret_t *>malloc(st.returned_n * sizeof(ret_t))
    if rest == NULL:
        raise MemoryError
    for k in range(st.returned_n):
        if k != i:
            rest[n] = st.returned[k]
            n += 1
    st.returned_n = 0
    for k in range(n):
        one.seg = rest[k].seg
        one.seq = rest[k].seq
        one.position = rest[k].position
        one.count = rest[k].count
        one.ordinal = rest[k].ordinal
        heap_push(st, &one)             # There is room: it held one more.
    free(rest)
    found.seg.returned -= 1
    t.seg = found.seg
    t.seq = found.seq
    t.position = found.position
    t.count = found.count
    t.ordinal = found.ordinal
    t.redelivered = t.returned = True
    not_there(st, 1)
    return True

# Browses ready messages where they stand, and takes one out of the middle.  No publish and no delivery does this: the
# control plane asks for it, and the waiting rooms of delayed exchanges (delay.pxi).

cdef enum:
    NOT_THERE = 0               # what find_in_middle() answers
    FOUND = 1
    UNREADABLE = 2

cdef bint find_unsettled(store_t *st, seg_t *s, uint32_t *position) noexcept nogil:
    """Move *position to the next whole record of s, from there on, that is not settled.  False: s has no more, or cannot be
    read."""
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
            p += room_of(s.map + p)
            continue
        position[0] = p
        return True
    return False


cdef bint was_out(seg_t *s, uint32_t position) noexcept nogil:
    """Whether a former broker handed out a record that waits."""
    cdef place_t t
    if not is_from_before(s, position):
        return False
    t.position = position
    recall(s, &t)
    return t.flags & PLACE_WAS_OUT != 0


cdef tuple make_row(seg_t *s, uint32_t position, bint redelivered):
    cdef message_t m
    cdef const uint8_t *r = s.map + position
    message_of(r, &m)
    return (seq_of(r), <int64_t>le64(r + R_TS), redelivered, (<const char *>m.names)[1:1 + m.names[0]], routing_key_of(&m),
            (<const char *>m.properties)[:m.properties_n], (<const char *>m.body)[:m.body_n])


cdef int browse_store(store_t *st, uint64_t start, Py_ssize_t count, list out) except -1:
    """Append rows of ready records from `start` on, by rising sequence number, until `out` has `count`."""
    cdef seg_t *s = st.cursor
    cdef uint32_t position = st.position
    cdef uint32_t i
    cdef bint was_mapped
    cdef list found = []
    cdef Py_ssize_t most
    count -= len(out)
    for _, i in sorted([(st.returned[i].seq, i) for i in range(st.returned_n) if st.returned[i].seq >= start])[:count]:
        if seg_map(st.returned[i].seg) == 0:
            found.append(make_row(st.returned[i].seg, st.returned[i].position, st.returned[i].flags & PLACE_WAS_OUT != 0))
    # A returned record may come after records that the cursor has yet to reach.
    most = count
    if found and cursor_is_before(st, st.returned):
        most += len(found)
    while s != NULL and len(found) < most:
        if s.next == NULL or s.next.base_seq > start:
            was_mapped = s.map != NULL
            if start > s.base_seq and seg_map(s) == 0:
                position = max(position, find_anchor_before(s, start))
            while len(found) < most and find_unsettled(st, s, &position):
                if seq_of(s.map + position) >= start:
                    found.append(make_row(s, position, was_out(s, position)))
                position += room_of(s.map + position)
            if not was_mapped and s != st.last:
                seg_unmap(s)
        s = s.next
        position = HEADER
    found.sort()
    out.extend(found[:count])
    return 0


cdef int browse_aside(queue_t *q, uint64_t start, Py_ssize_t count, list out) except -1:
    """Append rows of records that are set aside to `out`, by rising sequence number."""
    cdef uint32_t i
    cdef place_t *t
    if q.aside == NULL:
        return 0
    for _, i in sorted([(q.aside.at[i].seq, i) for i in range(q.aside.capacity)
                        if q.aside.at[i].seg != NULL and q.aside.at[i].seq >= start])[:count]:
        t = &q.aside.at[i]
        if seg_map(t.seg) == 0:
            out.append(make_row(t.seg, t.position, t.flags & PLACE_WAS_OUT != 0))
    return 0


cdef inline bint has_record_at(seg_t *s, uint32_t position) noexcept nogil:
    """Whether a record of a mapped segment begins there.  A page that a power cut took may hold records of the file's former
    use: their numbers would lead find_anchor_before() astray."""
    if position >= s.end:
        return False
    if s.verify:
        return record_is_whole(s, position)
    return le32(s.map + position) == RECORD_MAGIC and length_of(s.map + position) >= RECORD


cdef uint32_t find_anchor_before(seg_t *s, uint64_t seq) noexcept nogil:
    """The position from which to look for record `seq` of a mapped segment: as a rule at most 32 records before it."""
    cdef uint32_t position = s.anchored if s.anchored else HEADER
    cdef uint32_t low = 0, high, middle
    cdef anchor_t *anchors
    while has_record_at(s, position):
        if s.anchors_n == s.anchors_capacity:
            high = s.anchors_capacity * 2 if s.anchors_capacity else 64
            anchors = <anchor_t *>realloc(s.anchors, high * sizeof(anchor_t))
            if anchors == NULL:
                break
            s.anchors = anchors
            s.anchors_capacity = high
        s.anchors[s.anchors_n].seq = seq_of(s.map + position)
        s.anchors[s.anchors_n].position = position
        s.anchors_n += 1
        low = 0
        while low < 32 and has_record_at(s, position):
            position += room_of(s.map + position)
            low += 1
        if low < 32:
            s.anchors_n -= 1        # Fewer than 32 records follow: it becomes an anchor when more have come.
            break
        s.anchored = position
    low = 0
    high = s.anchors_n
    while low < high:
        middle = (low + high) >> 1
        if s.anchors[middle].seq <= seq:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return HEADER
    # The record is among the 32 after this anchor, or among the last ones, which have no anchor yet.
    return s.anchors[low - 1].position


cdef inline seg_t *segment_of(store_t *st, uint64_t seq) noexcept nogil:
    """The segment in which message `seq` stands if the cursor has not passed it; NULL: the cursor has passed all."""
    cdef seg_t *s = st.cursor
    while s != NULL and s.next != NULL and s.next.base_seq <= seq:
        s = s.next
    return s


cdef int find_in_middle(store_t *st, uint64_t seq, place_t *t) noexcept nogil:
    """Find the ready message `seq` among those that the cursor has not passed; it stays there.  UNREADABLE: its segment
    cannot be mapped now, or its acks cannot be read."""
    cdef seg_t *s = segment_of(st, seq)
    cdef uint32_t position = st.position if s == st.cursor else HEADER
    if s == NULL:
        return NOT_THERE
    if seg_map(s) != 0:
        return UNREADABLE
    if s.verify and not s.loaded:
        if seg_load_acks(s) != 0:
            return UNREADABLE
        s.loaded = True
    position = max(position, find_anchor_before(s, seq))
    while find_unsettled(st, s, &position) and seq_of(s.map + position) < seq:
        position += room_of(s.map + position)
    if position >= s.end or seq_of(s.map + position) != seq or was_settled(s, position):
        return NOT_THERE
    t.seg = s
    t.seq = seq
    t.position = position
    t.count = 0
    t.flags = 0
    if is_from_before(s, position):
        recall(s, t)
    return FOUND


cdef int bits_for_middle(seg_t *s) noexcept nogil:
    """Have room for the marks of messages that are taken out of the middle.  0 or ENOMEM."""
    if s.settled_bits == NULL:
        s.settled_bits = <uint8_t *>calloc((s.capacity >> 6) + 1, 1)
    return 0 if s.settled_bits != NULL else ENOMEM


cdef void take_from_middle(store_t *st, place_t *t) noexcept nogil:
    """Take the message out that find_in_middle() found.  The caller has called bits_for_middle()."""
    cdef seg_t *s = t.seg
    s.settled_bits[t.position >> 6] |= 1 << (t.position >> 3 & 7)
    s.verify = s.loaded = True          # With `verify` set, readers look at settled_bits.
    s.waiting -= 1
    uncount_ready(st, 1)


cdef bint take_out(store_t *st, uint64_t seq, place_t *t) except -1:
    """Take the ready message `seq` out of the store, wherever it stands.  False: no such message is ready."""
    cdef uint32_t i
    for i in range(st.returned_n):
        if st.returned[i].seq == seq:
            return take_out_returned(st, i, t)
    if find_in_middle(st, seq, t) != FOUND:
        return False
    if bits_for_middle(t.seg) != 0:
        raise MemoryError
    take_from_middle(st, t)
    return True


cdef bint take_out_returned(store_t *st, uint32_t i, place_t *t) except -1:
    cdef place_t found = st.returned[i]
    cdef place_t *rest
    cdef uint32_t n = 0, k
    if seg_map(found.seg) != 0:
        return False
    rest = <place_t *>malloc(st.returned_n * sizeof(place_t))
    if rest == NULL:
        raise MemoryError
    for k in range(st.returned_n):
        if k != i:
            rest[n] = st.returned[k]
            n += 1
    st.returned_n = 0
    for k in range(n):
        heap_push(st, &rest[k])         # The heap has room: it had one record more.
    free(rest)
    found.seg.returned -= 1
    t[0] = found
    uncount_ready(st, 1)
    return True

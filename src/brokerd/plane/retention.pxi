# Settled messages that stay, and come again: a queue with `retain_ns` or `retain_octets` retains its settled segments in its list.
#
#    all of a segment is settled --retain()--> retained  --enforce_retention()--> retired, when it is too old, or all retained
#                                                          segments together are too large
#    a settled record --replay()--> ready again, at its own place: an entry REPLAYED says so, and counts from there on
#
# A retained segment is an ordinary one in which nothing waits: the cursor leaves it out.  What is settled in other segments can
# be replayed as well.  No record is copied, and the acks file alone says what is settled.


cdef seg_t *oldest_retained(queue_t *q) noexcept nogil:
    """The retained segment with the oldest messages; NULL: there is none."""
    cdef store_t *st = NULL
    cdef seg_t *s
    cdef seg_t *found = NULL
    while True:
        st = next_store(q, st)
        if st == NULL:
            return found
        s = st.first
        while s != NULL and not s.retained:
            s = s.next
        if s != NULL and (found == NULL or s.newest < found.newest):
            found = s


cdef uint32_t retire_overdue(queue_t *q, uint32_t most) noexcept:
    """Retire retained segments beyond the retention, at most so many.  How many were."""
    cdef rules_t *r = q.rules
    cdef seg_t *s
    cdef uint32_t n = 0
    while n < most and r.retained:
        s = oldest_retained(q)
        if s == NULL or (retains(q) and (r.retain_octets < 0 or r.retained_octets <= <uint64_t>r.retain_octets)
                         and (r.retain_ns < 0 or s.newest >= q.core.now - r.retain_ns)):
            break
        retain_no_more(s)
        retire(s)
        n += 1
    return n


cdef uint32_t enforce_retention(Core core, uint32_t most):
    """Core.enforce_retention()."""
    cdef queue_t *q = core.c.retaining
    cdef queue_t *next_
    cdef uint32_t n = 0
    core.read_clock()
    while q != NULL and n < most:
        next_ = q.rules.retaining_next
        if not q.copying:
            n += retire_overdue(q, most - n)
        if not retains(q) and q.rules.retained == 0:
            retaining_leave(q)
        q = next_
    return n


# ---- replay

cdef struct replay_t:           # what to look for, and what was found
    uint64_t stop_seq           # the last one
    int64_t since               # ns
    const window_t *groups      # finds the group of a message; NULL: all groups
    uint64_t group, group_number    # hashes of its name as a text, and as a number
    const uint64_t *chosen      # rising; NULL: all
    size_t chosen_n
    uint32_t looks              # records that may still be looked at
    uint32_t most               # ... and replayed
    bint dry                    # only count
    uint64_t next_seq           # where to go on; 0: nowhere
    uint32_t found
    uint64_t first_seq, last_seq


cdef uint8_t *read_settled(seg_t *s) noexcept nogil:
    """A bit for each 8 octets of the segment: a record there is settled, and can be replayed.  NULL: no memory, or the acks
    cannot be read."""
    cdef uint8_t *bits = <uint8_t *>calloc((s.capacity >> 6) + 1, 1)
    cdef uint64_t entry
    cdef uint32_t i, position
    cdef uint8_t kind
    if bits == NULL:
        return NULL
    if s.entries and acks_map(s) != 0:
        free(bits)
        return NULL
    for i in range(s.entries):
        entry = le64(s.acks + HEADER + ENTRY * i)
        if not entry_is_sound(s, entry):
            continue
        position = <uint32_t>entry
        kind = entry >> 32 & 0xFF
        if kind & 15 == REPLAYED or kind & 15 == PURGED or kind == (DROPPED | REASON_REMOVED << 4):
            bits[position >> 6] &= <uint8_t>~(1 << (position >> 3 & 7))     # An operator said that it is to go.
        elif settles(entry):
            bits[position >> 6] |= 1 << (position >> 3 & 7)
    return bits


cdef bint is_chosen(const replay_t *p, uint64_t seq) noexcept nogil:
    cdef size_t low = 0, high = p.chosen_n, middle
    if p.chosen == NULL:
        return True
    while low < high:
        middle = (low + high) >> 1
        if p.chosen[middle] < seq:
            low = middle + 1
        else:
            high = middle
    return low < p.chosen_n and p.chosen[low] == seq


cdef bint is_in_group(const replay_t *p, const uint8_t *record) noexcept nogil:
    cdef message_t m
    cdef uint64_t found
    if p.groups == NULL:
        return True
    message_of(record, &m)
    return find_key_group(p.groups, &m, m.properties, &found) and found != 0 and (found == p.group or found == p.group_number)


cdef int replay_record(seg_t *s, uint32_t position) noexcept nogil:
    """Make a settled record ready again, at its own place.  0, or the errno: it stays settled."""
    cdef queue_t *q = s.queue
    cdef place_t t
    cdef int err
    memset(&t, 0, sizeof(place_t))
    t.seg = s
    t.seq = seq_of(s.map + position)
    t.position = position
    t.flags = PLACE_PASSED | PLACE_WAS_OUT | PLACE_OUT_SINCE_START | PLACE_REPLAYED
    if heap_reserve(s.store) != 0:
        return ENOMEM
    if UNLIKELY(q.journal != NULL):
        prepare_event(s)
    err = seg_note(s, position, REPLAYED, 0)
    if err:
        return err
    if UNLIKELY(q.journal != NULL):
        journal_note(&t, EVENT_REPLAYED, 0)
    if s.retained:
        retain_no_more(s)
    s.settled -= 1
    put_word(s.acks + A_SETTLED, s.settled)
    make_ready(&t)
    if UNLIKELY(q.rules.gate != NULL):
        q.rules.gate.replayed(q.rules.gate, &t)
    q.ready_octets += body_octets(s.map + position)
    q.rules.n_replayed += 1
    if q.window != NULL and q.window.waiting:
        enter_waiting_key(&t, HOLDER_RETURNED, q.window)
    return 0


cdef int replay_segment(seg_t *s, uint64_t start_seq, replay_t *p) noexcept nogil:
    """Replay what is wanted of one segment, from start_seq on.  0 or the errno."""
    cdef uint32_t position
    cdef uint64_t seq
    cdef uint8_t *bits
    cdef bint was_mapped = s.map != NULL
    cdef int err = seg_map(s)
    if err:
        return err
    if s.verify and not s.loaded:
        err = seg_load_acks(s)          # Before an entry REPLAYED is there: the record is in the heap, and nowhere else.
        if err:
            return err
        s.loaded = True
    bits = read_settled(s)
    if bits == NULL:
        return ENOMEM
    position = find_anchor_before(s, start_seq)
    while position < s.end:
        if le32(s.map + position) != RECORD_MAGIC or (s.verify and not record_is_whole(s, position)):
            position += 8
            continue
        seq = seq_of(s.map + position)
        if seq > p.stop_seq:
            break
        if seq < start_seq:
            position += room_of(s.map + position)
            continue
        if p.looks == 0 or p.found == p.most:
            p.next_seq = seq
            break
        p.looks -= 1
        if bits[position >> 6] >> (position >> 3 & 7) & 1 and is_chosen(p, seq) \
                and <int64_t>le64(s.map + position + R_TS) >= p.since and is_in_group(p, s.map + position):
            if not p.dry:
                err = replay_record(s, position)
                if err:
                    p.next_seq = seq
                    break
            p.found += 1
            p.last_seq = seq
            if p.first_seq == 0:
                p.first_seq = seq
        position += room_of(s.map + position)
    free(bits)
    if s.store.cursor == NULL or s.number < s.store.cursor.number:
        forget_acks(s)
        if not was_mapped and s != s.store.last:
            seg_unmap(s)
            acks_unmap(s)
    return err


def replay(Queue queue not None, uint64_t start_seq, uint64_t stop_seq, *, uint8_t level=0, int64_t since_ns=0,
           const uint64_t[::1] chosen=None, Window groups=None, bytes group not None=b"", uint32_t most=0xFFFFFFFF, uint32_t looks=4096, bint dry=False):
    """See plane/__init__.pyi."""
    cdef queue_t *q = &queue.q
    cdef store_t *st = store_at(q, level)
    cdef seg_t *s = st.first if st != NULL else NULL
    cdef replay_t p
    cdef int err = 0
    cdef uint32_t before
    if q.dropped or q.lost or not q.durable:
        return 0, 0, 0, 0
    memset(&p, 0, sizeof(replay_t))
    p.stop_seq = stop_seq
    p.since = since_ns
    p.most = most
    p.looks = looks
    p.dry = dry
    if groups is not None:
        p.groups = &groups.w
        p.group = groups.hash_key.hash(b"G" + group)
        p.group_number = groups.hash_key.hash(b"H" + group)
    if chosen is not None and chosen.shape[0]:
        p.chosen = &chosen[0]
        p.chosen_n = <size_t>chosen.shape[0]
    if rules_of(q) == NULL:
        raise MemoryError
    queue.core.read_clock()
    write_stages(q.core)
    while s != NULL and err == 0 and p.next_seq == 0 and s.base_seq <= stop_seq:
        if (s.next == NULL or s.next.base_seq > start_seq) and not s.damaged and s.settled \
                and (s.next == NULL or s.next.created >= since_ns):
            before = p.found
            err = replay_segment(s, start_seq, &p)
            if p.found > before and not dry and q.journal != NULL:
                prepare_event(s)
                event_put(s, p.last_seq, next_ts(q), 0, p.found - before, 0, REPLAY_EVENT, 0)
        s = s.next
    if p.found and not dry:
        mark_dirty(q)
        if q.rules.overflow == DROP_HEAD and is_over_length_limit(q, q.rules):
            mark_over(q)
        queue.core.request_turn()
    if err:
        raise OSError(err, os_strerror(err))
    return p.found, p.next_seq, p.first_seq, p.last_seq


def describe_retention(Queue queue not None):
    """See plane/__init__.pyi."""
    cdef rules_t *r = queue.q.rules
    cdef seg_t *s
    if r == NULL:
        return 0, 0, 0, 0
    s = oldest_retained(&queue.q)
    return r.retained, r.retained_octets, s.base_seq if s != NULL else 0, r.n_replayed

# Deliveries settled: acknowledged, rejected or returned, by delivery tag; and publishes confirmed.


cdef void ghost_is_done(queue_t *q) noexcept:
    """A deleted queue's last unacked delivery was settled: its object may go."""
    q.ghost = False
    Py_DECREF(<Queue>q.owner)


cdef void entry_settle(channel_t *ch, entry_t *e, uint8_t kind, uint8_t cause) noexcept nogil:
    """Done with as `kind` says, or with a cause of its return ready again."""
    cdef seg_t *s = e.seg
    cdef queue_t *q = s.queue
    cdef consumer_t *c = e.consumer
    cdef taken_t t
    t.seg = s
    t.seq = e.seq
    t.position = e.position
    t.count = e.count
    t.ordinal = e.ordinal
    t.returned = False
    e.seg = NULL
    ch.unacked -= 1
    s.unacked -= 1
    q.unacked -= 1
    if UNLIKELY(q.journal != NULL):
        q.core.doer = c.number if c != NULL else ch.conn.number
    if cause:
        if give_back(&t, cause) == 0:
            queue_mark(q)
    else:
        q.n_acked += 1
        if UNLIKELY(q.rules != NULL) and kind == REJECTED:
            kill(&t, REJECTED_REASON)
        else:
            settle(&t, kind)
    if UNLIKELY(q.journal != NULL):
        q.core.doer = 0
    if c != NULL:
        c.unacked -= 1
        if not c.in_ring:
            credit_again(c)
        if UNLIKELY(q.rules != NULL) and q.rules.active == c and c.unacked == 0 and (c.closed or q.rules.draining) \
                and not q.dropped:
            with gil:
                choose_active(q)
    if UNLIKELY(q.ghost and q.unacked == 0):
        with gil:
            ghost_is_done(q)


cdef inline void base_advance(channel_t *ch) noexcept nogil:
    cdef uint32_t mask = ch.ring_capacity - 1
    if ch.unacked == 0 and LIKELY(ch.late == 0):
        ch.base_tag = ch.next_tag
        return
    while ch.base_tag < ch.next_tag and ch.ring[ch.base_tag & mask].seg == NULL and not ch.ring[ch.base_tag & mask].late:
        ch.base_tag += 1


cdef inline void settled_some(channel_t *ch) noexcept nogil:
    base_advance(ch)
    if UNLIKELY(ch.global_prefetch):
        with gil:
            credit_of_channel(ch)


cdef inline bint tag_is_known(channel_t *ch, uint64_t tag, bint multiple) noexcept nogil:
    """A delivery that is unacked, or was until it timed out; 0: all of them."""
    cdef entry_t *e
    if tag == 0:
        return multiple
    if tag < ch.base_tag or tag >= ch.next_tag or (ch.unacked == 0 and ch.late == 0):
        return False
    e = &ch.ring[tag & (ch.ring_capacity - 1)]
    return e.seg != NULL or e.late


cdef bint tag_settle(channel_t *ch, uint64_t tag, bint multiple, uint8_t kind, uint8_t cause) noexcept nogil:
    """One delivery, or all up to it (tag 0: all); with a cause they return.  False: unknown delivery tag, nothing done."""
    cdef uint64_t t
    cdef uint32_t mask = ch.ring_capacity - 1
    if not multiple and LIKELY(ch.late == 0):
        if tag < ch.base_tag or tag >= ch.next_tag or ch.unacked == 0 or ch.ring[tag & mask].seg == NULL:
            return False
        entry_settle(ch, &ch.ring[tag & mask], kind, cause)
        settled_some(ch)
        return True
    if not tag_is_known(ch, tag, multiple):
        return False
    if tag == 0:
        tag = ch.next_tag - 1
    if ch.unacked == 0 and LIKELY(ch.late == 0):
        return True
    for t in range(ch.base_tag if multiple else tag, tag + 1):
        if ch.ring[t & mask].seg != NULL:
            entry_settle(ch, &ch.ring[t & mask], kind, cause)
        elif UNLIKELY(ch.late) and ch.ring[t & mask].late:
            ch.ring[t & mask].late = False
            ch.late -= 1
            ch.n_late += 1
    settled_some(ch)
    return True


cdef void credit_of_channel(channel_t *ch) noexcept:
    cdef Consumer consumer
    cdef dict consumers = (<Channel>ch.owner).consumers
    if consumers is not None:
        for consumer in consumers.values():
            credit_again(&consumer.c)


cdef void write_confirm(channel_t *ch, uint64_t upto) noexcept nogil:
    """basic.ack for every publish up to number `upto` of the channel that has none yet: one frame; and a basic.nack
    for each that was refused, in order."""
    cdef uint32_t i = 0
    if upto <= ch.confirmed or ch.conn.gone or ch.closing or ch.closed:
        return
    if UNLIKELY(ch.nacks_n):
        while i < ch.nacks_n and ch.nacks[i] <= upto:
            if ch.nacks[i] > ch.confirmed + 1:
                write_settled(ch, ch.nacks[i] - 1, 60 << 16 | 80)
            write_settled(ch, ch.nacks[i], 60 << 16 | 120)
            i += 1
        ch.nacks_n -= i
        memmove(ch.nacks, ch.nacks + i, ch.nacks_n * sizeof(uint64_t))
        if upto <= ch.confirmed:
            return
    write_settled(ch, upto, 60 << 16 | 80)


cdef void nack_mark(channel_t *ch) noexcept nogil:
    """The last publish was refused."""
    cdef uint64_t *nacks
    cdef uint32_t n
    if ch.nacks_n == ch.nacks_capacity:
        n = ch.nacks_capacity * 2 if ch.nacks_capacity else 16
        nacks = <uint64_t *>realloc(ch.nacks, n * sizeof(uint64_t))
        if nacks == NULL:
            ch.conn.gone = True         # Better no word at all than a false one.
            return
        ch.nacks = nacks
        ch.nacks_capacity = n
    ch.nacks[ch.nacks_n] = ch.publishes
    ch.nacks_n += 1


cdef void write_settled(channel_t *ch, uint64_t upto, uint32_t method) noexcept nogil:
    cdef uint8_t *p = out_room(ch.conn, 21)
    if p == NULL:
        return
    p[0] = 1
    put_be16(p + 1, ch.number)
    put_be32(p + 3, 13)
    put_be32(p + 7, method)
    put_be64(p + 11, upto - ch.confirm_from)
    p[19] = upto > ch.confirmed + 1
    p[20] = 0xCE
    ch.conn.out_n += 21
    ch.confirmed = upto


cdef inline void confirm_mark(channel_t *ch) noexcept nogil:
    if not ch.is_confirm_dirty:
        ch.is_confirm_dirty = True
        ch.confirm_next = ch.conn.core.confirm_dirty
        ch.conn.core.confirm_dirty = ch


cdef inline void sync_mark(store_t *st) noexcept nogil:
    cdef queue_t *q = st.queue
    if not st.last.unsynced:
        st.last.unsynced = True
        st.unsynced_n += 1
        q.syncs = True
    if not q.is_sync_dirty:
        q.is_sync_dirty = True
        q.sync_next = q.core.sync_dirty
        q.core.sync_dirty = q

# Deliveries settled: acknowledged, rejected or returned, by delivery tag; and publishes confirmed.


cdef void ghost_is_done(queue_t *q) noexcept:
    """A deleted queue's last unacked delivery was settled: its object may go."""
    q.ghost = False
    Py_DECREF(<Queue>q.owner)


cdef void entry_settle(channel_t *ch, entry_t *e, uint8_t kind, bint requeue) noexcept nogil:
    cdef seg_t *s = e.seg
    cdef queue_t *q = s.queue
    cdef consumer_t *c = e.consumer
    cdef taken_t t
    t.seg = s
    t.seq = e.seq
    t.position = e.position
    t.count = e.count
    e.seg = NULL
    ch.unacked -= 1
    s.unacked -= 1
    q.unacked -= 1
    if requeue:
        if give_back(&t) == 0:
            queue_mark(q)
    else:
        q.n_acked += 1
        settle(&t, kind)
    if c != NULL:
        c.unacked -= 1
        if not c.in_ring:
            credit_again(c)
    if UNLIKELY(q.ghost and q.unacked == 0):
        with gil:
            ghost_is_done(q)


cdef inline void base_advance(channel_t *ch) noexcept nogil:
    cdef uint32_t mask = ch.ring_capacity - 1
    if ch.unacked == 0:
        ch.base_tag = ch.next_tag
        return
    while ch.ring[ch.base_tag & mask].seg == NULL:
        ch.base_tag += 1


cdef bint tag_settle(channel_t *ch, uint64_t tag, bint multiple, uint8_t kind, bint requeue) noexcept nogil:
    """One delivery, or all up to it (tag 0: all).  False: unknown delivery tag, nothing done."""
    cdef uint64_t t
    cdef uint32_t mask = ch.ring_capacity - 1
    if tag == 0:
        if not multiple:
            return False
        tag = ch.next_tag - 1
    elif tag < ch.base_tag or tag >= ch.next_tag or ch.unacked == 0 or ch.ring[tag & mask].seg == NULL:
        return False
    if ch.unacked == 0:
        return True
    for t in range(ch.base_tag if multiple else tag, tag + 1):
        if ch.ring[t & mask].seg != NULL:
            entry_settle(ch, &ch.ring[t & mask], kind, requeue)
    base_advance(ch)
    if UNLIKELY(ch.global_prefetch):
        with gil:
            credit_of_channel(ch)
    return True


cdef void credit_of_channel(channel_t *ch) noexcept:
    cdef Consumer consumer
    cdef dict consumers = (<Channel>ch.owner).consumers
    if consumers is not None:
        for consumer in consumers.values():
            credit_again(&consumer.c)


cdef void write_confirm(channel_t *ch, uint64_t upto) noexcept nogil:
    """basic.ack for every publish up to number `upto` of the channel that has none yet: one frame."""
    cdef uint8_t *p
    if upto <= ch.confirmed or ch.conn.gone or ch.closing or ch.closed:
        return
    p = out_room(ch.conn, 21)
    if p == NULL:
        return
    p[0] = 1
    put_be16(p + 1, ch.number)
    put_be32(p + 3, 13)
    put_be32(p + 7, 60 << 16 | 80)
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


cdef inline void sync_mark(queue_t *q) noexcept nogil:
    if not q.last.unsynced:
        q.last.unsynced = True
        q.unsynced_n += 1
        q.syncs = True
    if not q.is_sync_dirty:
        q.is_sync_dirty = True
        q.sync_next = q.core.sync_dirty
        q.core.sync_dirty = q

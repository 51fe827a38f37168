# Confirms publishes: one basic.ack for all up to a number, and a basic.nack for each that was refused, in order.


cdef void write_settled(channel_t *ch, uint64_t upto, uint32_t method) noexcept nogil:
    cdef uint8_t *p = out_room(ch.conn, 21)
    if p == NULL:
        return
    p[0] = FRAME_METHOD
    put_be16(p + 1, ch.number)
    put_be32(p + 3, 13)
    put_be32(p + 7, method)
    put_be64(p + 11, upto - ch.confirm_from)
    p[19] = upto > ch.confirmed + 1
    p[20] = FRAME_END
    ch.conn.out_n += 21
    ch.confirmed = upto


cdef void write_confirm(channel_t *ch, uint64_t upto) noexcept nogil:
    """Confirm every unconfirmed publish of the channel up to number `upto`: one basic.ack for all, and a basic.nack for each
    that was refused, in order."""
    cdef uint32_t i = 0
    if upto <= ch.confirmed or ch.conn.gone or ch.closing or ch.closed:
        return
    if UNLIKELY(ch.nacks_n):
        while i < ch.nacks_n and ch.nacks[i] <= upto:
            if ch.nacks[i] > ch.confirmed + 1:
                write_settled(ch, ch.nacks[i] - 1, BASIC_ACK)
            write_settled(ch, ch.nacks[i], BASIC_NACK)
            i += 1
        ch.nacks_n -= i
        memmove(ch.nacks, ch.nacks + i, ch.nacks_n * sizeof(uint64_t))
        if upto <= ch.confirmed:
            return
    write_settled(ch, upto, BASIC_ACK)


cdef void add_nack(channel_t *ch) noexcept nogil:
    """Note that the channel's last publish was refused."""
    cdef uint64_t *nacks
    cdef uint32_t n
    if ch.nacks_n == ch.nacks_capacity:
        n = ch.nacks_capacity * 2 if ch.nacks_capacity else 16
        nacks = <uint64_t *>realloc(ch.nacks, n * sizeof(uint64_t))
        if nacks == NULL:
            ch.conn.gone = True         # No memory: rather end the connection than confirm falsely.
            return
        ch.nacks = nacks
        ch.nacks_capacity = n
    ch.nacks[ch.nacks_n] = ch.publishes
    ch.nacks_n += 1


cdef void refuse_unconfirmed(channel_t *ch) noexcept nogil:
    """Refuse all publishes of the channel that are not confirmed yet; the next confirm says so."""
    cdef uint64_t n = ch.publishes - ch.confirmed
    cdef uint64_t *nacks
    cdef uint64_t i
    if n == 0:
        return
    nacks = <uint64_t *>realloc(ch.nacks, n * sizeof(uint64_t)) if n < <uint64_t>1 << 32 else NULL
    if nacks == NULL:
        ch.conn.gone = True
        return
    for i in range(n):
        nacks[i] = ch.confirmed + 1 + i
    ch.nacks = nacks
    ch.nacks_n = ch.nacks_capacity = <uint32_t>n


cdef inline void mark_confirm_dirty(channel_t *ch) noexcept nogil:
    if not ch.is_confirm_dirty:
        ch.is_confirm_dirty = True
        ch.confirm_next = ch.conn.core.confirm_dirty
        ch.conn.core.confirm_dirty = ch


cdef inline void mark_unsynced(store_t *st) noexcept nogil:
    """The last segment of st holds what the next sync of its queue must cover.  This asks for no such sync."""
    if st != NULL and st.last != NULL and not st.last.unsynced:
        st.last.unsynced = True
        st.unsynced_n += 1
        st.queue.confirms_have_waited = True


cdef inline void mark_sync_dirty(store_t *st) noexcept nogil:
    mark_unsynced(st)
    join_sync(st.queue)


cdef inline void join_sync(queue_t *q) noexcept nogil:
    """Have the next sync cover q."""
    if not q.is_sync_dirty:
        q.is_sync_dirty = True
        q.sync_next = q.core.sync_dirty
        q.core.sync_dirty = q

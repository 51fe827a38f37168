# Who gets the next message, and its octets on the way out.
#
# A queue's consumers stand in levels by priority; the ones with credit form a ring in each level, and
# the one served goes to its end: strict round robin.  A consumer without credit is in no ring.

cdef enum:
    OUT_FULL = 262144               # send before writing more
    TURN_QUANTUM = 262144           # octets of one queue before the next queue has its turn


# ---- output

cdef inline void out_mark(conn_t *c) noexcept nogil:
    if not c.is_out_dirty:
        c.is_out_dirty = True
        c.out_next = c.core.out_dirty
        c.core.out_dirty = c


cdef int out_make_room(conn_t *c, size_t n) noexcept nogil:
    cdef core_t *core = c.core
    cdef size_t want = c.out_n + n
    cdef uint8_t *p
    if c.out == NULL and want <= OUT_ROOM:
        if core.pool_n:
            core.pool_n -= 1
            c.out = core.pool[core.pool_n]
        else:
            c.out = <uint8_t *>malloc(OUT_ROOM)
        if c.out == NULL:
            return ENOMEM
        c.out_capacity = OUT_ROOM
        return 0
    want += want >> 1
    p = <uint8_t *>realloc(c.out, want)
    if p == NULL:
        return ENOMEM
    c.out = p
    c.out_capacity = want
    return 0


cdef inline uint8_t *out_room(conn_t *c, size_t n) noexcept nogil:
    """Where n octets may be written; the caller adds them to out_n.  NULL: no memory."""
    if UNLIKELY(c.out_capacity - c.out_n < n) and out_make_room(c, n) != 0:
        return NULL
    out_mark(c)
    return c.out + c.out_n


cdef void out_release(conn_t *c) noexcept nogil:
    cdef core_t *core = c.core
    c.out_n = 0
    if c.out == NULL:
        return
    if c.out_capacity == OUT_ROOM and core.pool_n < 16:
        core.pool[core.pool_n] = c.out
        core.pool_n += 1
    else:
        free(c.out)
    c.out = NULL
    c.out_capacity = 0


cdef void out_flush(conn_t *c) noexcept nogil:
    """Send what is written, unless it must wait; what the socket does not take waits in the transport."""
    cdef ssize_t n = 0
    if c.out_n == 0 or c.held or c.paused or c.gone:
        return
    if c.fd >= 0:
        n = send(c.fd, c.out, c.out_n, MSG_DONTWAIT | MSG_NOSIGNAL)
        if n < 0:
            n = 0           # full, or an error that the transport will meet too
    c.sent += c.out_n
    if LIKELY(<size_t>n == c.out_n):
        out_release(c)
        return
    with gil:
        hand_to_transport(c, n)


cdef void hand_to_transport(conn_t *c, size_t done) noexcept:
    cdef bytes rest = (<const char *>c.out)[done:c.out_n]
    cdef Connection connection = <Connection>c.owner
    out_release(c)
    try:
        connection.transport.write(rest)
    except Exception:
        c.gone = True       # the loop tells connection_lost


# ---- rings

cdef inline bint has_credit(consumer_t *c) noexcept nogil:
    cdef channel_t *ch = c.channel
    cdef conn_t *conn = ch.conn
    return not (c.closed or conn.paused or conn.gone or conn.discard or ch.closing or not ch.flow
                or (c.prefetch and c.unacked >= c.prefetch and not c.no_ack)
                or (ch.global_prefetch and ch.unacked >= ch.global_prefetch and not c.no_ack)
                or (conn.held and conn.out_n >= OUT_FULL)
                or (UNLIKELY(c.queue.rules != NULL) and c.queue.rules.single_active and not is_active(c)))


cdef inline void ring_leave(consumer_t *c) noexcept nogil:
    cdef level_t *level = c.level
    if not c.in_ring:
        return
    c.in_ring = False
    if c.prev != NULL:
        c.prev.next = c.next
    else:
        level.head = c.next
    if c.next != NULL:
        c.next.prev = c.prev
    else:
        level.tail = c.prev
    c.next = c.prev = NULL


cdef inline void ring_join(consumer_t *c) noexcept nogil:
    cdef level_t *level = c.level
    if c.in_ring or c.closed:
        return
    c.in_ring = True
    c.next = NULL
    c.prev = level.tail
    if level.tail != NULL:
        level.tail.next = c
    else:
        level.head = c
    level.tail = c


cdef void credit_again(consumer_t *c) noexcept nogil:
    """Something that kept c from being served may be gone."""
    if not c.in_ring and has_credit(c):
        ring_join(c)
        queue_mark(c.queue)


cdef inline void queue_mark(queue_t *q) noexcept nogil:
    cdef core_t *core = q.core
    if q.is_dirty or q.ready == 0 or q.levels == NULL:
        return
    q.is_dirty = True
    q.dirty_next = NULL
    if core.dirty_tail != NULL:
        core.dirty_tail.dirty_next = q
    else:
        core.dirty = q
    core.dirty_tail = q


cdef inline bint can_deliver(queue_t *q) noexcept nogil:
    cdef level_t *level = q.levels
    while level != NULL:
        if level.head != NULL:
            return not q.paused
        level = level.next
    return False


cdef level_t *level_of(queue_t *q, int32_t priority) noexcept nogil:
    cdef level_t **at = &q.levels
    cdef level_t *level
    while at[0] != NULL and at[0].priority > priority:
        at = &at[0].next
    if at[0] != NULL and at[0].priority == priority:
        return at[0]
    level = <level_t *>calloc(1, sizeof(level_t))
    if level != NULL:
        level.priority = priority
        level.next = at[0]
        at[0] = level
    return level


cdef void level_leave(queue_t *q, level_t *level) noexcept nogil:
    cdef level_t **at = &q.levels
    level.consumers -= 1
    if level.consumers:
        return
    while at[0] != level:
        at = &at[0].next
    at[0] = level.next
    free(level)


# ---- a delivery

cdef void tell_delivered(channel_t *ch, taken_t *t) noexcept:
    """The firehose: this message was written to this channel."""
    cdef message_t m
    cdef Queue queue = <Queue>t.seg.queue.owner
    message_of(t.seg.map + t.position, &m)
    queue.on_delivered(<Channel>ch.owner, (<const char *>m.names)[1:1 + m.names[0]], key_of(&m),
                       (<const char *>m.properties)[:m.properties_n], (<const char *>m.body)[:m.body_n],
                       t.redelivered != 0)


cdef enum:
    COUNTS_ROOM = 64                # octets that the headers of write_counted() add at most
    HEADERS = 1 << 13               # property flag

cdef inline bint counts_are_told(taken_t *t) noexcept nogil:
    cdef rules_t *r = t.seg.queue.rules
    return r != NULL and r.delivery_counts


cdef uint64_t write_counted(conn_t *conn, uint16_t channel, uint8_t *p, const uint8_t *properties, uint32_t n,
                            const uint8_t *body, uint64_t body_n, uint16_t count) noexcept nogil:
    """write_content() with headers x-delivery-count (failed deliveries) and x-acquired-count (times handed out
    before) added, as quorum queues have them (RabbitMQ); without, where the header frame has no room for them."""
    cdef uint8_t *start = p
    cdef uint16_t flags = be16(properties)
    cdef uint32_t before = 2, table_n = 0
    cdef uint32_t added = 2 + 16 + 8 + 2 + 16 + 8
    cdef uint64_t written
    if n + added + 4 + 12 > conn.frame_max - 8:
        return write_content(conn, channel, p, properties, n, body, body_n)
    if flags & 1 << 15:
        before += 1 + properties[before]
    if flags & 1 << 14:
        before += 1 + properties[before]
    if flags & HEADERS:
        table_n = be32(properties + before)
    else:
        added += 4
    p[0] = 2
    put_be16(p + 1, channel)
    put_be32(p + 3, 12 + n + added)
    put_be32(p + 7, 60 << 16)
    put_be64(p + 11, body_n)
    put_be16(p + 19, flags | HEADERS)
    memcpy(p + 21, properties + 2, before - 2)
    p += 19 + before
    put_be32(p, table_n + 52)
    p += 4
    if flags & HEADERS:
        memcpy(p, properties + before + 4, table_n)
        p += table_n
        before += 4 + table_n
    memcpy(p, b"\x10x-delivery-countl", 18)
    put_be64(p + 18, count)
    memcpy(p + 26, b"\x10x-acquired-countl", 18)
    put_be64(p + 44, count)
    p += 52
    memcpy(p, properties + before, n - before)
    p += n - before
    p[0] = 0xCE
    p += 1
    written = p - start
    return written + write_body(conn, channel, p, body, body_n)


cdef inline uint64_t write_content(conn_t *conn, uint16_t channel, uint8_t *p, const uint8_t *properties,
                                   uint32_t properties_n, const uint8_t *body, uint64_t body_n) noexcept nogil:
    """Content header and body frames at p, which has room for them; octets written."""
    cdef uint8_t *start = p
    p[0] = 2
    put_be16(p + 1, channel)
    put_be32(p + 3, 12 + properties_n)
    put_be32(p + 7, 60 << 16)
    put_be64(p + 11, body_n)
    memcpy(p + 19, properties, properties_n)
    p += 19 + properties_n
    p[0] = 0xCE
    p += 1
    p += write_body(conn, channel, p, body, body_n)
    return p - start


cdef inline uint64_t write_body(conn_t *conn, uint16_t channel, uint8_t *p, const uint8_t *body,
                                uint64_t body_n) noexcept nogil:
    cdef uint8_t *start = p
    cdef uint64_t most = conn.frame_max - 8
    cdef uint64_t n
    while body_n:
        n = body_n if body_n < most else most
        p[0] = 3
        put_be16(p + 1, channel)
        put_be32(p + 3, <uint32_t>n)
        memcpy(p + 7, body, n)
        p += 7 + n
        p[0] = 0xCE
        p += 1
        body += n
        body_n -= n
    return p - start


cdef inline size_t content_room(conn_t *conn, uint32_t properties_n, uint64_t body_n) noexcept nogil:
    return 20 + properties_n + body_n + 8 * (body_n // (conn.frame_max - 8) + 1)


cdef inline int64_t write_delivery(consumer_t *c, taken_t *t) noexcept nogil:
    """basic.deliver with its content, from the segment into the connection's output; octets of the body, or -1."""
    cdef channel_t *ch = c.channel
    cdef conn_t *conn = ch.conn
    cdef const uint8_t *r = t.seg.map + t.position
    cdef const uint8_t *meta
    cdef const uint8_t *body
    cdef uint32_t meta_n = meta_of(r, &meta)
    cdef uint32_t names_n = 1 + meta[0]
    cdef uint64_t body_n
    cdef uint8_t *p
    cdef uint8_t *start
    names_n += 1 + meta[names_n]
    body = meta + meta_n
    body_n = le32(r + 4) - <uint64_t>(body - r)
    start = out_room(conn, c.prefix_n + 10 + COUNTS_ROOM + names_n + content_room(conn, meta_n - names_n, body_n))
    if UNLIKELY(start == NULL):
        return -1
    p = start
    memcpy(p, c.prefix, c.prefix_n)
    put_be32(p + 3, c.prefix_n + 2 + names_n)
    p += c.prefix_n
    put_be64(p, ch.next_tag)
    p[8] = t.redelivered
    memcpy(p + 9, meta, names_n)
    p += 9 + names_n
    p[0] = 0xCE
    p += 1
    if UNLIKELY(t.count) and counts_are_told(t):
        p += write_counted(conn, ch.number, p, meta + names_n, meta_n - names_n, body, body_n, t.count)
    else:
        p += write_content(conn, ch.number, p, meta + names_n, meta_n - names_n, body, body_n)
    conn.out_n += p - start
    return <int64_t>body_n


cdef int ring_grow(channel_t *ch) noexcept nogil:
    """Twice the room for unacked deliveries; entries stay at tag modulo capacity."""
    cdef uint32_t old = ch.ring_capacity
    cdef uint32_t new = old * 2 if old else 16
    cdef entry_t *ring = <entry_t *>malloc(new * sizeof(entry_t))
    cdef uint64_t tag
    if ring == NULL:
        return ENOMEM
    for tag in range(ch.base_tag, ch.next_tag):
        ring[tag & (new - 1)] = ch.ring[tag & (old - 1)]
    free(ch.ring)
    ch.ring = ring
    ch.ring_capacity = new
    return 0


cdef inline int ring_reserve(channel_t *ch) noexcept nogil:
    if UNLIKELY(ch.next_tag - ch.base_tag >= ch.ring_capacity):
        return ring_grow(ch)
    return 0


cdef inline void skip_tag(channel_t *ch) noexcept nogil:
    """The next tag is of a delivery that needs no ack, while others do."""
    cdef entry_t *e = &ch.ring[ch.next_tag & (ch.ring_capacity - 1)]
    e.seg = NULL
    e.late = False
    ch.next_tag += 1


cdef inline void remember(channel_t *ch, queue_t *q, consumer_t *c, taken_t *t) noexcept nogil:
    """The delivery just written is unacked; ring_reserve() went before."""
    cdef entry_t *e = &ch.ring[ch.next_tag & (ch.ring_capacity - 1)]
    e.seg = t.seg
    e.consumer = c
    e.seq = t.seq
    e.position = t.position
    e.count = t.count
    e.ordinal = t.ordinal
    e.late = False
    e.when = q.core.ms
    ch.next_tag += 1
    ch.unacked += 1
    t.seg.unacked += 1
    q.unacked += 1


cdef uint64_t deliver(queue_t *q, uint64_t budget) noexcept nogil:
    """Hand out messages until they, the consumers' credit, or the budget run out; octets of bodies, 64 each at least."""
    cdef level_t *level
    cdef consumer_t *c
    cdef channel_t *ch
    cdef taken_t t
    cdef int64_t n
    cdef uint64_t spent = 0
    q.touched = q.core.now
    while q.ready and spent < budget and not q.paused:
        level = q.levels
        while level != NULL and level.head == NULL:
            level = level.next
        if level == NULL:
            break
        c = level.head
        ch = c.channel
        if UNLIKELY(not has_credit(c)):
            ring_leave(c)
            continue
        if UNLIKELY(ch.conn.out_n >= OUT_FULL) and not ch.conn.held:
            out_flush(ch.conn)
            continue
        if (not c.no_ack or ch.unacked or ch.late) and UNLIKELY(ring_reserve(ch) != 0):
            ring_leave(c)
            continue
        if UNLIKELY(not take(q, &t)):
            break
        n = write_delivery(c, &t)
        if UNLIKELY(n < 0):
            t.ordinal = t.seg.store.handed
            untake(&t)
            ring_leave(c)
            continue
        spent += 64 + n
        in_order(&t)
        if UNLIKELY(q.journal != NULL):
            journal_delivery(ch, c, &t, c.no_ack)
        if UNLIKELY(q.rules != NULL) and q.rules.traced:
            with gil:
                tell_delivered(ch, &t)
        # After a restart this is partly an estimate.
        q.ready_octets = q.ready_octets - n if q.ready and q.ready_octets >= <uint64_t>n else 0
        q.n_delivered += 1
        q.n_redelivered += t.redelivered
        if c.no_ack:
            if UNLIKELY(ch.unacked or ch.late):
                skip_tag(ch)
            else:
                ch.next_tag += 1
                ch.base_tag = ch.next_tag
            q.n_acked += 1
            if UNLIKELY(q.journal != NULL):
                q.core.doer = c.number
            settle(&t, ACKED)
            if UNLIKELY(q.journal != NULL):
                q.core.doer = 0
        else:
            remember(ch, q, c, &t)
            c.unacked += 1
            if c.prefetch and c.unacked >= c.prefetch:
                ring_leave(c)
                continue
        if level.head != level.tail and c.in_ring:
            ring_leave(c)
            ring_join(c)
    if UNLIKELY(q.rules != NULL) and q.rules.expires:
        deadline_set(q, head_expires_at(q))
    return spent

# Who gets the next message.
#
# A queue's consumers stand in levels by priority.  In each level those with credit form a ring, and a consumer that was
# served goes to its end: strict round robin.  A consumer without credit is in no ring.


cdef inline bint is_active(consumer_t *c) noexcept nogil:
    return c.queue.rules.active == c and not c.queue.rules.draining


# ---- rings
cdef inline bint has_credit(consumer_t *c) noexcept nogil:
    cdef channel_t *ch = c.channel
    cdef conn_t *conn = ch.conn
    # One test of five flags: they are asked about before each delivery, and hardly ever set.
    return not (UNLIKELY((c.closed | conn.paused | conn.gone | conn.discard | ch.closing) != 0) or UNLIKELY(not ch.flow)
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


cdef inline bint has_next(queue_t *q) noexcept nogil:
    """A message may be there that could go out."""
    return q.ready != 0 or (UNLIKELY(q.rules != NULL) and q.rules.gate != NULL and q.rules.gate.open != 0)


cdef inline void mark_dirty(queue_t *q) noexcept nogil:
    cdef core_t *core = q.core
    if q.is_dirty or q.levels == NULL or not has_next(q):
        return
    q.is_dirty = True
    q.dirty_next = NULL
    if core.dirty_tail != NULL:
        core.dirty_tail.dirty_next = q
    else:
        core.dirty = q
    core.dirty_tail = q


cdef void ring_rejoin(consumer_t *c) noexcept nogil:
    """Something that kept c from being served may be gone."""
    if not c.in_ring and has_credit(c):
        ring_join(c)
        mark_dirty(c.queue)


cdef inline bint can_deliver(queue_t *q) noexcept nogil:
    cdef level_t *level = q.levels
    while level != NULL:
        if level.head != NULL:
            return not q.paused
        level = level.next
    return False


cdef inline level_t *first_level_with_credit(queue_t *q) noexcept nogil:
    """The highest level in which a consumer has credit; NULL: in none."""
    cdef level_t *level = q.levels
    while level != NULL and level.head == NULL:
        level = level.next
    return level


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


cdef void consumers_rejoin(queue_t *q) noexcept:
    """All consumers of the queue that have credit are to be asked again."""
    cdef Consumer consumer
    for consumer in (<Queue>q.owner).consumers or ():
        if not consumer.c.in_ring and has_credit(&consumer.c):
            ring_join(&consumer.c)


cdef void rings_rejoin(channel_t *ch) noexcept:
    cdef Consumer consumer
    cdef dict consumers = (<Channel>ch.owner).consumers
    if consumers is not None:
        for consumer in consumers.values():
            ring_rejoin(&consumer.c)

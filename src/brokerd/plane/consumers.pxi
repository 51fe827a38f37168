# Who gets the next message.
#
# A queue's consumers stand in levels by priority.  In each level those with credit form a ring, and a consumer that was
# served goes to its end: strict round robin.  A consumer without credit is in no ring.
#
# Where basic.qos bounds a channel as a whole (global), its consumers share the credit.  A consumer that finds none waits at the
# end of the channel's list.  Settlements give the credit to the first of those who wait, whose queues have messages: so none of
# a channel's queues keeps the others waiting.  Deliveries by basic.get do not count there, and a consumer without acks waits
# like the others (RabbitMQ).


cdef inline bint is_active(consumer_t *c) noexcept nogil:
    return c.queue.rules.active == c and not c.queue.rules.draining


# ---- rings
cdef inline bint has_credit(consumer_t *c) noexcept nogil:
    cdef channel_t *ch = c.channel
    cdef conn_t *conn = ch.conn
    # One test of five flags: they are asked about before each delivery, and hardly ever set.
    return not (UNLIKELY((c.closed | conn.paused | conn.gone | conn.discard | ch.closing) != 0) or UNLIKELY(not ch.flow)
                or (c.prefetch and c.unacked >= c.prefetch and not c.no_ack)
                or (ch.global_prefetch and ch.consumed >= ch.global_prefetch)
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


# ---- credit of a channel
cdef void waiting_leave(consumer_t *c) noexcept nogil:
    cdef channel_t *ch = c.channel
    if not c.waits:
        return
    c.waits = False
    if c.waits_prev != NULL:
        c.waits_prev.waits_next = c.waits_next
    else:
        ch.waiting = c.waits_next
    if c.waits_next != NULL:
        c.waits_next.waits_prev = c.waits_prev
    else:
        ch.waiting_last = c.waits_prev
    c.waits_next = c.waits_prev = NULL


cdef void waiting_join(consumer_t *c) noexcept nogil:
    cdef channel_t *ch = c.channel
    if c.waits or c.closed:
        return
    c.waits = True
    c.waits_next = NULL
    c.waits_prev = ch.waiting_last
    if ch.waiting_last != NULL:
        ch.waiting_last.waits_next = c
    else:
        ch.waiting = c
    ch.waiting_last = c


cdef void mark_crediting(channel_t *ch) noexcept nogil:
    """The channel may have credit again: the turn gives it to those who wait."""
    cdef core_t *core = ch.conn.core
    if ch.is_crediting or ch.waiting == NULL or ch.closed:
        return
    ch.is_crediting = True
    ch.crediting_next = core.crediting
    core.crediting = ch


cdef void leave_crediting(channel_t *ch) noexcept nogil:
    cdef channel_t **at = &ch.conn.core.crediting
    if not ch.is_crediting:
        return
    while at[0] != ch:
        at = &at[0].crediting_next
    at[0] = ch.crediting_next
    ch.is_crediting = False


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
    if c.in_ring:
        return
    if has_credit(c):
        waiting_leave(c)
        ring_join(c)
        mark_dirty(c.queue)
    elif c.channel.global_prefetch:
        waiting_join(c)


# ---- consumers that wait for a later turn of the loop

cdef enum:
    WOKEN_AT_ONCE = 16
    LOOKS_OF_TURN = 8192        # messages that all filters look at together, before the loop reads from connections again

cdef void put_off(consumer_t *c) noexcept nogil:
    cdef core_t *core = c.queue.core
    if c.is_put_off:
        return
    c.is_put_off = True
    c.put_off_next = NULL
    c.put_off_prev = core.put_off_last
    if core.put_off_last != NULL:
        core.put_off_last.put_off_next = c
    else:
        core.put_off = c
    core.put_off_last = c


cdef void put_off_leave(consumer_t *c) noexcept nogil:
    cdef core_t *core = c.queue.core
    if not c.is_put_off:
        return
    c.is_put_off = False
    if c.put_off_prev != NULL:
        c.put_off_prev.put_off_next = c.put_off_next
    else:
        core.put_off = c.put_off_next
    if c.put_off_next != NULL:
        c.put_off_next.put_off_prev = c.put_off_prev
    else:
        core.put_off_last = c.put_off_prev
    c.put_off_next = c.put_off_prev = NULL


cdef void wake_put_off(core_t *core) noexcept nogil:
    """Those that waited longest stand in their rings again."""
    cdef consumer_t *c
    cdef int n = 0
    while core.put_off != NULL and n < WOKEN_AT_ONCE:
        c = core.put_off
        put_off_leave(c)
        ring_rejoin(c)
        n += 1


cdef enum:
    LOOKED_AT_HIGHER = 64           # consumers of higher priority, for one that is given credit
    MOVED_AT_ONCE = 1024            # consumers that are given credit before messages are handed out


cdef void join_higher(consumer_t *c) noexcept nogil:
    """c has been given credit: let those of its channel and its queue that have a higher priority have it first."""
    cdef level_t *level = c.level.prev
    cdef consumer_t *other
    cdef int looked = 0
    while level != NULL and looked < LOOKED_AT_HIGHER:
        other = level.oldest
        while other != NULL and looked < LOOKED_AT_HIGHER:
            looked += 1
            if other.waits and other.channel == c.channel and has_credit(other):
                waiting_leave(other)
                ring_join(other)
            other = other.newer
        level = level.prev


cdef uint64_t credit_channels(core_t *core) noexcept nogil:
    """Give the credit of channels to their consumers that wait: as many as there is credit for, and whose queues have messages.
    A channel stays in the list as long as some wait and there is credit, because a queue's message may go elsewhere.  Returns
    what it cost, in octets of deliver()."""
    cdef channel_t **at = &core.crediting
    cdef channel_t *ch
    cdef consumer_t *c
    cdef int64_t credit
    cdef uint64_t moved = 0
    while at[0] != NULL and moved < MOVED_AT_ONCE:
        ch = at[0]
        credit = <int64_t>ch.global_prefetch - ch.consumed if ch.global_prefetch else NEVER
        while credit > 0 and ch.waiting != NULL and moved < MOVED_AT_ONCE:
            c = ch.waiting
            moved += 1
            waiting_leave(c)
            if not c.in_ring and has_credit(c):
                ring_join(c)
                if UNLIKELY(c.level.prev != NULL):
                    join_higher(c)
                mark_dirty(c.queue)
                credit -= has_next(c.queue)
        if ch.waiting == NULL or ch.consumed >= ch.global_prefetch > 0:
            at[0] = ch.crediting_next
            ch.is_crediting = False
        else:
            at = &ch.crediting_next
    return 64 * moved


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
    cdef level_t *before = NULL
    while at[0] != NULL and at[0].priority > priority:
        before = at[0]
        at = &at[0].next
    if at[0] != NULL and at[0].priority == priority:
        return at[0]
    level = <level_t *>calloc(1, sizeof(level_t))
    if level != NULL:
        level.priority = priority
        level.next = at[0]
        level.prev = before
        if level.next != NULL:
            level.next.prev = level
        at[0] = level
        q.levels_n += 1
    return level


cdef void level_join(level_t *level, consumer_t *c) noexcept nogil:
    c.level = level
    level.consumers += 1
    c.older = level.newest
    c.newer = NULL
    if level.newest != NULL:
        level.newest.newer = c
    else:
        level.oldest = c
    level.newest = c


cdef void level_leave(queue_t *q, consumer_t *c) noexcept nogil:
    cdef level_t *level = c.level
    level.consumers -= 1
    if c.older != NULL:
        c.older.newer = c.newer
    else:
        level.oldest = c.newer
    if c.newer != NULL:
        c.newer.older = c.older
    else:
        level.newest = c.older
    c.newer = c.older = NULL
    c.level = NULL
    if level.consumers:
        return
    if level.prev != NULL:
        level.prev.next = level.next
    else:
        q.levels = level.next
    if level.next != NULL:
        level.next.prev = level.prev
    q.levels_n -= 1
    free(level)


cdef void consumers_rejoin(queue_t *q) noexcept:
    """All consumers of the queue that have credit are to be asked again."""
    cdef Consumer consumer
    for consumer in (<Queue>q.owner).consumers or ():
        if consumer.c.in_ring:
            continue
        if has_credit(&consumer.c):
            waiting_leave(&consumer.c)
            ring_join(&consumer.c)
        elif consumer.c.channel.global_prefetch:
            waiting_join(&consumer.c)


cdef void rings_rejoin(channel_t *ch) noexcept:
    cdef Consumer consumer
    cdef dict consumers = (<Channel>ch.owner).consumers
    if consumers is not None:
        for consumer in consumers.values():
            ring_rejoin(&consumer.c)

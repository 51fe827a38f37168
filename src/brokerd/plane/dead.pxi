# Messages that died: expired, rejected, over a limit.  With dead-lettering their queue's on_dead() is told, at the end
# of the chunk and never while another queue's store is half changed; without they are settled at once.
#
#    ready or unacked --kill--> dying --on_dead() True--> settled
#                                     --on_dead() False--> kept --dead_done()--> settled
#
# A message that is dying or kept is in no count and in no acks entry: after a crash it is ready again.

cdef uint8_t[5] KIND_OF_DEAD
KIND_OF_DEAD[:] = [6, 2, 5, 6 | 3 << 4, 6 | 4 << 4]          # without dead-lettering: dropped, rejected, expired, dropped, dropped
REASONS = ("", "rejected", "expired", "maxlen", "delivery_limit")


cdef bint dead_push(deads_t *list_, dead_t *dead) noexcept nogil:
    cdef dead_t *at
    cdef uint32_t n
    if list_.n == list_.capacity:
        if list_.first:
            list_.n -= list_.first
            memmove(list_.at, list_.at + list_.first, list_.n * sizeof(dead_t))
            list_.first = 0
        else:
            n = list_.capacity * 2 if list_.capacity else 16
            at = <dead_t *>realloc(list_.at, n * sizeof(dead_t))
            if at == NULL:
                return False
            list_.at = at
            list_.capacity = n
    list_.at[list_.n] = dead[0]
    list_.n += 1
    return True


cdef void kill(taken_t *t, uint8_t reason) noexcept nogil:
    """The message, taken and not unacked any more, is dead."""
    cdef queue_t *q = t.seg.queue
    cdef core_t *core = q.core
    cdef rules_t *r = q.rules
    cdef dead_t dead
    if UNLIKELY(q.dropped):
        return
    if reason == EXPIRED_REASON:
        r.n_expired += 1
    elif reason == LENGTH_REASON:
        r.n_dropped += 1
    dead.seg = t.seg
    dead.seq = t.seq
    dead.position = t.position
    dead.count = t.count
    dead.reason = reason
    if not r.dead_letters or (reason == LIMIT_REASON and r.limit_drops) or not dead_push(&r.dying, &dead):
        settle(t, KIND_OF_DEAD[reason])
        return
    if not r.is_dying:
        r.is_dying = True
        r.dying_next = NULL
        if core.dying_tail != NULL:
            core.dying_tail.rules.dying_next = q
        else:
            core.dying = q
        core.dying_tail = q


cdef uint64_t tell_dead(core_t *core, uint64_t most) noexcept:
    """Tell the queues of what died in them, in the order in which it did, at most so many.  How many."""
    cdef queue_t *q
    cdef dead_t dead
    cdef uint64_t n = 0
    while core.dying != NULL and n < most:
        q = core.dying
        if q.rules.dying.first == q.rules.dying.n:
            core.dying = q.rules.dying_next
            if core.dying == NULL:
                core.dying_tail = NULL
            q.rules.is_dying = False
            q.rules.dying.first = q.rules.dying.n = 0
            continue
        dead = q.rules.dying.at[q.rules.dying.first]
        q.rules.dying.first += 1
        n += 1
        if not told(q, &dead):
            if not q.dropped:
                dead_push(&q.rules.kept, &dead)
        elif not q.dropped:
            settle_dead(q, &dead)
    return n


cdef void settle_dead(queue_t *q, dead_t *dead) noexcept nogil:
    cdef taken_t t
    t.seg = dead.seg
    t.seq = dead.seq
    t.position = dead.position
    t.count = dead.count
    q.rules.n_dead_lettered += 1
    settle(&t, 4 | dead.reason << 4)


cdef bint told(queue_t *q, dead_t *dead) noexcept:
    """on_dead() was told of it, and needs it no more.  What raises keeps it: it is there again after a restart."""
    cdef const uint8_t *r
    cdef message_t m
    write_stages(q.core)
    if seg_map(dead.seg) != 0:
        return False
    r = dead.seg.map + dead.position
    message_of(r, &m)
    queue = <Queue>q.owner
    return queue.on_dead(REASONS[dead.reason], dead.seq, (<const char *>m.names)[1:1 + m.names[0]],
                         key_of(&m), (<const char *>m.properties)[:m.properties_n],
                         (<const char *>m.body)[:m.body_n], dead.count)


cdef bytes key_of(message_t *m):
    cdef const uint8_t *key = m.names + 1 + m.names[0]
    return (<const char *>key)[1:1 + key[0]]


cdef void message_of(const uint8_t *r, message_t *m) noexcept nogil:
    """The pieces of a whole record."""
    cdef const uint8_t *meta
    cdef uint32_t n = meta_of(r, &meta)
    m.names = meta
    m.names_n = 1 + meta[0]
    m.names_n += 1 + meta[m.names_n]
    m.properties = meta + m.names_n
    m.properties_n = n - m.names_n
    m.body = meta + n
    m.body_n = le32(r + 4) - <uint64_t>(m.body - r)
    m.length = le32(r + 4)
    m.flags = le16(r + 38)
    m.priority = r[14]


cdef void refused(queue_t *q, message_t *m) noexcept:
    """reject-publish-dlx: the message that was not stored is told of as one that died."""
    cdef Queue queue = <Queue>q.owner
    queue.on_dead(REASONS[LENGTH_REASON], 0, (<const char *>m.names)[1:1 + m.names[0]], key_of(m),
                  (<const char *>m.properties)[:m.properties_n], (<const char *>m.body)[:m.body_n], 0)

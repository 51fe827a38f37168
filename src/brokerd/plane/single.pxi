# The single active consumer of a queue that asks for one, and deliveries that are unacked for too long.
#
# The first consumer is the active one; one of higher priority takes over.  A handover is drained: the next one gets
# nothing before all that the former one holds is settled or has returned, so that order holds over it.


cdef void choose_active(queue_t *q) noexcept:
    """Somebody came, went, or has nothing unacked any more."""
    cdef rules_t *r = q.rules
    cdef Queue queue = <Queue>q.owner
    cdef Consumer consumer
    cdef consumer_t *best = NULL
    cdef consumer_t *now = r.active
    if now != NULL and now.closed and now.unacked:
        return
    for consumer in queue.consumers or ():
        if best == NULL or consumer.c.level.priority > best.level.priority:
            best = &consumer.c
    if now != NULL and not now.closed:
        if best.level.priority <= now.level.priority:
            if r.draining:              # Whoever was to take over has left.
                r.draining = False
                credit_again(now)
            return
        if now.unacked:
            r.draining = True
            ring_leave(now)
            return
    r.draining = False
    r.active = best
    if now != NULL and now != best and not now.closed:
        ring_leave(now)
    if best != NULL:
        credit_again(best)


cdef inline bint is_active(consumer_t *c) noexcept nogil:
    return c.queue.rules.active == c and not c.queue.rules.draining


cdef bint timed_out(channel_t *ch, uint32_t now_ms, list closing) except -1:
    """Return what consumers of this channel have held for too long; those whose channel is to be closed for it are
    appended to `closing` instead.  True if anything returned."""
    cdef uint64_t tag
    cdef uint32_t mask = ch.ring_capacity - 1
    cdef entry_t *e
    cdef consumer_t *c
    cdef bint any_ = False
    for tag in range(ch.base_tag, ch.next_tag if ch.unacked else ch.base_tag):
        e = &ch.ring[tag & mask]
        c = e.consumer
        if e.seg == NULL or c == NULL or c.timeout < 0 or <int64_t><uint32_t>(now_ms - e.when) * 1000000 < c.timeout:
            continue
        if c.timeout_closes:
            closing.append(<Consumer>c.owner)
            return any_
        if e.seg.queue.rules != NULL:
            e.seg.queue.rules.n_timed_out += 1
        entry_settle(ch, e, RETURNED, CAUSE_TIMEOUT)
        e.late = True
        ch.late += 1
        any_ = True
    if any_:
        base_advance(ch)
        if ch.global_prefetch:
            credit_of_channel(ch)
    return any_

# The single active consumer of a queue that asks for one.
#
# The first consumer is active until it leaves, or one of higher priority comes.  The former one is drained first: the next
# one gets no message before every delivery of the former one is settled or given back.  So the order holds across the
# change.


cdef void choose_active(queue_t *q) noexcept:
    """Choose the active consumer, because one came or left, or the active one has no unacked delivery any more."""
    cdef rules_t *r = q.rules
    cdef consumer_t *best = q.levels.oldest if q.levels != NULL else NULL
    cdef consumer_t *now = r.active
    if now != NULL and now.closed and now.unacked:
        return
    if now != NULL and not now.closed:
        if best.level.priority <= now.level.priority:
            if r.draining:              # The consumer that was to take over has left.
                r.draining = False
                ring_rejoin(now)
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
        ring_rejoin(best)

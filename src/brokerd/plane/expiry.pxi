# Messages that expire die: at the head of a queue or level, when they are taken and when the deadline comes.
#
# A message is expired from the instant its time is over, but a message handed out in the very turn in which it came is
# not: a message with a time of 0 reaches a consumer that waits (RabbitMQ).


cdef enum:
    EXPIRE_MOST = 1024          # messages of one queue at a time


cdef bint expire(queue_t *q) noexcept nogil:
    """Kill what is over at the heads; False: there may be more."""
    cdef store_t *st = NULL
    cdef place_t t
    cdef uint32_t n = 0
    while True:
        st = next_store(q, st)
        if st == NULL:
            break
        while st.ready and find_head(st, &t) and expires_at(q, t.seg.map + t.position) <= q.core.now:
            if n == EXPIRE_MOST:
                return False
            n += 1
            kill_head(st, &t, REASON_EXPIRED)
    deadline_set(q, head_expires_at(q))
    return True


cdef bint expire_due(core_t *core, uint32_t most) noexcept nogil:
    """Expire what is due in at most so many queues; False: there may be more."""
    cdef queue_t *q
    while core.deadlines_n and core.deadlines[0].rules.deadline <= core.now:
        if most == 0:
            return False
        most -= 1
        q = core.deadlines[0]
        if not expire(q):
            return False
    return True

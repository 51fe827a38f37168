# Lets expired messages die at the head of a level: when they would be handed out, and when their deadline comes.
#
# A message is expired as soon as its time is over.  But a message that is handed out in the turn in which it came is not:
# a message with a time to live of 0 reaches a consumer that waits (RabbitMQ).


cdef enum:
    EXPIRE_MOST = 1024          # messages of one queue at a time


cdef bint expire(queue_t *q) noexcept nogil:
    """Let the expired messages at the heads die; False: more may be expired."""
    cdef store_t *st = NULL
    cdef place_t t
    cdef uint32_t n = 0
    if q.rules.gate != NULL and q.rules.gate.deadline <= q.core.now:
        q.rules.gate.due(q.rules.gate)
    if q.rules.gate != NULL and q.rules.gate.reads:
        q.rules.expires = False         # Messages that are read have no time to live.
        deadline_clear(q)
        return True
    while True:
        st = next_store(q, st)
        if st == NULL:
            break
        while st.ready and find_head(st, &t) and place_expires_at(&t) <= q.core.now:
            if n == EXPIRE_MOST:
                return False
            n += 1
            kill_head(st, &t, REASON_EXPIRED)
    deadline_set(q, head_expires_at(q))
    return True


cdef bint expire_due(core_t *core, uint32_t most) noexcept nogil:
    """Expire messages in at most so many queues that are due; False: more may be due."""
    cdef queue_t *q
    while core.deadlines_n and core.deadlines[0].rules.deadline <= core.now:
        if most == 0:
            return False
        most -= 1
        q = core.deadlines[0]
        if not expire(q):
            return False
    return True

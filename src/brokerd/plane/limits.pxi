# Limits of a queue's length: before a message is stored, after it, and at the chunk's end.


cdef enum:
    AFFAIRS_MOST = 4096         # messages dropped at a time, or told of before a method
    DEAD_MOST = 512             # told of in a turn: some 20 µs each


cdef bint is_full(queue_t *q, rules_t *r) noexcept nogil:
    """One more would be too many.  With a consumer that can take it at once it is not (RabbitMQ), so that those who can
    have something of what came in this chunk have it first."""
    if not is_at_length_limit(q, r):
        return False
    if q.ready and can_deliver(q):
        write_stages(q.core)            # Nothing is reserved yet.
        deliver(q, TURN_QUANTUM)
    return is_at_length_limit(q, r) and not can_deliver(q)


cdef int check_admission(queue_t *q, bint expires) noexcept nogil:
    """Before a message is stored: whether the queue refuses it is left in rules_t.refuses.  0 or ENOMEM."""
    cdef rules_t *r = rules_of(q)
    if r == NULL:
        return ENOMEM
    r.expires |= expires
    r.refuses = r.overflow != DROP_HEAD and is_full(q, r)
    return 0


cdef void apply_rules_on_store(store_t *st, message_t *m) noexcept nogil:
    """m was stored."""
    cdef queue_t *q = st.queue
    cdef rules_t *r = q.rules
    if r.expires and st.ready == 1:
        deadline_bring_forward(q, expires_at(q, st.last.base + st.last.end - align8(m.length)))
    if r.overflow == DROP_HEAD and is_over_length_limit(q, r):
        mark_over(q)


cdef uint64_t enforce_limits(queue_t *q, uint64_t budget) noexcept nogil:
    """Drop from the head of the lowest level until the limits hold: an urgent message never makes way for a lesser one.
    How many were dropped."""
    cdef store_t *st = NULL
    cdef place_t t
    cdef uint64_t n = 0
    while is_over_length_limit(q, q.rules) and n < budget:
        st = next_store(q, st)
        if st == NULL:
            break
        while is_over_length_limit(q, q.rules) and n < budget and st.ready and find_head(st, &t):
            kill_head(st, &t, REASON_LENGTH)
            n += 1
    if n and q.rules.expires:
        deadline_set(q, head_expires_at(q))
    return n


# ---- the chunk's end


cdef uint64_t finish_chunk(core_t *core, uint64_t dead_most) noexcept nogil:
    """What the chunk has left to do before anybody looks: limits kept, the dead told of.  How many messages."""
    cdef queue_t *q
    cdef uint64_t n = 0
    write_stages(core)
    while core.over != NULL and n < AFFAIRS_MOST:
        q = core.over
        core.over = q.rules.over_next
        q.rules.is_over = False
        if can_deliver(q):              # Who can have a message at once has it before the limit does.
            deliver(q, TURN_QUANTUM)
        n += enforce_limits(q, AFFAIRS_MOST)
        if is_over_length_limit(q, q.rules) and n >= AFFAIRS_MOST:
            mark_over(q)
    if core.dying != NULL:
        with gil:
            n += tell_dead(core, dead_most)
    return n


cdef inline bint has_unfinished(core_t *core) noexcept nogil:
    return core.staged != NULL or core.over != NULL or core.dying != NULL


cdef void rules_leave(queue_t *q) noexcept nogil:
    """Out of the core's lists."""
    cdef queue_t **at
    if q.rules == NULL:
        return
    if q.rules.is_over:
        at = &q.core.over
        while at[0] != q:
            at = &at[0].rules.over_next
        at[0] = q.rules.over_next
        q.rules.is_over = False
    if q.rules.is_dying:
        at = &q.core.dying
        while at[0] != q:
            at = &at[0].rules.dying_next
        at[0] = q.rules.dying_next
        q.rules.is_dying = False
        q.core.dying_tail = q.core.dying
        while q.core.dying_tail != NULL and q.core.dying_tail.rules.dying_next != NULL:
            q.core.dying_tail = q.core.dying_tail.rules.dying_next
    deadline_clear(q)
    q.rules.active = NULL
    q.rules.dying.first = q.rules.dying.n = 0

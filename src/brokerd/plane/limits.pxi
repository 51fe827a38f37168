# Limits of a queue's length: before a message is stored, and after it.


cdef bint is_full(queue_t *q, rules_t *r) noexcept nogil:
    """Whether one more message would be too many.  It is not if a consumer can take it at once (RabbitMQ): so messages of
    this chunk are delivered first."""
    if not is_at_length_limit(q, r):
        return False
    if q.ready and can_deliver(q):
        write_stages(q.core)            # Nothing is reserved yet.
        deliver(q, TURN_QUANTUM)
    # Consumers of a queue with a gate may have credit and yet get none of its messages.
    return is_at_length_limit(q, r) and (r.gate != NULL or not can_deliver(q))


cdef int check_admission(queue_t *q, message_t *m, bint expires) noexcept nogil:
    """Before a message is stored: set rules_t.refuses if the queue refuses it.  0 or ENOMEM."""
    cdef rules_t *r = rules_of(q)
    if r == NULL:
        return ENOMEM
    r.expires |= expires and (r.gate == NULL or not r.gate.reads)
    r.unadmitted = r.gate != NULL and not r.gate.admits(r.gate, m)
    r.refuses = r.unadmitted or (r.overflow != DROP_HEAD and is_full(q, r))
    return 0


cdef void apply_rules_on_store(store_t *st, message_t *m) noexcept nogil:
    """m was stored: it may expire, or make the queue too long."""
    cdef queue_t *q = st.queue
    cdef rules_t *r = q.rules
    if r.gate != NULL:
        r.gate.stored(r.gate, st, m)
    if r.expires and st.ready == 1:
        deadline_bring_forward(q, expires_at(q, st.last.base + st.last.end - align8(m.length)))
    if r.overflow == DROP_HEAD and is_over_length_limit(q, r):
        mark_over(q)


cdef uint64_t enforce_limits(queue_t *q, uint64_t budget) noexcept nogil:
    """Drop messages from the head of the lowest level until the limits hold: an urgent message never makes way for a lesser
    one.  Returns how many were dropped."""
    cdef store_t *st = NULL
    cdef place_t t
    cdef uint64_t n = 0
    if q.rules.gate != NULL and q.rules.gate.drops:
        # What waits is older than what is ready, unless it was looked past.
        while n < budget and is_over_length_limit(q, q.rules) and q.rules.gate.drop(q.rules.gate):
            n += 1
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


cdef void rules_leave(queue_t *q) noexcept nogil:
    """Take q out of the core's lists."""
    cdef queue_t **at
    if q.rules == NULL:
        return
    retaining_leave(q)
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

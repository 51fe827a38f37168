# The gate of a queue: a feature that decides which message goes out, to whom and when, where sequence order alone does not
# say so.  Message groups, retry delays and stream readers are gates.  A queue has one gate or none.
#
# A gate is a file of its own, behind this one: a struct that begins with a gate_t, and a subclass of Gate that holds the
# struct and fills in the verbs that differ from those here.  Queue.gate takes the object.  No other file names the feature.
#
#    take        the next message for consumer c (NULL: basic.get), taken: TAKE_DONE.  find_next() finds the message whose
#                turn it is.  take_head() takes it; wait() lets it wait.  A call looks at a bounded number of messages, and
#                answers TAKE_LATER if that was not enough
#    settle      a message is about to be settled: acknowledged, dead or dead-lettered, out or not.  True: the gate has done
#                all that is to be done, and the message stays (where the gate `reads`)
#    give_back   a message that was out is about to be ready again; cause 0: it could not be written.  True: the gate has set
#                it aside instead, by put_aside()
#    stored      a message came
#    due         `deadline` is over, and is to be set anew.  A gate that sets it also sets rules_t.expires, and calls
#                deadline_bring_forward()
#    join, leave a consumer came, or has left; deliveries of one that left may still be unacked
#    visit       shows each place in the gate's own containers, as HOLDER_ASIDE; `held` counts them.  Most gates need none:
#                wait() and wake() use the queue's table of what is aside
#    empty       all that waits is to be ready again, because the queue is purged, or gets another gate
#
# A message that waits is aside (aside.pxi), so counts, compaction and a start after a crash are right without the gate.
# wake() makes it ready again; return_from_aside() does where the gate holds the place itself.  What must outlive the broker
# stands in records and acks files; a gate's own memory does not.


cdef store_t *find_next(queue_t *q, place_t *t) noexcept nogil:
    """Find the message whose turn it is by priority and sequence number; it stays there.  Those before it that are expired,
    or reached their delivery limit when the former broker ended, die.  Returns its store; NULL: none can be read."""
    cdef store_t *st
    while True:
        st = top_level(q)
        if find_head(st, t):
            if q.rules != NULL and q.rules.expires and expires_at(q, t.seg.map + t.position) < q.core.now:
                kill_head(st, t, REASON_EXPIRED)
                continue
            if UNLIKELY(t.flags & (PLACE_WAS_OUT | PLACE_OUT_SINCE_START) == PLACE_WAS_OUT) and q.rules != NULL \
                    and is_at_delivery_limit(q.rules, t):
                kill_head(st, t, REASON_LIMIT)
                continue
            return st
        if st.ready or not q.top:
            return NULL


# ---- messages that wait, in queue_t.aside

cdef int wait(store_t *st, place_t *t) noexcept nogil:
    """Let the message wait that find_next() found.  0 or ENOMEM: it stays ready."""
    if aside_reserve(st.queue) != 0:
        return ENOMEM
    pass_aside(st, t)
    uncount_octets(st.queue, t.seg.map + t.position)
    t.reason = ASIDE_GATED
    return aside_put(st.queue, t)


cdef void wake(queue_t *q, uint64_t seq) noexcept nogil:
    """Make the message ready again, at its own place, if it waits.  Without memory for that it goes on waiting."""
    cdef place_t t
    if not aside_take(q, seq, &t):
        return
    if t.reason != ASIDE_GATED or return_from_aside(&t) != 0:
        aside_put(q, &t)            # There is room: it was in there.
        return
    apply_rules_on_return(&t)
    mark_dirty(q)


# ---- a gate that changes nothing

cdef int gate_take(gate_t *gate, consumer_t *c, place_t *t) noexcept nogil:
    cdef store_t *st = find_next(gate.queue, t)
    if st == NULL:
        return TAKE_NOTHING
    take_head(st, t)
    return TAKE_DONE


cdef bint gate_lets_pass(gate_t *gate, place_t *t, uint8_t how) noexcept nogil:
    return False


cdef void gate_ignores(gate_t *gate) noexcept nogil:
    pass


cdef void gate_ignores_consumer(gate_t *gate, consumer_t *c) noexcept nogil:
    pass


cdef void gate_holds_no_places(gate_t *gate, visit_t visit, void *context) noexcept nogil:
    pass


cdef void gate_init(gate_t *gate) noexcept nogil:
    """Fill in all verbs; a feature then puts its own in place of those that differ."""
    memset(gate, 0, sizeof(gate_t))
    gate.deadline = NEVER
    gate.take = gate_take
    gate.settle = gate_lets_pass
    gate.give_back = gate_lets_pass
    gate.stored = gate_ignores
    gate.due = gate_ignores
    gate.join = gate_ignores_consumer
    gate.leave = gate_ignores_consumer
    gate.visit = gate_holds_no_places
    gate.empty = gate_ignores


cdef void gate_leave(queue_t *q) noexcept nogil:
    """The queue's gate, if it has one, lets all go and belongs to no queue."""
    cdef gate_t *gate = q.rules.gate if q.rules != NULL else NULL
    if gate != NULL:
        gate.empty(gate)
        gate.queue = NULL
        q.rules.gate = NULL


cdef class Gate:
    """See plane/__init__.pyi."""

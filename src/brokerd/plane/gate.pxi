# The gate of a queue: a feature that decides which message goes out, to whom and when, where sequence order alone does not
# say so.  Message groups, retry delays and stream readers are gates.  A queue has one gate or none.
#
# A gate is a file of its own, behind those that it calls: a struct that begins with a gate_t, and a subclass of Gate that
# holds the struct and fills in the verbs that differ from those here.  Queue.gate takes the object.  No other file of the
# plane names the feature.
#
#    attach      the gate has got its queue.  What is out already is the gate's to find: visit_places() shows it
#    detach      the gate loses its queue, after leave() for each consumer and empty(): forget everything
#    take        the next message for consumer c (NULL: basic.get), taken: TAKE_DONE.  find_next() finds the message whose
#                turn it is.  take_head() takes it; wait() lets it wait.  After TAKE_END the consumer gets nothing until the
#                gate calls ring_rejoin(), or one of its deliveries is settled.  A call looks at a bounded number of messages,
#                counts them in `looked`, and answers TAKE_LATER if that was not enough; TAKE_AFTER if other consumers are
#                to have their turn first.  put_off() has a consumer wait for the next turn of the loop: then TAKE_END
#    dying       a message died, ready, out (then `channel` is in the gate) or waiting.  Where it is dead-lettered, settle()
#                follows when its letter is stored
#    settle      a message is about to be settled: acknowledged, dropped, dead-lettered, purged; out before or not.
#                True: nothing is to be done, because the message stays (where the gate `reads`, and for ACKED and REJECTED
#                only).  Its segment may not be mapped: the gate knows a message by its number
#    give_back   a message that was out is about to be ready again; cause 0: it could not be written, and has not counted as
#                unacked.  True: the gate has set it aside instead, by put_aside().  A delivery limit comes first
#    admits      False: the queue refuses this publish, as one beyond its length with reject-publish
#    stored      a message came.  It may not be in its file yet: do not look into it (take() may)
#    letter      writes headers that a dead letter of a message gets, items of a table, and returns their octets: at most
#                LETTER_HEADERS
#    headers     writes headers that a delivery adds, items of a table, and returns their octets: at most 400.  It is asked while
#                the gate `tells`
#    part_with   takes a message that waits out of the gate's keeping: it is aside, and the caller's.  False: it does not wait, or
#                to find it would take too long
#    replayed    a settled message is ready again, at its own place
#    due         `deadline` is over, and is to be set anew.  A gate that sets it also sets rules_t.expires, and calls
#                deadline_bring_forward()
#    join, leave a consumer came, or has left; deliveries of one that left may still be unacked
#    visit       shows each place in the gate's own containers, as HOLDER_ASIDE; `held` counts them.  Most gates need none:
#                wait() and wake() use the queue's table of what is aside
#    retiring    a segment goes, with all its records
#    drop        a length limit that drops the head asks for it, of a gate that `drops`: the message that waits and is the
#                oldest dies of the queue's length.  False: there is none
#    purge       drops up to so many of the messages that wait, and returns how many; fewer: none is left, or all that is left
#                is ready
#    is_sound    for tests: False: its own counts do not agree
#    empty       all that waits is to be ready again, because the queue is purged, or gets another gate
#
# settle() and give_back() find the delivery's `channel` and `consumer` in the gate.  take_back() (settle.pxi) takes other
# deliveries back.  What take() writes into place_t.actor is there again in settle(), give_back() and dying() of a delivery.
#
# A message that waits is aside (aside.pxi), so compaction and a start after a crash are right without the gate.  `waiting`
# and `waiting_octets` count such messages: wait() and wake() see to that, or the gate where it holds the place itself and
# calls return_from_aside().  What must outlive the broker stands in records and acks files; a gate's own memory does not.


cdef store_t *find_next(queue_t *q, place_t *t) noexcept nogil:
    """Find the message whose turn it is by priority and sequence number; it stays there.  Those before it that are expired,
    or reached their delivery limit when the former broker ended, die.  Returns its store; NULL: none can be read."""
    cdef store_t *st
    while True:
        st = top_level(q)
        if find_head(st, t):
            if q.rules != NULL and q.rules.expires and place_expires_at(t) < q.core.now:
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

cdef void count_waiting(place_t *t) noexcept nogil:
    cdef gate_t *gate = t.seg.queue.rules.gate
    gate.waiting += 1
    gate.waiting_octets += body_octets(t.seg.map + t.position) if t.seg.map != NULL else 0


cdef void uncount_waiting(place_t *t) noexcept nogil:
    cdef gate_t *gate = t.seg.queue.rules.gate
    cdef uint64_t n = body_octets(t.seg.map + t.position) if t.seg.map != NULL else 0
    gate.waiting -= 1
    gate.waiting_octets -= min(n, gate.waiting_octets)


cdef int wait(store_t *st, place_t *t) noexcept nogil:
    """Let the message wait that find_next() found.  0 or ENOMEM: it stays ready."""
    if aside_reserve(st.queue) != 0:
        return ENOMEM
    pass_aside(st, t)
    uncount_octets(st.queue, t.seg.map + t.position)
    count_waiting(t)
    t.reason = ASIDE_GATED
    return aside_put(st.queue, t)


cdef bint wake(queue_t *q, uint64_t seq) noexcept nogil:
    """Make the message ready again, at its own place.  False: it does not wait, or there is no memory for that, and it goes
    on waiting."""
    cdef place_t t
    if not aside_take(q, seq, &t):
        return False
    if t.reason < ASIDE_GATED or return_from_aside(&t) != 0:
        aside_put(q, &t)            # There is room: it was in there.
        return False
    uncount_waiting(&t)
    apply_rules_on_return(&t)
    mark_dirty(q)
    return True


cdef bint take_waiting(queue_t *q, uint64_t seq, place_t *t) noexcept nogil:
    """Take a message that waits, so that it goes out at once.  False: it does not wait, or cannot be read, and goes on
    waiting."""
    if not aside_take(q, seq, t):
        return False
    if t.reason < ASIDE_GATED or take_from_aside(t) != 0:
        aside_put(q, t)
        return False
    uncount_waiting(t)
    return True


cdef bint hold_waiting(queue_t *q, uint64_t seq) noexcept nogil:
    """Set aside for the control plane a message that waits because the gate says so.  False: it does not wait."""
    cdef gate_t *gate = q.rules.gate if q.rules != NULL else NULL
    cdef place_t t
    if gate == NULL or aside_reserve(q) != 0 or not gate.part_with(gate, seq, &t):
        return False
    t.reason = ASIDE_HELD       # Its last entry stands: a start finds it as it waited.
    return aside_put(q, &t) == 0


# ---- a gate that changes nothing

cdef int gate_take(gate_t *gate, consumer_t *c, place_t *t) noexcept nogil:
    cdef store_t *st = find_next(gate.queue, t)
    if st == NULL:
        return TAKE_NOTHING
    take_head(st, t)
    return TAKE_DONE


cdef bint gate_admits(gate_t *gate, message_t *m) noexcept nogil:
    return True


cdef uint32_t gate_adds_no_headers(gate_t *gate, place_t *t, uint8_t *room) noexcept nogil:
    return 0


cdef bint gate_parts_with_nothing(gate_t *gate, uint64_t seq, place_t *t) noexcept nogil:
    return False


cdef bint gate_drops_nothing(gate_t *gate) noexcept nogil:
    return False


cdef uint32_t gate_purges_what_is_ready(gate_t *gate, uint32_t most) noexcept nogil:
    gate.empty(gate)
    return 0


cdef void gate_ignores_message(gate_t *gate, place_t *t) noexcept nogil:
    pass


cdef void gate_ignores_store(gate_t *gate, store_t *st, message_t *m) noexcept nogil:
    pass


cdef bint gate_lets_pass(gate_t *gate, place_t *t, uint8_t how) noexcept nogil:
    return False


cdef void gate_ignores(gate_t *gate) noexcept nogil:
    pass


cdef void gate_ignores_segment(gate_t *gate, seg_t *s) noexcept nogil:
    pass


cdef void gate_ignores_consumer(gate_t *gate, consumer_t *c) noexcept nogil:
    pass


cdef void gate_holds_no_places(gate_t *gate, visit_t visit, void *context) noexcept nogil:
    pass


cdef bint gate_is_sound(gate_t *gate) noexcept nogil:
    return True


cdef void gate_init(gate_t *gate) noexcept nogil:
    """Fill in all verbs; a feature then puts its own in place of those that differ."""
    memset(gate, 0, sizeof(gate_t))
    gate.deadline = NEVER
    gate.attach = gate_ignores
    gate.detach = gate_ignores
    gate.take = gate_take
    gate.dying = gate_ignores_message
    gate.settle = gate_lets_pass
    gate.give_back = gate_lets_pass
    gate.admits = gate_admits
    gate.stored = gate_ignores_store
    gate.headers = gate_adds_no_headers
    gate.letter = gate_adds_no_headers
    gate.part_with = gate_parts_with_nothing
    gate.replayed = gate_ignores_message
    gate.drop = gate_drops_nothing
    gate.purge = gate_purges_what_is_ready
    gate.due = gate_ignores
    gate.join = gate_ignores_consumer
    gate.leave = gate_ignores_consumer
    gate.visit = gate_holds_no_places
    gate.retiring = gate_ignores_segment
    gate.empty = gate_ignores
    gate.is_sound = gate_is_sound


cdef void gate_leave(queue_t *q) noexcept:
    """The queue's gate, if it has one, lets all go and belongs to no queue."""
    cdef gate_t *gate = q.rules.gate if q.rules != NULL else NULL
    cdef Consumer consumer
    if gate == NULL:
        return
    for consumer in (<Queue>q.owner).consumers or ():
        gate.leave(gate, &consumer.c)
    gate.empty(gate)
    gate.detach(gate)
    ASSERT(gate.waiting == 0 and gate.held == 0)
    q.rules.gate = NULL
    gate.queue = NULL
    gate.open = 0
    gate.sent_away = False
    gate.deadline = NEVER


cdef bint make_stand_in(queue_t *q) noexcept nogil:
    """Make rules_t.stand_in, for a gate that lets_go.  False: no memory."""
    cdef seg_t *s = q.rules.stand_in
    if s == NULL:
        s = q.rules.stand_in = <seg_t *>calloc(1, sizeof(seg_t))
        if s == NULL:
            return False
        s.queue = q
        s.store = &q.store
        s.fd = -1
        s.unlinked = s.damaged = True       # It has no files.
    return True


cdef class Gate:
    """See plane/__init__.pyi."""


cdef int take_nothing(gate_t *gate, consumer_t *c, place_t *t) noexcept nogil:
    return TAKE_NOTHING


cdef bint admits_nothing(gate_t *gate, message_t *m) noexcept nogil:
    return False


cdef class ClosedGate(Gate):
    """See plane/__init__.pyi."""

    cdef gate_t closed

    def __cinit__(self):
        gate_init(&self.closed)
        self.closed.take = take_nothing
        self.closed.admits = admits_nothing
        self.gate = &self.closed

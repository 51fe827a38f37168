# Decides how a message that was taken goes on: settled, given back to its place, or dead.
#
#    taken --settle----> an acks entry; its segment retires when that was the last record
#          --give_back-> ready again at its own place, one failed delivery more; at its limit it dies
#          --die-------> with dead-lettering: dying, until dead.pxi calls on_dead() at the chunk's end; without: settled


cdef void prepare_settlement(seg_t *s, uint8_t kind) noexcept nogil:
    """Before a message of a journaled queue is settled: its entry, its event and its count are written without the kernel."""
    if kind == ACKED:
        prepare_event(s)
    else:
        prepare_count(s)


cdef void settle(place_t *t, uint8_t kind) noexcept nogil:
    """Settle the record; kind: type | reason << 4.  May free its segment."""
    cdef seg_t *s = t.seg
    cdef queue_t *q = s.queue
    if UNLIKELY(q.dropped):
        return
    if UNLIKELY(q.rules != NULL) and q.rules.gate != NULL and q.rules.gate.settle(q.rules.gate, t, kind):
        return
    if UNLIKELY(q.window != NULL) and q.window.waiting:
        forget_settled_key(t)
    ASSERT(s.settled < s.records or s.damaged)
    if UNLIKELY(q.journal != NULL):
        prepare_settlement(s, kind)
    if UNLIKELY(seg_note(s, t.position, kind, t.count) != 0):
        q.n_unrecorded += 1
    if UNLIKELY(q.journal != NULL):
        journal_note(t, kind & 15, kind >> 4)
    if UNLIKELY(kind != ACKED):
        count_settled_without_ack(q, kind)
    s.settled += 1
    if s.acks != NULL:
        put_word(s.acks + A_SETTLED, s.settled)
    if UNLIKELY(s.settled >= s.records):
        retire_if_settled(s)


# ---- death

cdef inline uint8_t kind_of_death(uint8_t reason) noexcept nogil:
    """The kind of the acks entry of a message that died and is not dead-lettered."""
    if reason == REASON_REJECTED:
        return REJECTED
    if reason == REASON_EXPIRED:
        return EXPIRED
    return DROPPED | reason << 4


cdef inline bint is_dead_lettered(queue_t *q, uint8_t reason) noexcept nogil:
    return q.rules.dead_letters and not (reason == REASON_LIMIT and q.rules.limit_drops)


cdef bint places_reserve(places_t *list_) noexcept nogil:
    """Have room for one place more; False: no memory."""
    cdef place_t *at
    cdef uint32_t n
    if list_.n == list_.capacity:
        if list_.first:
            list_.n -= list_.first
            memmove(list_.at, list_.at + list_.first, list_.n * sizeof(place_t))
            list_.first = 0
        else:
            n = list_.capacity * 2 if list_.capacity else 16
            at = <place_t *>realloc(list_.at, n * sizeof(place_t))
            if at == NULL:
                return False
            list_.at = at
            list_.capacity = n
    return True


cdef bint places_push(places_t *list_, place_t *place) noexcept nogil:
    """False: no memory."""
    if not places_reserve(list_):
        return False
    list_.at[list_.n] = place[0]
    list_.n += 1
    return True


cdef void count_death(rules_t *r, uint8_t reason) noexcept nogil:
    if reason == REASON_EXPIRED:
        r.n_expired += 1
    elif reason == REASON_LENGTH:
        r.n_dropped += 1
    elif reason == REASON_LIMIT:
        r.n_limited += 1


cdef void die(place_t *t, uint8_t reason) noexcept nogil:
    """Have a message that is aside already (seg_t.aside) dead-lettered at the chunk's end."""
    cdef queue_t *q = t.seg.queue
    cdef core_t *core = q.core
    cdef rules_t *r = q.rules
    if UNLIKELY(r.gate != NULL):
        r.gate.dying(r.gate, t)
    t.reason = reason
    t.actor = core.actor
    if not places_push(&r.dying, t):
        t.seg.aside -= 1
        settle(t, kind_of_death(reason))
        return
    if not r.is_dying:
        r.is_dying = True
        r.dying_next = NULL
        if core.dying_tail != NULL:
            core.dying_tail.rules.dying_next = q
        else:
            core.dying = q
        core.dying_tail = q


cdef void kill(place_t *t, uint8_t reason) noexcept nogil:
    """Let a message die that was out, and is not counted as unacked any more."""
    cdef queue_t *q = t.seg.queue
    if UNLIKELY(q.dropped):
        return
    count_death(q.rules, reason)
    if is_dead_lettered(q, reason):
        # If a crash makes a rejected message ready again, this delivery of it has failed too.
        put_aside(t, t.count + 1 if reason == REASON_REJECTED and t.count < 0xFFFF else t.count)
        die(t, reason)
    else:
        settle(t, kind_of_death(reason))


cdef void kill_head(store_t *st, place_t *t, uint8_t reason) noexcept nogil:
    """Let the message die that peek() found."""
    cdef queue_t *q = st.queue
    count_death(q.rules, reason)
    if is_dead_lettered(q, reason):
        pass_aside(st, t)
        uncount_octets(q, t.seg.map + t.position)
        die(t, reason)
    else:
        take_head_unseen(st, t)
        uncount_octets(q, t.seg.map + t.position)
        settle(t, kind_of_death(reason))


# ---- return

cdef void apply_rules_on_return(place_t *t) noexcept nogil:
    """A message is ready again: it may have expired, or make the queue too long.  Nothing if its segment is not mapped."""
    cdef queue_t *q = t.seg.queue
    if q.rules == NULL or t.seg.map == NULL:
        return
    if q.rules.expires:
        deadline_bring_forward(q, place_expires_at(t))
    if q.rules.overflow == DROP_HEAD and is_over_length_limit(q, q.rules):
        mark_over(q)


cdef int give_back(place_t *t, uint8_t cause) noexcept nogil:
    """Return a record that was out to its own place, with one failed delivery more; at its limit it dies.  0 or ENOMEM."""
    cdef seg_t *s = t.seg
    cdef queue_t *q = s.queue
    if q.dropped or (q.rules != NULL and s == q.rules.stand_in and not q.rules.gate.lets_go):
        return 0                # A stream's that is out of service.
    if t.count < 0xFFFF:
        t.count += 1
    if UNLIKELY(q.journal != NULL):
        prepare_count(s)
    count_disturbance(q, RETURNED_BY + cause - 1, 1)
    if UNLIKELY(q.journal != NULL):
        journal_note(t, RETURNED, cause)
    if UNLIKELY(q.rules != NULL) and is_at_delivery_limit(q.rules, t):
        q.n_returned += 1
        kill(t, REASON_LIMIT)
        return 0
    if UNLIKELY(q.rules != NULL) and q.rules.gate != NULL and q.rules.gate.give_back(q.rules.gate, t, cause):
        q.n_returned += 1
        return 0
    if make_ready(t) != 0:
        return ENOMEM
    seg_note(s, t.position, RETURNED | cause << 4, t.count)
    q.n_returned += 1
    if seg_map(s) == 0:
        q.ready_octets += body_octets(s.map + t.position)
        if UNLIKELY(q.rules != NULL):
            apply_rules_on_return(t)
    return 0


# ---- purge

cdef bint purge_whole_segment(store_t *st) noexcept:
    """Drop the file under the cursor, if all its unsettled records wait, and nothing asks for an event or a key of each."""
    cdef queue_t *q = st.queue
    cdef seg_t *s = st.cursor
    if q.journal != NULL or q.window != NULL or (q.rules != NULL and retains(q)) or st.returned_n or s == NULL \
            or st.position != HEADER or not s.sealed or s == st.last or s.waiting != s.records - s.settled or s.unacked or s.aside:
        return False
    count_disturbance(q, PURGED_N, s.waiting)
    uncount_ready(st, s.waiting)
    s.settled = s.records
    s.waiting = 0
    retire_if_settled(s)
    return True


cdef void purge_store(store_t *st) noexcept:
    """Settle every ready message."""
    cdef place_t t
    while st.ready:
        if purge_whole_segment(st):
            continue
        if not find_head(st, &t):
            return
        take_head_unseen(st, &t)
        settle(&t, PURGED)

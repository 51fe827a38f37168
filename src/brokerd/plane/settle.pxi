# Settles deliveries by delivery tag: they are acknowledged, rejected or returned.  Returns those that timed out.


cdef void release_ghost(queue_t *q) noexcept:
    """A deleted queue's last unacked delivery was settled: its object may go."""
    q.ghost = False
    Py_DECREF(<Queue>q.owner)


cdef void forget_cancelled(channel_t *ch, consumer_t *c) noexcept:
    """A consumer that has left has no unacked delivery any more: its object may go."""
    cdef Channel channel = <Channel>ch.owner
    if c.timeout >= 0:
        channel.connection.core.timeouts -= 1
    channel.cancelled.pop(<Consumer>c.owner, None)


cdef enum:
    SETTLED_AT_ONCE = 4096      # deliveries by one method, before others have their turn
    LATE_FENCED = 2             # entry_t.late: its group returned; entry_t.at.seq is the queue's address


cdef void count_fenced(entry_t *e, core_t *core) noexcept nogil:
    """A settlement came for a delivery that was taken back because its group returned."""
    cdef queue_t *q = core.fenced       # As a rule several come for one queue, and there may be a hundred thousand.
    if q == NULL or <uint64_t><size_t>q != e.at.seq:
        q = core.queues
        while q != NULL and <uint64_t><size_t>q != e.at.seq:
            q = q.core_next
        core.fenced = q
    if q != NULL and q.rules != NULL and q.rules.gate != NULL:
        q.rules.gate.fenced += 1


cdef void entry_settle(channel_t *ch, entry_t *e, uint8_t kind, uint8_t cause) noexcept nogil:
    """Settle a delivery as `kind` says; with a cause, return it instead."""
    cdef place_t t = e.at
    cdef queue_t *q = t.seg.queue
    cdef consumer_t *c = e.consumer
    ASSERT(ch.unacked and t.seg.unacked and q.unacked)
    e.at.seg = NULL
    ch.unacked -= 1
    t.seg.unacked -= 1
    q.unacked -= 1
    if UNLIKELY(q.journal != NULL):
        q.core.actor = c.number if c != NULL else ch.conn.number
    if UNLIKELY(q.rules != NULL) and q.rules.gate != NULL:
        q.rules.gate.channel = ch
        q.rules.gate.delivery = e
        q.rules.gate.consumer = c
    if cause:
        ch.n_returned += 1
        if give_back(&t, cause) == 0:
            mark_dirty(q)
    else:
        q.n_acked += 1
        if UNLIKELY(q.times != NULL):
            note_worked(q, e)
        if UNLIKELY(q.rules != NULL) and kind == REJECTED and (q.rules.gate == NULL or not q.rules.gate.reads):
            kill(&t, REASON_REJECTED)
        else:
            settle(&t, kind)
    if UNLIKELY(q.journal != NULL):
        q.core.actor = 0
    if UNLIKELY(q.rules != NULL) and q.rules.gate != NULL:
        q.rules.gate.channel = NULL
        q.rules.gate.consumer = NULL
    if c != NULL:
        ASSERT(c.unacked and ch.consumed)
        c.unacked -= 1
        ch.consumed -= 1
        if not c.in_ring:
            if UNLIKELY(ch.global_prefetch) and ch.consumers_n > 1:
                waiting_join(c)     # behind those that wait already
            else:
                ring_rejoin(c)
        if UNLIKELY(q.rules != NULL) and q.rules.active == c and c.unacked == 0 and (c.closed or q.rules.draining) \
                and not q.dropped:
            with gil:
                choose_active(q)
    if UNLIKELY(q.ghost and q.unacked == 0):
        with gil:
            release_ghost(q)
    if c != NULL and UNLIKELY(c.closed) and c.unacked == 0:
        with gil:
            forget_cancelled(ch, c)


cdef inline uint64_t tag_of(const channel_t *ch, const entry_t *e) noexcept nogil:
    """The delivery tag of an outstanding delivery."""
    return ch.base_tag + ((<uint64_t>(e - ch.ring) - ch.base_tag) & (ch.ring_capacity - 1))


cdef inline void base_advance(channel_t *ch) noexcept nogil:
    cdef uint32_t mask = ch.ring_capacity - 1
    if ch.unacked == 0 and LIKELY(ch.late == 0):
        ch.base_tag = ch.next_tag
        return
    while ch.base_tag < ch.next_tag and ch.ring[ch.base_tag & mask].at.seg == NULL \
            and not ch.ring[ch.base_tag & mask].late:
        ch.base_tag += 1


cdef inline void advance_base_and_credit(channel_t *ch) noexcept nogil:
    base_advance(ch)
    if UNLIKELY(ch.global_prefetch):
        mark_crediting(ch)


cdef inline bint tag_is_known(channel_t *ch, uint64_t tag, bint multiple) noexcept nogil:
    """Whether the tag is of a delivery that is unacked, or was until it timed out.  Tag 0 with multiple: all of them."""
    cdef entry_t *e
    if tag == 0:
        return multiple
    if tag < ch.base_tag or tag >= ch.next_tag or (ch.unacked == 0 and ch.late == 0):
        return False
    e = &ch.ring[tag & (ch.ring_capacity - 1)]
    return e.at.seg != NULL or e.late


cdef void settle_between(channel_t *ch, uint64_t first, uint64_t last, uint8_t kind, uint8_t cause) noexcept nogil:
    """Settle the deliveries from tag `first` to `last`; with a cause, return them."""
    cdef uint64_t t
    cdef uint32_t mask = ch.ring_capacity - 1
    for t in range(first, last + 1):
        if ch.ring[t & mask].at.seg != NULL:
            entry_settle(ch, &ch.ring[t & mask], kind, cause)
        elif UNLIKELY(ch.late) and ch.ring[t & mask].late:
            if ch.ring[t & mask].late == LATE_FENCED:
                count_fenced(&ch.ring[t & mask], ch.conn.core)
            ch.ring[t & mask].late = False
            ch.late -= 1
            ch.n_late += 1


cdef bint tag_settle(channel_t *ch, uint64_t tag, bint multiple, uint8_t kind, uint8_t cause) noexcept nogil:
    """Settle one delivery, or all up to it (tag 0: all); with a cause, return them.  False: the tag is unknown, and nothing
    is done."""
    cdef uint32_t mask = ch.ring_capacity - 1
    if not multiple and LIKELY(ch.late == 0):
        if tag < ch.base_tag or tag >= ch.next_tag or ch.unacked == 0 or ch.ring[tag & mask].at.seg == NULL:
            return False
        entry_settle(ch, &ch.ring[tag & mask], kind, cause)
        advance_base_and_credit(ch)
        return True
    if not tag_is_known(ch, tag, multiple):
        return False
    if tag == 0:
        tag = ch.next_tag - 1
    if ch.unacked == 0 and LIKELY(ch.late == 0):
        return True
    ch.returning_upto = tag if multiple and cause else 0
    settle_between(ch, ch.base_tag if multiple else tag, tag, kind, cause)
    ch.returning_upto = 0
    advance_base_and_credit(ch)
    return True


cdef bint is_settled_in_pieces(channel_t *ch, uint64_t tag) noexcept nogil:
    """Whether a method that settles all deliveries up to `tag` (0: all) settles so many that others have their turn before
    the last one."""
    if UNLIKELY(ch.settling_upto != 0):         # It has begun.  What is left may be few.
        return True
    if LIKELY(ch.next_tag - ch.base_tag <= SETTLED_AT_ONCE) or ch.conn.core.work_ns == NEVER:
        return False
    return (tag == 0 or tag >= ch.base_tag + SETTLED_AT_ONCE) and tag_is_known(ch, tag, True)


cdef bint settle_piece(channel_t *ch, uint64_t tag, uint8_t kind, uint8_t cause) noexcept nogil:
    """Settle the first of the deliveries up to `tag` (0: those there are now); with a cause, return them.  False: there are
    more, and the same method comes again."""
    cdef int64_t began = monotonic_ns()
    cdef uint64_t last
    if tag == 0:
        # Deliveries that are made between two pieces are not meant.
        tag = ch.settling_upto if ch.settling_upto else ch.next_tag - 1
    last = min(tag, ch.base_tag + SETTLED_AT_ONCE - 1)
    ch.returning_upto = tag if cause else 0
    settle_between(ch, ch.base_tag, last, kind, cause)
    ch.returning_upto = 0
    advance_base_and_credit(ch)
    ch.conn.core.spent += monotonic_ns() - began
    ch.settling_upto = tag if last < tag else 0
    return last == tag


cdef uint32_t claim_between(channel_t *ch, uint64_t first, uint64_t last, uint8_t mark) noexcept nogil:
    """Mark the deliveries from tag `first` to `last` that are outstanding, or were until they timed out, and have no mark.
    Returns how many those are."""
    cdef uint64_t t
    cdef uint32_t n = 0
    cdef entry_t *e
    for t in range(first, last + 1):
        e = &ch.ring[t & (ch.ring_capacity - 1)]
        if e.claimed == 0 and (e.at.seg != NULL or e.late):
            e.claimed = mark
            n += 1
    return n


cdef void settle_claimed(channel_t *ch, uint64_t first, uint64_t last, uint64_t upto, uint8_t mark, uint8_t kind, uint8_t cause) noexcept nogil:
    """Settle the deliveries from tag `first` to `last` that have this mark; with a cause, return them.  Others up to tag
    `upto` follow."""
    cdef uint64_t t
    ch.returning_upto = upto if cause else 0
    for t in range(max(first, ch.base_tag), last + 1):
        if ch.ring[t & (ch.ring_capacity - 1)].claimed == mark:
            settle_between(ch, t, t, kind, cause)
    ch.returning_upto = 0
    advance_base_and_credit(ch)


cdef void return_unclaimed(channel_t *ch, uint64_t first, uint64_t last, uint64_t upto, uint8_t cause) noexcept nogil:
    """Return the deliveries from tag `first` to `last` that have no mark.  Others up to tag `upto` follow."""
    cdef uint64_t t
    if ch.unacked == 0 and LIKELY(ch.late == 0):
        return
    ch.returning_upto = upto
    for t in range(max(first, ch.base_tag), last + 1):
        if ch.ring[t & (ch.ring_capacity - 1)].claimed == 0:
            settle_between(ch, t, t, RETURNED, cause)
    ch.returning_upto = 0
    advance_base_and_credit(ch)


cdef void take_back(channel_t *ch, entry_t *e, uint8_t cause) noexcept nogil:
    """Return a delivery that its client has not settled.  A settlement that still comes for it is ignored and counted.  The
    caller advances the base of the channel's tags, unless it is itself called for a delivery of this channel."""
    entry_settle(ch, e, RETURNED, cause)
    e.late = True
    ch.late += 1


cdef bint return_overdue(channel_t *ch, uint32_t now_ms, list closing) except -1:
    """Return deliveries that consumers of this channel have not settled in time.  A consumer that asks for its channel to be
    closed is appended to `closing` instead.  True if anything returned."""
    cdef uint64_t tag
    cdef uint32_t mask = ch.ring_capacity - 1
    cdef entry_t *e
    cdef consumer_t *c
    cdef bint any_ = False
    for tag in range(ch.base_tag, ch.next_tag if ch.unacked else ch.base_tag):
        e = &ch.ring[tag & mask]
        c = e.consumer
        if e.at.seg == NULL or e.claimed or c == NULL or c.timeout < 0:
            continue
        if <int64_t><uint32_t>(now_ms - e.when) * 1000000 < c.timeout:
            continue
        if c.timeout_closes:
            closing.append(<Consumer>c.owner)
            return any_
        if e.at.seg.queue.rules != NULL:
            e.at.seg.queue.rules.n_timed_out += 1
        take_back(ch, e, CAUSE_TIMEOUT)
        any_ = True
    if any_:
        base_advance(ch)
        mark_crediting(ch)
    return any_


cdef void return_all(channel_t *ch, uint8_t cause) noexcept nogil:
    if ch.unacked:
        tag_settle(ch, 0, True, RETURNED, cause)


cdef bint return_piece(channel_t *ch, uint8_t cause) noexcept nogil:
    """Return the first of the deliveries that are unacked.  False: there are more."""
    cdef uint64_t last = min(ch.next_tag, ch.base_tag + SETTLED_AT_ONCE) - 1
    if ch.unacked == 0 and LIKELY(ch.late == 0):
        return True
    ch.returning_upto = ch.next_tag - 1
    settle_between(ch, ch.base_tag, last, RETURNED, cause)
    ch.returning_upto = 0
    advance_base_and_credit(ch)
    return ch.unacked == 0

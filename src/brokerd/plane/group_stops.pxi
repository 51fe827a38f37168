# Why a group stops although none of its messages is out: its first message waits for a retry, or the group is parked.
#
#    out --give_back, wait_for_retry()--> GROUP_RETRYING until that time     --due, resume_due()--> its turn comes
#        --give_back, park_group()------> GROUP_PARKED until an operator acts --release()---------> its turn comes
#
# All later messages of the group wait behind, and other groups go on.  A group waits until the latest of its messages' times.
# Times and parks stand in the acks files (retry.pxi), so that a start finds them: stops_of() reads them from the messages as
# they are looked at.  place_t.actor of a message that waits is 1 if its retry time stands there.

cdef enum:
    RETRY_IS_NOTED = 1          # place_t.actor of a node's place


cdef void tell_of_group(queue_t *q, place_t *t, uint8_t type_, uint8_t reason) noexcept nogil:
    """Write into the order journal that the message's group was parked or released."""
    if UNLIKELY(q.journal != NULL):
        prepare_event(t.seg)
        event_put(t.seg, t.seq, next_ts(q), q.core.actor, 0, t.count, type_, reason)


# ---- retries

cdef void groups_alarm(groups_t *gs, int64_t earliest) noexcept nogil:
    """Have due() called when the first group is due, and not before `earliest`, in ns."""
    cdef gate_t *gate = &gs.gate
    gate.deadline = NEVER
    if gs.retry.due.n:
        gate.deadline = gs.retry.due.heap[0].when * 1000000
    if gs.turns[IDLE_TURNS].first:
        gate.deadline = min(gate.deadline, group_at(&gs.pool, gs.turns[IDLE_TURNS].first).until)
    if gate.deadline != NEVER:
        gate.deadline = max(gate.deadline, earliest)
        gate.queue.rules.expires = True
        deadline_bring_forward(gate.queue, gate.deadline)


cdef void hasten_retries(groups_t *gs, int64_t latest) noexcept nogil:
    """No group waits longer than until then, in ms."""
    cdef size_t i
    cdef due_t *one
    cdef group_t *g
    for i in range(gs.retry.due.n):
        one = &gs.retry.due.heap[i]
        if one.when > latest:
            g = group_at(&gs.pool, <uint32_t>one.seq)
            if g.state & GROUP_RETRYING and g.until == one.when * 1000000:
                g.until = latest * 1000000
            one.when = latest           # Still a heap, but for the order of equal times, which does not matter.


cdef void groups_check_clock(groups_t *gs) noexcept nogil:
    """If the clock was set back, no group waits longer than the longest delay from now."""
    cdef int64_t now = gs.gate.queue.core.now
    if UNLIKELY(now < gs.retry.latest - RETRY_SLACK):
        hasten_retries(gs, now // 1000000 + gs.retry.most)
        groups_alarm(gs, 0)
    gs.retry.latest = now


cdef bint wait_for_retry(groups_t *gs, uint32_t number, int64_t when) noexcept nogil:
    """The group waits until that time, in ms, or longer.  False: no memory, and it does not wait."""
    cdef group_t *g = group_at(&gs.pool, number)
    if g.state & GROUP_RETRYING and g.until >= when * 1000000:
        return True
    if due_push(&gs.retry.due, when, number) != 0:
        return False
    g.state |= GROUP_RETRYING
    g.until = when * 1000000
    if gs.retry.due.heap[0].when == when:
        groups_alarm(gs, 0)
    return True


cdef void end_retry(groups_t *gs, uint32_t number) noexcept nogil:
    """The group does not wait for a retry any more: for rare callers, because it looks at all times."""
    cdef group_t *g = group_at(&gs.pool, number)
    if g.state & GROUP_RETRYING:
        g.state &= ~<uint16_t>GROUP_RETRYING
        due_remove(&gs.retry.due, number)


cdef void resume_due(groups_t *gs) noexcept nogil:
    """The turn comes of groups that have waited for their time."""
    cdef int64_t now = gs.gate.queue.core.now // 1000000
    cdef group_t *g
    cdef due_t one
    cdef int n
    for n in range(RETRY_WAKES):
        if gs.retry.due.n == 0 or gs.retry.due.heap[0].when > now:
            break
        one = due_pop(&gs.retry.due)
        g = group_at(&gs.pool, <uint32_t>one.seq)
        if g.state & GROUP_RETRYING and g.until == one.when * 1000000:
            g.state &= ~<uint16_t>GROUP_RETRYING
            settle_turn(gs, <uint32_t>one.seq)
    dues_shrink(&gs.retry.due)


# ---- parks

cdef void park_group(groups_t *gs, uint32_t number, place_t *t) noexcept nogil:
    """Park the group of a message that has failed too often, and is listed and noted as parked."""
    cdef group_t *g = group_at(&gs.pool, number)
    if not g.state & GROUP_PARKED:
        g.state |= GROUP_PARKED
        tell_of_group(gs.gate.queue, t, GROUP_PARKED_EVENT, REASON_LIMIT)


cdef bint unpark(groups_t *gs, uint32_t number) noexcept nogil:
    """No message of the group that waits is parked on disk any more, nor waits for its time.  False: a segment cannot be read.

    Messages that were out are its first, so the walk ends at the first that was not, unless some were redriven."""
    cdef group_t *g = group_at(&gs.pool, number)
    cdef uint32_t at = g.first
    cdef node_t *node
    cdef place_t *t
    while at:
        node = node_at(&gs.pool, at)
        if not node.seg & NODE_HAS_PLACE:
            if not gs.redriven:
                break
            at = node.next
            continue
        t = <place_t *>(node.seg - NODE_HAS_PLACE)
        if t.flags & PLACE_PARKED or t.actor == RETRY_IS_NOTED:
            if seg_map(t.seg) != 0:
                return False
            t.flags &= ~<uint8_t>PLACE_PARKED
            t.actor = 0
            note_aside(t, t.count)
        at = node.next
    return True


# ---- a message that waits goes without having been handed out

cdef uint64_t drop_first(groups_t *gs, uint32_t number, uint8_t kind) noexcept nogil:
    """Settle the group's first message that waits; its number.  One that is taken out, and at which the group was parked,
    dies of its delivery limit; one that is too many dies of the queue's length.  0: none waits, or it cannot be read."""
    cdef group_t *g = group_at(&gs.pool, number)
    cdef place_t t
    if g.first == 0 or seg_map(segment_of_node(node_at(&gs.pool, g.first))) != 0:
        return 0
    place_of_node(node_at(&gs.pool, g.first), &t)
    unlist_first(gs, g, &t)
    if g.state & GROUP_PARKED:
        park_first(gs, number)          # Before its predecessor is gone.
    if kind != DROPPED | REASON_LENGTH << 4:
        end_retry(gs, number)
    if kind == DROPPED | REASON_REMOVED << 4 and is_at_stop(gs.gate.queue.rules, &t):
        let_aside_die(&t, REASON_LIMIT)
        return t.seq
    if kind == DROPPED | REASON_LENGTH << 4:
        let_aside_die(&t, REASON_LENGTH)
        settle_turn(gs, number)
        return t.seq
    t.seg.aside -= 1
    settle(&t, kind)
    if kind == PURGED:
        settle_turn(gs, number)
    return t.seq


# ---- after a start

cdef int64_t stops_of(groups_t *gs, store_t *st, place_t *t) noexcept nogil:
    """What the acks file says of a message from before the start that was found: the time in ms until which it waits, or 0.
    It gets PLACE_PARKED if its group is to be parked at it."""
    cdef queue_t *q = st.queue
    cdef const last_entry_t *last
    if t.flags & (PLACE_WAS_OUT | PLACE_OUT_SINCE_START) != PLACE_WAS_OUT or is_returned(st, t):
        return 0
    last = entry_from_before(st, t)
    if not t.flags & PLACE_PARKED and was_stopped(q, last, t):
        t.flags |= PLACE_PARKED
        tell_of_group(q, t, GROUP_PARKED_EVENT, REASON_LIMIT)
    return 0 if t.flags & PLACE_PARKED else retry_due_of(&gs.retry, last, q)


# ---- for tests

cdef bint group_is_sound(groups_t *gs, group_t *g) noexcept nogil:
    """Its messages are in order and as many as it says; those that are parked, or wait for their time, are the first."""
    cdef uint32_t at = g.first, n = 0
    cdef uint64_t number, before = 0
    cdef bint plain = False
    cdef node_t *node
    cdef place_t *t
    while at:
        node = node_at(&gs.pool, at)
        number = number_of_node(node)
        if number and not g.state & GROUP_FREE:
            if number < before or (number == before and not gs.redriven):
                return False
            before = number
        if node.seg & NODE_HAS_PLACE:
            t = <place_t *>(node.seg - NODE_HAS_PLACE)
            if plain and not gs.redriven and (t.flags & PLACE_PARKED or t.actor == RETRY_IS_NOTED):
                return False
        else:
            plain = True
        n += 1
        at = node.next
    return n == g.waiting


cdef bint groups_is_sound(gate_t *gate) noexcept nogil:
    cdef groups_t *gs = <groups_t *>gate
    cdef uint64_t waiting = 0, retrying = 0, timed = 0
    cdef uint32_t number
    cdef size_t i
    cdef group_t *g
    for number in range(1, gs.pool.groups_n):
        g = group_at(&gs.pool, number)
        if g.state & GROUP_KNOWN:
            if not group_is_sound(gs, g):
                return False
            waiting += g.waiting
            retrying += g.state & GROUP_RETRYING != 0
            if g.state & GROUP_STOPS and g.in_turns > IDLE_TURNS + 1:
                return False
    if not dues_are_sound(&gs.retry.due):
        return False
    for i in range(gs.retry.due.n):
        g = group_at(&gs.pool, <uint32_t>gs.retry.due.heap[i].seq)
        if g.state & GROUP_RETRYING and g.until == gs.retry.due.heap[i].when * 1000000:
            timed += 1
    return waiting == gs.pool.nodes_live and waiting == gate.waiting and waiting == gate.held and timed >= retrying

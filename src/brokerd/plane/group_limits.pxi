# Takes messages that wait out of their groups, many at a time: a length limit drops the oldest, a purge drops all, and
# another rule makes all ready again.
#
#    groups_drop     the oldest message of all, by a heap of the first messages of all groups
#    groups_part_with one message, wherever it waits
#    groups_purge    group by group, in pieces: groups_t.walked says how far it has come
#    unlist_some     the same walk; all is ready again, at its own place

cdef enum:
    PARTED_LOOKS = 16384        # messages of a group that groups_part_with() looks at: some 50 us


cdef bint list_oldest(groups_t *gs) noexcept nogil:
    """Find the first message of each group, for groups_drop().  False: no memory."""
    cdef uint32_t number
    cdef group_t *g
    gs.oldest.n = 0
    for number in range(1, gs.pool.groups_n):
        g = group_at(&gs.pool, number)
        if g.state & GROUP_KNOWN and g.first and due_push(&gs.oldest, age_of(node_at(&gs.pool, g.first)), number) != 0:
            return False
    gs.drops = True
    return True


cdef bint groups_drop(gate_t *gate) noexcept nogil:
    """The oldest message that waits, of the lowest level, dies of the queue's length.  False: none waits, or it cannot be
    read now.

    Each group with messages that wait has an entry in `oldest`, with the age of its first message or of an earlier one."""
    cdef groups_t *gs = <groups_t *>gate
    cdef uint32_t number
    cdef group_t *g
    cdef due_t one
    cdef int64_t age
    if (not gs.drops or gs.oldest.n > 2 * <size_t>gs.pool.live + 1024) and not list_oldest(gs):
        return False
    while gs.oldest.n:
        one = gs.oldest.heap[0]
        number = <uint32_t>one.seq
        g = group_at(&gs.pool, number)
        if not g.state & GROUP_KNOWN or g.first == 0:
            due_pop(&gs.oldest)
            continue
        age = age_of(node_at(&gs.pool, g.first))
        if age != one.when:
            due_pop(&gs.oldest)
            if age > one.when and due_push(&gs.oldest, age, number) != 0:
                return False
            continue
        return drop_first(gs, number, DROPPED | REASON_LENGTH << 4) != 0
    return False


cdef bint find_record(queue_t *q, uint64_t seq, place_t *t) noexcept nogil:
    """Find where message `seq` stands, settled or not.  False: its segment is gone, or cannot be read."""
    cdef store_t *st = NULL
    cdef seg_t *s
    cdef uint32_t position
    while True:
        st = next_store(q, st)
        if st == NULL:
            return False
        s = st.first
        while s != NULL and s.next != NULL and s.next.base_seq <= seq:
            s = s.next
        if s == NULL or s.base_seq > seq or s.damaged or seg_map(s) != 0:
            continue
        position = find_anchor_before(s, seq)
        while position < s.end and le32(s.map + position) == RECORD_MAGIC and seq_of(s.map + position) < seq:
            position += room_of(s.map + position)
        if position < s.end and le32(s.map + position) == RECORD_MAGIC and seq_of(s.map + position) == seq:
            memset(t, 0, sizeof(place_t))
            t.seg = s
            t.position = position
            return True


cdef bint groups_part_with(gate_t *gate, uint64_t seq, place_t *t) noexcept nogil:
    cdef groups_t *gs = <groups_t *>gate
    cdef message_t m
    cdef group_key_t key
    cdef place_t record
    cdef node_t *node
    cdef group_t *g
    cdef uint32_t number, at, before = 0, looks
    if not find_record(gate.queue, seq, &record):
        return False
    message_of(record.seg.map + record.position, &m)
    find_group_key(&gs.rule, &m, &key)
    number = find_known_group(gs, &key, record.seg.store.level)
    if number == 0:
        return False
    g = group_at(&gs.pool, number)
    at = g.first
    for looks in range(PARTED_LOOKS):
        if at == 0:
            return False
        node = node_at(&gs.pool, at)
        place_at_node(node, t)
        if t.seg == record.seg and t.position == record.position:
            t.seq = seq
            unlist(gs, g, at, before, t)
            if before == 0 and g.state & GROUP_PARKED:
                park_first(gs, number)
            settle_turn(gs, number)
            return True
        before = at
        at = node.next
    return False


cdef uint32_t groups_purge(gate_t *gate, uint32_t most) noexcept nogil:
    """Drop up to so many messages that wait; how many were.  Nothing keeps their groups any more.

    The walk ends with the last message: a group behind, whose messages a length limit has dropped, keeps its state and its
    time.  So times stay; those that do not count any more are skipped when they are due."""
    cdef groups_t *gs = <groups_t *>gate
    cdef uint32_t n = 0
    cdef group_t *g
    while n < most and gate.waiting:
        gs.walked = max(gs.walked, <uint32_t>1)
        if gs.walked >= gs.pool.groups_n:
            break
        g = group_at(&gs.pool, gs.walked)
        if g.state & GROUP_KNOWN:
            g.state &= ~<uint16_t>(GROUP_PARKED | GROUP_RETRYING)
            if drop_first(gs, gs.walked, PURGED):
                n += 1
                continue
            settle_turn(gs, gs.walked)
        gs.walked += 1
    if n < most:
        gs.walked = 0
    if gs.pool.live == 0:
        dues_free(&gs.retry.due)
    return n


cdef bint unlist_some(groups_t *gs, uint32_t most) noexcept nogil:
    """Make messages that wait ready again, at their own places, at most so many.  True: no other is left, but for those that
    find no memory: they stay, and are ready after a restart.  Between two calls nothing may go out."""
    cdef gate_t *gate = &gs.gate
    cdef group_t *g
    cdef place_t t
    if gs.walked == 0:
        dues_free(&gs.retry.due)
        gs.walked = 1
    while gs.walked < gs.pool.groups_n:
        g = group_at(&gs.pool, gs.walked)
        while g.first:
            if most == 0:
                return False
            most -= 1
            seg_map(segment_of_node(node_at(&gs.pool, g.first)))
            place_of_node(node_at(&gs.pool, g.first), &t)
            if return_from_aside(&t) != 0:
                break
            group_unlist(&gs.pool, g, g.first, 0)
            gate.held -= 1
            count_wait_time(gs)
            uncount_waiting(&t)
        if g.state & GROUP_KNOWN:
            g.state &= ~<uint16_t>(GROUP_PARKED | GROUP_RETRYING)
            settle_turn(gs, gs.walked)
        gs.walked += 1
    gs.walked = 0
    mark_dirty(gate.queue)
    return True

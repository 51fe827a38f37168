# The gate of a queue with message groups: order within each group holds while many consumers work.
#
#    exclusive   one unit of work of a group is out at a time (or `most`, all with one consumer)
#    sticky      a group is pinned to one consumer, which may hold as many of its messages as its credit lets it
#
#    ready --take_fresh()--> out                  its group has nothing before it, and may go to this consumer
#                        --> waits in its group   (node_t, aside)
#    waits --take_open()---> out                  in the turn of its group
#    out ----give_back()---> waits, before all later ones of its group, which return too where they are out
#
# take() alternates between groups whose turn it is (`turns`) and fresh messages, so that neither keeps the other waiting.
# A group stands in a list of turns just when its first message could go out: in that of its owner, or in the shared one.
# Each list is first come first served; there is one for each priority level, and a group has the level of its first
# message.  With priorities, fresh messages are all scanned before one goes out: else a later, more urgent message of a group
# would go before an earlier one.
#
# Each time that a group gets an owner, the owner gets a token, higher than all before.  Tokens begin with the time, so that
# they rise over restarts.  A delivery that returned with its group is fenced: its settlement comes late, and is ignored.

cdef enum:
    GROUP_LOOKS = 64            # messages that one call of take() looks at
    FENCE_LOOKS = 1024          # deliveries that a return looks at before its time counts


# ---- a message goes out

cdef void tell_token(const group_t *g, consumer_t *c, place_t *t) noexcept nogil:
    """Write into the order journal the token that this delivery tells to the group's new owner: 56 bits of it."""
    event_put(t.seg, t.seq, next_ts(t.seg.queue), c.number, <uint32_t>g.token, <uint16_t>(g.token >> 32), TOKEN_EVENT,
              <uint8_t>(g.token >> 48))


cdef void go_out(groups_t *gs, uint32_t number, consumer_t *c, place_t *t, bint closes) noexcept nogil:
    """The message, the first of its group, was taken for c."""
    cdef group_t *g
    cdef uint32_t owner = c.at_gate if c != NULL else 0
    gs.taken = t.seq
    gs.taken_group = t.actor = number
    gs.taken_told = gs.gate.tells = gs.owners[owner].told
    if number == 0:
        return
    g = group_at(&gs.pool, number)
    if g.state & GROUP_FREE:
        gs.taken_group = t.actor = 0
        return
    if g.inflight == 0 and g.owner == 0:
        own(gs, g, owner)
    g.inflight += 1
    if closes and gs.mode == STICKY:
        g.state |= GROUP_CLOSING
    gs.taken_first = g.state & GROUP_CHANGED != 0
    g.state &= ~<uint16_t>GROUP_CHANGED
    if UNLIKELY(gs.taken_told and gs.taken_first) and gs.gate.queue.journal != NULL:
        tell_token(g, c, t)


cdef int take_fresh(groups_t *gs, store_t *st, consumer_t *c, place_t *t) noexcept nogil:
    """Take the message that find_next() found, or let it wait: TAKE_DONE, TAKE_LATER.  TAKE_NOTHING: no memory."""
    cdef uint32_t number, owner = c.at_gate if c != NULL else 0, fewest
    cdef bint closes
    cdef group_t *g
    cdef int64_t when = 0
    if find_group(gs, t, &number, &closes) != 0:
        return TAKE_NOTHING
    if number == 0:
        take_head(st, t)
        go_out(gs, 0, c, t, False)
        return TAKE_DONE
    g = group_at(&gs.pool, number)
    if UNLIKELY(t.flags & PLACE_WAS_OUT):
        when = stops_of(gs, st, t)
    if g.first == 0 and not t.flags & PLACE_PARKED and when == 0 and may_have(gs, g, owner):
        fewest = owner
        if gs.mode == STICKY and owner and g.owner == 0:
            fewest = owner_with_fewest(gs, c)
        if fewest == owner:
            leave_turns(gs, number)
            take_head(st, t)
            go_out(gs, number, c, t, closes)
            return TAKE_DONE
        own(gs, g, fewest)
    if let_fresh_wait(gs, st, number, t, when != 0) != 0:
        if g.first == 0:
            settle_turn(gs, number)
        return TAKE_NOTHING
    if when:
        wait_for_retry(gs, number, when)
    if when or g.state & GROUP_PARKED or g.in_turns <= IDLE_TURNS + 1 or t.seg.store.level:
        settle_turn(gs, number)
    return TAKE_LATER


cdef int take_first(groups_t *gs, uint32_t number, consumer_t *c, place_t *t) noexcept nogil:
    """Take the first message of a group whose turn it is: TAKE_DONE.  TAKE_LATER: it has expired.  TAKE_NOTHING: it cannot
    be read now."""
    cdef group_t *g = group_at(&gs.pool, number)
    cdef queue_t *q = gs.gate.queue
    cdef node_t *node = node_at(&gs.pool, g.first)
    cdef message_t m
    cdef group_key_t key
    if seg_map(segment_of_node(node)) != 0:
        return TAKE_NOTHING
    place_of_node(node, t)
    if UNLIKELY(le32(t.seg.map + t.position) != RECORD_MAGIC):
        mark_lost(q)
        return TAKE_NOTHING
    if q.rules.expires and place_expires_at(t) < q.core.now:
        unlist_first(gs, g, t)
        let_aside_die(t, REASON_EXPIRED)
        return TAKE_LATER
    key.closes = False
    if gs.mode == STICKY and gs.rule.by == GROUP_BY_HEADER:
        message_of(t.seg.map + t.position, &m)
        find_group_key(&gs.rule, &m, &key)
    unlist_first(gs, g, t)
    take_from_aside(t)                  # It is mapped: no error.
    go_out(gs, number, c, t, key.closes)
    return TAKE_DONE


cdef int take_turn(groups_t *gs, uint32_t which, consumer_t *c, place_t *t) noexcept nogil:
    """Take a message of the group that is first in this list of turns: TAKE_DONE.  TAKE_LATER: that group went elsewhere."""
    cdef uint32_t number = gs.turns[which].first, owner = c.at_gate if c != NULL else 0, fewest
    cdef group_t *g = group_at(&gs.pool, number)
    cdef int took
    gs.gate.looked += 1
    leave_turns(gs, number)
    if not may_have(gs, g, owner):
        settle_turn(gs, number)
        return TAKE_LATER
    if gs.mode == STICKY and owner and g.owner == 0 and not g.state & GROUP_FREE:
        fewest = owner_with_fewest(gs, c)
        if fewest != owner:
            own(gs, g, fewest)
            settle_turn(gs, number)
            return TAKE_LATER
    took = take_first(gs, number, c, t)
    settle_turn(gs, number)
    return took


cdef int take_open(groups_t *gs, consumer_t *c, place_t *t) noexcept nogil:
    """Take the first message of a group whose turn it is: TAKE_DONE, TAKE_NOTHING.  TAKE_LATER: it looked at enough."""
    cdef uint32_t owner = c.at_gate if c != NULL else 0, which, level, i, looks
    cdef int took
    if gs.gate.open == 0:
        return TAKE_NOTHING
    gs.flip = not gs.flip
    for level in range(gs.levels, 0, -1):
        for i in range(2):
            which = SHARED_TURNS + (owner if (i == 0) == gs.flip else 0) * gs.levels + level - 1
            looks = 0
            while gs.turns[which].first:
                took = take_turn(gs, which, c, t)
                if took != TAKE_LATER:
                    return took
                looks += 1
                if looks == GROUP_LOOKS:
                    return TAKE_LATER
    return TAKE_NOTHING


cdef store_t *find_oldest(queue_t *q, place_t *t) noexcept nogil:
    """find_next() for the lowest sequence number of all levels."""
    cdef store_t *st
    cdef store_t *best
    cdef place_t one
    while True:
        st = best = NULL
        while True:
            st = next_store(q, st)
            if st == NULL:
                break
            if st.ready and find_head(st, &one) and (best == NULL or one.seq < t.seq):
                best = st
                t[0] = one
        if best == NULL:
            return NULL
        if q.rules.expires and place_expires_at(t) < q.core.now:
            kill_head(best, t, REASON_EXPIRED)
        elif UNLIKELY(t.flags & (PLACE_WAS_OUT | PLACE_OUT_SINCE_START) == PLACE_WAS_OUT) and is_at_delivery_limit(q.rules, t):
            kill_head(best, t, REASON_LIMIT)
        else:
            return best


cdef bint scan_some(groups_t *gs, uint32_t most, uint64_t upto) noexcept nogil:
    """Let fresh messages below `upto` wait in their groups, at most so many, by sequence number.  False: more are ready."""
    cdef queue_t *q = gs.gate.queue
    cdef store_t *st
    cdef place_t t
    cdef uint32_t number
    cdef bint closes
    cdef int64_t when
    while most:
        st = find_oldest(q, &t)
        if st == NULL or t.seq >= upto:
            return True
        if find_group(gs, &t, &number, &closes) != 0:
            return False
        if number == 0:
            number = free_group_of(gs, 0)
        if number == 0:
            return False
        when = stops_of(gs, st, &t) if UNLIKELY(t.flags & PLACE_WAS_OUT) and not group_at(&gs.pool, number).state & GROUP_FREE else 0
        if let_fresh_wait(gs, st, number, &t, when != 0) != 0:
            return False
        if when:
            wait_for_retry(gs, number, when)
        settle_turn(gs, number)
        gs.gate.looked += 1
        most -= 1
    return q.ready == 0


cdef bint look_before_others(groups_t *gs) noexcept nogil:
    """Before a message goes out that was redriven, all earlier ones of its group must be known: those that a start found stand
    in no group yet.  So must those that were replayed, before later ones.  False: more are to be looked at."""
    if gs.pool.nodes_live < gs.waiting_most and not scan_some(gs, GROUP_LOOKS, gs.look_upto):
        return False
    gs.look_upto = 0
    return True


cdef int groups_take(gate_t *gate, consumer_t *c, place_t *t) noexcept nogil:
    cdef groups_t *gs = <groups_t *>gate
    cdef store_t *st
    cdef uint32_t looks
    cdef int took = TAKE_NOTHING
    cdef bint full = False
    if UNLIKELY(gs.retry.due.n != 0):
        groups_check_clock(gs)
    if UNLIKELY(gs.look_upto != 0) and not look_before_others(gs):
        return TAKE_LATER
    if gs.levels > 1:
        if gs.pool.nodes_live < gs.waiting_most and not scan_some(gs, GROUP_LOOKS, <uint64_t>NEVER) and gate.queue.ready:
            return TAKE_LATER
        took = take_open(gs, c, t)
        return TAKE_OTHERS if took == TAKE_NOTHING and gate.open else took
    if gs.turn_of_open:
        gs.turn_of_open = False
        took = take_open(gs, c, t)
        if took == TAKE_DONE:
            return took
    for looks in range(GROUP_LOOKS):
        if UNLIKELY(gs.pool.nodes_live >= gs.waiting_most):
            full = True
            break
        st = find_next(gate.queue, t)
        if st == NULL:
            break
        gate.looked += 1
        took = take_fresh(gs, st, c, t)
        if took == TAKE_DONE:
            gs.turn_of_open = True
            return took
        if took == TAKE_NOTHING:
            break
    took = take_open(gs, c, t)
    if took != TAKE_NOTHING:
        return took
    if gate.queue.ready and not full:
        return TAKE_LATER
    return TAKE_OTHERS if gate.open else TAKE_NOTHING


# ---- what becomes of a message that went out

cdef void landed(groups_t *gs, uint32_t number) noexcept nogil:
    """One message of the group is not out any more."""
    cdef group_t *g = group_at(&gs.pool, number)
    ASSERT(g.inflight)
    g.inflight -= 1
    settle_turn(gs, number)


cdef inline void fetch_groups_ahead(groups_t *gs, const channel_t *ch, const entry_t *e) noexcept nogil:
    """Deliveries are mostly settled one after the other.  Have the processor fetch the group of the one after the next, and
    the slot of the next one's, which is there by now: else each settlement waits for both."""
    cdef uint32_t at = <uint32_t>(e - ch.ring), mask = ch.ring_capacity - 1
    cdef uint32_t next_ = ch.ring[(at + 1) & mask].at.actor, second = ch.ring[(at + 2) & mask].at.actor
    cdef const group_t *g
    if second < gs.pool.groups_n:       # An entry may be of another queue, or old.
        g = group_at(&gs.pool, second)
        prefetch_octets(g, 1)
        prefetch_octets(&g.state, 1)
    if next_ < gs.pool.groups_n:
        g = group_at(&gs.pool, next_)
        prefetch_octets(gs.pool.slots + (<uint32_t>(g.hash >> 32) & gs.pool.mask), 1)


cdef bint groups_settle(gate_t *gate, place_t *t, uint8_t kind) noexcept nogil:
    cdef groups_t *gs = <groups_t *>gate
    cdef uint32_t number = 0
    if gs.deaths_n and death_take(gs, t.seq, &number):
        pass
    elif gate.channel != NULL:
        number = t.actor
        fetch_groups_ahead(gs, gate.channel, gate.delivery)
    elif t.seq == gs.taken:
        number = gs.taken_group
    if t.seq == gs.taken:
        gs.taken = 0                    # If it is replayed, and purged, it has not been taken again.
    if number:
        landed(gs, number)
    return False


cdef void groups_dying(gate_t *gate, place_t *t) noexcept nogil:
    """The next of the group waits until the letter is stored."""
    cdef groups_t *gs = <groups_t *>gate
    cdef uint32_t number = 0
    cdef bint closes
    if gate.channel != NULL:
        number = t.actor
    elif seg_map(t.seg) == 0 and find_group(gs, t, &number, &closes) == 0 and number:
        if group_at(&gs.pool, number).state & GROUP_FREE:
            settle_turn(gs, number)
            return
        group_at(&gs.pool, number).inflight += 1
        settle_turn(gs, number)
    if number and not death_add(gs, t.seq, number):
        landed(gs, number)


cdef void fence_between(groups_t *gs, uint32_t number, channel_t *ch, uint64_t first, uint64_t end, uint64_t place,
                        uint8_t cause) noexcept nogil:
    cdef group_t *g = group_at(&gs.pool, number)
    cdef uint64_t tag
    cdef entry_t *e
    for tag in range(first, end):
        if g.inflight == 1:             # No other message of the group is out.
            return
        e = &ch.ring[tag & (ch.ring_capacity - 1)]
        if e.at.seg == NULL or e.at.actor != number or e.at.seg.queue != gs.gate.queue or number_of_place(gs, &e.at) < place \
                or e.claimed:
            continue
        take_back(ch, e, cause)
        e.late = LATE_FENCED
        e.at.seq = <uint64_t><size_t>gs.gate.queue


cdef void fence(groups_t *gs, uint32_t number, channel_t *ch, uint64_t place, uint8_t cause) noexcept nogil:
    """Take back the deliveries of later messages of a group, of which an earlier one returns: their consumer may not settle
    them before it."""
    cdef uint64_t own = tag_of(ch, gs.gate.delivery), first = max(ch.base_tag, ch.returning_upto + 1)
    cdef int64_t began = monotonic_ns() if ch.next_tag - ch.base_tag > FENCE_LOOKS else 0
    gs.fencing = True
    fence_between(gs, number, ch, max(first, own + 1), ch.next_tag, place, cause)
    if UNLIKELY(gs.disordered):         # Else later messages went out later.
        fence_between(gs, number, ch, first, own, place, cause)
    gs.fencing = False
    if began:                           # One read may bring thousands of basic.nack.
        gs.gate.queue.core.spent += monotonic_ns() - began


cdef bint groups_give_back(gate_t *gate, place_t *t, uint8_t cause) noexcept nogil:
    cdef groups_t *gs = <groups_t *>gate
    cdef uint32_t number = t.actor
    cdef channel_t *ch = gate.channel
    cdef group_t *g
    cdef int64_t delay = 0
    cdef bint stops
    if t.seq == gs.taken:
        gs.taken = 0
    if number == 0:
        return False
    g = group_at(&gs.pool, number)
    stops = cause != 0 and is_at_stop(gate.queue.rules, t)
    t.flags |= PLACE_PASSED | (PLACE_PARKED if stops or g.state & GROUP_PARKED else 0)
    if cause and gs.retry.causes and not gs.fencing and not t.flags & PLACE_PARKED:
        groups_check_clock(gs)
        delay = retry_delay(&gs.retry, t, cause)
    t.actor = RETRY_IS_NOTED if delay else 0
    if let_wait(gs, number, t, False) != 0:
        landed(gs, number)
        return False
    if delay:
        note_retry(t, cause, delay, retry_time(gate.queue, delay))
        t.seg.aside += 1
        wait_for_retry(gs, number, retry_time(gate.queue, delay))
    elif t.flags & PLACE_PARKED:
        park_from_first(gs, number)
        note_parked(t)                  # The only entry: with a second one a crash between them could release it.
        t.seg.aside += 1
        if stops:
            park_group(gs, number, t)
    else:
        put_aside(t, t.count)
    if cause == 0:
        uncount_octets(gate.queue, t.seg.map + t.position)
    elif g.inflight > 1 and cause != CAUSE_CHANNEL and cause != CAUSE_CONNECTION and not gs.fencing:
        fence(gs, number, ch, number_of_place(gs, t), cause)
    landed(gs, number)
    return True


# ---- a message comes

cdef bint groups_admits(gate_t *gate, message_t *m) noexcept nogil:
    cdef groups_t *gs = <groups_t *>gate
    cdef group_key_t key
    if gs.keyless != KEYLESS_REJECT:
        return True
    find_group_key(&gs.rule, m, &key)
    gs.refused += key.at == NULL
    return key.at != NULL


cdef void groups_replayed(gate_t *gate, place_t *t) noexcept nogil:
    """A later message of its group may wait: the replayed one is to be listed before that one goes out."""
    cdef groups_t *gs = <groups_t *>gate
    gs.look_upto = max(gs.look_upto, t.seq + 1)
    gs.disordered = True


cdef uint32_t groups_headers(gate_t *gate, place_t *t, uint8_t *room) noexcept nogil:
    """x-group-id, x-group-seq, x-group-token and x-group-first, for a consumer that asks for them."""
    cdef groups_t *gs = <groups_t *>gate
    cdef uint8_t *p = room
    cdef group_t *g
    if not gs.taken_told or t.seq != gs.taken or gs.taken_group == 0:
        return 0
    g = group_at(&gs.pool, gs.taken_group)
    if UNLIKELY(gs.redriven) and was_redriven(t.seg.map + t.position):
        pass                            # It has the first two as headers of its own.
    else:
        p += write_group_headers(p, key_of_group(g) if g.key_n <= 255 else NULL, g.key_n, t.seq)
    memcpy(p, b"\x0dx-group-tokenl", 15)
    put_be64(p + 15, g.token)
    p += 23
    memcpy(p, b"\x0dx-group-firstt", 15)
    p[15] = gs.taken_first
    return <uint32_t>(p + 16 - room)


cdef uint32_t groups_letter(gate_t *gate, place_t *t, uint8_t *room) noexcept nogil:
    """x-group-id and x-group-seq, for a dead letter."""
    cdef groups_t *gs = <groups_t *>gate
    cdef message_t m
    cdef group_key_t key
    if seg_map(t.seg) != 0:
        return 0
    message_of(t.seg.map + t.position, &m)
    find_group_key(&gs.rule, &m, &key)
    if key.at == NULL:
        if gs.keyless != KEYLESS_SINGLE:
            return 0
        key.at = <const uint8_t *>key.digits
    return write_group_headers(room, key.at, key.n, number_in_group(t.seg.map + t.position))


# ---- consumers come and go

cdef bint asks_for_info(consumer_t *c) noexcept with gil:
    arguments = (<Consumer>c.owner).arguments
    return bool(arguments) and arguments.get("x-group-info") is True


cdef uint32_t find_owner_place(groups_t *gs) noexcept nogil:
    """A free place among the owners, with its lists of turns; 0: no memory."""
    cdef uint32_t i, capacity = gs.owners_capacity
    cdef void *more
    for i in range(1, gs.owners_n):
        if gs.owners[i].c == NULL and gs.owners[i].held == 0:
            return i
    if gs.owners_n == capacity:
        more = realloc(gs.owners, 2 * <size_t>capacity * sizeof(owner_t))
        if more == NULL:
            return 0
        gs.owners = <owner_t *>more
        more = realloc(gs.turns, (SHARED_TURNS + 2 * <size_t>capacity * gs.levels) * sizeof(turns_t))
        if more == NULL:
            return 0
        gs.turns = <turns_t *>more
        memset(gs.turns + SHARED_TURNS + capacity * gs.levels, 0, capacity * gs.levels * sizeof(turns_t))
        gs.owners_capacity = 2 * capacity
    gs.owners_n += 1
    gs.owners[gs.owners_n - 1].c = NULL
    gs.owners[gs.owners_n - 1].held = 0
    return gs.owners_n - 1


cdef void groups_join(gate_t *gate, consumer_t *c) noexcept nogil:
    cdef groups_t *gs = <groups_t *>gate
    c.at_gate = find_owner_place(gs)        # Without memory it gets what basic.get gets.
    if c.at_gate:
        gs.owners[c.at_gate].c = c
        gs.owners[c.at_gate].told = asks_for_info(c)


cdef void groups_leave(gate_t *gate, consumer_t *c) noexcept nogil:
    """Groups of which nothing is out are anyone's; the others stay locked until all of theirs is settled or has returned."""
    cdef groups_t *gs = <groups_t *>gate
    cdef uint32_t level, owner = c.at_gate
    c.at_gate = 0
    if owner == 0:
        return
    gs.owners[owner].c = NULL
    for level in range(gs.levels):
        while turns_of(gs, owner, level).first:
            settle_turn(gs, turns_of(gs, owner, level).first)


cdef void groups_due(gate_t *gate) noexcept nogil:
    """Groups go on that have waited for a retry.  Groups that were idle for long lose their owners."""
    cdef groups_t *gs = <groups_t *>gate
    cdef group_t *g
    cdef uint32_t number, n
    groups_check_clock(gs)
    resume_due(gs)
    for n in range(RETRY_WAKES):
        number = gs.turns[IDLE_TURNS].first
        if number == 0:
            break
        g = group_at(&gs.pool, number)
        if g.until > gate.queue.core.now and not has_left(gs, g):
            break
        leave_turns(gs, number)
        disown(gs, g)
        settle_turn(gs, number)
    # What is due by now goes on in the next turn.
    groups_alarm(gs, gate.queue.core.now + 1)


# ---- the gate comes and goes

cdef void see_place(place_t *place, uint8_t holder, void *context) noexcept nogil:
    """What is out, or dying, locks its group."""
    cdef groups_t *gs = <groups_t *>context
    cdef uint32_t number
    cdef bint closes
    if holder == HOLDER_RETURNED or (holder == HOLDER_ASIDE and place.reason >= ASIDE_HELD):
        return
    if holder == HOLDER_OUT:
        place.actor = 0
    if seg_map(place.seg) != 0 or find_group(gs, place, &number, &closes) != 0 or number == 0 \
            or group_at(&gs.pool, number).state & GROUP_FREE:
        return
    gs.redriven |= was_redriven(place.seg.map + place.position)
    gs.disordered |= place.flags & PLACE_REPLAYED != 0 or gs.redriven
    group_at(&gs.pool, number).inflight += 1
    if holder == HOLDER_OUT:
        place.actor = number
    elif not death_add(gs, place.seq, number):
        landed(gs, number)


cdef void groups_attach(gate_t *gate) noexcept nogil:
    cdef groups_t *gs = <groups_t *>gate
    ASSERT(gs.levels == <uint32_t>gate.queue.max_priority + 1)
    gs.waited_at = gs.retry.latest = gate.queue.core.now
    visit_places(gate.queue, see_place, gs)


cdef void groups_detach(gate_t *gate) noexcept nogil:
    cdef groups_t *gs = <groups_t *>gate
    dues_free(&gs.retry.due)
    dues_free(&gs.oldest)
    gs.drops = False
    gs.walked = 0
    pool_clear(&gs.pool)
    free(gs.deaths)
    gs.deaths = NULL
    gs.deaths_n = gs.deaths_capacity = 0
    gs.owners_n = 1
    gs.taken = 0
    gs.redriven = gs.disordered = False
    gs.look_upto = 0
    memset(gs.turns, 0, (SHARED_TURNS + gs.owners_capacity * gs.levels) * sizeof(turns_t))


cdef void groups_visit(gate_t *gate, visit_t visit, void *context) noexcept nogil:
    cdef groups_t *gs = <groups_t *>gate
    cdef node_t *node
    cdef place_t place
    cdef uint32_t i
    for i in range(1, gs.pool.nodes_n):
        node = node_at(&gs.pool, i)
        if node.seg & NODE_HAS_PLACE:
            visit(<place_t *>(node.seg - NODE_HAS_PLACE), HOLDER_ASIDE, context)
            node.position = (<place_t *>(node.seg - NODE_HAS_PLACE)).position
        elif node.seg:
            memset(&place, 0, sizeof(place_t))
            place.seg = <seg_t *>node.seg
            place.position = node.position
            visit(&place, HOLDER_ASIDE, context)
            node.position = place.position


cdef void groups_empty(gate_t *gate) noexcept nogil:
    """All that waits is ready again, at its own place."""
    unlist_some(<groups_t *>gate, 0xFFFFFFFF)

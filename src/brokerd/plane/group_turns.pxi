# The state of message groups: who owns a group, whose turn it is, which messages wait, and which died and hold their group.
#
#    turns       lists of groups of which a message could go out: one for each owner and priority level, and a shared one
#    deaths      messages whose dead letters are under way: their group goes on when that is done
#
# settle_turn() is called after each change of a group: it puts the group where it belongs now, or forgets it.

cdef enum:
    OWNERS_COMPARED = 64        # consumers among which a new group finds the one with the fewest groups

    EXCLUSIVE = 0               # groups_t.mode
    STICKY = 1

    KEYLESS_FREE = 0            # groups_t.keyless: a message without a key belongs to no group,
    KEYLESS_SINGLE = 1          # or to one group without a name,
    KEYLESS_REJECT = 2          # or is refused

    IDLE_TURNS = 0              # groups_t.turns: groups that lose their owner when their time is over
    SHARED_TURNS = 1            # ... and, from here on, by owner and level, those whose turn it is

    GROUP_STOPS = 1 | 2 | 4 | 8     # GROUP_PAUSED, GROUP_PARKED, GROUP_RETRYING, GROUP_CLOSING

cdef uint8_t no_key[GROUP_KEY_MOST + 257]

cdef struct owner_t:            # a consumer
    consumer_t *c               # NULL: it has left, or the place is free
    uint32_t held               # groups
    bint told                   # x-group-info: its deliveries say more

cdef struct death_t:
    uint64_t seq                # 0: free
    uint32_t group

cdef struct groups_t:
    gate_t gate
    group_rule_t rule
    uint8_t mode
    uint8_t keyless
    bint fencing                # fence() takes deliveries back
    bint flip                   # the shared turns come first
    bint turn_of_open           # a group's turn comes before fresh messages
    uint32_t most               # messages of one group that may be out
    uint32_t waiting_most       # with so many waiting, no fresh message is looked at until some have gone out
    int64_t idle                # ns
    retry_t retry               # returned messages wait; `due` has the groups' numbers
    group_pool_t pool
    turns_t *turns
    uint32_t levels
    owner_t *owners             # number 0: none, or basic.get
    uint32_t owners_n
    uint32_t owners_capacity
    death_t *deaths             # messages that died, and hold their groups until their letters are stored
    uint32_t deaths_n
    uint32_t deaths_capacity    # a power of two, or 0
    uint64_t token              # the highest
    uint64_t taken              # the message that take() took last, and what a delivery of it says
    uint32_t taken_group
    bint taken_told
    bint taken_first
    uint64_t waits              # messages that had to wait, since the start
    uint64_t waited_ns          # ... and how long, all together, up to waited_at
    int64_t waited_at
    uint64_t refused            # messages without a key
    bint redriven               # the queue has messages that were redriven
    bint disordered             # ... or replayed: an earlier message of a group may have gone out after a later one
    uint64_t look_upto          # ready messages below are to wait in their groups first: one that was redriven or replayed is there
    bint drops                  # `oldest` has the first messages of all groups: a length limit drops them
    dues_t oldest
    uint32_t walked             # how far a walk over all groups has come that is done in pieces; 0: none is under way


# ---- messages that died

cdef inline uint32_t death_slot(groups_t *gs, uint64_t seq) noexcept nogil:
    cdef uint32_t slot = <uint32_t>(seq * <uint64_t>0x9E3779B97F4A7C15 >> 32) & (gs.deaths_capacity - 1)
    while gs.deaths[slot].seq and gs.deaths[slot].seq != seq:
        slot = (slot + 1) & (gs.deaths_capacity - 1)
    return slot


cdef bint death_add(groups_t *gs, uint64_t seq, uint32_t number) noexcept nogil:
    """False: no memory."""
    cdef uint32_t i, capacity = gs.deaths_capacity
    cdef death_t *old = gs.deaths
    if (gs.deaths_n + 1) * 2 > capacity:
        gs.deaths = <death_t *>calloc(max(capacity * 2, <uint32_t>16), sizeof(death_t))
        if gs.deaths == NULL:
            gs.deaths = old
            return False
        gs.deaths_capacity = max(capacity * 2, <uint32_t>16)
        for i in range(capacity):
            if old[i].seq:
                gs.deaths[death_slot(gs, old[i].seq)] = old[i]
        free(old)
    i = death_slot(gs, seq)
    gs.deaths_n += gs.deaths[i].seq == 0
    gs.deaths[i].seq = seq
    gs.deaths[i].group = number
    return True


cdef bint death_take(groups_t *gs, uint64_t seq, uint32_t *number) noexcept nogil:
    cdef uint32_t slot, hole, home, mask = gs.deaths_capacity - 1
    if gs.deaths_n == 0:
        return False
    slot = death_slot(gs, seq)
    if gs.deaths[slot].seq == 0:
        return False
    number[0] = gs.deaths[slot].group
    gs.deaths_n -= 1
    hole = slot
    while True:
        slot = (slot + 1) & mask
        if gs.deaths[slot].seq == 0:
            break
        home = <uint32_t>(gs.deaths[slot].seq * <uint64_t>0x9E3779B97F4A7C15 >> 32) & mask
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            gs.deaths[hole] = gs.deaths[slot]
            hole = slot
    gs.deaths[hole].seq = 0
    return True


# ---- the group of a message

cdef uint32_t free_group_of(groups_t *gs, uint8_t level) noexcept nogil:
    """With priorities, messages without a key wait as well, in a group for each level that holds up nothing.  Its key is
    longer than any."""
    cdef uint32_t n = GROUP_KEY_MOST + 1 + level
    cdef uint32_t number = group_find(&gs.pool, no_key, n, n)
    if number == 0:
        number = group_new(&gs.pool, no_key, n, n)
        if number:
            group_at(&gs.pool, number).state |= GROUP_FREE
    return number


cdef uint32_t find_known_group(groups_t *gs, const group_key_t *key, uint8_t level) noexcept nogil:
    """The number of the group of a message with this key and level; 0: it is not remembered."""
    if key.at != NULL:
        return group_find(&gs.pool, key.at, key.n, hash_group_key(key.at, key.n))
    if gs.keyless == KEYLESS_SINGLE:
        return group_find(&gs.pool, no_key, 0, hash_group_key(no_key, 0))
    return group_find(&gs.pool, no_key, GROUP_KEY_MOST + 1 + level, GROUP_KEY_MOST + 1 + level)


cdef int find_group(groups_t *gs, const place_t *t, uint32_t *number, bint *closes) noexcept nogil:
    """Find the group of a message whose segment is mapped, and remember it.  Number 0: it belongs to none.  0 or ENOMEM."""
    cdef message_t m
    cdef group_key_t key
    cdef uint64_t hash_
    message_of(t.seg.map + t.position, &m)
    find_group_key(&gs.rule, &m, &key)
    closes[0] = key.closes
    number[0] = 0
    if key.at == NULL and gs.keyless == KEYLESS_FREE:
        if gs.levels > 1:
            number[0] = free_group_of(gs, t.seg.store.level)
            return 0 if number[0] else ENOMEM
        return 0
    if key.at == NULL:
        key.at = <const uint8_t *>key.digits    # The empty key: memcpy() and memcmp() take no NULL, not even for 0 octets.
    hash_ = hash_group_key(key.at, key.n)
    number[0] = group_find(&gs.pool, key.at, key.n, hash_)
    if number[0] == 0:
        number[0] = group_new(&gs.pool, key.at, key.n, hash_)
    return 0 if number[0] else ENOMEM


# ---- owners

cdef inline turns_t *turns_of(groups_t *gs, uint32_t owner, uint32_t level) noexcept nogil:
    return gs.turns + SHARED_TURNS + owner * gs.levels + level


cdef void own(groups_t *gs, group_t *g, uint32_t owner) noexcept nogil:
    """The group, which has no owner, has this one from now on; 0: basic.get."""
    g.owner = owner
    gs.owners[owner].held += owner != 0
    gs.token = max(gs.token + 1, <uint64_t>gs.gate.queue.core.now // 1000)
    g.token = gs.token
    g.state |= GROUP_CHANGED


cdef void disown(groups_t *gs, group_t *g) noexcept nogil:
    if g.owner:
        gs.owners[g.owner].held -= 1
        g.owner = 0


cdef inline bint has_left(groups_t *gs, const group_t *g) noexcept nogil:
    """The group belongs to a consumer that has left."""
    return g.owner != 0 and gs.owners[g.owner].c == NULL


cdef uint32_t owner_with_fewest(groups_t *gs, consumer_t *c) noexcept nogil:
    """The consumer that a new sticky group goes to: of those with c's priority and credit, one with the fewest groups."""
    cdef uint32_t best = c.at_gate, looked = 0
    cdef consumer_t *other = c.level.head
    while other != NULL and looked < OWNERS_COMPARED:
        if other.at_gate and gs.owners[other.at_gate].held < gs.owners[best].held and has_credit(other):
            best = other.at_gate
        other = other.next
        looked += 1
    return best


cdef bint may_have(groups_t *gs, group_t *g, uint32_t owner) noexcept nogil:
    """Whether the group's next message may go to this consumer now; 0: to basic.get."""
    if g.state & GROUP_STOPS:
        return False
    if g.inflight == 0 and has_left(gs, g):
        disown(gs, g)
    if g.state & GROUP_FREE:
        return True
    if g.inflight == 0 and g.owner == 0:
        return True
    if owner == 0 or g.owner != owner:
        return False
    return gs.mode == STICKY or g.inflight < gs.most


# ---- turns

cdef void count_wait_time(groups_t *gs) noexcept nogil:
    """Before `waiting` changes."""
    cdef int64_t now = gs.gate.queue.core.now
    if now > gs.waited_at:
        gs.waited_ns += gs.gate.waiting * <uint64_t>(now - gs.waited_at)
        gs.waited_at = now


cdef void leave_turns(groups_t *gs, uint32_t number) noexcept nogil:
    cdef group_t *g = group_at(&gs.pool, number)
    if g.in_turns == 0:
        return
    gs.gate.open -= g.in_turns != IDLE_TURNS + 1
    turns_leave(&gs.pool, gs.turns, number)


cdef void be_idle(groups_t *gs, uint32_t number) noexcept nogil:
    """A sticky group without messages keeps its owner for a while."""
    cdef group_t *g = group_at(&gs.pool, number)
    cdef gate_t *gate = &gs.gate
    if g.in_turns:
        return
    g.until = gate.queue.core.now + gs.idle
    turns_join(&gs.pool, gs.turns, IDLE_TURNS, number)
    if g.until < gate.deadline:
        gate.deadline = g.until
        gate.queue.rules.expires = True
        deadline_bring_forward(gate.queue, gate.deadline)


cdef void settle_turn(groups_t *gs, uint32_t number) noexcept nogil:
    """Put the group where it belongs after something has changed.  It may be forgotten."""
    cdef group_t *g = group_at(&gs.pool, number)
    cdef uint32_t owner
    if not g.state & GROUP_KNOWN:
        return
    if g.inflight == 0:
        if g.state & GROUP_CLOSING:
            g.state &= ~<uint16_t>GROUP_CLOSING
            disown(gs, g)
        if gs.mode != STICKY or has_left(gs, g):
            disown(gs, g)
    leave_turns(gs, number)
    if g.first == 0:
        if g.inflight or g.state & (GROUP_STOPS | GROUP_FREE):
            return
        if g.owner:
            be_idle(gs, number)
        else:
            group_forget(&gs.pool, number)
        return
    if g.state & GROUP_STOPS or has_left(gs, g):
        return
    owner = g.owner
    if g.inflight and not g.state & GROUP_FREE and (owner == 0 or (gs.mode != STICKY and g.inflight >= gs.most)):
        return
    turns_join(&gs.pool, gs.turns, SHARED_TURNS + owner * gs.levels + segment_of_node(node_at(&gs.pool, g.first)).store.level,
               number)
    gs.gate.open += 1
    mark_dirty(gs.gate.queue)


# ---- messages that wait

cdef inline int64_t age_of(const node_t *node) noexcept nogil:
    """The lower, the sooner a length limit drops the message: by priority level, then by its number in its group."""
    return <int64_t>segment_of_node(node).store.level << 56 | <int64_t>number_of_node(node)


cdef uint64_t number_of_place(groups_t *gs, place_t *t) noexcept nogil:
    """The number of a message in its group."""
    if LIKELY(not gs.redriven) or seg_map(t.seg) != 0:
        return t.seq
    return number_in_group(t.seg.map + t.position)


cdef int let_wait(groups_t *gs, uint32_t number, place_t *t, bint is_last) noexcept nogil:
    """List a message, which the caller sets aside if this answers 0.  0 or ENOMEM."""
    cdef uint32_t node
    if UNLIKELY(gs.redriven):
        seg_map(t.seg)
    node = node_for(&gs.pool, t)
    if node == 0:
        return ENOMEM
    group_list(&gs.pool, group_at(&gs.pool, number), node,
               number_of_node(node_at(&gs.pool, node)) if UNLIKELY(gs.redriven) else t.seq, is_last)
    if UNLIKELY(gs.drops) and group_at(&gs.pool, number).first == node \
            and due_push(&gs.oldest, age_of(node_at(&gs.pool, node)), number) != 0:
        gs.drops = False                # It is made anew.
    count_wait_time(gs)
    count_waiting(t)
    gs.gate.held += 1
    return 0


cdef int let_fresh_wait(groups_t *gs, store_t *st, uint32_t number, place_t *t, bint noted) noexcept nogil:
    """Let the message wait that peek() found.  noted: its retry time stands in the acks file.  0 or ENOMEM: it stays ready."""
    cdef group_t *g = group_at(&gs.pool, number)
    cdef bint is_last = not is_returned(st, t)
    cdef place_t at = t[0]
    at.flags |= PLACE_PASSED            # As pass_aside() has it.
    at.actor = noted
    if t.flags & PLACE_PARKED:
        g.state |= GROUP_PARKED
    elif g.state & GROUP_PARKED and comes_first(gs, g, t):
        at.flags |= PLACE_PARKED        # A start must find the group's first message parked.
    if let_wait(gs, number, &at, is_last) != 0:
        return ENOMEM
    if UNLIKELY(at.flags & PLACE_PARKED):
        park_from_first(gs, number)
    if at.flags & PLACE_PARKED or noted:
        # The entry that says so must stay the last one, however often the broker ends.
        if at.flags & PLACE_PARKED:
            note_parked(&at)
        take_head(st, t)
        t.flags |= PLACE_PASSED
        t.seg.aside += 1
    else:
        pass_aside(st, t)
    uncount_octets(gs.gate.queue, t.seg.map + t.position)
    gs.waits += 1
    return 0


cdef int let_taken_wait(groups_t *gs, uint32_t number, place_t *t, bint noted, bint is_aside) noexcept nogil:
    """let_fresh_wait() for a message that was taken out of the middle, or is aside already.  0 or ENOMEM: nothing has changed."""
    cdef group_t *g = group_at(&gs.pool, number)
    cdef place_t at = t[0]
    at.flags |= PLACE_PASSED
    at.actor = noted
    if at.flags & PLACE_PARKED:
        g.state |= GROUP_PARKED
    elif g.state & GROUP_PARKED and comes_first(gs, g, t):
        at.flags |= PLACE_PARKED
    if let_wait(gs, number, &at, False) != 0:
        return ENOMEM
    if at.flags & PLACE_PARKED:
        park_from_first(gs, number)
        note_parked(&at)
    elif not noted and not is_aside:
        note_aside(&at, at.count)
    if not is_aside:
        t.seg.aside += 1
    gs.waits += 1
    return 0


cdef inline bint comes_first(groups_t *gs, const group_t *g, place_t *t) noexcept nogil:
    """Whether the message will stand before all that wait in its group."""
    return g.first == 0 or number_of_place(gs, t) < number_of_node(node_at(&gs.pool, g.first))


cdef bint park_first(groups_t *gs, uint32_t number) noexcept nogil:
    """Note on disk that the group's first message, which waits, is parked.  False: no memory, or it cannot be read."""
    cdef group_t *g = group_at(&gs.pool, number)
    cdef node_t *node
    cdef place_t *own_place
    cdef place_t place
    if g.first == 0:
        return True
    node = node_at(&gs.pool, g.first)
    if seg_map(segment_of_node(node)) != 0:
        return False
    if not node.seg & NODE_HAS_PLACE:
        place_of_node(node, &place)
        if list_place(node, &place) == NULL:
            return False
    own_place = <place_t *>(node.seg - NODE_HAS_PLACE)
    own_place.flags |= PLACE_PARKED
    note_parked(own_place)
    return True


cdef void park_from_first(groups_t *gs, uint32_t number) noexcept nogil:
    """The group is parked at a message that is not its first: a start must find the first one parked, too."""
    cdef node_t *node = node_at(&gs.pool, group_at(&gs.pool, number).first)
    if not (node.seg & NODE_HAS_PLACE and (<place_t *>(node.seg - NODE_HAS_PLACE)).flags & PLACE_PARKED):
        park_first(gs, number)


cdef void note_parked(place_t *t) noexcept nogil:
    """Write into the acks file that t is parked."""
    seg_note(t.seg, t.position, PARKED | (ASIDE_WAS_OUT << 4 if t.flags & PLACE_WAS_OUT else 0), t.count)


cdef void unlist(groups_t *gs, group_t *g, uint32_t node, uint32_t before, place_t *t) noexcept nogil:
    """unlist_first() for any of the group's messages.  before: the node before its node; 0: none is."""
    group_unlist(&gs.pool, g, node, before)
    gs.gate.held -= 1
    count_wait_time(gs)
    uncount_waiting(t)
    t.flags &= ~<uint8_t>PLACE_PARKED


cdef inline void unlist_first(groups_t *gs, group_t *g, place_t *t) noexcept nogil:
    """The group's first message, whose segment is mapped, waits no longer: it is aside, and the caller's."""
    unlist(gs, g, g.first, 0, t)


cdef void let_aside_die(place_t *t, uint8_t reason) noexcept nogil:
    """kill() for a message that is aside, and in no list."""
    cdef queue_t *q = t.seg.queue
    count_death(q.rules, reason)
    if is_dead_lettered(q, reason):
        die(t, reason)
    else:
        t.seg.aside -= 1
        settle(t, kind_of_death(reason))

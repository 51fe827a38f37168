# The messages that the readers of one name hold, and the readers that come and leave.  share_keys.pxi says what they share.


# ---- messages that are held

cdef uint32_t share_hold(share_t *share, const uint8_t *record) noexcept nogil:
    """Hold the message at the place, last of its key.  NO_HELD: no memory."""
    cdef reader_t *p = &share.place
    cdef bint alone
    cdef uint64_t hash = key_of_record(share, record, &alone)
    cdef uint32_t i, flow
    cdef part_t *part
    i = hold(p, seq_of(record), p.seg.number, p.position)
    if UNLIKELY(i == NO_HELD):
        return NO_HELD
    if UNLIKELY(share_grow(share) != 0):
        let_go(p, i)
        return NO_HELD
    flow = find_flow(share, hash) if not alone else NO_FLOW
    if flow == NO_FLOW:
        flow = new_flow(share, hash, alone)
    part = &share.parts[i]
    part.flow = flow
    part.waits = True
    part.child = part.sibling = part.after = NO_HELD
    part.before = share.flows[flow].last
    if part.before == NO_HELD:
        share.flows[flow].first = i
    else:
        share.parts[part.before].after = i
    share.flows[flow].last = i
    share.waiting += 1
    return i


cdef void share_let_go(share_t *share, uint32_t i) noexcept nogil:
    """The message, in no heap, is held no more."""
    cdef part_t *part = &share.parts[i]
    cdef flow_t *f = &share.flows[part.flow]
    if part.waits:
        share.waiting -= 1
    else:
        f.out -= 1
        share.out -= 1
    if part.before == NO_HELD:
        f.first = part.after
    else:
        share.parts[part.before].after = part.after
    if part.after == NO_HELD:
        f.last = part.before
    else:
        share.parts[part.after].before = part.before
    let_go(&share.place, i)
    if f.first == NO_HELD:
        free_flow(share, part.flow)
        if share.single and share.readers != NULL:
            share_wake(share, share.readers)    # It may have waited for what a former active reader held.
    elif f.out == 0 and owner_of(share, f) == NULL:
        need_owner(share, part.flow)


cdef void share_hand_out(share_t *share, uint32_t i, seg_t *s, place_t *t) noexcept nogil:
    cdef held_t *h = &share.place.held[i]
    share.parts[i].waits = False
    share.flows[share.parts[i].flow].out += 1
    share.out += 1
    share.waiting -= 1
    t.seg = s
    t.position = h.position
    t.seq = h.offset
    t.count = h.count
    t.flags = h.flags
    t.ordinal = i
    if UNLIKELY(share.full) and (share.heaped if lacks_owners(share) else share.waiting) < SHARE_WAITS_MOST // 2:
        share.full = False
        wake_all(share)


cdef bint share_take_waiting(reader_t *r, place_t *t) noexcept nogil:
    """Take the first message that waits for this reader.  What retention has removed since is missed.  False: none does, or it cannot be
    read now, or so much is missed that others have their turn first."""
    cdef share_t *share = r.share
    cdef reader_t *p = &share.place
    cdef uint32_t i
    cdef seg_t *s
    while r.waiting != NO_HELD and p.stream.gate.looked < SHARE_LOOKS:
        i = r.waiting
        s = segment_numbered(&p.stream.segments, &p.stream.gate.queue.store, p.held[i].number)
        if s == NULL:
            pop_waiting(r)
            miss_held(p, i)
            share_let_go(share, i)
            p.stream.gate.looked += 1
            continue
        if not map_for_reader(p.stream, s):
            return False
        pop_waiting(r)
        share_hand_out(share, i, s, t)
        return True
    return False


cdef inline int spend_on_share(share_t *share, int took, uint32_t messages) noexcept nogil:
    """Count the looks, and what so many messages cost besides: the turn's alone, not filters'."""
    cdef gate_t *gate = &share.place.stream.gate
    gate.queue.core.looks_left -= gate.looked
    gate.looked += HOLD_COSTS * messages
    return took


cdef bint reads_for_all(reader_t *r) noexcept nogil:
    """Whether this reader may read on at the share's place."""
    cdef share_t *share = r.share
    cdef uint32_t flow
    if share.single:
        if r != share.readers:
            return False
        flow = find_flow(share, 1)
        if flow != NO_FLOW and owner_of(share, &share.flows[flow]) != r:
            return False                # Deliveries of the former active reader are not settled.
    if share.waiting >= SHARE_WAITS_MOST:
        share.full = True
        return False
    return True


cdef void share_settle(reader_t *r, uint32_t i) noexcept nogil:
    cdef share_t *share = r.share
    share_let_go(share, i)
    if share.place.slot != NULL:
        keep_offset(&share.place)
    if share.readers_n == 0 and share.out == 0:
        share_end(share)


cdef void share_give_back(reader_t *r, place_t *t) noexcept nogil:
    """The message goes out again, before anything newer of its key."""
    cdef share_t *share = r.share
    cdef uint32_t i = t.ordinal
    cdef flow_t *f = &share.flows[share.parts[i].flow]
    share.place.held[i].count = t.count
    share.place.held[i].flags = t.flags
    share.parts[i].waits = True
    share.waiting += 1
    share.out -= 1
    f.out -= 1
    wait_for(share, f, i)
    if f.out == 0 and owner_of(share, f) == NULL:
        need_owner(share, share.parts[i].flow)
    if share.readers_n == 0 and share.out == 0:
        share_end(share)


# ---- readers come and leave

cdef share_t *find_share(stream_t *stream, const uint8_t *name) noexcept nogil:
    cdef share_t *share = stream.shares
    while share != NULL and memcmp(share.name, name, 1 + name[0]) != 0:
        share = share.next
    return share


cdef void share_join(share_t *share, reader_t *r) noexcept nogil:
    cdef reader_t **at = &share.readers
    cdef uint32_t slot = 0
    while at[0] != NULL:
        at = &at[0].share_next
    at[0] = r
    while share.at[slot] != NULL:
        slot += 1
    share.at[slot] = r
    r.slot_of_share = <uint8_t>slot
    r.share = share
    r.waiting = NO_HELD
    r.flows.first = r.flows.last = NO_FLOW
    r.share_next = NULL
    share.place.stream.seeds += 1
    share.seeds[share.readers_n] = mix_product(group_secret[1] ^ share.place.stream.seeds, group_secret[2])
    share.slots[share.readers_n] = r.slot_of_share
    share.readers_n += 1
    share.known += 1


cdef void share_leave(reader_t *r) noexcept nogil:
    """The reader owns no key any more; what waited for it goes to others."""
    cdef share_t *share = r.share
    cdef reader_t **at = &share.readers
    cdef uint32_t i = 0
    while at[0] != r:
        at = &at[0].share_next
    at[0] = r.share_next
    r.share_next = NULL
    while share.slots[i] != r.slot_of_share:
        i += 1
    share.readers_n -= 1
    share.slots[i] = share.slots[share.readers_n]
    share.seeds[i] = share.seeds[share.readers_n]
    disown_flows(share, r)
    if share.single and share.readers != NULL:
        share_wake(share, share.readers)
    if share.readers_n == 0 and share.out == 0:
        share_end(share)


cdef void share_end(share_t *share) noexcept nogil:
    """No reader reads, and nothing is out: the next one of that name begins where the kept offset says."""
    cdef stream_t *stream = share.place.stream
    cdef share_t **at
    if stream == NULL:
        return
    at = &stream.shares
    while at[0] != share:
        at = &at[0].next
    at[0] = share.next
    reader_leave_segment(&share.place)
    share.place.stream = NULL
    share.place.slot = NULL


cdef void share_forget(share_t *share) noexcept nogil:
    """One reader less points to it."""
    share.known -= 1
    if share.known:
        return
    share_end(share)
    filter_free(&share.place)
    array_free(share.place.held, share.place.held_octets)
    free(share.place.again)
    array_free(share.parts, share.parts_octets)
    array_free(share.flows, share.flows_octets)
    array_free(share.buckets, share.buckets_octets)
    free(share)


cdef bint share_is_sound(share_t *share) noexcept nogil:
    """For tests: its counts agree, and each key is in order."""
    cdef uint32_t i, at, waiting = 0, out = 0, flows = 0, keyed = 0, flow_out, before
    cdef flow_t *f
    for i in range(share.fresh):
        f = &share.flows[i]
        if not f.alone and find_flow(share, f.hash) != i:
            continue            # It is free.
        flows += 1
        keyed += not f.alone
        flow_out = 0
        before = NO_HELD
        at = f.first
        while at != NO_HELD:
            if share.parts[at].flow != i or share.parts[at].before != before:
                return False
            if before != NO_HELD and share.place.held[before].offset >= share.place.held[at].offset:
                return False
            flow_out += not share.parts[at].waits
            waiting += share.parts[at].waits
            before = at
            at = share.parts[at].after
        if f.last != before or f.out != flow_out or (f.out == 0 and not f.listed):
            return False
        out += flow_out
    for i in range(share.readers_n):
        if share.at[share.slots[i]] == NULL:
            return False
    return (waiting == share.waiting and out == share.out and waiting + out == share.place.held_n
            and flows == share.flows_n and keyed == share.keyed_n <= share.buckets_n and share.heaped <= waiting)

# The share of the readers of one name: one place, one kept offset, and the messages between them.
#
#    share_t     reads for all its readers; its `place` holds every delivery of theirs.  A message belongs to a key, and a key to
#                one reader for as long as a message of it is out or waits: so order holds within each key
#    flow_t      a key with messages that are out or wait
#    part_t      a held message's place among those of its key, and among those that wait for its reader: a pairing heap by
#                offset, which needs no memory when a reader takes over what waited for another
#
# By hash, a new key goes to the reader with the highest hash of key and reader: one that joins or leaves moves few keys.  A message
# without a key is a key of its own.  A single active reader is the owner of one key that all messages have.
#
# A reader that leaves owns its keys no more.  Each goes to another when the last message of it that was out is settled or given back,
# and what was given back goes out first.
#
# The place looks ahead of a reader without credit, until SHARE_WAITS_MOST messages wait; then all wait.


cdef enum:
    SHARE_WAITS_MOST = 16384    # messages that wait for their readers
    SHARE_READERS_MOST = 256
    NO_FLOW = 0xFFFFFFFF

cdef struct flow_t:
    uint64_t hash
    reader_t *owner             # NULL: messages are out to a reader that left, or there is no reader
    uint32_t out                # messages
    uint32_t first, last        # held messages, by offset; NO_HELD: none
    uint32_t next               # with a hash in the same bucket; of a free one, the next free one

cdef struct part_t:
    uint32_t flow
    uint32_t before, after      # in its flow
    uint32_t child, sibling     # in the heap of its reader
    bint waits

cdef struct share_t:
    reader_t place              # has no consumer
    share_t *next               # of the stream's
    uint8_t name[256]           # a short string
    bint single
    bint quiet                  # its readers' objects go: no reader is woken
    bint full                   # SHARE_WAITS_MOST wait: readers rest until they are fewer
    reader_t *readers           # the oldest first; of a single active one, the first is active
    uint32_t readers_n
    uint32_t known              # reader_t that point here: those that left as well
    uint32_t out                # messages
    uint32_t waiting
    part_t *parts               # of place.held, as many
    flow_t *flows               # as many
    uint32_t *buckets           # as many
    uint32_t capacity
    uint32_t unused             # the first free flow
    group_rule_t rule
    uint8_t rule_names[1024]


# ---- those that wait for a reader

cdef inline uint32_t meld(share_t *share, uint32_t a, uint32_t b) noexcept nogil:
    cdef uint32_t other
    if a == NO_HELD:
        return b
    if b == NO_HELD:
        return a
    if share.place.held[b].offset < share.place.held[a].offset:
        other = a
        a = b
        b = other
    share.parts[b].sibling = share.parts[a].child
    share.parts[a].child = b
    return a


cdef uint32_t pop_waiting(reader_t *r) noexcept nogil:
    """Take the lowest offset that waits for the reader out of its heap."""
    cdef share_t *share = r.share
    cdef part_t *parts = share.parts
    cdef uint32_t top = r.waiting, at = parts[top].child, pairs = NO_HELD, one, other, rest
    while at != NO_HELD:
        one = at
        other = parts[one].sibling
        rest = parts[other].sibling if other != NO_HELD else NO_HELD
        parts[one].sibling = NO_HELD
        if other != NO_HELD:
            parts[other].sibling = NO_HELD
        one = meld(share, one, other)
        parts[one].sibling = pairs
        pairs = one
        at = rest
    r.waiting = NO_HELD
    while pairs != NO_HELD:
        rest = parts[pairs].sibling
        parts[pairs].sibling = NO_HELD
        r.waiting = meld(share, r.waiting, pairs)
        pairs = rest
    parts[top].child = parts[top].sibling = NO_HELD
    return top


cdef inline void share_wake(share_t *share, reader_t *r) noexcept nogil:
    if not share.quiet:
        ring_rejoin(r.consumer)


cdef void wait_for(share_t *share, reader_t *owner, uint32_t i) noexcept nogil:
    share.parts[i].child = share.parts[i].sibling = NO_HELD
    if owner != NULL:
        owner.waiting = meld(share, owner.waiting, i)
        share_wake(share, owner)


# ---- keys

cdef inline uint64_t rank_of(const reader_t *r, uint64_t hash) noexcept nogil:
    return mix_product(hash ^ r.seed, group_secret[2] ^ r.seed)


cdef reader_t *owner_of(share_t *share, uint64_t hash) noexcept nogil:
    """The reader that a key goes to now; NULL: there is none."""
    cdef reader_t *best = share.readers
    cdef reader_t *r
    cdef uint64_t rank, highest
    if best == NULL or share.single:
        return best
    highest = rank_of(best, hash)
    r = best.share_next
    while r != NULL:
        rank = rank_of(r, hash)
        if rank > highest:
            highest = rank
            best = r
        r = r.share_next
    return best


cdef int share_grow(share_t *share) noexcept nogil:
    """Make room for as many messages as `held` has.  0 or ENOMEM."""
    cdef uint32_t n = share.place.held_capacity, i, bucket
    cdef part_t *parts
    cdef flow_t *flows
    cdef uint32_t *buckets
    if LIKELY(share.capacity == n):
        return 0
    parts = <part_t *>realloc(share.parts, n * sizeof(part_t))
    if parts == NULL:
        return ENOMEM
    share.parts = parts
    flows = <flow_t *>realloc(share.flows, n * sizeof(flow_t))
    if flows == NULL:
        return ENOMEM
    share.flows = flows
    buckets = <uint32_t *>realloc(share.buckets, n * sizeof(uint32_t))
    if buckets == NULL:
        return ENOMEM
    share.buckets = buckets
    for i in range(share.capacity, n):      # All that there were are in use, or `held` had not grown.
        flows[i].first = NO_HELD
        flows[i].next = i + 1 if i + 1 < n else share.unused
    share.unused = share.capacity
    share.capacity = n
    memset(buckets, 0xFF, n * sizeof(uint32_t))
    for i in range(n):
        if flows[i].first != NO_HELD:
            bucket = <uint32_t>flows[i].hash & (n - 1)
            flows[i].next = buckets[bucket]
            buckets[bucket] = i
    return 0


cdef uint32_t find_flow(share_t *share, uint64_t hash) noexcept nogil:
    cdef uint32_t i = share.buckets[<uint32_t>hash & (share.capacity - 1)] if share.capacity else NO_FLOW
    while i != NO_FLOW and share.flows[i].hash != hash:
        i = share.flows[i].next
    return i


cdef uint32_t new_flow(share_t *share, uint64_t hash) noexcept nogil:
    cdef uint32_t i = share.unused, bucket = <uint32_t>hash & (share.capacity - 1)
    cdef flow_t *f = &share.flows[i]
    ASSERT(i != NO_FLOW)
    share.unused = f.next
    f.hash = hash
    f.owner = owner_of(share, hash)
    f.out = 0
    f.first = f.last = NO_HELD
    f.next = share.buckets[bucket]
    share.buckets[bucket] = i
    return i


cdef void free_flow(share_t *share, uint32_t i) noexcept nogil:
    cdef uint32_t *at = &share.buckets[<uint32_t>share.flows[i].hash & (share.capacity - 1)]
    while at[0] != i:
        at = &share.flows[at[0]].next
    at[0] = share.flows[i].next
    share.flows[i].next = share.unused
    share.unused = i


cdef void find_new_owner(share_t *share, flow_t *f) noexcept nogil:
    """Nothing of the key is out, and it has no owner: what waits goes to another one."""
    cdef uint32_t i = f.first
    ASSERT(f.out == 0 and f.owner == NULL)
    f.owner = owner_of(share, f.hash)
    while f.owner != NULL and i != NO_HELD:
        wait_for(share, f.owner, i)
        i = share.parts[i].after


cdef void find_new_owners(share_t *share) noexcept nogil:
    cdef uint32_t i
    for i in range(share.capacity):
        if share.flows[i].first != NO_HELD and share.flows[i].owner == NULL and share.flows[i].out == 0:
            find_new_owner(share, &share.flows[i])


cdef uint64_t key_of_record(share_t *share, const uint8_t *record) noexcept nogil:
    cdef message_t m
    cdef group_key_t key
    cdef uint64_t seq
    if share.single:
        return 1
    message_of(record, &m)
    find_group_key(&share.rule, &m, &key)
    if key.at != NULL:
        return hash_group_key(key.at, key.n)
    seq = seq_of(record)
    return hash_group_key(<const uint8_t *>&seq, 8) ^ group_secret[0]


# ---- messages that are held

cdef uint32_t share_hold(share_t *share, const uint8_t *record) noexcept nogil:
    """Hold the message at the place, last of its key.  NO_HELD: no memory."""
    cdef reader_t *p = &share.place
    cdef uint64_t hash = key_of_record(share, record)
    cdef uint32_t i, flow
    cdef part_t *part
    i = hold(p, seq_of(record), p.seg.number, p.position)
    if UNLIKELY(i == NO_HELD):
        return NO_HELD
    if UNLIKELY(share_grow(share) != 0):
        let_go(p, i)
        return NO_HELD
    flow = find_flow(share, hash)
    if flow == NO_FLOW:
        flow = new_flow(share, hash)
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
    elif f.out == 0 and f.owner == NULL:
        find_new_owner(share, f)


cdef void share_hand_out(share_t *share, uint32_t i, seg_t *s, place_t *t) noexcept nogil:
    cdef held_t *h = &share.place.held[i]
    cdef reader_t *r
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
    if UNLIKELY(share.full) and share.waiting < SHARE_WAITS_MOST // 2:
        share.full = False
        r = share.readers
        while r != NULL:
            share_wake(share, r)
            r = r.share_next


cdef bint share_take_waiting(reader_t *r, place_t *t) noexcept nogil:
    """Take the first message that waits for this reader.  What retention has removed since is missed.  False: none does, or it cannot be
    read now."""
    cdef share_t *share = r.share
    cdef reader_t *p = &share.place
    cdef uint32_t i
    cdef seg_t *s
    while r.waiting != NO_HELD:
        i = r.waiting
        s = segment_numbered(&p.stream.segments, &p.stream.gate.queue.store, p.held[i].number)
        if s == NULL:
            pop_waiting(r)
            miss_held(p, i)
            share_let_go(share, i)
            continue
        if not map_for_reader(p.stream, s):
            return False
        pop_waiting(r)
        share_hand_out(share, i, s, t)
        return True
    return False


cdef bint reads_for_all(reader_t *r) noexcept nogil:
    """Whether this reader may read on at the share's place."""
    cdef share_t *share = r.share
    cdef uint32_t flow
    if share.single:
        if r != share.readers:
            return False
        flow = find_flow(share, 1)
        if flow != NO_FLOW and share.flows[flow].owner != r:
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
    if f.owner != NULL:
        wait_for(share, f.owner, i)
    elif f.out == 0:
        find_new_owner(share, f)
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
    while at[0] != NULL:
        at = &at[0].share_next
    at[0] = r
    r.share = share
    r.waiting = NO_HELD
    r.share_next = NULL
    share.place.stream.seeds += 1
    r.seed = mix_product(group_secret[1] ^ share.place.stream.seeds, group_secret[2])
    share.readers_n += 1
    share.known += 1
    find_new_owners(share)


cdef void share_leave(reader_t *r) noexcept nogil:
    """The reader owns no key any more; what waited for it goes to others."""
    cdef share_t *share = r.share
    cdef reader_t **at = &share.readers
    cdef uint32_t i
    while at[0] != r:
        at = &at[0].share_next
    at[0] = r.share_next
    r.share_next = NULL
    r.waiting = NO_HELD
    share.readers_n -= 1
    for i in range(share.capacity):
        if share.flows[i].first != NO_HELD and share.flows[i].owner == r:
            share.flows[i].owner = NULL
    find_new_owners(share)
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
    free(share.place.held)
    free(share.place.again)
    free(share.parts)
    free(share.flows)
    free(share.buckets)
    free(share)


cdef bint share_is_sound(share_t *share) noexcept nogil:
    """For tests: its counts agree, and each key is in order."""
    cdef uint32_t i, at, waiting = 0, out = 0, flow_out, before
    cdef flow_t *f
    for i in range(share.capacity):
        f = &share.flows[i]
        if f.first == NO_HELD:
            continue
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
        if f.last != before or f.out != flow_out or (f.owner == NULL and f.out == 0 and share.readers != NULL):
            return False
        out += flow_out
    return waiting == share.waiting and out == share.out and waiting + out == share.place.held_n

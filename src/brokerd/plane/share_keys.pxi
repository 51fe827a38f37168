# The share of the readers of one name: one place, one kept offset, and the messages between them.
#
#    share_t     reads for all its readers; its `place` holds every delivery of theirs.  A message belongs to a key, and a key to
#                one reader for as long as a message of it is out or waits: so order holds within each key
#    flow_t      a key with messages that are out or wait
#    part_t      a held message's place among those of its key, and among those that wait for its reader: a pairing heap by
#                offset, which needs no memory when a reader takes over what waited for another
#
# By hash, a new key goes to the reader with the highest hash of key and reader: one that joins or leaves moves few keys.  A message
# without a key is a key of its own, which nobody looks for, and so is not in the table of keys.  A single active reader is the owner of one key that all messages have.
#
# A reader that leaves owns its keys no more.  Each goes to another when the last message of it that was out is settled or given back,
# and what was given back goes out first.  Such keys without an owner form a list, and readers that take give them owners.
#
# Millions of messages may be out, so nothing here is done for all of them at once: a reader that leaves puts its list of keys behind
# that of the keys without an owner, and drops its heap; the arrays grow without being written; the table of keys splits one bucket
# for each new key.
#
# The place looks ahead of a reader without credit, until SHARE_WAITS_MOST messages wait; then all wait.


cdef enum:
    SHARE_WAITS_MOST = 16384    # messages that wait for their readers
    SHARE_READERS_MOST = 256
    SHARE_LOOKS = 2048          # keys and messages that one reader gives owners, before others have their turn
    HOLD_COSTS = 12             # looks: what a message costs besides, as its tables are soon in no cache
    NO_FLOW = 0xFFFFFFFF

cdef struct flow_t:
    uint64_t hash
    uint32_t turn               # its owner is the reader in share_t.at[slot], as long as this is share_t.turns[slot]
    uint8_t slot
    uint8_t listed              # in the list of its owner's keys, or of those without an owner
    uint8_t alone               # of a message without a key: not in the table
    uint32_t listed_before, listed_after
    uint32_t out                # messages
    uint32_t first, last        # held messages, by offset; NO_HELD: none
    uint32_t next               # with a hash in the same bucket; of a free one, the next free one

cdef struct part_t:
    uint32_t flow
    uint32_t before, after      # in its flow
    uint32_t child, sibling     # in the heap of its reader
    bint waits                  # ... in its owner's heap, if the key has one

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
    uint32_t heaped             # of these, in heaps
    flows_t ownerless           # keys of readers that left, whose messages wait; also some of which messages are out
    uint32_t moving             # the key that has got an owner last, while some of its messages wait in no heap; NO_FLOW: none
    uint32_t moving_at          # the first of these
    reader_t *at[SHARE_READERS_MOST]
    uint64_t seeds[SHARE_READERS_MOST]  # of its readers' hashes of keys, readers_n: side by side, as each new key asks for all
    uint8_t slots[SHARE_READERS_MOST]   # ... and which reader's each is
    uint32_t turns[SHARE_READERS_MOST]
    part_t *parts               # of place.held, as many
    flow_t *flows               # as many
    uint32_t *buckets           # as many
    size_t parts_octets, flows_octets, buckets_octets
    uint32_t capacity
    uint32_t unused             # the first free flow; NO_FLOW: none
    uint32_t fresh              # flows from here on were never used, and nothing has been written there
    uint32_t flows_n            # that are in use
    uint32_t keyed_n            # of these, in the table
    uint32_t buckets_n          # that are in use: those with hashes below it, by `mask` bits or one more
    uint32_t mask               # 2 ** n - 1, at most buckets_n
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
    r.waiting_n -= 1
    share.heaped -= 1
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


cdef inline reader_t *owner_of(const share_t *share, const flow_t *f) noexcept nogil:
    """The reader that a key belongs to; NULL: it left."""
    return <reader_t *>share.at[f.slot] if share.turns[f.slot] == f.turn else NULL


cdef void wait_for(share_t *share, flow_t *f, uint32_t i) noexcept nogil:
    """The message of that key waits for its owner, if there is one."""
    cdef reader_t *owner = owner_of(share, f)
    share.parts[i].child = share.parts[i].sibling = NO_HELD
    if LIKELY(owner != NULL):
        owner.waiting = meld(share, owner.waiting, i)
        owner.waiting_n += 1
        share.heaped += 1
        share_wake(share, owner)


cdef void wake_all(share_t *share) noexcept nogil:
    cdef reader_t *r = share.readers
    while r != NULL:
        share_wake(share, r)
        r = r.share_next


# ---- lists of keys

cdef void list_flow(share_t *share, flows_t *flows, uint32_t i) noexcept nogil:
    cdef flow_t *f = &share.flows[i]
    f.listed = True
    f.listed_before = flows.last
    f.listed_after = NO_FLOW
    if flows.last == NO_FLOW:
        flows.first = i
    else:
        share.flows[flows.last].listed_after = i
    flows.last = i


cdef void unlist_flow(share_t *share, uint32_t i) noexcept nogil:
    cdef flow_t *f = &share.flows[i]
    cdef reader_t *owner = owner_of(share, f)
    cdef flows_t *flows = &share.ownerless if owner == NULL else &owner.flows
    if not f.listed:
        return
    f.listed = False
    if f.listed_before == NO_FLOW:
        flows.first = f.listed_after
    else:
        share.flows[f.listed_before].listed_after = f.listed_after
    if f.listed_after == NO_FLOW:
        flows.last = f.listed_before
    else:
        share.flows[f.listed_after].listed_before = f.listed_before


cdef void disown_flows(share_t *share, reader_t *r) noexcept nogil:
    """The reader left: its keys have no owner, and its heap is no more."""
    cdef flows_t *to = &share.ownerless
    if share.moving != NO_FLOW and owner_of(share, &share.flows[share.moving]) == r:
        share.moving = NO_FLOW      # It begins anew, with the next owner.
    share.at[r.slot_of_share] = NULL
    share.turns[r.slot_of_share] += 1
    share.heaped -= r.waiting_n
    r.waiting = NO_HELD
    r.waiting_n = 0
    if r.flows.first == NO_FLOW:
        return
    if to.last == NO_FLOW:
        to.first = r.flows.first
    else:
        share.flows[to.last].listed_after = r.flows.first
        share.flows[r.flows.first].listed_before = to.last
    to.last = r.flows.last
    r.flows.first = r.flows.last = NO_FLOW
    wake_all(share)


cdef void need_owner(share_t *share, uint32_t flow) noexcept nogil:
    """Nothing of the key is out, what waits has no owner: one of the readers that take gives it one."""
    if share.ownerless.first == NO_FLOW:
        wake_all(share)
    if not share.flows[flow].listed:
        list_flow(share, &share.ownerless, flow)


# ---- keys

cdef inline uint64_t rank_of(uint64_t seed, uint64_t hash) noexcept nogil:
    return mix_product(hash ^ seed, group_secret[2] ^ seed)


cdef reader_t *highest_for(share_t *share, uint64_t hash) noexcept nogil:
    """The reader that a key goes to now."""
    cdef uint32_t i, best = 0
    cdef uint64_t rank, highest = 0
    if share.single:
        return share.readers
    for i in range(share.readers_n):
        rank = rank_of(share.seeds[i], hash)
        if rank > highest:
            highest = rank
            best = i
    return share.at[share.slots[best]]


cdef int share_grow(share_t *share) noexcept nogil:
    """Make room for as many messages as `held` has.  0 or ENOMEM."""
    cdef size_t n = share.place.held_capacity
    if LIKELY(share.capacity == n):
        return 0
    if (array_grow(<void **>&share.parts, &share.parts_octets, n * sizeof(part_t)) != 0
            or array_grow(<void **>&share.flows, &share.flows_octets, n * sizeof(flow_t)) != 0
            or array_grow(<void **>&share.buckets, &share.buckets_octets, n * sizeof(uint32_t)) != 0):
        return ENOMEM
    if share.capacity == 0:
        memset(share.buckets, 0xFF, n * sizeof(uint32_t))
        share.buckets_n = <uint32_t>n
        share.mask = <uint32_t>n - 1
    share.capacity = <uint32_t>n
    return 0


cdef inline uint32_t bucket_of(const share_t *share, uint64_t hash) noexcept nogil:
    cdef uint32_t i = <uint32_t>hash & (2 * share.mask + 1)
    return i if i < share.buckets_n else i & share.mask


cdef void split_bucket(share_t *share) noexcept nogil:
    """One bucket more: it gets what belongs there, and all of that was in one other."""
    cdef uint32_t added = share.buckets_n
    cdef uint32_t *at = &share.buckets[added & share.mask]
    cdef uint32_t i
    share.buckets_n += 1
    share.buckets[added] = NO_FLOW
    while at[0] != NO_FLOW:
        i = at[0]
        if bucket_of(share, share.flows[i].hash) == added:
            at[0] = share.flows[i].next
            share.flows[i].next = share.buckets[added]
            share.buckets[added] = i
        else:
            at = &share.flows[i].next
    if share.buckets_n > 2 * share.mask + 1:
        share.mask = 2 * share.mask + 1


cdef uint32_t find_flow(share_t *share, uint64_t hash) noexcept nogil:
    cdef uint32_t i = share.buckets[bucket_of(share, hash)] if share.capacity else NO_FLOW
    while i != NO_FLOW and share.flows[i].hash != hash:
        i = share.flows[i].next
    return i


cdef void give_owner(share_t *share, uint32_t flow) noexcept nogil:
    """The key is in no list."""
    cdef flow_t *f = &share.flows[flow]
    cdef reader_t *r = highest_for(share, f.hash)
    f.slot = r.slot_of_share
    f.turn = share.turns[f.slot]
    list_flow(share, &r.flows, flow)


cdef uint32_t new_flow(share_t *share, uint64_t hash, bint alone) noexcept nogil:
    cdef uint32_t i = share.unused, bucket
    cdef flow_t *f
    if i == NO_FLOW:
        i = share.fresh
        share.fresh += 1
    else:
        share.unused = share.flows[i].next
    ASSERT(i < share.capacity)
    share.flows_n += 1
    f = &share.flows[i]
    f.hash = hash
    f.alone = alone
    f.out = 0
    give_owner(share, i)
    f.first = f.last = NO_HELD
    if alone:
        return i
    share.keyed_n += 1
    if share.keyed_n > share.buckets_n:
        split_bucket(share)
    bucket = bucket_of(share, hash)
    f.next = share.buckets[bucket]
    share.buckets[bucket] = i
    return i


cdef void free_flow(share_t *share, uint32_t i) noexcept nogil:
    cdef uint32_t *at
    unlist_flow(share, i)
    if not share.flows[i].alone:
        at = &share.buckets[bucket_of(share, share.flows[i].hash)]
        while at[0] != i:
            at = &share.flows[at[0]].next
        at[0] = share.flows[i].next
        share.keyed_n -= 1
    share.flows[i].alone = False
    share.flows[i].next = share.unused
    share.unused = i
    share.flows_n -= 1


cdef inline bint lacks_owners(const share_t *share) noexcept nogil:
    """Whether messages that wait may be in no heap, because their keys have no owner, or got one just now."""
    return share.ownerless.first != NO_FLOW or share.moving != NO_FLOW


cdef void find_owners(share_t *share) noexcept nogil:
    """Give owners to keys that have none, and messages to these, the lowest first, as long as there is time, and not too much waits
    in heaps."""
    cdef gate_t *gate = &share.place.stream.gate
    cdef uint32_t flow
    while lacks_owners(share) and share.heaped < SHARE_WAITS_MOST and gate.looked < SHARE_LOOKS:
        gate.looked += 1
        if share.moving != NO_FLOW:
            wait_for(share, &share.flows[share.moving], share.moving_at)
            share.moving_at = share.parts[share.moving_at].after
            if share.moving_at == NO_HELD:
                share.moving = NO_FLOW
            continue
        flow = share.ownerless.first
        unlist_flow(share, flow)
        if share.flows[flow].out == 0:      # Else it comes here again when the last one is settled.
            give_owner(share, flow)
            share.moving = flow
            share.moving_at = share.flows[flow].first


cdef uint64_t key_of_record(share_t *share, const uint8_t *record, bint *alone) noexcept nogil:
    cdef message_t m
    cdef group_key_t key
    cdef uint64_t seq
    alone[0] = False
    if share.single:
        return 1
    message_of(record, &m)
    find_group_key(&share.rule, &m, &key)
    if key.at != NULL:
        return hash_group_key(key.at, key.n)
    alone[0] = True
    seq = seq_of(record)
    return hash_group_key(<const uint8_t *>&seq, 8) ^ group_secret[0]

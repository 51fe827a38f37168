# The memory of a queue with message groups: its groups, and their messages that wait.
#
#    group_t      a group with messages that wait or are out, or with something to remember; found by the hash of its key,
#                 and by the key itself where two hashes are equal.  Other groups are not remembered
#    node_t       one message that waits, 16 octets: those of a group are a list, by rising number (group_places.pxi)
#    listed_t     besides, of a message that was out before, or was redriven
#    turns_t      a list of groups that have their turns one after the other
#
# Groups and nodes come from pools, and are known by their numbers there; 0 is none.  Does not know which consumer gets a message.

cdef enum:
    GROUP_CHUNK = 1024          # of a pool, at a time
    GROUP_KEY_INLINE = 16       # octets of a key that need no memory of their own
    NODE_HAS_PLACE = 1          # lowest bit of node_t.seg

    GROUP_PAUSED = 1            # group_t.state: an operator has paused it; a restart forgets that
    GROUP_PARKED = 2            # it is set aside until an operator acts; a restart does not forget that
    GROUP_RETRYING = 4          # it waits until group_t.until
    GROUP_CLOSING = 8           # sticky: it has a new owner as soon as nothing of it is out
    GROUP_FREE = 16             # it stands for the messages without a key
    GROUP_KNOWN = 32            # this number of the pool is in use
    GROUP_CHANGED = 64          # it has another owner than before: the next delivery says so

cdef struct node_t:
    size_t seg                  # the segment; or a listed_t, and NODE_HAS_PLACE.  0: free
    uint32_t position           # in the segment
    uint32_t next

cdef struct listed_t:
    place_t at                  # first: node_t.seg is its address
    uint64_t number             # in its group

cdef union group_name_t:
    uint8_t here[16]            # GROUP_KEY_INLINE
    uint8_t *there              # malloc

cdef struct group_t:
    uint64_t hash
    uint64_t token              # of its owner: rises with each new owner of any group of the queue
    int64_t until               # ns: when it is retried; or, without messages, when its owner loses it
    uint32_t first              # messages that wait
    uint32_t last
    uint32_t waiting            # ... how many
    uint32_t inflight           # messages that are out, or whose dead letters are under way
    uint32_t owner              # place in groups_t.owners; 0: none
    uint32_t in_turns           # place in groups_t.turns plus 1; 0: in none
    uint32_t next               # there
    uint32_t prev
    uint16_t key_n
    uint16_t state              # GROUP_*
    uint32_t listed             # the node that was listed last and not at the end; 0: none.  The next one likely stands behind it
    group_name_t key

cdef struct turns_t:
    uint32_t first
    uint32_t last

cdef struct group_pool_t:
    group_t **groups            # in chunks of GROUP_CHUNK
    uint32_t groups_n           # numbers ever used; number 0 is not used
    uint32_t groups_free        # head of a list by group_t.next
    uint32_t live
    uint64_t *slots             # upper half of the hash << 32 | number of the group, 0 = free; linear probing.  That half says
                                # where a slot belongs, so that no look at another group is needed
    uint32_t mask               # slots less 1
    node_t **nodes
    uint32_t nodes_n
    uint32_t nodes_free
    uint32_t nodes_live


cdef inline group_t *group_at(const group_pool_t *pool, uint32_t number) noexcept nogil:
    return pool.groups[number // GROUP_CHUNK] + number % GROUP_CHUNK


cdef inline node_t *node_at(const group_pool_t *pool, uint32_t number) noexcept nogil:
    return pool.nodes[number // GROUP_CHUNK] + number % GROUP_CHUNK


cdef inline const uint8_t *key_of_group(const group_t *g) noexcept nogil:
    if g.key_n <= GROUP_KEY_INLINE:
        return &g.key.here[0]
    return g.key.there


cdef int pool_grow(void ***chunks, uint32_t *n, size_t octets) noexcept nogil:
    """Add a chunk where one begins; number 0 is left out.  0 or ENOMEM."""
    cdef uint32_t i = n[0] // GROUP_CHUNK
    cdef void **more
    if n[0] % GROUP_CHUNK:
        return 0
    if i & (i - 1) == 0:                # The table of chunks doubles.
        more = <void **>realloc(chunks[0], (2 * i if i else 1) * sizeof(void *))
        if more == NULL:
            return ENOMEM
        chunks[0] = more
    chunks[0][i] = calloc(GROUP_CHUNK, octets)
    if chunks[0][i] == NULL:
        return ENOMEM
    if n[0] == 0:
        n[0] = 1
    return 0


# ---- messages that wait

cdef uint32_t node_new(group_pool_t *pool) noexcept nogil:
    """The number of a free node; 0: no memory."""
    cdef uint32_t number = pool.nodes_free
    if number:
        pool.nodes_free = node_at(pool, number).next
    else:
        if pool_grow(<void ***>&pool.nodes, &pool.nodes_n, sizeof(node_t)) != 0:
            return 0
        number = pool.nodes_n
        pool.nodes_n += 1
    pool.nodes_live += 1
    return number


cdef void node_free(group_pool_t *pool, uint32_t number) noexcept nogil:
    cdef node_t *node = node_at(pool, number)
    if node.seg & NODE_HAS_PLACE:
        free(<void *>(node.seg - NODE_HAS_PLACE))
    node.seg = 0
    node.next = pool.nodes_free
    pool.nodes_free = number
    pool.nodes_live -= 1


cdef inline seg_t *segment_of_node(const node_t *node) noexcept nogil:
    if node.seg & NODE_HAS_PLACE:
        return (<place_t *>(node.seg - NODE_HAS_PLACE)).seg
    return <seg_t *>node.seg


cdef uint64_t number_of_node(const node_t *node) noexcept nogil:
    """The message's number in its group; 0: its segment cannot be read."""
    cdef seg_t *s
    if node.seg & NODE_HAS_PLACE:
        return (<listed_t *>(node.seg - NODE_HAS_PLACE)).number
    s = <seg_t *>node.seg
    return seq_of(s.map + node.position) if seg_map(s) == 0 else 0


cdef inline void place_at_node(const node_t *node, place_t *t) noexcept nogil:
    """place_of_node() without the message's number, which is in the segment."""
    if node.seg & NODE_HAS_PLACE:
        t[0] = (<place_t *>(node.seg - NODE_HAS_PLACE))[0]
        return
    memset(t, 0, sizeof(place_t))
    t.seg = <seg_t *>node.seg
    t.position = node.position
    t.flags = PLACE_PASSED
    t.reason = ASIDE_GATED


cdef void place_of_node(const node_t *node, place_t *t) noexcept nogil:
    """The place of a message that waits; its number is right if its segment is mapped."""
    place_at_node(node, t)
    if not node.seg & NODE_HAS_PLACE and t.seg.map != NULL:
        t.seq = seq_of(t.seg.map + t.position)


cdef listed_t *list_place(node_t *node, const place_t *t) noexcept nogil:
    """Have the node remember the place as it is.  NULL: no memory."""
    cdef listed_t *own = <listed_t *>malloc(sizeof(listed_t))
    if own != NULL:
        own.at = t[0]
        own.at.reason = ASIDE_GATED
        own.number = number_in_group(t.seg.map + t.position) if t.seg.map != NULL else t.seq
        node.seg = <size_t>own | NODE_HAS_PLACE
    return own


cdef uint32_t node_for(group_pool_t *pool, const place_t *t) noexcept nogil:
    """A node for this place; 0: no memory."""
    cdef uint32_t number = node_new(pool)
    cdef node_t *node
    if number == 0:
        return 0
    node = node_at(pool, number)
    node.position = t.position
    node.next = 0
    node.seg = <size_t>t.seg
    if t.count or t.flags & ~<uint8_t>PLACE_PASSED or (t.seg.map != NULL and was_redriven(t.seg.map + t.position)):
        if list_place(node, t) == NULL:
            node_free(pool, number)
            return 0
    return number


cdef inline bint is_listed_before(const node_t *node, uint64_t number) noexcept nogil:
    """Whether a message that waits stands before a fresh one of that number: only one that was redriven may not."""
    return not node.seg & NODE_HAS_PLACE or (<listed_t *>(node.seg - NODE_HAS_PLACE)).number < number


cdef void group_list(group_pool_t *pool, group_t *g, uint32_t number, uint64_t place, bint is_last) noexcept nogil:
    """Put a node into its group's list, where its number `place` belongs.  is_last: its message is fresh."""
    cdef node_t *node = node_at(pool, number)
    cdef uint32_t at = g.first, before = 0
    if is_last and g.last and is_listed_before(node_at(pool, g.last), place):
        before = g.last
        at = 0
    elif g.listed and number_of_node(node_at(pool, g.listed)) < place:
        before = g.listed
        at = node_at(pool, before).next
    while at and number_of_node(node_at(pool, at)) < place:
        before = at
        at = node_at(pool, at).next
    node.next = at
    if before:
        node_at(pool, before).next = number
    else:
        g.first = number
    if at == 0:
        g.last = number
    if not is_last:
        g.listed = number
    g.waiting += 1


cdef void group_unlist(group_pool_t *pool, group_t *g, uint32_t number, uint32_t before) noexcept nogil:
    """Take a node out of the group's list, and free it.  before: the node before it; 0: it is the first."""
    cdef uint32_t next_ = node_at(pool, number).next
    if before:
        node_at(pool, before).next = next_
    else:
        g.first = next_
    if next_ == 0:
        g.last = before
    if g.listed == number:
        g.listed = before
    g.waiting -= 1
    node_free(pool, number)


# ---- groups

cdef int slots_grow(group_pool_t *pool) noexcept nogil:
    """Have room for one group more in the table; 0 or ENOMEM."""
    cdef uint32_t mask = pool.mask * 2 + 1 if pool.slots != NULL else 63
    cdef uint32_t i, at
    cdef uint64_t *slots
    if pool.slots != NULL and pool.live + 1 <= pool.mask - (pool.mask >> 2):
        return 0
    slots = <uint64_t *>calloc(<size_t>mask + 1, sizeof(uint64_t))
    if slots == NULL:
        return ENOMEM
    for i in range(pool.mask + 1 if pool.slots != NULL else 0):
        if pool.slots[i]:
            at = <uint32_t>(pool.slots[i] >> 32) & mask
            while slots[at]:
                at = (at + 1) & mask
            slots[at] = pool.slots[i]
    free(pool.slots)
    pool.slots = slots
    pool.mask = mask
    return 0


cdef uint32_t group_find(const group_pool_t *pool, const uint8_t *key, uint32_t n, uint64_t hash_) noexcept nogil:
    """The number of the group with this key; 0: it is not remembered."""
    cdef uint32_t at = <uint32_t>(hash_ >> 32) & pool.mask
    cdef uint64_t slot
    cdef group_t *g
    if pool.slots == NULL:
        return 0
    while True:
        slot = pool.slots[at]
        if slot == 0:
            return 0
        if slot >> 32 == hash_ >> 32:
            g = group_at(pool, <uint32_t>slot)
            if g.hash == hash_ and g.key_n == n and memcmp(key_of_group(g), key, n) == 0:
                return <uint32_t>slot
        at = (at + 1) & pool.mask


cdef uint32_t group_new(group_pool_t *pool, const uint8_t *key, uint32_t n, uint64_t hash_) noexcept nogil:
    """Remember a group that is not remembered; its number, or 0: no memory."""
    cdef uint32_t number = pool.groups_free, at
    cdef group_t *g
    cdef uint8_t *there = NULL
    if slots_grow(pool) != 0:
        return 0
    if n > GROUP_KEY_INLINE:
        there = <uint8_t *>malloc(n)
        if there == NULL:
            return 0
        memcpy(there, key, n)
    if number == 0 and pool_grow(<void ***>&pool.groups, &pool.groups_n, sizeof(group_t)) != 0:
        free(there)
        return 0
    if number:
        pool.groups_free = group_at(pool, number).next
    else:
        number = pool.groups_n
        pool.groups_n += 1
    g = group_at(pool, number)
    memset(g, 0, sizeof(group_t))
    g.hash = hash_
    g.key_n = <uint16_t>n
    g.state = GROUP_KNOWN
    if there != NULL:
        g.key.there = there
    else:
        memcpy(g.key.here, key, n)
    at = <uint32_t>(hash_ >> 32) & pool.mask
    while pool.slots[at]:
        at = (at + 1) & pool.mask
    pool.slots[at] = hash_ >> 32 << 32 | number
    pool.live += 1
    return number


cdef void group_forget(group_pool_t *pool, uint32_t number) noexcept nogil:
    """Forget a group that is in no list of turns and has no messages."""
    cdef group_t *g = group_at(pool, number)
    cdef uint32_t at = <uint32_t>(g.hash >> 32) & pool.mask, hole, home
    while <uint32_t>pool.slots[at] != number:
        at = (at + 1) & pool.mask
    hole = at
    while True:
        at = (at + 1) & pool.mask
        if pool.slots[at] == 0:
            break
        home = <uint32_t>(pool.slots[at] >> 32) & pool.mask
        if ((at - home) & pool.mask) >= ((at - hole) & pool.mask):
            pool.slots[hole] = pool.slots[at]
            hole = at
    pool.slots[hole] = 0
    if g.key_n > GROUP_KEY_INLINE:
        free(g.key.there)
    g.state = 0
    g.next = pool.groups_free
    pool.groups_free = number
    pool.live -= 1


cdef void pool_clear(group_pool_t *pool) noexcept nogil:
    """Free all."""
    cdef uint32_t i
    for i in range(1, pool.nodes_n):
        if node_at(pool, i).seg & NODE_HAS_PLACE:
            free(<void *>(node_at(pool, i).seg - NODE_HAS_PLACE))
    for i in range(1, pool.groups_n):
        if group_at(pool, i).state & GROUP_KNOWN and group_at(pool, i).key_n > GROUP_KEY_INLINE:
            free(group_at(pool, i).key.there)
    for i in range((pool.nodes_n + GROUP_CHUNK - 1) // GROUP_CHUNK):
        free(pool.nodes[i])
    for i in range((pool.groups_n + GROUP_CHUNK - 1) // GROUP_CHUNK):
        free(pool.groups[i])
    free(pool.nodes)
    free(pool.groups)
    free(pool.slots)
    memset(pool, 0, sizeof(group_pool_t))


# ---- turns

cdef void turns_join(group_pool_t *pool, turns_t *turns, uint32_t which, uint32_t number) noexcept nogil:
    """Put a group at the end of the list `which`."""
    cdef group_t *g = group_at(pool, number)
    cdef turns_t *list_ = turns + which
    g.in_turns = which + 1
    g.next = 0
    g.prev = list_.last
    if list_.last:
        group_at(pool, list_.last).next = number
    else:
        list_.first = number
    list_.last = number


cdef void turns_leave(group_pool_t *pool, turns_t *turns, uint32_t number) noexcept nogil:
    """Take a group out of the list that it is in."""
    cdef group_t *g = group_at(pool, number)
    cdef turns_t *list_ = turns + (g.in_turns - 1)
    if g.prev:
        group_at(pool, g.prev).next = g.next
    else:
        list_.first = g.next
    if g.next:
        group_at(pool, g.next).prev = g.prev
    else:
        list_.last = g.prev
    g.in_turns = g.next = g.prev = 0

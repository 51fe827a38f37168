# Records set aside: passed by the cursor, and not handed out.  The fourth state of a record that is not settled:
#
#    waiting     the cursor has not reached it                     seg_t.waiting
#    returned    ready, before the cursor, in the store's heap     seg_t.returned
#    out         with a consumer                                   seg_t.unacked, an entry_t
#    aside       neither ready nor out                             seg_t.aside, a place in rules_t.dying, queue_t.aside
#                                                                  or a gate's
#
#      waiting, returned --pass_aside--> aside --return_from_aside--> returned
#      out ---------------put_aside----> aside --take_from_aside--> out
#                                        aside --settle-------> (settled)
#
# A record that is aside does not count as ready: limits, expiry, purge and browse do not see it.  Compaction moves it
# (places.pxi), and its segment stays.  Its entry SET_ASIDE is in the acks file before the watermark `delivered` passes
# it.  So a start finds it ready at its place, and knows whether it had been handed out.  (A message that delay.pxi sends on
# has no such entry: it was never handed out, and nothing passes it.)
#
# The table is by sequence number.  Why a record is aside stands in place_t.reason.

cdef struct asides_t:           # records set aside, by sequence number: open addressing, linear probing
    place_t *at                 # seg NULL: free
    uint32_t n
    uint32_t capacity           # a power of two

cdef enum:
    ASIDE_HELD = 16             # reason: set aside by the control plane; REASON_*: a dead letter under way
    ASIDE_GATED = 17            # it waits because the queue's gate says so
    ASIDE_STOPPED = 18          # ... and the gate hands out nothing behind it


cdef void note_aside(place_t *t, uint16_t count) noexcept nogil:
    """Write into the acks file that t is aside.  count: its failed deliveries, should a start find it ready again.
    If the disk has no room for the entry, a crash loses that count."""
    seg_note(t.seg, t.position, SET_ASIDE | (ASIDE_WAS_OUT << 4 if t.flags & PLACE_WAS_OUT else 0), count)


cdef void pass_aside(store_t *st, place_t *t) noexcept nogil:
    """Set aside what peek() found.  The caller keeps the place."""
    # A returned record has an entry.  So must one that was out only by the watermark: others may go out before it now.
    if not is_returned(st, t):
        note_aside(t, t.count)
    take_head(st, t)
    t.flags |= PLACE_PASSED
    t.seg.aside += 1


cdef void put_aside(place_t *t, uint16_t count) noexcept nogil:
    """Set aside a record that was out, or was taken out of the middle.  The caller keeps the place.  count: as in
    note_aside()."""
    note_aside(t, count)
    t.flags |= PLACE_PASSED     # The next hand-out needs an entry of its own, because the last entry counts.
    t.seg.aside += 1


cdef int return_from_aside(place_t *t) noexcept nogil:
    """Make a record that was aside ready again, at its own place.  0 or ENOMEM."""
    if make_ready(t) != 0:
        return ENOMEM
    t.seg.aside -= 1
    if seg_map(t.seg) == 0:
        t.seg.queue.ready_octets += body_octets(t.seg.map + t.position)
    return 0


cdef int take_from_aside(place_t *t) noexcept nogil:
    """Take a record that was aside, so that it goes out at once.  0 or an errno: its segment cannot be mapped."""
    cdef int err = seg_map(t.seg)
    if err:
        return err
    t.seg.aside -= 1
    t.seg.queue.ready_octets += body_octets(t.seg.map + t.position)     # hand_out() takes them off
    return 0


# ---- the table

cdef inline uint32_t aside_slot(asides_t *table, uint64_t seq) noexcept nogil:
    """Sixteen messages in a row have their places in a row: what returns at once is near each other in memory."""
    return (<uint32_t>((seq >> 4) * <uint64_t>0x9E3779B97F4A7C15 >> 32) << 4 | <uint32_t>(seq & 15)) & (table.capacity - 1)


cdef inline void aside_prefetch(queue_t *q, uint64_t seq) noexcept nogil:
    """The place of record `seq` is looked for soon: among a million it is in no cache."""
    if q.aside != NULL and q.aside.capacity:
        prefetch_octets(&q.aside.at[aside_slot(q.aside, seq)], 1)


cdef int aside_grow(asides_t *table) noexcept nogil:
    """Twice the room; 0 or ENOMEM."""
    cdef uint32_t i, slot, old_capacity = table.capacity
    cdef place_t *old = table.at
    cdef uint32_t capacity = old_capacity * 2 if old_capacity else 16
    cdef place_t *new = <place_t *>calloc(capacity, sizeof(place_t))
    if new == NULL:
        return ENOMEM
    table.at = new
    table.capacity = capacity
    for i in range(old_capacity):
        if old[i].seg != NULL:
            slot = aside_slot(table, old[i].seq)
            while new[slot].seg != NULL:
                slot = (slot + 1) & (capacity - 1)
            new[slot] = old[i]
    free(old)
    return 0


cdef int aside_reserve(queue_t *q) noexcept nogil:
    """Have room for one more in the table; 0 or ENOMEM."""
    if q.aside == NULL:
        q.aside = <asides_t *>calloc(1, sizeof(asides_t))
        if q.aside == NULL:
            return ENOMEM
    if q.aside.n * 2 >= q.aside.capacity:
        return aside_grow(q.aside)
    return 0


cdef int aside_put(queue_t *q, place_t *t) noexcept nogil:
    """Put the place of a record that is aside into the table; 0 or ENOMEM."""
    cdef asides_t *table
    cdef uint32_t slot
    if aside_reserve(q) != 0:
        return ENOMEM
    table = q.aside
    slot = aside_slot(table, t.seq)
    while table.at[slot].seg != NULL:
        ASSERT(table.at[slot].seq != t.seq)
        slot = (slot + 1) & (table.capacity - 1)
    table.at[slot] = t[0]
    table.n += 1
    return 0


cdef bint aside_take(queue_t *q, uint64_t seq, place_t *t) noexcept nogil:
    """Take the place of record `seq` out of the table.  False: it is not aside."""
    cdef asides_t *table = q.aside
    cdef uint32_t slot, hole, home
    if table == NULL or table.n == 0:
        return False
    slot = aside_slot(table, seq)
    while table.at[slot].seg != NULL and table.at[slot].seq != seq:
        slot = (slot + 1) & (table.capacity - 1)
    if table.at[slot].seg == NULL:
        return False
    t[0] = table.at[slot]
    table.n -= 1
    # Linear probing leaves no hole between a place and its home slot.
    hole = slot
    while True:
        slot = (slot + 1) & (table.capacity - 1)
        if table.at[slot].seg == NULL:
            break
        home = aside_slot(table, table.at[slot].seq)
        if ((slot - home) & (table.capacity - 1)) >= ((slot - hole) & (table.capacity - 1)):
            table.at[hole] = table.at[slot]
            hole = slot
    table.at[hole].seg = NULL
    if table.n == 0 and table.capacity > 1024:
        aside_clear(q)
    return True


cdef place_t *aside_find(queue_t *q, uint64_t seq) noexcept nogil:
    """The place of record `seq` in the table, until the table changes; NULL: it is not aside."""
    cdef asides_t *table = q.aside
    cdef uint32_t slot
    if table == NULL or table.n == 0:
        return NULL
    slot = aside_slot(table, seq)
    while table.at[slot].seg != NULL and table.at[slot].seq != seq:
        slot = (slot + 1) & (table.capacity - 1)
    return &table.at[slot] if table.at[slot].seg != NULL else NULL


cdef inline uint64_t aside_count(queue_t *q) noexcept nogil:
    """How many records are set aside or dying."""
    cdef uint64_t n = q.aside.n if q.aside != NULL else 0
    if q.rules != NULL:
        n += q.rules.dying.n - q.rules.dying.first
        if q.rules.gate != NULL:
            n += q.rules.gate.held
    return n


cdef void aside_clear(queue_t *q) noexcept nogil:
    """Free the table: it is empty, or its queue goes."""
    if q.aside != NULL:
        free(q.aside.at)
        free(q.aside)
        q.aside = NULL

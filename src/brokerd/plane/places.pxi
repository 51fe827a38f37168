# One list of all containers that hold positions of records: visit_places() visits every place_t of a queue.  Compaction
# moves records by it.  Queue.check() counts by it, and so finds a container that is missing here.

cdef enum:
    HOLDER_RETURNED = 0         # store_t.returned
    HOLDER_DYING = 1            # rules_t.dying
    HOLDER_ASIDE = 2            # queue_t.aside, or a gate's own
    HOLDER_OUT = 3              # channel_t.ring


cdef void visit_places(queue_t *q, visit_t visit, void *context) noexcept nogil:
    cdef store_t *st = NULL
    cdef channel_t *ch = q.core.channels
    cdef entry_t *e
    cdef uint64_t tag
    cdef uint32_t i
    while True:
        st = next_store(q, st)
        if st == NULL:
            break
        for i in range(st.returned_n):
            visit(&st.returned[i], HOLDER_RETURNED, context)
    if q.rules != NULL:
        for i in range(q.rules.dying.first, q.rules.dying.n):
            visit(&q.rules.dying.at[i], HOLDER_DYING, context)
        if q.rules.gate != NULL:
            q.rules.gate.visit(q.rules.gate, visit, context)
    if q.aside != NULL:
        for i in range(q.aside.capacity):
            if q.aside.at[i].seg != NULL:
                visit(&q.aside.at[i], HOLDER_ASIDE, context)
    while ch != NULL:
        for tag in range(ch.base_tag, ch.next_tag if ch.unacked else ch.base_tag):
            e = &ch.ring[tag & (ch.ring_capacity - 1)]
            if e.at.seg != NULL and e.at.seg.queue == q:
                visit(&e.at, HOLDER_OUT, context)
        ch = ch.core_next


# ---- compaction

cdef struct move_t:             # the records of seg: old[i] is now new[i], both rising
    seg_t *seg
    const uint32_t *old
    const uint32_t *new
    uint32_t n
    uint32_t missing            # the position of a place that is not among the old ones; 0: none
    bint only_look              # look for missing ones, and move nothing


cdef void move_place(place_t *place, uint8_t holder, void *context) noexcept nogil:
    cdef move_t *move = <move_t *>context
    cdef uint32_t low = 0, high = move.n, middle
    if place.seg != move.seg:
        return
    while low < high:
        middle = (low + high) >> 1
        if move.old[middle] < place.position:
            low = middle + 1
        else:
            high = middle
    if low >= move.n or move.old[low] != place.position:
        move.missing = place.position
    elif not move.only_look:
        place.position = move.new[low]


cdef uint32_t move_places(seg_t *s, const uint32_t *old, const uint32_t *new, uint32_t n) noexcept nogil:
    """Every place in s gets its record's new position.  0; or a position that is not in `old`: then nothing has changed."""
    cdef move_t move
    move.seg = s
    move.old = old
    move.new = new
    move.n = n
    move.missing = 0
    move.only_look = True
    visit_places(s.queue, move_place, &move)
    if move.missing == 0:
        move.only_look = False
        visit_places(s.queue, move_place, &move)
    return move.missing

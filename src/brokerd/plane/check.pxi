# Queue.check(): compares the counts of a queue with what they count, and the flags that say in which lists it stands with
# these lists.  Not ready_octets, which is an estimate after a purge of whole segments.  Only tests call it: it walks all
# segments, heaps, rings and sets.

cdef struct census_t:           # of one segment
    seg_t *seg
    uint64_t places[4]          # by HOLDER_*


cdef void count_place(place_t *place, uint8_t holder, void *context) noexcept nogil:
    cdef census_t *census = <census_t *>context
    if census.seg == NULL or place.seg == census.seg:
        census.places[holder] += 1


cdef int compare_count(str what, uint64_t said, uint64_t found) except -1:
    if said != found:
        raise AssertionError(f"{what}: {said} are counted, {found} are there")
    return 0


cdef bint is_listed_right(seg_t *s) noexcept nogil:
    """Whether s is in its core's list of open segments just when it should be."""
    return (s.opened_in != NULL) == (s.fd >= 0 and not s.unlinked)


cdef int check_segment(seg_t *s) except -1:
    cdef census_t census
    cdef str name = text_path(s, "msgs")
    memset(&census, 0, sizeof(census_t))
    census.seg = s
    visit_places(s.queue, count_place, &census)
    compare_count(f"{name}: returned", s.returned, census.places[HOLDER_RETURNED])
    compare_count(f"{name}: out", s.unacked, census.places[HOLDER_OUT])
    compare_count(f"{name}: aside", s.aside, census.places[HOLDER_ASIDE] + census.places[HOLDER_DYING])
    if not s.damaged and (s.queue.rules == NULL or s.queue.rules.gate == NULL or not s.queue.rules.gate.reads):
        compare_count(f"{name}: records", s.records, <uint64_t>s.settled + s.waiting + s.returned + s.unacked + s.aside)
    if s.acks != NULL and not s.verify and s.acks_zeroed < HEADER + ENTRY * s.entries:
        raise AssertionError(f"{name}: entries stand behind the blocks of the acks file")
    if not is_listed_right(s):
        raise AssertionError(f"{name}: the list of open segments has it, or has it not, against its descriptor {s.fd}")
    if s.end > s.capacity or (s.stage != NULL and s.store.last != s):
        raise AssertionError(f"{name}: its end or its stage is not where it may be")
    return 0


cdef int check_store(store_t *st) except -1:
    cdef seg_t *s = st.first
    cdef seg_t *before = NULL
    cdef uint64_t waiting = 0, unsynced = 0, octets = 0
    cdef bint beyond = st.cursor == NULL
    cdef uint32_t i
    while s != NULL:
        if s.prev != before or s.store != st or s.queue != st.queue or (before != NULL and s.number <= before.number):
            raise AssertionError(f"{text_path(s, 'msgs')} is not where it belongs in its list")
        beyond |= s == st.cursor
        if not beyond and s.waiting:
            raise AssertionError(f"{text_path(s, 'msgs')}: {s.waiting} wait behind the cursor")
        check_segment(s)
        waiting += s.waiting
        unsynced += s.unsynced
        octets += s.end if s != st.last else 0
        before = s
        s = s.next
    if before != st.last or not beyond:
        raise AssertionError(f"{(<bytes>st.directory).decode()}: the list of segments ends elsewhere, or lost its cursor")
    s = st.leaving
    while s != NULL:
        if s.store != st or s.settled < s.records or s.unacked or s.returned or s.aside:
            raise AssertionError(f"{text_path(s, 'msgs')} leaves, and is not done with")
        unsynced += s.unsynced
        s = s.next
    compare_count(f"{(<bytes>st.directory).decode()}: ready", st.ready, waiting + st.returned_n)
    compare_count(f"{(<bytes>st.directory).decode()}: unsynced segments", st.unsynced_n, unsynced)
    compare_count(f"{(<bytes>st.directory).decode()}: octets of full segments", st.full_octets, octets)
    for i in range(1, st.returned_n):
        if st.returned[(i - 1) >> 1].seq >= st.returned[i].seq:
            raise AssertionError(f"{(<bytes>st.directory).decode()}: the heap of returned records is out of order")
    return 0


cdef int check_consumers(Queue queue) except -1:
    cdef queue_t *q = &queue.q
    cdef level_t *level = q.levels
    cdef consumer_t *c
    cdef Consumer consumer
    cdef uint64_t in_levels = 0, in_rings = 0, joined = 0, in_lists = 0, levels = 0
    while level != NULL:
        if level.next != NULL and level.next.priority >= level.priority:
            raise AssertionError("levels of consumers are out of order")
        in_levels += level.consumers
        levels += 1
        c = level.oldest
        while c != NULL:
            if c.level != level or c.closed or (c.newer == NULL) != (c == level.newest):
                raise AssertionError("a consumer is in a level that is not its own")
            in_lists += 1
            c = c.newer
        c = level.head
        while c != NULL:
            if c.level != level or not c.in_ring or c.closed or (c.next == NULL) != (c == level.tail):
                raise AssertionError("a consumer stands in a ring that is not its own")
            in_rings += 1
            c = c.next
        level = level.next
    for consumer in queue.consumers or ():
        joined += consumer.c.in_ring
    compare_count("levels of consumers", q.levels_n, levels)
    compare_count("consumers in levels", q.consumers, in_levels)
    compare_count("consumers in lists of levels", q.consumers, in_lists)
    compare_count("consumers", q.consumers, len(queue.consumers or ()))
    compare_count("consumers in rings", joined, in_rings)
    return 0


cdef int check_channels(queue_t *q) except -1:
    """Deliveries of each channel, and of each consumer of q."""
    cdef channel_t *ch = q.core.channels
    cdef entry_t *e
    cdef uint64_t tag, unacked, late, consumed, of_consumer
    cdef Consumer consumer
    cdef consumer_t *c
    while ch != NULL:
        unacked = late = consumed = 0
        for tag in range(ch.base_tag, ch.next_tag if ch.unacked or ch.late else ch.base_tag):
            e = &ch.ring[tag & (ch.ring_capacity - 1)]
            unacked += e.at.seg != NULL
            late += e.late != 0
            consumed += e.at.seg != NULL and e.consumer != NULL
        compare_count(f"channel {ch.number}: unacked", ch.unacked, unacked)
        compare_count(f"channel {ch.number}: late", ch.late, late)
        compare_count(f"channel {ch.number}: unacked of its consumers", ch.consumed, consumed)
        compare_count(f"channel {ch.number}: consumers", ch.consumers_n, len((<Channel>ch.owner).consumers or ()))
        c = ch.waiting
        while c != NULL:
            if not c.waits or c.in_ring or c.closed or c.channel != ch or (c.waits_next == NULL) != (c == ch.waiting_last):
                raise AssertionError(f"channel {ch.number}: a consumer waits that should not")
            c = c.waits_next
        for consumer in ((<Channel>ch.owner).consumers or {}).values():
            of_consumer = 0
            for tag in range(ch.base_tag, ch.next_tag if ch.unacked else ch.base_tag):
                e = &ch.ring[tag & (ch.ring_capacity - 1)]
                of_consumer += e.at.seg != NULL and e.consumer == &consumer.c
            compare_count(f"channel {ch.number}: unacked of a consumer", consumer.c.unacked, of_consumer)
        ch = ch.core_next
    return 0


cdef int check_lists(queue_t *q) except -1:
    """Compare the flags that say in which of the core's lists the queue is with these lists."""
    cdef queue_t *other = q.core.dirty
    cdef bint found = False
    cdef uint32_t i
    while other != NULL:
        found |= other == q
        other = other.dirty_next
    compare_count("in the list of dirty queues", q.is_dirty, found)
    found = False
    other = q.core.sync_dirty
    while other != NULL:
        found |= other == q
        other = other.sync_next
    compare_count("in the list of unsynced queues", q.is_sync_dirty, found)
    if q.rules == NULL:
        return 0
    found = False
    other = q.core.dying
    while other != NULL:
        found |= other == q
        other = other.rules.dying_next
    compare_count("in the list of queues with dying messages", q.rules.is_dying, found)
    found = False
    for i in range(q.core.deadlines_n):
        found |= q.core.deadlines[i] == q
    if found != (q.rules.deadline_at != 0) or (found and q.core.deadlines[q.rules.deadline_at - 1] != q):
        raise AssertionError("the queue is not where it should be in the heap of deadlines")
    return 0


cdef int check_put_off(Queue queue) except -1:
    """Compare the flags of the queue's consumers with the list of those that wait for the next turn of the loop."""
    cdef consumer_t *c = queue.q.core.put_off
    cdef consumer_t *before = NULL
    cdef Consumer consumer
    cdef uint64_t listed = 0, flagged = 0
    while c != NULL:
        if not c.is_put_off or (c.put_off_next == NULL) != (c == queue.q.core.put_off_last):
            raise AssertionError("a consumer is put off that should not, or the list ends elsewhere")
        if c.put_off_prev != before:
            raise AssertionError("a consumer that is put off does not name the one before it")
        before = c
        listed += c.queue == &queue.q and not c.closed
        c = c.put_off_next
    for consumer in queue.consumers or ():
        flagged += consumer.c.is_put_off
    return compare_count("consumers that are put off", flagged, listed)


cdef int check_gate(queue_t *q) except -1:
    """Compare what the gate counts as waiting with the places in the queue's table, and in the gate's own containers."""
    cdef gate_t *gate = q.rules.gate
    cdef census_t census
    cdef uint64_t waiting = 0
    cdef uint32_t i
    memset(&census, 0, sizeof(census_t))
    gate.visit(gate, count_place, &census)
    compare_count("places that the gate holds", gate.held, census.places[HOLDER_ASIDE])
    if q.aside != NULL:
        for i in range(q.aside.capacity):
            waiting += q.aside.at[i].seg != NULL and q.aside.at[i].reason >= ASIDE_GATED
    if gate.waiting != waiting + gate.held:     # Delays hold messages that do not count as the queue's.
        compare_count("messages that wait in the gate", gate.waiting, waiting)
    if not gate.is_sound(gate):
        raise AssertionError(f"{type(<object>(<Queue>q.owner)._gate).__name__}: its own counts do not agree")
    return 0


cdef int check_queue(queue_t *q) except -1:
    """Raise AssertionError at the first count that does not agree."""
    cdef store_t *st = NULL
    cdef census_t census
    cdef uint64_t ready = 0, retained = 0, octets = 0
    cdef seg_t *s
    if q.dropped:
        return 0
    while True:
        st = next_store(q, st)
        if st == NULL:
            break
        check_store(st)
        ready += st.ready
        s = st.first
        while s != NULL:
            retained += s.retained
            octets += s.end if s.retained else 0
            if s.retained and (s.settled < s.records or s == st.cursor or s == st.last):
                raise AssertionError(f"{text_path(s, 'msgs')} is retained, and not done with")
            s = s.next
        if st.ready and st.level > q.top:
            raise AssertionError(f"level {st.level} is ready above the top {q.top}")
    memset(&census, 0, sizeof(census_t))
    visit_places(q, count_place, &census)
    compare_count("ready", q.ready, ready)
    if q.rules != NULL:
        compare_count("retained segments", q.rules.retained, retained)
        compare_count("octets of retained segments", q.rules.retained_octets, octets)
    compare_count("unacked", q.unacked, census.places[HOLDER_OUT])
    compare_count("aside", aside_count(q), census.places[HOLDER_ASIDE] + census.places[HOLDER_DYING])
    if q.rules != NULL and q.rules.gate != NULL:
        check_gate(q)
    check_put_off(<Queue>q.owner)
    check_consumers(<Queue>q.owner)
    check_channels(q)
    return check_lists(q)

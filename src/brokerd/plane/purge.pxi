# Drops the messages of a queue in pieces, so that a long backlog does not hold up the loop.  Messages that come after the purge
# began stay, unless they wait in a gate.


cdef uint32_t purge_some_of_store(store_t *st, uint64_t below, uint32_t most, uint64_t *dropped) noexcept:
    """Settle ready messages with numbers below that one.  A whole file costs as much as one message, and they cost `most` at
    most; how much they did."""
    cdef queue_t *q = st.queue
    cdef uint64_t before, octets
    cdef place_t t
    cdef uint32_t cost = 0
    while cost < most and st.ready:
        cost += 1
        before = st.ready
        octets = st.cursor.end - HEADER if st.cursor != NULL else 0
        if st.cursor != NULL and st.cursor.next != NULL and st.cursor.next.base_seq <= below and purge_whole_segment(st):
            dropped[0] += before - st.ready
            octets -= min(octets, (before - st.ready) * RECORD)
            q.ready_octets -= min(octets, q.ready_octets)       # With the octets of names and properties: an estimate.
            continue
        if not find_head(st, &t) or t.seq >= below:
            break
        take_head_unseen(st, &t)
        uncount_octets(q, t.seg.map + t.position)
        settle(&t, PURGED)
        dropped[0] += 1
    return cost


def purge_some(Queue queue not None, uint64_t below, uint32_t most):
    """See plane/__init__.pyi."""
    cdef queue_t *q = &queue.q
    cdef store_t *st = NULL
    cdef uint32_t cost = 0
    cdef uint64_t dropped = 0
    queue.core.read_clock()
    write_stages(q.core)
    if q.rules != NULL and q.rules.gate != NULL:
        cost = q.rules.gate.purge(q.rules.gate, most)
        dropped = cost
    while cost < most:
        st = next_store(q, st)
        if st == NULL:
            break
        cost += purge_some_of_store(st, below, most - cost, &dropped)
    if q.ready == 0:
        q.ready_octets = 0
    queue.core.request_turn()
    return dropped, cost < most

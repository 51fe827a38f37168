# Stores a message in its queues, by their rules: in those that refuse none.  Knows nothing of where the message comes from.

cdef enum:
    STORED = 0              # `stored` of store_message() before it sets these bits:
    WAITS = 1               # the confirm must wait for a sync
    REFUSED = 2             # a queue refused the message
    TAKEN = 4               # a queue stored it
    UNADMITTED = 8          # a queue refused it because its gate does not admit it


cdef inline void complete(message_t *m, known_t *known) noexcept nogil:
    """Fill in the fields of m that follow from its pieces and properties."""
    cdef uint64_t length = <uint64_t>RECORD + m.names_n + m.properties_n + m.body_n
    if UNLIKELY(m.names_n + m.properties_n >= 0xFFFF):
        length += 4
    m.length = <uint32_t>length
    m.priority = known.priority
    m.large = NULL
    m.keys = NULL
    m.keys_at = 0
    m.dedup_hash = 0
    m.flags = (PERSISTENT if known.delivery_mode == 2 else 0) | (EXPIRES if known.expires else 0)


cdef inline bint is_plain(queue_t *q, message_t *m) noexcept nogil:
    """Whether m can be stored in q without a look at rules: q has none and no levels, and m has no expiration."""
    return q.rules == NULL and q.levels_above == NULL and not q.dropped | q.lost and not m.flags & EXPIRES


cdef void choose_key(queue_t *q, message_t *m) noexcept nogil:
    """Choose the deduplication key of m's record in q: the queue's own if q has a window, else the exchange's."""
    cdef const queue_key_t *key
    m.flags &= ~<uint16_t>(KEY_OF_EXCHANGE | KEY_TTL)
    if q.window != NULL:
        key = key_of_queue(m.keys, q, &m.keys_at)
        m.dedup_hash = key.hash if key != NULL else 0
        m.key_is_new = key != NULL and key.is_new
    else:
        m.dedup_hash = m.keys.of_exchange
        if m.dedup_hash:
            m.flags |= KEY_OF_EXCHANGE
    if m.dedup_hash and m.keys.ttl >= 0:
        m.flags |= KEY_TTL


cdef inline uint32_t mark_stored(store_t *st, message_t *m, bint waits) noexcept nogil:
    """Mark the queue that stored m for delivery, and for the sync that it needs."""
    cdef queue_t *q = st.queue
    mark_dirty(q)
    if m.flags & PERSISTENT and q.durable and (waits or UNLIKELY(m.keys != NULL)) and q.core.sync:
        # The next sync covers a record with a key even if its own publisher asks for no confirm: a duplicate's confirm
        # may wait for that sync.
        mark_sync_dirty(st)
        return TAKEN | WAITS if waits else TAKEN
    return TAKEN


cdef inline uint32_t store_in(store_t *st, message_t *m, bint waits) noexcept nogil:
    """Append m to st, and mark the queue.  The caller has called reserve()."""
    append(st, m)
    return mark_stored(st, m, waits)


cdef int store_message(queue_t **targets, uint32_t n, message_t *m, bint waits, uint32_t *stored, uint8_t *took) noexcept nogil:
    """Store m in every queue that does not refuse it.  0, or the errno: then m is stored nowhere.

    took: an octet for each target, set to 1 if the queue stored m.  NULL: the caller does not need it."""
    cdef queue_t *q
    cdef store_t *st
    cdef uint32_t i
    cdef uint32_t need = align8(m.length)
    cdef int err
    cdef uint32_t done = STORED
    cdef bint dlx = False
    for i in range(n):
        q = targets[i]
        if UNLIKELY(q.dropped | q.lost):
            continue
        if UNLIKELY(q.rules != NULL or m.flags & EXPIRES):
            err = check_admission(q, m, m.flags & EXPIRES)
            if err:
                return err
            if q.rules.refuses:
                continue
        st = store_for(q, m.priority)
        if UNLIKELY(st == NULL):
            return ENOMEM
        if UNLIKELY(q.staged != NULL):
            end_other_stage(st)
        err = reserve(st, need) if LIKELY(m.large == NULL) else reserve_large(st, m)
        if UNLIKELY(err != 0) and not q.lost:
            return err
    for i in range(n):
        q = targets[i]
        if UNLIKELY(q.dropped | q.lost):
            if q.lost and not q.dropped:
                done |= REFUSED
            continue
        if UNLIKELY(q.rules != NULL) and q.rules.refuses:
            q.rules.n_refused += 1
            done |= REFUSED | (UNADMITTED if q.rules.unadmitted else 0)
            dlx |= q.rules.overflow == REJECT_PUBLISH_DLX
            continue
        st = store_for(q, m.priority)
        if UNLIKELY(m.keys != NULL):
            choose_key(q, m)
        if LIKELY(m.large == NULL):
            done |= store_in(st, m, waits)
        else:
            append_large(st, m)
            done |= mark_stored(st, m, waits)
        if UNLIKELY(took != NULL):
            took[i] = 1
        if UNLIKELY(q.rules != NULL):
            apply_rules_on_store(st, m)
    stored[0] |= done
    if UNLIKELY(dlx):
        with gil:
            tell_refused(targets, n, m)
    return 0


cdef inline bint is_past(int64_t until) noexcept nogil:
    """Whether monotonic_ns() has come to `until`, which may be NEVER."""
    return until != NEVER and monotonic_ns() >= until


cdef bint reserve_in_many(queue_t **targets, uint32_t n, message_t *m, int64_t most) noexcept nogil:
    """Find room for m in many queues, which may need another page each, or a file.  False: that took `most` ns, and there is
    more to do.  Where there is no room, store_message() meets the same fault, and tells it."""
    cdef store_t *st
    cdef uint32_t i, need = align8(m.length)
    cdef int64_t began = monotonic_ns()
    if most == NEVER:
        return True
    for i in range(n):
        if targets[i].dropped:
            continue
        st = store_for(targets[i], m.priority)
        if st == NULL or has_room(st, need):
            continue
        if targets[i].confirms_have_waited and has_file(st, need):
            continue    # Its records go by way of a stage in memory (stage.pxi): room there is found in no time.
        if targets[i].staged != NULL:
            end_other_stage(st)
        if reserve_slow(st, need) != 0:
            return True
        if monotonic_ns() - began >= most:
            return False
    return True


cdef void tell_refusal(queue_t *q, message_t *m) noexcept:
    """reject-publish-dlx: call on_dead() for a message that the queue refused."""
    cdef Queue queue = <Queue>q.owner
    queue.on_dead(REASONS[REASON_LENGTH], 0, (<const char *>m.names)[1:1 + m.names[0]], routing_key_of(m),
                  (<const char *>m.properties)[:m.properties_n], (<const char *>m.body)[:m.body_n], 0)


cdef void tell_refused(queue_t **targets, uint32_t n, message_t *m) noexcept:
    """Call on_dead() for each queue that refused m with reject-publish-dlx.  The other queues have stored m by now,
    because on_dead() stores messages as well."""
    cdef uint32_t i
    cdef list told_ = []
    for i in range(n):
        if not targets[i].dropped and targets[i].rules != NULL and targets[i].rules.refuses \
                and targets[i].rules.overflow == REJECT_PUBLISH_DLX:
            targets[i].rules.refuses = False
            told_.append(<Queue>targets[i].owner)
    for queue in told_:
        tell_refusal(&(<Queue>queue).q, m)


cdef enum:
    COPIED_OCTETS = 4096        # that are copied to a target count for 1 more


cdef inline uint64_t cost_of_copies(uint64_t targets, uint64_t octets) noexcept nogil:
    """What it costs to store a message of so many octets in so many queues; at least 1."""
    return max(<uint64_t>1, targets * (1 + octets // COPIED_OCTETS))

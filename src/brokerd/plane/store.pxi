# A store: a list of segments, appended to at one end, read by a cursor, and a heap of returned records before the
# cursor.  A queue has one, or one for each priority level in use: sequence numbers are the queue's, rise by one a
# record and are never reused.
#
#    first ... [retired when all is settled] ... cursor ... last (appended to)
#
# Nothing here knows who consumes.


cdef inline void not_there(store_t *st, uint64_t n) noexcept nogil:
    """So many were counted as ready that cannot be read."""
    st.ready -= min(n, st.ready)
    st.queue.ready -= min(n, st.queue.ready)


cdef void seg_unlink_from_list(seg_t *s) noexcept nogil:
    cdef store_t *st = s.store
    if s.prev != NULL:
        s.prev.next = s.next
    else:
        st.first = s.next
    if s.next != NULL:
        s.next.prev = s.prev
    else:
        st.last = s.prev
    s.next = s.prev = NULL


cdef void seg_append_to_list(seg_t *s) noexcept nogil:
    cdef store_t *st = s.store
    s.prev = st.last
    s.next = NULL
    if st.last != NULL:
        st.last.next = s
    else:
        st.first = s
    st.last = s


cdef void reach(store_t *st, seg_t *s) noexcept nogil:
    """The cursor enters s."""
    st.cursor = s
    st.position = HEADER


cdef void cursor_leaves(store_t *st) noexcept nogil:
    """The cursor has passed all of its segment and another follows."""
    cdef seg_t *s = st.cursor
    if s.waiting:
        # Records that were counted but are not there to be read: damaged.
        not_there(st, s.waiting)
        s.settled += s.waiting
        s.damaged = True
        s.waiting = 0
    reach(st, s.next)
    free(s.settled_bits)
    free(s.counts)
    s.settled_bits = NULL
    s.counts = NULL
    s.count_n = 0
    # The last but one stays mapped: settled soon, as a rule, and then written into again.
    if not retire_if_settled(s) and s.next != st.last:
        seg_unmap(s)


cdef int make_directory_of(store_t *st) noexcept:
    cdef queue_t *q = st.queue
    try:
        (<Queue>q.owner).make_directory()
        if st != &q.store:
            os_makedirs((<bytes>st.directory).decode(), exist_ok=True)
    except OSError as error:
        return error.errno or EIO
    except Exception:
        return EIO
    q.store.directory_unsynced = q.store.parent_unsynced = st.directory_unsynced = True
    return 0


cdef void seg_begin(seg_t *s) noexcept nogil:
    """A number of its own, and nothing in it."""
    cdef store_t *st = s.store
    cdef core_t *core = st.queue.core
    if core.spare_directory != NULL and core.next_number > st.next_number:
        st.next_number = core.next_number
    s.number = st.next_number
    core.next_number = max(core.next_number, s.number + 1)
    s.base_seq = st.queue.next_seq
    s.crc_seed = seed_of(s.number)
    s.end = HEADER
    s.records = s.settled = s.unacked = s.waiting = s.returned = s.redeliver_below = 0
    s.entries = s.acks_zeroed = 0
    s.events = s.events_lost = 0
    s.journal_known = s.journal_dirty = s.journal_syncing = False
    s.generation = 0
    s.sealed = 0
    s.verify = s.loaded = s.unsynced = s.damaged = False


cdef int seg_new(store_t *st, uint32_t need) noexcept nogil:
    """Append an empty segment with room for a record of `need` octets; 0 or the errno."""
    cdef queue_t *q = st.queue
    cdef core_t *core = q.core
    cdef uint32_t capacity = core.segment_octets
    cdef seg_t *s
    cdef char path[PATH_ROOM]
    cdef char spare[PATH_ROOM]
    cdef int err = 0
    cdef bint recycled
    if need + HEADER > capacity:
        capacity = (need + HEADER + 4095) & ~<uint32_t>4095
    if st.spare == NULL and capacity == core.segment_octets:
        adopt_spare(st)
    recycled = st.spare != NULL and capacity == core.segment_octets
    if recycled:
        s = st.spare
        st.spare = NULL
    else:
        s = <seg_t *>calloc(1, sizeof(seg_t))
        if s == NULL:
            return ENOMEM
        s.fd = -1
        s.store = st
        s.queue = q
        s.capacity = capacity
    seg_begin(s)
    path_of(s, b"msgs", path)
    if recycled:
        err = seg_map(s)
        if err:
            seg_free(s)
            return err
        s.zeroed = 0
        seg_write_header(s)
        snprintf(spare, PATH_ROOM, b"%s/spare.msgs", st.directory)
        if not s.unlinked and rename(spare, path) < 0:
            # Somebody took its file away: it is a new one then.
            seg_unmap(s)
            err = seg_create(s, path)
    else:
        err = seg_create(s, path)
    if err == 0 and not q.durable:
        if not s.unlinked:
            err = seg_open(s)
            unlink(path)
            s.unlinked = True
    elif err == 0:
        # Now, while a publisher can still be told to wait: a delivery must find room for its mark.
        err = acks_map(s)
        if err:
            unlink(path)
    if err:
        seg_free(s)
        return err
    st.next_number += 1
    q.mixed = False
    st.directory_unsynced = True
    if st.first == NULL:
        # Others make folders too, and a broker before this one may have: whether their names are on disk is not known.
        st.parent_unsynced = q.store.parent_unsynced = True
    if q.journal != NULL:
        journal_begin(s)
    seg_append_to_list(s)
    if st.cursor == NULL:
        reach(st, s)
    return 0


cdef int seg_create(seg_t *s, const char *path) noexcept nogil:
    """The file of a new segment, its first blocks and its map; 0 or the errno (then no file is left)."""
    cdef int err = 0
    cdef void *m
    s.fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0o640)
    if s.fd < 0 and errno == ENOENT:
        with gil:
            err = make_directory_of(s.store)
        if err:
            return err
        s.fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0o640)
    if s.fd < 0:
        return errno
    s.zeroed = s.allocated = min(<uint32_t>FIRST_ZEROS, s.capacity)
    if ftruncate(s.fd, s.capacity) < 0:
        err = errno
    if err == 0:
        err = write_zeros(s.fd, 0, s.zeroed)
    if err == 0:
        m = mmap(NULL, s.capacity, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0)
        if m == MAP_FAILED:
            err = errno
    if err:
        close(s.fd)
        s.fd = -1
        unlink(path)
        return err
    s.map = s.base = <uint8_t *>m
    s.words = s.map + 40
    seg_write_header(s)
    return 0


cdef int seg_allocate(seg_t *s, uint32_t want, int advice) noexcept nogil:
    """Have blocks up to `want` at least, as a rule twice what there is, and their pages mapped as `advice` says: one
    call for many, where each would be a fault of its own.  0 or the errno."""
    cdef uint32_t page = s.zeroed & ~<uint32_t>4095
    cdef uint32_t to = s.zeroed + max(<uint32_t>FIRST_ZEROS, min(s.zeroed, <uint32_t>MOST_ZEROS))
    cdef int err
    if to < want:
        to = (want + 4095) & ~<uint32_t>4095
    if to > s.capacity:
        to = s.capacity
    if to > s.allocated:
        err = seg_open(s)
        if err == 0:
            err = write_zeros(s.fd, s.allocated, to)
        if err:
            return err
        s.allocated = to
    madvise(s.map + page, to - page, advice)
    s.zeroed = to
    return 0


cdef int seg_stage(seg_t *s, uint32_t need) noexcept nogil:
    """Room for a record of `need` octets, at most STAGE_ROOM, that is gathered before it is written; 0 or the errno."""
    cdef uint32_t want = s.end + need
    cdef int err = 0
    if s.stage != NULL:
        stage_end(s)
    if want > s.allocated:
        s.zeroed = s.allocated
        err = seg_allocate(s, want, MADV_POPULATE_READ)
    if err == 0:
        err = stage_begin(s)
    if err == 0:
        s.zeroed = min(s.allocated, s.end + <uint32_t>STAGE_ROOM)
    return err


cdef void seg_seal(seg_t *s) noexcept nogil:
    cdef store_t *st = s.store
    if s.stage != NULL:
        stage_end(s)
    seg_put_sealed(s, 1)
    if s != st.cursor:
        if not s.unsynced:
            seg_unmap(s)
        elif s.map != NULL:
            munmap(s.map, s.capacity)
            s.map = NULL
        if s.unacked == 0:
            acks_unmap(s)
            journal_unmap(s)


cdef int reserve_slow(store_t *st, uint32_t need) noexcept nogil:
    cdef seg_t *s = st.last
    cdef int err
    if s != NULL and not s.sealed and s.end + need > s.capacity:
        err = seg_new(st, need)
        if err:
            return err
        seg_seal(s)
        retire_if_settled(s)
        s = st.last
    elif s == NULL or s.sealed:
        err = seg_new(st, need)
        if err:
            return err
        s = st.last
    err = seg_map(s)
    if err:
        return err
    if s.end + need <= s.zeroed:
        return 0
    if st.queue.syncs and need <= STAGE_ROOM and not st.queue.mixed:
        return seg_stage(s, need)
    if s.stage != NULL:
        stage_end(s)
    return seg_allocate(s, s.end + need, MADV_POPULATE_WRITE)


cdef inline int reserve(store_t *st, uint32_t need) noexcept nogil:
    """Make sure that a record of `need` octets can be stored without fail; 0 or the errno."""
    cdef seg_t *s = st.last
    if LIKELY(s != NULL and s.map != NULL and s.end + need <= s.zeroed and not s.sealed):
        return 0
    return reserve_slow(st, need)


cdef struct message_t:
    # A message on its way in: pieces that lie somewhere, put together by append().
    const uint8_t *names        # exchange and routing key, as short strings
    uint32_t names_n
    const uint8_t *properties   # flags and list
    uint32_t properties_n
    const uint8_t *body
    uint64_t body_n
    uint32_t length             # of the record, header and all
    uint32_t connection
    uint16_t channel
    uint16_t flags
    uint8_t priority
    uint64_t publish_seq


cdef inline void append(store_t *st, message_t *m) noexcept nogil:
    """Store m as the queue's next message.  reserve() went before."""
    cdef queue_t *q = st.queue
    cdef seg_t *s = st.last
    cdef uint8_t *r = s.base + s.end
    cdef uint8_t *p = r + RECORD
    cdef uint32_t meta_n = m.names_n + m.properties_n
    cdef int64_t ts = q.core.now
    if ts <= q.last_ts:
        ts = q.last_ts + 1
    q.last_ts = ts
    q.touched = q.core.now
    put_le32(r, RECORD_MAGIC)
    put_le32(r + 4, m.length)
    if LIKELY(meta_n < 0xFFFF):
        put_le16(r + 12, <uint16_t>meta_n)
    else:
        put_le16(r + 12, 0xFFFF)
        put_le32(p, meta_n)
        p += 4
    r[14] = m.priority
    r[15] = 0
    put_le64(r + 16, q.next_seq)
    put_le64(r + 24, <uint64_t>ts)
    put_le32(r + 32, m.connection)
    put_le16(r + 36, m.channel)
    put_le16(r + 38, m.flags)
    put_le64(r + 40, m.publish_seq)
    put_le64(r + 48, 0)
    put_le64(r + 56, 0)
    # The pad to 8 octets: zero in a new file, but not in a recycled one.
    put_le64(r + align8(m.length) - 8, 0)
    memcpy(p, m.names, m.names_n)
    p += m.names_n
    memcpy(p, m.properties, m.properties_n)
    p += m.properties_n
    memcpy(p, m.body, m.body_n)
    put_le32(r + 8, record_crc(s, r, m.length))
    s.end += align8(m.length)
    s.records += 1
    s.waiting += 1
    put_word(s.words + 8, s.records)
    put_word(s.words, s.end)
    q.next_seq += 1
    st.ready += 1
    q.ready += 1
    if UNLIKELY(st.level > q.top):
        q.top = st.level
    q.ready_octets += m.body_n
    q.n_published += 1


# ---- reading

cdef struct taken_t:
    seg_t *seg
    uint64_t seq
    uint32_t position
    uint16_t count
    uint32_t ordinal            # handed out as the how-manieth of its level since the start, modulo 2**32
    bint redelivered
    bint returned               # it is the top of the heap


cdef inline uint64_t body_octets(const uint8_t *r) noexcept nogil:
    cdef const uint8_t *meta
    cdef uint32_t n = meta_of(r, &meta)
    return le32(r + 4) - <uint32_t>(meta - r) - n


cdef bint head_returned(store_t *st, taken_t *t) noexcept nogil:
    """The returned record with the lowest sequence number: it stands before all that the cursor has to come."""
    cdef ret_t *top = st.returned
    if seg_map(top.seg) != 0:
        return False
    t.seg = top.seg
    t.seq = top.seq
    t.position = top.position
    t.count = top.count
    t.ordinal = top.ordinal
    t.redelivered = t.returned = True
    return True


cdef bint skip_damage(store_t *st) noexcept nogil:
    """The record under the cursor is damaged: go on at the next whole one, and have the loss reported."""
    cdef seg_t *s = st.cursor
    cdef uint32_t at = st.position, p = st.position + 8
    while p + RECORD <= s.end:
        if le32(s.map + p) == RECORD_MAGIC and record_is_whole(s, p):
            break
        p += 8
    if p + RECORD > s.end:
        p = s.end
    st.position = p
    with gil:
        report_damage(s, at, p - at)
    return True


cdef void report_damage(seg_t *s, uint32_t at, uint32_t octets):
    cdef Core core = (<Queue>s.queue.owner).core
    s.damaged = True
    core.damaged_upcall(text_path(s, "msgs"), at, octets)


cdef inline bint head(store_t *st, taken_t *t) noexcept nogil:
    """The store's next message in sequence order, which stays.  False: none can be read.  Its segment is mapped."""
    cdef seg_t *s
    cdef const uint8_t *r
    if UNLIKELY(st.returned_n):
        return head_returned(st, t)
    while True:
        s = st.cursor
        if s == NULL:
            return False
        if UNLIKELY(st.position >= s.end):
            if s == st.last:
                if s.waiting:
                    not_there(st, s.waiting)
                    s.settled += s.waiting
                    s.waiting = 0
                return False
            cursor_leaves(st)
            continue
        if UNLIKELY(s.map == NULL) and seg_map(s) != 0:
            return False
        if UNLIKELY(s.verify):
            if not s.loaded:
                if seg_load_acks(s) != 0:
                    return False
                s.loaded = True
            if not record_is_whole(s, st.position):
                skip_damage(st)
                continue
            if was_settled(s, st.position):
                st.position += align8(le32(s.map + st.position + 4))
                continue
        r = s.map + st.position
        t.seg = s
        t.seq = le64(r + 16)
        t.position = st.position
        t.redelivered = st.position < s.redeliver_below
        t.count = 0
        if UNLIKELY(t.redelivered):
            t.count = count_of(s, st.position) + 1
        t.returned = False
        return True


cdef inline void advance(store_t *st, taken_t *t) noexcept nogil:
    """What head() found is taken: not ready any more."""
    cdef seg_t *s = t.seg
    st.ready -= 1
    st.queue.ready -= 1
    if UNLIKELY(t.returned):
        s.returned -= 1
        heap_pop(st)
        return
    st.position = t.position + align8(le32(s.map + t.position + 4))
    s.waiting -= 1
    if LIKELY(st.position > s.redeliver_below):
        seg_delivered(s, st.position)      # the mark never goes back


cdef bint next_of(store_t *st, taken_t *t) noexcept nogil:
    """head(), off a message's way."""
    return head(st, t)


cdef void take_next(store_t *st, taken_t *t) noexcept nogil:
    """advance(), off a message's way."""
    advance(st, t)


cdef store_t *top_level(queue_t *q) noexcept nogil:
    """The highest level that is ready; level 0 if none is."""
    cdef store_t *st
    while q.top:
        st = q.levels_above[q.top - 1]
        if st != NULL and st.ready:
            return st
        q.top -= 1
    return &q.store


cdef bint take_by_rules(queue_t *q, taken_t *t) noexcept nogil:
    """take() where there are priorities, or messages that expire."""
    cdef store_t *st
    while True:
        st = top_level(q)
        if next_of(st, t):
            take_next(st, t)
            if q.rules != NULL and q.rules.expires and expires_at(q, t.seg.map + t.position) < q.core.now:
                octets_gone(q, t.seg.map + t.position)
                kill(t, EXPIRED_REASON)
                continue
            return True
        if st.ready or not q.top:
            return False


cdef inline bint take(queue_t *q, taken_t *t) noexcept nogil:
    """The queue's next message, not ready any more.  False: none can be read.  Its segment is mapped."""
    if UNLIKELY(q.rules != NULL or q.top):
        return take_by_rules(q, t)
    if not head(&q.store, t):
        return False
    advance(&q.store, t)
    return True


cdef int untake(taken_t *t) noexcept nogil:
    """It could not be handed out: ready again, at its place.  0 or ENOMEM."""
    cdef store_t *st = t.seg.store
    if heap_push(st, t) != 0:
        return ENOMEM
    t.seg.returned += 1
    is_ready(st)
    return 0


cdef inline void is_ready(store_t *st) noexcept nogil:
    """One more."""
    st.ready += 1
    st.queue.ready += 1
    if UNLIKELY(st.level > st.queue.top):
        st.queue.top = st.level


cdef void settle(taken_t *t, uint8_t kind) noexcept nogil:
    """The record is done with.  May free its segment."""
    cdef seg_t *s = t.seg
    cdef queue_t *q = s.queue
    if UNLIKELY(q.dropped):
        return
    if UNLIKELY(seg_note(s, t.position, kind, t.count) != 0):
        q.n_unrecorded += 1
    if UNLIKELY(q.journal != NULL):
        journal_note(t, kind & 15, kind >> 4)
    if UNLIKELY(kind != ACKED):
        settled_otherwise(q, kind)
    s.settled += 1
    if s.acks != NULL:
        put_word(s.acks + 40, s.settled)
    if UNLIKELY(s.settled >= s.records):
        retire_if_settled(s)


cdef int give_back(taken_t *t, uint8_t cause) noexcept nogil:
    """The record is ready again, at its own place; one delivery has failed.  0 or ENOMEM."""
    cdef seg_t *s = t.seg
    cdef queue_t *q = s.queue
    if q.dropped:
        return 0
    if t.count < 0xFFFF:
        t.count += 1
    disturbed(q, RETURNED_BY + cause - 1, 1)
    if UNLIKELY(q.journal != NULL):
        journal_note(t, RETURNED, cause)
    if UNLIKELY(q.rules != NULL) and q.rules.delivery_limit >= 0 and t.count >= max(q.rules.delivery_limit, 1):
        q.n_returned += 1
        q.rules.n_limited += 1
        kill(t, LIMIT_REASON)
        return 0
    if untake(t) != 0:
        return ENOMEM
    seg_note(s, t.position, RETURNED | cause << 4, t.count)
    q.n_returned += 1
    if seg_map(s) == 0:
        q.ready_octets += body_octets(s.map + t.position)
        if UNLIKELY(q.rules != NULL):
            if q.rules.expires:
                expires_by(q, expires_at(q, s.map + t.position))
            if q.rules.overflow == DROP_HEAD and is_over(q, q.rules):
                over_mark(q)
    return 0

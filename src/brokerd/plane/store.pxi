# Stores records: append() adds them to a store's last segment, and a cursor reads them in order.  Records that were given
# back (`returned`) wait in a heap.  As a rule they come before all records that the cursor has yet to reach.  Each queue
# numbers its records: sequence numbers rise by one with each record, and are never reused.
#
#    first ... [a segment retires when all its records are settled] ... cursor ... last (append() writes here)
#
# Knows segments only: fate.pxi decides what becomes of a message that was taken.


cdef void seg_begin(seg_t *s) noexcept nogil:
    """Give s a new number, and no records."""
    cdef store_t *st = s.store
    cdef core_t *core = st.queue.core
    if core.spare_directory != NULL and core.next_number > st.next_number:
        st.next_number = core.next_number
    s.number = st.next_number
    core.next_number = max(core.next_number, s.number + 1)
    s.base_seq = st.queue.next_seq
    s.crc_seed = seed_of(s.number)
    s.end = HEADER
    s.records = s.settled = s.unacked = s.waiting = s.returned = s.aside = s.passed_below = s.doubted_below = 0
    s.readers = s.indexed = s.whole_below = 0
    s.entries = s.acks_zeroed = 0
    s.events = s.events_lost = 0
    s.journal_known = s.journal_dirty = s.journal_syncing = False
    s.keys_written = False
    s.keys_last = 0
    s.keys_until = 0
    s.generation = 0
    s.sealed = 0
    s.lies = 0
    s.retained = False
    s.created = s.newest = 0
    s.asked_for = 0
    s.verify = s.loaded = s.unsynced = s.damaged = False


cdef int seg_create(seg_t *s, const char *path) noexcept nogil:
    """Make the file of a new segment, allocate its first blocks, and map it.  0, or the errno: then no file is left."""
    cdef int err = 0
    cdef void *m
    cdef stat_t st
    s.fd = open_file(s.queue.core, path, O_RDWR | O_CREAT | O_TRUNC)
    if s.fd < 0 and errno == ENOENT:
        with gil:
            err = make_directory_of(s.store)
        if err:
            return err
        s.fd = open_file(s.queue.core, path, O_RDWR | O_CREAT | O_TRUNC)
    if s.fd < 0:
        return errno
    s.zeroed = s.allocated = min(<uint32_t>FIRST_ZEROS, s.capacity)
    if fstat(s.fd, &st) < 0 or ftruncate(s.fd, s.capacity) < 0:
        err = errno
    if err == 0:
        note_device(s.queue.core, &st)
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
    madvise(m, s.capacity, MADV_RANDOM)
    s.map = s.base = <uint8_t *>m
    s.words = s.map + S_END
    seg_write_header(s)
    hold_open(s, s.queue.core)
    return 0


cdef bint take_name(seg_t *s, const char *path) noexcept nogil:
    """Remove the name of a new segment whose queue is not durable, so that no crash leaves the file behind.  False: it keeps
    the name, because its descriptor could then never be closed, and descriptors run short."""
    if s.unlinked:
        return True
    if s.fd < 0 or s.fd >= s.queue.core.descriptors_most:
        return False
    leave_open(s)
    unlink(path)
    s.unlinked = True
    return True


cdef int seg_recycle(seg_t *s, const char *path) noexcept nogil:
    """Write over the queue's spare, which has its new number, and give it the name `path`.  If its file is missing, make a new
    one.  0, or the errno: after EMFILE, ENFILE and ENOMEM it is a spare as before."""
    cdef char spare[PATH_ROOM]
    cdef int err = 0
    snprintf(spare, PATH_ROOM, b"%s/spare.msgs", s.store.directory)
    # It may have lost its descriptor without being mapped; its file has the spare's name as yet.
    if s.map == NULL and not s.unlinked:
        err = seg_open_at(s, spare)
    if err == 0:
        err = seg_map(s)
    if err == 0:
        s.zeroed = 0
        madvise(s.map, s.capacity, MADV_RANDOM)
        seg_write_header(s)
        if s.unlinked or rename(spare, path) == 0:
            return 0
    elif s.unlinked or err == EMFILE or err == ENFILE or err == ENOMEM:
        return err
    seg_unmap(s)
    return seg_create(s, path)


cdef inline bint is_read(queue_t *q) noexcept nogil:
    """Whether messages are read, and stay."""
    return q.rules != NULL and q.rules.gate != NULL and q.rules.gate.reads


cdef int seg_new(store_t *st, uint32_t need, large_t *large) noexcept nogil:
    """Append an empty segment with room for a record of `need` octets; 0 or the errno.  large: in one of its files; NULL: in any."""
    cdef queue_t *q = st.queue
    cdef core_t *core = q.core
    cdef uint32_t capacity = segment_octets_of(q)
    cdef seg_t *s
    cdef char path[PATH_ROOM]
    cdef int err = 0
    cdef bint recycled
    if need + HEADER > capacity:
        capacity = (need + HEADER + 4095) & ~<uint32_t>4095
    if large != NULL:
        capacity = <uint32_t>large.capacity
    elif st.spare == NULL and capacity == core.segment_octets and (q.durable or not adopt_nameless(st)):
        adopt_spare(st)
    recycled = large == NULL and st.spare != NULL and capacity == st.spare.capacity
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
        err = seg_recycle(s, path)
        if err == EMFILE or err == ENFILE or err == ENOMEM:
            st.spare = s
            return err
    elif large != NULL:
        err = large_take(large, s, path)
    else:
        err = seg_create(s, path)
    # A large file keeps its name: when the last descriptor of a file without one goes, the kernel frees its pages at once, which
    # takes a millisecond for each 2 MiB.
    if err == 0 and (q.durable or large != NULL or not take_name(s, path)) and not is_read(q):
        # Make the acks file now, while the publisher can still wait for room: a delivery writes the watermark there, and
        # cannot wait.  A stream has no acks file, because its messages are not settled.
        err = acks_map(s)
        if err:
            unlink(path)
    if err:
        seg_free(s)
        return err
    st.next_number += 1
    q.mixed = False
    st.directory_unsynced = q.durable       # A queue that is not durable may have no folder, and is never synced.
    if st.first == NULL and q.durable:
        # Other code, or a former broker, may have made the folder, and not have synced its name.
        st.parent_unsynced = q.store.parent_unsynced = True
    if q.journal != NULL:
        journal_begin(s)
    seg_append_to_list(s)
    if st.cursor == NULL:
        cursor_enter(st, s)
    return 0


cdef int seg_allocate(seg_t *s, uint32_t want, int advice) noexcept nogil:
    """Allocate blocks up to `want` at least, as a rule twice as many as before.  One madvise() maps their pages as `advice`
    says, in place of one page fault for each.  0 or the errno."""
    cdef uint32_t page = s.zeroed & ~<uint32_t>4095
    cdef uint32_t to = s.zeroed + max(<uint32_t>FIRST_ZEROS, min(s.zeroed, <uint32_t>MOST_ZEROS))
    cdef int err
    if to < want:
        to = (want + 4095) & ~<uint32_t>4095
    if to > s.capacity:
        to = s.capacity
    if to > s.allocated:
        err = seg_open(s)
        if err == 0 and is_cut_off(s.queue, s.fd, s.capacity):
            err = EIO
        if err == 0:
            err = write_zeros(s.fd, s.allocated, to)
        if err:
            return err
        s.allocated = to
    madvise(s.map + page, to - page, advice)
    s.zeroed = to
    return 0


cdef int seg_stage(seg_t *s, uint32_t need) noexcept nogil:
    """Begin a stage (stage.pxi) with room for a record of `need` octets, at most STAGE_ROOM.  0 or the errno."""
    cdef uint32_t want = s.end + need
    cdef int err = 0
    if s.stage != NULL:
        stage_end(s)
    if want > s.allocated:
        s.zeroed = s.allocated
        err = seg_allocate(s, want, MADV_POPULATE_READ)
    if err == 0:
        err = seg_open(s)
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
    if s != st.cursor and s.readers == 0:
        if not s.unsynced:
            seg_unmap(s)
        elif s.map != NULL:
            munmap(s.map, s.capacity)
            s.map = NULL
        if s.unacked == 0:
            acks_unmap(s)
            journal_unmap(s)


cdef int reserve_slow(store_t *st, uint32_t need) noexcept nogil:
    """reserve() where the record does not fit into what is mapped; the time counts for the connection that publishes."""
    cdef int64_t began = monotonic_ns()
    cdef int err = find_room(st, need)
    st.queue.core.spent += monotonic_ns() - began
    return err


cdef int find_room(store_t *st, uint32_t need) noexcept nogil:
    cdef seg_t *s = st.last
    cdef int err
    if s != NULL and not s.sealed and (s.end + need > s.capacity or s.lies):
        err = seg_new(st, need, NULL)
        if err:
            return err
        seg_seal(s)
        retire_if_settled(s)
        s = st.last
    elif s == NULL or s.sealed:
        err = seg_new(st, need, NULL)
        if err:
            return err
        s = st.last
    err = seg_map(s)
    if err:
        return err
    if s.end + need <= s.zeroed:
        return 0
    if st.queue.confirms_have_waited and need <= STAGE_ROOM and not st.queue.mixed \
            and st.queue.core.staged_n < STAGES_MOST:
        return seg_stage(s, need)
    if s.stage != NULL:
        stage_end(s)
    return seg_allocate(s, s.end + need, MADV_POPULATE_WRITE)


cdef int reserve_large(store_t *st, message_t *m) noexcept nogil:
    """reserve() for a message whose body is in a file: that file is the store's next segment."""
    cdef seg_t *s = st.last
    cdef int err
    if lies_in(s, m):
        return 0
    if m.large.files_n == 0:
        return reserve(st, align8(m.length))
    err = seg_new(st, align8(m.length), m.large)
    if err == 0 and s != NULL and not s.sealed:
        seg_seal(s)
        retire_if_settled(s)
    return err


cdef inline bint has_room(store_t *st, uint32_t need) noexcept nogil:
    """Whether a record of `need` octets fits into what is zeroed and mapped."""
    cdef seg_t *s = st.last
    return s != NULL and s.map != NULL and s.end + need <= s.zeroed and not s.sealed


cdef inline bint has_file(store_t *st, uint32_t need) noexcept nogil:
    """Whether a record of `need` octets fits into the file that is mapped."""
    cdef seg_t *s = st.last
    return s != NULL and s.map != NULL and s.end + need <= s.capacity and not s.sealed


cdef inline int reserve(store_t *st, uint32_t need) noexcept nogil:
    """Make sure that append() can store a record of `need` octets without fail; 0 or the errno."""
    return 0 if LIKELY(has_room(st, need)) else reserve_slow(st, need)


cdef inline uint8_t *begin_record(store_t *st, message_t *m) noexcept nogil:
    """Write the header of the queue's next record, but for its CRC.  Returns where the record begins."""
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
    put_le32(r + R_MAGIC, RECORD_MAGIC)
    put_le32(r + R_LENGTH, m.length)
    if LIKELY(meta_n < LONG_META):
        put_le16(r + R_META, <uint16_t>meta_n)
    else:
        put_le16(r + R_META, LONG_META)
        put_le32(r + RECORD, meta_n)
    r[R_PRIORITY] = m.priority
    r[R_KIND] = 0
    put_le64(r + R_SEQ, q.next_seq)
    put_le64(r + R_TS, <uint64_t>ts)
    put_le32(r + R_CONNECTION, m.connection)
    put_le16(r + R_CHANNEL, m.channel)
    put_le16(r + R_FLAGS, m.flags)
    put_le64(r + R_PUBLISH_SEQ, m.publish_seq)
    put_le64(r + R_GROUP_HASH, 0)
    put_le64(r + R_DEDUP_HASH, m.dedup_hash)
    return r


cdef inline uint8_t *write_meta(uint8_t *r, message_t *m) noexcept nogil:
    """Write names and properties.  Returns where the body begins."""
    cdef uint8_t *p = r + (RECORD if LIKELY(m.names_n + m.properties_n < LONG_META) else RECORD + 4)
    memcpy(p, m.names, m.names_n)
    p += m.names_n
    memcpy(p, m.properties, m.properties_n)
    return p + m.properties_n


cdef inline void count_record(store_t *st, message_t *m) noexcept nogil:
    """The record that was written is the queue's newest message."""
    cdef queue_t *q = st.queue
    cdef seg_t *s = st.last
    s.end += align8(m.length)
    s.records += 1
    s.waiting += 1
    put_word(s.words + S_RECORDS - S_END, s.records)
    put_word(s.words, s.end)
    q.next_seq += 1
    st.ready += 1
    q.ready += 1
    if UNLIKELY(st.level > q.top):
        q.top = st.level
    q.ready_octets += m.body_n
    q.n_published += 1
    if UNLIKELY(m.dedup_hash != 0) and q.window != NULL:
        enter_key(s, m.dedup_hash, q.last_ts, m.keys.ttl, m.key_is_new)


cdef inline void append(store_t *st, message_t *m) noexcept nogil:
    """Store m as the queue's next message.  The caller has called reserve()."""
    cdef uint8_t *r = begin_record(st, m)
    # Zero the padding to 8 octets: a recycled file has old octets there.
    put_le64(r + align8(m.length) - 8, 0)
    memcpy(write_meta(r, m), m.body, m.body_n)
    put_le32(r + R_CRC, record_crc(st.last, r, m.length))
    count_record(st, m)


cdef void append_large(store_t *st, message_t *m) noexcept nogil:
    """append() after reserve_large(): the body may lie in its place already."""
    cdef seg_t *s = st.last
    cdef uint8_t *r
    if not lies_in(s, m):
        append(st, m)
        return
    r = begin_record(st, m)
    write_meta(r, m)
    ASSERT(r + m.length - m.body_n == s.map + m.large.body_at)
    put_le32(r + R_CRC, crc_of_lying(s, r, m.large))
    s.lies = 0
    s.zeroed = s.allocated = s.capacity
    count_record(st, m)


# ---- reading


cdef void cursor_leave(store_t *st) noexcept nogil:
    """The cursor has read all of its segment: enter the next one."""
    cdef seg_t *s = st.cursor
    if s.waiting:
        # Records were counted that cannot be read: the segment is damaged.
        uncount_ready(st, s.waiting)
        s.settled += s.waiting
        s.damaged = True
        s.waiting = 0
    cursor_enter(st, s.next)
    forget_acks(s)
    # The last segment but one stays mapped: as a rule it is settled soon, and then recycled.
    if not retire_if_settled(s) and s.next != st.last:
        seg_unmap(s)


cdef inline bint cursor_is_before(store_t *st, place_t *t) noexcept nogil:
    """Whether the cursor has yet to reach t.  So it is if t was taken out of the middle and then given back."""
    return t.seg.number > st.cursor.number or (t.seg == st.cursor and t.position >= st.position)


cdef bint peek_returned(store_t *st, place_t *t) noexcept nogil:
    """Find the returned record with the lowest sequence number.  False: its segment cannot be mapped."""
    if seg_map(st.returned.seg) != 0:
        return False
    t[0] = st.returned[0]
    if UNLIKELY(le32(t.seg.map + t.position) != RECORD_MAGIC):
        mark_lost(st.queue)
        return False
    return True


cdef void report_damage(seg_t *s, uint32_t at, uint32_t octets):
    cdef Core core = (<Queue>s.queue.owner).core
    s.damaged = True
    core.damaged_upcall(text_path(s, "msgs"), at, octets)


cdef bint skip_damage(store_t *st) noexcept nogil:
    """The record under the cursor is damaged: move to the next whole one, and report the loss."""
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


cdef inline bint peek_unread(store_t *st, place_t *t) noexcept nogil:
    """Find the next record, from the cursor on, that is neither settled nor damaged."""
    cdef seg_t *s
    cdef const uint8_t *r
    while True:
        s = st.cursor
        if s == NULL:
            return False
        if UNLIKELY(st.position >= s.end):
            if s == st.last:
                if s.waiting:
                    uncount_ready(st, s.waiting)
                    s.settled += s.waiting
                    s.waiting = 0
                return False
            cursor_leave(st)
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
                st.position += room_of(s.map + st.position)
                continue
            if UNLIKELY(s.waiting == 0) and s.settled:
                # Damage of both files hid that an entry settles no record: this one was counted as settled.
                s.settled -= 1
                s.waiting = 1
                count_ready(st)
        r = s.map + st.position
        if UNLIKELY(le32(r) != RECORD_MAGIC):
            mark_lost(st.queue)
            return False
        t.seg = s
        t.seq = seq_of(r)
        t.position = st.position
        t.count = 0
        t.flags = 0
        if UNLIKELY(s.verify) and is_from_before(s, st.position):
            recall(s, t)
        return True


cdef bint peek_both(store_t *st, place_t *t) noexcept nogil:
    """peek() of a store with returned records.  They come before all records that the cursor has yet to reach, except those
    that were taken out of the middle and given back."""
    if LIKELY(not cursor_is_before(st, st.returned)):
        return peek_returned(st, t)
    if peek_unread(st, t) and t.seq < st.returned.seq:
        return True
    return peek_returned(st, t)


cdef inline bint peek(store_t *st, place_t *t) noexcept nogil:
    """Find the store's next message in sequence order, map its segment, and leave the message where it is.  False: none can
    be read."""
    if UNLIKELY(st.returned_n):
        return peek_both(st, t)
    return peek_unread(st, t)


cdef inline bint is_returned(store_t *st, place_t *t) noexcept nogil:
    """Whether peek() found t on top of the heap."""
    return st.returned_n != 0 and st.returned.seq == t.seq


cdef void take_returned(store_t *st, seg_t *s) noexcept nogil:
    s.returned -= 1
    heap_pop(st)


cdef inline bint advance_unseen(store_t *st, place_t *t) noexcept nogil:
    """Take what peek() found: it is not ready any more.  Whether the cursor has passed it now, and not before."""
    cdef seg_t *s = t.seg
    st.ready -= 1
    st.queue.ready -= 1
    if UNLIKELY(st.returned_n) and is_returned(st, t):
        take_returned(st, s)
        return False
    st.position = t.position + align8(length_of(s.map + t.position))
    s.waiting -= 1
    return LIKELY(st.position > s.passed_below)


cdef inline void advance(store_t *st, place_t *t) noexcept nogil:
    """Take what peek() found, to hand it out."""
    if LIKELY(advance_unseen(st, t)):
        seg_put_passed(t.seg, st.position)      # The watermark never goes back.


cdef bint find_head(store_t *st, place_t *t) noexcept nogil:
    """peek() for rare callers: not inlined."""
    return peek(st, t)


cdef void take_head(store_t *st, place_t *t) noexcept nogil:
    """advance() for rare callers: not inlined."""
    advance(st, t)


cdef void take_head_unseen(store_t *st, place_t *t) noexcept nogil:
    """Take what peek() found, to settle it: the entry that follows says all.  Would the broker die between the watermark and
    that entry, the next start would take the message as handed out, though no consumer has seen it."""
    advance_unseen(st, t)


cdef int make_ready(place_t *t) noexcept nogil:
    """Put a record that was taken into the heap: it is ready again, at its own place.  0 or ENOMEM."""
    cdef store_t *st = t.seg.store
    if heap_push(st, t) != 0:
        return ENOMEM
    t.seg.returned += 1
    count_ready(st)
    return 0


cdef bint cursor_has_passed(seg_t *s) noexcept nogil:
    """Whether the cursor has left s, and no record of s waits for it."""
    return s.store.cursor != NULL and s.number < s.store.cursor.number and s.waiting == 0

# Retires a segment in which every record is settled: its file is written into again, or unlinked.
#
#   the queue's spare       its next segment: mapped, its pages allocated
#   the core's spares       for any queue that needs one next, files in a folder of their own; and a few without a name,
#                           for queues that are not durable
#   the garbage             unlinked later, by the control plane's thread
#
# If keys in it still count in the queue's window, it first waits in store_t.leaving until they are in a file of their own.
#
# Old records in a file that is written over fail their CRC, because it begins with the segment's number.


cdef inline uint32_t segment_octets_of(queue_t *q) noexcept nogil:
    return q.segment_octets if UNLIKELY(q.segment_octets != 0) else q.core.segment_octets


cdef int seg_open_at(seg_t *s, const char *path) noexcept nogil:
    if s.fd < 0:
        s.fd = open_file(s.queue.core, path, O_RDWR)
        if s.fd < 0:
            return errno
        hold_open(s, s.queue.core)
    return 0


cdef bint give_to_core(seg_t *s) noexcept nogil:
    """Add a segment that is in no list any more to the core's spares.  Its pages exist already, and making pages is the
    largest cost of storing.  True: s belongs to the core now, and its acks file is gone."""
    cdef core_t *core = s.queue.core
    cdef char old[PATH_ROOM]
    cdef char new[PATH_ROOM]
    if (core.spare_directory == NULL or core.no_spares or s.queue.copying or core.spares_n >= SPARES_MOST
            or s.capacity != core.segment_octets or s.allocated != s.capacity or s.damaged or s.unlinked or s.queue.lost):
        return False
    path_of(s, b"msgs", old)
    snprintf(new, PATH_ROOM, b"%s/%010llu", core.spare_directory, <unsigned long long>s.number)
    if rename(old, new) != 0:
        return False
    path_of(s, b"acks", old)
    unlink(old)
    seg_unmap(s)
    acks_unmap(s)
    forget_acks(s)
    anchors_free(s)
    s.store = NULL
    s.queue = NULL
    s.next = core.spares
    core.spares = s
    core.spares_n += 1
    return True


cdef void adopt_spare(store_t *st) noexcept nogil:
    """Make one of the core's spares the queue's spare, if the core has one."""
    cdef core_t *core = st.queue.core
    cdef seg_t *s = core.spares
    cdef stat_t figures
    cdef char old[PATH_ROOM]
    cdef char new[PATH_ROOM]
    if s == NULL:
        return
    snprintf(old, PATH_ROOM, b"%s/%010llu", core.spare_directory, <unsigned long long>s.number)
    snprintf(new, PATH_ROOM, b"%s/spare.msgs", st.directory)
    core.spares = s.next
    core.spares_n -= 1
    s.next = s.prev = NULL
    s.store = st
    s.queue = st.queue
    s.acks_capacity = 0
    if rename(old, new) != 0:
        with gil:
            make_directory_of(st)
        if rename(old, new) != 0:
            seg_free(s)         # Its file is missing.
            return
    if seg_open_at(s, new) != 0 or fstat(s.fd, &figures) < 0 or figures.st_size < <off_t>s.capacity:
        unlink(new)             # It was cut off, or is no file any more.
        seg_free(s)
        return
    st.spare = s
    core.spares_used += 1


cdef void retire_unlinked(seg_t *s) noexcept:
    """Retire a segment of a queue that is not durable: it becomes the queue's spare, or one of the core's, or goes with its
    descriptor."""
    cdef store_t *st = s.store
    cdef core_t *core = s.queue.core
    if s.capacity != core.segment_octets or s.allocated != s.capacity or s.damaged or s.queue.lost \
            or (st.spare != NULL or st.queue.dropped) \
            and (core.no_spares or st.queue.copying or core.nameless_n >= NAMELESS_MOST):
        seg_free(s)
        return
    forget_acks(s)
    anchors_free(s)
    if st.spare == NULL and not st.queue.dropped:
        st.spare = s
        return
    s.store = NULL
    s.queue = NULL
    s.prev = NULL
    s.next = core.nameless
    core.nameless = s
    core.nameless_n += 1


cdef bint adopt_nameless(store_t *st) noexcept nogil:
    """Take a spare without a name from the core, and make it the spare of this queue, which is not durable.  False: the core
    has no such spare."""
    cdef core_t *core = st.queue.core
    cdef seg_t *s = core.nameless
    if s == NULL:
        return False
    core.nameless = s.next
    core.nameless_n -= 1
    s.next = NULL
    s.store = st
    s.queue = st.queue
    st.spare = s
    return True


cdef bint free_nameless(core_t *core) noexcept nogil:
    """Free one of the core's spares without a name.  The kernel may need a millisecond or two for it.  False: the core has
    no such spare."""
    cdef seg_t *s = core.nameless
    if s == NULL:
        return False
    core.nameless = s.next
    core.nameless_n -= 1
    seg_free(s)
    return True


cdef void give_up(seg_t *s):
    """Move, keep as spare, or unlink the files of a settled segment that is in no list any more."""
    cdef store_t *st = s.store
    cdef queue_t *q = st.queue
    cdef Core core = (<Queue>q.owner).core
    cdef char old[PATH_ROOM]
    cdef char new[PATH_ROOM]
    if s.unsynced:
        s.unsynced = False
        st.unsynced_n -= 1
    if s.unlinked:
        retire_unlinked(s)
        return
    if q.journal != NULL and not s.damaged and not q.dropped and move_to_kept(s):
        seg_free(s)
        return
    if UNLIKELY(s.journal_known) and not s.damaged and not q.dropped:
        # It was switched off since, or the segment could not be moved: nothing is kept, and no audit misses the records.
        core.garbage.append(text_path(s, "journal"))
        core.garbage.append(text_path(s, "chain"))
    if s.damaged:
        path_of(s, b"msgs", old)
        snprintf(new, PATH_ROOM, b"%s/msgs.%010llu.damaged", st.directory, <unsigned long long>s.number)
        rename(old, new)
    elif not q.dropped and st.spare != NULL and give_to_core(s):
        return
    elif (st.spare == NULL and s.capacity == segment_octets_of(q) and s.allocated == s.capacity
          and not q.dropped and not q.lost and not q.copying):
        path_of(s, b"msgs", old)
        snprintf(new, PATH_ROOM, b"%s/spare.msgs", st.directory)
        if rename(old, new) == 0 and seg_open_at(s, new) == 0:
            # The records go before the acks: a start removes acks without records, but records without acks come again.
            path_of(s, b"acks", old)
            unlink(old)
            forget_acks(s)
            anchors_free(s)
            st.spare = s
            return
        seg_unmap(s)
        s.fd = -1
        unlink(new)
        path_of(s, b"acks", old)
        unlink(old)
        seg_free(s)
        return
    else:
        # Truncating 8 MiB of page cache takes a millisecond or more: the control plane's thread does that.  No start reads
        # a file of this name, so a crash does not take back a purge that was answered.
        path_of(s, b"msgs", old)
        snprintf(new, PATH_ROOM, b"%s/spare.%010llu", st.directory, <unsigned long long>s.number)
        if rename(old, new) == 0:
            core.garbage.append(f"{(<bytes>st.directory).decode()}/spare.{s.number:010d}")
        else:
            core.garbage.append(text_path(s, "msgs"))
    core.garbage.append(text_path(s, "acks"))
    seg_free(s)


cdef void retire(seg_t *s):
    cdef store_t *st = s.store
    cdef queue_t *q = st.queue
    cdef Core core = (<Queue>q.owner).core
    if q.rules != NULL and q.rules.gate != NULL:
        q.rules.gate.retiring(q.rules.gate, s)
    seg_unlink_from_list(s)
    acks_unmap(s)
    journal_unmap(s)
    if UNLIKELY(holds_keys(s)):
        # The next sync still covers this segment, because a confirm promises the key too.
        seg_unmap(s)
        s.next = st.leaving
        st.leaving = s
        core.unwritten_keys.append((<Queue>q.owner, st.level, s.number))
        return
    give_up(s)


cdef seg_t *take_leaving(store_t *st, uint64_t number) noexcept nogil:
    """Take a segment out of the list `leaving`; NULL: it is not in it."""
    cdef seg_t **at = &st.leaving
    cdef seg_t *s
    while at[0] != NULL and at[0].number != number:
        at = &at[0].next
    s = at[0]
    if s != NULL:
        at[0] = s.next
        s.next = NULL
    return s


cdef bint retire_if_settled(seg_t *s) noexcept nogil:
    """Retire s if it is full and all its records are settled.  True: s is not in the list any more, and may be freed."""
    cdef store_t *st = s.store
    if not s.sealed or s.settled < s.records or s.unacked or s.returned or s.aside or s == st.last:
        return False
    if s == st.cursor:
        if st.position < s.end:
            st.position = s.end
        s.waiting = 0
        cursor_enter(st, s.next)
    if UNLIKELY(st.queue.rules != NULL) and retains(st.queue) and not s.damaged:
        if not s.retained:
            retain(s, st.queue.last_ts)
        return False
    with gil:
        retire(s)
    return True


# ---- settled segments that stay (retention.pxi)

cdef inline bint retains(queue_t *q) noexcept nogil:
    """Whether settled messages stay for a while."""
    return q.durable and not q.dropped and (q.rules.retain_ns >= 0 or q.rules.retain_octets >= 0)


cdef void retain(seg_t *s, int64_t newest) noexcept nogil:
    """All in s is settled: it stays in its list.  newest: when no message in it is newer."""
    cdef rules_t *r = s.queue.rules
    s.retained = True
    if s.newest == 0:
        s.newest = s.next.created if s.next != NULL and s.next.created else newest
    r.retained += 1
    r.retained_octets += s.end
    if not s.unsynced:
        seg_unmap(s)
    acks_unmap(s)
    journal_unmap(s)
    forget_acks(s)
    anchors_free(s)


cdef void retain_no_more(seg_t *s) noexcept nogil:
    s.retained = False
    s.queue.rules.retained -= 1
    s.queue.rules.retained_octets -= s.end


cdef enum:
    FREED_AT_ONCE = 16      # segments of a queue that is deleted: each is a munmap() and a close()


cdef uint32_t store_empty(store_t *st, uint32_t most) noexcept nogil:
    """Free segments, at most so many, and with the last one all else.  Their files stay, but become the core's spares if the
    queue was deleted just now.  Returns how many were freed."""
    cdef seg_t *s
    cdef queue_t *q = st.queue
    cdef uint32_t n = 0
    st.cursor = NULL
    while st.first != NULL or st.leaving != NULL:
        if n == most:
            return n
        n += 1
        s = st.first
        if s == NULL:
            seg_free(take_leaving(st, st.leaving.number))
            continue
        seg_unlink_from_list(s)
        # Only a queue that was deleted just now: its folder is still in place, so that the file can be moved.
        if not (q.dropped and not q.ghost_was and q.journal == NULL and give_to_core(s)):
            seg_free(s)
    if st.spare != NULL:
        seg_free(st.spare)
        st.spare = NULL
    free(st.returned)
    st.returned = NULL
    st.returned_n = st.returned_capacity = 0
    return n


cdef bint stores_empty(queue_t *q, uint32_t most) noexcept nogil:
    """The same for all stores.  False: there are more."""
    cdef store_t *st = NULL
    while True:
        st = next_store(q, st)
        if st == NULL:
            return True
        most -= store_empty(st, most)
        if st.first != NULL or st.leaving != NULL:
            return False


cdef bint store_unmap(store_t *st) noexcept nogil:
    """Give up maps and descriptors.  True: the store had some."""
    cdef seg_t *s = st.first
    cdef bint held = False
    while s != NULL:
        held = held or s.map != NULL or s.fd >= 0 or s.acks != NULL
        seg_unmap(s)
        acks_unmap(s)
        journal_unmap(s)
        s = s.next
    return held


cdef int describe_store(store_t *st, list out) except -1:
    cdef seg_t *s = st.first
    while s != NULL:
        out.append({"level": st.level, "number": s.number, "end": s.end, "records": s.records, "settled": s.settled,
                    "unacked": s.unacked, "returned": s.returned, "aside": s.aside, "waiting": s.waiting,
                    "base_seq": s.base_seq, "generation": s.generation, "entries": s.entries, "capacity": s.capacity,
                    "retained": s.retained != 0, "mapped": s.map != NULL, "sealed": s.sealed, "damaged": s.damaged != 0,
                    "events": s.events if s.journal_known else -1})
        s = s.next
    return 0


cdef seg_t *segment_or_leaving(queue_t *q, uint8_t level, uint64_t number) noexcept nogil:
    cdef seg_t *s = segment_at(q, level, number)
    cdef store_t *st
    if s == NULL:
        st = store_at(q, level)
        s = st.leaving if st != NULL else NULL
        while s != NULL and s.number != number:
            s = s.next
    return s


cdef void apply_window(queue_t *q) noexcept:
    """The queue has another window, or none: assume that all keys in its segments count, or that none does."""
    cdef store_t *st = NULL
    cdef seg_t *s
    while True:
        st = next_store(q, st)
        if st == NULL:
            return
        s = st.first
        while s != NULL:
            assume_all_keys(s)
            s = s.next
        while q.window == NULL and st.leaving != NULL:
            give_up(take_leaving(st, st.leaving.number))

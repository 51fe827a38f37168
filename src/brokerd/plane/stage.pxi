# Gathers new records in memory until the chunk ends.  Only for segments that are synced often: confirms wait for them.
#
#    segment file  | records ...      stage_from |               | capacity
#    stage                                       | new records   |
#
# A store into a mapped page that was synced costs a page fault, and the next sync takes the page away from every
# processor again: a third of the cost of a durable confirm.  write() into the page cache needs neither.
#
# Invariant: outside of one chunk's work no segment has a stage.  So every reader of a segment (deliver, get, purge, sync,
# recovery of a killed broker's files) sees every record that a confirm, or another answer, has promised.
#
# Invariant: of a queue's levels at most one has a stage, and a message of another one is stored only when that stage is
# written (end_other_stage()).  So messages reach their files in the order of their sequence numbers, and kill -9 leaves
# no gap in them.  If a chunk mixes levels, its queue has no stage until its next segment: two writes for each message
# would cost more than the page faults.


cdef void mark_lost(queue_t *q) noexcept nogil:
    """Pages of its files are lost (lost.pxi): the next turn ends its service."""
    q.lost = q.paused = q.core.lost = True


cdef bint is_cut_off(queue_t *q, int fd, size_t octets) noexcept nogil:
    """Whether a file has fewer octets than it was given; then its queue is lost.  To be asked before a write(), which would make
    it longer again: what is between would read as zeros.

    lseek() answers it, not fstat(): once someone has read a file's times, the next write() gives it a time that is exact to the
    nanosecond, in place of one that changes with each tick.  Then each sync would have to write the inode too."""
    if LIKELY(lseek(fd, 0, SEEK_END) >= <off_t>octets):
        return False
    mark_lost(q)
    return True


cdef int stage_begin(seg_t *s) noexcept nogil:
    """Gather the next records of a segment, its file being open; 0 or ENOMEM."""
    cdef core_t *core = s.queue.core
    if core.pool_n:
        core.pool_n -= 1
        s.stage = core.pool[core.pool_n]
    else:
        s.stage = <uint8_t *>malloc(OUT_ROOM)
        if s.stage == NULL:
            return ENOMEM
    s.stage_from = s.end
    s.base = s.stage - s.end
    s.words = s.stage_words
    s.stage_next = core.staged
    core.staged = s
    core.staged_n += 1
    s.queue.staged = s
    return 0


cdef void stage_write(seg_t *s) noexcept nogil:
    """Write the gathered records into the file, then the words that count them."""
    cdef uint32_t n = s.end - s.stage_from
    ASSERT(n <= STAGE_ROOM)
    if n:
        is_cut_off(s.queue, s.fd, s.capacity)
        if not write_whole(s.fd, s.stage, n, s.stage_from) or not write_whole(s.fd, s.stage_words, 16, S_END):
            # write() failed although the blocks are allocated: store through the map instead.
            memcpy(s.map + s.stage_from, s.stage, n)
            memcpy(s.map + S_END, s.stage_words, 16)


cdef void stage_end(seg_t *s) noexcept nogil:
    cdef core_t *core = s.queue.core
    cdef seg_t **at = &core.staged
    stage_write(s)
    while at[0] != s:
        at = &at[0].stage_next
    at[0] = s.stage_next
    core.staged_n -= 1
    if core.pool_n < POOL_MOST:
        core.pool[core.pool_n] = s.stage
        core.pool_n += 1
    else:
        free(s.stage)
    s.stage = NULL
    s.stage_next = NULL
    s.queue.staged = NULL
    s.base = s.map
    s.words = s.map + S_END
    s.zeroed = s.end            # So the next record calls reserve_slow().


cdef inline void end_other_stage(store_t *st) noexcept nogil:
    """The queue's next message goes to st: what is gathered of another level is written first."""
    cdef seg_t *s = st.queue.staged
    if s != NULL and s.store != st:
        stage_end(s)
        st.queue.mixed = True


cdef inline void write_stages(core_t *core) noexcept nogil:
    """Write all stages: the chunk ends, or a call to the control plane follows."""
    while UNLIKELY(core.staged != NULL):
        stage_end(core.staged)


cdef bint write_whole(int fd, const uint8_t *p, size_t n, off_t at) noexcept nogil:
    cdef ssize_t done
    while n:
        done = pwrite(fd, p, n, at)
        if done <= 0:
            if done < 0 and errno == EINTR:
                continue
            return False
        p += done
        at += done
        n -= done
    return True

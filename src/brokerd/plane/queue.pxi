# The Queue object: what the control plane may ask of, and do to, a queue's store and consumers.

@cython.no_gc_clear
cdef class Queue:
    """See plane/__init__.pyi."""

    def __cinit__(self, Core core, str directory, *, bint durable=False, **_):
        cdef bytes path = directory.encode()
        if len(path) > PATH_ROOM - 64:
            raise ValueError("the path of the queue's directory is too long")
        self.core = core
        self.directory = directory
        self.q.core = &core.c
        self.q.owner = <void *>self
        self.q.durable = durable
        self.q.next_seq = 1
        self.q.next_number = 1
        self.q.directory = strdup(path)
        if self.q.directory == NULL:
            raise MemoryError

    def __init__(self, core, directory, *, durable):
        pass

    def __dealloc__(self):
        self.leave_lists()
        self.free_store()
        free(self.q.directory)

    cdef void leave_lists(self):
        cdef queue_t **at
        cdef queue_t *q = &self.q
        if q.is_dirty:
            at = &q.core.dirty
            while at[0] != q:
                at = &at[0].dirty_next
            at[0] = q.dirty_next
            q.is_dirty = False
            q.core.dirty_tail = q.core.dirty
            while q.core.dirty_tail != NULL and q.core.dirty_tail.dirty_next != NULL:
                q.core.dirty_tail = q.core.dirty_tail.dirty_next
        if q.is_sync_dirty:
            at = &q.core.sync_dirty
            while at[0] != q:
                at = &at[0].sync_next
            at[0] = q.sync_next
            q.is_sync_dirty = False

    cdef void free_store(self):
        cdef seg_t *s = self.q.first
        cdef seg_t *next
        while s != NULL:
            next = s.next
            # Only of a queue deleted just now: its folder is still where it was.
            if not (self.q.dropped and not self.q.ghost_was and spare_for_all(s)):
                seg_free(s)
            s = next
        self.q.first = self.q.last = self.q.cursor = NULL
        if self.q.spare != NULL:
            seg_free(self.q.spare)
            self.q.spare = NULL
        free(self.q.returned)
        self.q.returned = NULL
        self.q.returned_n = self.q.returned_capacity = 0

    def make_directory(self):
        raise NotImplementedError

    # ---- figures

    @property
    def durable(self):
        return self.q.durable != 0

    @property
    def ready(self):
        return self.q.ready

    @property
    def ready_octets(self):
        return self.q.ready_octets

    @property
    def unacked(self):
        return self.q.unacked

    @property
    def consumer_count(self):
        return self.q.consumers

    @property
    def next_seq(self):
        return self.q.next_seq

    @property
    def published(self):
        return self.q.n_published

    @property
    def delivered(self):
        return self.q.n_delivered

    @property
    def got(self):
        return self.q.n_got

    @property
    def acked(self):
        return self.q.n_acked

    @property
    def redelivered(self):
        return self.q.n_redelivered

    @property
    def returned(self):
        return self.q.n_returned

    @property
    def unrecorded(self):
        return self.q.n_unrecorded

    @property
    def touched(self):
        return self.q.touched

    @property
    def paused(self):
        return self.q.paused != 0

    @paused.setter
    def paused(self, bint value):
        self.q.paused = value
        if not value:
            queue_mark(&self.q)

    # ---- recovery

    def attach_segment(self, uint64_t number, *, uint32_t end, uint32_t records, uint32_t settled, uint64_t base_seq,
                       uint32_t delivered, uint32_t acks, uint32_t capacity, uint64_t ready_octets, bint synced,
                       uint32_t generation=0):
        cdef seg_t *s = <seg_t *>calloc(1, sizeof(seg_t))
        if s == NULL:
            raise MemoryError
        s.queue = &self.q
        s.fd = -1
        s.number = number
        s.base_seq = base_seq
        s.generation = generation
        s.crc_seed = seed_of(number)
        s.end = end
        s.capacity = max(capacity, end)
        s.zeroed = s.allocated = end
        s.records = records
        s.settled = min(settled, records)
        s.waiting = records - s.settled
        s.redeliver_below = delivered
        s.entries = acks
        s.acks_zeroed = 0
        s.sealed = 2 if synced else 1
        s.verify = True
        seg_append_to_list(s)
        self.q.ready += s.waiting
        self.q.ready_octets += ready_octets
        self.q.next_number = number + 1
        self.q.core.next_number = max(self.q.core.next_number, number + 1)

    def finish_recovery(self, uint64_t next_seq, *, bint suspect, int64_t last_ts=0):
        """The last attached segment is appended to again.  suspect: delivery marks may be lost, so that every
        message counts as handed out before."""
        cdef seg_t *s = self.q.first
        cdef seg_t *next
        self.q.next_seq = next_seq
        self.q.last_ts = last_ts
        while s != NULL:
            if suspect:
                s.redeliver_below = s.end
            s = s.next
        if self.q.last == NULL:
            return
        # The broker before may have crashed before it synced the names that are relied on from here.
        self.q.directory_unsynced = self.q.parent_unsynced = True
        if self.q.last.end < self.q.last.capacity:
            self.q.last.sealed = 0
        s = self.q.first
        while s != NULL:
            next = s.next
            if s.sealed and s.settled >= s.records and s != self.q.last:
                retire(s)
            s = next
        reach(&self.q, self.q.first)

    def replace_segment(self, uint64_t number, const uint32_t[::1] old, const uint32_t[::1] new, uint32_t end,
                        uint32_t capacity, uint32_t generation, uint32_t entries):
        """Compaction put the live records of a sealed segment elsewhere in a file of the same name: old[i] is now
        new[i] (both rising).  Unacked deliveries and returned records follow.  Raises ValueError."""
        cdef seg_t *s = self.q.first
        cdef uint32_t i
        while s != NULL and s.number != number:
            s = s.next
        if s == NULL or not s.sealed or s == self.q.cursor or old.shape[0] != new.shape[0] or old.shape[0] == 0:
            raise ValueError(f"segment {number} cannot be replaced now")
        seg_unmap(s)
        acks_unmap(s)
        for i in range(self.q.returned_n):
            if self.q.returned[i].seg == s:
                self.q.returned[i].position = moved(self.q.returned[i].position, old, new)
        self.move_unacked(s, old, new)
        s.records = <uint32_t>old.shape[0]
        s.settled = 0
        s.end = end
        s.capacity = s.allocated = s.zeroed = capacity
        s.redeliver_below = end
        s.generation = generation
        s.entries = entries
        s.acks_zeroed = s.acks_capacity = 0
        s.verify = True
        s.loaded = False

    cdef int move_unacked(self, seg_t *s, const uint32_t[::1] old, const uint32_t[::1] new) except -1:
        cdef channel_t *ch = self.q.core.channels
        cdef entry_t *e
        cdef uint64_t tag
        while ch != NULL:
            for tag in range(ch.base_tag, ch.next_tag if ch.unacked else ch.base_tag):
                e = &ch.ring[tag & (ch.ring_capacity - 1)]
                if e.seg == s:
                    e.position = moved(e.position, old, new)
            ch = ch.core_next
        return 0

    def can_compact(self, uint64_t number):
        """Whether replace_segment() may be called for it: full, and the cursor is past it or far before it."""
        cdef seg_t *s = self.q.first
        while s != NULL and s.number != number:
            s = s.next
        return s != NULL and s.sealed != 0 and s != self.q.cursor and s != self.q.last and passed(&self.q, s)

    # ---- verbs

    def purge(self):
        cdef queue_t *q = &self.q
        cdef taken_t t
        cdef uint64_t n = 0, before = q.ready
        cdef const uint8_t *r
        self.core.tick()
        while q.ready:
            if q.returned_n == 0 and q.cursor != NULL and q.position == HEADER and q.cursor.sealed and \
                    q.cursor != q.last and \
                    q.cursor.waiting == q.cursor.records - q.cursor.settled and q.cursor.unacked == 0:
                # All that is left of this segment is waiting: the whole file goes.
                q.ready -= min(q.ready, <uint64_t>q.cursor.waiting)
                q.cursor.settled = q.cursor.records
                q.cursor.waiting = 0
                retire_if_settled(q.cursor)
                continue
            if not take(q, &t):
                break
            q.ready -= 1
            settle(&t, PURGED)
        n = before - q.ready
        q.ready_octets = 0
        return n

    def drop(self):
        cdef Consumer consumer
        self.q.dropped = True
        for consumer in list(self.consumers or ()):
            consumer.channel.cancel(consumer)
        self.q.ready = 0
        self.q.ready_octets = 0
        self.leave_lists()
        if self.q.unacked:
            if not self.q.ghost:
                self.q.ghost = self.q.ghost_was = True
                Py_INCREF(self)
        else:
            self.free_store()

    def close(self):
        """Maps and descriptors closed; nothing may be asked of the queue any more.  Syncing is the caller's."""
        cdef seg_t *s = self.q.first
        while s != NULL:
            seg_unmap(s)
            acks_unmap(s)
            s = s.next

    def rest(self):
        """Idle: give maps and descriptors back.  True if any were held."""
        cdef seg_t *s = self.q.first
        cdef bint held = False
        if self.q.is_sync_dirty:
            return False
        while s != NULL:
            held = held or s.map != NULL or s.fd >= 0 or s.acks != NULL
            seg_unmap(s)
            acks_unmap(s)
            s = s.next
        if self.q.spare != NULL:
            seg_free(self.q.spare)
            self.q.spare = NULL
            unlink((self.directory + "/spare.msgs").encode())
            held = True
        return held

    def segments(self):
        cdef seg_t *s = self.q.first
        cdef list out = []
        while s != NULL:
            out.append({"number": s.number, "end": s.end, "records": s.records, "settled": s.settled,
                        "unacked": s.unacked, "returned": s.returned, "waiting": s.waiting, "base_seq": s.base_seq,
                        "generation": s.generation, "entries": s.entries, "capacity": s.capacity,
                        "mapped": s.map != NULL, "sealed": s.sealed, "damaged": s.damaged != 0})
            s = s.next
        return out


cdef bint passed(queue_t *q, seg_t *s) noexcept nogil:
    """The cursor is beyond s: its live records are unacked or returned, none waits to be read in file order."""
    return q.cursor != NULL and s.number < q.cursor.number and s.waiting == 0


cdef uint32_t moved(uint32_t position, const uint32_t[::1] old, const uint32_t[::1] new) except? 0:
    cdef Py_ssize_t low = 0, high = old.shape[0], middle
    while low < high:
        middle = (low + high) >> 1
        if old[middle] < position:
            low = middle + 1
        else:
            high = middle
    if low >= old.shape[0] or old[low] != position:
        raise ValueError(f"record at {position} is in use, but was not moved")
    return new[low]

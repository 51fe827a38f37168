# The Queue object: what the control plane may ask of, and do to, a queue's store and consumers.

@cython.no_gc_clear
cdef class Queue:
    """See plane/__init__.pyi."""

    def __cinit__(self, Core core, str directory, *, bint durable=False, uint8_t max_priority=0, **_):
        cdef bytes path = directory.encode()
        if len(path) > PATH_ROOM - 80:
            raise ValueError("the path of the queue's directory is too long")
        self.core = core
        self.directory = directory
        self.q.core = &core.c
        self.q.owner = <void *>self
        self.q.durable = durable
        self.q.next_seq = 1
        self.q.used = core.c.now
        self.q.store.queue = &self.q
        self.q.store.next_number = 1
        self.q.store.directory = strdup(path)
        if self.q.store.directory == NULL:
            raise MemoryError
        if max_priority:
            self.q.levels_above = <store_t **>calloc(max_priority, sizeof(store_t *))
            if self.q.levels_above == NULL:
                raise MemoryError
            self.q.max_priority = max_priority

    def __init__(self, core, directory, *, durable, max_priority=0):
        pass

    def __dealloc__(self):
        cdef uint32_t level
        self.leave_lists()
        rules_leave(&self.q)
        self.free_stores()
        rules_free(&self.q)
        order_free(&self.q)
        free(self.q.journal)
        free(self.q.store.directory)
        for level in range(self.q.max_priority):
            if self.q.levels_above[level] != NULL:
                free(self.q.levels_above[level].directory)
                free(self.q.levels_above[level])
        free(self.q.levels_above)

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

    cdef void free_stores(self):
        cdef store_t *st = NULL
        while True:
            st = next_store(&self.q, st)
            if st == NULL:
                return
            store_empty(st)

    def make_directory(self):
        raise NotImplementedError

    def on_dead(self, reason, seq, exchange, routing_key, properties, body, count):
        raise NotImplementedError

    def on_delivered(self, channel, exchange, routing_key, properties, body, redelivered):
        raise NotImplementedError

    # ---- rules

    def set_rules(self, *, int64_t ttl_ms=-1, int64_t max_length=-1, int64_t max_octets=-1, uint8_t overflow=0,
                  bint dead_letters=False, int32_t delivery_limit=-1, bint limit_drops=False,
                  bint delivery_counts=False, bint single_active=False, int64_t consumer_timeout_ms=-1,
                  bint timeout_closes=False):
        cdef rules_t *r = rules_of(&self.q)
        cdef Consumer consumer
        if r == NULL:
            raise MemoryError
        r.expires = r.expires or ttl_ms >= 0
        r.ttl = ttl_ms * 1000000 if ttl_ms >= 0 else -1
        r.max_length = max_length
        r.max_octets = max_octets
        r.overflow = overflow
        r.dead_letters = dead_letters
        r.delivery_limit = delivery_limit
        r.limit_drops = limit_drops
        r.delivery_counts = delivery_counts
        if r.single_active != single_active:
            r.single_active = single_active
            r.active = NULL
            r.draining = False
            if single_active:
                choose_active(&self.q)
            for consumer in self.consumers or ():
                credit_again(&consumer.c)
        r.timeout = consumer_timeout_ms * 1000000 if consumer_timeout_ms >= 0 else -1
        r.timeout_closes = timeout_closes
        if r.expires and self.q.ready:
            expires_by(&self.q, 0)          # Its head is looked at in the next turn.
        if overflow == DROP_HEAD and is_over(&self.q, r):
            over_mark(&self.q)
        self.core.soon()

    def browse(self, uint64_t start_seq, Py_ssize_t count):
        cdef list out = []
        cdef int level
        cdef store_t *st
        write_stages(self.q.core)
        for level in range(self.q.max_priority, -1, -1):
            st = store_at(&self.q, <uint8_t>level)
            if st != NULL and st.ready:
                browse_store(st, start_seq, count, out)
        return out

    def remove(self, uint64_t seq):
        cdef store_t *st = NULL
        cdef taken_t t
        cdef tuple found
        write_stages(self.q.core)
        while True:
            st = next_store(&self.q, st)
            if st == NULL:
                return None
            if st.ready and pluck(st, seq, &t):
                found = row(t.seg, t.position, t.redelivered)
                octets_gone(&self.q, t.seg.map + t.position)
                settle(&t, 6 | 5 << 4)
                if self.q.rules != NULL and self.q.rules.expires:
                    deadline_set(&self.q, head_expires_at(&self.q))
                return found

    @property
    def traced(self):
        return self.q.rules != NULL and self.q.rules.traced

    @traced.setter
    def traced(self, bint value):
        if value or self.q.rules != NULL:
            if rules_of(&self.q) == NULL:
                raise MemoryError
            self.q.rules.traced = value

    def dead_done(self, uint64_t seq):
        cdef deads_t *kept
        cdef dead_t dead
        cdef uint32_t i
        if self.q.rules == NULL or self.q.dropped:
            return
        kept = &self.q.rules.kept
        for i in range(kept.first, kept.n):
            if kept.at[i].seq == seq:
                dead = kept.at[i]
                # As a rule the first: they are done with in order.
                memmove(kept.at + kept.first + 1, kept.at + kept.first, (i - kept.first) * sizeof(dead_t))
                kept.first += 1
                if kept.first == kept.n:
                    kept.first = kept.n = 0
                settle_dead(&self.q, &dead)
                return

    @property
    def kept_dead(self):
        return self.q.rules.kept.n - self.q.rules.kept.first if self.q.rules != NULL else 0

    @property
    def expired(self):
        return self.q.rules.n_expired if self.q.rules != NULL else 0

    @property
    def discarded(self):
        return self.q.rules.n_dropped if self.q.rules != NULL else 0

    @property
    def dead_lettered(self):
        return self.q.rules.n_dead_lettered if self.q.rules != NULL else 0

    @property
    def refused(self):
        return self.q.rules.n_refused if self.q.rules != NULL else 0

    @property
    def limited(self):
        return self.q.rules.n_limited if self.q.rules != NULL else 0

    @property
    def timed_out(self):
        return self.q.rules.n_timed_out if self.q.rules != NULL else 0

    @property
    def active(self):
        if self.q.rules == NULL or not self.q.rules.single_active or self.q.rules.active == NULL:
            return None
        return None if self.q.rules.active.closed else <Consumer>self.q.rules.active.owner

    @property
    def max_priority(self):
        return self.q.max_priority

    @property
    def unused_since(self):
        return self.core.c.now if self.q.consumers else self.q.used

    def touch(self):
        self.core.tick()
        self.q.used = self.core.c.now

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
                       uint32_t generation=0, uint8_t level=0, uint32_t doubted=0):
        cdef store_t *st = store_for(&self.q, level)
        cdef seg_t *s = <seg_t *>calloc(1, sizeof(seg_t))
        if s == NULL or st == NULL:
            free(s)
            raise MemoryError
        s.store = st
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
        s.redeliver_below = max(delivered, doubted)
        s.entries = acks
        s.acks_zeroed = 0
        s.sealed = 2 if synced else 1
        s.verify = True
        seg_append_to_list(s)
        st.ready += s.waiting
        self.q.ready += s.waiting
        self.q.ready_octets += ready_octets
        st.next_number = number + 1
        self.q.core.next_number = max(self.q.core.next_number, number + 1)

    def finish_recovery(self, uint64_t next_seq, *, bint suspect, int64_t last_ts=0):
        """The last attached segment is appended to again.  suspect: delivery marks may be lost, so that every
        message counts as handed out before."""
        cdef store_t *st = NULL
        self.q.next_seq = next_seq
        self.q.last_ts = last_ts
        if self.q.journal != NULL:
            self.q.journal.suspect = suspect
            self.core.tick()
            journals_start(&self.q, POWER_LOST if suspect else RESTARTED)
        while True:
            st = next_store(&self.q, st)
            if st == NULL:
                return
            if st.last != NULL:
                store_is_recovered(st, suspect)
            if self.q.ready and st == &self.q.store:
                # Whether what is at its head expires is not known before it is read: soon, not now.
                if rules_of(&self.q) == NULL:
                    raise MemoryError
                self.q.rules.expires = True
                deadline_set(&self.q, 0)

    def replace_segment(self, uint64_t number, const uint32_t[::1] old, const uint32_t[::1] new, uint32_t end,
                        uint32_t capacity, uint32_t generation, uint32_t entries, uint8_t level=0):
        """Compaction put the live records of a sealed segment elsewhere in a file of the same name: old[i] is now
        new[i] (both rising).  Unacked deliveries and returned records follow.  Raises ValueError."""
        cdef seg_t *s = segment_at(&self.q, level, number)
        cdef store_t *st = store_at(&self.q, level)
        cdef uint32_t i
        if s == NULL or not s.sealed or s == st.cursor or old.shape[0] != new.shape[0] or old.shape[0] == 0:
            raise ValueError(f"segment {number} cannot be replaced now")
        seg_unmap(s)
        acks_unmap(s)
        for i in range(st.returned_n):
            if st.returned[i].seg == s:
                st.returned[i].position = moved(st.returned[i].position, old, new)
        if self.q.rules != NULL:
            move_dead(&self.q.rules.dying, s, old, new)
            move_dead(&self.q.rules.kept, s, old, new)
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
        marks_free(s)

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

    def can_compact(self, uint64_t number, uint8_t level=0):
        """Whether replace_segment() may be called for it: full, and the cursor is past it or far before it."""
        cdef seg_t *s = segment_at(&self.q, level, number)
        return s != NULL and s.sealed != 0 and not s.unlinked and s != s.store.cursor and s != s.store.last and passed(s)

    # ---- the order journal

    @property
    def journaled(self):
        return self.q.journal != NULL

    def set_journal(self, bint on):
        cdef queue_t *q = &self.q
        if not q.durable:
            raise ValueError("only a durable queue has an order journal")
        if on == (q.journal != NULL) or q.dropped:
            return
        self.core.tick()
        write_stages(q.core)
        if not on:
            journals_stop(q)
        elif journal_of(q) == NULL:
            raise MemoryError
        else:
            journals_start(q, SWITCHED_ON)

    def unsynced_journals(self):
        return journals_to_sync(&self.q) if self.q.journal != NULL else []

    def journals_synced(self):
        if self.q.journal != NULL:
            journals_are_synced(&self.q)

    def order_counts(self):
        cdef order_t *o
        cdef uint32_t i
        write_stages(self.q.core)
        o = order_of(&self.q, False)
        if o == NULL:
            return [0] * ORDER_N, [0] * ORDER_N
        return [o.counts[i] for i in range(ORDER_N)], [o.counts[i] - o.before[i] for i in range(ORDER_N)]

    @property
    def copying(self):
        return self.q.copying != 0

    @copying.setter
    def copying(self, bint value):
        self.q.copying = value

    # ---- verbs

    def purge(self):
        cdef queue_t *q = &self.q
        cdef store_t *st = NULL
        cdef uint64_t before = q.ready
        self.core.tick()
        while True:
            st = next_store(q, st)
            if st == NULL:
                break
            purge_store(st)
        q.ready_octets = 0
        return before - q.ready

    def drop(self):
        cdef Consumer consumer
        self.q.dropped = True
        for consumer in list(self.consumers or ()):
            consumer.channel.cancel(consumer)
        if self.q.rules != NULL:
            self.q.rules.active = NULL
        self.q.ready = 0
        self.q.ready_octets = 0
        rules_leave(&self.q)
        self.leave_lists()
        if self.q.unacked:
            if not self.q.ghost:
                self.q.ghost = self.q.ghost_was = True
                Py_INCREF(self)
        else:
            self.free_stores()

    def close(self):
        """Maps and descriptors closed; nothing may be asked of the queue any more.  Syncing is the caller's."""
        cdef store_t *st = NULL
        while True:
            st = next_store(&self.q, st)
            if st == NULL:
                return
            store_unmap(st)

    def rest(self):
        """Idle: give maps and descriptors back.  True if any were held."""
        cdef store_t *st = NULL
        cdef bint held = False
        if self.q.is_sync_dirty:
            return False
        order_rest(&self.q)
        while True:
            st = next_store(&self.q, st)
            if st == NULL:
                return held
            held |= store_unmap(st)
            if st.spare != NULL:
                seg_free(st.spare)
                st.spare = NULL
                unlink(<bytes>st.directory + b"/spare.msgs")
                held = True

    def segments(self):
        cdef store_t *st = NULL
        cdef list out = []
        write_stages(self.q.core)
        while True:
            st = next_store(&self.q, st)
            if st == NULL:
                return out
            describe_store(st, out)




cdef void purge_store(store_t *st) noexcept:
    cdef taken_t t
    cdef seg_t *s
    while st.ready:
        s = st.cursor
        if st.queue.journal == NULL and st.returned_n == 0 and s != NULL and st.position == HEADER and s.sealed and s != st.last and \
                s.waiting == s.records - s.settled and s.unacked == 0:
            # All that is left of this segment is waiting: the whole file goes.
            disturbed(st.queue, PURGED_N, s.waiting)
            not_there(st, s.waiting)
            s.settled = s.records
            s.waiting = 0
            retire_if_settled(s)
            continue
        if not next_of(st, &t):
            return
        take_next(st, &t)
        settle(&t, PURGED)


cdef void store_is_recovered(store_t *st, bint suspect) noexcept:
    """Its last segment is appended to again."""
    cdef seg_t *s = st.first
    cdef seg_t *next
    # The broker before may have crashed before it synced the names that are relied on from here.
    st.directory_unsynced = st.parent_unsynced = True
    if st.last.end < st.last.capacity:
        st.last.sealed = 0
    while s != NULL:
        next = s.next
        if suspect:
            s.redeliver_below = s.end
        if s.sealed and s.settled >= s.records and s != st.last:
            retire(s)
        s = next
    reach(st, st.first)
    if st.ready and st.level > st.queue.top:
        st.queue.top = st.level



cdef int move_dead(deads_t *deads, seg_t *s, const uint32_t[::1] old, const uint32_t[::1] new) except -1:
    cdef uint32_t i
    for i in range(deads.first, deads.n):
        if deads.at[i].seg == s:
            deads.at[i].position = moved(deads.at[i].position, old, new)
    return 0


cdef bint passed(seg_t *s) noexcept nogil:
    """The cursor is beyond s: its live records are unacked or returned, none waits to be read in file order."""
    return s.store.cursor != NULL and s.number < s.store.cursor.number and s.waiting == 0


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

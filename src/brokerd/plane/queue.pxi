# The Queue object: the control plane's questions about a queue's store and consumers, and its changes of them.

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
        queue_join(&self.q)
        self.q.next_seq = 1
        self.q.used = core.uptime()
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
        if self._gate is not None and self.q.rules != NULL:
            self.q.rules.gate = NULL
            self._gate.gate.queue = NULL
        if self.q.core != NULL:
            queue_leave(&self.q)
        self.leave_lists()
        rules_leave(&self.q)
        stores_empty(&self.q, 0xFFFFFFFF)
        rules_free(&self.q)
        order_free(&self.q)
        aside_clear(&self.q)
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

    def make_directory(self):
        raise NotImplementedError

    def on_dead(self, reason, seq, exchange, routing_key, properties, body, count):
        raise NotImplementedError

    def on_letters_stored(self, uint64_t upto):
        raise NotImplementedError

    def on_replaced(self, uint64_t seq):
        raise NotImplementedError

    def on_delivered(self, channel, exchange, routing_key, properties, body, redelivered):
        raise NotImplementedError

    # ---- rules

    def set_rules(self, **given):
        cdef rules_t *r = rules_of(&self.q)
        cdef Consumer consumer
        cdef bint single_active_before
        if r == NULL:
            raise MemoryError
        single_active_before = r.single_active
        for name, row in RULES.items():
            put_rule(r, row, given.pop(name, row[3]))
        if given:
            raise TypeError(f"set_rules() knows no rule '{next(iter(given))}'")
        r.expires = r.expires or r.ttl >= 0
        if retains(&self.q):
            retaining_join(&self.q)
        if r.single_active != single_active_before:
            r.active = NULL
            r.draining = False
            if r.single_active:
                choose_active(&self.q)
            for consumer in self.consumers or ():
                ring_rejoin(&consumer.c)
        if r.expires and self.q.ready:
            deadline_bring_forward(&self.q, 0)          # Its head is looked at in the next turn.
        if r.overflow == DROP_HEAD and is_over_length_limit(&self.q, r):
            mark_over(&self.q)
        self.core.request_turn()

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
        cdef place_t t
        cdef tuple found
        if is_read(&self.q):
            return None
        write_stages(self.q.core)
        while True:
            st = next_store(&self.q, st)
            if st == NULL:
                return None
            if st.ready and take_out(st, seq, &t):
                found = make_row(t.seg, t.position, t.flags & PLACE_WAS_OUT != 0)
                uncount_octets(&self.q, t.seg.map + t.position)
                settle(&t, DROPPED | REASON_REMOVED << 4)
                if self.q.rules != NULL and self.q.rules.expires:
                    deadline_set(&self.q, head_expires_at(&self.q))
                return found

    @property
    def reports_deliveries(self):
        return self.q.rules != NULL and self.q.rules.reports_deliveries

    @reports_deliveries.setter
    def reports_deliveries(self, bint value):
        if value or self.q.rules != NULL:
            if rules_of(&self.q) == NULL:
                raise MemoryError
            self.q.rules.reports_deliveries = value

    # ---- set aside

    def settle_aside(self, uint64_t seq):
        settle_if_aside(&self.q, seq)

    def settle_letters(self, uint64_t upto):
        if self.q.rules != NULL:
            settle_letters(&self.q, upto)

    def set_aside(self, uint64_t seq):
        cdef store_t *st = NULL
        cdef place_t t
        if is_read(&self.q):
            return False
        write_stages(self.q.core)
        while True:
            st = next_store(&self.q, st)
            if st == NULL:
                return hold_waiting(&self.q, seq)
            if st.ready and take_out(st, seq, &t):
                t.reason = ASIDE_HELD
                uncount_octets(&self.q, t.seg.map + t.position)
                put_aside(&t, t.count)
                if aside_put(&self.q, &t) != 0:
                    return_from_aside(&t)
                    raise MemoryError
                if self.q.rules != NULL and self.q.rules.expires:
                    deadline_set(&self.q, head_expires_at(&self.q))
                return True

    def release(self, uint64_t seq):
        cdef place_t t
        if self.q.dropped or not aside_take(&self.q, seq, &t):
            return False
        if t.reason != ASIDE_HELD or return_from_aside(&t) != 0:
            aside_put(&self.q, &t)      # There is room: it was in there.
            return False
        apply_rules_on_return(&t)
        mark_dirty(&self.q)
        self.core.request_turn()
        return True

    def browse_aside(self, uint64_t start_seq, Py_ssize_t count):
        cdef list out = []
        browse_aside(&self.q, start_seq, count, out)
        return out

    @property
    def aside(self):
        return aside_count(&self.q)

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
        return self.core.uptime() if self.q.consumers else self.q.used

    def touch(self):
        self.q.used = self.core.uptime()

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
    def last_ts(self):
        return self.q.last_ts

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
    def delivered_no_ack(self):
        return self.q.n_delivered_no_ack

    @property
    def got_no_ack(self):
        return self.q.n_got_no_ack

    @property
    def times(self):
        return tuple_of_times(self.q.times) if self.q.times != NULL else None

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
    def lost(self):
        return self.q.lost != 0

    @property
    def paused(self):
        return self.q.paused != 0

    @paused.setter
    def paused(self, bint value):
        self.q.paused = value
        if not value:
            mark_dirty(&self.q)

    # ---- recovery

    def attach_segment(self, uint64_t number, *, uint32_t end, uint32_t records, uint32_t settled, uint64_t base_seq,
                       uint32_t delivered, uint32_t acks, uint32_t capacity, uint64_t ready_octets, bint synced,
                       uint32_t generation=0, uint8_t level=0, uint32_t doubted=0, int64_t created=0):
        cdef seg_t found
        memset(&found, 0, sizeof(seg_t))
        found.number = number
        found.end = end
        found.records = records
        found.settled = settled
        found.base_seq = base_seq
        found.passed_below = delivered
        found.doubted_below = doubted
        found.entries = acks
        found.capacity = capacity
        found.sealed = 2 if synced else 1
        found.generation = generation
        found.created = created
        if attach(&self.q, level, &found) != 0:
            raise MemoryError
        self.q.ready_octets += ready_octets

    def finish_recovery(self, uint64_t next_seq, *, bint suspect, int64_t last_ts=0, uint64_t last_number=0):
        self.core.read_clock()
        skip_numbers(&self.q, last_number)
        if finish_recovery(&self.q, next_seq, suspect, last_ts) != 0:
            raise MemoryError

    def replace_segment(self, uint64_t number, const uint32_t[::1] old, const uint32_t[::1] new, uint32_t end,
                        uint32_t capacity, uint32_t generation, uint32_t entries, uint8_t level=0):
        cdef seg_t *s = segment_at(&self.q, level, number)
        cdef uint32_t missing
        if s == NULL or not s.sealed or s == s.store.cursor or old.shape[0] != new.shape[0] or old.shape[0] == 0:
            raise ValueError(f"segment {number} cannot be replaced now")
        missing = move_places(s, &old[0], &new[0], <uint32_t>old.shape[0])
        if missing:
            raise ValueError(f"record at {missing} is in use, but was not moved")
        replace_file(s, <uint32_t>old.shape[0], end, capacity, generation, entries)

    def can_compact(self, uint64_t number, uint8_t level=0):
        cdef seg_t *s = segment_at(&self.q, level, number)
        if self.q.rules != NULL and retains(&self.q):
            return False        # What is settled stays, too.
        return s != NULL and s.sealed != 0 and not s.unlinked and s != s.store.cursor and s != s.store.last and cursor_has_passed(s)

    # ---- dead letters

    @property
    def letters(self):
        return self._letters

    @letters.setter
    def letters(self, Letters letters):
        if letters is not None and rules_of(&self.q) == NULL:
            raise MemoryError
        self._letters = letters
        if self.q.rules != NULL:
            self.q.rules.letters = &letters.l if letters is not None else NULL

    # ---- the gate

    @property
    def gate(self):
        return self._gate

    @gate.setter
    def gate(self, Gate gate):
        cdef Consumer consumer
        cdef gate_t *g = gate.gate if gate is not None else NULL
        if gate is self._gate:
            return
        if gate is not None and (g == NULL or g.queue != NULL):
            raise ValueError("the gate is of no feature, or of another queue")
        if rules_of(&self.q) == NULL or (g != NULL and g.lets_go and not make_stand_in(&self.q)):
            raise MemoryError
        write_stages(self.q.core)
        gate_leave(&self.q)
        self._gate = gate
        self.q.rules.gate = g
        if g != NULL:
            g.queue = &self.q
            g.attach(g)
            for consumer in self.consumers or ():
                g.join(g, &consumer.c)
        for consumer in self.consumers or ():
            ring_rejoin(&consumer.c)
        mark_dirty(&self.q)
        self.core.request_turn()

    # ---- keys

    @property
    def window(self):
        return self._window

    @window.setter
    def window(self, Window window):
        self._window = window
        self.q.window = &window.w if window is not None else NULL
        apply_window(&self.q)

    def can_drop_records(self, uint64_t number, uint8_t level=0):
        cdef seg_t *s = segment_at(&self.q, level, number)
        if s == NULL or not holds_keys(s):
            return True
        if s.sealed:
            self.core.unwritten_keys.append((self, level, number))
        return False

    def key_rows(self, uint64_t number, uint8_t level=0):
        cdef seg_t *s = segment_or_leaving(&self.q, level, number)
        return key_rows_of(s) if s != NULL and self.q.window != NULL else b""

    def mark_keys_written(self, uint64_t number, uint8_t level=0):
        cdef store_t *st = store_at(&self.q, level)
        cdef seg_t *s = segment_at(&self.q, level, number)
        if s != NULL:
            s.keys_written = True
            return
        s = take_leaving(st, number) if st != NULL else NULL
        if s != NULL:
            seg_unmap(s)
            give_up(s)

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
        self.core.read_clock()
        write_stages(q.core)
        if not on:
            journals_stop(q)
        elif journal_of(q) == NULL:
            raise MemoryError
        else:
            journals_start(q, SWITCHED_ON)

    def begin_journal_sync(self):
        return journals_begin_sync(&self.q) if self.q.journal != NULL else []

    def end_journal_sync(self):
        if self.q.journal != NULL:
            journals_end_sync(&self.q)

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

    # ---- the whole of it

    def check(self):
        check_queue(&self.q)

    def purge(self):
        cdef queue_t *q = &self.q
        cdef store_t *st = NULL
        cdef uint64_t before
        if is_read(q):
            raise ValueError("its messages are read, and stay: its gate removes them")
        self.core.read_clock()
        if q.rules != NULL and q.rules.gate != NULL:
            q.rules.gate.empty(q.rules.gate)
        before = q.ready
        while True:
            st = next_store(q, st)
            if st == NULL:
                break
            purge_store(st)
        q.ready_octets = 0
        return before - q.ready

    def finish_deaths(self, uint64_t most):
        self.core.read_clock()
        whole = finish_deaths(&self.q, most) != 0
        self.core.request_turn()
        return whole

    def drop(self):
        cdef Consumer consumer
        gate_leave(&self.q)
        self._gate = None
        self.q.dropped = True
        for consumer in list(self.consumers or ()):
            consumer.channel.cancel(consumer)
        if self.q.rules != NULL:
            self.q.rules.active = NULL
        self.q.ready = 0
        self.q.ready_octets = 0
        rules_leave(&self.q)
        aside_clear(&self.q)
        self.leave_lists()
        if self.q.unacked:
            if not self.q.ghost:
                self.q.ghost = self.q.ghost_was = True
                Py_INCREF(self)
        else:
            stores_empty(&self.q, FREED_AT_ONCE)

    def free_some(self):
        ASSERT(self.q.dropped)
        self.q.ghost_was = True     # The caller has removed the directory.
        return self.q.ghost or stores_empty(&self.q, FREED_AT_ONCE)

    def close(self):
        cdef store_t *st = NULL
        while True:
            st = next_store(&self.q, st)
            if st == NULL:
                return
            store_unmap(st)

    def rest(self):
        cdef store_t *st = NULL
        cdef bint held = False
        if self.q.is_sync_dirty:
            return False
        order_unmap(&self.q)
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

# The turn of one event loop: it finishes all work that a chunk of octets has caused.

cdef bint has_time(core_t *core, int64_t *until) noexcept nogil:
    """Whether the moment `until` is still to come.  If it is NEVER, it is set: half of a connection's turn from now.  False if
    the turns of this core are not bounded by time."""
    if core.work_ns == NEVER:
        return False
    if until[0] == NEVER:
        until[0] = monotonic_ns() + core.work_ns // 2
        return True
    return monotonic_ns() < until[0]


cdef void flush_out_dirty(core_t *core) noexcept nogil:
    cdef conn_t *conn
    while core.out_dirty != NULL:
        conn = core.out_dirty
        core.out_dirty = conn.out_next
        conn.is_out_dirty = False
        conn.out_next = NULL
        out_flush(conn)


cdef class Core:
    """See plane/__init__.pyi."""

    def __cinit__(self, *, schedule, request_sync, storage_failed, damaged, segment_octets=8 << 20,
                  deliver_octets_per_turn=1 << 20, message_octets_max=128 << 20, frame_octets_max=131072, sync=True,
                  spare_directory=None, descriptors_most=0x7FFFFFFF, deadline=None, work_ns=0, go_on=None, lost=None, calm_ns=0, crowd_ns=0,
                  device=0):
        self.schedule = schedule
        self.request_sync = request_sync
        self.storage_failed = storage_failed
        self.damaged_upcall = damaged
        self.lost_upcall = lost
        self.deadline_upcall = deadline
        self.deadline_told = NEVER
        self.go_on_upcall = go_on
        self.calm = deque()
        self.yielded = deque()
        self.errands = deque()
        self.c.work_ns = work_ns if work_ns and go_on is not None else NEVER
        self.c.calm_ns = calm_ns
        self.c.crowd_ns = crowd_ns if crowd_ns and go_on is not None else NEVER
        self.c.segment_octets = segment_octets & ~4095
        self.c.turn_octets = deliver_octets_per_turn
        self.c.message_octets_max = min(message_octets_max, BODY_MOST)
        self.c.sync = sync
        self.c.device = device
        self.c.alarms = 1
        self.c.unfinished_most = <uint64_t>1 << 62
        self.c.descriptors_most = descriptors_most
        self.c.frame_octets_max = frame_octets_max
        self.c.now = realtime_ns()
        self.c.next_number = 1
        self.c.large_fd = -1
        if spare_directory is not None:
            path = spare_directory.encode()
            self.c.spare_directory = strdup(path)
        self.waiting = []
        self.syncing = []
        self.sealing = []
        self.garbage = []
        self.settled_segments = []
        self.unwritten_keys = []
        self.unindexed = []
        self.input_size = 262144
        # Before the octets just read there is room for what the connection could not use the last time.
        self.input_room = max(<size_t>frame_octets_max, self.input_size) * 2
        self.input = <uint8_t *>malloc(self.input_room + self.input_size)
        if self.input == NULL:
            raise MemoryError
        self.input_view = PyMemoryView_FromMemory(<char *>self.input + self.input_room, self.input_size, PyBUF_WRITE)
        core_join(&self.c)

    def __dealloc__(self):
        cdef seg_t *s
        core_leave(&self.c)
        large_close(&self.c)
        free(self.input)
        free(self.c.spare_directory)
        free(self.c.deadlines)
        free(self.c.letter)
        while self.c.spares != NULL:
            s = self.c.spares
            self.c.spares = s.next
            seg_free(s)
        while free_nameless(&self.c):
            pass
        while self.c.pool_n:
            self.c.pool_n -= 1
            free(self.c.pool[self.c.pool_n])

    @property
    def blocked(self):
        return self._blocked

    @blocked.setter
    def blocked(self, bint value):
        if value and not self._blocked:
            # A connection that published before the alarm is not stopped for that: its acks and gets make room.
            self.c.alarms += 1
        self._blocked = value
        self.c.no_spares = value
        if value:
            self.release_spares()

    @property
    def unfinished(self):
        return self.c.unfinished

    @property
    def unfinished_most(self):
        return self.c.unfinished_most

    @unfinished_most.setter
    def unfinished_most(self, uint64_t value):
        self.c.unfinished_most = value

    @property
    def count_figures(self):
        return self.c.count_figures != 0

    @count_figures.setter
    def count_figures(self, bint value):
        cdef queue_t *q = self.c.queues
        self.c.count_figures = value
        while q != NULL:
            if value:
                times_begin(q)
            else:
                times_end(q)
            q = q.core_next

    def figures(self):
        cdef core_t *c = &self.c
        cdef channel_t *ch = c.channels
        cdef uint64_t publishers = 0, confirm_in = c.n_confirm_in, confirmed = c.n_confirmed
        while ch != NULL:
            publishers += ch.publishes > 0
            if ch.confirm:
                confirm_in += ch.publishes - ch.confirm_from
                confirmed += ch.confirmed - ch.confirm_from
            ch = ch.core_next
        return {
            "publishers": publishers, "confirm_in": confirm_in, "confirm": confirmed, "get_empty": c.n_get_empty,
            "drop_unroutable": c.n_unroutable_dropped, "return_unroutable": c.n_unroutable_returned,
        }

    @property
    def sizes(self):
        return tuple([self.c.sizes[i] for i in range(SIZES)]), self.c.sizes_sum

    @property
    def times(self):
        cdef times_t sum = self.c.times_of_gone
        cdef queue_t *q = self.c.queues
        while q != NULL:
            if q.times != NULL:
                add_times(&sum, q.times)
            q = q.core_next
        return tuple_of_times(&sum)

    def close_files(self, int most):
        cdef int closed = 0
        while closed < most and close_one(&self.c, NULL):
            closed += 1
        return closed

    @property
    def spares(self):
        return self.c.spares_n + self.c.nameless_n

    @property
    def spares_used(self):
        return self.c.spares_used

    def release_spares(self):
        cdef seg_t *s
        while free_nameless(&self.c) and self.c.no_spares:
            pass
        while self.c.spares != NULL:
            s = self.c.spares
            self.c.spares = s.next
            self.c.spares_n -= 1
            self.garbage.append(f"{(<bytes>self.c.spare_directory).decode()}/{s.number:010d}")
            seg_free(s)

    cdef void read_clock(self):
        if self.clock is None:
            self.c.now = realtime_ns()
        else:
            self.c.now = self.clock()
        self.c.ms = <uint32_t>(self.uptime() // 1000000)

    cdef int64_t uptime(self) except -1:
        """ns since some moment in the past, by a clock that cannot be set."""
        if self.monotonic is not None:
            return self.monotonic()
        return monotonic_ns() if self.clock is None else self.clock()

    def turn(self):
        cdef uint64_t spent = 0
        cdef int64_t until = NEVER, deliver_until = NEVER, began
        cdef core_t *c = &self.c
        if self.in_turn or self.ended:
            return
        self.in_turn = True
        self.scheduled = False
        write_stages(c)
        if UNLIKELY(c.learnt != NULL):
            tell_learnt(c)              # before a consumer has a message whose key is not in its log
        try:
            if UNLIKELY(c.lost):
                self.tell_lost()
            if c.confirm_dirty != NULL:
                self.send_confirms()
            c.looks_left = LOOKS_OF_TURN
            if UNLIKELY(c.put_off != NULL):
                wake_put_off(c)
            while True:
                spent = deliver_dirty(c, spent)
                if UNLIKELY(c.crediting != NULL) and spent < c.turn_octets:
                    spent += 64
                    continue
                if UNLIKELY(c.deadlines_n) and c.deadlines[0].rules.deadline <= c.now:
                    spent += 64
                    expire_due(c, 64)
                if UNLIKELY(spent >= c.turn_octets) and c.dirty != NULL and has_time(c, &deliver_until):
                    # Consumers get what publishers put into their queues while it is still in the processor's cache.
                    flush_out_dirty(c)
                    spent = 0
                    continue
                if LIKELY(not has_unfinished(c)) or spent >= c.turn_octets:
                    break
                if UNLIKELY(c.busy >= c.crowd_ns):
                    # Each read of a socket runs a turn.  The loop would do affairs in each, before it looks after anything else.
                    self.ask_for_go_on()
                    break
                if until == NEVER and c.work_ns != NEVER:
                    until = monotonic_ns() + c.work_ns
                began = monotonic_ns()
                spent += c.turn_octets // DEAD_MOST * finish_chunk(c, DEAD_MOST, until)
                c.busy += monotonic_ns() - began
            flush_out_dirty(c)
        finally:
            self.in_turn = False
        if (c.dirty != NULL or c.crediting != NULL or c.put_off != NULL or c.lost or has_unfinished(c) or (c.deadlines_n and c.deadlines[0].rules.deadline <= c.now)) \
                and not self.scheduled:
            self.scheduled = True
            self.schedule()
        if UNLIKELY(c.deadlines_n) and c.deadlines[0].rules.deadline < self.deadline_told:
            self.deadline_told = c.deadlines[0].rules.deadline
            if self.deadline_upcall is not None:
                self.deadline_upcall(self.deadline_told)

    cdef void tell_lost(self):
        """Pages of some queues' files are lost.  What is not confirmed may have been stored in one of them: refuse it."""
        cdef channel_t *ch = self.c.channels
        cdef queue_t *q = self.c.queues
        cdef list queues = [], connections = []
        self.c.lost = False
        while ch != NULL:
            if ch.confirm:
                refuse_unconfirmed(ch)
            if ch.conn.gone and ch.conn.owner != NULL and (<Connection>ch.conn.owner).transport is not None:
                connections.append(<Connection>ch.conn.owner)
            ch = ch.core_next
        while q != NULL:
            if q.lost and not q.lost_told:
                q.lost_told = True
                queues.append(<Queue>q.owner)
            q = q.core_next
        for connection in connections:
            (<Connection>connection).transport.abort()
        if self.lost_upcall is not None:
            for queue in queues:
                self.lost_upcall(queue)

    cdef void deliver_dirty(self):
        """The part of a turn that hands out messages, for a method in the midst of a chunk."""
        if self.in_turn or self.ended:
            return
        write_stages(&self.c)
        if UNLIKELY(self.c.learnt != NULL):
            tell_learnt(&self.c)
        deliver_dirty(&self.c, 0)

    def go_on(self):
        cdef int64_t began
        cdef size_t left = len(self.calm) + len(self.yielded)
        self.go_on_asked = False
        if self.ended:
            return
        began = monotonic_ns()
        self.read_clock()
        self.c.busy = 0
        self.going_on = True
        try:
            try:
                while left and (self.calm or self.yielded):
                    left -= 1           # No connection has two turns.
                    self.next_connection().work_on_stash()
                    if self.c.crowd_ns == NEVER or monotonic_ns() - began >= self.c.crowd_ns:
                        break
            finally:
                self.going_on = False
                if self.errands:
                    self.do_errand()
        finally:                    # What goes wrong with one connection must not stop the others.
            self.turn()
            self.ask_to_go_on()

    cdef Connection next_connection(self):
        """The connection whose turn is next.  Every second turn is for one that is not calm, if there is any: so calm ones,
        however many, hold up none for ever."""
        self.calm_was_last = len(self.calm) != 0 and not (self.calm_was_last and self.yielded)
        return self.calm.popleft() if self.calm_was_last else self.yielded.popleft()

    cdef void ask_to_go_on(self):
        """Have go_on() called if octets or errands wait, once for each call."""
        if self.calm or self.yielded or self.errands:
            self.ask_for_go_on()

    cdef void ask_for_go_on(self):
        if not self.go_on_asked:
            self.go_on_asked = True
            self.go_on_upcall()

    @property
    def calm_ns(self):
        return self.c.calm_ns

    @calm_ns.setter
    def calm_ns(self, int64_t ns):
        self.c.calm_ns = ns

    def add_errand(self, step):
        self.errands.append(step)
        self.ask_to_go_on()

    @property
    def is_crowded(self):
        return self.c.busy >= self.c.crowd_ns

    def count_work(self, int64_t ns):
        self.c.busy += ns

    @property
    def has_errands(self):
        return len(self.errands) != 0

    cdef int do_errand(self) except -1:
        """The turn of the errand that has waited longest.  One that raises is over."""
        step = self.errands.popleft()
        if not step():
            self.errands.append(step)
        return 0

    def end(self):
        self.ended = True

    def expire(self):
        if self.ended:
            return
        self.deadline_told = NEVER
        self.read_clock()
        expire_due(&self.c, 256)
        self.turn()

    def return_overdue(self):
        cdef channel_t *ch = self.c.channels
        cdef list closing = []
        self.read_clock()
        while ch != NULL:
            if ch.unacked:
                return_overdue(ch, self.c.ms, closing)
            ch = ch.core_next
        return closing

    def put(self, tuple queues, bytes exchange, bytes routing_key, bytes properties, bytes body, *,
            uint32_t connection=0, uint16_t channel=0, uint64_t publish_seq=0, bint sync=False,
            Keys keys=None, bint redriven=False, Channel returns=None, bint staged=False):
        cdef message_t m
        cdef known_t known
        cdef uint32_t i, stored = STORED, n = <uint32_t>len(queues)
        cdef bytes names = bytes([len(exchange)]) + exchange + bytes([len(routing_key)]) + routing_key
        cdef queue_t **targets = <queue_t **>calloc(n + 1, sizeof(queue_t *) + 1)
        cdef uint8_t *took = <uint8_t *>(targets + n)
        cdef int err
        if targets == NULL:
            raise MemoryError
        try:
            for i in range(n):
                targets[i] = &(<Queue?>queues[i]).q
            m.names = <const uint8_t *>names
            m.names_n = <uint32_t>len(names)
            m.properties = <const uint8_t *>properties
            m.properties_n = <uint32_t>len(properties)
            m.body = <const uint8_t *>body
            m.body_n = len(body)
            m.connection = connection
            m.channel = channel
            m.publish_seq = publish_seq
            if not properties_are_whole(m.properties, m.properties + m.properties_n, &known):
                raise ValueError("malformed properties")
            if m.body_n > BODY_MOST:
                raise ValueError("the message is too large")
            complete(&m, &known)
            if redriven:
                m.flags |= REDRIVEN
            if keys is not None:
                m.keys = &keys.k
            err = store_message(targets, n, &m, sync, &stored, took)
            self.c.put_cost += cost_of_copies(n, m.properties_n + m.body_n)
            # Callers act as soon as put() returns (a dead letter's origin is settled), so the record is in the file now.
            if err or not staged:
                write_stages(&self.c)
            if err:
                raise OSError(err, os_strerror(err))
            queues = pick_stored(queues, took)
            if stored & UNADMITTED and returns is not None:
                return_unadmitted(&returns.c, True, &m, stored)
        finally:
            free(targets)
        if has_unfinished(&self.c) or self.c.dirty != NULL:
            self.request_turn()
        return queues

    def write_stages(self):
        write_stages(&self.c)

    def enforce_retention(self, uint32_t most):
        return enforce_retention(self, most)

    cdef void request_turn(self):
        """Ask for a turn soon, unless one is under way or asked for."""
        if not self.in_turn and not self.scheduled:
            self.scheduled = True
            self.schedule()

    cdef void send_confirms(self):
        cdef channel_t *ch
        cdef bint ask = False
        while self.c.confirm_dirty != NULL:
            ch = self.c.confirm_dirty
            self.c.confirm_dirty = ch.confirm_next
            ch.confirm_next = NULL
            ch.is_confirm_dirty = False
            if ch.sync_tag <= ch.confirmed:
                write_confirm(ch, ch.publishes)
            elif not ch.waits_for_sync:
                ch.waits_for_sync = True
                self.waiting.append(<Channel>ch.owner)
                ask = True
        if ask:
            self.request_sync()

    def sync_next(self, queues):
        cdef Queue queue
        for queue in queues:
            if self.c.sync and not queue.q.dropped:
                join_sync(&queue.q)

    @property
    def device(self):
        return self.c.device

    def begin_sync(self, Py_ssize_t descriptors):
        cdef Channel channel
        cdef queue_t *q
        cdef list files = []
        for channel in self.waiting:
            channel.c.sync_snapshot = channel.c.publishes
        self.syncing = self.waiting
        self.waiting = []
        while self.c.sync_dirty != NULL:
            q = self.c.sync_dirty
            self.c.sync_dirty = q.sync_next
            q.sync_next = NULL
            q.is_sync_dirty = False
            collect_unsynced(q, files, self.sealing, descriptors)
        return files

    def end_sync(self):
        cdef Channel channel
        cdef list channels = self.syncing
        cdef bint ask = False
        if UNLIKELY(self.c.lost):
            self.tell_lost()
        self.syncing = []
        for queue, level, number in self.sealing:
            seal_as_synced(<Queue>queue, level, number)
        self.sealing = []
        for channel in channels:
            channel.c.waits_for_sync = False
            if channel.c.closed:
                continue
            write_confirm(&channel.c, channel.c.sync_snapshot)
            if channel.c.sync_tag > channel.c.sync_snapshot:
                channel.c.waits_for_sync = True
                self.waiting.append(channel)
                ask = True
            else:
                write_confirm(&channel.c, channel.c.publishes)
        if ask:
            self.request_sync()

    def take_unwritten_keys(self):
        cdef list keyed = self.unwritten_keys
        self.unwritten_keys = []
        return keyed

    def take_unindexed(self):
        cdef list unindexed = self.unindexed
        self.unindexed = []
        return unindexed

    def mark_indexed(self, Queue queue not None, uint64_t number, bint there):
        cdef seg_t *s = segment_at(&queue.q, 0, number)
        if s == NULL or queue.q.dropped:
            return False
        s.indexed = INDEX_UNKNOWN if there else INDEX_NONE
        return True

    def take_settled_segments(self):
        cdef list kept = self.settled_segments
        self.settled_segments = []
        return kept

    def take_garbage(self):
        """Files that are not needed any more, which a thread unlinks in this order.  The caller keeps the list."""
        cdef list garbage = self.garbage
        self.garbage = []
        return garbage

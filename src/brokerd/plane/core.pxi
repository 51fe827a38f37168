# The turn of one event loop: what a chunk of octets set in motion is brought to its end.

cdef class Core:
    """See plane/__init__.pyi."""

    def __cinit__(self, *, schedule, request_sync, storage_failed, damaged, segment_octets=8 << 20,
                  deliver_octets_per_turn=1 << 20, message_octets_max=128 << 20, frame_octets_max=131072, sync=True,
                  spare_directory=None, deadline=None):
        self.schedule = schedule
        self.request_sync = request_sync
        self.storage_failed = storage_failed
        self.damaged_upcall = damaged
        self.deadline_upcall = deadline
        self.deadline_told = NEVER
        self.c.segment_octets = segment_octets & ~4095
        self.c.turn_octets = deliver_octets_per_turn
        self.c.message_octets_max = min(message_octets_max, 1 << 29)
        self.c.sync = sync
        self.c.frame_octets_max = frame_octets_max
        self.c.now = realtime_ns()
        self.c.next_number = 1
        if spare_directory is not None:
            path = spare_directory.encode()
            self.c.spare_directory = strdup(path)
        self.waiting = []
        self.syncing = []
        self.sealing = []
        self.garbage = []
        self.kept = []
        self.input_size = 262144
        # Before the octets just read there is room for what the connection could not use the last time.
        self.input_room = max(<size_t>frame_octets_max, self.input_size) * 2
        self.input = <uint8_t *>malloc(self.input_room + self.input_size)
        if self.input == NULL:
            raise MemoryError
        self.input_view = PyMemoryView_FromMemory(<char *>self.input + self.input_room, self.input_size, PyBUF_WRITE)

    def __dealloc__(self):
        cdef seg_t *s
        free(self.input)
        free(self.c.spare_directory)
        free(self.c.deadlines)
        while self.c.spares != NULL:
            s = self.c.spares
            self.c.spares = s.next
            seg_free(s)
        while self.c.pool_n:
            self.c.pool_n -= 1
            free(self.c.pool[self.c.pool_n])

    @property
    def blocked(self):
        return self._blocked

    @blocked.setter
    def blocked(self, bint value):
        self._blocked = value
        self.c.no_spares = value
        if value:
            self.release_spares()

    @property
    def spares(self):
        return self.c.spares_n

    @property
    def spares_used(self):
        return self.c.spares_used

    def release_spares(self):
        """Give back the segments kept for queues to come: their files go to the garbage."""
        cdef seg_t *s
        while self.c.spares != NULL:
            s = self.c.spares
            self.c.spares = s.next
            self.c.spares_n -= 1
            self.garbage.append(f"{(<bytes>self.c.spare_directory).decode()}/{s.number:010d}")
            seg_free(s)

    cdef void tick(self):
        if self.clock is None:
            self.c.now = realtime_ns()
        else:
            self.c.now = self.clock()
        self.c.ms = <uint32_t>(self.c.now // 1000000)

    def turn(self):
        cdef queue_t *q
        cdef conn_t *conn
        cdef uint64_t some, spent = 0
        cdef core_t *c = &self.c
        if self.in_turn:
            return
        self.in_turn = True
        self.scheduled = False
        write_stages(c)
        try:
            if c.confirm_dirty != NULL:
                self.confirm()
            while True:
                while c.dirty != NULL and spent < c.turn_octets:
                    q = c.dirty
                    c.dirty = q.dirty_next
                    if c.dirty == NULL:
                        c.dirty_tail = NULL
                    q.is_dirty = False
                    q.dirty_next = NULL
                    some = deliver(q, TURN_QUANTUM)
                    spent += some
                    # Nothing though it might: its message cannot be read now.  It waits for the next touch, not in a
                    # spin.
                    if some and q.ready and can_deliver(q):
                        queue_mark(q)
                if UNLIKELY(c.deadlines_n) and c.deadlines[0].rules.deadline <= c.now:
                    spent += 64
                    expire_due(c, 64)
                if LIKELY(not has_affairs(c)) or spent >= c.turn_octets:
                    break
                spent += c.turn_octets // DEAD_MOST * affairs(c, DEAD_MOST)
            while c.out_dirty != NULL:
                conn = c.out_dirty
                c.out_dirty = conn.out_next
                conn.is_out_dirty = False
                conn.out_next = NULL
                out_flush(conn)
        finally:
            self.in_turn = False
        if (c.dirty != NULL or has_affairs(c) or (c.deadlines_n and c.deadlines[0].rules.deadline <= c.now)) \
                and not self.scheduled:
            self.scheduled = True
            self.schedule()
        if UNLIKELY(c.deadlines_n) and c.deadlines[0].rules.deadline < self.deadline_told:
            self.deadline_told = c.deadlines[0].rules.deadline
            if self.deadline_upcall is not None:
                self.deadline_upcall(self.deadline_told)

    def expire(self):
        self.deadline_told = NEVER
        self.tick()
        expire_due(&self.c, 256)
        self.turn()

    def overdue(self):
        cdef channel_t *ch = self.c.channels
        cdef list closing = []
        self.tick()
        while ch != NULL:
            if ch.unacked:
                timed_out(ch, self.c.ms, closing)
            ch = ch.core_next
        return closing

    def put(self, tuple queues, bytes exchange, bytes routing_key, bytes properties, bytes body, *,
            uint32_t connection=0, uint16_t channel=0, uint64_t publish_seq=0, bint sync=False):
        cdef message_t m
        cdef known_t known
        cdef uint32_t i, stored = STORED, n = <uint32_t>len(queues)
        cdef bytes names = bytes([len(exchange)]) + exchange + bytes([len(routing_key)]) + routing_key
        cdef queue_t **targets = <queue_t **>malloc((n + 1) * sizeof(queue_t *))
        cdef uint64_t refused_before = 0, refused_after = 0
        cdef int err
        if targets == NULL:
            raise MemoryError
        try:
            for i in range(n):
                targets[i] = &(<Queue?>queues[i]).q
                if targets[i].rules != NULL:
                    refused_before += targets[i].rules.n_refused
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
            if m.body_n > self.c.message_octets_max:
                raise ValueError("the message is too large")
            complete(&m, &known)
            err = store_message(targets, n, &m, sync, &stored)
            # Whoever puts goes on from it being there: a dead letter's origin is settled, a commit's journal marked.
            write_stages(&self.c)
            if err:
                raise OSError(err, os_strerror(err))
            for i in range(n):
                if targets[i].rules != NULL:
                    refused_after += targets[i].rules.n_refused
        finally:
            free(targets)
        if has_affairs(&self.c) or self.c.dirty != NULL:
            self.soon()
        return refused_after - refused_before

    cdef void soon(self):
        """A turn is to follow, if none is under way."""
        if not self.in_turn and not self.scheduled:
            self.scheduled = True
            self.schedule()

    cdef void confirm(self):
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

    def begin_sync(self):
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
            collect_unsynced(q, files, self.sealing)
        return files

    def end_sync(self):
        cdef Channel channel
        cdef list channels = self.syncing
        cdef bint ask = False
        self.syncing = []
        for queue, level, number in self.sealing:
            mark_synced(<Queue>queue, level, number)
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

    def take_kept(self):
        cdef list kept = self.kept
        self.kept = []
        return kept

    def take_garbage(self):
        """Files that nobody needs any more, to be unlinked in this order by a thread; the list is the caller's."""
        cdef list garbage = self.garbage
        self.garbage = []
        return garbage


cdef inline bint can_deliver(queue_t *q) noexcept nogil:
    cdef level_t *level = q.levels
    while level != NULL:
        if level.head != NULL:
            return not q.paused
        level = level.next
    return False


cdef int collect_unsynced(queue_t *q, list files, list sealing) except -1:
    """Duplicated descriptors of all of q that is not on disk, newest data of the active segment in."""
    cdef store_t *st = NULL
    if q.dropped:
        return 0
    while True:
        st = next_store(q, st)
        if st == NULL:
            return 0
        collect_store(st, files, sealing)


cdef int collect_store(store_t *st, list files, list sealing) except -1:
    cdef seg_t *s = st.last
    cdef int fd, err
    while s != NULL and st.unsynced_n:
        if s.unsynced:
            err = seg_open(s)
            if err:
                raise OSError(err, os_strerror(err), text_path(s, "msgs"))
            fd = fcntl(s.fd, F_DUPFD_CLOEXEC, 3)
            if fd < 0:
                raise OSError(errno, os_strerror(errno), text_path(s, "msgs"))
            files.append((fd, text_path(s, "msgs")))
            s.unsynced = False
            st.unsynced_n -= 1
            if s.sealed:
                sealing.append((<Queue>st.queue.owner, st.level, s.number))
                if s.map == NULL:
                    close(s.fd)
                    s.fd = -1
        s = s.prev
    for name in directories_unsynced(st):
        fd = open(name.encode(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        if fd < 0:
            raise OSError(errno, os_strerror(errno), name)
        files.append((fd, name))
    return 0


cdef list directories_unsynced(store_t *st):
    cdef str directory
    cdef list names = []
    if not (st.directory_unsynced or st.parent_unsynced):
        return names
    directory = (<bytes>st.directory).decode()
    if st.directory_unsynced:
        names.append(directory + "/")
        st.directory_unsynced = False
    if st.parent_unsynced:
        names.append(directory.rpartition("/")[0] + "/")
        st.parent_unsynced = False
    return names


cdef void mark_synced(Queue queue, uint8_t level, uint64_t number):
    """A sealed segment is on disk whole: after a power cut it need not be read to be believed."""
    cdef store_t *st = store_at(&queue.q, level)
    cdef seg_t *s = st.last if st != NULL else NULL
    while s != NULL and s.number != number:
        s = s.prev
    if s == NULL or not s.sealed or queue.q.dropped:
        return
    seg_put_sealed(s, 2)


cdef class Tally:
    """See plane/__init__.pyi."""

    @property
    def published(self):
        return self.t.published

    @property
    def routed(self):
        return self.t.routed


cdef enum:
    ROUTES_MOST = 16384     # remembered; then all are forgotten and learnt anew

@cython.no_gc_clear
cdef class Routes:
    """See plane/__init__.pyi."""

    def __cinit__(self, Core core, resolve):
        self.core = core
        self.resolve = resolve
        self.keep = []
        self.generation = 1

    def __dealloc__(self):
        self.forget()

    cdef void forget(self):
        cdef uint32_t i
        for i in range(self.slots_n):
            route_free(self.slots[i])
        free(self.slots)
        self.slots = NULL
        self.slots_n = self.used = 0
        route_free(self.once)
        self.once = NULL

    def clear(self):
        # The publish under way may have caused this, by a dead letter whose waiting room is made: its route is freed
        # when the next one asks.  Until then no channel believes what it remembers.
        self.generation += 1
        self.stale = True

    cdef void renew(self):
        self.stale = False
        self.forget()
        self.keep = []
        self.once_keep = None

    cdef route_t *find(self, const uint8_t *method, uint32_t n, uint32_t hash):
        cdef uint32_t i
        cdef route_t *r
        if self.stale:
            self.renew()
        if self.slots_n == 0:
            return NULL
        i = hash & (self.slots_n - 1)
        while self.slots[i] != NULL:
            r = self.slots[i]
            if r.hash == hash and r.method_n == n and memcmp(r.method, method, n) == 0:
                return r
            i = (i + 1) & (self.slots_n - 1)
        return NULL

    cdef int place(self, route_t *r) except -1:
        cdef uint32_t i, n
        cdef route_t **slots
        if self.used * 2 >= self.slots_n:
            n = self.slots_n * 2 if self.slots_n else 16
            slots = <route_t **>calloc(n, sizeof(route_t *))
            if slots == NULL:
                raise MemoryError
            for i in range(self.slots_n):
                if self.slots[i] != NULL:
                    put_slot(slots, n, self.slots[i])
            free(self.slots)
            self.slots = slots
            self.slots_n = n
        put_slot(self.slots, self.slots_n, r)
        self.used += 1
        return 0

    cdef int learn(self, channel_t *ch, const event_t *e) except -1:
        """Ask where the publish of event e leads, and remember.  Raises what resolve raises."""
        cdef const uint8_t *p = e.payload
        cdef uint32_t exchange_n, key_n
        cdef route_t *r
        cdef object properties = None, handler = None, channel = <Channel>ch.owner
        cdef tuple answer
        exchange_n = p[6] if e.payload_n > 6 else 255
        if e.payload_n < 9 or 7 + exchange_n >= e.payload_n - 1:
            raise by_reply_code(502, "basic.publish ends before its fields do", hard=True)
        key_n = p[7 + exchange_n]
        if 8 + exchange_n + key_n + 1 != e.payload_n:
            raise by_reply_code(502, "basic.publish is not of the length of its fields", hard=True)
        answer = self.resolve(
            (<const char *>p)[7:7 + exchange_n], (<const char *>p)[8 + exchange_n:8 + exchange_n + key_n],
            (<const char *>e.header)[:e.header_n], channel)
        queues, tally, cacheable = answer[:3]
        if len(answer) > 3:
            properties = answer[3]
        if len(answer) > 4:
            handler = answer[4]
        if self.used >= ROUTES_MOST:
            self.clear()
        if self.stale:
            self.renew()            # resolve() may have changed what there is.
        r = route_new(p, e.payload_n, queues, tally)
        if handler is not None:
            r.handler = <void *>handler
        if properties is not None:
            r.properties = <const uint8_t *><bytes>properties
            r.properties_n = <uint32_t>len(<bytes>properties)
        if cacheable and not e.ask and properties is None:
            self.keep.append((queues, tally, handler))
            self.place(r)
        else:
            # Every other channel's idea of the last such route is void from here on.
            self.generation += 1
            route_free(self.once)
            self.once = r
            self.once_keep = (queues, tally, properties, handler)
            r.once = True
        ch.route = r
        ch.route_generation = self.generation
        return 0


cdef void put_slot(route_t **slots, uint32_t n, route_t *r) noexcept nogil:
    cdef uint32_t i = r.hash & (n - 1)
    while slots[i] != NULL:
        i = (i + 1) & (n - 1)
    slots[i] = r


cdef route_t *route_new(const uint8_t *method, uint32_t n, tuple queues, Tally tally) except NULL:
    cdef size_t count = len(queues)
    cdef route_t *r = <route_t *>malloc(sizeof(route_t) + count * sizeof(queue_t *) + n)
    cdef size_t i
    if r == NULL:
        raise MemoryError
    r.targets = <queue_t **>(r + 1)
    r.method = <uint8_t *>(r.targets + count)
    memcpy(r.method, method, n)
    r.method_n = n
    r.hash = crc_update(0, method, n)
    r.targets_n = <uint32_t>count
    r.mandatory = method[n - 1] & 1
    r.immediate = method[n - 1] >> 1 & 1
    r.handler = NULL
    r.properties = NULL
    r.properties_n = 0
    r.once = False
    r.tally = &tally.t if tally is not None else NULL
    for i in range(count):
        r.targets[i] = &(<Queue?>queues[i]).q
    return r


cdef void route_free(route_t *r) noexcept nogil:
    free(r)

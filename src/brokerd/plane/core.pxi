# The turn of one event loop: what a chunk of octets set in motion is brought to its end.

cdef class Core:
    """See plane/__init__.pyi."""

    def __cinit__(self, *, schedule, request_sync, storage_failed, damaged, segment_octets=8 << 20,
                  deliver_octets_per_turn=1 << 20, message_octets_max=128 << 20, frame_octets_max=131072, sync=True,
                  spare_directory=None):
        self.schedule = schedule
        self.request_sync = request_sync
        self.storage_failed = storage_failed
        self.damaged_upcall = damaged
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
            while c.dirty != NULL and spent < c.turn_octets:
                q = c.dirty
                c.dirty = q.dirty_next
                if c.dirty == NULL:
                    c.dirty_tail = NULL
                q.is_dirty = False
                q.dirty_next = NULL
                some = deliver(q, TURN_QUANTUM)
                spent += some
                # Nothing though it might: its message cannot be read now.  It waits for the next touch, not in a spin.
                if some and q.ready and can_deliver(q):
                    queue_mark(q)
            while c.out_dirty != NULL:
                conn = c.out_dirty
                c.out_dirty = conn.out_next
                conn.is_out_dirty = False
                conn.out_next = NULL
                out_flush(conn)
        finally:
            self.in_turn = False
        if c.dirty != NULL and not self.scheduled:
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
        for queue, number in self.sealing:
            mark_synced(<Queue>queue, number)
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
    cdef seg_t *s = q.last
    cdef int fd, err
    if q.dropped:
        return 0
    while s != NULL and q.unsynced_n:
        if s.unsynced:
            err = seg_open(s)
            if err:
                raise OSError(err, os_strerror(err), text_path(s, "msgs"))
            fd = fcntl(s.fd, F_DUPFD_CLOEXEC, 3)
            if fd < 0:
                raise OSError(errno, os_strerror(errno), text_path(s, "msgs"))
            files.append((fd, text_path(s, "msgs")))
            s.unsynced = False
            q.unsynced_n -= 1
            if s.sealed:
                sealing.append((<Queue>q.owner, s.number))
                if s.map == NULL:
                    close(s.fd)
                    s.fd = -1
        s = s.prev
    for name in directories_unsynced(q):
        fd = open(name.encode(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        if fd < 0:
            raise OSError(errno, os_strerror(errno), name)
        files.append((fd, name))
    return 0


cdef list directories_unsynced(queue_t *q):
    cdef str directory = (<Queue>q.owner).directory
    cdef list names = []
    if q.directory_unsynced:
        names.append(directory + "/")
        q.directory_unsynced = False
    if q.parent_unsynced:
        names.append(directory.rpartition("/")[0] + "/")
        q.parent_unsynced = False
    return names


cdef void mark_synced(Queue queue, uint64_t number):
    """A sealed segment is on disk whole: after a power cut it need not be read to be believed."""
    cdef seg_t *s = queue.q.last
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
        self.forget()
        self.keep = []
        self.generation += 1

    cdef route_t *find(self, const uint8_t *method, uint32_t n, uint32_t hash):
        cdef uint32_t i
        cdef route_t *r
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
        exchange_n = p[6] if e.payload_n > 6 else 255
        if e.payload_n < 9 or 7 + exchange_n >= e.payload_n - 1:
            raise by_reply_code(502, "basic.publish ends before its fields do", hard=True)
        key_n = p[7 + exchange_n]
        if 8 + exchange_n + key_n + 1 != e.payload_n:
            raise by_reply_code(502, "basic.publish is not of the length of its fields", hard=True)
        if p[e.payload_n - 1] & 2:
            raise by_reply_code(540, "immediate=true", hard=True)
        queues, tally, cacheable = self.resolve(
            (<const char *>p)[7:7 + exchange_n], (<const char *>p)[8 + exchange_n:8 + exchange_n + key_n],
            (<const char *>e.header)[:e.header_n])
        if self.used >= ROUTES_MOST:
            self.clear()
        r = route_new(p, e.payload_n, queues, tally)
        if cacheable and not be16(e.header + 12) & USER_ID:
            self.keep.append((queues, tally))
            self.place(r)
        else:
            # Every other channel's idea of the last such route is void from here on.
            self.generation += 1
            route_free(self.once)
            self.once = r
            self.once_keep = (queues, tally)
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
    r.once = False
    r.tally = &tally.t if tally is not None else NULL
    for i in range(count):
        r.targets[i] = &(<Queue?>queues[i]).q
    return r


cdef void route_free(route_t *r) noexcept nogil:
    free(r)

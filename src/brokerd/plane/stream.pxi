# The gate of a stream: messages are read, not taken.  Each consumer is a reader (reader.pxi) with a place of its own.  Retention
# alone removes messages, whole segments at a time, the oldest first, and never the last one.
#
# A record's offset is its sequence number; deliveries carry it in the header x-stream-offset.
#
# The place of an unacked delivery names rules_t.stand_in in place of its segment, and in `ordinal` its held_t.  So no reader
# holds up retention.
#
# A reader at the end leaves its ring, and stands in stream_t.at_end until the next message comes: until then it costs nothing.


cdef enum:
    RETAIN_AT_ONCE = 16         # segments that a publish removes
    FILTER_LOOKS = 2048         # messages that a filter looks at before other readers, and other queues, have their turn


# ---- the gate's verbs

cdef void rest_at_end(reader_t *r) noexcept nogil:
    if not r.at_end:
        r.at_end = True
        r.end_next = r.stream.at_end
        r.stream.at_end = r


cdef void wake_readers(stream_t *stream) noexcept nogil:
    """A message came: who waited for it stands in its ring again."""
    cdef reader_t *r
    while stream.at_end != NULL:
        r = stream.at_end
        stream.at_end = r.end_next
        r.at_end = False
        ring_rejoin(r.consumer)


cdef bint take_again(reader_t *r, place_t *t) noexcept nogil:
    """Take the first delivery that was given back.  What retention has removed since is missed."""
    cdef uint32_t i
    cdef held_t *h
    cdef seg_t *s
    while r.again_n:
        i = r.again[0]
        h = &r.held[i]
        s = r.seg if r.seg != NULL else r.stream.gate.queue.store.last
        while s != NULL and s.number > h.number:
            s = s.prev
        if s == NULL or s.number != h.number:
            again_pop(r)
            let_go(r, i)
            r.missed += 1
            r.stream.n_missed += 1
            continue
        if not map_for_reader(r.stream, s):
            return False
        again_pop(r)
        t.seg = s
        t.position = h.position
        t.seq = h.offset
        t.count = h.count
        t.flags = h.flags
        t.ordinal = i
        return True
    return False


cdef bint passes_filter(reader_t *r, const uint8_t *record) noexcept nogil:
    """Whether the reader wants this message."""
    cdef message_t m
    cdef const uint8_t *table
    cdef const uint8_t *value = NULL
    cdef const uint8_t *p = r.filter
    cdef size_t n
    message_of(record, &m)
    table = property_at(m.properties, PROPERTY_HEADERS)
    if table != NULL:
        value = find_header(table, b"x-stream-filter-value", 21, &n)
    if value == NULL or value[0] != c'S':
        return r.unfiltered
    while p < r.filter + r.filter_n:
        if be16(p) == be32(value + 1) and memcmp(p + 2, value + 5, be16(p)) == 0:
            return True
        p += 2 + be16(p)
    return False


cdef int stream_take(gate_t *gate, consumer_t *c, place_t *t) noexcept nogil:
    cdef reader_t *r = <reader_t *>c.reader if c != NULL else NULL
    cdef uint64_t seq
    cdef uint32_t i
    if r == NULL or r.stream == NULL:
        return TAKE_END
    memset(t, 0, sizeof(place_t))
    if UNLIKELY(r.again_n) and take_again(r, t):
        return TAKE_DONE
    while True:
        if UNLIKELY(r.seg == NULL or not r.started):
            if not reader_find(r):
                break
        elif not reader_peek(r):
            break
        seq = seq_of(r.seg.map + r.position)
        if UNLIKELY(seq > r.offset and r.tells):
            r.missed += seq - r.offset
            r.stream.n_missed += seq - r.offset
            r.tells = False
        if UNLIKELY(r.filter != NULL) and not passes_filter(r, r.seg.map + r.position):
            r.offset = seq + 1
            r.position += room_of(r.seg.map + r.position)
            gate.looked += 1
            if gate.looked < FILTER_LOOKS:
                continue
            ring_leave(c)
            ring_join(c)
            return TAKE_LATER
        i = hold(r, seq, r.seg.number, r.position)
        if UNLIKELY(i == NO_HELD):
            break
        t.seg = r.seg
        t.position = r.position
        t.seq = seq
        t.ordinal = i
        r.offset = seq + 1
        r.position += room_of(r.seg.map + r.position)
        return TAKE_DONE
    gate.looked += 1
    rest_at_end(r)
    return TAKE_END


cdef bint stream_settle(gate_t *gate, place_t *t, uint8_t kind) noexcept nogil:
    """A settlement moves credit, and what its reader holds; the message stays."""
    cdef reader_t *r = <reader_t *>gate.consumer.reader if gate.consumer != NULL else NULL
    if r != NULL:
        let_go(r, t.ordinal)
        if r.slot != NULL:
            keep_offset(r)
    return True


cdef bint stream_give_back(gate_t *gate, place_t *t, uint8_t cause) noexcept nogil:
    """Its reader gets the message again, before anything newer.  Where the reader has left, it stays held: not acknowledged."""
    cdef reader_t *r = <reader_t *>gate.consumer.reader if gate.consumer != NULL else NULL
    if r != NULL and r.stream != NULL:
        r.held[t.ordinal].count = t.count
        r.held[t.ordinal].flags = t.flags
        again_push(r, t.ordinal)
    return True


cdef uint32_t stream_headers(gate_t *gate, place_t *t, uint8_t *room) noexcept nogil:
    memcpy(room, b"\x0fx-stream-offsetl", 17)
    put_be64(room + 17, t.seq)
    return 25


cdef void remove_first(stream_t *stream) noexcept nogil:
    """Remove the first segment, which is not the last one."""
    cdef queue_t *q = stream.gate.queue
    cdef seg_t *s = q.store.first
    cdef uint64_t n = s.waiting
    q.ready_octets -= <uint64_t>(<double>q.ready_octets * n / q.ready) if q.ready > n else q.ready_octets
    uncount_ready(&q.store, n)
    s.settled = s.records
    s.waiting = 0
    stream.n_removed += n
    stream.n_removed_segments += 1
    retire_if_settled(s)


cdef uint64_t octets_of_files(store_t *st) noexcept nogil:
    cdef seg_t *s = st.first
    cdef uint64_t n = 0
    while s != NULL:
        n += s.end
        s = s.next
    return n


cdef bint is_over_retention(stream_t *stream, uint64_t octets) noexcept nogil:
    cdef queue_t *q = stream.gate.queue
    cdef int64_t begun
    if stream.max_length >= 0 and q.ready > <uint64_t>stream.max_length:
        return True
    if stream.max_octets >= 0 and octets > <uint64_t>stream.max_octets:
        return True
    if stream.age < 0:
        return False
    begun = created_of(q.store.first.next)
    return begun != 0 and begun <= q.core.now - stream.age      # All records before that are older.


cdef uint32_t stream_retain(stream_t *stream, uint32_t most) noexcept nogil:
    """Remove at most so many segments that the limits ask for.  Returns how many."""
    cdef store_t *st = &stream.gate.queue.store
    cdef uint64_t octets
    cdef uint32_t n = 0
    if stream.max_length < 0 and stream.max_octets < 0 and stream.age < 0:
        return 0
    octets = octets_of_files(st) if stream.max_octets >= 0 else 0
    while n < most and st.first != st.last and is_over_retention(stream, octets):
        octets -= min(octets, <uint64_t>st.first.end)
        remove_first(stream)
        n += 1
    return n


cdef void stream_stored(gate_t *gate, store_t *st, message_t *m) noexcept nogil:
    cdef stream_t *stream = <stream_t *>gate
    if stream.at_end != NULL:
        wake_readers(stream)
    if UNLIKELY(st.last != stream.newest):
        stream.newest = st.last
        stream_retain(stream, RETAIN_AT_ONCE)


cdef void stream_retiring(gate_t *gate, seg_t *s) noexcept nogil:
    """Readers in a segment that goes find their place anew."""
    cdef reader_t *r = (<stream_t *>gate).readers
    while r != NULL and s.readers:
        if r.seg == s:
            r.seg = NULL
            r.tells = True
            s.readers -= 1
        r = r.next


cdef void stream_join(gate_t *gate, consumer_t *c) noexcept nogil:
    cdef stream_t *stream = <stream_t *>gate
    cdef reader_t *r = <reader_t *>calloc(1, sizeof(reader_t)) if c.reader == NULL else NULL
    if r == NULL:
        return                  # No memory, or of a gate that went: it gets nothing.
    r.consumer = c
    r.stream = stream
    r.unused = r.first = r.last = NO_HELD
    r.start = stream.next_start
    r.offset = stream.next_offset
    r.start_ns = stream.next_ns
    r.tells = stream.next_tells
    r.filter = stream.next_filter
    r.filter_n = stream.next_filter_n
    r.unfiltered = stream.next_unfiltered
    stream.next_filter = NULL
    r.slot = stream.next_slot
    r.turn = stream.next_turn
    stream.next_slot = NULL
    r.next = stream.readers
    if r.next != NULL:
        r.next.prev = r
    stream.readers = r
    stream.readers_n += 1
    c.reader = r


cdef void stream_leave(gate_t *gate, consumer_t *c) noexcept nogil:
    cdef stream_t *stream = <stream_t *>gate
    cdef reader_t *r = <reader_t *>c.reader
    cdef reader_t **at = &stream.at_end
    if r == NULL or r.stream != stream:
        return
    if r.at_end:
        while at[0] != r:
            at = &at[0].end_next
        at[0] = r.end_next
        r.at_end = False
    if r.prev != NULL:
        r.prev.next = r.next
    else:
        stream.readers = r.next
    if r.next != NULL:
        r.next.prev = r.prev
    stream.readers_n -= 1
    reader_leave_segment(r)
    r.again_n = 0               # What was given back stays held: it is not acknowledged.
    r.stream = NULL


cdef void reader_free(reader_t *r) noexcept nogil:
    if r == NULL:
        return
    if r.stream != NULL:        # Its consumer never left: all that it belongs to goes.
        stream_leave(&r.stream.gate, r.consumer)
    free(r.filter)
    free(r.held)
    free(r.again)
    free(r)


cdef void stream_attach(gate_t *gate) noexcept nogil:
    (<stream_t *>gate).newest = NULL


cdef class Stream(Gate):
    """See plane/__init__.pyi."""

    cdef stream_t stream
    cdef object slot            # keeps the memory there into which readers write

    def __cinit__(self):
        cdef gate_t *gate = &self.stream.gate
        memset(&self.stream, 0, sizeof(stream_t))
        gate_init(gate)
        gate.reads = gate.lets_go = True
        gate.attach = stream_attach
        gate.take = stream_take
        gate.settle = stream_settle
        gate.give_back = stream_give_back
        gate.headers = stream_headers
        gate.stored = stream_stored
        gate.retiring = stream_retiring
        gate.join = stream_join
        gate.leave = stream_leave
        self.stream.max_length = self.stream.max_octets = self.stream.age = -1
        self.gate = gate

    def __dealloc__(self):
        free(self.stream.next_filter)

    def begin(self, start, int64_t value, *, bint tells=False, uint8_t[::1] slot=None, uint32_t turn=0,
              bytes filter=None, bint unfiltered=False):
        cdef queue_t *q = self.stream.gate.queue
        cdef uint64_t back
        free(self.stream.next_filter)
        self.stream.next_filter = NULL
        if filter is not None:
            self.stream.next_filter = <uint8_t *>malloc(len(filter) + 1)
            if self.stream.next_filter == NULL:
                raise MemoryError
            memcpy(self.stream.next_filter, <const char *>filter, len(filter))
            self.stream.next_filter_n = <uint32_t>len(filter)
            self.stream.next_unfiltered = unfiltered
        self.stream.next_slot = NULL
        if slot is not None:
            if slot.shape[0] < CELLS + 32:
                raise ValueError("a reader's slot is longer")
            self.slot = slot
            self.stream.next_slot = &slot[0]
            self.stream.next_turn = turn
        self.stream.next_start = START_OFFSET
        self.stream.next_tells = tells
        self.stream.next_offset = 1
        if start == "last":
            self.stream.next_start = START_LAST
        elif start == "time":
            self.stream.next_start = START_TIME
            self.stream.next_ns = value
        elif start == "ago":
            self.stream.next_start = START_TIME
            self.stream.next_ns = q.core.now - value
        elif start == "next":
            self.stream.next_offset = q.next_seq
        elif start == "back":
            back = <uint64_t>value
            self.stream.next_offset = q.next_seq - back if back < q.next_seq else 1
        elif start == "offset":
            self.stream.next_offset = max(value, 1)
        else:
            raise ValueError(f"a reader cannot start at '{start}'")

    def set_limits(self, *, int64_t max_length=-1, int64_t max_octets=-1, int64_t age_ns=-1):
        self.stream.max_length = max_length
        self.stream.max_octets = max_octets
        self.stream.age = age_ns

    def retain(self, uint32_t most):
        cdef queue_t *q = self.stream.gate.queue
        if q == NULL or q.dropped or q.lost or q.store.first == NULL:
            return 0
        (<Queue>q.owner).core.read_clock()
        write_stages(q.core)
        return stream_retain(&self.stream, most)

    def purge(self):
        cdef queue_t *q = self.stream.gate.queue
        cdef store_t *st
        cdef seg_t *last
        cdef uint64_t before
        cdef int err
        (<Queue>q.owner).core.read_clock()
        write_stages(q.core)
        st = &q.store
        last = st.last
        before = q.ready
        if before == 0:
            return 0
        if last.records:
            err = seg_new(st, 0)
            if err:
                raise OSError(err, os_strerror(err))
            if not last.sealed:
                seg_seal(last)
        while st.first != st.last:
            remove_first(&self.stream)
        return before - q.ready

    def readers(self):
        cdef list out = []
        cdef reader_t *r = self.stream.readers
        while r != NULL:
            out.append((<Consumer>r.consumer.owner, r.offset if r.started or r.start == START_OFFSET else 0,
                        lowest_unacked(r) if r.started or r.start == START_OFFSET else 0, r.missed))
            r = r.next
        return out

    @property
    def first_offset(self):
        cdef queue_t *q = self.stream.gate.queue
        cdef seg_t *s = q.store.first if q != NULL else NULL
        while s != NULL and s.records == 0:
            s = s.next
        return s.base_seq if s != NULL else (q.next_seq if q != NULL else 1)

    @property
    def removed(self):
        return self.stream.n_removed

    @property
    def removed_segments(self):
        return self.stream.n_removed_segments

    @property
    def missed(self):
        return self.stream.n_missed

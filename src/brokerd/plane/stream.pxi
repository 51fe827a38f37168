# The gate of a stream: messages are read, not taken.  Each consumer is a reader (reader.pxi) with a place of its own.  Retention
# alone removes messages, whole segments at a time, the oldest first, and never the last one.
#
# A record's offset is its sequence number; deliveries carry it in the header x-stream-offset.
#
# Readers of one name may share a place (share.pxi): a single active one, or each with keys of its own.
#
# The place of an unacked delivery names rules_t.stand_in in place of its segment, and in `ordinal` its held_t.  So no reader
# holds up retention.
#
# A reader at the end leaves its ring, and stands in stream_t.at_end until the next message comes: until then it costs nothing.


cdef enum:
    FILTER_LOOKS = 2048         # messages that a filter looks at before other readers of its stream have their turn


# ---- the gate's verbs

cdef void wake_readers(stream_t *stream) noexcept nogil:
    """A message came: who waited for it stands in its ring again."""
    cdef reader_t *r
    while stream.at_end != NULL:
        r = stream.at_end
        leave_end(r)
        ring_rejoin(r.consumer)


cdef int after_others(consumer_t *c, reader_t *place) noexcept nogil:
    keep_passed(place)
    ring_leave(c)
    ring_join(c)
    return TAKE_AFTER


cdef int take_again(reader_t *r, place_t *t) noexcept nogil:
    """Take the first delivery that was given back.  What retention has removed since is missed.  TAKE_END: there is none, or it
    cannot be read now."""
    cdef uint32_t i
    cdef held_t *h
    cdef seg_t *s
    while r.again_n:
        if UNLIKELY(r.stream.gate.looked >= FILTER_LOOKS):
            return after_others(r.consumer, r)
        i = r.again[0]
        h = &r.held[i]
        s = segment_numbered(&r.stream.segments, &r.stream.gate.queue.store, h.number)
        if s == NULL:
            again_pop(r)
            miss_held(r, i)
            let_go(r, i)
            r.stream.gate.looked += 1
            continue
        if not map_for_reader(r.stream, s):
            return TAKE_END
        again_pop(r)
        t.seg = s
        t.position = h.position
        t.seq = h.offset
        t.count = h.count
        t.flags = h.flags
        t.ordinal = i
        return TAKE_DONE
    return TAKE_END


cdef inline bint reader_look(reader_t *r) noexcept nogil:
    """Find the record that the reader is to look at.  False: it is at the end, or the record cannot be read now."""
    cdef uint64_t seq
    if UNLIKELY(r.seg == NULL or not r.started):
        return reader_find(r)
    if UNLIKELY(not is_at_hand(r)) and not reader_peek(r):
        return False
    seq = seq_of(r.seg.map + r.position)
    if UNLIKELY(seq > r.offset and r.tells):
        miss(r, r.offset, seq)
        r.tells = False
    return True


cdef inline void step_over(reader_t *r, uint64_t seq) noexcept nogil:
    r.offset = seq + 1
    r.position += room_of(r.seg.map + r.position)


cdef inline bint skip_ahead(reader_t *r) noexcept nogil:
    """Go past what the index says the reader wants none of.  False: others have their turn first."""
    r.goes_on = False
    if LIKELY(not r.skips):
        return True
    while r.started and r.seg != NULL and skip_blocks(r):
        if r.stream.gate.looked >= FILTER_LOOKS:
            r.goes_on = True
            return False
    return True


cdef inline bint is_out_of_looks(gate_t *gate, reader_t *place) noexcept nogil:
    """Whether the reader has to look at messages, and filters have looked enough in this turn of the loop."""
    return (is_filtered(place) or not place.started) and gate.queue.core.looks_left <= 0


cdef inline int spend_looks(gate_t *gate, int took) noexcept nogil:
    gate.queue.core.looks_left -= gate.looked
    return took


cdef inline bint may_look_on(gate_t *gate) noexcept nogil:
    return gate.looked < FILTER_LOOKS and gate.looked < gate.queue.core.looks_left


cdef int stream_take(gate_t *gate, consumer_t *c, place_t *t) noexcept nogil:
    cdef reader_t *r = <reader_t *>c.reader if c != NULL else NULL
    cdef uint64_t seq
    cdef uint32_t i
    cdef int took
    if r == NULL or r.stream == NULL:
        return TAKE_END
    memset(t, 0, sizeof(place_t))
    if UNLIKELY(r.share != NULL):
        return share_take(gate, r, t)
    if UNLIKELY(r.again_n):
        took = take_again(r, t)
        if took != TAKE_END:
            return took
    if UNLIKELY(is_out_of_looks(gate, r)):
        put_off(c)
        return TAKE_END
    while skip_ahead(r) and reader_look(r):
        seq = seq_of(r.seg.map + r.position)
        if UNLIKELY(is_filtered(r)) and not passes_filter(r, r.seg.map + r.position):
            step_over(r, seq)
            gate.looked += 1
            if LIKELY(may_look_on(gate)):
                continue
            return spend_looks(gate, after_others(c, r))
        i = hold(r, seq, r.seg.number, r.position)
        if UNLIKELY(i == NO_HELD):
            break
        t.seg = r.seg
        t.position = r.position
        t.seq = seq
        t.ordinal = i
        step_over(r, seq)
        return spend_looks(gate, TAKE_DONE)
    gate.looked += 1
    if UNLIKELY(r.goes_on):
        return spend_looks(gate, after_others(c, r))
    keep_passed(r)
    rest_at_end(r)
    return spend_looks(gate, TAKE_END)


cdef int share_take(gate_t *gate, reader_t *r, place_t *t) noexcept nogil:
    """stream_take() for a reader that shares: what waits for it; else it reads on for all, until a message is its own."""
    cdef share_t *share = r.share
    cdef reader_t *p = &share.place
    cdef uint64_t seq
    cdef uint32_t i, held = 0
    cdef flow_t *f
    if r.waiting != NO_HELD and share_take_waiting(r, t):
        return spend_on_share(share, TAKE_DONE, 1)
    if UNLIKELY(lacks_owners(share)) and gate.looked < SHARE_LOOKS:
        if gate.queue.core.looks_left <= 0:
            put_off(r.consumer)
            return TAKE_END
        find_owners(share)
        if r.waiting != NO_HELD and share_take_waiting(r, t):
            return spend_on_share(share, TAKE_DONE, gate.looked)
    if UNLIKELY(gate.looked >= SHARE_LOOKS or lacks_owners(share)):
        share.full = gate.looked < SHARE_LOOKS and share.heaped >= SHARE_WAITS_MOST
        return spend_on_share(share, TAKE_END if share.full else after_others(r.consumer, p), gate.looked)
    if r.waiting != NO_HELD or not reads_for_all(r):
        return TAKE_END
    if UNLIKELY(is_out_of_looks(gate, p)):
        put_off(r.consumer)
        return TAKE_END
    while skip_ahead(p) and reader_look(p):
        seq = seq_of(p.seg.map + p.position)
        if LIKELY(not is_filtered(p)) or passes_filter(p, p.seg.map + p.position):
            i = share_hold(share, p.seg.map + p.position)
            if UNLIKELY(i == NO_HELD):
                break
            f = &share.flows[share.parts[i].flow]
            if owner_of(share, f) == r:
                share_hand_out(share, i, p.seg, t)
                step_over(p, seq)
                return spend_on_share(share, TAKE_DONE, held + 1)
            wait_for(share, f, i)
            held += 1
            if share.waiting >= SHARE_WAITS_MOST:
                share.full = True
                step_over(p, seq)
                return spend_on_share(share, TAKE_END, held)
        step_over(p, seq)
        gate.looked += 1
        if not (may_look_on(gate) if is_filtered(p) else gate.looked < FILTER_LOOKS):
            return spend_on_share(share, after_others(r.consumer, p), held)
    gate.looked += 1
    if UNLIKELY(p.goes_on):
        return spend_on_share(share, after_others(r.consumer, p), held)
    keep_passed(p)
    rest_at_end(r)
    return spend_on_share(share, TAKE_END, held)


cdef bint stream_settle(gate_t *gate, place_t *t, uint8_t kind) noexcept nogil:
    """A settlement moves credit, and what its reader holds; the message stays."""
    cdef reader_t *r = <reader_t *>gate.consumer.reader if gate.consumer != NULL else NULL
    if r != NULL and UNLIKELY(r.share != NULL):
        share_settle(r, t.ordinal)
    elif r != NULL:
        let_go(r, t.ordinal)
        if r.slot != NULL:
            keep_offset(r)
    return True


cdef bint stream_give_back(gate_t *gate, place_t *t, uint8_t cause) noexcept nogil:
    """Its reader gets the message again, before anything newer.  Where the reader has left, it stays held: not acknowledged."""
    cdef reader_t *r = <reader_t *>gate.consumer.reader if gate.consumer != NULL else NULL
    if r != NULL and UNLIKELY(r.share != NULL):
        share_give_back(r, t)
    elif r != NULL and r.stream != NULL:
        r.held[t.ordinal].count = t.count
        r.held[t.ordinal].flags = t.flags
        again_push(r, t.ordinal)
    return True


cdef uint32_t stream_headers(gate_t *gate, place_t *t, uint8_t *room) noexcept nogil:
    memcpy(room, b"\x0fx-stream-offsetl", 17)
    put_be64(room + 17, t.seq)
    return 25


cdef void stream_stored(gate_t *gate, store_t *st, message_t *m) noexcept nogil:
    cdef stream_t *stream = <stream_t *>gate
    if stream.at_end != NULL:
        wake_readers(stream)
    if UNLIKELY(st.last != stream.newest):
        stream.newest = st.last
        if stream.filtered and st.last.prev != NULL:
            want_index(st.last.prev)
        stream_retain(stream, RETAIN_AT_ONCE)


cdef inline void reader_lose_segment(reader_t *r, seg_t *s) noexcept nogil:
    if r.seg == s:
        r.seg = NULL
        r.tells = True
        s.readers -= 1


cdef void stream_retiring(gate_t *gate, seg_t *s) noexcept nogil:
    """Readers in a segment that goes find their place anew."""
    cdef reader_t *r = (<stream_t *>gate).readers
    cdef share_t *share = (<stream_t *>gate).shares
    while r != NULL and s.readers:
        reader_lose_segment(r, s)
        r = r.next
    while share != NULL and s.readers:
        reader_lose_segment(&share.place, s)
        share = share.next
    index_forget(s)
    if not s.unlinked and not s.queue.dropped:
        with gil:
            (<Queue>s.queue.owner).core.garbage.append(text_path(s, "index"))


cdef void begin_place(stream_t *stream, reader_t *r) noexcept nogil:
    """The place begins where begin() has said; the filter and the slot are its own from now on."""
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
    r.program = stream.next_program
    r.program_n = stream.next_program_n
    stream.next_program = NULL
    r.skips = is_skipping(r)
    stream.filtered = stream.filtered or r.skips
    r.slot = stream.next_slot
    r.turn = stream.next_turn
    r.kept = stream.next_kept
    stream.next_slot = NULL
    if r.slot != NULL:
        find_missed(r)


cdef share_t *new_share(stream_t *stream) noexcept nogil:
    """A share as begin() has said; NULL: no memory."""
    cdef share_t *share = <share_t *>calloc(1, sizeof(share_t))
    cdef uint32_t i
    if share == NULL:
        return NULL
    begin_place(stream, &share.place)
    memcpy(share.name, stream.next_name, 256)
    share.single = stream.next_single
    share.unused = share.moving = NO_FLOW
    share.ownerless.first = share.ownerless.last = NO_FLOW
    share.rule = stream.next_rule
    memcpy(share.rule_names, stream.next_rule_names, sizeof(share.rule_names))
    for i in range(share.rule.names_n):
        share.rule.names[i] = share.rule_names + 256 * i
    share.next = stream.shares
    stream.shares = share
    return share


cdef void stream_join(gate_t *gate, consumer_t *c) noexcept nogil:
    cdef stream_t *stream = <stream_t *>gate
    cdef share_t *share = NULL
    cdef reader_t *r = <reader_t *>calloc(1, sizeof(reader_t)) if c.reader == NULL else NULL
    if r == NULL:
        return                  # No memory, or of a gate that went: it gets nothing.
    if stream.next_shares:
        share = find_share(stream, stream.next_name)
        if share == NULL:
            share = new_share(stream)
        if share == NULL or share.readers_n == SHARE_READERS_MOST:
            free(r)
            return
    r.consumer = c
    r.waiting = r.unused = r.first = r.last = NO_HELD
    if share == NULL:
        begin_place(stream, r)
    else:
        r.stream = stream
        share_join(share, r)
    r.next = stream.readers
    if r.next != NULL:
        r.next.prev = r
    stream.readers = r
    stream.readers_n += 1
    c.reader = r
    c.free_reader = reader_free


cdef void stream_leave(gate_t *gate, consumer_t *c) noexcept nogil:
    """The consumer cancelled, or its channel went: what it passed over is kept now, and each ack that still comes."""
    cdef reader_t *r = <reader_t *>c.reader
    if r != NULL and r.stream == <stream_t *>gate:
        put_off_leave(c)
        keep_passed(r if r.share == NULL else &r.share.place)
        reader_part(<stream_t *>gate, c)


cdef void reader_part(stream_t *stream, consumer_t *c) noexcept nogil:
    """The reader is the stream's no more.  Its slot is not touched: it may be gone when all goes."""
    cdef reader_t *r = <reader_t *>c.reader
    leave_end(r)
    if r.prev != NULL:
        r.prev.next = r.next
    else:
        stream.readers = r.next
    if r.next != NULL:
        r.next.prev = r.prev
    stream.readers_n -= 1
    if UNLIKELY(r.share != NULL):
        share_leave(r)
    reader_leave_segment(r)
    r.again_n = 0               # What was given back stays held: it is not acknowledged.
    r.stream = NULL


cdef void reader_free(void *reader) noexcept nogil:
    cdef reader_t *r = <reader_t *>reader
    if r.stream != NULL:        # Its consumer never left: all that it belongs to goes.
        if r.share != NULL:
            r.share.quiet = True
        reader_part(r.stream, r.consumer)
    if r.share != NULL:
        share_forget(r.share)
    filter_free(r)
    array_free(r.held, r.held_octets)
    free(r.again)
    free(r)


cdef void stream_detach(gate_t *gate) noexcept nogil:
    gate.queue.segment_octets = 0
    while (<stream_t *>gate).shares != NULL:
        share_end((<stream_t *>gate).shares)


cdef bint stream_is_sound(gate_t *gate) noexcept nogil:
    cdef share_t *share = (<stream_t *>gate).shares
    while share != NULL:
        if not share_is_sound(share):
            return False
        share = share.next
    return True


cdef void stream_attach(gate_t *gate) noexcept nogil:
    (<stream_t *>gate).newest = NULL
    (<stream_t *>gate).segments.n = 0


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
        gate.detach = stream_detach
        gate.is_sound = stream_is_sound
        gate.take = stream_take
        gate.settle = stream_settle
        gate.give_back = stream_give_back
        gate.headers = stream_headers
        gate.tells = True
        gate.stored = stream_stored
        gate.retiring = stream_retiring
        gate.join = stream_join
        gate.leave = stream_leave
        self.stream.max_length = self.stream.max_octets = self.stream.age = -1
        self.gate = gate

    def __dealloc__(self):
        free(self.stream.next_filter)
        free(self.stream.next_program)
        segments_free(&self.stream.segments)

    def begin(self, start, int64_t value, *, bint tells=False, uint8_t[::1] slot=None, uint32_t turn=0, uint64_t kept=0,
              bytes filter=None, bint unfiltered=False, bytes share=None, bint single=False, str by="header",
              tuple names=(), bytes program=None):
        cdef queue_t *q = self.stream.gate.queue
        cdef uint64_t back
        self.set_filter(filter, unfiltered, program)
        self.set_share(share, single, by, names)
        self.stream.next_slot = NULL
        self.stream.next_kept = kept
        if slot is not None:
            if slot.shape[0] < SLOT_LEAST:
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

    cdef int set_filter(self, bytes values, bint unfiltered, bytes program) except -1:
        """What the next consumer wants."""
        cdef stream_t *stream = &self.stream
        if program is not None:
            check_filter(program)
        free(stream.next_filter)
        free(stream.next_program)
        stream.next_filter = copy_octets(values)
        stream.next_program = copy_octets(program)
        if (values is not None and stream.next_filter == NULL) or (program is not None and stream.next_program == NULL):
            raise MemoryError
        stream.next_filter_n = <uint32_t>len(values or b"")
        stream.next_program_n = <uint32_t>len(program or b"")
        stream.next_unfiltered = unfiltered
        return 0

    cdef int set_share(self, bytes share, bint single, str by, tuple names) except -1:
        """What the next consumer shares with others, and by which key."""
        cdef stream_t *stream = &self.stream
        cdef Py_ssize_t i
        stream.next_shares = share is not None
        if share is None:
            return 0
        if len(share) > 255 or len(names) > GROUP_NAMES_MOST or any([len(name) > 255 for name in names]):
            raise ValueError("a name of more than 255 octets, or too many names")
        stream.next_name[0] = <uint8_t>len(share)
        memcpy(stream.next_name + 1, <const char *>share, len(share))
        stream.next_single = single
        stream.next_rule.by = GROUP_PLACES[by]
        stream.next_rule.names_n = <uint8_t>len(names)
        for i in range(len(names)):
            stream.next_rule.name_n[i] = <uint8_t>len(<bytes?>names[i])
            memcpy(stream.next_rule_names + 256 * i, <const char *><bytes>names[i], len(<bytes>names[i]))
        return 0

    def set_limits(self, *, int64_t max_length=-1, int64_t max_octets=-1, int64_t age_ns=-1, uint32_t segment_octets=0):
        self.stream.max_length = max_length
        self.stream.max_octets = max_octets
        self.stream.age = age_ns
        if self.stream.gate.queue != NULL:
            self.stream.gate.queue.segment_octets = (segment_octets + 4095) & ~<uint32_t>4095

    def retain(self, uint32_t most):
        cdef queue_t *q = self.stream.gate.queue
        if q == NULL or q.dropped or q.lost or q.store.first == NULL:
            return 0
        (<Queue>q.owner).core.read_clock()
        write_stages(q.core)
        return stream_retain(&self.stream, most)

    def purge(self, uint64_t below, uint32_t most):
        cdef queue_t *q = self.stream.gate.queue
        cdef uint64_t before = q.ready
        cdef int err
        (<Queue>q.owner).core.read_clock()
        write_stages(q.core)
        err = stream_purge(&self.stream, below, most)
        if err:
            raise OSError(err, os_strerror(err))
        return before - q.ready, not is_first_below(&q.store, below)

    def unmap(self, uint64_t offset, uint32_t most):
        return unmap_some(&self.stream, offset, most)

    def readers(self):
        cdef list out = []
        cdef uint64_t first = self.first_offset
        cdef reader_t *r = self.stream.readers
        cdef reader_t *p
        while r != NULL:
            p = r if r.share == NULL else &r.share.place
            out.append((<Consumer>r.consumer.owner, p.offset if p.started or p.start == START_OFFSET else 0,
                        lowest_unacked(p) if p.started or p.start == START_OFFSET else 0,
                        p.missed + (missing_now(p, first) if p.seg == NULL and p.tells else 0)))
            r = r.next
        return out

    def kept_readers(self):
        cdef list out = []
        cdef reader_t *r = self.stream.readers
        cdef share_t *share = self.stream.shares
        while r != NULL:
            if r.share == NULL and r.slot != NULL:
                out.append(<Consumer>r.consumer.owner)
            r = r.next
        while share != NULL:
            if share.readers != NULL and share.place.slot != NULL:
                out.append(<Consumer>share.readers.consumer.owner)
            share = share.next
        return out

    def shares(self):
        cdef list out = []
        cdef list readers
        cdef share_t *share = self.stream.shares
        cdef reader_t *r
        while share != NULL:
            readers = []
            r = share.readers
            while r != NULL:
                readers.append(<Consumer>r.consumer.owner)
                r = r.share_next
            out.append((<bytes>share.name[1:1 + share.name[0]], share.single != 0, readers, share.out, share.waiting,
                        share.flows_n, filter_of(&share.place)))
            share = share.next
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

# The waiting room of a delayed exchange: its messages wait for their time, then go where the exchange sends them.
#
#    ready in the room, and in the heap --due--> stored in its queues, aside --settle_stored()--> settled
#                                         --due--> on_due(): the control plane sends it on, or says when it is due
#
# The gate never hands a message out.  A message is in the heap by the time at which it is due, which its record and its
# headers x-delay and x-deliver-at tell.  So a start makes the heap anew.  The control plane reads what is not plain there
# (headers.pxi): such a message has the time 0, so that it comes before all that is due, and on_due() gives it its own.
#
# A message that goes on keeps its properties, but for x-delay, which is negated: it has been delayed.  It is settled when
# its queues have it on disk.

cdef enum:
    DUE_MOST = 256              # what one room's messages that go on in a turn may cost, some us for each queue of each
    MAPPED = 128                # cost of a segment that must be mapped
    DUE_ADDS = 16               # more octets than a new x-delay can add to the properties

cdef int64_t SLACK = 1000000000             # ns that a record's time may be ahead of the clock: it rises with each record

cdef struct delay_t:
    gate_t gate
    void *owner                 # borrowed: the Delay
    letters_t *letters          # to which queues a routing key leads
    dues_t dues
    places_t stored             # messages that their queues have, in the order in which they were stored
    uint64_t settled            # of these, since the gate was made
    int64_t retry               # ms until a message that could not go on is tried again
    uint64_t told               # on_stored() was called up to this one
    bint waits                  # the disk is to be waited for


# ---- when

cdef void set_alarm(delay_t *d, int64_t earliest) noexcept nogil:
    """Have due() called when the first message is due, and not before `earliest`, in ns."""
    cdef queue_t *q = d.gate.queue
    d.gate.deadline = NEVER
    if d.dues.n and d.dues.heap[0].when < NEVER // 1000000:
        d.gate.deadline = max(d.dues.heap[0].when * 1000000, earliest)
    q.rules.expires = True
    deadline_bring_forward(q, d.gate.deadline)


cdef int64_t due_after(int64_t came, int64_t now, const uint8_t *properties) noexcept nogil:
    """The time in ms at which a message is due.  `came`: the time of its record, in ns.  If the clock was set back since then,
    a delay begins now.  Returns 0 if the control plane must read when it is due."""
    return due_in(properties, (came if came <= now + SLACK else now) // 1000000)


# ---- a message goes on

cdef int64_t write_due(const message_t *m, uint8_t *out) noexcept nogil:
    """Write the properties of a message that has been delayed at `out`, and return how many octets.  -1: the control plane
    must make them.  There is room for m.properties_n + DUE_ADDS octets."""
    cdef const uint8_t *table = property_at(m.properties, PROPERTY_HEADERS)
    cdef const uint8_t *after = table + 4 + be32(table)
    cdef field_t fields[HEADERS_MOST]
    cdef uint8_t own[SHORTSTR_ROOM]
    cdef uint8_t room[9]
    cdef uint8_t *p
    cdef uint8_t *length
    cdef int64_t delay
    cdef size_t n
    cdef int i, fields_n = read_fields(table + 4, after, fields, HEADERS_MOST, NULL)
    if fields_n < 0 or not sort_fields(fields, fields_n):
        return -1
    for i in range(fields_n):
        if is_named(&fields[i], b"x-delay", 7):
            n = value_length(value_of(&fields[i]), after)
            plain_value(value_of(&fields[i]), room, &n)
            delay = -<int64_t>be64(room + 1)
            memcpy(own, fields[i].at, 8)
            if delay >= -0x80000000:
                own[8] = c'I'
                put_be32(own + 9, <uint32_t>delay)
                fields[i].n = 13
            else:
                own[8] = c'l'
                put_be64(own + 9, <uint64_t>delay)
                fields[i].n = 17
            fields[i].at = own
    n = table - m.properties
    # The two lowest flags stand for no property.
    memcpy(out, m.properties, n)
    put_be16(out, be16(m.properties) & ~<uint16_t>3)
    length = out + n
    p = length + 4
    for i in range(fields_n):
        memcpy(p, fields[i].at, fields[i].n)
        p += fields[i].n
    put_be32(length, <uint32_t>(p - length - 4))
    n = m.properties + m.properties_n - after
    memcpy(p, after, n)
    p += n
    ASSERT(p <= out + m.properties_n + DUE_ADDS)
    return p - out


cdef enum:
    SENT = 0                    # what send_on() answers; also: the message was taken out, by hand or by a purge
    LATER = 1                   # it cannot be stored, or read, now
    UP = 2                      # the control plane must send it on
    BUSY = 3                    # room in its many queues takes more time; the next turn goes on with that


cdef int send_on(delay_t *d, uint64_t seq, uint64_t *spent) noexcept nogil:
    """Store a message that is due in its queues, and add its cost to `spent`."""
    cdef queue_t *q = d.gate.queue
    cdef store_t *st = &q.store
    cdef letters_t *l = d.letters
    cdef message_t m
    cdef known_t known
    cdef place_t t
    cdef route_t *r
    cdef uint32_t names_n = l.names_n, stored = STORED
    cdef uint8_t names[2 * SHORTSTR_ROOM]
    cdef uint8_t *room
    cdef int64_t n
    cdef seg_t *s = segment_of(st, seq)
    cdef bint was_mapped = s == NULL or s.map != NULL
    cdef int found = find_in_middle(st, seq, &t)
    spent[0] += 1 if was_mapped else MAPPED
    if found == UNREADABLE:
        return LATER
    if found == NOT_THERE:
        return UP if st.returned_n else SENT
    message_of(t.seg.map + t.position, &m)
    if not can_be_read(q, &m):
        return LATER
    if due_in(m.properties, 0) == 0 or m.body_n > q.core.message_octets_max:
        return UP
    memcpy(names, l.names, names_n)
    memcpy(names + names_n, m.names + 1 + m.names[0], m.names_n - 1 - m.names[0])
    names_n += m.names_n - 1 - m.names[0]
    r = route_of_letter(l, names, names_n, spent)
    if r == NULL or r.up or not can_all_take(r, q, False):
        return UP
    room = letter_room(q.core, m.properties_n + DUE_ADDS)
    if room == NULL or bits_for_middle(t.seg) != 0 or not places_reserve(&d.stored):
        return LATER
    n = write_due(&m, room)
    if n < 0 or not properties_are_whole(room, room + n, &known):
        return UP
    m.properties = room
    m.properties_n = <uint32_t>n
    m.connection = 0
    m.channel = 0
    m.publish_seq = 0
    complete(&m, &known)
    if r.targets_n > 1 and not reserve_in_many(r.targets, r.targets_n, &m, q.core.work_ns):
        return BUSY
    spent[0] += cost_of_copies(r.targets_n, m.properties_n + m.body_n) - 1
    if store_message(r.targets, r.targets_n, &m, q.durable, &stored, NULL) != 0:
        return LATER
    if stored & REFUSED and not stored & TAKEN:
        return LATER
    take_from_middle(st, &t)
    uncount_octets(q, t.seg.map + t.position)
    t.flags |= PLACE_PASSED
    t.seg.aside += 1
    places_push(&d.stored, &t)
    d.gate.held += 1
    d.waits |= stored & WAITS != 0
    return SENT


cdef void settle_stored(delay_t *d, uint64_t upto) noexcept nogil:
    """Settle what was stored, up to that one since the gate was made."""
    cdef place_t t
    while d.settled < upto and d.stored.first < d.stored.n:
        t = d.stored.at[d.stored.first]
        d.stored.first += 1
        d.settled += 1
        d.gate.held -= 1
        t.seg.aside -= 1
        settle(&t, DROPPED | REASON_REMOVED << 4)


# ---- the gate's verbs

cdef int delay_take(gate_t *gate, consumer_t *c, place_t *t) noexcept nogil:
    return TAKE_NOTHING


cdef void delay_stored(gate_t *gate, store_t *st, message_t *m) noexcept nogil:
    cdef delay_t *d = <delay_t *>gate
    cdef uint64_t seq = gate.queue.next_seq - 1
    # Without memory the message waits for the next start.
    due_push(&d.dues, due_after(gate.queue.last_ts, gate.queue.core.now, m.properties), seq)
    if d.dues.n and d.dues.heap[0].seq == seq:
        set_alarm(d, 0)


cdef bint tell_due(delay_t *d, uint64_t seq, bint known) noexcept:
    """Call on_due().  False: the gate has lost its queue."""
    cdef object owner = <object>d.owner         # It may let go of the last reference.
    owner.on_due(seq, known)
    return d.gate.queue != NULL


cdef void tell_stored(delay_t *d) noexcept:
    d.told = d.settled + d.gate.held
    (<object>d.owner).on_stored(d.told)


cdef void delay_due(gate_t *gate) noexcept nogil:
    cdef delay_t *d = <delay_t *>gate
    cdef queue_t *q = gate.queue
    cdef core_t *core = q.core
    cdef int64_t now = core.now
    cdef uint64_t put_cost, spent = 0
    cdef int64_t until = monotonic_ns() + core.work_ns if core.work_ns != NEVER else NEVER
    cdef due_t one
    cdef int outcome
    d.waits = False
    while spent < DUE_MOST and d.dues.n and d.dues.heap[0].when <= now // 1000000:
        if spent and is_past(until):
            break
        one = due_pop(&d.dues)
        outcome = send_on(d, one.seq, &spent) if one.when else UP
        if outcome == LATER:
            due_push(&d.dues, now // 1000000 + d.retry, one.seq)      # There is room: it was in there.
        elif outcome == BUSY:
            due_push(&d.dues, one.when, one.seq)
            break
        elif outcome == UP:
            spent += UPCALL
            write_stages(core)
            put_cost = core.put_cost
            with gil:
                if not tell_due(d, one.seq, one.when != 0):
                    return
            spent += core.put_cost - put_cost
    dues_shrink(&d.dues)
    if d.settled + gate.held > d.told:
        write_stages(core)
        # What needs no sync waits for those before it that do.
        if d.waits or d.settled < d.told:
            with gil:
                tell_stored(d)
        else:
            settle_stored(d, d.settled + gate.held)
    # What is due by now goes on in the next turn.
    set_alarm(d, now + 1)


cdef void delay_attach(gate_t *gate) noexcept nogil:
    """Find when the messages are due that are in the queue."""
    cdef delay_t *d = <delay_t *>gate
    cdef store_t *st = &gate.queue.store
    cdef seg_t *s = st.cursor
    cdef uint32_t position = st.position, i
    cdef message_t m
    cdef const uint8_t *record
    cdef bint was_mapped
    for i in range(st.returned_n):
        due_push(&d.dues, 0, st.returned[i].seq)      # on_due() reads these, too.
    while s != NULL:
        was_mapped = s.map != NULL
        while find_unsettled(st, s, &position):
            record = s.map + position
            message_of(record, &m)
            due_push(&d.dues, due_after(<int64_t>le64(record + R_TS), gate.queue.core.now, m.properties),
                     seq_of(record))
            position += room_of(record)
        if not was_mapped and s != st.last:
            seg_unmap(s)
        s = s.next
        position = HEADER
    set_alarm(d, 0)


cdef void delay_visit(gate_t *gate, visit_t visit, void *context) noexcept nogil:
    cdef delay_t *d = <delay_t *>gate
    cdef uint32_t i
    for i in range(d.stored.first, d.stored.n):
        visit(&d.stored.at[i], HOLDER_ASIDE, context)


cdef void delay_empty(gate_t *gate) noexcept nogil:
    cdef delay_t *d = <delay_t *>gate
    settle_stored(d, d.settled + gate.held)
    d.dues.n = 0
    gate.deadline = NEVER


cdef class Delay(Gate):
    """See plane/__init__.pyi."""

    cdef delay_t d
    cdef Letters letters

    def __cinit__(self, Letters letters not None, int64_t retry_ms, *args):
        gate_init(&self.d.gate)
        self.d.gate.take = delay_take
        self.d.gate.stored = delay_stored
        self.d.gate.due = delay_due
        self.d.gate.attach = delay_attach
        self.d.gate.visit = delay_visit
        self.d.gate.empty = delay_empty
        self.d.owner = <void *>self
        self.d.letters = &letters.l
        self.d.retry = retry_ms
        self.letters = letters
        self.gate = &self.d.gate

    def __dealloc__(self):
        dues_free(&self.d.dues)
        free(self.d.stored.at)

    def on_due(self, uint64_t seq, bint known):
        pass

    def on_stored(self, uint64_t upto):
        settle_stored(&self.d, upto)

    def settle(self, uint64_t upto):
        settle_stored(&self.d, upto)

    def note(self, uint64_t seq, int64_t due_ms):
        if self.d.gate.queue == NULL:
            return
        if due_push(&self.d.dues, due_ms, seq) != 0:
            raise MemoryError
        set_alarm(&self.d, 0)
        (<Queue>self.d.gate.queue.owner).core.request_turn()

    def tidy(self):
        if self.d.gate.queue != NULL and self.d.dues.n > 2 * self.d.gate.queue.ready + 64:
            self.d.dues.n = 0
            delay_attach(&self.d.gate)

    def upcoming(self, size_t count):
        return dues_upcoming(&self.d.dues, count)


def plain_due(const uint8_t[::1] properties, int64_t came_ms):
    cdef known_t known
    if properties.shape[0] == 0 or not properties_are_whole(&properties[0], &properties[0] + properties.shape[0], &known):
        raise ValueError("malformed properties")
    return due_in(&properties[0], came_ms)

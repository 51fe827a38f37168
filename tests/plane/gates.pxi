# Gates for tests, compiled into the plane's build with assertions only: message groups, blocking retry, consumers that own
# groups, and readers of a log, each in its smallest form.  They show that such a feature needs no other file of the plane.
#
# A message's group is its routing key.  One message of a group is out at a time.

cdef enum:
    TRIAL_GROUPS = 16
    TRIAL_WAITING = 8192
    TRIAL_LOOKS = 8             # messages that one call looks at

cdef struct trial_t:
    gate_t gate
    bint owned                  # a group goes to the consumer that got its first message
    int64_t retry               # ns that a returned message waits, and its group behind it; -1: not at all
    uint32_t n
    uint64_t keys[TRIAL_GROUPS]
    uint64_t heads[TRIAL_GROUPS]            # the message that is out, was returned, or waits for its retry; 0: none
    int64_t until[TRIAL_GROUPS]             # ns: when its head is to be retried; 0: it does not wait
    place_t retried[TRIAL_GROUPS]           # where that is
    consumer_t *owners[TRIAL_GROUPS]
    uint32_t waiting_n
    uint64_t waiting[TRIAL_WAITING]         # sequence numbers, rising
    uint8_t groups[TRIAL_WAITING]
    uint32_t joined


cdef uint8_t trial_group(trial_t *trial, place_t *t) noexcept nogil:
    cdef message_t m
    cdef uint64_t hash_ = 0
    cdef uint32_t i
    message_of(t.seg.map + t.position, &m)
    for i in range(m.names_n):
        hash_ = hash_ * 31 + m.names[i]
    for i in range(trial.n):
        if trial.keys[i] == hash_:
            return <uint8_t>i
    ASSERT(trial.n < TRIAL_GROUPS)
    trial.keys[trial.n] = hash_
    trial.n += 1
    return <uint8_t>(trial.n - 1)


cdef int trial_wait(trial_t *trial, store_t *st, place_t *t, uint8_t group) noexcept nogil:
    cdef uint32_t i = trial.waiting_n
    ASSERT(trial.waiting_n < TRIAL_WAITING)
    if wait(st, t) != 0:
        return ENOMEM
    while i and trial.waiting[i - 1] > t.seq:
        trial.waiting[i] = trial.waiting[i - 1]
        trial.groups[i] = trial.groups[i - 1]
        i -= 1
    trial.waiting[i] = t.seq
    trial.groups[i] = group
    trial.waiting_n += 1
    return 0


cdef uint64_t trial_first_waiting(trial_t *trial, uint8_t group) noexcept nogil:
    """Take the group's first message out of those that wait; 0: none waits."""
    cdef uint32_t i, k
    cdef uint64_t seq
    for i in range(trial.waiting_n):
        if trial.groups[i] == group:
            seq = trial.waiting[i]
            trial.waiting_n -= 1
            for k in range(i, trial.waiting_n):
                trial.waiting[k] = trial.waiting[k + 1]
                trial.groups[k] = trial.groups[k + 1]
            return seq
    return 0


cdef int trial_group_of_head(trial_t *trial, uint64_t seq) noexcept nogil:
    cdef uint32_t i
    for i in range(trial.n):
        if trial.heads[i] == seq:
            return i
    return -1


cdef bint trial_take_owned(trial_t *trial, consumer_t *c, place_t *t) noexcept nogil:
    """Take a message that waits for its owner."""
    cdef uint8_t group
    cdef uint64_t seq
    for group in range(trial.n):
        if trial.owners[group] == c and c != NULL and trial.heads[group] == 0:
            seq = trial_first_waiting(trial, group)
            if seq and take_waiting(trial.gate.queue, seq, t):
                trial.heads[group] = seq
                return True
    return False


cdef void trial_count_open(trial_t *trial) noexcept nogil:
    cdef uint32_t i
    cdef uint64_t found = 0
    for i in range(trial.waiting_n):
        found += trial.owned and trial.heads[trial.groups[i]] == 0
    trial.gate.open = found


cdef int trial_take(gate_t *gate, consumer_t *c, place_t *t) noexcept nogil:
    cdef trial_t *trial = <trial_t *>gate
    cdef store_t *st
    cdef uint8_t group
    cdef int looks
    if trial.owned and trial_take_owned(trial, c, t):
        trial_count_open(trial)
        return TAKE_DONE
    for looks in range(TRIAL_LOOKS):
        st = find_next(gate.queue, t)
        if st == NULL:
            return TAKE_OTHERS if gate.open else TAKE_NOTHING
        gate.looked += 1
        group = trial_group(trial, t)
        if (trial.heads[group] == 0 or trial.heads[group] == t.seq) and (
                not trial.owned or trial.owners[group] == NULL or trial.owners[group] == c):
            take_head(st, t)
            trial.heads[group] = t.seq
            trial.owners[group] = c
            return TAKE_DONE
        if trial_wait(trial, st, t, group) != 0:
            return TAKE_NOTHING
        trial_count_open(trial)
    return TAKE_LATER


cdef void trial_attach(gate_t *gate) noexcept nogil:
    """What is out already locks its group."""
    visit_places(gate.queue, trial_see_out, gate)


cdef void trial_see_out(place_t *place, uint8_t holder, void *context) noexcept nogil:
    cdef trial_t *trial = <trial_t *>context
    if holder == HOLDER_OUT and seg_map(place.seg) == 0:
        trial.heads[trial_group(trial, place)] = place.seq


cdef void trial_detach(gate_t *gate) noexcept nogil:
    cdef trial_t *trial = <trial_t *>gate
    trial.n = 0
    memset(trial.heads, 0, sizeof(trial.heads))
    memset(trial.owners, 0, sizeof(trial.owners))


cdef void trial_dying(gate_t *gate, place_t *t) noexcept nogil:
    """A ready message that dies locks its group until its letter is stored."""
    cdef trial_t *trial = <trial_t *>gate
    cdef uint8_t group
    if seg_map(t.seg) == 0:
        group = trial_group(trial, t)
        if trial.heads[group] == 0:
            trial.heads[group] = t.seq


cdef uint32_t trial_headers(gate_t *gate, place_t *t, uint8_t *room) noexcept nogil:
    memcpy(room, b"\x05x-seql", 7)
    put_be64(room + 7, t.seq)
    return 15


cdef bint trial_admits(gate_t *gate, message_t *m) noexcept nogil:
    """No body but "!" is refused."""
    return m.body_n != 1 or m.body[0] != c'!'


cdef bint trial_settle(gate_t *gate, place_t *t, uint8_t kind) noexcept nogil:
    cdef trial_t *trial = <trial_t *>gate
    cdef int group = trial_group_of_head(trial, t.seq)
    cdef uint64_t seq
    if group < 0:
        return False
    trial.heads[group] = 0
    if trial.owned and trial.owners[group] != NULL:
        trial_count_open(trial)
        mark_dirty(gate.queue)
        return False
    seq = trial_first_waiting(trial, <uint8_t>group)
    if seq:
        trial.heads[group] = seq
        wake(gate.queue, seq)
    return False


cdef bint trial_give_back(gate_t *gate, place_t *t, uint8_t cause) noexcept nogil:
    cdef trial_t *trial = <trial_t *>gate
    cdef int group = trial_group_of_head(trial, t.seq)
    if group < 0 or trial.retry < 0 or cause == 0:
        return False
    put_aside(t, t.count)
    trial.retried[group] = t[0]
    gate.held += 1
    count_waiting(t)
    trial.until[group] = gate.queue.core.now + trial.retry
    gate.deadline = min(gate.deadline, trial.until[group])
    gate.queue.rules.expires = True
    deadline_bring_forward(gate.queue, gate.deadline)
    return True


cdef void trial_retry(trial_t *trial, uint32_t group) noexcept nogil:
    if return_from_aside(&trial.retried[group]) != 0:
        trial.until[group] = trial.gate.queue.core.now + 1000000000     # no memory
        return
    trial.until[group] = 0
    trial.gate.held -= 1
    uncount_waiting(&trial.retried[group])
    apply_rules_on_return(&trial.retried[group])
    mark_dirty(trial.gate.queue)


cdef void trial_visit(gate_t *gate, visit_t visit, void *context) noexcept nogil:
    cdef trial_t *trial = <trial_t *>gate
    cdef uint32_t i
    for i in range(trial.n):
        if trial.until[i]:
            visit(&trial.retried[i], HOLDER_ASIDE, context)


cdef void trial_due(gate_t *gate) noexcept nogil:
    cdef trial_t *trial = <trial_t *>gate
    cdef uint32_t i
    gate.deadline = NEVER
    for i in range(trial.n):
        if trial.until[i] and trial.until[i] <= gate.queue.core.now:
            trial_retry(trial, i)
        if trial.until[i]:
            gate.deadline = min(gate.deadline, trial.until[i])


cdef void trial_join(gate_t *gate, consumer_t *c) noexcept nogil:
    (<trial_t *>gate).joined += 1


cdef void trial_leave(gate_t *gate, consumer_t *c) noexcept nogil:
    """Its groups have no owner any more, and those of their messages that wait are ready."""
    cdef trial_t *trial = <trial_t *>gate
    cdef uint8_t group
    cdef uint64_t seq
    trial.joined -= 1
    for group in range(trial.n):
        if trial.owned and trial.owners[group] == c:
            trial.owners[group] = NULL
            seq = trial_first_waiting(trial, group)
            while seq:
                wake(gate.queue, seq)
                seq = trial_first_waiting(trial, group)
    trial_count_open(trial)


cdef void trial_empty(gate_t *gate) noexcept nogil:
    cdef trial_t *trial = <trial_t *>gate
    cdef uint32_t i
    for i in range(trial.waiting_n):
        wake(gate.queue, trial.waiting[i])
    trial.waiting_n = 0
    gate.open = 0
    for i in range(trial.n):
        if trial.until[i]:
            trial_retry(trial, i)
    gate.deadline = NEVER


cdef class TrialGate(Gate):
    """retry_ms: how long a returned message waits, and its group behind it.  owned: groups stay with a consumer.
    tells: deliveries have a header x-seq."""

    cdef trial_t trial

    def __cinit__(self, *, int64_t retry_ms=-1, bint owned=False, bint tells=False):
        gate_init(&self.trial.gate)
        self.trial.retry = retry_ms * 1000000 if retry_ms >= 0 else -1
        self.trial.owned = owned
        if tells:
            self.trial.gate.headers = trial_headers
            self.trial.gate.tells = True
        self.trial.gate.attach = trial_attach
        self.trial.gate.detach = trial_detach
        self.trial.gate.dying = trial_dying
        self.trial.gate.admits = trial_admits
        self.trial.gate.take = trial_take
        self.trial.gate.settle = trial_settle
        self.trial.gate.give_back = trial_give_back
        self.trial.gate.due = trial_due
        self.trial.gate.visit = trial_visit
        self.trial.gate.join = trial_join
        self.trial.gate.leave = trial_leave
        self.trial.gate.empty = trial_empty
        self.gate = &self.trial.gate

    @property
    def joined(self):
        return self.trial.joined

    @property
    def waiting(self):
        return self.trial.waiting_n


# ---- readers of a log: each consumer gets all messages from the first on, and they stay

cdef struct trial_reader_t:
    consumer_t *consumer
    seg_t *seg                  # NULL: the first
    uint32_t position
    uint64_t from_seq

cdef struct trial_log_t:
    gate_t gate
    trial_reader_t readers[TRIAL_GROUPS]
    uint32_t n


cdef int trial_read(gate_t *gate, consumer_t *c, place_t *t) noexcept nogil:
    cdef trial_log_t *log_ = <trial_log_t *>gate
    cdef trial_reader_t *reader = NULL
    cdef uint32_t i
    for i in range(log_.n):
        if log_.readers[i].consumer == c:
            reader = &log_.readers[i]
    if reader == NULL:
        return TAKE_NOTHING
    if reader.seg == NULL:
        reader.seg = gate.queue.store.first
        reader.position = HEADER
    while True:
        while reader.seg != NULL and reader.position >= reader.seg.end and reader.seg.next != NULL:
            reader.seg = reader.seg.next
            reader.position = HEADER
        if reader.seg == NULL or reader.position >= reader.seg.end or seg_map(reader.seg) != 0:
            return TAKE_OTHERS
        if seq_of(reader.seg.map + reader.position) >= reader.from_seq:
            break
        reader.position += room_of(reader.seg.map + reader.position)
    memset(t, 0, sizeof(place_t))
    t.seg = reader.seg
    t.position = reader.position
    t.seq = seq_of(t.seg.map + t.position)
    reader.position += room_of(t.seg.map + t.position)
    gate.queue.ready_octets += body_octets(t.seg.map + t.position)      # hand_out() takes them off
    return TAKE_DONE


cdef bint trial_stays(gate_t *gate, place_t *t, uint8_t kind) noexcept nogil:
    return kind == ACKED or kind == REJECTED


cdef bint trial_reread(gate_t *gate, place_t *t, uint8_t cause) noexcept nogil:
    """The reader goes on from this message."""
    cdef trial_log_t *log_ = <trial_log_t *>gate
    cdef uint32_t i
    for i in range(log_.n):
        if log_.readers[i].consumer == gate.consumer and gate.consumer != NULL:
            log_.readers[i].seg = t.seg
            log_.readers[i].position = t.position
    mark_dirty(gate.queue)
    return True


cdef void trial_log_empty(gate_t *gate) noexcept nogil:
    """All that is there goes: readers go on with what comes."""
    cdef trial_log_t *log_ = <trial_log_t *>gate
    cdef uint32_t i
    for i in range(log_.n):
        log_.readers[i].seg = NULL
        log_.readers[i].from_seq = gate.queue.next_seq


cdef void trial_log_join(gate_t *gate, consumer_t *c) noexcept nogil:
    cdef trial_log_t *log_ = <trial_log_t *>gate
    ASSERT(log_.n < TRIAL_GROUPS)
    memset(&log_.readers[log_.n], 0, sizeof(trial_reader_t))
    log_.readers[log_.n].consumer = c
    log_.n += 1


cdef void trial_log_leave(gate_t *gate, consumer_t *c) noexcept nogil:
    cdef trial_log_t *log_ = <trial_log_t *>gate
    cdef uint32_t i
    for i in range(log_.n):
        if log_.readers[i].consumer == c:
            log_.n -= 1
            log_.readers[i] = log_.readers[log_.n]
            return


cdef class TrialLog(Gate):
    """Each consumer reads all messages, and they stay."""

    cdef trial_log_t log

    def __cinit__(self):
        gate_init(&self.log.gate)
        self.log.gate.reads = True
        self.log.gate.take = trial_read
        self.log.gate.settle = trial_stays
        self.log.gate.give_back = trial_reread
        self.log.gate.empty = trial_log_empty
        self.log.gate.join = trial_log_join
        self.log.gate.leave = trial_log_leave
        self.gate = &self.log.gate

# Returned messages wait before they are tried again, and a queue stops at a message that has failed too often: the gate of
# a queue with a retry rule, or with the delivery limit's action `block`.
#
#    out --give_back, retry_put--> aside until it is due --due, wake--> ready at its own place
#    out --give_back, stop-------> aside; nothing behind it goes out --release, wake--> ready at its own place
#                                                                   --skip---------> dead of its delivery limit
#
# A retry time stands in the acks file before the entry RETURNED (store/format.py), so that a start knows it.  It finds such
# messages as it reads them: take() and the walk after attach() put them aside again.
#
# Times are those of the clock.  If it is set back, no message waits longer than the rule's longest delay from then on: the
# gate notices it when a message returns, is asked for, or is due.  If it is set forward, messages are due earlier.
#
# retry_t, retry_delay(), note_retry(), retry_due_of() and was_stopped() are for message groups, too.

cdef enum:
    RETRY_WAKES = 1024          # messages in one call of due()
    RETRY_LOOKS = 64            # messages that one call of take() looks at
    RETRY_AGAIN = 1000          # ms until a message that cannot be made ready is tried again
    RETRY_SLACK = 1000000000    # ns that the clock may go back unnoticed
    LINEAR = 0                  # retry_t.backoff
    EXPONENTIAL = 1
    FIXED = 2

cdef struct retry_t:
    uint8_t causes              # a bit for each CAUSE_*: such returns wait; 0: none does
    uint8_t backoff
    uint8_t jitter              # percent that a delay may be shorter
    int64_t least               # ms
    int64_t most
    dues_t due
    int64_t latest              # ns: the latest time that the gate has seen

cdef struct retrying_t:
    gate_t gate
    retry_t retry
    dues_t stops                # messages behind which nothing goes out, in the order in which they would go out
    uint64_t stopped            # of these, those that still count
    bint walks                  # heads are to be looked at: they may have to wait


# ---- the delay

cdef int64_t retry_delay(const retry_t *r, const place_t *t, uint8_t cause) noexcept nogil:
    """How long in ms the message waits that has just returned; 0: not at all."""
    cdef int64_t n = max(<int64_t>t.count, 1)
    cdef int64_t ms = r.least
    cdef uint64_t mixed
    if not r.causes >> cause & 1:
        return 0
    if r.backoff == LINEAR:
        ms = r.most if r.least > r.most // n else r.least * n
    elif r.backoff == EXPONENTIAL:
        ms = r.most if n > 62 or r.least > r.most >> (n - 1) else r.least << (n - 1)
    ms = min(ms, r.most)
    if r.jitter:
        # The same message and count have the same delay: no state, and a test can know it.
        mixed = (t.seq * <uint64_t>0x9E3779B97F4A7C15 ^ <uint64_t>n * <uint64_t>0xC2B2AE3D27D4EB4F) * <uint64_t>0xD6E8FEB86659FD93
        ms -= ms * r.jitter // 100 * <int64_t>(mixed >> 54) // 1024
    return max(ms, <int64_t>1)


cdef void retry_check_clock(retry_t *r, queue_t *q) noexcept nogil:
    """If the clock was set back, no message waits longer than the longest delay from now."""
    cdef int64_t latest = q.core.now // 1000000 + r.most
    cdef size_t i
    cdef place_t *place
    if UNLIKELY(q.core.now < r.latest - RETRY_SLACK):
        for i in range(r.due.n):
            if r.due.heap[i].when > latest:
                place = aside_find(q, r.due.heap[i].seq)
                if place != NULL and place.reason == ASIDE_GATED and place.actor == <uint32_t>r.due.heap[i].when:
                    place.actor = <uint32_t>latest
                r.due.heap[i].when = latest     # Still a heap, but for the order of equal times, which does not matter.
    r.latest = q.core.now


# ---- to wait

cdef void keep_aside(place_t *t, uint8_t reason, uint32_t actor) noexcept nogil:
    """Put a message into the table of what is aside; aside_reserve() went before."""
    t.flags |= PLACE_PASSED
    t.seg.aside += 1
    t.reason = reason
    t.actor = actor
    seg_map(t.seg)
    count_waiting(t)
    aside_put(t.seg.queue, t)


cdef void note_retry(place_t *t, uint8_t cause, int64_t delay, int64_t when) noexcept nogil:
    """Write that the message has returned, and waits so many ms, until that time.  The caller sets it aside."""
    cdef seg_t *s = t.seg
    cdef queue_t *q = s.queue
    cdef uint32_t i
    if UNLIKELY(q.journal != NULL):
        prepare_event(s)
        event_put(s, t.seq, next_ts(q), q.core.actor, <uint32_t>min(delay, <int64_t>0xFFFFFFFF), t.count,
                  RETRY_SCHEDULED, 0)
    # The last entry makes those before it count.  If the disk has no room for them, a crash makes the message ready at once.
    for i in range(RETRY_PARTS):
        seg_note(s, t.position, <uint8_t>(RETRY_TIME | i << 4), <uint16_t>(when >> 16 * i))
    seg_note(s, t.position, RETURNED | cause << 4, t.count)


cdef inline int64_t retry_time(queue_t *q, int64_t delay) noexcept nogil:
    """The time in ms that is so many ms from now."""
    return (q.core.now + 999999) // 1000000 + delay


cdef int retry_put(retry_t *r, place_t *t, uint8_t cause, int64_t delay) noexcept nogil:
    """Let a message that was out wait so many ms.  0 or ENOMEM: nothing has changed."""
    cdef queue_t *q = t.seg.queue
    cdef int64_t when = retry_time(q, delay)
    if aside_reserve(q) != 0:
        return ENOMEM
    aside_prefetch(q, t.seq)
    if due_push(&r.due, when, t.seq) != 0:
        return ENOMEM
    note_retry(t, cause, delay, when)
    keep_aside(t, ASIDE_GATED, <uint32_t>when)
    return 0


cdef uint64_t retry_next_due(retry_t *r, queue_t *q) noexcept nogil:
    """Take the number of a message that waits and is due off the heap; 0: no message is due."""
    cdef due_t one
    cdef place_t *place
    while r.due.n and r.due.heap[0].when <= q.core.now // 1000000:
        one = due_pop(&r.due)
        if r.due.n:
            aside_prefetch(q, r.due.heap[0].seq)
        place = aside_find(q, one.seq)
        if place != NULL and place.reason == ASIDE_GATED and place.actor == <uint32_t>one.when:
            return one.seq
    return 0


cdef bint retry_put_off(retry_t *r, queue_t *q, uint64_t seq) noexcept nogil:
    """A message that was due cannot be made ready now: it waits a while longer."""
    cdef place_t *place = aside_find(q, seq)
    cdef int64_t when = q.core.now // 1000000 + RETRY_AGAIN
    if place != NULL:
        place.actor = <uint32_t>when
    return due_push(&r.due, when, seq) == 0         # There is room: it was in there.


cdef const last_entry_t *entry_from_before(store_t *st, place_t *t) noexcept nogil:
    """What the acks file said of a message that find_next() found; NULL: nothing, or the message has been aside since the
    start."""
    if t.flags & (PLACE_WAS_OUT | PLACE_OUT_SINCE_START) != PLACE_WAS_OUT or is_returned(st, t):
        return NULL
    return last_entry(t.seg, t.position)


cdef int64_t retry_due_of(retry_t *r, const last_entry_t *last, queue_t *q) noexcept nogil:
    """The time in ms until which a message from before the start waits; 0: not at all."""
    if last == NULL or last.due * 1000000 <= q.core.now or r.causes == 0:
        return 0
    return min(last.due, q.core.now // 1000000 + r.most)


cdef int take_aside_again(store_t *st, place_t *t, uint8_t reason, uint32_t actor) noexcept nogil:
    """Set aside what find_next() found, of which the acks file says already how it stands.  aside_reserve() went before."""
    take_head(st, t)
    uncount_octets(st.queue, t.seg.map + t.position)
    keep_aside(t, reason, actor)
    return 0


# ---- to stop

cdef inline int64_t stop_key(store_t *st) noexcept nogil:
    return 255 - st.level


cdef int stop_at(retrying_t *r, place_t *t, uint8_t cause) noexcept nogil:
    """Stop the queue behind a message that was out.  0 or ENOMEM: nothing has changed."""
    cdef seg_t *s = t.seg
    cdef queue_t *q = s.queue
    if aside_reserve(q) != 0 or due_push(&r.stops, stop_key(s.store), t.seq) != 0:
        return ENOMEM
    if UNLIKELY(q.journal != NULL):
        prepare_event(s)
        event_put(s, t.seq, next_ts(q), q.core.actor, 0, t.count, PARKED_EVENT, REASON_LIMIT)
    seg_note(s, t.position, RETURNED | cause << 4, t.count)
    seg_note(s, t.position, PARKED | ASIDE_WAS_OUT << 4, t.count)
    keep_aside(t, ASIDE_STOPPED, 0)
    r.stopped += 1
    return 0


cdef bint is_behind_stop(retrying_t *r, store_t *st, place_t *t) noexcept nogil:
    cdef queue_t *q = st.queue
    cdef place_t *place
    while r.stops.n:
        place = aside_find(q, r.stops.heap[0].seq)
        if place != NULL and place.reason == ASIDE_STOPPED:
            return stop_key(st) > r.stops.heap[0].when or (
                stop_key(st) == r.stops.heap[0].when and t.seq > r.stops.heap[0].seq)
        due_pop(&r.stops)
    return False


cdef bint was_stopped(queue_t *q, const last_entry_t *last, place_t *t) noexcept nogil:
    """Whether a message from before the start is one at which the queue stops.  It had failed too often, or does with the
    end of the former broker."""
    if not q.rules.limit_stops:
        return False
    if last != NULL and (last.type == PARKED or last.type == SET_ASIDE):
        return last.type == PARKED          # else an operator released it
    return is_at_stop(q.rules, t)


cdef bint waits_again(retrying_t *r, store_t *st, place_t *t) noexcept nogil:
    """Set aside a message from before the start that find_next() found, if it is to wait.  False: it may go out."""
    cdef queue_t *q = st.queue
    cdef const last_entry_t *last
    cdef int64_t when
    if t.flags & (PLACE_WAS_OUT | PLACE_OUT_SINCE_START) != PLACE_WAS_OUT or is_returned(st, t):
        return False
    last = entry_from_before(st, t)
    if was_stopped(q, last, t):
        if aside_reserve(q) != 0 or due_push(&r.stops, stop_key(st), t.seq) != 0:
            return False
        if last == NULL or last.type != PARKED:
            if UNLIKELY(q.journal != NULL):
                prepare_event(t.seg)
                event_put(t.seg, t.seq, next_ts(q), 0, 0, t.count, PARKED_EVENT, REASON_LIMIT)
            seg_note(t.seg, t.position, PARKED | ASIDE_WAS_OUT << 4, t.count)
        take_aside_again(st, t, ASIDE_STOPPED, 0)
        r.stopped += 1
        return True
    when = retry_due_of(&r.retry, last, q)
    if when == 0 or aside_reserve(q) != 0 or due_push(&r.retry.due, when, t.seq) != 0:
        return False
    take_aside_again(st, t, ASIDE_GATED, <uint32_t>when)
    return True


# ---- the gate's verbs

cdef void retrying_alarm(retrying_t *r, int64_t earliest) noexcept nogil:
    """Have due() called when the first message is due, and not before `earliest`, in ns."""
    cdef queue_t *q = r.gate.queue
    r.gate.deadline = NEVER
    if r.walks:
        r.gate.deadline = earliest
    elif r.retry.due.n:
        r.gate.deadline = max(r.retry.due.heap[0].when * 1000000, earliest)
    if r.gate.deadline != NEVER:
        q.rules.expires = True
        deadline_bring_forward(q, r.gate.deadline)


cdef int retrying_take(gate_t *gate, consumer_t *c, place_t *t) noexcept nogil:
    cdef retrying_t *r = <retrying_t *>gate
    cdef store_t *st
    cdef int looks
    retry_check_clock(&r.retry, gate.queue)
    for looks in range(RETRY_LOOKS):
        st = find_next(gate.queue, t)
        if st == NULL:
            return TAKE_NOTHING
        if UNLIKELY(t.flags != 0) and waits_again(r, st, t):
            gate.looked += 1
            retrying_alarm(r, 0)
            continue
        if UNLIKELY(r.stopped != 0) and is_behind_stop(r, st, t):
            return TAKE_NOTHING
        take_head(st, t)
        return TAKE_DONE
    return TAKE_LATER


cdef bint retrying_give_back(gate_t *gate, place_t *t, uint8_t cause) noexcept nogil:
    cdef retrying_t *r = <retrying_t *>gate
    cdef queue_t *q = gate.queue
    cdef int64_t delay
    if cause == 0:
        return False
    if UNLIKELY(is_at_stop(q.rules, t)):
        return stop_at(r, t, cause) == 0
    retry_check_clock(&r.retry, q)
    delay = retry_delay(&r.retry, t, cause)
    if delay == 0 or retry_put(&r.retry, t, cause, delay) != 0:
        return False
    if r.retry.due.heap[0].seq == t.seq:
        retrying_alarm(r, 0)
    return True


cdef void retrying_walk(retrying_t *r) noexcept nogil:
    """Let the heads wait that waited when the former broker ended."""
    cdef store_t *st = NULL
    cdef place_t t
    cdef int n = 0
    r.walks = False
    while True:
        st = next_store(r.gate.queue, st)
        if st == NULL:
            return
        while st.ready and find_head(st, &t) and waits_again(r, st, &t):
            n += 1
            if n == RETRY_WAKES:
                r.walks = True
                return


cdef void retrying_due(gate_t *gate) noexcept nogil:
    cdef retrying_t *r = <retrying_t *>gate
    cdef queue_t *q = gate.queue
    cdef uint64_t seq
    cdef int n
    retry_check_clock(&r.retry, q)
    if r.walks:
        retrying_walk(r)
    for n in range(RETRY_WAKES):
        seq = retry_next_due(&r.retry, q)
        if seq == 0:
            break
        if not wake(q, seq):
            retry_put_off(&r.retry, q, seq)
    dues_shrink(&r.retry.due)
    # What is due by now goes on in the next turn.
    retrying_alarm(r, q.core.now + 1)


cdef bint retrying_part_with(gate_t *gate, uint64_t seq, place_t *t) noexcept nogil:
    cdef place_t *place = aside_find(gate.queue, seq)
    if place == NULL or place.reason != ASIDE_GATED:
        return False            # At one where the queue stops, an operator acts.
    uncount_waiting(place)
    return aside_take(gate.queue, seq, t)


cdef void retrying_attach(gate_t *gate) noexcept nogil:
    cdef retrying_t *r = <retrying_t *>gate
    r.retry.latest = gate.queue.core.now
    r.walks = True
    retrying_alarm(r, 0)


cdef void retrying_empty(gate_t *gate) noexcept nogil:
    cdef retrying_t *r = <retrying_t *>gate
    cdef place_t *place
    cdef uint64_t seq
    cdef dues_t *heap
    cdef int i
    for i in range(2):
        heap = &r.stops if i else &r.retry.due
        while heap.n:
            heap.n -= 1
            seq = heap.heap[heap.n].seq
            place = aside_find(gate.queue, seq)
            if place != NULL and place.reason >= ASIDE_GATED:
                wake(gate.queue, seq)
        dues_free(heap)
    r.stopped = 0
    r.walks = False
    gate.deadline = NEVER


cdef bint retrying_is_sound(gate_t *gate) noexcept nogil:
    """Each message that waits has one time that counts, each that stops the queue one place among the stops."""
    cdef retrying_t *r = <retrying_t *>gate
    cdef place_t *place
    cdef uint64_t waiting = 0, stopped = 0
    cdef size_t i
    if not dues_are_sound(&r.retry.due):
        return False
    for i in range(r.retry.due.n):
        place = aside_find(gate.queue, r.retry.due.heap[i].seq)
        waiting += place != NULL and place.reason == ASIDE_GATED and place.actor == <uint32_t>r.retry.due.heap[i].when
    for i in range(r.stops.n):
        place = aside_find(gate.queue, r.stops.heap[i].seq)
        stopped += place != NULL and place.reason == ASIDE_STOPPED
    return stopped == r.stopped and waiting + stopped == gate.waiting


cdef void note_released(queue_t *q, place_t *t) noexcept nogil:
    """Write that an operator made t ready again; its failed deliveries stay."""
    if UNLIKELY(q.journal != NULL):
        prepare_event(t.seg)
        event_put(t.seg, t.seq, next_ts(q), 0, 0, t.count, RELEASED_EVENT, 0)
    seg_note(t.seg, t.position, SET_ASIDE | ASIDE_WAS_OUT << 4, t.count)


cdef class Retry(Gate):
    """See plane/__init__.pyi."""

    cdef retrying_t r

    def __cinit__(self, *args, **more):
        gate_init(&self.r.gate)
        self.r.gate.take = retrying_take
        self.r.gate.give_back = retrying_give_back
        self.r.gate.part_with = retrying_part_with
        self.r.gate.due = retrying_due
        self.r.gate.attach = retrying_attach
        self.r.gate.empty = retrying_empty
        self.r.gate.is_sound = retrying_is_sound
        self.gate = &self.r.gate

    def __dealloc__(self):
        dues_free(&self.r.retry.due)
        dues_free(&self.r.stops)

    def set_rule(self, *, uint8_t causes=0, int64_t min_ms=1, int64_t max_ms=1, uint8_t backoff=LINEAR, uint8_t jitter=0):
        self.r.retry.causes = causes
        self.r.retry.least = max(min_ms, <int64_t>1)
        self.r.retry.most = max(max_ms, self.r.retry.least)
        self.r.retry.backoff = backoff
        self.r.retry.jitter = min(jitter, <uint8_t>100)

    def release(self, uint64_t seq):
        cdef queue_t *q = self.r.gate.queue
        cdef place_t *place = aside_find(q, seq) if q != NULL else NULL
        cdef place_t t
        if place == NULL or place.reason < ASIDE_GATED:
            return False
        t = place[0]
        (<Queue>q.owner).core.read_clock()
        if not wake(q, seq):
            raise MemoryError
        if t.reason == ASIDE_STOPPED:
            self.r.stopped -= 1
            due_remove(&self.r.stops, seq)
        else:
            due_remove(&self.r.retry.due, seq)
        note_released(q, &t)
        (<Queue>q.owner).core.request_turn()
        return True

    def skip(self, uint64_t seq):
        cdef queue_t *q = self.r.gate.queue
        cdef place_t *place = aside_find(q, seq) if q != NULL else NULL
        cdef place_t t
        if place == NULL or place.reason != ASIDE_STOPPED:
            return False
        (<Queue>q.owner).core.read_clock()
        write_stages(q.core)
        aside_take(q, seq, &t)
        uncount_waiting(&t)
        t.seg.aside -= 1
        self.r.stopped -= 1
        due_remove(&self.r.stops, seq)
        kill(&t, REASON_LIMIT)
        mark_dirty(q)
        (<Queue>q.owner).core.request_turn()
        return True

    @property
    def stopped(self):
        return self.r.stopped

    @property
    def waiting(self):
        return self.r.gate.waiting - self.r.stopped

    def stops(self, size_t count):
        cdef place_t *place
        cdef list found = []
        if self.r.gate.queue == NULL:
            return found
        for _, seq in dues_upcoming(&self.r.stops, self.r.stops.n):
            place = aside_find(self.r.gate.queue, seq)
            if place != NULL and place.reason == ASIDE_STOPPED and len(found) < count:
                found.append((seq, place.count))
        return found

    def upcoming(self, size_t count):
        cdef place_t *place
        cdef list found = []
        if self.r.gate.queue == NULL:
            return found
        for when, seq in dues_upcoming(&self.r.retry.due, count):
            place = aside_find(self.r.gate.queue, seq)
            if place != NULL and place.reason == ASIDE_GATED and place.actor == <uint32_t>when:
                found.append((when, seq, place.count))
        return found

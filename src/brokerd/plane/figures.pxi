# Counts for operators alone: sizes of messages, how long messages wait and how long consumers work on
# them, publishes without a queue, basic.get without a message.
#
# Sizes and times are counted while count_figures is set, which is when an operator has asked for them: until then a publish,
# a hand-out and a settlement have one branch each for them.  When a channel closes, its counters are added up, because they
# end with it: see Channel.leave_lists().

cdef enum:
    SIZES = 9                   # buckets; the last has no upper bound
    TIMES = 15                  # buckets of 4 times the former's bound; the last has no upper bound
    TIME_SHIFT = 18             # the first one's bound is 2**18 ns
    OF_WAITING = 0              # times_t.kinds: from the publish to each hand-out
    OF_WORKING = 1              # from the hand-out to the settlement

cdef uint64_t[8] SIZE_BOUNDS    # RabbitMQ's
SIZE_BOUNDS[:] = [100, 1000, 10000, 100000, 1000000, 10000000, 50000000, 100000000]


cdef void note_size(core_t *core, uint64_t octets) noexcept nogil:
    cdef int i = 0
    while i < SIZES - 1 and octets > SIZE_BOUNDS[i]:
        i += 1
    core.sizes[i] += 1
    core.sizes_sum += octets


cdef void note_time(kind_of_times_t *k, int64_t ns) noexcept nogil:
    cdef int i = 0
    cdef uint64_t left
    if ns < 0:
        ns = 0                  # The clock was set.
    left = <uint64_t>ns >> TIME_SHIFT
    while left and i < TIMES - 1:
        left >>= 2
        i += 1
    k.buckets[i] += 1
    k.ns += ns


cdef void note_waited(queue_t *q, place_t *t) noexcept nogil:
    """t is about to be handed out."""
    note_time(&q.times.kinds[OF_WAITING], q.core.now - <int64_t>le64(t.seg.map + t.position + R_TS))


cdef void note_worked(queue_t *q, entry_t *e) noexcept nogil:
    """The delivery is settled, and was not given back."""
    note_time(&q.times.kinds[OF_WORKING], <int64_t><uint32_t>(q.core.ms - e.when) * 1000000)


cdef void times_begin(queue_t *q) noexcept nogil:
    """Count the times of q.  Without memory they are not counted."""
    if q.times == NULL:
        q.times = <times_t *>calloc(1, sizeof(times_t))


cdef void times_end(queue_t *q) noexcept nogil:
    """q goes: the core keeps what it had counted."""
    cdef int kind, i
    if q.times == NULL:
        return
    add_times(&q.core.times_of_gone, q.times)
    free(q.times)
    q.times = NULL


cdef void add_times(times_t *to, const times_t *t) noexcept nogil:
    cdef int kind, i
    for kind in range(2):
        to.kinds[kind].ns += t.kinds[kind].ns
        for i in range(TIMES):
            to.kinds[kind].buckets[i] += t.kinds[kind].buckets[i]


cdef tuple tuple_of_times(const times_t *t):
    return tuple([(tuple([t.kinds[kind].buckets[i] for i in range(TIMES)]), t.kinds[kind].ns) for kind in range(2)])


cdef inline void note_unroutable(core_t *core, bint returned) noexcept nogil:
    """A publish has no queue."""
    if returned:
        core.n_unroutable_returned += 1
    else:
        core.n_unroutable_dropped += 1


cdef void note_closed_channel(channel_t *ch) noexcept nogil:
    """ch closes: the core keeps what it had counted."""
    if ch.confirm:
        ch.conn.core.n_confirm_in += ch.publishes - ch.confirm_from
        ch.conn.core.n_confirmed += ch.confirmed - ch.confirm_from

# A message of which all copies together are many octets goes into its queues in parts, between which others have their turn.
#
# The client's next octets wait, so that on one channel no message comes before another.  Between two parts the queues that have
# the message may deliver it, and a kill leaves it in these alone.  Its publisher has no confirm by then.
#
# Invariant: the queues are those of the first part, whatever becomes of bindings.  The scatter holds a reference to each.

cdef enum:
    MUCH = 4 << 20              # octets of all copies, some 2 ms: more are stored in parts
    SCATTERED_AT_ONCE = 1 << 18     # octets, before the clock is looked at
    SCATTERED_QUEUES = 16       # of which each may need another file, 1 ms

cdef struct scatter_t:
    route_t route               # a copy of the message's route, with targets and properties of its own, and no tally
    void *owners                # a list of the Queues: a reference
    uint32_t next               # the first target that has not had its part
    uint32_t stored             # as store_message() sets it, for the queues so far


cdef inline bint is_much(uint32_t targets_n, const message_t *m) noexcept nogil:
    """Whether all copies of m together are more than one turn stores."""
    return targets_n > 1 and <uint64_t>targets_n * m.length > MUCH


cdef int scatter_some(queue_t **targets, uint32_t n, uint32_t *next, message_t *m, bint waits, uint32_t *stored) noexcept nogil:
    """Store m in some of the queues, from *next on, which moves.  0, or the errno: then *next is where it was."""
    cdef uint32_t some = min(<uint32_t>SCATTERED_QUEUES, max(<uint32_t>1, SCATTERED_AT_ONCE // m.length))
    cdef int err
    some = min(some, n - next[0])
    err = store_message(targets + next[0], some, m, waits, stored, NULL)
    if err == 0:
        next[0] += some
    return err


cdef int scatter_turn(core_t *core, scatter_t *s, message_t *m, bint waits) noexcept nogil:
    """Store m in as many of the queues as a turn has time for, in one part of them at least.  0, or the errno."""
    cdef int64_t began = monotonic_ns()
    cdef int err = scatter_some(s.route.targets, s.route.targets_n, &s.next, m, waits, &s.stored)
    while err == 0 and s.next < s.route.targets_n and monotonic_ns() - began < core.work_ns:
        err = scatter_some(s.route.targets, s.route.targets_n, &s.next, m, waits, &s.stored)
    core.spent += monotonic_ns() - began
    return err


cdef scatter_t *scatter_new(const route_t *r) noexcept nogil:
    """NULL: no memory."""
    cdef scatter_t *s = <scatter_t *>calloc(1, sizeof(scatter_t) + r.targets_n * sizeof(queue_t *) + r.properties_n)
    if s == NULL:
        return NULL
    s.route = r[0]
    s.route.tally = NULL
    s.route.targets = <queue_t **>(s + 1)
    memcpy(s.route.targets, r.targets, r.targets_n * sizeof(queue_t *))
    if r.properties != NULL:
        s.route.properties = <const uint8_t *>(s.route.targets + r.targets_n)
        memcpy(<uint8_t *>s.route.properties, r.properties, r.properties_n)
    with gil:
        if not own_targets(s):
            free(s)
            return NULL
    return s


cdef bint own_targets(scatter_t *s) noexcept:
    cdef uint32_t i
    cdef list owners = []
    try:
        for i in range(s.route.targets_n):
            owners.append(<Queue>s.route.targets[i].owner)
    except MemoryError:
        return False
    Py_INCREF(owners)
    s.owners = <void *>owners
    return True


cdef void scatter_free(scatter_t *s) noexcept nogil:
    if s != NULL:
        with gil:
            Py_DECREF(<list>s.owners)
        free(s)


cdef void scatter_end(channel_t *ch) noexcept nogil:
    """The message is in all its queues and counted, or its channel goes."""
    cdef scatter_t *s = ch.scatter
    if s != NULL and 0 < s.next < s.route.targets_n:
        ch.publishes += 1       # Its number is used up, also for a channel that is opened under the same number.
    ch.scatter = NULL
    ch.is_rare = ch.tx
    scatter_free(s)


cdef void scatter_letter_end(letters_t *l) noexcept nogil:
    """The letter is in all its queues, or its message is gone, or the queue gets other rules."""
    scatter_free(l.scatter)
    l.scatter = NULL


cdef int scatter_letter(queue_t *q, uint64_t seq, route_t *r, message_t *m, uint64_t *spent, uint32_t *stored) noexcept nogil:
    """Store the dead letter m of the message with that number in some of its queues, and add its cost to `spent`.  0: all have
    it, EAGAIN: the next call goes on, or the errno.  After that the control plane stores it in all queues: to some it comes twice."""
    cdef letters_t *l = q.rules.letters
    cdef uint64_t cost
    cdef uint32_t before
    cdef int err
    if l.scatter == NULL:
        l.scatter = scatter_new(r)
        l.scattered = seq
        if l.scatter == NULL:
            return ENOMEM
    before = l.scatter.next
    err = scatter_turn(q.core, l.scatter, m, l.at_least_once)
    cost = cost_of_copies(l.scatter.next - before, m.properties_n + m.body_n)
    spent[0] += cost
    q.core.affairs += cost
    write_stages(q.core)
    if err == 0 and l.scatter.next < l.scatter.route.targets_n:
        return EAGAIN
    stored[0] |= l.scatter.stored
    scatter_letter_end(l)
    return err

# The end of a chunk: what the messages that came in, or were settled, have left to do.


cdef enum:
    AFFAIRS_MOST = 4096         # messages dropped at a time, or dead-lettered before a method (see tell_dead())
    DEAD_MOST = 512             # the same in a turn: some 1 µs for each copy; some 40 for on_dead(), which counts for 8 more


cdef uint64_t finish_chunk(core_t *core, uint64_t dead_most, int64_t until) noexcept nogil:
    """Finish the work of the chunk: write the stages, enforce limits, tell keys that exchanges learnt, forward dead messages
    or pass them to on_dead(), as tell_dead() has it.  Returns what that counts for: `dead_most` or more if it is too late by
    monotonic_ns() for the rest."""
    cdef queue_t *q
    cdef uint64_t dropped, n = 0
    cdef bint late = False
    write_stages(core)
    while core.over != NULL and n < AFFAIRS_MOST:
        q = core.over
        core.over = q.rules.over_next
        q.rules.is_over = False
        if can_deliver(q):              # A consumer that can have a message at once gets it before the limit drops it.
            deliver(q, TURN_QUANTUM)
        dropped = enforce_limits(q, AFFAIRS_MOST)
        core.affairs += dropped
        n += dropped
        if is_over_length_limit(q, q.rules) and n >= AFFAIRS_MOST:
            mark_over(q)
        late = core.over != NULL and is_past(until)
        if UNLIKELY(late):              # The last message of a segment takes the segment with it: 1 ms for 8 MiB.
            break
    if UNLIKELY(core.learnt != NULL):
        with gil:
            tell_learnt(core)
    if UNLIKELY(late):
        return max(n, dead_most)
    if core.dying != NULL:
        with gil:
            n += tell_dead(core, dead_most, until)
    return n


cdef inline bint has_unfinished(core_t *core) noexcept nogil:
    return core.staged != NULL or core.over != NULL or core.dying != NULL or core.learnt != NULL

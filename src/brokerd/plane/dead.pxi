# Dead letters: the queue's on_dead() is called for each dead message at the end of the chunk, and never while the store of
# a queue is half changed.
#
#    dying --on_dead() True--> settled
#          --on_dead() False--> aside --settle_dead()--> settled
#
# A message that is dying is aside (aside.pxi): after a crash it is ready again.

REASONS = ("", "rejected", "expired", "maxlen", "delivery_limit")


cdef void settle_dead(queue_t *q, place_t *dead) noexcept nogil:
    """A message that is dying, or aside, has been dead-lettered."""
    q.rules.n_dead_lettered += 1
    dead.seg.aside -= 1
    settle(dead, DEAD_LETTERED | dead.reason << 4)


cdef bint tell_one_dead(queue_t *q, place_t *dead) noexcept:
    """Call on_dead() for one message.  True: it may be settled.  If on_dead() raises, the message stays aside, and is ready
    after a restart."""
    cdef message_t m
    write_stages(q.core)
    if seg_map(dead.seg) != 0:
        return False
    message_of(dead.seg.map + dead.position, &m)
    queue = <Queue>q.owner
    return queue.on_dead(REASONS[dead.reason], dead.seq, (<const char *>m.names)[1:1 + m.names[0]],
                         key_of(&m), (<const char *>m.properties)[:m.properties_n],
                         (<const char *>m.body)[:m.body_n], dead.count)


cdef uint64_t tell_dead(core_t *core, uint64_t most) noexcept:
    """Call on_dead() for at most so many dead messages, in the order of their deaths.  Returns how many."""
    cdef queue_t *q
    cdef place_t dead
    cdef uint64_t n = 0
    cdef object owner
    while core.dying != NULL and n < most:
        q = core.dying
        if q.rules.dying.first == q.rules.dying.n:
            core.dying = q.rules.dying_next
            if core.dying == NULL:
                core.dying_tail = NULL
            q.rules.is_dying = False
            q.rules.dying.first = q.rules.dying.n = 0
            continue
        # Put it into the table of records aside first, because on_dead() may compact, purge or delete.
        owner = <object>q.owner         # on_dead() may let go of the last reference.
        dead = q.rules.dying.at[q.rules.dying.first]
        if aside_put(q, &dead) != 0:
            return n
        q.rules.dying.first += 1
        n += 1
        if tell_one_dead(q, &dead) and aside_take(q, dead.seq, &dead):
            settle_dead(q, &dead)
    return n


cdef void tell_refusal(queue_t *q, message_t *m) noexcept:
    """reject-publish-dlx: call on_dead() for a message that the queue refused."""
    cdef Queue queue = <Queue>q.owner
    queue.on_dead(REASONS[REASON_LENGTH], 0, (<const char *>m.names)[1:1 + m.names[0]], key_of(m),
                  (<const char *>m.properties)[:m.properties_n], (<const char *>m.body)[:m.body_n], 0)

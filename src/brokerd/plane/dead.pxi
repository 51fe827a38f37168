# Deals with dead messages at the end of the chunk, and never while the store of a queue is half changed.  The plane forwards
# the dead letters that it can make itself (letters.pxi), and calls the queue's on_dead() for each other message.
#
#    dying --forward()---------> settled; at least once: aside --settle_letters()--> settled
#          --on_dead() True----> settled
#          --on_dead() False---> aside --settle_aside()-> settled
#
# At least once, the message stays aside until its letter is on disk: on_letters_stored() has the control plane wait for a
# sync.  A letter that needs no sync waits for those before it that do.
#
# A message that is dying is aside (aside.pxi): after a crash it is ready again.

cdef enum:
    PROPERTIES_OCTETS = 64          # so many octets of properties cost 1 in on_dead(): its time follows their length


cdef void settle_dead(queue_t *q, place_t *dead) noexcept nogil:
    """Settle a message that was dying or aside: it has been dead-lettered.  Its event names the consumer that killed it."""
    cdef core_t *core = q.core
    q.rules.n_dead_lettered += 1
    dead.seg.aside -= 1
    core.actor = dead.actor
    settle(dead, DEAD_LETTERED | dead.reason << 4)
    core.actor = 0


cdef bint tell_one_dead(queue_t *q, place_t *dead, uint64_t *spent) noexcept:
    """Call on_dead() for one message, and add to `spent` what that counts for.  True: it may be settled.  If on_dead()
    raises, the message stays aside, and is ready after a restart."""
    cdef message_t m
    cdef core_t *core = q.core
    cdef uint64_t before = core.put_cost
    cdef bint done
    write_stages(core)
    spent[0] += UPCALL
    core.affairs += UPCALL
    if seg_map(dead.seg) != 0:
        return False
    message_of(dead.seg.map + dead.position, &m)
    if not can_be_read(q, &m):
        return False
    spent[0] += m.properties_n // PROPERTIES_OCTETS + m.body_n // COPIED_OCTETS
    queue = <Queue>q.owner
    done = queue.on_dead(REASONS[dead.reason], dead.seq, (<const char *>m.names)[1:1 + m.names[0]],
                         routing_key_of(&m), (<const char *>m.properties)[:m.properties_n],
                         (<const char *>m.body)[:m.body_n], dead.count)
    spent[0] += core.put_cost - before
    core.affairs += core.put_cost - before
    return done


cdef bint seqs_reserve(seqs_t *s) noexcept nogil:
    """Have room for one more."""
    cdef uint64_t *at
    cdef uint32_t capacity
    if s.n < s.capacity:
        return True
    if s.first >= s.capacity - s.capacity // 2 and s.first:
        memmove(s.at, s.at + s.first, (s.n - s.first) * sizeof(uint64_t))
        s.n -= s.first
        s.first = 0
        return True
    capacity = max(<uint32_t>64, 2 * s.capacity)
    at = <uint64_t *>realloc(s.at, capacity * sizeof(uint64_t))
    if at == NULL:
        return False
    s.at = at
    s.capacity = capacity
    return True


cdef void settle_if_aside(queue_t *q, uint64_t seq) noexcept nogil:
    """Settle a dead message, or one that the control plane has set aside, if it is still aside."""
    cdef place_t t
    if q.dropped or not aside_take(q, seq, &t):
        return
    if t.reason == ASIDE_HELD:
        t.seg.aside -= 1
        settle(&t, DROPPED | REASON_REMOVED << 4)
    elif t.reason > ASIDE_HELD:
        aside_put(q, &t)            # There is room: it was in there.
    else:
        settle_dead(q, &t)


cdef void settle_letters(queue_t *q, uint64_t upto) noexcept nogil:
    """Settle messages whose letters are on disk, up to that one since the start."""
    cdef rules_t *r = q.rules
    while r.letters_settled < upto and r.stored.first < r.stored.n:
        r.stored.first += 1
        r.letters_settled += 1
        settle_if_aside(q, r.stored.at[r.stored.first - 1])
    if r.stored.first == r.stored.n:
        r.stored.first = r.stored.n = 0


cdef uint64_t forward_at_least_once(queue_t *q, uint64_t most, int64_t until) noexcept nogil:
    """forward_some() for letters that must be on disk before their messages are settled."""
    cdef rules_t *r = q.rules
    cdef place_t dead
    cdef uint32_t stored, n = 0
    cdef uint64_t spent = 0
    cdef bint waits = False
    cdef int outcome = FORWARDED
    while spent < most and r.dying.first < r.dying.n and aside_reserve(q) == 0 and seqs_reserve(&r.stored):
        stored = STORED
        dead = r.dying.at[r.dying.first]
        outcome = forward(q, &dead, &spent, &stored, until != NEVER)
        if outcome != FORWARDED:
            break
        r.dying.first += 1
        aside_put(q, &dead)
        r.stored.at[r.stored.n] = dead.seq
        r.stored.n += 1
        n += 1
        waits |= stored & WAITS != 0
        if is_past(until):
            break
    if n == 0:
        return most if outcome == FORWARD_LATER else 0
    write_stages(q.core)
    if waits or r.letters_settled < r.letters_told:
        r.letters_told = r.letters_settled + r.stored.n - r.stored.first
        with gil:
            tell_letters_stored(q, r.letters_told)
    else:
        settle_letters(q, r.letters_settled + r.stored.n - r.stored.first)
    return max(spent, most) if outcome == FORWARD_LATER else spent


cdef void tell_letters_stored(queue_t *q, uint64_t upto) noexcept:
    queue = <Queue>q.owner          # It may let go of the last reference.
    queue.on_letters_stored(upto)


cdef uint64_t forward_some(queue_t *q, uint64_t most, int64_t until) noexcept nogil:
    """Forward the first of the queue's dying messages, until the plane cannot, they count for `most`, or it is so late by
    monotonic_ns().  Returns for how much: `most` or more if the next one needs another turn.  0: the first is for on_dead().

    They stay in the list until their letters are in the files: kill -9 in between brings a message twice, but loses none."""
    cdef places_t *dying = &q.rules.dying
    cdef uint32_t i, n = 0
    cdef uint64_t spent = 0
    cdef place_t dead
    cdef uint32_t stored
    cdef int outcome = FORWARDED
    if q.rules.letters.at_least_once:
        return forward_at_least_once(q, most, until)
    while spent < most and dying.first + n < dying.n:
        outcome = forward(q, &dying.at[dying.first + n], &spent, &stored, until != NEVER)
        if outcome != FORWARDED:
            break
        n += 1
        if is_past(until):
            break
    if n:
        write_stages(q.core)
    for i in range(n):
        dead = dying.at[dying.first]
        dying.first += 1
        settle_dead(q, &dead)
    if outcome == FORWARD_LATER:
        return max(spent, most)
    return spent if n else 0


cdef uint64_t tell_dead(core_t *core, uint64_t most, int64_t until) noexcept:
    """Deal with dead messages, in the order of their deaths, until they count for `most` or more, or it is so late by
    monotonic_ns(), but with one at least.  Returns for how much they count: `most` or more if it is too late for others.

    A message counts for what its letter copies: one that goes to a thousand queues counts for a thousand."""
    cdef queue_t *q
    cdef place_t dead
    cdef uint64_t some, n = 0
    cdef object owner
    while core.dying != NULL and n < most:
        if n and is_past(until):
            return max(n, most)
        q = core.dying
        if q.rules.dying.first == q.rules.dying.n:
            core.dying = q.rules.dying_next
            if core.dying == NULL:
                core.dying_tail = NULL
            q.rules.is_dying = False
            q.rules.dying.first = q.rules.dying.n = 0
            continue
        if q.rules.letters != NULL:
            some = forward_some(q, most - n, until)
            n += some
            if some:
                continue
        # Put it into the table of records aside first, because on_dead() may compact, purge or delete.
        owner = <object>q.owner         # on_dead() may let go of the last reference.
        dead = q.rules.dying.at[q.rules.dying.first]
        if aside_put(q, &dead) != 0:
            return n
        q.rules.dying.first += 1
        if tell_one_dead(q, &dead, &n) and aside_take(q, dead.seq, &dead):
            settle_dead(q, &dead)
    return n


cdef bint finish_deaths(queue_t *q, uint64_t most) noexcept:
    """Let messages die whose time is over, and tell what became of those that died: `most` of them.  Whether that was all."""
    cdef uint64_t some, before, n = 0
    cdef bint whole = True
    if q.rules == NULL:
        return True
    while n < most:
        before = q.rules.n_expired
        whole = not q.rules.expires or expire(q)
        some = q.rules.n_expired - before
        if q.rules.dying.first < q.rules.dying.n:
            some += tell_dead(q.core, most - n, NEVER)
        if some == 0:
            break
        n += some
    return whole and q.rules.dying.first == q.rules.dying.n

# Hands out messages: takes them from the queue, writes them to a channel, and counts them as unacked or settles them.
#
#    take        the queue's next message for a consumer, in sequence order, or as its gate says
#    write_*     its octets, in output.pxi
#    hand_out    what a hand-out changes: counters, order, journal, the ring of unacked deliveries.  The same for
#                basic.deliver and basic.get

cdef enum:
    TURN_QUANTUM = 262144           # octets of one queue before the next queue has its turn
    LOOK_COSTS = 64                 # octets that a message counts for which a gate looked at
    ROW_OCTETS = 8192               # of a stream that one reader gets in a row: its memory is at hand then
    GET_LOOKS = 64                  # calls of take() for one basic.get.  After that it answers get-empty, though a message
                                    # may be there that could go out: the next basic.get looks on


cdef int take_by_rules(queue_t *q, consumer_t *c, place_t *t) noexcept nogil:
    """take() where there are priorities, messages that expire, a delivery limit, or a gate."""
    cdef store_t *st
    if q.rules != NULL and q.rules.gate != NULL:
        q.rules.gate.looked = 0
        return q.rules.gate.take(q.rules.gate, c, t)
    st = find_next(q, t)
    if st == NULL:
        return TAKE_NOTHING
    take_head(st, t)
    return TAKE_DONE


cdef inline int take(queue_t *q, consumer_t *c, place_t *t) noexcept nogil:
    """Take the queue's next message for c (NULL: for basic.get): it is not ready any more, and its segment is mapped.
    TAKE_*."""
    if UNLIKELY(q.rules != NULL or q.top):
        return take_by_rules(q, c, t)
    if not peek(&q.store, t):
        return TAKE_NOTHING
    advance(&q.store, t)
    return TAKE_DONE


cdef void put_back(channel_t *ch, consumer_t *c, place_t *t) noexcept nogil:
    """Undo take(), because the message could not be written."""
    cdef rules_t *r = t.seg.queue.rules
    cdef bint kept
    if UNLIKELY(r != NULL) and r.gate != NULL:
        r.gate.channel = ch
        r.gate.consumer = c
        kept = r.gate.give_back(r.gate, t, 0)
        r.gate.channel = NULL
        r.gate.consumer = NULL
        if kept:
            return
    if t.flags == 0:
        note_aside(t, t.count)
    t.flags |= PLACE_PASSED
    make_ready(t)


cdef int ring_grow(channel_t *ch) noexcept nogil:
    """Twice the room for unacked deliveries; entries stay at tag modulo capacity.

    The ring is full, so the tags from base_tag on go round it once.  Those of which the bit of the old capacity is set move, all by
    as much: of a client that acks nothing, hardly any.  realloc() has the kernel move the pages of a large ring."""
    cdef uint32_t old = ch.ring_capacity
    cdef uint32_t new = old * 2 if old else 16
    cdef entry_t *ring = <entry_t *>realloc(ch.ring, new * sizeof(entry_t))
    cdef uint32_t first = ch.base_tag & (old - 1) if old else 0
    if ring == NULL:
        return ENOMEM
    ASSERT(ch.next_tag - ch.base_tag == old)
    if ch.base_tag & old:
        memcpy(ring + old + first, ring + first, (old - first) * sizeof(entry_t))
    else:
        memcpy(ring + old, ring, first * sizeof(entry_t))
    ch.ring = ring
    ch.ring_capacity = new
    return 0


cdef inline int ring_reserve(channel_t *ch) noexcept nogil:
    if UNLIKELY(ch.next_tag - ch.base_tag >= ch.ring_capacity):
        return ring_grow(ch)
    return 0


cdef inline void spend_tag_of_many(channel_t *ch) noexcept nogil:
    """Use up the next tag for a delivery that needs no ack, while others are unacked."""
    cdef entry_t *e = &ch.ring[ch.next_tag & (ch.ring_capacity - 1)]
    e.at.seg = NULL
    e.late = False
    ch.next_tag += 1


cdef inline void spend_tag(channel_t *ch) noexcept nogil:
    """Use up the next tag for a delivery that needs no ack.  If others are unacked or late, ring_reserve() went before."""
    if UNLIKELY(ch.unacked or ch.late):
        spend_tag_of_many(ch)
    else:
        ch.next_tag += 1
        ch.base_tag = ch.next_tag


cdef inline void add_unacked(channel_t *ch, consumer_t *c, place_t *t) noexcept nogil:
    """Count the delivery just written as unacked; ring_reserve() went before."""
    cdef entry_t *e = &ch.ring[ch.next_tag & (ch.ring_capacity - 1)]
    ASSERT(ch.next_tag - ch.base_tag < ch.ring_capacity)
    # Its fields were stored one by one just now, and so they are read.
    e.at.seg = <seg_t *><size_t>alone(<size_t>t.seg)
    e.at.seq = alone(t.seq)
    e.at.position = <uint32_t>alone(t.position)
    e.at.ordinal = <uint32_t>alone(t.ordinal)
    e.at.actor = <uint32_t>alone(t.actor)
    e.at.count = <uint16_t>alone(t.count)
    e.at.flags = <uint8_t>alone(t.flags)
    e.at.reason = <uint8_t>alone(t.reason)
    e.consumer = c
    e.late = e.claimed = False
    e.when = ch.conn.core.ms
    ch.next_tag += 1
    ch.unacked += 1
    ch.consumed += c != NULL
    t.seg.unacked += 1
    t.seg.queue.unacked += 1


# ---- a delivery
cdef void tell_delivered(channel_t *ch, place_t *t, uint8_t before) noexcept:
    """Tell the firehose that this message was written to this channel."""
    cdef message_t m
    cdef Queue queue = <Queue>t.seg.queue.owner
    message_of(t.seg.map + t.position, &m)
    queue.on_delivered(<Channel>ch.owner, (<const char *>m.names)[1:1 + m.names[0]], routing_key_of(&m),
                       (<const char *>m.properties)[:m.properties_n], (<const char *>m.body)[:m.body_n],
                       before & PLACE_WAS_OUT != 0)


cdef void tell_hand_out(channel_t *ch, consumer_t *c, place_t *t, uint8_t before, bint no_ack) noexcept nogil:
    """Tell the journal and the firehose of a hand-out, if the queue has them."""
    cdef queue_t *q = t.seg.queue
    if q.journal != NULL:
        journal_delivery(ch, c, t, before, no_ack)
    if q.rules != NULL and q.rules.reports_deliveries:
        with gil:
            tell_delivered(ch, t, before)


cdef void settle_journaled(channel_t *ch, consumer_t *c, place_t *t) noexcept nogil:
    """Settle a message that was handed out without acks; its event names the consumer."""
    cdef core_t *core = t.seg.queue.core
    core.actor = c.number if c != NULL else ch.conn.number
    settle(t, ACKED)
    core.actor = 0


cdef void number_later_hand_out(place_t *t) noexcept nogil:
    """number_hand_out() for a message that was out before, or that the acks file's watermark has passed."""
    if t.flags & PLACE_WAS_OUT and t.seg.queue.journal != NULL:
        prepare_count(t.seg)
    if not t.flags & (PLACE_OUT_SINCE_START | PLACE_REPLAYED):
        t.seg.store.handed += 1
        t.ordinal = t.seg.store.handed
    if t.flags & PLACE_WAS_OUT:
        count_redelivery(t)
    t.flags |= PLACE_WAS_OUT | PLACE_OUT_SINCE_START | PLACE_PASSED


cdef inline void number_hand_out(place_t *t) noexcept nogil:
    """t is handed out: give it its number among the first hand-outs of its level since the start."""
    if UNLIKELY(t.flags):
        number_later_hand_out(t)
        return
    t.seg.store.handed += 1
    t.ordinal = t.seg.store.handed
    t.flags = PLACE_WAS_OUT | PLACE_OUT_SINCE_START | PLACE_PASSED


cdef void hand_out_read(channel_t *ch, consumer_t *c, place_t *t) noexcept nogil:
    """hand_out() of a message that stays in its queue.  Its segment may go before it is settled."""
    cdef queue_t *q = t.seg.queue
    cdef uint8_t before = t.flags
    q.n_redelivered += before & PLACE_WAS_OUT
    q.n_delivered += 1
    t.flags = PLACE_WAS_OUT
    if UNLIKELY(q.times != NULL):
        note_waited(q, t)
    if q.rules.reports_deliveries:
        with gil:
            tell_delivered(ch, t, before)
    t.seg = q.rules.stand_in
    add_unacked(ch, c, t)


cdef inline void hand_out(channel_t *ch, consumer_t *c, place_t *t, uint64_t body_n, bint no_ack) noexcept nogil:
    """t was just written to ch, under ch.next_tag; c NULL: by basic.get.  ring_reserve() went before.  With no_ack its
    segment may be freed."""
    cdef queue_t *q = t.seg.queue
    cdef uint8_t before = t.flags
    if UNLIKELY(q.rules != NULL) and q.rules.gate != NULL and q.rules.gate.lets_go:
        hand_out_read(ch, c, t)
        return
    # After a restart this is partly an estimate.
    q.ready_octets = q.ready_octets - body_n if q.ready and q.ready_octets >= body_n else 0
    q.n_redelivered += before & PLACE_WAS_OUT
    if c != NULL:
        q.n_delivered += 1
    else:
        q.n_got += 1
    if UNLIKELY(q.times != NULL):
        note_waited(q, t)
    number_hand_out(t)
    if UNLIKELY(q.journal != NULL or q.rules != NULL):
        tell_hand_out(ch, c, t, before, no_ack)
    if no_ack:
        spend_tag(ch)
        q.n_acked += 1
        if c != NULL:
            q.n_delivered_no_ack += 1
        else:
            q.n_got_no_ack += 1
        if UNLIKELY(q.journal != NULL):
            settle_journaled(ch, c, t)
        else:
            settle(t, ACKED)
        return
    if UNLIKELY(before):
        # The watermark stands for its first hand-out.  This is a later one, or the first one after it was aside.
        seg_note(t.seg, t.position, HANDED_OUT, t.count)
    add_unacked(ch, c, t)


cdef void send_body(channel_t *ch, place_t *t, uint64_t body_n) noexcept nogil:
    """The body of a message that was handed out, and of which all else is written, goes to the socket from its segment.

    After hand_out(), as all output: kill -9 between the two loses a message that needs no ack, and never brings it twice.
    The caller counted t as unacked in its segment before hand_out(), so that the segment is still there, and mapped."""
    cdef seg_t *s = t.seg
    cdef const uint8_t *r = s.map + t.position
    send_with_body(ch.conn, ch.number, r + length_of(r) - body_n, body_n)
    s.unacked -= 1
    retire_if_settled(s)


cdef inline void count_served(level_t *level, consumer_t *c, bint is_last) noexcept nogil:
    """c has got a message, the last one of its turn or not: then it goes to the end of its ring.  Without credit it leaves it."""
    c.delivered += 1
    if not c.no_ack:
        c.unacked += 1
        if c.prefetch and c.unacked >= c.prefetch:
            ring_leave(c)
            return
    if level.head != level.tail and c.in_ring and is_last:
        ring_leave(c)
        ring_join(c)


cdef void give_up_writing(channel_t *ch, consumer_t *c, place_t *t, size_t before) noexcept nogil:
    """A message could not be written: there is no memory, or its page is lost.  before: conn_t.out_n then."""
    if t.seg.queue.lost:
        take_back_output(ch.conn, before)
    put_back(ch, c, t)
    if c != NULL:
        ring_leave(c)


cdef inline void begin_deliveries(queue_t *q) noexcept nogil:
    """What deliver() does once for all its messages."""
    q.touched = q.core.now
    if q.store.cursor != NULL and UNLIKELY(q.store.position >= q.store.cursor.asked_for):
        ask_for_more(&q.store)
    if UNLIKELY(q.rules != NULL) and q.rules.gate != NULL and q.rules.gate.sent_away:
        q.rules.gate.sent_away = False
        with gil:
            consumers_rejoin(q)


cdef uint64_t deliver(queue_t *q, uint64_t budget) noexcept nogil:
    """Hand out messages until they, the consumers' credit, or the budget run out; octets of bodies, 64 each at least."""
    cdef level_t *level
    cdef consumer_t *c
    cdef channel_t *ch
    cdef place_t t, large
    cdef int64_t n
    cdef uint64_t before, spent = 0, row = 0
    cdef consumer_t *served = NULL
    cdef int took, sends
    begin_deliveries(q)
    while has_next(q) and spent < budget and not q.paused:
        level = first_level_with_credit(q)
        if level == NULL:
            break
        c = level.head
        ch = c.channel
        if UNLIKELY(not has_credit(c)):
            ring_leave(c)
            if ch.global_prefetch:
                waiting_join(c)
                spent += 16
            continue
        if UNLIKELY(ch.conn.out_n >= OUT_FULL) and not ch.conn.held:
            out_flush(ch.conn)
            continue
        if (not c.no_ack or ch.unacked or ch.late) and UNLIKELY(ring_reserve(ch) != 0):
            ring_leave(c)
            continue
        took = take(q, c, &t)
        if UNLIKELY(took != TAKE_DONE):
            if q.rules != NULL and q.rules.gate != NULL:
                spent += LOOK_COSTS * q.rules.gate.looked
            if took == TAKE_OTHERS:
                q.rules.gate.sent_away = True
            if took == TAKE_OTHERS or took == TAKE_END:
                ring_leave(c)
            if took == TAKE_LATER:
                spent = budget
            if took == TAKE_LATER or took == TAKE_NOTHING:
                break
            continue
        if UNLIKELY(q.rules != NULL) and q.rules.gate != NULL:
            spent += LOOK_COSTS * q.rules.gate.looked
        sends = may_send(ch.conn, &t)
        before = ch.conn.out_n
        if UNLIKELY(sends or c.numbers):
            n = write_any_message(ch, c.prefix, c.prefix_n, &t, 0, 0, sends, c.numbers)
        else:
            n = write_message(ch, c.prefix, c.prefix_n, &t, 0, 0)
        if UNLIKELY(n < 0 or q.lost):
            give_up_writing(ch, c, &t, before)
            continue
        spent += 64 + n
        if UNLIKELY(sends):
            large = t
            t.seg.unacked += 1
        hand_out(ch, c, &t, n, c.no_ack)
        if UNLIKELY(sends):
            send_body(ch, &large, n)
        row = row + 64 + n if c == served else 0
        served = c
        count_served(level, c, row >= ROW_OCTETS or not is_read(q))
        if UNLIKELY(ch.global_prefetch) and ch.consumers_n > 1:
            break                   # The channel's other queues have their turn.
        if UNLIKELY(q.levels_n > 1):
            spent += q.levels_n     # One after the other is asked whether it has credit.
    if UNLIKELY(q.rules != NULL) and q.rules.expires:
        deadline_set(q, head_expires_at(q))
    return spent


cdef int get_message(channel_t *ch, queue_t *q, bint no_ack) noexcept nogil:
    """basic.get: write get-ok with the next message.  1: done; 0: no message is ready; -1: no memory."""
    cdef uint8_t prefix[11]
    cdef place_t t, large
    cdef int64_t n
    cdef size_t before
    cdef uint64_t left
    cdef int looks, took = TAKE_NOTHING
    cdef bint sends
    if q.paused or not has_next(q):
        return 0
    if ring_reserve(ch) != 0:
        return -1
    for looks in range(GET_LOOKS):
        took = take(q, NULL, &t)
        if took != TAKE_LATER:
            break
    if took != TAKE_DONE:
        return 0
    prefix[0] = FRAME_METHOD
    put_be16(prefix + 1, ch.number)
    put_be32(prefix + 3, 0)
    put_be32(prefix + 7, BASIC_GET_OK)
    sends = may_send(ch.conn, &t)
    before = ch.conn.out_n
    left = q.ready if q.rules == NULL else counted_messages(q, q.rules)
    n = write_any_message(ch, prefix, 11, &t, 4, <uint32_t>min(left, <uint64_t>0xFFFFFFFF), sends, False)
    if n < 0 or q.lost:
        give_up_writing(ch, NULL, &t, before)
        return 0 if q.lost else -1
    q.touched = q.core.now
    if sends:
        large = t
        t.seg.unacked += 1
    hand_out(ch, NULL, &t, n, no_ack)
    if sends:
        send_body(ch, &large, n)
    if q.rules != NULL and q.rules.expires:
        deadline_set(q, head_expires_at(q))
    return 1


cdef uint64_t deliver_dirty(core_t *core, uint64_t spent) noexcept nogil:
    """Hand out messages of the queues that may have some to hand out, until `spent` comes to what a turn may cost.  Returns how
    much is spent then."""
    cdef queue_t *q
    cdef uint64_t some
    if UNLIKELY(core.crediting != NULL):
        # First: one of these may have a higher priority than the consumers that are in their rings.
        spent += credit_channels(core)
    while spent < core.turn_octets:
        if core.dirty == NULL:
            if LIKELY(core.put_off == NULL) or core.looks_left <= 0:
                break
            wake_put_off(core)
            spent += 64
            continue
        q = core.dirty
        core.dirty = q.dirty_next
        if core.dirty == NULL:
            core.dirty_tail = NULL
        q.is_dirty = False
        q.dirty_next = NULL
        some = deliver(q, TURN_QUANTUM)
        spent += some
        # If nothing was delivered although a consumer could take it, the message cannot be read now.  The queue then waits
        # until something marks it dirty again, because retrying here would spin.
        if some and has_next(q) and can_deliver(q):
            mark_dirty(q)
    return spent

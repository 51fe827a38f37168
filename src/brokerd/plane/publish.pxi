# Takes a published message in: at once if it lies whole in the buffer, else when its frames have been put together.
#
#   method frame  class 60, method 40 | reserved u16 | exchange | routing key | bits     -> route
#   header frame  class 60 | weight u16 | body size u64 | property flags and list        -> meta
#   body frames                                                                          -> record

cdef enum:
    DONE = 0
    MORE = 1                # the rest of a frame or content has not arrived yet
    COLD = 2                # a method for the control plane
    ROUTE = 3               # no route is known for this publish: the control plane must find one
    FAULT = 4               # the peer broke a rule: event_t has the reply code and text
    STALL = 5               # no room to store (event_t.error): the connection stops before this publish
    GREETING = 6            # the eight octets of a protocol header
    CONTENT = 7             # a whole message on a channel whose publishes go up
    TURN = 8                # the connection had its share of time: others have their turn before its next frame

    MANY_TARGETS = 8        # room in so many queues is found within any turn: some may need another file, 1 ms each


cdef inline int fault(event_t *e, bint hard, uint16_t code, const char *text, uint32_t method) noexcept nogil:
    e.hard = hard
    e.code = code
    e.text = text
    e.method = method
    return FAULT


cdef inline route_t *route_of(channel_t *ch, const uint8_t *method, uint32_t n) noexcept nogil:
    """The route of this basic.publish: the one of the channel's last publish if it fits, else one that Routes remembers.
    NULL: none is known."""
    cdef route_t *r = ch.route
    if LIKELY(r != NULL and ch.route_generation == ch.conn.routes_generation[0] and r.method_n == n
              and memcmp(r.method, method, n) == 0):
        return r
    with gil:
        return route_find(ch, method, n)


cdef route_t *route_find(channel_t *ch, const uint8_t *method, uint32_t n) noexcept:
    cdef Routes routes = (<Connection>ch.conn.owner)._routes
    cdef route_t *r = NULL
    if routes is None:
        return NULL
    r = routes.find(method, n, crc_update(0, method, n))
    if r != NULL:
        ch.route = r
        ch.route_generation = routes.generation
    return r


cdef int ask_for_route(event_t *e, const uint8_t *method, uint32_t method_n, const uint8_t *header, uint32_t header_n,
                       bint ask) noexcept nogil:
    """ROUTE, for this publish."""
    e.payload = method
    e.payload_n = method_n
    e.header = header
    e.header_n = header_n
    e.ask = ask
    return ROUTE


cdef inline void begin_message(message_t *m, channel_t *ch, const uint8_t *method, uint32_t method_n, const uint8_t *properties,
                               uint32_t properties_n, const uint8_t *body, uint64_t body_n, known_t *known) noexcept nogil:
    m.names = method + 6
    m.names_n = method_n - 7
    m.properties = properties
    m.properties_n = properties_n
    m.body = body
    m.body_n = body_n
    m.connection = ch.conn.number
    m.channel = ch.number
    m.publish_seq = ch.publishes + 1
    complete(m, known)


cdef int publish(channel_t *ch, const uint8_t *method, uint32_t method_n, const uint8_t *header, uint32_t header_n,
                 const uint8_t *body, uint64_t body_n, event_t *e) noexcept nogil:
    """Store a whole message in every queue it is routed to.  Returns DONE, ROUTE, FAULT, STALL or TURN.  After ROUTE, STALL and
    TURN the message is stored nowhere, or in some of its queues (scatter.pxi), and the caller comes with it again."""
    cdef message_t m
    cdef route_t *r
    cdef queue_t *q
    cdef known_t known
    cdef uint32_t stored = STORED
    if UNLIKELY(not properties_are_whole(header + 12, header + header_n, &known)):
        return fault(e, True, 502, b"malformed properties in content header of class 60", BASIC_PUBLISH)
    if UNLIKELY(ch.is_rare):
        if ch.scatter != NULL:
            return scatter_publish(ch, method, method_n, header, header_n, body, body_n, &known, e)
        return keep(ch, method, method_n, header, header_n, body, body_n, &known, e)
    r = route_of(ch, method, method_n)
    if UNLIKELY(r == NULL) or UNLIKELY(not r.is_common) or UNLIKELY(known.ask) or UNLIKELY(body_n >= LARGE_BODY):
        return publish_by_rare_route(ch, r, method, method_n, header, header_n, body, body_n, &known, e)
    begin_message(&m, ch, method, method_n, header + 12, header_n - 12, body, body_n, &known)
    q = r.targets[0]
    if LIKELY(is_plain(q, &m)):
        e.error = reserve(&q.store, align8(m.length))
        if LIKELY(e.error == 0):
            stored = store_in(&q.store, &m, ch.confirm)
        elif q.lost:                    # That was seen just now: it refuses.
            e.error = store_message(r.targets, 1, &m, ch.confirm, &stored, NULL)
    else:
        e.error = store_message(r.targets, 1, &m, ch.confirm, &stored, NULL)
    if UNLIKELY(e.error != 0):
        return STALL
    count_publish(ch, r, 1, body_n)
    if UNLIKELY(stored & UNADMITTED):
        return_unadmitted(ch, r.mandatory, &m, stored)
    if ch.confirm:
        note_confirm(ch, stored)
    return DONE


cdef int publish_by_rare_route(channel_t *ch, route_t *r, const uint8_t *method, uint32_t method_n, const uint8_t *header,
                               uint32_t header_n, const uint8_t *body, uint64_t body_n, known_t *known,
                               event_t *e) noexcept nogil:
    """The rest of publish() where more is to be asked or done than to store the message in one queue.  r NULL: no route is
    known."""
    cdef message_t m
    cdef uint32_t stored = STORED
    cdef int status
    if r != NULL and r.by_headers != NULL:
        r = route_by_headers(r, header + 12)
        if r != NULL and r.delays and due_in(header + 12, ch.conn.core.now // 1000000) <= ch.conn.core.now // 1000000:
            r = NULL
    if r == NULL or (known.ask and not r.once):
        return ask_for_route(e, method, method_n, header, header_n, known.ask)
    if r.properties == NULL:
        begin_message(&m, ch, method, method_n, header + 12, header_n - 12, body, body_n, known)
    else:
        properties_are_whole(r.properties, r.properties + r.properties_n, known)
        begin_message(&m, ch, method, method_n, r.properties, r.properties_n, body, body_n, known)
    if body_n >= LARGE_BODY and ch.content != NULL and ch.content.large != NULL \
            and ch.content.large.body_at + body_n == HEADER + <uint64_t>m.length:
        m.large = ch.content.large
    if m.large != NULL:
        if r.answer == NULL and not large_has_copies(m.large, r.targets, r.targets_n, m.priority, ch.conn.core.work_ns):
            return TURN
    elif UNLIKELY(is_much(r.targets_n, &m)) and r.answer == NULL and not r.checks_keys and not r.immediate \
            and ch.conn.core.work_ns != NEVER:
        return scatter_begin(ch, r, &m, e)
    elif r.targets_n > MANY_TARGETS and not reserve_in_many(r.targets, r.targets_n, &m, ch.conn.core.work_ns):
        return TURN
    if r.answer != NULL:
        return publish_with_participants(ch, r, &m, e)
    if r.checks_keys:
        status = publish_unless_known(ch, r, &m, header + 12, e)
        return status if status != ROUTE else ask_for_route(e, method, method_n, header, header_n, known.ask)
    if not r.immediate or can_deliver_to_one(r.targets, r.targets_n):
        e.error = store_message(r.targets, r.targets_n, &m, ch.confirm, &stored, NULL)
        if UNLIKELY(e.error != 0):
            return STALL
    finish_publish(ch, r, &m, r.targets_n, stored)
    if r.targets_n == 0 and r.mandatory:
        write_return(ch, &m, 312, b"\x08NO_ROUTE")
    if r.targets_n == 0:
        note_unroutable(ch.conn.core, r.mandatory)
    if r.once:
        ch.route = NULL
    return DONE


cdef int keep(channel_t *ch, const uint8_t *method, uint32_t method_n, const uint8_t *header, uint32_t header_n,
              const uint8_t *body, uint64_t body_n, known_t *known, event_t *e) noexcept nogil:
    """publish() on a transactional channel.  DONE: the message is kept.  CONTENT: the session must take it, and all that
    is kept before it."""
    cdef route_t *r
    ask_for_route(e, method, method_n, header, header_n, known.ask)
    e.body = body
    e.body_n = body_n
    if UNLIKELY(not ch.keeps or known.ask):
        return CONTENT
    r = route_of(ch, method, method_n)
    if UNLIKELY(r == NULL):
        return ROUTE
    if UNLIKELY(r.once):
        ch.route = NULL
        return CONTENT
    if UNLIKELY(r.answer != NULL or r.properties != NULL or r.by_headers != NULL or r.checks_keys):
        return CONTENT
    if UNLIKELY(body_n >= LARGE_BODY) and ch.kept == NULL and ch.content != NULL and ch.content.large != NULL:
        if not keep_message(ch, method, method_n, header + 12, header_n - 12, body, 0):
            return CONTENT
        keep_large(ch.kept, ch.content.large)
        ch.content.large = NULL         # The content ends with this call.
        return DONE
    return DONE if keep_message(ch, method, method_n, header + 12, header_n - 12, body, body_n) else CONTENT


cdef inline void count_publish(channel_t *ch, route_t *r, uint32_t queues_n, uint64_t body_n) noexcept nogil:
    ch.publishes += 1
    ch.conn.publishes = ch.conn.core.alarms
    if r.tally != NULL:
        r.tally.published += 1
        r.tally.routed += queues_n
    if UNLIKELY(ch.conn.core.count_figures):
        note_size(ch.conn.core, body_n)


cdef inline void note_confirm(channel_t *ch, uint32_t stored) noexcept nogil:
    """Note the confirm that the publish just counted needs."""
    mark_confirm_dirty(ch)
    if UNLIKELY(stored & REFUSED):
        add_nack(ch)
    elif stored & WAITS:
        ch.sync_tag = ch.publishes


cdef void return_unadmitted(channel_t *ch, bint mandatory, message_t *m, uint32_t stored) noexcept nogil:
    """A queue does not take the message because of what it is: one that is mandatory, and that no other queue has taken, goes
    back to its publisher."""
    if mandatory and not stored & TAKEN:
        write_return(ch, m, 312, b"\x1aNO_ROUTE: no message group")


cdef void finish_publish(channel_t *ch, route_t *r, message_t *m, uint32_t queues_n, uint32_t stored) noexcept nogil:
    """End a publish: count it, note the confirm that it needs, and return the message to its publisher if it was immediate
    and no queue would hand it out at once, or mandatory and has no place in any queue."""
    count_publish(ch, r, queues_n, m.body_n)
    if r.immediate and not stored & (TAKEN | REFUSED) and queues_n:
        write_return(ch, m, 313, b"\x0cNO_CONSUMERS")
    elif UNLIKELY(stored & UNADMITTED):
        return_unadmitted(ch, r.mandatory, m, stored)
    if ch.confirm:
        note_confirm(ch, stored)


cdef int scatter_begin(channel_t *ch, route_t *r, message_t *m, event_t *e) noexcept nogil:
    """Begin to store m in many queues, one part after the other.  r: its route, which is not needed any more."""
    ch.scatter = scatter_new(r)
    if ch.scatter == NULL:
        e.error = ENOMEM
        return STALL
    ch.is_rare = True
    if r.tally != NULL:
        r.tally.published += 1
        r.tally.routed += r.targets_n
    ch.route = NULL
    return scatter_on(ch, m, e)


cdef int scatter_publish(channel_t *ch, const uint8_t *method, uint32_t method_n, const uint8_t *header, uint32_t header_n,
                         const uint8_t *body, uint64_t body_n, known_t *known, event_t *e) noexcept nogil:
    """publish() for the message that is in some of its queues already."""
    cdef message_t m
    cdef route_t *r = &ch.scatter.route
    if r.properties == NULL:
        begin_message(&m, ch, method, method_n, header + 12, header_n - 12, body, body_n, known)
    else:
        properties_are_whole(r.properties, r.properties + r.properties_n, known)
        begin_message(&m, ch, method, method_n, r.properties, r.properties_n, body, body_n, known)
    return scatter_on(ch, &m, e)


cdef int scatter_on(channel_t *ch, message_t *m, event_t *e) noexcept nogil:
    cdef scatter_t *s = ch.scatter
    e.error = scatter_turn(ch.conn.core, s, m, ch.confirm)
    if e.error != 0:
        return STALL
    if s.next < s.route.targets_n:
        return TURN
    finish_publish(ch, &s.route, m, s.route.targets_n, s.stored)
    scatter_end(ch)
    return DONE


cdef int publish_unless_known(channel_t *ch, route_t *r, message_t *m, const uint8_t *properties, event_t *e) noexcept nogil:
    """The rest of publish() where duplicates are looked for.  properties: as they came.  Returns DONE, STALL, or ROUTE for a
    key that is not plain."""
    cdef check_t k
    cdef core_t *core = ch.conn.core
    cdef uint32_t i, stored = STORED
    cdef bint took = False, lasting = False, knew
    cdef int64_t began
    cdef int err = check_keys(&k, r, m, properties, core.now // 1000000)
    if err == NOT_PLAIN:
        return ROUTE
    if err == 0:
        if k.has_key:
            m.keys = &k.keys
        if UNLIKELY(r.learner != NULL and needs_room(&k, r.learner)):
            began = monotonic_ns()
            err = find_room_for_key(r.learner)
            core.spent += monotonic_ns() - began
        if UNLIKELY(err != 0):
            pass
        elif not r.immediate or can_deliver_to_one(k.left, k.left_n):
            err = store_message(k.left, k.left_n, m, ch.confirm, &stored, k.took)
        m.keys = NULL           # k ends with this call.
        if err:
            check_free(&k)
    if UNLIKELY(err != 0):
        e.error = err
        return STALL
    knew = k.exchange_knows or k.left_n < r.targets_n
    if knew and m.flags & PERSISTENT and core.sync:
        stored |= WAITS     # A duplicate's confirm promises the first message, which may not be on disk yet.
    if knew:
        stored |= count_duplicates(&k, r)
    finish_publish(ch, r, m, k.left_n, stored)
    if UNLIKELY(k.left_n == 0 and not knew):
        note_unroutable(core, r.mandatory)
        if r.mandatory:
            write_return(ch, m, 312, b"\x08NO_ROUTE")
    if UNLIKELY(knew or k.replaced) and asks_for_more(&k, r):
        began = monotonic_ns()
        write_stages(core)
        with gil:
            act_on_duplicates(&k, r, m)
        core.spent += monotonic_ns() - began
    if k.keys.of_exchange and not k.exchange_knows:
        for i in range(k.left_n):
            if k.took[i]:
                took = True
                lasting = lasting or k.left[i].durable
        if took or (k.left_n == 0 and knew):
            learn_key(r.learner, core, k.keys.of_exchange, k.keys.ttl, lasting and m.flags & PERSISTENT)
            if r.learner.has_log and (k.keys.n or r.targets_n > 1):
                # A record in a queue with a window carries the queue's key alone.  And of several queues, kill -9 may leave
                # the message in some: of one message at most.
                began = monotonic_ns()
                write_stages(core)
                with gil:
                    tell_learnt(core)
                ch.conn.core.spent += monotonic_ns() - began
    check_free(&k)
    if UNLIKELY(r.once):
        ch.route = NULL
    return DONE


cdef int publish_with_participants(channel_t *ch, route_t *r, message_t *m, event_t *e) noexcept nogil:
    """The rest of publish() where features take part in it.  If the publish stalls, its next attempt asks them again."""
    cdef int64_t began = monotonic_ns()
    with gil:
        e.error = store_with_participants(ch, r, m)
    ch.conn.core.spent += monotonic_ns() - began
    if UNLIKELY(e.error != 0):
        return STALL
    if r.once:
        ch.route = NULL
    return DONE


cdef int store_with_participants(channel_t *ch, route_t *r, message_t *m) noexcept:
    """Ask the participants of a publish, store the message in the queues that they leave, and tell the participants.
    0, or the errno."""
    cdef Answer answer = <Answer>r.answer
    cdef list left = []
    cdef int err
    if answer.keys is not None and answer.keys.on_body is not None:
        answer.keys.on_body((<const char *>m.body)[:m.body_n])
    err = ask_participants(answer, left)
    if err:
        return err
    if answer.keys is not None:
        m.keys = &answer.keys.k
    cdef tuple queues = left[0] if left else answer.queues
    cdef uint32_t i, n = <uint32_t>len(queues), stored = STORED
    cdef queue_t **targets = <queue_t **>calloc(n + 1, sizeof(queue_t *) + 1)
    cdef uint8_t *took = <uint8_t *>(targets + n)
    if targets == NULL:
        return ENOMEM
    for i in range(n):
        targets[i] = &(<Queue>queues[i]).q
    if not r.immediate or can_deliver_to_one(targets, n):
        err = store_message(targets, n, m, ch.confirm, &stored, took)
    if err == 0:
        if answer.keys is not None and m.flags & PERSISTENT and ch.conn.core.sync and answer.counts_as_routed:
            stored |= WAITS     # A duplicate's confirm promises the first message, which may not be on disk yet.
        if answer.keys is not None and answer.refuses:
            stored |= REFUSED
        finish_publish(ch, r, m, n, stored)
        if n == 0 and not answer.counts_as_routed:
            note_unroutable(ch.conn.core, r.mandatory)
            if r.mandatory:
                write_return(ch, m, 312, b"\x08NO_ROUTE")
        if answer.keys is not None and answer.keys.k.of_exchange:
            write_stages(ch.conn.core)  # A participant enters the key in the exchange's window: the record must be in
                                        # its file before that.
        tell_participants(answer, message_object(m), <Channel>ch.owner, pick_stored(queues, took))
    free(targets)
    return err


cdef Message message_object(message_t *m):
    return Message((<const char *>m.names)[1:1 + m.names[0]], routing_key_of(m), (<const char *>m.properties)[:m.properties_n],
                   (<const char *>m.body)[:m.body_n])


cdef bint can_deliver_to_one(queue_t **targets, uint32_t n) noexcept nogil:
    """Whether at least one queue would hand the message out at once (basic.publish, immediate)."""
    cdef uint32_t i
    for i in range(n):
        if targets[i].ready == 0 and can_deliver(targets[i]):
            return True
    return False


cdef void write_return(channel_t *ch, message_t *m, uint16_t code, const char *text) noexcept nogil:
    """Write basic.return (AMQP 0-9-1, 1.8.3.9) with the message; its confirm follows later.  text: a short string."""
    cdef conn_t *conn = ch.conn
    cdef uint32_t text_n = 1 + <uint8_t>text[0]
    cdef uint8_t *p = out_room(conn, 15 + text_n + m.names_n + content_room(conn, m.properties_n, m.body_n))
    cdef uint8_t *start = p
    if p == NULL:
        return
    p[0] = FRAME_METHOD
    put_be16(p + 1, ch.number)
    put_be32(p + 3, 6 + text_n + m.names_n)
    put_be32(p + 7, BASIC_RETURN)
    put_be16(p + 11, code)
    memcpy(p + 13, text, text_n)
    p += 13 + text_n
    memcpy(p, m.names, m.names_n)
    p += m.names_n
    p[0] = FRAME_END
    p += 1
    p += write_content(conn, ch.number, p, m.properties, m.properties_n, m.body, m.body_n)
    conn.out_n += p - start

# Writes octets out: a connection's output buffer, and the frames of a message, copied from its segment.


# ---- output
cdef enum:
    OUT_FULL = 262144               # octets: send them before delivering more
    OUT_MOST = 4 * OUT_FULL         # octets that wait: no more of the client's own octets are worked on
    LARGE_RECORD = 32768            # octets: from here on a body is sent from its segment, and not copied
    FRAMES_A_CALL = 32              # that one sendmsg() takes from a segment
    HEADERS_ROOM = 512              # octets that added_headers() writes at most


cdef inline void mark_out_dirty(conn_t *c) noexcept nogil:
    if not c.is_out_dirty:
        c.is_out_dirty = True
        c.out_next = c.core.out_dirty
        c.core.out_dirty = c


cdef int out_make_room(conn_t *c, size_t n) noexcept nogil:
    cdef core_t *core = c.core
    cdef size_t want = c.out_n + n
    cdef uint8_t *p
    if c.out == NULL and want <= OUT_ROOM:
        if core.pool_n:
            core.pool_n -= 1
            c.out = core.pool[core.pool_n]
        else:
            c.out = <uint8_t *>malloc(OUT_ROOM)
        if c.out == NULL:
            return ENOMEM
        c.out_capacity = OUT_ROOM
        return 0
    want += want >> 1
    p = <uint8_t *>realloc(c.out, want)
    if p == NULL:
        return ENOMEM
    c.out = p
    c.out_capacity = want
    return 0


cdef inline uint8_t *out_room(conn_t *c, size_t n) noexcept nogil:
    """Where n octets may be written; the caller adds them to out_n.  NULL: no memory."""
    if UNLIKELY(c.out_capacity - c.out_n < n) and out_make_room(c, n) != 0:
        return NULL
    mark_out_dirty(c)
    return c.out + c.out_n


cdef void out_release(conn_t *c) noexcept nogil:
    cdef core_t *core = c.core
    c.out_n = 0
    if c.out == NULL:
        return
    if c.out_capacity == OUT_ROOM and core.pool_n < POOL_MOST:
        core.pool[core.pool_n] = c.out
        core.pool_n += 1
    else:
        free(c.out)
    c.out = NULL
    c.out_capacity = 0


cdef void take_back_output(conn_t *c, size_t before) noexcept nogil:
    """Zeros were written as if they were a message: the client must not read them.  before: conn_t.out_n before that.  If the
    output has moved since, the turn cuts the connection off."""
    if c.out_n < before:
        before = 0
        c.gone = True
        c.core.lost = True
    c.out_n = before


cdef void hand_to_transport(conn_t *c, size_t done) noexcept:
    cdef bytes rest = (<const char *>c.out)[done:c.out_n]
    cdef Connection connection = <Connection>c.owner
    out_release(c)
    try:
        connection.transport.write(rest)
        end_behind_a_closing_transport(c)
    except Exception:
        c.gone = True       # The loop will call connection_lost().


cdef void end_behind_a_closing_transport(conn_t *c):
    """A transport that closes drops what it is given, unless it still has octets to send.  Nothing may follow then, because the socket
    has taken the octets before those."""
    cdef Connection connection = <Connection>c.owner
    if c.fd >= 0 and connection.transport.is_closing():
        connection.pause_writing()


cdef void out_flush(conn_t *c) noexcept nogil:
    """Send the output, unless hold() or a full transport makes it wait.  The transport gets the octets that the socket
    does not take."""
    cdef ssize_t n = 0
    if c.out_n == 0 or c.held or c.paused or c.gone:
        return
    if c.fd >= 0:
        n = send(c.fd, c.out, c.out_n, MSG_DONTWAIT | MSG_NOSIGNAL)
        if n < 0:
            n = 0           # The socket is full, or has an error that the transport will meet too.
    c.sent += c.out_n
    if LIKELY(<size_t>n == c.out_n):
        out_release(c)
        return
    with gil:
        hand_to_transport(c, n)


cdef inline bint is_output_full(conn_t *c) noexcept nogil:
    """Whether much output waits for a client that does not read, or for a sync."""
    return UNLIKELY(c.out_n > OUT_MOST) and (c.paused or c.held)


# ---- a message


cdef inline void write_body_frame(uint16_t channel, uint8_t *p, const uint8_t *body, uint32_t n) noexcept nogil:
    """Write a body frame of n + 8 octets at p."""
    p[0] = FRAME_BODY
    put_be16(p + 1, channel)
    put_be32(p + 3, n)
    copy_few(p + 7, body, n)
    p[7 + n] = FRAME_END


cdef uint64_t write_long_body(uint16_t channel, uint8_t *p, const uint8_t *body, uint64_t body_n, uint32_t most) noexcept nogil:
    """write_body() where one frame has `most` octets of a body that does not fit in one."""
    cdef uint8_t *start = p
    cdef uint32_t n
    while body_n:
        n = <uint32_t>min(body_n, <uint64_t>most)
        write_body_frame(channel, p, body, n)
        p += n + 8
        body += n
        body_n -= n
    return p - start


cdef inline uint64_t write_body(conn_t *conn, uint16_t channel, uint8_t *p, const uint8_t *body,
                                uint64_t body_n) noexcept nogil:
    """Write a body, if it has octets, as frames at p, which has room for them.  Returns how many octets."""
    if UNLIKELY(body_n > conn.frame_max - 8):
        return write_long_body(channel, p, body, body_n, conn.frame_max - 8)
    if body_n == 0:
        return 0
    write_body_frame(channel, p, body, <uint32_t>body_n)
    return body_n + 8


cdef inline uint64_t write_header(uint16_t channel, uint8_t *p, const uint8_t *properties, uint32_t properties_n,
                                  uint64_t body_n) noexcept nogil:
    """Write a content header frame at p, which has room for it.  Returns how many octets."""
    p[0] = FRAME_HEADER
    put_be16(p + 1, channel)
    put_be32(p + 3, 12 + properties_n)
    put_be32(p + 7, CLASS_BASIC << 16)
    put_be64(p + 11, body_n)
    copy_few(p + 19, properties, properties_n)
    p[19 + properties_n] = FRAME_END
    return 20 + properties_n


cdef inline uint64_t write_content(conn_t *conn, uint16_t channel, uint8_t *p, const uint8_t *properties,
                                   uint32_t properties_n, const uint8_t *body, uint64_t body_n) noexcept nogil:
    """Write content header and body frames at p, which has room for them.  Returns how many octets."""
    cdef uint64_t n = write_header(channel, p, properties, properties_n, body_n)
    return n + write_body(conn, channel, p + n, body, body_n)


# ---- a large body, sent from its segment
#
# One sendmsg() takes the output up to the content header, and then for each frame its head and its part of the body.
#
#    | output ... content header | head | body ... | end, head | body ... | ... | end |

cdef inline bint may_send(conn_t *c, place_t *t) noexcept nogil:
    """Whether t is large, and octets may go to the socket now, behind the output."""
    return UNLIKELY(length_of(t.seg.map + t.position) >= LARGE_RECORD) and c.fd >= 0 and not c.held and not c.paused \
        and not c.gone


cdef inline uint64_t framed(conn_t *c, uint64_t body_n) noexcept nogil:
    """How many octets the frames of a body have."""
    cdef uint32_t most = c.frame_max - 8
    return body_n + 8 * ((body_n + most - 1) // most)


cdef void hand_body_to_transport(conn_t *c, uint16_t channel, const uint8_t *body, uint64_t body_n, size_t done) noexcept:
    """The socket took `done` octets of the output and the body's frames: the transport gets the others."""
    cdef Connection connection = <Connection>c.owner
    cdef bytes octets
    cdef uint8_t *p
    try:
        octets = PyBytes_FromStringAndSize(NULL, c.out_n + framed(c, body_n))
        p = <uint8_t *>PyBytes_AS_STRING(octets)
        memcpy(p, c.out, c.out_n)
        write_body(c, channel, p + c.out_n, body, body_n)
        out_release(c)
        connection.transport.write(memoryview(octets)[done:])
        end_behind_a_closing_transport(c)
    except Exception:
        out_release(c)
        c.gone = True
        connection.transport.abort()


cdef size_t lay_out_frames(conn_t *c, uint16_t channel, const uint8_t *body, uint64_t body_n, uint64_t *at,
                           uint8_t *heads, iovec_t *parts, int *count) noexcept nogil:
    """Add the frames of a body, from octet *at on, to the parts of one sendmsg(); heads: 8 octets for each of
    FRAMES_A_CALL, and one more.  Returns how many octets the frames have."""
    cdef uint32_t most = c.frame_max - 8
    cdef uint32_t n
    cdef uint8_t *head = heads
    cdef size_t octets = 0
    cdef int frames = 0
    while at[0] < body_n and frames < FRAMES_A_CALL:
        n = <uint32_t>min(body_n - at[0], <uint64_t>most)
        head[0] = FRAME_END         # of the frame before
        head[1] = FRAME_BODY
        put_be16(head + 2, channel)
        put_be32(head + 4, n)
        parts[count[0]].iov_base = head if frames else head + 1
        parts[count[0]].iov_len = 8 if frames else 7
        parts[count[0] + 1].iov_base = <void *>(body + at[0])
        parts[count[0] + 1].iov_len = n
        count[0] += 2
        octets += n + 8
        at[0] += n
        frames += 1
        head += 8
    head[0] = FRAME_END
    parts[count[0]].iov_base = head
    parts[count[0]].iov_len = 1
    count[0] += 1
    return octets


cdef void send_with_body(conn_t *c, uint16_t channel, const uint8_t *body, uint64_t body_n) noexcept nogil:
    """Send the output, which ends with the content header of this body, and then the body's frames.  Without a body the
    output waits for the end of the turn, as always."""
    cdef uint8_t heads[8 * (FRAMES_A_CALL + 1)]
    cdef iovec_t parts[2 * FRAMES_A_CALL + 2]
    cdef msghdr_t message
    cdef uint64_t at = 0
    cdef size_t octets, done = 0
    cdef ssize_t n
    cdef int count
    memset(&message, 0, sizeof(message))
    message.msg_iov = parts
    if body_n == 0 or c.gone:
        return
    c.sent += c.out_n + framed(c, body_n)
    while at < body_n:
        count = 0
        octets = 0
        if at == 0:
            parts[0].iov_base = c.out
            parts[0].iov_len = octets = c.out_n
            count = 1
        octets += lay_out_frames(c, channel, body, body_n, &at, heads, parts, &count)
        message.msg_iovlen = count
        n = sendmsg(c.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
        done += n if n > 0 else 0
        if n != <ssize_t>octets:        # The socket is full, or has an error that the transport will meet too.
            with gil:
                hand_body_to_transport(c, channel, body, body_n, done)
            return
    out_release(c)


# ---- headers that a delivery adds, and the whole message

cdef uint32_t added_headers(place_t *t, uint8_t *room, bint numbers) noexcept nogil:
    """Write the headers that a delivery adds, items of a table, into `room` of HEADERS_ROOM octets.  Returns how many.

    As RabbitMQ's quorum queues have them: x-delivery-count (failed deliveries) and x-acquired-count (times handed out
    before), which are one number here.  Those of the queue's gate.  And with `numbers` x-message-seq and x-message-ns: no other
    message of a queue of this name ever has both, also after the queue was made again, or a power cut."""
    cdef rules_t *r = t.seg.queue.rules
    cdef const uint8_t *record = t.seg.map + t.position
    cdef uint32_t n = 0
    if numbers:
        memcpy(room, b"\x0dx-message-seql", 15)
        put_be64(room + 15, seq_of(record))
        memcpy(room + 23, b"\x0cx-message-nsl", 14)
        put_be64(room + 37, le64(record + R_TS))
        n = 45
    if r == NULL:
        return n
    if t.count and r.delivery_counts:
        memcpy(room + n, b"\x10x-delivery-countl", 18)
        put_be64(room + n + 18, t.count)
        memcpy(room + n + 26, b"\x10x-acquired-countl", 18)
        put_be64(room + n + 44, t.count)
        n += 52
    if t.flags & PLACE_REPLAYED:
        memcpy(room + n, b"\x0ax-replayedt\x01", 13)
        n += 13
    if r.gate != NULL:
        n += r.gate.headers(r.gate, t, room + n)
    ASSERT(n <= HEADERS_ROOM)
    return n


cdef uint64_t write_more_headers(conn_t *conn, uint16_t channel, uint8_t *p, const uint8_t *properties, uint32_t n,
                                 uint64_t body_n, place_t *t, bint numbers) noexcept nogil:
    """write_header() with added_headers().  Without them if they would make the header frame longer than frame_max."""
    cdef uint8_t *start = p
    cdef uint16_t flags = be16(properties)
    cdef uint32_t before = 2, table_n = 0, headers_n, added
    if flags & 1 << PROPERTY_CONTENT_TYPE:
        before += 1 + properties[before]
    if flags & 1 << PROPERTY_CONTENT_ENCODING:
        before += 1 + properties[before]
    if flags & 1 << PROPERTY_HEADERS:
        table_n = be32(properties + before)
    headers_n = added_headers(t, p + 23 + before + table_n, numbers)        # where they belong
    added = headers_n if flags & 1 << PROPERTY_HEADERS else headers_n + 4
    if headers_n == 0 or n + headers_n + 4 + 12 > conn.frame_max - 8:
        return write_header(channel, p, properties, n, body_n)
    p[0] = FRAME_HEADER
    put_be16(p + 1, channel)
    put_be32(p + 3, 12 + n + added)
    put_be32(p + 7, CLASS_BASIC << 16)
    put_be64(p + 11, body_n)
    put_be16(p + 19, flags | 1 << PROPERTY_HEADERS)
    copy_few(p + 21, properties + 2, before - 2)
    p += 19 + before
    put_be32(p, table_n + headers_n)
    p += 4
    if flags & 1 << PROPERTY_HEADERS:
        copy_few(p, properties + before + 4, table_n)
        p += table_n
        before += 4 + table_n
    p += headers_n
    copy_few(p, properties + before, n - before)
    p += n - before
    p[0] = FRAME_END
    return p + 1 - start


cdef inline size_t content_room(conn_t *conn, uint32_t properties_n, uint64_t body_n) noexcept nogil:
    cdef uint32_t most = conn.frame_max - 8
    cdef uint64_t room = 20 + properties_n + body_n + 8
    if UNLIKELY(body_n >= most):
        room += 8 * (body_n // most)    # Only for large bodies: a division takes as long as the rest of the method frame.
    return room


cdef inline bint adds_headers(place_t *t) noexcept nogil:
    cdef rules_t *r = t.seg.queue.rules
    return UNLIKELY(r != NULL) and ((t.count and r.delivery_counts) or t.flags & PLACE_REPLAYED
                                      or (r.gate != NULL and r.gate.tells))


cdef inline uint8_t *write_method(channel_t *ch, uint8_t *p, const uint8_t *prefix, uint32_t prefix_n, place_t *t,
                                  const uint8_t *names, uint32_t names_n, uint32_t tail_n, uint32_t tail) noexcept nogil:
    """Write the method frame of a delivery at p, which has room for it.  Returns where it ends.

    method frame   prefix: up to the delivery tag, its size still zero | ch.next_tag | redelivered | exchange | key
                   | tail, of tail_n octets, 0 or 4
    """
    copy_few(p, prefix, prefix_n)
    put_be32(p + 3, prefix_n + 2 + names_n + tail_n)
    p += prefix_n
    put_be64(p, ch.next_tag)
    p[8] = t.flags & PLACE_WAS_OUT
    copy_few(p + 9, names, names_n)
    p += 9 + names_n
    if tail_n:
        put_be32(p, tail)
        p += 4
    p[0] = FRAME_END
    return p + 1


cdef int64_t write_any_message(channel_t *ch, const uint8_t *prefix, uint32_t prefix_n, place_t *t, uint32_t tail_n,
                               uint32_t tail, bint sends, bint numbers) noexcept nogil:
    """write_message() for any record: not inlined.  sends: without the body, for which send_with_body() follows.  numbers: see
    added_headers()."""
    cdef conn_t *conn = ch.conn
    cdef const uint8_t *r = t.seg.map + t.position
    cdef const uint8_t *meta
    cdef uint32_t meta_n = meta_of(r, &meta)
    cdef uint32_t names_n = 1 + meta[0]
    cdef uint64_t body_n = octets_behind(r, meta, meta_n)
    cdef uint8_t *p
    if UNLIKELY(meta_n == 0):
        mark_lost(t.seg.queue)          # Zeros stand where a record stood, in the last page of a file that was cut off.
        return -1
    names_n += 1 + meta[names_n]
    p = out_room(conn, prefix_n + 14 + HEADERS_ROOM + tail_n + names_n
                 + content_room(conn, meta_n - names_n, 0 if sends else body_n))
    if p == NULL:
        return -1
    p = write_method(ch, p, prefix, prefix_n, t, meta, names_n, tail_n, tail)
    if numbers or adds_headers(t):
        p += write_more_headers(conn, ch.number, p, meta + names_n, meta_n - names_n, body_n, t, numbers)
    else:
        p += write_header(ch.number, p, meta + names_n, meta_n - names_n, body_n)
    if not sends:
        p += write_body(conn, ch.number, p, meta + meta_n, body_n)
    conn.out_n = p - conn.out
    ASSERT(conn.out_n <= conn.out_capacity)
    return <int64_t>body_n


cdef inline int64_t write_message(channel_t *ch, const uint8_t *prefix, uint32_t prefix_n, place_t *t, uint32_t tail_n,
                                  uint32_t tail) noexcept nogil:
    """Write a record as method and content into the connection's output; see write_method().  Returns the octets of its
    body; -1: no memory."""
    cdef conn_t *conn = ch.conn
    cdef const uint8_t *r = t.seg.map + t.position
    cdef const uint8_t *meta
    cdef const uint8_t *body
    cdef uint32_t meta_n = meta_of(r, &meta)
    cdef uint32_t names_n = 1 + meta[0]
    cdef uint64_t body_n
    cdef uint8_t *p
    cdef uint8_t *start
    cdef bint adds = adds_headers(t)
    if UNLIKELY(meta_n == 0):
        mark_lost(t.seg.queue)
        return -1
    names_n += 1 + meta[names_n]
    body = meta + meta_n
    body_n = octets_behind(r, meta, meta_n)
    start = out_room(conn, prefix_n + 10 + tail_n + (4 + HEADERS_ROOM if adds else 0) + names_n
                     + content_room(conn, meta_n - names_n, body_n))
    if UNLIKELY(start == NULL):
        return -1
    p = write_method(ch, start, prefix, prefix_n, t, meta, names_n, tail_n, tail)
    if adds:
        p += write_more_headers(conn, ch.number, p, meta + names_n, meta_n - names_n, body_n, t, False)
        p += write_body(conn, ch.number, p, body, body_n)
    else:
        p += write_content(conn, ch.number, p, meta + names_n, meta_n - names_n, body, body_n)
    conn.out_n += p - start
    ASSERT(conn.out_n <= conn.out_capacity)
    return <int64_t>body_n

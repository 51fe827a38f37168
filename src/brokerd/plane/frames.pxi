# Cuts a client's octets into frames and handles each, until the chunk ends or the control plane must act.
#
#    0      1         3        7              7+size
#    +------+---------+--------+--------------+------+
#    | type | channel |  size  |   payload    | 0xCE |
#    +------+---------+--------+--------------+------+
#
# A publish that lies whole in the buffer is handled at once (parse_publish); all else goes frame by frame.  A long body frame
# is used as it comes (begin_body), so that its octets are not put by and fetched again.

cdef enum:
    BODY_PART = 4096            # octets of a body frame that are worth using before the others are there
    LOOK_OCTETS = 16384         # after which the clock is asked how long they took


cdef inline channel_t *channel_at(conn_t *conn, uint16_t number) noexcept nogil:
    return conn.channels[number] if number < conn.channels_n else NULL


cdef inline int parse_publish(conn_t *conn, channel_t *ch, const uint8_t *p, const uint8_t *end, uint32_t size,
                         size_t *used, event_t *e) noexcept nogil:
    """Publish the message with its method frame at p, if its header frame and one whole body frame (none for an empty
    body) follow in the buffer.  Else MORE."""
    cdef const uint8_t *h = p + 8 + size
    cdef const uint8_t *b
    cdef uint64_t body_n
    cdef uint32_t header_n
    cdef uint16_t channel = le16(p + 1)
    cdef int status
    if end - h < 22 or h[0] != FRAME_HEADER or le16(h + 1) != channel:
        return MORE
    header_n = be32(h + 3)
    if header_n > conn.frame_max or header_n < 14 or <size_t>(end - h) < header_n + 8 or h[7 + header_n] != FRAME_END:
        return MORE
    body_n = be64(h + 11)
    b = h + 8 + header_n
    if body_n == 0:
        used[0] = b - p
    else:
        if body_n > conn.frame_max or <size_t>(end - b) < body_n + 8 or b[0] != FRAME_BODY or le16(b + 1) != channel \
                or be32(b + 3) != body_n or b[7 + body_n] != FRAME_END:
            return MORE
        used[0] = b - p + 8 + body_n
        b += 7
    status = check_header(ch, h + 7, header_n, e)
    if status == DONE:
        status = publish(ch, p + 7, size, h + 7, header_n, b, body_n, e)
    return status


cdef int parse_method(conn_t *conn, channel_t *ch, const uint8_t *p, uint32_t size, event_t *e) noexcept nogil:
    """Handle a whole method frame on an open channel that expects no content."""
    cdef uint32_t index = be32(p)
    if UNLIKELY(ch.tx) and index != BASIC_PUBLISH:
        return COLD
    if index == BASIC_ACK:
        if size != 13:
            return fault(e, True, 502, b"basic.ack is not of the right length", index)
        if p[12] & 1 and is_settled_in_pieces(ch, be64(p + 4)):
            return DONE if settle_piece(ch, be64(p + 4), ACKED, 0) else TURN
        if not tag_settle(ch, be64(p + 4), p[12] & 1, ACKED, 0):
            e.number = be64(p + 4)
            return fault(e, False, 406, b"unknown delivery tag %llu", index)
    elif index == BASIC_NACK:
        if size != 13:
            return fault(e, True, 502, b"basic.nack is not of the right length", index)
        if p[12] & 1 and is_settled_in_pieces(ch, be64(p + 4)):
            return DONE if settle_piece(ch, be64(p + 4), REJECTED, CAUSE_NACK if p[12] >> 1 & 1 else 0) else TURN
        if not tag_settle(ch, be64(p + 4), p[12] & 1, REJECTED, CAUSE_NACK if p[12] >> 1 & 1 else 0):
            e.number = be64(p + 4)
            return fault(e, False, 406, b"unknown delivery tag %llu", index)
    elif index == BASIC_REJECT:
        if size != 13:
            return fault(e, True, 502, b"basic.reject is not of the right length", index)
        if not tag_settle(ch, be64(p + 4), False, REJECTED, CAUSE_REJECT if p[12] & 1 else 0):
            e.number = be64(p + 4)
            return fault(e, False, 406, b"unknown delivery tag %llu", index)
    elif index == BASIC_PUBLISH:
        return content_begin(ch, p, size, e)
    else:
        return COLD
    return DONE


cdef int fault_unframed(conn_t *conn, size_t rest, size_t *used, event_t *e, const char *text, uint8_t kind) noexcept nogil:
    """The fault for octets that are no frame.  Nothing says where the next frame begins, so the plane drops all further
    octets of this connection."""
    used[0] = rest
    if conn.discard:
        conn.deaf = True
        return DONE
    conn.deaf = True
    return fault(e, True, 501, text, kind)


cdef int begin_body(conn_t *conn, const uint8_t *p, const uint8_t *end, uint32_t size, size_t *used, event_t *e) noexcept nogil:
    """Use the first octets of the body frame at p, which is not whole yet.  MORE: the caller waits for the whole frame,
    because it is short, or because its channel does not expect it."""
    cdef channel_t *ch = channel_at(conn, e.channel)
    cdef uint32_t n = <uint32_t>(end - p) - 7
    if n < BODY_PART or n >= size or ch == NULL or ch.state != 2 or ch.closing or conn.discard \
            or size > ch.content.body_size - ch.content.body_n or content_add(ch, p + 7, n) != 0:
        return MORE
    ch.content.body_n += n
    conn.body_channel = e.channel
    conn.body_frame_n = size
    conn.body_left = size - n + 1
    used[0] = end - p
    return DONE


cdef int continue_body(conn_t *conn, const uint8_t *p, const uint8_t *end, size_t *used, event_t *e) noexcept nogil:
    """Use more octets of the frame that begin_body() began.  The broker may have closed its channel meanwhile: then this
    drops them."""
    cdef channel_t *ch = channel_at(conn, conn.body_channel)
    cdef bint wanted = ch != NULL and ch.state == 2 and not ch.closing and not conn.discard
    cdef uint32_t n = <uint32_t>min(<size_t>(end - p), <size_t>(conn.body_left - 1))
    cdef int err
    if p == end:
        return MORE
    e.channel = conn.body_channel
    used[0] = n
    conn.body_left -= n
    if wanted and n:
        err = content_add(ch, p, n)
        if err:
            return give_up_content(ch, err, e)
        ch.content.body_n += n
    if <size_t>(end - p) == n:
        return DONE
    used[0] = n + 1
    conn.body_left = 0
    if UNLIKELY(p[n] != FRAME_END):
        e.number = p[n]
        e.payload_n = conn.body_frame_n if wanted else 0
        if wanted:
            e.payload = content_of_body(ch.content)
            if e.payload == NULL:
                e.payload_n = 0
            e.payload += ch.content.body_n - e.payload_n
        return fault_unframed(conn, end - p, used, e, b"type %u, %b: {invalid_frame_end_marker,%llu}", FRAME_BODY)
    if wanted and ch.content.body_n == ch.content.body_size:
        return content_whole(ch, e)
    return DONE


cdef int parse_frame(conn_t *conn, const uint8_t *p, const uint8_t *end, size_t *used, event_t *e) noexcept nogil:
    """Handle the frame at p, or the whole publish that begins there.  The caller goes on after *used octets.  After MORE,
    ROUTE, STALL and TURN it comes with the same octets again, unless conn.pending has the content."""
    cdef uint32_t size
    cdef uint8_t kind
    cdef channel_t *ch
    cdef int status
    if end - p < 8:
        return MORE
    kind = p[0]
    size = be32(p + 3)
    e.channel = be16(p + 1)
    # Up to 8 octets more than was agreed on, because clients differ in what they count (RabbitMQ).
    if UNLIKELY(size > conn.frame_max):
        e.number = size
        e.limit = conn.frame_max - 8
        return fault_unframed(conn, end - p, used, e, b"type %u, all octets = <<>>: {frame_too_large,%llu,%llu}", kind)
    if <size_t>(end - p) < <size_t>size + 8:
        return begin_body(conn, p, end, size, used, e) if kind == FRAME_BODY else MORE
    used[0] = size + 8
    e.payload = p + 7
    e.payload_n = size
    if UNLIKELY(p[7 + size] != FRAME_END):
        e.number = p[7 + size]
        return fault_unframed(conn, end - p, used, e, b"type %u, %b: {invalid_frame_end_marker,%llu}", kind)
    ch = channel_at(conn, e.channel)
    if LIKELY(kind == FRAME_METHOD):
        if UNLIKELY(size < 4):
            if conn.discard:
                return DONE
            return fault_unframed(conn, end - p, used, e, b"type %u, %b: unknown_frame", kind)
        if UNLIKELY(conn.discard):
            return COLD if e.channel == 0 and (be32(p + 7) == (CONNECTION_CLOSE) or be32(p + 7) == (CONNECTION_CLOSE_OK)) else DONE
        if UNLIKELY(ch == NULL):
            return COLD
        if UNLIKELY(ch.closing):
            return COLD if be32(p + 7) == (CHANNEL_CLOSE) or be32(p + 7) == (CHANNEL_CLOSE_OK) else DONE
        if UNLIKELY(ch.state):
            # The fault names basic.publish, which is not whole, and not the method that came instead (RabbitMQ).
            if ch.state == 1:
                return fault(e, True, 505,
                             b"expected content header for class 60, got non content header frame instead", BASIC_PUBLISH)
            return fault(e, True, 505, b"expected content body, got non content body frame instead", BASIC_PUBLISH)
        if be32(p + 7) == BASIC_PUBLISH:
            status = parse_publish(conn, ch, p, end, size, used, e)
            if LIKELY(status == DONE):
                return DONE
            if status != MORE:
                return status
            used[0] = size + 8
        return parse_method(conn, ch, p + 7, size, e)
    if kind == FRAME_HEARTBEAT:
        if size or e.channel:
            return fault_unframed(conn, end - p, used, e, b"heartbeat frames are empty and on channel 0", kind)
        return DONE
    if UNLIKELY(kind != FRAME_HEADER and kind != FRAME_BODY):
        return fault_unframed(conn, end - p, used, e, b"type %u, %b: unknown_frame", kind)
    if conn.discard:
        return DONE
    if UNLIKELY(ch == NULL):
        if e.channel == 0:
            return fault(e, True, 505, b"expected method frame on channel 0, got content frame instead", 0)
        return fault(e, True, 504, b"expected 'channel.open'", 0)
    if UNLIKELY(ch.closing):
        return DONE
    return content_header(ch, p + 7, size, e) if kind == FRAME_HEADER else content_body(ch, p + 7, size, e)


cdef int parse(conn_t *conn, const uint8_t *p, const uint8_t *end, size_t *done, event_t *e) noexcept nogil:
    """Handle frames until one needs the control plane, or no whole frame is left.  *done: how many octets were used."""
    cdef const uint8_t *start = p
    cdef const uint8_t *look = p + LOOK_OCTETS
    cdef int64_t began = monotonic_ns() - conn.core.spent if <size_t>(end - p) > LOOK_OCTETS else 0
    cdef int64_t half = 0       # of the processor's clock, when half of a turn was over
    cdef size_t used = 0
    cdef int status
    ahead_begin(p, end)
    if UNLIKELY(conn.deaf):
        done[0] = end - p
        return MORE
    if UNLIKELY(not conn.greeted):
        done[0] = 0
        if end - p < 8:
            return MORE
        e.payload = p
        done[0] = 8
        return GREETING
    if UNLIKELY(conn.pending != NULL):
        done[0] = 0
        e.channel = conn.pending.number
        if conn.pending.closing or conn.discard:
            content_free(conn.pending)
            conn.pending = NULL
        else:
            status = content_whole(conn.pending, e)
            if status != DONE:
                return status
    while not conn.gone:
        status = parse_frame(conn, p, end, &used, e) if LIKELY(conn.body_left == 0) else continue_body(conn, p, end, &used, e)
        if LIKELY(status == DONE):
            p += used
            if UNLIKELY(p >= look):
                # Each message may go to another queue, or priority, so that the kernel has to find a page for it.
                look = p + LOOK_OCTETS
                if UNLIKELY(monotonic_ns() - began >= conn.core.work_ns // 2):
                    # On a busy machine the thread may have waited for a processor: its own clock decides, which costs more.
                    if half == 0:
                        half = processor_ns()
                    elif processor_ns() - half >= conn.core.work_ns // 2:
                        conn.core.spent = max(conn.core.spent, conn.core.work_ns)
            if UNLIKELY(conn.core.spent >= conn.core.work_ns):
                done[0] = p - start
                return TURN
            continue
        if status == COLD or status == FAULT or status == CONTENT or conn.pending != NULL:
            p += used
        done[0] = p - start
        return status
    done[0] = end - start
    return MORE

# A client's octets: frames cut, each to where it belongs, until the chunk ends or somebody above must act.
#
#    0      1         3        7              7+size
#    +------+---------+--------+--------------+------+
#    | type | channel |  size  |   payload    | 0xCE |
#    +------+---------+--------+--------------+------+
#
# A publish that lies whole in the buffer takes one straight path; anything else goes frame by frame.


cdef inline channel_t *channel_at(conn_t *conn, uint16_t number) noexcept nogil:
    return conn.channels[number] if number < conn.channels_n else NULL


cdef inline int straight(conn_t *conn, channel_t *ch, const uint8_t *p, const uint8_t *end, uint32_t size,
                         size_t *used, event_t *e) noexcept nogil:
    """The publish whose method frame is at p, if header and body follow whole in one body frame; else MORE."""
    cdef const uint8_t *h = p + 8 + size
    cdef const uint8_t *b
    cdef uint64_t body_n
    cdef uint32_t header_n
    cdef uint16_t channel = le16(p + 1)
    cdef int status
    if end - h < 22 or h[0] != 2 or le16(h + 1) != channel:
        return MORE
    header_n = be32(h + 3)
    if header_n > conn.frame_max - 8 or header_n < 14 or <size_t>(end - h) < header_n + 8 or h[7 + header_n] != 0xCE:
        return MORE
    body_n = be64(h + 11)
    b = h + 8 + header_n
    if body_n == 0:
        used[0] = b - p
    else:
        if body_n > conn.frame_max - 8 or <size_t>(end - b) < body_n + 8 or b[0] != 3 or le16(b + 1) != channel \
                or be32(b + 3) != body_n or b[7 + body_n] != 0xCE:
            return MORE
        used[0] = b - p + 8 + body_n
        b += 7
    status = check_header(ch, h + 7, header_n, e)
    if status == DONE:
        status = publish(ch, p + 7, size, h + 7, header_n, b, body_n, e)
    return status


cdef int parse_method(conn_t *conn, channel_t *ch, const uint8_t *p, uint32_t size, event_t *e) noexcept nogil:
    """A whole method frame on an open channel, no content expected."""
    cdef uint32_t index = be32(p)
    if index == BASIC_ACK:
        if size != 13:
            return fault(e, True, 502, b"basic.ack is not of the right length", index)
        if not tag_settle(ch, be64(p + 4), p[12] & 1, ACKED, False):
            e.number = be64(p + 4)
            return fault(e, False, 406, b"unknown delivery tag %llu", index)
    elif index == BASIC_NACK:
        if size != 13:
            return fault(e, True, 502, b"basic.nack is not of the right length", index)
        if not tag_settle(ch, be64(p + 4), p[12] & 1, REJECTED, p[12] >> 1 & 1):
            e.number = be64(p + 4)
            return fault(e, False, 406, b"unknown delivery tag %llu", index)
    elif index == BASIC_REJECT:
        if size != 13:
            return fault(e, True, 502, b"basic.reject is not of the right length", index)
        if not tag_settle(ch, be64(p + 4), False, REJECTED, p[12] & 1):
            e.number = be64(p + 4)
            return fault(e, False, 406, b"unknown delivery tag %llu", index)
    elif index == PUBLISH:
        return content_begin(ch, p, size, e)
    else:
        return COLD
    return DONE


cdef int unframed(conn_t *conn, size_t rest, size_t *used, event_t *e, const char *text, uint8_t kind) noexcept nogil:
    """These octets are no frame, so nobody knows where the next one begins: hear no more from this connection."""
    used[0] = rest
    if conn.discard:
        conn.deaf = True
        return DONE
    conn.deaf = True
    return fault(e, True, 501, text, kind)


cdef int parse_frame(conn_t *conn, const uint8_t *p, const uint8_t *end, size_t *used, event_t *e) noexcept nogil:
    """One frame at p, or a whole publish; *used octets of it are done with unless MORE, ROUTE or STALL comes back."""
    cdef uint32_t size
    cdef uint8_t kind
    cdef channel_t *ch
    cdef int status
    if end - p < 8:
        return MORE
    kind = p[0]
    size = be32(p + 3)
    e.channel = be16(p + 1)
    if UNLIKELY(size > conn.frame_max - 8):
        e.number = size
        e.limit = conn.frame_max - 8
        return unframed(conn, end - p, used, e, b"type %u, all octets = <<>>: {frame_too_large,%llu,%llu}", kind)
    if <size_t>(end - p) < <size_t>size + 8:
        return MORE
    used[0] = size + 8
    if UNLIKELY(p[7 + size] != 0xCE):
        e.number = p[7 + size]
        return unframed(conn, end - p, used, e, b"type %u, all octets = <<>>: {invalid_frame_end_marker,%llu}", kind)
    e.payload = p + 7
    e.payload_n = size
    ch = channel_at(conn, e.channel)
    if LIKELY(kind == 1):
        if UNLIKELY(size < 4):
            if conn.discard:
                return DONE
            return fault(e, True, 502, b"method frame is too short", 0)
        if UNLIKELY(conn.discard):
            return COLD if e.channel == 0 and (be32(p + 7) == (10 << 16 | 50) or be32(p + 7) == (10 << 16 | 51)) else DONE
        if UNLIKELY(ch == NULL):
            return COLD
        if UNLIKELY(ch.closing):
            return COLD if be32(p + 7) == (20 << 16 | 40) or be32(p + 7) == (20 << 16 | 41) else DONE
        if UNLIKELY(ch.state):
            if ch.state == 1:
                return fault(e, True, 505,
                             b"expected content header for class 60, got non content header frame instead", be32(p + 7))
            return fault(e, True, 505, b"expected content body, got non content body frame instead", be32(p + 7))
        if be32(p + 7) == PUBLISH:
            status = straight(conn, ch, p, end, size, used, e)
            if LIKELY(status == DONE):
                return DONE
            if status != MORE:
                return status
            used[0] = size + 8
        return parse_method(conn, ch, p + 7, size, e)
    if kind == 8:
        if size or e.channel:
            return unframed(conn, end - p, used, e, b"heartbeat frames are empty and on channel 0", kind)
        return DONE
    if UNLIKELY(kind != 2 and kind != 3):
        e.number = kind
        return unframed(conn, end - p, used, e, b"unknown frame type %llu", kind)
    if conn.discard:
        return DONE
    if UNLIKELY(ch == NULL):
        if e.channel == 0:
            return fault(e, True, 505, b"expected method frame on channel 0, got content frame instead", 0)
        return fault(e, True, 504, b"expected 'channel.open'", 0)
    if UNLIKELY(ch.closing):
        return DONE
    return content_header(ch, p + 7, size, e) if kind == 2 else content_body(ch, p + 7, size, e)


cdef int parse(conn_t *conn, const uint8_t *p, const uint8_t *end, size_t *done, event_t *e) noexcept nogil:
    """Work frames until one needs somebody above; *done octets were used up."""
    cdef const uint8_t *start = p
    cdef size_t used = 0
    cdef int status
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
        status = parse_frame(conn, p, end, &used, e)
        if LIKELY(status == DONE):
            p += used
            continue
        if status == COLD or status == FAULT or conn.pending != NULL:
            p += used
        done[0] = p - start
        return status
    done[0] = end - start
    return MORE

# A message that arrives in parts: its frames are put together until it is whole.  A message that lies whole in the buffer never
# comes here.
#
# From LARGE_BEGIN octets on, a large body goes into a file (large.pxi).
#
# What the connections hold of unfinished messages is counted, because a client may begin as many as it has channels, and never
# end one.

cdef enum:
    CONTENT_HEADERS_MOST = 1 << 20  # octets of methods and headers, beside the bodies
    MUCH_UNFINISHED = 65536         # octets: connections with less have no share of what all may have

cdef struct content_t:
    uint8_t *octets             # method payload, header payload, and the body so far unless it is in a file
    large_t *large              # NULL: the body is in memory; or a transaction has its file, and the content ends
    uint64_t filed              # octets of the body that count as in a file
    bint stays                  # in memory, because no file has room for it
    size_t capacity
    uint32_t method_n
    uint32_t header_n
    uint64_t body_size
    uint64_t body_n


cdef void count_unfinished(conn_t *conn, int64_t more) noexcept nogil:
    """The buffers of unfinished messages of this connection have so many octets more, or fewer."""
    cdef bint had = conn.unfinished >= MUCH_UNFINISHED
    conn.unfinished += more
    conn.core.unfinished += more
    conn.core.unfinished_n += (conn.unfinished >= MUCH_UNFINISHED) - had


cdef void count_in_file(channel_t *ch, int64_t more) noexcept nogil:
    """The file of the unfinished message has so many octets more, or fewer."""
    count_unfinished(ch.conn, more)
    ch.conn.in_files += more
    ch.content.filed += more


cdef void content_free(channel_t *ch) noexcept nogil:
    if ch.content != NULL:
        count_in_file(ch, -<int64_t>ch.content.filed)
        large_free(ch.content.large)
        count_unfinished(ch.conn, -<int64_t>ch.content.capacity)
        free(ch.content.octets)
        free(ch.content)
        ch.content = NULL
    ch.state = 0


cdef bint may_grow(conn_t *conn, size_t more) noexcept nogil:
    """Whether the unfinished messages of this connection may take so many octets more: no connection has more than two of the
    largest, and when all together have too many, none has more than its share."""
    cdef core_t *core = conn.core
    cdef uint64_t octets = conn.unfinished + more
    if octets > 2 * core.message_octets_max + CONTENT_HEADERS_MOST:
        return False
    return core.unfinished + more <= core.unfinished_most or octets <= max(core.unfinished_most // max(core.unfinished_n, 1), <uint64_t>MUCH_UNFINISHED)


cdef int content_resize(channel_t *ch, size_t capacity) noexcept nogil:
    """Have room for so many octets in memory.  0, ENOMEM, or EDQUOT: the connection has too many octets of unfinished messages."""
    cdef content_t *c = ch.content
    cdef uint8_t *octets
    if capacity > c.capacity and not may_grow(ch.conn, capacity - c.capacity):
        return EDQUOT
    octets = <uint8_t *>realloc(c.octets, capacity)
    if octets == NULL:
        return ENOMEM
    count_unfinished(ch.conn, <int64_t>capacity - <int64_t>c.capacity)
    c.octets = octets
    c.capacity = capacity
    return 0


cdef int content_into_file(channel_t *ch) noexcept nogil:
    """Begin a file with what has come of the body, unless that is in vain.  0 or ENOMEM."""
    cdef content_t *c = ch.content
    cdef uint32_t before = c.method_n + c.header_n
    cdef void *core
    cdef large_t *l = NULL
    if c.method_n >= 9:                 # It is checked later; with less it cannot be a publish.
        with gil:
            core = <void *>(<Connection>ch.conn.owner).core
        l = large_begin(ch.conn.core, core, before - 19, c.body_size)
    if l != NULL and not large_write(l, c.octets + before, c.body_n):
        large_free(l)
        l = NULL
    if l == NULL:
        c.stays = True
        return 0
    c.large = l
    count_in_file(ch, l.done)
    return content_resize(ch, before)


cdef int content_out_of_file(channel_t *ch) noexcept nogil:
    """Have the body in memory again, because the disk is full.  0, ENOMEM, EDQUOT or EIO."""
    cdef content_t *c = ch.content
    cdef uint32_t before = c.method_n + c.header_n
    cdef large_t *l = c.large
    cdef int err
    c.large = NULL
    count_in_file(ch, -<int64_t>c.filed)
    err = content_resize(ch, before + c.body_n)
    if err == 0 and not large_read(l, c.octets + before):
        err = EIO
    large_free(l)
    c.stays = True
    return err


cdef int content_add(channel_t *ch, const uint8_t *p, size_t n) noexcept nogil:
    """Add octets that have arrived.  0, ENOMEM, EDQUOT or EIO."""
    cdef content_t *c = ch.content
    cdef int err = 0
    if UNLIKELY(c.body_size >= LARGE_BODY) and c.large == NULL and not c.stays and c.body_n >= LARGE_BEGIN:
        err = content_into_file(ch)
    if err == 0 and c.large != NULL:
        if not may_grow(ch.conn, n):
            return EDQUOT
        if large_write(c.large, p, n):
            count_in_file(ch, n)
            return 0
        err = content_out_of_file(ch)
    return err if err else content_add_to_memory(ch, p, n)


cdef int content_add_to_memory(channel_t *ch, const uint8_t *p, size_t n) noexcept nogil:
    cdef content_t *c = ch.content
    cdef size_t have = c.method_n + c.header_n + c.body_n
    cdef int err
    if have + n > c.capacity:
        # The room follows the octets that have arrived, because a peer can announce any size at no cost.
        err = content_resize(ch, max(have + n, min(have + (have >> 1), have + c.body_size - c.body_n)))
        if err:
            return err
    memcpy(c.octets + have, p, n)
    return 0


cdef int give_up_content(channel_t *ch, int err, event_t *e) noexcept nogil:
    """The fault for octets that content_add() did not take."""
    e.number = ch.conn.unfinished
    content_free(ch)
    if err == EDQUOT:
        return fault(e, True, 506, b"unfinished messages of this connection have %llu octets: too many", BASIC_PUBLISH)
    return fault(e, True, 506, b"no memory for this message", BASIC_PUBLISH)


cdef const uint8_t *content_of_body(content_t *c) noexcept nogil:
    """The body so far; NULL: it cannot be mapped."""
    if c.large != NULL:
        return large_body(c.large)
    return c.octets + c.method_n + c.header_n


cdef int content_begin(channel_t *ch, const uint8_t *method, uint32_t n, event_t *e) noexcept nogil:
    cdef int err
    ch.content = <content_t *>calloc(1, sizeof(content_t))
    err = ENOMEM if ch.content == NULL else content_add(ch, method, n)
    if err:
        return give_up_content(ch, err, e)
    ch.content.method_n = n
    ch.state = 1
    return DONE


cdef int content_whole(channel_t *ch, event_t *e) noexcept nogil:
    cdef content_t *c = ch.content
    cdef int status
    cdef const uint8_t *body = content_of_body(c)
    if body == NULL:
        ch.conn.pending = NULL
        return give_up_content(ch, ENOMEM, e)
    status = publish(ch, c.octets, c.method_n, c.octets + c.method_n, c.header_n, body, c.body_n, e)
    if status == DONE or status == FAULT:
        content_free(ch)
        ch.conn.pending = NULL
    else:
        ch.conn.pending = ch
    return status


cdef int check_header(channel_t *ch, const uint8_t *payload, uint32_t n, event_t *e) noexcept nogil:
    """DONE if this content header may follow a basic.publish."""
    cdef uint64_t most = ch.conn.core.message_octets_max
    if n < 14:
        return fault(e, True, 501, b"content header frame is too short", BASIC_PUBLISH)
    if be16(payload) != CLASS_BASIC:
        e.number = be16(payload)
        return fault(e, True, 505, b"expected content header for class 60, got one for class %llu instead", BASIC_PUBLISH)
    if be64(payload + 4) > most:
        e.number = be64(payload + 4)
        e.limit = most
        return fault(e, False, 406, b"message size %llu is larger than configured max size %llu", BASIC_PUBLISH)
    return DONE


cdef int content_header(channel_t *ch, const uint8_t *payload, uint32_t n, event_t *e) noexcept nogil:
    cdef content_t *c = ch.content
    cdef int status, err
    if ch.state != 1:
        if ch.state == 0:
            return fault(e, True, 505, b"expected method frame, got non method frame instead", 0)
        return fault(e, True, 505, b"expected content body, got non content body frame instead", BASIC_PUBLISH)
    status = check_header(ch, payload, n, e)
    if status != DONE:
        content_free(ch)
        return status
    c.body_size = be64(payload + 4)
    err = content_add(ch, payload, n)
    if err:
        return give_up_content(ch, err, e)
    c.header_n = n
    ch.state = 2
    return content_whole(ch, e) if c.body_size == 0 else DONE


cdef int content_body(channel_t *ch, const uint8_t *payload, uint32_t n, event_t *e) noexcept nogil:
    cdef content_t *c = ch.content
    cdef int err
    if ch.state == 0:
        return fault(e, True, 505, b"expected method frame, got non method frame instead", 0)
    if ch.state == 1:
        return fault(e, True, 505, b"expected content header for class 60, got non content header frame instead", BASIC_PUBLISH)
    if n > c.body_size - c.body_n:
        content_free(ch)
        return fault(e, True, 501, b"content body is larger than its header said", BASIC_PUBLISH)
    err = content_add(ch, payload, n)
    if err:
        return give_up_content(ch, err, e)
    c.body_n += n
    return content_whole(ch, e) if c.body_n == c.body_size else DONE

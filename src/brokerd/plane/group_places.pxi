# The number by which a message stands in its group: its sequence number, or that which it had before it was redriven.
#
# A dead letter tells where its message stood: its header x-group-seq is the number that the message had in its queue.  If the
# letter is put back there, its record has the flag REDRIVEN, and that number counts among the messages of its group.

cdef inline bint was_redriven(const uint8_t *record) noexcept nogil:
    return le16(record + R_FLAGS) & REDRIVEN != 0


cdef uint64_t number_of_redriven(const uint8_t *record) noexcept nogil:
    """The number in the header x-group-seq of a record; the record's own if that header is no number below it."""
    cdef message_t m
    cdef const uint8_t *table
    cdef const uint8_t *p
    cdef const uint8_t *plain
    cdef uint8_t room[9]
    cdef size_t n = 0
    message_of(record, &m)
    table = property_at(m.properties, PROPERTY_HEADERS)
    p = find_header(table, <const uint8_t *>b"x-group-seq", 11, &n) if table != NULL else NULL
    if p != NULL:
        plain = plain_value(p, room, &n)
        if is_whole_number(plain, room, p[0]) and 0 < be64(room + 1) < seq_of(record):
            return be64(room + 1)
    return seq_of(record)


cdef inline uint64_t number_in_group(const uint8_t *record) noexcept nogil:
    """The number by which a message stands in its group."""
    return number_of_redriven(record) if UNLIKELY(was_redriven(record)) else seq_of(record)


cdef uint32_t write_group_headers(uint8_t *p, const uint8_t *key, uint32_t key_n, uint64_t number) noexcept nogil:
    """Write the headers x-group-id, unless key is NULL, and x-group-seq, items of a table.  Returns their octets."""
    cdef uint8_t *start = p
    if key != NULL:
        memcpy(p, b"\x0ax-group-idS", 12)
        put_be32(p + 12, key_n)
        memcpy(p + 16, key, key_n)
        p += 16 + key_n
    memcpy(p, b"\x0bx-group-seql", 13)
    put_be64(p + 13, number)
    return <uint32_t>(p + 21 - start)

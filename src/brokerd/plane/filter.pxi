# What a stream's reader wants: a filter looks at a record's octets, and makes no object.


cdef bint passes_filter(reader_t *r, const uint8_t *record) noexcept nogil:
    """Whether the reader wants this message."""
    cdef message_t m
    cdef const uint8_t *table
    cdef const uint8_t *value = NULL
    cdef const uint8_t *p = r.filter
    cdef size_t n
    message_of(record, &m)
    table = property_at(m.properties, PROPERTY_HEADERS)
    if table != NULL:
        value = find_header(table, b"x-stream-filter-value", 21, &n)
    if value == NULL or value[0] != c'S':
        return r.unfiltered
    while p < r.filter + r.filter_n:
        if be16(p) == be32(value + 1) and memcmp(p + 2, value + 5, be16(p)) == 0:
            return True
        p += 2 + be16(p)
    return False


cdef void filter_free(reader_t *r) noexcept nogil:
    free(r.filter)


cdef tuple filter_of(reader_t *r):
    """(filter, unfiltered) as begin() got them."""
    return <bytes>r.filter[:r.filter_n] if r.filter != NULL else None, r.unfiltered != 0

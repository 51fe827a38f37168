# A part of `_relay.pyx`: a content header written anew with the headers of a relay, x-shovel-id and x-shovel-redelivered,
# and without the number and the time that its source gave the message.  All other octets stay as they are.  Knows no relay.

cdef enum:
    HEADERS_FLAG = 0x2000               # of the property flags; content-type and content-encoding stand before it
    ADDED_ROOM = 128                    # octets: more than what is added has, without the id's text
    # what became of the id
    NUMBERED = 1
    NO_NUMBER = 2                       # the source gave no number
    NO_ID = 0                           # none was wanted


cdef uint32_t _value_octets(const uint8_t *p, size_t left) except 0:
    """How many octets a field value has, its type octet included."""
    cdef uint32_t octets
    cdef uint8_t kind
    if left:
        kind = p[0]
        if kind in (b't', b'b', b'B'):
            octets = 2
        elif kind in (b's', b'u', b'U'):
            octets = 3
        elif kind in (b'I', b'i', b'f'):
            octets = 5
        elif kind in (b'l', b'L', b'd', b'T'):
            octets = 9
        elif kind == b'D':
            octets = 6
        elif kind == b'V':
            octets = 1
        elif kind in (b'S', b'x', b'A', b'F') and left >= 5 and be32(p + 1) <= left - 5:
            octets = 5 + be32(p + 1)
        else:
            raise StreamError("a header whose value cannot be read")
        if octets <= left:
            return octets
    raise StreamError("a header whose value is cut short")


cdef inline bint _named(const uint8_t *p, const char *name, uint8_t octets) noexcept nogil:
    return p[0] == octets and memcmp(p + 1, name, octets) == 0


cdef inline bint _is_number(const uint8_t *value) noexcept nogil:
    """Whether it is what a brokerd writes: a 64-bit integer that is not negative."""
    return value[0] in (b'l', b'L') and not value[1] & 0x80


cdef uint8_t *_put_decimal(uint8_t *o, uint64_t number) noexcept nogil:
    """A space, and the number in decimal digits."""
    cdef uint8_t digits[20]
    cdef int count = 0
    o[0] = b' '
    o += 1
    while True:
        digits[count] = 0x30 + number % 10
        number //= 10
        count += 1
        if not number:
            break
    while count:
        count -= 1
        o[0] = digits[count]
        o += 1
    return o


cdef uint8_t *_put_id(uint8_t *o, const uint8_t *of, size_t of_octets, uint64_t number, uint64_t when) noexcept nogil:
    cdef uint8_t *size
    memcpy(o, b"\x0bx-shovel-idS", 13)
    size = o + 13
    o += 17
    memcpy(o, of, of_octets)
    o = _put_decimal(_put_decimal(o + of_octets, number), when)
    put32(size, o - size - 4)
    return o


cdef const uint8_t *_table_of(const uint8_t *p, uint32_t octets) except NULL:
    """Where the headers' table stands in the payload of a content header, or would stand."""
    cdef uint32_t at = 14, flag = 0x8000
    while flag > HEADERS_FLAG:
        if flag & (<uint32_t> p[12] << 8):
            if at >= octets:
                raise StreamError("a content header that is cut short")
            at += 1 + p[at]
        flag >>= 1
    if at > octets:
        raise StreamError("a content header that is cut short")
    return p + at


cdef uint8_t *_write_header(uint8_t *o, const uint8_t *p, uint32_t octets, bytes of, bint fits, bint marks,
                            int *became) except NULL:
    """Write the payload of a content header anew; returns its end.  ``of``: the id's text but for number and time; None:
    no id is wanted.  ``fits``: whether there is room for one.  ``o`` has room for ADDED_ROOM octets more than both."""
    cdef const uint8_t *table = _table_of(p, octets)
    cdef const uint8_t *end = p + octets
    cdef const uint8_t *each = table
    cdef const uint8_t *stop = table
    cdef const uint8_t *value
    cdef uint8_t *begin
    cdef uint8_t *flags = o + 12
    cdef uint64_t number = 0, when = 0
    cdef uint32_t size
    cdef bint has_number = False, has_time = False, seen_number = False, seen_time = False
    memcpy(o, p, table - p)
    o += table - p
    begin = o
    o += 4
    if p[12] & (HEADERS_FLAG >> 8):
        if end - table < 4 or be32(table) > end - table - 4:
            raise StreamError("a table of headers that is cut short")
        each = table + 4
        stop = each + be32(table)
    while each < stop:
        value = each + 1 + each[0]
        if value >= stop:
            raise StreamError("a header's name that is cut short")
        size = _value_octets(value, stop - value)
        if of is not None and _named(each, b"x-message-seq", 13):
            if not seen_number and _is_number(value):
                number, has_number = be64(value + 1), True
            seen_number = True
        elif of is not None and _named(each, b"x-message-ns", 12):
            if not seen_time and _is_number(value):
                when, has_time = be64(value + 1), True
            seen_time = True
        elif not (of is not None and _named(each, b"x-shovel-id", 11)
                  or marks and _named(each, b"x-shovel-redelivered", 20)):
            memcpy(o, each, value + size - each)
            o += value + size - each
        each = value + size
    became[0] = NO_ID
    if of is not None and fits:
        became[0] = NUMBERED if has_number and has_time else NO_NUMBER
        if became[0] == NUMBERED:
            o = _put_id(o, of, len(of), number, when)
    if marks:
        memcpy(o, b"\x14x-shovel-redeliveredt\x01", 23)
        o += 23
    if o == begin + 4:
        o = begin
        flags[0] &= ~(HEADERS_FLAG >> 8)
    else:
        put32(begin, o - begin - 4)
        flags[0] |= HEADERS_FLAG >> 8
    memcpy(o, stop, end - stop)
    return o + (end - stop)

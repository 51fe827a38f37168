# The filter of a stream's reader: it looks at a record's octets, and makes no object.
#
#    reader_t.filter     values of x-stream-filter-value, each with 2 octets of length
#    reader_t.program    a condition on headers, properties and places, which queues/filters.py has compiled; it may ask for the
#                        values as well.  A message passes where the condition is true, not where it is unknown
#
# A program works on a stack of values, each unknown, true or false, a whole number, a real number or a text.  Numbers in it are
# big endian.  Jumps go forward, and check_program() has seen that no operation leaves the program or the stack: so each one
# is done at most once for a message.
#
#    code  operand                  does
#    0     -                        push: unknown
#    1     u8                       push: false or true
#    2     i64                      push: a whole number
#    3     f64                      push: a real number
#    4     u16, octets              push: a text
#    5     short string             push: the value of a header; unknown: it has no such one, or one of another kind
#    6     u8                       push: a field, by the bit of a property, or FIELD_*
#    7     -                        push: whether the message has one of the reader's values
#    8     short string, u16, octets  push: whether a header has this plain value (headers.pxi); no octets: whether it is there
#    9     f64 x 3                  push: whether x-geo-lat, x-geo-lon are within: latitude, longitude, km
#    10    f64 x 4                  ... latitudes and longitudes, the lower ones first
#    11    u16, f64 x 2 each        ... in a polygon of so many corners
#    16-21 -                        compare two: = <> < <= > >=
#    22-24 -                        and, or, not
#    25-30 -                        + - * / % and the negative
#    31    -                        whether it is unknown
#    32    u16, octets              whether a text is like a pattern: 1 octet: that octet; 2: any character; 3: any characters
#    33    -                        of x, found, y: x, and whether found or x = y
#    34    -                        of x, found: found
#    35-36 u16                      go on so many octets ahead where the top is false; true


# ---- programs

cdef int64_t operand_length(uint8_t code, const uint8_t *p, int64_t left) noexcept nogil:
    """Octets of the operand; -1: the code is unknown, or the operand is not whole."""
    cdef int64_t n = 0
    if code == DO_BOOLEAN or code == DO_FIELD:
        n = 1
    elif code == DO_WHOLE or code == DO_REAL:
        n = 8
    elif code == DO_TEXT or code == DO_LIKE:
        n = 2 + be16(p) if left >= 2 else left + 1
    elif code == DO_HEADER:
        n = 1 + p[0] if left >= 1 else left + 1
    elif code == DO_HEADER_IS:
        n = 3 + p[0] if left >= 1 else left + 1
        if n <= left:
            n += be16(p + n - 2)
    elif code == DO_NEAR:
        n = 24
    elif code == DO_BOX:
        n = 32
    elif code == DO_POLYGON:
        n = 2 + 16 * be16(p) if left >= 2 and be16(p) >= 3 else left + 1
    elif code == DO_JUMP_FALSE or code == DO_JUMP_TRUE:
        n = 2
    elif not (code == DO_UNKNOWN or code == DO_VALUES or DO_EQUAL <= code <= DO_IN_END):
        return -1
    return n if n <= left else -1


cdef str check_program(const uint8_t *program, int64_t n):
    """Why this is no program; None: it is one."""
    cdef int64_t at = 0, length
    cdef int depth = 0, needs
    cdef uint8_t code
    cdef dict expected = {}             # depth of the stack, by the place to which a jump leads
    if not 0 < n <= PROGRAM_MOST:
        return f"a program of {n} octets, at most {PROGRAM_MOST}"
    while at < n:
        if expected.pop(at, depth) != depth:
            return "a jump changes the depth of the stack"
        code = program[at]
        length = operand_length(code, program + at + 1, n - at - 1)
        if length < 0 or (code == DO_LIKE and not pattern_is_whole(program + at + 3, be16(program + at + 1))):
            return f"the operation at octet {at} is unknown, or not whole"
        needs = 0 if code <= DO_POLYGON else 2 if code <= DO_REST and code != DO_NOT else 3 if code == DO_IN_NEXT \
            else 2 if code == DO_IN_END else 1
        if depth < needs:
            return f"the operation at octet {at} finds too few values"
        depth += 1 if needs == 0 else -1 if needs > 1 else 0
        if depth > STACK_MOST:
            return "the expression is nested too deeply"
        at += 1 + length
        if code >= DO_JUMP_FALSE:
            expected[at + be16(program + at - 2)] = depth
    if expected.pop(n, 1) != 1 or expected or depth != 1:
        return "the program does not end with one value"
    return None


cdef bint asks_for_values(const uint8_t *program, int64_t n) noexcept nogil:
    """Whether a whole program is never true for a message without one of the reader's values: it begins with that question,
    and joins its answer, at the bottom of the stack, with all else by `and`."""
    cdef int64_t at = 0
    cdef int depth = 0
    cdef uint8_t code
    while at < n:
        code = program[at]
        if at == 0 and code != DO_VALUES:
            return False
        if code <= DO_POLYGON:
            depth += 1
        elif code <= DO_REST and code != DO_NOT or code == DO_IN_NEXT or code == DO_IN_END:
            depth -= 1
        if at and depth == 1 and code != DO_AND:
            return False
        at += 1 + operand_length(code, program + at + 1, n - at - 1)
    return True


cdef bint pattern_is_whole(const uint8_t *p, uint32_t n) noexcept nogil:
    cdef uint32_t i = 0
    while i < n:
        if p[i] == 1:
            i += 1
        elif p[i] != 2 and p[i] != 3:
            return False
        i += 1
    return i == n


cdef void push(reader_t *r, const uint8_t *record, message_t *m, const uint8_t *table, value_t *v, uint8_t code,
               const uint8_t *p, uint32_t walked, uint32_t *steps) noexcept nogil:
    """v becomes what the operation pushes; p: its operand; walked: steps through all headers."""
    if code == DO_BOOLEAN:
        set_boolean(v, p[0])
    elif code == DO_WHOLE:
        v.kind = IS_WHOLE
        v.whole = <int64_t>be64(p)
    elif code == DO_REAL:
        v.kind = IS_REAL
        v.real = real_at(p)
    elif code == DO_TEXT:
        set_text(v, p + 2, be16(p))
    elif code == DO_HEADER:
        steps[0] += walked
        read_header(v, table, p)
    elif code == DO_FIELD:
        read_field(v, record, m, p[0])
    elif code == DO_VALUES:
        steps[0] += walked + (r.filter_n >> 3)
        set_boolean(v, has_value(r, table))
    elif code == DO_HEADER_IS:
        steps[0] += walked
        set_boolean(v, header_is(table, p))
    elif code == DO_UNKNOWN:
        v.kind = IS_UNKNOWN
    else:
        steps[0] += 2 * walked + (be16(p) * 2 if code == DO_POLYGON else 8)
        set_boolean(v, is_at(table, code, p))


cdef void change_top(value_t *v, uint8_t code, const uint8_t *p, uint32_t *steps) noexcept nogil:
    """v becomes what the operation makes of it alone."""
    if code == DO_NOT:
        if v.kind == IS_BOOLEAN:
            v.whole = not v.whole
        else:
            v.kind = IS_UNKNOWN
    elif code == DO_NEGATIVE:
        if v.kind == IS_WHOLE:
            if filter_subtract(0, v.whole, &v.whole):
                v.kind = IS_UNKNOWN
        elif v.kind == IS_REAL:
            v.real = -v.real
        else:
            v.kind = IS_UNKNOWN
    elif code == DO_IS_UNKNOWN:
        set_boolean(v, v.kind == IS_UNKNOWN)
    elif v.kind != IS_TEXT or v.n > LIKE_MOST:
        v.kind = IS_UNKNOWN
    else:
        set_boolean(v, is_like(v.text, v.n, p + 2, be16(p), steps))


cdef bint runs(reader_t *r, const uint8_t *record, message_t *m, const uint8_t *table, uint32_t *steps) noexcept nogil:
    """Whether the reader's program is true for the message."""
    cdef value_t stack[33]
    cdef value_t *top = stack           # one above the top
    cdef const uint8_t *p = r.program
    cdef const uint8_t *end = p + r.program_n
    cdef uint8_t code
    cdef int order = 0
    cdef uint32_t walked = be32(table) >> 4 if table != NULL else 0
    while p < end:
        steps[0] += 2
        code = p[0]
        p += 1
        if code <= DO_POLYGON:
            push(r, record, m, table, top, code, p, walked, steps)
            top += 1
        elif code == DO_AND or code == DO_OR:
            top -= 1
            join_values(top - 1, top, code == DO_OR)
        elif code <= DO_FROM:
            top -= 1
            compare(top - 1, top, code)
        elif code != DO_NOT and code <= DO_REST:
            top -= 1
            calculate(top - 1, top, code)
        elif code == DO_IN_NEXT:
            top -= 1
            if compares(top - 2, top, &order):
                set_boolean(top, order == 0)
            else:
                top.kind = IS_UNKNOWN
            join_values(top - 1, top, True)
        elif code == DO_IN_END:
            top -= 1
            (top - 1)[0] = top[0]
        elif code == DO_JUMP_FALSE or code == DO_JUMP_TRUE:
            if (top - 1).kind == IS_BOOLEAN and (top - 1).whole == (code == DO_JUMP_TRUE):
                p += be16(p)
        else:
            change_top(top - 1, code, p, steps)
        p += operand_length(code, p, end - p)
    return stack[0].kind == IS_BOOLEAN and stack[0].whole


cdef inline bint is_filtered(reader_t *r) noexcept nogil:
    return r.filter != NULL or r.program != NULL


cdef bint passes_filter(reader_t *r, const uint8_t *record) noexcept nogil:
    """Whether the reader wants this message.  What that costs beyond a look is counted in the gate."""
    cdef message_t m
    cdef const uint8_t *table
    cdef uint32_t steps = 0
    cdef bint passes
    message_of(record, &m)
    table = property_at(m.properties, PROPERTY_HEADERS)
    if r.program == NULL:
        steps = (r.filter_n >> 3) + (be32(table) >> 4 if table != NULL else 0)
        passes = has_value(r, table)
    else:
        passes = runs(r, record, &m, table, &steps)
    r.stream.gate.looked += steps // STEPS_OF_LOOK
    return passes


cdef inline bint is_skipping(const reader_t *r) noexcept nogil:
    """Whether the reader wants none of a block without its values."""
    return r.filter != NULL and (r.program == NULL or asks_for_values(r.program, r.program_n))


cdef uint8_t *copy_octets(bytes octets):
    """A copy of the octets; NULL: None, or no memory."""
    cdef uint8_t *copy = NULL
    if octets is not None:
        copy = <uint8_t *>malloc(len(octets) + 1)
        if copy != NULL:
            memcpy(copy, <const char *>octets, len(octets))
    return copy


cdef void filter_free(reader_t *r) noexcept nogil:
    free(r.filter)
    free(r.program)


cdef tuple filter_of(reader_t *r):
    """(filter, unfiltered, program) as begin() got them."""
    return (<bytes>r.filter[:r.filter_n] if r.filter != NULL else None, r.unfiltered != 0,
            <bytes>r.program[:r.program_n] if r.program != NULL else None)


def check_filter(bytes program not None):
    """See plane/__init__.pyi."""
    cdef str fault = check_program(<const uint8_t *><const char *>program, len(program))
    if fault is not None:
        raise ValueError(fault)

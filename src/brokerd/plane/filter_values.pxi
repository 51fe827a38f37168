# Values of a filter's program, and its operations on them.  filter.pxi lists the operations.

cdef enum:
    PROGRAM_MOST = 8192         # octets
    STACK_MOST = 32
    LITERAL_MOST = 255          # octets of a pattern
    LIKE_MOST = 4096            # octets of a text; whether a longer one is like a pattern is unknown
    STEPS_OF_LOOK = 4           # steps that cost as much as one more message: operations, octets compared with a pattern, ...

    IS_UNKNOWN = 0
    IS_BOOLEAN = 1
    IS_WHOLE = 2
    IS_REAL = 3
    IS_TEXT = 4

    DO_UNKNOWN = 0
    DO_BOOLEAN = 1
    DO_WHOLE = 2
    DO_REAL = 3
    DO_TEXT = 4
    DO_HEADER = 5
    DO_FIELD = 6
    DO_VALUES = 7
    DO_HEADER_IS = 8
    DO_NEAR = 9
    DO_BOX = 10
    DO_POLYGON = 11
    DO_EQUAL = 16
    DO_UNEQUAL = 17
    DO_LESS = 18
    DO_UP_TO = 19
    DO_MORE = 20
    DO_FROM = 21
    DO_AND = 22
    DO_OR = 23
    DO_NOT = 24
    DO_ADD = 25
    DO_SUBTRACT = 26
    DO_MULTIPLY = 27
    DO_DIVIDE = 28
    DO_REST = 29
    DO_NEGATIVE = 30
    DO_IS_UNKNOWN = 31
    DO_LIKE = 32
    DO_IN_NEXT = 33
    DO_IN_END = 34
    DO_JUMP_FALSE = 35
    DO_JUMP_TRUE = 36

    FIELD_ROUTING_KEY = 16
    FIELD_EXCHANGE = 17
    FIELD_SIZE = 18             # octets of the body
    FIELD_OFFSET = 19
    FIELD_STORED = 20           # ms since the epoch

cdef extern from "string.h" nogil:
    void *memmem(const void *text, size_t n, const void *wanted, size_t wanted_n) noexcept

cdef struct value_t:
    uint8_t kind
    int64_t whole               # of a boolean: 0 or 1
    double real
    const uint8_t *text
    uint32_t n

cdef extern from *:
    """
    #include <math.h>
    static int filter_add(int64_t a, int64_t b, int64_t *out) { return __builtin_add_overflow(a, b, out); }
    static int filter_subtract(int64_t a, int64_t b, int64_t *out) { return __builtin_sub_overflow(a, b, out); }
    static int filter_multiply(int64_t a, int64_t b, int64_t *out) { return __builtin_mul_overflow(a, b, out); }
    /* A whole and a real number: x86's long double holds both exactly. */
    static int filter_compare(int64_t a, double b) { return (long double)a < b ? -1 : (long double)a > b; }
    """
    int filter_add(int64_t a, int64_t b, int64_t *out) noexcept nogil
    int filter_subtract(int64_t a, int64_t b, int64_t *out) noexcept nogil
    int filter_multiply(int64_t a, int64_t b, int64_t *out) noexcept nogil
    int filter_compare(int64_t a, double b) noexcept nogil
    double fmod(double a, double b) noexcept nogil
    double sin(double a) noexcept nogil
    double cos(double a) noexcept nogil
    double asin(double a) noexcept nogil
    double sqrt(double a) noexcept nogil
    double pow(double a, double b) noexcept nogil


# ---- values

cdef inline double real_at(const uint8_t *p) noexcept nogil:
    cdef uint64_t bits = be64(p)
    cdef double real
    memcpy(&real, &bits, 8)
    return real


cdef inline void set_boolean(value_t *v, bint is_true) noexcept nogil:
    v.kind = IS_BOOLEAN
    v.whole = is_true


cdef inline void set_text(value_t *v, const uint8_t *text, uint32_t n) noexcept nogil:
    v.kind = IS_TEXT
    v.text = text
    v.n = n


cdef void read_header(value_t *v, const uint8_t *table, const uint8_t *name) noexcept nogil:
    """The value of a header; name: a short string."""
    cdef uint8_t room[9]
    cdef size_t n
    cdef const uint8_t *p = find_header(table, name + 1, name[0], &n) if table != NULL else NULL
    v.kind = IS_UNKNOWN
    if p == NULL:
        return
    if p[0] == c'S':
        set_text(v, p + 5, be32(p + 1))
    elif p[0] == c'D':
        v.kind = IS_REAL
        v.real = <double><int32_t>be32(p + 2) / pow(10.0, p[1])
    else:
        p = plain_value(p, room, &n)
        if p[0] == c't':
            set_boolean(v, p[1])
        elif p == room and p[0] == c'l':
            v.kind = IS_WHOLE
            v.whole = <int64_t>be64(p + 1)
        elif p == room and p[0] == c'd':
            v.kind = IS_REAL
            v.real = real_at(p + 1)


cdef void read_field(value_t *v, const uint8_t *record, message_t *m, uint8_t field) noexcept nogil:
    cdef const uint8_t *p
    v.kind = IS_WHOLE
    if field == FIELD_ROUTING_KEY:
        p = m.names + 1 + m.names[0]
        set_text(v, p + 1, p[0])
    elif field == FIELD_EXCHANGE:
        set_text(v, m.names + 1, m.names[0])
    elif field == FIELD_SIZE:
        v.whole = <int64_t>m.body_n
    elif field == FIELD_OFFSET:
        v.whole = <int64_t>seq_of(record)
    elif field == FIELD_STORED:
        v.whole = <int64_t>le64(record + R_TS) // 1000000
    else:
        p = property_at(m.properties, field)
        if p == NULL:
            v.kind = IS_UNKNOWN
        elif field == 11 or field == 12:        # priority, delivery_mode
            v.whole = p[0]
        elif field == 6:                        # timestamp
            v.whole = <int64_t>be64(p)
        else:
            set_text(v, p + 1, p[0])


cdef bint has_value(reader_t *r, const uint8_t *table) noexcept nogil:
    """Whether the message has one of the reader's values, or none, if it wants that."""
    cdef const uint8_t *value = filter_value_of(table)
    cdef const uint8_t *p = r.filter
    if value == NULL:
        return r.unfiltered
    while p < r.filter + r.filter_n:
        if be16(p) == be32(value) and memcmp(p + 2, value + 4, be16(p)) == 0:
            return True
        p += 2 + be16(p)
    return False


cdef bint header_is(const uint8_t *table, const uint8_t *p) noexcept nogil:
    """Whether a header is there, and has a value; p: the operand of DO_HEADER_IS."""
    cdef uint8_t room[9]
    cdef size_t n
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef const uint8_t *value
    if table == NULL:
        return False
    at = table + 4
    end = at + be32(table)
    while at < end:
        value = at + 1 + at[0]
        n = value_length(value, end)
        if at[0] == p[0] and memcmp(at + 1, p + 1, p[0]) == 0:
            p += 1 + p[0]
            if be16(p) == 0:
                return True
            value = compared_value(value, room, &n)
            return n == be16(p) and memcmp(value, p + 2, n) == 0
        at = value + n
    return False


# ---- operations

cdef bint compares(const value_t *a, const value_t *b, int *order) noexcept nogil:
    """How a stands to b: below 0, 0, above 0.  False: they cannot be compared."""
    cdef double one, other
    if a.kind == IS_TEXT and b.kind == IS_TEXT:
        order[0] = memcmp(a.text, b.text, min(a.n, b.n))
        if order[0] == 0:
            order[0] = (a.n > b.n) - (a.n < b.n)
        return True
    if a.kind == b.kind and (a.kind == IS_WHOLE or a.kind == IS_BOOLEAN):
        order[0] = (a.whole > b.whole) - (a.whole < b.whole)
        return True
    if (a.kind != IS_WHOLE and a.kind != IS_REAL) or (b.kind != IS_WHOLE and b.kind != IS_REAL):
        return False
    if (a.kind == IS_REAL and a.real != a.real) or (b.kind == IS_REAL and b.real != b.real):
        return False                    # no number
    if a.kind == IS_WHOLE:
        order[0] = filter_compare(a.whole, b.real)
    elif b.kind == IS_WHOLE:
        order[0] = -filter_compare(b.whole, a.real)
    else:
        one = a.real
        other = b.real
        order[0] = (one > other) - (one < other)
    return True


cdef void compare(value_t *a, const value_t *b, uint8_t code) noexcept nogil:
    """a becomes whether it compares so."""
    cdef int order = 0
    if not compares(a, b, &order):
        a.kind = IS_UNKNOWN
    elif code == DO_EQUAL:
        set_boolean(a, order == 0)
    elif code == DO_UNEQUAL:
        set_boolean(a, order != 0)
    elif code == DO_LESS:
        set_boolean(a, order < 0)
    elif code == DO_UP_TO:
        set_boolean(a, order <= 0)
    elif code == DO_MORE:
        set_boolean(a, order > 0)
    else:
        set_boolean(a, order >= 0)


cdef void join_values(value_t *a, const value_t *b, bint decides) noexcept nogil:
    """and (False decides), or (True decides), by the three values of SQL.  Anything but a boolean is unknown."""
    if (a.kind == IS_BOOLEAN and a.whole == decides) or (b.kind == IS_BOOLEAN and b.whole == decides):
        set_boolean(a, decides)
    elif a.kind != IS_BOOLEAN or b.kind != IS_BOOLEAN:
        a.kind = IS_UNKNOWN
    else:
        set_boolean(a, not decides)


cdef void calculate_whole(value_t *a, int64_t b, uint8_t code) noexcept nogil:
    """a becomes the result; it becomes unknown if the result is undefined or out of range."""
    cdef int64_t out = 0
    cdef bint over = False
    if code == DO_ADD:
        over = filter_add(a.whole, b, &out)
    elif code == DO_SUBTRACT:
        over = filter_subtract(a.whole, b, &out)
    elif code == DO_MULTIPLY:
        over = filter_multiply(a.whole, b, &out)
    elif b == 0 or (b == -1 and filter_subtract(0, a.whole, &out)):
        over = True
    elif code == DO_DIVIDE:
        out = a.whole // b              # as C does, towards 0
    else:
        out = a.whole % b if b != -1 else 0
    a.whole = out
    if over:
        a.kind = IS_UNKNOWN


cdef void calculate(value_t *a, const value_t *b, uint8_t code) noexcept nogil:
    cdef double one, other
    if a.kind == IS_WHOLE and b.kind == IS_WHOLE:
        calculate_whole(a, b.whole, code)
        return
    if (a.kind != IS_WHOLE and a.kind != IS_REAL) or (b.kind != IS_WHOLE and b.kind != IS_REAL):
        a.kind = IS_UNKNOWN
        return
    one = <double>a.whole if a.kind == IS_WHOLE else a.real
    other = <double>b.whole if b.kind == IS_WHOLE else b.real
    a.kind = IS_REAL
    if code == DO_ADD:
        a.real = one + other
    elif code == DO_SUBTRACT:
        a.real = one - other
    elif code == DO_MULTIPLY:
        a.real = one * other
    elif other == 0:
        a.kind = IS_UNKNOWN
    else:
        a.real = one / other if code == DO_DIVIDE else fmod(one, other)


cdef uint32_t literal_of(const uint8_t *pattern, uint32_t n, uint8_t *octets) noexcept nogil:
    """Write the octets that the pattern asks for up to the next "any characters", or its end, and return how many;
    NO_HELD: there is a character among them that may be any, or there are more than LITERAL_MOST."""
    cdef uint32_t k = 0, found = 0
    while k < n and pattern[k] != 3:
        if pattern[k] == 2 or found == LITERAL_MOST:
            return NO_HELD
        octets[found] = pattern[k + 1]
        found += 1
        k += 2
    return found


cdef bint is_like(const uint8_t *text, uint32_t n, const uint8_t *pattern, uint32_t pattern_n, uint32_t *steps) noexcept nogil:
    """Whether the text is like the pattern.  Octets behind "any characters" are searched for in one go, in linear time; if any
    character is among them, "any characters" takes one more where it does not fit."""
    cdef uint32_t i = 0, k = 0, resume_i = 0, resume_k = NO_HELD, literal_n
    cdef uint8_t literal[LITERAL_MOST]
    cdef const uint8_t *found
    while i < n or k < pattern_n:
        steps[0] += 1
        if k < pattern_n and pattern[k] == 3:
            literal_n = literal_of(pattern + k + 1, pattern_n - k - 1, literal)
            if literal_n != NO_HELD:
                if k + 1 + 2 * literal_n == pattern_n:
                    return n - i >= literal_n and memcmp(text + n - literal_n, literal, literal_n) == 0
                found = <const uint8_t *>memmem(text + i, n - i, literal, literal_n)
                steps[0] += literal_n + ((n if found == NULL else <uint32_t>(found - text)) - i) // 4
                if found == NULL:
                    return False
                i = <uint32_t>(found - text) + literal_n
                k += 1 + 2 * literal_n
                resume_k = NO_HELD
                continue
            resume_i = i
            resume_k = k
            k += 1
            continue
        if k < pattern_n and i < n:
            if pattern[k] == 2:
                k += 1
                i += 1
                while i < n and text[i] & 0xC0 == 0x80:     # the rest of a character in UTF-8
                    i += 1
                continue
            if pattern[k + 1] == text[i]:
                k += 2
                i += 1
                continue
        if resume_k == NO_HELD or resume_i >= n:
            return False
        resume_i += 1
        i = resume_i
        k = resume_k + 1
    return True


cdef bint geo_of(const uint8_t *table, double *place) noexcept nogil:
    """Latitude and longitude of the message.  False: it has none."""
    cdef value_t v
    cdef int i
    for i in range(2):
        read_header(&v, table, b"\x09x-geo-lat" if i == 0 else b"\x09x-geo-lon")
        if v.kind == IS_WHOLE:
            place[i] = <double>v.whole
        elif v.kind == IS_REAL and v.real == v.real:
            place[i] = v.real
        else:
            return False
    return True


cdef bint is_near(const double *place, const uint8_t *p) noexcept nogil:
    """Whether the place is within so many km, on a sphere (the haversine formula)."""
    cdef double degree = 3.14159265358979323846 / 180
    cdef double latitude = real_at(p) * degree, other = place[0] * degree
    cdef double a = sin((other - latitude) / 2), b = sin((place[1] - real_at(p + 8)) * degree / 2)
    a = a * a + cos(latitude) * cos(other) * b * b
    return 2 * 6371.0088 * asin(sqrt(min(a, 1.0))) <= real_at(p + 16)


cdef bint is_in_polygon(const double *place, const uint8_t *p, uint32_t n) noexcept nogil:
    """Whether a line from the place to the east crosses an odd number of edges."""
    cdef bint inside = False
    cdef double y1, x1, y2, x2
    cdef uint32_t i
    y2 = real_at(p + 16 * (n - 1))
    x2 = real_at(p + 16 * (n - 1) + 8)
    for i in range(n):
        y1 = y2
        x1 = x2
        y2 = real_at(p + 16 * i)
        x2 = real_at(p + 16 * i + 8)
        if (y1 > place[0]) != (y2 > place[0]) and place[1] < (x2 - x1) * (place[0] - y1) / (y2 - y1) + x1:
            inside = not inside
    return inside


cdef bint is_at(const uint8_t *table, uint8_t code, const uint8_t *p) noexcept nogil:
    cdef double place[2]
    if not geo_of(table, place):
        return False
    if code == DO_NEAR:
        return is_near(place, p)
    if code == DO_BOX:
        return real_at(p) <= place[0] <= real_at(p + 8) and real_at(p + 16) <= place[1] <= real_at(p + 24)
    return is_in_polygon(place, p + 2, be16(p))

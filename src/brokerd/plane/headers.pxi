# Routes that headers decide: the headers that bindings ask for, and the routes that are remembered by them.
#
# Most headers of a message matter to no binding, so a route is not remembered by the whole table but by its extract:
#
#    name | value            each header whose name a binding asks for, in the order of the table
#    name | 0                ... whose value no binding asks for
#
# Name and value stand there as on the wire, numbers as *plain values*: values that bindings take as equal
# (exchanges/comparable.py) have the same octets.  Messages with equal extracts agree with the same bindings.  So the
# names and values that bindings ask for may be known by hashes alone: two values with one hash make an extract longer, and never
# a route wrong.
#
# Extracts are remembered in sets of WAYS.  A route that is found moves up a place in its set, and a new one takes the last
# place: routes in use stay, though other extracts may come only once.

cdef enum:
    EXTRACT_MOST = 1024         # octets; a message with a longer one is asked for each time
    BY_HEADERS_ROOM = 2048      # octets of a route, its targets and its extract: a larger one is not remembered
    ASKED_MOST = 8              # headers exchanges on the ways from one exchange and key: with more, no route is remembered
    WAYS = 8
    SETS_FIRST = 16
    SETS_MOST = 2048            # 16,384 routes
    OF_TABLES = 1               # in place of a value: bindings ask for some table, array or decimal under this name
    OTHER_VALUE = 0

cdef struct asked_t:            # a set of hashes, each with the number of bindings that ask so
    uint64_t *slots             # hash << 32 | number; the lowest bit of a hash is set, so 0 is a free slot
    uint32_t mask               # slots less 1
    uint32_t used               # slots, those with number 0 as well

cdef struct way_t:
    route_t *route              # NULL: free; route_t.method is its extract
    const by_headers_t *of      # of its exchange and key
    uint32_t hash
    uint32_t at                 # place of its Answer in Routes.answers

cdef struct extracts_t:
    way_t *ways                 # in sets of WAYS
    uint32_t mask               # sets less 1
    uint32_t n                  # routes

cdef struct by_headers_t:       # what a route that depends on headers has instead of targets
    extracts_t *extracts        # the Routes'
    uint32_t asked_n
    void *answer                # borrowed: the first Answer, if it says which bindings decide; NULL: it does not
    asked_t *asked[ASKED_MOST]  # of the headers exchanges that its messages have met.  More of them make some extracts
                                # longer, and those that stay as they were mean what they meant

cdef uint64_t slot_factor = int.from_bytes(os_urandom(8), "little") | 1     # A client cannot choose who shares its slot.


# ---- what bindings ask

cdef inline uint32_t asked_hash(uint32_t state, const uint8_t *p, size_t n) noexcept nogil:
    return crc_update(state, p, n) | 1


cdef inline uint64_t *asked_slot(const asked_t *a, uint32_t hash) noexcept nogil:
    """The slot of this hash, or the free one where it belongs.  The set has slots."""
    cdef uint32_t at = <uint32_t>(hash * slot_factor >> 32) & a.mask
    while a.slots[at] and a.slots[at] >> 32 != hash:
        at = (at + 1) & a.mask
    return a.slots + at


cdef inline bint is_in_asked(const asked_t *a, uint32_t hash) noexcept nogil:
    return a.used != 0 and <uint32_t>asked_slot(a, hash)[0] != 0


cdef inline bint is_asked(const by_headers_t *by, uint32_t hash) noexcept nogil:
    cdef uint32_t i
    for i in range(by.asked_n):
        if is_in_asked(by.asked[i], hash):
            return True
    return False


cdef int asked_grow(asked_t *a) noexcept nogil:
    """Make room for one hash more, and drop those that are not asked any more.  0 or ENOMEM."""
    cdef asked_t old = a[0], grown
    cdef uint32_t i, live = 0
    if old.slots != NULL and (old.used + 1) * 2 <= old.mask:
        return 0
    for i in range(old.mask + 1 if old.slots != NULL else 0):
        live += <uint32_t>old.slots[i] != 0
    grown.mask = 15
    while (live + 1) * 4 > grown.mask:
        grown.mask = grown.mask * 2 + 1
    grown.used = live
    grown.slots = <uint64_t *>calloc(grown.mask + 1, sizeof(uint64_t))
    if grown.slots == NULL:
        return ENOMEM
    for i in range(old.mask + 1 if old.slots != NULL else 0):
        if <uint32_t>old.slots[i]:
            asked_slot(&grown, <uint32_t>(old.slots[i] >> 32))[0] = old.slots[i]
    free(old.slots)
    a[0] = grown
    return 0


cdef int asked_change(asked_t *a, uint32_t hash, bint more) noexcept nogil:
    """Count one binding more, or less, that asks so.  0 or ENOMEM."""
    cdef uint64_t *slot
    if more and asked_grow(a) != 0:
        return ENOMEM
    if a.slots == NULL:
        return 0
    slot = asked_slot(a, hash)
    if slot[0] == 0:
        if not more:
            return 0
        slot[0] = <uint64_t>hash << 32
        a.used += 1
    if more:
        slot[0] += 1
    elif <uint32_t>slot[0]:
        slot[0] -= 1
    return 0


cdef const uint8_t *whole_table(const uint8_t[::1] table) except NULL:
    """The octets of a field table, its length first.  Raises ValueError."""
    if table.shape[0] < 4 or be32(&table[0]) != table.shape[0] - 4 \
            or not table_is_whole(&table[0] + 4, &table[0] + table.shape[0], PROPERTY_DEPTH):
        raise ValueError("not a field table")
    return &table[0]


cdef class Asked:
    """See plane/__init__.pyi."""

    cdef asked_t a

    def __dealloc__(self):
        free(self.a.slots)

    def __len__(self):
        cdef uint32_t i, live = 0
        for i in range(self.a.mask + 1 if self.a.slots != NULL else 0):
            live += <uint32_t>self.a.slots[i] != 0
        return live

    cdef int change(self, const uint8_t[::1] table, bint more) except -1:
        cdef const uint8_t *p
        cdef const uint8_t *end
        cdef const uint8_t *name
        cdef const uint8_t *value
        cdef uint8_t room[9]
        cdef size_t n
        cdef uint32_t hash
        cdef int err
        p = whole_table(table) + 4
        end = &table[0] + table.shape[0]
        while p < end:
            name = p
            p += 1 + name[0]
            n = value_length(p, end)
            hash = crc_update(0, name, 1 + name[0])
            err = asked_change(&self.a, hash | 1, more)
            if err == 0 and p[0] != c'V':
                value = compared_value(p, room, &n)
                err = asked_change(&self.a, asked_value(hash, value, n), more)
            if err:
                raise MemoryError
            p += value_length(p, end)
        return 0

    def add(self, const uint8_t[::1] table):
        self.change(table, True)

    def remove(self, const uint8_t[::1] table):
        self.change(table, False)


# ---- extracts

cdef inline size_t value_length(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Octets of the value at p, its kind and all, in a whole table."""
    cdef const uint8_t *behind = p + 1
    if LIKELY(p[0] == c'S'):
        return 5 + <size_t>be32(p + 1)
    value_is_whole(&behind, end, PROPERTY_DEPTH, p[0])
    return <size_t>(behind - p)


cdef double TWO_TO_63 = 9223372036854775808.0


cdef inline bint is_compound(uint8_t kind) noexcept nogil:
    return kind == c'F' or kind == c'A' or kind == c'D'


cdef inline uint32_t asked_value(uint32_t name_hash, const uint8_t *value, size_t n) noexcept nogil:
    """The hash of a plain value under a name.  All compound values of a name have one hash."""
    cdef uint8_t compound = OF_TABLES
    if is_compound(value[0]):
        return asked_hash(name_hash, &compound, 1)
    return asked_hash(name_hash, value, n)


cdef const uint8_t *plain_value(const uint8_t *p, uint8_t *room, size_t *n) noexcept nogil:
    """The plain value of the n octets at p, a kind and its value: in room (9 octets) if it differs, else p; n: its octets."""
    cdef uint8_t kind = p[0]
    cdef int64_t number
    cdef uint32_t bits
    cdef float single
    cdef double real
    if kind == c't':
        room[0] = kind
        room[1] = p[1] != 0
        return room
    if kind == c'd' or kind == c'f':
        if kind == c'f':
            bits = be32(p + 1)
            memcpy(&single, &bits, 4)
            real = single
            memcpy(&number, &real, 8)
        else:
            number = <int64_t>be64(p + 1)
            memcpy(&real, &number, 8)
        if real != real:
            number = -1                 # all that are no numbers
        kind = c'd'
    elif kind == c'b':
        number = <signed char>p[1]
    elif kind == c'B':
        number = p[1]
    elif kind == c's' or kind == c'U':
        number = <short>be16(p + 1)
    elif kind == c'u':
        number = be16(p + 1)
    elif kind == c'I':
        number = <int32_t>be32(p + 1)
    elif kind == c'i':
        number = be32(p + 1)
    elif kind == c'l' or kind == c'L' or kind == c'T' and p[1] < 0x80:
        number = <int64_t>be64(p + 1)
    else:
        return p                        # strings, compound values, and timestamps that are larger than other numbers
    room[0] = kind if kind == c'd' else c'l'
    put_be64(room + 1, <uint64_t>number)
    n[0] = 9
    return room


cdef const uint8_t *compared_value(const uint8_t *p, uint8_t *room, size_t *n) noexcept nogil:
    """The plain value as a headers exchange compares it: a float that is whole is equal to the integer or timestamp
    (RabbitMQ).  Keys are not compared so: 1.0 is no key."""
    cdef const uint8_t *plain = plain_value(p, room, n)
    cdef int64_t number
    cdef double real
    if plain == room and room[0] == c'd':
        number = <int64_t>be64(room + 1)
        memcpy(&real, &number, 8)
        if -TWO_TO_63 <= real < TWO_TO_63 and real == <double><int64_t>real:
            room[0] = c'l'
            put_be64(room + 1, <uint64_t><int64_t>real)
        elif TWO_TO_63 <= real < 2 * TWO_TO_63:
            room[0] = c'T'
            put_be64(room + 1, <uint64_t>real)
    return plain


cdef int32_t make_extract(const by_headers_t *by, const uint8_t *table, uint8_t *extract) noexcept nogil:
    """Write the extract of a header table (NULL: none).  Returns its octets; -1: there are more than EXTRACT_MOST."""
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef const uint8_t *name
    cdef const uint8_t *value
    cdef uint8_t room[9]
    cdef size_t n, plain_n, name_n
    cdef uint32_t hash, at = 0
    if table == NULL:
        return 0
    p = table + 4
    end = p + be32(table)
    while p < end:
        name = p
        name_n = 1 + name[0]
        p += name_n
        n = value_length(p, end)
        hash = crc_update(0, name, name_n)
        if is_asked(by, hash | 1):
            plain_n = n
            value = compared_value(p, room, &plain_n)
            if not is_asked(by, asked_value(hash, value, plain_n)):
                room[0] = OTHER_VALUE
                value = room
                plain_n = 1
            if at + name_n + plain_n > EXTRACT_MOST:
                return -1
            memcpy(extract + at, name, name_n)
            memcpy(extract + at + name_n, value, plain_n)
            at += <uint32_t>(name_n + plain_n)
        p += n
    return <int32_t>at


# ---- routes by their extracts

cdef route_t *find_way(const by_headers_t *by, uint32_t hash, const uint8_t *extract, uint32_t n) noexcept nogil:
    cdef extracts_t *x = by.extracts
    cdef way_t *ways
    cdef way_t found
    cdef uint32_t i
    if x.ways == NULL:
        return NULL
    ways = x.ways + (hash & x.mask) * WAYS
    for i in range(WAYS):
        if ways[i].route == NULL:
            return NULL
        if ways[i].hash == hash and ways[i].of == by and ways[i].route.method_n == n \
                and memcmp(ways[i].route.method, extract, n) == 0:
            found = ways[i]
            if i:
                ways[i] = ways[i - 1]
                ways[i - 1] = found
            return found.route
    return NULL


cdef route_t *route_by_headers(const route_t *r, const uint8_t *properties) noexcept nogil:
    """The route that r, which depends on headers, has for a message with these properties.  NULL: none is remembered."""
    cdef uint8_t extract[EXTRACT_MOST]
    cdef int32_t n = make_extract(r.by_headers, property_at(properties, PROPERTY_HEADERS), extract)
    if n < 0:
        return NULL
    return find_way(r.by_headers, crc_update(r.hash, extract, n), extract, n)


cdef way_t *place_in_set(extracts_t *x, const way_t *way) noexcept nogil:
    """Where a new route goes: the first free place of its set, else the last one, which may be taken."""
    cdef way_t *ways = x.ways + (way.hash & x.mask) * WAYS
    cdef uint32_t i
    for i in range(WAYS - 1):
        if ways[i].route == NULL:
            return ways + i
    return ways + WAYS - 1


cdef int extracts_grow(extracts_t *x) noexcept nogil:
    """Make room for one route more if the sets are half full and may grow.  0 or ENOMEM."""
    cdef extracts_t grown
    cdef way_t *place
    cdef uint32_t i, sets = x.mask + 1 if x.ways != NULL else 0
    if sets == SETS_MOST or (sets and x.n * 2 < sets * WAYS):
        return 0
    grown.mask = sets * 4 - 1 if sets else SETS_FIRST - 1
    if grown.mask >= SETS_MOST:
        grown.mask = SETS_MOST - 1
    grown.n = x.n
    grown.ways = <way_t *>calloc((grown.mask + 1) * WAYS, sizeof(way_t))
    if grown.ways == NULL:
        return ENOMEM
    for i in range(sets * WAYS):        # A set parts into larger ones: there is a free place for each.
        if x.ways[i].route != NULL:
            place = place_in_set(&grown, x.ways + i)
            place[0] = x.ways[i]
    free(x.ways)
    x[0] = grown
    return 0


cdef void extracts_free(extracts_t *x) noexcept nogil:
    cdef uint32_t i
    if x == NULL:
        return
    for i in range((x.mask + 1) * WAYS if x.ways != NULL else 0):
        free(x.ways[i].route)
    free(x.ways)
    free(x)


# ---- delays

cdef inline bint has_name(const uint8_t *name, const char *other) noexcept nogil:
    return name[0] == strlen(other) and memcmp(name + 1, other, name[0]) == 0


cdef int64_t DUE_LAST = 0x7FFFFFFFFFFFFFFF  # ms


cdef int64_t due_in(const uint8_t *properties, int64_t from_ms) noexcept nogil:
    """When whole properties say that a message is due that came at `from_ms`, in ms since the epoch; 0: they do not say it, or
    the control plane must read it.

    It is plain where x-deliver-at or else x-delay is a whole number above 0, and nothing says to whom else the message goes."""
    cdef const uint8_t *table = property_at(properties, PROPERTY_HEADERS)
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef const uint8_t *name
    cdef size_t n
    cdef int64_t delay = 0, at = 0
    if table == NULL or be16(properties) & 1 << PROPERTY_EXPIRATION:
        return 0
    p = table + 4
    end = p + be32(table)
    while p < end:
        name = p
        p += 1 + name[0]
        n = value_length(p, end)
        if delay == 0 and has_name(name, b"x-delay"):       # Of two the first one counts, as in a decoded table.
            delay = number_above_0(p, n)
            if delay == 0 or p[0] == c'T':
                return 0
        elif at == 0 and has_name(name, b"x-deliver-at"):
            at = number_above_0(p, n)
            if p[0] == c'T':
                at = at * 1000 if at <= DUE_LAST // 1000 else 0
            if at == 0:
                return 0
        elif has_name(name, b"x-delayed-expiration") or has_name(name, b"CC") or has_name(name, b"BCC"):
            return 0
        p += n
    if at:
        return at
    if delay == 0:
        return 0
    return from_ms + delay if delay <= DUE_LAST - from_ms else DUE_LAST


cdef int64_t number_above_0(const uint8_t *p, size_t n) noexcept nogil:
    """The whole number in the n octets at p, a kind and its value.  0: it is none, or not above 0."""
    cdef uint8_t room[9]
    cdef const uint8_t *value = plain_value(p, room, &n)
    return max(<int64_t>be64(room + 1), 0) if value == room and room[0] == c'l' else 0

# Makes and stores dead letters: writes the properties of a dead letter from those of the message that died, adds its
# history to the headers, and stores the letter in the queues that its dead-letter exchange leads to.
#
#    forward      forwards one message that is dying, or has the control plane do it (Queue.on_dead)
#    write_letter writes the properties, octet for octet as queues/dead_letter.py does
#
# The plane can continue two histories: an empty one, and an x-death as brokers write it.  The control plane
# handles all other headers: CC and BCC, tables, names beyond ASCII, histories that clients made up.  A Routes object says where
# letters go, and asks the control plane once for each dead-letter exchange and routing key.

cdef enum:
    HEADERS_MOST = 64           # in a message; the control plane forwards one with more
    DEATHS_MOST = 32            # in an x-death
    DEATH_FIELDS_MOST = 16      # in one death
    UPCALL = 8                  # cost of a call to the control plane; a letter that the plane makes costs 1 for each target (put.pxi)
    LETTER_ADDS = 4096          # more octets than a death can add to the properties: seven names of 255, and LETTER_HEADERS
    LETTER_HEADERS = 1100       # octets that the queue's gate adds
    OWN_HEADERS = 2             # ... and how many headers


cdef struct field_t:            # of a table: name (short string) and value
    const uint8_t *at
    uint32_t n


cdef struct history_t:          # x-death, as it was read
    const uint8_t *others[DEATHS_MOST]      # deaths of other queues or reasons, each from its type octet on
    uint32_t others_n[DEATHS_MOST]
    uint32_t n
    field_t same[DEATH_FIELDS_MOST]         # fields of the death that this one repeats, by name
    uint32_t same_n                         # 0: it repeats none


# ---- reading

cdef const uint8_t *strings_end(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """The end of an array of long strings; its length stands at p.  NULL: it is cut off, or has other items."""
    cdef const uint8_t *stop
    if end - p < 4 or be32(p) > <uint64_t>(end - p - 4):
        return NULL
    stop = p + 4 + be32(p)
    p += 4
    while p < stop:
        if p[0] != c'S' or stop - p < 5 or be32(p + 1) > <uint64_t>(stop - p - 5):
            return NULL
        p += 5 + be32(p + 1)
    return stop


cdef const uint8_t *value_end(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """The end of a field value; p: its type.  NULL: it is cut off, or the control plane would write it in another way."""
    cdef uint64_t n
    cdef uint8_t kind
    if p >= end:
        return NULL
    kind = p[0]
    p += 1
    if kind == c'S' or kind == c'x':
        if end - p < 4:
            return NULL
        n = 4 + <uint64_t>be32(p)
    elif kind == c'A':
        return strings_end(p, end)
    elif kind == c't':
        n = 1
        if p < end and p[0] > 1:
            return NULL
    elif kind == c'b' or kind == c'B':
        n = 1
    elif kind == c's' or kind == c'u':
        n = 2
    elif kind == c'I' or kind == c'i':
        n = 4
    elif kind == c'l' or kind == c'T':
        n = 8
    elif kind == c'V':
        n = 0
    else:
        return NULL             # Floating-point numbers, too: the octets of a NaN may change on their way through Python.
    return p + n if n <= <uint64_t>(end - p) else NULL


cdef inline bint is_named(const field_t *field, const char *name, uint32_t n) noexcept nogil:
    return field.at[0] == n and memcmp(field.at + 1, name, n) == 0


cdef inline bint begins(const field_t *field, const char *name, uint32_t n) noexcept nogil:
    return field.at[0] >= n and memcmp(field.at + 1, name, n) == 0


cdef inline const uint8_t *value_of(const field_t *field) noexcept nogil:
    return field.at + 1 + field.at[0]


cdef int read_fields(const uint8_t *p, const uint8_t *end, field_t *fields, int most, const uint8_t **deaths) noexcept nogil:
    """Read the fields of a table, and return how many.  -1: there are more than `most`, or the plane cannot handle one.
    deaths: where x-death's value is put instead of among the fields; NULL: an x-death is a field like others."""
    cdef int n = 0
    cdef uint32_t i
    cdef field_t field
    while p < end:
        field.at = p
        if end - p <= 1 + p[0]:
            return -1
        for i in range(p[0]):
            if p[1 + i] >= 0x80:
                return -1
        if deaths != NULL and is_named(&field, b"x-death", 7):
            p = value_of(&field)
            if deaths[0] != NULL or p[0] != c'A' or end - p < 5 or be32(p + 1) > <uint64_t>(end - p - 5):
                return -1
            deaths[0] = p
            p += 5 + be32(p + 1)
            continue
        p = value_end(value_of(&field), end)
        if p == NULL or n == most:
            return -1
        field.n = <uint32_t>(p - field.at)
        fields[n] = field
        n += 1
    return n


cdef bint sort_fields(field_t *fields, uint32_t n) noexcept nogil:
    """Sort by name.  False: two fields have the same name."""
    cdef uint32_t i, j
    cdef field_t field
    cdef int order
    for i in range(1, n):
        field = fields[i]
        j = i
        while j:
            order = memcmp(fields[j - 1].at + 1, field.at + 1, min(fields[j - 1].at[0], field.at[0]))
            if order == 0:
                order = <int>fields[j - 1].at[0] - <int>field.at[0]
                if order == 0:
                    return False
            if order < 0:
                break
            fields[j] = fields[j - 1]
            j -= 1
        fields[j] = field
    return True


cdef const field_t *field_named(const field_t *fields, uint32_t n, const char *name, uint32_t name_n) noexcept nogil:
    cdef uint32_t i
    for i in range(n):
        if is_named(&fields[i], name, name_n):
            return &fields[i]
    return NULL


cdef inline bint is_text(const field_t *field, const uint8_t *text, uint32_t n) noexcept nogil:
    cdef const uint8_t *value = value_of(field)
    return be32(value + 1) == n and memcmp(value + 5, text, n) == 0


cdef bint read_history(const letters_t *l, uint8_t reason, const uint8_t *deaths, history_t *h) noexcept nogil:
    """Read the deaths in x-death; deaths: its type.  False: the control plane must look at it.

    A message that died by itself must not come back to a queue where it has been since a client last rejected it
    (is_cycle()).  The plane cannot check that, because queues have no names here.  So it answers False unless the latest
    other death was a rejection."""
    cdef const uint8_t *p = deaths + 5
    cdef const uint8_t *end = p + be32(deaths + 1)
    cdef const uint8_t *start
    cdef const field_t *queue
    cdef const field_t *why
    cdef field_t fields[DEATH_FIELDS_MOST]
    cdef const uint8_t *queues[DEATHS_MOST]
    cdef const uint8_t *reasons[DEATHS_MOST]
    cdef uint32_t i
    cdef int n
    cdef const char *own = REASON_NAMES[reason]
    h.n = h.same_n = 0
    while p < end:
        start = p
        if p[0] != c'F' or end - p < 5 or be32(p + 1) > <uint64_t>(end - p - 5):
            return False
        p += 5 + be32(p + 1)
        n = read_fields(start + 5, p, fields, DEATH_FIELDS_MOST, NULL)
        if n < 0 or not sort_fields(fields, n):
            return False
        queue = field_named(fields, n, b"queue", 5)
        why = field_named(fields, n, b"reason", 6)
        if queue == NULL or why == NULL or value_of(queue)[0] != c'S' or value_of(why)[0] != c'S':
            return False
        if is_text(queue, l.queue, l.queue_n) and is_text(why, <const uint8_t *>own, <uint32_t>strlen(own)):
            if h.same_n:
                return False
            memcpy(h.same, fields, n * sizeof(field_t))
            h.same_n = n
            continue
        if h.n == DEATHS_MOST:
            return False
        if h.n == 0 and reason != REASON_REJECTED and not is_text(why, b"rejected", 8):
            return False
        # Items that are of one queue and reason, or have no count, are merged (queues/dead_letter.py).
        if field_named(fields, n, b"count", 5) == NULL:
            return False
        queues[h.n] = value_of(queue)
        reasons[h.n] = value_of(why)
        for i in range(h.n):
            if is_text(queue, queues[i] + 5, be32(queues[i] + 1)) and is_text(why, reasons[i] + 5, be32(reasons[i] + 1)):
                return False
        h.others[h.n] = start
        h.others_n[h.n] = <uint32_t>(p - start)
        h.n += 1
    return True


# ---- writing

cdef inline uint8_t *write_text(uint8_t *p, const char *name, const uint8_t *text, uint32_t n) noexcept nogil:
    """Write a field with a long string."""
    cdef size_t name_n = strlen(name)
    p[0] = <uint8_t>name_n
    memcpy(p + 1, name, name_n)
    p += 1 + name_n
    p[0] = c'S'
    put_be32(p + 1, n)
    memcpy(p + 5, text, n)
    return p + 5 + n


cdef inline uint8_t *write_u64(uint8_t *p, const char *name, uint8_t kind, uint64_t value) noexcept nogil:
    cdef size_t name_n = strlen(name)
    p[0] = <uint8_t>name_n
    memcpy(p + 1, name, name_n)
    p += 1 + name_n
    p[0] = kind
    put_be64(p + 1, value)
    return p + 9


cdef uint8_t *write_new_death(uint8_t *p, const letters_t *l, uint8_t reason, const message_t *m, uint64_t time_s,
                              const uint8_t *expiration, bint by_name) noexcept nogil:
    """Write the table of a death of a new queue or reason.  expiration: a short string, or NULL.  by_name: its fields stand
    in the order of their names, as in every x-death but a message's first."""
    cdef uint8_t *start = p
    cdef const char *why = REASON_NAMES[reason]
    cdef const uint8_t *key = m.names + 1 + m.names[0]
    p[0] = c'F'
    p = write_u64(p + 5, b"count", c'l', 1)
    if by_name:
        p = write_text(p, b"exchange", m.names + 1, m.names[0])
        if expiration != NULL:
            p = write_text(p, b"original-expiration", expiration + 1, expiration[0])
        p = write_text(p, b"queue", l.queue, l.queue_n)
        p = write_text(p, b"reason", <const uint8_t *>why, <uint32_t>strlen(why))
    else:
        p = write_text(p, b"reason", <const uint8_t *>why, <uint32_t>strlen(why))
        p = write_text(p, b"queue", l.queue, l.queue_n)
        p = write_u64(p, b"time", c'T', time_s)
        p = write_text(p, b"exchange", m.names + 1, m.names[0])
    memcpy(p, b"\x0crouting-keysA", 14)
    put_be32(p + 14, 5 + key[0])
    p[18] = c'S'
    put_be32(p + 19, key[0])
    memcpy(p + 23, key + 1, key[0])
    p += 23 + key[0]
    if by_name:
        p = write_u64(p, b"time", c'T', time_s)
    elif expiration != NULL:
        p = write_text(p, b"original-expiration", expiration + 1, expiration[0])
    put_be32(start + 1, <uint32_t>(p - start - 5))
    return p


cdef uint8_t *write_same_death(uint8_t *p, const history_t *h) noexcept nogil:
    """Write the table of a death that repeats one: its count is one higher.  NULL: no broker writes such a count."""
    cdef uint8_t *start = p
    cdef uint32_t i
    cdef const uint8_t *value
    cdef bint counted = False
    p[0] = c'F'
    p += 5
    for i in range(h.same_n):
        memcpy(p, h.same[i].at, h.same[i].n)
        if is_named(&h.same[i], b"count", 5):
            value = value_of(&h.same[i])
            if value[0] != c'l' or be64(value + 1) >= <uint64_t>0x7FFFFFFFFFFFFFFF:
                return NULL
            put_be64(p + 7, be64(value + 1) + 1)
            counted = True
        p += h.same[i].n
    put_be32(start + 1, <uint32_t>(p - start - 5))
    return p if counted else NULL


cdef inline void add_text(field_t *fields, int *n, uint8_t **p, const char *name, const uint8_t *text,
                          uint32_t text_n) noexcept nogil:
    """Write one more field at p, and add it to `fields`."""
    fields[n[0]].at = p[0]
    p[0] = write_text(p[0], name, text, text_n)
    fields[n[0]].n = <uint32_t>(p[0] - fields[n[0]].at)
    n[0] += 1


cdef int headers_that_stay(const letters_t *l, field_t *fields, int n, bint first) noexcept nogil:
    """Drop the fields that each death writes anew, and return how many stay.  -1: one is for the control plane."""
    cdef int i, left = 0
    for i in range(n):
        if is_named(&fields[i], b"CC", 2) or is_named(&fields[i], b"BCC", 3) \
                or (first and begins(&fields[i], b"x-first-death-", 14)) \
                or (l.per_message and begins(&fields[i], b"x-dead-letter-", 14)):
            return -1
        if is_named(&fields[i], b"x-last-death-reason", 19) or is_named(&fields[i], b"x-last-death-queue", 18) \
                or is_named(&fields[i], b"x-last-death-exchange", 21):
            continue
        fields[left] = fields[i]
        left += 1
    return left


cdef int add_own_headers(field_t *fields, int n, const uint8_t *own, uint32_t own_n, bint first) noexcept nogil:
    """Add what the queue's gate says of the message, items of a table, and return how many fields there are then.  After the
    first death what an earlier queue said of it stays."""
    cdef field_t added[OWN_HEADERS]
    cdef int i, k, count = read_fields(own, own + own_n, added, OWN_HEADERS, NULL)
    for k in range(count):
        i = 0
        while i < n and (fields[i].at[0] != added[k].at[0] or memcmp(fields[i].at + 1, added[k].at + 1, added[k].at[0]) != 0):
            i += 1
        if i == n:
            n += 1
        elif not first:
            continue
        fields[i] = added[k]
    return n


cdef uint8_t *write_deaths(uint8_t *p, const letters_t *l, uint8_t reason, const message_t *m, uint64_t time_s,
                           const uint8_t *expiration, const uint8_t *deaths) noexcept nogil:
    """Write the field x-death, with this death in front.  NULL: the control plane must continue the history."""
    cdef history_t h
    cdef uint8_t *start = p
    cdef uint32_t i
    memcpy(p, b"\x07x-deathA", 9)
    p += 13
    if deaths == NULL:
        p = write_new_death(p, l, reason, m, time_s, expiration, False)
    else:
        if not read_history(l, reason, deaths, &h):
            return NULL
        p = write_same_death(p, &h) if h.same_n else write_new_death(p, l, reason, m, time_s, expiration, True)
        if p == NULL:
            return NULL
        for i in range(h.n):
            memcpy(p, h.others[i], h.others_n[i])
            p += h.others_n[i]
    put_be32(start + 9, <uint32_t>(p - start - 13))
    return p


cdef int64_t write_letter(const letters_t *l, uint8_t reason, const message_t *m, uint64_t time_s, const uint8_t *own,
                          uint32_t own_n, uint8_t *out, uint8_t *made) noexcept nogil:
    """Write the dead letter's properties at `out`, and return how many octets.  -1: the control plane must make them.

    own: what the queue's gate adds.  made: room for new fields.  Both have room for m.properties_n + LETTER_ADDS octets."""
    cdef const uint8_t *properties = m.properties
    cdef const uint8_t *end = properties + m.properties_n
    cdef uint16_t flags = be16(properties)
    cdef const uint8_t *table = property_at(properties, PROPERTY_HEADERS)
    cdef const uint8_t *expiration = property_at(properties, PROPERTY_EXPIRATION)
    cdef const uint8_t *deaths = NULL
    cdef const uint8_t *before = properties + 2     # the table, or where it would stand
    cdef const uint8_t *after
    cdef const uint8_t *why = <const uint8_t *>REASON_NAMES[reason]
    cdef uint32_t why_n = <uint32_t>strlen(<const char *>why)
    cdef field_t fields[HEADERS_MOST + 7 + OWN_HEADERS]
    cdef uint8_t *p
    cdef uint8_t *length
    cdef int i, n = 0
    if flags & 1 << PROPERTY_CONTENT_TYPE:
        before += 1 + before[0]
    if flags & 1 << PROPERTY_CONTENT_ENCODING:
        before += 1 + before[0]
    after = before
    if table != NULL:
        after = table + 4 + be32(table)
        n = read_fields(table + 4, after, fields, HEADERS_MOST, &deaths)
        if n < 0:
            return -1
        n = headers_that_stay(l, fields, n, deaths == NULL)
        if n < 0:
            return -1
    fields[n].at = made
    p = write_deaths(made, l, reason, m, time_s, expiration, deaths)
    if p == NULL:
        return -1
    fields[n].n = <uint32_t>(p - made)
    n += 1
    if own_n:
        n = add_own_headers(fields, n, own, own_n, deaths == NULL)
    if deaths == NULL:
        add_text(fields, &n, &p, b"x-first-death-exchange", m.names + 1, m.names[0])
        add_text(fields, &n, &p, b"x-first-death-queue", l.queue, l.queue_n)
        add_text(fields, &n, &p, b"x-first-death-reason", why, why_n)
    add_text(fields, &n, &p, b"x-last-death-exchange", m.names + 1, m.names[0])
    add_text(fields, &n, &p, b"x-last-death-queue", l.queue, l.queue_n)
    add_text(fields, &n, &p, b"x-last-death-reason", why, why_n)
    ASSERT(p <= made + m.properties_n + LETTER_ADDS)
    if not sort_fields(fields, n):
        return -1
    # The two lowest flags stand for no property.
    put_be16(out, <uint16_t>((flags | 1 << PROPERTY_HEADERS) & ~(1 << PROPERTY_EXPIRATION) & ~3))
    p = out + 2
    memcpy(p, properties + 2, before - properties - 2)
    p += before - properties - 2
    length = p
    p += 4
    for i in range(n):
        memcpy(p, fields[i].at, fields[i].n)
        p += fields[i].n
    put_be32(length, <uint32_t>(p - length - 4))
    if expiration != NULL:
        memcpy(p, after, expiration - after)
        p += expiration - after
        after = expiration + 1 + expiration[0]
    memcpy(p, after, end - after)
    p += end - after
    ASSERT(p <= out + m.properties_n + LETTER_ADDS)
    return p - out


# ---- storing

cdef inline route_t *route_of_letter(letters_t *l, const uint8_t *names, uint32_t n, uint64_t *spent) noexcept nogil:
    """The route of a dead letter with this exchange and routing key.  NULL: resolve() failed.  A look-up adds its cost to
    `spent`."""
    cdef route_t *r = l.route
    if r != NULL and l.generation == l.generations[0] and r.method_n == n + 7 and memcmp(r.method + 6, names, n) == 0:
        return r
    spent[0] += UPCALL      # It may be the first with this key.
    with gil:
        return (<Routes>l.routes).find_for_letters(l, names, n)


cdef bint can_all_take(const route_t *r, const queue_t *source, bint at_least_once) noexcept nogil:
    """Whether the plane can store the letter in all targets.  The control plane must if a target has reject-publish-dlx, or
    is the queue where the message died; and, at least once, if there is no target, or one may refuse the letter."""
    cdef queue_t *q
    cdef uint32_t i
    for i in range(r.targets_n):
        q = r.targets[i]
        if q == source or (q.rules != NULL and q.rules.overflow == REJECT_PUBLISH_DLX):
            return False
        if at_least_once and (q.dropped or (q.rules != NULL and (q.rules.overflow == REJECT_PUBLISH or q.rules.gate != NULL))):
            return False
    return r.targets_n > 0 or not at_least_once


cdef uint8_t *letter_room(core_t *core, size_t n) noexcept nogil:
    """Room for n octets, valid until the next call; NULL: no memory."""
    cdef uint8_t *p
    if n > core.letter_room:
        p = <uint8_t *>realloc(core.letter, n)
        if p == NULL:
            return NULL
        core.letter = p
        core.letter_room = n
    return core.letter


cdef enum:
    FORWARDED = 0               # what forward() answers
    FORWARD_LATER = 1           # nothing was stored: room in its many targets takes more time; the next call goes on with that
    FORWARD_UP = 2              # nothing was stored, and on_dead() must do it

    UNHURRIED_TARGETS = 64      # room in so many is found at once if this holds up no turn


cdef int forward(queue_t *q, place_t *dead, uint64_t *spent, uint32_t *stored, bint hurried) noexcept nogil:
    """Store the dead letter of a message that is dying in its targets, and add its cost to `spent`.  stored: as
    store_message() sets it; it WAITS if the letter goes at least once.  hurried: others wait for their turn."""
    cdef letters_t *l = q.rules.letters
    cdef message_t m
    cdef known_t known
    cdef route_t *r
    cdef uint32_t names_n
    cdef uint8_t names[2 * SHORTSTR_ROOM]
    cdef uint8_t *room
    cdef size_t half
    cdef int64_t n
    cdef uint8_t own[LETTER_HEADERS]
    cdef uint32_t own_n = 0
    cdef int err
    if seg_map(dead.seg) != 0:
        return FORWARD_UP
    message_of(dead.seg.map + dead.position, &m)
    names_n = l.names_n
    memcpy(names, l.names, names_n)
    if not l.has_key:
        memcpy(names + names_n, m.names + 1 + m.names[0], m.names_n - 1 - m.names[0])
        names_n += m.names_n - 1 - m.names[0]
    if UNLIKELY(l.scatter != NULL) and l.scattered != dead.seq:
        scatter_letter_end(l)       # That message is gone.
    if UNLIKELY(l.scatter != NULL):
        r = &l.scatter.route
    else:
        r = route_of_letter(l, names, names_n, spent)
        if r == NULL or r.up or not can_all_take(r, q, l.at_least_once) or m.body_n > q.core.message_octets_max:
            return FORWARD_UP
    half = m.properties_n + LETTER_ADDS
    room = letter_room(q.core, 2 * half)
    if room == NULL:
        return FORWARD_UP
    if UNLIKELY(q.rules.gate != NULL):
        own_n = q.rules.gate.letter(q.rules.gate, dead, own)
        ASSERT(own_n <= LETTER_HEADERS)
    n = write_letter(l, dead.reason, &m, <uint64_t>(q.core.now // 1000000000), own, own_n, room, room + half)
    if n < 0 or not properties_are_whole(room, room + n, &known):
        return FORWARD_UP
    m.names = names
    m.names_n = names_n
    m.properties = room
    m.properties_n = <uint32_t>n
    m.connection = 0
    m.channel = 0
    m.publish_seq = 0
    complete(&m, &known)
    if not can_be_read(q, &m):
        return FORWARD_UP
    if UNLIKELY(is_much(r.targets_n, &m)) and q.core.work_ns != NEVER:
        err = scatter_letter(q, dead.seq, r, &m, spent, stored)
        return FORWARD_LATER if err == EAGAIN else FORWARDED if err == 0 else FORWARD_UP
    if r.targets_n > (1 if hurried else UNHURRIED_TARGETS) \
            and not reserve_in_many(r.targets, r.targets_n, &m, q.core.work_ns):
        q.core.affairs += 1
        return FORWARD_LATER
    spent[0] += cost_of_copies(r.targets_n, m.properties_n + m.body_n)
    q.core.affairs += cost_of_copies(r.targets_n, m.properties_n + m.body_n)
    return FORWARDED if store_message(r.targets, r.targets_n, &m, l.at_least_once, stored, NULL) == 0 else FORWARD_UP


@cython.no_gc_clear
cdef class Letters:
    """See plane/__init__.pyi."""

    def __init__(self, Routes routes not None, bytes queue not None, bytes exchange not None, bytes routing_key=None, *,
                 bint per_message=False, bint at_least_once=False):
        if max(len(queue), len(exchange), len(routing_key or b"")) > 255:
            raise ValueError("a name has at most 255 octets")
        self.routes = routes
        self.queue = queue
        self.names = bytes([len(exchange)]) + exchange
        if routing_key is not None:
            self.names += bytes([len(routing_key)]) + routing_key
        self.l.routes = <void *>routes
        self.l.generations = &routes.generation
        self.l.queue = <const uint8_t *>self.queue
        self.l.queue_n = <uint32_t>len(queue)
        self.l.names = <const uint8_t *>self.names
        self.l.names_n = <uint32_t>len(self.names)
        self.l.has_key = routing_key is not None
        self.l.per_message = per_message
        self.l.at_least_once = at_least_once

    def __dealloc__(self):
        scatter_letter_end(&self.l)

    def make(self, str reason not None, bytes exchange not None, bytes routing_key not None, bytes properties not None,
             uint64_t time_s, bytes own not None=b""):
        cdef message_t m
        cdef size_t half = len(properties) + LETTER_ADDS
        cdef bytearray room = bytearray(2 * half)
        cdef uint8_t *out = room
        cdef bytes names = bytes([len(exchange)]) + exchange + bytes([len(routing_key)]) + routing_key
        cdef int64_t n
        m.names = <const uint8_t *>names
        m.names_n = <uint32_t>len(names)
        m.properties = <const uint8_t *>properties
        m.properties_n = <uint32_t>len(properties)
        n = write_letter(&self.l, REASONS.index(reason), &m, time_s, <const uint8_t *>own, <uint32_t>len(own), out, out + half)
        return None if n < 0 else (<const char *>out)[:n]


def letter_headers(Queue queue not None, uint64_t seq):
    """See plane/__init__.pyi."""
    cdef queue_t *q = &queue.q
    cdef uint8_t own[LETTER_HEADERS]
    cdef uint32_t n = 0
    cdef place_t *t = aside_find(q, seq)
    if t != NULL and q.rules != NULL and q.rules.gate != NULL:
        n = q.rules.gate.letter(q.rules.gate, t, own)
    return (<const char *>own)[:n]

# Duplicates left out of a publish.  A route `checks_keys` if its exchange, or one of its queues, has a window.
#
#    find_key       the key in a message's headers, hashed; the rule is the window's
#    check_keys     which of a route's queues do not know the message
#    learn_key      the exchange learns the key of a message that a queue has stored; a queue learns it in append() (keys.pxi)
#
# A key is plain if it is text, a whole number or the body; a missing key is plain, too.  So is the name of a group.  Messages with
# other keys go up: the control plane (vhost/duplicates) finds the octets of any key, and is the model of this file.
#
# The keys of a durable exchange have a log, which the control plane writes: on_learnt() gets the rows of a chunk when the
# chunk's records are in their files.  So kill -9 loses the rows of one chunk at most, and a start finds these keys in the
# records.  A row has its room in the log before its message is stored (on_full()); if there is no room, the publish waits.
# Where a message goes to several queues, or to one with a window, its row is written before the next publish.

cdef enum:
    NOT_PLAIN = -1              # of check_keys()
    SLOTS_MANY = 1 << 16        # of an index that is too large for the fast caches
    FEW_TARGETS = 8             # need no memory of their own
    ROWS_FIRST = 64

cdef extern from *:
    """
    #define ROW_NOT_LASTING ((uint64_t)1 << 63)
    """
    uint64_t ROW_NOT_LASTING    # format.NOT_LASTING: no sync covers the message

cdef struct learner_t:          # in ExchangeWindow: what it has learnt since the chunk began
    window_t *window            # of the same object
    void *owner                 # the object; the list holds a reference to it
    bint has_log
    bint is_learnt              # in core_t.learnt
    learner_t *next
    uint8_t *rows
    uint32_t rows_n, rows_capacity
    uint32_t room               # the log has room for so many rows, these among them
    uint32_t lasting            # the next sync covers the messages of so many rows, from the first on; 0: of none
    int64_t until               # when the last of these keys expires

cdef struct check_t:            # of one publish
    keys_t keys
    queue_t **left              # the queues that do not know the key; behind left_n those that know it
    uint8_t *took               # of those left: whether the queue stored the message
    uint32_t left_n
    uint32_t replaced           # of those left: queues that know the key, and in which the message replaces the older one
    bint exchange_knows
    bint has_key
    void *room                  # NULL: the arrays below are enough
    queue_key_t few_keys[8]
    queue_t *few_left[8]
    uint8_t few_took[8]


# ---- the key of a message

cdef inline bint is_whole_number(const uint8_t *plain, const uint8_t *room, uint8_t kind) noexcept nogil:
    """Whether plain_value() made a whole number of a value of this kind."""
    return plain == room and room[0] == c'l' and kind != c'T'


cdef bint hash_value(const window_t *w, const uint8_t *value, size_t n, uint64_t *hash_) noexcept nogil:
    """The hash of a header's value as queues/deduplication.key_of() makes it.  False: it is not plain."""
    cdef uint8_t room[9]
    cdef char digits[24]
    cdef const uint8_t *plain
    if w.hash_key == NULL:
        return False                    # The control plane has not said yet how keys are hashed.
    if value[0] == c'S':
        hash_[0] = hash_with_key(w.hash_key, c'S', value + 5, n - 5)
        return True
    plain = plain_value(value, room, &n)
    if not is_whole_number(plain, room, value[0]):
        return False
    n = <size_t>snprintf(digits, sizeof(digits), "%lld", <long long>be64(room + 1))
    hash_[0] = hash_with_key(w.hash_key, c'I', <const uint8_t *>digits, n)
    return True


cdef bint hash_group(const window_t *w, const uint8_t *value, size_t n, uint64_t *hash_) noexcept nogil:
    """The hash of a group's name, a header's value, as queues/deduplication.group_of() makes it.  False: it is not plain."""
    cdef uint8_t room[9]
    cdef char digits[24]
    cdef const uint8_t *plain
    if value[0] == c'S':
        hash_[0] = hash_with_key(w.hash_key, c'G', value + 5, n - 5)
        return True
    plain = plain_value(value, room, &n)
    if not is_whole_number(plain, room, value[0]):
        return False
    n = <size_t>snprintf(digits, sizeof(digits), "%lld", <long long>be64(room + 1))
    hash_[0] = hash_with_key(w.hash_key, c'H', <const uint8_t *>digits, n)
    return True


cdef const uint8_t *find_header(const uint8_t *table, const uint8_t *name, size_t name_n, size_t *n) noexcept nogil:
    """The value of a header, its kind first, and its octets.  NULL: it is not there, or void."""
    cdef const uint8_t *p = table + 4
    cdef const uint8_t *end = p + be32(table)
    cdef const uint8_t *found
    while p < end:
        found = p
        p += 1 + p[0]
        n[0] = value_length(p, end)
        if found[0] == name_n and memcmp(found + 1, name, name_n) == 0:
            return p if p[0] != c'V' else NULL
        p += n[0]
    return NULL


cdef extern from *:
    """
    static const char *const USUAL_GROUP_HEADERS[] = {"JMSXGroupID", "x-message-group-id", "MessageGroupId", "group-id"};
    """
    const char **USUAL_GROUP_HEADERS


cdef bint find_key_group(const window_t *w, const message_t *m, const uint8_t *properties, uint64_t *hash_) noexcept nogil:
    """The hash of the name of a message's group, 0: it has none.  m: where its routing key is.  False: it is not plain."""
    cdef const uint8_t *table
    cdef const uint8_t *p = NULL
    cdef size_t n = 0
    cdef int i
    hash_[0] = 0
    if w.group_from == GROUP_ROUTING_KEY:
        p = m.names + 1 + m.names[0] if m != NULL else NULL
    elif w.group_from == GROUP_PROPERTY:
        p = property_at(properties, w.group_property)
    if w.group_from >= GROUP_ROUTING_KEY:
        if p != NULL:
            hash_[0] = hash_with_key(w.hash_key, c'G', p + 1, p[0])
        return True
    table = property_at(properties, PROPERTY_HEADERS)
    if table == NULL:
        return True
    if w.group_from == GROUP_HEADER:
        p = find_header(table, w.group, w.group_n, &n)
    else:
        for i in range(4):
            p = find_header(table, <const uint8_t *>USUAL_GROUP_HEADERS[i], strlen(USUAL_GROUP_HEADERS[i]), &n)
            if p != NULL:
                break
    return True if p == NULL else hash_group(w, p, n, hash_)


cdef bint find_key(const window_t *w, const message_t *m, const uint8_t *properties, uint64_t *hash_,
                   int64_t *ttl) noexcept nogil:
    """The hash of the key of a message with these properties, 0: it has none; and the time that it sets, -1: none.  False: the
    key is not plain.  m: where its body and routing key are; NULL: whether the key is plain is wanted, and no more."""
    cdef uint64_t group
    if not find_header_key(w, properties, hash_, ttl):
        return False
    if LIKELY(not w.by_content and w.group_from == GROUP_NONE):
        return True
    if hash_[0] == 0 and w.by_content:
        if w.hash_key == NULL:
            return False
        hash_[0] = hash_with_key(w.hash_key, c'C', m.body, m.body_n) if m != NULL else 1
    if hash_[0] and w.group_from != GROUP_NONE:
        if not find_key_group(w, m, properties, &group):
            return False
        hash_[0] ^= group << 32 | group >> 32
        hash_[0] += hash_[0] == 0
    return True


cdef inline bint find_key_of(const window_t *w, const message_t *m, const uint8_t *properties, uint64_t *hash_,
                             int64_t *ttl) noexcept nogil:
    """find_key(), where the key was perhaps found already."""
    if ahead.properties == properties and ahead.rule == w:
        hash_[0] = ahead.hash
        ttl[0] = ahead.ttl
        return True
    return find_key(w, m, properties, hash_, ttl)


cdef void look_ahead(const window_t *w, const message_t *m) noexcept nogil:
    """Find the key of the publish behind this one, if that goes to the same place, and have the processor fetch its slot
    while this one is stored: in a large index a slot takes longer to come than the rest of a publish."""
    cdef const uint8_t *p = m.body + m.body_n + (m.body_n > 0)
    cdef const uint8_t *method = m.names - 6
    cdef uint32_t method_n = m.names_n + 7, header_n
    cdef known_t known
    ahead.properties = NULL
    if m.body < ahead.begin or m.body >= ahead.end or w.by_content or w.group_from != GROUP_NONE:
        return
    if <size_t>(ahead.end - p) < method_n + 30 or memcmp(p, method - 7, 7 + method_n):
        return
    p += 8 + method_n
    header_n = be32(p + 3)
    if p[0] != FRAME_HEADER or header_n < 14 or <size_t>(ahead.end - p) < <size_t>header_n + 8:
        return
    if properties_are_whole(p + 19, p + 7 + header_n, &known) and find_header_key(w, p + 19, &ahead.hash, &ahead.ttl):
        ahead.properties = p + 19
        ahead.rule = w
        slot_prefetch(&w.ring, ahead.hash)
        if UNLIKELY(w.old.keys != NULL):
            slot_prefetch(&w.old, ahead.hash)


cdef bint find_header_key(const window_t *w, const uint8_t *properties, uint64_t *hash_, int64_t *ttl) noexcept nogil:
    """find_key() by headers alone."""
    cdef const uint8_t *table = property_at(properties, PROPERTY_HEADERS)
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef const uint8_t *name
    cdef const uint8_t *plain
    cdef const uint8_t *first = NULL
    cdef const uint8_t *other = NULL
    cdef uint8_t room[9]
    cdef size_t n, plain_n, first_n = 0, other_n = 0
    cdef bint has_ttl = False
    hash_[0] = 0
    ttl[0] = -1
    if table == NULL:
        return True
    p = table + 4
    end = p + be32(table)
    while p < end:                      # Of two headers with one name the first one counts, as in a decoded table.
        name = p
        p += 1 + name[0]
        n = value_length(p, end)
        if first == NULL and name[0] == w.header_n and memcmp(name + 1, w.header, w.header_n) == 0:
            first = p
            first_n = n
        if other == NULL and has_name(name, b"MessageDeduplicationId"):
            other = p
            other_n = n
        elif not has_ttl and has_name(name, b"x-cache-ttl"):
            has_ttl = True
            plain_n = n
            plain = plain_value(p, room, &plain_n)
            if is_whole_number(plain, room, p[0]):
                ttl[0] = max(<int64_t>be64(room + 1), -1)
        p += n
    if first == NULL or first[0] == c'V':
        first = other
        first_n = other_n
        if other == NULL or other[0] == c'V':
            return True
    return hash_value(w, first, first_n, hash_)


def find_key_hash(Window window not None, const uint8_t[::1] properties, bytes routing_key not None=b"",
                  bytes body not None=b""):
    """See plane/__init__.pyi."""
    cdef known_t known
    cdef message_t m
    cdef bytes names = b"\0" + bytes([len(routing_key)]) + routing_key
    cdef uint64_t hash_
    cdef int64_t ttl
    if properties.shape[0] < 2 or not properties_are_whole(&properties[0], &properties[0] + properties.shape[0], &known):
        raise ValueError("malformed properties")
    m.names = <const uint8_t *>names
    m.body = <const uint8_t *>body
    m.body_n = <uint64_t>len(body)
    return hash_ if find_key(&window.w, &m, &properties[0], &hash_, &ttl) else None


def find_own_ttl(const uint8_t[::1] properties):
    """See plane/__init__.pyi."""
    cdef window_t none
    cdef known_t known
    cdef uint64_t hash_
    cdef int64_t ttl
    memset(&none, 0, sizeof(window_t))
    if properties.shape[0] < 2 or not properties_are_whole(&properties[0], &properties[0] + properties.shape[0], &known):
        raise ValueError("malformed properties")
    find_header_key(&none, &properties[0], &hash_, &ttl)
    return ttl


# ---- which queues are left

cdef inline bint has_rule_of(const window_t *w, const window_t *other) noexcept nogil:
    """Whether both find the same key in a message."""
    return w.header_n == other.header_n and memcmp(w.header, other.header, w.header_n) == 0 and w.hash_key == other.hash_key \
        and w.by_content == other.by_content and w.group_from == GROUP_NONE == other.group_from


cdef int check_keys(check_t *k, route_t *r, const message_t *m, const uint8_t *properties, int64_t now_ms) noexcept nogil:
    """Part the queues of r into those that know the key of a message that came with these properties, and those that do not.
    0; NOT_PLAIN; ENOMEM.  After 0 the caller calls check_free()."""
    cdef const window_t *last = NULL
    cdef const key_t *known_key
    cdef queue_key_t *key
    cdef queue_t *q
    cdef uint64_t hash_ = 0
    cdef uint32_t i, n = r.targets_n, known = n
    k.keys.of_queues = k.few_keys
    k.left = k.few_left
    k.took = k.few_took
    k.room = NULL
    if UNLIKELY(n > FEW_TARGETS):
        k.room = malloc(n * (sizeof(queue_key_t) + sizeof(queue_t *) + 1))
        if k.room == NULL:
            return ENOMEM
        k.keys.of_queues = <queue_key_t *>k.room
        k.left = <queue_t **>(k.keys.of_queues + n)
        k.took = <uint8_t *>(k.left + n)
    k.keys.n = 0
    k.keys.of_exchange = 0
    k.keys.ttl = -1
    k.left_n = k.replaced = 0
    k.exchange_knows = k.has_key = False
    if r.learner != NULL:
        last = r.learner.window
        if not find_key_of(last, m, properties, &hash_, &k.keys.ttl):
            check_free(k)
            return NOT_PLAIN
        k.has_key = hash_ != 0
        k.keys.of_exchange = hash_
        k.exchange_knows = hash_ != 0 and window_knows(last, hash_, now_ms)
    for i in range(n):
        q = r.targets[i]
        if q.window == NULL or q.dropped:
            k.left[k.left_n] = q
            k.left_n += 1
            continue
        if last == NULL or not has_rule_of(last, q.window):
            last = q.window
            if not find_key_of(last, m, properties, &hash_, &k.keys.ttl):
                check_free(k)
                return NOT_PLAIN
            k.has_key |= hash_ != 0
        key = k.keys.of_queues + k.keys.n
        key.replaces = 0
        key.is_new = False
        if hash_:
            known_key = window_find(q.window, hash_)
            key.is_new = known_key == NULL
            if known_key != NULL and known_key.expires > now_ms:
                if q.window.action != ON_DUPLICATE_REPLACE:
                    known -= 1
                    k.left[known] = q
                    k.keys.of_queues[known].replaces = known_key.seq        # Beyond those that count.
                    continue
                k.replaced += 1
                key.replaces = known_key.seq
        k.left[k.left_n] = q
        k.left_n += 1
        key.queue = q
        key.hash = hash_
        k.keys.n += 1
    if k.exchange_knows:
        k.left_n = k.replaced = 0
    if last != NULL and last.ring.slots_mask >= SLOTS_MANY:
        look_ahead(last, m)
    memset(k.took, 0, n)
    return 0


cdef inline void check_free(check_t *k) noexcept nogil:
    free(k.room)


cdef void tell_duplicate_of(queue_t *q, uint64_t seq) noexcept nogil:
    """Write into the order journal that a duplicate of message `seq` came, and what becomes of it.  Not where its segment is no
    longer in use, nor with priorities: their segments do not say which of them has it."""
    cdef seg_t *s = q.store.first
    if q.levels_above != NULL or s == NULL or s.base_seq > seq:
        return
    while s.next != NULL and s.next.base_seq <= seq:
        s = s.next
    if not s.unlinked and seq < q.next_seq:
        prepare_event(s)
        event_put(s, seq, next_ts(q), 0, 0, 0, DUPLICATE_EVENT, q.window.action + 1)


cdef inline void note_duplicate(queue_t *q, uint64_t seq) noexcept nogil:
    """A duplicate of message `seq` came; 0: it is not known of which one."""
    if UNLIKELY(q.journal != NULL) and seq:
        tell_duplicate_of(q, seq)


cdef uint32_t count_duplicates(check_t *k, route_t *r) noexcept nogil:
    """The publish is done: count it where the key was known.  REFUSED, if its publisher is to be told so."""
    cdef uint32_t i, told = STORED
    if k.exchange_knows:
        r.learner.window.duplicates += 1
        return REFUSED if r.learner.window.action == ON_DUPLICATE_NACK else STORED
    for i in range(k.left_n, r.targets_n):
        k.left[i].window.duplicates += 1
        note_duplicate(k.left[i], k.keys.of_queues[i].replaces)
        if k.left[i].window.action == ON_DUPLICATE_NACK:
            told |= REFUSED
    return told


cdef void act_on_duplicates(check_t *k, route_t *r, message_t *m) noexcept:
    """Where a queue asks for more than that a duplicate is left out: dead-letter it, or let it replace the older message.  The
    message is in the files of the queues that took it."""
    cdef uint32_t i
    cdef list told = [], replaced = []
    for i in range(k.left_n, r.targets_n if not k.exchange_knows else k.left_n):
        if k.left[i].window.action == ON_DUPLICATE_DEAD_LETTER:
            told.append(<Queue>k.left[i].owner)
    if k.replaced:
        for i in range(k.keys.n):
            if k.keys.of_queues[i].replaces and not k.keys.of_queues[i].queue.dropped \
                    and k.keys.of_queues[i].queue.window != NULL \
                    and window_has_newer(k.keys.of_queues[i].queue.window, &k.keys.of_queues[i]):
                k.keys.of_queues[i].queue.window.duplicates += 1
                note_duplicate(k.keys.of_queues[i].queue, k.keys.of_queues[i].replaces)
                replaced.append((<Queue>k.keys.of_queues[i].queue.owner, k.keys.of_queues[i].replaces))
    for queue, seq in replaced:
        queue.on_replaced(seq)
    for queue in told:
        tell_duplicate(queue, m)


cdef bint window_has_newer(const window_t *w, const queue_key_t *key) noexcept nogil:
    """Whether the queue stored the message: the key is that of a newer one now."""
    cdef const key_t *found = window_find(w, key.hash)
    return found != NULL and found.seq > key.replaces


cdef void tell_duplicate(Queue queue, message_t *m) noexcept:
    queue.on_dead("duplicate", 0, (<const char *>m.names)[1:1 + m.names[0]], routing_key_of(m),
                  (<const char *>m.properties)[:m.properties_n], (<const char *>m.body)[:m.body_n], 0)


cdef bint asks_for_more(const check_t *k, const route_t *r) noexcept nogil:
    """Whether act_on_duplicates() has something to do."""
    cdef uint32_t i
    if k.replaced:
        return True
    for i in range(k.left_n, r.targets_n if not k.exchange_knows else k.left_n):
        if k.left[i].window.action == ON_DUPLICATE_DEAD_LETTER:
            return True
    return False


# ---- keys of messages that wait, for a queue that knows no others

cdef void enter_waiting_key(place_t *t, uint8_t holder, void *context) noexcept nogil:
    """A message is not settled: its key counts, unless a newer message has it."""
    cdef window_t *w = <window_t *>context
    cdef const key_t *known
    cdef const uint8_t *r
    cdef uint64_t hash_
    cdef message_t m
    cdef uint64_t none
    cdef int64_t ttl = -1
    if seg_map(t.seg) != 0:
        return
    r = t.seg.map + t.position
    hash_ = le64(r + R_DEDUP_HASH)
    if le32(r) != RECORD_MAGIC or hash_ == 0 or le16(r + R_FLAGS) & KEY_OF_EXCHANGE:
        return
    known = window_find(w, hash_)
    if known != NULL and known.seq >= seq_of(r):
        return
    if le16(r + R_FLAGS) & KEY_TTL:
        message_of(r, &m)
        find_header_key(w, m.properties, &none, &ttl)
    window_enter(w, hash_, key_expires(w, <int64_t>le64(r + R_TS) // 1000000, ttl), t.seg.queue.core.now // 1000000,
                 seq_of(r))


cdef void enter_waiting_keys(seg_t *s) noexcept nogil:
    """Enter the keys of the records that the cursor has not passed."""
    cdef store_t *st = s.store
    cdef uint32_t position = HEADER
    cdef bint was_mapped = s.map != NULL
    cdef place_t t
    if st.cursor == NULL or s.number < st.cursor.number:
        return
    if s == st.cursor:
        position = st.position
    while find_unsettled(st, s, &position):
        t.seg = s
        t.position = position
        enter_waiting_key(&t, 0, s.queue.window)
        position += room_of(s.map + position)
    if not was_mapped and s != st.last and s != st.cursor:
        seg_unmap(s)


# ---- what an exchange learns

cdef inline bint needs_room(const check_t *k, const learner_t *l) noexcept nogil:
    """Whether the log must make room for the key before its message is stored."""
    return k.keys.of_exchange and not k.exchange_knows and l.has_log and l.rows_n >= l.room


cdef int find_room_for_key(learner_t *l) noexcept with gil:
    """Have room in the log for one row more.  0, or the errno."""
    try:
        (<object>l.owner).on_full(l.rows_n + 1)
    except OSError as error:
        return error.errno or EIO
    return 0


cdef void learn_key(learner_t *l, core_t *core, uint64_t hash_, int64_t own_ttl_ms, bint lasting) noexcept nogil:
    """The exchange knows the key of a message that was stored now.  lasting: the next sync covers the message."""
    cdef int64_t now_ms = core.now // 1000000
    cdef int64_t expires = key_expires(l.window, now_ms, own_ttl_ms)
    cdef uint32_t capacity
    cdef uint8_t *rows
    window_enter(l.window, hash_, expires, now_ms, 0)
    if not l.has_log:
        return
    if l.rows_n == l.rows_capacity:
        capacity = max(<uint32_t>ROWS_FIRST, 2 * l.rows_capacity)
        rows = <uint8_t *>realloc(l.rows, <size_t>capacity * KEY_ROW)
        if rows == NULL:
            return                      # No memory: after a start this key is not known.
        l.rows = rows
        l.rows_capacity = capacity
    rows = l.rows + <size_t>l.rows_n * KEY_ROW
    # A start enters the rows by this number: it rises within the chunk, too.
    put_le64(rows, <uint64_t>core.now + l.rows_n | (0 if lasting else ROW_NOT_LASTING))
    put_le64(rows + 8, hash_)
    put_le64(rows + 16, <uint64_t>expires)
    l.rows_n += 1
    l.until = max(l.until, expires)
    if lasting:
        l.lasting = l.rows_n
    if not l.is_learnt:
        l.is_learnt = True
        l.next = core.learnt
        core.learnt = l
        with gil:
            Py_INCREF(<object>l.owner)


cdef void tell_learnt(core_t *core) noexcept:
    """Call on_learnt() of each exchange that has learnt keys.  The records are in their files."""
    cdef learner_t *l
    cdef bytes rows
    cdef uint32_t lasting
    cdef int64_t until
    while core.learnt != NULL:
        l = core.learnt
        core.learnt = l.next
        l.is_learnt = False
        window = <object>l.owner
        Py_DECREF(window)
        rows = (<const char *>l.rows)[:<size_t>l.rows_n * KEY_ROW]
        lasting = l.lasting
        until = l.until
        l.rows_n = l.lasting = 0
        l.until = 0
        window.on_learnt(rows, lasting, until)


cdef class ExchangeWindow(Window):
    """See plane/__init__.pyi."""

    cdef learner_t l

    def __init__(self, uint32_t size, int64_t ttl_ms, bytes header not None, *, bint has_log):
        Window.__init__(self, size, ttl_ms, header)
        self.l.window = &self.w
        self.l.owner = <void *>self
        self.l.has_log = has_log

    def __dealloc__(self):
        free(self.l.rows)

    @property
    def room(self):
        return self.l.room

    @room.setter
    def room(self, uint32_t rows):
        self.l.room = rows

    def on_learnt(self, bytes rows, uint32_t lasting, int64_t until_ms):
        pass

    def on_full(self, uint32_t rows):
        self.l.room = <uint32_t>-1


def enter_keys_that_wait(Queue queue not None, uint64_t number=0, uint8_t level=0):
    """See plane/__init__.pyi."""
    cdef seg_t *s
    if queue.q.window == NULL:
        return
    write_stages(queue.q.core)
    if number == 0:
        visit_places(&queue.q, enter_waiting_key, queue.q.window)
        return
    s = segment_at(&queue.q, level, number)
    if s != NULL:
        enter_waiting_keys(s)

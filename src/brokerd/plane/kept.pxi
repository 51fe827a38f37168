# Keeps the publishes of a channel's transaction until commit or rollback.
#
# The octets are those of a commit log (store/commit_log.py), so that commit copies them as they are:
#
#    publish_seq u64 | exchange and routing key, each a short string | u32, properties | u64, body       little endian

cdef enum:
    KEPT_OCTETS_MOST = 8 << 20      # of one transaction; a larger one is the session's
    KEPT_IN_ALL_MOST = 64 << 20     # of all transactions of a core

cdef struct kept_message_t:
    size_t at                   # where its octets begin
    uint32_t names_n
    uint32_t properties_n
    uint64_t body_n
    uint8_t bits                # mandatory, immediate
    uint32_t first              # of its targets, since commit has found them
    uint32_t targets_n

cdef struct kept_t:
    core_t *core
    uint8_t *octets
    size_t n
    size_t capacity
    large_t *large              # the body of the only message, where it is large: it stands behind the octets; NULL: none
    kept_message_t *messages
    uint32_t count
    uint32_t room


cdef void kept_drop_octets(kept_t *k) noexcept nogil:
    k.core.kept_octets -= k.capacity
    large_free(k.large)
    k.large = NULL
    free(k.octets)
    k.octets = NULL
    k.n = k.capacity = 0


cdef void kept_free(kept_t *k) noexcept nogil:
    if k != NULL:
        kept_drop_octets(k)
        free(k.messages)
        free(k)


cdef bint kept_reserve(kept_t *k, size_t need) noexcept nogil:
    """Make room for one message more, of `need` octets.  False: there is no memory, or the transaction is too large."""
    cdef size_t capacity = k.capacity
    cdef uint8_t *octets
    cdef kept_message_t *messages
    if k.n + need > KEPT_OCTETS_MOST:
        return False
    if k.n + need > capacity:
        capacity = max(k.n + need, max(<size_t>2048, capacity * 2))
        if k.core.kept_octets + (capacity - k.capacity) > KEPT_IN_ALL_MOST:
            return False
        octets = <uint8_t *>realloc(k.octets, capacity)
        if octets == NULL:
            return False
        k.core.kept_octets += capacity - k.capacity
        k.octets = octets
        k.capacity = capacity
    if k.count == k.room:
        messages = <kept_message_t *>realloc(k.messages, (k.room * 2 + 16) * sizeof(kept_message_t))
        if messages == NULL:
            return False
        k.messages = messages
        k.room = k.room * 2 + 16
    return True


cdef bint keep_message(channel_t *ch, const uint8_t *method, uint32_t method_n, const uint8_t *properties,
                       uint32_t properties_n, const uint8_t *body, uint64_t body_n) noexcept nogil:
    """Keep a publish under the channel's next number.  False: it cannot be kept, and nothing has changed."""
    cdef uint32_t names_n = method_n - 7
    cdef kept_message_t *m
    cdef uint8_t *p
    if ch.kept == NULL:
        ch.kept = <kept_t *>calloc(1, sizeof(kept_t))
        if ch.kept != NULL:
            ch.kept.core = ch.conn.core
    if ch.kept == NULL or ch.kept.large != NULL or body_n > KEPT_OCTETS_MOST \
            or not kept_reserve(ch.kept, 20 + names_n + properties_n + body_n):
        return False
    m = ch.kept.messages + ch.kept.count
    m.at = ch.kept.n
    m.names_n = names_n
    m.properties_n = properties_n
    m.body_n = body_n
    m.bits = method[method_n - 1]
    m.first = m.targets_n = 0
    ch.publishes += 1
    ch.conn.publishes = ch.conn.core.alarms
    p = ch.kept.octets + ch.kept.n
    put_le64(p, ch.publishes)
    memcpy(p + 8, method + 6, names_n)
    p += 8 + names_n
    put_le32(p, properties_n)
    memcpy(p + 4, properties, properties_n)
    p += 4 + properties_n
    put_le64(p, body_n)
    if body_n:
        memcpy(p + 8, body, body_n)
    ch.kept.n += 20 + names_n + properties_n + body_n
    ch.kept.count += 1
    return True


cdef void keep_large(kept_t *k, large_t *large) noexcept nogil:
    """Have the message that was kept last, without its body, have this one."""
    cdef kept_message_t *m = k.messages + k.count - 1
    m.body_n = large.size
    put_le64(k.octets + k.n - 8, large.size)
    k.large = large

# The key that says to which group a message belongs: a header, or a property, of the message as it was published.
#
#    find_group_key   octets of the key, in the message's own octets; a whole number counts as its digits
#    hash_group_key   with a secret of this process, so that a client cannot choose which keys share a slot
#
# A header whose value is neither text nor a whole number is no key, nor is an empty text.

cdef enum:
    GROUP_BY_HEADER = 0         # where the key is
    GROUP_BY_ROUTING_KEY = 1
    GROUP_BY_CORRELATION_ID = 2
    GROUP_BY_TYPE = 3
    GROUP_BY_USER_ID = 4
    GROUP_BY_APP_ID = 5

    GROUP_NAMES_MOST = 4        # names of headers, the first that a message has counts
    GROUP_KEY_MOST = 1024       # octets; the rest of a longer text is not looked at

    PROPERTY_CORRELATION_ID = 10
    PROPERTY_TYPE = 5
    PROPERTY_USER_ID = 4
    PROPERTY_APP_ID = 3

cdef struct group_rule_t:
    uint8_t by                  # GROUP_BY_*
    uint8_t names_n
    uint8_t name_n[4]
    const uint8_t *names[4]     # borrowed from the Groups

cdef struct group_key_t:
    const uint8_t *at           # NULL: the message has no key
    uint32_t n
    bint closes                 # JMSXGroupSeq is -1: a sticky group ends with this message
    char digits[24]

cdef extern from *:
    """
    static inline uint64_t mix_product(uint64_t a, uint64_t b) {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    """
    uint64_t mix_product(uint64_t a, uint64_t b) noexcept nogil

cdef uint64_t group_secret[3]
group_secret[0] = int.from_bytes(os_urandom(8), "little")
group_secret[1] = int.from_bytes(os_urandom(8), "little") | 1
group_secret[2] = int.from_bytes(os_urandom(8), "little") | 1


cdef uint64_t hash_group_key(const uint8_t *p, size_t n) noexcept nogil:
    cdef uint64_t state = group_secret[0] ^ n, piece
    while n >= 8:
        state = mix_product(state ^ le64(p), group_secret[1]) ^ group_secret[2]
        p += 8
        n -= 8
    piece = 0
    memcpy(&piece, p, n)
    return mix_product(mix_product(state ^ piece, group_secret[2]) ^ group_secret[0], group_secret[1])


cdef bint take_group_key(group_key_t *key, const uint8_t *value, size_t n) noexcept nogil:
    """Take the value of a header as the key.  False: it can be none."""
    cdef uint8_t room[9]
    cdef const uint8_t *plain
    if value[0] == c'S':
        key.at = value + 5
        key.n = <uint32_t>min(n - 5, <size_t>GROUP_KEY_MOST)
        return key.n != 0
    plain = plain_value(value, room, &n)
    if not is_whole_number(plain, room, value[0]):
        return False
    key.n = <uint32_t>snprintf(key.digits, sizeof(key.digits), "%lld", <long long>be64(room + 1))
    key.at = <const uint8_t *>key.digits
    return True


cdef void find_in_headers(const group_rule_t *rule, const uint8_t *table, group_key_t *key) noexcept nogil:
    cdef const uint8_t *p = table + 4
    cdef const uint8_t *end = p + be32(table)
    cdef const uint8_t *name
    cdef uint8_t room[9]
    cdef const uint8_t *plain
    cdef size_t n, plain_n
    cdef uint32_t i, best = rule.names_n
    cdef group_key_t one
    while p < end:                      # Of two headers with one name the first one counts, as in a decoded table.
        name = p
        p += 1 + name[0]
        n = value_length(p, end)
        for i in range(best):
            if name[0] == rule.name_n[i] and memcmp(name + 1, rule.names[i], name[0]) == 0:
                one.at = NULL
                if take_group_key(&one, p, n):
                    key.n = one.n
                    key.at = one.at
                    if one.at == <const uint8_t *>one.digits:
                        memcpy(key.digits, one.digits, sizeof(one.digits))
                        key.at = <const uint8_t *>key.digits
                    best = i
                break
        if UNLIKELY(name[0] == 12 and memcmp(name + 1, b"JMSXGroupSeq", 12) == 0):
            plain_n = n
            plain = plain_value(p, room, &plain_n)
            key.closes = is_whole_number(plain, room, p[0]) and <int64_t>be64(room + 1) == -1
        p += n


cdef void find_group_key(const group_rule_t *rule, const message_t *m, group_key_t *key) noexcept nogil:
    """Find the key of a message with whole properties."""
    cdef const uint8_t *p
    cdef int property_ = PROPERTY_CORRELATION_ID
    key.at = NULL
    key.n = 0
    key.closes = False
    if rule.by == GROUP_BY_HEADER:
        p = property_at(m.properties, PROPERTY_HEADERS)
        if p != NULL:
            find_in_headers(rule, p, key)
        return
    if rule.by == GROUP_BY_ROUTING_KEY:
        p = m.names + 1 + m.names[0]
    else:
        if rule.by == GROUP_BY_TYPE:
            property_ = PROPERTY_TYPE
        elif rule.by == GROUP_BY_USER_ID:
            property_ = PROPERTY_USER_ID
        elif rule.by == GROUP_BY_APP_ID:
            property_ = PROPERTY_APP_ID
        p = property_at(m.properties, property_)
    if p != NULL and p[0]:
        key.at = p + 1
        key.n = p[0]

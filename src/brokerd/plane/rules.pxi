# The rules of a queue besides its order, and whether its limits hold.
#
# A queue without rules has no rules_t: the first rule makes it.


cdef enum:
    DROP_HEAD = 0               # rules_t.overflow
    REJECT_PUBLISH = 1
    REJECT_PUBLISH_DLX = 2


cdef enum:
    RULE_INT64 = 0
    RULE_INT32 = 1
    RULE_UINT8 = 2
    RULE_BINT = 3

cdef rules_t SHAPE              # only its fields' addresses are used

# The rules that set_rules() takes, and all that it must know of each:
#     name: (offset of its field in rules_t, the field's type, the field's units in one of the value, value without it)
# A negative number is no limit, and stands in the field as -1.
RULES = {
    "ttl_ms": (<char *>&SHAPE.ttl - <char *>&SHAPE, RULE_INT64, 1000000, -1),
    "max_length": (<char *>&SHAPE.max_length - <char *>&SHAPE, RULE_INT64, 1, -1),
    "max_octets": (<char *>&SHAPE.max_octets - <char *>&SHAPE, RULE_INT64, 1, -1),
    "overflow": (<char *>&SHAPE.overflow - <char *>&SHAPE, RULE_UINT8, 1, DROP_HEAD),
    "dead_letters": (<char *>&SHAPE.dead_letters - <char *>&SHAPE, RULE_BINT, 1, False),
    "delivery_limit": (<char *>&SHAPE.delivery_limit - <char *>&SHAPE, RULE_INT32, 1, -1),
    "limit_drops": (<char *>&SHAPE.limit_drops - <char *>&SHAPE, RULE_BINT, 1, False),
    "limit_stops": (<char *>&SHAPE.limit_stops - <char *>&SHAPE, RULE_BINT, 1, False),
    "delivery_counts": (<char *>&SHAPE.delivery_counts - <char *>&SHAPE, RULE_BINT, 1, False),
    "single_active": (<char *>&SHAPE.single_active - <char *>&SHAPE, RULE_BINT, 1, False),
    "consumer_timeout_ms": (<char *>&SHAPE.timeout - <char *>&SHAPE, RULE_INT64, 1000000, -1),
    "retain_ms": (<char *>&SHAPE.retain_ns - <char *>&SHAPE, RULE_INT64, 1000000, -1),
    "retain_octets": (<char *>&SHAPE.retain_octets - <char *>&SHAPE, RULE_INT64, 1, -1),
    "timeout_closes": (<char *>&SHAPE.timeout_closes - <char *>&SHAPE, RULE_BINT, 1, False),
}


cdef int put_rule(rules_t *r, tuple row, int64_t value) except -1:
    """Write one rule into its field."""
    cdef uint8_t *field = <uint8_t *>r + <size_t>row[0]
    cdef uint8_t type_ = row[1]
    cdef int64_t units = row[2]
    value = value * units if value >= 0 else -1
    if type_ == RULE_INT64:
        (<int64_t *>field)[0] = value
    elif type_ == RULE_INT32:
        (<int32_t *>field)[0] = <int32_t>min(value, <int64_t>0x7FFFFFFF)
    elif type_ == RULE_UINT8:
        field[0] = <uint8_t>value
    else:
        (<bint *>field)[0] = value != 0
    return 0


cdef rules_t *rules_of(queue_t *q) noexcept nogil:
    """The queue's rules, made by the first call; NULL: no memory."""
    if q.rules == NULL:
        q.rules = <rules_t *>calloc(1, sizeof(rules_t))
        if q.rules != NULL:
            q.rules.ttl = q.rules.max_length = q.rules.max_octets = q.rules.delivery_limit = q.rules.timeout = -1
            q.rules.retain_ns = q.rules.retain_octets = -1
    return q.rules


cdef void rules_free(queue_t *q) noexcept nogil:
    if q.rules != NULL:
        free(q.rules.dying.at)
        free(q.rules.stored.at)
        free(q.rules.stand_in)
        free(q.rules)
        q.rules = NULL


cdef void retaining_join(queue_t *q) noexcept nogil:
    """The core looks after the queue's retained segments."""
    if not q.rules.is_retaining:
        q.rules.is_retaining = True
        q.rules.retaining_next = q.core.retaining
        q.core.retaining = q


cdef void retaining_leave(queue_t *q) noexcept nogil:
    cdef queue_t **at = &q.core.retaining
    if q.rules == NULL or not q.rules.is_retaining:
        return
    while at[0] != q:
        at = &at[0].rules.retaining_next
    at[0] = q.rules.retaining_next
    q.rules.is_retaining = False


cdef inline uint64_t counted_messages(queue_t *q, rules_t *r) noexcept nogil:
    """What max_length limits: ready messages, and those that the gate lets wait."""
    return q.ready + (r.gate.waiting if UNLIKELY(r.gate != NULL) else 0)


cdef inline uint64_t counted_octets(queue_t *q, rules_t *r) noexcept nogil:
    return q.ready_octets + (r.gate.waiting_octets if UNLIKELY(r.gate != NULL) else 0)


cdef inline bint is_over_length_limit(queue_t *q, rules_t *r) noexcept nogil:
    """A message is to be dropped: a ready one, or one that waits if its gate lets it be dropped."""
    return ((r.max_length >= 0 and counted_messages(q, r) > <uint64_t>r.max_length) or
            (r.max_octets >= 0 and counted_octets(q, r) > <uint64_t>r.max_octets)) \
        and (q.ready > 0 or (UNLIKELY(r.gate != NULL) and r.gate.drops and r.gate.waiting > 0))


cdef inline bint is_at_length_limit(queue_t *q, rules_t *r) noexcept nogil:
    return ((r.max_length >= 0 and counted_messages(q, r) >= <uint64_t>r.max_length) or
            (r.max_octets >= 0 and counted_octets(q, r) >= <uint64_t>r.max_octets))


cdef inline bint is_at_delivery_limit(rules_t *r, place_t *t) noexcept nogil:
    """The message has failed as often as the delivery limit allows, and dies of that."""
    return r.delivery_limit >= 0 and t.count >= max(r.delivery_limit, 1) and not r.limit_stops


cdef inline bint is_at_stop(rules_t *r, place_t *t) noexcept nogil:
    """The message has failed as often as the delivery limit allows, or a multiple of that, and the gate does not let it go on:
    a message that an operator released has as many tries as before."""
    return r.limit_stops and r.delivery_limit >= 0 and t.count != 0 and t.count % max(r.delivery_limit, 1) == 0


cdef void mark_over(queue_t *q) noexcept nogil:
    if not q.rules.is_over:
        q.rules.is_over = True
        q.rules.over_next = q.core.over
        q.core.over = q


cdef inline void uncount_octets(queue_t *q, const uint8_t *record) noexcept nogil:
    cdef uint64_t n = body_octets(record)
    # After a restart this is partly an estimate.
    q.ready_octets = q.ready_octets - n if q.ready and q.ready_octets >= n else 0

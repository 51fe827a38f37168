# The counters of queues, as operators see them: of one queue, and summed over many at once.

cdef enum:
    COUNTERS = 14


cdef void add_counters(queue_t *q, uint64_t *sums) noexcept:
    cdef rules_t *rules = q.rules
    sums[0] += q.n_published
    sums[1] += q.n_delivered
    sums[2] += q.n_got
    sums[3] += q.n_acked
    sums[4] += q.n_redelivered
    sums[5] += q.n_returned
    if rules != NULL:
        sums[6] += rules.n_expired
        sums[7] += rules.n_dropped
        sums[8] += rules.n_dead_lettered
        sums[9] += rules.n_refused
        sums[10] += rules.n_limited
        sums[11] += rules.n_timed_out
    sums[12] += q.n_delivered_no_ack
    sums[13] += q.n_got_no_ack


def counters_of(Queue queue not None):
    """See plane/__init__.pyi."""
    cdef uint64_t sums[COUNTERS]
    memset(sums, 0, sizeof(sums))
    add_counters(&queue.q, sums)
    return tuple([sums[i] for i in range(COUNTERS)])


def sum_counters(list queues not None):
    """See plane/__init__.pyi."""
    cdef uint64_t sums[COUNTERS]
    cdef uint64_t consumers = 0, ready = 0, unacked = 0
    cdef Queue queue
    memset(sums, 0, sizeof(sums))
    for each in queues:
        queue = <Queue?>each
        consumers += queue.q.consumers
        ready += queue.q.ready
        unacked += queue.q.unacked
        add_counters(&queue.q, sums)
    return consumers, ready, unacked, tuple([sums[i] for i in range(COUNTERS)])

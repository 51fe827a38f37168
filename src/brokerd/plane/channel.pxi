# The Channel and Consumer objects: what the session may ask of a channel.

@cython.no_gc_clear
cdef class Consumer:
    """See plane/__init__.pyi."""

    def __dealloc__(self):
        free(self.c.prefix)
        if self.c.reader != NULL:
            self.c.free_reader(self.c.reader)

    @property
    def no_ack(self):
        return self.c.no_ack != 0

    @property
    def prefetch(self):
        return self.c.prefetch

    @property
    def number(self):
        return self.c.number

    @property
    def timeout_ms(self):
        return self.c.timeout // 1000000 if self.c.timeout >= 0 else -1

    @property
    def unacked(self):
        return self.c.unacked

    @property
    def delivered(self):
        return self.c.delivered


@cython.no_gc_clear
cdef class Channel:
    """See plane/__init__.pyi."""

    def __cinit__(self, Connection connection, uint16_t number, *_):
        cdef channel_t *ch = &self.c
        cdef conn_t *conn = &connection.c
        cdef channel_t **table
        cdef uint32_t n = number + 1
        self.connection = connection
        ch.conn = conn
        ch.owner = <void *>self
        ch.number = number
        ch.base_tag = ch.next_tag = 1
        ch.flow = True
        if n > conn.channels_n:
            # Not realloc() and memset(): the pages between a few low numbers and a high one are never touched.
            table = <channel_t **>calloc(n, sizeof(channel_t *))
            if table == NULL:
                raise MemoryError
            if conn.channels_n:
                memcpy(table, conn.channels, conn.channels_n * sizeof(channel_t *))
            free(conn.channels)
            conn.channels = table
            conn.channels_n = n
        if conn.channels[number] != NULL:
            raise ValueError(f"channel {number} is open")
        conn.channels[number] = ch
        if connection._publishes is not None:
            ch.publishes = connection._publishes.get(number, 0)
        if connection.channels is None:
            connection.channels = {}
        connection.channels[number] = self
        ch.core_next = conn.core.channels
        if ch.core_next != NULL:
            ch.core_next.core_prev = ch
        conn.core.channels = ch

    def __init__(self, connection, number):
        pass

    def __dealloc__(self):
        self.leave_lists()
        free(self.c.ring)
        free(self.c.nacks)
        content_free(&self.c)
        kept_free(self.c.kept)
        self.c.kept = NULL
        scatter_end(&self.c)

    cdef void leave_lists(self):
        cdef channel_t *ch = &self.c
        cdef channel_t **at
        if ch.conn == NULL or ch.closed:
            return
        ch.closed = True
        note_closed_channel(ch)
        leave_crediting(ch)
        if ch.is_confirm_dirty:
            at = &ch.conn.core.confirm_dirty
            while at[0] != ch:
                at = &at[0].confirm_next
            at[0] = ch.confirm_next
            ch.is_confirm_dirty = False
        if ch.core_prev != NULL:
            ch.core_prev.core_next = ch.core_next
        elif ch.conn.core.channels == ch:   # It is not, if it could not be made.
            ch.conn.core.channels = ch.core_next
        if ch.core_next != NULL:
            ch.core_next.core_prev = ch.core_prev
        ch.core_next = ch.core_prev = NULL

    @property
    def number(self):
        return self.c.number

    @property
    def confirm(self):
        return self.c.confirm != 0

    @property
    def unacked(self):
        return self.c.unacked

    @property
    def publishes(self):
        return self.c.publishes

    @property
    def prefetch(self):
        return self.c.prefetch

    @prefetch.setter
    def prefetch(self, uint32_t value):
        self.c.prefetch = value

    @property
    def global_prefetch(self):
        return self.c.global_prefetch

    @global_prefetch.setter
    def global_prefetch(self, uint32_t value):
        self.c.global_prefetch = value
        rings_rejoin(&self.c)

    @property
    def flow(self):
        return self.c.flow != 0

    @flow.setter
    def flow(self, bint value):
        self.c.flow = value
        rings_rejoin(&self.c)

    @property
    def closing(self):
        return self.c.closing != 0

    @closing.setter
    def closing(self, bint value):
        self.c.closing = value
        if value:
            content_free(&self.c)
            if self.c.conn.pending == &self.c:
                self.c.conn.pending = NULL

    @property
    def tx(self):
        return self.c.tx != 0

    @tx.setter
    def tx(self, bint value):
        self.c.tx = value
        self.c.is_rare = value or self.c.scatter != NULL

    @property
    def keeps(self):
        return self.c.keeps != 0

    @keeps.setter
    def keeps(self, bint value):
        self.c.keeps = value

    def take_kept(self):
        cdef Kept kept
        if self.c.kept == NULL:
            return None
        kept = Kept.__new__(Kept)
        kept.core = self.connection.core
        kept.k = self.c.kept
        self.c.kept = NULL
        return kept

    @property
    def late(self):
        return self.c.n_late

    def knows(self, uint64_t tag, bint multiple):
        return tag_is_known(&self.c, tag, multiple) != 0

    def deliveries(self, uint64_t tag, bint multiple):
        cdef channel_t *ch = &self.c
        cdef uint32_t mask = ch.ring_capacity - 1
        cdef uint64_t t
        cdef entry_t *e
        cdef list found = []
        if not tag_is_known(ch, tag, multiple) or (ch.unacked == 0 and ch.late == 0):
            return found
        if tag == 0:
            tag = ch.next_tag - 1
        for t in range(ch.base_tag if multiple else tag, tag + 1):
            e = &ch.ring[t & mask]
            if e.at.seg != NULL:
                found.append((t, <Queue>e.at.seg.queue.owner, e.at.seq))
            elif e.late:
                found.append((t, None, 0))
        return found

    def held(self, Queue queue, uint64_t first, uint32_t most):
        cdef channel_t *ch = &self.c
        cdef uint64_t t = max(first, ch.base_tag), end
        cdef entry_t *e
        cdef list found = []
        if ch.unacked == 0:
            return ch.next_tag, found
        self.connection.core.read_clock()
        end = min(ch.next_tag, t + most)
        while t < end:
            e = &ch.ring[t & (ch.ring_capacity - 1)]
            if e.at.seg != NULL and e.at.seg.queue == &queue.q:
                found.append((t, e.at.seq, <Consumer>e.consumer.owner if e.consumer != NULL else None,
                              ch.conn.core.now // 1000000 - <uint32_t>(ch.conn.core.ms - e.when), e.at.count))
            t += 1
        return t, found

    @property
    def figures(self):
        cdef channel_t *ch = &self.c
        cdef uint64_t delivered = ch.next_tag - 1
        return {"publish": ch.publishes, "confirm": ch.confirmed - ch.confirm_from if ch.confirm else 0,
                "deliver": delivered - ch.n_got, "get": ch.n_got, "deliver_get": delivered,
                "ack": delivered - ch.unacked - ch.n_returned}

    @property
    def unconfirmed(self):
        return self.c.publishes - self.c.confirmed if self.c.confirm else 0

    def claim(self, uint64_t tag, bint multiple, uint8_t outcome):
        cdef channel_t *ch = &self.c
        cdef uint64_t first = ch.base_tag if multiple else tag
        cdef uint64_t last = tag if tag else ch.next_tag - 1
        cdef uint32_t count
        if multiple and tag == 0 and ch.unacked == 0 and ch.late == 0:
            return 0, 0, 0
        if not tag_is_known(ch, tag, multiple) or (tag and ch.ring[tag & (ch.ring_capacity - 1)].claimed):
            raise LookupError(tag)
        count = claim_between(ch, first, last, outcome + 1)
        return first, last, count

    def claimed(self, uint64_t first, uint64_t last, uint8_t outcome):
        cdef channel_t *ch = &self.c
        cdef uint64_t t
        cdef entry_t *e
        cdef list found = []
        for t in range(max(first, ch.base_tag), last + 1):
            e = &ch.ring[t & (ch.ring_capacity - 1)]
            if e.claimed == outcome + 1 and e.at.seg != NULL:
                found.append((<Queue>e.at.seg.queue.owner, e.at.seq))
        return found

    def settle_claimed(self, uint64_t first, uint64_t last, uint64_t upto, uint8_t outcome, *, uint8_t requeue=0, bint reject=False):
        if last >= self.c.next_tag:
            raise ValueError("no delivery has this tag")
        settle_claimed(&self.c, first, last, upto, outcome + 1, REJECTED if reject else ACKED, requeue)

    @property
    def outstanding(self):
        return self.c.base_tag, self.c.next_tag - 1

    def return_unclaimed(self, uint64_t first, uint64_t last, uint64_t upto, uint8_t cause):
        if last >= self.c.next_tag:
            raise ValueError("no delivery has this tag")
        return_unclaimed(&self.c, first, last, upto, cause)

    def disclaim(self):
        cdef channel_t *ch = &self.c
        cdef uint64_t t
        for t in range(ch.base_tag, ch.next_tag if ch.unacked or ch.late else ch.base_tag):
            ch.ring[t & (ch.ring_capacity - 1)].claimed = False

    def settle(self, uint64_t tag, bint multiple, *, uint8_t requeue=0, bint reject=False):
        return tag_settle(&self.c, tag, multiple, REJECTED if reject else ACKED, requeue) != 0

    def take_tag(self):
        cdef channel_t *ch = &self.c
        cdef uint64_t tag = ch.next_tag
        if (ch.unacked or ch.late) and ring_reserve(ch) != 0:
            raise MemoryError
        spend_tag(ch)
        return tag

    def count_publish(self):
        self.c.publishes += 1
        self.c.conn.publishes = self.c.conn.core.alarms
        return self.c.publishes

    def select_confirm(self):
        if not self.c.confirm:
            self.c.confirm = True
            self.c.confirm_from = self.c.confirmed = self.c.publishes

    def consume(self, Queue queue, bytes tag, *, bint no_ack, bint exclusive=False, int32_t priority=0,
                dict arguments=None, int64_t timeout_ms=-1, timeout_closes=None,
                uint32_t consumer_number=0, bint numbers=False):
        cdef Consumer consumer = Consumer.__new__(Consumer)
        cdef consumer_t *c = &consumer.c
        cdef level_t *level
        if len(tag) > 255:
            raise ValueError("a consumer tag has at most 255 octets")
        c.prefix_n = <uint16_t>(12 + len(tag))
        c.prefix = <uint8_t *>malloc(c.prefix_n)
        level = level_of(&queue.q, priority)
        if c.prefix == NULL or level == NULL:
            raise MemoryError
        c.prefix[0] = FRAME_METHOD
        put_be16(c.prefix + 1, self.c.number)
        put_be32(c.prefix + 3, 0)
        put_be32(c.prefix + 7, BASIC_DELIVER)
        c.prefix[11] = <uint8_t>len(tag)
        memcpy(c.prefix + 12, <const char *>tag, len(tag))
        level_join(level, c)
        self.c.consumers_n += 1
        c.queue = &queue.q
        c.channel = &self.c
        c.owner = <void *>consumer
        c.no_ack = no_ack
        c.numbers = numbers
        c.number = consumer_number
        c.prefetch = self.c.prefetch
        c.timeout = timeout_ms * 1000000 if timeout_ms >= 0 else -1
        if queue.q.rules != NULL:
            if timeout_ms < 0:
                c.timeout = queue.q.rules.timeout
            c.timeout_closes = queue.q.rules.timeout_closes
        if timeout_closes is not None:
            c.timeout_closes = timeout_closes
        if c.timeout >= 0:
            self.connection.core.timeouts += 1
        queue.q.used = self.connection.core.uptime()
        consumer.tag = tag
        consumer.queue = queue
        consumer.channel = self
        consumer.exclusive = exclusive
        consumer.priority = priority
        consumer.arguments = arguments
        queue.q.consumers += 1
        if queue.consumers is None:
            queue.consumers = {}
        queue.consumers[consumer] = None
        if self.consumers is None:
            self.consumers = {}
        self.consumers[tag] = consumer
        if queue.q.rules != NULL and queue.q.rules.single_active:
            choose_active(&queue.q)
        if queue.q.rules != NULL and queue.q.rules.gate != NULL:
            queue.q.rules.gate.join(queue.q.rules.gate, c)
        ring_rejoin(c)
        return consumer

    def cancel(self, Consumer consumer):
        cdef consumer_t *c = &consumer.c
        if c.closed:
            return
        ring_leave(c)
        waiting_leave(c)
        c.closed = True
        level_leave(c.queue, c)
        self.c.consumers_n -= 1
        c.queue.consumers -= 1
        c.queue.used = self.connection.core.uptime()
        if c.timeout >= 0 and c.unacked == 0:       # Else what it still holds may time out: see forget_cancelled().
            self.connection.core.timeouts -= 1
        del consumer.queue.consumers[consumer]
        if c.queue.rules != NULL and c.queue.rules.single_active and not c.queue.dropped:
            choose_active(c.queue)
        if c.queue.rules != NULL and c.queue.rules.gate != NULL:
            c.queue.rules.gate.leave(c.queue.rules.gate, c)
            mark_dirty(c.queue)
        if self.consumers.get(consumer.tag) is consumer:
            del self.consumers[consumer.tag]
        if c.unacked:
            # Entries of the ring still name it.
            if self.cancelled is None:
                self.cancelled = {}
            self.cancelled[consumer] = None

    def get(self, Queue queue, bint no_ack):
        cdef queue_t *q = &queue.q
        cdef int got
        q.core.now = max(q.core.now, q.touched)
        q.used = self.connection.core.uptime()
        if q.rules != NULL and q.rules.expires and not expire(q):
            self.connection.core.request_turn()
        got = get_message(&self.c, q, no_ack)
        if got < 0:
            raise MemoryError
        q.core.n_get_empty += got == 0
        self.c.n_got += got > 0
        return got > 0

    def recover(self):
        return settle_piece(&self.c, 0, RETURNED, CAUSE_RECOVER)

    def return_unacked(self, *, bint connection_closes=False):
        self.connection.core.read_clock()
        return return_piece(&self.c, CAUSE_CONNECTION if connection_closes else CAUSE_CHANNEL)

    def close(self):
        cdef channel_t *ch = &self.c
        cdef Consumer consumer
        if ch.closed:
            return
        for consumer in list((self.consumers or {}).values()):
            self.cancel(consumer)
        return_all(ch, CAUSE_CONNECTION if ch.conn.gone or ch.conn.discard else CAUSE_CHANNEL)
        content_free(ch)
        if ch.conn.pending == ch:
            ch.conn.pending = NULL
        scatter_end(ch)
        self.leave_lists()
        ch.conn.channels[ch.number] = NULL
        if ch.publishes:
            # A channel opened again under this number goes on counting: see store/format.py, publish_seq.
            if self.connection._publishes is None:
                self.connection._publishes = {}
            self.connection._publishes[ch.number] = ch.publishes
        self.cancelled = None
        self.connection.channels.pop(ch.number, None)

# The Channel and Consumer objects: what the session may ask of a channel.

@cython.no_gc_clear
cdef class Consumer:
    """See plane/__init__.pyi."""

    def __dealloc__(self):
        free(self.c.prefix)

    @property
    def no_ack(self):
        return self.c.no_ack != 0

    @property
    def prefetch(self):
        return self.c.prefetch

    @property
    def unacked(self):
        return self.c.unacked


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
            table = <channel_t **>realloc(conn.channels, n * sizeof(channel_t *))
            if table == NULL:
                raise MemoryError
            memset(table + conn.channels_n, 0, (n - conn.channels_n) * sizeof(channel_t *))
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
        content_free(&self.c)

    cdef void leave_lists(self):
        cdef channel_t *ch = &self.c
        cdef channel_t **at
        if ch.conn == NULL or ch.closed:
            return
        ch.closed = True
        if ch.is_confirm_dirty:
            at = &ch.conn.core.confirm_dirty
            while at[0] != ch:
                at = &at[0].confirm_next
            at[0] = ch.confirm_next
            ch.is_confirm_dirty = False
        if ch.core_prev != NULL:
            ch.core_prev.core_next = ch.core_next
        else:
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
        credit_of_channel(&self.c)

    @property
    def flow(self):
        return self.c.flow != 0

    @flow.setter
    def flow(self, bint value):
        self.c.flow = value
        credit_of_channel(&self.c)

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

    def select_confirm(self):
        if not self.c.confirm:
            self.c.confirm = True
            self.c.confirm_from = self.c.confirmed = self.c.publishes

    def consume(self, Queue queue, bytes tag, *, bint no_ack, bint exclusive=False, int32_t priority=0,
                dict arguments=None):
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
        c.prefix[0] = 1
        put_be16(c.prefix + 1, self.c.number)
        put_be32(c.prefix + 3, 0)
        put_be32(c.prefix + 7, 60 << 16 | 60)
        c.prefix[11] = <uint8_t>len(tag)
        memcpy(c.prefix + 12, <const char *>tag, len(tag))
        level.consumers += 1
        c.level = level
        c.queue = &queue.q
        c.channel = &self.c
        c.owner = <void *>consumer
        c.no_ack = no_ack
        c.prefetch = self.c.prefetch
        consumer.tag = tag
        consumer.queue = queue
        consumer.channel = self
        consumer.exclusive = exclusive
        consumer.priority = priority
        consumer.arguments = arguments
        queue.q.consumers += 1
        if queue.consumers is None:
            queue.consumers = []
        queue.consumers.append(consumer)
        if self.consumers is None:
            self.consumers = {}
        self.consumers[tag] = consumer
        credit_again(c)
        return consumer

    def cancel(self, Consumer consumer):
        cdef consumer_t *c = &consumer.c
        if c.closed:
            return
        ring_leave(c)
        c.closed = True
        level_leave(c.queue, c.level)
        c.level = NULL
        c.queue.consumers -= 1
        consumer.queue.consumers.remove(consumer)
        if self.consumers.get(consumer.tag) is consumer:
            del self.consumers[consumer.tag]
        if c.unacked:
            # Entries of the ring still name it.
            self.cancelled = [other for other in self.cancelled or () if (<Consumer>other).c.unacked]
            self.cancelled.append(consumer)

    def get(self, Queue queue, bint no_ack):
        cdef channel_t *ch = &self.c
        cdef queue_t *q = &queue.q
        cdef taken_t t
        cdef int64_t n
        q.core.now = max(q.core.now, q.touched)
        if q.paused or q.ready == 0 or ring_reserve(ch) != 0 or not take(q, &t):
            return False
        n = write_get_ok(ch, q, &t)
        if n < 0:
            heap_push(q, &t)
            t.seg.returned += 1
            raise MemoryError
        q.touched = q.core.now
        q.ready -= 1
        q.ready_octets = q.ready_octets - n if q.ready and q.ready_octets >= <uint64_t>n else 0
        q.n_got += 1
        q.n_redelivered += t.redelivered
        if no_ack:
            if ch.unacked:
                ch.ring[ch.next_tag & (ch.ring_capacity - 1)].seg = NULL
                ch.next_tag += 1
            else:
                ch.next_tag += 1
                ch.base_tag = ch.next_tag
            q.n_acked += 1
            settle(&t, ACKED)
        else:
            remember(ch, NULL, &t)
        return True

    def recover(self):
        cdef channel_t *ch = &self.c
        if ch.unacked:
            tag_settle(ch, 0, True, RETURNED, True)

    def close(self):
        cdef channel_t *ch = &self.c
        cdef Consumer consumer
        if ch.closed:
            return
        for consumer in list((self.consumers or {}).values()):
            self.cancel(consumer)
        self.recover()
        content_free(ch)
        if ch.conn.pending == ch:
            ch.conn.pending = NULL
        self.leave_lists()
        ch.conn.channels[ch.number] = NULL
        if ch.publishes:
            # A channel opened again under this number goes on counting: see store/format.py, publish_seq.
            if self.connection._publishes is None:
                self.connection._publishes = {}
            self.connection._publishes[ch.number] = ch.publishes
        self.cancelled = None
        self.connection.channels.pop(ch.number, None)


cdef int64_t write_get_ok(channel_t *ch, queue_t *q, taken_t *t) noexcept nogil:
    """basic.get-ok with its content; octets of the body, or -1."""
    cdef conn_t *conn = ch.conn
    cdef const uint8_t *r = t.seg.map + t.position
    cdef const uint8_t *meta
    cdef const uint8_t *body
    cdef uint32_t meta_n = meta_of(r, &meta)
    cdef uint32_t names_n = 1 + meta[0]
    cdef uint64_t body_n
    cdef uint8_t *p
    cdef uint8_t *start
    names_n += 1 + meta[names_n]
    body = meta + meta_n
    body_n = le32(r + 4) - <uint64_t>(body - r)
    start = out_room(conn, 25 + names_n + content_room(conn, meta_n - names_n, body_n))
    if start == NULL:
        return -1
    p = start
    p[0] = 1
    put_be16(p + 1, ch.number)
    put_be32(p + 3, 17 + names_n)
    put_be32(p + 7, 60 << 16 | 71)
    put_be64(p + 11, ch.next_tag)
    p[19] = t.redelivered
    memcpy(p + 20, meta, names_n)
    p += 20 + names_n
    put_be32(p, <uint32_t>min(q.ready - 1, <uint64_t>0xFFFFFFFF))
    p[4] = 0xCE
    p += 5
    p += write_content(conn, ch.number, p, meta + names_n, meta_n - names_n, body, body_n)
    conn.out_n += p - start
    return <int64_t>body_n


@cython.no_gc_clear
cdef class Connection:
    """See plane/__init__.pyi."""

    def __cinit__(self, Core core, *_, **__):
        self.core = core
        self.c.core = &core.c
        self.c.owner = <void *>self
        self.c.fd = -1
        self.c.frame_max = 131072

    def __init__(self, core):
        pass

    def __dealloc__(self):
        cdef conn_t **at
        if self.c.is_out_dirty:
            at = &self.c.core.out_dirty
            while at[0] != &self.c:
                at = &at[0].out_next
            at[0] = self.c.out_next
        out_release(&self.c)
        free(self.c.stash)
        free(self.c.channels)

    # ---- figures and settings

    @property
    def number(self):
        return self.c.number

    @number.setter
    def number(self, uint32_t value):
        self.c.number = value

    @property
    def routes(self):
        return self._routes

    @routes.setter
    def routes(self, Routes value):
        self._routes = value
        self.c.routes_generation = &value.generation if value is not None else NULL

    @property
    def frame_max(self):
        return self.c.frame_max

    @frame_max.setter
    def frame_max(self, uint32_t value):
        if not 4096 <= value <= self.c.core.frame_octets_max:
            raise ValueError(f"frame_max is 4096 to {self.c.core.frame_octets_max} octets")
        self.c.frame_max = value

    @property
    def received_octets(self):
        return self.c.received

    @property
    def sent_octets(self):
        return self.c.sent

    @property
    def discard(self):
        return self.c.discard != 0

    @discard.setter
    def discard(self, bint value):
        self.c.discard = value

    @property
    def publishes(self):
        return self.c.publishes != 0

    @property
    def stopped(self):
        """Not read from: an alarm, or a full disk."""
        return self.c.blocked or self.c.stalled

    # ---- the loop's side

    def attach(self, transport, int fd):
        self.transport = transport
        self.c.fd = fd

    def get_buffer(self, sizehint):
        return self.core.input_view

    def buffer_updated(self, size_t nbytes):
        cdef Core core = self.core
        cdef uint8_t *p = core.input + core.input_room
        cdef uint8_t *end = p + nbytes
        self.c.received += nbytes
        if self.c.stalled:
            # A transport may bring what it had read before it was paused.
            self.stash_more(p, nbytes)
            return
        core.tick()
        if self.c.stash_n:
            p -= self.c.stash_n
            memcpy(p, self.c.stash, self.c.stash_n)
            self.drop_stash()
        self.work(p, end)
        core.turn()

    def feed(self, bytes octets):
        cdef Core core = self.core
        cdef size_t at = 0, n, size = len(octets)
        while at < size or size == 0:
            n = min(size - at, core.input_size)
            memcpy(core.input + core.input_room, <const char *>octets + at, n)
            self.buffer_updated(n)
            at += n
            if size == 0:
                break

    def pause_writing(self):
        cdef Consumer consumer
        cdef Channel channel
        self.c.paused = True
        if self.channels is not None:
            for channel in self.channels.values():
                if channel.consumers is not None:
                    for consumer in channel.consumers.values():
                        ring_leave(&consumer.c)

    def resume_writing(self):
        self.c.paused = False
        self.credit()
        if self.c.out_n:
            out_mark(&self.c)
        self.reading()
        self.core.tick()
        self.core.turn()

    def detach(self):
        cdef Channel channel
        self.c.gone = True
        self.c.fd = -1
        for channel in list((self.channels or {}).values()):
            channel.close()
        self.c.held = 0
        out_release(&self.c)
        self.drop_stash()
        self.transport = None
        self.core.turn()

    cdef int stash_more(self, const uint8_t *p, size_t n) except -1:
        cdef uint8_t *stash = <uint8_t *>realloc(self.c.stash, self.c.stash_n + n)
        if stash == NULL:
            raise MemoryError
        memcpy(stash + self.c.stash_n, p, n)
        self.c.stash = stash
        self.c.stash_n += n
        return 0

    cdef void drop_stash(self):
        free(self.c.stash)
        self.c.stash = NULL
        self.c.stash_n = 0

    cdef void credit(self):
        cdef Channel channel
        if self.channels is not None:
            for channel in self.channels.values():
                credit_of_channel(&channel.c)

    cdef int work(self, uint8_t *p, uint8_t *end) except -1:
        """Parse p..end; what is left is stashed."""
        cdef event_t e
        cdef size_t done = 0
        cdef int status
        cdef conn_t *c = &self.c
        while True:
            status = parse(c, p, end, &done, &e)
            p += done
            if status == MORE:
                break
            if status == STALL:
                self.stall(&e)
                break
            self.handle(status, &e)
            if c.gone:
                return 0
        if p < end and not c.gone:
            c.stash = <uint8_t *>malloc(end - p)
            if c.stash == NULL:
                raise MemoryError
            memcpy(c.stash, p, end - p)
            c.stash_n = end - p
        if self.core._blocked and c.publishes and not c.blocked and not c.discard:
            c.blocked = True
            self.on_publisher_blocked()
        self.reading()
        return 0

    cdef int handle(self, int status, event_t *e) except -1:
        cdef Channel channel
        cdef uint32_t index = be32(e.payload) if status == COLD else PUBLISH
        cdef uint16_t number = e.channel
        write_stages(self.c.core)
        try:
            if status == COLD:
                self.on_method(number, (<const char *>e.payload)[:e.payload_n])
            elif status == ROUTE:
                channel = self.channels[number]
                if self._routes is None:
                    raise by_reply_code(504, "expected 'connection.open'", hard=True)
                self._routes.learn(&channel.c, e)
            elif status == GREETING:
                self.c.greeted = True
                self.on_protocol_header((<const char *>e.payload)[:8])
            else:
                index = 0 if e.code == 501 else e.method
                raise by_reply_code(e.code, fault_text(e), hard=bool(e.hard))
        except Exception as error:
            self.on_error(number, error, index >> 16, index & 0xFFFF)
            channel = (self.channels or {}).get(number)
            if status == ROUTE and channel is not None and not channel.c.closing and not self.c.discard:
                # Whoever overrides on_error closes one of them; else this publish would be asked for for ever.
                self.c.gone = True
        return 0

    cdef void stall(self, event_t *e):
        cdef conn_t *c = &self.c
        write_stages(c.core)
        c.stalled = True
        c.publishes = True
        self.core.storage_failed(e.error)
        if not c.blocked:
            c.blocked = True
            self.on_publisher_blocked()

    def unblock(self):
        """The alarm is over: read again, and work what waited first."""
        cdef Core core = self.core
        cdef uint8_t *stash = self.c.stash
        cdef size_t n = self.c.stash_n
        self.c.blocked = False
        if self.c.stalled:
            self.c.stalled = False
            self.c.stash = NULL
            self.c.stash_n = 0
            core.tick()
            try:
                self.work(stash, stash + n)
            finally:
                free(stash)
            core.turn()
        self.reading()

    cdef void reading(self):
        """Read from the socket unless an alarm stands, or the peer does not take what we have for it."""
        cdef bint stop = self.c.blocked or self.c.stalled or (self.c.out_n > 4 * OUT_FULL and self.c.paused)
        if stop == self.c.reading_paused or self.transport is None or self.c.gone:
            return
        self.c.reading_paused = stop
        try:
            if stop:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()
        except Exception:
            pass            # a transport that is closing reads no more anyway

    # ---- the session's side

    def write(self, bytes octets):
        cdef uint8_t *p
        cdef size_t n = len(octets)
        if self.c.gone:
            return
        p = out_room(&self.c, n)
        if p == NULL:
            raise MemoryError
        memcpy(p, <const char *>octets, n)
        self.c.out_n += n

    def flush(self):
        """Send now, outside of a turn: before the transport is closed."""
        out_flush(&self.c)

    def hold(self):
        self.c.held += 1

    def release(self):
        if self.c.held:
            self.c.held -= 1
            if self.c.held == 0:
                if self.c.out_n:
                    out_mark(&self.c)
                self.credit()

    def on_protocol_header(self, octets):
        raise NotImplementedError

    def on_method(self, channel, payload):
        raise NotImplementedError

    def on_error(self, channel, error, class_id, method_id):
        raise error

    def on_publisher_blocked(self):
        pass


cdef str fault_text(event_t *e):
    text = e.text.decode()
    text = text.replace("%u", str(e.method), 1)
    for number in (e.number, e.limit):
        text = text.replace("%llu", str(number), 1)
    return text

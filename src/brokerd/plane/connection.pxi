# Cuts a client's octets into frames and handles each, until the chunk ends or the control plane must act.
#
#    0      1         3        7              7+size
#    +------+---------+--------+--------------+------+
#    | type | channel |  size  |   payload    | 0xCE |
#    +------+---------+--------+--------------+------+
#
# A publish that lies whole in the buffer is handled at once (parse_publish); all else goes frame by frame.  The Connection
# object, at the end of this file, has the verbs of the event loop and of the session.

cdef enum:
    IN_A_TURN_MOST = 2 << 20    # octets of one client; the loop would read 8 MiB of a client that is quick


cdef inline channel_t *channel_at(conn_t *conn, uint16_t number) noexcept nogil:
    return conn.channels[number] if number < conn.channels_n else NULL


cdef inline int parse_publish(conn_t *conn, channel_t *ch, const uint8_t *p, const uint8_t *end, uint32_t size,
                         size_t *used, event_t *e) noexcept nogil:
    """Publish the message with its method frame at p, if its header frame and one whole body frame (none for an empty
    body) follow in the buffer.  Else MORE."""
    cdef const uint8_t *h = p + 8 + size
    cdef const uint8_t *b
    cdef uint64_t body_n
    cdef uint32_t header_n
    cdef uint16_t channel = le16(p + 1)
    cdef int status
    if end - h < 22 or h[0] != FRAME_HEADER or le16(h + 1) != channel:
        return MORE
    header_n = be32(h + 3)
    if header_n > conn.frame_max - 8 or header_n < 14 or <size_t>(end - h) < header_n + 8 or h[7 + header_n] != FRAME_END:
        return MORE
    body_n = be64(h + 11)
    b = h + 8 + header_n
    if body_n == 0:
        used[0] = b - p
    else:
        if body_n > conn.frame_max - 8 or <size_t>(end - b) < body_n + 8 or b[0] != FRAME_BODY or le16(b + 1) != channel \
                or be32(b + 3) != body_n or b[7 + body_n] != FRAME_END:
            return MORE
        used[0] = b - p + 8 + body_n
        b += 7
    status = check_header(ch, h + 7, header_n, e)
    if status == DONE:
        status = publish(ch, p + 7, size, h + 7, header_n, b, body_n, e)
    return status


cdef int parse_method(conn_t *conn, channel_t *ch, const uint8_t *p, uint32_t size, event_t *e) noexcept nogil:
    """Handle a whole method frame on an open channel that expects no content."""
    cdef uint32_t index = be32(p)
    if UNLIKELY(ch.tx) and index != BASIC_PUBLISH:
        return COLD
    if index == BASIC_ACK:
        if size != 13:
            return fault(e, True, 502, b"basic.ack is not of the right length", index)
        if not tag_settle(ch, be64(p + 4), p[12] & 1, ACKED, 0):
            e.number = be64(p + 4)
            return fault(e, False, 406, b"unknown delivery tag %llu", index)
    elif index == BASIC_NACK:
        if size != 13:
            return fault(e, True, 502, b"basic.nack is not of the right length", index)
        if not tag_settle(ch, be64(p + 4), p[12] & 1, REJECTED, CAUSE_NACK if p[12] >> 1 & 1 else 0):
            e.number = be64(p + 4)
            return fault(e, False, 406, b"unknown delivery tag %llu", index)
    elif index == BASIC_REJECT:
        if size != 13:
            return fault(e, True, 502, b"basic.reject is not of the right length", index)
        if not tag_settle(ch, be64(p + 4), False, REJECTED, CAUSE_REJECT if p[12] & 1 else 0):
            e.number = be64(p + 4)
            return fault(e, False, 406, b"unknown delivery tag %llu", index)
    elif index == BASIC_PUBLISH:
        return content_begin(ch, p, size, e)
    else:
        return COLD
    return DONE


cdef int fault_unframed(conn_t *conn, size_t rest, size_t *used, event_t *e, const char *text, uint8_t kind) noexcept nogil:
    """The fault for octets that are no frame.  Nothing says where the next frame begins, so the plane drops all further
    octets of this connection."""
    used[0] = rest
    if conn.discard:
        conn.deaf = True
        return DONE
    conn.deaf = True
    return fault(e, True, 501, text, kind)


cdef int parse_frame(conn_t *conn, const uint8_t *p, const uint8_t *end, size_t *used, event_t *e) noexcept nogil:
    """Handle the frame at p, or the whole publish that begins there.  The caller goes on after *used octets.  After MORE,
    ROUTE, STALL and TURN it comes with the same octets again, unless conn.pending has the content."""
    cdef uint32_t size
    cdef uint8_t kind
    cdef channel_t *ch
    cdef int status
    if end - p < 8:
        return MORE
    kind = p[0]
    size = be32(p + 3)
    e.channel = be16(p + 1)
    if UNLIKELY(size > conn.frame_max - 8):
        e.number = size
        e.limit = conn.frame_max - 8
        return fault_unframed(conn, end - p, used, e, b"type %u, all octets = <<>>: {frame_too_large,%llu,%llu}", kind)
    if <size_t>(end - p) < <size_t>size + 8:
        return MORE
    used[0] = size + 8
    e.payload = p + 7
    e.payload_n = size
    if UNLIKELY(p[7 + size] != FRAME_END):
        e.number = p[7 + size]
        return fault_unframed(conn, end - p, used, e, b"type %u, %b: {invalid_frame_end_marker,%llu}", kind)
    ch = channel_at(conn, e.channel)
    if LIKELY(kind == FRAME_METHOD):
        if UNLIKELY(size < 4):
            if conn.discard:
                return DONE
            return fault_unframed(conn, end - p, used, e, b"type %u, %b: unknown_frame", kind)
        if UNLIKELY(conn.discard):
            return COLD if e.channel == 0 and (be32(p + 7) == (CONNECTION_CLOSE) or be32(p + 7) == (CONNECTION_CLOSE_OK)) else DONE
        if UNLIKELY(ch == NULL):
            return COLD
        if UNLIKELY(ch.closing):
            return COLD if be32(p + 7) == (CHANNEL_CLOSE) or be32(p + 7) == (CHANNEL_CLOSE_OK) else DONE
        if UNLIKELY(ch.state):
            # The fault names basic.publish, which is not whole, and not the method that came instead (RabbitMQ).
            if ch.state == 1:
                return fault(e, True, 505,
                             b"expected content header for class 60, got non content header frame instead", BASIC_PUBLISH)
            return fault(e, True, 505, b"expected content body, got non content body frame instead", BASIC_PUBLISH)
        if be32(p + 7) == BASIC_PUBLISH:
            status = parse_publish(conn, ch, p, end, size, used, e)
            if LIKELY(status == DONE):
                return DONE
            if status != MORE:
                return status
            used[0] = size + 8
        return parse_method(conn, ch, p + 7, size, e)
    if kind == FRAME_HEARTBEAT:
        if size or e.channel:
            return fault_unframed(conn, end - p, used, e, b"heartbeat frames are empty and on channel 0", kind)
        return DONE
    if UNLIKELY(kind != FRAME_HEADER and kind != FRAME_BODY):
        return fault_unframed(conn, end - p, used, e, b"type %u, %b: unknown_frame", kind)
    if conn.discard:
        return DONE
    if UNLIKELY(ch == NULL):
        if e.channel == 0:
            return fault(e, True, 505, b"expected method frame on channel 0, got content frame instead", 0)
        return fault(e, True, 504, b"expected 'channel.open'", 0)
    if UNLIKELY(ch.closing):
        return DONE
    return content_header(ch, p + 7, size, e) if kind == FRAME_HEADER else content_body(ch, p + 7, size, e)


cdef int parse(conn_t *conn, const uint8_t *p, const uint8_t *end, size_t *done, event_t *e) noexcept nogil:
    """Handle frames until one needs the control plane, or no whole frame is left.  *done: how many octets were used."""
    cdef const uint8_t *start = p
    cdef size_t used = 0
    cdef int status
    if UNLIKELY(conn.deaf):
        done[0] = end - p
        return MORE
    if UNLIKELY(not conn.greeted):
        done[0] = 0
        if end - p < 8:
            return MORE
        e.payload = p
        done[0] = 8
        return GREETING
    if UNLIKELY(conn.pending != NULL):
        done[0] = 0
        e.channel = conn.pending.number
        if conn.pending.closing or conn.discard:
            content_free(conn.pending)
            conn.pending = NULL
        else:
            status = content_whole(conn.pending, e)
            if status != DONE:
                return status
    while not conn.gone:
        status = parse_frame(conn, p, end, &used, e)
        if LIKELY(status == DONE):
            p += used
            if UNLIKELY(conn.spent >= conn.core.work_ns):
                done[0] = p - start
                return TURN
            continue
        if status == COLD or status == FAULT or status == CONTENT or conn.pending != NULL:
            p += used
        done[0] = p - start
        return status
    done[0] = end - start
    return MORE


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
        """Whether an alarm, a full disk, rest(), or the turns of others keep the plane from reading."""
        return self.c.blocked or self.c.stalled or self.c.yielded or self.c.rests != 0

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
        if self.c.stalled or self.c.yielded or self.c.rests:
            # A transport may bring octets that it had read before it was paused.
            self.stash_more(p, nbytes)
            return
        self.c.taken_in += nbytes
        core.read_clock()
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
        self.credit_consumers()
        if self.c.out_n:
            mark_out_dirty(&self.c)
        self.update_reading()
        self.core.read_clock()
        self.core.turn()

    def detach(self):
        cdef Channel channel
        self.c.gone = True
        self.c.fd = -1
        self.core.read_clock()
        for channel in list((self.channels or {}).values()):
            channel.close()
        self.c.held = 0
        out_release(&self.c)
        self.drop_stash()
        self.transport = None
        self.core.turn()

    cdef int stash_more(self, const uint8_t *p, size_t n) except -1:
        if n == 0:
            return 0
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

    cdef void credit_consumers(self):
        cdef Channel channel
        if self.channels is not None:
            for channel in self.channels.values():
                rings_rejoin(&channel.c)

    cdef int work(self, uint8_t *p, uint8_t *end) except -1:
        """Parse p..end, and stash the octets that are left."""
        cdef event_t e
        cdef size_t done = 0
        cdef int status
        cdef conn_t *c = &self.c
        cdef int64_t most = c.core.work_ns
        cdef int64_t began = 0      # of the first call from here: what the plane does alone is soon done
        while True:
            status = parse(c, p, end, &done, &e)
            p += done
            if status == MORE or status == TURN:
                break
            if status == STALL:
                self.stall(&e)
                break
            # Not between a ROUTE and the next look at its publish: others could take the route away.
            if began == 0:
                began = monotonic_ns() - c.spent
            elif status == ROUTE and monotonic_ns() - began >= most:
                break
            self.handle(status, &e)
            if c.gone:
                return 0
            if c.rests and not c.ended:
                break
            if status != ROUTE and p < end and monotonic_ns() - began >= most:
                break
        if p < end and not c.gone:
            c.stash = <uint8_t *>malloc(end - p)
            if c.stash == NULL:
                raise MemoryError
            memcpy(c.stash, p, end - p)
            c.stash_n = end - p
        if self.core._blocked and c.publishes and not c.blocked and not c.discard:
            c.blocked = True
            self.on_publisher_blocked()
        if began:
            c.spent = monotonic_ns() - began
        if UNLIKELY(status == TURN or c.spent >= most or (c.taken_in >= IN_A_TURN_MOST and most != NEVER)) \
                and not c.stalled and not c.rests:
            self.yield_turn()
        self.update_reading()
        return 0

    cdef void yield_turn(self):
        """The connection had its share of time: others have their turn before its next octets."""
        self.c.spent = 0
        self.c.taken_in = 0
        if self.c.yielded:
            return
        self.c.yielded = True
        self.core.yielded.append(self)
        self.core.ask_to_go_on()

    @property
    def yielded(self):
        return self.c.yielded or self.c.rests != 0

    def rest(self):
        self.c.rests += 1
        self.update_reading()

    def go_on(self):
        ASSERT(self.c.rests)
        self.c.rests -= 1
        if self.c.rests == 0 and not self.c.yielded and not self.c.gone:
            self.yield_turn()

    def finish_octets(self):
        cdef int64_t most = self.c.core.work_ns
        self.c.ended = True
        if self.c.yielded or self.c.rests:
            self.c.core.work_ns = NEVER
            try:
                self.core.read_clock()
                self.work_on_stash()
            finally:
                self.c.core.work_ns = most

    cdef int work_on_stash(self) except -1:
        """The turn of a connection that yielded."""
        cdef uint8_t *stash = self.c.stash
        cdef size_t n = self.c.stash_n
        self.c.yielded = False
        if self.c.gone or self.c.stalled or (self.c.rests and not self.c.ended):
            return 0
        self.c.stash = NULL
        self.c.stash_n = 0
        try:
            self.work(stash, stash + n)
        except BaseException:       # As the loop does where a protocol raises.
            if self.transport is not None:
                self.transport.abort()
            raise
        finally:
            free(stash)
        return 0

    cdef int handle(self, int status, event_t *e) except -1:
        cdef Channel channel
        cdef uint32_t index = be32(e.payload) if status == COLD else BASIC_PUBLISH
        cdef uint16_t number = e.channel
        if has_unfinished(self.c.core):
            finish_chunk(self.c.core, AFFAIRS_MOST)
        try:
            if status == COLD:
                self.on_method(number, (<const char *>e.payload)[:e.payload_n])
            elif status == ROUTE:
                channel = self.channels[number]
                if self._routes is None:
                    raise by_reply_code(504, "expected 'connection.open'", hard=True)
                self._routes.learn(&channel.c, e)
            elif status == CONTENT:
                channel = self.channels[number]
                try:
                    self.on_publish(number, (<const char *>e.payload)[:e.payload_n],
                                    (<const char *>e.header)[:e.header_n], (<const char *>e.body)[:e.body_n])
                finally:
                    content_free(&channel.c)
                    self.c.pending = NULL
            elif status == GREETING:
                self.c.greeted = True
                self.on_protocol_header((<const char *>e.payload)[:8])
            else:
                index = 0 if e.code == 501 else e.method
                raise by_reply_code(e.code, describe_fault(e), hard=bool(e.hard))
        except Exception as error:
            self.on_error(number, error, index >> 16, index & 0xFFFF)
            channel = (self.channels or {}).get(number)
            if status == ROUTE and channel is not None and not channel.c.closing and not self.c.discard:
                # on_error() has closed neither the channel nor the connection, as it must.  Give the connection up:
                # the parser would ask for this route again for ever.
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
        """The alarm is over: parse the octets that waited, then read again."""
        cdef Core core = self.core
        cdef uint8_t *stash = self.c.stash
        cdef size_t n = self.c.stash_n
        self.c.blocked = False
        if self.c.stalled:
            self.c.stalled = False
            if self.c.rests:            # go_on() will look at the octets.
                return
            self.c.stash = NULL
            self.c.stash_n = 0
            core.read_clock()
            try:
                self.work(stash, stash + n)
            finally:
                free(stash)
            core.turn()
        self.update_reading()

    cdef void update_reading(self):
        """Read from the socket, unless an alarm is in force, or much output waits for a peer that does not read."""
        cdef bint stop = self.c.blocked or self.c.stalled or self.c.yielded or self.c.rests \
            or (self.c.out_n > 4 * OUT_FULL and self.c.paused)
        if stop == self.c.reading_paused or self.transport is None or self.c.gone:
            return
        self.c.reading_paused = stop
        try:
            if stop:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()
        except Exception:
            pass            # A transport that is closing reads no more anyway.

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
                    mark_out_dirty(&self.c)
                self.credit_consumers()

    def on_protocol_header(self, octets):
        raise NotImplementedError

    def on_method(self, channel, payload):
        raise NotImplementedError

    def on_publish(self, channel, method, header, body):
        raise NotImplementedError

    def on_error(self, channel, error, class_id, method_id):
        raise error

    def on_publisher_blocked(self):
        pass

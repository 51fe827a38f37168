# The Connection object: the verbs of the event loop and of the session.  It has a client's octets parsed (frames.pxi), calls
# the session for what the plane does not handle itself, and puts by the octets that wait.

cdef enum:
    IN_A_TURN_MOST = 2 << 20    # octets of one client; the loop would read 8 MiB of a client that is quick


cdef inline bint is_calm(conn_t *c, int64_t used) noexcept nogil:
    """Whether it used nothing for a while, but for what it has `used` now: it need not wait for those that always have something
    to do.  A single piece of work may take longer than that while: it makes no client calm."""
    return c.core.calm_ns != 0 and monotonic_ns() - c.counted_from - used >= c.core.calm_ns


cdef inline int64_t time_used(bint waits) noexcept nogil:
    """Ns of a clock that goes on while the thread `waits`, or of one that does not: on a busy machine a thread often waits
    for a processor, and no client should lose its turn to that."""
    return monotonic_ns() if waits else processor_ns()


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
        return self.c.publishes == self.c.core.alarms

    @property
    def waiting_octets(self):
        return self.c.out_n if self.c.paused or self.c.held else 0

    @property
    def held_octets(self):
        return self.c.out_n + self.c.stash_n + self.c.unfinished - self.c.in_files

    @property
    def output_waits(self):
        return self.c.paused and self.c.out_n != 0

    @property
    def stopped(self):
        """Whether an alarm, a full disk, rest(), a sync, or the turns of others keep the plane from reading."""
        return self.c.blocked or self.c.stalled or self.c.yielded or self.c.rests != 0 \
            or (self.c.stuffed and self.c.held != 0)

    # ---- the loop's side

    def attach(self, transport, int fd):
        self.transport = transport
        self.c.fd = fd
        self.c.counted_from = monotonic_ns()

    def get_buffer(self, sizehint):
        return self.core.input_view

    def buffer_updated(self, size_t nbytes):
        cdef Core core = self.core
        cdef uint8_t *p = core.input + core.input_room
        cdef uint8_t *end = p + nbytes
        self.c.received += nbytes
        if self.c.stalled or self.c.yielded or self.c.rests or self.c.stuffed:
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
        if UNLIKELY(core.c.dirty != NULL) and nbytes == core.input_size:
            self.wait_for_deliveries()

    cdef void wait_for_deliveries(self):
        """The turn has left messages to hand out, and this client has sent more: it waits for its turn.  The loop would read up to
        2 MiB of it first, and each read has a turn, so that all these turns came before another client's."""
        cdef conn_t *c = &self.c
        if c.core.work_ns != NEVER and not (c.gone or c.yielded or c.stalled or c.rests or c.stuffed):
            self.yield_turn()
            self.update_reading()

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
        self.unstuff()
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
        cdef int64_t most = c.core.work_ns, before = c.spent
        cdef int64_t began = 0      # of the first call from here: what the plane does alone is soon done
        cdef bint waits = False     # A method may wait for the disk, and a look for a route only for the processor.
        cdef bint crowded = False, further = False      # It had a further turn: no other, as a busy machine makes all look calm.
        while True:
            c.core.spent = c.spent
            status = parse(c, p, end, &done, &e)
            c.spent = c.core.spent
            p += done
            if status == MORE:
                break
            if status == TURN:
                if further or not is_calm(c, c.spent):
                    break
                further = True
                before -= c.spent               # It has another turn at once.
                began = 0
                self.count_anew()
                continue
            if status == STALL:
                self.stall(&e)
                break
            crowded = self.is_held_up(status)
            if UNLIKELY(crowded):
                if status == COLD:
                    p = <uint8_t *>e.payload - 7        # It comes again.
                break
            # Not between a ROUTE and the next look at its publish: others could take the route away.
            if began == 0:
                waits = status != ROUTE
                began = time_used(waits) - c.spent
            elif status != ROUTE and not waits:
                waits = True
                began = time_used(True) - (time_used(False) - began)
            elif status == ROUTE and time_used(waits) - began >= most:
                if further or not is_calm(c, time_used(waits) - began):
                    break
                further = True
                before -= time_used(waits) - began
                began = time_used(waits)
                self.count_anew()
            self.handle(status, &e)
            if c.gone:
                return 0
            if UNLIKELY(c.out_n >= OUT_FULL):
                # One read may bring thousands of basic.get.
                if c.ended:
                    out_release(c)      # There is no client any more that could read it.
                else:
                    out_flush(c)
                    if is_output_full(c):
                        c.stuffed = True
                        break
            if UNLIKELY(c.comes_again):
                c.comes_again = False
                if status == COLD:
                    p = <uint8_t *>e.payload - 7
            if c.rests and (not c.ended or c.awaits):
                break
            if status != ROUTE and p < end and time_used(waits) - began >= most:
                break
        c.spent = time_used(waits) - began if began else c.spent
        c.core.busy += c.spent - before
        return self.end_work(p, end, status == TURN, crowded)

    cdef int end_work(self, uint8_t *p, uint8_t *end, bint turn, bint crowded) except -1:
        """Stash p..end, and wait for a `turn` if the connection must."""
        cdef conn_t *c = &self.c
        cdef int64_t most = c.core.work_ns
        if p < end and not c.gone:
            c.stash = <uint8_t *>malloc(end - p)
            if c.stash == NULL:
                raise MemoryError
            memcpy(c.stash, p, end - p)
            c.stash_n = end - p
        if self.core._blocked and c.publishes == c.core.alarms and not c.blocked and not c.discard:
            c.blocked = True
            self.on_publisher_blocked()
        if UNLIKELY(turn or crowded or c.spent >= most or (c.taken_in >= IN_A_TURN_MOST and most != NEVER)) \
                and not c.stalled and ((not c.rests and not c.stuffed) or c.ended):
            if c.stash_n or c.ended or turn or not is_calm(c, c.spent):
                self.yield_turn()
            else:               # Nothing waits, and what it used was little for the time.
                self.count_anew()
        self.update_reading()
        return 0

    cdef void count_anew(self):
        self.c.spent = 0
        self.c.taken_in = 0
        self.c.counted_from = monotonic_ns()

    cdef void yield_turn(self):
        """The connection had its share of time: others have their turn before its next octets."""
        cdef bint calm = is_calm(&self.c, self.c.spent) and not self.c.ended
        self.count_anew()
        if self.c.yielded:
            return
        self.c.yielded = True
        (self.core.calm if calm else self.core.yielded).append(self)
        self.core.ask_to_go_on()

    cdef void unstuff(self):
        """The client has read, or a sync is over: work on the octets that waited for that."""
        if self.c.stuffed and not is_output_full(&self.c):
            self.c.stuffed = False
            if self.c.rests == 0 and not self.c.gone:
                self.yield_turn()

    @property
    def ended(self):
        return self.c.ended

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

    def await_answer(self, bint comes_again):
        self.c.awaits += 1
        self.c.comes_again = comes_again
        self.rest()

    def answered(self):
        ASSERT(self.c.awaits)
        self.c.awaits -= 1
        self.go_on()

    def finish_octets(self):
        self.c.ended = True
        self.c.fd = -1                          # The loop closes it, and another connection may get its number.
        if self.c.gone or self.c.stalled or not (self.c.yielded or self.c.rests or self.c.stuffed):
            return True
        if self.core.go_on_upcall is None:      # Connections do not take turns.
            self.core.read_clock()
            self.work_on_stash()
            return True
        self.pause_writing()                    # No consumer gets anything, and no octet goes out.
        self.c.stuffed = False
        if not self.c.yielded:
            self.yield_turn()
        return False

    def on_octets_finished(self):
        pass

    cdef int work_on_stash(self) except -1:
        """The turn of a connection that yielded."""
        cdef uint8_t *stash = self.c.stash
        cdef size_t n = self.c.stash_n
        self.c.yielded = False
        if self.c.gone or self.c.awaits or ((self.c.rests or self.c.stuffed or self.c.stalled) and not self.c.ended):
            return 0
        self.c.stash = NULL
        self.c.stash_n = 0
        try:
            if not self.c.stalled:
                self.work(stash, stash + n)
        except BaseException:       # As the loop does where a protocol raises.
            if self.transport is not None:
                self.transport.abort()
            raise
        finally:
            free(stash)
            if self.c.ended and not self.c.yielded and self.core.go_on_upcall is not None:
                self.on_octets_finished()
        return 0

    cdef bint is_held_up(self, int status):
        """Whether this method or route waits for another turn."""
        if UNLIKELY(self.c.core.busy >= self.c.core.crowd_ns) and status == COLD and not self.core.going_on:
            # The loop would go on with all that many clients have sent, before it looks after anything else.
            return True
        return UNLIKELY(has_unfinished(self.c.core)) and (status == COLD or status == ROUTE) and not self.finish_affairs()

    cdef bint finish_affairs(self):
        """Finish what earlier methods have left, such as dead letters.  False: it takes longer, and the next method waits for
        another turn.  How many affairs a method waits for has a bound.  Time has none, because the answer to a method must not
        depend on how busy the machine is."""
        cdef conn_t *c = &self.c
        cdef core_t *core = c.core
        cdef int64_t began = monotonic_ns()
        cdef uint64_t n, before = core.affairs
        if c.affairs_left == 0:
            c.affairs_left = AFFAIRS_MOST
        finish_chunk(core, c.affairs_left, NEVER if core.work_ns == NEVER else began + core.work_ns)
        core.busy += monotonic_ns() - began
        n = max(core.affairs - before, <uint64_t>1)
        if has_unfinished(core) and n < c.affairs_left and core.work_ns != NEVER:
            c.affairs_left -= <uint32_t>n
            return False
        c.affairs_left = 0
        return True

    cdef int handle(self, int status, event_t *e) except -1:
        cdef Channel channel
        cdef uint32_t index = be32(e.payload) if status == COLD else BASIC_PUBLISH
        cdef uint16_t number = e.channel
        if status == COLD and self.c.core.dirty != NULL:
            # What was published before goes to consumers that wait, as if it had come in a chunk of its own: the answer to this
            # method must not depend on how the network has cut the octets.
            self.core.deliver_dirty()
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
            if status == ROUTE and channel is not None and not channel.c.closing and not self.c.discard and not self.c.awaits:
                # on_error() has neither closed the channel or the connection nor awaits an answer, as it must.  Give the
                # connection up: the parser would ask for this route again for ever.
                self.c.gone = True
        return 0

    cdef void stall(self, event_t *e):
        cdef conn_t *c = &self.c
        write_stages(c.core)
        c.stalled = True
        c.publishes = c.core.alarms
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
        cdef bint stop = self.c.blocked or self.c.stalled or self.c.yielded or self.c.rests or self.c.stuffed \
            or (self.c.out_n > OUT_MOST and self.c.paused)
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
        if self.c.gone or n == 0:
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
                self.unstuff()

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

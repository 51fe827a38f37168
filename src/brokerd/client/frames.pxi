# The reading half of one connection: frames cut out of its octets.  Knows nothing of what a relay does with messages.

@cython.final
cdef class Frames:
    """The frames of one connection.  ``on_frame(kind, channel, payload)`` gets those that no relay takes.

    ``capacity``: octets that are read at a time at most, and the most of a frame.  The memory begins small, and doubles
    when what came has filled it: connections that are idle are many.
    """

    cdef object memory, on_frame
    cdef uint8_t *begin
    cdef size_t filled, capacity, most
    cdef bint was_full                  # the last octets filled the memory
    cdef readonly uint32_t frame_max
    cdef Relay relay
    cdef int role
    cdef bint returning

    def __cinit__(self, on_frame, size_t capacity = 256 << 10):
        self.most = capacity
        self.capacity = min(capacity, <size_t> FIRST_READ)
        self.memory = bytearray(self.capacity)
        self.begin = <uint8_t *> <char *> self.memory
        self.on_frame = on_frame
        self.frame_max = capacity - OVERHEAD

    def agree(self, uint32_t frame_max) -> None:
        """No frame is larger from now on, with its head and end."""
        assert frame_max <= self.most
        self.frame_max = frame_max

    def give(self, Relay relay, bint source) -> None:
        """The relay gets the messages (``source``), or the confirms, of channel 1."""
        self.relay = relay
        self.role = SOURCE if source else DESTINATION

    def room(self) -> memoryview:
        """Where the next octets go."""
        if self.was_full:
            self.was_full = False
            if self.capacity < self.most:
                self._grow()
        return memoryview(self.memory)[self.filled:]

    cdef int _grow(self) except -1:
        # Not resized: a reader may still hold a view of the former memory.
        cdef size_t capacity = min(2 * self.capacity, self.most)
        cdef object memory = bytearray(capacity)
        cdef uint8_t *begin = <uint8_t *> <char *> memory
        memcpy(begin, self.begin, self.filled)
        self.memory, self.begin, self.capacity = memory, begin, capacity
        return 0

    def rest(self) -> bytes:
        """What has come and was not worked on: at most the first of its octets."""
        return bytes(self.begin[:min(self.filled, <size_t> 16)])

    def fed(self, size_t count) -> None:
        """So many octets have come.  Raises StreamError, and what on_frame raises."""
        self.filled += count
        if self.filled == self.capacity:
            self.was_full = True
        cdef uint8_t *p = self.begin
        cdef uint8_t *end = p + self.filled
        cdef uint32_t size
        try:
            while end - p >= OVERHEAD:
                size = be32(p + 3)
                if p[0] == 65 and p[1] == 77:   # "AM"
                    raise StreamError(f"the broker speaks another protocol: it answered {bytes(p[:8])!r}")
                if size + OVERHEAD > self.frame_max:
                    raise StreamError(f"a frame of {size + OVERHEAD} octets; at most {self.frame_max} are agreed")
                if <size_t> (end - p) < <size_t> size + OVERHEAD:
                    break
                if p[7 + size] != FRAME_END:
                    raise StreamError("a frame without its end octet")
                # Its own place first: what on_frame does may not see it again.
                p += size + OVERHEAD
                self._frame(p - size - OVERHEAD, size)
        finally:
            self.filled = end - p
            if self.filled and p != self.begin:
                memmove(self.begin, p, self.filled)

    cdef int _frame(self, uint8_t *p, uint32_t size) except -1:
        cdef uint8_t *payload = p + 7
        cdef uint32_t index
        if self.role != ALONE and p[1] == 0 and p[2] == 1:
            if p[0] == METHOD:
                if size < 4:
                    raise StreamError("a method frame that is cut short")
                index = be32(payload)
                if self.role == SOURCE:
                    if index == BASIC_DELIVER:
                        return self.relay.deliver(payload, size)
                elif index == BASIC_ACK or index == BASIC_NACK:
                    if size < 13:
                        raise StreamError("a confirm that is cut short")
                    return self.relay.settle(be64(payload + 4), payload[12] & 1, index == BASIC_NACK)
                elif index == BASIC_RETURN:
                    self.returning = True
                    return self.relay.note_return(payload, size)
            elif p[0] == HEADER:
                if size < 14:
                    raise StreamError("a content header that is cut short")
                if self.role == SOURCE:
                    return self.relay.header(payload, size)
                if self.returning:
                    self.returning = False
                    return self.relay.returned(payload, size)
                return 0
            elif p[0] == BODY:
                if self.role == SOURCE:
                    return self.relay.body(payload, size)
                return 0
        self.on_frame(p[0], (<int> p[1]) << 8 | p[2], bytes(payload[:size]))
        return 0

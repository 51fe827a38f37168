# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled half of the client: frames cut out of a connection's octets, and deliveries made into publishes.

`Frames` is the reading half of one connection.  A `Relay` stands between two of them: the source's gives it deliveries,
the destination's gives it confirms.  A message is a few memcpy; Python sees chunks of octets, and the frames of all other
methods.

    source -> Frames -> Relay.take() -> destination         basic.deliver, header, body -> basic.publish, header, body
    source <- Relay.acks() <- Frames <- destination         basic.ack, basic.nack, basic.return -> basic.ack

The relay acknowledges at the source exactly the longest run of messages, from the first on, that the destination has
confirmed.  It keeps each publish until then.  A message that the destination refuses stops the relay; `retry` sends the
refused ones again, one at a time and before all that has not been sent, so that the order holds.

Knows nothing of sockets, time, handshakes or topology.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove

cdef extern from *:
    """
    #define NO_ENTRY 0xFFFFFFFFFFFFFFFFull
    """
    const uint64_t NO_ENTRY

cdef enum:
    BASIC_REJECT = 60 << 16 | 90
    # roles of a Frames
    ALONE = 0
    SOURCE = 1
    DESTINATION = 2
    # what a relay does at the source
    NO_ACK = 0
    ON_PUBLISH = 1
    ON_CONFIRM = 2
    # states of an entry
    WAITS = 0                           # not sent, or to be sent again
    SENT = 1
    CONFIRMED = 2
    REFUSED = 3
    REJECTED = 4                        # given up
    SHORTSTR = 256
    MESSAGE_OCTETS_MAX = 512 << 20      # of a body: more than brokers let pass (RabbitMQ: 512 MiB)
    FIRST_READ = 8192                   # octets of a connection's memory at first


cdef struct Entry:                      # a message that the source has not been told of
    uint64_t at                         # its publish, in octets since the relay began
    uint64_t tag                        # of its delivery
    uint32_t octets                     # of its publish; 0: it was dropped
    uint32_t tries
    uint8_t state
    uint8_t returned


include "numbers.pxi"
include "octets.pxi"
include "frames.pxi"
include "header.pxi"


@cython.final
cdef class Relay:
    """What is on its way from one connection to another.

    ``mode``: "on-confirm", "on-publish" or "no-ack".  ``exchange`` and ``key``: None is the message's own.  ``rewrite``:
    None, or a function (exchange, key, header payload, redelivered) that returns these three anew, or None to drop the
    message.  ``marks``: messages that were delivered before get the header x-shovel-redelivered.  ``ids``: what ids of
    messages begin with; each gets the header x-shovel-id then, if its source numbers them.  ``limit``: so many messages are
    taken and no more; -1: all.  ``frame_max`` is the destination's.
    """

    cdef object rewrite
    cdef bytes exchange, key, fixed, ids
    cdef int mode
    cdef bint mandatory, marks
    cdef uint32_t frame_max
    # publishes that are kept: octets from `kept_from` to `complete` are whole messages, to `written` one that comes
    cdef uint8_t *kept
    cdef size_t capacity
    cdef uint64_t kept_from, sent, complete, written
    # the message that comes
    cdef uint8_t source_exchange[SHORTSTR]
    cdef uint8_t source_key[SHORTSTR]
    cdef size_t source_exchange_size, source_key_size
    cdef uint64_t tag, body_left
    cdef bint comes, has_header, redelivered, dropped, over
    # entries, by number, and the number of each publish's entry by its sequence number
    cdef Entry *entries
    cdef uint64_t *numbers
    cdef uint64_t size, head, next, tail        # of both rings; first entry, first that was never sent, end
    cdef uint64_t low, high                     # sequence numbers: first unsettled, next
    cdef readonly uint64_t received, confirmed, in_flight, refused, retried, rejected
    cdef readonly int64_t limit
    cdef readonly bint halted                   # the destination refused a message
    cdef readonly bint careful                  # messages are sent again, one at a time
    cdef readonly str reason                    # of the last refusal
    cdef readonly bint came_back                # that one was a basic.return: no queue took the message
    # messages without an id: the source did not number them, or the header would be longer than a frame
    cdef readonly uint64_t unnumbered, overlong

    def __cinit__(self, str mode, exchange, key, *, bint mandatory=False, rewrite=None, bint marks=False, bytes ids=None,
                  limit=-1, uint32_t frame_max=131072):
        self.mode = {"no-ack": NO_ACK, "on-publish": ON_PUBLISH, "on-confirm": ON_CONFIRM}[mode]
        self.exchange, self.key, self.rewrite, self.marks, self.ids = exchange, key, rewrite, marks, ids
        self.mandatory, self.limit, self.frame_max = mandatory, limit, frame_max
        self.reason = ""
        self.capacity = 4 << 10         # Both double as they must: links that are idle are many.
        self.size = 64
        self.low = self.high = 1
        self.kept = <uint8_t *> malloc(self.capacity)
        self.entries = <Entry *> malloc(self.size * sizeof(Entry))
        self.numbers = <uint64_t *> malloc(self.size * sizeof(uint64_t))
        if self.kept == NULL or self.entries == NULL or self.numbers == NULL:
            raise MemoryError
        if exchange is not None and key is not None:
            self.fixed = _publish(exchange, key, mandatory)

    def __dealloc__(self):
        free(self.kept)
        free(self.entries)
        free(self.numbers)

    @property
    def kept_octets(self) -> int:
        """How much the relay holds of whole messages.  One that comes does not count: it must become whole, however large
        it is."""
        return self.complete - self._needed_from()

    @property
    def unsettled(self) -> int:
        """How many messages the source has not been told of."""
        return self.tail - self.head

    @property
    def tries(self) -> int:
        """How often the first refused message was sent; 0: there is none."""
        cdef uint64_t number
        for number in range(self.head, self.tail):
            if self.entries[number & self.size - 1].state == REFUSED:
                return self.entries[number & self.size - 1].tries
        return 0

    @property
    def finished(self) -> bool:
        """Whether ``limit`` messages have come, and each is settled."""
        return self.limit == 0 and self.head == self.tail and self.sent == self.complete

    # --- from the source

    cdef int _room(self, size_t octets) except -1:
        cdef size_t held = self.written - self.kept_from
        cdef size_t capacity = self.capacity
        cdef uint8_t *larger
        if held + octets <= capacity:
            return 0
        while held + octets > capacity:
            capacity *= 2
        larger = <uint8_t *> realloc(self.kept, capacity)
        if larger == NULL:
            raise MemoryError
        self.kept, self.capacity = larger, capacity
        return 0

    cdef uint64_t _needed_from(self) noexcept:
        """Where the octets begin that are not settled."""
        if self.mode != ON_CONFIRM:
            return self.sent
        return self.entries[self.head & self.size - 1].at if self.head < self.tail else self.complete

    cdef int _release(self) except -1:
        """Forget the octets of what is settled, when that is worth a move."""
        cdef uint64_t upto = self._needed_from()
        cdef uint64_t held = self.written - upto
        if upto > self.kept_from and 2 * held <= self.capacity:
            if held <= upto - self.kept_from or 2 * (upto - self.kept_from) >= self.capacity:
                memmove(self.kept, self.kept + (upto - self.kept_from), held)
                self.kept_from = upto
        return 0

    cdef int _frame(self, int kind, const uint8_t *payload, uint32_t size) except -1:
        cdef uint8_t *p
        self._room(size + OVERHEAD)
        p = self.kept + (self.written - self.kept_from)
        p[0] = kind
        p[1], p[2] = 0, 1
        put32(p + 3, size)
        memcpy(p + 7, payload, size)
        p[7 + size] = FRAME_END
        self.written += size + OVERHEAD
        return 0

    cdef int deliver(self, const uint8_t *p, uint32_t size) except -1:
        """basic.deliver: consumer tag, delivery tag u64, redelivered, exchange, routing key."""
        cdef uint32_t at = 4
        if self.comes:
            raise StreamError("a delivery within another one")
        if at < size:
            at += 1 + p[at]
        if at + 10 > size:
            raise StreamError("a basic.deliver that is cut short")
        self.tag = be64(p + at)
        self.redelivered = p[at + 8] & 1
        at += 9
        self.source_exchange_size = p[at]
        if at + 1 + p[at] >= size:
            raise StreamError("a basic.deliver that is cut short")
        memcpy(self.source_exchange, p + at + 1, p[at])
        at += 1 + p[at]
        self.source_key_size = p[at]
        if at + 1 + p[at] > size:
            raise StreamError("a basic.deliver that is cut short")
        memcpy(self.source_key, p + at + 1, p[at])
        self.comes = True
        self.has_header = self.dropped = False
        self.over = self.limit == 0
        return 0

    cdef int header(self, const uint8_t *p, uint32_t size) except -1:
        if not self.comes or self.has_header:
            raise StreamError("a content header without its method")
        self.has_header = True
        self.body_left = be64(p + 4)
        if self.body_left > MESSAGE_OCTETS_MAX:
            raise StreamError(f"a message of {self.body_left} octets; links carry {MESSAGE_OCTETS_MAX} at most")
        if self.over:
            self.dropped = True
        elif self.rewrite is not None:
            self._rewrite(p, size)
        else:
            self._method()
            self._header(p, size)
        if not self.body_left:
            self._message()
        return 0

    cdef int _method(self) except -1:
        cdef bytes method = self.fixed
        if method is None:
            method = _publish(
                self.source_exchange[:self.source_exchange_size] if self.exchange is None else self.exchange,
                self.source_key[:self.source_key_size] if self.key is None else self.key, self.mandatory)
        return self._frame(METHOD, <const uint8_t *> <const char *> method, len(method))

    cdef int _rewrite(self, const uint8_t *p, uint32_t size) except -1:
        cdef bytes header, method
        made = self.rewrite(self.source_exchange[:self.source_exchange_size], self.source_key[:self.source_key_size],
                            p[:size], bool(self.redelivered))
        if made is None:
            self.dropped = True
            return 0
        exchange, key, header = made
        method = _publish(exchange if self.exchange is None else self.exchange, key if self.key is None else self.key,
                          self.mandatory)
        self._frame(METHOD, <const uint8_t *> <const char *> method, len(method))
        if len(header) < 14:
            raise StreamError("a content header that is cut short")
        return self._header(<const uint8_t *> <const char *> header, len(header))

    cdef int _header(self, const uint8_t *p, uint32_t size) except -1:
        cdef bint marks = self.marks and self.redelivered
        cdef bytes ids = self.ids
        cdef uint8_t *begin
        cdef uint8_t *end
        cdef int became = NO_ID
        if not marks and ids is None:
            self._check_header(size)
            return self._frame(HEADER, p, size)
        self._room(size + OVERHEAD + ADDED_ROOM + (0 if ids is None else len(ids)))
        begin = self.kept + (self.written - self.kept_from)
        end = _write_header(begin + 7, p, size, ids, True, marks, &became)
        if became == NUMBERED and end - begin + 1 > self.frame_max:
            self.overlong += 1
            end = _write_header(begin + 7, p, size, ids, False, marks, &became)
        self.unnumbered += became == NO_NUMBER
        self._check_header(end - begin - 7)
        begin[0] = HEADER
        begin[1], begin[2] = 0, 1
        put32(begin + 3, end - begin - 7)
        end[0] = FRAME_END
        self.written += end + 1 - begin
        return 0

    cdef int _check_header(self, uint32_t size) except -1:
        if size + OVERHEAD > self.frame_max:
            raise StreamError(f"a content header of {size} octets is more than the destination takes")
        return 0

    cdef int body(self, const uint8_t *p, uint32_t size) except -1:
        cdef uint32_t most = self.frame_max - OVERHEAD, part
        if not self.comes or not self.has_header or size > self.body_left:
            raise StreamError("more of a body than its content header said")
        self.body_left -= size
        while size and not self.dropped:
            part = min(size, most)
            self._frame(BODY, p, part)
            p += part
            size -= part
        if not self.body_left:
            self._message()
        return 0

    cdef int _message(self) except -1:
        """A message is whole."""
        cdef Entry *entry
        self.comes = False
        if self.over:
            return 0
        self.received += 1
        if self.limit > 0:
            self.limit -= 1
        if self.mode != NO_ACK:
            if self.tail - self.head == self.size:
                self._grow()
            entry = self.entries + (self.tail & self.size - 1)
            entry.at = self.complete
            entry.octets = self.written - self.complete
            entry.tag = self.tag
            entry.tries = entry.returned = 0
            entry.state = CONFIRMED if self.dropped else WAITS
            self.tail += 1
        self.complete = self.written
        return 0

    cdef int _grow(self) except -1:
        cdef uint64_t larger = 2 * self.size, i
        cdef Entry *entries = <Entry *> malloc(larger * sizeof(Entry))
        cdef uint64_t *numbers = <uint64_t *> malloc(larger * sizeof(uint64_t))
        if entries == NULL or numbers == NULL:
            free(entries)
            free(numbers)
            raise MemoryError
        for i in range(self.head, self.tail):
            entries[i & larger - 1] = self.entries[i & self.size - 1]
        for i in range(self.low, self.high):
            numbers[i & larger - 1] = self.numbers[i & self.size - 1]
        free(self.entries)
        free(self.numbers)
        self.entries, self.numbers, self.size = entries, numbers, larger
        return 0

    # --- to the destination

    def take(self) -> bytes:
        """What to send now; empty: nothing, or the relay is halted."""
        cdef uint64_t number
        cdef Entry *entry
        cdef bytes octets
        if self.halted:
            return b""
        if self.careful:
            return self._take_one()
        if self.sent == self.complete and self.next == self.tail:
            return b""
        octets = self.kept[self.sent - self.kept_from:self.complete - self.kept_from]
        for number in range(self.next, self.tail):
            entry = self.entries + (number & self.size - 1)
            if entry.state == WAITS:
                self._sent(entry, number)
        self.next = self.tail
        self.sent = self.complete
        self._release()
        return octets

    cdef int _sent(self, Entry *entry, uint64_t number) except -1:
        entry.tries += 1
        if self.mode == ON_PUBLISH:
            entry.state = CONFIRMED
            self.confirmed += 1
            return 0
        entry.state = SENT
        self.numbers[self.high & self.size - 1] = number
        self.high += 1
        self.in_flight += 1
        return 0

    cdef bytes _take_one(self):
        """The first message that is to be sent again; none while one is on its way."""
        cdef uint64_t number, at
        cdef Entry *entry
        if self.in_flight:
            return b""
        for number in range(self.head, self.next):
            entry = self.entries + (number & self.size - 1)
            if entry.state == WAITS:
                at = entry.at - self.kept_from
                self._sent(entry, number)
                self.retried += 1
                return self.kept[at:at + entry.octets]
        self.careful = False
        return self.take()

    # --- from the destination

    cdef int settle(self, uint64_t seq, bint multiple, bint negative) except -1:
        cdef uint64_t each
        if seq >= self.high or (seq == 0 and not multiple):
            raise StreamError(f"a confirm of a message that was not sent ({seq})")
        if seq == 0:
            seq = self.high - 1
        if multiple:
            for each in range(self.low, seq + 1):
                self._settle_one(each, negative)
        elif seq >= self.low:
            self._settle_one(seq, negative)
        while self.low < self.high and self.numbers[self.low & self.size - 1] == NO_ENTRY:
            self.low += 1
        return 0

    cdef int _settle_one(self, uint64_t seq, bint negative) except -1:
        cdef uint64_t number = self.numbers[seq & self.size - 1]
        cdef Entry *entry
        if number == NO_ENTRY:
            return 0
        self.numbers[seq & self.size - 1] = NO_ENTRY
        entry = self.entries + (number & self.size - 1)
        self.in_flight -= 1
        if negative or entry.returned:
            if not entry.returned:
                self.reason, self.came_back = "the destination refused a message (basic.nack)", False
            entry.state = REFUSED
            entry.returned = 0
            self.refused += 1
            self.halted = True
        else:
            entry.state = CONFIRMED
            self.confirmed += 1
        return 0

    cdef int note_return(self, const uint8_t *p, uint32_t size) except -1:
        """basic.return: reply code, reply text, exchange, routing key."""
        if size < 7 or 7 + <uint32_t> p[6] > size:
            raise StreamError("a basic.return that is cut short")
        text = p[7:7 + p[6]].decode("utf-8", "replace")
        self.reason = f"the destination returned a message: {(<int> p[4]) << 8 | p[5]} {text}"
        self.came_back = True
        return 0

    cdef int returned(self, const uint8_t *p, uint32_t size) except -1:
        """Find which one it was: the first on its way with these properties, else with this size, else any."""
        cdef uint64_t number
        cdef Entry *entry
        cdef Entry *alike = NULL
        cdef Entry *first = NULL
        cdef uint8_t *header
        cdef uint32_t length
        for number in range(self.head, self.tail):
            entry = self.entries + (number & self.size - 1)
            if entry.state != SENT or entry.returned:
                continue
            header = self.kept + (entry.at - self.kept_from)
            header += be32(header + 3) + OVERHEAD
            length = be32(header + 3)
            if first == NULL:
                first = entry
            if memcmp(header + 11, p + 4, 8) == 0:
                if length == size and memcmp(header + 7, p, size) == 0:
                    entry.returned = 1
                    return 0
                if alike == NULL:
                    alike = entry
        if alike != NULL:
            alike.returned = 1
        elif first != NULL:
            first.returned = 1
        return 0

    # --- after a refusal

    def retry(self) -> None:
        """Send the refused messages again, one at a time.  All that was sent must be settled."""
        cdef uint64_t number
        cdef Entry *entry
        assert not self.in_flight
        for number in range(self.head, self.next):
            entry = self.entries + (number & self.size - 1)
            if entry.state == REFUSED:
                entry.state = WAITS
        self.refused = 0
        self.halted = False
        self.careful = True

    def give_up(self) -> None:
        """Leave the first refused message to the dead-letter rules of its source."""
        cdef uint64_t number
        cdef Entry *entry
        for number in range(self.head, self.next):
            entry = self.entries + (number & self.size - 1)
            if entry.state == REFUSED:
                entry.state = REJECTED
                self.refused -= 1
                self.rejected += 1
                return

    # --- to the source

    def acks(self) -> bytes:
        """The frames that settle what can be settled at the source; empty: nothing."""
        cdef uint64_t tag = 0
        cdef Entry *entry
        cdef list frames
        if self.head == self.tail:
            return b""
        frames = []
        while self.head < self.tail:
            entry = self.entries + (self.head & self.size - 1)
            if entry.state == REJECTED:
                if tag:
                    frames.append(_settlement(BASIC_ACK, tag, 1))
                    tag = 0
                frames.append(_settlement(BASIC_REJECT, entry.tag, 0))
            elif entry.state == CONFIRMED:
                tag = entry.tag
            else:
                break
            self.head += 1
        if self.next < self.head:
            self.next = self.head
        if tag:
            frames.append(_settlement(BASIC_ACK, tag, 1))
        if self.mode == ON_CONFIRM:
            self._release()
        return b"".join(frames)

# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The load generator's hot loops: one `Link` is one socket, run by one thread without the GIL.

A publisher holds a ring of messages encoded once; a chunk of the ring is numbered, stamped and
handed to the kernel in a single write.  A consumer reads as much as there is, walks the frames
in place and answers with one write of acknowledgements per read.

    body, little-endian:   0 producer << 48 | sequence number   8 monotonic ns of the write   16 filler

Knows nothing of handshakes, topology or reports: it gets an open socket and gives counters back.
"""

cimport cython
from libc.errno cimport EAGAIN, EINTR, errno
from libc.math cimport ceil
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, strerror, strlen
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

include "../client/numbers.pxi"


cdef inline uint64_t now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t> t.tv_sec * 1000000000 + <uint64_t> t.tv_nsec


def monotonic_ns() -> int:
    """The clock that start times and stamps are taken from, in nanoseconds."""
    return now_ns()


include "perf_run.pxi"


@cython.final
cdef class Link:
    """One socket with channel 1 open on it, to be run by one thread as publisher or as consumer.

    The socket must be blocking, with a receive timeout of some milliseconds: that is how often
    a waiting link looks at `Control.stop`.  `pending` are octets already read from it.
    """

    def __cinit__(self, int fd, bytes pending, Control control, uint32_t frame_max):
        self.fd = fd
        self.control = control
        self.frame_max = frame_max
        self.capacity = max(256 << 10, 2 * (frame_max + OVERHEAD), len(pending))
        self.taken = <uint8_t *> malloc(self.capacity)
        self.answers_size = 64 << 10
        self.answers = <uint8_t *> malloc(self.answers_size)
        if self.taken == NULL or self.answers == NULL:
            raise MemoryError
        memcpy(self.taken, <const char *> pending, len(pending))
        self.filled = len(pending)

    def __dealloc__(self):
        free(self.taken)
        free(self.answers)
        free(self.ring)
        free(self.offsets)
        free(self.bodies)
        free(self.slots)

    @property
    def error(self) -> str:
        """What ended the link, in one line; empty while nothing did."""
        return self.text.decode("utf-8", "replace")

    @property
    def waits(self):
        """How long confirms took; None if that is not measured."""
        return None if self.confirms is None else self.confirms.waits

    def seen(self) -> list:
        """(producer, queue, first number, messages, sum of their numbers) for all that a consumer met."""
        found = []
        cdef int i
        if self.slots != NULL:
            for i in range(self.producers * self.queues):
                if self.slots[i].count:
                    found.append((i // self.queues, i % self.queues, self.slots[i].first, self.slots[i].count,
                                  self.slots[i].total))
        return found

    # -- reading

    cdef int _fail(self, const char *text) noexcept nogil:
        if self.text[0] == 0:
            self._keep(text)
        return -1

    cdef void _keep(self, const char *text) noexcept nogil:
        """Have `text` in self.text, its first octet last: Python's thread may be reading it, and reads nothing as long as that is 0."""
        cdef size_t n = min(strlen(text), <size_t>TEXT_ROOM - 1)
        if n == 0:
            return
        self.text[n] = 0
        memcpy(self.text + 1, text + 1, n - 1)
        __atomic_store_n(self.text, text[0], ATOMIC_RELEASE)

    cdef int _closed(self, const uint8_t *p, uint32_t size) noexcept nogil:
        """Keep what a channel.close or connection.close says: code, text."""
        cdef int length = 0, code = 0
        cdef char text[TEXT_ROOM]
        if size >= 7:
            code = (<int> p[4]) << 8 | p[5]
            length = min(<uint32_t> p[6], size - 7)
        snprintf(text, TEXT_ROOM, "the broker closed the %s: %d %.*s",
                 b"connection" if be32(p) == CONNECTION_CLOSE else b"channel",
                 code, length, <const char *> p + 7)
        self._keep(text)
        return -1

    cdef int _fill(self, bint wait) noexcept nogil:
        """Read the octets that are there: 1 if there are some to parse, 0 if nothing came in time, -1 at the end."""
        cdef ssize_t n
        if self.parsed:
            memmove(self.taken, self.taken + self.parsed, self.filled - self.parsed)
            self.filled -= self.parsed
            self.parsed = 0
        if self.filled == self.capacity:
            return 1            # A consumer told to stop has not parsed its last read.  A recv of 0 octets looks like the end.
        while True:
            n = recv(self.fd, self.taken + self.filled, self.capacity - self.filled, 0 if wait else MSG_DONTWAIT)
            if n > 0:
                self.filled += n
                return 1
            if n == 0:
                return self._fail("the broker closed the socket")
            if errno == EAGAIN:
                return 0
            if errno != EINTR:
                return self._fail(strerror(errno))

    cdef int _read(self, bint wait) noexcept nogil:
        cdef int got = self._fill(wait)
        if got > 0 and self._parse() < 0:
            return -1
        return got

    cdef int _parse(self) noexcept nogil:
        """Take every whole frame read so far; -1 if the stream or the channel is at its end."""
        cdef uint8_t *p = self.taken + self.parsed
        cdef uint8_t *end = self.taken + self.filled
        cdef uint32_t size
        cdef int result = 0
        while end - p >= OVERHEAD:
            size = be32(p + 3)
            if size > self.frame_max:
                return self._fail("the broker sent a frame over the frame_max agreed")
            if <size_t> (end - p) < <size_t> size + OVERHEAD:
                break
            if p[7 + size] != FRAME_END:
                return self._fail("the broker sent a frame without its end octet")
            if p[0] == METHOD:
                result = self._method(p + 7, size)
            elif p[0] == HEADER:
                result = self._header(p + 7, size)
            elif p[0] == BODY:
                result = self._body(p + 7, size)
            if result < 0:
                return -1
            p += size + OVERHEAD
        self.parsed = p - self.taken
        return 0

    cdef int _method(self, const uint8_t *p, uint32_t size) noexcept nogil:
        cdef uint32_t index, length, i
        if size < 4:
            return self._fail("the broker sent a method frame too short for a method")
        index = be32(p)
        if index == BASIC_DELIVER:
            length = p[4] if size >= 5 else 0
            if size < 14 + length:
                return self._fail("the broker sent a basic.deliver cut short")
            self.tag = be64(p + 5 + length)
            self.redelivered += p[13 + length] & 1
            self.returning = False
            self.queue = 0                      # The consumer tag is the queue's index, in decimal.
            for i in range(length):
                self.queue = self.queue * 10 + (p[5 + i] - 48)
        elif index == BASIC_ACK or index == BASIC_NACK:
            if size < 13:
                return self._fail("the broker sent a confirm cut short")
            self._settle(be64(p + 4), p[12] & 1, index == BASIC_NACK)
        elif index == BASIC_RETURN:
            self.returning = True
        elif index == QUEUE_DECLARE_OK or index == QOS_OK:
            self.replies += 1
        elif index == CONNECTION_BLOCKED:
            self.blocked = True
        elif index == CONNECTION_UNBLOCKED:
            self.blocked = False
        elif index == CHANNEL_CLOSE or index == CONNECTION_CLOSE:
            return self._closed(p, size)
        elif index == BASIC_CANCEL:
            return self._fail("the broker cancelled a consumer")
        return 0

    cdef int _header(self, const uint8_t *p, uint32_t size) noexcept nogil:
        if size < 14:
            return self._fail("the broker sent a content header cut short")
        self.body_size = self.body_left = be64(p + 4)
        self.numbered = False
        if self.body_left == 0:
            return self._message()
        return 0

    cdef int _body(self, const uint8_t *p, uint32_t size) noexcept nogil:
        if size > self.body_left:
            return self._fail("the broker sent more body than the content header said")
        if self.body_left == self.body_size and size >= 8:
            self.numbered = True
            memcpy(&self.number, p, 8)
            if size >= 16:
                memcpy(&self.stamp, p + 8, 8)
        self.body_left -= size
        if self.body_left == 0:
            return self._message()
        return 0

    cdef int _message(self) noexcept nogil:
        cdef uint64_t due
        if self.returning:
            self.returned += 1
            return 0
        if self.leaving or not self.control.take():
            return 0
        self.received += 1
        self.octets += self.body_size
        if self.slots != NULL:
            self._check_order()
        if self.latency is not None:
            due = self.control.due(self.number >> 48, self.number & NUMBER_MASK)
            if self.numbered and due >= self.control.measure_ns:
                self.latency.add(self.recv_ns - due if self.recv_ns > due else 0)
                self.from_write.add(self.recv_ns - self.stamp if self.recv_ns > self.stamp else 0)
        if self.ack_every:
            self.last_tag = self.tag
            self.unacked += 1
            if self.unacked >= <uint64_t> self.ack_every:
                return self._ack()
        return 0

    cdef void _check_order(self) noexcept nogil:
        """Numbers of one producer may only grow within a queue; `seen` tells afterwards whether any are missing."""
        cdef uint64_t producer = self.number >> 48, number = self.number & NUMBER_MASK
        cdef Slot *slot
        if not self.numbered or producer >= <uint64_t> self.producers or <unsigned> self.queue >= <unsigned> self.queues:
            self.foreign += 1
            return
        slot = self.slots + producer * self.queues + self.queue
        if slot.count == 0:
            slot.first = number
        elif number < slot.next:
            self.misordered += 1
        slot.next = number + 1
        slot.count += 1
        slot.total += number

    # -- writing

    cdef int _push(self, const uint8_t *p, size_t size) noexcept nogil:
        """Write it all, taking what arrives while the socket is full; -1 at the end, 1 if told to stop: `unsent` says
        how much is not written then."""
        cdef ssize_t n
        cdef pollfd ready
        while size:
            n = send(self.fd, p, size, MSG_DONTWAIT | MSG_NOSIGNAL)
            if n >= 0:
                p += n
                size -= n
            elif errno == EAGAIN:
                ready.fd = self.fd
                ready.events = POLLIN | POLLOUT
                ready.revents = 0
                poll(&ready, 1, WAIT_MS)
                if ready.revents & ~POLLOUT and self._read(False) < 0:
                    return -1
                if self.control.stop:
                    self.unsent = size
                    return 1
            elif errno != EINTR:
                return self._lost()
        return 0

    cdef int _push_whole(self, const uint8_t *p, size_t size) noexcept nogil:
        """Write frames, and finish them also if told to stop; 0 if they are written, and the run goes on."""
        cdef int result = self._push(p, size)
        if result == 1:
            self._complete(p + size - self.unsent, self.unsent)
        return result

    cdef int _complete(self, const uint8_t *p, size_t size) noexcept nogil:
        """Write the rest of frames that were begun, although the run is over; -1 if the broker takes no more."""
        cdef uint64_t until = now_ns() + <uint64_t> PATIENCE_NS
        cdef ssize_t n
        cdef pollfd ready
        while size:
            n = send(self.fd, p, size, MSG_DONTWAIT | MSG_NOSIGNAL)
            if n >= 0:
                p += n
                size -= n
                continue
            if errno == EAGAIN and now_ns() < until:
                ready.fd = self.fd
                ready.events = POLLIN | POLLOUT
                ready.revents = 0
                poll(&ready, 1, WAIT_MS)
                if ready.revents & ~POLLOUT == 0 or self._read(False) >= 0:
                    continue
            elif errno == EINTR:
                continue
            self.torn = True
            return -1
        return 0

    cdef void _finish_message(self, uint64_t count) noexcept nogil:
        """Finish the message in which `_push` was told to stop; those behind it do not count as published."""
        cdef size_t done = self.offsets[self.at + count] - self.unsent
        cdef uint64_t begun = 0
        while self.offsets[self.at + begun] < done:
            begun += 1
        self.published -= count - begun
        if self._complete(self.ring + done, self.offsets[self.at + begun] - done) < 0:
            self.published -= 1

    cdef int _lost(self) noexcept nogil:
        """A write failed: what the broker said before it hung up tells more than the error does."""
        cdef int error = errno
        while self._read(False) > 0:
            pass
        return self._fail(strerror(error))

    cdef int _ack(self) noexcept nogil:
        """Queue an ack for what is unacknowledged; `_flush` sends it."""
        cdef uint8_t *p
        if self.answers_size - self.written < ACK_FRAME:
            p = <uint8_t *> realloc(self.answers, self.answers_size * 2)
            if p == NULL:
                return self._fail("out of memory")
            self.answers = p
            self.answers_size *= 2
        p = self.answers + self.written
        memcpy(p, b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50", 11)
        put64(p + 11, self.last_tag)
        p[19] = self.unacked > 1
        p[20] = FRAME_END
        self.written += ACK_FRAME
        self.unacked = 0
        return 0

    cdef int _flush(self) noexcept nogil:
        """Write as many of the queued acks as the socket takes."""
        cdef ssize_t n
        while self.sent < self.written:
            n = send(self.fd, self.answers + self.sent, self.written - self.sent, MSG_DONTWAIT | MSG_NOSIGNAL)
            if n >= 0:
                self.sent += n
            elif errno == EAGAIN:
                return 0
            elif errno != EINTR:
                return self._lost()
        self.sent = self.written = 0
        return 0

    # -- publishing

    def load(self, list messages, uint64_t producer, uint64_t limit=0, uint64_t window=0,
             bint mark_number=False, bint mark_time=False, bint time_confirms=False) -> None:
        """Prepare to publish `messages` over and over: (encoded frames, offset of the first body octet) of each.

        limit: how many to publish, 0 for no limit.  window: how many may be unconfirmed, 0 for no confirms.
        mark_number needs bodies of 8 octets or more, mark_time of 16.  time_confirms: `waits` counts from each write to
        its confirm.
        """
        cdef size_t size = 0, i
        self.producer, self.limit, self.window = producer, limit, window
        self.mark_number, self.mark_time = mark_number, mark_time
        self.ring_count = len(messages)
        self.confirms = Confirms(window, time_confirms)
        self.ring = <uint8_t *> malloc(sum([len(frames) for frames, _ in messages]))
        self.offsets = <size_t *> calloc(self.ring_count + 1, sizeof(size_t))
        self.bodies = <size_t *> calloc(self.ring_count, sizeof(size_t))
        if self.ring == NULL or self.offsets == NULL or self.bodies == NULL:
            raise MemoryError
        for i in range(self.ring_count):
            frames, body = messages[i]
            memcpy(self.ring + size, <const char *> frames, len(frames))
            self.bodies[i] = size + <size_t> body
            size += len(frames)
            self.offsets[i + 1] = size

    def publish(self, bytes sync, int replies) -> None:
        """Publish until the limit, the time or `Control.stop`; then wait until the broker has it all.

        That is when everything is confirmed or, without confirms, when the broker has given
        `replies` answers to the requests in `sync`: it takes a channel's frames in their order.
        """
        cdef const uint8_t *octets = sync
        cdef size_t size = len(sync)
        with nogil:
            prctl(PR_SET_TIMERSLACK, 1)
            if self._publish() == 0:
                self._settle_all(octets, size, replies)
            self.last_ns = now_ns()
            self.finished = True

    cdef int _publish(self) noexcept nogil:
        cdef uint64_t count, rounds = 0
        cdef int result
        while not self.control.stop:
            count = self._allowed()
            if count == 0:
                if self.limit and self.published == self.limit or self.control.until_ns and now_ns() >= self.control.until_ns:
                    return 0
                if self.text[0]:
                    return -1
                continue
            self._mark(count)
            rounds += 1
            result = self._push(self.ring + self.offsets[self.at], self.offsets[self.at + count] - self.offsets[self.at])
            if result == 1:
                self._finish_message(count)
            if result:
                return result
            self.at = (self.at + count) % self.ring_count
            if (self.window or self.blocked or rounds % 16 == 0) and self._read(False) < 0:
                return -1
        return 1

    cdef uint64_t _allowed(self) noexcept nogil:
        """How many messages from the ring's position on may be written now; 0 after a wait that brought none."""
        cdef uint64_t count = self.ring_count - self.at, now, flying, low, middle, due
        if self.limit:
            count = min(count, self.limit - self.published)
        if self.window:
            flying = self.published - self.confirmed - self.nacked
            # A single confirm long outstanding must not let the others overrun the ring that remembers them.
            if flying >= self.window or self.published + 1 - self.confirms.low + count > self.confirms.mask:
                self._read(True)
                return 0
            count = min(count, self.window - flying)
        if count == 0:
            return 0
        if self.control.until_ns or self.control.gap_ns > 0:
            now = now_ns()
            if self.control.until_ns and now >= self.control.until_ns:
                return 0
            if self.control.gap_ns > 0:
                due = self.control.due(self.producer, self.published)
                if due > now:
                    self._sleep_until(due, now)
                    return 0
                count = min(count, 1 + <uint64_t> ((now - due) / self.control.gap_ns))
        # The longest run that fits in one write, found by halving.
        low = 1
        while low < count:
            middle = (low + count + 1) // 2
            if self.offsets[self.at + middle] - self.offsets[self.at] <= CHUNK:
                low = middle
            else:
                count = middle - 1
        return low

    cdef void _sleep_until(self, uint64_t due, uint64_t now) noexcept nogil:
        cdef timespec until
        if self._read(False) < 0:
            return
        due = min(due, now + WAIT_MS * 1000000)
        until.tv_sec = due // 1000000000
        until.tv_nsec = due % 1000000000
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)

    cdef void _mark(self, uint64_t count) noexcept nogil:
        cdef uint64_t i, value = self.producer << 48 | self.published, now
        if self.mark_number:
            for i in range(self.at, self.at + count):
                memcpy(self.ring + self.bodies[i], &value, 8)
                value += 1
        if self.mark_time:
            now = now_ns()
            for i in range(self.at, self.at + count):
                memcpy(self.ring + self.bodies[i] + 8, &now, 8)
        if self.window and self.confirms.written != NULL:
            self.confirms.write(self.published + 1, count)
        self.published += count

    cdef void _settle(self, uint64_t tag, bint multiple, bint negative) noexcept nogil:
        """Count what a basic.ack or basic.nack settles."""
        cdef uint64_t count
        if self.confirms is None:
            return
        count = self.confirms.settle(tag, multiple, self.published, self.control.measure_ns)
        if negative:
            self.nacked += count
        else:
            self.confirmed += count

    cdef int _settle_all(self, const uint8_t *sync, size_t size, int replies) noexcept nogil:
        self.syncing = True
        if self.window == 0 and self._push_whole(sync, size) != 0:
            return -1
        while not self.control.stop:
            if self.window and self.confirmed + self.nacked == self.published or not self.window and self.replies >= replies:
                return 0
            if self._read(True) < 0:
                return -1
        return 0

    # -- consuming

    def expect(self, int ack_every, int queues, int producers, bint verify=False, bint measure=False) -> None:
        """Prepare to consume: an ack per `ack_every` messages (0: auto-ack), order checked, latency measured.

        The consumer tags must be the indices of the queues, in decimal.
        """
        self.ack_every, self.queues, self.producers = ack_every, queues, producers
        if verify:
            self.slots = <Slot *> calloc(<size_t> queues * producers, sizeof(Slot))
            if self.slots == NULL:
                raise MemoryError
        if measure:
            self.latency, self.from_write = Histogram(), Histogram()

    def consume(self, bytes sync) -> None:
        """Consume until `Control.stop`; what is unacknowledged then is acknowledged.

        `sync` is a request with one answer: it comes when the broker has taken the acks.
        """
        cdef const uint8_t *octets = sync
        cdef size_t size = len(sync)
        with nogil:
            if self._consume() == 0 and self.ack_every:
                self._finish_acks(octets, size)
            self.finished = True

    cdef int _consume(self) noexcept nogil:
        cdef uint64_t before
        cdef int got = 1                # Deliveries may have come along with the consume-ok.
        while not self.control.stop:
            before = self.received
            self.recv_ns = now_ns()
            if got > 0 and self._parse() < 0:
                return -1
            if self.received > before:
                self.last_ns = self.recv_ns
            elif got == 0 and self.unacked:
                # Nothing more comes: the broker may be waiting for these.
                self._ack()
            if self.sent < self.written and self._flush() < 0:
                return -1
            got = self._fill(self.sent == self.written)
            if got == 0 and self.sent < self.written:
                self._wait_for_room()
            if got < 0:
                return -1
        return 0

    cdef void _wait_for_room(self) noexcept nogil:
        cdef pollfd ready
        ready.fd = self.fd
        ready.events = POLLIN | POLLOUT
        poll(&ready, 1, WAIT_MS)

    cdef int _finish_acks(self, const uint8_t *sync, size_t size) noexcept nogil:
        cdef int wanted = self.replies + 1
        cdef uint64_t patience = now_ns() + <uint64_t> 5000000000
        if self.unacked:
            self._ack()
        # Later deliveries are left to the next consumer.
        self.leaving = True
        while self.sent < self.written and now_ns() < patience:
            if self._flush() < 0 or self._read(False) < 0:
                return -1
            if self.sent < self.written:
                self._wait_for_room()
        if self.sent < self.written:
            self.torn = True
            return -1
        if self._push_whole(sync, size) < 0 or self.torn:
            return -1
        while self.replies < wanted and now_ns() < patience:
            if self._read(True) < 0:
                return -1
        return 0

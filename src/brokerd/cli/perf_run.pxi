"""A part of `_perf.pyx`: what the links of one run share, and what a publisher remembers of its messages.

Knows no socket."""


@cython.final
cdef class Histogram:
    """Counts of durations in buckets less than 1 % wide.

    Bucket of v: its value below 128; above, 128 steps to each power of two.
    """

    cdef void add(self, uint64_t ns) noexcept nogil:
        cdef int shift = 0
        if ns >= 128:
            shift = 56 - __builtin_clzll(ns)
        self.buckets[shift * 128 + <int> (ns >> shift)] += 1
        self.count += 1
        if ns > self.max:
            self.max = ns

    def record(self, uint64_t ns) -> None:
        """Count one duration, in nanoseconds."""
        self.add(ns)

    def merge(self, Histogram other) -> None:
        """Add what `other` has counted."""
        cdef int i
        for i in range(HISTOGRAM):
            self.buckets[i] += other.buckets[i]
        self.count += other.count
        self.max = max(self.max, other.max)

    def since(self, Histogram earlier) -> Histogram:
        """What was counted since a copy of this was `earlier`.  Its `max` is that of the highest bucket, at most 1 % over.

        A link may be counting meanwhile: what it counts then is found here or by the next call.
        """
        cdef Histogram found = Histogram()
        cdef uint64_t number
        cdef int i, shift
        for i in range(HISTOGRAM):
            number = self.buckets[i]
            if number > earlier.buckets[i]:
                found.buckets[i] = number - earlier.buckets[i]
                found.count += found.buckets[i]
                shift = 0 if i < 256 else i // 128 - 1
                found.max = min(self.max, ((<uint64_t> (i - shift * 128) + 1) << shift) - 1)
        return found

    def counts(self) -> list:
        """(lowest ns, number) of each bucket that has counted something."""
        cdef int i, shift
        found = []
        for i in range(HISTOGRAM):
            if self.buckets[i]:
                shift = 0 if i < 256 else i // 128 - 1
                found.append((<uint64_t> (i - shift * 128) << shift, self.buckets[i]))
        return found

    def quantile(self, double share) -> int:
        """The duration, in nanoseconds, that `share` (0 to 1) of those counted do not exceed; 0 if there are none."""
        cdef uint64_t wanted = <uint64_t> ceil(share * self.count), seen = 0, value
        cdef int i, shift
        for i in range(HISTOGRAM):
            seen += self.buckets[i]
            if seen >= wanted and self.buckets[i]:
                # Up to 255 a bucket holds one value; then the middle of the range is given.
                shift = 0 if i < 256 else i // 128 - 1
                value = (<uint64_t> (i - shift * 128) << shift) + (<uint64_t> 1 << shift >> 1)
                return min(value, self.max)
        return 0


@cython.final
cdef class Control:
    """What the links of one run share: when it began, how fast it is to go, whether it is over."""

    cdef bint take(self) noexcept nogil:
        """Whether one more message may be taken; counts it."""
        return not self.limited or __atomic_fetch_sub(&self.budget, 1, 0) > 0

    cdef uint64_t due(self, uint64_t producer, uint64_t number) noexcept nogil:
        return self.start_ns + <uint64_t> (self.gap_ns * (number + <double> producer / self.producers))


@cython.final
cdef class Confirms:
    """Which of a publisher's messages the broker has not confirmed, and how long the others waited for it.

    Messages have the numbers 1, 2, ….  A ring remembers those over `low`, so that they may be confirmed in any order.
    """

    def __cinit__(self, uint64_t window, bint measure):
        cdef uint64_t span = 1 << 16
        while span < 4 * window:
            span *= 2
        self.low, self.mask = 1, span - 1
        self.settled = <uint8_t *> calloc(span, 1)
        if self.settled == NULL:
            raise MemoryError
        if measure:
            self.waits = Histogram()
            self.written = <uint64_t *> calloc(span, sizeof(uint64_t))
            if self.written == NULL:
                raise MemoryError

    def __dealloc__(self):
        free(self.settled)
        free(self.written)

    cdef void write(self, uint64_t first, uint64_t count) noexcept nogil:
        """Note that `count` messages from number `first` on are written now."""
        cdef uint64_t number, now = now_ns()
        for number in range(first, first + count):
            self.written[number & self.mask] = now

    cdef uint64_t settle(self, uint64_t tag, bint multiple, uint64_t published, uint64_t measure_ns) noexcept nogil:
        """Settle a number, or all up to it (0: all that are published); return how many were open.

        Waits of messages written before `measure_ns` are not counted.
        """
        cdef uint64_t count = 0, now = now_ns() if self.written != NULL else 0
        if tag > published:
            return 0
        if multiple:
            if tag == 0:
                tag = published
            while self.low <= tag:
                if not self.settled[self.low & self.mask]:
                    count += 1
                    self._wait(self.low, now, measure_ns)
                self.settled[self.low & self.mask] = 0
                self.low += 1
        elif tag >= self.low and not self.settled[tag & self.mask]:
            self.settled[tag & self.mask] = 1
            count = 1
            self._wait(tag, now, measure_ns)
        while self.low <= published and self.settled[self.low & self.mask]:
            self.settled[self.low & self.mask] = 0
            self.low += 1
        return count

    cdef void _wait(self, uint64_t number, uint64_t now, uint64_t measure_ns) noexcept nogil:
        cdef uint64_t written
        if self.written != NULL:
            written = self.written[number & self.mask]
            if written >= measure_ns:
                self.waits.add(now - written)

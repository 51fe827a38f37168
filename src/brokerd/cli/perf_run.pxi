"""A part of `_perf.pyx`: what the links of one run share.  Knows no socket and no clock."""


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

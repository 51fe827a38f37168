# A heap of times at which messages are due, the earliest on top: 16 octets a message.  Each has four below it, which share
# a cache line or two: where a million wait, taking one costs half as many misses as with two below each.
#
# A message that goes elsewhere may leave its time behind: what takes a time out of the heap checks that it still counts.

cdef enum:
    DUE_ROOM = 4096             # of an empty heap
    DUE_BELOW = 4               # entries below one

cdef struct due_t:
    int64_t when                # ms since the epoch
    uint64_t seq

cdef struct dues_t:
    due_t *heap                 # malloc; by time, then by number
    size_t n
    size_t room


cdef inline bint dues_are_sound(const dues_t *d) noexcept nogil:
    """Whether none is due before the one above it."""
    cdef size_t i
    for i in range(1, d.n):
        if d.heap[(i - 1) // DUE_BELOW].when > d.heap[i].when:
            return False
    return True


cdef inline bint is_due_earlier(const due_t *a, const due_t *b) noexcept nogil:
    return a.when < b.when or (a.when == b.when and a.seq < b.seq)


cdef int due_push(dues_t *d, int64_t when, uint64_t seq) noexcept nogil:
    """0 or ENOMEM."""
    cdef size_t i = d.n, parent, room
    cdef due_t *heap
    cdef due_t one
    if d.n == d.room:
        room = d.room + (d.room >> 2) + 64
        heap = <due_t *>realloc(d.heap, room * sizeof(due_t))
        if heap == NULL:
            return ENOMEM
        d.heap = heap
        d.room = room
    one.when = when
    one.seq = seq
    d.n += 1
    while i:
        parent = (i - 1) // DUE_BELOW
        if not is_due_earlier(&one, &d.heap[parent]):
            break
        d.heap[i] = d.heap[parent]
        i = parent
    d.heap[i] = one
    return 0


cdef due_t due_pop(dues_t *d) noexcept nogil:
    cdef due_t first = d.heap[0], last
    cdef size_t i = 0, child, best, end
    d.n -= 1
    last = d.heap[d.n]
    while True:
        best = DUE_BELOW * i + 1
        if best >= d.n:
            break
        end = min(best + DUE_BELOW, d.n)
        for child in range(best + 1, end):
            if is_due_earlier(&d.heap[child], &d.heap[best]):
                best = child
        if not is_due_earlier(&d.heap[best], &last):
            break
        d.heap[i] = d.heap[best]
        i = best
    d.heap[i] = last
    return first


cdef void due_remove(dues_t *d, uint64_t seq) noexcept nogil:
    """Take a message's time out: for rare callers, because it looks at all."""
    cdef size_t i, n = 0, left = d.n
    for i in range(left):
        if d.heap[i].seq != seq:
            d.heap[n] = d.heap[i]
            n += 1
    d.n = 0
    for i in range(n):
        due_push(d, d.heap[i].when, d.heap[i].seq)      # There is room; the heap grows over the array it is read from.


cdef void dues_free(dues_t *d) noexcept nogil:
    free(d.heap)
    d.heap = NULL
    d.n = d.room = 0


cdef void dues_shrink(dues_t *d) noexcept nogil:
    """Free a large heap that is empty."""
    if d.n == 0 and d.room > DUE_ROOM:
        dues_free(d)


cdef list dues_upcoming(const dues_t *d, size_t count):
    """The first times, with their numbers."""
    cdef size_t i, child
    cdef list found = []
    cdef list front = [(d.heap[0].when, d.heap[0].seq, 0)] if d.n else []
    while front and len(found) < count:
        when, seq, i = heappop(front)
        found.append((when, seq))
        for child in range(DUE_BELOW * i + 1, min(DUE_BELOW * i + 1 + DUE_BELOW, d.n)):
            heappush(front, (d.heap[child].when, d.heap[child].seq, child))
    return found

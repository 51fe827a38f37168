# A window of keys seen lately (deduplication): which hashes were entered last, and until when each of them counts.
#
#    keys     a ring of (hash, expires), oldest first; it doubles up to `size` places, then the newest takes the oldest's
#    slots    the index: upper half of the hash << 32 | place in the ring + 1, 0 = free; linear probing, at most half full
#
# A hash that is entered again leaves a hole (hash 0) at its old place: a window is the last `size` that were entered.
# Both halves of a slot are enough to probe and to move it, so that an absent key costs one cache miss.
# Knows nothing of messages.  Times are milliseconds since the epoch.

cdef enum:
    KEYS_FIRST = 16             # places of a ring that is not empty
    KEYS_FORGOTTEN = 64         # expired keys that may go for one that is entered
    KEY_ROW = 24                # octets: order u8, hash u8, expires i8, as in store/format.py

cdef extern from *:
    """
    #define FOR_EVER INT64_MAX
    #define NO_SLOT UINT32_MAX
    """
    int64_t FOR_EVER
    uint32_t NO_SLOT


cdef inline uint32_t slot_of(const window_t *w, uint64_t hash_) noexcept nogil:
    """The slot of this hash; NO_SLOT: it is not there."""
    cdef uint32_t at = <uint32_t>(hash_ >> 32) & w.mask
    cdef uint64_t slot
    if w.capacity == 0:
        return NO_SLOT
    while True:
        slot = w.slots[at]
        if slot == 0:
            return NO_SLOT
        if slot >> 32 == hash_ >> 32 and w.keys[<uint32_t>slot - 1].hash == hash_:
            return at
        at = (at + 1) & w.mask


cdef inline void slot_put(window_t *w, uint64_t hash_, uint32_t place) noexcept nogil:
    cdef uint32_t at = <uint32_t>(hash_ >> 32) & w.mask
    while w.slots[at]:
        at = (at + 1) & w.mask
    w.slots[at] = hash_ >> 32 << 32 | (place + 1)


cdef inline void slot_clear(window_t *w, uint32_t hole) noexcept nogil:
    """Free a slot; those that it kept from their place move up."""
    cdef uint32_t at = hole
    cdef uint64_t slot
    while True:
        at = (at + 1) & w.mask
        slot = w.slots[at]
        if slot == 0:
            break
        if ((at - <uint32_t>(slot >> 32)) & w.mask) >= ((at - hole) & w.mask):
            w.slots[hole] = slot
            hole = at
    w.slots[hole] = 0


cdef inline void window_forget_oldest(window_t *w) noexcept nogil:
    cdef key_t *oldest = w.keys + w.first
    if oldest.hash:
        slot_clear(w, slot_of(w, oldest.hash))
        oldest.hash = 0
        w.live -= 1
    w.first = w.first + 1 if w.first + 1 < w.capacity else 0
    w.n -= 1


cdef int window_set_capacity(window_t *w, uint32_t capacity) noexcept nogil:
    """Lay the ring out anew, with room for so many, at least those that are in it; 0 or ENOMEM: all is as before."""
    cdef uint32_t slots_n = 2 * KEYS_FIRST
    cdef uint32_t i, place
    cdef key_t *keys
    cdef uint64_t *slots
    while slots_n < 2 * <uint64_t>capacity:
        slots_n *= 2
    keys = <key_t *>malloc(capacity * sizeof(key_t))
    slots = <uint64_t *>calloc(slots_n, sizeof(uint64_t))
    if keys == NULL or slots == NULL:
        free(keys)
        free(slots)
        return ENOMEM
    for i in range(w.n):
        place = w.first + i if w.first + i < w.capacity else w.first + i - w.capacity
        keys[i] = w.keys[place]
    free(w.keys)
    free(w.slots)
    w.keys = keys
    w.slots = slots
    w.mask = slots_n - 1
    w.capacity = capacity
    w.first = 0
    for i in range(w.n):
        if keys[i].hash:
            slot_put(w, keys[i].hash, i)
    return 0


cdef void window_make_room(window_t *w, int64_t now_ms) noexcept nogil:
    """A place for one more, if there is memory for any: what is over goes first, then the ring grows, then the oldest goes."""
    cdef uint32_t most = KEYS_FORGOTTEN
    while most and w.n and (w.keys[w.first].hash == 0 or w.keys[w.first].expires <= now_ms):
        window_forget_oldest(w)
        most -= 1
    if w.n < w.capacity:
        return
    if w.capacity < w.size:
        if window_set_capacity(w, min(w.size, max(<uint32_t>KEYS_FIRST, 2 * w.capacity))) == 0:
            return
    if w.n:
        window_forget_oldest(w)


cdef inline void window_enter(window_t *w, uint64_t hash_, int64_t expires, int64_t now_ms) noexcept nogil:
    """This hash is the newest."""
    cdef uint32_t at = slot_of(w, hash_)
    cdef uint32_t place
    if UNLIKELY(at != NO_SLOT):
        w.keys[<uint32_t>w.slots[at] - 1].hash = 0
        slot_clear(w, at)
        w.live -= 1
    if UNLIKELY(w.n == w.capacity):
        window_make_room(w, now_ms)
        if w.capacity == 0:
            return              # No memory: this one is not known.
    place = w.first + w.n
    if place >= w.capacity:
        place -= w.capacity
    w.keys[place].hash = hash_
    w.keys[place].expires = expires
    w.n += 1
    w.live += 1
    w.entered += 1
    slot_put(w, hash_, place)


cdef inline bint window_knows(const window_t *w, uint64_t hash_, int64_t now_ms) noexcept nogil:
    cdef uint32_t at = slot_of(w, hash_)
    return at != NO_SLOT and w.keys[<uint32_t>w.slots[at] - 1].expires > now_ms


cdef inline int64_t key_expires(const window_t *w, int64_t ts_ms, int64_t own_ttl_ms) noexcept nogil:
    """Of a key whose message came then; own_ttl_ms: what the message says itself, or -1."""
    cdef int64_t ttl = own_ttl_ms if own_ttl_ms >= 0 else w.ttl
    return FOR_EVER if ttl < 0 or ttl > FOR_EVER - ts_ms else ts_ms + ttl


cdef int by_order(const void *a, const void *b) noexcept nogil:
    cdef const uint64_t *x = <const uint64_t *>a
    cdef const uint64_t *y = <const uint64_t *>b
    if x[0] != y[0]:
        return 1 if x[0] > y[0] else -1
    if x[1] != y[1]:
        return 1 if x[1] > y[1] else -1
    return 0


cdef class Window:
    """See plane/__init__.pyi."""

    def __init__(self, uint32_t size, int64_t ttl_ms=-1):
        if size == 0:
            raise ValueError("a window holds one key at least")
        self.w.size = size
        self.w.ttl = ttl_ms

    def __dealloc__(self):
        free(self.w.keys)
        free(self.w.slots)

    def __len__(self):
        return self.w.live

    @property
    def size(self):
        return self.w.size

    @property
    def ttl_ms(self):
        return self.w.ttl

    @property
    def entered(self):
        return self.w.entered

    @property
    def octets(self):
        return self.w.capacity * sizeof(key_t) + (self.w.mask + 1 if self.w.capacity else 0) * sizeof(uint64_t)

    def set_bounds(self, uint32_t size, int64_t ttl_ms=-1):
        if size == 0:
            raise ValueError("a window holds one key at least")
        while self.w.n > size:
            window_forget_oldest(&self.w)
        if self.w.capacity > size and window_set_capacity(&self.w, size) != 0:
            raise MemoryError
        self.w.size = size
        self.w.ttl = ttl_ms

    def knows(self, uint64_t hash_, int64_t now_ms):
        return window_knows(&self.w, hash_, now_ms)

    def enter(self, uint64_t hash_, int64_t expires_ms, int64_t now_ms):
        if hash_ == 0:
            raise ValueError("0 is no hash of a key")
        window_enter(&self.w, hash_, expires_ms, now_ms)

    def load(self, const uint8_t[::1] rows, int64_t now_ms):
        cdef size_t n = rows.shape[0] // KEY_ROW
        cdef size_t i, first
        cdef uint64_t *sorted_
        cdef uint64_t *row
        if n == 0:
            return
        sorted_ = <uint64_t *>malloc(n * KEY_ROW)
        if sorted_ == NULL:
            raise MemoryError
        with nogil:
            memcpy(sorted_, &rows[0], n * KEY_ROW)
            qsort(sorted_, n, KEY_ROW, by_order)
            first = 0
            for i in range(1, n):       # The same key of the same message, from two files.
                if by_order(sorted_ + 3 * i, sorted_ + 3 * first) != 0:
                    first += 1
                    memmove(sorted_ + 3 * first, sorted_ + 3 * i, KEY_ROW)
            n = first + 1
            for i in range(n - min(n, <size_t>self.w.size), n):
                row = sorted_ + 3 * i
                if row[1]:
                    window_enter(&self.w, row[1], <int64_t>row[2], now_ms)
        free(sorted_)


cdef class Keys:
    """See plane/__init__.pyi."""

    def __init__(self, dict of_queues, uint64_t of_exchange=0, int64_t ttl_ms=-1):
        cdef size_t n = len(of_queues)
        cdef uint32_t i = 0
        self.owners = list(of_queues)
        self.k.of_exchange = of_exchange
        self.k.ttl = ttl_ms
        if n:
            self.k.of_queues = <queue_key_t *>malloc(n * sizeof(queue_key_t))
            if self.k.of_queues == NULL:
                raise MemoryError
        for owner, hash_ in of_queues.items():
            self.k.of_queues[i].queue = &(<Queue?>owner).q
            self.k.of_queues[i].hash = <uint64_t>hash_
            i += 1
            self.k.n = i

    def __dealloc__(self):
        free(self.k.of_queues)


cdef inline uint64_t key_of_queue(const keys_t *keys, const queue_t *q, uint32_t *at) noexcept nogil:
    """Of a message in this queue; 0: none.  at: where to look first, then where it was: targets come in the same order."""
    cdef uint32_t i, place
    for i in range(keys.n):
        place = at[0] + i
        if place >= keys.n:
            place -= keys.n
        if keys.of_queues[place].queue == q:
            at[0] = place
            return keys.of_queues[place].hash
    return 0

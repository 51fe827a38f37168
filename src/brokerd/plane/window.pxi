# A window of deduplication keys: the hashes that were entered last, and until when each of them counts.
#
#    keys     a ring of (hash, expires): the entry with the number i stands at i modulo the capacity, a power of two
#    slots    the index: upper half of the hash << 32 | ENTERED | number of the entry, 0 = free; linear probing, at most
#             half full
#
# A hash that is entered again becomes the newest entry, and leaves a hole (hash 0) at its old place.  Holes count as
# entries: a window covers the last `size` entries.  A slot has the half of the hash that probing and moving need, so
# that looking up an absent key reads the index only, and costs one cache miss.
#
# A full ring doubles, up to `size`, without making one publish wait for it: the entries stay in the old ring, and each
# new entry moves KEYS_MOVED of them into the new one, oldest first.  A moved entry leaves the hash 0 in the old ring, so
# that its old slot, which stays, matches no key.
#
# In a window of keys that `wait`, a key goes when its message is settled, and so leaves a hole anywhere.  There `size` is of
# keys, not of entries; and where a quarter or more are holes, each new entry makes some of the oldest keys the newest ones
# (window_squeeze()), so that the holes fall out.
#
# Knows nothing of messages.  Times are milliseconds since the epoch.

cdef enum:
    KEYS_FIRST = 16             # places of the smallest ring
    KEYS_MOVED = 4              # entries that each new one moves: the old ring is empty long before the new one is full
    KEYS_FORGOTTEN = 64         # expired keys that one new key removes at most
    KEYS_SQUEEZED = 8           # oldest entries that one new key moves or drops at most
    KEYS_AHEAD = 4              # how many entries before its turn the processor is asked for the slot of the oldest one
    HUGE_PAGE = 1 << 21         # octets
    KEY_ROW = 24                # octets: order u8, hash u8, expires i8, as in store/format.py

    ON_DUPLICATE_ACK = 0        # window_t.action: the message is confirmed, and not stored
    ON_DUPLICATE_NACK = 1       # ... refused
    ON_DUPLICATE_DEAD_LETTER = 2    # ... confirmed, and dead-lettered
    ON_DUPLICATE_REPLACE = 3    # ... stored, and the older one goes if it is ready

    GROUP_NONE = 0              # window_t.group_from
    GROUP_USUAL_HEADERS = 1
    GROUP_HEADER = 2
    GROUP_ROUTING_KEY = 3
    GROUP_PROPERTY = 4

cdef extern from *:
    """
    #define FOR_EVER INT64_MAX
    #define NO_SLOT UINT32_MAX
    #define ENTERED 0x80000000u
    #define KEYS_MOST 0x40000000u
    """
    int64_t FOR_EVER
    uint32_t NO_SLOT
    uint32_t ENTERED            # set in each slot that is not free
    uint32_t KEYS_MOST          # places of the largest ring


cdef struct ahead_t:            # the key of the publish behind the one at work, found while that one is stored
    const uint8_t *begin        # of the octets that are parsed
    const uint8_t *end
    const uint8_t *properties   # whose key it is; NULL: none was found
    const window_t *rule        # by which it was found
    uint64_t hash
    int64_t ttl

cdef ahead_t ahead              # The loop's thread parses one client's octets at a time.


cdef inline void ahead_begin(const uint8_t *begin, const uint8_t *end) noexcept nogil:
    """These octets are parsed from now on."""
    ahead.begin = begin
    ahead.end = end
    ahead.properties = NULL


cdef extern from *:
    void prefetch_octets "__builtin_prefetch"(const void *at, int write) noexcept nogil


cdef inline void slot_prefetch(const keyring_t *r, uint64_t hash_) noexcept nogil:
    """Let the processor fetch the slot where a hash would stand, so that a later look at it need not wait for memory."""
    prefetch_octets(r.slots + (<uint32_t>(hash_ >> 32) & r.slots_mask), 1)


cdef inline uint32_t slot_of(const keyring_t *r, uint64_t hash_) noexcept nogil:
    """The slot of this hash; NO_SLOT: the ring does not have it."""
    cdef uint32_t at = <uint32_t>(hash_ >> 32) & r.slots_mask
    cdef uint64_t slot
    if r.keys == NULL:
        return NO_SLOT
    while True:
        slot = r.slots[at]
        if slot == 0:
            return NO_SLOT
        if slot >> 32 == hash_ >> 32 and r.keys[<uint32_t>slot & r.mask].hash == hash_:
            return at
        at = (at + 1) & r.slots_mask


cdef inline key_t *key_in_slot(const keyring_t *r, uint32_t at) noexcept nogil:
    return r.keys + (<uint32_t>r.slots[at] & r.mask)


cdef inline void slot_put(keyring_t *r, uint64_t hash_, uint64_t number) noexcept nogil:
    cdef uint32_t at = <uint32_t>(hash_ >> 32) & r.slots_mask
    while r.slots[at]:
        at = (at + 1) & r.slots_mask
    r.slots[at] = hash_ >> 32 << 32 | ENTERED | <uint32_t>number


cdef inline void slot_clear(keyring_t *r, uint32_t hole) noexcept nogil:
    """Free a slot, and move up later ones that it kept from their own place."""
    cdef uint32_t at = hole
    cdef uint64_t slot
    while True:
        at = (at + 1) & r.slots_mask
        slot = r.slots[at]
        if slot == 0:
            break
        if ((at - <uint32_t>(slot >> 32)) & r.slots_mask) >= ((at - hole) & r.slots_mask):
            r.slots[hole] = slot
            hole = at
    r.slots[hole] = 0


cdef inline uint32_t keyring_capacity(const keyring_t *r) noexcept nogil:
    return r.mask + 1 if r.keys != NULL else 0


cdef uint64_t *slots_new(size_t octets) noexcept nogil:
    """Memory for an index, all 0, that is read at any place: where it is long enough, of huge pages.  With small ones the
    processor looks for the page at each key, which takes a virtual machine longer than the slot itself.  NULL: there is no
    memory."""
    cdef uint8_t *m
    cdef size_t lead
    if octets < HUGE_PAGE:
        return <uint64_t *>calloc(1, octets)
    m = <uint8_t *>mmap(NULL, octets + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    if m == MAP_FAILED:
        return NULL
    lead = -<size_t>m & <size_t>(HUGE_PAGE - 1)
    if lead:
        munmap(m, lead)
    munmap(m + lead + octets, HUGE_PAGE - lead)
    madvise(m + lead, octets, MADV_HUGEPAGE)        # Where that is not to be had, it is as it was.
    return <uint64_t *>(m + lead)


cdef void slots_free(uint64_t *slots, size_t octets) noexcept nogil:
    if octets < HUGE_PAGE or slots == NULL:
        free(slots)
    else:
        munmap(slots, octets)


cdef void keyring_free(keyring_t *r) noexcept nogil:
    free(r.keys)
    slots_free(r.slots, (<size_t>r.slots_mask + 1) * sizeof(uint64_t))
    memset(r, 0, sizeof(keyring_t))


cdef inline key_t *key_numbered(window_t *w, uint64_t number) noexcept nogil:
    cdef keyring_t *r = &w.old if w.moved <= number < w.grown else &w.ring
    return r.keys + (<uint32_t>number & r.mask)


cdef inline void key_forget(window_t *w, key_t *key) noexcept nogil:
    """Make a hole of a key that is in one of the rings.  The caller clears its slot."""
    key.hash = 0
    w.live -= 1


cdef void window_move(window_t *w, uint64_t most) noexcept nogil:
    """Move up to `most` entries from the old ring into the new one."""
    cdef key_t *old
    cdef key_t *key
    while most and w.moved < w.grown:
        old = w.old.keys + (<uint32_t>w.moved & w.old.mask)
        key = w.ring.keys + (<uint32_t>w.moved & w.ring.mask)
        key[0] = old[0]
        slot_prefetch(&w.ring, w.old.keys[<uint32_t>(w.moved + KEYS_MOVED) & w.old.mask].hash)  # the next call's
        if old.hash:
            slot_put(&w.ring, old.hash, w.moved)
            old.hash = 0
        w.moved += 1
        most -= 1
    if w.moved == w.grown and w.old.keys != NULL:
        keyring_free(&w.old)


cdef inline void window_forget_oldest(window_t *w) noexcept nogil:
    cdef key_t *oldest = key_numbered(w, w.first)
    cdef bint is_old = w.moved <= w.first < w.grown
    slot_prefetch(&w.ring, w.ring.keys[<uint32_t>(w.first + KEYS_AHEAD) & w.ring.mask].hash)
    if oldest.hash:
        if not is_old:
            slot_clear(&w.ring, slot_of(&w.ring, oldest.hash))
        key_forget(w, oldest)
    w.first += 1
    if is_old:
        w.moved = w.first
        if w.moved == w.grown:
            keyring_free(&w.old)


cdef int window_set_capacity(window_t *w, uint32_t capacity) noexcept nogil:
    """Begin a ring of `capacity` places: a power of two, and at least the number of entries.  The entries are in the old
    ring until window_move() moves them.  0, or ENOMEM: nothing has changed."""
    cdef keyring_t ring
    ring.mask = capacity - 1
    ring.slots_mask = 2 * capacity - 1
    ring.keys = <key_t *>malloc(capacity * sizeof(key_t))
    ring.slots = slots_new(2 * <size_t>capacity * sizeof(uint64_t))
    if ring.keys == NULL or ring.slots == NULL:
        keyring_free(&ring)
        return ENOMEM
    window_move(w, w.grown - w.moved)       # Only one old ring at a time.  As a rule it was emptied long ago.
    w.old = w.ring
    w.ring = ring
    w.moved = w.first
    w.grown = w.entered
    window_move(w, 0)           # Frees an old ring without entries at once.
    return 0


cdef inline uint32_t keyring_capacity_for(uint32_t n) noexcept nogil:
    """The capacity of a ring for n entries."""
    cdef uint32_t capacity = KEYS_FIRST
    while capacity < n:
        capacity *= 2
    return capacity


cdef void window_squeeze(window_t *w) noexcept nogil:
    """Make some of the oldest keys the newest ones, where many entries between them are holes."""
    cdef uint32_t most = KEYS_SQUEEZED
    cdef key_t oldest
    while most and w.old.keys == NULL and w.entered - w.first > w.live + w.live // 4 + KEYS_FIRST:
        oldest = key_numbered(w, w.first)[0]
        window_forget_oldest(w)
        if oldest.hash:
            key_append(w, &oldest)
        most -= 1


cdef inline void key_append(window_t *w, const key_t *key) noexcept nogil:
    """Make this key the newest entry; there is a place."""
    w.ring.keys[<uint32_t>w.entered & w.ring.mask] = key[0]
    slot_put(&w.ring, key.hash, w.entered)
    w.entered += 1
    w.live += 1


cdef inline uint32_t entries_most(const window_t *w) noexcept nogil:
    return w.size if not w.waiting else min(4 * <uint64_t>w.size, <uint64_t>KEYS_MOST)


cdef void window_make_room(window_t *w, int64_t now_ms) noexcept nogil:
    """Make a place for one more key: forget the oldest keys that have expired, else grow the ring, else forget the oldest
    key.  An empty window has no place if there is no memory."""
    cdef uint32_t most = KEYS_FORGOTTEN
    cdef key_t *oldest
    while most and w.first < w.entered:
        oldest = key_numbered(w, w.first)
        if oldest.hash and oldest.expires > now_ms:
            break
        window_forget_oldest(w)
        most -= 1
    while w.waiting and w.live >= w.size:
        window_forget_oldest(w)
    if w.entered - w.first < min(entries_most(w), keyring_capacity(&w.ring)):
        return
    if keyring_capacity(&w.ring) < entries_most(w) and window_set_capacity(w, max(<uint32_t>KEYS_FIRST, 2 * keyring_capacity(&w.ring))) == 0:
        return
    if w.first < w.entered:
        window_forget_oldest(w)


cdef inline void window_enter(window_t *w, uint64_t hash_, int64_t expires, int64_t now_ms, uint64_t seq) noexcept nogil:
    """Make this hash the newest entry."""
    cdef uint32_t at = slot_of(&w.ring, hash_)
    cdef key_t key
    if UNLIKELY(at != NO_SLOT):
        key_forget(w, key_in_slot(&w.ring, at))
        slot_clear(&w.ring, at)
    if UNLIKELY(w.old.keys != NULL):
        at = slot_of(&w.old, hash_)
        if at != NO_SLOT:
            key_forget(w, key_in_slot(&w.old, at))
        window_move(w, KEYS_MOVED)
    if UNLIKELY(w.waiting):
        window_squeeze(w)
    if UNLIKELY(w.entered - w.first >= min(entries_most(w), keyring_capacity(&w.ring)) or w.waiting and w.live >= w.size):
        window_make_room(w, now_ms)
        if w.ring.keys == NULL:
            return              # No memory: this key is not entered.
    key.hash = hash_
    key.expires = expires
    key.seq = seq
    key_append(w, &key)


cdef inline void window_enter_new(window_t *w, uint64_t hash_, int64_t expires, int64_t now, uint64_t seq) noexcept nogil:
    """window_enter() for a hash that is not in the window, which has no old ring and is not one of waiting keys.  now: ns."""
    cdef key_t key
    if UNLIKELY(w.entered - w.first >= min(w.size, keyring_capacity(&w.ring))):
        window_make_room(w, now // 1000000)
        if w.ring.keys == NULL:
            return
    key.hash = hash_
    key.expires = expires
    key.seq = seq
    key_append(w, &key)


cdef inline const key_t *window_find(const window_t *w, uint64_t hash_) noexcept nogil:
    """The key with this hash; NULL: it is not in the window."""
    cdef uint32_t at = slot_of(&w.ring, hash_)
    if at != NO_SLOT:
        return key_in_slot(&w.ring, at)
    if LIKELY(w.old.keys == NULL):
        return NULL
    at = slot_of(&w.old, hash_)
    return key_in_slot(&w.old, at) if at != NO_SLOT else NULL


cdef void window_forget(window_t *w, uint64_t hash_, uint64_t seq) noexcept nogil:
    """Forget this key if it is that of message `seq`."""
    cdef uint32_t at = slot_of(&w.ring, hash_)
    cdef key_t *key
    if at != NO_SLOT:
        key = key_in_slot(&w.ring, at)
        if key.seq == seq:
            key_forget(w, key)
            slot_clear(&w.ring, at)
        return
    at = slot_of(&w.old, hash_)
    if at != NO_SLOT:
        key = key_in_slot(&w.old, at)
        if key.seq == seq:
            key_forget(w, key)          # Its slot stays, and matches no key.


cdef inline bint window_knows(const window_t *w, uint64_t hash_, int64_t now_ms) noexcept nogil:
    cdef const key_t *key = window_find(w, hash_)
    return key != NULL and key.expires > now_ms


cdef inline int64_t key_expires(const window_t *w, int64_t ts_ms, int64_t own_ttl_ms) noexcept nogil:
    """When a key expires whose message came at ts_ms.  own_ttl_ms: the time that the message itself sets, or -1."""
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


cdef class HashKey:
    """See plane/__init__.pyi."""

    def __init__(self, const uint8_t[::1] octets, *, bint is_blake2b=False):
        if octets.shape[0] != HASH_KEY_OCTETS:
            raise ValueError(f"a hash key has {HASH_KEY_OCTETS} octets")
        hash_key_set(&self.k, &octets[0], is_blake2b)

    def hash(self, const uint8_t[::1] octets):
        if octets.shape[0] == 0:
            raise ValueError("a key has one octet at least")
        return hash_with_key(&self.k, octets[0], &octets[0] + 1, octets.shape[0] - 1)


cdef class Window:
    """See plane/__init__.pyi."""

    def __init__(self, uint32_t size, int64_t ttl_ms=-1, bytes header not None=b""):
        if size == 0:
            raise ValueError("a window holds one key at least")
        self.w.size = min(size, KEYS_MOST)
        self.w.ttl = ttl_ms
        self.set_header(header)

    cdef void set_header(self, bytes header):
        ahead.properties = NULL
        self.header = header
        self.w.header = <const uint8_t *>self.header
        self.w.header_n = <uint32_t>len(header)

    def set_rule(self, *, bint by_content, bint waiting, uint8_t action, uint8_t group_from, bytes group not None=b"",
                 uint8_t group_property=0):
        ahead.properties = NULL
        self.w.by_content = by_content
        self.w.waiting = waiting
        self.w.action = action
        self.w.group_from = group_from
        self.w.group_property = group_property
        self.group = group
        self.w.group = <const uint8_t *>self.group
        self.w.group_n = <uint32_t>len(group)

    def seq_of(self, uint64_t hash_):
        cdef const key_t *key = window_find(&self.w, hash_)
        return key.seq if key != NULL else 0

    def __dealloc__(self):
        ahead.properties = NULL
        keyring_free(&self.w.ring)
        keyring_free(&self.w.old)

    def __len__(self):
        return self.w.live

    @property
    def size(self):
        return self.w.size

    @property
    def ttl_ms(self):
        return self.w.ttl

    @property
    def duplicates(self):
        return self.w.duplicates

    @duplicates.setter
    def duplicates(self, uint64_t value):
        self.w.duplicates = value

    @property
    def hash_key(self):
        return self._hash_key

    @hash_key.setter
    def hash_key(self, HashKey hash_key):
        ahead.properties = NULL
        self._hash_key = hash_key
        self.w.hash_key = &hash_key.k if hash_key is not None else NULL

    @property
    def entered(self):
        return self.w.entered

    @property
    def octets(self):
        return (keyring_capacity(&self.w.ring) + keyring_capacity(&self.w.old)) * (sizeof(key_t) + 2 * sizeof(uint64_t))

    def change(self, uint32_t size, int64_t ttl_ms, bytes header not None):
        if size == 0:
            raise ValueError("a window holds one key at least")
        size = min(size, KEYS_MOST)
        self.w.size = size
        while self.w.entered - self.w.first > entries_most(&self.w) or self.w.live > size:
            window_forget_oldest(&self.w)
        if keyring_capacity(&self.w.ring) > keyring_capacity_for(entries_most(&self.w)):
            if window_set_capacity(&self.w, keyring_capacity_for(entries_most(&self.w))) != 0:
                raise MemoryError
        self.w.ttl = ttl_ms
        self.set_header(header)

    def knows(self, uint64_t hash_, int64_t now_ms):
        return window_knows(&self.w, hash_, now_ms)

    def enter(self, uint64_t hash_, int64_t expires_ms, int64_t now_ms, uint64_t seq=0):
        if hash_ == 0:
            raise ValueError("0 is no hash of a key")
        window_enter(&self.w, hash_, expires_ms, now_ms, seq)

    def forget(self, uint64_t hash_, uint64_t seq):
        window_forget(&self.w, hash_, seq)

    def load(self, const uint8_t[::1] rows, int64_t now_ms, *, bint unless_newer=False):
        cdef size_t n = rows.shape[0] // KEY_ROW
        cdef size_t i, first
        cdef const key_t *known
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
            for i in range(1, n):       # Two files may have the same key of the same message: enter it once.
                if by_order(sorted_ + 3 * i, sorted_ + 3 * first) != 0:
                    first += 1
                    memmove(sorted_ + 3 * first, sorted_ + 3 * i, KEY_ROW)
            n = first + 1
            for i in range(n - min(n, <size_t>self.w.size), n):
                row = sorted_ + 3 * i
                known = window_find(&self.w, row[1]) if unless_newer else NULL
                if row[1] and not (known != NULL and known.seq >= row[0]):
                    window_enter(&self.w, row[1], <int64_t>row[2], now_ms, row[0])
        free(sorted_)


cdef class Keys:
    """See plane/__init__.pyi."""

    def __init__(self, dict of_queues, uint64_t of_exchange=0, int64_t ttl_ms=-1, *, on_body=None):
        self.on_body = on_body
        self.fill(of_queues, of_exchange, ttl_ms)

    def change(self, dict of_queues, uint64_t of_exchange, int64_t ttl_ms):
        self.fill(of_queues, of_exchange, ttl_ms)

    cdef int fill(self, dict of_queues, uint64_t of_exchange, int64_t ttl_ms) except -1:
        cdef size_t n = len(of_queues)
        cdef uint32_t i = 0
        free(self.k.of_queues)
        self.k.of_queues = NULL
        self.k.n = 0
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
            self.k.of_queues[i].replaces = 0
            self.k.of_queues[i].is_new = False
            i += 1
            self.k.n = i
        return 0

    def __dealloc__(self):
        free(self.k.of_queues)


cdef inline const queue_key_t *key_of_queue(const keys_t *keys, const queue_t *q, uint32_t *at) noexcept nogil:
    """A message's key in queue q; NULL: it has none.  at: where to look first, and afterwards where it was found: the keys
    stand in the order of the targets."""
    cdef uint32_t i, place
    for i in range(keys.n):
        place = at[0] + i
        if place >= keys.n:
            place -= keys.n
        if keys.of_queues[place].queue == q:
            at[0] = place
            return keys.of_queues + place
    return NULL

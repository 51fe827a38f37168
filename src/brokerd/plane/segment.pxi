# One segment: a file of records, mapped whole, with its acks file beside it.  Layouts: store/format.py.
#
# Knows nothing of consumers.  A segment's own numbers (end, records, settled, entries, delivered) are
# stored in the maps with every change, so that kill -9 loses none of them; what a power cut may lose,
# the CRCs decide (store/recovery.py).

cdef enum:
    RECORD = 64                     # octets of a record's header
    HEADER = 64                     # of a file's
    ENTRY = 8                       # of an entry in an acks file
    FIRST_ZEROS = 16384             # blocks allocated ahead: doubled at each step, up to ...
    MOST_ZEROS = 1048576
    ACKS_ZEROS = 65536
    OUT_ROOM = 262144 + 32768       # octets of a pooled buffer
    SPARES_MOST = 64                # segments kept for whichever queue needs one
    PATH_ROOM = 4096
    SEGMENT_MAGIC = 0x47455342      # "BSEG"
    ACKS_MAGIC = 0x4B434142         # "BACK"
    RECORD_MAGIC = 0x4D475342       # "BSGM"
    ACKED = 1
    REJECTED = 2
    RETURNED = 3
    PURGED = 7
    SETTLING = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7      # a bit for each type of entry that does


cdef inline uint32_t align8(uint32_t n) noexcept nogil:
    return (n + 7) & ~<uint32_t>7


cdef void path_of(seg_t *s, const char *kind, char *out) noexcept nogil:
    snprintf(out, PATH_ROOM, b"%s/%s.%010llu", s.store.directory, kind, <unsigned long long>s.number)


cdef str text_path(seg_t *s, str kind):
    return f"{(<bytes>s.store.directory).decode()}/{kind}.{s.number:010d}"


cdef uint32_t seed_of(uint64_t number) noexcept nogil:
    cdef uint8_t octets[8]
    put_le64(octets, number)
    return crc_update(0xFFFFFFFF, octets, 8)


cdef inline uint32_t record_crc(seg_t *s, const uint8_t *record, uint32_t length) noexcept nogil:
    return ~crc_update(s.crc_seed, record + 12, length - 12)


cdef bint record_is_whole(seg_t *s, uint32_t position) noexcept nogil:
    """Bounds, magic and CRC of the record at position, all inside s.end."""
    cdef const uint8_t *r = s.map + position
    cdef uint32_t length
    if s.end - position < RECORD or le32(r) != RECORD_MAGIC:
        return False
    length = le32(r + 4)
    if length < RECORD or length > s.end - position:
        return False
    return le32(r + 8) == record_crc(s, r, length) and meta_is_whole(r, length)


cdef inline uint32_t meta_of(const uint8_t *r, const uint8_t **meta) noexcept nogil:
    """Where the meta (exchange, routing key, properties) of a record begins, and its octets."""
    cdef uint32_t n = le16(r + 12)
    if UNLIKELY(n == 0xFFFF):
        meta[0] = r + RECORD + 4
        return le32(r + RECORD)
    meta[0] = r + RECORD
    return n


cdef bint meta_is_whole(const uint8_t *r, uint32_t length) noexcept nogil:
    cdef const uint8_t *meta
    cdef uint32_t n, names
    if le16(r + 12) == 0xFFFF and length < RECORD + 4:
        return False
    n = meta_of(r, &meta)
    if n < 4 or n > length - <uint32_t>(meta - r):
        return False
    names = 1 + meta[0]
    if names >= n:
        return False
    names += 1 + meta[names]
    return names + 2 <= n


cdef void seg_write_header(seg_t *s) noexcept nogil:
    cdef uint8_t *m = s.map
    put_le32(m, SEGMENT_MAGIC)
    put_le32(m + 4, 1)
    put_le64(m + 8, s.number)
    put_le64(m + 16, s.base_seq)
    put_le64(m + 24, <uint64_t>s.queue.core.now)
    put_le32(m + 32, s.generation)
    put_le32(m + 36, ~crc_update(0xFFFFFFFF, m, 36))
    put_word(m + 40, s.end)
    put_word(m + 48, s.records)
    put_word(m + 56, s.sealed)


cdef void acks_write_header(seg_t *s, uint32_t delivered) noexcept nogil:
    cdef uint8_t *m = s.acks
    put_le32(m, ACKS_MAGIC)
    put_le32(m + 4, 2)
    put_le64(m + 8, s.number)
    put_le32(m + 16, s.generation)
    put_le32(m + 20, ~crc_update(0xFFFFFFFF, m, 20))
    put_word(m + 24, delivered)
    put_word(m + 32, s.entries)
    put_word(m + 40, s.settled)


cdef void seg_unmap(seg_t *s) noexcept nogil:
    if s.stage != NULL:
        stage_end(s)
    if s.map != NULL:
        munmap(s.map, s.capacity)
        s.map = NULL
    if not s.unlinked:
        seg_close(s)


cdef inline void seg_close(seg_t *s) noexcept nogil:
    if s.fd >= 0:
        close(s.fd)
        s.fd = -1


cdef void seg_put_sealed(seg_t *s, uint8_t sealed) noexcept nogil:
    """1: full, no more appends; 2: and known to be on disk whole."""
    cdef uint8_t word[8]
    s.sealed = sealed
    put_word(word, sealed)
    if s.map != NULL:
        memcpy(s.map + 56, word, 8)
    elif seg_open(s) == 0:
        if pwrite(s.fd, word, 8, 56) != 8:
            pass            # not said on disk: after a power cut the segment is read whole, no more
        if not s.unlinked:
            seg_close(s)


cdef void acks_unmap(seg_t *s) noexcept nogil:
    if s.acks != NULL:
        munmap(s.acks, s.acks_capacity)
        s.acks = NULL


cdef void marks_free(seg_t *s) noexcept nogil:
    free(s.marks)
    s.marks = NULL
    s.marks_n = s.marks_capacity = s.marked = 0


cdef void seg_free(seg_t *s) noexcept nogil:
    seg_unmap(s)
    seg_close(s)
    acks_unmap(s)
    journal_unmap(s)
    marks_free(s)
    free(s.settled_bits)
    free(s.counts)
    free(s)


cdef int seg_open(seg_t *s) noexcept nogil:
    """Have s.fd open; 0 or the errno."""
    cdef char path[PATH_ROOM]
    if s.fd >= 0:
        return 0
    path_of(s, b"msgs", path)
    s.fd = open(path, O_RDWR | O_CLOEXEC)
    return 0 if s.fd >= 0 else errno


cdef int seg_map(seg_t *s) noexcept nogil:
    """Have s.map mapped, for reading and appending; 0 or the errno."""
    cdef stat_t st
    cdef void *m
    cdef int err
    if s.map != NULL:
        return 0
    err = seg_open(s)
    if err:
        return err
    if fstat(s.fd, &st) < 0 or st.st_size < <off_t>s.end:
        if not s.unlinked:
            seg_close(s)
        return EIO
    if st.st_size < <off_t>s.capacity and ftruncate(s.fd, s.capacity) < 0:
        return errno
    m = mmap(NULL, s.capacity, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0)
    if m == MAP_FAILED:
        return errno
    s.map = s.base = <uint8_t *>m
    s.words = s.map + 40
    if s.sealed:
        if not s.unlinked:
            seg_close(s)
        madvise(m, s.capacity, MADV_POPULATE_READ)
    return 0


cdef int acks_map(seg_t *s) noexcept nogil:
    """Have s.acks mapped (made, if there is no file yet); 0 or the errno."""
    cdef char path[PATH_ROOM]
    cdef void *m
    cdef stat_t st
    cdef int fd, err = 0
    if s.acks != NULL:
        return 0
    path_of(s, b"acks", path)
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o640)
    if fd < 0:
        return errno
    if s.acks_capacity == 0:
        s.acks_capacity = (HEADER + ENTRY * (s.capacity // (RECORD + 8) + 64) + 4095) & ~<uint32_t>4095
    if s.acks_capacity < HEADER + ENTRY * (s.entries + 1):
        s.acks_capacity = (HEADER + ENTRY * (s.entries + 512) + 4095) & ~<uint32_t>4095
    if fstat(fd, &st) < 0:
        err = errno
    elif st.st_size < <off_t>s.acks_capacity and ftruncate(fd, s.acks_capacity) < 0:
        err = errno
    else:
        m = mmap(NULL, s.acks_capacity, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if m == MAP_FAILED:
            err = errno
        else:
            s.acks = <uint8_t *>m
    if err == 0 and s.acks_zeroed == 0:
        # Blocks for the header page before the first store: a store into a hole on a full disk is a SIGBUS.
        if st.st_size < 4096:
            err = write_zeros(fd, st.st_size, 4096)
            s.acks_zeroed = 4096
        else:
            s.acks_zeroed = <uint32_t>min(<uint32_t>(st.st_blocks * 512), HEADER + ENTRY * s.entries)
        if err:
            munmap(s.acks, s.acks_capacity)
            s.acks = NULL
    close(fd)
    if err == 0 and le32(s.acks) != ACKS_MAGIC:
        acks_write_header(s, 0)
    return err


cdef int acks_grow(seg_t *s) noexcept nogil:
    """Room for one entry more: allocated blocks, and map if need be; 0 or the errno."""
    cdef char path[PATH_ROOM]
    cdef uint32_t want = HEADER + ENTRY * (s.entries + 1)
    cdef uint32_t to
    cdef int fd, err
    if want > s.acks_capacity:
        acks_unmap(s)
        s.acks_capacity += ACKS_ZEROS
        err = acks_map(s)
        if err:
            return err
    path_of(s, b"acks", path)
    fd = open(path, O_RDWR | O_CLOEXEC)
    if fd < 0:
        return errno
    to = min(max(s.acks_zeroed + ACKS_ZEROS, want), s.acks_capacity)
    # From the first unwritten entry: what stands behind it may be a hole or zeros, never an entry.
    err = write_zeros(fd, HEADER + ENTRY * s.entries, to)
    close(fd)
    if err == 0:
        s.acks_zeroed = to
    return err


cdef int seg_note(seg_t *s, uint32_t position, uint8_t kind, uint16_t count) noexcept nogil:
    """Append an entry to the acks file; 0 or the errno (then nothing is written)."""
    cdef uint64_t entry
    cdef uint8_t *m
    cdef int err
    if UNLIKELY(s.acks == NULL):
        if s.unlinked:
            return 0            # Nobody reads it after this broker.
        err = acks_map(s)
        if err:
            return err
    if UNLIKELY(HEADER + ENTRY * (s.entries + 1) > s.acks_zeroed):
        err = acks_grow(s)
        if err:
            return err
    entry = <uint64_t>position | <uint64_t>kind << 32 | <uint64_t>count << 48
    entry |= <uint64_t>entry_check(<uint32_t>s.number, entry) << 40
    m = s.acks
    put_le64(m + HEADER + ENTRY * s.entries, entry)
    s.entries += 1
    put_word(m + 32, s.entries)
    return 0


cdef void seg_delivered(seg_t *s, uint32_t below) noexcept nogil:
    """All before `below` has been handed out: after a crash it comes as redelivered."""
    if UNLIKELY(s.acks == NULL) and (s.unlinked or acks_map(s) != 0):
        return
    put_word(s.acks + 24, below)


# ---- what was settled before this broker started

cdef inline bint was_settled(seg_t *s, uint32_t position) noexcept nogil:
    return s.settled_bits != NULL and s.settled_bits[position >> 6] >> (position >> 3 & 7) & 1


cdef uint16_t count_of(seg_t *s, uint32_t position) noexcept nogil:
    """Failed deliveries of the record at position before this broker started."""
    cdef uint32_t low = 0, high = s.count_n, middle
    while low < high:
        middle = (low + high) >> 1
        if s.counts[middle].position < position:
            low = middle + 1
        else:
            high = middle
    if low < s.count_n and s.counts[low].position == position:
        return s.counts[low].count
    return 0


cdef int by_position(const void *a, const void *b) noexcept nogil:
    cdef uint32_t x = (<count_t *>a).position, y = (<count_t *>b).position
    if x != y:
        return 1 if x > y else -1
    # Same record: the higher count is the later entry, and must come last.
    return <int>(<count_t *>a).count - <int>(<count_t *>b).count


cdef int seg_load_acks(seg_t *s) noexcept nogil:
    """Read the acks file of a recovered segment into settled_bits and counts, once; 0 or the errno."""
    cdef uint64_t entry
    cdef uint32_t i, position, returns = 0, n = 0, found = 0, unsound = 0, first_unsound = 0
    cdef uint8_t kind
    cdef int err
    if s.settled_bits != NULL or s.entries == 0:
        return 0
    err = acks_map(s)
    if err:
        return err
    s.settled_bits = <uint8_t *>calloc((s.capacity >> 6) + 1, 1)
    if s.settled_bits == NULL:
        return ENOMEM
    for i in range(s.entries):
        entry = le64(s.acks + HEADER + ENTRY * i)
        position = <uint32_t>entry
        if entry_is_sound(s, entry):
            if (entry >> 32 & 15) == RETURNED:
                returns += 1
            elif SETTLING >> (entry >> 32 & 15) & 1 and not was_settled(s, position):
                s.settled_bits[position >> 6] |= 1 << (position >> 3 & 7)
                found += 1
        elif unsound == 0:
            first_unsound = HEADER + ENTRY * i
            unsound = 1
        else:
            unsound += 1
    if found < s.settled:
        # Recovery believed the header's count; what no sound entry settles is ready again.
        s.waiting += s.settled - found
        s.store.ready += s.settled - found
        s.queue.ready += s.settled - found
        s.settled = found
    if unsound:
        with gil:
            (<Queue>s.queue.owner).core.damaged_upcall(text_path(s, "acks"), first_unsound, unsound * ENTRY)
    if returns == 0:
        return 0
    s.counts = <count_t *>malloc(returns * sizeof(count_t))
    if s.counts == NULL:
        return ENOMEM
    for i in range(s.entries):
        entry = le64(s.acks + HEADER + ENTRY * i)
        if entry_is_sound(s, entry) and (entry >> 32 & 15) == RETURNED and n < returns:
            s.counts[n].position = <uint32_t>entry
            s.counts[n].count = <uint16_t>(entry >> 48)
            n += 1
    qsort(s.counts, n, sizeof(count_t), by_position)
    s.count_n = 0
    for i in range(n):
        if s.count_n and s.counts[s.count_n - 1].position == s.counts[i].position:
            s.counts[s.count_n - 1] = s.counts[i]
        else:
            s.counts[s.count_n] = s.counts[i]
            s.count_n += 1
    return 0


cdef inline bint entry_is_sound(seg_t *s, uint64_t entry) noexcept nogil:
    cdef uint32_t position = <uint32_t>entry
    return (position >= HEADER and position < s.end and position & 7 == 0 and entry >> 32 & 15 != 0 and
            <uint8_t>(entry >> 40) == entry_check(<uint32_t>s.number, entry & ~(<uint64_t>0xFF << 40)))

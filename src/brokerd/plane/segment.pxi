# One segment: a file of records, mapped whole, with its acks file beside it.  Layouts: layout.pxi, store/format.py.
#
# Knows nothing of consumers.  The segment's own numbers (end, records, settled, entries, delivered) are stored in the
# maps with every change, so that kill -9 loses none of them.  After a power cut the CRCs decide (store/recovery.py).


cdef struct last_entry_t:       # the last that the acks file says of one record which is not settled
    uint32_t position
    uint32_t index              # of the entry
    uint16_t count              # failed deliveries
    uint8_t type                # RETURNED, HANDED_OUT, SET_ASIDE, PARKED or REPLAYED
    uint8_t reason
    bint replayed               # this entry or one before it is REPLAYED
    int64_t due                 # ms: of RETURNED, when it is to be tried again; 0: at once

cdef struct anchor_t:             # where a record of a segment begins
    uint64_t seq
    uint32_t position


cdef enum:
    POPULATE_MOST = 8 << 20     # octets of a full segment that mapping it reads at once

cdef extern from *:
    """
    static const unsigned char EMPTY_META[8];   /* two empty names, no properties */
    """
    const uint8_t *EMPTY_META


cdef void path_of(seg_t *s, const char *kind, char *out) noexcept nogil:
    snprintf(out, PATH_ROOM, b"%s/%s.%010llu", s.store.directory, kind, <unsigned long long>s.number)


cdef str text_path(seg_t *s, str kind):
    return f"{(<bytes>s.store.directory).decode()}/{kind}.{s.number:010d}"


cdef uint32_t seed_of(uint64_t number) noexcept nogil:
    cdef uint8_t octets[8]
    put_le64(octets, number)
    return crc_update(0xFFFFFFFF, octets, 8)


cdef inline uint32_t record_crc(seg_t *s, const uint8_t *record, uint32_t length) noexcept nogil:
    return ~crc_update(s.crc_seed, record + R_CRC_FROM, length - R_CRC_FROM)


cdef bint record_is_whole(seg_t *s, uint32_t position) noexcept nogil:
    """Bounds, magic and CRC of the record at position, all inside s.end."""
    cdef const uint8_t *r = s.map + position
    cdef uint32_t length
    if s.end - position < RECORD or le32(r) != RECORD_MAGIC:
        return False
    length = length_of(r)
    if length < RECORD or length > s.end - position:
        return False
    return le32(r + R_CRC) == record_crc(s, r, length) and meta_is_whole(r, length)


cdef inline uint32_t meta_of(const uint8_t *r, const uint8_t **meta) noexcept nogil:
    """Where the meta (exchange, routing key, properties) of a record begins, and its octets.  0: its page was lost, and zeros
    stand there; the meta is then an empty one elsewhere."""
    cdef uint32_t n = le16(r + R_META)
    meta[0] = r + RECORD
    if UNLIKELY(n == LONG_META):
        meta[0] = r + RECORD + 4
        n = le32(r + RECORD)
    if UNLIKELY(n < 4):
        meta[0] = EMPTY_META
        return 0
    return n


cdef inline uint64_t octets_behind(const uint8_t *r, const uint8_t *meta, uint32_t n) noexcept nogil:
    """Octets of the body, behind the meta that meta_of() found."""
    return length_of(r) - <uint64_t>(meta + n - r) if LIKELY(n != 0) else 0


cdef bint meta_is_whole(const uint8_t *r, uint32_t length) noexcept nogil:
    """Whether all lengths inside the meta are right, those of the header table too: later code trusts them."""
    cdef const uint8_t *meta
    cdef uint32_t n, names
    cdef known_t known
    if le16(r + R_META) == LONG_META and length < RECORD + 4:
        return False
    n = meta_of(r, &meta)
    if n == 0 or n > length - <uint32_t>(meta - r):
        return False
    names = 1 + meta[0]
    if names >= n:
        return False
    names += 1 + meta[names]
    return names + 2 <= n and properties_are_whole(meta + names, meta + n, &known)


cdef void seg_write_header(seg_t *s) noexcept nogil:
    cdef uint8_t *m = s.map
    put_le32(m + F_MAGIC, SEGMENT_MAGIC)
    put_le32(m + F_VERSION, SEGMENT_VERSION)
    put_le64(m + F_NUMBER, s.number)
    put_le64(m + S_BASE_SEQ, s.base_seq)
    s.created = s.queue.core.now
    put_le64(m + S_CREATED, <uint64_t>s.created)
    put_le32(m + S_GENERATION, s.generation)
    put_le32(m + S_CRC, ~crc_update(0xFFFFFFFF, m, S_CRC))
    put_word(m + S_END, s.end)
    put_word(m + S_RECORDS, s.records)
    put_word(m + S_SEALED, s.sealed)


cdef void acks_write_header(seg_t *s, uint32_t delivered) noexcept nogil:
    cdef uint8_t *m = s.acks
    put_le32(m + F_MAGIC, ACKS_MAGIC)
    put_le32(m + F_VERSION, ACKS_VERSION)
    put_le64(m + F_NUMBER, s.number)
    put_le32(m + A_GENERATION, s.generation)
    put_le32(m + A_CRC, ~crc_update(0xFFFFFFFF, m, A_CRC))
    put_word(m + A_DELIVERED, delivered)
    put_word(m + A_ENTRIES, s.entries)
    put_word(m + A_SETTLED, s.settled)


cdef void seg_unmap(seg_t *s) noexcept nogil:
    if s.stage != NULL:
        stage_end(s)
    if s.map != NULL:
        munmap(s.map, s.capacity)
        s.map = NULL
    if not s.unlinked:
        seg_close(s)


cdef void seg_put_sealed(seg_t *s, uint8_t sealed) noexcept nogil:
    """Write that the segment is full (1: no more appends), or full and known to be on disk whole (2)."""
    cdef uint8_t word[8]
    s.sealed = sealed
    put_word(word, sealed)
    if s.map != NULL:
        memcpy(s.map + S_SEALED, word, 8)
    elif seg_open(s) == 0:
        if pwrite(s.fd, word, 8, S_SEALED) != 8:
            pass            # The worst that follows: after a power cut, recovery reads the whole segment.
        if not s.unlinked:
            seg_close(s)


cdef void acks_unmap(seg_t *s) noexcept nogil:
    if s.acks != NULL:
        munmap(s.acks, s.acks_capacity)
        s.acks = NULL


cdef void journal_unmap(seg_t *s) noexcept nogil:
    if s.journal != NULL:
        munmap(s.journal, s.journal_room)
        s.journal = NULL


cdef void anchors_free(seg_t *s) noexcept nogil:
    free(s.anchors)
    s.anchors = NULL
    s.anchors_n = s.anchors_capacity = s.anchored = 0


cdef inline void index_forget(seg_t *s) noexcept nogil:
    free(s.index)
    s.index = NULL


cdef void seg_free(seg_t *s) noexcept nogil:
    seg_unmap(s)
    seg_close(s)
    acks_unmap(s)
    journal_unmap(s)
    anchors_free(s)
    index_forget(s)
    free(s.settled_bits)
    free(s.last_entries)
    free(s)


cdef int seg_open(seg_t *s) noexcept nogil:
    """Open s.fd unless it is open; 0 or the errno."""
    cdef char path[PATH_ROOM]
    if s.fd >= 0:
        return 0
    path_of(s, b"msgs", path)
    s.fd = open_file(s.queue.core, path, O_RDWR)
    if s.fd < 0:
        if errno != EMFILE and errno != ENFILE and errno != ENOMEM and not s.queue.dropped:
            mark_lost(s.queue)      # It is gone, or may not be read.
            set_errno(EIO)
        return errno
    hold_open(s, s.queue.core)
    return 0


cdef inline void note_device(core_t *core, const stat_t *st) noexcept nogil:
    """Where a segment lies.  What is renamed lies where it was, so only opened and new files need this."""
    if UNLIKELY(st.st_dev != core.device):
        core.device = 0


cdef int seg_map(seg_t *s) noexcept nogil:
    """Map the segment for reading and appending, unless it is mapped; 0 or the errno."""
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
        mark_lost(s.queue)      # It was cut off while it was not mapped.
        return EIO
    note_device(s.queue.core, &st)
    if st.st_size < <off_t>s.capacity and ftruncate(s.fd, s.capacity) < 0:
        return errno
    m = mmap(NULL, s.capacity, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0)
    if m == MAP_FAILED:
        return errno
    s.map = s.base = <uint8_t *>m
    s.words = s.map + S_END
    if s.sealed:
        if not s.unlinked:
            seg_close(s)
        s.asked_for = min(s.end, <uint32_t>POPULATE_MOST)
        madvise(m, s.asked_for, MADV_POPULATE_READ)
    else:
        madvise(m, s.capacity, MADV_RANDOM)
    return 0


cdef void ask_for_more(store_t *st) noexcept nogil:
    """Have the kernel begin to read what the cursor reads next.  A map that is written to has no read-ahead of the kernel's
    (MADV_RANDOM): where it has taken the page to append to out of memory, one store would read or zero megabytes."""
    cdef seg_t *s = st.cursor
    cdef uint32_t begin = st.position & ~<uint32_t>4095
    if s.map != NULL:
        s.asked_for = begin + ASK_OCTETS
        madvise(s.map + begin, min(s.asked_for, s.end) - begin, MADV_WILLNEED)


cdef int acks_map(seg_t *s) noexcept nogil:
    """Map the acks file unless it is mapped, and make it if there is none; 0 or the errno."""
    cdef char path[PATH_ROOM]
    cdef void *m
    cdef stat_t st
    cdef int fd, err = 0
    if s.acks != NULL:
        return 0
    path_of(s, b"acks", path)
    fd = open_file(s.queue.core, path, O_RDWR | O_CREAT)
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
            madvise(m, s.acks_capacity, MADV_RANDOM)
    if err == 0 and s.acks_zeroed == 0:
        # Allocate the header page before the first store: on a full disk, a store into a hole is a SIGBUS.
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
    """Make room for one more entry: allocate blocks, and map more of the file if need be.  0 or the errno."""
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
    fd = open_file(s.queue.core, path, O_RDWR)
    if fd < 0:
        return errno
    if is_cut_off(s.queue, fd, s.acks_capacity):
        close(fd)
        return EIO
    to = min(max(s.acks_zeroed + ACKS_ZEROS, want), s.acks_capacity)
    # Writing zeros from the first free entry on destroys nothing: only zeros or a hole can stand there.
    err = write_zeros(fd, HEADER + ENTRY * s.entries, to)
    close(fd)
    if err == 0:
        s.acks_zeroed = to
    return err


cdef int seg_note(seg_t *s, uint32_t position, uint8_t kind, uint16_t count) noexcept nogil:
    """Append an entry to the acks file; kind is type | reason << 4.  0, or the errno: then nothing is written."""
    cdef uint64_t entry
    cdef uint8_t *m
    cdef int err
    if UNLIKELY(s.acks == NULL):
        if s.unlinked:
            return 0            # The segment's file has no name: no later broker can read it, or its acks.
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
    put_word(m + A_ENTRIES, s.entries)
    return 0


cdef void seg_put_passed(seg_t *s, uint32_t below) noexcept nogil:
    """Write the watermark `delivered`: the cursor has passed every record below this position.  A later start takes each of
    them as handed out, unless an entry says otherwise."""
    if UNLIKELY(s.acks == NULL) and (s.unlinked or acks_map(s) != 0):
        return
    put_word(s.acks + A_DELIVERED, below)


cdef inline uint64_t body_octets(const uint8_t *r) noexcept nogil:
    cdef const uint8_t *meta
    cdef uint32_t n = meta_of(r, &meta)
    return octets_behind(r, meta, n)


cdef bytes routing_key_of(message_t *m):
    cdef const uint8_t *key = m.names + 1 + m.names[0]
    return (<const char *>key)[1:1 + key[0]]


cdef void message_of(const uint8_t *r, message_t *m) noexcept nogil:
    """Set the fields of m that a whole record has: its pieces, length, flags and priority."""
    cdef const uint8_t *meta
    cdef uint32_t n = meta_of(r, &meta)
    m.body_n = octets_behind(r, meta, n)
    n = max(n, <uint32_t>4)
    m.names = meta
    m.names_n = 1 + meta[0]
    m.names_n += 1 + meta[m.names_n]
    m.properties = meta + m.names_n
    m.properties_n = n - m.names_n
    m.body = meta + n
    m.length = length_of(r)
    m.flags = le16(r + R_FLAGS)
    m.priority = r[R_PRIORITY]


# ---- what the acks file says of records from before this broker started


cdef inline bint was_settled(seg_t *s, uint32_t position) noexcept nogil:
    return s.settled_bits != NULL and s.settled_bits[position >> 6] >> (position >> 3 & 7) & 1


cdef const last_entry_t *last_entry(seg_t *s, uint32_t position) noexcept nogil:
    """The last entry that an unsettled record had when this broker started; NULL: it had none."""
    cdef uint32_t low = 0, high = s.last_entries_n, middle
    while low < high:
        middle = (low + high) >> 1
        if s.last_entries[middle].position < position:
            low = middle + 1
        else:
            high = middle
    if low < s.last_entries_n and s.last_entries[low].position == position:
        return &s.last_entries[low]
    return NULL


cdef inline bint is_from_before(seg_t *s, uint32_t position) noexcept nogil:
    """Whether a former broker passed the record, may have passed it, or took it out of the middle.  recall() then says how
    often it was handed out."""
    return position < s.passed_below or position < s.doubted_below or (
        UNLIKELY(s.last_entries_n != 0) and last_entry(s, position) != NULL)


cdef void recall(seg_t *s, place_t *t) noexcept nogil:
    """Set count and flags of a record that is_from_before(), by its last entry (the table is in store/format.py).

    no entry      it was out when that broker ended, for the first time: one failed delivery.  None if only the word
                  `doubted` says that it was out
    RETURNED      it lay ready after it was given back: the start adds no failed delivery
    HANDED_OUT    it was out again: one failed delivery more
    SET_ASIDE     it waited aside, and may never have been handed out
    PARKED        the same; and it, or its group, is to wait until an operator acts
    REPLAYED      it was settled, and is ready again
    """
    cdef const last_entry_t *last = last_entry(s, t.position)
    t.flags = PLACE_PASSED | PLACE_WAS_OUT
    if last == NULL:
        t.count = t.position < s.passed_below
        return
    t.count = last.count
    if last.replayed:
        t.flags |= PLACE_REPLAYED
    if last.type == HANDED_OUT:
        if t.count < 0xFFFF:
            t.count += 1
    elif (last.type == SET_ASIDE or last.type == PARKED) and not last.reason & ASIDE_WAS_OUT \
            and t.position >= s.doubted_below:
        t.flags &= ~<uint8_t>PLACE_WAS_OUT
    if last.type == PARKED:
        t.flags |= PLACE_PARKED


cdef int by_position(const void *a, const void *b) noexcept nogil:
    cdef const last_entry_t *x = <const last_entry_t *>a
    cdef const last_entry_t *y = <const last_entry_t *>b
    if x.position != y.position:
        return 1 if x.position > y.position else -1
    return 1 if x.index > y.index else -1


cdef inline bint settles(uint64_t entry) noexcept nogil:
    """Whether an entry of this type settles its record."""
    return (1 << ACKED | 1 << REJECTED | 1 << DEAD_LETTERED | 1 << EXPIRED | 1 << DROPPED | 1 << PURGED) \
        >> (entry >> 32 & 15) & 1


cdef inline bint entry_is_sound(seg_t *s, uint64_t entry) noexcept nogil:
    cdef uint32_t position = <uint32_t>entry
    return (position >= HEADER and position < s.end and position & 7 == 0 and entry >> 32 & 15 != 0 and
            <uint8_t>(entry >> 40) == entry_check(<uint32_t>s.number, entry & ~(<uint64_t>0xFF << 40)))


cdef void forget_acks(seg_t *s) noexcept nogil:
    """Forget what seg_load_acks() read."""
    free(s.settled_bits)
    free(s.last_entries)
    s.settled_bits = NULL
    s.last_entries = NULL
    s.last_entries_n = 0


cdef uint32_t settled_beside(seg_t *s, uint32_t until, uint32_t found) noexcept nogil:
    """How many of the `found` positions in settled_bits, the last of which is `until`, are no record's.  Behind a damaged
    record that cannot be known: 0 then."""
    cdef uint32_t p = HEADER
    while p <= until and found:
        if not record_is_whole(s, p):
            return 0
        found -= was_settled(s, p)
        p += room_of(s.map + p)
    return found


cdef int seg_load_acks(seg_t *s) noexcept nogil:
    """Read the acks file of a recovered segment, which is mapped, into settled_bits and counts, once; 0 or the errno."""
    cdef uint64_t entry
    cdef uint32_t i, position, lasting = 0, found = 0, last = 0, unsound = 0, first_unsound = 0
    cdef int err
    if s.settled_bits != NULL or s.entries == 0:
        return 0
    err = acks_map(s)
    if err:
        return err
    s.settled_bits = <uint8_t *>calloc((s.capacity >> 6) + 1, 1)
    if s.settled_bits == NULL:
        return ENOMEM
    madvise(s.acks, HEADER + ENTRY * s.entries, MADV_WILLNEED)
    for i in range(s.entries):
        entry = le64(s.acks + HEADER + ENTRY * i)
        position = <uint32_t>entry
        if entry_is_sound(s, entry):
            if not settles(entry):
                lasting += 1
                if entry >> 32 & 15 == REPLAYED and was_settled(s, position):
                    s.settled_bits[position >> 6] &= <uint8_t>~(1 << (position >> 3 & 7))
                    found -= 1
            elif not was_settled(s, position):
                s.settled_bits[position >> 6] |= 1 << (position >> 3 & 7)
                found += 1
                last = max(last, position)
        elif unsound == 0:
            first_unsound = HEADER + ENTRY * i
            unsound = 1
        else:
            unsound += 1
    if found:
        # The check of an entry is one octet: of 256 that are damaged, one passes it.
        i = settled_beside(s, last, found)
        found -= i
        unsound += i
        if i and first_unsound == 0:
            first_unsound = HEADER
    if found < s.settled:
        # Recovery believed the header's count.  A record that no sound entry settles is ready again.
        s.waiting += s.settled - found
        s.store.ready += s.settled - found
        s.queue.ready += s.settled - found
        s.queue.top = max(s.queue.top, s.store.level)
        s.settled = found
    if unsound:
        with gil:
            (<Queue>s.queue.owner).core.damaged_upcall(text_path(s, "acks"), first_unsound, unsound * ENTRY)
    return seg_load_counts(s, lasting) if lasting else 0


cdef int seg_load_counts(seg_t *s, uint32_t lasting) noexcept nogil:
    """Note the last entry of each unsettled record that has one.  lasting: how many entries settle nothing.  0 or ENOMEM."""
    cdef uint64_t entry
    cdef uint32_t i, n = 0
    s.last_entries = <last_entry_t *>malloc(lasting * sizeof(last_entry_t))
    if s.last_entries == NULL:
        return ENOMEM
    for i in range(s.entries):
        entry = le64(s.acks + HEADER + ENTRY * i)
        if entry_is_sound(s, entry) and not settles(entry) and n < lasting and not was_settled(s, <uint32_t>entry):
            s.last_entries[n].position = <uint32_t>entry
            s.last_entries[n].index = i
            s.last_entries[n].type = entry >> 32 & 15
            s.last_entries[n].reason = entry >> 36 & 15
            s.last_entries[n].count = <uint16_t>(entry >> 48)
            s.last_entries[n].replayed = s.last_entries[n].type == REPLAYED
            n += 1
    qsort(s.last_entries, n, sizeof(last_entry_t), by_position)
    keep_last_entries(s, n)
    return 0


cdef void keep_last_entries(seg_t *s, uint32_t n) noexcept nogil:
    """Of n sorted entries keep the last one of each record, with the retry time that stands before it: RETRY_PARTS entries
    that belong to the entry that follows them."""
    cdef last_entry_t *all_ = s.last_entries
    cdef uint32_t i, parts = 0, kept = 0
    cdef int64_t due = 0
    for i in range(n):
        if i and all_[i].position != all_[i - 1].position:
            parts = 0
        if all_[i].type == RETRY_TIME and all_[i].reason >= RETRY_PARTS:
            parts = 0               # Not of this broker: it says nothing.
            continue
        if all_[i].type == RETRY_TIME:
            due = all_[i].count if all_[i].reason == 0 else due | <int64_t>all_[i].count << 16 * all_[i].reason
            parts = parts + 1 if all_[i].reason == parts else all_[i].reason == 0
            continue
        all_[i].due = due if parts == RETRY_PARTS and all_[i].type == RETURNED else 0
        parts = 0
        if kept and all_[kept - 1].position == all_[i].position:
            kept -= 1
            all_[i].replayed |= all_[kept].replayed
        all_[kept] = all_[i]
        kept += 1
    s.last_entries_n = kept

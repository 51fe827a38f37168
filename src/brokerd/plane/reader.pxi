# A reader of a stream: its place, how the place is found, and the deliveries that it holds.
#
#    reader_t        one for each consumer, consumer_t.reader.  It belongs to the Consumer object, because deliveries of a
#                    consumer that left may still be settled
#    held_t          a delivery that its reader holds: unacked, or given back and waiting to go out again.  A reader's held
#                    deliveries form a list by offset; its first is the lowest offset that is not acknowledged.  There are
#                    at most as many as the consumer's prefetch, because what was given back goes out before anything newer
#
# A segment counts its readers: the last one that leaves a full segment unmaps it.


cdef enum:
    START_OFFSET = 0            # how a reader's first place is found: the first record from an offset on
    START_LAST = 1              # ... in the last LAST_OCTETS of the last segment with records
    START_TIME = 2              # ... stored at a time, or later
    LAST_OCTETS = 65536
    NO_HELD = 0xFFFFFFFF
    CELLS = 320                 # of a named reader's slot: see store/format.py, READERS_CELLS
    MISSED_CELLS = 368          # ... READERS_MISSED
    SLOT_LEAST = 416            # octets of a slot that are used
    FIND_LOOKS = 16384          # records that reader_find() looks at in one turn
    SKIP_LOOKS = 64             # messages that cost as much as a look into an index
    MAP_LOOKS = 64              # ... as to open and map a segment
    UNMAP_LOOKS = 4096          # segments that unmap_some() looks at
    MAPPED_FROM = 1 << 20       # octets: arrays as large as this have pages of their own
    STREAM_MAPS_MOST = 512      # segments mapped for readers, before those of all but the present reader are unmapped

cdef struct held_t:
    uint64_t offset
    uint64_t number             # of its segment
    uint32_t position
    uint32_t before             # neighbours in the list by offset; after: also the list of free ones
    uint32_t after
    uint16_t count              # failed deliveries
    uint8_t flags               # PLACE_*

cdef struct stream_t
cdef struct share_t
cdef struct flows_t:            # a list of keys (share_keys.pxi)
    uint32_t first, last

cdef struct reader_t:
    consumer_t *consumer
    stream_t *stream            # NULL: the consumer has left
    reader_t *next              # of the stream's
    reader_t *prev
    reader_t *end_next          # of those at the end
    reader_t *end_prev
    seg_t *seg                  # NULL: to be found, by `start` at first, then by `offset`
    uint32_t position
    uint64_t offset             # the next one to read
    int64_t start_ns            # START_TIME
    uint8_t start
    bint started
    bint at_end                 # is in stream_t.at_end
    bint tells                  # what it finds missing at its place counts as missed
    bint goes_on                # reader_find() has looked at so many records that others have their turn first
    bint skips                  # it wants none of a block without its values
    uint32_t checked            # the index has been asked about the records before this position
    uint64_t missed             # messages that were gone before it came to them; with a slot, since the reader was new
    uint64_t counted            # those before this offset are counted there
    uint8_t *filter             # values of x-stream-filter-value that it wants, each with 2 octets of length; NULL: all messages
    uint32_t filter_n           # octets
    bint unfiltered             # ... and messages without a value
    uint8_t *program            # a condition (filter.pxi); NULL: none
    uint32_t program_n
    uint8_t *slot               # where its lowest unacknowledged offset is kept; NULL: nowhere
    uint32_t turn               # of the newer cell there
    uint64_t kept               # what that cell says, and all before it is done with; 0: not known, an ack will write it
    held_t *held
    uint32_t held_capacity, held_n
    uint32_t unused             # the first free one; NO_HELD: none
    uint32_t first, last        # by offset
    uint32_t *again             # heap of those that were given back, the lowest offset on top
    uint32_t again_n
    share_t *share              # NULL: it reads alone; else its place, and what it holds, are there
    reader_t *share_next        # of the share's
    uint32_t waiting            # the lowest that waits for it there (share_keys.pxi); NO_HELD: none
    uint32_t waiting_n          # in that heap
    uint8_t slot_of_share       # its place in share_t.at
    flows_t flows               # its keys
    size_t held_octets
    uint32_t fresh              # those of `held` from here on were never used, and nothing has been written there

cdef struct stream_t:
    gate_t gate
    reader_t *readers
    reader_t *at_end
    share_t *shares
    segments_t segments
    uint32_t readers_n
    uint64_t seeds              # of readers that share
    bint filtered               # a reader came whose filter an index serves: each segment gets one when it is full
    seg_t *newest               # the last segment when a message was stored last: another one has retention looked at
    int64_t max_length          # messages; -1: no limit
    int64_t max_octets          # of segment files; -1: no limit
    int64_t age                 # ns; -1: no limit
    uint32_t mapped             # segments mapped for readers since all were unmapped
    uint64_t n_removed          # messages
    uint64_t n_removed_segments
    uint64_t n_missed           # by all readers
    uint8_t next_start          # of the next consumer that joins
    bint next_tells
    uint64_t next_offset
    int64_t next_ns
    uint8_t *next_filter        # belongs to the reader from then on
    uint32_t next_filter_n
    bint next_unfiltered
    uint8_t *next_program
    uint32_t next_program_n
    uint8_t *next_slot
    uint32_t next_turn
    uint64_t next_kept
    uint8_t next_name[256]      # of its share; empty, and not next_shares: it reads alone
    bint next_shares
    bint next_single
    group_rule_t next_rule
    uint8_t next_rule_names[1024]


# ---- arrays that may have millions of entries

cdef extern from "<sys/mman.h>" nogil:
    void *mremap(void *at, size_t old, size_t new, int flags, ...)
    int MREMAP_MAYMOVE


cdef int array_grow(void **at, size_t *octets, size_t new) noexcept nogil:
    """As realloc(), but what a large array has is not copied: its pages move.  0 or ENOMEM."""
    cdef void *moved
    if new <= octets[0]:
        return 0
    if new < MAPPED_FROM:
        moved = realloc(at[0], new)
    elif octets[0] >= MAPPED_FROM:
        moved = mremap(at[0], octets[0], new, MREMAP_MAYMOVE)
    else:
        moved = mmap(NULL, new, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    if moved == NULL or moved == MAP_FAILED:
        return ENOMEM
    if new >= MAPPED_FROM > octets[0]:
        if octets[0]:
            memcpy(moved, at[0], octets[0])
        free(at[0])
    at[0] = moved
    octets[0] = new
    return 0


cdef void array_free(void *at, size_t octets) noexcept nogil:
    if octets < MAPPED_FROM:
        free(at)
    elif at != NULL:
        munmap(at, octets)


# ---- deliveries that a reader holds

cdef int held_grow(reader_t *r) noexcept nogil:
    cdef uint32_t n = r.held_capacity * 2 if r.held_capacity else 16
    cdef uint32_t *again
    if array_grow(<void **>&r.held, &r.held_octets, n * sizeof(held_t)) != 0:
        return ENOMEM
    if r.consumer != NULL:      # Else it is a share's place: what is given back waits in heaps.
        again = <uint32_t *>realloc(r.again, n * sizeof(uint32_t))
        if again == NULL:
            return ENOMEM
        r.again = again
    r.held_capacity = n
    return 0


cdef uint32_t held_fresh(reader_t *r) noexcept nogil:
    """The index of one that was never used; NO_HELD: no memory."""
    if r.fresh == r.held_capacity and held_grow(r) != 0:
        return NO_HELD
    r.fresh += 1
    return r.fresh - 1


cdef inline uint32_t hold(reader_t *r, uint64_t offset, uint64_t number, uint32_t position) noexcept nogil:
    """The delivery that follows is held.  Returns its index in `held`; NO_HELD: no memory."""
    cdef uint32_t i
    cdef held_t *h
    i = r.unused
    if LIKELY(i != NO_HELD):
        r.unused = r.held[i].after
    else:
        i = held_fresh(r)
        if UNLIKELY(i == NO_HELD):
            return NO_HELD
    h = &r.held[i]
    h.offset = offset
    h.number = number
    h.position = position
    h.count = h.flags = 0
    h.before = r.last
    h.after = NO_HELD
    # As a rule `offset` is above that of r.last.  In a directory from elsewhere numbers may repeat or fall in spite of right
    # checksums: then the reader gets them so, and lowest_unacked() is that of the first one held.
    if r.last == NO_HELD:
        r.first = i
    else:
        r.held[r.last].after = i
    r.last = i
    r.held_n += 1
    return i


cdef void let_go(reader_t *r, uint32_t i) noexcept nogil:
    """The delivery is settled for this reader."""
    cdef held_t *h = &r.held[i]
    if h.before == NO_HELD:
        r.first = h.after
    else:
        r.held[h.before].after = h.after
    if h.after == NO_HELD:
        r.last = h.before
    else:
        r.held[h.after].before = h.before
    h.after = r.unused
    r.unused = i
    r.held_n -= 1


cdef void again_push(reader_t *r, uint32_t i) noexcept nogil:
    """The delivery is to go out again.  There is room: `again` is as large as `held`."""
    cdef uint32_t at = r.again_n, up
    r.again_n += 1
    while at:
        up = (at - 1) >> 1
        if r.held[r.again[up]].offset < r.held[i].offset:
            break
        r.again[at] = r.again[up]
        at = up
    r.again[at] = i


cdef uint32_t again_pop(reader_t *r) noexcept nogil:
    cdef uint32_t top = r.again[0], at = 0, down, last
    r.again_n -= 1
    last = r.again[r.again_n]
    while True:
        down = 2 * at + 1
        if down >= r.again_n:
            break
        if down + 1 < r.again_n and r.held[r.again[down + 1]].offset < r.held[r.again[down]].offset:
            down += 1
        if r.held[last].offset < r.held[r.again[down]].offset:
            break
        r.again[at] = r.again[down]
        at = down
    r.again[at] = last
    return top


cdef inline uint64_t lowest_unacked(reader_t *r) noexcept nogil:
    """The lowest offset that this reader has not acknowledged."""
    return r.held[r.first].offset if r.first != NO_HELD else r.offset


cdef inline uint32_t turn_at(reader_t *r, uint32_t turn) noexcept nogil:
    """The turn that stands in the cell where this one belongs."""
    return le32(r.slot + CELLS + 16 * (turn & 1) + 8)


cdef inline bint has_slot(reader_t *r) noexcept nogil:
    """Whether no other reader has claimed its slot."""
    return turn_at(r, r.turn) == r.turn and turn_at(r, r.turn + 1) != r.turn + 1


cdef void keep_offset(reader_t *r) noexcept nogil:
    """Write the lowest unacknowledged offset into the reader's slot, into the older of its two cells: after kill -9 at least
    one is whole.  Not if another reader has claimed the slot since."""
    cdef uint64_t low = lowest_unacked(r)
    cdef uint8_t cell[16]
    if low == r.kept:
        return
    if not has_slot(r):
        r.slot = NULL
        return
    r.turn += 1
    r.kept = low
    put_le64(cell, low)
    put_le32(cell + 8, r.turn)
    put_le32(cell + 12, ~crc_update(crc_update(0xFFFFFFFF, r.slot, 4), cell, 12))
    memcpy(r.slot + CELLS + 16 * (r.turn & 1), cell, 16)


cdef uint32_t missed_crc(const uint8_t *slot, const uint8_t *cell) noexcept nogil:
    return ~crc_update(crc_update(0xFFFFFFFF, slot, 4), cell, 20)


cdef void find_missed(reader_t *r) noexcept nogil:
    """What its slot says that the reader has missed before."""
    cdef uint8_t *cell = r.slot + MISSED_CELLS
    cdef uint32_t i
    for i in range(2):
        if le32(cell + 20) == missed_crc(r.slot, cell) and le64(cell) >= r.missed:
            r.missed = le64(cell)
            r.counted = le64(cell + 8)
        cell += 24


cdef void count_missed(reader_t *r, uint64_t n, uint64_t counted) noexcept nogil:
    """So many messages are gone before the reader came to them.  With a slot the count is written there, into the other one of two
    cells.  It only rises, so the greater one is the newer."""
    cdef uint8_t cell[24]
    cdef uint8_t *at
    put_le64(cell, r.missed)
    r.missed += n
    r.stream.n_missed += n
    r.counted = max(r.counted, counted)
    if r.slot == NULL or not has_slot(r):
        return
    at = r.slot + MISSED_CELLS
    if le64(at) == le64(cell):
        at += 24
    put_le64(cell, r.missed)
    put_le64(cell + 8, r.counted)
    put_le32(cell + 16, 0)
    put_le32(cell + 20, missed_crc(r.slot, cell))
    memcpy(at, cell, 24)


cdef void miss(reader_t *r, uint64_t offset, uint64_t upto) noexcept nogil:
    """Messages from `offset` on, before `upto`, are gone.  A reader that begins again where it was finds those missing again that
    count already."""
    if upto > max(offset, r.counted):
        count_missed(r, upto - max(offset, r.counted), upto)


cdef inline void miss_held(reader_t *r, uint32_t i) noexcept nogil:
    """A delivery that was given back is gone."""
    count_missed(r, 1, r.held[i].offset + 1)


cdef inline uint64_t missing_now(const reader_t *r, uint64_t first) noexcept nogil:
    """What the reader will find missing at its place, before the first message that is kept."""
    cdef uint64_t begin = max(r.offset, r.counted)
    return first - begin if first > begin else 0


cdef inline void keep_passed(reader_t *r) noexcept nogil:
    """Keep how far the reader has come without an ack: past messages that its filter does not want.  Never past one that it
    holds, and not where it began beyond what is kept: the messages between are not acknowledged."""
    if r.slot != NULL and r.kept and lowest_unacked(r) > r.kept:
        keep_offset(r)


# ---- segments

cdef inline bint can_unmap(const stream_t *stream, const seg_t *s) noexcept nogil:
    return s.map != NULL and s != stream.gate.queue.store.last and not s.unsynced


cdef void unmap_for_readers(stream_t *stream, seg_t *but) noexcept nogil:
    cdef seg_t *s = stream.gate.queue.store.first
    while s != NULL:
        if s != but and can_unmap(stream, s):
            seg_unmap(s)
        s = s.next
    stream.mapped = 0


cdef uint64_t unmap_some(stream_t *stream, uint64_t offset, uint32_t most) noexcept nogil:
    """Unmap segments from that offset on, so many at most.  Returns the offset to go on with; 0: all are done."""
    cdef store_t *st = &stream.gate.queue.store
    cdef seg_t *s = segment_with(&stream.segments, st, offset) if st.last != NULL else NULL
    cdef uint32_t looks = 0
    while s != NULL and most and looks < UNMAP_LOOKS:
        if can_unmap(stream, s):
            seg_unmap(s)
            most -= 1
        looks += 1
        s = s.next
    return s.base_seq if s != NULL else 0


cdef bint map_for_reader(stream_t *stream, seg_t *s) noexcept nogil:
    """False: it cannot be mapped now."""
    if LIKELY(s.map != NULL):
        return True
    if stream.mapped >= STREAM_MAPS_MOST:
        unmap_for_readers(stream, s)
    stream.mapped += 1
    stream.gate.looked += MAP_LOOKS
    return seg_map(s) == 0


cdef void reader_leave_segment(reader_t *r) noexcept nogil:
    cdef seg_t *s = r.seg
    r.seg = NULL
    if s == NULL:
        return
    s.readers -= 1
    if s.readers == 0:
        index_forget(s)
    if s.readers == 0 and s.sealed and s != s.store.last and not s.unsynced:
        seg_unmap(s)


cdef void reader_enter(reader_t *r, seg_t *s) noexcept nogil:
    reader_leave_segment(r)
    s.readers += 1
    r.seg = s
    r.position = HEADER
    r.checked = 0


cdef void skip_damage_for_reader(reader_t *r) noexcept nogil:
    """The record at the reader's place is damaged: go to the next whole one.  The damage is reported once."""
    cdef seg_t *s = r.seg
    cdef uint32_t at = r.position, p = r.position + 8
    while p + RECORD <= s.end:
        if le32(s.map + p) == RECORD_MAGIC and record_is_whole(s, p):
            break
        p += 8
    r.position = p if p + RECORD <= s.end else s.end
    r.tells = True
    if not s.damaged:
        with gil:
            report_damage(s, at, r.position - at)


cdef inline bint is_whole_for_readers(seg_t *s, uint32_t position) noexcept nogil:
    """record_is_whole(), but a record is checked once after a start, however often it is read: where readers came to it through
    all records before."""
    if position < s.whole_below:
        return True
    if not record_is_whole(s, position):
        return False
    if position <= max(s.whole_below, <uint32_t>HEADER):
        s.whole_below = position + room_of(s.map + position)
    return True


cdef inline bint is_at_hand(reader_t *r) noexcept nogil:
    """Whether a record stands at the reader's place, is mapped, and need not be checked."""
    cdef seg_t *s = r.seg
    return r.position < s.end and s.map != NULL and not s.verify and le32(s.map + r.position) == RECORD_MAGIC


cdef bint reader_peek(reader_t *r) noexcept nogil:
    """Find the next record from the reader's place on, and map its segment.  False: it is at the end, or the record cannot be
    read now."""
    cdef seg_t *s
    while True:
        s = r.seg
        if r.position >= s.end:
            if s.next == NULL:
                return False
            reader_enter(r, s.next)
            continue
        if not map_for_reader(r.stream, s):
            return False
        if UNLIKELY(s.verify) and not is_whole_for_readers(s, r.position):
            skip_damage_for_reader(r)
            continue
        if UNLIKELY(le32(s.map + r.position) != RECORD_MAGIC):
            mark_lost(s.queue)
            return False
        return True


cdef seg_t *segment_to_start_in(reader_t *r, store_t *st) noexcept nogil:
    cdef seg_t *s = st.last
    if r.start == START_TIME and not r.started:
        return segment_before_time(&r.stream.segments, st, r.start_ns)
    if r.start == START_LAST and not r.started:
        while s.prev != NULL and s.records == 0:
            s = s.prev
        return s
    return segment_with(&r.stream.segments, st, r.offset)


cdef bint is_before_start(reader_t *r) noexcept nogil:
    """Whether the record that reader_peek() found is before the one to begin with."""
    cdef const uint8_t *record = r.seg.map + r.position
    if r.started or r.start == START_OFFSET:
        return seq_of(record) < r.offset
    if r.start == START_TIME:
        return <int64_t>le64(record + R_TS) < r.start_ns
    return r.seg.end > LAST_OCTETS and r.position < r.seg.end - LAST_OCTETS


cdef void seek_by_index(reader_t *r) noexcept nogil:
    """Go to the last block of the segment that begins before the place, if the segment has an index."""
    cdef seg_t *s = r.seg
    cdef const uint8_t *index
    cdef uint32_t row
    if (r.started or r.start == START_OFFSET) and r.offset <= s.base_seq:
        return
    index = index_of(s)
    if index == NULL or not map_for_reader(r.stream, s):
        return
    if r.started or r.start == START_OFFSET:
        row = index_find(index, 0, r.offset)
    elif r.start == START_TIME:
        row = index_find(index, XR_TS, <uint64_t>r.start_ns)
    else:
        row = index_find(index, XR_POSITION, s.end - LAST_OCTETS if s.end > LAST_OCTETS else 0)
    if index_agrees(s, index_row(index, row)):
        r.position = le32(index_row(index, row) + XR_POSITION)


cdef bint skip_blocks(reader_t *r) noexcept nogil:
    """Go past blocks that have none of the reader's values.  True: it did, and is to look again."""
    cdef seg_t *s = r.seg
    cdef const uint8_t *index
    cdef const uint8_t *row
    cdef uint32_t first, i, rows
    if r.position >= s.end and s.next != NULL:
        reader_enter(r, s.next)
        return True
    if r.position < r.checked or r.position >= s.end:
        return False
    r.stream.gate.looked += SKIP_LOOKS
    r.checked = 0xFFFFFFFF
    index = index_of(s)
    if index == NULL:
        return False
    rows = le32(index + X_ROWS)
    first = i = index_find(index, XR_POSITION, r.position)
    if not (r.unfiltered and le32(index + X_FLAGS) & X_WITHOUT_VALUE or may_have_one(index, NULL, r.filter, r.filter_n)):
        i = rows
    while i < rows:
        row = index_row(index, i)
        if r.unfiltered and le32(row + XR_FLAGS) & X_WITHOUT_VALUE or may_have_one(index, row, r.filter, r.filter_n):
            break
        i += 1
    if i == rows:
        r.position = s.end
        r.offset = s.base_seq + s.records
        return True
    row = index_row(index, i)
    if i == first or not map_for_reader(r.stream, s) or not index_agrees(s, row):
        if s.index != NULL and i + 1 < rows:
            r.checked = le32(index_row(index, first + 1) + XR_POSITION)
        return False
    r.position = le32(row + XR_POSITION)
    r.offset = le64(row)
    if i + 1 < rows:
        r.checked = le32(index_row(index, i + 1) + XR_POSITION)
    return True


cdef bint reader_find(reader_t *r) noexcept nogil:
    """Find the reader's place; it looks into one segment, or two.  False: its record is not there yet, or, with goes_on, others
    have their turn first."""
    cdef store_t *st = &r.stream.gate.queue.store
    cdef uint64_t found
    cdef uint32_t looks = 0
    if st.last == NULL:
        return False
    if r.seg == NULL:
        reader_enter(r, segment_to_start_in(r, st))
        seek_by_index(r)
    while reader_peek(r) and is_before_start(r):
        r.position += room_of(r.seg.map + r.position)
        looks += 1
        if UNLIKELY(looks == FIND_LOOKS):
            r.goes_on = True
            r.stream.gate.looked += FIND_LOOKS >> 2     # A filter's look costs more.
            return False
    if not reader_peek(r):
        return False            # The reader waits at the end, and goes on there.
    found = seq_of(r.seg.map + r.position)
    if found > r.offset and r.tells:
        miss(r, r.offset, found)
    r.tells = False
    r.started = True
    r.offset = found
    return True


# ---- readers at the end of their stream

cdef void rest_at_end(reader_t *r) noexcept nogil:
    if not r.at_end:
        r.at_end = True
        r.end_prev = NULL
        r.end_next = r.stream.at_end
        if r.end_next != NULL:
            r.end_next.end_prev = r
        r.stream.at_end = r


cdef void leave_end(reader_t *r) noexcept nogil:
    if not r.at_end:
        return
    r.at_end = False
    if r.end_prev != NULL:
        r.end_prev.end_next = r.end_next
    else:
        r.stream.at_end = r.end_next
    if r.end_next != NULL:
        r.end_next.end_prev = r.end_prev
    r.end_next = r.end_prev = NULL

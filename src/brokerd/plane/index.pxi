# The index of a full segment of a stream: a small file beside it, index.N, by which readers find an offset or a time without
# looking at each record, and skip blocks, or the whole segment, where a filter's values do not occur.
#
#    HEADER, 64 octets     0 magic "BIDX"  4 version u4  8 number u8  16 base_seq u8  24 created i8 ns, the segment's
#                          32 end u4  36 records u4, the segment's  40 rows u4  44 block u4
#                          48 flags u4, those of all rows  52 crc u4 (CRC32C of octets 0..52, then of all from 64 on)
#    VALUES, 4,096 octets  bits of the values in the segment
#    ROWS, 64 octets each  0 seq u8  8 ts i8 ns  16 position u4: of the block's first record
#                          20 flags u4: bit 0: a record in the block has no value  24 zero  32 bits of its values, 32 octets
#
# A value is a text in the header x-stream-filter-value.  With h = CRC32C(value) * 0x9E3779B97F4A7C15 modulo 2**64 it has three
# bits in a row, h >> 40, h >> 48 and h >> 56, each modulo 256, and three for the segment, h >> 19, h >> 34 and h >> 49, each
# modulo 32,768.  Bit n is bit n modulo 8 of octet n div 8.  A block has 64 KiB, or 1/128 of the segment if that is more.
#
# A thread makes the file when a reader would have used it; once a stream has had a reader whose filter it serves, it makes one
# for each segment that is full, whose pages are still in memory.  So publishers pay nothing for it, a stream without such
# readers has none, and no start reads a segment for it.  All of it follows from the segment, so it is never synced.  One that is
# missing, torn, or of another segment is made again; until then readers look at the records.
#
# Knows no readers: what they want comes as octets.


cdef enum:
    INDEX_MAGIC = 0x58444942        # "BIDX"
    INDEX_VERSION = 1
    X_BASE_SEQ = 16
    X_CREATED = 24
    X_END = 32
    X_RECORDS = 36
    X_ROWS = 40
    X_BLOCK = 44
    X_FLAGS = 48
    X_CRC = 52
    X_VALUES = 64
    X_VALUES_OCTETS = 4096
    X_FIRST_ROW = 4160              # X_VALUES + X_VALUES_OCTETS
    X_ROW = 64
    XR_TS = 8                       # in a row
    XR_POSITION = 16
    XR_FLAGS = 20
    XR_VALUES = 32
    X_WITHOUT_VALUE = 1             # flag
    BLOCK_LEAST = 65536
    BLOCKS_MOST = 128
    X_OCTETS_MOST = 12480           # X_FIRST_ROW + X_ROW * (BLOCKS_MOST + 2)
    READ_AHEAD = 1 << 18            # octets of a segment that are read at once

    INDEX_UNKNOWN = 0               # seg_t.indexed: whether there is a file is not known
    INDEX_WANTED = 1                # it is being made
    INDEX_NONE = 2                  # none can be made, or its file is wrong


# ---- values

cdef inline uint64_t value_hash(const uint8_t *value, uint32_t n) noexcept nogil:
    return <uint64_t>(~crc_update(0xFFFFFFFF, value, n)) * <uint64_t>0x9E3779B97F4A7C15


cdef inline void set_bit(uint8_t *bits, uint32_t n) noexcept nogil:
    bits[n >> 3] |= <uint8_t>(1 << (n & 7))


cdef inline bint has_bit(const uint8_t *bits, uint32_t n) noexcept nogil:
    return bits[n >> 3] >> (n & 7) & 1


cdef inline bint row_may_have(const uint8_t *row, uint64_t h) noexcept nogil:
    cdef const uint8_t *bits = row + XR_VALUES
    return has_bit(bits, h >> 40 & 255) and has_bit(bits, h >> 48 & 255) and has_bit(bits, h >> 56)


cdef inline bint segment_may_have(const uint8_t *index, uint64_t h) noexcept nogil:
    cdef const uint8_t *bits = index + X_VALUES
    return has_bit(bits, h >> 19 & 32767) and has_bit(bits, h >> 34 & 32767) and has_bit(bits, h >> 49)


cdef bint may_have_one(const uint8_t *index, const uint8_t *row, const uint8_t *values, uint32_t n) noexcept nogil:
    """Whether a block (row NULL: the segment) may have one of the values, each of which has 2 octets of length before it."""
    cdef const uint8_t *p = values
    cdef uint64_t h
    while p < values + n:
        h = value_hash(p + 2, be16(p))
        if segment_may_have(index, h) if row == NULL else row_may_have(row, h):
            return True
        p += 2 + be16(p)
    return False


cdef inline const uint8_t *filter_value_of(const uint8_t *table) noexcept nogil:
    """The record's value, 4 octets of length first; NULL: it has none.  table: its headers, or NULL."""
    cdef size_t n
    cdef const uint8_t *value = NULL
    if table != NULL:
        value = find_header(table, b"x-stream-filter-value", 21, &n)
    return value + 1 if value != NULL and value[0] == c'S' else NULL


# ---- made of a segment's file

cdef struct learns_t:               # a segment that is read from its file, piece by piece
    int fd
    uint32_t end
    uint8_t *octets
    uint32_t room
    uint32_t at                     # position of the first octet
    uint32_t n


cdef const uint8_t *learns_at(learns_t *l, uint32_t position, uint32_t n) noexcept nogil:
    """The octets from a position on; NULL: the segment, or the file, ends before."""
    cdef uint8_t *grown
    cdef ssize_t got
    if position > l.end or n > l.end - position:
        return NULL
    if position >= l.at and position + n <= l.at + l.n:
        return l.octets + (position - l.at)
    if n > l.room:
        grown = <uint8_t *>realloc(l.octets, n)
        if grown == NULL:
            return NULL
        l.octets = grown
        l.room = n
    l.at = position
    l.n = 0
    while l.n < n:
        got = pread(l.fd, l.octets + l.n, min(l.room, l.end - position) - l.n, position + l.n)
        if got <= 0:
            return NULL
        l.n += <uint32_t>got
    return l.octets


cdef bint learn_record(learns_t *l, uint32_t position, uint64_t seq, uint32_t *room, int64_t *ts, uint64_t *h,
                       bint *has) noexcept nogil:
    """What the index needs of one record, which must have that number.  False: it is not whole there."""
    cdef const uint8_t *r = learns_at(l, position, RECORD)
    cdef const uint8_t *meta
    cdef const uint8_t *value
    cdef uint32_t length, n, names
    if r == NULL or le32(r) != RECORD_MAGIC or seq_of(r) != seq:
        return False
    length = length_of(r)
    if length < RECORD or length > l.end - position:
        return False
    n = le16(r + R_META)
    if n == LONG_META:
        r = learns_at(l, position, RECORD + 4) if length >= RECORD + 4 else NULL
        if r == NULL:
            return False
        n = le32(r + RECORD) + 4 if le32(r + RECORD) < length else length
    if n > length - RECORD:
        return False
    r = learns_at(l, position, RECORD + n)
    if r == NULL or not meta_is_whole(r, length):
        return False
    room[0] = room_of(r)
    ts[0] = <int64_t>le64(r + R_TS)
    meta_of(r, &meta)
    names = 1 + meta[0]
    names += 1 + meta[names]
    value = filter_value_of(property_at(meta + names, PROPERTY_HEADERS))
    has[0] = value != NULL
    if value != NULL:
        h[0] = value_hash(value + 4, be32(value))
    return True


cdef int64_t index_rows(learns_t *l, uint64_t base_seq, uint32_t records, uint8_t *out) noexcept nogil:
    """Write the values and the rows.  How many rows; -1: the segment is not whole."""
    cdef uint32_t position = HEADER, i, room = 0, rows = 0
    cdef uint32_t block = max(<uint32_t>BLOCK_LEAST, (l.end // BLOCKS_MOST + 7) & ~<uint32_t>7)
    cdef uint8_t *row = out + X_FIRST_ROW - X_ROW
    cdef uint64_t h = 0
    cdef int64_t ts = 0
    cdef bint has = False
    for i in range(records):
        if not learn_record(l, position, base_seq + i, &room, &ts, &h, &has):
            return -1
        if rows == 0 or position - le32(row + XR_POSITION) >= block:
            row += X_ROW
            rows += 1
            if rows > BLOCKS_MOST + 2:
                return -1
            put_le64(row, base_seq + i)
            put_le64(row + XR_TS, <uint64_t>ts)
            put_le32(row + XR_POSITION, position)
        if has:
            set_bit(row + XR_VALUES, h >> 40 & 255)
            set_bit(row + XR_VALUES, h >> 48 & 255)
            set_bit(row + XR_VALUES, h >> 56)
            set_bit(out + X_VALUES, h >> 19 & 32767)
            set_bit(out + X_VALUES, h >> 34 & 32767)
            set_bit(out + X_VALUES, h >> 49)
        else:
            put_le32(row + XR_FLAGS, X_WITHOUT_VALUE)
            put_le32(out + X_FLAGS, X_WITHOUT_VALUE)
        position += room
    put_le32(out + X_BLOCK, block)
    return rows if position == l.end else -1


cdef uint32_t index_crc(const uint8_t *index, uint32_t n) noexcept nogil:
    return ~crc_update(crc_update(0xFFFFFFFF, index, X_CRC), index + X_VALUES, n - X_VALUES)


cdef int64_t index_make(int fd, uint64_t number, uint8_t *out) noexcept nogil:
    """Make the index of a segment's file in `out`, X_OCTETS_MOST zeros.  Its octets; 0: the segment is not full, or not whole."""
    cdef uint8_t head[64]
    cdef learns_t l
    cdef int64_t rows
    cdef uint32_t n
    if pread(fd, head, HEADER, 0) != HEADER or le32(head) != SEGMENT_MAGIC or le32(head + F_VERSION) != SEGMENT_VERSION \
            or le64(head + F_NUMBER) != number or le32(head + S_CRC) != ~crc_update(0xFFFFFFFF, head, S_CRC):
        return 0
    if not (word_at(head + S_END) and word_at(head + S_RECORDS) and word_at(head + S_SEALED)) or le32(head + S_SEALED) == 0 \
            or le32(head + S_END) < HEADER or le32(head + S_RECORDS) == 0:
        return 0
    memset(&l, 0, sizeof(learns_t))
    l.fd = fd
    l.end = le32(head + S_END)
    l.room = READ_AHEAD
    l.octets = <uint8_t *>malloc(READ_AHEAD)
    if l.octets == NULL:
        return 0
    rows = index_rows(&l, le64(head + S_BASE_SEQ), le32(head + S_RECORDS), out)
    free(l.octets)
    if rows < 0:
        return 0
    put_le32(out, INDEX_MAGIC)
    put_le32(out + F_VERSION, INDEX_VERSION)
    put_le64(out + F_NUMBER, number)
    memcpy(out + X_BASE_SEQ, head + S_BASE_SEQ, 16)
    put_le32(out + X_END, l.end)
    put_le32(out + X_RECORDS, le32(head + S_RECORDS))
    put_le32(out + X_ROWS, <uint32_t>rows)
    n = X_FIRST_ROW + X_ROW * <uint32_t>rows
    put_le32(out + X_CRC, index_crc(out, n))
    return n


cdef inline bint word_at(const uint8_t *p) noexcept nogil:
    return le32(p) == ~le32(p + 4)


def index_segment(int fd, uint64_t number):
    """See plane/__init__.pyi."""
    cdef bytes out = PyBytes_FromStringAndSize(NULL, X_OCTETS_MOST)
    cdef uint8_t *octets = <uint8_t *>PyBytes_AS_STRING(out)
    cdef int64_t n
    with nogil:
        memset(octets, 0, X_OCTETS_MOST)
        n = index_make(fd, number, octets)
    return out[:n] if n else None


# ---- read by the broker

cdef bint index_is_whole(seg_t *s, const uint8_t *index, ssize_t n) noexcept nogil:
    """Whether the octets are the index of this segment.  Its rows then lie within it, in order."""
    cdef uint32_t i, rows, before = 0, position
    cdef const uint8_t *row
    if n < X_FIRST_ROW or le32(index) != INDEX_MAGIC or le32(index + F_VERSION) != INDEX_VERSION:
        return False
    rows = le32(index + X_ROWS)
    if not 1 <= rows <= BLOCKS_MOST + 2 or n != X_FIRST_ROW + X_ROW * rows or le32(index + X_CRC) != index_crc(index, <uint32_t>n):
        return False
    if le64(index + F_NUMBER) != s.number or le64(index + X_BASE_SEQ) != s.base_seq or le32(index + X_END) != s.end \
            or le32(index + X_RECORDS) != s.records or (s.created and <int64_t>le64(index + X_CREATED) != s.created):
        return False
    for i in range(rows):
        row = index + X_FIRST_ROW + X_ROW * i
        position = le32(row + XR_POSITION)
        if position % 8 or position <= before or position >= s.end or (i == 0 and position != HEADER):
            return False
        before = position
    return True


cdef void want_index(seg_t *s) noexcept nogil:
    """Have the index made, once."""
    if s.indexed == INDEX_UNKNOWN and s.sealed and s.records and not s.queue.dropped:
        s.indexed = INDEX_WANTED
        with gil:
            (<Queue>s.queue.owner).core.unindexed.append((<Queue>s.queue.owner, s.number))


cdef const uint8_t *index_of(seg_t *s) noexcept nogil:
    """The index of a full segment; NULL: there is none now."""
    cdef char path[PATH_ROOM]
    cdef uint8_t *octets
    cdef ssize_t n = -1
    cdef int fd
    if s.index != NULL or not s.sealed or s.indexed != INDEX_UNKNOWN or s.records == 0:
        return s.index
    octets = <uint8_t *>malloc(X_OCTETS_MOST + 1)
    if octets == NULL:
        return NULL
    path_of(s, b"index", path)
    fd = open_file(s.queue.core, path, O_RDONLY)
    if fd >= 0:
        n = pread(fd, octets, X_OCTETS_MOST + 1, 0)
        close(fd)
    if n >= 0 and index_is_whole(s, octets, n):
        s.index = octets
        return octets
    free(octets)
    want_index(s)
    return NULL


cdef const uint8_t *index_row(const uint8_t *index, uint32_t n) noexcept nogil:
    return index + X_FIRST_ROW + X_ROW * n


cdef uint32_t index_find(const uint8_t *index, uint8_t by, uint64_t value) noexcept nogil:
    """The last row whose number (by 0), time (XR_TS) or position (XR_POSITION) is at most `value`; else the first one."""
    cdef uint32_t low = 0, high = le32(index + X_ROWS), middle
    cdef const uint8_t *at
    while high - low > 1:
        middle = (low + high) >> 1
        at = index_row(index, middle) + by
        if (le32(at) if by == XR_POSITION else le64(at)) <= value:
            low = middle
        else:
            high = middle
    return low


cdef bint index_agrees(seg_t *s, const uint8_t *row) noexcept nogil:
    """Whether the record is where the row says.  If not, the index is not used any more.  The segment is mapped."""
    cdef const uint8_t *r = s.map + le32(row + XR_POSITION)
    if LIKELY(le32(row + XR_POSITION) + RECORD <= s.end and le32(r) == RECORD_MAGIC and seq_of(r) == le64(row)):
        return True
    index_forget(s)
    s.indexed = INDEX_NONE
    return False

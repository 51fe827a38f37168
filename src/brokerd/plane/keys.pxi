# Keys of messages in their records (deduplication).  A key is entered into the queue's window when its record is appended.
# Keys are read from the records again at a start, and before a settled segment is given up.
#
# A segment's keys count as long as one of them may be in the window and has not expired (keys_last, keys_until).  Until
# they are in a file beside it (keys_written), its records must stay.

cdef struct queue_key_t:
    queue_t *queue
    uint64_t hash
    bint is_new                 # the window does not have it: it may be entered without another look
    uint64_t replaces           # the older message with this key, which is to go; 0: none


cdef void enter_key(seg_t *s, uint64_t hash_, int64_t ts, int64_t own_ttl_ms, bint is_new) noexcept nogil:
    """Enter the key of the record that was just appended to s into its queue's window.  is_new: it is not there."""
    cdef window_t *w = s.queue.window
    cdef int64_t expires = key_expires(w, ts // 1000000, own_ttl_ms)
    if is_new and w.old.keys == NULL and not w.waiting:
        window_enter_new(w, hash_, expires, s.queue.core.now, s.queue.next_seq - 1)
    else:
        window_enter(w, hash_, expires, s.queue.core.now // 1000000, s.queue.next_seq - 1)
    s.keys_last = w.entered
    if expires > s.keys_until:
        s.keys_until = expires


cdef void assume_all_keys(seg_t *s) noexcept nogil:
    """Any key of s may count, because s came from disk, or the window is newer than s."""
    s.keys_last = s.queue.window.entered if s.queue.window != NULL else 0
    s.keys_until = FOR_EVER


cdef bint holds_keys(seg_t *s) noexcept nogil:
    """Whether a key that counts may be on disk only in the records of s."""
    cdef queue_t *q = s.queue
    return (q.window != NULL and not q.window.waiting and not q.dropped and not s.unlinked and not s.keys_written
            and s.keys_until > q.core.now // 1000000 and q.window.entered - s.keys_last < q.window.size)


cdef void forget_settled_key(place_t *t) noexcept nogil:
    """A message is settled, and its queue knows only keys of messages that wait."""
    cdef const uint8_t *r
    if seg_map(t.seg) != 0:
        return                  # Its key counts until it is the oldest one, or the broker starts again.
    r = t.seg.map + t.position
    if le32(r) == RECORD_MAGIC and le64(r + R_DEDUP_HASH) != 0 and not le16(r + R_FLAGS) & KEY_OF_EXCHANGE:
        window_forget(t.seg.queue.window, le64(r + R_DEDUP_HASH), t.seq)


cdef uint32_t whole_record_from(seg_t *s, uint32_t position) noexcept nogil:
    """The first whole record from position on; s.end: there is none."""
    while position + RECORD <= s.end:
        if record_is_whole(s, position):
            return position
        position += 8
    return s.end


cdef bytes key_rows_of(seg_t *s):
    """Rows (store/format.py) of all keys of s that are in the queue's window.  Raises OSError."""
    cdef const window_t *w = s.queue.window
    cdef uint32_t position = HEADER
    cdef const key_t *key
    cdef uint64_t hash_
    cdef const uint8_t *r
    cdef uint8_t row[KEY_ROW]
    cdef bytearray rows = bytearray()
    cdef int err = seg_map(s)
    if err:
        raise OSError(err, os_strerror(err), text_path(s, "msgs"))
    while True:
        position = whole_record_from(s, position)
        if position >= s.end:
            return bytes(rows)
        r = s.map + position
        hash_ = le64(r + R_DEDUP_HASH)
        position += room_of(r)
        if hash_ == 0 or le16(r + R_FLAGS) & KEY_OF_EXCHANGE:
            continue
        key = window_find(w, hash_)
        if key != NULL:
            put_le64(row, seq_of(r))
            put_le64(row + 8, hash_)
            put_le64(row + 16, <uint64_t>key.expires)
            rows += (<const char *>row)[:KEY_ROW]


def keys_in_segment(const uint8_t[::1] octets, uint64_t number, int64_t ttl_ms=-1):
    """See plane/__init__.pyi."""
    cdef seg_t s
    cdef window_t w
    cdef uint32_t position = HEADER, n
    cdef const uint8_t *r
    cdef const uint8_t *meta
    cdef const uint8_t *properties
    cdef uint8_t row[KEY_ROW]
    cdef int64_t ts
    cdef bytearray rows = bytearray()
    cdef list own = [], foreign = []
    if octets.shape[0] < HEADER:
        return b"", own, foreign
    s.map = <uint8_t *>&octets[0]
    s.end = <uint32_t>octets.shape[0]
    s.crc_seed = seed_of(number)
    w.ttl = ttl_ms
    while True:
        position = whole_record_from(&s, position)
        if position >= s.end:
            return bytes(rows), own, foreign
        r = s.map + position
        position += room_of(r)
        if le64(r + R_DEDUP_HASH) == 0:
            continue
        ts = <int64_t>le64(r + R_TS)
        n = meta_of(r, &meta)
        properties = meta + 1 + meta[0]
        properties += 1 + properties[0]
        said = (<const char *>properties)[:meta + n - properties] if le16(r + R_FLAGS) & KEY_TTL else None
        if le16(r + R_FLAGS) & KEY_OF_EXCHANGE:
            foreign.append((ts, le64(r + R_DEDUP_HASH), (<const char *>meta)[1:1 + meta[0]], said))
            continue
        if said is not None:
            own.append((len(rows) // KEY_ROW, ts // 1000000, said))
        put_le64(row, seq_of(r))
        put_le64(row + 8, le64(r + R_DEDUP_HASH))
        put_le64(row + 16, <uint64_t>key_expires(&w, ts // 1000000, -1))
        rows += (<const char *>row)[:KEY_ROW]

# Functions for recovery, tests and tools: checksums, the layouts as compiled, and reading a segment file.

def crc32c(const uint8_t[::1] data, uint32_t value=0):
    """CRC32C (Castagnoli) of data, continuing from the value of what came before it."""
    return <uint32_t>~crc_update(~value, &data[0] if data.shape[0] else NULL, data.shape[0])


def crc32c_by_table(const uint8_t[::1] data, uint32_t value=0):
    """crc32c() on a processor without the instruction."""
    return <uint32_t>~crc_by_table(~value, &data[0] if data.shape[0] else NULL, data.shape[0])


def check_of_entry(uint32_t segment, uint64_t entry):
    """The check octet of an acks entry that is given with check zero."""
    return entry_check(segment, entry & ~(<uint64_t>0xFF << 40))


def layout():
    """Where the plane reads and writes the fields of its files: name to (offset, octets)."""
    return {
        "record": {"magic": (R_MAGIC, 4), "length": (R_LENGTH, 4), "crc": (R_CRC, 4), "meta_len": (R_META, 2),
                   "priority": (R_PRIORITY, 1), "kind": (R_KIND, 1), "seq": (R_SEQ, 8), "ts": (R_TS, 8),
                   "connection": (R_CONNECTION, 4), "channel": (R_CHANNEL, 2), "flags": (R_FLAGS, 2),
                   "publish_seq": (R_PUBLISH_SEQ, 8), "group_hash": (R_GROUP_HASH, 8), "dedup_hash": (R_DEDUP_HASH, 8)},
        "segment": {"magic": (F_MAGIC, 4), "version": (F_VERSION, 4), "number": (F_NUMBER, 8),
                    "base_seq": (S_BASE_SEQ, 8), "created": (S_CREATED, 8), "generation": (S_GENERATION, 4),
                    "crc": (S_CRC, 4), "end": (S_END, 4), "records": (S_RECORDS, 4), "sealed": (S_SEALED, 4)},
        "acks": {"magic": (F_MAGIC, 4), "version": (F_VERSION, 4), "number": (F_NUMBER, 8),
                 "generation": (A_GENERATION, 4), "crc": (A_CRC, 4), "delivered": (A_DELIVERED, 4),
                 "entries": (A_ENTRIES, 4), "settled": (A_SETTLED, 4), "doubted": (A_DOUBTED, 4)},
        "journal": {"magic": (F_MAGIC, 4), "version": (F_VERSION, 4), "number": (F_NUMBER, 8), "begun": (J_BEGUN, 8),
                    "crc": (J_CRC, 4), "events": (J_EVENTS, 4), "lost": (J_LOST, 4), "synced": (J_SYNCED, 8)},
        "event": {"seq": (E_SEQ, 8), "ts": (E_TS, 8), "consumer": (E_CONSUMER, 4), "aux": (E_AUX, 4),
                  "count": (E_COUNT, 2), "type": (E_TYPE, 1), "reason": (E_REASON, 1), "crc": (E_CRC, 4)},
        "entry": {"position": (0, 4), "kind": (4, 1), "check": (5, 1), "count": (6, 2)},
    }


def scan_segment(const uint8_t[::1] octets, uint64_t number, uint32_t start):
    """Follow the chain of whole records from `start` in a segment's octets.

    (end, records, first_seq, last_seq, last_ts, body_octets): end is the first octet that belongs to no whole record."""
    cdef seg_t s
    cdef uint32_t position = start, records = 0
    cdef uint64_t first = 0, last = 0, body = 0
    cdef int64_t ts = 0
    cdef const uint8_t *r
    if octets.shape[0] < RECORD or start < HEADER:
        return start, 0, 0, 0, 0, 0
    s.map = <uint8_t *>&octets[0]
    s.end = <uint32_t>octets.shape[0]
    s.crc_seed = seed_of(number)
    with nogil:
        while position < s.end and record_is_whole(&s, position):
            r = s.map + position
            last = seq_of(r)
            ts = <int64_t>le64(r + R_TS)
            if records == 0:
                first = last
            records += 1
            body += body_octets(r)
            position += room_of(r)
    return min(position, s.end), records, first, last, ts, body

# For recovery, tests and tools: checksums, the layouts as they are compiled, and reading a segment file.

def crc32c(const uint8_t[::1] data, uint32_t value=0):
    """CRC32C (Castagnoli) of data, going on from the value of what came before it."""
    return <uint32_t>~crc_update(~value, &data[0] if data.shape[0] else NULL, data.shape[0])


def crc32c_by_table(const uint8_t[::1] data, uint32_t value=0):
    """crc32c() on a processor without the instruction."""
    return <uint32_t>~crc_by_table(~value, &data[0] if data.shape[0] else NULL, data.shape[0])


def check_of_entry(uint32_t segment, uint64_t entry):
    """The check octet of an acks entry given with check zero."""
    return entry_check(segment, entry & ~(<uint64_t>0xFF << 40))


def layout():
    """Where this unit reads and writes the fields of its files: name to (offset, octets)."""
    return {
        "record": {"magic": (0, 4), "length": (4, 4), "crc": (8, 4), "meta_len": (12, 2), "priority": (14, 1),
                   "kind": (15, 1), "seq": (16, 8), "ts": (24, 8), "connection": (32, 4), "channel": (36, 2),
                   "flags": (38, 2), "publish_seq": (40, 8), "group_hash": (48, 8), "dedup_hash": (56, 8)},
        "segment": {"magic": (0, 4), "version": (4, 4), "number": (8, 8), "base_seq": (16, 8), "created": (24, 8),
                    "generation": (32, 4), "crc": (36, 4), "end": (40, 4), "records": (48, 4), "sealed": (56, 4)},
        "acks": {"magic": (0, 4), "version": (4, 4), "number": (8, 8), "generation": (16, 4), "crc": (20, 4),
                 "delivered": (24, 4), "entries": (32, 4), "settled": (40, 4), "doubted": (48, 4)},
        "journal": {"magic": (0, 4), "version": (4, 4), "number": (8, 8), "begun": (16, 8), "crc": (24, 4),
                    "events": (32, 4), "lost": (40, 4), "synced": (48, 8)},
        "event": {"seq": (0, 8), "ts": (8, 8), "consumer": (16, 4), "aux": (20, 4), "count": (24, 2), "type": (26, 1),
                  "reason": (27, 1), "crc": (28, 4)},
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
            last = le64(r + 16)
            ts = <int64_t>le64(r + 24)
            if records == 0:
                first = last
            records += 1
            body += body_octets(r)
            position += align8(le32(r + 4))
    return min(position, s.end), records, first, last, ts, body

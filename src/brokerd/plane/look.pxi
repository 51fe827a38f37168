# Looks through a stream for a caller without a consumer: an HTTP client, brokerctl.  It is a reader (reader.pxi) for the time of
# one call: it finds its place, skips by the indexes and filters as any other, and makes objects only of messages that pass.
#
# The stream does not keep its place, and messages that it does not find do not count as missed.


cdef int look_on(reader_t *r, uint32_t looks, Py_ssize_t count, list out) except -1:
    """Append rows of messages that pass, until there are `count`, the stream ends, or so much has been looked at.  How many
    messages were looked at."""
    cdef gate_t *gate = &r.stream.gate
    cdef int examined = 0
    while not r.started and not reader_look(r):
        if not r.goes_on:
            return 0
        r.goes_on = False       # What it takes to find the place is bounded by a segment, and does not count.
    gate.looked = 0
    while len(out) < count and examined + gate.looked < looks:
        if not skip_ahead(r):
            continue
        if not reader_look(r):
            break
        if not is_filtered(r) or passes_filter(r, r.seg.map + r.position):
            out.append(make_row(r.seg, r.position, False))
        step_over(r, seq_of(r.seg.map + r.position))
        examined += 1
    return examined


def look_through(Queue queue not None, uint64_t offset, Py_ssize_t count, uint32_t looks, *, bytes values=None, bint unfiltered=False,
                 bytes program=None):
    """See plane/__init__.pyi."""
    cdef queue_t *q = &queue.q
    cdef reader_t r
    cdef list out = []
    cdef uint32_t looked
    cdef int examined
    if not is_read(q):
        raise ValueError("it is no stream")
    if program is not None:
        check_filter(program)
    write_stages(q.core)
    memset(&r, 0, sizeof(reader_t))
    r.stream = <stream_t *>q.rules.gate
    r.start = START_OFFSET
    r.offset = max(offset, 1)
    r.unfiltered = unfiltered
    if values is not None:
        r.filter = <uint8_t *><const char *>values
        r.filter_n = <uint32_t>len(values)
    if program is not None:
        r.program = <uint8_t *><const char *>program
        r.program_n = <uint32_t>len(program)
    r.skips = is_skipping(&r)
    r.stream.filtered = r.stream.filtered or r.skips
    looked = r.stream.gate.looked
    try:
        examined = look_on(&r, looks, count, out)
    finally:
        r.stream.gate.looked = looked
        reader_leave_segment(&r)
    return out, r.offset, examined

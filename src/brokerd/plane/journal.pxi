# Writes the order journal of a queue that asks for one: what happened to each message, in events of 32 octets, in a file
# beside its segment.  In this file `journal` means the order journal.  Layout and meaning: store/format.py.
#
#    msgs.N     records          acks.N   what recovery needs          journal.N   what an audit needs
#
# event_put() stores an event into the map, then counts it, so that kill -9 loses none.  All blocks of the file are
# allocated, so that a store into the map never meets a full disk.  An event that finds no room counts as lost, and that
# has no other effect.  When all records of the segment are settled, its three files move into the folder ``kept``, by one
# rename each.
#
# The broker reads only the count and the last time of a journal.  This file never decides how a message goes on.


cdef struct journal_t:
    int64_t begun               # ns: every event since is in the journals, as far as they do not say otherwise
    int64_t syncing             # ns: what the sync under way covers
    bint suspect                # power was lost, and the journals from before are being read

cdef enum:
    JOURNAL_FIRST = 16384           # octets of a new file; each step doubles it
    JOURNAL_STEP = 1048576          # ... but adds no more than this


cdef void journal_write_header(seg_t *s) noexcept nogil:
    cdef uint8_t *m = s.journal
    memset(m, 0, HEADER)
    put_le32(m + F_MAGIC, JOURNAL_MAGIC)
    put_le32(m + F_VERSION, JOURNAL_VERSION)
    put_le64(m + F_NUMBER, s.number)
    put_le64(m + J_BEGUN, <uint64_t>s.queue.journal.begun)
    put_le32(m + J_CRC, ~crc_update(0xFFFFFFFF, m, J_CRC))
    put_word(m + J_EVENTS, s.events)
    put_word(m + J_LOST, s.events_lost)


cdef bint event_is_sound(seg_t *s, const uint8_t *e) noexcept nogil:
    return e[E_TYPE] != 0 and le32(e + E_CRC) == <uint32_t>~crc_update(s.crc_seed, e, E_CRC)


cdef int journal_map(seg_t *s) noexcept nogil:
    """Map the journal unless it is mapped, and make it if there is none; 0 or the errno."""
    cdef char path[PATH_ROOM]
    cdef stat_t st
    cdef uint32_t size
    cdef void *m
    cdef int err = 0
    cdef int fd
    if s.journal != NULL:
        return 0
    path_of(s, b"journal", path)
    fd = open_file(s.queue.core, path, O_RDWR | O_CREAT)
    if fd < 0:
        return errno
    if fstat(fd, &st) < 0:
        err = errno
    size = <uint32_t>min(st.st_size, <off_t><uint32_t>0xFFFFF000)
    if err == 0 and size < JOURNAL_FIRST:
        err = write_zeros(fd, size, JOURNAL_FIRST)
        size = JOURNAL_FIRST
    if err == 0:
        m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if m == MAP_FAILED:
            err = errno
    close(fd)
    if err:
        return err
    s.journal = <uint8_t *>m
    s.journal_room = size
    if le32(s.journal) != JOURNAL_MAGIC:
        journal_write_header(s)
    elif not s.journal_known:
        journal_count(s)
        if le32(s.journal + F_VERSION) < JOURNAL_VERSION:
            # Events will follow that brokers of that version do not know.
            put_le32(s.journal + F_VERSION, JOURNAL_VERSION)
            put_le32(s.journal + J_CRC, ~crc_update(0xFFFFFFFF, s.journal, J_CRC))
    s.journal_known = True
    madvise(s.journal, size, MADV_RANDOM)
    if s.events_lost and le32(s.journal + J_LOST) < s.events_lost:
        put_word(s.journal + J_LOST, s.events_lost)
    return 0


cdef void journal_count(seg_t *s) noexcept nogil:
    """Find out how many events a former broker wrote into this journal."""
    cdef uint8_t *m = s.journal
    cdef uint32_t most = (s.journal_room - HEADER) // EVENT
    s.events = le32(m + J_EVENTS)
    s.events_lost = le32(m + J_LOST)
    if not word_is_whole(m + J_LOST):
        s.events_lost = 1           # The number is damaged: assume one at least.
    if not word_is_whole(m + J_EVENTS) or s.events > most or s.queue.journal.suspect:
        # A power cut may have lost a page and kept a later one.
        s.events = most
        while s.events and m[HEADER + EVENT * (s.events - 1) + E_TYPE] == 0:
            s.events -= 1
    while s.events < most and event_is_sound(s, m + HEADER + EVENT * s.events):
        s.events += 1               # kill -9 came between an event and its count.
    put_word(m + J_EVENTS, s.events)
    put_word(m + J_LOST, s.events_lost)


cdef int journal_grow(seg_t *s) noexcept nogil:
    """Make room for more events; 0 or the errno."""
    cdef char path[PATH_ROOM]
    cdef uint32_t size = s.journal_room
    cdef uint32_t more = min(size, <uint32_t>JOURNAL_STEP)
    cdef void *m
    cdef int fd, err
    if size > <uint32_t>0xF0000000:
        return ENOMEM
    path_of(s, b"journal", path)
    fd = open_file(s.queue.core, path, O_RDWR)
    if fd < 0:
        return errno
    err = write_zeros(fd, size, size + more)
    if err == 0:
        m = mmap(NULL, size + more, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if m == MAP_FAILED:
            err = errno
    if err:
        if ftruncate(fd, size) < 0:
            pass                    # The file keeps zeros after the events: harmless.
        close(fd)
        return err
    close(fd)
    munmap(s.journal, size)
    s.journal = <uint8_t *>m
    s.journal_room = size + more
    madvise(m, size + more, MADV_RANDOM)
    madvise(s.journal + size, more, MADV_POPULATE_WRITE)
    return 0


cdef void count_lost_event(seg_t *s) noexcept nogil:
    s.events_lost += 1
    if s.journal != NULL:
        put_word(s.journal + J_LOST, s.events_lost)


cdef inline int64_t next_ts(queue_t *q) noexcept nogil:
    """The time now, but later than all earlier events of this queue."""
    q.last_ts = max(q.core.now, q.last_ts + 1)
    return q.last_ts


cdef bint has_event_room(seg_t *s) noexcept nogil:
    """Have room for one more event; False: the disk has none."""
    if UNLIKELY(s.journal == NULL) and journal_map(s) != 0:
        return False
    return LIKELY(s.journal_room - HEADER >= EVENT * (s.events + 1)) or journal_grow(s) == 0


cdef void prepare_event(seg_t *s) noexcept nogil:
    """Before something is written that is an event as well, to the acks file: the journal has room, and its pages can be
    written to, so that the kernel is not needed between the two.  It may take milliseconds, first for a page that a sync has
    just written out; kill -9 strikes then, and left the one without the other."""
    if has_event_room(s):
        make_writable(s.journal + HEADER + EVENT * s.events)
        make_writable(s.journal + J_EVENTS)


cdef void prepare_count(seg_t *s) noexcept nogil:
    """prepare_event(), for an event that is counted, too."""
    cdef order_t *o = order_of(s.queue, True)
    prepare_event(s)
    if o != NULL:
        make_writable(<uint8_t *>o.counts)


cdef void event_put(seg_t *s, uint64_t seq, int64_t ts, uint32_t consumer, uint32_t aux, uint16_t count, uint8_t type_,
                    uint8_t reason) noexcept nogil:
    cdef uint8_t *e
    if UNLIKELY(not has_event_room(s)):
        count_lost_event(s)
        return
    e = s.journal + HEADER + EVENT * s.events
    put_le64(e + E_SEQ, seq)
    put_le64(e + E_TS, <uint64_t>ts)
    put_le32(e + E_CONSUMER, consumer)
    put_le32(e + E_AUX, aux)
    put_le32(e + E_COUNT, count | <uint32_t>type_ << 16 | <uint32_t>reason << 24)
    put_le32(e + E_CRC, ~crc_update(s.crc_seed, e, E_CRC))
    s.events += 1
    s.journal_dirty = True
    put_word(s.journal + J_EVENTS, s.events)


cdef void journal_note(place_t *t, uint8_t type_, uint8_t reason) noexcept nogil:
    """Write an event of t, caused by the consumer that core_t.actor names."""
    cdef queue_t *q = t.seg.queue
    event_put(t.seg, t.seq, next_ts(q), q.core.actor, 0, t.count, type_, reason)


cdef void journal_delivery(channel_t *ch, consumer_t *c, place_t *t, uint8_t before, bint no_ack) noexcept nogil:
    """Write the event of t being handed out to ch; ch.next_tag is still its tag.  before: its flags when it was taken."""
    cdef uint8_t reason = before & PLACE_WAS_OUT
    if before & PLACE_WAS_OUT and not before & PLACE_OUT_SINCE_START:
        reason |= BEFORE_START
    if no_ack:
        reason |= WITHOUT_ACK
    if c == NULL:
        reason |= BY_GET
    event_put(t.seg, t.seq, next_ts(t.seg.queue), c.number if c != NULL else ch.conn.number, <uint32_t>ch.next_tag,
              t.count, HANDED_OUT, reason)


cdef void journal_begin(seg_t *s) noexcept nogil:
    """Begin the journal of s: s is new, or its queue has just got a journal.  From here on it has all events."""
    if journal_map(s) != 0:
        s.events_lost += 1


# ---- on, off, and after a start
cdef journal_t *journal_of(queue_t *q) noexcept nogil:
    """The queue's journal, which the first call makes; NULL: no memory."""
    if q.journal == NULL:
        q.journal = <journal_t *>calloc(1, sizeof(journal_t))
    return q.journal


cdef bint has_journal(seg_t *s) noexcept nogil:
    """Whether s has a journal file, of this broker or a former one."""
    cdef char path[PATH_ROOM]
    cdef int fd
    if s.journal != NULL or s.journal_known:
        return True
    path_of(s, b"journal", path)
    fd = open_file(s.queue.core, path, O_RDONLY)
    if fd < 0:
        return False
    close(fd)
    return True


cdef int64_t last_event_ts(seg_t *s) noexcept nogil:
    cdef uint32_t n = s.events
    while n and not event_is_sound(s, s.journal + HEADER + EVENT * (n - 1)):
        n -= 1
    return <int64_t>le64(s.journal + HEADER + EVENT * (n - 1) + E_TS) if n else <int64_t>le64(s.journal + J_BEGUN)


cdef bint was_off(seg_t *s) noexcept nogil:
    cdef uint8_t *e = s.journal + HEADER + EVENT * (s.events - 1)
    return s.events != 0 and e[E_TYPE] == STARTED and e[E_REASON] == SWITCHED_OFF and event_is_sound(s, e)


cdef int64_t synced_at(seg_t *s) noexcept nogil:
    """The time up to which all events are on disk, by the header."""
    cdef uint64_t said = le64(s.journal + J_SYNCED)
    return <int64_t>said if said and said == ~le64(s.journal + J_SYNCED_NOT) else <int64_t>le64(s.journal + J_BEGUN)


cdef void note_start(seg_t *s, uint8_t reason) noexcept nogil:
    """Continue an existing journal with the event STARTED: a former broker wrote it, or it was switched off."""
    cdef int64_t whole = s.queue.journal.begun
    if was_off(s) or reason == SWITCHED_ON:
        reason = SWITCHED_ON
        whole = last_event_ts(s)
    elif reason == POWER_LOST:
        whole = synced_at(s)
    event_put(s, <uint64_t>whole, s.queue.journal.begun, 0, 0, 0, STARTED, reason)


cdef void journals_start(queue_t *q, uint8_t reason) noexcept nogil:
    """Continue all existing journals from one common time, later than all their events, and begin a journal for each
    segment that has none."""
    cdef store_t *st = NULL
    cdef seg_t *s
    while True:
        st = next_store(q, st)
        if st == NULL:
            break
        s = st.first
        while s != NULL:
            if has_journal(s) and journal_map(s) == 0:
                q.last_ts = max(q.last_ts, last_event_ts(s))
                journal_unmap(s)
            s = s.next
    q.journal.begun = next_ts(q)
    while True:
        st = next_store(q, st)
        if st == NULL:
            break
        s = st.first
        while s != NULL:
            if not has_journal(s):
                journal_begin(s)
            elif journal_map(s) == 0:
                note_start(s, reason)
            else:
                s.events_lost += 1
            journal_unmap(s)
            s = s.next
    q.journal.suspect = False


cdef void journals_stop(queue_t *q) noexcept nogil:
    """Write the last event, SWITCHED_OFF, into each journal, and stop."""
    cdef store_t *st = NULL
    cdef seg_t *s
    cdef int64_t now = next_ts(q)
    while True:
        st = next_store(q, st)
        if st == NULL:
            break
        s = st.first
        while s != NULL:
            event_put(s, <uint64_t>now, now, 0, 0, 0, STARTED, SWITCHED_OFF)
            journal_unmap(s)
            s = s.next
    free(q.journal)
    q.journal = NULL


# ---- the files of a settled segment
cdef bint kept_path(seg_t *s, const char *kind, char *out) noexcept nogil:
    return snprintf(out, PATH_ROOM, b"%s/kept/%s.%010llu", s.store.directory, kind,
                    <unsigned long long>s.number) < PATH_ROOM


cdef bint move_to_kept(seg_t *s) noexcept:
    """Move the files of a settled segment into the folder ``kept``; False: they are where they were."""
    cdef Core core = (<Queue>s.queue.owner).core
    cdef char old[PATH_ROOM]
    cdef char new[PATH_ROOM]
    path_of(s, b"msgs", old)
    kept_path(s, b"msgs", new)
    if rename(old, new) != 0:
        try:
            os_makedirs((<bytes>s.store.directory).decode() + "/kept", exist_ok=True)
        except OSError:
            return False
        if rename(old, new) != 0:
            return False
    # Records first: as soon as they are in ``kept``, recovery moves the other files there too.
    path_of(s, b"journal", old)
    kept_path(s, b"journal", new)
    rename(old, new)
    path_of(s, b"acks", old)
    kept_path(s, b"acks", new)
    rename(old, new)
    core.settled_segments.append(((<bytes>s.store.directory).decode(), s.number))
    return True


# ---- syncing
cdef list journals_begin_sync(queue_t *q):
    cdef store_t *st = NULL
    cdef seg_t *s
    cdef list paths = []
    q.journal.syncing = q.last_ts
    while True:
        st = next_store(q, st)
        if st == NULL:
            return paths
        s = st.first
        while s != NULL:
            if s.journal_dirty:
                s.journal_dirty = False
                s.journal_syncing = True
                paths.append(text_path(s, "journal"))
            s = s.next


cdef void journals_end_sync(queue_t *q) noexcept nogil:
    cdef store_t *st = NULL
    cdef seg_t *s
    while True:
        st = next_store(q, st)
        if st == NULL:
            return
        s = st.first
        while s != NULL:
            if s.journal_syncing:
                s.journal_syncing = False
                # The header reaches the disk with the next sync.  Until then it claims less than is true.
                if s.journal != NULL:
                    put_le64(s.journal + J_SYNCED, <uint64_t>q.journal.syncing)
                    put_le64(s.journal + J_SYNCED_NOT, ~<uint64_t>q.journal.syncing)
            s = s.next

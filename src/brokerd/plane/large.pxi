# A large body that arrives in parts goes into a file as it comes, at the place where it stands in a segment.  To store it is then to
# write a header and to rename the file, which takes no longer for 100 MiB than for one.
#
#    spare_directory/large.<number>      nothing yet      | body so far ...      (a part is written with each frame)
#    msgs.<number> of a queue            header, record   | body                 (seg_new() takes the file, append() writes the rest)
#
# A queue takes a file of its own: for each further one a copy is made, in pieces, before the message is stored in any.  What
# needs the body in memory (participants, a transaction of the session) reads the first file through a map.
#
# Invariant: no descriptor is held for a body, since a client may begin as many as it has channels.  The core has one for all.
# Invariant: a file that a queue has taken holds the body, unharmed, until append() counts it or another message comes first: then
# the segment is sealed without a record (find_room()).  So a publish that finds no room in its last queue can come again.

cdef enum:
    LARGE_BODY = 4 << 20        # octets: a body as large as this one lies in a file.  A smaller one is stored within 4 ms
    LARGE_BEGIN = 1 << 20       # octets that are in memory before there is a file: a peer can announce any size at no cost
    LARGE_PIECE = 1 << 18       # octets that are copied at a time

cdef struct large_t:
    core_t *core
    void *owner                 # the Core, borrowed: the Connection or the Kept has it
    uint64_t number             # as seg_t.lies has it: no other has this one
    uint64_t size               # octets of the body
    uint64_t done               # ... that are in the first file
    size_t capacity             # octets of each file
    uint32_t body_at            # where the body begins there
    uint32_t crc                # of what is done, from state 0
    uint8_t *map                # of the first file once it is whole, or NULL; a queue may have taken it since
    uint64_t *files             # numbers of the files that are whole
    uint32_t files_n
    uint32_t files_room
    uint64_t copy               # number of the copy under way; 0: none
    uint64_t copied             # octets of the body that it has
    bint no_copies              # one could not be made: the disk is full


cdef void large_path(core_t *core, uint64_t number, char *out) noexcept nogil:
    snprintf(out, PATH_ROOM, b"%s/large.%010llu", core.spare_directory, <unsigned long long>number)


cdef void large_close(core_t *core) noexcept nogil:
    if core.large_fd >= 0:
        close(core.large_fd)
        core.large_fd = -1


cdef bint large_open(core_t *core, uint64_t number, int more) noexcept nogil:
    """Have core.large_fd be the file's."""
    cdef char path[PATH_ROOM]
    if core.large_fd >= 0 and core.large_number == number:
        return True
    large_close(core)
    large_path(core, number, path)
    core.large_fd = open_file(core, path, O_RDWR | more)
    core.large_number = number
    return core.large_fd >= 0


cdef uint64_t large_make(large_t *l) noexcept nogil:
    """Make an empty file: its number, or 0."""
    cdef core_t *core = l.core
    cdef uint64_t number = core.next_number
    core.next_number += 1
    if large_open(core, number, O_CREAT | O_TRUNC) and ftruncate(core.large_fd, l.capacity) == 0:
        return number
    large_drop_file(l, number)
    return 0


cdef void large_drop_file(large_t *l, uint64_t number) noexcept nogil:
    cdef char path[PATH_ROOM]
    if l.core.large_number == number:
        large_close(l.core)
    large_path(l.core, number, path)
    with gil:
        if (<Core>l.owner).garbage is not None:     # Else the collector has cleared the Core: the next start removes the file.
            (<Core>l.owner).garbage.append((<bytes>path).decode())


cdef bint large_keep(large_t *l, uint64_t number) noexcept nogil:
    """Add a file that is whole."""
    cdef uint64_t *files
    if l.files_n == l.files_room:
        files = <uint64_t *>realloc(l.files, (l.files_room * 2 + 4) * sizeof(uint64_t))
        if files == NULL:
            return False
        l.files = files
        l.files_room = l.files_room * 2 + 4
    l.files[l.files_n] = number
    l.files_n += 1
    return True


cdef large_t *large_begin(core_t *core, void *owner, uint32_t meta_n, uint64_t size) noexcept nogil:
    """A file for a body of this size, whose names and properties have meta_n octets.  NULL: it is to stay in memory."""
    cdef uint64_t end = HEADER + RECORD + (4 if meta_n >= LONG_META else 0) + <uint64_t>meta_n
    cdef large_t *l
    cdef uint64_t number
    if core.spare_directory == NULL or core.no_spares:
        return NULL
    l = <large_t *>calloc(1, sizeof(large_t))
    if l == NULL:
        return NULL
    l.core = core
    l.owner = owner
    l.size = size
    l.body_at = <uint32_t>end
    l.capacity = (end + size + 7 & ~<uint64_t>7) + 4095 & ~<uint64_t>4095
    number = l.number = large_make(l)
    if number and not large_keep(l, number):
        large_drop_file(l, number)
        number = 0
    if number == 0:
        free(l)
        return NULL
    return l


cdef bint large_write(large_t *l, const uint8_t *p, size_t n) noexcept nogil:
    """Add octets of the body.  False: there is no room for them."""
    if not large_open(l.core, l.number, 0) or not write_whole(l.core.large_fd, p, n, l.body_at + l.done):
        return False
    l.crc = crc_update(l.crc, p, n)
    l.done += n
    return True


cdef const uint8_t *large_body(large_t *l) noexcept nogil:
    """The body, as far as it is there, in a map; NULL: there is no memory for that."""
    cdef void *m
    if l.map == NULL and large_open(l.core, l.number, 0):
        m = mmap(NULL, l.capacity, PROT_READ, MAP_SHARED, l.core.large_fd, 0)
        if m != MAP_FAILED:
            l.map = <uint8_t *>m
    return NULL if l.map == NULL else l.map + l.body_at


cdef bint large_read(large_t *l, uint8_t *to) noexcept nogil:
    """Read what is done of the body."""
    cdef uint64_t at = 0
    cdef ssize_t n
    if not large_open(l.core, l.number, 0):
        return False
    while at < l.done:
        n = pread(l.core.large_fd, to + at, l.done - at, l.body_at + at)
        if n < 0 and errno == EINTR:
            continue
        if n <= 0:
            return False
        at += n
    return True


cdef void large_free(large_t *l) noexcept nogil:
    if l == NULL:
        return
    if l.map != NULL:
        munmap(l.map, l.capacity)
    if l.copy:
        large_drop_file(l, l.copy)
    while l.files_n:
        l.files_n -= 1
        large_drop_file(l, l.files[l.files_n])
    free(l.files)
    free(l)


cdef bint large_copy_piece(large_t *l) noexcept nogil:
    """Copy some of the body into one more file.  False: that cannot be."""
    cdef const uint8_t *body = large_body(l)
    cdef size_t n
    if body == NULL:
        return False
    if l.copy == 0:
        l.copied = 0
        l.copy = large_make(l)
        if l.copy == 0:
            return False
    n = min(l.size - l.copied, <uint64_t>LARGE_PIECE)
    if not large_open(l.core, l.copy, 0) or not write_whole(l.core.large_fd, body + l.copied, n, l.body_at + l.copied):
        return False
    l.copied += n
    if l.copied == l.size:
        if not large_keep(l, l.copy):
            return False
        l.copy = 0
    return True


cdef bint large_has_copies(large_t *l, queue_t **targets, uint32_t n, uint8_t priority, int64_t most) noexcept nogil:
    """Have a file for each of the queues.  False: that took `most` ns, and there is more to do.  Where there is no room for one, the
    queue stores the body as it stores any."""
    cdef int64_t began = monotonic_ns(), now = began
    cdef uint32_t i, wanted = 0
    cdef store_t *st
    for i in range(n):
        if not targets[i].dropped | targets[i].lost:
            st = store_for(targets[i], priority)
            wanted += st != NULL and (st.last == NULL or st.last.lies != l.number)
    while l.files_n < wanted and not l.no_copies and (most == NEVER or now - began < most):
        l.no_copies = not large_copy_piece(l)
        now = monotonic_ns()
    l.core.spent += now - began
    return l.files_n >= wanted or l.no_copies


cdef int large_take(large_t *l, seg_t *s, const char *path) noexcept nogil:
    """Make one of the files that of a new segment, and map it.  0, or the errno: then the file is gone."""
    cdef core_t *core = l.core
    cdef char former[PATH_ROOM]
    cdef void *m = MAP_FAILED
    cdef int err = 0
    l.files_n -= 1
    if core.large_number == l.files[l.files_n]:
        large_close(core)
    large_path(core, l.files[l.files_n], former)
    s.fd = open_file(core, former, O_RDWR)
    if s.fd < 0:
        err = errno
    elif rename(former, path) != 0:
        with gil:
            err = make_directory_of(s.store)
        if err == 0 and rename(former, path) != 0:
            err = errno
    if err == 0:
        m = mmap(NULL, s.capacity, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0)
        if m == MAP_FAILED:
            err = errno
            unlink(path)
    if err:
        if s.fd >= 0:
            close(s.fd)
        s.fd = -1
        unlink(former)
        return err
    madvise(m, s.capacity, MADV_RANDOM)
    s.map = s.base = <uint8_t *>m
    s.words = s.map + S_END
    s.zeroed = s.allocated = HEADER     # So no other message finds room here.
    s.lies = l.number
    seg_write_header(s)
    hold_open(s, core)
    return 0


cdef inline bint lies_in(seg_t *s, message_t *m) noexcept nogil:
    """Whether the body of m lies in the segment already."""
    return m.large != NULL and s != NULL and s.lies == m.large.number and not s.sealed


cdef uint32_t crc_of_lying(seg_t *s, const uint8_t *record, large_t *l) noexcept nogil:
    """record_crc() of the record whose body lies there."""
    cdef uint32_t before = l.body_at - HEADER - R_CRC_FROM
    return ~(crc_past_zeros(crc_update(s.crc_seed, record + R_CRC_FROM, before), l.size) ^ l.crc)

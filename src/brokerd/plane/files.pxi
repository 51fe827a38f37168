# Opens the files of queues.  Only regular files: a link is not followed, and a pipe or a device is refused, so that a data
# directory from elsewhere cannot lead a write astray or hold up the broker.
#
# Keeps the descriptors of segments within what the process may have.  A mapped segment needs its descriptor rarely: for more
# blocks, and to be synced.  So where descriptors run short, segments that were not used lately lose theirs, and open their
# files again when they need them.  The kernel gives the lowest number that is free.  A high number therefore says that nearly
# all are in use, and nothing has to be counted.
#
#     0 ... sockets, files ...       | descriptors_most ...                   limit |
#                                      one segment more: another loses its descriptor
#
# Invariant: a segment is in the core's list if its file has a name and its descriptor is open.  A file without a name
# cannot be opened again, so its segment is in no list.
#
# Knows neither what the files hold nor how many sockets there are.

cdef extern from "sys/stat.h" nogil:
    bint S_ISREG(unsigned int mode)

cdef extern from "fcntl.h" nogil:
    int O_NOFOLLOW, O_NONBLOCK

cdef enum:
    LOOKED_AT_MOST = 16         # segments that were used since they were opened, before one of them loses its descriptor


cdef void leave_open(seg_t *s) noexcept nogil:
    """Take s out of the list of open segments, if it is there."""
    cdef core_t *core = s.opened_in
    if core == NULL:
        return
    if s.open_prev != NULL:
        s.open_prev.open_next = s.open_next
    else:
        core.open_first = s.open_next
    if s.open_next != NULL:
        s.open_next.open_prev = s.open_prev
    else:
        core.open_last = s.open_prev
    s.open_next = s.open_prev = NULL
    s.opened_in = NULL


cdef void enter_open(seg_t *s, core_t *core) noexcept nogil:
    """Put s at the head of the list: it was opened, or used, just now."""
    leave_open(s)
    s.opened = core.now
    s.opened_in = core
    s.open_next = core.open_first
    if core.open_first != NULL:
        core.open_first.open_prev = s
    else:
        core.open_last = s
    core.open_first = s


cdef void seg_close(seg_t *s) noexcept nogil:
    if s.fd >= 0:
        leave_open(s)
        close(s.fd)
        s.fd = -1


cdef bint close_one(core_t *core, seg_t *other_than) noexcept nogil:
    """Close the file of a segment that was not used lately.  False: none can be closed."""
    cdef seg_t *s
    cdef int looked = 0
    while True:
        s = core.open_last
        if s == NULL or s == other_than and s.open_prev == NULL:
            return False
        # A stage is written through the descriptor.  There are at most STAGES_MOST.
        if s != other_than and s.stage == NULL and (looked >= LOOKED_AT_MOST or s.queue.touched <= s.opened):
            seg_close(s)
            return True
        enter_open(s, core)
        looked += 1
        if looked > LOOKED_AT_MOST + STAGES_MOST:
            return False


cdef int open_file(core_t *core, const char *path, int flags) noexcept nogil:
    """A descriptor of a regular file; or -1, with errno: EINVAL if something else is there, ELOOP if it is a link."""
    cdef stat_t st
    cdef int fd
    while True:
        fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0o640)
        if fd >= 0 or (errno != EMFILE and errno != ENFILE):
            break
        fd = errno
        if not close_one(core, NULL):
            set_errno(fd)
            return -1
    if fd >= 0 and fstat(fd, &st) == 0 and not S_ISREG(st.st_mode):
        close(fd)
        set_errno(EINVAL)
        return -1
    return fd


cdef void hold_open(seg_t *s, core_t *core) noexcept nogil:
    """The file of s, which has a name, was opened.  If nearly all descriptors are in use, another segment loses its own, and
    s takes that one's number: the number must go on to say how many are in use."""
    cdef int fd
    enter_open(s, core)
    if LIKELY(s.fd < core.descriptors_most) or not close_one(core, s):
        return
    fd = fcntl(s.fd, F_DUPFD_CLOEXEC, 3)
    if fd >= 0:
        close(s.fd)
        s.fd = fd

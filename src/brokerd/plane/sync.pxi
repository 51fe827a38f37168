# Collects the files that must be synced before confirms may be sent, and says in a full segment that it is on disk
# whole.  The sync itself is the control plane's, in a thread (store/sync.py).
#
# A sync lends its thread descriptors of a few files.  All other files, and those for which the process has no descriptor left,
# are named by their paths alone, with -1 as descriptor.  That is enough, because the thread syncs many files by syncing their
# filesystem, and for that it needs one descriptor.

cdef int lend_segment(seg_t *s) except -2:
    """A duplicate of the segment's descriptor; -1: none is left."""
    cdef int fd = -1
    cdef int err = seg_open(s)
    if err == 0:
        fd = fcntl(s.fd, F_DUPFD_CLOEXEC, 3)
        if fd >= 0:
            return fd
        err = errno
    if err != EMFILE and err != ENFILE:
        raise OSError(err, os_strerror(err), text_path(s, "msgs"))
    return -1


cdef int lend_directory(str name) except -2:
    """A descriptor of the directory; -1: none is left."""
    cdef int fd = open(name.encode(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    if fd < 0 and errno != EMFILE and errno != ENFILE:
        raise OSError(errno, os_strerror(errno), name)
    return fd


cdef int collect_unsynced(queue_t *q, list files, list sealing, Py_ssize_t most) except -1:
    """Append (descriptor, path) of all files of q that are not on disk, the last segment among them.  most: as in
    begin_sync()."""
    cdef store_t *st = NULL
    if q.dropped:
        return 0
    while True:
        st = next_store(q, st)
        if st == NULL:
            return 0
        collect_store(st, files, sealing, most)


cdef int collect_segment(seg_t *s, list files, list sealing, Py_ssize_t most) except -1:
    cdef store_t *st = s.store
    files.append((lend_segment(s) if len(files) < most else -1, text_path(s, "msgs")))
    s.unsynced = False
    st.unsynced_n -= 1
    if s.sealed:
        sealing.append((<Queue>st.queue.owner, st.level, s.number))
        if s.map == NULL:
            seg_close(s)
    return 0


cdef int collect_store(store_t *st, list files, list sealing, Py_ssize_t most) except -1:
    cdef seg_t *s = st.last
    while s != NULL and st.unsynced_n:
        if s.unsynced:
            collect_segment(s, files, sealing, most)
        s = s.prev
    s = st.leaving
    while s != NULL and st.unsynced_n:
        if s.unsynced:
            collect_segment(s, files, sealing, most)
        s = s.next
    for name in directories_unsynced(st):
        files.append((lend_directory(name) if len(files) < most else -1, name))
    return 0


cdef list directories_unsynced(store_t *st):
    cdef str directory
    cdef list names = []
    if not (st.directory_unsynced or st.parent_unsynced):
        return names
    directory = (<bytes>st.directory).decode()
    if st.directory_unsynced:
        names.append(directory + "/")
        st.directory_unsynced = False
    if st.parent_unsynced:
        names.append(directory.rpartition("/")[0] + "/")
        st.parent_unsynced = False
    return names


cdef void seal_as_synced(Queue queue, uint8_t level, uint64_t number):
    """Say in a sealed segment that it is on disk whole: after a power cut a start need not read it through."""
    cdef store_t *st = store_at(&queue.q, level)
    cdef seg_t *s = st.last if st != NULL else NULL
    while s != NULL and s.number != number:
        s = s.prev
    if s == NULL or not s.sealed or queue.q.dropped:
        return
    seg_put_sealed(s, 2)


def sync_filesystem(int fd):
    """See plane/__init__.pyi."""
    cdef int failed
    with nogil:
        failed = syncfs(fd)
    if failed:
        raise OSError(errno, os_strerror(errno))

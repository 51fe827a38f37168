# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: nonecheck=False, binding=False, freethreading_compatible=False
"""The data plane: octets from a socket buffer into a segment, and from there into a socket buffer.

One compiled unit, so that a message's way is inlined; one concern a file:

    hot.h           octets, checksums, properties
    key_hash.h      the hash of deduplication keys; blake2b.h, that of vhosts from before
    layout.pxi      numbers by their names
    window.pxi      keys seen lately
    files.pxi       opens files; descriptors that run short
    stage.pxi       records gathered in memory for the end of a chunk
    segment.pxi     one file of records and its acks file
    levels.pxi      a queue's stores, one for each priority level; lists of segments
    keys.pxi        keys in records
    heap.pxi        returned records
    disturbances.pxi what disturbed the order, counted
    journal.pxi     the order journal: what happened to each message
    retire.pxi      what becomes of a segment in which all is settled
    large.pxi       large bodies that go into a file as they come
    store.pxi       a store's segments: append, read in order
    figures.pxi     what is counted for operators alone
    lost.pxi        pages of mapped files that cannot be read or written any more
    aside.pxi       records set aside: neither ready nor out
    places.pxi      who holds positions of records
    rules.pxi       what a queue asks besides order
    deadlines.pxi   when messages expire
    fate.pxi        settle, give back, die
    expiry.pxi      messages whose time is over
    browse.pxi      ready messages looked at, and taken out of the middle
    output.pxi      a connection's output; the frames of a message
    consumers.pxi   who is next
    single.pxi      the single active consumer
    gate.pxi        a feature decides which message goes out, to whom and when
    dues.pxi        times at which messages are due
    retry.pxi       returned messages wait before they are tried again; a queue stops at a message
    deliver.pxi     messages handed out
    limits.pxi      limits of length
    settle.pxi      deliveries settled by delivery tag
    confirms.pxi    publishes confirmed
    answer.pxi      where a message goes, as routing answers it; the features that take part
    headers.pxi     what bindings ask of headers; routes remembered by that
    duplicates.pxi  duplicates left out of a publish
    retention.pxi   settled messages that stay, and come again
    kept.pxi        what a transaction publishes, until commit
    put.pxi         a message stored in its queues
    scatter.pxi     ... in one part of them after the other
    publish.pxi     a message on its way in
    content.pxi     a message that arrives in parts
    letters.pxi     dead letters made and stored
    delay.pxi       messages that wait for their time
    group_keys.pxi  to which group a message belongs
    group_places.pxi where it stands there
    group_pool.pxi  groups, and their messages that wait
    group_turns.pxi whose turn it is
    group_stops.pxi groups that wait for a retry, or are parked
    group_limits.pxi messages that wait are dropped, purged, made ready
    groups.pxi      message groups: one unit of work of each is out at a time, or all are with one consumer
    group_care.pxi  groups shown, paused, parked, released
    index.pxi       the index of a full segment of a stream
    stream_segments.pxi a stream's segments, found by number, offset or time
    reader.pxi      a stream's reader: its place, and what it holds
    filter_values.pxi values of headers and properties, compared and calculated with
    filter.pxi      what a stream's reader wants
    share_keys.pxi  what a stream's readers of one name share, and who of them gets which key
    share.pxi       the messages that they hold, and readers that come and leave
    stream_limits.pxi what a stream keeps
    stream.pxi      streams: messages that are read, and stay
    look.pxi        streams looked through without a consumer
    dead.pxi        dead letters under way
    chunk.pxi       what a chunk's end has to do
    faults.pxi      the texts of faults in a client's octets
    frames.pxi      a client's octets, cut into frames
    connection.pxi  Connection, as the loop and the session see it
    sync.pxi        what waits for the disk
    syncer.pxi      threads that sync a few files at a time
    routes.pxi      where messages go, remembered
    core.pxi        the turn
    transaction.pxi what was kept, committed
    recovery.pxi    segments found at start, and rewritten
    purge.pxi       all messages of a queue dropped, in pieces
    counters.pxi    what queues have counted, summed
    check.pxi       every count compared with what it counts: for tests
    queue.pxi       Queue, as the control plane sees it
    channel.pxi     Channel and Consumer, as the session sees them
    inspect.pxi     crc32c, layouts, reading a segment file

Each file calls only what stands before it in this list.  What may be called from above is in ``__init__.pyi``.  Structs and their owners: ``_plane.pxd``.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_WRITE
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, EDQUOT, EINTR, EINVAL, EIO, EMFILE, ENFILE, ENOENT, ENOMEM, errno
from libc.stdio cimport rename, snprintf
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove, memset, strdup, strlen
from posix.fcntl cimport O_CREAT, O_RDONLY, O_RDWR, O_TRUNC, fcntl, open
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap
from posix.types cimport off_t
from posix.unistd cimport close, ftruncate, pread, pwrite, unlink

from collections import deque
from heapq import heappop, heappush
from os import makedirs as os_makedirs
from os import strerror as os_strerror
from os import urandom as os_urandom

from brokerd.errors import by_reply_code

cdef extern from "hot.h" nogil:
    bint LIKELY(bint)
    bint UNLIKELY(bint)
    void ASSERT(bint)
    uint16_t be16(const uint8_t *)
    uint32_t be32(const uint8_t *)
    uint64_t be64(const uint8_t *)
    void put_be16(uint8_t *, uint16_t)
    void put_be32(uint8_t *, uint32_t)
    void put_be64(uint8_t *, uint64_t)
    void copy_few(uint8_t *, const uint8_t *, size_t)
    uint64_t alone(uint64_t)
    uint16_t le16(const uint8_t *)
    uint32_t le32(const uint8_t *)
    uint64_t le64(const uint8_t *)
    void put_le16(uint8_t *, uint16_t)
    void put_le32(uint8_t *, uint32_t)
    void put_le64(uint8_t *, uint64_t)
    void put_word(uint8_t *, uint32_t)
    void make_writable(uint8_t *)
    void set_errno(int)
    int64_t realtime_ns()
    int64_t monotonic_ns()
    int64_t processor_ns()
    uint32_t crc_update(uint32_t, const uint8_t *, size_t)
    uint32_t crc_by_table(uint32_t, const uint8_t *, size_t)
    uint32_t crc_past_zeros(uint32_t, uint64_t)
    void crc_init()
    uint8_t entry_check(uint32_t, uint64_t)
    int write_zeros(int, size_t, size_t)
    ctypedef struct known_t:
        uint8_t delivery_mode, priority, expires, ask
    int properties_are_whole(const uint8_t *, const uint8_t *, known_t *)
    const uint8_t *property_at(const uint8_t *, int)
    int value_is_whole(const uint8_t **, const uint8_t *, int, uint8_t)
    int table_is_whole(const uint8_t *, const uint8_t *, int)
    int PROPERTY_DEPTH
    int64_t number_of(const uint8_t *, uint64_t)
    int O_CLOEXEC, O_DIRECTORY, F_DUPFD_CLOEXEC, MSG_DONTWAIT, MSG_NOSIGNAL
    int MADV_HUGEPAGE, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_RANDOM, MADV_WILLNEED
    ctypedef struct stat_t "struct stat":
        uint64_t st_dev
        off_t st_size
        unsigned int st_mode
        long st_blocks
    int fstat(int, stat_t *)
    int madvise(void *, size_t, int)
    ssize_t send(int, const void *, size_t, int)
    ctypedef struct iovec_t "struct iovec":
        void *iov_base
        size_t iov_len
    ctypedef struct msghdr_t "struct msghdr":
        iovec_t *msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int, const msghdr_t *, int)

cdef extern from "unistd.h" nogil:
    int syncfs(int fd)
    off_t lseek(int, off_t, int)
    int SEEK_END

cdef extern from "key_hash.h" nogil:
    void hash_key_set(hash_key_t *, const uint8_t *, bint)
    uint64_t hash_with_key(const hash_key_t *, uint8_t, const uint8_t *, size_t)
    int HASH_KEY_OCTETS

crc_init()

include "layout.pxi"
include "window.pxi"
include "files.pxi"
include "stage.pxi"
include "segment.pxi"
include "levels.pxi"
include "keys.pxi"
include "heap.pxi"
include "disturbances.pxi"
include "journal.pxi"
include "retire.pxi"
include "large.pxi"
include "store.pxi"
include "figures.pxi"
include "lost.pxi"
include "aside.pxi"
include "places.pxi"
include "rules.pxi"
include "deadlines.pxi"
include "fate.pxi"
include "expiry.pxi"
include "browse.pxi"
include "output.pxi"
include "consumers.pxi"
include "single.pxi"
include "gate.pxi"
include "dues.pxi"
include "retry.pxi"
include "deliver.pxi"
include "limits.pxi"
include "settle.pxi"
include "confirms.pxi"
include "answer.pxi"
include "headers.pxi"
include "matching.pxi"
include "duplicates.pxi"
include "retention.pxi"
include "kept.pxi"
include "put.pxi"
include "scatter.pxi"
include "publish.pxi"
include "content.pxi"
include "letters.pxi"
include "delay.pxi"
include "group_keys.pxi"
include "group_places.pxi"
include "group_pool.pxi"
include "group_turns.pxi"
include "group_stops.pxi"
include "group_limits.pxi"
include "groups.pxi"
include "group_care.pxi"
include "index.pxi"
include "stream_segments.pxi"
include "reader.pxi"
include "filter_values.pxi"
include "filter.pxi"
include "share_keys.pxi"
include "share.pxi"
include "stream_limits.pxi"
include "stream.pxi"
include "look.pxi"
include "dead.pxi"
include "chunk.pxi"
include "faults.pxi"
include "frames.pxi"
include "connection.pxi"
include "sync.pxi"
include "syncer.pxi"
include "routes.pxi"
include "core.pxi"
include "transaction.pxi"
include "recovery.pxi"
include "purge.pxi"
include "counters.pxi"
include "check.pxi"
include "queue.pxi"
include "channel.pxi"
include "inspect.pxi"

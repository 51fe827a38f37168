"""What the load generator's compiled half holds: the system's calls, numbers of methods, the classes'
fields.

What each class does stands in `_perf.pyx`.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from posix.time cimport timespec

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void *data, size_t size, int flags)
    ssize_t send(int fd, const void *data, size_t size, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout)
    short POLLIN, POLLOUT

cdef extern from "<time.h>" nogil:
    int TIMER_ABSTIME
    int clock_nanosleep(int clock, int flags, const timespec *until, timespec *left)

cdef extern from "<sys/prctl.h>" nogil:
    int PR_SET_TIMERSLACK
    int prctl(int option, unsigned long value, ...)

cdef extern from * nogil:
    int64_t __atomic_fetch_sub(int64_t *value, int64_t less, int order)
    int __builtin_clzll(unsigned long long value)
    void __atomic_store_n(char *at, char octet, int order)

cdef enum:
    TEXT_ROOM = 600
    ATOMIC_RELEASE = 3          # __ATOMIC_RELEASE of gcc and clang
    CONNECTION_CLOSE = 10 << 16 | 50
    CONNECTION_BLOCKED = 10 << 16 | 60
    CONNECTION_UNBLOCKED = 10 << 16 | 61
    CHANNEL_CLOSE = 20 << 16 | 40
    QUEUE_DECLARE_OK = 50 << 16 | 11
    QOS_OK = 60 << 16 | 11
    BASIC_CANCEL = 60 << 16 | 30
    ACK_FRAME = 21                      # octets of a basic.ack frame
    CHUNK = 128 << 10                   # octets a publisher hands over in one write, at most
    WAIT_MS = 20                        # longest sleep between looks at Control.stop
    PATIENCE_NS = 3000000000            # a run that is over waits this long for room to finish a frame
    HISTOGRAM = 64 * 128

cdef extern from *:
    """
    #define NUMBER_MASK 0xFFFFFFFFFFFFull
    """
    const uint64_t NUMBER_MASK          # the low 48 bits of a body's first 8 octets

cdef struct Slot:                       # what one consumer saw of one producer in one queue
    uint64_t first
    uint64_t next
    uint64_t count
    uint64_t total


cdef class Histogram:
    cdef uint64_t buckets[HISTOGRAM]
    cdef readonly uint64_t count
    cdef readonly uint64_t max

    cdef void add(self, uint64_t ns) noexcept nogil


cdef class Control:
    cdef public bint stop               # all links: leave your loop
    cdef public uint64_t start_ns       # producers wait for it; rates count from it
    cdef public uint64_t until_ns       # producers publish nothing after it; 0: no limit
    cdef public uint64_t measure_ns     # latencies of messages due before it are not counted
    cdef public double gap_ns           # between two messages of one producer; 0: as fast as it goes
    cdef public int producers
    cdef public bint limited            # consumers take `budget` messages together, and leave the others
    cdef public int64_t budget

    cdef bint take(self) noexcept nogil
    cdef uint64_t due(self, uint64_t producer, uint64_t number) noexcept nogil


cdef class Confirms:
    cdef uint64_t low                   # the lowest number that is not confirmed
    cdef uint64_t mask                  # of a number's place in the rings; no more numbers than it may be open
    cdef uint8_t *settled               # a ring: 1 for a number over `low` that is confirmed
    cdef uint64_t *written              # a ring: when each was written, in ns; NULL if nobody asked
    cdef readonly Histogram waits

    cdef void write(self, uint64_t first, uint64_t count) noexcept nogil
    cdef uint64_t settle(self, uint64_t tag, bint multiple, uint64_t published, uint64_t measure_ns) noexcept nogil
    cdef void _wait(self, uint64_t number, uint64_t now, uint64_t measure_ns) noexcept nogil


cdef class Link:
    cdef int fd
    cdef Control control
    cdef uint32_t frame_max
    cdef uint8_t *taken                 # read, from parsed to filled
    cdef size_t capacity, parsed, filled
    cdef uint8_t *answers               # acknowledgements, from sent to written
    cdef size_t answers_size, sent, written
    cdef char text[TEXT_ROOM]
    cdef readonly uint64_t published, confirmed, nacked, returned, received, octets, redelivered, last_ns
    cdef readonly uint64_t misordered, foreign
    cdef readonly bint blocked, syncing, finished
    cdef readonly bint torn             # a frame that was begun is not whole: the connection can only be dropped
    cdef readonly Histogram latency     # from when the message was due
    cdef readonly Histogram from_write  # from when it was written
    # a delivery whose frames have not all come
    cdef uint64_t tag, body_size, body_left, number, stamp
    cdef bint returning, numbered
    cdef int queue
    # publishing
    cdef uint64_t producer, limit, window
    cdef Confirms confirms
    cdef uint8_t *ring
    cdef size_t *offsets                # of each message in the ring, and its end
    cdef size_t *bodies                 # of each message's first body octet
    cdef uint64_t ring_count, at
    cdef bint mark_number, mark_time
    cdef int replies
    cdef size_t unsent                  # of the last `_push`, if it was told to stop
    # consuming
    cdef int ack_every, producers, queues
    cdef uint64_t unacked, last_tag, recv_ns
    cdef bint leaving                   # what still comes is left to the next consumer
    cdef Slot *slots

    cdef int _fail(self, const char *text) noexcept nogil
    cdef void _keep(self, const char *text) noexcept nogil
    cdef int _closed(self, const uint8_t *p, uint32_t size) noexcept nogil
    cdef int _fill(self, bint wait) noexcept nogil
    cdef int _read(self, bint wait) noexcept nogil
    cdef int _parse(self) noexcept nogil
    cdef int _method(self, const uint8_t *p, uint32_t size) noexcept nogil
    cdef int _header(self, const uint8_t *p, uint32_t size) noexcept nogil
    cdef int _body(self, const uint8_t *p, uint32_t size) noexcept nogil
    cdef int _message(self) noexcept nogil
    cdef void _check_order(self) noexcept nogil
    cdef int _push(self, const uint8_t *p, size_t size) noexcept nogil
    cdef int _push_whole(self, const uint8_t *p, size_t size) noexcept nogil
    cdef int _complete(self, const uint8_t *p, size_t size) noexcept nogil
    cdef void _finish_message(self, uint64_t count) noexcept nogil
    cdef int _lost(self) noexcept nogil
    cdef int _ack(self) noexcept nogil
    cdef int _flush(self) noexcept nogil
    cdef int _publish(self) noexcept nogil
    cdef uint64_t _allowed(self) noexcept nogil
    cdef void _sleep_until(self, uint64_t due, uint64_t now) noexcept nogil
    cdef void _mark(self, uint64_t count) noexcept nogil
    cdef void _settle(self, uint64_t tag, bint multiple, bint negative) noexcept nogil
    cdef int _settle_all(self, const uint8_t *sync, size_t size, int replies) noexcept nogil
    cdef int _consume(self) noexcept nogil
    cdef void _wait_for_room(self) noexcept nogil
    cdef int _finish_acks(self, const uint8_t *sync, size_t size) noexcept nogil

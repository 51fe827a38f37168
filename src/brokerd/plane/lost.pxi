# Pages of mapped files that cannot be read or written any more: a file was cut off, or the disk failed or was full, under a
# running broker.  The kernel then sends SIGBUS in the midst of an access.
#
# The handler puts zeros in place of the rest of that mapping, so that the access goes on, and marks the queue.  Code that reads
# records takes zeros for empty messages (meta_of(), length_of()).  Nothing of the queue reaches a client or another queue from
# then on: deliver() drops what it has just written, and the queue is paused.  The next turn refuses what is not confirmed, and
# tells the control plane.
#
# The handler runs in the thread that made the access.  Lists of queues and segments change in that thread alone, and not while
# it reads a map.  So the handler may walk them.  An access by another thread, or to any other memory, ends the process.

cdef extern from *:
    """
    #include <errno.h>
    #include <signal.h>
    #include <string.h>
    #include <unistd.h>

    static int (*bus_replaces)(void *) = NULL;
    static struct sigaction bus_former;

    static void on_bus(int number, siginfo_t *info, void *context)
    {
        int saved = errno;
        if (!bus_replaces(info->si_addr)) {
            if (bus_former.sa_flags & SA_SIGINFO)
                bus_former.sa_sigaction(number, info, context);
            else
                sigaction(SIGBUS, &bus_former, NULL);       /* The same access again ends the process. */
        }
        errno = saved;
    }

    static void catch_bus(int (*replaces)(void *))
    {
        struct sigaction action;
        if (bus_replaces)
            return;
        bus_replaces = replaces;
        memset(&action, 0, sizeof action);
        action.sa_sigaction = on_bus;
        action.sa_flags = SA_SIGINFO;
        sigemptyset(&action.sa_mask);
        sigaction(SIGBUS, &action, &bus_former);
    }
    """
    void catch_bus(int (*)(void *) noexcept nogil) nogil

cdef extern from *:
    """
    static int touch(const uint8_t *octets, uint64_t n)
    {
        int seen = 0;
        for (uint64_t at = 0; at < n; at += 4096)
            seen |= ((const volatile uint8_t *)octets)[at];
        if (n)
            seen |= ((const volatile uint8_t *)octets)[n - 1];
        __asm__ volatile("" ::: "memory");      /* The handler may have marked the queue: look again. */
        return seen;
    }
    """
    int touch(const uint8_t *octets, uint64_t n) nogil

cdef extern from "pthread.h" nogil:
    pthread_t pthread_self()
    bint pthread_equal(pthread_t, pthread_t)

cdef extern from "unistd.h" nogil:
    long sysconf(int)
    int _SC_PAGESIZE

cdef core_t *CORES = NULL       # of this process


cdef bint replace_rest(uint8_t *at, uint8_t *map, size_t octets) noexcept nogil:
    """Put zeros from the page of `at` to the end of a mapping.  False: `at` is elsewhere, or there is no memory."""
    cdef size_t page = sysconf(_SC_PAGESIZE)
    cdef uint8_t *first = <uint8_t *>(<size_t>at & ~(page - 1))
    if map == NULL or at < map or at >= map + octets:
        return False
    return mmap(first, map + octets - first, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED


cdef bint replace_in_segments(uint8_t *at, seg_t *s) noexcept nogil:
    while s != NULL:
        if replace_rest(at, s.map, s.capacity) or replace_rest(at, s.acks, s.acks_capacity) \
                or replace_rest(at, s.journal, s.journal_room):
            return True
        s = s.next
    return False


cdef bint replace_in_queue(uint8_t *at, queue_t *q) noexcept nogil:
    cdef store_t *st = next_store(q, NULL)
    if q.order != NULL and replace_rest(at, q.order.map, ORDER_OCTETS):
        return True
    while st != NULL:
        if replace_in_segments(at, st.first) or replace_in_segments(at, st.leaving) or replace_in_segments(at, st.spare):
            return True
        st = next_store(q, st)
    return False


cdef int replace_lost(void *address) noexcept nogil:
    """What the handler of SIGBUS does.  0: this is no page of a queue's files."""
    cdef core_t *core = CORES
    cdef queue_t *q
    while core != NULL:
        if pthread_equal(core.thread, pthread_self()):
            q = core.queues
            while q != NULL:
                if replace_in_queue(<uint8_t *>address, q):
                    mark_lost(q)
                    return 1
                q = q.core_next
            if replace_in_segments(<uint8_t *>address, core.nameless):
                return 1
        core = core.next
    return 0


cdef void core_join(core_t *core) noexcept nogil:
    global CORES
    core.thread = pthread_self()
    core.next = CORES
    CORES = core
    catch_bus(replace_lost)


cdef void core_leave(core_t *core) noexcept nogil:
    global CORES
    cdef core_t **at = &CORES
    while at[0] != NULL and at[0] != core:
        at = &at[0].next
    if at[0] != NULL:
        at[0] = core.next


cdef void queue_join(queue_t *q) noexcept nogil:
    q.core_next = q.core.queues
    if q.core_next != NULL:
        q.core_next.core_prev = q
    q.core.queues = q
    if q.core.count_figures:
        times_begin(q)


cdef void queue_leave(queue_t *q) noexcept nogil:
    times_end(q)
    if q.core_prev != NULL:
        q.core_prev.core_next = q.core_next
    elif q.core.queues == q:
        q.core.queues = q.core_next
    if q.core.fenced == q:
        q.core.fenced = NULL
    if q.core_next != NULL:
        q.core_next.core_prev = q.core_prev
    q.core_next = q.core_prev = NULL


cdef bint can_be_read(queue_t *q, message_t *m) noexcept nogil:
    """Touch each page of a message of q, and say whether none of them is lost."""
    touch(m.names, m.names_n)
    touch(m.properties, m.properties_n)
    touch(m.body, m.body_n)
    return not q.lost

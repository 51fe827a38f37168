# Threads that sync a few files, each file in a thread of its own if there are several: a disk that takes long for each sync then
# takes no longer for all.  They never need Python's lock, so no thread waits for them to have the lock, and they wait for none:
# beside a busy loop each time that a thread wants the lock costs it up to 5 ms, which all confirms would wait for.
# They know descriptors, and neither queues nor what the files hold.
#
# The Syncer owns the sync_group_t.  A thread takes a file by adding one to `taken`; its place in `descriptors` is the thread's
# from then on.  The thread that ends the last file writes to `ended`; after that all is the Syncer's until its next begin().

cdef extern from "pthread.h" nogil:
    int pthread_create(pthread_t *, const void *, void *(*)(void *) noexcept nogil, void *)
    int pthread_join(pthread_t, void **)

cdef extern from "semaphore.h" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t *, int, unsigned int)
    int sem_post(sem_t *)
    int sem_wait(sem_t *)
    int sem_destroy(sem_t *)

cdef extern from "signal.h" nogil:
    ctypedef struct sigset_t:
        pass
    int SIG_SETMASK
    int sigfillset(sigset_t *)
    int pthread_sigmask(int, const sigset_t *, sigset_t *)

cdef extern from "sys/eventfd.h" nogil:
    int eventfd(unsigned int, int)
    int EFD_CLOEXEC, EFD_NONBLOCK

cdef extern from "unistd.h" nogil:
    int fdatasync(int fd)
    int fsync(int fd)
    ssize_t read(int, void *, size_t)
    ssize_t write(int, const void *, size_t)

cdef extern from *:
    """
    #define atomic_add(at, n) __atomic_fetch_add(at, n, __ATOMIC_ACQ_REL)
    #define atomic_put(at, n) __atomic_store_n(at, n, __ATOMIC_RELEASE)
    #define atomic_replace_zero(at, n) __sync_bool_compare_and_swap(at, 0, n)
    """
    uint64_t atomic_add(uint64_t *at, uint64_t n) nogil         # what stood there before
    void atomic_put(uint64_t *at, uint64_t n) nogil
    bint atomic_replace_zero(uint64_t *at, uint64_t n) nogil    # False: something else stood there

cdef enum:
    SYNC_FILES_MOST = 16    # of one sync
    SYNC_THREADS = 8
    SYNC_DATA, SYNC_DIRECTORY, SYNC_FILESYSTEM      # what is synced by a descriptor

cdef struct sync_group_t:
    pthread_t threads[SYNC_THREADS]
    int threads_n
    sem_t begun                     # a thread that may find a file
    int ended                       # an eventfd: readable when a sync is over
    bint ends                       # the threads end when they find nothing to sync
    uint64_t taken                  # how many files there are, << 32, and how many were taken
    uint64_t left                   # files that are not yet synced
    uint64_t error                  # place of one that failed, << 32, and its errno; 0: all are on disk
    int descriptors[SYNC_FILES_MOST]
    uint8_t what[SYNC_FILES_MOST]   # SYNC_...


cdef inline int sync_descriptor(int fd, uint8_t what) noexcept nogil:
    if what == SYNC_FILESYSTEM:
        return syncfs(fd)
    return fsync(fd) if what == SYNC_DIRECTORY else fdatasync(fd)


cdef void *sync_when_asked(void *argument) noexcept nogil:
    cdef sync_group_t *s = <sync_group_t *>argument
    cdef uint64_t taken, i, one = 1
    while True:
        while sem_wait(&s.begun) != 0:
            pass                    # EINTR is its only error here
        while True:
            # One word says which file and how many there are: a thread that comes late may find the next sync here.
            taken = atomic_add(&s.taken, 1)
            i = <uint32_t>taken
            if i >= taken >> 32:
                break
            while sync_descriptor(s.descriptors[i], s.what[i]) != 0:
                if errno != EINTR:
                    atomic_replace_zero(&s.error, i << 32 | <uint64_t>errno)
                    break
            close(s.descriptors[i])
            if atomic_add(&s.left, <uint64_t>-1) == 1 and write(s.ended, &one, 8) != 8:
                return NULL         # cannot be: the counter is never above 1
        if s.ends:
            return NULL


@cython.no_gc_clear
cdef class Syncer:
    """See plane/__init__.pyi."""

    cdef sync_group_t s
    cdef bint runs, busy
    cdef list files

    def __cinit__(self):
        self.s.ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.s.ended < 0:
            raise OSError(errno, os_strerror(errno))
        sem_init(&self.s.begun, 0, 0)
        self.runs = True
        self.need_threads(1)

    def __dealloc__(self):
        self.end_threads()
        if self.s.ended >= 0:
            close(self.s.ended)
            sem_destroy(&self.s.begun)

    cdef int need_threads(self, int n) except -1:
        """Raises OSError if there is not even one."""
        cdef sigset_t every, before
        cdef int err = 0
        if self.s.threads_n >= n:
            return 0
        sigfillset(&every)          # Signals are for the main thread.
        pthread_sigmask(SIG_SETMASK, &every, &before)
        while self.s.threads_n < n and err == 0:
            err = pthread_create(&self.s.threads[self.s.threads_n], NULL, sync_when_asked, &self.s)
            if err == 0:
                self.s.threads_n += 1
        pthread_sigmask(SIG_SETMASK, &before, NULL)
        if self.s.threads_n == 0:
            raise OSError(err, os_strerror(err))
        return 0

    def fileno(self):
        return self.s.ended

    def begin(self, list files, bint filesystem=False):
        cdef int i, n = <int>len(files)
        ASSERT(self.runs and not self.busy and 0 < n <= SYNC_FILES_MOST)
        if filesystem:
            for i in range(1, n):
                close(files[i][0])
            n = 1
        self.need_threads(min(n, <int>SYNC_THREADS))
        for i in range(n):
            self.s.descriptors[i] = files[i][0]
            self.s.what[i] = SYNC_FILESYSTEM if filesystem else SYNC_DIRECTORY if files[i][1].endswith("/") else SYNC_DATA
        self.s.left = n
        self.s.error = 0
        self.files = files
        self.busy = True
        atomic_put(&self.s.taken, <uint64_t>n << 32)
        for i in range(min(n, self.s.threads_n)):
            sem_post(&self.s.begun)

    def finish(self):
        cdef uint64_t count
        if read(self.s.ended, &count, 8) != 8:
            return False
        files = self.files
        self.files = None
        self.busy = False
        if self.s.error:
            raise OSError(<int>self.s.error, os_strerror(<int>self.s.error),
                          files[self.s.error >> 32][1])
        return True

    def stop(self):
        self.end_threads()

    cdef void end_threads(self) noexcept:
        cdef int i
        if self.runs:
            self.runs = False
            self.s.ends = True
            for i in range(self.s.threads_n):
                sem_post(&self.s.begun)
            with nogil:
                for i in range(self.s.threads_n):
                    pthread_join(self.s.threads[i], NULL)

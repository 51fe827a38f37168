# A thread that syncs a few files at a time.  It never needs Python's lock, so no thread waits for it to have the lock, and it
# waits for none.  It knows descriptors, and neither queues nor what the files hold.
#
# The Syncer owns the sync_thread_t.  From begin() until the thread has written to `ended`, the thread alone uses the other
# fields; sem_post() and the write to `ended` hand them over.

cdef extern from "pthread.h" nogil:
    ctypedef unsigned long pthread_t
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
    ssize_t read(int, void *, size_t)
    ssize_t write(int, const void *, size_t)

cdef enum:
    SYNC_FILES_MOST = 16    # of one sync

cdef struct sync_thread_t:
    pthread_t thread
    sem_t begun
    int ended                       # an eventfd: readable when a sync is over
    int n                           # descriptors to sync
    bint ends                       # the thread ends when it finds nothing to sync
    int error                       # errno of the first that failed; 0: all are on disk
    int failed                      # ... its place
    int descriptors[SYNC_FILES_MOST]


cdef void *sync_when_asked(void *argument) noexcept nogil:
    cdef sync_thread_t *s = <sync_thread_t *>argument
    cdef uint64_t one = 1
    cdef int i
    while True:
        while sem_wait(&s.begun) != 0:
            pass                    # EINTR is its only error here
        if s.n == 0 and s.ends:
            return NULL
        for i in range(s.n):
            while s.error == 0 and fdatasync(s.descriptors[i]) != 0:
                if errno != EINTR:
                    s.error = errno
                    s.failed = i
            close(s.descriptors[i])
        s.n = 0
        if write(s.ended, &one, 8) != 8:
            return NULL             # cannot be: the counter is never above 1


@cython.no_gc_clear
cdef class Syncer:
    """See plane/__init__.pyi."""

    cdef sync_thread_t s
    cdef bint runs, busy
    cdef list files

    def __cinit__(self):
        cdef sigset_t every, before
        cdef int err
        self.s.ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.s.ended < 0:
            raise OSError(errno, os_strerror(errno))
        sem_init(&self.s.begun, 0, 0)
        sigfillset(&every)          # Signals are for the main thread.
        pthread_sigmask(SIG_SETMASK, &every, &before)
        err = pthread_create(&self.s.thread, NULL, sync_when_asked, &self.s)
        pthread_sigmask(SIG_SETMASK, &before, NULL)
        if err:
            raise OSError(err, os_strerror(err))
        self.runs = True

    def __dealloc__(self):
        self.end_thread()
        if self.s.ended >= 0:
            close(self.s.ended)
            sem_destroy(&self.s.begun)

    def fileno(self):
        return self.s.ended

    def begin(self, list files):
        cdef int i
        ASSERT(self.runs and not self.busy and 0 < len(files) <= SYNC_FILES_MOST)
        for i in range(len(files)):
            self.s.descriptors[i] = files[i][0]
        self.s.n = <int>len(files)
        self.s.error = 0
        self.files = files
        self.busy = True
        sem_post(&self.s.begun)

    def finish(self):
        cdef uint64_t count
        if read(self.s.ended, &count, 8) != 8:
            return False
        files = self.files
        self.files = None
        self.busy = False
        if self.s.error:
            raise OSError(self.s.error, os_strerror(self.s.error), files[self.s.failed][1])
        return True

    def stop(self):
        self.end_thread()

    cdef void end_thread(self) noexcept:
        if self.runs:
            self.runs = False
            self.s.ends = True
            sem_post(&self.s.begun)
            with nogil:
                pthread_join(self.s.thread, NULL)

/* Makes one call of the C library fail, as a full or a broken disk would.  Preloaded into a broker.
 *
 * INJECTOR_STATE names a file of five numbers (int64), which the test maps too:
 *     0  calls so far of the chosen kind      1  the first call that fails (from 1; 0: none)
 *     2  how many fail from there on          3  errno                      4  the kind
 * Only files below INJECTOR_FOLDER count.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITES = 1, SYNCS = 2, READS = 3 };

static volatile int64_t *state;
static char folder[4096];
static size_t folder_n;

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("INJECTOR_STATE"), *below = getenv("INJECTOR_FOLDER");
    int fd = name ? open(name, O_RDWR) : -1;
    if (fd < 0 || !below)
        return;
    snprintf(folder, sizeof folder, "%s", below);
    folder_n = strlen(folder);
    void *m = mmap(NULL, 5 * sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (m != MAP_FAILED)
        state = m;
}

static int counts(const char *path)
{
    return strncmp(path, folder, folder_n) == 0;
}

static int fails(int kind)
{
    int64_t call;
    if (state[4] != kind)
        return 0;
    call = __atomic_add_fetch(&state[0], 1, __ATOMIC_SEQ_CST);
    if (!state[1] || call < state[1] || call >= state[1] + state[2])
        return 0;
    errno = (int)state[3];
    return 1;
}

static int fails_at(int kind, int fd)
{
    char link[64], path[4096];
    ssize_t n;
    if (!state || state[4] != kind)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return 0;
    path[n] = 0;
    return counts(path) && fails(kind);
}

static int fails_on(int kind, const char *path)
{
    return state && path && counts(path) && fails(kind);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *p, size_t n) { return fails_at(WRITES, fd) ? -1 : REAL(write)(fd, p, n); }
ssize_t writev(int fd, const struct iovec *v, int n) { return fails_at(WRITES, fd) ? -1 : REAL(writev)(fd, v, n); }
ssize_t pwrite(int fd, const void *p, size_t n, off_t at) { return fails_at(WRITES, fd) ? -1 : REAL(pwrite)(fd, p, n, at); }
ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at) { return fails_at(WRITES, fd) ? -1 : REAL(pwrite64)(fd, p, n, at); }
int ftruncate(int fd, off_t n) { return fails_at(WRITES, fd) ? -1 : REAL(ftruncate)(fd, n); }
int ftruncate64(int fd, off64_t n) { return fails_at(WRITES, fd) ? -1 : REAL(ftruncate64)(fd, n); }
int fallocate(int fd, int mode, off_t at, off_t n) { return fails_at(WRITES, fd) ? -1 : REAL(fallocate)(fd, mode, at, n); }
int posix_fallocate(int fd, off_t at, off_t n) { return fails_at(WRITES, fd) ? errno : REAL(posix_fallocate)(fd, at, n); }
int mkdir(const char *path, mode_t mode) { return fails_on(WRITES, path) ? -1 : REAL(mkdir)(path, mode); }
int rename(const char *old, const char *new) { return fails_on(WRITES, new) ? -1 : REAL(rename)(old, new); }
int link(const char *old, const char *new) { return fails_on(WRITES, new) ? -1 : REAL(link)(old, new); }
int fsync(int fd) { return fails_at(SYNCS, fd) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fails_at(SYNCS, fd) ? -1 : REAL(fdatasync)(fd); }
int syncfs(int fd) { return fails_at(SYNCS, fd) ? -1 : REAL(syncfs)(fd); }
ssize_t read(int fd, void *p, size_t n) { return fails_at(READS, fd) ? -1 : REAL(read)(fd, p, n); }
ssize_t pread(int fd, void *p, size_t n, off_t at) { return fails_at(READS, fd) ? -1 : REAL(pread)(fd, p, n, at); }
ssize_t pread64(int fd, void *p, size_t n, off64_t at) { return fails_at(READS, fd) ? -1 : REAL(pread64)(fd, p, n, at); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        mode_t mode = 0; \
        if (flags & O_CREAT) { \
            va_list more; \
            va_start(more, flags); \
            mode = va_arg(more, mode_t); \
            va_end(more); \
            if (access(path, F_OK) != 0 && fails_on(WRITES, path)) \
                return -1; \
        } \
        return REAL(name)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

/* Octets and checksums, and checks of content properties.  They are C because
 * the compiler makes of them single instructions and tight loops.
 *
 * AMQP is big-endian on the wire.  Our files are little-endian, as x86-64 and
 * AArch64 have their words.  CRC32C (Castagnoli) uses the processor's
 * instruction if it has one, which the import finds out, else a table of
 * 8 x 256 words.
 */
#ifndef BROKERD_HOT_H
#define BROKERD_HOT_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "brokerd's files are little-endian and written as the machine has them"
#endif

#ifndef MADV_POPULATE_READ /* Linux 5.14.  Older kernels answer EINVAL, and the pages fault one by one. */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Asserts our own mistakes: counters that must agree, bounds, ownership.  Builds for tests and sanitizers check them
 * (BROKERD_ASSERTS), releases do not.  No octets of a peer can make one fail. */
#ifdef BROKERD_ASSERTS
#include <stdio.h>
#define ASSERT(x)                                                            \
    do {                                                                     \
        if (UNLIKELY(!(x))) {                                                \
            fprintf(stderr, "Assertion failed: %s (%s)\n", #x, __func__);    \
            abort();                                                         \
        }                                                                    \
    } while (0)
#else
#define ASSERT(x) ((void)0)
#endif

static inline uint16_t be16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t be32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t be64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline void put_be16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void put_be32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void put_be64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
static inline uint16_t le16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline uint32_t le32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t le64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline void put_le16(uint8_t *p, uint16_t v) { memcpy(p, &v, 2); }
static inline void put_le32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void put_le64(uint8_t *p, uint64_t v) { memcpy(p, &v, 8); }

/* Copies few octets without a call: at most 32, else as memcpy() does. */
static inline void copy_few(uint8_t *to, const uint8_t *from, size_t n)
{
    if (n > 32) {
        memcpy(to, from, n);
    } else if (n >= 16) {
        uint64_t a[2], b[2];
        memcpy(a, from, 16);
        memcpy(b, from + n - 16, 16);
        memcpy(to, a, 16);
        memcpy(to + n - 16, b, 16);
    } else if (n >= 8) {
        uint64_t a = le64(from), b = le64(from + n - 8);
        put_le64(to, a);
        put_le64(to + n - 8, b);
    } else if (n >= 4) {
        uint32_t a = le32(from), b = le32(from + n - 4);
        put_le32(to, a);
        put_le32(to + n - 4, b);
    } else if (n) {
        uint8_t a = from[0], b = from[n >> 1], c = from[n - 1];
        to[0] = a;
        to[n >> 1] = b;
        to[n - 1] = c;
    }
}

/* The value, of which the compiler must not know that its neighbour in memory is read too.  It would read both at once, and where
 * each was stored alone just before, the processor then waits until both stores have left for the cache. */
static inline uint64_t alone(uint64_t v)
{
    __asm__("" : "+r"(v));
    return v;
}

/* Stores a counter and its complement at once, so that a reader notices a torn word or a flipped bit. */
static inline void put_word(uint8_t *p, uint32_t v) { put_le64(p, (uint64_t)v | (uint64_t)(uint32_t)~v << 32); }

/* Have the page of p so that a store meets no fault: what p points at stays as it is. */
static inline void make_writable(uint8_t *p)
{
    *(volatile uint8_t *)p = *(volatile uint8_t *)p;
}

static inline void set_errno(int number)
{
    errno = number;
}

static inline int64_t realtime_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* For measuring how long something takes. */
static inline int64_t monotonic_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* What this thread has had of a processor. */
static inline int64_t processor_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- CRC32C.  These functions take and return the state; the caller inverts it at both ends. */

static uint32_t crc_table[8][256];
static int crc_in_hardware;

static uint32_t crc_by_table(uint32_t state, const uint8_t *p, size_t n)
{
    while (n >= 8) {
        uint32_t low = le32(p) ^ state, high = le32(p + 4);
        state = crc_table[7][low & 255] ^ crc_table[6][low >> 8 & 255] ^ crc_table[5][low >> 16 & 255] ^
                crc_table[4][low >> 24] ^ crc_table[3][high & 255] ^ crc_table[2][high >> 8 & 255] ^
                crc_table[1][high >> 16 & 255] ^ crc_table[0][high >> 24];
        p += 8;
        n -= 8;
    }
    while (n--)
        state = crc_table[0][(state ^ *p++) & 255] ^ state >> 8;
    return state;
}

#if defined(__x86_64__)
#include <nmmintrin.h>
/* The instruction takes three cycles, but a new one can begin in each cycle.  So three runs of octets go side by side,
 * the second and third from state zero.  A table of what LONG (SHORT) zero octets make of a state then joins the three. */
#define CRC_LONG 256
#define CRC_SHORT 64
static uint32_t crc_past_long[4][256], crc_past_short[4][256];

static inline uint32_t crc_past(uint32_t table[4][256], uint32_t s)
{
    return table[0][s & 255] ^ table[1][s >> 8 & 255] ^ table[2][s >> 16 & 255] ^ table[3][s >> 24];
}

#define CRC_THREE(n, table)                                                     \
    do {                                                                        \
        uint64_t t = 0, u = 0;                                                  \
        for (size_t i = 0; i < (n); i += 8) {                                   \
            s = _mm_crc32_u64(s, le64(p + i));                                  \
            t = _mm_crc32_u64(t, le64(p + (n) + i));                            \
            u = _mm_crc32_u64(u, le64(p + 2 * (n) + i));                        \
        }                                                                       \
        s = crc_past(table, crc_past(table, (uint32_t)s) ^ (uint32_t)t) ^ u;    \
        p += 3 * (n);                                                           \
        left -= 3 * (n);                                                        \
    } while (0)

__attribute__((target("sse4.2"))) static uint32_t crc_by_instruction(uint32_t state, const uint8_t *p, size_t left)
{
    uint64_t s = state;
    while (left >= 3 * CRC_LONG)
        CRC_THREE(CRC_LONG, crc_past_long);
    while (left >= 3 * CRC_SHORT)
        CRC_THREE(CRC_SHORT, crc_past_short);
    while (left >= 8) {
        s = _mm_crc32_u64(s, le64(p));
        p += 8;
        left -= 8;
    }
    if (left >= 4) {
        s = _mm_crc32_u32((uint32_t)s, le32(p));
        p += 4;
        left -= 4;
    }
    while (left--)
        s = _mm_crc32_u8((uint32_t)s, *p++);
    return (uint32_t)s;
}

/* A CRC is linear over GF(2): what it makes of each of the 32 bits tells what it makes of every state. */
static void crc_make_past(uint32_t table[4][256], size_t n)
{
    static const uint8_t zeros[CRC_LONG];
    for (int k = 0; k < 4; k++) {
        for (int bit = 0; bit < 8; bit++)
            table[k][1 << bit] = crc_by_table((uint32_t)1 << (8 * k + bit), zeros, n);
        for (int v = 1; v < 256; v++)
            table[k][v] = table[k][v & -v] ^ (v & (v - 1) ? table[k][v & (v - 1)] : 0);
    }
}

static void crc_prepare(void)
{
    crc_make_past(crc_past_long, CRC_LONG);
    crc_make_past(crc_past_short, CRC_SHORT);
}
static int crc_instruction_there(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
static uint32_t crc_by_instruction(uint32_t state, const uint8_t *p, size_t n)
{
    while (n >= 8) {
        state = __crc32cd(state, le64(p));
        p += 8;
        n -= 8;
    }
    while (n--)
        state = __crc32cb(state, *p++);
    return state;
}
static int crc_instruction_there(void) { return 1; }
static void crc_prepare(void) {}
#else
#define crc_by_instruction crc_by_table
static void crc_prepare(void) {}
static int crc_instruction_there(void) { return 0; }
#endif

static inline uint32_t crc_update(uint32_t state, const uint8_t *p, size_t n)
{
    return LIKELY(crc_in_hardware) ? crc_by_instruction(state, p, n) : crc_by_table(state, p, n);
}

/* a times b modulo the polynomial; bit 31 is the constant term */
static uint32_t crc_times(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a; a <<= 1) {
        if (a & 0x80000000u)
            product ^= b;
        b = b & 1 ? 0x82F63B78u ^ b >> 1 : b >> 1;
    }
    return product;
}

/* What n octets of zeros make of a state.  A CRC is linear: the state after octets is this, XOR their CRC from state 0. */
static uint32_t crc_past_zeros(uint32_t state, uint64_t n)
{
    uint32_t power = 1u << 23; /* x to the 8 */
    for (; n; n >>= 1) {
        if (n & 1)
            state = crc_times(power, state);
        power = crc_times(power, power);
    }
    return state;
}

static void crc_init(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = c & 1 ? 0x82F63B78u ^ c >> 1 : c >> 1;
        crc_table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            crc_table[k][i] = crc_table[0][crc_table[k - 1][i] & 255] ^ crc_table[k - 1][i] >> 8;
    crc_prepare();
    crc_in_hardware = crc_instruction_there();
}

/* The check octet of an entry of an acks file: see store/format.py. */
static inline uint8_t entry_check(uint32_t segment, uint64_t entry_without_check)
{
    uint8_t octets[8];
    put_le64(octets, entry_without_check);
    uint32_t c = crc_update(segment, octets, 8);
    return (uint8_t)(c ^ c >> 8 ^ c >> 16 ^ c >> 24);
}

/* Writes zeros over [from, to) of a file.  Unlike a hole, these blocks are
 * allocated, so that a later store through the map cannot fail for lack of space
 * (SIGBUS).  0, or the errno. */
static int write_zeros(int fd, size_t from, size_t to)
{
    static const uint8_t zeros[1 << 18];
    while (from < to) {
        size_t n = to - from < sizeof zeros ? to - from : sizeof zeros;
        ssize_t w = pwrite(fd, zeros, n, (off_t)from);
        if (w < 0) {
            if (errno == EINTR)
                continue;
            return errno;
        }
        if (w == 0)
            return ENOSPC;
        from += (size_t)w;
    }
    return 0;
}

/* ---- content properties: whether they are whole, and those that the plane reads */

static int table_is_whole(const uint8_t *p, const uint8_t *end, int depth);

/* Moves *pp behind the field value that begins there; 0 if it does not end before `end`.  AMQP 0-9-1, section 4.2.5.5,
 * with RabbitMQ's letters. */
static int value_is_whole(const uint8_t **pp, const uint8_t *end, int depth, uint8_t kind)
{
    const uint8_t *p = *pp;
    size_t n;
    switch (kind) {
    case 'V': n = 0; break;
    case 't': case 'b': case 'B': n = 1; break;
    case 's': case 'u': case 'U': n = 2; break;
    case 'I': case 'i': case 'f': n = 4; break;
    case 'D': n = 5; break;
    case 'l': case 'L': case 'd': case 'T': n = 8; break;
    case 'S': case 'x': case 'F': case 'A':
        if (end - p < 4)
            return 0;
        n = be32(p);
        p += 4;
        break;
    default: return 0;
    }
    if ((size_t)(end - p) < n)
        return 0;
    if (kind == 'F' && (depth == 0 || !table_is_whole(p, p + n, depth - 1)))
        return 0;
    if (kind == 'A') {
        const uint8_t *q = p, *stop = p + n;
        if (depth == 0)
            return 0;
        while (q < stop) {
            uint8_t k = *q++;
            if (!value_is_whole(&q, stop, depth - 1, k))
                return 0;
        }
    }
    *pp = p + n;
    return 1;
}

static int table_is_whole(const uint8_t *p, const uint8_t *end, int depth)
{
    while (p < end) {
        size_t name = *p++;
        if ((size_t)(end - p) < name + 1)
            return 0;
        p += name;
        uint8_t kind = *p++;
        if (!value_is_whole(&p, end, depth, kind))
            return 0;
    }
    return 1;
}

#define PROPERTY_DEPTH 64
#define EXPIRATION_MS_MAX 315360000000ull /* ten years (RabbitMQ) */

/* What the plane reads of a message's properties. */
typedef struct {
    uint8_t delivery_mode, priority;
    uint8_t expires; /* it has an expiration: a plain number of at most ten years */
    uint8_t ask;     /* routing must be asked for this message alone, because it has a user-id, CC or BCC,
                      * a reply-to for direct replies, or an expiration that is not such a number */
} known_t;

/* The decimal number in a short string; -1 unless the string is nothing but digits, and the number at most `most`. */
static int64_t number_of(const uint8_t *p, uint64_t most)
{
    uint64_t value = 0;
    unsigned n = *p++;
    if (n == 0 || n > 18)
        return -1;
    for (; n; n--, p++) {
        if (*p < '0' || *p > '9')
            return -1;
        value = value * 10 + (uint64_t)(*p - '0');
    }
    return value <= most ? (int64_t)value : -1;
}

/* Whether the table p..end, which is whole, has a CC or BCC header: more routing keys (RabbitMQ). */
static int names_copies(const uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        size_t n = *p;
        const uint8_t *name = p + 1;
        uint8_t kind = name[n];
        p = name + n + 1;
        if ((n == 2 && name[0] == 'C' && name[1] == 'C') ||
            (n == 3 && name[0] == 'B' && name[1] == 'C' && name[2] == 'C'))
            return 1;
        value_is_whole(&p, end, PROPERTY_DEPTH, kind);
    }
    return 0;
}

static int properties_in_full(const uint8_t *p, const uint8_t *end, known_t *known)
{
    memset(known, 0, sizeof *known);
    known->delivery_mode = 1;
    if (end - p < 2)
        return 0;
    uint16_t flags = be16(p);
    p += 2;
    if (flags & 3)
        return 0; /* basic has 14 properties: it can have no second word of flags, and no fifteenth flag */
    for (int bit = 15; flags; bit--) {
        if (!(flags & 1 << bit))
            continue;
        flags = (uint16_t)(flags & ~(1 << bit));
        size_t n;
        switch (bit) {
        case 13: /* headers */
            if (end - p < 4)
                return 0;
            n = be32(p);
            p += 4;
            if ((size_t)(end - p) < n || !table_is_whole(p, p + n, PROPERTY_DEPTH))
                return 0;
            known->ask |= names_copies(p, p + n);
            break;
        case 12: case 11: /* delivery-mode, priority */
            n = 1;
            if (p == end)
                return 0;
            *(bit == 12 ? &known->delivery_mode : &known->priority) = *p;
            break;
        case 6: n = 8; break; /* timestamp */
        default:              /* the rest are short strings */
            if (p == end)
                return 0;
            n = 1u + *p;
        }
        if ((size_t)(end - p) < n)
            return 0;
        switch (bit) {
        case 9: /* reply-to: direct replies, by RabbitMQ's name and by LavinMQ's */
            known->ask |= (n > 21 && !memcmp(p + 1, "amq.rabbitmq.reply-to", 21)) ||
                          (n > 19 && !memcmp(p + 1, "amq.direct.reply-to", 19));
            break;
        case 8: {
            int plain = number_of(p, EXPIRATION_MS_MAX) >= 0;
            known->expires = (uint8_t)plain;
            known->ask |= !plain;
            break;
        }
        case 4: known->ask = 1; break;
        }
        p += n;
    }
    return p == end;
}

/* Whether the property flags and list p..end of a content header are whole and end exactly at `end`.  The two short
 * cases come first because most messages have only a delivery-mode, or nothing. */
static inline int properties_are_whole(const uint8_t *p, const uint8_t *end, known_t *known)
{
    if (LIKELY(end - p == 3 && p[0] == 0x10 && p[1] == 0)) {
        known->delivery_mode = p[2];
        known->priority = known->expires = known->ask = 0;
        return 1;
    }
    if (LIKELY(end - p == 2 && p[0] == 0 && p[1] == 0)) {
        known->delivery_mode = 1;
        known->priority = known->expires = known->ask = 0;
        return 1;
    }
    return properties_in_full(p, end, known);
}

/* Where the property with the flag bit `wanted` begins in a whole list; NULL: the list does not have it. */
static const uint8_t *property_at(const uint8_t *p, int wanted)
{
    uint16_t flags = be16(p);
    p += 2;
    if (!(flags & 1 << wanted))
        return NULL;
    for (int bit = 15; bit > wanted; bit--)
        if (flags & 1 << bit)
            switch (bit) {
            case 13: p += 4 + be32(p); break;
            case 12: case 11: p += 1; break;
            case 6: p += 8; break;
            default: p += 1 + *p;
            }
    return p;
}
#endif

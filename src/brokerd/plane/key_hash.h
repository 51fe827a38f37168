/* The hash of a deduplication key: SipHash-2-4 (Aumasson, Bernstein) with a secret of 16 octets.  Where the vhost's secret is
 * of version 1, it is BLAKE2b, which takes some ten times as long. */
#ifndef BROKERD_KEY_HASH_H
#define BROKERD_KEY_HASH_H

#include "blake2b.h"

typedef struct {
    int is_blake2b;
    uint64_t k0, k1;
    blake2b_key_t blake2b;
} hash_key_t;

#define SIP_ROTATE(x, n) ((x) << (n) | (x) >> (64 - (n)))
#define SIP_ROUND                \
    do {                         \
        v0 += v1;                \
        v1 = SIP_ROTATE(v1, 13); \
        v1 ^= v0;                \
        v0 = SIP_ROTATE(v0, 32); \
        v2 += v3;                \
        v3 = SIP_ROTATE(v3, 16); \
        v3 ^= v2;                \
        v0 += v3;                \
        v3 = SIP_ROTATE(v3, 21); \
        v3 ^= v0;                \
        v2 += v1;                \
        v1 = SIP_ROTATE(v1, 17); \
        v1 ^= v2;                \
        v2 = SIP_ROTATE(v2, 32); \
    } while (0)
#define SIP_BLOCK(m)   \
    do {               \
        v3 ^= (m);     \
        SIP_ROUND;     \
        SIP_ROUND;     \
        v0 ^= (m);     \
    } while (0)

static void hash_key_set(hash_key_t *k, const uint8_t *octets, int is_blake2b)
{
    memset(k, 0, sizeof *k);
    k->is_blake2b = is_blake2b;
    memcpy(&k->k0, octets, 8); /* little-endian, as this machine is (hot.h) */
    memcpy(&k->k1, octets + 8, 8);
    if (is_blake2b)
        blake2b_key_set(&k->blake2b, octets);
}

/* Up to 7 octets as a little-endian number. */
static inline uint64_t sip_tail(const uint8_t *p, size_t n)
{
    uint64_t m = 0;
    size_t i;
    for (i = 0; i < n; i++)
        m |= (uint64_t)p[i] << 8 * i;
    return m;
}

/* The hash of an octet and the n octets after it, and 1 in place of 0. */
static inline uint64_t siphash(const hash_key_t *k, uint8_t first, const uint8_t *p, size_t n)
{
    uint64_t v0 = k->k0 ^ 0x736f6d6570736575u, v1 = k->k1 ^ 0x646f72616e646f6du;
    uint64_t v2 = k->k0 ^ 0x6c7967656e657261u, v3 = k->k1 ^ 0x7465646279746573u;
    uint64_t m, last = (uint64_t)(n + 1) << 56;
    if (n >= 7) { /* The first block is the octet and seven more. */
        m = first | sip_tail(p, 7) << 8;
        SIP_BLOCK(m);
        for (p += 7, n -= 7; n >= 8; p += 8, n -= 8) {
            memcpy(&m, p, 8);
            SIP_BLOCK(m);
        }
        last |= sip_tail(p, n);
    } else {
        last |= first | sip_tail(p, n) << 8;
    }
    SIP_BLOCK(last);
    v2 ^= 0xff;
    SIP_ROUND;
    SIP_ROUND;
    SIP_ROUND;
    SIP_ROUND;
    m = v0 ^ v1 ^ v2 ^ v3;
    return m ? m : 1;
}

static inline uint64_t hash_with_key(const hash_key_t *k, uint8_t first, const uint8_t *p, size_t n)
{
    if (__builtin_expect(k->is_blake2b, 0))
        return blake2b_with_key(&k->blake2b, first, p, n);
    return siphash(k, first, p, n);
}
#endif

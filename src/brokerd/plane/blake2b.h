/* BLAKE2b (RFC 7693) with a key of 16 octets and a digest of 8: the hash of a deduplication key where the vhost's secret is of
 * version 1 (key_hash.h).
 *
 * The state after the block of the hash key is kept, so that a key of up to 127 octets costs one block. */
#ifndef BROKERD_BLAKE2B_H
#define BROKERD_BLAKE2B_H

#include <stdint.h>
#include <string.h>

#define BLAKE2B_BLOCK 128
#define HASH_KEY_OCTETS 16
#define DIGEST_OCTETS 8

typedef struct {
    uint64_t state[8];
} blake2b_key_t;

static const uint64_t blake2b_iv[8] = {
    0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u,
    0x510e527fade682d1u, 0x9b05688c2b3e6c1fu, 0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u,
};

#define BLAKE2B_ROTATE(x, n) ((x) >> (n) | (x) << (64 - (n)))
#define BLAKE2B_MIX(a, b, c, d, x, y)        \
    do {                                     \
        a += b + m[x];                       \
        d = BLAKE2B_ROTATE(d ^ a, 32);       \
        c += d;                              \
        b = BLAKE2B_ROTATE(b ^ c, 24);       \
        a += b + m[y];                       \
        d = BLAKE2B_ROTATE(d ^ a, 16);       \
        c += d;                              \
        b = BLAKE2B_ROTATE(b ^ c, 63);       \
    } while (0)
#define BLAKE2B_ROUND(s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15) \
    do {                                                                                    \
        BLAKE2B_MIX(v[0], v[4], v[8], v[12], s0, s1);                                       \
        BLAKE2B_MIX(v[1], v[5], v[9], v[13], s2, s3);                                       \
        BLAKE2B_MIX(v[2], v[6], v[10], v[14], s4, s5);                                      \
        BLAKE2B_MIX(v[3], v[7], v[11], v[15], s6, s7);                                      \
        BLAKE2B_MIX(v[0], v[5], v[10], v[15], s8, s9);                                      \
        BLAKE2B_MIX(v[1], v[6], v[11], v[12], s10, s11);                                    \
        BLAKE2B_MIX(v[2], v[7], v[8], v[13], s12, s13);                                     \
        BLAKE2B_MIX(v[3], v[4], v[9], v[14], s14, s15);                                     \
    } while (0)

/* Takes in one block; `octets`: of all blocks so far, with this one. */
static void blake2b_block(uint64_t h[8], const uint8_t *block, uint64_t octets, int last)
{
    uint64_t m[16], v[16];
    memcpy(m, block, BLAKE2B_BLOCK); /* little-endian, as this machine is (hot.h) */
    memcpy(v, h, 64);
    memcpy(v + 8, blake2b_iv, 64);
    v[12] ^= octets;
    if (last)
        v[14] = ~v[14];
    BLAKE2B_ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    BLAKE2B_ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3);
    BLAKE2B_ROUND(11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4);
    BLAKE2B_ROUND(7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8);
    BLAKE2B_ROUND(9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13);
    BLAKE2B_ROUND(2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9);
    BLAKE2B_ROUND(12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11);
    BLAKE2B_ROUND(13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10);
    BLAKE2B_ROUND(6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5);
    BLAKE2B_ROUND(10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0);
    BLAKE2B_ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    BLAKE2B_ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3);
    for (int i = 0; i < 8; i++)
        h[i] ^= v[i] ^ v[8 + i];
}

static void blake2b_key_set(blake2b_key_t *k, const uint8_t *octets)
{
    uint8_t block[BLAKE2B_BLOCK] = {0};
    memcpy(block, octets, HASH_KEY_OCTETS);
    memcpy(k->state, blake2b_iv, 64);
    k->state[0] ^= 0x01010000u ^ HASH_KEY_OCTETS << 8 ^ DIGEST_OCTETS;
    blake2b_block(k->state, block, BLAKE2B_BLOCK, 0);
}

/* The hash of an octet and the n octets after it: the digest as a little-endian number, and 1 in place of 0. */
static uint64_t blake2b_with_key(const blake2b_key_t *k, uint8_t first, const uint8_t *p, size_t n)
{
    uint64_t h[8], octets = BLAKE2B_BLOCK;
    uint8_t block[BLAKE2B_BLOCK];
    size_t have = 1;
    memcpy(h, k->state, 64);
    block[0] = first;
    while (have + n > BLAKE2B_BLOCK) {
        memcpy(block + have, p, BLAKE2B_BLOCK - have);
        p += BLAKE2B_BLOCK - have;
        n -= BLAKE2B_BLOCK - have;
        have = 0;
        octets += BLAKE2B_BLOCK;
        blake2b_block(h, block, octets, 0);
    }
    memcpy(block + have, p, n);
    memset(block + have + n, 0, BLAKE2B_BLOCK - have - n);
    blake2b_block(h, block, octets + have + n, 1);
    return h[0] ? h[0] : 1;
}
#endif

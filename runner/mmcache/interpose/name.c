/* What the engine calls a medium. llama-server reuses what it computed for an earlier prompt with the same beginning, and
 * tells media apart by a hash of 64 bits that anyone can make collide: one client's picture would stand for another's. Each
 * medium gets another name before it is tokenized: a keyed hash of its content, under a key that only this process has.
 * The hash is SipHash-2-4 with 128 bits (Aumasson and Bernstein, https://github.com/veorq/SipHash). */
#define _GNU_SOURCE
#include "mm.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t key[2];
static bool keyed;

static void make_key(void) { keyed = getrandom(key, sizeof key, 0) == (ssize_t)sizeof key; }

static inline uint64_t rotl(uint64_t x, int b) { return x << b | x >> (64 - b); }

static inline void rounds(uint64_t v[4], int n) {
    while (n-- > 0) {
        v[0] += v[1], v[2] += v[3];
        v[1] = rotl(v[1], 13) ^ v[0], v[3] = rotl(v[3], 16) ^ v[2];
        v[0] = rotl(v[0], 32);
        v[2] += v[1], v[0] += v[3];
        v[1] = rotl(v[1], 17) ^ v[2], v[3] = rotl(v[3], 21) ^ v[0];
        v[2] = rotl(v[2], 32);
    }
}

void mm_siphash(const uint64_t k[2], const void *data, size_t n, uint64_t out[2]) {
    uint64_t v[4] = {k[0] ^ 0x736f6d6570736575u, k[1] ^ 0x646f72616e646f6du ^ 0xee, k[0] ^ 0x6c7967656e657261u, k[1] ^ 0x7465646279746573u};
    const unsigned char *p = data;
    uint64_t m, last = (uint64_t)n << 56;
    for (; n >= sizeof m; n -= sizeof m, p += sizeof m) {
        memcpy(&m, p, sizeof m);
        v[3] ^= m;
        rounds(v, 2);
        v[0] ^= m;
    }
    for (size_t i = 0; i < n; i++) last |= (uint64_t)p[i] << 8 * i;
    v[3] ^= last;
    rounds(v, 2);
    v[0] ^= last;
    v[2] ^= 0xee;
    rounds(v, 4);
    out[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    rounds(v, 4);
    out[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}

void mm_name(const void **bitmaps, size_t n) {
    const struct mm_real *real = mm_real();
    if (!real->bitmap_set_id || !real->complete) return;
    pthread_once(&once, make_key);
    for (size_t i = 0; i < n && keyed; i++) {
        if (!bitmaps[i]) continue;
        const char *old = real->bitmap_get_id(bitmaps[i]);
        const unsigned char *data = real->bitmap_get_data(bitmaps[i]);
        size_t size = real->bitmap_get_n_bytes(bitmaps[i]);
        if (!data || size == 0 || !old || !*old) continue; /* lazy ones and placeholders; the engine compares no nameless ones */
        uint64_t hash[2];
        char id[96];
        mm_siphash(key, data, size, hash);
        snprintf(id, sizeof id, "%s-%ux%u-%016llx%016llx", real->bitmap_is_audio(bitmaps[i]) ? "sound" : "picture", real->bitmap_get_nx(bitmaps[i]),
                 real->bitmap_get_ny(bitmaps[i]), (unsigned long long)hash[0], (unsigned long long)hash[1]);
        real->bitmap_set_id((void *)(uintptr_t)bitmaps[i], id);
    }
}

/* What is known of each medium of the requests at hand, and which chunk belongs to which.
 *
 * A chunk is known by its address: its id is only a second opinion. Chunks are made by a tokenize or by a copy, and both come through this library, so that an
 * address never stands for an older chunk. */
#define _GNU_SOURCE
#include "media.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BUCKETS 1024
#define MAX_KNOWN 65536       /* chunks remembered at a time */

struct known {
    const void *chunk;
    struct mm_media *media;
    uint32_t index;
    struct known *next;
};

/* mm_mu guards everything below and the members of mm_media that media.h marks. Sends made under it do not wait. */
pthread_mutex_t mm_mu = PTHREAD_MUTEX_INITIALIZER;
static struct known *table[BUCKETS];
static size_t entries;

static size_t bucket(const void *p) { return (size_t)(((uintptr_t)p >> 4) * 0x9E3779B97F4A7C15u >> 32) % BUCKETS; }

void mm_unmap_locked(struct mapping *m) {
    if (m && --m->refs == 0) {
        munmap(m->at, m->size);
        free(m);
    }
}

/* mm_map takes a sealed file; the copy-on-write mapping stays right whatever the engine does to it. */
struct mapping *mm_map(int fd, uint64_t size) {
    struct mapping *m = malloc(sizeof *m);
    if (!m) return NULL;
    m->at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    m->size = size;
    m->refs = 1;
    if (m->at == MAP_FAILED) {
        free(m);
        return NULL;
    }
    return m;
}

static void end_lease_locked(struct mm_media *m, bool store) {
    if (!m->lease) return;
    struct mm_item item = {.kind = (uint8_t)m->type, .chunks = (uint16_t)m->count, .bytes = m->bytes};
    item.encode_us = m->encode_us > UINT32_MAX ? UINT32_MAX : (uint32_t)m->encode_us;
    memcpy(item.ident, m->ident, MM_IDENT);
    struct mm_request q = {.op = store ? MM_STORE : MM_ABANDON, .width = m->width, .items = &item, .count = 1,
                           .tokens = m->tokens, .chunks = m->count, .fd = store ? m->fd : -1};
    struct lease *l = m->lease;
    m->lease = NULL;
    if (!l->broken && !mm_tell(l->conn, &q)) l->broken = true;
    if (--l->refs == 0) {
        mm_disconnect(l->conn, !l->broken);
        free(l);
    }
}

void mm_drop_locked(struct mm_media *m) {
    if (!m || --m->refs > 0) return;
    end_lease_locked(m, false);
    mm_unmap_locked(m->map);
    if (m->fd >= 0) close(m->fd);
    free(m->have);
    free(m->offset);
    free(m->tokens);
    free(m->id);
    free(m);
}

struct mm_media *mm_new_media(const char *id, int type, const uint32_t *tokens, uint32_t count, uint32_t width) {
    struct mm_media *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->refs = 1;
    m->fd = -1;
    m->type = type;
    m->count = count;
    m->width = width;
    m->id = strdup(id);
    m->tokens = malloc(count * sizeof *m->tokens);
    m->offset = malloc(count * sizeof *m->offset);
    m->have = calloc(count, sizeof *m->have);
    if (!m->id || !m->tokens || !m->offset || !m->have) {
        mm_drop_locked(m); /* nobody else knows it */
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++) {
        m->tokens[i] = tokens[i];
        m->offset[i] = m->bytes;
        m->bytes += (uint64_t)tokens[i] * width * sizeof(float);
    }
    return m;
}

static void forget_locked(const void *chunk) {
    for (struct known **p = &table[bucket(chunk)]; *p; p = &(*p)->next) {
        struct known *k = *p;
        if (k->chunk != chunk) continue;
        *p = k->next;
        entries--;
        mm_drop_locked(k->media);
        free(k);
        return;
    }
}

void mm_know_locked(const void *chunk, struct mm_media *m, uint32_t index) {
    struct known *k;
    if (entries >= MAX_KNOWN || !(k = malloc(sizeof *k))) return; /* unknown chunks are encoded by the engine */
    *k = (struct known){chunk, m, index, table[bucket(chunk)]};
    table[bucket(chunk)] = k;
    entries++;
    m->refs++;
}

static struct known *find_locked(const void *chunk) {
    struct known *k = table[bucket(chunk)];
    while (k && k->chunk != chunk) k = k->next;
    return k;
}

void mm_forget(const void *chunk) {
    pthread_mutex_lock(&mm_mu);
    forget_locked(chunk);
    pthread_mutex_unlock(&mm_mu);
}

void mm_alias(const void *copy, const void *chunk) {
    pthread_mutex_lock(&mm_mu);
    forget_locked(copy);
    struct known *k = find_locked(chunk);
    if (k) mm_know_locked(copy, k->media, k->index);
    pthread_mutex_unlock(&mm_mu);
}

struct mm_hold mm_hold(const void *chunk) {
    const struct mm_real *real = mm_real();
    struct mm_hold h = {NULL, 0};
    pthread_mutex_lock(&mm_mu);
    struct known *k = find_locked(chunk);
    if (k) {
        h.media = k->media;
        h.index = k->index;
        h.media->refs++;
    }
    pthread_mutex_unlock(&mm_mu);
    if (!h.media) return h;
    const char *id = real->chunk_get_id(chunk);
    if (!id || strcmp(id, h.media->id) != 0 || real->chunk_get_type(chunk) != h.media->type ||
        real->chunk_get_n_tokens(chunk) != h.media->tokens[h.index])
        mm_release(&h);
    return h;
}

void mm_release(struct mm_hold *h) {
    if (!h->media) return;
    pthread_mutex_lock(&mm_mu);
    mm_drop_locked(h->media);
    pthread_mutex_unlock(&mm_mu);
    h->media = NULL;
}

float *mm_output(const struct mm_hold *h) {
    if (!h->media) return NULL;
    pthread_mutex_lock(&mm_mu);
    float *all = h->media->floats;
    pthread_mutex_unlock(&mm_mu);
    return all ? all + h->media->offset[h->index] / sizeof(float) : NULL;
}

/* take_locked makes a hit of a medium whose answer says so, if that fits the medium in every respect. */
void mm_take_locked(struct mm_media *m, const struct mm_answer *a, struct mapping *map, uint64_t size) {
    if (a->state != MM_HIT || m->floats || !map || a->bytes != m->bytes || a->offset % sizeof(float) != 0 ||
        a->offset > size || size - a->offset < a->bytes)
        return;
    m->floats = (float *)(void *)((char *)map->at + a->offset);
    m->map = map;
    map->refs++;
}

/* ---- around an encode ---- */

static bool among(const struct mm_media *m, struct mm_media *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (list[i] == m) return true;
    return false;
}

/* covers tells whether the held chunks are all chunks of m. */
static bool covers(const struct mm_hold *h, size_t n, const struct mm_media *m) {
    uint32_t found = 0;
    for (uint32_t c = 0; c < m->count; c++)
        for (size_t i = 0; i < n; i++)
            if (h[i].media == m && h[i].index == c) {
                found++;
                break;
            }
    return found == m->count;
}

void mm_acquire(struct mm_hold *h, size_t n) {
    struct mm_item items[MM_MAX_MEDIA];
    struct mm_media *media[MM_MAX_MEDIA];
    struct mm_reply reply;
    size_t count = 0, chunks = 0;
    uint32_t *tokens = malloc(MM_MAX_CHUNKS * sizeof *tokens);
    struct lease *lease = calloc(1, sizeof *lease);
    pthread_mutex_lock(&mm_mu);
    for (size_t i = 0; tokens && lease && i < n && count < MM_MAX_MEDIA; i++) {
        struct mm_media *m = h[i].media;
        if (!m || m->floats || m->asked || among(m, media, count) || chunks + m->count > MM_MAX_CHUNKS) continue;
        m->asked = true;
        memset(&items[count], 0, sizeof items[count]);
        items[count].kind = (uint8_t)m->type;
        items[count].flags = covers(h, n, m) ? 0 : MM_PARTIAL;
        items[count].chunks = (uint16_t)m->count;
        items[count].bytes = m->bytes;
        memcpy(items[count].ident, m->ident, MM_IDENT);
        memcpy(tokens + chunks, m->tokens, m->count * sizeof *tokens);
        chunks += m->count;
        media[count++] = m;
    }
    pthread_mutex_unlock(&mm_mu);
    int conn = count ? mm_connect() : -1;
    if (conn < 0) {
        free(lease);
        free(tokens);
        return;
    }
    struct mm_request q = {.op = MM_ACQUIRE, .width = media[0]->width, .wait_ms = mm_encode_ms(), .items = items,
                           .count = count, .tokens = tokens, .chunks = chunks, .fd = -1};
    bool ok = mm_ask(conn, &q, mm_encode_ms() + mm_lookup_ms(), &reply);
    free(tokens);
    if (!ok) {
        mm_disconnect(conn, false);
        free(lease);
        return;
    }
    struct mapping *all = reply.bytes ? mm_map(reply.fd, reply.bytes) : NULL;
    if (reply.fd >= 0) close(reply.fd);
    *lease = (struct lease){.conn = conn, .refs = 1};
    pthread_mutex_lock(&mm_mu);
    for (size_t i = 0; i < count; i++) {
        mm_take_locked(media[i], &reply.answers[i], all, reply.bytes);
        if (reply.answers[i].state == MM_MISS && !media[i]->lease) {
            media[i]->lease = lease;
            lease->refs++;
        }
    }
    mm_unmap_locked(all);
    bool unused = --lease->refs == 0;
    pthread_mutex_unlock(&mm_mu);
    if (unused) {
        mm_disconnect(conn, true);
        free(lease);
    }
}

void mm_collect(const struct mm_hold *h, const float *out, uint32_t encode_us) {
    struct mm_media *m = h->media;
    if (!m || !out) return;
    pthread_mutex_lock(&mm_mu);
    if (m->lease && !m->have[h->index]) {
        if (m->fd < 0) m->fd = mm_memory();
        uint64_t size = (uint64_t)m->tokens[h->index] * m->width * sizeof(float);
        m->encode_us += encode_us;
        if (m->fd < 0 || !mm_write(m->fd, out, size, m->offset[h->index])) {
            end_lease_locked(m, false);
        } else {
            m->have[h->index] = true;
            if (++m->done == m->count) {
                bool sealed = mm_seal(m->fd, m->bytes);
                end_lease_locked(m, sealed);
                /* A second occurrence in the same request is a hit already. */
                if (sealed && !m->floats && (m->map = mm_map(m->fd, m->bytes))) m->floats = m->map->at;
                close(m->fd);
                m->fd = -1;
            }
        }
    }
    pthread_mutex_unlock(&mm_mu);
}

void mm_fail(const struct mm_hold *h) {
    if (!h->media) return;
    pthread_mutex_lock(&mm_mu);
    end_lease_locked(h->media, false);
    pthread_mutex_unlock(&mm_mu);
}

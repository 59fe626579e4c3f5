/* What a tokenize tells: the media of a request and the chunks they became, and the one look-up for all of them. */
#define _GNU_SOURCE
#include "media.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A look-up's time beyond the fixed part, as in session.go. */
#define MS_PER_MIB 4         /* of media, for hashing */
#define MS_PER_OUTPUT_MIB 32 /* of floats, for fetching */
#define MAX_OUTPUT_MS 10000

struct bitmap {
    const unsigned char *data;
    size_t bytes;
    uint32_t nx, ny;
    bool audio;
    const char *id;
    size_t first;    /* the first bitmap with this id; itself, mostly */
    size_t copies;   /* of a first one */
    uint32_t chunks; /* of all copies of a first one */
    struct mm_media *media;
};

/* survey looks at the bitmaps; false on any that is not fully here (lazy ones, placeholders) or not told apart. */
static bool survey(struct bitmap *b, const void **bitmaps, size_t n) {
    const struct mm_real *real = mm_real();
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        if (!bitmaps[i]) return false;
        b[i] = (struct bitmap){
            .data = real->bitmap_get_data(bitmaps[i]), .bytes = real->bitmap_get_n_bytes(bitmaps[i]),
            .nx = real->bitmap_get_nx(bitmaps[i]), .ny = real->bitmap_get_ny(bitmaps[i]),
            .audio = real->bitmap_is_audio(bitmaps[i]), .id = real->bitmap_get_id(bitmaps[i]), .first = i,
        };
        if (!b[i].data || b[i].bytes == 0 || !b[i].id || !*b[i].id) return false;
        if (b[i].audio ? b[i].bytes % sizeof(float) != 0 : b[i].bytes != (uint64_t)b[i].nx * b[i].ny * 3) return false;
        if (b[i].audio && !real->audio_sample_rate) return false;
        for (size_t j = 0; j < i; j++) {
            if (strcmp(b[j].id, b[i].id) != 0) continue;
            if (b[j].bytes != b[i].bytes || b[j].nx != b[i].nx || b[j].ny != b[i].ny || b[j].audio != b[i].audio ||
                memcmp(b[j].data, b[i].data, b[i].bytes) != 0)
                return false; /* one id for two media: chunks could be mistaken */
            b[i].first = j;
            break;
        }
        b[b[i].first].copies++;
        if (b[i].first == i) total += b[i].bytes;
    }
    return total <= mm_max_bytes();
}

struct place {
    const void *chunk;
    size_t bitmap; /* a first one */
    uint32_t ordinal, tokens;
};

static bool place_chunks(struct bitmap *b, size_t n, const void *chunks, struct place *places, size_t *placed) {
    const struct mm_real *real = mm_real();
    size_t size = real->chunks_size(chunks);
    for (size_t c = 0; c < size; c++) {
        const void *chunk = real->chunks_get(chunks, c);
        if (!chunk) return false;
        int type = real->chunk_get_type(chunk);
        if (type == MM_TEXT) continue;
        const char *id = real->chunk_get_id(chunk);
        size_t i = 0;
        while (id && i < n && strcmp(b[i].id, id) != 0) i++;
        size_t tokens = real->chunk_get_n_tokens(chunk);
        if (!id || i == n || *placed == MM_MAX_CHUNKS || tokens == 0 || tokens > UINT32_MAX / 4096) return false;
        if (type != (b[i].audio ? MM_AUDIO : MM_IMAGE)) return false;
        places[(*placed)++] = (struct place){chunk, i, b[i].chunks++, (uint32_t)tokens};
    }
    /* Fewer chunks than bitmaps mean merged video frames; the copies of a picture must have come out alike. */
    for (size_t i = 0; i < n; i++)
        if (b[i].first == i && (b[i].chunks == 0 || b[i].chunks % b[i].copies != 0)) return false;
    return true;
}

/* make_media fills in the media of the first bitmaps and the tokens of all their chunks, in order. */
static bool make_media(struct bitmap *b, size_t n, const struct place *places, size_t placed, uint32_t *tokens, size_t *total) {
    for (size_t i = 0; i < n; i++) {
        if (b[i].first != i) continue;
        uint32_t each = b[i].chunks / (uint32_t)b[i].copies;
        uint32_t *mine = tokens + *total;
        if (each > UINT16_MAX) return false;
        for (size_t p = 0; p < placed; p++) {
            if (places[p].bitmap != i) continue;
            if (places[p].ordinal < each) mine[places[p].ordinal] = places[p].tokens;
            else if (mine[places[p].ordinal % each] != places[p].tokens) return false;
        }
        *total += each;
        b[i].media = mm_new_media(b[i].id, b[i].audio ? MM_AUDIO : MM_IMAGE, mine, each, mm_width());
        if (!b[i].media) return false;
    }
    return true;
}

/* look_up asks the runner for all media in one go. */
static bool look_up(void *ctx, struct bitmap *b, size_t n, const uint32_t *tokens, size_t chunks) {
    struct mm_item items[MM_MAX_MEDIA];
    struct mm_media *media[MM_MAX_MEDIA];
    struct mm_reply reply;
    size_t count = 0;
    uint64_t offset = 0, output = 0;
    int fd = mm_memory(), conn = -1;
    bool ok = fd >= 0;
    for (size_t i = 0; ok && i < n; i++) {
        if (b[i].first != i) continue;
        struct mm_item *it = &items[count];
        memset(it, 0, sizeof *it);
        it->kind = (uint8_t)b[i].media->type;
        it->chunks = (uint16_t)b[i].media->count;
        int rate = b[i].audio ? mm_real()->audio_sample_rate(ctx) : 0;
        it->a = b[i].audio ? (uint32_t)rate : b[i].nx;
        it->b = b[i].audio ? 1 : b[i].ny;
        it->offset = offset;
        it->bytes = b[i].bytes;
        ok = rate >= 0 && mm_write(fd, b[i].data, b[i].bytes, offset);
        offset += b[i].bytes;
        output += b[i].media->bytes;
        media[count++] = b[i].media;
    }
    ok = ok && mm_seal(fd, offset) && (conn = mm_connect()) >= 0;
    if (ok) {
        struct mm_request q = {.op = MM_LOOKUP, .width = mm_width(), .items = items, .count = count,
                               .tokens = tokens, .chunks = chunks, .fd = fd, .wait_ms = mm_lookup_ms(), .token = mm_token()};
        uint64_t fetch = (output >> 20) * MS_PER_OUTPUT_MIB;
        if (fetch > MAX_OUTPUT_MS) fetch = MAX_OUTPUT_MS;
        ok = mm_ask(conn, &q, mm_lookup_ms() + (uint32_t)(offset >> 20) * MS_PER_MIB + (uint32_t)fetch, &reply);
        mm_disconnect(conn, ok);
    }
    if (fd >= 0) close(fd);
    if (!ok) return false;
    struct mapping *all = reply.bytes ? mm_map(reply.fd, reply.bytes) : NULL;
    if (reply.fd >= 0) close(reply.fd);
    pthread_mutex_lock(&mm_mu);
    for (size_t i = 0; i < count; i++) {
        memcpy(media[i]->ident, reply.answers[i].ident, MM_IDENT);
        mm_take_locked(media[i], &reply.answers[i], all, reply.bytes);
    }
    mm_unmap_locked(all);
    pthread_mutex_unlock(&mm_mu);
    return true;
}

void mm_observe(void *ctx, const void *chunks, const void **bitmaps, size_t n) {
    if (n == 0 || n > MM_MAX_MEDIA) return;
    struct bitmap b[MM_MAX_MEDIA];
    size_t placed = 0, total = 0;
    struct place *places = malloc(MM_MAX_CHUNKS * sizeof *places);
    uint32_t *tokens = malloc(MM_MAX_CHUNKS * sizeof *tokens);
    if (places && tokens && survey(b, bitmaps, n) && place_chunks(b, n, chunks, places, &placed)) {
        bool ok = make_media(b, n, places, placed, tokens, &total) && look_up(ctx, b, n, tokens, total);
        pthread_mutex_lock(&mm_mu);
        for (size_t p = 0; ok && p < placed; p++) {
            struct mm_media *m = b[places[p].bitmap].media;
            mm_know_locked(places[p].chunk, m, places[p].ordinal % m->count);
        }
        for (size_t i = 0; i < n; i++) mm_drop_locked(b[i].media);
        pthread_mutex_unlock(&mm_mu);
    }
    free(tokens);
    free(places);
}

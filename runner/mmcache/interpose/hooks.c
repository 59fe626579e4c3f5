/* The functions of libmtmd that this library stands before. Each calls the real one unless the runner has the result. */
#define _GNU_SOURCE
#include "mm.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint32_t elapsed_us(uint64_t since) {
    uint64_t d = now_us() - since;
    return d > UINT32_MAX ? UINT32_MAX : (uint32_t)d;
}

/* ---- the width of an embedding, as libmtmd learns it ---- */

EXPORT int32_t llama_model_n_embd_inp(const void *model) {
    const struct mm_real *real = mm_real();
    int32_t w = real->n_embd_inp ? real->n_embd_inp(model) : 0;
    mm_note_width(w, __builtin_return_address(0));
    return w;
}

EXPORT int32_t llama_model_n_embd(const void *model) {
    const struct mm_real *real = mm_real();
    int32_t w = real->n_embd ? real->n_embd(model) : 0;
    if (!real->n_embd_inp) mm_note_width(w, __builtin_return_address(0)); /* releases before n_embd_inp */
    return w;
}

/* ---- chunks ---- */

EXPORT int32_t mtmd_tokenize(void *ctx, void *out, const void *text, const void **bitmaps, size_t n) {
    const struct mm_real *real = mm_real();
    if (!real->tokenize) return 2; /* libmtmd's code for failure */
    mm_name(bitmaps, n);
    int32_t rc = real->tokenize(ctx, out, text, bitmaps, n);
    if (rc != 0 || !real->complete) return rc;
    for (size_t i = 0, size = real->chunks_size(out); i < size; i++) mm_forget(real->chunks_get(out, i));
    if (mm_on()) mm_observe(ctx, out, bitmaps, n);
    return rc;
}

EXPORT void *mtmd_input_chunk_copy(const void *chunk) {
    const struct mm_real *real = mm_real();
    void *copy = real->chunk_copy ? real->chunk_copy(chunk) : NULL;
    if (copy) mm_alias(copy, chunk);
    return copy;
}

EXPORT void mtmd_input_chunk_free(void *chunk) {
    const struct mm_real *real = mm_real();
    mm_forget(chunk);
    if (real->chunk_free) real->chunk_free(chunk);
}

EXPORT void mtmd_input_chunks_free(void *chunks) {
    const struct mm_real *real = mm_real();
    if (chunks && real->complete)
        for (size_t i = 0, size = real->chunks_size(chunks); i < size; i++) mm_forget(real->chunks_get(chunks, i));
    if (real->chunks_free) real->chunks_free(chunks);
}

/* ---- batches ---- */

struct batch {
    void *batch, *ctx; /* the engine's */
    void *rest;        /* a batch of the misses alone; NULL when there is none */
    size_t count, room;
    const void **chunks;
    struct mm_hold *holds; /* valid once encoded */
    float **outs;          /* NULL: where the real function says */
    bool blind;            /* not all chunks are known here */
    bool encoded;          /* outs are valid */
    bool ran;              /* the engine's own batch was encoded */
    struct batch *next;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* guards batches and overrides, not what they hold: a batch
                                                        * belongs to the thread that uses it */
static struct batch *batches;

static struct batch *find_batch(const void *batch) {
    pthread_mutex_lock(&mu);
    struct batch *b = batches;
    while (b && b->batch != batch) b = b->next;
    pthread_mutex_unlock(&mu);
    return b;
}

static void clear(struct batch *b) {
    for (size_t i = 0; i < b->count && b->encoded; i++) mm_release(&b->holds[i]);
    if (b->rest) mm_real()->batch_free(b->rest);
    b->rest = NULL;
    b->encoded = b->ran = false;
}

static void remove_batch(const void *batch) {
    pthread_mutex_lock(&mu);
    struct batch **p = &batches, *b;
    while (*p && (*p)->batch != batch) p = &(*p)->next;
    b = *p;
    if (b) *p = b->next;
    pthread_mutex_unlock(&mu);
    if (!b) return;
    clear(b);
    free(b->chunks);
    free(b->holds);
    free(b->outs);
    free(b);
}

EXPORT void *mtmd_batch_init(void *ctx) {
    const struct mm_real *real = mm_real();
    void *batch = real->batch_init ? real->batch_init(ctx) : NULL;
    if (!batch) return NULL;
    remove_batch(batch); /* one at this address was freed behind our back */
    struct batch *b = mm_on() ? calloc(1, sizeof *b) : NULL;
    if (b) {
        b->batch = batch;
        b->ctx = ctx;
        pthread_mutex_lock(&mu);
        b->next = batches;
        batches = b;
        pthread_mutex_unlock(&mu);
    }
    return batch;
}

EXPORT void mtmd_batch_free(void *batch) {
    const struct mm_real *real = mm_real();
    remove_batch(batch);
    if (real->batch_free) real->batch_free(batch);
}

static bool grow(struct batch *b) {
    if (b->count < b->room) return true;
    size_t room = b->room ? 2 * b->room : 8;
    const void **chunks = realloc(b->chunks, room * sizeof *chunks);
    if (chunks) b->chunks = chunks;
    struct mm_hold *holds = realloc(b->holds, room * sizeof *holds);
    if (holds) b->holds = holds;
    float **outs = realloc(b->outs, room * sizeof *outs);
    if (outs) b->outs = outs;
    if (!chunks || !holds || !outs) return false;
    b->room = room;
    return true;
}

EXPORT int32_t mtmd_batch_add_chunk(void *batch, const void *chunk) {
    const struct mm_real *real = mm_real();
    if (!real->batch_add_chunk) return 1;
    int32_t rc = real->batch_add_chunk(batch, chunk);
    struct batch *b = rc == 0 ? find_batch(batch) : NULL;
    if (b) {
        clear(b);
        if (grow(b)) b->chunks[b->count++] = chunk;
        else b->blind = true;
    }
    return rc;
}

/* encode_rest runs the encoder on the misses alone; false when the engine will not have them so. */
static bool encode_rest(struct batch *b) {
    const struct mm_real *real = mm_real();
    b->rest = real->batch_init(b->ctx);
    bool ok = b->rest != NULL;
    for (size_t i = 0; ok && i < b->count; i++)
        if (!b->outs[i]) ok = real->batch_add_chunk(b->rest, b->chunks[i]) == 0;
    ok = ok && real->batch_encode(b->rest) == 0;
    if (!ok && b->rest) {
        real->batch_free(b->rest);
        b->rest = NULL;
    }
    return ok;
}

EXPORT int32_t mtmd_batch_encode(void *batch) {
    const struct mm_real *real = mm_real();
    if (!real->batch_encode) return 1;
    struct batch *b = find_batch(batch);
    if (!b || b->blind || b->count == 0) return real->batch_encode(batch);

    clear(b);
    for (size_t i = 0; i < b->count; i++) b->holds[i] = mm_hold(b->chunks[i]);
    b->encoded = true;
    mm_acquire(b->holds, b->count);
    size_t misses = 0;
    for (size_t i = 0; i < b->count; i++) {
        b->outs[i] = mm_output(&b->holds[i]);
        misses += !b->outs[i];
    }
    if (misses == 0) return 0;

    uint64_t start = now_us();
    if (misses == b->count || !encode_rest(b)) {
        int32_t rc = real->batch_encode(batch);
        if (rc != 0) {
            for (size_t i = 0; i < b->count; i++) mm_fail(&b->holds[i]);
            clear(b);
            return rc;
        }
        b->ran = true;
    }
    uint32_t each = elapsed_us(start) / (uint32_t)misses;
    for (size_t i = 0; i < b->count; i++)
        if (!b->outs[i]) mm_collect(&b->holds[i], real->batch_get_output_embd(b->rest ? b->rest : batch, b->chunks[i]), each);
    return 0;
}

EXPORT float *mtmd_batch_get_output_embd(void *batch, const void *chunk) {
    const struct mm_real *real = mm_real();
    if (!real->batch_get_output_embd) return NULL;
    struct batch *b = find_batch(batch);
    if (!b || !b->encoded) return real->batch_get_output_embd(batch, chunk);
    for (size_t i = 0; i < b->count; i++) {
        if (b->chunks[i] != chunk) continue;
        if (b->outs[i]) return b->outs[i];
        return real->batch_get_output_embd(b->rest ? b->rest : batch, chunk);
    }
    return b->ran ? real->batch_get_output_embd(batch, chunk) : NULL;
}

/* ---- the older pair ---- */

/* A context whose last encode was a hit. */
struct override {
    void *ctx;
    struct mm_hold hold;
    struct override *next;
};

static struct override *overrides;

static void set_override(void *ctx, struct override *o) {
    pthread_mutex_lock(&mu);
    struct override **p = &overrides, *old;
    while (*p && (*p)->ctx != ctx) p = &(*p)->next;
    old = *p;
    if (old) *p = old->next;
    if (o) {
        o->next = overrides;
        overrides = o;
    }
    pthread_mutex_unlock(&mu);
    if (old) mm_release(&old->hold);
    free(old);
}

EXPORT int32_t mtmd_encode(void *ctx, const void *image_tokens) {
    const struct mm_real *real = mm_real();
    set_override(ctx, NULL);
    return real->encode ? real->encode(ctx, image_tokens) : 1;
}

EXPORT int32_t mtmd_encode_chunk(void *ctx, const void *chunk) {
    const struct mm_real *real = mm_real();
    if (!real->encode_chunk) return 1;
    set_override(ctx, NULL);
    struct mm_hold h = mm_on() ? mm_hold(chunk) : (struct mm_hold){NULL, 0};
    if (!h.media) return real->encode_chunk(ctx, chunk);
    mm_acquire(&h, 1);
    if (mm_output(&h)) {
        struct override *o = malloc(sizeof *o);
        if (o) {
            *o = (struct override){.ctx = ctx, .hold = h};
            set_override(ctx, o);
            return 0;
        }
    }
    uint64_t start = now_us();
    int32_t rc = real->encode_chunk(ctx, chunk);
    if (rc != 0) mm_fail(&h);
    else mm_collect(&h, real->get_output_embd(ctx), elapsed_us(start));
    mm_release(&h);
    return rc;
}

EXPORT float *mtmd_get_output_embd(void *ctx) {
    const struct mm_real *real = mm_real();
    pthread_mutex_lock(&mu);
    struct override *o = overrides;
    while (o && o->ctx != ctx) o = o->next;
    float *out = o ? mm_output(&o->hold) : NULL;
    pthread_mutex_unlock(&mu);
    if (out) return out;
    return real->get_output_embd ? real->get_output_embd(ctx) : NULL;
}

EXPORT void mtmd_free(void *ctx) {
    const struct mm_real *real = mm_real();
    set_override(ctx, NULL);
    if (real->free_ctx) real->free_ctx(ctx);
}

#define _GNU_SOURCE
#include "mock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct mock mock = {.slices = 1, .batch = 1};

struct context {
    int32_t width;
    float *out;
};

struct bitmap {
    uint32_t nx, ny;
    unsigned char *data;
    size_t n;
    bool audio;
    char id[64];
};

struct chunk {
    int type; /* 0 text, 1 image, 2 audio */
    char id[64];
    unsigned char *data;
    size_t n;
    int slice;
};

struct chunks {
    size_t n;
    struct chunk *list;
};

struct batch {
    struct context *ctx;
    size_t n;
    const struct chunk *list[64];
    float *out;
};

void *mock_init(const void *model) {
    struct context *c = calloc(1, sizeof *c);
    c->width = llama_model_n_embd_inp(model);
    return c;
}

void mtmd_free(void *ctx) {
    free(((struct context *)ctx)->out);
    free(ctx);
}

void *mock_bitmap(uint32_t nx, uint32_t ny, const void *data, size_t n, bool audio, const char *id) {
    struct bitmap *b = calloc(1, sizeof *b);
    *b = (struct bitmap){.nx = nx, .ny = ny, .data = malloc(n + 1), .n = n, .audio = audio};
    memcpy(b->data, data, n);
    strncpy(b->id, id, sizeof b->id - 1);
    return b;
}

void mock_bitmap_free(void *bitmap) {
    free(((struct bitmap *)bitmap)->data);
    free(bitmap);
}

const unsigned char *mtmd_bitmap_get_data(const void *b) { return ((const struct bitmap *)b)->n ? ((const struct bitmap *)b)->data : NULL; }
size_t mtmd_bitmap_get_n_bytes(const void *b) { return ((const struct bitmap *)b)->n; }
uint32_t mtmd_bitmap_get_nx(const void *b) { return ((const struct bitmap *)b)->nx; }
uint32_t mtmd_bitmap_get_ny(const void *b) { return ((const struct bitmap *)b)->ny; }
bool mtmd_bitmap_is_audio(const void *b) { return ((const struct bitmap *)b)->audio; }
const char *mtmd_bitmap_get_id(const void *b) { return ((const struct bitmap *)b)->id; }
void mtmd_bitmap_set_id(void *b, const char *id) {
    struct bitmap *to = b;
    memset(to->id, 0, sizeof to->id);
    strncpy(to->id, id, sizeof to->id - 1);
}
int mtmd_get_audio_sample_rate(void *ctx) { return ctx ? 16000 : -1; }

void *mock_chunks(void) { return calloc(1, sizeof(struct chunks)); }
size_t mtmd_input_chunks_size(const void *c) { return ((const struct chunks *)c)->n; }
const void *mtmd_input_chunks_get(const void *c, size_t i) { return &((const struct chunks *)c)->list[i]; }

void mtmd_input_chunks_free(void *chunks) {
    struct chunks *c = chunks;
    for (size_t i = 0; i < c->n; i++) free(c->list[i].data);
    free(c->list);
    free(c);
}

int mtmd_input_chunk_get_type(const void *c) { return ((const struct chunk *)c)->type; }
const char *mtmd_input_chunk_get_id(const void *c) { return ((const struct chunk *)c)->type ? ((const struct chunk *)c)->id : NULL; }
size_t mtmd_input_chunk_get_n_tokens(const void *c) { return MOCK_TOKENS + (size_t)((const struct chunk *)c)->slice; }

void *mtmd_input_chunk_copy(const void *chunk) {
    const struct chunk *c = chunk;
    struct chunk *copy = malloc(sizeof *copy);
    *copy = *c;
    copy->data = malloc(c->n + 1);
    if (c->n) memcpy(copy->data, c->data, c->n);
    return copy;
}

void mtmd_input_chunk_free(void *chunk) {
    free(((struct chunk *)chunk)->data);
    free(chunk);
}

int32_t mtmd_tokenize(void *ctx, void *out, const void *text, const void **bitmaps, size_t n) {
    (void)ctx;
    (void)text;
    struct chunks *c = out;
    c->n = n * ((size_t)mock.slices + 1);
    c->list = calloc(c->n + 1, sizeof *c->list);
    struct chunk *next = c->list;
    for (size_t i = 0; i < n; i++) {
        const struct bitmap *b = bitmaps[i];
        next++->type = 0; /* text before each */
        for (int s = 0; s < mock.slices; s++) {
            *next = (struct chunk){.type = b->audio ? 2 : 1, .n = b->n, .slice = s, .data = malloc(b->n + 1)};
            memcpy(next->data, b->data, b->n);
            memcpy(next->id, b->id, sizeof next->id);
            next++;
        }
    }
    return 0;
}

float mock_float(const void *data, size_t n, int slice, size_t i) {
    uint32_t h = 2166136261u ^ (uint32_t)slice * 977;
    const unsigned char *p = data;
    for (size_t k = 0; k < n; k++) h = (h ^ p[k]) * 16777619u;
    return (float)((h ^ (uint32_t)i * 2654435761u) % 100000) / 1000;
}

static void encode(const struct chunk *c, int32_t width, float *out) {
    size_t n = mtmd_input_chunk_get_n_tokens(c) * (size_t)width;
    float first = mock_float(c->data, c->n, c->slice, 0);
    for (size_t i = 0; i < n; i++) out[i] = first + (float)i;
    mock.encodes++;
}

static void work(void) {
    struct timespec t = {mock.encode_ms / 1000, mock.encode_ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

void *mtmd_batch_init(void *ctx) {
    struct batch *b = calloc(1, sizeof *b);
    b->ctx = ctx;
    return b;
}

void mtmd_batch_free(void *batch) {
    free(((struct batch *)batch)->out);
    free(batch);
}

int32_t mtmd_batch_add_chunk(void *batch, const void *chunk) {
    struct batch *b = batch;
    if (((const struct chunk *)chunk)->type == 0) return 1;
    if (b->n >= (size_t)mock.batch) return 2;
    b->list[b->n++] = chunk;
    return 0;
}

int32_t mtmd_batch_encode(void *batch) {
    struct batch *b = batch;
    size_t tokens = 0;
    if (b->n == 0 || mock.fail) return 1;
    for (size_t i = 0; i < b->n; i++) tokens += mtmd_input_chunk_get_n_tokens(b->list[i]);
    free(b->out);
    b->out = malloc(tokens * (size_t)b->ctx->width * sizeof *b->out);
    work();
    float *at = b->out;
    for (size_t i = 0; i < b->n; i++) {
        encode(b->list[i], b->ctx->width, at);
        at += mtmd_input_chunk_get_n_tokens(b->list[i]) * (size_t)b->ctx->width;
    }
    return 0;
}

float *mtmd_batch_get_output_embd(void *batch, const void *chunk) {
    struct batch *b = batch;
    float *at = b->out;
    for (size_t i = 0; at && i < b->n; i++) {
        if (b->list[i] == chunk) return at;
        at += mtmd_input_chunk_get_n_tokens(b->list[i]) * (size_t)b->ctx->width;
    }
    return NULL;
}

int32_t mtmd_encode_chunk(void *ctx, const void *chunk) {
    struct context *c = ctx;
    if (mock.fail) return 1;
    free(c->out);
    c->out = malloc(mtmd_input_chunk_get_n_tokens(chunk) * (size_t)c->width * sizeof *c->out);
    work();
    encode(chunk, c->width, c->out);
    return 0;
}

float *mtmd_get_output_embd(void *ctx) { return ((struct context *)ctx)->out; }

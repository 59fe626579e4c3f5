/* A libmtmd whose encoder is a hash: each float of its output depends on every pixel and on its own place. */
#ifndef MOCK_H
#define MOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)

/* What the driver sets before it starts. */
struct mock {
    int slices;         /* chunks of a bitmap */
    int batch;          /* most chunks of a batch */
    int encode_ms;      /* time of an encode */
    bool fail;          /* encodes fail */
    _Atomic int encodes; /* chunks encoded */
};
extern struct mock mock;

enum { MOCK_TOKENS = 4 };

void *mock_init(const void *model);
void mtmd_free(void *ctx);
void *mock_bitmap(uint32_t nx, uint32_t ny, const void *data, size_t n, bool audio, const char *id);
void mock_bitmap_free(void *bitmap);
void *mock_chunks(void);
float mock_float(const void *data, size_t n, int slice, size_t i);

int32_t mtmd_tokenize(void *ctx, void *out, const void *text, const void **bitmaps, size_t n);
const unsigned char *mtmd_bitmap_get_data(const void *);
size_t mtmd_bitmap_get_n_bytes(const void *);
uint32_t mtmd_bitmap_get_nx(const void *);
uint32_t mtmd_bitmap_get_ny(const void *);
bool mtmd_bitmap_is_audio(const void *);
const char *mtmd_bitmap_get_id(const void *);
void mtmd_bitmap_set_id(void *, const char *);
size_t mtmd_input_chunks_size(const void *);
const void *mtmd_input_chunks_get(const void *, size_t);
void mtmd_input_chunks_free(void *);
int mtmd_input_chunk_get_type(const void *);
const char *mtmd_input_chunk_get_id(const void *);
size_t mtmd_input_chunk_get_n_tokens(const void *);
void *mtmd_input_chunk_copy(const void *);
void mtmd_input_chunk_free(void *);
void *mtmd_batch_init(void *ctx);
void mtmd_batch_free(void *);
int32_t mtmd_batch_add_chunk(void *, const void *);
int32_t mtmd_batch_encode(void *);
float *mtmd_batch_get_output_embd(void *, const void *);
int32_t mtmd_encode_chunk(void *ctx, const void *);
float *mtmd_get_output_embd(void *ctx);
int mtmd_get_audio_sample_rate(void *ctx);
int32_t llama_model_n_embd_inp(const void *model);

#pragma GCC visibility pop

#endif

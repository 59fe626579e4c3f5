/* The encoder cache's side in the engine: what the files of this library share. See ../PROTOCOL.md for the wire
 * and README.md for the rules. Nothing here may crash, hang or change an answer: every function that fails says so, and
 * its caller falls back on the engine's own function. */
#ifndef REVEILLE_MM_H
#define REVEILLE_MM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the protocol and the floats are little-endian"
#endif

#define MM_MAX_MEDIA 64    /* media of one call */
#define MM_MAX_CHUNKS 4096 /* chunks of one call */
#define MM_IDENT 32        /* bytes of an identity */

enum { MM_TEXT = 0, MM_IMAGE = 1, MM_AUDIO = 2 }; /* chunk types of libmtmd, and the protocol's kinds */

/* real.c: the engine's own functions. A member is NULL where the engine's libmtmd lacks it. */
struct mm_real {
    int32_t (*tokenize)(void *ctx, void *out, const void *text, const void **bitmaps, size_t n);
    const unsigned char *(*bitmap_get_data)(const void *);
    size_t (*bitmap_get_n_bytes)(const void *);
    uint32_t (*bitmap_get_nx)(const void *);
    uint32_t (*bitmap_get_ny)(const void *);
    bool (*bitmap_is_audio)(const void *);
    const char *(*bitmap_get_id)(const void *);
    void (*bitmap_set_id)(void *, const char *);
    size_t (*chunks_size)(const void *);
    const void *(*chunks_get)(const void *, size_t);
    void (*chunks_free)(void *);
    int (*chunk_get_type)(const void *);
    const char *(*chunk_get_id)(const void *);
    size_t (*chunk_get_n_tokens)(const void *);
    void *(*chunk_copy)(const void *);
    void (*chunk_free)(void *);
    void *(*batch_init)(void *ctx);
    void (*batch_free)(void *);
    int32_t (*batch_add_chunk)(void *, const void *);
    int32_t (*batch_encode)(void *);
    float *(*batch_get_output_embd)(void *, const void *);
    int32_t (*encode)(void *ctx, const void *image_tokens);
    int32_t (*encode_chunk)(void *ctx, const void *);
    float *(*get_output_embd)(void *ctx);
    void (*free_ctx)(void *ctx);
    int (*audio_sample_rate)(void *ctx);
    int32_t (*n_embd_inp)(const void *model);
    int32_t (*n_embd)(const void *model);
    bool complete; /* all that caching needs is there */
};

/* token.c: which HTTP request the calling thread serves. */
#define MM_TOKEN 16
const uint8_t *mm_token(void); /* its token, zero bytes for none */

const struct mm_real *mm_real(void);          /* probed once; never NULL */
bool mm_on(void);                             /* caching is possible and the runner is there to ask */
void mm_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void mm_note_width(int32_t width, void *caller); /* libllama told caller the width of an embedding */
uint32_t mm_width(void);                      /* floats of a token; 0 when unknown or in doubt */
const char *mm_socket(void);                  /* path, NULL without one */
uint32_t mm_lookup_ms(void);
uint32_t mm_encode_ms(void);
uint32_t mm_pause_ms(void);                   /* after a runner that does not answer */
uint64_t mm_max_bytes(void);                  /* of media in one look-up */

/* link.c: the socket to the runner. */
enum { MM_LOOKUP = 1, MM_ACQUIRE = 2, MM_STORE = 3, MM_ABANDON = 4 };
enum { MM_PARTIAL = 1 };                      /* flag: the encode about to run yields some chunks only */
enum { MM_MISS = 0, MM_HIT = 1, MM_BUSY = 2 }; /* states in a reply; MM_MISS to an acquire means: encode it */

struct mm_item { /* as on the wire */
    uint8_t kind, flags;
    uint16_t chunks;
    uint32_t a, b, encode_us;
    uint64_t offset, bytes;
    uint8_t ident[MM_IDENT];
};

struct mm_answer { /* as on the wire */
    uint8_t state, pad[7];
    uint64_t offset, bytes;
    uint8_t ident[MM_IDENT];
};

struct mm_request {
    uint8_t op;
    uint32_t width, wait_ms;
    const struct mm_item *items;
    size_t count;
    const uint32_t *tokens; /* of all items, one number a chunk */
    size_t chunks;
    const uint8_t *token;   /* MM_TOKEN bytes; NULL for zeros */
    int fd;                 /* passed along; -1 for none */
};

struct mm_reply {
    struct mm_answer answers[MM_MAX_MEDIA];
    int fd;         /* of the floats, the caller's to close; -1 when there are none */
    uint64_t bytes; /* its size, checked */
};

int mm_connect(void);                                 /* a connection of the pool, or -1 */
void mm_disconnect(int conn, bool healthy);           /* back into the pool, or closed */
bool mm_ask(int conn, const struct mm_request *q, uint32_t timeout_ms, struct mm_reply *r);
bool mm_tell(int conn, const struct mm_request *q);   /* without an answer, never waits */
int mm_memory(void);                                  /* a new memory file, or -1 */
bool mm_write(int fd, const void *data, size_t n, uint64_t offset);
bool mm_seal(int fd, uint64_t size);                  /* gives it its size for good */

/* name.c: what the engine calls a medium. */
void mm_name(const void **bitmaps, size_t n); /* before a tokenize */
void mm_siphash(const uint64_t key[2], const void *data, size_t n, uint64_t out[2]);

/* media.c: what is known of each medium, and which chunk belongs to which. */
struct mm_media;

/* A held chunk: its medium is kept until mm_release. */
struct mm_hold {
    struct mm_media *media; /* NULL: a chunk of unknown origin, to be encoded by the engine */
    uint32_t index;
};

void mm_observe(void *ctx, const void *chunks, const void **bitmaps, size_t n); /* after a tokenize */
void mm_forget(const void *chunk);
void mm_alias(const void *copy, const void *chunk);
struct mm_hold mm_hold(const void *chunk);
void mm_release(struct mm_hold *h);
float *mm_output(const struct mm_hold *h);            /* cached floats, NULL on a miss */
void mm_acquire(struct mm_hold *h, size_t n);         /* asks again, just before an encode; may turn misses into hits */
void mm_collect(const struct mm_hold *h, const float *out, uint32_t encode_us); /* an encode's result */
void mm_fail(const struct mm_hold *h);                /* the encode failed */

#endif

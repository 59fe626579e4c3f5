/* The record of a medium, shared by media.c, which keeps it, and observe.c, which makes it. */
#ifndef REVEILLE_MM_MEDIA_H
#define REVEILLE_MM_MEDIA_H

#include "mm.h"

#include <pthread.h>

/* The right, given by the runner over one connection, to encode some media while others wait for the result. */
struct lease {
    int conn;
    unsigned refs;
    bool broken;
};

struct mapping {
    void *at;
    size_t size;
    unsigned refs;
};

struct mm_media {
    /* Constant once the medium is known to others. */
    char *id;
    int type;
    uint32_t count;    /* chunks */
    uint32_t *tokens;  /* of each chunk */
    uint64_t *offset;  /* of each chunk's floats, in bytes */
    uint64_t bytes;    /* of all floats */
    uint32_t width;
    uint8_t ident[MM_IDENT];

    /* Guarded by mm_mu. */
    unsigned refs;
    bool asked;           /* mm_acquire was here */
    float *floats;        /* all chunks', NULL on a miss */
    struct mapping *map;  /* where they lie */
    struct lease *lease;  /* held while this process encodes for others */
    int fd;               /* what the encoder gave so far; -1 for nothing */
    bool *have;
    uint32_t done;
    uint64_t encode_us;
};

extern pthread_mutex_t mm_mu; /* what ends in _locked expects it */

struct mm_media *mm_new_media(const char *id, int type, const uint32_t *tokens, uint32_t count, uint32_t width);
void mm_drop_locked(struct mm_media *m);
void mm_know_locked(const void *chunk, struct mm_media *m, uint32_t index);
void mm_take_locked(struct mm_media *m, const struct mm_answer *a, struct mapping *map, uint64_t size);
struct mapping *mm_map(int fd, uint64_t size);
void mm_unmap_locked(struct mapping *m);

#endif

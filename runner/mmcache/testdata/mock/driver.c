/* An engine without a model: it makes requests of pictures to itself, as llama-server treats them, and checks every
 * float. It prints how many media it answered, how many chunks were encoded for that, and how many floats were wrong.
 *
 * usage: driver name=number …; the names are those of struct settings. */
#define _GNU_SOURCE
#include "mock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct settings {
    int requests;  /* in all */
    int threads;   /* that make them */
    int distinct;  /* pictures there are */
    int each;      /* pictures of a request */
    int first;     /* number of the first picture */
    int pixels;    /* side of a picture */
    int audio;     /* they are sounds */
    int old;       /* the older pair of functions */
    int one_id;    /* all pictures have the same id */
    int no_id;     /* they have none */
    int lazy;      /* one bitmap of each request has no bytes */
    int leave;     /* requests end before the encode */
    int width;
    int width2;    /* of a second model in this process */
} set = {.requests = 1, .threads = 1, .distinct = 1, .each = 1, .pixels = 8, .width = 16};

static void *context;
static _Atomic int next, answered, wrong;

static size_t medium(int number, unsigned char **data) {
    size_t n = set.audio ? (size_t)set.pixels * sizeof(float) : (size_t)set.pixels * (size_t)set.pixels * 3;
    unsigned char *p = malloc(n);
    for (size_t i = 0; i < n; i++) p[i] = (unsigned char)((i * 7 + (size_t)number * 131 + (i >> 5) * (size_t)number) & 0xff);
    memcpy(p, &number, n < sizeof number ? n : sizeof number);
    *data = p;
    return n;
}

static void check(const float *out, const unsigned char *data, size_t n, int slice, size_t tokens) {
    if (!out) {
        wrong++;
        return;
    }
    float first = mock_float(data, n, slice, 0);
    for (size_t i = 0; i < tokens * (size_t)set.width; i++)
        if (out[i] != first + (float)i) wrong++;
    answered++;
}

static void request(int number) {
    unsigned char *data[64];
    size_t n[64];
    const void *bitmaps[64];
    int each = set.each;
    for (int i = 0; i < each; i++) {
        int p = set.first + (number * each + i) % set.distinct;
        char id[64];
        n[i] = medium(p, &data[i]);
        snprintf(id, sizeof id, "%s%d", set.no_id ? "" : "id", set.one_id ? 0 : p);
        bool empty = set.lazy && i == 0;
        bitmaps[i] = mock_bitmap(set.audio ? (uint32_t)set.pixels : (uint32_t)set.pixels, set.audio ? 1 : (uint32_t)set.pixels,
                                 data[i], empty ? 0 : n[i], set.audio, set.no_id ? "" : id);
        if (empty) n[i] = 0;
    }
    void *chunks = mock_chunks();
    if (mtmd_tokenize(context, chunks, NULL, bitmaps, (size_t)each) != 0) exit(3);

    /* The server keeps copies and frees what it got. */
    size_t size = mtmd_input_chunks_size(chunks), count = 0;
    void **media = calloc(size, sizeof *media);
    for (size_t i = 0; i < size; i++)
        if (mtmd_input_chunk_get_type(mtmd_input_chunks_get(chunks, i)) != 0)
            media[count++] = mtmd_input_chunk_copy(mtmd_input_chunks_get(chunks, i));
    mtmd_input_chunks_free(chunks);

    for (size_t i = 0; i < count && !set.leave;) {
        if (set.old) {
            if (mtmd_encode_chunk(context, media[i]) == 0) {
                int slice = (int)(i % (size_t)mock.slices), b = (int)(i / (size_t)mock.slices);
                check(mtmd_get_output_embd(context), data[b], n[b], slice, mtmd_input_chunk_get_n_tokens(media[i]));
            }
            i++;
            continue;
        }
        void *batch = mtmd_batch_init(context);
        size_t from = i;
        while (i < count && mtmd_batch_add_chunk(batch, media[i]) == 0) i++;
        if (mtmd_batch_get_output_embd(batch, context) != NULL) wrong++; /* not a chunk of it, and not encoded */
        if (mtmd_batch_encode(batch) == 0)
            for (size_t k = from; k < i; k++) {
                int slice = (int)(k % (size_t)mock.slices), b = (int)(k / (size_t)mock.slices);
                check(mtmd_batch_get_output_embd(batch, media[k]), data[b], n[b], slice, mtmd_input_chunk_get_n_tokens(media[k]));
            }
        mtmd_batch_free(batch);
    }
    for (size_t i = 0; i < count; i++) mtmd_input_chunk_free(media[i]);
    for (int i = 0; i < each; i++) {
        mock_bitmap_free((void *)(uintptr_t)bitmaps[i]);
        free(data[i]);
    }
    free(media);
}

static void *worker(void *unused) {
    (void)unused;
    for (int n; (n = next++) < set.requests;) request(n);
    return NULL;
}

int main(int argc, char **argv) {
    struct {
        const char *name;
        int *value;
    } names[] = {
        {"requests", &set.requests}, {"threads", &set.threads}, {"distinct", &set.distinct}, {"each", &set.each},
        {"first", &set.first}, {"pixels", &set.pixels}, {"audio", &set.audio}, {"old", &set.old}, {"one_id", &set.one_id},
        {"no_id", &set.no_id}, {"lazy", &set.lazy}, {"leave", &set.leave}, {"width", &set.width}, {"width2", &set.width2},
        {"slices", &mock.slices}, {"batch", &mock.batch}, {"encode_ms", &mock.encode_ms},
    };
    for (int i = 1; i < argc; i++) {
        char *eq = strchr(argv[i], '=');
        bool known = false;
        for (size_t k = 0; eq && k < sizeof names / sizeof names[0]; k++)
            if (strncmp(argv[i], names[k].name, (size_t)(eq - argv[i])) == 0 && names[k].name[eq - argv[i]] == 0) {
                *names[k].value = atoi(eq + 1);
                known = true;
            }
        if (eq && strncmp(argv[i], "fail=", 5) == 0) known = mock.fail = true;
        if (!known) return 2;
    }
    int32_t width = set.width, width2 = set.width2;
    context = mock_init(&width);
    void *other = width2 ? mock_init(&width2) : NULL;
    pthread_t threads[64];
    for (int i = 0; i < set.threads; i++)
        if (pthread_create(&threads[i], NULL, worker, NULL) != 0) return 2;
    for (int i = 0; i < set.threads; i++) pthread_join(threads[i], NULL);
    if (other) mtmd_free(other);
    mtmd_free(context);
    printf("answered %d encodes %d wrong %d\n", answered, mock.encodes, wrong);
    return 0;
}

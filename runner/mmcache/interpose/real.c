/* The engine's own functions, found behind this library, and what its environment says. */
#define _GNU_SOURCE
#include "mm.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct mm_real real;
static char *socket_path;
static uint32_t lookup_ms, encode_ms, pause_ms;
static uint64_t max_bytes;
static void *mtmd_base; /* where libmtmd is mapped */

static _Atomic int32_t width; /* 0 not known yet, -1 in doubt */

void mm_log(const char *fmt, ...) {
    char line[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    if ((size_t)n > sizeof line - 2) n = sizeof line - 2;
    line[n] = '\n';
    /* one write, so that lines of threads do not mix; a lost line is no harm */
    if (write(STDERR_FILENO, line, (size_t)n + 1) < 0) return;
}

/* ISO C has no conversion from an object pointer to a function pointer; POSIX promises that the bytes are the same. */
static bool find(const char *name, void *slot) {
    void *p = dlsym(RTLD_NEXT, name);
    memcpy(slot, &p, sizeof p);
    return p != NULL;
}

static uint64_t number(const char *name, uint64_t fallback, uint64_t most) {
    const char *text = getenv(name);
    if (!text || !*text) return fallback;
    char *end;
    unsigned long long v = strtoull(text, &end, 10);
    return *end || v > most ? fallback : v;
}

static void probe(void) {
    const char *path = getenv("REVEILLE_MM_SOCKET");
    if (path && *path) socket_path = strdup(path);
    lookup_ms = (uint32_t)number("REVEILLE_MM_LOOKUP_MS", 50, 10000);
    encode_ms = (uint32_t)number("REVEILLE_MM_ENCODE_MS", 15000, 600000);
    pause_ms = (uint32_t)number("REVEILLE_MM_PAUSE_MS", 1000, 60000);
    max_bytes = number("REVEILLE_MM_MAX_BYTES", 256u << 20, 1u << 30);
    unsetenv("REVEILLE_MM_SOCKET");
    unsetenv("LD_PRELOAD"); /* programs that the engine starts have no encoder */

    bool ok = find("mtmd_tokenize", &real.tokenize);
    ok &= find("mtmd_bitmap_get_data", &real.bitmap_get_data);
    ok &= find("mtmd_bitmap_get_n_bytes", &real.bitmap_get_n_bytes);
    ok &= find("mtmd_bitmap_get_nx", &real.bitmap_get_nx);
    ok &= find("mtmd_bitmap_get_ny", &real.bitmap_get_ny);
    ok &= find("mtmd_bitmap_is_audio", &real.bitmap_is_audio);
    ok &= find("mtmd_bitmap_get_id", &real.bitmap_get_id);
    ok &= find("mtmd_input_chunks_size", &real.chunks_size);
    ok &= find("mtmd_input_chunks_get", &real.chunks_get);
    ok &= find("mtmd_input_chunks_free", &real.chunks_free);
    ok &= find("mtmd_input_chunk_get_type", &real.chunk_get_type);
    ok &= find("mtmd_input_chunk_get_id", &real.chunk_get_id);
    ok &= find("mtmd_input_chunk_get_n_tokens", &real.chunk_get_n_tokens);
    ok &= find("mtmd_input_chunk_copy", &real.chunk_copy);
    ok &= find("mtmd_input_chunk_free", &real.chunk_free);
    bool batch = find("mtmd_batch_init", &real.batch_init);
    batch &= find("mtmd_batch_free", &real.batch_free);
    batch &= find("mtmd_batch_add_chunk", &real.batch_add_chunk);
    batch &= find("mtmd_batch_encode", &real.batch_encode);
    batch &= find("mtmd_batch_get_output_embd", &real.batch_get_output_embd);
    bool single = find("mtmd_encode_chunk", &real.encode_chunk);
    single &= find("mtmd_get_output_embd", &real.get_output_embd);
    single &= find("mtmd_free", &real.free_ctx);
    find("mtmd_encode", &real.encode);
    find("mtmd_bitmap_set_id", &real.bitmap_set_id);
    if (!find("mtmd_get_audio_sample_rate", &real.audio_sample_rate)) find("mtmd_get_audio_bitrate", &real.audio_sample_rate);
    bool inp = find("llama_model_n_embd_inp", &real.n_embd_inp);
    inp |= find("llama_model_n_embd", &real.n_embd);
    real.complete = ok && inp && (batch || single);

    Dl_info info;
    void *tokenize;
    memcpy(&tokenize, &real.tokenize, sizeof tokenize);
    if (tokenize && dladdr(tokenize, &info)) mtmd_base = info.dli_fbase;
    if (!socket_path) mm_log("reveille-mm: no REVEILLE_MM_SOCKET, encoder outputs are not cached");
    else if (!real.complete || !mtmd_base) mm_log("reveille-mm: this libmtmd is unknown, encoder outputs are not cached");
}

__attribute__((constructor)) static void start(void) { pthread_once(&once, probe); }

const struct mm_real *mm_real(void) {
    pthread_once(&once, probe);
    return &real;
}

bool mm_on(void) {
    return mm_real()->complete && mtmd_base && socket_path && width > 0;
}

/* The encoder's output width is the one libmtmd asked libllama for: it refuses a projector of another. Two answers mean
 * two models in one process, and no way to tell whose chunk it is. */
void mm_note_width(int32_t w, void *caller) {
    Dl_info info;
    if (w <= 0 || w == width || !mtmd_base) return;
    if (!dladdr(caller, &info) || info.dli_fbase != mtmd_base) return;
    int32_t none = 0;
    if (atomic_compare_exchange_strong(&width, &none, w) || none == w || none < 0) return;
    width = -1;
    mm_log("reveille-mm: models of width %d and %d in one process, encoder outputs are not cached", none, w);
}

uint32_t mm_width(void) { return width > 0 ? (uint32_t)width : 0; }
const char *mm_socket(void) { return socket_path; }
uint32_t mm_lookup_ms(void) { return lookup_ms; }
uint32_t mm_encode_ms(void) { return encode_ms; }
uint32_t mm_pause_ms(void) { return pause_ms; }
uint64_t mm_max_bytes(void) { return max_bytes; }

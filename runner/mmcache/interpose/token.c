/* Which HTTP request the calling thread serves. llama-server reads a request, parses it and tokenizes its media in one
 * thread, so that the token in the header that this thread received last is that of the media it tokenizes. A token that
 * is out of date, or was put into a body, is not one of an open request, and the runner takes it for none. */
#define _GNU_SOURCE
#include "mm.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/socket.h>

static const char name[] = "\nX-Reveille-Media: ";
#define NAME (sizeof name - 1)
#define LINE (NAME + 2 * MM_TOKEN)

static __thread uint8_t token[MM_TOKEN];
static __thread char digits[2 * MM_TOKEN];
static __thread size_t matched; /* characters of the header line, which may come in several pieces */

const uint8_t *mm_token(void) { return token; }

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

static void scan(const char *p, size_t n) {
    for (const char *end = p + n; p < end; p++) {
        if (matched == 0 && !(p = memchr(p, name[0], (size_t)(end - p)))) return;
        bool fits = matched < NAME ? *p == name[matched] : hex(*p) >= 0;
        if (!fits) {
            matched = *p == name[0];
            continue;
        }
        if (matched >= NAME) digits[matched - NAME] = *p;
        if (++matched < LINE) continue;
        for (size_t i = 0; i < MM_TOKEN; i++) token[i] = (uint8_t)(hex(digits[2 * i]) << 4 | hex(digits[2 * i + 1]));
        matched = 0;
    }
}

__attribute__((visibility("default"))) ssize_t recv(int fd, void *buf, size_t n, int flags) {
    static ssize_t (*_Atomic real)(int, void *, size_t, int);
    ssize_t (*call)(int, void *, size_t, int) = real;
    if (!call) {
        void *p = dlsym(RTLD_NEXT, "recv");
        memcpy(&call, &p, sizeof call);
        real = call;
    }
    ssize_t got = call(fd, buf, n, flags);
    if (got > 0 && !(flags & MSG_PEEK) && mm_socket()) scan(buf, (size_t)got <= n ? (size_t)got : n);
    return got;
}

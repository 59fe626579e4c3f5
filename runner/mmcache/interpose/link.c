/* The socket to the runner: few connections, whole messages, and an end to every wait. */
#define _GNU_SOURCE
#include "mm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x334d4d52u /* "RMM3" */
#define REPLY 0x80u
#define IDLE 8          /* connections kept */
#define FAILURES 3      /* in a row, before the runner is left alone for a while */

struct request_header {
    uint32_t magic;
    uint8_t op, count;
    uint16_t chunks;
    uint32_t wait_ms, width;
    uint8_t token[MM_TOKEN];
};

struct reply_header {
    uint32_t magic;
    uint8_t op, count;
    uint16_t zero;
    uint64_t bytes;
};

_Static_assert(sizeof(struct request_header) == 32 && sizeof(struct reply_header) == 16, "layout");
_Static_assert(sizeof(struct mm_item) == 64 && sizeof(struct mm_answer) == 56, "layout");

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static int idle[IDLE];
static size_t idles;
static unsigned failures;
static int64_t pause_until;

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void failed(void) {
    pthread_mutex_lock(&mu);
    bool first = ++failures == FAILURES;
    if (failures >= FAILURES) pause_until = now_ms() + mm_pause_ms();
    pthread_mutex_unlock(&mu);
    if (first) mm_log("reveille-mm: the runner does not respond, encoder outputs are not cached for now");
}

static void worked(void) {
    pthread_mutex_lock(&mu);
    bool was = failures >= FAILURES;
    failures = 0;
    pthread_mutex_unlock(&mu);
    if (was) mm_log("reveille-mm: the runner responds again");
}

int mm_connect(void) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const char *path = mm_socket();
    if (!path || strlen(path) >= sizeof addr.sun_path) return -1;
    memcpy(addr.sun_path, path, strlen(path));

    pthread_mutex_lock(&mu);
    int conn = idles ? idle[--idles] : -1;
    bool paused = failures >= FAILURES && now_ms() < pause_until;
    pthread_mutex_unlock(&mu);
    if (conn >= 0) {
        /* One that the runner has closed since is of no use; bytes that nobody asked for are not to be trusted. */
        char c;
        if (recv(conn, &c, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return conn;
        close(conn);
    }
    if (paused) return -1;
    conn = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (conn < 0) return -1;
    if (connect(conn, (struct sockaddr *)&addr, sizeof addr) != 0) { /* a full backlog fails at once, too */
        close(conn);
        failed();
        return -1;
    }
    return conn;
}

void mm_disconnect(int conn, bool healthy) {
    if (conn < 0) return;
    bool kept = false;
    if (healthy) {
        pthread_mutex_lock(&mu);
        if (idles < IDLE) {
            idle[idles++] = conn;
            kept = true;
        }
        pthread_mutex_unlock(&mu);
    }
    if (!kept) close(conn);
}

/* ready waits for the events, no longer than until deadline (0: not at all). */
static bool ready(int conn, short events, int64_t deadline) {
    for (;;) {
        int64_t left = deadline - now_ms();
        struct pollfd p = {.fd = conn, .events = events};
        int n = poll(&p, 1, left > 0 ? (int)left : 0);
        if (n > 0) return (p.revents & events) != 0;
        if (n == 0 || errno != EINTR) return false;
    }
}

union control {
    struct cmsghdr align;
    char room[CMSG_SPACE(sizeof(int))];
};

static bool send_all(int conn, struct iovec *iov, size_t parts, int fd, int64_t deadline) {
    union control control;
    while (parts > 0) {
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = parts};
        if (fd >= 0) {
            memset(&control, 0, sizeof control);
            m.msg_control = control.room;
            m.msg_controllen = sizeof control.room;
            struct cmsghdr *c = CMSG_FIRSTHDR(&m);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(sizeof fd);
            memcpy(CMSG_DATA(c), &fd, sizeof fd);
        }
        ssize_t n = sendmsg(conn, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) {
            if (errno == EINTR) continue;
            if ((errno == EAGAIN || errno == EWOULDBLOCK) && deadline && ready(conn, POLLOUT, deadline)) continue;
            return false;
        }
        if (n > 0) fd = -1; /* it went with the first byte */
        for (size_t sent = (size_t)n; parts > 0;) {
            if (sent < iov->iov_len) {
                iov->iov_base = (char *)iov->iov_base + sent;
                iov->iov_len -= sent;
                break;
            }
            sent -= iov->iov_len;
            iov++;
            parts--;
        }
    }
    return true;
}

/* receive_all fills buf; a descriptor that comes along is put into *fd, a second one is closed. */
static bool receive_all(int conn, void *buf, size_t n, int *fd, int64_t deadline) {
    for (size_t got = 0; got < n;) {
        union control control;
        struct iovec iov = {.iov_base = (char *)buf + got, .iov_len = n - got};
        struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
        ssize_t r = recvmsg(conn, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (r < 0) {
            if (errno == EINTR) continue;
            if ((errno == EAGAIN || errno == EWOULDBLOCK) && ready(conn, POLLIN, deadline)) continue;
            return false;
        }
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
            if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
            for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; i++) {
                int f;
                memcpy(&f, CMSG_DATA(c) + i * sizeof f, sizeof f);
                if (*fd < 0) *fd = f;
                else close(f);
            }
        }
        if (r == 0) return false;
        got += (size_t)r;
    }
    return true;
}

static bool send_request(int conn, const struct mm_request *q, int64_t deadline) {
    struct request_header h = {MAGIC, q->op, (uint8_t)q->count, (uint16_t)q->chunks, q->wait_ms, q->width, {0}};
    if (q->token) memcpy(h.token, q->token, MM_TOKEN);
    struct iovec iov[3] = {
        {&h, sizeof h},
        {(void *)(uintptr_t)q->items, q->count * sizeof *q->items},
        {(void *)(uintptr_t)q->tokens, q->chunks * sizeof *q->tokens},
    };
    return send_all(conn, iov, 3, q->fd, deadline);
}

/* floats_ok checks that the file behind a reply is as large as it says and can never become smaller: reading a mapping
 * of it cannot fault. */
static bool floats_ok(int fd, uint64_t bytes) {
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) && (seals & F_SEAL_WRITE) && fstat(fd, &st) == 0 && st.st_size >= 0 &&
           (uint64_t)st.st_size >= bytes;
}

bool mm_ask(int conn, const struct mm_request *q, uint32_t timeout_ms, struct mm_reply *r) {
    int64_t deadline = now_ms() + timeout_ms;
    struct reply_header h;
    memset(r, 0, sizeof *r);
    r->fd = -1;
    bool ok = send_request(conn, q, deadline) && receive_all(conn, &h, sizeof h, &r->fd, deadline) && h.magic == MAGIC &&
              h.op == (q->op | REPLY) && h.count == q->count &&
              receive_all(conn, r->answers, q->count * sizeof r->answers[0], &r->fd, deadline);
    if (ok) {
        r->bytes = h.bytes;
        ok = r->bytes == 0 || (r->fd >= 0 && floats_ok(r->fd, r->bytes));
    }
    if (!ok) {
        if (r->fd >= 0) close(r->fd);
        r->fd = -1;
        failed();
        return false;
    }
    worked();
    return true;
}

bool mm_tell(int conn, const struct mm_request *q) { return send_request(conn, q, 0); }

int mm_memory(void) { return memfd_create("reveille-mm", MFD_CLOEXEC | MFD_ALLOW_SEALING); }

bool mm_write(int fd, const void *data, size_t n, uint64_t offset) {
    for (const char *p = data; n > 0;) {
        ssize_t w = pwrite(fd, p, n, (off_t)offset);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return false;
        p += w;
        n -= (size_t)w;
        offset += (uint64_t)w;
    }
    return true;
}

bool mm_seal(int fd, uint64_t size) {
    return ftruncate(fd, (off_t)size) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0;
}

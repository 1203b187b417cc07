/* Answers Apache's SDKs over gRPC as a proxy does, and stores nothing.
 *
 * Usage: sdk_ceiling PORT ANSWERS CERTIFICATE KEY
 *
 * ANSWERS is a file with the bytes of each answer, behind its size in four bytes, in the order of
 * `enum call`. Each call is answered at once, so no endpoint can be faster: what an SDK reaches
 * here is its own ceiling. The first receive of each connection gets no message. The headers of
 * calls are not read: calls are told apart by the fields of their message. A connection may be
 * encrypted, as those of the SDK for Java are. Runs until it is ended.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum call { ROUTE, HEARTBEAT, END, SEND, ACK, NOTHING, RECEIVE, PUBLISH, SUBSCRIBE, CALLS };
enum { INBOX = 1 << 20, PEERS = 64, OPEN = 16, FRAME = 16384, BEGIN = 24 };
enum { DATA, HEADERS, RESET = 3, SETTINGS, PING = 6, UPDATE = 8 };
enum { LAST = 1, WHOLE = 4 };

struct bytes { char *data; size_t size; };
struct peer {
    SSL *tls;                           /* NULL: plain text */
    char *in, *out;
    size_t have, from, to, room;        /* what has come; what is to be sent is in out[from, to) */
    size_t ready;                       /* frames before it fit into the window */
    long window, received;
    int has_begun, has_received;
    uint32_t open[OPEN];                /* streams of Telemetry */
};

static struct bytes answers[CALLS];
static SSL_CTX *context;
static const char HEAD[] = "\x88\x0f\x10\x10" "application/grpc";
static const char TAIL[] = "\x00\x0bgrpc-status\x01" "0";

static uint32_t u32(const char *p) { uint32_t n; memcpy(&n, p, 4); return ntohl(n); }
static void put32(char *p, uint32_t n) { n = htonl(n); memcpy(p, &n, 4); }

/* Puts a frame behind what is to be sent. */
static void put(struct peer *p, int kind, int flags, uint32_t stream, const char *data,
                size_t size) {
    if (p->to + size + 9 > p->room && p->from) {
        memmove(p->out, p->out + p->from, p->to - p->from);
        p->to -= p->from, p->ready -= p->from, p->from = 0;
    }
    while (p->to + size + 9 > p->room)
        if (!(p->out = realloc(p->out, p->room *= 2))) exit(3);
    char *at = p->out + p->to;
    put32(at, (uint32_t)size << 8 | kind);
    at[4] = flags;
    put32(at + 5, stream);
    memcpy(at + 9, data, size);
    p->to += 9 + size;
}

static uint64_t varint(const unsigned char **at, const unsigned char *end) {
    uint64_t n = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        n |= (uint64_t)(**at & 0x7f) << shift;
        if (!(*(*at)++ & 0x80)) break;
    }
    return n;
}

/* Tells a call by the fields of its message. */
static enum call call_of(const char *body, size_t size) {
    const unsigned char *at = (const unsigned char *)body + 5, *end = at + size - 5;
    unsigned fields = 0;
    while (at < end) {
        uint64_t tag = varint(&at, end), length = varint(&at, end);
        fields |= 1u << (tag >> 3 & 31);
        if ((tag & 7) == 2) at += length;
        else if (tag >> 3 == 2) return HEARTBEAT;       /* its client_type is a number */
    }
    if (fields & 1 << 4) return RECEIVE;                /* batch_size */
    if (fields & 1 << 3) return ACK;
    if (fields & 1 << 2) return ROUTE;
    return size > 512 ? SEND : END;
}

/* Answers a message of Telemetry: the settings of a producer, or of a consumer. */
static void settle(struct peer *p, uint32_t stream, const char *body, size_t size) {
    const unsigned char *at = (const unsigned char *)body + 5, *end = at + size - 5;
    if (size < 8 || varint(&at, end) != (2 << 3 | 2)) return;
    varint(&at, end);                                   /* the size of the settings */
    const struct bytes *of = &answers[at[0] == 8 && at[1] == 1 ? PUBLISH : SUBSCRIBE];
    for (int i = 0; i < OPEN; i++) {
        if (p->open[i] == stream) break;
        if (p->open[i]) continue;
        p->open[i] = stream;
        put(p, HEADERS, WHOLE, stream, HEAD, sizeof HEAD - 1);
        break;
    }
    put(p, DATA, 0, stream, of->data, of->size);
}

static void answer(struct peer *p, uint32_t stream, const char *body, size_t length) {
    enum call call = call_of(body, length);
    if (call == RECEIVE && !p->has_received) { p->has_received = 1; call = NOTHING; }
    put(p, HEADERS, WHOLE, stream, HEAD, sizeof HEAD - 1);
    const char *data = answers[call].data;
    for (size_t left = answers[call].size, size = 0; left; data += size, left -= size)
        put(p, DATA, 0, stream, data, size = left < FRAME ? left : FRAME);
    put(p, HEADERS, WHOLE | LAST, stream, TAIL, sizeof TAIL - 1);
}

/* Takes a frame. Returns -1 when the connection must end. */
static int take(struct peer *p, int kind, int flags, uint32_t stream, const char *data,
                size_t size) {
    if (kind == DATA) {
        if ((p->received += size) >= 1 << 20) {
            char more[4];
            put32(more, p->received);
            put(p, UPDATE, 0, 0, more, 4);
            p->received = 0;
        }
        if (size > 5 && flags & LAST) answer(p, stream, data, size);
        else if (size > 5) settle(p, stream, data, size);
    } else if (kind == PING && !(flags & 1)) {
        put(p, PING, 1, 0, data, 8);
    } else if (kind == SETTINGS && !(flags & 1)) {
        for (size_t at = 0; at + 6 <= size; at += 6)
            if (data[at + 1] == 4 && u32(data + at + 2) < answers[RECEIVE].size) {
                fprintf(stderr, "the window of a stream is too small for a whole answer\n");
                return -1;
            }
        put(p, SETTINGS, 1, 0, "", 0);
    } else if (kind == UPDATE && !stream) {
        p->window += u32(data);
    }
    return 0;
}

/* Writes the frames for which the peer has room. Returns -1 when the connection has ended. */
static int flush(int fd, struct peer *p) {
    while (p->ready < p->to) {
        size_t size = u32(p->out + p->ready) >> 8;
        if (p->out[p->ready + 3] == DATA) {
            if ((long)size > p->window) break;
            p->window -= size;
        }
        p->ready += 9 + size;
    }
    while (p->from < p->ready) {
        size_t size = p->ready - p->from;
        ssize_t gone = p->tls ? SSL_write(p->tls, p->out + p->from, size)
                              : write(fd, p->out + p->from, size);
        if (gone < 0 && (p->tls || errno != EINTR)) return -1;
        if (gone > 0) p->from += gone;
    }
    return 0;
}

/* Begins to speak TLS, if the peer does. Returns -1 when that fails. */
static int begin(int fd, struct peer *p) {
    char first = 0;
    if (recv(fd, &first, 1, MSG_PEEK) <= 0) return -1;
    if (first != 0x16) return 0;
    p->tls = SSL_new(context);
    SSL_set_fd(p->tls, fd);
    return SSL_accept(p->tls) > 0 ? 0 : -1;
}

/* Reads what has come: of TLS, all records. Returns -1 when the connection has ended. */
static int receive(int fd, struct peer *p) {
    do {
        char *to = p->in + p->have;
        size_t room = INBOX - p->have;
        ssize_t got = p->tls ? SSL_read(p->tls, to, room) : read(fd, to, room);
        if (got <= 0) return -1;
        p->have += got;
    } while (p->tls && SSL_has_pending(p->tls) && p->have < INBOX / 2);
    return 0;
}

static int serve(int fd, struct peer *p) {
    if (!p->has_begun && !p->have && !p->tls && begin(fd, p)) return -1;
    if (receive(fd, p)) return -1;
    size_t at = 0;
    if (!p->has_begun) {
        static const char grown[] = "\0\0\x06\x04\0\0\0\0\0" "\0\x04\0\x10\0\0"
            "\0\0\x04\x08\0\0\0\0\0" "\x20\0\0\0";
        if (p->have < BEGIN) return 0;
        memcpy(p->out, grown, sizeof grown - 1);
        p->to = sizeof grown - 1;
        p->has_begun = 1, at = BEGIN;
    }
    while (p->have - at >= 9) {
        const char *frame = p->in + at;
        size_t size = u32(frame) >> 8;
        if (size > FRAME) return -1;
        if (p->have - at < 9 + size) break;
        if (take(p, frame[3], frame[4], u32(frame + 5) & 0x7fffffff, frame + 9, size)) return -1;
        at += 9 + size;
    }
    memmove(p->in, p->in + at, p->have -= at);
    return flush(fd, p);
}

static int read_answers(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return -1;
    for (int i = 0; i < CALLS; i++) {
        char size[4];
        if (fread(size, 1, 4, file) != 4) return -1;
        answers[i].size = u32(size);
        answers[i].data = malloc(answers[i].size + 1);
        if (fread(answers[i].data, 1, answers[i].size, file) != answers[i].size) return -1;
    }
    return fclose(file);
}

/* Names the only protocol that clients of gRPC want behind TLS. */
static int choose(SSL *tls, const unsigned char **out, unsigned char *size,
                  const unsigned char *in, unsigned int length, void *argument) {
    (void)tls, (void)in, (void)length, (void)argument;
    *out = (const unsigned char *)"h2", *size = 2;
    return SSL_TLSEXT_ERR_OK;
}

static int secure(const char *certificate, const char *key) {
    context = SSL_CTX_new(TLS_server_method());
    SSL_CTX_set_alpn_select_cb(context, choose, NULL);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_num_tickets(context, 0);
    return SSL_CTX_use_certificate_file(context, certificate, SSL_FILETYPE_PEM) != 1 ||
           SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1;
}

int main(int argc, char **argv) {
    static struct pollfd polled[PEERS];
    static struct peer peers[PEERS];
    if (argc != 5 || read_answers(argv[2]) || secure(argv[3], argv[4])) return 2;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    signal(SIGPIPE, SIG_IGN);
    int one = 1, count = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 64)) {
        perror("sdk_ceiling");
        return 1;
    }
    polled[0] = (struct pollfd){.fd = listener, .events = POLLIN};
    puts("ready");
    fflush(stdout);
    while (poll(polled, count, -1) >= 0 || errno == EINTR) {
        if (polled[0].revents && count < PEERS) {
            int fd = accept(listener, NULL, NULL);
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            struct peer *new = &peers[count];
            *new = (struct peer){.room = INBOX, .window = 65535};
            new->in = malloc(INBOX), new->out = malloc(INBOX);
            polled[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
        }
        for (int i = 1; i < count; i++) {
            if (!polled[i].revents || !serve(polled[i].fd, &peers[i])) continue;
            SSL_free(peers[i].tls);
            close(polled[i].fd);
            free(peers[i].in);
            free(peers[i].out);
            peers[i] = peers[--count];
            polled[i--] = polled[count];
        }
    }
    return 1;
}

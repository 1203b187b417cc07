/* Sends messages to a broker as Apache's Java client does, and costs little itself.
 *
 * Usage: send_floor PORT TOPIC QUEUES CONNECTIONS IN_FLIGHT MESSAGES BODY BATCH FORMAT
 *                   [RATE [USER SECRET]]
 *
 * Each connection keeps IN_FLIGHT requests unanswered. BATCH 1 sends SEND_MESSAGE_V2; a larger one
 * sends SEND_BATCH_MESSAGE with so many messages. FORMAT is json or rocketmq. Prints the number of
 * messages and the seconds; ends with 1 if an answer does not say SUCCESS. With RATE above 0, so many
 * messages a second are due. Each millisecond the next connection sends those that are, and ten times
 * a second the number of answered ones is printed. With USER and SECRET, each request is signed
 * (HMAC-SHA1).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { INBOX = 1 << 20 };
struct peer { int fd; char *in; size_t have; long sent, done; };

static const char *topic, *user, *secret;
static int queues, body_size, batch, is_json;
static long opaque = 100000;
static char *out;
static size_t out_size;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static char *u16(char *p, unsigned n) { *p++ = n >> 8; *p++ = n; return p; }
static char *u32(char *p, uint32_t n) { n = htonl(n); memcpy(p, &n, 4); return p + 4; }

/* SHA-1 (FIPS 180-4). */
struct sha1 { uint32_t h[5]; uint64_t size; unsigned char left[64]; };

static uint32_t turned(uint32_t x, int n) { return x << n | x >> (32 - n); }

static void sha1_block(struct sha1 *s, const unsigned char *p) {
    uint32_t w[80], a = s->h[0], b = s->h[1], c = s->h[2], d = s->h[3], e = s->h[4];
    for (int i = 0; i < 16; i++) {
        memcpy(&w[i], p + 4 * i, 4);
        w[i] = ntohl(w[i]);
    }
    for (int i = 16; i < 80; i++) w[i] = turned(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20 ? ((b & c) | (~b & d)) + 0x5A827999
                   : i < 40 ? (b ^ c ^ d) + 0x6ED9EBA1
                   : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8F1BBCDC
                   : (b ^ c ^ d) + 0xCA62C1D6;
        uint32_t next = turned(a, 5) + f + e + w[i];
        e = d; d = c; c = turned(b, 30); b = a; a = next;
    }
    s->h[0] += a; s->h[1] += b; s->h[2] += c; s->h[3] += d; s->h[4] += e;
}

static void sha1_add(struct sha1 *s, const void *data, size_t size) {
    const unsigned char *p = data;
    while (size) {
        size_t at = s->size % 64, some = 64 - at < size ? 64 - at : size;
        memcpy(s->left + at, p, some);
        s->size += some; p += some; size -= some;
        if (s->size % 64 == 0) sha1_block(s, s->left);
    }
}

static void sha1_end(struct sha1 *s, unsigned char *digest) {
    uint64_t bits = s->size * 8;
    unsigned char last = 0x80, size[8];
    for (int i = 0; i < 8; i++) size[i] = bits >> (56 - 8 * i);
    for (sha1_add(s, &last, 1), last = 0; s->size % 64 != 56;) sha1_add(s, &last, 1);
    sha1_add(s, size, 8);
    for (int i = 0; i < 5; i++) u32((char *)digest + 4 * i, s->h[i]);
}

static struct sha1 sha1_keyed(int pad) {
    struct sha1 s = {{0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0}, 0, {0}};
    unsigned char key[64];
    for (size_t i = 0; i < 64; i++) key[i] = (i < strlen(secret) ? secret[i] : 0) ^ pad;
    sha1_add(&s, key, 64);
    return s;
}

/* Writes the HMAC-SHA1 of two pieces in base64. */
static void sign(char *to, const char *fields, const char *body, size_t size) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char d[21] = {0};
    struct sha1 inner = sha1_keyed(0x36), outer = sha1_keyed(0x5c);
    sha1_add(&inner, fields, strlen(fields));
    sha1_add(&inner, body, size);
    sha1_end(&inner, d);
    sha1_add(&outer, d, 20);
    sha1_end(&outer, d);
    for (int i = 0; i < 7; i++) {
        uint32_t n = d[3 * i] << 16 | d[3 * i + 1] << 8 | d[3 * i + 2];
        for (int j = 0; j < 4; j++) *to++ = letters[n >> (18 - 6 * j) & 63];
    }
    to[-1] = '=';
    *to = 0;
}

static int properties(char *p, long n, const char *equals, const char *ends) {
    return sprintf(p, "UNIQ_KEY%s7F000001B418251A69D75A3F%08lX%sWAIT%strue%s",
                   equals, n, ends, equals, ends);
}

static char *body(char *p, long n) {
    for (int i = 0; i < batch; i++) {
        if (batch > 1) {
            char own[256];
            int size = properties(own, n * batch + i, "\1", "\2");
            p = u32(p, 22 + body_size + size);
            p = u32(p, 0);                      /* magic */
            p = u32(p, 0);                      /* checksum of the body */
            p = u32(p, 0);                      /* flag */
            p = u32(p, body_size);
            memset(p, 'a' + n % 26, body_size);
            p = u16(p + body_size, size);
            memcpy(p, own, size);
            p += size;
        } else {
            memset(p, 'a' + n % 26, body_size);
            p += body_size;
        }
    }
    return p;
}

static char *field(char *p, const char *name, const char *value) {
    size_t size = strlen(value);
    p = u16(p, strlen(name));
    p = stpcpy(p, name);
    p = u32(p, size);
    memcpy(p, value, size);
    return p + size;
}

static char *frame(char *p) {
    char *begin = p, born[24], queue[12], own[256], signature[32] = "";
    static char content[1024], *made;
    long n = opaque++;
    int code = batch > 1 ? 320 : 310;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    sprintf(born, "%lld", (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000);
    sprintf(queue, "%d", (int)(n % queues));
    p += 8;
    const char *is_batch = batch > 1 ? "true" : "false";
    if (!made) made = malloc((size_t)batch * (body_size + 256));
    char *made_end = body(made, n);
    if (user) {
        if (batch > 1) *own = 0;
        else properties(own, n, "\1", "\2");
        sprintf(content, "%sproducers%sTBW1024%s0%s0%s0false%sbroker-a",
                user, topic, queue, born, own, is_batch);
        sign(signature, content, made, made_end - made);
    }
    if (is_json) {
        if (batch > 1) *own = 0;
        else properties(own, n, "\\u0001", "\\u0002");
        p += sprintf(p,
            "{\"code\":%d,\"extFields\":{\"a\":\"producers\",\"b\":\"%s\",\"c\":\"TBW102\","
            "\"d\":\"4\",\"e\":\"%s\",\"f\":\"0\",\"g\":\"%s\",\"h\":\"0\",\"i\":\"%s\",\"j\":\"0\","
            "\"k\":\"false\",\"m\":\"%s\",\"n\":\"broker-a\"",
            code, topic, queue, born, own, is_batch);
        if (user) p += sprintf(p, ",\"Signature\":\"%s\",\"AccessKey\":\"%s\"", signature, user);
        p += sprintf(p,
            "},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%ld,"
            "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":493}", n);
    } else {
        if (batch > 1) *own = 0;
        else properties(own, n, "\1", "\2");
        p = u16(p, code);
        *p++ = 0;
        p = u16(p, 493);
        p = u32(p, n);
        p = u32(p, 0);
        p = u32(p, 0);                          /* no remark */
        char *size_at = p;
        p += 4;
        p = field(p, "a", "producers");
        p = field(p, "b", topic);
        p = field(p, "c", "TBW102");
        p = field(p, "d", "4");
        p = field(p, "e", queue);
        p = field(p, "f", "0");
        p = field(p, "g", born);
        p = field(p, "h", "0");
        p = field(p, "i", own);
        p = field(p, "j", "0");
        p = field(p, "k", "false");
        p = field(p, "m", is_batch);
        p = field(p, "n", "broker-a");
        if (user) p = field(field(p, "Signature", signature), "AccessKey", user);
        u32(size_at, p - size_at - 4);
    }
    uint32_t header = p - begin - 8;
    memcpy(p, made, made_end - made);
    p += made_end - made;
    u32(begin, p - begin - 4);
    u32(begin + 4, header | (is_json ? 0 : 1u << 24));
    return p;
}

static void send_some(struct peer *peer, long count) {
    char *end = out;
    for (long i = 0; i < count; i++) end = frame(end);
    peer->sent += count;
    for (char *p = out; p < end;) {
        ssize_t gone = write(peer->fd, p, end - p);
        if (gone < 0 && errno != EINTR) { perror("write"); exit(1); }
        if (gone > 0) p += gone;
    }
}

/* Returns how many answers have come in whole. */
static long take(struct peer *peer) {
    ssize_t got = read(peer->fd, peer->in + peer->have, INBOX - peer->have);
    if (got <= 0) { fprintf(stderr, "the connection ended\n"); exit(1); }
    peer->have += got;
    long count = 0;
    size_t at = 0;
    while (peer->have - at >= 4) {
        uint32_t size;
        memcpy(&size, peer->in + at, 4);
        size = ntohl(size) + 4;
        if (peer->have - at < size) break;
        char *header = peer->in + at + 8;
        int is_fine = is_json ? !memcmp(header, "{\"code\":0,", 10) : !header[0] && !header[1];
        if (!is_fine) { fprintf(stderr, "%.*s\n", (int)size - 8, header); exit(1); }
        at += size;
        count++;
    }
    memmove(peer->in, peer->in + at, peer->have - at);
    peer->have -= at;
    return count;
}

int main(int argc, char **argv) {
    if (argc < 10 || argc > 13) { fprintf(stderr, "see the head of this file\n"); return 2; }
    topic = argv[2];
    queues = atoi(argv[3]);
    int connections = atoi(argv[4]), in_flight = atoi(argv[5]);
    long messages = atol(argv[6]);
    body_size = atoi(argv[7]);
    batch = atoi(argv[8]);
    is_json = !strcmp(argv[9], "json");
    double rate = argc > 10 ? atof(argv[10]) / batch : 0;
    if (argc > 12) user = argv[11], secret = argv[12];
    long each = messages / batch / connections, done = 0;
    out_size = (size_t)in_flight * ((size_t)batch * (body_size + 256) + 1024);
    out = malloc(out_size);
    struct peer *peers = calloc(connections, sizeof *peers);
    struct pollfd *polled = calloc(connections, sizeof *polled);
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < connections; i++) {
        int one = 1;
        peers[i].fd = socket(AF_INET, SOCK_STREAM, 0);
        peers[i].in = malloc(INBOX);
        if (connect(peers[i].fd, (struct sockaddr *)&place, sizeof place)) { perror("connect"); return 1; }
        setsockopt(peers[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        polled[i] = (struct pollfd){.fd = peers[i].fd, .events = POLLIN};
    }
    double began = now();
    for (int i = 0; i < connections && !rate; i++)
        send_some(&peers[i], in_flight < each ? in_flight : each);
    long sent = 0, turns = 0;
    double tell_at = began;
    while (done < each * connections) {
        double late = rate ? began + turns * 1e-3 - now() : 0;
        if (rate && late <= 0) {
            struct peer *peer = &peers[turns++ % connections];
            long due = (long)((now() - began) * rate) - sent, left = each - peer->sent;
            long room = in_flight - (peer->sent - peer->done);
            if (due > room) due = room;
            if (due > left) due = left;
            if (due > 0) { send_some(peer, due); sent += due; }
            continue;
        }
        if (rate && now() >= tell_at) {
            printf("%ld\n", done * batch);
            fflush(stdout);
            tell_at += 0.1;
        }
        struct timespec rest = {.tv_nsec = late * 1e9};
        ppoll(polled, connections, rate ? &rest : NULL, NULL);
        for (int i = 0; i < connections; i++) {
            if (!polled[i].revents) continue;
            long came = take(&peers[i]), left = each - peers[i].sent;
            done += came;
            peers[i].done += came;
            if (rate) continue;
            if (came && left) send_some(&peers[i], came < left ? came : left);
        }
    }
    printf("%ld %.6f\n", done * batch, now() - began);
    return 0;
}

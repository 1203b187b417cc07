/* Sends messages to a broker as Apache's Java client does, and costs little itself.
 *
 * Usage: send_floor PORT TOPIC QUEUES CONNECTIONS IN_FLIGHT MESSAGES BODY BATCH FORMAT [RATE]
 *
 * Each connection keeps IN_FLIGHT requests unanswered. BATCH 1 sends SEND_MESSAGE_V2; a larger one
 * sends SEND_BATCH_MESSAGE with so many messages. FORMAT is json or rocketmq. Prints the number of
 * messages and the seconds; ends with 1 if an answer does not say SUCCESS. With RATE, so many messages
 * a second are due. Each millisecond the next connection sends those that are, and ten times a second
 * the number of answered ones is printed.
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

static const char *topic;
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
    char *begin = p, born[24], queue[12], own[256];
    long n = opaque++;
    int code = batch > 1 ? 320 : 310;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    sprintf(born, "%lld", (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000);
    sprintf(queue, "%d", (int)(n % queues));
    p += 8;
    const char *is_batch = batch > 1 ? "true" : "false";
    if (is_json) {
        if (batch > 1) *own = 0;
        else properties(own, n, "\\u0001", "\\u0002");
        p += sprintf(p,
            "{\"code\":%d,\"extFields\":{\"a\":\"producers\",\"b\":\"%s\",\"c\":\"TBW102\","
            "\"d\":\"4\",\"e\":\"%s\",\"f\":\"0\",\"g\":\"%s\",\"h\":\"0\",\"i\":\"%s\",\"j\":\"0\","
            "\"k\":\"false\",\"m\":\"%s\",\"n\":\"broker-a\"},\"flag\":0,\"language\":\"JAVA\","
            "\"opaque\":%ld,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":493}",
            code, topic, queue, born, own, is_batch, n);
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
        u32(size_at, p - size_at - 4);
    }
    uint32_t header = p - begin - 8;
    p = body(p, n);
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
    if (argc < 10 || argc > 11) { fprintf(stderr, "see the head of this file\n"); return 2; }
    topic = argv[2];
    queues = atoi(argv[3]);
    int connections = atoi(argv[4]), in_flight = atoi(argv[5]);
    long messages = atol(argv[6]);
    body_size = atoi(argv[7]);
    batch = atoi(argv[8]);
    is_json = !strcmp(argv[9], "json");
    double rate = argc > 10 ? atof(argv[10]) / batch : 0;
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

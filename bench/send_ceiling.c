/* Answers a RocketMQ client as a name server and a broker do, and stores nothing.
 *
 * Usage: send_ceiling PORT
 *
 * All topics have 8 queues at this port. Each request is answered with SUCCESS at once, so no
 * broker can be faster: what a client reaches here is its own ceiling. Understands JSON headers
 * only. Runs until it is ended.
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
#include <unistd.h>

enum { INBOX = 8 << 20, OUTBOX = 4 << 20, PEERS = 256, ROUTE = 105, ANSWER_MAX = 1024 };
struct peer { char *in; size_t have; };

static int port;
static char out[OUTBOX];

static uint32_t u32(const char *p) { uint32_t n; memcpy(&n, p, 4); return ntohl(n); }
static char *put32(char *p, uint32_t n) { n = htonl(n); memcpy(p, &n, 4); return p + 4; }

static long number(const char *header, size_t size, const char *name) {
    char *at = memmem(header, size, name, strlen(name));
    return at ? strtol(at + strlen(name), NULL, 10) : 0;
}

/* Writes the answer to one request; returns the end of what is to be sent. */
static char *answer(char *p, const char *header, size_t size) {
    long code = number(header, size, "\"code\":"), flag = number(header, size, "\"flag\":");
    if (flag & 2) return p;                     /* one-way */
    char body[512] = "";
    if (code == ROUTE)
        sprintf(body,
            "{\"brokerDatas\":[{\"brokerAddrs\":{\"0\":\"127.0.0.1:%d\"},\"brokerName\":\"ceiling\","
            "\"cluster\":\"DefaultCluster\"}],\"filterServerTable\":{},\"queueDatas\":[{"
            "\"brokerName\":\"ceiling\",\"perm\":6,\"readQueueNums\":8,\"topicSysFlag\":0,"
            "\"writeQueueNums\":8}]}", port);
    char *text = p + 8;
    int length = sprintf(text,
        "{\"code\":0,\"extFields\":{\"msgId\":\"7F00000100002A9F0000000000000000\",\"queueId\":\"0\","
        "\"queueOffset\":\"0\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":%ld,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":493}",
        number(header, size, "\"opaque\":"));
    size_t rest = strlen(body);
    memcpy(text + length, body, rest);
    put32(put32(p, 4 + length + rest), length);
    return text + length + rest;
}

static int send_all(int fd, const char *from, const char *to) {
    while (from < to) {
        ssize_t gone = write(fd, from, to - from);
        if (gone < 0 && errno != EINTR) return -1;
        if (gone > 0) from += gone;
    }
    return 0;
}

/* Answers what has come in whole. Returns -1 when the connection has ended. */
static int serve(int fd, struct peer *peer) {
    ssize_t got = read(fd, peer->in + peer->have, INBOX - peer->have);
    if (got <= 0) return -1;
    peer->have += got;
    size_t at = 0;
    char *end = out;
    while (peer->have - at >= 8) {
        size_t size = (size_t)u32(peer->in + at) + 4, header = u32(peer->in + at + 4) & 0xffffff;
        if (size > INBOX || header + 8 > size) return -1;
        if (peer->have - at < size) break;
        end = answer(end, peer->in + at + 8, header);
        at += size;
        if (end > out + OUTBOX - ANSWER_MAX) {
            if (send_all(fd, out, end)) return -1;
            end = out;
        }
    }
    memmove(peer->in, peer->in + at, peer->have - at);
    peer->have -= at;
    return send_all(fd, out, end);
}

int main(int argc, char **argv) {
    if (argc != 2) { fprintf(stderr, "see the head of this file\n"); return 2; }
    port = atoi(argv[1]);
    static struct pollfd polled[PEERS];
    static struct peer peers[PEERS];
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(port)};
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1, count = 1;
    polled[0] = (struct pollfd){.fd = socket(AF_INET, SOCK_STREAM, 0), .events = POLLIN};
    setsockopt(polled[0].fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(polled[0].fd, (struct sockaddr *)&place, sizeof place) || listen(polled[0].fd, 64)) {
        perror("listen");
        return 1;
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        poll(polled, count, -1);
        for (int i = count - 1; i > 0; i--) {
            if (!polled[i].revents || !serve(polled[i].fd, &peers[i])) continue;
            close(polled[i].fd);
            free(peers[i].in);
            polled[i] = polled[--count];
            peers[i] = peers[count];
        }
        if (!polled[0].revents || count == PEERS) continue;
        int fd = accept(polled[0].fd, NULL, NULL);
        if (fd < 0) continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        polled[count] = (struct pollfd){.fd = fd, .events = POLLIN};
        peers[count++] = (struct peer){.in = malloc(INBOX)};
    }
}

/*
 * Calls on UDP sockets, with a line for each result. The lines must be the same on the kernel and
 * on Weft. Ports differ from run to run, so the program prints the names of their sockets instead.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAMES_MAX 32
static struct { int port; const char *name; } names[NAMES_MAX];
static int name_count;

static void say_result(const char *what, ssize_t result)
{
    if (result < 0)
        printf("%s: %s\n", what, strerrorname_np(errno));
    else
        printf("%s: %zd\n", what, result);
}

static struct sockaddr_in own(int fd)
{
    struct sockaddr_in address = {0};
    socklen_t len = sizeof address;
    getsockname(fd, (struct sockaddr *)&address, &len);
    return address;
}

static void name(int fd, const char *text)
{
    names[name_count].port = ntohs(own(fd).sin_port); /* Both families have the port at the same offset. */
    names[name_count].name = text;
    name_count = (name_count + 1) % NAMES_MAX;
}

static const char *name_of(int port)
{
    for (int back = 1; back <= NAMES_MAX; back++) {
        int index = (name_count + NAMES_MAX - back) % NAMES_MAX;
        if (names[index].name && names[index].port == port)
            return names[index].name;
    }
    return "?";
}

static void say_address(const void *place, socklen_t len)
{
    char text[64] = "";
    const struct sockaddr_in *v4 = place;
    const struct sockaddr_in6 *v6 = place;
    if (v4->sin_family == AF_INET)
        inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    else if (v4->sin_family == AF_INET6)
        inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    printf(" from %s %s (%u bytes)", name_of(ntohs(v4->sin_port)), text, len);
}

static int open_socket(const char *text, const char *address)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = inet_addr(address) };
    if (bind(fd, (struct sockaddr *)&to, sizeof to))
        perror("bind");
    name(fd, text);
    return fd;
}

static ssize_t send_to(int from, int to, const void *bytes, size_t len)
{
    struct sockaddr_in address = own(to);
    if (address.sin_addr.s_addr == INADDR_ANY)
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return sendto(from, bytes, len, 0, (struct sockaddr *)&address, sizeof address);
}

static void receive(int fd, size_t room, int flags)
{
    static char bytes[70000];
    struct sockaddr_storage from = {0};
    socklen_t len = sizeof from;
    ssize_t received;
    do {
        received = recvfrom(fd, bytes, room, flags, (struct sockaddr *)&from, &len);
    } while (received < 0 && errno == EINTR); /* The process was stopped, and went on. */
    if (received < 0) {
        say_result("  receive", received);
        return;
    }
    size_t shown = (size_t)received < room ? (size_t)received : room;
    printf("  receive: %zd '%.*s'", received, (int)(shown < 20 ? shown : 20), bytes);
    say_address(&from, len);
    printf("\n");
}

/* Like epoll_wait, which ends with EINTR if the process was stopped and goes on. */
static int wait_for_events(int epoll, struct epoll_event *events, int most, int ms)
{
    int count;
    do {
        count = epoll_wait(epoll, events, most, ms);
    } while (count < 0 && errno == EINTR);
    return count;
}

/* Polls the inbox of a socket, which opens it: later datagrams to it go through memory. */
static void look(int fd)
{
    char byte;
    recv(fd, &byte, 1, MSG_DONTWAIT);
    recv(fd, &byte, 1, MSG_DONTWAIT);
}

static void boundaries(void)
{
    printf("boundaries\n");
    int a = open_socket("a", "127.0.0.1"), b = open_socket("b", "127.0.0.1");
    look(b);
    say_result("empty", send_to(a, b, "", 0));
    say_result("short", send_to(a, b, "hello", 5));
    say_result("next", send_to(a, b, "world!", 6));
    receive(b, 100, 0);
    receive(b, 100, 0);
    receive(b, 3, 0);
    receive(b, 100, MSG_DONTWAIT);
    send_to(a, b, "truncated", 9);
    receive(b, 4, MSG_TRUNC);
    send_to(a, b, "peeked", 6);
    receive(b, 100, MSG_PEEK);
    receive(b, 2, MSG_PEEK | MSG_TRUNC);
    int waiting = -1;
    ioctl(b, FIONREAD, &waiting);
    printf("FIONREAD: %d\n", waiting);
    receive(b, 100, 0);
    send_to(a, b, "read", 4);
    char bytes[100];
    say_result("read of nothing", read(b, bytes, 0));
    say_result("read", read(b, bytes, sizeof bytes));
    send_to(a, b, "vector", 6);
    struct iovec list[2] = { { bytes, 2 }, { bytes + 10, 90 } };
    say_result("readv", readv(b, list, 2));
    printf("  '%.2s' '%.4s'\n", bytes, bytes + 10);
    send_to(a, b, "none", 4);
    say_result("recv of nothing", recv(b, bytes, 0, MSG_TRUNC));
    receive(b, 100, MSG_DONTWAIT);
    static char big[70000];
    memset(big, 'x', sizeof big);
    say_result("longest", send_to(a, b, big, 65507));
    receive(b, sizeof big, 0);
    say_result("too long", send_to(a, b, big, 65508));
    receive(b, 100, MSG_DONTWAIT);
    send_to(a, a, "self", 4);
    receive(a, 100, 0);
    /* An address that is longer than its buffer is truncated. */
    struct sockaddr_in from;
    memset(&from, 0xee, sizeof from);
    socklen_t len = 4;
    send_to(a, b, "name", 4);
    say_result("short name", recvfrom(b, bytes, 100, 0, (struct sockaddr *)&from, &len));
    printf("  %u bytes, then %x\n", len, from.sin_addr.s_addr);
    close(a);
    close(b);
}

static void messages(void)
{
    printf("messages\n");
    int a = open_socket("a", "0.0.0.0"), b = open_socket("b", "0.0.0.0");
    look(b);
    char one[3] = "", two[100] = "", control[100];
    struct sockaddr_in from;
    struct iovec list[2] = { { one, 3 }, { two, 4 } };
    struct msghdr header = { .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = list,
        .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof control };
    send_to(a, b, "a message", 9);
    say_result("recvmsg", recvmsg(b, &header, 0));
    printf("  '%.3s' '%.4s' flags %x control %zu name", one, two, header.msg_flags,
        header.msg_controllen);
    say_address(&from, header.msg_namelen);
    printf("\n");
    struct sockaddr_in to = own(b);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct mmsghdr out[3], in[4];
    struct iovec parts[3] = { { "one", 3 }, { "", 0 }, { "three", 5 } };
    static char rooms[4][16];
    struct iovec places[4];
    memset(out, 0, sizeof out);
    memset(in, 0, sizeof in);
    for (int i = 0; i < 3; i++)
        out[i].msg_hdr = (struct msghdr){ .msg_name = &to, .msg_namelen = sizeof to,
            .msg_iov = &parts[i], .msg_iovlen = 1 };
    for (int i = 0; i < 4; i++) {
        places[i] = (struct iovec){ rooms[i], 4 };
        in[i].msg_hdr = (struct msghdr){ .msg_iov = &places[i], .msg_iovlen = 1 };
    }
    say_result("sendmmsg", sendmmsg(a, out, 3, 0));
    int received = recvmmsg(b, in, 4, MSG_WAITFORONE, NULL);
    say_result("recvmmsg", received);
    for (int i = 0; i < received; i++)
        printf("  %u flags %x\n", in[i].msg_len, in[i].msg_hdr.msg_flags);
    /* A program that requests ancillary data gets it. */
    int on = 1;
    setsockopt(b, IPPROTO_IP, IP_PKTINFO, &on, sizeof on);
    send_to(a, b, "info", 4);
    header.msg_controllen = sizeof control;
    header.msg_namelen = sizeof from;
    say_result("recvmsg", recvmsg(b, &header, 0));
    struct cmsghdr *first = CMSG_FIRSTHDR(&header);
    printf("  control %d\n", first ? first->cmsg_type : -1);
    /* UDP_SEGMENT. */
    uint16_t segment = 4;
    int c = open_socket("c", "127.0.0.1");
    look(c);
    setsockopt(a, SOL_UDP, UDP_SEGMENT, &(int){ segment }, sizeof(int));
    say_result("segments", send_to(a, c, "12345678", 8));
    receive(c, 100, 0);
    receive(c, 100, 0);
    close(a);
    close(b);
    close(c);
    /* One datagram in two parts. */
    a = open_socket("a", "127.0.0.1");
    b = open_socket("b", "127.0.0.1");
    look(b);
    to = own(b);
    connect(a, (struct sockaddr *)&to, sizeof to);
    say_result("more", send(a, "be", 2, MSG_MORE));
    say_result("and", send(a, "gin", 3, 0));
    receive(b, 100, 0);
    receive(b, 100, MSG_DONTWAIT);
    close(a);
    close(b);
}

static void connected(void)
{
    printf("connected\n");
    int a = open_socket("a", "127.0.0.1"), b = open_socket("b", "127.0.0.1"),
        c = open_socket("c", "127.0.0.1");
    struct sockaddr_in to = own(a), nobody = { .sin_family = AF_UNSPEC };
    look(a);
    look(b);
    say_result("send to nobody", send(a, "x", 1, 0));
    send_to(c, b, "before", 6);
    say_result("connect", connect(b, (struct sockaddr *)&to, sizeof to));
    say_result("from a stranger", send_to(c, b, "stranger", 8));
    say_result("from the peer", send_to(a, b, "peer", 4));
    receive(b, 100, 0);
    receive(b, 100, 0);
    receive(b, 100, MSG_DONTWAIT);
    say_result("send", send(b, "to the peer", 11, 0));
    receive(a, 100, 0);
    say_result("write", write(b, "", 0));
    receive(a, 100, 0);
    say_result("elsewhere", send_to(b, c, "elsewhere", 9));
    receive(c, 100, 0);
    say_result("disconnect", connect(b, (struct sockaddr *)&nobody, sizeof nobody));
    /* The kernel chose the port of b, and has taken it back. */
    say_result("unbound", send_to(c, b, "nobody", 6));
    say_result("bound again", send_to(b, c, "new port", 8));
    name(b, "b");
    receive(c, 100, 0);
    look(b);
    say_result("from a stranger", send_to(c, b, "stranger", 8));
    receive(b, 100, 0);
    say_result("getpeername", getpeername(b, (struct sockaddr *)&to, &(socklen_t){ sizeof to }));
    close(a);
    close(b);
    close(c);
}

static void refused(void)
{
    printf("refused\n");
    int a = open_socket("a", "127.0.0.1"), b = open_socket("b", "127.0.0.1");
    struct sockaddr_in to = own(b);
    connect(a, (struct sockaddr *)&to, sizeof to);
    look(b);
    say_result("send", send(a, "x", 1, 0));
    receive(b, 10, 0);
    close(b);
    say_result("send", send(a, "x", 1, 0));
    receive(a, 10, MSG_DONTWAIT);
    say_result("send", send(a, "x", 1, 0));
    say_result("send", send(a, "x", 1, 0));
    int error = -1;
    getsockopt(a, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){ sizeof error });
    printf("SO_ERROR: %d\n", error);
    /* Another socket is bound to the port. */
    b = socket(AF_INET, SOCK_DGRAM, 0);
    say_result("bind", bind(b, (struct sockaddr *)&to, sizeof to));
    name(b, "b");
    look(b);
    say_result("send", send(a, "again", 5, 0));
    receive(b, 10, 0);
    /* The receiver is killed while it polls. */
    fflush(stdout);
    int pipes[2];
    if (pipe(pipes))
        return;
    close(b);
    pid_t child = fork();
    if (child == 0) {
        b = socket(AF_INET, SOCK_DGRAM, 0);
        bind(b, (struct sockaddr *)&to, sizeof to);
        look(b);
        look(b);
        if (write(pipes[1], "r", 1) == 1)
            raise(SIGSTOP);
        _exit(0);
    }
    char byte;
    if (read(pipes[0], &byte, 1) != 1)
        return;
    waitpid(child, NULL, WUNTRACED);
    say_result("to the stopped", send(a, "1", 1, 0));
    say_result("to the stopped", send(a, "2", 1, 0));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    usleep(20000);
    send(a, "3", 1, 0);
    error = 0;
    for (int tries = 0; tries < 3 && !error; tries++)
        error = send(a, "4", 1, 0) < 0 ? errno : 0;
    printf("to the dead: %s\n", strerrorname_np(error));
    close(a);
}

static void readiness(void)
{
    printf("readiness\n");
    int a = open_socket("a", "127.0.0.1"), b = open_socket("b", "127.0.0.1");
    struct pollfd set = { .fd = b, .events = POLLIN | POLLOUT };
    say_result("poll", poll(&set, 1, 0));
    printf("  %x\n", set.revents);
    set.events = POLLIN;
    say_result("poll", poll(&set, 1, 10));
    send_to(a, b, "x", 1);
    say_result("poll", poll(&set, 1, -1));
    printf("  %x\n", set.revents);
    receive(b, 10, 0);
    say_result("poll", poll(&set, 1, 0));
    for (int i = 0; i < 20; i++) {
        send_to(a, b, "y", 1);
        if (poll(&set, 1, -1) != 1 || recv(b, &(char){ 0 }, 1, 0) != 1)
            printf("poll failed\n");
    }
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(b, &reads);
    struct timeval none = { 0, 0 };
    say_result("select", select(b + 1, &reads, NULL, NULL, &none));
    send_to(a, b, "z", 1);
    FD_SET(b, &reads);
    say_result("select", select(b + 1, &reads, NULL, NULL, NULL));
    receive(b, 10, MSG_DONTWAIT);
    for (int mode = 0; mode < 3; mode++) {
        const uint32_t modes[] = { 0, EPOLLET, EPOLLONESHOT };
        int epoll = epoll_create1(0);
        struct epoll_event event = { .events = EPOLLIN | modes[mode], .data.u64 = 7 }, found[4];
        say_result("add", epoll_ctl(epoll, EPOLL_CTL_ADD, b, &event));
        say_result("wait", epoll_wait(epoll, found, 4, 0));
        for (int i = 0; i < 3; i++) {
            send_to(a, b, "x", 1);
            int count = wait_for_events(epoll, found, 4, 100);
            printf("wait: %d events %x data %lu\n", count, count > 0 ? found[0].events : 0,
                count > 0 ? (unsigned long)found[0].data.u64 : 0);
            say_result("again", epoll_wait(epoll, found, 4, 0));
            receive(b, 10, MSG_DONTWAIT);
            say_result("after", epoll_wait(epoll, found, 4, 0));
        }
        say_result("mod", epoll_ctl(epoll, EPOLL_CTL_MOD, b, &event));
        say_result("wait", epoll_wait(epoll, found, 4, 0));
        say_result("del", epoll_ctl(epoll, EPOLL_CTL_DEL, b, NULL));
        send_to(a, b, "x", 1);
        say_result("deleted", epoll_wait(epoll, found, 4, 0));
        receive(b, 10, MSG_DONTWAIT);
        close(epoll);
    }
    struct timeval soon = { 0, 20000 };
    setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    receive(b, 10, 0);
    fcntl(b, F_SETFL, O_NONBLOCK);
    receive(b, 10, 0);
    send_to(a, b, "last", 4);
    receive(b, 10, 0);
    say_result("shutdown", shutdown(b, SHUT_RDWR));
    close(a);
    close(b);
}

/* An epoll instance is added to another one, or polled, after datagrams have arrived. */
static void nesting_late(uint32_t mode, int by_poll)
{
    int a = open_socket("a", "127.0.0.1"), b = open_socket("b", "127.0.0.1");
    int inner = epoll_create1(0), outer = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN | mode, .data.u64 = 7 }, found[4];
    struct pollfd set = { .fd = inner, .events = POLLIN };
    printf("nesting late: mode %x, %s\n", mode, by_poll ? "poll" : "epoll");
    epoll_ctl(inner, EPOLL_CTL_ADD, b, &event);
    look(b);
    say_result("waits", send_to(a, b, "waits", 5));
    say_result("another", send_to(a, b, "another", 7));
    event.events = EPOLLIN;
    if (by_poll)
        say_result("poll", poll(&set, 1, 100));
    say_result("add", epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event));
    say_result("outer", wait_for_events(outer, found, 4, 100));
    int count = wait_for_events(inner, found, 4, 100);
    printf("inner: %d events %x data %d\n", count, count > 0 ? found[0].events : 0,
        count > 0 ? (int)found[0].data.u64 : 0);
    receive(b, 100, MSG_DONTWAIT);
    say_result("outer, one left", wait_for_events(outer, found, 4, 10));
    receive(b, 100, MSG_DONTWAIT);
    say_result("outer", wait_for_events(outer, found, 4, 10));
    say_result("poll", poll(&set, 1, 10));
    say_result("inner", epoll_wait(inner, found, 4, 0));
    send_to(a, b, "next", 4);
    say_result("outer", wait_for_events(outer, found, 4, 10));
    say_result("inner", epoll_wait(inner, found, 4, 0));
    receive(b, 100, MSG_DONTWAIT);
    say_result("outer", wait_for_events(outer, found, 4, 10));
    close(a);
    close(b);
    close(inner);
    close(outer);
}

static void families(void)
{
    printf("families\n");
    int six = socket(AF_INET6, SOCK_DGRAM, 0);
    struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT };
    bind(six, (struct sockaddr *)&any, sizeof any);
    name(six, "six");
    socklen_t len = sizeof any;
    getsockname(six, (struct sockaddr *)&any, &len);
    look(six);
    int four = open_socket("four", "0.0.0.0");
    look(four);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = any.sin6_port,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    for (int i = 0; i < 3; i++) {
        say_result("four to six",
            sendto(four, "hello", 5, 0, (struct sockaddr *)&to, sizeof to));
        receive(six, 100, 0);
    }
    struct sockaddr_in6 mapped = { .sin6_family = AF_INET6, .sin6_port = own(four).sin_port };
    inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr);
    say_result("six to four", sendto(six, "hi", 2, 0, (struct sockaddr *)&mapped, sizeof mapped));
    receive(four, 100, 0);
    int other = socket(AF_INET6, SOCK_DGRAM, 0);
    any.sin6_addr = in6addr_loopback;
    say_result("unbound", sendto(other, "new", 3, 0, (struct sockaddr *)&any, sizeof any));
    name(other, "other");
    receive(six, 100, 0);
    say_result("bound", sendto(other, "old", 3, 0, (struct sockaddr *)&any, sizeof any));
    receive(six, 100, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    say_result("another address", sendto(four, "2", 1, 0, (struct sockaddr *)&to, sizeof to));
    receive(six, 100, 0);
    close(six);
    close(four);
    close(other);
}

static void sharing(void)
{
    printf("sharing\n");
    int on = 1;
    int a = open_socket("a", "127.0.0.1");
    struct sockaddr_in any = { .sin_family = AF_INET }, one;
    int b = socket(AF_INET, SOCK_DGRAM, 0), c = socket(AF_INET, SOCK_DGRAM, 0);
    setsockopt(b, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(c, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    bind(b, (struct sockaddr *)&any, sizeof any);
    look(b);
    one = own(b);
    one.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    say_result("any", sendto(a, "any", 3, 0, (struct sockaddr *)&one, sizeof one));
    receive(b, 10, MSG_DONTWAIT);
    say_result("bind", bind(c, (struct sockaddr *)&one, sizeof one));
    look(c);
    say_result("one", sendto(a, "one", 3, 0, (struct sockaddr *)&one, sizeof one));
    receive(b, 10, MSG_DONTWAIT);
    receive(c, 10, MSG_DONTWAIT);
    close(c);
    say_result("any", sendto(a, "any", 3, 0, (struct sockaddr *)&one, sizeof one));
    receive(b, 10, MSG_DONTWAIT);
    /* A copy of the descriptor receives, and then a child. */
    int copy = dup(b);
    close(b);
    look(copy);
    say_result("copy", sendto(a, "copy", 4, 0, (struct sockaddr *)&one, sizeof one));
    receive(copy, 10, MSG_DONTWAIT);
    sendto(a, "child", 5, 0, (struct sockaddr *)&one, sizeof one);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        receive(copy, 10, MSG_DONTWAIT);
        look(copy);
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    receive(copy, 10, MSG_DONTWAIT);
    sendto(a, "parent", 6, 0, (struct sockaddr *)&one, sizeof one);
    receive(copy, 10, 0);
    close(copy);
    connect(a, (struct sockaddr *)&one, sizeof one);
    send(a, "x", 1, 0);
    say_result("closed", send(a, "x", 1, 0));
    close(a);
}

/* Many datagrams from several processes: each arrives at most once, and complete. */
static void many(void)
{
    enum { SENDERS = 3, COUNT = 2000 };
    printf("many\n");
    int b = open_socket("b", "127.0.0.1"), acks[SENDERS][2];
    static unsigned char seen[SENDERS][COUNT];
    fflush(stdout);
    for (int sender = 0; sender < SENDERS; sender++) {
        if (pipe(acks[sender]) || fork())
            continue;
        int a = socket(AF_INET, SOCK_DGRAM, 0);
        for (int i = 0; i < COUNT; i++) {
            int len = 8 + (i * 37 + sender) % 1400;
            char bytes[2000], byte;
            memset(bytes, sender + i, sizeof bytes);
            memcpy(bytes, &sender, 4);
            memcpy(bytes + 4, &i, 4);
            send_to(a, b, bytes, len);
            /* At most 16 datagrams are in flight. */
            if (i >= 16 && read(acks[sender][0], &byte, 1) != 1)
                _exit(1);
        }
        _exit(0);
    }
    int bad = 0, missing = 0;
    for (int i = 0; i < SENDERS * COUNT; i++) {
        unsigned char bytes[2000];
        int sender, number;
        ssize_t len = recv(b, bytes, sizeof bytes, 0);
        memcpy(&sender, bytes, 4);
        memcpy(&number, bytes + 4, 4);
        bad += len != 8 + (number * 37 + sender) % 1400;
        for (ssize_t at = 8; at < len; at++)
            bad += bytes[at] != (unsigned char)(sender + number);
        bad += seen[sender][number]++;
        bad += write(acks[sender][1], "a", 1) != 1;
    }
    for (int sender = 0; sender < SENDERS; sender++) {
        wait(NULL);
        for (int i = 0; i < COUNT; i++)
            missing += !seen[sender][i];
    }
    printf("bad %d missing %d\n", bad, missing);
    receive(b, 10, MSG_DONTWAIT);
    close(b);
}

/* A datagram wakes a receiver that sleeps in recvfrom, poll or epoll_wait. */
static void waking(void)
{
    printf("waking\n");
    int a = open_socket("a", "127.0.0.1"), b = open_socket("b", "127.0.0.1");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(a);
        int epoll = epoll_create1(0);
        struct epoll_event event = { .events = EPOLLIN };
        epoll_ctl(epoll, EPOLL_CTL_ADD, b, &event);
        for (int i = 0; i < 300; i++) {
            struct sockaddr_in from;
            socklen_t len = sizeof from;
            struct pollfd set = { .fd = b, .events = POLLIN };
            char bytes[10];
            if (i % 3 == 1)
                poll(&set, 1, -1);
            if (i % 3 == 2)
                wait_for_events(epoll, &event, 1, -1);
            ssize_t got = recvfrom(b, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &len);
            if (i % 7 == 0)
                usleep(300);
            sendto(b, bytes, got, 0, (struct sockaddr *)&from, len);
        }
        _exit(0);
    }
    int good = 0;
    for (int i = 0; i < 300; i++) {
        char bytes[10];
        send_to(a, b, &i, sizeof i);
        if (i % 5 == 0)
            usleep(500);
        good += recv(a, bytes, sizeof bytes, 0) == sizeof i && !memcmp(bytes, &i, sizeof i);
    }
    waitpid(child, NULL, 0);
    printf("echoed %d\n", good);
    close(a);
    close(b);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(240); /* Ends the program if it hangs. */
    boundaries();
    messages();
    connected();
    refused();
    readiness();
    for (int by_poll = 0; by_poll < 2; by_poll++) {
        nesting_late(0, by_poll);
        nesting_late(EPOLLET, by_poll);
        nesting_late(EPOLLONESHOT, by_poll);
        nesting_late(EPOLLEXCLUSIVE, by_poll);
    }
    families();
    sharing();
    many();
    waking();
    return 0;
}

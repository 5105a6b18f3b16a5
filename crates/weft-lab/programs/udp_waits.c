/*
 * Blocking calls that wait for datagrams: what wakes and interrupts them, and what happens when a
 * waiting receiver ends. The lines of results must be the same on the kernel and on Weft.
 *
 * A stranger is a program without Weft. Its datagrams are sent by a system call that no hook sees.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in own(int fd)
{
    struct sockaddr_in address = {0};
    getsockname(fd, (struct sockaddr *)&address, &(socklen_t){ sizeof address });
    return address;
}

static int open_socket(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    if (bind(fd, (struct sockaddr *)&to, sizeof to))
        perror("bind");
    return fd;
}

static ssize_t send_to(int from, struct sockaddr_in to, const void *bytes, size_t len)
{
    return sendto(from, bytes, len, 0, (struct sockaddr *)&to, sizeof to);
}

static ssize_t send_as_stranger(int from, struct sockaddr_in to, const void *bytes, size_t len)
{
    return syscall(SYS_sendto, from, bytes, len, 0, &to, sizeof to);
}

static double now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static volatile sig_atomic_t caught;

/* Like recvfrom. With a time limit, that ends with EINTR if the process was stopped and goes on,
 * without a handler. */
static ssize_t receive(int fd, char *bytes, size_t room, struct sockaddr_in *from)
{
    ssize_t len;
    do {
        len = recvfrom(fd, bytes, room, 0, (struct sockaddr *)from, &(socklen_t){ sizeof *from });
    } while (len < 0 && errno == EINTR && !caught);
    return len;
}

/* Like epoll_wait, which also ends with EINTR then. */
static int wait_for_events(int epoll, struct epoll_event *found, int ms)
{
    int count;
    do {
        count = epoll_wait(epoll, found, 1, ms);
    } while (count < 0 && errno == EINTR);
    return count;
}

/* Sends datagrams back. One that begins with a dot is the last. */
static void echo(int fd)
{
    char bytes[16];
    do {
        struct sockaddr_in from;
        ssize_t len = receive(fd, bytes, sizeof bytes, &from);
        if (len < 0 || send_to(fd, from, bytes, len) != len) {
            printf("echo failed\n");
            return;
        }
    } while (bytes[0] != '.');
}

/* Asks `count` questions and returns the number of right answers. If `strangers`, a stranger sends
 * each hundredth question. If `last`, the last question ends the echo. */
static int ask(int fd, struct sockaddr_in to, int count, int strangers, int last)
{
    int good = 0;
    char bytes[16];
    for (int i = 0; i < count; i++) {
        char text[16] = {0};
        int len = snprintf(text, sizeof text, "%s%d", last && i == count - 1 ? "." : "", i);
        if (strangers && i % 100 == 50)
            send_as_stranger(fd, to, text, len);
        else
            send_to(fd, to, text, len);
        good += recv(fd, bytes, sizeof bytes, 0) == len && !memcmp(bytes, text, len);
    }
    return good;
}

static void questions(void)
{
    int a = open_socket(), b = open_socket();
    fflush(stdout);
    if (fork() == 0) {
        echo(b);
        _exit(0);
    }
    printf("answers: %d\n", ask(a, own(b), 1000, 0, 0));
    printf("and to strangers: %d\n", ask(a, own(b), 1000, 1, 1));
    wait(NULL);
    close(a);
    close(b);
}

static void catch_signal(int number)
{
    (void)number;
    caught = 1;
}

/* A child whose waits were short waits once more. It gets up to 40 signals until its call ends. */
static void signals(int flags, int limited)
{
    int a = open_socket(), b = open_socket(), done[2];
    struct sockaddr_in to = own(b);
    if (pipe(done))
        return;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct sigaction action = { .sa_handler = catch_signal, .sa_flags = flags };
        sigaction(SIGUSR1, &action, NULL);
        struct timeval limit = { .tv_sec = limited ? 20 : 0 };
        setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        echo(b);
        char byte;
        struct sockaddr_in from;
        ssize_t got = receive(b, &byte, 1, &from);
        printf("interrupted %s: %s, caught %d\n", flags & SA_RESTART ? "with SA_RESTART" : "",
            got < 0 ? strerrorname_np(errno) : "went on", caught);
        fflush(stdout);
        _exit(write(done[1], "d", 1) != 1);
    }
    ask(a, to, 200, 0, 1);
    struct pollfd over = { .fd = done[0], .events = POLLIN };
    for (int i = 0; i < 40; i++) {
        if (poll(&over, 1, 1) == 1)
            break;
        kill(child, SIGUSR1);
    }
    send_to(a, to, "x", 1);
    waitpid(child, NULL, 0);
    close(a);
    close(b);
    close(done[0]);
    close(done[1]);
}

static void limits(void)
{
    int a = open_socket(), b = open_socket();
    fflush(stdout);
    if (fork() == 0) {
        echo(b);
        _exit(0);
    }
    ask(a, own(b), 200, 0, 1);
    wait(NULL);
    struct timeval limit = { .tv_usec = 30000 };
    setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (int i = 0; i < 2; i++) {
        double began = now_ms();
        char byte;
        struct sockaddr_in from;
        ssize_t got = receive(a, &byte, 1, &from);
        int error = errno;
        double took = now_ms() - began;
        printf("limited: %s, %s\n", got < 0 ? strerrorname_np(error) : "received",
            took > 29 && took < 60000 ? "in time" : "at the wrong time");
    }
    close(a);
    close(b);
}

static void *wait_for_ever(void *fd)
{
    echo(*(int *)fd);
    char byte;
    recv(*(int *)fd, &byte, 1, 0);
    return NULL;
}

static void cancellation(void)
{
    int a = open_socket(), b = open_socket();
    pthread_t thread;
    void *result = NULL;
    pthread_create(&thread, NULL, wait_for_ever, &b);
    ask(a, own(b), 200, 0, 1);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    printf("cancelled: %d\n", result == PTHREAD_CANCELED);
    close(a);
    close(b);
}

/* A receiver is killed while it waits. Its parent, with the same socket, gets later datagrams. */
static void succession(void)
{
    int a = open_socket(), b = open_socket(), got = 0;
    struct sockaddr_in to = own(b);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        echo(b);
        char byte;
        for (;;)
            recv(b, &byte, 1, 0);
    }
    ask(a, to, 200, 0, 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    char byte;
    for (int i = 0; i < 20; i++) {
        send_to(a, to, "x", 1);
        usleep(1000);
    }
    while (recv(b, &byte, 1, MSG_DONTWAIT) == 1)
        got++;
    printf("after a kill: %d\n", got);
    close(b);
    /* No process has the socket any more. */
    connect(a, (struct sockaddr *)&to, sizeof to);
    send(a, "x", 1, 0);
    printf("nobody: %s\n", send(a, "x", 1, 0) < 0 ? strerrorname_np(errno) : "sent");
    close(a);
}

static void become_receiver(const char *self, int fd)
{
    char text[32];
    snprintf(text, sizeof text, "%d", fd);
    execv(self, (char *[]){ (char *)self, "receive", text, NULL });
    _exit(1);
}

/* A program that only polls executes another one that receives, as inetd does. */
static void handing_on(const char *self, int unloaded)
{
    int a = open_socket(), b = open_socket();
    struct sockaddr_in to = own(b);
    fflush(stdout);
    if (fork() == 0) {
        struct pollfd set = { .fd = b, .events = POLLIN };
        for (int i = 0; i < 3; i++)
            poll(&set, 1, i < 2 ? 20 : -1);
        if (unloaded)
            unsetenv("LD_PRELOAD");
        become_receiver(self, b);
    }
    usleep(50000);
    for (int i = 0; i < 3; i++)
        send_to(a, to, "1234", 4);
    wait(NULL);
    close(a);
    close(b);
}

/* A program that has received executes another one while datagrams are unread. */
static void another_program(const char *self, int unloaded)
{
    int a = open_socket(), b = open_socket(), ready[2], sent[2];
    struct sockaddr_in to = own(b);
    char byte;
    if (pipe(ready) || pipe(sent))
        return;
    fflush(stdout);
    if (fork() == 0) {
        recv(b, &byte, 1, MSG_DONTWAIT);
        recv(b, &byte, 1, MSG_DONTWAIT);
        if (write(ready[1], "r", 1) != 1 || read(sent[0], &byte, 1) != 1)
            _exit(1);
        if (unloaded)
            unsetenv("LD_PRELOAD");
        become_receiver(self, b);
        _exit(1);
    }
    if (read(ready[0], &byte, 1) == 1)
        for (int i = 0; i < 3; i++)
            send_to(a, to, "1234", 4);
    if (write(sent[1], "s", 1) == 1)
        wait(NULL);
    close(a);
    close(b);
}

/* An epoll instance within another one, and in a call of poll. */
static void nesting(int received_before)
{
    int a = open_socket(), b = open_socket();
    int inner = epoll_create1(0), outer = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN, .data.fd = b }, found;
    epoll_ctl(inner, EPOLL_CTL_ADD, b, &event);
    char byte;
    for (int i = 0; i < received_before; i++) {
        send_to(a, own(b), "x", 1);
        wait_for_events(inner, &found, -1);
        recv(b, &byte, 1, 0);
        recv(b, &byte, 1, MSG_DONTWAIT);
    }
    event.data.fd = inner;
    epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event);
    fflush(stdout);
    if (fork() == 0) {
        for (int i = 0; i < 20; i++) {
            usleep(500);
            send_to(a, own(b), "x", 1);
            usleep(2000);
        }
        _exit(0);
    }
    int got = 0;
    struct pollfd set = { .fd = inner, .events = POLLIN };
    for (int i = 0; i < 20; i++) {
        int ready = i % 2 ? poll(&set, 1, 200000) : wait_for_events(outer, &found, 200000);
        if (ready == 1 && epoll_wait(inner, &found, 1, 0) == 1 && found.data.fd == b)
            got += recv(b, &byte, 1, MSG_DONTWAIT) == 1;
    }
    wait(NULL);
    printf("nested: %d\n", got);
    close(inner);
    close(outer);
    close(a);
    close(b);
}

/* Datagrams arrive in order although the receiver takes none for so long that the sender shuts its
 * inbox. */
static void stalls(void)
{
    int fd = open_socket(), sender = open_socket(), answers = open_socket();
    struct sockaddr_in to = own(fd);
    pid_t child = fork();
    if (!child) {
        echo(answers);
        _exit(0);
    }
    ask(fd, own(answers), 100, 0, 1);
    waitpid(child, NULL, 0);
    for (int round = 0; round < 4; round++) {
        char byte;
        for (int i = 0; i < 4; i++) {
            byte = '0' + i;
            if (i == 3)
                usleep(20000);
            send_to(sender, to, &byte, 1);
        }
        printf("behind a stall:");
        while (recv(fd, &byte, 1, MSG_DONTWAIT) == 1)
            printf(" %c", byte);
        printf("\n");
    }
    close(fd);
    close(sender);
    close(answers);
}

int main(int count, char **arguments)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(240); /* Ends the program if it hangs. */
    if (count == 3) {
        char bytes[16];
        int fd = atoi(arguments[2]), got = 0;
        while (got < 3 && recv(fd, bytes, sizeof bytes, 0) == 4)
            got++;
        printf("another program: %d\n", got);
        return 0;
    }
    questions();
    signals(0, 0);
    signals(SA_RESTART, 0);
    signals(SA_RESTART, 1);
    limits();
    cancellation();
    succession();
    handing_on(arguments[0], 0);
    handing_on(arguments[0], 1);
    another_program(arguments[0], 0);
    another_program(arguments[0], 1);
    nesting(0);
    nesting(50);
    stalls();
    return 0;
}

/*
 * Signal handlers that use sockets, epoll instances and datagrams. They interrupt threads that do
 * the same at random moments. No call may sleep for ever, and no byte may be lost.
 *
 *     signal_handlers SECONDS [malloc]
 *
 * The main thread and one more each send through their own connections, and watch these in one
 * epoll instance. Timers interrupt both. The handler has another connection in the same instance.
 * It closes and replaces this connection, adds, changes and deletes it, moves bytes through it, and
 * waits in the instance.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 2, CONNECTIONS = 4, HANDLERS = 1000 };

struct pair {
	int near, remote;
	uint32_t sent, received;
};

static struct sockaddr_in listens_at;
static int listener;
static int instance;
static volatile sig_atomic_t is_over;
static bool allocates;

/* The connections of a thread and of its handler. */
static struct worker {
	struct pair own[CONNECTIONS];
	struct pair handlers;
	int datagrams[2];
	timer_t timer;
	uint32_t random;
	unsigned long handled, rounds;
	pthread_t thread;
} workers[THREADS];

static __thread struct worker *self;

__attribute__((noreturn)) static void die(const char *what)
{
	dprintf(2, "%s: %s\n", what, strerror(errno));
	_exit(1);
}

static int check(int result, const char *what)
{
	if (result < 0)
		die(what);
	return result;
}

static uint32_t next_random(uint32_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state;
}

/* A lock: one thread at a time connects, so that accept returns its connection. If the lock is
 * taken a handler does something else. */
static volatile int connecting;

static bool make_pair(struct pair *pair)
{
	struct sockaddr_in own, peer;
	socklen_t len = sizeof own;

	if (__atomic_exchange_n(&connecting, 1, __ATOMIC_ACQUIRE))
		return false;
	pair->near = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	check(connect(pair->near, (struct sockaddr *)&listens_at, sizeof listens_at), "connect");
	pair->remote = check(accept4(listener, (struct sockaddr *)&peer, &len, 0), "accept");
	len = sizeof own;
	check(getsockname(pair->near, (struct sockaddr *)&own, &len), "getsockname");
	if (own.sin_port != peer.sin_port) {
		errno = EPROTO;
		die("accept returned another connection");
	}
	pair->sent = pair->received = 0;
	__atomic_store_n(&connecting, 0, __ATOMIC_RELEASE);
	return true;
}

static void put(struct pair *pair)
{
	uint32_t number = pair->sent + 1;
	ssize_t sent = send(pair->near, &number, sizeof number, MSG_DONTWAIT);

	if (sent == sizeof number)
		pair->sent = number;
	else if (sent >= 0 || errno != EAGAIN)
		die("send");
}

static bool take(struct pair *pair)
{
	uint32_t number;
	ssize_t received = recv(pair->remote, &number, sizeof number, MSG_DONTWAIT);

	if (received < 0 && errno == EAGAIN)
		return false;
	errno = EPROTO;
	if (received != sizeof number || number != pair->received + 1)
		die("recv");
	pair->received = number;
	return true;
}

static void control(int operation, int fd, void *what, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = what };

	check(epoll_ctl(instance, operation, fd, &event), "epoll_ctl");
}

static void begin_timer(struct worker *worker)
{
	struct itimerspec time = { 0 };

	time.it_value.tv_nsec = 1000 + next_random(&worker->random) % 60000;
	check(timer_settime(worker->timer, 0, &time, NULL), "timer_settime");
}

static void handle(int signal, siginfo_t *info, void *context)
{
	struct worker *worker = info->si_value.sival_ptr;
	struct pair *pair = &worker->handlers;
	struct epoll_event event;
	int before = errno;
	int copy;

	(void)signal;
	(void)context;
	if (worker != self)
		die("a handler runs on another thread");
	worker->handled++;
	switch (next_random(&worker->random) % 8) {
	case 0:
		if (__atomic_load_n(&connecting, __ATOMIC_RELAXED))
			break;
		while (take(pair))
			;
		check(close(pair->remote), "close");
		check(close(pair->near), "close");
		/* Another thread may hold the lock: wait for it. This thread, which the handler
		 * interrupts, does not hold it: the check above would have found it taken. */
		while (!make_pair(pair))
			;
		control(EPOLL_CTL_ADD, pair->remote, pair, EPOLLIN);
		break;
	case 1:
		control(EPOLL_CTL_MOD, pair->remote, pair, EPOLLIN | EPOLLRDHUP);
		break;
	case 2:
		control(EPOLL_CTL_DEL, pair->remote, NULL, 0);
		control(EPOLL_CTL_ADD, pair->remote, pair, EPOLLIN | EPOLLET);
		break;
	case 3:
		copy = check(dup(pair->remote), "dup");
		check(close(copy), "close");
		break;
	case 4:
		if (epoll_wait(instance, &event, 1, 0) < 0)
			die("epoll_wait");
		break;
	case 5:
		send(worker->datagrams[0], "hello", 5, MSG_DONTWAIT);
		recv(worker->datagrams[1], &event, 5, MSG_DONTWAIT);
		break;
	default:
		put(pair);
		if (next_random(&worker->random) % 2)
			while (take(pair))
				;
	}
	if (!is_over)
		begin_timer(worker);
	errno = before;
}

static void work(struct worker *worker)
{
	struct epoll_event events[CONNECTIONS];
	char text[8];
	int found;

	for (int i = 0; i < CONNECTIONS; i++)
		put(&worker->own[i]);
	send(worker->datagrams[0], "hello", 5, MSG_DONTWAIT);
	recv(worker->datagrams[1], text, 5, MSG_DONTWAIT);
	if (allocates)
		free(malloc(1 + next_random(&worker->random) % 5000));
	found = epoll_wait(instance, events, CONNECTIONS, worker->rounds % 64 == 0);
	if (found < 0 && errno != EINTR)
		die("epoll_wait");
	for (int i = 0; i < CONNECTIONS; i++) {
		struct pair *pair = &worker->own[i];

		while (take(pair))
			;
		if (worker->rounds % 16 == (unsigned)i)
			control(EPOLL_CTL_MOD, pair->remote, pair, EPOLLIN | EPOLLRDHUP);
	}
	worker->rounds++;
}

static void begin(struct worker *worker)
{
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 1 };
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t len = sizeof at;

	self = worker;
	worker->random = 2463534242u + (uint32_t)(worker - workers);
	for (int i = 0; i <= CONNECTIONS; i++) {
		struct pair *pair = i < CONNECTIONS ? &worker->own[i] : &worker->handlers;

		while (!make_pair(pair))
			usleep(100);
		control(EPOLL_CTL_ADD, pair->remote, pair, EPOLLIN);
	}
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	for (int i = 1; i >= 0; i--) {
		worker->datagrams[i] = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");
		if (i == 1) {
			check(bind(worker->datagrams[1], (struct sockaddr *)&at, len), "bind");
			check(getsockname(worker->datagrams[1], (struct sockaddr *)&at, &len),
			      "getsockname");
		} else {
			check(connect(worker->datagrams[0], (struct sockaddr *)&at, len), "connect");
		}
	}
	event.sigev_value.sival_ptr = worker;
	event._sigev_un._tid = (int)syscall(SYS_gettid);
	check(timer_create(CLOCK_MONOTONIC, &event, &worker->timer), "timer_create");
	begin_timer(worker);
}

static void *run(void *given)
{
	struct worker *worker = given;

	begin(worker);
	while (!is_over)
		work(worker);
	check(timer_delete(worker->timer), "timer_delete");
	for (int i = 0; i <= CONNECTIONS; i++) {
		struct pair *pair = i < CONNECTIONS ? &worker->own[i] : &worker->handlers;

		while (pair->received != pair->sent) {
			struct pollfd polled = { .fd = pair->remote, .events = POLLIN };

			if (poll(&polled, 1, -1) < 0 && errno != EINTR)
				die("poll");
			take(pair);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_sigaction = handle, .sa_flags = SA_SIGINFO };
	struct sigaction found;
	socklen_t len = sizeof listens_at;

	if (argc < 2)
		return 2;
	allocates = argc > 2;
	listens_at.sin_family = AF_INET;
	listens_at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	check(bind(listener, (struct sockaddr *)&listens_at, len), "bind");
	check(listen(listener, 16), "listen");
	check(getsockname(listener, (struct sockaddr *)&listens_at, &len), "getsockname");
	instance = check(epoll_create1(0), "epoll_create1");
	check(sigaction(SIGRTMIN + 1, &action, NULL), "sigaction");
	check(sigaction(SIGRTMIN + 1, NULL, &found), "sigaction");
	if (found.sa_sigaction != handle || !(found.sa_flags & SA_SIGINFO))
		die("sigaction returns another handler");
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&workers[i].thread, NULL, run, &workers[i]))
			die("pthread_create");
	for (int left = atoi(argv[1]); left > 0; left--)
		sleep(1);
	is_over = true;
	for (int i = 0; i < THREADS; i++)
		pthread_join(workers[i].thread, NULL);
	for (int i = 0; i < THREADS; i++)
		printf("%lu handled in %lu rounds\n", workers[i].handled, workers[i].rounds);
	for (int i = 0; i < THREADS; i++)
		if (workers[i].handled < HANDLERS)
			return 3;
	puts("done");
	return 0;
}

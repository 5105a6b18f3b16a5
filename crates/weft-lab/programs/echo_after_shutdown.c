/*
 * A server that echoes, waiting in one of the ways that programs use, and a client that sends, shuts
 * its half down with bytes unread, and takes everything back. So the connection leaves memory while
 * both directions are full.
 *
 *   echo_after_shutdown WAY CONNECTIONS BYTES [children]
 *
 * WAY: edges, one-shots (one thread waits in an epoll instance, another reads and writes), edges-alone,
 * level, poll, select (one thread). With edges, a call that moves less than it was asked to is the
 * sign that the socket is exhausted, and only an event that comes afterwards makes it ready again, as
 * runtimes have it (tokio). Each connection moves up to BYTES. With `children` the server starts a
 * program now and then, which also makes connections leave memory. Prints how many connections there
 * were; a server that waits STALLED_S seconds for one event ends the program.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIECE = 50000, CHUNK_MAX = 70001, PERIOD = 65521, STALLED_S = 240, PIECES_A_CHILD = 40 };

__attribute__((noreturn)) static void die(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	fflush(stdout);
	_exit(1);
}

static long check(long result, const char *what)
{
	if (result < 0)
		die(what);
	return result;
}

enum way { EDGES, ONE_SHOTS, EDGES_ALONE, LEVEL, POLL, SELECT, WAYS };

static const char *const names[WAYS] = { "edges", "one-shots", "edges-alone", "level", "poll", "select" };

/* The server's one connection. `ready` and `tick` are the poller's, under `lock`. */
static struct {
	enum way way;
	bool starts_children;
	int epoll, fd;
	uint32_t ready;
	unsigned tick;
	pthread_mutex_t lock;
	pthread_cond_t changed;
} served = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

__attribute__((noreturn)) static void stall(uint32_t events)
{
	int unread = -1;

	ioctl(served.fd, FIONREAD, &unread);
	printf("no event of %x in %d s; had %x; %d bytes unread\n", events, STALLED_S, served.ready, unread);
	fflush(stdout);
	_exit(1);
}

static uint32_t wait_in_epoll(uint32_t awaited, int timeout_ms)
{
	struct epoll_event event;
	int found;

	while ((found = epoll_wait(served.epoll, &event, 1, timeout_ms)) < 0 && errno == EINTR)
		;
	if (found == 0)
		stall(awaited);
	check(found, "epoll_wait");
	return event.events;
}

static void *poll_for_worker(void *argument)
{
	for (;;) {
		uint32_t events = wait_in_epoll(0, -1);

		pthread_mutex_lock(&served.lock);
		served.ready |= events;
		served.tick++;
		pthread_cond_signal(&served.changed);
		pthread_mutex_unlock(&served.lock);
	}
	return argument;
}

static void ask_for(uint32_t events)
{
	struct epoll_event event = { .events = events };

	check(epoll_ctl(served.epoll, EPOLL_CTL_MOD, served.fd, &event), "epoll_ctl");
}

/* Waits until the other thread has got one of `events`, and returns the number of the last event. */
static unsigned await_poller(uint32_t events)
{
	struct timespec until;
	unsigned tick;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += STALLED_S;
	pthread_mutex_lock(&served.lock);
	while (!(served.ready & events))
		if (pthread_cond_timedwait(&served.changed, &served.lock, &until) == ETIMEDOUT)
			stall(events);
	tick = served.tick;
	pthread_mutex_unlock(&served.lock);
	return tick;
}

static void await_select(uint32_t events)
{
	struct timeval limit = { .tv_sec = STALLED_S };
	fd_set to_read, to_write;

	FD_ZERO(&to_read);
	FD_ZERO(&to_write);
	FD_SET(served.fd, events & EPOLLIN ? &to_read : &to_write);
	if (check(select(served.fd + 1, &to_read, &to_write, NULL, &limit), "select") == 0)
		stall(events);
}

/* Waits until one of `events` is there, and returns the number of the last event. */
static unsigned await(uint32_t events)
{
	struct pollfd polled = { .fd = served.fd, .events = (short)events };

	switch (served.way) {
	case EDGES:
		return await_poller(events);
	case ONE_SHOTS:
		pthread_mutex_lock(&served.lock);
		served.ready = 0;
		pthread_mutex_unlock(&served.lock);
		ask_for(events | EPOLLONESHOT);
		return await_poller(events);
	case EDGES_ALONE:
		while (!(served.ready & events))
			served.ready |= wait_in_epoll(events, STALLED_S * 1000);
		return served.tick;
	case LEVEL:
		ask_for(events);
		wait_in_epoll(events, STALLED_S * 1000);
		return 0;
	case POLL:
		if (check(poll(&polled, 1, STALLED_S * 1000), "poll") == 0)
			stall(events);
		return 0;
	default:
		await_select(events);
		return 0;
	}
}

/* The socket is exhausted, unless an event has come since `tick`. */
static void exhausted(uint32_t events, unsigned tick)
{
	pthread_mutex_lock(&served.lock);
	if (served.tick == tick)
		served.ready &= ~events;
	pthread_mutex_unlock(&served.lock);
}

static void write_all(const char *bytes, long len)
{
	while (len > 0) {
		unsigned tick = await(EPOLLOUT | EPOLLERR | EPOLLHUP);
		long sent = send(served.fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent < 0 && errno != EAGAIN)
			die("send");
		if (sent < len)
			exhausted(EPOLLOUT, tick);
		if (sent > 0) {
			bytes += sent;
			len -= sent;
		}
	}
}

static void echo(void)
{
	static char bytes[PIECE];

	for (;;) {
		unsigned tick = await(EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP);
		long came = recv(served.fd, bytes, sizeof bytes, MSG_DONTWAIT);

		if (came == 0)
			return;
		if (came < 0 && errno != EAGAIN)
			die("recv");
		if (came < PIECE)
			exhausted(EPOLLIN, tick);
		if (served.starts_children && rand() % PIECES_A_CHILD == 0)
			check(-system("true"), "system");
		if (came > 0)
			write_all(bytes, came);
	}
}

static void serve(int listener, int connections)
{
	static const uint32_t asked[WAYS] = {
		[EDGES] = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
		[EDGES_ALONE] = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
		[ONE_SHOTS] = EPOLLONESHOT,
	};
	pthread_t poller;

	served.epoll = check(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
	if (served.way == EDGES || served.way == ONE_SHOTS)
		check(-pthread_create(&poller, NULL, poll_for_worker, NULL), "pthread_create");
	for (int i = 0; i < connections; i++) {
		struct epoll_event event = { .events = asked[served.way] };
		int fd = check(accept(listener, NULL, NULL), "accept");

		pthread_mutex_lock(&served.lock);
		served.fd = fd;
		served.ready = 0;
		pthread_mutex_unlock(&served.lock);
		if (served.way != POLL && served.way != SELECT)
			check(epoll_ctl(served.epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
		echo();
		close(fd);
	}
}

static char *content;

struct sending {
	int fd;
	long len;
};

static void *send_all(void *argument)
{
	struct sending *it = argument;

	for (long sent = 1, chunk = 1; sent < it->len; chunk = chunk * 3 % CHUNK_MAX + 1) {
		long len = it->len - sent < chunk ? it->len - sent : chunk;

		sent += check(send(it->fd, content + sent, len, MSG_NOSIGNAL), "send to the server");
	}
	check(shutdown(it->fd, SHUT_WR), "shutdown");
	return NULL;
}

static void connect_once(const struct sockaddr_in *address, char *echoed, long len)
{
	struct sending sending = { check(socket(AF_INET, SOCK_STREAM, 0), "socket"), len };
	long done = 1, came;
	pthread_t sender;

	check(connect(sending.fd, (const void *)address, sizeof *address), "connect");
	/* A byte there and back, after which both ends know what carries the rest. */
	check(send(sending.fd, content, 1, 0), "send");
	if (recv(sending.fd, echoed, 1, MSG_WAITALL) != 1)
		die("recv");
	check(-pthread_create(&sender, NULL, send_all, &sending), "pthread_create");
	while ((came = check(recv(sending.fd, echoed + done, len + 1 - done, 0), "recv")) > 0)
		done += came;
	pthread_join(sender, NULL);
	close(sending.fd);
	if (done != len || memcmp(echoed, content, len)) {
		printf("%ld bytes are not the %ld that were sent\n", done, len);
		exit(1);
	}
}

static enum way way_of(const char *name)
{
	for (enum way way = 0; way < WAYS; way++)
		if (!strcmp(name, names[way]))
			return way;
	printf("no way to wait: %s\n", name);
	exit(2);
}

int main(int count, char **words)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int connections, listener, status;
	socklen_t len = sizeof address;
	unsigned seed = 1;
	long most;

	if (count < 4) {
		puts("echo_after_shutdown WAY CONNECTIONS BYTES [children]");
		return 2;
	}
	served.way = way_of(words[1]);
	connections = atoi(words[2]);
	most = atol(words[3]);
	served.starts_children = count > 4;
	listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	check(bind(listener, (void *)&address, sizeof address), "bind");
	check(listen(listener, 8), "listen");
	check(getsockname(listener, (void *)&address, &len), "getsockname");
	if (check(fork(), "fork") == 0) {
		char *echoed = malloc(most + 1);

		close(listener);
		content = malloc(most);
		for (long i = 0; i < most; i++)
			content[i] = (char)(i % PERIOD ^ i % PERIOD >> 8);
		for (int i = 0; i < connections; i++)
			connect_once(&address, echoed, 1 + (long)(rand_r(&seed) / (RAND_MAX + 1.0) * most));
		exit(0);
	}
	serve(listener, connections);
	check(wait(&status), "wait");
	if (status != 0)
		return 1;
	printf("%d connections\n", connections);
	return 0;
}

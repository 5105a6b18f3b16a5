/*
 * Many connections, and connections that end in every way.
 *
 *   chaos kill ROUNDS SEED    two processes stream to each other; one is killed, or both end in order
 *   chaos many COUNT          one connection after the other; descriptors and memory do not grow
 *   chaos wide COUNT          COUNT connections at once, each with different data
 *   chaos short COUNT         a message to another process and back; one read gets all of it
 *   chaos edges COUNT         a message back and forth, with edge-triggered epoll
 *   chaos herd ROUNDS SEED    threads wait in one epoll instance for answers of many connections
 *
 * It prints an error and ends with status 1 if anything differs from TCP.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* What takes HANG_MS milliseconds hangs. */
enum { WARM_ROUNDS = 4, PIECE_MAX = 40000, SMALL_BYTES = 300, HANG_MS = 100000 };

static uint64_t state;

static uint64_t next_random(void)
{
	/* splitmix64 */
	uint64_t mixed = state += 0x9e3779b97f4a7c15;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
	return mixed ^ mixed >> 31;
}

__attribute__((noreturn)) static void fail(const char *what, long value)
{
	fprintf(stderr, "%s: %ld, %s\n", what, value, strerror(errno));
	exit(1);
}

static long check(long result, const char *what)
{
	if (result < 0)
		fail(what, result);
	return result;
}

static int listen_here(struct sockaddr_in *address)
{
	int listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	socklen_t length = sizeof *address;

	*address = (struct sockaddr_in){ .sin_family = AF_INET,
					 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	check(bind(listener, (struct sockaddr *)address, length), "bind");
	check(listen(listener, 100), "listen");
	check(getsockname(listener, (struct sockaddr *)address, &length), "getsockname");
	return listener;
}

static int connect_to(const struct sockaddr_in *address)
{
	int fd = check(socket(AF_INET, SOCK_STREAM, 0), "socket");

	check(connect(fd, (const struct sockaddr *)address, sizeof *address), "connect");
	return fd;
}

/* Returns the byte at a position of the stream that `side` sends. */
static char content(uint64_t position, int side)
{
	return (char)(((position + 1) * (side ? 0x9e3779b97f4a7c15 : 0xd1342543de82ef95)) >> 56);
}

/* One end of a connection that sends and receives in pieces of random sizes. */
struct talk {
	int fd, side;
	uint64_t sent, received;
	uint64_t to_send; /* then this end shuts down its side */
	bool ended;	  /* whether the peer's stream has ended */
	int result;	  /* 0: both streams have ended; else the errno that ended them */
};

static void take(struct talk *talk, char *piece)
{
	ssize_t got = recv(talk->fd, piece, 1 + next_random() % PIECE_MAX, MSG_DONTWAIT);

	for (ssize_t i = 0; i < got; i++)
		if (piece[i] != content(talk->received + i, !talk->side))
			fail("not what was sent, at", talk->received + i);
	if (got > 0)
		talk->received += got;
	else if (got == 0)
		talk->ended = true;
	else if (errno != EAGAIN)
		talk->result = errno;
}

static void give(struct talk *talk, char *piece)
{
	uint64_t size = 1 + next_random() % PIECE_MAX;
	ssize_t sent;

	if (size > talk->to_send - talk->sent)
		size = talk->to_send - talk->sent;
	for (uint64_t i = 0; i < size; i++)
		piece[i] = content(talk->sent + i, talk->side);
	sent = send(talk->fd, piece, size, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (sent >= 0)
		talk->sent += sent;
	else if (errno != EAGAIN)
		talk->result = errno;
	if (talk->sent == talk->to_send)
		check(shutdown(talk->fd, SHUT_WR), "shutdown");
}

/* Sends and receives until both streams have ended, or until an error. */
static void run_talk(struct talk *talk)
{
	static char piece[PIECE_MAX];

	talk->result = -1;
	while (talk->result < 0) {
		bool more = talk->sent < talk->to_send;
		struct pollfd polled = { .fd = talk->fd,
					 .events = (talk->ended ? 0 : POLLIN) | (more ? POLLOUT : 0) };

		if (!more && talk->ended) {
			talk->result = 0;
			break;
		}
		if (check(poll(&polled, 1, 10000), "poll") == 0)
			fail("nothing happens any more, after", talk->received);
		if (!talk->ended && polled.revents & (POLLIN | POLLERR | POLLHUP))
			take(talk, piece);
		if (talk->result < 0 && more && polled.revents & (POLLOUT | POLLERR | POLLHUP))
			give(talk, piece);
	}
}

static void warm_up(int fd, int side)
{
	char byte = 'w';

	for (int i = 0; i < WARM_ROUNDS; i++) {
		if (side)
			check(send(fd, &byte, 1, 0), "send");
		if (recv(fd, &byte, 1, MSG_WAITALL) != 1)
			fail("recv", i);
		if (!side)
			check(send(fd, &byte, 1, 0), "send");
	}
}

/* The child is killed in the middle of its stream, or ends in order. The parent survives. */
static void kill_round(int round)
{
	struct sockaddr_in address;
	int listener = listen_here(&address), status;
	bool child_dials = next_random() % 2, killed = next_random() % 4 != 0;
	uint64_t child_sends = 1 + next_random() % 3000000;
	useconds_t delay = next_random() % 20000;
	struct talk talk = { .to_send = 1 + next_random() % 3000000 };
	pid_t child, killer = 0;

	child = check(fork(), "fork");
	if (!child) {
		struct talk own = { .side = 1, .to_send = killed ? UINT64_MAX : child_sends };

		state += 1;
		own.fd = child_dials ? connect_to(&address)
				     : (int)check(accept(listener, NULL, NULL), "accept");
		warm_up(own.fd, 1);
		run_talk(&own);
		if (own.result || own.received != talk.to_send || own.sent != own.to_send)
			fail("the child's end", own.result);
		_exit(0);
	}
	talk.fd = child_dials ? (int)check(accept(listener, NULL, NULL), "accept")
			      : connect_to(&address);
	close(listener);
	warm_up(talk.fd, 0);
	if (killed) {
		talk.to_send = UINT64_MAX;
		killer = check(fork(), "fork");
		if (!killer) {
			close(talk.fd);
			usleep(delay);
			kill(child, SIGKILL);
			_exit(0);
		}
	}
	run_talk(&talk);
	if (killed) {
		if (talk.result && talk.result != ECONNRESET && talk.result != EPIPE)
			fail("after a kill", talk.result);
		/* After a reset or an EOF, sending fails in the end. */
		for (int i = 0; i < HANG_MS && send(talk.fd, "x", 1, MSG_NOSIGNAL) == 1; i++)
			usleep(1000);
		if (send(talk.fd, "x", 1, MSG_NOSIGNAL) != -1 || errno != EPIPE)
			fail("send after a kill", round);
		check(waitpid(killer, &status, 0), "waitpid");
	} else if (talk.result || talk.received != child_sends || talk.sent != talk.to_send) {
		fail("an orderly end", talk.result);
	}
	close(talk.fd);
	check(waitpid(child, &status, 0), "waitpid");
	if (!killed && status)
		fail("the child", status);
}

static void exchange(int client, int server, int number)
{
	char out[SMALL_BYTES], in[SMALL_BYTES];

	for (int round = 0; round < 3; round++) {
		memset(out, number + round, sizeof out);
		memcpy(out, &number, sizeof number);
		check(send(client, out, sizeof out, 0), "send");
		if (recv(server, in, sizeof in, MSG_WAITALL) != sizeof in || memcmp(in, out, sizeof in))
			fail("the server's bytes", number);
		check(send(server, in, sizeof in, 0), "send");
		memset(in, 0, sizeof in);
		if (recv(client, in, sizeof in, MSG_WAITALL) != sizeof in || memcmp(in, out, sizeof in))
			fail("the client's bytes", number);
	}
}

static long descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	long count = 0;

	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* Returns the resident private pages: those of the heap, not those of the registry. */
static long private_pages(void)
{
	long all = 0, resident = 0, shared = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	if (!file || fscanf(file, "%ld %ld %ld", &all, &resident, &shared) != 3)
		fail("statm", 0);
	fclose(file);
	return resident - shared;
}

/* Waits until this process has no more descriptors and private pages than these. */
static void expect_no_more(long fds, long pages)
{
	for (int i = 0; i < HANG_MS && (descriptors() > fds || private_pages() > pages); i++)
		usleep(1000);
	if (descriptors() > fds)
		fail("descriptors", descriptors() - fds);
	if (private_pages() > pages)
		fail("pages", private_pages() - pages);
}

/* Returns the number of descriptors once it has not changed for a while. */
static long still_descriptors(void)
{
	long last = descriptors();

	for (int quiet = 0; quiet < 10; quiet++) {
		usleep(1000);
		if (descriptors() != last) {
			last = descriptors();
			quiet = 0;
		}
	}
	return last;
}

static void many(int count)
{
	struct sockaddr_in address;
	int listener = listen_here(&address);
	long fds = 0, pages = 0;

	for (int i = 0; i < count; i++) {
		int client = connect_to(&address);
		int server = check(accept(listener, NULL, NULL), "accept");
		char byte;

		exchange(client, server, i);
		close(i % 2 ? client : server);
		if (recv(i % 2 ? server : client, &byte, 1, 0) != 0)
			fail("the end", i);
		close(i % 2 ? server : client);
		if (i == count / 10) {
			fds = still_descriptors();
			pages = private_pages();
		}
	}
	expect_no_more(fds, pages + 64);
}

static void wide(int count)
{
	struct rlimit limit;
	struct sockaddr_in address;
	int listener = listen_here(&address), *clients = calloc(count, sizeof *clients),
	    *servers = calloc(count, sizeof *servers);

	check(getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
	limit.rlim_cur = limit.rlim_max;
	check(setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
	for (int i = 0; i < count; i++) {
		clients[i] = connect_to(&address);
		servers[i] = check(accept(listener, NULL, NULL), "accept");
		exchange(clients[i], servers[i], i);
	}
	for (int i = count; i-- > 0;)
		exchange(clients[i], servers[i], i + 1);
	for (int i = 0; i < count; i++) {
		close(clients[i]);
		close(servers[i]);
	}
}

/* Delays one of both ends, sometimes. */
static void dawdle(void)
{
	if (next_random() % 3 == 0)
		usleep(next_random() % 300);
}

static void answer_short(int listener, int count)
{
	char message[2 * SMALL_BYTES];

	for (int i = 0; i < count; i++) {
		int fd = check(accept(listener, NULL, NULL), "accept");
		ssize_t got;

		dawdle();
		got = check(read(fd, message, sizeof message), "read");
		if (got != SMALL_BYTES)
			fail("the server read", got);
		check(write(fd, message, got), "write");
		close(fd);
	}
}

static void ask_short(const struct sockaddr_in *address, int count)
{
	char message[2 * SMALL_BYTES] = { 0 };

	for (int i = 0; i < count; i++) {
		int fd = connect_to(address);
		ssize_t got;

		dawdle();
		check(write(fd, message, SMALL_BYTES), "write");
		got = check(read(fd, message, sizeof message), "read");
		if (got != SMALL_BYTES)
			fail("the client read", got);
		close(fd);
	}
}

/* TCP guarantees no message boundaries, but on loopback one read gets what one write sent. Programs
 * with small messages rely on this: perftest, and Python's own tests. */
static void short_lived(int count)
{
	struct sockaddr_in address;
	int listener = listen_here(&address), status;
	pid_t server = check(fork(), "fork");

	if (!server) {
		check(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
		state = 1;
		answer_short(listener, count);
		_exit(0);
	}
	ask_short(&address, count);
	check(waitpid(server, &status, 0), "waitpid");
	if (status)
		fail("the server's status", status);
}

/* A thread that was not woken checks again after HERD_ROUND_MS. The other thread reports the
 * missing wakeup before that: HERD_WAITS_MAX waits take less time. */
enum { HERD = 24, HERD_ROUND_MS = 200000, HERD_WAITS_MAX = 1200000 };

/* A process that was stopped and goes on has EINTR from this call, without a handler (signal(7)). */
static int wait_for_event(int epoll, struct epoll_event *event)
{
	int found;

	do
		found = epoll_wait(epoll, event, 1, HERD_ROUND_MS);
	while (found < 0 && errno == EINTR);
	return check(found, "epoll_wait");
}

/* Sends back `count` messages. It waits edge-triggered, for room as well as for bytes, as nginx
 * does. */
static void bounce(int fd, int count, bool begins)
{
	int epoll = check(epoll_create1(0), "epoll_create1");
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET };
	char message[SMALL_BYTES] = { 0 };

	check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "EPOLL_CTL_ADD");
	for (int i = begins ? -1 : 0; i < count; i++) {
		ssize_t got = i < 0 ? 1 : -1;

		errno = EAGAIN;
		while (got < 0 && errno == EAGAIN) {
			if (wait_for_event(epoll, &event) == 0)
				fail("an edge that was not reported, of message", i);
			if (event.events & EPOLLIN)
				got = read(fd, message, sizeof message);
		}
		check(got, "read");
		check(write(fd, message, got), "write");
		/* A random delay: the answer may come at any moment of the peer's next wait. */
		for (volatile int idle = next_random() % 3000; idle > 0; idle--)
			;
	}
	close(epoll);
}

static void edges(int count)
{
	struct sockaddr_in address;
	int listener = listen_here(&address), fd, status;
	pid_t server = check(fork(), "fork");

	if (!server) {
		check(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
		fd = check(accept4(listener, NULL, NULL, SOCK_NONBLOCK), "accept4");
		bounce(fd, count, false);
		_exit(0);
	}
	fd = connect_to(&address);
	check(fcntl(fd, F_SETFL, O_NONBLOCK), "fcntl");
	bounce(fd, count - 1, true);
	check(waitpid(server, &status, 0), "waitpid");
	if (status)
		fail("the server's status", status);
}


/* Answers all messages, sometimes late, until all connections have ended. */
static void answer_herd(int listener)
{
	struct pollfd set[HERD];
	int open = HERD;

	for (int i = 0; i < HERD; i++) {
		set[i].fd = check(accept(listener, NULL, NULL), "accept");
		set[i].events = POLLIN;
	}
	while (open > 0) {
		check(poll(set, HERD, -1), "poll");
		for (int i = 0; i < HERD; i++) {
			char message[SMALL_BYTES];
			ssize_t got;

			if (!set[i].revents)
				continue;
			got = check(read(set[i].fd, message, sizeof message), "read");
			dawdle();
			if (got > 0) {
				check(write(set[i].fd, message, got), "write");
			} else {
				close(set[i].fd);
				set[i].fd = -1;
				open--;
			}
		}
	}
}

struct herd {
	int epoll;
	atomic_int answers, herders, waiting;
};

/* Takes answers. After each, if enough answers are left for both threads, it waits until the other
 * thread has taken one: so epoll must have woken that thread. */
static void *herd(void *context)
{
	struct herd *all = context;

	for (;;) {
		struct epoll_event event;
		char message[SMALL_BYTES];
		int left;

		if (atomic_load(&all->answers) <= 0)
			break;
		switch (wait_for_event(all->epoll, &event)) {
		case 0:
			if (atomic_load(&all->answers) <= 0)
				continue;
			fail("answers that nobody was woken for", atomic_load(&all->answers));
		default:
			if (event.data.fd < 0)
				return NULL; /* The end of the round. */
			check(read(event.data.fd, message, sizeof message), "read");
			event.events = EPOLLIN | EPOLLONESHOT;
			check(epoll_ctl(all->epoll, EPOLL_CTL_MOD, event.data.fd, &event), "EPOLL_CTL_MOD");
			left = atomic_fetch_sub(&all->answers, 1) - 1;
			if (left >= atomic_load(&all->herders) && atomic_load(&all->herders) > 1)
				for (int waited = 0; atomic_load(&all->answers) == left; waited++) {
					if (waited > HERD_WAITS_MAX)
						fail("a thread that sleeps through", left);
					usleep(50);
				}
		}
	}
	/* Wakes the other thread. */
	check(eventfd_write(all->waiting, 1), "eventfd_write");
	return NULL;
}

/* In each round some of many connections get a message and answer. In half of the rounds one thread
 * waits for the answers. In the others two threads do, and each must be woken. */
static void herd_rounds(int rounds)
{
	struct herd all = { .epoll = check(epoll_create1(0), "epoll_create1") };
	struct sockaddr_in address;
	int listener = listen_here(&address), fds[HERD], status;
	pid_t server = check(fork(), "fork");

	if (!server) {
		check(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
		answer_herd(listener);
		_exit(0);
	}
	for (int i = 0; i < HERD; i++) {
		struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT };

		fds[i] = event.data.fd = connect_to(&address);
		check(epoll_ctl(all.epoll, EPOLL_CTL_ADD, fds[i], &event), "EPOLL_CTL_ADD");
	}
	for (int round = 0; round < rounds; round++) {
		struct epoll_event end = { .events = EPOLLIN, .data.fd = -1 };
		char message[SMALL_BYTES] = { 0 };
		int busy = 1 + next_random() % HERD, first = next_random() % HERD;
		pthread_t other;

		all.waiting = check(eventfd(0, EFD_NONBLOCK), "eventfd");
		check(epoll_ctl(all.epoll, EPOLL_CTL_ADD, all.waiting, &end), "EPOLL_CTL_ADD");
		atomic_store(&all.answers, busy);
		atomic_store(&all.herders, 1 + round % 2);
		if (round % 2 && pthread_create(&other, NULL, herd, &all))
			fail("pthread_create", round);
		for (int i = 0; i < busy; i++)
			check(write(fds[(first + i) % HERD], message, 1 + next_random() % sizeof message), "write");
		herd(&all);
		if (round % 2)
			pthread_join(other, NULL);
		close(all.waiting);
	}
	for (int i = 0; i < HERD; i++)
		close(fds[i]);
	check(waitpid(server, &status, 0), "waitpid");
	if (status)
		fail("the server's status", status);
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[2]) : 0;

	if (argc == 4 && !strcmp(argv[1], "kill")) {
		state = strtoull(argv[3], NULL, 0);
		for (int round = 0; round < count; round++)
			kill_round(round);
		printf("%d rounds\n", count);
	} else if (argc == 3 && !strcmp(argv[1], "many")) {
		many(count);
	} else if (argc == 3 && !strcmp(argv[1], "wide")) {
		wide(count);
	} else if (argc == 3 && !strcmp(argv[1], "short")) {
		short_lived(count);
	} else if (argc == 3 && !strcmp(argv[1], "edges")) {
		edges(count);
	} else if (argc == 4 && !strcmp(argv[1], "herd")) {
		state = strtoull(argv[3], NULL, 0);
		herd_rounds(count);
	} else {
		fprintf(stderr, "usage: chaos kill|herd ROUNDS SEED | many|wide|short|edges COUNT\n");
		return 2;
	}
	return 0;
}

/*
 * Several threads and processes wait in one epoll instance, or poll one socket, while others change
 * it. Each case prints the reported events; the lines must be the same with Weft as without.
 *
 *   epoll_waiters            all cases
 *   epoll_waiters CASE       one of them
 *   epoll_waiters wait FD    (a case executes this) prints the events of the inherited instance
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MAX = 4, MANY = 8 };

/* A thread falls asleep in settle_ms. A thread that must be woken sleeps for less than limit_ms.
 * EPOLL_WAITERS_SLOWNESS multiplies these times, for a busy machine. */
static int settle_ms = 60, limit_ms = 3000, quiet_ms = 150;

__attribute__((noreturn)) static void die(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	exit(1);
}

static long check(long result, const char *what)
{
	if (result < 0)
		die(what);
	return result;
}

static void settle(void)
{
	usleep(settle_ms * 1000);
}

struct pair {
	int here, there;
};

static void move_one_byte(int from, int to)
{
	char byte = 'x';

	check(write(from, &byte, 1), "write");
	check(read(to, &byte, 1), "read");
}

/* Makes a connection that has been used in both directions. */
static struct pair connected(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof address;
	int listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	struct pair pair;

	check(bind(listener, (void *)&address, sizeof address), "bind");
	check(listen(listener, 1), "listen");
	check(getsockname(listener, (void *)&address, &len), "getsockname");
	pair.there = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	check(connect(pair.there, (void *)&address, sizeof address), "connect");
	pair.here = check(accept(listener, NULL, NULL), "accept");
	close(listener);
	check(setsockopt(pair.here, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)), "TCP_NODELAY");
	check(setsockopt(pair.there, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)), "TCP_NODELAY");
	for (int i = 0; i < 4; i++) {
		move_one_byte(pair.here, pair.there);
		move_one_byte(pair.there, pair.here);
	}
	return pair;
}

static void hang_up(struct pair pair)
{
	close(pair.here);
	close(pair.there);
}

static void control(int epoll, int operation, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = { .events = events, .data.u64 = data };

	check(epoll_ctl(epoll, operation, fd, &event), "epoll_ctl");
}

static void put(int fd, const char *text)
{
	check(write(fd, text, strlen(text)), "write");
}

static void take(int fd)
{
	char bytes[64];

	check(read(fd, bytes, sizeof bytes), "read");
}

static void print_events(const char *what, const struct epoll_event *events, int count)
{
	printf("%s: %d", what, count);
	for (int i = 0; i < count; i++)
		printf(" %llx/%x", (unsigned long long)events[i].data.u64, events[i].events);
	printf("\n");
}

static void wait_and_print(const char *what, int epoll, int limit)
{
	struct epoll_event events[MANY];

	print_events(what, events, check(epoll_wait(epoll, events, MANY, limit), "epoll_wait"));
}

/* A thread that waits once in an epoll instance. */
struct waiter {
	pthread_t thread;
	int epoll, limit, count;
	struct epoll_event event;
};

static void *wait_once(void *context)
{
	struct waiter *waiter = context;

	struct timespec begun, woken;

	clock_gettime(CLOCK_MONOTONIC, &begun);
	waiter->count = epoll_wait(waiter->epoll, &waiter->event, 1, waiter->limit);
	clock_gettime(CLOCK_MONOTONIC, &woken);
	/* An event that is found after the timeout has not woken the thread. */
	if ((woken.tv_sec - begun.tv_sec) * 1000 + (woken.tv_nsec - begun.tv_nsec) / 1000000 >=
	    waiter->limit)
		waiter->count = 0;
	return NULL;
}

/* Starts threads that wait, and returns when they sleep. */
static void begin_waiting(struct waiter *waiters, int threads, int epoll, int limit)
{
	for (int i = 0; i < threads; i++) {
		waiters[i] = (struct waiter){ .epoll = epoll, .limit = limit };
		if (pthread_create(&waiters[i].thread, NULL, wait_once, &waiters[i]))
			die("pthread_create");
	}
	settle();
}

static void finish_waiting(const char *what, struct waiter *waiters, int threads)
{
	int reported = 0;
	struct waiter *last = waiters;

	for (int i = 0; i < threads; i++) {
		pthread_join(waiters[i].thread, NULL);
		reported += waiters[i].count > 0;
		if (waiters[i].count > 0)
			last = &waiters[i];
	}
	printf("%s: %d of %d", what, reported, threads);
	print_events("", &last->event, last->count > 0);
}

#define DATA 0xdeadbeefcafef00d

/* Copies made before the first socket is added are the same instance. */
static void copies(void)
{
	struct pair pair = connected();
	int first = check(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
	int second = check(fcntl(first, F_DUPFD_CLOEXEC, 0), "fcntl");
	int third = check(dup(second), "dup");
	struct waiter waiter;

	control(second, EPOLL_CTL_ADD, pair.here, EPOLLIN | EPOLLRDHUP | EPOLLET, DATA);
	wait_and_print("nothing", first, 0);
	begin_waiting(&waiter, 1, first, limit_ms);
	put(pair.there, "a");
	finish_waiting("by a copy", &waiter, 1);
	take(pair.here);
	close(first);
	begin_waiting(&waiter, 1, third, limit_ms);
	put(pair.there, "b");
	finish_waiting("by another copy", &waiter, 1);
	control(third, EPOLL_CTL_MOD, pair.here, EPOLLIN, DATA + 1);
	wait_and_print("changed", second, limit_ms);
	hang_up(pair);
	close(second);
	close(third);
}

/* EPOLL_CTL_ADD and EPOLL_CTL_MOD of a ready socket wake a thread that sleeps in the instance. */
static void changes(void)
{
	struct pair pair = connected(), other = connected();
	int epoll = check(epoll_create1(0), "epoll_create1");
	struct waiter waiter;

	put(pair.there, "a");
	begin_waiting(&waiter, 1, epoll, limit_ms);
	control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN, 1);
	finish_waiting("ADD", &waiter, 1);

	control(epoll, EPOLL_CTL_ADD, other.here, EPOLLIN, 2);
	for (int round = 0; round < 3; round++) {
		control(epoll, EPOLL_CTL_DEL, pair.here, 0, 0);
		begin_waiting(&waiter, 1, epoll, limit_ms);
		control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN, 1);
		finish_waiting("ADD after DEL", &waiter, 1);

		control(epoll, EPOLL_CTL_MOD, pair.here, 0, 1);
		begin_waiting(&waiter, 1, epoll, limit_ms);
		control(epoll, EPOLL_CTL_MOD, pair.here, EPOLLIN, 1);
		finish_waiting("MOD", &waiter, 1);

		control(epoll, EPOLL_CTL_MOD, pair.here, EPOLLIN | EPOLLONESHOT, 1);
		wait_and_print("one-shot", epoll, limit_ms);
		begin_waiting(&waiter, 1, epoll, limit_ms);
		control(epoll, EPOLL_CTL_MOD, pair.here, EPOLLIN | EPOLLONESHOT, 1);
		finish_waiting("one-shot again", &waiter, 1);

		control(epoll, EPOLL_CTL_MOD, other.here, EPOLLIN | EPOLLET, 2);
		begin_waiting(&waiter, 1, epoll, limit_ms);
		control(epoll, EPOLL_CTL_MOD, other.here, EPOLLIN | EPOLLOUT | EPOLLET, 2);
		finish_waiting("room", &waiter, 1);

		control(epoll, EPOLL_CTL_MOD, pair.here, EPOLLIN | EPOLLET, 1);
		wait_and_print("edge", epoll, limit_ms);
		begin_waiting(&waiter, 1, epoll, limit_ms);
		control(epoll, EPOLL_CTL_MOD, pair.here, EPOLLIN | EPOLLET, 1);
		finish_waiting("edge again", &waiter, 1);

		control(epoll, EPOLL_CTL_MOD, other.here, EPOLLIN, 2);
		begin_waiting(&waiter, 1, epoll, limit_ms);
		put(other.there, "b");
		finish_waiting("bytes", &waiter, 1);
		take(other.here);
	}
	hang_up(pair);
	hang_up(other);
	close(epoll);
}

/* While one thread sleeps in the instance, another one reads and writes until EAGAIN. */
static void readers_and_writers(void)
{
	struct pair pair = connected();
	int epoll = check(epoll_create1(0), "epoll_create1");
	static char bytes[1 << 16];
	struct waiter waiter;

	fcntl(pair.here, F_SETFL, O_NONBLOCK);
	fcntl(pair.there, F_SETFL, O_NONBLOCK);
	control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN | EPOLLOUT | EPOLLET, 1);
	wait_and_print("at first", epoll, limit_ms);
	for (int round = 0; round < 4; round++) {
		begin_waiting(&waiter, 1, epoll, limit_ms);
		while (write(pair.here, bytes, sizeof bytes) > 0)
			;
		settle();
		for (int quiet = 0; quiet < 3; quiet++)
			while (read(pair.there, bytes, sizeof bytes) > 0)
				quiet = 0;
		finish_waiting("room", &waiter, 1);
		/* The first byte is read, perhaps before the sleeper has seen it. */
		begin_waiting(&waiter, 1, epoll, limit_ms);
		put(pair.there, "ab");
		(void)!read(pair.here, bytes, 1);
		put(pair.there, "cd");
		finish_waiting("bytes", &waiter, 1);
		while (read(pair.here, bytes, sizeof bytes) > 0)
			;
		(void)!epoll_wait(epoll, &waiter.event, 1, 0); /* A late edge. */
	}
	hang_up(pair);
	close(epoll);
}

/* How many sleeping threads an event wakes. */
static void sleepers(void)
{
	struct waiter waiters[THREADS_MAX];

	for (int round = 0; round < 3; round++) {
		struct pair pair = connected(), other = connected();
		int epoll = check(epoll_create1(0), "epoll_create1");

		control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN, 1);
		control(epoll, EPOLL_CTL_ADD, other.here, EPOLLIN | EPOLLET, 2);
		begin_waiting(waiters, THREADS_MAX, epoll, limit_ms / 3);
		put(pair.there, "a");
		finish_waiting("level", waiters, THREADS_MAX);
		take(pair.here);
		begin_waiting(waiters, THREADS_MAX, epoll, limit_ms / 3);
		put(other.there, "a");
		finish_waiting("edge", waiters, THREADS_MAX);
		take(other.here);
		control(epoll, EPOLL_CTL_MOD, pair.here, EPOLLIN | EPOLLONESHOT, 1);
		begin_waiting(waiters, THREADS_MAX, epoll, limit_ms / 3);
		put(pair.there, "a");
		finish_waiting("one-shot", waiters, THREADS_MAX);
		take(pair.here);
		begin_waiting(waiters, THREADS_MAX, epoll, limit_ms / 3);
		control(epoll, EPOLL_CTL_DEL, pair.here, 0, 0);
		put(pair.there, "a");
		finish_waiting("deleted", waiters, THREADS_MAX);
		hang_up(pair);
		hang_up(other);
		close(epoll);
	}
}

/* The instance is closed while a thread sleeps in it. An event still wakes the thread. */
static void closed(void)
{
	struct pair pair = connected(), other = connected();
	int epoll = check(epoll_create1(0), "epoll_create1");
	struct waiter waiter;

	control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN, 1);
	control(epoll, EPOLL_CTL_ADD, other.here, EPOLLIN, 2);
	begin_waiting(&waiter, 1, epoll, limit_ms);
	close(other.here);
	put(pair.there, "a");
	finish_waiting("another is closed", &waiter, 1);
	take(pair.here);
	begin_waiting(&waiter, 1, epoll, limit_ms);
	close(epoll);
	put(pair.there, "a");
	finish_waiting("the instance is closed", &waiter, 1);
	close(other.there);
	hang_up(pair);
}

/* Two sockets with the same data, and a socket with the same data as an eventfd. */
static void same_data(void)
{
	struct pair pair = connected(), other = connected(), third = connected();
	int epoll = check(epoll_create1(0), "epoll_create1");
	int event = check(eventfd(0, 0), "eventfd");

	control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN, 7);
	wait_and_print("nothing", epoll, 0);
	put(pair.there, "a");
	wait_and_print("one", epoll, limit_ms);
	control(epoll, EPOLL_CTL_ADD, other.here, EPOLLIN, 7);
	put(other.there, "a");
	wait_and_print("both", epoll, limit_ms);
	take(pair.here);
	wait_and_print("the other", epoll, limit_ms);
	take(other.here);
	wait_and_print("none", epoll, 0);
	control(epoll, EPOLL_CTL_ADD, event, EPOLLIN, 8);
	control(epoll, EPOLL_CTL_ADD, third.here, EPOLLIN, 8);
	check(eventfd_write(event, 1), "eventfd_write");
	wait_and_print("the event", epoll, limit_ms);
	put(third.there, "a");
	settle();
	wait_and_print("the event and the socket", epoll, limit_ms);
	control(epoll, EPOLL_CTL_MOD, third.here, EPOLLIN | EPOLLONESHOT, 9);
	control(epoll, EPOLL_CTL_DEL, event, 0, 0);
	wait_and_print("other data", epoll, limit_ms);
	wait_and_print("reported once", epoll, 0);
	hang_up(pair);
	hang_up(other);
	hang_up(third);
	close(event);
	close(epoll);
}

static void exclusive(void)
{
	struct pair pair = connected();
	int epoll = check(epoll_create1(0), "epoll_create1"), second = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN | EPOLLEXCLUSIVE, .data.u64 = 5 };
	struct waiter waiter;

	put(pair.there, "a");
	control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN | EPOLLEXCLUSIVE, 5);
	wait_and_print("unread before", epoll, limit_ms);
	take(pair.here);
	begin_waiting(&waiter, 1, epoll, limit_ms);
	put(pair.there, "b");
	finish_waiting("woken", &waiter, 1);
	printf("MOD: %d\n", epoll_ctl(epoll, EPOLL_CTL_MOD, pair.here, &event));
	control(second, EPOLL_CTL_ADD, pair.here, EPOLLIN, 6);
	wait_and_print("another instance", second, limit_ms);
	take(pair.here);
	wait_and_print("nothing", epoll, 0);
	hang_up(pair);
	close(epoll);
	close(second);
}

/* epoll reports sockets in the order in which bytes arrived, except sockets that are still in the
 * ready list since their last report. A level-triggered socket goes to the end of the list when it
 * is reported. `modes` are flags of every second socket. */
static void arrive(uint32_t modes)
{
	struct pair pairs[MANY];
	int epoll = check(epoll_create1(0), "epoll_create1");
	struct epoll_event events[MANY];
	unsigned seed = 1, hash = 1;

	for (int i = 0; i < MANY; i++) {
		pairs[i] = connected();
		control(epoll, EPOLL_CTL_ADD, pairs[i].here, EPOLLIN | (i % 2 ? modes : 0), i);
	}
	settle(); /* No segment waits for an acknowledgement (tcp(7), TCP_NODELAY). */
	for (int round = 0; round < 2000; round++) {
		int order[MANY], count = 1 + rand_r(&seed) % MANY, seen = 0;

		for (int i = 0; i < MANY; i++)
			order[i] = i;
		for (int i = 0; i < MANY; i++) {
			int j = i + rand_r(&seed) % (MANY - i), kept = order[i];

			order[i] = order[j];
			order[j] = kept;
		}
		if (round % 500 == 0)
			wait_and_print("at rest", epoll, 20);
		for (int i = 0; i < count; i++)
			put(pairs[order[i]].there, "a");
		while (seen < count) {
			int got = check(epoll_wait(epoll, events, 1 + rand_r(&seed) % MANY, limit_ms), "wait");

			if (!got)
				die("not reported");
			for (int i = 0; i < got; i++, seen++) {
				hash = hash * 31 + (unsigned)events[i].data.u64;
				take(pairs[events[i].data.u64].here);
				if (modes & EPOLLONESHOT && events[i].data.u64 % 2)
					control(epoll, EPOLL_CTL_MOD, pairs[events[i].data.u64].here,
						EPOLLIN | modes, events[i].data.u64);
			}
		}
	}
	printf("reported in the order of %u\n", hash);
	for (int i = 0; i < 3; i++)
		put(pairs[i].there, "a");
	settle();
	for (int i = 0; i < 5; i++)
		print_events("one at a time", events, epoll_wait(epoll, events, 1, limit_ms));
	for (int i = 0; i < MANY; i++)
		hang_up(pairs[i]);
	close(epoll);
}

static void arrival(void)
{
	arrive(0);
	arrive(EPOLLET);
	arrive(EPOLLONESHOT);
}

/* While one thread waits, another one sends on two connections. They are edge-triggered, because a
 * level-triggered socket keeps its place in the kernel's ready list. */
static struct pair racing[2];
static atomic_int turn;

static void *send_both(void *context)
{
	for (int round = 1; round <= *(int *)context; round++) {
		put(racing[round % 2].there, "a");
		put(racing[1 - round % 2].there, "a");
		while (atomic_load(&turn) < round)
			if (round % 64 == 0)
				usleep(100);
	}
	return NULL;
}

static void races(void)
{
	int epoll = check(epoll_create1(0), "epoll_create1"), rounds = 30000, wrong = 0;
	struct epoll_event event;
	pthread_t sender;

	for (int i = 0; i < 2; i++) {
		racing[i] = connected();
		control(epoll, EPOLL_CTL_ADD, racing[i].here, EPOLLIN | EPOLLET, i);
	}
	if (pthread_create(&sender, NULL, send_both, &rounds))
		die("pthread_create");
	for (int round = 1; round <= rounds; round++) {
		for (int i = 0; i < 2; i++) {
			if (check(epoll_wait(epoll, &event, 1, limit_ms), "epoll_wait") != 1)
				die("not reported");
			wrong += (int)event.data.u64 != (i ? 1 - round % 2 : round % 2);
			take(racing[event.data.u64].here);
		}
		atomic_store(&turn, round);
	}
	pthread_join(sender, NULL);
	/* The kernel swaps a few events if the sender changes its core between both sends. */
	printf("in order: %d\n", wrong < rounds / 500);
	hang_up(racing[0]);
	hang_up(racing[1]);
	close(epoll);
}

/* A child waits in an inherited instance at the same time as its parent. */
static void forked(void)
{
	struct pair pair = connected(), later;
	int epoll = check(epoll_create1(0), "epoll_create1"), go[2], status;
	struct waiter waiter;
	char byte;
	pid_t child;

	check(pipe(go), "pipe");
	control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN | EPOLLRDHUP, DATA);
	wait_and_print("before", epoll, 20);
	fflush(stdout);
	child = check(fork(), "fork");
	if (!child) {
		check(read(go[0], &byte, 1), "read");
		wait_and_print("child", epoll, limit_ms);
		take(pair.here);
		wait_and_print("child, nothing", epoll, quiet_ms);
		fflush(stdout);
		_exit(0);
	}
	put(pair.there, "a");
	wait_and_print("parent alone", epoll, limit_ms);
	later = connected();
	control(epoll, EPOLL_CTL_ADD, later.here, EPOLLIN | EPOLLONESHOT, 2);
	fflush(stdout);
	check(write(go[1], "x", 1), "write");
	check(waitpid(child, &status, 0), "waitpid");
	printf("status %d\n", status);
	begin_waiting(&waiter, 1, epoll, limit_ms);
	put(later.there, "b");
	finish_waiting("parent", &waiter, 1);
	put(pair.there, "c");
	wait_and_print("parent again", epoll, limit_ms);
	hang_up(pair);
	hang_up(later);
	close(epoll);
}

/* A process gets an instance, but not the sockets that it watches. */
static void passed(void)
{
	struct pair pair = connected();
	int epoll = check(epoll_create1(0), "epoll_create1"), way[2], status;
	char control_data[CMSG_SPACE(sizeof(int))] = { 0 }, byte = 'x';
	struct iovec bytes = { &byte, 1 };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control_data,
				  .msg_controllen = sizeof control_data };
	pid_t child;

	check(socketpair(AF_UNIX, SOCK_STREAM, 0, way), "socketpair");
	fflush(stdout);
	child = check(fork(), "fork");
	if (!child) {
		close(epoll);
		hang_up(pair);
		check(recvmsg(way[0], &message, 0), "recvmsg");
		epoll = *(int *)(void *)CMSG_DATA(CMSG_FIRSTHDR(&message));
		wait_and_print("who got it", epoll, limit_ms);
		fflush(stdout);
		_exit(0);
	}
	control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN | EPOLLET, DATA);
	wait_and_print("before", epoll, 20);
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	*header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
				    .cmsg_len = CMSG_LEN(sizeof(int)) };
	memcpy(CMSG_DATA(header), &epoll, sizeof epoll);
	check(sendmsg(way[1], &message, 0), "sendmsg");
	settle();
	put(pair.there, "a");
	check(waitpid(child, &status, 0), "waitpid");
	printf("status %d\n", status);
	hang_up(pair);
	close(epoll);
}

/* An executed program inherits an instance, but not the sockets that it watches. */
static void executed(void)
{
	struct pair pair = connected();
	int epoll = check(epoll_create1(0), "epoll_create1"), status;
	char number[16];
	pid_t child;

	fcntl(pair.here, F_SETFD, FD_CLOEXEC);
	fcntl(pair.there, F_SETFD, FD_CLOEXEC);
	control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN, DATA);
	wait_and_print("before", epoll, 20);
	snprintf(number, sizeof number, "%d", epoll);
	fflush(stdout);
	child = check(fork(), "fork");
	if (!child) {
		execv("/proc/self/exe", (char *[]){ "epoll_waiters", "wait", number, NULL });
		_exit(127);
	}
	settle();
	settle();
	put(pair.there, "a");
	check(waitpid(child, &status, 0), "waitpid");
	printf("status %d\n", status);
	wait_and_print("here", epoll, limit_ms);
	hang_up(pair);
	close(epoll);
}

/* A wait does not report a socket that was deleted before it began, also if the peer closes. */
static atomic_int deleted, stale, over;

static void *wait_for_the_living(void *context)
{
	struct epoll_event events[MANY];

	while (!atomic_load(&over)) {
		int before = atomic_load(&deleted);
		int got = check(epoll_wait(*(int *)context, events, MANY, 20), "epoll_wait");

		for (int i = 0; i < got; i++)
			if ((int)events[i].data.u64 <= before)
				atomic_fetch_add(&stale, 1);
	}
	return NULL;
}

static void *close_peer(void *context)
{
	close(*(int *)context);
	return NULL;
}

static void deletions(void)
{
	int epoll = check(epoll_create1(0), "epoll_create1");
	pthread_t waiters[2], closer;

	for (int i = 0; i < 2; i++)
		if (pthread_create(&waiters[i], NULL, wait_for_the_living, &epoll))
			die("pthread_create");
	for (int i = 1; i <= 3000; i++) {
		struct pair pair = connected();

		control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN | EPOLLRDHUP, i);
		put(pair.there, "a");
		while (i % 4 == 0 && recv(pair.here, &(char){ 0 }, 1, MSG_PEEK) != 1)
			;
		control(epoll, EPOLL_CTL_DEL, pair.here, 0, 0);
		take(pair.here);
		atomic_store(&deleted, i);
		if (pthread_create(&closer, NULL, close_peer, &pair.there))
			die("pthread_create");
		if (i % 2)
			usleep(i % 100);
		close(pair.here);
		pthread_join(closer, NULL);
	}
	atomic_store(&over, 1);
	for (int i = 0; i < 2; i++)
		pthread_join(waiters[i], NULL);
	printf("reported though deleted: %d\n", atomic_load(&stale));
	close(epoll);
}

/* A system call that no hook sees also returns the program's data. */
static void by_number(void)
{
	struct pair pair = connected();
	int epoll = check(epoll_create1(0), "epoll_create1");
	struct epoll_event event = { .events = 0 };

	control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN | EPOLLRDHUP | EPOLLET, DATA);
	wait_and_print("nothing", epoll, 20);
	close(pair.there);
	settle();
	if (check(syscall(SYS_epoll_pwait, epoll, &event, 1, limit_ms, NULL, 8), "epoll_pwait") == 1)
		printf("data %llx\n", (unsigned long long)event.data.u64);
	close(pair.here);
	close(epoll);
}

/* The added descriptor is closed, but a copy of it is still open. */
static void copied_socket(void)
{
	struct pair pair = connected();
	int epoll = check(epoll_create1(0), "epoll_create1"), copy = check(dup(pair.here), "dup");
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 4 };
	struct waiter waiter;

	control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN, 3);
	put(pair.there, "a");
	wait_and_print("before", epoll, limit_ms);
	close(pair.here);
	wait_and_print("unread", epoll, limit_ms);
	take(copy);
	wait_and_print("read", epoll, 0);
	begin_waiting(&waiter, 1, epoll, limit_ms);
	put(pair.there, "b");
	finish_waiting("by the copy", &waiter, 1);
	printf("MOD: %d\n", epoll_ctl(epoll, EPOLL_CTL_MOD, copy, &event));
	take(copy);
	close(copy);
	wait_and_print("closed", epoll, 0);
	close(pair.there);
	close(epoll);
}

/* A thread that waits for a socket with poll or select. */
struct poller {
	pthread_t thread;
	int fd, result;
	short events, found;
	bool selects;
};

static void *poll_once(void *context)
{
	struct poller *poller = context;

	if (poller->selects) {
		struct timeval limit = { .tv_sec = limit_ms / 3000 };
		fd_set reads, writes;

		FD_ZERO(&reads);
		FD_ZERO(&writes);
		if (poller->events & POLLIN)
			FD_SET(poller->fd, &reads);
		if (poller->events & POLLOUT)
			FD_SET(poller->fd, &writes);
		poller->result = select(poller->fd + 1, &reads, &writes, NULL, &limit);
	} else {
		struct pollfd polled = { .fd = poller->fd, .events = poller->events };

		poller->result = poll(&polled, 1, limit_ms / 3);
		poller->found = polled.revents;
	}
	return NULL;
}

static void begin_polling(struct poller *pollers, int fd, short events, bool selects)
{
	for (int i = 0; i < THREADS_MAX; i++) {
		pollers[i] = (struct poller){ .fd = fd, .events = events, .selects = selects };
		if (pthread_create(&pollers[i].thread, NULL, poll_once, &pollers[i]))
			die("pthread_create");
	}
	settle();
}

static void finish_polling(const char *what, struct poller *pollers)
{
	printf("%s:", what);
	for (int i = 0; i < THREADS_MAX; i++) {
		pthread_join(pollers[i].thread, NULL);
		printf(" %d/%x", pollers[i].result, pollers[i].found);
	}
	printf("\n");
}

static void pollers(void)
{
	struct poller all[THREADS_MAX];

	for (int selects = 0; selects < 2; selects++) {
		struct pair pair = connected(), other;
		int copy;

		for (int round = 0; round < 4; round++) {
			begin_polling(all, pair.here, POLLIN, selects);
			put(pair.there, "a");
			finish_polling("bytes", all);
			take(pair.here);
		}
		/* A poll goes on with the socket that the descriptor meant when it began. */
		begin_polling(all, pair.here, POLLIN, selects);
		copy = check(dup(pair.here), "dup");
		close(pair.here);
		put(pair.there, "a");
		finish_polling("closed, with a copy", all);
		take(copy);
		begin_polling(all, copy, POLLIN, selects);
		close(copy);
		other = connected();
		finish_polling("closed and used again", all);
		hang_up(other);
		close(pair.there);
		pair = connected();
		begin_polling(all, pair.here, POLLIN, selects);
		close(pair.there);
		finish_polling("the peer closes", all);
		close(pair.here);
	}
}

/* Closes all descriptors from `first` to the usual limit. Returns how many calls failed with
 * EBADF. */
static int close_all_from(int first, bool by_number)
{
	int refused = 0;

	for (int fd = first; fd < 1024; fd++)
		refused += (by_number ? syscall(SYS_close, fd) : close(fd)) < 0 && errno == EBADF;
	return refused;
}

/* While a thread sleeps, the program closes all descriptors that it has not opened, or a child does
 * so. Bytes that arrive afterwards must wake the thread, also when it sleeps again. */
static void closed_wholesale(void)
{
	enum { ROUNDS = 3, WAYS = 6 };
	struct pair pair = connected();
	int epoll = check(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
	int first = check(dup(0), "dup"), status;
	struct waiter waiter;
	pid_t child;

	close(first);
	control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN, DATA);
	for (int round = 0; round < ROUNDS * WAYS; round++) {
		begin_waiting(&waiter, 1, epoll, limit_ms);
		switch (round % WAYS) {
		case 0:
			break;
		case 1:
			printf("%d refused\n", close_all_from(first, false));
			break;
		case 2:
			printf("%d refused\n", close_all_from(first, true));
			break;
		case 3:
			check(close_range(first, ~0U, 0), "close_range");
			break;
		case 4:
			closefrom(first);
			break;
		case 5:
			if (!(child = check(fork(), "fork"))) {
				close_all_from(3, false);
				_exit(0);
			}
			check(waitpid(child, &status, 0), "waitpid");
			break;
		}
		put(pair.there, "a");
		finish_waiting("after closing", &waiter, 1);
		take(pair.here);
	}
	hang_up(pair);
	close(epoll);
}

/* A one-shot fires once, also if another process gets the instance while a thread is coming back
 * with its event. */
static atomic_int fired, waits[2];

struct shooter {
	int epoll;
	atomic_int *waits;
};

static void *count_shots(void *context)
{
	struct shooter *shooter = context;
	struct epoll_event events[MANY];

	while (!atomic_load(&over)) {
		atomic_fetch_add(&fired, check(epoll_wait(shooter->epoll, events, MANY, 1), "epoll_wait"));
		atomic_fetch_add(shooter->waits, 1);
	}
	return NULL;
}

static void send_descriptor(int channel, int fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr header;
	} control = { .header = { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };
	struct iovec part = { "x", 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };

	memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
	check(sendmsg(channel, &message, 0), "sendmsg");
}

static void oneshots(void)
{
	enum { ROUNDS = 500, DELAY_NS_MAX = 120000 };
	int channel[2], wrong = 0;

	check(socketpair(AF_UNIX, SOCK_STREAM, 0, channel), "socketpair");
	for (int round = 0; round < ROUNDS; round++) {
		struct pair pair = connected();
		int epoll = check(epoll_create1(0), "epoll_create1");
		struct shooter shooters[2] = { { epoll, &waits[0] }, { epoll, &waits[1] } };
		pthread_t threads[2];
		struct timespec begun, now;

		atomic_store(&fired, 0);
		atomic_store(&over, 0);
		control(epoll, EPOLL_CTL_ADD, pair.here, EPOLLIN | EPOLLONESHOT, DATA);
		for (int i = 0; i < 2; i++) {
			int before = atomic_load(&waits[i]);

			pthread_create(&threads[i], NULL, count_shots, &shooters[i]);
			while (atomic_load(&waits[i]) == before)
				sched_yield();
		}
		put(pair.there, "a");
		clock_gettime(CLOCK_MONOTONIC, &begun);
		do
			clock_gettime(CLOCK_MONOTONIC, &now);
		while ((now.tv_sec - begun.tv_sec) * 1000000000L + now.tv_nsec - begun.tv_nsec <
		       (long)DELAY_NS_MAX * round / ROUNDS);
		send_descriptor(channel[0], epoll);
		take(channel[1]);
		while (!atomic_load(&fired))
			sched_yield();
		for (int i = 0; i < 2; i++) /* Whatever is left is reported to waits that begin now. */
			for (int until = atomic_load(&waits[i]) + 2; atomic_load(&waits[i]) < until;)
				sched_yield();
		wrong += atomic_load(&fired) != 1;
		atomic_store(&over, 1);
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
		hang_up(pair);
		close(epoll);
	}
	printf("%d of %d fired more than once\n", wrong, ROUNDS);
	close(channel[0]);
	close(channel[1]);
}

static const struct {
	const char *name;
	void (*run)(void);
} CASES[] = {
	{ "copies", copies },	    { "changes", changes },
	{ "sleepers", sleepers },   { "readers_and_writers", readers_and_writers },
	{ "closed", closed },	    { "same_data", same_data },
	{ "exclusive", exclusive }, { "arrival", arrival },
	{ "races", races },	    { "forked", forked },
	{ "passed", passed },	    { "executed", executed },
	{ "by_number", by_number }, { "copied_socket", copied_socket },
	{ "pollers", pollers },	    { "deletions", deletions },
	{ "closed_wholesale", closed_wholesale }, { "oneshots", oneshots },
};

int main(int argc, char **argv)
{
	const char *slowness = getenv("EPOLL_WAITERS_SLOWNESS");
	int factor = slowness ? atoi(slowness) : 1;

	settle_ms *= factor;
	limit_ms *= factor;
	quiet_ms *= factor;
	if (argc == 3 && !strcmp(argv[1], "wait")) {
		wait_and_print("another program", atoi(argv[2]), limit_ms);
		return 0;
	}
	for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
		if (argc > 1 && strcmp(argv[1], CASES[i].name))
			continue;
		printf("== %s\n", CASES[i].name);
		CASES[i].run();
		fflush(stdout);
	}
	return 0;
}

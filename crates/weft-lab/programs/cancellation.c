/*
 * Threads that are cancelled in calls on connections, and signal handlers that jump out of such
 * calls (siglongjmp). Afterwards the connection, and what else the thread has used, still works.
 * Prints what each case observes; the same with and without Weft.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "plain.h"

enum { WARM = 20, LIMIT_S = 30, LONG = 1 << 20, MANY = 300, WATCHED = 3 };

static int listener;
static struct sockaddr_in address = { .sin_family = AF_INET };

struct pair {
	int near, remote;
};

static void exchange(struct pair pair, int times)
{
	char byte = 'w';

	for (int i = 0; i < times; i++) {
		REQUIRE(send(pair.near, &byte, 1, 0) == 1);
		REQUIRE(recv(pair.remote, &byte, 1, 0) == 1);
		REQUIRE(send(pair.remote, &byte, 1, 0) == 1);
		REQUIRE(recv(pair.near, &byte, 1, 0) == 1);
	}
}

static struct pair make_pair(void)
{
	struct pair pair;

	REQUIRE((pair.near = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	REQUIRE(!connect(pair.near, (struct sockaddr *)&address, sizeof address));
	REQUIRE((pair.remote = accept(listener, NULL, NULL)) >= 0);
	exchange(pair, WARM);
	return pair;
}

static void close_pair(struct pair pair)
{
	REQUIRE(!close(pair.near) && !close(pair.remote));
}

/* What a thread does until it is cancelled. */
struct job {
	const char *name;
	void (*work)(struct job *job);
	int fd, instance;
	volatile bool has_begun;
};

static void *run(void *argument)
{
	struct job *job = argument;

	job->has_begun = true;
	job->work(job);
	return NULL;
}

static bool join(pthread_t thread, void **result, int milliseconds)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += milliseconds % 1000 * 1000000L;
	until.tv_sec += milliseconds / 1000 + until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	return !pthread_timedjoin_np(thread, result, &until);
}

/* Cancels a thread that does a job, while `meanwhile` keeps it busy. */
static void cancel(struct job *job, void (*meanwhile)(struct pair pair), struct pair pair)
{
	pthread_t thread;
	void *result = NULL;
	struct timespec interval = { .tv_nsec = 20000000 };
	time_t began = time(NULL);
	bool has_ended = false;

	REQUIRE(!pthread_create(&thread, NULL, run, job));
	while (!job->has_begun)
		sched_yield();
	for (int i = 0; i < 1000 && meanwhile; i++)
		meanwhile(pair);
	if (!meanwhile)
		nanosleep(&interval, NULL);
	REQUIRE(!pthread_cancel(thread));
	while (!has_ended && time(NULL) - began < LIMIT_S) {
		if (meanwhile)
			meanwhile(pair);
		has_ended = join(thread, &result, meanwhile ? 0 : 1000);
	}
	printf("%s: %s\n", job->name,
	       !has_ended                   ? "is not cancelled" :
	       result == PTHREAD_CANCELED ? "cancelled" :
					      "ended");
	fflush(stdout);
	if (!has_ended)
		_exit(1);
}

/* Cancels a thread so many microseconds after it has begun a job. */
static void cancel_after(struct job *job, int microseconds)
{
	pthread_t thread;
	void *result = NULL;
	struct timespec began, now;

	job->has_begun = false;
	REQUIRE(!pthread_create(&thread, NULL, run, job));
	while (!job->has_begun)
		sched_yield();
	clock_gettime(CLOCK_MONOTONIC, &began);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - began.tv_sec) * 1000000L +
		       (now.tv_nsec - began.tv_nsec) / 1000 < microseconds);
	REQUIRE(!pthread_cancel(thread));
	if (!join(thread, &result, LIMIT_S * 1000)) {
		printf("%s: is not cancelled after %d us\n", job->name, microseconds);
		fflush(stdout);
		_exit(1);
	}
	REQUIRE(result == PTHREAD_CANCELED);
}

/* Keeps a receiver busy, and a sender. */
static void feed(struct pair pair)
{
	char bytes[64] = "";

	send(pair.near, bytes, sizeof bytes, MSG_DONTWAIT);
}

static void eat(struct pair pair)
{
	static char bytes[1 << 16];

	recv(pair.near, bytes, sizeof bytes, MSG_DONTWAIT);
}

static char space[LONG];

static void recv_on(struct job *job)
{
	while (recv(job->fd, space, 16, 0) >= 0)
		;
}

static void read_on(struct job *job)
{
	while (read(job->fd, space, 16) >= 0)
		;
}

static void readv_on(struct job *job)
{
	struct iovec part = { space, 16 };

	while (readv(job->fd, &part, 1) >= 0)
		;
}

static void recvmsg_on(struct job *job)
{
	struct iovec part = { space, 16 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	while (recvmsg(job->fd, &message, 0) >= 0)
		;
}

static void send_on(struct job *job)
{
	while (send(job->fd, space, 100, 0) >= 0)
		;
}

static void write_on(struct job *job)
{
	while (write(job->fd, space, 100) >= 0)
		;
}

static void send_long_on(struct job *job)
{
	while (send(job->fd, space, sizeof space, 0) >= 0)
		;
}

static void poll_on(struct job *job)
{
	struct pollfd place = { job->fd, POLLIN | POLLOUT, 0 };

	while (poll(&place, 1, -1) >= 0)
		;
}

static void select_on(struct job *job)
{
	fd_set set;

	do {
		FD_ZERO(&set);
		FD_SET(job->fd, &set);
	} while (select(job->fd + 1, NULL, &set, NULL, NULL) >= 0);
}

static void wait_on(struct job *job)
{
	struct epoll_event event;

	while (epoll_wait(job->instance, &event, 1, -1) >= 0)
		;
}

static void recv_all(struct job *job)
{
	recv(job->fd, space, LONG, MSG_WAITALL);
}

static void poll_for_bytes(struct job *job)
{
	struct pollfd place = { job->fd, POLLIN, 0 };

	poll(&place, 1, -1);
}

static void select_for_bytes(struct job *job)
{
	fd_set set;

	FD_ZERO(&set);
	FD_SET(job->fd, &set);
	select(job->fd + 1, &set, NULL, NULL, NULL);
}

static void accept_one(struct job *job)
{
	accept(job->fd, NULL, NULL);
}

/* A thread that has been cancelled before it closes does not close. */
static void close_late(struct job *job)
{
	struct timespec interval = { .tv_nsec = 60000000 };

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	nanosleep(&interval, NULL);
	nanosleep(&interval, NULL);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	close(job->fd);
}

static void busy_threads(void)
{
	static const struct {
		const char *name;
		void (*work)(struct job *job);
		bool receives;
	} all[] = {
		{ "busy recv", recv_on, true },   { "busy read", read_on, true },
		{ "busy readv", readv_on, true }, { "busy recvmsg", recvmsg_on, true },
		{ "busy send", send_on, false },  { "busy write", write_on, false },
		{ "busy poll", poll_on, false },  { "busy select", select_on, false },
		{ "busy epoll", wait_on, false },
	};

	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		struct pair pair = make_pair();
		struct job job = { .name = all[i].name, .work = all[i].work, .fd = pair.remote };
		struct epoll_event event = { .events = EPOLLOUT };

		REQUIRE((job.instance = epoll_create1(0)) >= 0);
		REQUIRE(!epoll_ctl(job.instance, EPOLL_CTL_ADD, pair.remote, &event));
		cancel(&job, all[i].receives ? feed : eat, pair);
		REQUIRE(!close(job.instance));
		close_pair(pair);
	}
}

static void sleeping_threads(void)
{
	static const struct {
		const char *name;
		void (*work)(struct job *job);
		bool is_full;
	} all[] = {
		{ "recv of nothing", recv_on, false },
		{ "recv of all", recv_all, false },
		{ "poll of nothing", poll_for_bytes, false },
		{ "send without room", send_on, true },
		{ "long send without room", send_long_on, true },
	};

	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		struct pair pair = make_pair();
		struct job job = { .name = all[i].name, .work = all[i].work, .fd = pair.remote };

		if (all[i].work == recv_all)
			REQUIRE(send(pair.near, space, 100, 0) == 100);
		cancel(&job, NULL, pair);
		if (!all[i].is_full)
			exchange(pair, WARM);
		close_pair(pair);
	}
}

static void closing_thread(void)
{
	struct pair pair = make_pair();
	struct job job = { .name = "close", .work = close_late, .fd = pair.remote };

	cancel(&job, NULL, pair);
	printf("%s\n", fcntl(pair.remote, F_GETFD) < 0 ? "closed" : "still open");
	exchange(pair, WARM);
	close_pair(pair);
}

/* Other threads use an instance after one has been cancelled in it. */
static void instance_of_cancelled(uint32_t mode)
{
	struct pair pairs[WATCHED];
	struct epoll_event event = { 0 };
	struct job job = { .name = "epoll_wait of nothing", .work = wait_on };
	char byte = 'e';

	REQUIRE((job.instance = epoll_create1(0)) >= 0);
	for (int i = 0; i < WATCHED; i++) {
		pairs[i] = make_pair();
		event.events = EPOLLIN | mode;
		event.data.u32 = i;
		REQUIRE(!epoll_ctl(job.instance, EPOLL_CTL_ADD, pairs[i].remote, &event));
	}
	for (int round = 0; round < 5; round++) {
		job.has_begun = false;
		cancel(&job, NULL, pairs[0]);
		for (int i = 0; i < 30; i++) {
			struct pair pair = pairs[i % WATCHED];

			REQUIRE(send(pair.near, &byte, 1, 0) == 1);
			REQUIRE(epoll_wait(job.instance, &event, 1, LIMIT_S * 1000) == 1);
			REQUIRE(event.data.u32 == (uint32_t)i % WATCHED && event.events == EPOLLIN);
			REQUIRE(recv(pair.remote, &byte, 1, 0) == 1);
			REQUIRE(epoll_wait(job.instance, &event, 1, 0) == 0);
			event.events = EPOLLIN | mode;
			event.data.u32 = i % WATCHED;
			if (mode & EPOLLONESHOT)
				REQUIRE(!epoll_ctl(job.instance, EPOLL_CTL_MOD, pair.remote, &event));
		}
	}
	for (int i = 0; i < WATCHED; i++)
		close_pair(pairs[i]);
	REQUIRE(!close(job.instance));
}

/* A thread is cancelled at any moment of its first wait in an instance. */
static void new_instances(void)
{
	static const uint32_t modes[] = { 0, EPOLLET, EPOLLONESHOT };
	struct pair pairs[WATCHED];
	struct job job = { .name = "epoll_wait in a new instance", .work = wait_on };
	struct epoll_event event = { 0 };
	char byte = 'n';

	for (int i = 0; i < WATCHED; i++)
		pairs[i] = make_pair();
	for (int round = 0; round < MANY; round++) {
		REQUIRE((job.instance = epoll_create1(0)) >= 0);
		for (int i = 0; i < WATCHED; i++) {
			event.events = EPOLLIN | modes[round % 3];
			event.data.u32 = i;
			REQUIRE(!epoll_ctl(job.instance, EPOLL_CTL_ADD, pairs[i].remote, &event));
		}
		cancel_after(&job, round * 37 % 200);
		for (int i = 0; i < WATCHED; i++) {
			REQUIRE(send(pairs[i].near, &byte, 1, 0) == 1);
			REQUIRE(epoll_wait(job.instance, &event, 1, LIMIT_S * 1000) == 1);
			REQUIRE(event.data.u32 == (uint32_t)i && event.events == EPOLLIN);
			REQUIRE(recv(pairs[i].remote, &byte, 1, 0) == 1);
		}
		REQUIRE(!close(job.instance));
	}
	for (int i = 0; i < WATCHED; i++)
		close_pair(pairs[i]);
	printf("%s: cancelled at any moment\n", job.name);
}

/* The same for other calls that wait. */
static void any_moment(const char *name, void (*work)(struct job *job), bool is_full)
{
	struct pair pair = make_pair();
	struct job job = { .name = name, .work = work };

	for (int round = 0; round < MANY / 3; round++) {
		if (is_full && round > 0) {
			close_pair(pair);
			pair = make_pair();
		}
		job.fd = work == accept_one ? listener : pair.remote;
		if (is_full)
			while (send(job.fd, space, sizeof space, MSG_DONTWAIT) > 0)
				;
		cancel_after(&job, round * 37 % 200);
		if (!is_full)
			exchange(pair, 1);
	}
	close_pair(pair);
	printf("%s: cancelled at any moment\n", name);
}

static volatile bool goes_on;

/* A cancelled thread goes on to the next cancellation point: these calls are none. */
static void not_yet(struct job *job)
{
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct epoll_event event = { .events = EPOLLIN };
	int fd, copy, datagrams, instance, on = 1;

	pthread_cancel(pthread_self());
	REQUIRE((datagrams = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	REQUIRE((instance = epoll_create1(0)) >= 0);
	REQUIRE((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	REQUIRE(!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
	REQUIRE(!bind(fd, (struct sockaddr *)&any, sizeof any) && !listen(fd, 1));
	REQUIRE((copy = dup(fd)) >= 0 && dup2(fd, copy) == copy);
	REQUIRE(!epoll_ctl(job->instance, EPOLL_CTL_ADD, job->fd, &event));
	REQUIRE(!epoll_ctl(job->instance, EPOLL_CTL_ADD, copy, &event));
	REQUIRE(!epoll_ctl(job->instance, EPOLL_CTL_DEL, job->fd, NULL));
	REQUIRE(!shutdown(job->fd, SHUT_WR));
	REQUIRE(!pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL));
	REQUIRE(!close(copy) && !close(fd) && !close(job->instance));
	REQUIRE(!close(datagrams) && !close(instance));
	goes_on = true;
	REQUIRE(!pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL));
	pthread_testcancel();
}

static void no_cancellation_points(void)
{
	struct pair pair = make_pair();
	struct job job = { .name = "no cancellation point", .work = not_yet, .fd = pair.remote };
	char byte;

	REQUIRE((job.instance = epoll_create1(0)) >= 0);
	cancel_after(&job, 0);
	printf("%s: %s\n", job.name, goes_on ? "goes on" : "cancelled");
	fflush(stdout);
	if (!goes_on)
		_exit(1);
	REQUIRE(send(pair.near, "b", 1, 0) == 1 && recv(pair.remote, &byte, 1, 0) == 1);
	REQUIRE(recv(pair.near, &byte, 1, 0) == 0);
	close_pair(pair);
}

static sigjmp_buf back;

static void jump(int signal)
{
	siglongjmp(back, signal);
}

static void begin_alarm(int microseconds)
{
	struct itimerval time = { .it_value.tv_usec = microseconds };

	REQUIRE(!setitimer(ITIMER_REAL, &time, NULL));
}

/* A handler jumps out of calls on a connection at any moment. */
static void jumps(const char *name, void (*work)(struct job *job), bool gives_bytes)
{
	struct pair pair = make_pair();
	struct job job = { .name = name, .work = work, .fd = pair.remote };
	struct epoll_event event = { .events = EPOLLIN };

	REQUIRE((job.instance = epoll_create1(0)) >= 0);
	REQUIRE(!epoll_ctl(job.instance, EPOLL_CTL_ADD, pair.remote, &event));
	for (volatile int i = 0; i < MANY / 3; i++) {
		if (!sigsetjmp(back, 1)) {
			begin_alarm(1 + i * 37 % 3000);
			work(&job);
			REQUIRE(!"the call has ended");
		}
		exchange(pair, 1);
		if (gives_bytes)
			REQUIRE(send(pair.near, space, 1, 0) == 1 &&
				epoll_wait(job.instance, &event, 1, LIMIT_S * 1000) == 1 &&
				recv(pair.remote, space, 1, 0) == 1);
	}
	printf("%s: jumped\n", name);
	REQUIRE(!close(job.instance));
	close_pair(pair);
}

/*
 * A handler jumps out of a long send. The peer gets bytes of that send, and never of what the
 * program writes into the buffer afterwards.
 */
static void jump_out_of_a_long_send(void)
{
	static char bytes[LONG], got[LONG];
	volatile bool is_foreign = false;

	for (volatile int i = 0; i < MANY / 3; i++) {
		struct pair pair = make_pair();
		ssize_t received;

		memset(bytes, 'a', sizeof bytes);
		if (!sigsetjmp(back, 1)) {
			begin_alarm(1 + i * 37 % 3000);
			for (;;)
				send(pair.near, bytes, sizeof bytes, 0);
		}
		memset(bytes, 'b', sizeof bytes);
		REQUIRE(!shutdown(pair.near, SHUT_WR));
		while ((received = recv(pair.remote, got, sizeof got, 0)) > 0)
			is_foreign |= memchr(got, 'b', received) != NULL;
		REQUIRE(received == 0);
		close_pair(pair);
	}
	printf("long send: %s\n", is_foreign ? "foreign bytes" : "its own bytes");
}

int main(void)
{
	socklen_t len = sizeof address;

	alarm(0);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	REQUIRE((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	REQUIRE(!bind(listener, (struct sockaddr *)&address, sizeof address));
	REQUIRE(!listen(listener, 100));
	REQUIRE(!getsockname(listener, (struct sockaddr *)&address, &len));
	signal(SIGALRM, jump);
	busy_threads();
	sleeping_threads();
	closing_thread();
	instance_of_cancelled(0);
	instance_of_cancelled(EPOLLET);
	instance_of_cancelled(EPOLLONESHOT);
	new_instances();
	any_moment("recv", recv_on, false);
	any_moment("poll", poll_for_bytes, false);
	any_moment("select", select_for_bytes, false);
	any_moment("accept", accept_one, false);
	any_moment("send", send_on, true);
	no_cancellation_points();
	jumps("recv", recv_on, true);
	jumps("poll", poll_for_bytes, true);
	jumps("epoll_wait", wait_on, true);
	jump_out_of_a_long_send();
	printf("done\n");
	return 0;
}

/* Steps with many operations, which fill a table or use two processes at the same time. */
#include "world.h"

#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

struct two {
	int connector, acceptor;
};

static bool open_two(struct two *two, int listener, const struct sockaddr_in *address)
{
	int one = 1;

	two->acceptor = -1;
	two->connector = socket(AF_INET, SOCK_STREAM, 0);
	if (two->connector < 0 ||
	    connect(two->connector, (const struct sockaddr *)address, sizeof *address))
		return false;
	two->acceptor = accept(listener, NULL, NULL);
	setsockopt(two->connector, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(two->acceptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return two->acceptor >= 0;
}

static int open_listener(struct sockaddr_in *address)
{
	socklen_t length = sizeof *address;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	*address = (struct sockaddr_in){ .sin_family = AF_INET,
					 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (fd < 0 || bind(fd, (struct sockaddr *)address, sizeof *address) || listen(fd, 64) ||
	    getsockname(fd, (struct sockaddr *)address, &length))
		return -1;
	return fd;
}

/* Sends a message there and back that names its connection and process. */
static bool exchange(struct two *two, int index, int round, uint32_t length)
{
	char sent[600], got[600];

	for (int back = 0; back < 2; back++) {
		int from = back ? two->acceptor : two->connector;
		int to = back ? two->connector : two->acceptor;
		ssize_t received;

		for (uint32_t i = 0; i < length; i++)
			sent[i] = pattern(getpid() % 1000 * 100 + index, back, round * 1000u + i);
		if (send(from, sent, length, MSG_NOSIGNAL) != (ssize_t)length) {
			note(" send of connection %d, round %d", index, round);
			return false;
		}
		received = recv(to, got, length, MSG_WAITALL);
		if (received != (ssize_t)length) {
			note(" connection %d, round %d: %zd", index, round, received);
			return false;
		}
		if (memcmp(sent, got, length)) {
			note(" FOREIGN in connection %d, round %d", index, round);
			return false;
		}
	}
	return true;
}

/* Sleeps until `offset` milliseconds after the start of a second. */
static void wait_for_second(long offset)
{
	struct timespec now, then;

	clock_gettime(CLOCK_MONOTONIC, &now);
	then = (struct timespec){ now.tv_sec + 2, 0 };
	then.tv_nsec = offset * 1000000;
	if (offset < 0) {
		then.tv_sec--;
		then.tv_nsec += 1000000000;
	}
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL);
}

/* churn n= rounds= offset=: opens connections, exchanges messages over all, and closes them. */
static void do_churn(const struct step *step)
{
	struct two open[64];
	struct sockaddr_in address;
	int listener = open_listener(&address), opened = 0;
	int count = (int)number_of(step, "n", 10);
	bool good = true;

	if (count > 64)
		count = 64;
	if (number_of(step, "offset", 0))
		wait_for_second(number_of(step, "offset", 0));
	while (good && opened < count)
		good = open_two(&open[opened++], listener, &address);
	for (int round = 0; good && round < number_of(step, "rounds", 4); round++)
		for (int i = 0; good && i < opened; i++)
			good = exchange(&open[i], i, round, 1 + (uint32_t)(i * 37 + round) % 500);
	for (int i = 0; i < opened; i++) {
		close(open[i].connector);
		close(open[i].acceptor);
	}
	close(listener);
	note(" = %s", good ? "ok" : "bad");
}

/* crowd n=: a child that opens many connections, uses each, and is killed with all of them. */
static void do_crowd(const struct step *step)
{
	int count = (int)number_of(step, "n", 1000), status = 0;
	pid_t child = fork();

	if (!child) {
		struct sockaddr_in address;
		int listener = open_listener(&address);

		for (int i = 0; i < count; i++) {
			struct two two;

			if (!open_two(&two, listener, &address))
				break;
			for (int round = 0; round < 3; round++)
				exchange(&two, i, round, 5);
		}
		kill(getpid(), SIGKILL);
	}
	note(" = %s", child > 0 && waitpid(child, &status, 0) == child ? "ok" : "bad");
}

/* listeners n=: makes the kernel's list of connections long, and reading it slow. */
static void do_listeners(const struct step *step)
{
	long count = number_of(step, "n", 1000), made = 0;

	for (; made < count; made++) {
		int fd = socket(AF_INET6, SOCK_STREAM, 0);

		if (fd < 0 || listen(fd, 1))
			break;
	}
	note(" = %ld", made);
}

enum { RECORD_MIN = 16, RECORD_MAX = 1 << 15 };

static long record_size(const struct step *step)
{
	long size = number_of(step, "size", 64);

	return size < RECORD_MIN ? RECORD_MIN : size > RECORD_MAX ? RECORD_MAX : size;
}

/* Makes a record of one writer, which a reader can check for completeness. */
static void make_record(char *record, long size, int writer, long number)
{
	record[0] = (char)('A' + writer);
	memcpy(record + 1, &number, sizeof number);
	for (long i = 1 + (long)sizeof number; i < size; i++)
		record[i] = pattern(writer, 1, (uint64_t)(number * size + i));
}

/* pour V count=: sends records of this actor. Others may send theirs over the same end. */
static void do_pour(const struct step *step)
{
	struct var *var = var_at(step, 0);
	long count = number_of(step, "count", 100), sent = 0;
	long size = record_size(step);
	char record[RECORD_MAX];

	for (long i = 0; i < count; i++) {
		make_record(record, size, own, i);
		sent = BY(way_of(step), send(var->fd, record, size, MSG_NOSIGNAL), SYS_sendto,
			  var->fd, record, size, (long)MSG_NOSIGNAL, NULL, 0L);
		if (sent != size)
			break;
	}
	note_result(sent);
}

/* collect V count=: receives that many records, and checks the order of each writer's. */
static void do_collect(const struct step *step)
{
	struct var *var = var_at(step, 0);
	long count = number_of(step, "count", 100), next[ACTORS] = { 0 }, got = 0;
	long size = record_size(step);
	char record[RECORD_MAX], right[RECORD_MAX];
	struct var before = *var;

	if (!begin_receive(&before))
		return;
	for (long i = 0; i < count; i++) {
		int writer;

		got = recv(var->fd, record, size, MSG_WAITALL);
		if (got != size)
			break;
		writer = (unsigned char)record[0] - 'A';
		if (writer < 0 || writer >= ACTORS) {
			note(" FOREIGN: no record, after %ld", i);
			break;
		}
		make_record(right, size, writer, next[writer]++);
		if (memcmp(record, right, size)) {
			note(" FOREIGN: not record %ld of actor %d", next[writer] - 1, writer);
			break;
		}
	}
	note_result(got);
	end_receive(&before);
}

enum { RECYCLED = 300 };

/* recycle V n=: makes and closes copies under one number, which another thread uses (poke). */
static void do_recycle(const struct step *step)
{
	struct var *var = var_at(step, 0);
	long count = number_of(step, "n", 1000);

	for (long i = 0; i < count; i++) {
		if (dup2(var->fd, RECYCLED) < 0)
			break;
		close(RECYCLED);
	}
	note(" = ok");
}

/* poke n=: calls on that number, which may be open or not. */
static void do_poke(const struct step *step)
{
	long count = number_of(step, "n", 1000);
	char byte;

	for (long i = 0; i < count; i++) {
		struct pollfd polled = { RECYCLED, POLLIN, 0 };
		int unread;

		switch (i % 4) {
		case 0:
			recv(RECYCLED, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
			break;
		case 1:
			ioctl(RECYCLED, FIONREAD, &unread);
			break;
		case 2:
			poll(&polled, 1, 0);
			break;
		default:
			send(RECYCLED, &byte, 0, MSG_DONTWAIT | MSG_NOSIGNAL);
		}
	}
	note(" = ok");
}

/* mapped: whether this process maps much more than it did the first time. */
static void do_mapped(const struct step *step)
{
	static unsigned long first;
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	(void)step;
	if (file) {
		if (fscanf(file, "%lu", &pages) != 1)
			pages = 0;
		fclose(file);
	}
	if (!first)
		first = pages;
	note(" = %s", pages > first + (30UL << 30) / 4096 ? "more" : "ok");
}

const struct named bulk[] = {
	{ "churn", do_churn },	   { "crowd", do_crowd }, { "pour", do_pour },
	{ "collect", do_collect }, { "poke", do_poke },	  { "recycle", do_recycle },
	{ "mapped", do_mapped },   { "listeners", do_listeners },
	{ NULL, NULL },
};

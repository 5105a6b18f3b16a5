/* poll, ppoll, select and pselect, of sockets alone and together with other descriptors. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/param.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include "calls.h"

enum call { POLL, PPOLL, SELECT, PSELECT, CALLS };
static const char *const CALL_NAMES[CALLS] = { "poll", "ppoll", "select", "pselect" };

/* Waits for `count` descriptors by the call `args->name`, for `args->value` milliseconds. */
static void wait_by(struct end *end, const struct arguments *args, struct pollfd *polled, int count)
{
	struct timespec time = { args->value / 1000, args->value % 1000 * 1000000L };
	struct timeval short_time = { args->value / 1000, args->value % 1000 * 1000 };
	fd_set in, out, except;
	int result = -1, top = 0;

	note(end, "%s", CALL_NAMES[args->name]);
	note_events(end, args->flags);
	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_ZERO(&except);
	for (int i = 0; i < count; i++) {
		if (polled[i].events & POLLIN)
			FD_SET(polled[i].fd, &in);
		if (polled[i].events & POLLOUT)
			FD_SET(polled[i].fd, &out);
		if (polled[i].events & POLLPRI)
			FD_SET(polled[i].fd, &except);
		top = polled[i].fd >= top ? polled[i].fd + 1 : top;
	}
	switch (args->name) {
	case POLL:
		result = poll(polled, count, args->value);
		break;
	case PPOLL:
		result = ppoll(polled, count, args->value < 0 ? NULL : &time, NULL);
		break;
	case SELECT:
		result = select(top, &in, &out, &except, args->value < 0 ? NULL : &short_time);
		break;
	case PSELECT:
		result = pselect(top, &in, &out, &except, args->value < 0 ? NULL : &time, NULL);
		break;
	}
	note_result(end, result);
	for (int i = 0; i < count && result >= 0; i++) {
		note(end, " |");
		if (args->name == POLL || args->name == PPOLL)
			note_events(end, polled[i].revents);
		else
			note(end, "%s%s%s", FD_ISSET(polled[i].fd, &in) ? " in" : "",
			     FD_ISSET(polled[i].fd, &out) ? " out" : "",
			     FD_ISSET(polled[i].fd, &except) ? " except" : "");
	}
}

static void do_wait(struct end *end, const struct arguments *args)
{
	struct pollfd polled = { .fd = args->fd, .events = args->flags };

	wait_by(end, args, &polled, 1);
}

CASE(poll_states)
{
	for (int call = 0; call < CALLS; call++) {
		ON(pair->b, do_wait, .name = call, .flags = POLLIN, .value = 0);
		ON(pair->b, do_wait, .name = call, .flags = POLLIN | POLLOUT | POLLPRI, .value = 0);
		ON(pair->b, do_wait, .name = call, .flags = POLLIN, .value = 20);
		ON(pair->a, do_send, .text = "data");
		ON(pair->b, do_wait, .name = call, .flags = POLLIN, .value = 0);
		ON(pair->b, do_wait, .name = call, .flags = POLLIN | POLLOUT, .value = -1);
		ON(pair->b, do_recv, .size = 2);
		ON(pair->b, do_wait, .name = call, .flags = POLLIN, .value = 0);
		ON(pair->b, do_recv, .size = 2);
		ON(pair->b, do_wait, .name = call, .flags = POLLIN, .value = 0);
		BEGIN(pair->b, do_wait, .name = call, .flags = POLLIN, .value = -1);
		ON(pair->a, do_send, .text = "wake");
		finish(pair->b);
		ON(pair->b, do_recv, .size = 10);
		BEGIN(pair->b, do_wait, .name = call, .flags = POLLIN, .value = 3000);
		ON(pair->a, do_send, .text = "up");
		finish(pair->b);
		ON(pair->b, do_recv, .size = 10);
	}
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	for (int call = 0; call < CALLS; call++)
		ON(pair->b, do_wait, .name = call, .flags = POLLIN | POLLOUT | POLLPRI, .value = 0);
	ON(pair->b, do_send, .text = "unread");
	ON(pair->a, do_close);
	sleep_ms(settle_ms);
	for (int call = 0; call < CALLS; call++)
		ON(pair->b, do_wait, .name = call, .flags = POLLIN | POLLOUT | POLLPRI, .value = 0);
	ON(pair->b, do_close);
	for (int call = 0; call < CALLS; call++)
		ON(pair->b, do_wait, .name = call, .flags = POLLIN, .value = 0);
}

/* A fills the connection, and there is room when B has read. Each case makes one kind of call,
 * because the kernel takes long to fill a connection. */
static void see_room(struct pair *pair, int call)
{
	ON(pair->a, do_fill);
	ON(pair->a, do_wait, .name = call, .flags = POLLOUT, .value = 0);
	ON(pair->a, do_wait, .name = call, .flags = POLLOUT | POLLIN, .value = 20);
	ON(pair->b, do_drain, .size = 1L << 30, .flags = MSG_DONTWAIT);
	ON(pair->a, do_wait, .name = call, .flags = POLLOUT, .value = 3000);
	ON(pair->b, do_drain, .size = 1L << 30, .flags = MSG_DONTWAIT);
}

static void wait_for_room(struct pair *pair, int call)
{
	ON(pair->b, do_fill);
	BEGIN(pair->b, do_wait, .name = call, .flags = POLLOUT, .value = 3000);
	ON(pair->a, do_drain, .size = 1L << 30, .flags = MSG_DONTWAIT);
	finish(pair->b);
	ON(pair->a, do_drain, .size = 1L << 30, .flags = MSG_DONTWAIT);
	ON(pair->b, do_send, .text = "fits");
	ON(pair->a, do_recv, .size = 100);
}

CASE(poll_sees_room)
{
	see_room(pair, POLL);
}

CASE(poll_sees_room_by_select)
{
	see_room(pair, SELECT);
}

CASE(poll_waits_for_room)
{
	wait_for_room(pair, PPOLL);
}

CASE(poll_waits_for_room_by_select)
{
	wait_for_room(pair, PSELECT);
}

CASE(poll_norm_and_band)
{
	enum { ALL = POLLRDNORM | POLLWRNORM | POLLRDBAND | POLLRDHUP };

	ON(pair->b, do_wait, .name = POLL, .flags = ALL, .value = 0);
	ON(pair->a, do_send, .text = "data");
	ON(pair->b, do_wait, .name = POLL, .flags = ALL, .value = 0);
	ON(pair->b, do_wait, .name = POLL, .flags = POLLRDNORM, .value = 1000);
	ON(pair->b, do_wait, .name = POLL, .flags = 0, .value = 0);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->b, do_wait, .name = POLL, .flags = ALL, .value = 0);
	ON(pair->b, do_recv, .size = 10);
	ON(pair->b, do_wait, .name = POLL, .flags = POLLRDHUP, .value = 1000);
}

enum { OTHERS = 5 };
static const char *const OTHER_NAMES[OTHERS] = { "a pipe", "a timer", "an event", "a listener",
						 "UDP" };

struct others {
	struct pollfd polled[OTHERS + 1];
	int pipe_in, udp;
	struct sockaddr_in listener, datagrams;
};

static struct others make_others(int connection)
{
	struct others made = { 0 };
	socklen_t length = sizeof made.listener;
	int pipes[2];

	check(pipe(pipes), "pipe");
	made.pipe_in = pipes[1];
	made.polled[0].fd = pipes[0];
	made.polled[1].fd = check(timerfd_create(CLOCK_MONOTONIC, 0), "timerfd_create");
	made.polled[2].fd = check(eventfd(0, 0), "eventfd");
	made.polled[3].fd = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	made.polled[4].fd = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");
	made.listener.sin_family = AF_INET;
	made.listener.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	made.datagrams = made.listener;
	check(bind(made.polled[3].fd, (struct sockaddr *)&made.listener, length), "bind");
	check(bind(made.polled[4].fd, (struct sockaddr *)&made.datagrams, length), "bind");
	check(listen(made.polled[3].fd, 5), "listen");
	getsockname(made.polled[3].fd, (struct sockaddr *)&made.listener, &length);
	getsockname(made.polled[4].fd, (struct sockaddr *)&made.datagrams, &length);
	made.udp = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");
	made.polled[OTHERS].fd = connection;
	for (int i = 0; i <= OTHERS; i++)
		made.polled[i].events = POLLIN;
	return made;
}

/* Makes one of the descriptors ready, or makes it not ready any more. */
static void set_ready(const struct others *others, int which, bool ready)
{
	struct itimerspec soon = { .it_value.tv_nsec = ready };
	const struct pollfd *polled = &others->polled[which];
	uint64_t number = 1;
	int client;

	switch (which) {
	case 0:
		check(ready ? write(others->pipe_in, "x", 1) : read(polled->fd, &number, 1), "pipe");
		break;
	case 1:
		check(timerfd_settime(polled->fd, 0, &soon, NULL), "timerfd_settime");
		break;
	case 2:
		check(ready ? write(polled->fd, &number, 8) : read(polled->fd, &number, 8), "event");
		break;
	case 3:
		if (!ready) {
			close(check(accept(polled->fd, NULL, NULL), "accept"));
			break;
		}
		client = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
		check(connect(client, (struct sockaddr *)&others->listener, sizeof others->listener),
		      "connect");
		close(client);
		break;
	case 4:
		if (ready)
			check(sendto(others->udp, "x", 1, 0, (struct sockaddr *)&others->datagrams,
				     sizeof others->datagrams), "sendto");
		else
			check(recv(polled->fd, &number, 1, 0), "recv");
		break;
	}
}

static void do_wait_for_all(struct end *end, const struct arguments *args)
{
	struct others others = make_others(args->fd);

	for (int which = -1; which < OTHERS; which++) {
		if (which >= 0) {
			set_ready(&others, which, true);
			note(end, "with %s, ", OTHER_NAMES[which]);
			sleep_ms(1);
		}
		wait_by(end, args, others.polled, OTHERS + 1);
		note(end, "; ");
		if (which >= 0)
			set_ready(&others, which, false);
	}
	for (int i = 0; i < OTHERS; i++)
		close(others.polled[i].fd);
	close(others.pipe_in);
	close(others.udp);
}

/* The timer expires while the call sleeps. */
static void do_wait_for_timer(struct end *end, const struct arguments *args)
{
	struct others others = make_others(args->fd);
	struct itimerspec soon = { .it_value.tv_nsec = 30000000 };

	check(timerfd_settime(others.polled[1].fd, 0, &soon, NULL), "timerfd_settime");
	wait_by(end, args, others.polled, OTHERS + 1);
}

CASE(poll_with_others)
{
	for (int call = 0; call < CALLS; call++) {
		ON(pair->b, do_wait_for_all, .name = call, .value = 0);
		ON(pair->a, do_send, .text = "x");
		ON(pair->b, do_wait_for_all, .name = call, .value = 1000);
		ON(pair->b, do_recv, .size = 10);
		ON(pair->b, do_wait_for_timer, .name = call, .value = 3000);
		ON(pair->b, do_wait_for_timer, .name = call, .value = -1);
	}
}

static void do_wait_oddly(struct end *end, const struct arguments *args)
{
	struct pollfd polled[3] = { { .fd = -1, .events = POLLIN },
				    { .fd = args->fd, .events = POLLIN },
				    { .fd = args->fd, .events = POLLOUT } };
	struct timespec negative = { -1, 0 };
	fd_set in;

	note(end, "with -1 and twice");
	note_result(end, poll(polled, 3, 0));
	for (int i = 0; i < 3; i++)
		note(end, " %d", polled[i].revents);
	note(end, "; none");
	note_result(end, poll(NULL, 0, 10));
	note(end, "; a wrong time");
	note_result(end, ppoll(polled, 2, &negative, NULL));
	polled[0].fd = 999;
	note(end, "; with a closed one");
	note_result(end, poll(polled, 3, 1000));
	for (int i = 0; i < 3; i++)
		note(end, " %d", polled[i].revents);
	FD_ZERO(&in);
	FD_SET(args->fd, &in);
	FD_SET(60, &in); /* the kernel may ignore higher numbers */
	note(end, "; select with a closed one");
	note_result(end, select(61, &in, NULL, NULL, NULL));
	note(end, "; select with less than none");
	note_result(end, select(-1, &in, NULL, NULL, NULL));
	struct timeval time = { 0, 20000 };
	note(end, "; select to sleep");
	note_result(end, select(0, NULL, NULL, NULL, &time));
	note(end, " left %ld", (long)(time.tv_sec * 1000000 + time.tv_usec));
}

CASE(poll_oddly)
{
	ON(pair->b, do_wait_oddly);
	ON(pair->a, do_send, .text = "x");
	ON(pair->b, do_wait_oddly);
}

/* Of two sockets, first the second one is readable, and then both. */
CASE(poll_two_connections)
{
	struct pair other = open_pair(pair->mode);
	struct pollfd polled[2] = { { .fd = pair->a->fd, .events = POLLIN },
				    { .fd = other.a->fd, .events = POLLIN } };
	struct arguments args = { .value = 3000 };

	for (int call = 0; call < CALLS; call++) {
		args.name = call;
		ON(other.b, do_send, .text = "x");
		pair->a->notes = 0;
		wait_by(pair->a, &args, polled, 2);
		say("%s", pair->a->note);
		ON(pair->b, do_send, .text = "y");
		pair->a->notes = 0;
		wait_by(pair->a, &args, polled, 2);
		say("%s", pair->a->note);
		ON(pair->a, do_recv, .size = 10);
		ON(other.a, do_recv, .size = 10);
	}
}

/* A pipe without a writer reports POLLHUP, and select has only the read set for this event. */
static void do_select_beside_hang_up(struct end *end, const struct arguments *args)
{
	struct timeval time = { .tv_usec = args->value * 1000 };
	long began = now_ms();
	fd_set in, out, except;
	int ends[2];

	check(pipe(ends), "pipe");
	close(ends[1]);
	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_ZERO(&except);
	FD_SET(args->fd, &in);
	FD_SET(args->fd, &except);
	FD_SET(ends[0], &out);
	FD_SET(ends[0], &except);
	note(end, "select");
	note_result(end, select(MAX(args->fd, ends[0]) + 1, &in, &out, &except, &time));
	note(end, "%s%s", FD_ISSET(args->fd, &in) ? " IN" : "",
	     FD_ISSET(ends[0], &out) || FD_ISSET(ends[0], &except) ? " pipe" : "");
	note(end, now_ms() - began < args->value - 10 ? ", early" : ", in time");
	close(ends[0]);
}

CASE(select_sleeps_beside_a_hang_up)
{
	ON(pair->b, do_select_beside_hang_up, .value = 120);
	ON(pair->b, do_select_beside_hang_up, .value = 0);
	BEGIN(pair->b, do_select_beside_hang_up, .value = 5000);
	sleep_ms(settle_ms);
	ON(pair->a, do_send, .text = "x");
	finish(pair->b);
	ON(pair->b, do_recv, .size = 10);
}

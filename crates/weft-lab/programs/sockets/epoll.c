/* epoll: which events are reported, when, and how often. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include "calls.h"

/* An end's epoll descriptor is extra[0]. */

static void do_epoll_create(struct end *end, const struct arguments *args)
{
	end->extra[0] = check(epoll_create1(args->flags), "epoll_create1");
}

static void note_interest(struct end *end, unsigned events)
{
	note_events(end, events);
	note(end, "%s%s%s", events & EPOLLET ? " ET" : "", events & EPOLLONESHOT ? " ONESHOT" : "",
	     events & EPOLLEXCLUSIVE ? " EXCLUSIVE" : "");
}

/* `name` is the operation, `flags` are the events, `value` is the data. */
static void do_epoll_ctl(struct end *end, const struct arguments *args)
{
	static const char *const NAMES[] = { "", "ADD", "DEL", "MOD" };
	struct epoll_event event = { .events = args->flags, .data.u64 = args->value };

	note(end, "epoll_ctl %s", NAMES[args->name]);
	note_interest(end, args->flags);
	note_result(end, epoll_ctl(end->extra[args->other], args->name, args->fd, &event));
}

static void note_reported(struct end *end, const struct epoll_event *events, int count)
{
	note_result(end, count);
	/* Notes events in the order of their data, because epoll does not guarantee an order. */
	for (uint64_t data = 0; data < 100; data++)
		for (int i = 0; i < count; i++)
			if (events[i].data.u64 == data) {
				note(end, " | %ld:", (long)data);
				note_events(end, events[i].events);
			}
}

/* `value` is the timeout in milliseconds, `size` the maximum of events (8 by default). */
static void do_epoll_wait(struct end *end, const struct arguments *args)
{
	struct epoll_event events[8];
	int count = epoll_wait(end->extra[args->other], events, args->size ? args->size : 8,
			       args->value);

	note(end, "epoll_wait");
	note_reported(end, events, count);
}

static void do_epoll_pwait(struct end *end, const struct arguments *args)
{
	struct epoll_event events[8];
	sigset_t mask;
	int count;

	sigemptyset(&mask);
	if (args->flags)
		sigaddset(&mask, SIGUSR1);
	count = epoll_pwait(end->extra[0], events, 8, args->value, &mask);
	note(end, "epoll_pwait%s", args->flags ? " without SIGUSR1" : "");
	note_reported(end, events, count);
}

static void do_epoll_pwait2(struct end *end, const struct arguments *args)
{
	struct epoll_event events[8];
	struct timespec time = { 0, args->value * 1000000 };
	int count = epoll_pwait2(end->extra[0], events, 8, args->value < 0 ? NULL : &time, NULL);

	note(end, "epoll_pwait2");
	note_reported(end, events, count);
}

#define ADD(end, ...) ON(end, do_epoll_ctl, .name = EPOLL_CTL_ADD, __VA_ARGS__)
#define MOD(end, ...) ON(end, do_epoll_ctl, .name = EPOLL_CTL_MOD, __VA_ARGS__)
#define DEL(end, ...) ON(end, do_epoll_ctl, .name = EPOLL_CTL_DEL, __VA_ARGS__)
#define WAIT(end, ...) ON(end, do_epoll_wait, __VA_ARGS__)

CASE(epoll_level)
{
	ON(pair->b, do_epoll_create);
	ADD(pair->b, .flags = EPOLLIN, .value = 7);
	WAIT(pair->b, .value = 0);
	WAIT(pair->b, .value = 20);
	ON(pair->a, do_send, .text = "data");
	WAIT(pair->b, .value = 1000);
	WAIT(pair->b, .value = -1);
	ON(pair->b, do_recv, .size = 2);
	WAIT(pair->b, .value = 0);
	ON(pair->b, do_recv, .size = 2);
	WAIT(pair->b, .value = 0);
	for (int i = 0; i < 5; i++) {
		BEGIN(pair->b, do_epoll_wait, .value = i % 2 ? 3000 : -1);
		ON(pair->a, do_send, .text = "wake");
		finish(pair->b);
		ON(pair->b, do_recv, .size = 10);
	}
	BEGIN(pair->b, do_epoll_pwait, .value = 3000);
	ON(pair->a, do_send, .text = "wake");
	finish(pair->b);
	ON(pair->b, do_recv, .size = 10);
	ON(pair->b, do_epoll_pwait2, .value = 20);
	BEGIN(pair->b, do_epoll_pwait2, .value = -1);
	ON(pair->a, do_send, .text = "wake");
	finish(pair->b);
	MOD(pair->b, .flags = EPOLLIN | EPOLLOUT, .value = 8);
	WAIT(pair->b, .value = 1000);
	ON(pair->b, do_recv, .size = 10);
	WAIT(pair->b, .value = 1000);
	MOD(pair->b, .flags = 0, .value = 9);
	ON(pair->a, do_send, .text = "silent");
	WAIT(pair->b, .value = 20);
	MOD(pair->b, .flags = EPOLLIN, .value = 10);
	WAIT(pair->b, .value = 1000);
	DEL(pair->b);
	WAIT(pair->b, .value = 20);
}

CASE(epoll_edge)
{
	ON(pair->b, do_epoll_create, .flags = EPOLL_CLOEXEC);
	ADD(pair->b, .flags = EPOLLIN | EPOLLET, .value = 1);
	WAIT(pair->b, .value = 0);
	ON(pair->a, do_send, .text = "first");
	WAIT(pair->b, .value = 1000);
	WAIT(pair->b, .value = 20);
	ON(pair->b, do_recv, .size = 2);
	WAIT(pair->b, .value = 20);
	ON(pair->a, do_send, .text = "second");
	WAIT(pair->b, .value = 1000);
	WAIT(pair->b, .value = 20);
	ON(pair->b, do_recv, .size = 100);
	WAIT(pair->b, .value = 20);
	BEGIN(pair->b, do_epoll_wait, .value = 3000);
	ON(pair->a, do_send, .text = "third");
	finish(pair->b);
	/* MOD reports the event again, although no new byte has arrived. */
	MOD(pair->b, .flags = EPOLLIN | EPOLLET, .value = 2);
	WAIT(pair->b, .value = 1000);
	WAIT(pair->b, .value = 20);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	WAIT(pair->b, .value = 1000);
	WAIT(pair->b, .value = 20);
	ON(pair->b, do_recv, .size = 100);
}

CASE(epoll_edge_both_ways)
{
	ON(pair->b, do_epoll_create);
	ADD(pair->b, .flags = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .value = 1);
	WAIT(pair->b, .value = 1000);
	WAIT(pair->b, .value = 20);
	ON(pair->a, do_send, .text = "data");
	WAIT(pair->b, .value = 1000);
	WAIT(pair->b, .value = 20);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_fill);
	WAIT(pair->b, .value = 20);
	BEGIN(pair->b, do_epoll_wait, .value = 3000);
	ON(pair->a, do_drain, .size = 1L << 30, .flags = MSG_DONTWAIT);
	finish(pair->b);
	ON(pair->a, do_drain, .size = 1L << 30, .flags = MSG_DONTWAIT);
	ON(pair->b, do_send, .text = "fits");
	ON(pair->a, do_recv, .size = 10);
	ON(pair->a, do_close);
	sleep_ms(settle_ms);
	ON(pair->b, do_epoll_wait, .value = 1000);
	ON(pair->b, do_recv, .size = 100);
}

CASE(epoll_registered_with_data)
{
	ON(pair->a, do_send, .text = "already there");
	ON(pair->b, do_epoll_create);
	ADD(pair->b, .flags = EPOLLIN | EPOLLET, .value = 1);
	WAIT(pair->b, .value = 1000);
	WAIT(pair->b, .value = 20);
	DEL(pair->b);
	ADD(pair->b, .flags = EPOLLIN | EPOLLET, .value = 2);
	WAIT(pair->b, .value = 1000);
	ON(pair->b, do_recv, .size = 100);
	WAIT(pair->b, .value = 20);
}

CASE(epoll_one_shot)
{
	ON(pair->b, do_epoll_create);
	ADD(pair->b, .flags = EPOLLIN | EPOLLONESHOT, .value = 1);
	ON(pair->a, do_send, .text = "first");
	WAIT(pair->b, .value = 1000);
	WAIT(pair->b, .value = 20);
	ON(pair->a, do_send, .text = "second");
	WAIT(pair->b, .value = 20);
	MOD(pair->b, .flags = EPOLLIN | EPOLLONESHOT, .value = 2);
	WAIT(pair->b, .value = 1000);
	ON(pair->b, do_recv, .size = 100);
	MOD(pair->b, .flags = EPOLLIN | EPOLLONESHOT | EPOLLET, .value = 3);
	BEGIN(pair->b, do_epoll_wait, .value = 3000);
	ON(pair->a, do_send, .text = "third");
	finish(pair->b);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	WAIT(pair->b, .value = 20);
	MOD(pair->b, .flags = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, .value = 4);
	WAIT(pair->b, .value = 1000);
	WAIT(pair->b, .value = 20);
}

CASE(epoll_exclusive)
{
	ON(pair->b, do_epoll_create);
	ADD(pair->b, .flags = EPOLLIN | EPOLLEXCLUSIVE, .value = 1);
	MOD(pair->b, .flags = EPOLLIN, .value = 2);
	ON(pair->a, do_send, .text = "data");
	WAIT(pair->b, .value = 1000);
	ON(pair->b, do_recv, .size = 10);
	BEGIN(pair->b, do_epoll_wait, .value = 3000);
	ON(pair->a, do_send, .text = "data");
	finish(pair->b);
}

CASE(epoll_half_closed)
{
	ON(pair->b, do_epoll_create);
	ADD(pair->b, .flags = EPOLLIN | EPOLLRDHUP, .value = 1);
	BEGIN(pair->b, do_epoll_wait, .value = 3000);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	finish(pair->b);
	WAIT(pair->b, .value = 1000);
	MOD(pair->b, .flags = EPOLLIN, .value = 2);
	WAIT(pair->b, .value = 1000);
	MOD(pair->b, .flags = EPOLLRDHUP, .value = 3);
	WAIT(pair->b, .value = 1000);
	MOD(pair->b, .flags = 0, .value = 4);
	WAIT(pair->b, .value = 20);
	ON(pair->b, do_shutdown, .flags = SHUT_WR);
	WAIT(pair->b, .value = 1000);
}

CASE(epoll_half_closed_with_data)
{
	ON(pair->b, do_epoll_create);
	ADD(pair->b, .flags = EPOLLIN | EPOLLRDHUP, .value = 1);
	ON(pair->a, do_send, .text = "last words");
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	sleep_ms(settle_ms);
	WAIT(pair->b, .value = 1000);
	ON(pair->b, do_recv, .size = 100);
	WAIT(pair->b, .value = 1000);
	ON(pair->b, do_recv, .size = 100);
	WAIT(pair->b, .value = 1000);
}

/* EPOLLOUT is reported at once if the peer has shut down both directions, and if this end has shut
 * down its own (the next case). */
CASE(epoll_room_behind_the_end)
{
	exchange(pair, 3);
	ON(pair->b, do_epoll_create);
	ADD(pair->b, .flags = EPOLLIN, .value = 1);
	WAIT(pair->b, .value = 0);
	ON(pair->a, do_shutdown, .flags = SHUT_RDWR);
	sleep_ms(settle_ms);
	WAIT(pair->b, .value = 1000);
	ON(pair->b, do_recv, .size = 10);
	MOD(pair->b, .flags = EPOLLOUT, .value = 1);
	WAIT(pair->b, .value = 1000);
	MOD(pair->b, .flags = EPOLLIN | EPOLLOUT, .value = 2);
	WAIT(pair->b, .value = 1000);
}

CASE(epoll_room_of_a_shut_half)
{
	exchange(pair, 3);
	ON(pair->a, do_epoll_create);
	ADD(pair->a, .flags = EPOLLIN, .value = 1);
	WAIT(pair->a, .value = 0);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	WAIT(pair->a, .value = 0);
	MOD(pair->a, .flags = EPOLLOUT, .value = 2);
	WAIT(pair->a, .value = 1000);
	ON(pair->b, do_send, .text = "answer");
	MOD(pair->a, .flags = EPOLLIN | EPOLLOUT, .value = 3);
	WAIT(pair->a, .value = 1000);
	ON(pair->a, do_recv, .size = 10);
}

CASE(epoll_reset)
{
	ON(pair->b, do_epoll_create);
	ADD(pair->b, .flags = 0, .value = 1);
	ON(pair->b, do_send, .text = "unread");
	BEGIN(pair->b, do_epoll_wait, .value = 3000);
	ON(pair->a, do_close);
	finish(pair->b);
	ON(pair->b, do_so_error);
	WAIT(pair->b, .value = 1000);
	MOD(pair->b, .flags = EPOLLIN | EPOLLOUT | EPOLLRDHUP, .value = 2);
	WAIT(pair->b, .value = 1000);
}

CASE(epoll_wrong)
{
	ON(pair->b, do_epoll_create);
	MOD(pair->b, .flags = EPOLLIN);
	DEL(pair->b);
	ADD(pair->b, .flags = EPOLLIN, .value = 1);
	ADD(pair->b, .flags = EPOLLIN, .value = 2);
	DEL(pair->b);
	DEL(pair->b);
	ADD(pair->b, .flags = EPOLLIN, .fd = 999);
	ADD(pair->b, .flags = EPOLLIN, .fd = pair->b->extra[0]);
	ADD(pair->b, .flags = EPOLLIN, .other = 1);
	ON(pair->b, do_epoll_wait, .size = -1, .value = 0);
	ON(pair->b, do_epoll_wait, .other = 1, .value = 0);
	ADD(pair->b, .flags = EPOLLIN, .value = 3);
	ON(pair->a, do_send, .text = "still well");
	WAIT(pair->b, .value = 1000);
}

CASE(epoll_closed_while_registered)
{
	ON(pair->b, do_epoll_create);
	ADD(pair->b, .flags = EPOLLIN, .value = 1);
	ON(pair->a, do_send, .text = "unread");
	ON(pair->b, do_close);
	WAIT(pair->b, .value = 20);
	ON(pair->a, do_recv, .size = 10);
}

/* The registration belongs to the open file description: it stays until its last copy is closed. */
CASE(epoll_copy_stays)
{
	ON(pair->b, do_epoll_create);
	ADD(pair->b, .flags = EPOLLIN, .value = 1);
	if (pair->b->remote && pair->mode != THREADS)
		return;
	int copy = dup(pair->b->fd);

	ON(pair->b, do_close);
	ON(pair->a, do_send, .text = "data");
	WAIT(pair->b, .value = 1000);
	ON(pair->b, do_recv, .size = 10, .fd = copy);
	WAIT(pair->b, .value = 20);
	BEGIN(pair->b, do_epoll_wait, .value = 3000);
	ON(pair->a, do_send, .text = "more");
	finish(pair->b);
	ON(pair->b, do_close, .fd = copy);
	WAIT(pair->b, .value = 20);
}

CASE(epoll_two_sets)
{
	ON(pair->b, do_epoll_create);
	pair->b->extra[1] = pair->b->extra[0];
	ON(pair->b, do_epoll_create);
	ADD(pair->b, .flags = EPOLLIN, .value = 1);
	ADD(pair->b, .flags = EPOLLIN | EPOLLET, .value = 2, .other = 1);
	ON(pair->a, do_send, .text = "data");
	WAIT(pair->b, .value = 1000);
	WAIT(pair->b, .value = 1000, .other = 1);
	WAIT(pair->b, .value = 1000);
	WAIT(pair->b, .value = 20, .other = 1);
	ON(pair->b, do_recv, .size = 10);
	WAIT(pair->b, .value = 20);
	BEGIN(pair->b, do_epoll_wait, .value = 3000, .other = 1);
	ON(pair->a, do_send, .text = "data");
	finish(pair->b);
	WAIT(pair->b, .value = 1000);
}

static void do_poll_set(struct end *end, const struct arguments *args)
{
	struct pollfd polled = { .fd = end->extra[0], .events = POLLIN };
	int result = poll(&polled, 1, args->value);

	note(end, "poll of the set");
	note_result(end, result);
	note_events(end, polled.revents);
}

CASE(epoll_nested)
{
	ON(pair->b, do_epoll_create);
	pair->b->extra[1] = pair->b->extra[0];
	ON(pair->b, do_epoll_create);
	ADD(pair->b, .flags = EPOLLIN, .value = 1);
	ADD(pair->b, .flags = EPOLLIN, .value = 2, .other = 1, .fd = pair->b->extra[0]);
	WAIT(pair->b, .value = 20, .other = 1);
	ON(pair->b, do_poll_set, .value = 0);
	ON(pair->a, do_send, .text = "data");
	WAIT(pair->b, .value = 1000, .other = 1);
	ON(pair->b, do_poll_set, .value = 1000);
	WAIT(pair->b, .value = 1000);
	ON(pair->b, do_recv, .size = 10);
	WAIT(pair->b, .value = 20, .other = 1);
	BEGIN(pair->b, do_epoll_wait, .value = 3000, .other = 1);
	ON(pair->a, do_send, .text = "wake");
	finish(pair->b);
	ON(pair->b, do_recv, .size = 10);
	BEGIN(pair->b, do_poll_set, .value = 3000);
	ON(pair->a, do_send, .text = "wake");
	finish(pair->b);
	ON(pair->b, do_recv, .size = 10);
}

static void nest_late(struct pair *pair, unsigned mode)
{
	ON(pair->b, do_epoll_create);
	pair->b->extra[1] = pair->b->extra[0];
	ON(pair->b, do_epoll_create);
	ADD(pair->b, .flags = EPOLLIN | mode, .value = 1);
	for (int i = 0; i < 3; i++) {
		ON(pair->a, do_send, .text = "there");
		WAIT(pair->b, .value = 1000);
		ON(pair->b, do_recv, .size = 10);
		if (mode == EPOLLONESHOT)
			MOD(pair->b, .flags = EPOLLIN | mode, .value = 1);
		ON(pair->b, do_send, .text = "back");
		ON(pair->a, do_recv, .size = 10);
	}
	ON(pair->a, do_send, .text = "waits");
	sleep_ms(settle_ms);
	ADD(pair->b, .flags = EPOLLIN, .value = 2, .other = 1, .fd = pair->b->extra[0]);
	WAIT(pair->b, .value = 1000, .other = 1);
	ON(pair->b, do_poll_set, .value = 1000);
	WAIT(pair->b, .value = 1000);
	ON(pair->b, do_recv, .size = 2);
	WAIT(pair->b, .value = 20, .other = 1);
	ON(pair->b, do_recv, .size = 10);
	WAIT(pair->b, .value = 20, .other = 1);
	ON(pair->b, do_poll_set, .value = 0);
	WAIT(pair->b, .value = 0);
	if (mode == EPOLLONESHOT)
		MOD(pair->b, .flags = EPOLLIN | mode, .value = 3);
	BEGIN(pair->b, do_epoll_wait, .value = 3000, .other = 1);
	ON(pair->a, do_send, .text = "wake");
	finish(pair->b);
	WAIT(pair->b, .value = 1000);
	ON(pair->b, do_recv, .size = 10);
	WAIT(pair->b, .value = 20, .other = 1);
}

/* An event is pending when the epoll instance is added to another one. */
CASE(epoll_nested_late)
{
	nest_late(pair, 0);
}

CASE(epoll_nested_late_edge)
{
	nest_late(pair, EPOLLET);
}

CASE(epoll_nested_late_one_shot)
{
	nest_late(pair, EPOLLONESHOT);
}

/* Other descriptors in the same instance become ready, one after the other. */
CASE(epoll_with_others)
{
	struct end *b = pair->b;
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	struct itimerspec soon = { .it_value.tv_nsec = 30000000 };
	int pipes[2], event, timer, listener, client;

	if (pair->mode != THREADS)
		return;
	ON(b, do_epoll_create);
	check(pipe(pipes), "pipe");
	event = check(eventfd(0, 0), "eventfd");
	timer = check(timerfd_create(CLOCK_MONOTONIC, 0), "timerfd_create");
	listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	check(bind(listener, (struct sockaddr *)&address, sizeof address), "bind");
	check(listen(listener, 5), "listen");
	getsockname(listener, (struct sockaddr *)&address, &length);
	ADD(b, .flags = EPOLLIN, .value = 1);
	ADD(b, .flags = EPOLLIN, .value = 2, .fd = pipes[0]);
	ADD(b, .flags = EPOLLIN, .value = 3, .fd = event);
	ADD(b, .flags = EPOLLIN, .value = 4, .fd = timer);
	ADD(b, .flags = EPOLLIN, .value = 5, .fd = listener);
	ADD(b, .flags = EPOLLIN, .value = 6, .fd = memfd_create("file", 0));
	WAIT(b, .value = 20);
	BEGIN(b, do_epoll_wait, .value = 3000);
	ON(pair->a, do_write, .fd = pipes[1], .text = "x");
	finish(b);
	ON(pair->a, do_send, .text = "data");
	WAIT(b, .value = 1000);
	/* Room for one event while two are ready: each call reports at least one of them. */
	ON(b, do_read, .fd = pipes[0], .size = 10);
	WAIT(b, .value = 1000, .size = 1);
	ON(pair->a, do_write, .fd = event, .text = "eight by");
	sleep_ms(1); /* Weft may report this 10 us late. */
	WAIT(b, .value = 1000);
	ON(b, do_recv, .size = 10);
	ON(b, do_read, .fd = event, .size = 8);
	check(timerfd_settime(timer, 0, &soon, NULL), "timerfd_settime");
	WAIT(b, .value = 3000);
	ON(pair->a, do_send, .text = "data");
	WAIT(b, .value = 3000);
	ON(b, do_recv, .size = 10);
	ON(b, do_read, .fd = timer, .size = 8);
	client = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	BEGIN(b, do_epoll_wait, .value = 3000);
	check(connect(client, (struct sockaddr *)&address, sizeof address), "connect");
	finish(b);
}

/* A socket is added before it is connected, as asynchronous clients do. */
CASE(epoll_registered_before_connect)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket"), server, plain;
	struct end *a = pair->a;

	if (pair->mode != THREADS)
		return;
	check(bind(listener, (struct sockaddr *)&address, sizeof address), "bind");
	check(listen(listener, 5), "listen");
	getsockname(listener, (struct sockaddr *)&address, &length);
	plain = check(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), "socket");
	ON(a, do_epoll_create);
	ADD(a, .flags = EPOLLIN | EPOLLOUT | EPOLLET, .value = 1, .fd = plain);
	WAIT(a, .value = 1000);
	say("connect = %d", connect(plain, (struct sockaddr *)&address, sizeof address));
	WAIT(a, .value = 1000);
	server = check(accept(listener, NULL, NULL), "accept");
	for (int i = 0; i < 6; i++) {
		ON(a, do_send, .fd = plain, .text = "ask");
		ON(pair->b, do_recv, .fd = server, .size = 10);
		ON(pair->b, do_send, .fd = server, .text = "answer");
		WAIT(a, .value = 1000);
		ON(a, do_recv, .fd = plain, .size = 10);
	}
	ON(pair->b, do_close, .fd = server);
	WAIT(a, .value = 1000);
	ON(a, do_recv, .fd = plain, .size = 10);
}

static void do_block_signal(struct end *end, const struct arguments *args)
{
	sigset_t mask;

	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	note(end, args->flags ? "block SIGUSR1" : "unblock SIGUSR1");
	note_result(end, pthread_sigmask(args->flags ? SIG_BLOCK : SIG_UNBLOCK, &mask, NULL));
}

CASE(epoll_signals)
{
	struct end *b = pair->b;

	ON(b, do_epoll_create);
	ADD(b, .flags = EPOLLIN, .value = 1);
	BEGIN(b, do_epoll_wait, .value = 3000);
	check(syscall(SYS_tgkill, b->pid, b->tid, SIGUSR1), "tgkill");
	finish(b);
	ON(b, do_block_signal, .flags = 1);
	BEGIN(b, do_epoll_wait, .value = 100);
	check(syscall(SYS_tgkill, b->pid, b->tid, SIGUSR1), "tgkill");
	finish(b);
	/* The call's mask unblocks the signal. */
	ON(b, do_epoll_pwait, .value = 1000);
	BEGIN(b, do_epoll_pwait, .value = 1000);
	check(syscall(SYS_tgkill, b->pid, b->tid, SIGUSR1), "tgkill");
	finish(b);
	ON(b, do_block_signal, .flags = 0);
	BEGIN(b, do_epoll_pwait, .value = 100, .flags = 1);
	check(syscall(SYS_tgkill, b->pid, b->tid, SIGUSR1), "tgkill");
	finish(b);
	ON(pair->a, do_send, .text = "data");
	ON(b, do_epoll_pwait, .value = 1000, .flags = 1);
}

/* Calls of programs built with _FORTIFY_SOURCE: __recv_chk, __read_chk, __poll_chk and so on. */
#ifndef _FORTIFY_SOURCE
#define _FORTIFY_SOURCE 2
#endif

#include <poll.h>
#include <sys/select.h>

#include "calls.h"

/* The compiler knows the buffer's size, but not the requested length, so it uses the variants that
 * check the length. */
static void do_fortified(struct end *end, const struct arguments *args)
{
	char buffer[64];
	struct pollfd polled[2] = { { .fd = args->fd, .events = POLLIN } };
	struct timespec time = { 1, 0 };
	struct sockaddr_in from;
	socklen_t length = sizeof from;
	volatile size_t size = args->size;
	volatile nfds_t one = 1;
	ssize_t got;
	fd_set in;

	note(end, "poll");
	note_result(end, poll(polled, one, 1000));
	note(end, " ppoll");
	note_result(end, ppoll(polled, one, &time, NULL));
	FD_ZERO(&in);
	FD_SET(args->fd, &in);
	note(end, " select");
	note_result(end, select(args->fd + 1, &in, NULL, NULL, NULL));
	got = recv(args->fd, buffer, size, MSG_PEEK);
	note(end, " recv");
	note_result(end, got);
	note_data(end, buffer, got);
	got = recvfrom(args->fd, buffer, size, 0, (struct sockaddr *)&from, &length);
	note(end, " recvfrom");
	note_result(end, got);
	note_data(end, buffer, got);
	got = read(args->fd, buffer, size);
	note(end, " read");
	note_result(end, got);
	note_data(end, buffer, got);
	note(end, " dprintf");
	note_result(end, dprintf(args->fd, "%s", args->text));
}

CASE(fortified_calls)
{
	for (int i = 0; i < 3; i++) {
		ON(pair->a, do_send, .text = "first, second");
		ON(pair->b, do_fortified, .size = 6, .text = "back");
		ON(pair->a, do_recv, .size = 100);
		ON(pair->b, do_recv, .size = 100);
	}
}

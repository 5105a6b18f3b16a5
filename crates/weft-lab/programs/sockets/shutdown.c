/* shutdown, close and reset: the results at both ends. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>

#include "calls.h"

enum { EVERYTHING = POLLIN | POLLOUT | POLLPRI | POLLRDHUP };

static void look(struct end *end)
{
	ON(end, do_poll, .flags = EVERYTHING, .value = 0);
	ON(end, do_tcp_state);
}

CASE(end_shutdown_write)
{
	ON(pair->a, do_send, .text = "last words");
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->a, do_send, .text = "x");
	look(pair->a);
	look(pair->b);
	ON(pair->b, do_recv, .size = 4);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
	look(pair->b);
	ON(pair->b, do_send, .text = "still here");
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	BEGIN(pair->b, do_send, .size = 300000);
	ON(pair->a, do_drain, .size = 300000);
	finish(pair->b);
	ON(pair->b, do_close);
	ON(pair->a, do_recv, .size = 100);
	look(pair->a);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->a, do_shutdown, .flags = SHUT_RD);
	ON(pair->a, do_close);
	ON(pair->a, do_close);
}

CASE(end_shutdown_read)
{
	ON(pair->b, do_send, .text = "before");
	ON(pair->a, do_shutdown, .flags = SHUT_RD);
	look(pair->a);
	look(pair->b);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->b, do_send, .text = "after");
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_send, .text = "the other way");
	ON(pair->b, do_recv, .size = 100);
	ON(pair->a, do_shutdown, .flags = SHUT_RD);
	ON(pair->a, do_close);
	ON(pair->b, do_recv, .size = 100);
}

CASE(end_shutdown_both)
{
	ON(pair->a, do_send, .text = "last");
	ON(pair->a, do_shutdown, .flags = SHUT_RDWR);
	look(pair->a);
	ON(pair->a, do_send, .text = "x");
	ON(pair->a, do_recv, .size = 100);
	look(pair->b);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->a, do_shutdown, .flags = SHUT_RDWR);
	ON(pair->b, do_shutdown, .flags = SHUT_RDWR);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_send, .text = "x");
	sleep_ms(settle_ms);
	ON(pair->a, do_shutdown, .flags = SHUT_RDWR);
	ON(pair->b, do_shutdown, .flags = SHUT_RDWR);
	look(pair->a);
	look(pair->b);
	ON(pair->a, do_shutdown, .flags = 3);
	ON(pair->a, do_shutdown, .flags = -1);
}

/* Both ends shut down writing, and neither has closed. */
CASE(end_shutdown_write_by_both)
{
	ON(pair->a, do_send, .text = "from A");
	ON(pair->b, do_send, .text = "from B");
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->b, do_shutdown, .flags = SHUT_WR);
	sleep_ms(settle_ms);
	look(pair->a);
	look(pair->b);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->a, do_so_error);
	ON(pair->b, do_so_error);
}

/* B sends to an end that has shut down both directions: the kernel takes the bytes, then resets. */
CASE(end_shutdown_both_then_sent_to)
{
	ON(pair->a, do_shutdown, .flags = SHUT_RDWR);
	ON(pair->b, do_send, .text = "to nobody", .flags = MSG_NOSIGNAL);
	sleep_ms(settle_ms);
	look(pair->b);
	ON(pair->b, do_send, .text = "x", .flags = MSG_NOSIGNAL);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_close);
	sleep_ms(settle_ms);
	ON(pair->b, do_send, .text = "x", .flags = MSG_NOSIGNAL);
	ON(pair->b, do_recv, .size = 100);
}

CASE(end_shutdown_wakes_reader)
{
	BEGIN(pair->b, do_recv, .size = 100);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	finish(pair->b);
	ON(pair->b, do_send, .text = "answer");
	ON(pair->a, do_recv, .size = 100);
}

CASE(end_close)
{
	ON(pair->a, do_send, .text = "last words");
	ON(pair->a, do_close);
	look(pair->b);
	ON(pair->b, do_recv, .size = 5);
	ON(pair->b, do_ioctl, .name = FIONREAD);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
	look(pair->b);
	ON(pair->b, do_send, .text = "first");
	sleep_ms(settle_ms);
	look(pair->b);
	ON(pair->b, do_so_error);
	ON(pair->b, do_send, .text = "second");
	ON(pair->b, do_send, .text = "third", .flags = MSG_NOSIGNAL);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_so_error);
	ON(pair->b, do_close);
}

CASE(end_close_then_receive_after_reset)
{
	ON(pair->a, do_close);
	ON(pair->b, do_send, .text = "first");
	sleep_ms(settle_ms);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_send, .text = "second");
}

CASE(end_close_with_much_in_flight)
{
	BEGIN(pair->b, do_drain, .size = 1L << 30);
	ON(pair->a, do_send, .size = 1 << 20);
	ON(pair->a, do_send, .size = 1 << 20, .value = 1 << 20);
	ON(pair->a, do_close);
	finish(pair->b);
}

/* Fewer bytes than the buffers hold, so that A has closed long before B reads. */
CASE(end_close_before_it_is_read)
{
	ON(pair->a, do_send, .size = 30000);
	ON(pair->a, do_close);
	sleep_ms(settle_ms);
	ON(pair->b, do_ioctl, .name = FIONREAD);
	ON(pair->b, do_recv, .size = 10, .flags = MSG_PEEK);
	ON(pair->b, do_drain, .size = 40000);
	ON(pair->b, do_recv, .size = 100);
}

CASE(end_close_unread)
{
	ON(pair->b, do_send, .text = "never read");
	ON(pair->a, do_close);
	sleep_ms(settle_ms);
	look(pair->b);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_send, .text = "x");
	ON(pair->b, do_so_error);
	look(pair->b);
}

CASE(end_close_unread_with_words)
{
	ON(pair->b, do_send, .text = "never read");
	ON(pair->a, do_send, .text = "last words");
	ON(pair->a, do_close);
	sleep_ms(settle_ms);
	look(pair->b);
	ON(pair->b, do_recv, .size = 4);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_send, .text = "x");
}

CASE(end_close_unread_send_first)
{
	ON(pair->b, do_send, .text = "never read");
	ON(pair->a, do_close);
	sleep_ms(settle_ms);
	ON(pair->b, do_send, .text = "x");
	ON(pair->b, do_send, .text = "x");
	ON(pair->b, do_recv, .size = 100);
}

CASE(end_close_peeked)
{
	ON(pair->b, do_send, .text = "peeked at");
	ON(pair->a, do_recv, .size = 100, .flags = MSG_PEEK);
	ON(pair->a, do_close);
	sleep_ms(settle_ms);
	ON(pair->b, do_so_error);
	ON(pair->b, do_so_error);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_send, .text = "x");
}

CASE(end_close_partly_read)
{
	ON(pair->b, do_send, .text = "read in part");
	ON(pair->a, do_recv, .size = 4);
	ON(pair->a, do_close);
	sleep_ms(settle_ms);
	ON(pair->b, do_recv, .size = 100);
}

CASE(end_close_wakes_sender)
{
	ON(pair->b, do_fill);
	BEGIN(pair->b, do_send, .text = "no room");
	ON(pair->a, do_close);
	finish(pair->b);
	ON(pair->b, do_send, .text = "x");
	ON(pair->b, do_recv, .size = 100);
}

CASE(end_close_wakes_poller)
{
	BEGIN(pair->b, do_poll, .flags = POLLIN, .value = 3000);
	ON(pair->a, do_close);
	finish(pair->b);
	ON(pair->b, do_poll, .flags = POLLRDHUP, .value = 3000);
	ON(pair->b, do_poll, .flags = 0, .value = 0);
}

CASE(end_linger_none)
{
	ON(pair->a, do_send, .text = "last words");
	ON(pair->a, do_linger, .value = 0);
	ON(pair->a, do_close);
	sleep_ms(settle_ms);
	look(pair->b);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_send, .text = "x");
}

CASE(end_linger_none_wakes_reader)
{
	BEGIN(pair->b, do_recv, .size = 100);
	ON(pair->a, do_linger, .value = 0);
	ON(pair->a, do_close);
	finish(pair->b);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_send, .text = "x");
}

CASE(end_linger_none_wakes_poller)
{
	BEGIN(pair->b, do_poll, .flags = POLLIN, .value = 3000);
	ON(pair->a, do_linger, .value = 0);
	ON(pair->a, do_close);
	finish(pair->b);
	ON(pair->b, do_so_error);
	ON(pair->b, do_poll, .flags = EVERYTHING, .value = 0);
	ON(pair->b, do_recv, .size = 100);
}

CASE(end_linger_a_second)
{
	BEGIN(pair->b, do_drain, .size = 1L << 30);
	ON(pair->a, do_send, .size = 200000);
	ON(pair->a, do_linger, .value = 1);
	ON(pair->a, do_close);
	finish(pair->b);
	ON(pair->b, do_recv, .size = 100);
}

static void leave(struct end *end, const struct arguments *args)
{
	/* The end answers before its process ends. */
	note(end, "leaves by %s", args->text);
	check(write(end->answer[1], "", 1), "write");
	if (args->flags)
		kill(getpid(), SIGKILL);
	_exit(0);
}

/* The peer's process ends without a close. */
CASE(end_exit)
{
	if (pair->mode == THREADS)
		return;
	ON(pair->b, do_send, .text = "last words");
	ON(pair->b, leave, .text = "_exit");
	sleep_ms(settle_ms);
	look(pair->a);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_send, .text = "first");
	sleep_ms(settle_ms);
	ON(pair->a, do_send, .text = "second");
}

CASE(end_exit_unread)
{
	if (pair->mode == THREADS)
		return;
	ON(pair->b, do_send, .text = "last words");
	ON(pair->a, do_send, .text = "never read");
	ON(pair->b, leave, .text = "_exit");
	sleep_ms(settle_ms);
	look(pair->a);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_send, .text = "x");
}

CASE(end_killed)
{
	if (pair->mode == THREADS)
		return;
	ON(pair->b, do_send, .text = "last words");
	ON(pair->b, leave, .text = "SIGKILL", .flags = 1);
	sleep_ms(settle_ms);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_send, .text = "first");
	sleep_ms(settle_ms);
	ON(pair->a, do_send, .text = "second");
}

CASE(end_killed_unread)
{
	if (pair->mode == THREADS)
		return;
	ON(pair->a, do_send, .text = "never read");
	ON(pair->b, leave, .text = "SIGKILL", .flags = 1);
	sleep_ms(settle_ms);
	look(pair->a);
	ON(pair->a, do_so_error);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_send, .text = "x");
}

static void *receive_in_thread(void *argument)
{
	struct end *end = argument;
	char byte;

	end->number = recv(end->fd, &byte, 1, 0);
	return NULL;
}

static void do_shutdown_under_reader(struct end *end, const struct arguments *args)
{
	pthread_t reader;

	pthread_create(&reader, NULL, receive_in_thread, end);
	sleep_ms(settle_ms);
	note(end, "shutdown under a reader");
	note_result(end, shutdown(args->fd, args->flags));
	pthread_join(reader, NULL);
	note(end, ", which gets %ld", end->number);
}

CASE(end_shutdown_under_reader)
{
	ON(pair->b, do_shutdown_under_reader, .flags = SHUT_RD);
	ON(pair->b, do_send, .text = "goes on");
	ON(pair->a, do_recv, .size = 100);
	ON(pair->b, do_shutdown, .flags = SHUT_WR);
	ON(pair->a, do_recv, .size = 100);
}

CASE(end_shutdown_both_under_reader)
{
	ON(pair->b, do_shutdown_under_reader, .flags = SHUT_RDWR);
	ON(pair->a, do_recv, .size = 100);
}

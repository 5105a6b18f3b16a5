/* Signals during calls that sleep, with SA_RESTART and without. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/syscall.h>

#include "calls.h"

static void do_catch(struct end *end, const struct arguments *args)
{
	catch_user_signal(args->flags);
	note(end, "signals %s", args->flags ? "restart" : "interrupt");
}

static void do_ppoll_forever(struct end *end, const struct arguments *args)
{
	struct pollfd polled = { .fd = args->fd, .events = POLLIN };
	sigset_t none;

	sigemptyset(&none);
	note(end, "ppoll");
	note_result(end, ppoll(&polled, 1, NULL, &none));
	note_events(end, polled.revents);
}

static void do_select_forever(struct end *end, const struct arguments *args)
{
	fd_set in;

	FD_ZERO(&in);
	FD_SET(args->fd, &in);
	note(end, "select");
	note_result(end, select(args->fd + 1, &in, NULL, NULL, NULL));
}

static const job READERS[] = { do_recv, do_read, do_readv, do_recvfrom, do_recvmsg };

CASE(signal_in_receive)
{
	for (size_t i = 0; i < sizeof READERS / sizeof *READERS; i++) {
		BEGIN(pair->b, READERS[i], .size = 10);
		interrupt(pair->b);
	}
	ON(pair->b, do_catch, .flags = 1);
	for (size_t i = 0; i < sizeof READERS / sizeof *READERS; i++) {
		BEGIN(pair->b, READERS[i], .size = 10);
		send_signal(pair->b);
		sleep_ms(settle_ms);
		ON(pair->a, do_send, .text = "goes on");
		finish(pair->b);
	}
	/* A call with a time limit is not restarted (signal(7)). */
	ON(pair->b, do_timeout, .name = SO_RCVTIMEO, .value = 3000);
	BEGIN(pair->b, do_recv, .size = 10);
	interrupt(pair->b);
}

/* The signal comes when the first part has arrived or has just been received: the call returns that
 * part. */
CASE(signal_behind_the_first_part)
{
	for (int restart = 0; restart < 2; restart++) {
		ON(pair->b, do_catch, .flags = restart);
		for (int i = 0; i < 10; i++) {
			BEGIN(pair->b, do_recv, .size = 10, .flags = MSG_WAITALL);
			ON(pair->a, do_send, .text = "part");
			interrupt(pair->b);
		}
	}
	/* A signal that comes before the first part restarts the call. */
	BEGIN(pair->b, do_recv, .size = 10, .flags = MSG_WAITALL);
	send_signal(pair->b);
	sleep_ms(settle_ms);
	ON(pair->a, do_send, .text = "all");
	ON(pair->a, do_send, .text = " of it.");
	finish(pair->b);
}

CASE(signal_in_poll)
{
	for (int restart = 0; restart < 2; restart++) {
		ON(pair->b, do_catch, .flags = restart);
		BEGIN(pair->b, do_poll, .flags = POLLIN, .value = 3000);
		interrupt(pair->b);
		BEGIN(pair->b, do_poll, .flags = POLLIN, .value = -1);
		interrupt(pair->b);
		BEGIN(pair->b, do_ppoll_forever);
		interrupt(pair->b);
		BEGIN(pair->b, do_select_forever);
		interrupt(pair->b);
	}
	exchange(pair, 1);
}

/* Receives `count` bytes. It waits, because bytes between hosts are in flight for a time. */
static void drop(int fd, long count)
{
	char piece[50000];

	while (count > 0) {
		long most = count < (long)sizeof piece ? count : (long)sizeof piece;
		long got = check(recv(fd, piece, most, 0), "recv");

		if (!got)
			die("ended with %ld bytes to come", count);
		count -= got;
	}
}

CASE(signal_in_send)
{
	static const char MORE[] = "waits for room";

	for (int restart = 0; restart < 2; restart++) {
		ON(pair->b, do_catch, .flags = restart);
		ON(pair->b, do_fill);
		BEGIN(pair->b, do_send, .text = MORE);
		if (restart) {
			send_signal(pair->b);
			sleep_ms(settle_ms);
			drop(pair->a->fd, pair->b->number);
			finish(pair->b);
		} else {
			interrupt(pair->b);
		}
		drop(pair->a->fd, restart ? (long)strlen(MORE) : pair->b->number);
		/* After this B knows that there is room. */
		exchange(pair, 1);
	}
}

/* The signal comes when a part has been sent: the call returns the length of that part. */
static void do_send_much(struct end *end, const struct arguments *args)
{
	static char much[1 << 26];
	ssize_t sent = send(args->fd, much, sizeof much, 0);

	/* A reset may come before the first byte is sent, or after. */
	note(end, "send much: %s", sent == (ssize_t)sizeof much ? "all" : "not all");
}

CASE(signal_in_long_send)
{
	BEGIN(pair->b, do_send_much);
	interrupt(pair->b);
	BEGIN(pair->b, do_send_much);
	ON(pair->a, do_linger, .value = 0);
	ON(pair->a, do_close);
	finish(pair->b);
}

static void do_accept(struct end *end, const struct arguments *args)
{
	int made = accept(args->fd, NULL, NULL);

	note(end, "accept");
	note_result(end, made < 0 ? -1 : 0);
	end->extra[1] = made;
}

CASE(signal_in_accept)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof address;
	int listener, client;
	struct end *b = pair->b;

	if (pair->mode != THREADS)
		return;
	listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	check(listen(listener, 5), "listen");
	getsockname(listener, (struct sockaddr *)&address, &length);
	BEGIN(b, do_accept, .fd = listener);
	interrupt(b);
	catch_user_signal(true);
	BEGIN(b, do_accept, .fd = listener);
	send_signal(b);
	sleep_ms(settle_ms);
	client = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	check(connect(client, (struct sockaddr *)&address, sizeof address), "connect");
	finish(b);
	for (int i = 0; i < 4; i++) {
		ON(pair->a, do_send, .fd = client, .text = "ask");
		ON(b, do_recv, .fd = b->extra[1], .size = 10);
		ON(b, do_send, .fd = b->extra[1], .text = "answer");
		ON(pair->a, do_recv, .fd = client, .size = 10);
	}
}

static void *receive_until_cancelled(void *argument)
{
	struct end *end = argument;
	char byte;

	recv(end->fd, &byte, 1, 0);
	return NULL;
}

/* A thread that is cancelled in recv holds no lock that others need. */
static void do_cancel(struct end *end, const struct arguments *args __attribute__((unused)))
{
	pthread_t reader;
	void *result;

	pthread_create(&reader, NULL, receive_until_cancelled, end);
	sleep_ms(settle_ms);
	pthread_cancel(reader);
	pthread_join(reader, &result);
	note(end, "reader %s", result == PTHREAD_CANCELED ? "cancelled" : "ended");
}

CASE(signal_cancels_thread)
{
	ON(pair->b, do_cancel);
	ON(pair->a, do_send, .text = "for the others");
	ON(pair->b, do_recv, .size = 100);
	exchange(pair, 2);
}

/* A handler uses a socket while the interrupted thread sleeps in a call on the same socket. */
static struct end *handler_end;

static void answer_in_handler(int number __attribute__((unused)))
{
	int error = errno;

	check(send(handler_end->fd, "from the handler", 16, 0), "send");
	errno = error;
}

static void do_catch_and_answer(struct end *end, const struct arguments *args)
{
	struct sigaction action = { .sa_handler = answer_in_handler,
				    .sa_flags = args->flags ? SA_RESTART : 0 };

	handler_end = end;
	check(sigaction(SIGUSR1, &action, NULL), "sigaction");
}

CASE(signal_handler_uses_socket)
{
	ON(pair->b, do_catch_and_answer, .flags = 1);
	BEGIN(pair->b, do_recv, .size = 100);
	send_signal(pair->b);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_send, .text = "goes on");
	finish(pair->b);
	ON(pair->b, do_catch_and_answer, .flags = 0);
	BEGIN(pair->b, do_recv, .size = 100);
	interrupt(pair->b);
	ON(pair->a, do_recv, .size = 100);
}

/* A handler makes and closes connections, and may interrupt any call. */
static struct sockaddr_in own_listener;
static int own_listener_fd;
static volatile long connections_made;

static void connect_and_close(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	int datagrams = socket(AF_INET, SOCK_DGRAM, 0);

	check(fd, "socket");
	connect(fd, (struct sockaddr *)&own_listener, sizeof own_listener);
	int accepted = accept(own_listener_fd, NULL, NULL);

	if (accepted >= 0) {
		/* This may be the connection of another call, and its peer may have closed it. */
		send(accepted, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		dup2(accepted, fd);
		close(accepted);
	}
	close(fd);
	close(datagrams);
	connections_made++;
}

static void make_connections(int number __attribute__((unused)))
{
	int error = errno;

	connect_and_close();
	errno = error;
}

LONE_CASE(signal_handler_opens_and_closes)
{
	struct sigaction action = { .sa_handler = make_connections, .sa_flags = SA_RESTART };
	struct itimerval often = { { 0, 500 }, { 0, 500 } }, never = { 0 };
	socklen_t length = sizeof own_listener;
	long handled = 0;

	own_listener_fd = check(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), "socket");
	own_listener = (struct sockaddr_in){ .sin_family = AF_INET,
					     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	check(bind(own_listener_fd, (struct sockaddr *)&own_listener, length), "bind");
	check(listen(own_listener_fd, 1000), "listen");
	check(getsockname(own_listener_fd, (struct sockaddr *)&own_listener, &length), "name");
	check(sigaction(SIGALRM, &action, NULL), "sigaction");
	/* The case uses SIGALRM, so its alarm cannot end it if it hangs: the parent checks that. */
	pid_t child = check(fork(), "fork");

	if (child) {
		int status = 0, waited = 0;

		while (!waitpid(child, &status, WNOHANG) && waited++ < 100000)
			sleep_ms(1);
		if (waited >= 100000)
			say("hangs");
		else if (status)
			say("status %d", status);
		return;
	}
	check(setitimer(ITIMER_REAL, &often, NULL), "setitimer");
	for (int i = 0; i < 1500; i++) {
		/* The handler shall interrupt the allocator, too. */
		void *memory[50];

		for (int j = 0; j < 50; j++)
			memory[j] = malloc(1 + i * j % 3000);
		connect_and_close();
		for (int j = 0; j < 50; j++)
			free(memory[j]);
		handled++;
	}
	check(setitimer(ITIMER_REAL, &never, NULL), "setitimer");
	say("rounds %ld, in handlers too %d", handled, connections_made > handled);
	_exit(0);
}

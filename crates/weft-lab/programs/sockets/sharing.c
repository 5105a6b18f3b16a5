/* One connection in several threads and processes: fork, exec, and passing over a Unix socket. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "calls.h"

enum { SHARED_BYTES = 200000, PIECE_BYTES = 1000 };

struct reader {
	int fd;
	long bytes;
	unsigned long sum;
};

static void *read_and_sum(void *argument)
{
	struct reader *reader = argument;
	unsigned char piece[PIECE_BYTES];
	ssize_t got;

	while ((got = recv(reader->fd, piece, sizeof piece, 0)) > 0) {
		reader->bytes += got;
		for (ssize_t i = 0; i < got; i++)
			reader->sum += piece[i];
	}
	return NULL;
}

static void do_read_by_two(struct end *end, const struct arguments *args)
{
	struct reader readers[2] = { { .fd = args->fd }, { .fd = args->fd } };
	pthread_t threads[2];

	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, read_and_sum, &readers[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	note(end, "two readers: %ld bytes, sum %lu", readers[0].bytes + readers[1].bytes,
	     readers[0].sum + readers[1].sum);
}

static void send_pieces(int fd, char content)
{
	char piece[PIECE_BYTES];

	memset(piece, content, sizeof piece);
	for (int sent = 0; sent < SHARED_BYTES; sent += PIECE_BYTES)
		if (check(send(fd, piece, sizeof piece, 0), "send") != PIECE_BYTES)
			die("a short send");
}

CASE(share_two_readers)
{
	BEGIN(pair->b, do_read_by_two);
	send_pieces(pair->a->fd, 3);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	finish(pair->b);
}

/* Counts the pieces of each sender. A sender makes one send for a piece, so pieces must not mix. */
static void do_count_pieces(struct end *end, const struct arguments *args)
{
	char piece[PIECE_BYTES];
	long counts[4] = { 0 }, mixed = 0;

	while (recv(args->fd, piece, sizeof piece, MSG_WAITALL) == PIECE_BYTES) {
		counts[piece[0] & 3]++;
		for (int i = 1; i < PIECE_BYTES; i++)
			if (piece[i] != piece[0]) {
				mixed++;
				break;
			}
	}
	note(end, "pieces: %ld %ld %ld, mixed %ld", counts[1], counts[2], counts[3], mixed);
}

struct writer {
	int fd;
	char content;
};

static void *send_in_thread(void *argument)
{
	struct writer *writer = argument;

	send_pieces(writer->fd, writer->content);
	return NULL;
}

CASE(share_two_writers)
{
	struct writer writer = { pair->a->fd, 1 };
	pthread_t thread;

	BEGIN(pair->b, do_count_pieces);
	pthread_create(&thread, NULL, send_in_thread, &writer);
	send_pieces(pair->a->fd, 2);
	pthread_join(thread, NULL);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	finish(pair->b);
}

static pid_t start_child(void)
{
	fflush(stdout);
	return check(fork(), "fork");
}

static void reap(pid_t child)
{
	int status;

	check(waitpid(child, &status, 0), "waitpid");
	if (status)
		say("the child ended with %#x", status);
}

CASE(share_fork_child_uses)
{
	pid_t child = start_child();

	if (!child) {
		ON(pair->a, do_send, .text = "from the child");
		ON(pair->b, do_recv, .size = 100);
		ON(pair->b, do_send, .text = "to the child");
		ON(pair->a, do_recv, .size = 100);
		_exit(0);
	}
	if (pair->mode != THREADS)
		close(pair->a->fd);
	reap(child);
	if (pair->mode != THREADS)
		ON(pair->b, do_recv, .size = 100);
}

/* A child serves the connection, and the parent closes its copy at once, as forking servers do. */
static void do_serve_in_child(struct end *end, const struct arguments *args)
{
	char bytes[100];
	ssize_t got;
	pid_t child;

	note(end, "serve in a child");
	child = start_child();
	if (!child) {
		while ((got = recv(args->fd, bytes, sizeof bytes, 0)) > 0)
			if (send(args->fd, bytes, got, 0) != got)
				_exit(1);
		_exit(got != 0);
	}
	note_result(end, close(args->fd));
	end->number = child;
}

static void do_reap(struct end *end, const struct arguments *args __attribute__((unused)))
{
	int status;

	check(waitpid(end->number, &status, 0), "waitpid");
	note(end, "the child ended with %d", status);
}

CASE(share_fork_server)
{
	ON(pair->b, do_serve_in_child);
	for (int i = 0; i < 5; i++) {
		ON(pair->a, do_send, .text = "an echo");
		ON(pair->a, do_recv, .size = 100);
	}
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->b, do_reap);
}

/* A child that is stopped while it sleeps, so that it is woken only when it continues. */
static void do_sleep_in_child(struct end *end, const struct arguments *args)
{
	struct pollfd set = { .fd = args->fd, .events = POLLIN };
	char bytes[100];
	pid_t child;

	note(end, "sleep in a child");
	child = start_child();
	if (!child) {
		alarm(120);
		if (poll(&set, 1, -1) != 1 || recv(args->fd, bytes, sizeof bytes, 0) != 7)
			_exit(1);
		_exit(0);
	}
	sleep_ms(settle_ms);
	check(kill(child, SIGSTOP), "kill");
	check(waitpid(child, NULL, WUNTRACED), "waitpid");
	end->number = child;
}

static void do_close_before_it_goes_on(struct end *end, const struct arguments *args)
{
	sleep_ms(settle_ms);
	note(end, "close first");
	note_result(end, close(args->fd));
	check(kill(end->number, SIGCONT), "kill");
}

CASE(share_fork_parent_closes_late)
{
	ON(pair->b, do_sleep_in_child);
	ON(pair->a, do_send, .text = "wake up");
	ON(pair->b, do_close_before_it_goes_on);
	ON(pair->b, do_reap);
}

CASE(share_fork_both_write)
{
	pid_t child;

	BEGIN(pair->b, do_count_pieces);
	child = start_child();
	if (!child) {
		send_pieces(pair->a->fd, 1);
		_exit(0);
	}
	send_pieces(pair->a->fd, 2);
	reap(child);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	finish(pair->b);
}

static void do_read_by_two_processes(struct end *end, const struct arguments *args)
{
	struct reader own = { .fd = args->fd };
	pid_t child;

	end->number = 0;
	child = start_child();
	if (!child) {
		read_and_sum(&own);
		end->number = own.bytes;
		end->extra[5] = own.sum;
		_exit(0);
	}
	read_and_sum(&own);
	reap(child);
	note(end, "two reading processes: %ld bytes, sum %lu", own.bytes + end->number,
	     own.sum + end->extra[5]);
}

CASE(share_fork_both_read)
{
	BEGIN(pair->b, do_read_by_two_processes);
	send_pieces(pair->a->fd, 3);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	finish(pair->b);
}

/* The parent writes again after its child has used the connection and ended. */
CASE(share_fork_in_turns)
{
	for (int i = 0; i < 3; i++) {
		pid_t child = start_child();

		if (!child) {
			send(pair->a->fd, "child ", 6, 0);
			_exit(0);
		}
		reap(child);
		ON(pair->a, do_send, .text = "parent");
		ON(pair->b, do_recv, .size = 12, .flags = MSG_WAITALL);
		ON(pair->b, do_send, .text = "both");
		ON(pair->a, do_recv, .size = 10);
	}
	ON(pair->a, do_close);
	ON(pair->b, do_recv, .size = 10);
}

/* Several processes accept from one listener and echo. */
LONE_CASE(share_prefork)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	pid_t children[3];
	char bytes[1000];
	ssize_t got;
	int echoed = 0;

	check(bind(listener, (struct sockaddr *)&address, sizeof address), "bind");
	check(listen(listener, 30), "listen");
	getsockname(listener, (struct sockaddr *)&address, &length);
	for (int i = 0; i < 3; i++) {
		children[i] = start_child();
		if (children[i])
			continue;
		for (int served = 0; served < 10; served++) {
			int fd = check(accept(listener, NULL, NULL), "accept");

			while ((got = read(fd, bytes, sizeof bytes)) > 0)
				check(write(fd, bytes, got), "write");
			close(fd);
		}
		_exit(0);
	}
	for (int i = 0; i < 30; i++) {
		int fd = check(socket(AF_INET, SOCK_STREAM, 0), "socket");

		check(connect(fd, (struct sockaddr *)&address, sizeof address), "connect");
		for (int round = 0; round < 10; round++) {
			memset(bytes, i + round, sizeof bytes);
			check(send(fd, bytes, 700, 0), "send");
			memset(bytes, 0, sizeof bytes);
			if (recv(fd, bytes, 700, MSG_WAITALL) == 700 && bytes[699] == i + round)
				echoed++;
		}
		close(fd);
	}
	for (int i = 0; i < 3; i++)
		reap(children[i]);
	say("%d of 300 echoed", echoed);
}

/* A child executes the program that echoes on standard input, with the environment or without. */
static void do_exec(struct end *end, const struct arguments *args)
{
	char *arguments[] = { "sockets", "--echo", NULL }, *empty[] = { NULL };
	pid_t child;

	note(end, "exec%s", args->flags ? " without environment" : "");
	child = start_child();
	if (!child) {
		dup2(args->fd, STDIN_FILENO);
		for (int fd = 3; fd < 400; fd++)
			close(fd);
		execve("/proc/self/exe", arguments, args->flags ? empty : environ);
		_exit(99);
	}
	if (!args->value)
		note_result(end, close(args->fd));
	end->number = child;
}

static void echo_through_exec(struct pair *pair, bool without_environment)
{
	ON(pair->a, do_send, .text = "before exec, ");
	ON(pair->b, do_exec, .flags = without_environment);
	sleep_ms(settle_ms);
	for (int i = 0; i < 3; i++) {
		ON(pair->a, do_send, .text = "after it");
		ON(pair->a, do_recv, .size = i ? 8 : 21, .flags = MSG_WAITALL);
	}
	for (int i = 0; i < 3; i++) {
		ON(pair->a, do_send, .size = 60000, .value = i);
		ON(pair->a, do_drain, .size = 60000, .value = i);
	}
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->a, do_recv, .size = 10);
	ON(pair->b, do_reap);
}

CASE(share_exec)
{
	echo_through_exec(pair, false);
}

CASE(share_exec_without_environment)
{
	echo_through_exec(pair, true);
}

/* Starts a shell with the end as its standard streams. No other process keeps the end. */
static pid_t hand_to_shell(struct end *end, char *command)
{
	char *arguments[] = { "sh", "-c", command, NULL };
	pid_t child = start_child();

	if (!child) {
		dup2(end->fd, STDIN_FILENO);
		dup2(end->fd, STDOUT_FILENO);
		closefrom(3);
		execv("/bin/sh", arguments);
		_exit(99);
	}
	close(end->fd);
	return child;
}

/* A child executes another program on the connection, as inetd-like servers and shells do. */
CASE(share_exec_by_shell)
{
	pid_t child;

	if (pair->mode == THREADS)
		return;
	child = hand_to_shell(pair->a, "read line; echo \"got $line\"; cat");
	ON(pair->b, do_send, .text = "a line\n");
	ON(pair->b, do_recv, .size = 11, .flags = MSG_WAITALL);
	ON(pair->b, do_send, .text = "and more");
	ON(pair->b, do_recv, .size = 8, .flags = MSG_WAITALL);
	ON(pair->b, do_shutdown, .flags = SHUT_WR);
	ON(pair->b, do_recv, .size = 10);
	reap(child);
}

/* Programs of the shell use the connection as standard streams through the C library. */
CASE(share_exec_stdio)
{
	pid_t child;

	if (pair->mode == THREADS)
		return;
	child = hand_to_shell(pair->a, "read line; sed -u s/a/b/; echo end of \"$line\"");
	ON(pair->b, do_send, .text = "a line\n");
	for (int i = 0; i < 3; i++) {
		ON(pair->b, do_send, .text = "a word\n");
		ON(pair->b, do_recv, .size = 7, .flags = MSG_WAITALL);
	}
	ON(pair->b, do_send, .text = "the last");
	ON(pair->b, do_shutdown, .flags = SHUT_WR);
	ON(pair->b, do_recv, .size = 8, .flags = MSG_WAITALL);
	ON(pair->b, do_recv, .size = 14, .flags = MSG_WAITALL);
	ON(pair->b, do_recv, .size = 10);
	reap(child);
}

static void do_pass(struct end *end, const struct arguments *args)
{
	char control[CMSG_SPACE(sizeof(int))] = "";
	struct iovec part = { "!", 1 };
	struct msghdr message = { .msg_iov = &part,
				  .msg_iovlen = 1,
				  .msg_control = control,
				  .msg_controllen = sizeof control };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	*header = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
	memcpy(CMSG_DATA(header), &args->fd, sizeof(int));
	note(end, "pass");
	note_result(end, sendmsg(args->other, &message, 0));
}

static void do_take(struct end *end, const struct arguments *args)
{
	char control[CMSG_SPACE(sizeof(int))], byte;
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part,
				  .msg_iovlen = 1,
				  .msg_control = control,
				  .msg_controllen = sizeof control };

	note(end, "take");
	note_result(end, recvmsg(args->other, &message, MSG_CMSG_CLOEXEC));
	memcpy(&end->fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
}

/* Process C gets B's socket, which has been used, and passes it on after it has used it. */
CASE(share_passed)
{
	int way[2];
	struct end *c;

	if (pair->mode != THREADS)
		return;
	check(socketpair(AF_UNIX, SOCK_STREAM, 0, way), "socketpair");
	c = open_end('C', true);
	/* C closes the inherited copies, so that it has only the passed socket. */
	ON(c, do_close, .fd = pair->a->fd);
	ON(c, do_close, .fd = pair->b->fd);
	ON(pair->a, do_send, .text = "before, ");
	ON(pair->b, do_pass, .other = way[0]);
	ON(c, do_take, .other = way[1]);
	ON(pair->b, do_close);
	ON(pair->a, do_send, .text = "after");
	ON(c, do_recv, .size = 13, .flags = MSG_WAITALL);
	for (int i = 0; i < 3; i++) {
		ON(c, do_send, .text = "from C");
		ON(pair->a, do_recv, .size = 100);
		ON(pair->a, do_send, .text = "to C");
		ON(c, do_recv, .size = 100);
	}
	ON(c, do_pass, .other = way[1]);
	ON(pair->b, do_take, .other = way[0]);
	ON(c, do_close);
	ON(pair->a, do_send, .text = "to B again");
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_send, .text = "from B again");
	ON(pair->a, do_recv, .size = 100);
	ON(pair->b, do_close);
	ON(pair->a, do_recv, .size = 100);
}

/* A worker gets sockets that have not been used. */
LONE_CASE(share_passed_fresh)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	struct end *worker, *parent = open_end('P', false);
	int listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket"), way[2];
	struct end *client = open_end('A', false);

	check(bind(listener, (struct sockaddr *)&address, sizeof address), "bind");
	check(listen(listener, 5), "listen");
	getsockname(listener, (struct sockaddr *)&address, &length);
	check(socketpair(AF_UNIX, SOCK_STREAM, 0, way), "socketpair");
	worker = open_end('W', true);
	for (int i = 0; i < 2; i++) {
		client->fd = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
		check(connect(client->fd, (struct sockaddr *)&address, length), "connect");
		if (i)
			ON(client, do_send, .text = "early");
		parent->fd = check(accept(listener, NULL, NULL), "accept");
		ON(parent, do_pass, .other = way[0]);
		ON(parent, do_close);
		ON(worker, do_take, .other = way[1]);
		for (int round = 0; round < 4; round++) {
			ON(client, do_send, .text = "ask");
			ON(worker, do_recv, .size = 100);
			ON(worker, do_send, .text = "answer");
			ON(client, do_recv, .size = 100);
		}
		ON(worker, do_close);
		ON(client, do_recv, .size = 10);
		ON(client, do_close);
	}
}

/* A child executes a program, which closes sockets with close-on-exec. */
static void do_execute_without(struct end *end, const struct arguments *args)
{
	int ready[2];
	char byte;

	check(pipe2(ready, O_CLOEXEC), "pipe2");
	check(fcntl(args->fd, F_SETFD, FD_CLOEXEC), "FD_CLOEXEC");
	pid_t child = check(args->flags ? vfork() : fork(), "fork");
	if (!child) {
		char *const arguments[] = { "sleep", "4", NULL }, *const none[] = { NULL };

		execve("/bin/sleep", arguments, args->value ? none : environ);
		_exit(1);
	}
	end->number = child;
	close(ready[1]);
	/* The pipe's EOF means that the program has started. */
	while (read(ready[0], &byte, 1) < 0)
		;
	close(ready[0]);
	note(end, "a child executes a program");
}

static void do_kill_child(struct end *end, const struct arguments *args __attribute__((unused)))
{
	kill((pid_t)end->number, SIGKILL);
	waitpid((pid_t)end->number, NULL, 0);
}

static void do_send_much(struct end *end, const struct arguments *args)
{
	long sent = 0, now;

	while ((now = send(args->fd, end->data, 100000, MSG_NOSIGNAL)) > 0)
		sent += now;
	note(end, "sending ends");
	note_result(end, now);
}

static void closed_beside_a_program(struct pair *pair, bool vforked, bool without_environment)
{
	ON(pair->a, do_execute_without, .flags = vforked, .value = without_environment);
	exchange(pair, 1);
	ON(pair->a, do_send, .text = "last words");
	ON(pair->a, do_close);
	sleep_ms(settle_ms);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_send, .text = "for nobody", .flags = MSG_NOSIGNAL);
	sleep_ms(settle_ms);
	ON(pair->b, do_send, .text = "nobody is there", .flags = MSG_NOSIGNAL);
	ON(pair->b, do_poll, .flags = POLLIN | POLLOUT);
	ON(pair->a, do_kill_child);
}

CASE(share_fork_and_execute_with_close_on_exec)
{
	closed_beside_a_program(pair, false, false);
}

CASE(share_vfork_and_execute_with_close_on_exec)
{
	closed_beside_a_program(pair, true, false);
}

CASE(share_fork_and_execute_without_environment)
{
	closed_beside_a_program(pair, false, true);
}

/* The writer sleeps for room when the reader closes the socket. */
CASE(share_writer_beside_a_program)
{
	ON(pair->a, do_execute_without);
	BEGIN(pair->b, do_send_much);
	sleep_ms(settle_ms);
	ON(pair->a, do_close);
	finish(pair->b);
	ON(pair->a, do_kill_child);
}

/* System calls by syscall(2) and a number, as libuv and language runtimes make them. */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "calls.h"

static void do_write_by_number(struct end *end, const struct arguments *args)
{
	note(end, "syscall(SYS_write)");
	note_result(end, syscall(SYS_write, args->fd, args->text, strlen(args->text)));
}

static void do_read_by_number(struct end *end, const struct arguments *args)
{
	char bytes[200];
	long got = syscall(SYS_read, args->fd, bytes, sizeof bytes);

	note(end, "syscall(SYS_read)");
	note_result(end, got);
	note_data(end, bytes, got);
}

/* Sends by each system call that can. */
static void do_send_by_numbers(struct end *end, const struct arguments *args)
{
	struct iovec parts[2] = { { "one ", 4 }, { "two ", 4 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	struct mmsghdr several[2] = { { .msg_hdr = message }, { .msg_hdr = message } };

	note(end, "writev");
	note_result(end, syscall(SYS_writev, args->fd, parts, 2));
	note(end, " sendto");
	note_result(end, syscall(SYS_sendto, args->fd, "three ", 6, MSG_NOSIGNAL, NULL, 0));
	note(end, " sendmsg");
	note_result(end, syscall(SYS_sendmsg, args->fd, &message, MSG_NOSIGNAL));
	note(end, " sendmmsg");
	note_result(end, syscall(SYS_sendmmsg, args->fd, several, 2, MSG_NOSIGNAL));
	note(end, " pwritev2");
	note_result(end, syscall(SYS_pwritev2, args->fd, parts, 2, -1L, 0, 0));
	note(end, " pwritev2 at 0");
	note_result(end, syscall(SYS_pwritev2, args->fd, parts, 2, 0L, 0, 0));
}

static void do_receive_by_numbers(struct end *end, const struct arguments *args)
{
	char bytes[100];
	struct iovec part = { bytes, 4 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct mmsghdr several = { .msg_hdr = message };
	long got;
	int amount = 0;

	got = syscall(SYS_ioctl, args->fd, FIONREAD, &amount);
	note(end, "FIONREAD %d", amount);
	note_result(end, got);
	note(end, " readv");
	note_result(end, got = syscall(SYS_readv, args->fd, &part, 1));
	note_data(end, bytes, got);
	note(end, " recvfrom");
	note_result(end, got = syscall(SYS_recvfrom, args->fd, bytes, 4, MSG_PEEK, NULL, NULL));
	note_data(end, bytes, got);
	note(end, " recvmsg");
	note_result(end, got = syscall(SYS_recvmsg, args->fd, &message, 0));
	note_data(end, bytes, got);
	note(end, " recvmmsg");
	note_result(end, got = syscall(SYS_recvmmsg, args->fd, &several, 1, 0, NULL));
	note_data(end, bytes, got == 1 ? several.msg_len : 0);
	note(end, " preadv2");
	note_result(end, got = syscall(SYS_preadv2, args->fd, &part, 1, -1L, 0, 0));
	note_data(end, bytes, got);
	note(end, " preadv2 at 3");
	note_result(end, syscall(SYS_preadv2, args->fd, &part, 1, 3L, 0, 0));
	part.iov_len = sizeof bytes;
	note(end, " rest");
	note_result(end, got = syscall(SYS_readv, args->fd, &part, 1));
	note_data(end, bytes, got);
}

CASE(syscall_bytes)
{
	ON(pair->a, do_write_by_number, .text = "by its number");
	ON(pair->b, do_read_by_number);
	BEGIN(pair->b, do_read_by_number);
	ON(pair->a, do_write_by_number, .text = "to one that sleeps");
	finish(pair->b);
	ON(pair->a, do_send_by_numbers);
	ON(pair->b, do_receive_by_numbers);
	exchange(pair, 2);
}

static void do_close_by_number(struct end *end, const struct arguments *args)
{
	note(end, "syscall(SYS_close)");
	note_result(end, syscall(SYS_close, args->fd));
}

/* A file gets the number of a closed socket. */
static void do_write_file(struct end *end, const struct arguments *args)
{
	char text[100];
	int fd = check(memfd_create("again", MFD_CLOEXEC), "memfd_create");
	long got;

	if (fd != args->fd)
		check(dup2(fd, args->fd), "dup2");
	note(end, "write to a file");
	note_result(end, write(args->fd, "of a file", 9));
	got = pread(args->fd, text, sizeof text, 0);
	note_data(end, text, got);
}

CASE(syscall_close)
{
	ON(pair->a, do_close_by_number);
	ON(pair->b, do_recv, .size = 10);
	ON(pair->a, do_write_file);
	ON(pair->b, do_send, .text = "after the end", .flags = MSG_NOSIGNAL);
}

CASE(syscall_close_range)
{
	int fd = pair->a->fd;

	say("close_range = %ld", syscall(SYS_close_range, fd, fd, 0));
	ON(pair->b, do_recv, .size = 10);
}

CASE(syscall_copies)
{
	int copy = check(syscall(SYS_dup, pair->a->fd), "dup"), second;

	ON(pair->a, do_send, .fd = copy, .text = "by a copy");
	ON(pair->b, do_recv, .size = 100);
	second = check(syscall(SYS_fcntl, copy, F_DUPFD_CLOEXEC, 50), "fcntl");
	check(syscall(SYS_close, copy), "close");
	check(syscall(SYS_close, pair->a->fd), "close");
	ON(pair->a, do_send, .fd = second, .text = "by another");
	ON(pair->b, do_recv, .size = 100);
	check(syscall(SYS_dup3, second, pair->a->fd, O_CLOEXEC), "dup3");
	check(syscall(SYS_close, second), "close");
	exchange(pair, 2);
	ON(pair->a, do_close_by_number);
	ON(pair->b, do_recv, .size = 10);
}

CASE(syscall_waiting)
{
	struct pollfd set = { pair->a->fd, POLLIN, 0 };
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 77 }, ready;
	struct timespec soon = { 5, 0 };
	struct timeval soon_enough = { 5, 0 };
	struct { const void *mask; size_t size; } none = { NULL, 8 };
	fd_set reads;
	int epoll = check(syscall(SYS_epoll_create1, 0), "epoll_create1");

	say("poll before = %ld", syscall(SYS_poll, &set, 1, 0));
	say("epoll_ctl = %ld", syscall(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, set.fd, &event));
	say("epoll_wait before = %ld", syscall(SYS_epoll_wait, epoll, &ready, 1, 0));
	ON(pair->b, do_send, .text = "ready");
	say("poll = %ld", syscall(SYS_poll, &set, 1, 1000));
	say("ppoll = %ld", syscall(SYS_ppoll, &set, 1, &soon, NULL, 8));
	say("of %x", set.revents);
	say("time is left: %d", soon.tv_sec == 4 || soon.tv_sec == 5);
	FD_ZERO(&reads);
	FD_SET(set.fd, &reads);
	say("select = %ld", syscall(SYS_select, set.fd + 1, &reads, NULL, NULL, &soon_enough));
	soon = (struct timespec){ 5, 0 };
	say("pselect6 = %ld", syscall(SYS_pselect6, set.fd + 1, &reads, NULL, NULL, &soon, &none));
	ready = (struct epoll_event){ 0 };
	say("epoll_wait = %ld", syscall(SYS_epoll_wait, epoll, &ready, 1, 1000));
	say("of %lu %x", (unsigned long)ready.data.u64, ready.events);
	ready = (struct epoll_event){ 0 };
	say("epoll_pwait = %ld", syscall(SYS_epoll_pwait, epoll, &ready, 1, 1000, NULL, 8));
	say("of %lu %x", (unsigned long)ready.data.u64, ready.events);
	ON(pair->a, do_recv, .size = 100);
	say("epoll_wait after = %ld", syscall(SYS_epoll_wait, epoll, &ready, 1, 0));
	exchange(pair, 2);
}

/* All calls of a connection are made by their numbers. */
LONE_CASE(syscall_connection)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int listener = check(syscall(SYS_socket, AF_INET, SOCK_STREAM, 0), "socket");
	int one = check(syscall(SYS_socket, AF_INET, SOCK_STREAM, 0), "socket"), other;
	char bytes[10];
	int value = 1;

	check(syscall(SYS_bind, listener, &address, sizeof address), "bind");
	check(syscall(SYS_listen, listener, 5), "listen");
	check(syscall(SYS_getsockname, listener, &address, &length), "getsockname");
	say("connect = %ld", syscall(SYS_connect, one, &address, sizeof address));
	other = check(syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC), "accept4");
	say("setsockopt = %ld", syscall(SYS_setsockopt, one, IPPROTO_TCP, TCP_NODELAY, &value, 4));
	for (int i = 0; i < 4; i++) {
		check(syscall(SYS_write, one, "ping", 4), "write");
		check(syscall(SYS_read, other, bytes, 4), "read");
		check(syscall(SYS_write, other, "pong", 4), "write");
		check(syscall(SYS_read, one, bytes, 4), "read");
	}
	say("%.4s", bytes);
	say("shutdown = %ld", syscall(SYS_shutdown, one, SHUT_WR));
	say("read = %ld", syscall(SYS_read, other, bytes, 10));
}

CASE(syscall_fork)
{
	pid_t child;

	fflush(stdout);
	child = check(syscall(SYS_fork), "fork");
	if (!child) {
		ON(pair->a, do_send, .text = "from the child");
		syscall(SYS_exit_group, 0);
	}
	check(waitpid(child, NULL, 0), "waitpid");
	ON(pair->b, do_recv, .size = 100);
	exchange(pair, 2);
}

CASE(syscall_exec)
{
	const char *arguments[] = { "cat", NULL };
	pid_t child;

	ON(pair->b, do_send, .text = "to the child");
	ON(pair->b, do_shutdown, .flags = SHUT_WR);
	fflush(stdout);
	child = check(fork(), "fork");
	if (!child) {
		check(syscall(SYS_dup2, pair->a->fd, 0), "dup2");
		syscall(SYS_dup2, pair->a->fd, 1);
		syscall(SYS_execveat, AT_FDCWD, "/bin/cat", arguments, environ, 0);
		syscall(SYS_exit_group, 1);
	}
	check(waitpid(child, NULL, 0), "waitpid");
	ON(pair->b, do_recv, .size = 100);
}

static int in_clone(void *argument)
{
	struct pair *pair = argument;

	return write(pair->a->fd, "of a clone", 10) != 10;
}

/* A child of clone() with a new stack: handlers of pthread_atfork do not run for it. */
CASE(syscall_clone_function)
{
	static char stack[1 << 16];
	int status;
	pid_t child;

	ON(pair->b, do_send, .text = "unread");
	child = check(clone(in_clone, stack + sizeof stack, SIGCHLD, pair), "clone");
	check(waitpid(child, &status, 0), "waitpid");
	say("the child: %x", status);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->a, do_recv, .size = 100);
	exchange(pair, 2);
}

CASE(syscall_unshare)
{
	ON(pair->b, do_send, .text = "unread");
	say("unshare = %ld", syscall(SYS_unshare, CLONE_FILES));
	ON(pair->a, do_recv, .size = 100);
	exchange(pair, 2);
	say("unshare = %d", unshare(CLONE_FILES));
	exchange(pair, 2);
}

/* Copies of descriptors, their flags, their reuse, and calls on descriptors of other kinds. */
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "calls.h"

static void do_copy(struct end *end, const struct arguments *args)
{
	static const char *const HOW[] = { "dup", "dup2", "dup3", "F_DUPFD", "F_DUPFD_CLOEXEC" };
	int made = -1;

	switch (args->value) {
	case 0: made = dup(args->fd); break;
	case 1: made = dup2(args->fd, 200); break;
	case 2: made = dup3(args->fd, 201, O_CLOEXEC); break;
	case 3: made = fcntl(args->fd, F_DUPFD, 210); break;
	case 4: made = fcntl(args->fd, F_DUPFD_CLOEXEC, 220); break;
	}
	note(end, "%s: descriptor flags %d, flags %#x", HOW[args->value], fcntl(made, F_GETFD),
	     fcntl(made, F_GETFL));
	end->extra[args->other] = made;
}

CASE(descriptor_copies)
{
	for (int how = 0; how < 5; how++) {
		ON(pair->a, do_copy, .value = how);
		ON(pair->a, do_send, .fd = pair->a->extra[0], .text = "by the copy");
		ON(pair->b, do_recv, .size = 100);
		ON(pair->b, do_send, .text = "to both");
		ON(pair->a, do_recv, .fd = pair->a->extra[0], .size = 3);
		ON(pair->a, do_recv, .size = 100);
		ON(pair->a, do_close, .fd = pair->a->extra[0]);
		ON(pair->a, do_send, .fd = pair->a->extra[0], .text = "x");
		ON(pair->b, do_recv, .size = 100, .flags = MSG_DONTWAIT);
		exchange(pair, 1);
	}
}

CASE(descriptor_original_closed_first)
{
	ON(pair->a, do_copy, .value = 0);
	ON(pair->a, do_close);
	ON(pair->a, do_send, .text = "x");
	ON(pair->b, do_recv, .size = 100, .flags = MSG_DONTWAIT);
	ON(pair->a, do_send, .fd = pair->a->extra[0], .text = "by the copy");
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_send, .text = "to the copy");
	ON(pair->a, do_poll, .fd = pair->a->extra[0], .flags = POLLIN, .value = 1000);
	ON(pair->a, do_recv, .fd = pair->a->extra[0], .size = 100);
	ON(pair->a, do_close, .fd = pair->a->extra[0]);
	ON(pair->b, do_recv, .size = 100);
}

CASE(descriptor_copies_share_flags)
{
	ON(pair->a, do_copy, .value = 0);
	ON(pair->a, do_nonblocking, .value = 1, .fd = pair->a->extra[0]);
	ON(pair->a, do_recv, .size = 10);
	ON(pair->a, do_nonblocking, .value = 0);
	ON(pair->b, do_send, .text = "x");
	ON(pair->a, do_recv, .size = 10, .fd = pair->a->extra[0]);
	ON(pair->a, do_shutdown, .flags = SHUT_WR, .fd = pair->a->extra[0]);
	ON(pair->a, do_send, .text = "x");
	ON(pair->b, do_recv, .size = 10);
}

static void do_flags(struct end *end, const struct arguments *args)
{
	note(end, "flags %#x, descriptor flags %d", fcntl(args->fd, F_GETFL),
	     fcntl(args->fd, F_GETFD));
	note(end, ", FD_CLOEXEC");
	note_result(end, fcntl(args->fd, F_SETFD, FD_CLOEXEC));
	note(end, " O_NONBLOCK");
	note_result(end, fcntl(args->fd, F_SETFL, O_NONBLOCK | O_APPEND));
	note(end, ": flags %#x, descriptor flags %d", fcntl(args->fd, F_GETFL),
	     fcntl(args->fd, F_GETFD));
	note(end, ", recv");
	note_result(end, recv(args->fd, end->data, 1, 0));
	note(end, ", F_SETFL 0");
	note_result(end, fcntl(args->fd, F_SETFL, 0));
	note(end, ": flags %#x", fcntl(args->fd, F_GETFL));
}

CASE(descriptor_flags)
{
	ON(pair->a, do_flags);
	ON(pair->b, do_flags);
	exchange(pair, 1);
}

/* Another file gets the number of a connection, in two ways. */
static void do_replace(struct end *end, const struct arguments *args)
{
	int file = check(memfd_create("file", 0), "memfd_create"), number = args->fd;

	check(write(file, "of the file", 11), "write");
	check(lseek(file, 0, SEEK_SET), "lseek");
	if (args->flags) {
		check(dup2(file, number), "dup2");
	} else {
		close(number);
		/* dup() returns the lowest free number, which is usually the same. */
		if (dup(file) != number)
			check(dup2(file, number), "dup2");
	}
	note(end, args->flags ? "dup2 over it: read" : "close, then dup: read");
	ssize_t got = read(number, end->data, 100);
	note_result(end, got);
	note_data(end, end->data, got);
	note(end, " send");
	note_result(end, send(number, "x", 1, 0));
	note(end, " write");
	note_result(end, write(number, "more", 4));
	note(end, " lseek");
	note_result(end, lseek(number, 0, SEEK_CUR));
}

CASE(descriptor_replaced)
{
	ON(pair->a, do_send, .text = "last words");
	ON(pair->a, do_replace, .flags = 1);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
}

CASE(descriptor_reused)
{
	ON(pair->a, do_replace, .flags = 0);
	ON(pair->b, do_recv, .size = 100);
}

CASE(descriptor_reused_by_another_connection)
{
	struct pair other = open_pair(pair->mode);
	int number = other.a->fd;

	/* The descriptor of the other connection becomes A's connection. */
	check(dup2(pair->a->fd, number), "dup2");
	ON(other.b, do_recv, .size = 100);
	ON(other.a, do_send, .text = "over the first");
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_send, .text = "and back");
	ON(other.a, do_recv, .size = 100);
	check(close(pair->a->fd), "close");
	ON(other.a, do_send, .text = "still");
	ON(pair->b, do_recv, .size = 100);
	ON(other.a, do_close);
}

/* Prints a call's result and error. Arguments of one call are evaluated in any order, so the call
 * and errno cannot both be arguments of say(). */
static void say_failure(const char *call, int result)
{
	say("%s %d %s", call, result, strerrorname_np(errno));
}

CASE(descriptor_dup2_onto_itself)
{
	say("dup2 onto itself %d", dup2(pair->a->fd, pair->a->fd) == pair->a->fd);
	exchange(pair, 1);
	say_failure("dup3 onto itself", dup3(pair->a->fd, pair->a->fd, 0));
	exchange(pair, 1);
	say_failure("dup2 of nothing", dup2(999, pair->a->fd));
	exchange(pair, 1);
}

static void do_close_range(struct end *end, const struct arguments *args)
{
	int fd = dup2(args->fd, 300);

	close(args->fd);
	end->fd = fd;
	note(end, "close_range CLOEXEC");
	note_result(end, close_range(fd, fd + 10, CLOSE_RANGE_CLOEXEC));
	note(end, ", descriptor flags %d, send", fcntl(fd, F_GETFD));
	note_result(end, send(fd, "still here", 10, 0));
	note(end, ", close_range");
	note_result(end, close_range(fd, args->flags ? ~0U : (unsigned)fd, 0));
	note(end, ", send");
	note_result(end, send(fd, "x", 1, 0));
}

CASE(descriptor_close_range)
{
	ON(pair->a, do_close_range);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
}

static void do_closefrom(struct end *end, const struct arguments *args)
{
	int fd = dup2(args->fd, 300);

	close(args->fd);
	closefrom(fd);
	note(end, "closefrom, send");
	note_result(end, send(fd, "x", 1, 0));
}

CASE(descriptor_closefrom)
{
	ON(pair->a, do_closefrom);
	ON(pair->b, do_recv, .size = 100);
}

/* Makes each call on a descriptor of the wrong kind. */
static void do_every_call(struct end *end, const struct arguments *args)
{
	int fd = args->other;
	char bytes[4] = "abc";
	struct iovec part = { bytes, 3 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct mmsghdr messages = { .msg_hdr = message };
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof address;
	int value = 0;

#define NOTE(call)                  \
	do {                        \
		note(end, "\n    " #call); \
		note_result(end, call);   \
	} while (0)
	note(end, "calls on %s", args->text);
	NOTE(send(fd, bytes, 3, 0));
	NOTE(sendto(fd, bytes, 3, MSG_NOSIGNAL, NULL, 0));
	NOTE(sendmsg(fd, &message, MSG_DONTWAIT));
	NOTE(sendmmsg(fd, &messages, 1, MSG_DONTWAIT));
	NOTE(recv(fd, bytes, 3, MSG_DONTWAIT));
	NOTE(recvfrom(fd, bytes, 3, MSG_DONTWAIT, NULL, NULL));
	NOTE(recvmsg(fd, &message, MSG_DONTWAIT));
	NOTE(recvmmsg(fd, &messages, 1, MSG_DONTWAIT, NULL));
	NOTE(shutdown(fd, SHUT_WR));
	NOTE(getsockname(fd, (struct sockaddr *)&address, &length));
	NOTE(getpeername(fd, (struct sockaddr *)&address, &length));
	NOTE(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &length));
	NOTE(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value));
	NOTE(ioctl(fd, FIONREAD, &value));
	NOTE(accept(fd, NULL, NULL));
	NOTE(accept4(fd, NULL, NULL, 0));
	if (args->flags)
		return;
	NOTE(read(fd, bytes, 3));
	NOTE(write(fd, bytes, 3));
	NOTE(readv(fd, &part, 1));
	NOTE(writev(fd, &part, 1));
	NOTE(fcntl(fd, F_GETFL));
	NOTE(fcntl(fd, F_SETFL, O_NONBLOCK));
	NOTE(dup(fd) < 0 ? -1 : 0);
	NOTE(close(fd));
#undef NOTE
}

CASE(descriptor_wrong)
{
	int closed = dup(pair->a->fd), pipes[2];

	close(closed);
	ON(pair->a, do_every_call, .text = "a closed one", .other = closed);
	ON(pair->a, do_every_call, .text = "-1", .other = -1);
	ON(pair->a, do_every_call, .text = "an unconnected one",
	   .other = socket(AF_INET, SOCK_STREAM, 0));
	check(pipe(pipes), "pipe");
	ON(pair->a, do_every_call, .text = "a pipe", .other = pipes[0], .flags = 1);
	ON(pair->a, do_every_call, .text = "a file", .other = memfd_create("file", 0));
	exchange(pair, 1);
}

CASE(descriptor_closed_twice)
{
	ON(pair->a, do_close);
	ON(pair->a, do_close);
	ON(pair->a, do_every_call, .text = "the closed one", .other = pair->a->fd);
	ON(pair->b, do_recv, .size = 10);
}
